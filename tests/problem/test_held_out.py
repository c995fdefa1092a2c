"""What has weight 0 costs a search nothing, changes nothing in it, and is predicted at its end."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from channelfit.front.kinds import load_plan
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.run_tree import RunTree
from channelfit.reading.documents import dump_yaml
from channelfit.scoring.cuda import stepping_tables
from channelfit.scoring.kernels.cuda_source import CudaSource
from channelfit.scoring.layout.visit_order import schedule
from channelfit.scoring.scorer import make_scorer
from support.json_output import ran
from support.little import LITTLE, THREE_STEPS

pytestmark = pytest.mark.usefixtures("undrawn")

#: Five sweeps; the second voltage and the last duration occur in no other.
STEPS = THREE_STEPS.replace("0 mV, 40 mV", "-25 mV, 0 mV, 20 mV, 40 mV").replace("30 ms", "40 ms")
RAMP = """
name: ramp
holding: -100 mV
sampling: 1 ms
segments: [{hold: 5 ms}, {ramp: [-100 mV, 90 mV], for: 60 ms}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, two protocols, and recordings of both with noise."""
    path = tmp_path_factory.mktemp("held_out")
    (path / "steps.yaml").write_text(STEPS)
    (path / "ramp.yaml").write_text(RAMP)
    fit = {"protocols": ["steps.yaml", "ramp.yaml"], "surrogate": {"noise": 5, "seed": 1}}
    (path / "both.yaml").write_text(dump_yaml(LITTLE | {"fit": fit}))
    simulated = load_plan(path / "both.yaml").problem
    for experiment in simulated.experiments:
        rows = experiment.recording.current_pA.T
        np.savetxt(path / f"{experiment.protocol.name}.csv", rows, delimiter=",", header="no times")
    return path


def row(name: str, **more: object) -> dict[str, object]:
    """An experiment of a protocol and its recording."""
    recording = {
        "file": f"{name}.csv",
        "sampling": "1 ms",
        "current": {"columns": "all", "unit": "pA"},
    }
    return {"protocol": f"{name}.yaml", "recording": recording} | more


def file(folder: Path, name: str, *rows: dict[str, object], **fit: object) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(dump_yaml(LITTLE | {"fit": {"experiments": list(rows)} | fit}))
    return path


def without(packed: RunTree) -> dict[str, object]:
    """Everything but where simulations would find their samples."""
    return {f.name: getattr(packed, f.name) for f in fields(packed) if f.name != "outputs"}


def assert_same(one: RunTree, two: RunTree) -> None:
    for name, value in without(one).items():
        np.testing.assert_array_equal(value, without(two)[name], err_msg=name)


def masked(problem: Problem, held_out: list[int]) -> Problem:
    """The first experiment with some sweeps of weight 0."""
    experiment = problem.experiments[0]
    weight = experiment.recording.weight.copy()
    weight[held_out] = 0.0
    recording = replace(experiment.recording, weight=weight)
    return replace(problem, experiments=(replace(experiment, recording=recording),))


def shortened(problem: Problem, held_out: list[int]) -> Problem:
    """The first experiment without these sweeps."""
    experiment = problem.experiments[0]
    kept = [k for k in range(experiment.protocol.n_sweeps) if k not in held_out]
    protocol = replace(
        experiment.protocol, sweeps=tuple(experiment.protocol.sweeps[k] for k in kept)
    )
    recording = replace(
        experiment.recording,
        current_pA=experiment.recording.current_pA[kept],
        weight=experiment.recording.weight[kept],
    )
    return replace(problem, experiments=(Experiment(protocol, recording),))


def pair(folder: Path) -> tuple[Problem, Problem]:
    """A recording of steps with a ramp held out beside it, and the steps alone."""
    beside = load_plan(file(folder, "beside", row("steps"), row("ramp", weight=0))).problem
    return beside, load_plan(file(folder, "alone", row("steps"))).problem


def test_a_score_walks_through_nothing_that_is_held_out(folder):
    beside, alone = pair(folder)
    assert_same(beside.scored, alone.scored)
    assert len(beside.simulated.runs) > len(alone.simulated.runs)
    for held_out in ([0], [1, 3], [4], [0, 1, 2, 3]):
        assert_same(masked(alone, held_out).scored, shortened(alone, held_out).scored)


@pytest.mark.parametrize("path", ["stepping", "closed-form"])
def test_scores_and_derivatives_are_the_same_to_the_last_bit(folder, path):
    beside, alone = pair(folder)
    parameters = alone.model.values()[:, None] * (1 + 0.2 * np.random.default_rng(1).random((4, 9)))
    one, two = (make_scorer(problem, "cpu", path=path) for problem in (beside, alone))
    assert one.source_hash == two.source_hash
    for call in ("score", "preview", "linearize"):
        for a, b in zip(
            *(vars(getattr(s, call)(parameters)).values() for s in (one, two)), strict=True
        ):
            assert a.tobytes() == b.tobytes(), call
    assert make_scorer(beside, "cpu").path == "closed-form"  # a ramp to be scored would step


@pytest.mark.parametrize("n_jobs", [1, 4])
def test_a_gpu_is_given_the_same_program(folder, n_jobs):
    beside, alone = pair(folder)
    source = CudaSource(alone.model, "float64")
    one, two = (
        stepping_tables(source, p.scored, schedule(p.scored, n_jobs)) for p in (beside, alone)
    )
    for a, b in zip(one.arrays, two.arrays, strict=True):
        assert a.tobytes() == b.tobytes()
    assert (one.n_slots, one.varying) == (two.n_slots, two.varying)


def test_what_was_held_out_is_predicted_at_the_end(folder, tmp_path):
    path = file(folder, "predicted", row("steps"), row("ramp", weight=0))
    ran("optimize", path, "--out", tmp_path / "run", "--backend", "cpu", "--quiet")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    steps, ramp = summary["experiments"]
    assert (steps["weight"], ramp["weight"]) == (1, 0)
    fitted = load_plan(tmp_path / "run" / "fit.yaml").problem
    trace = make_scorer(fitted, "reference").simulate(fitted.model.values()[:, None])[1][:, :, 0]
    apart = trace - fitted.experiments[1].recording.current_pA
    assert ramp["rms_pA"] == pytest.approx(np.sqrt(np.mean(apart**2)), rel=1e-6)
    assert ramp["rms_pA"] == pytest.approx(5, rel=0.3)  # the noise
