"""The voltage of a cell for many parameter sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from channelfit.cells.cell_file import Cell
from channelfit.cells.kernel import CellSource
from channelfit.cells.membrane import Membrane
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.reading.memory import check
from channelfit.scoring.cpu import shared_kernel
from channelfit.scoring.machine.machine_code import generated
from channelfit.scoring.machine.threads import usable_cores


class CellSimulator:
    """Simulates a membrane on all cores; its kernel is compiled when it is first used.

    Attributes:
        source: the kernel's text.
    """

    def __init__(self, membrane: Membrane) -> None:
        self.membrane, self.source = membrane, CellSource(membrane)

    def simulate(
        self, cell: Cell, parameters: np.ndarray, currents: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return traces and statuses of parameter sets.

        Arguments:
            cell: with the same membrane.
            parameters: (n_parameters, n_sets) of the joined model.
            currents: whether the currents of the channels are asked for.

        Returns:
            (1 + n_channels or 1, n_sweeps, n_times, n_sets): the voltage, mV, then the current of
            each channel, pA. NaN where a set failed. And the status of each set (n_sets,), as of a
            candidate.

        Raises InputError: more than the memory can hold.
        """
        n_settle = round(cell.settle_ms / cell.step_ms)
        n_steps = n_settle + round(cell.duration_ms / cell.step_ms)
        edges = cell.step_ms * (np.arange(n_steps + 1) - n_settle)
        stimulus = cell.stimulus.means(edges)
        rows = 1 + len(self.membrane.channels) * currents
        shape = (rows, len(stimulus), len(cell.times_ms), parameters.shape[1])
        check(shape[3], 16 * int(np.prod(shape[:3])), "parameter sets", key="sets")
        trace, status = np.empty(shape), np.empty(shape[3], np.int8)
        every = round(cell.sampling_ms / cell.step_ms)
        arguments = [stimulus, n_settle, cell.step_ms, every, cell.initial_mV, trace, status]
        run = generated(self.source.text, "runCells")
        parameters = np.ascontiguousarray(parameters, dtype=float)
        shared_kernel(run, parameters, arguments, self.source.lanes, usable_cores())
        status[(status == OK) & ~np.isfinite(trace).all(axis=(0, 1, 2))] = NOT_FINITE
        trace[..., status != OK] = np.nan
        return trace, status

    def step_error(self, cell: Cell, parameters: np.ndarray) -> float:
        """Return the largest difference, mV, of one set (n_parameters, 1) from half the step."""
        finer = replace(cell, step_ms=0.5 * cell.step_ms)
        coarse, fine = (self.simulate(c, parameters)[0] for c in (cell, finer))
        return float(np.abs(coarse - fine).max())
