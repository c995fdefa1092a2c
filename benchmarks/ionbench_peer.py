"""ionBench's side of `ionbench.py`; runs where ionBench is installed, and imports nothing of ours.

    python -P benchmarks/ionbench_peer.py data FOLDER
    python -P benchmarks/ionbench_peer.py search PROBLEM APPROACH SEED SECONDS
    python -P benchmarks/ionbench_peer.py judge PROBLEM < parameters.json

-P keeps `ionbench.py` beside this file from being taken for the package. The last line that is
printed is the answer, in JSON; ionBench prints other lines before it.
"""

from __future__ import annotations

import json
import math
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import ionbench
import numpy as np
from ionbench.modification import Beattie2018, Modification, Wilhelms2012b
from ionbench.optimisers.pints_optimisers import cmaes_pints
from ionbench.optimisers.scipy_optimisers import trustRegionReflective_scipy

PROBLEMS = {
    "staircase_hh": (ionbench.problems.staircase.HH, 1),
    "staircase_mm": (ionbench.problems.staircase.MM, 1),
    "loewe_ikr": (ionbench.problems.loewe2016.IKr, 13),
}


def log_transformed() -> Modification:
    """Logarithms and every bound, for an approach that was published without."""
    return Modification(
        name="log", logTransform="on", parameterBounds="on", rateBounds="on", scaleFactors="off"
    )


#: name -> (search, settings of its authors or ours, whether it needs derivatives)
APPROACHES = {
    "cma-es": (cmaes_pints.run, Beattie2018, False),
    "trust region": (trustRegionReflective_scipy.run, Wilhelms2012b, True),
    "trust region, log": (trustRegionReflective_scipy.run, log_transformed, True),
}


class TimeUp(Exception):
    """The cap on wall time."""


class Watch:
    """Return the progress of a search: a row (seconds, evaluations, cost) for every gain."""

    def __init__(self, cap: float) -> None:
        self.started, self.cap, self.rows = time.perf_counter(), cap, []
        self.evaluations = self.derivatives = 0
        self.best = math.inf

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def follow(self, benchmark: Any) -> None:
        """Listen to every evaluation that the benchmark's tracker counts."""
        tell = benchmark.tracker.update

        def update(*arguments: Any, **named: Any) -> None:
            tell(*arguments, **named)
            if named.get("incrementSolveCounter", True):
                self.evaluations += 1
                self.derivatives += named.get("solveType") == "grad"
            cost = float(named.get("cost", math.inf))
            if cost < self.best:
                self.best = cost
                self.rows.append((self.seconds, self.evaluations, cost))
            if self.seconds > self.cap:
                raise TimeUp

        benchmark.tracker.update = update


def data(folder: Path) -> dict[str, Any]:
    """Recordings as CSV; what ionBench computes, at a tolerance of 1e-10, to compare with.

    The current at the true values, and the cost at random parameters from its own sampler.
    """
    facts = {}
    for name, (kind, n_sweeps) in PROBLEMS.items():
        problem = kind()
        true = problem._TRUE_PARAMETERS
        columns = ["current"] if n_sweeps == 1 else [f"sweep{i}" for i in range(1, n_sweeps + 1)]
        rows = problem.DATA.reshape(n_sweeps, -1).T
        np.savetxt(
            folder / f"{name}.csv", rows, "%.17g", ",", header=",".join(columns), comments=""
        )
        own = float(problem.cost(true))
        if hasattr(problem.sim, "set_tolerance"):
            problem.sim.set_tolerance(1e-10, 1e-10)
        np.random.seed(0)
        drawn = [true, *problem.sample(8)]
        current = problem.simulate(true, np.arange(0, problem.T_MAX, problem.TIMESTEP))
        np.save(folder / f"{name}_current.npy", current.reshape(n_sweeps, -1))
        facts[name] = {
            "threshold": float(problem.COST_THRESHOLD),
            "cost at true values, its tolerance": own,
            "parameters": np.array(drawn).tolist(),
            "cost": [float(problem.cost(p)) for p in drawn],
        }
    return facts


def search(name: str, approach: str, seed: int, cap: float) -> dict[str, Any]:
    """One approach from random starts, a new one after each that ends above the threshold.

    Its clock starts when the problem is there and its solver compiled.
    """
    run, modification, derivatives = APPROACHES[approach]
    start = time.perf_counter()
    problem = PROBLEMS[name][0](sensitivities=derivatives)
    compiled = time.perf_counter() - start
    problem.plotter = False
    settings = modification()
    np.random.seed(seed)
    watch, starts, up = Watch(cap), 0, False
    try:
        while not up and watch.best > problem.COST_THRESHOLD:
            problem.reset()
            settings.apply(problem)
            watch.follow(problem)
            starts += 1
            run(problem, x0=problem.sample(), **settings.kwargs)
            ionbench.utils.cache.clear_all_caches()
    except TimeUp:
        up = True
    return {
        "compile": compiled,
        "seconds": watch.seconds,
        "evaluations": watch.evaluations,
        "derivatives": watch.derivatives,
        "starts": starts,
        "cap reached": up,
        "rows": watch.rows,
    }


def judge(name: str) -> list[float]:
    """ionBench's own cost of parameters in its own units, a list of lists on standard input."""
    problem = PROBLEMS[name][0]()
    return [float(problem.cost(np.array(p))) for p in json.load(sys.stdin)]


def main() -> None:
    warnings.simplefilter("ignore")
    command, *rest = sys.argv[1:]
    if command == "data":
        answer: Any = data(Path(rest[0]))
    elif command == "search":
        answer = search(rest[0], rest[1], int(rest[2]), float(rest[3]))
    else:
        answer = judge(rest[0])
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
