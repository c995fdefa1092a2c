"""`channelfit run`: jobs that wait for others, fail, are interrupted, and go on after that."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channelfit.front.commands.run import refuse_clusters
from channelfit.front.json_lines import JsonLines
from channelfit.front.main import main
from channelfit.front.night import queue
from channelfit.front.night.calls import Call
from channelfit.front.night.jobs import Job, Night, read_night
from channelfit.front.night.jobs import Result as JobResult
from channelfit.front.night.record import record_of
from channelfit.front.night.screen import NightScreen
from channelfit.front.watching.answers import Watched
from channelfit.reading.documents import dump_yaml, read_yaml
from channelfit.reading.errors import InputError
from channelfit.reading.keys import KEYS
from channelfit.reading.keys.nights import COMMANDS
from channelfit.reading.schema import file_schema
from channelfit.results.run_state import process_of
from channelfit.results.runs import is_run
from support import json_output
from support.places import ROOT
from support.plate_folder import write_plate

integration = pytest.mark.integration
linux = pytest.mark.skipif(sys.platform != "linux", reason="signals and cores as on Linux")

#: What a job does in place of `channelfit fhn --seed=N`.
SCRIPT = """
import os, signal, sys, time
words = sys.argv[2:]
given = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
seed, out = int(given.get("seed", 0)), given.get("out", "")
if os.environ.get("NIGHT_TRACE"):
    with open(os.environ["NIGHT_TRACE"], "a") as trace:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
        trace.write(f"{os.path.basename(out)} begins {cores} {os.getcwd()}\\n")
print("this is job", seed)
if out:
    os.makedirs(out, exist_ok=True)
    open(os.path.join(out, "summary.json"), "w").write("{}")
if seed == 1:
    raise ZeroDivisionError("a defect")
if seed == 2:
    print("Error: cell.csv: line 3: no number")
    sys.exit(2)
if seed == 3:
    os.kill(os.getpid(), signal.SIGKILL)
if seed == 4:  # goes on until it is asked to end, and saves what it has
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    open(os.path.join(out, "ready"), "w").close()
    time.sleep(60)
if seed == 5:  # does not listen
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(os.path.join(out, "ready"), "w").close()
    time.sleep(60)
if seed == 6:
    time.sleep(0.3)
if os.environ.get("NIGHT_TRACE"):
    with open(os.environ["NIGHT_TRACE"], "a") as trace:
        trace.write(f"{os.path.basename(out)} ends\\n")
"""


def job(seed: int = 0, *after: str) -> dict[str, Any]:
    """A job that does what `SCRIPT` says of a seed."""
    found: dict[str, Any] = {"fhn": {"seed": seed}}
    return found | ({"after": list(after)} if after else {})


def write(folder: Path, jobs: dict[str, Any], **more: Any) -> Path:
    file = folder / "night.yaml"
    file.write_text(dump_yaml({"jobs": jobs, **more}), "utf-8")
    return file


run, ran, refused = (
    functools.partial(call, "run")
    for call in (json_output.run, json_output.ran, json_output.refused)
)


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "night.json").read_text())
    return found


def states(folder: Path) -> dict[str, str]:
    return {name: row["state"] for name, row in record(folder)["jobs"].items()}


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The played program, and where it traces what it does."""
    monkeypatch.setattr(queue, "_PROGRAM", SCRIPT)
    monkeypatch.setenv("NIGHT_TRACE", str(tmp_path / "trace"))
    return tmp_path / "trace"


# --- what a queue does ----------------------------------------------------------------------------


def test_jobs_are_done_after_those_that_they_wait_for(played: Path, tmp_path: Path) -> None:
    jobs = {"last": job(0, "b", "a"), "b": job(0, "a"), "a": job(), "free": job()}
    (tmp_path / "in").mkdir()
    file, out = write(tmp_path / "in", jobs, name="a night", description="four"), tmp_path / "o"
    done = ran(file, "--out", out)
    lines = [line.split(maxsplit=3) for line in played.read_text().splitlines()]
    order = [[name, word] for name in ("a", "b", "last", "free") for word in ("begins", "ends")]
    assert [line[:2] for line in lines] == order
    assert lines[0][3] == str(tmp_path / "in")  # jobs work in the folder of the file
    summary = json.loads((out / "summary.json").read_text())
    assert summary["counts"] == {"finished": 4}
    assert (summary["night"], summary["description"]) == ("a night", "four")
    rows = {row["name"]: row for row in summary["jobs"]}
    assert list(rows) == ["last", "b", "a", "free"]
    assert (rows["a"]["exit_code"], rows["a"]["see"]) == (0, "a/summary.json")
    assert "this is job 0" in (out / rows["a"]["log"]).read_text()
    assert "finished" in done.stdout
    assert not re.search(r"\bbegins\b", done.stdout)  # progress stands on standard error
    assert record(out)["state"] == "finished"


@integration
def test_the_failure_of_a_job_ends_no_other_but_those_that_wait_for_it(
    played: Path, tmp_path: Path
) -> None:
    jobs = {
        "crash": job(1),
        "refused": job(2),
        "killed": job(3),
        "good": job(),
        "skipped": job(0, "good", "crash"),
        "also_skipped": job(0, "skipped"),
        "after_good": job(0, "good"),
    }
    done = run(write(tmp_path, jobs), "--out", tmp_path / "o")
    assert done.exit_code == 3
    assert states(tmp_path / "o") == {
        **dict.fromkeys(("crash", "refused", "killed"), "failed"),
        **dict.fromkeys(("good", "after_good"), "finished"),
        **dict.fromkeys(("skipped", "also_skipped"), "skipped"),
    }
    why = {name: row["reason"] for name, row in record(tmp_path / "o")["jobs"].items()}
    assert why["crash"] == "exit code 1: ZeroDivisionError: a defect"
    assert why["refused"] == "cell.csv: line 3: no number"
    assert why["killed"].startswith("it was killed by SIGKILL")
    assert why["skipped"] == "it waits for crash, which failed"
    assert why["also_skipped"] == "it waits for skipped, which was skipped"
    for reason in why.values():
        assert reason in done.stdout.replace("\n", " ")
        assert reason in done.stderr
    page = (tmp_path / "o" / "night.html").read_text("utf-8")
    assert "cell.csv: line 3: no number" in page
    assert "<main>" in page  # with a role of its own it would be no landmark
    assert 'href="good/summary.json"' in page


@integration
def test_what_failed_is_tried_again_and_what_finished_is_not(played: Path, tmp_path: Path) -> None:
    jobs = {"good": job(), "bad": job(1), "after": job(0, "bad")}
    file, out = write(tmp_path, jobs), tmp_path / "o"
    assert run(file, "--out", out).exit_code == 3
    (out / "bad" / "half").write_text("half of a result")
    write(tmp_path, {**jobs, "bad": job(0), "new": job(0)})
    out = out.rename(tmp_path / "elsewhere")  # it may be moved between two calls
    ran("--resume", out)
    begun = [line.split()[0] for line in played.read_text().splitlines() if " begins " in line]
    assert begun == ["good", "bad", "bad", "after", "new"]
    assert not (out / "bad" / "half").exists()
    played.write_text("")
    assert run(file, "--out", out).exit_code == 0  # the same call: nothing is left to do
    assert played.read_text() == ""


@linux
@integration
def test_as_many_jobs_as_are_wanted_run_side_by_side_and_share_the_cores(
    played: Path, tmp_path: Path
) -> None:
    cores = len(os.sched_getaffinity(0))
    jobs = {f"j{k}": job(6) for k in range(3)} | {"alone": job(0, "j0", "j1", "j2")}
    ran(write(tmp_path, jobs, side_by_side=2), "--out", tmp_path / "o")
    running, most, had = 0, 0, {}
    for line in played.read_text().splitlines():
        name, word, *more = line.split()
        running += 1 if word == "begins" else -1
        most = max(most, running)
        had[name] = int(more[0]) if more else had[name]
    assert most == 2
    if cores > 1:
        assert had["j0"] + had["j1"] == cores == had["alone"]
    assert len(os.sched_getaffinity(0)) == cores


# --- interrupts -----------------------------------------------------------------------------------

#: `channelfit run` with the played program in place of that of jobs.
PLAYED = """
import sys
from channelfit.front import interrupts
interrupts.begin()
from channelfit.front.night import queue
from channelfit.front.json_lines import JsonLines
from channelfit.front.main import main
queue._PROGRAM = sys.argv.pop(1)
main(prog_name="channelfit")
"""


def started(*words: object, program: str = SCRIPT) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PLAYED, program, "run", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=json_output.hears_ctrl_c,
    )


def wait_for(what: Any, seconds: float = 300.0) -> None:
    """Waits until a function gives something true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


@linux
@integration
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_reaches_the_jobs_and_leaves_all_resumable(
    tmp_path: Path, number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = {"done": job(), "long": job(4, "done"), "waits": job(0, "long")}
    file, out = write(tmp_path, jobs, side_by_side=2), tmp_path / "o"
    process = started(file, "--out", out)
    wait_for((out / "long" / "ready").exists)
    assert record(out)["state"] == "running"
    process.send_signal(number)
    _, told = process.communicate(timeout=300)
    assert process.returncode == code, told
    assert states(out) == {"done": "finished", "long": "interrupted", "waits": "waiting"}
    assert record(out)["state"] == "interrupted"
    assert record(out)["jobs"]["long"]["exit_code"] == code
    assert json.loads((out / "summary.json").read_text())["counts"]["waiting"] == 1
    monkeypatch.setattr(queue, "_PROGRAM", SCRIPT.replace("seed == 4", "seed == 99"))
    assert run("--resume", out).exit_code == 0
    assert set(states(out).values()) == {"finished"}


@linux
@integration
def test_a_second_signal_kills_jobs_that_do_not_end(tmp_path: Path) -> None:
    file, out = write(tmp_path, {"deaf": job(5)}), tmp_path / "o"
    process = started(file, "--out", out)
    wait_for((out / "deaf" / "ready").exists)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130
    assert states(out) == {"deaf": "interrupted"}


@linux
@integration
def test_two_calls_share_no_folder_and_one_that_was_killed_waits_for_no_job_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = write(tmp_path, {"long": job(4), "waits": job(0, "long")}), tmp_path / "o"
    process = started(file, "--out", out)
    wait_for((out / "long" / "ready").exists)
    assert "another process is using it" in refused(file, "--out", out).output
    process.kill()
    process.communicate()
    left = record(out)["jobs"]["long"]["process"]["pid"]
    monkeypatch.setattr(queue, "_PROGRAM", SCRIPT.replace("seed == 4", "seed == 99"))
    done = refused("--resume", out)
    assert f"the job long of an earlier call still goes on, as process {left}" in done.output
    assert states(out)["long"] == "running"
    os.kill(left, signal.SIGKILL)
    wait_for(lambda: not process_of(left)["started"])
    assert run("--resume", out).exit_code == 0
    assert set(states(out).values()) == {"finished"}


# --- what has changed -----------------------------------------------------------------------------


@integration
def test_what_has_finished_must_not_have_changed(played: Path, tmp_path: Path) -> None:
    (tmp_path / "state.csv").write_text("x,v\n0,0\n200,1\n")
    first = {"fhn": {"initial": "state.csv"}}
    file, out = write(tmp_path, {"a": first, "b": job(1)}), tmp_path / "o"
    assert run(file, "--out", out).exit_code == 3
    before = (out / "night.json").read_bytes()
    cases = {
        "command was": {"a": {"fhn": {"initial": "state.csv", "frames": 7}}, "b": job(1)},
        "no longer there": {"b": job(1)},
    }
    for told, jobs in cases.items():
        write(tmp_path, jobs)
        assert told in refused("--resume", out).output
    write(tmp_path, {"a": first, "b": job(0)})
    (tmp_path / "state.csv").write_text("x,v\n0,0\n200,0.5\n")
    answer = refused("--resume", out)
    assert re.search(r"state\.csv was [0-9a-f]{64} and is [0-9a-f]{64}", answer.output)
    told = json.loads(before)["jobs"]["a"]
    assert record(out)["jobs"]["a"] == told  # nothing was lost by being refused
    assert record(out)["jobs"]["b"]["state"] == "failed"
    (tmp_path / "state.csv").write_text("x,v\n0,0\n200,1\n")
    assert run("--resume", out).exit_code == 0


@integration
def test_a_damaged_record_is_refused(played: Path, tmp_path: Path) -> None:
    file, out = write(tmp_path, {"a": job()}), tmp_path / "o"
    assert run(file, "--out", out).exit_code == 0
    strange = '{"jobs": {"a": {"state": "no such"}}, "file": "x"}'
    for text in ("", "{", "[]", '{"jobs": 3}', strange):
        (out / "night.json").write_text(text)
        for words in (["--resume", out], [file, "--out", out]):
            assert "night.json" in refused(*words).output
        assert (out / "night.json").read_text() == text


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "mine").write_text("mine")
    done = refused(write(tmp_path, {"a": job()}), "--out", tmp_path / "o")
    assert "is not empty and holds no night" in done.output
    assert [p.name for p in (tmp_path / "o").iterdir()] == ["mine"]


@integration
def test_a_link_in_place_of_the_folder_of_a_job_is_left_alone(played: Path, tmp_path: Path) -> None:
    file, out = write(tmp_path, {"a": job(1)}), tmp_path / "o"
    assert run(file, "--out", out).exit_code == 3
    shutil.rmtree(out / "a")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kept").write_text("kept")
    (out / "a").symlink_to(tmp_path / "mine")
    assert run("--resume", out).exit_code == 3
    assert "is no folder that a night has made" in record(out)["jobs"]["a"]["reason"]
    assert (tmp_path / "mine" / "kept").read_text() == "kept"


@linux
@integration
def test_a_full_disk_for_a_while_does_not_end_a_night(
    played: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from channelfit.front.night import record as records

    real, calls = records.write_text, []

    def write_text(path: Path, text: str) -> None:
        calls.append(path)
        if 2 <= len(calls) <= 4:
            raise InputError("cannot be written: No space left on device", path)
        real(path, text)

    monkeypatch.setattr(records, "write_text", write_text)
    done = ran(write(tmp_path, {"a": job(), "b": job()}), "--out", tmp_path / "o")
    assert "No space left on device; it will be tried again" in done.stderr
    assert states(tmp_path / "o") == {"a": "finished", "b": "finished"}


# --- what is refused before the first job ---------------------------------------------------------

OPTIMIZE = {"optimize": {"model": "little.yaml"}}


def report(**given: Any) -> dict[str, Any]:
    """A job that reports what came of another."""
    return {"report": {"runs": given}}


SQUID = str(ROOT / "models" / "cells" / "squid.yaml")
#: By what is told of them, jobs that cannot be done.
BAD: dict[str, dict[str, Any]] = {
    "at least one job": {},
    "and there is none": {"a": {"after": "b"}},
    "not fhn and optimize": {"a": {**job(), **OPTIMIZE}},
    'unknown key "run"': {"a": {"run": {}}},
    'there is no job "ab"': {"aa": job(0, "ab"), "b": job()},
    'jobs.b: there is no job "a"': {"b": report(run="a")},
    "wait for each other": {"a": job(0, "b"), "b": job(0, "c"), "c": job(0, "a")},
    "the same folder": {"Cell": job(), "cell": job()},
    "a device on Windows": {"NUL": job()},
    "jobs.a.fhn.out: cannot be given": {"a": {"fhn": {"out": "/tmp/x"}}},
    '"protocol" is missing': {"a": {"simulate": {"model": "m"}}},
    "'three' is not a valid integer": {"a": {"fhn": {"seed": "three"}}},
    "takes one value, not 2": {"a": {"fhn": {"seed": [1, 2]}}},
    "true or false was expected": {"a": {"fhn": {"animation": "yes"}}},
    "a text, a number": {"a": {"fhn": {"seed": None}}},
    "the name of a job was expected": {"a": {**job(), "after": None}},
    "jobs.b.report.runs.file: the name of a file": {"a": job(), "b": report(run="a", file="../c")},
    "gone.yaml: no such": {"a": {"optimize": {"model": "gone.yaml"}}},
    "nothing fits the pattern": {"a": {"compare": {"fits": "none/*.yaml"}}},
    "jobs.a: --left": {"a": {"fhn": {"left": "open"}}},
    'the cell has no channel "zz"': {"a": {"cell": {"cell": SQUID, "scale": "zz=1"}}},
    "NUL character": {"a": {"fhn": {"left": "a\0b"}}},
}
NAMES = ["..", ".", "a/b", "/etc", "a\\b", "-rf", "a b", "", "é", "a.b", "a" * 61, "$(id)", "a\nb"]


def test_a_night_that_cannot_be_done_is_refused_before_it_begins(
    played: Path, tmp_path: Path
) -> None:
    bad = {told: {"jobs": jobs} for told, jobs in BAD.items()}
    bad['unknown key "job"; did you mean jobs?'] = {"jobs": {"a": job()}, "job": 3}
    bad["side_by_side"] = {"jobs": {"a": job()}, "side_by_side": 0}
    for told, document in bad.items():
        (tmp_path / "night.yaml").write_text(json.dumps(document))
        done = refused(tmp_path / "night.yaml", "--out", tmp_path / "o")
        assert told in done.output
        assert "night.yaml" in done.output
        assert not (tmp_path / "o").exists(), told
        assert not played.exists(), told


def test_a_name_that_is_no_plain_name_is_refused(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / "night.yaml").write_text(json.dumps({"jobs": {name: job()}}))
        with pytest.raises(InputError, match="cannot be the name of a job"):
            read_night(tmp_path / "night.yaml")


def test_a_check_alone_begins_nothing_and_tells_all_mistakes_at_once(
    played: Path, tmp_path: Path
) -> None:
    done = run(write(tmp_path, {"a": job(1)}), "--check", "--out", tmp_path / "o")
    assert (done.exit_code, done.stdout) == (0, "All 1 jobs can be done.\n")
    gone, nowhere = {"optimize": {"model": "gone.yaml"}}, {"fhn": {"initial": "nowhere"}}
    waits = {"uncertainty": {"fit": {"run": "a"}}}
    done = refused(write(tmp_path, {"a": gone, "b": nowhere, "good": job(), "c": waits}), "--check")
    assert "2 of 4 jobs cannot be done; 1 more wait for them. Nothing was begun" in done.output
    assert "jobs.a.optimize.model" in done.output
    assert "jobs.b: nowhere: cannot be read" in done.output
    assert not (tmp_path / "o").exists()
    assert not played.exists()


def test_a_call_that_makes_no_sense_is_refused() -> None:
    either = "give either NIGHT or --resume"
    for words, told in (
        ([], either),
        (["night.yaml", "--resume", "o"], either),
        (["--resume", "o", "--out", "p"], "--out cannot stand beside --resume"),
        (["--resume", "o"], "holds no night to go on with"),
        (["gone.yaml"], "no such file"),
    ):
        assert told in refused(*words).output


# --- words ----------------------------------------------------------------------------------------


def call(command: str, arguments: dict[str, Any]) -> Call:
    """A job of a night in the folder /n."""
    rows = {name: tuple(v if isinstance(v, list) else [v]) for name, v in arguments.items()}
    one = Job("me", command, rows, (), "jobs.me")
    night = Night(Path("/n/night.yaml"), "n", "", 1, {"me": one})
    return Call(night, one, main.commands[command])


def place(result: JobResult) -> Path:
    return Path("/o") / result.job / (result.file or "fit.yaml")


def test_the_words_of_a_job() -> None:
    given = {"set": ["a=1", "--b=2"], "families": True, "fit": JobResult("one"), "seed": "3"}
    made = call("uncertainty", given)
    words = ["uncertainty", "--out=/o/me", "--families", "--seed=3", "--set=a=1", "--set=--b=2"]
    assert made.words(Path("/o/me"), place) == [*words, "--", "/o/one/fit.yaml"]
    files = call("export", {"fit": "x.yaml", "to": "latex", "point-process": False})
    words = ["--out=/o/me/me.tex", "--to=latex", "--", "/n/x.yaml"]
    assert files.words(Path("/o/me"), place)[1:] == words
    several = call("report", {"runs": [JobResult("a"), "b", JobResult("c", "d.yaml")]})
    assert several.words(Path("/o/me"), place)[-3:] == ["/o/a/fit.yaml", "/n/b", "/o/c/d.yaml"]


TRICKS = ["--out=/etc", "-h", "--", "-", "--help", "; rm -rf /", "$(id)", "`id`", "..", "|"]
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
hostile = st.sampled_from(TRICKS) | TEXTS


@settings(max_examples=50, deadline=None)
@given(value=hostile, model=hostile)
def test_no_value_is_taken_for_an_option(value: str, model: str) -> None:
    made = call("optimize", {"set": [value, value], "optimizer": value, "model": "m" + model})
    try:
        words = made.words(Path("/o/me"), place)
    except InputError:
        return  # such as ${NAME}, which is not set
    parsed = made.parsed(words)
    assert parsed["overrides"] == (value, value)
    assert parsed["optimizer"] == value
    assert parsed["out"] == Path("/o/me")
    assert parsed["model"] == Path("/n") / ("m" + model)
    assert parsed["resume"] is None


def test_every_command_of_a_night_is_one_of_the_program() -> None:
    assert set(COMMANDS) <= set(main.commands)
    for command, arguments in COMMANDS.items():
        rows = {
            name: [_as_read(value) for value in (given if isinstance(given, list) else [given])]
            for name, given in arguments.items()
        }
        made = call(command, rows)
        made.parsed(made.words(Path("/o/me"), place))


def _as_read(value: Any) -> Any:
    if isinstance(value, dict):
        return JobResult(value["run"])
    return value if isinstance(value, bool) else str(value)


# --- the file, its schema and its keys ------------------------------------------------------------

SHIPPED = sorted((ROOT / "models" / "nights").glob("*.yaml"))


def faults(document: dict[str, Any]) -> list[str]:
    checker = jsonschema.Draft7Validator(file_schema("night"))
    return [error.message for error in checker.iter_errors(document)]


def test_shipped_nights_can_be_done() -> None:
    for path in SHIPPED:
        ran(path, "--check")


def test_what_the_schema_refuses_is_refused() -> None:
    refused = {told for told, jobs in BAD.items() if faults({"jobs": jobs})}
    assert {"at least one job", "not fhn and optimize", "a text, a number"} <= refused
    assert faults({"jobs": {"a": {"fhn": {"seed": 3, "animation": True}}, "b": OPTIMIZE}}) == []


NIGHT: dict[str, Any] = {"jobs": {"a": job(), "b": job(), "c": report(run="a")}}
#: By section and key its place in `NIGHT`, and two values.
ACTING: dict[tuple[str, str], tuple[str, Any, Any]] = {
    ("night", "name"): ("name", "one", "two"),
    ("night", "description"): ("description", "one", "two"),
    ("night", "side_by_side"): ("side_by_side", 1, 2),
    ("night", "jobs"): ("jobs", {"a": job()}, {"b": job()}),
    ("job", "after"): ("jobs b after", [], "a"),
    ("job result", "run"): ("jobs c report runs run", "a", "b"),
    ("job result", "file"): ("jobs c report runs file", "x.yaml", "y.yaml"),
} | {("job", verb): ("jobs d", {verb: {"x": 1}}, {verb: {"x": 2}}) for verb in COMMANDS}


def test_every_key_of_a_night_acts(tmp_path: Path) -> None:
    sections = ("night", "job", "job result")
    assert set(ACTING) == {(section, key) for section in sections for key in KEYS[section]}
    for key, (path, *values) in ACTING.items():
        seen = []
        for value in values:
            document = within = json.loads(json.dumps(NIGHT))
            *place, last = path.split()
            for word in place:
                within = within[word]
            within[last] = value
            assert faults(document) == [], key
            (tmp_path / "n.yaml").write_text(dump_yaml(document))
            seen.append(read_night(tmp_path / "n.yaml"))
        assert seen[0] != seen[1], key


# --- showing --------------------------------------------------------------------------------------


@integration
def test_a_night_is_watched_as_a_queue(played: Path, tmp_path: Path) -> None:
    out = tmp_path / "o"
    jobs = {"a": job(1), "b": job(0, "a")}
    assert run(write(tmp_path, jobs), "--out", out).exit_code == 3
    shutil.rmtree(out / "a")
    content = record(out)
    content["jobs"]["<b>c\x1b[0m"] = {"state": "waiting", "command": "optimize"}
    content["jobs"]["d"] = {"state": "running", "process": process_of(2**22 - 1) | {"started": "x"}}
    (out / "night.json").write_text(json.dumps(content))
    assert not is_run(out)
    told = Watched(out).queue()
    rows = {row["name"]: row for row in told["rows"]}
    assert [row["state"] for row in rows.values()] == ["failed", "skipped", "waiting", "killed"]
    assert list(rows) == ["a", "b", "<b>c\\x1b[0m", "d"]
    assert rows["a"]["why"].startswith("exit code 1")
    assert rows["b"]["fit"] == "fhn"
    assert not any(row["page"] for row in rows.values())
    assert told["counts"] == "1 failed, 1 skipped, 1 waiting, 1 killed"
    for text in ("", "[]", '{"jobs": [1]}', '{"jobs": {"a": 3}}'):
        (out / "night.json").write_text(text)
        assert Watched(out).queue()["rows"] == []


@integration
def test_nothing_of_a_file_acts_on_the_page_or_the_terminal(played: Path, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\x1b[2J"
    jobs = {"a": job(2), "b": job(0)}
    done = run(write(tmp_path, jobs, name=evil, description=evil), "--out", tmp_path / "o")
    assert done.exit_code == 3
    assert "\x1b[2J" not in done.output
    page = (tmp_path / "o" / "night.html").read_text("utf-8")
    assert "alert(1)" in page
    assert "<script" not in page.lower()
    addresses = re.findall(r"""(?:href|src)=["']?([^"' >]*)""", page)
    assert all(re.fullmatch(r"data:,|[ab](\.log|/[\w.]+)", one) for one in addresses)


# --- the real program -----------------------------------------------------------------------------

MODEL = str(ROOT / "models" / "model_b.yaml")
QUICK = {"model": MODEL, "optimizer": "genetic", "population": 40, "generations": 4}


@integration
def test_results_are_those_of_the_commands(tmp_path: Path) -> None:
    jobs = {
        "one": {"optimize": {**QUICK, "seed": 1}},
        "mechanism": {"export": {"fit": {"run": "one"}, "to": "nmodl", "point-process": True}},
        "wrong": {"fhn": {"error": 1}},  # which only the command itself refuses
    }
    file, out = write(tmp_path, jobs, side_by_side=2), tmp_path / "o"
    process = subprocess.run(
        [sys.executable, "-m", "channelfit", "run", file, "--out", out],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 3, process.stderr
    assert states(out) == {"one": "finished", "mechanism": "finished", "wrong": "failed"}
    assert "is for --scheme auto" in record(out)["jobs"]["wrong"]["reason"]
    words = ["optimize", MODEL, "--optimizer", "genetic", "--population", 40, "--generations", 4]
    json_output.ran(*words, "--seed", 1, "--out", tmp_path / "alone", "--quiet")
    values = [
        read_yaml(folder / "fit.yaml")["parameters"] for folder in (out / "one", tmp_path / "alone")
    ]
    assert values[0] == values[1]
    words = ["export", out / "one" / "fit.yaml", "--to", "nmodl", "--point-process"]
    json_output.ran(*words, "--out", tmp_path / "direct.mod")
    text = (out / "mechanism" / "mechanism.mod").read_text("utf-8")
    assert text == (tmp_path / "direct.mod").read_text("utf-8")
    rows = {row["name"]: row for row in json.loads((out / "summary.json").read_text())["jobs"]}
    assert (rows["one"]["see"], rows["mechanism"]["see"]) == (
        "one/report.html",
        "mechanism/mechanism.mod",
    )


def test_a_job_goes_on_as_its_command_does(tmp_path: Path) -> None:
    """The words of a job that was cut off: with what it left, without it, and after a change."""
    jobs = {
        "fit": {"optimize": {**QUICK, "cluster": "local"}},
        "sure": {"uncertainty": {"fit": MODEL}},
        "mechanism": {"export": {"fit": MODEL, "to": "latex"}},
    }
    night = read_night(write(tmp_path, jobs))
    calls = {name: Call(night, one, main.commands[one.command]) for name, one in night.jobs.items()}
    folder = tmp_path / "o"
    with record_of(folder) as kept:
        kept.begin(night)
        screen = NightScreen(JsonLines("run", False), "n", folder, quiet=True)
        made = queue.Queue(night, calls, {}, kept, screen)
        for name in jobs:
            (folder / name).mkdir()
            kept.change(name, state="interrupted", inputs=made._inputs(name))
        # killed while it wrote: its numbers are there, which does not make it one that has finished
        for name in ("resume.json", "summary.json"):
            (folder / "fit" / name).write_text("{}")
        (folder / "sure" / "uncertainty-resume.json").write_text("{}")
        (folder / "mechanism" / "half.tex").write_text("half")
        went_on = {name: made._words(name, folder / name) for name in jobs}
        words = ["optimize", f"--resume={folder / 'fit'}", "--cluster=local"]
        assert went_on["fit"] == (words, True)
        words, goes_on = went_on["sure"]
        assert (words[1], words[-1], goes_on) == ("--resume", MODEL, True)
        assert not went_on["mechanism"][1]
        assert not (folder / "mechanism").exists()
        (folder / "curves" / "x-unfinished").mkdir(parents=True)
        assert queue._left_in(folder / "curves") is None
        (folder / "curves" / "x-unfinished" / "resume.json").write_text("{}")
        assert queue._left_in(folder / "curves") == folder / "curves" / "x-unfinished"
        kept.change("fit", state="failed", inputs={"command": "another"})
        words, goes_on = made._words("fit", folder / "fit")
        assert (words[0], words[-1], goes_on) == ("optimize", MODEL, False)
        assert not (folder / "fit").exists()


def test_a_night_that_goes_on_connects_nowhere_unless_it_is_said_again(tmp_path: Path) -> None:
    """Its folder may be somebody else's, as may be what listens there."""
    where = "tcp://127.0.0.1:9"
    jobs = {
        "near": {"optimize": {**QUICK, "cluster": "local:1"}},
        "far": {"optimize": {**QUICK, "cluster": where}},
    }
    night, folder = read_night(write(tmp_path, jobs)), tmp_path / "o"
    with record_of(folder) as kept:
        kept.begin(night)
    answer = refused("--resume", folder)
    assert "jobs.far.optimize.cluster: a cluster can run any program" in answer.stderr
    assert f'say so: --cluster "{where}"' in answer.stderr
    assert "near" not in answer.stderr
    refuse_clusters(night, [where])
    done = refused(tmp_path / "night.yaml", "--cluster", where)
    assert "--cluster goes with --resume" in done.output


def history(folder: Path) -> list[list[str]]:
    """The rows of `history.csv` without their times."""
    rows = [line.split(",") for line in (folder / "history.csv").read_text().splitlines()]
    return [row[:2] + row[3:] for row in rows]


SLOW = {"model": MODEL, "optimizer": "genetic", "population": 2000, "generations": 1200}
STEPS = str(ROOT / "protocols" / "activation.yaml")
LONG = {
    "long": {"optimize": SLOW},
    "next": {"simulate": {"model": {"run": "long"}, "protocol": STEPS}},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the jobs of `LONG` without an interruption."""
    folder = tmp_path_factory.mktemp("whole")
    assert run(write(folder, LONG), "--out", folder / "o").exit_code == 0
    return folder / "o"


@linux
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_fit_that_was_cut_off_goes_on_to_the_same_result(
    tmp_path: Path, whole: Path, number: signal.Signals
) -> None:
    """SIGKILL is sent to the night and to its job, as in a power cut."""
    file, out = write(tmp_path, LONG), tmp_path / "o"
    process = subprocess.Popen(
        [sys.executable, "-m", "channelfit", "run", file, "--out", out],
        stderr=subprocess.DEVNULL,
        preexec_fn=json_output.hears_ctrl_c,
    )
    lines = out / "long" / "history.csv"
    wait_for(lambda: lines.exists() and len(lines.read_text().splitlines()) > 2)
    process.send_signal(number)
    if number == signal.SIGKILL:
        process.wait()
        left = record(out)["jobs"]["long"]["process"]["pid"]
        os.kill(left, number)
        wait_for(lambda: not process_of(left)["started"])
    process.wait(timeout=300)
    assert states(out)["next"] == "waiting"
    assert states(out)["long"] == ("running" if number == signal.SIGKILL else "interrupted")
    assert "long: optimize goes on" in ran("--resume", out).stderr
    assert history(out / "long") == history(whole / "long")
    for name in ("long/fit.yaml", "long/traces_1.csv", "next/model_b-activation.csv"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()


@integration
def test_a_cell_is_a_job(tmp_path: Path) -> None:
    """With the files that the cell file names among those that must not change."""
    job = {"cell": {"cell": SQUID, "scale": "k=0.8", "set": "duration=10"}}
    ran(write(tmp_path, {"a": job}), "--out", tmp_path / "o")
    written = {file.name for file in (tmp_path / "o" / "a").iterdir()}
    assert written == {"squid.csv", "squid-measures.csv", "squid.png"}
    inputs = record(tmp_path / "o")["jobs"]["a"]["inputs"]
    assert {"squid.yaml", "na_hh.yaml", "k_hh_gate.yaml"} <= {Path(file).name for file in inputs}


@integration
def test_a_plate_and_its_reruns_are_jobs(tmp_path: Path) -> None:
    """The wells of a batch are looked at before, and are among what must not change."""
    write_plate(tmp_path, 2, seed=4)
    for number, well in enumerate(("A01", "A02")):
        (tmp_path / "plate" / f"cells-{number:03}.csv").rename(tmp_path / "plate" / f"{well}.csv")
    jobs = {
        "plate": {"batch": {"fit": "fit.yaml", "recordings": ["plate/*.csv"], "starts": 4}},
        "again": {"batch": {"rerun": {"run": "plate"}, "only": "A02", "starts": 8}},
    }
    file, out = write(tmp_path, jobs), tmp_path / "o"
    ran(file, "--out", out)
    for name in jobs:
        lines = (out / name / "wells.csv").read_text().splitlines()
        assert [line.split(",")[0] for line in lines[1:]] == ["A01", "A02"]
    told = record(out)["jobs"]["plate"]["inputs"]
    assert str(tmp_path / "plate" / "A02.csv") in told
    with (tmp_path / "plate" / "A02.csv").open("a") as data:
        data.write("1,1,1\n")
    assert "A02.csv was" in refused("--resume", out).output
    for bad in ({"recordings": "nowhere/*.csv"}, {"recordings": "plate", "only": "B07"}):
        write(tmp_path, {"bad": {"batch": {"fit": "fit.yaml", **bad}}})
        assert "jobs.bad" in refused(file, "--check").output
