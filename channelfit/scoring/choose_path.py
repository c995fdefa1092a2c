"""Three ways to the same score, and which of them pays.

``stepping`` serves every problem. The others need held voltages but no samples: ``closed-form``
one current beside leaks, and chains that have modes (`detailed_balance.reason_without_modes`);
``moments`` one chain, whatever its rates.

Moments do not serve products of several chains. A product is no recurrence: the moments of each
chain would have to become its open probabilities at all points of a run's compression, and their
products coordinates. For two chains of eight states and 500 samples that is 13,000 multiplications
a run where stepping takes 20,000 to 30,000, and less is gained with fewer states: gates, of which
all shipped products are, take some hundreds by modes.
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
from channelfit.scoring.kernels.resolvents import Elimination
from channelfit.scoring.kernels.spectral_layout import MOST_PRODUCTS
from channelfit.scoring.layout.exponential_tables import voltage_varies
from channelfit.scoring.layout.moment_tables import ladder
from channelfit.scoring.layout.visit_order import schedule
from channelfit.scoring.path_costs import COSTS, PathCosts


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
    if path == "auto":
        costs = expected_costs(problem, dtype, backend)
        return min(costs, key=costs.__getitem__)
    against = reason_against_moments if path == "moments" else reason_against_modes
    reason = against(problem)
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
    if len(model.chains[0].states) == 1:
        return "a channel of one state does not relax"
    if longest_detour(model.chains[0]) > _LONGEST_CYCLE and not modes_are_real(model):
        return (
            f"rates around a cycle of more than {_LONGEST_CYCLE} states are not balanced, and "
            "occupancies may oscillate for longer than tables of moments hold"
        )
    if voltage_varies(problem.scored):
        return "the command voltage varies on the way to scored samples"
    return None


#: States up to which most candidates keep their digits in moments.
MOST_MOMENT_STATES = 16
#: The share of candidates that Chebyshev's moments must serve: a GPU steps a few others as slowly
#: as many, and on a CPU they are resolvents'.
LEAST_SERVED = {"cuda": 0.999, "cpu": 0.75}
#: A run with fewer moments is not faster for that.
_LEAST_MOMENTS = 24.0
#: Tables that moments on a GPU are worth, of some hundredths of a second each.
_MOST_TABLES = 200
#: Of more states than MOST_PRODUCTS nearly all random candidates may be in doubt, and stepped as
#: well: on a CPU the closed form is then worth it up to this part of the cost of stepping. A GPU
#: steps those in doubt more slowly.
_PART_WORTH_DOUBT = 0.2


def expected_costs(problem: Problem, dtype: str, backend: str) -> dict[str, float]:
    """Return microseconds a candidate by path, of those that serve a problem.

    They follow from measured ones of linear chains (`path_costs`) by the visits, runs and samples
    of the problem, so that a run repeats; `--path` overrules the choice.
    """
    n = max(len(chain.states) for chain in problem.model.chains)
    if n == 1:
        return {"stepping": 1.0} | ({} if reason_against_modes(problem) else {"closed-form": 0.0})
    table = COSTS["cpu" if backend == "cpu" else f"cuda {dtype}"]
    each = table[min((k for k in table if k >= n), default=max(table))]
    visits, samples = _visits_and_samples(problem)
    moments = stiff = np.inf
    if n <= MOST_MOMENT_STATES and reason_against_moments(problem) is None:
        moments, stiff = _costs_of_moments(problem, each, backend)
    visit = each.visit if moments < stiff or stiff == np.inf else each.stiff_visit
    found = {"stepping": visits * visit + samples * each.sample}
    modes = visits * each.modes
    is_safe = n <= MOST_PRODUCTS
    is_safe |= backend == "cpu" and modes < _PART_WORTH_DOUBT * found["stepping"]
    if is_safe and n <= max(table) and reason_against_modes(problem) is None:
        found["closed-form"] = modes
    if np.isfinite(least := min(moments, stiff)):
        found["moments"] = least
    return found


def _costs_of_moments(problem: Problem, each: PathCosts, backend: str) -> tuple[float, float]:
    """Return microseconds of Chebyshev's moments, inf where many would be stepped; of resolvents'.

    Random candidates, the same ones each time, tell how fast rates are.
    """
    chain, oscillating = problem.model.chains[0], not modes_are_real(problem.model)
    n, edges, found = len(chain.states), chain.transitions, ladder(problem, oscillating)
    runs = len(found.walk.runs)
    moments = each.moment * max(found.degree, _LEAST_MOMENTS) * len(edges) / (2 * max(1, n - 1))
    if found.served < LEAST_SERVED[backend]:
        moments = np.inf
    tables = sum(top - found.lowest + 1 for top in found.highest.values())
    if backend == "cuda" and tables > _MOST_TABLES:
        moments = np.inf
    index = {state: i for i, state in enumerate(chain.states)}
    entries = [(index[t.source], index[t.target], row) for row, t in enumerate(edges)]
    elimination = Elimination(n, entries)
    size = 0.5 + 0.5 * elimination.n_rows / (3 * n - 2)  # coordinates do not depend on the scheme
    resolvents = each.resolvents * size if elimination.pays else np.inf
    if oscillating:
        resolvents *= 2.0  # as many moments, and directions
    return runs * moments, runs * resolvents


def _visits_and_samples(problem: Problem) -> tuple[int, int]:
    """Return how often a voltage is visited, and the scored samples."""
    tree = problem.scored
    order = schedule(tree, single_samples_anywhere=True)
    samples = tree.runs[order.run, N_SAMPLES][order.weight > 0].sum()
    return max(1, len(order.voltage)), int(samples)
