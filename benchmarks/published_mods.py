"""Published .mod files against the same channel in our YAML, nineteen steps from -120 to +60 mV.

    python benchmarks/published_mods.py [FOLDER]

NEURON brings two of the files itself. The others are not ours to pass on: fetch them, for example

    pip download --no-deps dbbs-catalogue==6.0.1 bmtk==1.2.0

unpack the wheels anywhere into FOLDER, and they are found by name and by their SHA-256; what is not
there is left out, and said so. Each file is compiled by nrnivmodl in a temporary folder and integrated
by CVODE at an exactly held voltage. Where a file as published is further off than the bar, the reason is
shown by mending that in a copy of its text (no table, a settled start, a slip of the pen) and
measuring again: what the mending moves is the file's error, what it leaves is ours.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from report import Row, finish, missing

from channelfit.backends import make_scorer
from channelfit.errors import InputError
from channelfit.model import ChannelModel, load_model
from channelfit.neuron_oracle import compile_mechanism, neuron_hoc
from channelfit.problem import Experiment, Problem
from channelfit.protocol import TIME_TOLERANCE, Constant, Protocol, Segment

Array = npt.NDArray[np.float64]
MODELS = Path(__file__).parent.parent / "models" / "published"
#: Largest error over the largest current of the nineteen sweeps.
BAR = 1e-6
#: Absolute tolerance of an occupancy in CVODE.
TOLERANCE = 1e-13
#: pA of 1 mA/cm2 through 1 um2; nS of 1 S/cm2 on 1 um2 is the same number.
PER_AREA = 10.0
SETTLE_MS = 1e5


@dataclass(frozen=True)
class Case:
    """One file, the model that says the same, and what is known to be wrong with the file.

    density: the RANGE variable (S/cm2, mA/cm2 or cm/s) that follows from `size`, the model's
        parameter (nS, pA or um3/ms) over the membrane's area.
    ions: NEURON's name of a reversal potential or concentration -> the model's parameter.
    constants: GLOBAL variables of the file -> the model's parameter, where it has another value.
    table: whether the file looks its rates up in a table, which `usetable_` switches off.
    settle: whether its INITIAL block misses the steady state, which a long rest reaches.
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
    values: dict[str, float] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    table: bool = False
    settle: bool = False
    mended: tuple[tuple[str, str], ...] = ()
    reason: str = ""
    note: str = ""


_DBBS = "dbbs-catalogue 6.0.1, GPL-3"
_BMTK = "bmtk 1.2.0, BSD-3"
_NEURON = "NEURON's release demonstration, BSD-3"
_SLOW_START = "SOLVE .. STEADYSTATE sparse stops short of the steady state"
_TABLE = "a TABLE of 200 intervals between -100 and 100 mV, constant outside of them"

CASES = (
    Case(
        "nav16_raman_bean", "Nav1_6__0.mod", _DBBS, "ina", "gbar", "gmax", {"ena": "ena"},
        "", settle=True, reason=_SLOW_START,
    ),
)  # fmt: skip


class DensityMechanism:
    """A compiled SUFFIX mechanism on one compartment whose voltage is exactly what is asked for.

    The membrane's capacitance is so large that no current moves the voltage by a rounding.
    """

    def __init__(self, case: Case, model: ChannelModel, mended: bool, cache: Path, text: str):
        self.case, self.model, self.mended = case, model, mended
        if mended:
            for wrong, right in case.mended:
                if text.count(wrong) != 1:
                    raise InputError(f'"{wrong}" does not stand once in {case.file}')
                text = text.replace(wrong, right)
        self.name = compile_mechanism(text, cache)

    def simulate(self, protocol: Protocol, values: Array) -> Array:
        """(n_sweeps, n_times_max) pA for the parameters (n_parameters,)."""
        h = neuron_hoc()
        solver, before = h.CVode(), (h.celsius, h.CVode().active())
        section = h.Section(name="published")
        section.L = section.diam = 10.0
        section.cm = 1e20
        section.insert(self.name)
        out = np.full((protocol.n_sweeps, protocol.n_times_max), np.nan)
        solver.active(True)
        tolerances = solver.atol(), solver.rtol()
        solver.atol(TOLERANCE)
        solver.rtol(0)
        try:
            h.celsius = self.model.temperature_C
            self._set(h, section, values)
            for sweep in range(protocol.n_sweeps):
                h.finitialize(protocol.holding_mV)
                if self.mended and self.case.settle:
                    solver.solve(SETTLE_MS)
                self._run(h, section(0.5), protocol, sweep, out[sweep])
        finally:
            solver.atol(tolerances[0])
            solver.rtol(tolerances[1])
            h.celsius = before[0]
            solver.active(before[1])
            h.delete_section(sec=section)
        return out

    def _set(self, h: Any, section: Any, values: Array) -> None:
        known = dict(zip(self.model.parameter_names, values.tolist(), strict=True))
        place = section(0.5)
        for name, ours in self.case.ions.items():
            setattr(place, name, known[ours])
        for name, ours in self.case.constants.items():
            setattr(h, f"{name}_{self.name}", known[ours])
        if self.case.table:
            setattr(h, f"usetable_{self.name}", 0 if self.mended else 1)
        size = known[self.case.size] / (PER_AREA * place.area())
        setattr(getattr(place, self.name), self.case.density, size)

    def _run(self, h: Any, place: Any, protocol: Protocol, sweep: int, row: Array) -> None:
        solver, period = h.CVode(), protocol.sampling_ms
        ranges = protocol.sample_ranges(sweep)
        for segment, (first, last) in zip(protocol.sweeps[sweep], ranges, strict=True):
            h.t, place.v = 0.0, segment.wave.v_mV
            solver.re_init()
            for k in range(first, last):
                self._advance(h, max(k * period - segment.start_ms, 0.0))
                h.fcurrent()
                row[k] = PER_AREA * place.area() * getattr(place, self.case.current)
            self._advance(h, segment.end_ms - segment.start_ms)

    def _advance(self, h: Any, until_ms: float) -> None:
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


def found(case: Case, folders: list[Path]) -> Path:
    """The file of a case, the one with the right contents where several bear its name.

    Raises:
        InputError: there is none, or only others.
    """
    candidates = [path for folder in folders for path in sorted(folder.rglob(case.file))]
    if not candidates:
        raise InputError(f"{case.file} of {case.source} is not there")
    for path in candidates:
        if not case.sha256 or hashlib.sha256(path.read_bytes()).hexdigest() == case.sha256:
            return path
    raise InputError(f"{case.file}: none of {len(candidates)} is the version of {case.source}")


def neurons_own() -> list[Path]:
    """Folders of mechanisms that come with NEURON."""
    import neuron

    places = [Path(neuron_hoc().neuronhome()), Path(neuron.__file__).parent / ".data" / "share"]
    return [place for place in places if place.is_dir()]
