"""A command voltage that was recorded, turned into a protocol: steps, ramps and sums of sines.

Voltages and times are rounded to the coarsest grid that the noise and the digits of the record
allow, since someone once typed them. The largest difference between protocol and record is
reported with its place. A nominal command, as the header of a file or a list
of steps describes it, becomes a protocol here as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from channelfit.problem.command_pieces import SENSIBLE, SweepPieces, precision_of, sampled
from channelfit.problem.protocol import Protocol
from channelfit.problem.segments import segment_rows
from channelfit.problem.sweep_families import (
    EXACT,
    aligned,
    joined,
    leveled,
    rounded,
    sweeps_of_epochs,
)
from channelfit.problem.waves import Constant, Segment
from channelfit.reading import memory
from channelfit.reading.errors import InputError
from channelfit.reading.formats import Epoch

#: The memory of a sample, bytes: its differences, and copies of a sweep while it is cut.
_BYTES_A_SAMPLE = 120


@dataclass(frozen=True)
class FoundCommand:
    """A protocol that was found in a recorded command, and how far the record is from it.

    Attributes:
        protocol: the steps, ramps and sines; other stretches stay as samples.
        noise_mV: the standard deviation of the record's noise.
        residual_mV: the largest difference between protocol and record, outside of edges.
        residual_at: its sweep, counted from 0, and its time in the sweep, ms.
        edge_samples: the number of samples over which the slowest edge of a step is spread.
    """

    protocol: Protocol
    noise_mV: float
    residual_mV: float
    residual_at: tuple[int, float]
    edge_samples: int


def find_segments(
    command: np.ndarray,
    sampling_ms: float,
    holding_mV: float | None = None,
    name: str = "recorded command",
) -> FoundCommand:
    """Return the protocol that a recorded or computed command follows.

    Arguments:
        command: (n_sweeps, n_samples) mV; NaN after the end of a shorter sweep.
        sampling_ms: from one sample to the next.
        holding_mV: between the sweeps; without it, the voltage with which the first one begins.
        name: what the protocol is called.

    Raises InputError: no sample, or one without a voltage before the end of its sweep.
    """
    memory.check(command.size, _BYTES_A_SAMPLE, "samples of a command")
    rows = [_until_end(row, k) for k, row in enumerate(command)]
    precision = precision_of(rows)
    found = [SweepPieces(row, sampling_ms, precision) for row in rows]
    sweeps = aligned([list(each.segments()) for each in found], sampling_ms, precision.measured)
    sweeps = leveled(sweeps, 2 * SENSIBLE if precision.measured else EXACT)
    if holding_mV is None:
        first = sweeps[0][0]
        holding_mV = float(first.voltage(np.array([first.start_ms]))[0])
    holding_mV = rounded(holding_mV, EXACT)
    protocol = Protocol(name, holding_mV, sampling_ms, sweeps)
    if not _can_be_written(protocol):
        kept = [(_whole(row, sampling_ms),) for row in rows]
        protocol = replace(protocol, sweeps=tuple(kept))
    nominal = protocol.command()
    strayed = np.zeros(command.shape)
    for k, row in enumerate(rows):
        apart = np.abs(nominal[k, : len(row)] - row)
        strayed[k, : len(row)] = np.where(found[k].on_edge, 0.0, apart)
    sweep, sample = np.unravel_index(int(strayed.argmax()), strayed.shape)
    slowest = max((n for each in found for n in each.edge_lengths), default=0)
    at = (int(sweep), float(sample) * sampling_ms)
    return FoundCommand(protocol, precision.noise, float(strayed.max()), at, slowest)


def protocol_of_epochs(
    epochs: Sequence[Sequence[Epoch]],
    sampling_ms: float,
    holding_mV: float,
    name: str = "epochs of the file",
) -> Protocol | None:
    """Return the protocol in the header of a file; None where it is not of steps and ramps only.

    Arguments:
        epochs: the pieces of each sweep.
        sampling_ms: from one sample to the next.
        holding_mV: between the sweeps.
        name: what the protocol is called.
    """
    sweeps = sweeps_of_epochs(epochs)
    if not sweeps:
        return None
    protocol = Protocol(name, rounded(holding_mV, EXACT), sampling_ms, sweeps)
    return protocol if _can_be_written(protocol) else None


def _whole(row: np.ndarray, sampling_ms: float) -> Segment:
    """Return a sweep as its samples."""
    return Segment(0.0, round(len(row) * sampling_ms, 9), sampled(row, sampling_ms))


def _can_be_written(protocol: Protocol) -> bool:
    """Return whether the sweeps have the shape that one protocol file can hold."""
    try:
        segment_rows(protocol.sweeps, protocol.holding_mV, lambda _: {})
    except InputError:
        return False
    return True


def _until_end(row: np.ndarray, sweep: int) -> np.ndarray:
    """Return the voltages of a sweep until its end."""
    known = np.flatnonzero(np.isfinite(row))
    if not known.size or known.size <= known[-1]:
        problem = "no sample" if not known.size else "samples without a voltage before its end"
        raise InputError(f"the command of sweep {sweep + 1} has {problem}, and gives no protocol")
    return np.asarray(row[: known[-1] + 1], dtype=float)


def cut_into_sweeps(protocol: Protocol, n_sweeps: int, sweep_ms: float) -> Protocol | None:
    """Return a command of one sweep that holds many, as lists of steps do, cut into them.

    All sweeps last equally long. Of each its first part was recorded; during the rest of it the
    command was at the holding potential, and the channel's state is carried over to the next.

    Arguments:
        protocol: the whole command, one sweep.
        n_sweeps: how many sweeps were recorded.
        sweep_ms: how long each of them was recorded.

    Returns: None where the command does not hold so many sweeps of this kind.
    """
    end = protocol.sweeps[0][-1].end_ms
    if n_sweeps < 2 or protocol.n_sweeps > 1:
        return None
    # the last sweep may be listed with the rest after it, or without
    for period in (end / n_sweeps, (end - sweep_ms) / (n_sweeps - 1)):
        period = round(period, 9)
        sweeps = [_window(protocol, k * period, sweep_ms, period) for k in range(n_sweeps)]
        whole = [sweep for sweep in sweeps if sweep]
        if period >= sweep_ms and len(whole) == n_sweeps:
            families = aligned(whole, protocol.sampling_ms)
            rest = round(period - sweep_ms, 9)
            return replace(protocol, sweeps=families, carry_over=True, rest_ms=rest)
    return None


def _window(protocol: Protocol, start: float, lasts: float, period: float) -> list[Segment] | None:
    """Return the samples of a recorded command from `start` on, ms.

    Arguments:
        lasts: how long it was recorded, ms.
        period: until when the command must be at the holding potential after that, ms.

    Returns: None where the command is not held in steps, or not at the holding potential.
    """
    slack = 1e-6 * protocol.sampling_ms
    inside = [
        replace(s, start_ms=round(s.start_ms - start, 9), end_ms=round(s.end_ms - start, 9))
        for s in protocol.sweeps[0]
        if s.end_ms > start + slack and s.start_ms < start + period - slack
    ]
    late = [s.wave for s in inside if s.end_ms > lasts + slack]
    held = all(s.is_constant for s in inside)
    if not held or any(wave != Constant(protocol.holding_mV) for wave in late):
        return None
    recorded = [
        replace(s, start_ms=max(s.start_ms, 0.0), end_ms=min(s.end_ms, lasts))
        for s in inside
        if s.start_ms < lasts - slack
    ]
    fills = recorded and recorded[-1].end_ms > lasts - slack
    return list(joined(recorded)) if fills else None
