"""What optimizers minimize: constraints kept before anything is scored, points drawn evenly."""

from __future__ import annotations

import sys
import types
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from channelfit.backends import Linearization, Score
from channelfit.constraints import Bounded, bounded_expression, rate_names, read_rate_bounds
from channelfit.documents import Section
from channelfit.errors import InputError
from channelfit.model import ChannelModel, Parameter, build_model, load_model
from channelfit.optimizers import Objective, SearchSpace, StopRules, make_optimizer, optimize
from channelfit.optimizers.sampling import allowed, sample_allowed
from channelfit.protocol import Protocol, load_protocol

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


class Recorded:
    """A scorer whose cost is a quadratic of the parameters, and that keeps what it was given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def score(self, parameters: Any) -> Score:
        self.seen.append(parameters)
        return Score((parameters**2).sum(axis=0), np.zeros(parameters.shape[1], dtype=np.int8))

    def linearize(self, parameters: Any) -> Linearization:
        score = self.score(parameters)
        n = len(parameters)
        curvature = np.repeat(2 * np.eye(n)[:, :, None], parameters.shape[1], axis=2)
        return Linearization(score.cost, score.status, 2 * parameters, curvature)


def protocol_of(tmp_path, text: str = LADDER) -> Protocol:
    (tmp_path / "p.yaml").write_text(text)
    return load_protocol(tmp_path / "p.yaml")


def bounds_of(tmp_path, rates_within: Any, model: ChannelModel | None = None, text: str = LADDER):
    section = Section({"rates_within": rates_within}, "m.yaml", "fit")
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
        ("C -> O", 1e-5, 10), ("O -> C", 1e-5, 10), ("I -> O", 1e-3, 1),
    ]  # fmt: skip
    gates = bounds_of(tmp_path, [1e-5, 10], load_model("models/herg_beattie.yaml"))
    assert [b.name for b in gates] == ["a.alpha", "a.beta", "r.alpha", "r.beta"]
    assert {len(b.places) for b in gates} == {2}
    assert list(rate_names(load_model("models/k_hh_gate.yaml"))) == ["n.alpha", "n.beta"]


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
        ([3, 2], "0 or more below something larger"),
        ([-1, 2], "0 or more below something larger"),
        (["1 mV", "2 mV"], "unit"),
        ({"range": [1, 2], "of": "some"}, "rates_within.of"),
        ({"range": [1, 2], "at": 3}, 'unknown key "at"'),
        ({"range": [1, 2], "rates": ["C -> I"]}, 'no rate "C -> I". Known: C -> O'),
        ({"range": [1, 2], "voltages": []}, "at least one voltage"),
        ([{"range": [1, 2]}, 3], "rates_within[2]"),
        ("fast", "rates_within.range"),
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
    model = load_model(f"models/{name}.yaml")
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
    for found, everywhere in ((local.gradient, plain.gradient), (local.curvature, plain.curvature)):
        np.testing.assert_array_equal(found[..., inside], everywhere[..., inside])
        assert (found[..., ~inside] == 0).all()


def test_nothing_allowed_and_everything_allowed(tmp_path):
    objective = objective_of(tmp_path, (1e-30, 1e-29))
    unit = np.random.default_rng(3).random((5, 7))
    assert (objective.score(unit).status == 3).all()
    assert np.isinf(objective.linearize(unit).cost).all()
    assert objective.scorer.seen == []
    assert objective.evaluations == 0
    objective = objective_of(tmp_path, (0, 1e30))
    assert (objective.score(unit).status == 0).all()
    assert objective.linearize(unit).curvature.shape == (5, 5, 7)


class Disguised(np.ndarray):
    """A NumPy array that passes for CuPy's and, like those, refuses NumPy's functions."""

    def __array_function__(self, func, kinds, args, kwargs):
        if not _through_cupy:
            raise TypeError(f"numpy.{func.__name__} was given an array of the device")
        return super().__array_function__(func, kinds, args, kwargs)

    def get(self) -> np.ndarray:
        return self.view(np.ndarray)


Disguised.__module__ = "cupy"
_through_cupy: list[bool] = []


class FakeCuPy(types.ModuleType):
    """Every function of NumPy, giving disguised arrays."""

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(np, name)
        if not callable(attribute) or isinstance(attribute, type):
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            _through_cupy.append(True)
            try:
                result = attribute(*args, **kwargs)
            finally:
                _through_cupy.pop()
            return result.view(Disguised) if isinstance(result, np.ndarray) else result

        return call


@pytest.fixture
def cupy(monkeypatch) -> FakeCuPy:
    module = FakeCuPy("cupy")
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def test_arrays_of_a_device_stay_there(tmp_path, cupy):
    objective, host = objective_of(tmp_path), objective_of(tmp_path)
    unit = np.random.default_rng(4).random((5, 200))
    score, expected = objective.score(cupy.array(unit)), host.score(unit)
    assert isinstance(score.cost, Disguised)
    assert isinstance(objective.scorer.seen[0], Disguised)
    np.testing.assert_array_equal(score.cost.get(), expected.cost)
    np.testing.assert_array_equal(score.status.get(), expected.status)


class Resident:
    """An optimizer that lives on a device; the loop must not let it pass by the constraints."""

    name, seed = "resident", 0
    settings: ClassVar = {"population": 50}

    def __init__(self) -> None:
        self.told: list[np.ndarray] = []

    def ask(self) -> np.ndarray:
        return np.random.default_rng(len(self.told)).random((5, 50))

    def tell(self, candidates: np.ndarray, cost: np.ndarray) -> None:
        self.told.append(cost)

    def breed(self, space: SearchSpace) -> np.ndarray:
        raise AssertionError("scored without the constraints")

    def learn(self, score: Any) -> Any:
        raise AssertionError("scored without the constraints")


def test_a_search_on_a_device_keeps_to_the_constraints(tmp_path):
    resident, objective = Resident(), objective_of(tmp_path)
    result = optimize(resident, objective, StopRules(generations=3))
    assert len(resident.told) == 3
    assert result.failures["outside bounds"] == sum(np.isinf(cost).sum() for cost in resident.told)
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


def test_groups_are_drawn_one_by_one():
    """Jointly, eight corners of 1/200 would let one of 10**18 points pass."""
    corners = [Below((2 * k, 2 * k + 1), 0.1) for k in range(8)]
    points = sample_allowed(unit_space(17), corners, 200, np.random.default_rng(7))
    assert all(corner.allowed(points).all() for corner in corners)


def test_constraints_that_share_a_parameter_are_drawn_together():
    chain = [Below((0, 1), 0.3), Below((3, 4), 0.3), Below((1, 2, 3), 0.6)]
    points = sample_allowed(unit_space(6), chain, 500, np.random.default_rng(8))
    assert all(corner.allowed(points).all() for corner in chain)


@given(st.integers(1, 40), st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_every_number_of_points_and_the_same_seed(n, seed):
    corner = Below((0, 2), 0.7)
    first, second = (
        sample_allowed(unit_space(3), [corner], n, np.random.default_rng(seed)) for _ in range(2)
    )
    assert first.shape == (3, n)
    assert corner.allowed(first).all()
    np.testing.assert_array_equal(first, second)


def test_no_point_at_all_is_told():
    with pytest.raises(InputError, match="keeps to the bounds of corner; widen"):
        sample_allowed(unit_space(2), [Below((0, 1), -1)], 10, np.random.default_rng(0))
    fixed = SearchSpace((Parameter("f", "", 0, 1, value=0.9, fixed=True), Parameter("p", "", 0, 1)))
    with pytest.raises(InputError, match="corner"):
        sample_allowed(fixed, [Below((0,), 0.5)], 10, np.random.default_rng(0))
    assert sample_allowed(fixed, [Below((0,), 1)], 10, np.random.default_rng(0)).shape == (1, 10)


def test_without_constraints_the_cube_itself():
    objective = Objective(unit_space(3), Recorded())
    expected = np.random.default_rng(1).random((3, 9))
    np.testing.assert_array_equal(objective.sample(9, np.random.default_rng(1)), expected)


def test_the_first_generation_can_be_what_is_allowed(tmp_path):
    objective = objective_of(tmp_path)
    initial = objective.sample(60, np.random.default_rng(2))
    optimizer = make_optimizer("genetic", {"population": 60}, 5, 0, initial=initial)
    assert (objective.score(optimizer.ask()).status == 0).all()


def test_bounded_needs_only_its_own_definitions():
    model = load_model("models/na_markov.yaml")
    bound = bounded_expression("x", rate_names(model)["O -> IF"], model, 0, 1, (0.0,))
    assert isinstance(bound, Bounded)
    assert [name for name, _ in bound.definitions] == ["a2"]
    assert set(bound.rows) == {"k2", "s2"}
