"""The order in which a kernel walks the runs: everything that one voltage needs, at once.

The work for a voltage (rates, propagator, eigenvalues) is done once a *visit*, which serves every
run at that voltage with a known starting state. The greedy order below computes nearly every
voltage once, although a kernel keeps only one at a time: it goes where nothing will be left to
come back for, and to shared tail and holding voltages last.

A large population keeps every core of a device busy with one thread a candidate. A small one does
not, so the tree of runs can be cut into *jobs* that are walked side by side. Runs at a cut are
walked by several jobs and scored by the first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from channelfit.problem.run_tree import HELD, KIND, N_SAMPLES, SOURCE, TABLE, TARGET, RunTree

#: The work of a visit, in samples: balances jobs.
_VISIT_WORK = 60
#: In place of an interval between samples: any will do.
_ANY = -1.0


@dataclass(frozen=True)
class Schedule:
    """Jobs of visits of runs. State slots 0 .. n_starts - 1 hold the steady states at the start.

    jobs: (n_jobs + 1,) the first visit of each job.
    visits: (n_visits + 1,) the first run of each visit.
    voltage: (n_visits,) index into `RunTree.voltages`, -1 for a visit of one varying run.
    dt: (n_visits,) ms between samples of the visit's runs (0 where varying).
    run: (n_walks,) index into `RunTree.runs`.
    source, target: (n_walks,) state slots; target is -1 where no run needs the end.
    weight: (n_walks,) of each sample, 0 where the run is only walked through.
    n_slots: state slots in use.
    """

    jobs: np.ndarray
    visits: np.ndarray
    voltage: np.ndarray
    dt: np.ndarray
    run: np.ndarray
    source: np.ndarray
    target: np.ndarray
    weight: np.ndarray
    n_slots: int

    @property
    def n_jobs(self) -> int:
        """The number of jobs into which the tree is cut."""
        return len(self.jobs) - 1


@dataclass
class _Node:
    """A run with its place in the tree; parent is -1 - k for the steady state k."""

    index: int
    parent: int
    children: list[int]


def schedule(
    tree: RunTree, n_jobs: int = 1, single_samples_anywhere: bool = False, traced: bool = False
) -> Schedule:
    """Return the walk through all runs that a score (or, traced, a simulation) needs.

    Arguments:
        n_jobs: the number of parts into which the tree is cut, at most that of its leaves.
        single_samples_anywhere: a run of one sample joins a visit of its voltage whatever the
            visit's interval (for kernels that need no propagator a sample).
        traced: every sampled run counts, not only those of weight above 0.
    """
    nodes = _tree(tree)
    requested = tree.runs[:, -1] != 0 if traced else tree.run_weight > 0
    needed = _needed(nodes, requested)
    parts = _cut(tree, nodes, needed, max(1, n_jobs))
    walk = _Scheduler(tree, nodes, single_samples_anywhere)
    scored: set[int] = set()
    for part in parts:
        walk.add(part, scored)
        scored |= part
    return walk.finished()


def needed_runs(tree: RunTree) -> list[int]:
    """Return the numbers of the runs that a score needs, ascending."""
    return sorted(_needed(_tree(tree), tree.run_weight > 0))


def _tree(tree: RunTree) -> list[_Node]:
    """Return the nodes of all runs: which run starts from the end of which, by their state slots.

    A run held where the channel already rests ends as it began, so those after it need not wait
    for it: they start from the steady state as well.
    """
    writer = {slot: -1 - slot for slot in range(len(tree.start_voltage))}
    nodes: list[_Node] = []
    for k, run in enumerate(tree.runs):
        parent = writer[int(run[SOURCE])]
        nodes.append(_Node(k, parent, []))
        if parent >= 0:
            nodes[parent].children.append(k)
        writer[int(run[TARGET])] = parent if _rests(tree, run, parent) else k
    return nodes


def _rests(tree: RunTree, run: np.ndarray, parent: int) -> bool:
    """Return whether a run holds the voltage of the steady state at which it starts."""
    held = parent < 0 and run[KIND] == HELD
    return held and tree.table_voltage[run[TABLE]] == tree.start_voltage[-1 - parent]


def _needed(nodes: list[_Node], requested: np.ndarray) -> set[int]:
    """Return the requested runs, and all runs that lead to them."""
    needed: set[int] = set()
    for node in reversed(nodes):
        if requested[node.index] or any(child in needed for child in node.children):
            needed.add(node.index)
    return needed


def _cut(tree: RunTree, nodes: list[_Node], needed: set[int], n_jobs: int) -> list[set[int]]:
    """Return parts of about equal work: some leaves each, with all runs that lead to them."""
    leaves = [k for k in sorted(needed) if not needed.intersection(nodes[k].children)]
    if n_jobs == 1 or len(leaves) < 2:
        return [needed]
    work = tree.runs[leaves, N_SAMPLES] + _VISIT_WORK
    share = (np.cumsum(work) - 0.5 * work) / work.sum()
    part_of = np.minimum((share * n_jobs).astype(int), n_jobs - 1)
    parts: dict[int, set[int]] = defaultdict(set)
    for leaf, part in zip(leaves, part_of.tolist(), strict=True):
        k = leaf
        while k >= 0 and k not in parts[part]:
            parts[part].add(k)
            k = nodes[k].parent
    return list(parts.values())


@dataclass
class _Slots:
    """Which run ended in which slot, which slots are free again, and how many there are."""

    of: dict[int, int]
    free: list[int]
    used: int

    def give(self, k: int) -> int:
        """Return the number of a free slot, which now holds the state at the end of run k."""
        if self.free:
            self.of[k] = self.free.pop()
        else:
            self.of[k] = self.used
            self.used += 1
        return self.of[k]


class _Scheduler:
    """The visits of a schedule, with a state slot from each end of a run to its last use."""

    def __init__(self, tree: RunTree, nodes: list[_Node], single_samples_anywhere: bool) -> None:
        self.tree, self.nodes = tree, nodes
        self.n_starts = len(tree.start_voltage)
        self.jobs, self.visits = [0], [0]
        self.voltage: list[int] = []
        self.dt: list[float] = []
        self.rows: list[tuple[int, int, int, float]] = []
        self.n_slots = self.n_starts
        #: (voltage, interval) of held runs; varying runs have keys of their own.
        self.keys: list[tuple[int, float]] = []
        for k, row in enumerate(tree.runs):
            table = row[TABLE]
            held = row[KIND] == HELD
            self.keys.append(
                (int(tree.table_voltage[table]), float(tree.table_dt[table]))
                if held
                else (-1 - k, 0.0)
            )
        single = (tree.runs[:, N_SAMPLES] == 1) | (tree.run_weight == 0)
        self.single = (single & single_samples_anywhere).tolist()

    def add(self, part: set[int], scored: set[int]) -> None:
        """Add one job: the runs in `part`, scored unless an earlier job did."""
        slots = _Slots({-1 - k: k for k in range(self.n_starts)}, [], self.n_starts)
        left = {k: len(part.intersection(self.nodes[k].children)) for k in part}
        ready = sorted(k for k in part if self.nodes[k].parent not in part)
        unready = Counter(self._claim(k) for k in part.difference(ready))
        while ready:
            key = self._choose(ready, unready)
            while members := [k for k in ready if self._belongs(k, key)]:
                ready = [k for k in ready if not self._belongs(k, key)]
                for k in members:
                    source, target = slots.of[self.nodes[k].parent], -1
                    if (parent := self.nodes[k].parent) >= 0:
                        left[parent] -= 1
                        if not left[parent]:
                            slots.free.append(source)
                    if left[k]:
                        target = slots.give(k)
                    weight = 0.0 if k in scored else float(self.tree.run_weight[k])
                    self.rows.append((k, source, target, weight))
                    children = part.intersection(self.nodes[k].children)
                    unready.subtract(self._claim(child) for child in children)
                    ready += children
                ready.sort()
            self.visits.append(len(self.rows))
            self.voltage.append(key[0])
            self.dt.append(key[1])
        self.jobs.append(len(self.voltage))
        self.n_slots = max(self.n_slots, slots.used)

    def _claim(self, k: int) -> tuple[int, float]:
        """Return the voltage, and mostly the interval,
        that a visit must have for a run to join it.
        """
        voltage, dt = self.keys[k]
        return (voltage, _ANY) if voltage >= 0 and self.single[k] else (voltage, dt)

    def _belongs(self, k: int, key: tuple[int, float]) -> bool:
        return self._claim(k) in (key, (key[0], _ANY))

    def _choose(self, ready: list[int], unready: Counter[tuple[int, float]]) -> tuple[int, float]:
        """Return the voltage and interval for which the fewest runs would still have to wait."""
        keys = [self.keys[k] for k in ready if not self.single[k]] or [self.keys[k] for k in ready]
        return min(keys, key=lambda key: unready[key] + unready[key[0], _ANY])

    def finished(self) -> Schedule:
        """Return the schedule of all jobs that were added."""
        voltage = [v if v >= 0 else -1 for v in self.voltage]
        run, source, target, weight = zip(*self.rows, strict=True) if self.rows else ((),) * 4
        return Schedule(
            np.array(self.jobs),
            np.array(self.visits),
            np.array(voltage, dtype=np.int64),
            np.array(self.dt),
            np.array(run, dtype=np.int64),
            np.array(source, dtype=np.int64),
            np.array(target, dtype=np.int64),
            np.array(weight),
            self.n_slots,
        )
