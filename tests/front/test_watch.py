"""`channelfit watch`: what it tells of runs, who may ask, and how it begins and ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import channelfit as cf
from channelfit.front.commands import watch as command
from channelfit.front.watching.answers import Watched
from channelfit.front.watching.traces import _thinned
from channelfit.reading.errors import InputError
from channelfit.results import runs
from channelfit.results.runs import find_run, history_of
from support.json_output import hears_ctrl_c
from support.places import MODELS
from support.watched import GONE, TOLD, asked, asked_raw, made_batch, made_run, serving

integration = pytest.mark.integration
HOSTILE = "<script>alert(1)</script>\"'&$(touch x)`\u202e\u2066\x1b[31m\n$$\\frac{1}{2}$$"
ON_POSIX = pytest.mark.skipif(sys.platform == "win32", reason="in the way of POSIX")


# --- what a run folder tells ----------------------------------------------------------------------


ELSEWHERE = {"process": {"host": "elsewhere 1", "pid": 1, "started": "x"}}


@pytest.mark.parametrize(
    ("news", "state", "why"),
    [
        ({}, "running", ""),
        ({"state": "finished", "reason": "300 generations done"}, "finished", "300 gen"),
        ({"state": "interrupted", "reason": "interrupted"}, "interrupted", "interrupted"),
        ({"state": "failed", "reason": "no space"}, "failed", "no space"),
        ({"process": GONE}, "killed", "process is gone.*had not saved any"),
        (ELSEWHERE, "running", "on elsewhere,"),
        ({"state": "dancing"}, "unknown", "does not say"),
    ],
)
def test_the_state_of_a_run(news, state, why, tmp_path):
    folder = made_run(tmp_path / "run", **news)
    found = find_run(folder)
    assert found.state == state
    assert re.search(why, found.why)
    if state == "killed":
        (folder / "fit.yaml").touch()
        assert "fit.yaml holds the best" in find_run(folder).why


def test_a_run_that_was_killed_while_it_wrote_its_results_has_not_finished(tmp_path):
    (tmp_path / "state.json").write_text(json.dumps({"state": "running", "process": GONE}))
    (tmp_path / "summary.json").write_text('{"stop_reason": "generations", "cost": 3.0}')
    found = find_run(tmp_path)  # all but the state, for which there was no room
    assert (found.state, found.number("best_cost")) == ("finished", 3.0)
    (tmp_path / ".running").touch()
    assert find_run(tmp_path).state == "killed"


def test_a_run_that_ends_while_it_is_looked_at_was_not_killed(tmp_path, monkeypatch):
    folder = made_run(tmp_path / "run")

    def ends(process: object) -> bool:
        told = TOLD | {"state": "finished", "reason": "done"}
        (folder / "state.json").write_text(json.dumps(told))
        return False

    monkeypatch.setattr(runs, "still_runs", ends)
    assert find_run(folder).state == "finished"


@pytest.mark.parametrize(
    ("name", "text", "state"),
    [
        ("summary.json", '{"stop_reason": "done"}', "finished"),
        ("summary.json", '{"stop_reason": "interrupted"}', "interrupted"),
        (".running", "", "unknown"),
        ("history.csv", "generation\n", "interrupted"),
        ("state.json", "{", "unknown"),
        ("state.json", "[" * 100_000, "unknown"),
        ("state.json", '{"generation": 1' + "0" * 5000 + "}", "unknown"),
        ("state.json", "\xff\xfe", "unknown"),
    ],
)
def test_a_folder_of_an_earlier_version_or_with_damage_has_a_state(name, text, state, tmp_path):
    (tmp_path / name).write_text(text, encoding="latin-1")
    assert find_run(tmp_path).state == state


def test_values_of_another_kind_than_expected_are_left_out(tmp_path):
    rows = {"a": 7, "b": {"value": "x", "unit": 3, "lower": None}}
    strange = {"generation": "many", "best_cost": {"a": 1}, "seconds": 1e999, "seconds_left": True}
    strange |= {"evaluations": 10**400, "stop": [1, 2], "warnings": {"a": "b"}, "parameters": rows}
    strange |= {"process": ["x"], "command": "rm -rf", "started": "yesterday", "updated": 7}
    folder = made_run(tmp_path / "run", **strange, cost_unit=5, name=None)
    watched = Watched(folder)
    told = watched.run(folder)
    assert told["state"] == "running"
    assert [row["name"] for row in told["parameters"]] == ["b"]
    assert dict(told["facts"]) == {"Median cost": "25", "Failed": "25 %"}
    assert watched.queue()["rows"][0]["cost"] == ""
    json.dumps(told, allow_nan=False)


def test_long_texts_and_tables_are_cut(tmp_path):
    many = {f"p{k}": {"value": 1.0} for k in range(5000)}
    folder = made_run(tmp_path / "run", name="x" * 10**6, warnings=["w"] * 5000, parameters=many)
    found = find_run(folder)
    assert len(found.text("name")) == 2000
    assert len(found.content["warnings"]) == len(found.content["parameters"]) == 2000


@ON_POSIX
def test_only_plain_files_are_read(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(json.dumps(TOLD | {"name": "secret"}))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "state.json").symlink_to(secret)
    assert runs.read_plain(folder / "state.json", 10**6) is None
    assert find_run(folder).state == "unknown"
    os.mkfifo(folder / "history.csv")  # which nobody writes: reading would never end
    assert history_of(folder, 10) == []
    assert runs.read_plain(Path("/dev/zero"), 10**6) is None
    assert runs.read_plain(secret, 10) is None


def test_of_many_generations_the_last_and_some_others_are_shown(tmp_path):
    rows = history_of(made_run(tmp_path / "run", 10_007), 1500)
    assert 1000 < len(rows) <= 1500
    assert rows[-1] == (10_007, 1000 / 10_007, 2000 / 10_007)
    assert {later[0] - earlier[0] for earlier, later in pairwise(rows)} == {7}


def test_a_run_in_words(tmp_path):
    folder = made_run(tmp_path / "run")
    told = Watched(folder).run(folder)
    facts = dict(told["facts"])
    wanted = {"Best cost": "16 pA²", "RMS": "4 pA", "Generation": "20 of 300", "Time": "1:00"}
    wanted |= {"Time left": "1:30", "Failed": "25 %", "Ends": "after 300 generations"}
    assert {name: facts[name] for name in wanted} == wanted
    assert re.fullmatch(r"[\d-]+ [\d:]+, \d+:\d\d ago", facts["Last sign"])
    assert told["done"] == 0.4
    assert told["command"] == "channelfit optimize 'a file.yaml'"
    assert told["warnings"] == TOLD["warnings"]
    gmax, a12 = told["parameters"]
    assert (gmax["value"], gmax["range"], gmax["within"]) == ("2.5", "0 to 10", 0.25)
    assert a12["note"] == "at upper bound"


def test_the_place_in_a_logarithmic_range_is_that_of_the_search(tmp_path):
    row = {"value": 1e-3, "unit": "1/ms", "lower": 1e-6, "upper": 1e3}
    news = {"parameters": {"a": row, "b": row}, "logarithmic": ["a"]}
    a, b = Watched(tmp_path).run(made_run(tmp_path / "run", **news))["parameters"]
    assert a["within"] == pytest.approx(1 / 3)
    assert b["within"] == pytest.approx(1e-6, rel=0.01)


def test_the_rows_of_a_queue_begin_with_what_goes_on(tmp_path):
    made_run(tmp_path / "a", state="finished", started="2030-01-01T00:00:00+00:00")
    made_run(tmp_path / "b", process=GONE)
    made_run(tmp_path / "c")
    made_run(tmp_path / "d", state="finished", started="2031-01-01T00:00:00+00:00")
    (tmp_path / "no run").mkdir()
    (tmp_path / "a file").touch()
    told = Watched(tmp_path).queue()
    assert [row["name"] for row in told["rows"]] == ["c", "b", "d", "a"]
    assert told["counts"] == "1 running, 1 killed, 2 finished"
    assert [row["left"] for row in told["rows"][:2]] == ["1:30", ""]


def test_a_batch_tells_how_many_wells_are_done(tmp_path):
    made_batch(tmp_path / "plate")
    watched = Watched(tmp_path)
    (row,) = watched.queue()["rows"]
    assert row["generation"] == "120 of 384 wells"
    assert (row["order"]["generation"], row["cost"], row["left"]) == (120, "", "1:30")
    folder = watched.folder(row["id"])
    told = watched.run(folder)
    facts = dict(told["facts"])
    wanted = {"Wells": "120 of 384 wells", "Without a fit": "3", "Time left": "1:30"}
    assert {name: facts.get(name) for name in wanted} == wanted
    assert "Generation" not in facts
    assert (told["done"], told["of_wells"]) == (120 / 384, True)
    assert "page of its own" in watched.traces(folder)["trouble"]
    killed = find_run(made_batch(tmp_path / "killed", process=GONE))
    assert killed.state == "killed"
    assert "120 of 384 wells are done, and `--resume` goes on" in killed.why
    assert "fit.yaml" not in killed.why


def test_a_run_that_is_killed_later_is_seen_without_a_change_of_its_files(tmp_path, monkeypatch):
    made_run(tmp_path / "run")
    watched = Watched(tmp_path)
    assert watched.queue()["rows"][0]["state"] == "running"
    monkeypatch.setattr(runs, "still_runs", lambda process: False)
    assert watched.queue()["rows"][0]["state"] == "killed"


# --- who may ask ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def queue(tmp_path_factory):
    """A folder of runs, one of them hostile."""
    place = tmp_path_factory.mktemp("queue")
    made_run(place / "good", state="finished")
    (place / "good" / "report.html").write_text("<p>a report</p>")
    (place / "good" / "traces_2.csv").write_text("time_ms\n")
    parameters = {HOSTILE: {"value": 1.0, "unit": HOSTILE, "note": HOSTILE}}
    news = dict.fromkeys(("name", "stage", "reason", "version", "cost_unit"), HOSTILE)
    made_run(place / "hostile", **news, warnings=[HOSTILE], parameters=parameters)
    (place.parent / "secret.txt").write_text("secret")
    return place


@pytest.fixture(scope="module")
def server(queue):
    with serving(queue) as one:
        yield one


def run_address(server, name: str) -> str:
    rows = asked(server, "/~/queue").json["rows"]
    return f"/~/run/{next(row['id'] for row in rows if row['name'] == name)}/"


def test_the_pages_are_there_and_nothing_is_written(queue, server):
    before = {p: p.stat().st_mtime_ns for p in sorted(queue.rglob("*"))}
    run = run_address(server, "good")
    for path in ("/~/", "/~/queue", "/~/static/watch.js", "/~/static/watch.css"):
        assert asked(server, path).status == 200
    for path in ("", "state", "traces", "figure/cost/log", "report"):
        assert asked(server, run + path).status == 200, path
    assert asked(server, run + "report").body == b"<p>a report</p>"
    assert asked(server, run_address(server, "hostile") + "report").status == 404
    assert len(asked(server, "/~/static/bokeh.min.js").body) > 500_000
    found = asked(server, run + "traces_2.csv")
    assert found.body == b"time_ms\n"
    assert found.headers["Content-Disposition"] == 'attachment; filename="traces_2.csv"'
    for name in ("traces.csv", "traces_1.csv", "history.csv", "traces_2.csv/", "traces_%2e.csv"):
        assert asked(server, run + name).status == 404
    head = asked(server, "/~/queue", "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert {p: p.stat().st_mtime_ns for p in sorted(queue.rglob("*"))} == before


def test_nothing_is_answered_without_the_token(server, monkeypatch):
    wrong, own = "x" * len(server.token), server.token
    for path in ("/", "/queue", f"/{wrong}/", f"/{wrong}/queue", f"/{own[:-1]}/queue", "//queue",
                 f"/{own}%00/queue", f"/{wrong}/static/watch.js",
                 run_address(server, "good").replace("~", wrong) + "state"):  # fmt: skip
        assert asked(server, path).status == 404
    assert asked(server, "/%ff%fe/queue").status in (400, 404)
    compared = []

    def compare(given: bytes, wanted: bytes) -> bool:
        compared.append(wanted)
        return False

    # in constant time
    monkeypatch.setattr("channelfit.front.watching.server.hmac.compare_digest", compare)
    assert asked(server, "/~/queue").status == 404
    assert compared == [own.encode()]


def test_a_browser_that_asks_for_another_name_is_refused(server):
    """Or for two names, or for none."""
    port = server.port
    own, evil = f"Host: 127.0.0.1:{port}", "Host: evil.example"
    hosts = ["evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1", f"0.0.0.0:{port}"]
    hosts += [f"127.0.0.1.evil.example:{port}", f"127.0.0.1:{port}, evil.example", ""]
    several = [[], [own, evil], [evil, own]]
    for names in [*([f"Host: {host}"] for host in hosts), *several]:
        lines = ["GET /~/queue HTTP/1.1", *names, "Connection: close", "\r\n"]
        found = asked_raw(server, "\r\n".join(lines))
        assert re.match(r"HTTP/1.1 (400|421) ", found), names
        assert "good" not in found
    for name in ("127.0.0.1", "localhost"):
        assert asked(server, "/~/queue", Host=f"{name}:{port}").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "QUIRK"])
def test_only_reading_is_possible(method, server):
    for path in ("/~/", "/~/queue", run_address(server, "good") + "state", "/anything"):
        assert asked(server, path, method).status == 405


def test_headers_keep_a_page_to_itself(server):
    run = run_address(server, "good")
    for path in ("/~/", "/~/queue", run, run + "state", "/~/static/watch.js", "/nothing", "/~/x"):
        headers = asked(server, path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert {"Access-Control-Allow-Origin", "Server", "Set-Cookie"}.isdisjoint(headers.keys())
    assert asked(server, "/~/queue").headers["Cache-Control"] == "no-store"
    # a nonce is used once
    assert len({asked(server, "/~/").headers["Content-Security-Policy"] for _ in range(3)}) == 3
    policy = asked(server, run + "report").headers["Content-Security-Policy"]  # a stranger's page
    assert policy.startswith("sandbox allow-scripts allow-downloads; default-src 'none';")
    assert "allow-same-origin" not in policy
    assert "connect-src" not in policy  # so that default-src holds


PATHS = ["run/..%2f..%2fsecret.txt/state", "run/../../secret.txt", "run/good/state"]
PATHS += ["run/%2e%2e/report", "static/../server.py", "static/..%2fserver.py", "static/run.html"]
PATHS += ["static/server.py", "static/", "run//report"]


@pytest.mark.parametrize("path", PATHS)
def test_no_part_of_an_address_is_a_path(path, server):
    found = asked(server, f"/~/{path}")
    assert found.status == 404
    assert b"secret" not in found.body


@ON_POSIX
def test_a_report_that_leads_elsewhere_is_none(tmp_path):
    (tmp_path / "secret").write_text("secret")
    made_run(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "a" / "report.html").symlink_to(tmp_path / "secret")
    with serving(tmp_path / "runs") as server:
        assert asked(server, run_address(server, "a") + "report").status == 404


def test_hostile_texts_are_data(server):
    """In answers they are JSON, and pages hold no text of a run at all."""
    run = run_address(server, "hostile")
    for path in ("/~/queue", run + "state"):
        found = asked(server, path)
        assert found.headers["Content-Type"] == "application/json"
        assert "\u202e" not in found.body.decode()
        assert b"\\u001b" not in found.body
        assert "<script>alert(1)" in str(found.json)
    for path in ("/~/", run, run + "figure/cost/log", run + "figure/cost/linear"):
        assert b"alert(" not in asked(server, path).body


def test_a_large_request_is_refused(server):
    long = f"GET /~/queue HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nX: {'x' * 10**6}\r\n\r\n"
    try:
        found = asked_raw(server, long)
    except ConnectionError:
        found = ""
    assert "good" not in found
    assert asked(server, "/~/queue").status == 200


def test_the_address_for_the_browser_leads_to_the_page_once(tmp_path):
    with serving(tmp_path) as server, serving(tmp_path) as other:
        path = server.address_once.partition(f":{server.port}")[2]
        assert len(server.token) >= 32
        assert len({server.token, other.token, server.pass_once, other.pass_once}) == 4
        assert server.token not in server.address_once
        assert asked(server, "/open/x").status == 404
        first, second = asked(server, path), asked(server, path)
        assert (first.status, first.headers["Location"]) == (302, f"/{server.token}/")
        assert second.status == 404
        assert asked(server, "/open/").status == 404


def test_a_folder_that_vanishes_is_told(tmp_path):
    place = tmp_path / "runs"
    folder = made_run(place / "a")
    with serving(place) as server:
        run = run_address(server, "a")
        shutil.rmtree(folder)
        for what in ("state", "traces"):
            assert asked(server, run + what).json["trouble"] == "this folder is no longer there"
        assert asked(server, "/~/queue").json["rows"] == []
        shutil.rmtree(place)
        assert asked(server, "/~/queue").json["trouble"] == "this folder is no longer there"
        made_run(place / "a")
        assert len(asked(server, "/~/queue").json["rows"]) == 1
        assert asked(server, run + "state").json["state"] == "running"


# --- traces ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """The folder of a small finished fit."""
    folder, stop = tmp_path_factory.mktemp("fitted") / "run", {"generations": 3}
    how = {"optimizer": {"name": "genetic", "population": 8}, "stop": stop, "backend": "cpu"}
    cf.fit(MODELS / "model_b.yaml", **how, progress=False).save(folder)
    return folder


@integration
def test_the_traces_are_those_of_the_fit(fitted):
    told = Watched(fitted).traces(fitted)["experiments"]
    fit = cf.load(fitted)
    assert [one["title"] for one in told] == [e.title for e in fit._plan.problem.experiments]
    for one, trace, experiment in zip(told, fit.traces, fit._plan.problem.experiments, strict=True):
        assert len(one["time"]) == len(one["fit"]) == len(one["data"])
        sweeps = "".join(" " if x is None else "x" for x in one["time"]).split()
        assert len(sweeps) == len(trace)
        first = one["time"].index(None)
        at = np.searchsorted(experiment.protocol.times_ms, one["time"][:first])
        np.testing.assert_allclose(one["fit"][:first], trace[0][at], atol=1e-9)
        data = experiment.recording.current_pA
        np.testing.assert_allclose(one["data"][:first], data[0][at], atol=1e-9)


def test_extremes_survive_thinning():
    time = np.arange(100_000.0)
    data, fit = np.sin(time / 5000), np.cos(time / 5000)
    data[31_337], fit[77_777], data[50_000:60_000] = 9.0, -9.0, np.nan
    kept = _thinned(np.stack([time, data, fit]), 1000)
    assert kept.shape[1] <= 1300
    assert 9.0 in kept[1]
    assert -9.0 in kept[2]
    assert np.all(np.diff(kept[0]) > 0)
    np.testing.assert_array_equal(np.isnan(kept[1]), (kept[0] >= 50_000) & (kept[0] < 60_000))


def test_a_fit_without_traces_is_told(tmp_path):
    folder = made_run(tmp_path / "run")
    watched = Watched(folder)
    assert watched.traces(folder) == {"trouble": "No fit has been saved yet."}
    (folder / "fit.yaml").write_text("parameters: [\n")
    assert "They cannot be computed" in watched.traces(folder)["trouble"]
    assert watched.figure(folder, "data/0") is None


def test_traces_that_took_too_long_are_tried_again(tmp_path, monkeypatch):
    folder = made_run(tmp_path / "run")
    (folder / "fit.yaml").write_text("it is not read here\n")
    tries = []

    def slow_twice(file):
        tries.append(file)
        if len(tries) < 3:
            raise InputError("took more than 300 s", file)
        return [{"title": "a trace"}]

    monkeypatch.setattr("channelfit.front.watching.answers.traces_so_far", slow_twice)
    monkeypatch.setattr("channelfit.front.watching.answers._PAUSE", 0.0)
    watched = Watched(folder)
    assert "took more" in watched.traces(folder)["trouble"]
    assert "took more" in watched.traces(folder)["trouble"]
    for _ in range(2):  # and are not computed again once they are there
        assert watched.traces(folder) == {"experiments": [{"title": "a trace"}]}
    assert len(tries) == 3


# --- the command ----------------------------------------------------------------------------------


def begun(*words: object, cwd: Path | None = None) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    how = {} if sys.platform == "win32" else {"preexec_fn": hears_ctrl_c}
    return subprocess.Popen(
        [sys.executable, "-m", "channelfit", "watch", "--no-browser", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        **how,
    )


@integration
@ON_POSIX
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_server_in_order(number, code, tmp_path):
    made_run(tmp_path / "run")
    process = begun(tmp_path)
    address = process.stdout.readline()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/\n", address)
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (code, ""), err
    watching = f"Watching the runs in {tmp_path}; Ctrl-C ends it."
    assert err.splitlines() == [watching, "Ended." if code == 0 else "Interrupted."]


@integration
@ON_POSIX
def test_ctrl_c_while_traces_are_computed_ends_the_server_in_order(fitted, tmp_path, monkeypatch):
    monkeypatch.setenv("CHANNELFIT_CACHE", str(tmp_path))  # so that all is compiled, which lasts
    process = begun(fitted)
    address = process.stdout.readline().strip()
    port, token = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]+)/", address).groups()
    with socket.create_connection(("127.0.0.1", int(port)), timeout=120) as connection:

        def ask(path: str) -> None:
            text = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
            connection.sendall(text.encode())

        ask(f"/{token}/")
        page = connection.recv(65536).decode()
        ask(re.search(r'data-at="([^"]+)"', page)[1] + "traces")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    assert (process.returncode, "Traceback" in err) == (0, False), err


@integration
def test_a_port_that_is_taken_is_told(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = begun(tmp_path, "--port", port)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (2, "")
    assert f"Error: --port: port {port} is taken by another program; give another one" in err
    assert "Traceback" not in err
    with serving(tmp_path, port) as server:  # which can be chosen
        assert f":{port}/" in server.address


@pytest.mark.parametrize("what", ["nothing", "a file"])
def test_what_is_no_folder_is_refused(what, tmp_path):
    (tmp_path / "a file").touch()
    with pytest.raises(InputError, match=r"nothing: no such folder|a file: not a folder"):
        Watched(tmp_path / what)


def test_the_browser_is_given_an_address_that_works_once(tmp_path, monkeypatch):
    """What a browser is called with, every user of a computer can see."""
    called: list[str] = []
    monkeypatch.setattr(command.webbrowser, "open", called.append)
    monkeypatch.setattr(command, "_has_desktop", lambda: True)
    monkeypatch.setattr(command.interrupts, "have_come", lambda: bool(called))
    asyncio.run(command._served(Watched(tmp_path), 0, no_browser=False))
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/open/[\w-]{32}", called[0])
