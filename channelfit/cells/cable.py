"""A cable: its segments, and the steps in which its voltage is integrated."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

#: The greatest order of the formulas.
_ORDER = 4
#: The first step after a jump of the stimulus, of a whole one.
_FIRST = 2.0**-6
#: So many steps are equal before they are doubled; with fewer the formulas are not stable.
_EQUAL = 4
#: Times closer than this share of a step are the same.
_SAME = 1e-6


@dataclass(frozen=True)
class Cable:
    """A cylinder with sealed ends and the same membrane everywhere.

    Attributes:
        length_um, diameter_um: of the cylinder.
        segments: of equal length, in each of which the voltage is the same.
        axial_ohm_cm: the resistivity of the inside.
        at_um: where the stimulus is, from the beginning of the cable.
        record_um: where voltages are recorded.
    """

    length_um: float
    diameter_um: float
    segments: int
    axial_ohm_cm: float
    at_um: float
    record_um: tuple[float, ...]

    @property
    def area_um2(self) -> float:
        """The area of the cylinder without its ends."""
        return math.pi * self.diameter_um * self.length_um

    def segment(self, place_um: float) -> int:
        """Return the segment in which a place is."""
        return min(int(place_um / self.length_um * self.segments), self.segments - 1)

    @property
    def recorded(self) -> np.ndarray:
        """The segments of the recorded voltages, (n_places,)."""
        return np.array([self.segment(x) for x in self.record_um])

    def finer(self) -> Cable:
        """Return the cable in three times as many segments, with places in the same middles."""
        size = self.length_um / self.segments
        at, *record = ((self.segment(x) + 0.5) * size for x in (self.at_um, *self.record_um))
        return replace(self, segments=3 * self.segments, at_um=at, record_um=tuple(record))

    @property
    def distances_um(self) -> np.ndarray:
        """From each recorded segment to the next one, between the middles, (n_places - 1,)."""
        return np.diff(self.recorded) * self.length_um / self.segments

    def axial(self, capacitance_pF: float) -> np.ndarray:
        """Return for each segment three factors, (n_segments, 3).

        What a difference of 1 mV to the segment on the left, and on the right, changes the voltage,
        mV/ms; and 1 pA of the stimulus, which is in one segment, as one of the whole cable.
        """
        length_cm = 1e-4 * self.length_um / self.segments
        section_cm2 = math.pi * (0.5e-4 * self.diameter_um) ** 2
        conductance_nS = 1e9 * section_cm2 / (self.axial_ohm_cm * length_cm)
        out = np.full((self.segments, 3), conductance_nS * self.segments / capacitance_pF)
        out[0, 0] = out[-1, 1] = 0.0
        out[:, 2] = np.where(np.arange(self.segments) == self.segment(self.at_um), self.segments, 0)
        return out


def step_edges(grid: np.ndarray, corners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of all steps, and where in them the formulas begin anew.

    Steps end at all times of a grid and at all corners of the stimulus. After a corner, and at the
    beginning, they are short, and are doubled until they are whole.

    Arguments:
        grid: equally spaced times, (n,).
        corners: rising times.

    Returns: times (n_steps + 1,), and whether each is a corner.
    """
    whole = grid[1] - grid[0]
    near = grid[np.clip(np.round((corners - grid[0]) / whole).astype(int), 0, len(grid) - 1)]
    snapped = np.where(np.abs(corners - near) < _SAME * whole, near, corners)
    inside = snapped[(snapped >= grid[0]) & (snapped < grid[-1])]
    begins = np.unique(np.append(inside, grid[0]))
    stops = np.unique(np.append(grid, begins))
    new = np.isin(stops, begins)
    edges, fresh, size, equal = [stops[0]], [True], whole, 0
    for k, length in enumerate(np.diff(stops)):
        if new[k]:
            size, equal = _FIRST * whole, 0
        pieces: list[float] = []
        while (rest := length - sum(pieces)) > _SAME * length:
            if equal >= _EQUAL and (not pieces or rest > 2 * size):
                size, equal = min(2 * size, whole), 0
            pieces.append(size)
            equal += 1
        share = length / sum(pieces)
        edges += [edges[-1] + share * sum(pieces[:n]) for n in range(1, len(pieces))]
        edges.append(stops[k + 1])
        fresh += [False] * (len(pieces) - 1) + [bool(new[k + 1])]
        size *= share
    return np.array(edges), np.array(fresh)


def weights(edges: np.ndarray, fresh: np.ndarray) -> np.ndarray:
    """Return the weights of the formulas of every step, (n_steps, 10).

    Backward differentiation is c0 y = c1 y1 + c2 y2 + c3 y3 + c4 y4 + h y', with the past latest
    first; an extrapolation is e1 y1 + .. + e4 y4. Rows are h, c0 .. c4, e1 .. e4. The order is the
    number of values since the formulas began anew, four at most.
    """
    since = np.arange(len(fresh)) - np.maximum.accumulate(np.where(fresh, np.arange(len(fresh)), 0))
    orders = np.minimum(since[:-1] + 1, _ORDER)
    out = np.zeros((len(edges) - 1, 2 + 2 * _ORDER))
    steps = np.diff(edges)
    out[:, 0] = steps
    for order in range(1, _ORDER + 1):
        rows = np.flatnonzero(orders == order)
        # times of the past, in steps, before the new one
        past = np.stack([(edges[rows + 1] - edges[rows - j]) / steps[rows] for j in range(order)])
        for j in range(order):
            others = [past[i] for i in range(order) if i != j]
            extrapolated = np.prod([x / (x - past[j]) for x in others], axis=0)
            out[rows, 2 + _ORDER + j] = extrapolated
            # the derivative at the new time of the polynomial that is 1 at this value
            out[rows, 2 + j] = extrapolated / past[j]
        out[rows, 1] = out[rows, 2 : 2 + _ORDER].sum(axis=1)
    return out
