"""Concentrations that a protocol commands: currents, costs and derivatives."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import sympy
from scipy.integrate import solve_ivp
from scipy.linalg import null_space

from channelfit.batch.make_scorers import well_scorers
from channelfit.model.channel import ChannelModel
from channelfit.model.evaluation import evaluate
from channelfit.model.model_file import build_model
from channelfit.problem.clamp import Clamp
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.recording import Recording
from channelfit.reading.documents import parse_yaml
from channelfit.reading.errors import InputError
from channelfit.scoring.kernels.cuda_source import CudaSource
from channelfit.scoring.kernels.cuda_tangents import CudaTangentSource
from channelfit.scoring.neuron.comparison import compare
from channelfit.scoring.neuron.oracle import NeuronOracle
from channelfit.scoring.scorer import make_scorer
from support.cuda_host import compile_with_nvrtc

#: A scheme with a state that traps the drug, beside a gate.
PARAMETERS = {
    "kon": {"range": [0.1, 10], "unit": "1/mM/ms", "value": 2},
    "koff": {"range": [0.01, 1], "unit": "1/ms", "value": 0.3},
    "kt": {"range": [0.01, 1], "value": 0.1},
    "gmax": {"range": [0.1, 10], "unit": "nS", "value": 5},
}
TRAP = {
    "name": "trap",
    "ligands": ["drug"],
    "states": ["C", "O", "B", "T"],
    "rates": {
        "C -> O": "0.5*exp(v/40)",
        "O -> C": "0.3*exp(-v/40)",
        "O -> B": "kon*drug",
        "B -> O": "koff",
        "B -> T": "kt*exp(-v/60)",
        "T -> B": "0.2*kt*exp(v/60)",
    },
    "gates": {"h": {"inf": "1/(1 + exp((v + 20)/10))", "tau": "8"}},
    "current": {"open": ["O"], "conductance": "gmax", "reversal": "-90 mV"},
    "parameters": PARAMETERS,
}
SCHEME = {k: x for k, x in TRAP.items() if k != "gates"}
PUFF = [{"hold": 2.013}, {"step": "1 mM", "for": 3}, {"ramp": ["0.5 mM", 0], "for": 4}]
PUFFS: dict[str, Any] = {
    "jumps": {"segments": PUFF},
    "exchange": {"segments": PUFF, "exchange": 0.2},
    "curve": {"holding": "0.1 mM", "step": {"values": [0, "0.01 mM", "1 mM"]}},
}


def protocol(puff: str, held: bool = False, between: str = "steady state") -> Protocol:
    """A command of the voltage beside one of the concentration."""
    moving: list[dict[str, Any]] = [] if held else [{"ramp": [-40, 0], "for": 4}]
    return Protocol.from_segments(
        [{"hold": 3}, {"step": -10, "for": 8}, *moving, {"hold": 10}],
        holding=-80,
        sampling=0.1,
        ligands={"drug": PUFFS[puff]},
        between_sweeps=between,
    )


def with_data(document: dict[str, Any], command: Protocol) -> tuple[Problem, np.ndarray]:
    """A problem with noisy data, and candidates."""
    model = build_model(document, None)
    (current,) = make_scorer(Problem(model, (Experiment(command),)), "cpu").simulate(
        model.values()[:, None]
    )
    noisy = current[..., 0] + np.random.default_rng(1).standard_normal(current.shape[:2])
    data = Recording.from_arrays(command, noisy)
    candidates = model.values()[:, None] * np.array([1.0, 1.1, 0.9])
    return Problem(model, (Experiment(command, data),)), candidates


def integrated(model: ChannelModel, command: Protocol) -> np.ndarray:
    """Occupancies of O (n_sweeps, n_times) by scipy, with the tightest tolerances it has."""
    index = {s: i for i, s in enumerate(model.states)}
    values = dict(zip(model.parameter_names, model.values(), strict=True))
    (ligand,) = command.ligands

    def generator(v: float, c: float) -> np.ndarray:
        a = np.zeros((len(index),) * 2)
        for t in model.transitions:
            rate = float(evaluate(t.rate, {**values, "v": v, "drug": c}))
            a[index[t.target], index[t.source]] += rate
            a[index[t.source], index[t.source]] -= rate
        return a

    out = np.full((command.n_sweeps, command.n_times_max), np.nan)
    for k, sweep in enumerate(command.sweeps):
        x = null_space(generator(command.holding_mV, ligand.holding_mM[k]))[:, 0]
        x /= x.sum()
        targets, now = ligand.targets[k], ligand.holding_mM[k]
        edges = sorted({0.0, *(s.end_ms for s in (*sweep, *targets))})
        for begin, end in pairwise(edges):
            volts = next(s for s in sweep if s.end_ms > begin)
            target = next(s for s in targets if s.end_ms > begin)
            if ligand.exchange_ms == 0:
                now = float(target.voltage(np.array(begin)))

            def moves(t: float, y: np.ndarray, volts: Any = volts, target: Any = target) -> Any:
                aim, tau = float(target.voltage(np.array(t))), ligand.exchange_ms
                c = y[-1] if tau else aim
                change = (aim - y[-1]) / tau if tau else 0.0
                return np.append(generator(float(volts.voltage(np.array(t))), c) @ y[:-1], change)

            times = command.times_ms
            inside = times[(times >= begin - 1e-9) & (times < end - 1e-9)]
            at = np.unique(np.concatenate([[begin], np.maximum(inside, begin), [end]]))
            found = solve_ivp(
                moves, (begin, end), [*x, now], method="DOP853", rtol=1e-11, atol=1e-13, t_eval=at
            )
            for t in inside:
                out[k, round(t / command.sampling_ms)] = found.y[
                    index["O"], np.abs(at - max(t, begin)).argmin()
                ]
            x, now = found.y[:-1, -1], found.y[-1, -1]
    return out


@pytest.mark.parametrize("puff", PUFFS)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_currents_are_those_of_an_integrator_with_an_exchange_of_its_own(puff, backend):
    model = build_model(SCHEME, None)
    command = protocol(puff)
    (found,) = make_scorer(Problem(model, (Experiment(command),)), backend).simulate(
        model.values()[:, None]
    )
    truth = integrated(model, command) * 5 * (command.command() + 90)
    assert np.nanmax(np.abs(found[..., 0] - truth)) < 2e-7 * np.nanmax(np.abs(truth))


@pytest.mark.slow
@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("puff", PUFFS)
def test_costs_and_derivatives_of_all_paths_are_those_of_the_reference(puff, held):
    for document in (TRAP, SCHEME):
        problem, candidates = with_data(document, protocol(puff, held))
        truth = make_scorer(problem, "reference")
        score, slopes = truth.score(candidates), truth.linearize(candidates[:, :1])
        for path in ("stepping", "closed-form", "moments"):
            try:
                scorer = make_scorer(problem, "cpu", path=path)
            except InputError as error:
                assert "varies" in error.message or "product" in error.message
                continue
            assert scorer.score(candidates).cost == pytest.approx(score.cost, rel=1e-8)
            found = scorer.linearize(candidates[:, :1])
            size = np.abs(slopes.gradient).max()
            assert np.abs(found.gradient - slopes.gradient).max() < 1e-6 * size
            assert found.hessian == pytest.approx(slopes.hessian, abs=1e-6 * slopes.hessian.max())


@pytest.mark.parametrize(
    ("document", "puff", "held"),
    [(SCHEME, "exchange", False)]
    + [
        pytest.param(*case, marks=pytest.mark.slow)
        for case in product((SCHEME, TRAP), PUFFS, (True, False))
    ],
)
def test_a_gpu_computes_what_the_cores_do(device, document, puff, held):
    problem, candidates = with_data(document, protocol(puff, held))
    cpu = make_scorer(problem, "cpu")
    (currents,), slopes = cpu.simulate(candidates), cpu.linearize(candidates)
    size = np.nanmax(np.abs(currents))
    ways = 0
    for dtype, close in (("float64", 1e-7), ("float32", 2e-5)):
        for path in ("stepping", "closed-form", "moments"):
            try:
                gpu = make_scorer(problem, "cuda", dtype, path)
            except InputError as error:
                assert "varies" in error.message or "product" in error.message
                continue
            ways += 1
            assert np.nanmax(np.abs(gpu.simulate(candidates)[0] - currents)) < close * size
            assert gpu.score(candidates).cost == pytest.approx(slopes.cost, rel=close)
            found = gpu.linearize(candidates)
            assert found.cost == pytest.approx(slopes.cost, rel=1e-9)
            largest = np.abs(slopes.gradient).max()
            assert np.abs(found.gradient - slopes.gradient).max() < 1e-8 * largest
            assert np.abs(found.hessian - slopes.hessian).max() < 1e-8 * slopes.hessian.max()
    assert ways >= 2


@pytest.mark.slow
def test_a_batch_on_a_gpu_sees_concentrations(device):
    problem, candidates = with_data(SCHEME, protocol("exchange"))
    ((_, cpu),), ((_, gpu),) = (well_scorers([problem], backend) for backend in ("cpu", "cuda"))
    well = np.zeros(candidates.shape[1], int)
    truth, found = cpu.linearize(candidates, well), gpu.linearize(candidates, well)
    assert found.cost == pytest.approx(truth.cost, rel=1e-7)
    assert found.gradient == pytest.approx(truth.gradient, rel=1e-6, abs=1e-6)
    crossed, of_cpu = gpu.cross_products(candidates), cpu.cross_products(candidates)
    assert crossed.with_data == pytest.approx(of_cpu.with_data, rel=1e-7)


@pytest.mark.slow
def test_nvrtc_accepts_concentrations():
    model = build_model(TRAP, None)
    assert "error" not in compile_with_nvrtc(CudaSource(model).specialized(8, varying=True))
    source = CudaTangentSource(build_model(SCHEME, None))
    for pieces in (False, True):
        assert "error" not in compile_with_nvrtc(source.specialized(8, True, True, pieces))


@pytest.mark.integration
@pytest.mark.parametrize("between", ["steady state", {"carry_over": True, "rest": 5}])
@pytest.mark.parametrize("puff", PUFFS)
def test_currents_are_those_of_neuron(puff, between):
    pytest.importorskip("neuron")
    model, command = build_model(TRAP, None), protocol(puff, between=between)
    scorer = make_scorer(Problem(model, (Experiment(command),)), "cpu")
    (case,) = compare(NeuronOracle(model), [command], scorer.simulate, model.values())
    assert case.relative_error < 5e-8
    assert case.scale_pA > 10


def test_without_a_drug_the_channel_is_that_without_its_states():
    bound = build_model(TRAP, None)
    free = build_model(
        {
            **TRAP,
            "ligands": [],
            "states": ["C", "O"],
            "rates": {k: x for k, x in TRAP["rates"].items() if k in ("C -> O", "O -> C")},
            "parameters": {"gmax": PARAMETERS["gmax"]},
        },
        None,
    )
    steps = [{"hold": 3}, {"step": -10, "for": 8}, {"hold": 10}]
    command = Protocol.from_segments(steps, holding=-80, sampling=0.1)
    zero = Protocol.from_segments(steps, holding=-80, sampling=0.1, ligands={"drug": 0})
    for backend in ("reference", "cpu"):
        (with_states,) = make_scorer(Problem(bound, (Experiment(zero),)), backend).simulate(
            bound.values()[:, None]
        )
        (without,) = make_scorer(Problem(free, (Experiment(command),)), backend).simulate(
            free.values()[:, None]
        )
        assert np.abs(with_states[0] - without[0]).max() < 1e-12 * np.abs(without).max()


def test_a_solution_stays_in_the_rest_between_sweeps_that_carry_over():
    model = build_model(TRAP, None)
    rows = [{"hold": 3}, {"step": 0, "for": 7}]
    drug = {"step": 1, "exchange": 4}
    common = {"holding": -80, "sampling": 0.5}
    parts = Protocol.from_segments(
        rows,
        ligands={"drug": {**drug, "step": {"values": [1, 1]}}},
        between_sweeps={"carry_over": True, "rest": 5},
        **common,
    )
    whole = Protocol.from_segments([*rows, {"hold": 5}, *rows], ligands={"drug": drug}, **common)
    for backend in ("reference", "cpu"):
        two, one = (
            make_scorer(Problem(model, (Experiment(p),)), backend).simulate(
                model.values()[:, None]
            )[0]
            for p in (parts, whole)
        )
        assert np.abs(two[0] - one[0, :20]).max() < 1e-9 * np.abs(one).max()
        assert np.abs(two[1] - one[0, 30:]).max() < 1e-6 * np.abs(one).max()
    assert parts.concentration("drug")[1, 0] == pytest.approx(whole.concentration("drug")[0, 30])


def test_what_does_not_serve_a_concentration_says_so():
    model, command = build_model(TRAP, None), protocol("jumps")
    with pytest.raises(InputError, match="says no concentration of drug"):
        Problem(model, (Experiment(replace(command, ligands=())),))
    with pytest.raises(InputError, match="unknown to the model, which has no ligands"):
        Problem(model.in_solution(drug=1.0), (Experiment(command),))
    clamp = Clamp(series_resistance=sympy.Integer(5))
    with pytest.raises(InputError, match="a clamp that is not ideal"):
        make_scorer(Problem(model, (Experiment(command, clamp=clamp),)), "cpu")
    with pytest.raises(InputError, match="depends on drug; the conductance does not change"):
        build_model({**TRAP, "current": {**TRAP["current"], "conductance": "gmax*drug"}}, None)


def test_a_protocol_is_written_and_read_again():
    for puff in PUFFS:
        command = protocol(puff)
        text = command.to_yaml()
        assert "drug" in text
        again = Protocol.from_segments(**parse_yaml(text))
        assert again == command
