"""A plate as a population, against integrals, closed formulas, repeated draws and joint fits."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from channelfit.batch.fits import fit_wells
from channelfit.batch.mixed import Evidence, Level, Mixed, eliminated, threshold
from channelfit.batch.population import Population, kinetic_names, left_out, population, usable
from channelfit.batch.relinearized import linearizer
from channelfit.batch.run import BatchRequest, ready
from channelfit.batch.search import SearchSettings
from channelfit.batch.well_tasks import Problems
from channelfit.model.channel import Parameter, Prior
from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Problem, n_scored
from channelfit.problem.recording import Recording
from channelfit.reading.documents import dump_yaml
from channelfit.reading.errors import InputError
from channelfit.results.uncertainty.estimate import estimate
from channelfit.scoring.grouped import GroupedScorer
from channelfit.scoring.scorer import make_scorer
from channelfit.search.least_squares import refine
from channelfit.search.objective import Objective
from channelfit.search.plan import FitPlan
from channelfit.search.space import SearchSpace
from support import uncertain
from support.plates import Fits, fits_of

LINEAR = Parameter("z", "1/mV", 0.0, 0.2)
LOG = Parameter("a", "1/ms", 0.01, 10.0, "log")
OWN = Parameter("g", "nS", 0.0, 50.0)


def random_information(random: np.random.Generator, n: int, k: int, error: float) -> np.ndarray:
    rows = random.normal(size=(n, 3 * k, k)) / math.sqrt(3 * k)
    errors = error * np.exp(0.5 * random.normal(size=(n, 1, 1)))
    return np.swapaxes(rows, 1, 2) @ rows / errors**2


def observed(random: np.random.Generator, truth: np.ndarray, information: np.ndarray) -> np.ndarray:
    covariance = np.linalg.inv(information)
    noise = random.normal(size=truth.shape)
    return truth + np.einsum("wij,wj->wi", np.linalg.cholesky(covariance), noise)


def mixed_of(
    unit: np.ndarray, information: np.ndarray, n_drawn: int, correlated: bool = True
) -> Mixed:
    weighted = np.einsum("wij,wj->wi", information, unit)
    nothing = np.zeros(unit.shape[1])
    return Mixed(Evidence.of(weighted, information), n_drawn, correlated, nothing, nothing)


def test_the_restricted_likelihood_is_the_integral_over_cells_and_mean() -> None:
    """Brute force: every cell's value and the population's mean are integrated on a grid."""
    y, error = np.array([0.3, 0.5, 0.42, 0.71]), np.array([0.05, 0.1, 0.02, 0.2])
    mixed = mixed_of(y[:, None], (1 / error**2)[:, None, None], 1)

    def brute(spread: float) -> float:
        def over_cells(mean: float) -> float:
            product = 1.0
            for one, e in zip(y, error, strict=True):
                x = np.linspace(-2, 3, 2001)
                density = stats.norm.pdf(one, x, e) * stats.norm.pdf(x, mean, spread)
                product *= integrate.simpson(density, x=x)
            return product

        means = np.linspace(-1.5, 2.5, 201)
        return math.log(integrate.simpson([over_cells(m) for m in means], x=means))

    values = [mixed.at(np.array([[s]])).value for s in (0.05, 0.15, 0.4)]
    truths = [brute(s) for s in (0.05, 0.15, 0.4)]
    assert np.diff(values) == pytest.approx(np.diff(truths), abs=1e-6)


@pytest.mark.parametrize("n_drawn", [1, 3])
def test_derivatives_are_those_of_the_likelihood(n_drawn: int) -> None:
    random = np.random.default_rng(3)
    information = random_information(random, 9, 4, 0.1)
    information[2, 1] = information[2, :, 1] = 0.0  # a well that says nothing of one parameter
    mixed = mixed_of(random.normal(0.5, 0.2, (9, 4)), information, n_drawn)
    factor = 0.2 * random.normal(size=(n_drawn, n_drawn))
    slope = np.empty_like(factor)
    for place in np.ndindex(factor.shape):
        step = np.zeros_like(factor)
        step[place] = 1e-6
        rise = mixed.at(factor + step).value - mixed.at(factor - step).value
        slope[place] = rise / 2e-6
    assert mixed.at(factor).slope == pytest.approx(slope, rel=1e-6, abs=1e-6)


def test_wells_without_errors_are_a_sample() -> None:
    """Mean, covariance and Student's intervals of a sample; exact intervals of its variance."""
    random = np.random.default_rng(1)
    x = random.multivariate_normal([0.4, 0.6], [[0.01, 0.006], [0.006, 0.02]], 30)
    level = Level.of(mixed_of(x, np.tile(1e12 * np.eye(2), (30, 1, 1)), 2))
    assert level.mean == pytest.approx(x.mean(axis=0), rel=1e-9)
    assert level.covariance == pytest.approx(np.cov(x.T), rel=1e-4)
    assert level.mean_degrees == pytest.approx([29, 29], rel=1e-6)
    assert level.spread_degrees == pytest.approx([29, 29], rel=1e-6)
    reach = stats.t.ppf(0.975, 29) * x.std(axis=0, ddof=1) / math.sqrt(30)
    lower, upper = level.mean_interval()
    assert upper - lower == pytest.approx(2 * reach, rel=1e-4)
    lower, upper = level.spread_interval()
    for end in (lower, upper):
        size = (x.std(axis=0, ddof=1) / end) ** 2  # the density of both ends is alike
        assert 29 * (size - 1 - np.log(size)) == pytest.approx([threshold(29.0)] * 2, rel=0.01)


def test_the_threshold_holds_the_share_that_it_names() -> None:
    for degrees in (1.0, 4.0, 60.0):
        x = np.random.default_rng(2).chisquare(degrees, 400_000) / degrees
        assert np.mean(degrees * (x - 1 - np.log(x)) < threshold(degrees)) == pytest.approx(
            0.95, abs=0.002
        )
    assert threshold(1e4) == pytest.approx(threshold(math.inf), rel=1e-3)


def test_what_is_each_wells_own_is_eliminated_at_its_best() -> None:
    random = np.random.default_rng(5)
    information = random_information(random, 6, 4, 0.1)
    best = random.random((6, 4))
    weighted = np.einsum("wij,wj->wi", information, best)
    slope, bend = eliminated(weighted, information, [3, 1])
    covariance = np.linalg.inv(information)[:, [3, 1]][:, :, [3, 1]]
    assert np.linalg.inv(bend) == pytest.approx(covariance, rel=1e-9)
    assert np.linalg.solve(bend, slope[..., None])[..., 0] == pytest.approx(best[:, [3, 1]])


def test_wells_that_say_nothing_of_a_parameter_weigh_nothing_in_it() -> None:
    random = np.random.default_rng(6)
    information = random_information(random, 12, 2, 0.05)
    unit = random.normal(0.5, 0.1, (12, 2))
    more = np.concatenate([information, np.zeros((3, 2, 2))])
    far = np.concatenate([unit, np.full((3, 2), 40.0)])
    one, other = Level.of(mixed_of(unit, information, 2)), Level.of(mixed_of(far, more, 2))
    assert other.mean == pytest.approx(one.mean, rel=1e-6)
    assert other.covariance == pytest.approx(one.covariance, rel=1e-4)
    # a direction alone: the sum of both is known, and what of it is known is used
    half = information.copy()
    half[4] = 1e4 * np.ones((2, 2))
    moved = unit.copy()
    moved[4] += [7.0, -7.0]
    assert Level.of(mixed_of(moved, half, 2)).mean == pytest.approx(
        Level.of(mixed_of(unit, half, 2)).mean, rel=1e-6
    )


def covered(
    n: int, error: float, spread: float, repeats: int, n_drawn: int = 1, seed: int = 1
) -> tuple[float, float]:
    """How often the intervals of mean and spread hold the truth."""
    random = np.random.default_rng(seed)
    covariance = spread**2 * (0.5 * np.eye(n_drawn) + 0.5)
    hits = np.zeros((repeats, 2, n_drawn))
    for repeat in range(repeats):
        truth = random.multivariate_normal(np.full(n_drawn, 0.5), covariance, n)
        information = random_information(random, n, n_drawn, error)
        mixed = mixed_of(
            observed(random, truth, information), information, n_drawn, n > 2 * n_drawn
        )
        level = Level.of(mixed)
        lower, upper = level.mean_interval()
        least, most = level.spread_interval()
        hits[repeat, 0] = (lower < 0.5) & (upper > 0.5)
        hits[repeat, 1] = (least <= spread) & (most > spread)
    mean, sizes = hits.mean(axis=(0, 2))
    return float(mean), float(sizes)


@pytest.mark.parametrize(
    ("n", "error", "spread", "n_drawn", "repeats"),
    [
        (20, 0.05, 0.1, 1, 30),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (5, 0.01, 0.1, 1, 200),
                (100, 0.1, 0.1, 2, 30),
                (10, 0.05, 0.0, 1, 100),
            )
        ),
    ],
)
def test_intervals_hold_the_truth_as_often_as_they_say(n, error, spread, n_drawn, repeats):
    """Never below 95 % by more than chance; above it where errors are as large as the spread."""
    chance = 3 * math.sqrt(0.95 * 0.05 / repeats)
    for share in covered(n, error, spread, repeats, n_drawn):
        assert share > 0.95 - chance
        if error <= spread / 2 or n >= 100:
            assert share < 0.975 + chance


def plate(n: int = 40, seed: int = 4, error: float = 0.02) -> tuple[Fits, np.ndarray]:
    """Wells with drawn z and a, and a conductance of their own that is tied to a's error."""
    random = np.random.default_rng(seed)
    truth = np.empty((n, 3))
    truth[:, :2] = random.multivariate_normal([0.5, 0.4], [[0.01, 0.004], [0.004, 0.0064]], n)
    truth[:, 2] = random.uniform(0.1, 0.9, n)
    information = random_information(random, n, 3, error)
    return fits_of(("z", "a", "g"), observed(random, truth, information), information), truth


def found_of(fits: Fits, drawn: tuple[str, ...] = ("z", "a"), **more: Any) -> Population:
    return population(fits, drawn, parameters=[LINEAR, LOG, OWN], **more)


def test_mean_and_spread_are_in_base_units_or_logarithms() -> None:
    fits, _ = plate(200)
    found = found_of(fits)
    width = math.log(10.0 / 0.01)
    assert found.mean == pytest.approx([0.1, 0.01 * math.exp(0.4 * width)], rel=0.1)
    assert found.spread == pytest.approx([0.1 * 0.2, 0.08 * width], rel=0.15)
    assert found.correlation[0, 1] == pytest.approx(0.5, abs=0.15)
    assert found.correlation_lower[0, 1] < 0.5 < found.correlation_upper[0, 1]
    assert found.covariance == pytest.approx(
        found.correlation * np.outer(found.spread, found.spread)
    )
    assert (found.lower < found.mean).all()
    assert (found.mean < found.upper).all()
    first, second = found.table()
    assert (first["scale"], second["scale"]) == ("linear", "log")
    assert first["unit"] == "1/mV"
    text = found.text()
    assert "population of 200 wells" in text
    assert "×÷" in text
    facts = found.summary()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def test_shrunken_cells_are_nearer_to_the_truth_than_their_own_fits() -> None:
    fits, truth = plate(100, error=0.1)
    found = found_of(fits)
    assert found.cell_names == ("z", "a", "g")
    own = LINEAR.upper * fits.unit[:, 0]
    true = LINEAR.upper * truth[:, 0]
    assert np.std(found.cells[:, 0] - true) < 0.8 * np.std(own - true)
    inside = (found.cells_lower[:, 0] < true) & (true < found.cells_upper[:, 0])
    assert 0.89 <= inside.mean() <= 1
    # the cell's own parameter is the best beside them
    apart = [found.cells[:, 0] / 0.2, np.log(found.cells[:, 1] / 0.01) / math.log(1000)]
    apart = np.stack([*apart, found.cells[:, 2] / 50], axis=1) - fits.unit
    assert np.einsum("wi,wi->w", fits.information[:, 2], apart) == pytest.approx(0, abs=1e-8)
    assert set(found.columns()) == {
        f"{n}_shrunken{e}" for n in "za" for e in ("", "_lower", "_upper")
    }


def test_wells_without_a_fit_or_a_current_are_left_out_and_counted() -> None:
    fits, _ = plate(200)
    want = found_of(Fits(fits.names, *(a[3:] for a in list(vars(fits).values())[1:])))
    fits.unit[0] = np.nan
    fits.information[1] = 0.0
    fits.reason[1] = "no current: the fit explains the recording no better than zero does"
    fits.quality[2] = "failed"
    got = found_of(fits, wells=[f"A{k:02d}" for k in range(200)])
    assert got.mean == pytest.approx(want.mean)
    assert got.used.sum() == 197
    assert np.isnan(got.cells[:3]).all()
    message = "3 of 200 wells are left out: 2 have no fit (A00, A02), 1 shows no current (A01)"
    assert got.notes[0] == message
    assert got.summary()["left_out"] == ["A00", "A01", "A02"]
    fits, _ = plate(12)
    fits.information[2:4] = np.nan
    fits.information[4:10] = 0.0
    fits.reason[4:10] = "no current: the fit explains the recording no better than zero does"
    assert left_out(fits, [f"A{k:02d}" for k in range(12)]) == (
        "8 of 12 wells are left out: 6 show no current (A04, A05, A06, A07, A08 and 1 more), "
        "2 say nothing of their parameters (A02, A03)"
    )
    fits.quality[:] = "failed"
    with pytest.raises(InputError, match="no population: 12 of 12 wells are left out: 12 have no"):
        found_of(fits)


def test_one_two_and_equal_wells() -> None:
    """One has no spread, two have a wide interval, equal ones none."""
    found = found_of(plate(1)[0])
    assert np.isnan(found.spread).all()
    assert (found.spread_upper == math.inf).all()
    assert np.isnan(found.lower).all()
    assert any("one well says nothing" in note for note in found.notes)
    assert json.dumps(found.summary(), allow_nan=False)
    assert "one well" in found.text()
    fits, _ = plate(2, error=1e-4)
    found = found_of(fits)
    assert (found.spread_upper > 10 * found.spread).all()
    reach = stats.t.ppf(0.975, 1) * np.std(0.2 * fits.unit[:, 0], ddof=1) / math.sqrt(2)
    assert found.upper[0] - found.mean[0] == pytest.approx(reach, rel=0.01)
    assert any("too few for the correlations" in note for note in found.notes)
    fits, _ = plate(12)
    fits.unit[:] = [0.5, 0.4, 0.3]
    found = found_of(fits)
    assert found.spread.tolist() == found.spread_lower.tolist() == [0, 0]
    assert (found.spread_upper > 0).all()
    assert np.isnan(found.correlation[0, 1])
    assert any("may be all alike in z, a" in note for note in found.notes)
    assert found.cells[:, 0] == pytest.approx(0.1)


def test_an_outlier_is_named_with_what_it_does() -> None:
    fits, _ = plate(40)
    fits.unit[7, 0] += 1.2
    fits.unit[8, 0] += 1.3
    found = found_of(fits)
    assert set(found.outliers) == {"8", "9"}
    assert "z is 1" in found.outliers["8"]
    assert any("2 outliers widen the population" in note for note in found.notes)
    assert any("would be: z 0.29 times as large, a 0.9 times" in note for note in found.notes)
    fits, _ = plate(200)
    fits.unit[7, 0] -= 1.2
    assert "8" in found_of(fits).outliers  # it may lie below the others


def test_bounds_priors_and_what_no_well_determines_are_said() -> None:
    fits, _ = plate(200)
    fits.at_bound[5, 1] = 1
    fits.unit[5, 1] = 1.0
    found = found_of(fits)
    assert any("a is at a bound of its range in 1 wells" in note for note in found.notes)
    assert found.doubtful == ("6",)
    fits.unit[5, 1] = 0.0
    assert found_of(fits).mean == pytest.approx(found.mean)
    fits, _ = plate(200)
    fits.information[:, 0] = fits.information[:, :, 0] = 0.0
    found = found_of(fits)
    assert any("do not determine z" in note for note in found.notes)
    assert found.spread_upper[0] == math.inf
    assert found.upper[1] / found.lower[1] < 2
    fits, _ = plate(10)
    before = Parameter("z", "1/mV", 0.0, 0.2, prior=Prior("normal", 0.1, 0.01))
    found = population(fits, ["z"], parameters=[before, LOG, OWN])
    assert any("the prior of z counted in the fit of every well" in n for n in found.notes)


RATE = Parameter("k", "1/ms", 0.02, 20.0, "log")
SIZE = Parameter("c", "pA", 0.0, 5.0)
TIMES = np.linspace(0.0, 3.0, 25)


@dataclass
class Decays:
    """Wells that show c exp(-k t) in noise; k is drawn or shared, c each well's own."""

    data: np.ndarray
    noise: float

    @classmethod
    def drawn(cls, n: int, spread: float, noise: float, seed: int) -> Decays:
        random = np.random.default_rng(seed)
        k = np.exp(spread * random.normal(size=n))
        clean = random.uniform(1, 2, (n, 1)) * np.exp(-k[:, None] * TIMES)
        return cls(clean + noise * random.normal(size=clean.shape), noise)

    def relinearize(self, unit: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        width = math.log(RATE.upper / RATE.lower)
        k = (RATE.lower * np.exp(unit[:, 0] * width))[:, None]
        shape = np.exp(-k * TIMES)
        apart = (SIZE.upper * unit[:, 1:] * shape - self.data) / self.noise
        by_k = -SIZE.upper * unit[:, 1:] * shape * k * TIMES * width
        slopes = np.stack([by_k, SIZE.upper * shape], axis=2) / self.noise
        gradient = np.einsum("wt,wtk->wk", apart, slopes)
        information = np.einsum("wtj,wtk->wjk", slopes, slopes)
        return 0.5 * (apart**2).sum(axis=1), gradient, information

    def fits(self) -> Fits:
        """Each well on its own, to its optimum, by Newton's steps that are held back."""
        unit = np.tile([0.5, 0.3], (len(self.data), 1))
        damping = np.ones(len(unit))
        cost, gradient, information = self.relinearize(unit)
        for _ in range(300):
            bend = information + damping[:, None, None] * np.eye(2)
            step = np.linalg.solve(bend, gradient[..., None])[..., 0]
            trial = np.clip(unit - step, 0.0, 1.0)
            fresh = self.relinearize(trial)
            good = fresh[0] <= cost
            damping = np.where(good, 0.3 * damping, 10 * damping)
            unit = np.where(good[:, None], trial, unit)
            cost, gradient, information = self.relinearize(unit)
        return fits_of(("k", "c"), unit, information)

    def of(self, **names: Any) -> Population:
        return population(self.fits(), parameters=[RATE, SIZE], **names)


def test_shared_parameters_are_those_of_one_fit_of_everything() -> None:
    """Least squares of all wells at once, by SciPy, with a column for each own parameter."""
    wells = Decays.drawn(12, 0.0, 0.4, 5)
    got = wells.of(drawn=(), shared=["k"], relinearize=wells.relinearize)

    def residuals(p: np.ndarray) -> np.ndarray:
        return ((p[1:, None] * np.exp(-math.exp(p[0]) * TIMES) - wells.data) / 0.4).ravel()

    want = optimize.least_squares(residuals, np.ones(13), xtol=1e-14, ftol=1e-14, gtol=1e-14)
    covariance = np.linalg.inv(want.jac.T @ want.jac)
    assert got.mean[0] == pytest.approx(math.exp(want.x[0]), rel=1e-4)
    assert got.cells[:, 1] == pytest.approx(want.x[1:], rel=1e-3)
    reach = 0.5 * np.log(got.upper / got.lower)
    assert reach == pytest.approx(1.96 * math.sqrt(covariance[0, 0]), rel=1e-3)
    assert got.method == "relinearized"
    assert got.summary()["rows"][0]["kind"] == "shared"


def test_wells_of_poor_data_are_linearized_where_the_population_says_they_are() -> None:
    """Against the integral over every cell, which needs no parabola: nearer than the optima are."""
    wells = Decays.drawn(24, 0.4, 0.5, 8)
    grid = np.linspace(math.log(RATE.lower), math.log(RATE.upper), 601)
    shape = np.exp(-np.exp(grid)[:, None] * TIMES)
    best = np.clip(wells.data @ shape.T / (shape**2).sum(axis=1), 0.0, SIZE.upper)
    apart = best[:, :, None] * shape - wells.data[:, None]
    evidence = -0.5 * (apart**2).sum(axis=2) / 0.5**2
    evidence = np.exp(evidence - evidence.max(axis=1, keepdims=True))
    means, spreads = np.linspace(-1, 1, 51), np.linspace(0.02, 1.2, 60)

    def restricted(spread: float) -> float:
        density = stats.norm.pdf(grid[None], means[:, None], spread)
        return float(np.log(np.exp(np.log(evidence @ density.T).sum(axis=0)).sum()))

    truth = spreads[np.argmax([restricted(s) for s in spreads])]
    got = wells.of(drawn=["k"], relinearize=wells.relinearize)
    plain = wells.of(drawn=["k"])
    assert got.spread[0] == pytest.approx(truth, rel=0.15)
    assert abs(got.spread[0] - truth) < abs(plain.spread[0] - truth)
    assert got.iterations < 30


def test_wells_are_linearized_anew_where_they_need_it() -> None:
    """Good data need no second look: both ways come to the same."""
    wells = Decays.drawn(20, 0.3, 0.01, 9)
    plain, again = wells.of(drawn=["k"]), wells.of(drawn=["k"], relinearize=wells.relinearize)
    assert again.mean == pytest.approx(plain.mean, rel=1e-3)
    assert again.spread == pytest.approx(plain.spread, rel=1e-3)
    assert not plain.notes
    assert plain.doubtful == again.doubtful == ()
    none = wells.of(drawn=["k"], relinearize=wells.relinearize, always=False)
    assert none.method == "quadratic"
    shared = wells.of(drawn=(), shared=["k"])
    assert any("linearize the wells anew" in note for note in shared.notes)
    assert len(shared.doubtful) > 10
    needed = wells.of(drawn=(), shared=["k"], relinearize=wells.relinearize, always=False)
    want = wells.of(drawn=(), shared=["k"], relinearize=wells.relinearize)
    assert needed.method == "relinearized"
    assert needed.mean == pytest.approx(want.mean)
    assert (needed.notes, needed.doubtful) == (want.notes, ())

    def gone(unit: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        raise InputError("no such file", "A01.csv")

    left = wells.of(drawn=(), shared=["k"], relinearize=gone, always=False)
    assert left.method == "quadratic"
    assert any("could not be linearized anew: A01.csv: no such file" in n for n in left.notes)


def recorded_wells(
    folder: Path, rates: np.ndarray, noise: float = 20.0
) -> tuple[FitPlan, list[Problem]]:
    """Cells of the little model, each with its own rate and conductance."""
    plan = uncertain.loaded(folder)
    problem = plan.problem
    random = np.random.default_rng(0)
    scorer = make_scorer(problem, "cpu")
    (experiment,) = problem.experiments
    wells = []
    for rate in rates:
        values = problem.values()
        values[0], values[3] = rate, random.uniform(5, 20)
        (current,) = scorer.simulate(values[:, None])
        data = current[:, :, 0] + noise * random.normal(size=current.shape[:2])
        recording = Recording.from_arrays(experiment.protocol, data)
        wells.append(replace(problem, experiments=(replace(experiment, recording=recording),)))
    return plan, wells


def test_shared_kinetics_are_those_of_a_fit_with_a_conductance_per_cell(tmp_path: Path) -> None:
    """The other way to the same numbers: one problem with a parameter for each cell."""
    plan, wells = recorded_wells(tmp_path, np.full(4, 0.1), 40.0)
    fits = fit_wells(plan, wells, SearchSettings(backend="cpu"))
    again = linearizer(plan, wells, fits, usable(fits), "cpu")
    cost, gradient, information = again(fits.unit)
    assert information == pytest.approx(fits.information, rel=1e-9)
    step = 1e-5 * np.array([1.0, -1.0, 0.5, 0.2])
    rise = again(fits.unit + step)[0] - again(fits.unit - step)[0]
    beside = again(fits.unit + 100 * step)
    assert rise == pytest.approx(2 * gradient @ step, abs=1e-6)
    bent = 0.5 * 1e4 * np.einsum("i,wij,j->w", step, information, step)
    assert beside[0] - cost == pytest.approx(bent, rel=0.05)
    kinetics = kinetic_names(plan.problem)
    assert kinetics == ("a", "z", "b")
    got = population(fits, (), kinetics, relinearize=again, parameters=plan.problem.parameters)
    model = uncertain.MODEL["parameters"] | {
        "g": uncertain.MODEL["parameters"]["g"] | {"per": "cell"}
    }
    whole = Problem(
        build_model(uncertain.MODEL | {"parameters": model}, None),
        tuple(replace(w.experiments[0], cell=f"cell {k}") for k, w in enumerate(wells)),
    )
    objective = Objective(SearchSpace(whole.parameters), make_scorer(whole, "cpu"))
    start = np.r_[fits.unit[0, :3], fits.unit[:, 3]]
    best = refine(objective, start[:, None])
    sure = estimate(objective, best.unit[:, 0], n_scored(whole))
    want = dict(zip(sure.names, objective.physical(best.unit)[:, 0], strict=True))
    assert isinstance(objective.scorer, GroupedScorer)
    assert got.mean == pytest.approx([want[name] for name in kinetics], rel=2e-3)
    own = [want[f"g[cell {k}]"] for k in range(4)]
    assert got.cells[:, 3] == pytest.approx(own, rel=2e-3)
    lower, upper = sure.interval()
    assert got.upper - got.lower == pytest.approx((upper - lower)[:3], rel=0.1)


def test_the_wells_of_a_batch_are_read_again_to_linearize_them(tmp_path: Path) -> None:
    """From files on the disk: the numbers of the batch, and those of its problems."""
    _, wells = recorded_wells(tmp_path, 0.1 * np.exp([-0.3, 0.2, 0.0, 0.4, -0.2, 0.1]))
    for k, well in enumerate(wells):
        recording = well.experiments[0].recording
        assert recording is not None
        names = ",".join(f"sweep {s}" for s in range(len(recording.current_pA)))
        rows = recording.current_pA.T
        np.savetxt(tmp_path / f"A{k + 1:02}.csv", rows, delimiter=",", header=names, comments="")
    current = {"columns": "all", "unit": "pA"}
    data = {"file": "any.csv", "sampling": "0.5 ms", "current": current}
    experiment = {"protocol": "steps.yaml", "recording": data}
    fit = {"model": "little.yaml", "fit": {"experiments": [experiment]}}
    (tmp_path / "fit.yaml").write_text(dump_yaml(fit))
    (tmp_path / "little.yaml").write_text(dump_yaml(uncertain.MODEL))
    made = ready(BatchRequest(tmp_path / "fit.yaml", (str(tmp_path / "A*.csv"),)))
    work = made.work
    problems = Problems(work, made.recordings)
    assert len(problems) == 6
    fits = fit_wells(work.plan, problems, SearchSettings(backend="cpu"))
    again = linearizer(work.plan, problems, fits, usable(fits), "cpu")
    parameters = work.plan.problem.parameters
    got = population(fits, ["a"], ["z", "b"], again, parameters=parameters)
    assert got.cells[:, 0] == pytest.approx(0.1 * np.exp([-0.3, 0.2, 0.0, 0.4, -0.2, 0.1]), rel=0.1)
    assert got.mean[1:] == pytest.approx([0.03, 0.05], rel=0.05)
    assert got.method == "relinearized"
