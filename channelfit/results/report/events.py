"""A search for the short parts of a sweep in which nearly everything happens, to enlarge them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from channelfit.problem.measures import noise_pA

#: The busiest bins that hold this share of all that the currents move are looked at.
_MOVEMENT = 0.9
#: They are worth enlarging when they lie in so many places or fewer, in this share of the time or
#: less: else the whole picture shows them as well.
_PLACES, _TIME = 2, 0.12
_BINS = 400
#: Busy bins closer than this share of the time are one place.
_TOGETHER = 0.04
#: A place with less than this share of the movement is none; the others must hold that much.
_LEAST, _ENOUGH = 0.1, 0.8
#: A place is shown with these shares of its length before and after it.
_BEFORE, _AFTER = 0.2, 0.5
#: Fewer samples than this are a jump: they show no more when they are spread.
_FEWEST = 8
#: Sweeps that are looked at, evenly chosen.
_SWEEPS = 200


def eventful(
    times: np.ndarray, currents: Sequence[np.ndarray], jumps: Sequence[np.ndarray]
) -> list[tuple[float, float]]:
    """Find the one or two short stretches that hold nearly all movement of the currents.

    Movement is the sum of the sizes of all changes of the current, over the sweeps, above what
    noise would give. A jump of the current together with a step of the command does not count: it
    has no course that could be enlarged.

    Arguments:
        times: (n_times,) ms, evenly spaced.
        currents: each (n_sweeps, n_times) pA, NaN where there is none.
        jumps: per sweep, times of the command's steps, ms.

    Returns: (start, end) of each stretch, ms, within the times where there are currents; an empty
    list where the movement is spread over the sweep.
    """
    seen = np.flatnonzero(np.any([np.isfinite(c).any(axis=0) for c in currents], axis=0))
    if seen.size < 4 * _FEWEST:
        return []
    first, last = float(times[seen[0]]), float(times[seen[-1]])
    step = (last - first) / (seen[-1] - seen[0])
    edges = np.linspace(first, last + step, min(_BINS, int(seen[-1] - seen[0]) + 1) + 1)
    moved = np.sum([_movement(times, current, jumps, edges) for current in currents], axis=0)
    places = _busy(moved, _FEWEST * (len(edges) - 1) / (seen[-1] - seen[0] + 1))
    share = sum(end - start for start, end in places) / (len(edges) - 1)
    if not places or len(places) > _PLACES or share > _TIME:
        return []
    room = [(_BEFORE * (edges[b] - edges[a]), _AFTER * (edges[b] - edges[a])) for a, b in places]
    return [
        (max(first, float(edges[a] - before)), min(last, float(edges[b] + after)))
        for (a, b), (before, after) in zip(places, room, strict=True)
    ]


def _some(n_sweeps: int) -> np.ndarray:
    """Choose the sweeps that are looked at: all, or some at even distances."""
    return np.unique(np.linspace(0, n_sweeps - 1, min(n_sweeps, _SWEEPS)).round().astype(int))


def _movement(
    times: np.ndarray, current: np.ndarray, jumps: Sequence[np.ndarray], edges: np.ndarray
) -> np.ndarray:
    """Sum how much the current of all sweeps moves in each bin: (n_bins,) pA."""
    moved = np.zeros(len(edges) - 1)
    noise = noise_pA(current)
    tiny = 1e-6 * (times[1] - times[0])
    for k in _some(len(current)):
        known = np.flatnonzero(np.isfinite(current[k]))
        t, y = times[known], current[k, known]
        cuts = np.searchsorted(t, np.asarray(jumps[k]) - tiny)
        for piece_t, piece_y in zip(np.split(t, cuts), np.split(y, cuts), strict=True):
            place = np.searchsorted(edges, piece_t, side="right") - 1
            inside = (place >= 0) & (place < len(moved))
            count = np.bincount(place[inside], minlength=len(moved))
            total = np.bincount(place[inside], piece_y[inside], minlength=len(moved))
            used = np.flatnonzero(count)
            if used.size < 2:
                continue
            n = count[used]
            unsure = 3 * noise * np.sqrt(1 / n[1:] + 1 / n[:-1])
            moved[used[1:]] += np.maximum(np.abs(np.diff(total[used] / n)) - unsure, 0)
    return moved


def _busy(moved: np.ndarray, shortest: float) -> list[tuple[int, int]]:
    """Find the places that hold nearly all of the movement, as half-open stretches of bins.

    Arguments:
        moved: (n_bins,) movement in each bin.
        shortest: the least number of bins of a place.
    """
    whole = float(moved.sum())
    if not whole > 0:
        return []
    order = np.argsort(-moved, kind="stable")
    enough = int(np.searchsorted(np.cumsum(moved[order]), _MOVEMENT * whole)) + 1
    bins = np.sort(order[:enough])
    ends = np.flatnonzero(np.diff(bins) > _TOGETHER * len(moved))
    starts = bins[np.concatenate([[0], ends + 1])]
    stops = bins[np.concatenate([ends, [len(bins) - 1]])] + 1
    places = [(int(a), int(b)) for a, b in zip(starts, stops, strict=True)]
    places = [(a, b) for a, b in places if b - a >= shortest and moved[a:b].sum() >= _LEAST * whole]
    held = sum(float(moved[a:b].sum()) for a, b in places)
    return places if held >= _ENOUGH * whole else []
