"""Concentrations that a protocol commands beside the voltage.

A solution is exchanged at times of the sweep, and the concentration at the membrane follows its
target with one time constant,

    dc/dt = (target - c)/tau,

which has a formula in every segment; where it has come within 1e-14 of the larger of both it is
held. Targets are held, stepped and ramped by rows like those of the voltage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from channelfit.problem.segments import (
    Sweep,
    family,
    members,
    quantity_text,
    read_sweeps,
    refuse_table,
    segment_rows,
    written_family,
)
from channelfit.problem.waves import Constant, Exchange, Segment
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError
from channelfit.reading.keys import KEYS

#: mM: more is a slip of the unit, since no solution is so strong.
_MAX_MM = 10_000.0
#: The share of the larger of two concentrations at which an exchange between them is over.
_SETTLED = 1e-14
#: Digits after the point, ms, to which the end of an exchange is rounded.
_DIGITS = 9


@dataclass(frozen=True)
class Ligand:
    """The command of one concentration.

    Attributes:
        name: by which rates use it.
        holding_mM: (n_sweeps,) at the steady state with which a sweep begins.
        exchange_ms: the time constant with which the concentration follows its target, 0 for none.
        targets: (n_sweeps,) of the sweeps; each lasts as long as its sweep.
    """

    name: str
    holding_mM: tuple[float, ...]
    exchange_ms: float
    targets: tuple[Sweep, ...]

    @cached_property
    def largest_mM(self) -> float:
        """The largest concentration that is commanded."""
        segments = [segment for sweep in self.targets for segment in sweep]
        return max(*self.holding_mM, *(max(_ends(segment)) for segment in segments))

    def course(self, carry_over: bool, rest_ms: float) -> list[tuple[Sweep, Sweep]]:
        """Return the concentration in the rest before each sweep, if there is one, and in it.

        A solution stays until it is exchanged: in the rest, and where sweeps carry over, it goes on
        toward the target with which the sweep before ended.
        """
        found: list[tuple[Sweep, Sweep]] = []
        now, target = self.holding_mM[0], 0.0
        for k, targets in enumerate(self.targets):
            rest: Sweep = ()
            if not carry_over:
                now = self.holding_mM[k]
            elif found and rest_ms > 0:
                rest = tuple(self._followed([Segment(0.0, rest_ms, Constant(target))], now))
                now = _ends(rest[-1])[1]
            sweep = tuple(self._followed(targets, now))
            found.append((rest, sweep))
            now, target = _ends(sweep[-1])[1], _ends(targets[-1])[1]
        return found

    def _followed(self, targets: Sequence[Segment], now: float) -> Iterator[Segment]:
        """Yield the concentration that follows its targets from `now` on, mM."""
        tau = self.exchange_ms
        for segment in targets:
            if tau == 0:
                yield segment
                continue
            start, end = segment.start_ms, segment.end_ms
            first, last = _ends(segment)
            slope = (last - first) / (end - start)
            away, size = now - first + slope * tau, max(abs(now), abs(first))
            settled = end
            if slope == 0:
                far = abs(away) / (_SETTLED * size) if size else 0.0
                settled = min(end, round(start + tau * math.log(max(far, 1.0)), _DIGITS))
            now = first
            if settled > start:
                wave = Exchange(first - slope * tau, slope, away, tau, start)
                yield Segment(start, settled, wave)
                now = first if settled < end else _ends(Segment(start, end, wave))[1]
            if settled < end:
                yield Segment(settled, end, Constant(first))

    def document(self) -> Any:
        """Return the command by the keys of a protocol file."""
        holding = written_family(self.holding_mM, "mM")
        levels = [
            _ends(sweep[0])[0] for sweep in self.targets if len(sweep) == 1 and sweep[0].is_constant
        ]
        if len(levels) < len(self.targets):
            rows = segment_rows(self.targets, None, refuse_table, "mM")
            found = {"holding": holding, "segments": rows}
        elif tuple(levels) == self.holding_mM:
            return holding
        else:
            found = {"holding": holding, "step": written_family(levels, "mM")}
        if self.exchange_ms:
            found["exchange"] = quantity_text(self.exchange_ms, "ms")
        return found


def _ends(segment: Segment) -> tuple[float, float]:
    """Return the concentrations with which a segment begins and ends, mM."""
    first, last = segment.voltage(np.array([segment.start_ms, segment.end_ms])).tolist()
    return first, last


def read_ligands(
    root: Section, sweeps: Sequence[Sweep], known: Sequence[Ligand] = ()
) -> tuple[tuple[Sweep, ...], tuple[Ligand, ...]]:
    """Read the concentrations under ``ligands``.

    Arguments:
        root: the protocol, or an experiment whose concentrations replace those of its protocol.
        sweeps: of the voltage; one is repeated where concentrations are a family.
        known: the concentrations of the protocol, which an experiment may replace.

    Returns: the sweeps of the voltage, as many as there are of concentrations; and these.

    Raises InputError: anything that cannot be used, with file, key and what would be right.
    """
    own = {name: _read(root, name, row) for name, row in root.rows("ligands", {})}
    every = {one.name: one for one in known} | own
    counts = [len(sweeps), *(len(one.targets) for one in every.values())]
    n_sweeps = max(counts)
    if set(counts) - {1, n_sweeps}:
        raise root.error(
            f"the voltage has {counts[0]} sweeps, and concentrations "
            f"{', '.join(map(str, counts[1:]))}; families in one protocol vary together and need "
            "equal lengths",
            "ligands",
        )
    sweeps = tuple(sweeps) * (n_sweeps // len(sweeps))
    ligands = []
    for one in every.values():
        times = n_sweeps // len(one.targets)
        pairs = zip(one.targets * times, sweeps, strict=True)
        targets = tuple(_lasting(root, one.name, row, sweep[-1].end_ms) for row, sweep in pairs)
        ligands.append(Ligand(one.name, one.holding_mM * times, one.exchange_ms, targets))
    return sweeps, tuple(ligands)


def _read(root: Section, name: str, row: object) -> Ligand:
    """Return one entry; its targets are still as long as they are written."""
    if not isinstance(row, Mapping) or {"values", "from"} & set(row):
        levels = tuple(_checked(root, f"ligands.{name}", members(root, row, "ligands")))
        return Ligand(name, levels, 0.0, tuple(_step(c) for c in levels))
    section = Section(row, root.file, root.path(f"ligands.{name}"))
    section.expect(KEYS["ligand"])
    exchange = section.quantity("exchange")
    if exchange < 0:
        raise section.error(f"a time of 0 or more was expected, not {exchange:g}", "exchange")
    holding = _checked(section, "holding", members(section, section.take("holding"), "holding"))
    if "step" in section:
        targets = tuple(_step(c) for c in _checked(section, "step", family(section, "step")))
    else:
        if len(holding) > 1:
            raise section.error("one concentration was expected beside segments", "holding")
        targets = read_sweeps(section, holding[0], "ligand segment")
        _checked(section, "segments", [c for sweep in targets for s in sweep for c in _ends(s)])
    section.finish()
    if len(holding) > 1 and len(targets) not in (1, len(holding)):
        raise section.error(
            f"{len(holding)} concentrations to begin with but {len(targets)} afterwards; families "
            "in one protocol vary together and need equal lengths"
        )
    n = max(len(holding), len(targets))
    held = tuple(holding) * (n // len(holding))
    return Ligand(name, held, exchange, targets * (n // len(targets)))


def _step(level_mM: float) -> Sweep:
    """Return a target that stays to the end of any sweep."""
    return (Segment(0.0, math.inf, Constant(level_mM)),)


def _checked(section: Section, key: str, levels: list[float]) -> list[float]:
    """Return concentrations. Raises InputError for one that is negative or far too large."""
    for c in levels:
        if not 0 <= c <= _MAX_MM:
            raise section.error(
                f"a concentration of 0 to {_MAX_MM / 1000:g} M was expected, not {c:g} mM", key
            )
    return levels


def _lasting(root: Section, name: str, targets: Sweep, end_ms: float) -> Sweep:
    """Return targets as long as their sweep: the last concentration stays until its end."""
    *before, last = targets
    if last.end_ms == end_ms:
        return targets
    if math.isfinite(last.end_ms) and last.end_ms > end_ms:
        raise root.error(
            f"these segments last {last.end_ms:g} ms, but the sweep {end_ms:g} ms",
            f"ligands.{name}.segments",
        )
    if last.is_constant:
        return (*before, Segment(last.start_ms, end_ms, last.wave))
    return (*targets, Segment(last.end_ms, end_ms, Constant(_ends(last)[1])))


def unknown_ligands(commanded: Sequence[str], ligands: Sequence[str], title: str) -> InputError:
    """Return the error for a model whose ligands are not those of a protocol.

    Arguments:
        commanded, ligands: names that the protocol commands, and that the model's rates use.
        title: of the protocol.
    """
    missing = [name for name in ligands if name not in commanded]
    if missing:
        return InputError(
            f"{title} says no concentration of {', '.join(missing)}, on which rates depend; add "
            f"for example `ligands: {{{missing[0]}: 1 mM}}` to the protocol or to the experiment",
            key="ligands",
        )
    alien = [name for name in commanded if name not in ligands]
    known = f"; its ligands are: {', '.join(ligands)}" if ligands else ", which has no ligands"
    return InputError(
        f"{title} commands a concentration of {', '.join(alien)}, unknown to the model{known}",
        key="ligands",
    )
