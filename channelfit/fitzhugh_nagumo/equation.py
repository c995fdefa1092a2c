"""The equation, the cable it is solved on, its stimuli, and the states it can start from.

    v_t = D v_xx + v (1 - v) (v - a) - w + I(x, t)        w_t = epsilon (v - gamma w)

Everything is dimensionless, as in FitzHugh (1961) and Nagumo et al. (1962). The second difference
is centered; at an end without flux the node beyond it mirrors the one before it, which keeps the
order two that the one-sided row ``v[0] = v[1]`` would lose.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from channelfit.reading.documents import read_json
from channelfit.reading.errors import InputError
from channelfit.reading.saved import read_arrays
from channelfit.reading.second_process import read_in_process

Array: TypeAlias = npt.NDArray[np.float64]
End: TypeAlias = float | Literal["no_flux", "periodic"]

#: The stimuli of so many steps are computed at once.
_STEPS_AT_ONCE = 65536


class NotConverged(InputError):
    """Newton's method did not converge, because the step was too long for this state."""


@dataclass(frozen=True)
class Equation:
    """The equation's parameters: numbers, or arrays (n_cables,) for many cables at once.

    Raises:
        InputError: a value is not finite, or epsilon, gamma or diffusion is negative.
    """

    a: float | Array = 0.01
    gamma: float | Array = 2.0
    epsilon: float | Array = 0.01
    diffusion: float | Array = 1.0

    def __post_init__(self) -> None:
        shapes = set()
        for field in fields(self):
            value = np.asarray(getattr(self, field.name), dtype=float)
            if value.ndim > 1 or not np.all(np.isfinite(value)):
                raise InputError("must be a finite number, or a row of them", key=field.name)
            if field.name != "a" and np.any(value < 0):
                raise InputError("must not be negative", key=field.name)
            shapes |= {value.shape} - {()}
        if len(shapes) > 1:
            raise InputError(f"rows of parameters of different lengths: {sorted(shapes)}")

    @property
    def n_cables(self) -> int:
        """The number of cables, which is the length of the longest row of parameters."""
        return max(np.size(getattr(self, field.name)) for field in fields(self))

    def table(self, n_cables: int) -> Array:
        """Return a, gamma, epsilon and diffusion of every cable, (n_cables, 4).

        Raises:
            InputError: the rows of parameters have another length.
        """
        if self.n_cables not in (1, n_cables):
            raise InputError(f"{self.n_cables} sets of parameters for {n_cables} cables")
        columns = [np.asarray(getattr(self, field.name), dtype=float) for field in fields(self)]
        return np.stack([np.broadcast_to(c, n_cables) for c in columns], axis=1)


@dataclass(frozen=True)
class Pulse:
    """A stimulus I = amplitude on [x_from, x_to] while start <= t < end, perhaps repeated.

    period: the time from one start to the next; infinite for a pulse that comes only once.
    """

    amplitude: float
    x_from: float = -math.inf
    x_to: float = math.inf
    start: float = 0.0
    end: float = math.inf
    period: float = math.inf

    def __post_init__(self) -> None:
        if not math.isfinite(self.amplitude):
            raise InputError("must be finite", key="amplitude")
        if not self.x_from < self.x_to:
            raise InputError(f"[{self.x_from:g}, {self.x_to:g}] is no stretch of cable", key="x")
        if not self.start < self.end:
            raise InputError(f"[{self.start:g}, {self.end:g}) is no stretch of time", key="t")
        if not self.period > 0 or (
            math.isfinite(self.period) and self.end > self.start + self.period
        ):
            raise InputError("a period must be at least as long as the pulse", key="period")

    def time_on(self, t: Array) -> Array:
        """Return for how long the pulse has acted in all by each of the times t, (n,)."""
        length = self.end - self.start
        since = np.maximum(t - self.start, 0.0)
        if not math.isfinite(self.period):
            return np.minimum(since, length)
        whole = np.floor(since / self.period)
        return np.asarray(whole * length + np.minimum(since - whole * self.period, length), float)


@dataclass(frozen=True)
class Cable:
    """A uniform grid, the conditions at its two ends, and the stimulus.

    Arguments:
        n_nodes: the number of nodes.
        dx: the distance from one node to the next, in the unit of length of the equation.
        left, right: "no_flux", a value at which v is held, or "periodic" for both.
        stimulus: the pulses, which add where several act.
        x_start: the place of the first node.

    Raises:
        InputError: fewer than three nodes, a spacing that is not positive, or an unknown end.
    """

    n_nodes: int = 401
    dx: float = 0.5
    left: End = "no_flux"
    right: End = "no_flux"
    stimulus: tuple[Pulse, ...] = ()
    x_start: float = 0.0

    def __post_init__(self) -> None:
        if self.n_nodes < 3:
            raise InputError(f"{self.n_nodes} nodes; at least 3 are needed", key="n_nodes")
        if not (math.isfinite(self.dx) and self.dx > 0):
            raise InputError(f"the spacing must be positive, not {self.dx}", key="dx")
        for name in ("left", "right"):
            end = getattr(self, name)
            if isinstance(end, str) and end not in ("no_flux", "periodic"):
                raise InputError(f'"{end}" is neither no_flux, periodic nor a number', key=name)
            if not isinstance(end, str) and not math.isfinite(end):
                raise InputError(f"{end} cannot be held; it must be finite", key=name)
        if (self.left == "periodic") != (self.right == "periodic"):
            raise InputError("a cable is periodic at both ends or at none", key="left, right")

    @property
    def periodic(self) -> bool:
        """Return True for a ring, in which the first node follows the last."""
        return self.left == "periodic"

    @property
    def end_kinds(self) -> npt.NDArray[np.int64]:
        """Return the kinds of the two ends, (2,): 0 for no flux, 1 for held, 2 for periodic."""
        kinds = {"no_flux": 0, "periodic": 2}
        return np.array([kinds.get(str(end), 1) for end in (self.left, self.right)], np.int64)

    @property
    def x(self) -> Array:
        """(n_nodes,) places of the nodes."""
        return np.asarray(self.x_start + self.dx * np.arange(self.n_nodes), float)

    def spans(self, t: float, dt: float, n_steps: int) -> Iterator[tuple[int, Array | None]]:
        """Yield groups of successive steps that have the same mean stimulus.

        The stimulus of a step is its mean over the step, and that of a node its share of the pulse
        (`shares`). This is of order two wherever the edges of a pulse fall.

        Arguments:
            t: when the first step begins. dt: length of a step. n_steps: how many there are.

        Yields: a number of steps and their stimulus, (n_nodes,), or None where there is none.
        """
        if not self.stimulus:
            yield n_steps, None
            return
        shapes = np.array([self.shares(pulse) * pulse.amplitude for pulse in self.stimulus])
        for first in range(0, n_steps, _STEPS_AT_ONCE):
            last = min(first + _STEPS_AT_ONCE, n_steps)
            times: Array = np.asarray(t + dt * np.arange(first, last + 1), float)
            shares = np.array([np.diff(pulse.time_on(times)) / dt for pulse in self.stimulus])
            shares[np.abs(shares) < 1e-9] = 0.0
            shares[np.abs(shares - 1) < 1e-9] = 1.0
            change = np.flatnonzero(np.any(np.diff(shares, axis=1) != 0, axis=0)) + 1
            edges = [0, *change.tolist(), shares.shape[1]]
            for begin, end in itertools.pairwise(edges):
                share = shares[:, begin]
                yield end - begin, (share @ shapes if np.any(share) else None)

    @property
    def length(self) -> float:
        """The distance from the first node to the last, or once around the ring."""
        return self.dx * (self.n_nodes if self.periodic else self.n_nodes - 1)

    @property
    def cells(self) -> Array:
        """(n_nodes,) the length of cable at each node; at an open end half a spacing."""
        cells = np.full(self.n_nodes, self.dx)
        if not self.periodic:
            cells[[0, -1]] = self.dx / 2
        return cells

    def check_stimuli(self, end: float = math.inf) -> None:
        """Refuse a stimulus off the cable, or off the time from 0 to `end`.

        Raises:
            InputError: the place or time of the stimulus, and that of the cable or the run.
        """
        first, last = self.x_start, self.x_start + self.length
        for pulse in self.stimulus:
            if pulse.x_to <= first or pulse.x_from >= last:
                raise InputError(
                    f"x = {pulse.x_from:g}:{pulse.x_to:g} lies off the cable, "
                    f"which reaches from {first:g} to {last:g}",
                    key="stimulus",
                )
            if pulse.start >= end or (pulse.end <= 0 and math.isinf(pulse.period)):
                raise InputError(
                    f"t = {pulse.start:g}:{pulse.end:g} never comes in a run from t = 0 to {end:g}",
                    key="stimulus",
                )

    def shares(self, pulse: Pulse) -> Array:
        """Return the share of a pulse that each node receives, (n_nodes,), from 0 to 1.

        A point between two nodes is divided between them in inverse proportion to its distances
        from them. The total charge and its center are then exact wherever the edges of the pulse
        fall. A pulse may reach across the place where a ring closes; one that is longer than the
        ring acts on all of it.
        """
        if not self.periodic:
            low, high = (min(max(x, self.x[0]), self.x[-1]) for x in (pulse.x_from, pulse.x_to))
            return np.asarray(self._hat_integrals(low, high) * self.dx / self.cells, float)
        if pulse.x_to - pulse.x_from >= self.length:
            return np.ones(self.n_nodes)
        turns = range(
            math.floor((self.x[0] - pulse.x_to) / self.length),
            math.ceil((self.x[-1] - pulse.x_from) / self.length) + 1,
        )
        shifts = [turn * self.length for turn in turns]
        return sum(
            (self._hat_integrals(pulse.x_from + shift, pulse.x_to + shift) for shift in shifts),
            start=np.zeros(self.n_nodes),
        )

    def _hat_integrals(self, low: float, high: float) -> Array:
        """Return the integral of each node's hat function from low to high, over the spacing."""
        upto = []
        for edge in (low, high):
            at = np.clip((edge - self.x) / self.dx, -1.0, 1.0)
            upto.append(np.where(at < 0, (1 + at) ** 2 / 2, 1 - (1 - at) ** 2 / 2))
        return np.asarray(upto[1] - upto[0], float)


# --- states to start from

#: The names of the states, and how many numbers each takes, at least and at most.
NAMED_STATES = {"rest": (0, 0), "gaussian": (1, 3), "step": (1, 2), "front": (1, 1)}


def rest(x: Array) -> Array:
    """Return the state of rest, v = 0, at the places x."""
    return np.zeros_like(x)


def gaussian(x: Array, center: float, width: float = 10.0, height: float = 1.0) -> Array:
    """Return an impulse, v = height exp(-(x - center)^2 / width)."""
    if not width > 0:
        raise InputError(f"the width must be positive, not {width}", key="width")
    return np.asarray(height * np.exp(-((x - center) ** 2) / width), float)


def step(x: Array, at: float, height: float = 1.0) -> Array:
    """Return a step, v = height for x < at, and 0 beyond."""
    return np.where(x < at, height, 0.0)


def front(x: Array, center: float, diffusion: float = 1.0) -> Array:
    """Return the exact front, v = 1 / (1 + exp((x - center) / sqrt(2 D))).

    With epsilon = 0 it moves along an endless cable without changing its shape.
    """
    return np.asarray(0.5 * (1 - np.tanh((x - center) / math.sqrt(8 * diffusion))), float)


def front_speed(a: float, diffusion: float = 1.0) -> float:
    """Return the speed of `front` to the right where epsilon = 0 and w = 0: sqrt(D/2) (1 - 2a)."""
    return math.sqrt(diffusion / 2) * (1 - 2 * a)


def from_file(file: Path, x: Array) -> tuple[Array, Array]:
    """Return v and w at the places x (n_nodes,) from a file.

    The file is an .npz, .h5 or .hdf5 with x, v and perhaps w, of which the last frame is taken; the
    summary.json of a run, for the state that the run started from; or a text with columns x, v and
    perhaps w below a line of headings. Between the places of the file v and w are interpolated by
    a cubic spline, and beyond them they keep their values at its ends.

    Raises:
        InputError: the file cannot be read or lacks a column, or its places do not increase.
    """
    from scipy.interpolate import CubicSpline  # takes long to load; few runs begin with a file

    columns = _columns(file)
    places = columns["x"]
    if places.ndim != 1 or len(places) < 2 or np.any(np.diff(places) <= 0):
        raise InputError("the places x must increase", file, "x")
    state = []
    for name in ("v", "w"):
        values = columns.get(name, np.zeros_like(places))
        if values.ndim == 2 and len(values):
            values = values[-1]
        if values.shape != places.shape or not np.all(np.isfinite(values)):
            raise InputError(f"needs {len(places)} finite numbers, one for each x", file, name)
        if np.array_equal(places, x):
            state.append(values)
            continue
        state.append(CubicSpline(places, values)(np.clip(x, places[0], places[-1])))
    return state[0], state[1]


def _columns(file: Path) -> dict[str, Array]:
    """Return the arrays x, v and perhaps w of a file, as float64."""
    try:
        found = _STATE_READERS.get(file.suffix, _text_columns)(file)
        columns = {k: np.asarray(found[k], float) for k in ("x", "v", "w") if k in found}
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file) from None
    except (ValueError, TypeError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"is not a table of x, v and w: {error}", file) from None
    missing = {"x", "v"} - set(columns)
    if missing:
        raise InputError(f"has no column {' or '.join(sorted(missing))}", file)
    return columns


def _hdf5_columns(file: Path) -> dict[str, Any]:
    found = read_in_process("channelfit.reading.formats.hdf5:datasets", file, "an HDF5 file")
    for name in ("x", "v", "w"):
        if isinstance(why := found.get(name), str):  # why it cannot be used
            raise InputError(why, file, name)
    return found


def _summary_columns(file: Path) -> dict[str, Any]:
    kept = read_json(file).get("initial_state")
    if not isinstance(kept, dict):
        raise InputError("holds no state, because its run began with a state that has a name", file)
    return kept


def _text_columns(file: Path) -> dict[str, Any]:
    with open(file, encoding="utf-8") as lines:
        names = [name.strip() for name in lines.readline().lstrip("#").split(",")]
        text = lines.read()
    if not text.strip():
        raise InputError("has no rows", file)
    table = np.loadtxt(text.splitlines(), delimiter=",", ndmin=2)
    return dict(zip(names, table.T, strict=True))


#: The readers of states by the suffix of their files; other files are texts.
_STATE_READERS: dict[str, Callable[[Path], Mapping[str, Any]]] = {
    ".npz": read_arrays,
    ".json": _summary_columns,
    ".h5": _hdf5_columns,
    ".hdf5": _hdf5_columns,
}


# --- how large a step may be


def steepest(equation: Equation, low: float, high: float) -> tuple[Array, Array]:
    """Return the smallest and the largest slope f'(v) of the reaction, where low <= v <= high.

    Returns: the two slopes, (n_cables,) each.
    """
    a = np.atleast_1d(np.asarray(equation.a, dtype=float))
    top = np.clip((1 + a) / 3, low, high)
    slopes = np.array([-3 * v * v + 2 * (1 + a) * v - a for v in (low + 0 * a, high + 0 * a, top)])
    return slopes.min(axis=0), slopes.max(axis=0)


def largest_explicit_step(
    equation: Equation, dx: float, low: float = 0.0, high: float = 1.0
) -> float:
    """Return the longest step that forward Euler allows.

    The wave that alternates from node to node decays fastest, at 4 D/dx^2, plus
    -f'(v) of the reaction, plus what recovery adds. A step beyond 2 over the largest such rate
    makes that wave grow wherever v is. For the diffusion alone this is the known 2 D dt <= dx^2.

    Arguments:
        low, high: the smallest and the largest value that v takes.
    """
    table = equation.table(equation.n_cables)
    low, high = min(low, 0.0), max(high, 1.0)
    slope = np.broadcast_to(steepest(equation, low, high)[0], len(table))
    rate = 4 * table[:, 3] / dx**2 - slope
    recovery = table[:, 1] * table[:, 2]
    # The larger eigenvalue of [[rate, 1], [-epsilon, recovery]], both of which are damping.
    spread = (rate - recovery) ** 2 - 4 * table[:, 2]
    fastest = (rate + recovery + np.sqrt(np.maximum(spread, 0.0))) / 2
    return float(2 / fastest.max())


def longest_stable_step(equation: Equation, cable: Cable, v: Array) -> float:
    """Return the longest step of forward Euler for the range of v and of the cable's held ends."""
    held = [end for end in (cable.left, cable.right) if not isinstance(end, str)]
    low, high = min([float(v.min()), *held]), max([float(v.max()), *held])
    return largest_explicit_step(equation, cable.dx, low, high)


def largest_implicit_step(equation: Equation) -> float:
    """Return the longest step for which Crank-Nicolson's Newton matrix is diagonally dominant.

    Its rows exceed their neighbors by 1 - dt f'(v)/2, and f' has its largest value at (1 + a)/3.
    Up to that step the matrix cannot become singular, whatever the spacing; nothing else limits
    the step.
    """
    slope = float(steepest(equation, -1e3, 1e3)[1].max())
    return 2 / slope if slope > 0 else math.inf


def check_step(dt: float, largest: float, scheme: str) -> None:
    """Refuse a step that is too long or not positive.

    Raises:
        InputError: the step, and the longest that is allowed.
    """
    if not (math.isfinite(dt) and dt > 0):
        raise InputError(f"a step must be positive and finite, not {dt}", key="dt")
    if dt > largest * (1 + 1e-12):
        raise InputError(
            f"a step of {dt:g} is unstable with the {scheme} scheme here; "
            f"the largest allowed is {math.floor(largest * 1e6) / 1e6:.6g}",
            key="dt",
        )
