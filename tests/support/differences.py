"""Derivatives by differences, and recordings on the grid of a protocol."""

from __future__ import annotations

import numpy as np

from channelfit.problem.experiment import Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.statuses import OK
from channelfit.problem.waves import Constant, Segment
from channelfit.scoring.cpu import CpuScorer
from channelfit.scoring.reference import ReferenceScorer
from channelfit.scoring.scorer import Linearization


def errors(
    test: Linearization, truth: Linearization, parameters: np.ndarray | None = None
) -> tuple[float, float, float]:
    """Largest errors of cost, gradient and Hessian, of candidates that did not fail.

    By the inequality of Cauchy and Schwarz: a derivative is as large as the lengths of the columns
    that it is the product of. Given the parameters, a column that is next to nothing beside the
    others, as that of a rate whose every reaction is at equilibrium, counts as 1e-6 of them.
    """
    assert np.array_equal(test.status, truth.status)
    ok = truth.status == OK
    cost, diagonal = truth.cost[ok], np.einsum("iic->ic", truth.hessian[..., ok])
    length = np.sqrt(np.maximum(diagonal, 1e-300))
    if parameters is not None:
        scale = np.abs(parameters[:, ok]) + 1e-300
        length = np.maximum(length, 1e-6 * (length * scale).max(axis=0) / scale)
    gradient = np.abs(test.gradient - truth.gradient)[:, ok] / (length * np.sqrt(2 * cost))
    hessian = np.abs(test.hessian - truth.hessian)[..., ok] / (length[:, None] * length)
    return tuple(
        float(e.max(initial=0.0)) for e in (abs(test.cost[ok] / cost - 1), gradient, hessian)
    )  # type: ignore[return-value]


def by_differences(problem: Problem, parameters: np.ndarray) -> Linearization:
    """Central differences of the reference's currents, extrapolated; errors of about 1e-8."""
    scorer = ReferenceScorer(problem)
    steps = {k: 1e-3 * np.maximum(np.abs(row), 1e-3) for k, row in enumerate(parameters)}
    free = [k for k, p in enumerate(problem.model.parameters) if not p.fixed]
    shifted = [parameters]
    for k in free:
        for factor in (1.0, -1.0, 0.5, -0.5):
            moved = parameters.copy()
            moved[k] += factor * steps[k]
            shifted.append(moved)
    n, n_parameters = parameters.shape[1], len(parameters)
    currents = scorer.simulate(np.concatenate(shifted, axis=1))
    rows, root = [], []
    for experiment, current in zip(problem.experiments, currents, strict=True):
        if experiment.recording is not None:
            weight = experiment.weight * experiment.recording.weight
            rows.append(current[weight > 0])
            root.append(np.sqrt(weight[weight > 0]))
            rows[-1][:, :n] -= experiment.recording.current_pA[weight > 0, None]
    y = np.concatenate(rows) * np.concatenate(root)[:, None]
    total = float((np.concatenate(root) ** 2).sum())
    residual, jacobian = y[:, :n], np.zeros((len(y), n_parameters, n))
    for i, k in enumerate(free):
        a, b, c, d = (y[:, (1 + 4 * i + j) * n : (2 + 4 * i + j) * n] for j in range(4))
        jacobian[:, k] = (4 * (c - d) - (a - b) / 2) / (3 * steps[k])
    return Linearization(
        (residual**2).sum(axis=0) / total,
        np.zeros(n, np.int8),
        2 * np.einsum("sn,skn->kn", residual, jacobian) / total,
        2 * np.einsum("sin,skn->ikn", jacobian, jacobian) / total,
    )


def stairs(lengths: list[int]) -> Protocol:
    """A sweep for each length: so many samples at one voltage, some at the next, some more there
    of another weight."""
    h = 0.1
    sweeps = tuple(
        (
            Segment(0.0, n * h, Constant(10.0)),
            Segment(n * h, (n + 9) * h, Constant(-40.0)),
            Segment((n + 9) * h, (2 * n + 9) * h, Constant(10.0)),
        )
        for n in lengths
    )
    return Protocol("stairs", -80.0, h, sweeps)


def on_the_grid(problem: Problem) -> CpuScorer:
    """A scorer that steps moving voltages on the reference's grid, without pieces."""
    scorer = CpuScorer(problem)
    scorer._tangents._grades = (None,)
    return scorer
