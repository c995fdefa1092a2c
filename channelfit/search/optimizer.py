"""The interface of optimizers.

An optimizer proposes points of the unit cube and learns what they cost. It never sees a model,
parameters or recordings: what a point stands for is the objective's to know.

There are three kinds. An `AskTell` proposes a population (`ask`) and waits for its costs (`tell`).
A `ResidentOptimizer` can do the same without waiting, for as long as everything stays on a GPU. Any
other `Optimizer` calls the objective by itself, stage after stage. The loop treats all alike: it
takes generations from `search` until a rule says stop or there are no more.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from channelfit.scoring.machine.gpu import Readback
from channelfit.scoring.scorer import Score
from channelfit.search.agreement import Agreement
from channelfit.search.objective import Generation, Objective, summarized
from channelfit.search.space import SearchSpace

#: How far a GPU may run ahead of what the host has read: far enough that it is never idle, and not
#: so far that much is computed in vain when a rule says stop.
_SECONDS_AHEAD, _MOST_AHEAD = 5e-3, 16


class Optimizer(ABC):
    """A search over the unit cube.

    Attributes:
        seed: decides all random numbers, 0 .. 2**64-1.
        ends_by_itself: whether the search has an end of its own, so that no stop rule is needed.
        ended: why the search ended by itself, in words; empty as long as it has not.
        agreement: what independent starts of the search came to; None where it has no such starts.
        repeats_itself: whether the same seed and the same scores lead to the same search, so that
            one which was cut off can be repeated from its journal.
    """

    seed: int
    ends_by_itself: ClassVar[bool] = False
    repeats_itself: ClassVar[bool] = True
    ended: str = ""
    agreement: Agreement | None = None

    @property
    @abstractmethod
    def name(self) -> str:
        """The name by which users choose this optimizer."""

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, float]:
        """The settings in force, by the names that a user writes."""

    @abstractmethod
    def search(
        self, objective: Objective, target: float | None = None, most: float = math.inf
    ) -> Iterator[Generation]:
        """Score candidates and yield what each generation brought.

        Arguments:
            objective: scores points of the unit cube.
            target: the cost at which the search will be stopped, None where there is none.
            most: how many generations will be taken at most; a search that computes ahead of what
                is taken computes no more than these.
        """


class AskTell(Optimizer):
    """An optimizer that proposes all candidates of a generation and then learns their costs."""

    @abstractmethod
    def ask(self) -> Any:
        """Return the next candidates, (n_free, n_candidates) values from 0 to 1.

        Asking again before telling gives the same candidates.
        """

    @abstractmethod
    def tell(self, candidates: Any, cost: Any) -> None:
        """Learn the costs of the candidates that were asked for.

        Arguments:
            candidates: (n_free, n_candidates).
            cost: (n_candidates,); a cost that is not finite never becomes the best.
        """

    def search(
        self, objective: Objective, target: float | None = None, most: float = math.inf
    ) -> Iterator[Generation]:
        """Ask, score and tell without end."""
        while True:
            candidates = self.ask()
            score = objective.score(candidates)
            self.tell(candidates, score.cost)
            yield summarized(objective, candidates, score)


class ResidentOptimizer(AskTell):
    """An optimizer whose population lives on a GPU, and which the host need not wait for.

    It breeds the next generation from costs that the host has not seen. What the host wants to know
    is read back while the GPU is already at later generations.
    """

    @abstractmethod
    def breed(self, space: SearchSpace) -> Any:
        """Return the candidates of `ask` as physical parameters (n_parameters, n_candidates)."""

    @abstractmethod
    def learn(self, score: Score) -> Readback:
        """Learn the scores of the candidates of `breed`, without waiting for them.

        Arguments:
            score: cost and status (n_candidates,), arrays of the GPU.

        Returns: a record of the generation that is on its way to the host.
        """

    @abstractmethod
    def generation_of(self, record: Readback, n_candidates: int) -> Generation:
        """Return what a record of `learn` says of its generation; waits until it has arrived."""

    def search(
        self, objective: Objective, target: float | None = None, most: float = math.inf
    ) -> Iterator[Generation]:
        """Yield generations, each read while the GPU is already at later ones.

        The GPU is never more than some milliseconds, or one generation, ahead. What is read does
        not depend on how far ahead it was, so neither does where a rule stops the search. An
        objective that is more than the scorer's cost needs the host in between, and is searched by
        `ask` and `tell`.
        """
        if not objective.is_plain:
            yield from super().search(objective, target, most)
            return
        pending: deque[tuple[Readback, int]] = deque()
        started, launched, read = time.perf_counter(), 0, 0

        def next_read() -> Generation:
            generation = self.generation_of(*pending[0])
            pending.popleft()
            return generation

        try:
            while pending or launched < most:
                if launched < most:
                    physical = self.breed(objective.space)
                    record = self.learn(objective.scorer.score(physical))
                    pending.append((record, physical.shape[1]))
                    launched += 1
                pace = (time.perf_counter() - started) / read if read else math.inf
                ahead = 1 + min(int(_SECONDS_AHEAD / pace), _MOST_AHEAD)
                while pending and (
                    len(pending) > ahead or launched >= most or pending[0][0].arrived
                ):
                    generation = next_read()
                    read += 1
                    yield generation
        except KeyboardInterrupt:
            while pending and pending[0][0].arrived:
                yield next_read()
            raise
