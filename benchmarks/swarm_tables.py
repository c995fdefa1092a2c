"""Tables 1 to 5 of Li and Liu (HEART 2017) again: swarms in groups fit small networks.

    python benchmarks/swarm_tables.py [--quick --out FOLDER]

A block of the GPU is a group of 16 particles with a warp each; the best of its group leads a
particle, and the best of all in every hundredth iteration (`device_swarms.LocalGroups`, float32).
One core is the same swarm on this machine (`one_core.py`), timed over fewer iterations and scaled.

* Tables 1 and 2: time of 100,000 iterations; particles, and networks of 32 to 512 weights.
* Table 3: 1,000 iterations of 1,024 particles on the network of 6-30-2 (240 weights, 100 rows),
  led by groups or, one launch an iteration, by the best of all alone; the median of some seeds.
  With the paper's weights (inertia 1, pulls 2 and 2) beside ours.
* Table 4: the sphere and Rosenbrock; the paper does not say how many particles, dimensions and
  iterations, so its times are only quoted. Here: 1,024 particles, 30 dimensions, 10,000 iterations.
* Table 5: the network of 6-30-2 on 5,000 rows, 2,000 iterations. The paper's electromagnetic data
  were not published; `antenna.py` says what stands in for them, here and in table 3.

The training error is the paper's: the root of the mean square, residuals as shares of a target's
range. The cost in the file `models/functions/network.yaml` is its square.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from antenna import INPUTS, TARGETS, antenna
from chains import ROOT
from device_swarms import LocalGroups
from one_core import OneCore
from report import RESULTS, Row, as_script, compared, finish
from swarm_figures import function
from ways import arguments, device_name, results_folder

from channelfit.functions.function import Data, FunctionProblem, build_function
from channelfit.functions.scorers import FunctionCuda
from channelfit.reading.documents import read_yaml
from channelfit.scoring.machine import gpu

DTYPE, GROUP, EXCHANGE = "float32", 16, 100
PAPER = {"inertia": 1.0, "cognitive": 2.0, "social": 2.0}
#: Seconds of the paper: C++ on two cores of a Pentium G2030, OpenCL on a GT 630.
TABLE_1 = {
    64: (386.76, 97.97),
    128: (771.05, 103.81),
    256: (1543.93, 117.38),
    512: (3086.09, 137.19),
    1024: (6218.58, 203.47),
}
TABLE_2 = {
    (3, 8, 1): (3926.11, 145.50),
    (7, 8, 1): (6643.08, 215.32),
    (4, 6, 12): (15367.46, 481.38),
    (6, 8, 10): (17308.09, 529.50),
    (15, 32, 1): (68065.32, 1904.16),
}
TABLE_3 = {"none": (99.14, 0.37056), "groups": (25.53, 0.05198)}
TABLE_4 = {"sphere": 4.58, "rosenbrock": 6.9}
TABLE_5 = {"OpenCL": (2435.36, 1.52), "C++": (82726.95, 1.49)}


@dataclass(frozen=True)
class Sizes:
    """The amount of measurements."""

    iterations: int = 100_000
    iterations_4: int = 10_000
    iterations_5: int = 2_000
    particles: int = 1024
    seeds: int = 7
    rows_5: int = 5_000
    work_on_a_core: float = 3e9  # particles times rows times weights, timed on a core


QUICK = Sizes(200, 100, 20, 64, 2, 200, 3e7)


def network(layers: tuple[int, int, int], n_rows: int) -> FunctionProblem:
    """The shipped network with other layers, on a table of so many rows.

    6 inputs and 2 outputs are the antenna's; other numbers only matter for time, and get the same
    columns over and over.
    """
    file = ROOT / "models" / "functions" / "network.yaml"
    document = read_yaml(file)
    n_inputs, hidden, n_outputs = layers
    document["sizes"] = {"inputs": n_inputs, "hidden": hidden, "outputs": n_outputs}
    columns = document["data"]
    columns["inputs"]["x"] = [INPUTS[k % len(INPUTS)] for k in range(n_inputs)]
    columns["targets"]["y"] = [TARGETS[k % len(TARGETS)] for k in range(n_outputs)]
    problem = build_function(document, file)
    table = antenna(n_rows, seed=0).T
    inputs = np.array([table[k % len(INPUTS)] for k in range(n_inputs)])
    targets = np.array([table[len(INPUTS) + k % len(TARGETS)] for k in range(n_outputs)])
    data = Data({"x": inputs}, {"y": targets}, {"y": np.ptp(targets, axis=1)})
    return FunctionProblem(problem.model, data)


def on_device(
    problem: FunctionProblem,
    particles: int,
    iterations: int,
    seed: int = 0,
    exchange: int = EXCHANGE,
    **weights: float,
) -> tuple[float, float]:
    """Seconds of a swarm by the device's clock, and its lowest cost."""
    scorer = FunctionCuda(problem, DTYPE)
    LocalGroups(scorer, particles, seed, GROUP, exchange, **weights).fly(2)  # to warm up
    swarm = LocalGroups(scorer, particles, seed, GROUP, exchange, **weights)
    cp = gpu.cupy()
    start, end = cp.cuda.Event(), cp.cuda.Event()
    start.record()
    swarm.fly(iterations)
    end.record()
    end.synchronize()
    return cp.cuda.get_elapsed_time(start, end) / 1e3, float(swarm.costs.min())


def on_one_core(
    problem: FunctionProblem, particles: int, iterations: int, sizes: Sizes
) -> tuple[float, str]:
    """Seconds of the same on one core, and how much of it was timed."""
    n_rows = problem.data.n_rows if problem.data is not None else 1
    work = particles * n_rows * len(problem.model.parameters)
    timed = int(min(iterations, max(2, sizes.work_on_a_core / work)))
    swarm = OneCore(problem, DTYPE, particles, 0, GROUP, EXCHANGE)
    swarm.fly(1)  # compiles
    start = time.perf_counter()
    swarm.fly(timed)
    seconds = (time.perf_counter() - start) * iterations / timed
    return seconds, f"against one core, timed over {timed:,} iterations"


def beside_a_core(
    name: str, problem: FunctionProblem, particles: int, iterations: int, sizes: Sizes, note: str
) -> tuple[Row, float]:
    """Seconds on the GPU, against those on a core (ratio: core over GPU); and the final cost."""
    on_core, timed = on_one_core(problem, particles, iterations, sizes)
    seconds, cost = on_device(problem, particles, iterations)
    print(name, flush=True)
    return Row(name, seconds, "s", on_core, on_core / seconds, f"{timed}; {note}"), cost


def table_1(sizes: Sizes) -> list[Row]:
    problem, rows = network((4, 10, 1), 50), []
    for particles, (cpp, opencl) in TABLE_1.items():
        note = f"published {opencl} s, C++ {cpp} s, {cpp / opencl:.3g} times"
        name = f"1: {particles} particles, 50 weights"
        count = min(particles, sizes.particles)
        rows.append(beside_a_core(name, problem, count, sizes.iterations, sizes, note)[0])
    return rows


def table_2(sizes: Sizes) -> list[Row]:
    rows = []
    for layers, (cpp, opencl) in TABLE_2.items():
        problem = network(layers, 50)
        note = f"published {opencl} s, C++ {cpp} s, {cpp / opencl:.3g} times"
        name = f"2: {'-'.join(map(str, layers))}, {len(problem.model.parameters)} weights"
        args = (problem, sizes.particles, sizes.iterations, sizes, note)
        rows.append(beside_a_core(name, *args)[0])
    return rows


def table_3(sizes: Sizes) -> list[Row]:
    problem, rows = network((6, 30, 2), 100), []
    for whose, weights in (("", {}), (", the paper's weights", PAPER)):
        found = {}
        for way, exchange in (("none", 1), ("groups", EXCHANGE)):
            runs = [
                on_device(
                    problem, sizes.particles, min(1000, sizes.iterations), seed, exchange, **weights
                )
                for seed in range(sizes.seeds)
            ]
            found[way] = np.median(np.array(runs), axis=0).tolist()
        (slow, bad), (fast, good) = found["none"], found["groups"]
        errors = [float(np.sqrt(cost)) for cost in (good, bad)]
        (s_none, e_none), (s_groups, e_groups) = TABLE_3["none"], TABLE_3["groups"]
        rows += [
            compared(
                f"3: none led by groups{whose}",
                slow,
                "s",
                fast,
                f"ratio to groups; published {s_none} s and {s_groups} s",
            ),
            compared(
                f"3: training error, groups{whose}",
                errors[0],
                "",
                errors[1],
                f"against none; published {e_groups} and {e_none}",
            ),
        ]
    return rows


def table_4(sizes: Sizes) -> list[Row]:
    rows = []
    for name, published in TABLE_4.items():
        note = f"published {published} s, sizes not given"
        args = (function(name, 30), sizes.particles, sizes.iterations_4, sizes, note)
        rows.append(beside_a_core(f"4: {name}, 30 dimensions", *args)[0])
    return rows


def table_5(sizes: Sizes) -> list[Row]:
    problem = network((6, 30, 2), sizes.rows_5)
    (opencl, error), (cpp, other) = TABLE_5["OpenCL"], TABLE_5["C++"]
    note = f"published {opencl} s, C++ {cpp} s"
    name = f"5: 6-30-2, {sizes.rows_5:,} rows"
    row, cost = beside_a_core(name, problem, sizes.particles, sizes.iterations_5, sizes, note)
    return [
        row,
        Row(
            f"{name}: training error",
            100 * float(np.sqrt(cost)),
            "%",
            note=f"other data; published {error} % and, C++, {other} %",
        ),
    ]


TABLES: dict[int, Any] = {1: table_1, 2: table_2, 3: table_3, 4: table_4, 5: table_5}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tables", type=int, nargs="*", choices=TABLES, default=list(TABLES))
    options = parser.parse_args()
    if options.backend != "cuda":
        raise SystemExit("these tables are of kernels; swarm_figures.py --backend cpu has a core")
    folder = results_folder(options) or RESULTS
    sizes = QUICK if options.quick else Sizes()
    rows = [row for number in options.tables for row in TABLES[number](sizes)]
    finish("swarm_tables", "Li and Liu 2017, tables 1 to 5", rows, device_name(), folder)


if __name__ == "__main__":
    as_script(main)
