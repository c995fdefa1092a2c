"""A .mod file as a model file, and the proof: the file compiled and run beside what became of it.

The file's own mechanism runs in another process, since it is a stranger's program: what NMODL can
do beyond equations is refused before it is compiled (`model.imports.nmodl_text`), and a loop that
does not end meets a limit of time.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from channelfit.model.channel import ChannelModel
from channelfit.model.imports.document import Imported, imported
from channelfit.model.imports.equations import Equations, Given
from channelfit.model.imports.nmodl_declarations import Declarations, declarations
from channelfit.model.imports.nmodl_run import Run
from channelfit.model.imports.nmodl_text import read_nmodl
from channelfit.model.imports.nmodl_tree import read_tree
from channelfit.model.model_file import build_model
from channelfit.problem.protocol import Protocol
from channelfit.problem.waves import TIME_TOLERANCE, Constant, Segment
from channelfit.reading.apart import read_apart
from channelfit.reading.documents import parse_yaml
from channelfit.reading.errors import InputError
from channelfit.scoring.neuron.mechanisms import check_compiler, compile_mechanism, neuron_hoc
from channelfit.scoring.neuron.parsing import parse_nmodl

Array = npt.NDArray[np.float64]
#: Takes a model with values and a protocol; gives its currents (n_sweeps, n_times_max), pA.
Simulate: TypeAlias = Callable[[ChannelModel, Protocol], Array]
#: Largest error over the largest current.
TOLERANCE = 1e-6
#: Absolute tolerance of an occupancy in CVODE; and how long the file may take, seconds.
_EXACT, _SECONDS = 1e-13, 300.0
#: By how much a proof moves the temperature, degC, and what it multiplies free parameters by.
_WARMER, _MORE = 3.0, 1.07
#: mV by which voltages are moved where NEURON meets 0/0; and how the message then begins.
_BESIDE, _NO_NUMBER = 0.137, "NEURON cannot integrate the file"


@dataclass(frozen=True)
class Mechanism:
    """A .mod file that was translated.

    Attributes:
        imported: the model file that says the same.
        found: its equations.
        declared: what it declares.
        text: what is compiled: the file without its comments.
    """

    imported: Imported
    found: Equations
    declared: Declarations
    text: str


@dataclass(frozen=True)
class Proof:
    """How far the model is from the file that it was made of.

    Attributes:
        error: the largest difference of two currents over the largest current of that run.
        runs: what was run, in words, and the error of each.
        table: the same error with the file's own TABLE in place of its equations; None without one.
        note: what was not as usual.
    """

    error: float
    runs: tuple[tuple[str, float], ...]
    table: float | None = None
    note: str = ""


def read_mechanism(path: Path, source: str, fit: Collection[str] = ()) -> Mechanism:
    """Translate a .mod file.

    Arguments:
        path: the file.
        source: a sentence that says which file it is.
        fit: the parameters to be searched.

    Raises:
        InputError: what cannot be translated, with its line.
    """
    try:
        text = read_nmodl(path.read_bytes())
        declared = declarations(read_tree(parse_nmodl(text.text), text.text), text.title)
        found = Run(declared).equations()
        made = imported(found, declared.suffix, source, fit)
    except InputError as error:
        raise error.at(path) from None
    except RecursionError:
        raise InputError("expressions are nested too deeply", path) from None
    return Mechanism(made, found, declared, text.text)


# --- the proof -----------------------------------------------------------------------------------


def step_families(beside_mV: float = 0.0) -> tuple[Protocol, Protocol]:
    """Nineteen steps from -120 to +60 mV, short ones from -90 mV and long ones from -40 mV.

    Arguments:
        beside_mV: by how much every voltage lies beside these.
    """

    def family(name: str, holding: float, long: float, tail: float, sampling: float) -> Protocol:
        holding, tail = holding + beside_mV, tail + beside_mV
        sweeps = tuple(
            (
                Segment(0.0, 2 * sampling, Constant(holding)),
                Segment(2 * sampling, 2 * sampling + long, Constant(v)),
                Segment(2 * sampling + long, 2 * sampling + 1.2 * long, Constant(tail)),
            )
            for v in (np.linspace(-120.0, 60.0, 19) + beside_mV).tolist()
        )
        return Protocol(name, holding, sampling, sweeps)

    return (
        family("50 ms from -90 mV", -90.0, 50.0, -50.0, 0.25),
        family("1 s from -40 mV", -40.0, 1000.0, -100.0, 5.0),
    )


def prove(
    mechanism: Mechanism, simulate: Simulate, protocols: Sequence[Protocol] | None = None
) -> Proof:
    """Run the file in NEURON and the model here, and compare their currents.

    Beside the values of the file, others of the free parameters and another temperature are tried,
    which shows that they are where the file has them.

    Arguments:
        mechanism: the file and its translation.
        simulate: gives the currents of a model under a protocol.
        protocols: steps of voltage; two families of them without it.

    Raises:
        NeuronUnavailable: there is no NEURON or no compiler.
        InputError: the file does not compile, or does not run.
    """
    check_compiler()
    if protocols is not None:
        return _proven(mechanism, simulate, tuple(protocols))
    try:
        return _proven(mechanism, simulate, step_families())
    except InputError as error:
        if not error.message.startswith(_NO_NUMBER):
            raise
        # Files leave 0/0 at round voltages; a table hides that in NEURON, and a limit does here.
        found = _proven(mechanism, simulate, step_families(_BESIDE))
        return replace(found, note=f"{error.message}; the voltages lie {_BESIDE:g} mV higher")


def _proven(mechanism: Mechanism, simulate: Simulate, asked: tuple[Protocol, ...]) -> Proof:
    made = mechanism.imported
    cases = list(_cases(mechanism))
    jobs = [_job(mechanism, model, protocol, False) for _, model in cases for protocol in asked]
    tabled = any(
        tree.kind == "TableStatement"
        for block in mechanism.declared.functions.values()
        for tree in block.walk()
    )
    theirs = _theirs(mechanism, jobs)
    runs = []
    for k, (told, model) in enumerate(cases):
        for j, protocol in enumerate(asked):
            error = apart(simulate(model, protocol), theirs[k * len(asked) + j])
            runs.append((f"{protocol.name}, {told}", error))
    found = Proof(max(error for _, error in runs), tuple(runs))
    if not tabled:
        return found
    try:
        (theirs_tabled,) = _theirs(mechanism, [_job(mechanism, made.model, asked[0], True)])
    except InputError as error:
        return replace(found, note=f"with the file's own TABLE: {error.message}")
    return replace(found, table=apart(simulate(made.model, asked[0]), theirs_tabled))


def _cases(mechanism: Mechanism) -> list[tuple[str, ChannelModel]]:
    """Models that differ in their values, each with what is particular about it."""
    made = mechanism.imported
    cases = [("the file's values", made.model)]
    free = [not p.fixed for p in made.model.parameters]
    values = made.model.values() * np.where(free, _MORE, 1.0)
    moved = made.model.with_values(values)
    told = f"free parameters times {_MORE:g}"
    if made.model.temperature_C is not None:
        document = parse_yaml(made.text)
        document["temperature"] = made.model.temperature_C + _WARMER
        moved = build_model(document, None).with_values(values)
        told += f", {_WARMER:g} degC warmer"
    return [*cases, (told, moved)]


def apart(ours: Array, theirs: Array) -> float:
    """The largest difference over the largest current; infinite where one is no number."""
    largest = float(np.abs(theirs).max(initial=0.0))
    if not largest > 0:
        raise InputError("the file's current is 0 throughout, so that nothing can be compared")
    return float(np.nan_to_num(np.abs(ours - theirs), nan=np.inf).max()) / largest


def _job(mechanism: Mechanism, model: ChannelModel, protocol: Protocol, table: bool) -> Any:
    """What the other process is to run, as plain data."""
    made, declared = mechanism.imported, mechanism.declared
    values = dict(zip(model.parameter_names, model.values().tolist(), strict=True))
    base = dict(zip(made.model.parameter_names, made.model.values().tolist(), strict=True))
    document = parse_yaml(made.text)["parameters"]
    settings = []
    for name, given in made.names.items():
        written = float(document[name]["value"])
        ratio = values[name] / base[name] if base[name] else 1.0
        settings.append([given.kind, given.own, written * ratio])
    return {
        "settings": settings,
        "range": sorted(declared.range_variables),
        "celsius": model.temperature_C,
        "table": table,
        "holding": protocol.holding_mV,
        "sampling": protocol.sampling_ms,
        "sweeps": [
            [[s.start_ms, s.end_ms, float(s.voltage(np.array(s.start_ms)))] for s in sweep]
            for sweep in protocol.sweeps
        ],
        "ranges": [list(map(list, protocol.sample_ranges(k))) for k in range(protocol.n_sweeps)],
        "samples": protocol.n_times_max,
    }


def _ion(given: Given) -> str:
    """The ion that a reversal potential such as ena, or a concentration such as cai, is of."""
    return given.own[1:] if given.kind == "reversal" else given.own[:-1]


def _theirs(mechanism: Mechanism, jobs: list[Any]) -> list[Array]:
    """(n_sweeps, n_times_max) pA of each job, from the other process."""
    declared = mechanism.declared
    whole = {
        "text": mechanism.text,
        "point": declared.point,
        "currents": declared.currents,
        "ions": sorted({_ion(given) for given in declared.parameters.values() if given.kind}),
        "per_pA": mechanism.found.per_pA,
        "area": mechanism.imported.area,
        "jobs": jobs,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(whole), encoding="utf-8")
        try:
            found = read_apart(f"{__name__}:simulated", path, "a mechanism", _SECONDS)
        except InputError as error:
            raise InputError(error.message) from None
    return [np.asarray(found[str(k)], dtype=float) for k in range(len(jobs))]


# --- in the other process ------------------------------------------------------------------------


def simulated(path: Path) -> dict[str, Array]:
    """The currents of all jobs of a file that `prove` has written."""
    whole = json.loads(path.read_text(encoding="utf-8"))
    name = compile_mechanism(whole["text"], path.parent / "compiled")
    return {str(k): _Place(name, whole, job).run() for k, job in enumerate(whole["jobs"])}


class _Place:
    """A compiled mechanism on a membrane whose voltage is what is asked for.

    The capacitance is so large that no current moves the voltage by a rounding.
    """

    def __init__(self, name: str, whole: Mapping[str, Any], job: Mapping[str, Any]) -> None:
        self.name, self.whole, self.job = name, whole, job
        self.h = neuron_hoc()
        self.section = self.h.Section(name="imported")
        self.section.L = self.section.diam = 10.0
        self.section.cm = 1e20
        self.place = self.section(0.5)
        if whole["point"]:
            self.mechanism = getattr(self.h, name)(self.place)
        else:
            self.section.insert(name)
            self.mechanism = getattr(self.place, name)

    def run(self) -> Array:
        h, job = self.h, self.job
        solver = h.CVode()
        solver.active(True)
        solver.atol(_EXACT)
        solver.rtol(0)
        if job["celsius"] is not None:
            h.celsius = job["celsius"]
        if hasattr(h, f"usetable_{self.name}"):
            setattr(h, f"usetable_{self.name}", int(job["table"]))
        for ion in self.whole["ions"]:
            h.ion_style(f"{ion}_ion", 1, 1, 0, 0, 0, sec=self.section)
        for kind, key, value in job["settings"]:
            self._set(kind, key, value)
        out = np.full((len(job["sweeps"]), job["samples"]), np.nan)
        for sweep, row in zip(range(len(out)), out, strict=True):
            h.finitialize(job["holding"])
            self._check()
            self._sweep(sweep, row)
        return out

    def _set(self, kind: str, key: str, value: float) -> None:
        if kind:
            setattr(self.place, key, value)
        elif key in self.job["range"]:
            setattr(self.mechanism, key, value)
        else:
            setattr(self.h, f"{key}_{self.name}", value)

    def _check(self) -> None:
        for kind, key, value in self.job["settings"]:
            if kind and not np.isclose(getattr(self.place, key), value, rtol=1e-12):
                raise InputError(f"NEURON has changed {key} from {value:g}")

    def _sweep(self, sweep: int, row: Array) -> None:
        h, period = self.h, self.job["sampling"]
        ranges = self.job["ranges"][sweep]
        for (start, end, v), (first, last) in zip(self.job["sweeps"][sweep], ranges, strict=True):
            # NEURON's clock starts anew, so that the first steps are not lost beside a late t
            h.t, self.place.v = 0.0, v
            h.CVode().re_init()
            for k in range(first, last):
                self._advance(k * period - start)
                row[k] = self._current()
            self._advance(end - start)

    def _advance(self, until_ms: float) -> None:
        if until_ms - self.h.t > TIME_TOLERANCE * 1e-3:
            try:
                self.h.CVode().solve(until_ms)
            except RuntimeError as error:
                raise InputError(
                    f"{_NO_NUMBER} at {self.place.v:g} mV, {until_ms:g} ms after the step: {error}"
                ) from None

    def _current(self) -> float:
        """pA, for the area that the model file names."""
        self.h.fcurrent()
        total = 0.0
        for key in self.whole["currents"]:
            of_ion = hasattr(self.place, key)
            value = float(getattr(self.place if of_ion else self.mechanism, key))
            if self.whole["point"] and of_ion:
                value *= self.place.area() * 1e-2  # mA/cm2 to nA
            total += value
        return total * float(self.whole["per_pA"]) * float(self.whole["area"] or 1.0)
