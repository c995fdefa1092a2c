"""The solution of the equation from t = 0, with frames at chosen times, and waves in them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from channelfit.fitzhugh_nagumo.checkpoint import Checkpoints, Moment, SolutionRecords
from channelfit.fitzhugh_nagumo.control import control_of, pulse_edges
from channelfit.fitzhugh_nagumo.equation import Array, Cable, check_step
from channelfit.fitzhugh_nagumo.memory import check_host
from channelfit.fitzhugh_nagumo.scheme import Scheme
from channelfit.reading.errors import InputError
from channelfit.reading.files import whole, writing
from channelfit.tasks.result_store import Arrays

#: A function that is called with the time reached and the last time.
OnProgress = Callable[[float, float], None]
#: The share of the largest stable step that the explicit schemes take by default.
_SAFETY = 0.9


@dataclass(frozen=True)
class Run:
    """The frames of a run.

    Attributes:
        x: (n_nodes,) places of the nodes.
        times: (n_frames,) of the frames.
        v, w: (n_frames, n_cables, n_nodes).
        facts: the scheme, the number of steps, their lengths, and further facts of the scheme.
    """

    x: Array
    times: Array
    v: Array
    w: Array
    facts: Mapping[str, Any] = field(default_factory=dict)

    def save(self, file: Path) -> None:
        """Write x, times, v and w as .npz, or as .h5 / .hdf5 (which needs h5py).

        Raises:
            InputError: another suffix, h5py is missing, or the file cannot be written.
        """
        arrays = {"x": self.x, "times": self.times, "v": self.v, "w": self.w}
        arrays |= {k: np.asarray(a) for k, a in self.facts.items() if k in ("adaptive_nodes",)}
        if self.v.shape[1] == 1:
            arrays |= {"v": self.v[:, 0], "w": self.w[:, 0]}
        if file.suffix not in (".npz", ".h5", ".hdf5"):
            raise InputError("results are written as .npz, .h5 or .hdf5", file)
        with writing(file), whole(file) as opened:
            if file.suffix == ".npz":
                np.savez_compressed(opened, allow_pickle=False, **arrays)
                return
            with _h5py(file).File(opened, "w") as out:
                for name, array in arrays.items():
                    out.create_dataset(name, data=array)
                for name, fact in self.facts.items():
                    if isinstance(fact, str | int | float):
                        out.attrs[name] = fact


def _h5py(file: Path) -> Any:
    try:
        import h5py  # optional
    except ImportError:
        raise InputError('needs h5py: pip install h5py; or give a file ".npz"', file) from None
    return h5py


def simulate(
    scheme: Scheme,
    v: npt.ArrayLike,
    w: npt.ArrayLike = 0.0,
    times: npt.ArrayLike = (0.0, 100.0),
    dt: float | None = None,
    tolerance: float | None = None,
    on_progress: OnProgress | None = None,
    checkpoints: Checkpoints | None = None,
) -> Run:
    """Solve the equation from t = 0, or from the last record of an earlier run.

    Arguments:
        scheme: a `CrankNicolson`, `Chebyshev`, `RungeKutta`, `Explicit` or `Adaptive`.
        v, w: the state at t = 0: (n_nodes,), (n_cables, n_nodes) or a number.
        times: (n_frames,) when frames are kept; they increase and are not negative.
        dt: the longest step; between two frames, or edges of a stimulus, all steps are equal. Where
            it is not given, Crank-Nicolson and Chebyshev control their steps to `tolerance`, and
            the other schemes take 0.9 of the largest stable step.
        tolerance: the local error of v and w that a step may make, for schemes that control it.
        on_progress: called after each frame with its time and the last time.
        checkpoints: the records from which the run can go on, with those of an earlier run.

    Returns: the frames at these times.

    Raises:
        InputError: a step that is not stable, a state that does not fit, times that do not
            increase, a stimulus off the cable, a solution that is no longer finite, too little
            memory.
    """
    cable, moments = scheme.cable, np.atleast_1d(np.asarray(times, dtype=float))
    cable.check_stimuli()
    if np.any(np.diff(moments) <= 0) or moments[0] < 0 or not np.all(np.isfinite(moments)):
        raise InputError("the times must increase and must not be negative", key="times")
    n_cables = max(
        [scheme.equation.n_cables, *(len(a) for a in map(np.asarray, (v, w)) if a.ndim == 2)]
    )
    check_host(len(moments), n_cables, cable.n_nodes)
    now = starting_state(scheme, v, w, n_cables)
    scheme.restart()
    stepping = _Stepping(scheme, dt, tolerance, now[0])
    scheme.check_memory(n_cables, stepping.control is not None)
    kept = (checkpoints or Checkpoints()).solution()
    frames = _frames(stepping, now, moments, kept, on_progress)
    return Run(cable.x, moments, frames[0], frames[1], stepping.facts())


def _frames(
    stepping: _Stepping,
    now: tuple[Array, Array],
    times: Array,
    kept: SolutionRecords,
    on_progress: OnProgress | None,
) -> Array:
    """Return v and w at the times of frames, (2, n_frames, n_cables, n_nodes).

    Arguments:
        now: v and w at t = 0, each (n_cables, n_nodes).
        kept: the records of the solution; the part that an earlier run has left in them is not
            computed again.
    """
    scheme, t, done = stepping.scheme, 0.0, 0
    frames = np.empty((2, len(times), *now[0].shape))
    for k in range(kept.n_frames):
        frame = kept.frame(k)
        if k >= len(times) or frame.t != times[k] or frame.v.shape != now[0].shape:
            raise kept.damaged()
        frames[0, k], frames[1, k] = frame.v, frame.w
    if (latest := kept.latest()) is not None:
        if latest.v.shape != now[0].shape or not times[0] <= latest.t <= times[-1]:
            raise kept.damaged()
        now, t = (latest.v, latest.w), latest.t
        try:
            stepping.restore(latest.internal_state)
            done = int(latest.internal_state["done"][0])
        except (KeyError, IndexError, TypeError, ValueError):
            raise kept.damaged() from None
    state: tuple[Any, Any] = scheme.put(now[0]), scheme.put(now[1])

    def on_step(t: float, state: tuple[Any, Any], done: int = 0) -> None:
        def moment() -> Moment:
            v, w = scheme.take(state[0]), scheme.take(state[1])
            return Moment(t, v.copy(), w.copy(), stepping.internal_state(done))

        kept.between(moment)

    for k, end in list(enumerate(times.tolist()))[kept.n_frames :]:
        if end > t:
            state = stepping.advanced(state, t, end, done, on_step)
        t, done = end, 0
        frames[0, k], frames[1, k] = scheme.take(state[0]), scheme.take(state[1])
        if not np.all(np.isfinite(frames[:, k])):
            raise InputError(
                f"the solution is no longer finite at t = {t:g}; take a shorter step than "
                f"{stepping.dt:g} or a weaker stimulus",
                key="dt",
            )
        if kept.is_kept:
            kept.add(k, Moment(t, frames[0, k], frames[1, k], stepping.internal_state()))
        if on_progress:
            on_progress(t, float(times[-1]))
    return frames


class _Stepping:
    """The steps of a run: of equal length, at most dt, or as a control chooses them.

    Arguments:
        v: (n_cables, n_nodes) at t = 0.

    Raises:
        InputError: a step that is not stable, or both a step and a tolerance.
    """

    def __init__(self, scheme: Scheme, dt: float | None, tolerance: float | None, v: Array) -> None:
        largest = scheme.largest_step(v)
        self.scheme = scheme
        self.control = control_of(scheme, dt, tolerance, largest, len(v))
        if dt is not None:
            check_step(dt, largest, scheme.name)
        self.dt = _SAFETY * largest if dt is None else dt
        self._facts: dict[str, Any] = {"scheme": scheme.name, "steps": 0, "largest_step": largest}

    def facts(self) -> dict[str, Any]:
        """Return the scheme, the number and lengths of steps, and facts of scheme and control."""
        control = {} if self.control is None else self.control.facts()
        return {**self._facts, **control, **self.scheme.facts()}

    def internal_state(self, done: int = 0) -> Arrays:
        """Return all that a later run needs, beside v and w, to go on.

        Arguments:
            done: the number of equal steps made since the last frame.
        """
        parts = {"scheme_": self.scheme, "control_": self.control}
        found = {
            f"{prefix}{name}": array
            for prefix, part in parts.items()
            if part is not None
            for name, array in part.internal_state().items()
        }
        return {
            **found,
            "steps": np.array([self._facts["steps"]]),
            "done": np.array([done]),
            "dt": np.array([self._facts[name] for name in ("dt",) if name in self._facts], float),
        }

    def restore(self, state: Arrays) -> None:
        """Set the internal state to an earlier one."""
        for prefix, part in (("scheme_", self.scheme), ("control_", self.control)):
            if part is not None:
                names = {name for name in state if name.startswith(prefix)}
                part.restore({name.removeprefix(prefix): state[name] for name in names})
        self._facts["steps"] = int(state["steps"][0])
        for value in state["dt"].tolist():
            self._facts["dt"] = value

    def advanced(
        self,
        state: tuple[Any, Any],
        t: float,
        end: float,
        done: int,
        on_step: Callable[..., object],
    ) -> tuple[Any, Any]:
        """Return v and w at the time end.

        Equal steps are of at most dt and end at the edges of stimuli.

        Arguments:
            t: the time of the last frame.
            done: the number of equal steps after it that an earlier run has made; `state` is
                that after these.
            on_step: called now and then with the time, the state, and the number of equal steps
                since t.
        """
        if self.control is not None:
            return self.control.run(*state, t, end, on_step)
        scheme, facts, passed = self.scheme, self._facts, 0
        for begin, stop in itertools.pairwise(_stops(scheme.cable, t, end, self.dt)):
            n_steps = max(1, math.ceil((stop - begin) / self.dt - 1e-9))
            h = (stop - begin) / n_steps
            if passed + n_steps <= done:  # the earlier run has counted them as well
                passed += n_steps
                continue
            last = passed + n_steps
            for span, drive in scheme.cable.spans(begin, h, n_steps):
                left = min(span, passed + span - done)
                passed += span
                while left > 0:
                    count = int(min(left, scheme.steps_at_once))
                    state, left = scheme.advance(*state, h, count, drive), left - count
                    if passed - left < last:
                        on_step(t, state, passed - left)
            facts["steps"] += n_steps
            facts["dt"] = max(h, facts.get("dt", 0.0))
            on_step(t, state, passed)
        return state


def _stops(cable: Cable, begin: float, end: float, dt: float) -> list[float]:
    """Return the times between which steps are equal: begin, end, and the edges of stimuli.

    So no step passes over an edge. Where the edges are denser than the steps they are left out, and
    each step takes its mean stimulus.
    """
    edges = pulse_edges(cable, begin + 1e-9 * dt, end - 1e-9 * dt)
    return [begin, *(edges if len(edges) * dt <= end - begin + 4 * dt else []), end]


def starting_state(
    scheme: Scheme, v: npt.ArrayLike, w: npt.ArrayLike, n_cables: int
) -> tuple[Array, Array]:
    """Return v and w as (n_cables, n_nodes), with v of the held ends at the held values.

    Raises:
        InputError: a state of another shape, or one that is not finite.
    """
    cable = scheme.cable
    state = []
    scheme.equation.table(n_cables)
    for name, values in (("v", v), ("w", w)):
        array = np.asarray(values, dtype=float)
        try:
            array = np.broadcast_to(array, (n_cables, cable.n_nodes)).copy()
        except ValueError:
            raise InputError(
                f"{array.shape} does not fit {n_cables} cables of {cable.n_nodes} nodes", key=name
            ) from None
        if not np.all(np.isfinite(array)):
            raise InputError("the state to start from must be finite", key=name)
        state.append(array)
    if not isinstance(cable.left, str):
        state[0][:, 0] = cable.left
    if not isinstance(cable.right, str):
        state[0][:, -1] = cable.right
    return state[0], state[1]


# --- waves


def arrival_times(run: Run, threshold: float = 0.5, cable: int = 0) -> Array:
    """Return when v first reaches the threshold at each node, (n_nodes,); NaN where it never does.

    Between two frames v is taken for a straight line. Where v begins above the threshold, the wave
    has arrived with the first frame.
    """
    v = run.v[:, cable]
    above = v >= threshold
    first = np.argmax(above, axis=0)
    nodes = np.arange(v.shape[1])
    before = np.maximum(first - 1, 0)
    low, high = v[before, nodes], v[first, nodes]
    share = np.where(first > 0, (threshold - low) / np.where(high > low, high - low, 1), 1)
    arrived = run.times[before] + share * (run.times[first] - run.times[before])
    return np.where(above.any(axis=0), arrived, np.nan)


def wave_speed(
    run: Run, x_from: float, x_to: float, threshold: float = 0.5, cable: int = 0
) -> float:
    """Return the speed at which v >= threshold passes from x_from to x_to, by least squares.

    Arguments:
        x_from, x_to: places; only nodes between them count.
        cable: the index of the cable.

    Returns: the speed, positive to the right; NaN if fewer than two nodes are reached.
    """
    arrived = arrival_times(run, threshold, cable)
    used = (run.x >= x_from) & (run.x <= x_to) & np.isfinite(arrived)
    if used.sum() < 2:
        return math.nan
    slowness = np.polyfit(run.x[used], arrived[used], 1)[0]
    return float(1 / slowness) if slowness else math.inf
