"""`channelfit batch` over drugs, each at concentrations of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

import channelfit as cf
from channelfit.batch.results import Results
from channelfit.batch.table import WellTable
from support.plate_folder import called

MODEL = {
    "name": "block",
    "ligands": ["drug"],
    "states": ["C", "O", "B"],
    "rates": {
        "C -> O": "0.02*exp(0.03*v)",
        "O -> C": "0.005*exp(-0.03*v)",
        "O -> B": "koff*drug/ic50",
        "B -> O": "koff",
    },
    "current": {"open": ["O"], "conductance": "gmax", "reversal": "-90 mV"},
    "parameters": {
        "ic50": {"range": [1e-6, 1], "unit": "mM", "scale": "log", "value": 1e-4},
        "koff": {"range": [1e-5, 0.1], "unit": "1/ms", "scale": "log", "value": 1e-3},
        "gmax": {"range": [1, 100], "unit": "nS", "value": 10},
    },
}
PULSE = [{"hold": 200}, {"step": 0, "for": 2000}]
#: By drug ic50, mM, koff, 1/ms, and concentrations, nM.
DRUGS = {"x": (3e-5, 5e-4, (10, 100)), "y": (1e-3, 5e-3, (300, 3000)), "z": (3e-4, 2e-3, (99, 999))}
NOISE = 3.0


def test_drugs_at_their_own_concentrations_become_one_table(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    random, lines = np.random.default_rng(1), ["file,low,high"]
    for drug, (ic50, koff, nM) in DRUGS.items():
        doses = {"step": {"values": [0, *(1e-6 * c for c in nM)]}}
        pulse = cf.Protocol.from_segments(PULSE, holding=-80, sampling=5, ligands={"drug": doses})
        clean = cf.simulate(cf.Model(**MODEL), pulse, values={"ic50": ic50, "koff": koff}).current
        noisy = clean + random.normal(0, NOISE, clean.shape)
        np.savetxt(f"{drug}.csv", noisy.T, delimiter=",")
        lines.append(f"{drug}.csv,{nM[0]},{nM[1]} nM")
    Path("drugs.csv").write_text("\n".join(lines))
    cf.Protocol.from_segments(PULSE, holding=-80, sampling=5).save("pulse.yaml")
    Path("block.yaml").write_text(yaml.safe_dump(MODEL))
    row = {
        "protocol": "pulse.yaml",
        "ligands": {"drug": {"step": {"values": ["0 nM", "{low} nM", "{high}"]}}},
        "recording": {
            "file": "x.csv",
            "sampling": "5 ms",
            "current": {"columns": "all", "unit": "pA"},
        },
    }
    Path("fit.yaml").write_text(
        yaml.safe_dump({"model": "block.yaml", "fit": {"experiments": row}})
    )
    assert "3 wells: 3 ok" in called("fit.yaml", "drugs.csv", "--out", "run").stdout
    table = WellTable.read(Path("run"))
    assert list(table["well"]) == list(DRUGS)
    for k, name in enumerate(("ic50", "koff")):
        true = np.array([row[k] for row in DRUGS.values()])
        assert (np.abs(table[name] - true) < 4 * table[f"{name}_error"]).all()
    # peaks fall with the dose, which is no run-down
    assert np.isnan(table["run_down"]).all()
    # the traces of each are those at its own concentrations
    apart = Results.read(Path("run")).traces["residual"]
    assert np.nanstd(apart, axis=1) == pytest.approx(1.5 * NOISE, rel=0.5)
    without = called("fit.yaml", "x.csv", "--out", "none", code=2)
    assert "ligands.drug.step.values: nothing is known of {low} for x" in without.stderr
