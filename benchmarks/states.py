"""Measures every way to a score for two states or more; on a GPU, beside the 2012 design.

    python benchmarks/states.py [--states 2 3 4] [--samples 500] [--quick]
    python benchmarks/states.py --backend cpu --out benchmarks/results
    python benchmarks/states.py --models [--backend cpu --out benchmarks/results]

The schemes are linear chains (chains.py) under the paper's 25 sweeps of 50 ms, with 500 and with
5,000 samples a sweep; or with --models those of models/, over their full ranges, for which forward
Euler, and so the 2012 design, is of no use. The design runs with the block size that is fastest
here. Its text with everything in registers is measured as well, although this is no longer the
published design. Each of our ways is compared with the design, and the fastest with both. Errors
are those of the cost of 64 random candidates against the reference; those of the design come from
forward Euler. Results are written after every scheme, so that a run that is interrupted leaves what
it has measured.

Stepping and moments are measured with rates 10,000 times as fast, too. On a CPU the time is
that of one core, the best of some scores, so that what else runs counts little.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from baseline_2012 import STORED, Baseline2012
from chains import ROOT, chain_model, paper_protocols
from report import Row, as_script, compared, finish, missing
from rich.console import Console
from rich.table import Table
from ways import (
    DESIGN_2012,
    IN_REGISTERS,
    ON_CPU,
    OURS,
    STIFF,
    UNROLLED,
    Way,
    arguments,
    attempt,
    core_rate,
    device_arrays,
    device_name,
    fastest_2012,
    host,
    placed,
    rate,
    results_folder,
    usable_cores,
)

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import load_model
from channelfit.problem.experiment import Problem
from channelfit.problem.statuses import OK
from channelfit.scoring.scorer import Score, make_scorer
from scoring import candidates, problem

POPULATION, ON_CORES = 1 << 18, 1 << 10
#: Published schemes, some with cycles, of 5 to 13 states.
MODELS = (
    "herg_markov",
    "published/sk2_hirschberg",
    "na_markov",
    "published/bk_cox",
    "published/nav_carter",
    "published/nav16_raman_bean",
)
CHECKED = 64
UNIT = "candidates/s"


def error_note(found: Score, truth: Score) -> str:
    """Largest and median relative error of the cost, and how many failed that should not have."""
    good, scored = truth.status == OK, host(found.status) == OK
    lost, kept = int((good & ~scored).sum()), good & scored
    failed = f"{lost} of {good.sum()} cost inf" if lost else ""
    if not kept.any():
        return failed
    errors = np.abs(host(found.cost)[kept].astype(float) / truth.cost[kept] - 1)
    note = f"cost off by {errors.max():.0e} at most, median {np.median(errors):.0e}"
    return f"{note}; {failed}" if failed else note


def measured(way: Way, p: Problem, drawn: np.ndarray, truth: Score, few: np.ndarray) -> Any:
    """(candidates/s, note), or (None, the reason)."""
    scorer, reason = attempt(lambda: way.build(p))
    if scorer is None:
        return None, reason
    note = error_note(scorer.score(placed(way, few)), truth)
    return (rate if way.on_gpu else core_rate)(scorer, placed(way, drawn), 3), note


def faster(
    times: float, p: Problem, drawn: np.ndarray, _: Score, few: np.ndarray
) -> tuple[Problem, np.ndarray, Score, np.ndarray]:
    """What `measured` takes, with ranges of rates so many times as high, and candidates in them."""
    each = [times if x.unit == "1/ms" else 1.0 for x in p.model.parameters]
    parameters = tuple(
        replace(x, lower=x.lower * k, upper=x.upper * k)
        for x, k in zip(p.model.parameters, each, strict=True)
    )
    model = replace(p.model, parameters=parameters)
    p, few = replace(p, model=model), few * np.array(each)[:, None]
    return p, drawn * np.array(each)[:, None], make_scorer(p, "reference").score(few), few


def one_case(
    title: str,
    p: Problem,
    truth: Score,
    ways: Sequence[Way],
    population: int,
    tuned: list[Baseline2012],
) -> list[Row]:
    """Rows of one number of states and one number of samples.

    Arguments:
        truth: of the candidates whose costs are compared.
        tuned: the 2012 design with its best block, and the same in registers; none without a GPU.
    """
    few, drawn = candidates(p.model, CHECKED, seed=2), candidates(p.model, population)
    rows: list[Row] = []
    theirs: dict[str, float] = {}
    for best in tuned:
        scorer = Baseline2012(p, best.threads, best.stored, best.unroll)
        name = (DESIGN_2012 if best.stored == "shared" else IN_REGISTERS).name
        theirs[name] = rate(scorer, placed(DESIGN_2012, drawn), 3)
        note = f"{best.block}; {error_note(scorer.score(placed(DESIGN_2012, few)), truth)}"
        rows.append(Row(f"{title}: {name}", theirs[name], UNIT, note=note))
    design = theirs.get(DESIGN_2012.name)
    values = []
    cases = {1.0: (p, drawn, truth, few)}
    for way in ways:
        if way.faster not in cases:
            cases[way.faster] = faster(way.faster, *cases[1.0])
        value, note = measured(way, *cases[way.faster])
        name = f"{title}: {way.name}"
        if value is None:
            rows.append(missing(name, UNIT, note))
            continue
        values.append(value)
        rows.append(Row(name, value, UNIT, design, value / design if design else None, note))
    if values:
        for name, value in theirs.items():
            what = f"{title}: fastest of ours over {name}"
            rows.append(compared(what, max(values), UNIT, value))
    return rows


def table(rows: list[Row]) -> Table:
    """One line a case, one column a way, in millions of candidates/s."""
    cases: dict[str, dict[str, Row]] = {}
    for row in rows:
        case, way = row.name.split(": ", 1)
        cases.setdefault(case, {})[way] = row
    columns = list(dict.fromkeys(way for ways in cases.values() for way in ways))
    out = Table(title="Million candidates a second (ratio to the 2012 design)")
    for heading in ("", *columns):
        out.add_column(heading, justify="right" if heading else "left")
    for case, ways in cases.items():
        out.add_row(case, *(_cell(ways.get(way)) for way in columns))
    return out


def _cell(row: Row | None) -> str:
    if row is None or row.value is None:
        return "-"
    return f"{row.value / 1e6:.3g}" + (f" ({row.ratio:.1f} x)" if row.ratio else "")


def prepared(scheme: int | str, samples: int, backend: str) -> tuple[Problem, Score]:
    """The problem and the true costs of the candidates that are compared.

    On a GPU every kernel is compiled on the way, for all processes to come.

    Arguments:
        scheme: the states of a chain, or a file of models/.
    """
    model = scheme_of(scheme)
    p, few = problem(model, paper_protocols(samples)), candidates(model, CHECKED, seed=2)
    theirs = [partial(Baseline2012, p, stored=s, unroll=u) for s in STORED for u in UNROLLED]
    theirs = [] if isinstance(scheme, str) else theirs
    ours = [partial(way.build, p) for way in OURS]
    for build in (*theirs, *ours) if backend == "cuda" else ():
        scorer, _ = attempt(build)
        if scorer is not None:
            scorer.score(device_arrays().asarray(few))
    return p, make_scorer(p, "reference").score(few)


def named(scheme: int | str) -> str:
    """What rows call a scheme."""
    return scheme.partition("/")[2] or scheme if isinstance(scheme, str) else f"{scheme} states"


def scheme_of(scheme: int | str) -> ChannelModel:
    """A chain of so many states, or a model by its file in models/."""
    if isinstance(scheme, str):
        return load_model(ROOT / "models" / f"{scheme}.yaml")
    return chain_model(scheme)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--states", type=int, nargs="*", default=list(range(2, 10)))
    parser.add_argument("--models", nargs="*", help="published schemes, not chains")
    parser.add_argument("--samples", type=int, nargs="*", default=[500, 5000])
    options = parser.parse_args()
    folder, cuda = results_folder(options), options.backend == "cuda"
    population = 1 << 10 if options.quick else POPULATION if cuda else ON_CORES
    ways = (*OURS, *STIFF) if cuda else ON_CPU
    if options.models is not None:  # their ranges are what they are
        ways = tuple(way for way in ways if way.faster == 1.0)
    title = f"Schemes by states, 25 sweeps, population {population:,}"
    start = time.perf_counter()
    schemes = options.states if options.models is None else options.models or MODELS
    cases = [
        (scheme, samples, options.backend) for scheme in schemes for samples in options.samples
    ]
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(len(cases), usable_cores())) as pool:  # all done before anything is timed
        ready = iter(pool.starmap(prepared, cases, chunksize=1))
    print(f"prepared: {time.perf_counter() - start:.0f} s", flush=True)
    rows: list[Row] = []
    for scheme in schemes:
        tuned: list[Baseline2012] = []
        for samples in options.samples:
            p, truth = next(ready)
            if cuda and not tuned and options.models is None:
                drawn = candidates(p.model, population)
                tuned = [fastest_2012(p, drawn, stored) for stored in STORED]
            name = f"{named(scheme)} x {samples} samples"
            case = one_case(name, p, truth, ways, population, tuned)
            rows += case
            for row in case:
                print(f"{row.name}: {_cell(row)} M/s; {row.note}", flush=True)
        name = "states" if options.models is None else "states_models"
        finish(
            name if cuda else f"{name}_cpu",
            title,
            rows,
            device_name() if cuda else "",
            folder,
            shown=False,
        )
        print(f"after {named(scheme)}: {time.perf_counter() - start:.0f} s", flush=True)
    Console(width=150).print(table(rows))


if __name__ == "__main__":
    as_script(main)
