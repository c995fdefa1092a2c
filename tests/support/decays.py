"""Sums of exponential decays, as a problem of least squares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from channelfit.model.channel import Parameter
from channelfit.scoring.scorer import Linearization, Score, Scorer
from channelfit.search.space import SearchSpace


def space(n: int, lower: float = 0.0, upper: float = 1.0) -> SearchSpace:
    return SearchSpace(tuple(Parameter(f"x{k}", "", lower, upper) for k in range(n)))


@dataclass
class Residuals(Scorer):
    """A scorer of any residuals (n_residuals,) of parameters, with complex-step derivatives."""

    residuals: object
    forbidden: object = None

    def score(self, parameters: np.ndarray) -> Score:
        out = [np.asarray(self.residuals(x)) for x in parameters.T]
        cost = np.array([np.mean(np.abs(r) ** 2) for r in out])
        bad = ~np.isfinite(cost)
        if self.forbidden is not None:
            bad |= np.array([bool(self.forbidden(x)) for x in parameters.T])
        return Score(np.where(bad, np.inf, cost), bad.astype(np.int8))

    def linearize(self, parameters: np.ndarray) -> Linearization:
        score, (n, m) = self.score(parameters), parameters.shape
        gradient, hessian = np.zeros((n, m)), np.zeros((n, n, m))
        for k, x in enumerate(parameters.T):
            if score.status[k]:
                continue
            r, jacobian = np.asarray(self.residuals(x)), self.jacobian(x)
            gradient[:, k] = 2 * jacobian.T @ r / len(r)
            hessian[:, :, k] = 2 * jacobian.T @ jacobian / len(r)
        return Linearization(score.cost, score.status, gradient, hessian)

    def jacobian(self, x: np.ndarray) -> np.ndarray:
        steps = x + 1e-30j * np.eye(len(x))
        return np.array([np.imag(self.residuals(row)) / 1e-30 for row in steps]).T


def decays(x: np.ndarray) -> np.ndarray:
    """Two exponentials, amplitudes and logarithmic rates."""
    t = np.linspace(0, 5, 60)
    model = x[0] * np.exp(-np.exp(x[1]) * t) + x[2] * np.exp(-np.exp(x[3]) * t)
    return model - (1.5 * np.exp(-2.0 * t) + 0.7 * np.exp(-0.3 * t) + 0.01 * np.sin(37 * t))
