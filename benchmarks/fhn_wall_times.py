"""Wall times of one step on the processor and on a GPU: figures 5, 6, 13 and 14 of the paper again.

    python benchmarks/fhn_wall_times.py                 about two minutes, on a machine with a GPU
    python benchmarks/fhn_wall_times.py --folder HERE   table, JSON and picture go there

Figure 5 counts allocation, transfers and steps of the explicit scheme, figure 6 the steps alone;
figure 13 the same for Crank-Nicolson and figure 14 the solution of Newton's system alone. All is
float64, on one cable, the mean of several steps. "with transfers" brings v and w back to the host
after every step, as the paper does. The paper's own curves are not drawn: its text gives ratios
only, measured on a laptop. With 2^24 nodes its GPU is 73 times as fast as its processor and 19
times as fast as with transfers (figure 5), 18 times in the steps alone (figure 6); its cyclic
reduction is 4 to 5 times as fast on the GPU (figure 14).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from fhn_gpu import cusparse
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from report import RESULTS, Row, as_script, finish
from scipy.linalg import solve_banded

from channelfit.fitzhugh_nagumo import Cable, CrankNicolson, Equation, Explicit
from channelfit.fitzhugh_nagumo.cuda.crank_nicolson import CrankNicolsonCuda
from channelfit.fitzhugh_nagumo.cuda.explicit import ExplicitCuda
from channelfit.fitzhugh_nagumo.tridiagonal import cyclic_reduction, thomas
from channelfit.results.report.plots import STYLE, save
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.threads import usable_cores

SIZES = tuple(2**k for k in range(10, 25, 2))
DX, DT = 0.5, 0.1
COLORS = ("#0072b2", "#56b4e9", "#009e73", "#d55e00", "#e69f00", "#cc79a7")
#: Seconds a step of N nodes.
Way = Callable[[int], float]


def steps_for(n: int) -> int:
    """As many as the paper averaged over, fewer where one takes long."""
    return 30 if n <= 2**18 else 5


def start(n: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(n) % 200.0
    return np.exp(-((x - 100) ** 2) / 40)[None], np.zeros((1, n))


def whole(make: Callable[[int], Any], transfers: bool = False) -> Way:
    """Allocation, transfers and steps, each step by itself."""

    def seconds(n: int) -> float:
        scheme, count = make(n), steps_for(n)
        put, take = getattr(scheme, "put", np.copy), getattr(scheme, "take", np.copy)

        def run() -> None:
            v, w = (put(a) for a in start(n))
            for _ in range(count):
                v, w = scheme.advance(v, w, DT, 1)
                if transfers:
                    take(v), take(w)
            take(v), take(w)

        run()
        began = time.perf_counter()
        run()
        return (time.perf_counter() - began) / count

    return seconds


def loop(make: Callable[[int], Any], single: bool = False) -> Way:
    """Steps alone, of a state that is where it is needed; `single`: one a pass over memory."""

    def seconds(n: int) -> float:
        scheme, count = make(n), steps_for(n)
        v, w = start(n)
        on_device = hasattr(scheme, "put")
        v, w = (scheme.put(v), scheme.put(w)) if on_device else (v, w)

        def run() -> None:
            a, b = v, w
            for _ in range(count if single else 1):
                a, b = scheme.advance(a, b, DT, 1 if single else count)

        if on_device:
            return gpu.timed(run, 3) / count
        run()
        began = time.perf_counter()
        run()
        return (time.perf_counter() - began) / count

    return seconds


def solver(solve: Callable[..., Any]) -> Way:
    """One tridiagonal system on the processor."""

    def seconds(n: int) -> float:
        off, main, right = np.full(n, -0.2), np.full(n, 1.4), np.ones(n)
        solve(off, main, off, right)
        began = time.perf_counter()
        for _ in range(3):
            solve(off, main, off, right)
        return (time.perf_counter() - began) / 3

    return seconds


def banded(lower: Any, main: Any, upper: Any, right: Any) -> Any:
    return solve_banded((1, 1), np.array([upper, main, lower]), right, check_finite=False)


def on(scheme: type, dx: float = DX, **more: Any) -> Callable[[int], Any]:
    return lambda n: scheme(Equation(), Cable(n, dx), **more)


def figures(cp: Any) -> dict[str, dict[str, Way]]:
    """The lines of every figure; the first is what the others are compared with."""
    once = {"nodes": 8, "steps": 1}
    # A tolerance without end stops Newton after one iteration: one system, and its assembly.
    newton = {"tolerance": float("inf")}
    return {
        "figure 5, explicit, everything": {
            "processor, one core": whole(on(Explicit)),
            "processor, all cores": whole(on(Explicit, n_threads=usable_cores())),
            "GPU, with transfers": whole(on(ExplicitCuda), True),
            "GPU": whole(on(ExplicitCuda)),
        },
        "figure 6, explicit, steps alone": {
            "processor, one core": loop(on(Explicit), True),
            "processor, many steps a pass": loop(on(Explicit)),
            "GPU, a step a pass": loop(on(ExplicitCuda, **once)),
            "GPU, many steps a pass": loop(on(ExplicitCuda)),
        },
        "figure 13, Crank-Nicolson, everything": {
            "processor, Thomas": whole(on(CrankNicolson, solver="thomas")),
            "processor, cyclic reduction": whole(on(CrankNicolson, solver="cyclic_reduction")),
            "processor, lanes, one core": whole(on(CrankNicolson)),
            "GPU, with transfers": whole(on(CrankNicolsonCuda), True),
            "GPU": whole(on(CrankNicolsonCuda)),
        },
        "figure 14, one tridiagonal system": {
            "processor, Thomas": solver(thomas),
            "processor, cyclic reduction": solver(cyclic_reduction),
            "processor, SciPy solve_banded": solver(banded),
            "GPU, cuSPARSE gtsv2_nopivot": lambda n: n / cusparse(cp, n, "float64") / 1e9,
            "GPU, in parts, with assembly": loop(on(CrankNicolsonCuda, solver="parts", **newton)),
            "GPU, in tiles, with assembly": loop(on(CrankNicolsonCuda, **newton)),
        },
    }


def draw(series: dict[str, dict[str, list[float]]], folder: Path) -> None:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 7.2), layout="constrained")
        FigureCanvasAgg(figure)
        for axis, (title, lines) in zip(figure.subplots(2, 2).flat, series.items(), strict=True):
            for color, (name, seconds) in zip(COLORS, lines.items(), strict=False):
                axis.loglog(SIZES, 1e3 * np.array(seconds), "o-", ms=3, color=color, label=name)
            axis.set_title(title, loc="left", fontsize=9)
            axis.set_xlabel("nodes")
            axis.set_ylabel("ms a step" if "system" not in title else "ms")
            axis.legend(frameon=False, fontsize=7, loc="upper left")
        save(figure, folder / "fhn_figure_5_6_13_14.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=RESULTS)
    folder = parser.parse_args().folder
    cp, device = gpu.cupy(), gpu.device()
    series: dict[str, dict[str, list[float]]] = {}
    rows: list[Row] = []
    for title, ways in figures(cp).items():
        series[title] = {name: [way(n) for n in SIZES] for name, way in ways.items()}
        first = next(iter(series[title].values()))[-1]
        for name, seconds in series[title].items():
            label, last = f"{title}: {name}, N = {SIZES[-1]:,}", seconds[-1]
            rows.append(Row(label, 1e3 * last, "ms", 1e3 * first, first / last))
    folder.mkdir(parents=True, exist_ok=True)
    draw(series, folder)
    finish(
        "fhn_wall_times",
        "FitzHugh-Nagumo: wall times of a step",
        rows,
        device.name,
        folder,
        {"nodes": list(SIZES), "seconds": series},
    )


if __name__ == "__main__":
    as_script(main)
