"""Quantities with units, and YAML that a stranger wrote."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channelfit.reading import units
from channelfit.reading.documents import Section, parse_yaml
from channelfit.reading.errors import InputError
from channelfit.reading.keys.shapes import Choice, Flag, Integer, Key, Quantity, Text, either
from channelfit.reading.units import Membrane, parse_quantity

AREA, CAPACITANCE = Membrane(area=1000.0), Membrane(capacitance=20.0)


def test_quantities():
    for text, dimension, expected, *membrane in (
        ("-100 mV", "voltage", -100.0),
        ("  .5  V ", "voltage", 500.0),
        ("200 µs", "time", 0.2),  # micro sign
        ("200 μs", "time", 0.2),  # Greek mu
        ("2 min", "time", 120_000.0),
        ("5 uS", "conductance", 5000.0),
        ("7 per ms", "rate", 7.0),
        ("3 1/(s V)", "rate per voltage", 3e-6),
        ("3 1/(mV*ms)", "rate per voltage", 3.0),
        ("22 °C", "temperature", 22.0),
        ("5 GΩ", "resistance", 5000.0),
        ("3", "time", 3.0),
        ("0.12 S/cm2", "conductance", 0.12 * 1e9 * 1000e-8, AREA),  # 1000 um2 are 1e-5 cm2
        ("36 pS/µm²", "conductance", 36.0, AREA),
        ("0.153 mS/uF", "conductance", 0.153 * 20, CAPACITANCE),
        ("-3 pA/pF", "current", -60.0, CAPACITANCE),
        ("2 uA/cm2", "current", 2e6 * 1000e-8, AREA),
        ("5.4 mM", "concentration", 5.4),
        ("1 µM", "concentration", 1e-3),
        ("2 /mM/ms", "rate per concentration", 2.0),
        ("1500 um2", "area", 1500.0),
        ("2 cm", "length", 20_000.0),
        ("35.4 Ω cm", "resistivity", 35.4),
        ("1.5 ohm*m", "resistivity", 150.0),
    ):
        assert parse_quantity(text, dimension, *membrane) == pytest.approx(expected, rel=1e-14)


_SIZES = {"1": 1.0, "s": 1.0, "min": 60.0, "Hz": 1.0, "V": 1.0, "A": 1.0, "S": 1.0}
_SIZES |= {"F": 1.0, "Ohm": 1.0, "m": 1.0, "M": 1e3, "degC": 1.0, "dimensionless": 1.0}
_PREFIXES = {"": 1.0, "f": 1e-15, "p": 1e-12, "n": 1e-9, "u": 1e-6, "m": 1e-3, "c": 1e-2}
_PREFIXES |= {"k": 1e3, "M": 1e6, "G": 1e9}


def in_si(unit: str) -> float:
    """The size of a unit such as 1/(ms mV), in SI units, from its prefixes and powers alone."""

    def size(word: str) -> float:
        name = word.rstrip("23") or word
        (found,) = {_PREFIXES[p] * x for p in _PREFIXES for s, x in _SIZES.items() if p + s == name}
        return float(found ** int(word[len(name) :] or 1))

    above, *below = (unit or "1").replace("(", "").replace(")", "").split("/")
    over, under = (
        math.prod(size(w) for p in parts for w in p.split()) for parts in ([above], below)
    )
    return over / under


@pytest.mark.parametrize(
    "table",
    [*units._UNITS.values(), *(t for kinds in units._DENSITIES.values() for t in kinds.values())],
    ids=lambda table: next(iter(table)),
)
def test_every_factor_follows_from_prefixes_and_powers(table: dict[str, float]) -> None:
    base = next(unit for unit, factor in table.items() if factor == 1.0)
    found = {unit: in_si(unit) / in_si(base) for unit in table}
    assert found == pytest.approx(table, rel=1e-12)


@pytest.mark.parametrize(
    ("value", "dimension", "message"),
    [
        ("5 mW", "voltage", 'unknown unit "mW"; did you mean mV? Known: mV, V, uV'),
        ("5 ms", "voltage", 'unit "ms" is a time; expected one of mV, V, uV'),
        ("", "voltage", '"" is not a quantity; write for example -80 mV'),
        (None, "current", "None is not a quantity; write for example 20 pA"),
        (float("nan"), "time", "nan is not finite"),
    ],
)
def test_what_is_no_quantity(value: object, dimension: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        parse_quantity(value, dimension)


@given(st.text(max_size=300))
def test_any_text_is_a_finite_number_or_one_clear_message(text: str) -> None:
    value, message = 0.0, ""
    try:
        value = parse_quantity(text, "voltage")
    except InputError as error:
        message = str(error)
    assert abs(value) < float("inf")
    assert "\n" not in message


def test_scalars_are_those_of_yaml_1_2() -> None:
    text = "{a: no, b: 1e-3, c: 012, d: true, e: ~, f: 1_000, g: 2020-01-01, h: .5, i: -3}"
    values = ["no", 0.001, 12.0, True, None, "1_000", "2020-01-01", 0.5, -3]
    assert list(parse_yaml(text).values()) == values
    parse_yaml(text)["a"] = "changed"
    assert list(parse_yaml(text).values()) == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x [1]\nb: *x\n", "f: line 2: YAML aliases (*name) are not accepted"),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", 'f: line 4: "c" is given twice'),
        ("a: !!python/object/apply:os.system ['true']\n", "f: line 1: the YAML tag"),
        ("? [1, 2]\n: 3\n", "f: line 1: a key must be a word, not [1, 2]"),
        ("a: " + "[" * 20_000, "f: nested too deeply"),
        ("{a: " * 5_000, "f: nested too deeply"),
        ("- 1\n", "f: a mapping (lines of `key: value`) was expected"),
        ("", "f: a mapping (lines of `key: value`) was expected"),
        ("a: \x01\n", "f: not valid YAML: unacceptable character"),
        ("a: " + "9" * 5_000, "f: line 1: a whole number of too many digits"),
        ("a: 1\nb: !!bool x", 'f: line 2: "x" is no value of the YAML tag !!bool'),
        (r'a: "\ud800"', "holds half of a surrogate pair"),
    ],
)
def test_what_is_no_usable_yaml(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "f")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


_WORDS = st.sampled_from([*list("ab:-[]{}\"'#,&!|>%@?\n\t "), ": ", "- ", "\r\n", "\x85", "\u2028"])


@given(st.text(max_size=200) | st.lists(_WORDS, max_size=40).map("".join))
def test_any_text_is_a_mapping_or_an_input_error_in_a_line_that_there_is(text: str) -> None:
    found, message = {}, "f: "
    try:
        found = parse_yaml(text, "f")
    except InputError as error:
        message = str(error)
    assert isinstance(found, dict)
    assert message.startswith("f: ")
    assert "\n" not in message
    line = re.match(r"f: line (\d+): ", message)
    assert line is None or 1 <= int(line[1]) <= len(text.splitlines())


#: What the keys in these tests are announced as, beside those that are texts.
TOLD = {
    "b": Key(Quantity("time"), ""),
    "c": Key(either(Integer(), Quantity("none")), ""),
    "d": Key(Flag(), ""),
    "n": Key(Integer(3), ""),
    "p": Key(Integer(1, 8), ""),
    "choice": Key(Choice(("no", "on")), "", default="on"),
    "time": Key(Quantity("time"), "", default=1.5),
}


def section(**data: object) -> Section:
    return announced(Section(data, "f.yaml", "top"))


def announced(made: Section) -> Section:
    """Ready to be read by every key that these tests ask for."""
    made.expect({**{key: Key(Text(), "") for key in [*made.given(), "zz", "q"]}, **TOLD})
    return made


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda s: s.text("zz", ...), 'f.yaml: top: "zz" is missing'),
        (lambda s: s.text("a"), "f.yaml: top.a: text was expected, not [1]"),
        (lambda s: s.integer("c"), "f.yaml: top.c: a whole number, 0 or more, was expected"),
        (lambda s: s.integer("p"), "a whole number, from 1 to 8, was expected, not 9"),
        (lambda s: s.flag("d"), 'f.yaml: top.d: true or false was expected, not "yes"'),
        (lambda s: s.choice("choice"), 'top.choice: "yes" is not one of no, on'),
        (lambda s: s.quantity("time"), "f.yaml: top.time: None is not a quantity"),
        (lambda s: announced(s.section("m")).text("q", ...), 'f.yaml: top.m: "q" is missing'),
    ],
)
def test_a_section_refuses_what_does_not_fit(read: object, message: str) -> None:
    given = dict.fromkeys(("b", "c", "d", "choice"), "yes")
    with pytest.raises(InputError, match=re.escape(message)):
        read(section(a=[1], t=True, n=2, p=9, m={}, time=None, **given))  # type: ignore[operator]


def test_paths_are_relative_to_the_file_and_know_the_environment(tmp_path, monkeypatch):
    s = Section({}, tmp_path / "sub" / "fit.yaml")
    assert s.resolve("../x.csv", "file") == tmp_path / "sub" / ".." / "x.csv"
    assert s.resolve("/x.csv", "file") == Path("/x.csv")
    monkeypatch.setenv("SOME_DATA", "/data")
    assert s.resolve("${SOME_DATA}/x.csv", "file") == Path("/data/x.csv")
    monkeypatch.delenv("SOME_DATA")
    with pytest.raises(InputError, match="needs the environment variable SOME_DATA"):
        s.resolve("${SOME_DATA}/x.csv", "file")
    with pytest.raises(InputError, match="NUL"):
        s.resolve("a\0b", "file")
