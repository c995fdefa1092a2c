"""The search for the best schemes: each is scanned and refined a little, the best of them more.

Schemes are fitted level by level, those with fewer states and transitions first: a scheme contains
those that it becomes without a state or a transition, and so begins near their solutions, too. On
each level the better half goes on, and of these the better half again (successive halving; Jamieson
and Talwalkar 2016, AISTATS). Schemes without a cycle, which all others contain, and the best of all
are fitted until independent starts agree.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, groupby
from typing import Any, cast

import numpy as np

from channelfit.discovery.models import unit_of
from channelfit.discovery.schemes import Scheme
from channelfit.discovery.tasks import ITERATIONS, SHORT, SchemeFit, SchemeTasks
from channelfit.model.channel import Parameter
from channelfit.problem.experiment import n_scored, rounding_floor
from channelfit.reading.errors import InputError
from channelfit.results.comparison import criteria
from channelfit.search.agreement import SAME
from channelfit.search.plan import FitPlan
from channelfit.tasks.executor import Executor, ThreadedExecutor, task_results
from channelfit.tasks.result_store import Arrays, Key, ResultStore

#: The least schemes of a level that go on.
_LEAST = 3
#: A scheme whose cost after its scan is so many times that of the best one is not fitted fully.
_HOPELESS = 4.0
#: Parents from whose solutions a scheme begins, at most.
_PARENTS = 4
#: Full fits of a scheme, at most, each from what others have led to since.
_ROUNDS = 4
#: Points of a scheme that are kept.
_POINTS = 12
#: Schemes that share a GPU at a time, and the tasks of few candidates that do not.
_TOGETHER, _ON_PROCESSOR = 64, frozenset({"assess", "currents"})


@dataclass(eq=False)
class Discovery:
    """The fits of all schemes, level by level.

    Arguments:
        tasks: the schemes, without arguments.
        executor, store: see `task_results`.
        on_done: called with each scheme and what came of its fit.

    Attributes:
        fits: by place of the scheme.
        faults: by place, why a scheme with a fit could not be fitted fully or assessed.
    """

    tasks: SchemeTasks
    executor: Executor | None = None
    store: ResultStore | None = None
    on_done: Callable[[Key, SchemeFit], object] = lambda key, fit: None
    fits: dict[int, SchemeFit] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)
    _plans: dict[tuple[int, tuple[str, ...]], FitPlan] = field(default_factory=dict)

    @cached_property
    def places(self) -> dict[Scheme, int]:
        """The place of each scheme."""
        return {scheme: k for k, scheme in enumerate(self.tasks.schemes)}

    @cached_property
    def n_samples(self) -> int:
        """How many samples count."""
        return n_scored(self.tasks.models.plan.problem)

    @cached_property
    def floor(self) -> float:
        """The cost up to which all is rounding: schemes that come there fit alike."""
        return rounding_floor(self.tasks.models.plan.problem, "float64")

    def criteria(self, place: int, n_samples: float | None = None) -> tuple[float, float]:
        """Return AIC and BIC of a scheme, as of so many samples; inf where it has no fit."""
        fit, n = self.fits[place], self.n_samples if n_samples is None else n_samples
        if not math.isfinite(fit.best):
            return math.inf, math.inf
        noise = self.tasks.models.plan.problem.known_noise_pA
        return criteria(max(fit.best, self.floor), fit.n_parameters, n, noise)

    def bic(self, place: int) -> float:
        """Return Schwarz's criterion of a scheme; inf where it has no fit."""
        return self.criteria(place)[1]

    def ranked(self) -> list[int]:
        """Return the places of all schemes that have a fit, the best by BIC first."""
        found = [k for k in self.fits if not self.fits[k].failure]
        return sorted(found, key=lambda k: (self.bic(k), k))

    def levels(self) -> list[list[int]]:
        """Return the places of the schemes of each level."""
        schemes = self.tasks.schemes
        groups = groupby(range(len(schemes)), key=lambda k: (schemes[k].n, len(schemes[k].edges)))
        return [list(level) for _, level in groups]

    @staticmethod
    def survivors(n: int) -> int:
        """Return how many of n schemes go on to the next round of their level."""
        return min(n, max(_LEAST, -(-n // 2)))

    def is_tree(self, place: int) -> bool:
        """Whether a scheme has no cycle, and so begins near few solutions."""
        return not self.tasks.schemes[place].cycles

    @property
    def n_scans(self) -> int:
        """How many tasks `scan` has, where no scheme fails."""
        total = 0
        for level in self.levels():
            n = len(level)
            for _ in ITERATIONS[: 1 if self.is_tree(level[0]) else None]:
                total += n
                n = self.survivors(n)
        return total

    def scan(self) -> None:
        """Fit all schemes a little, and the best of each level more."""
        for level in self.levels():
            self.scan_level(level)

    def scan_level(self, level: Sequence[int]) -> None:
        """Fit the schemes of these places a little, and the best of them more.

        Those without a cycle are fitted fully.
        """
        here = list(level)
        if self.is_tree(here[0]):
            self._round({("fit", k, 0): self._known(k, 0) for k in here})
            return
        for number in range(len(ITERATIONS)):
            self._round({("scan", k, number): self._known(k, number) for k in here})
            good = sorted((k for k in here if not self.fits[k].failure), key=self.bic)
            here = sorted(good[: self.survivors(len(here))])

    def fit(self) -> list[int]:
        """Fit the best schemes fully, and return the places of those that could be.

        What is found for one scheme is a start for those that contain it, and for those that it
        contains; where that is lower than what independent starts came to, these try again.
        """
        for number in range(_ROUNDS):
            self._shared(number)
            due = [k for k in self._best() if self.fits[k].agreement is None]
            if not due:
                break
            self._round({("fit", k, number + 1): {"unit": self.fits[k].unit} for k in due})
        self._shared(_ROUNDS)
        best = self._best()
        self._round({("assess", k, 0): {"unit": self.fits[k].unit} for k in best})
        return [k for k in self.ranked() if self.fits[k].values is not None]

    def _best(self) -> list[int]:
        """Return the places of the schemes that are fitted fully, in order."""
        best = self.ranked()[: self.tasks.effort.keep]
        # a misfit of observations within their standard errors may be that of any right scheme
        noise = self.tasks.models.plan.problem.known_noise_pA or 0.0
        lowest = max(self.fits[best[0]].best, self.floor, noise**2) if best else 0.0
        return sorted(k for k in best if self.fits[k].best <= _HOPELESS * lowest)

    def _shared(self, number: int) -> None:
        """Refine what the best schemes become without a part, and schemes worse than a part."""
        wholes: dict[int, list[Any]] = {}
        for place in self._best():
            whole = self.tasks.schemes[place]
            for k, states in self._parts(place):
                back = tuple(states.index(i) if i in states else -1 for i in range(whole.n))
                wholes.setdefault(k, []).append((whole, back, self._values(place)))
        known = {k: self._inherited(k, wholes[k]) for k in sorted(wholes)}
        keys: dict[Key, Arrays] = {("down", k, number): {"unit": u} for k, u in known.items()}
        self._round(keys)
        for level in self.levels():
            keys = {}
            for k in level:
                lower = [p for p in self._parts(k) if self._beats(self.fits[p[0]].best, k)]
                if lower and not self.fits[k].failure:
                    parts = [(self.tasks.schemes[j], s, self._values(j)) for j, s in lower]
                    keys["up", k, number] = {"unit": self._inherited(k, parts)}
            self._round(keys)

    def _beats(self, cost: float, place: int) -> bool:
        """Whether a cost is below that of a scheme by more than costs of one minimum differ."""
        return max(cost, self.floor) < self.fits[place].best * (1 - SAME)

    def compare(self, best: Sequence[int]) -> dict[tuple[int, int], float]:
        """Fit each of some schemes to the currents of each other one.

        Returns: by pair of places the root mean square of what is left, pA: of the first one,
        fitted to the second.
        """
        keys: dict[Key, Arrays] = {}
        for pair in combinations(sorted(best), 2):
            for k, j in (pair, pair[::-1]):
                still = json.dumps([self.fits[one].still for one in (k, j)]).encode()
                keys["currents", k, j] = {
                    "unit": self.fits[k].unit,
                    "values": np.asarray(self.fits[j].values),
                    "still": np.frombuffer(still, np.uint8),
                }
        found = self._computed(keys)
        return {
            (int(key[1]), int(key[2])): math.sqrt(float(one["cost"].min(initial=math.inf)))
            for key, one in found.items()
        }

    def _free(self, place: int) -> list[Parameter]:
        """Return the parameters of a scheme that are searched, those z that were left out too."""
        space = self.plan(place, ()).space
        return [space.parameters[k] for k in space.free]

    def plan(self, place: int, still: tuple[str, ...] | None = None) -> FitPlan:
        """Return the plan of a scheme, as it was fitted if it is not said without which z."""
        if still is None:
            still = self.fits[place].still if place in self.fits else ()
        if (place, still) not in self._plans:
            made = self.tasks.models.plan_of(self.tasks.schemes[place], still)
            self._plans[place, still] = made
        return self._plans[place, still]

    def _computed(self, keys: Mapping[Key, Arrays]) -> dict[Key, Arrays]:
        tasks = replace(self.tasks, given=keys)
        executor, complete = self.executor, tasks.complete
        kinds = {str(key[0]) for key in keys}
        if executor is None and complete is not None and not kinds & _ON_PROCESSOR:
            if kinds <= SHORT:
                executor = cast(Executor, SchemeTasks.compute_together)
            else:
                executor = ThreadedExecutor(_TOGETHER, complete.pool.close)
        return dict(task_results(tasks, list(keys), executor, self.store, self._done))

    def _round(self, keys: Mapping[Key, Arrays]) -> None:
        """Compute tasks, and join what they found with what was known before."""
        for key, found in self._computed(keys).items():
            place = int(key[1])
            new, before = SchemeFit.of(self.tasks.schemes[place], found), self.fits.get(place)
            if before is None or (not new.failure and before.failure):
                self.fits[place] = new
            elif not new.failure:
                self.fits[place] = self._joined(before, new, place)
            elif key[0] not in SHORT:
                self.faults[place] = new.failure

    def _joined(self, before: SchemeFit, new: SchemeFit, place: int) -> SchemeFit:
        """Join the points of two fits of a scheme."""
        names = [p.name for p in self._free(place)]
        kept = before.unit[[name not in new.still for name in names]]
        unit = np.concatenate([new.unit, kept], axis=1)
        cost = np.concatenate([new.cost, before.cost])
        if new.values is None:
            order = np.argsort(cost, kind="stable")[:_POINTS]
            unit, cost = unit[:, order], cost[order]
        else:
            cost[len(new.cost) :] = np.maximum(cost[len(new.cost) :], new.best)
        # agreement is about a cost that was the lowest
        agreement = before.agreement if new.agreement is None else new.agreement
        if new.agreement is None and self._beats(new.best, place):
            agreement = None
        return replace(new, unit=unit, cost=cost, agreement=agreement)

    def _done(self, key: Key, found: Arrays) -> None:
        self.on_done(key, SchemeFit.of(self.tasks.schemes[int(key[1])], found))

    def _known(self, place: int, number: int) -> Arrays:
        """Return the points from which a round of a scheme begins, beside those that it draws."""
        if number:
            return {"unit": self.fits[place].unit}
        parents = sorted((self.fits[k].best, k, states) for k, states in self._parts(place))
        schemes = self.tasks.schemes
        known = [(schemes[k], states, self._values(k)) for _, k, states in parents[:_PARENTS]]
        try:
            return {"unit": self._inherited(place, known)}
        except InputError:  # the task says why
            return {"unit": np.empty((0, 0))}

    def _parts(self, place: int) -> list[tuple[int, tuple[int, ...]]]:
        """Return the fitted schemes that one becomes without a state or a transition, each with the
        state that each of its states is.
        """
        scheme = self.tasks.schemes[place]
        smaller = [scheme.without_state(k) for k in range(scheme.n)]
        smaller += [scheme.without_edge(edge) for edge in scheme.edges]
        found = [(self.places.get(one[0]), one[1]) for one in smaller if one is not None]
        return [(k, s) for k, s in found if k in self.fits and not self.fits[k].failure]

    def _inherited(self, place: int, known: Sequence[Any]) -> np.ndarray:
        """Return points (n_free, n) of a scheme near others, as of `SchemeModels.inherited`."""
        plan = self.plan(place, ())
        values = self.tasks.models.inherited(self.tasks.schemes[place], known)
        points = [unit_of(plan, one) for one in values]
        return np.array(points).T if points else np.empty((plan.space.n_free, 0))

    def _values(self, place: int) -> dict[str, float]:
        """Return the best values of a scheme so far, by name."""
        plan, fit = self.plan(place, ()), self.fits[place]
        values = plan.space.to_physical(fit.unit[:, :1])[:, 0].tolist()
        return dict(zip((p.name for p in plan.problem.parameters), values, strict=True))
