"""Draws the picture at the head of README.md: one fit to a real recording, and one prediction.

    CHANNELFIT_DATA=folder python benchmarks/picture.py [--out docs/herg.png]

`channelfit optimize` fits the two-gate hERG model to the sine-wave recording of one cell. The left
column shows that recording and the fit; the right column shows a second recording of the same cell,
under action potentials, which the fit has not seen, and what the fitted model predicts there. The
seconds in the title are those that the search took in this run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from real_data import AP, FITS, ROOT, optimized

from channelfit.front.kinds import load_plan
from channelfit.model.channel import ChannelModel
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import load_protocol
from channelfit.problem.recording import load_recording
from channelfit.reading.documents import Section
from channelfit.results.report.plots import INK, MUTED, SINGLE, STYLE, decimated
from channelfit.scoring.scorer import make_scorer

FIT = "herg_sine_wave_16713110"
PREDICTION = "#d55e00"
DPI = 110


def drawn(model: ChannelModel, fitted: Experiment, unseen: Experiment, seconds: float) -> Figure:
    """The figure: command voltage above, recorded and computed current below, two columns."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 4.4), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(2, 2, sharex="col", height_ratios=[1, 2.4])
        first = f"nine parameters fitted in {seconds:.1f} s on two cores"
        second = "the same cell under action potentials, which the fit has not seen"
        _column(axes[:, 0], model, fitted, SINGLE, "Fit", first)
        _column(axes[:, 1], model, unseen, PREDICTION, "Prediction", second)
        axes[0, 0].set_ylabel("voltage (mV)")
        axes[1, 0].set_ylabel("current (nA)")
        figure.align_ylabels()
    return figure


def _column(
    axes: np.ndarray, model: ChannelModel, experiment: Experiment, color: str, head: str, what: str
) -> None:
    protocol, recording = experiment.protocol, experiment.recording
    assert recording is not None
    (current,) = make_scorer(Problem(model, (experiment,))).simulate(model.values()[:, None])
    computed = current[0, :, 0] / 1000
    t = protocol.times_ms / 1000
    counted = np.where(recording.weight[0] > 0, recording.current_pA[0] / 1000, np.nan)
    above: Axes = axes[0]
    below: Axes = axes[1]
    above.plot(*decimated(t, protocol.command()[0]), color=color, linewidth=0.9)
    above.set_title(what, loc="left", fontsize=9, color=MUTED, pad=5)
    above.text(
        0, 1.34, head, transform=above.transAxes, fontsize=12, fontweight="bold", color=color
    )
    below.plot(*decimated(t, computed), color=color, linewidth=2.4, label="model")
    below.plot(*decimated(t, counted), color=INK, linewidth=0.6, label="recording")
    below.legend(loc="upper left", bbox_to_anchor=(0.0, 1.0), fontsize=9, borderaxespad=0.2)
    margin = 0.06 * float(np.ptp(computed))
    below.set_ylim(computed.min() - margin, computed.max() + margin)
    below.set_xlim(t[0], t[-1])
    below.set_xlabel("time (s)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "herg.png")
    options = parser.parse_args()
    if not os.environ.get("CHANNELFIT_DATA"):
        sys.exit("set CHANNELFIT_DATA to the folder that holds herg_sine_wave/")
    action_potential = load_protocol(ROOT / "protocols" / "herg_ap.yaml")
    recording = load_recording(Section(AP, None), action_potential)
    unseen = Experiment(action_potential, recording)
    (fitted,) = load_plan(FITS / f"{FIT}.yaml").problem.experiments
    with tempfile.TemporaryDirectory() as folder:
        done = optimized(FIT, Path(folder), 0, "cpu")
    figure = drawn(done.model, fitted, unseen, float(done.summary["seconds"]))
    figure.savefig(options.out, dpi=DPI, facecolor="white")
    with Image.open(options.out) as image:  # 64 colors are enough for lines, at a third of the size
        small = image.convert("RGB").quantize(64)
    small.save(options.out, optimize=True)
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
