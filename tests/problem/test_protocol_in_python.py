"""Protocols written in Python, and protocol files from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import channelfit as cf
from channelfit.problem import segments
from channelfit.problem.protocol import build_protocol
from channelfit.problem.segments import written_family
from channelfit.problem.waves import Constant, Ramp, Segment, Sines
from channelfit.reading.documents import parse_yaml
from support.places import ROOT

COMMON: dict[str, Any] = {"holding": -80, "sampling": 0.1}


def read_again(protocol: cf.Protocol) -> cf.Protocol:
    return build_protocol(parse_yaml(protocol.to_yaml()), None)


def refusal(make: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(cf.InputError) as caught:
        make(*arguments, **named)
    return str(caught.value)


def test_a_family_of_steps() -> None:
    made = cf.Protocol.steps(
        range(-60, 41, 10), 500, before=100, after=[50] * 11, after_level="-0.05 V", **COMMON
    )
    rows = [
        {"hold": 100},
        {"step": {"from": -60, "to": 40, "by": 10}, "for": 500},
        {"step": -50, "for": 50},
    ]
    assert made == cf.Protocol.from_segments(rows, name="steps", **COMMON)
    assert made.n_sweeps == 11


def test_segments_are_the_rows_of_a_file() -> None:
    shared = {"name": "all", "description": "what there is", "source": "invented"}
    shared |= {"holding": "-80 mV", "sampling": np.float64(0.5), "between_sweeps": {"rest": 20}}
    sines = {"sines": {"terms": [{"amplitude": 10, "omega": 0.1}]}, "for": 20}
    rows = ({"hold": 5}, {"step": {"values": np.array([-40, 0])}, "for": 10})
    made = cf.Protocol.from_segments(
        (*rows, {"ramp": np.array([40, -120]), "for": 16}, sines), **shared
    )
    plain = [{"hold": 5}, {"step": {"values": [-40, 0]}, "for": 10}]
    plain += [{"ramp": [40, -120], "for": 16}, sines]
    assert made == build_protocol(shared | {"segments": plain}, None)
    assert (made.carry_over, made.rest_ms, made.n_sweeps) == (True, 20, 2)
    assert read_again(made) == made


def test_a_recorded_command_has_a_sample_for_each_of_its_own() -> None:
    time = np.arange(1000) * 0.1
    voltage = np.stack([20 * np.sin(time), np.full(1000, 5.0)])
    made = cf.Protocol.from_command(time + 7, voltage, holding="-80 mV", name="waves")
    assert (made.n_sweeps, made.n_times_max, made.sampling_ms) == (2, 1000, 0.1)
    np.testing.assert_allclose(made.command(), voltage, atol=1e-10)
    halved = cf.Protocol.from_command(time, voltage[0], holding=-80, sampling=0.05)
    assert halved.n_times_max == 2000
    assert halved.command()[0, 1] == pytest.approx(voltage[0, :2].mean())
    time[:], voltage[:] = 0, 0
    assert made.command()[1, 3] == 5.0


TIMES = np.arange(10) * 0.5


def test_mistakes_in_recorded_commands():
    for arguments, message in (
        ({"time": TIMES[None]}, "time: one row of two or more times was expected, not (1, 10)"),
        ({"voltage": ["a"] * 10}, "voltage: an array of numbers was expected"),
        ({"voltage": np.zeros((10, 3))}, "it is turned, give voltage.T"),
        ({"voltage": np.where(TIMES == 2, np.nan, 0)}, "sample 4 (counted from 0) is not finite"),
        ({"time": TIMES[::-1]}, "its times must increase, but in sample 1 (counted from 0)"),
        ({"time": TIMES**2}, "say at which interval the protocol is to be sampled: sampling=..."),
        ({"voltage": np.full(10, 5e3)}, "5000 mV in sweep 1 is more than 1000 mV"),
    ):
        usual = {"time": TIMES, "voltage": np.zeros(10), "holding": -80}
        assert message in refusal(cf.Protocol.from_command, **(usual | arguments))


@pytest.mark.parametrize("name", ["activation", "recovery", "staircase", "ramp", "herg_sine_wave"])
def test_voltages_at_the_samples_and_between(name: str) -> None:
    protocol = cf.Protocol.load(ROOT / "protocols" / f"{name}.yaml")
    at_samples = protocol.voltage(protocol.times_ms)
    assert np.array_equal(at_samples, protocol.command(), equal_nan=True)
    assert np.array_equal(protocol.voltage(), protocol.command(), equal_nan=True)
    outside = protocol.voltage([-1.0, 1e9])
    assert np.isnan(outside).all()
    assert protocol.voltage(3.0).shape == (protocol.n_sweeps, 1)
    assert "times_ms: one row of times" in refusal(protocol.voltage, [[1.0]])


VOLTS = st.floats(-200, 200)
TIME = st.one_of(st.integers(1, 50), st.floats(0.01, 50))


@st.composite
def protocols(draw: st.DrawFn) -> cf.Protocol:
    n = draw(st.integers(1, 4))

    def family(values: Any) -> Any:
        if n == 1 or draw(st.booleans()):
            return draw(values)
        return {"values": draw(st.lists(values, min_size=n, max_size=n))}

    kinds = st.sampled_from(["hold", "step", "ramp", "sines"])
    rows: list[dict[str, Any]] = [{"hold": {"values": [draw(TIME)] * n}}]
    for kind in draw(st.lists(kinds, max_size=5)):
        time = family(st.one_of(st.just(0), TIME) if kind in ("hold", "step") else TIME)
        if kind == "hold":
            rows.append({"hold": time})
        elif kind == "step":
            rows.append({"step": family(VOLTS), "for": time})
        elif kind == "ramp":
            rows.append({"ramp": [family(VOLTS), family(VOLTS)], "for": time})
        else:
            origin = {"origin": draw(st.floats(-10, 10))} if draw(st.booleans()) else {}
            term = {"amplitude": draw(VOLTS), "omega": draw(st.floats(-1, 1)), "phase": draw(VOLTS)}
            rows.append({"sines": {"terms": [term], **origin}, "for": time})
    return cf.Protocol.from_segments(
        rows,
        holding=draw(VOLTS),
        sampling=draw(st.floats(0.01, 3)),
        between_sweeps=draw(st.sampled_from(["steady state", "carry over", {"rest": 2.5}])),
        junction_potential=draw(st.one_of(st.just(0), st.floats(-20, 20))),
        description=draw(st.sampled_from(["", "1e3", "two: words"])),
    )


@given(protocols())
def test_protocols_survive_yaml(protocol: cf.Protocol) -> None:
    again = read_again(protocol)
    assert again == protocol
    assert np.array_equal(again.command(), protocol.command(), equal_nan=True)


def test_a_small_first_step_makes_no_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting on from it would fill the memory; evenly spaced values still are a family."""
    assert written_family([0.0, 0.1, 0.2], "mV") == {"from": "0 mV", "to": "0.2 mV", "by": "0.1 mV"}
    monkeypatch.setattr(segments, "_stepped", lambda *_: pytest.fail("counted"))
    for values in ([0.0, 1e-9, 100.0], [-1e308, -1e308 + 1e292, 1e308], [0.0, 1.0, -1.0]):
        assert set(written_family(values, "mV")) == {"values"}


def test_recorded_commands_are_written_as_tables_beside_the_file(tmp_path: Path) -> None:
    time = np.arange(40) / 3
    random = np.random.default_rng(2).normal(size=(3, 40))
    made = cf.Protocol.from_command(time, random, holding=-80)
    assert "use save(path)" in refusal(made.to_yaml)
    path = made.save(tmp_path / "p.yaml")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.yaml", "p_command.csv"]
    assert cf.Protocol.load(path) == made
    other = random.copy()
    other[1, 5] += 1e-9
    assert cf.Protocol.from_command(time, other, holding=-80) != made
    one = cf.Protocol.from_command(time, random[0], holding=-80)
    assert cf.Protocol.load(one.save(path, overwrite=True)) == one


def _wave(wave: Any) -> Segment:
    return Segment(0, 5, wave)


def test_what_a_file_cannot_hold_is_not_written(tmp_path):
    for sweeps, message in (
        (
            ((_wave(Sines(0, (1,), (1,), (0,), 0)),), (_wave(Sines(0, (2,), (1,), (0,), 0)),)),
            "the sweeps have different ramps or sines",
        ),
        (((_wave(Ramp(0, 1)),), (_wave(Constant(2)),)), "different numbers of ramps, sines or rec"),
        (((Segment(1, 5, Constant(2)),),), "sweeps would differ when it is read again"),
        (((Segment(0, 5 + 1e-11, Constant(2)),),), "sweeps would differ when it is read again"),
    ):
        made = cf.Protocol("p", -80, 0.5, sweeps)
        assert message in refusal(made.to_yaml)
        assert message in refusal(made.save, tmp_path / "p.yaml")
        assert not list(tmp_path.iterdir())


def test_sweeps_that_are_equal_stay_several() -> None:
    made = cf.Protocol.steps([10, 10], 5, **COMMON)
    assert made.n_sweeps == read_again(made).n_sweeps == 2
    assert "name would differ" in refusal(replace(made, name=" a ").to_yaml)
