"""Checks of recordings against the model that is to be fitted to them: the sign, and the size.

They work for every form of current: `current_range.py` computes the currents that the channels can
carry at a voltage, and the leak that is subtracted first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import sympy

from channelfit.model.channel import ChannelModel
from channelfit.problem.clamp import Clamp
from channelfit.problem.current_range import (
    CurrentRange,
    LeakRange,
    Span,
    current_range,
    leak_pA,
    leaks,
    span,
)
from channelfit.problem.experiment import Problem, n_scored
from channelfit.problem.plausibility import (
    RESPONSE_MS,
    CheckedRecording,
    place_of_largest,
    recently_moved,
)
from channelfit.reading.errors import Caution, each_once

#: mV: nearer to the reversal potential, a current says nothing about its sign and the conductance.
_NEAR_REVERSAL = 15.0
#: The factor by which currents may exceed what a range allows, for noise and for the clamp.
_EXCESS = 1.2
#: From this factor on a unit is probably wrong; a wrong prefix makes a factor of 1000.
_PREFIX = 30.0
#: pA: the least noise of a recording. That of 10 GOhm within 1 kHz is 0.04 pA, a cell's far more.
_LEAST_NOISE = 0.05
#: Shares of a current's squares. There is a caution where at least the first flows against the
#: driving force, and at least the second of what does so with this sign or with the other.
_LEAST_AGAINST, _AGAINST = 0.2, 0.8
#: Time constants of R C after which a membrane is charged.
_CHARGED = 10.0


def fit_cautions(problem: Problem, places: Sequence[str], n_free: int) -> tuple[Caution, ...]:
    """Return cautions about recordings that do not suit the model to be fitted to them.

    Arguments:
        problem: the model and the experiments.
        places: the file and the key of each experiment's recording.
        n_free: how many parameters are searched.
    """
    found = list[Caution]()
    models = [(k, group.own_model(problem)) for group in problem.groups for k in group.places]
    n = n_scored(problem)
    observed = any(e.observations for e in problem.experiments)
    if n < (1 if observed else 10) * n_free:  # a number may stand for a hundred samples
        found.append(
            Caution(
                places[0].split(": ")[0],
                f"{n} samples count, for {n_free} free parameters",
                "they say little about so many; look at `uncertainty`",
            )
        )
    for k, model in sorted(models, key=itemgetter(0)):
        experiment, place = problem.experiments[k], places[k]
        recording = experiment.recording
        if recording is None or experiment.observations or not experiment.weight > 0:
            continue
        seen = CheckedRecording(place, experiment.protocol, recording.current_pA, recording.weight)
        found += _too_sharp(seen, model, experiment.clamp)
        compared = _compare(seen, model, experiment.clamp)
        if compared is not None:
            found += [*_inverted(compared), *_size(compared)]
    return each_once(found)


@dataclass(frozen=True)
class _Comparison:
    """A recording and the currents that a model can carry.

    Attributes:
        seen: the recording.
        usable: the samples that count, outside of capacitive transients.
        possible: the currents that the channels can carry.
        leaks: the leaks of the model and the clamp.
        signs: (n_sweeps, n_times) of the channels' current; 0 where both signs, or none, can be.
        leak_pA: (n_sweeps, n_times) the leak that leaves the least current against the driving
            force.
        against, flipped: the share of the squares that this leak leaves against it, plus the
            leak's penalty; the second for the same currents with the other sign.
    """

    seen: CheckedRecording
    usable: np.ndarray
    possible: CurrentRange
    leaks: list[LeakRange]
    signs: np.ndarray
    leak_pA: np.ndarray
    against: float
    flipped: float

    @property
    def own_pA(self) -> np.ndarray:
        """The channel's current: without spikes and without the leak."""
        return np.asarray(self.seen.smooth_pA - self.leak_pA)


def _compare(
    seen: CheckedRecording, model: ChannelModel, clamp: Clamp | None
) -> _Comparison | None:
    """Compare a recording with the currents of a model; None where these are unknown."""
    offset = span(clamp.offset, model) if clamp is not None else (0.0, 0.0)
    margin = _NEAR_REVERSAL + max(map(abs, offset or (0.0,)))
    own, beside = current_range(model, seen.command_mV, margin), leaks(model, clamp)
    if own is None or beside is None:
        return None
    usable = seen.scored & ~_charging(seen, model, clamp)
    low, high = own.at(seen.command_mV, margin)
    signs = np.where(usable, (high > 0).astype(float) - (low < 0), 0.0)
    weight = np.where(signs != 0, seen.weight, 0.0)
    leak, against = leak_pA(beside, seen.smooth_pA, seen.command_mV, weight, signs)
    _, flipped = leak_pA(beside, -seen.smooth_pA, seen.command_mV, weight, signs)
    return _Comparison(seen, usable, own, beside, signs, leak, against, flipped)


def _charging(seen: CheckedRecording, model: ChannelModel, clamp: Clamp | None) -> np.ndarray:
    """Return the samples in capacitive transients after steps that are not cancelled."""
    none = np.zeros(seen.known.shape, dtype=bool)
    if clamp is None:
        return none
    cancelled, resistance, capacitance = (
        span(e, model) or (0.0, 0.0)
        for e in (clamp.cancellation, clamp.series_resistance, clamp.membrane_capacitance)
    )
    constant_ms = resistance[1] * capacitance[1] * 1e-3  # MOhm pF is us
    if cancelled[0] >= 1.0 or constant_ms <= 0:
        return none
    lasts = min(max(_CHARGED * constant_ms, seen.protocol.sampling_ms), RESPONSE_MS)
    return recently_moved(seen, math.ceil(lasts / seen.protocol.sampling_ms))


def _too_sharp(
    seen: CheckedRecording, model: ChannelModel, clamp: Clamp | None
) -> Iterator[Caution]:
    """Yield a caution where a delay is fitted to steps of the current that no sample resolves.

    A current that jumps between two samples makes the cost jump where a delay moves it across one
    of them: the search finds a minimum as narrow as that, and a delay that looks very certain.
    """
    if clamp is None or clamp.low_pass is not None or not _is_free(clamp.delay, model):
        return
    slowest = _smoothing_ms(model, clamp)
    h = seen.protocol.sampling_ms
    if slowest >= h or not (seen.scored & _at_steps(seen, model, clamp)).any():
        return
    yield Caution(
        seen.place.removesuffix(".recording"),
        f"a delay is fitted, and the clamp has no low-pass filter and shows a step within "
        f"{slowest:.3g} ms at most, less than a sample ({h:.4g} ms)",
        "the delay then finds where a transient meets one sample; give the clamp the filter of the "
        "recording, lowpass: {poles: 4, cutoff: 10 kHz}, or mask the transients, "
        "mask: [{after_steps: 0.5 ms}]",
    )


def _is_free(expression: sympy.Expr, model: ChannelModel) -> bool:
    names = {s.name for s in expression.free_symbols}
    return any(p.name in names and not p.fixed for p in model.parameters)


def _smoothing_ms(model: ChannelModel, clamp: Clamp) -> float:
    """Return the longest time, ms, by which a step can be late in the recorded current."""
    lag, resistance, capacitance, cancelled = (
        span(e, model) or (0.0, 0.0)
        for e in (
            clamp.lag,
            clamp.series_resistance,
            clamp.membrane_capacitance,
            clamp.cancellation,
        )
    )
    charging = resistance[1] * capacitance[1] * 1e-3
    # the membrane's charging is recorded at once, unless the amplifier subtracts it
    return lag[1] + (charging if cancelled[0] >= 1.0 else 0.0)


def _at_steps(seen: CheckedRecording, model: ChannelModel, clamp: Clamp) -> np.ndarray:
    """Return the samples between a step and the latest time at which a delay can bring it."""
    delay = span(clamp.delay, model) or (0.0, 0.0)
    h = seen.protocol.sampling_ms
    found = np.zeros(seen.known.shape, dtype=bool)
    for k, row in enumerate(found):
        for time in seen.protocol.step_times_ms(k):
            row[round((time + delay[0]) / h) : math.ceil((time + delay[1]) / h) + 2] = True
    return found


def _inverted(compared: _Comparison) -> Iterator[Caution]:
    """Yield a caution where most current flows against the driving force, whatever leaks."""
    both = compared.against + compared.flipped
    if compared.against < _LEAST_AGAINST or compared.against < _AGAINST * both:
        return
    seen, own = compared.seen, compared.own_pA
    energy = np.where(compared.signs != 0, seen.weight * own**2, 0.0)
    against = np.where(compared.signs * np.sign(own) < 0, energy, 0.0)
    index = place_of_largest(against)
    reversal = compared.possible.reversal_mV
    beside = (
        "" if reversal is None else f", with a reversal potential of {_range_text(reversal)} mV"
    )
    yield seen.caution(
        f"{100 * against.sum() / energy.sum():.0f} % of the current (of its squares) flows "
        f"against the driving force, as the {seen.current_pA[index]:.4g} pA at "
        f"{seen.at(index)}, {seen.command_mV[index]:.4g} mV{beside}",
        "outward current is positive here: is the sign inverted, or the reversal another?",
    )


def _size(compared: _Comparison) -> Iterator[Caution]:
    """Yield a caution where currents are too large for the conductance, or far too small."""
    seen = compared.seen
    most, usable = _reach(compared)
    if not usable.any():
        return
    own = np.where(usable, np.abs(compared.own_pA), 0.0)
    needed = own / np.where(usable, most, 1.0)
    index = place_of_largest(needed)
    peak, least = float(needed[index]), compared.possible.least_share
    excess = _excess(compared, usable)
    if excess.sum() >= 3:
        moved = recently_moved(seen, math.ceil(RESPONSE_MS / seen.protocol.sampling_ms))
        transient = moved[excess].all() and excess.sum() < 0.02 * usable.sum()
        advice = "no open channel could carry it: are these currents in pA, and read as nA, or "
        advice += "per pF? Else widen the range"
        if transient and peak < _PREFIX:
            advice = "is this a capacitive transient (mask: [{after_steps: 1 ms}]), or are these "
            advice += "currents in pA, and read as nA?"
        yield seen.caution(_needs(compared, index, peak), advice)
    elif peak < least / 100 or (
        peak < max(1e-3, least) and (least <= 0 or peak < least / 30 or _too_quiet(seen))
    ):
        advice = "are these currents in nA, and read as pA, or is the peak masked?"
        yield seen.caution(_needs(compared, index, peak), advice)


def _reach(compared: _Comparison) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest current of the channels at each sample, pA, and where it can be judged.

    Near the reversal potential it is too small for that.
    """
    command = compared.seen.command_mV
    most = np.max(np.abs(compared.possible.at(command)), axis=0)
    around = np.max(np.abs(compared.possible.at(command, _NEAR_REVERSAL)), axis=0)
    return most, compared.usable & (most > 0) & (most >= 0.5 * around)


def _excess(compared: _Comparison, usable: np.ndarray) -> np.ndarray:
    """Return the samples that no channel and no leak within the ranges could carry."""
    seen = compared.seen
    low, high = compared.possible.at(seen.command_mV)
    low, high = np.minimum(low, -high), np.maximum(high, -low)  # the sign is judged elsewhere
    for one in compared.leaks:
        ends = one.largest_pA(seen.command_mV)
        low, high = low + np.minimum(ends[0], 0.0), high + np.maximum(ends[1], 0.0)
    beyond = (seen.smooth_pA > _EXCESS * high) | (seen.smooth_pA < _EXCESS * low)
    return np.asarray(usable & beyond)


def _needs(compared: _Comparison, index: tuple[int, int], peak: float) -> str:
    """Return in words the conductance or current that a sample requires of the channels.

    Arguments:
        peak: the share of the largest current of all channels.
    """
    seen, conductance = compared.seen, compared.possible.conductance_nS
    leak = compared.leak_pA[index]
    beside = f" ({leak:.4g} pA of it taken for leak)" if compared.leaks else ""
    where = f"{seen.at(index)}, {seen.command_mV[index]:.4g} mV"
    current = f"{seen.current_pA[index]:.4g} pA at {where}{beside}"
    if conductance is not None:
        return (
            f"{current}, needs {peak * conductance[1]:.3g} nS if all channels are open, and the "
            f"conductance ranges over {_range_text(conductance)} nS"
        )
    low, high = compared.possible.at(seen.command_mV[index])
    most = max(float(high), -float(low))
    return (
        f"{current}, is {peak:.3g} times the largest current of all channels there, {most:.4g} pA"
    )


def _too_quiet(seen: CheckedRecording) -> bool:
    """Return whether noise at rest is below a membrane's, but not 0 as in a simulation."""
    pairs = seen.resting[:, 1:] & seen.resting[:, :-1]
    steps = np.diff(np.where(seen.known, seen.current_pA, 0.0), axis=1)[pairs]
    noise = 1.4826 * float(np.median(np.abs(steps))) / math.sqrt(2) if steps.size > 19 else 0.0
    return _LEAST_NOISE / 500 < noise < _LEAST_NOISE


def _range_text(ends: Span) -> str:
    return f"{ends[0]:.4g} to {ends[1]:.4g}" if ends[0] < ends[1] else f"{ends[0]:.4g}"
