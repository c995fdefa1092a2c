"""Measures how often 95 % intervals hold what they should, for noise of several kinds.

    python benchmarks/intervals.py [--parts cells curves] [--cells 300] [--against FILE] [--out DIR]

A channel of three states (closed, open, inactivated) and seven parameters is fitted to one sweep of
twenty voltage steps, 4,000 samples at 0.5 ms, as the wells of a plate. The cells are simulated here
with matrix exponentials of SciPy, without our kernels, and their noise has a standard deviation of
2 % of the largest current:

* white: independent from sample to sample.
* autoregressive: each sample 0.9 of the one before it, and a new part.
* filtered: white noise through a Bessel filter of four poles at 0.1 kHz.
* 1/f: power that falls with the frequency, down to a sixteenth of what one sweep shows.
* 1/f and white: of equal variance.
* hum: white noise, and as much of 50 Hz in any phase.
* wrong model: white noise, and cells that have two closed states before the open one. Their
  intervals should hold the pseudo-true values: those of the fit to the same cell without noise.
* wrong model, 1/f: the same with 1/f noise.

For each kind: the share of intervals that hold the truth, of all parameters and of the worst one,
the share of wells that are called `ok`, and of the intervals of those that hold it. --against takes
another result of this script, of other code, to stand beside it.

Of curves: sums of two exponentials whose time constants differ by ratios from 1.2 to 8, 200 points
with noise of 2 % of a term's size, 1,500 for each range of ratios. What share is `ok`, and how many
intervals of these hold the truth; of 300 that are to be checked how many of those by Student's t
and by the profile likelihood; how many outliers of 15 standard deviations are found in one
exponential; intervals of a straight line through six points; and those of exponentials
whose points have standard errors of their own, which differ by factors of two (lognormal): by these
weights without outliers, and with one point in ten at ten times its standard error by least squares
and under the loss soft_l1 of scales around the noise.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from report import Row, as_script, finish
from scipy import signal
from scipy.linalg import expm, null_space

from channelfit.batch.fits import SearchSettings, WellFits, fit_wells
from channelfit.front.curves import CurveFits, fit_curves
from channelfit.front.kinds import load_plan
from channelfit.problem.experiment import Problem
from channelfit.reading.documents import dump_yaml
from channelfit.scoring.scorer import make_scorer
from channelfit.search.plan import FitPlan

STEPS_mV = (20, -40, -10, -60, 40, -30, 10, -70, -20, 30, -50, 0, -35, 15, -65, 25, -45, 5, -80, 35)
HOLDING_mV, REVERSAL_mV, STEP_ms, SAMPLING_ms = -80.0, -90.0, 100.0, 0.5
TRUTH = {"a": 0.02, "za": 0.04, "b": 0.01, "zb": 0.03, "c": 0.01, "d": 0.005, "g": 10.0}
NOISE, SEED, MARGIN, PROFILED = 0.02, 25, 500, 300
RATIOS = ((1.2, 1.6), (1.6, 2.5), (2.5, 4.0), (4.0, 8.0))
MODEL = {
    "name": "three_states",
    "states": ["C", "O", "I"],
    "rates": {"C -> O": "a*exp(za*v)", "O -> C": "b*exp(-zb*v)", "O -> I": "c", "I -> O": "d"},
    "current": {"open": ["O"], "conductance": "g", "reversal": f"{REVERSAL_mV:g} mV"},
    "parameters": {
        name: {"range": [value / 50, value * 50], "unit": unit, "scale": "log", "value": value}
        for (name, value), unit in zip(
            TRUTH.items(), ("1/ms", "1/mV", "1/ms", "1/mV", "1/ms", "1/ms", "nS"), strict=True
        )
    },
}
Noise = Callable[[int, np.random.Generator], np.ndarray]


def planned(folder: Path) -> FitPlan:
    """The fit of three states to the steps."""
    segments = [{"step": f"{v} mV", "for": f"{STEP_ms:g} ms"} for v in STEPS_mV]
    protocol = {
        "name": "steps",
        "holding": f"{HOLDING_mV:g} mV",
        "sampling": f"{SAMPLING_ms:g} ms",
        "segments": segments,
    }
    (folder / "steps.yaml").write_text(dump_yaml(protocol))
    section = {"protocols": ["steps.yaml"], "surrogate": {}}
    (folder / "model.yaml").write_text(dump_yaml(MODEL | {"fit": section}))
    return replace(load_plan(folder / "model.yaml", backend="cpu"), surrogate=False)


def current(closed: int) -> np.ndarray:
    """The current of a channel with so many closed states in a row, pA."""
    t = TRUTH
    n = closed + 2

    def generator(v: float) -> np.ndarray:
        rates = np.zeros((n, n))  # [to, from]
        for k in range(closed):
            rates[k + 1, k] = t["a"] * np.exp(t["za"] * v) * (1 + 2 * (closed - 1 - k))
            rates[k, k + 1] = t["b"] * np.exp(-t["zb"] * v)
        rates[n - 1, n - 2], rates[n - 2, n - 1] = t["c"], t["d"]
        return rates - np.diag(rates.sum(axis=0))

    state = null_space(generator(HOLDING_mV))[:, 0]
    state /= state.sum()
    found = []
    for v in STEPS_mV:
        step = expm(generator(float(v)) * SAMPLING_ms)
        for _ in range(round(STEP_ms / SAMPLING_ms)):
            found.append(t["g"] * state[n - 2] * (v - REVERSAL_mV))
            state = step @ state
    return np.array(found)


# --- noise of variance 1 --------------------------------------------------------------------------


def white(n: int, random: np.random.Generator) -> np.ndarray:
    return random.standard_normal(n)


def autoregressive(n: int, random: np.random.Generator) -> np.ndarray:
    noise = signal.lfilter([1], [1, -0.9], random.standard_normal(n + MARGIN))[MARGIN:]
    return np.asarray(noise * np.sqrt(1 - 0.9**2))


def filtered(n: int, random: np.random.Generator) -> np.ndarray:
    weights = signal.bessel(4, 0.1, fs=1 / SAMPLING_ms)
    noise = signal.lfilter(*weights, random.standard_normal(n + MARGIN))[MARGIN:]
    answer = signal.lfilter(*weights, np.eye(1, 4 * MARGIN)[0])
    return np.asarray(noise / np.sqrt(answer @ answer))


def one_over_f(n: int, random: np.random.Generator) -> np.ndarray:
    longer = 16 * n
    shape = np.fft.rfftfreq(longer)
    shape[1:] **= -0.5
    shape[0] = 0.0
    parts = shape * (random.standard_normal((2, len(shape))).T @ [1, 1j])
    noise = np.fft.irfft(parts, longer)[:n]
    return np.asarray(noise * longer / np.sqrt(4 * (shape**2).sum()))


def both(n: int, random: np.random.Generator) -> np.ndarray:
    return np.asarray((one_over_f(n, random) + white(n, random)) / np.sqrt(2))


def hum(n: int, random: np.random.Generator) -> np.ndarray:
    phase = 2 * np.pi * (0.05 * SAMPLING_ms * np.arange(n) + random.random())
    return np.asarray(np.sin(phase) + white(n, random) / np.sqrt(2))


KINDS: dict[str, tuple[int, Noise]] = {
    "white": (1, white),
    "autoregressive": (1, autoregressive),
    "filtered": (1, filtered),
    "1/f": (1, one_over_f),
    "1/f and white": (1, both),
    "hum": (1, hum),
    "wrong model": (2, white),
    "wrong model, 1/f": (2, one_over_f),
}


# --- what comes of it -----------------------------------------------------------------------------


def recorded(plan: FitPlan, data: np.ndarray) -> Problem:
    """The problem with other data."""
    (experiment,) = plan.problem.experiments
    assert experiment.recording is not None
    recording = replace(experiment.recording, current_pA=data[None])
    return replace(plan.problem, experiments=(replace(experiment, recording=recording),))


def measured(kind: str, fits: WellFits, truth: np.ndarray) -> list[Row]:
    """The rows of a kind of noise."""
    held = (fits.lower <= truth) & (truth <= fits.upper)
    shares = held.mean(axis=0)
    ok = fits.quality == "ok"
    worst = int(shares.argmin())
    wide = np.nanmedian((fits.upper - fits.lower) / truth, axis=0)
    rows = [
        Row(f"{kind}: intervals that hold", 100 * held.mean(), "%"),
        Row(f"{kind}: of the worst parameter", 100 * shares[worst], "%", note=fits.names[worst]),
        Row(f"{kind}: median width", 100 * float(np.median(wide)), "% of the value"),
        Row(f"{kind}: wells that are ok", 100 * ok.mean(), "%"),
    ]
    if ok.any():
        rows.append(Row(f"{kind}: intervals of those that hold", 100 * held[ok].mean(), "%"))
    for name, share in zip(fits.names, shares, strict=True):
        rows.append(Row(f"{kind}: {name}", 100 * float(share), "%"))
    return rows


def of_cells(n_cells: int, kinds: Sequence[str]) -> list[Row]:
    """The rows of all kinds of noise."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        plan = planned(Path(folder))
        names = [p.name for p in plan.problem.parameters]
        true = np.array([TRUTH[name] for name in names])
        ours = make_scorer(plan.problem, "cpu").simulate(true[:, None])[0][0, :, 0]
        assert np.abs(ours - current(1)).max() < 1e-9 * np.abs(ours).max()
        settings = SearchSettings(backend="cpu")
        for place, kind in enumerate(KINDS):
            if kind not in kinds:
                continue
            closed, noise = KINDS[kind]
            clean, random = current(closed), np.random.default_rng([SEED, place])
            truth = true
            if closed > 1:
                truth = fit_wells(plan, [recorded(plan, clean)], settings).values[0]
            size = NOISE * np.abs(clean).max()
            cells = [
                recorded(plan, clean + size * noise(len(clean), random)) for _ in range(n_cells)
            ]
            fits = fit_wells(plan, cells, settings)
            rows += measured(kind, fits, truth)
            print(kind, *(f"{row.value:.1f}" for row in rows[-12:]), flush=True)
            reasons = [r for one in fits.reason for r in one.split("; ") if r]
            for text in sorted({r.split(":")[0][:60] for r in reasons}):
                print("   ", sum(r.startswith(text) for r in reasons), text, flush=True)
    return rows


# --- curves ---------------------------------------------------------------------------------------


def held_by(fits: CurveFits, truth: np.ndarray) -> np.ndarray:
    """Which intervals (n_sets, n_names) hold the truth; 1.96 errors where there are none."""
    ends = getattr(fits, "intervals", None)
    if ends is None:
        reach = 1.96 * fits.errors
        ends = np.stack([fits.values - reach, fits.values + reach], axis=2)
    return np.asarray((ends[:, :, 0] <= truth) & (truth <= ends[:, :, 1]))


def of_curves(n: int) -> list[Row]:
    """The rows of curves: n data sets of each kind."""
    rows, t = [], np.linspace(0, 100, 200)
    for place, (low, high) in enumerate(RATIOS):
        random = np.random.default_rng([SEED, 100 + place])
        fast, ratio = random.uniform(5, 15, n), random.uniform(low, high, n)
        offset, sizes = random.uniform(-0.1, 0.1, n), random.uniform(0.3, 1, (2, n))
        truth = np.stack([offset, sizes[0], fast, sizes[1], fast * ratio], axis=1)
        clean = offset[:, None] + sizes[0][:, None] * np.exp(-t / fast[:, None])
        clean += sizes[1][:, None] * np.exp(-t / (fast * ratio)[:, None])
        data = clean + NOISE * random.normal(size=clean.shape)
        fits = fit_curves("double_exponential", data, t)
        ok = np.array(fits.quality) == "ok"
        name = f"two exponentials, ratio {low:g} to {high:g}"
        some = np.flatnonzero(np.array(fits.quality) == "check")[:PROFILED]
        again = fit_curves("double_exponential", data[some], t, intervals="profile")
        for kind, held in (
            ("t", held_by(fits, truth)[some]),
            ("profile", held_by(again, truth[some])),
        ):
            share = 100 * float(held.mean())
            rows.append(Row(f"{name}: to be checked, intervals by {kind} that hold", share, "%"))
        rows.append(Row(f"{name}: ok", 100 * float(ok.mean()), "%"))
        if ok.any():
            held = held_by(fits, truth)[ok]
            rows.append(Row(f"{name}: intervals of these that hold", 100 * held.mean(), "%"))
            rows.append(Row(f"{name}: of sizes", 100 * float(held[:, [1, 3]].mean()), "%"))
    random = np.random.default_rng([SEED, 200])
    data = np.exp(-t / 20) + NOISE * random.normal(size=(n, len(t)))
    for name, apart in (("without an outlier", 0.0), ("with one of 15 deviations", 15 * NOISE)):
        data[np.arange(n), random.integers(len(t), size=n)] += apart
        quality = fit_curves("exponential", data, t).quality
        rows.append(Row(f"one exponential {name}: ok", 100 * quality.count("ok") / n, "%"))
    x, line = np.arange(6.0), {"inputs": "x", "parameters": {"a": {}, "b": {}}, "curve": "a + b*x"}
    fits = fit_curves(line, 2 + 0.5 * x + random.normal(size=(n, 6)), x)
    held = held_by(fits, np.array([2, 0.5]))
    rows.append(Row("a line through six points: intervals that hold", 100 * held.mean(), "%"))
    return rows + of_weights(n)


def of_weights(n: int) -> list[Row]:
    """The rows of weighted and of robust fits: n data sets of each kind."""
    rows = []
    for n_points in (15, 40, 120):
        random = np.random.default_rng([SEED, 300 + n_points])
        x = np.linspace(0, 30, n_points)
        sigma = NOISE * np.exp(random.normal(0, np.log(2), (n, n_points)))
        noise, far = random.normal(size=sigma.shape) * sigma, random.random(sigma.shape) < 0.1
        for name, by, loss, f_scale in (
            ("weights", 1.0, "linear", None),
            ("weights, outliers", 10.0, "linear", None),
            ("soft_l1 of 0.3 standard errors, outliers", 10.0, "soft_l1", 0.3),
            ("soft_l1 of 1 standard error, outliers", 10.0, "soft_l1", 1.0),
            ("soft_l1 of 3 standard errors, outliers", 10.0, "soft_l1", 3.0),
        ):
            data = 0.2 + np.exp(-x / 6) + np.where(far, by, 1.0) * noise
            fits = fit_curves("exponential", data, x, sigma=sigma, loss=loss, f_scale=f_scale)
            held = held_by(fits, np.array([0.2, 1.0, 6.0]))
            name = f"one exponential, {n_points} points, {name}"
            rows.append(Row(f"{name}: intervals that hold", 100 * float(held.mean()), "%"))
            ends = fits.intervals
            assert ends is not None
            width = float(np.nanmedian(ends[:, 2, 1] - ends[:, 2, 0]))
            rows.append(Row(f"{name}: width of those of tau", width / 6, "tau"))
    return rows


def beside(rows: list[Row], file: Path | None) -> list[Row]:
    """The rows with those of another result of the same name."""
    if file is None:
        return rows
    other = {row["name"]: row["value"] for row in json.loads(file.read_text())["rows"]}
    return [replace(row, against=other.get(row.name)) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=["cells", "curves"])
    parser.add_argument("--cells", type=int, default=300)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--against", type=Path, help="another result, of other code")
    parser.add_argument("--out", type=Path, default=None, help="a folder other than results/")
    options = parser.parse_args()
    rows = of_cells(options.cells, options.kinds) if "cells" in options.parts else []
    rows += of_curves(5 * options.cells) if "curves" in options.parts else []
    rows = beside(rows, options.against)
    finish("intervals", "95 % intervals that hold what they should", rows, folder=options.out)


if __name__ == "__main__":
    as_script(main)
