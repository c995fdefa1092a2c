"""Several cells and temperatures in one fit, against the same problems written out by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import channelfit as cf
from channelfit.front.kinds import load_plan
from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.recording import Recording
from channelfit.reading.documents import dump_yaml, parse_yaml
from channelfit.reading.errors import InputError
from channelfit.scoring.grouped import GroupedScorer
from channelfit.scoring.machine.arrays import to_host
from channelfit.scoring.scorer import make_scorer
from support.json_output import ran, refused
from support.little import protocol_of

pytestmark = pytest.mark.usefixtures("undrawn")

CELLS = {"cell 1": 3.0, "cell 2": 5.0, "cell 3": 8.0}
MODEL: dict[str, Any] = {
    "name": "warm",
    "temperature": "22 degC",
    "definitions": {"q": "q10**((celsius - 22)/10)"},
    "states": ["C", "O"],
    "rates": {"C -> O": "q*a*exp(z*v)", "O -> C": "q*b"},
    "current": {"open": ["O"], "conductance": "g", "reversal": "0.0862*(celsius + 273.15)*ratio"},
    "parameters": {
        "a": {"range": [0.01, 1], "unit": "1/ms", "scale": "log", "value": 0.2},
        "z": {"range": [0, 0.1], "unit": "1/mV", "value": 0.04},
        "g": {"range": [0.5, 20], "unit": "nS", "per": "cell", "value": dict(CELLS)},
        "b": {"range": [0.01, 1], "unit": "1/ms", "scale": "log", "value": 0.1},
        "q10": {"range": [1, 5], "value": 2.5},
        "ratio": {"range": [-4, -2], "value": -3.4, "fixed": True},
    },
}
STEPS = protocol_of(
    "{name: steps, holding: -80 mV, sampling: 0.5 ms, "
    "segments: [{step: {values: [-40 mV, 0 mV, 30 mV]}, for: 20 ms}, {step: -50 mV, for: 10 ms}]}"
)
RAMP = protocol_of(
    "{name: ramp, holding: -80 mV, sampling: 0.5 ms, "
    "segments: [{ramp: [-80 mV, 40 mV], for: 25 ms}]}"
)


def changed(**rows: dict[str, Any]) -> dict[str, Any]:
    """The model with other or further parameters."""
    return {**MODEL, "parameters": {**MODEL["parameters"], **rows}}


def by_hand(cell: str, celsius: float) -> ChannelModel:
    """The model of one cell at one temperature, as if it were the only one."""
    document = changed(g={"range": [0.5, 20], "unit": "nS", "value": CELLS[cell]})
    return build_model({**document, "temperature": celsius}, None)


def experiment(
    protocol: Protocol, cell: str, celsius: float | None = None, weight: float = 1.0, seed: int = 0
) -> Experiment:
    """Noise about currents that no parameters give."""
    random = np.random.default_rng(seed)
    current = 100 * random.normal(size=(protocol.n_sweeps, protocol.n_times_max))
    weights = random.choice([0.0, 1.0, 2.0], current.shape)
    recording = Recording.from_arrays(protocol, current, weight=weights)
    return Experiment(protocol, recording, weight, cell, celsius)


def problem_of(*experiments: Experiment, document: dict[str, Any] = MODEL) -> Problem:
    told = any(e.temperature_C is not None for e in experiments)
    return Problem(build_model(document, None, 22.0 if told else None), tuple(experiments))


def several() -> Problem:
    """Three cells, two of them at two temperatures, with two protocols and unequal weights."""
    return problem_of(
        experiment(STEPS, "cell 1", None, 1.0, 1),
        experiment(RAMP, "cell 2", 34.0, 2.0, 2),
        experiment(STEPS, "cell 2", 34.0, 0.5, 3),
        experiment(RAMP, "cell 1", 30.0, 1.5, 4),
        experiment(STEPS, "cell 3", 34.0, 1.0, 5),
    )


def candidates(problem: Problem, n: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return problem.values()[:, None] * random.uniform(0.8, 1.2, (len(problem.parameters), n))


def written_out(problem: Problem, parameters: np.ndarray, backend: str) -> tuple[Any, Any, Any]:
    """Cost, gradient and Hessian of one problem for each experiment, summed by hand."""
    names = [p.name for p in problem.parameters]
    weights, costs, slopes, bends = [], [], [], []
    for e in problem.experiments:
        model = by_hand(e.cell, 22.0 if e.temperature_C is None else e.temperature_C)
        rows = [names.index(f"g[{e.cell}]" if p == "g" else p) for p in model.parameter_names]
        alone = Problem(model, (replace(e, cell="", temperature_C=None),))
        found = make_scorer(alone, backend).linearize(parameters[rows])
        weights.append(e.weight * e.recording.weight.sum())
        costs.append(found.cost)
        slope, bend = np.zeros(parameters.shape), np.zeros((len(names), *parameters.shape))
        slope[rows] = found.gradient
        bend[np.ix_(rows, rows)] = found.hessian
        slopes.append(slope)
        bends.append(bend)
    share = np.array(weights) / np.sum(weights)
    return tuple(np.tensordot(share, np.array(x), 1) for x in (costs, slopes, bends))


# --- the parameters of a fit ---------------------------------------------------------------------
def test_a_parameter_per_cell_is_one_for_each_cell() -> None:
    problem = several()
    names = ["a", "z", "g[cell 1]", "g[cell 2]", "g[cell 3]", "b", "q10", "ratio"]
    assert [p.name for p in problem.parameters] == names
    np.testing.assert_array_equal(problem.values()[2:5], list(CELLS.values()))
    places = [(group.name, group.places) for group in problem.groups]
    assert places == [
        ("cell 1, 22 degC", (0,)),
        ("cell 2, 34 degC", (1, 2)),
        ("cell 1, 30 degC", (3,)),
        ("cell 3, 34 degC", (4,)),
    ]
    moved = problem.with_values(np.arange(1.0, 9.0))
    np.testing.assert_array_equal(moved.values(), np.arange(1.0, 9.0))


def changed_g(**entries: Any) -> dict[str, Any]:
    return changed(g={"range": [0.5, 20], "unit": "nS", "per": "cell"} | entries)


def test_what_cells_have_of_their_own_goes_before_what_others_have() -> None:
    document = changed_g(
        range={"cell 2": [4, 6], "others": [0.5, 20]},
        value={"cell 2": 5, "cell 3": 7, "others": 2},
        fixed={"cell 3": True},
        scale="log",
    )
    row = dict(problem_of(*map_cells(CELLS), document=document).of_model("g"))
    assert [(p.lower, p.upper, p.value, p.fixed) for p in row.values()] == [
        (0.5, 20, 2, False),
        (4, 6, 5, False),
        (0.5, 20, 7, True),
    ]
    assert {p.scale for p in row.values()} == {"log"}


def map_cells(cells: Sequence[str] | dict[str, float]) -> list[Experiment]:
    return [experiment(STEPS, cell, seed=k) for k, cell in enumerate(cells)]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"per": "sweep"}, 'parameters.g.per: "sweep" is not one of cell'),
        ({"per": None, "value": {"cell 1": 3}}, "g.value: only a parameter with `per: cell`"),
        ({"value": {"cell 1": 30}}, "parameters.g: cell 1: the value 30 lies outside the range"),
        ({"range": {"cell 1": [5, 1]}}, "parameters.g.range: cell 1: the lower end 5 is not below"),
    ],
)
def test_what_cannot_be_used_is_told(entries: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        build_model(changed_g(**entries), None)


def test_what_is_not_said_of_a_cell_is_told() -> None:
    document = changed_g(range={"cell 1": [1, 5], "cell 2": [1, 6]})
    with pytest.raises(InputError, match='for the cell "cell 3", only for cell 1, cell 2'):
        len(problem_of(*map_cells(CELLS), document=document).parameters)
    warm = experiment(STEPS, "cell 1", 34.0)
    with pytest.raises(InputError, match="the model was built for one temperature alone"):
        make_scorer(Problem(build_model(MODEL, None), (warm,)), "cpu")
    unsaid = {key: value for key, value in MODEL.items() if key != "temperature"}
    some = (warm, experiment(STEPS, "cell 1"))
    with pytest.raises(InputError, match=r"experiments\[2\].temperature: neither this experiment"):
        make_scorer(Problem(build_model(unsaid, None, 34.0), some), "cpu")
    with pytest.raises(InputError, match="only some experiments say their cell"):
        len(problem_of(*map_cells(["cell 1", ""])).parameters)


# --- scores --------------------------------------------------------------------------------------
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_cells_and_temperatures_are_a_sum_of_problems_of_one(backend: str) -> None:
    problem = several()
    parameters = candidates(problem, 4)
    scorer = make_scorer(problem, backend)
    cost, slope, bend = written_out(problem, parameters, backend)
    local = scorer.linearize(parameters)
    for found in (scorer.score, scorer.preview, scorer.rescore, scorer.linearize):
        np.testing.assert_allclose(found(parameters).cost, cost, rtol=1e-9)
        assert not found(parameters).status.any()
    scale = np.abs(slope).max(axis=1, keepdims=True)
    np.testing.assert_allclose(local.gradient, slope, rtol=1e-7, atol=1e-9 * scale.max())
    np.testing.assert_allclose(local.hessian, bend, rtol=1e-7, atol=1e-9 * np.abs(bend).max())
    g = slice(2, 5)
    between = local.hessian[g, g] * (1 - np.eye(3))[:, :, None]
    assert not between.any()
    assert local.hessian[g, g].any()
    assert not local.gradient[-1].any()  # fixed


def test_arrays_of_a_gpu_stay_there(device: str) -> None:
    problem = several()
    here = candidates(problem, 5)
    here[3, 2] = np.nan
    truth = make_scorer(problem, "cpu")
    scorer = make_scorer(problem, "cuda")
    on_device = scorer.xp.asarray(here)
    expected = truth.linearize(here)
    for way in ("score", "preview", "rescore", "linearize"):
        found = getattr(scorer, way)(on_device)
        assert all(isinstance(array, scorer.xp.ndarray) for array in vars(found).values())
        np.testing.assert_allclose(to_host(found.cost), expected.cost, rtol=1e-8)
        np.testing.assert_array_equal(to_host(found.status), expected.status)
        again = getattr(scorer, way)(here)
        assert all(isinstance(array, np.ndarray) for array in vars(again).values())
    local = scorer.linearize(on_device)
    for name in ("gradient", "hessian"):
        one, other = to_host(getattr(local, name)), getattr(expected, name)
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9 * np.abs(other).max())


# --- cells that one walk serves ------------------------------------------------------------------
GATES: dict[str, Any] = {
    "gates": {"m": {"power": 3, "alpha": "a*exp(z*v)", "beta": "b"}},
    "current": {"conductance": "2*g", "reversal": "-90 mV"},
    "parameters": {key: MODEL["parameters"][key] for key in ("a", "z", "g", "b")},
}
THREE_STATES = GATES | {
    "states": ["C", "O", "I"],
    "rates": {"C -> O": "a*exp(z*v)", "O -> C": "b", "O -> I": "0.3*b", "I -> O": "0.01"},
    "current": {"open": ["O"], "conductance": "2*g", "reversal": "-90 mV"},
}
del THREE_STATES["gates"]


def masked_alike(document: dict[str, Any], *protocols: Protocol) -> Problem:
    """Cells with the same protocols and masks, and other data."""
    rows = []
    for cell in CELLS:
        for k, protocol in enumerate(protocols):
            first, own = experiment(protocol, cell, seed=k), experiment(protocol, cell, seed=9)
            data = own.recording.current_pA * (1 + len(rows))
            rows.append(replace(first, recording=replace(first.recording, current_pA=data)))
    return problem_of(*rows, document=document)


@pytest.mark.parametrize(
    ("document", "protocols"),
    [(MODEL, [STEPS, RAMP]), (GATES, [STEPS, RAMP]), (THREE_STATES, [STEPS])],
    ids=["two states", "gates", "three states"],
)
def test_cells_alike_are_linearized_as_each_alone(document, protocols, monkeypatch):
    problem = masked_alike(document, *protocols)
    scorer = make_scorer(problem, "cpu")
    assert isinstance(scorer, GroupedScorer)
    here = candidates(problem, 6)
    row = [p.name for p in problem.parameters].index("g[cell 2]")
    here[row, :2] = 0.0, -4.0
    here[0, 3] = np.nan  # everywhere
    here[row, 4] = np.inf  # for one cell
    (family,) = scorer._alike
    assert len(family.members) == 3
    for (group, one), found in zip(family.members, family.linearize(here), strict=True):
        truth = one.linearize(group.parameters(here))
        np.testing.assert_array_equal(found.status, truth.status)
        np.testing.assert_allclose(found.cost, truth.cost, rtol=1e-11)
        for name in ("gradient", "hessian"):
            expected = getattr(truth, name)
            size = np.abs(expected).max(axis=-1, keepdims=True) + 1e-300
            np.testing.assert_allclose(getattr(found, name) / size, expected / size, atol=1e-10)
    whole = scorer.linearize(here)
    assert np.flatnonzero(whole.status).tolist() == [3, 4]
    monkeypatch.setattr("channelfit.scoring.alike._AT_ONCE", 1)  # one candidate after the other
    np.testing.assert_allclose(scorer.linearize(here).cost, whole.cost, rtol=1e-12)
    assert scorer.linearize(here[:, :0]).hessian.shape[-1] == 0


# --- ties and bounds -----------------------------------------------------------------------------
def test_what_follows_from_a_cell_or_a_temperature_is_there_for_each() -> None:
    document = changed(
        half={"tie": "g/2", "unit": "nS", "range": [0.1, 3]},
        warm={"tie": "q*b", "unit": "1/ms"},
        plain={"tie": "a + b", "unit": "1/ms"},
    )
    problem = problem_of(*several().experiments, document=document)
    tied = problem.tied_values(problem.values())
    expected = {f"half[{cell}]": g / 2 for cell, g in CELLS.items()}
    expected |= {f"warm[{c} degC]": 0.1 * 2.5 ** ((c - 22) / 10) for c in (22, 34, 30)}
    assert tied == pytest.approx(expected | {"plain": 0.3})
    assert [tie.name for tie in problem.ties] == list(tied)


def fit_files(folder: Path, document: dict[str, Any] = MODEL, noise: float = 2.0) -> Path:
    """A fit file of three cells, its model and recordings simulated from the model."""
    (folder / "model.yaml").write_text(dump_yaml(document))
    STEPS.save(folder / "steps.yaml")
    rows = []
    for k, cell in enumerate(CELLS):
        celsius = 34.0 if k else 22.0
        model = by_hand(cell, celsius)
        scorer = make_scorer(Problem(model, (Experiment(STEPS),)), "cpu")
        current = scorer.simulate(model.values()[:, None])[0][:, :, 0]
        current = current + noise * np.random.default_rng(k).normal(size=current.shape)
        lines = [",".join(map(repr, row)) for row in current.T.tolist()]
        (folder / f"{k}.csv").write_text("\n".join(["x,y,z", *lines]) + "\n")
        current = {"columns": "all", "unit": "pA"}
        recording = {"file": f"{k}.csv", "sampling": "0.5 ms", "current": current}
        row = {"protocol": "steps.yaml", "cell": cell, "recording": recording}
        rows.append(row | ({"temperature": "34 degC"} if k else {}))
    fit = {"model": "model.yaml", "name": "three", "fit": {"experiments": rows, "seed": 1}}
    (folder / "fit.yaml").write_text(dump_yaml(fit))
    return folder / "fit.yaml"


def test_bounds_hold_at_each_temperature_and_for_each_cell(tmp_path: Path) -> None:
    file = fit_files(tmp_path, changed(half={"tie": "g/2", "unit": "nS", "range": [0.1, 3]}))
    within = '{range: ["1e-9 /ms", "0.25 /ms"], rates: ["O -> C"]}'
    plan = load_plan(file, [f"fit.rates_within={within}", "fit.optimizer.name=genetic"])
    names = ["O -> C (22 degC)", "O -> C (34 degC)"]
    names += [f"half ({cell})" for cell in CELLS]
    assert [c.name for c in plan.constraints] == names
    here = plan.problem.values()[:, None]
    allowed = [bool(c.allowed(here)[0]) for c in plan.constraints]
    assert allowed == [True, False, True, True, False]  # 0.1*2.5**1.2 = 0.30 /ms


# --- a conductance that is solved ----------------------------------------------------------------
def test_a_conductance_of_each_cell_is_solved_for_each(tmp_path: Path) -> None:
    plan = load_plan(fit_files(tmp_path), ["fit.solve=g"])
    assert plan.solved == ("g[cell 1]", "g[cell 2]", "g[cell 3]")
    scorer = make_scorer(plan.problem, "cpu")
    objective = plan.objective(scorer)
    unit = np.random.default_rng(3).uniform(0.3, 0.7, (objective.n_free, 4))
    physical = objective.physical(unit)
    traces = scorer.simulate(physical)
    for k, e in enumerate(plan.problem.experiments):
        wave, data = traces[k] / physical[2 + k], e.recording.current_pA[..., None]
        best = (wave * data).sum(axis=(0, 1)) / (wave**2).sum(axis=(0, 1))
        np.testing.assert_allclose(physical[2 + k], np.clip(best, 0.5, 20), rtol=1e-6)
    every = replace(plan, solved=()).objective(scorer)
    np.testing.assert_allclose(
        objective.score(unit).cost, every.score(every.space.to_unit(physical)).cost, rtol=1e-9
    )
    local, h = objective.linearize(unit[:, :1]), 1e-5
    ahead, behind = (objective.score(unit[:, :1] + s * np.eye(len(unit))).cost for s in (h, -h))
    np.testing.assert_allclose(
        local.gradient[:, 0], (ahead - behind) / (2 * h), rtol=1e-4, atol=1e-3
    )
    assert local.hessian.shape == (len(unit), len(unit), 1)


# --- whole fits ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def three() -> cf.Fit:
    """A fit to simulated cells, each of its own conductance and noise, from Python."""
    # at one temperature nothing tells q10
    model = cf.Model(**changed(q10=MODEL["parameters"]["q10"] | {"fixed": True}))
    clean = [cf.simulate(model, STEPS, cell=cell).current for cell in CELLS]
    current = [x + 5 * np.random.default_rng(k).normal(size=x.shape) for k, x in enumerate(clean)]
    cells = [cf.Experiment(STEPS, x, cell=cell) for x, cell in zip(current, CELLS, strict=True)]
    return cf.fit(model, cells, seed=1, progress=False)


def test_three_cells_are_recovered_with_one_set_of_kinetics(three: cf.Fit) -> None:
    true = {"a": 0.2, "z": 0.04, "b": 0.1} | {f"g[{cell}]": g for cell, g in CELLS.items()}
    for name, value in true.items():
        error = three.errors[name]
        assert abs(three.values[name] - value) < 4 * error
        assert error < 0.05 * value
    assert three.undetermined == []


def test_information_of_cells_adds_up(three: cf.Fit) -> None:
    """Of each alone, with its own conductance eliminated: the Schur complement over the cells."""
    shared = ["a", "z", "b"]
    whole = three.summary["uncertainty"]["noise_pA"]
    scorer, values = three._scorer, three._result.values
    names = [p.name for p in three._plan.problem.parameters]
    information = np.zeros((3, 3))
    for cell in CELLS:
        model = by_hand(cell, 22.0)
        e = next(e for e in three._plan.problem.experiments if e.cell == cell)
        alone = make_scorer(Problem(model, (replace(e, cell=""),)), "cpu")
        rows = [names.index(f"g[{cell}]" if p == "g" else p) for p in model.parameter_names]
        bend = alone.linearize(values[rows][:, None]).hessian[..., 0]
        bend = bend * e.recording.weight.sum() / (2 * whole**2)
        own = [model.parameter_names.index(name) for name in shared]
        g = model.parameter_names.index("g")
        information += bend[np.ix_(own, own)] - np.outer(bend[own, g], bend[g, own]) / bend[g, g]
    expected = np.sqrt(np.diag(np.linalg.inv(information)))
    found = [three.errors[name] for name in shared]
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    assert isinstance(scorer, GroupedScorer)


def test_a_saved_fit_of_cells_reads_back(three: cf.Fit, tmp_path: Path) -> None:
    folder = three.save(tmp_path / "run")
    again = cf.load(folder)
    assert again.values == three.values
    assert again.cost == three.cost
    assert [e.cell for e in again._plan.problem.experiments] == list(CELLS)
    document = parse_yaml((folder / "fit.yaml").read_text())
    row = document["parameters"]["g"]
    assert row["value"] == {cell: three.values[f"g[{cell}]"] for cell in CELLS}
    assert (row["per"], row["range"]) == ("cell", [0.5, 20])
    one = cf.simulate(again, STEPS, cell="cell 2").current
    np.testing.assert_allclose(one, three.traces[1], rtol=1e-9, atol=1e-9)
    with pytest.raises(InputError, match='no cell "x". Known: cell 1, cell 2, cell 3'):
        cf.simulate(again, STEPS, cell="x")
    with pytest.raises(InputError, match="or the name of a cell: cell 1"):
        cf.simulate(again, STEPS)
    assert "each       steps, cell 1 " in str(three)


def test_the_command_line_fits_and_simulates_cells(tmp_path: Path) -> None:
    file = fit_files(tmp_path)
    out = tmp_path / "run"
    quick = ["--set", "fit.optimizer.name=genetic", "--population", "20", "--generations", "2"]
    own = ["--set", "parameters.g[cell 2].value=6", "--set", "parameters.g[cell 2].fixed=true"]
    ran("optimize", file, "--out", out, *quick, *own)
    again = load_plan(out / "fit.yaml")
    row = {p.name: p for p in again.problem.parameters}
    assert (row["g[cell 2]"].value, row["g[cell 2]"].fixed) == (6, True)
    assert not row["g[cell 1]"].fixed
    assert [e.temperature_C for e in again.problem.experiments] == [None, 34.0, 34.0]
    command = ["simulate", out / "fit.yaml", tmp_path / "steps.yaml", "--out", tmp_path / "x"]
    ran(*command, "--cell", "cell 3")
    refused(*command)
    refused(*command, "--cell", "cell 9")
    shown = ran("show", out / "fit.yaml").output
    assert "g[cell 2]" in shown
    assert "linear, per cell" in shown
    for text in ("each", "steps, cell 2, 34 degC"):
        assert text in str(cf.load(out))


def test_the_fit_file_says_what_is_wrong(tmp_path: Path) -> None:
    file = fit_files(tmp_path)
    for override, said in (
        ("parameters.g[cell 9].value=3", 'g: there is no experiment of a cell "cell 9"'),
        ("fit.experiments[1].cell=others", "stands for all cells not named"),
        ("fit.experiments[1].cell=x]y", 'fit.experiments[1].cell: "x]y" cannot name a cell'),
        ("fit.solve=a", "the current is not a straight line in"),
    ):
        with pytest.raises(InputError, match=re.escape(said)):
            load_plan(file, [override])
