"""A fit that was cut off goes on to the result that it would have had, to the bit.

The truth is the same fit without an interruption: values, cost, counts, and all of the history but
the times.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import channelfit as cf
from channelfit.front import kinds
from channelfit.front import studies as studies_of_fits
from channelfit.front.commands import studies
from channelfit.front.main import main
from channelfit.reading.errors import InputError
from channelfit.results import checkpoint, identity
from channelfit.results.run_state import STATE, this_process
from channelfit.search import journal as journals
from channelfit.search.choose import OPTIMIZERS
from channelfit.search.journal import Journal, Journaled
from channelfit.search.loop import optimize as search
from channelfit.search.overrides import Changes
from channelfit.tasks.executor import SerialExecutor
from support.places import ROOT

MODEL, STEPS = ROOT / "models" / "model_b.yaml", ROOT / "protocols" / "activation.yaml"
#: Of each optimizer, what makes a fit of model B short.
SHORT: dict[str, dict[str, Any]] = {
    "hybrid": {"name": "hybrid", "scan": 200, "starts": 8},
    "genetic": {"name": "genetic", "population": 40, "generations": 12},
    "swarm": {"name": "swarm", "population": 40, "generations": 12},
    "ring": {"name": "ring", "population": 40, "generations": 12},
    "groups": {"name": "groups", "population": 64, "generations": 12},
    "differential": {"name": "differential", "population": 40, "generations": 12},
    "cma": {"name": "cma", "population": 16, "generations": 12},
}


@pytest.fixture(scope="module")
def recorded() -> np.ndarray:
    """Currents of model B with noise, so that no fit is perfect."""
    clean = cf.simulate(MODEL, STEPS).current
    noise = np.random.default_rng(5).normal(0, 5, clean.shape)
    return np.asarray(clean) + noise


def fitted(recorded: np.ndarray, optimizer: str, folder: Path, **more: Any) -> Any:
    return cf.fit(
        MODEL,
        cf.Experiment(STEPS, recorded),
        seed=4,
        optimizer=SHORT[optimizer],
        folder=folder,
        progress=False,
        **{"backend": "cpu", **more},
    )


def outcome(fit: Any) -> dict[str, Any]:
    """Return all of a result that must be the same, which is all but the times."""
    result = fit._result
    history = [tuple(row)[:2] + tuple(row)[3:] for row in result.history.tolist()]
    return {
        "values": result.values.tobytes(),
        "cost": result.cost,
        "evaluations": result.evaluations,
        "stopped": result.stop_reason,
        "failures": dict(result.failures),
        "agreement": result.agreement,
        "history": repr(history),
    }


class Cut(Exception):
    """What ends a search at a moment of the test's choice."""


def cut_off(
    monkeypatch: pytest.MonkeyPatch,
    recorded: np.ndarray,
    optimizer: str,
    folder: Path,
    after: int,
    **more: Any,
) -> None:
    """A fit that ends after so many answers of its scorer, as if its process had been killed."""
    keep, answers = Journaled._keep, []

    def counted(self: Journaled, *given: Any) -> None:
        keep(self, *given)
        self._journal.write()
        answers.append(1)
        if len(answers) == after:
            copied = folder.with_name(folder.name + " copy")
            shutil.copytree(folder, copied)
            raise Cut

    with monkeypatch.context() as patched:
        patched.setattr(Journaled, "_keep", counted)
        with pytest.raises(Cut):
            fitted(recorded, optimizer, folder, **more)
    # what the process did after the cut is undone: a killed one would not have done it
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_name(folder.name + " copy").rename(folder)
    state = json.loads((folder / STATE).read_text())
    state["process"]["started"] = "an earlier process"
    (folder / STATE).write_text(json.dumps(state))
    assert (folder / ".running").exists()


@pytest.mark.integration
@pytest.mark.parametrize("optimizer", SHORT)
def test_every_optimizer_goes_on_to_the_same_result(optimizer, recorded, tmp_path, monkeypatch):
    """Once cut off, and of the last cut once more interrupted, which leaves the best so far."""
    if optimizer == "cma":
        pytest.importorskip("cma")
    # the particles of the asynchronous ring wait for nobody, so that no run of it can be repeated
    assert set(SHORT) | {"asynchronous_ring"} == set(OPTIMIZERS)
    whole = outcome(fitted(recorded, optimizer, tmp_path / "whole"))
    for after in (1, 11):
        folder = tmp_path / str(after)
        cut_off(monkeypatch, recorded, optimizer, folder, after)
        asked, keep = [], Journaled._keep

        def counted(self: Journaled, *given: Any) -> None:
            asked.append(1)  # noqa: B023
            keep(self, *given)  # noqa: B023
            if after == 11 and len(asked) == 1:  # noqa: B023
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Journaled, "_keep", counted)
            again = fitted(recorded, optimizer, folder, resume=True)
        if again.summary["stop_reason"] == "interrupted":
            assert after == 11
            assert json.loads((folder / "summary.json").read_text())["stop_reason"] == "interrupted"
            again = fitted(recorded, optimizer, folder, resume=True)
        assert outcome(again) == whole
        left = {checkpoint.JOURNAL, checkpoint.RESUME, ".running"}
        assert not left & {p.name for p in folder.iterdir()}
        saved = [(place / "fit.yaml").read_text() for place in (folder, tmp_path / "whole")]
        assert saved[0] == saved[1]


@pytest.mark.integration
@pytest.mark.parametrize("optimizer", ["hybrid", "genetic"])
def test_a_search_on_a_device_goes_on_to_the_same_result(device, optimizer, tmp_path, monkeypatch):
    """Where candidates are bred on the device, answers come back while later ones are computed."""
    file = tmp_path / "cell.yaml"
    file.write_text(
        f"model: {MODEL}\nfit:\n  protocols: [{STEPS}]\n  surrogate: {{noise: 5, seed: 1}}\n"
    )
    change = {"optimizer": SHORT[optimizer], "seed": 4}
    plan = kinds.load_plan(file, Changes(section=change), "cpu")
    scorer = kinds.make_scorer(plan, "cuda")

    def found(journal: Journal) -> dict[str, Any]:
        objective, kept = plan.objective(scorer), Journaled(scorer, journal)
        objective.scorer = kept
        try:
            result = search(plan.make_optimizer(scorer.xp), objective, plan.stop_rules)
            kept.settle()
        finally:
            journal.close(keep=True)
        return outcome(SimpleNamespace(_result=result))

    whole = found(Journal(tmp_path / "whole"))
    assert (tmp_path / "whole").stat().st_size > 1000
    for after in (1, 5):
        keep, answers = Journal.add, []

        def counted(self: Journal, *given: Any) -> None:
            keep(self, *given)  # noqa: B023
            answers.append(1)  # noqa: B023
            if len(answers) == after:  # noqa: B023
                raise Cut

        with monkeypatch.context() as patched:
            patched.setattr(Journal, "add", counted)
            with pytest.raises(Cut):
                found(Journal(tmp_path / str(after)))
        journal = Journal(tmp_path / str(after))
        assert found(journal) == whole
        assert journal.replayed == after


@pytest.mark.integration
def test_a_full_disk_ends_the_journal_and_not_the_fit(recorded, tmp_path, monkeypatch):
    whole = outcome(fitted(recorded, "genetic", tmp_path / "whole"))
    writes, sync = [], os.fsync

    def full(number: int) -> None:
        writes.append(1)
        if len(writes) > 2:
            raise OSError(28, "No space left on device")
        sync(number)

    monkeypatch.setattr(journals, "_WRITE_EVERY", 0.0)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(cf.InputWarning, match=r"journal\.bin: cannot be written: No space left"):
        cut_off(monkeypatch, recorded, "genetic", tmp_path / "run", 7)
    monkeypatch.setattr(os, "fsync", sync)
    assert outcome(fitted(recorded, "genetic", tmp_path / "run", resume=True)) == whole


def written(path: Path, answers: list[list[np.ndarray]]) -> None:
    journal = Journal(path)
    for k, found in enumerate(answers):
        journal.add(k % 3, k, found)
    journal.close(keep=True)


def read(path: Path) -> list[list[np.ndarray]]:
    journal, found = Journal(path), list[list[np.ndarray]]()
    while (one := journal.next(len(found) % 3, len(found))) is not None:
        found.append(one)
    journal.close(keep=True)
    return found


def same(a: list[list[np.ndarray]], b: list[list[np.ndarray]]) -> bool:
    flat = [[(x.dtype, x.shape, x.tobytes()) for x in row] for row in a]
    return flat == [[(x.dtype, x.shape, x.tobytes()) for x in row] for row in b]


shapes = arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
numbers = st.lists(
    st.lists(
        st.one_of(
            arrays.arrays(np.float64, shapes), arrays.arrays(np.float32, shapes),
            arrays.arrays(np.int8, shapes),
        ),
        min_size=1, max_size=4,
    ),
    max_size=5,
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(numbers, st.integers(0, 2000), st.binary(max_size=6))
def test_whatever_is_cut_off_leaves_the_answers_before_it(tmp_path_factory, answers, cut, rest):
    path = tmp_path_factory.mktemp("journal") / "journal.bin"
    written(path, answers)
    assert same(read(path), answers)
    whole = path.read_bytes()
    path.write_bytes(whole[: max(len(journals._BEGINS), len(whole) - cut)] + rest)
    found = read(path)
    assert len(found) <= len(answers)
    assert same(found, answers[: len(found)])
    # and it can be gone on with
    journal = Journal(path)
    while journal.next(journal.replayed % 3, journal.replayed) is not None:
        pass
    journal.add(0, 7, [np.arange(3.0)])
    journal.close(keep=True)
    journal = Journal(path)
    for k in range(len(found)):
        assert journal.next(k % 3, k) is not None
    last = journal.next(0, 7)
    assert last is not None
    assert last[0].tolist() == [0, 1, 2]


def test_what_is_no_journal_of_this_search_is_refused_and_left_alone(tmp_path: Path) -> None:
    """Another file, answers to other questions, a turned bit, and one that another process has."""
    path, answers = tmp_path / "j", [[np.full(4, float(k))] for k in range(6)]
    path.write_bytes(b"something else, of somebody")
    with pytest.raises(InputError, match="no journal of a fit of this version"):
        Journal(path)
    assert path.read_bytes() == b"something else, of somebody"
    path.unlink()
    written(path, answers)
    journal = Journal(path)
    with pytest.raises(InputError, match="another process is using it"):
        Journal(path)
    with pytest.raises(InputError, match="was to another question"):
        journal.next(0, 99)
    journal.close(keep=True)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    found = read(path)
    assert 0 < len(found) < 6
    assert same(found, answers[: len(found)])


def test_the_time_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(t=100.0)
    monkeypatch.setattr(journals.time, "perf_counter", lambda: now.t)
    journal = Journal(tmp_path / "j")
    now.t = 107.0
    journal.add(0, 0, [np.zeros(1)])
    journal.close(keep=True)
    now.t = 900.0
    journal = Journal(tmp_path / "j")
    assert journal.clock() == 0
    journal.next(0, 0)
    assert journal.clock() == 7
    assert journal.next(0, 1) is None
    now.t = 902.5
    assert journal.clock() == 9.5


@pytest.fixture
def cut_run(recorded: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cut_off(monkeypatch, recorded, "genetic", tmp_path / "run", 3)
    return tmp_path / "run"


@pytest.mark.usefixtures("undrawn")
def test_what_has_changed_is_refused(cut_run, recorded, monkeypatch):
    """Data, the search, the machine, a version, a damaged file; and a run that still goes on."""

    def refused(told: str, data: np.ndarray = recorded, optimizer: str = "genetic") -> None:
        with pytest.raises(InputError, match=told):
            fitted(data, optimizer, cut_run, resume=True)

    before = {p.name: p.read_bytes() for p in cut_run.iterdir() if p.name != STATE}
    other = recorded.copy()
    other[0, 3] += 1e-9
    refused("recording of experiment 1 was [0-9a-f]+ and is", other)
    after = {p.name: p.read_bytes() for p in cut_run.iterdir() if p.name != STATE}
    assert {**after, ".running": b""} == before
    refused(r"optimizer was genetic and is swarm", optimizer="swarm")
    now = {**identity.software(False), "version of numpy": "99", "channelfit's own code": "other"}
    for name, changed, told in (
        ("processor", lambda: "abacus", "processor was .* and is abacus"),
        ("software", lambda on_gpu: now, "numpy was .* and is 99; .* code was .* and is other"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(identity, name, changed)
            refused(told)
    done = CliRunner().invoke(main, ["optimize", "--resume", str(cut_run)])
    assert (done.exit_code, "resume=True" in done.output) == (2, True)
    content = json.loads((cut_run / checkpoint.RESUME).read_text())
    for text in ("", "[]", "{}", '{"identity": 3}', "\0"):
        (cut_run / checkpoint.RESUME).write_text(text)
        refused(r"resume\.json")
        assert (cut_run / checkpoint.JOURNAL).exists()
    for known in ({"seed": -4}, {"backend": "abacus"}, {"model": "--help"}, {"chunk": []}):
        hostile = content | {"arguments": {"model": "gone.yaml", **known}}
        (cut_run / checkpoint.RESUME).write_text(json.dumps(hostile))
        done = CliRunner().invoke(main, ["optimize", "--resume", str(cut_run)])
        assert done.exit_code == 2
        assert "Traceback" not in done.output
        if "seed" in known:
            assert "resume.json: is damaged: Invalid value for '--seed'" in done.output
    (cut_run / checkpoint.RESUME).write_text(json.dumps(content))
    fitted(recorded, "genetic", cut_run, resume=True)
    refused("this run has finished")


def test_a_run_that_still_goes_on_is_refused(cut_run: Path, recorded: np.ndarray) -> None:
    state = json.loads((cut_run / STATE).read_text())
    state["process"] = this_process()
    (cut_run / STATE).write_text(json.dumps(state))
    with pytest.raises(InputError, match=f"still goes on, as process {os.getpid()}"):
        fitted(recorded, "genetic", cut_run, resume=True)
    state["process"]["host"] = "elsewhere"
    (cut_run / STATE).write_text(json.dumps(state))
    with pytest.raises(InputError, match="begun on .elsewhere.*remove the file .running"):
        fitted(recorded, "genetic", cut_run, resume=True)


@pytest.mark.usefixtures("undrawn")
def test_another_cell_or_temperature_is_refused(recorded, tmp_path, monkeypatch):
    """Candidates that are asked for are then the same, and their costs others."""
    document = yaml.safe_load(MODEL.read_text())
    document.pop("fit")
    document["parameters"]["gmax"]["per"] = "cell"
    document |= {"temperature": "20 degC"}
    first = next(iter(document["rates"]))
    document["rates"][first] = f"({document['rates'][first]})*2**((celsius - 20)/10)"
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(document))

    def fit(cell: list[str], temperature: list[float], **more: Any) -> Any:
        rows = zip([recorded, 1.1 * recorded], cell, temperature, strict=True)
        given = [cf.Experiment(STEPS, x, cell=c, temperature=t) for x, c, t in rows]
        search = {"seed": 4, "optimizer": SHORT["genetic"], "backend": "cpu", "progress": False}
        return cf.fit(tmp_path / "model.yaml", given, folder=tmp_path / "run", **search, **more)

    usual: Any = {"cell": ["one", "two"], "temperature": [20, 30]}
    with monkeypatch.context() as patched:
        patched.setattr(Journaled, "settle", lambda _: (_ for _ in ()).throw(Cut))
        with pytest.raises(Cut):
            fit(**usual)
    for now, told in (
        ({"temperature": [20, 35]}, r"experiment 2, degC, was 30.* 35"),
        ({"cell": ["two", "one"]}, "experiment 1 was one and is two"),
    ):
        with pytest.raises(InputError, match=told):
            fit(**usual | now, resume=True)


def fit_file(folder: Path, population: int = 300, generations: int = 300) -> Path:
    """Of model B with noise, by default a fit of some seconds."""
    file = folder / "cell.yaml"
    file.write_text(
        f"model: {MODEL}\n"
        "fit:\n"
        f"  protocols: [{STEPS}]\n"
        "  surrogate: {noise: 5, seed: 1}\n"
        f"  optimizer: {{name: genetic, population: {population}}}\n"
        f"  stop: {{generations: {generations}}}\n"
    )
    return file


def results(folder: Path) -> tuple[str, list[list[str]]]:
    rows = [line.split(",") for line in (folder / "history.csv").read_text().splitlines()]
    return (folder / "fit.yaml").read_text(), [row[:2] + row[3:] for row in rows]


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_command_goes_on_and_tells_as_it_is_asked(tmp_path, monkeypatch):
    """Its own arguments decide what is done, those beside --resume how it is told."""
    file, answers, keep = fit_file(tmp_path, 40, 12), [], Journaled._keep
    words = ["optimize", str(file), "--seed", "7", "--backend", "cpu", "--out"]
    assert CliRunner().invoke(main, [*words, str(tmp_path / "whole")]).exit_code == 0

    def counted(self: Journaled, *given: Any) -> None:
        keep(self, *given)
        answers.append(1)
        if len(answers) == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Journaled, "_keep", counted)
        assert CliRunner().invoke(main, [*words, str(tmp_path / "run")]).exit_code == 130
    again = CliRunner().invoke(main, ["optimize", "--resume", str(tmp_path / "run"), "--json"])
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout.splitlines()[-1])["state"] == "finished"
    assert results(tmp_path / "run") == results(tmp_path / "whole")


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_command_goes_on(tmp_path: Path) -> None:
    def command(*words: str, cwd: Path = tmp_path) -> subprocess.Popen[str]:
        program = [sys.executable, "-m", "channelfit", "optimize", *words]
        shell = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(program, cwd=cwd, env=shell, stderr=subprocess.PIPE, text=True)

    words = (fit_file(tmp_path, generations=1000).name, "--seed", "7", "--backend", "cpu")
    words += ("--set", "fit.optimizer.crossover_rate=0.3")
    whole = command(*words, "--out", "whole")
    assert whole.wait() == 0, whole.communicate()[1]
    run = command(*words, "--out", "run")
    journal = tmp_path / "run" / checkpoint.JOURNAL
    while run.poll() is None and not (journal.exists() and journal.stat().st_size > 5_000):
        time.sleep(0.01)
    run.kill()
    run.communicate()
    if run.returncode == 0:
        pytest.skip("this machine had finished before the signal came")
    again = command("--resume", str(tmp_path / "run"), cwd=ROOT)
    said = again.communicate()[1]
    assert again.returncode == 0, said
    assert results(tmp_path / "run") == results(tmp_path / "whole")


def test_what_cannot_be_resumed_is_told(tmp_path: Path) -> None:
    empty, out = str(tmp_path), tmp_path / "out"
    study = ["uncertainty", str(fit_file(tmp_path)), "--backend", "cpu", "--out", str(out)]
    beside = "cannot stand beside --resume"
    for words, told in (
        (["optimize", "--resume", empty, "model.yaml"], beside),
        (["optimize", "--resume", empty, "--seed", "3"], beside),
        (["optimize", "--resume", empty, "--set", "a=1"], beside),
        (["optimize", "--resume", empty], "holds nothing to go on with"),
        (["optimize", "--resume", str(out)], "is no folder of a run"),
        (["optimize"], "Missing argument"),
        ([*study, "--profiles", "nobody"], "no free parameter"),
        ([*study, "--resume"], "holds nothing to go on with"),
    ):
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 2
        assert told in done.output, done.output
        assert not out.exists()


@pytest.mark.integration
@pytest.mark.parametrize("wanted", [["--profiles", "gmax"], ["--posterior", "12"]])
def test_a_study_that_was_cut_off_goes_on(wanted, tmp_path, monkeypatch):
    if "--posterior" in wanted:
        pytest.importorskip("emcee")
        pytest.importorskip("corner")
    file = fit_file(tmp_path)
    words = ["uncertainty", str(file), "--backend", "cpu", "--seed", "3", *wanted]

    def run(*more: str) -> Any:
        return CliRunner().invoke(main, [*words, *more])

    whole = run("--out", str(tmp_path / "whole"))
    assert whole.exit_code == 0, whole.output
    keep, answers = Journaled._keep, []

    def counted(self: Journaled, *given: Any) -> None:
        keep(self, *given)
        answers.append(1)
        if len(answers) == 20:
            raise KeyboardInterrupt

    out = ["--out", str(tmp_path / "cut")]
    with monkeypatch.context() as patched:
        patched.setattr(Journaled, "_keep", counted)
        assert run(*out).exit_code == 130
    left = sorted(p.name for p in (tmp_path / "cut").iterdir())
    assert left == [checkpoint.STUDY + checkpoint.JOURNAL, checkpoint.STUDY + checkpoint.RESUME]
    refused = run(*out)
    assert refused.exit_code == 2
    assert "--resume goes on with it" in refused.output
    other = run(*out, "--resume", "--families", "4")
    assert other.exit_code == 2
    assert "requested families was 0 and is 4" in other.output
    done = run(*out, "--resume")
    assert done.exit_code == 0, done.output
    files = [p.name for p in (tmp_path / "whole").iterdir()]
    assert sorted(files) == sorted(p.name for p in (tmp_path / "cut").iterdir())
    for name in files:
        if not name.endswith(".png"):
            assert (tmp_path / "cut" / name).read_bytes() == (
                tmp_path / "whole" / name
            ).read_bytes()


@pytest.mark.integration
def test_results_are_on_the_disk_before_the_journal_goes(recorded, tmp_path, monkeypatch):
    """Else a power failure may leave neither."""
    run, synced, sync = tmp_path / "run", set(), os.fsync

    def watched(descriptor: int) -> None:
        sync(descriptor)
        if (run / checkpoint.JOURNAL).exists():
            synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", watched)
    fitted(recorded, "genetic", run)
    results = ("fit.yaml", "summary.json", "history.csv", "traces.csv", "traces.png", "data.csv")
    assert {(run / name).stat().st_ino for name in results} <= synced


@pytest.mark.integration
def test_a_study_begun_alone_goes_on_with_others(tmp_path, monkeypatch):
    """What was kept of its profiles is then no answer to what the study asks for after them."""
    words = ["uncertainty", str(fit_file(tmp_path)), "--backend", "cpu", "--seed", "3"]
    words += ["--profiles", "gmax", "--families", "3"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert CliRunner().invoke(main, [*words, "--out", str(whole)]).exit_code == 0

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(studies_of_fits, "families", stop)
        assert CliRunner().invoke(main, [*words, "--out", str(cut)]).exit_code == 130
    assert (cut / f"{checkpoint.STUDY}{checkpoint.JOURNAL}").stat().st_size > 1000
    monkeypatch.setattr(studies, "workers", lambda *_: nullcontext(SerialExecutor()))
    done = CliRunner().invoke(main, [*words, "--out", str(cut), "--resume"])
    assert done.exit_code == 0, done.output
    for name in ("uncertainty.json", "profiles.csv"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()
