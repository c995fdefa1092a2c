"""The ways to a score that benchmarks compare, and how each of them is timed.

A way that cannot score a problem gives the reason, which benchmarks print in place of a number.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from baseline_2012 import Baseline2012
from chains import paper_protocols

from channelfit.model.channel import ChannelModel
from channelfit.problem.experiment import Problem
from channelfit.problem.protocol import Protocol
from channelfit.reading.errors import InputError
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.threads import usable_cores
from channelfit.scoring.scorer import make_scorer
from scoring import candidates, neuron_rate, problem

TUNED_WITH = 1 << 18  # candidates: enough to fill every multiprocessor
#: Threads a block, and samples unrolled; the fastest pair counts as the design's own speed.
BLOCKS = (32, 64, 96, 128, 192, 256, 384, 512)
UNROLLED = (4, 16)


@dataclass(frozen=True)
class Way:
    """A named way from a problem to an object with `score`.

    Attributes:
        faster: times as fast as drawn are the rates of the candidates that are scored.
    """

    name: str
    build: Callable[[Problem], Any]
    on_gpu: bool = True
    faster: float = 1.0


def _cuda(dtype: str, path: str) -> Callable[[Problem], Any]:
    return lambda problem: make_scorer(problem, "cuda", dtype, path=path)


DESIGN_2012 = Way("2012 design", Baseline2012)
#: Not the design any more: its text with everything in registers, to tell what that alone gives.
IN_REGISTERS = Way("2012 design, in registers", lambda p: Baseline2012(p, stored="registers"))
STEPPING_32 = Way("stepping, float32", _cuda("float32", "stepping"))
STEPPING_64 = Way("stepping, float64", _cuda("float64", "stepping"))
CLOSED_FORM = Way("closed form, float64", _cuda("float64", "closed-form"))
MOMENTS = Way("moments, float64", _cuda("float64", "moments"))
AUTO = Way("cuda, float64", _cuda("float64", "auto"))  # what a user gets
CPU_32 = Way("cpu, float32", lambda problem: make_scorer(problem, "cpu", "float32"), False)
CPU_64 = Way("cpu, float64", lambda problem: make_scorer(problem, "cpu"), False)
#: Every path on the CPU, in float64.
ON_CPU = (
    *(
        Way(f"cpu, {path}", partial(make_scorer, backend="cpu", path=path), False)
        for path in ("stepping", "closed-form", "moments", "auto")
    ),
    *(
        Way(f"cpu, {path}, stiff", partial(make_scorer, backend="cpu", path=path), False, 1e4)
        for path in ("stepping", "moments")
    ),
)

STIFF = (
    *(
        Way(f"stepping, stiff, {t}", _cuda(t, "stepping"), faster=1e4)
        for t in ("float32", "float64")
    ),
    Way("moments, stiff, float64", _cuda("float64", "moments"), faster=1e4),
)
OURS = (STEPPING_32, STEPPING_64, CLOSED_FORM, MOMENTS)


def for_backend(backend: str, on_gpu: tuple[Way, ...]) -> list[Way]:
    """The ways to measure: those on the GPU, or the CPU's two in their place."""
    return list(on_gpu) if backend == "cuda" else [CPU_32, CPU_64]


def attempt(build: Callable[[], Any]) -> tuple[Any, str]:
    """(what was built, ""), or (None, why it cannot be)."""
    try:
        return build(), ""
    except InputError as error:
        return None, str(error)


def placed(way: Way, parameters: np.ndarray) -> Any:
    """Return parameters where the way needs them."""
    if not way.on_gpu:
        return parameters
    return device_arrays().asarray(parameters)


def device_arrays() -> Any:
    """The array module of the device."""
    return gpu.cupy()


def device_name() -> str:
    """Return the name of the GPU."""
    return gpu.device().name


def host(array: Any) -> np.ndarray:
    """The array on the host, whether it was there or not."""
    return array.get() if hasattr(array, "get") else np.asarray(array)


def seconds(scorer: Any, parameters: Any, repeats: int = 5) -> float:
    """Median time of a score, the first call not counted.

    As a search asks for them: short scores follow each other without a wait, and the costs of the
    last are read at the end.
    """

    def scores(n: int) -> float:
        start = time.perf_counter()
        for _ in range(n):
            cost = scorer.score(parameters).cost
        float(cost[-1])  # waits for the device
        return time.perf_counter() - start

    scores(1)
    n = int(np.clip(0.02 / scores(1), 1, 20))
    return float(np.median([scores(n) / n for _ in range(repeats)]))


def rate(scorer: Any, parameters: Any, repeats: int = 5) -> float:
    """Candidates/s."""
    return parameters.shape[1] / seconds(scorer, parameters, repeats)


def core_rate(scorer: Any, parameters: np.ndarray, repeats: int = 3) -> float:
    """Candidates a second of one core: by the least processor time of some scores."""
    scorer.score(parameters)
    times = []
    for _ in range(repeats):
        start = time.process_time()
        scorer.score(parameters)
        times.append(time.process_time() - start)
    return float(parameters.shape[1] / min(times))


def fastest_2012(problem: Problem, parameters: np.ndarray, stored: str = "shared") -> Baseline2012:
    """The 2012 design with the block that suits this device best, by measurement.

    The paper leaves tuning of the block to its user, so untuned it would be no fair opponent.
    Ours run as they come.
    """
    few = placed(DESIGN_2012, np.ascontiguousarray(parameters[:, :TUNED_WITH]))
    tried: dict[tuple[int, int], Baseline2012] = {}
    for unroll in UNROLLED:
        for threads in BLOCKS:
            design = Baseline2012(problem, threads, stored, unroll)
            if design.occupancy() > 0:  # else its registers are too many for such a block
                tried.setdefault((design.threads, unroll), design)
    return min(tried.values(), key=lambda design: seconds(design, few, 1))


def neuron_cores(model: ChannelModel, protocols: list[Protocol], n: int, cores: int) -> float:
    """Candidates/s of NEURON on so many cores, one process each, all at once.

    Raises:
        InputError: NEURON, or the compiler that it needs, is not here.
    """
    neuron_rate(model, protocols, 1)  # compiles the mechanism once, for all
    context = multiprocessing.get_context("spawn")
    with context.Pool(cores) as pool:
        return float(sum(pool.starmap(neuron_rate, [(model, protocols, n)] * cores, chunksize=1)))


def compile_for_cpu(models: list[ChannelModel]) -> None:
    """Fill the cache of the CPU backend, all models at once: a compile takes seconds."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(len(models), usable_cores())) as pool:
        pool.map(_compile, models, chunksize=1)


def _compile(model: ChannelModel) -> None:
    make_scorer(problem(model, paper_protocols(20)), "cpu").score(candidates(model, 1))


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that GPU benchmarks share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--out", type=Path, help="folder of the results; benchmarks/results")
    return parser


def results_folder(options: argparse.Namespace) -> Path | None:
    """Return the folder of results, None for the usual one; a trial never replaces measured ones.

    Ends the program where there is no GPU to measure.
    """
    if options.out is None and (options.quick or options.backend == "cpu"):
        raise SystemExit("a trial (--quick, --backend cpu) needs --out FOLDER")
    if options.backend == "cuda":
        _, reason = attempt(gpu.cupy)
        if reason:
            raise SystemExit(reason)
    folder: Path | None = options.out
    return folder
