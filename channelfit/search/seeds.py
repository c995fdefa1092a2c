"""Several whole searches of one fit, each with a seed of its own, of which the best is kept.

The searches are independent, so the number of them that reach the same lowest cost says how far the
best can be trusted. Each is a task, which any process can compute: the result is the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.reading.saved import NUMBER, PLAIN, TEXT, WHOLE, Each, Listed, check_shape
from channelfit.search.agreement import agreement
from channelfit.search.fit_tasks import FitTasks
from channelfit.search.loop import HISTORY_COLUMNS, FitResult, Progress, optimize
from channelfit.search.plan import FitPlan
from channelfit.tasks.executor import Executor, task_results
from channelfit.tasks.records import DAMAGED
from channelfit.tasks.result_store import Arrays, Key, ResultStore, decoded_json, expect

#: How many searches should reach the lowest cost, if there are as many.
_ARRIVALS = 3
_CUT_OFF = "interrupted"
#: The name, in stored results, of the array with the plain attributes of a `FitResult` as JSON.
_FIELDS = "told"


def seeds_of(plan: FitPlan) -> list[int]:
    """Return the seeds of the searches of a plan."""
    return [(plan.seed + k) % 2**64 for k in range(plan.seeds)]


class _CutOff(KeyboardInterrupt):
    """An interrupt of a search. found: the best so far."""

    def __init__(self, found: FitResult) -> None:
        super().__init__()
        self.found = found


def search_seeds(
    fit: FitTasks,
    executor: Executor | None = None,
    store: ResultStore | None = None,
    *,
    on_search: Callable[[FitResult], object] = lambda found: None,
    on_generation: Callable[[Progress], object] | None = None,
    clock: Callable[[], float] | None = None,
) -> FitResult:
    """Search once with each seed, and return the best; a task is a search with one seed.

    An interrupt ends all searches; the result is then the best so far.

    Arguments:
        executor: computes the searches; None for one after the other in this process.
        store: where the results of the searches are stored.
        on_search: called with the result of each search, in the order in which they get done.
        on_generation: called after each generation of a search in this process.
        clock: of searches in this process; see `loop.optimize`.

    Raises: InputError if no search could score anything.
    """
    plan = fit.plan
    merged = _MergedSearches(plan.seeds, on_generation)
    tasks = SeedTasks.of(fit, on_generation=merged.pass_on, clock=clock)
    keys: list[Key] = [("seed", seed) for seed in seeds_of(plan)]
    done: dict[Key, FitResult] = {}

    def on_done(key: Key, arrays: Arrays) -> None:
        if "error" not in arrays:
            done[key] = _result(arrays, plan)
            on_search(done[key])

    def searches() -> Iterator[FitResult | InputError]:
        passed = set()
        try:
            for key, arrays in task_results(tasks, keys, executor, store, on_done):
                passed.add(key)
                yield done[key] if key in done else InputError(_text(arrays["error"]))
        except KeyboardInterrupt as stop:
            yield from (done[key] for key in keys if key in done and key not in passed)
            if isinstance(stop, _CutOff):
                yield stop.found
            yield InputError(_CUT_OFF)

    return merged.result_of(searches(), plan, fit.objective.floor)


@dataclass(frozen=True, eq=False)
class SeedTasks(FitTasks):
    """Searches with one seed each: the task ("seed", n) is the one with seed n.

    Attributes:
        on_generation, clock: of searches in this process; see `loop.optimize`. They are not sent.
    """

    on_generation: Callable[[Progress], object] | None = None
    clock: Callable[[], float] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "on_generation": None, "clock": None}

    def compute(self, key: Key) -> Arrays:
        """Search with one seed; return the arrays of its `FitResult`."""
        plan, objective = replace(self.plan, seed=int(key[1]), seeds=1), self.objective
        try:
            optimizer = plan.make_optimizer(objective.scorer.xp)
            found = optimize(optimizer, objective, plan.stop_rules, self.on_generation, self.clock)
        except InputError as error:
            return {"error": _bytes(error.message)}
        if found.stop_reason == _CUT_OFF:  # half a search is no result that may be stored
            raise _CutOff(found)
        fields = {name: getattr(found, name) for name in _PLAIN}
        history = np.array([found.history[name] for name in found.history.dtype.names or ()], float)
        return {"values": found.values, "history": history, _FIELDS: _bytes(json.dumps(fields))}

    def check_stored(self, key: Key, found: Arrays) -> None:
        """See `CheckedTaskSet`."""
        if "error" in found:
            expect(found, {"error": ("u", (None,))})
            return
        names = self.plan.space.parameters
        shapes = {
            "values": ("f", (len(names),)),
            "history": ("f", (len(HISTORY_COLUMNS.names or ()), None)),
        }
        expect(found, shapes)
        fields = decoded_json(found, _FIELDS)
        check_shape({_FIELDS: fields}, {f"{_FIELDS}!": _STORED}, None)
        if set(fields) != set(_PLAIN) or len(fields["notes"]) != len(names):
            raise InputError(DAMAGED, None, _FIELDS)
        if fields["seed"] != key[1]:
            raise InputError(DAMAGED, None, f"{_FIELDS}.seed")


#: The attributes of a result that are stored as JSON, and their shapes. Its names are those
#: of the plan.
_STORED = {
    "notes!": Listed(TEXT),
    **dict.fromkeys(("cost!", "seconds!"), NUMBER),
    **dict.fromkeys(("generations!", "evaluations!", "seed!"), WHOLE),
    **dict.fromkeys(("stop_reason!", "optimizer!", "backend!", "dtype!", "source_hash!"), TEXT),
    "settings!": Each(PLAIN),
    "failures!": Each(WHOLE),
    "agreement?": {"arrived": WHOLE},
}
_PLAIN = tuple(name.rstrip("!?") for name in _STORED)


def _result(arrays: Arrays, plan: FitPlan) -> FitResult:
    fields = json.loads(_text(arrays[_FIELDS]))
    fields["notes"] = tuple(fields["notes"])
    history = np.zeros(arrays["history"].shape[1], HISTORY_COLUMNS)
    for name, column in zip(history.dtype.names or (), arrays["history"], strict=True):
        history[name] = column
    names = tuple(p.name for p in plan.space.parameters)
    return FitResult(names=names, values=arrays["values"], history=history, **fields)


def _bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def _text(array: np.ndarray) -> str:
    return array.tobytes().decode()


@dataclass
class _MergedSearches:
    """The results of searches with several seeds, which come one by one.

    Attributes:
        seeds: the number of searches.
        on_generation: called after each generation of a search in this process.
        best: of the searches that are done. lowest: the lowest cost that they met.
        generations, evaluations, seconds: of these searches, together.
    """

    seeds: int
    on_generation: Callable[[Progress], object] | None = None
    number: int = 1
    best: FitResult | None = None
    lowest: float = math.inf
    generations: int = 0
    evaluations: int = 0
    seconds: float = 0.0

    def pass_on(self, progress: Progress) -> None:
        """Report a generation of the running search, counted together with the earlier searches."""
        if self.on_generation is None:
            return
        stage = f"seed {self.number} of {self.seeds}"
        stage = f"{stage}, {progress.stage}" if progress.stage else stage
        better = self.lowest <= progress.best_cost
        left = progress.seconds_left
        self.on_generation(
            replace(
                progress,
                generation=self.generations + progress.generation,
                evaluations=self.evaluations + progress.evaluations,
                seconds=self.seconds + progress.seconds,
                best_cost=min(self.lowest, progress.best_cost),
                parameters=self.best.values if better and self.best else progress.parameters,
                seconds_left=None if left is None or self.number < self.seeds else left,
                stage=stage,
            )
        )

    def result_of(
        self, searches: Iterator[FitResult | InputError], plan: FitPlan, floor: float
    ) -> FitResult:
        """Return one result of all searches up to the first that reached the target."""
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
        agreed = agreement(float(costs.min()), costs, min(_ARRIVALS, self.seeds), floor)
        which = f"the best of {len(done)} searches has seed {best.seed}: {best.stop_reason}"
        failures: dict[str, int] = {}
        for one in done:
            for reason, n in one.failures.items():
                failures[reason] = failures.get(reason, 0) + n
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
    """Return the generations of all searches in turn; the best cost is the lowest so far."""
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
