"""Every key of a cell file acts, and mistakes are refused with their place."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from channelfit.cells.cell_file import Cell, load_cell
from channelfit.reading.documents import dump_yaml
from channelfit.reading.errors import InputError
from channelfit.reading.keys import KEYS

K = {"model": "cold.yaml", "samples": "samples.csv"}
BASE: dict[str, Any] = {
    "name": "little",
    "membrane": {"area": "1000 um2", "leak": {"conductance": "0.3 mS/cm2", "reversal": "-54 mV"}},
    "channels": {
        "na": {"model": "cold.yaml", "conductance": "120 mS/cm2"},
        "k": K,
    },
    "stimulus": {"pulses": [{"amplitude": "100 pA", "start": 1, "for": 2}]},
    "duration": "5 ms",
}
PULSE = "stimulus.pulses.0"
CABLE = {"length": "2 mm", "diameter": "5 um", "axial": "100 Ohm cm", "record": "1 mm"}
#: Before other keys of a cable: a membrane without an area, and a cable.
ALONG = {"membrane": {}, "cable": CABLE}
RECORDED = {"file": "i.csv", "time": "t", "current": "i"}
#: By section and key: the dotted place, the value there, and what else is set before.
PROOFS: dict[tuple[str, str], tuple[str, Any, dict[str, Any]]] = {
    ("cell", "name"): ("name", "other", {}),
    ("cell", "membrane"): ("membrane", {"area": "900 um2"}, {}),
    ("cell", "channels"): ("channels", {"k": BASE["channels"]["k"]}, {}),
    ("cell", "stimulus"): ("stimulus", {}, {}),
    ("cell", "initial"): ("initial", "-70 mV", {}),
    ("cell", "settle"): ("settle", "10 ms", {}),
    ("cell", "duration"): ("duration", "6 ms", {}),
    ("cell", "step"): ("step", "5 us", {}),
    ("cell", "sampling"): ("sampling", "0.1 ms", {}),
    ("cell", "sets"): ("sets", 5, {}),
    ("cell", "seed"): ("seed", 5, {}),
    ("cell", "cable"): (
        "cable",
        CABLE,
        {"membrane": {"capacitance": "10 pF"}, "channels": {"k": K}},
    ),
    ("cable", "length"): ("cable.length", "3 mm", ALONG),
    ("cable", "diameter"): ("cable.diameter", "6 um", ALONG),
    ("cable", "axial"): ("cable.axial", "1 Ohm m", ALONG | {"cable.axial": 101}),
    ("cable", "segments"): ("cable.segments", 100, ALONG),
    ("cable", "at"): ("cable.at", "0.5 mm", ALONG),
    ("cable", "record"): ("cable.record", ["1 mm", "2 mm"], ALONG),
    ("membrane", "area"): ("membrane.area", "900 um2", {}),
    ("membrane", "capacitance"): ("membrane.capacitance", "12 pF", {}),
    ("membrane", "temperature"): (
        "membrane.temperature",
        "20 degC",
        {"channels": {"w": {"model": "warm.yaml"}}},
    ),
    ("membrane", "leak"): ("membrane.leak.conductance", "0.4 mS/cm2", {}),
    ("cell channel", "model"): ("channels.k.model", "warm.yaml", {}),
    ("cell channel", "values"): ("channels.na.values", {"a1": 0.03}, {}),
    ("cell channel", "conductance"): ("channels.na.conductance", "100 mS/cm2", {}),
    ("cell channel", "reversal"): ("channels.na.reversal", "45 mV", {}),
    ("cell channel", "scale"): ("channels.na.scale", 0.5, {}),
    ("cell channel", "samples"): ("channels.k.samples", "others.csv", {}),
    ("stimulus", "pulses"): (PULSE + ".amplitude", ["50 pA", "100 pA"], {}),
    ("stimulus", "recorded"): ("stimulus.recorded", RECORDED, {}),
    ("pulse", "amplitude"): (PULSE + ".amplitude", "5 uA/cm2", {}),
    ("pulse", "start"): (PULSE + ".start", 1.5, {}),
    ("pulse", "for"): (PULSE + ".for", 1.5, {}),
    ("pulse", "every"): (PULSE + ".every", 2, {PULSE + ".every": 1.5, PULSE + ".count": 2}),
    ("pulse", "count"): (PULSE + ".count", 3, {PULSE + ".every": 1.5, PULSE + ".count": 2}),
    ("recorded current", "file"): (
        "stimulus.recorded.file",
        "i2.csv",
        {"stimulus.recorded": RECORDED},
    ),
    ("recorded current", "time"): ("stimulus.recorded.time", "t2", {"stimulus.recorded": RECORDED}),
    ("recorded current", "current"): (
        "stimulus.recorded.current",
        "t",
        {"stimulus.recorded": RECORDED},
    ),
    ("recorded current", "unit"): ("stimulus.recorded.unit", "nA", {"stimulus.recorded": RECORDED}),
}
SECTIONS = ("cell", "cable", "membrane", "cell channel", "stimulus", "pulse", "recorded current")
WORDS = {("cell", "description"), ("cell", "source")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("cells")
    (place / "samples.csv").write_text("a1,gmax\n0.01,5\n0.011,6\n0.012,7\n")
    (place / "others.csv").write_text("a1\n0.02\n0.021\n0.022\n")
    (place / "i.csv").write_text("t,t2,i\n0,0,0\n2,3,10\n4,5,0\n")
    (place / "i2.csv").write_text("t,t2,i\n0,0,0\n2,3,20\n4,5,0\n")
    for name, factor in (("warm", "3**((celsius - 6)/10)"), ("cold", "1")):
        (place / f"{name}.yaml").write_text(
            f"temperature: 6\ngates:\n  m: {{alpha: a1*{factor}, beta: '1'}}\n"
            "current: {conductance: gmax, reversal: -80 mV}\nparameters:\n"
            "  a1: {range: [0, 1], unit: 1/ms, value: 0.5}\n"
            "  gmax: {range: [0, 10], unit: nS, value: 5}\n"
        )
    return place


def put(document: Any, place: str, value: Any) -> None:
    *path, last = [int(p) if p.isdigit() else p for p in place.split(".")]
    for part in path:
        document = document[part]
    document[last] = value


def read(folder: Path, changes: dict[str, Any]) -> Cell:
    document = copy.deepcopy(BASE)
    for place, value in copy.deepcopy(changes).items():
        put(document, place, value)
    (folder / "cell.yaml").write_text(dump_yaml(document))
    return load_cell(folder / "cell.yaml")


def effect(cell: Cell) -> list[Any]:
    edges = np.arange(0.0, 5.0, 0.01)
    return [
        *(cell.name, cell.initial_mV, cell.settle_ms, cell.step_ms, cell.n_sets),
        *(x.tobytes() for x in (cell.times_ms, cell.parameters, cell.stimulus.means(edges))),
        str(cell.membrane.model),
        str(cell.cable),
    ]


def test_every_key_acts(folder: Path) -> None:
    accepted = {(s, key) for s in SECTIONS for key in KEYS[s]}
    assert set(PROOFS) | WORDS == accepted
    for key, (place, value, before) in PROOFS.items():
        assert effect(read(folder, before)) != effect(read(folder, {**before, place: value})), key
    with pytest.raises(InputError, match="text was expected"):
        read(folder, {"description": []})
    with pytest.raises(InputError, match="text was expected"):
        read(folder, {"source": []})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"membrane": {}}, "membrane: an area or a capacitance is needed"),
        ({"channels": {"leak": {"model": "cold.yaml"}}}, "letters and digits"),
        ({"channels": {"a_b": {"model": "cold.yaml"}}}, "letters and digits"),
        ({"channels": {}}, "at least one channel"),
        ({"channels.na.model": "none.yaml"}, "channels.na.model"),
        ({"channels.na.values": {"zz": 1}}, "channels.na.values.zz: the model has no such"),
        ({"channels.na.conductance": "-1 nS"}, "0 or more"),
        ({"channels.na.conductance": "5 mV"}, "channels.na.conductance"),
        ({"channels.na.scale": -1}, "0 or more"),
        ({"channels.k.samples": "i.csv"}, "no column of a parameter"),
        ({"channels.k": {"model": "cold.yaml"}, "sets": 3}, "sets: no channel has `samples`"),
        ({"step": 0}, "step: a time above 0"),
        ({"sampling": 0.015}, "sampling: 0.015 ms is no multiple of 0.01 ms"),
        ({"settle": -1}, "settle"),
        ({"duration": 1e9}, "more than 100,000,000 steps"),
        ({PULSE + ".every": 5}, "both `every` and `count`"),
        ({PULSE + ".amplitude": []}, "at least one current"),
        ({PULSE + ".for": 0}, "length is above 0"),
        ({"stimulus.recorded": RECORDED | {"unit": "mV"}}, "stimulus.recorded.unit"),
        ({"stimulus.recorded": RECORDED | {"time": "i"}}, "rising times"),
        ({"cable": CABLE}, "membrane.area: follows from the length"),
        (ALONG | {"cable.segments": 1}, "cable.segments: a whole number, from 2"),
        (ALONG | {"cable.axial": 0}, "cable.axial: a size above 0"),
        (ALONG | {"cable.diameter": 1e300}, "cable.diameter: a size above 0, and below"),
        (ALONG | {"cable.length": "1 mV"}, 'cable.length: unit "mV" is a voltage'),
        (ALONG | {"cable.at": "2.1 mm"}, "cable.at: 2100 um is not on the cable"),
        (ALONG | {"cable.record": []}, "cable.record: at least one place"),
        (ALONG | {"cable.record": ["1 mm", "1.001 mm"]}, "in the same of 101 segments"),
        (ALONG | {PULSE + ".amplitude": "5 uA/cm2"}, "cannot be given per area"),
        (ALONG | {PULSE + ".amplitude": "5 pA/pF"}, "cannot be given per capacitance"),
        ({"zz": 1}, 'unknown key "zz"'),
    ],
)
def test_mistakes_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(folder, changes)


def test_samples_may_stand_beside_texts_and_gaps(folder: Path) -> None:
    (folder / "wells.csv").write_text('well,a1,gmax\nA1,0.1,5\n"A2, bad",,\nA3,0.2,6\n')
    cell = read(folder, {"channels.k.samples": "wells.csv"})
    rows = [cell.membrane.row(name) for name in ("k_a1", "k_gmax")]
    assert sorted(map(tuple, cell.parameters[rows].T.tolist())) == [(0.1, 5.0), (0.2, 6.0)]
    assert "1 of 3 rows have an empty cell" in str(cell.cautions[0])
    (folder / "wells.csv").write_text("a1\nx\n")
    with pytest.raises(InputError, match="channels.k.samples: .*wells.csv: could not convert"):
        read(folder, {"channels.k.samples": "wells.csv"})


def test_a_drug_is_there_in_a_constant_concentration(folder: Path) -> None:
    drugged = (folder / "cold.yaml").read_text().replace("beta: '1'", "beta: 1 + kon*drug")
    drugged += "  kon: {range: [0, 10], unit: 1/mM/ms, value: 3}\nligands: [drug]\n"
    (folder / "drugged.yaml").write_text(drugged)
    cell = read(folder, {"channels.k": {"model": "drugged.yaml", "values": {"drug": 0.5}}})
    assert cell.parameters[cell.membrane.row("k_drug"), 0] == 0.5
    with pytest.raises(InputError, match=r"channels.k.values: .* concentration of drug"):
        read(folder, {"channels.k": {"model": "drugged.yaml"}})


def test_what_looks_wrong_is_named(folder: Path) -> None:
    cell = read(folder, {"membrane.temperature": "30 degC"})
    assert len(cell.cautions) == 2
    assert "do not follow the temperature" in str(cell.cautions[0])
