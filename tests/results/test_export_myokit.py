"""Exported models in Myokit: units that agree strictly, and the same currents."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from channelfit.model.evaluation import evaluate
from channelfit.model.model_file import build_model
from channelfit.results.export.kinds import exported
from channelfit.results.export.nmodl import Settings
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
    return exported(replace(found, holding_mV=holding_mV), "myokit", Settings())


def parsed(text: str) -> Any:
    return myokit.parse_model(text[: text.index("[[protocol]]")])


def own_slopes(found: Subject, v_mV: float, occupancies: dict[tuple[str, str], float]) -> Any:
    """By chain and state, the derivatives (1/ms) that our own rates give."""
    values: dict[str, Any] = {**found.values, "v": v_mV}
    for name, expression in found.channel.definitions:
        values[name] = evaluate(expression, values)
    slopes = dict.fromkeys(occupancies, 0.0)
    for chain in found.channel.chains:
        for t in chain.transitions if not chain.instant else ():
            rate = t.multiplicity * float(evaluate(t.rate, values))
            flow = rate * occupancies[chain.name, t.source]
            slopes[chain.name, t.source] -= flow
            slopes[chain.name, t.target] += flow
    return slopes


@pytest.mark.parametrize("name", [*MODELS, *DOCUMENTS])
def test_units_agree_strictly(name: str) -> None:
    model = parsed(mmt(subject(name) if name in MODELS else of(document(name))))
    model.validate()
    model.check_units(myokit.UNIT_STRICT)
    if name in MODELS:
        assert model.binding("time").qname() == "membrane.time"
        assert model.binding("pace").qname() == "membrane.pace"
        assert model.label("membrane_potential").qname() == "membrane.V"


@pytest.mark.parametrize("name", MODELS)
def test_derivatives_are_those_of_our_rates(name: str) -> None:
    """Without a compiler: what Myokit itself evaluates, at any voltage and any occupancies."""
    found, draw = subject(name), np.random.default_rng(4)
    model = parsed(mmt(found))
    moving = [chain for chain in found.channel.chains if not chain.instant]
    for v in (-123.4, -40.0, 7.0, 37.5):
        occupancies: dict[tuple[str, str], float] = {}
        for chain in moving:
            share = draw.dirichlet(np.ones(len(chain.states)))
            pairs = zip(chain.states, share.tolist(), strict=True)
            occupancies |= {(chain.name, state): x for state, x in pairs}
        kept = [k for k in occupancies if not k[1].endswith("_closed")]
        model.get("membrane.pace").set_rhs(v)
        theirs = model.evaluate_derivatives([occupancies[k] for k in kept])
        own = own_slopes(found, v, occupancies)
        scale = max(abs(own[k]) for k in kept)
        assert theirs == pytest.approx([own[k] for k in kept], rel=1e-9, abs=1e-12 * scale)


def test_the_whole_file_has_a_protocol_that_myokit_reads() -> None:
    _, protocol, script = myokit.parse(mmt(subject("na_hh")))
    assert [event.level() for event in protocol] == [-90, 0, -90]
    assert script is None


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
