"""Currents of any terms against NEURON: its integrator, and its own ghk."""

from __future__ import annotations

from typing import Any

import pytest

from channelfit.problem.experiment import Experiment, Problem
from channelfit.scoring.neuron.comparison import compare
from channelfit.scoring.neuron.mechanisms import compile_mechanism
from channelfit.scoring.neuron.nmodl import nmodl_text
from channelfit.scoring.neuron.oracle import NeuronOracle
from channelfit.scoring.scorer import make_scorer
from support.term_models import DOCUMENTS, candidates, model_of, moving, steps
from support.truths import slow_but

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", slow_but(["calcium", "rectified gates", "sum of all"], DOCUMENTS))
def test_currents_agree_with_neuron(neuron: Any, name: str) -> None:
    """Exact at held voltages; where the voltage moves, as exact as steps of order four."""
    model = model_of(name)
    oracle = NeuronOracle(model)
    for protocol, tolerance in ((steps(), 5e-9), (moving(), 1e-5)):
        scorer = make_scorer(Problem(model, (Experiment(protocol),)), "cpu")
        (worst,) = compare(oracle, [protocol], scorer.simulate, candidates(model, 3))
        assert worst.relative_error < tolerance


@pytest.mark.parametrize("name", ["calcium", "gates and leak"])
def test_densities_carry_neurons_ghk_and_ohms_law(neuron: Any, name: str) -> None:
    mechanism = compile_mechanism(nmodl_text(model_of(name), "density"))
    section = neuron.Section(name="s")
    section.insert(mechanism)
    inside, before = getattr(section(0.5), mechanism), neuron.celsius
    neuron.finitialize(-20.0)
    is_open = inside.m**3 * inside.h
    if name == "calcium":
        neuron.celsius = 34.0
        wanted = inside.pbar * is_open * neuron.ghk(-20.0, 5e-4, 2.0, 2)
        neuron.celsius = before
    else:
        inside.gbar_current, inside.gbar_leak = 0.02, 0.003
        neuron.finitialize(-20.0)
        wanted = 0.02 * is_open * (-20 + 90) + 0.003 * (-20 - inside.el)
    assert inside.i == pytest.approx(wanted, rel=1e-9)
