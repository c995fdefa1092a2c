"""Sodium currents of one cell under two clamps: does one set of kinetics explain both?

    python benchmarks/nav_clamp.py [--seconds 75] [--out DIR]

Cell 220314_001_ch1 of Lei et al. 2024 was recorded without compensation of the series resistance
and with 80 % of it compensated. Five fits are made: each recording alone and both together as if
the clamp were ideal, and both together with what the amplifier did
(models/fits/nav_iv_two_clamps.yaml), with gating at the same voltages in both recordings, and with
a shift between them. Fits of one recording are those of models/fits/nav_iv_0cp.yaml and
nav_iv_80cp.yaml; the others have the scheme and the shift of the file named above. The root mean
square is that of the samples which count in that file, for all fits. A peak is the largest inward
current among these samples, and is compared where the recorded one is above 1 nA.

The picture, nav_clamp.png, shows the peaks of data and fits, and some currents.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import yaml
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from report import RESULTS, Row, as_script, compared, finish

from channelfit.front.kinds import load_plan
from channelfit.problem.experiment import Experiment, Problem
from channelfit.results.report.plots import COLORS, INK, STYLE
from channelfit.scoring.scorer import make_scorer

ROOT = Path(__file__).parent.parent
FITS = ROOT / "models" / "fits"
TOGETHER = FITS / "nav_iv_two_clamps.yaml"
NAMES = ("0CP", "80CP")
COMPENSATED = ("no compensation", "80 % compensated")
OF_THE_CLAMP = ("rs", "cm", "lag", "late")
LEAST_PEAK = 1000.0  # pA: a smaller peak is not compared in percent
SHOWN = (-60.0, -50.0, -35.0, -10.0, 25.0)  # mV, the steps of which currents are drawn
APART = 5.4  # ms, from one of them to the next in the picture
ALONE, NAIVE, UNSHIFTED, COUPLED = (
    "each alone, ideal clamp",
    "together, ideal clamp",
    "together, with the clamp, no shift",
    "together, with the clamp",
)
LOOKS = {ALONE: (COLORS[4], ":"), NAIVE: (COLORS[1], "--"), COUPLED: (COLORS[0], "-")}


@dataclass(frozen=True)
class Fitted:
    """The result of a fit.

    Attributes:
        summary: what `channelfit optimize --json` says.
        currents: pA (n_sweeps, n_times) for each experiment of the fit.
    """

    summary: dict[str, Any]
    currents: list[np.ndarray]


@dataclass(frozen=True)
class Data:
    """One recording.

    Attributes:
        steps: mV (n_sweeps,), the voltages of the steps.
        times: ms (n_times,).
        current: pA (n_sweeps, n_times).
        counts: bool, of the same shape: which samples count.
    """

    steps: np.ndarray
    times: np.ndarray
    current: np.ndarray
    counts: np.ndarray

    def rms(self, model: np.ndarray) -> float:
        """The root mean square of what a model leaves, pA."""
        return float(np.sqrt(np.mean((model - self.current)[self.counts] ** 2)))

    def peaks(self, current: np.ndarray) -> np.ndarray:
        """The largest inward current of each sweep, pA (n_sweeps,), where samples count."""
        return -np.where(self.counts, current, np.inf).min(axis=1)

    def off(self, model: np.ndarray) -> np.ndarray:
        """By how many percent peaks are too large (n_sweeps,); NaN where they are too small."""
        recorded = self.peaks(self.current)
        off = 100 * (self.peaks(model) / recorded - 1)
        return np.where(recorded > LEAST_PEAK, off, np.nan)


def data_of(experiment: Experiment) -> Data:
    """The recording of an experiment."""
    protocol, recording = experiment.protocol, experiment.recording
    assert recording is not None
    during = np.searchsorted(protocol.times_ms, 20.0)
    steps = protocol.command()[:, during]
    return Data(steps, protocol.times_ms, recording.current_pA, recording.weight > 0)


def optimized(file: Path, folder: Path) -> Fitted:
    """The fit of a file, run by the command line."""
    out = folder / file.stem
    command = [sys.executable, "-m", "channelfit", "optimize", str(file), "--seed", "1"]
    command += ["--out", str(out), "--backend", "cpu", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{file.name}: channelfit optimize failed:\n{done.stderr[-2000:]}")
    problem: Problem = load_plan(out / "fit.yaml").problem
    values = np.array([p.value for p in problem.parameters])[:, None]
    shown = make_scorer(problem, "cpu").simulate(values)
    return Fitted(
        json.loads(done.stdout.splitlines()[-1])["summary"],
        [np.asarray(one)[:, :, 0] for one in shown],
    )


def changed(folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> Path:
    """A variant of the fit of both recordings, with absolute paths, in a folder."""
    document = yaml.safe_load(TOGETHER.read_text())
    for experiment in document["fit"]["experiments"]:
        experiment["protocol"] = str((FITS / experiment["protocol"]).resolve())
        file = experiment["recording"]["file"]
        experiment["recording"]["file"] = str((FITS / file).resolve())
    change(document)
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file


def ideal(document: dict[str, Any]) -> None:
    """Leaves the clamp out, but for the delay that the fits of one recording have."""
    for name in OF_THE_CLAMP:
        del document["parameters"][name]
    for experiment in document["fit"]["experiments"]:
        del experiment["clamp"]
        experiment["delay"] = "0.2 ms"
    for key in ("start", "optimizer", "stop"):
        del document["fit"][key]


def lasting(seconds: float, shifted: bool) -> Callable[[dict[str, Any]], None]:
    """What lets the fit with the clamp last so long, with the shift between recordings or not."""

    def change(document: dict[str, Any]) -> None:
        document["fit"]["stop"] = {"seconds": seconds}
        if not shifted:
            shift = document["parameters"]["dv"]
            document["parameters"]["dv"] = shift | {"value": 0.0, "fixed": True}

    return change


def rows_of(fits: dict[str, Fitted], data: list[Data]) -> list[Row]:
    """Return the residuals of each fit, the errors of its peaks, and the fitted clamp."""
    rows = []
    for k, (one, name) in enumerate(zip(data, NAMES, strict=True)):
        for what, fit in fits.items():
            current = fit.currents[k]
            rows.append(Row(f"{name}, {what}: RMS", one.rms(current), "pA"))
            off = abs(one.off(current))
            known = off[np.isfinite(off)]
            worst = one.steps[int(np.nanargmax(off))]
            note = (
                f"at {worst:g} mV; {np.sum(known <= 5)} of {len(known)} peaks within 5 %, "
                f"half within {np.median(known):.1f} %"
            )
            rows.append(Row(f"{name}, {what}: peaks within", float(known.max()), "%", note=note))
    for name, found in fits[COUPLED].summary["parameters"].items():
        ends = found.get("interval")
        note = f"95 %: {ends[0]:.4g} to {ends[1]:.4g}" if ends else found.get("note", "")
        rows.append(Row(f"{COUPLED}: {name}", float(found["value"]), found["unit"], note=note))
    found = fits[UNSHIFTED].summary["parameters"]["rs"]
    note = found.get("note", "")
    rows.append(Row(f"{UNSHIFTED}: rs", float(found["value"]), found["unit"], note=note))
    for k, (one, name) in enumerate(zip(data, NAMES, strict=True)):
        model, recorded = one.peaks(fits[COUPLED].currents[k]), one.peaks(one.current)
        for step, ours, theirs in zip(one.steps, model, recorded, strict=True):
            rows.append(compared(f"{name}: peak at {step:g} mV", ours, "pA", theirs))
    return rows


def draw(fits: dict[str, Fitted], data: list[Data], file: Path) -> None:
    """Peaks against the voltage of the step above, some currents below; a recording a column."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 7.2), dpi=110, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(2, 2)
        for k, one in enumerate(data):
            _peaks(axes[0, k], fits, one, k)
            _currents(axes[1, k], fits, one, k)
            axes[0, k].set_title(COMPENSATED[k], loc="left")
        axes[0, 0].legend(frameon=False, fontsize=8)
        figure.savefig(file, facecolor="white")


def _peaks(axes: Axes, fits: dict[str, Fitted], one: Data, k: int) -> None:
    recorded = -one.peaks(one.current) / 1e3
    axes.plot(one.steps, recorded, "o", color=INK, markersize=4, label="recorded")
    for what, (color, line) in LOOKS.items():
        peaks = -one.peaks(fits[what].currents[k]) / 1e3
        axes.plot(one.steps, peaks, line, color=color, linewidth=1.5, label=what)
    axes.set(xlabel="step to (mV)", ylabel="peak current (nA)")


def _currents(axes: Axes, fits: dict[str, Fitted], one: Data, k: int) -> None:
    t = one.times - 10.0
    shown = (t > 0) & (t < 4)
    for place, step in enumerate(SHOWN):
        sweep = int(np.argmin(abs(one.steps - step)))
        start = APART * place
        there = np.where(one.counts[sweep], one.current[sweep], np.nan)[shown] / 1e3
        axes.plot(start + t[shown], there, color=INK, linewidth=3, alpha=0.35)
        for what in (NAIVE, COUPLED):
            color, line = LOOKS[what]
            model = np.where(one.counts[sweep], fits[what].currents[k][sweep], np.nan)
            axes.plot(start + t[shown], model[shown] / 1e3, line, color=color, linewidth=1.2)
        label = f"{step:g} mV".replace("-", "\N{MINUS SIGN}")
        axes.text(start + 2, 0.6, label, ha="center", fontsize=8)
    axes.set_xticks([APART * p + x for p in range(len(SHOWN)) for x in (0, 2, 4)])
    axes.set_xticklabels([str(x) for _ in SHOWN for x in (0, 2, 4)])
    axes.set(xlabel="time after the step (ms)", ylabel="current (nA)")


def main() -> None:
    """Fit, print, draw and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=75.0, help="of each fit with the clamp")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    data = [data_of(e) for e in load_plan(TOGETHER).problem.experiments]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        single = [optimized(FITS / f"nav_iv_{name.lower()}.yaml", folder) for name in NAMES]
        files = {
            NAIVE: changed(folder, "naive", ideal),
            UNSHIFTED: changed(folder, "unshifted", lasting(options.seconds, False)),
            COUPLED: changed(folder, "coupled", lasting(options.seconds, True)),
        }
        fits = {ALONE: Fitted({}, [one.currents[0] for one in single])}
        for what, file in files.items():
            fits[what] = optimized(file, folder / "runs")
    options.out.mkdir(parents=True, exist_ok=True)
    draw(fits, data, options.out / "nav_clamp.png")
    finish("nav_clamp", "Sodium currents under two clamps", rows_of(fits, data), folder=options.out)


if __name__ == "__main__":
    as_script(main)
