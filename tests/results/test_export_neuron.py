"""Exported mechanisms in NEURON: the same currents, any terms and temperature, a spiking cell."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import channelfit as cf
from channelfit.model.model_file import build_model
from channelfit.results.export.kinds import exported
from channelfit.results.export.nmodl import ExportSettings
from channelfit.results.export.subject import Subject
from channelfit.scoring.neuron import mechanisms
from channelfit.scoring.neuron.mechanisms import NeuronUnavailable, compile_mechanism
from channelfit.scoring.neuron.oracle import CLAMP
from support.exports import BAR, MODELS, WHOLE_CELL, exports, of, simulated, steps, subject
from support.term_models import DOCUMENTS, document
from support.truths import slow_but

pytestmark = pytest.mark.integration


#: Each takes NEURON seconds to compile: of the shipped models those with unlike formulas.
SIMULATED = ["na_hh", "hcn2_golgi", "herg_markov", "cav31_anwar", "nav16_raman_bean"]
SIMULATED += [name for name in DOCUMENTS if name != "background alone"]


@pytest.fixture(scope="module", autouse=True)
def neuron() -> Any:
    """NEURON with a working compiler; without, the tests skip and say why."""
    try:
        compile_mechanism(CLAMP)
    except NeuronUnavailable as error:
        pytest.skip(str(error))
    return mechanisms.neuron_hoc()


@pytest.mark.parametrize("name", MODELS)
def test_neurons_check_of_units_has_nothing_to_say(name: str, tmp_path: Path) -> None:
    check = shutil.which("modlunit", path=str(Path(sys.executable).parent))
    if check is None:
        pytest.skip("no modlunit beside this Python")
    (tmp_path / "a.mod").write_text(exported(subject(name), "nmodl", WHOLE_CELL))
    command = [check, "a.mod"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout + done.stderr).split() == ["Checking", "units", "of", "a.mod"]
    assert done.returncode == 0


@pytest.mark.parametrize("name", slow_but(["hcn2_golgi", "sum of all"], SIMULATED))
def test_a_density_carries_the_models_current(name: str) -> None:
    protocol = steps()
    if name in DOCUMENTS:
        found, model = of(document(name)), build_model(document(name), None)
        own, temperature = simulated(model, model.values(), protocol), model.temperature_C
    else:
        found = subject(name)
        own, temperature = exports.ours(MODELS[name], protocol), found.temperature_C
    text = exported(found, "nmodl", WHOLE_CELL)
    assert exports.apart(exports.in_neuron(text, protocol, temperature), own) < BAR
    if "METHOD cnexp" in text:  # exact, as long as the voltage stands still
        fixed = exports.in_neuron(text, protocol, temperature, fixed_step_ms=0.025)
        assert exports.apart(fixed, own) < BAR


def test_concentrations_and_reversal_potentials_are_the_cells() -> None:
    protocol = steps()
    data = document("calcium")
    data["parameters"]["ci"] |= {"value": 1e-3, "range": [1e-4, 1e-2]}
    model = build_model(data, None)
    text = exported(of(document("calcium")), "nmodl", replace(WHOLE_CELL, ions=("ca",)))
    ions = {"cai": 1e-3, "cao": 2.0}
    theirs = exports.in_neuron(text, protocol, model.temperature_C, ions)
    assert exports.apart(theirs, simulated(model, model.values(), protocol)) < BAR
    text = exported(subject("na_squid"), "nmodl", replace(WHOLE_CELL, ions=("na",)))
    model = build_model(cf.Model.load(MODELS["na_squid"]).document, None)
    values = model.values()
    values[model.parameter_names.index("ena")] = 63.0
    theirs = exports.in_neuron(text, protocol, 16.0, {"ena": 63.0})
    assert exports.apart(theirs, simulated(model, values, protocol)) < BAR


@pytest.mark.parametrize("name", ["na_squid", "hcn2_golgi"])
def test_celsius_is_live(name: str) -> None:
    """The q10 of rates and of a conductance follow NEURON's temperature."""
    data = cf.Model.load(MODELS[name]).document | {"temperature": "25 degC"}
    model, protocol = build_model(data, None), steps()
    text = exported(subject(name), "nmodl", WHOLE_CELL)
    theirs = exports.in_neuron(text, protocol, 25.0)
    assert exports.apart(theirs, simulated(model, model.values(), protocol)) < BAR


def test_a_point_process_is_the_whole_cell(neuron: Any) -> None:
    found = subject("na_hh")
    text = exported(found, "nmodl", ExportSettings(("na",), point_process=True))
    assert "POINT_PROCESS na_hh" in text
    section = neuron.Section(name="cell")
    process = getattr(neuron, compile_mechanism(text))(section(0.5))
    section.ena = 50.0
    neuron.finitialize(-20.0)
    wanted = 50.0 * process.m**3 * process.h * (-20.0 - 50.0)  # nS mV is pA
    flow = section(0.5).ina * section(0.5).area() * 1e-8 * 1e9  # mA/cm2 on um2 in pA
    assert flow == pytest.approx(wanted, rel=1e-9)


def spiking(neuron: Any, section: Any, adaptive: bool) -> np.ndarray:
    """The voltage (mV) every 0.025 ms of 100 ms, in which 0.2 nA flow from 5 ms on."""
    solver = neuron.CVode()
    before = solver.active(), solver.atol(), solver.rtol(), neuron.dt, neuron.celsius
    clamp = neuron.IClamp(section(0.5))
    clamp.delay, clamp.dur, clamp.amp = 5, 95, 0.2
    recorded = neuron.Vector().record(section(0.5)._ref_v, 0.025)
    neuron.celsius = 6.3
    try:
        solver.active(adaptive)
        solver.atol(1e-9)
        solver.rtol(1e-9)
        neuron.dt = 0.025
        neuron.finitialize(-65.0)
        if adaptive:
            solver.solve(100.0)
        else:
            for _ in range(4000):
                neuron.fadvance()
        return np.array(recorded)
    finally:
        active, atol, rtol, neuron.dt, neuron.celsius = before
        solver.atol(atol)
        solver.rtol(rtol)
        solver.active(active)


def spike_times(v: np.ndarray) -> np.ndarray:
    """ms at which the voltage rises through 0 mV, between samples by a straight line."""
    at = np.flatnonzero((v[:-1] < 0) & (v[1:] >= 0))
    return np.asarray(0.025 * (at - v[at] / (v[at + 1] - v[at])))


def squid(neuron: Any, potassium: Subject) -> Any:
    """A compartment with the exported channels and a leak, in the densities of NEURON's hh."""
    na = compile_mechanism(exported(subject("na_hh"), "nmodl", replace(WHOLE_CELL, ions=("na",))))
    k = compile_mechanism(exported(potassium, "nmodl", replace(WHOLE_CELL, ions=("k",))))
    section = neuron.Section(name="exported")
    section.L = section.diam = 20
    for name in (na, k, "pas"):
        section.insert(name)
    place = section(0.5)
    getattr(place, na).gbar, getattr(place, k).gbar = 0.12, 0.036
    place.pas.g, place.pas.e = 0.0003, -54.3
    section.ena, section.ek = 50.0, -77.0
    return section


def builtin(neuron: Any) -> Any:
    """The same compartment with NEURON's hh; its table interpolates, so it is left aside."""
    section = neuron.Section(name="hh")
    section.L = section.diam = 20
    section.insert("hh")
    neuron.usetable_hh = 0
    return section


@pytest.mark.parametrize(
    ("potassium", "adaptive", "tolerance_mV"),
    [("k_hh_gate", True, 1e-3), ("k_hh_gate", False, 1e-9), ("k_hh", True, 1e-3)],
)
def test_a_cell_fires_as_with_the_builtin_channels(neuron, potassium, adaptive, tolerance_mV):
    """Gates with fixed steps to the rounding, with CVODE to its tolerance; and a scheme."""
    wanted = spiking(neuron, builtin(neuron), adaptive)
    found = spiking(neuron, squid(neuron, subject(potassium)), adaptive)
    assert len(spike_times(wanted)) == 8
    assert np.abs(found - wanted).max() < tolerance_mV
    assert spike_times(found) == pytest.approx(spike_times(wanted), abs=1e-5)


def test_files_are_fit_for_threads_and_gpus(tmp_path: Path) -> None:
    """CoreNEURON's own compiler translates each for OpenACC, and nothing in them is VERBATIM."""
    program = shutil.which("nmodl")
    whole = ExportSettings(point_process=True)
    for name in (name for name in SIMULATED if name in MODELS):  # each takes nmodl seconds
        for kind, settings in (("density", WHOLE_CELL), ("point", whole)):
            text = exported(subject(name), "nmodl", replace(settings, suffix=f"{name}_{kind}"))
            assert re.search(r"^    THREADSAFE$", text, re.MULTILINE)
            assert not re.search(r"^\s*(VERBATIM|GLOBAL|TABLE|POINTER)\b", text, re.MULTILINE)
            (tmp_path / f"{name}_{kind}.mod").write_text(text)
    if program is None:
        pytest.skip("needs the nmodl of NEURON 9 or newer, the compiler of CoreNEURON")
    files = [str(file) for file in tmp_path.glob("*.mod")]
    call = [program, *files, "--output", "out", "--scratch", "scratch", "acc", "--oacc"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:]
    assert len(list((tmp_path / "out").glob("*.cpp"))) == len(files)
