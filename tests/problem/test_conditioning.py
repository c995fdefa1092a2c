"""Conditioning of recorded currents: known leaks, drifts and run-downs are found and taken away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channelfit.front.kinds import load_plan
from channelfit.problem.protocol import Protocol
from channelfit.problem.recording import Recording, load_recording
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError
from channelfit.scoring.scorer import make_scorer
from support.json_output import ran
from support.little import protocol_of

pytestmark = pytest.mark.usefixtures("undrawn")

FAMILY = protocol_of(
    "{name: family, holding: -80, sampling: 0.5, "
    "segments: [{hold: 5}, {ramp: [-120, -80], for: 20}, {hold: 5}, "
    "{step: {values: [-20, 0, 20]}, for: 10}, {hold: 5}]}"
)
COMMAND, TIME = FAMILY.command(), FAMILY.times_ms
#: A current that is 0 until the step, so that the ramp shows leak alone.
CHANNEL = np.where(TIME >= 30, 1.0, 0.0) * np.array([[40.0], [80.0], [120.0]]) * (TIME < 40)
FIT = """
name: little
states: [C, O]
rates: {C -> O: a*exp(v/25), O -> C: 1}
current: {open: [O], conductance: g, reversal: -80 mV}
parameters:
  a: {range: [0.1, 10], unit: 1/ms}
  g: {range: [0, 10], unit: nS}
fit:
  optimizer: {name: genetic, population: 10, generations: 2}
  experiments:
    - protocol: protocol.yaml
      recording:
        file: r.csv
        sampling: 0.5 ms
        current: {columns: all, unit: pA}
        condition: [{leak: {from: 6 ms, to: 24 ms}}, {subtract: {file: after.csv}}]
"""


def write(folder: Path, current: np.ndarray, name: str = "r.csv") -> None:
    header = ",".join(f"s{k}" for k in range(len(current)))
    np.savetxt(folder / name, current.T, delimiter=",", header=header, comments="", fmt="%.17g")


def read(folder: Path, *steps: dict[str, Any], protocol: Protocol = FAMILY, **more: Any) -> Any:
    """The recording r.csv of a folder after these steps."""
    told = {
        "file": "r.csv",
        "sampling": protocol.sampling_ms,
        "current": {"columns": "all", "unit": "pA"},
        "condition": list(steps),
    }
    return load_recording(Section(told | more, folder / "fit.yaml", "recording"), protocol)


def message(folder: Path, *steps: dict[str, Any], **more: Any) -> str:
    with pytest.raises(InputError) as caught:
        read(folder, *steps, **more)
    return str(caught.value)


def furthest(recording: Recording, wanted: np.ndarray) -> float:
    return float(np.abs(recording.current_pA - wanted).max())


@settings(max_examples=20, deadline=None)
@given(g=st.floats(-2, 20), e=st.floats(-120, 60))
def test_a_line_through_a_ramp_takes_any_leak_away(g, e, tmp_path_factory):
    folder = tmp_path_factory.mktemp("leak")
    write(folder, CHANNEL + g * (COMMAND - e))
    found = read(folder, {"leak": {"from": 6, "to": 24}})
    assert furthest(found, CHANNEL) < 1e-9 * (1 + abs(g) * 200)
    assert "leak of" in found.conditioning[0]


def test_transients_inside_the_window_of_a_leak_do_not_tilt_its_line(tmp_path: Path) -> None:
    current = CHANNEL + 2.0 * (COMMAND + 10)
    spike = 3000 * np.exp(-np.arange(6) / 1.5)
    current[:, 10:16] -= spike  # the ramp begins with a jump to -120 mV
    write(tmp_path, current)
    found = read(tmp_path, {"leak": {"from": 5, "to": 25}})
    apart = np.abs(found.current_pA - CHANNEL)
    apart[:, 10:16] = 0
    assert apart.max() < 1e-9
    assert found.conditioning == ("leak of 2 nS that reverses at -10 mV subtracted",)


def test_a_leak_that_only_a_family_of_steps_tells_is_one_line_for_all(tmp_path: Path) -> None:
    write(tmp_path, 0.5 * (COMMAND - 5))
    assert furthest(read(tmp_path, {"leak": {"from": 31, "to": 39}}), 0 * CHANNEL) < 1e-10
    one = Protocol.steps(20, duration=10, holding=-80, sampling=0.5)
    write(tmp_path, 0.5 * (one.command() - 5))
    step = {"leak": {"from": 0, "to": 3}}
    assert "varies by 0 mV in this window" in message(tmp_path, step, protocol=one)
    step["leak"]["reversal"] = 5
    assert furthest(read(tmp_path, step, protocol=one), 0 * one.command()) < 1e-12


def test_a_leak_that_is_known_is_subtracted_as_given(tmp_path: Path) -> None:
    write(tmp_path, CHANNEL + 1.5 * (COMMAND + 20))
    step: dict[str, Any] = {"leak": {"conductance": "1500 pS", "reversal": "-20 mV"}}
    assert furthest(read(tmp_path, step), CHANNEL) < 1e-10
    assert "needs its reversal" in message(tmp_path, {"leak": {"conductance": "1 nS"}})
    step["leak"]["from"] = 3
    assert "no meaning beside conductance" in message(tmp_path, step)


def test_subtracting_what_a_blocker_leaves(tmp_path: Path) -> None:
    endogenous = 7 * np.tanh(COMMAND / 30) + 3
    write(tmp_path, CHANNEL + endogenous)
    write(tmp_path, endogenous, "after.csv")
    found = read(tmp_path, {"subtract": {"file": "after.csv"}})
    assert furthest(found, CHANNEL) < 1e-12
    assert np.array_equal(found.raw_pA, CHANNEL + endogenous)
    write(tmp_path, CHANNEL + 0.25 * endogenous)  # as subpulses of a quarter of the size are
    assert furthest(read(tmp_path, {"subtract": {"file": "after.csv", "scale": 0.25}}), CHANNEL) < (
        1e-12
    )


def test_the_scale_and_the_drift_of_what_is_subtracted_are_found(tmp_path: Path) -> None:
    endogenous = 7 * np.tanh(COMMAND / 30) + 3
    drift = 4 - 0.3 * TIME
    write(tmp_path, CHANNEL + 1.7 * endogenous + drift)
    write(tmp_path, endogenous, "after.csv")
    step: dict[str, Any] = {"file": "after.csv", "scale": "fit", "drift": "line"}
    step["over"] = [{"from": 0, "to": 30}, {"from": 40, "to": 45}]
    found = read(tmp_path, {"subtract": step})
    assert furthest(found, CHANNEL) < 1e-9
    assert "1.7 times after.csv" in found.conditioning[0]
    step["drift"] = "offset"
    assert furthest(read(tmp_path, {"subtract": step}), CHANNEL) > 1  # a line it is
    step["over"] = [{"from": 0, "to": 3}]
    assert "does not vary enough there" in message(tmp_path, {"subtract": step})
    del step["over"]
    assert "need over: {from, to}" in message(tmp_path, {"subtract": step})
    assert "no meaning without scale: fit" in message(
        tmp_path, {"subtract": {"file": "after.csv", "over": {"from": 0, "to": 5}}}
    )


def test_steps_before_a_subtraction_are_done_to_both_recordings(tmp_path: Path) -> None:
    write(tmp_path, CHANNEL + 2.0 * (COMMAND + 10) + 5 * np.tanh(COMMAND))
    write(tmp_path, 0.7 * (COMMAND - 15) + 5 * np.tanh(COMMAND), "after.csv")
    leak, subtract = {"leak": {"from": 6, "to": 24}}, {"subtract": {"file": "after.csv"}}
    found = read(tmp_path, leak, subtract)
    assert furthest(found, CHANNEL) < 1e-9
    assert found.conditioning[1].startswith("subtracted: leak of 0.7 nS")
    assert furthest(read(tmp_path, subtract, leak), CHANNEL) < 1e-9  # alike, since all is linear
    assert len(read(tmp_path, subtract, leak).conditioning) == 2


@pytest.mark.parametrize("trend", ["each", "line", "exponential"])
def test_run_down_is_divided_out(tmp_path: Path, trend: str) -> None:
    same = protocol_of(
        "{name: pulses, holding: -80, sampling: 1, "
        "segments: [{step: {values: [0, 0, 0, 0]}, for: 10}, {hold: 5}]}"
    )
    left = np.array([1, 0.7, 0.9, 0.3])
    left = {"each": left, "line": 1 - 0.2 * np.arange(4), "exponential": 0.6 ** np.arange(4)}[trend]
    shape = np.where(same.times_ms < 10, -50.0, -5.0)
    write(tmp_path, left[:, None] * shape)
    step = {"run_down": {"from": 2, "to": 8, "trend": trend}}
    found = read(tmp_path, step, protocol=same)
    assert furthest(found, np.tile(shape, (4, 1))) < 1e-10
    assert f"run-down to {100 * left[-1]:.4g} %" in found.conditioning[0]


def test_run_down_that_cannot_be_seen_or_mended_is_refused(tmp_path: Path) -> None:
    write(tmp_path, CHANNEL)
    step = {"run_down": {"from": 32, "to": 38}}
    assert "differs there from that of sweep 1" in message(tmp_path, step)
    write(tmp_path, np.array([[1.0], [0.5], [0.01]]) * (COMMAND + 300))
    assert "0.01 of the first one's" in message(tmp_path, {"run_down": {"from": 0, "to": 5}})
    write(tmp_path, np.array([[1.0], [-0.5], [0.1]]) * (COMMAND + 300))
    assert "changes its sign" in message(tmp_path, {"run_down": {"from": 0, "to": 5}})


def test_what_conditioning_found_is_told_and_a_saved_fit_repeats_it(tmp_path: Path) -> None:
    (tmp_path / "protocol.yaml").write_text(FAMILY.to_yaml(), encoding="utf-8")
    write(tmp_path, CHANNEL + 2.0 * (COMMAND + 10) + 5)
    write(tmp_path, 0 * CHANNEL + 5, "after.csv")
    (tmp_path / "fit.yaml").write_text(FIT, encoding="utf-8")
    out = tmp_path / "deeper" / "run"
    out.parent.mkdir()
    done = ran("optimize", tmp_path / "fit.yaml", "--out", out)
    assert "Experiment 1: leak of 2 nS that reverses at" in done.output
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["experiments"][0]["conditioning"][0].startswith("leak of 2 nS")
    first, again = (
        load_plan(file).problem.experiments[0].recording
        for file in (tmp_path / "fit.yaml", out / "fit.yaml")
    )
    assert np.array_equal(first.current_pA, again.current_pA)
    assert first.conditioning == again.conditioning


FINE = protocol_of(
    "{name: fine, holding: -80, sampling: 0.01, "
    "segments: [{hold: 2}, {step: 20, for: 6}, {ramp: [20, -100], for: 4}, {hold: 3}]}"
)


def lowpass_fit(folder: Path, step: str, more: str = "") -> Path:
    """A fit file on r.csv under FINE with one step of conditioning."""
    (folder / "protocol.yaml").write_text(FINE.to_yaml(), encoding="utf-8")
    text = FIT.replace("sampling: 0.5 ms", "sampling: 0.01 ms")
    head, _, _ = text.partition("        condition:")
    file = folder / "fit.yaml"
    file.write_text(f"{head}        condition: [{step}]\n{more}", encoding="utf-8")
    return file


def test_a_filtered_recording_is_what_the_filtered_model_gives(tmp_path: Path) -> None:
    """The filter of the data, sample by sample, and that of the model, as states, are the same."""
    write(tmp_path, 0 * FINE.command())
    ideal = load_plan(lowpass_fit(tmp_path, "{baseline: {from: 0 ms, to: 1 ms}}"))
    values = np.array([[0.6], [4.0]])
    current = make_scorer(ideal.problem, "reference").simulate(values)[0][:, :, 0]
    write(tmp_path, current)
    for poles, every in ((4, 1), (8, 10), (1, 4)):
        step = f"{{lowpass: {{cutoff: 1.5 kHz, poles: {poles}, every: {every}}}}}"
        plan = load_plan(lowpass_fit(tmp_path, step))
        (experiment,) = plan.problem.experiments
        data = experiment.recording.current_pA
        assert data.shape[1] == len(current[0, ::every])
        shown = make_scorer(plan.problem, "cpu").simulate(values)[0][:, :, 0]
        assert np.abs(data - shown).max() < 4e-3 * np.abs(current).max()
        apart = np.abs(data - current[:, ::every]).max()
        assert apart > 0.1 * np.abs(current).max()  # it does something


def test_a_constant_stays_and_noise_shrinks_in_the_filter(tmp_path: Path) -> None:
    n = FINE.n_times_max
    noise = np.random.default_rng(1).normal(0, 10, (1, n))
    write(tmp_path, 25 + 0 * noise)
    told = {"lowpass": {"cutoff": "2 kHz"}}
    still = read(tmp_path, told, protocol=FINE)
    assert furthest(still, np.full((1, n), 25.0)) < 1e-9
    write(tmp_path, noise)
    quieter = read(tmp_path, told, protocol=FINE).current_pA.std()
    # a Bessel filter of four poles passes noise like a sharp one at 1.04 times its cutoff
    assert quieter == pytest.approx(10 * np.sqrt(1.04 * 2 / 50), rel=0.15)


def test_filters_that_cannot_be(tmp_path: Path) -> None:
    write(tmp_path, 0 * FINE.command())
    filtered, leak = "{lowpass: {cutoff: 2 kHz}}", "{leak: {conductance: 1 nS, reversal: 0 mV}}"
    for step, more, told in (
        ("{lowpass: {cutoff: 80 kHz}}", "", "80 kHz does not fit to a sample every 0.01 ms"),
        ("{lowpass: {cutoff: 2 kHz, every: 50}}", "", "lowpass.every: 2 kHz does not fit"),
        (f"{filtered}, {filtered}", "", "this is the second"),
        (f"{filtered}, {leak}", "", r"condition\[2\].leak: a leak is subtracted before the low-p"),
        (filtered, "      clamp: {lowpass: {cutoff: 5 kHz}}\n", "only one can be modelled"),
    ):
        with pytest.raises(InputError, match=told):
            load_plan(lowpass_fit(tmp_path, step, more))
