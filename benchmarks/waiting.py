"""How long a user waits: for the help, for the first score of a new model and of a known one.

    python benchmarks/waiting.py

Every figure is a whole process, from the command to its end. A new model is one whose code is not
in the cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from report import Row, compared, finish

ROOT = Path(__file__).parent.parent
NEW_MODEL, KNOWN_MODEL, HELP = 15.0, 2.0, 0.5  # s
_SCORE = """
import sys
from channelfit import load_fit, make_scorer
fit = load_fit(sys.argv[1])
score = make_scorer(fit.problem).score(fit.problem.model.values()[:, None])
assert score.status[0] == 0
"""


def seconds(command: list[str], environment: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    python = sys.executable
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "CHANNELFIT_CACHE": cache}
        for path in sorted((ROOT / "models").glob("*.yaml")):
            command = [python, "-c", _SCORE, str(path)]
            first = seconds(command, environment)
            rows.append(compared(f"{path.stem}: new", first, "s", NEW_MODEL))
            known = float(np.median([seconds(command, environment) for _ in range(3)]))
            rows.append(compared(f"{path.stem}: known", known, "s", KNOWN_MODEL))
        answers = [seconds([python, "-m", "channelfit", "--help"], environment) for _ in range(5)]
        rows.append(compared("channelfit --help", float(np.median(answers)), "s", HELP))
        rows.append(Row("cache folder", _megabytes(Path(cache)), "MB"))
    finish("waiting", "Waiting, whole process; `against` is what a user should bear", rows)


def _megabytes(folder: Path) -> float:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / 1e6


if __name__ == "__main__":
    main()
