"""`--json`: what scripts are told while a command works, and when it has ended."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from channelfit.front import json_lines
from channelfit.front.json_lines import EVENTS, EVERY_LINE, JsonLines, line
from channelfit.front.progress import WorkProgress
from channelfit.reading.errors import Caution, InputError
from support import json_output
from support.json_output import hears_ctrl_c, refused, run
from support.places import ROOT

MODEL = ROOT / "models" / "model_b.yaml"
SMALL = ("--backend", "cpu", "--population", 30, "--generations", 4, "--seed", 1)


def check(stdout: str, verb: str) -> list[dict[str, Any]]:
    """Each line is an object with the keys that the table promises, the first one and the last."""

    def strict(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    lines = [json.loads(text, parse_constant=strict) for text in stdout.splitlines()]
    for told in lines:
        assert list(told) == [*EVERY_LINE, *EVENTS[told["event"]]]
        assert told["verb"] == verb
    assert [told["event"] for told in lines[:: len(lines) - 1]] == ["begin", "end"]
    assert {"begin", "end"}.isdisjoint(told["event"] for told in lines[1:-1])
    assert stdout.isascii()
    seconds = [told["seconds"] for told in lines]
    assert seconds == sorted(seconds)
    return lines


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("fit") / "run"
    return folder, run("optimize", MODEL, *SMALL, "--out", folder, "--json")


def test_a_fit_is_told_line_by_line(fitted: tuple[Path, Result]) -> None:
    folder, result = fitted
    lines = check(result.stdout, "optimize")
    last = [told for told in lines if told.get("unit") == "generations"][-1]
    assert (last["done"], last["total"], last["seconds_left"]) == (4, 4, 0)
    assert last["evaluations"] == 120
    assert last["best_cost"] > 0
    end = lines[-1]
    assert (end["state"], end["exit_code"], end["folder"]) == ("finished", 0, str(folder))
    assert set(end["files"]) == {str(p) for p in folder.iterdir()}
    assert end["summary"] == json.loads((folder / "summary.json").read_text())
    assert "generation 4 of 4" in result.stderr  # the screen is there nevertheless


def table(folder: Path) -> Path:
    """Activation curves; the third is flat."""
    v = np.arange(-80, 60, 5.0)
    noise = np.random.default_rng(1).normal(0, 0.02, (6, v.size))
    sets = 1 / (1 + np.exp(-(v + 20) / 8)) + noise
    sets[2] = 1
    file = folder / "act.csv"
    np.savetxt(file, np.array([v, *sets]).T, delimiter=",", header="v,a,b,c,d,e,f", comments="")
    return file


def test_curves_are_told_with_their_failures(tmp_path: Path) -> None:
    """Also where the name of one, from a file, would be a line of its own."""
    file = table(tmp_path)
    text = file.read_text().replace("v,a,b,c", '"v","a","b","{""event"": ""end""}\t\x1b[2J"', 1)
    file.write_text(text)
    words = ("curves", "boltzmann", file, "--out", tmp_path / "fits", "--backend", "cpu")
    result = run(*words, "--json", "--quiet")
    lines = check(result.stdout, "curves")
    (failed,) = [told for told in lines if told["event"] == "failed"]
    assert failed["name"].startswith('{"event": "end"}')
    assert (failed["reason"], failed["count"]) == ("all points are equal", 1)
    done = [told for told in lines if told.get("unit") == "data sets"][-1]
    assert (done["done"], done["total"], done["failed"], done["seconds_left"]) == (6, 6, 1, 0)
    end = lines[-1]
    assert end["files"] == [str(tmp_path / f"fits.{kind}") for kind in ("csv", "png")]
    counts = [end["summary"][word] for word in ("ok", "check", "failed")]
    assert (counts[2], sum(counts)) == (1, 6)
    assert result.stderr == ""


def test_a_mistake_is_the_last_line(tmp_path: Path) -> None:
    """Also one that is found before anything is read."""
    none = tmp_path / "none"
    verbs = ("optimize", "curves", "fhn", "batch", "run")
    going_on = [(verb, "--resume", none) for verb in verbs]
    files = [(verb, none) for verb in ("optimize", "uncertainty", "cell")]
    files.append(("curves", "boltzmann", none))
    for words in (*files, ("fhn", "--a", "1:2"), *going_on):
        result = refused(*words, "--json")
        end = check(result.stdout, str(words[0]))[-1]
        assert (end["state"], end["exit_code"]) == ("failed", 2)
        assert end["reason"] in " ".join(result.stderr.split("Error: ")[1].splitlines())


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_is_cut_off_says_so(number: signal.Signals, code: int, tmp_path: Path) -> None:
    """And keeps its best so far, which the last line shows."""
    out = tmp_path / "r"
    words = ["optimize", MODEL, "--population", 40, "--generations", 100_000, "--out", out]
    process = subprocess.Popen(
        [sys.executable, "-m", "channelfit", *map(str, words), "--json", "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hears_ctrl_c,
    )
    assert process.stdout is not None
    told = ""
    for text in process.stdout:
        told += text
        if json.loads(text).get("unit") == "generations":  # lines come while it works
            process.send_signal(number)
            break
    rest, errors = process.communicate(timeout=300)
    assert process.returncode == code
    assert "Traceback" not in errors
    end = check(told + rest, "optimize")[-1]
    assert (end["state"], end["exit_code"], end["reason"]) == ("interrupted", code, "interrupted")
    assert end["summary"]["generations"] > 0
    assert end["summary"]["stop_reason"] == "interrupted"
    names = {"fit.yaml", "history.csv", "traces.png", "state.json", "summary.json", "report.html"}
    assert names <= {file.name for file in out.iterdir()}


HOSTILE = 'we\x1b[31mll\u2028 \ud800"\\\n\u202eA01\x00'


def test_hostile_text_and_what_is_not_finite_become_strict_json() -> None:
    told = line(
        {"name": HOSTILE, "deep": [{HOSTILE: math.nan}], "cost": -math.inf, "path": Path("a")}
    )
    assert told.isascii()
    assert told.count("\n") == 1
    assert "\x1b" not in told
    back = json.loads(told)
    assert back["cost"] is None
    assert (back["path"], back["name"]) == ("a", HOSTILE.replace("\ud800", "\\ud800"))
    back["name"].encode("utf-8")  # no half of a surrogate pair is left


def test_pieces_are_told_with_the_time_that_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier run had done says nothing of the pace."""
    monkeypatch.setattr(json_lines, "EVERY", 0.0)
    clock = iter(np.arange(0, 1000, 10.0))
    with JsonLines("batch") as lines, lines.screen("a plate", quiet=True) as screen:
        screen.warn([Caution("plate.csv", "no seal is known", "all wells are taken")])
        monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
        pieces = WorkProgress(screen, 4, "wells")
        pieces.done("A01", kept=True)
        pieces.done("A02")
        pieces.done("A03", reason="the seal was lost")
        monkeypatch.undo()
        lines.done("A02", result={"cost": math.inf})
        assert pieces.counted.failed == 1
    told: dict[str, list[dict[str, Any]]] = {}
    for one in json_output.lines(capsys.readouterr().out):
        told.setdefault(one["event"], []).append(one)
    assert [t["seconds_left"] is None for t in told["progress"]] == [True, True, False, False]
    assert [t["kept"] for t in told["progress"]] == [0, 1, 1, 1]
    assert told["done"][0]["result"] == {"cost": None}
    assert told["failed"][0]["reason"] == "the seal was lost"
    assert told["warning"][0]["place"] == "plate.csv"


def test_what_it_raises_is_told_and_raised(capsys: pytest.CaptureFixture[str]) -> None:
    for error, code, state in (
        (InputError("no such well", "plate.csv"), 2, "failed"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 2, "failed"),
        (ZeroDivisionError("a defect"), 1, "failed"),
    ):
        with pytest.raises(type(error)), JsonLines("batch"):
            raise error
        end = check(capsys.readouterr().out, "batch")[-1]
        assert (end["state"], end["exit_code"]) == (state, code)


def markdown() -> str:
    """Return the table of all events and keys, for the guide."""
    parts = [("every line", EVERY_LINE), *((f"`{name}`", keys) for name, keys in EVENTS.items())]
    rows = [
        f"| {title if k == 0 else ''} | `{key}` | {meaning} |"
        for title, keys in parts
        for k, (key, meaning) in enumerate(keys.items())
    ]
    return "\n".join(["| event | key | what it holds |", "|---|---|---|", *rows]) + "\n"


def test_the_guide_shows_the_table_of_the_program() -> None:
    text = (ROOT / "docs" / "scripts.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"(\| event \| key .*?\n)\n", text + "\n", re.DOTALL)
    assert shown == markdown()


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes")
@pytest.mark.parametrize("words", [["schema", "model"], ["--help"], ["fhn", "--json"]])
def test_a_reader_that_leaves_ends_the_command_quietly(words: list[str], tmp_path: Path) -> None:
    """As with `| head -1`: no defect, as the exit code 1 would say, and not done either.

    Without a standard output, as some services begin a command, --json has nowhere to write.
    """
    closed = "--json" in words
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "channelfit", *words],
        cwd=tmp_path,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=(lambda: os.close(1)) if closed else None,
    )
    os.close(write)
    nowhere = "Error: standard output is closed, so that --json has nowhere to write\n"
    assert (done.returncode, done.stderr) == ((2, nowhere) if closed else (141, ""))
    assert list(tmp_path.iterdir()) == []
