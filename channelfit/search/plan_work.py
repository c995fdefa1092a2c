"""Work on one fit that any process can do in pieces: what all of it shares; epochs of islands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from channelfit.pieces.kept import Arrays, Kept, Key, expect
from channelfit.pieces.work import Doer, pieces_done
from channelfit.reading.errors import InputError
from channelfit.scoring.scorer import Scorer, make_scorer
from channelfit.search.islands import Epoch, Islands, advance
from channelfit.search.objective import Objective
from channelfit.search.plan import FitPlan

#: Scorers that a process keeps from piece to piece, so that each is made once.
_KEPT = 2
_scorers: dict[str, Scorer] = {}


@dataclass(frozen=True, eq=False)
class PlanWork:
    """What all work on one fit has: a plan with its data, and what scores it.

    Attributes:
        backend, dtype, path: see `make_scorer`.
        identity: see `pieces.work.Work`.
    """

    plan: FitPlan
    backend: str
    dtype: str
    path: str
    identity: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scorer(self) -> Scorer:
        """What scores the candidates here; made by the first piece that asks for it."""
        what = [dict(self.identity), self.backend, self.dtype, self.path]
        key = json.dumps(what, sort_keys=True, default=str)
        if key not in _scorers or not self.identity:
            while len(_scorers) >= _KEPT:
                _scorers.pop(next(iter(_scorers)))
            _scorers[key] = make_scorer(self.plan.problem, self.backend, self.dtype, self.path)
        return _scorers[key]

    @property
    def objective(self) -> Objective:
        """What is minimized."""
        return self.plan.objective(self.scorer)


@dataclass(frozen=True, eq=False)
class EpochWork(PlanWork):
    """One epoch of all islands: the piece ("epoch", number, "island", k) is that of island k.

    Attributes:
        states: of the islands before it, of which each is told with its piece.
        generations: how long it is.
    """

    states: Sequence[Arrays] = ()
    generations: int = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "states": ()}

    def told(self, key: Key) -> Arrays:
        """The state of an island before the epoch."""
        return self.states[int(key[3])]

    def check_kept(self, key: Key, found: Arrays) -> None:
        """See `pieces.work.Checking`: an island keeps its size from epoch to epoch."""
        before = self.states[int(key[3])]
        expect(found, {k: (a.dtype.kind, a.shape) for k, a in before.items() if k[:5] != "told_"})
        n, n_parameters = self.generations, len(self.plan.problem.parameters)
        expect(found, {"told_cost": ("f", (n, None)), "told_values": ("f", (n, n_parameters))})
        expect(found, {"told_status": ("i", found["told_cost"].shape)})

    def do(self, key: Key, told: Arrays | None = None) -> Arrays:
        """See `islands.advance`."""
        k, scorer = int(key[3]), self.scorer
        islands = self.plan.make_optimizer(scorer.xp)
        if not isinstance(islands, Islands):
            raise InputError("this search has no islands", self.plan.file, "fit.optimizer")
        island = islands.islands[k]
        island.restore(self.told(key) if told is None else told)
        return advance(island, self.plan.objective(scorer), self.generations)


def epochs_by(doer: Doer, work: PlanWork, kept: Kept | None = None) -> Epoch:
    """Lets somebody else compute the epochs of a search of islands.

    Arguments:
        work: the fit.
        kept: where what they have computed is kept, so that the search can go on.
    """

    def epoch(number: int, states: Sequence[Arrays], generations: int) -> Sequence[Arrays]:
        keys: list[Key] = [("epoch", number, "island", k) for k in range(len(states))]
        one = EpochWork(
            work.plan, work.backend, work.dtype, work.path, work.identity, states, generations
        )
        return [found for _, found in pieces_done(one, keys, doer, kept)]

    return epoch
