"""A plate of wells on the disk: its fit file, its recordings, and how a batch of it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

import channelfit as cf
from channelfit.front.main import main

MODEL: dict[str, Any] = {
    "name": "kv",
    "states": ["C", "O"],
    "rates": {"C -> O": "a*exp(z*v)", "O -> C": "b"},
    "current": {"open": ["O"], "conductance": "g", "reversal": "-85 mV"},
    "parameters": {
        "a": {"range": [0.01, 1], "unit": "1/ms", "scale": "log", "value": 0.2},
        "z": {"range": [0.01, 0.1], "unit": "1/mV", "value": 0.03},
        "b": {"range": [0.01, 1], "unit": "1/ms", "scale": "log", "value": 0.1},
        "g": {"range": [0.1, 100], "unit": "nS", "scale": "log", "value": 8},
    },
}


RECORDING = {"sampling": "0.2 ms", "current": {"columns": "all", "unit": "pA"}, "file": "any.csv"}
EXPERIMENT = {"protocol": "steps.yaml", "recording": RECORDING, "mask": {"after_steps": "0.5 ms"}}
FIT: dict[str, Any] = {"model": "kv.yaml", "name": "plate", "fit": {"experiments": [EXPERIMENT]}}
WELLS = [f"{row}{column:02}" for row in "AB" for column in range(1, 7)]


NOISE = 5.0


def truth() -> dict[str, dict[str, float]]:
    random = np.random.default_rng(1)
    return {
        well: {"g": float(random.lognormal(2, 0.4)), "b": 0.1 * float(random.lognormal(0, 0.1))}
        for well in WELLS
    }


@pytest.fixture(scope="module")
def currents() -> dict[str, np.ndarray]:
    """By well the currents (5 sweeps, 200 samples), pA, with noise."""
    steps = cf.Protocol.steps([-40, -20, 0, 20, 40], duration=40, holding=-80, sampling=0.2)
    model, random = cf.Model(**MODEL), np.random.default_rng(2)
    found = {}
    for well, values in truth().items():
        clean = cf.simulate(model, steps, values=values).current
        found[well] = np.asarray(clean) + random.normal(0, NOISE, clean.shape)
    return found


def save(file: Path, current: np.ndarray, names: list[str] | None = None) -> None:
    header = ",".join(names or [f"sweep {k + 1}" for k in range(len(current))])
    np.savetxt(file, current.T, delimiter=",", header=header, comments="", fmt="%.4f")


def write_fit(folder: Path, levels: list[float]) -> cf.Protocol:
    """Writes a fit file and all but its recordings; returns its protocol."""
    steps = cf.Protocol.steps(levels, duration=40, holding=-80, sampling=0.2)
    steps.save(folder / "steps.yaml", overwrite=True)
    for name, content in (("kv", MODEL), ("fit", FIT)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    (folder / "plate").mkdir(exist_ok=True)
    return steps


def write_plate(folder: Path, wells: int, seed: int) -> None:
    """Writes a fit file, and in `plate` the recordings of wells that differ."""
    draw = np.random.default_rng(seed)
    steps = write_fit(folder, [-40, 0, 40])
    for number in range(wells):
        values = {"g": draw.lognormal(2, 0.4), "b": 0.1 * draw.lognormal(0, 0.1)}
        clean = np.asarray(cf.simulate(cf.Model(**MODEL), steps, values=values).current)
        noise = draw.normal(0, NOISE, clean.shape)
        save(folder / "plate" / f"cells-{number:03}.csv", clean + noise)


@pytest.fixture
def plate(tmp_path: Path, currents: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a fit file and the recordings of 12 wells."""
    write_fit(tmp_path, [-40, -20, 0, 20, 40])
    for well, current in currents.items():
        save(tmp_path / "plate" / f"cells-{well}.csv", current)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def called(*words: str, code: int = 0) -> Result:
    found = CliRunner().invoke(main, ["batch", *words])
    assert found.exit_code == code, found.output + repr(found.exception)
    return found
