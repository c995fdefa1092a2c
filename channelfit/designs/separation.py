"""Protocols that separate schemes: the least distance between one and the best fit of another.

The distance between two schemes is the sum of the squared differences d of their currents over the
variance of the noise; where samples of the noise are correlated, over its variance along d, which
is s^2 d^T R d / d^T d, with R from `correlation`: so many times the variance of one sample larger
is that of the sum by which fits of the two schemes differ. The distance is the information about a
factor of d. A rival is fitted to
the current of each scheme anew when the protocol has changed, and earlier fits are kept: the
protocol moves to where the nearest of all of them is far (T-optimality of Atkinson and Fedorov
1975, doi:10.1093/biomet/62.1.57, by relaxation as in Shimizu and Aiyoshi 1980). At the best fit the
derivative of the distance by the rival's parameters is zero, so that none of them is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from channelfit.designs.correlation import sums_of_samples
from channelfit.designs.criteria import Criterion
from channelfit.designs.information import Informed, Pieces, Source
from channelfit.designs.plan import FAILED, DesignPlan, Findings, Subject, prior_of, scales_of
from channelfit.problem.experiment import Experiment, Problem, mean_square, n_scored, rounding_floor
from channelfit.problem.protocol import Protocol
from channelfit.problem.rate_bounds import in_fit
from channelfit.reading.errors import InputError
from channelfit.results.comparison import NEAR_BIC, criteria
from channelfit.scoring.scorer import make_scorer
from channelfit.search.least_squares import refine
from channelfit.search.objective import Objective
from channelfit.search.space import SearchSpace

Array = np.ndarray

#: Times that rivals are fitted anew in a search, at most, the gain below which it ends, and from
#: how many rounds before the latest fits are kept.
_ROUNDS, _NEAR, _REMEMBERED = 8, 0.02, 2
#: Points drawn in a rival's ranges, how many of the lowest cost are refined beside
#: known fits, and in how many iterations.
_DRAWN, _REFINED, _ITERATIONS = 1024, 12, 100
#: Points from which a rival is fitted to the next protocol.
_KEPT = 3
#: Random protocols under all of which at once each rival is fitted at first, how many drawn points,
#: and how many of them are refined in how many iterations.
_AT_ONCE, _AT_FIRST = 2, (4096, 32, 300)
#: A rival equals a scheme of whose current its best fit leaves less than this part.
_EQUAL = 1e-6
#: What is known of the factor beforehand, as a precision: much smaller distances count as none.
_NONE = 1e-3


@dataclass(frozen=True, eq=False)
class Rival:
    """The fit of one scheme to the current of another.

    Attributes:
        scheme, truth, member: the places of the fitted scheme, of the one that makes the current,
            and of that one's vector of parameters.
        known: (n_parameters, n) values from which to fit, the best first, base units.
        rms: the root mean square of what is left, pA; part: the same as a part of the current's.
        distance: the sum of squares over the variance of the noise along what is left.
        delta_bic: how much larger Schwarz's criterion of the rival is expected to be, with this
            variance.
    """

    scheme: int
    truth: int
    member: int
    known: Array
    rms: float = np.nan
    part: float = np.nan
    distance: float = np.nan
    delta_bic: float = np.nan


class SeparationPlan(DesignPlan):
    """A protocol that separates schemes, each with its vectors of parameters."""

    small = False
    words = "the least distance of its currents is"

    @cached_property
    def first(self) -> list[Rival]:
        """Each scheme as the rival of each vector of each other one.

        It is known from its own values, and from a thorough fit under several protocols at once. A
        scheme that contains the other one has its currents there, and so under all protocols: a fit
        to one protocol that misses this minimum would make up a distance.
        """
        random = np.random.default_rng([self.seed, 1])
        vectors = [self.waveform.random(random) for _ in range(_AT_ONCE)]
        protocols = [self.protocol(x, f"random {k}") for k, x in enumerate(vectors)]
        found = []
        for i, true in enumerate(self.subjects):
            currents = [(p, true.simulated(p, true.members)) for p in protocols]
            pairs = [(p, c) for p, c in currents if np.isfinite(c[np.isfinite(p.voltage())]).all()]
            found += [
                Rival(j, i, m, self._thoroughly(other, [(p, c[:, :, m]) for p, c in pairs]))
                for j, other in enumerate(self.subjects)
                for m in range(true.members.shape[1])
                if i != j
            ]
        return found

    def _thoroughly(self, rival: Subject, currents: Sequence[tuple[Protocol, Array]]) -> Array:
        """Return the best fits (n_parameters, n) to several currents, then its own values."""
        if not currents:
            return rival.members
        experiments = [self.experiment(rival, *one) for one in currents]
        fits, costs = best_fits(rival, experiments, rival.members, self.seed, *_AT_FIRST)
        good = np.isfinite(costs[:_KEPT])
        return np.concatenate([fits[:, :_KEPT][:, good], rival.members], axis=1)

    def search(self, x: Array) -> tuple[Array, float]:
        """See `DesignPlan`; the criterion is the logarithm of one over the root of the distance."""
        try:
            latest = self.refitted(self.protocol(x, "start"), self.first)
        except InputError:  # a current that is not finite, as of a start that leads nowhere
            return x, FAILED
        latest = [rival for rival in latest if rival.part > _EQUAL]
        if not latest:
            raise InputError(f"{self.title}: fits leave nothing of each other's currents")
        known, best = list(latest), (x, _criterion(latest))
        for _ in range(_ROUNDS):
            x, promised = self.descend(x, self.parts(known), -(-self.iterations // _ROUNDS))
            if best[1] - promised < _NEAR:
                break
            latest = self.refitted(self.protocol(x, "next"), latest)
            found = _criterion(latest)
            if found < best[1]:
                best = x, found
            known = [*known[-_REMEMBERED * len(latest) :], *latest]
        return best

    def judged(self, protocol: Protocol) -> Findings:
        """See `DesignPlan`; the nearest of the ensemble, and the root of the least distance."""
        found: dict[tuple[int, int], Rival] = {}
        for rival in self.refitted(protocol, self.first):
            pair = rival.truth, rival.scheme
            if pair not in found or rival.distance < found[pair].distance:
                found[pair] = rival
        fits = {f"{self._name(i)}, fitted by {self._name(j)}": r for (i, j), r in found.items()}
        near = [name for name, rival in fits.items() if rival.delta_bic <= NEAR_BIC]
        remark = "It is expected to separate all of them by BIC."
        if near:
            remark = f"Not separated (expected delta BIC up to {NEAR_BIC:g}): {'; '.join(near)}."
        equal = [name for name, rival in fits.items() if rival.part <= _EQUAL]
        differ = [rival.distance for name, rival in fits.items() if name not in equal]
        return Findings(
            {name: {"rms, pA": r.rms, "delta BIC": r.delta_bic} for name, r in fits.items()},
            {},
            float(np.sqrt(min(differ, default=0.0))),
            [*(f"{name}: the currents are equal." for name in equal), remark],
            list(fits.values()),
        )

    def drawn(
        self, protocol: Protocol, pieces: Pieces, found: Findings
    ) -> tuple[dict[str, Array], Array]:
        """See `DesignPlan`: of the pair that is the least apart, and of each distance.

        Of a pair with equal currents all shares are 0.
        """
        differ = [one for one in found.fits if one.part > _EQUAL]
        fit = min(differ or found.fits, key=lambda one: float(one.distance))
        true, rival = self.subjects[fit.truth], self.subjects[fit.scheme]
        current = true.simulated(protocol, true.members[:, [fit.member]])
        left = current - rival.simulated(protocol, fit.known[:, :1])
        shares = [
            (one.part > _EQUAL) * self.parts([one])[0][0].shares(pieces)[:, 0, 0]
            for one in found.fits
        ]
        name, other = self._name(fit.truth), self._name(fit.scheme)
        return {f"{name} (pA)": current, f"less {other} (pA)": left}, np.array(shares).T

    def _name(self, place: int) -> str:
        return self.subjects[place].model.name

    def parts(self, known: Sequence[Rival]) -> list[tuple[Informed, Criterion]]:
        """Return the information on the factor, by pairs of schemes, and the criterion.

        The parameters of the fitted scheme are unknown, too: the variance of the factor is then one
        over the distance that a fit leaves which follows the protocol, to first order.
        """
        found = []
        for pair in dict.fromkeys((rival.truth, rival.scheme) for rival in known):
            fits = [rival for rival in known if (rival.truth, rival.scheme) == pair]
            true, rival = (self.subjects[place] for place in pair)
            members = np.array([fit.known[:, 0] for fit in fits]).T
            scales, one = scales_of(rival, members), np.ones((1, len(fits)))
            prior = np.concatenate([_NONE * one, prior_of(rival, scales)])
            sources = [
                Source(true.model, true.members[:, [fit.member for fit in fits]]),
                rival.source(members, -1.0),
            ]
            scales = np.concatenate([one, scales])
            noise = self.noise, self.limits.sampling
            informed = Informed(sources, scales, *noise, factor=True, correlation=self.correlation)
            found.append((informed, Criterion("log", prior, np.array([0]), worst=True)))
        return found

    def refitted(self, protocol: Protocol, rivals: Sequence[Rival]) -> list[Rival]:
        """Return all rivals fitted anew under a protocol, from known fits and from drawn points.

        Raises: InputError for a scheme without a finite current.
        """
        currents = [one.simulated(protocol, one.members) for one in self.subjects]
        inside = np.isfinite(protocol.voltage())
        for place, current in enumerate(currents):
            if not np.isfinite(current[inside]).all():
                raise InputError(f"under {protocol.name} {self._name(place)} has no finite current")
        lags = self.autocorrelation(protocol)
        return [
            self._fitted(rival, protocol, currents[rival.truth][:, :, rival.member], lags)
            for rival in rivals
        ]

    def _fitted(
        self, rival: Rival, protocol: Protocol, current: Array, lags: Array | None
    ) -> Rival:
        subject, own = self.subjects[rival.scheme], self.subjects[rival.truth]
        experiment = self.experiment(subject, protocol, current)
        known, costs = best_fits(subject, [experiment], rival.known, self.seed)
        problem = Problem(subject.model, (experiment,))
        cost, n = float(costs[0]), n_scored(problem)
        if not np.isfinite(cost):
            raise InputError(f"{self._name(rival.scheme)}: no fit keeps the bounds on its rates")
        noise = self.variance(protocol)
        if lags is not None:
            left = current - subject.simulated(protocol, known[:, :1])[:, :, 0]
            noise *= _stretch_along(left, experiment, lags)
        ks = [SearchSpace(one.model.parameters).n_free for one in (subject, own)]
        bics = [criteria(c, k, n)[1] for c, k in zip((noise + cost, noise), ks, strict=True)]
        size = mean_square(problem)
        return replace(
            rival,
            known=known[:, :_KEPT],
            rms=cost**0.5,
            part=(cost / size) ** 0.5 if size > 0 else 0.0,
            distance=n * cost / noise,
            delta_bic=bics[0] - bics[1],
        )


def best_fits(
    subject: Subject,
    experiments: Sequence[Experiment],
    known: Array,
    seed: int,
    drawn: int = _DRAWN,
    refined: int = _REFINED,
    iterations: int = _ITERATIONS,
) -> tuple[Array, Array]:
    """Return fits (n_parameters, n) of a scheme, the best first, and their costs (n,), pA^2.

    Arguments:
        known: (n_parameters, n) values from which to begin, base units.
        drawn: points that are drawn in the ranges, of which so many are `refined` that have the
            lowest costs, in so many `iterations`.
    """
    problem = Problem(subject.model, tuple(experiments))
    space, floor = SearchSpace(problem.parameters), rounding_floor(problem, "float64")
    bounds = in_fit(subject.bounds, problem)
    objective = Objective(space, make_scorer(problem, "auto"), bounds, floor=floor)
    objective.previews = True
    unit = objective.sample(drawn, np.random.default_rng(seed))
    order = np.argsort(objective.score(unit).cost, kind="stable")[:refined]
    starts = np.concatenate([space.to_unit(known), unit[:, order]], axis=1)
    ends = refine(objective, starts, iterations)
    order = np.argsort(ends.cost, kind="stable")
    return objective.physical(ends.unit[:, order]), ends.cost[order]


def _stretch_along(left: Array, experiment: Experiment, lags: Array) -> float:
    """Return the variance of correlated noise along a difference of currents over that of a sample.

    Arguments:
        left: the difference (n_sweeps, n_times); lags: (n_times,) the autocorrelation.
    """
    assert experiment.recording is not None
    left = np.where(experiment.recording.weight > 0, left, 0.0)
    size = float((left**2).sum())
    return float(sums_of_samples(lags, left[..., None])[0, 0]) / size if size > 0 else 1.0


def _criterion(rivals: Sequence[Rival]) -> float:
    return -0.5 * float(np.log(min(rival.distance for rival in rivals)))
