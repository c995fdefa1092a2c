"""Cells on a GPU, played by the host or real, against the processor, and refused without one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import channelfit as cf
from channelfit.cells import cuda
from channelfit.cells.cell_file import Cell, load_cell
from channelfit.cells.cuda_kernel import CellCudaSource
from channelfit.cells.membrane import CAPACITANCE, CellChannel, joined
from channelfit.cells.simulation import CellSimulator
from channelfit.cells.stimulus import Pulse, Stimulus
from channelfit.model.model_file import load_model
from channelfit.problem.statuses import NEGATIVE_RATE
from channelfit.reading.errors import InputError
from support.cell_reference import bent
from support.cuda_host import compile_with_nvrtc
from support.json_output import ran, refused, summary
from support.places import ROOT

SQUID, AXON = (ROOT / "models" / "cells" / f"{name}.yaml" for name in ("squid", "squid_axon"))


def squid() -> Cell:
    """Two sweeps, a time to settle, and few samples."""
    pulse = Stimulus((Pulse((100.0, 200.0), 1.0, 6.0),))
    cell = replace(load_cell(SQUID), stimulus=pulse, initial_mV=-60.0)
    return replace(cell, duration_ms=6.0, settle_ms=0.5, sampling_ms=0.05)


def schemes() -> Cell:
    """A scheme of many states with cycles beside gates."""
    names = {"na": ("na_nav15.yaml", 600.0, 50.0), "k": ("k_hh_gate.yaml", 360.0, -77.0)}
    channels = [
        CellChannel(name, load_model(ROOT / "models" / file), 1.0, g, e)
        for name, (file, g, e) in names.items()
    ]
    membrane = joined("schemes", channels, 10.0, (3.0, -54.387))
    return Cell(
        "schemes", membrane, Stimulus((Pulse((200.0,), 1.0, 4.0),)), -75.0, 0.0, 4.0, 0.01, 0.1
    )


def axon() -> Cell:
    cell = load_cell(AXON)
    assert cell.cable is not None
    cable = replace(cell.cable, segments=5, record_um=(0.0, 50e3))
    return replace(cell, cable=cable, duration_ms=3.0, sampling_ms=0.05)


def spread(cell: Cell, n: int) -> np.ndarray:
    """Different parameter sets; the last has no finite voltage."""
    sets = np.repeat(cell.parameters, n, axis=1)
    for name in cell.membrane.channels:
        sets[cell.membrane.row(f"{name}_scale")] *= np.linspace(0.8, 1.2, n)
    sets[cell.membrane.row(CAPACITANCE), -1] = np.nan
    return sets


@pytest.mark.parametrize("which", ["squid", "schemes", "bent", "axon"])
def test_a_gpu_gives_the_voltages_of_the_processor(
    which: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To rounding: all sets in chunks of a warp, all sweeps and places, currents, and failures."""
    monkeypatch.setattr(cuda, "SHARE", 1e-12)
    cell = bent(tmp_path) if which == "bent" else globals()[which]()
    sets, currents = spread(cell, 40), cell.cable is None
    ours, status = CellSimulator(cell.membrane).simulate(cell, sets, currents)
    found, failed = CellSimulator(cell.membrane, "cuda").simulate(cell, sets, currents)
    assert status.tolist() == failed.tolist() == [0] * 39 + [1]
    assert found.shape == ours.shape
    assert np.isnan(found[..., -1]).all()
    for a, b in zip(found[..., :-1], ours[..., :-1], strict=True):
        assert np.ptp(b[:, -1], axis=1).min() > 1e-4  # sets differ
        assert np.abs(a - b).max() < 1e-9 * np.ptp(b)
    assert np.ptp(ours[0, ..., 0]) > 40


def test_a_failure_has_its_reason_in_any_sweep(device: str, tmp_path: Path) -> None:
    """A rate that is negative at a voltage to which the second sweep alone goes."""
    (tmp_path / "k.yaml").write_text(
        "gates: {n: {alpha: 1 - v/50, beta: '1'}}\n"
        "current: {conductance: g, reversal: -80 mV}\n"
        "parameters: {g: {range: [0.1, 1000], unit: nS, value: 1}}\n"
    )
    membrane = joined("k", [CellChannel("k", load_model(tmp_path / "k.yaml"))], 10.0, None)
    stimulus = Stimulus((Pulse((0.0, 3000.0), 0.1, 0.5),))
    cell = Cell("k", membrane, stimulus, -75.0, 0.0, 1.0, 0.01, 0.1)
    for backend in ("cpu", "cuda"):
        _, status = CellSimulator(membrane, backend).simulate(cell, cell.parameters)
        assert status.tolist() == [NEGATIVE_RATE]


def test_the_function_and_the_command_take_a_gpu(device: str, tmp_path: Path) -> None:
    short = ("cell", SQUID, "--set", "duration=8 ms", "--out", tmp_path / "a", "--json")
    found = {name: summary(ran(*short, "--backend", name).stdout) for name in ("auto", "cpu")}
    assert [one.pop("backend") for one in found.values()] == ["cuda", "cpu"]
    for name, row in found["cpu"]["measures"].items():
        assert found["auto"]["measures"][name] == pytest.approx(row, rel=1e-7)


def test_without_a_gpu_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert CellSimulator(squid().membrane, "auto").backend == "cpu"
    message = refused("cell", SQUID, "--backend", "cuda").output
    assert "CuPy is not installed" in message or "macOS has no CUDA" in message
    with pytest.raises(InputError, match='backend "gpu" is not one of auto, cpu, cuda'):
        cf.cell(SQUID, backend="gpu")


def test_nvrtc_compiles_the_text(tmp_path: Path) -> None:
    for cell, segments in ((bent(tmp_path), 0), (schemes(), 0), (axon(), 5)):
        assert "error" not in compile_with_nvrtc(CellCudaSource(cell.membrane, segments).text)
