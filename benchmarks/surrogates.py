"""Measures how often and how soon a search finds the minimum, for every shipped scheme.

    python benchmarks/surrogates.py [--seeds 20] [--models model_a herg_markov] [--cap 120]
        [--backend cpu] [--optimizer NAME] [--quick] [--out DIR]
    python benchmarks/surrogates.py --hard      schemes of five and eight states, wide ranges

The data are simulated, with Gaussian noise whose standard deviation is 1 % of the largest current.
A run has arrived when its cost is within 1 % of the best known cost, which is the lower of that of
the refined true values and that of the best run. Times begin with the search, when its code is
compiled; --cap ends a run. Ranges and bounds are those of the files, and the search is the default
one. Rows of models that are not measured this time stay in the file as they were.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path

import numpy as np
from report import RESULTS, Row, as_script, finish, missing

from channelfit.front.kinds import load_plan
from channelfit.scoring.machine import gpu
from channelfit.scoring.scorer import make_scorer
from channelfit.search.least_squares import refine
from channelfit.search.loop import optimize
from channelfit.search.objective import Objective
from channelfit.search.plan import FitPlan

ROOT = Path(__file__).parent.parent
SHIPPED = (
    "model_a",
    "model_b",
    "model_c",
    "k_hh",
    "na_hh",
    "herg_beattie",
    "herg_markov",
    "na_markov",
    "na_nav15",
)
HARD = ("herg_five", "herg_eight", "na_eight")
NOISE, NEAR = 0.01, 0.01


@dataclass(frozen=True)
class Run:
    """One search: its end, and when its cost first was as low as the target (None: never)."""

    seed: int
    cost: float
    seconds: float
    evaluations: int
    ended: str
    values: tuple[float, ...]
    seconds_to_arrive: float | None = None
    evaluations_to_arrive: int | None = None


def noisy(file: Path, options: argparse.Namespace) -> FitPlan:
    """The file's fit, its data with noise of 1 % of the largest current, searched by default."""
    changes = [
        "fit.optimizer=null",
        "fit.surrogate.noise=0",
        "fit.surrogate.seed=1",
        f"fit.stop={{seconds: {options.cap}, generations: 1000000}}",
    ]
    if options.optimizer:
        changes[0] = f"fit.optimizer={{name: {options.optimizer}}}"
    currents = [
        e.recording.current_pA
        for e in load_plan(file, changes).problem.experiments
        if e.recording is not None
    ]
    changes[1] = f"fit.surrogate.noise={NOISE * max(np.nanmax(np.abs(c)) for c in currents):g}"
    return load_plan(file, changes)


def runs_of(file: Path, options: argparse.Namespace) -> tuple[list[Run], dict[str, object]]:
    """Searches of one file, and what is known of the problem."""
    fit = noisy(file, options)
    scorer = make_scorer(fit.problem, options.backend)
    start = time.perf_counter()
    true, refined = near_truth(fit, fit.objective(scorer))
    warmed = time.perf_counter() - start
    runs, histories = [], []
    for seed in range(options.seeds):
        optimizer = replace(fit, seed=seed).make_optimizer(getattr(scorer, "xp", np))
        result = optimize(optimizer, fit.objective(scorer), fit.stop_rules)
        runs.append(
            Run(
                seed,
                result.cost,
                result.seconds,
                result.evaluations,
                result.stop_reason,
                tuple(map(float, result.values)),
            )
        )
        histories.append(result.history)
        print(
            f"{file.stem}, seed {seed}: {result.cost:.6g} pA^2 ({true:.6g} at the true values, "
            f"{refined:.6g} refined), {result.seconds:.2f} s, {result.evaluations:,} evaluations",
            flush=True,
        )
    best = min([refined, *(run.cost for run in runs)])
    runs = [arrival(run, history, best) for run, history in zip(runs, histories, strict=True)]
    facts = {
        "free parameters": fit.space.n_free,
        "noise_pA": fit.noise_pA,
        "cost at true values": true,
        "the same, refined": refined,
        "best known": best,
        "warming up": warmed,
    }
    return runs, facts


def near_truth(fit: FitPlan, objective: Objective) -> tuple[float, float]:
    """The cost at the true values, and at the bottom of the valley that they lie in."""
    true = fit.space.to_unit(fit.problem.model.values()[:, None])
    refined = refine(objective, true)
    return float(objective.score(true).cost[0]), float(np.min(refined.cost))


def arrival(run: Run, history: np.ndarray, best: float) -> Run:
    met = np.flatnonzero(history["best_cost"] <= best * (1 + NEAR))
    if not met.size:
        return run
    row = history[met[0]]
    return replace(
        run, seconds_to_arrive=float(row["seconds"]), evaluations_to_arrive=int(row["evaluations"])
    )


def rows_of(name: str, runs: list[Run], facts: dict[str, object], cap: float) -> list[Row]:
    arrived = [run for run in runs if run.seconds_to_arrive is not None]
    late = [run for run in runs if run.seconds_to_arrive is None]
    best = float(facts["best known"])  # type: ignore[arg-type]
    note = f"{facts['free parameters']} parameters"
    if late:
        over = ", ".join(f"{run.seed} ({run.cost / best:.3g})" for run in late)
        note += f"; seeds that did not (cost/best): {over}"
    rows = [Row(f"{name}: arrived", 100 * len(arrived) / len(runs), "%", note=note)]
    # a run that never arrives takes forever: the median is over all
    times = [run.seconds_to_arrive or math.inf for run in runs]
    median = float(np.median(times))
    label = f"{name}: time to arrive, median"
    if math.isfinite(median):
        slowest = max(run.seconds_to_arrive or 0.0 for run in arrived)
        rows.append(Row(label, median, "s", note=f"slowest that did {slowest:.3g} s"))
    else:
        rows.append(missing(label, "s", f"most did not within {cap:g} s"))
    n = float(np.median([run.evaluations for run in runs]))
    rows.append(
        Row(
            f"{name}: whole search, median",
            float(np.median([r.seconds for r in runs])),
            "s",
            note=f"{n:,.0f} evaluations",
        )
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--models", nargs="+", choices=SHIPPED + HARD)
    parser.add_argument("--hard", action="store_true", help=", ".join(HARD))
    parser.add_argument("--cap", type=float, default=120, help="seconds of one run")
    parser.add_argument("--backend", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--optimizer", help="by name; else the default")
    parser.add_argument("--quick", action="store_true", help="3 seeds, at most 10 s each")
    parser.add_argument("--out", type=Path, help="folder of the JSON")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.cap = min(options.seeds, 3), min(options.cap, 10.0)
    names = options.models or (HARD if options.hard else SHIPPED)
    on_gpu = options.backend != "cpu" and gpu.is_available()
    kind = "hard_schemes" if options.hard else "surrogates_cuda" if on_gpu else "surrogates"
    known = earlier(options.out or RESULTS, kind)
    title = (
        f"{options.seeds} searches each, noise 1 %, {options.backend}, at most {options.cap:g} s"
    )
    for name in names:
        folder = ROOT / "benchmarks" / "problems" if name in HARD else ROOT / "models"
        runs, facts = runs_of(folder / f"{name}.yaml", options)
        made = {"device": gpu.device().name if on_gpu else "", "date": f"{date.today()}"}
        known[name] = (
            rows_of(name, runs, facts, options.cap),
            {**facts, **made, "runs": [asdict(run) for run in runs]},
        )
        in_order = sorted(known, key=[*SHIPPED, *HARD].index)
        finish(
            kind,
            title,
            [row for name in in_order for row in known[name][0]],
            made["device"],
            options.out,
            {name: known[name][1] for name in in_order},
        )


def earlier(folder: Path, kind: str) -> dict[str, tuple[list[Row], dict[str, object]]]:
    """Rows and series of models that were measured before: a model a time takes its time."""
    file = folder / f"{kind}.json"
    if not file.is_file():
        return {}
    record = json.loads(file.read_text())
    rows = [Row(**row) for row in record["rows"]]
    return {
        name: ([row for row in rows if row.name.startswith(f"{name}:")], series)
        for name, series in record["series"].items()
    }


if __name__ == "__main__":
    as_script(main)
