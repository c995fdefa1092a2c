"""Checks of recordings before anything is fitted to them.

Units that are off by a factor of a thousand, an inverted sign, a mask that leaves nothing, a
recording of another protocol: all of these can be read, and would then be fitted. Each check
reports its finding and the place; none of them refuses the recording.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from channelfit.problem.jumps import other_order
from channelfit.problem.measures import noise_pA
from channelfit.problem.protocol import Protocol
from channelfit.problem.waves import Samples
from channelfit.reading.errors import Caution, each_once
from channelfit.reading.sample_times import look_like_times

#: A current may jump for this time, ms, and at least these samples after the command has changed.
RESPONSE_MS, _RESPONSE_SAMPLES = 5.0, 5
#: mV: no pair of usual solutions has a larger junction potential.
_MOST_JUNCTION_MV = 30.0
#: At least this number of equal samples in a row were not recorded, if among the other samples less
#: than this share of neighbors are equal.
_STUCK_RUN, _STILL = 30, 0.3
#: The share of its range below which the noise of a recording is that of rounding.
_NO_NOISE = 1e-4
#: Fewer different values than these are few for a recording.
_FEW_LEVELS = 32
#: The samples at the beginning that are examined first; they mostly have more values than that.
_LOOKED_AT = 1000
#: At least this number of samples in a row at the largest or smallest value mean that it was cut
#: off.
_CLIPPED_RUN = 10


@dataclass(frozen=True)
class CheckedRecording:
    """A recording with the quantities that the checks have in common.

    Attributes:
        place: the file and the key of the recording.
        protocol: what was commanded.
        current_pA: (n_sweeps, n_times), NaN where it is not known.
        weight: (n_sweeps, n_times)
    """

    place: str
    protocol: Protocol
    current_pA: np.ndarray
    weight: np.ndarray

    @cached_property
    def command_mV(self) -> np.ndarray:
        """The command (n_sweeps, n_times), mV; NaN after the end of a shorter sweep."""
        return self.protocol.command()

    @cached_property
    def known(self) -> np.ndarray:
        """True at each sample that has a current, before its sweep ends."""
        return np.asarray(np.isfinite(self.current_pA) & np.isfinite(self.command_mV))

    @cached_property
    def scored(self) -> np.ndarray:
        """True at each sample that counts in the cost."""
        return self.known & (self.weight > 0)

    @cached_property
    def smooth_pA(self) -> np.ndarray:
        """The currents without spikes of one or two samples, by a median of five, pA."""
        n = self.current_pA.shape[1]
        padded = np.pad(np.nan_to_num(self.current_pA), ((0, 0), (2, 2)), mode="symmetric")
        a, b, c, d, e = (padded[:, k : k + n] for k in range(5))
        # neither the least nor the largest of four can be the median of five
        low = np.maximum(np.minimum(a, b), np.minimum(c, d))
        high = np.minimum(np.maximum(a, b), np.maximum(c, d))
        smooth: np.ndarray = np.clip(e, np.minimum(low, high), np.maximum(low, high))
        return smooth

    @cached_property
    def resting(self) -> np.ndarray:
        """True at each sample before the command first leaves the holding potential."""
        left = np.abs(self.command_mV - self.protocol.holding_mV) > 1.0
        first = np.cumsum(left, axis=1) == 0
        carried = self.protocol.carry_over & (np.arange(len(first)) > 0)
        return np.asarray(self.known & first & ~carried[:, None])

    def at(self, index: tuple[int, int]) -> str:
        """Return the time of a sample, and its sweep where there are several, in words."""
        sweep, sample = index
        time = f"{sample * self.protocol.sampling_ms:.6g} ms"
        return f"{time} of sweep {sweep + 1}" if self.protocol.n_sweeps > 1 else time

    def caution(self, value: str, advice: str) -> Caution:
        """Return a caution at this place."""
        return Caution(self.place, value, advice)


def protocol_cautions(protocol: Protocol, place: str) -> Iterator[Caution]:
    """Yield cautions about a protocol by itself: times and voltages of an unlikely size."""
    longest = max(sweep[-1].end_ms for sweep in protocol.sweeps)
    if longest < 1.0:
        yield Caution(place, f"the longest sweep lasts {longest:g} ms", "are its times in s?")
    if protocol.sampling_ms >= 20.0 and longest >= 20_000.0:
        yield Caution(
            place,
            f"a sample every {protocol.sampling_ms:g} ms for {longest / 1000:g} s",
            "are its times in ms, and called s?",
        )
    junction = protocol.junction_potential_mV
    if abs(junction) > _MOST_JUNCTION_MV:
        yield Caution(
            place,
            f"a junction potential of {junction:g} mV",
            "usual solutions have 2 to 15 mV; is it in mV, and a junction potential?",
        )
    largest = max(float(np.nanmax(np.abs(protocol.command()))), abs(protocol.holding_mV))
    if 0 < largest < 1.0:
        yield Caution(place, f"the command stays within {largest:g} mV", "is it in V?")
    for segment in (segment for sweep in protocol.sweeps for segment in sweep):
        if isinstance(segment.wave, Samples):
            yield from _recorded_cautions(segment.wave, place)


def _recorded_cautions(wave: Samples, place: str) -> Iterator[Caution]:
    """Yield cautions about a recorded command that looks like times, or that has gaps."""
    steps = np.diff(wave.times_ms)
    usual = float(np.median(steps))
    for scale in (1.0, 1e-3, 1e3):
        if len(steps) > 9 and np.allclose(wave.v_mV, wave.times_ms * scale, rtol=1e-6, atol=0):
            yield Caution(
                place,
                "the recorded command rises evenly from 0 like its times",
                "is its column the one of the voltage?",
            )
            break
    gap = int(steps.argmax())
    even = np.mean(np.abs(steps - usual) < 0.1 * usual) > 0.9
    if even and steps[gap] > 1.5 * usual:
        yield Caution(
            place,
            f"the recorded command has no sample for {steps[gap]:g} ms after "
            f"{wave.times_ms[gap]:g} ms, {usual:g} ms elsewhere",
            "between its samples it is read as a straight line",
        )


def recording_cautions(
    seen: CheckedRecording, counts: bool, raw: CheckedRecording | None = None
) -> tuple[Caution, ...]:
    """Return cautions about a recording beside its protocol.

    Arguments:
        seen: the recording at its own sampling, with the weights that the masks leave.
        counts: whether it is fitted, and not held out.
        raw: the same before conditioning, which hides clipped samples; None where
            nothing was done to it.
    """
    found = list[Caution]()
    for check in (_swapped, _constant, _levels, _clipped, _stuck, _disordered):
        cautions = list(check(seen))
        found += cautions if cautions or raw is None else check(raw)
    found += _apart(seen)
    found += [caution for check in (_baseline, _share) for caution in check(seen) if counts]
    return each_once(found)


def _swapped(seen: CheckedRecording) -> Iterator[Caution]:
    """Yield a caution where the current looks like times, or like the command itself."""
    for k, (current, known) in enumerate(zip(seen.current_pA, seen.known, strict=True)):
        values, command = current[known], seen.command_mV[k][known]
        if look_like_times(values):
            yield seen.caution(
                f"the current of sweep {k + 1} rises evenly from {values[0]:g} to {values[-1]:g} "
                "pA, like the times of samples",
                "is its column the one of the current?",
            )
            return
        moves = command.size > 9 and np.ptp(command) > 1.0 and np.ptp(values) > 0
        if moves and abs(_correlation(values, command)) > 0.9999:
            yield seen.caution(
                f"the current of sweep {k + 1} follows the command, from {values.min():g} to "
                f"{values.max():g} pA over {command.min():g} to {command.max():g} mV",
                "is its column the one of the current, or is this a resistor?",
            )
            return


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a, b)[0, 1])


def _constant(seen: CheckedRecording) -> Iterator[Caution]:
    """Yield a caution where the current of a sweep never changes."""
    flat = [
        k
        for k, (row, known) in enumerate(zip(seen.current_pA, seen.known, strict=True))
        if known.sum() > 4 and np.ptp(row[known]) == 0
    ]
    if flat:
        value = seen.current_pA[flat[0]][seen.known[flat[0]]][0]
        yield seen.caution(
            f"every sample of sweep {_numbers(flat)} is {value:g} pA",
            "is the right column or channel read?",
        )


def _levels(seen: CheckedRecording) -> Iterator[Caution]:
    """Yield a caution where the currents take only a few different values."""
    values = seen.current_pA[seen.known]
    if np.unique(values[:_LOOKED_AT]).size >= _FEW_LEVELS:
        return  # without sorting all of them
    levels = np.unique(values)
    if values.size >= 200 and 1 < levels.size < _FEW_LEVELS:
        yield seen.caution(
            f"{values.size} samples take only {levels.size} values, "
            f"{np.diff(levels).min():g} pA apart",
            "is this the column of the command, or was it recorded at too low a gain, or rounded?",
        )


def _clipped(seen: CheckedRecording) -> Iterator[Caution]:
    """Yield a caution where a current stays at its extreme, and is never still elsewhere."""
    values = seen.current_pA[seen.known]
    moves = np.abs(np.diff(values))
    if not moves.any():
        return
    ends = (values.max(), values.min())
    inside = (values[1:] != ends[0]) & (values[1:] != ends[1])
    still = np.mean(moves[inside] == 0) if inside.any() else 1.0
    quantum = moves[moves > 0].min()
    for end in ends if still < 0.05 else ():
        at_end = (seen.current_pA == end) & seen.known
        if (at_end & seen.scored).sum() < _CLIPPED_RUN:
            continue  # masked samples do no harm
        index, length = _longest_run(at_end)
        sweep, start = index
        before = seen.current_pA[sweep, start - 1] if start else end
        if length >= _CLIPPED_RUN and abs(before - end) > 3 * quantum:
            yield seen.caution(
                f"the current stays at exactly {end:g} pA for {length} samples from "
                f"{seen.at(index)} on, {at_end.sum()} samples in all",
                "the amplifier was saturated; mask these samples, or their peak is cut off",
            )


def _stuck(seen: CheckedRecording) -> Iterator[Caution]:
    """Yield a caution where a current stays at a value although it has noise."""
    current = np.where(seen.scored, seen.current_pA, np.nan)
    same = np.diff(current, axis=1) == 0
    if not same.any():
        return
    (sweep, start), length = _longest_run(same)
    value, known = current[sweep, start], seen.current_pA[seen.known]
    others = np.isfinite(np.diff(current, axis=1)).sum() - length
    still = (same.sum() - length) / max(others, 1)
    # a value at either end was clipped, which has a caution of its own
    ends = value in (known.max(), known.min())
    if length + 1 < _STUCK_RUN or still >= _STILL or ends or length >= 0.9 * same[sweep].size:
        return
    if noise_pA(seen.current_pA) > _NO_NOISE * np.ptp(known):  # a simulation has none
        yield seen.caution(
            f"{length + 1} samples in a row are exactly {value:g} pA, from "
            f"{seen.at((sweep, start))} on",
            "nothing was recorded there; mask these samples",
        )


def _disordered(seen: CheckedRecording) -> Iterator[Caution]:
    """Yield a caution where the current jumps as if a staircase had another order."""
    found = other_order(seen.protocol, np.where(seen.known, seen.current_pA, np.nan))
    if found is not None:
        index = found.sweep, round(found.time_ms / seen.protocol.sampling_ms)
        yield seen.caution(
            f"the current jumps with the command at {found.steps - found.astray} of {found.steps} "
            f"steps, and at {found.steps - found.still_astray} with the voltages in another order: "
            f"at {seen.at(index)} as if by {found.like_mV:+.4g} mV, where the command jumps by "
            f"{found.jump_mV:+.4g} mV",
            "was it recorded under this protocol, and are its voltages in this order?",
        )


def _longest_run(mask: np.ndarray) -> tuple[tuple[int, int], int]:
    """Return where the longest run of True begins, as (sweep, sample), and its length."""
    padded = np.pad(mask, ((0, 0), (1, 1))).astype(int)
    change = np.diff(padded, axis=1)
    sweeps, starts = np.nonzero(change == 1)
    lengths = np.nonzero(change == -1)[1] - starts
    k = int(lengths.argmax())
    return (int(sweeps[k]), int(starts[k])), int(lengths[k])


def _apart(seen: CheckedRecording) -> Iterator[Caution]:
    """Yield a caution where currents jump although the command does not change."""
    n = seen.known.shape[1]
    window = max(_RESPONSE_SAMPLES, math.ceil(RESPONSE_MS / seen.protocol.sampling_ms))
    if n < 3 * window or not seen.known.any():
        return
    moved = recently_moved(seen, window)
    if not moved.any() or moved.all():
        return
    jump, both = _jumps(seen)
    low, high = np.quantile(seen.current_pA[seen.known], [0.001, 0.999])
    noise = 1.4826 * np.median(np.abs(jump[both])) if both.any() else 0.0
    large = np.abs(jump) > max(12 * noise, 0.1 * (high - low))
    energy = np.where(large, jump**2, 0.0)
    alone, answers = energy[~moved].sum(), energy[_after_steps(seen, window)].sum()
    if alone > answers and alone > 0:  # a jump while the command changes slowly says nothing
        index = place_of_largest(np.where(moved, 0.0, energy))
        yield seen.caution(
            f"the current jumps by {jump[index]:.3g} pA at {seen.at(index)}, where the command has "
            f"not moved for {_since(moved, index) * seen.protocol.sampling_ms + RESPONSE_MS:.3g} "
            "ms; most of its jumps are of this kind",
            "was it recorded under this protocol, and does its first row begin the sweep "
            "(time: {start: ..}, delay)?",
        )


def _jumps(seen: CheckedRecording) -> tuple[np.ndarray, np.ndarray]:
    """Return the jump of the current at each sample: the mean of three from it on less that before.

    Returns:
        (n_sweeps, n_times) the jumps, pA, 0 where they are not known, and whether they are known.
    """
    n = seen.known.shape[1]
    jump, both = np.zeros(seen.known.shape), np.zeros(seen.known.shape, dtype=bool)
    current = np.where(seen.known, seen.current_pA, 0.0)
    sums = np.cumsum(np.pad(current, ((0, 0), (1, 0))), axis=1)
    mean = (sums[:, 3:] - sums[:, :-3]) / 3
    jump[:, 3 : n - 2] = mean[:, 3:] - mean[:, :-3]
    both[:, 3 : n - 2] = seen.known[:, 5:] & seen.known[:, : n - 5]
    jump[~both] = 0.0
    return jump, both


def recently_moved(seen: CheckedRecording, window: int) -> np.ndarray:
    """Return whether the command changed by more than 5 mV within so many samples before."""
    command = seen.command_mV.copy()
    for row in command:
        row[np.isnan(row)] = row[np.isfinite(row)][-1]
    before = [seen.protocol.voltage_before(k) for k in range(len(command))]
    first = np.repeat(np.array(before)[:, None], window, axis=1)
    ahead = np.repeat(command[:, -1:], 3, axis=1)
    padded = np.concatenate([first, command, ahead], axis=1)
    # the last `window` samples, this one and three to come: a jump is the mean of three
    top, bottom = (_running(padded, window + 4, end) for end in (np.maximum, np.minimum))
    spread: np.ndarray = top - bottom > 5.0
    return spread


def _running(values: np.ndarray, size: int, larger: np.ufunc) -> np.ndarray:
    """Return the largest, or smallest, of each sample and those after it, `size` in all.

    Returns: (n_sweeps, n_times - size + 1)
    """
    found, reach = values, 1
    while reach < size:
        step = min(reach, size - reach)
        found, reach = larger(found[:, :-step], found[:, step:]), reach + step
    return found


def _after_steps(seen: CheckedRecording, window: int) -> np.ndarray:
    """Return whether a step lies at most so many samples before each, or just after it."""
    found = np.zeros(seen.known.shape, dtype=bool)
    for k, row in enumerate(found):
        for time in seen.protocol.step_times_ms(k):
            step = round(float(time) / seen.protocol.sampling_ms)
            row[max(0, step - 3) : step + window + 1] = True
    return found


def _since(moved: np.ndarray, index: tuple[int, int]) -> int:
    """Return the number of samples since the command last changed."""
    sweep, sample = index
    earlier = np.flatnonzero(moved[sweep, :sample])
    return sample - int(earlier[-1]) if earlier.size else sample


def _baseline(seen: CheckedRecording) -> Iterator[Caution]:
    """Yield a caution where the masks leave only samples without channel current."""
    scored, known = seen.scored, seen.known
    advice = "nothing of the channel is left to fit to; look at the masks and the protocol"
    if not scored.any() or np.ptp(seen.command_mV[known]) < 1.0:
        return
    if not (scored & ~seen.resting).any():
        yield seen.caution(
            f"all {scored.sum()} samples that count lie before the first step, at the holding "
            f"potential of {seen.protocol.holding_mV:g} mV",
            advice,
        )
        return
    if seen.resting.sum() < 20:
        return
    rest = seen.current_pA[seen.resting]
    away = np.abs(seen.smooth_pA - rest.mean())
    largest, kept = float(away[known].max()), float(away[scored].max())
    noise = max(float(rest.std()), 1e-9 * largest)
    left = float(np.sqrt(np.mean((seen.current_pA[scored] - rest.mean()) ** 2)))
    if left < 1.5 * noise and largest > 10 * noise and kept < 0.3 * largest:
        yield seen.caution(
            f"the {scored.sum()} samples that count stray by {left:.3g} pA (root mean square) from "
            f"the current at rest, whose noise is {noise:.3g} pA; the recording reaches "
            f"{largest:.4g} pA",
            advice,
        )


def _share(seen: CheckedRecording) -> Iterator[Caution]:
    """Yield a caution where the masks leave less than one sample in a hundred."""
    known, scored = int(seen.known.sum()), int(seen.scored.sum())
    if known and scored < 0.01 * known:
        yield seen.caution(
            f"only {scored} of {known} samples count ({100 * scored / known:.2g} %)",
            "are the masks as long as they were meant to be?",
        )


def place_of_largest(values: np.ndarray) -> tuple[int, int]:
    """Return the sweep and the sample, counted from 0, of the largest value."""
    sweep, sample = np.unravel_index(int(values.argmax()), values.shape)
    return int(sweep), int(sample)


def _numbers(sweeps: Sequence[int]) -> str:
    """Return sweeps in words, counted from 1."""
    listed = ", ".join(str(k + 1) for k in sweeps[:6])
    return listed + (f" and {len(sweeps) - 6} more" if len(sweeps) > 6 else "")
