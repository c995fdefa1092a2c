"""Recordings and weights: every shape, unit and mistake that a table can have."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from channelfit.problem.protocol import Protocol
from channelfit.problem.recording import Recording, load_recording, masks
from channelfit.problem.waves import Constant, Segment
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError
from channelfit.reading.tables import read_columns
from support.little import protocol_of

ONE = protocol_of("{name: one, holding: -80, sampling: 0.5 ms, segments: [{step: 0, for: 5 ms}]}")
THREE = protocol_of(
    "{name: three, holding: -80, sampling: 1 ms, "
    "segments: [{hold: 2 ms}, {step: {values: [-40, 0, 40]}, for: 4 ms}, {hold: 2 ms}]}"
)
UNEQUAL = protocol_of(
    "{name: unequal, holding: -80, sampling: 1 ms, "
    "segments: [{step: 0, for: {values: [3 ms, 5 ms]}}]}"
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


def test_units_of_current_and_the_start_of_the_sweep_in_the_column_of_times(tmp_path: Path) -> None:
    one_table(tmp_path)
    for unit, factor in (("pA", 1), ("nA", 1e3), ("A", 1e12), ("uA", 1e6)):
        recording = read(tmp_path, ONE, **SIMPLE | {"current": {"column": "current", "unit": unit}})
        assert recording.current_pA[0, 3] == pytest.approx(3 * factor, rel=1e-15)
    write(tmp_path, "\n".join(["time,current", *(f"{100 + 0.5 * k},{k}" for k in range(10))]))
    said = message(tmp_path, ONE, **SIMPLE)
    assert "recording.time.start" in said
    assert "start: 100 ms" in said
    recording = read(tmp_path, ONE, **SIMPLE | {"time": TIME | {"start": "0.1 s"}})
    assert recording.time_ms[0] == 0.0


def three_table(
    folder: Path, columns: Any = "all", **more: Any
) -> tuple[np.ndarray, dict[str, Any]]:
    """The currents a, b, c of a table with eight rows for THREE, and a mapping that reads it."""
    data = np.arange(24.0).reshape(8, 3)
    rows = [",".join([str(k), *map(str, row)]) for k, row in enumerate(data)]
    write(folder, "\n".join(["time_ms,a,b,c", *rows]))
    time, current = {"column": "time_ms", "unit": "ms"}, {"columns": columns, "unit": "pA"}
    return data.T, {"file": "r.csv", "time": time, "current": current, **more}


def test_columns_and_sweeps_in_the_order_they_are_named(tmp_path: Path) -> None:
    data, rows = three_table(tmp_path, ["c", "a", "b"])
    assert np.array_equal(read(tmp_path, THREE, **rows).current_pA, data[[2, 0, 1]])
    data, rows = three_table(tmp_path, ["a", "b"], sweeps=[3, 1])
    recording = read(tmp_path, THREE, **rows)
    assert np.array_equal(recording.current_pA[[2, 0]], data[:2])
    assert np.isnan(recording.current_pA[1]).all()
    assert recording.weight.tolist() == [[1] * 8, [0] * 8, [1] * 8]
    for sweeps, said in (
        ([1, 4], "4 is not the number of a sweep, 1 to 3"),
        ([1, 1], "each sweep once"),
        ([True, 2], "True is not"),
        ([1], "1 sweeps are named, but there are 2 columns"),
    ):
        assert said in message(tmp_path, THREE, **rows | {"sweeps": sweeps})


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


def test_baseline_is_taken_off_sweep_by_sweep(tmp_path: Path) -> None:
    data, rows = three_table(tmp_path, baseline={"from": "1 ms", "to": "3 ms"})
    recording = read(tmp_path, THREE, **rows)
    assert np.allclose(recording.current_pA, data - data[:, 1:3].mean(axis=1, keepdims=True))
    one_table(tmp_path)
    for first, last in ((5, 9), (-3, 0), (2, 1), (0.6, 0.9)):
        said = message(tmp_path, ONE, **SIMPLE, baseline={"from": first, "to": last})
        told = "from 2 ms to 1 ms holds no time" if first == 2 else "no sample of sweep 1 lies"
        assert "recording.baseline" in said
        assert told in said


def test_wrong_number_of_samples(tmp_path: Path) -> None:
    rows = {"file": "r.csv", "sampling": "0.5 ms", "current": CURRENT}
    for n in (1, 9, 11, 20):
        one_table(tmp_path, list(range(n)))
        assert f"r.csv: {n} samples, but one has 10 (5 ms every 0.5 ms)" in message(
            tmp_path, ONE, **rows
        )


def test_uneven_times_and_those_that_go_back(tmp_path: Path) -> None:
    for times, said in (
        ([0, 0.5, 1, 1.5, 2.5, 3, 3.5], "spaced, but 1 ms lie before line 6 (at 2.5 ms)"),
        ([0, 0.5, 1, 1, 2, 1.5], "but 1 ms in line 5 follows 1 ms, and so on at 1 more"),
        ([0, "nan", 1], "line 3 is nan: every sample needs a time"),
        ([0], "two samples or more"),
    ):
        write(tmp_path, "\n".join(["time,current", *[f"{t},0" for t in times]]))
        assert said in message(tmp_path, ONE, **SIMPLE)


@pytest.mark.parametrize(
    ("step", "unit", "right"), [(0.0005, "ms", "s"), (0.5, "s", "ms"), (500, "ms", "us")]
)
def test_times_in_another_unit(tmp_path: Path, step: float, unit: str, right: str) -> None:
    one_table(tmp_path, h=step)
    said = message(tmp_path, ONE, **SIMPLE | {"time": TIME | {"unit": unit}})
    assert "recording.time.column: sampled every" in said
    assert said.endswith(f"are these times in {right}? Then write the unit {right}")


def test_mistakes_in_the_mapping(tmp_path):
    for change, said in (
        ({"file": "none.csv"}, "none.csv: no such file"),
        ({"sampling": "0.5 ms"}, "either time"),
        ({"current": CURRENT | {"unit": "furlong"}}, 'unknown unit "furlong"'),
        ({"current": {"unit": "pA"}}, "one of column, columns"),
    ):
        one_table(tmp_path)
        assert said in message(tmp_path, ONE, **(SIMPLE | change))


AFTER, EARLY = {"after_steps": "2 ms"}, {"from": 0, "to": "5 ms"}


# --- weights -------------------------------------------------------------------------------------
def weights(protocol: Protocol, *rows: dict[str, object]) -> np.ndarray:
    return masks([Section(row, None, f"mask[{i}]") for i, row in enumerate(rows, 1)], protocol)


@pytest.mark.parametrize(
    ("rows", "sweep", "expected"),
    [
        # steps at 2 and 6 ms
        ([{"after_steps": "2 ms"}], 0, [1, 1, 0, 0, 1, 1, 0, 0]),
        ([{"before_steps": "1 ms"}], 0, [1, 0, 1, 1, 1, 0, 1, 1]),
        ([{"after_steps": "1.5 ms", "weight": 0.25}], 2, [1, 1, 0.25, 0.25] * 2),
        # windows are half open, and may be open-ended
        ([{"from": "2 ms", "to": "4 ms"}], 0, [1, 1, 0, 0, 1, 1, 1, 1]),
        ([{"from": "6 ms"}], 0, [1] * 6 + [0] * 2),
        ([{"to": "1 ms", "weight": 3}], 0, [3] + [1] * 7),
        # factors of those that overlap multiply
        ([AFTER | {"weight": 0}, EARLY | {"weight": 2}], 0, [2, 2, 0, 0, 2, 1, 0, 0]),
        ([AFTER | {"weight": 0.5}, EARLY | {"weight": 3}], 0, [3, 3, 1.5, 1.5, 3, 1, 0.5, 0.5]),
    ],
)
def test_masks_are_those_of_steps_and_windows_in_any_order(rows, sweep, expected):
    assert weights(THREE, *rows)[sweep].tolist() == expected
    assert weights(THREE, *rows[::-1])[sweep].tolist() == expected


def test_samples_on_a_rounded_bound_belong_to_the_later_side() -> None:
    protocol = replace(ONE, sampling_ms=0.1, sweeps=((Segment(0.0, 1.0, Constant(0.0)),),))
    out = weights(protocol, {"from": "0.3 ms", "to": "0.7 ms"})[0]
    assert np.flatnonzero(out == 0).tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "one of after_steps, before_steps, or from and to"),
        ({"from": 3, "to": 3}, "holds no time"),
        ({"from": 0, "weight": -1}, "mask[1].weight: a weight of 0 or more"),
        ({"from": 0, "sweeps": [4]}, "4 is not the number of a sweep"),
    ],
)
def test_mistakes_in_a_mask(row: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        weights(THREE, row)


# --- tables --------------------------------------------------------------------------------------
def test_empty_cells_are_missing_numbers(tmp_path: Path) -> None:
    for d in ",;\t":
        write(tmp_path, f"a{d}b{d}c\n1{d}{d}3\n{d}2{d}\n")
        table = read_columns(tmp_path / "r.csv")
        assert np.array_equal(table["a"], [1, np.nan], equal_nan=True)
        assert np.array_equal(table["b"], [np.nan, 2], equal_nan=True)
        assert np.array_equal(table["c"], [3, np.nan], equal_nan=True)


# --- arrays in memory -----------------------------------------------------------------------------
FAMILY = protocol_of(
    "{holding: -80, sampling: 0.5, segments: [{hold: 1}, {step: {values: [-20, 0, 20]}, for: 4}]}"
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


def changed(place: tuple[int, int], value: float) -> np.ndarray:
    data = np.ones(SHAPE)
    data[place] = value
    return data


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"current": currents().T}, "it is turned, give current.T"),
        ({"current": currents()[:, :-1]}, "3 sweeps of 10 samples"),
        ({"current": changed((1, 4), np.nan)}, "sample 4 of sweep 1 .* is nan"),
        ({"current": currents() + 0j}, "current: an array of numbers was expected: it holds"),
        ({"time": FAMILY.times_ms / 1e3}, "these are seconds: give 1000"),
        ({"time": FAMILY.times_ms + 0.5}, "sample 0 .* is at 0.5 ms where the protocol has 0 ms"),
        ({"time": FAMILY.times_ms[:-1]}, "a sweep has 10 samples"),
        ({"weight": np.zeros(SHAPE)}, "every weight is 0"),
        ({"weight": changed((0, 3), -1.0)}, "the weight of sample 3 of sweep 0 .* is -1"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arguments, said):
    with pytest.raises(InputError, match=said):
        Recording.from_arrays(FAMILY, **{"current": currents(), **arguments})


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


def test_frames_of_pandas():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(currents().T, columns=["a", "b", "c"])
    assert np.array_equal(Recording.from_arrays(FAMILY, frame).current_pA, currents())
    command = Protocol.from_command(FAMILY.times_ms, frame, holding=0)
    assert np.array_equal(command.command(), currents())
    nullable = frame.astype("Float64")
    nullable.loc[4, "b"] = pandas.NA
    with pytest.raises(InputError, match="sample 4 of sweep 1 .* is nan"):
        Recording.from_arrays(FAMILY, nullable)
    one = Protocol.steps(0, 5, holding=-80, sampling=0.5)
    assert Recording.from_arrays(one, frame["b"]).current_pA.tolist() == [frame["b"].tolist()]


def test_numbers_whose_squares_overflow_are_no_currents(tmp_path: Path) -> None:
    one_table(tmp_path, [*range(9), "-3e160"])
    said = message(tmp_path, ONE, **SIMPLE)
    assert "r.csv: a current of 3e+160 pA is more than" in said
