"""The front door: what a Python user calls, from arrays and files to a fit and back."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import channelfit as cf
from channelfit.front import table as tables
from channelfit.front.main import main
from channelfit.front.progress import NotebookScreen, screen_for
from channelfit.front.table import Table, table_of
from channelfit.front.watching.traces import _sweeps
from channelfit.problem.experiment import Experiment
from support.places import ROOT

MODEL = ROOT / "models" / "model_b.yaml"
STEPS = {"name": "two steps", "sampling": 0.5, "holding": -80}
#: A search that has hardly begun.
BRIEF = {"optimizer": "genetic", "stop": {"generations": 2}, "progress": False}
SEGMENTS = [{"step": {"values": [-40, 0, 40]}, "for": 60}, {"step": -60, "for": 30}]


@pytest.fixture(scope="module")
def model() -> cf.Model:
    return cf.Model.load(MODEL)


@pytest.fixture(scope="module")
def protocol() -> cf.Protocol:
    return cf.Protocol.from_segments(**STEPS, segments=SEGMENTS)


@pytest.fixture(scope="module")
def recorded(model, protocol) -> np.ndarray:
    current = cf.simulate(model, protocol, backend="reference").current
    return current + np.random.default_rng(5).normal(0, 0.5, current.shape)


@pytest.fixture(scope="module")
def fitted(model, protocol, recorded) -> cf.Fit:
    return cf.fit(model, cf.Experiment(protocol, recorded), seed=3, progress=False)


# --- fit ------------------------------------------------------------------------------------------


def test_a_page_that_watches_shows_what_counts_as_data(protocol, recorded):
    weight = np.ones(recorded.shape)
    weight[1, 7] = 0
    recording = cf.Recording.from_arrays(protocol, recorded, weight=weight)
    sweeps = list(_sweeps(Experiment(protocol, recording), recorded))
    shown = np.stack([data for _, data, _ in sweeps])
    assert np.argwhere(np.isnan(shown)).tolist() == [[1, 7]]


def test_arrays_come_to_a_fit(fitted, model, recorded):
    truth = {p.name: p.value for p in model.channel.parameters}
    apart = {n: abs(fitted.values[n] - truth[n]) / fitted.errors[n] for n in truth}
    assert max(apart.values()) < 5, apart
    assert fitted.rms == pytest.approx(0.5, rel=0.1)
    (trace,), (residual,) = fitted.traces, fitted.residuals
    np.testing.assert_allclose(residual, trace - recorded, rtol=0, atol=1e-12)
    assert fitted.cost == pytest.approx(np.mean(residual**2), rel=1e-12)
    assert fitted.undetermined == [
        row["text"] for row in fitted.summary["uncertainty"]["undetermined"]
    ]
    assert "cost" in repr(fitted)
    assert "gmax" in str(fitted)
    assert "RMS" in str(fitted)


@pytest.mark.usefixtures("undrawn")
def test_a_file_says_it_all_and_the_command_line_finds_the_same(tmp_path):
    options = ["--seed", "4", "--generations", "2", "--optimizer", "genetic", "--quiet"]
    main(["optimize", str(MODEL), *options, "--out", str(tmp_path / "run")], standalone_mode=False)
    here = cf.fit(MODEL, **BRIEF, seed=4)
    assert here.summary["optimizer"] == "genetic"
    assert (here.summary["generations"], here.summary["seed"]) == (2, 4)
    there = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert here.summary["cost"] == there["cost"]
    assert {n: r["value"] for n, r in there["parameters"].items()} == here.values


@pytest.mark.optimized
@pytest.mark.usefixtures("undrawn")
def test_two_experiments_and_weights_that_survive_saving(model, protocol, recorded, tmp_path):
    ramp = cf.Protocol.from_segments(
        name="ramp", sampling=0.5, holding=-80, segments=[{"ramp": [-80, 40], "for": 40}]
    )
    second = cf.simulate(model, ramp, backend="reference").current
    weights = np.random.default_rng(2).choice([0.0, 1.0, 2.5], size=recorded.shape)
    gaps = np.where(weights == 0, np.nan, recorded)
    both = [cf.Experiment(protocol, gaps, weights=weights), cf.Experiment(ramp, second)]
    found = cf.fit(model, both, name="with gaps", **BRIEF)
    first, other = found.residuals
    np.testing.assert_array_equal(np.isnan(first), weights == 0)
    assert other.shape == second.shape
    again = cf.load(found.save(tmp_path / "run"))
    np.testing.assert_array_equal(again._plan.problem.fitted[0].recording.weight, weights)
    assert again.cost == pytest.approx(found.cost, rel=1e-12)
    assert again.name == "with gaps"


@pytest.mark.parametrize("kind", ["frame", "mapping"])
def test_currents_of_every_kind(kind, model, protocol, recorded, tmp_path):
    """A recording is given above, and an array everywhere."""
    given = pd.DataFrame(recorded.T, columns=[f"sweep {k}" for k in range(len(recorded))])
    if kind == "mapping":
        given.insert(0, "t", protocol.times_ms)
        given.to_csv(tmp_path / "cell.csv", index=False)
        time, current = {"column": "t", "unit": "ms"}, {"columns": "all", "unit": "pA"}
        given = {"file": str(tmp_path / "cell.csv"), "time": time, "current": current}
    found = cf.fit(model, cf.Experiment(protocol, given), **BRIEF)
    assert found._plan.problem.fitted[0].recording.current_pA == pytest.approx(recorded)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": "seconds"}, "1000*time"),
        ({"current": "turned"}, "turned"),
        ({"current": None}, "an array of numbers was expected"),
        ({"weights": "negative"}, "weight"),
        ({"start": "here"}, "values"),
        ({"current": [1, 2]}, "two steps"),
        ({"current": Path("cell7.csv")}, "the columns of cell7.csv"),
    ],
)
def test_what_is_refused(change, message, model, protocol, recorded):
    data, how = {"current": recorded}, {}
    for name, value in change.items():
        (data if name in ("current", "time", "weights") else how)[name] = value
    if change.get("time") == "seconds":
        data["time"] = protocol.times_ms / 1e3
    if isinstance(change.get("current"), str):
        data["current"] = recorded.T
    if "weights" in change:
        data["weights"] = -np.ones_like(recorded)
    with pytest.raises(cf.InputError, match=message.replace("*", r"\*")):
        cf.fit(model, cf.Experiment(protocol, **data), progress=False, **how)


#: A search of ten candidates, which says whether anything is scored at all.
TINY = {"optimizer": {"name": "genetic", "population": 10}, "stop": {"generations": 1}}


@pytest.mark.optimized
@pytest.mark.usefixtures("undrawn")
def test_clamp_and_filter_of_an_experiment_are_fitted_and_saved(
    model, protocol, recorded, tmp_path
):
    amplifier = {"series_resistance": "8 MOhm", "membrane_capacitance": "20 pF"}
    experiment = cf.Experiment(
        protocol, recorded, clamp=amplifier, filter={"poles": 4, "cutoff": "0.5 kHz"}
    )
    found = cf.fit(model, experiment, **TINY, progress=False)
    row = yaml.safe_load((found.save(tmp_path / "run") / "fit.yaml").read_text())["fit"]
    assert row["experiments"][0]["clamp"] == {**amplifier, "lowpass": experiment.filter}
    assert cf.load(tmp_path / "run").cost == pytest.approx(found.cost, rel=1e-12)
    ideal = found.model
    apart = cf.simulate(ideal, protocol).current - found.traces[0]
    assert np.nanmax(np.abs(apart)) > 0.01 * np.nanmax(np.abs(found.traces[0]))
    twice = {**amplifier, "lowpass": {"cutoff": "1 kHz"}}
    with pytest.raises(cf.InputError, match="give the filter once"):
        cf.fit(model, cf.Experiment(protocol, recorded, clamp=twice, filter={"cutoff": 1}))


@pytest.mark.parametrize("given", ["steps.yaml", [], [("steps", "current")]])
def test_experiments_are_experiments(given, model):
    with pytest.raises(cf.InputError, match="experiment"):
        cf.fit(model, given)
    with pytest.raises(cf.InputError, match="experiments are needed"):
        cf.fit(model)


class Anywhere(cf.Optimizer):
    """Draws anywhere, and ends by itself."""

    def ask(self):
        return np.random.default_rng(self.seed).random((self.n_parameters, 5))

    def tell(self, candidates, cost):
        assert type(cost) is np.ndarray
        self.ended = "that will do"


def test_a_search_of_ones_own_ends_by_itself_and_what_it_may_not_do_is_refused(
    model, protocol, recorded
):
    experiment = cf.Experiment(protocol, recorded)
    found = cf.fit(model, experiment, optimizer=Anywhere, seed=3, progress=False)
    assert found.summary["stop_reason"] == "that will do"
    assert (found.summary["optimizer"], found.summary["evaluations"]) == ("Anywhere", 5)
    assert found.errors["gmax"] is not None

    def asks(what):
        return type("Wrong", (Anywhere,), {"ask": lambda self: what})

    for how, message in (
        ({"optimizer": asks(np.zeros((2, 5)))}, "a row for each free parameter"),
        ({"optimizer": asks(np.full((len(found.values), 5), np.nan))}, "NaN"),
        ({"optimizer": asks([0.5])}, "must return an array"),
        ({"optimizer": dict}, "derived from channelfit.Optimizer"),
        ({"optimizer": Anywhere(3, 1)}, "derived from channelfit.Optimizer"),
        ({"optimizer": Anywhere, "start": "values"}, "leave start out"),
    ):
        with pytest.raises(cf.InputError, match=message):
            cf.fit(model, experiment, progress=False, **how)


class Quartic(cf.Cost):
    """The weighted mean of the fourth powers of the residuals."""

    def __call__(self, predicted, recorded, weights):
        return (weights * (predicted - recorded) ** 4).sum(axis=(0, 1)) / weights.sum()


def test_a_cost_of_ones_own_is_what_is_minimized(model, protocol, recorded):
    weights = np.random.default_rng(2).choice([0.0, 1.0, 2.0], size=recorded.shape)
    experiment = cf.Experiment(protocol, np.where(weights == 0, np.nan, recorded), weights=weights)
    found = cf.fit(model, experiment, cost=Quartic(), stop={"generations": 3}, progress=False)
    (residual,) = found.residuals
    counted = weights > 0
    own = (weights[counted] * residual[counted] ** 4).sum() / weights.sum()
    assert found.summary["search_cost"] == pytest.approx(own, rel=1e-9)
    assert found.history["best_cost"][-1] == pytest.approx(own, rel=1e-9)
    assert found.summary["optimizer"] == "differential"
    assert set(found.errors.values()) == {None}
    assert "Quartic was minimized" in found.remarks[0]
    with pytest.raises(cf.InputError, match="needs derivatives"):
        cf.fit(model, experiment, cost=Quartic(), optimizer="hybrid", progress=False)
    one = type("One", (Quartic,), {"__call__": lambda self, *given: 1.0})()
    with pytest.raises(cf.InputError, match="one for each candidate"):
        cf.fit(model, experiment, cost=one, **TINY, progress=False)


def test_what_looks_wrong_is_warned_of(model, protocol, recorded):
    flat = recorded.clip(max=float(np.quantile(recorded, 0.8)))
    with pytest.warns(cf.InputWarning, match="recording"):
        cf.fit(model, cf.Experiment(protocol, flat), **BRIEF)


# --- saved and loaded -----------------------------------------------------------------------------


def test_what_is_saved_is_loaded_again(fitted, tmp_path):
    folder = fitted.save(tmp_path / "run")
    names = {p.name for p in folder.iterdir()}
    assert {"fit.yaml", "summary.json", "history.csv", "traces.png", "data.csv"} <= names
    again = cf.load(folder)
    assert again.values == fitted.values
    assert again.errors == fitted.errors
    np.testing.assert_array_equal(again.traces[0], fitted.traces[0])
    np.testing.assert_array_equal(again.residuals[0], fitted.residuals[0])
    assert again.summary["evaluations"] == fitted.summary["evaluations"]
    np.testing.assert_array_equal(again.history, fitted.history)
    with pytest.raises(cf.InputError, match="not empty"):
        fitted.save(folder)
    twice = again.save(tmp_path / "twice")
    assert cf.load(twice / "fit.yaml").values == fitted.values


@pytest.mark.usefixtures("undrawn")
def test_a_file_that_was_changed_is_judged_anew(fitted, tmp_path):
    """Not its traces by the new values, and its table and cost by the old."""
    file = fitted.save(tmp_path / "run") / "fit.yaml"
    document = yaml.safe_load(file.read_text())
    document["parameters"]["gmax"]["value"] = changed = 0.9 * fitted.values["gmax"]
    file.write_text(yaml.safe_dump(document))
    again = cf.load(file)
    assert again.values["gmax"] == changed
    assert again.summary["cost"] == again.cost > 2 * fitted.cost
    assert again.errors != fitted.errors


@pytest.mark.usefixtures("undrawn")
def test_a_folder_is_written_as_the_search_goes(model, protocol, recorded, tmp_path):
    found = cf.fit(model, cf.Experiment(protocol, recorded), folder=tmp_path / "run", **BRIEF)
    saved = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert saved["parameters"] == found.summary["parameters"]
    assert yaml.safe_load((tmp_path / "run" / "fit.yaml").read_text())["fit"]["start"] == "values"


def test_the_fitted_model_simulates_and_is_saved(fitted, protocol, tmp_path):
    simulated = cf.simulate(fitted, protocol)
    np.testing.assert_allclose(simulated.current, fitted.traces[0], rtol=0, atol=1e-9)
    fitted.model.save(tmp_path / "fitted.yaml")
    again = cf.simulate(tmp_path / "fitted.yaml", protocol)
    np.testing.assert_array_equal(again.current, simulated.current)


def test_a_function_has_a_cost_and_no_currents(tmp_path):
    found = cf.fit(
        ROOT / "models" / "functions" / "sphere.yaml", stop={"evaluations": 3000}, progress=False
    )
    again = cf.load(found.save(tmp_path / "run"))
    assert (again.cost, again.values) == (found.cost, found.values)
    assert found.plot()._repr_png_().startswith(b"\x89PNG")
    for name in ("rms", "traces", "residuals", "model"):
        with pytest.raises(cf.InputError, match="a function has no currents"):
            getattr(found, name)
    for call in (cf.uncertainty, lambda one: cf.compare(one, one)):
        with pytest.raises(cf.InputError, match="a function has no currents"):
            call(found)


# --- simulate -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("3 nS", "a number in nS was expected, without a unit beside it, not '?\"?3 nS"),
        (True, "a number in nS was expected"),
        (float("nan"), "not a number"),
        (-3, "-3 lies outside the range of this parameter, .* nS"),
    ],
)
def test_a_value_has_a_number_in_its_range(model, protocol, given, message):
    with pytest.raises(cf.InputError, match=message) as caught:
        cf.simulate(model, protocol, values={"gmax": given})
    assert caught.value.key == "gmax"
    with pytest.raises(cf.InputError, match="no such parameter"):
        cf.simulate(model, protocol, values={"gmaxx": 1.0})


def test_states_and_open_probability_of_a_simulation():
    """Beside what the current says of them, and a scheme's steady state of two rates."""
    steps = cf.Protocol.steps(holding=-80, levels=[-40, 20], duration=400, sampling=1)
    found = cf.simulate(ROOT / "models" / "model_a.yaml", steps)
    p = cf.Model.load(ROOT / "models" / "model_a.yaml").values
    assert list(found.states) == ["C", "O"]
    np.testing.assert_allclose(found.states["C"] + found.states["O"], 1, atol=1e-12)
    channel = cf.Model.load(ROOT / "models" / "model_a.yaml").channel
    drive = found.voltage - float(channel.reversal)
    apart = np.abs(drive) > 1
    is_open = found.current[apart] / (p["gmax"] * drive[apart])
    np.testing.assert_allclose(found.open_probability[apart], is_open, atol=1e-9)
    gates = cf.simulate(ROOT / "models" / "na_hh.yaml", steps)
    assert list(gates.states) == ["m", "h"]
    np.testing.assert_allclose(
        gates.open_probability, gates.states["m"] ** 3 * gates.states["h"], rtol=1e-12
    )


def test_of_several_currents_each_has_its_open_probability():
    def current(rate):
        gates = {"n": {"power": 1, "alpha": rate, "beta": "b"}}
        return {"gates": gates, "conductance": "g", "reversal": "-80 mV"}

    b = {"range": [0.01, 1], "unit": "1/ms", "value": 0.1}
    g = {"range": [1, 100], "unit": "nS", "value": 10}
    currents = {"slow": current("b"), "fast": current("3*b")}
    two = cf.Model(name="two", currents=currents, parameters={"b": b, "g": g})
    found = cf.simulate(two, cf.Protocol.steps(holding=-80, levels=[0], duration=9, sampling=1))
    assert found.open_probabilities["fast"][0, 5] == pytest.approx(0.75)
    with pytest.raises(cf.InputError, match="currents slow, fast; take one of"):
        _ = found.open_probability


def test_a_model_file_is_no_saved_fit():
    with pytest.raises(cf.InputError, match=r"is no saved fit.*Model\.load reads a model file"):
        cf.load(MODEL)


@pytest.mark.usefixtures("undrawn")
def test_a_cable_is_solved_from_python_as_by_the_command_line(tmp_path):
    found = cf.fhn("rest", np.linspace(0, 5, 3), right=1.0, nodes=81, stimuli=["0.2,x=0:5,t=1:2"])
    options = "--initial rest --right 1 --nodes 81 --end 5 --frames 3 --stimulus 0.2,x=0:5,t=1:2"
    out = tmp_path / "there"
    main(["fhn", *options.split(), "--out", str(out), "--quiet"], standalone_mode=False)
    np.testing.assert_array_equal(found.v[:, 0], np.load(out / "results.npz")["v"])
    for given, key in (({"scheme": "euler"}, "scheme"), ({"error": 1e-3}, "error")):
        with pytest.raises(cf.InputError) as caught:
            cf.fhn(**given)
        assert caught.value.key == key


# --- how sure, and which --------------------------------------------------------------------------


def test_uncertainty_of_a_fit(fitted, tmp_path):
    found = cf.uncertainty(fitted, profiles=["gmax"], progress=False)
    assert found.errors["gmax"] == pytest.approx(fitted.errors["gmax"], rel=0.05)
    (profile,) = found.profiles
    assert profile.lower < fitted.values["gmax"] < profile.upper
    files = {f.name for f in found.save(tmp_path / "sure")}
    assert files >= {"uncertainty.json", "uncertainty.png", "profiles.csv", "profiles.png"}
    with pytest.raises(cf.InputError, match="no free parameter"):
        cf.uncertainty(fitted, profiles="gmaxx", progress=False)


@pytest.mark.integration
def test_schemes_are_compared(fitted, model, protocol, recorded, tmp_path):
    document = model.document
    document["parameters"]["gmax"] = {"value": 5.0, "fixed": True, "unit": "nS"}
    changed = cf.Model.from_yaml(yaml.safe_dump(document))
    fewer = cf.fit(changed, cf.Experiment(protocol, recorded), name="fewer", progress=False)
    found = cf.compare(fitted, fewer, progress=False)
    table = found.table
    assert table.loc["fewer", "free_parameters"] == table["free_parameters"].max() - 1
    assert table["aic_weight"].sum() == pytest.approx(1)
    assert {f.name for f in found.save(tmp_path)} == {"comparison.json", "comparison.png"}
    folders = [one.save(tmp_path / one.name) for one in (fitted, fewer)]
    again = cf.compare(*folders, progress=False)
    assert again.summary["fits"][1]["cost"] == pytest.approx(found.summary["fits"][1]["cost"])
    with pytest.raises(cf.InputError, match="two or more"):
        cf.compare(fitted)


# --- tables, pictures, progress -------------------------------------------------------------------


def test_tables_with_and_without_pandas(fitted, monkeypatch):
    frame = fitted.parameters
    assert isinstance(frame, pd.DataFrame)
    monkeypatch.setattr(tables.importlib.util, "find_spec", lambda name: None)
    plain = fitted.parameters
    assert isinstance(plain, Table)
    assert plain.loc["gmax", "value"] == frame.loc["gmax", "value"] == fitted.values["gmax"]
    assert plain["unit"]["gmax"] == frame["unit"]["gmax"]
    assert plain.index == list(frame.index)
    assert list(plain) == list(frame)
    with pytest.raises(KeyError, match="there is value"):
        plain["values"]
    shown = table_of({"<script>": {"value": "<b>"}}, ["value"])._repr_html_()
    assert "<script>" not in shown
    assert "<b>" not in shown
    assert "&lt;script&gt;" in shown


def test_what_a_notebook_shows(fitted, protocol):
    page = fitted._repr_html_()
    assert "gmax" in page
    assert "RMS" in page
    assert fitted.plot()._repr_png_().startswith(b"\x89PNG")
    assert cf.simulate(fitted, protocol).plot()._repr_png_().startswith(b"\x89PNG")


def test_progress_in_a_notebook(monkeypatch, fitted, model, protocol, recorded):
    shown = []

    class Display:
        def update(self, page):
            shown.append(page)

    played = type(sys)("IPython")
    played.display = type(sys)("IPython.display")
    played.display.HTML = str
    played.display.display = lambda page, display_id: Display()
    played.get_ipython = lambda: type("Shell", (), {"kernel": None})()
    monkeypatch.setitem(sys.modules, "IPython", played)
    monkeypatch.setitem(sys.modules, "IPython.display", played.display)
    assert isinstance(screen_for("title", None), NotebookScreen)
    experiment = cf.Experiment(protocol, recorded)
    cf.fit(model, experiment, optimizer="genetic", stop={"generations": 5})
    assert any("best cost" in page for page in shown), shown
    assert shown[-1] == ""
