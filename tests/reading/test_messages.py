"""What a mistake in a file is called, and where it is said to be."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from channelfit.model.model_file import load_model
from channelfit.reading.documents import dump_yaml, parse_yaml, read_json, read_yaml
from channelfit.reading.errors import Caution, InputError
from channelfit.reading.tables import read_columns
from channelfit.results.report.terminal import PlainConsole, SearchScreen
from channelfit.results.report.terminal import table as terminal_table
from channelfit.scoring.neuron.nmodl import nmodl_text
from support.json_output import ran, refused
from support.places import ROOT


# --- tables --------------------------------------------------------------------------------------
def table(folder: Path, data: bytes | str, header: bool | None = None) -> Any:
    (folder / "r.csv").write_bytes(data.encode() if isinstance(data, str) else data)
    return read_columns(folder / "r.csv", header)


def refusal(folder: Path, data: bytes | str) -> str:
    with pytest.raises(InputError) as caught:
        table(folder, data)
    return str(caught.value).replace(str(folder), "")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_text_with_a_mark_or_in_utf_16(tmp_path: Path, encoding: str) -> None:
    found = table(tmp_path, "t,µA\n0.5,1\n1,2\n".encode(encoding))
    assert list(found) == ["t", "µA"]
    assert found["t"].tolist() == [0.5, 1.0]
    (tmp_path / "m.yaml").write_bytes("name: µ\n".encode(encoding))
    assert read_yaml(tmp_path / "m.yaml") == {"name": "µ"}


def test_other_encodings_are_named_with_the_line(tmp_path: Path) -> None:
    said = refusal(tmp_path, b"t,I\n0,1\n1,\xb5\n")
    assert said.startswith(
        "/r.csv: line 3: cannot be read: not text in UTF-8 or UTF-16 (byte 0xb5)"
    )
    assert "save it as UTF-8" in said
    assert "holds NULs" in refusal(tmp_path, "t,I\n0,1\n".encode("utf-16-le"))
    for write in (b"name: \xe9\n", b"model = { \xe9 }"):
        (tmp_path / "m.yaml").write_bytes(write)
        with pytest.raises(InputError, match="line 1: cannot be read: not text in UTF-8 or UTF-16"):
            load_model(tmp_path / "m.yaml")


def test_decimal_commas(tmp_path):
    for text, said in (
        ("12,573\n13,001\n", 'line 1: "12,573" may be two whole numbers or one with a decimal'),
        ("current\n12,573\n13,001\n", "the rows hold 2; numbers with a decimal comma must be"),
        ("12\n13,5\n14\n", 'line 2: not a table of numbers: "13,5" has a decimal comma'),
        ("1.234,5\n999,25\n", 'line 1: "1.234,5" may be several numbers or one with a decimal'),
        ("t;I\n0;1.234,5\n", 'line 2: "1.234,5" has marks between thousands'),
        ('"12,573"\n"13,001"\n', 'line 1: "12,573" has a decimal comma'),
        ('I\n"12,573"\n', 'line 2: not a table of numbers: "12,573" has a decimal comma'),
    ):
        assert said in refusal(tmp_path, text)


@pytest.mark.parametrize("cell", ["1e400", "-1e309", "9" * 400])
def test_numbers_beyond_the_largest(tmp_path: Path, cell: str) -> None:
    for text in (f"t,I\n0,1\n1,{cell}\n", f"t I\n0 1\n1 {cell}\n"):
        assert "/r.csv: line 3: column I: " in refusal(tmp_path, text)
        assert "is beyond the largest number, 1.8e+308" in refusal(tmp_path, text)
    assert table(tmp_path, "t,I\n0,-inf\n")["I"].tolist() == [-np.inf]


@given(st.lists(st.tuples(st.integers(-999, 999), st.integers(0, 9999)), min_size=1))
def test_a_column_with_decimal_commas_is_never_read(tmp_path_factory, numbers):
    folder = tmp_path_factory.mktemp("commas")
    rows = [f"{whole},{part}" for whole, part in numbers]
    for text in ("\n".join(rows), "\n".join(["I", *rows]), "\n".join(["I, pA", *rows])):
        with pytest.raises(InputError):
            table(folder, text)


def test_whole_numbers_that_can_be_no_decimals_are_columns(tmp_path: Path) -> None:
    assert table(tmp_path, "0,-80\n1,-70\n")["2"].tolist() == [-80, -70]
    assert table(tmp_path, "t,I\n0,80\n1,70\n")["I"].tolist() == [80, 70]
    assert table(tmp_path, "0,80,1\n1,70,2\n")["3"].tolist() == [1, 2]
    assert table(tmp_path, "0,80\n1,70\n2,60\n", header=True)["80"].tolist() == [70, 60]


def test_rows_are_counted_as_the_file_counts_them(tmp_path: Path) -> None:
    said = refusal(tmp_path, "# rig 2\n\nt,I\n0,1\n\n1,x\n")
    assert 'r.csv: line 6: not a table of numbers: "x" is not a number' in said
    assert "line 4: not a table of numbers: 1 cells where line 2 has 2" in refusal(
        tmp_path, "t,I\n0.5,1\n1.5,2\n2.5\n"
    )


# --- YAML ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:\t1\nb: 2\n", "line 1: not valid YAML: a tab stands here"),
        ("a: 1\nb 2\nc: 3\n", 'line 2: not valid YAML: "b 2" is not `key: value`'),
        ("a:1\nb: 2\n", 'line 1: not valid YAML: "a:1" lacks a blank behind its colon'),
        (
            "p:\n  a: {range: [0, 1], unit: 1/ms\n  z: {range: [0, 1]}\nq: 3\n",
            "line 2: not valid YAML: { is opened here and never closed by }",
        ),
        (
            "c: {open: [O],\n  # what else\n  g: gmax\n  r: -100}\nd: 1\n",
            "line 3: not valid YAML: a comma is missing at the end of this line",
        ),
        ('a: "x\nb: 2\nc: 3\n', "line 1: not valid YAML: a quotation mark is opened here"),
    ],
)
def test_the_line_is_that_of_the_mistake(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "f.yaml")
    assert f"f.yaml: {said}" in str(caught.value)


NMODL = "TITLE na\nNEURON {\n  SUFFIX na\n  USEION na READ ena WRITE ina\n}\n"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("na.mod", NMODL, "na.mod: this is NMODL, a mechanism for NEURON"),
        ("ikr.mmt", "[[model]]\nname: ikr\n[ikr]\na = 1\n", "ikr.mmt: this is a model of Myokit"),
        ("m.cellml", '<?xml version="1.0"?>\n<model/>\n', "m.cellml: this is XML"),
    ],
)
def test_models_of_other_programs(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    result = refused("show", tmp_path / name)
    assert said in result.output
    assert "models are read from YAML" in result.output


# --- files that are not there, or no files -------------------------------------------------------
def test_what_is_no_file_is_called_what_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large.yaml").touch()
    os.truncate(tmp_path / "large.yaml", 2_000_000_000)
    for name, said in {
        "none": "none: no such file",
        ".": "a folder, not a file",
        "pipe": "pipe: a device or a pipe, not a file",
        "x" * 300: "cannot be read: File name too long",
        "half\ud800": "no file can have this name",
        "nul\0": "no file can have this name",
    }.items():
        for read in (read_yaml, read_json, read_columns, load_model):
            with pytest.raises(InputError, match=re.escape(said)):
                read(tmp_path / name)
    with pytest.raises(InputError, match="larger than 1,000,000 bytes"):
        load_model(tmp_path / "large.yaml")


# --- what a file says, on a terminal and in other languages --------------------------------------
STEERING = "\x1b]0;owned\x07\x1b[2J\x9b2J\u202e"
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def hostile_model(folder: Path, **changes: object) -> Path:
    document = read_yaml(ROOT / "models" / "model_b.yaml") | {"description": STEERING} | changes
    (folder / "m.yaml").write_text(dump_yaml(document), encoding="utf-8")
    return folder / "m.yaml"


def test_no_text_of_a_file_steers_a_terminal(tmp_path: Path) -> None:
    file = hostile_model(tmp_path)
    shown = ran("show", file, "--set", "fit={}")
    assert "\\x1b]0;owned" in shown.output
    assert not UNPRINTABLE.search(shown.output)
    for change in (
        {"states": [STEERING]},
        {STEERING: 1},
        {"name": STEERING},
        {"current": STEERING},
    ):
        answer = refused("show", hostile_model(tmp_path, **change))
        assert not UNPRINTABLE.search(answer.output)


def test_warnings_and_tables_steer_no_terminal() -> None:
    written = io.StringIO()
    console = PlainConsole(file=written, width=80, color_system=None)
    screen = SearchScreen("title", console=console)
    screen.say(STEERING)
    screen.warn([Caution(STEERING, "value", "advice")])
    console.print(terminal_table([STEERING, "[bold]x[/bold]"], [["a", STEERING]]))
    assert "[bold]x" in written.getvalue()
    assert not UNPRINTABLE.search(written.getvalue())


def test_comments_of_nmodl_are_printable(tmp_path: Path) -> None:
    text = nmodl_text(load_model(hostile_model(tmp_path, description="a\0b\x1b[2Jc ENDCOMMENT")))
    assert "a?b?[2Jc end of comment" in text
    assert not UNPRINTABLE.search(text)
