"""Measures what a second worker is worth: a batch, curves and islands, by one and by two workers.

    python benchmarks/workers.py [--backend cpu --parts batch curves islands --workers 1 2]

Workers are processes of this computer, as `--cluster local:N` starts them. On processors each has
one core, on GPUs one GPU (`--backend cuda`) and its share of the cores. The clock runs while pieces
are done, after workers have done some pieces of the same work, so that nothing is compiled; it
includes that the work is sent, that results come back, and the waiting for the last of them. The
efficiency of n workers is the time of one over n times theirs. All results are compared, and must
be the same to the bit.

* batch: wells of the plate of `plate.py`, read from one file, in pieces.
* curves: images of a Gaussian with Poisson noise, as in `curves.py`.
* islands: the genetic algorithm, four islands, an epoch of an island a piece. On processors the
  three states of model_b. A GPU would do such an epoch in the time in which its population is sent,
  so there it is a well of the plate, whose generation takes as long as is worth a second GPU.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from plate import Plate, planned
from report import RESULTS, Row, as_script, compared, finish

from channelfit.batch.run import BatchListener, BatchRequest, ready
from channelfit.batch.search import SearchSettings
from channelfit.curves.batch import CurveSettings
from channelfit.curves.curve import load_curve
from channelfit.curves.curve_tasks import CurveTasks
from channelfit.curves.data_files import read_data
from channelfit.front.kinds import load_plan
from channelfit.reading.documents import dump_yaml
from channelfit.results.identity import identity
from channelfit.scoring.machine import gpu
from channelfit.scoring.scorer import make_scorer
from channelfit.search.fit_tasks import FitTasks, epochs_by
from channelfit.search.loop import StopRules, optimize
from channelfit.tasks.cluster import open_cluster
from channelfit.tasks.cluster_start import gpus
from channelfit.tasks.executor import Executor, TaskSet
from channelfit.tasks.result_store import Arrays, Key

ROOT = Path(__file__).parent.parent
SEED = 5
#: Of the protocol as its file has it, ms.
SAMPLING = 0.5


class Timed:
    """An executor that counts the seconds in which tasks are computed, and keeps the results."""

    def __init__(self, executor: Executor) -> None:
        self.executor, self.seconds = executor, 0.0
        self.found: dict[Key, Arrays] = {}

    def __call__(self, tasks: TaskSet, keys: Sequence[Key]) -> Any:
        """Yields what the other executor yields."""
        began = time.perf_counter()
        for key, arrays in self.executor(tasks, keys):
            self.found[key] = arrays
            self.seconds += time.perf_counter() - began
            yield key, arrays
            began = time.perf_counter()
        self.seconds += time.perf_counter() - began


def pieces(work: Any, executor: Executor, workers: int) -> Timed:
    """All tasks of a set, after some of them have been computed to get warm."""
    keys = work.keys
    list(executor(work, keys[: 2 * workers]))
    timed = Timed(executor)
    list(timed(work, keys))
    return timed


def batch(folder: Path, backend: str, wells: int) -> Any:
    """The wells of a plate as the work of `channelfit batch`."""
    plan = planned(SAMPLING)
    plate = Plate(plan, wells).wells
    data = np.stack([p.experiments[0].recording.current_pA.ravel() for p in plate])
    np.save(folder / "plate.npy", data)
    recorded = {"file": "plate.npy", "sampling": f"{SAMPLING} ms", "current": {"unit": "pA"}}
    protocol = str(ROOT / "protocols" / "staircase.yaml")
    document = plan.document | {
        "fit": {"experiments": [{"protocol": protocol, "recording": recorded}]}
    }
    file = folder / "fit.yaml"
    file.write_text(dump_yaml(document), encoding="utf-8")
    size = 8 if backend == "cpu" else 96
    request = BatchRequest(
        file,
        (str(folder / "plate.npy"),),
        settings=SearchSettings(backend=backend),
        seed=SEED,
        size=size,
    )
    return ready(request, BatchListener()).work


def curves(folder: Path, backend: str, sets: int) -> CurveTasks:
    """Images of one spot each as the work of `channelfit curves`."""
    random = np.random.default_rng(SEED)
    y, x = np.mgrid[:11, :11]
    center = random.uniform(4, 6, (2, sets, 1, 1))
    size, width = random.uniform(200, 600, (sets, 1, 1)), random.uniform(1.2, 2.0, (sets, 1, 1))
    spot = size * np.exp(-((x - center[0]) ** 2 + (y - center[1]) ** 2) / (2 * width**2))
    np.save(folder / "images.npy", random.poisson(spot + 10).astype(np.float32))
    curve = replace(load_curve("gaussian_2d"), likelihood="poisson")
    groups = read_data(folder / "images.npy", curve, {})
    dtype = "float64" if backend == "cpu" else "float32"
    return CurveTasks(curve, groups, CurveSettings(backend, dtype))


def islands(executor: Executor, backend: str, workers: int) -> Timed:
    """Epochs of four islands."""
    plan = load_plan(ROOT / "models" / "model_b.yaml", backend="cpu")
    settings = {"population": 16_384, "islands": 4, "migrate_every": 20}
    if backend == "cuda":
        plan = planned(SAMPLING)
        plan = replace(plan, problem=Plate(plan, 1).wells[0])
    plan = replace(plan, optimizer="genetic", settings=settings, seed=SEED, solved=())
    scorer = make_scorer(plan.problem, backend)
    work = FitTasks(plan, backend, "float64", "auto", identity(plan, scorer))
    whole = 160 if backend == "cpu" else 80
    for generations, timed in ((20 * workers, Timed(executor)), (whole, Timed(executor))):
        optimizer = plan.make_optimizer(scorer.xp)
        optimizer.epoch = epochs_by(timed, work)
        optimize(optimizer, plan.objective(scorer), StopRules(generations=generations))
    return timed


def measured(part: str, backend: str, workers: int, works: dict[str, Any]) -> Timed:
    """One part by so many workers."""
    everything = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    cards = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        if everything:
            cores = workers
            if backend == "cuda":
                cores = workers * (len(everything) // max(1, len(gpus())))
            os.sched_setaffinity(0, sorted(everything)[:cores])
        with open_cluster(f"local:{workers}") as executor:
            if part == "islands":
                return islands(executor, backend, workers)
            return pieces(works[part], executor, workers)
    finally:
        if everything:
            os.sched_setaffinity(0, everything)
        if cards is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = cards


def same(one: Timed, other: Timed) -> bool:
    """Return whether all results are the same to the bit."""
    return one.found.keys() == other.found.keys() and all(
        np.array_equal(value, other.found[key][name], equal_nan=value.dtype.kind == "f")
        for key, arrays in one.found.items()
        for name, value in arrays.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--parts", nargs="+", default=["batch", "curves", "islands"], metavar="PART"
    )
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--wells", type=int, default=64)
    parser.add_argument("--sets", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder, works = Path(name), dict[str, Any]()
        if "batch" in options.parts:
            works["batch"] = batch(folder, options.backend, options.wells)
        if "curves" in options.parts:
            works["curves"] = curves(folder, options.backend, options.sets)
        for part in options.parts:
            first: Timed | None = None
            for workers in options.workers:
                found = measured(part, options.backend, workers, works)
                first = first or found
                equal = "the same bits" if same(first, found) else "OTHER RESULTS"
                note = f"{len(found.found)} pieces, {equal}"
                label = f"{part}, {workers} worker{'s' * (workers > 1)}"
                rows.append(compared(label, found.seconds, "s", first.seconds, note))
                share = options.workers[0] * first.seconds / (workers * found.seconds)
                rows.append(Row(f"{label}: efficiency", share, "1"))
                print(f"{label}: {found.seconds:.2f} s, efficiency {share:.3f}", flush=True)
    what = "a core" if options.backend == "cpu" else "a GPU"
    device = gpu.device().name if options.backend == "cuda" else ""
    title = f"workers with {what} each"
    finish(f"workers_{options.backend}", title, rows, device, options.out)


if __name__ == "__main__":
    as_script(main)
