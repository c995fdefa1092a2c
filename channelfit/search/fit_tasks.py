"""Tasks of one fit that any process can compute: their common base, and epochs of islands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from channelfit.reading.errors import InputError
from channelfit.scoring.scorer import Scorer, make_scorer
from channelfit.search.islands import COST, SCORED, STATUS, VALUES, Epoch, Islands, advance
from channelfit.search.objective import Objective
from channelfit.search.plan import FitPlan
from channelfit.tasks.executor import Executor, task_results
from channelfit.tasks.result_store import Arrays, Key, ResultStore, expect

#: Scorers that a process keeps from task to task.
_MOST_SCORERS = 2
_scorers: dict[str, Scorer] = {}


@dataclass(frozen=True, eq=False)
class FitTasks:
    """The base of all task sets of one fit: a plan with its data, and the scorer of candidates.

    Attributes:
        backend, dtype, path: see `make_scorer`.
        identity: see `tasks.executor.TaskSet`.
        own_objective: the objective in this process, which may keep a journal. It is not sent:
            other processes make theirs.
    """

    plan: FitPlan
    backend: str
    dtype: str
    path: str
    identity: Mapping[str, Any] = field(default_factory=dict)
    own_objective: Objective | None = None

    @classmethod
    def of(cls, fit: FitTasks, **more: Any) -> Self:
        """Return a task set of the same fit; `more` are its further attributes."""
        return cls(**{f.name: getattr(fit, f.name) for f in fields(FitTasks)}, **more)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "own_objective": None}

    @property
    def objective(self) -> Objective:
        """The function that is minimized."""
        return self.own_objective or self.plan.objective(self._scorer())

    def _scorer(self) -> Scorer:
        """Return the scorer of this process, which the first task makes."""
        parts = [dict(self.identity), self.backend, self.dtype, self.path]
        key = json.dumps(parts, sort_keys=True, default=str)
        if key not in _scorers or not self.identity:
            while len(_scorers) >= _MOST_SCORERS:
                _scorers.pop(next(iter(_scorers)))
            _scorers[key] = make_scorer(self.plan.problem, self.backend, self.dtype, self.path)
        return _scorers[key]


@dataclass(frozen=True, eq=False)
class EpochTasks(FitTasks):
    """One epoch of all islands: the task ("epoch", number, "island", k) is that of island k.

    Attributes:
        states: of the islands before the epoch; each is the argument of its task.
        generations: the length of the epoch.
    """

    states: Sequence[Arrays] = ()
    generations: int = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "states": ()}

    def arguments(self, key: Key) -> Arrays:
        """Return the state of an island before the epoch."""
        return self.states[int(key[3])]

    def check_stored(self, key: Key, found: Arrays) -> None:
        """See `CheckedTaskSet`: an island keeps its size from epoch to epoch."""
        before = self.states[int(key[3])]
        expect(found, {k: (a.dtype.kind, a.shape) for k, a in before.items() if k not in SCORED})
        n, n_parameters = self.generations, len(self.plan.problem.parameters)
        expect(found, {COST: ("f", (n, None)), VALUES: ("f", (n, n_parameters))})
        expect(found, {STATUS: ("i", found[COST].shape)})

    def compute(self, key: Key, arguments: Arrays | None = None) -> Arrays:
        """Advance an island by the generations of the epoch; see `islands.advance`."""
        k, objective = int(key[3]), self.objective
        islands = self.plan.make_optimizer(objective.scorer.xp)
        if not isinstance(islands, Islands):
            raise InputError("this search has no islands", self.plan.file, "fit.optimizer")
        island = islands.islands[k]
        island.restore(self.arguments(key) if arguments is None else arguments)
        return advance(island, objective, self.generations)


def epochs_by(executor: Executor | None, fit: FitTasks, store: ResultStore | None = None) -> Epoch:
    """Return a function that computes epochs of islands as tasks, one of each island.

    Arguments:
        executor: computes them; None for this process.
        store: where their results are stored, so that the search can be resumed.
    """

    def epoch(number: int, states: Sequence[Arrays], generations: int) -> Sequence[Arrays]:
        keys: list[Key] = [("epoch", number, "island", k) for k in range(len(states))]
        tasks = EpochTasks.of(fit, states=states, generations=generations)
        return [found for _, found in task_results(tasks, keys, executor, store)]

    return epoch
