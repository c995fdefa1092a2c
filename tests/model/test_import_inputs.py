"""What a cell decides on, through an import and an export: ions, constant fields, size, celsius."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from channelfit.model.evaluation import evaluate
from channelfit.model.model_file import build_model
from channelfit.reading.documents import parse_yaml
from channelfit.reading.errors import InputError
from channelfit.results.export.kinds import exported
from channelfit.results.export.nmodl import ExportSettings
from channelfit.results.export.subject import Subject
from support.exports import BAR, exports, of, steps
from support.mod_files import of_text

DENSITY = ExportSettings()
#: A calcium current: how its file writes the constant field, and which constants of nature it has.
CALCIUM = """NEURON {{ SUFFIX cal USEION ca READ cai, cao WRITE ica RANGE p }}
UNITS {{ (mM) = (milli/liter) {units} }}
PARAMETER {{ p = 2e-4 ({unit}) celsius = 30 (degC) {parameter} }}
ASSIGNED {{ v (mV) ica (mA/cm2) cai (mM) cao (mM) {assigned} }}
STATE {{ m }}
INITIAL {{ m = 1/(1 + exp(-(v + 10)/7)) }}
BREAKPOINT {{ SOLVE s METHOD cnexp
    {current} }}
DERIVATIVE s {{ m' = (1/(1 + exp(-(v + 10)/7)) - m)/3 }}
{more}
"""
HELPER = """FUNCTION field(v, ci, co) {{ LOCAL w, e
    w = {w}
    if (fabs(w) < 1e-4) {{ e = 1 - w/2 }} else {{ e = w/(exp(w) - 1) }}
    field = {field} }}"""
#: The keys of each text, F and R (or RT/F at 0 K) as the file has them, and what p multiplies.
WAYS: dict[str, tuple[dict[str, str], float, float, str]] = {
    "as the textbook has it": (
        {
            "units": "F = (faraday) (coulomb) R = (k-mole) (joule/degC)",
            "assigned": "u",
            "current": "u = 0.002*F*v/(R*(celsius + 273.15))\n"
            "    ica = p*m*m*0.002*F*u*(cai - cao*exp(-u))/(1 - exp(-u))",
        },
        96485.33212331001,
        8.31446261815324,
        "pbar",
    ),
    "with R in another unit": (
        {
            "units": "F = (faraday) (coulomb) R = (mole k) (mV-coulomb/degC)",
            "assigned": "u",
            "current": "u = 2*F*v/(R*(celsius + 273.15))\n"
            "    ica = p*m*m*0.002*F*u*(cai - cao*exp(-u))/(1 - exp(-u))",
        },
        96485.33212331001,
        8.31446261815324,
        "pbar",
    ),
    "a conductance, and a switch": (
        {
            "unit": "S/cm2",
            "parameter": "USEGHK = 1 eca = 100",
            "assigned": "f",
            "current": "if (USEGHK == 1) { f = field(v, cai, cao) } else { f = v - eca }\n"
            "    ica = p*m*m*f",
            "more": HELPER.format(
                w="v*2/(25*(celsius + 273.15)/293.15)",
                field="-(25*(celsius + 273.15)/293.15)/2*(1 - ci/co*exp(w))*e",
            ),
        },
        96485.33212,
        96485.33212 * 25e-3 / 293.15,
        "gbar",
    ),
}
POTASSIUM = """NEURON { SUFFIX kca USEION ca READ cai USEION k READ ek, ko WRITE ik RANGE g }
PARAMETER { g = 0.01 (S/cm2) ek = -90 (mV) }
ASSIGNED { v (mV) ik (mA/cm2) cai (mM) ko (mM) celsius (degC) ninf ntau }
STATE { n }
INITIAL { settle(v) n = ninf }
BREAKPOINT { SOLVE s METHOD cnexp
    ik = g*(0.5 + ko/5)*n*(v - ek) }
DERIVATIVE s { settle(v) n' = (ninf - n)/ntau }
PROCEDURE settle(v) { ninf = cai/(cai + 0.001*exp(-v/40)) ntau = 5*3^((22 - celsius)/10) }
"""


def calcium(way: str) -> str:
    keys = dict.fromkeys(("units", "parameter", "assigned", "more"), "") | {"unit": "cm/s"}
    return CALCIUM.format(**{**keys, **WAYS[way][0]})


def subject(text: str, tmp_path: Path, **values: float) -> Subject:
    data = parse_yaml(of_text(text, tmp_path).imported.text)
    for name, value in values.items():
        data["parameters"][name]["value"] = value
    return of(data)


@pytest.mark.parametrize("way", WAYS)
def test_a_constant_field_current_is_recognized_however_it_is_written(way, tmp_path):
    made = of_text(calcium(way), tmp_path).imported
    (term,) = made.model.terms
    assert term.ion.valence == 2
    _, faraday, gas, kind = WAYS[way]
    for cai, cao, celsius, v in ((5e-5, 2.0, 30.0, -41.0), (0.7, 1.3, 12.0, 33.0)):
        data = parse_yaml(made.text) | {"temperature": celsius}
        model = build_model(data, None)
        values: dict[str, Any] = {**dict(zip(model.parameter_names, model.values(), strict=True))}
        values |= {"cai": cai, "cao": cao, "celsius": celsius, "v": v}
        for name, expression in model.definitions:
            values[name] = evaluate(expression, values)
        thermal = 1e3 * gas * (celsius + 273.15) / faraday
        u = 2 * v / thermal
        size = 2e-3 * faraday if kind == "pbar" else thermal / 2 / cao
        wanted = 2e-4 * size * u * (cai - cao * math.exp(-u)) / (1 - math.exp(-u))  # mA/cm2
        (term,) = model.terms
        assert float(evaluate(term.drive, values)) == pytest.approx(1e4 * wanted, rel=1e-9)


@pytest.mark.integration
@pytest.mark.usefixtures("compiler", "parser")
@pytest.mark.parametrize(
    ("text", "ion", "cell", "celsius"),
    [
        (calcium("a conductance, and a switch"), "ca", {"cai": 0.3, "cao": 5.0}, 37.0),
        (POTASSIUM, "k", {"cai": 1.0, "ek": -100.0, "ko": 6.0}, 36.0),
    ],
    ids=["constant field", "gated by calcium"],
)
def test_an_exported_import_follows_the_cell_as_its_original_does(
    text: str, ion: str, cell: dict[str, float], celsius: float, tmp_path: Path
) -> None:
    settings = replace(DENSITY, ions=(ion,))
    back = exported(subject(text, tmp_path), "nmodl", settings)
    protocol = replace(steps(), sweeps=steps().sweeps[::3])
    theirs, ours = (exports.in_neuron(one, protocol, celsius, cell) for one in (text, back))
    assert exports.apart(ours, theirs) < BAR
    apart = exports.in_neuron(back, protocol, celsius, {**cell, "cai": 1e-4})
    assert exports.apart(apart, theirs) > 0.05  # the cell's calcium acts


@pytest.mark.parametrize(
    ("text", "ion", "message"),
    [
        (calcium("as the textbook has it"), "k", "charge of 1, that of the model 2"),
        (POTASSIUM, "na", "driven by ek, which is of the ion k, not of na"),
        (
            calcium("as the textbook has it").replace("cao*exp", "cao*tanh(v)*exp"),
            "k",
            "no reversal potential that the cell's ek could take the place of",
        ),
    ],
)
def test_an_ion_that_does_not_fit_is_refused(text, ion, message, tmp_path):
    with pytest.raises(InputError, match=message):
        exported(subject(text, tmp_path), "nmodl", replace(DENSITY, ions=(ion,)))


@pytest.mark.parametrize("unit", ["(S/cm2)", "(nA/mV)", "(1)", ""])
def test_a_density_stays_what_it_is_whatever_its_unit_is_called(unit: str, tmp_path: Path) -> None:
    text = POTASSIUM.replace("(S/cm2)", unit)
    found = subject(text, tmp_path)
    back = exported(found, "nmodl", DENSITY)
    (row,) = [line for line in back.splitlines() if line.strip().startswith("gbar")]
    assert float(row.split()[2]) == pytest.approx(0.01, rel=1e-12)
    with pytest.raises(InputError, match=r"would multiply the densities of the file by 0\.5"):
        exported(found, "nmodl", ExportSettings(capacitance_pF=20.0))
