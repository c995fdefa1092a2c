"""Two to nine states: every way to a score on one GPU, beside the 2012 design in the same run.

    python benchmarks/states.py [--states 2 3 4] [--backend cpu --quick]

Linear chains (chains.py) under the paper's 25 sweeps of 50 ms, with 500 and with 5,000 samples a
sweep. The 2012 design runs with the block and the padding that are fastest here. Its ratio is that
of our fastest way; errors are those of the cost of 64 random candidates against the reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from baseline_2012 import Baseline2012
from chains import chain_model, paper_protocols
from report import Row, compared, finish, missing
from rich.console import Console
from rich.table import Table
from scoring import candidates, problem
from ways import (
    DESIGN_2012,
    OURS,
    Way,
    arguments,
    attempt,
    device_name,
    fastest_2012,
    for_backend,
    host,
    placed,
    rate,
    results_folder,
)

from channelfit.backends import OK, Score, make_scorer
from channelfit.model import ChannelModel
from channelfit.problem import Problem

POPULATION = 1 << 18
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
    return rate(scorer, placed(way, drawn), 3), note


def one_case(
    model: ChannelModel, samples: int, ways: list[Way], population: int, best: Baseline2012 | None
) -> list[Row]:
    """Rows of one number of states and one number of samples; `best` has the design's block."""
    p = problem(model, paper_protocols(samples))
    few, drawn = candidates(model, CHECKED, seed=2), candidates(model, population)
    truth = make_scorer(p, "reference").score(few)
    title = f"{len(model.states)} states x {samples} samples"
    rows, design = [], None
    if best is not None:
        scorer = Baseline2012(p, best.threads, best.padding)
        design = rate(scorer, placed(DESIGN_2012, drawn), 2)
        note = f"{best.threads} threads a block, {best.padding} padded; "
        note += error_note(scorer.score(placed(DESIGN_2012, few)), truth)
        rows.append(Row(f"{title}: 2012 design", design, UNIT, note=note))
    values = []
    for way in ways:
        value, note = measured(way, p, drawn, truth, few)
        name = f"{title}: {way.name}"
        if value is None:
            rows.append(missing(name, UNIT, note))
            continue
        values.append(value)
        rows.append(Row(name, value, UNIT, design, value / design if design else None, note))
    if design and values:
        rows.append(compared(f"{title}: fastest of ours", max(values), UNIT, design))
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


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--states", type=int, nargs="*", default=list(range(2, 10)))
    parser.add_argument("--samples", type=int, nargs="*", default=[500, 5000])
    options = parser.parse_args()
    folder, cuda = results_folder(options), options.backend == "cuda"
    population = 1 << 10 if options.quick else POPULATION
    ways = for_backend(options.backend, OURS)
    rows: list[Row] = []
    for n in options.states:
        model, best = chain_model(n), None
        if cuda:
            paper = problem(model, paper_protocols())
            best = fastest_2012(paper, candidates(model, population))
        for samples in options.samples:
            case = one_case(model, samples, ways, population, best)
            rows += case
            for row in case:
                print(f"{row.name}: {_cell(row)} M/s; {row.note}", flush=True)
    Console(width=150).print(table(rows))
    title = f"Two to nine states, 25 sweeps, population {population:,}"
    finish("states", title, rows, device_name() if cuda else "", folder)


if __name__ == "__main__":
    main()
