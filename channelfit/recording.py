"""What was recorded: currents, times and weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Recording:
    """A recording under one protocol.

    time_ms: (n_times,) from the start of a sweep.
    current_pA, weight: (n_sweeps, n_times). Weight 0 masks a sample, NaN currents are masked too.
    """

    time_ms: np.ndarray
    current_pA: np.ndarray
    weight: np.ndarray
    capacitance_pF: float | None = None
    series_resistance_MOhm: float | None = None
    source: str = ""
