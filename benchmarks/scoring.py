"""Measures candidates a second of every backend, and of NEURON in the same run.

    python benchmarks/scoring.py

The problem is that of Ben-Shalom et al. 2012: model B under 25 sweeps of 500 samples at 0.1 ms,
with candidates drawn from the full ranges. Then the growth with states, samples and population is
measured by stepping, and scores of several models by every path.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from report import Row, as_script, compared, finish

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import load_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol, load_protocol
from channelfit.problem.recording import Recording
from channelfit.scoring.cpu import CpuScorer
from channelfit.scoring.scorer import make_scorer
from channelfit.search.space import SearchSpace

ROOT = Path(__file__).parent.parent
PAPER = ("activation", "deactivation")
WAYS = ("model_a", "model_b", "model_c", "k_hh_gate", "na_hh", "herg_markov")
GROWTH = ("model_a", "model_b", "model_c", "k_hh", "k_hh_gate", "herg_markov", "na_hh", "na_markov")
TARGET = 3500  # candidates/s of one CPU core over those of one NEURON core


def candidates(model: ChannelModel, n: int, seed: int = 1) -> np.ndarray:
    """(n_parameters, n) drawn from the full ranges."""
    space = SearchSpace(model.parameters)
    return space.to_physical(np.random.default_rng(seed).random((space.n_free, n)))


def problem(model: ChannelModel, protocols: list[Protocol]) -> Problem:
    """Surrogate data from the model's values, weight 1 everywhere."""
    values = model.values()[:, None]
    bare = Problem(model, tuple(Experiment(p) for p in protocols))
    currents = make_scorer(bare, "reference").simulate(values)
    experiments = [
        Experiment(p, Recording(p.times_ms, c[..., 0], np.isfinite(c[..., 0]).astype(float)))
        for p, c in zip(protocols, currents, strict=True)
    ]
    return Problem(model, tuple(experiments))


def rate(call: Callable[[], Any], n: int, repeats: int = 5) -> float:
    """Candidates/s: the median of some calls that each score n, after one to warm up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return n / float(np.median(times))


def neuron_rate(model: ChannelModel, protocols: list[Protocol], n: int = 10) -> float:
    """One NEURON core as it is used: compiled KINETIC scheme, SEClamp, dt = the sampling interval,
    the current recorded into a Vector; only the clamp's level is set from Python."""
    from channelfit.scoring.neuron.mechanisms import neuron_hoc
    from channelfit.scoring.neuron.oracle import NeuronOracle

    h = neuron_hoc()
    mod = ROOT / "tests" / "mod" / f"{model.name}.mod"
    oracle = NeuronOracle(model, mod if mod.is_file() else None)
    h.load_file("stdrun.hoc")
    h.CVode().active(False)
    section = h.Section(name="clamped")
    channel = getattr(h, oracle._mechanism)(section(0.5))
    clamp = h.SEClamp(section(0.5))
    clamp.rs, clamp.dur1 = 1e-6, 1e9
    current = h.Vector().record(channel._ref_i)
    h.dt = protocols[0].sampling_ms
    h.steps_per_ms = 1 / h.dt
    drawn = candidates(model, n)

    def simulate_all() -> None:
        for column in drawn.T:
            oracle.set_parameters(channel, column)
            for protocol in protocols:
                for sweep in protocol.sweeps:
                    clamp.amp1 = protocol.holding_mV
                    h.finitialize(protocol.holding_mV)
                    for segment in sweep:
                        clamp.amp1 = segment.wave.v_mV
                        h.continuerun(segment.end_ms)
                    assert len(current) >= protocol.n_times_max

    return rate(simulate_all, n, repeats=3)


def headline(model: ChannelModel, protocols: list[Protocol]) -> list[Row]:
    """Every backend on the paper's problem, against NEURON."""
    neuron = neuron_rate(model, protocols)
    rows = [Row("NEURON, 1 core", neuron, "candidates/s")]
    paper = problem(model, protocols)
    few = candidates(model, 20)
    reference = make_scorer(paper, "reference")
    rows.append(
        compared(
            "reference, float64", rate(lambda: reference.score(few), 20, 1), "candidates/s", neuron
        )
    )
    many = candidates(model, 1 << 17)
    for dtype in ("float64", "float32"):
        scorer = CpuScorer(paper, dtype, path="stepping")
        cores = scorer.n_threads
        for threads in sorted({1, cores}):
            scorer.n_threads = threads
            value = rate(lambda s=scorer: s.score(many), many.shape[1])
            note = f"target {TARGET:,} x" if (dtype, threads) == ("float64", 1) else ""
            name = f"cpu, {dtype}, {threads} core{'s' if threads > 1 else ''}"
            rows.append(compared(name, value, "candidates/s", neuron, note))
    return rows


def growth(model: ChannelModel, protocols: list[Protocol]) -> list[Row]:
    """One core, float64: states, samples, population."""
    rows = []

    def one_core(p: Problem, n: int, m: ChannelModel) -> float:
        scorer, drawn = CpuScorer(p, path="stepping"), candidates(m, n)
        scorer.n_threads = 1
        return rate(lambda: scorer.score(drawn), n, 3)

    base = one_core(problem(model, protocols), 1 << 14, model)
    for name in GROWTH:
        other = load_model(ROOT / "models" / f"{name}.yaml")
        chains = " x ".join(str(len(c.states)) for c in other.chains)
        value = one_core(problem(other, protocols), 1 << 14, other)
        rows.append(compared(f"states: {name} ({chains})", value, "candidates/s", base))
    for factor in (1, 2, 5, 10):
        finer = [replace(p, sampling_ms=p.sampling_ms / factor) for p in protocols]
        value = one_core(problem(model, finer), 1 << 13, model)
        rows.append(compared(f"samples a sweep: {500 * factor}", value, "candidates/s", base))
    for n in (16, 112, 1120, 11_200, 112_000, 1_120_000):
        value = one_core(problem(model, protocols), n, model)
        rows.append(compared(f"population: {n:,}", value, "candidates/s", base))
    return rows


def paths(protocols: list[Protocol]) -> list[Row]:
    """One core, float64: modes against stepping, with what they doubt stepped as in a fit."""
    rows = []
    for name in WAYS:
        model = load_model(ROOT / "models" / f"{name}.yaml")
        for factor, n in ((1, 1 << 13), (10, 1 << 11)):
            finer = [replace(p, sampling_ms=p.sampling_ms / factor) for p in protocols]
            data, drawn, base = problem(model, finer), candidates(model, n), 0.0
            for path in CpuScorer.paths:
                scorer = CpuScorer(data, path=path)
                scorer.n_threads = 1
                value = rate(lambda s=scorer, d=drawn: s.score(d), n)
                base = base or value
                label = f"{name}, {500 * factor} samples: {path}"
                rows.append(compared(label, value, "candidates/s", base))
    return rows


def main() -> None:
    model = load_model(ROOT / "models" / "model_b.yaml")
    protocols = [load_protocol(ROOT / "protocols" / f"{name}.yaml") for name in PAPER]
    rows = headline(model, protocols) + growth(model, protocols) + paths(protocols)
    finish("scoring", "Candidates scored a second: model B, 25 sweeps x 500 samples", rows)


if __name__ == "__main__":
    as_script(main)
