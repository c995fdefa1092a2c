"""The comment of an exported .mod by which an import gives the model back, and forged ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from channelfit.front.importing import _simulated
from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model
from channelfit.reading.documents import parse_yaml, read_yaml
from channelfit.results.export.kinds import exported
from channelfit.results.export.nmodl import ExportSettings
from channelfit.scoring.neuron.importing import prove
from support.exports import of, simulated, steps
from support.mod_files import few, of_text
from support.places import MODELS
from support.term_models import DOCUMENTS

FEW = replace(steps(), sweeps=steps().sweeps[::3])
WHOLE = ExportSettings(capacitance_pF=20.0)
#: A file, how it is exported, the reversal potential or concentrations that the cell then decides
#: on, and parameters that are in no export because the cell decides in their place.
CASES: dict[str, tuple[Any, ExportSettings, dict[str, float], set[str]]] = {
    "scheme": (MODELS / "guide" / "my_channel.yaml", WHOLE, {}, set()),
    "gates": (MODELS / "k_hh_gate.yaml", WHOLE, {}, set()),
    "ion": (MODELS / "k_hh_gate.yaml", replace(WHOLE, ions=("k",)), {"ek": -100.0}, set()),
    "whole cell": (MODELS / "k_hh_gate.yaml", ExportSettings(point_process=True), {}, set()),
    "warm": (MODELS / "published" / "na_squid.yaml", WHOLE, {}, set()),
    "constant field": (
        DOCUMENTS["calcium"],
        replace(WHOLE, ions=("ca",)),
        {"cai": 5e-4, "cao": 2.0},
        {"ci"},
    ),
}


def original(source: Any) -> dict[str, Any]:
    document = dict(source if isinstance(source, Mapping) else read_yaml(source))
    document.pop("fit", None)
    return document


def text_of(case: str) -> str:
    source, settings, _, _ = CASES[case]
    return exported(of(original(source)), "nmodl", settings)


def back_of(text: str, tmp_path: Path) -> ChannelModel:
    return build_model(parse_yaml(of_text(text, tmp_path).imported.text), None)


def currents(model: ChannelModel) -> np.ndarray:
    return simulated(model, model.values(), FEW)


@pytest.mark.parametrize("case", CASES)
def test_an_export_comes_back_equal(case: str, tmp_path: Path) -> None:
    source, _, cell, left_out = CASES[case]
    ours, back = build_model(original(source), None), back_of(text_of(case), tmp_path)
    assert [(c.states, c.power) for c in back.chains] == [(c.states, c.power) for c in ours.chains]
    inputs = {p.input: p.value for p in back.parameters if p.input}
    assert inputs == pytest.approx(cell, rel=1e-12)
    own = {p.name: p for p in back.parameters if not p.input}
    assert own == {p.name: p for p in ours.parameters if p.name not in left_out}
    if not cell:
        assert [t.reversal for t in back.terms] == [t.reversal for t in ours.terms]
    assert back.temperature_C == ours.temperature_C
    expected = currents(ours)
    assert np.abs(currents(back) - expected).max() < 1e-9 * np.abs(expected).max()


@pytest.mark.integration
@pytest.mark.usefixtures("compiler")
def test_what_came_back_is_proven_in_neuron(tmp_path: Path) -> None:
    """Densities and what the cell decides on are set in NEURON as the model has them."""
    assert prove(of_text(text_of("ion"), tmp_path), _simulated, few()).error < 1e-6


@pytest.mark.parametrize(
    ("before", "after", "name", "value", "note"),
    [
        ("a    = 0.2 ", "a    = 0.3 ", "a", 0.3, "a is 0.3 by the file, and 0.2 by its comment"),
        ("a    = 0.2 ", "a    = 7 ", "a", 7.0, "outside the range of its comment"),
        ("gbar = 0.0004", "gbar = 0.04", "gmax", 800.0, "outside the range of its comment"),
    ],
)
def test_where_file_and_comment_differ_the_file_is_right(
    before: str, after: str, name: str, value: float, note: str, tmp_path: Path
) -> None:
    text = text_of("scheme")
    assert before in text
    made = of_text(text.replace(before, after), tmp_path).imported
    found = {p.name: p for p in made.model.parameters}[name]
    assert found.value == pytest.approx(value, rel=1e-12)
    assert any(note in one for one in made.notes)
    assert note in made.text


#: A line of the comment, and what is said of one that is put in its place.
FORGED = {
    "code": ("number e: -90", "number e: __import__('os').system('id')", "is no line of it"),
    "a line of the model": ("number e: -90", "fit: {protocols: [/etc/passwd]}", "is no line of it"),
    "a name": ("a: a = 0.2", "a: a}\u0085x = 0.2", "is no line of it"),
    "a unit": ("0.2 1/ms", "0.2 furlong", "furlong is no base unit"),
    "not a number": ("number e: -90", "number e: nan", "is no line of it"),
    "version": ("version 1", "version 77", "another version"),
    "lines": ("number e: -90", "\n" * 600 + "number e: -90", "more than 500 lines"),
    "two": ("ENDCOMMENT\n\nNEURON", "ENDCOMMENT\nCOMMENT\nchannelfit metadata, version 1\n"
            "ENDCOMMENT\n\nNEURON", "there are two of them"),
}  # fmt: skip


@pytest.mark.parametrize("case", FORGED)
def test_a_comment_that_cannot_be_read_is_ignored_as_a_whole(case: str, tmp_path: Path) -> None:
    before, after, note = FORGED[case]
    text = text_of("scheme")
    assert text.count(before) == 1
    made = of_text(text.replace(before, after), tmp_path).imported
    plain = of_text(text.replace("channelfit metadata", "x"), tmp_path).imported
    (own,) = made.notes
    assert "metadata is ignored" in own
    assert own.startswith("line ")
    assert note in own
    assert made.model == plain.model
    lines = made.text.splitlines()
    assert lines[0] == "# given"
    assert [line for line in lines if not line.startswith("#")] == [
        line for line in plain.text.splitlines() if not line.startswith("#")
    ]


@pytest.mark.parametrize(
    ("forged", "note"),
    [
        ("parameter C: C = 1, fixed", "C, which is no PARAMETER"),
        ("cell ena: 3", "ena, which it reads of no ion"),
        ("parameter a: exp = 0.2 mV, range 0.01 to 1", ""),
        ("density a: leak = 0.2 nS, range 0.01 to 1", "by its comment"),
        ("number a: 0.2", ""),
    ],
)
def test_no_comment_changes_the_current_of_the_file(forged: str, note: str, tmp_path: Path) -> None:
    text = text_of("scheme")
    row = "parameter a: a = 0.2 1/ms, range 0.01 to 1 log"
    assert row in text
    made = of_text(text.replace(row, forged), tmp_path).imported
    assert not note or any(note in one for one in made.notes)
    model = build_model(parse_yaml(made.text), None)
    expected = currents(back_of(text, tmp_path))
    assert np.abs(currents(model) - expected).max() < 1e-9 * np.abs(expected).max()
