"""A fit file as the template of many fits: its recording stands for that of each well."""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.batch.recordings import ARRAY, Expected, WellRecording, array_columns
from channelfit.batch.table import ALSO
from channelfit.model.evaluation import evaluate
from channelfit.problem.channel_noise import refuse_noise
from channelfit.problem.clamp import Clamp
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.measures import (
    find_peak,
    holding_pA,
    leak,
    noise_pA,
    run_down,
    transient_ms,
)
from channelfit.problem.plausibility import CheckedRecording
from channelfit.problem.protocol import load_protocol, with_ligands
from channelfit.reading import formats
from channelfit.reading.documents import Section, dump_yaml
from channelfit.reading.errors import Caution, InputError, shown
from channelfit.reading.formats import syncropatch
from channelfit.reading.keys import KEYS
from channelfit.reading.tables import READERS as TABLES
from channelfit.reading.tables import Columns, read_columns
from channelfit.search.fit_file import Load, read_experiments, read_plan
from channelfit.search.joined_files import FitFile, read_fit_file, rebased_path
from channelfit.search.plan import FitPlan

#: The unit and the meaning of each measure of a recording, by its column.
MEASURES = {
    "seal": (
        "MOhm",
        "As the instrument has measured it, where a file of it beside the recording says so; else "
        "the resistance that would leak as much as the recording does at most.",
    ),
    "leak": ("nS", "The leak at most, from steps and ramps at which the channel is closed."),
    "run_down": (
        "",
        "The share by which peaks change from the first of equal sweeps to the last.",
    ),
    "clamp_resistance": (
        "MOhm",
        "The series resistance: of the fit's clamp, or as the instrument has measured it.",
    ),
    "clamp_capacitance": ("pF", "The capacitance of the membrane, from the same."),
    "clamp_lost": (
        "mV",
        "What the largest current loses over the part of that resistance that is not compensated.",
    ),
}
#: Keys of an experiment in which names in braces stand for the well's, besides its recording.
_BY_WELL = {"clamp", "delay", "ligands"}
#: The names in braces of the measurements of the instrument.
_IN_BRACES = {
    "seal_resistance_MOhm": "seal",
    "membrane_capacitance_pF": "cm",
    "series_resistance_MOhm": "rs",
}
#: A name in braces; ${NAME} is a variable of the environment.
_PLACEHOLDER = re.compile(r"(?<!\$)\{(\w+)\}")
_FROM_TO = re.compile(r"\s*(\S.*?)\s*(?:\.\.|\bto\b)\s*(\S.*?)\s*")


@dataclass(frozen=True)
class Template:
    """A fit file that serves many recordings.

    Attributes:
        fit_file: as it was read.
    """

    fit_file: FitFile

    @classmethod
    def read(cls, file: Path, overrides: tuple[str, ...] = ()) -> Template:
        """Read the template in a fit file. Raises InputError for one that cannot be a template."""
        fit_file = read_fit_file(file, overrides)
        if fit_file.is_function:
            raise InputError("a function has no currents; `channelfit optimize` fits it", file)
        found = cls(fit_file)
        found._place, found.required  # noqa: B018 - they refuse a file that is no template
        return found

    def absolute(self) -> Template:
        """Return the same template for a process with another working folder."""
        file, model_file = (Path(os.path.abspath(path)) for path in (self.file, self.model_file))
        return Template(replace(self.fit_file, file=file, model_file=model_file))

    @property
    def document(self) -> dict[str, Any]:
        """The model with its fit section."""
        return self.fit_file.document

    @property
    def file(self) -> Path:
        """The file with the fit section."""
        return self.fit_file.file

    @property
    def model_file(self) -> Path:
        """The file with the model."""
        return self.fit_file.model_file

    @property
    def seed(self) -> int:
        """The seed that the fit section gives, or 0."""
        seed = self.document["fit"].get("seed", 0)
        return seed if isinstance(seed, int) and not isinstance(seed, bool) else 0

    @cached_property
    def required(self) -> dict[str, str]:
        """The requirements on every well: comparisons by the measure that is compared."""
        required = self.document["fit"].get("require")
        if required is None:
            return {}
        own = Section(required, self.file, "fit.require")
        return {name: _comparison(own, name, required[name]) for name in own.given()}

    @property
    def replaced(self) -> set[str]:
        """The limits of a batch that `required` replaces, by their names."""
        plain = ("".join(name.split()) for name in self.required)
        return {ALSO.get(name, name) for name in plain}

    @property
    def unused(self) -> list[Caution]:
        """Warnings about settings of a search in the fit section, which a batch does not use."""
        keys = [key for key in ("optimizer", "stop", "seeds") if key in self.document["fit"]]
        return [
            Caution(
                f"{self.file}: fit.{key}",
                "is not used: all wells of a batch are searched by least squares",
                "use --starts for a wider search",
            )
            for key in keys
        ]

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        """The experiments, as they stand in the file."""
        section = self.document.get("fit")
        if not isinstance(section, Mapping) or section.get("experiments") is None:
            raise InputError(
                "a batch needs `experiments` with a recording, in whose place each recording is "
                "put; `channelfit init RECORDING` writes such a file",
                self.file,
                "fit",
            )
        rows = _as_list(section["experiments"])
        for k, row in enumerate(rows, 1):
            if not isinstance(row, dict) or not isinstance(row.get("recording"), dict):
                place = f"fit.experiments[{k}]"
                raise InputError("a recording was expected", self.file, place)
        if not rows:
            raise InputError("at least one experiment is needed", self.file, "fit.experiments")
        return rows

    @cached_property
    def _place(self) -> int:
        """Which experiment, counted from 0, has the recording that is replaced."""
        names = [row["recording"].get("file", "") for row in self._rows]
        free = [k for k, name in enumerate(names) if not _PLACEHOLDER.search(str(name))]
        if len(free) != 1:
            raise InputError(
                f"{len(self._rows)} experiments, and each recording takes the place of one file; "
                "name the files of the others by the well, such as `file: plate_{well}_2.csv`, or "
                "by a column of the table of recordings",
                self.file,
                "fit.experiments",
            )
        return free[0]

    @cached_property
    def expected(self) -> Expected:
        """The shape of the recordings that the template expects."""
        row = self._rows[self._place]
        name = row.get("protocol")
        section = Section(row, self.file, f"fit.experiments[{self._place + 1}]")
        if not isinstance(name, str):
            raise section.error(
                f"the path of a protocol file was expected, not {shown(name)}", "protocol"
            )
        protocol = load_protocol(section.existing(name, "protocol"))
        if "ligands" in row:
            dosed = Section({**row, "ligands": _any_dose(row["ligands"])}, self.file, section.key)
            dosed.expect(KEYS["experiment"])
            protocol = with_ligands(dosed, protocol)
        n_sweeps = protocol.n_sweeps
        recording = row["recording"]
        current, time = recording.get("current"), recording.get("time")
        columns = current.get("columns") if isinstance(current, Mapping) else None
        chosen = recording.get("sweeps")
        n_sweeps = len(chosen) if isinstance(chosen, list) else n_sweeps
        column = time.get("column", "") if isinstance(time, Mapping) else ""
        return Expected(n_sweeps, columns == "all", str(column))

    def section(self, recorded: WellRecording) -> dict[str, Any]:
        """Return the fit section of a well: the template's with the recording of the well in it.

        Raises: InputError for a placeholder that nothing fills.
        """
        section = copy.deepcopy(dict(self.document["fit"]))
        section.pop("require", None)  # it judges the fits, and is part of none
        rows = _as_list(section["experiments"])
        for k, row in enumerate(rows):
            place = f"fit.experiments[{k + 1}].recording"
            if k == self._place:
                row["recording"]["file"] = ""  # without a placeholder to fill
            row["recording"] = self._filled(row["recording"], recorded, place)
            for key in _BY_WELL & set(row):
                own = f"fit.experiments[{k + 1}].{key}"
                row[key] = self._filled(row[key], recorded, own)
            if recorded.weight is not None:
                row["weight"] = recorded.weight
            if recorded.masks and k == self._place:
                row["mask"] = [*_as_list(row.get("mask")), *_masks(recorded)]
        _put_recording(rows[self._place]["recording"], recorded)
        section["experiments"] = rows
        if "clamp" in section:
            section["clamp"] = self._filled(section["clamp"], recorded, "fit.clamp")
        return section

    def _filled(self, data: Any, recorded: WellRecording, place: str) -> Any:
        """Fill names in braces in the texts of a recording with those of the well."""
        if isinstance(data, Mapping):
            return {k: self._filled(v, recorded, f"{place}.{k}") for k, v in data.items()}
        if isinstance(data, list):
            return [self._filled(each, recorded, place) for each in data]
        if not isinstance(data, str) or not _PLACEHOLDER.search(data):
            return data
        known = {
            **_by_instrument(recorded),
            **recorded.metadata,
            "well": recorded.well,
            "row": recorded.row,
            "column": str(recorded.column or ""),
            "file": Path(recorded.file).name,
        }

        def value(found: re.Match[str]) -> str:
            text = known.get(found[1], "")
            if not text:
                listed = ", ".join(known)
                raise InputError(
                    f"nothing is known of {found[0]} for {recorded.well}; there are {listed}",
                    self.file,
                    place,
                )
            return text

        text = _PLACEHOLDER.sub(value, data)
        whole = _PLACEHOLDER.fullmatch(data)
        if whole and whole[1] in recorded.metadata and place.endswith(".file") and recorded.folder:
            return os.path.join(recorded.folder, text)  # a path of the table's
        return text

    def plan(self, recorded: WellRecording) -> FitPlan:
        """Return the plan of a fit of one well, as `channelfit optimize` would have it.

        Raises: InputError for what cannot be used, of the template as of the recording.
        """
        document = self.fit_file.model_document | {"fit": self.section(recorded)}
        plan = read_plan(replace(self.fit_file, document=document), _read_table)
        refuse_noise(plan.problem, self.file)
        return plan

    def problem(
        self, plan: FitPlan, recorded: WellRecording, load: Load = load_protocol
    ) -> Problem:
        """Return the problem of a well, with the model of the plan of another one.

        Arguments:
            load: gives the protocol of a file; one that remembers spares wells their own.

        Raises: InputError for a recording that cannot be used.
        """
        section = Section(self.section(recorded), self.file, "fit")
        model = plan.problem.model
        experiments = read_experiments(section, model, _read_table, load)
        pairs = zip(experiments, plan.problem.experiments, strict=True)
        return Problem(model, tuple(_shared(own, first) for own, first in pairs))

    def files_of(self, recorded: WellRecording) -> Iterator[Path]:
        """Yield the files with the data of a well."""
        section = self.section(recorded)
        place = Section({}, self.file)
        for name in _files_in([row["recording"] for row in section["experiments"]]):
            yield place.resolve(name, "recording")
        if recorded.row:
            yield from syncropatch.files_of_measures(Path(recorded.file))

    def text_for(self, folder: Path) -> str:
        """Return the template as YAML for a folder: its paths start from there."""
        document = copy.deepcopy(self.document)
        section = document["fit"]
        section["experiments"] = rows = _as_list(section["experiments"])
        for row in rows:
            row["protocol"] = rebased_path(row["protocol"], self.file, folder)
            _move(row["recording"], self.file, folder)
        return (
            "# The template of a batch, as it was used: each recording was put in the place of the "
            "first.\n" + dump_yaml(document)
        )


def _any_dose(data: Any) -> Any:
    """Return concentrations with some number in the place of each name in braces."""
    if isinstance(data, Mapping):
        return {key: _any_dose(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_any_dose(each) for each in data]
    if not isinstance(data, str):
        return data
    return _PLACEHOLDER.sub("1 nM" if _PLACEHOLDER.fullmatch(data.strip()) else "1", data)


def _as_list(value: Any) -> list[Any]:
    """Return the list of a raw section, in which one entry may stand alone, or none."""
    return value if isinstance(value, list) else [] if value is None else [value]


#: A comparison of a requirement, whose other side is the key.
_COMPARISON = re.compile(r"\s*(?:==|!=|<=?|>=?)\s*[^\s<>=!].*", re.DOTALL)


def _comparison(section: Section, name: str, text: object) -> str:
    """Check and return a comparison that a well's measure must fulfill."""
    if not isinstance(text, str) or not _COMPARISON.fullmatch(text):
        raise section.error(
            f'a comparison such as "> 500 MOhm" or "< 0.05" was expected, not {shown(text)}', name
        )
    return text.strip()


def _put_recording(recording: dict[str, Any], recorded: WellRecording) -> None:
    """Put the file of a well, and its columns or signal, into a raw recording."""
    recording["file"] = recorded.file
    if not recorded.signal and not recorded.columns:
        return
    current = recording.get("current")
    row = dict(current) if isinstance(current, Mapping) else {}
    kept = {k: v for k, v in row.items() if k not in ("column", "columns", "signal")}
    if recorded.columns:
        recording["current"] = {"columns": list(recorded.columns), **kept}
    elif formats.suffix_of(Path(recorded.file)) in TABLES:
        recording["current"] = {"column": recorded.signal, **kept}
    else:
        name = recorded.signal
        number = int(name) if name.isdecimal() else name
        recording["current"] = {**kept, "signal": number} | (
            {"sweeps": row["sweeps"]} if "sweeps" in row else {}
        )


def _shared(own: Experiment, first: Experiment) -> Experiment:
    """Return an experiment with the protocol object of another one where both are equal."""
    return replace(own, protocol=first.protocol) if own.protocol == first.protocol else own


def _by_instrument(recorded: WellRecording) -> dict[str, str]:
    """Return the measurements of the instrument for a well, by their names in braces."""
    if not recorded.row:
        return {}
    found = syncropatch.measured_in(Path(recorded.file), recorded.row, recorded.column)
    return {_IN_BRACES[key]: f"{value:.6g}" for key, value in found.items()}


def _masks(recorded: WellRecording) -> list[dict[str, str]]:
    """Return the entries of a mask that a table gives as ``120 ms to 140 ms; 3 s to 3.2 s``."""
    found = []
    for part in filter(str.strip, recorded.masks.split(";")):
        span = _FROM_TO.fullmatch(part)
        if not span:
            raise InputError(
                f"a mask such as `120 ms to 140 ms; 3 s to 3.2 s` was expected, not {shown(part)}",
                recorded.shown,
                "mask",
            )
        found.append({"from": span[1], "to": span[2]})
    return found


def _files_in(data: Any) -> Iterator[str]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            if key == "file" and isinstance(value, str):
                yield value
            else:
                yield from _files_in(value)
    elif isinstance(data, list):
        for each in data:
            yield from _files_in(each)


def _move(data: Any, file: Path, folder: Path) -> None:
    """Rewrite the paths of all files that a raw recording names, to start from a folder."""
    if isinstance(data, list):
        for each in data:
            _move(each, file, folder)
    elif isinstance(data, dict):
        for key, value in data.items():
            if key == "file" and isinstance(value, str) and not _PLACEHOLDER.fullmatch(value):
                data[key] = rebased_path(value, file, folder)
            else:
                _move(value, file, folder)


# --- reading -------------------------------------------------------------------------------------


def _read_table(path: Path, **choices: Any) -> Columns:
    """Read the columns of a table or an array; those of the last two files are cached.

    So a file that holds many wells is read once, and so is one that is subtracted from it.
    """
    if formats.suffix_of(path) == ARRAY:
        return _cached_array(path, path.stat().st_mtime_ns)
    if path.suffix.lower() == ".mat":  # matrices of these may be transposed later
        return read_columns(path, **choices)
    return _cached_columns(path, path.stat().st_mtime_ns, tuple(sorted(choices.items())))


@lru_cache(maxsize=2)
def _cached_columns(path: Path, changed: int, choices: tuple[tuple[str, Any], ...]) -> Columns:
    return read_columns(path, **dict(choices))


@lru_cache(maxsize=2)
def _cached_array(path: Path, changed: int) -> Columns:
    return array_columns(path)


# --- measures of a recording ---------------------------------------------------------------------


def measures(problem: Problem, recorded: WellRecording) -> dict[str, float]:
    """Measure the first recording of a well, by the names of `MEASURES`.

    It is measured as it was before conditioning. Unknown values are NaN.
    """
    found = dict.fromkeys(MEASURES, math.nan)
    experiment = next(e for e in problem.experiments if e.recording is not None)
    recording, protocol = experiment.recording, experiment.protocol
    assert recording is not None
    raw = recording.current_pA if recording.raw_pA is None else recording.raw_pA
    blank = transient_ms(raw, protocol, noise_pA(raw))
    if (line := leak(raw, protocol, blank)) is not None:
        found |= {"leak": line.conductance_nS, "seal": line.seal_MOhm}
    seen = CheckedRecording("", protocol, raw, recording.weight)
    if protocol.n_sweeps > 1:
        peak = find_peak(seen.smooth_pA, holding_pA(raw, protocol), protocol, blank)
        change = None if peak is None else run_down(peak.by_sweep_pA, protocol)
        found["run_down"] = math.nan if change is None else change
    own = _by_instrument(recorded)
    found["seal"] = float(own.get("seal", found["seal"]))
    found |= _of_the_clamp(experiment.clamp, own, seen)
    return {name: value if math.isfinite(value) else math.nan for name, value in found.items()}


def _of_the_clamp(
    clamp: Clamp | None, measured: Mapping[str, str], seen: CheckedRecording
) -> dict[str, float]:
    """Return series resistance, capacitance, and the potential that the largest current loses.

    Arguments:
        clamp: of the fit; where it has none, what the instrument has measured counts.
        measured: `rs` and `cm`, as the instrument has measured them.
    """
    resistance, capacitance = (float(measured.get(key, math.nan)) for key in ("rs", "cm"))
    left = 1.0
    if clamp is not None:
        settings = (clamp.series_resistance, clamp.membrane_capacitance, clamp.fraction)
        # one that is fitted stands in its own column
        resistance, capacitance, fraction = (
            float(x) if x.is_Number else math.nan for x in settings
        )
        left = 1.0 - fraction
    largest = float(np.abs(seen.smooth_pA[seen.scored]).max()) if seen.scored.any() else math.nan
    return {
        "clamp_resistance": resistance,
        "clamp_capacitance": capacitance,
        "clamp_lost": 1e-3 * resistance * left * largest,
    }


def carried_nS(problem: Problem, current_pA: np.ndarray, values: np.ndarray) -> float:
    """Return how much of the leak in `measures` is carried by the channels of a fit, nS.

    Arguments:
        current_pA: (n_sweeps, n_times) of the fit, in the first experiment.
        values: (n_parameters, 1) of the fit.
    """
    protocol = problem.experiments[0].protocol
    line = leak(current_pA, protocol, 0.0)
    group = next(group for group in problem.groups if 0 in group.places)
    model = group.problem.model
    scope: dict[str, Any] = dict(
        zip(model.parameter_names, group.parameters(values)[:, 0], strict=True)
    )
    leaks = [t.conductance for t in model.terms if not t.chains and t.conductance is not None]
    own = sum(float(evaluate(conductance, scope)) for conductance in leaks)
    return 0.0 if line is None else max(0.0, line.conductance_nS - own)
