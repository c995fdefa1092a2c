"""A closed function to be searched, whose failures and interrupts are planned."""

from __future__ import annotations

from typing import Any

import numpy as np

from channelfit.model.channel import Parameter
from channelfit.scoring.scorer import Score, Scorer
from channelfit.search.space import SearchSpace

SPACE = SearchSpace(
    (
        Parameter("a", "1/ms", 0.0, 10.0),
        Parameter("e", "mV", -100.0, 0.0, value=-85.0, fixed=True),
        Parameter("k", "", 0.5, 3.0),
    )
)


class Bowl(Scorer):
    """Its minimum is at a = 2, k = 1.

    Attributes:
        xp: where its arrays lie. interrupt: during which call Ctrl-C is pressed. calls, seen: how
        often it was called, and for how many candidates.
    """

    def __init__(self, xp: Any = np, interrupt: int = 0) -> None:
        self.xp, self.interrupt, self.calls, self.seen = xp, interrupt, 0, 0

    def cost(self, parameters: Any) -> Any:
        a, e, k = parameters
        assert bool((e == -85).all())
        # products, not powers: a device rounds powers in its own way
        return (a - 2) * (a - 2) + (k - 1) * (k - 1)

    def score(self, parameters: Any) -> Score:
        self.calls += 1
        self.seen += parameters.shape[1]
        if self.calls == self.interrupt:
            raise KeyboardInterrupt
        return self.rescore(parameters)

    def rescore(self, parameters: Any) -> Score:
        cost = self.cost(parameters)
        return Score(cost, self.xp.zeros(cost.size, dtype=np.int8))
