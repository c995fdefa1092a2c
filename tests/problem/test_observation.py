"""Observations as fit files give them: read, doubted or refused, fitted, drawn with their fit."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from channelfit.front.kinds import load_plan, make_scorer
from channelfit.front.main import main
from channelfit.front.watching.traces import compute, observed_figure
from channelfit.problem.observation import as_recording
from channelfit.reading.documents import dump_yaml
from channelfit.reading.errors import InputError
from channelfit.search.choose import OPTIMIZERS
from channelfit.search.least_squares import refine
from channelfit.search.loop import StopRules, optimize
from channelfit.search.plan import FitPlan
from support.model_texts import PLAIN

PROTOCOL = {
    "holding": -80,
    "sampling": 0.2,
    "segments": [
        {"hold": 2},
        {"step": {"values": [-60, -40, -20, 0, 20]}, "for": 10},
        {"step": -60, "for": {"values": [1, 2, 4, 8, 16]}},
    ],
}
X = np.array([-60.0, -40, -20, 0, 20])
PEAK = {"file": "g.csv", "x": "v", "value": "g", "error": "sem", "window": {"segment": 2}}


def written(folder: Path, *rows: dict[str, Any], table: str = "", **fit: Any) -> Path:
    """A fit file with one experiment of these observations."""
    document = {
        "model": "model.yaml",
        "fit": {"experiments": [{"protocol": "steps.yaml", "observe": list(rows) or [PEAK]}]} | fit,
    }
    for name, text in (("model", PLAIN), ("steps", PROTOCOL), ("fit", document)):
        (folder / f"{name}.yaml").write_text(dump_yaml(text))
    usual = "".join(f"{v:g},{0.1 + k / 10},0.02,9,{k}\n" for k, v in enumerate(X))
    (folder / "g.csv").write_text(table or f"v,g,sem,n,k\n{usual}")
    return folder / "fit.yaml"


REFUSED = {
    "fit.experiments[1].observe[1].window: from 2 to 20 ms is no part": {
        "window": {"segment": 2, "to": "18 ms"}
    },
    "sweep 1 has 3 segments": {"window": {"segment": 4}},
    "peak is taken from one segment": {"window": {"from": 1, "to": 6}},
    "4 samples of sweep 1 lie in it, and peak needs 5": {"window": {"segment": 2, "to": 0.8}},
    "error or sd was expected": {"error": None},
    "n is needed, by whose root": {"error": None, "sd": "sem"},
    "a number above 0 was expected": {"error": 0},
    'no column "nothing"': {"value": "nothing"},
    "there is no conductance to be seen": {"reversal": "-40.5 mV"},
    "the fractions of a fall decrease": {"measure": "fall", "fractions": [0.2, 0.9]},
    "one or two numbers between 0 and 1": {"measure": "rise"},
    "there are 1 exponentials": {"measure": "tau", "component": 2},
    '"fractions" has no meaning': {"fractions": 0.5},
    "steps has 5 sweeps": {"normalize": 6},
    '"most" is not one of maximum': {"normalize": "most"},
    "to which of them each row belongs": {"sweeps": [1, 2]},
    "a sweep is named twice": {"sweeps": [1, 2, 3, 4, 4]},
    'unit "mV" is a voltage': {"unit": "mV"},
    "other.csv: no such file": {"file": "other.csv"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_used_is_refused(message: str, tmp_path: Path) -> None:
    row = {key: value for key, value in (PEAK | REFUSED[message]).items() if value is not None}
    with pytest.raises(InputError) as raised:
        load_plan(written(tmp_path, row))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("-60,=1+1,0.02", "line 2"),
        ("-60,inf,0.02", "finite numbers"),
        ("n/a,0.1,0.02", "x, value and error are finite numbers"),
        ("-60,0.1,-1", "a standard error of 0 or more is needed"),
        ("-60,0.1,", "a standard error of 0 or more is needed"),
    ],
)
def test_cells_that_are_no_numbers_are_refused(cells: str, message: str, tmp_path: Path) -> None:
    rows = [f"{v:g},0.5,0.02" for v in X[1:]]
    with pytest.raises(InputError, match=message):
        load_plan(written(tmp_path, table="\n".join(["v,g,sem", cells, *rows])))


def test_doubts_are_told_before_work(tmp_path: Path) -> None:
    rows = [
        f"{v},{g},{e}"
        for v, g, e in zip([5, 1, 2, 3, 4], [2, 40, "", 60, 100], [1, 1, 1, 1, 0], strict=True)
    ]
    file = written(tmp_path, PEAK | {"normalize": "maximum"}, table="\n".join(["v,g,sem", *rows]))
    plan = load_plan(file)
    told = " | ".join(map(str, plan.cautions))
    for words in (
        "1 standard error(s) of 0, at v = 4; these numbers are left out",
        "normalized numbers up to 100; are they percent?",
        "v is neither a voltage nor a time that steps varies",
    ):
        assert words in told
    (experiment,) = plan.problem.experiments
    assert experiment.recording is not None
    assert experiment.recording.weight.tolist() == [[1, 1, 0, 1, 0]]


def test_recordings_beside_observations_need_their_noise(tmp_path: Path) -> None:
    recorded = {
        "protocol": "other.yaml",
        "recording": {"file": "r.csv", "current": {"columns": "all", "unit": "pA"}, "sampling": 1},
    }
    observed = {"protocol": "steps.yaml", "observe": PEAK}
    (tmp_path / "other.yaml").write_text(
        dump_yaml({"holding": -80, "sampling": 1, "segments": [{"step": 0, "for": 20}]})
    )
    (tmp_path / "r.csv").write_text("i\n" + "\n".join(str(k + k % 3) for k in range(20)))
    with pytest.raises(InputError, match="only the noise of a sample tells"):
        load_plan(written(tmp_path, experiments=[recorded, observed]))
    for experiments in ([observed], [recorded | {"weight": 0}, observed]):
        with pytest.raises(InputError, match="no recording counts here; leave it out"):
            load_plan(written(tmp_path, experiments=experiments, noise="2 pA"))
    plan = load_plan(written(tmp_path, experiments=[recorded, observed], noise="2 pA"))
    _, two = plan.problem.experiments
    assert two.recording is not None
    np.testing.assert_allclose(two.recording.current_pA[0], 2 * (0.1 + np.arange(5) / 10) / 0.02)
    with pytest.raises(InputError, match="either recording or observe"):
        load_plan(written(tmp_path, experiments=[recorded | observed]))
    with pytest.raises(InputError, match='"delay" has no meaning'):
        load_plan(written(tmp_path, experiments=[observed | {"delay": 1}]))
    clamp = {"series_resistance": "5 MOhm", "membrane_capacitance": "20 pF"}
    with pytest.raises(InputError, match="that of an ideal clamp"):
        load_plan(written(tmp_path, clamp=clamp))


def test_watch_shows_curves_in_the_units_of_the_table(tmp_path: Path) -> None:
    """In the order of x, with errors; no name of a column is read as a formula."""
    row = PEAK | {"x": "$$v$$", "unit": "nA", "error": "sem"}
    lines = [f"{v},{g},{g / 9}" for v, g in zip(X[::-1], (5, 4, 3, "", 1), strict=True) if g]
    file = written(
        tmp_path, row | {"sweeps": [5, 4, 3, 1]}, table="\n".join(["$$v$$,g,sem", *lines])
    )
    plan = load_plan(file)
    found = compute(file)
    predicted = make_scorer(plan, "cpu").simulate(plan.problem.values()[:, None])[0][0, :, 0]
    (observation,) = plan.problem.experiments[0].observations
    order = [0, 2, 3, 4]
    curve = {name: found[f"0 {name}"] for name in ("x", "value", "error", "fit")}
    for name, numbers in (
        ("x", X[order]),
        ("value", 1e3 * np.array([1, 3, 4, 5])),
        ("error", 1e3 * np.array([1, 3, 4, 5]) / 9),
        ("fit", (predicted / observation.scale)[order]),
    ):
        np.testing.assert_allclose(curve[name], numbers, rtol=1e-9, err_msg=name)
    texts = {name: found[f"0 {name}"] for name in ("title", "x_label", "y_label")}
    assert texts == {"title": "steps: g", "x_label": "$$v$$", "y_label": "peak (pA)"}
    drawn = json.dumps(observed_figure(curve | texts))
    assert '"Segment"' in drawn
    labels = re.findall(r'"PlainText", "id": "[^"]+", "attributes": {"text": "([^"]+)"}', drawn)
    assert sorted(labels) == ["$$v$$", "peak (pA)"]
    assert drawn.count("$$v$$") == 1


@pytest.mark.integration
def test_a_fit_of_observations_from_the_command_line(tmp_path: Path) -> None:
    """The true values come back; numbers and pictures are in the units of what was observed."""
    times = {"measure": "rise", "fractions": 0.5, "unit": "s"}
    third = {"measure": "peak", "window": {"segment": 3}}
    rows = [
        PEAK | row | {"name": name, "file": f"{name}.csv"}
        for name, row in (
            ("iv", {"unit": "nA"}),
            ("half", times),
            ("gv", {"reversal": -77, "normalize": "maximum"}),
            ("ratio", {**third, "relative_to": {"window": {"segment": 2}}}),
            ("tail", third),
        )
    ]
    for row in rows:
        usual = "".join(f"{v:g},1,1\n" for v in X)
        (tmp_path / row["file"]).write_text(f"v,g,sem\n{usual}")
    file = written(tmp_path, *rows, optimizer={"name": "hybrid", "scan": 64, "starts": 8})
    plan = load_plan(file)
    predicted = make_scorer(plan, "cpu").simulate(plan.problem.values()[:, None])[0][:, :, 0]
    draw = np.random.default_rng(3)
    for row, observation, own in zip(
        rows, plan.problem.experiments[0].observations, predicted, strict=True
    ):
        value = own / observation.scale / {"nA": 1e3, "s": 1e3}.get(row.get("unit", ""), 1.0)
        error = 0.02 * np.abs(value).max() * np.ones(5)
        value = value + error * draw.standard_normal(5)
        lines = [
            ",".join(map(repr, one))
            for one in zip(X.tolist(), value.tolist(), error.tolist(), strict=True)
        ]
        (tmp_path / row["file"]).write_text("\n".join(["v,g,sem", *lines]))
    done = CliRunner().invoke(main, ["optimize", str(file), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "the mean square of fit less observed, in standard errors" in done.output
    assert "pA^2" not in done.output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    for name, row in summary["parameters"].items():
        true = {"a": 0.5, "z": 0.05, "b": 0.5, "g": 5}[name]
        assert abs(row["value"] - true) < 5 * row["standard_error"], name
    assert 0.2 < summary["cost"] < 2.5
    curves = summary["experiments"][0]["observations"]
    assert [one["y_label"] for one in curves] == [
        "peak (pA)",
        "rise (ms)",
        "relative peak",
        "relative peak",
        "peak (pA)",
    ]
    assert curves[0]["x"] == X.tolist()
    with (tmp_path / "run" / "curves.csv").open() as table:
        rows_of_table = list(csv.DictReader(table))
    assert len(rows_of_table) == 25
    assert float(rows_of_table[7]["fit"]) == pytest.approx(curves[1]["result"][2], rel=1e-8)
    apart = [float(row["fit - observed (standard errors)"]) for row in rows_of_table]
    assert np.mean(np.square(apart)) == pytest.approx(summary["cost"], rel=1e-6)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "steps: half" in page
    assert (tmp_path / "run" / "curves.png").stat().st_size > 10_000
    again = load_plan(tmp_path / "run" / "fit.yaml")
    cost = make_scorer(again, "cpu").score(again.problem.values()[:, None]).cost[0]
    assert cost == pytest.approx(summary["cost"], rel=1e-9)


#: Generations and population with which an optimizer comes near the lowest cost.
NEAR = {
    "genetic": (150, 200),
    "swarm": (120, 60),
    "ring": (150, 60),
    "groups": (150, 64),
    "differential": (60, 30),
    "cma": (60, 24),
}


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> tuple[FitPlan, float]:
    """A fit to numbers with noise, and the lowest cost by least squares from the true values."""
    folder = tmp_path_factory.mktemp("noisy")
    rise = {"measure": "rise", "fractions": 0.5, "unit": "ms"}
    rows = [PEAK, PEAK | rise, PEAK | {"window": {"segment": 3}}]
    plan = load_plan(written(folder, *rows))
    true = plan.problem.values()[:, None]
    predicted = make_scorer(plan, "cpu").simulate(true)[0][:, :, 0]
    (experiment,) = plan.problem.experiments
    draw, found = np.random.default_rng(3), []
    for o, own in zip(experiment.observations, predicted, strict=True):
        error = 0.02 * np.abs(own / o.scale).max() * np.ones(5)
        value = own / o.scale + error * draw.standard_normal(5)
        found.append(replace(o, value=value, error=error))
    experiment = replace(experiment, observations=tuple(found), recording=as_recording(found))
    plan = replace(plan, problem=replace(plan.problem, experiments=(experiment,)))
    objective = plan.objective(make_scorer(plan, "cpu"))
    ends = refine(objective, objective.space.to_unit(true))
    return plan, float(ends.cost[0])


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "asynchronous_ring"])
def test_every_optimizer_fits_observations(name: str, noisy: tuple[FitPlan, float]) -> None:
    """To the cost of least squares from the true values, or as near as it comes in seconds."""
    plan, least = noisy
    if name == "cma":
        pytest.importorskip("cma")
    generations, population = NEAR.get(name, (None, None))
    settings = {} if population is None else {"population": population}
    plan = replace(plan, optimizer=name, settings=settings)
    objective = plan.objective(make_scorer(plan, "cpu"))
    rules = StopRules(generations=generations or 1000)
    result = optimize(plan.make_optimizer(), objective, rules)
    # the genetic algorithm ends within what mutations move
    far = {"hybrid": 1e-6, "genetic": 0.3}.get(name, 0.05)
    assert result.cost == pytest.approx(least, rel=far)
    assert result.cost > least * (1 - 1e-6)
    assert not result.failures
