"""`--cluster` of optimize and uncertainty: what comes out is what comes out without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from channelfit.curves import curve_tasks
from channelfit.search.fit_tasks import _scorers
from support import json_output
from support.places import MODELS

pytestmark = pytest.mark.integration

pytest.importorskip("distributed")

MODEL = MODELS / "k_hh_gate.yaml"
SEARCH = ["--optimizer", "genetic", "--population", "20", "--generations", "8", "--seed", "1"]


def ran(*words: object) -> Any:
    return json_output.ran(*words, "--backend", "cpu")


def lasting(folder: Path) -> tuple[dict[str, Any], str]:
    """What a run has written, less clocks and paths."""
    summary = json.loads((folder / "summary.json").read_text())
    left = ("seconds", "candidates_per_second", "finished", "file", "command")
    rows = (folder / "history.csv").read_text().splitlines()
    table = [row.split(",")[:2] + row.split(",")[3:] for row in rows]
    return {k: v for k, v in summary.items() if k not in left}, str(table)


@pytest.mark.parametrize(
    "more", [("--seeds", "3"), ("--set", "fit.optimizer.islands=3")], ids=["seeds", "islands"]
)
def test_a_fit_is_the_same_on_workers(more: tuple[str, str], tmp_path: Path) -> None:
    words = ["optimize", str(MODEL), *SEARCH, *more]
    ran(*words, "--out", str(tmp_path / "here"))
    told = ran(*words, "--out", str(tmp_path / "there"), "--cluster", "local:2").output
    here, there = lasting(tmp_path / "here"), lasting(tmp_path / "there")
    assert here[0] == there[0]
    if "--seeds" not in more:  # whose generations are told when they are done
        assert here[1] == there[1]
    assert "dashboard http://127.0.0.1:" in told
    assert not (tmp_path / "there" / "pieces.bin").exists()


def test_how_sure_a_fit_is_is_the_same_on_workers(tmp_path: Path) -> None:
    pytest.importorskip("emcee")
    ran("optimize", str(MODEL), "--seed", "1", "--out", str(tmp_path / "run"))
    asked = ["--profiles", "all", "--posterior", "12", "--ensembles", "2", "--seed", "4"]
    words = ["uncertainty", str(tmp_path / "run" / "fit.yaml"), *asked]
    ran(*words, "--out", str(tmp_path / "here"))
    _scorers.clear()
    ran(*words, "--out", str(tmp_path / "there"), "--cluster", "local:2")
    texts = [(tmp_path / n / "uncertainty.json").read_text() for n in ("here", "there")]
    assert texts[0] == texts[1]
    assert not _scorers  # they were made by the workers, not here
    left = {p.name for p in (tmp_path / "there").iterdir()}
    assert left == {p.name for p in (tmp_path / "here").iterdir()}


def test_curves_are_the_same_on_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an array in a file, which each worker maps for itself."""
    monkeypatch.setitem(curve_tasks._TASK_ON_CPU, "least-squares", (50, 10**6))  # 4 pieces
    drawn = np.random.default_rng(3)
    t, tau = np.arange(40.0), drawn.uniform(3, 12, 200)
    np.save(tmp_path / "tails.npy", np.exp(-t / tau[:, None]) + drawn.normal(0, 0.02, (200, 40)))
    words = ["curves", "exponential", str(tmp_path / "tails.npy"), "--covariance", "--out"]
    ran(*words, str(tmp_path / "here"))
    told = ran(*words, str(tmp_path / "there"), "--cluster", "local:2").output
    assert "dashboard http://127.0.0.1:" in told
    for ending in (".csv", "-covariance.npy"):
        here, there = (tmp_path / f"{name}{ending}" for name in ("here", "there"))
        assert here.read_bytes() == there.read_bytes()
    assert not list(tmp_path.glob("*unfinished*"))


def test_what_cannot_be_spread_and_an_option_that_workers_do_not_hear_are_refused(
    tmp_path: Path,
) -> None:
    words = ["optimize", str(MODEL), *SEARCH, "--cluster", "local:1", "--out", str(tmp_path / "x")]
    for more, told in (
        (["--backend", "cpu"], "a single search is not spread over workers"),
        (["--seeds", "2", "--chunk", "8"], "does not reach the workers of --cluster"),
    ):
        assert told in json_output.refused(*words, *more).output
        assert not (tmp_path / "x").exists()
