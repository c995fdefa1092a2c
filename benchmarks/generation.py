"""Measures what the genetic algorithm adds to the time of scoring, on one GPU.

    python benchmarks/generation.py [--quick --out FOLDER]

The problem is model B under 25 sweeps of 500 samples, with populations from 112 to 2^20, which are
the sizes of the 2012 paper and one more, as `channelfit optimize` runs it. Three ways that give the
same candidates, bit for bit, are measured in one run: the two kernels of `genetic_cuda`, the same
algorithm in CuPy's array functions, and in NumPy on the host with the copies that this needs.

* breed and learn: the time of all that is not scoring, by CUDA's events inside a search. With a
  small population it shows what starting kernels costs.
* a generation: the wall time of the loop, with records and stop rules, beside scoring alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from chains import ROOT, paper_protocols
from report import Row, as_script, compared, finish
from ways import arguments, results_folder

from channelfit.model.model_file import load_model
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.arrays import to_host
from channelfit.scoring.scorer import make_scorer
from channelfit.search.genetic import Genetic
from channelfit.search.genetic_cuda import DeviceGenetic
from channelfit.search.loop import StopRules, optimize
from channelfit.search.objective import Objective
from channelfit.search.space import SearchSpace
from scoring import problem

POPULATIONS = (112, 1120, 11_200, 112_000, 1 << 20)
TARGET = 1.3  # a generation over scoring alone, at the largest population
UNIT = "us"


def parts(genetic: DeviceGenetic, space: SearchSpace, scorer: Any, generations: int) -> np.ndarray:
    """Median microseconds (3,) of breed, score and learn, by the device's clock."""
    cp = gpu.cupy()
    marks = []
    for _ in range(generations):
        row = [cp.cuda.Event() for _ in range(4)]
        row[0].record()
        physical = genetic.breed(space)
        row[1].record()
        score = scorer.score(physical)
        row[2].record()
        genetic.learn(score)
        row[3].record()
        marks.append(row)
    marks[-1][-1].synchronize()
    elapsed = cp.cuda.get_elapsed_time
    times = [[1e3 * elapsed(a, b) for a, b in pairwise(row)] for row in marks]
    return np.median(np.array(times[generations // 3 :]), axis=0)


def waiting(call: Callable[[], Any], repeats: int) -> float:
    """Median microseconds of calls, each waited for, after one to warm up."""
    cp, times = gpu.cupy(), []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        call()
        cp.cuda.get_current_stream().synchronize()
        times.append(time.perf_counter() - start)
    return 1e6 * float(np.median(times[1:]))


def told(genetic: Genetic, space: SearchSpace, scorer: Any, copy: bool) -> Genetic:
    """After one generation; `copy`: the algorithm on the host, the scores on the device."""
    genetic.tell(*_scored(genetic, space, scorer, copy))
    return genetic


def array_calls(genetic: Genetic, space: SearchSpace, cost: Any) -> None:
    """A generation without its scores, as `channelfit` would run it in array calls."""
    candidates = genetic.ask()
    space.to_physical(candidates)
    genetic.tell(candidates, cost)


def generation_time(optimizer: Any, space: SearchSpace, scorer: Any, generations: int) -> float:
    """Wall microseconds a generation of a search, without its first third."""
    rules = StopRules(generations=generations)
    seconds = optimize(optimizer, Objective(space, scorer), rules).history["seconds"]
    skipped = generations // 3
    return 1e6 * float(seconds[-1] - seconds[skipped]) / (generations - 1 - skipped)


def _scored(genetic: Genetic, space: SearchSpace, scorer: Any, copy: bool) -> tuple[Any, Any]:
    candidates = genetic.ask()
    physical = space.to_physical(candidates)
    cost = scorer.score(physical).cost
    return candidates, to_host(cost) if copy else cost


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument("--path", default="auto")
    options = parser.parse_args()
    folder = results_folder(options)
    cp = gpu.cupy()
    model = load_model(ROOT / "models" / "model_b.yaml")
    space = SearchSpace(model.parameters)
    p = problem(model, paper_protocols())
    scorer: Any = make_scorer(p, "cuda", options.dtype, options.path)
    generations = 30 if options.quick else 300
    rows: list[Row] = []
    for n in POPULATIONS[:2] if options.quick else POPULATIONS:
        size, few = f"{n:,}", max(9, min(generations, 30_000_000 // n))
        physical = cp.asarray(space.to_physical(Genetic(space.n_free, n, 1).ask()))
        alone = 1e6 * gpu.timed(lambda x=physical: scorer.score(x), 15)  # type: ignore[misc]
        rows.append(Row(f"{size}: scoring alone", alone, UNIT, note="device's clock"))
        device = DeviceGenetic(space.n_free, n, 1)
        breed, score, learn = parts(device, space, scorer, few)
        for name, value in (("breed", breed), ("learn", learn)):
            rows.append(compared(f"{size}: {name}", value, UNIT, alone, "against scoring alone"))
        rows.append(Row(f"{size}: score inside the search", score, UNIT))
        in_arrays = told(Genetic(space.n_free, n, 1, xp=cp), space, scorer, copy=False)
        cost = scorer.score(physical).cost
        arrays = waiting(lambda g=in_arrays, c=cost: array_calls(g, space, c), 7)  # type: ignore[misc]
        note = "against breed and learn"
        ours = float(breed + learn)
        rows.append(compared(f"{size}: ask and tell in array calls", arrays, UNIT, ours, note))
        on_host, known = told(Genetic(space.n_free, n, 1), space, scorer, copy=True), cost.get()
        host = waiting(lambda g=on_host, c=known: array_calls(g, space, c), 3)  # type: ignore[misc]
        rows.append(compared(f"{size}: ask and tell on the host", host, UNIT, ours, note))
        whole = generation_time(DeviceGenetic(space.n_free, n, 1), space, scorer, few)
        wanted = f"; wanted: {TARGET}" if n == max(POPULATIONS) else ""
        note = f"against scoring these generations alone{wanted}"
        rows.append(compared(f"{size}: a generation", whole, UNIT, float(score), note))
        note = "against scoring random candidates alone"
        rows.append(compared(f"{size}: a generation", whole, UNIT, alone, note))
    device_name = gpu.device().name
    title = f"A generation of model_b, {options.dtype}, on {device_name}"
    finish("generation", title, rows, device_name, folder)


if __name__ == "__main__":
    as_script(main)
