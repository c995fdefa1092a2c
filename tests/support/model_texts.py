"""Texts of model files."""

from __future__ import annotations

import copy
from typing import Any

PLAIN: dict[str, Any] = {
    "name": "plain",
    "states": ["C", "O"],
    "rates": {"C -> O": "a*exp(z*v)", "O -> C": "b"},
    "current": {"open": ["O"], "conductance": "g", "reversal": "-80 mV"},
    "parameters": {
        "a": {"range": [0, 1], "unit": "1/ms", "value": 0.5},
        "z": {"range": [0, 1], "unit": "1/mV", "value": 0.05},
        "b": {"range": [1, 1000], "unit": "1/s", "scale": "log", "value": 500},
        "g": {"range": [0, 10], "unit": "nS", "value": 5},
    },
}


GATED: dict[str, Any] = {
    "name": "gated",
    "gates": {
        "m": {"power": 3, "alpha": "a", "beta": "b*exp(-v/20)"},
        "h": {"inf": "1/(1 + exp((v + 60)/7))", "tau": "2"},
    },
    "current": {"conductance": "g", "reversal": "50 mV"},
    "parameters": {k: {"range": [0, 10], "value": 1} for k in "abg"},
}


def changed(base: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy with the value at a key a/b/0/c replaced (... removes it)."""
    out = copy.deepcopy(base)
    *path, last = key.split("/")
    here: Any = out
    for part in path:
        here = here[int(part)] if isinstance(here, list) else here.setdefault(part, {})
    if value is ...:
        del here[last]
    else:
        here[int(last) if isinstance(here, list) else last] = value
    return out


_ROWS = "".join(
    f'        {{name = "{x}{k}"; min = 0.0; max = 1.0; val = 0.05;}},\n'
    for k in (12, 21, 23, 32)
    for x in "az"
)
PRINTED = """
model: // as printed
{
    nStates = 3;    //states
    nParams = 9;
    eRev = -100;
    nOpenStates = 1;
    params = (
ROWS        {name = "gmax"; min = 0.0; max = 10.0; val = 5.0;},
    );
    //rates
    rates = [
        "k12 = a12*exp(z12*v)",
        "k21 = a21*exp(-z21*v)",
        "k23 = a23*exp(z23*v)",
        "k32 = a32*exp(-z32*v)"
    ];
    openStates = [3]; //which
};
""".replace("ROWS", _ROWS)


TIED = {
    "states": ["C", "O"],
    "definitions": {"twice": "2*z"},
    "rates": {"C -> O": "a*exp(y*v)", "O -> C": "a*exp(-z*v)"},
    "current": {"open": ["O"], "conductance": "g*part", "reversal": "-90 mV"},
    "parameters": {
        "a": {"range": [0.01, 1], "value": 0.1},
        "z": {"range": [0, 0.1], "unit": "1/mV", "value": 0.02},
        "g": {"range": [0, 10], "unit": "nS", "value": 5},
        "y": {"tie": "twice + z/part", "unit": "1/V", "range": [0, 50]},
        "part": {"tie": "1 + a"},
    },
}


def ring(**changes: str) -> dict[str, Any]:
    """C, O, I, J in a ring, each rate with parameters of its own."""
    ways = ["C -> O", "O -> I", "I -> J", "J -> C"]
    ways += [" -> ".join(reversed(way.split(" -> "))) for way in ways]
    rates = {way: f"a{k}*exp(z{k}*v)" for k, way in enumerate(ways)}
    rates |= {key.replace("_", " -> "): text for key, text in changes.items()}
    parameters: dict[str, Any] = {"g": {"range": [0, 1], "value": 1}}
    for k in range(len(ways)):
        if any(f"a{k}*" in text for text in rates.values()):
            parameters[f"a{k}"] = {"range": [0.1, 2], "value": 1}
            parameters[f"z{k}"] = {"range": [-0.02, 0.02], "value": 0.01}
    return {
        "states": ["C", "O", "I", "J"],
        "rates": rates,
        "parameters": parameters,
        "current": {"open": ["O"], "conductance": "g", "reversal": "0 mV"},
    }
