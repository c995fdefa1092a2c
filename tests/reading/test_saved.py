"""Files that the program wrote itself, cut off, damaged and forged: one message, never a guess."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from channelfit.batch.fits import WellFits
from channelfit.batch.results import FITS, TRACES, Results
from channelfit.batch.table import Column, WellTable, texts
from channelfit.reading import memory
from channelfit.reading.documents import parse_yaml
from channelfit.reading.errors import InputError
from channelfit.reading.saved import read_arrays
from channelfit.results.run_summary import read_summary

SUMMARY = parse_yaml("""
{cost: 4.0, rms_pA: 2.0, rms_relative_to_peak: 0.1, peak_pA: 20.0, variance_explained: 0.9,
  peak_error_pA: 1.0, peak_error_relative: 0.05,
  parameters: {g: {value: 2.0, unit: nS, lower: null, upper: 9.0, standard_error: 0.1,
    interval: [1.8, 2.2]}},
  uncertainty: {undetermined: [{text: g is not}], remarks: [], correlations: null},
  experiments: [{protocol: steps, weight: 1.0, cell: 3}], agreement: null, seconds: 1.5,
  generations: 3, evaluations: 90, seed: 18446744073709551615, file: m.yaml, stop_reason: done,
  optimizer: hybrid, backend: cpu, dtype: float64, versions: {numpy: "2.1"}, machine: {cores: 2},
  settings: {scan: 9}}
""")


def saved(folder: Path, data: object) -> Path:
    (folder / "summary.json").write_text(json.dumps(data))
    return folder / "summary.json"


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (("cost",), [4.0], r"summary.json: cost: is damaged: a number was expected, not"),
        (("cost",), None, r"it holds no cost"),
        (("seed",), 1.5, r"seed: is damaged: a whole number"),
        (("evaluations",), 10**400, r"evaluations: is damaged"),
        (("parameters", "g"), [], r"parameters.g: is damaged: a mapping"),
        (("parameters", "g", "interval"), [1.0, "x"], r"parameters.g.interval\[2\]: .*a number"),
        (("uncertainty", "undetermined", 0, "text"), {}, r"uncertainty.undetermined\[1\].text: "),
        (("experiments", 0, "weight"), "x", r"experiments\[1\].weight: is damaged"),
        (("file",), "\ud800", r"half of a surrogate pair"),
    ],
)
def test_a_summary_of_another_shape_is_refused_with_its_key(place, value, told, tmp_path):
    assert read_summary(saved(tmp_path, SUMMARY)) == SUMMARY
    changed = copy.deepcopy(SUMMARY)
    inner: Any = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(InputError, match=told):
        read_summary(saved(tmp_path, changed))


def plate(folder: Path, n: int = 5, points: int = 40) -> Results:
    """What a batch of n wells with two parameters leaves."""
    draw = np.random.default_rng(1)
    values, rms = draw.uniform(1, 2, (n, 2)), draw.uniform(1, 2, n)
    rows = {name: draw.uniform(0, 1, (n, 2)) for name in ("errors", "lower", "upper", "unit")}
    fits = WellFits(
        ("g", "k"), ("nS", "1/ms"), values, **rows, information=np.ones((n, 2, 2)),
        at_bound=np.zeros((n, 2), np.int8), cost=rms**2, rms=rms, noise=rms,
        starts=np.ones(n, np.int64), agreed=np.ones(n, np.int64),
        quality=texts(["ok"] * n), reason=texts([""] * n),
    )  # fmt: skip
    columns = {"well": texts(f"A{k}" for k in range(n)), "g": values[:, 0], "k": values[:, 1]}
    about = {name: Column("", "", name == "well") for name in columns}
    trace = draw.normal(size=(n, points)).astype("f4")
    traces = {"time_ms": np.arange(points) * 0.5, "data": trace, "fit": trace, "residual": trace}
    whole = Results(WellTable(columns, about), traces, fits, np.array([[0.0, 9.0]] * 2))
    whole.write(folder)
    return whole


def test_saved_wells_come_back_whole_or_not_at_all(tmp_path: Path) -> None:
    """Traces and fits, cut and with a byte changed anywhere: never a traceback, never others."""
    whole = plate(tmp_path)
    found = Results.read(tmp_path)
    assert np.array_equal(found.traces["data"], whole.traces["data"])
    for name in (TRACES, FITS):
        data = (tmp_path / name).read_bytes()
        refused = 0
        for place in range(3, len(data), len(data) // 60):
            for damaged in (
                data[:place],
                data[:place] + bytes([data[place] ^ 0x5A]) + data[place + 1 :],
            ):
                (tmp_path / name).write_bytes(damaged)
                try:
                    again = Results.read(tmp_path)
                except InputError as error:
                    assert str(error).startswith(str(tmp_path / name))
                    refused += 1
                    continue
                for key, array in whole.traces.items():  # a date in the archive, say
                    assert np.array_equal(again.traces[key], array)
                assert np.array_equal(again.fits.values, found.fits.values)
        assert refused > 100
        (tmp_path / name).write_bytes(data)


def test_fits_of_other_wells_than_the_table_are_refused(tmp_path: Path) -> None:
    whole = plate(tmp_path)
    arrays = {**whole.fits.arrays(), "ranges": whole.ranges}
    for change in (
        {"values": arrays["values"] * 1.001},
        {"cost": arrays["cost"] * 2},
        {"values": arrays["values"][1:]},
        {"information": np.ones((5, 2, 3))},
        {"quality": np.frombuffer(b"good\n" * 5, np.uint8)},
        {"ranges": np.ones((3, 2))},
    ):
        np.savez_compressed(tmp_path / FITS, **{**arrays, **change})
        with pytest.raises(InputError, match=r"fits.npz: "):
            Results.read(tmp_path)


def test_arrays_that_unpack_to_more_than_there_is_are_refused_before(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "bomb.npz", a=np.zeros(20_000_000))
    assert (tmp_path / "bomb.npz").stat().st_size < 300_000
    monkeypatch.setattr(memory, "available", lambda: 100_000_000)
    monkeypatch.setattr(np, "load", pytest.fail)
    with pytest.raises(InputError, match=r"bomb.npz: 160,000,\d+ bytes of unpacked arrays need"):
        read_arrays(tmp_path / "bomb.npz")
