"""The two fits to real recordings from the command line, and the prediction of one not fitted.

    CHANNELFIT_DATA=folder python benchmarks/real_data.py

hERG cell 16713110 is fitted on the sine wave; the action-potential recording of the same cell is
then predicted. `against` is what the published parameters leave of the same samples.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from report import Row, compared, finish

from channelfit.backends import make_scorer
from channelfit.documents import Section
from channelfit.fit import load_fit
from channelfit.model import ChannelModel, load_model
from channelfit.problem import Experiment, Problem
from channelfit.protocol import load_protocol
from channelfit.recording import load_recording

ROOT = Path(__file__).parent.parent
FITS = ROOT / "models" / "fits"
_AP = {"file": "${CHANNELFIT_DATA}/herg_sine_wave/ap_16713110.mat",
       "current": {"column": "T", "unit": "nA"}, "sampling": "0.1 ms"}  # fmt: skip


def optimized(name: str, folder: Path) -> tuple[dict[str, object], ChannelModel]:
    """Summary and fitted model of one `channelfit optimize`, seed 1."""
    command = [sys.executable, "-m", "channelfit", "optimize", str(FITS / f"{name}.yaml"),
               "--seed", "1", "--out", str(folder / name), "--json"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout), load_model(folder / name / "fit.yaml")


def rms(problem: Problem) -> float:
    """pA over the scored samples, with the model's own values."""
    score = make_scorer(problem).score(problem.model.values()[:, None])
    return float(np.sqrt(score.cost[0]))


def main() -> None:
    if not os.environ.get("CHANNELFIT_DATA"):
        sys.exit("set CHANNELFIT_DATA to the folder that holds herg_sine_wave/ and nav_iv/")
    rows = []
    published = load_model(ROOT / "models" / "herg_beattie.yaml")
    action_potential = load_protocol(ROOT / "protocols" / "herg_ap.yaml")
    held_back = load_recording(Section(_AP, None), action_potential)
    with tempfile.TemporaryDirectory() as temporary:
        for name in ("herg_sine_wave_16713110", "nav_iv_80cp"):
            summary, fitted = optimized(name, Path(temporary))
            note = f"{summary['evaluations']:,} candidates in {summary['seconds']:.0f} s"
            if name == "nav_iv_80cp":
                rows.append(Row(f"{name}: fit, RMS", float(summary["rms_pA"]), "pA", note=note))
                continue
            sine = load_fit(FITS / f"{name}.yaml").problem.experiments
            against = rms(Problem(published, sine))
            rows.append(
                compared(f"{name}: fit, RMS", float(summary["rms_pA"]), "pA", against, note)
            )
            unseen = (Experiment(action_potential, held_back),)
            rows.append(compared("ap_16713110: predicted, RMS", rms(Problem(fitted, unseen)), "pA",
                                 rms(Problem(published, unseen)), "not fitted"))  # fmt: skip
    finish("real_data", "Fits to real recordings, seed 1; `against`: published values", rows)


if __name__ == "__main__":
    main()
