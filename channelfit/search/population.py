"""What every population starts from: checked sizes, seeds and starting points."""

from __future__ import annotations

from typing import Any

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.scoring.machine.arrays import to_host


def check_size(n_parameters: int, population: int, seed: int) -> None:
    """Raises InputError for sizes and seeds that no search can have."""
    if n_parameters < 1:
        raise InputError(f"there must be at least one free parameter, not {n_parameters}")
    if not 1 <= population < 2**32:
        raise InputError(f"population must be 1 or more, not {population}")
    if not 0 <= seed < 2**64:
        raise InputError(f"seed must be a whole number from 0 to 2**64-1, not {seed}")


def starting_points(initial: Any, n_parameters: int, population: int) -> np.ndarray | None:
    """Checked copy (n_parameters, n_points) of given starting points; None where there are none.

    Raises: InputError for points outside the unit cube, of another dimension, or too many.
    """
    if initial is None:
        return None
    points = to_host(initial).astype(np.float64)
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2 or points.shape[0] != n_parameters:
        raise InputError(
            f"starting points must have {n_parameters} values each, not shape {points.shape}"
        )
    if points.shape[1] > population:
        raise InputError(
            f"{points.shape[1]} starting points do not fit into a population of {population}"
        )
    if not ((points >= 0) & (points <= 1)).all():
        raise InputError("starting points must lie inside the bounds of their parameters")
    return points
