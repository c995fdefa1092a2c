"""Points around a minimum, where a lower one may lie that least squares did not find.

Along each direction of the Hessian the parabola gives the distance for each rise of the cost.
In loose directions that is far, and ripples and bends there may hide what a profile would find.
"""

from __future__ import annotations

import numpy as np

#: Shares of itself by which the cost rises at the points, if it is the parabola.
_RISES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
#: No point is further away than this share of the cube's side.
_FURTHEST = 0.3
#: Least eigenvalue, of a Hessian scaled to a diagonal of ones.
_FLOOR = 1e-12


def points_around(unit: np.ndarray, cost: float, hessian: np.ndarray) -> np.ndarray:
    """Return points (n_free, n) of the unit cube around a minimum, to either side of it.

    Arguments:
        unit: (n_free,), the minimum.
        cost: at the minimum.
        hessian: (n_free, n_free), of the cost.
    """
    scale, values, vectors = scaled_eigen(hessian)
    # along each the parabola rises by the cost itself
    ways = scale[:, None] * vectors * np.sqrt(2 * cost / np.maximum(values, _FLOOR))
    steps = np.concatenate([np.sqrt(rise) * ways for rise in _RISES], axis=1)
    steps *= np.minimum(1.0, _FURTHEST / np.maximum(np.abs(steps).max(axis=0), 1e-300))
    both = np.concatenate([steps, -steps], axis=1)
    points: np.ndarray = np.clip(unit[:, None] + both, 0.0, 1.0)
    return points


def scaled_eigen(hessian: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scale a Hessian (n, n) to a diagonal of ones; return the scale, eigenvalues and eigenvectors.

    So limits on eigenvalues do not depend on the units of the parameters. The scale, (n,), is that
    of steps: in a coordinate on which the cost does not depend it is large, not infinite.
    """
    diagonal = np.diag(hessian)
    least = max(float(diagonal.max(initial=0.0)) * 1e-24, 1e-290)
    scale = 1 / np.sqrt(np.maximum(diagonal, least))
    values, vectors = np.linalg.eigh(hessian * np.outer(scale, scale))
    return scale, values, vectors
