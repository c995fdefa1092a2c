"""A fit file beside its model: what each says, which of them holds, and what a saved fit keeps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from channelfit.front.kinds import load_plan
from channelfit.reading.documents import dump_yaml, parse_yaml
from channelfit.reading.errors import InputError
from channelfit.results.export.subject import subject_of
from channelfit.scoring.scorer import make_scorer
from channelfit.search.plan import FitPlan
from channelfit.search.saved_fit import fit_document
from support.json_output import ran
from support.little import save_fit

pytestmark = pytest.mark.usefixtures("undrawn")

MODEL = parse_yaml("""
name: little
description: two states
source: values of cell 5
temperature: 22
states: [C, O]
rates: {C -> O: a*exp(v/25)*celsius/22, O -> C: b}
parameters: {a: {range: [0.01, 1], unit: 1/ms, value: 0.1}, b: {range: [0.01, 1], unit: 1/ms,
  value: 0.1}, g: {range: [10, 100], unit: nS, value: 90}}
current: {open: [O], conductance: g, reversal: -90 mV}
fit: {protocols: [steps.yaml], surrogate: {noise: 5, seed: 1}, rates_within: [1e-9 /ms, 1000 /ms],
  optimizer: {name: genetic, population: 8, generations: 2}}
""")
STEPS = "{name: steps, holding: -80, sampling: 1, segments: [{step: 0, for: 4}]}"
RECORDING = {"file": "r.csv", "sampling": 1, "current": {"column": "I", "unit": "pA"}}
EXPERIMENTS = [{"protocol": "../models/steps.yaml", "recording": RECORDING}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("models", "fits"):
        (tmp_path / name).mkdir()
    (tmp_path / "models" / "model.yaml").write_text(dump_yaml(MODEL))
    (tmp_path / "models" / "steps.yaml").write_text(STEPS)
    (tmp_path / "fits" / "r.csv").write_text("I\n5.5\n100\n200\n250\n")
    return tmp_path


def fit_file(folder: Path, fit: object = ..., **more: object) -> Path:
    path = folder / "fits" / "cell.yaml"
    document = {"model": "../models/model.yaml", **more}
    path.write_text(dump_yaml(document if fit is ... else document | {"fit": fit}))
    return path


def loaded(folder: Path, fit: object = ..., **more: object) -> FitPlan:
    return load_plan(fit_file(folder, fit, **more), (), "reference")


def complaint(folder: Path, fit: object = ..., **more: object) -> str:
    with pytest.raises(InputError) as caught:
        loaded(folder, fit, **more)
    return str(caught.value).replace(str(folder), "")


def test_settings_of_the_model_hold_unless_the_fit_file_gives_them(folder: Path) -> None:
    fit = loaded(folder, {"experiments": EXPERIMENTS, "seed": 4})
    assert [c.name for c in fit.constraints] == ["C -> O", "O -> C"]
    assert (fit.optimizer, fit.seed, fit.surrogate) == ("genetic", 4, False)
    assert fit.inherited == ("rates_within", "optimizer")
    fit = loaded(folder, {"experiments": EXPERIMENTS, "rates_within": None, "optimizer": {}})
    assert (fit.constraints, fit.optimizer, fit.inherited) == ((), "hybrid", ())


def test_the_name_of_a_fit_is_in_titles_folder_and_summary(folder, monkeypatch):
    monkeypatch.chdir(folder)
    path = fit_file(folder, {"experiments": EXPERIMENTS}, name="cell 7", description="warm")
    assert "cell 7: genetic" in ran("optimize", path, "--backend", "reference").output
    (run,) = (folder / "runs").iterdir()
    assert run.name.startswith("cell_7-")
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["name"], summary["description"], summary["model"]) == (
        "cell 7",
        "warm",
        "little",
    )
    assert load_plan(run / "fit.yaml", (), "reference").name == "cell 7"
    assert "cannot be a fit's name" in complaint(folder, {"experiments": EXPERIMENTS}, name="a/b")
    both = {"experiments": EXPERIMENTS, "name": "x"}
    assert "name is given here and under fit" in complaint(folder, both, name="y")


@pytest.fixture
def at_one_temperature(folder: Path) -> Path:
    """A folder where no expression of the model depends on the temperature."""
    rates = {"C -> O": "a*exp(v/25)", "O -> C": "b"}
    model = {key: value for key, value in MODEL.items() if key != "fit"} | {"rates": rates}
    (folder / "models" / "model.yaml").write_text(dump_yaml(model))
    return folder


def of_a_saved_fit(fit: FitPlan, folder: Path) -> tuple[str, bool]:
    """What an export says of the temperature, and whether it is that of the recordings."""
    document = fit_document(fit, fit.problem.values(), folder)
    found = subject_of(document, folder / "fit.yaml", None, {})
    return found.rates_hold_at(), found.temperature_stated


def test_a_temperature_that_no_rate_depends_on_is_kept_and_exported(at_one_temperature):
    folder = at_one_temperature
    warm = loaded(folder, {"experiments": EXPERIMENTS}, temperature="35 degC")
    assert warm.problem.model.temperature_C == 35
    assert of_a_saved_fit(warm, folder) == ("the rates hold at 35 degC", True)
    plan = loaded(folder, {"experiments": [EXPERIMENTS[0] | {"temperature": "35 degC"}]})
    assert plan.problem.experiments[0].temperature_C == 35
    assert plan.cautions == loaded(folder, {"experiments": EXPERIMENTS}).cautions
    assert of_a_saved_fit(plan, folder) == ("the rates hold at 35 degC", True)
    silent = loaded(folder, {"experiments": EXPERIMENTS})
    told, stated = of_a_saved_fit(silent, folder)
    assert told.startswith("the model's file says 22 degC; the fit does not say")
    assert not stated
    said = complaint(folder, {"experiments": [EXPERIMENTS[0] | {"temperature": "hot"}]})
    assert "fit.experiments[1].temperature" in said


def test_temperature_and_current_of_a_fit_file(folder: Path) -> None:
    fit = loaded(folder, {}, temperature=33, current={"reversal": "-0.08 V"})
    model = fit.problem.model
    assert model.temperature_C == 33
    assert float(model.reversal) == -80
    assert {s.name for s in model.conductance.free_symbols} == {"g"}
    plain = loaded(folder, {}).problem
    values = model.values()[:, None]
    warm, cold = (make_scorer(p, "reference").simulate(values)[0] for p in (fit.problem, plain))
    assert np.abs(warm / cold - 1).max() > 0.01
    said = complaint(folder, {}, current={"reversal": "5 ms"})
    assert said.startswith("/fits/cell.yaml: current.reversal: unit")


def test_a_fit_file_adds_a_leak_with_parameters_of_its_own(folder: Path) -> None:
    leak = {"conductance": "0.5*gl", "reversal": "-60 mV"}
    own = {"gl": {"range": [0, 4], "unit": "nS", "value": 1}, "g": {"value": 80}}
    fit = loaded(folder, {}, leak=leak, parameters=own)
    model = fit.problem.model
    assert [term.name for term in model.terms] == ["current", "leak"]
    assert model.parameter_names == ("a", "b", "g", "gl")
    assert model.values()[2:].tolist() == [80, 1]
    saved = load_plan(save_fit(fit, model.values(), folder / "out"), (), "reference")
    assert saved.problem.model.terms == model.terms
    said = complaint(folder, {}, parameters=own)
    assert said.startswith("/fits/cell.yaml: parameters.gl: the model has no such parameter")


def test_a_fit_file_makes_another_current_of_a_conductance(folder: Path) -> None:
    ion = {"valence": 1, "inside": "140 mM", "outside": "5 mM"}
    own = {"g": {"unit": "um3/ms", "range": [0, 9], "value": 1}}
    other = {"conductance": None, "reversal": None, "permeability": "g", "ion": ion}
    fit = loaded(folder, {}, current=other, parameters=own)
    (term,) = fit.problem.model.terms
    assert term.permeability is not None
    assert term.conductance is None
    leak = {"conductance": "1 nS", "reversal": 0}
    (folder / "models" / "model.yaml").write_text(dump_yaml(MODEL | {"leak": leak}))
    assert len(loaded(folder, {}).problem.model.terms) == 2
    assert len(loaded(folder, {}, leak=None).problem.model.terms) == 1


def test_a_range_that_leaves_out_the_value_of_the_model(folder: Path) -> None:
    narrow = {"g": {"range": [10, 50]}}
    fit = loaded(folder, {"experiments": EXPERIMENTS}, parameters=narrow)
    assert fit.problem.model.parameters[2].value is None
    said = complaint(folder, {}, parameters=narrow)
    assert "/fits/cell.yaml: parameters.g.range: [10, 50] leaves out the value 90" in said
    assert "give `value` here too" in said
    given = {"g": {"range": [10, 50], "value": 20}}
    assert loaded(folder, {}, parameters=given).problem.model.parameters[2].value == 20
