"""Standard errors, intervals, correlations, and parameters that are not identifiable.

Near its minimum the cost is a parabola. Its Gauss-Newton Hessian, compared with the noise of the
data, says how far each parameter can move before the fit becomes visibly worse:

    information = n_samples / (2 sigma^2) * Hessian,     covariance = information^-1

with sigma^2 the noise variance of a sample of average weight, from the residuals. Weights are taken
as inverse variances up to a factor. If residuals are correlated, their spectrum is included: see
`noise_spectrum`. Far from the minimum the cost is no parabola: see `profiles` and `posterior`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit.model.graphs import components
from channelfit.reading.errors import InputError
from channelfit.results.uncertainty.noise_spectrum import NoiseSpectrum
from channelfit.scoring.machine.arrays import to_host
from channelfit.search.objective import Local, Objective
from channelfit.search.points_around import scaled_eigen

if TYPE_CHECKING:
    from channelfit.problem.experiment import Problem

LEVEL = 0.95
#: A combination of parameters is not identifiable if its standard deviation is above this share of
#: the values themselves, or of half their ranges where that is less.
UNIDENTIFIABLE = 0.5
#: The assumed noise of data that were simulated without noise, as a share of the largest current.
ASSUMED_NOISE = 0.01

#: The least eigenvalue that counts, of a Hessian scaled to a diagonal of ones.
_FLOOR = 1e-14
#: The least scale of a parameter, as a share of its range, however small its value is.
_SMALLEST_SCALE = 1e-3
#: A parameter is named if more than this share of its direction is not identifiable.
_PART = 0.05
#: Parameters are named together if their directions have at least this much in common.
_LINK = 0.1
#: A coordinate nearer to a bound than this share of its range is at the bound.
_EDGE = 1e-9


@dataclass(frozen=True)
class Combination:
    """Parameters that are not identifiable, or only in some combination.

    Attributes:
        names: of the parameters, in the model's order.
        n_open: the number of their directions that are not identifiable, at most that of the names.
        text: the same in a sentence.
    """

    names: tuple[str, ...]
    n_open: int
    text: str


@dataclass(frozen=True, eq=False)
class Estimate:
    """The point where a fit ended, and how well the data determine it.

    Attributes:
        objective: the cost that was minimized.
        unit: (n_free,) the point in the unit cube; a coordinate is linear in the value of its
            parameter, or in its logarithm.
        cost: pA^2.
        covariance: (n_free, n_free) of unit coordinates, for the spectrum of the residuals; 0 for
            a parameter that the data push against a bound.
        information: (n_free, n_free) the second derivative of minus the logarithm of the
            likelihood; where no parameter is at a bound, the inverse of the covariance.
        pushed: (n_free,) -1 or 1 for a parameter pushed against its lower or upper bound, else 0.
        sigma_pA: standard deviation of the noise of a sample of average weight.
        assumed: whether sigma_pA was given, not estimated from the residuals.
        n_samples: samples that count in the cost.
        spectrum: of the residuals; None if they look independent of each other.
        inverse: (n_free, n_free) of the Gauss-Newton Hessian of the cost; 0 for a parameter at a
            bound.
        distance: to the minimum of the parabola, in standard errors of the worst direction.
    """

    objective: Objective
    unit: np.ndarray
    cost: float
    covariance: np.ndarray
    information: np.ndarray
    pushed: np.ndarray
    sigma_pA: float
    assumed: bool
    n_samples: int
    spectrum: NoiseSpectrum | None
    inverse: np.ndarray
    distance: float

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the free parameters."""
        parameters = self.objective.space.parameters
        return tuple(parameters[i].name for i in self.objective.space.free)

    @cached_property
    def widened(self) -> np.ndarray:
        """Standard errors (n_free,) as multiples of those for independent residuals of one size.

        They are 1 for a parameter at a bound.
        """
        alone = self.sigma_pA * np.sqrt(2 * np.diag(self.inverse) / self.n_samples)
        both = np.sqrt(np.diag(self.covariance)), alone
        return np.divide(*both, out=np.ones(len(alone)), where=alone > 0)

    @property
    def correlation_time(self) -> float:
        """Variances as multiples of those for independent residuals: the geometric mean over the
        parameters.
        """
        inside = self.pushed == 0
        return float(np.exp(2 * np.log(self.widened[inside]).mean())) if inside.any() else 1.0

    @cached_property
    def freedoms(self) -> np.ndarray:
        """Degrees of freedom of the variance of each parameter (n_free,); inf for known noise."""
        return np.array([self.freedom(row) for row in np.eye(len(self.unit))])

    @property
    def degrees_of_freedom(self) -> float:
        """The fewest degrees of freedom of any parameter; inf for known noise."""
        return float(self.freedoms.min())

    def freedom(self, direction: np.ndarray) -> float:
        """Return degrees of freedom of the variance of a combination (n_free,) of coordinates."""
        if self.assumed:
            return math.inf
        most = float(self.n_samples - len(self.unit))
        if self.spectrum is not None:
            most = min(most, self.spectrum.freedom(self.inverse @ direction))
        return max(most, 1.0)

    @cached_property
    def errors(self) -> np.ndarray:
        """Standard errors (n_free,) of unit coordinates; NaN for a parameter at a bound."""
        errors = np.sqrt(np.diag(self.covariance))
        errors[self.pushed != 0] = np.nan
        return errors

    @cached_property
    def physical_errors(self) -> np.ndarray:
        """Standard errors (n_parameters,), base units, to first order.

        They are 0 for fixed parameters and NaN for a parameter at a bound.
        """
        slopes = self._slopes()
        errors: np.ndarray = np.sqrt(np.einsum("pi,ij,pj->p", slopes, self.covariance, slopes))
        errors[[self.objective.space.free[i] for i in np.flatnonzero(self.pushed)]] = np.nan
        return errors

    def interval(self, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper ends (n_free,), base units, of the interval of every free
        parameter.

        Intervals are symmetric about the value, in the logarithm for a log scale, and cut off at
        the range. They are NaN for a parameter at a bound.

        Arguments:
            level: the probability that an interval holds the true value.
        """
        reach = quantile(level, self.freedoms) * self.errors
        ends = np.stack([self.unit - reach, self.unit + reach], axis=1)
        free = list(self.objective.space.free)
        columns = np.repeat(self.unit[:, None], ends.size, axis=1)
        for i, pair in enumerate(ends):
            columns[i, 2 * i : 2 * i + 2] = np.clip(pair, 0.0, 1.0)
        physical = self.objective.physical(np.where(np.isnan(columns), 0.0, columns))[free]
        found = np.array([physical[i, 2 * i : 2 * i + 2] for i in range(len(free))])
        found[np.isnan(ends)] = np.nan
        return found[:, 0], found[:, 1]

    @cached_property
    def correlations(self) -> np.ndarray:
        """Correlations (n_free, n_free); NaN in rows and columns of a parameter at a bound."""
        found: np.ndarray = self.covariance / np.outer(self.errors, self.errors)
        return found

    def chi_square(self, cost: Any, place: int | None = None) -> Any:
        """Return how much worse a cost is than that of this fit, in squared standard errors.

        It is twice the loss of log likelihood for known noise, divided by how many times as large
        variances are as for independent residuals.

        Arguments:
            cost: pA^2, a number or an array.
            place: of the parameter that gives the variance; None for the mean of all.
        """
        wide = self.correlation_time if place is None else float(self.widened[place]) ** 2
        scale = self.n_samples / (self.sigma_pA**2 * wide)
        return (cost - self.cost) * scale

    def threshold(self, level: float = LEVEL, n: int = 1, place: int | None = None) -> float:
        """Return the limit under which `chi_square` stays with a probability, for n parameters at
        once, or for the one at a place.

        It comes from Fisher's F distribution, exact where the current is linear in the parameters.
        """
        from scipy import special  # loads slowly, and few fits need it

        freedom = self.degrees_of_freedom if place is None else float(self.freedoms[place])
        if math.isinf(freedom):
            return float(2 * special.gammaincinv(n / 2, level))
        return float(n * special.fdtri(n, freedom, level))

    def around(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return points a little below and above in each coordinate, and the distances of the two.

        They serve derivatives by differences and lie inside the cube: (n_free, n_free), (n_free,
        n_free) and (n_free,).
        """
        step = 1e-6 * np.eye(len(self.unit))
        below = np.clip(self.unit[:, None] - step, 0.0, 1.0)
        above = np.clip(self.unit[:, None] + step, 0.0, 1.0)
        return below, above, np.diag(above - below)

    def _slopes(self) -> np.ndarray:
        """Return derivatives (n_parameters, n_free) of the parameters by unit coordinates."""
        below, above, apart = self.around()
        change = self.objective.physical(above) - self.objective.physical(below)
        slopes: np.ndarray = change / apart
        return slopes


def estimate(
    objective: Objective,
    unit: np.ndarray,
    n_samples: int,
    spectrum: NoiseSpectrum | None = None,
    sigma_pA: float | None = None,
    local: Local | None = None,
) -> Estimate:
    """Estimate how well the data determine the free parameters at a point.

    Arguments:
        unit: (n_free,), in the unit cube; the minimum of the cost, or near it.
        n_samples: samples that count in the cost; see `experiment.n_scored`.
        spectrum: of the residuals; None for independent ones.
        sigma_pA: noise of a sample of average weight; None to estimate it from the residuals.
        local: cost and derivatives at the point; None to compute them.

    Raises InputError: the point cannot be scored, or there are no more samples than parameters.
    """
    unit = np.asarray(unit, dtype=float)
    if n_samples <= len(unit):
        raise InputError(
            f"{n_samples} samples cannot say how sure {len(unit)} parameters are; "
            "record more, or fix some"
        )
    local = objective.linearize(unit[:, None]) if local is None else local
    cost = float(to_host(local.cost)[0])
    if not math.isfinite(cost):
        raise InputError(
            "the fitted values cannot be scored, so their standard errors are not known"
        )
    gradient, hessian = to_host(local.gradient)[:, 0], to_host(local.hessian)[:, :, 0]
    pushed = _pushed(unit, gradient)
    inside = pushed == 0
    variance = sigma_pA**2 if sigma_pA is not None else cost * n_samples / (n_samples - len(unit))
    inverse = np.zeros_like(hessian)
    root = _roots(hessian[np.ix_(inside, inside)])[0]
    inverse[np.ix_(inside, inside)] = root @ root.T
    covariance, information = inverse, hessian
    if spectrum is not None:
        covariance = np.zeros_like(hessian)
        covariance[np.ix_(inside, inside)] = root @ spectrum.factors(root, inside) @ root.T
        outward, inward = _roots(hessian)
        information = inward.T @ np.linalg.inv(spectrum.factors(outward)) @ inward
    scale = 2 * variance / n_samples
    step = inverse @ gradient
    with np.errstate(over="ignore"):  # of a nearly flat cost it is beyond all numbers
        gain = float(step @ information @ step)
    return Estimate(
        objective,
        unit,
        cost,
        scale * covariance,
        information / scale if scale > 0 else np.zeros_like(information),
        pushed,
        math.sqrt(variance),
        sigma_pA is not None,
        n_samples,
        spectrum,
        inverse,
        math.sqrt(max(gain, 0.0) / scale) if scale > 0 else 0.0,
    )


def quantile(level: float, degrees_of_freedom: Any) -> Any:
    """Return the standard errors to either side that hold a share of Student's distribution.

    Every fit needs them, and SciPy's, which agree to twelve digits, load slowly.

    Arguments:
        degrees_of_freedom: a number or an array of 1 or more; inf for the normal distribution.
    """
    freedom = np.asarray(degrees_of_freedom, float)
    found = np.array([_student(level, one) for one in freedom.ravel().tolist()])
    return found.reshape(freedom.shape)[()]


@cache
def _student(level: float, freedom: float) -> float:
    """Return the t with this probability of |T| < t, by Newton's method for its angle.

    With t = sqrt(f) tan(a) the density of T becomes cos(a)^(f - 1) over a constant.
    """
    freedom = min(freedom, 1e18)  # from here on it is normal to the last digit
    nodes, weights = _nodes()
    area = level * math.sqrt(math.pi) / 2 / _gamma_ratio(freedom)
    angle = area  # below the root, and Newton's steps do not pass it
    for _ in range(100):
        density = np.exp((freedom - 1) / 2 * np.log1p(-(np.sin(angle / 2 * (1 + nodes)) ** 2)))
        excess = angle / 2 * float(weights @ density) - area
        step = excess / math.exp((freedom - 1) / 2 * math.log1p(-(math.sin(angle) ** 2)))
        angle -= step
        if abs(step) <= 1e-15 * angle:
            break
    return math.sqrt(freedom) * math.tan(angle)


@cache
def _nodes() -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of Gauss and Legendre, enough for one degree of freedom."""
    return np.polynomial.legendre.leggauss(96)


def _gamma_ratio(freedom: float) -> float:
    """Return gamma((f + 1)/2) / gamma(f/2)."""
    if freedom < 300:
        return math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2)
    series = 0.0
    for term in (-399 / 8192, -21 / 2048, 5 / 128, 1 / 32, -1 / 4, 1.0):  # Tricomi and Erdelyi 1951
        series = series / freedom + term
    return math.sqrt(freedom / 2) * series


def _pushed(unit: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Return the bounds (n_free,) that prevent a lower cost: -1 lower, 1 upper, 0 none."""
    low = (unit <= _EDGE) & (gradient >= 0)
    high = (unit >= 1 - _EDGE) & (gradient <= 0)
    pushed: np.ndarray = high.astype(int) - low.astype(int)
    return pushed


def _roots(hessian: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return roots of the inverse of a positive semidefinite matrix, and of the matrix itself.

    The first times its transpose is the inverse, in which flat directions get a huge variance; the
    transpose of the second times it is the matrix. The matrix is scaled to a diagonal of ones
    first, so that this limit does not depend on the units.
    """
    scale, values, vectors = scaled_eigen(hessian)
    outward = scale[:, None] * (vectors / np.sqrt(np.maximum(values, _FLOOR)))
    inward = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T / scale
    return outward, inward


# --- the residuals -------------------------------------------------------------------------------


def peak_pA(problem: Problem) -> float:
    """Return the largest recorded current that contributes to the cost, in size, pA."""
    return max(
        float(np.abs(e.recording.current_pA[e.recording.weight > 0]).max(initial=0.0))
        for e in problem.experiments
        if e.recording is not None and e.weight > 0
    )


# --- in words ------------------------------------------------------------------------------------


def undetermined(found: Estimate) -> list[Combination]:
    """Find the parameters that are not identifiable, and the combinations that are."""
    scales, signed = _scales(found)
    inside = np.flatnonzero(found.pushed == 0)
    if not inside.size:
        return []
    covariance = (found.covariance / np.outer(scales, scales))[np.ix_(inside, inside)]
    values, vectors = np.linalg.eigh(covariance)
    spread = vectors[:, values > UNIDENTIFIABLE**2]
    part = spread @ spread.T
    named = np.diag(part) > _PART
    links = (np.abs(part) > _LINK) & np.outer(named, named)
    label = components(links)
    combinations = []
    for group in range(label.max() + 1):
        members = np.flatnonzero((label == group) & named)
        if not members.size:
            continue
        n_open = min(max(round(float(np.trace(part[np.ix_(members, members)]))), 1), len(members))
        loosest = np.linalg.eigh(covariance[np.ix_(members, members)])[1][:, -1]
        places = inside[members]
        combinations.append(_combination(found, places, n_open, loosest * scales[places], signed))
    return combinations


def _scales(found: Estimate) -> tuple[np.ndarray, np.ndarray]:
    """Return the scale of each parameter, and whether 0 lies inside its range.

    The scale, in unit coordinates, is its value, or half its range where that is less or the range
    goes through 0; for a log scale it is a factor of e.
    """
    space = found.objective.space
    scales, signed = [], []
    values = found.objective.physical(found.unit[:, None])[:, 0]
    for place in space.free:
        parameter = space.parameters[place]
        width = parameter.upper - parameter.lower
        through_zero = parameter.lower < 0 < parameter.upper
        if width == 0:
            share = 0.5
        elif parameter.scale == "log":
            share = 1 / math.log(parameter.upper / parameter.lower)
        else:
            share = 0.5 if through_zero else abs(float(values[place])) / width
        scales.append(min(max(share, _SMALLEST_SCALE), 0.5))
        signed.append(through_zero)
    return np.array(scales), np.array(signed)


def _combination(
    found: Estimate, places: np.ndarray, n_open: int, direction: np.ndarray, signed: np.ndarray
) -> Combination:
    """Describe some parameters; `direction` has the largest variance, in unit coordinates."""
    names = tuple(found.names[i] for i in places)
    if len(names) == 1:
        text = f"{names[0]} is not determined: the current hardly depends on it"
    elif n_open == len(names):
        text = f"the data determine neither {_listed(names)} nor any combination of them"
    else:
        kept = len(names) - n_open
        how = "one combination" if kept == 1 else f"{kept} combinations"
        if len(names) == 2:
            how = _product_or_ratio(found, places, direction, signed) or how
        steps = _steps(found, places, direction)
        through = f"{_listed(names)} are determined only through {how}"
        text = f"{through}: the fit stays the same with {steps}"
    return Combination(names, n_open, text)


def _product_or_ratio(
    found: Estimate, places: np.ndarray, direction: np.ndarray, signed: np.ndarray
) -> str | None:
    """Return which of the two is constant along a direction of two parameters; None for neither."""
    if signed[places].any():
        return None
    change = _changes(found, places, direction)[1]
    if not (np.isfinite(change).all() and change.all()):
        return None
    ratio = change[0] / change[1]
    if abs(ratio + 1) < 0.1:
        return "their product"
    return "their ratio" if abs(ratio - 1) < 0.1 else None


def _changes(
    found: Estimate, places: np.ndarray, direction: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the changes of parameters along a direction, the same as shares, and their values."""
    rows = [found.objective.space.free[i] for i in places]
    values = found.objective.physical(found.unit[:, None])[rows, 0]
    change = found._slopes()[rows, places] * direction
    with np.errstate(divide="ignore", invalid="ignore"):
        return change, change / values, values


def _steps(found: Estimate, places: np.ndarray, direction: np.ndarray) -> str:
    """Describe a small move along a direction: "a up by 10 %, b down by 9.1 %".

    The move changes the parameter that changes most by a tenth.
    """
    change, relative, values = _changes(found, places, direction)
    finite = np.where(np.isfinite(relative), np.abs(relative), 0.0)
    lead = int(np.argmax(finite))
    factor = 0.1 / relative[lead] if finite[lead] > 0 else 0.1
    words = []
    for k, place in enumerate(places):
        parameter = found.objective.space.parameters[found.objective.space.free[place]]
        step = factor * change[k]
        way = "up" if step > 0 else "down"
        through_zero = parameter.lower < 0 < parameter.upper or values[k] == 0
        amount = (
            f"{abs(step):.2g} {parameter.unit}".rstrip()
            if through_zero
            else f"{100 * abs(step / values[k]):.2g} %"
        )
        words.append(f"{parameter.name} {way} by {amount}")
    return ", ".join(words)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
