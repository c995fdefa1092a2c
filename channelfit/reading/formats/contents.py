"""What a file from the rig holds: signals in base units, nominal protocol, amplifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Signal:
    """One quantity that was recorded or commanded, in all sweeps of a file.

    Attributes:
        name: as the file calls it, such as ``IN 0``.
        unit: as the file says, such as ``nA``; empty where it says none.
        kind: "current", "voltage" or "other".
        values: (n_sweeps, n_samples), in pA for a current, in mV for a voltage, else as stored.
            NaN where a sweep has ended or is not recorded.
        factor: what the stored unit was multiplied by to become pA or mV; 1 for other kinds.
    """

    name: str
    unit: str
    kind: str
    values: np.ndarray
    factor: float = 1.0


@dataclass(frozen=True)
class Epoch:
    """One piece of a nominal protocol in one sweep.

    Attributes:
        kind: "step", "ramp" or "other" (a train or a shape that the two voltages do not describe).
        start_mV: the voltage at its start.
        end_mV: the voltage that it reaches; that of its start for a step.
        duration_ms: how long it lasts.
    """

    kind: str
    start_mV: float
    end_mV: float
    duration_ms: float


@dataclass(frozen=True)
class Contents:
    """What a file from the rig holds, converted once to base units.

    Attributes:
        file: where it was read.
        format: in words, such as ``ABF 2``.
        sampling_ms: from one sample to the next; NaN where the file does not say.
        signals: what was recorded and commanded; all have the same number of sweeps and samples.
        start_ms: (n_sweeps,) when each sweep began, in the time of the recording; None where the
            file does not say.
        epochs: for each sweep the pieces of its nominal protocol; empty where it is not known.
        holding_mV: the voltage between sweeps; None where the file does not say.
        clamp: what the file says of the amplifier and the cell, one number or one for each sweep:
            ``membrane_capacitance_pF``, ``pipette_capacitance_pF``, ``series_resistance_MOhm``,
            ``seal_resistance_MOhm``, ``compensation`` (0 to 1), ``prediction`` (0 to 1),
            ``temperature_C``, ``junction_potential_mV``.
        labels: what the file calls each sweep, such as the voltage that heads its column; empty
            where sweeps have no names.
        notes: whatever else is worth telling, in sentences.
    """

    file: Path
    format: str
    sampling_ms: float
    signals: tuple[Signal, ...]
    start_ms: np.ndarray | None = None
    epochs: tuple[tuple[Epoch, ...], ...] = ()
    holding_mV: float | None = None
    clamp: Mapping[str, np.ndarray | float] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def n_sweeps(self) -> int:
        """How many sweeps there are."""
        return len(self.signals[0].values) if self.signals else len(self.epochs)

    @property
    def n_samples(self) -> int:
        """How many samples the longest sweep has."""
        return self.signals[0].values.shape[1] if self.signals else 0
