"""The agreement of independent starts: how many of them ended at the lowest cost, and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Relative difference of costs that count as the same solution.
SAME = 1e-3
_LISTED = 3


@dataclass(frozen=True)
class Agreement:
    """The costs at which the independent starts of a search ended.

    Attributes:
        starts: the number that were followed to their end, or until they fell hopelessly behind.
        arrived: the number of them that arrived at the lowest cost of the search.
        required: the number that should arrive there.
        lowest: the lowest cost of the search, then the next ones that independent starts came to;
            costs that count as the same stand there once.
        perfect: whether the lowest cost is nothing but rounding.
    """

    starts: int
    arrived: int
    required: int
    lowest: tuple[float, ...]
    perfect: bool = False

    @property
    def agree(self) -> bool:
        """True if as many starts as required arrived at the lowest cost."""
        return self.arrived >= self.required

    def as_plain(self) -> dict[str, Any]:
        """Return the agreement as plain data, as it stands in ``summary.json``."""
        return {
            "independent_starts": self.starts,
            "arrived": self.arrived,
            "wanted": self.required,
            "agree": self.agree,
            "lowest_costs": list(self.lowest),
            "perfect": self.perfect,
        }


def agreement(best: float, costs: np.ndarray, required: int, floor: float = 0.0) -> Agreement:
    """Compare the costs of independent starts.

    Arguments:
        best: the lowest cost of the search, whether an independent start found it or not.
        costs: (n_starts,) of the independent starts; those not finite do not count.
        required: the number that should arrive at the lowest cost.
        floor: costs below it differ by rounding alone.
    """
    ordered = np.sort(costs[np.isfinite(costs)])
    level = max(best * (1 + SAME), floor)
    lowest = [best]
    for cost in ordered[ordered > level].tolist():
        if len(lowest) < _LISTED and cost > lowest[-1] * (1 + SAME):
            lowest.append(cost)
    arrived = int((ordered <= level).sum())
    return Agreement(len(ordered), arrived, required, tuple(lowest), best <= floor)


def in_words(found: Mapping[str, Any], unit: str | None = None) -> str:
    """Put an agreement into a sentence.

    Arguments:
        found: as `Agreement.as_plain` gives it.
        unit: of the roots of the costs, which then stand in place of the costs.
    """
    starts, arrived, required = found["independent_starts"], found["arrived"], found["wanted"]
    doubt = "another seed may end elsewhere"
    if found["perfect"] and not found["agree"]:  # the search ended before the others could arrive
        return (
            f"{arrived} of {starts} independent starts had arrived at the lowest cost when the "
            "search ended, since the fit was perfect"
        )
    if starts == 0:
        return f"no independent start came to an end, so nothing confirms this solution; {doubt}"
    if starts == 1 and arrived:
        return f"a single independent start: there is nothing to compare it with; {doubt}"
    of = f"{starts} independent start{'s' * (starts > 1)}"
    if found["agree"]:
        return f"{arrived} of {of} came to the lowest cost"
    apart = _apart(found["lowest_costs"], unit)
    if arrived == starts:
        return f"all of {of} came to the lowest cost, but {required} were required; {doubt}"
    if arrived:
        return f"they do not agree: only {arrived} of {of} came to the lowest cost{apart}; {doubt}"
    return (
        f"they do not agree: none of {of} came to the lowest cost, which was reached from "
        f"solutions that were known before{apart}; {doubt}"
    )


def _apart(costs: list[float], unit: str | None) -> str:
    if len(costs) < 2:
        return ""
    listed = [math.sqrt(cost) for cost in costs] if unit else costs
    further = " and ".join(f"{cost:.5g}" for cost in listed[1:])
    suffix = f" {unit}" if unit else ""
    if not listed[0] > 0:
        return f" ({listed[0]:.5g}{suffix}; the next ended, or were given up, at {further}{suffix})"
    share = 100 * (listed[1] / listed[0] - 1)
    return (
        f" ({listed[0]:.5g}{suffix}; the next ended, or were given up, at {further}{suffix}, "
        f"{share:.2g} % above)"
    )
