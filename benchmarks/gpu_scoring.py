"""Measures the speed and the exactness of scores on one GPU, and compares with the chip's limits.

    python benchmarks/gpu_scoring.py [--parts headline samples generation cpu herg accuracy]

Every part compares only what it has measured itself, in one run, and writes gpu_scoring_PART.json
at its end. The 2012 design runs with the block size that is fastest here. Its text with everything
in registers is measured as well, although this is no longer the published design.

* headline: model B, 25 sweeps of 500 samples, 2^20 candidates from the paper's full ranges;
  operations and bytes beside the chip's limits.
* samples: the same with 5,000 samples a sweep.
* generation: a whole generation of the headline's candidates, genetic algorithm included.
* cpu: the headline's scores by the CPU backend on all cores and by NEURON, one process a core,
  beside the GPU's.
* herg: the sine wave, 80,000 samples at 0.1 ms, half of them under varying voltage.
* accuracy: the cost of random candidates over the full ranges of every shipped model.

Operations are counted as follows (a multiply-add is two), unless a scorer counts its own. For e
entries of Q, m open states and n states, the 2012 design makes 2 e + m + 3 operations and moves
4 (e + 2 n) bytes of shared memory for each sample of every sweep. Our ways compute the samples that
are left when sweeps that begin alike are merged. For each of these, stepping makes 2 (n - 1) + 3
operations, and 2 n (n - 1) more for every 16th. What each voltage costs (rates, propagators) is
left out, so that both counts are too low. The closed form counts its own operations; of moments
none are given.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import protocols as steps_and_varying
from baseline_2012 import STORED, Baseline2012, entries, next_generation
from chains import ROOT, paper_protocols
from report import Row, as_script, compared, finish, missing
from states import error_note
from ways import (
    AUTO,
    CLOSED_FORM,
    CPU_32,
    CPU_64,
    DESIGN_2012,
    IN_REGISTERS,
    MOMENTS,
    ON_CPU,
    OURS,
    STEPPING_32,
    STEPPING_64,
    Way,
    arguments,
    attempt,
    device_arrays,
    device_name,
    fastest_2012,
    for_backend,
    host,
    neuron_cores,
    placed,
    rate,
    results_folder,
    usable_cores,
)

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import load_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol, load_protocol
from channelfit.problem.recording import Recording
from channelfit.problem.statuses import OK
from channelfit.scoring.machine import gpu
from channelfit.scoring.scorer import Score, make_scorer
from channelfit.search.choose import make_optimizer
from channelfit.search.loop import StopRules, optimize
from channelfit.search.objective import Objective
from channelfit.search.space import SearchSpace
from scoring import candidates, problem

UNIT = "candidates/s"
TITLE = "model B, 25 x 500"
BARS = {"float64": 1e-9, "float32": 1e-4}  # relative errors of the cost that count as exact
LONGEST = 8.0  # s that one score may take; larger populations are left out


@dataclass(frozen=True)
class Sizes:
    headline: int = 1 << 20
    herg: int = 1 << 17
    steps: int = 400
    fine: int = 64  # the reference takes seconds for these
    varying: int = 64
    neuron: int = 40
    on_cpu: int = 1 << 18


QUICK = Sizes(1 << 11, 1 << 6, 40, 4, 4, 3, 1 << 11)


@dataclass
class Run:
    """One run: where it runs, how much, and its rows."""

    cuda: bool
    sizes: Sizes
    rows: list[Row] = field(default_factory=list)
    tuned: dict[str, Baseline2012] = field(default_factory=dict)  # of the problem tuned last

    def design(self, p: Problem, drawn: np.ndarray, tune: bool, stored: str) -> Baseline2012:
        """The 2012 design, tuned on this problem or as it was tuned last."""
        if tune or stored not in self.tuned:
            self.tuned[stored] = fastest_2012(p, drawn, stored)
            return self.tuned[stored]
        best = self.tuned[stored]
        return Baseline2012(p, best.threads, stored, best.unroll)

    def rates(
        self,
        title: str,
        p: Problem,
        drawn: np.ndarray,
        ways: list[Way],
        few: np.ndarray | None = None,
        tune: bool = True,
    ) -> dict[str, float]:
        """Candidates/s of the 2012 design and of every way that can, with their rows."""
        truth = make_scorer(p, "reference").score(few) if few is not None else None
        found = self._theirs(title, p, drawn, few, truth, tune) if self.cuda else {}
        theirs, against = dict(found), found.get(DESIGN_2012.name)
        for way in ways:
            scorer, reason = attempt(lambda w=way: w.build(p))  # type: ignore[misc]
            if scorer is None:
                self.rows.append(missing(f"{title}: {way.name}", UNIT, reason))
                continue
            value = rate(scorer, placed(way, drawn))
            found[way.name] = value
            note = error_note(scorer.score(placed(way, few)), truth) if truth is not None else ""
            ratio = value / against if against else None
            self.rows.append(Row(f"{title}: {way.name}", value, UNIT, against, ratio, note))
        ours = [value for name, value in found.items() if name not in theirs]
        for name, value in theirs.items() if ours else ():
            what = f"{title}: fastest of ours over {name}"
            self.rows.append(compared(what, max(ours), UNIT, value))
        return found

    def _theirs(
        self,
        title: str,
        p: Problem,
        drawn: np.ndarray,
        few: np.ndarray | None,
        truth: Score | None,
        tune: bool,
    ) -> dict[str, float]:
        """Candidates/s of the 2012 design, and of its text in registers."""
        found = {}
        for way, stored in zip((DESIGN_2012, IN_REGISTERS), STORED, strict=True):
            design, reason = attempt(lambda s=stored: self.design(p, drawn, tune, s))  # type: ignore[misc]
            if design is None:
                self.rows.append(missing(f"{title}: {way.name}", UNIT, reason))
                continue
            found[way.name] = value = rate(design, placed(way, drawn), 3)
            status = host(design.score(placed(way, drawn)).status)
            note = f"{design.block}; Euler keeps {(status == OK).mean():.2%} finite"
            if few is not None and truth is not None:
                note += "; " + error_note(design.score(placed(way, few)), truth)
            self.rows.append(Row(f"{title}: {way.name}", value, UNIT, note=note))
        return found


def headline(run: Run) -> None:
    """Model B as the paper has it, and how near its ways come to the chip's limits."""
    p, drawn = _paper(run)
    few = candidates(p.model, run.sizes.steps, seed=2)
    found = run.rates(TITLE, p, drawn, for_backend(_name(run), OURS), few)
    if run.cuda:
        limits(run, p, found)


def _paper(run: Run) -> tuple[Problem, np.ndarray]:
    """Model B under the paper's protocols, and the candidates."""
    model = load_model(ROOT / "models" / "model_b.yaml")
    return problem(model, paper_protocols()), candidates(model, run.sizes.headline)


def cpu(run: Run) -> None:
    """The CPU backend and NEURON on all cores, beside our ways on the GPU."""
    p, drawn = _paper(run)
    found: dict[str, float] = {}
    for way in (CLOSED_FORM, STEPPING_64, STEPPING_32) if run.cuda else ():
        found[way.name] = rate(way.build(p), placed(way, drawn))
        run.rows.append(Row(f"{TITLE}: {way.name}", found[way.name], UNIT))
    on_cpu, cores = candidates(p.model, run.sizes.on_cpu), usable_cores()
    for way in (CPU_64, CPU_32):
        found[way.name] = rate(way.build(p), on_cpu)
        run.rows.append(Row(f"{TITLE}: {way.name}, {cores} cores", found[way.name], UNIT))
    neuron, reason = attempt(
        lambda: neuron_cores(p.model, paper_protocols(), run.sizes.neuron, cores)
    )
    if neuron is None:
        run.rows.append(missing(f"{TITLE}: NEURON", UNIT, reason))
    else:
        found["NEURON"] = neuron
        run.rows.append(Row(f"{TITLE}: NEURON, {cores} cores", neuron, UNIT))
    _ratios(run, found)


def _ratios(run: Run, found: dict[str, float]) -> None:
    """Our ways in both precisions against the CPU backend and NEURON on all cores."""
    for ours in (CLOSED_FORM.name, STEPPING_64.name, STEPPING_32.name, CPU_64.name):
        for other in (CPU_64.name, "NEURON"):
            if ours in found and other in found and ours != other:
                run.rows.append(compared(f"{ours} over {other}", found[ours], UNIT, found[other]))


def generation(run: Run) -> None:
    """A whole generation: breeding, copies and scores, ours on the device, theirs on the host."""
    if not run.cuda:
        return
    p, drawn = _paper(run)
    n = run.sizes.headline
    space = SearchSpace(p.model.parameters)
    scorer = AUTO.build(p)
    settings = {"population": n, "crossover_rate": 0.8}
    for generations in (3, 60):  # the first compiles
        genetic = make_optimizer("genetic", settings, space.n_free, 1, device_arrays())
        history = optimize(
            genetic, Objective(space, scorer), StopRules(generations=generations)
        ).history
    mine = float((history["seconds"][-1] - history["seconds"][9]) / 50)
    design = run.design(p, drawn, tune=False, stored=STORED[0])
    theirs = _generation_2012(design, n)
    run.rows.append(
        Row(
            f"a generation of {n:,}, 2012 design with its algorithm on the host", 1e3 * theirs, "ms"
        )
    )
    run.rows.append(
        Row(
            f"a generation of {n:,}, {AUTO.name}, all on the device",
            1e3 * mine,
            "ms",
            1e3 * theirs,
            mine / theirs,
            f"{theirs / mine:.0f} times faster",
        )
    )


def _generation_2012(design: Baseline2012, n: int) -> float:
    rng, parameters = np.random.default_rng(1), design.problem.model.parameters
    lower, upper = np.array([(x.lower, x.upper) for x in parameters]).T
    individuals = rng.uniform(lower, upper, (n, len(lower)))
    times = []
    for _ in range(4):
        start = time.perf_counter()
        cost = host(design.score(individuals.T).cost)
        individuals = next_generation(individuals, cost, lower, upper, rng, 0.8)
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


# --- the chip's limits ---------------------------------------------------------------------------


def limits(run: Run, p: Problem, found: dict[str, float]) -> None:
    """Operations and bytes a second of every way, beside what the chip can do."""
    peaks = {"float64": _peak(64), "float32": _peak(128)}
    bandwidth = _copy_bandwidth()
    run.rows.append(Row("limit: copy bandwidth, measured", bandwidth / 1e9, "GB/s"))
    for dtype, peak in peaks.items():
        run.rows.append(
            Row(f"limit: {dtype}, multiprocessors x lanes x 2 x clock", peak / 1e12, "Tflop/s")
        )
    if DESIGN_2012.name in found:
        moved = shared_bytes_2012(p)
        run.rows.append(
            compared(
                f"limit: {DESIGN_2012.name}, shared memory",
                moved * found[DESIGN_2012.name] / 1e9,
                "GB/s",
                _shared_bandwidth() / 1e9,
                f"{moved:,} bytes a candidate",
            )
        )
    for way in (DESIGN_2012, *OURS):
        if way.name not in found:
            continue
        flops, bytes_moved, note = counts(way, p)
        dtype = "float32" if way in (DESIGN_2012, STEPPING_32) else "float64"
        if flops is None:
            run.rows.append(missing(f"limit: {way.name}, operations", "Tflop/s", note))
        else:
            done = flops * found[way.name] / 1e12
            run.rows.append(
                compared(
                    f"limit: {way.name}, operations",
                    done,
                    "Tflop/s",
                    peaks[dtype] / 1e12,
                    f"{flops:,.0f} a candidate{note}",
                )
            )
        moved = bytes_moved * found[way.name] / 1e9
        run.rows.append(
            compared(
                f"limit: {way.name}, bytes",
                moved,
                "GB/s",
                bandwidth / 1e9,
                f"{bytes_moved:,.0f} a candidate",
            )
        )


def counts(way: Way, p: Problem) -> tuple[float | None, float, str]:
    """Operations (None: unknown) and bytes a candidate, and how they were counted."""
    n_parameters = len(p.model.parameters)
    moved = 8.0 * n_parameters + 8 + 1  # parameters read; cost and status written
    chains = [len(c.states) for c in p.model.chains]
    samples = len(p.scored.data_pA)
    if way is DESIGN_2012:
        scheme = p.model.expanded()
        step = 2 * len(entries(scheme)) + len(scheme.open_states) + 3
        every = _samples(p)
        sweeps = sum(e.protocol.n_sweeps for e in p.experiments)
        return every * step, sweeps * (4.0 * n_parameters + 8), ""
    scoring = getattr(way.build(p), "scoring", None)
    if way is CLOSED_FORM and scoring is not None:
        return float(scoring.operations()), moved, ", counted in the generated text"
    if way in (STEPPING_32, STEPPING_64):
        step = sum(2 * n * (n - 1) for n in chains) / 16
        return samples * (sum(2 * (n - 1) for n in chains) + 3 + step), moved, " at least"
    return None, moved, "this path does not count its operations"


def shared_bytes_2012(p: Problem) -> int:
    """What a candidate of the 2012 design reads and writes of shared memory, steps alone: Q and
    the occupancies, and the new occupancies."""
    scheme = p.model.expanded()
    return 4 * _samples(p) * (len(entries(scheme)) + 2 * len(scheme.states))


def _samples(p: Problem) -> int:
    """Of all sweeps."""
    return sum(e.protocol.n_times(k) for e in p.experiments for k in range(e.protocol.n_sweeps))


def _peak(lanes: int) -> float:
    """flop/s of that many multiply-add lanes a multiprocessor at the chip's clock."""
    return lanes * 2 * _clocks()


def _shared_bandwidth() -> float:
    """Bytes/s of shared memory: 32 banks of 4 bytes a multiprocessor at the chip's clock."""
    return 32 * 4 * _clocks()


def _clocks() -> float:
    """Cycles a second of all multiprocessors together."""
    clock = device_arrays().cuda.Device().attributes["ClockRate"] * 1e3  # kHz
    return float(gpu.device().n_multiprocessors * clock)


def _copy_bandwidth() -> float:
    """Bytes/s read and written by a copy of 2 GB."""
    xp = device_arrays()
    source = xp.zeros(1 << 28, dtype=np.float64)
    target = xp.empty_like(source)
    return 2 * source.nbytes / gpu.timed(lambda: xp.copyto(target, source))


# --- other parts ---------------------------------------------------------------------------------


def samples(run: Run) -> None:
    """Ten times the samples; the design's block is that of the headline, where it ran."""
    model = load_model(ROOT / "models" / "model_b.yaml")
    p, drawn = problem(model, paper_protocols(5000)), candidates(model, run.sizes.headline)
    few = candidates(model, run.sizes.fine, seed=2)
    run.rates("model B, 25 x 5,000", p, drawn, for_backend(_name(run), OURS), few, tune=False)


def herg(run: Run) -> None:
    """The sine wave: what cannot be shared between samples."""
    model = load_model(ROOT / "models" / "herg_beattie.yaml")
    protocol = load_protocol(ROOT / "protocols" / "herg_sine_wave.yaml")
    p = _silent(model, protocol)
    for kind, drawn in (
        ("own values", np.repeat(model.values()[:, None], run.sizes.herg, axis=1)),
        ("random", candidates(model, run.sizes.herg)),
    ):
        n = _fitting(p, drawn, run)
        title = f"hERG sine wave, {protocol.n_times_max:,} samples, {kind}, {n:,} candidates"
        found = run.rates(
            title,
            p,
            np.ascontiguousarray(drawn[:, :n]),
            for_backend(_name(run), OURS),
            tune=kind == "own values",
        )
        cores, few = usable_cores(), np.ascontiguousarray(drawn[:, : max(64, run.sizes.herg // 64)])
        if not run.cuda:
            continue
        on_cpu = rate(CPU_64.build(p), few, 3)
        run.rows.append(Row(f"{title}: {CPU_64.name}, {cores} cores", on_cpu, UNIT))
        for way in (STEPPING_32, STEPPING_64):
            if way.name in found:
                run.rows.append(
                    compared(f"{title}: {way.name} over cpu", found[way.name], UNIT, on_cpu)
                )


def _silent(model: ChannelModel, protocol: Protocol) -> Problem:
    """Weight 1 everywhere and data of 0 pA: as dear to score as any."""
    shape = (protocol.n_sweeps, protocol.n_times_max)
    recording = Recording(protocol.times_ms, np.zeros(shape), np.ones(shape))
    return Problem(model, (Experiment(protocol, recording),))


def _fitting(p: Problem, drawn: np.ndarray, run: Run) -> int:
    """The largest power of two of candidates that our way scores within LONGEST seconds."""
    way = STEPPING_64 if run.cuda else CPU_64
    n = min(1 << 14, drawn.shape[1])
    speed = rate(way.build(p), placed(way, np.ascontiguousarray(drawn[:, :n])), 1)
    while 2 * n <= min(drawn.shape[1], LONGEST * speed):
        n *= 2
    return n


def accuracy(run: Run) -> None:
    """Share of random candidates whose cost is the reference's within BARS, by every path."""
    models = ROOT / "models"
    cases = [
        (path, kind, n)
        for path in sorted([*models.glob("*.yaml"), *(models / "published").glob("*.yaml")])
        if "ligands:" not in path.read_text(encoding="utf-8")  # its protocols command none
        for kind, n in (("steps", run.sizes.steps), ("varying", run.sizes.varying))
    ]
    # New processes: one that was forked could not use the GPU, and the reference has one thread.
    with ProcessPoolExecutor(usable_cores(), get_context("spawn")) as pool:
        for case, truth in zip(cases, pool.map(_truth, cases), strict=True):
            model, p, drawn = _drawn(*case)
            for name, build, on_gpu in _exact_ways(run, p):
                scorer, reason = attempt(build)
                title = f"{model.name}, {case[1]}: {name}"
                if scorer is None:
                    run.rows.append(missing(title, "%", reason))
                    continue
                way = CLOSED_FORM if on_gpu else CPU_64
                score = scorer.score(placed(way, drawn))
                bar = BARS["float32" if "float32" in name else "float64"]
                run.rows.append(_exact_row(title, score, truth, bar, scorer, drawn))
            print(f"accuracy: {model.name}, {case[1]} done", flush=True)


def _drawn(path: Path, kind: str, n: int) -> tuple[ChannelModel, Problem, np.ndarray]:
    model = load_model(path)
    p = problem(model, paper_protocols() if kind == "steps" else steps_and_varying()[kind])
    return model, p, candidates(model, n, seed=3)


def _truth(case: tuple[Path, str, int]) -> Score:
    _, p, drawn = _drawn(*case)
    return make_scorer(p, "reference").score(drawn)


def _exact_ways(run: Run, p: Problem) -> list[tuple[str, Callable[[], Any], bool]]:
    if not run.cuda:
        return [(way.name, partial(way.build, p), False) for way in ON_CPU if way.faster == 1.0]
    return [
        ("cuda, float64", lambda: make_scorer(p, "cuda"), True),
        ("cuda moments, float64", lambda: MOMENTS.build(p), True),
        ("cuda stepping, float64", lambda: STEPPING_64.build(p), True),
        ("cuda stepping, float32", lambda: STEPPING_32.build(p), True),
    ]


def _exact_row(
    title: str, score: Any, truth: Any, bar: float, scorer: Any, drawn: np.ndarray
) -> Row:
    good = truth.status == OK
    cost, status = host(score.cost).astype(float), host(score.status)
    with np.errstate(invalid="ignore"):
        near = good & (status == OK) & (np.abs(cost - truth.cost) <= bar * truth.cost)
    alike = near | (~good & (status != OK))  # what fails must fail here too
    note = error_note(score, truth)
    scoring = getattr(scorer, "scoring", None)
    if hasattr(scoring, "rerouted_share"):
        note += f"; {scoring.rerouted_share(device_arrays().asarray(drawn)):.1%} stepped"
    share = float(alike.mean())
    return Row(title, 100 * share, f"% within {bar:.0e}", 100.0, share, note)


def _name(run: Run) -> str:
    return "cuda" if run.cuda else "cpu"


PARTS: dict[str, Callable[[Run], None]] = {
    "headline": headline,
    "samples": samples,
    "generation": generation,
    "cpu": cpu,
    "herg": herg,
    "accuracy": accuracy,
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    folder = results_folder(options)
    run = Run(options.backend == "cuda", QUICK if options.quick else Sizes())
    device = device_name() if run.cuda else ""
    for part in options.parts:
        start, run.rows = time.perf_counter(), []
        PARTS[part](run)
        # after each, so that a run that is cut short leaves what it has measured
        finish(f"gpu_scoring_{part}", f"Scoring on one GPU: {part}", run.rows, device, folder)
        print(f"{part}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    as_script(main)
