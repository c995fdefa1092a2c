"""Measures of many traces at once against a loop over them, and against finer solutions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.interpolate import CubicSpline
from scipy.ndimage import gaussian_filter1d

from channelfit.cells import results
from channelfit.cells.cell_file import Cell, load_cell
from channelfit.cells.results import simulate_cell
from channelfit.cells.spikes import MEASURES, measures
from channelfit.cells.stimulus import Pulse, Stimulus
from support.places import ROOT
from support.spike_reference import of_trace


@pytest.fixture(scope="module")
def squid() -> Cell:
    return replace(load_cell(ROOT / "models" / "cells" / "squid.yaml"), duration_ms=25.0)


def by_loop(voltage: np.ndarray, h: float) -> dict[str, np.ndarray]:
    n_sweeps, _, n_sets = voltage.shape
    out = {name: np.full((n_sweeps, n_sets), np.nan) for name in MEASURES}
    for sweep in range(n_sweeps):
        for k in range(n_sets):
            if np.isfinite(voltage[sweep, :, k]).all():
                for name, value in of_trace(voltage[sweep, :, k], h).items():
                    out[name][sweep, k] = value
    return out


@pytest.mark.parametrize("grain", [0.0, 5.0])
@pytest.mark.parametrize("n_times", [2, 3, 7, 400])
def test_many_traces_have_the_measures_of_each(grain: float, n_times: int) -> None:
    """Smooth noise, also in grains, where neighbors are equal; gaps, and traces without a spike."""
    random = np.random.default_rng(n_times)
    v = 60 * gaussian_filter1d(random.standard_normal((2, n_times, 150)), 3, axis=1) - 40
    if grain:
        v = grain * np.round(v / grain)
    v[0, :, 5], v[1, n_times // 2, 6], v[1, :, 7] = np.nan, np.nan, -60.0
    found, expected = measures(v, 0.1), by_loop(v, 0.1)
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-9, abs=1e-9, nan_ok=True), name
    if n_times == 400:
        assert np.nanmean(expected["spikes"]) > 1


def test_measures_do_not_depend_on_the_sampling(
    squid: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of the steps; sets in parts, as where memory is short, change nothing."""
    steps = simulate_cell(squid).control
    spline = CubicSpline(squid.times_ms, steps.trace[0, 0, :, 0])
    fine = np.arange(6.0, 9.0, 1e-4)
    peak = spline(fine).max()
    several: dict[str, Any] = {"n_sets": 3, "sampling_ms": 0.1}
    monkeypatch.setattr(results, "_AT_ONCE", 2 * len(squid.times_ms))
    coarse = simulate_cell(replace(squid, **several)).control
    assert np.array_equal(coarse.trace[0, 0, :, 2], steps.trace[0, 0, ::10, 0])
    for name, values in coarse.measures.items():
        assert np.array_equal(values, np.repeat(steps.measures[name], 3, axis=1)), name
    assert coarse.measures["peak_mV"][0, 0] == pytest.approx(peak, abs=1e-3)
    assert coarse.measures["latency_ms"][0, 0] == pytest.approx(
        fine[spline(fine).argmax()], abs=1e-3
    )
    assert coarse.trace[0].max() < peak - 0.3  # no sample is at the peak


def test_a_stimulus_that_begins_the_rise_hides_the_threshold(squid: Cell) -> None:
    """30 mV/ms by the stimulus; 10 mV/ms, after which the spike begins by itself."""
    pulses = Stimulus((Pulse((300.0, 100.0), 2.0023, 1.0), Pulse((0.0, 100.0), 3.0, 10.0)))
    found = simulate_cell(replace(squid, stimulus=pulses, duration_ms=15.0)).control.measures
    assert np.isnan(found["threshold_mV"][0, 0])
    assert -60 < found["threshold_mV"][1, 0] < -50
    for name in ("spikes", "peak_mV", "width_ms", "latency_ms"):
        assert np.isfinite(found[name]).all(), name
