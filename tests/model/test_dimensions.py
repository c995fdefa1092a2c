"""Units that contradict their use are refused; bare numbers take the dimension they need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from channelfit.model.channel import ChannelModel
from channelfit.model.evaluation import evaluate
from channelfit.model.expressions import parse_expression
from channelfit.model.model_file import build_model, load_model
from channelfit.reading.errors import InputError
from support.places import ROOT

UNITS = {
    "a": "1/ms",
    "z": "1/mV",
    "b": "1/s",
    "k": "mV",
    "x": "V",
    "c": "1/(ms mV)",
    "w": "ms",
    "p": "1",
    "n": "",
    "g": "nS",
}


def built(units: dict[str, str] | None = None, **blocks: Any) -> ChannelModel:
    """A model of two states with parameters of these units; blocks replace its own."""
    units = UNITS | (units or {})
    rows = {
        name: {"range": [1, 2], "value": 1.5, "fixed": True} | ({"unit": unit} if unit else {})
        for name, unit in units.items()
    }
    document = {
        "name": "m",
        "states": ["C", "O"],
        "rates": {"C -> O": "a", "O -> C": "b"},
        "current": {"open": ["O"], "conductance": "g", "reversal": "-80 mV"},
    } | blocks
    for key in [key for key, value in document.items() if value is None]:
        del document[key]
    return build_model(document | {"parameters": rows | document.get("parameters", {})}, "m.yaml")


def rate(text: str, **units: str) -> ChannelModel:
    return built(units, rates={"C -> O": text, "O -> C": "b"})


def gate(**row: str) -> dict[str, Any]:
    """A gate in place of the states."""
    current = {"conductance": "g", "reversal": "-80 mV"}
    return {"states": None, "rates": None, "current": current, "gates": {"m": row}}


def refused(make: Any, *args: Any, **keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        make(*args, **keys)
    return str(caught.value)


AGREE = """
    a*exp(z*v); a*exp((v - x)/k); a/(1 + exp(-z*v)); c*(v - x)/(1 - exp(-(v - x)/k)); n;
    n*exp(n*v); 0.1*(v + 40)/(1 - exp(-(v + 40)/10)); 4*exp(-(v + 65)/k); 1/(1 + exp(-(v + 35)/k));
    (v - x)/k/(exp((v - x)/k) - 1); a if v < -40 else b; a if v < x else 0; a*sqrt(k/x);
    a*(k/x)**1.5; a*p**(v/k); a*2**(v/10); max(a, b, 0.1); abs(a - b); a*log(k/x); a*tanh(z*v);
    a*exprel(z*v); a + 0.02*v; a*3**((celsius - 22)/10); a*exp(n*v/(8.314*(celsius + 273.15)));
    sqrt(a*b); 0.05 + 1/(0.1 + exp(v/k))*0.3
"""


def test_what_agrees_or_adapts_is_accepted() -> None:
    for text in AGREE.split(";"):
        rates = {"C -> O": text.strip(), "O -> C": "b"}
        assert built(temperature="22 degC", rates=rates).cautions == (), text


def test_stated_units_that_contradict_each_other():
    for text, said in (
        ("w", '"w": a rate (1/ms) is expected, but this is a time (ms) (w in ms); w with unit'),
        ("a*exp(x*v)", '"a*exp(x*v)": the argument of exp, v*x, is in mV^2, not a pure number'),
        ("a*exp(x*v)", '(a in 1/ms, x in V); x with unit "1/mV" would be right'),
        ("a*exp(v - x)", "the argument of exp, v - x, is a voltage (mV), not a pure number"),
        ("a*exp(p*v)", "the argument of exp, p*v, is a voltage (mV)"),
        ("a + k", "in one sum stand a, a rate (1/ms), and k, a voltage (mV)"),
        ("a*b", "but this is in 1/ms^2"),
        ("p", "a rate (1/ms) is expected, but this is a pure number"),
        ("a if v < w else b", "these are compared v, a voltage (mV), and w, a time (ms)"),
        ("a*p**(z*v*k)", "an exponent, k*v*z, is a voltage (mV)"),
    ):
        message = refused(rate, text)
        assert message.startswith("m.yaml: rates.C -> O: ")
        assert said in message


def of(**current: str) -> dict[str, Any]:
    return {"current": {"open": ["O"], "conductance": "g", "reversal": "-80 mV"} | current}


def slope(blocks: dict[str, Any]) -> dict[str, Any]:
    return blocks | {"rates": {"C -> O": "a*exp(v/d)", "O -> C": "b"}}


def test_every_place_has_its_dimension():
    for blocks, said in (
        (of(conductance="k"), 'this is a voltage (mV) (k in mV); k with unit "nS" would be right'),
        (of(reversal="g"), 'current.reversal: "g": a voltage (mV) is expected, but this is a cond'),
        (slope({"definitions": {"d": "k + w"}}), 'd: "k + w": in one sum stand k, a voltage'),
        (slope({"definitions": {"d": "2*z"}}), '"a*exp(v/d)": the argument of exp, v/d, is in'),
        ({"rates": {"C -> O": "up = a*exp(w*v)", "O -> C": "b"}}, "the argument of exp, v*w, is"),
        (
            slope({"parameters": {"d": {"tie": "a/z", "unit": "mV"}}}),
            'parameters.d.tie: "a/z": a voltage (mV) is expected, but this is in mV/ms',
        ),
        (gate(inf="w", tau="w"), 'gates.m.inf: "w": a pure number is expected, but this is a time'),
        (gate(inf="1/(1 + exp(v/k))", tau="a"), 'gates.m.tau: "a": a time (ms) is expected'),
        (gate(alpha="a", beta="k*exp(v/k)"), 'gates.m.beta: "k*exp(v/k)": a rate (1/ms) is'),
    ):
        assert said in refused(built, **blocks)
    for row in (
        {"inf": "1/(1 + exp((v - x)/k))", "tau": "w*exp(z*v) + 2"},
        {"inf": "a/(a + b)", "tau": "1/(a + b)"},
    ):
        assert built(**gate(**row)).cautions == ()


def test_an_exponential_without_a_slope_is_told() -> None:
    (caution,) = rate("a*exp(-v)").cautions
    assert (caution.place, caution.value) == (
        "m.yaml: rates.C -> O",
        '"a*exp(-v)": the argument of exp, -v, is a voltage (mV), so the slope is 1/mV, '
        "25 elementary charges",
    )
    assert "exp(v/10)" in caution.advice
    assert len(rate("a*exp(v + 40)").cautions) == 1
    assert rate("a*exp(v/1.0e1)").cautions == ()


def test_a_factor_per_mV_that_does_not_say_so_is_told_once() -> None:
    text = "a*(v - x)/(1 - exp(-(v - x)/k))"
    (caution,) = rate(text).cautions
    assert caution.value == f'"{text}": in mV/ms, so a factor that is given in 1/ms is per mV'
    assert caution.advice == 'write its unit as "1/(ms mV)"'
    rates = {"C -> O": "2*d", "O -> C": "d"}
    (once,) = built(definitions={"d": text}, rates=rates).cautions
    assert once.place == "m.yaml: definitions.d"
    (tau,) = built(**gate(inf="0.5", tau=f"1/(b + {text})")).cautions
    assert tau.place == "m.yaml: gates.m.tau"


@pytest.mark.parametrize("path", sorted((ROOT / "models").glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_models_are_silent(path: Path) -> None:
    assert load_model(path).cautions == ()


#: Exponents of time, voltage, current and temperature, written down apart from the code's table.
EXPONENTS = {
    "1/ms": (-1, 0, 0, 0),
    "ms": (1, 0, 0, 0),
    "mV": (0, 1, 0, 0),
    "1/mV": (0, -1, 0, 0),
    "1/(ms mV)": (-1, -1, 0, 0),
    "1": (0, 0, 0, 0),
    "nS": (0, -1, 1, 0),
    "pF": (1, -1, 1, 0),
    "pA": (0, 0, 1, 0),
    "degC": (0, 0, 0, 1),
    "MOhm": (0, 1, -1, 0),
}
COMMON, FOREIGN = list(EXPONENTS)[:6], list(EXPONENTS)[6:]
OF = {exponents: unit for unit, exponents in EXPONENTS.items()}
RESCALED = np.array([1.7, 0.6, 2.3, 1.9])


@st.composite
def texts(draw: Any, unit: str, units: dict[str, str], depth: int) -> str:
    """A random expression in this unit; the names that it uses are added to `units`."""
    kind = draw(st.sampled_from(["leaf", "sum", "product", "quotient", "exp", "power"]))
    if depth == 0 or kind == "leaf":
        if unit == "mV" and draw(st.booleans()):
            return "v"
        units[f"q{len(units)}"] = unit
        return f"q{len(units) - 1}"

    def inner(wanted: str) -> str:
        return str(draw(texts(wanted, units, depth - 1)))

    if kind == "sum":
        return f"({inner(unit)} {draw(st.sampled_from('+-'))} {inner(unit)})"
    if kind == "exp":
        function = draw(st.sampled_from(["exp({})", "tanh({})", "exprel(-{})", "(1 + exp({}))"]))
        return f"{inner(unit)}*{function.format(inner('1'))}"
    if kind == "power":
        return f"sqrt({inner(unit)}**2)"
    sign = 1 if kind == "quotient" else -1
    splits = {}
    for other in COMMON:
        rest = tuple(a + sign * b for a, b in zip(EXPONENTS[unit], EXPONENTS[other], strict=True))
        if OF.get(rest) in COMMON:
            splits[other] = OF[rest]
    other = draw(st.sampled_from(sorted(splits)))
    return f"({inner(splits[other])} {'/' if sign > 0 else '*'} {inner(other)})"


def _follows_the_units(text: str, units: dict[str, str], seed: int) -> bool:
    """Whether the value is the same rate when time, voltage and so on are measured in others."""
    random = np.random.default_rng(seed)
    values = {name: random.uniform(0.6, 1.6, 20) for name in units} | {"v": random.normal(size=20)}
    known = units | {"v": "mV"}
    scaled = {n: x * np.prod(RESCALED ** EXPONENTS[known[n]]) for n, x in values.items()}
    expression = parse_expression(text, list(units))
    before, after = (evaluate(expression, v) / s for v, s in ((values, 1), (scaled, 1 / 1.7)))
    use = np.isfinite(before) & np.isfinite(after) & (np.abs(before) > 1e-12)
    return bool(use.any()) and bool(np.allclose(before[use], after[use], rtol=1e-6))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_random_expressions_are_accepted_until_one_unit_is_changed(data: Any) -> None:
    units: dict[str, str] = {}
    text = data.draw(texts("1/ms", units, 3))
    rates = {"C -> O": text, "O -> C": "b"}
    try:
        expression = parse_expression(text, list(units))
    except InputError as error:  # 1/(v - v)
        assert "division by zero" in str(error)
        return
    present = sorted(s.name for s in expression.free_symbols if s.name != "v")
    if not present or not _follows_the_units(text, units, 0):  # all has cancelled, or overflows
        return
    if any(not n.is_Integer for n in expression.atoms(sympy.Number)):
        return  # exp(v/v) is a number, the half in 1/(v + v) too, and numbers adapt
    assert built(units, rates=rates).cautions == ()
    changed = units | {data.draw(st.sampled_from(present)): data.draw(st.sampled_from(FOREIGN))}
    assert not _follows_the_units(text, changed, 0)
    with pytest.raises(InputError, match=r"m\.yaml: rates\.C -> O: "):
        built(changed, rates=rates)
