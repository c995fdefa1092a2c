"""The voltage of a cell for many parameter sets."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from channelfit.cells.cable import Cable, step_edges, weights
from channelfit.cells.cable_kernel import CableSource
from channelfit.cells.cell_file import Cell
from channelfit.cells.cuda import CellOnGpu
from channelfit.cells.kernel import CellSource
from channelfit.cells.membrane import CAPACITANCE, Membrane
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.reading.errors import InputError, shown
from channelfit.reading.memory import check
from channelfit.scoring.cpu import shared_kernel
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.machine_code import generated
from channelfit.scoring.machine.threads import usable_cores

#: What computes voltages; auto is cuda where there is a GPU that can be used.
BACKENDS = ("auto", "cpu", "cuda")


class CellSimulator:
    """Simulates a membrane; its kernel is compiled when it is first used.

    Arguments:
        backend: "cpu", all cores, or "cuda"; "auto" is cuda where there is a GPU.

    Attributes:
        source, cable_source: the CPU's texts, of one compartment and of a cable.

    Raises: InputError for another backend, or where there is no GPU that can be used.
    """

    def __init__(self, membrane: Membrane, backend: str = "cpu") -> None:
        self.membrane, self.backend = membrane, backend
        if not isinstance(backend, str) or backend not in BACKENDS:
            raise InputError(f"backend {shown(backend)} is not one of {', '.join(BACKENDS)}")
        if backend == "auto":
            self.backend = "cuda" if gpu.is_available() else "cpu"
        if self.backend == "cuda":
            self._on_gpu = CellOnGpu(membrane)

    @cached_property
    def source(self) -> CellSource:
        return CellSource(self.membrane)

    @cached_property
    def cable_source(self) -> CableSource:
        return CableSource(self.membrane)

    def simulate(
        self, cell: Cell, parameters: np.ndarray, currents: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return traces and statuses of parameter sets.

        Arguments:
            cell: with the same membrane.
            parameters: (n_parameters, n_sets) of the joined model.
            currents: whether the currents of the channels are asked for.

        Returns:
            (1 + n_channels or 1, n_traces, n_times, n_sets): the voltage, mV, then the current of
            each channel, pA, where `Cell.traces` says of which sweep and place. NaN where a set
            failed. And the status of each set (n_sets,), as of a candidate.

        Raises InputError: more than the memory can hold.
        """
        rows = 1 + len(self.membrane.channels) * currents
        shape = (rows, len(cell.traces), len(cell.times_ms), parameters.shape[1])
        check(shape[3], 16 * int(np.prod(shape[:3])), "parameter sets", key="sets")
        trace, status = np.empty(shape), np.empty(shape[3], np.int8)
        n_settle = round(cell.settle_ms / cell.step_ms)
        n_steps = n_settle + round(cell.duration_ms / cell.step_ms)
        grid = cell.step_ms * (np.arange(n_steps + 1) - n_settle)
        every = round(cell.sampling_ms / cell.step_ms)
        if cell.cable is None:
            name, source = "runCells", self.source
            arguments = [cell.stimulus.means(grid), n_settle, cell.step_ms, every]
        else:
            name, source = "runCable", self.cable_source
            arguments = _along(cell, cell.cable, grid, n_settle, every)
        parameters = np.ascontiguousarray(parameters, dtype=float)
        arguments.append(cell.initial_mV)
        if self.backend == "cuda":
            segments = 0 if cell.cable is None else cell.cable.segments
            self._on_gpu.run(name, parameters, arguments, segments, trace, status)
        else:
            arguments += [trace, status]
            run = generated(source.text, name)
            shared_kernel(run, parameters, arguments, source.lanes, usable_cores())
        status[(status == OK) & ~np.isfinite(trace).all(axis=(0, 1, 2))] = NOT_FINITE
        trace[..., status != OK] = np.nan
        return trace, status

    def errors(
        self, cell: Cell, parameters: np.ndarray, voltage: np.ndarray
    ) -> tuple[float, float]:
        """Return the largest differences, mV, of a set from the same with half the step.

        And from the same with three times as many segments, 0 of one compartment.

        Arguments:
            parameters: (n_parameters, 1); voltage: (n_traces, n_times) that was simulated of it.
        """
        finer = [replace(cell, step_ms=0.5 * cell.step_ms)]
        if cell.cable is not None:
            finer.append(replace(cell, cable=cell.cable.finer()))
        others = (self.simulate(c, parameters)[0][0, ..., 0] for c in finer)
        apart = [float(np.abs(voltage - other).max()) for other in others]
        return apart[0], apart[1] if len(apart) > 1 else 0.0


def _along(cell: Cell, cable: Cable, grid: np.ndarray, settled: int, every: int) -> list[Any]:
    """Return what the kernel of a cable gets of stimulus, steps, samples, segments and places."""
    check(len(grid), 500, "steps", key="step")  # bytes of times, weights and currents
    edges, fresh = step_edges(grid, cell.stimulus.jumps())
    samples = np.full(len(edges), -1)
    samples[np.searchsorted(edges, grid[settled::every])] = np.arange(len(cell.times_ms))
    capacitance = float(cell.membrane.values()[cell.membrane.row(CAPACITANCE)])
    return [
        cell.stimulus.ahead(edges),
        weights(edges, fresh),
        samples,
        cable.axial(capacitance),
        cable.recorded,
    ]
