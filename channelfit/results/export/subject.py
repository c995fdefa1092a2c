"""A channel to be exported: its values, how sure they are, and where they come from."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from channelfit.model.channel import CELSIUS, ChannelModel, Parameter
from channelfit.model.evaluation import evaluate
from channelfit.model.expressions import parse_expression
from channelfit.model.model_file import build_model
from channelfit.problem.clamp import words_of_clamps
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol, load_protocol
from channelfit.problem.waves import Constant, Segment
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError
from channelfit.reading.keys import is_function
from channelfit.reading.units import parse_quantity
from channelfit.results.export.provenance import Provenance, as_mapping, provenance_of
from channelfit.results.files import fit_file
from channelfit.results.run_summary import summary_beside
from channelfit.scoring.reference import ReferenceScorer
from channelfit.search.fit_file import first_temperature
from channelfit.search.joined_files import read_fit_file

#: mV, where an exported channel begins if no protocol says where it was held.
HOLDING_MV = -80.0
#: pF for each um2 of membrane, which is 1 uF/cm2.
SPECIFIC_CAPACITANCE = 0.01
#: The note of a ligand, which is a parameter of 0 mM.
SET_BY_THE_CELL = "a concentration that the cell's model sets"
#: Two capacitances that differ by less are those of one cell, written twice.
_SAME = 1e-6


@dataclass(frozen=True)
class CellMembrane:
    """The membrane to which a conductance in nS belongs.

    Attributes:
        area_um2: its area.
        known_from: where the size is known from, in words.
    """

    area_um2: float
    known_from: str

    @classmethod
    def of_capacitance(cls, capacitance_pF: float, known_from: str) -> CellMembrane:
        """Return a membrane of this capacitance, whose area follows from 1 uF/cm2."""
        words = f"{known_from} {capacitance_pF:g} pF, at 1 uF/cm2 {capacitance_pF / 0.01:g} um2"
        return cls(capacitance_pF / SPECIFIC_CAPACITANCE, words)

    @property
    def density(self) -> float:
        """S/cm2 for each nS of the whole cell, or cm/s for each um3/ms."""
        return 0.1 / self.area_um2


@dataclass(frozen=True)
class Known:
    """The facts of a parameter beside its value, in the parameter's base unit.

    Attributes:
        interval: 95 %; None where there is none.
        standard_error: None where there is none.
        note: such as that the value is at the end of its range.
    """

    interval: tuple[float, float] | None = None
    standard_error: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Subject:
    """A channel that is to be exported.

    Attributes:
        channel: with a value for each parameter, and only those parameters on which it depends;
            ligands are parameters of 0 mM.
            Where an expression uses the temperature, that is the parameter `celsius`.
        temperature_C: at which the values hold, degC; None where nothing says it, or where
            recordings of several temperatures share rates that do not follow it.
        temperature_stated: whether it is that of the recordings, or of a model that is not fitted
            to any; else the model's file has it, which a fit may have left behind.
        known: what a fit says of a parameter, by its name.
        provenance: where model and values come from.
        membranes: what is known of the cell's membrane; several where they contradict each other.
        holding_mV: where the cell was held, and where an exported channel begins.
        document: the model as plain data, by the keys of a model file.
        fit: its raw fit section; None where there is none.
        cell: of which the values are, where cells have values of their own.
    """

    channel: ChannelModel
    temperature_C: float | None
    temperature_stated: bool
    known: Mapping[str, Known]
    provenance: Provenance
    membranes: tuple[CellMembrane, ...]
    holding_mV: float
    document: dict[str, Any]
    fit: Any = None
    cell: str | None = None

    @property
    def warm(self) -> bool:
        """True where an expression depends on the temperature."""
        return CELSIUS in self.channel.parameter_names

    @property
    def values(self) -> dict[str, float]:
        """The parameters' values by name, base units."""
        pairs = zip(self.channel.parameter_names, self.channel.values().tolist(), strict=True)
        return dict(pairs)

    @property
    def own_parameters(self) -> list[Parameter]:
        """The parameters without the temperature."""
        return [p for p in self.channel.parameters if p.name != CELSIUS]

    def paragraphs(self) -> list[str]:
        """Return the first paragraphs of an exported file: description, fit, data, cell."""
        cell = f"The values are those of the cell {self.cell}." if self.cell else ""
        texts = [self.provenance.description, *self.provenance.sentences(), cell]
        return [text for text in texts if text]

    def rates_hold_at(self, degrees: str = " degC") -> str:
        """Return the temperature of rates that do not follow it, in words; empty if unknown."""
        if self.warm or self.temperature_C is None:
            return ""
        temperature = f"{self.temperature_C:g}{degrees}"
        if self.temperature_stated:
            return f"the rates hold at {temperature}"
        return (
            f"the model's file says {temperature}; the fit does not say at which temperature its "
            "recordings were made, where the rates hold"
        )

    def membrane(self, capacitance_pF: float | None = None) -> CellMembrane:
        """Return the membrane by which a whole cell's conductance becomes a density.

        Arguments:
            capacitance_pF: that of the cell, from the user; it goes before what is known.

        Raises:
            InputError: nothing says how large the cell was, or several things say it differently.
        """
        if capacitance_pF is not None:
            if not 0 < capacitance_pF < np.inf:
                raise InputError(f"a capacitance above 0 pF was expected, not {capacitance_pF:g}")
            given = CellMembrane.of_capacitance(
                capacitance_pF, "the capacitance given for the export:"
            )
            self._check_densities(given, capacitance_pF)
            return given
        first, *others = self.membranes or (None,)
        if first is None:
            raise InputError(
                "nothing says how large the cell was, so its conductance in nS cannot become a "
                "density in S/cm2; give its capacitance, as in `--capacitance 20` (pF), or write "
                "a mechanism for the whole cell with --point-process",
                self.provenance.file,
            )
        for other in others:
            if abs(other.area_um2 / first.area_um2 - 1) > _SAME:
                raise InputError(
                    f"the size of the cell is not one: {first.known_from}; {other.known_from}. "
                    "Choose with --capacitance PF, or --cell NAME where cells have names",
                    self.provenance.file,
                )
        return first

    def _check_densities(self, given: CellMembrane, capacitance_pF: float) -> None:
        """Raise InputError where a given size would change densities that the model states."""
        current = as_mapping(self.document.get("current"))
        stated = [key for key in ("area", "capacitance") if current.get(key) is not None]
        areas = [known.area_um2 for known in self.membranes]
        one = bool(areas) and max(areas) / min(areas) - 1 <= _SAME
        if stated and one and abs(given.area_um2 / areas[0] - 1) > _SAME:
            raise InputError(
                f"{self.membranes[0].known_from}; --capacitance {capacitance_pF:g} would multiply "
                f"the densities of the file by {areas[0] / given.area_um2:.3g}. Leave it out, or "
                f"write the size of the cell in the model, under current.{stated[0]}",
                self.provenance.file,
            )


def read_subject(path: Path, overrides: Sequence[str] = (), cell: str | None = None) -> Subject:
    """Read a channel to be exported, from a run folder, its ``fit.yaml`` or any model file.

    Arguments:
        path: the folder or file.
        overrides: ``dotted.key=value`` each.
        cell: the cell of which the values are taken.

    Raises InputError: anything that cannot be used, with file, key and what would be right.
    """
    file = fit_file(path)
    found = read_fit_file(file, overrides)
    return subject_of(
        found.document, file, found.model_file, summary_beside(file, whole=False), cell
    )


def subject_of(
    document: Mapping[str, Any],
    file: Path | None,
    model_file: Path | None,
    summary: Mapping[str, Any],
    cell: str | None = None,
) -> Subject:
    """Return a channel to be exported, from a model as plain data.

    Arguments:
        document: with the fit section under `fit`, if there is one.
        file: from which the paths in the fit section start; model_file: the model's.
        summary: what a run has written into ``summary.json``; empty where there is none.
        cell: the cell of which the values are taken.

    Raises: as `read_subject`.
    """
    if is_function(document):
        raise InputError("a function is no channel and cannot be exported", file)
    fit = document.get("fit")
    channel = _channel(document, model_file or file, fit, cell)
    channel.refuse_gating("an export holds what flows through channels, and no gating current")
    used, ligands = channel.used_names(), channel.ligands
    kept = tuple(p for p in channel.parameters if p.name in used)
    try:
        channel.values()
    except InputError as error:
        raise error.at(file) from None
    rows = _rows_of_these_values(summary, channel.parameters, cell)
    known = {p.name: _known(rows.get(p.name, {})) for p in kept}
    known |= {name: Known(note=SET_BY_THE_CELL) for name in ligands}
    return Subject(
        channel=replace(channel, parameters=kept).in_solution(),
        **_temperature(channel, fit),
        known=known,
        provenance=provenance_of(document, file, summary, bool(rows)),
        membranes=tuple(_membranes(document, channel, summary, cell)),
        holding_mV=_holding(fit, file),
        document={key: value for key, value in document.items() if key != "fit"},
        fit=fit,
        cell=cell,
    )


def _channel(
    document: Mapping[str, Any], file: Path | None, fit: object, cell: str | None
) -> ChannelModel:
    """Return the model with the temperature as a parameter, as one cell has it."""
    clamps = words_of_clamps(fit)
    channel = build_model(document, file, first_temperature(fit), clamps)
    if CELSIUS not in channel.parameter_names and channel.temperature_C is not None:
        channel = build_model(document, file, channel.temperature_C, clamps)
    named = experiments_of(fit, "cell") if isinstance(fit, Mapping) else []
    cells = dict.fromkeys(name for p in channel.parameters for name, _ in p.cells)
    cells |= dict.fromkeys(str(name) for name in named if name is not None)
    if cell is not None:
        if cell not in cells:
            known = ", ".join(cells) or "none"
            raise InputError(f'the model knows no cell "{cell}". Known: {known}', file)
        return channel.of_cell(cell)
    apart = [p for p in channel.parameters if p.per_cell and p.name in channel.used_names()]
    if apart:
        raise InputError(
            f"{apart[0].name} has a value for each cell; say of which, with --cell NAME. "
            f"Known: {', '.join(cells) or 'none that the file names'}",
            file,
            f"parameters.{apart[0].name}",
        )
    return channel


def _temperature(channel: ChannelModel, fit: object) -> dict[str, Any]:
    """Return the temperature at which the values hold, as `Subject` keeps it."""
    own = next((p.value for p in channel.parameters if p.name == CELSIUS), None)
    if own is not None:
        return {"temperature_C": own, "temperature_stated": True}
    rows: list[Any] = []
    if isinstance(fit, Mapping) and fit.get("start") == "values":  # else the values are the model's
        rows = experiments_of(fit, "temperature")
    given = [None if raw is None else parse_quantity(raw, "temperature") for raw in rows]
    stated = any(t is not None for t in given)
    found = {channel.temperature_C if t is None else t for t in given}
    known = channel.temperature_C
    if stated:
        known = found.pop() if len(found) == 1 else None
    return {"temperature_C": known, "temperature_stated": stated or not rows}


def _rows_of_these_values(
    summary: Mapping[str, Any], parameters: Sequence[Parameter], cell: str | None
) -> dict[str, Mapping[str, Any]]:
    """Return the row of each parameter in a summary; nothing where it is of other values."""
    rows, found = as_mapping(summary.get("parameters")), {}
    for p in parameters:
        if p.name == CELSIUS:
            continue
        row = rows.get(p.name) or rows.get(f"{p.name}[{cell}]")
        if not isinstance(row, Mapping) or row.get("value") != p.value:
            return {}
        found[p.name] = row
    return found


def _known(row: Mapping[str, Any]) -> Known:
    """Return the facts of a row of a summary; what is no number there is left out."""
    interval, error = row.get("interval"), row.get("standard_error")
    pair = None
    if isinstance(interval, list) and len(interval) == 2 and all(map(_is_number, interval)):
        pair = float(interval[0]), float(interval[1])
    return Known(pair, error if _is_number(error) else None, str(row.get("note", "")))


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _holding(fit: object, file: Path | None) -> float:
    """Return the holding potential of the first protocol of a raw fit section, mV."""
    if not isinstance(fit, Mapping) or file is None:
        return HOLDING_MV
    names = [name for name in experiments_of(fit, "protocol") if isinstance(name, str)]
    # a protocol that is not there, or needs data that are not, only moves where the channel begins
    with contextlib.suppress(InputError):
        if names:
            return load_protocol(Section({}, file).existing(names[0], "protocol")).holding_mV
    return HOLDING_MV


def experiments_of(fit: Mapping[str, Any], key: str) -> list[Any]:
    """Return an entry of each experiment of a raw fit section; of simulated data the protocols."""
    rows = fit.get("experiments")
    if rows is None:
        protocols = fit.get("protocols")
        names = protocols if isinstance(protocols, list) else [protocols]
        return names if key == "protocol" else []
    listed = rows if isinstance(rows, list) else [rows]
    return [row.get(key) for row in listed if isinstance(row, Mapping)]


# --- how large the cell is


def _membranes(
    document: Mapping[str, Any],
    channel: ChannelModel,
    summary: Mapping[str, Any],
    cell: str | None,
) -> list[CellMembrane]:
    """Return all that a model, its recordings and its clamps say of the size of the cell."""
    fit = as_mapping(document.get("fit"))
    current = document.get("current")
    places: list[tuple[str, Any]] = [
        ("the model's current", current),
        ("the model that was fitted", summary.get("membrane")),
    ]
    clamps = [("the clamp of the fit", fit.get("clamp"))]
    rows = fit.get("experiments")
    for row in rows if isinstance(rows, list) else [rows]:
        if not isinstance(row, Mapping) or cell not in (None, str(row.get("cell", cell))):
            continue
        recording = row.get("recording")
        if isinstance(recording, Mapping):
            places.append(("the recording's current", recording.get("current")))
        clamps.append(("the clamp of the recording", row.get("clamp")))
    found = []
    for words, place in places:
        if isinstance(place, Mapping):
            found += _membranes_of(place, words)
    for words, clamp in clamps:
        if isinstance(clamp, Mapping) and clamp.get("membrane_capacitance") is not None:
            size = _quantity(clamp["membrane_capacitance"], channel)
            found += [CellMembrane.of_capacitance(size, f"{words}:")] if size > 0 else []
    return found


def _membranes_of(place: Mapping[str, Any], words: str) -> list[CellMembrane]:
    found = []
    if place.get("area") is not None:
        area = parse_quantity(place["area"], "area")
        found.append(CellMembrane(area, f"{words}: {area:g} um2"))
    elif place.get("capacitance") is not None:
        size = parse_quantity(place["capacitance"], "capacitance")
        found.append(CellMembrane.of_capacitance(size, f"{words}:"))
    return found


def _quantity(text: Any, channel: ChannelModel) -> float:
    """Return a capacitance, pF, from a quantity or an expression of the parameters."""
    with contextlib.suppress(InputError):
        return parse_quantity(text, "capacitance")
    expression = parse_expression(text, channel.parameter_names)
    values = dict(zip(channel.parameter_names, channel.values().tolist(), strict=True))
    return float(evaluate(expression, values))


#: ms and mV of the steps under which the currents are compared.
_STEP_MS, _SAMPLING_MS, _STEPS_MV = 40.0, 0.2, (-120.0, -60.0, -40.0, -20.0, 0.0, 20.0, 60.0)


def six_digits(value: float) -> float:
    """Return the value that NEURON keeps of a number in a PARAMETER block."""
    return float(f"{value:.6g}")


def cost_of_six_digits(subject: Subject) -> float:
    """Return how far currents with six digits of each parameter are from those with all digits.

    Returns: the largest difference over the largest current, under steps from -120 to +60 mV.
    """
    rows = subject.channel.parameters
    values = subject.channel.values()
    kept = [x if p.name == CELSIUS else six_digits(x) for p, x in zip(rows, values, strict=True)]
    if (values == np.array(kept)).all():
        return 0.0
    tail = Segment(_STEP_MS, 1.5 * _STEP_MS, Constant(subject.holding_mV))
    sweeps = tuple((Segment(0.0, _STEP_MS, Constant(v)), tail) for v in _STEPS_MV)
    protocol = Protocol("steps", subject.holding_mV, _SAMPLING_MS, sweeps)
    problem = Problem(subject.channel, (Experiment(protocol),))
    traces = ReferenceScorer(problem).simulate(np.column_stack([values, kept]))[0]
    exact, rounded = traces[:, :, 0], traces[:, :, 1]
    return float(np.nanmax(np.abs(exact - rounded)) / max(np.nanmax(np.abs(exact)), 1e-300))
