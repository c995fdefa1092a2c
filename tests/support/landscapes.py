"""Functions with known minima, and a NumPy that hides that it is one."""

from __future__ import annotations

import numpy as np

from channelfit.search.swarm import Swarm


class NumpyInDisguise:
    """Not NumPy, as CuPy is not."""

    def __getattr__(self, name: str):
        if name == "fuse":
            return lambda function: function
        return getattr(np, name)


def sphere(candidates: np.ndarray) -> np.ndarray:
    """0 at 0.3, 0.4, .. in turn."""
    at = 0.3 + 0.1 * (np.arange(len(candidates)) % 5)
    return ((candidates - at[:, None]) ** 2).sum(0)


def rosenbrock(candidates: np.ndarray) -> np.ndarray:
    """0 at 0.75 everywhere: x = 4 u - 2 has its minimum at 1."""
    x = 4 * candidates - 2
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum(0)


def rastrigin(candidates: np.ndarray) -> np.ndarray:
    """0 at 0.4 everywhere; other minima about 0.1 apart."""
    x = (candidates - 0.4) * 10.24
    return 10 * len(x) + (x**2 - 10 * np.cos(2 * np.pi * x)).sum(0)


def run(swarm: Swarm, function, turns: int) -> list[float]:
    """The best cost after each turn."""
    costs = []
    for _ in range(turns):
        candidates = swarm.ask()
        swarm.tell(candidates, function(candidates))
        costs.append(swarm.best_cost)
    return costs
