"""Exported models in Myokit: units that agree strictly, and the same currents."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from channelfit.model.model_file import build_model
from channelfit.results.export.kinds import exported
from channelfit.results.export.nmodl import ExportSettings
from channelfit.results.export.subject import Subject
from support.exports import MODELS, of, simulated, steps, subject
from support.term_models import DOCUMENTS, document
from support.truths import slow_but

exports: Any = importlib.import_module("exports")
myokit = pytest.importorskip("myokit")

pytestmark = pytest.mark.integration

#: The bar of an export: the largest error over the largest current.
BAR = 1e-5


def mmt(found: Subject, holding_mV: float = -90.0) -> str:
    return exported(replace(found, holding_mV=holding_mV), "myokit", ExportSettings())


def parsed(text: str) -> Any:
    return myokit.parse_model(text[: text.index("[[protocol]]")])


@pytest.mark.parametrize("name", [*MODELS, *DOCUMENTS])
def test_units_agree_strictly(name: str) -> None:
    model = parsed(mmt(subject(name) if name in MODELS else of(document(name))))
    model.validate()
    model.check_units(myokit.UNIT_STRICT)
    if name in MODELS:
        assert model.binding("time").qname() == "membrane.time"
        assert model.binding("pace").qname() == "membrane.pace"
        assert model.label("membrane_potential").qname() == "membrane.V"


def test_myokits_exact_simulation_of_gates_agrees() -> None:
    from myokit.lib import hh

    protocol = steps()
    model = parsed(mmt(subject("na_hh")))
    gates = hh.HHModel.from_component(model.get("na_hh"), current=model.get("na_hh.i"))
    own = exports.ours(MODELS["na_hh"], protocol)[4]
    command = myokit.Protocol()
    for segment in protocol.sweeps[4]:
        length = segment.end_ms - segment.start_ms
        command.schedule(segment.wave.v_mV, segment.start_ms, length)
    simulation = hh.AnalyticalSimulation(gates, command)
    log = simulation.run(60.75, log_times=protocol.times_ms[:243])
    assert np.abs(np.array(log["na_hh.i"]) - own[:243]).max() < BAR * np.abs(own).max()


#: Each takes Myokit seconds to compile: of the shipped models those with unlike formulas.
SIMULATED = ["na_hh", "hcn2_golgi", "herg_markov", "cav31_anwar", *DOCUMENTS]


@pytest.fixture(scope="module")
def sundials() -> None:
    """Myokit with a compiler and SUNDIALS; without, the tests skip and say why."""
    try:
        exports.in_myokit(mmt(subject("model_a")), replace(steps(), sweeps=steps().sweeps[:1]))
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", slow_but(["na_hh", "hcn2_golgi", "sum of all"], SIMULATED))
def test_a_simulation_carries_the_models_current(sundials: None, name: str) -> None:
    protocol = steps()
    if name in MODELS:
        theirs, own = mmt(subject(name)), exports.ours(MODELS[name], protocol)
    else:
        model = build_model(document(name), None)
        theirs, own = mmt(of(document(name))), simulated(model, model.values(), protocol)
    assert exports.apart(exports.in_myokit(theirs, protocol), own) < BAR
