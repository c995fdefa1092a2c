"""Measures linearizations by moments and by propagators, and least squares with both.

    python benchmarks/derivatives.py [--states 8 12] [--models [na_markov]] [--out FOLDER]
    python benchmarks/derivatives.py --backend cuda --models

The schemes are those of states.py, under the same 25 sweeps of 50 ms. A linearization is cost,
gradient and Gauss-Newton Hessian by all free parameters. Least squares refines some random starts
against a noisy recording as `hybrid` does, from a new scorer on: tables are part of its time, and
compilation is not. On a CPU the time is that of one core, the least of some; on a GPU the device's
own median for linearizations whose parameters and results stay there, and for least squares what
passes. There moments are taken although other candidates may be too fast for them: the note says
how many are in doubt and linearized again, and what `auto` takes. Results are written after every
scheme.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from chains import paper_protocols
from report import Row, as_script, compared, finish
from states import named, scheme_of

from channelfit.problem.experiment import Problem
from channelfit.problem.statuses import OK
from channelfit.scoring.cpu import CpuScorer
from channelfit.scoring.cuda import CudaScorer
from channelfit.scoring.cuda_moment_tangents import serves, tables_of
from channelfit.scoring.cuda_variants import Variants
from channelfit.scoring.kernels.cuda_pieces import UNRESOLVED
from channelfit.scoring.layout.moment_tables import moment_table
from channelfit.scoring.machine import gpu
from channelfit.scoring.scorer import Linearization
from channelfit.search.least_squares import refine
from channelfit.search.objective import Objective
from channelfit.search.space import SearchSpace
from scoring import candidates, problem

#: Candidates that are linearized, starts that are refined, and iterations of these at most.
POPULATION, STARTS, ITERATIONS = {"cpu": 32, "cuda": 1 << 14}, 16, 40
#: Of the noise, as a part of the largest current.
NOISE = 0.01
WAYS = {"propagators": False, "moments": True}


def scorer_of(p: Problem, by_moments: bool, backend: str) -> CpuScorer | CudaScorer:
    """A scorer whose scores go the same way, whatever its linearizations do."""
    if backend == "cuda":
        on_gpu = CudaScorer(p)
        on_gpu._variants = Variants(p, by_moments=by_moments)
        return on_gpu
    scorer = CpuScorer(p)
    scorer._by_moments = by_moments
    return scorer


def noisy(p: Problem) -> Problem:
    """The problem with noise on its recordings, the same every time."""
    random = np.random.default_rng(5)
    recordings = [e.recording for e in p.experiments if e.recording is not None]
    size = NOISE * max(float(np.nanmax(np.abs(r.current_pA))) for r in recordings)
    return replace(
        p,
        experiments=tuple(
            replace(
                e,
                recording=replace(
                    e.recording,
                    current_pA=e.recording.current_pA
                    + size * random.standard_normal(e.recording.current_pA.shape),
                ),
            )
            for e in p.experiments
            if e.recording is not None
        ),
    )


def least_seconds(call: Callable[[], Any], repeats: int, backend: str) -> tuple[float, Any]:
    """The least time of some calls, of a processor's core or all, and what the last returned."""
    clock = time.perf_counter if backend == "cuda" else time.process_time
    times = []
    for _ in range(repeats):
        start = clock()
        found = call()
        times.append(clock() - start)
    return min(times), found


def linearized(
    scorer: CpuScorer | CudaScorer, drawn: np.ndarray, repeats: int
) -> tuple[float, Linearization]:
    """Seconds of a linearization, and its results for some of the candidates."""
    if isinstance(scorer, CpuScorer):
        return least_seconds(lambda: scorer.linearize(drawn), repeats, "cpu")
    there = gpu.cupy().asarray(drawn)
    seconds = gpu.timed(lambda: scorer.linearize(there), repeats)
    return seconds, scorer.linearize(drawn[:, : POPULATION["cpu"]])


def doubts(p: Problem, scorer: CpuScorer | CudaScorer, drawn: np.ndarray) -> str:
    """How many candidates moments leave to propagators on a GPU, and whether `auto` takes them."""
    if isinstance(scorer, CpuScorer):
        return ""
    some = gpu.cupy().asarray(drawn[:, :2048])
    _, status, *_ = scorer._variants.first.tangents.linearize(some)
    share = float((status == UNRESOLVED).mean())
    taken = "moments" if serves(p) else "propagators"
    return f"; {100 * share:.2g} % in doubt, auto takes {taken}"


def largest_error(test: Linearization, truth: Linearization) -> float:
    """Of any entry of gradient and Hessian, over the product of the columns that make it."""
    good = (test.status == OK) & (truth.status == OK)
    length = np.sqrt(np.einsum("iic->ic", truth.hessian[..., good]))
    length = np.maximum(length, 1e-12 * length.max(axis=0))
    hessian = np.abs(test.hessian - truth.hessian)[..., good] / (length[:, None] * length)
    slope = np.abs(test.gradient - truth.gradient)[:, good]
    gradient = slope / (length * np.sqrt(2.0 * truth.cost[good]))
    return float(max(hessian.max(), gradient.max()))


def refined(p: Problem, by_moments: bool, backend: str) -> float:
    """The lowest cost of some starts after least squares from a new scorer on."""
    moment_table.cache_clear()
    tables_of.cache_clear()
    space = SearchSpace(p.model.parameters)
    unit = np.random.default_rng(7).random((space.n_free, STARTS))
    objective = Objective(space, scorer_of(p, by_moments, backend))
    return float(refine(objective, unit, ITERATIONS).cost.min())


def one_case(title: str, p: Problem, repeats: int, backend: str) -> list[Row]:
    """Rows of one scheme and one number of samples."""
    population = POPULATION[backend]
    drawn = candidates(p.model, population, seed=3)
    rates, found, note = {}, {}, ""
    for name, by_moments in WAYS.items():
        scorer = scorer_of(p, by_moments, backend)
        scorer.linearize(drawn[:, : POPULATION["cpu"]])
        scorer.score(drawn)
        seconds, found[name] = linearized(scorer, drawn, repeats)
        rates[name] = population / seconds
        note = doubts(p, scorer, drawn) if by_moments else ""
    old, new = WAYS
    error = f"largest error of an entry {largest_error(found[new], found[old]):.0e}{note}"
    rows = [
        Row(f"{title}: linearizations, {old}", rates[old], "candidates/s"),
        compared(f"{title}: linearizations, {new}", rates[new], "candidates/s", rates[old], error),
    ]
    costs, spent = {}, {}
    for name, way in WAYS.items():
        spent[name], costs[name] = least_seconds(
            lambda way=way: refined(p, way, backend), min(repeats, 2), backend
        )
    speed = {name: STARTS / seconds for name, seconds in spent.items()}
    notes = {name: f"{spent[name]:.2f} s, lowest cost {costs[name]:.6g} pA^2" for name in WAYS}
    what = f"{title}: least squares from {STARTS} starts"
    return [
        *rows,
        Row(f"{what}, {old}", speed[old], "starts/s", note=notes[old]),
        compared(f"{what}, {new}", speed[new], "starts/s", speed[old], notes[new]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="each once, to try the script")
    parser.add_argument("--out", type=Path, help="folder of the results; benchmarks/results")
    parser.add_argument("--states", type=int, nargs="*", default=[8, 12, 16])
    parser.add_argument("--models", nargs="*", default=["published/sk2_hirschberg", "na_markov"])
    parser.add_argument("--samples", type=int, nargs="*", default=[500, 5000])
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    if options.quick and options.out is None:
        parser.error("a trial (--quick) needs --out FOLDER")
    on_gpu = options.backend == "cuda"
    name, device = ("derivatives_cuda", gpu.device().name) if on_gpu else ("derivatives", "")
    heading = f"Linearizations and least squares on {device or 'one core'}"
    rows, schemes = list[Row](), [*options.states, *options.models]
    for scheme in schemes:
        for samples in options.samples:
            p = noisy(problem(scheme_of(scheme), paper_protocols(samples)))
            title, repeats = f"{named(scheme)} x {samples} samples", 1 if options.quick else 3
            rows += one_case(title, p, repeats, options.backend)
            for row in rows[-4:]:
                print(f"{row.name}: {row.value:.3g} {row.unit}; {row.note}", flush=True)
        finish(name, heading, rows, device, options.out, shown=scheme == schemes[-1])


if __name__ == "__main__":
    as_script(main)
