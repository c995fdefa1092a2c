"""`channelfit init` on recordings whose files say series resistance, capacitance, compensation."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
import yaml

import channelfit as cf
from channelfit.front.kinds import load_plan
from channelfit.front.starter import starter_clamp
from channelfit.problem.clamp import Clamp
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.inspection import inspect_file
from channelfit.scoring.scorer import make_scorer
from support import json_output
from support.json_output import ran, refused
from support.recorded_files import OPENS, model
from support.rig_files import write_nwb

pytestmark = pytest.mark.usefixtures("undrawn")

pytest.importorskip("pynwb")
pytest.importorskip("h5py")

SEGMENTS = [{"hold": 2}, {"step": {"from": -60, "to": 40, "by": 20}, "for": 20}]
SEGMENTS += [{"step": -50, "for": 10}]
STEPS = cf.Protocol.from_segments(SEGMENTS, holding=-80, sampling=0.05, name="steps")
#: A recording behind 10 MOhm and 20 pF, 60 % compensated, 50 % predicted.
CLAMP = {"series_resistance": 10.0, "membrane_capacitance": 20.0, "fraction": 0.6}
CLAMP |= {"prediction": 0.5, "cancellation": 1.0}
#: What NWB calls these quantities, in its units.
SAID = {
    "whole_cell_series_resistance_comp": 10e6,
    "whole_cell_capacitance_comp": 20e-12,
    "resistance_comp_correction": 60.0,
    "resistance_comp_prediction": 50.0,
}


def currents(conductance: float) -> np.ndarray:
    truth = model({"m": OPENS}, -90).channel
    clamp = Clamp(**{key: sympy.Float(value) for key, value in CLAMP.items()})
    problem = Problem(truth, (Experiment(STEPS, clamp=clamp),))
    current = make_scorer(problem, "cpu").simulate(np.array([[conductance]]))[0][..., 0]
    return current + np.random.default_rng(3).normal(scale=3.0, size=current.shape)


def recorded(
    folder: Path,
    conductance: float = 60.0,
    said: dict[str, float] = SAID,
    filtering: str | None = None,
) -> Path:
    """An NWB file of a channel behind the clamp."""
    from pynwb import NWBHDF5IO, NWBFile
    from pynwb.icephys import VoltageClampSeries, VoltageClampStimulusSeries

    file = NWBFile("a cell", "cell 1", datetime(2026, 1, 1, tzinfo=UTC))
    amplifier = file.create_device(name="amp")
    electrode = file.create_icephys_electrode(
        name="pipette", description="glass", device=amplifier, filtering=filtering
    )
    clock = {"rate": 1e3 / STEPS.sampling_ms, "electrode": electrode, "gain": 1.0}
    for k, (row, command) in enumerate(zip(currents(conductance), STEPS.command(), strict=True)):
        shared: dict[str, Any] = clock | {"starting_time": 2.0 * k, "sweep_number": np.uint64(k)}
        answer = VoltageClampSeries(name=f"answer_{k}", data=row * 1e-12, **shared, **said)
        file.add_acquisition(answer)
        step = VoltageClampStimulusSeries(name=f"step_{k}", data=command * 1e-3, **shared)
        file.add_stimulus(step)
    with NWBHDF5IO(str(folder / "cell.nwb"), "w") as io:
        io.write(file)
    return folder / "cell.nwb"


def begun(*words: object) -> str:
    """What `init` of a file tells on standard error, in one line."""
    return " ".join(ran("init", *words).stderr.split())


def section(file: str = "cell-fit.yaml") -> Any:
    (row,) = yaml.safe_load(Path(file).read_text())["fit"]["experiments"]
    return row.get("clamp")


def read_back() -> dict[str, float] | None:
    clamp = load_plan("cell-fit.yaml").problem.experiments[0].clamp
    return clamp and {n: float(v) for n, v in clamp.quantities().items() if float(v)}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("filtering", "cutoff"),
    [
        ("Bessel, 4 poles, 2.9 kHz", "2.9 kHz"),
        ("2900 Hz", "2.9 kHz"),
        ("10 kHz, then 3 kHz", None),
        (None, None),
    ],
)
def test_the_clamp_begins_with_the_filter_of_the_file(
    here: Path, filtering: str | None, cutoff: str | None
) -> None:
    begun(recorded(here, filtering=filtering))
    assert section().get("lowpass") == (cutoff and {"poles": 4, "cutoff": cutoff})
    assert ("# lowpass:" in Path("cell-fit.yaml").read_text()) == (cutoff is None)


def test_the_clamp_of_a_file_is_in_its_starter_fit_and_is_read_back(here: Path) -> None:
    told = begun(recorded(here))
    assert "cell.nwb: the clamp is part of the fit: up to" in told
    assert "--no-clamp leaves it out" in told
    assert section() == {
        "series_resistance": "10 MOhm",
        "membrane_capacitance": "20 pF",
        "compensation": {"fraction": 0.6, "prediction": 0.5},
        "cancellation": 1,
    }
    assert read_back() == pytest.approx(CLAMP)


@pytest.mark.integration
def test_a_fit_with_the_clamp_of_the_file_finds_the_channel_and_one_without_does_not(
    here: Path,
) -> None:
    truth = {"am": 0.2, "zam": 0.04, "bm": 0.02, "zbm": 0.03, "g": 60.0}
    rows = {
        name: {"range": [0, 0.1], "unit": "1/mV"}
        if name.startswith("z")
        else {"range": [value / 10, value * 10], "unit": "nS" if name == "g" else "1/ms"}
        | {"scale": "log"}
        for name, value in truth.items()
    }
    gate = {"power": 2, "alpha": "am*exp(zam*v)", "beta": "bm*exp(-zbm*v)"}
    current = {"conductance": "g", "reversal": "-90 mV"}
    document = {"name": "truth", "gates": {"m": gate}, "current": current, "parameters": rows}
    Path("truth.yaml").write_text(yaml.safe_dump(document))
    file, found = recorded(here), {}
    for way in ("clamp", "no-clamp"):
        begun(file, f"--{way}", "--model", "truth.yaml", "--out", f"{way}.yaml")
        stop = ["--set", "fit.optimizer={name: hybrid, scan: 64, starts: 2}", "--seed", "1"]
        fitted = ran("optimize", f"{way}.yaml", *stop, "--json", "--quiet", "--out", f"runs/{way}")
        rows = json_output.summary(fitted.stdout)["parameters"]
        found[way] = {name: row["value"] for name, row in rows.items()}
    assert {n: found["clamp"][n] for n in truth} == pytest.approx(truth, rel=0.01)
    assert max(abs(found["no-clamp"][name] / value - 1) for name, value in truth.items()) > 0.1


def test_little_current_loses_little_and_the_section_is_a_comment_that_can_be_turned_on(
    here: Path,
) -> None:
    told = begun(recorded(here, conductance=2.0))
    assert "the clamp is taken for ideal: up to" in told
    assert "no more than 5 mV" in told
    assert section() is read_back() is None
    text = Path("cell-fit.yaml").read_text()
    before, mark, after = text.partition("      # clamp:")
    turned_on = (mark + after).replace("      # ", "      ")
    Path("cell-fit.yaml").write_text(before + turned_on)
    found = read_back()
    assert found is not None
    assert found["series_resistance"] == 10.0


@pytest.mark.parametrize(("option", "conductance"), [("--clamp", 2.0), ("--no-clamp", 60.0)])
def test_the_user_decides(option: str, conductance: float, here: Path) -> None:
    assert "you asked for it" in begun(recorded(here, conductance), option)
    assert (section() is not None) == (option == "--clamp")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"whole_cell_series_resistance_comp": 10.0}, "resistance of 1e-05 MOhm; was it stored"),
        ({"resistance_comp_correction": 0.6}, "compensation of 0.6 %; was 60 % meant?"),
        ({"whole_cell_capacitance_comp": 20.0}, "capacitance of 2e+13 pF; was it stored"),
    ],
)
def test_numbers_that_cannot_be_are_told_and_not_used(
    said: dict[str, float], message: str, here: Path
) -> None:
    file = recorded(here, said=SAID | said)
    assert message in " ".join(refused("init", file, "--clamp").output.split())
    assert sorted(here.iterdir()) == [file]
    assert message in begun(file)
    assert section() is None
    assert message in " ".join(Path("cell-fit.yaml").read_text().replace("#", " ").split())


def test_without_a_capacitance_the_section_waits_for_the_user(here: Path) -> None:
    file = recorded(here, said={k: v for k, v in SAID.items() if "capacitance" not in k})
    assert "the file does not say the capacitance" in begun(file)
    assert section() is None
    begun(file, "--clamp", "--out", "asked/cell-fit.yaml")
    wanted = {"series_resistance": "10 MOhm", "compensation": {"fraction": 0.6}}
    assert section("asked/cell-fit.yaml") == wanted


def test_a_file_that_says_nothing_gets_nothing(here: Path) -> None:
    file = recorded(here, said={})
    assert "the clamp is" not in begun(file)
    assert "clamp" not in Path("cell-fit.yaml").read_text()
    told = refused("init", file, "--clamp", "--out", "other.yaml").output
    assert "does not say the series resistance" in " ".join(told.split())


def test_the_voltage_that_is_lost_is_the_current_through_what_is_left(tmp_path: Path) -> None:
    found = inspect_file(recorded(tmp_path))
    assert found.peak is not None
    lost = abs(found.peak.raw_pA) * 10.0 * 0.4 / 1e3
    assert found.lost_mV == pytest.approx(lost)
    clamp = starter_clamp(found, None)
    assert clamp is not None
    assert (clamp.active, clamp.lost_mV) == (True, pytest.approx(lost))


def test_a_resistance_that_changes_over_the_sweeps_is_its_median(tmp_path: Path) -> None:
    found = inspect_file(write_nwb(tmp_path / "a.nwb"))  # 8, 9 and 10 MOhm
    clamp = starter_clamp(found, True)
    assert clamp is not None
    lines = list(clamp.lines(found))
    assert lines[1].startswith("  series_resistance: 9 MOhm    # 8 to 10 MOhm over the sweeps")
    assert yaml.safe_load("\n".join(lines))["clamp"]["compensation"] == {"fraction": 0.7}
