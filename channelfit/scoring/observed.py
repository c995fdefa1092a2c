"""Scores of observations: the currents of a channel in windows, and what is taken from them.

Another scorer computes currents in the samples of the windows, and for derivatives the rows from
which these and their derivatives follow. All that comes after is arithmetic of arrays, the same for
NumPy and CuPy: measures of currents (`observables`), ratios, and units of standard errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from channelfit.problem.experiment import Problem, WindowProblem
from channelfit.problem.observation import LEAST_SAMPLES, Measure, Observation
from channelfit.problem.protocol import Protocol
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.scoring.machine.arrays import array_module, to_host
from channelfit.scoring.machine.threads import side_by_side, single_threaded_blas, usable_cores
from channelfit.scoring.observables import (
    PEAKS,
    Extremum,
    Samples,
    Slope,
    Spot,
    at_extremum,
    measured,
)
from channelfit.scoring.scorer import ChannelScorer, Linearization, Score
from channelfit.scoring.tangent_plan import RowBlock

#: Numbers that are held at once by a thread on the CPU, as far as its cache has room, and on a GPU.
_AT_ONCE, _AT_ONCE_ON_GPU = 1 << 20, 1 << 27
#: Numbers from which several threads are faster than one.
_WORTH_SHARING = 1 << 19


@dataclass(frozen=True, eq=False)
class _Piece:
    """Samples of several sweeps' windows that one matrix makes of rows.

    Attributes:
        sweeps: (n,) of these sweeps; among: the same as an index, a slice of all where they are.
        window: the samples of the windows.
        rows: (n, rank), and root: (n, 1), as in `RowBlock`.
        basis: (n_samples, rank); None for the identity.
    """

    sweeps: Any
    among: Any
    window: slice
    rows: Any
    root: Any
    basis: Any

    def taken(self, rows: Any) -> Any:
        """Return (n, n_sweeps, rank, ..) of all rows (n, n_rows, ..); a view where that can be."""
        first, shape = self._first, (len(rows), *self.rows.shape, *rows.shape[2:])
        if first is None:
            return rows[:, self.rows]
        return rows[:, first : first + self.rows.size].reshape(shape)

    @cached_property
    def _first(self) -> int | None:
        """The first of the rows where they follow each other; else None."""
        own = to_host(self.rows).ravel()
        return int(own[0]) if (np.diff(own) == 1).all() else None


class _Windows:
    """The windows of a measure in all sweeps of an experiment.

    Arguments:
        places: (n_sweeps, n_times), where each sample stands among all data.
        reversal_mV: of the conductance in place of the current.
    """

    def __init__(
        self, measure: Measure, protocol: Protocol, places: np.ndarray, reversal_mV: float | None
    ) -> None:
        sweeps = range(protocol.n_sweeps)
        ends = [measure.samples(protocol, k) for k in sweeps]
        times = np.array([measure.window.ends_ms(protocol, k) for k in sweeps])
        self.measure, self.step_ms = measure, np.full(len(ends), protocol.sampling_ms)
        self.n = np.array([last - first for first, last in ends])
        self.first_ms = np.array([first for first, _ in ends]) * self.step_ms - times[:, 0]
        self.length_ms = times[:, 1] - times[:, 0]
        shape = len(ends), int(self.n.max())
        self.places, self.factor = np.zeros(shape, np.int64), np.zeros(shape)
        for k, (first, last) in enumerate(ends):
            self.places[k, : last - first] = places[k, first:last]
            command = protocol.command()[k, first:last]
            drive = 1.0 if reversal_mV is None else command - reversal_mV
            self.factor[k, : last - first] = 1.0 / drive
        self._pieces: dict[int, tuple[list[RowBlock], list[_Piece]]] = {}

    @property
    def same(self) -> tuple[bytes, ...]:
        """What two measures have in common that look at the same samples."""
        arrays = (self.places, self.factor, self.n, self.first_ms, self.length_ms, self.step_ms)
        return tuple(array.tobytes() for array in arrays)

    def pieces(self, blocks: list[RowBlock], xp: Any) -> list[_Piece]:
        """Return the pieces of all windows; they are made once for these blocks."""
        if id(blocks) not in self._pieces:
            self._pieces[id(blocks)] = blocks, [*self._made(blocks, xp)]
        return self._pieces[id(blocks)][1]

    def _made(self, blocks: list[RowBlock], xp: Any) -> Iterator[_Piece]:
        n_data = 1 + max(int(block.samples.max()) for block in blocks)
        owner = np.full((n_data, 3), -1)
        for k, block in enumerate(blocks):
            n_runs, n = block.samples.shape
            run, offset = np.indices((n_runs, n)).reshape(2, -1)
            owner[block.samples.ravel()] = np.stack([np.full(n_runs * n, k), run, offset], axis=1)
        # sweeps with the same basis, or without one, are done together
        members: dict[tuple[int, int, int, int], list[tuple[int, np.ndarray, float]]] = {}
        for sweep, n in enumerate(self.n.tolist()):
            own = owner[self.places[sweep, :n]]
            ahead = np.diff(own, axis=0)
            cuts = (np.flatnonzero(ahead[:, :2].any(axis=1) | (ahead[:, 2] != 1)) + 1).tolist()
            for a, b in zip([0, *cuts], [*cuts, n], strict=True):
                k, number, first = own[a].tolist()
                block = blocks[k]
                rows, key = block.rows[number], (k, first, a, b)
                if block.basis is None:
                    rows, key = rows[first : first + b - a], (-1, 0, a, b)
                members.setdefault(key, []).append((sweep, rows, float(block.root[number])))
        for (k, first, a, b), some in members.items():
            whole = None if k < 0 else blocks[k].basis
            basis = None if whole is None else xp.asarray(whole[first : first + b - a])
            sweeps, rows, root = (xp.asarray(np.array(one)) for one in zip(*some, strict=True))
            among = slice(None) if len(some) == len(self.n) else sweeps
            yield _Piece(sweeps, among, slice(a, b), rows, root[:, None], basis)


class _Group:
    """Windows of about the same length that are measured together, as rows of one array.

    Attributes:
        distinct: windows, no two of which are the same; rows: the rows of each.
        members: measures, each with the number of its windows among these.
    """

    def __init__(self, smallest: bool) -> None:
        self.smallest = smallest
        self.distinct, self.rows = list[_Windows](), list[slice]()
        self.members = list[tuple[Measure, int]]()
        self._numbers: dict[tuple[bytes, ...], int] = {}
        self._arrays: dict[str, tuple[Any, ...]] = {}

    def add(self, windows: _Windows) -> int:
        """Add the windows of a measure; return its number among the members."""
        number = self._numbers.setdefault(windows.same, len(self.distinct))
        if number == len(self.distinct):
            first = self.rows[-1].stop if self.rows else 0
            self.distinct.append(windows)
            self.rows.append(slice(first, first + len(windows.n)))
        self.members.append((windows.measure, number))
        return len(self.members) - 1

    def take(self, currents: Any) -> list[Any]:
        """Return the numbers (n, n_sweeps) of each member.

        Arguments:
            currents: (n, n_data)
        """
        xp = array_module(currents)
        places, factor, *_ = self._on(xp)
        y = xp.take(currents, places, axis=1)
        return [value for value, _ in self._measured(y if factor is None else y * factor)]

    def take_rows(self, blocks: list[RowBlock], rows: Any) -> list[tuple[Any, Any]]:
        """Return the numbers of each member, and derivatives (n, n_sweeps, n_free) by parameters.

        Arguments:
            rows: (n, n_rows, 1 + n_free), of these blocks.
        """
        xp = array_module(rows)
        places, factor, *_ = self._on(xp)
        y, currents = xp.zeros((len(rows), *places.shape)), xp.ascontiguousarray(rows[:, :, 0])
        for windows, own in zip(self.distinct, self.rows, strict=True):
            for piece in windows.pieces(blocks, xp):
                found = piece.taken(currents) / piece.root
                found = found if piece.basis is None else found @ piece.basis.T
                y[:, own][:, piece.among, piece.window] = found
        if factor is not None:
            y *= factor
        found = []
        for (_, number), (value, slope) in zip(self.members, self._measured(y), strict=True):
            with np.errstate(all="ignore"):  # of candidates that fail
                by_samples = slope()
            factors = None if factor is None else factor[self.rows[number]]
            by = xp.zeros((*value.shape, rows.shape[2] - 1))
            for piece in self.distinct[number].pieces(blocks, xp):
                if isinstance(by_samples, list):
                    by[:, piece.among] += _by_spots(piece, by_samples, factors, rows)
                    continue
                slopes = by_samples if factors is None else by_samples * factors
                slopes = slopes[:, piece.among, piece.window] / piece.root
                slopes = slopes if piece.basis is None else slopes @ piece.basis
                by[:, piece.among] += _by_rows(piece, slopes, rows)
            found.append((value, by))
        return found

    def _measured(self, y: Any) -> list[tuple[Any, Slope]]:
        _, _, *rows = self._on(array_module(y))
        samples = Samples(y, *rows)
        if self.members[0][0].kind not in PEAKS:
            return [measured(measure, samples.take(self.rows[k])) for measure, k in self.members]
        extremum = Extremum.of(samples, self.smallest)
        parts = [extremum.take(own) for own in self.rows]
        return [at_extremum(measure, parts[k]) for measure, k in self.members]

    def _on(self, xp: Any) -> tuple[Any, ...]:
        """Return the arrays of all windows as those of a module; factors of 1 alone as None."""
        if xp.__name__ not in self._arrays:
            most = max(windows.places.shape[1] for windows in self.distinct)

            def joined(name: str) -> np.ndarray:
                arrays = [getattr(windows, name) for windows in self.distinct]
                if arrays[0].ndim == 2:  # up to the longest
                    arrays = [np.pad(a, ((0, 0), (0, most - a.shape[1]))) for a in arrays]
                return np.concatenate(arrays)

            factor = joined("factor")
            own = [joined(k) for k in ("places", "n", "first_ms", "length_ms", "step_ms")]
            own.insert(1, factor)
            places, factor, *rest = map(xp.asarray, own)
            every = bool((factor == 1.0).all())
            self._arrays[xp.__name__] = places, None if every else factor, *rest
        return self._arrays[xp.__name__]


def _by_spots(piece: _Piece, spots: list[Spot], factor: Any, rows: Any) -> Any:
    """Return derivatives (n, n_sweeps, n_free) by parameters of those by a few samples."""
    xp, first = array_module(rows), piece.window.start
    n, total = piece.window.stop - first, 0.0
    for spot in spots:
        weights = spot.weights[:, piece.among] / piece.root
        k = spot.first[:, piece.among, None] + xp.arange(LEAST_SAMPLES)
        if factor is not None:
            weights = weights * factor[piece.sweeps[:, None], k]
        k = k - first
        weights, k = xp.where((k >= 0) & (k < n), weights, 0.0), xp.clip(k, 0, n - 1)
        if piece.basis is not None:
            total = total + (weights[:, :, None, :] @ piece.basis[k])[:, :, 0]
            continue
        some = piece.rows[xp.arange(len(piece.rows))[:, None], k]
        each = xp.arange(len(rows))[:, None, None]
        total = total + (weights[:, :, None, :] @ rows[each, some, 1:])[:, :, 0]
    return total if piece.basis is None else _by_rows(piece, total, rows)


def _by_rows(piece: _Piece, slopes: Any, rows: Any) -> Any:
    """Return derivatives (n, n_sweeps, n_free) by parameters of those by the rows of a piece."""
    return (slopes[:, :, None, :] @ piece.taken(rows)[..., 1:])[:, :, 0]


#: Returns numbers (n, n_sweeps) of a member of a group, and their derivatives (n, n_sweeps, n_free)
#: or None.
_Take = Callable[[_Group, int], tuple[Any, Any]]


class _Curve:
    """An observation with its measures, each a member of a group.

    Arguments:
        groups: of the measures of all observations, to which these are added.
    """

    def __init__(
        self,
        observation: Observation,
        protocol: Protocol,
        places: np.ndarray,
        groups: dict[Any, _Group],
    ) -> None:
        self.observation, self.scale = observation, observation.scale
        self.measures = list[tuple[_Group, int]]()
        for one in observation.measures:
            windows = _Windows(one, protocol, places, observation.reversal_mV)
            smallest, length = one.kind == "trough", int(windows.n.max()).bit_length()
            key = (smallest, length) if one.kind in PEAKS else len(groups)
            group = groups.setdefault(key, _Group(smallest))
            self.measures.append((group, group.add(windows)))

    def predicted(self, take: _Take) -> tuple[Any, Any]:
        """Return predicted numbers (n, n_sweeps) and derivatives, in units of standard errors."""
        found = take(*self.measures[0])
        for divisor in self.measures[1:]:
            found = _ratio(found, take(*divisor))
        xp, by = array_module(found[0]), self.observation.normalize
        if by is not None:
            place = self._largest(found[0]) if by < 0 else xp.full(len(found[0]), by)
            each = xp.arange(len(found[0]))
            slope = None if found[1] is None else found[1][each, place][:, None]
            found = _ratio(found, (found[0][each, place][:, None], slope))
        scale = xp.asarray(self.scale)
        return found[0] * scale, None if found[1] is None else found[1] * scale[:, None]

    def _largest(self, value: Any) -> Any:
        """Return the sweep of the largest size, among those that were observed."""
        xp = array_module(value)
        among = xp.asarray(np.isfinite(self.observation.value))
        return xp.where(among & xp.isfinite(value), xp.abs(value), -1.0).argmax(axis=1)


def _ratio(one: tuple[Any, Any], other: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return a ratio of numbers with their derivatives."""
    with np.errstate(all="ignore"):  # of candidates that fail
        share = one[0] / other[0]
        if one[1] is None:
            return share, None
        return share, (one[1] - share[..., None] * other[1]) / other[0][..., None]


class ObservedScorer(ChannelScorer):
    """Scores what is observed in currents, in units of standard errors and in float64.

    `simulate` returns the predicted numbers, for each experiment (n_curves, n_sweeps,
    n_candidates), as `observation.as_recording` has the observed ones.

    Arguments:
        problem: all of its experiments have observations, and one model serves them.
        kind: the class of the scorer that computes currents.
    """

    path, paths = "stepping", ("stepping",)

    def __init__(self, problem: Problem, kind: Callable[..., ChannelScorer]) -> None:
        self.problem, self.windows = problem, WindowProblem.of(problem)
        self.inner = inner = kind(self.windows, "float64", path="stepping")
        self.backend, self.xp = inner.backend, inner.xp
        self.source_text, self.source_hash = inner.source_text, inner.source_hash
        model = problem.model
        self.free = [k for k, p in enumerate(model.parameters) if not p.fixed]
        recordings = [e.recording for e in problem.experiments if e.recording]
        self._data = np.concatenate([r.current_pA.ravel() for r in recordings])
        pairs = zip(problem.experiments, recordings, strict=True)
        self._weight = np.concatenate([e.weight * r.weight.ravel() for e, r in pairs])
        self._data = np.where(self._weight > 0, self._data, 0.0)

    @property
    def has_data(self) -> bool:
        """True where an observation counts."""
        return bool(self._weight.any())

    @cached_property
    def _made(self) -> tuple[list[_Curve], list[_Group]]:
        """All observations, in the order of the experiments, and the groups of their measures."""
        groups: dict[Any, _Group] = {}
        curves = [
            _Curve(observation, e.protocol, place, groups)
            for e, place in zip(self.problem.experiments, self.windows.scored.outputs, strict=True)
            for observation in e.observations
        ]
        return curves, list(groups.values())

    def simulate(self, parameters: Any) -> list[np.ndarray]:
        xp = array_module(parameters)
        predicted, _ = self._predicted(self._checked(parameters))
        found, first = [], 0
        for e in self.problem.experiments:
            shape = len(e.observations), e.protocol.n_sweeps
            own = predicted[:, first : first + shape[0] * shape[1]]
            found.append(xp.moveaxis(own.reshape(-1, *shape), 0, -1))
            first += shape[0] * shape[1]
        return found

    def score(self, parameters: Any) -> Score:
        predicted, status = self._predicted(self._scorable(parameters))
        return self._finished(predicted, status)[0]

    def linearize(self, parameters: Any) -> Linearization:
        parameters = self._scorable(parameters)
        xp, (n_parameters, n) = array_module(parameters), parameters.shape
        n_numbers, n_free = len(self._data), len(self.free)
        predicted, slopes = xp.empty((n, n_numbers)), xp.empty((n, n_numbers, n_free))
        status = xp.zeros(n, np.int8)

        def use(blocks: list[RowBlock], rows: Any) -> tuple[Any, Any]:
            curves, groups = self._made
            found = {group: group.take_rows(blocks, rows) for group in groups}
            parts = [curve.predicted(lambda group, k: found[group][k]) for curve in curves]
            own = array_module(rows)
            return tuple(own.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True))  # type: ignore[return-value]

        def some(which: slice) -> None:
            found = self.inner.window_slopes(xp.ascontiguousarray(parameters[:, which]), use)
            predicted[which], slopes[which], status[which] = found

        rows = len(self.windows.scored.sample_mV) * (1 + n_free)
        self._shared(some, n, self._a_candidate + rows + n_numbers * n_free)
        score, residual = self._finished(predicted, status)
        weight = xp.asarray(self._weight) / float(self._weight.sum())
        slopes = xp.where((weight > 0)[:, None], slopes, 0.0)
        lost = (score.status == OK) & ~xp.isfinite(slopes).all(axis=(1, 2))
        score = Score(
            xp.where(lost, np.inf, score.cost), xp.where(lost, np.int8(NOT_FINITE), score.status)
        )
        good = (score.status == OK)[:, None]
        slopes = xp.where(good[:, :, None], slopes, 0.0)
        weighted = weight[:, None] * slopes
        gradient, hessian = xp.zeros((n_parameters, n)), xp.zeros((n_parameters, n_parameters, n))
        free = xp.asarray(np.array(self.free, np.int64))
        gradient[free] = 2.0 * (xp.where(good, residual, 0.0)[:, None] @ weighted)[:, 0].T
        products = xp.swapaxes(slopes, 1, 2) @ weighted
        hessian[free[:, None], free] = 2.0 * xp.moveaxis(products, 0, -1)
        return Linearization(score.cost, score.status, gradient, hessian)

    def limit_launches(self, chunk: int) -> None:
        self.inner.limit_launches(chunk)

    def _predicted(self, parameters: Any) -> tuple[Any, Any]:
        """Return predicted numbers (n, n_numbers), in units of standard errors, and statuses."""
        xp, n = array_module(parameters), parameters.shape[1]
        predicted, status = xp.empty((n, len(self._data))), xp.zeros(n, np.int8)

        def some(which: slice) -> None:
            currents, own = self.inner.window_currents(xp.ascontiguousarray(parameters[:, which]))
            inner, (curves, groups) = array_module(currents), self._made
            currents = inner.ascontiguousarray(currents.T)
            found = {group: group.take(currents) for group in groups}
            parts = [
                curve.predicted(lambda group, k: (found[group][k], None))[0] for curve in curves
            ]
            numbers = inner.concatenate(parts, axis=1)
            predicted[which], status[which] = (_moved(x, xp) for x in (numbers, own))

        self._shared(some, n, self._a_candidate)
        return predicted, status

    @cached_property
    def _a_candidate(self) -> int:
        """Numbers that are held for each candidate: its currents, several times over."""
        sizes = [sum(w.places.size for w in group.distinct) for group in self._made[1]]
        return len(self.windows.scored.sample_mV) + 4 * max(sizes)

    def _shared(self, some: Callable[[slice], None], n: int, numbers: int) -> None:
        """Call a function for all candidates, a few at once; on the CPU by all threads."""
        on_gpu = self.backend == "cuda"
        step = max(1, (_AT_ONCE_ON_GPU if on_gpu else _AT_ONCE) // numbers)
        if on_gpu:
            for first in range(0, n, step):
                some(slice(first, min(first + step, n)))
            return
        cores = usable_cores()
        if n * numbers >= _WORTH_SHARING:
            step = min(step, -(-n // cores))

        def blocks(first: int, last: int) -> None:
            for k in range(first, last):
                some(slice(k * step, min((k + 1) * step, n)))

        with single_threaded_blas():
            side_by_side(blocks, -(-n // step), 1, cores)

    def _finished(self, predicted: Any, status: Any) -> tuple[Score, Any]:
        """Return costs and statuses, and residuals (n, n_numbers)."""
        xp = array_module(predicted)
        weight, data = xp.asarray(self._weight), xp.asarray(self._data)
        residual = xp.where(weight > 0, predicted - data, 0.0)
        with np.errstate(all="ignore"):  # of candidates that fail
            cost = (weight * residual**2).sum(axis=1) / float(self._weight.sum())
        status = xp.where((status == OK) & ~xp.isfinite(cost), np.int8(NOT_FINITE), status)
        return Score(xp.where(status == OK, cost, np.inf), status), residual


def _moved(array: Any, xp: Any) -> Any:
    """Return an array as one of a module: on the host, or on the GPU."""
    if array_module(array) is xp:
        return array
    return array.get() if xp is np else xp.asarray(array)
