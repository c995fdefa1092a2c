"""Protocol files: sweeps, samples, boundaries, and what cannot be used."""

from __future__ import annotations

import gzip
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from channelfit.problem.protocol import Protocol, build_protocol, load_protocol
from channelfit.problem.waves import Constant, Segment
from channelfit.reading.errors import InputError


def built(*segments: dict[str, Any], **keys: Any) -> Protocol:
    document = {"holding": "-80 mV", "sampling": "0.1 ms", "segments": list(segments), **keys}
    return build_protocol(document, "p.yaml")


def said_of(*segments: Any, **keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        built(*segments, **keys)
    return str(caught.value)


def test_steps_and_holding() -> None:
    p = built({"hold": "5 ms"}, {"step": "40 mV", "for": "0.02 s"}, {"hold": 1})
    assert p.sweeps == (
        (
            Segment(0.0, 5.0, Constant(-80.0)),
            Segment(5.0, 25.0, Constant(40.0)),
            Segment(25.0, 26.0, Constant(-80.0)),
        ),
    )
    assert (p.n_sweeps, p.n_times(0), p.name) == (1, 260, "p")
    assert p.times_ms[[0, 1, -1]] == pytest.approx([0, 0.1, 25.9])
    assert not p.carry_over


def test_families() -> None:
    p = built({"hold": 1}, {"step": {"from": -80, "to": 40, "by": 40}, "for": 2})
    assert [sweep[1].wave for sweep in p.sweeps] == [Constant(v) for v in (-80, -40, 0, 40)]
    down = built({"step": {"from": "0.01 V", "to": -15, "by": -10}, "for": 2})
    assert [sweep[0].wave for sweep in down.sweeps] == [Constant(v) for v in (10, 0, -10)]
    both = built({"step": {"values": [1, 2]}, "for": {"values": [1, "0.003 s"]}}, {"hold": 1})
    assert [sweep[0].end_ms for sweep in both.sweeps] == [1.0, 3.0]
    assert [both.n_times(k) for k in range(2)] == [20, 40]
    one = built({"step": {"values": [7]}, "for": {"values": [1, 2]}})
    assert [sweep[0].wave for sweep in one.sweeps] == [Constant(7.0)] * 2


def test_sines_count_from_their_segment_unless_told_otherwise() -> None:
    terms = [{"amplitude": "5 mV", "frequency": "10 Hz"}]
    p = built({"hold": {"values": [3, 4]}}, {"sines": {"terms": terms}, "for": 10})
    assert [sweep[1].wave.origin_ms for sweep in p.sweeps] == [3.0, 4.0]  # type: ignore[union-attr]
    assert p.command()[0, 30] == pytest.approx(0.0, abs=1e-12)
    omega = p.sweeps[0][1].wave.omegas_per_ms[0]  # type: ignore[union-attr]
    assert omega == pytest.approx(2 * math.pi * 0.01)
    fixed = built({"hold": 3}, {"sines": {"terms": terms, "origin": -1}, "for": 10})
    assert fixed.sweeps[0][1].wave.origin_ms == -1.0  # type: ignore[union-attr]


def test_samples_belong_to_the_segment_that_holds_their_time() -> None:
    p = built({"hold": 0.25}, {"step": 10, "for": 0.01}, {"step": 20, "for": 0.24}, {"hold": 0.03})
    assert p.sample_ranges(0) == [(0, 3), (3, 3), (3, 5), (5, 6)]
    assert p.command()[0].tolist() == [-80, -80, -80, 20, 20, -80]


def test_a_boundary_on_a_sample_begins_the_next_segment() -> None:
    """0.3 = 3 * 0.1 only up to rounding; a sample must not change sides for that."""
    for n in (1, 3, 6, 7, 12, 700, 12_345):
        p = built({"hold": 0.1 * n}, {"step": 10, "for": 1})
        assert p.sample_ranges(0) == [(0, n), (n, n + 10)]
        assert p.command()[0, n - 1 : n + 1].tolist() == [-80.0, 10.0]


@given(
    st.lists(st.floats(0.001, 30), min_size=1, max_size=8),
    st.sampled_from([0.01, 0.04, 0.1, 0.3, 1.0, 7.0]),
)
def test_every_sample_belongs_to_exactly_one_segment(durations, sampling):
    steps = [{"step": float(k), "for": d} for k, d in enumerate(durations)]
    p = built(*steps, sampling=sampling)
    ranges = p.sample_ranges(0)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == p.n_times(0) == len(p.times_ms)
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    for segment, (a, b) in zip(p.sweeps[0], ranges, strict=True):
        t = p.times_ms[a:b]
        assert np.all(t >= segment.start_ms - 1e-5 * sampling)
        assert np.all(t < segment.end_ms + 1e-5 * sampling)
    assert np.isfinite(p.command()).all()


def test_a_sweep_that_is_carried_over_begins_with_a_step_after_a_rest_only() -> None:
    segment = {"step": 20, "for": {"values": [1, 2]}}
    for between, expected in (
        ("carry over", []),
        ({"carry_over": True, "rest": 5}, [0.0]),
        ("steady state", [0.0]),
    ):
        p = built(segment, between_sweeps=between)
        assert [p.step_times_ms(k).tolist() for k in range(2)] == [[0.0], expected]


def test_a_sweep_that_carries_over_goes_on_from_where_a_ramp_ended() -> None:
    ramps = built(
        {"step": {"values": [0, 10]}, "for": 1},
        {"ramp": [-80, 20], "for": 1},
        between_sweeps="carry over",
    )
    assert [ramps.voltage_before(k) for k in range(2)] == [-80.0, 20.0]


def recorded(folder: Path, rest: str, after: str = "") -> Protocol:
    file = folder / "p.yaml"
    file.write_text(
        "holding: -80 mV\nsampling: 0.1 ms\n"
        f"segments:\n  - {{recorded: {{column: v, {rest}}}{after}}}\n"
    )
    return load_protocol(file)


def test_a_recorded_command(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,v\n5,-80\n6,-70\n8,0\n")
    even = recorded(tmp_path, "file: a.csv, sampling: 0.5 ms")
    assert even.sweeps[0][0].end_ms == 1.0
    assert even.command()[0, [0, 1, 5, 6]] == pytest.approx([-80, -78, -70, -56])
    timed = recorded(tmp_path, "file: a.csv, time: {column: t, unit: ms}", ", for: 5 ms")
    assert timed.n_times(0) == 50
    assert timed.command()[0, [0, 5, 20, 40]] == pytest.approx([-80, -75, -35, 0])
    volts = recorded(tmp_path, "file: a.csv, unit: mV, time: {column: t, unit: s}")
    assert volts.sweeps[0][0].end_ms == 3000.0
    with gzip.open(tmp_path / "b.csv.gz", "wt") as file:
        file.write("v\n-80\n-70\n")
    assert recorded(tmp_path, "file: b.csv.gz, sampling: 1").n_times(0) == 10


def test_a_recorded_command_for_every_sweep(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,v,w\n0,1,5\n1,2,6\n2,3,7\n")
    rows = "holding: -80\nsampling: 1\nsegments:\n  - {recorded: {file: a.csv, "
    for columns in ("columns: [v, w]", "columns: all"):
        (tmp_path / "p.yaml").write_text(rows + columns + ", time: {column: t}}, for: 3}\n")
        made = load_protocol(tmp_path / "p.yaml")
        assert made.command().tolist() == [[1, 2, 3], [5, 6, 7]]
    for columns, message in (
        ("columns: []", r"segments\[1\].recorded.columns: 1 to 10000 columns are accepted"),
        ("columns: [v], column: v", "recorded: either column or columns was expected, not both"),
        ("columns: [v, x]", 'no column "x"; there are: t, v, w'),
    ):
        (tmp_path / "p.yaml").write_text(rows + columns + ", time: {column: t}}, for: 3}\n")
        with pytest.raises(InputError, match=message):
            load_protocol(tmp_path / "p.yaml")


@pytest.mark.parametrize(
    ("rows", "rest", "message"),
    [
        ("v\n1\nnan\n", "sampling: 1", "not a usable command voltage: line 3 is not finite"),
        ("v\nx\n2\n", "sampling: 1", "a.csv: line 2: not a table of numbers"),
        ("v\n1\n2\n", "sampling: 0", "recorded.sampling: a sampling interval above 0"),
        ("v\n1\n2\n", "unit: mV", 'recorded: "sampling" is missing'),
        ("v\n1\n2\n", "sampling: 1, unit: V", "2000 mV in sweep 1 is more than 1000 mV"),
        ("t,v\n1,1\n1,2\n", "time: {column: t}", "its times must increase"),
    ],
)
def test_mistakes_in_recorded_commands(tmp_path: Path, rows: str, rest: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(rows)
    with pytest.raises(InputError, match=re.escape(message)):
        recorded(tmp_path, f"file: a.csv, {rest}")


STEP3 = {"step": {"values": [1, 2, 3]}, "for": 1}


def test_mistakes_in_segments_and_beside_them():
    for segments, message in (
        ([{"hold": 1, "step": 1}], "segments[1]: one of hold, step, ramp, sines, recorded"),
        ([{"hold": 1}, {"step": 5}], 'segments[2]: "for" is missing'),
        ([{"hold": 1e-8}], "segments: a sweep of 1e-08 ms holds no sample"),
        ([{"ramp": [1, 2, 3], "for": 1}], "segments[1].ramp: a ramp is [start, end], not [1, 2"),
        ([{"step": {"from": 1, "to": 2, "by": -1}, "for": 1}], "segments[1].step.by: steps of -1"),
        ([{**STEP3, "for": {"values": [1, 2]}}], "segments[1]: 3 voltages but 2 durations"),
        ([STEP3, {"hold": {"values": [1, 2]}}], "segments: families of 2, 3 values; families in"),
        (
            [{"sines": {"terms": [{"amplitude": 1, "omega": 40}]}, "for": 1}],
            "sampling: a sine of omega 40 1/ms has no two samples in a period; sample at 0.0785 ms",
        ),
        (
            [{"sines": {"terms": [{"amplitude": 600, "omega": 1}] * 2}, "for": 1}],
            "segments: 1200 mV in sweep 1 is more than 1000 mV; is the unit right?",
        ),
        ([{"hold": 1e9}], "sampling: 1e+10 samples x 1 sweeps exceed 20,000,000"),
    ):
        said = said_of(*segments)
        assert said.startswith("p.yaml: ")
        assert message in said
    for keys, message in (
        ({"sampling": 0}, "p.yaml: sampling: a sampling interval above 0 was expected, not 0"),
        ({"sampling": 1e-300}, "is the sampling in ms?"),
        ({"holding": "-80 V"}, "80000 mV in sweep 1 is more than 1000 mV"),
        ({"between_sweeps": "rest"}, 'between_sweeps: "rest" is not one of steady state'),
        ({"between_sweeps": {"carry_over": "yes"}}, "between_sweeps.carry_over: true or false"),
        ({"between_sweeps": {"rest": -1}}, "between_sweeps.rest: a time of 0 or more was expected"),
        ({"between_sweeps": {"carry_over": False, "rest": 1}}, "needs `carry_over: true`"),
    ):
        assert message in said_of({"hold": 1}, **keys)
