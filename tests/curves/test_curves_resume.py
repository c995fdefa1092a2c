"""`channelfit curves` that was cut off goes on to the same table, bit for bit, or says why not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from channelfit.curves import cpu, curve_tasks
from channelfit.curves.batch import CurveSettings
from channelfit.curves.curve import load_curve
from channelfit.curves.curve_tasks import CurveFitStore, CurveTasks
from channelfit.curves.fitting import DataSets
from channelfit.front.main import main
from channelfit.reading.errors import InputError
from channelfit.results import identity
from channelfit.results.runs import KILLED, find_run
from channelfit.tasks.result_store import Arrays, Key
from support import json_output

pytestmark = pytest.mark.integration


#: Pieces of so many data sets, so that a few data sets are many pieces.
SMALL = {"least-squares": (16, 1_000_000), "swarm": (16, 1_000_000)}
#: The same in a process of its own, each piece of which takes a while.
PROGRAM = """
import sys, time
from channelfit.front import interrupts; interrupts.begin()
import channelfit as cf
from channelfit.curves import cpu, curve_tasks
curve_tasks._TASK_ON_CPU = dict.fromkeys(curve_tasks._TASK_ON_CPU, (16, 1_000_000))
put = curve_tasks.CurveFitStore.put
def slow(self, key, arrays):
    put(self, key, arrays); time.sleep(0.1)
curve_tasks.CurveFitStore.put = slow
from channelfit.__main__ import program; program()
"""


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["curves", *map(str, words)])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve_tasks, "_TASK_ON_CPU", SMALL)


def array(folder: Path, n: int = 100) -> Path:
    """Peaks of one input."""
    draw, x = np.random.default_rng(0), np.arange(20.0)
    center, width = draw.uniform(7, 13, (n, 1)), draw.uniform(2, 4, (n, 1))
    z = 50 * np.exp(-(((x - center) / width) ** 2) / 2) + draw.normal(0, 1, (n, 20))
    z[7] = 3.0  # flat: it fails
    np.save(folder / "peaks.npy", z)
    return folder / "peaks.npy"


def long_table(folder: Path, n: int = 60) -> Path:
    """The same with inputs of their own, so that there are groups, whose rows come out of order."""
    peaks = np.load(array(folder, n))
    lines = ["set,x,z"]
    for k, z in enumerate(peaks):
        lines += [f"cell {k},{x + k % 3},{value!r}" for x, value in enumerate(z.tolist())]
    (folder / "long.csv").write_text("\n".join(lines) + "\n")
    return folder / "long.csv"


def cut_off(monkeypatch: pytest.MonkeyPatch, after: int, *words: object) -> None:
    """A run whose process ends after so many pieces, and can no longer say so."""
    put, count = CurveFitStore.put, []

    def counted(self: CurveFitStore, key: Key, arrays: Arrays) -> None:
        put(self, key, arrays)
        count.append(key)
        if len(count) == after:
            os._exit(9)

    child = os.fork()
    if child == 0:
        cpu._team.cache_clear()  # threads are not forked
        monkeypatch.setattr(CurveFitStore, "put", counted)
        run(*words)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def results(prefix: Path) -> dict[str, bytes]:
    """The bytes of a table and of covariances."""
    files = {name: prefix.with_name(prefix.name + name) for name in (".csv", "-covariance.npy")}
    return {name: file.read_bytes() for name, file in files.items() if file.exists()}


posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")


def test_a_record_that_was_forged_with_its_checksums_is_refused(tmp_path: Path) -> None:
    """Values and costs that do not go together, shapes of others, arrays that are not there."""
    z = np.load(array(tmp_path, 9))
    x = np.arange(20.0)
    for likelihood, data in (("gaussian", z), ("poisson", np.round(np.abs(z)) + 20)):
        curve = replace(load_curve("gaussian"), likelihood=likelihood)
        work = CurveTasks(curve, [DataSets((("x",),), {"x": x}, data, (20,))], CurveSettings("cpu"))
        (key,) = work.keys
        good = work.compute(key)
        work.check_stored(key, good)
        for name, change in {
            "values": lambda a: a * 1.001,
            "cost": lambda a: a * 0.99,
            "counted": lambda a: a - 1,
            "errors": lambda a: a[:, :-1],
            "flags": lambda a: a.astype(float),
            "steps": lambda a: a[1:],
        }.items():
            with pytest.raises(InputError, match="is damaged, or was changed"):
                work.check_stored(key, {**good, name: change(good[name])})
        for name in good:
            with pytest.raises(InputError, match="is damaged, or was changed"):
                work.check_stored(key, {k: a for k, a in good.items() if k != name})


@posix
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (array, ("--covariance", "--fix", "offset=0")),
        (array, ("--method", "swarm", "--particles", "16", "--iterations", "6", "--seed", "5")),
        (long_table, ("--covariance",)),
    ],
)
def test_it_goes_on_to_the_same_table(
    make, words, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it was cut off, also twice."""
    common = ("gaussian", make(tmp_path), "--backend", "cpu", *words, "--quiet")
    whole = run(*common, "--out", tmp_path / "whole")
    assert whole.exit_code == 0, whole.output
    truth = results(tmp_path / "whole")
    assert set(truth) == {".csv", *(["-covariance.npy"] if "--covariance" in words else [])}
    for after in (1, 3):
        prefix = tmp_path / f"cut{after}"
        cut_off(monkeypatch, after, *common, "--out", prefix)
        folder = tmp_path / f"cut{after}-unfinished"
        found = find_run(folder)
        assert (found.state, found.content["name"]) == (KILLED, "gaussian")
        assert results(prefix) == {}
        cut_off(monkeypatch, 1, "--resume", prefix)
        again = run("--resume", prefix, "--json", "--quiet")
        assert again.exit_code == 0, again.output
        lines = json_output.lines(again.stdout)
        last = [told for told in lines if told.get("unit") == "data sets"][-1]
        sizes = [16] * 6 if make is array else [16, 4] * 3
        assert last["kept"] == sum(sizes[: after + 1])
        assert results(prefix) == truth
        assert prefix.with_name(prefix.name + ".png").exists()
        assert not folder.exists()
    finished = run("--resume", prefix, "--json")
    assert (finished.exit_code, finished.stderr.count("nothing to go on with")) == (0, 1)
    assert json_output.lines(finished.stdout)[-1]["files"] == [f"{prefix}.csv"]


@posix
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_costs_one_piece(number: signal.Signals, tmp_path: Path, small: None) -> None:
    """The run exists from its first second, and says that it is unfinished."""
    words = ["gaussian", array(tmp_path, 400), "--backend", "cpu", "--out", tmp_path / "cut"]
    assert run(*words[:-1], tmp_path / "whole").exit_code == 0
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "curves", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    folder, kept = tmp_path / "cut-unfinished", tmp_path / "cut-unfinished" / "pieces.bin"
    while process.poll() is None and not (kept.exists() and kept.stat().st_size > 10_000):
        time.sleep(0.02)
    state = json.loads((folder / "state.json").read_text())
    assert state["state"] == "running"
    process.send_signal(number)
    _, told = process.communicate()
    assert process.returncode == (-9 if number == signal.SIGKILL else 143)
    assert not (tmp_path / "cut.csv").exists()
    if number != signal.SIGKILL:
        assert f"channelfit curves --resume {folder} goes on with this run" in told
        assert json.loads((folder / "state.json").read_text())["state"] == "interrupted"
        assert {p.name for p in folder.iterdir()} == {"pieces.bin", "resume.json", "state.json"}
    refused = run(*words)
    assert refused.exit_code == 2
    assert "--resume" in refused.stderr
    assert run("--resume", folder).exit_code == 0  # the folder does as well as the prefix
    assert results(tmp_path / "cut") == results(tmp_path / "whole")


def test_what_differs_is_refused(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, file = array(tmp_path), tmp_path / "peak.yaml"
    formula = (
        "name: peak\ninputs: x\nparameters:\n  height: {}\n  at: {range: [x_min, x_max]}\n"
        "  width: {range: [x_step, x_span]}\ncurve: height*exp(-((x - at)/width)**2/2)\n"
    )
    file.write_text(formula)
    common = (file, data, "--backend", "cpu", "--out", tmp_path / "cut")
    cut_off(monkeypatch, 2, *common)

    def refused(*told: str) -> None:
        result = run("--resume", tmp_path / "cut")
        assert result.exit_code == 2
        assert result.stderr.count("Error: ") == 1
        for words in told:
            assert words in result.stderr
        assert not (tmp_path / "cut.csv").exists()

    z = np.load(data)
    spoiled = z.copy()
    spoiled[20, 3] += 1e-9  # of the second piece: nothing else of the file differs
    np.save(data, spoiled)
    refused("data sets 17 to 32 are others", str(data))
    np.save(data, z[:-1])
    refused("data was 100 sets of (20,)", "99 sets")
    np.save(data, z)
    file.write_text(formula.replace("x_span]", "2*x_span]"))
    refused("parameter width was from x_step to x_span", "2*x_span")
    file.write_text(formula)
    with monkeypatch.context() as patched:
        patched.setattr(identity, "processor", lambda: "another one")
        refused("processor was", "and is another one")
    with monkeypatch.context() as patched:
        patched.setattr(curve_tasks, "versions", lambda on_gpu: {"numpy": "0.0"})
        refused("version of numpy was", "and is 0.0")
    beside = run("--resume", tmp_path / "cut", "--method", "swarm")
    assert beside.exit_code == 2
    assert "--method" in beside.stderr
    assert run("--resume", tmp_path / "cut").exit_code == 0
