"""Ten fits of model B from the command line, as a user runs them: does every seed find it?

    python benchmarks/fit_model_b.py [--seeds 10]

The first run starts with an empty cache, so it compiles. A fit has arrived when the RMS of the
difference to the surrogate data is within 1 % of their peak.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from report import Row, as_script, finish

ROOT = Path(__file__).parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    seeds = parser.parse_args().seeds
    rms, seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "CHANNELFIT_CACHE": str(Path(folder) / "cache")}
        for seed in range(seeds):
            command = [
                sys.executable,
                "-m",
                "channelfit",
                "optimize",
                str(ROOT / "models" / "model_b.yaml"),
                "--seed",
                str(seed),
                "--out",
                str(Path(folder) / f"run{seed}"),
                "--json",
            ]
            start = time.perf_counter()
            done = subprocess.run(
                command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
            )
            seconds.append(time.perf_counter() - start)
            rms.append(
                100 * json.loads(done.stdout.splitlines()[-1])["summary"]["rms_relative_to_peak"]
            )
            print(f"seed {seed}: RMS {rms[-1]:.3f} % of the peak, {seconds[-1]:.1f} s", flush=True)
    rows = [
        Row("fits within 1 % of the peak", float(np.sum(np.array(rms) <= 1)), f"of {seeds}"),
        Row("RMS, median", float(np.median(rms)), "% of peak"),
        Row("RMS, worst", float(np.max(rms)), "% of peak"),
        Row("whole command, first (compiles)", seconds[0], "s"),
        Row("whole command, later, median", float(np.median(seconds[1:] or seconds)), "s"),
    ]
    finish("fit_model_b", "channelfit optimize models/model_b.yaml", rows)


if __name__ == "__main__":
    as_script(main)
