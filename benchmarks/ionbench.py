"""ionBench's problems fitted by us, ten seeds, and by its own best approaches, in one run.

    python benchmarks/ionbench.py [--problems staircase_hh loewe_ikr] [--ours 10] [--theirs 2]
        [--cap 60] [--python PATH] [--optimizer NAME] [--out DIR]
    python benchmarks/ionbench.py --recordings FOLDER

`--python` is an interpreter whose environment holds ionBench (pip install ionbench, with SUNDIALS
and a C compiler; NumPy below 2.4 for staircase_mm); the one that runs this by default.
`--recordings` only writes the currents that are fitted, so that the problems can be fitted by hand:
CHANNELFIT_IONBENCH=FOLDER channelfit optimize benchmarks/problems/staircase_hh.yaml

Both sides: recordings, ranges, thresholds and cost are ionBench's (it judges our final values
itself), random starts by seed, one search after the other on the same cores, nothing tuned to a
problem. A clock runs from the start of a search, its code compiled, until its cost is below the
threshold; whole commands, compilation and all, stand beside it. An approach of ionBench's that ends
above the threshold begins again until --cap seconds have passed. Published: the expected number of
model evaluations.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from report import Row, as_script, compared, finish, missing

HERE = Path(__file__).parent
APPROACHES = ("cma-es", "trust region", "trust region, log")
PUBLISHED = {"staircase_hh": 500, "loewe_ikr": 750}


@dataclass(frozen=True)
class Scale:
    """From ionBench's units to ours: pA in its current, and which value is a conductance."""

    current: float
    conductance: str | None = None


SCALES = {
    "staircase_hh": Scale(1000.0, "p9"),
    "staircase_mm": Scale(1000.0, "p15"),
    "loewe_ikr": Scale(1.0),
}


@dataclass(frozen=True)
class Search:
    """When a search met the threshold (inf: never), and where it ended; cost as ionBench's."""

    seconds: float
    evaluations: float
    total_seconds: float
    total_evaluations: int
    cost: float
    starts: int = 1
    values: tuple[float, ...] = ()


class Peer:
    """ionBench, in its own environment."""

    def __init__(self, python: str) -> None:
        self.command = [python, "-P", str(HERE / "ionbench_peer.py")]

    def ask(self, *words: str, text: str = "") -> Any:
        done = subprocess.run(
            [*self.command, *words],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "MPLBACKEND": "agg"},
        )
        if done.returncode:
            sys.exit(f"ionBench ({self.command[0]}) failed:\n{done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])


def same_problem(name: str, folder: Path, facts: dict[str, Any]) -> list[Row]:
    """Return the differences of our current and cost from ionBench's, at true and random values."""
    from channelfit.front.kinds import load_plan
    from channelfit.scoring.scorer import make_scorer

    fit = load_plan(HERE / "problems" / f"{name}.yaml")
    scorer, scale = make_scorer(fit.problem), SCALES[name]
    recording = fit.problem.experiments[0].recording
    assert recording is not None
    theirs = np.load(folder / f"{name}_current.npy") * scale.current
    ours = scorer.simulate(fit.problem.model.values()[:, None])[0][:, :, 0]
    error = np.max(np.abs(ours - theirs)[recording.weight > 0]) / np.max(np.abs(theirs))
    parameters = np.array(facts["parameters"]).T
    names = [p.name for p in fit.problem.model.parameters]
    if scale.conductance:
        parameters[names.index(scale.conductance)] *= scale.current
    cost = np.sqrt(scorer.score(parameters).cost) / scale.current
    first = f"{name}: current at the true values, largest error"
    n_left_out = int(np.sum(recording.weight == 0))
    note = f"{n_left_out} of {recording.weight.size} samples left out" if n_left_out else ""
    away = np.max(np.abs(cost / facts["cost"] - 1)[1:])
    return [
        Row(
            first,
            float(error),
            "of largest",
            note=note,
        ),
        Row(f"{name}: cost at 8 random candidates, largest difference", float(away), "of the cost"),
        Row(f"{name}: cost at the true values", float(cost[0]), "", float(facts["cost"][0])),
    ]


class Ours:
    """Searches by the default optimizer, or by another one with its own defaults."""

    def __init__(self, name: str, optimizer: str | None) -> None:
        from channelfit.front.kinds import load_plan

        self.file, self.scale = HERE / "problems" / f"{name}.yaml", SCALES[name]
        self.overrides = [] if optimizer is None else [f"fit.optimizer.name={optimizer}"]
        self.fit = load_plan(self.file, self.overrides)

    @cached_property
    def scorer(self) -> Any:
        from channelfit.scoring.scorer import make_scorer

        return make_scorer(self.fit.problem)

    def search(self, seed: int, threshold: float) -> Search:
        """One search; its final cost is for ionBench to judge."""
        from channelfit.search.loop import optimize

        fit = replace(self.fit, seed=seed)
        result = optimize(fit.make_optimizer(), fit.objective(self.scorer), fit.stop_rules)
        cost = np.sqrt(result.history["best_cost"]) / self.scale.current
        met = np.flatnonzero(cost <= threshold)
        row = result.history[met[0]] if met.size else {"seconds": math.inf, "evaluations": math.inf}
        values = result.parameters
        if self.scale.conductance:
            values[self.scale.conductance] /= self.scale.current
        return Search(
            float(row["seconds"]),
            float(row["evaluations"]),
            result.seconds,
            result.evaluations,
            math.nan,
            values=tuple(values.values()),
        )

    def command(self, folder: Path) -> float:
        """Seconds of a whole command in a process of its own, seed 0."""
        words = ["optimize", str(self.file), "--json", "--out", str(folder / "run")]
        sets = [word for text in self.overrides for word in ("--set", text)]
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "channelfit", *words, *sets],
            cwd=HERE.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"channelfit optimize failed:\n{done.stderr[-2000:]}")
        return time.perf_counter() - start


def theirs(peer: Peer, name: str, approach: str, seed: int, cap: float, threshold: float) -> Search:
    """One search by an approach of ionBench's."""
    found = peer.ask("search", name, approach, str(seed), str(cap))
    met = [row for row in found["rows"] if row[2] <= threshold]
    seconds, evaluations = met[0][:2] if met else (math.inf, math.inf)
    return Search(
        seconds,
        evaluations,
        found["seconds"],
        found["evaluations"],
        found["rows"][-1][2],
        found["starts"],
    )


def median(searches: list[Search], what: str) -> float:
    return float(np.median([getattr(s, what) for s in searches]))


def plain(search: Search) -> dict[str, object]:
    """For JSON, which knows no infinity."""
    return {k: None if v == math.inf else v for k, v in vars(search).items()}


def rows_of(who: str, searches: list[Search], cap: float | None = None) -> list[Row]:
    """Share that arrived, and medians over all seeds; a median that never came is missing."""
    arrived = sum(math.isfinite(s.seconds) for s in searches)
    rows = [Row(f"{who}: below the threshold", arrived, f"of {len(searches)}")]
    labels = {
        "seconds": ("time to the threshold, median", "s"),
        "evaluations": ("evaluations to the threshold, median", ""),
    }
    late = "not within the cap" if cap else "the search ended before"
    for what, (label, unit) in labels.items():
        value = median(searches, what)
        rows.append(
            Row(f"{who}: {label}", value, unit)
            if math.isfinite(value)
            else missing(f"{who}: {label}", unit, late)
        )
    rows.append(
        Row(
            f"{who}: whole search, median",
            median(searches, "total_seconds"),
            "s",
            note=f"{median(searches, 'total_evaluations'):,.0f} evaluations",
        )
    )
    worst = max(s.cost for s in searches)
    note = f"median {median(searches, 'cost'):.6g}"
    if cap:
        note += f"; {sum(s.starts for s in searches)} starts"
    return [*rows, Row(f"{who}: final cost, worst", worst, "", note=note)]


def measured(
    name: str, peer: Peer, facts: dict[str, Any], folder: Path, options: argparse.Namespace
) -> tuple[list[Row], dict[str, object]]:
    """Rows of one problem, and every search by name."""
    threshold = facts["threshold"]
    us = Ours(name, options.optimizer)
    commands = [us.command(folder / f"{name}{i}") for i in range(2)]  # the first one compiles
    us.search(0, threshold)
    found = [us.search(seed, threshold) for seed in range(options.ours)]
    judged = peer.ask("judge", name, text=json.dumps([s.values for s in found]))
    found = [replace(s, cost=cost) for s, cost in zip(found, judged, strict=True)]
    for seed, s in enumerate(found):
        print(
            f"{name}, ours, seed {seed}: {s.seconds:.3f} s to the threshold, "
            f"{s.total_seconds:.3f} s, {s.total_evaluations} evaluations, cost {s.cost:.6g}",
            flush=True,
        )
    series: dict[str, object] = {"threshold": threshold, "ours": [plain(s) for s in found]}
    rows = rows_of(f"{name}, ours", found)
    for label, seconds in zip(("first time, all compiled", "again"), commands, strict=True):
        rows.append(Row(f"{name}, ours: whole command, {label}", seconds, "s"))
    best = math.inf
    for approach in APPROACHES if options.theirs else ():
        other = [
            theirs(peer, name, approach, seed, options.cap, threshold)
            for seed in range(options.theirs)
        ]
        rows += rows_of(f"{name}, {approach}", other, options.cap)
        series[approach] = [plain(s) for s in other]
        # a seed that met the cap waited at least so long
        best = min(best, float(np.median([min(s.seconds, options.cap) for s in other])))
        print(f"{name}, {approach}: {[round(s.seconds, 2) for s in other]} s", flush=True)
    at_worst = max(s.seconds for s in found)
    for label, value in (("median", median(found, "seconds")), ("slowest seed", at_worst)):
        if math.isfinite(best) and math.isfinite(value):
            title = f"{name}: best of theirs / ours, {label}"
            rows.append(compared(title, best, "s", value, "one that met the cap counts as the cap"))
    if name in PUBLISHED:
        note = "model evaluations, by ionBench's authors"
        rows.append(
            Row(f"{name}: published expected run time, best", PUBLISHED[name], "", note=note)
        )
    return rows, series


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--problems", nargs="+", choices=SCALES, default=["staircase_hh", "loewe_ikr"]
    )
    parser.add_argument("--ours", type=int, default=10, help="seeds of ours")
    parser.add_argument("--theirs", type=int, default=2, help="seeds of each approach of theirs")
    parser.add_argument("--cap", type=float, default=60, help="seconds for one of theirs")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has ionBench")
    parser.add_argument("--optimizer", help="ours, by name; else the default")
    parser.add_argument("--out", type=Path, help="folder of the JSON")
    parser.add_argument("--recordings", type=Path, help="write the currents here, and stop")
    options = parser.parse_args()
    peer = Peer(options.python)
    if options.recordings:
        options.recordings.mkdir(parents=True, exist_ok=True)
        peer.ask("data", str(options.recordings))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        # read when a fit is loaded, so before anything of ours is imported
        os.environ |= {"CHANNELFIT_IONBENCH": temporary, "CHANNELFIT_CACHE": str(folder / "cache")}
        facts = peer.ask("data", temporary)
        rows, series = [], {}
        for name in options.problems:
            searched, series[name] = measured(name, peer, facts[name], folder, options)
            rows += [*same_problem(name, folder, facts[name]), *searched]
    title = f"ionBench, {options.ours} seeds of ours, {options.theirs} of each of theirs"
    finish("ionbench", title, rows, folder=options.out, series=series)


if __name__ == "__main__":
    as_script(main)
