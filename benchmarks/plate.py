"""Measures how fast a plate of recordings is fitted, how well, and how sure its intervals are.

    python benchmarks/plate.py [--backend cpu --wells 384 --sizes 1 8 64 384 --alone 3 --out DIR]

Wells are simulated: the five states of `models/herg_markov.yaml` and a leak, under the staircase of
15.4 s at 0.2 ms (77,000 samples). Every well has kinetics of its own (each parameter is off by a
factor of exp(0.05 x), x normal), a conductance from 15 to 150 nS, a leak of 0.3 to 4 nS that
reverses between -25 and 5 mV, and white noise of 5 to 30 pA. All 17 parameters are fitted.

* seconds: of all wells with intervals, by the clock and of the processor (others may share this
  machine), and of some wells more and fewer, as figure plate_cpu.png or plate_cuda.png.
* worst: the cost of each well against the best known, that of a descent from the true parameters
  where that is lower.
* coverage: how many of all 95 % intervals hold the true value.
* alone: the same recordings by the best that there is without this, in the same run, by the
  processor's time for a well on one core: a loop of our own fits, and SciPy's least_squares ("trf",
  bounds) three times. First with our compressed residuals and exact derivatives; it begins where
  our scan says, which it gets for nothing, and stops when two of its starts agree. Then with a
  model that Numba compiled (`plate_numba.py`), from random starts until two agree, and from the
  published values alone, near which these wells lie.

    python benchmarks/plate.py --ramps [FIT --set KEY=VALUE ...]

measures instead what pieces of ramps gain for one recording on a GPU, the first well or that of a
fit file: linearizations and previews of a few candidates and of many, and a whole search. `against`
is the same from step to step, in the same run; notes say how far apart the results are, in shares
of the largest.

What a well takes, in operations: a linearization of 17 parameters is some 5 million (propagators of
29 voltages and their derivatives, two ramps in 42 pieces of 60 equations each, 1,700 residuals with
18 columns). A descent takes some 50 from a point of the scan and 8 from another well's solution; a
well takes some 14 in all.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from plate_numba import MEAN, Model
from report import RESULTS, Row, as_script, compared, finish
from scipy.optimize import least_squares

from channelfit.batch import search
from channelfit.batch.costs import WellCosts
from channelfit.batch.fits import SearchSettings, WellFits, fit_wells
from channelfit.batch.make_scorers import well_scorers
from channelfit.front.kinds import load_plan
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.recording import Recording
from channelfit.reading.documents import dump_yaml, read_yaml
from channelfit.results.report.plots import STYLE
from channelfit.scoring.cpu_tangents import Linearizer
from channelfit.scoring.cuda import CudaScorer
from channelfit.scoring.cuda_variants import Variants
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.threads import single_threaded_blas
from channelfit.scoring.scorer import Scorer, make_scorer
from channelfit.search.agreement import SAME
from channelfit.search.hybrid import Hybrid
from channelfit.search.least_squares import begin
from channelfit.search.loop import optimize
from channelfit.search.plan import FitPlan

ROOT = Path(__file__).parent.parent
SEED = 17
#: Wells that are simulated at once.
AT_ONCE = 128
LEAK = {
    "g_leak": {"range": [0, 20], "unit": "nS", "value": 2.0},
    "e_leak": {"range": [-60, 60], "unit": "mV", "value": -10},
}


def planned(sampling_ms: float = 0.2) -> FitPlan:
    """The plan of the five states with a leak, under the staircase."""
    document = read_yaml(ROOT / "models" / "herg_markov.yaml")
    document["leak"] = {"conductance": "g_leak", "reversal": "e_leak"}
    document["parameters"] |= LEAK
    document["fit"] = {"protocols": [str(ROOT / "protocols" / "staircase.yaml")], "surrogate": {}}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plate.yaml"
        file.write_text(dump_yaml(document), encoding="utf-8")
        plan = load_plan(file, backend="cpu")
    protocol = replace(plan.problem.experiments[0].protocol, sampling_ms=sampling_ms)
    problem = Problem(plan.problem.model, (Experiment(protocol),))
    return replace(plan, problem=problem, surrogate=False)


class Plate:
    """Simulated wells; a well is the same on every plate, however many there are.

    Attributes:
        truth: (n_parameters, n_wells); noise: (n_wells,) pA.
        wells: the problem of each. All of them share a mask.
    """

    def __init__(self, plan: FitPlan, n_wells: int, seed: int = SEED) -> None:
        random = np.random.default_rng(seed)
        names = [p.name for p in plan.problem.parameters]
        draws = random.standard_normal((n_wells, len(names))).T
        own = np.random.default_rng(seed + 1).random((n_wells, 4)).T
        self.truth = plan.problem.values()[:, None] * np.exp(0.05 * draws)
        self.truth[names.index("gmax")] = 15 * 10 ** own[0]
        self.truth[names.index("g_leak")] = 0.3 + 3.7 * own[1]
        self.truth[names.index("e_leak")] = -25 + 30 * own[2]
        self.noise = 5 + 25 * own[3]
        (self._experiment,) = plan.problem.experiments
        self._scorer: Scorer = make_scorer(plan.problem, "cpu")
        self._problem, self._seed = plan.problem, seed
        protocol = self._experiment.protocol
        self._weight = np.ones((protocol.n_sweeps, protocol.n_times_max))
        self.wells: list[Problem] = []
        with ThreadPoolExecutor() as threads:
            for first in range(0, n_wells, AT_ONCE):
                some = range(first, min(first + AT_ONCE, n_wells))
                traces = self._scorer.simulate(np.ascontiguousarray(self.truth[:, some]))[0]
                currents = np.ascontiguousarray(np.moveaxis(traces, -1, 0))
                self.wells += threads.map(self._recorded, some, currents)

    def _recorded(self, well: int, current: np.ndarray) -> Problem:
        random = np.random.default_rng([self._seed, well])
        data = current + self.noise[well] * random.standard_normal(current.shape)
        recording = Recording(self._experiment.protocol.times_ms, data, self._weight)
        experiment = replace(self._experiment, recording=recording)
        return replace(self._problem, experiments=(experiment,))


@dataclass(frozen=True)
class Taken:
    """Seconds by the clock and of the processor."""

    clock: float
    processor: float


def timed(do: Callable[[], Any]) -> tuple[Any, Taken]:
    """Return the result of a function, and the seconds that it took."""
    clock, processor = time.perf_counter(), time.process_time()
    found = do()
    return found, Taken(time.perf_counter() - clock, time.process_time() - processor)


def kernel_rows(plan: FitPlan, problems: Sequence[Problem]) -> list[Row]:
    """A linearization of one candidate and of many by the GPU."""
    ((_, scorer),) = well_scorers(problems[:1], "cuda")
    rows = []
    for n in (1, 384, 3072):
        random = np.random.default_rng(n)
        spread = np.exp(0.1 * random.standard_normal((len(plan.problem.parameters), n)))
        parameters, well = plan.problem.values()[:, None] * spread, np.zeros(n, np.int64)
        seconds = gpu.timed(lambda p=parameters, w=well: scorer.linearize(p, w), 10)
        note = f"{1e6 * seconds / n:.1f} us each, results on the host"
        rows.append(Row(f"linearization of {n} candidates", 1e3 * seconds, "ms", note=note))
    return rows


def ramp_rows(plan: FitPlan) -> list[Row]:
    """Linearizations, previews and the search of one recording, ramps in pieces against steps."""
    problem, rows = plan.problem.groups[0].problem, []
    pieces, steps = CudaScorer(problem), CudaScorer(problem)
    steps._variants = Variants(problem, grades=(None,))
    for n in (1, 16, 64, 1024, 4096):
        random = np.random.default_rng(n)
        spread = np.exp(0.1 * random.standard_normal((len(plan.problem.parameters), n)))
        parameters = plan.problem.values()[:, None] * spread
        ours, theirs = (vars(scorer.linearize(parameters)) for scorer in (pieces, steps))
        apart = [
            f"{np.abs(ours[key] - theirs[key]).max() / np.abs(theirs[key]).max():.1e} in {key}"
            for key in ("cost", "gradient", "hessian")
        ]
        again = np.abs(pieces.preview(parameters).cost / ours["cost"] - 1).max()
        notes = {"linearize": ", ".join(apart), "preview": f"{again:.1e} off linearize"}
        for name, note in notes.items():
            both = [
                1e3 * gpu.timed(partial(getattr(scorer, name), parameters), 10)
                for scorer in (pieces, steps)
            ]
            rows.append(compared(f"{name} {n}", both[0], "ms", both[1], note))
    costs, seconds = [], []
    for scorer in (pieces, steps):
        search_of = Hybrid(plan.space.n_free, SEED), plan.objective(scorer), plan.stop_rules
        found, taken = timed(partial(optimize, *search_of, lambda _: None))
        costs.append(float(scorer.rescore(found.values[:, None]).cost[0]))
        seconds.append(taken.clock)
    note = f"costs {costs[0]:.8g} and {costs[1]:.8g} pA^2"
    return [*rows, compared("search", seconds[0], "s", seconds[1], note)]


def best_known(
    plan: FitPlan, problems: Sequence[Problem], plate: Plate, fits: WellFits
) -> np.ndarray:
    """The lowest cost (n_wells,) of the fits and of descents from the true parameters."""
    best = fits.cost.copy()
    for own, scorer in well_scorers(problems, "cpu"):
        wells = WellCosts(plan, scorer)
        unit = wells.space.to_unit(np.ascontiguousarray(plate.truth[:, own]))
        everything = np.arange(len(own))
        starts, unknown = begin(wells, unit, everything), np.full(len(own), np.inf)
        ends = search.descend(wells, starts, everything, unknown, 1e-11)
        best[own] = np.minimum(best[own], ends.cost)
    return best


def quality_rows(fits: WellFits, best: np.ndarray, truth: np.ndarray) -> list[Row]:
    """Costs against the best known, and how many intervals hold the truth."""
    inside = (fits.lower <= truth) & (truth <= fits.upper)
    rated = np.isfinite(fits.lower)
    share = 100 * inside[rated].mean()
    by_name = [100 * inside[rated[:, k], k].mean() for k in range(len(fits.names))]
    worst = fits.cost / best - 1
    counts = {name: int((fits.quality == name).sum()) for name in ("ok", "check", "failed")}
    note = ", ".join(f"{n} {name}" for name, n in counts.items())
    least, most = int(np.argmin(by_name)), int(np.argmax(by_name))
    spread = (
        f"{fits.names[least]} {by_name[least]:.1f} % to {fits.names[most]} {by_name[most]:.1f} %; "
        f"{int((~rated).sum())} at a bound"
    )
    error = 100 * np.sqrt(0.05 * 0.95 / len(fits))
    return [
        Row("cost above the best known, worst well", 100 * float(worst.max()), "%", note=note),
        Row("wells more than 1 % above it", float((worst > 0.01).sum()), "wells"),
        Row("95 % intervals that hold the truth", share, "%", note=spread),
        Row("standard error of one parameter's share", error, "%"),
    ]


def single_fits(plan: FitPlan, problems: Sequence[Problem]) -> tuple[Taken, np.ndarray]:
    """A loop of our own fits, each with its own scorer."""

    def loop() -> np.ndarray:
        costs = []
        for problem in problems:
            own = replace(plan, problem=problem)
            scorer = make_scorer(problem, "cpu")
            hybrid = Hybrid(own.space.n_free, SEED)
            found = optimize(hybrid, own.objective(scorer), own.stop_rules, lambda _: None)
            costs.append(float(scorer.rescore(found.values[:, None]).cost[0]))
        return np.array(costs)

    costs, taken = timed(loop)
    return taken, costs


#: Residuals and their derivatives by unit coordinates, at a point of the unit cube.
Both = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def least_squares_until(
    both: Both,
    starts: Iterable[np.ndarray],
    outside: float,
    n_agree: int,
    ended: list[np.ndarray],
) -> None:
    """SciPy's least squares from starts until some agree; appends the best end.

    Arguments:
        outside: squares that are no residuals, in their units.
    """
    costs: list[float] = []
    ends: list[np.ndarray] = []
    known: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}

    def part(x: np.ndarray, which: int) -> np.ndarray:
        key = x.tobytes()
        if key not in known:
            known.clear()
            known[key] = both(x)
        return known[key][which]

    for start in starts:
        found = least_squares(
            partial(part, which=0),
            np.clip(start, 1e-6, 1 - 1e-6),
            partial(part, which=1),
            bounds=(0, 1),
            x_scale="jac",
            ftol=1e-8,
            xtol=1e-8,
            gtol=1e-10,
            max_nfev=150,
        )
        ends.append(found.x)
        costs.append(2 * found.cost + outside)
        if sum(one <= min(costs) * (1 + SAME) for one in costs) >= n_agree:
            break
    ended.append(ends[int(np.argmin(costs))])


def by_scipy(plan: FitPlan, problems: Sequence[Problem]) -> tuple[Taken, np.ndarray]:
    """SciPy's least squares with our Jacobian from the starts of our scan, until two agree."""
    ((_, scorer),) = well_scorers(problems, "cpu")
    wells = WellCosts(plan, scorer)
    _, scan = search._scans(wells, SearchSettings())
    starts = [
        [scan.points(np.array([w]), k)[0][:, 0] for k in range(10)] for w in range(len(problems))
    ]
    linearizers = [Linearizer(problem) for problem in problems]
    plans = [next(iter(one.plans())) for one in linearizers]
    ends: list[np.ndarray] = []

    def both(w: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        physical = wells.space.to_physical(x[:, None])
        ((_, shown),) = linearizers[w].predicted(physical)
        residuals = shown[:, 0] - plans[w].scale * plans[w].target
        return residuals, shown[:, 1:] * wells.space.slope(physical)[:, 0]

    def loop() -> None:
        for w, own in enumerate(plans):
            least_squares_until(partial(both, w), starts[w], own.constant, 2, ends)

    return _of_ends(loop, ends, wells)


def by_numba(
    informed: bool, plan: FitPlan, problems: Sequence[Problem]
) -> tuple[Taken, np.ndarray]:
    """The same with a model that Numba compiled, from the published values or random starts."""
    ((_, scorer),) = well_scorers(problems, "cpu")
    wells = WellCosts(plan, scorer)
    published = wells.space.to_unit(plan.problem.values()[:, None]).T
    models = [Model(problem, wells.space.to_physical) for problem in problems]
    models[0].both(published[0])  # compiles
    ends: list[np.ndarray] = []

    def loop() -> None:
        for w, own in enumerate(models):
            starts = np.random.default_rng(w).random((50, wells.space.n_free))
            some, n = (published, 1) if informed else (starts, 2)
            least_squares_until(own.both, some, own.constant / MEAN, n, ends)

    return _of_ends(loop, ends, wells)


def _of_ends(
    loop: Callable[[], None], ends: list[np.ndarray], wells: WellCosts
) -> tuple[Taken, np.ndarray]:
    """Seconds of a loop, and the costs of the ends that it appends for each well."""
    with single_threaded_blas():
        _, taken = timed(loop)
    return taken, wells.linearize(np.stack(ends, axis=1), np.arange(len(ends))).cost


#: The opponents, and how many wells they fit at most.
OPPONENTS = {
    "our fits in a loop": (single_fits, 3),
    "SciPy, our Jacobian and starts": (by_scipy, 99),
    "SciPy and Numba, random starts": (partial(by_numba, False), 99),
    "SciPy and Numba, one informed start": (partial(by_numba, True), 99),
}


def alone_rows(
    plan: FitPlan, problems: Sequence[Problem], ours: float, best: np.ndarray
) -> list[Row]:
    """The opponents on a few wells, against our processor's seconds for a well."""
    rows = []
    for name, (way, most) in OPPONENTS.items():
        n = min(most, len(problems))
        taken, costs = way(plan, problems[:n])
        above = 100 * float((costs / best[:n] - 1).max())
        note = f"{n} wells, worst {above:.2g} % above the best known; against ours"
        rows.append(compared(f"{name}: processor, a well", taken.processor / n, "s", ours, note))
    return rows


def draw(series: dict[str, Any], file: Path) -> None:
    """Seconds against wells, as a picture."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 3.8), dpi=160, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        wells = np.array(series["wells"])
        axes.loglog(
            wells, series["clock"], "o-", color="#0072b2", ms=4, label="together, by the clock"
        )
        axes.loglog(
            wells, series["processor"], "s--", color="#56b4e9", ms=4, label="together, processor"
        )
        for (name, each), color in zip(
            series["alone"].items(), ("#d55e00", "#e69f00", "#009e73", "#cc79a7"), strict=False
        ):
            axes.loglog(wells, each * wells, ":", color=color, label=f"{name}, processor")
        axes.set(xlabel="wells", ylabel="time (s)")
        figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=7)
        axes.grid(visible=True, which="major", alpha=0.25)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--wells", type=int, default=384)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1, 4, 16, 64, 384])
    parser.add_argument("--alone", type=int, default=3, help="wells that the opponents fit")
    parser.add_argument("--sampling", type=float, default=0.2, help="ms between samples")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--ramps", nargs="?", const="", help="one recording: of a fit file")
    parser.add_argument("--set", action="append", default=[], help="of that file, KEY=VALUE")
    options = parser.parse_args()
    if options.ramps:
        plan = load_plan(Path(options.ramps), options.set, backend="cpu")
    else:
        plan = planned(options.sampling)
    if options.ramps is not None:
        plan = plan if options.ramps else replace(plan, problem=Plate(plan, 1).wells[0])
        rows = ramp_rows(plan)
        title = "one recording, ramps in pieces against steps"
        finish("plate_ramps", title, rows, gpu.device().name, options.out)
        return
    settings = SearchSettings(seed=SEED, backend=options.backend)
    plate = Plate(plan, max(options.wells, *options.sizes, 1))
    problems = plate.wells[: options.wells]
    plan = replace(plan, problem=problems[0])
    fit_wells(plan, [problems[0]], settings)  # compiles
    series: dict[str, Any] = {"wells": [], "clock": [], "processor": [], "alone": {}}
    fits: WellFits | None = None
    of_all = Taken(0.0, 0.0)
    for n in sorted({*options.sizes, options.wells}):
        many = plate.wells[:n]
        found, taken = timed(lambda many=many: fit_wells(plan, many, settings))
        series["wells"].append(n)
        series["clock"].append(taken.clock)
        series["processor"].append(taken.processor)
        print(f"{n} wells: {taken.clock:.1f} s, processor {taken.processor:.1f} s", flush=True)
        if n == options.wells:
            fits, of_all = found, taken
    assert fits is not None
    n = options.wells
    each = of_all.processor / n
    descents = f"{fits.starts.mean():.2f} descents a well, of which {fits.agreed.mean():.2f} agree"
    rows = [
        Row(f"{n} wells with intervals", of_all.clock, "s", note=descents),
        Row(f"{n} wells, processor", of_all.processor, "s", note=f"{1e3 * each:.0f} ms a well"),
    ]
    best = best_known(plan, problems, plate, fits)
    rows += quality_rows(fits, best, plate.truth.T[:n])
    if options.backend == "cuda":
        rows += kernel_rows(plan, problems)
    if options.alone:
        others = alone_rows(plan, [problems[w] for w in range(options.alone)], each, best)
        series["alone"] = {row.name.partition(":")[0]: row.value for row in others}
        rows += others
    title = f"a plate of {n} wells, {options.backend}"
    device = gpu.device().name if options.backend == "cuda" else ""
    name = f"plate_{options.backend}"
    finish(name, title, rows, device, options.out, series=series)
    draw(series, options.out / f"{name}.png")


if __name__ == "__main__":
    as_script(main)
