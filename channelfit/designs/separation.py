"""Protocols that tell schemes apart: the least distance between one and the best fit of another.

The distance between two schemes is the sum of the squared differences of their currents over the
variance of the noise. It is the information about a factor of this difference, so that the
information of a joint channel and its gradient serve here, too. A rival is fitted to the current of
each scheme anew when the protocol has changed, and earlier fits are kept: the protocol moves to
where the nearest of all of them is far (T-optimality of Atkinson and Fedorov 1975,
doi:10.1093/biomet/62.1.57, by relaxation as in Shimizu and Aiyoshi 1980). At the best fit the
derivative of the distance by the rival's parameters is zero, so that none of them is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import sympy

from channelfit.designs.criteria import Criterion
from channelfit.designs.information import Informed, Pieces
from channelfit.designs.plan import FAILED, DesignPlan, Row, prior_of, scales_of, simulated
from channelfit.model.channel import (
    CELSIUS,
    FARADAY,
    GAS_CONSTANT,
    ZERO_CELSIUS,
    Chain,
    ChannelModel,
    Parameter,
    Term,
)
from channelfit.model.terms import product, symbol
from channelfit.problem.experiment import Experiment, Problem, mean_square, n_scored, rounding_floor
from channelfit.problem.protocol import Protocol
from channelfit.reading.errors import InputError
from channelfit.results.comparison import NEAR_BIC, criteria
from channelfit.results.identity import hash_of
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
#: A rival equals a scheme of whose current its best fit leaves less than this part.
_EQUAL = 1e-6
#: What is known of the factor beforehand, as a precision: much smaller distances count as none.
_NONE = 1e-3
_FACTOR = "factor"


@dataclass(frozen=True, eq=False)
class Rival:
    """The fit of one scheme to the current of another.

    Attributes:
        scheme, truth, member: the places of the fitted scheme, of the one that makes the current,
            and of that one's vector of parameters.
        known: (n_parameters, n) values from which to fit, the best first, base units.
        rms: the root mean square of what is left, pA; part: the same as a part of the current's.
        distance: the sum of squares over the variance of the noise.
        delta_bic: how much larger Schwarz's criterion of the rival is expected to be.
    """

    scheme: int
    truth: int
    member: int
    known: Array
    rms: float = np.nan
    part: float = np.nan
    distance: float = np.nan
    delta_bic: float = np.nan


@dataclass(frozen=True, eq=False, kw_only=True)
class SeparationPlan(DesignPlan):
    """A protocol that tells schemes apart.

    Attributes:
        models: the schemes.
        truths: of each its parameter vectors (n_parameters, n_members), base units.
    """

    small = False
    words = "the least distance of its currents is"
    models: tuple[ChannelModel, ...]
    truths: tuple[Array, ...]

    @property
    def title(self) -> str:
        """See `DesignPlan`."""
        return " or ".join(model.name for model in self.models)

    @property
    def contents(self) -> Mapping[str, Any]:
        """See `DesignPlan`."""
        return {
            "schemes": [hash_of(repr(model)) for model in self.models],
            "truths": [truth.tolist() for truth in self.truths],
        }

    @cached_property
    def joint(self) -> ChannelModel:
        """See `joint_model`."""
        return joint_model(self.models)

    @property
    def first(self) -> list[Rival]:
        """Each scheme, with its own values, as the rival of each vector of each other one."""
        places = range(len(self.models))
        return [
            Rival(j, i, m, self.truths[j])
            for i in places
            for j in places
            for m in range(self.truths[i].shape[1])
            if i != j
        ]

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

    def judged(self, protocol: Protocol) -> list[Row]:
        """See `DesignPlan`; the nearest of the ensemble."""
        found: dict[tuple[int, int], Rival] = {}
        for rival in self.refitted(protocol, self.first):
            pair = rival.truth, rival.scheme
            if pair not in found or rival.distance < found[pair].distance:
                found[pair] = rival
        return [
            Row(
                f"{self.models[truth].name}, fitted by {self.models[scheme].name}",
                {"rms, pA": rival.rms, "delta BIC": rival.delta_bic},
                fit=rival,
            )
            for (truth, scheme), rival in found.items()
        ]

    def size(self, rows: Sequence[Row]) -> float:
        """See `DesignPlan`: the least distance, as a root, of schemes that differ."""
        distances = [row.fit.distance for row in rows if row.fit.part > _EQUAL]
        return float(np.sqrt(min(distances, default=0.0)))

    def remarks(self, rows: Sequence[Row]) -> list[str]:
        """See `DesignPlan`."""
        equal = [row.name for row in rows if row.fit.part <= _EQUAL]
        near = "; ".join(row.name for row in rows if row.columns["delta BIC"] <= NEAR_BIC)
        lines = [f"{name}: the currents are equal." for name in equal]
        if near:
            return [*lines, f"Not told apart (expected delta BIC up to {NEAR_BIC:g}): {near}."]
        return [*lines, "It is expected to tell all of them apart by BIC."]

    def shares(self, pieces: Pieces, rows: Sequence[Row]) -> Array:
        """See `DesignPlan`: of the distance to the best fit."""
        members = np.array([self._member(row.fit) for row in rows]).T
        return self._informed([], members, np.empty((0, len(rows)))).shares(pieces)[:, 0]

    def traces(self, protocol: Protocol, rows: Sequence[Row]) -> dict[str, Array]:
        """See `DesignPlan`: of the pair that is the least apart."""
        row = min(rows, key=lambda one: one.fit.distance)
        values = self.truths[row.fit.truth][:, [row.fit.member]], row.fit.known[:, :1]
        places = row.fit.truth, row.fit.scheme
        current, fitted = (
            simulated(self.models[k], protocol, v)[0] for k, v in zip(places, values, strict=True)
        )
        return {
            f"{self.models[row.fit.truth].name} (pA)": current,
            f"less {self.models[row.fit.scheme].name} (pA)": current - fitted,
        }

    def parts(self, known: Sequence[Rival]) -> list[tuple[Informed, Criterion]]:
        """Return the information on the factor, by the fitted scheme, and the criterion.

        The parameters of the fitted scheme are unknown, too: the variance of the factor is then one
        over the distance that a fit leaves which follows the protocol, to first order.
        """
        found = []
        for place in dict.fromkeys(rival.scheme for rival in known):
            members = np.array([self._member(r) for r in known if r.scheme == place]).T
            places = self._free(place)
            free = [self.joint.parameters[k] for k in places]
            scales = scales_of(free, members[places])
            prior = np.concatenate([np.full((1, len(scales.T)), _NONE), prior_of(free, scales)])
            judge = Criterion("log", prior, np.array([0]), worst=True)
            found.append((self._informed([p.name for p in free], members, scales), judge))
        return found

    def _free(self, place: int) -> list[int]:
        """Return the rows of the free parameters of a scheme among those of the joint channel."""
        first = sum(len(model.parameters) for model in self.models[:place])
        own = enumerate(self.models[place].parameters, first)
        return [k for k, p in own if not p.fixed]

    def _informed(self, free: Sequence[str], members: Array, scales: Array) -> Informed:
        """Return the information about the factor, the first parameter, and about others."""
        scales = np.concatenate([np.ones((1, members.shape[1])), scales])
        sampling = self.limits.sampling
        return Informed(self.joint, [_FACTOR, *free], members, scales, self.noise, sampling)

    def _member(self, rival: Rival) -> Array:
        """Return the parameters of the joint channel at a fit."""
        values = [truth[:, 0] for truth in self.truths]
        values[rival.truth] = self.truths[rival.truth][:, rival.member]
        values[rival.scheme] = rival.known[:, 0]
        signs = np.zeros(len(self.models))
        signs[rival.truth], signs[rival.scheme] = 1.0, -1.0
        return np.concatenate([*values, signs, [1.0]])

    def refitted(self, protocol: Protocol, rivals: Sequence[Rival]) -> list[Rival]:
        """Return all rivals fitted anew under a protocol, from known fits and from drawn points.

        Raises: InputError for a scheme without a finite current.
        """
        currents = [
            simulated(model, protocol, truth)
            for model, truth in zip(self.models, self.truths, strict=True)
        ]
        inside = np.isfinite(protocol.voltage())
        for model, current in zip(self.models, currents, strict=True):
            if not np.isfinite(current[inside]).all():
                raise InputError(f"under {protocol.name} {model.name} has no finite current")
        return [
            self._fitted(rival, protocol, currents[rival.truth][:, :, rival.member])
            for rival in rivals
        ]

    def _fitted(self, rival: Rival, protocol: Protocol, current: Array) -> Rival:
        model, own = self.models[rival.scheme], self.models[rival.truth]
        experiment = self.experiment(protocol, current)
        known, costs = best_fits(model, experiment, rival.known, self.seed)
        problem = Problem(model, (experiment,))
        cost, noise, n = float(costs[0]), self.variance(protocol), n_scored(problem)
        ks = [SearchSpace(one.parameters).n_free for one in (model, own)]
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
    model: ChannelModel,
    experiment: Experiment,
    known: Array,
    seed: int,
    drawn: int = _DRAWN,
    refined: int = _REFINED,
) -> tuple[Array, Array]:
    """Return fits (n_parameters, n) of a scheme, the best first, and their costs (n,), pA^2.

    Arguments:
        known: (n_parameters, n) values from which to begin, base units.
        drawn: points that are drawn in the ranges, of which so many are `refined` that have the
            lowest costs.
    """
    problem = Problem(model, (experiment,))
    space, floor = SearchSpace(problem.parameters), rounding_floor(problem, "float64")
    objective = Objective(space, make_scorer(problem, "auto"), floor=floor)
    objective.previews = True
    unit = objective.sample(drawn, np.random.default_rng(seed))
    order = np.argsort(objective.score(unit).cost, kind="stable")[:refined]
    starts = np.concatenate([space.to_unit(known), unit[:, order]], axis=1)
    ends = refine(objective, starts, _ITERATIONS)
    order = np.argsort(ends.cost, kind="stable")
    return objective.physical(ends.unit[:, order]), ends.cost[order]


def _criterion(rivals: Sequence[Rival]) -> float:
    return -0.5 * float(np.log(min(rival.distance for rival in rivals)))


def joint_model(models: Sequence[ChannelModel]) -> ChannelModel:
    """Return schemes as one channel, whose current is a factor times the sum of theirs.

    Its parameters are those of all schemes one after the other, then one for each scheme by which
    its current is multiplied, and the factor.
    """
    parameters: list[Parameter] = []
    definitions: list[tuple[str, sympy.Expr]] = []
    chains: list[Chain] = []
    terms: list[Term] = []
    for k, model in enumerate(models):
        names = [*model.parameter_names, *(name for name, _ in model.definitions)]
        new = {symbol(name): symbol(f"{name} of {k}") for name in names}
        if model.temperature_C is not None:
            new.setdefault(symbol(CELSIUS), sympy.Float(model.temperature_C, 17))
        parameters += [replace(p, name=f"{p.name} of {k}") for p in model.parameters]
        definitions += [(f"{name} of {k}", e.xreplace(new)) for name, e in model.definitions]
        own = product(symbol(_FACTOR), symbol(f"sign of {k}"))
        terms += [_renamed_term(term, new, own, len(chains)) for term in model.terms]
        chains += [
            replace(
                chain,
                transitions=tuple(replace(t, rate=t.rate.xreplace(new)) for t in chain.transitions),
            )
            for chain in model.chains
        ]
    signs = [Parameter(f"sign of {k}", "", -1.0, 1.0, fixed=True) for k in range(len(models))]
    return ChannelModel(
        name="difference",
        description="",
        source="",
        parameters=(*parameters, *signs, Parameter(_FACTOR, "", 0.0, 2.0)),
        definitions=tuple(definitions),
        chains=tuple(chains),
        terms=tuple(terms),
    )


def _renamed_term(
    term: Term, new: Mapping[sympy.Symbol, sympy.Expr], times: sympy.Expr, first: int
) -> Term:
    """Return a term with other names, a factor, and chains that are counted from another one."""

    def renamed(e: sympy.Expr | None) -> sympy.Expr | None:
        return None if e is None else e.xreplace(new)

    ion = term.ion
    if ion is not None:
        warm = symbol(CELSIUS) + sympy.Float(ZERO_CELSIUS, 17)
        thermal = ion.thermal or product(sympy.Float(1e3 * GAS_CONSTANT / FARADAY, 17), warm)
        parts = {"inside": ion.inside, "outside": ion.outside, "thermal": thermal}
        ion = replace(ion, **{name: e.xreplace(new) for name, e in parts.items()})
    key = "conductance" if term.permeability is None else "permeability"
    size = {key: product(times, term.size.xreplace(new))}
    return replace(
        term,
        chains=tuple(first + c for c in term.chains),
        reversal=renamed(term.reversal),
        rectification=renamed(term.rectification),
        ion=ion,
        **size,
    )
