"""`cell`: action potentials of a cell with fitted channels, for Python users and the command."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit.cells.cell_file import Cell, load_cell, read_cell
from channelfit.cells.results import BAND, CellResult, simulate_cell
from channelfit.front.progress import compilations_shown, screen_for
from channelfit.front.result import Fit
from channelfit.front.studies import Uncertainty
from channelfit.front.table import table_of
from channelfit.problem.statuses import OK
from channelfit.reading.documents import Section
from channelfit.reading.errors import Caution, InputError, shown
from channelfit.reading.files import write_text, writing
from channelfit.reading.plain import plain
from channelfit.results.report.terminal import SearchScreen
from channelfit.results.run_folder import file_name
from channelfit.results.run_state import json_text
from channelfit.results.uncertainty.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The file in messages about a call from Python, which has none.
CALL = Path("cell()")


class CellSimulation:
    """A simulated cell with all its parameter sets: what `channelfit.cell` returns.

    It has one run, ``control``, or two: ``changed`` is the cell with other scales of its channels.
    Of several sets, bands hold 95 %: columns end in ``_low`` and ``_high`` beside the median.

    Attributes:
        name: of the cell.
        summary: all numbers but those of single sets, as plain data.

    Example:
        >>> import channelfit as cf
        >>> found = cf.cell("models/cells/squid.yaml", scale={"k": 0.8}, progress=False)
        >>> found.voltage_mV["changed"].shape == (1, len(found.time_ms), 1)
        True
        >>> round(found.measures.loc["rate_Hz", "control"]), found.set_measures["control"]["spikes"]
        (68, array([[3.]]))
        >>> [file.name for file in found.save("squid")]
        ['squid.csv', 'squid-measures.csv', 'squid.png']
    """

    def __init__(self, found: CellResult) -> None:
        self._found, cell = found, found.cell
        self.name = cell.name
        failed = sum(int((run.status != OK).sum()) for run in found.runs.values())
        content = {
            "cell": cell.name,
            "sets": cell.n_sets,
            "sweeps": cell.stimulus.n_sweeps,
            "scales": found.scales,
            "backend": found.backend,
            "band_percent": [BAND[0], BAND[-1]],
            "step_ms": cell.step_ms,
            "step_error_mV": found.step_error,
            **({"segment_error_mV": found.segment_error} if cell.cable else {}),
            "failed": failed,
            "measures": self._rows(),
        }
        self.summary: dict[str, Any] = json.loads(json_text(content))

    def _rows(self) -> dict[str, dict[str, float]]:
        cell = self._found.cell
        one = cell.stimulus.n_sweeps == 1
        labels = [f"{x}_".removeprefix("sweep_1_" if one else "") for x in cell.labels]
        return {
            labels[trace] + name: {
                run + end: float(values[k])
                for run, values in ranges.items()
                for end, k in self._found.ends.items()
            }
            for trace, name, ranges in self._found.summary()
        }

    @property
    def time_ms(self) -> np.ndarray:
        """Times of the samples, (n_times,)."""
        return self._found.cell.times_ms

    @property
    def voltage_mV(self) -> dict[str, np.ndarray]:
        """The membrane potential by run, (n_sweeps, n_times, n_sets); NaN where a set failed.

        Of a cable all places of a sweep follow each other, and then those of the next sweep.
        """
        return {name: run.trace[0] for name, run in self._found.runs.items()}

    @property
    def currents_pA(self) -> dict[str, dict[str, np.ndarray]]:
        """The current of each channel by run and channel, (n_sweeps, n_times, n_sets).

        They flow under the cell's own potential. Raises: InputError where they were not kept.
        """
        if len(self._found.control.trace) == 1:
            raise InputError("they were not kept; simulate with currents=True", key="currents_pA")
        channels = self._found.cell.membrane.channels
        return {
            name: dict(zip(channels, run.trace[1:], strict=True))
            for name, run in self._found.runs.items()
        }

    @property
    def measures(self) -> Any:
        """A row a measure, of each sweep: the medians of the runs, their change, and bands.

        In the change each set is compared with itself. A DataFrame where pandas is installed, else
        a `Table`.
        """
        rows = self.summary["measures"]
        return table_of(rows, list(next(iter(rows.values()))))

    @property
    def set_measures(self) -> dict[str, dict[str, np.ndarray]]:
        """The measures of every set by run and name, (n_sweeps, n_sets); NaN without a spike."""
        return {name: dict(run.measures) for name, run in self._found.runs.items()}

    @property
    def bands(self) -> Any:
        """A row a time, ms: of each sweep and run the voltage, and currents that were kept.

        A DataFrame where pandas is installed, else a `Table`.
        """
        columns = {name: values.tolist() for name, values in self._found.bands().items()}
        cells = zip(*columns.values(), strict=True)
        rows = {
            round(t, 9): dict(zip(columns, row, strict=True))
            for t, row in zip(self.time_ms.tolist(), cells, strict=True)
        }
        return table_of(rows, list(columns))

    def plot(self) -> Figure:
        """Draw the stimulus, and voltage and kept currents of one set, with the bands of all."""
        from channelfit.cells.picture import cell_figure  # these load Matplotlib
        from channelfit.front.pictures import shown_in_notebooks

        return shown_in_notebooks(cell_figure(self._found))

    def save(self, prefix: str | os.PathLike[str] = ".") -> list[Path]:
        """Write ``PREFIX.csv``, the bands, ``PREFIX-measures.csv`` of every set, ``PREFIX.png``.

        Arguments:
            prefix: the path of the files without their endings; in a folder that is there they have
                the cell's name. Files that are there are replaced.

        Returns: the files. Raises: InputError where they cannot be written.
        """
        from channelfit.results.report.plots import save  # loads Matplotlib

        prefix = _path(prefix, "prefix", "a path")
        if prefix.is_dir():
            prefix /= file_name(self.name)
        endings = (".csv", "-measures.csv", ".png")
        files = [prefix.with_name(prefix.name + ending) for ending in endings]
        with writing(prefix):
            prefix.parent.mkdir(parents=True, exist_ok=True)
            write_text(files[0], self._found.trace_table())
            write_text(files[1], self._found.measure_table())
            save(self.plot(), files[2])
        return files

    def __repr__(self) -> str:
        runs = " and ".join(self._found.runs)
        return f"<CellSimulation of {self.name}: {runs}, {self.summary['sets']} parameter sets>"


def cell(
    cell: str | os.PathLike[str] | Mapping[str, Any],
    *,
    knock_out: str | Sequence[str] = (),
    scale: Mapping[str, float] | None = None,
    currents: bool = False,
    backend: str = "auto",
    progress: bool | None = None,
) -> CellSimulation:
    """Simulate a cell with fitted channels under current clamp, for all sets of their parameters.

    Arguments:
        cell: a cell file, or its keys as a mapping. In a mapping the ``model`` of a channel may be
            a `Model`, or a `Fit` for its fitted values, and its ``samples`` an
            `Uncertainty` with a posterior, or columns of values by parameter: a frame of pandas, or
            a mapping. Paths in it are relative to the present folder.
        knock_out: channels without which the cell is simulated once more.
        scale: factors of the currents of channels by name, with which it is simulated once more,
            such as ``{"k": 0.5}`` where a drug blocks half of a current.
        currents: whether the currents of all channels are kept: those under the cell's own
            potential, which an action-potential clamp measures.
        backend: what computes: "auto", "cpu" or "cuda". auto takes a GPU if there is one.
        progress: whether to show the work; None shows it in notebooks and on terminals.

    Returns: a `CellSimulation`: voltages, measures of action potentials, and their bands.

    Warns:
        InputWarning: what can be used but looks wrong.

    Raises:
        InputError: what cannot be used, with its place, value and what would be right.

    Example:
        >>> import channelfit as cf
        >>> model = cf.Model.load("models/k_hh_gate.yaml")
        >>> leak = {"conductance": "0.3 mS/cm2", "reversal": "-54.4 mV"}
        >>> axon = {
        ...     "membrane": {"area": "1000 um2", "leak": leak},
        ...     "channels": {
        ...         "na": {"model": "models/na_hh.yaml", "conductance": "120 mS/cm2"},
        ...         "k": {"model": model, "samples": {"gmax": [300, 360, 420]}},
        ...     },
        ...     "stimulus": {"pulses": [{"amplitude": "20 uA/cm2", "start": 5, "for": 1}]},
        ...     "duration": "20 ms",
        ... }
        >>> found = cf.cell(axon, knock_out="na", progress=False)
        >>> found.set_measures["control"]["spikes"], found.set_measures["changed"]["spikes"]
        (array([[1., 1., 1.]]), array([[0., 0., 0.]]))
    """
    if not isinstance(currents, bool | np.bool_):
        raise InputError(f"true or false was expected, not {shown(currents)}", key="currents")
    if isinstance(cell, Mapping):
        doubts: list[Caution] = []
        read = read_cell(Section(_document(cell, doubts), CALL))
        read = replace(read, cautions=(*doubts, *read.cautions))
    else:
        read = load_cell(_path(cell, "cell", "a path, or a mapping of the keys of a cell file,"))
    knocked = [knock_out] if isinstance(knock_out, str) else knock_out
    scales = factors(knocked, {} if scale is None else scale)
    with screen_for(read.name, progress) as screen:
        return simulated(read, scales, currents, backend, screen)


def simulated(
    cell: Cell, scales: Mapping[str, float], currents: bool, backend: str, screen: SearchScreen
) -> CellSimulation:
    """Simulate a cell, and show on a screen what is done and what looks wrong."""
    with compilations_shown(screen):
        screen.warn(cell.cautions)
        screen.begin(f"simulating {cell.n_sets:,} parameter sets")
        return CellSimulation(simulate_cell(cell, scales, currents, backend))


def _path(given: Any, key: str, expected: str) -> Path:
    if not isinstance(given, str | os.PathLike):
        raise InputError(f"{expected} was expected, not {shown(given)}", key=key)
    return Path(given)


def factors(knock_out: Sequence[str], scale: Mapping[str, Any]) -> dict[str, float]:
    """Return the factors of currents by channel. Raises: InputError for what is no factor."""
    many = isinstance(knock_out, Iterable) and not isinstance(knock_out, bytes)
    if not many or not all(isinstance(name, str) for name in knock_out):
        what = f"names of channels were expected, not {shown(knock_out)}"
        raise InputError(what, key="knock_out")
    if not isinstance(scale, Mapping):
        what = f"a mapping of channels to factors was expected, not {shown(scale)}"
        raise InputError(what, key="scale")
    found = dict.fromkeys(knock_out, 0.0)
    for name, factor in scale.items():
        number = isinstance(factor, int | float | np.integer | np.floating)
        if not number or isinstance(factor, bool) or not 0 <= factor < math.inf:
            what = f"a factor of 0 or more was expected, not {shown(factor)}"
            raise InputError(what, key=f"scale of {name}")
        if name in found:
            raise InputError("the channel is knocked out, too", key=f"scale of {name}")
        found[name] = float(factor)
    return found


def _document(given: Mapping[str, Any], doubts: list[Caution]) -> dict[str, Any]:
    """Return the keys of a cell as plain data, but for models and samples in memory.

    Arguments:
        doubts: of the samples are added to them.
    """
    rows = given.get("channels")
    found = plain({key: value for key, value in given.items() if key != "channels"})
    if isinstance(rows, Mapping):
        found["channels"] = {name: _channel(name, row, doubts) for name, row in rows.items()}
    elif "channels" in given:
        found["channels"] = plain(rows, "channels")
    return {"name": "cell", **found}


def _channel(name: str, row: Any, doubts: list[Caution]) -> Any:
    """Return the keys of a channel as plain data, but for a model and samples in memory."""
    place, found = f"channels.{name}", {}
    if not isinstance(row, Mapping):
        return plain(row, place)
    for key, value in row.items():
        if key == "samples":
            value = _samples(value, f"{place}.{key}", doubts)
        elif isinstance(value, Fit):
            value = value.model
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        found[key] = value if key in ("model", "samples") else plain(value, f"{place}.{key}")
    return found


def _samples(given: Any, place: str, doubts: list[Caution]) -> Any:
    """Return samples of parameters as columns by name; a path, and what is none, as it is."""
    if isinstance(given, Uncertainty):
        if given.posterior is None:
            what = "has no posterior; say in uncertainty(posterior=..) how many steps to sample"
            raise InputError(what, CALL, place)
        given = given.posterior
    if isinstance(given, Posterior):
        advice = "the bands rest on these samples"
        doubts += [Caution(f"{CALL}: {place}", text, advice) for text in given.warnings]
        return dict(zip(given.names, given.samples, strict=True))
    if hasattr(given, "columns"):  # a frame of pandas
        return {name: given[name] for name in given.columns}
    return given
