"""The products of a recording with exponentials: tables for scores that need no samples.

On a run of n samples d_k at the interval h the sum of squares of a model that is a sum of
exponentials, y_k = sum_j w_j exp(-l_j k h), needs the data in one form only:

    sum_k y_k d_k = sum_j w_j D(l_j),    D(l) = sum_k d_k exp(-l k h).

D is smooth and belongs to the recording, not to the candidate. With y = 1 + l n h it is stored as
polynomials on cells of y, sixteen to every doubling: near l = 0 they are even in l, far out even in
log l, and the cell is read off the bits of y. Cells end where even the second sample is forgotten
(l h = 40); beyond, D is the first sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from channelfit.problem.run_tree import DATA, HELD, KIND, N_SAMPLES, TABLE, RunTree
from channelfit.scoring.layout.visit_order import needed_runs, schedule
from channelfit.scoring.machine.arrays import product
from channelfit.scoring.machine.kernel_math import CELL_BITS

#: Of the polynomials on the 2**CELL_BITS cells to a doubling of y, which err by up to 5e-12 of
#: sum |d|. Fewer cells of a higher degree would err less, and cost more multiplications.
DEGREE = 5
#: Largest l h with a cell of its own: exp(-40) = 4e-18.
_FORGOTTEN = 40.0


def n_cells(n: int) -> int:
    """Return the number of cells in the table of n samples, the last for anything beyond."""
    return int(2**CELL_BITS * math.ceil(math.log2(1 + _FORGOTTEN * n)) + 1)


def transform_table(data: np.ndarray) -> np.ndarray:
    """Return the table of D for one run.

    Arguments:
        data: (n,) in any unit, n >= 1.

    Returns: (n_cells, DEGREE + 1), the coefficients, from the constant up, of polynomials in
    y - y_c, y = 1 + l n h and y_c the middle of the cell.
    """
    n = len(data)
    cells = np.arange(n_cells(n) - 1)
    octave, place = cells >> CELL_BITS, cells & (2**CELL_BITS - 1)
    width = 2.0 ** (octave - CELL_BITS)
    middle = 2.0**octave + (place + 0.5) * width
    nodes = np.cos(np.pi * (np.arange(DEGREE + 1) + 0.5) / (DEGREE + 1))
    y = middle[:, None] + 0.5 * width[:, None] * nodes
    values = _transform(data, (y - 1) / n)
    powers = product(values, _powers())
    coefficients = powers * (2.0 / width[:, None]) ** np.arange(DEGREE + 1)
    beyond = np.zeros((1, DEGREE + 1))
    beyond[0, 0] = data[0]
    return np.vstack([coefficients, beyond])


def _transform(data: np.ndarray, decay: np.ndarray) -> np.ndarray:
    """Return sum_k data_k exp(-decay k), in blocks: two roots of n exponentials serve all n."""
    block = math.isqrt(len(data) - 1) + 1
    padded = np.zeros(-(-len(data) // block) * block)
    padded[: len(data)] = data
    inner = np.exp(-decay[..., None] * np.arange(block))
    outer = np.exp(-decay[..., None] * (block * np.arange(len(padded) // block)))
    total: np.ndarray = (product(inner, padded.reshape(-1, block).T) * outer).sum(axis=-1)
    return total


@cache
def _powers() -> np.ndarray:
    """Return the matrix from values at Chebyshev's nodes to coefficients of powers."""
    angles = np.pi * (np.arange(DEGREE + 1) + 0.5) / (DEGREE + 1)
    degrees = np.arange(DEGREE + 1)
    series = np.cos(degrees * angles[:, None]) * np.where(degrees, 2.0, 1.0) / (DEGREE + 1)
    powers = np.zeros((DEGREE + 1, DEGREE + 1))
    for degree, one in enumerate(np.eye(DEGREE + 1)):
        found = np.polynomial.chebyshev.cheb2poly(one[: degree + 1])
        powers[degree, : len(found)] = found
    return product(series, powers)


@dataclass(frozen=True)
class SpectralWalk:
    """A schedule for kernels that sum modes, with each run's part of its recording.

    jobs (n_jobs + 1,), visits (n_visits + 1,): int32, the first visit and run of each.
    visit_v: (n_visits,) mV; visit_dt: (n_visits, 2) ms between samples, and of the shortest run.
    places: (n_runs + 1, 4) int32: source and target slot (-1: none), first row of the table, its
        last row counted from there.
    values: (n_runs + 1, 4): samples, ms in all, weight, sum of the data, pA. Both end in an empty
        row, for kernels that read ahead.
    start_v: (n_starts,) mV; with ligands these two have their concentrations, as in
        `RunTree.levels`.
    tables: (n_rows, DEGREE + 1), see `transform_table`.
    data_squares: sum w d^2 over everything scored, pA^2; n_slots: state slots.
    """

    jobs: np.ndarray
    visits: np.ndarray
    visit_v: np.ndarray
    visit_dt: np.ndarray
    places: np.ndarray
    values: np.ndarray
    start_v: np.ndarray
    tables: np.ndarray
    data_squares: float
    n_slots: int

    @property
    def n_jobs(self) -> int:
        """The number of jobs of the walk."""
        return len(self.jobs) - 1


def voltage_varies(tree: RunTree) -> bool:
    """Return whether voltage varies anywhere on the way to a scored sample."""
    return bool((tree.runs[needed_runs(tree), KIND] != HELD).any())


def spectral_walk(tree: RunTree, n_jobs: int = 1) -> SpectralWalk:
    """Return the walk through a tree of runs, if all that a score needs are at held voltages.

    Arguments:
        n_jobs: see `visit_order.schedule`.

    Raises: ValueError where voltage varies.
    """
    order = schedule(tree, n_jobs, single_samples_anywhere=True)
    if (tree.runs[order.run, KIND] != HELD).any():
        raise ValueError("voltage varies; only stepping can score that")
    recording = _RunTables()
    visits, shortest = [0], []
    places: list[tuple[int, int, int, int]] = []
    values: list[tuple[float, float, float, float]] = []
    squares = 0.0
    for visit, dt in enumerate(order.dt):
        for k in range(order.visits[visit], order.visits[visit + 1]):
            row, weight = tree.runs[order.run[k]], float(order.weight[k])
            n, target = int(row[N_SAMPLES]), int(order.target[k])
            span = n * float(tree.table_dt[row[TABLE]])
            if weight > 0:
                data = tree.data_pA[row[DATA] : row[DATA] + n]
                squares += weight * float(product(data[None], data[:, None])[0, 0])
                # A single sample may stand at the end of an interval of its own: scored as if it
                # were of the visit's, and walked through without being scored.
                apart = n == 1 and span != dt
                end, scored_span = (-1, float(dt)) if apart else (target, span)
                places.append((order.source[k], end, *recording.add(data)))
                values.append((n, scored_span, weight, data.sum()))
                if not apart:
                    continue
            if target >= 0:
                places.append((order.source[k], target, 0, 0))
                values.append((n, span, 0.0, 0.0))
        spans = [v[1] / v[0] for v in values[visits[-1] :]]
        shortest.append(min(spans, default=float(dt)))
        visits.append(len(places))
    places.append((0, -1, 0, 0))
    values.append((1.0, 1.0, 0.0, 0.0))
    return SpectralWalk(
        order.jobs.astype(np.int32),
        np.array(visits, np.int32),
        tree.levels[order.voltage],
        np.column_stack([order.dt, shortest]).reshape(-1, 2),
        np.array(places, np.int32),
        np.array(values),
        tree.levels[tree.start_voltage],
        recording.joined(),
        squares,
        order.n_slots,
    )


class _RunTables:
    """The tables of runs, one after the other."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []
        self.n = 0

    def add(self, data: np.ndarray) -> tuple[int, int]:
        """Add data (n,); return their first row, and the last row of their table, counted in it."""
        # a single sample is its own transform
        rows = transform_table(data) if len(data) > 1 else np.eye(1, DEGREE + 1) * data[0]
        self.parts.append(rows)
        self.n += len(rows)
        return self.n - len(rows), len(rows) - 1

    def joined(self) -> np.ndarray:
        """Return all tables (n_rows, DEGREE + 1), and a row of zeros for reading ahead."""
        return np.concatenate([*self.parts, np.zeros((1, DEGREE + 1))])
