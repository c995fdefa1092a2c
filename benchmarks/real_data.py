"""Fits to real recordings from the command line, and the prediction of one that was not fitted.

    CHANNELFIT_DATA=folder python benchmarks/real_data.py [--seeds 1] [--backend cuda] [--out DIR]

Two hERG cells are fitted on the sine wave; `against` is what the values published for cell 16713110
leave of the same samples, their conductance fitted where the cell is another one. The
action-potential recording of that cell is then predicted from the fit. Parameters come with 95 %
intervals from the Fisher information; `against` are the published values. A sodium I-V family
follows, beside what the values in its model file leave. The picture of the first fit, traces.png of
its run folder, is kept beside the results as herg_sine_wave.png.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from report import RESULTS, Row, as_script, compared, finish

from channelfit.front.kinds import load_plan
from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import load_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import load_protocol
from channelfit.problem.recording import load_recording
from channelfit.reading.documents import Section
from channelfit.scoring.machine import gpu
from channelfit.scoring.scorer import make_scorer

ROOT = Path(__file__).parent.parent
FITS = ROOT / "models" / "fits"
CELLS = ("16713110", "16715049")
AP = {
    "file": "${CHANNELFIT_DATA}/herg_sine_wave/ap_16713110.mat",
    "current": {"column": "T", "unit": "nA"},
    "sampling": "0.1 ms",
}


@dataclass(frozen=True)
class Done:
    """One `channelfit optimize`: its summary, the fitted model, seconds of the whole command."""

    summary: dict[str, Any]
    model: ChannelModel
    seconds: float


def optimized(name: str, folder: Path, seed: int, backend: str) -> Done:
    """The fit of that name in models/fits."""
    out = folder / f"{name}_{seed}"
    command = [
        sys.executable,
        "-m",
        "channelfit",
        "optimize",
        str(FITS / f"{name}.yaml"),
        "--seed",
        str(seed),
        "--out",
        str(out),
        "--backend",
        backend,
        "--json",
    ]
    start = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name}: channelfit optimize failed:\n{done.stderr[-2000:]}")
    seconds = time.perf_counter() - start
    return Done(
        json.loads(done.stdout.splitlines()[-1])["summary"], load_model(out / "fit.yaml"), seconds
    )


def rms(model: ChannelModel, experiments: tuple[Experiment, ...]) -> float:
    """pA over the scored samples, with the model's own values."""
    score = make_scorer(Problem(model, experiments)).score(model.values()[:, None])
    return float(np.sqrt(score.cost[0]))


def scaled(model: ChannelModel, experiments: tuple[Experiment, ...]) -> ChannelModel:
    """The model with the conductance `g` that fits best: the current is proportional to it."""
    above = below = 0.0
    currents = make_scorer(Problem(model, experiments)).simulate(model.values()[:, None])
    for experiment, current in zip(experiments, currents, strict=True):
        recording = experiment.recording
        assert recording is not None
        counts = recording.weight > 0
        ours, data = current[:, :, 0][counts], recording.current_pA[counts]
        above, below = above + ours @ data, below + ours @ ours
    return replace(
        model,
        parameters=tuple(
            replace(p, value=p.value * above / below) if p.name == "g" else p
            for p in model.parameters
        ),
    )


def herg_rows(cell: str, runs: list[Done], published: ChannelModel) -> list[Row]:
    """Return the residuals of the runs of a cell, their times, and the values of the first one."""
    name = f"herg_sine_wave_{cell}"
    experiments = load_plan(FITS / f"{name}.yaml").problem.experiments
    known = published if cell == "16713110" else scaled(published, experiments)
    errors = [float(run.summary["rms_pA"]) for run in runs]
    first = runs[0].summary
    note = f"{len(runs)} seeds, best {min(errors):.5g}" if len(runs) > 1 else ""
    rows = [
        compared(f"{name}: fit, RMS, worst seed", max(errors), "pA", rms(known, experiments), note)
    ]
    times = [float(run.summary["seconds"]) for run in runs]
    note = f"{first['evaluations']:,} evaluations; slowest {max(times):.3g} s"
    rows.append(Row(f"{name}: search, median", float(np.median(times)), "s", note=note))
    rows.append(Row(f"{name}: whole command, first", runs[0].seconds, "s"))
    if len(runs) > 1:
        later = float(np.median([run.seconds for run in runs[1:]]))
        rows.append(Row(f"{name}: whole command, later", later, "s"))
    for parameter in published.parameters:
        row = first["parameters"][parameter.name]
        ends = row.get("interval")
        note = f"95 %: {ends[0]:.5g} to {ends[1]:.5g}" if ends else "at a bound"
        value = float(row["value"])
        title = f"{cell}: {parameter.name}"
        assert parameter.value is not None
        if cell == "16713110":
            rows.append(compared(title, value, row["unit"], parameter.value, note))
        else:
            rows.append(Row(title, value, row["unit"], note=note))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--backend", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--out", type=Path, help="folder of the results")
    options = parser.parse_args()
    if not os.environ.get("CHANNELFIT_DATA"):
        sys.exit("set CHANNELFIT_DATA to the folder that holds herg_sine_wave/ and nav_iv/")
    rows: list[Row] = []
    published = load_model(ROOT / "models" / "herg_beattie.yaml")
    action_potential = load_protocol(ROOT / "protocols" / "herg_ap.yaml")
    unseen = (Experiment(action_potential, load_recording(Section(AP, None), action_potential)),)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for cell in CELLS:
            name = f"herg_sine_wave_{cell}"
            runs = [optimized(name, folder, seed, options.backend) for seed in range(options.seeds)]
            rows += herg_rows(cell, runs, published)
            if cell == "16713110":
                predicted, known = rms(runs[0].model, unseen), rms(published, unseen)
                title = "ap_16713110: predicted, RMS"
                rows.append(compared(title, predicted, "pA", known, "not fitted"))
                shown = options.out or RESULTS
                shown.mkdir(parents=True, exist_ok=True)
                shutil.copy(folder / f"{name}_0" / "traces.png", shown / "herg_sine_wave.png")
        done = optimized("nav_iv_80cp", folder, 1, options.backend)
    note = f"{done.summary['evaluations']:,} evaluations in {done.summary['seconds']:.0f} s"
    sodium = load_plan(FITS / "nav_iv_80cp.yaml").problem
    rows.append(
        compared(
            "nav_iv_80cp: fit, RMS",
            float(done.summary["rms_pA"]),
            "pA",
            rms(sodium.model, sodium.experiments),
            note,
        )
    )
    on_gpu = options.backend != "cpu" and gpu.is_available()
    device = gpu.device().name if on_gpu else ""
    finish(
        "real_data_cuda" if on_gpu else "real_data",
        "Fits to real recordings; `against`: published values",
        rows,
        device,
        options.out,
    )


if __name__ == "__main__":
    as_script(main)
