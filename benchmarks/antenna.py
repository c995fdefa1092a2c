"""A table for the network of 6-30-2: the reflection coefficient of a resonant antenna.

The electromagnetic simulations of the 2017 paper were not published. This is what they describe
in the smallest form: a series resonator in parallel with a loss, fed by a line of 50 ohm, at six
inputs, two outputs. Inputs are scaled to -1 .. 1.

    python benchmarks/antenna.py     writes models/functions/antenna.csv
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

INPUTS = ("frequency", "resistance", "inductance", "capacitance", "loss", "detuning")
TARGETS = ("reflection_re", "reflection_im")
FILE = Path(__file__).parent.parent / "models" / "functions" / "antenna.csv"


def antenna(n_rows: int, seed: int) -> np.ndarray:
    """Rows (n_rows, 8): inputs, then the real and the imaginary part of the reflection."""
    x = np.random.Generator(np.random.Philox(seed)).uniform(-1, 1, (n_rows, len(INPUTS)))
    frequency, resistance, inductance, capacitance, loss, detuning = x.T
    ohm = 50 * 2.0**resistance
    reactance = 50 * (
        (1 + 0.5 * frequency) * 1.5**inductance - 1.5**-capacitance / (1 + 0.5 * frequency)
    )
    series = ohm + 1j * (reactance + 20 * detuning)
    impedance = 1 / (1 / series + 1 / (400 * 2.0**loss))
    reflection = (impedance - 50) / (impedance + 50)
    return np.column_stack((x, reflection.real, reflection.imag))


if __name__ == "__main__":
    header = ",".join((*INPUTS, *TARGETS))
    np.savetxt(FILE, antenna(100, seed=0), "%.9g", ",", header=header, comments="")
