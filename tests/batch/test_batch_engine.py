"""Many wells fitted together: costs, fits and errors are those of each well alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import sympy

from channelfit.batch import costs as costs_module
from channelfit.batch import fits as fits_module
from channelfit.batch import well_scorer_cpu as well_scorer_module
from channelfit.batch.costs import WellCosts
from channelfit.batch.families import families
from channelfit.batch.fits import SearchSettings, WellFits, fit_wells, joined
from channelfit.batch.lowest import keep_lowest
from channelfit.batch.make_scorers import well_scorers
from channelfit.batch.population import left_out, usable
from channelfit.batch.well_scorer_cpu import CpuWellScorer, OneByOne
from channelfit.problem.clamp import Clamp
from channelfit.problem.experiment import Problem
from channelfit.problem.run_tree import run_tree
from channelfit.results.uncertainty.assessment import assess
from channelfit.scoring.machine.machine_code import Kernel
from channelfit.scoring.scorer import make_scorer
from channelfit.search import least_squares as least_squares_module
from channelfit.search.hybrid import Hybrid
from channelfit.search.least_squares import refine
from channelfit.search.loop import optimize
from channelfit.search.plan import FitPlan
from support.little import LITTLE, THREE_STEPS
from support.three_states import THREE_STATES, planned
from support.truths import slow_but

SETTINGS = SearchSettings(backend="cpu", scan=300)
RAMP = """
name: ramp
holding: -80 mV
sampling: 0.5 ms
segments:
  - {hold: 5 ms}
  - {step: {values: [-20 mV, 20 mV]}, for: 100 ms}
  - {ramp: [20 mV, -100 mV], for: 60 ms}
  - {step: -100 mV, for: 40 ms}
"""


def wells_of(plan: FitPlan, n: int, noise: float = 2.0, seed: int = 0, spread: float = 0.1):
    """Problems of wells whose parameters vary a bit, and those parameters (n_parameters, n)."""
    random = np.random.default_rng(seed)
    values, problems = plan.problem.values(), []
    lower, upper = np.array([[p.lower, p.upper] for p in plan.problem.parameters]).T
    truth = values[:, None] * np.exp(spread * random.standard_normal((len(values), n)))
    fixed = [p.fixed for p in plan.problem.parameters]
    truth[fixed] = values[fixed][:, None]
    truth = np.clip(truth.T, lower, upper).T
    traces = make_scorer(plan.problem, "cpu").simulate(truth)
    for w in range(n):
        currents = [t[:, :, w] + noise * random.standard_normal(t.shape[:2]) for t in traces]
        problems.append(with_currents(plan.problem, currents))
    return problems, truth


def with_currents(problem: Problem, currents, weight=None) -> Problem:
    experiments = []
    for e, current in zip(problem.experiments, currents, strict=True):
        recording = replace(e.recording, current_pA=current)
        if weight is not None:
            recording = replace(recording, weight=weight)
        experiments.append(replace(e, recording=recording))
    return replace(problem, experiments=tuple(experiments))


def current_of(problem: Problem) -> np.ndarray:
    return problem.experiments[0].recording.current_pA


@pytest.fixture(scope="module")
def little(tmp_path_factory) -> FitPlan:
    return planned(tmp_path_factory.mktemp("little"))


@pytest.fixture(scope="module")
def leaky(tmp_path_factory) -> FitPlan:
    """Three states, a leak, sweeps of steps and a ramp."""
    return planned(tmp_path_factory.mktemp("leaky"), THREE_STATES, RAMP)


def alone(plan: FitPlan, problem: Problem) -> tuple[np.ndarray, float]:
    """Values and cost of the single fit of a well."""
    plan = replace(plan, problem=problem, optimizer="hybrid", settings={}, solved=())
    scorer = make_scorer(problem, "cpu")
    found = optimize(
        Hybrid(plan.space.n_free, 0), plan.objective(scorer), plan.stop_rules, lambda _: None
    )
    return found.values, float(scorer.rescore(found.values[:, None]).cost[0])


def from_values(plan: FitPlan, problem: Problem, rounds: int) -> tuple[np.ndarray, float]:
    """The same where least squares begins at the model's values."""
    plan, scorer = replace(plan, problem=problem, solved=()), make_scorer(problem, "cpu")
    begin = plan.space.to_unit(problem.values()[:, None])
    found = refine(plan.objective(scorer), begin, rounds)
    values = plan.space.to_physical(found.unit)
    return values[:, 0], float(scorer.rescore(values).cost[0])


@pytest.mark.parametrize("plan", ["little", "leaky"])
def test_costs_and_derivatives_are_those_of_each_well_alone(plan, request):
    plan = request.getfixturevalue(plan)
    problems, truth = wells_of(plan, 3)
    ((wells, scorer),) = well_scorers(problems, "cpu")
    assert isinstance(scorer, CpuWellScorer)
    assert wells.tolist() == [0, 1, 2]
    well = np.array([2, 0, 1, 2])
    parameters = truth[:, [0, 1, 2, 2]]
    found = scorer.linearize(parameters, well)
    for k, w in enumerate(well):
        column = parameters[:, k : k + 1]
        single = make_scorer(problems[w], "cpu").linearize(column)
        for name, array in vars(found).items():
            assert np.array_equal(array[..., [k]], getattr(single, name)), name
        whole = make_scorer(problems[w], "reference").score(column).cost[0]
        assert found.cost[k] == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_data_of_wells_lie_as_a_tree_of_runs_lays_them_out(little, weighted):
    problems, _ = wells_of(little, 2)
    if weighted:
        weight = np.random.default_rng(3).choice([0.5, 1.0, 3.0], current_of(problems[0]).shape)
        problems = [with_currents(p, [current_of(p)], weight) for p in problems]
    (family,) = families(problems)
    for problem, (data, constant) in zip(problems, family.data(), strict=True):
        e = problem.experiments[0]
        tree = run_tree([e.protocol], [e.recording.current_pA], [e.recording.weight])
        assert np.allclose(data, tree.data_pA, rtol=1e-15, atol=0)  # three sweeps begin alike
        assert constant == pytest.approx(tree.constant, rel=1e-12)
        assert constant > 0


def tried(plan: FitPlan, scorer, unit):
    """The costs (n, n_wells) of points, and what is solved of each (n, n_open, n_wells)."""
    wells = WellCosts(plan, scorer)
    found = wells.lowest(unit, unit.shape[1])
    order = np.argsort(found.which, axis=0)
    solved = np.take_along_axis(found.solved, order[:, None], axis=0)
    return wells, np.take_along_axis(found.cost, order, axis=0), solved


def test_what_is_tried_on_all_wells_is_solved_for_each_of_them(leaky):
    problems, truth = wells_of(leaky, 3)
    ((_, scorer),) = well_scorers(problems, "cpu")
    unit = leaky.space.to_unit(truth)
    wells, cost, solved = tried(leaky, scorer, unit)
    names = [p.name for p in wells.open.parameters]
    assert sorted(names) == ["e_leak", "g", "g_leak"]
    for k in range(3):
        for w in range(3):
            point = wells.placed(unit[:, [k]], solved[k, :, w][:, None])
            here = wells.linearize(point, np.array([w]))
            assert here.cost[0] == pytest.approx(cost[k, w], rel=1e-6)
            rows = wells.open.coordinates
            inside = ((point > 0) & (point < 1))[rows, 0]
            step = here.gradient[rows, 0] ** 2 / np.diag(here.hessian[:, :, 0])[rows]
            assert np.all(step[inside] < 1e-6 * here.cost[0])  # nothing left to gain by them


def test_the_lowest_points_do_not_depend_on_company_blocks_or_threads(leaky, monkeypatch):
    """They are those of a sort of all costs, of equal points the first, and none of the well."""
    problems, _ = wells_of(leaky, 5)
    ((_, scorer),) = well_scorers(problems, "cpu")
    wells = WellCosts(leaky, scorer)
    unit = np.random.default_rng(2).random((leaky.space.n_free, 12))
    unit[:, 7] = unit[:, 3]
    but = np.arange(12) % 6 - 1
    _, cost, solved = tried(leaky, scorer, unit)
    cost[np.flatnonzero(but >= 0), but[but >= 0]] = np.inf
    order = np.argsort(cost, axis=0, kind="stable")[:4]
    for held, beside, cores in ((1 << 25, 16, 1), (1, 2, 3), (3 * 5 * 4, 1, 2)):
        monkeypatch.setattr(costs_module, "_HELD", held)
        monkeypatch.setattr(costs_module, "_BLOCK", beside)
        monkeypatch.setattr(costs_module, "usable_cores", lambda cores=cores: cores)
        found = wells.lowest(unit, 4, but)
        assert np.array_equal(found.which, order)
        assert np.array_equal(found.cost, np.take_along_axis(cost, order, axis=0))
        assert np.array_equal(found.solved, np.take_along_axis(solved, order[:, None], axis=0))
    checked = Kernel(keep_lowest.source, "keep_lowest", checked=True)  # of stray indices
    for way in (checked, keep_lowest.python):
        monkeypatch.setattr(costs_module, "keep_lowest", way)
        found = wells.lowest(unit, 4, but)
        assert np.array_equal(found.which, order)
        assert found.solved == pytest.approx(
            np.take_along_axis(solved, order[:, None], axis=0), rel=1e-6, abs=1e-9
        )
    few = wells.lowest(unit[:, :2], 4)
    assert np.isfinite(few.cost).sum(axis=0).tolist() == [2] * 5


def test_cross_products_are_those_of_whole_traces(leaky):
    problems, truth = wells_of(leaky, 9)
    ((_, scorer),) = well_scorers(problems, "cpu")
    names = [p.name for p in leaky.problem.parameters]
    rows = [names.index("g"), names.index("g_leak")]
    found = scorer.cross_products(truth[:, :4], rows)
    alone = make_scorer(problems[0], "cpu")
    columns = [alone.simulate(truth[:, :4])[0].reshape(-1, 4)]
    for row in rows:  # a straight line, so that a difference of currents is its derivative
        beside = truth[:, :4].copy()
        beside[row] += 1.0
        columns.append(alone.simulate(beside)[0].reshape(-1, 4) - columns[0])
    b = np.stack(columns)
    data = np.array([current_of(p).ravel() for p in problems])
    assert np.allclose(found.products, np.einsum("isn,jsn->nij", b, b), rtol=1e-6)
    assert np.allclose(found.with_data, np.einsum("isn,ws->niw", b, data), rtol=1e-6)
    assert not found.status.any()


def masked_each(problems):
    """The wells, in each of which other samples are spoiled and do not count."""
    found = []
    for k, problem in enumerate(problems):
        weight, spoiled = np.ones_like(current_of(problem)), current_of(problem).copy()
        weight[0, 8 + 3 * k : 14 + 3 * k] = 0
        spoiled[0, 8 + 3 * k : 14 + 3 * k] = np.nan
        found.append(with_currents(problem, [spoiled], weight))
    return found


def test_wells_with_masks_of_their_own_share_a_scan(leaky, monkeypatch):
    problems = masked_each(wells_of(leaky, 3)[0])
    scans = []
    across = CpuWellScorer.cross_products
    monkeypatch.setattr(
        CpuWellScorer,
        "cross_products",
        lambda self, *a: scans.append(self.n_wells) or across(self, *a),
    )
    fits = fit_wells(leaky, problems, SETTINGS)
    assert set(scans) == {3}
    for w, problem in enumerate(problems):
        assert fits.cost[w] == pytest.approx(from_values(leaky, problem, 60)[1], rel=1e-7)
        own = assess(replace(leaky, problem=problem), make_scorer(problem, "cpu"), fits.values[w])
        assert fits.errors[w] == pytest.approx(own.estimate.physical_errors, rel=1e-6)
    assert np.all(fits.agreed >= 2)


@pytest.mark.parametrize("plan", slow_but(["leaky"], ["little", "leaky"]))
def test_every_well_is_fitted_as_well_as_alone(plan, request):
    single = alone if plan == "little" else partial(from_values, rounds=60)
    plan = request.getfixturevalue(plan)
    problems, _ = wells_of(plan, 4)
    fits = fit_wells(plan, problems, SETTINGS)
    for w, problem in enumerate(problems):
        values, cost = single(plan, problem)
        assert fits.cost[w] == pytest.approx(cost, rel=1e-7)
        whole = make_scorer(problem, "reference").score(fits.values[w][:, None]).cost[0]
        assert fits.cost[w] == pytest.approx(whole, rel=1e-6)
        assert np.all(np.abs(fits.values[w] - values) < 0.05 * fits.errors[w] + 1e-9)
    assert fits.rms == pytest.approx(np.sqrt(fits.cost))
    assert np.all(fits.agreed >= 2)
    assert np.all(fits.starts >= fits.agreed)


@pytest.mark.parametrize("filtered", slow_but([True], [False, True]))
def test_errors_and_intervals_are_those_of_a_single_fit(leaky, filtered):
    problems, _ = wells_of(leaky, 2, noise=1.0)
    if filtered:  # residuals that are correlated
        kernel = np.ones(5) / 5
        noise = np.random.default_rng(1).standard_normal((2, *current_of(problems[0]).shape))
        slow = [np.apply_along_axis(np.convolve, 1, n, kernel, mode="same") for n in noise]
        problems = [
            with_currents(p, [current_of(p) + 4 * s]) for p, s in zip(problems, slow, strict=True)
        ]
    fits = fit_wells(leaky, problems, SETTINGS)
    for w, problem in enumerate(problems):
        plan = replace(leaky, problem=problem)
        found = assess(plan, make_scorer(problem, "cpu"), fits.values[w]).estimate
        assert (found.correlation_time > 1.5) == filtered
        assert fits.errors[w] == pytest.approx(found.physical_errors, rel=1e-6)
        lower, upper = found.interval()
        assert fits.lower[w] == pytest.approx(lower, rel=1e-6)
        assert fits.upper[w] == pytest.approx(upper, rel=1e-6)
        inside = found.pushed == 0
        assert np.all(inside)
        covariance = np.linalg.inv(fits.information[w])
        assert covariance == pytest.approx(found.covariance, rel=1e-4, abs=1e-12)


def spoiled_among(problems) -> list[Problem]:
    """The problems with wells between them that nothing can be fitted to."""
    shape = current_of(problems[0]).shape
    nan = current_of(problems[0]).copy()
    nan[1, 7] = np.nan
    bad = [nan, np.zeros(shape), np.full(shape, 3.0)]
    wells = [with_currents(problems[0], [b]) for b in bad]
    one = np.zeros(shape)
    one[0, 20] = 1
    masked = [with_currents(problems[0], [current_of(problems[0])], w) for w in (0 * one, one)]
    return [wells[0], problems[0], wells[1], *problems[1:], wells[2], *masked]


def test_wells_without_a_usable_recording_fail_alone(little):
    problems, _ = wells_of(little, 3)
    good = fit_wells(little, problems, SETTINGS)
    fits = fit_wells(little, spoiled_among(problems), SETTINGS)
    assert fits.quality.tolist() == ["failed", "ok", "failed", "ok", "ok", *["failed"] * 3]
    size = current_of(problems[0]).size
    assert fits.reason[[0, 2, 5, 6, 7]].tolist() == [
        f"1 of {size} samples that count are not finite",
        "every sample of the recording is 0 pA",
        "every sample of the recording is 3 pA",
        "no sample of the recording counts",
        "1 samples cannot determine 4 parameters",
    ]
    assert same_bits(fits.take(np.array([1, 3, 4])), good)
    failed = fits.take(np.array([0, 2, 5, 6, 7]))
    assert np.isnan(failed.values).all()
    assert np.isnan(failed.cost).all()
    arrays = fits.arrays()  # as which they travel
    assert all(a.dtype.kind in "fiu" for a in arrays.values())
    again = WellFits.of(arrays)
    assert same_bits(fits, again)
    assert again.names == fits.names
    assert same_bits(joined([again.take(np.arange(2)), again.take(np.arange(2, 8))]), fits)


def same_bits(one: WellFits, other: WellFits) -> bool:
    pairs = zip(one.arrays().values(), other.arrays().values(), strict=True)
    return all(a.tobytes() == b.tobytes() for a, b in pairs)


def test_noise_alone_is_told_from_a_misfit_and_slow_noise(leaky):
    problems, truth = wells_of(leaky, 40)
    ((_, scorer),) = well_scorers(problems, "cpu")
    everyone = np.arange(40)
    cost = scorer.linearize(truth, everyone).cost
    within = cost <= scorer.attainable
    assert 0.7 < within[0].mean() < 0.97  # a standard deviation above the mean
    assert within[1].mean() > 0.97  # and three
    assert scorer.attainable == pytest.approx(np.full((2, 40), 2.0**2), rel=0.3)
    off = truth * np.exp(0.3 * np.random.default_rng(1).standard_normal(truth.shape))
    assert not (scorer.linearize(off, everyone).cost <= scorer.attainable).any()
    # the same power of noise, slow: it lies where candidates are, and more is left than expected
    slow = []
    for k, problem in enumerate(problems[:8]):
        own = np.random.default_rng(k).standard_normal(current_of(problem).shape)
        slow.append(np.apply_along_axis(lambda x: np.convolve(x, np.ones(8), "same"), 1, own))
    clean = make_scorer(leaky.problem, "cpu").simulate(truth[:, :8])[0]
    moved = [with_currents(p, [clean[:, :, k] + slow[k]]) for k, p in enumerate(problems[:8])]
    ((_, scorer),) = well_scorers(moved, "cpu")
    assert not (scorer.linearize(truth[:, :8], everyone[:8]).cost <= scorer.attainable).any()


def test_wells_that_reach_their_noise_spare_most_of_a_scan(leaky, monkeypatch):
    problems, _ = wells_of(leaky, 6)
    tried, simulated = CpuWellScorer.cross_products, []

    def counted(self, parameters, rows=()):
        simulated.append(parameters.shape[1])
        return tried(self, parameters, rows)

    monkeypatch.setattr(CpuWellScorer, "cross_products", counted)
    fits = fit_wells(leaky, problems, SETTINGS)
    assert sum(simulated) < SETTINGS.scan / 2
    simulated.clear()  # where that is not known, two descents have to agree
    unknown = property(lambda self: np.zeros((2, self.n_wells)))
    monkeypatch.setattr(WellCosts, "attainable", unknown)
    sure = fit_wells(leaky, problems, SETTINGS)
    assert sum(simulated) > SETTINGS.scan
    assert fits.cost == pytest.approx(sure.cost, rel=1e-9)


def test_without_exchange_a_fit_depends_on_its_well_alone(little):
    problems, _ = wells_of(little, 11)
    settings = replace(SETTINGS, exchange=False)
    fits = fit_wells(little, problems, settings)
    some = np.array([10, 3])
    again = fit_wells(little, [problems[k] for k in some], settings)
    assert same_bits(fits.take(some), again)
    for k in (0, 10):
        assert same_bits(fits.take(np.array([k])), fit_wells(little, [problems[k]], settings))


def test_threads_and_how_many_wells_are_judged_at_once_change_nothing(little, monkeypatch):
    problems, _ = wells_of(little, 5)
    fits, judged = [], []
    all_of = fits_module._Judge.all
    monkeypatch.setattr(
        fits_module._Judge,
        "all",
        lambda self, well, *a: judged.append(len(well)) or all_of(self, well, *a),
    )
    for held, cores in ((1, 1), (3 * current_of(problems[0]).size, 3), (fits_module._HELD, 2)):
        monkeypatch.setattr(fits_module, "_HELD", held)
        for module in (well_scorer_module, fits_module, costs_module, least_squares_module):
            monkeypatch.setattr(module, "usable_cores", lambda cores=cores: cores)
        fits.append(fit_wells(little, problems, SETTINGS))
    assert judged == [1, 1, 1, 1, 1, 3, 2, 5]
    assert same_bits(fits[0], fits[1])
    assert same_bits(fits[0], fits[2])


def test_a_parameter_at_a_bound_is_told(little):
    problems, _ = wells_of(little, 2)
    parameters = tuple(
        replace(p, lower=15.0) if p.name == "g" else p for p in little.problem.model.parameters
    )
    model = replace(little.problem.model, parameters=parameters)
    plan = replace(little, problem=replace(little.problem, model=model))
    fits = fit_wells(plan, [replace(p, model=model) for p in problems], SETTINGS)
    g = fits.names.index("g")
    assert fits.at_bound[:, g].tolist() == [-1, -1]
    assert fits.values[:, g].tolist() == [15.0, 15.0]
    assert np.isnan(fits.errors[:, g]).all()
    assert np.isnan(fits.lower[:, g]).all()
    assert fits.quality.tolist() == ["check", "check"]
    assert all("g is at its lower bound" in reason for reason in fits.reason)


@pytest.mark.parametrize("protocol", [THREE_STEPS, RAMP])
def test_a_misfit_as_fast_as_the_channel_is_no_noise(tmp_path, protocol):
    plan = planned(tmp_path, protocol=protocol)
    problems, _ = wells_of(plan, 2, noise=2.0)
    recorded = current_of(problems[1])
    lost = 60 * np.exp(-np.arange(recorded.shape[1]) / (recorded.shape[1] / 15))
    problems[1] = with_currents(problems[1], [recorded + lost])
    fits = fit_wells(plan, problems, SETTINGS)
    assert fits.noise == pytest.approx([2.0, 2.0], rel=0.25)
    assert fits.noise[1] < 0.3 * fits.rms[1]
    assert fits.quality.tolist() == ["ok", "check"]
    assert "the misfit is large" in fits.reason[1]


def test_rounding_is_no_misfit_of_currents_that_were_simulated(little):
    problems, _ = wells_of(little, 1, noise=0.0)
    current = current_of(problems[0]).copy()
    current[-1] = np.round(current[-1], 1)  # and the other sweeps are exact
    fits = fit_wells(little, [with_currents(problems[0], [current])], SETTINGS)
    assert fits.rms[0] > 3 * fits.noise[0]
    assert fits.quality.tolist() == ["ok"]


def test_priors_fixed_parameters_and_bounds_on_rates_count(tmp_path):
    parameters = LITTLE["parameters"] | {
        "z": {"fixed": True, "value": 0.02, "unit": "1/mV"},
        "b": LITTLE["parameters"]["b"] | {"prior": {"lognormal": [0.2, 1.05]}},
    }
    plan = planned(
        tmp_path,
        LITTLE | {"parameters": parameters},
        noise="2 pA",
        solve="auto",
        rates_within={"range": ["1e-4 1/ms", "0.2 1/ms"], "voltages": ["-80 mV", "40 mV"]},
    )
    problems, _ = wells_of(plan, 1)
    fits = fit_wells(plan, problems, SETTINGS)
    assert fits.names == ("a", "b", "g")
    for w, problem in enumerate(problems):
        own = replace(plan, problem=problem, solved=())
        scorer = make_scorer(problem, "cpu")
        objective = own.objective(scorer)
        found = optimize(Hybrid(3, 0), objective, own.stop_rules, lambda _: None)
        assert fits.values[w] == pytest.approx(found.values[list(own.space.free)], rel=1e-3)
        cost = objective.score(fits.unit[w][:, None]).cost[0]
        assert cost == pytest.approx(found.cost, rel=1e-4)
        assert fits.values[w, 0] * np.exp(0.02 * 40) <= 0.2 * (1 + 1e-9)


def test_a_plan_that_begins_at_its_values_tries_them_first(leaky):
    problems, _ = wells_of(leaky, 1, spread=0.0)
    settings = replace(SETTINGS, scan=1, starts=1)
    blind = fit_wells(leaky, problems, settings)
    fits = fit_wells(replace(leaky, start=True), problems, settings)
    assert fits.cost[0] == pytest.approx(4.0, rel=0.2)
    assert blind.cost[0] > fits.cost[0] * (1 - 1e-9)


def test_wells_under_a_clamp_are_fitted_one_by_one(tmp_path):
    plan = planned(tmp_path)
    clamp = Clamp(series_resistance=sympy.Float(10), membrane_capacitance=sympy.Float(20))
    e = replace(plan.problem.experiments[0], clamp=clamp)
    plan = replace(plan, problem=replace(plan.problem, experiments=(e,)))
    problems, _ = wells_of(plan, 2)
    ((_, scorer),) = well_scorers(problems, "cpu")
    assert isinstance(scorer, OneByOne)
    fits = fit_wells(plan, problems, replace(SETTINGS, scan=60))
    for w, problem in enumerate(problems):
        assert fits.cost[w] == pytest.approx(alone(plan, problem)[1], rel=1e-6)


def test_intervals_hold_the_truth_as_often_as_they_say(little):
    problems, truth = wells_of(little, 50, noise=8.0, seed=3)
    fits = fit_wells(little, problems, SETTINGS)
    inside = (fits.lower <= truth.T) & (fits.upper >= truth.T)
    assert 0.91 < inside.mean() < 0.99
    assert np.all(fits.quality == "ok")


def test_no_current_is_judged_beside_the_leak_and_not_where_a_misfit_is_large(leaky):
    problems, truth = wells_of(leaky, 3)
    names = [p.name for p in leaky.problem.parameters]
    command = leaky.problem.experiments[0].protocol.command()
    empty = np.random.default_rng(5).normal(0, 2.0, command.shape) + 2.0 * (command + 10)
    problems[0] = with_currents(problems[0], [empty])  # a leak alone
    along = np.linspace(-1, 1, command.shape[1])  # a slow fault, far larger than the noise
    fault = np.abs(current_of(problems[1])).max() * along**3
    problems[1] = with_currents(problems[1], [current_of(problems[1]) + fault])
    assert truth[names.index("g")].min() > 0
    fits = fit_wells(leaky, problems, SETTINGS)
    assert "no better than a leak alone does" in fits.reason[0]
    assert [("no current" in str(reason)) for reason in fits.reason] == [True, False, False]
    assert usable(fits).tolist() == [False, True, True]


def test_a_well_without_a_current_is_told_in_one_sentence(little):
    problems, _ = wells_of(little, 4)
    noise = np.random.default_rng(5).normal(0, 1.0, current_of(problems[1]).shape)
    problems[1] = with_currents(problems[1], [noise])
    problems[3] = with_currents(problems[3], [-current_of(problems[3])])
    fits = fit_wells(little, problems, SETTINGS)
    assert fits.reason[3].startswith("no current: ")
    assert "; the misfit is large" in fits.reason[3]
    fits = fits.take(np.arange(3))
    message = "no current: the fit explains the recording no better than zero does"
    assert fits.reason[1] == message
    assert fits.quality[1] == "check"
    assert message not in (fits.reason[0], fits.reason[2])
    assert usable(fits).tolist() == [True, False, True]  # it is none of a population of channels
    words = "1 of 3 wells are left out: 1 shows no current (B)"
    assert left_out(fits, ["A", "B", "C"]) == words
