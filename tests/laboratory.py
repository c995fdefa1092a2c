"""The folder of a reader: the files that the pages for users name, with simulated recordings."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rig_files import PROTOCOL, write_nwb
from scipy.io import savemat

import channelfit as cf
from channelfit.problem.inspection import Told, inspect_file
from channelfit.reading.shipped import copy_examples

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "models" / "recordings" / "abf" / "171116sh_0013.abf"
#: The model of the pages: rates with a Q10, so that an experiment may have another temperature.
MODEL: dict[str, Any] = {
    "name": "my_channel",
    "temperature": "22 degC",
    "definitions": {"q": "q10**((celsius - 22)/10)"},
    "states": ["C1", "O"],
    "rates": {"C1 -> O": "q*a*exp(z*v)", "O -> C1": "q*b"},
    "current": {"open": ["O"], "conductance": "gmax", "reversal": "-90 mV"},
    "parameters": {
        "a": {"range": [0.01, 1], "unit": "1/ms", "scale": "log", "value": 0.2},
        "z": {"range": [0.01, 0.1], "unit": "1/mV", "value": 0.03},
        "b": {"range": [0.01, 1], "unit": "1/ms", "scale": "log", "value": 0.1},
        "q10": {"range": [1, 5], "value": 2.5, "fixed": True},
        "gmax": {"range": [0.1, 50], "unit": "nS", "value": 8},
    },
}
STEPS = {
    "name": "my_steps",
    "holding": "-80 mV",
    "sampling": "0.2 ms",
    "segments": [
        {"hold": "5 ms"},
        {"step": {"from": "-40 mV", "to": "40 mV", "by": "20 mV"}, "for": "40 ms"},
        {"step": "-60 mV", "for": "20 ms"},
    ],
}
ONCE = {
    "name": "action_potential",
    "holding": "-80 mV",
    "sampling": "0.1 ms",
    "segments": [{"hold": "5 ms"}, {"ramp": ["40 mV", "-80 mV"], "for": "60 ms"}],
}
PULSES = {
    "name": "pulses",
    "holding": "-80 mV",
    "sampling": "0.2 ms",
    "segments": [
        {"hold": "10 ms"},
        {"step": "-120 mV", "for": "10 ms"},
        {"hold": "10 ms"},
        {"step": {"values": ["20 mV"] * 4}, "for": "40 ms"},
    ],
}


def laboratory(folder: Path) -> None:
    """Fills a folder with the shipped files, a model, protocols and recordings made with it."""
    copy_examples(folder)
    (folder / "my_channel.yaml").write_text(yaml.safe_dump(MODEL))
    for document in (STEPS, ONCE, PULSES):
        (folder / f"{document['name']}.yaml").write_text(yaml.safe_dump(document))
    (folder / "steps.yaml").write_text(yaml.safe_dump(PROTOCOL))
    random = np.random.default_rng(1)
    for name, gmax, celsius in (("a1", 4.2, 22), ("b4", 8.0, 22), ("b4_warm", 8.0, 34)):
        _, current = recorded(folder / "my_steps.yaml", gmax, celsius)
        save(folder / f"{name}.csv", current + random.normal(0, 1, current.shape))
    time, current = recorded(folder / "my_steps.yaml", 8.0)
    save(folder / "cell_3.csv", current / 1000, time / 1000)
    _, current = recorded(folder / "action_potential.yaml", 8.0)
    savemat(folder / "cell_3_ap.mat", {"T": current[0] / 1000})
    _pharmacology(folder, random)
    for name in ("cell_3.abf", "cell_3_tails.abf", "cell_4.abf", RECORDED.name):
        shutil.copy(RECORDED, folder / name)
    protocol = inspect_file(folder / "cell_4.abf", Told()).protocol
    assert protocol is not None
    protocol.save(folder / "cell_4-protocol.yaml")
    shutil.copy(folder / "models" / "na_hh.yaml", folder)
    shutil.copy(ROOT / "tests" / "mod" / "k_hh.mod", folder / "kv.mod")
    cf.Protocol.steps([-20, 20], duration=2, holding=-100, sampling=0.05).save(
        folder / "na_steps.yaml"
    )
    write_nwb(folder / "cell_5.nwb")


def recorded(protocol: Path, gmax: float, celsius: float = 22) -> tuple[np.ndarray, np.ndarray]:
    """Times, ms, and currents (n_sweeps, n_times), pA, of the model under a protocol."""
    model = cf.Model(**MODEL | {"temperature": f"{celsius} degC"})
    found = cf.simulate(model, protocol, values={"gmax": gmax})
    return found.time, found.current


def save(file: Path, current: np.ndarray, time: np.ndarray | None = None) -> None:
    """Writes currents (n_sweeps, n_times) as a table with a column for each sweep."""
    names = [f"sweep {k + 1}" for k in range(len(current))]
    columns = list(current)
    if time is not None:
        names, columns = ["t", *names], [time, *columns]
    header = ",".join(names)
    np.savetxt(file, np.column_stack(columns), delimiter=",", header=header, comments="")


def _pharmacology(folder: Path, random: np.random.Generator) -> None:
    """Recordings before and after a blocker, with a leak, of which the first runs down."""
    _, current = recorded(folder / "pulses.yaml", 8.0)
    command = cf.Protocol.load(folder / "pulses.yaml").command()
    decline = np.array([1, 0.95, 0.9, 0.86])[:, None]
    for name, part in (("before", 1.0), ("after", 0.05)):
        leak = 0.5 * command
        noise = random.normal(0, 1, current.shape)
        save(folder / f"{name}.csv", part * decline * current + leak + noise)
