"""The voltages that head a file's columns, beside those that the protocol gives these sweeps."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from channelfit.problem.protocol import Protocol

#: A number, and its unit where the heading has one.
_VOLTAGE = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*(m?V)?\s*", re.IGNORECASE)
#: mV by which a heading and the command of its sweep may differ, since headings are rounded.
_ROUNDED_MV = 0.51
#: Fewer headings than these are no family of voltages, and steps between them are no less, mV.
_LEAST_FAMILY, _LEAST_STEP_MV = 3, 1.0
_MOST_MV = 1000.0


def heading_voltages(labels: Sequence[str]) -> np.ndarray | None:
    """Return the voltages, mV, that head sweeps; None where the headings are something else.

    Numbers without a unit are voltages where they are evenly stepped and some are negative, as a
    count of sweeps is not.
    """
    found = [_VOLTAGE.fullmatch(label) for label in labels]
    matched = [match for match in found if match is not None]
    if len(labels) < _LEAST_FAMILY or len(matched) < len(labels):
        return None
    units = {(match[2] or "").lower() for match in matched}
    if len(units) > 1:
        return None
    values = np.array([float(match[1]) for match in matched]) * (1e3 if units == {"v"} else 1.0)
    steps = np.diff(values)
    even = np.allclose(steps, steps[0], rtol=1e-6, atol=1e-6) and abs(steps[0]) >= _LEAST_STEP_MV
    plain = units == {""} and not (even and values.min() < 0)
    return None if plain or np.abs(values).max() > _MOST_MV else values


def contradiction(
    labels: Sequence[str], rows: Sequence[int], protocol: Protocol
) -> tuple[str, str] | None:
    """Return headings and protocol of the same sweep in words, where they contradict; else None.

    Arguments:
        labels: the heading of each column.
        rows: the sweep of the protocol, counted from 0, that each column is.

    Returns:
        The contradiction and advice about it, in words; None where headings are no voltages
        or those of the protocol.
    """
    values = heading_voltages(labels)
    if values is None:
        return None
    levels = [_levels(protocol, k) for k in range(protocol.n_sweeps)]
    wrong = [k for k, v in zip(rows, values, strict=True) if not _among(float(v), _own(levels, k))]
    if not wrong:
        return None
    first = rows.index(wrong[0])
    commanded = ", ".join(f"{v:.4g}" for v in sorted(_own(levels, wrong[0])))
    value = (
        f"the column of sweep {wrong[0] + 1} is headed {values[first]:.4g} mV, and the protocol "
        f"{protocol.name} gives this sweep {commanded} mV ({len(wrong)} of {len(rows)} sweeps "
        "differ)"
    )
    advice = "is it the protocol that ran?"
    order = _order(values, levels)
    if order is not None and len(order) == protocol.n_sweeps:
        listed = ", ".join(str(k + 1) for k in order)
        advice += f" In the order of the columns its sweeps are `sweeps: [{listed}]`"
    return value, advice


def _levels(protocol: Protocol, sweep: int) -> set[float]:
    """Return the held voltages of a sweep, mV, of its command and of its membrane."""
    held = {
        round(float(s.voltage(np.array([s.start_ms]))[0]), 6)
        for s in protocol.sweeps[sweep]
        if s.is_constant
    }
    return held | {v + protocol.junction_potential_mV for v in held}


def _own(levels: Sequence[set[float]], sweep: int) -> set[float]:
    """Return the voltages that not all sweeps have; all of a sweep where none differs."""
    common = set.intersection(*levels)
    return levels[sweep] - common or levels[sweep]


def _among(voltage: float, levels: set[float]) -> bool:
    return any(abs(voltage - level) < _ROUNDED_MV for level in levels)


def _order(values: np.ndarray, levels: Sequence[set[float]]) -> list[int] | None:
    """Return the only sweep, from 0, that has each voltage; None where there are others."""
    found = []
    for v in values:
        places = [k for k in range(len(levels)) if _among(float(v), _own(levels, k))]
        if len(places) != 1:
            return None
        found.append(places[0])
    return found if len(set(found)) == len(found) else None
