"""Fit files: what they may say, what they may not, and that a saved fit is the same fit."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channelfit.front.kinds import channel_document, function_of, load_plan
from channelfit.reading.documents import dump_yaml, parse_yaml, read_yaml
from channelfit.reading.errors import InputError
from channelfit.scoring.scorer import make_scorer
from channelfit.search.plan import FitPlan, simulate_surrogate
from channelfit.search.saved_fit import fit_document
from support.little import save_fit
from support.places import ROOT

MODEL: dict[str, Any] = {
    "name": "little",
    "states": ["C", "O"],
    "rates": {"C -> O": "a*exp(z*v)", "O -> C": "b"},
    "current": {"open": ["O"], "conductance": "g", "reversal": "-90 mV"},
    "parameters": {
        "a": {"range": [0.1, 1000], "unit": "1/s", "scale": "log", "value": 100},
        "z": {"range": [0, 0.1], "unit": "1/mV", "value": 0.02},
        "b": {"range": [1.0e-3, 1], "unit": "1/ms", "value": 0.05, "fixed": True},
        "g": {"range": [0, 100], "unit": "nS", "value": 10},
    },
}
STEPS = """
name: steps
holding: -80 mV
sampling: 1 ms
segments:
  - {hold: 5 ms}
  - {step: {values: [-40 mV, 0 mV, 40 mV]}, for: 20 ms}
"""
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


def test_samples_after_a_shorter_sweep_are_no_data(folder: Path) -> None:
    fit = loaded(model_with(folder, {"protocols": ["unequal.yaml"], "surrogate": {"noise": 1}}))
    recording = fit.problem.experiments[0].recording
    assert recording.weight.sum(axis=1).tolist() == [6, 12]
    assert np.isnan(recording.current_pA[0, 6:]).all()


def test_values_without_a_finite_current_give_no_data(folder: Path) -> None:
    path = model_with(folder, SURROGATE, rates={"C -> O": "a*log(z*v)", "O -> C": "b"})
    assert "the parameters' values give no finite current" in complaint(path)


def test_surrogate_needs_values(folder: Path) -> None:
    parameters = MODEL["parameters"] | {"g": {"range": [0, 1], "unit": "nS"}}
    said = complaint(model_with(folder, SURROGATE, parameters=parameters))
    assert "little.yaml: parameters: no value is given for g" in said


def test_simulate_surrogate_draws_other_noise_for_every_experiment(folder: Path) -> None:
    fit = loaded(model_with(folder, {"protocols": ["steps.yaml", "steps.yaml"]}))
    problem = simulate_surrogate(fit.problem, make_scorer(fit.problem, "reference"), 5.0, 0)
    first, second = (e.recording.current_pA for e in problem.experiments if e.recording)
    assert not np.array_equal(first, second)


# --- recordings ----------------------------------------------------------------------------------


def test_experiments_read_weight_and_masks(folder: Path) -> None:
    experiment = recorded(folder, weight=2, mask=[{"after_steps": "3 ms"}, {"to": "5 ms"}])
    fit = loaded(model_with(folder, {"experiments": [experiment]}))
    assert not fit.surrogate
    (only,) = fit.problem.experiments
    assert only.weight == 2
    assert only.recording.current_pA[:, 0].tolist() == [1000, 2000, 3000]
    assert only.recording.weight[1].tolist() == [0] * 8 + [1] * 17


def test_one_experiment_and_one_mask_need_no_list(folder: Path) -> None:
    fit = loaded(model_with(folder, {"experiments": recorded(folder, mask={"from": "9 ms"})}))
    assert fit.problem.experiments[0].recording.weight.sum() == 27
    saved = save_fit(fit, fit.problem.model.values(), folder / "run")
    assert cost(loaded(saved)) == cost(fit)


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
    recording = {
        "file": "r.csv",
        "sampling": 0.5,
        "current": {"columns": "all", "unit": "pA"},
    }
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


def test_recording_needs_no_values(folder: Path) -> None:
    parameters = {k: v | {"value": None} for k, v in MODEL["parameters"].items() if k != "b"}
    parameters["b"] = MODEL["parameters"]["b"]
    for row in parameters.values():
        if row["value"] is None:
            del row["value"]
    fit = loaded(model_with(folder, {"experiments": [recorded(folder)]}, parameters=parameters))
    assert fit.problem.model.parameters[0].value is None


def test_steep_weights_reach_the_cost(folder: Path) -> None:
    rows = [recorded(folder), recorded(folder, weight=0)]
    fit = loaded(model_with(folder, {"experiments": rows}))
    single = loaded(model_with(folder, {"experiments": rows[:1]}))
    assert cost(fit) == pytest.approx(cost(single), rel=1e-12)


# --- where things stand --------------------------------------------------------------------------


def test_fit_file_of_its_own(folder: Path) -> None:
    (folder / "models").mkdir()
    (folder / "fits").mkdir()
    model = model_with(folder / "models", {"protocols": ["nowhere.yaml"]})
    path = folder / "fits" / "fit.yaml"
    path.write_text(
        dump_yaml({"model": "../models/little.yaml", "fit": {"protocols": ["../steps.yaml"]}})
    )
    fit = loaded(path)
    assert fit.file == path
    assert fit.model_file.samefile(model)
    assert fit.problem.model.name == "little"
    assert "fit" not in fit.document
    assert fit.section == {"protocols": ["../steps.yaml"], "optimizer": {"name": "genetic"}}


def test_fit_file_may_change_parameters(folder: Path) -> None:
    model_with(folder, None)
    path = folder / "fit.yaml"
    changes = {"a": {"value": 200}, "b": {"fixed": False}}
    document = {"model": "little.yaml", "parameters": changes, "fit": SURROGATE}
    path.write_text(dump_yaml(document))
    a, _, b, _ = loaded(path).problem.model.parameters
    assert (a.value, a.lower, a.scale) == (pytest.approx(0.2), pytest.approx(1e-4), "log")
    assert not b.fixed
    path.write_text(dump_yaml(document | {"parameters": {"c": {"value": 1}}}))
    said = complaint(path)
    assert "fit.yaml: parameters.c: the model has no such parameter. Known: a, z, b, g" in said
    path.write_text(dump_yaml(document | {"parameters": {"a": {"valeu": 1}}}))
    assert "valeu" in complaint(path)
    path.write_text(dump_yaml(document | {"parameters": {"a": 3}}))
    assert "parameters.a: a mapping" in complaint(path)


def test_a_model_without_a_fit_section_is_shown_one(folder: Path) -> None:
    said = complaint(model_with(folder, None))
    assert "no `fit` section" in said
    example = parse_yaml(said[said.index("\nfit:") : said.index("or, to fit")])
    assert loaded_example(folder, example["fit"]).surrogate


def loaded_example(folder: Path, fit: dict[str, Any]) -> FitPlan:
    """The example of the message, its protocols replaced by one that is there."""
    return loaded(model_with(folder, fit | {"protocols": ["steps.yaml"]}))


def test_a_fit_file_without_a_fit_section_does_not_borrow_one(folder: Path) -> None:
    model_with(folder, SURROGATE)
    (folder / "fit.yaml").write_text("model: little.yaml")
    assert "no `fit` section" in complaint(folder / "fit.yaml")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"model": "none.yaml"}, "none.yaml: no such file"),
        ({"model": "fit.yaml"}, "fit file itself"),
        ({"model": "a\0b"}, "NUL"),
        ({"model": "/dev/zero"}, "not a file"),
        ({"model": "."}, "not a file"),
        ({"model": "x" * 5000}, "cannot be read"),
        ({"model": "${NO_SUCH_NAME_HERE}/m.yaml"}, "NO_SUCH_NAME_HERE"),
        ({"model": "little.yaml", "fti": {}}, 'unknown key "fti"; did you mean fit?'),
        ({"model": "little.yaml", "rates": {}}, 'unknown key "rates"'),
        ({"model": ["little.yaml"]}, "unknown key"),
        ({"model": 5}, "unknown key"),
        ({"model": None}, "unknown key"),
    ],
)
def test_fit_files_that_name_no_model(folder: Path, document: dict[str, Any], said: str) -> None:
    model_with(folder, None)
    path = folder / "fit.yaml"
    path.write_text(dump_yaml(document | {"fit": SURROGATE} if "fti" not in document else document))
    assert said in complaint(path)


@pytest.mark.parametrize(
    ("fit", "said"),
    [
        ([], "little.yaml: fit: a mapping"),
        ("steps.yaml", "fit: a mapping"),
        ({}, "either protocols (simulated data) or experiments (recordings)"),
        ({"protocols": ["steps.yaml"], "experiments": []}, "either protocols"),
        ({"protocols": []}, "fit.protocols: at least one protocol"),
        ({"protocols": None}, "fit.protocols: at least one protocol"),
        ({"protocols": [5]}, "fit.protocols[1]: the path of a protocol file"),
        ({"protocols": [["steps.yaml"]]}, "fit.protocols[1]"),
        ({"protocols": {"a": 1}}, "fit.protocols[1]"),
        ({"protocols": ["steps.yaml", "none.yaml"]}, "none.yaml: no such file"),
        ({"protocols": ["little.yaml"]}, "little.yaml"),
        ({"protocols": ["/dev/zero"]}, "/dev/zero: a device or a pipe, not a file"),
        ({"protocols": ["a\0b"]}, "fit.protocols[1]: a file name cannot hold"),
        ({"protocols": ["${NO_SUCH_NAME_HERE}/p.yaml"]}, "NO_SUCH_NAME_HERE"),
        ({"protocol": ["steps.yaml"]}, "did you mean protocols?"),
        (SURROGATE | {"mask": []}, 'unknown key "mask"'),
        (SURROGATE | {"surrogate": 3}, "fit.surrogate: a mapping"),
        (SURROGATE | {"surrogate": {"noise": "3 mV"}}, "fit.surrogate.noise: unit"),
        (SURROGATE | {"surrogate": {"noise": -1}}, "fit.surrogate.noise: a standard deviation"),
        (SURROGATE | {"surrogate": {"seed": -1}}, "fit.surrogate.seed: a whole number"),
        (SURROGATE | {"surrogate": {"seed": 1.5}}, "fit.surrogate.seed: a whole number"),
        (SURROGATE | {"surrogate": {"seeds": 1}}, "did you mean seed?"),
        (SURROGATE | {"seed": -1}, "fit.seed: a whole number"),
        (SURROGATE | {"seed": 2**64}, "fit: "),
        (SURROGATE | {"optimizer": "genetic"}, "fit.optimizer: a mapping"),
        (SURROGATE | {"optimizer": {"name": "genetik"}}, "fit.optimizer.name: unknown optimizer"),
        (SURROGATE | {"optimizer": {"name": ["genetic"]}}, "fit.optimizer.name: a name"),
        (SURROGATE | {"optimizer": {"populaton": 5}}, "fit.optimizer.populaton: unknown setting"),
        (SURROGATE | {"optimizer": {"population": 0}}, "fit.optimizer.population"),
        (SURROGATE | {"optimizer": {"population": "many"}}, "fit.optimizer.population"),
        (SURROGATE | {"optimizer": {"mutation_rate": 2}}, "fit.optimizer.mutation_rate"),
        (SURROGATE | {"optimizer": {"generations": 0}}, "fit.optimizer.generations"),
        (SURROGATE | {"stop": []}, "fit.stop: a mapping"),
        (SURROGATE | {"stop": {"second": 5}}, "did you mean seconds?"),
        (SURROGATE | {"stop": {"seconds": "5 s"}}, "fit.stop.seconds: must be a number"),
        (SURROGATE | {"stop": {"cost": float("nan")}}, "fit.stop.cost: must be finite"),
    ],
)
def test_mistakes_in_a_fit_section(folder: Path, fit: object, said: str) -> None:
    assert said in complaint(model_with(folder, fit))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weight": -1}, "fit.experiments[1].weight: a weight of 0 or more"),
        ({"weight": 0}, "every experiment has weight 0"),
        ({"weight": "1 pA"}, "fit.experiments[1].weight"),
        ({"mask": [{"to": "99 ms"}]}, "fit.experiments[1].mask: no sample is left"),
        ({"mask": [{"to": 5}, {"form": 1}]}, "fit.experiments[1].mask[2]: unknown key"),
        ({"mask": ["all"]}, "fit.experiments[1].mask[1]: a mapping"),
        ({"mask": [{"after_steps": "1 mV"}]}, "fit.experiments[1].mask[1].after_steps: unit"),
        ({"masks": []}, "did you mean mask?"),
        ({"delay": "-1 ms"}, "fit.experiments[1].delay: a time from 0 to 25 ms"),
        ({"delay": "25 ms"}, "fit.experiments[1].delay: a time from 0 to 25 ms"),
        ({"every": 0}, "fit.experiments[1].every: a whole number, 1 or more"),
        ({"every": 26}, "steps has only 25 samples"),
        ({"every": 10**400}, "steps has only 25 samples"),
        ({"every": 25, "mask": {"to": 1}}, "no sample is left"),
        ({"recording": None}, "fit.experiments[1].recording: a mapping"),
        (
            {"recording": {"file": "r.csv", "current": {}}},
            "fit.experiments[1].recording: either time",
        ),
        ({"protocol": None}, "fit.experiments[1].protocol: the path"),
        ({"protocol": "unequal.yaml"}, "3 columns of currents, but unequal has 2 sweeps"),
    ],
)
def test_mistakes_in_an_experiment(folder: Path, change: dict[str, Any], said: str) -> None:
    assert said in complaint(model_with(folder, {"experiments": [recorded(folder, **change)]}))


def test_mistakes_among_experiments(folder: Path) -> None:
    for experiments, said in (
        ([], "fit.experiments: at least one"),
        (None, "fit.experiments: at least one"),
        (["r.csv"], "fit.experiments[1]: a mapping"),
        ([recorded(folder), {}], 'fit.experiments[2]: "protocol" is missing'),
        ([{"protocol": "steps.yaml"}], '"recording" is missing'),
    ):
        assert said in complaint(model_with(folder, {"experiments": experiments}))
    fit = {"experiments": [recorded(folder)], "surrogate": {"noise": 1}}
    assert "fit.surrogate: surrogate belongs to protocols" in complaint(model_with(folder, fit))


def test_all_parameters_fixed(folder: Path) -> None:
    parameters = {k: v | {"fixed": True} for k, v in MODEL["parameters"].items()}
    said = complaint(model_with(folder, SURROGATE, parameters=parameters))
    assert "little.yaml: parameters: there is no free parameter" in said


def test_defaults_of_the_search(folder: Path) -> None:
    fit = loaded(model_with(folder, SURROGATE))
    assert (fit.optimizer, fit.settings, fit.stop, fit.seed) == ("genetic", {}, {}, 0)
    assert fit.stop_rules.generations == 300
    assert fit.make_optimizer().ask().shape == (3, 1120)
    for empty in (None, {}):
        again = loaded(model_with(folder, SURROGATE | {"optimizer": empty, "stop": empty}))
        assert (again.optimizer, again.stop_rules.generations) == ("hybrid", None)


# --- overrides -----------------------------------------------------------------------------------


def test_places_in_lists_of_thousands_of_digits_are_no_places(folder: Path) -> None:
    path = model_with(folder, {"experiments": [recorded(folder)]})
    for key in ("states", "fit.experiments"):
        said = complaint(path, f"{key}[{'1' * 5000}]=x")
        assert f"{key} has entries 1 to" in said
        assert len(said) < 400
    assert loaded(path, "fit.experiments[01].weight=3").problem.experiments[0].weight == 3


def test_a_scan_below_its_starts_is_refused(folder: Path) -> None:
    path = model_with(folder, {"experiments": [recorded(folder)]})
    said = complaint(path, "fit.optimizer={name: hybrid, scan: 1}")
    assert "optimizer.scan: must not be below the 16 starts that are chosen among these" in said
    assert loaded(path, "fit.optimizer={name: hybrid, scan: 4, starts: 4}").optimizer == "hybrid"


def test_a_fit_section_that_is_no_mapping_is_refused_whatever_is_done(folder: Path) -> None:
    path = model_with(folder, "hello")
    for read in (channel_document, load_plan, function_of):
        with pytest.raises(InputError, match=r"fit: a mapping .* was expected, not \"hello\""):
            read(path)
    (folder / "fit.yaml").write_text(f"model: {path.name}\nfit: {{experiments: []}}\n")
    with pytest.raises(InputError, match=f"{path.name}: fit: a mapping"):
        channel_document(folder / "fit.yaml")


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
    for text, told in (
        ("model=nope.yaml", "nope.yaml: no such file"),
        ("model=[a]", "the path of a model file was expected"),
    ):
        with pytest.raises(InputError, match=re.escape(told)):
            loaded(fit_file, text)
    with pytest.raises(InputError, match="this is no fit file"):
        loaded(first, "model=other.yaml")


def test_an_override_can_begin_the_fit_section(folder: Path) -> None:
    fit = loaded(model_with(folder, None), "fit.protocols=[steps.yaml]", "fit.surrogate.noise=3 pA")
    assert fit.noise_pA == 3
    other = loaded(model_with(folder, None), "fit={protocols: steps.yaml}")
    assert other.surrogate


def test_an_override_can_switch_a_rule_off(folder: Path) -> None:
    path = model_with(folder, SURROGATE | {"stop": {"cost": 5}})
    assert loaded(path, "fit.stop.cost=null").stop_rules.cost is None


def test_overrides_change_the_surrogate_data(folder: Path) -> None:
    path = model_with(folder, {"protocols": ["steps.yaml"]})
    plain, double = loaded(path), loaded(path, "parameters.g.value=20")
    first, second = (f.problem.experiments[0].recording.current_pA for f in (plain, double))
    assert np.allclose(second, 2 * first)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "key=value"),
        ("fit.optimizer.population", "key=value"),
        ("=3", "key=value"),
        (".=3", "key=value"),
        ("fit..seed=3", "key=value"),
        ("fit.seed.=3", "key=value"),
        ("fit.experiments[x]=3", "key=value"),
        ("fit.experiments[=3", "key=value"),
        ("fit.seed=3\nother: 4", "key=value"),
        ("fti.optimizer.population=3", 'no "fti"; did you mean fit?'),
        ("nmae=x", 'no "nmae"; did you mean name?'),
        ("parameters.q.value=3", 'parameters.q.value: no "q" in parameters. There is: a, z, b, g'),
        ("parameters.g.valeu=3", "valeu"),
        ("fit.optimizr.population=3", 'no "optimizr" in fit'),
        ("fit.optimizer.populatoin=3", "did you mean population?"),
        ("name.first=3", 'name is "little", it has no keys'),
        ("states[3]=X", "states has entries 1 to 2, not 3"),
        ("states[0]=X", "states has entries 1 to 2, not 0"),
        ("name[1]=X", "name is not a list"),
        ("states[1].a=X", 'states[1] is "C", it has no keys'),
        ("fit.seed=[1", "fit.seed: "),
        ("fit.seed=*x", "aliases"),
        ("fit.seed=!!python/object/apply:os.system [id]", "fit.seed: "),
        ("fit.seed={a: 1, a: 2}", "given twice"),
        ("fit.seed=a: b", "fit.seed: "),
        ("fit.seed=three", "fit.seed: a whole number"),
        ("parameters=3", "parameters: a mapping"),
        ("parameters.g=3", "parameters.g: a mapping"),
        ("parameters.g.value=1e9", "outside the range"),
    ],
)
def test_overrides_that_cannot_be_used(folder: Path, text: str, said: str) -> None:
    assert said in complaint(model_with(folder, SURROGATE), text)


@settings(max_examples=200, deadline=None)
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


def test_saved_fit_keeps_ranges_in_base_units(folder: Path) -> None:
    fit = loaded(model_with(folder, SURROGATE))
    saved = read_yaml(save_fit(fit, fit.problem.model.values(), folder / "run"))
    assert saved["parameters"]["a"] == {
        "range": [1e-4, 1.0],
        "unit": "1/ms",
        "scale": "log",
        "value": 0.1,
    }
    assert saved["parameters"]["b"]["fixed"] is True
    assert loaded(folder / "run" / "fit.yaml").space == fit.space


def test_saved_fit_of_a_saved_fit(folder: Path) -> None:
    fit = loaded(model_with(folder, SURROGATE))
    values = fit.problem.model.values()
    once = loaded(save_fit(fit, values, folder / "one"))
    twice = loaded(save_fit(once, values, folder / "deep" / "er" / "two"))
    assert cost(twice) == cost(fit)
    assert twice.section["experiments"][0]["recording"]["file"] == "../../../one/data.csv"
    assert not (folder / "deep" / "er" / "two" / "data.csv").exists()


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


def test_saved_fit_keeps_absolute_paths(folder: Path) -> None:
    experiment = recorded(folder, protocol=str(folder / "steps.yaml"))
    fit = loaded(model_with(folder, {"experiments": [experiment]}))
    document = fit_document(fit, fit.problem.model.values(), folder / "run")
    assert document["fit"]["experiments"][0]["protocol"] == str(folder / "steps.yaml")
    assert "run" not in os.listdir(folder)


def test_saving_leaves_the_fit_as_it_was(folder: Path) -> None:
    fit = loaded(model_with(folder, {"experiments": [recorded(folder)]}))
    before = dump_yaml(fit.document), dump_yaml(fit.section)
    save_fit(fit, fit.problem.model.values() * 0.9, folder / "run")
    assert (dump_yaml(fit.document), dump_yaml(fit.section)) == before


def test_saved_fit_of_a_printed_model(folder: Path) -> None:
    (folder / "printed.txt").write_text(
        """
model: {
  nStates: 2; nParams: 3; nOpenStates: 1; openStates: [1]; eRev: -90;
  params = (
    {name = "a"; min = 0.0; max = 1.0; val = 0.1;},
    {name = "z"; min = 0.0; max = 0.1; val = 0.02;},
    {name = "g"; min = 0.0; max = 10.0; val = 5.0;});
  rates = ("k12 = a*exp(-z*v)", "k21 = a*exp(z*v)");
};
"""
    )
    (folder / "fit.yaml").write_text("model: printed.txt\nfit: {protocols: [steps.yaml]}")
    fit = loaded(folder / "fit.yaml")
    values = np.array([0.2, 0.03, 7.0])
    again = loaded(save_fit(fit, values, folder / "run"))
    assert np.array_equal(again.problem.model.values(), values)
    assert cost(again) == cost(fit, values)


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


def test_shipped_recordings_have_their_source_and_license_and_are_small() -> None:
    folder = ROOT / "models" / "recordings"
    told = (folder / "README.md").read_text(encoding="utf-8")
    for inside in filter(Path.is_dir, folder.iterdir()):
        assert f"`{inside.name}/`" in told
        assert (inside / "LICENSE").is_file() or "CC BY 4.0" in told
    assert sum(file.stat().st_size for file in folder.rglob("*")) < 2_000_000


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


def test_sodium_fit() -> None:
    fit = load_plan(ROOT / "models" / "fits" / "nav_iv_80cp.yaml")
    (experiment,) = fit.problem.experiments
    recording = experiment.recording
    assert recording.current_pA.shape == (24, 1000)
    quiet = recording.time_ms < 9.9
    assert np.abs(recording.current_pA[:, quiet].mean(axis=1)).max() < 1  # baseline taken off
    assert recording.current_pA[:, recording.weight[0] > 0].min() == pytest.approx(-15500, rel=0.05)
    assert (recording.weight[:, recording.time_ms < 10.39] == 0).all()
    assert (
        recording.weight[:, (recording.time_ms > 10.39) & (recording.time_ms < 29.9)] == 1
    ).all()


# --- bounds on rates -----------------------------------------------------------------------------


def test_bounds_on_a_rate_behind_forty_levels_of_two_definitions_each(folder: Path) -> None:
    """Each level names the one before it twice: put together they would be 2**40 terms."""
    levels = {f"d{k}": f"0.5*d{k - 1} + 0.5*d{k - 1}" for k in range(1, 40)}
    changes = {
        "definitions": {"d0": "a*exp(z*v)"} | levels,
        "rates": {"C -> O": "d39", "O -> C": "b"},
    }
    within = {"range": ["1.0e-3 /ms", "20 /ms"], "of": "largest"}
    file = model_with(folder, SURROGATE | {"rates_within": within}, **changes)
    deep = load_plan(file, backend="reference")
    plain = load_plan(model_with(folder, SURROGATE | {"rates_within": within}), backend="reference")
    values = plain.make_optimizer().ask()
    allowed = [
        [c.allowed(plan.space.to_physical(values)) for c in plan.constraints]
        for plan in (deep, plain)
    ]
    assert np.array_equal(*allowed)


def test_rates_within_bounds_go_with_the_fit(folder: Path) -> None:
    within = {"range": ["1.0e-3 /ms", "20 /ms"], "of": "largest"}
    fit = load_plan(model_with(folder, SURROGATE | {"rates_within": within}), backend="reference")
    assert [c.name for c in fit.constraints] == ["C -> O", "O -> C"]
    first = fit.make_optimizer().ask()
    objective = fit.objective(make_scorer(fit.problem, "reference"))
    assert (objective.score(first).status == 0).all()
    again = load_plan(
        save_fit(fit, fit.problem.model.values(), folder / "run"), backend="reference"
    )
    assert [(c.lower, c.upper, c.largest) for c in again.constraints] == [(1e-3, 20, True)] * 2


def test_bounds_that_no_candidate_can_keep_are_told_where_they_stand(folder: Path) -> None:
    fit = load_plan(
        model_with(folder, SURROGATE | {"rates_within": [900, 1000]}), backend="reference"
    )
    with pytest.raises(InputError) as error:
        fit.make_optimizer()
    assert error.value.key == "fit"
    assert "keeps to the bounds of" in str(error.value)


# --- a parameter solved, and priors --------------------------------------------------------------


def test_the_conductance_is_solved_when_asked(folder: Path) -> None:
    fit = load_plan(model_with(folder, SURROGATE | {"solve": "g"}), backend="reference")
    assert fit.space.n_free == 2
    objective = fit.objective(make_scorer(fit.problem, "reference"))
    truth = fit.problem.model.values()
    unit = fit.space.to_unit(truth[:, None])
    found = objective.physical(unit)[:, 0]
    assert found[[0, 1, 2]] == pytest.approx(truth[[0, 1, 2]])
    assert found[3] == pytest.approx(truth[3], rel=0.02)
    scorer = objective.scorer
    steps = np.repeat(found[:, None], 3, axis=1)
    steps[3] *= [1 - 1e-4, 1, 1 + 1e-4]
    assert scorer.score(steps).cost.argmin() == 1
    assert objective.score(unit).cost[0] == pytest.approx(scorer.score(steps).cost[1], rel=1e-12)


def test_nothing_is_solved_unless_asked(folder: Path) -> None:
    assert loaded(model_with(folder, SURROGATE)).solved == ()
    hybrid = SURROGATE | {"optimizer": {"name": "hybrid"}}
    assert loaded(model_with(folder, hybrid)).solved == ()
    assert loaded(model_with(folder, SURROGATE | {"solve": "auto"})).solved == ("g",)
    assert loaded(model_with(folder, SURROGATE | {"solve": "none"})).solved == ()


def test_what_cannot_be_solved_is_told(folder: Path) -> None:
    told = complaint(model_with(folder, SURROGATE | {"solve": ["a"]}))
    assert "fit.solve" in told
    assert "it is in: g" in told
    assert "one parameter was expected" in complaint(
        model_with(folder, SURROGATE | {"solve": ["g", "a"]})
    )
    parameters = MODEL["parameters"] | {
        "g": {"range": [1, 100], "value": 10, "prior": {"lognormal": [10, 2]}}
    }
    fit = SURROGATE | {"solve": "g", "noise": "5 pA"}
    told = complaint(model_with(folder, fit, parameters=parameters))
    assert "g cannot be solved" in told


def test_a_prior_counts_against_the_noise(folder: Path) -> None:
    """n cost/(2 noise^2) must grow by half a squared standard deviation."""
    a = MODEL["parameters"]["a"] | {"prior": {"lognormal": [50, 2]}}
    path = model_with(
        folder, SURROGATE | {"noise": "2 pA"}, parameters=MODEL["parameters"] | {"a": a}
    )
    fit = load_plan(path, backend="reference")
    scorer = make_scorer(fit.problem, "reference")
    unit = np.array([[0.3, 0.6], [0.2, 0.2], [0.4, 0.4]])
    physical = fit.space.to_physical(unit)
    n = 3 * 25
    grown = (fit.objective(scorer).score(unit).cost - scorer.score(physical).cost) * n / (2 * 4.0)
    np.testing.assert_allclose(
        grown, 0.5 * (np.log(physical[0] / 0.05) / np.log(2)) ** 2, rtol=1e-9
    )
    again = load_plan(
        save_fit(fit, fit.problem.model.values(), folder / "run"), backend="reference"
    )
    assert again.problem.model.parameters[0].prior == fit.problem.model.parameters[0].prior
    assert again.objective(scorer).prior_weight == fit.objective(scorer).prior_weight


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ({"normal": [1, 0]}, "a.prior.normal: a standard deviation above 0"),
        ({"lognormal": [1, 1]}, "a.prior.lognormal: a median above 0 and a factor above 1"),
        ({"lognormal": [-1, 3]}, "a median above 0 and a factor above 1"),
        ({"normal": [1]}, "two numbers were expected"),
        ({"uniform": [1, 2]}, 'unknown key "uniform"'),
        ({}, "either normal: [mean, sd] or lognormal"),
        ({"normal": [1, "wide"]}, "a.prior.normal"),
        (3, "a mapping"),
    ],
)
def test_what_is_no_prior_is_told(folder: Path, prior: object, message: str) -> None:
    a = MODEL["parameters"]["a"] | {"prior": prior}
    fit = SURROGATE | {"noise": "2 pA"}
    told = complaint(model_with(folder, fit, parameters=MODEL["parameters"] | {"a": a}))
    assert message in told


def test_a_prior_asks_for_the_noise(folder: Path) -> None:
    a = MODEL["parameters"]["a"] | {"prior": {"lognormal": [50, 2]}}
    told = complaint(model_with(folder, SURROGATE, parameters=MODEL["parameters"] | {"a": a}))
    assert "a has a prior" in told
    assert "noise: 5 pA" in told


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


def test_a_fit_file_may_tie_a_parameter_of_its_model(folder: Path) -> None:
    model_with(folder, None)
    path = folder / "fit.yaml"
    path.write_text(
        dump_yaml({"model": "little.yaml", "parameters": {"z": {"tie": "b/3"}}, "fit": SURROGATE})
    )
    assert loaded(path).problem.model.ties[0].name == "z"
    assert loaded(path, "parameters.z.tie=null").problem.model.ties == ()
