"""Recorded and nominal commands as protocols, and protocols of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import channelfit as cf
from channelfit.problem.command_segments import cut_into_sweeps, find_segments, protocol_of_epochs
from channelfit.problem.protocol import build_protocol
from channelfit.problem.waves import Constant, Ramp, Sines
from channelfit.reading.documents import parse_yaml
from channelfit.reading.formats import read

LEVELS = st.integers(-240, 120).map(lambda k: k / 2)
COUNTS = st.integers(8, 60)


@st.composite
def protocols(draw: st.DrawFn) -> cf.Protocol:
    """Steps and ramps whose edges lie on samples, with families of both."""
    sampling = draw(st.sampled_from([0.05, 0.1, 0.2, 1.0]))
    n = draw(st.integers(1, 5))

    def family(values: Any) -> Any:
        if n == 1 or draw(st.booleans()):
            return draw(values)
        return {"values": draw(st.lists(values, min_size=n, max_size=n))}

    times = COUNTS.map(lambda k: round(k * sampling, 9))
    rows: list[dict[str, Any]] = [{"hold": draw(times)}]
    for kind in draw(st.lists(st.sampled_from(["step", "step", "ramp"]), max_size=5)):
        wave = family(LEVELS) if kind == "step" else [family(LEVELS), family(LEVELS)]
        rows.append({kind: wave, "for": draw(times)})
    return cf.Protocol.from_segments(rows, holding=draw(LEVELS), sampling=sampling)


@settings(max_examples=60, deadline=None)
@given(protocols())
def test_a_computed_command_is_found_again_and_written(protocol: cf.Protocol) -> None:
    command = protocol.command()
    found = find_segments(command, protocol.sampling_ms, protocol.holding_mV)
    waves = {type(s.wave) for sweep in found.protocol.sweeps for s in sweep}
    assert found.residual_mV < 1e-4
    ramps = [s.wave for sweep in protocol.sweeps for s in sweep if isinstance(s.wave, Ramp)]
    if any(abs(wave.v_end_mV - wave.v_start_mV) < 8 for wave in ramps):
        return  # so slow beside the others that it may stay as its samples
    assert waves <= {Constant, Ramp}
    again = build_protocol(parse_yaml(found.protocol.to_yaml()), None)
    assert np.abs(again.command() - command).max() < 1e-4


def rows_of_steps() -> list[dict[str, Any]]:
    return [
        {"hold": 20},
        {"step": -120, "for": 50},
        {"ramp": [-120, -80], "for": 40},
        {"step": {"from": -80, "to": 40, "by": 20}, "for": 100},
        {"step": -65, "for": 30},
        {"hold": 20},
    ]


@pytest.mark.parametrize("kind", ["noisy", "digitized", "all"])
def test_levels_and_times_of_a_recorded_command_are_those_that_were_typed(kind: str) -> None:
    told = cf.Protocol.from_segments(rows_of_steps(), holding=-80, sampling=0.1)
    command = told.command()
    random = np.random.default_rng(1)
    if kind == "all":  # filtered as well
        before = np.concatenate([command[:, :1], command[:, :-1]], axis=1)
        command = 0.6 * command + 0.4 * before
    if kind in ("noisy", "all"):
        command = command + 0.15 * random.normal(size=command.shape)
    if kind in ("digitized", "all"):
        command = np.round(command / 0.0305) * 0.0305
    found = find_segments(command, 0.1)
    assert found.protocol.holding_mV == -80
    assert found.protocol.sweeps == told.sweeps
    largest = {"noisy": 0.9, "digitized": 0.05, "all": 0.95}[kind]
    assert found.residual_mV < largest
    sweep, time = found.residual_at
    there = np.abs(found.protocol.command() - command)[sweep, round(time / 0.1)]
    assert there == pytest.approx(found.residual_mV)
    assert found.edge_samples == (1 if kind == "all" else 0)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_sines_are_found(noise: float) -> None:
    terms = [
        {"amplitude": 54, "omega": 0.007, "phase": 3.5},
        {"amplitude": 26, "omega": 0.037, "phase": 0.5},
        {"amplitude": 10, "omega": 0.19, "phase": 2},
    ]
    rows = [{"hold": 100}, {"sines": {"offset": -30, "terms": terms}, "for": 3000}, {"hold": 100}]
    told = cf.Protocol.from_segments(rows, holding=-80, sampling=0.5)
    command = told.command() + noise * np.random.default_rng(2).normal(size=(1, 6400))
    found = find_segments(command, 0.5)
    _, wave, _ = (s.wave for s in found.protocol.sweeps[0])
    assert isinstance(wave, Sines)
    assert wave.omegas_per_ms == pytest.approx((0.007, 0.037, 0.19), abs=1e-6)
    assert wave.amplitudes_mV == (54, 26, 10)
    assert wave.offset_mV == -30
    assert np.abs(found.protocol.command() - told.command()).max() < (0.3 if noise else 1e-4)


def listed(text: str, folder: Path) -> cf.Protocol:
    file = folder / "list.csv"
    file.write_text(text)
    return protocol_of_epochs(read(file).epochs, 0.5, -100, "list")


@pytest.mark.parametrize("last", ["0 20\n", "0 20\n-100 70\n"])
def test_a_list_of_all_sweeps_is_cut(last: str, tmp_path: Path) -> None:
    rows = "".join(f"-100 10\n{v} 20\n-100 10\n-100 60\n" for v in (-40, -20))
    whole = listed(f"# Voltage (mV) Duration (ms)\n{rows}-100 10\n{last}", tmp_path)
    cut = cut_into_sweeps(whole, 3, 30)
    assert cut.voltage([0, 10, 29]).tolist() == [[-100, v, v] for v in (-40, -20, 0)]
    assert (cut.carry_over, cut.rest_ms, cut.n_times_max) == (True, 70, 60)
    assert cut_into_sweeps(whole, 4, 30) is None


def test_the_starts_in_a_list_of_steps_count(tmp_path: Path) -> None:
    """A step that would last longer than until the next one starts is cut short."""
    made = listed("level,start,length\n-80,0,9\n0,5,10\n", tmp_path)
    assert [(s.start_ms, s.end_ms) for s in made.sweeps[0]] == [(0, 5), (5, 15)]
    (note,) = read(tmp_path / "list.csv").notes
    assert "Step 1 would last 9 ms, but the next one starts after 5 ms" in note
    (tmp_path / "gap.csv").write_text("level,start,length\n-80,0,5\n0,6,10\n")
    with pytest.raises(cf.InputError, match="step 2 starts at 6 ms, but the one before it ends"):
        read(tmp_path / "gap.csv")


def test_a_junction_potential_moves_all_voltages() -> None:
    sines = {"offset": -30, "terms": [{"amplitude": 5, "frequency": "40 Hz"}]}
    rows = [
        {"hold": 5},
        {"step": {"values": [0, 40]}, "for": 5},
        {"ramp": [-120, 60], "for": 5},
        {"sines": sines, "for": 5},
    ]
    plain = cf.Protocol.from_segments(rows, holding=-80, sampling=0.1)
    moved = cf.Protocol.from_segments(rows, holding=-80, sampling=0.1, junction_potential="4.5 mV")
    assert np.allclose(moved.command(), plain.command() - 4.5, rtol=0, atol=1e-12)
    assert (moved.holding_mV, moved.junction_potential_mV) == (-84.5, 4.5)
    assert "junction_potential: 4.5 mV" in moved.to_yaml()
    assert "holding: -80 mV" in moved.to_yaml()
    time = np.arange(9.0)
    record = cf.Protocol.from_command(time, time / 3, holding=0, junction_potential=2.1)
    assert np.allclose(record.command(), time / 3 - 2.1, rtol=0, atol=1e-9)
