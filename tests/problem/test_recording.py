"""Recordings and weights: every shape, unit and mistake that a table can have."""

from __future__ import annotations

import gzip
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from hypothesis import given, settings
from hypothesis import strategies as st

from channelfit.problem.protocol import Protocol, build_protocol
from channelfit.problem.recording import Recording, load_recording, masks
from channelfit.problem.waves import Constant, Segment
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError
from channelfit.reading.tables import column, read_columns

ONE = build_protocol(
    {"name": "one", "holding": -80, "sampling": "0.5 ms", "segments": [{"step": 0, "for": "5 ms"}]},
    None,
)
THREE = build_protocol(
    {
        "name": "three",
        "holding": -80,
        "sampling": "1 ms",
        "segments": [
            {"hold": "2 ms"},
            {"step": {"values": [-40, 0, 40]}, "for": "4 ms"},
            {"hold": "2 ms"},
        ],
    },
    None,
)
UNEQUAL = build_protocol(
    {
        "name": "unequal",
        "holding": -80,
        "sampling": "1 ms",
        "segments": [{"step": 0, "for": {"values": ["3 ms", "5 ms"]}}],
    },
    None,
)


def read(folder: Path, protocol: Protocol, **rows: object) -> Recording:
    """The recording of a `recording:` mapping in a fit file inside a folder."""
    return load_recording(Section(rows, folder / "fit.yaml", "recording"), protocol)


def message(folder: Path, protocol: Protocol, **rows: object) -> str:
    """What `read` complains of."""
    with pytest.raises(InputError) as caught:
        read(folder, protocol, **rows)
    return str(caught.value)


def write(folder: Path, text: str, name: str = "r.csv") -> None:
    (folder / name).write_text(text, encoding="utf-8")


def one_table(folder: Path, current: list[object] | None = None, h: float = 0.5) -> None:
    """time, current: ten rows for ONE."""
    values = list(range(10)) if current is None else current
    rows = [f"{k * h:g},{x}" for k, x in enumerate(values)]
    write(folder, "\n".join(["time,current", *rows]))


CURRENT = {"column": "current", "unit": "pA"}
TIME = {"column": "time", "unit": "ms"}
SIMPLE = {"file": "r.csv", "time": TIME, "current": CURRENT}


def test_one_column_and_its_times(tmp_path: Path) -> None:
    one_table(tmp_path)
    recording = read(tmp_path, ONE, **SIMPLE)
    assert recording.current_pA.tolist() == [list(range(10))]
    assert recording.time_ms.tolist() == [0.5 * k for k in range(10)]
    assert (recording.weight == 1).all()
    assert recording.weight.shape == (1, 10)
    assert recording.source == "r.csv"


@pytest.mark.parametrize(("unit", "factor"), [("pA", 1), ("nA", 1e3), ("A", 1e12), ("uA", 1e6)])
def test_units_of_current(tmp_path: Path, unit: str, factor: float) -> None:
    one_table(tmp_path)
    recording = read(tmp_path, ONE, **SIMPLE | {"current": {"column": "current", "unit": unit}})
    assert recording.current_pA[0, 3] == pytest.approx(3 * factor, rel=1e-15)


def test_units_of_time(tmp_path: Path) -> None:
    one_table(tmp_path, h=0.0005)
    recording = read(tmp_path, ONE, **SIMPLE | {"time": {"column": "time", "unit": "s"}})
    assert recording.time_ms[1] == 0.5


def test_start_of_the_sweep_in_the_column_of_times(tmp_path: Path) -> None:
    rows = [f"{100 + 0.5 * k},{k}" for k in range(10)]
    write(tmp_path, "\n".join(["time,current", *rows]))
    said = message(tmp_path, ONE, **SIMPLE)
    assert "recording.time.start" in said
    assert "start: 100 ms" in said
    recording = read(tmp_path, ONE, **SIMPLE | {"time": TIME | {"start": "0.1 s"}})
    assert recording.time_ms[0] == 0.0


def test_rounded_times_are_accepted(tmp_path: Path) -> None:
    h = 1 / 3
    protocol = replace(ONE, sampling_ms=h, sweeps=((Segment(0.0, 100 * h, Constant(0.0)),),))
    rows = [f"{k * h:.2f},{k}" for k in range(100)]
    write(tmp_path, "\n".join(["time,current", *rows]))
    assert read(tmp_path, protocol, **SIMPLE).current_pA.shape == (1, 100)


def test_sampling_in_place_of_times(tmp_path: Path) -> None:
    write(tmp_path, "\n".join(str(k) for k in range(10)), "r.txt")
    rows = {"file": "r.txt", "sampling": "500 us", "current": {"column": 1, "unit": "nA"}}
    assert read(tmp_path, ONE, **rows).current_pA[0, 2] == 2000


def test_compressed_table(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "r.csv.gz", "wt") as file:
        file.write("current\n" + "\n".join("5" for _ in range(10)))
    rows = {"file": "r.csv.gz", "sampling": "0.5 ms", "current": CURRENT}
    assert (read(tmp_path, ONE, **rows).current_pA == 5).all()


def test_matlab_matrix_is_a_column_a_sweep(tmp_path: Path) -> None:
    data = np.arange(24.0).reshape(8, 3)
    scipy.io.savemat(tmp_path / "r.mat", {"I": data})
    rows = {"file": "r.mat", "sampling": "1 ms", "current": {"column": "I", "unit": "pA"}}
    assert np.array_equal(read(tmp_path, THREE, **rows).current_pA, data.T)


def three_table(folder: Path, extra: str = "") -> np.ndarray:
    """time_ms and columns a, b, c: eight rows for THREE."""
    data = np.arange(24.0).reshape(8, 3)
    rows = [",".join([str(k), *map(str, row)]) for k, row in enumerate(data)]
    write(folder, "\n".join(["time_ms,a,b,c" + extra, *rows]))
    return data.T


THREE_TIME = {"column": "time_ms", "unit": "ms"}


def test_all_columns_but_that_of_times(tmp_path: Path) -> None:
    data = three_table(tmp_path)
    rows = {"file": "r.csv", "time": THREE_TIME, "current": {"columns": "all", "unit": "pA"}}
    assert np.array_equal(read(tmp_path, THREE, **rows).current_pA, data)


def test_columns_in_the_order_they_are_named(tmp_path: Path) -> None:
    data = three_table(tmp_path)
    current = {"columns": ["c", "a", "b"], "unit": "pA"}
    rows = {"file": "r.csv", "time": THREE_TIME, "current": current}
    assert np.array_equal(read(tmp_path, THREE, **rows).current_pA, data[[2, 0, 1]])


def test_columns_headed_by_numbers(tmp_path: Path) -> None:
    write(tmp_path, "\n".join(["-40.0,0.0,40.0", *["1,2,3"] * 8]))
    current = {"columns": ["40.0", -40.0, "0.0"], "unit": "pA"}
    rows = {"file": "r.csv", "header": True, "sampling": "1 ms", "current": current}
    assert read(tmp_path, THREE, **rows).current_pA[:, 0].tolist() == [3, 1, 2]


def test_some_sweeps_only(tmp_path: Path) -> None:
    data = three_table(tmp_path)
    current = {"columns": ["a", "b"], "unit": "pA"}
    rows = {"file": "r.csv", "time": THREE_TIME, "current": current, "sweeps": [3, 1]}
    recording = read(tmp_path, THREE, **rows)
    assert np.array_equal(recording.current_pA[[2, 0]], data[:2])
    assert np.isnan(recording.current_pA[1]).all()
    assert recording.weight.tolist() == [[1] * 8, [0] * 8, [1] * 8]


@pytest.mark.parametrize(
    ("sweeps", "said"),
    [
        ([1, 4], "4 is not the number of a sweep, 1 to 3"),
        ([0, 1], "0 is not"),
        ([1, 1], "each sweep once"),
        ([1], "1 sweeps are named, but there are 2 columns"),
        ([], "each sweep once"),
        ([True, 2], "True is not"),
        ("all", '"all" is not'),
        ({"a": 1}, "is not the number"),
        ([[1], [2]], "[1] is not"),
    ],
)
def test_sweeps_that_are_none(tmp_path: Path, sweeps: object, said: str) -> None:
    three_table(tmp_path)
    current = {"columns": ["a", "b"], "unit": "pA"}
    rows = {"file": "r.csv", "time": THREE_TIME, "current": current, "sweeps": sweeps}
    assert said in message(tmp_path, THREE, **rows)


def test_wrong_number_of_sweeps(tmp_path: Path) -> None:
    three_table(tmp_path)
    rows = {"file": "r.csv", "time": THREE_TIME, "current": {"column": "a", "unit": "pA"}}
    said = message(tmp_path, THREE, **rows)
    assert "1 column of currents, but three has 3 sweeps" in said
    assert "r.csv" in said


def test_unequal_sweeps_end_in_empty_cells(tmp_path: Path) -> None:
    write(tmp_path, "t,a,b\n0,1,10\n1,2,20\n2,3,30\n3,,40\n4, ,50\n")
    time = {"column": "t", "unit": "ms"}
    rows = {"file": "r.csv", "time": time, "current": {"columns": "all", "unit": "pA"}}
    recording = read(tmp_path, UNEQUAL, **rows)
    assert recording.current_pA[0, :3].tolist() == [1, 2, 3]
    assert np.isnan(recording.current_pA[0, 3:]).all()
    assert recording.weight.tolist() == [[1, 1, 1, 0, 0], [1] * 5]


def test_missing_samples_are_refused_or_masked(tmp_path: Path) -> None:
    one_table(tmp_path, [0, 1, "nan", 3, "inf", 5, 6, "-inf", 8, 9])
    said = message(tmp_path, ONE, **SIMPLE)
    assert "r.csv: column current: line 4 (1 ms) is NaN or inf, and so on at 2 more" in said
    assert "missing: mask" in said
    recording = read(tmp_path, ONE, **SIMPLE, missing="mask")
    assert np.flatnonzero(recording.weight[0] == 0).tolist() == [2, 4, 7]
    assert np.isnan(recording.current_pA[0, [2, 4, 7]]).all()
    assert "refuse, mask" in message(tmp_path, ONE, **SIMPLE, missing="ignore")


def test_one_missing_sample_is_not_called_many(tmp_path: Path) -> None:
    one_table(tmp_path, [0, 1, 2, 3, 4, 5, 6, 7, 8, ""])
    said = message(tmp_path, ONE, **SIMPLE)
    assert "line 11 (4.5 ms) is NaN or inf;" in said


def test_overflow_in_the_unit_is_not_passed_on(tmp_path: Path) -> None:
    one_table(tmp_path, [1e300, *range(9)])
    current = {"column": "current", "unit": "A"}
    assert "line 2 " in message(tmp_path, ONE, **SIMPLE | {"current": current})


def test_baseline_is_taken_off_sweep_by_sweep(tmp_path: Path) -> None:
    data = three_table(tmp_path)
    baseline = {"from": "1 ms", "to": "3 ms"}
    rows = {"file": "r.csv", "time": THREE_TIME, "current": {"columns": "all", "unit": "pA"}}
    recording = read(tmp_path, THREE, **rows, baseline=baseline)
    assert np.allclose(recording.current_pA, data - data[:, 1:3].mean(axis=1, keepdims=True))


def test_baseline_ignores_missing_samples(tmp_path: Path) -> None:
    one_table(tmp_path, [4, "nan", 6, *range(7)])
    rows = SIMPLE | {"baseline": {"from": 0, "to": "1.5 ms"}, "missing": "mask"}
    assert read(tmp_path, ONE, **rows).current_pA[0, 0] == -1


@pytest.mark.parametrize("window", [(5, 9), (-3, 0), (2, 1), (0.6, 0.9)])
def test_baseline_without_samples(tmp_path: Path, window: tuple[float, float]) -> None:
    one_table(tmp_path)
    baseline = {"from": window[0], "to": window[1]}
    said = message(tmp_path, ONE, **SIMPLE, baseline=baseline)
    told = "from 2 ms to 1 ms holds no time" if window == (2, 1) else "no sample of sweep 1 lies"
    assert "recording.baseline" in said
    assert told in said


@pytest.mark.parametrize("key", ["capacitance", "series_resistance"])
def test_the_clamp_does_not_stand_in_the_recording(tmp_path: Path, key: str) -> None:
    one_table(tmp_path)
    said = message(tmp_path, ONE, **SIMPLE | {key: 10})
    assert f"fit.yaml: recording.{key}: what the amplifier did stands beside the recording" in said
    assert "clamp: {series_resistance" in said


def test_a_recording_says_where_it_is_from(tmp_path: Path) -> None:
    one_table(tmp_path)
    assert read(tmp_path, ONE, **SIMPLE, source="me").source == "me"


@pytest.mark.parametrize("n", [0, 1, 9, 11, 20])
def test_wrong_number_of_samples(tmp_path: Path, n: int) -> None:
    one_table(tmp_path, list(range(n)))
    rows = {"file": "r.csv", "sampling": "0.5 ms", "current": CURRENT}
    said = message(tmp_path, ONE, **rows)
    if n:
        assert f"r.csv: {n} samples, but one has 10 (5 ms every 0.5 ms)" in said
    else:
        assert "r.csv" in said


def test_another_sampling(tmp_path: Path) -> None:
    one_table(tmp_path, h=0.25)
    assert "sampled every 0.25 ms, but one says 0.5 ms" in message(tmp_path, ONE, **SIMPLE)
    rows = {"file": "r.csv", "sampling": "0.1 ms", "current": CURRENT}
    said = message(tmp_path, ONE, **rows)
    assert "recording.sampling: sampled every 0.1 ms, but one says 0.5 ms" in said
    for sampling in (0, -0.5, "5 s"):
        assert "recording.sampling" in message(tmp_path, ONE, **rows | {"sampling": sampling})


def test_uneven_times(tmp_path: Path) -> None:
    times = [0, 0.5, 1, 1.5, 2.5, 3, 3.5, 4, 4.5, 5]
    write(tmp_path, "\n".join(["time,current", *[f"{t},0" for t in times]]))
    said = message(tmp_path, ONE, **SIMPLE)
    assert (
        "column time: times must be evenly spaced, but 1 ms lie before line 6 (at 2.5 ms)" in said
    )
    assert "0.5 ms before most;" in said or said.endswith("0.5 ms before most")


def test_times_that_stand_still_or_go_back(tmp_path: Path) -> None:
    write(tmp_path, "\n".join(["time,current", *[f"{t},0" for t in [0, 0.5, 1, 1, 2, 1.5]]]))
    said = message(tmp_path, ONE, **SIMPLE)
    assert "times must increase, but 1 ms in line 5 follows 1 ms, and so on at 1 more" in said


def test_times_that_are_missing(tmp_path: Path) -> None:
    write(tmp_path, "time,current\n0,1\nnan,1\n1,1\n")
    assert "column time: line 3 is nan: every sample needs a time" in message(
        tmp_path, ONE, **SIMPLE
    )
    write(tmp_path, "time,current\n0,1\n")
    assert "two samples or more" in message(tmp_path, ONE, **SIMPLE)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"file": "none.csv"}, "none.csv: no such file"),
        ({"file": "."}, "a folder, not a file"),
        ({"file": "a\0b.csv"}, "NUL"),
        ({"file": "x" * 5000 + ".csv"}, "cannot be read"),
        ({"file": "${NO_SUCH_NAME_HERE}/r.csv"}, "environment variable NO_SUCH_NAME_HERE"),
        ({"file": "fit.yaml"}, "no such file"),
        ({"file": ["a.csv"]}, "text was expected"),
        ({"file": None}, "text was expected"),
        ({"time": None}, "recording.time: a mapping"),
        ({"time": {"column": "time"}}, '"unit" is missing'),
        ({"time": {"column": "time", "unit": "mV"}}, 'recording.time.unit: unit "mV" is a voltage'),
        ({"time": {"column": "tiem", "unit": "ms"}}, 'no column "tiem"; there are: time, current'),
        ({"time": TIME | {"begin": 0}}, 'unknown key "begin"'),
        ({"sampling": "0.5 ms"}, "either time"),
        ({"current": "current"}, "recording.current: a mapping"),
        ({"current": {"column": "current"}}, 'recording.current: "unit" is missing'),
        ({"current": CURRENT | {"unit": "mV"}}, "recording.current.unit: unit"),
        ({"current": CURRENT | {"unit": "furlong"}}, 'unknown unit "furlong"'),
        ({"current": CURRENT | {"columns": "all"}}, "one of column, columns"),
        ({"current": {"unit": "pA"}}, "one of column, columns"),
        ({"current": {"columns": [], "unit": "pA"}}, "at least one column"),
        ({"current": {"columns": ["current"] * 2, "unit": "pA"}}, "named twice"),
        ({"current": {"columns": ["I"], "unit": "pA"}}, 'no column "I"'),
        ({"current": {"columns": [["current"]], "unit": "pA"}}, "no column"),
        ({"current": CURRENT | {"gain": 2}}, 'unknown key "gain"'),
        ({"header": "yes"}, "recording.header: true or false"),
        ({"baseline": {"from": 0}}, '"to" is missing'),
        ({"baseline": {"from": 0, "to": 1, "by": 1}}, 'unknown key "by"'),
        ({"baesline": {"from": 0, "to": 1}}, "did you mean baseline?"),
    ],
)
def test_mistakes_in_the_mapping(tmp_path: Path, change: dict[str, object], said: str) -> None:
    one_table(tmp_path)
    assert said in message(tmp_path, ONE, **(SIMPLE | change))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("r.csv", b"", "empty"),
        ("r.csv", b"\xff\xfe\x00", "cannot be read"),
        ("r.csv", b"time,current\n0,1\n0.5\n", "not a table of numbers"),
        ("r.csv", b"time,current\n0,1\n0.5,x\n", "not a table of numbers"),
        ("r.csv", b"time,time\n0,1\n0.5,2\n", "same name"),
        ("r.csv.gz", b"time,current\n0,1\n", "cannot be read"),
        ("r.mat", b"MATLAB 5.0 MAT-file and then nothing of the kind", "not a readable MATLAB"),
        ("r.abf", b"ABF2", "write `signal: NAME`"),
        ("r.xlsx", b"PK", "not a format that can be read; accepted: .csv"),
        ("r", b"1", "not a format"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert said in message(tmp_path, ONE, **SIMPLE | {"file": name})


def test_columns_of_unequal_length(tmp_path: Path) -> None:
    scipy.io.savemat(tmp_path / "r.mat", {"a": np.zeros(8), "b": np.zeros(7), "c": np.zeros(8)})
    rows = {"file": "r.mat", "sampling": "1 ms", "current": {"columns": "all", "unit": "pA"}}
    assert "columns of 7, 8 rows" in message(tmp_path, THREE, **rows)


def test_environment_variable_in_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_table(tmp_path)
    monkeypatch.setenv("MY_RECORDINGS", str(tmp_path))
    rows = SIMPLE | {"file": "${MY_RECORDINGS}/r.csv"}
    recording = read(tmp_path / "elsewhere", ONE, **rows)
    assert recording.current_pA.shape == (1, 10)


# --- weights -------------------------------------------------------------------------------------


def weights(protocol: Protocol, *rows: dict[str, object]) -> np.ndarray:
    return masks([Section(row, None, f"mask[{i}]") for i, row in enumerate(rows, 1)], protocol)


def test_no_mask_weighs_every_sample_once() -> None:
    assert (weights(THREE) == 1).all()
    assert weights(UNEQUAL).tolist() == [[1, 1, 1, 0, 0], [1] * 5]


def test_after_and_before_steps() -> None:
    # steps at 2 and 6 ms
    assert weights(THREE, {"after_steps": "2 ms"})[0].tolist() == [1, 1, 0, 0, 1, 1, 0, 0]
    assert weights(THREE, {"before_steps": "1 ms"})[0].tolist() == [1, 0, 1, 1, 1, 0, 1, 1]
    assert weights(THREE, {"after_steps": "1.5 ms", "weight": 0.25})[2].tolist() == [
        1,
        1,
        0.25,
        0.25,
        1,
        1,
        0.25,
        0.25,
    ]


def test_a_step_at_the_start_counts() -> None:
    assert weights(ONE, {"after_steps": "1 ms"})[0].tolist() == [0, 0] + [1] * 8


def test_windows_are_half_open_and_may_be_open_ended() -> None:
    assert weights(THREE, {"from": "2 ms", "to": "4 ms"})[0].tolist() == [1, 1, 0, 0, 1, 1, 1, 1]
    assert weights(THREE, {"from": "6 ms"})[0].tolist() == [1] * 6 + [0] * 2
    assert weights(THREE, {"to": "1 ms", "weight": 3})[0].tolist() == [3] + [1] * 7


def test_masks_of_some_sweeps() -> None:
    out = weights(THREE, {"to": "9 ms", "sweeps": [1, 3]})
    assert out.sum(axis=1).tolist() == [0, 8, 0]


def test_overlapping_factors_multiply_in_any_order() -> None:
    rows = [{"after_steps": "2 ms"}, {"from": "0 ms", "to": "5 ms", "weight": 2}]
    expected = [2, 2, 0, 0, 2, 1, 0, 0]
    assert weights(THREE, *rows)[0].tolist() == expected
    assert weights(THREE, *rows[::-1])[0].tolist() == expected


def test_factors_around_steps_multiply_too() -> None:
    rows = [{"after_steps": "2 ms", "weight": 0.5}, {"from": "0 ms", "to": "5 ms", "weight": 3}]
    expected = [3, 3, 1.5, 1.5, 3, 1, 0.5, 0.5]
    assert weights(THREE, *rows)[0].tolist() == expected
    assert weights(THREE, *rows[::-1])[0].tolist() == expected


def test_overlapping_steps_count_once() -> None:
    out = weights(THREE, {"after_steps": "5 ms", "weight": 0.5})[0]
    assert out.tolist() == [1, 1] + [0.5] * 6


def test_samples_on_a_rounded_bound_belong_to_the_later_side() -> None:
    protocol = replace(ONE, sampling_ms=0.1, sweeps=((Segment(0.0, 1.0, Constant(0.0)),),))
    out = weights(protocol, {"from": "0.3 ms", "to": "0.7 ms"})[0]
    assert np.flatnonzero(out == 0).tolist() == [3, 4, 5, 6]


@settings(max_examples=50, deadline=None)
@given(
    start=st.floats(-10, 20),
    length=st.floats(0.001, 20),
    weight=st.floats(0, 1e6),
    after=st.floats(0.001, 50),
)
def test_weights_are_never_negative_and_end_with_the_sweep(
    start: float, length: float, weight: float, after: float
) -> None:
    out = weights(
        UNEQUAL, {"from": start, "to": start + length, "weight": weight}, {"after_steps": after}
    )
    assert (out >= 0).all()
    assert (out[0, 3:] == 0).all()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "one of after_steps, before_steps, or from and to"),
        ({"weight": 1}, "one of after_steps"),
        ({"after_steps": "1 ms", "from": 0}, "one of after_steps"),
        ({"after_steps": "1 ms", "before_steps": "1 ms"}, "one of after_steps"),
        ({"after_steps": "0 ms"}, "mask[1].after_steps: a time above 0"),
        ({"before_steps": "-1 ms"}, "mask[1].before_steps: a time above 0"),
        ({"after_steps": "1 mV"}, "is a voltage"),
        ({"from": 3, "to": 3}, "holds no time"),
        ({"from": 3, "to": 1}, "holds no time"),
        ({"from": 0, "weight": -1}, "mask[1].weight: a weight of 0 or more"),
        ({"from": 0, "weight": "heavy"}, "is not a quantity"),
        ({"from": 0, "sweeps": [4]}, "4 is not the number of a sweep"),
        ({"from": 0, "wieght": 1}, "did you mean weight?"),
    ],
)
def test_mistakes_in_a_mask(row: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as caught:
        weights(THREE, row)
    assert said in str(caught.value)


# --- tables --------------------------------------------------------------------------------------


def test_empty_cells_are_missing_numbers(tmp_path: Path) -> None:
    for delimiter in ",;\t":
        d = delimiter
        write(tmp_path, f"a{d}b{d}c\n1{d}{d}3\n{d}2{d}\n")
        table = read_columns(tmp_path / "r.csv")
        assert np.array_equal(table["a"], [1, np.nan], equal_nan=True)
        assert np.array_equal(table["b"], [np.nan, 2], equal_nan=True)
        assert np.array_equal(table["c"], [3, np.nan], equal_nan=True)


def test_suffixes_in_capitals_and_dots_in_names(tmp_path: Path) -> None:
    for name in ("r.CSV", "cell.1.csv", "cell.gz.txt"):
        write(tmp_path, "a\n1\n", name)
        assert column(read_columns(tmp_path / name), "a", tmp_path / name).tolist() == [1]


# --- real recordings -----------------------------------------------------------------------------

DATA = os.environ.get("CHANNELFIT_DATA")


@pytest.mark.skipif(not DATA, reason="CHANNELFIT_DATA does not name the folder of recordings")
def test_published_recordings_have_their_shapes() -> None:
    folder = Path(str(DATA))
    sine = read_columns(folder / "herg_sine_wave" / "sine_wave_16713110.mat")
    assert sine["T"].shape == (80000,)
    family = read_columns(folder / "nav_iv" / "220314_001_ch1_NaIV_25C_80CP.csv.gz", header=True)
    assert next(iter(family)) == "-80.0"
    assert len(family) == 24
    assert {c.shape for c in family.values()} == {(1000,)}


# --- arrays in memory -----------------------------------------------------------------------------

FAMILY = build_protocol(
    {
        "holding": -80,
        "sampling": 0.5,
        "segments": [{"hold": 1}, {"step": {"values": [-20, 0, 20]}, "for": 4}],
    },
    None,
)
SHAPE = (3, FAMILY.n_times_max)


def currents() -> np.ndarray:
    return np.arange(float(np.prod(SHAPE))).reshape(SHAPE)


def test_arrays_that_fit_become_a_recording():
    weight = np.ones(SHAPE[1])
    weight[2] = 0.0
    data = currents()
    data[:, 2] = np.nan
    made = Recording.from_arrays(FAMILY, data.tolist(), time=FAMILY.times_ms, weight=weight)
    assert np.array_equal(made.current_pA, data, equal_nan=True)
    assert np.array_equal(made.weight, np.tile(weight, (3, 1)))
    assert np.array_equal(made.time_ms, FAMILY.times_ms)
    whole = Recording.from_arrays(FAMILY, currents())
    assert (whole.weight == 1).all()


def test_what_is_masked_but_known_is_kept():
    weight = np.ones(SHAPE)
    weight[1] = 0.0
    made = Recording.from_arrays(FAMILY, currents(), weight=weight)
    assert np.array_equal(made.current_pA, currents())


def test_short_sweeps_are_filled_up_with_anything():
    protocol = build_protocol(
        {
            "holding": -80,
            "sampling": 0.5,
            "segments": [{"step": 0, "for": {"values": [2, 4]}}],
        },
        None,
    )
    assert protocol.n_times(0) < protocol.n_times(1)
    data = np.ones((2, protocol.n_times_max))
    data[0, protocol.n_times(0) :] = np.nan
    made = Recording.from_arrays(protocol, data)
    assert (made.weight.sum(axis=1) == [protocol.n_times(0), protocol.n_times(1)]).all()


def changed(place: tuple[int, int], value: float) -> np.ndarray:
    data = np.ones(SHAPE)
    data[place] = value
    return data


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"current": currents().T}, "it is turned, give current.T"),
        ({"current": currents()[:, :-1]}, "3 sweeps of 10 samples"),
        ({"current": currents()[0]}, "3 sweeps of 10 samples"),
        ({"current": currents()[None]}, "3 sweeps"),
        ({"current": changed((1, 4), np.nan)}, "sample 4 of sweep 1 .* is nan"),
        ({"current": changed((2, 0), np.inf)}, "sample 0 of sweep 2 .* is inf"),
        (
            {"current": currents() + 0j},
            "current: an array of numbers was expected: it holds complex",
        ),
        ({"current": [["a"]]}, "array of numbers"),
        ({"current": [[1.0], [1.0, 2.0]]}, "array of numbers"),
        ({"time": FAMILY.times_ms / 1e3}, "these are seconds: give 1000"),
        ({"time": FAMILY.times_ms + 0.5}, "sample 0 .* is at 0.5 ms where the protocol has 0 ms"),
        ({"time": FAMILY.times_ms[:-1]}, "a sweep has 10 samples"),
        ({"time": np.full(SHAPE[1], np.nan)}, "time: sample 0 .* is at nan ms"),
        ({"weight": np.zeros(SHAPE)}, "every weight is 0"),
        ({"weight": changed((0, 3), -1.0)}, "the weight of sample 3 of sweep 0 .* is -1"),
        ({"weight": changed((0, 3), np.nan)}, "weights are 0 or more, and finite"),
        ({"weight": np.ones(4)}, "weight: its shape is .4,."),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arguments, said):
    with pytest.raises(InputError, match=said):
        Recording.from_arrays(FAMILY, **{"current": currents(), **arguments})


def test_a_single_sweep_is_called_one():
    protocol = Protocol.steps(0, 2, holding=-80, sampling=0.5)
    with pytest.raises(InputError, match="has 1 sweep of 4 samples"):
        Recording.from_arrays(protocol, [1.0, 2.0])


def test_sweeps_of_different_lengths_may_be_a_list():
    protocol = Protocol.steps(0, [2, 4], holding=-80, sampling=0.5)
    rows = [np.arange(4.0), np.arange(8.0)]
    made = Recording.from_arrays(protocol, rows, weight=[[1, 1, 1, 0], np.ones(8)])
    assert np.array_equal(made.current_pA[0], [0, 1, 2, 3, *[np.nan] * 4], equal_nan=True)
    assert made.current_pA[1].tolist() == rows[1].tolist()
    assert made.weight[0].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    with pytest.raises(InputError, match="current: an array of numbers was expected"):
        Recording.from_arrays(protocol, [np.arange(3.0), np.arange(8.0)])
    with pytest.raises(InputError, match="sweep 1 .* an array of numbers was expected"):
        Recording.from_arrays(protocol, [np.arange(4.0), ["a"] * 8])


def test_masked_samples_are_missing_and_not_their_hidden_numbers():
    data = np.ma.masked_invalid(changed((1, 4), np.inf))
    with pytest.raises(InputError, match="sample 4 of sweep 1 .* is nan"):
        Recording.from_arrays(FAMILY, data)
    made = Recording.from_arrays(FAMILY, data, weight=~data.mask)
    assert np.isnan(made.current_pA[1, 4])
    assert made.weight[1, 4] == 0


class Column:
    """What pandas offers: a column that NumPy makes an array of, of objects if one is missing."""

    def __init__(self, values: list[object]) -> None:
        self.values = values

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        missing = any(value is None for value in self.values)
        return np.array(self.values, dtype=object if missing else float)

    def to_numpy(self, dtype: object, na_value: float) -> np.ndarray:
        return np.array([na_value if x is None else x for x in self.values], dtype=float)


def test_columns_of_tables_are_arrays():
    protocol = Protocol.steps(0, 2, holding=-80, sampling=0.5)
    whole = Recording.from_arrays(protocol, Column([1, 2, 3, 4]), time=Column([0, 0.5, 1, 1.5]))
    assert whole.current_pA.tolist() == [[1, 2, 3, 4]]
    with pytest.raises(InputError, match="sample 1 of sweep 0 .* is nan"):
        Recording.from_arrays(protocol, Column([1, None, 3, 4]))
    part = Recording.from_arrays(protocol, Column([1, None, 3, 4]), weight=[1, 0, 1, 1])
    assert np.array_equal(part.current_pA[0], [1, np.nan, 3, 4], equal_nan=True)


def test_a_column_of_a_frame_is_a_sweep():
    class Frame(Column):
        columns = ("first", "second", "third")

    made = Recording.from_arrays(FAMILY, Frame(currents().T.tolist()))
    assert np.array_equal(made.current_pA, currents())
    command = Protocol.from_command(FAMILY.times_ms, Frame(currents().T.tolist()), holding=0)
    assert np.array_equal(command.command(), currents())


def test_frames_of_pandas():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(currents().T, columns=["a", "b", "c"])
    assert np.array_equal(Recording.from_arrays(FAMILY, frame).current_pA, currents())
    nullable = frame.astype("Float64")
    nullable.loc[4, "b"] = pandas.NA
    with pytest.raises(InputError, match="sample 4 of sweep 1 .* is nan"):
        Recording.from_arrays(FAMILY, nullable)
    one = Protocol.steps(0, 5, holding=-80, sampling=0.5)
    assert Recording.from_arrays(one, frame["b"]).current_pA.tolist() == [frame["b"].tolist()]


def test_what_was_passed_in_stays_as_it_is_and_is_not_shared():
    data, weight = currents(), np.ones(SHAPE)
    made = Recording.from_arrays(FAMILY, data, weight=weight)
    data[:], weight[:] = -1.0, 5.0
    assert np.array_equal(made.current_pA, currents())
    assert (made.weight == 1).all()


def test_numbers_whose_squares_overflow_are_no_currents(tmp_path: Path) -> None:
    one_table(tmp_path, [*range(9), "-3e160"])
    said = message(tmp_path, ONE, **SIMPLE)
    assert "r.csv: a current of 3e+160 pA is more than" in said
