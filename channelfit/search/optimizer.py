"""Searches as the loop sees them, and the optimizer with `ask` and `tell`.

A search proposes points of the unit cube and learns their costs. It never sees a model, parameters
or recordings: the objective alone knows the meaning of a point.

There are three kinds. An `Optimizer` proposes a population (`ask`) and waits for its costs
(`tell`). A `ResidentOptimizer` can do the same without waiting, for as long as everything stays on
a GPU. Any other `Search` scores what it needs by itself, stage after stage. The loop treats all
alike: it takes generations from `search` until a rule says stop or there are no more.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.scoring.machine.arrays import array_module, to_host
from channelfit.scoring.machine.gpu import Readback
from channelfit.scoring.scorer import Score
from channelfit.search.agreement import Agreement
from channelfit.search.objective import Generation, Objective, summarized
from channelfit.search.space import SearchSpace

#: How far a GPU may run ahead of what the host has read: far enough that it is never idle, and not
#: so far that much is computed in vain when a rule says stop.
_SECONDS_AHEAD, _MOST_AHEAD = 5e-3, 16


class Search(ABC):
    """A search over the unit cube.

    Attributes:
        seed: decides all random numbers, 0 .. 2**64-1.
        ends_by_itself: whether the search has an end of its own, so that no stop rule is needed.
        ended: why the search ended by itself, in words; empty as long as it has not.
        agreement: of the independent starts of the search; None if it has no such starts.
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
        """Score candidates, and yield a summary of each generation.

        Arguments:
            objective: scores points of the unit cube.
            target: the cost at which the search will be stopped, None for none.
            most: the most generations that will be taken; a search that computes ahead computes no
                more than these.
        """


class Optimizer(Search):
    """A search method that proposes candidates (`ask`) and then learns their costs (`tell`).

    The methods of channelfit are made of it, and so can a method of your own be: derive a class
    with `ask` and `tell`, and give the class to ``fit(optimizer=..)``. It is called with the number
    of free parameters and the seed of the search. A candidate is a point of the unit cube: 0 is the
    lower end of a parameter's range and 1 the upper end, in the parameter's own scale.

    Arguments:
        n_parameters: the number of parameters that are searched.
        seed: decides all random numbers, so that the same seed gives the same result.

    Attributes:
        ended: why the search has ended, in words; set it in `tell` to end the search. While it is
            empty the search goes on until a rule of ``stop`` ends it.

    Example:
        >>> import channelfit as cf
        >>> import numpy as np
        >>> class Nearer(cf.Optimizer):
        ...     "Draws around the best candidate so far, nearer with every generation."
        ...     def __init__(self, n_parameters, seed):
        ...         super().__init__(n_parameters, seed)
        ...         self.random, self.width = np.random.default_rng(seed), 1.0
        ...         self.best, self.cost = np.full(n_parameters, 0.5), np.inf
        ...     def ask(self):
        ...         around = self.random.uniform(-1, 1, (self.n_parameters, 40))
        ...         return np.clip(self.best[:, None] + self.width * around, 0, 1)
        ...     def tell(self, candidates, cost):
        ...         if cost.min() < self.cost:
        ...             self.best, self.cost = candidates[:, cost.argmin()], cost.min()
        ...         self.width *= 0.9
        >>> fit = cf.fit("models/model_b.yaml", optimizer=Nearer, stop={"generations": 30},
        ...              progress=False)
        >>> fit.summary["optimizer"], fit.summary["evaluations"]
        ('Nearer', 1200)
    """

    def __init__(self, n_parameters: int, seed: int) -> None:
        self.n_parameters, self.seed = n_parameters, seed

    @property
    def name(self) -> str:
        """The name of the method, in summaries: that of the class."""
        return type(self).__name__

    @property
    def settings(self) -> Mapping[str, float]:
        """The settings of the method by name, in summaries."""
        return {}

    @abstractmethod
    def ask(self) -> Any:
        """Return the next candidates, (n_parameters, n_candidates) values from 0 to 1.

        Values beyond 0 and 1 count as 0 and 1.
        """

    @abstractmethod
    def tell(self, candidates: Any, cost: Any) -> None:
        """Learn the costs of the candidates that `ask` has returned.

        Arguments:
            candidates: (n_parameters, n_candidates).
            cost: (n_candidates,); infinite for a candidate that cannot be scored.
        """

    def search(
        self, objective: Objective, target: float | None = None, most: float = math.inf
    ) -> Iterator[Generation]:
        """Ask, score and tell until the search has `ended`.

        Raises: InputError for candidates that are no array of this shape, or not numbers.
        """
        while not self.ended:
            candidates = self.ask()
            _check_candidates(self, candidates, objective.n_free)
            score = objective.score(candidates)
            cost = score.cost
            if array_module(candidates) is not array_module(cost):
                cost = to_host(cost)
            self.tell(candidates, cost)
            yield summarized(objective, candidates, score)


def _check_candidates(optimizer: Optimizer, candidates: Any, n_free: int) -> None:
    """Raise InputError for candidates of another shape, and for NaN on the host."""
    shape = getattr(candidates, "shape", None)
    if shape is None or len(shape) != 2 or shape[0] != n_free or not shape[1]:
        raise InputError(
            f"ask() of {optimizer.name} must return an array ({n_free}, n_candidates) with a row "
            f"for each free parameter, not {f'one of shape {shape}' if shape else 'something else'}"
        )
    if isinstance(candidates, np.ndarray) and not np.isfinite(candidates).all():
        raise InputError(f"ask() of {optimizer.name} has returned NaN or infinite values")


class ResidentOptimizer(Optimizer):
    """An optimizer with its population on a GPU, for which the host need not wait.

    It breeds the next generation from costs that the host has not seen. Summaries of generations
    are read back while the GPU is already at later ones.
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
        """Wait until a record of `learn` has arrived, and return it as a summary."""

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
