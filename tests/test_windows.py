"""Recordings of a part of each sweep, and rests between sweeps at a voltage of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from channelfit.problem.protocol import Protocol, build_protocol
from channelfit.problem.recording import Recording, load_recording
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError

#: 5 s, then a step to one of two voltages of which 25 ms are recorded, as 250 samples.
LONG = build_protocol(
    {
        "name": "long",
        "holding": -80,
        "sampling": "0.1 ms",
        "segments": [{"hold": "5 s"}, {"step": {"values": [0, 40]}, "for": "25 ms"}],
    },
    None,
)
#: Pauses of three lengths, each followed by 4 ms of which all are recorded.
PAUSES = build_protocol(
    {
        "name": "pauses",
        "holding": -80,
        "sampling": "1 ms",
        "segments": [{"hold": {"values": [2, 5, 9]}}, {"step": 0, "for": 4}],
    },
    None,
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


def test_a_part_without_its_start_is_refused_with_the_key(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"250 samples, but long has 50250 .*`starts: 5 s`"):
        part(tmp_path, LONG, np.ones((250, 2)))


def test_each_sweep_has_its_own_start(tmp_path: Path) -> None:
    rows = np.arange(12.0).reshape(4, 3)
    recording = part(tmp_path, PAUSES, rows, starts=["2 ms", 5, 9])
    for k, first in enumerate((2, 5, 9)):
        np.testing.assert_array_equal(recording.current_pA[k, first : first + 4], rows[:, k])
        assert recording.weight[k].sum() == 4


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
        ("5.001 s", "what begins at 5001 ms ends at 5026 ms, but sweep 1 of long ends at 5025 ms"),
        ("5.00005 s", '"5.00005 s" is no time of a sample; these are every 0.1 ms'),
        ("-1 ms", "is no time of a sample"),
        ("5 mV", 'unit "mV" is a voltage'),
        ([1, 2, 3], "3 times, but 2 sweeps were recorded"),
    ],
)
def test_starts_that_cannot_be(tmp_path: Path, starts: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        part(tmp_path, LONG, np.ones((250, 2)), starts=starts)
    assert said in str(caught.value)
    assert "recording.starts" in str(caught.value)


def test_what_is_missing_inside_a_part_is_refused(tmp_path: Path) -> None:
    rows = np.ones((250, 2))
    rows[3, 1] = np.nan
    with pytest.raises(InputError, match=r"s1: line 5 \(5000.3 ms\) is NaN or inf"):
        part(tmp_path, LONG, rows, starts="5 s")
    recording = part(tmp_path, LONG, rows, starts="5 s", missing="mask")
    assert recording.weight[1, 50_003] == 0
