"""Wells with masks of their own, compared with candidates on a GPU in the same launches.

The walk is that of all samples that count in any well. Within a run the currents of a candidate
are ``y = Q z``, with few z for many samples (`held_compression`), and the samples that count in a
well, with weights w beside those of the walk, give

    sum w (y - d)^2  =  |R z - t|^2 + rest,   sqrt(w) Q = P R,   t = P^T sqrt(w) d

where P R is the QR decomposition: each well has a small triangle R for every run, the identity for
a run in which all samples count. Samples that cannot tell some z apart make R singular, and the
cost depends on these z no more than it should.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from channelfit.batch.together import Across
from channelfit.batch.together_cuda import CudaTogether
from channelfit.problem.experiment import Problem
from channelfit.reading.errors import InputError
from channelfit.scoring.cuda_tangent_walk import Rows
from channelfit.scoring.cuda_tangents import Wells
from channelfit.scoring.layout.held_compression import Compression
from channelfit.scoring.machine.threads import single_threaded_blas
from channelfit.scoring.tangent_plan import Piece

Array = np.ndarray


class CudaOwnMasks(CudaTogether):
    """Wells that differ in their data and in the weights of samples; see `together.Together`.

    A scan of all wells at once has no meaning here, as a candidate shows something else to each
    well: it is made with a mask that all have in common, by `CudaTogether`.

    Arguments:
        problems: one for each well, with the same model, protocols and weights of experiments.
        chunk: candidates in one launch. With None it is as many as memory allows.

    Raises:
        InputError: there is no GPU that can be used, or a well has no sample that counts.
    """

    solves = False

    def __init__(self, problems: Sequence[Problem], chunk: int | None = None) -> None:
        self.n_wells, self._problems = len(problems), problems
        self._begin(_of_all(problems), chunk)

    def _compared(self, rows: Rows) -> Wells:
        """What candidates are compared with in some rows, as arrays of the host."""
        total_weight, targets, constant, factors = [], [], [], []
        with single_threaded_blas():
            for k, (data, weight, merged) in enumerate(_recorded(self._problems, self._walked)):
                if not weight.any():
                    raise InputError(f"well {k + 1} has no sample of weight above 0")
                own, rest, roots = _seen(rows, data, weight)
                total_weight.append(weight.sum())
                targets.append(own)
                constant.append(merged + rest)
                factors.append(roots)
        by_group = tuple(np.stack(group) for group in zip(*factors, strict=True))
        return Wells(np.array(targets), np.array(constant), np.array(total_weight), by_group)

    def across(self, parameters: Array, rows: Sequence[int] = ()) -> Across:
        """Not offered. Raises: ValueError."""
        raise ValueError("wells with masks of their own are scanned with one that they share")


def _of_all(problems: Sequence[Problem]) -> Problem:
    """The first problem with the weights of all samples that count in any well, and data of 0."""
    weights: list[Array | None] = []
    for k in range(len(problems)):
        own = [None if e.recording is None else e.recording.weight for e in problems[k].experiments]
        pairs = zip(weights or own, own, strict=True)
        weights = [None if a is None or b is None else np.maximum(a, b) for a, b in pairs]
    experiments = []
    for e, weight in zip(problems[0].experiments, weights, strict=True):
        recording = e.recording
        if recording is not None and weight is not None:
            silent = np.zeros_like(recording.current_pA)
            recording = replace(recording, current_pA=silent, weight=weight)
        experiments.append(replace(e, recording=recording))
    return replace(problems[0], experiments=tuple(experiments))


def _recorded(problems: Sequence[Problem], whole: Problem) -> Iterator[tuple[Array, Array, float]]:
    """Of each well data (n_data,) pA and weights (n_data,) in the order of the tree of all.

    Beside them stands what merging of samples under the same command took out, pA^2.
    """
    tree = whole.scored
    counts = [e.recording.weight > 0 for e in whole.fitted if e.recording]
    places = np.concatenate([out[c] for out, c in zip(tree.outputs, counts, strict=True)])
    n = len(tree.data_pA)
    for problem in problems:
        fitted = [(e, e.recording) for e in problem.fitted if e.recording]
        pairs = list(zip(fitted, counts, strict=True))
        w = np.concatenate([e.weight * r.weight[c] for (e, r), c in pairs])
        d = np.concatenate([r.current_pA[c] for (_, r), c in pairs])
        d = np.where(w > 0, d, 0.0)
        weight, data = np.bincount(places, w, n), np.zeros(n)
        np.divide(np.bincount(places, w * d, n), weight, out=data, where=weight > 0)
        yield data, weight, float(np.sum(w * (d - data[places]) ** 2))


def _seen(rows: Rows, data: Array, weight: Array) -> tuple[Array, float, list[Array]]:
    """What a well shows in the compressed rows: its target, the squares outside, its factors.

    Arguments:
        data, weight: (n_data,) pA and weights, in the order of the tree of `rows`.
    """
    targets, factors, rest = [], [], 0.0
    for group in rows.groups:
        shown, roots = [], []
        for k, run in enumerate(group.runs):
            some = group.pieces[k].samples if group.pieces else rows.samples(run)
            d, whole = data[some], rows.packed.run_weight[run]
            share = weight[some] / whole
            if group.is_interleaved:
                seen = group.pieces[k] if group.pieces else rows.compression(run)
                root, own, outside = _triangle(seen, d, share)
                root = root[None]
            else:
                root, own, outside = np.sqrt(share)[:, None, None], np.sqrt(share) * d, 0.0
            roots.append(root)
            shown.append(np.sqrt(whole) * own)
            rest += whole * outside
        factors.append(np.concatenate(roots))
        together = np.column_stack if group.is_interleaved else np.concatenate
        targets.append(together(shown).ravel())
    return np.concatenate(targets), rest, factors


def _triangle(seen: Compression | Piece, d: Array, share: Array) -> tuple[Array, Array, float]:
    """R (rank, rank), t (rank,) and the rest of a run of n samples; see the module.

    Arguments:
        seen: what is kept of the run, or of a piece of a ramp.
        d: (n,) pA, and share: (n,), the weights of samples beside that of the run.
    """
    if (share == 1).all():
        shown, outside = seen.project(d)
        return np.eye(len(shown)), shown, outside
    root = np.sqrt(share)
    basis, triangle = np.linalg.qr(root[:, None] * seen.basis)
    shown = basis.T @ (root * d)
    return triangle, shown, float(np.sum((root * d - basis @ shown) ** 2))
