"""The run folder: it belongs to one run alone, and no full disk or late Ctrl-C spoils it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

import channelfit as cf
from channelfit.front.main import main
from channelfit.reading.errors import InputError
from channelfit.results import fit_folder, run_folder
from channelfit.results.files import sync_folder
from channelfit.results.run_folder import RunFolder
from channelfit.results.run_state import STATE
from support.places import MODELS

MODEL = MODELS / "model_b.yaml"
NUMBERS = {"source.py", "history.csv", "state.json", "summary.json"}
DATA = {"fit.yaml", "data_1.csv", "data_2.csv"}
SMALL = ["--population", "8", "--generations", "2", "--quiet"]


class OneSecond(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz=None):
        return cls(2030, 1, 2, 3, 4, 5)


def test_runs_of_the_same_second_get_a_folder_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_folder, "datetime", OneSecond)
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda name: RunFolder().claim_default(name), ["a/b"] * 24))
    assert len({claim.path for claim in claims}) == 24
    assert all(claim.path.is_dir() for claim in claims)
    for claim in claims:
        claim.release()
    assert not list((tmp_path / "runs").iterdir())


def test_one_of_many_runs_gets_a_given_folder(tmp_path, monkeypatch):
    place = tmp_path / "deep" / "out"

    def claim(_: int) -> str:
        try:
            return str(RunFolder().claim(place).path)
        except InputError as error:
            return error.message

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(claim, range(24)))
    assert told.count(str(place)) == 1
    assert all("another run" in text for text in told if text != str(place))
    with pytest.raises(InputError, match="cannot be used"):
        RunFolder().claim(tmp_path / ("x" * 300))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("")
    with pytest.raises(InputError, match="not a folder"):
        RunFolder().claim_default("a")


def test_a_folder_is_taken_before_anything_is_read(tmp_path, monkeypatch):
    place = tmp_path / "out"
    RunFolder().claim(place)

    def never(*_: object) -> None:
        raise AssertionError("a run without a folder has begun to work")

    monkeypatch.setattr("channelfit.front.commands.optimize.prepare", never)
    said = CliRunner().invoke(main, ["optimize", str(MODEL), "--out", str(place), *SMALL])
    assert said.exit_code == 2
    assert "another run is using this folder" in said.stderr
    monkeypatch.undo()
    place = tmp_path / "deep" / "out"
    said = CliRunner().invoke(main, ["optimize", str(MODEL), "--out", str(place), "--set", "no=1"])
    assert said.exit_code == 2
    assert not (tmp_path / "deep").exists()


def limited(n_bytes: int, *command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command line, in a process that cannot write files longer than this."""
    return subprocess.run(
        [sys.executable, "-c", _LIMITED, str(n_bytes), *map(str, command)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )


_LIMITED = """
import sys
from channelfit.front.main import main
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
main(sys.argv[2:])
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that had space enough."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    said = CliRunner().invoke(main, ["optimize", str(MODEL), "--out", str(folder), *SMALL])
    assert said.exit_code == 0, said.output
    return folder


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
@pytest.mark.parametrize(
    ("too_long", "left"),
    [
        ("data_2.csv", NUMBERS),
        ("report.html", NUMBERS | DATA | {"traces.png", "traces_1.csv", "traces_2.csv"}),
    ],
)
def test_a_full_disk_is_told_and_leaves_no_half_of_a_file(too_long, left, whole, tmp_path):
    n_bytes = (whole / too_long).stat().st_size - (2000 if too_long == "report.html" else 1)
    said = limited(n_bytes, "optimize", MODEL, *SMALL, "--out", "full", cwd=tmp_path)
    assert said.returncode == 2, said.stderr
    assert "cannot be written: File too large" in said.stderr
    assert "Traceback" not in said.stderr
    assert ("the values that were found: " in said.stderr) == (too_long == "data_2.csv")
    folder = tmp_path / "full"
    left = left | {"resume.json", "journal.bin"}  # to go on when there is room
    assert {p.name for p in folder.iterdir()} == left
    # in some stand times, and some go when a fit has finished
    for name in left - {"summary.json", "state.json", "history.csv", "resume.json", "journal.bin"}:
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.usefixtures("undrawn")
def test_a_fit_that_cannot_be_saved_leaves_no_folder(whole, tmp_path, monkeypatch):
    found = cf.fit(whole / "fit.yaml", optimizer="genetic", stop={"generations": 1}, progress=False)

    def full(path: Path, text: str) -> None:
        raise InputError("cannot be written: No space left on device", path)

    with monkeypatch.context() as patched:
        patched.setattr(fit_folder, "write_text", full)
        with pytest.raises(InputError, match="No space left"):
            found.save(tmp_path / "run")
    assert not list(tmp_path.iterdir())
    assert (found.save(tmp_path / "run") / "fit.yaml").exists()


#: A signal comes when a function is called for the first time, or within its `exec` of text.
_STRUCK = """
import importlib, os, sys
from channelfit.front import interrupts
interrupts.begin()
number, place, name = int(sys.argv.pop(1)), *sys.argv.pop(1).rsplit(".", 1)
module = importlib.import_module(f"channelfit.{place}")
usual = getattr(module, name)
def struck(*given, **named):
    setattr(module, name, usual)
    exec(f"os.kill(os.getpid(), {number}); [None for _ in range(9)]")
    return usual(*given, **named)
setattr(module, name, struck)
from channelfit.__main__ import program
program()
"""


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no SIGINT to a process")
@pytest.mark.parametrize(
    ("number", "place", "command", "code"),
    [
        (signal.SIGINT, "reading.memory.check_address_space", ["show", MODEL], 128),
        (signal.SIGTERM, "front.kinds.read_fit_file", ["show", MODEL], 128),
        (signal.SIGINT, "front.kinds.summarize", ["optimize", MODEL, *SMALL], 128),
        (signal.SIGTERM, "front.kinds.summarize", ["optimize", MODEL, *SMALL], 128),
        (signal.SIGINT, "results.fit_folder.json_text", ["optimize", MODEL, *SMALL], 0),
    ],
)
def test_a_signal_ends_a_command_in_order(number, place, command, code, tmp_path):
    said = subprocess.run(
        [sys.executable, "-c", _STRUCK, str(int(number)), place, *map(str, command)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert said.returncode == (128 + number if code else 0), said.stderr
    assert said.stderr == ("Interrupted.\n" if code else "")
    assert not list(tmp_path.rglob(".*"))
    assert (code == 0) == bool(list(tmp_path.rglob("summary.json")))


def test_a_run_that_was_killed_before_it_began_is_begun_again(tmp_path: Path) -> None:
    """By the same command: its folder holds nothing but its mark and its state."""
    folder = tmp_path / "run"
    RunFolder().claim(folder)
    with pytest.raises(InputError, match="another run is using this folder"):
        RunFolder().claim(folder)
    state = json.loads((folder / STATE).read_text())
    state["process"]["started"] = "an earlier process"
    (folder / STATE).write_text(json.dumps(state))
    (folder / "source.py").write_text("half a te")
    with pytest.raises(InputError, match="nothing to go on with: .* begin it again"):
        RunFolder().resume(folder)
    again = RunFolder().claim(folder)
    assert {p.name for p in folder.iterdir()} == {".running", STATE}
    assert json.loads((folder / STATE).read_text())["process"]["started"] != "an earlier process"
    again.release()
    assert not folder.exists() or not list(folder.iterdir())


def test_of_two_that_take_over_a_folder_one_gets_it(tmp_path: Path) -> None:
    """The second one had looked at the mark of the dead run before the first one took it away."""
    folder = tmp_path / "run"
    RunFolder().claim(folder)
    dead = run_folder._mark(folder)
    run_folder._take(folder, dead)
    mark = run_folder._mark(folder)
    with pytest.raises(InputError, match="another run is using this folder"):
        run_folder._take(folder, dead)
    assert run_folder._mark(folder) == mark
    with pytest.raises(InputError, match="another run is using this folder"):
        run_folder._take(folder, None)


@pytest.mark.parametrize(
    ("number", "told"), [(errno.EIO, True), (errno.ENOSPC, True), (errno.EINVAL, False)]
)
def test_a_disk_that_fails_at_last_is_told(number, told, tmp_path, monkeypatch):
    """Else what the results could be made from would go, and they with it."""
    (tmp_path / "wells.csv").write_text("a\n")

    def failing(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
    if not told:  # the file system cannot tell
        sync_folder(tmp_path)
        return
    with pytest.raises(InputError, match=os.strerror(number)) as caught:
        sync_folder(tmp_path)
    assert str(caught.value.file) == str(tmp_path / "wells.csv")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"verb": "batch", "arguments": {}}, "`channelfit batch --resume {}` goes on with it"),
        ({"arguments": None}, "the same call with resume=True goes on with it"),
        (None, "`channelfit optimize --resume {}` goes on with it"),
    ],
)
def test_the_same_command_after_a_kill_is_told_how_the_run_goes_on(content, told, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".running").touch()
    (folder / "resume.json").write_text("{" if content is None else json.dumps(content))
    with pytest.raises(InputError) as caught:
        RunFolder().claim(folder)
    assert told.format(folder) in str(caught.value)
    assert (folder / ".running").exists()


@pytest.mark.parametrize("verb", ["optimize", "batch", "fhn"])
def test_a_finished_run_that_is_resumed_is_no_mistake(verb: str, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{}")
    if verb != "fhn":
        (tmp_path / "state.json").write_text('{"state": "finished"}')
    done = CliRunner().invoke(main, [verb, "--resume", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    assert "this run has finished; there is nothing to go on with" in done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["state"], last["folder"]) == ("finished", str(tmp_path))
    (tmp_path / "resume.json").write_text("{}")
    (tmp_path / "state.json").write_text('{"state": "failed"}')
    assert CliRunner().invoke(main, [verb, "--resume", str(tmp_path)]).exit_code == 2
