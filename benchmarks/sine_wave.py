"""Measures candidates a second on the hERG sine wave, with 35,000 of 80,000 samples at varying V.

    python benchmarks/sine_wave.py

This runs on one core in float64. Random candidates from the full ranges are stiff, which makes them
slow for schemes. A population that has converged is more like the model's own values, which are
timed too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from report import Row, as_script, finish

from channelfit.model.model_file import load_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import load_protocol
from channelfit.problem.recording import Recording
from channelfit.scoring.cpu import CpuScorer
from scoring import candidates, rate

ROOT = Path(__file__).parent.parent


def main() -> None:
    protocol = load_protocol(ROOT / "protocols" / "herg_sine_wave.yaml")
    shape = (1, protocol.n_times_max)
    recording = Recording(protocol.times_ms, np.zeros(shape), np.ones(shape))
    rows = []
    for name, n in (("herg_beattie", 256), ("herg_markov", 32)):
        model = load_model(ROOT / "models" / f"{name}.yaml")
        scorer = CpuScorer(Problem(model, (Experiment(protocol, recording),)))
        scorer.n_threads = 1
        same = np.repeat(model.values()[:, None], n, axis=1)
        for kind, drawn in (("own values", same), ("random", candidates(model, n))):
            value = rate(lambda s=scorer, d=drawn: s.score(d), n, 3)
            rows.append(Row(f"{name}: {kind}", value, "candidates/s"))
    finish("sine_wave", "The hERG sine wave, one core, float64", rows)


if __name__ == "__main__":
    as_script(main)
