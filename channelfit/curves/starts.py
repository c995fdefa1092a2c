"""The starts of descents: a scan of the nonlinear parameters, the linear ones fitted at each point.

The basis of the linear fit at a point of the scan is the same for all data sets whose inputs are
the same. Made orthonormal once, it scores a data set by one product with it, without computing the
curve again: no guess is needed, and a scan of hundreds of points costs about as much as a descent.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from channelfit.curves.curve import Curve
from channelfit.reading.errors import InputError

#: Points of a data set that take part in the scan, and numbers in its table, at most.
_MAX_POINTS, _MAX_TABLE = 1024, 16_000_000
#: A direction of the linear fit that is shorter than this share of its column is left out.
_DEPENDENT = 1e-10
#: A linear part that leaves less of a constant than this can follow it.
_CONSTANT = 1e-9


@dataclass(frozen=True, eq=False)
class Scan:
    """Tables of a scan; see `lanes.scan`, `lanes.choose` and `lanes.begin`.

    Attributes:
        points: (n_points,) int64, which points of a data set take part.
        rows: (n_scan, n_rows, n_points) what is multiplied with the data: orthonormal rows that
            span the linear part of the curve, before them the rest of it where `offset` is 1.
        norms: (n_scan, n_rows) products of that rest with itself and with the others.
        ones: (n_scan, n_linear) products of the orthonormal rows with data that are 1 everywhere.
        centered: 1 where a constant may be taken from the data, since the linear part of the curve
            can follow it, else 0; `ones` are 0 then.
        offset: 0 where the curve has no part that is not linear in some parameter.
        back: (n_scan, n_linear, n_linear) from products to linear parameters.
        linear: (n_linear,) int64, which free parameters these are.
        starts: (n_scan, n_free) the parameters at each point of the scan, linear ones 0.
        places: (n_scan, n_nonlinear) int64, where it lies in the grid.
    """

    points: np.ndarray
    rows: np.ndarray
    norms: np.ndarray
    ones: np.ndarray
    offset: int
    centered: int
    back: np.ndarray
    linear: np.ndarray
    starts: np.ndarray
    places: np.ndarray

    def side_by_side(self, n: int) -> np.ndarray:
        """Return the rows (n_groups, n_points, n) float32, n in a group, filled up with zeros."""
        flat = self.rows.reshape(-1, self.rows.shape[2])
        padded = np.zeros((-(-len(flat) // n) * n, flat.shape[1]), np.float32)
        padded[: len(flat)] = flat
        return np.ascontiguousarray(padded.reshape(-1, n, flat.shape[1]).swapaxes(1, 2))


def make_scan(
    curve: Curve, coordinates: Mapping[str, np.ndarray], lower: np.ndarray, upper: np.ndarray
) -> Scan:
    """Return the scan of a curve for data sets with these inputs.

    Arguments:
        coordinates: by input (n_points,), one value for every point of a data set.
        lower, upper: (n_free,) bounds.

    Raises: InputError where the curve is not finite anywhere in the ranges.
    """
    n_all = len(next(iter(coordinates.values())))
    stride = -(-n_all // _MAX_POINTS)
    points = np.arange(0, n_all, stride)
    at = {name: values[points] for name, values in coordinates.items()}
    linear = np.array(curve.linear, np.int64)
    nonlinear = [k for k in range(len(curve.free)) if k not in curve.linear]
    starts, places = _grid(curve, nonlinear, lower, upper)
    if not len(starts):
        raise InputError(
            "nowhere in the scan for a start are parameters in this order; widen their ranges, or "
            "turn the order around",
            key="ordered",
        )
    if len(starts) * (len(linear) + 1) * len(points) > _MAX_TABLE:
        raise InputError(
            f"the scan for a start, {len(starts):,} points of {len(points):,} values, is too large;"
            " give parameters fewer points (scan: 3)",
            key="parameters",
        )
    base = curve.values({n: v[None] for n, v in at.items()}, starts.T[:, :, None])
    base = np.broadcast_to(base, (len(starts), len(points))).copy()
    columns = np.zeros((len(starts), len(linear), len(points)))
    for q, k in enumerate(linear):  # the curve is linear here, so a difference is the derivative
        moved = starts.T[:, :, None].copy()
        moved[k] += 1.0
        columns[:, q] = curve.values({n: v[None] for n, v in at.items()}, moved) - base
    finite = np.isfinite(base).all(1) & np.isfinite(columns).all((1, 2))
    if not finite.any():
        raise InputError(
            f"the curve {curve.name} is not finite anywhere in the ranges of its parameters"
            + _where(at, np.isfinite(base).any(0)),
            key="curve",
        )
    base, columns = base[finite], columns[finite]
    starts, places = starts[finite], places[finite]
    basis, back = _orthonormal(columns)
    offset = int(np.any(base != 0))
    rows, norms = basis, np.zeros(basis.shape[:2])
    if offset:
        rows = np.concatenate([base[:, None], basis], axis=1)
        norms = np.einsum("cqn,cn->cq", rows, base)
    ones = basis.sum(2)
    left = 1.0 - np.einsum("cq,cqn->cn", ones, basis)
    centered = int(len(linear) > 0 and np.abs(left).max() < _CONSTANT)
    ones = ones if centered else np.zeros_like(ones)
    contiguous = [np.ascontiguousarray(a) for a in (rows, norms, ones, back, starts, places)]
    rows, norms, ones, back, starts, places = contiguous
    return Scan(points, rows, norms, ones, offset, centered, back, linear, starts, places)


def _where(at: Mapping[str, np.ndarray], finite: np.ndarray) -> str:
    """Return the first point of all inputs at which a curve is never finite, in words; empty for
    none.
    """
    if finite.all():
        return ""
    k = int(np.argmin(finite))
    return ", at " + ", ".join(f"{name} = {values[k]:g}" for name, values in at.items())


def _grid(
    curve: Curve, nonlinear: list[int], lower: np.ndarray, upper: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return middles of equal cells of the ranges, and their indices; those out of order are left
    out.
    """
    axes = []
    for k, n in zip(nonlinear, curve.scan_points(nonlinear), strict=True):
        share = (np.arange(n) + 0.5) / n
        low, high = lower[k], upper[k]
        if curve.free[k].scale == "log":
            axes.append(low * (high / low) ** share)
        else:
            axes.append(low + (high - low) * share)
    places = np.array(list(itertools.product(*(range(len(a)) for a in axes))), np.int64)
    places = places.reshape(math.prod(map(len, axes)), len(nonlinear))
    starts = np.zeros((len(places), len(curve.free)))
    for q, k in enumerate(nonlinear):
        starts[:, k] = axes[q][places[:, q]]
    names = [p.name for p in curve.free]
    kept = np.ones(len(places), bool)
    for one, other in itertools.pairwise(curve.ordered):
        if one in names and other in names:
            kept &= starts[:, names.index(one)] < starts[:, names.index(other)]
    return starts[kept], places[kept]


def _orthonormal(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return orthonormal rows that span columns (n_scan, n_linear, n_points), and the way back.

    Returns:
        basis: of the same shape; a row is 0 where its column depends on those before it.
        back: (n_scan, n_linear, n_linear): coefficients of the columns = back @ (basis @ data).
    """
    n_scan, n_linear, _ = columns.shape
    basis = np.zeros_like(columns)
    back = np.zeros((n_scan, n_linear, n_linear))
    for q in range(n_linear):
        v, own = columns[:, q].copy(), np.zeros((n_scan, n_linear))
        own[:, q] = 1.0
        size = np.linalg.norm(v, axis=1)
        for _ in range(2):  # once more takes away what rounding has left
            for r in range(q):
                dot = np.einsum("cn,cn->c", basis[:, r], v)
                v -= dot[:, None] * basis[:, r]
                own -= dot[:, None] * back[:, :, r]
        length = np.linalg.norm(v, axis=1)
        good = length > _DEPENDENT * size
        scale = np.where(good, 1.0 / np.where(good, length, 1.0), 0.0)
        basis[:, q] = v * scale[:, None]
        back[:, :, q] = own * scale[:, None]
    return basis, back
