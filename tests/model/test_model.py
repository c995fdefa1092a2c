"""Model files: what they become, and what is said of those that cannot be used."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from channelfit.model.channel import ChannelModel
from channelfit.model.evaluation import evaluate
from channelfit.model.model_file import build_model, load_model
from channelfit.model.terms import symbol
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import load_protocol
from channelfit.reading.documents import read_yaml
from channelfit.reading.errors import InputError
from channelfit.results.report.description import rate_text
from channelfit.scoring.reference import Population
from channelfit.scoring.reference_matrices import steady_state
from channelfit.scoring.scorer import make_scorer
from support.model_texts import GATED, PLAIN, PRINTED, TIED, changed, ring
from support.places import MODELS, PROTOCOLS


def said_of(document: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        build_model(document, "m.yaml")
    return str(caught.value)


# --- what a file becomes -------------------------------------------------------------------------
def test_a_plain_model() -> None:
    model = build_model(PLAIN, None)
    assert model.states == ("C", "O")
    assert [(t.source, t.target) for t in model.transitions] == [("C", "O"), ("O", "C")]
    a, z, b, v = (symbol(n) for n in ("a", "z", "b", "v"))
    up = a * sympy.exp(z * v)
    assert model.transitions[0].rate == up
    assert model.generator() == sympy.Matrix([[-up, b], [up, -b]])  # from column to row
    assert model.open_states == {"O": 1.0}
    assert model.parameter_names == ("a", "z", "b", "g")
    assert float(model.reversal) == -80.0
    assert model.temperature_C is None
    assert model.expanded() is model


def test_a_rate_may_use_another_by_its_number_or_name() -> None:
    for rates in (
        {"k12": "a*exp(z*v)", "k21": "b*k12"},
        {"C -> O": "up = a*exp(z*v)", "O -> C": "b*up"},
    ):
        model = build_model(changed(changed(PLAIN, "parameters/b/unit", ""), "rates", rates), None)
        scope: dict[str, Any] = {"a": 2.0, "z": 0.1, "b": 3.0, "v": 5.0}
        for name, expression in model.definitions:
            scope[name] = evaluate(expression, scope)
        values = [float(evaluate(t.rate, scope)) for t in model.transitions]
        assert values == pytest.approx([2 * np.exp(0.5), 6 * np.exp(0.5)])


# --- gates ---------------------------------------------------------------------------------------


def test_gates_become_chains_of_two() -> None:
    model = build_model(GATED, None)
    assert [(c.name, c.states, c.power) for c in model.chains] == [
        ("m", ("m_closed", "m_open"), 3),
        ("h", ("h_closed", "h_open"), 1),
    ]
    alpha, beta = (t.rate for t in model.chains[1].transitions)
    values = [float(evaluate(e, {"v": -60.0})) for e in (alpha, beta)]
    assert values == pytest.approx([0.25, 0.25])  # inf/tau and (1 - inf)/tau
    for read in (lambda: model.states, lambda: model.generator(), lambda: model.open_states):
        with pytest.raises(ValueError, match="use expanded"):
            read()


def test_expanded_gates() -> None:
    scheme = build_model(GATED, None).expanded()
    assert len(scheme.states) == 4 * 2
    assert scheme.open_states == {"m3_h_open": 1.0}
    multiplicities = {
        (t.source, t.target): t.multiplicity for t in scheme.transitions if "h_open" in t.target
    }
    assert multiplicities["m0_h_open", "m1_h_open"] == 3
    assert multiplicities["m3_h_open", "m2_h_open"] == 3
    assert multiplicities["m2_h_closed", "m2_h_open"] == 1
    # m and h are independent: the steady state is binomial in m, times h.
    scope = {"a": 1.0, "b": 2.0, "v": -70.0}
    n = len(scheme.states)
    rates = np.zeros((n, n))
    for t in scheme.transitions:
        i, j = scheme.states.index(t.source), scheme.states.index(t.target)
        rates[j, i] = t.multiplicity * float(evaluate(t.rate, scope))
    m = 1.0 / (1.0 + 2.0 * np.exp(3.5))
    h = 1.0 / (1.0 + np.exp(-10 / 7))
    p = dict(zip(scheme.states, steady_state(rates), strict=True))
    assert p["m3_h_open"] == pytest.approx(m**3 * h, rel=1e-12)
    assert p["m1_h_closed"] == pytest.approx(3 * m * (1 - m) ** 2 * (1 - h), rel=1e-12)


# --- the compact form of 2012 --------------------------------------------------------------------
PARAMETERS = "".join(
    f"{{name: {name}, min: 0, max: {most}, val: {value}}}, "
    for name, most, value in [(x + k, 1, 0.05) for k in ("12", "21", "23", "32") for x in "az"]
    + [("gmax", 10, 5)]
)
AS_YAML = f"""
model:
  {{nStates: 3, nParams: 9, eRev: -100 mV, nOpenStates: 1, openStates: [3], params: [{PARAMETERS}],
  rates: ["k12 = a12*exp(z12*v)", "k21 = a21*exp(-z21*v)", "k23 = a23*exp(z23*v)",
          "k32 = a32*exp(-z32*v)"]}}
"""


@pytest.mark.parametrize("text", [PRINTED, AS_YAML])
def test_the_compact_form_is_model_b(tmp_path: Path, text: str) -> None:
    file = tmp_path / "compact.txt"
    file.write_text(text)
    compact, ours = load_model(file), load_model(MODELS / "model_b.yaml")
    assert compact.states == ("S1", "S2", "S3")
    assert compact.open_states == {"S3": 1.0}
    assert compact.parameter_names == ours.parameter_names
    for a, b in zip(compact.parameters, ours.parameters, strict=True):
        assert (a.lower, a.upper, a.value) == (b.lower, b.upper, b.value)
    assert compact.reversal == ours.reversal
    definitions = {symbol(name): e for name, e in compact.definitions}
    assert [t.rate.subs(definitions) for t in compact.transitions] == [
        t.rate for t in ours.transitions
    ]


@pytest.mark.parametrize("key", ["C{} O", "C{}O", "C{}-", "{}", "C -{}", "C <{}", "C{}< - O"])
@pytest.mark.parametrize("filled", [" ", "-", "\t", "C"])
def test_a_very_long_key_is_refused_as_soon_as_a_short_one(key: str, filled: str) -> None:
    said = said_of(changed(PLAIN, f"rates/{key.format(filled * 60_000)}", "a"))
    assert re.search(r"is not a transition|unknown state", said)


def test_a_conductance_behind_too_many_definitions_is_refused() -> None:
    document = changed(PLAIN, "parameters/g/unit", ...)
    document["definitions"] = {"d0": "g"} | {f"d{k}": f"tanh(d{k - 1})" for k in range(1, 900)}
    document["current"]["conductance"] = "d899"
    assert "grow too long when put together" in said_of(document)
    document["current"]["conductance"] = "5*d40"
    assert build_model(document, None).conductance.free_symbols == {symbol("g")}


def test_a_nested_exprel_is_shown_as_it_is_written() -> None:
    """Each quotient holds its argument twice, so that forty levels would never be printed."""
    rate = "v/20"
    for _ in range(40):
        rate = f"exprel({rate})"
    base = changed(PLAIN, "rates/O -> C", "b*exp(-z*v)")
    t = build_model(changed(base, "rates/C -> O", f"a*{rate}"), None).transitions[0]
    assert rate_text(t) == f"a*{rate}"
    t = build_model(changed(base, "rates/C -> O", "a*exprel(v/20)"), None).transitions[0]
    assert rate_text(t) == "20*a*(exp(v/20) - 1)/v"


def test_a_comparison_that_the_exact_form_shows_to_be_of_no_real_number_is_refused() -> None:
    rate = "a if log((1 - exp(v))/v) < 3 else b"
    assert "rates.C -> O: a comparison of what is not a real number" in said_of(
        changed(PLAIN, "rates/C -> O", rate)
    )


# --- mistakes ------------------------------------------------------------------------------------
def test_mistakes_are_told_with_their_place():
    for key, value, message in (
        # names
        ("name", 'x"""\nimport os', 'm.yaml: name: "x""" import os" cannot be a model\'s name'),
        ("parameters/class", {"range": [0, 1]}, 'parameters.class: "class" is a reserved word'),
        # states and rates
        ("states", ["C", "O", "C"], "states: a state is named twice in C, O, C"),
        ("states", [f"S{k}" for k in range(65)], "states: 1 to 64 states are accepted, not 65"),
        ("rates/O->C", "b", "rates: O -> C is given twice"),
        ("parameters/a/scale", "ln", 'parameters.a.scale: "ln" is not one of linear, log'),
        ("parameters/spare", {"range": [0, 1]}, "parameters.spare: this parameter changes nothing"),
        ("states", ["C", "O", "X"], "state X cannot be reached: no transition leads to it"),
        ("rates/C -> X", "b", 'rates.C -> X: unknown state "X". Known: C, O'),
        ("rates/O -> C", "b*celsius", 'unknown name "celsius"'),
        ("rates/O -> C", "a = b", 'rates.O -> C.a: "a" already names something else'),
        ("rates/O -> C", "b**9**9**9**9", "rates.O -> C: a number overflows"),
        # definitions
        ("definitions", {"x": "y", "y": "x"}, "definitions go round in a circle: x uses y uses x"),
        # current
        ("current/conductance", "g*v", 'current.conductance: "g*v" depends on v'),
        ("current/conductance", "5 mV", 'unit "mV" is a voltage; expected one of nS'),
        # parameters
        ("parameters/a/range", [1, 0], "the lower end 1 is not below the upper end 0"),
        ("parameters/a/range", [0, float("nan")], "parameters.a.range: nan is not finite"),
        ("parameters/a/value", 2, "parameters.a: the value 2 lies outside the range [0, 1]"),
        ("parameters/a/unit", "1/m", 'parameters.a.unit: unknown unit "1/m"; did you mean 1/ms?'),
        ("parameters/a/scale", "log", "parameters.a.range: a log scale needs a lower end above 0"),
        # the rest
        ("gates", {"O": {"alpha": "a", "beta": "b"}}, "gates.O: a state has this name"),
    ):
        said = said_of(changed(PLAIN, key, value))
        assert said.startswith("m.yaml: ")
        assert message in said
        assert "\n" not in said


def test_groups_that_are_not_connected_both_ways() -> None:
    document = changed(PLAIN, "states", ["C", "O", "X"])
    document["rates"]["O -> X"] = "b"
    assert "rates: state X cannot be left" in said_of(document)
    document["states"].append("Y")
    document["rates"] |= {"X -> Y": "b", "Y -> X": "b"}
    assert "these groups are not connected both ways: C, O | X, Y" in said_of(document)


def test_an_expression_bomb_stays_small() -> None:
    """200 definitions, each the square of the one before: 2^200 factors if ever multiplied out."""
    definitions = {"x0": "exp(z*v)"} | {f"x{k}": f"x{k - 1}*x{k - 1}" for k in range(1, 200)}
    document = changed(PLAIN, "definitions", definitions)
    document["rates"]["O -> C"] = "b*x199"
    model = build_model(document, None)
    assert max(e.count_ops() for _, e in model.definitions) < 10


# --- ties ----------------------------------------------------------------------------------------
def test_a_tie_is_a_definition_under_the_name_of_a_parameter():
    model = build_model(TIED, None)
    assert model.parameter_names == ("a", "z", "g")
    assert [t.name for t in model.ties] == ["y", "part"]
    assert [t.unit for t in model.ties] == ["1/mV", ""]
    assert (model.ties[0].lower, model.ties[0].upper) == (0, 0.05)
    values = model.values()
    assert model.tied_values(values) == pytest.approx({"y": 0.04 + 0.02 / 1.1, "part": 1.1})
    plain = {
        "rates": {"C -> O": "a*exp((2*z + z/(1 + a))*v)", "O -> C": "a*exp(-z*v)"},
        "definitions": {},
        "current": TIED["current"] | {"conductance": "g*(1 + a)"},
        "parameters": {k: TIED["parameters"][k] for k in ("a", "z", "g")},
    }
    written = build_model(TIED | plain, None)
    problem = Problem(model, (Experiment(load_protocol(PROTOCOLS / "activation.yaml")),))
    plain = replace(problem, model=written)
    for backend in ("reference", "cpu"):
        tied, free = (
            make_scorer(p, backend).simulate(values[:, None])[0] for p in (problem, plain)
        )
        np.testing.assert_allclose(tied, free, rtol=1e-9, atol=1e-9 * np.nanmax(np.abs(free)))


def test_what_is_no_tie_is_told():
    for row, message in (
        ({"tie": "a*v"}, "parameters.y.tie: depends on v"),
        ({"tie": "a + nothing"}, 'parameters.y.tie: unknown name "nothing"'),
        ({"tie": "part + a", "fixed": True}, "parameters.y.fixed: a tied parameter"),
        ({"tie": "a", "prior": {"normal": [1, 2]}}, "parameters.y.prior: a tied parameter"),
        ({"tie": "a", "range": [2, 1]}, "parameters.y.range: 2 is not below 1"),
        ({"tie": "y*a"}, "round in a circle"),
    ):
        assert message in said_of(changed(TIED, "parameters/y", row))


# --- detailed balance ----------------------------------------------------------------------------
def assert_reversible(model: ChannelModel, seed: int = 0, least: float = 1e-9) -> None:
    """No net flux between any two states at rest, whatever parameters and voltage."""
    random = np.random.default_rng(seed)
    share = random.random((len(model.parameters), 20))
    lower, upper = (
        np.array([[getattr(p, end)] for p in model.parameters]) for end in ("lower", "upper")
    )
    channel = Population(model, lower + (upper - lower) * share)
    for v in (-90.0, 0.0, 40.0):
        rates = channel.rates(model.chains[0], np.array([v]))[0]
        rest = steady_state(rates)
        flux = rates * rest[:, None, :]
        net = np.abs(flux - flux.transpose(0, 2, 1)).max(axis=(1, 2))
        assert (net <= least * flux.max(axis=(1, 2))).all()


def test_a_rate_follows_from_its_cycle():
    model = build_model(ring(I_O="balance"), None)
    assert [name for name, _ in model.definitions] == ["k_I_O"]
    assert "a5" not in model.parameter_names
    assert_reversible(model)
    with pytest.raises(AssertionError):
        assert_reversible(build_model(ring(), None))


def test_the_sodium_scheme_balances_by_itself():
    """The published definition of b2, and the squares whose rows share rates."""
    document = read_yaml(MODELS / "na_markov.yaml")
    written = build_model(document, None)
    document["definitions"].pop("b2")
    document["rates"]["IF -> O"] = "b2 = balance"
    derived = build_model(document, None)
    p = written.values()[:, None] * np.random.default_rng(1).uniform(0.9, 1.1, (17, 30))
    v = np.linspace(-120, 60, 7)
    one, other = (Population(m, p).rates(m.chains[0], v) for m in (written, derived))
    np.testing.assert_allclose(one, other, rtol=1e-12)


def test_what_cannot_balance_is_told():
    balanced, no_cycle = ring(I_O="balance"), "closes no cycle of transitions that lead both ways"
    for document, rate, message in (
        (ring(O_I="balance", I_O="balance"), "O -> I", "that of I -> O is to balance as well"),
        (ring(O_I="balance", J_I="balance"), "O -> I", "another rate that is to balance: J -> I"),
        (changed(TIED, "rates/O -> C", "balance"), "O -> C", f"it {no_cycle}"),
        (changed(balanced, "rates/O -> I", ...), "I -> O", "that of O -> I is missing"),
        # the cycle is there, but part of it leads one way only
        (changed(balanced, "rates/J -> I", ...), "I -> O", no_cycle),
    ):
        said = said_of(document)
        assert said.startswith(f"m.yaml: rates.{rate}")
        assert message in said


def test_cycles_that_disagree_are_told_and_those_elsewhere_are_not():
    chord = ring(I_O="balance")
    chord["rates"] |= {"C -> I": "a5*exp(z5*v)", "I -> C": "a5"}
    chord["parameters"] |= {"a5": {"range": [0.1, 2]}, "z5": {"range": [-0.02, 0.02]}}
    assert "several cycles pass here and would ask for different" in said_of(chord)
    apart = ring(I_O="balance")
    apart["states"] += ["X", "Y"]
    ways = ("C -> X", "X -> C", "X -> Y", "Y -> X", "Y -> C", "C -> Y")
    apart["rates"] |= {way: "2" if way == "X -> Y" else "1" for way in ways}
    build_model(apart, None)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_every_graph_balances_when_all_but_a_tree_follows(data):
    n = data.draw(st.integers(2, 7))
    states = [f"S{k}" for k in range(n)]
    tree = {(data.draw(st.integers(0, k - 1)), k) for k in range(1, n)}
    pairs = [(i, j) for j in range(n) for i in range(j) if (i, j) not in tree]
    more = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    rates, parameters = {}, {"g": {"range": [0, 1]}}
    for k, (i, j) in enumerate([*sorted(tree), *more]):
        there, back = f"S{i} -> S{j}", f"S{j} -> S{i}"
        rates[there], rates[back] = f"a{k}*exp(z{k}*v)", f"b{k}"
        for name, span in ((f"a{k}", [0.3, 3]), (f"z{k}", [-0.01, 0.01]), (f"b{k}", [0.3, 3])):
            parameters[name] = {"range": span}
        if (i, j) in more:
            rates[back] = "balance"
            del parameters[f"b{k}"]
    document = {
        "states": states,
        "rates": rates,
        "parameters": parameters,
        "current": {"open": ["S0"], "conductance": "g", "reversal": "0 mV"},
    }
    assert_reversible(build_model(document, None), least=1e-8)
