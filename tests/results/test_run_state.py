"""`state.json`: a run says from its first second to its last how far it is, and how it ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from channelfit.front.main import main
from channelfit.reading import files
from channelfit.reading.errors import InputError
from channelfit.results import run_folder, run_state
from channelfit.results.checkpoint import cut_off_early
from channelfit.results.run_state import still_runs, this_process
from support.places import MODELS

MODEL = MODELS / "model_b.yaml"
SMALL = ["--backend", "cpu", "--population", "8", "--generations", "3", "--quiet"]
ENDLESS = ["--backend", "cpu", "--population", "16", "--generations", "1000000", "--quiet"]
ON_POSIX = pytest.mark.skipif(sys.platform == "win32", reason="strikes in the way of POSIX")


def state_of(folder: Path) -> dict:
    return json.loads((folder / "state.json").read_text(encoding="ascii"))


def begun(folder: Path, *options: str) -> subprocess.Popen[str]:
    """A fit in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "channelfit", "optimize", MODEL, *options, "--out", folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a job in the background would hand down that Ctrl-C is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def until(holds, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.02)


def generation(folder: Path) -> int:
    return state_of(folder).get("generation", 0) if (folder / "state.json").exists() else 0


def test_only_a_run_that_is_known_to_have_ended_was_cut_off_early(tmp_path):
    """On another computer it may still go on, which cannot be seen from here."""
    dead = {"pid": 2**22 + 1, "started": "x"}
    for process, early in ((dead, True), ({"host": "another"}, False), ({}, False)):
        known = {"process": {**this_process(), **process}}
        (tmp_path / "state.json").write_text(json.dumps(known))
        assert cut_off_early(tmp_path) is early


@pytest.mark.usefixtures("undrawn")
def test_a_finished_run_says_so(tmp_path):
    out = tmp_path / "out"
    said = CliRunner().invoke(main, ["optimize", str(MODEL), "--out", str(out), *SMALL])
    assert said.exit_code == 0, said.output
    told, summary = state_of(out), json.loads((out / "summary.json").read_text())
    assert (told["state"], told["reason"]) == ("finished", "3 generations done")
    assert (told["generation"], told["evaluations"]) == (3, 24)
    assert told["best_cost"] == summary["cost"]
    assert told["parameters"] == summary["parameters"]
    assert told["stop"]["generations"] == 3
    assert told["name"] == "model_b"
    assert told["command"] == sys.argv
    assert told["process"] == this_process()
    assert told["started"] <= told["updated"]


@pytest.mark.integration
@ON_POSIX
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_says_how_far_it_is_until_it_ends(number, tmp_path):
    """Before anything has been compiled, then generation after generation, with medians."""
    out = tmp_path / "out"
    fit = begun(out, *ENDLESS)
    try:
        until((out / "state.json").exists)
        assert state_of(out)["state"] == "running"
        until(lambda: generation(out) > 0)
        first = generation(out)
        until(lambda: generation(out) > first)
        told = state_of(out)
        assert (told["state"], told["stage"]) == ("running", "searching")
        assert still_runs(told["process"])
        assert told["process"]["pid"] == fit.pid
        assert told["seconds_left"] > 0
        assert told["parameters"]["gmax"]["unit"] == "nS"
        rows = (out / "history.csv").read_text().splitlines()
        assert all(float(row.split(",")[4]) > 0 for row in rows[1:])
        fit.send_signal(number)
        code = fit.wait(120)
    finally:
        fit.kill()
        fit.communicate()
    if number == signal.SIGKILL:
        assert state_of(out)["state"] == "running"
    else:
        assert code == 143
        assert (state_of(out)["state"], state_of(out)["reason"]) == ("interrupted", "interrupted")
        assert not (out / ".running").exists()
    assert still_runs(told["process"]) is False


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("channelfit.front.kinds.summarize", fails)


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (InputError("no memory is left"), "failed", "no memory is left"),
        (KeyboardInterrupt(), "interrupted", "interrupted before it was done"),
        (ZeroDivisionError(), "failed", "ZeroDivisionError"),
    ],
)
def test_a_run_that_breaks_off_says_why(error, state, reason, tmp_path, monkeypatch):
    failing(monkeypatch, error)
    CliRunner().invoke(main, ["optimize", str(MODEL), "--out", str(tmp_path / "out"), *SMALL])
    told = state_of(tmp_path / "out")
    assert (told["state"], told["reason"]) == (state, reason)


@pytest.mark.usefixtures("undrawn")
def test_a_state_that_cannot_be_written_is_told_once_and_ends_no_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "REPORT_EVERY", 0.0)
    write = files.write_bytes

    def full(path: Path, content: bytes) -> None:
        if path.name in ("state.json", "history.csv"):
            raise InputError("cannot be written: No space left on device", path)
        write(path, content)

    def full_for_states(path: Path, content: bytes) -> None:
        if path.name == "state.json":
            raise InputError("cannot be written: No space left on device", path)
        write(path, content)

    for number, writer in enumerate((full, full_for_states)):
        monkeypatch.setattr(files, "write_bytes", writer)
        out = tmp_path / str(number)
        said = CliRunner().invoke(main, ["optimize", str(MODEL), "--out", str(out), *SMALL])
        assert said.stderr.count("Warning: ") == 1
        assert "No space left on device; the search goes on" in said.stderr
        assert (out / "summary.json").exists()
        assert said.exit_code == (2 if writer is full else 0)  # the history is a result


def test_a_process_that_has_ended_is_gone_before_its_parent_has_asked_for_it():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    told = {"pid": child.pid, "started": run_state._started(child.pid), "host": run_state.host()}
    assert still_runs(told) is True
    child.kill()
    until(lambda: still_runs(told) is False)
    if sys.platform == "linux":
        assert Path(f"/proc/{child.pid}").exists()
    child.communicate()
    assert still_runs(told) is False


def test_of_what_cannot_be_seen_from_here_nothing_is_said():
    here = this_process()
    assert still_runs(here) is True
    assert still_runs(here | {"started": "another moment"}) is False
    changes = [{"host": "another computer"}, {"started": ""}, {"started": None}]
    for change in [*changes, *({"pid": pid} for pid in ("1; rm -rf /", -1, 0, 2**70, None))]:
        assert still_runs(here | change) is None
