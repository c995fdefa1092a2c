"""`channelfit.cell` and the command: the same numbers, in tables, arrays and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import channelfit as cf
from channelfit.reading.documents import dump_yaml
from channelfit.reading.plain import plain
from channelfit.results.uncertainty.posterior import Posterior
from support.json_output import ran, summary
from support.places import ROOT

MODELS = ROOT / "models"
SAMPLES = {"a1": [0.009, 0.0095, 0.01, 0.0105, 0.011], "other": ["a", "b", "c", "d", "e"]}


def axon(**changes: Any) -> dict[str, Any]:
    """A cell as a mapping, with a model and samples in memory."""
    own = {"model": MODELS / "na_hh.yaml", "conductance": "120 mS/cm2", "reversal": np.float64(50)}
    k = {"model": cf.Model.load(MODELS / "k_hh_gate.yaml"), "samples": SAMPLES}
    return {
        "membrane": {
            "area": "1000 um2",
            "leak": {"conductance": "0.3 mS/cm2", "reversal": -54.387},
        },
        "channels": {"na": own, "k": {**k, "conductance": "36 mS/cm2", "reversal": -77}},
        "stimulus": {"pulses": [{"amplitude": np.array([100.0, 200.0]), "start": 1, "for": 5}]},
        "duration": 12,
        "sampling": "50 us",
    } | changes


@pytest.fixture(scope="module")
def found() -> cf.CellSimulation:
    return cf.cell(axon(), scale={"k": 0.5}, currents=True)


def test_a_mapping_says_what_a_file_says(tmp_path: Path, found: cf.CellSimulation) -> None:
    rows = zip(*SAMPLES.values(), strict=True)
    table = "\n".join(["a1,other", *(f"{a},{b}" for a, b in rows)])
    (tmp_path / "k.csv").write_text(table)
    document = axon(name="axon")
    document["channels"]["k"] |= {"model": MODELS / "k_hh_gate.yaml", "samples": "k.csv"}
    for row in document["channels"].values():
        row["model"] = str(row["model"])
    (tmp_path / "cell.yaml").write_text(dump_yaml(plain(document)))
    by_file = cf.cell(tmp_path / "cell.yaml", scale={"k": 0.5}, currents=True)
    for run, voltage in by_file.voltage_mV.items():
        assert voltage.shape == (2, len(found.time_ms), 5)
        assert np.array_equal(voltage, found.voltage_mV[run])
    words = ("--scale", "k=0.5", "--currents", "--out", tmp_path / "a", "--json", "--quiet")
    printed = ran("cell", tmp_path / "cell.yaml", *words)
    assert summary(printed.stdout) == by_file.summary
    assert printed.stderr == ""
    shown = ran(
        "cell", tmp_path / "cell.yaml", "--set", "duration=4", "--out", tmp_path / "c"
    ).stdout
    assert "mV from half of it" in shown
    assert "5 sets: median, and 2.5 to 97.5 % in brackets" in shown
    again = [file.read_bytes() for file in by_file.save(tmp_path / "b")[:2]]
    assert again == [(tmp_path / name).read_bytes() for name in ("a.csv", "a-measures.csv")]
    assert (tmp_path / "a.png").stat().st_size > 1000
    table = np.genfromtxt(tmp_path / "a.csv", delimiter=",", names=True)
    assert len(table.dtype.names) == 1 + 3 * 2 * 2 * 4  # bands, sweeps, runs, currents
    assert table["sweep_2_changed_na_pA"].min() < -500


def test_tables_and_arrays_agree(found: cf.CellSimulation) -> None:
    """Percentiles of the arrays, computed here; the change is paired by set."""
    peaks = {run: rows["peak_mV"][0] for run, rows in found.set_measures.items()}
    peaks["change"] = peaks["changed"] - peaks["control"]
    table = found.measures
    for run, values in peaks.items():
        for end, percent in (("", 50), ("_low", 2.5), ("_high", 97.5)):
            expected = np.percentile(values, percent)
            assert table.loc["sweep_1_peak_mV", run + end] == pytest.approx(expected, rel=1e-12)
    assert found.voltage_mV["control"].max(axis=1)[0] == pytest.approx(peaks["control"], abs=0.5)
    bands = found.bands
    assert list(bands.index) == pytest.approx(found.time_ms, abs=1e-9)
    current = found.currents_pA["changed"]["k"][1]
    column = bands["sweep_2_changed_k_pA_high"]
    found_there = [column[t] for t in bands.index]
    assert found_there == pytest.approx(np.percentile(current, 97.5, axis=1), rel=1e-9)


def test_a_knock_out_is_the_cell_without_the_channel() -> None:
    without = axon()
    del without["channels"]["na"]
    alone, pair = cf.cell(without), cf.cell(axon(), knock_out="na")
    assert np.array_equal(alone.voltage_mV["control"], pair.voltage_mV["changed"])
    assert "changed" not in alone.voltage_mV
    assert list(alone.measures.columns) == ["control_low", "control", "control_high"]
    with pytest.raises(cf.InputError, match="currents=True"):
        _ = pair.currents_pA
    with pytest.raises(cf.InputError, match="prefix: a path was expected, not None"):
        alone.save(None)  # type: ignore[arg-type]


def test_posteriors_frames_and_gaps_become_the_same_columns() -> None:
    values = np.array(SAMPLES["a1"])
    posterior = Posterior(
        ("a1",), values[None], 1, 5, 0, np.ones(1), np.ones(1), 0.3, ("too short",)
    )
    given: list[Any] = [{"a1": np.ma.masked_less([*values, 0.0], 0.001)}]
    given.append(posterior)
    pandas = pytest.importorskip("pandas")
    given.append(pandas.DataFrame({"a1": [*values, None]}))
    short = axon(duration=2)
    expected = cf.cell(short).voltage_mV["control"]
    for samples in given:
        short["channels"]["k"]["samples"] = samples
        with pytest.warns(cf.InputWarning, match=r"channels.k.samples.*(1 of 6 rows|too short)"):
            voltage = cf.cell(short).voltage_mV
        assert np.array_equal(voltage["control"], expected)


@pytest.mark.parametrize(
    ("changes", "given", "message"),
    [
        ({}, {"scale": {"k": -1}}, "scale of k: a factor of 0 or more"),
        ({}, {"scale": {"k": True}}, "not True"),
        ({}, {"scale": {"k": 2}, "knock_out": ["k"]}, "is knocked out, too"),
        ({}, {"knock_out": "zz"}, 'no channel "zz"'),
        ({"zz": 1}, {}, 'unknown key "zz"'),
        ({"duration": {1}}, {}, "duration: .* cannot be used"),
        ({"channels": [1]}, {}, "a mapping"),
        ({"channels": {"k": 1}}, {}, "channels.k: a mapping"),
        ({"channels": {"k": {"model": 1j}}}, {}, "channels.k.model: text was expected"),
        ({"channels": {"k": {"model": "none.yaml"}}}, {}, "channels.k.model: .*no such file"),
        ({"samples": {"zz": [1]}}, {}, "no column of a parameter"),
        ({"samples": {"a1": [np.inf]}}, {}, "no rows of finite numbers"),
        ({"samples": {"a1": [[1.0, 2.0]]}}, {}, "no rows of finite numbers"),
        ({"samples": {"a1": [1.0], "b1": [1.0, 2.0]}}, {}, "same shape"),
        ({"samples": {"a1": ["x"]}}, {}, "could not convert"),
    ],
)
def test_mistakes_name_their_place(
    changes: dict[str, Any], given: dict[str, Any], message: str
) -> None:
    cell = axon()
    if "samples" in changes:
        cell["channels"]["k"] |= changes
    else:
        cell |= changes
    with pytest.raises(cf.InputError, match=message):
        cf.cell(cell, **given)


@pytest.mark.parametrize(
    ("cell", "given", "message"),
    [
        ([], {}, "cell: a path, or a mapping of the keys of a cell file, was expected, not"),
        (None, {}, "cell: a path"),
        (b"squid.yaml", {}, "cell: a path"),
        (axon(), {"knock_out": 3}, "knock_out: names of channels were expected, not 3"),
        (axon(), {"knock_out": [["na"]]}, "knock_out: names"),
        (axon(), {"scale": [("k", 0.5)]}, "scale: a mapping of channels to factors"),
        (axon(), {"scale": 0}, "scale: a mapping"),
        (axon(), {"currents": "yes"}, "currents: true or false was expected"),
        (axon(), {"backend": np.array([1, 2])}, "backend .* is not one of auto, cpu, cuda"),
    ],
)
def test_other_types_are_refused(cell: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(cf.InputError, match=message):
        cf.cell(cell, **given)


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore::channelfit.InputWarning")  # the chain is too short
def test_a_fit_and_its_posterior_are_what_their_files_say(tmp_path: Path) -> None:
    fit = cf.fit(MODELS / "k_hh_gate.yaml", seed=1)
    cell = axon()
    cell["channels"]["k"] = {"model": fit, "samples": cf.uncertainty(fit), "scale": 70}
    with pytest.raises(cf.InputError, match="channels.k.samples: has no posterior"):
        cf.cell(cell)
    sure = cf.uncertainty(fit, posterior=100)
    cell["channels"]["k"]["samples"] = sure
    in_memory = cf.cell(cell).voltage_mV["control"]
    saved = fit.save(tmp_path / "k")
    sure.save(tmp_path / "sure")
    files = {"model": saved / "fit.yaml", "samples": tmp_path / "sure" / "posterior.csv"}
    cell["channels"]["k"] |= files
    assert in_memory.std(axis=-1).max() > 0.1
    by_files = cf.cell(cell).voltage_mV["control"]
    # tables have nine digits; the second sweep is far from the threshold, which magnifies the tenth
    assert np.abs(by_files - in_memory)[1].max() < 1e-4
