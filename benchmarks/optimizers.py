"""Measures the best cost against the number of candidates, for optimizers that use costs alone.

    python benchmarks/optimizers.py [--seeds 5] [--candidates 40000] [--quick] [--out DIR]

They fit surrogate data of shipped models on the cpu backend. Every optimizer runs with its default
settings, and the genetic algorithm also with those that were published. A run has arrived when its
cost is within 1 % of that of the true parameters or, where the data are free of noise, when the RMS
of the difference is at most a thousandth of their peak.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from report import Row, as_script, finish

from channelfit.front.kinds import load_plan
from channelfit.scoring.scorer import make_scorer
from channelfit.search.choose import make_optimizer
from channelfit.search.plan import FitPlan

ROOT = Path(__file__).parent.parent
MODELS = ("model_b", "model_c", "herg_beattie")
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "genetic, as published": ("genetic", {"crossover_rate": 0.1, "mutation_rate": 0.01}),
    "genetic, 64, mutating more": (
        "genetic",
        {"population": 64, "crossover_rate": 0.8, "mutation_rate": 0.05},
    ),
    "swarm": ("swarm", {}),
    "ring": ("ring", {}),
    "ring, halves in turn": ("ring", {"batch": 128}),
    "groups": ("groups", {}),
    "differential": ("differential", {}),
    "cma": ("cma", {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--candidates", type=int, default=40_000)
    parser.add_argument("--quick", action="store_true", help="2 seeds of 3,000 candidates")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    seeds, budget = arguments.seeds, arguments.candidates
    if arguments.quick:
        seeds, budget = 2, 3000
    rows: list[Row] = []
    series: dict[str, object] = {"candidates": marks(budget)}
    for model in MODELS:
        measured = of_model(model, seeds, budget)
        rows += measured[0]
        series[model] = measured[1]
    title = f"{seeds} seeds, {budget:,} candidates each, cpu backend"
    finish("optimizers", title, rows, folder=arguments.out, series=series)


def of_model(model: str, seeds: int, budget: int) -> tuple[list[Row], dict[str, object]]:
    fit = load_plan(ROOT / "models" / f"{model}.yaml", backend="cpu")
    scorer = make_scorer(fit.problem, "cpu")
    arrived = arrival(fit, scorer)
    score = lambda unit: scorer.score(fit.space.to_physical(unit)).cost  # noqa: E731
    score(np.full((fit.space.n_free, 64), 0.5))
    rows, series = [], {}
    for way, (name, settings) in WAYS.items():
        started = time.perf_counter()
        runs = [
            searched(make_optimizer(name, settings, fit.space.n_free, seed), score, budget)
            for seed in range(seeds)
        ]
        seconds = (time.perf_counter() - started) / seeds
        ends = [run[-1] for run in runs]
        share = sum(end <= arrived for end in ends)
        rows.append(
            Row(
                f"{model}, {way}",
                100 * statistics.median(ends) ** 0.5 / peak(fit),
                "% of peak",
                note=f"median RMS; {share} of {seeds} arrive, {seconds:.2g} s a run",
            )
        )
        series[way] = {"best_cost": runs, "arrived": share, "seconds": seconds}
        print(f"{rows[-1].name}: {rows[-1].value:.3g} {rows[-1].unit}, {rows[-1].note}", flush=True)
    return rows, {"bar": arrived, "ways": series}


def arrival(fit: FitPlan, scorer: Any) -> float:
    """The cost, pA^2, from which on a run counts as arrived."""
    values = np.array([[p.value] for p in fit.problem.model.parameters], dtype=float)
    if fit.noise_pA:
        return 1.01 * float(scorer.score(values).cost[0])
    return (1e-3 * peak(fit)) ** 2


def peak(fit: FitPlan) -> float:
    """The largest current of the data, pA."""
    traces = [e.recording.current_pA for e in fit.problem.experiments if e.recording]
    return max(float(np.abs(trace).max()) for trace in traces)


def marks(budget: int) -> list[int]:
    """Numbers of candidates at which the best cost is noted, evenly in the logarithm."""
    return sorted({round(budget ** (k / 30)) for k in range(15, 31)})


def searched(optimizer: Any, score: Callable[[Any], Any], budget: int) -> list[float]:
    """The best cost at every mark; nothing beyond the budget counts."""
    best, seen, noted = np.inf, 0, []
    left = marks(budget)
    while left:
        candidates = optimizer.ask()
        cost = score(candidates)
        optimizer.tell(candidates, cost)
        while left and seen + cost.size >= left[0]:
            part = cost[: left.pop(0) - seen]
            noted.append(float(min([best, *part[np.isfinite(part)]])))
        best = min([best, *cost[np.isfinite(cost)]])
        seen += cost.size
    return noted


if __name__ == "__main__":
    as_script(main)
