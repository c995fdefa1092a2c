"""Published .mod files against the same channel in our YAML, nineteen steps from -120 to +60 mV.

    python benchmarks/published_mods.py [FOLDER]

NEURON brings two of the files itself. The others are not ours to pass on. Fetch them, for example

    pip download --no-deps dbbs-catalogue==6.0.1 bmtk==1.2.0

and unpack the wheels anywhere in FOLDER: they are found by name and SHA-256, and what is not there
is left out and said so. Each file is compiled by nrnivmodl in a temporary folder and integrated by
CVODE at an exactly held voltage. Where a file as published is further off than the bar, its reason
is put to the test: mended in a copy of the text, or with its table switched off, the file is
measured again. What the mending moves was the file's error, what it leaves is ours.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from report import Row, as_script, finish, missing

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import load_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.waves import TIME_TOLERANCE, Constant, Segment
from channelfit.reading.errors import InputError
from channelfit.scoring.neuron.mechanisms import compile_mechanism, neuron_hoc
from channelfit.scoring.scorer import make_scorer

Array = npt.NDArray[np.float64]
MODELS = Path(__file__).parent.parent / "models" / "published"
#: Largest error over the largest current of the nineteen sweeps.
BAR = 1e-6
#: Absolute tolerance of an occupancy in CVODE.
TOLERANCE = 1e-13
#: pA of 1 mA/cm2 through 1 um2; nS of 1 S/cm2 on 1 um2 is the same number.
PER_AREA = 10.0


@dataclass(frozen=True)
class Case:
    """One file, the model that says the same, and what is known to be wrong with the file.

    density: the RANGE variable (S/cm2, mA/cm2 or cm/s) that follows from `size`, the model's
        parameter (nS, pA or um3/ms) over the membrane's area.
    ions: NEURON's name of a reversal potential or concentration -> the model's parameter.
    sha256: of the file; none where it comes with the NEURON that is installed.
    kind: what is particular about the channel.
    values: parameters that have another value than in the model's file.
    constants: GLOBAL variables of the mechanism -> the model's parameter that they follow.
    table: whether the file looks its rates up in a table, which `usetable_` switches off.
    mended: text that is wrong in the file, and what it should be.
    reason: of what the mending mends, in words.
    """

    model: str
    file: str
    source: str
    current: str
    density: str
    size: str
    ions: dict[str, str]
    sha256: str = ""
    kind: str = ""
    values: dict[str, float] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    table: bool = False
    mended: tuple[tuple[str, str], ...] = ()
    reason: str = ""

    @property
    def can_be_mended(self) -> bool:
        """Return whether a mended copy of the file is measured as well."""
        return bool(self.mended or self.table)


_DBBS = "dbbs-catalogue 6.0.1, GPL-3"
_BMTK = "bmtk 1.2.0, BSD-3"
_NEURON = "NEURON's demo/release, BSD-3"
_TABLE = "rates from a TABLE of 200 intervals, -100 to 100 mV, held at its ends beyond"

CASES = (
    Case(
        "nav16_raman_bean",
        "Nav1_6__0.mod",
        _DBBS,
        "ina",
        "gbar",
        "gmax",
        {"ena": "ena"},
        "245c1311ad1ea6d2ddc8b37df0e851a3416f8b9bc9438598ba6686184d083e02",
        kind="13 states, five cycles, rates to 1.6e5 /ms, q10",
    ),
    Case(
        "nav_carter",
        "NaV.mod",
        _BMTK,
        "ina",
        "gbar",
        "gmax",
        {"ena": "ena"},
        "635605ba861c070f8fdc273365f3a0fca6eee24762afc9b102161fdd6e9cfc42",
        kind="12 states, five cycles, one far from balance, q10",
        mended=(("I4*bi3", "I4*b13"),),
        reason="bi3 for b13 in its INITIAL block: it starts beside the steady state",
    ),
    Case(
        "bk_cox",
        "Kca1_1__0.mod",
        _DBBS,
        "ik",
        "gbar",
        "gmax",
        {"ek": "ek", "cai": "cai"},
        "6a468110ad194365fb8338a1e5b9f5502a46c49cf91984fcc33a9318ab10fd8b",
        kind="10 states, four cycles, five open, calcium constant, q10",
    ),
    Case(
        "sk2_hirschberg",
        "Kca2_2__0.mod",
        _DBBS,
        "ik",
        "gkbar",
        "gmax",
        {"ek": "ek", "cai": "cai"},
        "61f9d3a5aa26a127a8f4a5f592abd28963c86a4ebf1354e66cd4ca9d1cf894ea",
        kind="6 states, two open, calcium constant, q10",
    ),
    Case(
        "hcn2_golgi",
        "HCN2__0.mod",
        _DBBS,
        "ih",
        "gbar",
        "gmax",
        {},
        "1914e7cd4f3c8df55089ebff35ee5fd8e72a540b5b748fc7ee76b6402920fd46",
        kind="a sum of two gates, inf in three pieces, two q10",
        table=True,
        reason="rates from a TABLE, -100 to 30 mV, held at its ends beyond",
    ),
    Case(
        "cav31_anwar",
        "Cav3_1__0.mod",
        _DBBS,
        "ica",
        "pcabar",
        "p",
        {"cai": "cai", "cao": "cao"},
        "7057121cf0d328630504e2b9135b764067e13c8d352846e35e320d8d97184306",
        kind="GHK by an instantaneous gate, tau in two pieces, q10",
    ),
    Case(
        "kv34_khaliq",
        "Kv3_4__0.mod",
        _DBBS,
        "ik",
        "gkbar",
        "gmax",
        {"ek": "ek"},
        "80ef2ccacc1f9b4d1563244b4c08363fb9c6bd593dba4e7b6447242d38cfa3ed",
        kind="gates, each tau in two pieces, q10",
    ),
    Case(
        "kv34_khaliq",
        "Kv3_4__0.mod",
        _DBBS,
        "ik",
        "gkbar",
        "gmax",
        {"ek": "ek"},
        "80ef2ccacc1f9b4d1563244b4c08363fb9c6bd593dba4e7b6447242d38cfa3ed",
        kind="the same with hiA = 0.78 as in Khaliq et al.: inf reaches 1.09",
        values={"ha": 0.78},
        constants={"hiA": "ha"},
    ),
    Case(
        "na_squid",
        "nachan.mod",
        _NEURON,
        "ina",
        "gnabar",
        "gmax",
        {"ena": "ena"},
        kind="gates, q10, 0/0 in a rate",
        table=True,
        reason=_TABLE,
    ),
    Case(
        "ca_augustine",
        "cachan1.mod",
        _NEURON,
        "ica",
        "imax",
        "imax",
        {"cai": "cai", "cao": "cao"},
        kind="a saturating calcium current by an instantaneous gate",
        table=True,
        reason=_TABLE,
    ),
)


class DensityMechanism:
    """A compiled SUFFIX mechanism on one compartment at exactly the given voltage.

    The membrane's capacitance is so large that no current moves the voltage by a rounding.

    Arguments:
        case, model, text: the file's text, and what is known of it.
        mended: whether to mend what the case knows to be wrong.
        cache: folder for what nrnivmodl makes; the user's cache without it.

    Raises:
        InputError: what is to be mended does not stand once in the text.
        NeuronUnavailable: no NEURON or no compiler.
    """

    def __init__(
        self, case: Case, model: ChannelModel, text: str, mended: bool, cache: Path | None = None
    ) -> None:
        self.case, self.model, self.mended = case, model, mended
        for wrong, right in case.mended if mended else ():
            if text.count(wrong) != 1:
                raise InputError(f'"{wrong}" stands {text.count(wrong)} times in {case.file}')
            text = text.replace(wrong, right)
        self.name = compile_mechanism(text, cache)

    def simulate(self, protocol: Protocol, values: Array) -> Array:
        """(n_sweeps, n_times_max) pA for the parameters (n_parameters,), steps only."""
        h = neuron_hoc()
        solver = h.CVode()
        before = solver.active(), solver.atol(), solver.rtol(), h.celsius
        section = h.Section(name="published")
        section.L = section.diam = 10.0
        section.cm = 1e20
        section.insert(self.name)
        out = np.full((protocol.n_sweeps, protocol.n_times_max), np.nan)
        try:
            solver.active(True)
            solver.atol(TOLERANCE)
            solver.rtol(0)
            h.celsius = self.model.temperature_C
            self._set(h, section(0.5), values)
            for sweep in range(protocol.n_sweeps):
                h.finitialize(protocol.holding_mV)
                self._run(h, section(0.5), protocol, sweep, out[sweep])
        finally:
            h.delete_section(sec=section)
            active, atol, rtol, h.celsius = before
            solver.atol(atol)
            solver.rtol(rtol)
            solver.active(active)
        return out

    def _set(self, h: Any, place: Any, values: Array) -> None:
        known = dict(zip(self.model.parameter_names, values.tolist(), strict=True))
        for name, ours in self.case.ions.items():
            setattr(place, name, known[ours])
        for name, ours in self.case.constants.items():
            setattr(h, f"{name}_{self.name}", known[ours])
        if self.case.table:
            setattr(h, f"usetable_{self.name}", 0 if self.mended else 1)
        density = known[self.case.size] / (PER_AREA * place.area())
        setattr(getattr(place, self.name), self.case.density, density)

    def _run(self, h: Any, place: Any, protocol: Protocol, sweep: int, row: Array) -> None:
        solver, period = h.CVode(), protocol.sampling_ms
        ranges = protocol.sample_ranges(sweep)
        for segment, (first, last) in zip(protocol.sweeps[sweep], ranges, strict=True):
            assert isinstance(segment.wave, Constant)
            # NEURON's clock starts anew, so that the first steps are not lost beside a late t.
            h.t, place.v = 0.0, segment.wave.v_mV
            solver.re_init()
            for k in range(first, last):
                _advance(h, k * period - segment.start_ms)
                row[k] = self._current(h, place)
            _advance(h, segment.end_ms - segment.start_ms)

    def _current(self, h: Any, place: Any) -> float:
        h.fcurrent()
        owner = place if hasattr(place, self.case.current) else getattr(place, self.name)
        return PER_AREA * float(place.area() * getattr(owner, self.case.current))


def _advance(h: Any, until_ms: float) -> None:
    if until_ms - h.t > TIME_TOLERANCE * 1e-3:
        h.CVode().solve(until_ms)


def steps(holding_mV: float = -90.0, tail_mV: float = -50.0) -> Protocol:
    """Nineteen steps of 50 ms from -120 to +60 mV, then a tail: a sample each 25 us."""
    sweeps = tuple(
        (
            Segment(0.0, 1.0, Constant(holding_mV)),
            Segment(1.0, 51.0, Constant(v)),
            Segment(51.0, 61.0, Constant(tail_mV)),
        )
        for v in np.linspace(-120.0, 60.0, 19).tolist()
    )
    return Protocol("nineteen steps", holding_mV, 0.025, sweeps)


def found(case: Case, folders: Sequence[Path]) -> Path:
    """The file of a case, the one with the right contents where several bear its name.

    Raises:
        InputError: there is none, or only others.
    """
    paths = [path for folder in folders for path in sorted(folder.rglob(case.file))]
    for path in paths:
        if not case.sha256 or hashlib.sha256(path.read_bytes()).hexdigest() == case.sha256:
            return path
    if paths:
        raise InputError(f"not the version of {case.source}, SHA-256 {case.sha256}", paths[0])
    raise InputError(f"{case.file} of {case.source} is not there")


def neurons_own() -> list[Path]:
    """The folder of the release demonstration that comes with NEURON, wherever it was put."""
    home = Path(neuron_hoc().neuronhome())
    places = (home / "demo" / "release", home.parent / "nrn" / "demo" / "release")
    return [place for place in places if place.is_dir()][:1]


def model_of(case: Case) -> tuple[ChannelModel, Array]:
    """The model that says the same, and its parameters (n_parameters,)."""
    model = load_model(MODELS / f"{case.model}.yaml")
    values = model.values()
    for name, value in case.values.items():
        values[model.parameter_names.index(name)] = value
    return model, values


def errors(
    case: Case, text: str, mended: bool, protocol: Protocol, cache: Path | None = None
) -> dict[str, float]:
    """By backend, the largest difference from NEURON over the largest current."""
    model, values = model_of(case)
    theirs = DensityMechanism(case, model, text, mended, cache).simulate(protocol, values)
    problem = Problem(model, (Experiment(protocol),))
    apart = {}
    for backend in ("reference", "cpu"):
        ours = make_scorer(problem, backend).simulate(values[:, None])[0][:, :, 0]
        # A sample without a number is as far off as can be.
        apart[backend] = float(np.nan_to_num(np.abs(ours - theirs), nan=np.inf).max())
    return {backend: error / float(np.abs(theirs).max()) for backend, error in apart.items()}


def measured(case: Case, folders: Sequence[Path], protocol: Protocol, cache: Path) -> Iterator[Row]:
    """The file as published, and mended where there is something to mend."""
    name = ", ".join([case.model, case.file, *(f"{k} = {x}" for k, x in case.values.items())])
    try:
        path = found(case, folders)
    except InputError as error:
        yield missing(name, "of largest current", str(error))
        return
    # Some of the files are older than UTF-8.
    text = path.read_bytes().decode("latin-1")
    worst, listed = _worst(errors(case, text, False, protocol, cache))
    note = f"{case.kind}; {case.source}; {listed}"
    if worst > BAR:
        note += f". The file: {case.reason}" if case.can_be_mended else ". Not explained"
    yield Row(name, worst, "of largest current", BAR, worst / BAR, note)
    if worst > BAR and case.can_be_mended:
        worst, listed = _worst(errors(case, text, True, protocol, cache))
        yield Row(f"{name}, mended", worst, "of largest current", BAR, worst / BAR, listed)


def _worst(by_backend: dict[str, float]) -> tuple[float, str]:
    listed = ", ".join(f"{backend} {error:.1e}" for backend, error in by_backend.items())
    return max(by_backend.values()), listed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="where the fetched files lie")
    parser.add_argument("--out", type=Path, help="folder of the results")
    options = parser.parse_args()
    if options.folder and not options.folder.is_dir():
        parser.error(f"{options.folder} is not a folder")
    folders = [options.folder] if options.folder else []
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as cache:
        for case in CASES:
            rows += measured(case, [*folders, *neurons_own()], steps(), Path(cache))
            print(f"{rows[-1].name} done", flush=True)
    title = "Published .mod files against the same channels in YAML, nineteen steps"
    finish("published_mods", title, rows, folder=options.out)


if __name__ == "__main__":
    as_script(main)
