"""Models written in Python: the same checks as those of files, and files from them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import channelfit as cf
from channelfit.model.model_file import build_model, load_model
from support.model_texts import GATED, PLAIN, TIED, changed, ring
from support.places import ROOT

FILES = sorted([*ROOT.glob("models/*.yaml"), *ROOT.glob("models/published/*.yaml")])


def said_of(**arguments: Any) -> str:
    with pytest.raises(cf.InputError) as caught:
        cf.Model(**arguments)
    return str(caught.value)


@pytest.mark.parametrize("document", [PLAIN, GATED, TIED, ring(I_O="balance")])
def test_the_arguments_are_the_keys_of_a_file(document: dict[str, Any]) -> None:
    model = cf.Model(**document)
    assert model.channel == build_model(document, None)
    assert model.name == model.channel.name
    without_name = {key: value for key, value in document.items() if key != "name"}
    assert {k: v for k, v in model.document.items() if k != "name"} == without_name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_models_survive_yaml(path: Path, tmp_path: Path) -> None:
    model = cf.Model.load(path)
    assert model.channel == load_model(path)
    assert cf.Model.from_yaml(model.to_yaml()) == model
    again = cf.Model.load(model.save(tmp_path / "other.yaml"))
    assert (again, again.document) == (model, model.document)


def test_what_was_passed_in_is_neither_changed_nor_shared() -> None:
    document = copy.deepcopy(PLAIN)
    model = cf.Model(**document)
    document["parameters"]["a"]["range"][0] = 0.3
    model.document["rates"]["C -> O"] = "b"
    assert model.document == PLAIN
    assert model == cf.Model(**PLAIN)


def test_mistakes_are_told_with_the_argument():
    for key, value, message in (
        ("states", {"C", "O"}, "text, a number, true or false, a list or a mapping was expected"),
        ("rates/O -> C", 1j, "rates.O -> C: 1j cannot be used"),
        ("rates", {("C", "O"): "a"}, "rates: a key must be a word, not ('C', 'O')"),
        ("parameters/a/range", lambda: 1, "parameters.a.range: <function"),
        ("parameters/a", {1: 2, "1": 3}, 'parameters.a: "1" is given twice'),
        ("fit", {}, "fit: a model made in Python holds no fit section"),
    ):
        said = said_of(**changed(PLAIN, key, value))
        assert message in said
        assert "None" not in said


def test_what_holds_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["a"] = loop
    assert said_of(**(PLAIN | {"parameters": loop})).endswith("nested too deeply")


def test_a_file_is_not_replaced_in_silence(tmp_path: Path) -> None:
    model, path = cf.Model(**PLAIN), tmp_path / "m.yaml"
    path.write_text("mine")
    with pytest.raises(cf.InputError, match=r"m\.yaml: this file exists already"):
        model.save(path)
    assert path.read_text() == "mine"
    assert cf.Model.load(model.save(path, overwrite=True)) == model
    for bad in (tmp_path, tmp_path / "none" / "m.yaml", "a\0b"):
        with pytest.raises(cf.InputError, match="cannot be written"):
            model.save(bad, overwrite=True)
