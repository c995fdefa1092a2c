"""The commands with the cuda backend from end to end, on a CuPy played by the host, where all but
the device is real: argument types, kernels, loop and files. And the same on a real GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from channelfit.front.main import main
from channelfit.model.model_file import load_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import load_protocol
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine import launch_tuning as tuning
from channelfit.scoring.scorer import make_scorer
from support import json_output
from support.places import ROOT

MODEL_A = ROOT / "models" / "model_a.yaml"
ACTIVATION = ROOT / "protocols" / "activation.yaml"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def fitted(out: Path, backend: str, *more: object) -> dict:
    options = ["--backend", backend, "--population", 60, "--generations", 5, "--json", *more]
    result = run("optimize", MODEL_A, "--out", out, *options)
    assert result.exit_code == 0, result.output
    return json_output.summary(result.stdout)


@pytest.mark.integration
def test_a_fit_is_the_one_of_the_cpu_backend(device, tmp_path):
    cpu, cuda = (fitted(tmp_path / backend, backend) for backend in ("cpu", "cuda"))
    assert (cuda["backend"], cuda["dtype"]) == ("cuda", "float64")
    assert cuda["cost"] == pytest.approx(cpu["cost"], rel=1e-7)
    for name, parameter in cpu["parameters"].items():
        assert cuda["parameters"][name]["value"] == pytest.approx(parameter["value"], rel=1e-12)
    assert cuda["failed_candidates"] == cpu["failed_candidates"]
    assert cuda["machine"]["gpu"]
    assert {"cupy", "cuda", "driver"} <= set(cuda["versions"])
    assert "__global__" in (tmp_path / "cuda" / "source.cu").read_text()
    assert not (tmp_path / "cuda" / "source.py").exists()
    rows = (tmp_path / "cuda" / "history.csv").read_text().splitlines()
    assert len(rows) == 1 + 5
    assert float(rows[-1].split(",")[3]) == pytest.approx(cuda["cost"], rel=1e-7)
    chunks = fitted(tmp_path / "chunks", "cuda", "--chunk", 17)
    assert chunks["search_cost"] == cuda["search_cost"]
    single = fitted(tmp_path / "single", "cuda", "--dtype", "float32")
    assert single["dtype"] == "float32"
    assert single["largest_deviation_from_float64_pA"] < 1e-2
    # the result's cost is of the float64 path, whatever the search's precision
    assert single["search_cost"] == pytest.approx(single["cost"], rel=1e-7)


def test_simulated_currents_are_those_of_the_reference(device, tmp_path):
    result = run("simulate", MODEL_A, ACTIVATION, "--backend", "cuda", "--out", tmp_path / "x")
    assert result.exit_code == 0, result.output
    table = np.genfromtxt(tmp_path / "x.csv", delimiter=",", skip_header=1)
    model, protocol = load_model(MODEL_A), load_protocol(ACTIVATION)
    scorer = make_scorer(Problem(model, (Experiment(protocol),)), "reference")
    expected = scorer.simulate(model.values()[:, None])[0][:, :, 0]
    np.testing.assert_allclose(table[:, 1::2].T, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.integration
def test_tune_remembers_what_scoring_then_uses(device, monkeypatch, tmp_path):
    monkeypatch.setenv("CHANNELFIT_CACHE", str(tmp_path / "cache"))
    asked, remember = [], tuning.remember
    monkeypatch.setattr(tuning, "remember", lambda *one: (asked.append(one), remember(*one)))
    result = run("tune", MODEL_A, "--population", 64, "--out", tmp_path / "x.png")
    assert result.exit_code == 0, result.output
    assert "fastest" in result.stdout
    assert (tmp_path / "x.png").stat().st_size > 5000
    assert asked
    for *kernel, launch in asked:
        assert kernel[1] == gpu.device().name
        assert tuning.remembered(*kernel) == launch
        assert launch.threads % 32 == 0
    result = run("doctor")
    assert result.exit_code == 0
    assert gpu.device().name in result.output
    assert "architecture sm_" in result.output
