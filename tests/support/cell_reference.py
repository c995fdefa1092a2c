"""The voltage of a cell by SciPy, with the rates of the reference backend."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy.integrate import solve_ivp

from channelfit.cells.cell_file import Cell
from channelfit.cells.membrane import CAPACITANCE
from channelfit.scoring.reference import Population

#: Relative tolerance.
_TOLERANCE = 1e-10


def reference(cell: Cell, values: np.ndarray) -> np.ndarray:
    """Return the voltage of one parameter set by SciPy's LSODA: (n_sweeps, n_times) mV.

    It shares nothing with the kernel but the joined model: its rates are those of the reference
    backend, and it stops at every corner of the stimulus.
    """
    model = cell.membrane.model
    population = Population(model, np.asarray(values, dtype=float)[:, None])
    capacitance = values[cell.membrane.row(CAPACITANCE)]
    sizes = np.cumsum([len(chain.states) for chain in model.chains])[:-1]

    def slope(t: float, y: np.ndarray, sweep: int, middle: float) -> np.ndarray:
        v = float(y[0])
        population.drives.clear()
        parts = np.split(y[1:], sizes)
        current = population.current([x[None] for x in parts], v)[0]
        out = [(_injected(cell, t, sweep, middle) - current) / capacitance]
        for chain, x in zip(model.chains, parts, strict=True):
            rates = population.rates(chain, np.array([v]))[0, 0]
            out += list(rates @ x - rates.sum(axis=0) * x)
        return np.array(out)

    times, start = cell.times_ms, -cell.settle_ms
    corners = cell.stimulus.corners()
    inner = corners[(corners > start) & (corners < cell.duration_ms)]
    edges = np.concatenate([[start], inner, [cell.duration_ms]])
    found = np.full((cell.stimulus.n_sweeps, len(times)), np.nan)
    resting = np.concatenate([x[0] for x in population.steady_state(cell.initial_mV)])
    for sweep in range(len(found)):
        y = np.append(cell.initial_mV, resting)
        for left, right in pairwise(edges):
            here = (times >= left - 1e-9) & (times <= right + 1e-9)
            asked = np.clip(times[here], left, right)
            middle = 0.5 * (left + right)
            run = solve_ivp(
                slope,
                (left, right),
                y,
                "LSODA",
                t_eval=np.unique(np.append(asked, right)),
                args=(sweep, middle),
                rtol=_TOLERANCE,
                atol=_TOLERANCE,
            )
            found[sweep, here] = run.y[0, np.searchsorted(run.t, asked)]
            y = run.y[:, -1]
    return found


def _injected(cell: Cell, t_ms: float, sweep: int, middle_ms: float) -> float:
    """Return the stimulus: pulses as in the middle of this piece, a recorded current at t."""
    total = 0.0
    for pulse in cell.stimulus.pulses:
        starts = pulse.start_ms + pulse.every_ms * np.arange(pulse.count)
        on = np.count_nonzero((middle_ms >= starts) & (middle_ms < starts + pulse.length_ms))
        total += on * pulse.amplitudes[sweep % len(pulse.amplitudes)]
    times, current = cell.stimulus.times_ms, cell.stimulus.current_pA
    if len(times):
        total += float(np.interp(t_ms, times, current, left=0.0, right=0.0))
    return total
