"""The interface of scorers that compare candidates with the recordings of many wells at once."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from channelfit.problem.experiment import Problem
from channelfit.scoring.scorer import Linearization, Score, Scorer

#: Standard deviations of a sum of squares that count as noise.
_DEVIATIONS = np.array([1.0, 3.0])


@dataclass(frozen=True, eq=False)
class CrossProducts:
    """Inner products of the currents of candidates with each other and with the data of all wells.

    The weighted current of a candidate is b_0, and b_k is its derivative by the k-th open
    parameter. Where the current is a straight line in these together, a change x of them costs

        (|b_0 + sum x_k b_k|^2 - 2 sum_k (1, x)_k b_k . data + |data|^2) / total weight

    Attributes:
        status: (n,) int8, as in a score.
        products: (n, 1 + n_open, 1 + n_open), of the b with each other; NaN where one failed.
        with_data: (n, 1 + n_open, n_wells), of the b with the weighted data of every well.
    """

    status: np.ndarray
    products: np.ndarray
    with_data: np.ndarray


def attainable(
    outside: np.ndarray, total_weight: np.ndarray, n_samples: int, n_residuals: int
) -> np.ndarray:
    """Return costs (2, n_wells) below which a candidate differs from the recording by noise alone.

    No candidate changes the squares that lie outside of the space of all traces, so these measure
    white noise. As much noise for each dimension is left in that space by the true parameters, up
    to some standard deviations of such a sum of squares: one, more than which a well in eight has
    by chance, or three, one in a thousand. Of slow noise more is left, and of a model that is not
    the cell's: costs are then higher, whichever the candidate.

    Arguments:
        outside: (n_wells,) pA^2. total_weight: (n_wells,).
        n_samples, n_residuals: dimensions of recordings, and of that space.
    """
    n_outside = n_samples - n_residuals
    if n_outside < n_residuals:
        return np.zeros((2, len(outside)))  # too few to measure noise
    inside = (n_residuals + _DEVIATIONS[:, None] * math.sqrt(2 * n_residuals)) / n_outside
    found: np.ndarray = outside * (1 + inside) / total_weight
    return found


class WellScorer(Scorer):
    """Computes the costs of candidates (n_parameters, n) against wells of the same protocols.

    Every candidate has the number of the well that it is compared with, `well` (n,) int64; without
    these numbers all are compared with the first well. A result depends on the candidate's
    parameters and the data of its well, to the last bit, and neither on the other candidates of the
    call nor on the number of threads.

    Attributes:
        problem: of the first well: its model, protocols and mask are those of all.
        n_wells: how many there are.
        total_weight: (n_wells,), of all samples of a well; 0 where none counts.
        squares: (n_wells,), the weighted sum of the squares of the data, pA^2.
        backend: "cpu" or "cuda".
        solves: whether `cross_products` can leave parameters open.
        attainable: (2, n_wells) pA^2, see `attainable`; 0 where it is not known.
        at_once: wells whose candidates come best in the same calls.
    """

    problem: Problem
    n_wells: int
    total_weight: np.ndarray
    squares: np.ndarray
    attainable: np.ndarray
    backend: str = "cpu"
    solves: bool = True
    at_once: int = 1 << 14

    def score(self, parameters: np.ndarray, well: np.ndarray | None = None) -> Score:
        """Return cost and status of every candidate against its own well, as `linearize` does."""
        found = self.linearize(parameters, well)
        return Score(found.cost, found.status)

    def linearize(self, parameters: np.ndarray, well: np.ndarray | None = None) -> Linearization:
        """Return cost, gradient and Gauss-Newton Hessian of every candidate by its own well."""
        well = np.zeros(parameters.shape[1], np.int64) if well is None else well
        return self._linearized(parameters, well)

    @abstractmethod
    def _linearized(self, parameters: np.ndarray, well: np.ndarray) -> Linearization:
        """Return cost and derivatives of every candidate (n_parameters, n) by its own well (n,)."""

    @abstractmethod
    def cross_products(self, parameters: np.ndarray, rows: Sequence[int] = ()) -> CrossProducts:
        """Return the inner products of every candidate with every well.

        Arguments:
            rows: of the open parameters. The derivatives by these are those at `parameters`.
        """
