"""Linear schemes of any number of states, generated: what benchmarks that count states measure.

    from chains import chain_model

`chain_model(3)` has the shape of model B of Ben-Shalom et al. 2012, and each further state adds
the paper's four parameters. Its ranges are those of rates that a clamp can see, and differ from
transition to transition; those printed in the paper reach 1e40 per ms.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model
from channelfit.problem.protocol import Protocol, load_protocol

ROOT = Path(__file__).parent.parent
PAPER = ("activation", "deactivation")


def chain_model(n_states: int, seed: int = 0) -> ChannelModel:
    """S1 <-> S2 <-> .. <-> Sn, the last open; rates ``a exp(z v)`` there, ``a exp(-z v)`` back.

    Arguments:
        n_states: 2 or more.
        seed: with `n_states` it decides ranges and values. Upper ends of a are 0.2 .. 1 per ms, of
            z 0.01 .. 0.03 per mV; values lie in the upper half of both.
    """
    if n_states < 2:
        raise ValueError(f"a chain has two states or more, not {n_states}")
    rng = np.random.default_rng([seed, n_states])
    rates, parameters = {}, {}
    for i in range(1, n_states):
        for source, target, sign in ((i, i + 1, ""), (i + 1, i, "-")):
            a, z = f"a{source}_{target}", f"z{source}_{target}"
            rates[f"S{source} -> S{target}"] = f"{a}*exp({sign}{z}*v)"
            parameters[a] = _parameter(rng, 0.2, 1.0, "1/ms")
            parameters[z] = _parameter(rng, 0.01, 0.03, "1/mV")
    parameters["gmax"] = {"range": [0, 10], "unit": "nS", "value": 5}
    states = [f"S{i}" for i in range(1, n_states + 1)]
    current = {"open": [states[-1]], "conductance": "gmax", "reversal": "-100 mV"}
    document = {
        "name": f"chain_{n_states}",
        "states": states,
        "rates": rates,
        "current": current,
        "parameters": parameters,
    }
    return build_model(document, None)


def _parameter(rng: np.random.Generator, low: float, high: float, unit: str) -> dict[str, object]:
    upper = round(float(rng.uniform(low, high)), 4)
    value = round(upper * float(rng.uniform(0.5, 0.9)), 5)
    return {"range": [round(upper / 10, 5), upper], "unit": unit, "value": value}


def paper_protocols(samples: int = 500) -> list[Protocol]:
    """Activation and deactivation: 25 sweeps of 50 ms in all, each with so many samples."""
    loaded = [load_protocol(ROOT / "protocols" / f"{name}.yaml") for name in PAPER]
    return [replace(p, sampling_ms=50.0 / samples) for p in loaded]
