"""The number of groups that describe points: mixtures of normal distributions or one population.

A mixture of k normal populations of one covariance, which is that within the groups, is fitted by
expectation and maximization (Dempster, Laird and Rubin 1977, J R Stat Soc B 39:1) and compared by
BIC (Schwarz 1978) with one population: normal; of heavy tails, Student's t in as many dimensions
(Lange, Little and Taylor 1989, J Am Stat Assoc 84:881); or skewed, normal after a power
transformation of each coordinate (Yeo and Johnson 2000, Biometrika 87:954). So neither a few
outliers nor correlated or skewed parameters make two groups. A few wells of another kind are found,
since distances are compared with the scatter within groups, not with that of all points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

#: The decrease of BIC that more groups need (odds of 150 to 1), and from which on the choice is
#: ambiguous (odds of 1 to 1).
SURE, MAYBE = 10.0, 0.0
#: The most groups that are tried, the most points that are used, the points that a group needs on
#: average, and the points that each dimension needs.
_MOST_GROUPS, _LOOKED_AT, _POINTS_A_GROUP, _POINTS_A_DIMENSION = 8, 2000, 5, 5
#: Groups overlap if their centers are nearer than so many standard deviations within them: two of
#: one size then have a single peak.
_APART = 2.0
_ITERATIONS, _STILL = 300, 1e-6
#: Iterations after which the best of all initial shares go on, and how many of them do.
_TRIED, _GO_ON = 6, 4
#: Degrees of freedom that are tried for heavy tails.
_TAILS = (2.5, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 30.0)
#: Powers of transformations that are tried, 1 for none, and the most rounds over the coordinates.
_POWERS, _ROUNDS = np.linspace(-2.0, 4.0, 25), 3
#: Eigenvalues of a covariance count down to this share of the largest.
_FLOOR = 1e-9


@dataclass(frozen=True, eq=False)
class MixtureChoice:
    """The chosen number of groups, and the alternatives with which it was compared.

    Attributes:
        k: the number of groups.
        bic: (n,) of mixtures of 1, 2, .. groups, as far as they were tried.
        heavy, skewed: BIC of one population with heavy tails, and of one that is skewed; inf if
            they were not tried.
        gain: the BIC of the best single population minus that of the best mixture of several
            groups; -inf if none was tried.
        apart: the distance of the two nearest centers of that mixture, in standard deviations
            within groups.
        labels: (n_points,) its groups, by number from 0; None if points were left out.
    """

    k: int
    bic: np.ndarray
    heavy: float
    skewed: float
    gain: float
    apart: float
    labels: np.ndarray | None

    @property
    def is_ambiguous(self) -> bool:
        """True if there may be more groups than were chosen."""
        return self.k == 1 and self.gain > MAYBE

    def sentence(self) -> str:
        """Return a sentence on the comparison and its result."""
        if math.isinf(self.gain):
            return "there are too few different wells to look for groups"
        tried = f"mixtures of up to {len(self.bic)} normal populations"
        text = (
            f"{tried} were compared with one population by BIC, normal, skewed or with heavy tails"
        )
        if self.k > 1:
            return f"{text}: {self.k} groups are better by {self.gain:.0f}"
        if self.is_ambiguous:
            near = f", with centers {self.apart:.1f} standard deviations apart"
            return (
                f"{text}: ambiguous, several groups are better by {self.gain:.0f}{near}, which is "
                "too little to rely on; ask for a number of groups to see them"
            )
        return f"{text}: one group describes the wells as well"


def choose_groups(points: np.ndarray, seed: int = 0) -> MixtureChoice:
    """Choose the number of groups.

    Arguments:
        points: (n, d) without NaN.
        seed: of the random choice of points if there are very many.
    """
    n_all = len(points)
    if n_all > _LOOKED_AT:
        random = np.random.Generator(np.random.Philox([seed, 1]))
        points = points[random.choice(n_all, _LOOKED_AT, replace=False)]
    scaled = _scaled(points)
    white = _whitened(scaled)
    n, d = white.shape
    most = min(_MOST_GROUPS, n // _POINTS_A_GROUP)
    if d == 0 or most < 2:
        return MixtureChoice(1, np.zeros(1), math.inf, math.inf, -math.inf, 0.0, None)
    one = _normal(white, np.ones((n, 1)), 2)
    assert one is not None
    found, bic = [one], [_bic(one.likelihood, n, d, 1)]
    for k in range(2, most + 1):
        best = _best_of(white, found[-1], k)
        if best is None:
            break
        found.append(best)
        bic.append(_bic(best.likelihood, n, d, k))
        if bic[-1] > min(bic) + SURE and k > 2:
            break
    heavy = _heavy_tailed(white) + math.log(n)
    skewed = _skewed(scaled if scaled.shape == white.shape else white)
    if len(bic) == 1:
        return MixtureChoice(1, np.array(bic), heavy, skewed, -math.inf, 0.0, None)
    several = np.array(bic[1:])
    place = 1 + int(np.flatnonzero(several <= several.min() + SURE)[0])
    gain = min(bic[0], heavy, skewed) - bic[place]
    apart = found[place].apart
    k = place + 1 if gain > SURE and apart > _APART else 1
    labels = found[place].share.argmax(axis=1) if len(white) == n_all else None
    return MixtureChoice(k, np.array(bic), heavy, skewed, gain, apart, labels)


def _bic(likelihood: float, n: int, d: int, k: int) -> float:
    """Return the Bayesian information criterion of a mixture."""
    return float(-2 * likelihood + (k * d + d * (d + 1) / 2 + k - 1) * math.log(n))


def _scaled(points: np.ndarray) -> np.ndarray:
    """Return points (n, d') about their mean, of variance 1 in each coordinate that varies."""
    apart = points - points.mean(axis=0)
    scale = apart.std(axis=0)
    return np.asarray(apart[:, scale > 0] / scale[scale > 0])


def _whitened(apart: np.ndarray) -> np.ndarray:
    """Return points (n, d') in principal directions, of variance 1: those with enough points."""
    if not apart.shape[1]:
        return apart
    values, vectors = np.linalg.eigh(apart.T @ apart / len(apart))
    order = np.argsort(-values)[: max(1, len(apart) // _POINTS_A_DIMENSION)]
    keep = order[values[order] > _FLOOR * values.max()]
    found: np.ndarray = apart @ vectors[:, keep] / np.sqrt(values[keep])
    return found


# --- a mixture of one covariance ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Mixture:
    """A fitted mixture: its log likelihood, (n, k) shares of points, and least center distance."""

    likelihood: float
    share: np.ndarray
    apart: float


def _normal(points: np.ndarray, share: np.ndarray, iterations: int) -> _Mixture | None:
    """Fit a mixture from shares (n, k) until it converges; return None if a group is lost."""
    (n, d), k = points.shape, share.shape[1]
    before = -math.inf
    for _ in range(iterations):
        size = share.sum(axis=0)
        if size.min() < 1.5:
            return None
        centers = share.T @ points / size[:, None]
        # of points with variance 1 in each direction, so no direction is lost by scale
        within = (points.T @ points - (centers.T * size) @ centers) / n
        values, vectors = np.linalg.eigh(within)
        if values[0] < _FLOOR:
            return None
        root = vectors / np.sqrt(values)
        seen, middle = points @ root, centers @ root
        squares = (seen**2).sum(axis=1)[:, None] - 2 * seen @ middle.T + (middle**2).sum(axis=1)
        logs = np.log(size / n) - 0.5 * squares
        top = logs.max(axis=1)
        density = np.exp(logs - top[:, None])
        total = density.sum(axis=1)
        likelihood = float((top + np.log(total)).sum())
        likelihood -= 0.5 * n * (float(np.log(values).sum()) + d * math.log(2 * math.pi))
        share = density / total[:, None]
        if likelihood - before < _STILL * n:
            break
        before = likelihood
    distance = np.sqrt(((middle[:, None] - middle) ** 2).sum(axis=2))
    apart = float(distance[np.triu_indices(k, 1)].min()) if k > 1 else 0.0
    return _Mixture(likelihood, share, apart)


def _best_of(points: np.ndarray, before: _Mixture, k: int) -> _Mixture | None:
    """Return the best mixture of k groups; each of k - 1 groups is divided in several ways."""
    every = np.eye(k)
    tried = [_normal(points, every[labels], _TRIED) for labels in _divided(points, before, k)]
    good = sorted((one for one in tried if one), key=lambda one: -one.likelihood)[:_GO_ON]
    found = [_normal(points, one.share, _ITERATIONS) for one in good]
    return max((one for one in found if one), key=lambda one: one.likelihood, default=None)


def _divided(points: np.ndarray, before: _Mixture, k: int) -> Iterator[np.ndarray]:
    """Yield labels with one group more: a group divided at three places along a direction."""
    labels = before.share.argmax(axis=1)
    random = np.random.Generator(np.random.Philox(k))
    for group in range(k - 1):
        mine = np.flatnonzero(labels == group)
        if len(mine) < 4:
            continue
        own = points[mine] - points[mine].mean(axis=0)
        far = own[np.argsort(-(own**2).sum(axis=1))[:6]]  # toward points far out
        ways = np.vstack([np.eye(points.shape[1]), far, random.standard_normal((8, own.shape[1]))])
        for way in ways:
            order = mine[np.argsort(own @ way, kind="stable")]
            for cut in (len(mine) // 2, len(mine) // 8 or 1, len(mine) - (len(mine) // 8 or 1)):
                fresh = labels.copy()
                fresh[order[cut:]] = k - 1
                yield fresh


# --- one population with heavy tails --------------------------------------------------------------


def _heavy_tailed(points: np.ndarray) -> float:
    """Return BIC of one population of Student's t, without the term of its degrees of freedom."""
    n, d = points.shape
    best = -math.inf
    for freedom in _TAILS:
        weight = np.ones(n)
        before = -math.inf
        for _ in range(_ITERATIONS):
            center = weight @ points / weight.sum()
            apart = points - center
            scatter = (apart.T * weight) @ apart / n
            squares = (apart @ np.linalg.pinv(scatter) * apart).sum(axis=1)
            determinant = float(np.linalg.slogdet(scatter)[1])
            likelihood = n * (
                math.lgamma((freedom + d) / 2)
                - math.lgamma(freedom / 2)
                - 0.5 * d * math.log(freedom * math.pi)
                - 0.5 * determinant
            )
            likelihood -= (freedom + d) / 2 * float(np.log1p(squares / freedom).sum())
            if likelihood - before < _STILL * n:
                break
            before = likelihood
            weight = (freedom + d) / (freedom + squares)
        best = max(best, likelihood)
    return _bic(best, n, d, 1)


# --- one population that is skewed ----------------------------------------------------------------


def _skewed(points: np.ndarray) -> float:
    """Return BIC of one population that is normal after transformations of points (n, d) about 0.

    The likelihood is that of the whitened points, as for all others.
    """
    n, d = points.shape
    courses, slopes = zip(*map(_transformed, points.T), strict=True)
    powers = [int(np.argmin(np.abs(_POWERS - 1.0)))] * d
    seen, best = points.copy(), -math.inf
    for _ in range(_ROUNDS):
        before = best
        for j in range(d):
            others = sum(slopes[k][powers[k]] for k in range(d) if k != j)
            likelihoods = []
            for course, slope in zip(courses[j], slopes[j], strict=True):
                seen[:, j] = course
                likelihoods.append(slope + others - 0.5 * n * _log_volume(seen))
            powers[j] = int(np.argmax(likelihoods))
            seen[:, j], best = courses[j][powers[j]], max(likelihoods)
        if best - before < _STILL * n:
            break
    best += 0.5 * n * (_log_volume(points) - d * (1 + math.log(2 * math.pi)))
    return float(_bic(best, n, d, 1) + d * math.log(n))


def _log_volume(points: np.ndarray) -> float:
    """Return the logarithm of the determinant of the covariance of points (n, d)."""
    covariance = np.cov(points, rowvar=False, bias=True).reshape(points.shape[1], -1)
    return float(np.linalg.slogdet(covariance)[1])


def _transformed(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return values (n,) transformed by each power, (n_powers, n), and summed log slopes."""
    size, above = np.log1p(np.abs(values)), values >= 0
    # below 0 it is the mirror image with 2 less the power
    powers = np.where(above, _POWERS[:, None], 2.0 - _POWERS[:, None])
    straight = np.where(powers == 0, 1.0, powers)
    course = np.where(powers == 0, size, np.expm1(straight * size) / straight)
    return np.where(above, course, -course), ((powers - 1.0) * size).sum(axis=1)
