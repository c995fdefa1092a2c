"""Levenberg-Marquardt side by side and the hybrid search: against SciPy, and what always holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares, lsq_linear

from channelfit.scoring.machine.machine_code import Kernel
from channelfit.search import least_squares as module
from channelfit.search.choose import make_optimizer
from channelfit.search.damped import steps_of, to_the_lowest
from channelfit.search.hybrid import Refined, _explored, _finished, _UnderWay
from channelfit.search.least_squares import TRIALS, Starts, begin, damped_steps, improve, refine
from channelfit.search.loop import StopRules, optimize
from channelfit.search.objective import Local, Objective
from channelfit.search.projection import eliminated
from support.decays import Residuals, decays, space


def test_every_corner_of_the_cube_can_be_left():
    """A face holds only what the gradient pushes outward."""
    random = np.random.default_rng(3)
    a, b = random.normal(size=(20, 3)), 0.2 * random.normal(size=20)
    objective = Objective(space(3, -1.0, 1.0), Residuals(lambda x: a @ x - b))
    corners = np.stack(np.meshgrid(*[[0.0, 1.0]] * 3), axis=0).reshape(3, 8)
    starts = refine(objective, corners)
    exact = np.linalg.lstsq(a, b)[0]
    assert np.abs(exact).max() < 1
    np.testing.assert_allclose(objective.physical(starts.unit).T, [exact] * 8, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_bounds_of_a_linear_problem_are_those_of_scipy(seed):
    random = np.random.default_rng(seed)
    a, b = random.normal(size=(12, 4)), 2 * random.normal(size=12)
    objective = Objective(space(4, -0.3, 0.2), Residuals(lambda x: a @ x - b))
    starts = refine(objective, random.random((4, 3)), 200, 1e-13)
    exact = lsq_linear(a, b, (-0.3, 0.2), tol=1e-14)
    np.testing.assert_allclose(starts.cost, 2 * exact.cost / 12, rtol=1e-8)
    assert starts.unit.min() >= 0
    assert starts.unit.max() <= 1


def narrow(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A linear problem of ten unknowns whose Hessian spans twelve decades."""
    random = np.random.default_rng(seed)
    left, right = (np.linalg.qr(random.normal(size=(n, 10)))[0] for n in (30, 10))
    a = left * np.logspace(0, -6, 10) @ right.T
    return a, a @ random.uniform(-0.6, 0.6, 10) + 1e-3 * random.normal(size=30)


@pytest.mark.parametrize(("seed", "at_once"), [(0, False), (1, False), (1, True)])
def test_a_narrow_valley_beside_faces_of_the_cube_is_followed_to_its_end(seed, at_once):
    """Steps that are cut short at a face, and no more, leave a start where it is."""
    a, b = narrow(seed)
    scorer = Residuals(lambda x: a @ x - b)
    objective = Objective(space(10, -0.3, 0.3), scorer, at_once=at_once)
    starts = refine(objective, np.random.default_rng(seed).random((10, 4)), 60, 1e-14)
    exact = lsq_linear(a, b, (-0.3, 0.3), method="bvls", tol=1e-15)
    assert (starts.cost <= 2 * exact.cost / 30 * (1 + 1e-7)).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_a_bounded_step_is_the_lowest_point_of_its_parabola_in_the_box(seed):
    random, n = np.random.default_rng(seed), 8
    root = np.linalg.qr(random.normal(size=(n, n)))[0] * 10.0 ** random.uniform(-2, 0, n)
    h = root @ root.T
    h /= np.sqrt(np.outer(np.diag(h), np.diag(h)))
    g, lower, upper = random.normal(size=n), -random.random(n), random.random(n) + 1e-3
    step, box = np.empty(n), np.array([lower, upper])
    to_the_lowest(h, g, box, np.zeros(n), step, root.copy(), np.empty((4, n)))
    upright = np.linalg.cholesky(h)
    exact = lsq_linear(
        upright.T, -np.linalg.solve(upright, g), (lower, upper), method="bvls", tol=1e-15
    )
    assert ((step >= lower - 1e-12) & (step <= upper + 1e-12)).all()
    lowest = g @ exact.x + 0.5 * exact.x @ h @ exact.x
    assert g @ step + 0.5 * step @ h @ step <= lowest + 1e-8 * abs(lowest)


def starts_on_faces(n_free: int, n: int) -> Starts:
    """Starts of which some coordinates are on faces of the cube, with Hessians of any shape."""
    random = np.random.default_rng(6)
    roots = random.normal(size=(n, n_free, n_free)) * 10.0 ** random.uniform(-2, 0, (n, 1, n_free))
    hessian = np.ascontiguousarray(np.moveaxis(roots @ np.swapaxes(roots, 1, 2), 0, -1))
    unit = np.round(1.4 * random.random((n_free, n)) - 0.2, 2).clip(0, 1)
    local = Local(np.ones(n), np.zeros(n, np.int8), random.normal(size=(n_free, n)), hessian)
    return Starts(unit, local, 10.0 ** random.uniform(-9, 1, n), np.zeros(n, bool))


def test_damped_steps_are_those_of_plain_python():
    """Whose indices are checked; machine code may leave out a rounding."""
    starts = starts_on_faces(4, 9)
    steps, promise = damped_steps(starts)
    given = starts.unit, starts.local.gradient, starts.local.hessian, starts.damping, TRIALS
    for way in (steps_of.python, Kernel(steps_of.source, "steps_of", checked=True)):
        theirs, promised = np.full_like(steps, np.nan), np.full_like(promise, np.nan)
        way(*given, 0, 5, theirs, promised)
        assert np.isnan(theirs[..., 5:]).all()
        way(*given, 5, 9, theirs, promised)
        np.testing.assert_allclose(theirs, steps, rtol=1e-7, atol=1e-12)
        np.testing.assert_allclose(promised, promise, rtol=1e-9)


def test_damped_steps_depend_neither_on_company_nor_on_threads(monkeypatch):
    starts = starts_on_faces(7, 50)
    unit, local = starts.unit, starts.local
    found = []
    for cores in (1, 2, 5):
        monkeypatch.setattr(module, "usable_cores", lambda cores=cores: cores)
        found.append(damped_steps(starts))
    steps, promise = found[0]
    assert all(np.array_equal(s, steps) and np.array_equal(p, promise) for s, p in found)
    for k in range(50):
        alone = damped_steps(starts.take(np.array([k])))
        assert np.array_equal(alone[0][..., 0], steps[..., k])
        assert np.array_equal(alone[1][:, 0], promise[:, k])
    there = unit[:, None] + steps
    assert np.all((there > -1e-15) & (there < 1 + 1e-15))
    bent = np.einsum("ijn,jtn->itn", local.hessian, steps)
    promised = -(local.gradient[:, None] * steps).sum(axis=0) - 0.5 * (steps * bent).sum(axis=0)
    np.testing.assert_allclose(promise, promised, rtol=1e-9)


def test_decays_end_where_scipy_ends():
    objective = Objective(space(4, -4.0, 4.0), Residuals(decays))
    start = np.array([[0.6, 0.55, 0.6, 0.3], [0.7, 0.6, 0.55, 0.45]]).T
    starts = refine(objective, start, tolerance=1e-14)
    for k in range(2):
        theirs = least_squares(
            decays,
            objective.physical(start)[:, k],
            bounds=(-4, 4),
            xtol=1e-15,
            ftol=1e-15,
            gtol=1e-15,
        )
        assert starts.cost[k] == pytest.approx(2 * theirs.cost / 60, rel=1e-9)
        ours = objective.physical(starts.unit)[:, k]
        np.testing.assert_allclose(np.sort(ours), np.sort(theirs.x), rtol=1e-4)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 7))
def test_no_iteration_makes_a_start_worse_or_leaves_the_cube(seed, n):
    unit = np.random.default_rng(seed).random((4, n))
    objective = Objective(space(4, -6.0, 6.0), Residuals(decays, lambda x: x[0] + x[2] > 5))
    starts = begin(objective, unit)
    for _ in range(8):
        before = starts.cost.copy()
        starts = improve(objective, starts)
        assert (starts.cost <= before).all()
        assert ((starts.unit >= 0) & (starts.unit <= 1)).all()
        inside = starts.cost < np.inf
        values = objective.physical(starts.unit)
        assert (values[0, inside] + values[2, inside] <= 5).all()


def on_gpu(residuals: object) -> Residuals:
    """A scorer that says it is on a GPU."""
    scorer = Residuals(residuals)
    scorer.backend = "cuda"
    return scorer


# --- hybrid ------------------------------------------------------------------------------------


def valleys(x: np.ndarray) -> np.ndarray:
    """Five thousand local minima and one at 0.3 that counts."""
    return np.concatenate([x - 0.3, 1.5 * np.sin(9 * (x - 0.3))])


def hybrid(scorer: Residuals, n: int, seed: int = 0, stop: StopRules | None = None, **more: int):
    objective = Objective(space(n, -3.0, 3.0), scorer)
    optimizer = make_optimizer("hybrid", more, n, seed)
    return optimize(optimizer, objective, stop or StopRules())


@pytest.mark.parametrize("seed", range(4))
def test_it_arrives_from_every_seed(seed):
    result = hybrid(Residuals(valleys), 4, seed)
    np.testing.assert_allclose(result.values, 0.3, atol=1e-6)


def test_a_gpu_makes_the_rounds_that_patience_asks_for_side_by_side():
    """As many starts in fewer iterations, to the same point."""

    def never_perfect(x: np.ndarray) -> np.ndarray:
        return np.append(valleys(x), 1.0)

    few = {"scan": 100, "starts": 16}
    one, other = hybrid(Residuals(never_perfect), 2, **few), hybrid(on_gpu(never_perfect), 2, **few)
    for result in (one, other):
        np.testing.assert_allclose(result.values, 0.3, atol=1e-6)
        assert result.stop_reason.startswith("4 rounds without a gain")
    starts = [result.agreement["independent_starts"] for result in (one, other)]
    assert starts[1] >= starts[0]
    assert other.generations < 0.6 * one.generations


def test_starts_that_agree_are_the_reason_on_a_gpu_too():
    result = optimize(
        make_optimizer("hybrid", {"scan": 40, "starts": 16}, 4, 0),
        Objective(space(4, -4.0, 4.0), on_gpu(decays)),
        StopRules(),
    )
    assert "independent starts agree" in result.stop_reason


def test_a_start_still_under_way_that_is_the_lowest_is_followed_to_its_end():
    objective = Objective(space(1, -3.0, 3.0), Residuals(valleys))
    starts = begin(objective, (np.array([[0.35, 2.5]]) + 3.0) / 6.0)
    between = np.array([starts.cost.mean()])
    under_way = _UnderWay(starts, np.ones(2, bool), np.full((3, 2), np.inf))
    worse = Refined(np.ones((1, 1)), between, np.ones(1, bool))
    ends = []

    def followed():
        ends.append((yield from _finished(objective, worse, under_way)))

    list(followed())
    (found,) = ends
    np.testing.assert_allclose(objective.physical(found.best()[:, None]), 0.3, atol=1e-6)


@pytest.mark.parametrize(("minima", "enough"), [(1, 8), (2, 17), (3, 30)])
def test_as_many_starts_as_say_that_no_rival_is_unseen(minima, enough):
    """w (n - 1)/(n - w - 2) minima are expected of w that n starts have seen."""
    for n in (enough - 1, enough):
        cost = np.concatenate([np.ones(n - minima + 1), 2.0 + np.arange(1, minima) / 4])
        found = Refined(np.zeros((2, n)), cost, np.ones(n, bool))
        assert _explored(found, 3) == (n == enough)
        expected = minima * (n - 1) / (n - minima - 2)
        assert (expected < minima + 0.5) == (n == enough)


def test_derivatives_with_one_parameter_solved_are_those_of_its_best_value():
    """By the normal equations, and without it where it has come to a bound."""
    random = np.random.default_rng(5)
    a, b = random.normal(size=(9, 3)), random.normal(size=9)
    here = np.array([0.3, -0.2, 0.0])
    here[2] = a[:, 2] @ (b - a[:, :2] @ here[:2]) / (a[:, 2] @ a[:, 2])
    gradient, hessian = 2 * a.T @ (a @ here - b), 2 * a.T @ a
    slope, bend = eliminated(
        np.tile(gradient[:, None], 2),
        np.tile(hessian[:, :, None], 2),
        [(2, np.array([True, False]))],
        [0, 1],
    )
    apart = np.eye(9) - np.outer(a[:, 2], a[:, 2]) / (a[:, 2] @ a[:, 2])
    np.testing.assert_allclose(slope[:, 0], 2 * a[:, :2].T @ apart @ (a[:, :2] @ here[:2] - b))
    np.testing.assert_allclose(bend[..., 0], 2 * a[:, :2].T @ apart @ a[:, :2])
    np.testing.assert_allclose(slope[:, 1], gradient[:2])
    np.testing.assert_allclose(bend[..., 1], hessian[:2, :2])
