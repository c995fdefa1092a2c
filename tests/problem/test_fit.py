"""Fit files: what they may say, what they may not, and that a saved fit is the same fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channelfit.front.kinds import load_plan
from channelfit.reading.documents import dump_yaml, parse_yaml, read_yaml
from channelfit.reading.errors import InputError
from channelfit.scoring.scorer import make_scorer
from channelfit.search.plan import FitPlan
from support.little import THREE_STEPS, save_fit
from support.places import ROOT

MODEL = parse_yaml("""
name: little
states: [C, O]
rates: {C -> O: a*exp(z*v), O -> C: b}
current: {open: [O], conductance: g, reversal: -90 mV}
parameters: {a: {range: [0.1, 1000], unit: 1/s, scale: log, value: 100}, z: {range: [0, 0.1],
  unit: 1/mV, value: 0.02}, b: {range: [0.001, 1], unit: 1/ms, value: 0.05, fixed: true},
  g: {range: [0, 100], unit: nS, value: 10}}
""")
STEPS = THREE_STEPS.replace("30 ms", "20 ms")
UNEQUAL = """
name: unequal
holding: -80 mV
sampling: 1 ms
segments: [{step: 0 mV, for: {values: [6 ms, 12 ms]}}]
"""
SURROGATE: dict[str, Any] = {"protocols": ["steps.yaml"], "surrogate": {"noise": 5, "seed": 3}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "steps.yaml").write_text(STEPS)
    (tmp_path / "unequal.yaml").write_text(UNEQUAL)
    return tmp_path


def model_with(folder: Path, fit: object, name: str = "little.yaml", **changes: object) -> Path:
    """A model file in a folder; fit None leaves the section out."""
    if isinstance(fit, dict):
        fit = {"optimizer": {"name": "genetic"}} | fit
    document = MODEL | changes | ({} if fit is None else {"fit": fit})
    path = folder / name
    path.write_text(dump_yaml(document))
    return path


def recorded(folder: Path, **changes: object) -> dict[str, Any]:
    """An experiment with a recording r.csv of the three steps: sweep number, everywhere."""
    (folder / "r.csv").write_text("\n".join(["1.5,2.5,3.5", *["1,2,3"] * 25]))
    recording = {
        "file": "r.csv",
        "header": True,
        "sampling": "1 ms",
        "current": {"columns": "all", "unit": "nA"},
    }
    return {"protocol": "steps.yaml", "recording": recording} | changes


def complaint(path: Path, *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        load_plan(path, overrides, "reference")
    return str(caught.value)


def loaded(path: Path, *overrides: str) -> FitPlan:
    return load_plan(path, overrides, "reference")


def cost(fit: FitPlan, values: np.ndarray | None = None) -> float:
    values = fit.problem.model.values() if values is None else values
    return float(make_scorer(fit.problem, "reference").score(values[:, None]).cost[0])


# --- surrogate data ------------------------------------------------------------------------------
def test_surrogate_data_come_from_the_values(folder: Path) -> None:
    fit = loaded(model_with(folder, {"protocols": ["steps.yaml", "unequal.yaml"]}))
    assert fit.surrogate
    assert fit.noise_pA == 0
    shapes = [e.recording.current_pA.shape for e in fit.problem.experiments if e.recording]
    assert shapes == [(3, 25), (2, 12)]
    assert cost(fit) < 1e-20
    assert cost(fit, fit.problem.model.values() * 1.1) > 1


def test_noise_is_what_is_asked_for_and_repeats(folder: Path) -> None:
    fits = [
        loaded(model_with(folder, {"protocols": "steps.yaml", "surrogate": surrogate}))
        for surrogate in (
            {"noise": "0.02 nA", "seed": 1},
            {"noise": "20 pA", "seed": 1},
            {"noise": 20, "seed": 2},
        )
    ]
    first, again, other = (fit.problem.experiments[0].recording.current_pA for fit in fits)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert fits[0].noise_pA == 20
    # 75 samples: the mean square lies within four standard errors of the variance
    assert abs(cost(fits[0]) / 400 - 1) < 4 * np.sqrt(2 / 75)


# --- recordings ----------------------------------------------------------------------------------


def test_every_nth_sample(folder: Path) -> None:
    experiment = recorded(folder, mask=[{"from": "5 ms", "to": "11 ms"}], every=5)
    fit = loaded(model_with(folder, {"experiments": [experiment]}))
    (only,) = fit.problem.experiments
    assert only.protocol.sampling_ms == 5
    assert only.protocol.n_times_max == 5
    assert only.recording.time_ms.tolist() == [0, 5, 10, 15, 20]
    assert only.recording.weight[0].tolist() == [1, 0, 0, 1, 1]
    full = loaded(model_with(folder, {"experiments": [recorded(folder)]}))
    values = full.problem.model.values()[:, None]
    fine, thin = (make_scorer(f.problem, "reference").simulate(values)[0] for f in (full, fit))
    assert np.allclose(thin, fine[:, ::5], rtol=1e-12, atol=1e-9)


EVERY_WAVE = """
name: every_wave
holding: -80 mV
sampling: 0.5 ms
segments:
  - {step: {values: [-40 mV, 0 mV]}, for: 6 ms}
  - {sines: {offset: -30 mV, terms: [{amplitude: 20 mV, omega: 0.5 1/ms}]}, for: 5 ms}
  - {ramp: [40 mV, -80 mV], for: 10 ms}
"""


@pytest.mark.parametrize("delay", [0.5, 3.5, 7.0, 20.5])
def test_delay_moves_the_command(folder: Path, delay: float) -> None:
    (folder / "every_wave.yaml").write_text(EVERY_WAVE)
    (folder / "r.csv").write_text("\n".join(["1.0,2.0"] * 42))
    recording = {"file": "r.csv", "sampling": 0.5, "current": {"columns": "all", "unit": "pA"}}
    experiment = {"protocol": "every_wave.yaml", "recording": recording}
    plain, late = (
        loaded(model_with(folder, {"experiments": [experiment | change]})).problem.experiments[0]
        for change in ({}, {"delay": f"{delay} ms"})
    )
    n = round(delay / 0.5)
    before, after = plain.protocol.command(), late.protocol.command()
    assert (after[:, :n] == -80).all()
    assert np.allclose(after[:, n:], before[:, :-n], rtol=0, atol=1e-9)
    assert late.protocol.n_times_max == plain.protocol.n_times_max
    assert late.protocol.step_times_ms(0)[0] == delay


# --- where things stand --------------------------------------------------------------------------


def test_fit_file_may_change_parameters(folder: Path) -> None:
    model_with(folder, None)
    path = folder / "fit.yaml"
    changes = {"a": {"value": 200}, "b": {"fixed": False}}
    document = {"model": "little.yaml", "parameters": changes, "fit": SURROGATE}
    path.write_text(dump_yaml(document))
    a, _, b, _ = loaded(path).problem.model.parameters
    assert (a.value, a.lower, a.scale) == (pytest.approx(0.2), pytest.approx(1e-4), "log")
    assert not b.fixed


def test_mistakes_in_a_fit_section_and_in_an_experiment(folder):
    for fit, said in (
        ({"protocols": ["steps.yaml"], "experiments": []}, "either protocols"),
        ({"protocols": ["steps.yaml", "none.yaml"]}, "none.yaml: no such file"),
        (SURROGATE | {"surrogate": {"noise": "3 mV"}}, "fit.surrogate.noise: unit"),
        (SURROGATE | {"seed": -1}, "fit.seed: a whole number"),
        (SURROGATE | {"stop": {"seconds": "5 s"}}, "fit.stop.seconds: must be a number"),
    ):
        assert said in complaint(model_with(folder, fit))
    for change, said in (
        ({"weight": 0}, "every experiment has weight 0"),
        ({"mask": [{"to": 5}, {"form": 1}]}, "fit.experiments[1].mask[2]: unknown key"),
        ({"delay": "-1 ms"}, "fit.experiments[1].delay: a time from 0 to 25 ms"),
        ({"every": 26}, "steps has only 25 samples"),
        ({"recording": {"file": "r.csv", "current": {}}}, "fit.experiments[1].recording: either"),
        ({"protocol": "unequal.yaml"}, "3 columns of currents, but unequal has 2 sweeps"),
    ):
        assert said in complaint(model_with(folder, {"experiments": [recorded(folder, **change)]}))


# --- overrides -----------------------------------------------------------------------------------
def test_overrides_of_settings_values_and_lists(folder: Path) -> None:
    path = model_with(folder, {"experiments": [recorded(folder, mask=[{"to": "5 ms"}])]})
    fit = loaded(
        path,
        "fit.optimizer.population=50",
        " fit.stop.cost = 1.5e2 ",
        "fit.seed=7",
        "parameters.g.range=[1, 50]",
        "parameters.a.fixed=true",
        "rates.O -> C=b*exp(-z*v)",
        "fit.experiments[1].weight=3",
        "fit.experiments[1].mask[1].to=20 ms",
        "name=other",
    )
    assert fit.settings == {"population": 50}
    assert fit.make_optimizer().ask().shape == (2, 50)
    assert fit.stop_rules.cost == 150
    assert fit.seed == 7
    assert fit.problem.model.parameters[3].upper == 50
    assert fit.problem.model.name == "other"
    assert fit.problem.experiments[0].weight == 3
    assert fit.problem.experiments[0].recording.weight[0].sum() == 5
    assert fit.document["name"] == "other"
    assert str(fit.problem.model.transitions[1].rate) != "b"


def test_an_override_can_name_another_model(folder: Path) -> None:
    """The same data, another scheme; all else of the file stays."""
    first = model_with(folder, None)
    other = first.with_name("other.yaml")
    other.write_text(first.read_text().replace("exp(z*v)", "exp(2*z*v)"), encoding="utf-8")
    fit_file = folder / "named.yaml"
    fit_file.write_text(dump_yaml({"model": first.name, "fit": SURROGATE}), encoding="utf-8")
    one, two = (loaded(fit_file, *texts).problem.model for texts in ((), ("model=other.yaml",)))
    assert one.transitions[0].rate != two.transitions[0].rate
    assert "nope.yaml: no such file" in complaint(fit_file, "model=nope.yaml")
    with pytest.raises(InputError, match="this is no fit file"):
        loaded(first, "model=other.yaml")


def test_overrides_that_cannot_be_used(folder):
    for text, said in (
        ("", "key=value"),
        ("fit.experiments[x]=3", "key=value"),
        ("fit.seed=3\nother: 4", "key=value"),
        ("fti.optimizer.population=3", 'no "fti"; did you mean fit?'),
        ("parameters.q.value=3", 'parameters.q.value: no "q" in parameters. There is: a, z, b, g'),
        ("fit.optimizr.population=3", 'no "optimizr" in fit'),
        ("states[3]=X", "states has entries 1 to 2, not 3"),
        ("fit.seed=*x", "aliases"),
        ("fit.seed=!!python/object/apply:os.system [id]", "fit.seed: "),
        ("parameters.g.value=1e9", "outside the range"),
    ):
        assert said in complaint(model_with(folder, SURROGATE), text)


@settings(max_examples=80, deadline=None)
@given(text=st.text(max_size=30) | st.from_regex(r"(fit|parameters)\.[a-z.\[\]0-9]{0,12}=.{0,8}"))
def test_any_override_is_used_or_refused(tmp_path_factory: Any, text: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "any_override"
    folder.mkdir(exist_ok=True)
    (folder / "steps.yaml").write_text(STEPS)
    path = model_with(folder, SURROGATE)
    try:
        fit = loaded(path, text)
    except InputError:
        return
    assert fit.problem.experiments[0].recording is not None


# --- saved fits ----------------------------------------------------------------------------------
def test_saved_fit_keeps_the_data_it_was_fitted_to(folder: Path) -> None:
    surrogate = SURROGATE | {
        "protocols": ["steps.yaml", "unequal.yaml"],
        "optimizer": {"population": 30},
        "stop": {"cost": 0.5},
        "seed": 9,
    }
    fit = loaded(model_with(folder, surrogate))
    values = np.array([0.3, 0.05, 0.05, 33.0])
    again = loaded(save_fit(fit, values, folder / "runs" / "one"))
    assert not again.surrogate
    assert np.array_equal(again.problem.model.values(), values)
    assert (again.settings, again.stop, again.seed) == ({"population": 30}, {"cost": 0.5}, 9)
    for old, new in zip(fit.problem.experiments, again.problem.experiments, strict=True):
        assert np.array_equal(old.recording.current_pA, new.recording.current_pA, equal_nan=True)
        assert np.array_equal(old.recording.weight, new.recording.weight)
        assert "noise 5 pA, seed 3" in new.recording.source
    assert cost(again) == cost(fit, values)


def test_saved_fit_from_a_relative_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_with(folder, {"experiments": [recorded(folder)]})
    monkeypatch.chdir(folder)
    fit = loaded(Path("little.yaml"))
    path = save_fit(fit, fit.problem.model.values(), "runs/a")
    assert read_yaml(path)["fit"]["experiments"][0]["protocol"] == "../../steps.yaml"
    monkeypatch.chdir("/")
    assert cost(loaded(folder / path)) == cost(fit)


def test_saved_fit_keeps_placeholders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = recorded(folder, protocol="${A_FOLDER}/steps.yaml")
    experiment["recording"]["file"] = "${A_NAME}.csv"
    monkeypatch.setenv("A_FOLDER", str(folder))
    monkeypatch.setenv("A_NAME", "r")
    fit = loaded(model_with(folder, {"experiments": [experiment]}))
    path = save_fit(fit, fit.problem.model.values(), folder / "run")
    (row,) = read_yaml(path)["fit"]["experiments"]
    assert row["protocol"] == "${A_FOLDER}/steps.yaml"
    assert row["recording"]["file"] == "../${A_NAME}.csv"
    assert cost(loaded(path)) == cost(fit)
    monkeypatch.setenv("A_FOLDER", ".")  # relative: counts from the fit file
    fit = loaded(folder / "little.yaml")
    assert cost(loaded(save_fit(fit, fit.problem.model.values(), folder / "two"))) == cost(fit)


@given(
    data=st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text(max_size=9)
        | st.sampled_from(["no", "1e-3", "0x10", "1_000", "12:30", "null", "~", "2001-01-01", ""]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_yaml_comes_back_as_it_was_written(data: object) -> None:
    assert parse_yaml(dump_yaml({"key": data})) == {"key": data}


# --- fits that come with the package -------------------------------------------------------------


def test_sine_wave_fit() -> None:
    fit = load_plan(ROOT / "models" / "fits" / "herg_sine_wave_16713110.yaml")
    (experiment,) = fit.problem.experiments
    every = round(experiment.protocol.sampling_ms / 0.1)
    assert experiment.recording.current_pA.shape == (1, 80000 // every)
    t, weight = experiment.recording.time_ms, experiment.recording.weight[0]
    assert set(weight) == {0.0, 1.0}
    assert (weight[(t >= 250.1) & (t < 255)] == 0).all()  # the first step begins at 250.1 ms
    assert (weight[(t > 256) & (t < 300)] == 1).all()
    # the tail at -120 mV is the largest current of the recording: inward, some nanoamperes
    counted = experiment.recording.current_pA[0, weight > 0]
    assert -5000 < counted.min() < -1000
    # the published values leave about 32 pA
    values = fit.problem.model.values()[:, None]
    assert np.sqrt(make_scorer(fit.problem).score(values).cost[0]) == pytest.approx(31.7, abs=0.2)


# --- priors --------------------------------------------------------------------------------------
def test_a_prior_counts_against_the_noise(folder: Path) -> None:
    """n cost/(2 noise^2) must grow by half a squared standard deviation."""
    a = MODEL["parameters"]["a"] | {"prior": {"lognormal": [50, 2]}}
    path = model_with(
        folder, SURROGATE | {"noise": "2 pA"}, parameters=MODEL["parameters"] | {"a": a}
    )
    fit = loaded(path)
    scorer = make_scorer(fit.problem, "reference")
    unit = np.array([[0.3, 0.6], [0.2, 0.2], [0.4, 0.4]])
    physical = fit.space.to_physical(unit)
    n = 3 * 25
    grown = (fit.objective(scorer).score(unit).cost - scorer.score(physical).cost) * n / (2 * 4.0)
    np.testing.assert_allclose(
        grown, 0.5 * (np.log(physical[0] / 0.05) / np.log(2)) ** 2, rtol=1e-9
    )
    again = loaded(save_fit(fit, fit.problem.model.values(), folder / "run"))
    assert again.problem.model.parameters[0].prior == fit.problem.model.parameters[0].prior
    assert again.objective(scorer).prior_weight == fit.objective(scorer).prior_weight


# --- ties ----------------------------------------------------------------------------------------
def test_the_range_of_a_tie_is_kept_and_its_value_told(folder: Path) -> None:
    b = {"tie": "a/2 + z", "range": [1, 100], "unit": "1/s", "value": 7}
    z = {key: value for key, value in MODEL["parameters"]["z"].items() if key != "unit"}
    path = model_with(folder, SURROGATE, parameters=MODEL["parameters"] | {"b": b, "z": z})
    fit = loaded(path)
    assert [(c.name, c.lower, c.upper) for c in fit.constraints] == [("b", 1e-3, 0.1)]
    objective = fit.objective(make_scorer(fit.problem, "reference"))
    unit = np.random.default_rng(0).random((3, 50))
    a, z, _ = fit.space.to_physical(unit)
    inside = (a / 2 + z >= 1e-3) & (a / 2 + z <= 0.1)
    assert 5 < inside.sum() < 45
    np.testing.assert_array_equal(objective.score(unit).status, np.where(inside, 0, 3))
    again = loaded(save_fit(fit, np.array([0.1, 0.03, 20.0]), folder / "run"))
    assert again.problem.model.tied_values(again.problem.model.values()) == {"b": 0.05 + 0.03}
    assert again.space.n_free == 3
