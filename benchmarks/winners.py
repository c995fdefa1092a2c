"""Checks, in a hundred searches scored by the closed form, that the winner is the right one.

    python benchmarks/winners.py [--seeds 100]

The genetic algorithm on the GPU fits model B to surrogate data with 1 % noise, under the protocols
of the 2012 paper. Each search is scored by the closed form. Then its whole last generation and the
elite are scored again by stepping in float64. A winner is wrong if stepping would have chosen
another one whose cost is lower by more than 1e-9 of it. The same searches, scored by stepping
throughout, show whether they find anything else.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
from chains import ROOT, paper_protocols
from report import Row, as_script, finish
from ways import arguments, host, results_folder

from channelfit.model.model_file import load_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.scoring.machine import gpu
from channelfit.scoring.scorer import make_scorer
from channelfit.search.choose import make_optimizer
from channelfit.search.space import SearchSpace
from scoring import problem

GENERATIONS, POPULATION = 60, 11_200
TIE = 1e-9


def noisy(clean: Problem, seed: int) -> Problem:
    """The same recordings with noise of 1 % of the largest current."""
    random = np.random.default_rng(seed)
    experiments = []
    for e in clean.experiments:
        assert e.recording is not None
        current = e.recording.current_pA
        sigma = 0.01 * np.nanmax(np.abs(current))
        noise = random.normal(0.0, sigma, current.shape)
        experiments.append(Experiment(e.protocol, replace(e.recording, current_pA=current + noise)))
    return Problem(clean.model, tuple(experiments))


def search(space: SearchSpace, scorer: Any, seed: int) -> tuple[Any, Any]:
    """The last generation, physical, and its costs."""
    settings = {"population": POPULATION, "crossover_rate": 0.8}
    genetic = make_optimizer("genetic", settings, space.n_free, seed, xp=scorer.xp)
    for _ in range(GENERATIONS):
        unit = genetic.ask()
        physical = space.to_physical(unit)
        cost = scorer.score(physical).cost
        genetic.tell(unit, cost)
    return physical, cost


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    options = parser.parse_args()
    model = load_model(ROOT / "models" / "model_b.yaml")
    space = SearchSpace(model.parameters)
    clean = problem(model, paper_protocols(500))
    if not gpu.is_available():
        raise SystemExit("this benchmark needs an NVIDIA GPU and CuPy")
    wrong, errors, listed, begun = 0, [], [], time.perf_counter()
    agree = 0
    for seed in range(options.seeds):
        p = noisy(clean, seed)
        closed, stepping = (
            make_scorer(p, "cuda", path=path) for path in ("closed-form", "stepping")
        )
        physical, cost = search(space, closed, seed)
        exact = host(stepping.score(physical).cost)
        cost = host(cost)
        winner = int(np.argmin(cost))
        wrong += bool(exact[winner] > exact.min() * (1 + TIE))
        finite = np.isfinite(exact)
        errors.append(np.abs(cost[finite] / exact[finite] - 1).max())
        listed.append(closed.scoring.rerouted_share(physical))
        _, other = search(space, stepping, seed)
        agree += bool(abs(float(host(other).min()) / exact.min() - 1) < 1e-6)
    rows = [
        Row("wrong winners", wrong, f"of {options.seeds}", note="wanted: none"),
        Row("largest error of any cost in the last generations", float(np.max(errors)), "relative"),
        Row("median of those", float(np.median(errors)), "relative"),
        Row("stepped, in the last generations", 100 * float(np.mean(listed)), "%"),
        Row(
            "searches that end at the cost of those scored by stepping",
            agree,
            f"of {options.seeds}",
        ),
        Row("time", time.perf_counter() - begun, "s"),
    ]
    finish(
        "winners",
        f"{options.seeds} searches, model B, {POPULATION:,} x {GENERATIONS}",
        rows,
        folder=results_folder(options),
    )


if __name__ == "__main__":
    as_script(main)
