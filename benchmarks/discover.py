"""Measures how often `channelfit discover` finds the scheme that made the data, and how fast it is.

    python benchmarks/discover.py [--cases 20] [--only 4 7 9] [--jobs N] [--states 3 5] [--cycles N]
        [--keep 10] [--backend cuda]
    python benchmarks/discover.py --speed 7 [--share 24] [--backend cuda] [--jobs N]
    python benchmarks/discover.py --whole 6 [--backend cuda] [--jobs N]

For each case a scheme is drawn from all of so many states, and its rates anew until the data
determine every parameter (`channelfit uncertainty` would name none that is not). The data are the
staircase of protocols/staircase.yaml and the steps of protocols/herg_activation.yaml, sampled every
2 ms, with white noise of 2 % of the largest current. Then all schemes from two states up to the
largest number are fitted, and it is asked where the true one stands: first, within 6 of the best by
BIC, or equivalent to one that is (each fits the currents of the other to 1e-4). Beside that, the
true scheme is refined from its true values: where it stands higher than these would put it, the
search missed its minimum; where it does not, the data themselves prefer another.

--jobs computes so many cases at a time, each in a process of its own with its share of the cores. A
case is the same beside others as alone, but for its seconds: those of the processor, or of the
clock with --backend cuda, where all jobs share the GPU. Each is written when it ends; --only
computes some of them, and joins them with those that the file has, so that what a run that was cut
off has left out can be added.

--speed scans a share of the schemes of so many states with a cycle, drawn at random, as one level
and without their parents: what a scheme takes, all rounds together, and what all would take at that
pace. By one process without a GPU, seconds are those of the processor, on all its cores, so that
what else runs counts little, and all schemes are extrapolated to two cores. Else seconds are those
of the clock. With several jobs these are processes as those of --cluster local:N; the clock runs
from when all are there, and so includes what each of them loads and compiles.

--whole fits all schemes with one open state, from two states up to so many, as `channelfit
discover` does, full fits and comparisons among them, by the clock.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from report import RESULTS, Row, as_script, finish

from channelfit.discovery.models import SchemeModels, unit_of
from channelfit.discovery.results import EQUIVALENT, Found, found_by
from channelfit.discovery.run import ready
from channelfit.discovery.schemes import Scheme, Space
from channelfit.discovery.search import Discovery
from channelfit.discovery.tasks import SchemeFit, SchemeTasks
from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem, n_scored
from channelfit.problem.protocol import build_protocol
from channelfit.reading.documents import Section, read_yaml
from channelfit.reading.errors import InputError
from channelfit.results.comparison import NEAR_BIC, criteria
from channelfit.results.uncertainty.estimate import estimate, undetermined
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.threads import keep_to, usable_cores
from channelfit.scoring.scorer import make_scorer
from channelfit.search.least_squares import refine
from channelfit.search.plan import FitPlan, simulate_surrogate
from channelfit.tasks.cluster import open_cluster
from channelfit.tasks.executor import Executor
from channelfit.tasks.result_store import Key

ROOT = Path(__file__).parents[1]
PROTOCOLS, SAMPLING = ("staircase", "herg_activation"), "2 ms"
NOISE, DRAWS = 0.02, 100
#: Rates at either end of the command, 1/ms.
SLOWEST, FASTEST = 1e-3, 0.3
MODEL: dict[str, Any] = {
    "name": "truth",
    "states": ["C", "O"],
    "rates": {"C -> O": "k", "O -> C": "k"},
    "current": {"open": ["O"], "conductance": "g", "reversal": "-88 mV"},
    "parameters": {
        "k": {"range": [0.01, 1], "unit": "1/ms", "value": 0.1},
        "g": {"range": [1, 1000], "unit": "nS", "scale": "log", "value": 50},
    },
}


@dataclass(frozen=True)
class Case:
    """What came of one true scheme.

    seconds: of the processor, for all schemes; of the clock on a GPU.
    rank: of the true scheme by BIC, counted from 1; above: how far its BIC is above the best, as
    found; from_truth: as refined from the true values; equivalent: whether the best one is it, or
    equivalent to it.
    agreed: how many starts of its full fit agreed; None where it was not fitted fully.
    """

    number: int
    truth: str
    graph: str
    best: str
    schemes: int
    rank: int
    above: float
    from_truth: float
    equivalent: bool
    agreed: int | None
    seconds: float
    backend: str = "cpu"


def template() -> FitPlan:
    """The plan of two states, under both protocols, without data."""
    documents = [read_yaml(ROOT / "protocols" / f"{name}.yaml") for name in PROTOCOLS]
    protocols = [build_protocol({**one, "sampling": SAMPLING}, None) for one in documents]
    problem = Problem(build_model(MODEL, None), tuple(Experiment(p) for p in protocols))
    return FitPlan(problem, "hybrid", {}, {}, MODEL, Path("truth.yaml"), in_memory=True)


def recorded(
    plan: FitPlan, scheme: Scheme, random: np.random.Generator
) -> tuple[FitPlan, dict[str, float]]:
    """The template with data of a scheme that determine its parameters, and their true values."""
    own = SchemeModels.read(plan, Section({}, None, "discover")).plan_of(scheme)
    names = [p.name for p in own.problem.parameters]
    scorer = make_scorer(own.problem, "cpu")
    commands = np.concatenate([e.protocol.command().ravel() for e in plan.problem.experiments])
    low, high = float(np.nanmin(commands)), float(np.nanmax(commands))
    for _ in range(DRAWS):
        values = np.full(len(names), 50.0)  # the conductance keeps it
        for row, name in enumerate(names):
            if name.startswith("a_"):
                first, second = random.uniform(np.log(SLOWEST), np.log(FASTEST), 2)
                slope = (second - first) / (high - low)
                values[row], values[names.index(f"z{name[1:]}")] = (
                    np.exp(first - slope * low),
                    slope,
                )
        currents = scorer.simulate(values[:, None])
        peak = max(float(np.nanmax(np.abs(c))) for c in currents)
        noise = NOISE * peak
        problem = simulate_surrogate(
            own.problem.with_values(values), scorer, noise, int(random.integers(1 << 31))
        )
        objective = replace(own, problem=problem).objective(make_scorer(problem, "cpu"))
        unit = objective.space.to_unit(values[:, None])[:, 0]
        try:
            found = estimate(objective, unit, n_scored(problem), sigma_pA=noise)
        except InputError:
            continue
        if not undetermined(found):
            plan = replace(plan, problem=replace(plan.problem, experiments=problem.experiments))
            return plan, dict(zip(names, values.tolist(), strict=True))
    raise RuntimeError(f"no rates of {scheme.text} are determined by these data")


def case(number: int, space: Space, keys: Mapping[str, Any], backend: str) -> Case:
    """Draw a scheme, record it, and look for it among all."""
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence([7, number])))
    schemes = space.schemes
    while True:
        truth = schemes[int(random.integers(len(schemes)))]
        try:
            plan, values = recorded(template(), truth, random)
            break
        except RuntimeError as error:
            print(error, flush=True)
    clock = time.process_time if backend == "cpu" else time.perf_counter
    began = clock()
    tasks = ready(plan, keys, seed=number, backend=backend)
    discovery = Discovery(tasks)
    discovery.scan()
    found = found_by(discovery, discovery.fit())
    seconds = clock() - began
    names = [row["scheme"] for row in found.rows]
    row = next(row for row in found.rows if row["scheme"] == truth.name)
    return Case(
        number,
        truth.name,
        truth.text,
        names[0],
        len(tasks.schemes),
        names.index(truth.name) + 1,
        row["bic_difference"],
        _bic_from(tasks, truth, values) - discovery.bic(discovery.ranked()[0]),
        _equivalent(found, truth.name, names[0]),
        row["starts_agreed"],
        seconds,
        backend,
    )


def _bic_from(tasks: SchemeTasks, scheme: Scheme, values: Mapping[str, float]) -> float:
    """BIC of a scheme that is refined from these values."""
    plan = tasks.models.plan_of(scheme)
    objective = plan.objective(make_scorer(plan.problem, "cpu"))
    cost = float(refine(objective, unit_of(plan, values)[:, None]).cost[0])
    n_parameters = plan.space.n_free + len(plan.solved)
    return criteria(max(cost, objective.floor), n_parameters, n_scored(plan.problem))[1]


def _equivalent(found: Found, one: str, other: str) -> bool:
    """Whether each of two schemes has the currents of the other."""
    exact = {(f.fitted, f.to) for f in found.follows if f.relative < EQUIVALENT}
    return one == other or {(one, other), (other, one)} <= exact


def rows_of(cases: list[Case]) -> list[Row]:
    """The counts of all cases so far."""
    n = len(cases)
    near = sum(c.above <= NEAR_BIC or c.equivalent for c in cases)
    first = sum(c.rank == 1 or c.equivalent for c in cases)
    timed = [c for c in cases if c.backend == "cpu"]
    a_scheme = sum(c.seconds for c in timed) / max(1, sum(c.schemes for c in timed))
    return [
        Row("true scheme within 6 of the best by BIC", near, "cases", n, near / n),
        Row("true scheme first", first, "cases", n, first / n),
        *(
            [Row("processor time of a scheme", a_scheme, "s", note="scans and full fits together")]
            if timed
            else []
        ),
        *(
            Row(
                f"case {c.number}: {c.truth} ({c.graph})",
                c.above,
                "BIC above the best",
                note=f"rank {c.rank} of {c.schemes}; first is {c.best}; "
                f"{c.from_truth:.2f} from the true values; {c.seconds:.0f} s"
                f"{' on a GPU' * (c.backend == 'cuda')}",
            )
            for c in cases
        ),
    ]


def cases_of(
    numbers: Sequence[int], jobs: int, space: Space, keys: Mapping[str, Any], backend: str
) -> Iterator[Case]:
    """Yield cases as they end, so many at a time."""
    if jobs == 1:
        yield from (case(number, space, keys, backend) for number in numbers)
        return
    share = max(1, usable_cores() // jobs)
    with ProcessPoolExecutor(jobs, get_context("spawn"), keep_to, (share,)) as pool:
        for done in as_completed([pool.submit(case, k, space, keys, backend) for k in numbers]):
            yield done.result()


def speed(states: int, share: int, backend: str, jobs: int) -> list[Row]:
    """What some schemes of a size take."""
    random = np.random.Generator(np.random.Philox(3))
    everything = [scheme for scheme in Space((states, states)).schemes if scheme.cycles]
    plan, _ = recorded(template(), Space((4, 4), cycles=0).schemes[1], random)
    tasks = ready(plan, {"states": [2, 3], "keep": 2}, seed=1, backend=backend)
    places = random.choice(len(everything), min(share, len(everything)), replace=False)
    some = tuple(everything[int(k)] for k in sorted(places))
    alone = jobs == 1 and backend == "cpu"
    with cluster_of(jobs) as executor:
        clock = time.process_time if alone else time.perf_counter
        discovery, began = Discovery(replace(tasks, schemes=some), executor), clock()
        discovery.scan_level(range(len(some)))
        scanned = (clock() - began) / len(some)
    n, cores = len(everything), 2 if alone else 1
    where = "on two cores" if alone else f"by {_processes(jobs)}"
    return [
        Row(
            f"scan of a scheme of {states} states",
            scanned,
            "s of the processor" if alone else f"s {where}",
        ),
        Row(
            f"scans of all {n:,} schemes of {states} states with a cycle, {where}",
            n * scanned / cores / 3600,
            "h",
            note=f"extrapolated from {len(some)} schemes; full fits come on top",
        ),
    ]


def whole(states: int, keep: int, backend: str, jobs: int) -> list[Row]:
    """What all schemes with one open state take, up to so many states."""
    random = np.random.Generator(np.random.Philox(3))
    truth = Space((4, 4), cycles=0).schemes[1]
    plan, _ = recorded(template(), truth, random)
    tasks = ready(plan, {"states": [2, states], "keep": keep}, seed=1, backend=backend)
    n, times = len(tasks.schemes), [time.perf_counter()]

    def progress(key: Key, fit: SchemeFit) -> None:
        print(f"{time.perf_counter() - times[0]:8.1f} s  {key}", flush=True)

    with cluster_of(jobs) as executor:
        discovery = Discovery(tasks, executor, on_done=progress)
        discovery.scan()
        times.append(time.perf_counter())
        best = discovery.fit()
        times.append(time.perf_counter())
        found = found_by(discovery, best)
        times.append(time.perf_counter())
    names = [row["scheme"] for row in found.rows]
    unit = f"s by {_processes(jobs)}"
    return [
        Row(f"all {n} schemes of 2 to {states} states", times[-1] - times[0], unit),
        Row("scans, and full fits of those without a cycle", times[1] - times[0], unit),
        Row(f"full fits of the {keep} best", times[2] - times[1], unit, note=f"{len(best)} fitted"),
        Row("each of these fitted to the currents of the others", times[3] - times[2], unit),
        Row(
            f"rank of the true scheme {truth.name} ({truth.text})",
            names.index(truth.name) + 1,
            "",
            note=f"first is {names[0]}",
        ),
    ]


def cluster_of(jobs: int) -> AbstractContextManager[Executor | None]:
    """Return a context that opens so many processes; this one alone for 1."""
    return nullcontext() if jobs == 1 else open_cluster(f"local:{jobs}")


def _processes(jobs: int) -> str:
    return "one process" if jobs == 1 else f"{jobs} processes"


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--only", type=int, nargs="+")
    parser.add_argument("--states", type=int, nargs=2, default=(3, 5))
    parser.add_argument("--cycles", type=int)
    parser.add_argument("--keep", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--speed", type=int)
    parser.add_argument("--whole", type=int)
    parser.add_argument("--share", type=int, default=24)
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    on_gpu = given.backend == "cuda"
    device = gpu.device().name if on_gpu else "CPU"
    if given.speed:
        rows = speed(given.speed, given.share, given.backend, given.jobs)
        name = f"discover_speed{'_cuda' if on_gpu else ''}"
        finish(name, "How fast schemes are fitted", rows, device, given.out)
        return
    if given.whole:
        rows = whole(given.whole, given.keep, given.backend, given.jobs)
        name = f"discover_whole{'_cuda' if on_gpu else ''}"
        finish(name, "How long all schemes take", rows, device, given.out)
        return
    limits = {} if given.cycles is None else {"cycles": given.cycles}
    low, high = given.states
    space = Space((low, high), **limits)
    keys = {"states": [2, high], "keep": given.keep, **limits}
    numbers = given.only or range(1, given.cases + 1)
    cases = {} if given.only is None else cases_before(given.out or RESULTS)
    for k, one in enumerate(cases_of(numbers, given.jobs, space, keys, given.backend), 1):
        cases[one.number] = one
        print(one, flush=True)
        ordered = [cases[number] for number in sorted(cases)]
        series = {"cases": [asdict(c) for c in ordered], "requested": given.cases}
        rows, last = rows_of(ordered), k == len(numbers)
        finish("discover", "Is the true scheme found?", rows, device, given.out, series, last)


def cases_before(folder: Path) -> dict[int, Case]:
    """Return the cases that a file has, by number."""
    file = folder / "discover.json"
    found = json.loads(file.read_text())["series"]["cases"] if file.exists() else []
    return {one["number"]: Case(**one) for one in found}


if __name__ == "__main__":
    as_script(main)
