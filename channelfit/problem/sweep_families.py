"""Sweeps of segments put in order: neighbors joined, edges of families aligned, numbers rounded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from channelfit.problem.waves import Constant, Ramp, Segment, Wave
from channelfit.reading.formats import Epoch

#: mV: smaller differences of a computed command are rounding, also in single precision.
EXACT = 2e-5


def rounded(value: float, unsure: float) -> float:
    """Return the value on the coarsest grid of ones and fives that is no farther than `unsure`."""
    for power in range(2, -10, -1):
        for step in (10.0**power, 5 * 10.0 ** (power - 1)):
            near = round(round(value / step) * step, 9)
            if abs(near - value) <= unsure:
                return near + 0.0  # no negative zero
    return round(value, 9)


def leveled(
    sweeps: Sequence[Sequence[Segment]], least_mV: float
) -> tuple[tuple[Segment, ...], ...]:
    """Return sweeps of which held voltages that differ by less than `least_mV` are the same.

    The most frequent of such voltages, by the time that they last, is the one that stays.
    """
    lasts = dict[float, float]()
    for segment in (segment for sweep in sweeps for segment in sweep):
        if isinstance(segment.wave, Constant):
            v = segment.wave.v_mV
            lasts[v] = lasts.get(v, 0.0) + _lasts(segment)
    levels, group = dict[float, float](), list[float]()
    for v in [*sorted(lasts), math.inf]:
        if group and v - group[-1] >= least_mV:
            usual = max(group, key=lasts.__getitem__)
            levels |= dict.fromkeys(group, usual)
            group = []
        group.append(v)
    return tuple(
        tuple(
            replace(s, wave=Constant(levels[s.wave.v_mV])) if isinstance(s.wave, Constant) else s
            for s in sweep
        )
        for sweep in sweeps
    )


def sweeps_of_epochs(epochs: Sequence[Sequence[Epoch]]) -> tuple[tuple[Segment, ...], ...]:
    """Return the sweeps in the header of a file; empty where they are not of steps and ramps only.

    Arguments:
        epochs: the pieces of each sweep.
    """
    sweeps = []
    for pieces in epochs:
        segments, start = list[Segment](), 0.0
        for piece in pieces:
            if piece.kind not in ("step", "ramp"):
                return ()
            end = round(start + piece.duration_ms, 9)
            level, reached = (rounded(v, EXACT) for v in (piece.start_mV, piece.end_mV))
            wave = Constant(level) if level == reached else Ramp(level, reached)
            if end > start:
                segments.append(Segment(start, end, wave))
            start = end
        if not segments:
            return ()
        sweeps.append(list(joined(segments)))
    return aligned(sweeps, EXACT) if sweeps else ()


def joined(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Yield segments of which neighbors at the same voltage are one."""
    held: Segment | None = None
    for segment in segments:
        if held is not None and segment.is_constant and segment.wave == held.wave:
            held = replace(held, end_ms=segment.end_ms)
            continue
        if held is not None:
            yield held
        held = segment
    if held is not None:
        yield held


def aligned(
    sweeps: Sequence[list[Segment]], sampling_ms: float, measured: bool = False
) -> tuple[tuple[Segment, ...], ...]:
    """Return the sweeps with the same number of segments.

    Some may have fewer, where two neighboring levels are the same. Such a sweep is cut where that
    makes it most like one of those that have all segments. Edges that the noise of the record has
    moved by one sample are moved to where most sweeps have them.

    Arguments:
        sweeps: the segments of each sweep; the lists are changed.
        sampling_ms: durations that differ by less than this are alike.
        measured: whether the edges come from a record with noise.
    """
    most = max(map(len, sweeps))
    whole = next(sweep for sweep in sweeps if len(sweep) == most)
    sweeps = [_cut_like(sweep, whole, sampling_ms) for sweep in sweeps]
    if any(len(sweep) != most for sweep in sweeps):
        return tuple(map(tuple, sweeps))
    for i in range(most):
        if {type(sweep[i].wave) for sweep in sweeps} == {Constant, Ramp}:
            for sweep in sweeps:
                sweep[i] = replace(sweep[i], wave=_as_ramp(sweep[i].wave))
    if measured:
        for i in range(1, most):
            times = sorted(sweep[i].start_ms for sweep in sweeps)
            if times[-1] - times[0] <= 1.5 * sampling_ms:
                for sweep in sweeps:
                    _move_edge(sweep, i, times[len(times) // 2])
    return tuple(map(tuple, sweeps))


def _as_ramp(wave: Wave) -> Wave:
    """Return a held voltage as a level ramp, for a family of ramps."""
    return Ramp(wave.v_mV, wave.v_mV) if isinstance(wave, Constant) else wave


def _cut_like(sweep: list[Segment], whole: list[Segment], sampling_ms: float) -> list[Segment]:
    """Return a sweep with held segments cut in two until it has as many as another."""
    while len(sweep) < len(whole):
        cuts = [
            [*sweep[:i], replace(s, end_ms=time), replace(s, start_ms=time), *sweep[i + 1 :]]
            for i, s in enumerate(sweep)
            if s.is_constant
            for time in (
                round(s.start_ms + _lasts(whole[i]), 9),
                round(s.end_ms - _lasts(whole[i + 1]), 9),
            )
            if s.start_ms < time < s.end_ms
        ]
        if not cuts:
            return sweep
        sweep = max(cuts, key=lambda cut: _likeness(cut, whole, sampling_ms))
    return sweep


def _lasts(segment: Segment) -> float:
    return segment.end_ms - segment.start_ms


def _likeness(sweep: Sequence[Segment], whole: Sequence[Segment], sampling_ms: float) -> int:
    """Return in how many waves and durations two sweeps agree, segment by segment."""
    return sum(
        2 * (type(a.wave) is type(b.wave))
        + (a.wave == b.wave)
        + 2 * (abs(_lasts(a) - _lasts(b)) < 1.5 * sampling_ms)
        for a, b in zip(sweep, whole, strict=False)
    )


def _move_edge(sweep: list[Segment], i: int, time: float) -> None:
    """Let segment i of a sweep begin at another time, in place."""
    before, after = sweep[i - 1], sweep[i]
    held = before.is_constant or isinstance(after.wave, (Constant, Ramp))
    if held and before.start_ms < time < after.end_ms:
        sweep[i - 1], sweep[i] = replace(before, end_ms=time), replace(after, start_ms=time)
