"""Recordings as files of the rig."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import channelfit as cf

STEPS = cf.Protocol.from_segments(
    [
        {"hold": 20},
        {"step": {"from": -100, "to": 40, "by": 20}, "for": 60},
        {"step": -50, "for": 40},
        {"hold": 20},
    ],
    holding=-80,
    sampling=0.1,
    name="steps",
)


OPENS = {"power": 2, "alpha": "0.2*exp(0.04*v)", "beta": "0.02*exp(-0.03*v)"}


def model(gates: dict[str, Any], reversal: float) -> cf.Model:
    return cf.Model(
        name="truth",
        gates=gates,
        current={"conductance": "g", "reversal": reversal},
        parameters={"g": {"range": [0, 100], "unit": "nS", "value": 20}},
    )


def recorded(
    folder: Path,
    gates: dict[str, Any],
    reversal: float = -90,
    leak_nS: float = 0.5,
    protocol: cf.Protocol = STEPS,
    capacitance: float = 40.0,
) -> Path:
    """A recording of a channel with leak, transients of 0.2 ms, noise, as CSV in nA."""
    current = cf.simulate(model(gates, reversal), protocol).current
    command = protocol.command()
    before = np.concatenate([np.full((len(command), 1), protocol.holding_mV), command], axis=1)
    jumps = np.diff(before, axis=1)
    kernel = np.exp(-np.arange(40) * protocol.sampling_ms / 0.2)
    random = np.random.default_rng(7)
    noise = random.normal(size=current.shape)
    spikes = [np.convolve(row, kernel)[: command.shape[1]] for row in jumps]
    current = current + leak_nS * (command + 20) + capacitance * np.array(spikes) + 3 * noise
    table = np.column_stack([protocol.times_ms, current.T / 1000])
    names = ["time (ms)", *(f"I{k} (nA)" for k in range(1, len(current) + 1))]
    np.savetxt(
        folder / "cell.csv", table, delimiter=",", header=",".join(names), comments="", fmt="%.8g"
    )
    protocol.save(folder / "steps.yaml", overwrite=True)
    return folder / "cell.csv"
