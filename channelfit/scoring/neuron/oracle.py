"""NEURON as the oracle: the same channel, protocol and parameters, integrated by NEURON itself.

A mechanism (generated from the model, or written by hand) is compiled once and kept. It sits alone
in a compartment whose voltage an ideal clamp holds: a small mechanism of our own whose conductance
of 1e9 uS leaves the voltage 1e-9 mV from the command, and which evaluates ramps and sines itself at
whatever time the integrator asks for. Nothing of the integration is ours: CVODE does it, to an
absolute tolerance of 1e-12 of occupancy, and starts anew at every corner of the command.

Three properties of NEURON (9.0.2) shape this file:

* ``METHOD matexp``, exact for a KINETIC scheme at constant voltage, is unknown to the compiler of
  mechanisms that is installed by default, so schemes are integrated by CVODE.
* ``SOLVE .. STEADYSTATE sparse`` is one implicit step of 1e9 ms. It misses the steady state of
  rates slower than about 1e-6/ms, so the occupancies at the start are set from outside.
* ``CONSERVE`` is not seen by CVODE, which conserves to its tolerance.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from channelfit.model.channel import Chain, ChannelModel, Transition
from channelfit.model.evaluation import evaluate
from channelfit.problem.protocol import Protocol
from channelfit.problem.waves import TIME_TOLERANCE, Ramp, Samples, Segment, Sines
from channelfit.reading.errors import InputError
from channelfit.scoring.machine.cache import cache_folder
from channelfit.scoring.neuron.nmodl import nmodl_names, nmodl_text

Array: TypeAlias = npt.NDArray[np.float64]
Method = Literal["cvode", "fixed"]

#: Absolute tolerance of an occupancy; traces come out about a hundred times less exact.
TOLERANCE = 1e-12
#: mV. At t = 10 s a double resolves 2e-12 ms, in which a steep command moves by 1e-11 mV: a
#: tolerance below that rounding would bring CVODE to a standstill.
VOLTAGE_TOLERANCE = 1e-9
#: A trace smaller than this part of what the open channel would carry is measured against that.
SMALLEST_CURRENT = 1e-6
_MAX_TERMS = 16

_CLAMP = """\
TITLE ideal voltage clamp
COMMENT
Follows offset + slope (t - since) + sum amplitude sin(omega (t - since) + phase).
ENDCOMMENT
DEFINE TERMS {terms}
NEURON {{
    POINT_PROCESS {name}
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

_DECLARATION = re.compile(r"^[^:\n]*\b(POINT_PROCESS|SUFFIX)\s+(\w+)", re.MULTILINE)
_loaded: set[str] = set()  # NEURON cannot load a name twice in one process


class NeuronUnavailable(InputError):
    """NEURON, or the compiler that its mechanisms need, is not on this machine."""


class IntegrationFailed(InputError):
    """NEURON's integrator found no step that is short enough, as where a rate is 1e40 /ms."""


# --- NEURON and its mechanisms


def neuron_hoc() -> Any:
    """NEURON's interpreter, imported when first asked for.

    Raises:
        NeuronUnavailable: it is not installed; the message says how to get it.
    """
    os.environ.setdefault("NEURON_MODULE_OPTIONS", "-nogui")
    try:
        from neuron import h
    except ImportError as error:
        if platform.system() == "Windows":
            how = (
                "on Windows it comes as an installer, not from PyPI: "
                "https://github.com/neuronsimulator/nrn/releases"
            )
        else:
            how = 'pip install "channelfit[neuron]"'
        raise NeuronUnavailable(f"NEURON cannot be imported ({error}); {how}") from error
    return h


def compile_mechanism(text: str, cache: Path | None = None) -> str:
    """Compiles and loads one mechanism, and returns the name it got.

    Arguments:
        text: NMODL of a POINT_PROCESS or SUFFIX. The mechanism is renamed after a hash of the
            text, so that several of one name can live in one process.
        cache: folder that keeps compiled mechanisms; the user's cache folder without it.

    Raises:
        NeuronUnavailable: no NEURON, no nrnivmodl or no compiler.
        InputError: the text does not compile; the message ends with what the compiler said.
    """
    h = neuron_hoc()
    declared = _DECLARATION.search(text)
    if not declared:
        raise InputError("neither POINT_PROCESS nor SUFFIX names the mechanism")
    key = f"{text}\0{h.nrnversion()}\0{platform.platform()}\0{sys.version_info[:2]}"
    name = "channelfit_" + hashlib.sha256(key.encode()).hexdigest()[:16]
    if name not in _loaded:
        renamed = text[: declared.start(2)] + name + text[declared.end(2) :]
        root = cache or cache_folder() / "neuron"
        folder = root / name
        if not folder.is_dir():
            _compile(renamed, name, folder)
        _load(h, folder)
        _loaded.add(name)
    return name


def _load(h: Any, folder: Path) -> None:
    patterns = ("*/libnrnmech.*", "*/.libs/libnrnmech.so", "nrnmech.dll", "*/nrnmech.dll")
    found = [p for pattern in patterns for p in sorted(folder.glob(pattern)) if p.suffix != ".la"]
    if not found:
        raise InputError("the compiled mechanism is missing; delete this folder", folder)
    h.nrn_load_dll(str(found[0]))


def _compile(text: str, name: str, folder: Path) -> None:
    """nrnivmodl in a folder of its own, moved into place when whole (another process may race)."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        work = Path(temporary) / name
        work.mkdir()
        (work / f"{name}.mod").write_text(text, encoding="utf-8")
        try:
            done = subprocess.run(  # noqa: S603  (a fixed command; the text is only compiled)
                [_nrnivmodl(), f"{name}.mod"], cwd=work, capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise NeuronUnavailable(f"nrnivmodl does not run: {error}") from error
        if done.returncode:
            _explain(done.stdout + done.stderr)
        with contextlib.suppress(OSError):
            work.rename(folder)
    if not folder.is_dir():
        raise InputError("the compiled mechanism could not be put here", folder)


def _nrnivmodl() -> str:
    beside = Path(sys.executable).parent
    found = shutil.which("nrnivmodl", path=str(beside)) or shutil.which("nrnivmodl")
    if not found:
        raise NeuronUnavailable(
            f"nrnivmodl, which compiles NEURON's mechanisms, is neither in {beside} nor in PATH"
        )
    return found


def _explain(output: str) -> None:
    if shutil.which("c++") is None and shutil.which("g++") is None:
        raise NeuronUnavailable(
            "NEURON's mechanisms need a C++ compiler (on Debian and Ubuntu: apt install g++ make; "
            "on macOS: xcode-select --install)"
        )
    lines = [line for line in output.splitlines() if re.search("error|Illegal|^ ", line)]
    raise InputError(
        "nrnivmodl refused the mechanism:\n" + "\n".join(lines[-12:] or [output[-800:]])
    )


# --- the simulation


class NeuronOracle:
    """One channel in NEURON.

    Arguments:
        model: the channel.
        mod_file: a POINT_PROCESS written by hand, whose RANGE variables bear the names of the
            model's parameters and whose ``i`` is in nA; without it NMODL is generated.
        method: "cvode", adaptive; or "fixed", NEURON's ordinary fixed steps with the METHOD that
            the mechanism names: exact at constant voltage for gates (cnexp), first order for
            schemes (sparse), and with the voltage of a step's middle where it varies.
        initial: "model" sets the occupancies at the start to the steady state of the model's
            rates; "mechanism" leaves them to the mechanism's INITIAL block. By default generated
            mechanisms take the first, those written by hand the second.

    Raises:
        NeuronUnavailable: no NEURON or no compiler.
        InputError: the mechanism does not compile or lacks a parameter.
    """

    _tolerance = VOLTAGE_TOLERANCE

    def __init__(
        self,
        model: ChannelModel,
        mod_file: str | os.PathLike[str] | None = None,
        method: Method = "cvode",
        initial: Literal["model", "mechanism"] | None = None,
        cache: Path | None = None,
    ) -> None:
        if method not in ("cvode", "fixed"):
            raise ValueError(f'method "{method}" is neither "cvode" nor "fixed"')
        self.model, self.method = model, method
        self.names = nmodl_names(model, "point_process")
        if mod_file is None:
            text = nmodl_text(_without_values(model), "point_process", "oracle")
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
        self._mechanism = compile_mechanism(text, cache)
        self._clamp = compile_mechanism(_CLAMP.format(terms=_MAX_TERMS, name="clamp"), cache)
        self._tighten(_state_names(text))
        self._check_parameters(mod_file)

    def _tighten(self, states: Iterable[str]) -> None:
        # NEURON heeds a scale below 1 only, so the tolerance of all is the voltage's.
        solver = neuron_hoc().CVode()
        for state in states:
            solver.atolscale(f"{self._mechanism}.{state}", TOLERANCE / VOLTAGE_TOLERANCE)

    def _check_parameters(self, mod_file: str | os.PathLike[str] | None) -> None:
        with _Cell(self) as cell:
            missing = [n for n in self.parameters.values() if not hasattr(cell.channel, n)]
        if missing:
            raise InputError(
                f"no RANGE variable {', '.join(missing)}, a parameter of the model", mod_file
            )

    def set_parameters(self, channel: Any, values: Array) -> None:
        """Puts (n_parameters,) into an instance of the mechanism."""
        for name, value in zip(self.model.parameter_names, values, strict=True):
            setattr(channel, self.parameters[name], float(value))

    def simulate(
        self, protocol: Protocol, parameters: npt.ArrayLike, max_step_ms: float | None = None
    ) -> Array:
        """The current as NEURON computes it.

        Arguments:
            protocol: any; at most 16 sines in a segment.
            parameters: (n_parameters,) physical units.
            max_step_ms: longest step; without it CVODE chooses its own and "fixed" takes one step a
                sample.

        Returns:
            (n_sweeps, n_times_max) pA, outward positive; NaN after the end of a shorter sweep. A
            sample at a jump of the command has the new voltage and the occupancies of that instant.
        """
        values = np.asarray(parameters, dtype=float)
        if values.shape != (len(self.model.parameters),):
            raise ValueError(f"parameters {values.shape}, wanted {(len(self.model.parameters),)}")
        out = np.full((protocol.n_sweeps, protocol.n_times_max), np.nan)
        with _Cell(self) as cell:
            self.set_parameters(cell.channel, values)
            for sweep in range(protocol.n_sweeps):
                if sweep == 0 or not protocol.carry_over:
                    cell.start(protocol.holding_mV, values, max_step_ms or protocol.sampling_ms)
                elif protocol.rest_ms:
                    cell.hold(protocol.holding_mV, protocol.rest_ms)
                if max_step_ms and self.method == "cvode":
                    cell.solver.maxstep(max_step_ms)
                cell.run_sweep(protocol, sweep, out[sweep])
        return out


class KSChanOracle(NeuronOracle):
    """A scheme built with NEURON's Channel Builder (KSChan), from which no NMODL is made at all.

    A KSChan knows rates ``a exp(k v)`` only (and three other forms).

    Raises:
        InputError: the model is not one scheme.
    """

    _tolerance = TOLERANCE  # for all, since its states take no scale: long sines may stall

    def __init__(self, model: ChannelModel, cache: Path | None = None) -> None:
        if len(model.chains) != 1 or model.chains[0].power != 1:
            raise InputError("a KSChan is made of one scheme, not of gates; use model.expanded()")
        self.model, self.method, self.initial = model, "cvode", "model"
        self.parameters = {}
        self.states = {(model.chains[0].name, s): s for s in model.states}
        self._clamp = compile_mechanism(_CLAMP.format(terms=_MAX_TERMS, name="clamp"), cache)
        h = neuron_hoc()
        names = (f"channelfit_ks{k}" for k in itertools.count())  # a type can never be unmade
        self._mechanism = next(name for name in names if not hasattr(h, name))
        self._build(h)

    def _build(self, h: Any) -> None:
        channel = self._kschan = h.KSChan(True)
        channel.name(self._mechanism)
        channel.ion("NonSpecific")
        channel.iv_type(0)
        states: dict[str, Any] = {}
        for state in self.model.states:
            states[state] = channel.add_ksstate(channel.gate(0) if states else None, state)
            states[state].frac(self.model.open_states.get(state, 0.0))
        self._pairs: list[tuple[Any, Transition, Transition]] = []
        for t in self.model.transitions:
            backward = [
                b for b in self.model.transitions if (b.target, b.source) == (t.source, t.target)
            ]
            if len(backward) != 1:
                raise InputError(
                    f"a KSChan needs one way back for each transition, as {t.source} -> {t.target}"
                )
            if any(b is t for _, _, b in self._pairs):
                continue
            link = channel.add_transition(states[t.source], states[t.target])
            link.type(0)
            for direction in (0, 1):  # NEURON crashes on a transition without its functions
                link.set_f(direction, 2, h.Vector([1.0, 0.0, 0.0]))
            self._pairs.append((link, t, backward[0]))

    def set_parameters(self, channel: Any, values: Array) -> None:
        """Puts (n_parameters,) into the type's functions and the instance's gmax (uS) and e."""
        h = neuron_hoc()
        known = dict(zip(self.model.parameter_names, values, strict=True))
        for link, *directions in self._pairs:
            for direction, t in enumerate(directions):
                a, slope = _exponential(self.model, t, known)
                link.set_f(direction, 2, h.Vector([a, slope, 0.0]))
        channel.gmax = 1e-3 * float(evaluate(self.model.conductance, known))
        channel.e = float(evaluate(self.model.reversal, known))


def _exponential(
    model: ChannelModel, t: Transition, known: Mapping[str, Any]
) -> tuple[float, float]:
    """a and k of a rate a exp(k v)."""
    values: dict[str, Any] = {**known, "v": np.array([-50.0, 0.0, 50.0])}
    for name, expression in model.definitions:
        values[name] = evaluate(expression, values)
    rate = t.multiplicity * np.broadcast_to(evaluate(t.rate, values), (3,))
    slope = math.log(rate[2] / rate[0]) / 100
    if not math.isclose(rate[1] ** 2, rate[0] * rate[2], rel_tol=1e-9):
        raise InputError(f"the rate {t.source} -> {t.target} is not of the form a*exp(k*v)")
    return float(rate[1]), slope


def _state_names(text: str) -> list[str]:
    """What an NMODL text declares in its STATE block, without comments, units and ranges."""
    plain = re.sub(r":[^\n]*|(?s:\bCOMMENT\b.*?\bENDCOMMENT\b)", "", text)
    block = re.search(r"\bSTATE\s*\{([^}]*)\}", plain)
    declared = re.sub(
        r"\([^)]*\)|<[^>]*>|\bFROM\b\s+\S+\s+\bTO\b\s+\S+", " ", block[1] if block else ""
    )
    return re.findall(r"[A-Za-z]\w*", declared)


def _without_values(model: ChannelModel) -> ChannelModel:
    """The parameters' values are set at run time and must not make another mechanism."""
    middle = [(p.lower + p.upper) / 2 if p.lower < p.upper else p.lower for p in model.parameters]
    return model.with_values(np.array(middle))


class _Cell:
    """One clamped compartment, which is gone, with every global setting put back, on leaving."""

    def __init__(self, oracle: NeuronOracle) -> None:
        self.oracle = oracle
        self.step_ms = math.inf

    def __enter__(self) -> Self:
        h = self.h = neuron_hoc()
        self.solver = h.CVode()
        self._before = (
            self.solver.active(),
            self.solver.atol(),
            self.solver.rtol(),
            self.solver.maxstep(),
            h.dt,
            h.t,
            h.secondorder,
        )
        self.section = h.Section(name="clamped")
        self.section.L = self.section.diam = 10  # um
        # The clamp settles in C/g = 3e-10 ms. Much faster, and rounding of the voltage would drive
        # CVODE to steps that vanish beside t.
        self.section.cm = 100
        self.place = self.section(0.5)
        self.channel = getattr(h, self.oracle._mechanism)(self.place)
        self.clamp = getattr(h, self.oracle._clamp)(self.place)
        adaptive = self.oracle.method == "cvode"
        self.solver.active(adaptive)
        if adaptive:
            self.solver.atol(self.oracle._tolerance)
            self.solver.rtol(0)
        h.secondorder = 0
        return self

    def __exit__(self, *_: object) -> None:
        h = self.h
        del self.channel, self.clamp, self.place
        self.section = None
        active, atol, rtol, longest, h.dt, h.t, h.secondorder = self._before
        self.solver.atol(atol)
        self.solver.rtol(rtol)
        self.solver.maxstep(longest)
        self.solver.active(active)

    def start(self, holding_mV: float, values: Array, step_ms: float) -> None:
        """The steady state at the holding potential, time 0."""
        self.step_ms = step_ms
        self._command(holding_mV)
        self.h.finitialize(holding_mV)
        if self.oracle.initial == "model":
            for key, occupancy in steady_state(self.oracle.model, values, holding_mV).items():
                if name := self.oracle.states[key]:
                    setattr(self.channel, name, occupancy)

    def hold(self, v_mV: float, duration_ms: float) -> None:
        """Time at a constant voltage that nobody samples."""
        wave = _Wave(0.0, v_mV)
        self._begin(wave, 0.0)
        self._advance(duration_ms, wave, 0.0)

    def run_sweep(self, protocol: Protocol, sweep: int, row: Array) -> None:
        """Fills one row of currents, pA."""
        period, ranges = protocol.sampling_ms, protocol.sample_ranges(sweep)
        for segment, (sample, last) in zip(protocol.sweeps[sweep], ranges, strict=True):
            for start, end, wave in _pieces(segment):
                self._begin(wave, start)
                while sample < last and sample * period < end - TIME_TOLERANCE * period:
                    self._advance(max(sample * period, start) - start, wave, start)
                    row[sample] = self._current()
                    sample += 1
                self._advance(end - start, wave, start)

    # NEURON's clock starts at 0 with every piece of the command: beside a late t, the first steps
    # after a jump would be lost in rounding.

    def _begin(self, wave: _Wave, start_ms: float) -> None:
        """A new piece of the command, from this time of the sweep on."""
        self.h.t = 0.0
        if self.oracle.method == "fixed":
            self._command(wave.voltage_at(start_ms))
            return
        clamp = self.clamp
        clamp.since = wave.since_ms - start_ms
        clamp.offset, clamp.slope, clamp.count = wave.offset_mV, wave.slope, len(wave.terms)
        for k, term in enumerate(wave.terms):
            clamp.amplitude[k], clamp.omega[k], clamp.phase[k] = term
        self.place.v = wave.voltage_at(start_ms)
        # The clamp lets go by i/g. Starting there spares CVODE the way to it.
        self.h.fcurrent()
        self.place.v -= self.channel.i / clamp.g
        self.solver.re_init()

    def _advance(self, until_ms: float, wave: _Wave, start_ms: float) -> None:
        """To this time of the present piece, which started at `start_ms` of the sweep."""
        span = until_ms - self.h.t
        if span <= 1e-12 * max(1.0, until_ms):
            return
        if self.oracle.method == "cvode":
            try:
                self.solver.solve(until_ms)
            except RuntimeError as error:
                raise IntegrationFailed(f"NEURON's integrator gave up: {error}") from None
            return
        steps = max(1, math.ceil(span / self.step_ms - TIME_TOLERANCE))
        self.h.dt = span / steps
        for _ in range(steps):
            self._command(wave.voltage_at(start_ms + self.h.t + self.h.dt / 2))
            self.h.fadvance()
        self.h.t = until_ms
        self._command(wave.voltage_at(start_ms + until_ms))

    def _command(self, v_mV: float) -> None:
        self.clamp.offset, self.clamp.slope, self.clamp.count = v_mV, 0.0, 0
        self.place.v = v_mV

    def _current(self) -> float:
        self.h.fcurrent()
        return float(self.channel.i) * 1e3  # nA to pA


@dataclass(frozen=True)
class _Wave:
    """offset + slope (t - since) + sum amplitude sin(omega (t - since) + phase), t in the sweep."""

    since_ms: float
    offset_mV: float
    slope: float = 0.0
    terms: tuple[tuple[float, float, float], ...] = ()

    def voltage_at(self, t_ms: float) -> float:
        """mV at a time of the sweep."""
        x = t_ms - self.since_ms
        return (
            self.offset_mV + self.slope * x + sum(a * math.sin(w * x + p) for a, w, p in self.terms)
        )


def _pieces(segment: Segment) -> Iterator[tuple[float, float, _Wave]]:
    """Start, end and command of the stretches without a corner."""
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
    else:
        yield start, end, _Wave(start, wave.v_mV)


def _corners(wave: Samples, duration_ms: float) -> Array:
    """Times from the segment's start where a sampled command bends, with both ends."""
    slopes = np.diff(wave.v_mV) / np.diff(wave.times_ms)
    slopes = np.concatenate([[0.0], slopes, [0.0]])
    turns = wave.times_ms[np.abs(np.diff(slopes)) > 1e-12]
    inside = turns[(turns > 0) & (turns < duration_ms)]
    return np.concatenate([[0.0], inside, [duration_ms]])


# --- the start of a sweep


def steady_state(
    model: ChannelModel, parameters: npt.ArrayLike, v_mV: float
) -> dict[tuple[str, str], float]:
    """Occupancy of every (chain, state) at a voltage held for ever.

    By state reduction (Grassmann, Taksar and Heyman 1985, Operations Research 33:1107-1116), which
    subtracts nothing and so keeps its digits however far apart the rates lie.
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
    """(n_states, n_states) rate from row to column, of whatever size."""
    index = {s: k for k, s in enumerate(chain.states)}
    rates = np.zeros((len(index), len(index)))
    for t in chain.transitions:
        rates[index[t.source], index[t.target]] += t.multiplicity * float(evaluate(t.rate, values))
    return rates


def _stationary(rates: Array) -> Array:
    k = rates.copy()
    n = len(k)
    if n == 2:  # of a gate, whose inf may exceed 1
        return np.asarray(np.array([k[1, 0], k[0, 1]]) / (k[1, 0] + k[0, 1]))
    for last in range(n - 1, 0, -1):
        # where every rate out underflows, whoever is there stays
        k[:last, last] /= max(k[last, :last].sum(), np.finfo(float).tiny)
        k[:last, :last] += np.outer(k[:last, last], k[last, :last])
    p = np.ones(n)
    for j in range(1, n):
        p[j] = p[:j] @ k[:j, j]
        p /= p.max()
    return np.asarray(p / p.sum())


# --- comparison


@dataclass(frozen=True, eq=False)
class Comparison:
    """How far channelfit is from NEURON in one protocol.

    relative_error: the largest difference of the whole trace over `scale_pA`, which is the largest
        current (of a channel that hardly opens: a millionth of what it would carry open).
    candidate, sweep, time_ms: where the largest difference is.
    parameters: (n_parameters,) of that candidate.
    neuron_pA, channelfit_pA: (n_sweeps, n_times_max) of that candidate.
    gave_up: candidates that NEURON could not integrate, and that nothing was compared of.
    """

    protocol: str
    relative_error: float
    scale_pA: float
    candidate: int
    sweep: int
    time_ms: float
    parameters: Array
    neuron_pA: Array
    channelfit_pA: Array
    gave_up: tuple[int, ...] = ()


#: (n_parameters, n_candidates) -> one (n_sweeps, n_times_max, n_candidates) pA for each protocol.
Simulate: TypeAlias = Callable[[Array], Sequence[Array]]


def compare(
    oracle: NeuronOracle,
    protocols: Sequence[Protocol],
    simulate: Simulate,
    parameters: npt.ArrayLike,
) -> list[Comparison]:
    """The worst candidate of each protocol.

    Arguments:
        oracle: the channel in NEURON.
        protocols: in the order of what `simulate` returns.
        simulate: a scorer's method.
        parameters: (n_parameters,) or (n_parameters, n_candidates).

    Raises:
        IntegrationFailed: NEURON could integrate none of the candidates.
    """
    candidates = np.asarray(parameters, dtype=float)
    candidates = candidates.reshape(len(oracle.model.parameters), -1)
    traces = simulate(candidates)
    worst = []
    for protocol, ours in zip(protocols, traces, strict=True):
        rows, gave_up = [], []
        for k in range(candidates.shape[1]):
            try:
                rows.append(_compared(oracle, protocol, k, candidates[:, k], ours[:, :, k]))
            except IntegrationFailed as error:
                gave_up.append(k)
                failed = error
        if not rows:
            raise failed
        row = max(rows, key=lambda row: row.relative_error)
        worst.append(replace(row, gave_up=tuple(gave_up)))
    return worst


def _compared(
    oracle: NeuronOracle, protocol: Protocol, candidate: int, parameters: Array, ours: Array
) -> Comparison:
    theirs = oracle.simulate(protocol, parameters)
    scale = max(float(np.nanmax(np.abs(theirs))), _smallest(oracle.model, protocol, parameters))
    apart = np.abs(ours - theirs)
    # A number where the other has none is as far apart as can be; both none is the end of a sweep.
    apart = np.where(np.isnan(ours) & np.isnan(theirs), 0.0, np.nan_to_num(apart, nan=np.inf))
    sweep, time = np.unravel_index(int(np.argmax(apart)), apart.shape)
    return Comparison(
        protocol.name,
        float(apart[sweep, time] / scale),
        scale,
        candidate,
        int(sweep),
        float(protocol.times_ms[time]),
        parameters,
        theirs,
        ours,
    )


def _smallest(model: ChannelModel, protocol: Protocol, parameters: Array) -> float:
    values = dict(zip(model.parameter_names, parameters, strict=True))
    conductance, reversal = (
        float(evaluate(e, values)) for e in (model.conductance, model.reversal)
    )
    drive = float(np.nanmax(np.abs(protocol.command() - reversal)))
    return max(SMALLEST_CURRENT * abs(conductance) * drive, 1e-9)


def validate(
    model: ChannelModel,
    protocols: Sequence[Protocol],
    simulate: Simulate,
    n_candidates: int,
    seed: int,
) -> list[Comparison]:
    """Compares with NEURON the model's own values, where it has them, and random candidates.

    Raises:
        NeuronUnavailable: no NEURON or no compiler.
    """
    oracle = NeuronOracle(model)
    candidates = random_candidates(model, n_candidates, seed)
    if all(p.value is not None for p in model.parameters):
        candidates = np.column_stack([model.values(), candidates])
    return compare(oracle, protocols, simulate, candidates)


def random_candidates(model: ChannelModel, n_candidates: int, seed: int) -> Array:
    """(n_parameters, n_candidates) drawn over the whole ranges, on each parameter's own scale."""
    draw = np.random.default_rng(seed).random((len(model.parameters), n_candidates))
    rows = []
    for p, u in zip(model.parameters, draw, strict=True):
        if p.fixed:
            rows.append(np.full(n_candidates, p.value))
        elif p.scale == "log":
            rows.append(p.lower * (p.upper / p.lower) ** u)
        else:
            rows.append(p.lower + (p.upper - p.lower) * u)
    return np.array(rows)


# --- the FitzHugh-Nagumo cable

_FITZHUGH_NAGUMO = """\
TITLE FitzHugh-Nagumo membrane, dimensionless: 1 mV, 1 ms and 1 um stand for the units of v, t and x
NEURON {
    SUFFIX fitzhugh_nagumo
    NONSPECIFIC_CURRENT i
    RANGE a, gamma, epsilon, drive
    THREADSAFE
}
UNITS { (mV) = (millivolt) (mA) = (milliamp) }
PARAMETER { a = 0.01  gamma = 2  epsilon = 0.01  drive = 0 }
ASSIGNED { v (mV) i (mA/cm2) }
STATE { w }
INITIAL { w = 0 }
BREAKPOINT {
    SOLVE recovery METHOD cnexp
    i = -0.001*(v*(1 - v)*(v - a) - w + drive)
}
DERIVATIVE recovery { w' = epsilon*(v - gamma*w) }
"""


def fitzhugh_nagumo_cable(
    v: npt.ArrayLike,
    w: npt.ArrayLike,
    times: npt.ArrayLike,
    length: float,
    parameters: tuple[float, float, float, float],
    drive: npt.ArrayLike = 0.0,
    held_left: float | None = None,
    tolerance: float = 1e-9,
) -> tuple[Array, Array]:
    """The FitzHugh-Nagumo equation as NEURON solves it: a section of equal segments, by CVODE.

    A membrane of 1 uF/cm2 on a section 1 um thick diffuses with D = 2.5e6 ohm cm / Ra (in um2/ms).

    Arguments:
        v, w: (n_segments,) at t = 0, at the middles of the segments.
        times: (n_times,) increasing, from 0.
        length: of the cable, whose ends are sealed.
        parameters: a, gamma, epsilon, diffusion.
        drive: (n_segments,) constant stimulus.
        held_left: v of an ideal clamp at the left end, if any.

    Returns: v and w, (n_times, n_segments).

    Raises:
        NeuronUnavailable: no NEURON or no compiler.
    """
    h = neuron_hoc()
    mechanism = compile_mechanism(_FITZHUGH_NAGUMO)
    v, w = np.asarray(v, dtype=float), np.asarray(w, dtype=float)
    moments = np.asarray(times, dtype=float)
    n = len(v)
    section, solver = h.Section(name="fitzhugh_nagumo"), h.CVode()
    section.L, section.nseg, section.diam, section.cm = length, n, 1.0, 1.0
    section.Ra = 2.5e6 / parameters[3]
    section.insert(mechanism)
    segments = list(section)
    for segment, push in zip(segments, np.broadcast_to(drive, n).tolist(), strict=True):
        membrane = getattr(segment, mechanism)
        membrane.a, membrane.gamma, membrane.epsilon = parameters[:3]
        membrane.drive = push
    if held_left is not None:
        clamp = h.SEClamp(section(0))
        clamp.rs, clamp.dur1, clamp.amp1 = 1e-6, 1e9, held_left
    solver.active(True)
    solver.atol(tolerance)
    solver.rtol(0)
    out = np.empty((2, len(moments), n))
    try:
        h.finitialize(0)
        for segment, potential, recovery in zip(segments, v.tolist(), w.tolist(), strict=True):
            segment.v = potential
            getattr(segment, mechanism).w = recovery
        solver.re_init()
        for k, moment in enumerate(moments.tolist()):
            if moment > h.t:
                solver.solve(moment)
            out[0, k] = [segment.v for segment in segments]
            out[1, k] = [getattr(segment, mechanism).w for segment in segments]
    finally:
        solver.active(False)
        h.delete_section(sec=section)
    return out[0], out[1]
