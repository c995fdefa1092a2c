"""A scheme of three states, and wells of it as a batch plans them."""

from __future__ import annotations

from dataclasses import replace

from channelfit.front.kinds import load_plan
from channelfit.reading.documents import dump_yaml
from channelfit.search.plan import FitPlan
from support.little import LITTLE, THREE_STEPS

THREE_STATES = {
    **LITTLE,
    "name": "three_states",
    "states": ["C", "O", "I"],
    "rates": LITTLE["rates"] | {"O -> I": "c", "I -> O": "d*exp(-z*v)"},
    "leak": {"conductance": "g_leak", "reversal": "e_leak"},
    "parameters": LITTLE["parameters"]
    | {
        "c": {"range": [1.0e-3, 1], "unit": "1/ms", "scale": "log", "value": 0.03},
        "d": {"range": [1.0e-3, 1], "unit": "1/ms", "scale": "log", "value": 0.01},
        "g_leak": {"range": [0, 5], "unit": "nS", "value": 0.5},
        "e_leak": {"range": [-60, 60], "unit": "mV", "value": -5},
    },
}


def planned(folder, document=LITTLE, protocol=THREE_STEPS, **fit) -> FitPlan:
    """A plan without noise, read from files."""
    (folder / "steps.yaml").write_text(protocol)
    section = {"protocols": ["steps.yaml"], "surrogate": {}} | fit
    (folder / "model.yaml").write_text(dump_yaml(document | {"fit": section}))
    return replace(load_plan(folder / "model.yaml", backend="cpu"), surrogate=False)
