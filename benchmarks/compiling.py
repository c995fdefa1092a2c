"""Measures how long we and Numba take to compile the same text, and how fast the results run.

    python benchmarks/compiling.py [--models model_b,na_hh] [--dtype float64] [--out DIR]

For each shipped model this takes the stepping kernel, and the closed form where that is chosen.
Times are seconds of processor time on one core; `value` is ours and `against` is Numba's. The runs
alternate, and the shortest of several counts. Both get the same text and the same arguments, and
both may contract a product and a sum to one instruction. Their results are compared to the bit.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from report import Row, as_script, compared, finish

from channelfit.front.kinds import load_plan
from channelfit.scoring import cpu
from channelfit.scoring.choose_path import choose_path
from channelfit.scoring.cpu import CpuModes, CpuStepping
from channelfit.scoring.machine import machine_code
from channelfit.scoring.machine.kernel_text import Source
from channelfit.scoring.machine.machine_code import Kernel
from channelfit.search.plan import FitPlan

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests"))

from support.kernel_ways import with_numba  # noqa: E402

REPEATS, LEAST = 15, 0.02  # runs of each side, and how long one is at least, s


class Call:
    """The kernel that the CPU backend would run for candidates, and its arguments."""

    kernel: Kernel
    arguments: tuple[Any, ...]

    def __init__(self, score: Callable[[], Any]) -> None:
        def catch(
            run: Kernel, parameters: np.ndarray, arguments: list[Any], lanes: int, n_threads: int
        ) -> None:
            blocks = -(-parameters.shape[1] // lanes)
            self.kernel, self.arguments = run, (parameters, 0, blocks, *arguments)
            run(*self.arguments)

        kept, cpu.shared_kernel = cpu.shared_kernel, catch
        try:
            score()
        finally:
            cpu.shared_kernel = kept


def calls(fit: FitPlan, dtype: str) -> Iterator[tuple[str, Call]]:
    """Stepping, and the closed form where it is the choice."""
    values = fit.problem.model.values()
    factors = np.exp(0.2 * np.random.default_rng(1).standard_normal((len(values), 64)))
    candidates = np.ascontiguousarray(values[:, None] * factors)
    stepping = CpuStepping(fit.problem, dtype)
    yield "stepping", Call(lambda: stepping.score(candidates, 1))
    if choose_path(fit.problem, dtype, "auto", "cpu") == "closed-form":
        modes = CpuModes(fit.problem)
        yield "closed form", Call(lambda: modes.score(candidates, 1))


def processor_time(run: Callable[[], Any]) -> float:
    start = time.thread_time()
    run()
    return time.thread_time() - start


def results(call: Call) -> list[np.ndarray]:
    return [a.copy() for a in call.arguments if isinstance(a, np.ndarray)]


def measured(name: str, call: Call) -> Iterator[Row]:
    """Compilation and speed of both."""
    text, function = call.kernel.source.text, call.kernel.name
    types = tuple(
        call.kernel._type((a.dtype, a.ndim) if isinstance(a, np.ndarray) else type(a))
        for a in call.arguments
    )
    ours = processor_time(
        lambda: machine_code._compiled(Kernel(Source(text, "text"), function), types)
    )
    call.kernel(*call.arguments)
    found = results(call)
    numba = getattr(with_numba(text), function)
    theirs = processor_time(lambda: numba(*call.arguments))
    same = all(
        np.array_equal(a, b, equal_nan=True) for a, b in zip(found, results(call), strict=True)
    )
    note = "" if same else "not the same bits"
    yield compared(f"{name}: compilation", ours, "s", theirs, note)
    made, words = call.kernel.bound(*call.arguments)
    times = 1 + int(LEAST / max(1e-6, processor_time(lambda: made.run(words))))

    def many(run: Callable[[], Any]) -> float:
        return processor_time(lambda: [run() for _ in range(times)]) / times

    pairs = [
        (many(lambda: made.run(words)), many(lambda: numba(*call.arguments)))
        for _ in range(REPEATS)
    ]
    best = [min(side) for side in zip(*pairs, strict=True)]
    yield compared(f"{name}: 64 candidates", 1e3 * best[0], "ms", 1e3 * best[1], note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", type=lambda text: text.split(","))
    parser.add_argument("--dtype", default="float64", choices=("float64", "float32"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    machine_code._initialized()
    rows: list[Row] = []
    for path in sorted((ROOT / "models").glob("*.yaml")):
        if options.models and path.stem not in options.models:
            continue
        for way, call in calls(load_plan(path), options.dtype):
            rows += measured(f"{path.stem}, {way}", call)
    finish("compiling", "Ours against Numba on the same text, one core", rows, folder=options.out)


if __name__ == "__main__":
    as_script(main)
