"""What a recording says about an exponential: tables for scores that need no samples.

On a run of n samples d_k at the interval h the sum of squares of a model that is a sum of
exponentials, y_k = sum_j w_j exp(-l_j k h), needs the data in one form only:

    sum_k y_k d_k = sum_j w_j D(l_j),    D(l) = sum_k d_k exp(-l k h).

D is smooth and belongs to the recording, not to the candidate. With y = 1 + l n h it is stored as
polynomials on cells of y, eight to every doubling: near l = 0 they are even in l, far out even in
log l, and the cell is read off the bits of y. Cells end where even the second sample is forgotten
(l h = 40); beyond, D is the first sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from channelfit.packing import DATA, HELD, KIND, N_SAMPLES, TABLE, Packed
from channelfit.schedule import schedule

#: Cells to a doubling of y: 2**CELL_BITS; a polynomial errs by 3e-13 of sum |d| there.
CELL_BITS = 3
DEGREE = 7
#: Largest l h with a cell of its own: exp(-40) = 4e-18.
_FORGOTTEN = 40.0


def n_cells(n: int) -> int:
    """Cells of a run of n samples, the last for whatever lies beyond."""
    return 2**CELL_BITS * math.ceil(math.log2(1 + _FORGOTTEN * n)) + 1


def transform_table(data: np.ndarray) -> np.ndarray:
    """The table of D for one run.

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
    powers = values @ np.linalg.inv(np.vander(nodes, increasing=True)).T
    coefficients = powers * (2.0 / width[:, None]) ** np.arange(DEGREE + 1)
    beyond = np.zeros((1, DEGREE + 1))
    beyond[0, 0] = data[0]
    return np.vstack([coefficients, beyond])


def _transform(data: np.ndarray, decay: np.ndarray) -> np.ndarray:
    """sum_k data_k exp(-decay k), in blocks so that two roots of n exponentials serve all n."""
    block = math.isqrt(len(data) - 1) + 1
    padded = np.zeros(-(-len(data) // block) * block)
    padded[: len(data)] = data
    inner = np.exp(-decay[..., None] * np.arange(block))
    outer = np.exp(-decay[..., None] * (block * np.arange(len(padded) // block)))
    total: np.ndarray = ((inner @ padded.reshape(-1, block).T) * outer).sum(axis=-1)
    return total


@dataclass(frozen=True)
class SpectralProgram:
    """What a closed-form kernel walks: a schedule with the recordings as transforms.

    jobs (n_jobs + 1,), visits (n_visits + 1,): where visits and runs begin.
    visit_v, visit_dt: (n_visits,) mV and ms.
    places: (n_walks + 1, 4) int32: source and target slot (-1: none), first row of the table, its last
        row counted from there.
    values: (n_walks + 1, 4): samples, ms in all, weight, sum of the data, pA. Both have an empty
        row at the end, for kernels that read ahead.
    start_v: (n_starts,) mV.
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
        return len(self.jobs) - 1


def moves(packed: Packed) -> bool:
    """Whether voltage varies anywhere on the way to a scored sample."""
    walked = schedule(packed).run
    return bool((packed.runs[walked, KIND] != HELD).any())


def spectral_program(packed: Packed, n_jobs: int = 1) -> SpectralProgram:
    """The program of a packed problem whose voltage is held wherever it matters.

    Raises: ValueError where voltage varies.
    """
    walk = schedule(packed, n_jobs, single_samples_anywhere=True)
    runs = packed.runs[walk.run]
    if (runs[:, KIND] != HELD).any():
        raise ValueError("voltage varies; only stepping can score that")
    dt = packed.table_dt[runs[:, TABLE]]
    values = np.column_stack([runs[:, N_SAMPLES], runs[:, N_SAMPLES] * dt, walk.weight,
                              np.zeros(len(runs))])  # fmt: skip
    places = np.zeros((len(runs), 4), dtype=np.int32)
    places[:, 0], places[:, 1] = walk.source, walk.target
    tables: list[np.ndarray] = []
    squares, n_rows = 0.0, 0
    for k, (row, weight) in enumerate(zip(runs, walk.weight, strict=True)):
        if weight <= 0:
            continue
        data = packed.data_pA[row[DATA] : row[DATA] + row[N_SAMPLES]]
        values[k, 3] = data.sum()
        squares += float(weight * (data @ data))
        if len(data) > 1:
            table = transform_table(data)
            places[k, 2:] = n_rows, len(table) - 1
            tables.append(table)
            n_rows += len(table)
    return SpectralProgram(
        walk.jobs.astype(np.int32), walk.visits.astype(np.int32), packed.voltages[walk.voltage],
        walk.dt, np.vstack([places, np.zeros((1, 4), np.int32)]),
        np.vstack([values, np.zeros((1, 4))]), packed.voltages[packed.start_voltage],
        np.vstack([*tables, np.zeros((1, DEGREE + 1))]), squares, walk.n_slots,
    )  # fmt: skip
