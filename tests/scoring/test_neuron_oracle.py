"""The oracle itself: NEURON against SciPy, with rates written out here once more.

Slow parts are few: each mechanism compiles once (3 s) and is kept in the user's cache.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from channelfit.model.channel import ChannelModel
from channelfit.model.evaluation import evaluate
from channelfit.model.model_file import build_model, load_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.waves import Constant, Ramp, Samples, Segment, Sines
from channelfit.reading.errors import InputError
from channelfit.scoring.neuron import mechanisms
from channelfit.scoring.neuron.comparison import compare, random_candidates
from channelfit.scoring.neuron.mechanisms import NeuronUnavailable, compile_mechanism
from channelfit.scoring.neuron.nmodl import nmodl_names, nmodl_text
from channelfit.scoring.neuron.oracle import IntegrationFailed, NeuronOracle
from channelfit.scoring.scorer import make_scorer
from support import term_models
from support.places import MECHANISMS, ROOT
from support.truths import slow_but

pytestmark = pytest.mark.integration


MOD = MECHANISMS
#: Measured: 1e-10 over 200 random candidates of each model.
CLOSE = 2e-9
Rates = Callable[[np.ndarray, float], tuple[list[float], list[float]]]


def model(name: str) -> ChannelModel:
    return load_model(ROOT / "models" / f"{name}.yaml")


# --- the truth: chains of states, by SciPy


def exponential_rates(p: np.ndarray, v: float) -> tuple[list[float], list[float]]:
    """Models A, B and C: a, z of every step forward and back, then gmax."""
    rows = p[:-1].reshape(-1, 4)
    forward = [a * np.exp(z * v) for a, z, _, _ in rows]
    return forward, [a * np.exp(-z * v) for _, _, a, z in rows]


def potassium_rates(p: np.ndarray, v: float) -> tuple[list[float], list[float]]:
    """Hodgkin and Huxley's n, as five states."""
    a1, a2, a3, b1, b2, _ = p
    x = (a2 - v - 65) / a3
    alpha = a1 * a3 * (1.0 if x == 0 else x / np.expm1(x))
    beta = b1 * np.exp(-(v + 65) / b2)
    return [k * alpha for k in (4, 3, 2, 1)], [k * beta for k in (1, 2, 3, 4)]


RATES: dict[str, Rates] = {
    "model_a": exponential_rates,
    "model_b": exponential_rates,
    "model_c": exponential_rates,
    "k_hh": potassium_rates,
    "k_hh_gate": potassium_rates,
}


def ordinary(channel: ChannelModel, rates: Rates, n: int, seed: int) -> np.ndarray:
    """(n_parameters, n) over the full ranges, of rates that SciPy's exponential can take."""
    drawn = random_candidates(channel, 300, seed)
    fastest = [np.max([rates(p, v) for v in (-100.0, -60.0, 60.0)]) for p in drawn.T]
    return drawn[:, np.array(fastest) < 1e4][:, :n]


def tridiagonal(forward: list[float], backward: list[float]) -> np.ndarray:
    a = np.zeros((len(forward) + 1,) * 2)
    for k, (f, b) in enumerate(zip(forward, backward, strict=True)):
        a[[k, k + 1], k] += [-f, f]
        a[[k, k + 1], k + 1] += [b, -b]
    return a


def at_rest(forward: list[float], backward: list[float]) -> np.ndarray:
    p = np.cumprod([1.0, *np.divide(forward, backward)])
    return p / p.sum()


def truth(rates: Rates, p: np.ndarray, protocol: Protocol) -> np.ndarray:
    """(n_sweeps, n_times_max) pA with the last state open, gmax last, -100 mV of reversal."""
    out = np.full((protocol.n_sweeps, protocol.n_times_max), np.nan)
    for k in range(protocol.n_sweeps):
        y = at_rest(*rates(p, protocol.holding_mV))
        ranges = protocol.sample_ranges(k)
        for segment, (first, last) in zip(protocol.sweeps[k], ranges, strict=True):
            samples = np.arange(first, last) * protocol.sampling_ms
            times = np.append(np.maximum(samples, segment.start_ms), segment.end_ms)
            path = occupancies(rates, p, segment, times, y)
            drive = segment.voltage(times) + 100
            out[k, first:last] = (p[-1] * path[:, -1] * drive)[:-1]
            y = path[-1]
    return out


def occupancies(
    rates: Rates, p: np.ndarray, segment: Segment, times: np.ndarray, y: np.ndarray
) -> np.ndarray:
    def generator(t: float, _: object = None) -> np.ndarray:
        return tridiagonal(*rates(p, float(segment.voltage(np.array(t)))))

    if segment.is_constant:
        a, path = generator(segment.start_ms), [y]
        pauses = np.round(np.diff(times, prepend=segment.start_ms), 9)
        moves = {pause: expm(a * pause) for pause in set(pauses)}
        for pause in pauses:
            path.append(moves[pause] @ path[-1])
        return np.array(path[1:])
    solution = solve_ivp(
        lambda t, x: generator(t) @ x,
        (segment.start_ms, segment.end_ms),
        y,
        "DOP853",
        t_eval=times,
        rtol=1e-11,
        atol=1e-14,
    )
    return solution.y.T


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference over the largest current; NaN must stand in the same places."""
    assert np.array_equal(np.isnan(a), np.isnan(b))
    return float(np.nanmax(np.abs(a - b)) / np.nanmax(np.abs(b)))


def steps(*rows: tuple[float, float], sampling_ms: float = 0.5) -> Protocol:
    """Sweeps of (mV, ms) after 1.13 ms at -100 mV, ending at -60 mV: edges lie between samples."""
    sweeps = []
    for v, duration in rows:
        end = 1.13 + duration
        sweeps.append(
            (
                Segment(0.0, 1.13, Constant(-100.0)),
                Segment(1.13, end, Constant(v)),
                Segment(end, end + 7.5, Constant(-60.0)),
            )
        )
    return Protocol("steps", -100.0, sampling_ms, tuple(sweeps))


STEPS = steps((-40.0, 20.0), (0.0, 12.71), (60.0, 15.0))
RAMP = Segment(5.0, 25.0, Ramp(-100.0, 40.0))
WAVES = Protocol(
    "waves",
    -100.0,
    0.5,
    (
        (
            Segment(0.0, 5.0, Constant(-100.0)),
            RAMP,
            Segment(25.0, 32.03, Ramp(40.0, -90.0)),
            Segment(32.03, 55.0, Sines(-30.0, (40.0, 20.0), (0.3, 1.1), (0.0, 0.4), 55.0)),
        ),
    ),
)

# --- NEURON against SciPy


@pytest.mark.parametrize("name", RATES)
def test_steps_agree_over_the_full_ranges(neuron: Any, name: str) -> None:
    channel = model(name)

    def exact(parameters: np.ndarray) -> list[np.ndarray]:
        return [np.stack([truth(RATES[name], p, STEPS) for p in parameters.T], axis=-1)]

    candidates = np.column_stack([channel.values(), ordinary(channel, RATES[name], 9, seed=2)])
    (worst,) = compare(NeuronOracle(channel), [STEPS], exact, candidates)
    assert worst.relative_error < CLOSE


def test_fast_pairs_agree_and_what_neuron_cannot_do_is_told(neuron: Any) -> None:
    """Rates as published sodium schemes have them, unbounded in NEURON; and far beyond."""
    rates = {"C -> D": "top*exp(0.22*v)", "D -> C": "1.6e5*exp(-0.05*v)"}
    rates |= {"D -> O": "40*exp(v/40)", "O -> D": "9*exp(-v/20)"}
    document = {
        "states": ["C", "D", "O"],
        "parameters": {"top": {"range": [0, 1e140], "value": 3.8e8}},
        "rates": rates,
        "current": {"open": ["O"], "conductance": "3 nS", "reversal": "40 mV"},
    }
    channel = build_model(document, None)
    ours = make_scorer(Problem(channel, (Experiment(STEPS),)), "cpu").simulate(np.array([[3.8e8]]))
    (worst,) = compare(NeuronOracle(channel), [STEPS], lambda _: ours, channel.values()[:, None])
    assert worst.relative_error < CLOSE
    channel = model("model_a")
    oracle, own = NeuronOracle(channel), channel.values()
    beyond = np.array([1.0, 1.0, 1.0, 1.0, 5.0])  # 1e43 /ms, which no step is short enough for
    ours = [np.stack([truth(RATES["model_a"], own, STEPS)] * 2, axis=-1)]
    (worst,) = compare(oracle, [STEPS], lambda _: ours, np.column_stack([own, beyond]))
    assert worst.relative_error < CLOSE
    assert worst.gave_up == (1,)
    with pytest.raises(IntegrationFailed, match="NEURON's integrator gave up"):
        compare(oracle, [STEPS], lambda _: ours, beyond)


@pytest.mark.parametrize("name", ["model_b", "k_hh"])
def test_ramps_and_sines_agree(neuron: Any, name: str) -> None:
    channel = model(name)
    traces = NeuronOracle(channel).simulate(WAVES, channel.values())
    assert apart(traces, truth(RATES[name], channel.values(), WAVES)) < CLOSE


@pytest.mark.parametrize("name", ["model_a", "model_b", "model_c", "k_hh"])
def test_mechanisms_written_by_hand_agree(neuron: Any, name: str) -> None:
    channel = model(name)
    oracle = NeuronOracle(channel, MOD / f"{name}.mod")
    for p in [channel.values(), *ordinary(channel, RATES[name], 2, seed=5).T]:
        assert apart(oracle.simulate(STEPS, p), truth(RATES[name], p, STEPS)) < CLOSE


@pytest.mark.parametrize("file", [None, MOD / "k_hh.mod"])
def test_rates_are_exact_at_and_about_the_singular_voltage(neuron: Any, file: Path | None) -> None:
    channel = model("k_hh")
    oracle = NeuronOracle(channel, file)
    section = neuron.Section(name="s")
    instance = getattr(neuron, oracle._mechanism)(section(0.5))
    oracle.set_parameters(instance, channel.values())
    for away in (0.0, 1e-9, -1e-5, 1e-3, -0.3, 0.99, -1.01, 20.0):
        instance.rates(-55.0 + away)
        found = instance.k_C3_O if file is None else instance.an
        x = mpmath.mpf(-(-55.0 + away) - 55) / 10  # (a2 - u)/a3
        exact = mpmath.mpf(0.01) * 10 * (x / mpmath.expm1(x) if x else 1)
        assert found == pytest.approx(float(exact), rel=2e-13)


# --- names

TAKEN = (
    *("erf", "force", "printf", "container", "getarg", "gind", "random_normal", "hoc_Exp", "DO"),
    *("threshold", "step", "i", "area", "celsius_", "data", "total", "gbar", "C1", "C10"),
)


def test_names_that_neuron_has_taken_compile_and_mean_the_parameters(neuron: Any) -> None:
    known = {name: {"range": [0, 1], "value": 0.02 * k} for k, name in enumerate(TAKEN, 1)}

    def two_states(total: str, parameters: dict[str, Any]) -> ChannelModel:
        document = {
            "states": ["terminal", "IF"],
            "rates": {"terminal -> IF": total, "IF -> terminal": "0.3"},
            "current": {"open": "IF", "conductance": "2 nS", "reversal": "-80 mV"},
            "parameters": parameters,
        }
        return build_model(document, None)

    named, plain = two_states(" + ".join(TAKEN), known), two_states("3.8", {})
    assert len(set(nmodl_names(named).parameters.values())) == len(TAKEN)
    currents = [NeuronOracle(m).simulate(STEPS, m.values()) for m in (named, plain)]
    assert apart(*currents) < CLOSE


# --- the protocol


def test_sweeps_that_carry_over_are_one_long_sweep(neuron: Any) -> None:
    channel = model("model_b")
    oracle, p = NeuronOracle(channel), channel.values()
    p[[0, 2, 4, 6]] *= 0.01  # slow enough to remember one sweep in the next
    one, rest = STEPS.sweeps[1], 0.5
    fine = replace(STEPS, sampling_ms=0.01)  # samples of both ways fall on the same times
    both = oracle.simulate(replace(fine, sweeps=(one, one), carry_over=True, rest_ms=rest), p)
    later = one[-1].end_ms + rest
    moved = [Segment(s.start_ms + later, s.end_ms + later, s.wave) for s in one]
    waiting = Segment(one[-1].end_ms, later, Constant(-100.0))
    whole = oracle.simulate(replace(fine, sweeps=((*one, waiting, *moved),)), p)[0]
    n, begin = both.shape[1], round(later / 0.01)
    assert apart(both, np.stack([whole[:n], whole[begin : begin + n]])) < CLOSE
    assert apart(both[:1], both[1:]) > 1e-3


def test_a_bent_sampled_command_follows_every_corner(neuron: Any) -> None:
    """And a sample at a jump has the new voltage and the old occupancy."""
    channel, a = model("model_b"), model("model_a")
    wave = Samples(np.array([0.0, 3.0, 7.7, 12.0]), np.array([-100.0, 30.0, -20.0, 60.0]))
    protocol = replace(WAVES, sweeps=((Segment(0.0, 14.0, wave),),))
    pieces = tuple(
        Segment(a, b, Ramp(*wave.voltage(np.array([a, b]), 0.0, 14.0)))
        for a, b in [(0.0, 3.0), (3.0, 7.7), (7.7, 12.0), (12.0, 14.0)]
    )
    exact = truth(exponential_rates, channel.values(), replace(protocol, sweeps=(pieces,)))
    assert apart(NeuronOracle(channel).simulate(protocol, channel.values()), exact) < CLOSE
    jump = (Segment(0.0, 5.0, Constant(-40.0)), Segment(5.0, 10.0, Constant(20.0)))
    protocol = replace(STEPS, sweeps=(jump,), holding_mV=-40.0)
    trace = NeuronOracle(a).simulate(protocol, a.values())[0]
    assert trace[10] / trace[9] == pytest.approx((20 + 100) / (-40 + 100), rel=1e-9)
    many = Sines(0.0, (1.0,) * 17, (1.0,) * 17, (0.0,) * 17, 0.0)
    with pytest.raises(InputError, match="17 sines"):
        NeuronOracle(a).simulate(replace(WAVES, sweeps=((Segment(0.0, 2.0, many),),)), a.values())


def test_a_mechanism_that_does_not_compile_or_fit_is_told(neuron: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="could not compile"):
        compile_mechanism("NEURON { POINT_PROCESS Bad }\nBREAKPOINT { x = = 1 }\n", tmp_path)
    with pytest.raises(InputError, match="POINT_PROCESS"):
        compile_mechanism("NEURON { RANGE x }", tmp_path)
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]
    dense = tmp_path / "dense.mod"
    dense.write_text("NEURON { SUFFIX dense }")
    with pytest.raises(InputError, match=r"dense\.mod: .*POINT_PROCESS"):
        NeuronOracle(model("model_a"), dense)
    with pytest.raises(InputError, match=r"model_a\.mod: no RANGE variable a23"):
        NeuronOracle(model("model_b"), MOD / "model_a.mod")


# --- where a sweep starts


@pytest.mark.parametrize("name", ["model_b", "na_markov", "na_hh"])
def test_the_mechanisms_own_initial_block_finds_the_steady_state(neuron: Any, name: str) -> None:
    channel = model(name)
    p = channel.values()
    own = NeuronOracle(channel, initial="mechanism").simulate(STEPS, p)
    assert apart(own, NeuronOracle(channel).simulate(STEPS, p)) < 1e-6


# --- currents of any terms


@pytest.mark.parametrize(
    "name", slow_but(["calcium", "rectified gates", "sum of all"], term_models.DOCUMENTS)
)
def test_currents_agree_with_neuron(neuron: Any, name: str) -> None:
    """Exact at held voltages; where the voltage moves, as exact as steps of order four."""
    model = term_models.model_of(name)
    oracle = NeuronOracle(model)
    for protocol, tolerance in ((term_models.steps(), 5e-9), (term_models.moving(), 1e-5)):
        scorer = make_scorer(Problem(model, (Experiment(protocol),)), "cpu")
        (worst,) = compare(oracle, [protocol], scorer.simulate, term_models.candidates(model, 3))
        assert worst.relative_error < tolerance


@pytest.mark.parametrize("name", ["calcium", "gates and leak"])
def test_densities_carry_neurons_ghk_and_ohms_law(neuron: Any, name: str) -> None:
    mechanism = compile_mechanism(nmodl_text(term_models.model_of(name), "density"))
    section = neuron.Section(name="s")
    section.insert(mechanism)
    inside, before = getattr(section(0.5), mechanism), neuron.celsius
    neuron.finitialize(-20.0)
    is_open = inside.m**3 * inside.h
    if name == "calcium":
        neuron.celsius = 34.0
        wanted = inside.pbar * is_open * neuron.ghk(-20.0, 5e-4, 2.0, 2)
        neuron.celsius = before
    else:
        inside.gbar_current, inside.gbar_leak = 0.02, 0.003
        neuron.finitialize(-20.0)
        wanted = 0.02 * is_open * (-20 + 90) + 0.003 * (-20 - inside.el)
    assert inside.i == pytest.approx(wanted, rel=1e-9)


# --- NMODL in NEURON

FUNCTIONS = {
    "choice": "a if v > -20 and not v >= 30 else (b if v < -50 or a > b else a*b)",
    "limits": "min(a, b, abs(v)/50) + max(a, 0.2, v/40)",
    "powers": "a**2 + sqrt(b) + b**1.7 + 1/(a + 1)**2 + 2**(a**2)",
    "smooth": "1 + tanh(v/30) + log(1 + a) + (v + 20)/(1 - exp(-(v + 20)/9))",
    "quotient": "a/(b + a/(1 + b))/3 + 1/3*b",
}


def test_every_function_means_the_same_in_nmodl(neuron: Any) -> None:
    states = [f"S{k}" for k in range(len(FUNCTIONS) + 1)]
    rates = {f"S{k} -> S{k + 1}": f"1*{name}" for k, name in enumerate(FUNCTIONS)}
    rates |= {f"S{k + 1} -> S{k}": "u" for k in range(len(FUNCTIONS))}
    document = {
        "states": states,
        "definitions": {"u": "0.3 if v > 0 else 0.1", **FUNCTIONS},
        "rates": rates,
        "current": {"open": ["S1"], "conductance": "1 nS", "reversal": "0 mV"},
        "parameters": {n: {"range": [0, 1], "value": x} for n, x in (("a", 0.31), ("b", 0.77))},
    }
    channel = build_model(document, None)
    section = neuron.Section(name="s")
    name = compile_mechanism(nmodl_text(channel, "point_process"))
    instance = getattr(neuron, name)(section(0.5))
    for v in (-80.0, -50.0, -20.0, -19.999, 0.0, 12.5, 30.0, 61.0):
        instance.rates(v)
        known: dict[str, Any] = {"a": 0.31, "b": 0.77, "v": v}
        for name, expression in channel.definitions:
            known[name] = evaluate(expression, known)
        for k, name in enumerate(FUNCTIONS):
            found = getattr(instance, f"k_S{k}_S{k + 1}")
            assert found == pytest.approx(float(known[name]), rel=1e-13), (name, v)


# --- what can be missing


def test_without_neuron_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "neuron", None)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    with pytest.raises(NeuronUnavailable, match=r'pip install "channelfit\[neuron\]"'):
        mechanisms.neuron_hoc()
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    with pytest.raises(NeuronUnavailable, match="installer"):
        mechanisms.neuron_hoc()


def test_ties_and_balanced_rates_mean_the_same_in_nmodl(neuron: Any) -> None:
    """A ring of four states; the last rate and one slope follow from the others."""
    up, down, back = "a1*exp(z*v)", "b1*exp(-z*v)", "b2*exp(-y*v)"
    rates = {"C -> O": up, "O -> C": down, "O -> I": "a2", "I -> O": back}
    rates |= {"C -> J": "a2/2", "J -> C": back, "J -> I": up, "I -> J": "balance"}
    values = {"a1": 0.7, "b1": 0.3, "a2": 0.2, "b2": 0.05, "z": 0.02, "g": 4.0}
    rows: dict[str, Any] = {n: {"range": [x / 3, 2 * x], "value": x} for n, x in values.items()}
    rows |= {"y": {"tie": "z/2 + 0.003"}, "part": {"tie": "1 + y"}}
    current = {"open": ["O"], "conductance": "g*part", "reversal": "-80 mV"}
    document = {"states": ["C", "O", "I", "J"], "rates": rates, "parameters": rows}
    balanced = build_model(document | {"current": current}, None)
    # around the ring: up * a2 * balance * back == down * back * up * (a2/2)
    rates["I -> J"] = "b1*exp(-z*v)/2"
    plain = build_model(document | {"current": current}, None)
    candidates = np.column_stack([plain.values(), random_candidates(plain, 4, seed=3)])
    exact = make_scorer(Problem(plain, (Experiment(STEPS),)), "reference").simulate
    (worst,) = compare(NeuronOracle(balanced), [STEPS], exact, candidates)
    assert worst.relative_error < CLOSE


def test_mechanisms_are_kept_where_the_user_wants_all_that_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nrnivmodl runs once for a text, and again for what cannot be trusted."""
    runs: list[str] = []
    loaded: list[bytes] = []
    monkeypatch.setenv("CHANNELFIT_CACHE", str(tmp_path))
    monkeypatch.setattr(mechanisms, "_compiled", lambda _, name: (runs.append(name), b"it")[1])
    monkeypatch.setattr(mechanisms, "_load", lambda _, library, folder: loaded.append(library))

    def compilations() -> int:
        runs.clear()
        monkeypatch.setattr(mechanisms, "_loaded", set())  # as in a process that has just begun
        name = compile_mechanism("NEURON { SUFFIX nothing }")
        assert loaded.pop() == b"it"
        assert (tmp_path / "neuron" / name).is_file()
        return len(runs)

    assert [compilations(), compilations()] == [1, 0]
    (file,) = (tmp_path / "neuron").iterdir()
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:-1] + b"!"):  # as a full disk leaves it, for one
        file.write_bytes(damaged)
        assert [compilations(), compilations()] == [1, 0]
    if sys.platform != "win32":
        file.chmod(0o666)
        assert [compilations(), compilations()] == [1, 0]
    # folders of earlier versions hold libraries that nobody has checked
    file.unlink()
    (file / "x86_64").mkdir(parents=True)
    (file / "x86_64" / "libnrnmech.so").write_bytes(b"of somebody")
    assert [compilations(), compilations()] == [1, 0]


def test_a_mechanism_is_loaded_from_a_file_that_only_its_user_reaches(tmp_path: Path) -> None:
    """So nobody changes it after it was checked; and it is there only until it is loaded."""
    seen = []

    class Hoc:
        def nrn_load_dll(self, file: str) -> None:
            seen.append((Path(file).read_bytes(), Path(file).parent.stat().st_mode & 0o077))

    mechanisms._load(Hoc(), b"a library", tmp_path)
    assert seen == [(b"a library", 0)]
    assert not list(tmp_path.iterdir())


def test_nrnivmodl_in_a_folder_with_a_space_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "two words" / "nrnivmodl"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    with pytest.raises(NeuronUnavailable, match="path has a space"):
        mechanisms.check_compiler()
