"""A recording that is later than its protocol is seen at the end of a fit."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

import channelfit as cf
from channelfit.front.kinds import load_plan
from channelfit.results.mistiming import mistimed
from channelfit.scoring.scorer import make_scorer
from support.little import LITTLE

pytestmark = pytest.mark.usefixtures("undrawn")

STEP_MS, SAMPLING = 5.0, 0.1
LEVELS = (-40.0, 0.0, 40.0)


def currents(late_ms: float) -> np.ndarray:
    """Currents of the little channel in closed form, (3, 200) pA, late by a time."""
    a, z, b, g = 0.1, 0.02, 0.05, 10.0
    t = np.arange(200) * SAMPLING - late_ms
    rest = a * np.exp(-80 * z) / (a * np.exp(-80 * z) + b * np.exp(80 * z))
    rows = []
    for v in LEVELS:
        opening, closing = a * np.exp(z * v), b * np.exp(-z * v)
        end = opening / (opening + closing)
        inside = end + (rest - end) * np.exp(-(opening + closing) * np.maximum(t - STEP_MS, 0))
        before = t < STEP_MS - 1e-9
        rows.append(np.where(before, g * rest * 10.0, g * inside * (v + 90)))
    return np.array(rows)


@pytest.fixture
def recorded(tmp_path):
    """A fit file of currents that are late by a time."""

    def of(late_ms: float, noise: float = 2.0):
        current = currents(late_ms)
        current += noise * np.random.default_rng(0).normal(size=current.shape)
        table = np.column_stack([np.arange(200) * SAMPLING, current.T])
        np.savetxt(tmp_path / "d.csv", table, delimiter=",", header="t,a,b,c", comments="")
        protocol = {
            "holding": "-80 mV",
            "sampling": f"{SAMPLING} ms",
            "segments": [
                {"hold": f"{STEP_MS} ms"},
                {"step": {"values": [f"{v} mV" for v in LEVELS]}, "for": "15 ms"},
            ],
        }
        recording = {
            "file": "d.csv",
            "time": {"column": "t", "unit": "ms"},
            "current": {"columns": ["a", "b", "c"], "unit": "pA"},
        }
        fit = {"experiments": [{"protocol": "p.yaml", "recording": recording}]}
        (tmp_path / "p.yaml").write_text(yaml.safe_dump(protocol))
        (tmp_path / "fit.yaml").write_text(yaml.safe_dump({**LITTLE, "fit": fit}))
        return tmp_path / "fit.yaml"

    return of


def cautions(file, off: float = 1.0):
    plan = load_plan(file)
    values = plan.problem.model.values() * np.array([off, 1.0, 1.0, 1.0])
    scorer = make_scorer(plan.problem, "cpu", "float64")
    traces = [c[:, :, 0] for c in scorer.simulate(values[:, None])]
    return mistimed(plan, scorer, values, traces)


def test_a_delay_is_found_with_all_parameters_beside_it(recorded):
    (caution,) = cautions(recorded(0.5))
    assert "about 0.5 ms later" in caution.value
    assert "fit.yaml: fit.delay" in caution.place


@pytest.mark.parametrize("off", [1.0, 0.7])
def test_a_fit_that_is_merely_unfinished_or_noisy_is_not_called_late(recorded, off):
    assert cautions(recorded(0.0), off) == ()


def test_the_warning_stands_in_the_summary_and_is_shown(recorded, tmp_path):
    with pytest.warns(cf.InputWarning, match="later than the fit takes it for"):
        fit = cf.fit(recorded(0.5), seed=0, stop={"generations": 20})
    assert any("later than" in text for text in fit.warnings)
    fit.save(tmp_path / "run")
    rows = json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"]
    assert any("later than" in row["value"] for row in rows)
