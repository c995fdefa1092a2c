"""The length of the next step, for schemes with an error of order three in a step.

Plain functions in the language of kernels: `control` calls them from Python, and
`crank_nicolson_controlled` from its kernels.
"""

from __future__ import annotations

#: Below this no step is tried.
SHORTEST = 1e-10


def reached(t: float, edge: float) -> bool:
    """Return whether the time t is that of an edge, except for rounding."""
    return edge - t <= 1e-12 * max(1.0, edge)


def first_try(ahead: float, left: float) -> float:
    """Return the step to try: `ahead` is planned, `left` remains, and no tiny rest may be left."""
    return left if ahead > 0.999 * left else min(ahead, left / 2)


def factor_of(error: float, tolerance: float) -> float:
    """Return the factor on a step that brings its error to the tolerance, with a margin."""
    return float(0.9 * (tolerance / max(error, 1e-300)) ** (1 / 3))


def shortened(h: float, error: float, tolerance: float) -> float:
    """Return the step to try after one of h with an error above the tolerance, or infinite."""
    return h * (min(max(factor_of(error, tolerance), 0.1), 0.9) if error < 1e300 else 0.1)


def planned(h: float, ahead: float, error: float, tolerance: float, largest: float) -> float:
    """Return the next step after one of h that was accepted, where `ahead` had been planned."""
    factor = factor_of(error, tolerance)
    after = h * min(max(factor, 0.2), 2.0)
    # A step cut short by a frame says little about the next.
    return min(max(after, ahead) if factor > 1 and h < ahead else after, largest)
