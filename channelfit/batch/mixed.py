"""Numbers that differ from well to well by more than their errors: a normal population of them.

To second order, the evidence of well i about its parameters x is ``seen_i = root_i x`` up to
independent noise of variance 1; ``root_i' root_i`` is its information matrix. Directions that a
well does not determine have no row, so they have no weight. Of x, the first ``n_drawn`` are drawn
from a normal distribution with covariance ``factor factor'``, and the rest is shared by all wells:

    seen_i = root_i (mean + (factor z_i, 0)) + noise,        z_i ~ N(0, 1)

The restricted likelihood (Patterson and Thompson 1971, Biometrika 58:545) is maximized over the
factor, with exact derivatives; the mean follows by generalized least squares. Intervals of the
mean are Student's with the degrees of freedom of Satterthwaite (Fai and Cornelius 1996, J Stat
Comput Simul 54:363). Those of a spread come from the profile of the restricted likelihood, with the
threshold that is exact for as many wells without errors of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

Array = np.ndarray

#: The probability that an interval holds the true number.
LEVEL = 0.95
#: So many standard deviations to either side hold it, where a normal distribution does.
TWO_SIDED = 1.959963984540054
#: Eigenvalues of an information matrix below this share of the largest are nothing.
_NOTHING = 1e-14
#: A spread above so many ranges of its parameter is not determined.
_WIDEST = 10.0
#: From so many degrees of freedom on, the profile of a spread is a parabola in its logarithm.
_MANY = 100.0
#: Spreads below this share of the scatter of the wells are 0.
_NO_SPREAD = 1e-4
_ITERATIONS, _TOLERANCE = 500, 1e-9
#: Entries of a factor are at most so many times the scatter of the wells. A line search that tries
#: more finds covariances that rounding makes singular.
_FARTHEST = 1e5


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence of wells about their parameters.

    Attributes:
        root: (n_wells, n_rows, n).
        seen: (n_wells, n_rows).
    """

    root: Array
    seen: Array

    @classmethod
    def of(cls, weighted: Array, information: Array) -> Evidence:
        """Return the evidence from ``-log likelihood = x' information x / 2 - weighted' x``.

        Arguments:
            weighted: (n_wells, n), the information times the optimum of each well.
            information: (n_wells, n, n), symmetric; negative eigenvalues count as 0.
        """
        scale, values, vectors, good = _scaled_eigh(information)
        size = np.sqrt(np.where(good, values, 1.0))
        rows = np.swapaxes(vectors, 1, 2)
        root = np.where(good[:, :, None], size[:, :, None] * rows, 0.0) / scale[:, None, :]
        seen = np.einsum("wri,wi->wr", rows, weighted * scale) / size
        return cls(root, np.where(good, seen, 0.0))

    def __len__(self) -> int:
        return len(self.root)

    def take(self, which: Array) -> Evidence:
        """Return the evidence of some wells, by index or mask."""
        return Evidence(self.root[which], self.seen[which])

    @cached_property
    def best(self) -> tuple[Array, Array]:
        """Each well's best parameters and their variances, both (n_wells, n).

        Both are 0 for a parameter of which a well has no evidence.
        """
        inverse = pseudo_inverse(np.swapaxes(self.root, 1, 2) @ self.root)
        pull = np.einsum("wri,wr->wi", self.root, self.seen)
        return np.einsum("wij,wj->wi", inverse, pull), np.einsum("wii->wi", inverse)


def eliminated(weighted: Array, information: Array, keep: list[int]) -> tuple[Array, Array]:
    """Return the evidence about some parameters when all others have each well's best values.

    Arguments:
        weighted, information: as for `Evidence.of`.
        keep: the places of the parameters that stay, in their new order.

    Returns: (n_wells, n_keep) and (n_wells, n_keep, n_keep): Schur complements.
    """
    others = [k for k in range(weighted.shape[1]) if k not in keep]
    own, mixed = information[:, others][:, :, others], information[:, keep][:, :, others]
    share = mixed @ pseudo_inverse(own)
    slope = weighted[:, keep] - np.einsum("wko,wo->wk", share, weighted[:, others])
    bend = information[:, keep][:, :, keep] - share @ np.swapaxes(mixed, 1, 2)
    return slope, (bend + np.swapaxes(bend, 1, 2)) / 2


def pseudo_inverse(matrices: Array) -> Array:
    """Return inverses of symmetric matrices (n, k, k), 0 in directions in which a matrix is 0."""
    scale, values, vectors, good = _scaled_eigh(matrices)
    inverse = np.where(good, 1 / np.where(good, values, 1.0), 0.0)
    product = (vectors * inverse[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    found: Array = product * scale[:, :, None] * scale[:, None, :]
    return found


def _scaled_eigh(matrices: Array) -> tuple[Array, Array, Array, Array]:
    """Return the eigenvalues of symmetric matrices (n, k, k) scaled to a diagonal of ones.

    Returns: the scales (n, k), eigenvalues (n, k), eigenvectors (n, k, k), and which eigenvalues
    are above rounding (n, k).
    """
    scale = 1 / np.sqrt(np.maximum(np.einsum("wii->wi", matrices), 1e-300))
    values, vectors = np.linalg.eigh(matrices * scale[:, :, None] * scale[:, None, :])
    return scale, values, vectors, values > _NOTHING * np.maximum(values[:, -1:], 1e-300)


@dataclass(frozen=True, eq=False)
class Likelihood:
    """The restricted likelihood of a factor, and its parts; see `Mixed.at`.

    Attributes:
        factor: (n_drawn, n_drawn).
        weights: (n_wells, n_rows, n_rows), inverse covariances of `Evidence.seen`.
        precision: (n, n), inverse covariance of the mean.
        mean: (n,).
        value: the logarithm of the restricted likelihood.
        slope: (n_drawn, n_drawn), its derivatives by the factor.
    """

    factor: Array
    weights: Array
    precision: Array
    mean: Array
    value: float
    slope: Array


@dataclass(frozen=True, eq=False)
class Mixed:
    """Wells, and which of their parameters are drawn.

    Attributes:
        evidence: of the wells, the drawn parameters first.
        n_drawn: the number of these; the others are shared.
        correlated: whether the drawn parameters may be correlated.
        ridge: (n,) inverse variances of a belief about the mean, about `center` (n,): 0 where the
            wells determine it.
    """

    evidence: Evidence
    n_drawn: int
    correlated: bool
    ridge: Array
    center: Array

    def at(self, factor: Array) -> Likelihood:
        """Return the restricted likelihood of a factor (n_drawn, n_drawn), at the best mean."""
        root, seen = self.evidence.root, self.evidence.seen
        drawn = root[:, :, : self.n_drawn]
        tall = drawn @ factor
        covariance = tall @ np.swapaxes(tall, 1, 2) + np.eye(root.shape[1])
        lower = np.linalg.cholesky(covariance)
        weights = np.linalg.inv(covariance)
        toward = np.swapaxes(root, 1, 2) @ weights
        each = toward @ root
        precision = each.sum(axis=0) + np.diag(self.ridge)
        mean = np.linalg.solve(
            precision, np.einsum("wir,wr->i", toward, seen) + self.ridge * self.center
        )
        rest = seen - root @ mean
        pulled = np.einsum("wrs,ws->wr", weights, rest)
        off = mean - self.center
        value = -0.5 * float(
            2 * np.log(np.einsum("wii->wi", lower)).sum()
            + np.einsum("wr,wr->", rest, pulled)
            + np.linalg.slogdet(precision)[1]
            + self.ridge @ off**2
        )
        part = each[:, : self.n_drawn]
        pull = np.einsum("wri,wr->wi", drawn, pulled)
        by_covariance = pull.T @ pull - part[:, :, : self.n_drawn].sum(axis=0)
        by_covariance += (part @ np.linalg.solve(precision, np.swapaxes(part, 1, 2))).sum(axis=0)
        return Likelihood(factor, weights, precision, mean, value, by_covariance @ factor)

    @cached_property
    def scatter(self) -> Array:
        """A typical size (n_drawn,) of each drawn parameter's differences between wells."""
        best, variance = self.evidence.best
        found = np.empty(self.n_drawn)
        for j in range(self.n_drawn):
            known = variance[:, j] > 0
            values = best[known, j]
            spread = float(np.std(values)) if len(values) > 1 else 0.0
            error = float(np.sqrt(np.median(variance[known, j]))) if known.any() else 1.0
            found[j] = min(max(spread, 0.1 * error, 1e-12), 1.0)
        return found

    def _order(self, held: int | None) -> Array:
        """Return the drawn parameters in the order in which the factor is triangular."""
        order = np.arange(self.n_drawn)
        return order if held is None else np.concatenate([[held], np.delete(order, held)])

    def _free(self, held: int | None) -> tuple[Array, Array]:
        """Return rows and columns of the entries of the factor that are varied.

        The factor is triangular in an order in which the held parameter is the first, so that its
        spread is one entry.
        """
        order, nd = self._order(held), self.n_drawn
        rows, columns = np.tril_indices(nd) if self.correlated else (np.arange(nd),) * 2
        first = 0 if held is None else 1
        return order[rows[first:]], order[columns[first:]]

    def maximize(self, start: Array, held: int | None = None, spread: float = 0.0) -> Likelihood:
        """Find the factor of the largest restricted likelihood.

        Arguments:
            start: (n_drawn, n_drawn), any factor to begin with.
            held: a drawn parameter with a fixed spread. spread: its value.
        """
        from scipy.optimize import minimize  # loads slowly; most commands do without it

        size = self.scatter
        rows, columns = self._free(held)
        fixed = np.zeros((self.n_drawn, self.n_drawn))
        if held is not None:
            fixed[held, held] = spread
        first = self._triangular(start, held)

        def full(entries: Array) -> Array:
            factor = fixed.copy()
            factor[rows, columns] = entries * size[rows]
            return factor

        def loss(entries: Array) -> tuple[float, Array]:
            likelihood = self.at(full(entries))
            return -likelihood.value, -likelihood.slope[rows, columns] * size[rows]

        if not len(rows):
            return self.at(fixed)
        options: Any = {
            "maxiter": _ITERATIONS,
            "ftol": 1e-15,
            "gtol": _TOLERANCE * len(self.evidence),
        }
        begin = first[rows, columns] / size[rows]
        bounds = [(-_FARTHEST, _FARTHEST)] * len(begin)
        found = minimize(loss, begin, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return self.at(full(found.x))

    def _triangular(self, factor: Array, held: int | None) -> Array:
        """Return a factor of the same covariance that is triangular in the order of `_order`."""
        if not self.correlated:
            return np.diag(np.sqrt((factor**2).sum(axis=1)))
        order, found = self._order(held), np.zeros_like(factor)
        lower = np.linalg.qr(factor[order].T)[1].T
        found[np.ix_(order, order)] = lower * np.where(np.diag(lower) < 0, -1.0, 1.0)
        return found

    def best(self) -> Likelihood:
        """Find the factor of the largest restricted likelihood, from a wide and a narrow start."""
        if not self.n_drawn:
            return self.at(np.zeros((0, 0)))
        starts = [self.maximize(share * np.diag(self.scatter)) for share in (1.0, 0.1)]
        return max(starts, key=lambda likelihood: likelihood.value)


@dataclass(frozen=True, eq=False)
class Level:
    """The fitted population, in the coordinates of the evidence.

    Attributes:
        mixed: the model that was fitted.
        likelihood: at the best factor.
    """

    mixed: Mixed
    likelihood: Likelihood

    @classmethod
    def of(cls, mixed: Mixed) -> Level:
        """Fit the population of the largest restricted likelihood."""
        return cls(mixed, mixed.best())

    @property
    def mean(self) -> Array:
        """(n,), those of the drawn parameters and the values of the shared ones."""
        return self.likelihood.mean

    @cached_property
    def covariance(self) -> Array:
        """(n_drawn, n_drawn), of the population."""
        found: Array = self.likelihood.factor @ self.likelihood.factor.T
        return found

    @cached_property
    def mean_covariance(self) -> Array:
        """(n, n), of the errors of the mean."""
        found: Array = np.linalg.inv(self.likelihood.precision)
        return found

    @cached_property
    def spread(self) -> Array:
        """Standard deviations (n_drawn,) of the population; 0 for spreads within rounding."""
        found = np.sqrt(np.diag(self.covariance))
        found = np.where(found > _NO_SPREAD * self.mixed.scatter, found, 0.0)
        return np.asarray(found)

    @cached_property
    def correlation(self) -> Array:
        """(n_drawn, n_drawn); NaN for a parameter without spread, and where none are fitted."""
        size = np.where(self.spread > 0, self.spread, np.nan)
        found: Array = np.clip(self.covariance / np.outer(size, size), -1.0, 1.0)
        if not self.mixed.correlated:
            found[~np.eye(len(found), dtype=bool)] = np.nan
        np.fill_diagonal(found, np.where(np.isnan(size), np.nan, 1.0))
        return found

    @cached_property
    def _entries(self) -> tuple[Array, Array, Array]:
        """The varied entries of the covariance, how the precision of the mean depends on them, and
        the covariance of their errors.

        Returns: places (n_entries, 2), slopes (n_entries, n, n), errors (n_entries, n_entries).
        """
        nd = self.mixed.n_drawn
        rows, columns = np.tril_indices(nd) if self.mixed.correlated else (np.arange(nd),) * 2
        root = self.mixed.evidence.root
        each = np.swapaxes(root, 1, 2) @ self.likelihood.weights @ root
        inner, tall = each[:, :nd, :nd], each[:, :, :nd]
        inverse = self.mean_covariance
        behind = np.swapaxes(tall, 1, 2) @ inverse @ tall
        # sums over wells of products that all pairs of entries share
        straight = np.einsum("wab,wcd->abcd", inner, inner, optimize=True)
        crossed = np.einsum("wab,wcd->abcd", inner, behind, optimize=True)
        bent = np.einsum("wia,wbj->iabj", tall, np.swapaxes(tall, 1, 2), optimize=True)
        units = np.zeros((len(rows), nd, nd))
        units[np.arange(len(rows)), rows, columns] = 1.0
        units[np.arange(len(rows)), columns, rows] = 1.0
        slopes = np.einsum("eab,iabj->eij", units, bent, optimize=True)
        # 1/2 tr(P D_a P D_b) of the projection P of the restricted likelihood
        information = np.einsum("eab,bcda,fcd->ef", units, straight, units, optimize=True)
        information -= 2 * np.einsum("eab,bcda,fcd->ef", units, crossed, units, optimize=True)
        turned = inverse @ slopes
        information += np.einsum("eij,fji->ef", turned, turned)
        information = (information + information.T) / 4
        errors = pseudo_inverse(information[None])[0] if len(rows) else information
        return np.stack([rows, columns], axis=1), slopes, errors

    @cached_property
    def _informs(self) -> Array:
        """True where a well has evidence about a parameter, (n_wells, n)."""
        found: Array = (self.mixed.evidence.root != 0).any(axis=1)
        return found

    @cached_property
    def mean_degrees(self) -> Array:
        """Degrees of freedom (n,) of the errors of the mean; inf where no spread adds to them.

        Where the wells' own errors are as large as the spread, Satterthwaite's are too few, down to
        none; half of those of the wells are the lower limit.
        """
        _, slopes, errors = self._entries
        inverse = self.mean_covariance
        change = np.einsum("ji,eik,kj->je", inverse, slopes, inverse)
        variance = np.einsum("je,ef,jf->j", change, errors, change)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = 2 * np.diag(inverse) ** 2 / variance
        found = np.where(variance > 0, found, np.inf)
        least = np.maximum((self._informs.sum(axis=0) - 1) / 2, 1.0)
        return np.asarray(np.maximum(found, least))

    @cached_property
    def spread_degrees(self) -> Array:
        """Degrees of freedom (n_drawn,) of the spreads, as of a sample's variance."""
        places, _, errors = self._entries
        own = np.flatnonzero(places[:, 0] == places[:, 1])
        variance = np.diag(errors)[own]
        with np.errstate(divide="ignore", invalid="ignore"):
            found = 2 * np.diag(self.covariance) ** 2 / variance
        return np.asarray(np.where(variance > 0, found, 0.0))

    def mean_interval(self) -> tuple[Array, Array]:
        """Return lower and upper ends (n,) of the 95 % intervals of the mean."""
        from scipy import special  # loads slowly; most commands do without it

        reach = special.stdtrit(np.minimum(self.mean_degrees, 1e9), 0.5 + LEVEL / 2)
        reach = reach * np.sqrt(np.diag(self.mean_covariance))
        return self.mean - reach, self.mean + reach

    def spread_interval(self) -> tuple[Array, Array]:
        """Return lower and upper ends (n_drawn,) of the 95 % intervals of the spreads.

        A lower end is 0 where the wells may be all equal, an upper end inf where nothing is known.
        """
        ends = [self._spread_interval(j) for j in range(self.mixed.n_drawn)]
        lower, upper = np.array(ends).reshape(-1, 2).T
        return lower, upper

    def _spread_interval(self, j: int) -> tuple[float, float]:
        n_informing = int(self._informs[:, j].sum())
        if n_informing < 2:
            return 0.0, math.inf
        spread, degrees = float(self.spread[j]), float(self.spread_degrees[j])
        if spread > 0 and degrees > _MANY:
            factor = math.exp(math.sqrt(threshold(math.inf) / (2 * degrees)))
            return spread / factor, spread * factor
        limit = threshold(n_informing - 1.0)

        def beyond(log_spread: float) -> float:
            value = self.mixed.maximize(self.likelihood.factor, j, math.exp(log_spread)).value
            return 2 * (self.likelihood.value - value) - limit

        size = float(self.mixed.scatter[j])
        begin = math.log(spread if spread > 0 else 1e-3 * size)
        upper = _crossing(beyond, begin, 0.3, math.log(_WIDEST))
        least = self.mixed.maximize(self.likelihood.factor, j, 0.0).value
        if not spread or 2 * (self.likelihood.value - least) < limit:
            return 0.0, upper
        return _crossing(beyond, begin, -0.3, math.log(1e-9 * size)), upper

    def correlation_interval(self) -> tuple[Array, Array]:
        """Return both ends of the 95 % intervals of the correlations (Fisher's transformation).

        Its variance is 1/(degrees - 2), where the degrees of freedom are those of the less certain
        of the two spreads.
        """
        correlation = self.correlation
        degrees = np.minimum.outer(self.spread_degrees, self.spread_degrees)
        with np.errstate(divide="ignore", invalid="ignore"):
            reach = TWO_SIDED / np.sqrt(degrees - 2)
            middle = np.arctanh(correlation)
            low, high = np.tanh(middle - reach), np.tanh(middle + reach)
        known = (degrees > 2) & (np.abs(correlation) < 0.999)
        low, high = np.where(known, low, -1.0), np.where(known, high, 1.0)
        outside = np.isnan(correlation) | np.eye(len(correlation), dtype=bool)
        return np.where(outside, correlation, low), np.where(outside, correlation, high)

    def shrunken(self) -> tuple[Array, Array]:
        """Return each well's drawn parameters given the population, and their error covariance.

        The errors hold those of the mean, but not those of the spread.

        Returns: (n_wells, n_drawn) and (n_wells, n_drawn, n_drawn).
        """
        evidence, nd = self.mixed.evidence, self.mixed.n_drawn
        factor = self.likelihood.factor
        tall = evidence.root[:, :, :nd] @ factor
        inner = np.linalg.inv(np.swapaxes(tall, 1, 2) @ tall + np.eye(nd))
        gain = factor @ inner @ np.swapaxes(tall, 1, 2)
        rest = evidence.seen - evidence.root @ self.mean
        values = self.mean[:nd] + np.einsum("wir,wr->wi", gain, rest)
        # the effect of an error of the mean on the estimate
        by_mean = np.eye(nd, len(self.mean)) - gain @ evidence.root
        covariance = factor @ inner @ factor.T
        covariance = covariance + by_mean @ self.mean_covariance @ np.swapaxes(by_mean, 1, 2)
        return values, covariance


def _crossing(beyond: Callable[[float], float], begin: float, step: float, end: float) -> float:
    """Find where a function of a logarithm crosses 0 between `begin` and `end`, as a number.

    Returns: inf or 0 where it does not, by the direction of the search.
    """
    from scipy.optimize import brentq  # loads slowly; most commands do without it

    inside = begin
    while True:
        outside = inside + step
        if (outside - end) * step > 0:
            return math.inf if step > 0 else 0.0
        if beyond(outside) > 0:
            return math.exp(brentq(beyond, inside, outside, xtol=1e-4))
        inside, step = outside, 1.5 * step


@lru_cache
def threshold(degrees: float) -> float:
    """Return how far twice the restricted likelihood of a variance falls in a 95 % interval.

    For a sample's variance with so many degrees of freedom it is exact: the quantile of
    ``degrees (x - 1 - log x)`` where ``degrees x`` has the chi square distribution.
    """
    from scipy import special  # loads slowly; most commands do without it
    from scipy.optimize import brentq

    if math.isinf(degrees):
        return float(special.ndtri(0.5 + LEVEL / 2) ** 2)

    def ends(limit: float) -> tuple[float, float]:
        def fall(log_x: float) -> float:
            return degrees * (math.expm1(log_x) - log_x) - limit

        return brentq(fall, -limit / degrees - 2, 0.0), brentq(fall, 0.0, limit / degrees + 2)

    def missed(limit: float) -> float:
        low, high = (0.5 * degrees * math.exp(end) for end in ends(limit))
        inside = special.gammainc(degrees / 2, high) - special.gammainc(degrees / 2, low)
        return float(inside - LEVEL)

    return float(brentq(missed, 1.0, 30.0))
