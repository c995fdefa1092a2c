"""Measures how long a user with a GPU waits for the first score of a new and of a known model.

    python benchmarks/waiting_gpu.py

Every time is that of a whole process, from the command to its end: imports, the model and its
simulated data, the context of the GPU, compilation, and a score. A model is new if neither our
cache nor that of the driver holds anything of it. Packages have their bytecode, as after an
installation by pip. An empty CUDA program is measured too, because nothing can be faster.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from report import Row, as_script, compared, finish

from channelfit.scoring.machine import gpu

ROOT = Path(__file__).parent.parent
NEW_MODEL, KNOWN_MODEL = 3.0, 2.0  # s
REPEATS = 2
_EMPTY = "import cupy; cupy.zeros(1).get()"
_IMPORTS = (
    "from channelfit.front.kinds import load_plan; "
    "from channelfit.scoring.scorer import make_scorer; import channelfit.scoring.cuda"
)
_SCORE = """
import sys, time
from channelfit.scoring.machine import gpu
from channelfit.front.kinds import load_plan
from channelfit.scoring.scorer import make_scorer
waited = []
def timed(call):
    def timing(*arguments):
        start = time.perf_counter()
        module = call(*arguments)
        waited.append(time.perf_counter() - start)
        return module
    return timing
gpu.compile_cuda = timed(gpu.compile_cuda)
gpu.Compilation.module = timed(gpu.Compilation.module)
fit = load_plan(sys.argv[1], backend="cuda")
scorer = make_scorer(fit.problem, "cuda")
score = scorer.score(fit.problem.model.values()[:, None])
assert score.status[0] == 0
print(f"{scorer.path}; {sum(waited):.2f} s of it for {len(waited)} programs")
"""


#: Where Python keeps bytecode, even of packages in an image that was built without.
BYTECODE = tempfile.TemporaryDirectory()


def run(arguments: list[str], folder: Path) -> tuple[float, str]:
    """Seconds of a process that keeps what it compiles in a folder, and what it printed."""
    caches = {"CHANNELFIT_CACHE": folder / "ours", "CUDA_CACHE_PATH": folder / "driver"}
    environment = {**os.environ, **{name: str(path) for name, path in caches.items()}}
    environment["PYTHONPYCACHEPREFIX"] = BYTECODE.name
    for name in ("CUPY_CACHE_DIR", "PYTHONDONTWRITEBYTECODE"):
        environment.pop(name, None)
    command, start = [sys.executable, "-c", *arguments], time.perf_counter()
    done = subprocess.run(
        command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return time.perf_counter() - start, done.stdout.strip()


def median(text: str, folder: Path) -> float:
    return float(np.median([run([text], folder)[0] for _ in range(REPEATS)]))


def model_rows(path: Path) -> list[Row]:
    """New: each time with an empty folder; known: with the last of them."""
    new, known, told = [], [], ""
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as folder:
            seconds, told = run([_SCORE, str(path)], Path(folder))
            new.append(seconds)
            known.append(run([_SCORE, str(path)], Path(folder))[0])
    return [
        compared(f"{path.stem}: new", float(np.median(new)), "s", NEW_MODEL, told),
        compared(f"{path.stem}: known", float(np.median(known)), "s", KNOWN_MODEL),
    ]


def main() -> None:
    name = gpu.device().name
    with tempfile.TemporaryDirectory() as folder:
        run([_SCORE, str(ROOT / "models" / "model_a.yaml")], Path(folder))  # writes bytecode
        rows = [
            Row("an empty CUDA program", median(_EMPTY, Path(folder)), "s"),
            Row("imports alone", median(_IMPORTS, Path(folder)), "s"),
        ]
    for path in sorted((ROOT / "models").glob("*.yaml")):
        rows += model_rows(path)
    title = "Waiting with a GPU, whole process; `against` is what a user should bear"
    finish("waiting_gpu", title, rows, device=name)


if __name__ == "__main__":
    as_script(main)
