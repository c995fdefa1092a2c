"""The currents that a linearization on the CPU computes, and the place of each of them.

A plan is made once per problem: which samples of each run are needed (`held_compression`, on smooth
varying voltage `ramp_collocation`), and which matrices make residuals of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from channelfit.model.channel import ChannelModel
from channelfit.problem.run_tree import (
    DATA,
    END,
    GAUSS,
    KIND,
    MIDDLE,
    N_SAMPLES,
    N_SUB,
    NODES,
    QUARTERS,
    SOURCE,
    START,
    TABLE,
    TARGET,
    VARYING,
    RunTree,
)
from channelfit.scoring.kernels import tangent_tables as columns
from channelfit.scoring.layout import ramp_collocation as collocation
from channelfit.scoring.layout.held_compression import Compression, compression
from channelfit.scoring.layout.orthogonal import spanned
from channelfit.scoring.machine.arrays import product

#: Combinations of polynomials that samples of a piece show this little of the most are left out.
_LEAST = 1e-15


@dataclass(frozen=True, eq=False)
class PointGroup:
    """Held runs of equally many samples, or a piece of a ramp, which one matrix product serves."""

    matrix: np.ndarray  # (rank, n_points)
    points: slice  # of the flat array, (n_points, n_runs, width)
    residuals: slice  # rows, (rank, n_runs)


@dataclass(frozen=True, eq=False)
class Projection:
    """A projection of data to targets of residuals, and the runs that it serves.

    Attributes:
        project: takes samples (.., n_samples) to the space of the residuals, (.., rank), and
            returns the squares that lie outside it, (..), too.
        runs: the samples of each run, among all data, and its number; all have as many.
    """

    project: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    runs: list[tuple[slice, int]]


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Rows from which the currents in samples follow: ``basis @ rows / root``.

    Attributes:
        rows: (n_runs, rank), which of all rows are those of each run or piece.
        samples: (n_runs, n_samples), their samples among all data.
        root: (n_runs,) of the weight of a sample.
        basis: (n_samples, rank); None where each sample has a row of its own.
    """

    rows: np.ndarray
    samples: np.ndarray
    root: np.ndarray
    basis: np.ndarray | None

    @classmethod
    def of(
        cls,
        tree: RunTree,
        runs: Sequence[int],
        first: int,
        basis: np.ndarray | None,
        weighted: bool = True,
    ) -> RowBlock:
        """Return that of runs of equally many samples, the first row of each before the second.

        Arguments:
            weighted: whether rows are multiplied by the root of a weight.
        """
        samples = np.array([np.r_[samples_of(tree, r)] for r in runs])
        rank = samples.shape[1] if basis is None else basis.shape[1]
        rows = first + np.arange(len(runs))[:, None] + len(runs) * np.arange(rank)
        root = np.sqrt(tree.run_weight[list(runs)]) if weighted else np.ones(len(runs))
        return cls(rows, samples, root, basis)

    @classmethod
    def of_points(cls, tree: RunTree, run: int, first: int, piece: RampPiece) -> RowBlock:
        """Return that of a piece of a ramp, from its points."""
        rows = first + np.arange(piece.matrix.shape[1])
        samples = np.arange(piece.samples.start, piece.samples.stop)
        basis = product(piece.basis, piece.matrix)
        return cls(rows[None], samples[None], np.ones(1), basis)

    @classmethod
    def of_piece(cls, tree: RunTree, run: int, first: int, step: int, piece: RampPiece) -> RowBlock:
        """Return that of a piece of a ramp, whose rows are so many apart."""
        rows = first + step * np.arange(piece.basis.shape[1])
        samples = np.arange(piece.samples.start, piece.samples.stop)
        return cls(rows[None], samples[None], np.sqrt(tree.run_weight[[run]]), piece.basis)


@dataclass(frozen=True, eq=False)
class PiecewiseRamp:
    """A varying run of smooth voltage, in n pieces.

    Attributes:
        edges: (n + 1,) ms.
        levels: of the rates, at the points of `ramp_collocation`: (n, n_points) mV, or with
            ligands (n, n_points, 1 + n_ligands) mV and mM.
        places: (n,) in the flat array; -1 where no sample lies in a piece.
    """

    edges: np.ndarray
    levels: np.ndarray
    places: np.ndarray

    @property
    def voltage(self) -> np.ndarray:
        """(n, n_points) mV, at these points."""
        levels = self.levels
        return levels if levels.ndim == 2 else np.ascontiguousarray(levels[..., 0])

    @property
    def lengths(self) -> np.ndarray:
        """(n,) ms, how long each piece is."""
        return np.diff(self.edges)


@dataclass(frozen=True, eq=False)
class Stretch:
    """Runs first .. last - 1: consecutive held ones, or a varying one.

    A varying run is taken in pieces where it has a `ramp`, else in steps with the voltages `nodes`.
    """

    first: int
    last: int
    nodes: tuple[np.ndarray, ...] = ()
    ramp: PiecewiseRamp | None = None

    @property
    def varies(self) -> bool:
        """True where the voltage varies."""
        return bool(self.nodes) or self.ramp is not None


@dataclass(frozen=True, eq=False)
class RampPiece:
    """A piece of a ramp in which samples lie.

    Attributes:
        number: which of the ramp's pieces it is.
        samples: its samples among all data.
        basis: (n_samples, rank), orthonormal: the samples that the piece's polynomials can have.
        matrix: (rank, n_points), from the points of `ramp_collocation` to the basis.
    """

    number: int
    samples: slice
    basis: np.ndarray
    matrix: np.ndarray

    def project(self, data: np.ndarray) -> tuple[np.ndarray, float]:
        """Return data (n_samples,) by the basis (rank,), and the squares that lie outside it."""
        coordinates, rest = self.project_all(data)
        return coordinates, float(rest)

    def project_all(self, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return recordings (..., n_samples) by the basis, (..., rank), and squares (...)."""
        coordinates = product(data, self.basis)
        outside = data - product(coordinates, self.basis.T)
        return coordinates, np.sum(outside**2, axis=-1)


@dataclass(eq=False)
class _Filled:
    """The counters and lists that grow while a plan is made.

    Attributes:
        flat: numbers of the flat array.
        rows: residuals.
        points: samples of held runs that are computed, counted from the start of a run.
        scale: of the residuals.
    """

    flat: int = 0
    rows: int = 0
    points: list[np.ndarray] = field(default_factory=list)
    scale: list[np.ndarray] = field(default_factory=list)
    _n_points: int = 0

    def add(self, points: np.ndarray) -> int:
        """Add points (n,) and return where the first of them stands among all."""
        first = self._n_points
        self.points.append(points)
        self._n_points += len(points)
        return first


class Plan:
    """The samples of one tree of runs that are computed, and their places in flat arrays.

    Arguments:
        width: numbers kept of every current: itself, and its derivatives by free parameters.
        oscillating: whether occupancies of the scheme may oscillate.
        relaxes: whether the model is one of gates of two states.
        grade: how fine the pieces are in which smooth varying runs are taken; None: from step to
            step.

    Attributes:
        runs: (n_runs, 9) int64, columns of `tangent_tables`.
        stretches: in order; together all runs.
        n_flat: numbers in the flat array, of which the last n_residuals * width are residuals.
        target, scale: (n_residuals,); a residual is scale * (predicted - target).
        matrices, group_table: of the groups, as `tangent_tables.project` takes them.
        constant: squares that lie outside all residuals, pA^2.
        ramps: by number of the run, those taken in pieces.
        levels: (n_tables,) how many powers of each propagator the runs need.
    """

    def __init__(
        self, tree: RunTree, width: int, oscillating: bool, relaxes: bool, grade: int | None
    ) -> None:
        self.tree, self.width = tree, width
        runs = tree.runs
        n = len(runs)
        held = runs[:, KIND] != VARYING
        sampled = tree.run_weight > 0
        self.runs = np.zeros((n, columns.N_COLUMNS), np.int64)
        self.runs[held, columns.VOLTAGE] = tree.table_voltage[runs[held, TABLE]]
        self.runs[held, columns.TABLE] = runs[held, TABLE]
        self.runs[:, [columns.N, columns.SOURCE, columns.TARGET]] = runs[
            :, [N_SAMPLES, SOURCE, TARGET]
        ]
        self.run_dt = tree.run_dt.copy()
        self.run_dt[held] = tree.table_dt[runs[held, TABLE]]
        self.ramps: dict[int, PiecewiseRamp] = {}
        for r in np.flatnonzero(~held).tolist() if grade is not None else ():
            ramp = in_pieces(tree, r, grade or 0)
            self.ramps |= {} if ramp is None else {r: ramp}
        self._place(tree, held, sampled, oscillating)
        self.levels = np.ones(len(tree.table_dt), np.int64)
        for r in np.flatnonzero(held).tolist():
            k = runs[r, TABLE]
            self.levels[k] = max(self.levels[k], int(runs[r, N_SAMPLES]).bit_length())
        self.stretches = list(self._stretches(tree, held, relaxes))

    def _place(
        self, tree: RunTree, held: np.ndarray, sampled: np.ndarray, oscillating: bool
    ) -> None:
        """Give every sampled run its points, its place in the flat array and its residuals.

        First come held runs that are compressed, then the pieces of ramps, and last the runs of
        which every sample is a residual of its own.
        """
        self.groups: list[PointGroup] = []
        self._blocks: list[Callable[[], RowBlock]] = []
        self._projections: list[Projection] = []
        filled = _Filled()
        by_length, whole = compressible(tree, oscillating, self.ramps)
        for length, members in by_length.items():
            self._place_compressed(filled, compression(length, oscillating), members)
        for r in self.ramps:
            if sampled[r]:
                self._place_pieces(filled, r)
        self.n_compressed = filled.flat
        self._place_whole(filled, whole, held)
        self.n_residuals, self.n_flat = filled.rows, filled.flat + filled.rows * self.width
        self.points = joined(filled.points, np.int64)
        self.scale = joined(filled.scale)
        self.target, self.constant = self.targets(tree.data_pA, tree.constant)
        self.matrices = joined([group.matrix.ravel() for group in self.groups])
        self.group_table = self._group_table()

    def _place_compressed(self, filled: _Filled, kept: Compression, members: list[int]) -> None:
        """Place held runs of equally many samples, of which few points determine all."""
        rank, n_kept = kept.matrix.shape
        first = filled.add(kept.points)
        stride = len(members) * self.width
        for k, r in enumerate(members):
            self.runs[r, columns.OUT :] = filled.flat + k * self.width, stride, first, n_kept
        group = PointGroup(
            kept.matrix,
            slice(filled.flat, filled.flat + n_kept * stride),
            slice(filled.rows, filled.rows + rank * len(members)),
        )
        self.groups.append(group)
        block = self.tree, members, filled.flat // self.width
        self._blocks.append(
            lambda: RowBlock.of(*block, product(kept.basis, kept.matrix), weighted=False)
        )
        self._projections.append(
            Projection(kept.project_all, [(samples_of(self.tree, r), r) for r in members])
        )
        filled.scale.append(np.tile(np.sqrt(self.tree.run_weight[members]), rank))
        filled.flat, filled.rows = group.points.stop, group.residuals.stop

    def _place_pieces(self, filled: _Filled, r: int) -> None:
        """Place the pieces of a ramp in which samples lie."""
        ramp, weight = self.ramps[r], self.tree.run_weight[r]
        for piece in sampled_pieces(self.tree, r, ramp):
            ramp.places[piece.number] = filled.flat
            rank, n_points = piece.matrix.shape
            points = slice(filled.flat, filled.flat + n_points * self.width)
            self.groups.append(
                PointGroup(piece.matrix, points, slice(filled.rows, filled.rows + rank))
            )
            self._projections.append(Projection(piece.project_all, [(piece.samples, r)]))
            points_of = self.tree, r, filled.flat // self.width, piece
            self._blocks.append(partial(RowBlock.of_points, *points_of))
            filled.scale.append(np.full(rank, np.sqrt(weight)))
            filled.flat, filled.rows = points.stop, filled.rows + rank

    def _place_whole(self, filled: _Filled, whole: list[int], held: np.ndarray) -> None:
        """Place runs of which every sample is a residual; they end the flat array."""
        firsts: dict[int, int] = {}  # of all samples of held runs of some length, as points
        for r in whole:
            length = int(self.tree.runs[r, N_SAMPLES])
            place = filled.flat + filled.rows * self.width
            self.runs[r, [columns.OUT, columns.STRIDE]] = place, self.width
            if held[r]:
                if length not in firsts:
                    firsts[length] = filled.add(np.arange(length))
                self.runs[r, [columns.POINTS, columns.N_POINTS]] = firsts[length], length
            self._projections.append(Projection(_untouched, [(samples_of(self.tree, r), r)]))
            own = self.tree, [r], place // self.width, None, False
            self._blocks.append(partial(RowBlock.of, *own))
            filled.scale.append(np.full(length, np.sqrt(self.tree.run_weight[r])))
            filled.rows += length

    @cached_property
    def blocks(self) -> list[RowBlock]:
        """The rows of the flat array, by `width`, from which the currents in all samples follow."""
        return [make() for make in self._blocks]

    def _group_table(self) -> np.ndarray:
        """Return (n_groups, 6), where matrices, points and residuals of groups begin and end."""
        begins = np.cumsum([0, *(group.matrix.size for group in self.groups)])
        rows = [
            (*g.matrix.shape, begin, g.points.start, g.points.stop, g.residuals.start * self.width)
            for g, begin in zip(self.groups, begins, strict=False)
        ]
        return np.array(rows, np.int64).reshape(-1, 6)

    def targets(
        self, data_pA: np.ndarray, constant: Any, known: dict[Any, Any] | None = None
    ) -> tuple[np.ndarray, Any]:
        """Return data as targets of the residuals, and the squares outside of all of these.

        Arguments:
            data_pA: (.., n_data) in the order of the tree's own, of the same weights.
            constant: (..) the squares that merging took out of them, pA^2, as `RunTree.constant`.
            known: projections of the same data, which other plans of the tree have computed; it is
                filled in.

        Returns: the targets (.., n_residuals) pA, and the constants (..) with what compression
            takes out.
        """
        target, known = [np.empty((*data_pA.shape[:-1], 0))], {} if known is None else known
        for projection in self._projections:
            key = projection.project, projection.runs[0][0].start
            if key not in known:
                own = np.stack([data_pA[..., samples] for samples, _ in projection.runs], axis=-2)
                known[key] = projection.project(own)
            part, rest = known[key]
            for k, (_, r) in enumerate(projection.runs):
                constant = constant + self.tree.run_weight[r] * rest[..., k]
            target.append(part.swapaxes(-1, -2).reshape(*data_pA.shape[:-1], -1))
        return np.concatenate(target, axis=-1), constant

    def _stretches(self, tree: RunTree, held: np.ndarray, relaxes: bool) -> Iterator[Stretch]:
        r = 0
        while r < len(held):
            last = r + 1
            if held[r]:
                while last < len(held) and held[last]:
                    last += 1
                yield Stretch(r, last)
            elif r in self.ramps:
                yield Stretch(r, last, ramp=self.ramps[r])
            else:
                yield Stretch(r, last, _nodes(tree, r, relaxes))
            r = last


def may_oscillate(model: ChannelModel) -> bool:
    """Return whether a chain of a model has a cycle; occupancies of trees cannot oscillate."""
    edges = [{frozenset((t.source, t.target)) for t in c.transitions} for c in model.chains]
    return any(len(e) >= len(c.states) > 1 for e, c in zip(edges, model.chains, strict=True))


def compressible(
    tree: RunTree, oscillating: bool, ramps: Mapping[int, PiecewiseRamp]
) -> tuple[dict[int, list[int]], list[int]]:
    """Divide sampled runs, except `ramps`, into those of few points and those kept whole.

    Returns: by their number of samples, the held runs of which few points determine all samples;
        and the others.
    """
    by_length: dict[int, list[int]] = {}
    whole: list[int] = []
    for r in np.flatnonzero(tree.run_weight > 0).tolist():
        if r not in ramps:
            n = int(tree.runs[r, N_SAMPLES])
            few = tree.runs[r, KIND] != VARYING and not compression(n, oscillating).is_whole
            (by_length.setdefault(n, []) if few else whole).append(r)
    return by_length, whole


def samples_of(tree: RunTree, r: int) -> slice:
    """Return the samples of a run among all data."""
    begin = int(tree.runs[r, DATA])
    return slice(begin, begin + int(tree.runs[r, N_SAMPLES]))


def _untouched(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return data as they are, where every sample is a residual of its own."""
    return data, np.zeros(data.shape[:-1])


def nodes_of(tree: RunTree, r: int) -> np.ndarray:
    """Return the levels of a varying run, (n_steps, n_nodes) mV, see `run_tree.NODES`.

    With ligands (n_steps, n_nodes, 1 + n_ligands) mV and mM.
    """
    row = tree.runs[r]
    n = int(row[N_SAMPLES] * row[N_SUB])
    first = int(row[TABLE])
    nodes = tree.nodes[first : first + n * len(NODES)]
    return nodes.reshape(n, len(NODES), *nodes.shape[1:])


def _nodes(tree: RunTree, r: int, relaxes: bool) -> tuple[np.ndarray, ...]:
    """Return levels of a varying run: (edges, middles), or (Gauss points, quarters')."""
    nodes = nodes_of(tree, r)
    if relaxes:
        return np.concatenate([nodes[:1, START], nodes[:, END]]), nodes[:, MIDDLE].copy()
    width = nodes.shape[2:]
    return nodes[:, GAUSS:QUARTERS].reshape(-1, *width), nodes[:, QUARTERS:].reshape(-1, *width)


def in_pieces(tree: RunTree, r: int, grade: int) -> PiecewiseRamp | None:
    """Cut a varying run into pieces; None where its voltage is not smooth, or steps cost less.

    Arguments:
        r: the number of the run.
        grade: how fine the pieces are, a row of `ramp_collocation.GRADES`.
    """
    found = collocation.pieces(float(tree.run_dt[r]), nodes_of(tree, r), NODES, grade)
    return None if found is None else PiecewiseRamp(*found, np.full(len(found[1]), -1))


def sampled_pieces(tree: RunTree, r: int, ramp: PiecewiseRamp) -> Iterator[RampPiece]:
    """Yield the pieces of run r in which samples lie."""
    n, step = int(tree.runs[r, N_SAMPLES]), int(tree.runs[r, N_SUB])
    t, first = np.arange(n) * (step * tree.run_dt[r]), int(tree.runs[r, DATA])
    piece_of = np.searchsorted(ramp.edges[1:-1], t, side="right")
    for number in np.unique(piece_of).tolist():
        begin, end = ramp.edges[number : number + 2]
        inside = np.flatnonzero(piece_of == number)
        from_points = collocation.between((t[inside] - begin) / (end - begin))
        basis = spanned(from_points, _LEAST)
        matrix = product(basis.T, from_points)
        samples = slice(first + int(inside[0]), first + int(inside[-1]) + 1)
        yield RampPiece(number, samples, basis, matrix)


class VaryingRun:
    """One run of varying voltage: its numbers, and the parts in which it is taken."""

    def __init__(self, plan: Plan, r: int) -> None:
        row = plan.tree.runs[r]
        self.n_steps, self.n_sub = int(row[N_SAMPLES] * row[N_SUB]), int(row[N_SUB])
        self.source, self.target = int(row[SOURCE]), int(row[TARGET])
        self.h, self.sampled = float(plan.run_dt[r]), bool(plan.tree.run_weight[r] > 0)
        self.first_sample, self._voltage = int(row[DATA]), plan.tree.sample_mV
        self._out, self._stride = int(plan.runs[r, columns.OUT]), plan.width

    def blocks(self, most: int) -> Iterator[tuple[int, int]]:
        """Yield [begin, end) of steps; `most` is a power of two, so samples begin blocks."""
        for begin in range(0, self.n_steps, most):
            yield begin, min(begin + most, self.n_steps)

    def samples(self, step: int) -> bool:
        """Return whether there is a sample to take in a block that begins with this step."""
        return self.sampled and step % self.n_sub == 0

    def sample_voltage(self, step: int) -> np.ndarray:
        """Return the voltages at the samples from a step on."""
        return self._voltage[self.first_sample + step // self.n_sub :]

    def place(self, step: int) -> int:
        """Return the place of the first sample from a step on, in the flat array."""
        return self._out + step // self.n_sub * self._stride


def joined(parts: list[np.ndarray], dtype: Any = float) -> np.ndarray:
    """Join arrays one after the other; an empty one of none."""
    return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype)
