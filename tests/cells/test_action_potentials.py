"""Voltages of cells against independent truths, measures of action potentials, the command."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.integrate import solve_ivp

from channelfit.cells.cell_file import Cell, load_cell
from channelfit.cells.membrane import CellChannel, joined
from channelfit.cells.results import simulate_cell
from channelfit.cells.simulation import CellSimulator
from channelfit.cells.spikes import measures
from channelfit.cells.stimulus import Pulse, Stimulus
from channelfit.front.main import main
from channelfit.model.model_file import load_model
from support.cell_reference import bent, reference
from support.places import ROOT

SQUID = ROOT / "models" / "cells" / "squid.yaml"
LEAK = (3.0, -54.387)


def hodgkin_huxley(times: np.ndarray) -> np.ndarray:
    """The squid's voltage, with rates and currents written out here, to 1e-10."""

    def relax(v: float, t: float, scale: float) -> float:
        return (v - t) / -np.expm1(-(v - t) / scale)

    def slope(t: float, y: np.ndarray) -> list[float]:
        v, m, h, n = y
        am, bm = 0.1 * relax(v, -40, 10), 4 * np.exp(-(v + 65) / 18)
        ah, bh = 0.07 * np.exp(-(v + 65) / 20), 1 / (1 + np.exp(-(v + 35) / 10))
        an, bn = 0.01 * relax(v, -55, 10), 0.125 * np.exp(-(v + 65) / 80)
        current = 120 * m**3 * h * (v - 50) + 36 * n**4 * (v + 77) + 0.3 * (v - LEAK[1])
        push = 10.0 if t > 5.0 else 0.0
        return [push - current, am - (am + bm) * m, ah - (ah + bh) * h, an - (an + bn) * n]

    v = -65.0 + 1e-12
    am, bm, ah, bh = 0.1 * relax(v, -40, 10), 4.0, 0.07, 1 / (1 + np.exp(3.0))
    an, bn = 0.01 * relax(v, -55, 10), 0.125
    y = np.array([v, am / (am + bm), ah / (ah + bh), an / (an + bn)])
    found = np.empty(len(times))
    for left, right in ((0.0, 5.0), (5.0 + 1e-13, float(times[-1]))):
        here = (times >= left - 1e-9) & (times <= right)
        run = solve_ivp(
            *(slope, (left, right), y, "DOP853"),
            t_eval=np.clip(times[here], left, right),
            rtol=1e-11,
            atol=1e-12,
        )
        found[here], y = run.y[0], run.y[:, -1]
    return found


@pytest.fixture(scope="module")
def squid() -> Cell:
    return replace(load_cell(SQUID), duration_ms=25.0)


@pytest.fixture(scope="module")
def truth(squid: Cell) -> np.ndarray:
    return hodgkin_huxley(squid.times_ms)


def voltage(cell: Cell, parameters: np.ndarray | None = None) -> np.ndarray:
    own = cell.parameters if parameters is None else parameters
    trace, status = CellSimulator(cell.membrane).simulate(cell, own)
    assert not status.any()
    return trace[0]


def test_the_squid_fires_as_the_equations_of_1952_say(squid: Cell, truth: np.ndarray) -> None:
    """Two action potentials; the error falls with the third to fourth power of the step."""
    amplitude = np.ptp(truth)
    errors = {}
    for step in (0.04, 0.02, 0.01):
        cell = replace(squid, step_ms=step, sampling_ms=0.2)
        errors[step] = np.abs(voltage(cell)[0, :, 0] - truth[::20]).max()
    assert amplitude > 100
    assert errors[0.01] < 3e-5 * amplitude
    assert errors[0.02] > 7 * errors[0.01]
    assert errors[0.04] > 7 * errors[0.02]
    simulator = CellSimulator(squid.membrane)
    found = simulator.errors(squid, squid.parameters, voltage(squid)[..., 0])[0]
    assert errors[0.01] / 2 < found < 2 * errors[0.01]


def test_a_scheme_gives_the_action_potential_of_its_gates(squid: Cell) -> None:
    """The sodium channel as eight states with cycles, for which other text is generated."""
    channels = list(squid.membrane.channel_models)
    channels[0] = replace(channels[0], model=channels[0].model.expanded())
    scheme = replace(squid, membrane=joined("scheme", channels, 10.0, LEAK))
    short = {"duration_ms": 10.0, "sampling_ms": 0.1}
    a, b = (voltage(replace(cell, **short)) for cell in (squid, scheme))  # type: ignore[arg-type]
    assert a.max() > 39
    assert np.abs(a - b).max() < 3e-3


def test_parameter_sets_do_not_depend_on_each_other(squid: Cell) -> None:
    """Forty different sets, more than a block of lanes, each alone and together."""
    cell = replace(squid, duration_ms=8.0, sampling_ms=1.0)
    sets = np.repeat(cell.parameters, 40, axis=1)
    sets[cell.membrane.row("na_cell_conductance")] *= np.linspace(0.5, 1.5, 40)
    together = voltage(cell, sets)
    alone = np.concatenate([voltage(cell, sets[:, [k]]) for k in (0, 17, 39)], axis=-1)
    assert np.array_equal(together[..., [0, 17, 39]], alone)
    assert len(np.unique(together[0, -1])) == 40


def test_currents_are_those_under_the_own_potential(squid: Cell) -> None:
    """C dv/dt is the stimulus less the sum of the currents."""
    cell = replace(squid, duration_ms=9.0)
    trace, _ = CellSimulator(cell.membrane).simulate(cell, cell.parameters, currents=True)
    v, currents = trace[0, 0, :, 0], trace[1:, 0, :, 0].sum(axis=0)
    slope = (v[2:] - v[:-2]) / (2 * cell.sampling_ms)
    push = np.where(cell.times_ms[1:-1] > 5.005, 100.0, 0.0)
    difference = np.abs(10.0 * slope - (push - currents[1:-1]))
    difference[498:501] = 0.0  # the stimulus jumps
    assert difference.max() < 3e-3 * np.abs(trace[1:]).max()


def test_a_pulse_within_a_step_brings_its_whole_charge(squid: Cell) -> None:
    cell = replace(squid, duration_ms=1.0)
    brief = [Stimulus((Pulse((1000.0,), 0.5021, w),)) for w in (0.003, 0.006)]
    jumps = [np.ptp(voltage(replace(cell, stimulus=s))[0, 48:53, 0]) for s in brief]
    assert jumps == pytest.approx([0.3, 0.6], rel=0.03)


def test_the_stimulus_is_integrated_exactly() -> None:
    train = Stimulus((Pulse((10.0, -20.0), 1.0, 2.0, 5.0, 2), Pulse((1.0,), 0.0, 100.0)))
    edges = np.array([0.0, 0.5, 1.5, 4.0, 6.5, 9.0])
    means = [1.0, 1 + 5.0, 1 + 10 * 1.5 / 2.5, 1 + 10 * 0.5 / 2.5, 1 + 10 * 1.5 / 2.5]
    assert train.means(edges)[0] == pytest.approx(means)
    assert train.means(edges)[1] == pytest.approx(3 - 2 * np.array(means))
    line = Stimulus((), np.array([1.0, 2.0, 4.0]), np.array([0.0, 10.0, 0.0]))
    assert line.means(np.array([0.0, 1.5, 3.0, 8.0]))[0] == pytest.approx([0.75 / 0.9, 7.5, 0.5])


def test_measures_of_a_drawn_spike() -> None:
    """A triangle on a slow ramp: its corners are known."""
    t = np.arange(0.0, 20.0, 0.01)
    v = np.interp(t, [0, 5, 7, 10, 20], [-70, -60, 40, -80, -80])
    found = {name: x[0, 0] for name, x in measures(v[None, :, None], 0.01).items()}
    assert found["rest_mV"] == -70
    assert found["spikes"] == 1
    assert found["peak_mV"] == pytest.approx(40, abs=0.2)
    assert found["latency_ms"] == pytest.approx(7, abs=0.01)
    assert found["threshold_mV"] == pytest.approx(-60, abs=0.3)
    assert found["width_ms"] == pytest.approx(1 + 1.25, abs=0.01)
    assert found["trough_mV"] == pytest.approx(-80)
    assert found["rate_Hz"] == 0
    silent = measures(np.full((1, 50, 2), -60.0), 0.1)
    assert not silent["spikes"].any()
    assert np.isnan(silent["peak_mV"]).all()


def test_spikes_are_counted_and_timed(squid: Cell) -> None:
    found = measures(voltage(replace(squid, duration_ms=40.0)), squid.sampling_ms)
    assert found["spikes"][0, 0] == 3
    assert found["rate_Hz"][0, 0] == pytest.approx(67.6, abs=0.1)
    assert found["peak_mV"][0, 0] == pytest.approx(40.26, abs=0.01)


def test_a_knock_out_is_paired_with_its_own_set(squid: Cell) -> None:
    channels = list(squid.membrane.channel_models)
    channels[1] = replace(
        channels[1], sampled=("a1",), samples=np.array([[0.009, 0.01, 0.011, 0.012]])
    )
    membrane = joined("cell", channels, 10.0, LEAK)
    cell = replace(squid, membrane=membrane, n_sets=4, duration_ms=12.0)
    assert sorted(cell.parameters[membrane.row("k_a1")]) == [0.009, 0.01, 0.011, 0.012]
    found = simulate_cell(cell, {"na": 0.0})
    assert found.changed is not None
    assert (found.control.measures["spikes"] == 1).all()
    assert not found.changed.measures["spikes"].any()
    summary = {name: ranges for _, name, ranges in found.summary()}
    assert summary["spikes"]["change"] == pytest.approx([-1, -1, -1])
    low, middle, high = found.control.band()
    assert (low <= middle).all()
    assert (middle <= high).all()
    assert (high - low).max() > 1
    apart = np.abs(found.control.trace[0, 0] - middle[0][:, None]).sum(axis=0)
    assert found.control.typical == apart.argmin()


@pytest.mark.parametrize("words", [["--knock-out", "zz"], ["--scale", "k"], ["--scale", "k=-1"]])
def test_a_channel_that_is_not_there_is_refused(words: list[str]) -> None:
    done = CliRunner().invoke(main, ["cell", str(SQUID), *words])
    assert done.exit_code == 2, done.output


@pytest.mark.integration
def test_neuron_gives_the_same_voltages() -> None:
    """One mechanism for each channel, exported by itself; gates and schemes."""
    benchmark: Any = importlib.import_module("cell")
    for cell in (benchmark.squid(20.0), benchmark.schemes()):
        row = benchmark.accuracy(cell)
        assert row.value < 1e-4, row


def test_currents_that_rectify_against_the_reference(tmp_path: Path) -> None:
    cell = bent(tmp_path)
    found, true = voltage(cell)[..., 0], reference(cell, cell.membrane.values())
    assert np.ptp(true) > 40
    assert np.abs(found - true).max() < 5e-5 * np.ptp(true)


PUBLISHED: dict[str, Any] = {
    "na": ("na_nav15.yaml", 600.0, 50.0),
    "k": ("published/kv34_khaliq.yaml", 200.0, -77.0),
    "na2": ("na_markov.yaml", 600.0, 50.0),
}


@pytest.mark.slow
def test_schemes_against_the_reference() -> None:
    channels = [
        CellChannel(name, load_model(ROOT / "models" / file), 1.0, g, e)
        for name, (file, g, e) in PUBLISHED.items()
    ]
    membrane = joined("mixed", channels, 10.0, LEAK)
    stimulus = Stimulus((Pulse((200.0,), 1.0, 6.0),))
    cell = Cell("mixed", membrane, stimulus, -75.0, 0.0, 6.0, 0.01, 0.05)
    found, true = voltage(cell)[..., 0], reference(cell, membrane.values())
    assert np.ptp(true) > 80
    assert np.abs(found - true).max() < 1e-4 * np.ptp(true)
