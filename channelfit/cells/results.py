"""The result of a simulated cell: traces, measures with their ranges over sets, tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from channelfit.cells.cell_file import Cell
from channelfit.cells.simulation import CellSimulator
from channelfit.cells.spikes import VELOCITY, measures, velocities
from channelfit.problem.statuses import OK
from channelfit.reading.csv_tables import csv_rows, csv_table
from channelfit.reading.errors import InputError
from channelfit.reading.memory import check

#: The share of parameter sets within a band, and its ends in percent.
BAND = (2.5, 50.0, 97.5)
#: Numbers of the traces of all steps that are there at once, and sets that a kernel likes together.
_AT_ONCE, _TOGETHER = 1 << 26, 64
#: Of the cell as its file has it, and of the cell with changed channels.
CONTROL, CHANGED = "control", "changed"


@dataclass(frozen=True, eq=False)
class CellRun:
    """The cell with one setting of its channels.

    Attributes:
        trace: (n_rows, n_sweeps, n_times, n_sets): the voltage, mV, and where they were asked for
            the currents of the channels, pA; NaN where a set failed. Of a cable, n_sweeps times
            n_places traces, as `Cell.traces` has them.
        status: (n_sets,) 0 where a set was simulated.
        measures: by name, (n_sweeps, n_sets), or of every trace of a cable.
    """

    trace: np.ndarray
    status: np.ndarray
    measures: Mapping[str, np.ndarray]

    def band(self, row: int = 0) -> np.ndarray:
        """Return 2.5 %, median and 97.5 % over the sets, (3, n_sweeps, n_times)."""
        return percentiles(self.trace[row])

    @property
    def typical(self) -> int:
        """The parameter set whose voltage is nearest to the medians over the sets.

        The medians themselves are the course of no cell where spikes come at different times.
        """
        apart = np.abs(self.trace[0] - self.band()[1][..., None]).sum(axis=(0, 1))
        return int(np.nanargmin(apart))


def percentiles(values: np.ndarray) -> np.ndarray:
    """Return the percentiles `BAND` over the last axis, (3, ..); NaN where nothing is a number.

    A set with NaN is left out.
    """
    out = np.full((len(BAND), *values.shape[:-1]), np.nan)
    some = np.isfinite(values).any(axis=-1)
    if some.any():
        out[:, some] = np.nanpercentile(values[some], BAND, axis=-1)
    return out


@dataclass(frozen=True, eq=False)
class CellResult:
    """A simulated cell, with all its parameter sets.

    Attributes:
        cell: what was simulated.
        parameters: (n_parameters, n_sets), of the joined model of the membrane.
        control: the cell as the file has it.
        changed: with other scales of channels; None where none was asked for.
        scales: these, by channel.
        backend: what has computed it, cpu or cuda.
        step_error: mV, the largest difference of the first set from half the step.
        segment_error: mV, the same from three times as many segments; 0 of one compartment.
    """

    cell: Cell
    parameters: np.ndarray
    control: CellRun
    changed: CellRun | None = None
    scales: Mapping[str, float] = field(default_factory=dict)
    backend: str = "cpu"
    step_error: float = 0.0
    segment_error: float = 0.0

    @property
    def runs(self) -> dict[str, CellRun]:
        """The runs by name."""
        both = {CONTROL: self.control, CHANGED: self.changed}
        return {name: run for name, run in both.items() if run is not None}

    @property
    def ends(self) -> dict[str, int]:
        """The endings of the names of columns, and the places of their percentiles in `BAND`."""
        return {"_low": 0, "": 1, "_high": 2} if self.cell.n_sets > 1 else {"": 1}

    def summary(self) -> Iterator[tuple[int, str, dict[str, np.ndarray]]]:
        """Yield trace, measure and its percentiles (3,) by run; of two also of the difference.

        The difference is that of the same parameter set. Measures that no set has are left out.
        """
        runs = self.runs
        for trace in range(len(self.cell.traces)):
            for name in self.control.measures:
                values = {key: run.measures[name][trace] for key, run in runs.items()}
                if self.changed is not None:
                    values["change"] = values[CHANGED] - values[CONTROL]
                if any(np.isfinite(x).any() for x in values.values()):
                    yield trace, name, {key: percentiles(x) for key, x in values.items()}

    def bands(self) -> dict[str, np.ndarray]:
        """Return by name median and band of voltage and currents of each trace and run, (n_times,).

        Names end in _low, _high for 2.5 % and 97.5 %; without them where there is one set.
        """
        columns: dict[str, np.ndarray] = {}
        names = ["voltage_mV", *(f"{name}_pA" for name in self.cell.membrane.channels)]
        ends = self.ends
        for key, run in self.runs.items():
            for row in range(len(run.trace)):
                band = run.band(row)
                for trace, label in enumerate(self.cell.labels):
                    head = f"{label}_{key}_{names[row]}"
                    columns |= {head + end: band[k, trace] for end, k in ends.items()}
        return columns

    def trace_table(self) -> str:
        """Return CSV: time, and the `bands`."""
        return csv_table([("time_ms", self.cell.times_ms), *self.bands().items()], digits=9)

    def measure_table(self) -> str:
        """Return CSV: the measures of every run, trace and parameter set, a row each."""
        place_um = ["place_um"] if self.cell.cable else []
        rows: list[list[str | float | None]] = [
            ["run", "sweep", *place_um, "set", *self.control.measures]
        ]
        for key, run in self.runs.items():
            for trace, (sweep, place) in enumerate(self.cell.traces):
                where = [key, str(sweep + 1), *([place] if self.cell.cable else [])]
                for k in range(self.parameters.shape[1]):
                    values = (float(x[trace, k]) for x in run.measures.values())
                    rows.append([*where, str(k + 1), *(None if x != x else x for x in values)])
        return csv_rows(rows)


def simulate_cell(
    cell: Cell,
    scales: Mapping[str, float] | None = None,
    currents: bool = False,
    backend: str = "cpu",
) -> CellResult:
    """Simulate all parameter sets of a cell, and again with the currents of channels scaled.

    Arguments:
        scales: factors by channel; 0 knocks it out.
        currents: whether the currents of channels are kept: those under the cell's own potential,
            which an action-potential clamp measures.
        backend: as of `CellSimulator`.

    Raises InputError: a channel that is not there, currents of a cable, a backend that cannot run
    here, too little memory, or no set with a finite voltage.
    """
    check_changes(cell, scales or {}, currents)
    parameters = cell.parameters
    changed = cell.membrane.scaled(parameters, scales or {})
    simulator = CellSimulator(cell.membrane, backend)
    control = measured_run(simulator, cell, parameters, currents)
    errors = simulator.errors(cell, parameters[:, :1], control.trace[0, ..., 0])
    if not scales:
        return CellResult(cell, parameters, control, None, {}, simulator.backend, *errors)
    other = measured_run(simulator, cell, changed, currents)
    others = simulator.errors(cell, changed[:, :1], other.trace[0, ..., 0])
    worst = map(max, errors, others)
    runs = control, other, dict(scales)
    return CellResult(cell, parameters, *runs, simulator.backend, *worst)


def check_changes(cell: Cell, scales: Mapping[str, float], currents: bool) -> None:
    """Raise InputError for a channel that is not there, or currents of a cable."""
    if currents and cell.cable is not None:
        what = "they differ along a cable, and are kept of one compartment alone"
        raise InputError(what, key="currents")
    cell.membrane.scaled(cell.membrane.values()[:, None], scales)


def measured_run(
    simulator: CellSimulator, cell: Cell, parameters: np.ndarray, currents: bool
) -> CellRun:
    """Return samples, and the measures of all steps, of which some sets have room at a time."""
    whole = replace(cell, sampling_ms=cell.step_ms)
    rows = 1 + len(cell.membrane.channels) * currents
    n_sets, n_traces = parameters.shape[1], len(cell.traces)
    shape = rows, n_traces, len(cell.times_ms), n_sets
    check(n_sets, 16 * int(np.prod(shape[:3])), "parameter sets", key="sets")
    trace, status = np.empty(shape), np.empty(n_sets, np.int8)
    every = round(cell.sampling_ms / cell.step_ms)
    size = max(1, _AT_ONCE // (rows * n_traces * len(whole.times_ms)))
    size = size // _TOGETHER * _TOGETHER or size
    jumps, cable = cell.stimulus.jumps(), cell.cable
    # elsewhere along a cable the stimulus does not make the voltage jump
    at = None if cable is None else cable.segment(cable.at_um)
    places = [None if cable is None or x is None else cable.segment(x) for _, x in cell.traces]
    seen = [jumps if place == at else jumps[:0] for place in places]
    parts: list[dict[str, np.ndarray]] = []
    for first in range(0, n_sets, size):
        some = slice(first, first + size)
        found, status[some] = simulator.simulate(whole, parameters[:, some], currents)
        trace[..., some] = found[:, :, ::every]
        parts.append(measures(found[0], cell.step_ms, seen))
        if cable is not None:
            parts[-1][VELOCITY] = velocities(found[0], cell.step_ms, cable.distances_um)
    if (status != OK).all():
        raise InputError(
            "the voltage of no parameter set stays finite; a smaller `step` may help", key="step"
        )
    joined = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
    return CellRun(trace, status, joined)
