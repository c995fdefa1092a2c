"""A shipped channel, exported and imported again, has the same currents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import build_protocol
from channelfit.reading.documents import read_yaml
from channelfit.scoring.scorer import make_scorer
from support import exports
from support.json_output import ran

pytestmark = pytest.mark.integration

SHIPPED = sorted(exports.MODELS.values())
#: pF; at 1 uF/cm2 the membrane for which an imported density is written, 1000 um2.
CAPACITANCE = 10.0
#: Where another variable is in units of a current as well.
_SEVERAL = (("ca_augustine", "mmt"),)
STEPS = {
    "holding": "-90.3 mV",
    "sampling": "0.1 ms",
    "segments": [
        {"hold": "1 ms"},
        {"step": {"from": "-119.7 mV", "to": "60.3 mV", "by": "20 mV"}, "for": "20 ms"},
        {"step": "-39.8 mV", "for": "10 ms"},
    ],
}


def currents(file: Path, like: Path) -> np.ndarray:
    """(n_sweeps, n_times), divided by the largest, at the temperature of another file.

    A mechanism does not say at which temperature it will run; NEURON's own is 6.3 degC.
    """
    document, other = read_yaml(file), read_yaml(like)
    if "temperature" in document and "temperature" in other:
        document["temperature"] = other["temperature"]
    model = build_model(document, file)
    problem = Problem(model, (Experiment(build_protocol(STEPS, None)),))
    found = make_scorer(problem, "cpu").simulate(model.values()[:, None])[0][:, :, 0]
    return np.asarray(found / np.abs(found).max())


@pytest.mark.parametrize("ending", ["mod", "mmt"])
@pytest.mark.parametrize(
    "file",
    [
        f
        if f.stem in ("na_hh", "herg_markov", "cav31_anwar")
        else pytest.param(f, marks=pytest.mark.slow)
        for f in SHIPPED
    ],
    ids=lambda f: f.stem,
)
def test_an_export_is_imported_as_the_same_channel(file: Path, ending: str, tmp_path: Path) -> None:
    pytest.importorskip("neuron" if ending == "mod" else "myokit")
    exported, again = tmp_path / f"channel.{ending}", tmp_path / "again.yaml"
    words = ["--to", "nmodl", "--capacitance", str(CAPACITANCE)]
    words = words if ending == "mod" else ["--to", "myokit"]
    ran("export", file, *words, "--out", exported)
    chosen = ["--current", "ca_augustine.i"] if (file.stem, ending) in _SEVERAL else []
    assert "agrees with the original" in ran("import", exported, *chosen, "--out", again).output
    np.testing.assert_allclose(currents(again, file), currents(file, file), rtol=0, atol=1e-9)
