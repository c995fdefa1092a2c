"""Estimates of the error of a run, and warnings.

The run is compared with references that share neither its steps nor, in the end, its grid: the
same cable solved to a tight tolerance on the same grid and on one of half the spacing. The
difference of the run from the first is the error of its steps in time. The difference of the two
gives the error of the grid, of order two,

    error of the grid = f^2 / (f^2 - 1) |coarse - fine|        f = 2, more where dx is coarse

and takes most of it away, so that the total is a difference from the limit of fine grids. Large
runs are compared in part: some of their cables, a stretch of a long one, the first of its frames.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from channelfit.fitzhugh_nagumo.chebyshev import Chebyshev
from channelfit.fitzhugh_nagumo.crank_nicolson import CrankNicolson
from channelfit.fitzhugh_nagumo.equation import Array, Cable, Equation
from channelfit.fitzhugh_nagumo.explicit import Explicit
from channelfit.fitzhugh_nagumo.simulation import Run, simulate

#: A function that returns the state at t = 0, v and w, at any places x (n,).
Start: TypeAlias = Callable[[Array], tuple[npt.ArrayLike, npt.ArrayLike]]

#: The smallest error of v that is worth a warning; the wave is 1 high.
LARGE = 0.05
#: The error at which the advice aims.
_AIM = 0.01
#: The orders in time of schemes, where they are not two.
_ORDERS = {"explicit": 1, "adaptive": 1, "Chebyshev": 3, "Runge-Kutta": 4}
#: The local error of the references' steps; in the end they err by a few times that.
TOLERANCE = 1e-8
#: The most cables, nodes of a stretch, numbers in the frames and nominal seconds of a comparison.
_CABLES, _NODES, _NUMBERS, _SECONDS = 8, 20_000, 4_000_000, 2.0


@dataclass(frozen=True)
class ErrorEstimate:
    """The largest error of v over the frames, cables and places that were compared.

    Attributes:
        total: the distance from the solution of the equation.
        steps: the part that comes from the steps in time, a moving grid and rounding.
        grid: the part that comes from the spacing.
        x, t: the place and the time at which the total is largest.
        until: the last time that was compared.
        cables: the indices of the cables that were compared.
        places: the first and the last place that were compared.
    """

    total: float
    steps: float
    grid: float
    x: float
    t: float
    until: float
    cables: tuple[int, ...]
    places: tuple[float, float]

    def facts(self) -> dict[str, Any]:
        """Return the estimate as plain data, with a description of its meaning."""
        return {
            **asdict(self),
            "of": "v, largest over the frames and places compared",
            "against": f"the same cables solved to a local error of {TOLERANCE:g}, on this grid "
            "and on one of at most half its spacing, extrapolated",
        }


def estimate_error(
    run: Run, equation: Equation, cable: Cable, start: Start, n_threads: int = 1
) -> ErrorEstimate | None:
    """Compare a run of any scheme with references on two grids, as the module describes.

    Arguments:
        run: a run from t = 0.
        equation, cable: those of the run.
        start: gives v and w at t = 0 at the places (n,) that it is called with.
        n_threads: how many threads the references may use.

    Returns: the estimate, or None where even the first frame would take too long to compare.

    Raises:
        InputError: the references could not be computed.
    """
    cables = _spread(run.v.shape[1], _CABLES)
    rows = equation.table(run.v.shape[1])[cables]
    least, most = math.sqrt(rows[:, 3].min()), math.sqrt(rows[:, 3].max())
    factor = 2
    while least > 0 and factor < 64 and cable.dx / factor > least:
        factor *= 2
    size = min(cable.n_nodes, _NODES)
    costs = [_costs(size * m, cable.dx / m, most) for m in (1, factor)]
    horizon = _SECONDS / (len(cables) * sum(min(cost) for cost in costs))
    if size < cable.n_nodes:
        horizon = min(horizon, _felt_within(size * cable.dx / 4, most))
    later = np.flatnonzero(run.times > 0)
    if not len(later) or run.times[later[0]] > 2 * horizon:
        return None
    later = later[run.times[later] <= max(horizon, run.times[later[0]])]
    frames = later[_spread(len(later), max(1, _NUMBERS // (len(cables) * factor * size)))]
    times = run.times[frames]
    first, inner, piece = _piece(cable, run, int(frames[-1]), most)
    part = Equation(*(rows.T if len(cables) > 1 else rows[0].tolist()))
    coarse, fine = (
        _solved(part, _refined(piece, m), start, times, cables, cost, n_threads)[:, :, ::m]
        for m, cost in zip((1, factor), costs, strict=True)
    )
    coarse, fine = coarse[:, :, inner], fine[:, :, inner]
    nodes = np.arange(piece.n_nodes)[inner] + first
    v, places = run.v[np.ix_(frames, cables, nodes)], run.x[nodes]
    gain = factor**2 / (factor**2 - 1)
    apart = np.abs(v - (coarse + gain * (fine - coarse)))
    frame, _, node = np.unravel_index(np.argmax(apart), apart.shape)
    return ErrorEstimate(
        total=float(apart.max()),
        steps=float(np.abs(v - coarse).max()),
        grid=float(gain * np.abs(fine - coarse).max()),
        x=float(places[node]),
        t=float(times[frame]),
        until=float(times[-1]),
        cables=tuple(cables.tolist()),
        places=(float(places[0]), float(places[-1])),
    )


def _spread(n: int, at_most: int) -> npt.NDArray[np.int64]:
    """Return at most so many of the numbers 0 .. n - 1, evenly spaced, the last one included."""
    return np.unique(np.linspace(n - 1, 0, min(n, at_most)).round().astype(np.int64))


def _costs(n_nodes: int, dx: float, root: float) -> tuple[float, float]:
    """Return nominal seconds for a unit of time, by Chebyshev and by Crank-Nicolson.

    They were measured once on one core and are constants, so that the extent of a comparison does
    not depend on the machine.

    Arguments:
        root: the square root of the diffusion.
    """
    stages = max(2.4, 1.2 * root / dx)
    return 1.5e-4 + 5e-8 * stages * n_nodes, 7e-3 + 1e-6 * n_nodes


def _felt_within(length: float, root: float) -> float:
    """Return the time until which a cut end has no influence at that distance; see `_reach`."""
    return float((math.sqrt(25 + length / max(root, 1e-300)) - 5) ** 2)


def _reach(t: float, root: float) -> float:
    """Return the distance of any influence in a time t, by waves and by diffusion (to 1e-11)."""
    return root * (t + 10 * math.sqrt(t))


def _piece(cable: Cable, run: Run, frame: int, root: float) -> tuple[int, slice, Cable]:
    """Return the stretch of a long cable in which v has changed most, as a cable of its own.

    Returns: its first node; those of its nodes that the cuts do not influence; the stretch.
    """
    if cable.n_nodes <= _NODES:
        return 0, slice(None), cable
    moved = np.max(np.abs(run.v[frame] - run.v[0]), axis=0)
    first = min(max(int(np.argmax(moved)) - _NODES // 2, 0), cable.n_nodes - _NODES)
    last = first + _NODES
    halo = math.ceil(_reach(float(run.times[frame]), root) / cable.dx)
    begins, ends = first == 0 and not cable.periodic, last == cable.n_nodes and not cable.periodic
    piece = replace(
        cable,
        n_nodes=_NODES,
        x_start=float(cable.x[first]),
        left=cable.left if begins else "no_flux",
        right=cable.right if ends else "no_flux",
    )
    turns = (-cable.length, 0.0, cable.length) if cable.periodic else (0.0,)
    pulses = [
        replace(pulse, x_from=pulse.x_from + turn, x_to=pulse.x_to + turn)
        for pulse in cable.stimulus
        for turn in (turns if pulse.x_to - pulse.x_from < cable.length else turns[:1])
    ]
    low, high = piece.x_start, piece.x_start + piece.length
    inside = tuple(p for p in pulses if p.x_to > low and p.x_from < high)
    inner = slice(0 if begins else halo, _NODES - (0 if ends else halo))
    return first, inner, replace(piece, stimulus=inside)


def _refined(cable: Cable, factor: int) -> Cable:
    """Return the same cable with `factor` times as many intervals."""
    n_intervals = (cable.n_nodes if cable.periodic else cable.n_nodes - 1) * factor
    n_nodes = n_intervals if cable.periodic else n_intervals + 1
    return replace(cable, n_nodes=n_nodes, dx=cable.dx / factor)


def _solved(
    equation: Equation,
    cable: Cable,
    start: Start,
    times: Array,
    cables: npt.NDArray[Any],
    costs: tuple[float, float],
    n_threads: int,
) -> Array:
    """Return v (n_frames, n_cables, n_nodes) by the cheaper of two controlled schemes."""
    v, w = (a[cables] if a.ndim == 2 else a for a in map(np.asarray, start(cable.x)))
    make = Chebyshev if costs[0] <= costs[1] else CrankNicolson
    tolerance = TOLERANCE * max(1.0, float(np.max(np.abs(v))))
    scheme = make(equation, cable, n_threads=n_threads)
    return simulate(scheme, v, w, times, tolerance=tolerance).v


# --- warnings


def cut_stimuli(cable: Cable) -> list[str]:
    """Return sentences about stimuli that lie in part off the cable or before the run."""
    found = []
    low, high = cable.x_start, cable.x_start + cable.length
    for pulse in cable.stimulus:
        where = f"the stimulus of {pulse.amplitude:g}"
        if not cable.periodic and (-math.inf < pulse.x_from < low or high < pulse.x_to < math.inf):
            found.append(
                f"{where} on x = {pulse.x_from:g}:{pulse.x_to:g} reaches past the cable, which is "
                f"{low:g}:{high:g}; only {max(pulse.x_from, low):g}:{min(pulse.x_to, high):g} acts"
            )
        if pulse.start < 0 < pulse.end:
            found.append(f"{where} begins at t = {pulse.start:g}; a run begins at 0")
    return found


def too_large(estimate: ErrorEstimate, run: Run, cable: Cable) -> list[str]:
    """Return a sentence on the sources of the error, and on better options,
    if it reaches `LARGE`.
    """
    if estimate.total < LARGE:
        return []
    said = f"v may err by {estimate.total:.2g} (the wave is 1 high); "
    advice = []
    if estimate.steps > 0.3 * estimate.total:
        ratio = _AIM / estimate.steps
        if "tolerance" in run.facts:
            tolerance = float(run.facts["tolerance"])
            said += f"steps to a tolerance of {tolerance:g} make {estimate.steps:.2g} of it; "
            better = f"--tolerance {tolerance * min(ratio, 0.1) ** 1.5:.1g}"
        else:
            scheme, dt = run.facts["scheme"], float(run.facts["dt"])
            said += f"steps of {dt:.2g} make {estimate.steps:.2g} of it; "
            better = f"--dt {dt * ratio ** (1 / _ORDERS.get(scheme, 2)):.2g}, or "
            controlled = scheme in ("Crank-Nicolson", "Chebyshev")
            better += "controlled steps: leave --dt out" if controlled else "--scheme chebyshev"
        advice.append(better)
    if estimate.grid > 0.3 * estimate.total:
        halvings = max(1, math.ceil(math.log(estimate.grid / (2 * _AIM), 4)))
        finer = _refined(cable, 2**halvings)
        said += f"the grid of dx = {cable.dx:g} makes {estimate.grid:.2g} of it; "
        advice.append(f"--dx {finer.dx:g} --nodes {finer.n_nodes}")
    return [said + "better: " + "; ".join(advice)]


def pinned(equation: Equation, cable: Cable) -> list[str]:
    """Return a sentence if a front stands still between two nodes (propagation failure).

    Up to 12 of the cables on which a front should move to the right, those with 0 < a < 1/2, are
    tried. The sentence is about the one with the largest a.
    """
    table = equation.table(equation.n_cables)
    able = (table[:, 0] > 0) & (table[:, 0] < 0.5) & (table[:, 3] > 0)
    table = table[able & (table[:, 3] < cable.dx**2)]
    if not len(table):
        return []
    ordered = table[np.argsort(table[:, 0])][_spread(len(table), 12)]
    for a, _, _, diffusion in ordered[::-1].tolist():
        root = math.sqrt(diffusion)
        if _moves(a, cable.dx / root):
            continue
        moves, stands = 0.5, cable.dx / root
        while stands > 1.01 * moves:
            middle = math.sqrt(moves * stands)
            moves, stands = (middle, stands) if _moves(a, middle) else (moves, middle)
        return [
            f"dx = {cable.dx:g} is too coarse for a = {a:g}, diffusion = {diffusion:g}: a front "
            f"stands still between two nodes (propagation failure), it moves below dx = "
            f"{moves * root:.3g}; dx = {0.5 * root:.2g} gives it its speed"
        ]
    return []


def _moves(a: float, dx: float) -> bool:
    """Return whether a front moves on a grid of spacing dx, with diffusion 1 and no recovery."""
    scheme = Explicit(Equation(a=a, epsilon=0.0), Cable(41, dx))
    v = np.where(np.arange(41) <= 20, 1.0, 0.0)[None]
    w, dt = np.zeros_like(v), 0.9 * scheme.largest_step(v)
    for _ in range(200):
        new, _ = scheme.advance(v, w, dt, 500)
        if new[0, 23] > 0.5:
            return True
        if np.max(np.abs(new - v)) < 1e-10:
            return False
        v = new
    return False
