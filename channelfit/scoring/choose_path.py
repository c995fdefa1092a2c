"""Four ways to the same score, and which of them pays.

``stepping`` serves every problem. ``modal`` and ``closed-form`` need held voltages, one
current beside leaks, and chains that have modes (`detailed_balance.reason_without_modes`); the
closed form needs no samples. ``moments`` needs held voltages and one chain, whatever its rates.
"""

from __future__ import annotations

import numpy as np

from channelfit.model.channel import ChannelModel, Parameter
from channelfit.model.evaluation import evaluate
from channelfit.problem.experiment import Problem
from channelfit.problem.run_tree import N_SAMPLES, TABLE
from channelfit.reading.errors import InputError
from channelfit.scoring.kernels.detailed_balance import reason_without_modes
from channelfit.scoring.kernels.spectral_layout import MOST_PRODUCTS
from channelfit.scoring.layout.exponential_tables import voltage_varies
from channelfit.scoring.layout.moment_tables import GREATEST_DECAY
from channelfit.scoring.layout.visit_order import schedule


def choose_path(problem: Problem, dtype: str, path: str = "auto", backend: str = "cuda") -> str:
    """Return the path that the scores of a problem take.

    Arguments:
        path: one of `scorer.PATHS`.
        backend: cuda or cpu, which differ in what is faster.

    Raises:
        InputError: the problem cannot go this way, and why.
    """
    if path == "stepping" or (path == "auto" and problem.scored.total_weight <= 0):
        return "stepping"
    reason = reason_against_modes(problem)
    if path == "auto" and backend == "cpu" and moments_pay(problem):
        return "moments"
    if path == "auto":
        faster = reason is None and samples_per_visit(problem) > break_even(problem, dtype, backend)
        return "closed-form" if faster else "stepping"
    if path == "moments":
        reason = reason_against_moments(problem)
    if reason is not None:
        raise InputError(f"--path {path}: {reason}; use --path stepping")
    return path


def reason_against_modes(problem: Problem) -> str | None:
    """Return why a problem cannot be scored by modes; None if it can."""
    reason = reason_without_modes(problem.model)
    if reason is None and not problem.model.one_product:
        names = ", ".join(term.name for term in problem.model.terms if term.chains)
        reason = f"the current is a sum of several that open independently ({names})"
    if reason is None and voltage_varies(problem.scored):
        reason = "the command voltage varies on the way to scored samples"
    return reason


def reason_against_moments(problem: Problem) -> str | None:
    """Return why a problem cannot be scored by moments; None if it can."""
    model = problem.model
    if len(model.chains) != 1 or model.chains[0].power != 1 or model.chains[0].linear:
        return "the open probability is a product of several"
    if model.chains[0].instant:
        return "the gate has no time constant"
    if voltage_varies(problem.scored):
        return "the command voltage varies on the way to scored samples"
    return None


#: States from which moments are the fastest on a CPU, and up to which few candidates are in doubt.
_MOMENT_STATES = range(MOST_PRODUCTS + 1, 17)
#: Random candidates of which most must be slow enough for moments; those that are not are stepped.
_TRIED, _MOST = 64, 0.75


def moments_pay(problem: Problem) -> bool:
    """Return whether moments are expected to be the fastest on a CPU.

    Measured on two CPU cores by `benchmarks/states.py --backend cpu`. The rates of a few random
    candidates decide whether most will be slow enough, the same ones each time.
    """
    model = problem.model
    if len(model.chains[0].states) not in _MOMENT_STATES or reason_against_moments(problem):
        return False
    random = np.random.default_rng(0)
    scope = {p.name: _drawn(p, random) for p in model.parameters}
    tree = problem.scored
    order = schedule(tree, single_samples_anywhere=True)
    rows = tree.runs[order.run]
    spans = rows[:, N_SAMPLES] * tree.table_dt[rows[:, TABLE]]
    slow = np.ones(_TRIED, np.bool_)
    for k, v in enumerate(tree.voltages[order.voltage]):
        span = spans[order.visits[k] : order.visits[k + 1]].max()
        slow &= (
            2.0 * _fastest_exit(model, scope | {"v": np.full(_TRIED, v)}) * span < GREATEST_DECAY
        )
    return bool(slow.mean() >= _MOST)


def _drawn(p: Parameter, random: np.random.Generator) -> np.ndarray:
    """Return random values of a parameter, (_TRIED,), from its range."""
    share = random.uniform(size=_TRIED)
    if p.fixed:
        return np.full(_TRIED, p.value)
    if p.scale == "log":
        return np.asarray(p.lower * (p.upper / p.lower) ** share)
    return np.asarray(p.lower + (p.upper - p.lower) * share)


def _fastest_exit(model: ChannelModel, scope: dict[str, np.ndarray]) -> np.ndarray:
    """Return the greatest rate at which a state is left, (_TRIED,), 1/ms; NaN where undefined."""
    chain = model.chains[0]
    with np.errstate(all="ignore"):
        for name, expression in model.definitions:
            scope[name] = evaluate(expression, scope)
        out = {s: np.zeros(_TRIED) for s in chain.states}
        for t in chain.transitions:
            out[t.source] = out[t.source] + t.multiplicity * evaluate(t.rate, scope)
    return np.asarray(np.max(list(out.values()), axis=0))


def samples_per_visit(problem: Problem) -> float:
    """Return the scored samples for each visit of a voltage; tables are made once a visit."""
    tree = problem.scored
    order = schedule(tree, single_samples_anywhere=True)
    samples = tree.runs[order.run, N_SAMPLES][order.weight > 0].sum()
    return float(samples) / max(1, len(order.voltage))


#: Samples a visit at which closed form and stepping take a GPU the same time, by states.
_BREAK_EVEN = {
    "float64": {2: 85, 3: 95, 4: 105, 5: 125, 6: 260},
    "float32": {2: 130, 3: 165, 4: 285, 5: 360, 6: 560},
}


def break_even(problem: Problem, dtype: str, backend: str = "cuda") -> float:
    """Return the samples a visit from which the closed form is faster than stepping.

    Measured on one NVIDIA H200 by `benchmarks/states.py` and on two CPU cores by
    `benchmarks/scoring.py`. On a CPU the modes of up to five states cost less than the propagators
    of stepping, whatever the samples. The rule decides alone, not a measurement at run time, so
    that a run repeats; `--path` overrules it.
    """
    n = max(len(chain.states) for chain in problem.model.chains)
    if n > MOST_PRODUCTS:
        return np.inf  # too many candidates in doubt
    if n == 1 or backend == "cpu":
        return 0.0
    return float(_BREAK_EVEN[dtype][n])
