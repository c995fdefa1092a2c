"""The voltage of a cell by SciPy, with the rates of the reference backend."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.integrate import solve_ivp

from channelfit.cells.cell_file import Cell
from channelfit.cells.membrane import CAPACITANCE, CellChannel, joined
from channelfit.cells.stimulus import Pulse, Stimulus
from channelfit.model.model_file import load_model
from channelfit.scoring.reference import Population

#: Relative tolerance.
_TOLERANCE = 1e-10


def bent(folder: Path) -> Cell:
    """A cell of a permeability and a rectification with a kink and a definition, for 3 ms."""
    (folder / "ca.yaml").write_text(
        "temperature: 34 degC\ngates:\n  m: {power: 2, inf: 1/(1 + exp(-(v + 30)/6)), tau: '1'}\n"
        "current: {permeability: p, ion: {valence: 2, inside: 100 nM, outside: 2 mM}}\n"
        "parameters: {p: {range: [0.1, 1000], unit: um3/ms, value: 300}}\n"
    )
    (folder / "kir.yaml").write_text(
        "gates:\n  n: {inf: 1/(1 + exp(-(v + 60)/9)), tau: '2'}\ndefinitions: {u: (v + 80)/10}\n"
        "current: {conductance: g, reversal: -80 mV,\n"
        "  rectification: '1/(1 + exp(u)) + max(0, u)/50'}\n"
        "parameters: {g: {range: [0.1, 1000], unit: nS, value: 30}}\n"
    )
    channels = [CellChannel(name, load_model(folder / f"{name}.yaml")) for name in ("ca", "kir")]
    return Cell(
        "bent",
        joined("bent", channels, 20.0, (1.0, -60.0)),
        Stimulus((Pulse((300.0,), 0.5, 2.0),)),
        *(-75.0, 0.0, 3.0, 0.01, 0.1),
    )


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
