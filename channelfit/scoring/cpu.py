"""The CPU backend: generated code, candidates side by side in vector lanes, all cores."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from channelfit.problem.experiment import Problem
from channelfit.problem.run_tree import HELD, KIND, RunTree, by_sweep
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.scoring.choose_path import choose_path
from channelfit.scoring.cpu_moments import CpuMomentTables
from channelfit.scoring.cpu_tangents import Linearizer
from channelfit.scoring.kernels.cpu_moments import MOMENT_ARGUMENTS, CpuMomentSource
from channelfit.scoring.kernels.cpu_source import RUN_ARGUMENTS, CpuSource
from channelfit.scoring.kernels.cpu_spectral import WALK_ARGUMENTS, CpuSpectralSource
from channelfit.scoring.kernels.spectral import LEAST_COST
from channelfit.scoring.layout.exponential_tables import spectral_walk
from channelfit.scoring.machine.machine_code import Kernel, generated
from channelfit.scoring.machine.threads import side_by_side, single_threaded_blas, usable_cores
from channelfit.scoring.scorer import ChannelScorer, Linearization, Score, UseOfRows
from channelfit.scoring.tangent_plan import Plan

_FIELDS = {"voltages": "levels", "v_samples": "sample_mV"}


class CpuScorer(ChannelScorer):
    """Scores and simulates with compiled code.

    The first use of a new model compiles (seconds); the machine code is kept in the user's cache
    folder and found again by the hash of its source.

    Arguments:
        problem: the model and the experiments to score it on.
        dtype: precision of scores and simulations, float64 or float32.
        path: the algorithm of scores: stepping, closed-form, moments, or auto for the one that
            `choose_path` expects to be fastest. Simulations always step, and with stepping
            linearizations use no moments.

    Attributes:
        stepping: the compiled code of simulations, and of scores by stepping.
        scoring: the compiled code of scores; the same as `stepping` where they step.
        source_text, source_hash: the generated code of scores, and the start of its SHA-256.
        n_threads: how many cores are used.
    """

    backend = "cpu"
    paths = ("stepping", "closed-form", "moments")

    def __init__(self, problem: Problem, dtype: str = "float64", path: str = "auto") -> None:
        self.problem, self.dtype, self._by_moments = problem, dtype, path != "stepping"
        self.path = choose_path(problem, dtype, path, self.backend)
        self.stepping = CpuStepping(problem, dtype)
        self.scoring: CpuStepping | CpuModes | CpuMoments = self.stepping
        if self.path == "moments":
            self.scoring = CpuMoments(problem)
        elif self.path != "stepping":
            self.scoring = CpuModes(problem)
        self.source = self.scoring.source
        self.source_text = self.source.text
        self.source_hash = hashlib.sha256(self.source_text.encode()).hexdigest()[:16]
        self.n_threads = usable_cores()

    def score(self, parameters: np.ndarray) -> Score:
        parameters = self._scorable(parameters)
        if isinstance(self.scoring, CpuStepping):
            return self.scoring.score(parameters, self.n_threads)
        score, doubted = self.scoring.score(parameters, self.n_threads)
        if len(doubted):
            exact = self._exact.score(np.ascontiguousarray(parameters[:, doubted]), self.n_threads)
            score.cost[doubted], score.status[doubted] = exact.cost, exact.status
        return score

    def rescore(self, parameters: np.ndarray) -> Score:
        """Return the score by stepping in float64, whatever this scorer's path and precision."""
        return self._exact.score(self._scorable(parameters), self.n_threads)

    def preview(self, parameters: np.ndarray) -> Score:
        """Return costs as `linearize` has them, where that is cheaper than `score`;
        else the score.

        Schemes on ramps and sines are taken in pieces, where a score steps: more exact than its
        steps by as much as the two differ, 1e-7 of the cost or so.
        """
        parameters = self._scorable(parameters)
        if self._pieces is None:
            return self.score(parameters)
        n = parameters.shape[1]
        out = Score(np.empty(n), np.zeros(n, np.int8))
        self._shared(self._pieces.costs, parameters, [out.cost, out.status])
        return out

    def simulate(self, parameters: np.ndarray) -> list[np.ndarray]:
        parameters = self._checked(parameters)
        self.problem.check_memory(parameters.shape[1])
        out = self.stepping.simulate(parameters, self.n_threads)
        return [by_sweep(out, places) for places in self.problem.simulated.outputs]

    def window_currents(self, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.stepping.traced(self._checked(parameters), 1)

    def window_slopes(self, parameters: np.ndarray, use: UseOfRows) -> tuple[Any, Any, Any]:
        return self._tangents.used(self._checked(parameters), use)

    def linearize(self, parameters: np.ndarray) -> Linearization:
        """Return cost, gradient and Hessian in float64, whatever this scorer's precision."""
        parameters = self._scorable(parameters)
        out = Linearization.empty(*parameters.shape)
        self._shared(self._tangents.linearize, parameters, [*vars(out).values()])
        return out

    def residuals(self, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Return compressed residuals: cost = (sum of their squares + constant)/total weight.

        Returns:
            residuals (n_residuals, n_candidates), pA times the root of a weight; their Jacobian
            (n_residuals, n_parameters, n_candidates); the constant, pA^2. NaN where a candidate
            failed; fixed parameters have zeros.
        """
        parameters = self._scorable(parameters)
        n_parameters, n = parameters.shape
        plan = self._tangents.plan
        residuals = np.empty((plan.n_residuals, n))
        jacobian = np.zeros((plan.n_residuals, n_parameters, n))
        self._shared(self._tangents.residuals, parameters, [residuals, jacobian])
        return residuals, jacobian, plan.constant

    @property
    def compression(self) -> Plan:
        """The plan of `residuals`, with their targets and weights."""
        return self._tangents.plan

    @property
    def has_one_plan(self) -> bool:
        """True where `residuals` are as fast as `linearize`, since the same samples serve both."""
        return self._tangents.has_one_plan

    def _shared(
        self, sweep: Callable[..., None], parameters: np.ndarray, arrays: list[Any]
    ) -> None:
        """Call a method of a `Linearizer` for all candidates, on all threads.

        BLAS keeps to one thread meanwhile: its own threads, on small matrices, would mostly wait
        for each other.
        """

        def some(first: int, last: int) -> None:
            sweep(parameters, first, last, *arrays)

        with single_threaded_blas():
            side_by_side(some, parameters.shape[1], 1, self.n_threads)

    @cached_property
    def _tangents(self) -> Linearizer:
        return Linearizer(self.problem, self._by_moments)

    @cached_property
    def _pieces(self) -> Linearizer | None:
        """A linearizer without derivatives, for runs in pieces; None where it spares nothing."""
        model = self.problem.model
        if self.path != "stepping" or model.relaxes or len(model.chains) > 1:
            return None
        held = replace(model, parameters=tuple(replace(p, fixed=True) for p in model.parameters))
        linearizer = Linearizer(replace(self.problem, model=held))
        return linearizer if linearizer.has_pieces else None

    @cached_property
    def _exact(self) -> CpuStepping:
        return self.stepping if self.dtype == "float64" else CpuStepping(self.problem, "float64")


class CpuStepping:
    """Scores and traces in which the state at every sample follows from the sample before."""

    def __init__(self, problem: Problem, dtype: str) -> None:
        self.problem, self.dtype = problem, dtype
        # what is only predicted at the end neither changes nor lengthens what scores
        scores = problem.scored.total_weight > 0
        self.source = self._source_for(problem.scored if scores else problem.simulated)

    def score(self, parameters: np.ndarray, n_threads: int) -> Score:
        """Return cost and status of checked parameters."""
        tree = self.problem.scored
        data = tree.data_pA.astype(self.dtype)
        cost, status = self._run(self.source, parameters, tree, data, np.empty((0, 0)), n_threads)
        return _finished((cost + tree.constant) / tree.total_weight, status)

    def simulate(self, parameters: np.ndarray, n_threads: int) -> np.ndarray:
        """Return currents (n_data, n_candidates), NaN where a candidate failed."""
        return self.traced(parameters, n_threads)[0]

    def traced(self, parameters: np.ndarray, n_threads: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the same, and statuses (n_candidates,)."""
        tree = self.problem.simulated
        out = np.empty((len(tree.sample_mV), parameters.shape[1]))
        source, data = self._tracing, np.empty(0, self.dtype)
        _, status = self._run(source, parameters, tree, data, out, n_threads)
        out[:, status != OK] = np.nan
        return out, status

    @cached_property
    def _tracing(self) -> CpuSource:
        """The source that computes every experiment, those that are only predicted included."""
        source = self._source_for(self.problem.simulated)
        return self.source if source.varying == self.source.varying else source

    def _source_for(self, tree: RunTree) -> CpuSource:
        varying = bool((tree.runs[:, KIND] != HELD).any())
        return CpuSource(self.problem.model, self.dtype, varying)

    def _run(
        self,
        source: CpuSource,
        parameters: np.ndarray,
        tree: RunTree,
        data: np.ndarray,
        trace: np.ndarray,
        n_threads: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return sums of squares and statuses; fill in traces where room for them is given."""
        n = parameters.shape[1]
        cost, status = np.empty(n), np.empty(n, dtype=np.int8)
        arguments = [getattr(tree, _FIELDS.get(name, name)) for name in RUN_ARGUMENTS]
        arguments += [data, cost, trace, trace.size > 0, status]
        run = generated(source.text, "runSweeps")
        shared_kernel(run, parameters, arguments, source.lanes, n_threads)
        return cost, status


class CpuModes:
    """Scores at held voltages from modes, without samples, in float64."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.source = CpuSpectralSource(problem.model)
        walk = spectral_walk(problem.scored)
        self.squares = problem.scored.constant + walk.data_squares
        self._arguments = [getattr(walk, name) for name in WALK_ARGUMENTS]
        self._arguments += [walk.n_slots, walk.tables.ravel()]

    def score(self, parameters: np.ndarray, n_threads: int) -> tuple[Score, np.ndarray]:
        """Return cost and status of checked parameters, and the candidates in doubt."""
        n = parameters.shape[1]
        cost, status, doubt = np.empty(n), np.empty(n, np.int8), np.empty(n, np.bool_)
        arguments = [*self._arguments, self.squares, cost, status, doubt]
        run = generated(self.source.text, "runSweep")
        shared_kernel(run, parameters, arguments, self.source.lanes, n_threads)
        cost += self.squares
        doubt |= ~np.isfinite(cost) | (cost < LEAST_COST * self.squares)
        doubted = np.flatnonzero(doubt & (status == OK))
        return _finished(cost / self.problem.scored.total_weight, status), doubted


class CpuMoments:
    """Scores at held voltages from moments; see `layout.moment_tables`."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.source = CpuMomentSource(problem.model)
        self.tables = CpuMomentTables(problem, self.source.resolves)
        self.squares = problem.scored.constant + self.tables.outside

    def score(self, parameters: np.ndarray, n_threads: int) -> tuple[Score, np.ndarray]:
        """Return cost and status of checked parameters, and the candidates in doubt."""
        n = parameters.shape[1]
        cost, status, doubt = np.empty(n), np.empty(n, np.int8), np.empty(n, np.bool_)
        run = generated(self.source.text, "runMoments", packed=False)
        missing = np.ones(1)
        while missing.any():  # again with the tables that these candidates turn out to need
            missing = np.zeros(self.tables.table_of.shape, np.int8)
            arguments = [getattr(self.tables, name) for name in MOMENT_ARGUMENTS]
            arguments += [self.squares, missing, cost, status, doubt]
            shared_kernel(run, parameters, arguments, self.source.lanes, n_threads)
            if not self.tables.add(missing):
                break
        cost += self.squares
        doubted = np.flatnonzero((doubt | ~np.isfinite(cost)) & (status == OK))
        return _finished(cost / self.problem.scored.total_weight, status), doubted


def _finished(cost: np.ndarray, status: np.ndarray) -> Score:
    status[(status == OK) & ~np.isfinite(cost)] = NOT_FINITE
    cost[status != OK] = np.inf
    return Score(cost, status)


def shared_kernel(
    run: Kernel, parameters: np.ndarray, arguments: list[Any], lanes: int, n_threads: int
) -> None:
    """Call run(parameters, first block, last block, *arguments) for all blocks of lanes."""
    made, words = run.bound(parameters, 0, 0, *arguments)  # compiles, before the threads start
    before, after = words[:3], words[5:]

    def sweep(first: int, last: int) -> None:
        made.run([*before, first, last, *after])

    side_by_side(sweep, parameters.shape[1], lanes, n_threads)
