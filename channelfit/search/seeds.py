"""Several whole searches of one fit, each with a seed of its own, of which the best is kept.

They know nothing of each other, so how many of them come to the same lowest cost says how far the
best can be trusted. One after the other here, or as pieces by others: the result is the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from channelfit.pieces.kept import Arrays, Kept, Key, expect, told_in
from channelfit.pieces.records import DAMAGED
from channelfit.pieces.work import Doer, pieces_done
from channelfit.reading.errors import InputError
from channelfit.search.agreement import agreement
from channelfit.search.loop import HISTORY_COLUMNS, FitResult, Progress, optimize
from channelfit.search.objective import Objective
from channelfit.search.plan import FitPlan
from channelfit.search.plan_work import PlanWork

#: So many searches are to arrive at the lowest cost, if there are as many.
_WANTED = 3
_CUT_OFF = "interrupted"


def seeds_of(plan: FitPlan) -> list[int]:
    """The seeds of the searches of a plan."""
    return [(plan.seed + k) % 2**64 for k in range(plan.seeds)]


def search_seeds(
    plan: FitPlan,
    objective: Objective,
    xp: Any,
    on_generation: Callable[[Progress], object] | None = None,
    clock: Callable[[], float] | None = None,
) -> FitResult:
    """Search with one seed after the other, in this process; arguments as in `loop.optimize`.

    An interrupt ends all of it, with the best so far.

    Raises: InputError where no search could score anything.
    """
    done = _Together(plan.seeds, on_generation)

    def searches() -> Iterator[FitResult | InputError]:
        for seed in seeds_of(plan):
            optimizer = replace(plan, seed=seed, seeds=1).make_optimizer(xp)
            try:
                found = optimize(optimizer, objective, plan.stop_rules, done.told, clock)
            except InputError as error:
                yield error
                continue
            yield found
            if found.stop_reason == _CUT_OFF:
                return

    return done.merged(searches(), plan, objective.floor)


def search_seeds_by(
    doer: Doer,
    work: PlanWork,
    kept: Kept | None = None,
    on_search: Callable[[FitResult], object] = lambda found: None,
    floor: float = 0.0,
) -> FitResult:
    """Lets others search, a seed a piece.

    Arguments:
        work: the fit.
        kept: where what they have found is kept.
        on_search: called with each search that gets done, in the order in which they do.
        floor: costs up to it are nothing but rounding; see `Objective.floor`.

    Raises: InputError where no search could score anything.
    """
    plan = work.plan
    keys: list[Key] = [("seed", seed) for seed in seeds_of(plan)]
    one = SeedWork(work.plan, work.backend, work.dtype, work.path, work.identity)

    done: dict[Key, FitResult] = {}

    def told(key: Key, arrays: Arrays) -> None:
        if "error" not in arrays:
            done[key] = _result(arrays, plan)
            on_search(done[key])

    def searches() -> Iterator[FitResult | InputError]:
        found, passed = pieces_done(one, keys, doer, kept, told), set()
        try:
            for key, arrays in found:
                passed.add(key)
                yield done[key] if key in done else InputError(_text(arrays["error"]))
        except KeyboardInterrupt:
            yield from (done[key] for key in keys if key in done and key not in passed)
            yield InputError(_CUT_OFF)

    return _Together(plan.seeds).merged(searches(), plan, floor)


class SeedWork(PlanWork):
    """Whole searches: the piece ("seed", n) is the one with this seed."""

    def do(self, key: Key) -> Arrays:
        """The arrays of its `FitResult`."""
        scorer, plan = self.scorer, replace(self.plan, seed=int(key[1]), seeds=1)
        try:
            optimizer = plan.make_optimizer(scorer.xp)
            found = optimize(optimizer, plan.objective(scorer), plan.stop_rules)
        except InputError as error:
            return {"error": _bytes(error.message)}
        if found.stop_reason == _CUT_OFF:  # half a search is no result that may be kept
            raise KeyboardInterrupt
        told = {name: getattr(found, name) for name in _PLAIN}
        history = np.array([found.history[name] for name in found.history.dtype.names or ()], float)
        return {"values": found.values, "history": history, "told": _bytes(json.dumps(told))}

    def check_kept(self, key: Key, found: Arrays) -> None:
        """See `pieces.work.Checking`."""
        if "error" in found:
            expect(found, {"error": ("u", (None,))})
            return
        names = self.plan.space.parameters
        shapes = {
            "values": ("f", (len(names),)),
            "history": ("f", (len(HISTORY_COLUMNS.names or ()), None)),
        }
        expect(found, shapes)
        told = told_in(found, "told")
        kinds: dict[str, Any] = {
            "notes": list,
            "settings": dict,
            "failures": dict,
            "agreement": dict | None,
        }
        kinds |= dict.fromkeys(("backend", "dtype", "source_hash"), str | None)
        kinds |= {"stop_reason": str, "optimizer": str}
        kinds |= dict.fromkeys(("cost", "seconds"), float | int)
        kinds |= dict.fromkeys(("generations", "evaluations", "seed"), int)
        good = isinstance(told, dict) and set(told) == set(_PLAIN)
        good = good and all(isinstance(told[name], kind) for name, kind in kinds.items())
        if not good or len(told["notes"]) != len(names) or told["seed"] != key[1]:
            raise InputError(DAMAGED, None, "told")
        counts = [told["agreement"].get("arrived", 0)] if told["agreement"] else []
        if not all(isinstance(n, int) for n in (*told["failures"].values(), *counts)):
            raise InputError(DAMAGED, None, "told")


#: What of a result is told as JSON. Its names and units are those of the plan.
_PLAIN = (
    *("notes", "cost", "generations", "evaluations", "seconds", "stop_reason", "seed"),
    *("optimizer", "settings", "failures", "backend", "dtype", "source_hash", "agreement"),
)


def _result(arrays: Arrays, plan: FitPlan) -> FitResult:
    told = json.loads(_text(arrays["told"]))
    told["notes"] = tuple(told["notes"])
    history = np.zeros(arrays["history"].shape[1], HISTORY_COLUMNS)
    for name, column in zip(history.dtype.names or (), arrays["history"], strict=True):
        history[name] = column
    names, units = zip(*((p.name, p.unit) for p in plan.space.parameters), strict=True)
    return FitResult(names=names, units=units, values=arrays["values"], history=history, **told)


def _bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def _text(array: np.ndarray) -> str:
    return array.tobytes().decode()


@dataclass
class _Together:
    """Searches put together as they come, and what is told of the one that goes on.

    Attributes:
        seeds: how many there will be. on_generation: told of every generation.
        best: of those that are done. lowest: the lowest cost that they met while they searched.
        generations, evaluations, seconds: of these, together.
    """

    seeds: int
    on_generation: Callable[[Progress], object] | None = None
    number: int = 1
    best: FitResult | None = None
    lowest: float = math.inf
    generations: int = 0
    evaluations: int = 0
    seconds: float = 0.0

    def told(self, progress: Progress) -> None:
        """Passes on a generation of the search that goes on, as one of all."""
        if self.on_generation is None:
            return
        stage = f"seed {self.number} of {self.seeds}"
        stage = f"{stage}, {progress.stage}" if progress.stage else stage
        better = self.lowest <= progress.best_cost
        seconds, evaluations = (
            self.seconds + progress.seconds,
            self.evaluations + progress.evaluations,
        )
        left = progress.seconds_left
        self.on_generation(
            replace(
                progress,
                generation=self.generations + progress.generation,
                evaluations=evaluations,
                seconds=seconds,
                candidates_per_second=evaluations / max(seconds, 1e-9),
                best_cost=min(self.lowest, progress.best_cost),
                parameters=self.best.values if better and self.best else progress.parameters,
                seconds_left=None if left is None or self.number < self.seeds else left,
                stage=stage,
            )
        )

    def merged(
        self, searches: Iterator[FitResult | InputError], plan: FitPlan, floor: float
    ) -> FitResult:
        """One result of all searches, as they come; those after one that reached its target do
        not count.
        """
        done: list[FitResult] = []
        faults: list[InputError] = []
        target = plan.stop_rules.cost
        cut_off = False
        for found in searches:
            self.number += 1
            if isinstance(found, InputError):
                faults.append(found)
                cut_off |= found.message == _CUT_OFF
                continue
            done.append(found)
            if self.best is None or found.cost < self.best.cost:
                self.best = found
            self.lowest = min(self.lowest, *found.history["best_cost"][-1:])
            self.generations += found.generations
            self.evaluations += found.evaluations
            self.seconds += found.seconds
            cut_off |= found.stop_reason == _CUT_OFF
            if target is not None and found.cost <= target:
                break
        if self.best is None:
            raise KeyboardInterrupt if cut_off else faults[0]
        return self._result(self.best, done, _CUT_OFF if cut_off else "", plan.seed, floor)

    def _result(
        self, best: FitResult, done: Sequence[FitResult], cut_off: str, seed: int, floor: float
    ) -> FitResult:
        costs = np.array([one.cost for one in done])
        agreed = agreement(float(costs.min()), costs, min(_WANTED, self.seeds), floor)
        which = f"the best of {len(done)} searches has seed {best.seed}: {best.stop_reason}"
        failures: dict[str, int] = {}
        for one in done:
            for what, n in one.failures.items():
                failures[what] = failures.get(what, 0) + n
        return replace(
            best,
            generations=self.generations,
            evaluations=self.evaluations,
            seconds=self.seconds,
            history=_history(done),
            stop_reason=cut_off or which,
            seed=seed,
            settings={**best.settings, "seeds": self.seeds},
            failures=failures,
            agreement=agreed.as_plain(),
        )


def _history(done: Sequence[FitResult]) -> np.ndarray:
    """The generations of all searches, one after the other; the best cost is the lowest so far."""
    rows = []
    sums = {"generation": 0.0, "evaluations": 0.0, "seconds": 0.0}
    for one in done:
        own = one.history.copy()
        for name, before in sums.items():
            if name in (own.dtype.names or ()):
                own[name] += np.asarray(before, own.dtype[name])
        if len(own):
            sums = {name: float(own[name][-1]) for name in sums if name in (own.dtype.names or ())}
        rows.append(own)
    history = np.concatenate(rows)
    history["best_cost"] = np.minimum.accumulate(history["best_cost"])
    return history
