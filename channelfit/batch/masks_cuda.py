"""Wells with masks of their own, compared with candidates on a GPU in the same launches.

All samples are simulated that count in any well. Within a run the currents of a candidate are
``y = Q z``, with few z for many samples (`held_compression`), and the samples that count in a well,
with weights w relative to those of the simulation, give

    sum w (y - d)^2  =  |R z - t|^2 + rest,   sqrt(w) Q = P R,   t = P^T sqrt(w) d

where P R is the QR decomposition: each well has a small triangle R for every run, the identity for
a run in which all samples count. Where the samples do not determine some z, R is singular, and the
cost does not depend on these z.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from channelfit.batch.families import ScoredSamples
from channelfit.batch.well_scorer import CrossProducts
from channelfit.batch.well_scorer_cuda import CudaWellScorer
from channelfit.problem.experiment import Problem
from channelfit.reading.errors import InputError
from channelfit.scoring.cuda_algebra import Targets
from channelfit.scoring.cuda_tangent_walk import Rows
from channelfit.scoring.layout.held_compression import Compression
from channelfit.scoring.machine.threads import single_threaded_blas
from channelfit.scoring.tangent_plan import RampPiece

Array = np.ndarray


class CudaOwnMasks(CudaWellScorer):
    """Wells that differ in their data and in the weights of samples; see `well_scorer.WellScorer`.

    Each well selects other samples of a candidate's current, so there are no cross-products with
    all wells; a scan takes the mask that all have in common, by `CudaWellScorer`.

    Arguments:
        problems: one for each well, with the same model, protocols and weights of experiments.
        chunk: candidates in one launch. With None it is as many as memory allows.

    Raises InputError: there is no GPU that can be used, or a well has no sample that counts.
    """

    solves = False

    def __init__(self, problems: Sequence[Problem], chunk: int | None = None) -> None:
        self.n_wells, self._problems = len(problems), problems
        self._begin(_of_all(problems), chunk)

    def _targets_of(self, rows: Rows) -> Targets:
        """Return the targets of the wells in some rows, as arrays of the host."""
        total_weight, targets, constant, factors = [], [], [], []
        with single_threaded_blas():
            for k, (data, weight, merged) in enumerate(_recorded(self._problems, self._simulated)):
                if not weight.any():
                    raise InputError(f"well {k + 1} has no sample of weight above 0")
                own, rest, roots = _projected(rows, data, weight)
                total_weight.append(weight.sum())
                targets.append(own)
                constant.append(merged + rest)
                factors.append(roots)
        by_group = tuple(np.stack(group) for group in zip(*factors, strict=True))
        return Targets(np.array(targets), np.array(constant), np.array(total_weight), by_group)

    def cross_products(self, parameters: Array, rows: Sequence[int] = ()) -> CrossProducts:
        """Raise ValueError: there are no cross-products where masks differ."""
        raise ValueError("wells with masks of their own are scanned with one that they share")


def _of_all(problems: Sequence[Problem]) -> Problem:
    """Return the first problem with weight on all samples that count in any well, and data of 0."""
    weights: list[Array | None] = []
    for k in range(len(problems)):
        own = [None if e.recording is None else e.recording.weight for e in problems[k].experiments]
        pairs = zip(weights or own, own, strict=True)
        weights = [None if a is None or b is None else np.maximum(a, b) for a, b in pairs]
    experiments = []
    for e, weight in zip(problems[0].experiments, weights, strict=True):
        recording = e.recording
        if recording is not None and weight is not None:
            zeros = np.zeros_like(recording.current_pA)
            recording = replace(recording, current_pA=zeros, weight=weight)
        experiments.append(replace(e, recording=recording))
    return replace(problems[0], experiments=tuple(experiments))


def _recorded(problems: Sequence[Problem], whole: Problem) -> Iterator[tuple[Array, Array, float]]:
    """Yield the data (n_data,) pA and weights (n_data,) of each well, in the order of `whole`.

    The third number is the squares lost by merging samples under the same command, pA^2.
    """
    counted, n = ScoredSamples(whole), len(whole.scored.data_pA)
    places = counted.row(whole.scored.outputs)
    for problem in problems:
        recordings = [e.recording for e in problem.fitted if e.recording]
        weights = [e.weight * e.recording.weight for e in problem.fitted if e.recording]
        w, d = counted.row(weights), counted.row([one.current_pA for one in recordings])
        d = np.where(w > 0, d, 0.0)
        weight, data = np.bincount(places, w, n), np.zeros(n)
        np.divide(np.bincount(places, w * d, n), weight, out=data, where=weight > 0)
        yield data, weight, float(np.sum(w * (d - data[places]) ** 2))


def _projected(rows: Rows, data: Array, weight: Array) -> tuple[Array, float, list[Array]]:
    """Project a well onto the compressed rows: its target, the squares outside, its factors.

    Arguments:
        data, weight: (n_data,) pA and weights, in the order of the tree of `rows`.
    """
    targets, factors, rest = [], [], 0.0
    for group in rows.groups:
        projected, roots = [], []
        for k, run in enumerate(group.runs):
            some = group.pieces[k].samples if group.pieces else rows.samples(run)
            d, whole = data[some], rows.packed.run_weight[run]
            share = weight[some] / whole
            if group.is_interleaved:
                space = group.pieces[k] if group.pieces else rows.compression(run)
                root, own, outside = _triangle(space, d, share)
                root = root[None]
            else:
                root, own, outside = np.sqrt(share)[:, None, None], np.sqrt(share) * d, 0.0
            roots.append(root)
            projected.append(np.sqrt(whole) * own)
            rest += whole * outside
        factors.append(np.concatenate(roots))
        join = np.column_stack if group.is_interleaved else np.concatenate
        targets.append(join(projected).ravel())
    return np.concatenate(targets), rest, factors


def _triangle(space: Compression | RampPiece, d: Array, share: Array) -> tuple[Array, Array, float]:
    """Return R (rank, rank), t (rank,) and the rest of a run of n samples; see the module.

    Arguments:
        space: the compressed space of the run, or of a piece of a ramp.
        d: (n,) pA, and share: (n,), the weights of samples relative to that of the run.
    """
    if (share == 1).all():
        target, outside = space.project(d)
        return np.eye(len(target)), target, outside
    root = np.sqrt(share)
    basis, triangle = np.linalg.qr(root[:, None] * space.basis)
    target = basis.T @ (root * d)
    return triangle, target, float(np.sum((root * d - basis @ target) ** 2))
