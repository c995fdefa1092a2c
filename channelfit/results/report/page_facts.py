"""The facts of a fit for its report, collected from the fit and its model.

The process that writes the report is sent them, and so needs neither the model nor SymPy, which
loads slowly.
"""

from __future__ import annotations

import numpy as np

from channelfit.model.channel import Chain, ChannelModel
from channelfit.model.evaluation import evaluate
from channelfit.results.report.expression_text import math_symbol, math_text
from channelfit.results.report.page_content import Facts, ModelScheme, SchemeChain, SchemeStep
from channelfit.search.loop import FitResult
from channelfit.search.plan import FitPlan
from channelfit.search.saved_fit import OF_THE_MODEL


def facts_of(
    plan: FitPlan, result: FitResult, summary_json: str, scheme: ModelScheme | None = None
) -> Facts:
    """Collect the facts of a fit for its report.

    Arguments:
        summary_json: the text of ``summary.json``.
        scheme: of the model, where that is known already.
    """
    history = _columns(result.history)
    if not plan.has_currents:
        return Facts(summary_json, None, (), history)
    scheme = scheme or scheme_of(plan.problem.model)
    return Facts(summary_json, scheme, _reversals(plan, result.values), history)


def _columns(history: np.ndarray) -> np.ndarray:
    """Return the columns of a history that a report draws, (n_generations, 4)."""
    if not len(history):
        return np.empty((0, 4))
    if history.dtype.names:
        names = ("generation", "evaluations", "seconds", "best_cost")
        return np.column_stack([history[name].astype(float) for name in names])
    return np.asarray(history, dtype=float).reshape(len(history), -1)[:, :4]


def _reversals(plan: FitPlan, values: np.ndarray) -> tuple[float | str, ...]:
    """Return the reversal potential, mV, with which each experiment was simulated; see `Facts`."""
    problem = plan.problem
    found: list[float | str] = [
        "the model's current has no single reversal potential to divide by"
    ] * len(problem.experiments)
    ohmic = problem.model.ohmic
    if ohmic is None or ohmic.reversal is None:
        return tuple(found)  # as many as there are, at least
    for group in problem.groups:
        own = group.parameters(np.asarray(values, dtype=float)[:, None])[:, 0]
        names = dict(zip(group.problem.model.parameter_names, own.tolist(), strict=True))
        reversal: float | str = float(evaluate(ohmic.reversal, names))
        if group.clamp is not None and not group.clamp.holds_command:
            reversal = (
                "the membrane is not at the command, which the clamp of this fit says, so that the "
                "current over command minus reversal would be none"
            )
        for place in group.places:
            found[place] = reversal
    recorded = zip(found, problem.experiments, strict=True)
    return tuple(reversal for reversal, e in recorded if not e.observations)


def scheme_of(model: ChannelModel) -> ModelScheme:
    """Return the scheme of a model, or those of its gates, with rates and definitions as texts."""
    return ModelScheme(
        model.name,
        model.source.partition(OF_THE_MODEL)[2] or model.source,
        tuple(_chain(chain) for chain in model.chains),
        tuple(
            f"{math_symbol(name)} = {math_text(e)}"
            for name, e in model.definitions
            if name != "celsius"
        ),
    )


def _chain(chain: Chain) -> SchemeChain:
    return SchemeChain(
        chain.name,
        chain.is_gate,
        chain.power,
        tuple(chain.states),
        tuple(bool(conductance) for conductance in chain.conductances),
        tuple(
            SchemeStep(t.source, t.target, t.multiplicity, str(t.rate), math_text(t.rate))
            for t in chain.transitions
        ),
    )
