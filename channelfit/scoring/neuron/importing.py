"""A .mod file as a model file, and the proof: the file compiled and run beside what became of it.

The file's own mechanism runs in another process, since it is a stranger's program: what NMODL can
do beyond equations is refused before it is compiled (`model.imports.nmodl_text`), and a loop that
does not end meets a limit of time.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from channelfit.model.channel import ChannelModel
from channelfit.model.imports.document import Imported, imported
from channelfit.model.imports.equations import Equations
from channelfit.model.imports.nmodl_declarations import Declarations, declarations
from channelfit.model.imports.nmodl_run import Interpreter
from channelfit.model.imports.nmodl_text import read_nmodl
from channelfit.model.imports.nmodl_tree import read_tree
from channelfit.model.imports.recall import recall
from channelfit.model.model_file import build_model
from channelfit.problem.protocol import Protocol
from channelfit.problem.waves import Constant, Segment
from channelfit.reading.documents import parse_yaml
from channelfit.reading.errors import InputError
from channelfit.reading.second_process import end as end_second_process
from channelfit.reading.second_process import read_in_process
from channelfit.scoring.neuron.mechanisms import check_compiler, parse_nmodl

Array = npt.NDArray[np.float64]
#: Takes a model with values and a protocol; gives its currents (n_sweeps, n_times_max), pA.
Simulate: TypeAlias = Callable[[ChannelModel, Protocol], Array]
#: Largest error over the largest current.
TOLERANCE = 1e-6
#: What runs the file in the other process, and how long that may take, seconds.
_HELD, _SECONDS = "channelfit.scoring.neuron.held:simulated", 300.0
#: NEURON keeps so many digits of a PARAMETER.
_SIX_DIGITS = 1e-5
#: The truths that a proof may have been made with.
CVODE = "NEURON's CVODE"
STEPS = "the file's own exact steps in NEURON"
EXACT = "matrix exponentials of the derivatives that NEURON computes from the file"
#: By how much a proof moves the temperature, degC, and what it multiplies free parameters by.
_WARMER, _MORE = 3.0, 1.07
_NO_NUMBER = "NEURON cannot integrate the file"


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
    """The error of a model beside the file that it was made of.

    Attributes:
        error: the largest difference of two currents over the largest current of that run.
        runs: what was run, in words, and the error of each.
        table: the same error with the file's own TABLE in place of its equations; None without one.
        notes: what was not as usual, each in a sentence.
        truth: what the currents were compared with.
    """

    error: float
    runs: tuple[tuple[str, float], ...]
    table: float | None = None
    notes: tuple[str, ...] = ()
    truth: str = CVODE


def read_mechanism(
    path: Path, source: str, fit: Collection[str] = (), settled: bool = False
) -> Mechanism:
    """Translate a .mod file.

    Arguments:
        path: the file.
        source: a sentence that says which file it is.
        fit: the parameters to be searched.
        settled: whether states begin at the steady state wherever the file starts them.

    Raises InputError: what cannot be translated, with its line.
    """
    try:
        text = read_nmodl(path.read_bytes())
        declared = declarations(read_tree(parse_nmodl(text.text), text.text), text.title)
        recall(declared, text.metadata)
        found = Interpreter(declared).equations()
        found.settled = settled
        made = imported(found, declared.suffix, source, fit)
    except InputError as error:
        raise error.at(path) from None
    except RecursionError:
        raise InputError("expressions are nested too deeply", path) from None
    return Mechanism(made, found, declared, text.text)


# --- the proof -----------------------------------------------------------------------------------


def step_families() -> tuple[Protocol, Protocol]:
    """Return nineteen steps from -120 to +60 mV, short from -90 mV and long from -40 mV."""

    def family(name: str, holding: float, long: float, tail: float, sampling: float) -> Protocol:
        sweeps = tuple(
            (
                Segment(0.0, 2 * sampling, Constant(holding)),
                Segment(2 * sampling, 2 * sampling + long, Constant(v)),
                Segment(2 * sampling + long, 2 * sampling + 1.2 * long, Constant(tail)),
            )
            for v in np.linspace(-120.0, 60.0, 19).tolist()
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

    First the file runs as in a cell that sets nothing of its ions, unless a comment of the file
    states them; then with other values of the free parameters and at another temperature, which
    shows that they are where the file has them.
    Each run has two truths (`scoring.neuron.held`): what CVODE integrates, and matrix exponentials
    of the derivatives that NEURON computes. A model that agrees with either is proven.

    Arguments:
        mechanism: the file and its translation.
        simulate: gives the currents of a model under a protocol.
        protocols: steps of voltage; two families of them without it.

    Raises:
        NeuronUnavailable: there is no NEURON or no compiler.
        InputError: the file does not compile, or does not run.
    """
    check_compiler()
    families = tuple(protocols or step_families())
    cases = list(_cases(mechanism))
    stated = any(given.stated for given in mechanism.imported.names.values())
    jobs = [
        _job(mechanism, model, protocol, ions=k > 0 or stated)
        for k, (_, model) in enumerate(cases)
        for protocol in families
    ]
    tabled = any(
        tree.kind == "TableStatement"
        for block in mechanism.declared.functions.values()
        for tree in block.walk()
    )
    with tempfile.TemporaryDirectory() as folder:
        theirs = _theirs(mechanism, jobs, Path(folder))
        compared = []
        for k, (label, model) in enumerate(cases):
            for j, protocol in enumerate(families):
                ours = simulate(model, protocol)
                name = f"{protocol.name}, {label}"
                compared.append(_Compared(name, ours, theirs[k * len(families) + j], protocol))
        found = _judged(mechanism, compared)
        return _with_table(mechanism, found, compared[0], Path(folder)) if tabled else found


class _Compared:
    """One run, beside both truths."""

    def __init__(
        self, name: str, ours: Array, theirs: Mapping[str, Array | str], protocol: Protocol
    ) -> None:
        self.name, self.ours, self.protocol, self.theirs = name, ours, protocol, theirs
        cvode, exact = theirs["cvode"], theirs["exact"]
        assert not isinstance(cvode, str)
        self.cvode, self.why = cvode, str(theirs["why"])
        self.exact: Array | None = None if isinstance(exact, str) else exact
        self.no_exact = exact if isinstance(exact, str) else ""
        limits = theirs["limits"]
        assert not isinstance(limits, str)
        self.limits: list[float] = limits.tolist()
        #: Which sweeps CVODE integrated at voltages where the file is what it seems.
        self.regular = np.array(
            [
                self._integrated(k) and not self._voltages(k) & set(self.limits)
                for k in range(len(cvode))
            ]
        )
        known = [cvode[self.regular], *([] if self.exact is None else [self.exact])]
        self.scale = max(float(np.nanmax(np.abs(x), initial=0.0)) for x in known)

    def _integrated(self, sweep: int) -> bool:
        """Return whether CVODE came to the end of a sweep."""
        _, last = self.protocol.sample_ranges(sweep)[-1]
        return bool(np.isfinite(self.cvode[sweep, :last]).all())

    def _voltages(self, sweep: int) -> set[float]:
        segments = self.protocol.sweeps[sweep]
        steps = {float(s.voltage(np.array(s.start_ms))) for s in segments}
        return {self.protocol.holding_mV, *steps}

    @property
    def by_cvode(self) -> float:
        """The error beside CVODE, in the sweeps that it integrated; infinite without any."""
        return apart(self.ours[self.regular], self.cvode[self.regular], self.scale)

    @property
    def by_exact(self) -> float:
        """The error beside matrix exponentials; infinite where there are none."""
        return np.inf if self.exact is None else apart(self.ours, self.exact, self.scale)

    @property
    def integrators_apart(self) -> float:
        """The difference of both truths, as a share of the peak."""
        if self.exact is None:
            return 0.0
        return apart(self.exact[self.regular], self.cvode[self.regular], self.scale)

    def jumps(self) -> dict[float, float]:
        """Return how far NEURON is from its limits beside a voltage, as a share of the peak."""
        found: dict[float, float] = {}
        if self.exact is None:
            return found
        for sweep in np.flatnonzero(~self.regular).tolist():
            there = self._voltages(sweep) & set(self.limits)
            if len(there) == 1 and self._integrated(sweep):
                at = next(iter(there))
                step = apart(self.exact[[sweep]], self.cvode[[sweep]], self.scale)
                found[at] = max(step, found.get(at, 0.0))
        return found


def _judged(mechanism: Mechanism, compared: Sequence[_Compared]) -> Proof:
    """Return the verdict of all runs, with notes on the truths."""
    if not any(one.scale > 0 for one in compared):
        raise InputError("the file's current is 0 throughout, so that nothing can be compared")
    whole = all(one.regular.all() for one in compared)
    by_cvode, by_exact = (
        max(getattr(one, name) for one in compared) for name in ("by_cvode", "by_exact")
    )
    if not np.isfinite(by_exact) and not whole:
        why = next(one.why or one.no_exact for one in compared if not one.regular.all())
        raise InputError(f"{_NO_NUMBER} {why}")
    exact = not whole or (by_exact < by_cvode and by_cvode > TOLERANCE)
    runs = tuple((one.name, one.by_exact if exact else one.by_cvode) for one in compared)
    notes = [*_of_singular(compared), *_of_the_cell(mechanism, compared[0])]
    integrators = max(one.integrators_apart for one in compared)
    if exact and integrators > TOLERANCE:
        notes.append(
            f"NEURON's integrator, CVODE, is {integrators:.1e} of the peak from the exact solution "
            "of the file's own equations, which decides"
        )
    gave_up = next((one.why for one in compared if one.why), "")
    if gave_up and not any(one.limits for one in compared):
        notes.append(f"CVODE gave up {' '.join(gave_up.split())[:120]}")
    error = max(error for _, error in runs)
    truth = STEPS if mechanism.found.stepped else EXACT if exact else CVODE
    return Proof(error, runs, None, tuple(notes), truth)


def _of_singular(compared: Sequence[_Compared]) -> Iterator[str]:
    """Yield notes on voltages at which the file is 0/0 or jumps."""
    jumps: dict[float, float] = {}
    for one in compared:
        for at, step in one.jumps().items():
            jumps[at] = max(step, jumps.get(at, 0.0))
    limits = sorted({v for one in compared for v in one.limits})
    undefined = [f"{v:g}" for v in limits if v not in jumps]
    if undefined:
        yield (
            f"the file gives no number at {', '.join(undefined)} mV (0/0); there the model has the "
            "limit, and was compared with it"
        )
    for at, step in jumps.items():
        if step > TOLERANCE:
            yield (
                f"at {at:g} mV, and there alone, the file's current differs by {100 * step:.2g} % "
                "of the peak from that beside it; the model has that beside it"
            )


def _of_the_cell(mechanism: Mechanism, first: _Compared) -> Iterator[str]:
    """Yield notes where a cell that sets nothing has other values of the ions than the model."""
    cell = first.theirs["cell"]
    assert not isinstance(cell, str)
    names = mechanism.imported.names
    values = parse_yaml(mechanism.imported.text)["parameters"]
    for (name, given), own in zip(names.items(), cell.tolist(), strict=True):
        value = float(values[name]["value"])
        if given.kind and abs(own - value) > _SIX_DIGITS * max(abs(own), abs(value)):
            yield f"in a cell that does not set it {given.own} is {own:.6g}, here {value:.6g}"


def _with_table(mechanism: Mechanism, found: Proof, first: _Compared, folder: Path) -> Proof:
    """Return the proof with the error of the file's own TABLE, which another process computes.

    In one that has run before, what the file keeps in GLOBAL variables, such as a factor of the
    temperature, would be that of the run before.
    """
    end_second_process()
    job = _job(mechanism, mechanism.imported.model, first.protocol, ions=False, table=True)
    try:
        (tabled,) = _theirs(mechanism, [job], folder)
    except InputError as error:
        return replace(found, notes=(*found.notes, f"with the file's own TABLE: {error.message}"))
    table = tabled["cvode"]
    assert not isinstance(table, str)
    if not np.isfinite(table[np.isfinite(first.ours)]).all():
        note = f"with the file's own TABLE NEURON gives no number: {tabled['why']}"
        return replace(found, notes=(*found.notes, note))
    return replace(found, table=apart(first.ours, table))


def _cases(mechanism: Mechanism) -> list[tuple[str, ChannelModel]]:
    """Return models that differ in their values, each with a description."""
    made = mechanism.imported
    cases = [("the file's values", made.model)]
    free = [not p.fixed for p in made.model.parameters]
    values = made.model.values() * np.where(free, _MORE, 1.0)
    moved = made.model.with_values(values)
    label = f"free parameters times {_MORE:g}"
    if made.model.temperature_C is not None:
        document = parse_yaml(made.text)
        document["temperature"] = made.model.temperature_C + _WARMER
        moved = build_model(document, None).with_values(values)
        label += f", {_WARMER:g} degC warmer"
    return [*cases, (label, moved)]


def apart(ours: Array, theirs: Array, scale: float | None = None) -> float:
    """Return the largest difference over the largest current; infinite where one is no number.

    Arguments:
        ours, theirs: currents of the same shape; samples at which both are NaN are none.
        scale: the largest current, where it is known from elsewhere.
    """
    if scale is None:
        scale = float(np.abs(theirs).max(initial=0.0))
    if not scale > 0:
        raise InputError("the file's current is 0 throughout, so that nothing can be compared")
    difference = np.abs(ours - theirs)
    difference[np.isnan(ours) & np.isnan(theirs)] = 0.0
    return float(np.nan_to_num(difference, nan=np.inf).max(initial=0.0)) / scale


def _job(
    mechanism: Mechanism,
    model: ChannelModel,
    protocol: Protocol,
    ions: bool,
    table: bool = False,
) -> Any:
    """Return one run for the other process, as plain data.

    Arguments:
        ions: whether reversal potentials and concentrations are set, or left to the cell.
        table: whether the file's own TABLE is used.
    """
    made, declared = mechanism.imported, mechanism.declared
    values = dict(zip(model.parameter_names, model.values().tolist(), strict=True))
    base = dict(zip(made.model.parameter_names, made.model.values().tolist(), strict=True))
    document = parse_yaml(made.text)["parameters"]
    settings = []
    for name, given in made.names.items():
        written = float(document[name]["value"])
        ratio = values[name] / base[name] if base[name] else 1.0
        settings.append([given.kind, given.own, written * ratio * given.factor])
    return {
        "settings": settings,
        "range": sorted(declared.range_variables),
        "celsius": declared.celsius if model.temperature_C is None else model.temperature_C,
        "table": table,
        "ions": ions,
        "faults": [fault.voltage for fault in mechanism.found.faults],
        **plain_protocol(protocol),
    }


def plain_protocol(protocol: Protocol) -> dict[str, Any]:
    """Return steps and ramps as plain data: each segment with its voltages at both ends."""
    return {
        "holding": protocol.holding_mV,
        "sampling": protocol.sampling_ms,
        "sweeps": [
            [
                [s.start_ms, s.end_ms, *s.voltage(np.array([s.start_ms, s.end_ms])).tolist()]
                for s in sweep
            ]
            for sweep in protocol.sweeps
        ],
        "ranges": [list(map(list, protocol.sample_ranges(k))) for k in range(protocol.n_sweeps)],
        "samples": protocol.n_times_max,
    }


def computed_in_process(
    reader: str, job: Mapping[str, Any], kind: str, folder: Path
) -> dict[str, Any]:
    """Return the results of a job, computed in another process.

    Arguments:
        reader: the function that computes it there, as MODULE:FUNCTION.
        job: its argument, plain data.
        kind: the kind of file that is read, for messages.
        folder: for the file that holds the job.
    """
    path = folder / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    try:
        return dict(read_in_process(reader, path, kind, _SECONDS))
    except InputError as error:
        raise InputError(error.message) from None


def _theirs(mechanism: Mechanism, jobs: list[Any], folder: Path) -> list[dict[str, Array | str]]:
    """Return the results of `held` for each job, by name; from the other process."""
    declared = mechanism.declared
    read = [given for given in declared.parameters.values() if given.kind]
    # the ion of a reversal potential such as ena, or of a concentration such as cai
    ions = {given.own[1:] if given.kind == "reversal" else given.own[:-1] for given in read}
    whole = {
        "text": mechanism.text,
        "point": declared.point,
        "currents": declared.currents,
        "ions": sorted(ions),
        "per_pA": mechanism.found.per_pA,
        "area": mechanism.imported.area,
        "steady": sorted(mechanism.found.steady),
        "settle": mechanism.found.settled,
        "stepped": mechanism.found.stepped,
        "jobs": jobs,
    }
    found = computed_in_process(_HELD, whole, "a mechanism", folder)
    rows: list[dict[str, Array | str]] = [{} for _ in jobs]
    for key, value in found.items():
        what, _, k = key.partition(" ")
        rows[int(k)][what] = value if isinstance(value, str) else np.asarray(value, dtype=float)
    return rows
