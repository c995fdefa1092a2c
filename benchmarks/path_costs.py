"""Prints the table by which `auto` chooses a path, from the results of states.py.

    python benchmarks/states.py --backend cpu --states 2 3 4 5 6 7 8 9 10 12 14 16 \\
        --out benchmarks/results
    python benchmarks/states.py --states 2 3 4 5 6 7 8 9 10 12 14 16
    python benchmarks/path_costs.py

`channelfit/scoring/path_costs.py` holds the table, and a test compares the two.
"""

from __future__ import annotations

import json
import math

import numpy as np
from chains import chain_model, paper_protocols
from report import RESULTS, as_script

from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.recording import Recording
from channelfit.scoring.layout.moment_tables import ladder
from channelfit.scoring.path_costs import PathCosts

FEW, MANY, SWEEPS = 500, 5000, 25
#: Backend and precision, the file of results, and its names of stepping, closed form, moments, and
#: of stepping and moments of stiff candidates.
_ON_CPU = ("stepping", "closed-form", "moments", "stepping, stiff", "moments, stiff")
SOURCES = {
    "cpu": ("states_cpu", [f"cpu, {way}" for way in _ON_CPU]),
    **{
        f"cuda {t}": (
            "states",
            [
                f"stepping, {t}",
                "closed form, float64",
                "moments, float64",
                f"stepping, stiff, {t}",
                "moments, stiff, float64",
            ],
        )
        for t in ("float64", "float32")
    },
}


def table() -> dict[str, dict[int, PathCosts]]:
    """Return the costs by backend and states, from the results."""
    found: dict[str, dict[int, PathCosts]] = {}
    for key, (name, ways) in SOURCES.items():
        rows = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
        times = {row["name"]: 1e6 / row["value"] for row in rows if row["value"]}
        every = range(2, 65)
        states = [n for n in every if f"{n} states x {MANY} samples: {ways[0]}" in times]
        found[key] = {n: costs(n, times, ways) for n in states}
    return found


def costs(n: int, times: dict[str, float], ways: list[str]) -> PathCosts:
    """Return the costs of chains of n states, from microseconds a candidate by name of the row.

    Stepping takes a time for each visit of a voltage and one for each sample, which rates with few
    and with many samples tell apart; the other ways hardly depend on samples.
    """
    few, many = (
        [times.get(f"{n} states x {k} samples: {way}", math.inf) for way in ways]
        for k in (FEW, MANY)
    )
    experiments = [
        Experiment(p, Recording.from_arrays(p, np.zeros((p.n_sweeps, FEW))))
        for p in paper_protocols(FEW)
    ]
    found = ladder(Problem(chain_model(n), tuple(experiments)), oscillating=False)
    visits, runs = len(found.walk.visit_v), len(found.walk.runs)
    sample = (many[0] - few[0]) / (SWEEPS * (MANY - FEW))
    modes, moments = (min(pair) for pair in list(zip(few, many, strict=True))[1:3])
    stiff = few[3] if math.isfinite(few[3]) else few[0]
    numbers = (
        *(max(0.0, time - SWEEPS * FEW * sample) / visits for time in (few[0], stiff)),
        sample,
        modes / visits,
        moments / (runs * found.degree),
        max(few[4], many[4]) / runs,
    )
    return PathCosts(*(float(f"{x:.3g}") for x in numbers))


def text() -> str:
    """Return the table as Python."""
    lines = ["COSTS: dict[str, dict[int, PathCosts]] = {"]
    for key, by_states in table().items():
        lines.append(f'    "{key}": {{')
        for n, c in by_states.items():
            numbers = [getattr(c, name) for name in ("visit", "stiff_visit", "sample")]
            numbers += [x for x in (c.modes, c.moment, c.resolvents) if math.isfinite(x)]
            lines.append(f"        {n}: PathCosts({', '.join(map(repr, numbers))}),")
        lines.append("    },")
    return "\n".join([*lines, "}"])


def main() -> None:
    print(text())


if __name__ == "__main__":
    as_script(main, writes=False)
