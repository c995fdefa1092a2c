"""Recordings of a part of each sweep, and rests between sweeps at a voltage of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from channelfit.front.kinds import load_plan
from channelfit.model.model_file import load_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol, build_protocol
from channelfit.problem.recording import Recording, load_recording
from channelfit.reading.documents import Section, dump_yaml
from channelfit.reading.errors import InputError
from channelfit.scoring.scorer import make_scorer
from support.little import protocol_of
from support.places import MODELS

#: 5 s, then a step to one of two voltages of which 25 ms are recorded, as 250 samples.
LONG = protocol_of(
    "{name: long, holding: -80, sampling: 0.1 ms, "
    "segments: [{hold: 5 s}, {step: {values: [0, 40]}, for: 25 ms}]}"
)


def part(folder: Path, protocol: Protocol, rows: np.ndarray, **keys: Any) -> Recording:
    """A table with a column for each sweep, and its recording."""
    names = [f"s{k}" for k in range(rows.shape[1])]
    lines = [",".join(names), *(",".join(map(repr, row)) for row in rows.tolist())]
    (folder / "r.csv").write_text("\n".join(lines) + "\n")
    document = {
        "file": "r.csv",
        "current": {"columns": "all", "unit": "pA"},
        **({} if "time" in keys else {"sampling": protocol.sampling_ms}),
    }
    return load_recording(Section(document | keys, folder / "fit.yaml", "recording"), protocol)


def test_a_part_needs_no_empty_rows(tmp_path: Path) -> None:
    rows = np.arange(500.0).reshape(250, 2) + 1
    recording = part(tmp_path, LONG, rows, starts="5 s")
    assert recording.current_pA.shape == (2, 50_250)
    np.testing.assert_array_equal(recording.current_pA[:, 50_000:], rows.T)
    assert np.isnan(recording.current_pA[:, :50_000]).all()
    np.testing.assert_array_equal(recording.weight.sum(axis=1), [250, 250])


@pytest.mark.parametrize("first", [0.0, 5000.0])
def test_times_count_from_the_part_or_from_the_sweep(tmp_path: Path, first: float) -> None:
    times = first + 0.1 * np.arange(250)
    rows = np.column_stack([times, np.ones(250), np.ones(250)])
    keys = {
        "time": {"column": "s0", "unit": "ms"},
        "current": {"columns": ["s1", "s2"], "unit": "pA"},
    }
    recording = part(tmp_path, LONG, rows, starts="5 s", **keys)
    assert recording.weight[:, 50_000:].all()
    with pytest.raises(InputError, match="the sweep at 0 ms"):
        part(tmp_path, LONG, rows + np.array([7.0, 0.0, 0.0]), starts="5 s", **keys)


@pytest.mark.parametrize(
    ("starts", "said"),
    [
        (
            "5.001 s",
            "the part that begins at 5001 ms ends at 5026 ms, but sweep 1 of long ends at 5025 ms",
        ),
        ("5.00005 s", '"5.00005 s" is no time of a sample; these are every 0.1 ms'),
        ([1, 2, 3], "3 times, but 2 sweeps were recorded"),
    ],
)
def test_starts_that_cannot_be(tmp_path: Path, starts: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        part(tmp_path, LONG, np.ones((250, 2)), starts=starts)
    assert said in str(caught.value)
    assert "recording.starts" in str(caught.value)


RESTED: dict[str, Any] = {
    "name": "rested",
    "holding": -80,
    "sampling": 0.5,
    "between_sweeps": {"rest": "7 ms", "at": "-100 mV"},
    "segments": [{"hold": 1}, {"step": {"values": [20, 60]}, "for": 9}],
}


def one_long_sweep() -> Protocol:
    """The same as segments of one sweep, the rest among them."""
    rows: list[dict[str, Any]] = [{"hold": 1}, {"step": 20, "for": 9}, {"step": -100, "for": 7}]
    rows += [{"hold": 1}, {"step": 60, "for": 9}]
    return build_protocol(RESTED | {"between_sweeps": "steady state", "segments": rows}, None)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_rest_has_a_voltage_of_its_own(backend: str) -> None:
    model = load_model(MODELS / "k_hh.yaml")
    protocols = (build_protocol(RESTED, None), one_long_sweep())
    problem = Problem(model, tuple(Experiment(p) for p in protocols))
    rested, whole = make_scorer(problem, backend).simulate(model.values()[:, None])
    parts = np.concatenate([rested[0], rested[1]])
    long = np.concatenate([whole[0, :20], whole[0, 34:]])
    np.testing.assert_allclose(parts, long, rtol=1e-12, atol=1e-12 * np.abs(long).max())
    usual = build_protocol(RESTED | {"between_sweeps": {"rest": "7 ms"}}, None)
    (held,) = make_scorer(Problem(model, (Experiment(usual),)), backend).simulate(
        model.values()[:, None]
    )
    assert np.abs(held[1] - rested[1]).max() > 1e-2 * np.abs(rested).max()


@pytest.mark.integration
def test_the_oracle_rests_at_the_same_voltage() -> None:
    pytest.importorskip("neuron")
    from channelfit.scoring.neuron.oracle import NeuronOracle  # loads NEURON

    model = load_model(MODELS / "k_hh.yaml")
    rested, whole = (
        NeuronOracle(model).simulate(p, model.values())
        for p in (build_protocol(RESTED, None), one_long_sweep())
    )
    scale = np.abs(whole).max()
    np.testing.assert_allclose(rested[1] / scale, whole[0, 34:] / scale, atol=1e-5)


@pytest.mark.parametrize(
    ("between", "before"), [({}, -100), ({"between_sweeps": {"carry_over": True}}, 20)]
)
def test_a_delayed_sweep_begins_at_the_voltage_before_it(between, before, tmp_path):
    """That of the rest, or where the last sweep ended."""
    (tmp_path / "p.yaml").write_text(dump_yaml(RESTED | between))
    (tmp_path / "r.csv").write_text("a,b\n" + "1,2\n" * 20)
    recording = {"file": "r.csv", "sampling": 0.5, "current": {"columns": "all", "unit": "pA"}}
    experiment = {"protocol": "p.yaml", "delay": 2, "recording": recording}
    fit = {"model": str(MODELS / "k_hh.yaml"), "fit": {"experiments": [experiment]}}
    (tmp_path / "fit.yaml").write_text(dump_yaml(fit))
    (experiment,) = load_plan(tmp_path / "fit.yaml").problem.experiments
    assert experiment.protocol.voltage([0, 1, 2.5]).tolist() == [[-80] * 3, [before, before, -80]]
