"""Tables of a batch: which recordings there are, what the results hold, how rows are chosen."""

from __future__ import annotations

import csv
import string
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from channelfit.batch.page_figures import _usual
from channelfit.batch.recordings import (
    Expected,
    WellRecording,
    chosen_by_name,
    find_recordings,
    metadata,
)
from channelfit.batch.sheets import read_sheet
from channelfit.batch.table import Column, WellTable, texts
from channelfit.batch.where import chosen
from channelfit.reading.errors import InputError

ONE = Expected(1)


def test_the_axis_of_a_distribution_ends_before_outliers() -> None:
    for sign in (1.0, -1.0):
        low, high = _usual(np.sort(sign * np.array([*np.linspace(1.0, 2.0, 99), 1e6])))
        assert -1.5 < low < high < 6 if sign > 0 else -6 < low < high < 1.5


def some_table() -> WellTable:
    return WellTable(
        {
            "well": texts(["A01", "A02", "B01"]),
            "g": np.array([1.0, 2.0, np.nan]),
            "seal": np.array([400.0, 900.0, 1500.0]),
            "share": np.array([0.5, 0.25, 1.0]),
            "rate": np.array([0.3, 0.7, np.nan]),
            "gmax[cell 1]": np.array([1.0, 2.0, 3.0]),
            "quality": texts(["ok", "check", "failed"]),
            "reason": texts(["", "g at a bound; few samples", "no such file"]),
        },
        {
            "g": Column("nS", "A conductance."),
            "seal": Column("MOhm", "A seal."),
            "rate": Column("1/ms", "A rate."),
            "gmax[cell 1]": Column("nS"),
        },
    )


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("quality == 'ok'", ["A01"]),
        ('quality == "ok" or seal > 1000', ["A01", "B01"]),
        ("seal > 0.5 GOhm", ["A02", "B01"]),
        ("g >= 1000 pS", ["A01", "A02"]),
        ("not g < 5", ["B01"]),
        ("well in ['A01', 'B01']", ["A01", "B01"]),
        ("g in [1 nS, 3]", ["A01"]),
        ("'bound' in reason", ["A02"]),
        ("reason == ''", ["A01"]),
        ("`gmax[cell 1]` > 1.5 nS", ["A02", "B01"]),
        ("rate > 0.5/ms", ["A02"]),
        ("g/`gmax[cell 1]` == 1", ["A01", "A02"]),
        ("g - 500 pS < 1", ["A01"]),
        ("g/(g - g) > 0", []),
        ("abs(g - 1.5 nS) < 0.6", ["A01", "A02"]),
        ("well in ['B1', 'a02']", ["A02", "B01"]),
    ],
)
def test_conditions_choose_rows(condition: str, wanted: list[str]) -> None:
    table = some_table()
    assert list(table["well"][chosen(condition, table)]) == wanted


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("qualty == 'ok'", 'no column "qualty"; did you mean quality? There are: well, g, seal'),
        ("quality = 'ok'", "write == to compare"),
        ("g > 'many'", "g is a number"),
        ("g > 5 mV", 'g is in nS, which "mV" is not'),
        ("well in 'A01'", "a list was expected after in"),
        ("__import__('os').system('echo 1') == 0", "is no column, number or text"),
        ("g + seal > 2", "g + seal adds what is in nS and MOhm"),
        ("g + well > 2", "well is text, with which nothing can be computed"),
        ("g**9**9**9 > 1", "are the arithmetic that there is"),
        ("f'{g}' == 'x'", "is no column, number or text"),
        ("(" * 3000 + "g > 1" + ")" * 3000, "longer than"),
        ("not " * 1000 + "g > 1", ""),
        ("g > 1" + "9" * 400, "is no number that can be compared"),
    ],
)
def test_what_is_no_condition_is_refused_in_words(condition: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        chosen(condition, some_table())
    assert message in str(caught.value)
    assert str(caught.value).startswith("--where")


@given(st.text(st.sampled_from("gwel 01.'\"`()[]<>=!andorntibs_+-*/x{}\\\n,:@%"), max_size=40))
def test_any_text_is_a_condition_or_a_message(text: str) -> None:
    table = some_table()
    try:
        mask = chosen(text, table)
    except InputError:
        return
    assert mask.shape == (3,)
    assert mask.dtype == bool


def test_a_table_comes_back_to_the_bit(tmp_path: Path) -> None:
    values = np.array([0.1 + 0.2, -0.0, np.nan, 1e-310, 12.0, np.inf])
    hostile = ["=1+2", "'=x", "'", "-5", "\x1b[31mred", 'a "b",\nc']
    table = WellTable(
        {"well": texts("abcdef"), "x": values, "t": texts(hostile), "e": texts([""] * 6)},
        {"x": Column("nS", "A number.")},
    )
    table.write(tmp_path)
    found = WellTable.read(tmp_path)
    assert list(found.columns) == list(table.columns)
    assert found["x"].tobytes() == values.tobytes()
    assert [list(found[name]) for name in ("well", "t", "e")] == [list("abcdef"), hostile, [""] * 6]
    assert found.about["x"] == Column("nS", "A number.")
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    read = pyarrow.parquet.read_table(tmp_path / "wells.parquet")
    assert read.schema.field("x").metadata == {b"unit": b"nS", b"meaning": b"A number."}
    assert read["t"].to_pylist() == hostile
    assert read["x"].to_pylist()[2] is None


def test_no_cell_of_the_csv_is_a_formula_or_steers_a_terminal(tmp_path: Path) -> None:
    texts_of = ["=cmd|' /C calc'!A0", "+x", "@x", "\tx", "-1 A"]
    WellTable({"=well": texts(texts_of), "x": np.array([-1.0] * 5)}).write(tmp_path)
    rows = list(csv.reader((tmp_path / "wells.csv").open(newline="")))
    assert [row[0] for row in rows] == [f"'{t}" for t in ["=well", *texts_of]]
    assert [row[1] for row in rows[1:]] == ["-1"] * 5
    assert list(WellTable.read(tmp_path)["=well"]) == texts_of


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,a\n1,2\n", "same name"),
    ],
)
def test_a_damaged_table_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "wells.csv").write_text(text)
    (tmp_path / "wells-columns.json").write_text('{"x": {"kind": "number"}}')
    with pytest.raises(InputError, match=message):
        WellTable.read(tmp_path)


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("1\n2\n")


def wells(found: list[WellRecording]) -> list[str]:
    return [each.well for each in found]


def test_a_folder_a_pattern_and_files_give_the_same_wells(tmp_path: Path) -> None:
    touch(tmp_path, "p/x-A2.csv", "p/x-A10.csv", "p/x-b1.csv", "p/cell_7.csv", "p/x-P24.csv")
    touch(tmp_path, "p/notes.yaml", "p/steps.eph", "p/.hidden.csv", "p/q.json")
    wanted = ["cell_7", "A02", "A10", "P24", "x-b1"]
    files = sorted((tmp_path / "p").glob("[!.]*.csv"))
    for paths in ([tmp_path / "p"], [tmp_path / "p" / "[cx]*.csv"], files):
        found = find_recordings(paths, ONE)
        assert sorted(wells(found)) == sorted(wanted)
    found = find_recordings([tmp_path / "p"], ONE)
    assert wells(found) == wanted
    assert [(r.row, r.column) for r in found[1:4]] == [("A", 2), ("A", 10), ("P", 24)]
    assert wells(chosen_by_name(found, ["cell_7", "a2"])) == ["cell_7", "A02"]
    with pytest.raises(InputError, match="no well .A09."):
        chosen_by_name(found, ["A09"])


def test_names_that_steer_a_terminal_are_shown_by_their_codes(tmp_path: Path) -> None:
    touch(tmp_path, "\x1b[31mred.csv", "<script>alert(1)<.csv")
    found = find_recordings([tmp_path], ONE)
    assert wells(found) == ["\\x1b[31mred", "<script>alert(1)<"]
    assert "\x1b" not in "".join(metadata(found)["file"])
    assert Path(found[0].file).read_text() == "1\n2\n"


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "no recordings are named"),
        (["nothing.csv"], "no such file"),
        (["empty"], "no recordings in this folder"),
        (["list.csv"], "line 3: no file is named"),
        (["p-A13-after.csv.gz", "p-A13-before.csv.gz"], "two recordings are of the well A13.*bef"),
        (["p-A13-after.csv.gz", "one.csv"], "a table of recordings stands alone"),
    ],
)
def test_what_names_no_recording_is_refused(paths: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    touch(tmp_path, "p-A13-before.csv.gz", "p-A13-after.csv.gz")
    (tmp_path / "list.csv").write_text("file,x\na.csv,1\n,2\n")
    (tmp_path / "one.csv").write_text("file\na.csv\n")
    with pytest.raises(InputError, match=message):
        find_recordings([tmp_path / name for name in paths], ONE)


def workbook(path: Path, rows: list[list[Any]], sheet: str = "") -> None:
    """A workbook as a spreadsheet writes it: texts shared, numbers in place."""
    shared: list[str] = []

    def cell(k: int, line: int, value: Any) -> str:
        place = f"{string.ascii_uppercase[k]}{line}"
        if isinstance(value, str):
            shared.append(value)
            return f'<c r="{place}" t="s"><v>{len(shared) - 1}</v></c>'
        return f'<c r="{place}"><v>{value}</v></c>'

    lines = "".join(
        f'<row r="{line}">{"".join(cell(k, line, v) for k, v in enumerate(row) if v != "")}</row>'
        for line, row in enumerate(rows, 1)
    )
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    links = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    texts_ = "".join(f"<si><t>{text}</t></si>" for text in shared)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "xl/workbook.xml",
            f'<workbook xmlns="{main}" xmlns:r="{links}"><sheets>'
            '<sheet name="one" sheetId="1" r:id="rId7"/></sheets></workbook>',
        )
        archive.writestr(
            "xl/_rels/workbook.xml.rels",
            '<Relationships><Relationship Id="rId7" Target="worksheets/sheet1.xml"/>'
            "</Relationships>",
        )
        archive.writestr("xl/sharedStrings.xml", f'<sst xmlns="{main}">{texts_}</sst>')
        archive.writestr(
            "xl/worksheets/sheet1.xml",
            sheet or f'<worksheet xmlns="{main}"><sheetData>{lines}</sheetData></worksheet>',
        )


def write_list(path: Path, rows: list[list[Any]]) -> None:
    if path.suffix == ".xlsx":
        workbook(path, rows)
        return
    delimiter = {".tsv": "\t", ".txt": ";"}.get(path.suffix, ",")
    encoding = "cp1252" if path.suffix == ".txt" else "utf-8-sig"
    lines = [delimiter.join(map(str, row)) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding=encoding)


@pytest.mark.parametrize("name", ["list.csv", "list.tsv", "list.txt", "list.xlsx"])
def test_a_table_names_recordings_and_what_is_known_of_them(name: str, tmp_path: Path) -> None:
    touch(tmp_path, "data/a.csv", "data/b.csv", "data/x-C07.csv")
    rows: list[list[Any]] = [
        ["File", "well", "name", "weight", "compound", "dose (µM)"],
        ["data/a.csv", "A1", "", 2, "dofetilide", 0.5],
        ["data/b.csv", "", "second", "", "control", ""],
        ["data/x-C07.csv", "", "", "", "=cmd()", 3],
    ]
    write_list(tmp_path / name, rows)
    found = find_recordings([tmp_path / name], ONE)
    assert wells(found) == ["A01", "second", "C07"]
    assert [(r.row, r.column) for r in found] == [("A", 1), ("", 0), ("C", 7)]
    assert [r.weight for r in found] == [2.0, None, None]
    assert found[0].file == str(tmp_path / "data" / "a.csv")
    table = metadata(found)
    assert list(table["compound"]) == ["dofetilide", "control", "=cmd()"]
    np.testing.assert_array_equal(table["dose (µM)"], [0.5, np.nan, 3])
    assert list(chosen("compound == 'control' or `dose (µM)` > 1", table)) == [False, True, True]
    assert [WellRecording.of(r.plain(), tmp_path) for r in found] == found


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["file", "quality"], ["a.csv", "x"]], "quality of the results is called so"),
        ([["file", "weight"], ["a.csv", "-1"]], "line 2: a weight of 0 or more"),
        ([["file", "well", "row", "column"], ["a.csv", "A1", "C", "7"]], "A1 is not in row C, col"),
        ([["file", "x", "x"], ["a.csv", "1", "2"]], 'two columns are called "x"'),
        ([["file", "x"], ["a.csv", "1", "2"]], "3 cells, where the header has 2"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(rows, message, tmp_path):
    write_list(tmp_path / "list.csv", rows)
    with pytest.raises(InputError, match=message):
        find_recordings([tmp_path / "list.csv"], ONE)


@pytest.mark.parametrize(
    ("row", "called", "place"),
    [
        ({"well": "c7"}, "c7", ("", 0)),
        ({"well": "C7"}, "C07", ("C", 7)),
        ({"row": "c", "column": "7"}, "C07", ("C", 7)),
        ({"well": "C7", "row": "C", "column": "7"}, "C07", ("C", 7)),
    ],
)
def test_a_well_is_called_by_what_its_row_says(row, called, place, tmp_path):
    touch(tmp_path, "x-B02.csv")
    write_list(tmp_path / "list.csv", [["file", *row], ["x-B02.csv", *row.values()]])
    (found,) = find_recordings([tmp_path / "list.csv"], ONE)
    assert (found.well, found.row, found.column) == (called, *place)


def test_labels_keep_every_character_and_numbers_are_numbers(tmp_path: Path) -> None:
    columns = {
        "plate": ["007", "12"],
        "sample": ["1_1", "1_2"],
        "barcode": ["12345678901234567", "1"],
        "dose": ["0.10000000000000001", "1e-3"],
        "days": ["0", ""],
    }
    rows = [["file", *columns], *zip(["a.csv", "b.csv"], *columns.values(), strict=True)]
    write_list(tmp_path / "list.csv", [list(row) for row in rows])
    touch(tmp_path, "a.csv", "b.csv")
    table = metadata(find_recordings([tmp_path / "list.csv"], ONE))
    for name in ("plate", "sample", "barcode"):
        assert list(table[name]) == columns[name]
    np.testing.assert_array_equal(table["dose"], [0.1, 0.001])
    np.testing.assert_array_equal(table["days"], [0, np.nan])


def test_a_hostile_workbook_is_refused(tmp_path: Path) -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaa">]><worksheet>&a;</worksheet>'
    workbook(tmp_path / "a.xlsx", [["file"]], bomb)
    with pytest.raises(InputError, match="defines entities"):
        read_sheet(tmp_path / "a.xlsx")
    (tmp_path / "b.xlsx").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(InputError, match="not a workbook"):
        read_sheet(tmp_path / "b.xlsx")
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    stray = (
        f'<worksheet xmlns="{main}"><sheetData><row><c t="s"><v>99</v></c></row></sheetData>'
        "</worksheet>"
    )
    workbook(tmp_path / "c.xlsx", [["file"]], stray)
    with pytest.raises(InputError, match="names a text that is not there"):
        read_sheet(tmp_path / "c.xlsx")


@pytest.mark.parametrize(
    ("heading", "expected", "wanted"),
    [
        ("t,A01,A02,B1", ONE, {"A01": ["A01"], "A02": ["A02"], "B01": ["B1"]}),
        (
            "A01 sweep 1,A01 sweep 10,A01 sweep 2,B01 +40 mV,B01 -20 mV,B01 10 mV",
            Expected(3),
            {
                "A01": ["A01 sweep 1", "A01 sweep 2", "A01 sweep 10"],
                "B01": ["B01 +40 mV", "B01 -20 mV", "B01 10 mV"],
            },
        ),
        ("t,left,right", Expected(1, True, "t"), {"x left": ["left"], "x right": ["right"]}),
        ("A01,time", ONE, {"x": []}),
    ],
)
def test_a_table_of_many_wells_gives_all_of_them(heading, expected, wanted, tmp_path):
    (tmp_path / "x.csv").write_text(heading + "\n")
    found = find_recordings([tmp_path / "x.csv"], expected)
    assert {r.well: list(r.columns) for r in found} == wanted


def test_an_array_gives_a_well_for_each_row_or_for_each_of_its_first_axis(tmp_path: Path) -> None:
    path = tmp_path / "plate.npy"
    for shape, sweeps, wanted in (
        ((7,), 1, [("1",)]),
        ((3, 7), 1, [("1",), ("2",), ("3",)]),
        ((2, 7), 2, [("1", "2")]),
        ((3, 2, 7), 2, [("1", "2"), ("3", "4"), ("5", "6")]),
    ):
        np.save(path, np.zeros(shape))
        found = find_recordings([path], Expected(sweeps))
        assert [r.columns for r in found] == wanted
    assert wells(found) == ["plate 1", "plate 2", "plate 3"]
    write_list(tmp_path / "list.csv", [["file", "signal", "well"], ["plate.npy", "2", "D4"]])
    (one,) = find_recordings([tmp_path / "list.csv"], Expected(2))
    assert (one.well, one.columns) == ("D04", ("3", "4"))
