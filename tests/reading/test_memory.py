"""Work that a file or an option makes too large is refused before it begins."""

from __future__ import annotations

import gzip
import tracemalloc
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from scipy.io import savemat

from channelfit.front.fitting import prepared
from channelfit.front.kinds import load_plan
from channelfit.front.progress import PythonScreen
from channelfit.problem import segments
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol, build_protocol
from channelfit.reading import memory
from channelfit.reading.errors import InputError
from channelfit.reading.files import files_below, matching
from channelfit.reading.formats.matlab import variables
from channelfit.reading.tables import read_columns
from channelfit.scoring.machine import gpu
from channelfit.scoring.scorer import make_scorer
from channelfit.search.choose import make_optimizer
from support.json_output import refused
from support.places import ROOT


@pytest.fixture
def small(monkeypatch):
    """A machine with 10 MB of free memory."""
    monkeypatch.setattr(memory, "available", lambda: 10_000_000)


def never(*_: object, **__: object) -> None:
    raise AssertionError("the work has begun")


def test_the_message_names_what_is_needed_and_what_would_fit(small):
    with pytest.raises(InputError) as told:
        memory.check(1_000_000, 100, "things", "file.yaml", "some.key")
    assert str(told.value) == (
        "file.yaml: some.key: 1,000,000 things need 100.0 MB of memory, and this machine has "
        "10.0 MB free; 90,000 would fit"
    )
    memory.check(90_000, 100, "things")
    with pytest.raises(InputError):
        memory.check(90_001, 100, "things")


@pytest.mark.parametrize("name", ["genetic", "swarm", "ring", "groups", "differential", "cma"])
def test_a_population_that_does_not_fit(name, small, monkeypatch):
    monkeypatch.setattr(gpu, "device", lambda: SimpleNamespace(memory_free=10_000_000))
    make_optimizer(name, {"population": 1000}, 5, 0)
    places = {"this machine": np}
    if name in ("genetic", "swarm", "differential"):
        places["this GPU"] = ModuleType("cupy")
    for place, xp in places.items():
        with pytest.raises(InputError, match=f"{place} has 10.0 MB free; 53,571 would") as told:
            make_optimizer(name, {"population": 1_000_000}, 5, 0, xp=xp)
        assert told.value.key == "optimizer.population"


def test_rows_of_a_packed_table(tmp_path, small, monkeypatch):
    file = tmp_path / "data.csv.gz"
    file.write_bytes(gzip.compress(b"t,i\n" + b"1,2.5\n" * 1000))
    assert len(read_columns(file)["i"]) == 1000
    file.write_bytes(gzip.compress(b"t,i\n" + b"1,2.5\n" * 1_000_000))
    monkeypatch.setattr(np, "loadtxt", never)
    with pytest.raises(InputError, match=r"data\.csv\.gz: 1,000,002 lines need .* would fit"):
        read_columns(file)


def test_segments_of_all_sweeps_are_counted_before_they_are_laid_out(monkeypatch):
    family = {"from": 1, "to": 10_000, "by": 1}
    rows = [{"step": -40, "for": family}] + [{"hold": 1}] * 2999
    document = {"holding": -80, "sampling": 1, "segments": rows}
    monkeypatch.setattr(segments, "_sweep", never)
    with pytest.raises(InputError, match=r"3,000 segments x 10,000 sweeps.*100 segments") as told:
        build_protocol(document, "p.yaml")
    assert told.value.key == "segments"


def test_a_protocol_that_does_not_fit_is_not_simulated(tmp_path, small, monkeypatch):
    file = Protocol.steps([-40, 0], 100_000, holding=-80, sampling=1).save(tmp_path / "p.yaml")
    monkeypatch.setattr("channelfit.front.simulation.make_scorer", never)
    model = ROOT / "models" / "model_b.yaml"
    said = refused("simulate", model, file, "--out", tmp_path)
    assert "p.yaml: 200,000 samples need 40.0 MB" in said.stderr
    assert "45,000 would fit" in said.stderr


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_currents_of_many_candidates_are_counted_before_they_are_made(backend, small):
    steps = Protocol.steps([-40, 0], 100, holding=-80, sampling=1)
    model = load_plan(ROOT / "models" / "model_b.yaml", ()).problem.model
    scorer = make_scorer(Problem(model, (Experiment(steps, None),)), backend)
    values = np.repeat(model.values()[:, None], 10_000, axis=1)
    assert scorer.simulate(values[:, :3])[0].shape == (2, 100, 3)
    with pytest.raises(InputError, match="200 samples of 10,000 candidates need 48.0 MB"):
        scorer.simulate(values)


def test_a_fit_whose_samples_do_not_fit_is_not_begun(small, monkeypatch):
    plan = load_plan(ROOT / "models" / "model_b.yaml", ())
    monkeypatch.setattr(memory, "available", lambda: 100_000)
    monkeypatch.setattr("channelfit.front.kinds.make_scorer", never)
    with pytest.raises(InputError, match=r"model_b\.yaml: .* samples need"):
        prepared(plan, "cpu", "float64", "auto", PythonScreen("a fit"))


def test_a_limit_too_small_for_the_libraries_is_told_at_once(monkeypatch):
    monkeypatch.setattr(memory, "_address_space", lambda: 450_000_000)
    done = refused("show", ROOT / "models" / "model_b.yaml")
    assert "may use 450.0 MB of address space (ulimit -v), and needs 1.0 GB" in done.stderr


def test_a_matlab_file_that_packs_as_no_recording_does_is_not_unpacked(tmp_path, monkeypatch):
    file = tmp_path / "bomb.mat"
    savemat(file, {"i": np.zeros((3000, 2000))}, do_compression=True)
    monkeypatch.setattr("scipy.io.loadmat", never)
    with pytest.raises(InputError, match=r"bomb.mat: 6,000,000 numbers in .*: no recording packs"):
        variables(file)


def test_thousands_of_sines_are_refused_and_a_thousand_take_little_memory():
    def protocol(n):
        term = {"amplitude": "0.01 mV", "omega": "0.1 1/ms", "phase": 0.5}
        wave = {"sines": {"offset": -30, "terms": [term] * n}, "for": "2 s"}
        return build_protocol({"holding": -80, "sampling": 0.1, "segments": [wave]}, "p.yaml")

    with pytest.raises(InputError, match=r"terms: 20,000 sines; a sum has at most 1,000"):
        protocol(20_000)
    command = protocol(1000)
    tracemalloc.start()
    found = command.command()[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6  # the whole table of sines and times would be 160 MB
    times = np.arange(found.size) * 0.1
    np.testing.assert_allclose(found, -30 + 10 * np.sin(0.1 * times + 0.5), rtol=0, atol=1e-9)


@pytest.mark.parametrize("pattern", ["**/*", "*/*/*.csv", "*"])
def test_a_pattern_that_would_search_everything_is_refused(tmp_path, monkeypatch, pattern):
    for k in range(8):
        (tmp_path / f"d{k}" / "e").mkdir(parents=True)
        (tmp_path / f"d{k}" / "e" / "x.csv").write_text("1\n")
    (tmp_path / "d0" / "again").symlink_to(tmp_path)
    assert matching(tmp_path / "d1" / "**" / "*.csv") == [tmp_path / "d1" / "e" / "x.csv"]
    assert len(matching(tmp_path / "*" / "e" / "*.csv")) == 8
    monkeypatch.setattr("channelfit.reading.files._MOST", 7)
    monkeypatch.setattr("glob.glob", never)
    with pytest.raises(InputError, match="more than 7 files and folders would be searched"):
        matching(tmp_path / pattern)
    with pytest.raises(InputError, match="more than 7 files and folders"):
        list(files_below(tmp_path))
