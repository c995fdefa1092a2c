"""Expressions: what is accepted, what is refused and how, singularities, values."""

from __future__ import annotations

import math
import operator
import subprocess
import sys
from dataclasses import dataclass

import mpmath
import numpy as np
import pytest
import sympy
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from channelfit.model.evaluation import evaluate, exprel_slope_values, exprel_values
from channelfit.model.expressions import (
    FUNCTIONS,
    ExpressionError,
    check_name,
    definition_order,
    parse_expression,
)
from channelfit.model.singularities import remove_singularities
from channelfit.model.terms import LARGEST_INTEGER, V, exprel, parts_of, symbol
from channelfit.results.report.expression_text import text as printed

NAMES = ("a", "b", "k", "z", "a12", "z12", "z21", "vh", "a1", "a2", "a3", "x")
a, b, k, z = map(symbol, "abkz")


def value(text: str, **values: float) -> float:
    return float(evaluate(parse_expression(text, NAMES), values))


# Accepted
def test_text_becomes_the_expression_it_says():
    for text, expected in (
        ("a", a),
        ("v", V),
        ("a*exp(z*v)", a * sympy.exp(z * V)),
        ("abs(v)", sympy.Abs(V)),
        ("min(a, b)", sympy.Min(a, b)),
        ("exprel(v)", exprel(V)),
        ("a if v < -40 else b", sympy.Piecewise((a, V < -40), (b, True))),
    ):
        assert parse_expression(text, NAMES) == expected


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_finite_float_comes_back_to_the_last_bit(number):
    assert float(parse_expression(repr(number), ())) == number
    assert float(parse_expression(number, ())) == number


def test_constants_are_folded_as_python_does():
    assert float(parse_expression("0.1 + 0.2", ())) == 0.1 + 0.2
    assert float(parse_expression("1/3", ())) == 1 / 3
    assert parse_expression("10/2", ()) == sympy.Integer(5)
    assert parse_expression("2**-1*a**(4/2)", NAMES) == sympy.Float(0.5) * a**2
    assert float(parse_expression("exp(1)", ())) == math.e


@pytest.mark.parametrize(
    "text",
    [
        "1 if v < 0 else 2",
        "1 if -60 < v <= -40 else 2",
        "1 if v >= 0 else 2",
        "1 if v == 0 else 2",
        "1 if v != 0 else 2",
        "1 if v < -60 or v > -40 else 2",
        "1 if not (v < -60 or v > -40) else 2",
        "1 if v > -60 and not v > -40 else 2",
        "1 if v < -60 else 2 if v < -40 else 3",
        "v if 2 < 1 else -v",
        "-3*(1 if v < 0 else 2)**2",
        "min(3, v, 2) + max(-1, v)",
        "1 if (v if v < -20 else 2) < 3*v else 0",
        "1 if not (v if v < 0 else 2) >= v else 0",
        "1 if min(1 if v < -20 else 2, 4) < max(v, 3 if v < 2 else 3) else 0",
        "1 if (1 if (2 if v > 3 else v) < 3 else 2) != (2 if v > 5 else 1) else 0",
    ],
)
def test_conditions_and_extremes_are_those_of_python(text):
    for v in (-70.0, -60.0, -50.0, -40.0, -39.0, -30.0, -1.0, 0.0, 0.5, 1.0, 2.5, 4.0, 8.0):
        assert value(text, v=v) == eval(text, {"v": v}), v


# Refused
CHOICES = " + ".join(f"({k} if v < {k} else 2)" for k in range(16))
ALTERNATIVES = " or ".join(f"(1 if v < {k} else v) < v" for k in range(30))


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("a12*exp(z21b*v)", 9, 'unknown name "z21b"'),
        ("a12*exp(z21b*v)", 9, "Known: a, a1, a12, a2, a3, b, k, vh, x, z, z12, z21, v"),
        ("__import__('os').system('x')", 12, 'unexpected character "\'"'),
        ("__import__(os)", 1, 'unknown function "__import__"'),
        ("v.__class__", 1, 'an attribute (".__class__")'),
        ("(lambda: 1)()", 8, 'unexpected character ":"'),
        ("v[0]", 2, "round brackets"),
        ("v^2", 2, 'use "**"'),
        ("\u0430*v", 1, "CYRILLIC SMALL LETTER A"),
        ("3 \u2212 v", 3, 'use "-"'),
        ("2v", 1, 'is a "*" missing?'),
        ("exp(1, 2)", 1, "1 argument, not 2"),
        ("exp(**v)", 1, "no named arguments"),
        ("v < 3", 1, "a condition where a number"),
        ("1 if v else 2", 6, "a condition is expected"),
        ("1 if v is 2 else 3", 6, "'is' cannot be used"),
        ("2j", 1, "complex"),
        ("(v", 1, "never closed"),
        ("exp(exp(exp(exp(1000))))", 13, "overflows"),
        ("9" * 400, 1, "overflows"),
        ("v/0", 1, "division by zero"),
        ("log(-1)", 1, "not defined"),
        ("(-8)**(1/3)", 1, "not a real number"),
        ("sqrt(-abs(v))", None, "not a real number"),
        ("v**387420489", 1, "exponent"),
        ("", None, "empty"),
        ("(" * 900 + "1" + ")" * 900, 51, "nested brackets"),
        ("v+" * 500000 + "v", None, "1000001 characters"),
        ("-" * 1999 + "1", 101, "operations deep"),
        ("exp(" * 300 + "v" + ")" * 300, 204, "nested brackets"),
        ("+".join(["(" + "+".join("v" * 30) + ")"] * 10), None, "more than 500"),
        ("a/(0 if v < -200 else exp(-v/20))", None, "not finite"),
        ("a if log(-1 - v*v) < 1 else b", 6, "not a real number"),
        ("a if log(-exp(v)) < v else b", 6, "not a real number"),
        ("a*max(log(-exp(v)), 1)", 3, "not a real number"),
        (f"a if {CHOICES} < 9 else b", 6, "conditionals in a condition"),
        (f"a if {ALTERNATIVES} else b", 6, "conditionals in a condition"),
    ],
)
def test_refusals_name_the_problem_and_its_column(text, column, words):
    with pytest.raises(ExpressionError) as caught:
        parse_expression(text, NAMES)
    message = str(caught.value)
    assert words in message
    assert caught.value.column == column or (column is None and "operations" in words)
    assert len(message) < 400
    assert message.isprintable()
    if column is not None:
        assert f"column {column} of" in message


#: Costly for SymPy unless something bounds it; each is either accepted or refused at once.
HOSTILE = [
    "v**" * 60 + "v",
    "exp(" * 45 + "v" + ")" * 45,
    "((((1000*v)**30)**30)**1)*((1000*a)**900)**1",
    "sqrt((v*999)" + "*999" * 90 + ")",
    "+".join(f"v/{p}" for p in range(3, 100)),
    "*".join(["(v+a)"] * 90),
    "log(v**900 - v**7 + v - 3)**0.5",
    "(v**500 + v**499 - 1)**(v**500 + v - 1)",
    "(2**(900*v))**(900*v)",
    "(1 if v<0 else 2)**" * 20 + "v",
    "v" + "/(1 - exp(v/9))*v" * 60,
    "*".join(f"(v+{i})/(1-exp(-(v+{i})/9))" for i in range(25)),
    "(" + "*".join(["(a+b+k)"] * 40) + ")*v/(exp((" + "*".join(["(a+b+z)"] * 40) + ")*v)-1)",
]


def test_hostile_text_ends_soon():
    """In a process of its own, since a hang in SymPy could not be interrupted otherwise."""
    program = (
        "import sys, ast\n"
        "from channelfit.model.evaluation import evaluate\n"
        "from channelfit.model.expressions import ExpressionError, parse_expression\n"
        "from channelfit.model.singularities import remove_singularities\n"
        "values = dict.fromkeys('abkzv', 0.3)\n"
        "for text in ast.literal_eval(sys.stdin.read()):\n"
        "    try:\n"
        "        e = remove_singularities(parse_expression(text, 'abkz'))\n"
        "        print(evaluate(e, values).shape)\n"
        "    except ExpressionError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=repr(HOSTILE),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == len(HOSTILE)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60) | st.text("av0129.+-*/()<>=, \nifelsexpno", max_size=60))
def test_any_text_gives_an_expression_or_an_expression_error(text):
    try:
        expression = parse_expression(text, NAMES)
    except ExpressionError as error:
        assert str(error)
    else:
        assert {s.name for s in expression.free_symbols} <= {*NAMES, "v"}


@pytest.mark.parametrize("name", ["v", "exp", "if", "lambda", "2a", "", "a b", "α", "a" * 101])
def test_names_that_no_expression_could_use_are_refused(name):
    with pytest.raises(ExpressionError, match="name"):
        check_name(name)


# Random expressions against Python's own arithmetic
@dataclass
class Traced:
    """A value by Python's floats, with a bound on what another order of rounding may change."""

    text: str
    value: float
    error: float


EPS = 2.0**-52
LEAVES = {"a": 0.7, "b": -1.3, "k": 2.9, "v": -37.25}


def _leaf(text: str) -> Traced:
    known = LEAVES[text] if text in LEAVES else float(text)
    return Traced(text, known, abs(known) * EPS)


def _sum(x: Traced, y: Traced, sign: str) -> Traced:
    result = x.value + y.value if sign == "+" else x.value - y.value
    error = x.error + y.error + EPS * (abs(x.value) + abs(y.value))
    return Traced(f"({x.text} {sign} {y.text})", result, error)


def _times(x: Traced, y: Traced) -> Traced:
    result = x.value * y.value
    error = x.error * (abs(y.value) + y.error) + abs(x.value) * y.error + 4 * EPS * abs(result)
    return Traced(f"({x.text} * {y.text})", result, error)


def _over(x: Traced, y: Traced) -> Traced:
    assume(abs(y.value) > 1e-3 + 2 * y.error)
    result = x.value / y.value
    error = 2 * (x.error + abs(result) * y.error) / abs(y.value) + 4 * EPS * abs(result)
    return Traced(f"({x.text} / {y.text})", result, error)


def _function(name: str, x: Traced) -> Traced:
    if name in ("sqrt", "log"):
        assume(x.value > 1e-3 + 2 * x.error)
    if name in ("exp", "exprel"):
        assume(x.value < 50)
    function = {
        "exp": math.exp,
        "log": math.log,
        "sqrt": math.sqrt,
        "abs": abs,
        "tanh": math.tanh,
        "exprel": lambda u: math.expm1(u) / u if u else 1.0,
        "-": operator.neg,
    }[name]
    result = function(x.value)
    slope = {"exp": result, "exprel": result + 1}.get(name, 1.0)
    slope = max(slope, 1.0)
    if name in ("sqrt", "log"):
        slope = 1 / min(x.value, 1.0)
    return Traced(f"{name}({x.text})", result, 2 * slope * x.error + 8 * EPS * (abs(result) + 1))


def _powered(x: Traced, n: int) -> Traced:
    result = x.value**n
    error = 2 * n * abs(x.value) ** (n - 1) * x.error + 8 * EPS * abs(result)
    return Traced(f"(({x.text})**{n})", result, error)


def _chosen(x: Traced, y: Traced, limit: float) -> Traced:
    chosen = x if LEAVES["v"] < limit else y
    return Traced(f"({x.text} if v < {limit} else {y.text})", chosen.value, chosen.error)


def _extreme(x: Traced, y: Traced, name: str) -> Traced:
    result = (min if name == "min" else max)(x.value, y.value)
    return Traced(f"{name}({x.text}, {y.text})", result, max(x.error, y.error))


def _grown(inner: st.SearchStrategy[Traced]) -> st.SearchStrategy[Traced]:
    return st.one_of(
        st.builds(_sum, inner, inner, st.sampled_from("+-")),
        st.builds(_times, inner, inner),
        st.builds(_over, inner, inner),
        st.builds(_function, st.sampled_from(["-", *sorted({*FUNCTIONS} - {"min", "max"})]), inner),
        st.builds(_powered, inner, st.integers(1, 4)),
        st.builds(_chosen, inner, inner, st.sampled_from([-80.0, -37.0, 12.5])),
        st.builds(_extreme, inner, inner, st.sampled_from(["min", "max"])),
    )


numbers = st.integers(0, 40).map(str) | st.floats(0.01, 50).map(repr)
trees = st.recursive((numbers | st.sampled_from([*LEAVES])).map(_leaf), _grown, max_leaves=12)


def parsed(text: str) -> sympy.Expr:
    """The expression; no example where a branch that is not in use is no finite real number."""
    try:
        return parse_expression(text, LEAVES)
    except ExpressionError as error:
        assume("not a real number" not in str(error) and "not finite" not in str(error))
        raise


@settings(max_examples=400, deadline=None)
@given(trees)
def test_values_with_singularities_and_without_agree_with_python(tree):
    assume(math.isfinite(tree.error) and abs(tree.value) < 1e100 and tree.error < 1e90)
    expression = parsed(tree.text)
    for one in (expression, remove_singularities(expression)):
        assert abs(float(evaluate(one, LEAVES)) - tree.value) <= 8 * tree.error


# Removable singularities
def removed(text: str) -> sympy.Expr:
    return remove_singularities(parse_expression(text, NAMES))


def _linoid(x: mpmath.mpf) -> mpmath.mpf:
    """x/(1 - exp(-x)), and 1 at 0."""
    return mpmath.mpf(1) if x == 0 else x / -mpmath.expm1(-x)


#: text -> (singular voltage, the same by 60 digits; decimals as the float64 that text means)
CLASSIC = {
    "0.1*(v+40)/(1-exp(-(v+40)/10))": (-40, lambda v: _linoid((v + 40) / 10) * 10 * 0.1),
    "0.01*(10-v)/(exp((10-v)/10)-1)": (10, lambda v: _linoid((v - 10) / 10) / 10),
    "(0.1-0.01*v)/(2.718281828459045*exp(-0.1*v)-1)": (10, lambda v: _linoid((v - 10) / 10) / 10),
    "0.01*(10-v)/(2.5*exp((10-v)/10)-2.5)": (10, lambda v: _linoid((v - 10) / 10) / 25),
    "0.32*(v+47.25)/(1-exp(-(v+47.25)/4))": (-47.25, lambda v: _linoid((v + 47.25) / 4) * 1.28),
    "v/(1-exp(-v))": (0, _linoid),
    "(v/(1-exp(-v)))**2": (0, lambda v: _linoid(v) ** 2),
    "sqrt(v/(1-exp(-v)))": (0, lambda v: mpmath.sqrt(_linoid(v))),
    "min(v/(1-exp(-v)), 50)": (0, lambda v: min(_linoid(v), 50)),
    "7 if v < -100 else v/(1-exp(-v))": (0, _linoid),
    "v*(5-3*exp(-v/25))/(1-exp(-v/25))": (
        0,
        lambda v: 25 * _linoid(v / 25) * (5 - 3 * mpmath.exp(-v / 25)),
    ),
    "(v-9)/(exp(v/9)-exp(1))": (9, lambda v: 9 / mpmath.e * _linoid((9 - v) / 9)),
}
OFFSETS = [0.0, *(s * d for d in (1e-12, 1e-9, 1e-6, 1e-3, 1.0, 30.0) for s in (1, -1))]


@pytest.mark.parametrize("text", CLASSIC)
def test_classic_rates_are_exact_at_and_around_their_singular_voltage(text):
    singular, exact = CLASSIC[text]
    voltages = np.array([singular + offset for offset in OFFSETS])
    ours = evaluate(removed(text), {"v": voltages})
    with mpmath.workdps(60):
        truth = np.array([float(exact(mpmath.mpf(float(v)))) for v in voltages])
    np.testing.assert_allclose(ours, truth, rtol=1e-13)


@pytest.mark.parametrize(
    "text",
    [
        "a1*(a2-v)/(exp((a2-v)/a3)-1)",
        "a1*(a2-v)*(b*exp((a2-v)/a3)-b)**-1*b",
        "a1*(v-a2)*exp(a2/a3)/(exp(a2/a3)-exp((2*a2-v)/a3))",
    ],
)
@settings(max_examples=60, deadline=None)
@given(
    a1=st.floats(1e-3, 1e3),
    a2=st.floats(-120, 60),
    a3=st.floats(1, 50) | st.floats(-50, -1),
    near=st.sampled_from(OFFSETS),
)
def test_rates_of_parameters_are_exact_around_their_singular_voltage(text, a1, a2, a3, near):
    v = a2 + near
    ours = float(evaluate(removed(text), {"a1": a1, "a2": a2, "a3": a3, "b": 0.3, "v": v}))
    with mpmath.workdps(60):
        u = (mpmath.mpf(a2) - mpmath.mpf(v)) / mpmath.mpf(a3)
        truth = float(mpmath.mpf(a1) * mpmath.mpf(a3) * (_linoid(-u)))
    # u is a difference of a2/a3 and v/a3 where the text says so: that much is in the input.
    scale = 1 + abs(a2 / a3) + abs(v / a3)
    assert ours == pytest.approx(truth, rel=2e-15 * scale + 1e-14)


@pytest.mark.parametrize(
    "text",
    [
        "1/(exp(v)-1)",
        "(v+39)/(1-exp(-(v+40)/10))",
        "v/(exp(v)-2)",
        "v**2/(1-exp(v)*a)",
        "v/(exp(v)-exp(-v))",
    ],
)
def test_what_is_not_removable_is_left_alone(text):
    assert removed(text) == parse_expression(text, NAMES)


# exprel
@given(st.floats(-700, 700) | st.floats(-2, 2) | st.floats(-1e-3, 1e-3))
def test_exprel_and_its_slope_are_accurate_everywhere(x):
    with mpmath.workdps(700):
        m = mpmath.mpf(x)
        truth = float(mpmath.expm1(m) / m) if x else 1.0
        slope = float((1 + (m - 1) * mpmath.exp(m)) / m**2) if abs(x) > 1e-200 else 0.5
    assert float(exprel_values(x)) == pytest.approx(truth, rel=1e-15)
    assert float(evaluate(exprel(V), {"v": x})) == pytest.approx(truth, rel=1e-15)
    assert float(exprel_slope_values(x)) == pytest.approx(slope, rel=4e-15)


def test_exprel_at_the_ends():
    assert value("exprel(0)") == 1
    np.testing.assert_array_equal(exprel_values([0, -np.inf, np.inf, 800]), [1, 0, np.inf, np.inf])
    ends = exprel_slope_values([0, -np.inf, np.inf, 800, -1e200, 1e200])
    np.testing.assert_array_equal(ends, [0.5, 0, np.inf, np.inf, 0, np.inf])
    assert np.isnan(exprel_values(np.nan))
    assert np.isnan(exprel_slope_values(np.nan))


# Values


def test_overflow_and_undefined_values_neither_warn_nor_raise(recwarn):
    assert value("exp(v)", v=1e5) == math.inf
    assert math.isnan(value("log(v)", v=-1.0))
    assert value("1/v", v=0.0) == math.inf
    assert math.isnan(value("v**0.5", v=-1.0))
    assert math.isnan(value("exp(v)", v=math.nan))
    assert value("(v + 40)/(1 - exp(-(v + 40)/10))", v=-1e9) == 0
    assert not recwarn.list


# Definitions
def test_definitions_come_after_what_they_use():
    texts = {"p": "q*r + v", "q": "r**2", "r": "a*v", "s": "1"}
    definitions = {n: parse_expression(t, (*NAMES, *texts)) for n, t in texts.items()}
    order = definition_order(definitions)
    assert sorted(order) == ["p", "q", "r", "s"]
    assert order.index("r") < order.index("q") < order.index("p")
    assert definition_order({}) == []


def test_a_power_of_a_conditional_leaves_no_whole_number_of_thousands_of_digits() -> None:
    found = parse_expression("(2147483648 if v > 0 else 3)**(-1000)", [])
    rationals = [part for part in parts_of(found) if part.is_Rational]
    assert max((max(abs(r.p), r.q) for r in rationals), default=0) <= LARGEST_INTEGER
    assert printed(found) == "0"
    small = parse_expression("(2147483648 if v > 0 else 3)**(-30)", [])
    assert [float(value) for value, _ in small.args] == [2147483648.0**-30, 3.0**-30]
