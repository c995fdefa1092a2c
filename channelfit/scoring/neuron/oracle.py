"""NEURON as the oracle: the same channel, protocol and parameters, integrated by NEURON itself.

A mechanism, generated from the model or written by hand, is alone in a compartment whose voltage an
ideal clamp holds. The clamp is a small mechanism too. Its conductance of 1e9 uS keeps the voltage
within 1e-9 mV of the command, and it evaluates ramps and sines at whatever time the integrator asks
for. Concentrations are formulas of time in the mechanism itself. NEURON's CVODE does the whole
integration, to an absolute tolerance of 1e-12 of occupancy, and starts anew at every corner of the
command.

Three properties of NEURON (9.0.2) shape this file:

* ``METHOD matexp``, exact for a KINETIC scheme at constant voltage, is unknown to the compiler of
  mechanisms that is installed by default, so schemes are integrated by CVODE.
* ``SOLVE .. STEADYSTATE sparse`` is one implicit step of 1e9 ms. It misses the steady state of
  rates slower than about 1e-6/ms, so the occupancies at the start are set from outside.
* ``CONSERVE`` is not seen by CVODE, which conserves to its tolerance.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import sympy

from channelfit.model.channel import Chain, ChannelModel, Parameter
from channelfit.model.evaluation import evaluate
from channelfit.model.terms import symbol
from channelfit.problem.protocol import Protocol
from channelfit.problem.segments import Sweep
from channelfit.problem.waves import (
    TIME_TOLERANCE,
    Constant,
    Exchange,
    Ramp,
    Samples,
    Segment,
    Sines,
)
from channelfit.reading.errors import InputError
from channelfit.scoring.neuron.mechanisms import compile_mechanism, neuron_hoc
from channelfit.scoring.neuron.nmodl import nmodl_names, nmodl_text

Array: TypeAlias = npt.NDArray[np.float64]

#: The absolute tolerance of an occupancy; the error of a trace is about a hundred times larger.
TOLERANCE = 1e-12
#: mV. At t = 10 s a double resolves 2e-12 ms, in which a steep command changes by 1e-11 mV. With a
#: tolerance below that rounding CVODE would not advance.
VOLTAGE_TOLERANCE = 1e-9
_MAX_TERMS = 16

#: NMODL of the clamp that holds the compartment.
CLAMP = f"""\
TITLE ideal voltage clamp
COMMENT
Follows offset + slope (t - since) + sum amplitude sin(omega (t - since) + phase).
ENDCOMMENT
DEFINE TERMS {_MAX_TERMS}
NEURON {{
    POINT_PROCESS clamp
    ELECTRODE_CURRENT i
    RANGE g, offset, slope, since, count, amplitude, omega, phase, i
    THREADSAFE
}}
UNITS {{ (nA) = (nanoamp) (mV) = (millivolt) (uS) = (microsiemens) }}
PARAMETER {{
    g = 1e9 (uS)
    offset = 0 (mV)
    slope = 0 (mV/ms)
    since = 0 (ms)
    count = 0
}}
ASSIGNED {{ v (mV) i (nA) amplitude[TERMS] (mV) omega[TERMS] (/ms) phase[TERMS] }}
BREAKPOINT {{ i = g*(command(t) - v) }}
FUNCTION command(x (ms)) (mV) {{
    LOCAL k
    command = offset + slope*(x - since)
    k = 0
    while (k < count) {{
        command = command + amplitude[k]*sin(omega[k]*(x - since) + phase[k])
        k = k + 1
    }}
}}
"""


class IntegrationFailed(InputError):
    """NEURON's integrator found no step that is short enough, for example at a rate of 1e40 /ms."""


class NeuronOracle:
    """One channel in NEURON.

    Arguments:
        model: the channel.
        mod_file: a POINT_PROCESS written by hand, whose RANGE variables have the names of the
            model's parameters and whose ``i`` is in nA; without it NMODL is generated.
        initial: "model" sets the occupancies at the start to the steady state of the model's
            rates, and is the default for generated mechanisms; "mechanism" leaves them to the
            mechanism's INITIAL block, and is the default for mechanisms written by hand.

    Raises:
        NeuronUnavailable: NEURON or a C++ compiler is missing.
        InputError: the mechanism does not compile, or lacks a parameter of the model.
    """

    _tolerance = VOLTAGE_TOLERANCE

    def __init__(
        self,
        model: ChannelModel,
        mod_file: str | os.PathLike[str] | None = None,
        initial: Literal["model", "mechanism"] | None = None,
    ) -> None:
        if mod_file is not None:
            model.refuse_ligands("a mechanism written by hand is compared under a voltage alone")
        whole, courses = _in_time(model)
        self.model, self.names = model, nmodl_names(whole, "point_process")
        self.courses = [[self.names.parameters[name] for name in own] for own in courses]
        if mod_file is None:
            text = nmodl_text(_without_values(whole), "point_process", "oracle")
            self.parameters = dict(self.names.parameters)
            at_once = {c.name for c in model.chains if c.instant}
            self.states = {
                key: None if key[0] in at_once else name for key, name in self.names.states.items()
            }
        else:
            text = Path(mod_file).read_text(encoding="utf-8")
            if not re.search(r"\bPOINT_PROCESS\b", text):
                raise InputError(
                    "the oracle clamps a whole cell and needs a POINT_PROCESS", mod_file
                )
            self.parameters = {name: name for name in model.parameter_names}
            self.states = {(c.name, s): s for c in model.chains for s in c.states}
        self.initial = initial or ("model" if mod_file is None else "mechanism")
        self._mechanism = compile_mechanism(text)
        self._clamp = compile_mechanism(CLAMP)
        self._tighten(_state_names(text))
        self._check_parameters(mod_file)

    def _tighten(self, states: Iterable[str]) -> None:
        # NEURON accepts only scales below 1, so the general tolerance is that of the voltage.
        solver = neuron_hoc().CVode()
        for state in states:
            solver.atolscale(f"{self._mechanism}.{state}", TOLERANCE / VOLTAGE_TOLERANCE)

    def _check_parameters(self, mod_file: str | os.PathLike[str] | None) -> None:
        with _Compartment(self) as cell:
            missing = [n for n in self.parameters.values() if not hasattr(cell.channel, n)]
        if missing:
            raise InputError(
                f"no RANGE variable {', '.join(missing)}, a parameter of the model", mod_file
            )

    def set_parameters(self, channel: Any, values: Array) -> None:
        """Set the parameters of an instance of the mechanism to values, (n_parameters,)."""
        for name, value in zip(self.model.parameter_names, values, strict=True):
            setattr(channel, self.parameters[name], float(value))

    def simulate(self, protocol: Protocol, parameters: npt.ArrayLike) -> Array:
        """Compute the current with NEURON.

        Arguments:
            protocol: the protocol, with at most 16 sines in a segment.
            parameters: (n_parameters,) in base units.

        Returns:
            (n_sweeps, n_times_max) pA, outward positive; NaN after the end of a shorter sweep. A
            sample at a jump of the command belongs to the new voltage.
        """
        values = np.asarray(parameters, dtype=float)
        if values.shape != (len(self.model.parameters),):
            raise ValueError(f"parameters {values.shape}, expected {(len(self.model.parameters),)}")
        out = np.full((protocol.n_sweeps, protocol.n_times_max), np.nan)
        ligands = protocol.commanded(self.model.ligands)
        courses = [one.course(protocol.carry_over, protocol.rest_ms) for one in ligands]
        with _Compartment(self) as cell:
            self.set_parameters(cell.channel, values)
            for sweep in range(protocol.n_sweeps):
                if sweep == 0 or not protocol.carry_over:
                    held = np.array([one.holding_mM[sweep] for one in ligands])
                    cell.start(protocol.holding_mV, values, held)
                elif protocol.rest_ms:
                    rest = Segment(0.0, protocol.rest_ms, Constant(protocol.resting_mV))
                    for piece in _pieces(rest, [course[sweep][0] for course in courses]):
                        cell.run(piece)
                cell.run_sweep(protocol, sweep, [course[sweep][1] for course in courses], out)
        return out


def _state_names(text: str) -> list[str]:
    """Return the names that an NMODL text declares in its STATE block."""
    plain = re.sub(r":[^\n]*|(?s:\bCOMMENT\b.*?\bENDCOMMENT\b)", "", text)
    block = re.search(r"\bSTATE\s*\{([^}]*)\}", plain)
    declared = re.sub(
        r"\([^)]*\)|<[^>]*>|\bFROM\b\s+\S+\s+\bTO\b\s+\S+", " ", block[1] if block else ""
    )
    return re.findall(r"[A-Za-z]\w*", declared)


def _in_time(model: ChannelModel) -> tuple[ChannelModel, list[list[str]]]:
    """Return the model with its concentrations as formulas of time.

    Each is level + slope t + away exp(-t/tau), with t from the start of a piece of the command.

    Returns: the model, and of each ligand the names of the parameters in its formula.
    """
    taken = {*model.parameter_names, *(name for name, _ in model.definitions)}
    names = []
    for ligand in model.ligands:
        own = [f"{ligand}_{part}" for part in ("level", "slope", "away", "tau")]
        while taken & set(own):
            own = [f"{name}_" for name in own]
        names.append(own)
    time = sympy.Symbol("(t)")  # as it is printed; no name of a model has brackets
    courses, parameters = [], list(model.parameters)
    for ligand, formed in zip(model.ligands, names, strict=True):
        level, slope, away, tau = map(symbol, formed)
        formula = sympy.Max(level + slope * time + away * sympy.exp(-time / tau), 0)
        courses.append((ligand, formula))
        parameters += [Parameter(name, "", 1.0, 1.0, value=1.0, fixed=True) for name in formed]
    whole = replace(
        model,
        ligands=(),
        parameters=tuple(parameters),
        definitions=(*courses, *model.definitions),
    )
    return whole, names


def _without_values(model: ChannelModel) -> ChannelModel:
    """Return the model with values that depend on its ranges only.

    Values are set at run time; those of the model must not lead to another mechanism.
    """
    middle = [(p.lower + p.upper) / 2 if p.lower < p.upper else p.lower for p in model.parameters]
    return model.with_values(np.array(middle))


class _Compartment:
    """A clamped compartment for the duration of a block, after which NEURON is as it was before."""

    def __init__(self, oracle: NeuronOracle) -> None:
        self.oracle = oracle

    def __enter__(self) -> Self:
        h = self.h = neuron_hoc()
        self.solver = h.CVode()
        self._before = (
            self.solver.active(),
            self.solver.atol(),
            self.solver.rtol(),
            h.t,
            h.secondorder,
        )
        self.section = h.Section(name="clamped")
        self.section.L = self.section.diam = 10  # um
        # The clamp settles in C/g = 3e-10 ms. If it were much faster, rounding of the voltage would
        # drive CVODE to steps that are too short to change t.
        self.section.cm = 100
        self.place = self.section(0.5)
        self.channel = getattr(h, self.oracle._mechanism)(self.place)
        self.clamp = getattr(h, self.oracle._clamp)(self.place)
        self.solver.active(True)
        self.solver.atol(self.oracle._tolerance)
        self.solver.rtol(0)
        h.secondorder = 0
        return self

    def __exit__(self, *_: object) -> None:
        h = self.h
        del self.channel, self.clamp, self.place
        self.section = None
        active, atol, rtol, h.t, h.secondorder = self._before
        self.solver.atol(atol)
        self.solver.rtol(rtol)
        self.solver.active(active)

    def start(self, holding_mV: float, values: Array, held_mM: Array) -> None:
        """Start at time 0, in the steady state of the holding potential and concentrations."""
        self._command(holding_mV)
        self._dissolve([_Wave(0.0, c) for c in held_mM], 0.0)
        self.h.finitialize(holding_mV)
        if self.oracle.initial == "model":
            model = self.oracle.model
            model = model.in_solution(**dict(zip(model.ligands, held_mM, strict=True)))
            values = np.append(values, held_mM)
            for key, occupancy in steady_state(model, values, holding_mV).items():
                if name := self.oracle.states[key]:
                    setattr(self.channel, name, occupancy)

    def run(self, piece: _Piece) -> None:
        """Run a piece of the command without recording the current."""
        self._begin(piece)
        self._advance(piece.end_ms - piece.start_ms)

    def run_sweep(
        self, protocol: Protocol, sweep: int, dissolved: Sequence[Sweep], out: Array
    ) -> None:
        """Run a sweep of the protocol, and write its currents, pA, to out (n_sweeps, n_times_max).

        Arguments:
            dissolved: the course of each concentration.
        """
        period, ranges = protocol.sampling_ms, protocol.sample_ranges(sweep)
        for segment, (sample, last) in zip(protocol.sweeps[sweep], ranges, strict=True):
            for piece in _pieces(segment, dissolved):
                self._begin(piece)
                while sample < last and sample * period < piece.end_ms - TIME_TOLERANCE * period:
                    self._advance(max(sample * period, piece.start_ms) - piece.start_ms)
                    out[sweep, sample] = self._current()
                    sample += 1
                self._advance(piece.end_ms - piece.start_ms)

    # NEURON's clock starts at 0 with every piece of the command. At a late t, the first steps after
    # a jump would be lost in rounding.

    def _begin(self, piece: _Piece) -> None:
        """Begin a new piece of the command."""
        self.h.t = 0.0
        clamp, wave, start_ms = self.clamp, piece.wave, piece.start_ms
        clamp.since = wave.since_ms - start_ms
        self._dissolve(piece.dissolved, start_ms)
        clamp.offset, clamp.slope, clamp.count = wave.offset_mV, wave.slope, len(wave.terms)
        for k, term in enumerate(wave.terms):
            clamp.amplitude[k], clamp.omega[k], clamp.phase[k] = term
        self.place.v = wave.voltage_at(start_ms)
        # The clamped voltage differs from the command by i/g; starting there saves steps.
        self.h.fcurrent()
        self.place.v -= self.channel.i / clamp.g
        self.solver.re_init()

    def _advance(self, until_ms: float) -> None:
        """Integrate to a time of the present piece."""
        if until_ms - self.h.t <= 1e-12 * max(1.0, until_ms):
            return
        try:
            self.solver.solve(until_ms)
        except RuntimeError as error:
            raise IntegrationFailed(f"NEURON's integrator gave up: {error}") from None

    def _dissolve(self, waves: Sequence[_Wave], start_ms: float) -> None:
        """Set the formulas of the concentrations from this time of the sweep on."""
        for names, wave in zip(self.oracle.courses, waves, strict=True):
            since = wave.since_ms - start_ms
            level = wave.offset_mV - wave.slope * since
            away = wave.away * math.exp(since / wave.tau)
            for name, value in zip(names, (level, wave.slope, away, wave.tau), strict=True):
                setattr(self.channel, name, value)

    def _command(self, v_mV: float) -> None:
        self.clamp.offset, self.clamp.slope, self.clamp.count = v_mV, 0.0, 0
        self.place.v = v_mV

    def _current(self) -> float:
        self.h.fcurrent()
        return float(self.channel.i) * 1e3  # nA to pA


@dataclass(frozen=True)
class _Wave:
    """A voltage, mV: offset + slope x + sum of amplitude sin(omega x + phase).

    Here x is the time since `since_ms` of the sweep. A concentration, mM, has no sines, but
    away exp(-x/tau).
    """

    since_ms: float
    offset_mV: float
    slope: float = 0.0
    terms: tuple[tuple[float, float, float], ...] = ()
    away: float = 0.0
    tau: float = 1.0

    def voltage_at(self, t_ms: float) -> float:
        """Return the voltage, mV, at a time of the sweep."""
        x = t_ms - self.since_ms
        return (
            self.offset_mV + self.slope * x + sum(a * math.sin(w * x + p) for a, w, p in self.terms)
        )


@dataclass(frozen=True)
class _Piece:
    """A part of a sweep without a corner: the voltage, and each concentration."""

    start_ms: float
    end_ms: float
    wave: _Wave
    dissolved: tuple[_Wave, ...]


def _pieces(segment: Segment, dissolved: Sequence[Sweep]) -> Iterator[_Piece]:
    """Yield the pieces of a segment of the voltage, cut wherever a concentration has a corner."""
    ends = {part.end_ms for course in dissolved for part in course}
    for start, end, wave in _waves(segment):
        edges = [start, *sorted(t for t in ends if start < t < end), end]
        for a, b in pairwise(edges):
            parts = (next(part for part in course if part.end_ms >= b) for course in dissolved)
            yield _Piece(a, b, wave, tuple(map(_concentration, parts)))


def _concentration(segment: Segment) -> _Wave:
    wave = segment.wave
    if isinstance(wave, Exchange):
        slope, away = wave.slope_mM_per_ms, wave.away_mM
        return _Wave(wave.origin_ms, wave.offset_mM, slope, away=away, tau=wave.tau_ms)
    ((_, _, found),) = _waves(segment)
    return found


def _waves(segment: Segment) -> Iterator[tuple[float, float, _Wave]]:
    """Yield start, end and voltage of the pieces of a segment that have no corner."""
    start, end, wave = segment.start_ms, segment.end_ms, segment.wave
    if isinstance(wave, Sines):
        terms = tuple(zip(wave.amplitudes_mV, wave.omegas_per_ms, wave.phases, strict=True))
        if len(terms) > _MAX_TERMS:
            raise InputError(f"{len(terms)} sines in a segment; the oracle takes {_MAX_TERMS}")
        yield start, end, _Wave(wave.origin_ms, wave.offset_mV, terms=terms)
    elif isinstance(wave, Samples):
        knots = _corners(wave, end - start)
        v = np.interp(knots, wave.times_ms, wave.v_mV)
        for a, b, va, vb in zip(knots[:-1], knots[1:], v[:-1], v[1:], strict=True):
            yield start + a, start + b, _Wave(start + a, float(va), float((vb - va) / (b - a)))
    elif isinstance(wave, Ramp):
        slope = (wave.v_end_mV - wave.v_start_mV) / (end - start)
        yield start, end, _Wave(start, wave.v_start_mV, slope)
    elif isinstance(wave, Constant):
        yield start, end, _Wave(start, wave.v_mV)


def _corners(wave: Samples, duration_ms: float) -> Array:
    """Return the times at which a sampled command bends, and both ends of its segment."""
    slopes = np.diff(wave.v_mV) / np.diff(wave.times_ms)
    slopes = np.concatenate([[0.0], slopes, [0.0]])
    turns = wave.times_ms[np.abs(np.diff(slopes)) > 1e-12]
    inside = turns[(turns > 0) & (turns < duration_ms)]
    return np.concatenate([[0.0], inside, [duration_ms]])


# --- the start of a sweep


def steady_state(
    model: ChannelModel, parameters: npt.ArrayLike, v_mV: float
) -> dict[tuple[str, str], float]:
    """Return the occupancy of every (chain, state) in the steady state at a voltage.

    It is computed by state reduction (Grassmann, Taksar and Heyman 1985, Operations Research
    33:1107-1116), which subtracts nothing and so loses no digits however different the rates are.
    """
    values: dict[str, Any] = {"v": v_mV}
    values.update(zip(model.parameter_names, np.asarray(parameters, dtype=float), strict=True))
    for name, expression in model.definitions:
        values[name] = evaluate(expression, values)
    result = {}
    for chain in model.chains:
        for state, p in zip(chain.states, _stationary(_rates(chain, values)), strict=True):
            result[chain.name, state] = float(p)
    return result


def _rates(chain: Chain, values: Mapping[str, Any]) -> Array:
    """Return the rates from the state of the row to that of the column, (n, n), 1/ms."""
    index = {s: k for k, s in enumerate(chain.states)}
    rates = np.zeros((len(index), len(index)))
    for t in chain.transitions:
        rates[index[t.source], index[t.target]] += t.multiplicity * float(evaluate(t.rate, values))
    return rates


def _stationary(rates: Array) -> Array:
    """Return the steady state (n_states,) of a chain with these rates, (n_states, n_states)."""
    k = rates.copy()
    n = len(k)
    if n == 2:  # a gate, whose inf may exceed 1
        return np.asarray(np.array([k[1, 0], k[0, 1]]) / (k[1, 0] + k[0, 1]))
    for last in range(n - 1, 0, -1):
        # where all rates out of a state underflow, it is never left
        k[:last, last] /= max(k[last, :last].sum(), np.finfo(float).tiny)
        k[:last, :last] += np.outer(k[:last, last], k[last, :last])
    p = np.ones(n)
    for j in range(1, n):
        p[j] = p[:j] @ k[:j, j]
        p /= p.max()
    return np.asarray(p / p.sum())
