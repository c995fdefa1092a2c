"""Finding the fastest launch: what is measured, remembered, shown; a scorer of known speed."""

from __future__ import annotations

import dataclasses
import math
import types

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.image import imread

from channelfit.front import kinds
from channelfit.front.main import main
from channelfit.reading.errors import InputError
from channelfit.scoring import scorer as backends
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine import launch_tuning as tuning
from channelfit.scoring.machine.launch_tuning import Launch
from support.places import MODELS

DEVICE = "NVIDIA H200"


class Known(tuning.Tunable):
    """As fast as a formula says: kernel "a" is best at 96 threads, "b" at 64 and 4 jobs."""

    source_hash = "0123"

    def __init__(self) -> None:
        self.calls = []

    def launch_choices(self):
        yield "a", (32, 64, 96, 128, 1024)
        yield "b", (32, 64), (1, 2, 4, 8)

    def timed_score(self, parameters, threads, jobs=None) -> float:
        assert parameters.shape == (9, 1000)
        self.calls.append((dict(threads), dict(jobs or {})))
        if threads["a"] == 1024:
            raise InputError("too many registers")
        seconds = 1 + abs(threads["a"] - 96)
        if "b" in threads:
            seconds += abs(threads["b"] - 64) + abs((jobs or {}).get("b", 3) - 4)
        return seconds * 1e-3

    def launch_occupancy(self, kernel, threads):
        return gpu.Occupancy(2048 // threads // 2, 0.5 if threads > 32 else 0.25)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("CHANNELFIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def rows():
    return tuning.tune(Known(), np.zeros((9, 1000)), DEVICE)


def test_everything_is_measured_with_the_best_of_the_kernels_before(rows):
    scorer, measured = Known(), []
    tuning.tune(scorer, np.zeros((9, 1000)), DEVICE, measured.append)
    assert measured == rows
    assert scorer.calls[:5] == [({"a": n}, {}) for n in (32, 64, 96, 128, 1024)]
    assert scorer.calls[5:] == [
        ({"a": 96, "b": 32}, {}),
        ({"a": 96, "b": 64}, {}),
        *(({"a": 96, "b": 64}, {"b": n}) for n in (1, 2, 4, 8)),
    ]
    refused = [row for row in rows if not math.isfinite(row.seconds)]
    assert [row.launch for row in refused] == [Launch(1024)]
    assert rows[0].occupancy == 0.25
    assert tuning.fastest(rows, "a").launch == Launch(96)
    assert tuning.remembered("0123", DEVICE, "a") == Launch(96)
    assert tuning.remembered("0123", DEVICE, "b") == Launch(64, 4)
    for other in (("0124", DEVICE, "a"), ("0123", "another GPU", "a"), ("0123", DEVICE, "c")):
        assert tuning.remembered(*other) is None


def test_what_is_remembered_adds_up_and_outlives_damage(tmp_path):
    tuning.remember("1", "x", "k", Launch(32))
    tuning.remember("1", "y", "k", Launch(64, 2))
    tuning.remember("1", "x", "k", Launch(128))
    assert tuning.remembered("1", "x", "k") == Launch(128)
    assert tuning.remembered("1", "y", "k") == Launch(64, 2)
    for file in (tmp_path / "cache" / "launches").iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    assert tuning.remembered("1", "x", "k") is None
    tuning.remember("1", "x", "k", Launch(32))
    assert tuning.remembered("1", "x", "k") == Launch(32)


def test_the_command_tunes_prints_and_draws(monkeypatch, tmp_path):
    """With a scorer of known speed in the place of the cuda backend's."""
    real, made = backends.make_scorer, []

    class KnownScorer(Known, backends.ChannelScorer):
        backend = "cuda"
        score = linearize = simulate = None

        def __init__(self, problem) -> None:
            super().__init__()
            self.simulate = real(problem, "cpu").simulate  # for the data

    def make_scorer(problem, backend="auto", dtype="float64", path="auto"):
        made.append((backend, dtype, path))
        return KnownScorer(problem)

    monkeypatch.setattr(gpu, "device", lambda: types.SimpleNamespace(name=DEVICE))
    monkeypatch.setattr(gpu, "cupy", lambda: np)
    played = dataclasses.replace(kinds._CHANNEL, make_scorer=make_scorer)
    monkeypatch.setattr(kinds, "_CHANNEL", played)
    out = tmp_path / "deep" / "x"
    given = [str(MODELS / "model_b.yaml"), "--population", "1000", "--out", str(out)]
    result = CliRunner().invoke(main, ["tune", *given, "--dtype", "float32", "--path", "stepping"])
    assert result.exit_code == 0, result.output
    assert made[-1] == ("cuda", "float32", "stepping")
    lines = result.stdout.splitlines()
    marked = [line for line in lines if "fastest" in line and "The" not in line]
    assert len(marked) == 2
    for words in ("96", "1,000,000", "50 %"):
        assert words in marked[0]
    assert sum("refused" in line for line in lines) == 1
    assert "remembered" in result.stdout
    assert lines[-1] == f"{out}.png"
    assert imread(f"{out}.png").ndim == 3
    assert tuning.remembered("0123", DEVICE, "a") == Launch(96)
