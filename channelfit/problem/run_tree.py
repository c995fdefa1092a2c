"""All experiments of a problem as one tree of runs, in flat arrays that kernels read.

A sweep becomes *runs*: stretches of samples that share a propagator and a weight. Runs form a
tree. Sweeps that begin alike (the families of every voltage-clamp protocol do) share the runs of
their common beginning, and there the residuals against several sweeps collapse exactly:

    sum_s w_s (y - d_s)^2  =  W (y - D)^2 + constant,   W = sum w_s,   D = sum w_s d_s / W.

So a conditioning pulse common to twelve sweeps is scored once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from channelfit.problem.protocol import Protocol
from channelfit.problem.waves import TIME_TOLERANCE, Command, Constant, Samples, Segment, together

#: mV. Varying voltage is sub-stepped so that it moves no further than this in one step; a ramp of
#: a concentration by so much of the largest.
MAX_STEP_MV, MAX_STEP_SHARE = 1.0, 1 / 64
_GAUSS = np.array([0.5 - math.sqrt(3) / 6, 0.5 + math.sqrt(3) / 6])
#: Where in a sub-step rates are evaluated, as parts of it: START, MIDDLE and END for chains of two
#: states; for schemes the two Gauss points of the whole, from GAUSS on, and the eight of its
#: quarters, from QUARTERS on, for stiff candidates.
START, MIDDLE, END, GAUSS, QUARTERS = 0, 1, 2, 3, 5
NODES = np.concatenate([[0.0, 0.5, 1.0], _GAUSS, ((np.arange(4)[:, None] + _GAUSS) / 4).ravel()])

#: Columns of `RunTree.runs`.
KIND, TABLE, N_SAMPLES, DATA, SOURCE, TARGET, N_SUB, SAMPLED = range(8)
HELD, VARYING = 0, 1


@dataclass(frozen=True)
class RunTree:
    """The runs of all experiments, in arrays; n_data counts samples, merged ones once.

    voltages: (n_voltages,) distinct held voltages, mV; with ligands each as often as there are
        concentrations at it.
    levels: what rates depend on: the same array, or with ligands (n_voltages, 1 + n_ligands) mV and
        mM.
    start_voltage: (n_starts,) index into `voltages`; state slot k starts at that steady state.
    table_voltage, table_dt: (n_tables,) index into `voltages`, and ms: one propagator each.
    runs: (n_runs, 8) int64, columns KIND .. SAMPLED. TABLE is the propagator of a held run, or the
        first row in `nodes` of a varying one. SOURCE and TARGET are state slots.
    run_voltage: (n_runs,) mV (held); run_dt: (n_runs,) ms a sub-step (varying);
        run_weight: (n_runs,), 0 where nothing is scored.
    nodes: the command at the NODES of every sub-step of every varying run, (n_nodes,) mV, or with
        ligands (n_nodes, 1 + n_ligands) mV and mM.
    sample_mV: (n_data,) command voltage at each sample.
    data_pA: (n_data,); constant: the part of the sum of squares that merging removed, pA^2.
    total_weight: sum of the weights of all samples; n_slots: state slots in use.
    outputs: per experiment (n_sweeps, n_times_max) int64, where each sample's current is found
        in data order, -1 after the end of a shorter sweep and where nothing is computed.
    """

    voltages: np.ndarray
    levels: np.ndarray
    start_voltage: np.ndarray
    table_voltage: np.ndarray
    table_dt: np.ndarray
    runs: np.ndarray
    run_voltage: np.ndarray
    run_dt: np.ndarray
    run_weight: np.ndarray
    nodes: np.ndarray
    sample_mV: np.ndarray
    data_pA: np.ndarray
    constant: float
    total_weight: float
    n_slots: int
    outputs: tuple[np.ndarray, ...]


#: A held voltage, mV, and the concentrations at it, mM.
Level = tuple[float, ...]


@dataclass(frozen=True)
class _Member:
    """The samples of one sweep that a run serves."""

    experiment: int
    sweep: int
    samples: range
    weight: float


@dataclass
class RunNode:
    """A node of the tree of runs, before slots are given out."""

    kind: int
    n: int
    dt: float  # ms between samples (held) or per sub-step (varying)
    level: Level = (math.nan,)
    n_sub: int = 1
    nodes: np.ndarray = field(default_factory=lambda: np.empty(0))
    sample_mV: np.ndarray = field(default_factory=lambda: np.empty(0))
    samples: range = range(0)  # of the sweep; empty where nothing is sampled
    weight: float = 0.0
    children: list[RunNode] = field(default_factory=list)
    members: list[_Member] = field(default_factory=list)

    def same_course(self, other: RunNode) -> bool:
        """Return whether both take every candidate through the same states at the same samples."""
        return (
            (self.kind, self.n, self.dt, self.n_sub, len(self.samples) > 0)
            == (other.kind, other.n, other.dt, other.n_sub, len(other.samples) > 0)
            and (self.level == other.level or self.kind == VARYING)
            and np.array_equal(self.nodes, other.nodes)
            and np.array_equal(self.sample_mV, other.sample_mV)
        )


def run_tree(
    protocols: Sequence[Protocol],
    currents: Sequence[np.ndarray | None],
    weights: Sequence[np.ndarray | None],
    windows: bool = False,
    ligands: Sequence[str] = (),
) -> RunTree:
    """Return the tree of runs of some experiments.

    Runs of weight 0 that lead to no run with a weight are left out: a sweep that is held out, and
    the end of one after its last sample that counts, take no time when candidates are scored.

    Arguments:
        protocols: one an experiment.
        currents: (n_sweeps, n_times_max) pA each, or None to simulate only.
        weights: (n_sweeps, n_times_max) each, or None for 1 everywhere (0 when simulating only).
        windows: whether samples of weight 0 are left out: one step leads over all of them.
        ligands: names of the model's, in its order.

    Raises: InputError for a protocol with other ligands.
    """
    roots: dict[Level, list[RunNode]] = {}
    outputs = []
    for k, (protocol, weight) in enumerate(zip(protocols, weights, strict=True)):
        outputs.append(np.full((protocol.n_sweeps, protocol.n_times_max), -1, dtype=np.int64))
        for start, course in courses(protocol, weight, windows, ligands):
            level = roots.setdefault(start, [])
            for sweep, run in course:
                level = _insert(level, run, _Member(k, sweep, run.samples, run.weight))
    traced = {k for k, weight in enumerate(weights) if weight is None}
    grown = {holding: _pruned(level, traced) for holding, level in roots.items()}
    return _Flattener(currents, outputs).flatten({v: level for v, level in grown.items() if level})


def courses(
    protocol: Protocol,
    weight: np.ndarray | None,
    windows: bool = False,
    ligands: Sequence[str] = (),
) -> list[tuple[Level, list[tuple[int, RunNode]]]]:
    """Return each start from the steady state, and the runs that follow it, each with its sweep."""
    commands = protocol.commanded(ligands)
    solutions = [one.course(protocol.carry_over, protocol.rest_ms) for one in commands]
    finest = (MAX_STEP_MV, *(one.largest_mM * MAX_STEP_SHARE or 1.0 for one in commands))
    h, found = protocol.sampling_ms, list[tuple[Level, list[tuple[int, RunNode]]]]()
    for k in range(protocol.n_sweeps):
        row = None if weight is None else weight[k]
        sweep = [piece for segment in protocol.sweeps[k] for piece in _pieces(segment)]
        rows = [sweep, *(solution[k][1] for solution in solutions)]
        runs = list[RunNode]()
        for command in together(rows, finest):
            first = math.ceil(command.start_ms / h - TIME_TOLERANCE)
            last = min(protocol.n_times(k), math.ceil(command.end_ms / h - TIME_TOLERANCE))
            runs.extend(_command_runs(command, first, last, h, row, windows))
        if not protocol.carry_over or not found:
            start = (protocol.holding_mV, *(one.holding_mM[k] for one in commands))
            found.append((start, [(k, run) for run in runs]))
            continue
        if protocol.rest_ms > 0:
            rest = [Segment(0.0, protocol.rest_ms, Constant(protocol.resting_mV))]
            for command in together([rest, *(solution[k][0] for solution in solutions)], finest):
                unsampled = _unsampled(command, command.start_ms, command.end_ms)
                found[0][1].extend((k, run) for run in unsampled)
        found[0][1].extend((k, run) for run in runs)
    return found


def _insert(level: list[RunNode], run: RunNode, member: _Member) -> list[RunNode]:
    """Find a run of the same course on a level, or add it there; return its children."""
    node = next((other for other in level if other.same_course(run)), None)
    if node is None:
        node = run
        level.append(node)
    if len(member.samples):
        node.members.append(member)
    return node.children


def _pruned(roots: list[RunNode], traced: set[int]) -> list[RunNode]:
    """Return the roots, after branches that lead to no sample that counts have been cut off.

    Arguments:
        traced: the indices of experiments of which every sample is simulated.
    """
    in_order, stack = [], list(roots)
    while stack:
        in_order.append(stack.pop())
        stack += in_order[-1].children
    kept: set[int] = set()
    for run in reversed(in_order):  # children before their parents
        run.children = [child for child in run.children if id(child) in kept]
        counts = any(m.weight > 0 or m.experiment in traced for m in run.members)
        if run.children or counts:
            kept.add(id(run))
    return [run for run in roots if id(run) in kept]


def _pieces(segment: Segment) -> Iterator[Segment]:
    """Yield the parts of a segment; a recorded command that stands still is held."""
    wave = segment.wave
    if not isinstance(wave, Samples):
        yield segment
        return
    t = np.append(wave.times_ms, np.inf) + segment.start_ms
    still = np.append(np.diff(wave.v_mV) == 0, True)
    edges = np.flatnonzero(np.diff(still.astype(np.int8))) + 1
    bounds = np.concatenate(([segment.start_ms], t[edges], [segment.end_ms]))
    starts_still = still[np.concatenate(([0], edges))]
    for begin, end, held in zip(bounds[:-1], bounds[1:], starts_still, strict=True):
        begin, end = max(begin, segment.start_ms), min(end, segment.end_ms)
        if end <= begin:
            continue
        v = float(segment.voltage(np.array([begin]))[0])
        inner = (
            Constant(v) if held else Samples(wave.times_ms - (begin - segment.start_ms), wave.v_mV)
        )
        yield Segment(begin, end, inner)


def _command_runs(
    command: Command, first: int, last: int, h: float, weight: np.ndarray | None, windows: bool
) -> Iterator[RunNode]:
    """Yield the runs up to the first sample, over the samples, and on to the boundary."""
    tiny = TIME_TOLERANCE * h
    if first >= last:
        yield from _unsampled(command, command.start_ms, command.end_ms)
        return
    if first * h - command.start_ms > tiny:
        yield from _unsampled(command, command.start_ms, first * h)
    for a, b, w in _stretches(first, last, weight):
        end = b * h
        if windows and w == 0:
            yield from _unsampled(command, a * h, command.end_ms if b == last else end)
            continue
        short = b == last and abs(command.end_ms - end) > tiny
        n_full = b - a - 1 if short else b - a
        if n_full:
            yield from _sampled(command, range(a, a + n_full), h, h, w)
        if short:
            yield from _sampled(command, range(b - 1, b), h, command.end_ms - (b - 1) * h, w)


def _stretches(
    first: int, last: int, weight: np.ndarray | None
) -> Iterator[tuple[int, int, float]]:
    """Yield the ranges [first, last) of samples of the same weight, each with that weight."""
    if weight is None:
        yield first, last, 0.0
        return
    w = weight[first:last]
    cuts = np.concatenate(([0], np.flatnonzero(np.diff(w)) + 1, [len(w)]))
    for a, b in pairwise(cuts):
        yield first + int(a), first + int(b), float(w[a])


def _unsampled(command: Command, begin: float, end: float) -> Iterator[RunNode]:
    if command.is_constant:
        yield RunNode(HELD, 1, _rounded(end - begin), _level(command, begin))
    else:
        yield _varying(command, np.array([begin]), end - begin, range(0), 0.0)


def _level(command: Command, t_ms: float) -> Level:
    return tuple(np.atleast_1d(command.levels(np.array(t_ms))).tolist())


def _sampled(
    command: Command, samples: range, h: float, dt: float, weight: float
) -> Iterator[RunNode]:
    t = np.arange(samples.start, samples.stop) * h
    if command.is_constant:
        level = _level(command, t[0])
        yield RunNode(
            HELD,
            len(t),
            _rounded(dt),
            level,
            samples=samples,
            weight=weight,
            sample_mV=np.full(len(t), level[0]),
        )
        return
    # Consecutive samples that need equally many sub-steps go together.
    n_sub = command.steps_in(t, dt)
    cuts = np.concatenate(([0], np.flatnonzero(np.diff(n_sub)) + 1, [len(t)]))
    for a, b in pairwise(cuts):
        part = range(samples.start + int(a), samples.start + int(b))
        yield _varying(command, t[a:b], dt, part, weight)


def _rounded(dt: float) -> float:
    """Return a duration rounded to 1e-9 ms, so that equal durations share a propagator."""
    return round(dt, 9)


def _varying(
    command: Command, begins: np.ndarray, dt: float, samples: range, weight: float
) -> RunNode:
    n_sub = int(command.steps_in(begins, dt).max())
    h = dt / n_sub
    sub = begins[:, None] + h * np.arange(n_sub)
    nodes = command.levels((sub[..., None] + h * NODES).ravel())
    at_samples = command.parts[0].voltage(begins) if len(samples) else np.empty(0)
    return RunNode(
        VARYING,
        len(begins),
        h,
        n_sub=n_sub,
        nodes=nodes,
        samples=samples,
        weight=weight,
        sample_mV=at_samples,
    )


class _Flattener:
    """Turns the nodes of the tree into arrays: gives out slots, propagators and places of data."""

    def __init__(self, currents: Sequence[np.ndarray | None], outputs: list[np.ndarray]) -> None:
        self.currents, self.outputs = currents, outputs
        self.levels: dict[Level, int] = {}
        self.tables: dict[tuple[int, float], int] = {}
        self.starts: list[int] = []
        self.rows: list[tuple[int, ...]] = []
        self.voltage: list[float] = []
        self.dt: list[float] = []
        self.weight: list[float] = []
        self.nodes: list[np.ndarray] = []
        self.sample_mV: list[np.ndarray] = []
        self.data: list[np.ndarray] = []
        self.n_data = self.n_nodes = self.n_slots = 0
        self.constant = self.total_weight = 0.0

    def flatten(self, roots: dict[Level, list[RunNode]]) -> RunTree:
        """Return the arrays of all runs below roots, sorted by what is held before them."""
        self.starts = [self._index(self.levels, level) for level in roots]
        for slot, children in enumerate(roots.values()):
            self._visit_all(children, slot, len(roots))
        levels = np.array(list(self.levels))
        voltages = levels[:, 0].copy() if levels.size else np.empty(0)
        return RunTree(
            voltages,
            levels if levels.ndim == 2 and levels.shape[1] > 1 else voltages,
            np.array(self.starts, dtype=np.int64),
            np.array([v for v, _ in self.tables], dtype=np.int64),
            np.array([dt for _, dt in self.tables]),
            np.array(self.rows, dtype=np.int64).reshape(-1, 8),
            np.array(self.voltage),
            np.array(self.dt),
            np.array(self.weight),
            _joined(self.nodes),
            _joined(self.sample_mV),
            _joined(self.data),
            self.constant,
            self.total_weight,
            self.n_slots,
            tuple(self.outputs),
        )

    def _visit_all(self, roots: list[RunNode], slot: int, free: int) -> None:
        """Visit depth first without recursion; the last child overwrites its parent's state."""
        stack = [(roots, 0, slot, free)]
        while stack:
            level, k, source, free = stack.pop()
            if k == len(level):
                continue
            target = source if k == len(level) - 1 else free
            stack.append((level, k + 1, source, free))
            self._emit(level[k], source, target)
            stack.append((level[k].children, 0, target, max(free, target + 1)))

    def _emit(self, run: RunNode, source: int, target: int) -> None:
        if run.kind == HELD:
            key = (self._index(self.levels, run.level), run.dt)
            table = self._index(self.tables, key)
        else:
            table = self.n_nodes
            self.nodes.append(run.nodes)
            self.n_nodes += len(run.nodes)
        weight = sum(m.weight for m in run.members)
        row = (
            run.kind,
            table,
            run.n,
            self.n_data,
            source,
            target,
            run.n_sub,
            int(bool(run.members)),
        )
        self.rows.append(row)
        self.voltage.append(run.level[0])
        self.dt.append(run.dt)
        self.weight.append(weight)
        self.n_slots = max(self.n_slots, source + 1, target + 1)
        if run.members:
            self._merge(run, weight)

    def _merge(self, run: RunNode, weight: float) -> None:
        n = len(run.sample_mV)
        for m in run.members:
            place = slice(m.samples.start, m.samples.stop)
            self.outputs[m.experiment][m.sweep, place] = self.n_data + np.arange(n)
        mean: np.ndarray = np.zeros(n)
        if weight > 0:
            rows = [(m.weight, self._current(m)) for m in run.members if m.weight > 0]
            mean = np.sum([w * d for w, d in rows], axis=0) / weight
            self.constant += float(sum(w * np.sum((d - mean) ** 2) for w, d in rows))
            self.total_weight += weight * n
        self.data.append(mean)
        self.sample_mV.append(run.sample_mV)
        self.n_data += n

    def _current(self, m: _Member) -> np.ndarray:
        current = self.currents[m.experiment]
        if current is None:
            raise ValueError("a weight without a recording")
        part: np.ndarray = current[m.sweep, m.samples.start : m.samples.stop]
        return part

    @staticmethod
    def _index(table: dict[Any, int], key: object) -> int:
        return table.setdefault(key, len(table))


def _joined(parts: Iterable[np.ndarray]) -> np.ndarray:
    parts = list(parts)
    return np.concatenate(parts) if parts else np.empty(0)


def by_sweep(out: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the currents of one experiment as (n_sweeps, n_times_max, n_candidates), pA.

    Where they are all that there is, in their order, they are not copied.

    Arguments:
        out: (n_data, n_candidates) pA, in the order of the tree's data.
        places: the experiment's element of `RunTree.outputs`. Samples after the end of a shorter
            sweep become NaN.
    """
    if places.size == len(out) and np.array_equal(places.ravel(), np.arange(len(out))):
        return out.reshape(*places.shape, -1)
    currents: np.ndarray = out[places]
    currents[places < 0] = np.nan
    return currents
