"""A cell file, read and checked: membrane, channels, stimulus and how to simulate them."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.cells.cable import Cable
from channelfit.cells.membrane import CAPACITANCE, LEAK, CellChannel, Membrane, joined
from channelfit.cells.stimulus import Pulse, Stimulus
from channelfit.model.channel import ChannelModel
from channelfit.model.model import Model
from channelfit.reading.csv_tables import delimiter_of
from channelfit.reading.documents import Section, read_membrane, read_yaml
from channelfit.reading.errors import Caution, InputError, shown
from channelfit.reading.keys import KEYS
from channelfit.reading.keys.cells import CHANNEL_NAME
from channelfit.reading.keys.shapes import Quantity
from channelfit.reading.tables import column, read_columns
from channelfit.reading.texts import decoded
from channelfit.reading.units import Membrane as Size
from channelfit.reading.units import parse_quantity, unit_factor
from channelfit.search.joined_files import FitFile, read_fit_file
from channelfit.search.overrides import override

#: pF/um2: the capacitance of a membrane of which only the area is known, 1 uF/cm2.
SPECIFIC_CAPACITANCE = 0.01
#: ms: a step of one compartment, and of a cable, for errors below 1e-4 of the amplitude.
STEP, CABLE_STEP = 0.01, 0.005
#: Steps, and samples, that a file may ask for.
_MOST_STEPS = 100_000_000
#: um, or Ohm cm: beyond all cables.
_GREATEST = 1e9


@dataclass(frozen=True)
class Cell:
    """One compartment, or a cable, under current clamp.

    Attributes:
        name: of the cell.
        membrane: with all channels.
        stimulus: of all sweeps.
        initial_mV, settle_ms: where the cell starts, and how long it is left alone before time 0.
        duration_ms, step_ms, sampling_ms: of a sweep.
        n_sets, seed: of the parameter sets.
        cautions: what looks wrong in the file and is used nevertheless.
        cable: its shape; None of one compartment.
        files: models, samples and currents that were read.
    """

    name: str
    membrane: Membrane
    stimulus: Stimulus
    initial_mV: float
    settle_ms: float
    duration_ms: float
    step_ms: float
    sampling_ms: float
    n_sets: int = 1
    seed: int = 0
    cautions: tuple[Caution, ...] = ()
    cable: Cable | None = None
    files: tuple[Path, ...] = ()

    @property
    def traces(self) -> list[tuple[int, float | None]]:
        """The sweep of each trace and its place, um; all places of a sweep, then the next one.

        One compartment has no place.
        """
        places: Sequence[float | None] = self.cable.record_um if self.cable else (None,)
        return [(sweep, place) for sweep in range(self.stimulus.n_sweeps) for place in places]

    @property
    def labels(self) -> list[str]:
        """The name of each trace, such as ``sweep_1``, or ``sweep_1_at_5000_um`` of a cable."""
        ends = ["" if place is None else f"_at_{place:.10g}_um" for _, place in self.traces]
        return [f"sweep_{s + 1}{end}" for (s, _), end in zip(self.traces, ends, strict=True)]

    @property
    def times_ms(self) -> np.ndarray:
        """Times of the samples, (n_times,)."""
        return self.sampling_ms * np.arange(round(self.duration_ms / self.sampling_ms) + 1)

    @property
    def parameters(self) -> np.ndarray:
        """The parameter sets, (n_parameters, n_sets), of the joined model."""
        return self.membrane.population(self.n_sets, self.seed)


def load_cell(path: Path, overrides: Sequence[str] = ()) -> Cell:
    """Return the cell of a file, changed by ``dotted.key=value`` for this call.

    Raises InputError: anything that cannot be used.
    """
    document = read_yaml(path)
    for text in overrides:
        override(document, text, path)
    return read_cell(Section(document, path))


def read_cell(root: Section) -> Cell:
    """Return the cell of a section of the keys of a cell file.

    From Python the `model` of a channel may be a `Model`, and its `samples` a mapping of columns.
    """
    root.expect(KEYS["cell"])
    for key in ("description", "source"):
        root.text(key)
    inner = root.section("membrane")
    inner.expect(KEYS["membrane"])
    cable = _read_cable(root.section("cable")) if "cable" in root else None
    if cable is not None and "area" in inner:
        raise inner.error("follows from the length and the diameter of the cable", "area")
    size = read_membrane(inner)
    if cable is not None:
        size = replace(size, area=cable.area_um2)
    if size.area is None and size.capacitance is None:
        raise inner.error("an area or a capacitance is needed")
    capacitance = size.capacitance
    if capacitance is None:
        assert size.area is not None
        capacitance = SPECIFIC_CAPACITANCE * size.area
        size = replace(size, capacitance=capacitance)
    celsius = inner.quantity("temperature") if "temperature" in inner else None
    leak = _read_leak(inner, size) if LEAK in inner else None
    channels, cautions = [], []
    files: list[Path] = []
    for name, row in root.rows("channels"):
        if name in (LEAK, CAPACITANCE) or not re.fullmatch(CHANNEL_NAME, name):
            what = "up to 16 letters and digits, and no name of the membrane, were expected"
            raise root.error(f"{what}, not {shown(name)}", "channels")
        section = Section(row, root.file, f"channels.{name}")
        channel, strange = _read_channel(section, name, size, celsius, files)
        channels.append(channel)
        cautions += strange
    if not channels:
        raise root.error("at least one channel is needed", "channels")
    name = root.text("name", Path(root.file).stem if root.file else "cell")
    times = {k: root.quantity(k) for k in ("initial", "settle", "duration")}
    times["step"] = root.quantity("step", default=STEP if cable is None else CABLE_STEP)
    sampling = root.quantity("sampling", default=times["step"])
    _check_times(root, times | {"sampling": sampling})
    n_rows = [c.samples.shape[1] for c in channels if c.samples is not None]
    if not n_rows and "sets" in root:
        raise root.error("no channel has `samples` from which sets could be drawn", "sets")
    injected = replace(size, used=set())
    cell = Cell(
        name,
        joined(name, channels, capacitance, leak),
        _read_stimulus(root.section("stimulus"), injected, files)
        if "stimulus" in root
        else Stimulus(),
        times["initial"],
        times["settle"],
        times["duration"],
        times["step"],
        sampling,
        root.integer("sets", max(n_rows, default=1)),
        root.integer("seed"),
        cable=cable,
    )
    root.finish()
    if cable is not None and injected.used:
        what = f"is at a place of a cable, and cannot be given per {', '.join(injected.used)}"
        raise root.error(f"{what}; give it in pA, nA or uA", "stimulus")
    late = [t for t in cell.stimulus.corners()[:1] if t >= cell.duration_ms]
    if late:
        text = f"begins at {late[0]:g} ms, after the sweep of {cell.duration_ms:g} ms"
        cautions.append(Caution(f"{root.file}: stimulus", text, "nothing is injected"))
    return replace(cell, cautions=tuple(cautions), files=tuple(files))


def _read_cable(section: Section) -> Cable:
    section.expect(KEYS["cable"])
    sizes = {key: section.quantity(key) for key in ("length", "diameter", "axial")}
    for key, size in sizes.items():
        if not 0 < size < _GREATEST:
            what = f"a size above 0, and below {_GREATEST:g}, was expected, not {size:g}"
            raise section.error(what, key)
    at, length = section.quantity("at"), sizes["length"]
    record = tuple(section.measured("record", value) for value in section.items("record"))
    for key, along in (("at", (at,)), ("record", record)):
        if outside := [x for x in along if not 0 <= x <= length]:
            what = f"{outside[0]:g} um is not on the cable, from 0 to {length:g} um"
            raise section.error(what, key)
    segments = section.integer("segments")
    cable = Cable(length, sizes["diameter"], segments, sizes["axial"], at, record)
    recorded = cable.recorded
    if not len(recorded):
        raise section.error("at least one place was expected", "record")
    if len(set(recorded)) < len(recorded):
        raise section.error(f"two places are in the same of {segments} segments", "record")
    section.finish()
    return cable


def _check_times(root: Section, times: dict[str, float]) -> None:
    """Raise InputError for times that are no whole steps, or too many."""
    step = times["step"]
    for key in ("duration", "step", "sampling"):
        if not times[key] > 0:
            raise root.error(f"a time above 0 was expected, not {times[key]:g} ms", key)
    if times["settle"] < 0:
        raise root.error("a time of 0 or more was expected", "settle")
    for key, unit in (("sampling", step), ("duration", times["sampling"]), ("settle", step)):
        if abs(times[key] / unit - round(times[key] / unit)) > 1e-6:
            raise root.error(f"{times[key]:g} ms is no multiple of {unit:g} ms", key)
    if (times["duration"] + times["settle"]) / step > _MOST_STEPS:
        raise root.error(f"more than {_MOST_STEPS:,} steps of {step:g} ms", "duration")


def _sized(section: Section, key: str, dimension: str, size: Size, value: object) -> float:
    try:
        return parse_quantity(value, dimension, size)
    except InputError as error:
        raise error.at(section.file, section.path(key)) from None


def _read_leak(membrane: Section, size: Size) -> tuple[float, float]:
    leak = membrane.section(LEAK)
    leak.expect(KEYS["leak"])
    conductance = _sized(leak, "conductance", "conductance", size, leak.take("conductance"))
    if conductance < 0:
        raise leak.error("a conductance of 0 or more was expected", "conductance")
    return conductance, _sized(leak, "reversal", "voltage", size, leak.take("reversal"))


def _read_channel(
    section: Section, name: str, size: Size, celsius: float | None, files: list[Path]
) -> tuple[CellChannel, list[Caution]]:
    section.expect(KEYS["cell channel"])
    fit_file = _model_of(section, files)
    if fit_file.is_function:
        raise section.error("a function has no currents", "model")
    own = fit_file.document.get("temperature")
    if celsius is not None:
        fit_file = replace(fit_file, document=fit_file.document | {"temperature": celsius})
    model = fit_file.build_model()
    unknown = [name for name in model.ligands if name not in dict(section.rows("values", {}))]
    if unknown:
        what = f"rates depend on the concentration of {', '.join(unknown)}; give it in `values`, mM"
        raise section.error(what, "values")
    model.refuse_gating("a cell has what flows through channels, and no gating current")
    model = model.in_solution()
    place, cautions = f"{section.file}: {section.key}", list(model.cautions)
    fixed = own is not None and not model.follows_temperature
    if fixed and celsius is not None and abs(parse_quantity(own, "temperature") - celsius) > 1:
        text = f"its rates are those of {own}, and do not follow the temperature of the cell"
        cautions.append(Caution(place, text, "they are used as they are"))
    if any(not term.chains for term in model.terms):
        text = "the leak of its model belongs to the recording"
        cautions.append(Caution(place, text, "it is left out"))
    model = _with_values(section, model)
    opening = [term for term in model.terms if term.chains]
    given: dict[str, float | None] = {"conductance": None, "reversal": None}
    for key in given:
        if key in section:
            if len(opening) != 1 or opening[0].permeability is not None:
                raise section.error("needs a model of one current with a conductance", key)
            dimension = section.shape(key, Quantity).dimension
            given[key] = _sized(section, key, dimension, size, section.take(key))
    scale = section.number("scale")
    if scale < 0 or (given["conductance"] or 0.0) < 0:
        raise section.error("a factor, or a conductance, of 0 or more was expected")
    sampled, samples = (
        _read_samples(section, model, cautions, files) if "samples" in section else ((), None)
    )
    section.finish()
    channel = CellChannel(
        name, model, scale, given["conductance"], given["reversal"], sampled, samples
    )
    return channel, cautions


def _model_of(section: Section, files: list[Path]) -> FitFile:
    given = section.take("model")
    if isinstance(given, Model):
        place = Path(section.file or "")
        return FitFile(given.document, place, place)
    found = read_fit_file(section.existing(section.text("model"), "model"))
    files += [found.file, found.model_file]
    return found


def _with_values(section: Section, model: ChannelModel) -> ChannelModel:
    """Return a model with the values that the cell file gives; all of them must be known."""
    values = dict(section.rows("values", {}))
    for name in values:
        if name not in model.parameter_names:
            known = ", ".join(model.parameter_names)
            raise section.error(
                f"the model has no such parameter; it has {known}", f"values.{name}"
            )
    rows = tuple(
        replace(p, value=_sized(section, f"values.{p.name}", "none", Size(), values[p.name]))
        if p.name in values
        else p
        for p in model.parameters
    )
    model = replace(model, parameters=rows)
    try:
        model.values()
    except InputError as error:
        raise section.error(error.message, "model") from None
    return model


def _read_samples(
    section: Section, model: ChannelModel, cautions: list[Caution], files: list[Path]
) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names and the values (n_names, n_rows) of a table that may also hold texts."""
    place, columns = _sample_columns(section, files)
    names = tuple(name for name in model.parameter_names if name in columns)
    if not names:
        known = ", ".join(model.parameter_names)
        raise section.error(f"{place} has no column of a parameter; these are {known}", "samples")
    try:
        values: np.ndarray = np.stack(
            [np.ma.asarray(columns[n], float).filled(np.nan) for n in names]
        )
    except (TypeError, ValueError) as error:
        raise section.error(f"{place}: {error}", "samples") from None
    whole = ~np.isnan(values).any(axis=0)
    if values.ndim != 2 or not whole.any() or not np.isfinite(values[:, whole]).all():
        raise section.error(f"{place} has no rows of finite numbers", "samples")
    if not whole.all():
        text = f"{(~whole).sum()} of {whole.size} rows have an empty cell"
        cautions.append(
            Caution(f"{section.file}: {section.path('samples')}", text, "they are left out")
        )
    return names, values[:, whole]


def _sample_columns(section: Section, files: list[Path]) -> tuple[str, Mapping[str, Any]]:
    """Return the place of a table and its columns by name, an empty cell as NaN."""
    given = section.take("samples")
    if isinstance(given, Mapping):
        return "the table", given
    file = section.existing(section.text("samples"), "samples")
    files.append(file)
    text = decoded(file.read_bytes(), file)
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    head, *rows = csv.reader(lines, delimiter=delimiter_of(lines[0])) if lines else [[]]
    if twice := [name for k, name in enumerate(head) if name and name in head[:k]]:
        raise section.error(f"{file} has two columns named {shown(twice[0])}", "samples")
    return str(file), {
        name: [(row[k].strip() if k < len(row) else "") or "nan" for row in rows]
        for k, name in enumerate(head)
    }


def _read_stimulus(section: Section, size: Size, files: list[Path]) -> Stimulus:
    section.expect(KEYS["stimulus"])
    pulses = [
        _read_pulse(Section(row, section.file, f"stimulus.pulses[{k}]"), size)
        for k, row in enumerate(section.items("pulses"), 1)
    ]
    lengths = {len(p.amplitudes) for p in pulses} - {1}
    if len(lengths) > 1:
        raise section.error("lists of amplitudes are not equally long", "pulses")
    times, current = np.empty(0), np.empty(0)
    if "recorded" in section:
        times, current = _read_recorded(section.section("recorded"), size, files)
    section.finish()
    return Stimulus(tuple(pulses), times, current)


def _read_pulse(section: Section, size: Size) -> Pulse:
    section.expect(KEYS["pulse"])
    given: Sequence[object] = section.items("amplitude", ...)
    amplitudes = tuple(_sized(section, "amplitude", "current", size, x) for x in given)
    if not amplitudes:
        raise section.error("at least one current was expected", "amplitude")
    start, length = section.quantity("start"), section.quantity("for")
    every, count = section.quantity("every", default=0.0), section.integer("count", 1)
    if ("every" in section) != ("count" in section):
        raise section.error("a train needs both `every` and `count`")
    if start < 0 or length <= 0 or every < 0:
        raise section.error("times of a pulse are 0 or more, its length is above 0")
    section.finish()
    return Pulse(amplitudes, start, length, every, count)


def _read_recorded(
    section: Section, size: Size, files: list[Path]
) -> tuple[np.ndarray, np.ndarray]:
    section.expect(KEYS["recorded current"])
    file = section.existing(section.text("file"), "file")
    files.append(file)
    table = read_columns(file, header=True)
    times = column(table, section.text("time"), file)
    current = column(table, section.text("current"), file)
    try:
        factor = unit_factor(section.text("unit"), "current", membrane=size)[0]
    except InputError as error:
        raise error.at(section.file, section.path("unit")) from None
    if len(times) < 2 or not np.isfinite([times, current]).all() or (np.diff(times) <= 0).any():
        raise section.error(f"{file} needs two rows or more, without gaps, of rising times", "time")
    section.finish()
    return times, factor * current
