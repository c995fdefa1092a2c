"""Fits of schemes as tasks: a scan, fits until starts agree, and what begins at other solutions.

The result of a task depends on the seed, the scheme and the arguments alone, and not on where it
is computed, or on which other tasks there are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from channelfit.discovery.complete import CompleteScorers, SchemesObjective
from channelfit.discovery.models import SchemeModels, unit_of
from channelfit.discovery.schemes import Scheme
from channelfit.problem.experiment import Problem, n_scored
from channelfit.reading.errors import InputError, TemporaryError
from channelfit.results.comparison import criteria
from channelfit.results.uncertainty.assessment import assess
from channelfit.scoring.machine.arrays import to_host
from channelfit.scoring.machine.threads import single_threaded_blas
from channelfit.scoring.scorer import ChannelScorer, make_scorer
from channelfit.search.agreement import agreement
from channelfit.search.hybrid import Hybrid
from channelfit.search.least_squares import Starts, begin, improve, refine
from channelfit.search.objective import Objective
from channelfit.search.plan import FitPlan
from channelfit.tasks.result_store import Arrays, Key, decoded_json, expect

#: Kinds of tasks that are short, in which points of many schemes descend side by side.
SHORT = frozenset({"scan", "up", "down"})
#: Iterations of least squares in the rounds of a level.
ITERATIONS = (100, 200, 400)
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
#: Schemes, and about as many points of them, that descend side by side at most: of seven states and
#: 58 parameters they need half a gigabyte.
_BESIDE, _POINTS = 256, 8192
#: Iterations from points that are near a minimum, and of a fit to the currents of another scheme.
_ENDS, _TO_CURRENTS = 30, 200


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

    @classmethod
    def of(cls, scheme: Scheme, found: Arrays) -> SchemeFit:
        """Return the fit that the result of a task holds."""
        facts = decoded_json(found, "facts")
        undetermined = facts.get("undetermined")
        return cls(
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
        """Fit a scheme; one that fails leaves its reason in the result.

        Raises TemporaryError: the machine failed, not the scheme.
        """
        kind, place, number = str(key[0]), int(key[1]), int(key[2])
        given = self.given[key] if arguments is None else arguments
        if kind in SHORT:
            return self._descended({key: given})[key]
        try:
            if kind == "currents":
                return self._to_currents(place, number, given)
            plan = self.models.plan_of(self.schemes[place])
            if kind == "assess":
                return self._assessed(plan, place, given)
            with nullcontext() if self.complete is None else self.complete.pool.turn():
                return self._fitted(plan, self._scorer(place, plan.problem), place, number, given)
        except TemporaryError:
            raise
        except InputError as error:
            return _failed(error)

    def compute_together(self, keys: Sequence[Key]) -> Iterator[tuple[Key, Arrays]]:
        """Compute tasks of one kind in SHORT and one round; points of many schemes share a launch.

        Yields: as of an executor; each has the result that it has by `compute`, to the last digit.
        """
        # a scan has as many known points as it draws, and the best one
        most = max(1, min(_BESIDE, _POINTS // (2 * self.effort.starts + 1)))
        for first in range(0, len(keys), most):
            some = {key: self.given[key] for key in keys[first : first + most]}
            with single_threaded_blas():
                found = self._descended(some)
            yield from found.items()

    def _random(self, place: int, number: int) -> np.random.Generator:
        """Return the random numbers of a round of a scheme, whatever its place in the list."""
        own = self.schemes[place]
        words = [self.seed, own.n, own.n_open, own.code, *own.arm, number]
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))

    def _descended(self, given: Mapping[Key, Arrays]) -> dict[Key, Arrays]:
        """Refine the points of tasks of one kind in SHORT and one round; scans draw some before.

        A scan descends with stairs for ramps, and the ends of its best are refined without.
        """
        found, groups = dict[Key, Arrays](), dict[Any, list[_Descent]]()
        for key, own in given.items():
            try:
                one = self._begun(key, own)
            except TemporaryError:
                raise
            except InputError as error:
                found[key] = _failed(error)
            else:
                groups.setdefault(self._group(one), []).append(one)
        for some in groups.values():
            try:
                found |= self._refined(some)
            except InputError as error:
                half = len(some) // 2
                if half:  # the error may be that of one scheme, or memory suffice for fewer
                    for part in (some[:half], some[half:]):
                        found |= self._descended({one.key: given[one.key] for one in part})
                elif isinstance(error, TemporaryError):
                    raise
                else:
                    found[some[0].key] = _failed(error)
        return found

    def _refined(self, some: Sequence[_Descent]) -> dict[Key, Arrays]:
        """Refine the points of descents that share launches."""
        if some[0].rough is not None:
            self._halved(some)
        objective, unit, which = self._joined([one.fine for one in some], some)
        ends, found = refine(objective, unit, _ENDS, well=which), {}
        for k, one in enumerate(some):
            own = ends.take(which == k)
            found[one.key] = _arrays_of(one.plan, own.unit[: one.fine.n_free], own.cost)
        return found

    def _begun(self, key: Key, given: Arrays) -> _Descent:
        """Return the points from which a task in SHORT descends; a scan draws some."""
        kind, place, number = str(key[0]), int(key[1]), int(key[2])
        plan = self.models.plan_of(self.schemes[place])
        fine = self._objective(plan, self._scorer(place, plan.problem))
        if kind != "scan":
            return _Descent(key, plan, fine, given["unit"])
        rough, random = self._rough(place, plan), self._random(place, number)
        scan, starts = (max(1, n >> number) for n in (self.effort.scan, self.effort.starts))
        drawn = rough.sample(scan, random)
        best = [_lowest(rough, points, starts) for points in (given["unit"], drawn)]
        new = np.repeat([False, True], [some.shape[1] for some in best])
        unit = np.concatenate(best, axis=1)
        return _Descent(key, plan, fine, unit, rough, new, given["unit"][:, :1])

    def _group(self, one: _Descent) -> Any:
        """Return what descents have in common that can share launches.

        Those to observations do not: their last digits depend on how many points there are.
        """
        plain = one.fine.is_plain and (one.rough is None or one.rough.is_plain)
        observed = any(e.observations for e in one.plan.problem.experiments)
        if self.complete is None or not plain or observed:
            return one.key
        scheme = self.schemes[int(one.key[1])]
        return scheme.n, scheme.n_open

    def _joined(
        self, objectives: Sequence[Objective], some: Sequence[_Descent]
    ) -> tuple[Objective, np.ndarray, np.ndarray]:
        """Return the objectives of a group as one, its points, and the descent of each."""
        first = objectives[0]
        shared = self.complete is not None and first.is_plain
        objective = SchemesObjective(objectives) if shared else first
        return objective, *joined_points([one.unit for one in some], objective.n_free)

    def _halved(self, scans: Sequence[_Descent]) -> None:
        """Refine the points of scans; again and again the better half of each goes on.

        That is so of known points and of new ones. The points become the ends.
        """
        number = int(scans[0].key[2])
        iterations, least = ITERATIONS[number], max(1, 2 >> number)
        rough = [cast(Objective, one.rough) for one in scans]
        objective, unit, which = self._joined(rough, scans)
        new = np.concatenate([one.new for one in scans])
        points = begin(objective, unit, which)
        for k in range(iterations):
            if points.done.all():
                break
            if k in [iterations // part for part in (8, 4, 2)]:
                left = np.concatenate(
                    [
                        _better_half(points, (which == one) & (new == kind), least)
                        for one in range(len(scans))
                        for kind in (False, True)
                    ]
                )
                points, which, new = points.take(left), which[left], new[left]
            points = improve(objective, points, well=which)
        for k, one in enumerate(scans):
            ends = points.unit[: one.fine.n_free, which == k]
            one.unit = np.concatenate([ends, one.best], axis=1)

    def _fitted(
        self, plan: FitPlan, scorer: ChannelScorer, place: int, number: int, given: Arrays
    ) -> Arrays:
        """Fit a scheme until independent starts agree.

        With stairs for ramps; all ends that may be the lowest without are then refined so.
        """
        objective, rough = self._objective(plan, scorer), self._rough(place, plan)
        random = self._random(place, len(ITERATIONS) + number)
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


@dataclass(eq=False)
class _Descent:
    """Points of one scheme on their way down.

    Attributes:
        fine: the objective of the scheme.
        unit: (n_free, n) the points.
        rough: of a scan, the objective with stairs for ramps.
        new: (n,) of a scan, whether a point was drawn and not known.
        best: (n_free, 1 or 0) of a scan, the best point that was known.
    """

    key: Key
    plan: FitPlan
    fine: Objective
    unit: np.ndarray
    rough: Objective | None = None
    new: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    best: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))


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


def _better_half(points: Starts, some: np.ndarray, least: int) -> np.ndarray:
    """Return the places of the half of some points that is lower, or of so many at least.

    Arguments:
        some: (n_points,) bool; all of them go on where nothing more is to be gained.
    """
    places = np.flatnonzero(some)
    if points.done[places].all():
        return places
    order = np.argsort(points.cost[places], kind="stable")
    return places[order[: max(least, -(-len(places) // 2))]]


def joined_points(parts: Sequence[np.ndarray], n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points (n_rows, n) of several schemes side by side, and the part (n,) of each."""
    padded = [np.pad(u, ((0, n_rows - len(u)), (0, 0)), constant_values=0.5) for u in parts]
    which = np.repeat(np.arange(len(parts)), [part.shape[1] for part in parts])
    return np.concatenate(padded, axis=1), which


def _failed(error: InputError) -> Arrays:
    return _arrays(np.empty((0, 0)), np.empty(0), {"failure": error.message})


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
