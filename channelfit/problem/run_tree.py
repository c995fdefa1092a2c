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
from channelfit.problem.waves import TIME_TOLERANCE, Constant, Samples, Segment

#: mV. Varying voltage is sub-stepped so that it moves no further than this in one step.
MAX_STEP_MV = 1.0
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

    voltages: (n_voltages,) distinct held voltages, mV.
    start_voltage: (n_starts,) index into `voltages`; state slot k starts at that steady state.
    table_voltage, table_dt: (n_tables,) index into `voltages`, and ms: one propagator each.
    runs: (n_runs, 8) int64, columns KIND .. SAMPLED. TABLE is the propagator of a held run, or the
        first element in `nodes_mV` of a varying one. SOURCE and TARGET are state slots.
    run_voltage: (n_runs,) mV (held); run_dt: (n_runs,) ms a sub-step (varying);
        run_weight: (n_runs,), 0 where nothing is scored.
    nodes_mV: command voltage at the NODES of every sub-step of every varying run.
    sample_mV: (n_data,) command voltage at each sample.
    data_pA: (n_data,); constant: the part of the sum of squares that merging removed, pA^2.
    total_weight: sum of the weights of all samples; n_slots: state slots in use.
    outputs: per experiment (n_sweeps, n_times_max) int64, where each sample's current is found
        in data order, -1 after the end of a shorter sweep and where nothing is computed.
    """

    voltages: np.ndarray
    start_voltage: np.ndarray
    table_voltage: np.ndarray
    table_dt: np.ndarray
    runs: np.ndarray
    run_voltage: np.ndarray
    run_dt: np.ndarray
    run_weight: np.ndarray
    nodes_mV: np.ndarray
    sample_mV: np.ndarray
    data_pA: np.ndarray
    constant: float
    total_weight: float
    n_slots: int
    outputs: tuple[np.ndarray, ...]


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
    voltage: float = math.nan
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
            and (self.voltage == other.voltage or self.kind == VARYING)
            and np.array_equal(self.nodes, other.nodes)
            and np.array_equal(self.sample_mV, other.sample_mV)
        )


def run_tree(
    protocols: Sequence[Protocol],
    currents: Sequence[np.ndarray | None],
    weights: Sequence[np.ndarray | None],
    windows: bool = False,
) -> RunTree:
    """Return the tree of runs of some experiments.

    Runs of weight 0 that lead to no run with a weight are left out: a sweep that is held out, and
    the end of one after its last sample that counts, take no time when candidates are scored.

    Arguments:
        protocols: one an experiment.
        currents: (n_sweeps, n_times_max) pA each, or None to simulate only.
        weights: (n_sweeps, n_times_max) each, or None for 1 everywhere (0 when simulating only).
        windows: whether samples of weight 0 are left out: one step leads over all of them.
    """
    roots: dict[float, list[RunNode]] = {}
    outputs = []
    for k, (protocol, weight) in enumerate(zip(protocols, weights, strict=True)):
        outputs.append(np.full((protocol.n_sweeps, protocol.n_times_max), -1, dtype=np.int64))
        for course in courses(protocol, weight, windows):
            level = roots.setdefault(protocol.holding_mV, [])
            for sweep, run in course:
                level = _insert(level, run, _Member(k, sweep, run.samples, run.weight))
    traced = {k for k, weight in enumerate(weights) if weight is None}
    grown = {holding: _pruned(level, traced) for holding, level in roots.items()}
    return _Flattener(currents, outputs).flatten({v: level for v, level in grown.items() if level})


def courses(
    protocol: Protocol, weight: np.ndarray | None, windows: bool = False
) -> list[list[tuple[int, RunNode]]]:
    """Return the runs that follow each start from the steady state, each with its sweep."""
    found: list[list[tuple[int, RunNode]]] = []
    for k in range(protocol.n_sweeps):
        row = None if weight is None else weight[k]
        runs = [(k, run) for run in _sweep_runs(protocol, k, row, windows)]
        if not protocol.carry_over or not found:
            found.append(runs)
            continue
        if protocol.rest_ms > 0:
            found[0].append((k, RunNode(HELD, 1, _rounded(protocol.rest_ms), protocol.resting_mV)))
        found[0].extend(runs)
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


def _sweep_runs(
    protocol: Protocol, k: int, weight: np.ndarray | None, windows: bool
) -> list[RunNode]:
    runs: list[RunNode] = []
    for segment, (first, last) in zip(protocol.sweeps[k], protocol.sample_ranges(k), strict=True):
        for piece, a, b in _pieces(segment, first, last, protocol.sampling_ms):
            runs.extend(_piece_runs(piece, a, b, protocol.sampling_ms, weight, windows))
    return runs


def _pieces(
    segment: Segment, first: int, last: int, h: float
) -> Iterator[tuple[Segment, int, int]]:
    """Yield the parts of a segment with their samples; a command that stands still is held."""
    wave = segment.wave
    if not isinstance(wave, Samples):
        yield segment, first, last
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
        a = max(first, math.ceil(begin / h - TIME_TOLERANCE))
        b = min(last, math.ceil(end / h - TIME_TOLERANCE))
        v = float(segment.voltage(np.array([begin]))[0])
        inner = (
            Constant(v) if held else Samples(wave.times_ms - (begin - segment.start_ms), wave.v_mV)
        )
        yield Segment(begin, end, inner), a, b


def _piece_runs(
    segment: Segment, first: int, last: int, h: float, weight: np.ndarray | None, windows: bool
) -> Iterator[RunNode]:
    """Yield the runs up to the first sample, over the samples, and on to the boundary."""
    tiny = TIME_TOLERANCE * h
    if first >= last:
        yield from _unsampled(segment, segment.start_ms, segment.end_ms)
        return
    if first * h - segment.start_ms > tiny:
        yield from _unsampled(segment, segment.start_ms, first * h)
    for a, b, w in _stretches(first, last, weight):
        end = b * h
        if windows and w == 0:
            yield from _unsampled(segment, a * h, segment.end_ms if b == last else end)
            continue
        short = b == last and abs(segment.end_ms - end) > tiny
        n_full = b - a - 1 if short else b - a
        if n_full:
            yield from _sampled(segment, range(a, a + n_full), h, h, w)
        if short:
            yield from _sampled(segment, range(b - 1, b), h, segment.end_ms - (b - 1) * h, w)


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


def _unsampled(segment: Segment, begin: float, end: float) -> Iterator[RunNode]:
    if segment.is_constant:
        yield RunNode(HELD, 1, _rounded(end - begin), float(segment.voltage(np.array([begin]))[0]))
    else:
        yield _varying(segment, np.array([begin]), end - begin, range(0), 0.0)


def _sampled(
    segment: Segment, samples: range, h: float, dt: float, weight: float
) -> Iterator[RunNode]:
    t = np.arange(samples.start, samples.stop) * h
    if segment.is_constant:
        v = segment.voltage(t[:1])[0]
        yield RunNode(
            HELD,
            len(t),
            _rounded(dt),
            float(v),
            samples=samples,
            weight=weight,
            sample_mV=np.full(len(t), v),
        )
        return
    # Consecutive samples that need equally many sub-steps go together.
    n_sub = _substeps(segment, t, dt)
    cuts = np.concatenate(([0], np.flatnonzero(np.diff(n_sub)) + 1, [len(t)]))
    for a, b in pairwise(cuts):
        part = range(samples.start + int(a), samples.start + int(b))
        yield _varying(segment, t[a:b], dt, part, weight)


def _rounded(dt: float) -> float:
    """Return a duration rounded to 1e-9 ms, so that equal durations share a propagator."""
    return round(dt, 9)


def _substeps(segment: Segment, begins: np.ndarray, dt: float) -> np.ndarray:
    """Return the number of sub-steps of each sample (n,), a power of two.

    In none of them the voltage moves by more than MAX_STEP_MV.
    """
    fine = begins[:, None] + dt * np.linspace(0, 1, 9)
    v = segment.voltage(np.clip(fine, segment.start_ms, segment.end_ms))
    moved = np.abs(np.diff(v, axis=1)).max(axis=1) * (fine.shape[1] - 1)
    # Rounding must not double the steps of a ramp of exactly 1 mV a sample.
    needed = np.maximum(1, moved / MAX_STEP_MV * (1 - 1e-9))
    return np.asarray(np.exp2(np.ceil(np.log2(needed))), dtype=np.int64)


def _varying(
    segment: Segment, begins: np.ndarray, dt: float, samples: range, weight: float
) -> RunNode:
    n_sub = int(_substeps(segment, begins, dt).max())
    h = dt / n_sub
    sub = begins[:, None] + h * np.arange(n_sub)
    nodes = segment.voltage(sub[..., None] + h * NODES)
    at_samples = segment.voltage(begins) if len(samples) else np.empty(0)
    return RunNode(
        VARYING,
        len(begins),
        h,
        n_sub=n_sub,
        nodes=nodes.ravel(),
        samples=samples,
        weight=weight,
        sample_mV=at_samples,
    )


class _Flattener:
    """Turns the nodes of the tree into arrays: gives out slots, propagators and places of data."""

    def __init__(self, currents: Sequence[np.ndarray | None], outputs: list[np.ndarray]) -> None:
        self.currents, self.outputs = currents, outputs
        self.voltages: dict[float, int] = {}
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

    def flatten(self, roots: dict[float, list[RunNode]]) -> RunTree:
        """Return the arrays of all runs below roots, sorted by their holding potential."""
        self.starts = [self._index(self.voltages, v) for v in roots]
        for slot, children in enumerate(roots.values()):
            self._visit_all(children, slot, len(roots))
        return RunTree(
            np.array(list(self.voltages)),
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
            key = (self._index(self.voltages, run.voltage), run.dt)
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
        self.voltage.append(run.voltage)
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
