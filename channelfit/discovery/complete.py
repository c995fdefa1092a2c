"""All schemes of a size as one model, so that a GPU compiles one text for all of them.

The model is that of the complete graph: a transition that a scheme does not have has the rate 0
there. What is computed by its parameters follows for those of the scheme by the chain rule. To
compile the kernels of one scheme for a GPU takes seconds, and to fit it less than one.

Its rates are a*exp(z*v). Where cycles keep microscopic reversibility, those between states i and j
are ``s*exp(y*v + (g_i - g_j)/2)`` with ``g_i = e_i + w_i*v``, which keep it for all parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from threading import Lock
from typing import Any, cast

import numpy as np

from channelfit.discovery.models import SchemeModels, ends_of, tree_of
from channelfit.discovery.schemes import Edge, Scheme
from channelfit.problem.experiment import Problem
from channelfit.reading.errors import InputError
from channelfit.scoring.machine.threads import side_by_side, usable_cores
from channelfit.scoring.pooled import Pool, PooledScorer
from channelfit.scoring.scorer import ChannelScorer, InnerScorer, Linearization, make_scorer
from channelfit.search.objective import Local, Objective
from channelfit.search.plan import FitPlan
from channelfit.search.space import values_in_ranges

#: The greatest exponent of a rate.
_GREATEST_EXPONENT = 600.0
#: The parts into which a candidate is cut for threads of a GPU: a few hundred candidates, those
#: of all schemes that are fitted at a time, then fill it.
_JOBS = 8
#: Points that a thread takes at a time.
_BLOCK = 32
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
    """The parameters of a complete graph as functions of those of schemes.

    With the parameters p (n_parameters, n) of a scheme they are ``L + share @ p``, and for products
    ``exp(L)``, where ``L = constant + power @ log p``.

    Attributes:
        is_product: (n_schemes, n_complete) bool. constant: (n_schemes, n_complete). power, share:
            (n_schemes, n_complete, n_parameters).
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
        shape = 1, len(rows), len(columns)
        first = shape[:2]
        found = cls(np.zeros(first, bool), np.zeros(first), np.zeros(shape), np.zeros(shape))
        suffixes, products = models.products(scheme)
        a, z = ([columns[f"{x}_{suffix}"] for suffix in suffixes] for x in "az")
        shared = columns.keys() - {own.parameters[k].name for k in (*a, *z)}
        for name in shared:
            found.share[0, rows[name], columns[name]] = 1.0
        sizes = "s_" if models.reversible else "a_"
        for name, row in rows.items():
            if name.startswith(sizes) and name not in shared:
                found.is_product[0, row], found.constant[0, row] = True, -np.inf
        for size, slope, constant, power in _sums(models.reversible, scheme, products):
            found.constant[0, rows[size]] = constant
            found.power[0, rows[size], a] = found.share[0, rows[slope], z] = power
        return found

    @classmethod
    def joined(cls, embeddings: Sequence[Embedding], orders: Sequence[Sequence[int]]) -> Embedding:
        """Return the embeddings of several schemes in one complete graph as one.

        Arguments:
            orders: of each the order of its parameters; then come as many that have no effect as
                make them those of the complete graph.
        """
        size = embeddings[0].constant.shape[1]

        def whole(array: np.ndarray, order: Sequence[int]) -> np.ndarray:
            return np.pad(array[0][:, order], ((0, 0), (0, size - len(order))))

        pairs = list(zip(embeddings, orders, strict=True))
        return cls(
            np.concatenate([one.is_product for one in embeddings]),
            np.concatenate([one.constant for one in embeddings]),
            np.array([whole(one.power, order) for one, order in pairs]),
            np.array([whole(one.share, order) for one, order in pairs]),
        )

    def take(self, which: np.ndarray) -> Embedding:
        """Return those of the schemes (n,) of candidates."""
        return Embedding(*(array[which] for array in vars(self).values()))

    def values(self, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the parameters of the complete graph, and their derivatives by L.

        Arguments:
            parameters: (n_parameters, n), of one scheme, or each of a scheme of its own.

        Returns: both (n_complete, n).
        """
        used = self.power.any(axis=1).T
        logs = np.log(np.where(used, parameters, 1.0))
        sums = _products(self.power, logs) + self.constant.T
        with np.errstate(over="ignore"):
            exponential = np.exp(np.where(self.is_product.T, sums, 0.0))
        values = np.where(self.is_product.T, exponential, sums)
        return values + _products(self.share, parameters), exponential

    def slopes(self, parameters: np.ndarray, by_sum: np.ndarray) -> np.ndarray:
        """Return derivatives (n, n_complete, n_parameters) of the complete graph's parameters.

        Arguments:
            parameters, by_sum: given to `values`, and its second result.
        """
        found = np.zeros((parameters.shape[1], *self.power.shape[1:]))
        # a slope z without a power may be 0
        np.divide(self.power, parameters.T[:, None, :], out=found, where=self.power != 0)
        with np.errstate(all="ignore"):  # of candidates that fail
            slopes: np.ndarray = by_sum.T[:, :, None] * found + self.share
        return slopes


def _products(matrices: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the products of one matrix, or of one for each, with columns (n_columns, n)."""
    if len(matrices) == 1:
        found: np.ndarray = matrices[0] @ columns
        return found
    return np.ascontiguousarray((matrices @ columns.T[:, :, None])[:, :, 0].T)


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
        return function(self.embedding.values(self._checked(parameters))[0])

    def linearize(self, parameters: Any) -> Linearization:
        parameters = self._checked(parameters)
        values, by_sum = self.embedding.values(parameters)
        found = self.inner.linearize(values)
        slopes = self.embedding.slopes(parameters, by_sum)
        good = np.isfinite(found.cost)[:, None, None] & self._free
        gradient, hessian = chained(found, np.where(good, slopes, 0.0))
        return Linearization(found.cost, found.status, gradient, hessian)

    @cached_property
    def _free(self) -> np.ndarray:
        return np.array([not p.fixed for p in self.problem.parameters])


def chained(found: Linearization, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return gradients (n_own, n) and Hessians (n_own, n_own, n) by other parameters.

    Arguments:
        slopes: (n, n_parameters, n_own) derivatives by these.
    """
    back = slopes.transpose(0, 2, 1)
    gradient = (back @ np.ascontiguousarray(found.gradient.T)[:, :, None])[:, :, 0]
    hessian = back @ np.ascontiguousarray(found.hessian.transpose(2, 0, 1)) @ slopes
    return np.ascontiguousarray(gradient.T), np.ascontiguousarray(hessian.transpose(1, 2, 0))


class SchemesObjective(Objective):
    """The objectives of several schemes of a size as one, for points of all of them side by side.

    A point has a row for each parameter of their complete graph: first those of its own scheme that
    are searched; the others have no effect. No digit depends on how many points there are.

    Arguments:
        objectives: of schemes that one complete graph scores, and plain (`Objective.is_plain`).
    """

    def __init__(self, objectives: Sequence[Objective]) -> None:
        parts = [cast(PartScorer, one.scorer) for one in objectives]
        first = objectives[0]
        super().__init__(first.space, parts[0].inner, at_once=True, floor=first.floor)
        spaces = [one.space for one in objectives]
        orders = [[*s.free, *(set(range(s.n_parameters)) - set(s.free))] for s in spaces]
        self._embedding = Embedding.joined([part.embedding for part in parts], orders)
        # bounds, then the same or their logarithms; what has no effect is 1, whatever the point
        self._bounds = np.ones((4, len(spaces), self.n_free))
        self._in_logarithms = np.zeros((len(spaces), self.n_free), bool)
        for k, (space, order) in enumerate(zip(spaces, orders, strict=True)):
            for row, place in enumerate(order):
                own = space.parameters[place]
                ends = np.full(2, own.value) if own.fixed else np.array([own.lower, own.upper])
                logs = self._in_logarithms[k, row] = not own.fixed and own.scale == "log"
                self._bounds[:, k, row] = [*ends, *(np.log(ends) if logs else ends)]

    @property
    def n_free(self) -> int:
        """Rows of a point."""
        return int(self._embedding.constant.shape[1])

    def linearize(self, unit: np.ndarray, well: np.ndarray | None = None) -> Local:
        """Return cost, gradient and Hessian at points (n_free, n_points), by their coordinates.

        Arguments:
            well: (n_points,) the number of the scheme of each point.
        """
        (n_free, n), which = unit.shape, np.zeros(unit.shape[1], int) if well is None else well
        bounds, logs = self._bounds[:, which].swapaxes(1, 2), self._in_logarithms[which].T
        physical = values_in_ranges(unit, bounds, logs)
        slope = (bounds[3] - bounds[2]) * np.where(logs, physical, 1.0)
        values, by_sum = np.empty((2, n_free, n))

        def embed(first: int, last: int) -> None:
            some = slice(first * _BLOCK, last * _BLOCK)
            own = self._embedding.take(which[some])
            values[:, some], by_sum[:, some] = own.values(physical[:, some])

        self._shared(embed, n)
        found = self.scorer.linearize(values)
        good = np.isfinite(found.cost)
        gradient, hessian = np.empty((n_free, n)), np.empty((n_free, n_free, n))

        def chain(first: int, last: int) -> None:
            some = slice(first * _BLOCK, last * _BLOCK)
            slopes = self._embedding.take(which[some]).slopes(physical[:, some], by_sum[:, some])
            slopes *= slope[:, some].T[:, None, :]
            slopes[~good[some]] = 0.0
            part = Linearization(*(array[..., some] for array in vars(found).values()))
            gradient[:, some], hessian[:, :, some] = chained(part, slopes)

        self._shared(chain, n)
        return Local(found.cost, found.status, gradient, hessian)

    def _shared(self, some: Callable[[int, int], None], n: int) -> None:
        """Call a function for blocks of n points, by all threads."""

        def each(first: int, last: int) -> None:
            for k in range(first, last):  # one by one, as few points stay in the cache
                some(k, k + 1)

        side_by_side(each, n, _BLOCK, usable_cores())
