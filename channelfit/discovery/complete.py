"""All schemes of a size as one model, so that a GPU compiles one text for all of them.

The model is that of the complete graph: a transition that a scheme does not have has the rate 0
there. What is computed by its parameters follows for those of the scheme by the chain rule. To
compile the kernels of one scheme for a GPU takes seconds, and to fit it less than one.

Its rates are a*exp(z*v). Where cycles keep microscopic reversibility, those between states i and j
are ``s*exp(y*v + (g_i - g_j)/2)`` with ``g_i = e_i + w_i*v``, which keep it for all parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from threading import Lock
from typing import Any

import numpy as np

from channelfit.discovery.models import SchemeModels, ends_of, tree_of
from channelfit.discovery.schemes import Edge, Scheme
from channelfit.problem.experiment import Problem
from channelfit.reading.errors import InputError
from channelfit.scoring.machine.arrays import array_module
from channelfit.scoring.pooled import Pool, PooledScorer
from channelfit.scoring.scorer import ChannelScorer, InnerScorer, Linearization, make_scorer
from channelfit.search.plan import FitPlan

#: The greatest exponent of a rate.
_GREATEST_EXPONENT = 600.0
#: The parts into which a candidate is cut for threads of a GPU: a few hundred candidates, those
#: of all schemes that are fitted at a time, then fill it.
_JOBS = 8
#: The range of e, from which only the expected speed of kernels follows.
_POTENTIAL = [-10.0, 10.0]


def is_part(models: SchemeModels, plan: FitPlan, n: int) -> bool:
    """Whether schemes of up to n states can be scored as parts of their complete graphs.

    Their rates are exponentials that each transition has for itself, and no rate of the complete
    graph overflows, also where a scheme has no transition.

    Arguments:
        plan: of any scheme.
    """
    own = plan.problem.model.parameters
    sizes, slopes = ([p for p in own if p.name.startswith(f"{x}_")] for x in "az")
    if not models.exponential:
        return False
    if any(p.lower <= 0 or p.per_cell for p in sizes) or any(p.per_cell for p in slopes):
        return False
    v = max(map(abs, ends_of(plan)))
    apart = max(math.log(p.upper / p.lower) for p in sizes)
    apart += max(p.upper - p.lower for p in slopes) * v
    return (n - 1) * apart / 2 < _GREATEST_EXPONENT


def complete(scheme: Scheme) -> Scheme:
    """Return the scheme of as many states, and as many open ones, with every transition."""
    return Scheme(scheme.n, scheme.n_open, tuple(combinations(range(scheme.n), 2)))


def document(models: SchemeModels, scheme: Scheme) -> dict[str, Any]:
    """Return the model file of a scheme's complete graph, as plain data without values.

    Raises InputError: the model has a parameter of a name that is needed.
    """
    whole = complete(scheme)
    names, found = whole.states, models.document(whole)
    if not models.reversible:
        return found
    rates: dict[str, str] = {}
    rows: dict[str, Mapping[str, Any]] = {}
    for i, j in whole.edges:
        pair = f"{names[i]}_{names[j]}"
        rows |= {f"s_{pair}": models.parameters["a"], f"y_{pair}": models.parameters["z"]}
        for a, b in ((names[i], names[j]), (names[j], names[i])):
            apart = f"(e_{a} - e_{b} + (w_{a} - w_{b})*v)/2"
            rates[f"{a} -> {b}"] = f"s_{pair}*exp(y_{pair}*v + {apart})"
    for name in names:
        zero = {"value": 0.0, "fixed": True} if name == names[0] else {}
        rows |= {f"e_{name}": {"range": _POTENTIAL} | zero}
        rows |= {f"w_{name}": dict(models.parameters["z"]) | zero}
    others = models.kept_parameters
    for name in rows.keys() & others.keys():
        raise InputError("is a name that discover gives", None, f"parameters.{name}")
    return found | {"rates": rates, "parameters": {**others, **rows}}


@dataclass(frozen=True, eq=False)
class Embedding:
    """The parameters of a complete graph as functions of those of a scheme.

    With the parameters p (n_parameters, n) of the scheme they are ``L + share @ p``, and for
    products ``exp(L)``, where ``L = constant + power @ log p``.

    Attributes:
        is_product: (n_complete,) bool. constant: (n_complete,). power, share: (n_complete,
            n_parameters).
    """

    is_product: np.ndarray
    constant: np.ndarray
    power: np.ndarray
    share: np.ndarray

    @classmethod
    def of(cls, models: SchemeModels, scheme: Scheme, own: Problem, whole: Problem) -> Embedding:
        """Return the embedding of a scheme's problem in that of its complete graph."""
        rows = {p.name: k for k, p in enumerate(whole.parameters)}
        columns = {p.name: k for k, p in enumerate(own.parameters)}
        shape = len(rows), len(columns)
        found = cls(np.zeros(shape[0], bool), np.zeros(shape[0]), np.zeros(shape), np.zeros(shape))
        suffixes, products = models.products(scheme)
        a, z = ([columns[f"{x}_{suffix}"] for suffix in suffixes] for x in "az")
        shared = columns.keys() - {own.parameters[k].name for k in (*a, *z)}
        for name in shared:
            found.share[rows[name], columns[name]] = 1.0
        sizes = "s_" if models.reversible else "a_"
        for name, row in rows.items():
            if name.startswith(sizes) and name not in shared:
                found.is_product[row], found.constant[row] = True, -np.inf
        for size, slope, constant, power in _sums(models.reversible, scheme, products):
            found.constant[rows[size]] = constant
            found.power[rows[size], a] = found.share[rows[slope], z] = power
        return found


def _sums(
    reversible: bool, scheme: Scheme, products: dict[Edge, tuple[float, np.ndarray]]
) -> Iterator[tuple[str, str, float, np.ndarray]]:
    """Yield parameters of the complete graph as sums over those of a scheme.

    Arguments:
        products: as of `SchemeModels.products`.

    Yields: the names of one that sums logarithms of a and of one that sums z, what is added to
        the first, and the weights (n_endings,) of both.
    """
    names = complete(scheme).states
    if not reversible:
        for (i, j), own in products.items():
            yield f"a_{names[i]}_{names[j]}", f"z_{names[i]}_{names[j]}", *own
        return
    for i, j in scheme.edges:
        (there, power), (back, other) = products[i, j], products[j, i]
        pair = f"{names[i]}_{names[j]}"
        yield f"s_{pair}", f"y_{pair}", (there + back) / 2, (power + other) / 2
    heights = {0: (0.0, np.zeros_like(next(iter(products.values()))[1]))}
    for state, before in list(tree_of(scheme).items())[1:]:
        (up, power), (down, other) = products[state, before], products[before, state]
        constant, weights = heights[before]
        heights[state] = constant + up - down, weights + power - other
        yield f"e_{names[state]}", f"w_{names[state]}", *heights[state]


@dataclass(eq=False)
class CompleteScorers:
    """Makes scorers of schemes, each through the one of its complete graph, which threads share.

    Attributes:
        pool: makes the calls of all threads.
    """

    models: SchemeModels
    backend: str
    pool: Pool = field(default_factory=Pool)
    _whole: dict[tuple[int, int, bool], ChannelScorer] = field(default_factory=dict)
    _making: Lock = field(default_factory=Lock)

    def __reduce__(self) -> tuple[Any, ...]:
        return CompleteScorers, (self.models, self.backend)

    def __call__(self, scheme: Scheme, problem: Problem, rough: bool = False) -> ChannelScorer:
        """Return the scorer of a scheme's problem.

        Arguments:
            rough: as of `SchemeModels.plan_of`.
        """
        key = scheme.n, scheme.n_open, rough
        with self._making:
            if key not in self._whole:
                own = document(self.models, scheme)
                plan = self.models.plan_for(own, self.models.model_of(own), rough)
                scorer = make_scorer(plan.problem, self.backend)
                self._whole[key] = PooledScorer(scorer, self.pool, _JOBS)
            whole = self._whole[key]
        return PartScorer(problem, whole, Embedding.of(self.models, scheme, problem, whole.problem))


class PartScorer(InnerScorer):
    """Scores a scheme by the scorer of its complete graph.

    Arguments:
        problem: of the scheme.
        whole: scores the same experiments with the complete graph.
        embedding: of the scheme in its complete graph.
    """

    def __init__(self, problem: Problem, whole: ChannelScorer, embedding: Embedding) -> None:
        super().__init__(problem, whole)
        self.embedding = embedding

    def _passed(self, name: Hashable, function: Callable[[Any], Any], parameters: Any) -> Any:
        return function(self._embedded(parameters)[0])

    def linearize(self, parameters: Any) -> Linearization:
        parameters, (values, scale) = self._checked(parameters), self._embedded(parameters)
        xp, found = array_module(parameters), self.inner.linearize(values)
        power, share, free = (
            xp.asarray(k) for k in (self.embedding.power, self.embedding.share, self._free)
        )
        with np.errstate(all="ignore"):
            slopes = scale.T[:, :, None] * power / parameters.T[:, None, :] + share
        # (n, n_complete, n_parameters); a candidate that fails has no derivatives
        slopes = xp.where(xp.isfinite(found.cost)[:, None, None] & free, slopes, 0.0)
        back = slopes.transpose(0, 2, 1)
        gradient = (back @ found.gradient.T[:, :, None])[:, :, 0]
        hessian = back @ found.hessian.transpose(2, 0, 1) @ slopes
        return Linearization(
            found.cost,
            found.status,
            xp.ascontiguousarray(gradient.T),
            xp.ascontiguousarray(hessian.transpose(1, 2, 0)),
        )

    @cached_property
    def _free(self) -> np.ndarray:
        return np.array([not p.fixed for p in self.problem.parameters])

    def _embedded(self, parameters: Any) -> tuple[Any, Any]:
        """Return the parameters of the complete graph, and their derivatives by L.

        Both are (n_complete, n); see `Embedding`.
        """
        parameters, own = self._checked(parameters), self.embedding
        xp, used = array_module(parameters), np.flatnonzero(own.power.any(axis=0))
        logs = xp.log(parameters[xp.asarray(used)])
        sums = xp.asarray(own.power[:, used]) @ logs + xp.asarray(own.constant)[:, None]
        is_product = xp.asarray(own.is_product)[:, None]
        with np.errstate(over="ignore"):
            exponential = xp.exp(xp.where(is_product, sums, 0.0))
        values = xp.where(is_product, exponential, sums) + xp.asarray(own.share) @ parameters
        return values, exponential
