"""The search for the best schemes: each is scanned and refined a little, the best of them more.

Schemes are fitted level by level, those with fewer states and transitions first: a scheme contains
those that it becomes without a state or a transition, and so begins near their solutions, too. On
each level the better half goes on, and of these the better half again (successive halving; Jamieson
and Talwalkar 2016, AISTATS). Schemes without a cycle, which all others contain, and the best of all
are fitted until independent starts agree.

Each fit of a scheme is a task, whose result depends on the seed, the scheme and the arguments
alone, and not on where it is computed, or on which other tasks there are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, groupby
from typing import Any

import numpy as np

from channelfit.discovery.complete import CompleteScorers
from channelfit.discovery.models import SchemeModels, unit_of
from channelfit.discovery.schemes import Scheme
from channelfit.model.channel import Parameter
from channelfit.problem.experiment import Problem, n_scored, rounding_floor
from channelfit.reading.errors import InputError
from channelfit.results.comparison import criteria
from channelfit.results.uncertainty.assessment import assess
from channelfit.scoring.machine.arrays import to_host
from channelfit.scoring.machine.threads import single_threaded_blas
from channelfit.scoring.scorer import ChannelScorer, make_scorer
from channelfit.search.agreement import SAME, agreement
from channelfit.search.hybrid import Hybrid
from channelfit.search.least_squares import begin, improve, refine
from channelfit.search.objective import Objective
from channelfit.search.plan import FitPlan
from channelfit.tasks.executor import Executor, ThreadedExecutor, task_results
from channelfit.tasks.result_store import Arrays, Key, ResultStore, decoded_json, expect

#: Iterations of least squares in the rounds of a level, and the least schemes that go on.
_ITERATIONS, _LEAST = (100, 200, 400), 3
#: A scheme whose cost after its scan is so many times that of the best one is not fitted fully.
_HOPELESS = 4.0
#: Parents from whose solutions a scheme begins, at most.
_PARENTS = 4
#: Starts of a round of a full fit, at least and as a multiple of those of a scan, points drawn for
#: each, how many starts must agree, and rounds without a gain after which it ends anyway.
_STARTS, _TIMES, _SCANNED, _AGREE, _PATIENCE = 16, 8, 8, 3, 2
#: Independent starts that agree beyond doubt, so that a full fit ends at once.
_SURE = 8
#: See `Hybrid`: descents of schemes rest for long before they go on.
_AHEAD = 3000.0
#: Ends of a full fit with stairs for ramps whose costs are less than so many times the lowest may
#: be the lowest without.
_RIVAL = 1.1
#: Draws of which each point of a scan is the best, where they are scored quickly.
_DRAWN = 64
#: Full fits of a scheme, at most, each from what others have led to since.
_ROUNDS = 4
#: Iterations from points that are near a minimum, and points of a scheme that are kept.
_ENDS, _POINTS = 30, 12
#: Schemes that share a GPU at a time, and the tasks of few candidates that do not.
_TOGETHER, _ON_PROCESSOR = 64, ("assess", "currents")
#: Iterations of a fit to the currents of another scheme.
_TO_CURRENTS = 200


@dataclass(frozen=True)
class Effort:
    """How thoroughly schemes are searched: see the keys of the section `discover`."""

    scan: int
    starts: int
    keep: int


@dataclass(frozen=True)
class SchemeFit:
    """The fit of one scheme so far.

    Attributes:
        unit: (n_free, n) points of the unit cube, the best first; cost: (n,) pA^2.
        n_parameters: free ones, those that are solved among them.
        failure: why there is no fit; empty where there is one.
        agreement: of independent starts, as `Agreement.as_plain`; None unless it was fitted fully.
        undetermined: parameters that the data do not determine, in sentences; None likewise.
        still: names of the parameters z that were left out.
        values: (n_parameters,) of a scheme that was fitted fully, base units.
    """

    scheme: Scheme
    unit: np.ndarray
    cost: np.ndarray
    n_parameters: int
    failure: str = ""
    agreement: Mapping[str, Any] | None = None
    undetermined: tuple[str, ...] | None = None
    still: tuple[str, ...] = ()
    values: np.ndarray | None = None

    @property
    def best(self) -> float:
        """The lowest cost, inf where there is none."""
        return float(self.cost.min(initial=math.inf))

    @property
    def stage(self) -> str:
        """How far it was taken: "fitted" with its parameters assessed, or "scanned"."""
        return "scanned" if self.values is None else "fitted"


@dataclass(frozen=True, eq=False)
class SchemeTasks:
    """Fits of schemes as tasks; see `tasks.executor.TaskSetWithArguments`.

    The key is (kind, place, round): ("scan", k, r) for round r of scheme k on its level, ("fit", k,
    r) for its full fits, 0 on its level, ("down", k, r) and ("up", k, r) for what begins at
    solutions of others, ("assess", k, 0) for its parameters, and ("currents", k, j) for a fit of
    scheme k to the currents of scheme j.

    Attributes:
        models: make the plan of each scheme.
        schemes: all of them.
        backend: see `make_scorer`.
        complete: score each scheme as a part of the complete graph; None for a scorer of its own.
        identity: see `tasks.executor.TaskSet`.
        given: the arguments by key; they are not sent with the task set.
    """

    models: SchemeModels
    schemes: tuple[Scheme, ...]
    effort: Effort
    seed: int
    backend: str
    complete: CompleteScorers | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[Key, Arrays] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "given": {}}

    def arguments(self, key: Key) -> Arrays:
        """Return the points from which a task begins, and values that make currents."""
        return self.given[key]

    def check_stored(self, key: Key, found: Arrays) -> None:
        """Raise InputError for a stored result that was damaged."""
        expect(
            found, {"unit": ("f", (None, None)), "cost": ("f", (None,)), "facts": ("u", (None,))}
        )
        decoded_json(found, "facts")

    @single_threaded_blas()
    def compute(self, key: Key, arguments: Arrays | None = None) -> Arrays:
        """Fit a scheme; one that fails leaves its reason in the result."""
        kind, place, number = str(key[0]), int(key[1]), int(key[2])
        given = self.given[key] if arguments is None else arguments
        try:
            if kind == "currents":
                return self._to_currents(place, number, given)
            plan = self.models.plan_of(self.schemes[place])
            if kind == "assess":
                return self._assessed(plan, place, given)
            with nullcontext() if self.complete is None else self.complete.pool.turn():
                scorer = self._scorer(place, plan.problem)
                if kind == "fit":
                    return self._fitted(plan, scorer, place, number, given)
                if kind in ("up", "down"):
                    ends = refine(self._objective(plan, scorer), given["unit"], _ENDS)
                    return _arrays_of(plan, ends.unit, ends.cost)
                return self._scanned(plan, scorer, place, number, given)
        except InputError as error:
            return _arrays(np.empty((0, 0)), np.empty(0), {"failure": error.message})

    def _random(self, place: int, number: int) -> np.random.Generator:
        """Return the random numbers of a round of a scheme, whatever its place in the list."""
        own = self.schemes[place]
        words = [self.seed, own.n, own.n_open, own.code, *own.arm, number]
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))

    def _scanned(
        self, plan: FitPlan, scorer: ChannelScorer, place: int, number: int, given: Arrays
    ) -> Arrays:
        """Scan and refine known points and new ones; of each the better half goes on.

        That is done with stairs for ramps, and the ends of the best are refined without.
        """
        rough, random = self._rough(place, plan), self._random(place, number)
        scan, starts = (max(1, n >> number) for n in (self.effort.scan, self.effort.starts))
        drawn = rough.sample(scan, random)
        best = [_lowest(rough, points, starts) for points in (given["unit"], drawn)]
        points = begin(rough, np.concatenate(best, axis=1))
        new = np.repeat([False, True], [some.shape[1] for some in best])
        least = max(1, 2 >> number)
        for k in range(_ITERATIONS[number]):
            if k in [_ITERATIONS[number] // part for part in (8, 4, 2)]:
                left = [_better_half(points.cost, new == one, least) for one in (0, 1)]
                points, new = points.take(np.concatenate(left)), new[np.concatenate(left)]
            if points.done.all():
                break
            points = improve(rough, points)
        unit = np.concatenate([points.unit, given["unit"][:, :1]], axis=1)
        ends = refine(self._objective(plan, scorer), unit, _ENDS)
        return _arrays_of(plan, ends.unit, ends.cost)

    def _fitted(
        self, plan: FitPlan, scorer: ChannelScorer, place: int, number: int, given: Arrays
    ) -> Arrays:
        """Fit a scheme until independent starts agree.

        With stairs for ramps; all ends that may be the lowest without are then refined so.
        """
        objective, rough = self._objective(plan, scorer), self._rough(place, plan)
        random = self._random(place, len(_ITERATIONS) + number)
        starts = max(_STARTS, _TIMES * self.effort.starts)
        search = Hybrid(
            plan.space.n_free,
            int(random.integers(1 << 62)),
            scan=_SCANNED * starts,
            starts=starts,
            agree=_AGREE,
            patience=_PATIENCE,
            initial=given["unit"] if given["unit"].size else None,
            ahead=_AHEAD,
        )
        for _ in search.search(rough):
            if search.agreement is not None and search.agreement.arrived >= _SURE:
                break
        found = search.found
        if found is None or not np.isfinite(found.cost).any():
            raise InputError("no candidate could be scored")
        order = np.argsort(found.cost, kind="stable")
        order = order[found.cost[order] <= _RIVAL * found.cost[order[0]] + objective.floor]
        ends = refine(
            objective,
            np.concatenate([given["unit"][:, :1], found.unit[:, order]], axis=1),
            _ENDS,
        )
        best = float(ends.cost.min())
        # costs with stairs compare with each other alone: those too high to be refined stay so
        cost = np.maximum(found.cost, _RIVAL * best)
        cost[order] = ends.cost[-len(order) :]
        agreed = agreement(best, cost[found.fresh], _AGREE, objective.floor)
        return _arrays_of(plan, ends.unit, ends.cost, {"agreement": agreed.as_plain()})

    def _assessed(self, plan: FitPlan, place: int, given: Arrays) -> Arrays:
        """Bring the best values of a scheme to the minimum, and assess its parameters."""
        best = plan.space.to_physical(given["unit"][:, :1])[:, 0]
        still: tuple[str, ...] = ()
        if self.models.chooses:
            plan, best, still = self._without_voltage(place, plan, best)
        judged = assess(plan, self._own_scorer(plan.problem), best, finish=True)
        found = judged.estimate
        facts = {
            "undetermined": [combination.text for combination in judged.open],
            "values": found.objective.physical(found.unit[:, None])[:, 0].tolist(),
            "still": still,
        }
        # without the solved parameters, which follow
        values = dict(zip(self._names(plan), facts["values"], strict=True))
        return _arrays_of(plan, unit_of(plan, values)[:, None], np.array([found.cost]), facts)

    def _without_voltage(
        self, place: int, plan: FitPlan, values: np.ndarray
    ) -> tuple[FitPlan, np.ndarray, tuple[str, ...]]:
        """Leave out the z of a rate as long as BIC is lower without it, the least needed first.

        Returns: the plan without them, its values (n_parameters,), and their names.
        """
        scheme, n = self.schemes[place], n_scored(plan.problem)
        still: tuple[str, ...] = ()
        least = math.inf
        while True:
            free = [p.name for p in plan.problem.parameters if p.name[:2] == "z_" and not p.fixed]
            known = dict(zip(self._names(plan), values.tolist(), strict=True))
            tried = []
            for name in [*free, *([""] if math.isinf(least) else [])]:
                own = self.models.plan_of(scheme, (*still, name)) if name else plan
                objective = self._objective(own, self._own_scorer(own.problem))
                end = refine(objective, unit_of(own, known)[:, None])
                cost, k = float(end.cost[0]), own.space.n_free + len(own.solved)
                if not math.isfinite(cost):
                    continue
                bic = criteria(max(cost, objective.floor), k, n, plan.problem.known_noise_pA)[1]
                tried.append((bic, name, own, objective.physical(end.unit)[:, 0]))
            best = min(tried, key=lambda one: one[:2], default=None)
            if best is None or best[0] >= least:
                return plan, values, still
            least, name, plan, values = best
            if not name:
                return plan, values, still
            still = (*still, name)

    def _to_currents(self, place: int, other: int, given: Arrays) -> Arrays:
        """Fit a scheme to the currents that another one predicts, without noise."""
        still = decoded_json(given, "still")
        plan, source = (
            self.models.plan_of(self.schemes[k], names)
            for k, names in zip((place, other), still, strict=True)
        )
        currents = self._own_scorer(source.problem).simulate(given["values"][:, None])
        problem = Problem(
            plan.problem.model,
            tuple(
                replace(e, recording=replace(e.recording, current_pA=c[:, :, 0]))
                for e, c in zip(plan.problem.experiments, currents, strict=True)
                if e.recording is not None
            ),
        )
        plan = replace(plan, problem=problem)
        objective = plan.objective(self._own_scorer(problem))
        objective.previews = True
        ends = refine(objective, given["unit"], _TO_CURRENTS)
        return _arrays_of(plan, ends.unit, ends.cost)

    def _scorer(self, place: int, problem: Problem, rough: bool = False) -> ChannelScorer:
        """Return the scorer of a scheme's problem; `rough` as of `SchemeModels.plan_of`."""
        if self.complete is None:
            return make_scorer(problem, self.backend)
        return self.complete(self.schemes[place], problem, rough)

    def _own_scorer(self, problem: Problem) -> ChannelScorer:
        """Return a scorer of one scheme for a few candidates."""
        return make_scorer(problem, self.backend_of_one)

    @property
    def backend_of_one(self) -> str:
        """The backend of a few candidates of one scheme; a GPU would compile for longer than score.

        Where all schemes of a size share a compilation this is the processor.
        """
        return self.backend if self.complete is None else "cpu"

    def _names(self, plan: FitPlan) -> list[str]:
        return [p.name for p in plan.problem.parameters]

    def _objective(self, plan: FitPlan, scorer: ChannelScorer) -> Objective:
        """Return the objective of a scheme."""
        found = plan.objective(scorer)
        found.previews = found.at_once = True
        return found

    def _rough(self, place: int, fine: FitPlan) -> _Drawn:
        """Return nearly the same objective with stairs for ramps, from which points are drawn."""
        plan = self.models.plan_of(self.schemes[place], rough=True)
        scorer = self._scorer(place, plan.problem, rough=True)
        found = _Drawn(**vars(self._objective(replace(plan, solved=fine.solved), scorer)))
        found.groups = self.models.groups(found.space)
        found.solved = plan.objective(scorer)
        found.solved.previews = True
        found.draw = lambda unit, random: self.models.scan(plan, unit, random)
        return found


class _Drawn(Objective):
    """An objective that draws points of a scan in a way of its own.

    Attributes:
        solved: the same with a conductance solved, if one is.
        draw: draws rates of some of its points (n_free, n) anew.
    """

    solved: Objective
    draw: Callable[[np.ndarray, np.random.Generator], np.ndarray]

    def sample(self, n: int, random: np.random.Generator) -> np.ndarray:
        """Draw points (n_free, n), each the best of several if these are scored quickly."""
        several = 1 if self.solved.steps and not self.on_gpu else _DRAWN
        even = self.solved.sample(several * n, random)
        # rates of most channels first; and all that the ranges allow
        unit = np.where(np.arange(several * n) // several % 2, even, self.draw(even, random))
        cost = to_host(self.solved.score(unit).cost).reshape(n, several)
        best = cost.argmin(axis=1) + several * np.arange(n)
        return np.asarray(self.space.to_unit(self.solved.physical(unit[:, best])))


def _arrays_of(
    plan: FitPlan, unit: np.ndarray, cost: np.ndarray, facts: Mapping[str, Any] | None = None
) -> Arrays:
    """Return points (n_free, n) with their costs (n,), the best first, and facts as arrays."""
    order = np.argsort(cost, kind="stable")
    order = order[np.isfinite(cost[order])]
    known = {**(facts or {}), "n_parameters": plan.space.n_free + len(plan.solved)}
    if not len(order):
        known["failure"] = "no start has a finite cost"
    return _arrays(unit[:, order], cost[order], known)


def _better_half(cost: np.ndarray, some: np.ndarray, least: int) -> np.ndarray:
    """Return the places of the half of some costs that is lower, or of so many at least."""
    places = np.flatnonzero(some)
    order = np.argsort(cost[places], kind="stable")
    return places[order[: max(least, -(-len(places) // 2))]]


def _lowest(objective: Objective, unit: np.ndarray, n: int) -> np.ndarray:
    """Return the n points (n_free, n) of lowest cost."""
    if unit.shape[1] == 0:
        return np.empty((objective.n_free, 0))
    cost = to_host(objective.score(np.ascontiguousarray(unit)).cost)
    order = np.argsort(cost, kind="stable")[:n]
    return unit[:, order[np.isfinite(cost[order])]]


def _arrays(unit: np.ndarray, cost: np.ndarray, facts: Mapping[str, Any]) -> Arrays:
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    return {"unit": np.ascontiguousarray(unit), "cost": cost, "facts": text}


# --- the order of tasks ---------------------------------------------------------------------------


@dataclass(eq=False)
class Discovery:
    """The fits of all schemes, level by level.

    Arguments:
        tasks: the schemes, without arguments.
        executor, store: see `task_results`.
        on_done: called with each scheme and what came of its fit.

    Attributes:
        fits: by place of the scheme.
        faults: by place, why a scheme with a fit could not be assessed.
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

    def criteria(self, place: int) -> tuple[float, float]:
        """Return AIC and BIC of a scheme; inf where it has no fit."""
        fit = self.fits[place]
        if not math.isfinite(fit.best):
            return math.inf, math.inf
        noise = self.tasks.models.plan.problem.known_noise_pA
        return criteria(max(fit.best, self.floor), fit.n_parameters, self.n_samples, noise)

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
            for _ in _ITERATIONS[: 1 if self.is_tree(level[0]) else None]:
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
        for number in range(len(_ITERATIONS)):
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
        on_gpu = all(key[0] not in _ON_PROCESSOR for key in keys)
        if executor is None and complete is not None and on_gpu:
            executor = ThreadedExecutor(_TOGETHER, complete.pool.close)
        return dict(task_results(tasks, list(keys), executor, self.store, self._done))

    def _round(self, keys: Mapping[Key, Arrays]) -> None:
        """Compute tasks, and join what they found with what was known before."""
        for key, found in self._computed(keys).items():
            place = int(key[1])
            new, before = _fit_of(self.tasks.schemes[place], found), self.fits.get(place)
            if before is None or (not new.failure and before.failure):
                self.fits[place] = new
            elif not new.failure:
                self.fits[place] = self._joined(before, new, place)
            else:
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
        return replace(
            new,
            unit=unit,
            cost=cost,
            agreement=agreement,
        )

    def _done(self, key: Key, found: Arrays) -> None:
        self.on_done(key, _fit_of(self.tasks.schemes[int(key[1])], found))

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


def _fit_of(scheme: Scheme, found: Arrays) -> SchemeFit:
    """Return the fit that the result of a task holds."""
    facts = decoded_json(found, "facts")
    undetermined = facts.get("undetermined")
    return SchemeFit(
        scheme,
        found["unit"],
        found["cost"],
        int(facts.get("n_parameters", 0)),
        str(facts.get("failure", "")),
        facts.get("agreement"),
        None if undetermined is None else tuple(undetermined),
        tuple(facts.get("still", ())),
        np.array(facts["values"]) if "values" in facts else None,
    )
