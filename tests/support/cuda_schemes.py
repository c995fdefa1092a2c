"""Generated CUDA run on the host, and random schemes for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Problem
from channelfit.problem.run_tree import by_sweep
from channelfit.scoring.cuda import Walk, walk
from channelfit.scoring.kernels.cuda_source import CudaSource
from channelfit.scoring.kernels.cuda_walk import ADD_JOBS, SWEEP
from channelfit.scoring.layout.visit_order import schedule
from channelfit.scoring.scorer import Score
from support.cuda_host import HostProgram, host_program

BLOCK, SLOTS = 16, 48  # one text for every number of jobs


class Host:
    """The stepping kernels of a problem, run by the host's compiler."""

    def __init__(self, problem: Problem, dtype: str = "float64") -> None:
        self.problem, self.source = problem, CudaSource(problem.model, dtype)

    def score(self, parameters: np.ndarray, n_jobs: int = 1) -> Score:
        packed, n = self.problem.scored, parameters.shape[1]
        w = walk(self.source, packed, schedule(packed, n_jobs))
        assert w.n_jobs <= n_jobs
        cost, status = np.full(n, -1.0), np.full(n, -1, dtype=np.int8)
        partial, partial_status = np.empty((w.n_jobs, n)), np.empty((w.n_jobs, n), np.int8)
        program = self._program(w, False)
        grid = (-(-n // BLOCK), w.n_jobs)
        given = self._given(parameters, w)
        program.launch(SWEEP, grid, BLOCK, [*given, partial, partial_status, None])
        program.launch(
            ADD_JOBS,
            1,
            BLOCK,
            [
                0,
                n,
                w.n_jobs,
                packed.constant,
                packed.total_weight,
                partial,
                partial_status,
                cost,
                status,
            ],
        )
        return Score(cost, status)

    def simulate(self, parameters: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        packed, n = self.problem.simulated, parameters.shape[1]
        w = walk(self.source, packed, schedule(packed, traced=True), traced=True)
        trace = np.full((len(packed.sample_mV), n), np.nan, self.source.dtype)
        status = np.empty((1, n), np.int8)
        given = self._given(parameters, w)
        self._program(w, True).launch(SWEEP, -(-n // BLOCK), BLOCK, [*given, None, status, trace])
        currents = trace.astype(float)
        return [by_sweep(currents, places) for places in packed.outputs], status[0]

    def _program(self, w: Walk, traced: bool) -> HostProgram:
        assert w.n_slots <= SLOTS
        return host_program(self.source.specialized(SLOTS, w.varying, traced))

    @staticmethod
    def _given(parameters: np.ndarray, w: Walk) -> list[Any]:
        starts, *others = w.arrays
        n = parameters.shape[1]
        rows = parameters if len(parameters) else np.zeros((1, n))
        return [rows, n, 0, n, starts, len(starts), *others]


def random_scheme(n: int, seed: int) -> ChannelModel:
    """A ring both ways round, with chords, some of them one way."""
    rng = np.random.default_rng(seed)
    pairs = {(i, (i + d) % n) for i in range(n) for d in (1, n - 1)}
    pairs |= {(int(i), int(j)) for i, j in rng.integers(0, n, (n, 2)) if i != j}
    rates = {
        f"S{i} -> S{j}": f"{10 ** rng.uniform(-3, 1)!r}*k*exp({rng.uniform(-0.05, 0.05)!r}*v)"
        for i, j in sorted(pairs)
    }
    return build_model(
        {
            "states": [f"S{k}" for k in range(n)],
            "rates": rates,
            "current": {
                "open": {"S1": 1.0, f"S{n - 1}": 0.4},
                "conductance": "2 nS",
                "reversal": "-100 mV",
            },
            "parameters": {"k": {"range": [0.1, 10], "scale": "log", "value": 1}},
        },
        None,
    )
