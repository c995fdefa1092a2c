"""Measures how long a user waits, from the start of a command to its end.

    python benchmarks/waiting.py [--repeats 3] [--models model_b,na_hh] [--out DIR]
    python benchmarks/waiting.py --recordings [--backend cuda]

* The first score of a new model, with an empty cache, and that of a known model in a later process.
* `channelfit optimize models/model_b.yaml` right after installation and later, with its picture.
* `channelfit optimize` of two real recordings, in the folder that CHANNELFIT_DATA names: the search
  as its summary says, and the rest of the command, with report and picture. This part can be had
  alone, and on a GPU, of which `waiting_gpu.py` measures the first scores.
* `import channelfit`, and the help of every command.

Processes are held to two cores, where the system allows that. After an installation by pip all
packages have .pyc files, so a command that is not measured makes these first, in a folder of their
own: an installation may lack them and be read-only. The caches of Matplotlib, of channelfit and of
the GPU's driver are empty. Files are in the system's memory, as after they have been read once.
`against` is the time that a user should at most have to wait.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from report import Row, as_script, compared, finish, missing

from channelfit.scoring.machine import gpu

ROOT = Path(__file__).parent.parent
#: s
NEW_MODEL, KNOWN_MODEL = 2.0, 0.8
INSTALLED, LATER, IMPORT, HELP = 6.0, 2.5, 0.1, 0.1
#: s beside the search, of a model that is new and of one that is known
BESIDE_NEW, BESIDE_KNOWN = {"cpu": 3.0, "cuda": 3.0}, {"cpu": 1.2, "cuda": 1.5}
RECORDINGS = ("herg_sine_wave_16713110", "nav_iv_80cp")
_SCORE = """
import sys
from channelfit.front.kinds import load_plan
from channelfit.scoring.scorer import make_scorer
fit = load_plan(sys.argv[1], backend="cpu")
score = make_scorer(fit.problem, "cpu").score(fit.problem.model.values()[:, None])
assert score.status[0] == 0
"""
_COMMANDS = "from channelfit.front.main import main; print(*main.commands)"


@contextmanager
def installed() -> Iterator[dict[str, str]]:
    """The environment of processes for which nothing has been kept yet, and keeps what they do."""
    with tempfile.TemporaryDirectory() as folder:
        kept = ("CHANNELFIT_CACHE", "MPLCONFIGDIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH")
        environment = os.environ | {name: str(Path(folder) / name) for name in kept}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        yield environment


def seconds(arguments: list[str], environment: dict[str, str]) -> float:
    """Of one process of this Python."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, check=True, capture_output=True
    )
    return time.perf_counter() - start


def scores(model: Path, repeats: int) -> Iterator[Row]:
    """The first score of a model that is new, and of one that is known."""
    command, new, known = ["-c", _SCORE, str(model)], [], []
    for _ in range(repeats):
        with installed() as environment:
            new.append(seconds(command, environment))
            known.append(seconds(command, environment))
    yield _row(f"{model.stem}: new", new, NEW_MODEL)
    yield _row(f"{model.stem}: known", known, KNOWN_MODEL)


def searches(repeats: int) -> Iterator[Row]:
    """A whole search, the first one and another."""
    first, later, megabytes = [], [], 0.0
    for _ in range(repeats):
        with installed() as environment, tempfile.TemporaryDirectory() as folder:
            for k, found in enumerate((first, later)):
                out = Path(folder) / str(k)
                command = ["-m", "channelfit", "optimize", "models/model_b.yaml"]
                found.append(seconds([*command, "--out", str(out)], environment))
                if not (out / "traces.png").exists():
                    raise RuntimeError(f"{command} has drawn nothing")
            megabytes = _megabytes(Path(environment["CHANNELFIT_CACHE"]))
    yield _row("optimize model_b: right after installation", first, INSTALLED)
    yield _row("optimize model_b: later", later, LATER)
    yield Row("cache folder after it", megabytes, "MB")


def recordings(repeats: int, backend: str) -> Iterator[Row]:
    """Return rows of whole searches on real recordings, the first one of a model and another."""
    for fit in RECORDINGS:
        if not os.environ.get("CHANNELFIT_DATA"):
            reason = "CHANNELFIT_DATA names no folder of recordings"
            print(f"optimize {fit}: skipped, {reason}", flush=True)
            yield missing(f"optimize {fit}", "s", reason)
            continue
        found: dict[str, list[tuple[float, float]]] = {"new": [], "known": []}
        for _ in range(repeats):
            with installed() as environment, tempfile.TemporaryDirectory() as folder:
                for kind, times in found.items():
                    out = Path(folder) / kind
                    command = ["-m", "channelfit", "optimize", f"models/fits/{fit}.yaml"]
                    command += ["--backend", backend]
                    whole = seconds([*command, "--out", str(out)], environment)
                    if not all((out / name).exists() for name in ("traces.png", "report.html")):
                        raise RuntimeError(f"{command} has drawn nothing")
                    search = json.loads((out / "summary.json").read_text())["seconds"]
                    times.append((search, whole - search))
        for kind, bearable in (("new", BESIDE_NEW), ("known", BESIDE_KNOWN)):
            searched, rest = zip(*found[kind], strict=True)
            yield _row(f"optimize {fit}, {kind}: search", list(searched), None)
            yield _row(f"optimize {fit}, {kind}: all beside it", list(rest), bearable[backend])


def answers(repeats: int) -> Iterator[Row]:
    """The import and the helps."""
    with installed() as environment:
        imports = [seconds(["-c", "import channelfit"], environment) for _ in range(repeats)]
        yield _row("import channelfit", imports, IMPORT)
        listed = subprocess.run(
            [sys.executable, "-c", _COMMANDS],
            env=environment,
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        for name in ("", *listed.stdout.split()):
            command = ["-m", "channelfit", *name.split(), "--help"]
            helps = [seconds(command, environment) for _ in range(repeats)]
            yield _row(" ".join(["channelfit", *command[2:]]), helps, HELP)


def _row(name: str, times: list[float], against: float | None) -> Row:
    """The median, and how far apart the times are."""
    note, median = f"{min(times):.2f} to {max(times):.2f} s", float(np.median(times))
    note += f" in {len(times)} runs" if len(times) > 1 else ""
    row = Row(name, median, "s", note=note)
    if against is not None:
        row = compared(name, median, "s", against, note)
    print(f"{row.name}: {row.value:.3g} s ({note})", flush=True)
    return row


def _megabytes(folder: Path) -> float:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", help="some of those in models/; default: all, and the rest")
    parser.add_argument("--recordings", action="store_true", help="whole fits of recordings alone")
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu", help="of recordings")
    parser.add_argument("--out", type=Path, help="folder of waiting.json")
    options = parser.parse_args()
    if options.backend == "cuda" and not options.recordings:
        parser.error("--backend cuda is for --recordings; waiting_gpu.py measures the first scores")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:2]))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Measure what the command line names, and write it."""
    models = sorted((ROOT / "models").glob("*.yaml"))
    with installed() as environment, tempfile.TemporaryDirectory() as out:
        command = ["-m", "channelfit", "optimize", "models/model_b.yaml", "--out", f"{out}/new"]
        seconds([*command, "--backend", options.backend], environment)  # compiles all libraries
        seconds(["-c", _SCORE, str(models[0])], environment)
    rows: list[Row] = []
    if options.recordings:
        rows += recordings(options.repeats, options.backend)
        device = gpu.device().name if options.backend == "cuda" else ""
        title = "Waiting for whole fits of recordings, known and new models, two cores of the host"
        name = f"waiting_recordings_{options.backend}"
        finish(name, title, rows, device=device, folder=options.out)
        return
    for model in models:
        if options.models is None or model.stem in options.models.split(","):
            rows += scores(model, options.repeats)
    if options.models is None:
        rows += [*searches(options.repeats), *recordings(options.repeats, "cpu")]
        rows += [*answers(2 * options.repeats + 1)]
    title = "Waiting, whole processes on two cores; `against` is what a user should bear"
    finish("waiting", title, rows, folder=options.out)


if __name__ == "__main__":
    as_script(main)
