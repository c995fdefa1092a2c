"""Figure 2 of Mussi, Nashed and Cagnoni (GECCO 2011) again: a swarm without barriers.

    python benchmarks/swarm_figures.py [--quick --out FOLDER]
    python benchmarks/swarm_figures.py --backend cpu --out FOLDER      one core alone

Five functions in 2 to 128 dimensions, rings of 32 particles, 10,000 iterations, float32, as in the
paper. Final value: the mean of the best 98 of 100 swarms (in one launch; on one core, of fewer).
Time: of one swarm, by the device's clock, after one to warm up.

* asynchronous: one kernel, no barrier between particles.
* synchronous: three kernels an iteration. Recorded once as a CUDA graph of 100 iterations and
  replayed, which is the least that launching them can cost.
* one core: the same moves and draws, particles side by side in vector lanes (`one_core.py`), on
  this machine. sin and cos are the C library's there, one by one.

What the paper's text gives: up to about 300 times one core (Rastrigin, most dimensions), often more
than ten times the synchronous version; GTX 260 and GTS 450 against a Core i7 of 2.67 GHz.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from chains import ROOT
from device_swarms import SynchronousRing
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from one_core import OneCore
from report import RESULTS, Row, as_script, compared, finish
from ways import arguments, device_name, results_folder

from channelfit.functions.function import FunctionProblem, build_function
from channelfit.functions.scorers import FunctionCuda
from channelfit.functions.swarm_cuda import AsynchronousRing, DeviceSwarm
from channelfit.reading.documents import read_yaml
from channelfit.results.report.plots import STYLE
from channelfit.scoring.machine import gpu

FUNCTIONS = ("sphere", "elliptic", "rastrigin", "rosenbrock", "griewank")
WAYS = ("asynchronous", "synchronous", "one core")
LOOKS = {
    "asynchronous": ("#0072b2", "o"),
    "synchronous": ("#d55e00", "s"),
    "one core": ("#222222", "^"),
}
DTYPE, POPULATION = "float32", 32
RECORDED = 100  # iterations of a graph


@dataclass(frozen=True)
class Sizes:
    """The amount of measurements; kept: of the best swarms, the share whose mean is given."""

    dimensions: tuple[int, ...] = (2, 8, 32, 64, 128)
    iterations: int = 10_000
    swarms: int = 100
    swarms_on_a_core: int = 4
    kept: float = 0.98


QUICK = Sizes((2, 33), 200, 5, 2)


def function(name: str, n: int) -> FunctionProblem:
    """A shipped function in n dimensions."""
    file = ROOT / "models" / "functions" / f"{name}.yaml"
    document = read_yaml(file)
    document["sizes"] = {"n": n}
    return build_function(document, file)


def mean_of_best(costs: np.ndarray, kept: float) -> float:
    """Of the final values of many swarms (n_swarms,), the mean of the best share."""
    ordered = np.sort(costs.astype(np.float64))
    return float(ordered[: max(1, int(kept * len(ordered)))].mean())


def on_one_core(name: str, n: int, sizes: Sizes) -> tuple[float, float]:
    """Final value, and seconds of one swarm: the median of some, one after the other."""
    problem, seconds, finals = function(name, n), [], []
    OneCore(problem, DTYPE, POPULATION, 0).fly(1)  # compiles
    for seed in range(sizes.swarms_on_a_core):
        swarm = OneCore(problem, DTYPE, POPULATION, seed)
        start = time.perf_counter()
        swarm.fly(sizes.iterations)
        seconds.append(time.perf_counter() - start)
        finals.append(swarm.cost.min())
    return mean_of_best(np.array(finals), 1.0), float(np.median(seconds))


def on_device(kind: type[DeviceSwarm], name: str, n: int, sizes: Sizes) -> tuple[float, float]:
    """Final value of many swarms, and seconds of one."""
    scorer = FunctionCuda(function(name, n), DTYPE)
    many = kind(scorer, POPULATION, 0, swarms=sizes.swarms)
    many.fly(sizes.iterations)
    final = mean_of_best(many.costs.min(axis=1), sizes.kept)
    one = kind(scorer, POPULATION, 0)
    if kind is SynchronousRing:
        repeats, fly = sizes.iterations // RECORDED, replayed(one)
    else:
        repeats, fly = 1, lambda: one.fly(sizes.iterations)

    def whole() -> None:
        for _ in range(repeats):
            fly()

    return final, gpu.timed(whole, 3)


def replayed(swarm: DeviceSwarm) -> Callable[[], None]:
    """So many iterations, recorded as a graph where CuPy can (not on a played GPU)."""
    cp = gpu.cupy()
    if not hasattr(cp.cuda, "Stream"):
        return lambda: swarm.fly(RECORDED)
    swarm.fly(1)  # what is compiled at its first launch is compiled
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.get_current_stream().synchronize()
    with stream:
        stream.begin_capture()
        swarm.fly(RECORDED)
        graph = stream.end_capture()
    return lambda: graph.launch()


def measure(sizes: Sizes, cuda: bool) -> dict[str, Any]:
    """By function and way: final values and seconds, one a dimension."""
    found: dict[str, Any] = {
        name: {way: {"final": [], "seconds": []} for way in WAYS} for name in FUNCTIONS
    }
    places = [(name, n) for name in FUNCTIONS for n in sizes.dimensions]
    # other processes: compiling with Numba would hold up every thread of this one
    context = multiprocessing.get_context("spawn")
    workers = max(1, (os.cpu_count() or 2) // 2)
    with ProcessPoolExecutor(workers, context) as pool:
        waiting = [pool.submit(on_one_core, *place, sizes) for place in places]
        for name, n in places if cuda else ():
            for way, kind in (("asynchronous", AsynchronousRing), ("synchronous", SynchronousRing)):
                _note(found[name][way], on_device(kind, name, n, sizes))
            print(f"{name} {n}", flush=True)
        for (name, _), result in zip(places, waiting, strict=True):
            _note(found[name]["one core"], result.result())
    return {"dimensions": list(sizes.dimensions), "found": found}


def _note(place: dict[str, list[float]], result: tuple[float, float]) -> None:
    place["final"].append(result[0])
    place["seconds"].append(result[1])


def draw(series: dict[str, Any]) -> Figure:
    """Final value, time and speed-up of the asynchronous ring, a row a function."""
    dimensions = series["dimensions"]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 2.1 * len(FUNCTIONS)), dpi=120, layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(FUNCTIONS), 3, sharex=True)
        for row, name in zip(grid, FUNCTIONS, strict=True):
            ways = series["found"][name]
            for way in WAYS:
                if ways[way]["seconds"]:
                    _line(row[0], way, dimensions, np.maximum(ways[way]["final"], 1e-45))
                    _line(row[1], way, dimensions, ways[way]["seconds"])
            fastest = np.array(ways["asynchronous"]["seconds"])
            for way in WAYS[1:] if fastest.size else ():
                _line(row[2], way, dimensions, np.array(ways[way]["seconds"]) / fastest)
            labels = (f"{name}: final value", "time of a swarm, s", "asynchronous, times faster")
            for axes, label in zip(row, labels, strict=True):
                axes.set(xscale="log", yscale="log", ylabel=label)
                axes.set_xticks(dimensions, map(str, dimensions), minor=False)
                axes.minorticks_off()
        for axes in grid[-1]:
            axes.set_xlabel("dimensions")
        grid[0][1].legend(fontsize=8)
        if grid[0][2].lines:
            grid[0][2].legend([f"than {way}" for way in WAYS[1:]], fontsize=8)
    return figure


def _line(axes: Any, way: str, x: Any, y: Any) -> None:
    color, marker = LOOKS[way]
    axes.plot(x, y, color=color, marker=marker, markersize=4, linewidth=1.2, label=way)


def rows_of(series: dict[str, Any]) -> list[Row]:
    """The table: times and speed-ups at each dimension."""
    rows = [
        Row("published: asynchronous over one core, Rastrigin, most", 300, "times"),
        Row("published: asynchronous over synchronous, often more than", 10, "times"),
    ]
    for name in FUNCTIONS:
        ways = series["found"][name]
        for k, n in enumerate(series["dimensions"]):
            if not ways["asynchronous"]["seconds"]:
                seconds, final = (ways["one core"][key][k] for key in ("seconds", "final"))
                rows.append(Row(f"{name}, {n}: one core", seconds, "s", note=f"final {final:.3g}"))
                continue
            own = ways["asynchronous"]["seconds"][k]
            finals = ", ".join(f"{way} {ways[way]['final'][k]:.3g}" for way in WAYS)
            note = f"s of the asynchronous ring: {own:.3g}; final values: {finals}"
            for way in WAYS[1:]:
                rows.append(
                    compared(f"{name}, {n}: {way}", ways[way]["seconds"][k], "s", own, note)
                )
                note = ""
    return rows


def main() -> None:
    options = arguments(__doc__).parse_args()
    folder = results_folder(options) or RESULTS
    cuda = options.backend == "cuda"
    series = measure(QUICK if options.quick else Sizes(), cuda)
    save(series, folder)
    finish(
        "swarm_figures",
        "Mussi, Nashed, Cagnoni 2011, figure 2",
        rows_of(series),
        device_name() if cuda else "",
        folder,
        series,
    )


def save(series: dict[str, Any], folder: Path) -> None:
    """The picture."""
    folder.mkdir(parents=True, exist_ok=True)
    draw(series).savefig(folder / "swarm_figure_2.png", facecolor="white")


if __name__ == "__main__":
    as_script(main)
