"""Measures how fast curves are fitted to many data sets, and how exactly; Kneusel's figures again.

    python benchmarks/curves.py [--parts cpu gpu figures --quick --out FOLDER]

The task is that of Kneusel (2012): images of 11 x 11 pixels with an elliptic Gaussian of six
parameters and Poisson noise. Offsets are 5 to 20 counts, peaks 50 to 300, widths 1 to 2.2 pixels,
centers within 1.5 pixels of the middle, all drawn uniformly. Nobody gets a guess but SciPy and
lmfit: they start from the true parameters, each off by up to 20 %.

* cpu: fits a second on one core, by the time that the core has worked (others may share this
  machine), beside SciPy's least_squares with its Jacobian ("lm", that is MINPACK) and lmfit's in
  the same run, all cores busy at once; and Boltzmann curves of 15 points.
* gpu: a million images from memory of the host to results in memory of the host; the kernels alone;
  the bus; failures, and errors of centers beside the bound of Cramer and Rao. A fit counts as
  failed where it is flagged as failed, or where its deviance is above that of the true parameters.
* figures: the paper's figures 6, 7 and 8: swarms against least squares.

Operations of a descent (a multiply-add is two): at each of 121 pixels 2 for the curve, 5 for its
derivatives, 12 for the gradient and 36 for the Hessian; Poisson's deviance, its slope and its
weight take 24 more, logarithm and quotient each counted as 4.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from report import RESULTS, Row, as_script, compared, finish, missing

from channelfit.curves.cpu import fit_on_cpu, fly_on_cpu
from channelfit.curves.cuda import CudaFits
from channelfit.curves.curve import load_curve
from channelfit.curves.fitting import CurveProblem, DataSets, Fits, Flight
from channelfit.curves.flags import FAILED
from channelfit.results.report.plots import STYLE
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.threads import usable_cores

RANGES = ((5, 20), (50, 300), (1, 2.2), (1, 2.2), (3.5, 6.5), (3.5, 6.5))
SIDE, SEED = 11, 20120812
OPERATIONS_A_PIXEL = 2 + 5 + 12 + 36 + 24
ITERATIONS = (2, 5, 8, 10, 12, 15, 18, 20, 25, 30, 33, 35, 40, 50, 60, 80)


def images(n: int, seed: int = SEED) -> tuple[np.ndarray, np.ndarray]:
    """True parameters (n, 6) and counts (n, 121) uint16."""
    truth = np.empty((n, 6))
    counts = np.empty((n, SIDE * SIDE), np.uint16)
    step = 20_000

    def some(first: int) -> None:
        random = np.random.default_rng([seed, first])
        part = slice(first, min(first + step, n))
        t = truth[part]
        t[:] = [[random.uniform(*ends) for ends in RANGES] for _ in range(len(t))]
        counts[part] = random.poisson(_expected(t))

    with ThreadPoolExecutor(usable_cores()) as threads:
        list(threads.map(some, range(0, n, step)))
    return truth, counts


def _expected(p: np.ndarray) -> np.ndarray:
    """(n, 121) of parameters (n, 6)."""
    axis = np.arange(float(SIDE))
    across = np.exp(-(((axis - p[:, 4:5]) / p[:, 2:3]) ** 2) / 2)
    down = np.exp(-(((axis - p[:, 5:6]) / p[:, 3:4]) ** 2) / 2)
    peak = p[:, 1, None, None] * down[:, :, None] * across[:, None, :]
    return (p[:, 0, None, None] + peak).reshape(len(p), -1)


def _slopes(p: np.ndarray) -> np.ndarray:
    """(n, 6, 121) derivatives of `_expected`, by central differences."""
    out = []
    for k in range(6):
        step = np.zeros(6)
        step[k] = 1e-5
        out.append((_expected(p + step) - _expected(p - step)) / 2e-5)
    return np.stack(out, axis=1)


def bounds_of_cramer_and_rao(p: np.ndarray) -> np.ndarray:
    """(n, 6) the least standard errors that any unbiased estimate from counts can have."""
    j = _slopes(p)
    fisher = np.einsum("nai,nbi->nab", j / _expected(p)[:, None], j)
    return np.sqrt(np.diagonal(np.linalg.inv(fisher), axis1=1, axis2=2))


def deviance(p: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(n,) Poisson's deviance of counts at parameters."""
    f, z = _expected(p), counts.astype(float)
    return 2 * (f - z + z * np.log(np.where(z > 0, z, 1.0) / f)).sum(1)


def problem_of(counts: np.ndarray, likelihood: str = "poisson") -> CurveProblem:
    axis = np.arange(float(SIDE))
    data = DataSets((("x",), ("y",)), {"x": axis, "y": axis}, counts, (SIDE, SIDE))
    return CurveProblem.of(replace(load_curve("gaussian_2d"), likelihood=likelihood), data)


def median_time(work: Callable[[], object], repeats: int) -> float:
    """Seconds of a call, the median, after one to warm up."""
    work()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def core_time(work: Callable[[], object], repeats: int) -> float:
    """Seconds of core time of a call, of all its threads, the median, after one to warm up."""
    work()
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return float(np.median(seconds))


# --- the peers -----------------------------------------------------------------------------------


def _guess(truth: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return truth * random.uniform(0.8, 1.2, truth.shape)


def scipy_fits(truth: np.ndarray, counts: np.ndarray) -> tuple[float, int]:
    """Seconds of a core for all images, and how many fits say of themselves that they are good."""
    from scipy.optimize import least_squares

    random = np.random.default_rng(1)
    starts = _guess(truth, random)
    axis = np.arange(float(SIDE))

    def parts(p: np.ndarray) -> tuple[np.ndarray, ...]:
        u, v = (axis - p[4]) / p[2], (axis - p[5]) / p[3]
        return u, v, np.exp(-u * u / 2), np.exp(-v * v / 2)

    def residuals(p: np.ndarray, z: np.ndarray) -> np.ndarray:
        _, _, across, down = parts(p)
        return (p[0] + p[1] * np.outer(down, across)).ravel() - z

    def jacobian(p: np.ndarray, z: np.ndarray) -> np.ndarray:
        u, v, across, down = parts(p)
        peak = np.outer(down, across)
        high = p[1] * peak
        columns = (
            np.ones_like(peak), peak, high * u * u / p[2], high * (v * v)[:, None] / p[3],
            high * u / p[2], high * v[:, None] / p[3],
        )  # fmt: skip
        return np.stack([c.ravel() for c in columns], axis=1)

    began, good = time.process_time(), 0
    for start, z in zip(starts, counts.astype(float), strict=True):
        good += least_squares(residuals, start, jacobian, method="lm", args=(z,)).success
    return time.process_time() - began, good


def lmfit_fits(truth: np.ndarray, counts: np.ndarray) -> tuple[float, int]:
    """The same by lmfit's minimize, with its default method and no Jacobian."""
    import lmfit

    random = np.random.default_rng(1)
    starts = _guess(truth, random)
    axis = np.arange(float(SIDE))
    names = [p.name for p in load_curve("gaussian_2d").parameters]

    def residuals(given: Any, z: np.ndarray) -> np.ndarray:
        p = [given[name].value for name in names]
        across = np.exp(-(((axis - p[4]) / p[2]) ** 2) / 2)
        down = np.exp(-(((axis - p[5]) / p[3]) ** 2) / 2)
        return np.asarray((p[0] + p[1] * np.outer(down, across)).ravel() - z)

    began, good = time.process_time(), 0
    for start, z in zip(starts, counts.astype(float), strict=True):
        parameters = lmfit.Parameters()
        for name, value in zip(names, start.tolist(), strict=True):
            parameters.add(name, value=value)
        good += lmfit.minimize(residuals, parameters, args=(z,)).success
    return time.process_time() - began, good


def on_every_core(work: Callable[..., tuple[float, int]], n: int) -> float:
    """Fits a second of core time of a peer, one process a core, n images each."""
    truth, counts = images(n)
    cores = usable_cores()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, mp_context=context) as processes:
        asked = [processes.submit(work, truth, counts) for _ in range(cores)]
        return float(np.mean([n / one.result()[0] for one in asked]))


# --- parts ---------------------------------------------------------------------------------------


def cpu_part(quick: bool) -> list[Row]:
    """Fits a second of core time, all cores of this machine busy."""
    n, few = (20_000, 200) if quick else (200_000, 1500)
    truth, counts = images(n)
    rows: list[Row] = []
    rates = {}
    for likelihood in ("gaussian", "poisson"):
        problem = problem_of(counts, likelihood)
        seconds = core_time(lambda problem=problem: fit_on_cpu(problem, 0, n), 3)  # type: ignore[misc]
        rates[likelihood] = n / seconds
    peers = {"scipy least_squares": scipy_fits}
    try:
        import lmfit  # noqa: F401 - a peer that need not be there

        peers["lmfit"] = lmfit_fits
    except ModuleNotFoundError:
        rows.append(missing("lmfit", "fits/s a core", "lmfit is not installed"))
    cores = f"{usable_cores()} cores busy"
    for name, work in peers.items():
        rate = on_every_core(work, few)
        rows.append(Row(f"{name}, from guesses", rate, "fits/s a core", note=cores))
        rows.append(
            compared(
                "ours, least squares",
                rates["gaussian"],
                "fits/s a core",
                rate,
                f"{cores}, no guess",
            )
        )
    rows.append(Row("ours, Poisson's likelihood", rates["poisson"], "fits/s a core", note=cores))
    found = fit_on_cpu(problem_of(counts), 0, n)
    rows += quality(found, truth, counts)
    v = np.arange(-100.0, 41.0, 10.0)
    curve = load_curve("boltzmann")
    z = curve.values({"v": v}, np.array([-32.0, 7.0, 0.05, 0.9]))
    z = z + np.random.default_rng(SEED).normal(0, 0.02, (n, 15))
    problem = CurveProblem.of(curve, DataSets((("v",),), {"v": v}, z, (15,)))
    seconds = core_time(lambda: fit_on_cpu(problem, 0, n), 3)
    rows.append(Row("ours, Boltzmann, 15 points", n / seconds, "fits/s a core", note=cores))
    flight = Flight(256, 30, 1)
    seconds = core_time(lambda: fly_on_cpu(problem_of(counts, "gaussian"), 0, 200, flight), 1)
    rows.append(
        Row("swarms, 256 particles, 30 iterations", 200 / seconds, "fits/s a core", note=cores)
    )
    return rows


def quality(found: Fits, truth: np.ndarray, counts: np.ndarray) -> list[Row]:
    """Failures, and errors of centers beside the bound."""
    n, step = len(truth), 50_000
    worse, squares, inside = 0, np.zeros(6), np.zeros(6)
    flagged = int((found.flags & FAILED != 0).sum())
    asked = int(((found.flags & FAILED == 0) & (found.flags != 0)).sum())
    good = 0
    for first in range(0, n, step):
        part = slice(first, first + step)
        fine = found.flags[part] & FAILED == 0
        known = deviance(truth[part], counts[part])
        worse += int((fine & (found.cost[part] > known * (1 + 1e-5))).sum())
        off = (found.values[part] - truth[part])[fine]
        squares += ((off / bounds_of_cramer_and_rao(truth[part][fine])) ** 2).sum(0)
        inside += (np.abs(off) < 1.959964 * found.errors[part][fine]).sum(0)
        good += int(fine.sum())
    share = np.sqrt(squares / good)
    coverage = inside / good
    return [
        Row(
            "failures",
            100 * (flagged + worse) / n,
            "%",
            note=f"{flagged} told, {worse} not, of {n:,}",
        ),
        Row("asked to be checked", 100 * asked / n, "%", note=f"{asked} of {n:,}"),
        Row("error of center x / bound", float(share[4]), "", note="root mean square"),
        Row("error of center y / bound", float(share[5]), "", note="root mean square"),
        Row("largest of all six / bound", float(share.max()), "", note="root mean square"),
        Row("95 % intervals hold the truth, centers", 100 * float(coverage[4:].mean()), "%"),
    ]


def gpu_part(quick: bool) -> list[Row]:
    """A million images on one GPU."""
    n = 100_000 if quick else 1_000_000
    cp = gpu.cupy()
    truth, counts = images(n)
    rows: list[Row] = []
    host = cp.cuda.alloc_pinned_memory(64 << 20)
    device = cp.empty(64 << 20, np.uint8)
    view = np.frombuffer(host, np.uint8, 64 << 20)
    stream = cp.cuda.Stream(non_blocking=True)

    def sent() -> None:
        device.set(view, stream=stream)
        stream.synchronize()

    bus = (64 << 20) / median_time(sent, 10)
    rows.append(Row("bus, to the GPU", bus / 1e9, "GB/s", note="pinned, 64 MiB"))
    for dtype, likelihood, kind in (
        ("float32", "poisson", np.uint16),
        ("float64", "poisson", np.uint16),
        ("float32", "poisson", np.float32),
        ("float32", "gaussian", np.uint16),
    ):
        data = counts.astype(kind)
        problem = problem_of(data, likelihood)
        fits = CudaFits(problem, dtype)
        found: list[Fits] = []
        seconds = median_time(lambda: found.append(fits.fit(0, n)), 5)  # noqa: B023
        name = f"{likelihood}, {dtype}, {np.dtype(kind).name} data"
        floor = data.nbytes / bus
        note = f"{seconds * 1e3:.1f} ms; {data.nbytes / 1e6:.0f} MB alone take {floor * 1e3:.1f} ms"
        rows.append(Row(name, n / seconds / 1e6, "M fits/s", note=note))
        lane = fits._lanes[0]
        each = min(lane.size, n)
        with lane.stream:
            alone = gpu.timed(lambda: fits.launch(lane, 0, each))  # noqa: B023
        steps = float(found[-1].steps.mean())
        work = each * (1 + steps) * SIDE * SIDE * OPERATIONS_A_PIXEL
        scan = 2 * problem.scan.rows.size * each
        note = f"{steps:.1f} steps; {(work + scan) / alone / 1e12:.1f} T operations/s"
        rows.append(Row(f"{name}, kernels alone", each / alone / 1e6, "M fits/s", note=note))
        if likelihood == "poisson" and kind is np.uint16:
            rows += [
                replace(r, name=f"{dtype}: {r.name}") for r in quality(found[-1], truth, counts)
            ]
    for iterations in (25, 30):
        fits = CudaFits(
            problem_of(counts, "gaussian"), "float32", flight=Flight(256, iterations, 1)
        )
        few = n // 10
        seconds = median_time(lambda: fits.fit(0, few), 2)  # noqa: B023
        rows.append(
            Row(f"swarms, 256 particles, {iterations} iterations", few / seconds / 1e6, "M fits/s")
        )
    return rows


def figures_part(quick: bool) -> dict[str, Any]:
    """Return the numbers of figures 6, 7 and 8."""
    on_gpu = gpu.is_available()
    n = 50_000 if on_gpu and not quick else 200
    _, counts = images(n)
    problem = problem_of(counts, "gaussian")
    squares = fit_on_cpu(problem, 0, n, n_threads=None)

    def flown(problem: CurveProblem, n: int, iterations: int, seed: int = 1) -> Fits:
        flight = Flight(256, iterations, seed)
        if on_gpu:
            return CudaFits(problem, "float32", flight=flight).fit(0, n)
        return fly_on_cpu(problem, 0, n, flight)

    series: dict[str, Any] = {"images": n, "iterations": list(ITERATIONS)}
    series["parameters"] = [
        float(np.nanmedian(np.linalg.norm(flown(problem, n, k).values - squares.values, axis=1)))
        for k in ITERATIONS
    ]
    # figure 8: the same image each time, another draw
    again = 1000 if on_gpu and not quick else 50
    one = problem_of(np.repeat(counts[:1], again, axis=0), "gaussian")
    errors = squares.errors[0]
    series["uncertainties"] = []
    for k in ITERATIONS:
        spread = flown(one, again, k).spread
        assert spread is not None
        series["uncertainties"].append(float(np.nanmedian(np.linalg.norm(spread - errors, axis=1))))
    sizes = [100, 1000, 10_000, 100_000, 1_000_000] if on_gpu and not quick else [50, 200]
    series["sizes"], series["seconds"] = sizes, {}
    seconds = series["seconds"]
    _, many = images(sizes[-1])
    whole, poisson = problem_of(many, "gaussian"), problem_of(many)
    if on_gpu:
        swarms, fits = (
            CudaFits(whole, "float32", flight=Flight(256, 25, 1)),
            CudaFits(poisson, "float32"),
        )
        seconds["swarms, GPU"] = [
            median_time(lambda k=k: swarms.fit(0, k), 1)
            for k in sizes[:-1]  # type: ignore[misc]
        ]
        seconds["least squares, GPU"] = [
            median_time(lambda k=k: fits.fit(0, k), 2)
            for k in sizes  # type: ignore[misc]
        ]
    few = [k for k in sizes if k <= 200]
    seconds["swarms, processor"] = [
        median_time(lambda k=k: fly_on_cpu(whole, 0, k, Flight(256, 25, 1)), 1)  # type: ignore[misc]
        for k in few
    ]
    seconds["least squares, processor"] = [
        median_time(lambda k=k: fit_on_cpu(poisson, 0, k), 1)
        for k in sizes  # type: ignore[misc]
    ]
    return series


def draw(series: dict[str, Any], folder: Path) -> None:
    """The three figures beside each other, as curves.png."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.4, 3.4), dpi=160, layout="constrained")
        FigureCanvasAgg(figure)
        six, seven, eight = figure.subplots(1, 3)
        iterations = series["iterations"]
        six.semilogy(iterations, series["parameters"], "o-", color="#0072b2", ms=3)
        six.axvspan(25, 30, color="#e8f1f8", zorder=0)
        six.set(xlabel="iterations of a swarm", ylabel="median distance of parameters")
        six.set_title(f"figure 6: {series['images']:,} images", fontsize=9)
        looks = {"swarms, GPU": "o-", "least squares, GPU": "s-", "swarms, processor": "o--"}
        for (name, seconds), color in zip(
            series["seconds"].items(), ("#d55e00", "#0072b2", "#e69f00", "#56b4e9"), strict=False
        ):
            sizes = series["sizes"][: len(seconds)]
            seven.loglog(sizes, seconds, looks.get(name, "s--"), color=color, label=name, ms=3)
        seven.set(xlabel="images", ylabel="time (s)")
        seven.set_title("figure 7: swarms of 25 iterations", fontsize=9)
        seven.legend(fontsize=7)
        eight.semilogy(iterations, series["uncertainties"], "o-", color="#009e73", ms=3)
        eight.set(xlabel="iterations of a swarm", ylabel="median distance of uncertainties")
        eight.set_title("figure 8: one image, again and again", fontsize=9)
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / "curves.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument(
        "--parts", nargs="+", default=["cpu", "figures"], choices=["cpu", "gpu", "figures"]
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    device = gpu.device().name if gpu.is_available() else ""
    parts: dict[str, Callable[[bool], list[Row]]] = {"cpu": cpu_part, "gpu": gpu_part}
    for part in given.parts:
        if part in parts:
            rows = parts[part](given.quick)
            title = f"curves, {part}"
            finish(f"curves_{part}", title, rows, device if part == "gpu" else "", given.out)
        else:
            series = figures_part(given.quick)
            finish("curves_figures", "curves, figures", [], device, given.out, series, shown=False)
            draw(series, given.out)


if __name__ == "__main__":
    as_script(main)
