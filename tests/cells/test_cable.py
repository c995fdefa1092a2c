"""A cable of channels against passive theory, SciPy, NEURON and its own scaling."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

import channelfit as cf
from channelfit.cells.cable import Cable, step_edges, weights
from channelfit.cells.cell_file import Cell, load_cell
from channelfit.cells.membrane import CAPACITANCE, CellChannel, joined
from channelfit.cells.simulation import CellSimulator
from channelfit.cells.spikes import velocities
from channelfit.cells.stimulus import Pulse, Stimulus
from channelfit.model.model_file import load_model
from support.places import ROOT

AXON = ROOT / "models" / "cells" / "squid_axon.yaml"


@pytest.fixture(scope="module")
def axon() -> Cell:
    """The shipped axon in fewer segments."""
    cell = load_cell(AXON)
    assert cell.cable is not None
    cable = replace(cell.cable, segments=9, record_um=(0.0, 25e3, 50e3))
    return replace(cell, cable=cable, duration_ms=6.0, sampling_ms=0.05)


def voltage(cell: Cell, parameters: np.ndarray | None = None) -> np.ndarray:
    own = cell.parameters if parameters is None else parameters
    trace, status = CellSimulator(cell.membrane).simulate(cell, own)
    assert not status.any()
    return trace[0]


def passive(stimulus: Stimulus, duration_ms: float, **changes: Any) -> Cell:
    """A cable of 2 mm and 4 um with a channel that is always half open, and a leak."""
    cable = replace(Cable(2000.0, 4.0, 11, 150.0, 0.0, (0.0, 2000.0)), **changes)
    area = cable.area_um2
    model = load_model(CONSTANT[0])
    channel = CellChannel("r", model, 1.0, 4e-3 * area, -70.0)  # 0.2 mS/cm2, as half are open
    membrane = joined("passive", [channel], 0.01 * area, (1e-3 * area, -70.0))
    return Cell("passive", membrane, stimulus, -70.0, 0.0, duration_ms, 0.01, 0.05, cable=cable)


#: The file of the channel, which a fixture writes.
CONSTANT: list[Path] = []


@pytest.fixture(scope="module", autouse=True)
def constant(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A gate that is half open at every voltage, and reaches that in a millionth of a step."""
    file = tmp_path_factory.mktemp("cable") / "r.yaml"
    file.write_text(
        "gates:\n  m: {alpha: '1e9', beta: '1e9'}\n"
        "current: {conductance: g, reversal: -70 mV}\n"
        "parameters: {g: {range: [0, 1], unit: nS, value: 1}}\n"
    )
    CONSTANT[:] = [file]


def test_formulas_are_exact_for_polynomials_of_their_order() -> None:
    """On steps that differ in length; equal steps have the known weights."""
    grid = np.arange(0.0, 4.0, 0.1)
    edges, fresh = step_edges(grid, np.array([0.3, 0.7123, 1.5 + 1e-9, 7.0]))
    table = weights(edges, fresh)
    assert edges[fresh] == pytest.approx([0.0, 0.3, 0.7123, 1.5], abs=1e-12)
    assert np.isin(grid, edges).all()
    ratios = np.diff(edges)[1:] / np.diff(edges)[:-1]
    assert ratios[~fresh[1:-1]].max() < 2.01
    assert np.diff(edges)[-2:] == pytest.approx(0.1)
    since = 0
    for n, (h, *row) in enumerate(table):
        since = 1 if fresh[n] else since + 1
        order, t = min(since, 4), edges - edges[n + 1]
        for power in range(order + 1):
            past = t[n - np.arange(order)] ** power
            here, slope = float(power == 0), float(power == 1)
            right = np.dot(row[1 : 1 + order], past) + h * slope
            assert right == pytest.approx(row[0] * here, abs=1e-9)
            if power < order:
                assert np.dot(row[5 : 5 + order], past) == pytest.approx(here, abs=1e-9)
    assert table[-1, 1:6] == pytest.approx([25 / 12, 4, -3, 4 / 3, -1 / 4])
    assert table[-1, 6:] == pytest.approx([4, -6, 4, -1])


def test_a_long_current_leaves_the_steady_state_of_theory() -> None:
    """I r lambda cosh((L - x)/lambda)/sinh(L/lambda) with sealed ends (Rall 1977)."""
    stimulus = Stimulus((Pulse((100.0,), 0.0, 1e3),))
    record = tuple(2000.0 * (k + 0.5) / 297 for k in (1, 49, 148, 295))  # middles, too, of 99
    errors = []
    for segments in (33, 99):
        cell = passive(stimulus, 80.0, segments=segments, record_um=record)
        cell = replace(cell, sampling_ms=80.0)
        found = voltage(cell)[:, -1, 0] + 70.0
        resistance = 150e4 / (math.pi * 2.0**2)  # Ohm/um
        length = math.sqrt(1 / (resistance * math.pi * 4.0 * 3e-12))  # um, of 3e-12 S/um2
        middles = (np.array([segments * x // 2000.0 for x in record]) + 0.5) * 2000.0 / segments
        true = np.cosh((2000.0 - middles) / length) / np.sinh(2000.0 / length)
        true *= 1e-9 * 100.0 * resistance * length  # mV
        assert true[0] > 5 * true[-1]
        errors.append(np.abs(found - true).max() / true.max())
    assert errors[1] < 2e-4
    assert errors[1] == pytest.approx(errors[0] / 9, rel=0.1)


def test_pulses_and_recorded_currents_against_the_matrix_exponential() -> None:
    """At the stimulated segment as well; pulses begin and end within steps."""
    recorded = Stimulus((), np.array([1.0, 2.5, 3.0]), np.array([100.0, 300.0, 0.0]))
    pulses = Stimulus((Pulse((300.0,), 0.5037, 0.4321, 2.0, 2),))
    for stimulus in (pulses, recorded):
        cell = passive(stimulus, 4.0, at_um=700.0, record_um=(700.0, 0.0, 2000.0))
        n, capacitance = 11, cell.membrane.values()[cell.membrane.row(CAPACITANCE)] / 11
        # nS between middles
        axial = 1e9 * math.pi * 2e-4**2 / (150.0 * 2000e-4 / n)
        matrix = np.zeros((n + 2, n + 2))
        for k in range(n - 1):
            matrix[k : k + 2, k : k + 2] += [[-axial, axial], [axial, -axial]]
        matrix[np.arange(n), np.arange(n)] -= 0.3 * capacitance
        matrix[3, n], matrix[n, n + 1] = 1.0, capacitance  # input, and its slope
        matrix /= capacitance
        stops = np.unique(np.append(stimulus.corners(), cell.times_ms))
        y, true = np.zeros(n + 2), {0.0: np.zeros(n)}
        for left, right in pairwise(stops):
            edges = np.array([left, 0.5 * (left + right), right])
            first, second = stimulus.means(edges)[0]
            slope = 2 * (second - first) / (right - left)
            y[n:] = first - 0.25 * slope * (right - left), slope
            y = expm(matrix * (right - left)) @ y
            true[right] = y[:n]
        expected = np.array([true[t][[3, 0, 10]] for t in cell.times_ms]).T
        error = np.abs(voltage(cell)[..., 0] + 70.0 - expected).max(axis=1)
        assert np.ptp(expected[0]) > 3
        assert (error < 1e-4 * np.ptp(expected, axis=1)).all(), error


def hodgkin_huxley(cell: Cell) -> np.ndarray:
    """The voltage of every recorded segment by SciPy, with all equations written out here."""
    assert cell.cable is not None
    n, (pulse,) = cell.cable.segments, cell.stimulus.pulses
    size = 5.0 / n  # cm
    coupling = 0.0476 / 4 / 35.4 / size**2 * 1e3  # mS/cm2: d/(4 R dx^2)
    push = np.zeros(n)
    push[0] = 1e-6 * pulse.amplitudes[0] / (math.pi * 0.0476 * size)  # uA/cm2

    def relax(v: np.ndarray, t: float, scale: float) -> np.ndarray:
        return (v - t) / -np.expm1(-(v - t) / scale)

    def rates(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        up = [0.1 * relax(v, -40, 10), 0.07 * np.exp(-(v + 65) / 20), 0.01 * relax(v, -55, 10)]
        down = [4 * np.exp(-(v + 65) / 18), 1 / (1 + np.exp(-(v + 35) / 10))]
        return np.array(up), np.array([*down, 0.125 * np.exp(-(v + 65) / 80)])

    def slope(t: float, y: np.ndarray, on: float) -> np.ndarray:
        v, gates = y[:n], y[n:].reshape(3, n)
        m, h, k = gates
        current = 120 * m**3 * h * (v - 50) + 36 * k**4 * (v + 77) + 0.3 * (v + 54.387)
        beside = np.pad(v, 1, mode="edge")
        axial = coupling * (beside[2:] - 2 * v + beside[:-2])
        up, down = rates(v)
        return np.concatenate([on * push + axial - current, *(up - (up + down) * gates)])

    v = np.full(n, -65.0 + 1e-9)
    up, down = rates(v)
    y = np.concatenate([v, *(up / (up + down))])
    begin, end = pulse.start_ms, pulse.start_ms + pulse.length_ms
    times, found = cell.times_ms, np.empty((n, len(cell.times_ms)))
    for left, right, on in ((0.0, begin, 0.0), (begin, end, 1.0), (end, float(times[-1]), 0.0)):
        here = (times >= left - 1e-9) & (times <= right + 1e-9)
        asked = np.clip(times[here], left, right)
        span = {"t_eval": np.unique(np.append(asked, right)), "args": (on,)}
        run = solve_ivp(slope, (left, right), y, "LSODA", rtol=1e-9, atol=1e-9, **span)
        found[:, here], y = run.y[:n, : here.sum()], run.y[:, -1]
    return np.asarray(found[cell.cable.recorded])


def test_the_axon_fires_as_the_equations_of_1952_say(axon: Cell) -> None:
    true = hodgkin_huxley(axon)
    assert (np.ptp(true, axis=1) > 90).all()
    errors = np.abs(voltage(axon)[..., 0] - true).max(axis=1) / np.ptp(true, axis=1)
    assert errors.max() < 5e-5
    coarse = np.abs(voltage(replace(axon, step_ms=0.01))[..., 0] - true).max(axis=1)
    assert coarse[-1] > 8 * errors[-1] * np.ptp(true[-1])
    simulator = CellSimulator(axon.membrane)
    half, segments = simulator.errors(axon, axon.parameters, voltage(axon)[..., 0])
    assert half < 5e-5 * np.ptp(true)
    assert segments > 1  # nine segments are too few, and the command says so


def test_a_scheme_gives_the_wave_of_its_gates(axon: Cell) -> None:
    channels = list(axon.membrane.channel_models)
    channels[0] = replace(channels[0], model=channels[0].model.expanded())
    capacitance = axon.membrane.values()[axon.membrane.row(CAPACITANCE)]
    leak = 0.3 * capacitance, -54.387
    scheme = replace(axon, membrane=joined("scheme", channels, capacitance, leak), duration_ms=3.0)
    a, b = (voltage(cell) for cell in (replace(axon, duration_ms=3.0), scheme))
    assert a[0].max() > 39
    assert np.abs(a - b).max() < 3e-3


def test_parameter_sets_do_not_depend_on_each_other(axon: Cell) -> None:
    cell = replace(axon, duration_ms=2.0)
    sets = np.repeat(cell.parameters, 20, axis=1)
    sets[cell.membrane.row("na_cell_conductance")] *= np.linspace(0.5, 1.5, 20)
    together = voltage(cell, sets)
    alone = np.concatenate([voltage(cell, sets[:, [k]]) for k in (0, 17)], axis=-1)
    assert np.array_equal(together[..., [0, 17]], alone)
    assert len(np.unique(together[0, -1])) == 20


def test_alike_cables_are_slower_by_the_root_of_the_diameter(axon: Cell) -> None:
    """A cable as long in space constants has the same voltages, and its velocity goes with them."""
    assert axon.cable is not None
    found = []
    for factor in (1.0, 0.25):
        root = math.sqrt(factor)
        cable = replace(
            axon.cable,
            length_um=axon.cable.length_um * root,
            diameter_um=axon.cable.diameter_um * factor,
            record_um=tuple(root * x for x in axon.cable.record_um),
        )
        share = cable.area_um2 / axon.cable.area_um2
        sets = axon.parameters.copy()
        for name in (CAPACITANCE, "na_cell_conductance", "k_cell_conductance", "leak_conductance"):
            sets[axon.membrane.row(name)] *= share
        pulse = replace(axon.stimulus.pulses[0], amplitudes=(2e7 * share,))
        cell = replace(axon, cable=cable, stimulus=Stimulus((pulse,)))
        capacitance = replace(axon.membrane.model.parameters[0], value=sets[0, 0])
        assert capacitance.name == CAPACITANCE
        model = axon.membrane.model
        model = replace(model, parameters=(capacitance, *model.parameters[1:]))
        cell = replace(cell, membrane=replace(axon.membrane, model=model))
        v = voltage(cell, sets)
        found.append(velocities(v, cell.sampling_ms, cable.distances_um)[1, 0])
    assert found[0] > 5
    assert found[1] == pytest.approx(found[0] / 2, rel=1e-6)


def test_velocities_of_drawn_waves() -> None:
    """Rises between the samples; a wave from the other side; a place that none comes to."""
    t = 0.05 * np.arange(400)

    def wave(at_ms: float) -> np.ndarray:
        return np.asarray(-70.0 + 100 / (1 + np.exp(-(t - at_ms) / 0.1)))

    low = np.full_like(t, -70.0)
    rows = [wave(5.01), wave(6.0234), wave(5.5), wave(5.01), wave(5.01 + 1e-6), low]
    v = np.array(rows)[..., None]
    found = velocities(v, 0.05, np.array([10e3, 1e3]))[:, 0]
    expected = [np.nan, 10 / 1.0134, 1 / -0.5234, np.nan, np.nan, np.nan]
    assert found == pytest.approx(expected, rel=1e-4, nan_ok=True)


def test_the_function_has_a_trace_for_each_place(tmp_path: Path) -> None:
    document = {
        "membrane": {"leak": {"conductance": "0.3 mS/cm2", "reversal": -54.387}},
        "cable": {
            "length": "2 cm",
            "diameter": "476 um",
            "axial": "35.4 ohm cm",
            "segments": 15,
            "record": ["5 mm", "15 mm"],
        },
        "channels": {
            "na": {"model": ROOT / "models" / "na_hh.yaml", "conductance": "120 mS/cm2"},
            "k": {
                "model": ROOT / "models" / "k_hh_gate.yaml",
                "reversal": "-77 mV",
                "conductance": "36 mS/cm2",
                "samples": {"a1": [0.009, 0.01, 0.011]},
            },
        },
        "stimulus": {"pulses": [{"amplitude": ["20 uA", "30 uA"], "start": 0.2, "for": 0.5}]},
        "duration": "4 ms",
        "sampling": "20 us",
    }
    found = cf.cell(document, knock_out="na")
    assert found.voltage_mV["control"].shape == (4, 201, 3)
    speed = found.set_measures["control"]["velocity_m_per_s"]
    assert np.isnan(speed[[0, 2]]).all()
    assert ((speed[[1, 3]] > 8) & (speed[[1, 3]] < 20)).all()
    assert not found.set_measures["changed"]["spikes"][[1, 3]].any()
    assert found.measures.loc["sweep_2_at_15000_um_velocity_m_per_s", "control"] > 8
    assert found.summary["segment_error_mV"] > found.summary["step_error_mV"] > 0
    assert "sweep_2_at_5000_um_changed_voltage_mV_high" in found.bands
    assert found.summary["step_ms"] == 0.005
    drawn = found.plot().axes[0]
    assert drawn.get_ylabel() == "µA"
    assert max(line.get_ydata().max() for line in drawn.lines) == pytest.approx(30)
    table = found.save(tmp_path / "a")[1].read_text().splitlines()
    assert table[0].startswith("run,sweep,place_um,set,rest_mV")
    assert len(table) == 1 + 2 * 2 * 2 * 3
    with pytest.raises(cf.InputError, match="currents: they differ along a cable"):
        cf.cell(document, currents=True)
    document["stimulus"]["pulses"][0]["amplitude"] = "10 uA/cm2"  # type: ignore[index]
    with pytest.raises(cf.InputError, match="stimulus: is at a place of a cable.*in pA"):
        cf.cell(document)


@pytest.mark.slow
def test_velocity_goes_with_the_root_of_the_diameter(axon: Cell) -> None:
    """On cables of one length, of which the segments differ in space constants."""
    found = []
    longer = ["cable.length=100 mm", "cable.segments=1201", "cable.record=[60 mm, 80 mm]"]
    for diameter in ("100 um", "400 um"):
        cell = load_cell(AXON, [f"cable.diameter={diameter}", *longer])
        assert cell.cable is not None
        v = voltage(replace(cell, duration_ms=20.0, sampling_ms=0.05))
        found.append(velocities(v, 0.05, cell.cable.distances_um)[1, 0])
    assert found[1] / found[0] == pytest.approx(2, rel=1e-3)


@pytest.mark.slow
def test_neuron_gives_the_same_voltages_and_velocity() -> None:
    """101 segments, by CVODE: the stimulated segment, the far end, and three places between."""
    benchmark: Any = importlib.import_module("cell")
    error, velocity = benchmark.cable_accuracy(benchmark.axon())
    assert error < 1e-4
    assert np.abs(velocity[1:-1]).max() < 1e-5
