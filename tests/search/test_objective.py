"""The objective of optimizers: constraints kept before anything is scored, points drawn evenly."""

from __future__ import annotations

import copy
import sys
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from channelfit.model.channel import ChannelModel, Parameter, Prior
from channelfit.model.model_file import build_model, load_model
from channelfit.problem.protocol import Protocol, load_protocol
from channelfit.problem.rate_bounds import bounded_expression, rate_names, read_rate_bounds
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError
from channelfit.reading.keys import KEYS
from channelfit.scoring.scorer import Linearization, Score, Scorer
from channelfit.search.loop import StopRules, optimize
from channelfit.search.objective import Objective
from channelfit.search.optimizer import ResidentOptimizer
from channelfit.search.projection import Linear
from channelfit.search.sampling import allowed, sample_allowed
from channelfit.search.space import SearchSpace
from support.cuda_host import DeviceArray, HostCupy
from support.decays import Residuals
from support.places import MODELS

SCHEME: dict[str, Any] = {
    "states": ["C", "O", "I"],
    "definitions": {"k": "b*exp(-y*v)"},
    "rates": {
        "C -> O": "a*exp(z*v)",
        "O -> C": "k",
        "O -> I": "a*(v + 40)/(1 - exp(-(v + 40)/9))",
        "I -> O": "b",
    },
    "current": {"open": ["O"], "conductance": "g", "reversal": "-90 mV"},
    "parameters": {
        "a": {"range": [1.0e-5, 10], "scale": "log", "value": 0.1},
        "z": {"range": [0, 0.2], "value": 0.02},
        "b": {"range": [1.0e-5, 10], "scale": "log", "value": 0.05},
        "y": {"range": [0, 0.2], "value": 0.02},
        "g": {"range": [0, 100], "value": 10},
    },
}
STEPS = "name: s\nholding: -80 mV\nsampling: 1 ms\nsegments:\n"
LADDER = STEPS + "  - {step: {values: [-120 mV, 40 mV]}, for: 20 ms}\n"


class Recorded(Scorer):
    """A scorer whose cost is a quadratic of the parameters, and that keeps what it was given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def score(self, parameters: Any) -> Score:
        self.seen.append(parameters)
        return Score((parameters**2).sum(axis=0), np.zeros(parameters.shape[1], dtype=np.int8))

    def linearize(self, parameters: Any) -> Linearization:
        score = self.score(parameters)
        n = len(parameters)
        hessian = np.repeat(2 * np.eye(n)[:, :, None], parameters.shape[1], axis=2)
        return Linearization(score.cost, score.status, 2 * parameters, hessian)


def protocol_of(tmp_path, text: str = LADDER) -> Protocol:
    (tmp_path / "p.yaml").write_text(text)
    return load_protocol(tmp_path / "p.yaml")


def bounds_of(tmp_path, rates_within: Any, model: ChannelModel | None = None, text: str = LADDER):
    section = Section({"rates_within": rates_within}, "m.yaml", "fit")
    section.expect(KEYS["fit"])
    model = model or build_model(SCHEME, None)
    return read_rate_bounds(section, model, [protocol_of(tmp_path, text)])


def by_hand(p: np.ndarray, lower: float, upper: float, v: np.ndarray, largest: bool) -> np.ndarray:
    """SCHEME's condition, written out."""
    a, z, b, y, _ = (row[:, None] for row in p)
    with np.errstate(invalid="ignore"):
        gate = np.where(v == -40, 9.0, (v + 40) / (1 - np.exp(-(v + 40) / 9)))
    inside = np.ones(p.shape[1], dtype=bool)
    for rate in (a * np.exp(z * v), b * np.exp(-y * v), a * gate, b + 0 * v):
        most, least = rate.max(axis=1), rate.min(axis=1)
        inside &= (most >= lower) & (most <= upper) & (largest | (least >= lower))
    return inside


def test_rates_are_looked_at_over_the_whole_protocol(tmp_path):
    found = bounds_of(tmp_path, ["1.0e-4 /ms", "50 /ms"])
    assert [b.name for b in found] == ["C -> O", "O -> C", "O -> I", "I -> O"]
    assert [len(b.voltages_mV) for b in found] == [2, 2, 49, 0]
    assert found[0].voltages_mV == (-120, 40)
    p = SearchSpace(build_model(SCHEME, None).parameters).to_physical(
        np.random.default_rng(0).random((5, 4000))
    )
    expected = by_hand(p, 1e-4, 50, np.linspace(-120, 40, 49), largest=False)
    assert 30 < expected.sum() < 3900
    np.testing.assert_array_equal(allowed(found, p), expected)


def test_only_the_largest_or_at_given_voltages(tmp_path):
    p = SearchSpace(build_model(SCHEME, None).parameters).to_physical(
        np.random.default_rng(1).random((5, 4000))
    )
    found = bounds_of(tmp_path, {"range": ["1e-4 /ms", "50 /ms"], "of": "largest"})
    expected = by_hand(p, 1e-4, 50, np.linspace(-120, 40, 49), largest=True)
    np.testing.assert_array_equal(allowed(found, p), expected)
    found = bounds_of(
        tmp_path, {"range": ["0.1 /s", "50 kHz"], "voltages": ["-100 mV", "60 mV", -40]}
    )
    expected = by_hand(p, 1e-4, 50, np.array([-100.0, 60.0, -40.0]), largest=False)
    np.testing.assert_array_equal(allowed(found, p), expected)


def test_a_list_gives_each_rate_bounds_of_its_own(tmp_path):
    rows = [
        {"range": [1e-5, 10], "rates": ["C -> O", "O -> C"]},
        {"range": [1e-3, 1], "rates": "I -> O"},
    ]
    found = bounds_of(tmp_path, rows)
    assert [(b.name, b.lower, b.upper) for b in found] == [
        ("C -> O", 1e-5, 10),
        ("O -> C", 1e-5, 10),
        ("I -> O", 1e-3, 1),
    ]
    gates = bounds_of(tmp_path, [1e-5, 10], load_model(MODELS / "herg_beattie.yaml"))
    assert [b.name for b in gates] == ["a.alpha", "a.beta", "r.alpha", "r.beta"]
    assert {len(b.places) for b in gates} == {2}
    assert list(rate_names(load_model(MODELS / "k_hh_gate.yaml"))) == ["n.alpha", "n.beta"]


def test_a_ramp_and_a_sine_are_part_of_the_range(tmp_path):
    text = STEPS + (
        "  - {hold: 5 ms}\n  - {ramp: [-80 mV, 55 mV], for: 7.3 ms}\n"
        "  - {sines: {offset: -30 mV, terms: [{amplitude: 80 mV, omega: 0.4 1/ms}]}, for: 60 ms}\n"
    )
    found = bounds_of(tmp_path, [1e-4, 50], text=text)
    low, high = found[0].voltages_mV
    assert high == 55
    assert low == pytest.approx(-110, abs=0.7)


@pytest.mark.parametrize(
    ("rates_within", "message"),
    [
        ([1], "rates_within.range: a range is"),
        ([-1, 2], "0 or more below something larger"),
        (["1 mV", "2 mV"], "unit"),
        ({"range": [1, 2], "rates": ["C -> I"]}, 'no rate "C -> I". Known: C -> O'),
        ({"range": [1, 2], "voltages": []}, "at least one voltage"),
        ([{"range": [1, 2]}, 3], "rates_within[2]"),
    ],
)
def test_what_is_no_bound_on_rates_is_told_with_its_place(tmp_path, rates_within, message):
    with pytest.raises(InputError) as error:
        bounds_of(tmp_path, rates_within)
    assert message in str(error.value)
    assert str(error.value).startswith("m.yaml: fit.rates_within")


@pytest.mark.parametrize("name", ["herg_markov", "na_markov", "na_nav15", "k_hh", "herg_beattie"])
def test_two_ends_are_as_good_as_a_grid_where_they_are_taken(tmp_path, name):
    """A rate that is looked at twice must be monotonic."""
    model = load_model(MODELS / f"{name}.yaml")
    p = SearchSpace(model.parameters).to_physical(
        np.random.default_rng(2).random((sum(not q.fixed for q in model.parameters), 50))
    )
    found = bounds_of(tmp_path, [1e-4, 10], model)
    assert found
    for few in found:
        if len(few.voltages_mV) > 2:
            continue
        many = bounded_expression(
            few.name, few.expression, model, 1e-4, 10, tuple(np.linspace(-120, 40, 301))
        )
        np.testing.assert_array_equal(few.allowed(p), many.allowed(p))


def test_a_rate_that_is_not_finite_is_not_allowed(tmp_path):
    found = bounds_of(tmp_path, [0, 1e300])
    p = np.array([[1.0, np.nan, 1.0], [0.1, 0.1, 1e9], [1, 1, 1], [0.1, 0.1, 0.1], [1, 1, 1]])
    assert allowed(found, p).tolist() == [True, False, False]


# --- only what is allowed is scored --------------------------------------------------------------


def objective_of(tmp_path, rates_within: Any = (1e-4, 50)) -> Objective:
    model = build_model(SCHEME, None)
    found = bounds_of(tmp_path, list(rates_within))
    return Objective(SearchSpace(model.parameters), Recorded(), found)


def test_what_is_not_allowed_is_not_scored(tmp_path):
    objective = objective_of(tmp_path)
    unit = np.random.default_rng(3).random((5, 300))
    physical = objective.space.to_physical(unit)
    inside = by_hand(physical, 1e-4, 50, np.linspace(-120, 40, 49), largest=False)
    score = objective.score(unit)
    assert objective.evaluations == inside.sum() == objective.scorer.seen[0].shape[1]
    np.testing.assert_array_equal(score.status, np.where(inside, 0, 3))
    np.testing.assert_array_equal(score.cost[inside], (physical[:, inside] ** 2).sum(axis=0))
    assert np.isinf(score.cost[~inside]).all()

    local = objective.linearize(unit)
    plain = Objective(objective.space, Recorded()).linearize(unit)
    np.testing.assert_array_equal(local.status, score.status)
    np.testing.assert_array_equal(local.cost, score.cost)
    for found, everywhere in ((local.gradient, plain.gradient), (local.hessian, plain.hessian)):
        np.testing.assert_array_equal(found[..., inside], everywhere[..., inside])
        assert (found[..., ~inside] == 0).all()


@pytest.fixture
def cupy(monkeypatch) -> HostCupy:
    module = HostCupy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def test_arrays_of_a_device_stay_there(tmp_path, cupy):
    objective, host = objective_of(tmp_path), objective_of(tmp_path)
    unit = np.random.default_rng(4).random((5, 200))
    score, expected = objective.score(cupy.array(unit)), host.score(unit)
    assert isinstance(score.cost, DeviceArray)
    assert isinstance(objective.scorer.seen[0], DeviceArray)
    np.testing.assert_array_equal(score.cost.get(), expected.cost)
    np.testing.assert_array_equal(score.status.get(), expected.status)


class Resident(ResidentOptimizer):
    """An optimizer that lives on a device; the loop must not let it pass by the constraints."""

    name, seed = "resident", 0
    settings: ClassVar = {"population": 50}

    def __init__(self) -> None:
        self.costs: list[np.ndarray] = []

    def ask(self) -> np.ndarray:
        return np.random.default_rng(len(self.costs)).random((5, 50))

    def tell(self, candidates: np.ndarray, cost: np.ndarray) -> None:
        self.costs.append(cost)

    def breed(self, space: SearchSpace) -> np.ndarray:
        raise AssertionError("scored without the constraints")

    def learn(self, score: Any) -> Any:
        raise AssertionError("scored without the constraints")

    def generation_of(self, record: Any, n_candidates: int) -> Any:
        raise AssertionError("scored without the constraints")


def test_a_search_on_a_device_keeps_to_the_constraints(tmp_path):
    resident, objective = Resident(), objective_of(tmp_path)
    result = optimize(resident, objective, StopRules(generations=3))
    assert len(resident.costs) == 3
    assert result.failures["outside bounds"] == sum(np.isinf(cost).sum() for cost in resident.costs)
    assert allowed(objective.constraints, result.values[:, None]).all()


# --- points drawn evenly -------------------------------------------------------------------------


def test_points_are_allowed_and_as_even_as_by_rejection(tmp_path):
    objective = objective_of(tmp_path)
    random = np.random.default_rng(5)
    points = objective.sample(4000, random)
    assert points.shape == (5, 4000)
    assert allowed(objective.constraints, objective.space.to_physical(points)).all()
    rejected = random.random((5, 200_000))
    rejected = rejected[:, allowed(objective.constraints, objective.space.to_physical(rejected))]
    for found, expected in zip(points, rejected, strict=True):
        assert stats.ks_2samp(found, expected).pvalue > 1e-3
    # along a direction in which the constraint couples two parameters too
    assert stats.ks_2samp(points[0] - points[1], rejected[0] - rejected[1]).pvalue > 1e-3


class Below:
    """Allows points whose coordinates add up to little: a corner of volume total**n/n!."""

    def __init__(self, places: tuple[int, ...], total: float) -> None:
        self.name, self.places, self.total = "corner", frozenset(places), total

    def allowed(self, physical: Any, xp: Any = np) -> Any:
        return physical[sorted(self.places)].sum(axis=0) <= self.total


def unit_space(n: int) -> SearchSpace:
    return SearchSpace(tuple(Parameter(f"p{k}", "", 0.0, 1.0) for k in range(n)))


def test_a_group_that_allows_next_to_nothing_is_walked():
    """Evenly over a simplex, the largest share of coordinate 1 of k is Beta(1, k)."""
    corner = Below((0, 1, 2, 3, 4), 0.5)  # 2.6e-4 of the cube
    points = sample_allowed(unit_space(6), [corner], 3000, np.random.default_rng(6))
    assert (points[:5].sum(axis=0) <= 0.5).all()
    for row in points[:5]:
        assert stats.kstest(row / 0.5, stats.beta(1, 5).cdf).pvalue > 1e-3
    assert stats.kstest(points[5], "uniform").pvalue > 1e-3


def test_constraints_that_share_a_parameter_are_drawn_together():
    chain = [Below((0, 1), 0.3), Below((3, 4), 0.3), Below((1, 2, 3), 0.6)]
    points = sample_allowed(unit_space(6), chain, 500, np.random.default_rng(8))
    assert all(corner.allowed(points).all() for corner in chain)
    again = sample_allowed(unit_space(6), chain, 500, np.random.default_rng(8))
    np.testing.assert_array_equal(points, again)
    # of groups each is drawn by itself: jointly, one of 10**18 points would pass
    corners = [Below((2 * k, 2 * k + 1), 0.1) for k in range(8)]
    points = sample_allowed(unit_space(17), corners, 200, np.random.default_rng(7))
    assert all(corner.allowed(points).all() for corner in corners)


def test_no_point_at_all_is_told():
    with pytest.raises(InputError, match="keeps to the bounds of corner; widen"):
        sample_allowed(unit_space(2), [Below((0, 1), -1)], 10, np.random.default_rng(0))
    fixed = SearchSpace((Parameter("f", "", 0, 1, value=0.9, fixed=True), Parameter("p", "", 0, 1)))
    with pytest.raises(InputError, match="corner"):
        sample_allowed(fixed, [Below((0,), 0.5)], 10, np.random.default_rng(0))
    assert sample_allowed(fixed, [Below((0,), 1)], 10, np.random.default_rng(0)).shape == (1, 10)


# --- one parameter solved ------------------------------------------------------------------------

TIMES = np.linspace(0, 5, 200)
DATA = 7 * np.exp(-1.3 * TIMES) * np.cos(2 * TIMES) + 0.1 * np.sin(37 * TIMES)


def line(p: Any, offset: float = 0.0) -> np.ndarray:
    """Current offset + c exp(-a t) cos(b t): a straight line in c."""
    c, a, b = p
    return offset + c * np.exp(-a * TIMES) * np.cos(b * TIMES)


def lines(offset: float = 0.0) -> Residuals:
    return Residuals(lambda p: line(p, offset) - DATA, lambda p: p[1] > 2.9)


def line_space(scale: str = "linear", c: tuple[float, float] = (0.1, 20.0)) -> SearchSpace:
    rows = (
        Parameter("c", "nS", *c, scale=scale),
        Parameter("a", "", 0.1, 3.0, scale="log"),
        Parameter("b", "", 0.5, 4.0),
    )
    return SearchSpace(rows, ("c",))


def solving(scale: str = "linear", c: tuple[float, float] = (0.1, 20.0)) -> Objective:
    middle = 10.0 if scale == "linear" else 1.4
    linear = Linear(0, *c, middle, float((DATA**2).mean()))
    return Objective(line_space(scale, c), lines(), linear=(linear,))


def best_by_hand(objective: Objective, unit: np.ndarray, offset: float) -> np.ndarray:
    """c (n,) by linear least squares, cut at its range; unit (2, n)."""
    waves = np.array([line((1.0, a, b)) for _, a, b in objective.space.to_physical(unit).T])
    best = (waves * (DATA - offset)).sum(axis=1) / (waves**2).sum(axis=1)
    return np.clip(best, objective.linear[0].lower, objective.linear[0].upper)


@pytest.mark.parametrize(("scale", "offset"), [("linear", 0.0), ("log", 0.0), ("linear", -0.7)])
def test_the_solved_value_is_that_of_linear_least_squares(scale, offset):
    """A line that does not begin at zero takes a score more."""
    objective = solving(scale, (0.1, 6.0))
    if offset:
        linear = (Linear(0, 0.1, 6.0, 10.0),)
        objective = Objective(line_space(c=(0.1, 6.0)), lines(offset), linear=linear)
    assert objective.n_free == 2
    unit = np.random.default_rng(9).random((2, 300)) * 0.95
    score = objective.score(unit)
    assert objective.evaluations >= (900 if offset else 600)
    best = best_by_hand(objective, unit, offset)
    assert 0 < (best == 6).sum() < 300
    physical = objective.physical(unit)
    np.testing.assert_allclose(physical[0], best, rtol=1e-11)
    np.testing.assert_allclose(score.cost, objective.scorer.score(physical).cost, rtol=1e-12)


@given(st.floats(0.05, 0.9), st.floats(0.05, 0.9))
@settings(max_examples=40, deadline=None)
def test_derivatives_are_those_of_the_cost_of_the_best_value(x, y):
    """The gradient against central differences; the Hessian against its closed form."""
    objective, unit, h = solving(), np.array([[x], [y]]), 1e-5
    local = objective.linearize(unit)
    ahead = objective.score(unit + h * np.eye(2)).cost
    behind = objective.score(unit - h * np.eye(2)).cost
    np.testing.assert_allclose(
        local.gradient[:, 0], (ahead - behind) / (2 * h), rtol=1e-6, atol=1e-6 * (DATA**2).mean()
    )
    assert local.cost[0] == pytest.approx(objective.score(unit).cost[0], rel=1e-11)
    whole = objective.scorer.linearize(objective.physical(unit)).hessian[..., 0]
    if 0.1 < objective.physical(unit)[0, 0] < 20:
        reduced = np.linalg.inv(np.linalg.inv(whole)[1:, 1:])
    else:
        reduced = whole[1:, 1:]
    slope = objective.space.slope(objective.physical(unit))[:, 0]
    expected = reduced * slope[:, None] * slope[None, :]
    np.testing.assert_allclose(local.hessian[..., 0], expected, rtol=1e-7, atol=1e-9)


# --- priors --------------------------------------------------------------------------------------

PRIORS = (
    Parameter("c", "nS", 0.1, 20.0, prior=Prior("normal", 5.0, 0.5)),
    Parameter("a", "", 0.1, 3.0, scale="log", prior=Prior("lognormal", 1.0, 1.5)),
    Parameter("b", "", 0.5, 4.0),
)


def posterior(p: np.ndarray, noise: float) -> float:
    """The negative logarithm of the posterior of (3,) parameters, up to a constant."""
    squares = ((line(p) - DATA) ** 2).sum() / (2 * noise**2)
    of_c = stats.norm(5.0, 0.5).logpdf(p[0])
    of_log_a = stats.norm(0.0, np.log(1.5)).logpdf(np.log(p[1]))
    return float(squares - of_c - of_log_a)


def test_priors_add_what_the_posterior_says():
    noise, n = 0.3, len(TIMES)
    objective = Objective(SearchSpace(PRIORS), lines(), prior_weight=noise**2 / n)
    unit = np.random.default_rng(13).random((3, 20)) * 0.9
    cost, physical = objective.score(unit).cost, objective.physical(unit)
    expected = np.array([posterior(p, noise) for p in physical.T])
    np.testing.assert_allclose(
        (cost - cost[0]) * n / (2 * noise**2), expected - expected[0], rtol=1e-10, atol=1e-8
    )


def test_priors_have_exact_derivatives():
    objective = Objective(SearchSpace(PRIORS), lines(), prior_weight=0.4)
    plain, unit, h = (
        Objective(SearchSpace(PRIORS), lines()),
        np.array([[0.4], [0.6], [0.3]]),
        1e-5,
    )
    local = objective.linearize(unit)
    difference = (
        objective.score(unit + h * np.eye(3)).cost - objective.score(unit - h * np.eye(3)).cost
    ) / (2 * h)
    np.testing.assert_allclose(local.gradient[:, 0], difference, rtol=1e-7)
    assert local.cost[0] == objective.score(unit).cost[0]
    added = (local.hessian - plain.linearize(unit).hessian)[..., 0]
    per_unit = np.array([19.9 / 0.5, np.log(30) / np.log(1.5), 0])
    np.testing.assert_allclose(added, np.diag(0.8 * per_unit**2), rtol=1e-9, atol=1e-7)


def test_a_solved_parameter_keeps_its_normal_prior():
    weight = 0.05
    linear = Linear(0, 0.1, 20.0, 10.0, float((DATA**2).mean() + weight * (5.0 / 0.5) ** 2))
    solved = Objective(SearchSpace(PRIORS, ("c",)), lines(), linear=(linear,), prior_weight=weight)
    unit = np.array([[0.7], [0.5]])
    best = solved.physical(unit)
    around = best + np.array([[0.0, 1e-3, -1e-3], [0, 0, 0], [0, 0, 0]])
    every = Objective(SearchSpace(PRIORS), lines(), prior_weight=weight)
    costs = every.score(every.space.to_unit(around)).cost
    assert costs.argmin() == 0
    assert solved.score(unit).cost[0] == pytest.approx(costs[0], rel=1e-12)


def test_a_rescored_winner_keeps_its_priors():
    objective = Objective(SearchSpace(PRIORS), lines(), prior_weight=0.4)
    unit = np.array([[0.4], [0.6], [0.3]])
    again = objective.rescore(objective.physical(unit)[:, 0])
    assert again == pytest.approx(objective.score(unit).cost[0], rel=1e-14)


def chained(first: str, step: str, levels: int) -> ChannelModel:
    """A model whose forward rate is the exponential of the last of many definitions."""
    document = copy.deepcopy(SCHEME)
    document["definitions"] = {"d0": first} | {
        f"d{k}": step.format(f"d{k - 1}") for k in range(1, levels)
    }
    document["states"] = ["C", "O"]
    document["rates"] = {"C -> O": f"a*exp(z*d{levels - 1})", "O -> C": "b*exp(-y*v)"}
    return build_model(document, None)


@pytest.mark.parametrize(
    ("first", "step", "ends_only"),
    [("v", "({0} + 0.5*{0}*z)/2 + 0.001", True), ("v", "abs({0})", False), ("g", "{0} + 1", True)],
)
def test_definitions_upon_definitions_are_each_looked_at_once(tmp_path, first, step, ends_only):
    """Followed down every way, sixty levels would take ages; by recursion, 900 are too deep."""
    model = chained(first, step, 900)
    bounds = bounds_of(tmp_path, {"range": [0, 10], "rates": ["C -> O"]}, model)
    assert len(bounds) == 1
    expected = 0 if first == "g" else 2 if ends_only else 49
    assert len(bounds[0].voltages_mV) == expected
