"""A particle swarm on one CPU core: the other side of the swarms in kernels.

The rules and draws are those of `channelfit/search/swarm.py`; the cost is the generated code of
the cpu backend, compiled by Numba together with the moves. Particles lie side by side in the
vector lanes, so all of them move, then all are scored.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.functions.function import FunctionProblem
from channelfit.functions.source import FunctionSource
from channelfit.search.swarm import ATTRACTION, INERTIA

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from support.kernel_ways import with_numba

TEXT = '''

LANES, real = {lanes}, np.{dtype}
U32 = np.uint64(0xffffffff)
M0, M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
W0, W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
HALF, FIVE, SIX, UP = np.uint64(32), np.uint64(5), np.uint64(6), np.uint64(26)


def draws(particle, d, iteration, seed, one, two):
    """Two uniform numbers for each of the lanes from `particle` on."""
    for l in range(LANES):
        x0, x1 = np.uint64(particle + l), np.uint64(d)
        x2, x3 = np.uint64(iteration), np.uint64({flight})
        k0, k1 = seed & U32, seed >> HALF
        for _ in range(10):
            even, odd = x0*M0, x2*M1
            x0, x1 = (odd >> HALF) ^ x1 ^ k0, odd & U32
            x2, x3 = (even >> HALF) ^ x3 ^ k1, even & U32
            k0, k1 = (k0 + W0) & U32, (k1 + W1) & U32
        one[l] = np.int64(((x0 >> FIVE) << UP) | (x1 >> SIX))*2.0**-53
        two[l] = np.int64(((x2 >> FIVE) << UP) | (x3 >> SIX))*2.0**-53


def leaders(cost, group, ofAll, lead):
    """Whom each particle follows: the better of its neighbours, of its group, or of all."""
    n = len(cost)
    if group == 0:
        for i in range(n):
            at = i
            for j in (i - 1 if i else n - 1, i + 1 if i < n - 1 else 0):
                if cost[j] < cost[at]:
                    at = j
            lead[i] = at
        return
    size = n if ofAll else group
    for first in range(0, n, size):
        at = first
        for i in range(first, min(first + size, n)):
            if cost[i] < cost[at]:
                at = i
        for i in range(first, min(first + size, n)):
            lead[i] = at


def fly(here, fast, own, cost, lower, upper, data, seed, first, last, group, exchange):
    """Moves first .. last - 1; arrays (n_blocks, n_parameters*LANES), and cost (n_particles,)."""
    n, n_parameters = len(cost), len(lower)
    lead = np.empty(n, np.int64)
    out = np.empty(LANES, real)
    one, two = np.empty(LANES, real), np.empty(LANES, real)
    leader = np.empty((len(here), n_parameters*LANES), real)
    for iteration in range(first, last):
        leaders(cost, group, exchange > 0 and iteration % exchange == 0, lead)
        for i in range(n):
            block, l, its, k = i//LANES, i%LANES, lead[i]//LANES, lead[i]%LANES
            for d in range(n_parameters):
                leader[block, d*LANES + l] = own[its, d*LANES + k]
        for block in range(len(here)):
            begin = block*LANES
            x, v, best, other = here[block], fast[block], own[block], leader[block]
            for d in range(n_parameters):
                draws(begin, d, iteration, seed, one, two)
                low, high = lower[d], upper[d]
                width = high - low
                for l in range(LANES):
                    i = min(begin + l, n - 1)
                    k = d*LANES + l
                    if iteration > 0 and cost[lead[i]] < np.inf:
                        move = real({inertia})*v[k]
                        if cost[i] < np.inf:
                            move += real({pull})*one[l]*(best[k] - x[k])
                        move += real({pull})*two[l]*(other[k] - x[k])
                        move = min(max(move, -width), width)
                        there = x[k] + move
                    else:
                        there = low + one[l]*width
                        move = (two[l] - one[l])*width*real(0.5)
                    if there < low or there > high:
                        there = low + (low - there) if there < low else high - (there - high)
                        move = -move
                    v[k] = move
                    x[k] = min(max(there, low), high)
            costOfLanes(x.reshape((n_parameters, LANES)), data, out)
            for l in range(min(LANES, n - begin)):
                if np.abs(out[l]) < np.inf and out[l] < cost[begin + l]:
                    cost[begin + l] = out[l]
                    for d in range(n_parameters):
                        best[d*LANES + l] = x[d*LANES + l]
'''


class OneCore:
    """A ring, or groups where `group` is given, of a function's parameters on linear scales."""

    def __init__(
        self,
        problem: FunctionProblem,
        dtype: str,
        population: int,
        seed: int,
        group: int = 0,
        exchange: int = 0,
    ) -> None:
        source = FunctionSource(problem, dtype, "cpu")
        parameters = problem.model.parameters
        assert all(p.scale == "linear" and not p.fixed for p in parameters)
        text = TEXT.format(
            lanes=source.lanes,
            dtype=dtype,
            flight=5,
            inertia=INERTIA,
            pull=ATTRACTION,
        )
        self.kernels: Any = with_numba(source.text + text)
        self.seed, self.iteration = seed, 0
        self.group, self.exchange, self.lanes = group, exchange, source.lanes
        self.population, n = population, len(parameters)
        shape = (-(-population // source.lanes), n * source.lanes)
        self.here, self.fast, self.own = (np.zeros(shape, dtype) for _ in range(3))
        self.cost = np.full(population, np.inf, dtype)
        self.lower = np.array([p.lower for p in parameters], dtype)
        self.upper = np.array([p.upper for p in parameters], dtype)
        self.data = np.ascontiguousarray(problem.columns, dtype)

    def fly(self, n_iterations: int) -> None:
        """So many moves of every particle, on the calling thread."""
        first, self.iteration = self.iteration, self.iteration + n_iterations
        self.kernels.fly(
            self.here,
            self.fast,
            self.own,
            self.cost,
            self.lower,
            self.upper,
            self.data,
            np.uint64(self.seed),
            first,
            self.iteration,
            self.group,
            self.exchange,
        )

    @property
    def bests(self) -> np.ndarray:
        """Own best positions (n_particles, n_parameters)."""
        blocks = self.own.reshape(len(self.own), -1, self.lanes)
        return blocks.transpose(0, 2, 1).reshape(-1, len(self.lower))[: self.population]
