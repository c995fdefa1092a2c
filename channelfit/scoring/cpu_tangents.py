"""Linearizations on the CPU: costs with exact derivatives, from compressed recordings.

A plan (`tangent_plan`) says which currents are computed and where they are stored. For each
candidate the kernels of `scheme_kernels`, `ramp_kernels` or `relaxation_kernels` fill a flat array
with these currents and their derivatives; matrix products make residuals and their Jacobian of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from threading import RLock

import numpy as np

from channelfit.model.channel import ChannelModel, Term
from channelfit.problem.experiment import Problem
from channelfit.problem.run_tree import KIND, VARYING
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.scoring.cpu_moment_tangents import MomentTangents, serves
from channelfit.scoring.kernels.tangent_source import TangentSource
from channelfit.scoring.layout import ramp_collocation as collocation
from channelfit.scoring.machine.threads import single_threaded_blas
from channelfit.scoring.scorer import UseOfRows
from channelfit.scoring.tangent_plan import Plan, may_oscillate
from channelfit.scoring.tangent_terms import TermPlans, TermsWalk
from channelfit.scoring.tangent_walks import UNRESOLVED, Walk, walk_of

#: Targets and constants of candidates, by the number of a plan and the numbers of the candidates.
Recorded = Callable[[int, np.ndarray], tuple[np.ndarray, np.ndarray]]


class Linearizer:
    """Cost, gradient and Hessian of the candidates of one problem.

    A scheme times gates is taken as the one scheme of all pairs of their states.

    Arguments:
        by_moments: whether moments may be used where they are the fastest way.
    """

    def __init__(self, problem: Problem, by_moments: bool = True) -> None:
        self.problem, self.by_moments = problem, by_moments
        self.model = model = _of_one_kind(problem.model)
        self.free = np.array([k for k, p in enumerate(model.parameters) if not p.fixed], np.int64)
        moving = bool((problem.scored.runs[:, KIND] == VARYING).any())
        in_pieces = moving and all(_is_wide(model, term) for term in model.terms if term.chains)
        self._grades = (*(range(len(collocation.GRADES)) if in_pieces else ()), None)
        self._made: list[Plan] = []
        self._idle: dict[int, list[Walk]] = {}  # by the id of a plan, which lives as long
        self._terms: dict[int, TermPlans] = {}  # likewise
        self._lock = RLock()

    def plans(self) -> Iterator[Plan]:
        """Yield all plans, from the fastest to the one for all; made when first needed."""
        model, oscillating = self.model, self._oscillating
        width = 1 + len(self.free)
        for k, grade in enumerate(self._grades):
            with self._lock:
                if k == len(self._made):
                    with single_threaded_blas():
                        plan = Plan(self.problem.scored, width, oscillating, model.relaxes, grade)
                    self._made.append(plan)
            if grade is None or self._made[k].ramps:
                yield self._made[k]

    @property
    def _oscillating(self) -> bool:
        return may_oscillate(self.model)

    @cached_property
    def _source(self) -> TangentSource:
        return TangentSource(self.model)

    @cached_property
    def _moments(self) -> MomentTangents | None:
        """The way by moments, where it is the fastest."""
        problem = replace(self.problem, model=self.model)
        used = self.by_moments and serves(problem)
        return MomentTangents(problem, self._source) if used else None

    def _new_walk(self, plan: Plan) -> Walk:
        if self.model.ohmic is not None:
            return walk_of(self._source, plan)
        with self._lock:
            if id(plan) not in self._terms:
                (grade,) = (g for p, g in zip(self._made, self._grades, strict=False) if p is plan)
                with single_threaded_blas():
                    made = TermPlans(self.model, plan, self._oscillating, grade)
                self._terms[id(plan)] = made
            return TermsWalk(self._terms[id(plan)])

    @property
    def has_one_plan(self) -> bool:
        """True where one plan serves every candidate."""
        return len(list(self.plans())) == 1

    @property
    def has_pieces(self) -> bool:
        """True where a run is taken in pieces rather than from sample to sample."""
        return self._grades[0] is not None and bool(next(iter(self.plans())).ramps)

    @property
    def plan(self) -> Plan:
        """The plan that serves every candidate."""
        *_, last = self.plans()
        return last

    def linearize(
        self,
        parameters: np.ndarray,
        first: int,
        last: int,
        cost: np.ndarray,
        status: np.ndarray,
        gradient: np.ndarray,
        hessian: np.ndarray,
        recorded: Recorded | None = None,
    ) -> None:
        """Fill in the columns first .. last - 1 of a `Linearization`'s arrays.

        Arguments:
            recorded: as for `normals`; it is given the numbers of candidates among all of them.
        """
        free, some = self.free, slice(first, last)
        own = None if recorded is None else lambda plan, which: recorded(plan, first + which)
        status[some], normals = self.normals(parameters[:, some], own)
        normals *= 1.0 / self.problem.scored.total_weight
        cost[some] = normals[:, 0, 0]
        normals[status[some] != OK] = 0.0
        gradient[free, some] = 2.0 * normals[:, 0, 1:].T
        hessian[free[:, None], free, some] = 2.0 * normals[:, 1:, 1:].transpose(1, 2, 0)

    def costs(
        self, parameters: np.ndarray, first: int, last: int, cost: np.ndarray, status: np.ndarray
    ) -> None:
        """Fill in the same columns of cost and status, and compute nothing else."""
        status[first:last], normals = self.normals(parameters[:, first:last])
        cost[first:last] = normals[:, 0, 0] / self.problem.scored.total_weight

    def normals(
        self, parameters: np.ndarray, recorded: Recorded | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return status (n,) and inner products of residuals and derivatives (n, width, width).

        Where a candidate failed the sum of the squares of its residuals is infinite.

        Arguments:
            recorded: by the number of a plan and the numbers of candidates, the data that each of
                these is compared with: targets (n, n_residuals) and constants (n,), pA^2; None
                for the problem's own data.
        """
        thetas = np.ascontiguousarray(parameters.T)
        status, left = np.zeros(len(thetas), np.int64), np.arange(len(thetas))
        normals = np.zeros((len(thetas), 1 + len(self.free), 1 + len(self.free)))
        if recorded is None and self._moments is not None:
            status, normals, doubtful = self._moments.normals(thetas)
            left = np.flatnonzero(doubtful)
        for k, plan in enumerate(self.plans() if len(left) else ()):
            targets, constant = (None, plan.constant) if recorded is None else recorded(k, left)
            with self._walk(plan) as walk:
                status[left], normals[left] = walk.normals(thetas[left], targets)
            normals[left, 0, 0] += constant
            left = np.flatnonzero(status == UNRESOLVED)
            if not len(left):
                break
        status[(status == OK) & ~np.isfinite(normals).all(axis=(1, 2))] = NOT_FINITE
        normals[status != OK, 0, 0] = np.inf
        return status, normals

    def predicted(self, parameters: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the weighted currents of each candidate, with the number of its plan.

        Yields: the number, or minus the status where a candidate failed; and weighted currents with
        their derivatives, (n_residuals, 1 + n_free), as the residuals against data of zeros. They
        are valid until the next is yielded.
        """
        for theta in np.ascontiguousarray(parameters.T):
            status = NOT_FINITE
            for k, plan in enumerate(self.plans()):
                with self._walk(plan) as walk:
                    found, _ = walk.normals(theta[None], np.zeros((1, plan.n_residuals)))
                    status = int(found[0])
                    if status == OK:
                        yield k, walk.residuals
                if status != UNRESOLVED:
                    break
            if status != OK:
                yield -max(status, NOT_FINITE), np.empty((0, 0))

    def used(
        self, parameters: np.ndarray, use: UseOfRows
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what a function makes of currents; see `ChannelScorer.window_slopes`."""
        thetas = np.ascontiguousarray(parameters.T)
        status = np.zeros(len(thetas), np.int8)
        rows, by_plan = dict[int, np.ndarray](), dict[int, list[int]]()
        for c, theta in enumerate(thetas):
            status[c] = NOT_FINITE
            for k, plan in enumerate(self.plans()):
                with self._walk(plan) as walk:
                    found = walk.fill(theta)
                    if found == OK:
                        own = by_plan.setdefault(k, [])
                        if not own:
                            rows[k] = np.empty((len(thetas) - c, plan.n_flat))
                        rows[k][len(own)] = walk.flat
                        own.append(c)
                if found != UNRESOLVED:
                    status[c] = found
                    break
        *_, last = range(len(list(self.plans())))
        values = slopes = None
        for k, some in (by_plan or {last: []}).items():
            plan = self._made[k]
            shape = len(some), plan.n_flat // plan.width, plan.width
            own_rows = rows[k][: len(some)] if some else np.empty(0)
            parts = use(plan.blocks, own_rows.reshape(shape))
            if values is None or slopes is None:
                values, slopes = (np.full((len(thetas), *x.shape[1:]), np.nan) for x in parts)
            values[some], slopes[some] = parts
        assert values is not None
        assert slopes is not None
        return values, slopes, status

    def residuals(
        self,
        parameters: np.ndarray,
        first: int,
        last: int,
        residuals: np.ndarray,
        jacobian: np.ndarray,
    ) -> None:
        """Fill in the same columns of residuals and Jacobian, NaN where a candidate failed."""
        with self._walk(self.plan) as walk:
            for c in range(first, last):
                good = walk.projected(np.ascontiguousarray(parameters[:, c])) == OK
                residuals[:, c] = walk.residuals[:, 0] if good else np.nan
                jacobian[:, self.free, c] = walk.residuals[:, 1:] if good else np.nan

    @contextmanager
    def _walk(self, plan: Plan) -> Iterator[Walk]:
        """Lend a walk with scratch arrays that no other thread uses meanwhile.

        It is kept, because a search asks for a few candidates many times a second.
        """
        idle = self._idle.setdefault(id(plan), [])
        try:
            walk = idle.pop()
        except IndexError:
            walk = self._new_walk(plan)
        try:
            yield walk
        finally:
            idle.append(walk)


def _of_one_kind(model: ChannelModel) -> ChannelModel:
    """Return the model; one of an ohmic scheme times gates as the scheme of all pairs of states."""
    mixed = not model.relaxes and len(model.chains) > 1
    return model.expanded() if mixed and model.ohmic is not None else model


def _is_wide(model: ChannelModel, term: Term) -> bool:
    """Return whether the chains that open a term are walked as a scheme, and not as gates."""
    return any(len(model.chains[k].states) > 2 for k in term.chains)
