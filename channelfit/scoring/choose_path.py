"""Three ways to the same score, and which of them pays.

``stepping`` serves every problem. The others need held voltages but no samples: ``closed-form``
one current beside leaks, and chains that have modes (`detailed_balance.reason_without_modes`);
``moments`` one chain, whatever its rates.
"""

from __future__ import annotations

import numpy as np

from channelfit.problem.experiment import Problem
from channelfit.problem.run_tree import N_SAMPLES
from channelfit.reading.errors import InputError
from channelfit.scoring.kernels.detailed_balance import (
    longest_detour,
    modes_are_real,
    reason_without_modes,
)
from channelfit.scoring.kernels.spectral_layout import MOST_PRODUCTS
from channelfit.scoring.layout.exponential_tables import voltage_varies
from channelfit.scoring.layout.moment_tables import Ladder, ladder
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
    if path == "auto" and moments_pay(problem, backend, reason is None):
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


#: Oscillations around so many states die out as fast as tables of moments assume.
_LONGEST_CYCLE = 6


def reason_against_moments(problem: Problem) -> str | None:
    """Return why a problem cannot be scored by moments; None if it can."""
    model = problem.model
    if len(model.chains) != 1 or model.chains[0].power != 1 or model.chains[0].linear:
        return "the open probability is a product of several"
    if model.chains[0].instant:
        return "the gate has no time constant"
    if longest_detour(model.chains[0]) > _LONGEST_CYCLE and not modes_are_real(model):
        return (
            f"rates around a cycle of more than {_LONGEST_CYCLE} states are not balanced, and "
            "occupancies may oscillate for longer than tables of moments hold"
        )
    if voltage_varies(problem.scored):
        return "the command voltage varies on the way to scored samples"
    return None


#: States from which moments are faster than modes, and than propagators, where there are no modes.
_MOMENT_STATES = {"cuda": (6, 3), "cpu": (MOST_PRODUCTS + 1, MOST_PRODUCTS + 1)}
#: States up to which most candidates keep their digits.
_MOST_MOMENT_STATES = 16
#: The share of candidates that moments must serve: a GPU steps a few others as slowly as many.
_LEAST_SERVED = {"cuda": 0.999, "cpu": 0.75}
#: On a GPU they are faster than steps up to so many moments of a run, and more for each sample.
_MOMENTS, _MOMENTS_A_SAMPLE = 100.0, 0.4
#: And are worth so many tables, of some hundredths of a second each.
_MOST_TABLES = 200


def moments_pay(problem: Problem, backend: str, by_modes: bool) -> bool:
    """Return whether moments are expected to be the fastest way.

    Measured on one NVIDIA H200 and on two CPU cores by `benchmarks/states.py`. The rates of random
    candidates decide whether enough of them are slow enough, the same ones each time.

    Arguments:
        by_modes: whether the scheme has modes.
    """
    if reason_against_moments(problem) is not None:
        return False
    least = _MOMENT_STATES[backend][0 if by_modes else 1]
    if not least <= len(problem.model.chains[0].states) <= _MOST_MOMENT_STATES:
        return False
    found = ladder(problem, not modes_are_real(problem.model))
    if found.served < _LEAST_SERVED[backend]:
        return False
    return backend == "cpu" or _few_moments(found)


def _few_moments(found: Ladder) -> bool:
    """Return whether moments and tables are few enough for a GPU."""
    samples = [run.n for run in found.walk.runs if run.weight > 0]
    tables = sum(top - found.lowest + 1 for top in found.highest.values())
    few = found.degree < _MOMENTS + _MOMENTS_A_SAMPLE * float(np.mean(samples))
    return few and tables <= _MOST_TABLES


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
