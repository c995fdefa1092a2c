"""Check that an imported model starts at the steady state, as sweeps do here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from channelfit.model.imports.equations import Equations
from channelfit.model.imports.gating import Gating
from channelfit.model.imports.nodes import ONE, computed
from channelfit.model.imports.trial import VOLTAGES, values_of

Array = npt.NDArray[np.float64]
#: The largest distance of an initial occupancy from the steady state.
_SETTLED = 1e-6


def check_start(found: Equations, opening: Gating) -> None:
    """Refuse a file whose states do not start at the steady state.

    Raises InputError: the first state that does not, with its line and by how much.
    """
    _note_signs(found, opening)
    if found.settled:
        found.notes.append(
            "sweeps begin at the steady state, as requested, and not where INITIAL begins"
        )
        return
    values = values_of(found, {"v": VOLTAGES[::20]})
    for state, gate in opening.gates.items():
        if state not in found.steady:
            steady = computed(gate.limit, values)
            _compare(found, state, steady, values)
    for scheme in opening.schemes:
        rates = {way: computed(rate, values) for way, rate in scheme.rates.items()}
        occupied = _stationary(scheme.states, rates, VOLTAGES[::20].size)
        known = {**values, **dict(zip(scheme.states, occupied, strict=True))}
        for left, right in found.equations:
            a, b = computed(left, known), computed(right, known)
            if np.nanmax(np.abs(a - b) / (1 + np.abs(a))) > _SETTLED:
                raise found.refusal(
                    "the LINEAR block of INITIAL does not give the steady state. If that is meant, "
                    "give --start steady",
                    scheme.states[0],
                )
        for state, steady in zip(scheme.states, occupied, strict=True):
            if state not in found.steady and state not in opening.dependent:
                _compare(found, state, steady, values)


def _note_signs(found: Equations, opening: Gating) -> None:
    """Note where a time constant is below 0, so that the gate runs away from its limit."""
    volts = VOLTAGES[(VOLTAGES > -120) & (VOLTAGES < 60)]
    values = values_of(found, {"v": volts})
    for state, gate in opening.gates.items():
        tau = np.broadcast_to(computed(gate.keys.get("tau", ONE), values), volts.shape)
        if (tau < 0).any():
            wrong = volts[tau < 0]
            found.notes.append(
                f"the time constant of {state} is below 0 between {wrong.min():.0f} and "
                f"{wrong.max():.0f} mV: there the file itself does not settle"
            )


def _compare(found: Equations, state: str, steady: Any, values: Mapping[str, Any]) -> None:
    node = found.initial.get(state)
    if node is None:
        raise found.refusal(
            f"INITIAL gives {state} no value, so that it starts at 0; --start steady lets it begin "
            "at its steady state",
            state,
        )
    if not node.names <= values.keys():
        unknown = ", ".join(sorted(name.lstrip("?") for name in node.names - values.keys()))
        raise found.refusal(
            f"INITIAL starts {state} from {unknown}, to which it gives no value; --start steady "
            f"lets {state} begin at its steady state",
            state,
        )
    apart = np.nanmax(np.abs(computed(node, values) - steady))
    if not apart <= _SETTLED:
        raise found.refusal(
            f"INITIAL starts {state} up to {apart:.2g} from its steady state; every sweep here "
            "begins at the steady state of the holding potential. If that is meant, give "
            "--start steady",
            state,
        )


def _stationary(states: list[str], rates: Mapping[tuple[str, str], Any], n: int) -> Array:
    """Return the steady state of a scheme, (n_states, n)."""
    generator = np.zeros((n, len(states), len(states)))
    for (source, target), rate in rates.items():
        a, b = states.index(source), states.index(target)
        generator[:, b, a] += rate
        generator[:, a, a] -= rate
    scale = np.abs(generator).max(axis=(1, 2), keepdims=True)
    generator /= np.where(scale > 0, scale, 1.0)
    rows = np.concatenate([generator, np.ones((n, 1, len(states)))], axis=1)
    right = np.zeros((len(states) + 1, 1))
    right[-1] = 1.0
    found = [np.linalg.lstsq(row, right, rcond=None)[0][:, 0] for row in rows]
    return np.array(found).T
