"""`channelfit batch` from end to end: a plate on the disk to a table, and on after a kill."""

from __future__ import annotations

import copy
import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

import channelfit as cf
from channelfit.batch import run as runs
from channelfit.batch.recordings import find_recordings
from channelfit.batch.results import Results
from channelfit.batch.table import WellTable
from channelfit.batch.template import Template, measures
from channelfit.front.main import main
from channelfit.reading.errors import InputError
from channelfit.results import identity
from channelfit.results.run_state import STATE
from channelfit.tasks.result_store import ResultStore
from support.plate_folder import FIT, NOISE, WELLS, called, save, truth

pytestmark = pytest.mark.integration


def rows_of(run: str | Path) -> dict[str, dict[str, str]]:
    with (Path(run) / "wells.csv").open(newline="") as file:
        return {row["well"]: row for row in csv.DictReader(file)}


def test_a_folder_of_recordings_becomes_a_table(plate, currents):
    result = called("fit.yaml", "plate", "--out", "run", "--chunk", "5")
    assert "12 wells: 12 ok" in result.stdout
    table = WellTable.read(plate / "run")
    assert list(table["well"]) == WELLS
    for name in ("g", "b"):
        true = np.array([row[name] for row in truth().values()])
        off = (table[name] - true) / table[f"{name}_error"]
        assert np.abs(off).max() < 4
        inside = (table[f"{name}_lower"] <= true) & (true <= table[f"{name}_upper"])
        assert inside.sum() >= 9
        assert table.about[name].unit == {"g": "nS", "b": "1/ms"}[name]
    np.testing.assert_allclose(table["rms"], NOISE, rtol=0.15)
    np.testing.assert_allclose(table["noise"], NOISE, rtol=0.15)
    assert list(table["row"]) == ["A"] * 6 + ["B"] * 6
    assert list(table["column"]) == [1, 2, 3, 4, 5, 6] * 2
    assert list(table.columns)[:5] == ["well", "file", "row", "column", "a"]
    assert list(table.columns)[-2:] == ["quality", "reason"]
    files = {path.name for path in (plate / "run").iterdir()}
    assert {"wells.csv", "wells-columns.json", "traces.npz", "summary.json"} <= files
    assert {"fit.yaml", "recordings.json", "state.json"} <= files
    assert not {"pieces.bin", "resume.json", ".running"} & files
    assert [name for name in files if "partial" in name] == []
    state = json.loads((plate / "run" / STATE).read_text())
    assert (state["state"], state["wells"], state["wells_done"]) == ("finished", 12, 12)
    traces = Results.read(plate / "run").traces
    assert traces["data"].shape == traces["fit"].shape == traces["residual"].shape == (12, 600)
    assert (np.diff(traces["time_ms"]) > 0).all()
    # a residual is that of each sample: its extremes are those of the noise
    assert 0.8 * NOISE < np.nanstd(traces["residual"]) < 1.5 * NOISE
    assert 2.5 * NOISE < np.nanmax(np.abs(traces["residual"])) < 6 * NOISE
    assert np.nanmax(traces["data"][-1]) == pytest.approx(currents["B06"].max(), rel=1e-4)
    result = called("--show", "run", "--where", "row == 'B' and g > 9 nS").stdout
    shown = [line.split()[0] for line in result.splitlines()[1:-1]]
    assert shown == [w for w in WELLS[6:] if float(rows_of("run")[w]["g"]) > 9]
    assert f"{len(shown)} of 12 wells" in result
    result = called("--show", "run", "--only", "b6,A1").stdout  # as --only chooses what is fitted
    assert [line.split()[0] for line in result.splitlines()[1:-1]] == ["A01", "B06"]
    assert "no well" in called("--show", "run", "--only", "Z1", code=2).stderr


def test_the_summary_says_what_repeats_a_batch_and_what_looked_wrong(plate: Path) -> None:
    """A clipped recording, one of the wrong sign and one in nA; one protocol in uV."""
    folder = plate / "plate"
    current = {w: np.loadtxt(folder / f"cells-{w}.csv", delimiter=",", skiprows=1).T for w in WELLS}
    save(folder / "cells-A01.csv", np.clip(current["A01"], None, 200))
    save(folder / "cells-A02.csv", -current["A02"])
    save(folder / "cells-A03.csv", 1e3 * current["A03"])
    called("fit.yaml", "plate", "--only", "A01,A2,A3,A4", "--seed", "3", "--out", "run", "--quiet")
    rows = rows_of("run")
    assert [row["quality"] for row in rows.values()] == ["check"] * 3 + ["ok"]
    assert "200 pA" in rows["A01"]["reason"]
    assert "flows against the driving force" in rows["A02"]["reason"]
    assert "are these currents in pA, and read as nA" in rows["A03"]["reason"]
    summary = json.loads((plate / "run" / "summary.json").read_text())
    assert (summary["quality"], summary["seed"]) == ({"check": 3, "ok": 1}, 3)
    assert set(summary["hashes"]) == {f"well A0{k}" for k in (1, 2, 3, 4)}
    assert {"channelfit", "numpy"} <= set(summary["versions"])
    assert summary["parameters"]["g"]["unit"] == "nS"
    assert {row["what"] for row in summary["files"]} == {"fit file", "model", "protocol"}
    assert cf.Model.load(plate / "run" / "fit.yaml").name == "kv"
    (plate / "steps.yaml").write_text((plate / "steps.yaml").read_text().replace(" mV", " uV"))
    result = called("fit.yaml", "plate", "--only", "A01,A02", "--out", "small").stderr
    assert " ".join(result.split()).count("is it in V?") == 1


def test_workers_come_to_the_same_table(plate: Path) -> None:
    pytest.importorskip("distributed")
    words = ["fit.yaml", "plate", "--backend", "cpu", "--only", "A01,A02,A03,A04", "--out"]
    called(*words, "here", "--chunk", "2")
    result = called(*words, "there", "--chunk", "2", "--cluster", "local:2")
    assert "has one task" not in result.output
    assert Path("here/wells.csv").read_bytes() == Path("there/wells.csv").read_bytes()
    result = called(*words, "whole", "--cluster", "local:2")
    assert "--cluster: has one task, of 4 wells" in result.output


def test_a_file_of_many_wells_gives_all_of_them(plate, currents):
    called("fit.yaml", "plate", "--out", "apart", "--only", "A01,A02,B01")
    some = {well: currents[well] for well in ("A01", "A02", "B01")}
    names = [f"{well} sweep {k + 1}" for well in some for k in range(5)]
    save(plate / "export.csv", np.concatenate(list(some.values())), names)
    called("fit.yaml", "export.csv", "--out", "together")
    apart, together = WellTable.read(plate / "apart"), WellTable.read(plate / "together")
    assert list(together["well"]) == list(some)
    for name in ("g", "g_error", "cost", "noise"):
        assert together[name].tobytes() == apart[name].tobytes()


def test_metadata_choose_wells_and_stand_in_the_table(plate: Path) -> None:
    (plate / "sheets").mkdir()
    lines = ["file;name;compound;dose"]
    lines += [
        f"../plate/cells-{w}.csv;cell {w};{'control' if w < 'B' else 'E-4031'};{k}"
        for k, w in enumerate(WELLS)
    ]
    (plate / "sheets" / "plate.csv").write_text("\n".join(lines))
    where = "compound == 'control' and dose > 3"
    called("fit.yaml", "sheets/plate.csv", "--where", where, "--out", "run")
    rows = rows_of("run")
    assert list(rows) == ["cell A05", "cell A06"]
    assert rows["cell A05"]["compound"] == "control"
    assert rows["cell A06"]["dose"] == "5"


def test_own_weights_masks_and_second_files_of_wells(plate, currents):
    """A mask of one well, and a recording after a blocker that is named by the well."""
    spoilt = currents["A01"].copy()
    spoilt[:, 100:150] += 500
    save(plate / "plate" / "cells-A01.csv", spoilt + 100)
    save(plate / "after-A01.csv", np.full((5, 200), 100.0))
    save(plate / "after-A02.csv", np.zeros((5, 200)))
    (plate / "list.csv").write_text(
        "file,weight,mask\nplate/cells-A01.csv,2,20 ms to 30 ms\nplate/cells-A02.csv,1,\n"
    )
    fit = copy.deepcopy(FIT)
    recording = fit["fit"]["experiments"][0]["recording"]
    recording["condition"] = [{"subtract": {"file": "after-{well}.csv"}}]
    (plate / "fit.yaml").write_text(yaml.safe_dump(fit))
    called("fit.yaml", "list.csv", "--out", "run")
    table = WellTable.read(plate / "run")
    np.testing.assert_allclose(table["rms"], NOISE, rtol=0.15)
    true = [truth()[well]["g"] for well in ("A01", "A02")]
    np.testing.assert_allclose(table["g"], true, rtol=0.02)


def test_seals_that_the_instrument_has_measured_stand_in_the_table(plate: Path) -> None:
    sweeps: list[list[list[float | None]]] = []
    for seal in (1.0e9, 1.5e9, 9.9e9):
        sweep: list[list[float | None]] = [[None] * 16 for _ in range(24)]
        sweep[0][0], sweep[1][0] = seal, 0.2e9  # wells A01 and A02, in Ohm
        sweeps.append(sweep)
    (plate / "plate" / "plate.json").write_text(json.dumps({"QCData": {"RSeal": sweeps}}))
    (plate / "plate" / "another.json").write_text('{"x": 1}')
    called("fit.yaml", "plate", "--only", "A01,A02,A03", "--out", "run")
    np.testing.assert_allclose(WellTable.read(plate / "run")["seal"], [1500, 200, np.nan])
    shown = called("--show", "run", "--where", "seal > 0.5 GOhm").stdout
    assert "1 of 3 wells" in shown


def test_the_clamp_of_a_well_is_that_of_the_table_or_of_the_instrument(plate: Path) -> None:
    fit = copy.deepcopy(FIT)
    fit["fit"]["clamp"] = {
        "series_resistance": "{rs} MOhm",
        "membrane_capacitance": "{cm} pF",
        "compensation": 0.75,
    }
    (plate / "fit.yaml").write_text(yaml.safe_dump(fit))
    files = [f"plate/cells-{well}.csv" for well in WELLS[:3]]
    rows = [f"{file},{rs},12" for file, rs in zip(files, ("8", "4.5", ""), strict=True)]
    (plate / "wells.csv").write_text("\n".join(["file,rs,cm", *rows]) + "\n")
    template = Template.read(plate / "fit.yaml")
    wells = find_recordings(("wells.csv",), template.expected)
    plan = template.plan(wells[0])
    for well, resistance in zip(wells, (8.0, 4.5), strict=False):
        problem = template.problem(plan, well)
        clamp = problem.experiments[0].clamp
        assert clamp is not None
        assert float(clamp.series_resistance) == resistance
        assert float(clamp.membrane_capacitance) == 12
        known = measures(problem, well)
        recording = problem.experiments[0].recording
        assert recording is not None
        largest = np.abs(recording.current_pA[recording.weight > 0]).max()
        assert (known["clamp_resistance"], known["clamp_capacitance"]) == (resistance, 12)
        lost = 0.25 * resistance * largest / 1000
        assert known["clamp_lost"] == pytest.approx(lost, rel=0.05)
    with pytest.raises(InputError, match=r"fit.clamp.*nothing is known of {rs} for A03"):
        template.problem(plan, wells[2])
    sweeps = [[[8e6] * 16 for _ in range(24)], [[6e6] * 16 for _ in range(24)]]
    own = {"QCData": {"Rseries": sweeps, "Capacitance": [[[9e-12] * 16] * 24] * 2}}
    (plate / "plate" / "plate.json").write_text(json.dumps(own))
    (well,) = find_recordings(files[2:], template.expected)
    clamp = template.problem(plan, well).experiments[0].clamp
    assert clamp is not None
    assert float(clamp.series_resistance) == pytest.approx(7)
    assert float(clamp.membrane_capacitance) == pytest.approx(9)
    assert plate / "plate" / "plate.json" in [Path(file) for file in template.files_of(well)]


def test_a_bad_file_is_that_wells_failure(plate: Path) -> None:
    folder = plate / "plate"
    (folder / "cells-A01.csv").write_text("hello\n")
    (folder / "cells-A03.csv").write_text("")
    lines = (folder / "cells-A04.csv").read_text().splitlines()
    (folder / "cells-A04.csv").write_text("\n".join(lines[:50]))
    (folder / "cells-A05.csv").write_text("\n".join([lines[0], *["nan,1,1,1,1"] * 200]))
    result = called("fit.yaml", "plate", "--out", "run", "--chunk", "4")
    rows = rows_of("run")
    reasons = {well: row["reason"] for well, row in rows.items() if row["quality"] == "failed"}
    assert list(reasons) == ["A01", "A03", "A04", "A05"]
    assert reasons["A03"] == "the file is empty"
    assert "49 samples, but steps has 200" in reasons["A04"]
    assert "NaN or inf" in reasons["A05"]
    assert all(rows[well]["g"] == "" for well in reasons)
    assert all(f"failed: {well}: {reason}" in result.stderr for well, reason in reasons.items())
    assert {row["quality"] for well, row in rows.items() if well not in reasons} == {"ok"}


def test_a_plate_of_which_too_few_wells_are_ok_is_not_finished(plate: Path) -> None:
    (plate / "dead").mkdir()
    for well in WELLS[:2]:
        save(plate / "dead" / f"cells-{well}.csv", np.full((5, 200), 7.0))
    found = called("fit.yaml", "dead", "--out", "run", "--json", code=3)
    assert "Error: all 2 wells failed" in found.stderr
    assert len(rows_of("run")) == 2  # the results are there
    end = json.loads(found.stdout.splitlines()[-1])
    assert (end["state"], end["exit_code"], end["reason"]) == ("failed", 3, "all 2 wells failed")
    assert json.loads((plate / "run" / STATE).read_text())["state"] == "failed"
    one = ("fit.yaml", f"plate/cells-{WELLS[0]}.csv", f"dead/cells-{WELLS[1]}.csv")
    called(*one, "--out", "some")
    found = called(*one, "--out", "few", "--min-ok", "2", code=3)
    assert "Error: 1 of 2 wells are ok, fewer than --min-ok 2" in found.stderr


def test_what_is_wrong_with_all_is_told_before_the_work(plate: Path) -> None:
    for well in WELLS:
        (plate / "plate" / f"cells-{well}.csv").write_text("")
    result = called("fit.yaml", "plate", "--out", "run", code=2)
    assert "the file is empty (the same of all 12 recordings)" in result.stderr
    assert not (plate / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit.yaml"], "no recordings are named"),
        ([], "Missing argument '[FIT]'"),
        (["kv.yaml", "plate"], "a batch needs `experiments` with a recording"),
        (["fit.yaml", "plate", "--where", "quality == 'ok'"], "Before a fit only these are known"),
        (["fit.yaml", "plate", "--out", "plate"], "this folder is not empty"),
        (["fit.yaml", "plate", "--population", "q"], '"q" is none of a'),
        (["--show", "plate", "--rerun", "plate"], "exclude each other"),
        (["--resume", "plate", "--seed", "0"], "cannot stand beside --resume"),
        (["fit.yaml", "plate", "--where", ""], "'--where' is empty"),
        (["fit.yaml", "plate", "--population", "a", "--shared", "a"], "is named in --population"),
    ],
)
def test_what_cannot_be_asked_is_told_before_the_work(words, message, plate):
    before = sorted(plate.rglob("*"))
    found = called(*words, code=2)
    assert message in found.stderr
    assert "Traceback" not in found.output
    assert sorted(plate.rglob("*")) == before


def test_several_experiments_need_files_that_name_the_well(plate: Path) -> None:
    fit = copy.deepcopy(FIT)
    fit["fit"]["experiments"].append(copy.deepcopy(fit["fit"]["experiments"][0]))
    (plate / "fit.yaml").write_text(yaml.safe_dump(fit))
    result = called("fit.yaml", "plate", "--out", "run", code=2)
    assert "name the files of the others by the well" in result.stderr
    fit["fit"]["experiments"][1]["recording"]["file"] = "plate/cells-{well}.csv"
    (plate / "fit.yaml").write_text(yaml.safe_dump(fit))
    called("fit.yaml", "plate", "--out", "run", "--only", "A01")
    assert rows_of("run")["A01"]["quality"] == "ok"


def test_hostile_names_and_metadata_do_no_harm(plate: Path) -> None:
    names = ["=cmd|' C calc'!A0.csv", "<script>alert(1)<.csv", "\x1b[31mred.csv", "${HOME}.csv"]
    for name in names[:3]:
        shutil.copy(plate / "plate" / "cells-A01.csv", plate / "plate" / name)
    result = called("fit.yaml", *[f"plate/{name}" for name in names[:3]], "--out", "run")
    assert "\x1b" not in result.output
    text = (plate / "run" / "wells.csv").read_text()
    assert "\x1b" not in text
    assert all(row[0] != "=" for row in text.splitlines())
    page = (plate / "run" / "plate.html").read_text()
    assert "<script>alert" not in page
    assert "\x1b" not in page
    table = WellTable.read(plate / "run")
    assert list(table["quality"]) == ["ok"] * 3
    assert table["well"][0] == names[0].removesuffix(".csv")
    assert "\x1b" not in called("--show", "run").output
    shutil.copy(plate / "plate" / "cells-A01.csv", plate / names[3])
    assert "would be taken for a variable" in called("fit.yaml", names[3], code=2).stderr


def test_lines_of_json_tell_of_every_well(plate: Path) -> None:
    (plate / "plate" / "cells-A02.csv").write_text("")
    result = called("fit.yaml", "plate", "--only", "A01,A02,A03", "--out", "run", "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    events = [line["event"] for line in lines if line["event"] not in ("progress", "warning")]
    assert events == ["begin", "failed", "done", "done", "end"]
    done = {line["name"]: line["result"] for line in lines if line["event"] == "done"}
    rows = rows_of("run")
    assert done["A01"]["g"] == float(rows["A01"]["g"])
    assert next(line["name"] for line in lines if line["event"] == "failed") == "A02"
    assert lines[-1]["summary"]["quality"] == {"ok": 2, "failed": 1}
    assert "run/wells.csv" in lines[-1]["files"]
    progress = [line for line in lines if line["event"] == "progress" and line["total"]]
    assert (progress[-1]["done"], progress[-1]["total"], progress[-1]["unit"]) == (3, 3, "wells")
    shown = called("--show", "run", "--where", "quality == 'ok'", "--json").stdout
    found = [json.loads(line) for line in shown.splitlines()]
    assert [line["name"] for line in found if line["event"] == "done"] == ["A01", "A03"]
    assert found[1]["result"]["rms"] == float(rows["A01"]["rms"])


def test_a_population_and_groups_stand_in_the_table(plate: Path) -> None:
    words = ("--population", "kinetics", "--groups", "2", "--out", "run")
    result = called("fit.yaml", "plate", *words)
    assert "population of 12 wells" in result.stdout
    table = WellTable.read(plate / "run")
    assert {"a_shrunken", "b_shrunken", "z_shrunken", "group"} <= set(table.columns)
    assert "g_shrunken" not in table.columns
    assert set(table["group"]) == {"1", "2"}
    assert table.about["b_shrunken_lower"].unit == "1/ms"
    summary = json.loads((plate / "run" / "summary.json").read_text())
    (row,) = (row for row in summary["population"]["rows"] if row["name"] == "b")
    assert row["mean_lower"] < 0.1 < row["mean_upper"]
    assert sum(row["wells"] for row in summary["groups"]["rows"]) == 12
    called("--rerun", "run", "--only", "A01", "--out", "again")
    again = WellTable.read(plate / "again")
    assert not {"b_shrunken", "group"} & set(again.columns)  # they are not of these wells any more
    called("--rerun", "run", "--only", "A01", "--population", "b", "--out", "third")
    third = WellTable.read(plate / "third")
    np.testing.assert_allclose(third["b_shrunken"], table["b_shrunken"], rtol=0.02)


def test_chosen_wells_are_looked_at_together_without_a_fit(plate, monkeypatch):
    called("fit.yaml", "plate", "--groups", "2", "--out", "run")
    table = WellTable.read(plate / "run")
    limit = float(np.sort(table["g"])[3])
    monkeypatch.setattr("channelfit.batch.well_tasks.fit_wells", None)  # nothing may be fitted
    words = ("--together", "run", "--where", f"g > {limit!r}", "--population", "b")
    result = called(*words, "--out", "some").stdout
    assert "population of 8 wells" in result
    some, rows = WellTable.read(plate / "some"), table["g"] > limit
    assert list(some["well"]) == list(table["well"][rows])
    assert (some["g"] == table["g"][rows]).all()
    assert "b_shrunken" in some.columns
    assert "group" not in some.columns  # which was found among all wells
    summary = json.loads((plate / "some" / "summary.json").read_text())
    assert (summary["wells"], summary["fitted_now"]) == (8, 0)
    refused = CliRunner().invoke(main, ["batch", "--together", "run", "--where", "g > 1"])
    assert "--together needs --population, --shared or --groups" in refused.output
    refused = CliRunner().invoke(main, ["batch", *words, "--starts", "3"])
    assert "cannot stand beside --together" in refused.output


def test_too_few_wells_for_a_population_lose_no_fit(plate: Path) -> None:
    words = ("--only", "A01", "--groups", "3", "--out", "run")
    result = called("fit.yaml", "plate", *words)
    assert "the wells' own results stand" in result.stderr
    assert rows_of("run")["A01"]["quality"] == "ok"
    assert "3 groups need as many wells" in (plate / "run" / "plate.html").read_text().lower()


def test_what_a_template_says_of_a_search_is_not_passed_over(plate: Path) -> None:
    words = ("--set", "fit.stop.seconds=1", "--set", "fit.seed=7", "--only", "A01")
    result = called("fit.yaml", "plate", *words, "--out", "run")
    assert "fit.stop: is not used" in result.stderr
    assert (plate / "run" / "plate.html").read_text().count("fit.stop: is not used") == 1
    assert "seed 7" in result.stderr


def test_single_wells_are_fitted_again_into_a_new_table(plate: Path) -> None:
    keep = (plate / "plate" / "cells-A02.csv").read_text()
    (plate / "plate" / "cells-A02.csv").write_text("")
    called("fit.yaml", "plate", "--out", "first")
    before = {p.name: p.read_bytes() for p in (plate / "first").iterdir()}
    (plate / "plate" / "cells-A02.csv").write_text(keep)
    most = 0.99 * max(row["g"] for row in truth().values())
    (other,) = (well for well, row in truth().items() if row["g"] > most)
    where = f"quality == 'failed' or g > {most} nS"
    result = called("--rerun", "first", "--where", where, "--starts", "4", "--out", "second")
    assert "2 wells" in result.stderr
    assert {p.name: p.read_bytes() for p in (plate / "first").iterdir()} == before
    first, second = rows_of("first"), rows_of("second")
    assert list(second) == WELLS
    assert {well for well, row in second.items() if row["run"] == "second"} == {"A02", other}
    assert second["A02"]["quality"] == "ok"
    same = [well for well in WELLS if well not in ("A02", other)]
    assert all({**second[well], "run": ""} == {**first[well], "run": ""} for well in same)
    assert float(second[other]["cost"]) == pytest.approx(float(first[other]["cost"]), rel=1e-6)
    traces = Results.read(plate / "second").traces
    assert np.isfinite(traces["fit"]).any(axis=1).all()
    called("--rerun", "second", "--only", "A01", "--out", "third")
    assert [rows_of("third")[well]["run"] for well in WELLS[:3]] == ["third", "second", "first"]


COMMAND = ("fit.yaml", "plate", "--chunk", "2", "--seed", "4")
RESULTS = ("wells.csv", "wells-columns.json", "traces.npz", "fits.npz", "fit.yaml")


_WHOLE: dict[str, bytes] = {}


@pytest.fixture
def whole(plate: Path) -> dict[str, bytes]:
    """The results of the batch without an interruption, in any folder."""
    if not _WHOLE:
        called(*COMMAND, "--out", "run")
        _WHOLE.update({name: (plate / "run" / name).read_bytes() for name in RESULTS})
        shutil.rmtree(plate / "run")
    return _WHOLE


class Cut(BaseException):
    """Ends a batch at a moment of the test's choice, as a kill would."""


def cut_after(pieces: int, plate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run folder as a killed process leaves it after so many pieces."""
    done: list[object] = []
    keep = ResultStore.put

    def put(self: Any, *given: Any) -> None:
        keep(self, *given)
        done.append(given)
        if len(done) == pieces:
            shutil.copytree(plate / "run", plate / "copy")
            raise Cut

    with monkeypatch.context() as patched:
        patched.setattr(ResultStore, "put", put)
        with pytest.raises(Cut):
            CliRunner().invoke(main, ["batch", *COMMAND, "--out", "run"])
    shutil.rmtree(plate / "run")
    (plate / "copy").rename(plate / "run")
    state = json.loads((plate / "run" / STATE).read_text())
    state["process"]["started"] = "an earlier process"
    (plate / "run" / STATE).write_text(json.dumps(state))


def test_what_has_changed_is_refused_with_the_difference(plate, monkeypatch):
    cut_after(2, plate, monkeypatch)

    def refused(message: str) -> None:
        assert message in called("--resume", "run", code=2).stderr
        assert (plate / "run" / "pieces.bin").exists()

    for name, was, now, message in (
        ("plate/cells-A03.csv", "sweep", "Sweep", "well A03 was"),
        ("kv.yaml", "- 0.1\n    - 100", "- 0.2\n    - 100", "g.range[1] was 0.1 and is 0.2"),
        ("steps.yaml", "-40 mV, to: 40", "-41 mV, to: 39", "command of experiment 1 was"),
    ):
        text = (plate / name).read_text()
        assert was in text
        (plate / name).write_text(text.replace(was, now))
        refused(message)
        (plate / name).write_text(text)
    (plate / "plate" / "cells-B06.csv").rename(plate / "gone.csv")
    refused("well B06 was")
    (plate / "gone.csv").rename(plate / "plate" / "cells-B06.csv")
    now = {**identity.software(False), "version of numpy": "0.1"}
    for name, changed, message in (
        ("software", lambda on_gpu: now, "version of numpy was"),
        ("processor", lambda: "abacus", "processor was"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(identity, name, changed)
            refused(message)
    called("--resume", "run")


def test_files_that_a_power_failure_has_emptied_are_written_again(plate, monkeypatch, whole):
    cut_after(2, plate, monkeypatch)
    for name in ("fit.yaml", "pieces.bin"):
        (plate / "run" / name).write_bytes(b"")
    called("--resume", "run")
    assert {name: (plate / "run" / name).read_bytes() for name in RESULTS} == whole


def test_tasks_are_not_computed_twice(plate, monkeypatch, whole):
    cut_after(4, plate, monkeypatch)
    done: list[object] = []
    original = runs.WellTasks.compute

    def compute(self: Any, key: Any) -> Any:
        done.append(key)
        return original(self, key)

    monkeypatch.setattr(runs.WellTasks, "compute", compute)
    called("--resume", "run")
    assert done == [("wells", 8, 10), ("wells", 10, 12)]
    assert {name: (plate / "run" / name).read_bytes() for name in RESULTS} == whole
    assert not (plate / "run" / "pieces.bin").exists()
    assert "has finished" in called("--resume", "run").stderr


@pytest.mark.parametrize(
    "name",
    ["recordings.json", "resume.json", "fit.yaml", "wells.csv", "traces.npz", "summary.json"],
)
def test_a_full_disk_leaves_nothing_by_half_and_goes_on_later(name, plate, whole, monkeypatch):
    """By which file there was no room for: the folder is free again, or the run in it goes on."""
    replace = Path.replace

    def full(self: Path, target: Any) -> Any:
        if Path(target).name == name:
            raise OSError(28, "No space left on device")
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        found = called(*COMMAND, "--out", "run", code=2)
    assert f"{name}: cannot be written: No space left on device" in found.stderr
    goes_on = name not in ("recordings.json", "resume.json")
    assert (plate / "run").exists() is goes_on
    if goes_on:
        assert not {name, "summary.json"} & {p.name for p in (plate / "run").iterdir()}
        assert not list((plate / "run").glob("*partial*"))
        assert json.loads((plate / "run" / STATE).read_text())["state"] == "failed"
    called(*(("--resume", "run") if goes_on else (*COMMAND, "--out", "run")))
    assert {name: (plate / "run" / name).read_bytes() for name in RESULTS} == whole
