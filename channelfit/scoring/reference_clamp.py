"""The truth for a clamp: the circuit and the channel by SciPy's Radau, one sweep at a time.

It shares no formula with `kernels.clamp_step`: the equations of `problem.clamp` are written once
more, divided by their masses (a mass of 0 is taken for 0.1 ns), integrated to ten digits with a
Jacobian from differences, and read at the samples off SciPy's own interpolant. The low-pass filter
is SciPy's, as a chain of further equations.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from channelfit.problem.clamp import Clamp, quantities_at
from channelfit.problem.experiment import Experiment
from channelfit.problem.protocol import Protocol
from channelfit.problem.statuses import OK
from channelfit.problem.waves import Constant, Samples, Segment
from channelfit.scoring.reference import Population, ReferenceScorer

_LEAST_MASS = 1e-7
_TINY = 1e-9


class ClampReference(ReferenceScorer):
    """Scores and simulates with a clamp; `linearize` is by differences, as in the base class."""

    def _simulate(
        self, parameters: np.ndarray, experiments: list[Experiment] | tuple[Experiment, ...]
    ) -> tuple[list[np.ndarray], np.ndarray]:
        parameters = np.asarray(parameters, dtype=float)
        n = parameters.shape[1]
        out = [
            np.full((e.protocol.n_sweeps, e.protocol.n_times_max, n), np.nan) for e in experiments
        ]
        status = np.full(n, OK, np.int8)
        for c in range(n):
            channel = Population(self.problem.model, parameters[:, c : c + 1])
            for experiment, currents in zip(experiments, out, strict=True):
                assert experiment.clamp is not None
                cell = _ClampedCell(channel, experiment.clamp, parameters[:, c])
                currents[..., c] = _currents(cell, experiment.protocol)
            status[c] = channel.status()[0]
        for currents in out:
            currents[..., status != OK] = np.nan
        return out, status


class _ClampedCell:
    """One candidate: the right side of its equations, its rest, and what is recorded."""

    def __init__(self, channel: Population, clamp: Clamp, theta: np.ndarray) -> None:
        self.channel = channel
        values = quantities_at(clamp, channel.model, theta)
        self.resistance = 1e-3 * values["series_resistance"]
        self.membrane, self.pipette = values["membrane_capacitance"], values["pipette_capacitance"]
        self.fraction, self.prediction = values["fraction"], values["prediction"]
        self.cancellation, self.offset = values["cancellation"], values["offset"]
        self.leak, self.leak_reversal = values["leak_conductance"], values["leak_reversal"]
        self.lag, self.delay = values["lag"], values["delay"]
        self.sizes = [len(c.states) for c in channel.model.chains]
        self.n = sum(self.sizes)
        self.filter = _state_space(clamp)

    def occupancies(self, y: np.ndarray) -> list[np.ndarray]:
        """Return the occupancies of each chain, (1, n_states)."""
        parts = np.split(y[: self.n], np.cumsum(self.sizes)[:-1])
        return [part[None] for part in parts]

    def flows(self, y: np.ndarray) -> float:
        """Return the current of channel and leak, pA."""
        v = float(y[self.n])
        channel = float(self.channel.current(self.occupancies(y), v)[0])
        return channel + self.leak * (v - self.leak_reversal)

    def right_side(self, y: np.ndarray, command: float) -> np.ndarray:
        """Return the derivatives of occupancies, of three potentials and of the filter."""
        v, p, e = y[self.n : self.n + 3]
        out = np.empty_like(y)
        first = 0
        for chain, x in zip(self.channel.model.chains, self.occupancies(y), strict=True):
            rates = self.channel.rates(chain, np.array([v]))[0, 0]
            generator = rates - np.diag(rates.sum(axis=0))
            out[first : first + len(chain.states)] = generator @ x[0]
            first += len(chain.states)
        charging = self.resistance * self.membrane
        e_rate = (command - e) / max((1 - self.prediction) * charging, _LEAST_MASS)
        forward = (command - e) / (1 - self.prediction)  # R C E'
        v_rate = (p + self.offset - v - self.resistance * self.flows(y)) / max(
            charging, _LEAST_MASS
        )
        compensated = self.fraction * (p + self.offset - v - self.cancellation * forward)
        p_rate = (command + compensated + self.prediction * forward - p) / max(
            self.lag, _LEAST_MASS
        )
        out[self.n : self.n + 3] = v_rate, p_rate, e_rate
        if self.filter:
            a, b, _ = self.filter
            out[self.n + 3 :] = a @ y[self.n + 3 :] + b * self.unfiltered(y, out)
        return out

    def unfiltered(self, y: np.ndarray, rate: np.ndarray) -> float:
        """Return the recorded current before the amplifier's filter, pA."""
        v_rate, p_rate, e_rate = rate[self.n : self.n + 3]
        charging = (self.membrane * v_rate) if self.membrane else 0.0
        pipette = (1 - self.cancellation) * self.pipette * p_rate
        return float(
            self.flows(y) + charging + pipette - self.cancellation * self.membrane * e_rate
        )

    def recorded(self, y: np.ndarray, command: float) -> float:
        """Return the current that is recorded behind the filter, pA."""
        if self.filter:
            return float(self.filter[2] @ y[self.n + 3 :])
        return self.unfiltered(y, self.right_side(y, command))

    def rest(self, command: float) -> np.ndarray:
        """Return the state (n,) in which nothing changes while the command stays, mV."""
        from scipy.optimize import brentq

        def at(v: float) -> np.ndarray:
            x = np.concatenate([s[0] for s in self.channel.steady_state(v)])
            return np.concatenate([x, [v, command, command]])

        def off(v: float) -> float:
            load = (1 - self.fraction) * self.resistance
            return command + self.offset - v - load * self.flows(at(v))

        v, reach = command + self.offset, 1e-3
        while off(v - reach) * off(v + reach) > 0 and reach < 1e3:
            reach *= 1.5
        v = brentq(off, v - reach, v + reach, xtol=1e-13, rtol=1e-15)
        y = at(v)
        y[self.n + 1] = v - self.offset + self.resistance * self.flows(y)
        if self.filter:
            a, b, _ = self.filter
            y = np.concatenate([y, np.linalg.solve(a, -b * self.flows(y))])
        return y


def _state_space(clamp: Clamp) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return A, b and c of z' = A z + b u, output c z: SciPy's Bessel filter."""
    if clamp.low_pass is None:
        return None
    from scipy.signal import bessel, tf2ss

    omega = 2 * np.pi * clamp.low_pass.cutoff_kHz
    a, b, c, _ = tf2ss(*bessel(clamp.low_pass.poles, 1.0, analog=True, norm="mag", output="ba"))
    return omega * a, omega * b[:, 0], c[0]


def _currents(cell: _ClampedCell, protocol: Protocol) -> np.ndarray:
    """Return currents (n_sweeps, n_times_max) pA; a sample at a jump is before it."""
    out = np.full((protocol.n_sweeps, protocol.n_times_max), np.nan)
    y, last = cell.rest(protocol.holding_mV), 0.0
    for k in range(protocol.n_sweeps):
        if not protocol.carry_over:
            y = cell.rest(protocol.holding_mV)
        times = np.arange(protocol.n_times(k)) * protocol.sampling_ms - cell.delay
        pieces = _pieces(protocol, k)
        begin = pieces[0][0]
        before = times <= begin + _TINY
        if k == 0 or not protocol.carry_over:
            out[k, : len(times)][before] = cell.recorded(y, protocol.holding_mV)
        elif before.any():
            out[k, : len(times)][before] = last
        for begin, end, command in pieces:
            inside = (times > begin + _TINY) & (times <= end + _TINY)
            y, values, last = _through(cell, y, begin, end, command, times[inside])
            out[k, : len(times)][inside] = values
    return out


def _through(
    cell: _ClampedCell,
    y: np.ndarray,
    begin: float,
    end: float,
    command: Callable[[float], float],
    times: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the state at the end of a piece, the currents at some times, and that at the end."""
    from scipy.integrate import solve_ivp

    solved: Any = solve_ivp(
        lambda t, y: cell.right_side(y, command(t)),
        (begin, end),
        y,
        method="Radau",
        rtol=1e-10,
        atol=1e-11,
        first_step=min(1e-9, 0.5 * (end - begin)),
        dense_output=True,
    )
    values = np.array([cell.recorded(solved.sol(t), command(t)) for t in times])
    return solved.y[:, -1], values, cell.recorded(solved.y[:, -1], command(end))


def _pieces(protocol: Protocol, k: int) -> list[tuple[float, float, Callable[[float], float]]]:
    """Return begin, end and command of every smooth part of a sweep."""
    segments = list(protocol.sweeps[k])
    if k and protocol.carry_over and protocol.rest_ms > 0:
        segments.insert(0, Segment(-protocol.rest_ms, 0.0, Constant(protocol.resting_mV)))
    pieces = []
    for segment in segments:
        wave, edges = segment.wave, [segment.start_ms, segment.end_ms]
        if isinstance(wave, Samples):
            knots = wave.times_ms + segment.start_ms
            edges += [float(t) for t in knots if segment.start_ms < t < segment.end_ms]
        edges.sort()
        for begin, end in pairwise(edges):
            pieces.append((begin, end, _command(segment)))
    return pieces


def _command(segment: Segment) -> Callable[[float], float]:
    return lambda t: float(segment.wave.voltage(np.array(t), segment.start_ms, segment.end_ms))
