"""Measures how far the backends and NEURON differ, for every shipped model.

    python benchmarks/accuracy.py [--candidates 200] [--neuron 200] [--models NAME ..] [--out DIR]

Random candidates are drawn from the full ranges and simulated under steps, a ramp and three sines.
For the comparison with NEURON they are moved inwards until its integrator can follow their rates.
The error of a candidate is the largest difference in any of its traces, divided by its largest
current. Where candidates exceed the bar, the note gives the largest of their currents, as a share
of what their open channel would carry 100 mV from the reversal potential.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from report import Row, as_script, finish

from channelfit.front.commands.validate import FASTEST, drawn_in
from channelfit.model.channel import ChannelModel
from channelfit.model.evaluation import evaluate
from channelfit.model.model_file import load_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.extreme_rates import voltages_of
from channelfit.problem.protocol import Protocol, load_protocol
from channelfit.problem.waves import Constant, Ramp, Segment, Sines
from channelfit.reading.errors import InputError
from channelfit.scoring.scorer import make_scorer
from scoring import candidates

if TYPE_CHECKING:
    from channelfit.scoring.neuron.oracle import NeuronOracle

ROOT = Path(__file__).parent.parent
LARGEST_DRIVE = 100.0  # mV from the reversal potential
#: Largest error that is accepted, over the largest current.
BARS = {"float64": 1e-9, "float32": 1e-3, "NEURON, steps": 1e-5, "NEURON, varying": 1e-4}


def protocols() -> dict[str, list[Protocol]]:
    """Steps, and voltage that varies: every model meets the same."""
    steps = []
    for name in ("activation", "deactivation"):
        p = load_protocol(ROOT / "protocols" / f"{name}.yaml")
        steps.append(replace(p, sweeps=(p.sweeps[0], p.sweeps[6], p.sweeps[-1])))
    lead = Segment(0.0, 10.0, Constant(-100.0))
    ramp = Protocol("ramp", -80.0, 0.1, ((lead, Segment(10.0, 110.0, Ramp(-100.0, 40.0))),))
    wave = Sines(-30.0, (54.0, 26.0, 10.0), (0.007, 0.037, 0.19), (0.0, 0.0, 0.0), 0.0)
    sines = Protocol("sines", -80.0, 0.1, ((lead, Segment(10.0, 310.0, wave)),))
    return {"steps": steps, "varying": [ramp, sines]}


def errors(
    model: ChannelModel, drawn: np.ndarray, found: list[np.ndarray], truth: list[np.ndarray]
) -> np.ndarray:
    """(n_candidates,) largest difference over the largest current of the candidate.

    A candidate that hardly opens is measured against a millionth of its open channel's current.
    """
    worst = np.max(
        [np.nanmax(np.abs(f - t), axis=(0, 1)) for f, t in zip(found, truth, strict=True)], axis=0
    )
    return worst / np.maximum(largest(truth), 1e-6 * when_open(model, drawn))


def largest(currents: list[np.ndarray]) -> np.ndarray:
    """(n_candidates,) the largest current of each, pA."""
    return np.max([np.nanmax(np.abs(t), axis=(0, 1)) for t in currents], axis=0)


def when_open(model: ChannelModel, drawn: np.ndarray) -> np.ndarray:
    """(n_candidates,) pA through the open channel, LARGEST_DRIVE from its reversal potential."""
    values = dict(zip(model.parameter_names, drawn, strict=True))
    return np.abs(evaluate(model.conductance, values)) * LARGEST_DRIVE


def against_reference(model: ChannelModel, n: int) -> list[Row]:
    rows = []
    drawn = candidates(model, n)
    for kind, ps in protocols().items():
        problem = Problem(model, tuple(Experiment(p) for p in ps))
        truth = make_scorer(problem, "reference").simulate(drawn)
        for dtype in ("float64", "float32"):
            e = errors(model, drawn, make_scorer(problem, "cpu", dtype).simulate(drawn), truth)
            k = int(np.argmax(e))
            note = f"median {np.median(e):.1e}"
            if e[k] > BARS[dtype]:
                beyond = e > BARS[dtype]
                share = float((largest(truth) / when_open(model, drawn))[beyond].max())
                note += f"; {beyond.sum()} beyond, carry {share:.1e} of the open channel at most"
                note += f"; worst {explained(model, drawn[:, k])}"
            rows.append(
                Row(
                    f"{model.name}: cpu {dtype}, {kind}",
                    float(e[k]),
                    "of largest current",
                    BARS[dtype],
                    float(e[k] / BARS[dtype]),
                    note,
                )
            )
    return rows


def explained(model: ChannelModel, column: np.ndarray) -> str:
    """Return the parameters of a candidate in words, to see why its error is large."""
    return ", ".join(f"{p.name} {x:.3g}" for p, x in zip(model.parameters, column, strict=True))


def against_neuron(model: ChannelModel, n: int) -> list[Row]:
    from channelfit.scoring.neuron.oracle import NeuronOracle

    mod = ROOT / "tests" / "mod" / f"{model.name}.mod"
    rows = []
    wide = candidates(model, n, seed=2)
    drawn = drawn_in(model, wide, voltages_of(p for ps in protocols().values() for p in ps))
    moved = int((drawn != wide).any(axis=0).sum())
    oracle = NeuronOracle(model, mod if mod.is_file() else None)
    written = "hand-written" if mod.is_file() else "generated"
    for kind, ps in protocols().items():
        problem = Problem(model, tuple(Experiment(p) for p in ps))
        ours = make_scorer(problem, "cpu").simulate(drawn)
        start = time.perf_counter()
        done, theirs = integrated(oracle, ps, drawn)
        e = errors(model, drawn[:, done], [current[..., done] for current in ours], theirs)
        bar = BARS[f"NEURON, {kind}"]
        took = time.perf_counter() - start
        note = f"{written} mechanism, median {np.median(e):.1e}, {took:.0f} s"
        if moved:
            note += f"; {moved} of {n} drawn in, so that no rate exceeds {FASTEST:g} /ms"
        if len(done) < n:
            note += f"; NEURON's integrator gave up on {n - len(done)} of {n}"
        if e.max() > bar:
            worst = drawn[:, done[np.argmax(e)]]
            note += f"; {np.sum(e > bar)} above, worst {explained(model, worst)}"
        rows.append(
            Row(
                f"{model.name}: NEURON, {kind}",
                float(e.max()),
                "of largest current",
                bar,
                float(e.max() / bar),
                note,
            )
        )
    return rows


def integrated(
    oracle: NeuronOracle, ps: list[Protocol], drawn: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Which candidates NEURON can integrate, (n_done,), and their currents under each protocol.

    Its rates are not bounded: those of a random candidate may reach 1e50 /ms, for which no step is
    short enough.
    """
    from channelfit.scoring.neuron.oracle import IntegrationFailed

    done, currents = [], []
    for k, x in enumerate(drawn.T):
        try:
            currents.append([oracle.simulate(p, x) for p in ps])
        except IntegrationFailed:
            continue
        done.append(k)
    return np.array(done), [np.stack(of_one, axis=-1) for of_one in zip(*currents, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=200)
    parser.add_argument("--neuron", type=int, default=200)
    parser.add_argument("--models", nargs="*")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    for path in sorted((ROOT / "models").glob("*.yaml")):
        if options.models and path.stem not in options.models:
            continue
        model = load_model(path)
        rows += against_reference(model, options.candidates)
        if options.neuron:
            try:
                rows += against_neuron(model, options.neuron)
            except InputError as error:
                print(f"{model.name}: NEURON left out: {error}")
        print(f"{model.name} done", flush=True)
    finish(
        "accuracy",
        "Largest error over the largest current, random candidates, full ranges",
        rows,
        folder=options.out,
    )


if __name__ == "__main__":
    as_script(main)
