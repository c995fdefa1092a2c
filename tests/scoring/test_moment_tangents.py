"""Linearizations from Chebyshev moments, against the reference, exact derivatives of matrix
exponentials, and propagators; on a CPU, and on a GPU that is played by the host or real.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.statuses import NEGATIVE_RATE, NOT_FINITE, OK
from channelfit.scoring import cpu_moments
from channelfit.scoring.cpu import CpuScorer
from channelfit.scoring.cpu_moment_tangents import MomentTangents, serves
from channelfit.scoring.cpu_tangents import Linearizer
from channelfit.scoring.cuda import CudaScorer
from channelfit.scoring.cuda_algebra import Targets
from channelfit.scoring.cuda_moment_tangents import MomentTangents as CudaMomentTangents
from channelfit.scoring.cuda_moment_tangents import serves as serves_on_a_gpu
from channelfit.scoring.cuda_variants import Variant
from channelfit.scoring.kernels.cuda_moment_tangents import CudaMomentTangentSource
from channelfit.scoring.kernels.cuda_pieces import UNRESOLVED
from channelfit.scoring.kernels.tangent_source import TangentSource
from channelfit.scoring.machine import gpu
from channelfit.scoring.scorer import Linearization, make_scorer
from support.cuda_host import compile_with_nvrtc
from support.differences import errors, stairs
from support.schemes import (
    PROTOCOLS,
    candidates,
    from_yaml,
    held,
    model_named,
    random_scheme,
    recording_of,
)
from support.truths import slow_but

#: Families that share a beginning, long and short runs, runs that are scored and lead to others.
LONG = from_yaml(
    segments=[
        {"hold": "3 ms"},
        {"step": {"values": [-110, -50, 30]}, "for": "61.7 ms"},
        {"step": -70, "for": 20},
    ]
)


def problem_of(model: ChannelModel, *protocols) -> Problem:
    pairs = enumerate(protocols or (LONG, PROTOCOLS["steps"]))
    rows = ((p, recording_of(p, k, "masked" if k else "plain"), 1.0 + 0.7 * k) for k, p in pairs)
    return Problem(model, tuple(Experiment(*row) for row in rows))


def line(n: int, fastest: float = 1.0, **changed: str) -> ChannelModel:
    """A line of n states of which every rate has two parameters, the last two states open."""
    rates, parameters = {}, {"g": {"range": [0.1, 10], "value": 2}}
    for i in range(1, n):
        for source, target, sign in ((i, i + 1, ""), (i + 1, i, "-")):
            a, z = f"a{source}_{target}", f"z{source}_{target}"
            rates[f"S{source} -> S{target}"] = f"{a}*exp({sign}{z}*v)"
            parameters[a] = {"range": [fastest * 1e-2, fastest], "value": fastest / 2}
            parameters[z] = {"range": [0.001, 0.03], "value": 0.02}
    document = {
        "name": f"line_{n}",
        "states": [f"S{i}" for i in range(1, n + 1)],
        "rates": rates | changed,
        "current": {
            "open": {f"S{n}": 1.0, f"S{n - 1}": 0.3},
            "conductance": "g",
            "reversal": "-90 mV",
        },
        "parameters": parameters,
    }
    return build_model(document, None)


def by_moments(problem: Problem) -> MomentTangents:
    return MomentTangents(problem, TangentSource(problem.model))


def by_propagators(problem: Problem) -> Linearizer:
    return CpuScorer(problem, path="stepping")._tangents


def linearized(problem: Problem, normals: tuple[np.ndarray, np.ndarray]) -> Linearization:
    """What `Linearizer.linearize` makes of statuses and products."""
    status, products = normals
    free = [k for k, p in enumerate(problem.model.parameters) if not p.fixed]
    out = Linearization.empty(len(problem.model.parameters), len(status))
    out.status[:] = status
    products = products / problem.scored.total_weight
    out.cost[:] = products[:, 0, 0]
    out.gradient[free] = 2 * products[:, 0, 1:].T
    out.hessian[np.ix_(free, free)] = 2 * products[:, 1:, 1:].transpose(1, 2, 0)
    return out


def compared(problem: Problem, parameters: np.ndarray) -> tuple[float, float]:
    """The largest error of candidates beside propagators, and the share that is in doubt."""
    status, products, doubted = by_moments(problem).normals(np.ascontiguousarray(parameters.T))
    truth = by_propagators(problem).normals(parameters)
    assert np.array_equal(status, truth[0])
    sure = (status == OK) & ~doubted
    if not sure.any():
        return 0.0, 1.0
    pair = [linearized(problem, (s[sure], n[sure])) for s, n in ((status, products), truth)]
    return max(errors(*pair, parameters[:, sure])), float(doubted.mean())


@pytest.mark.parametrize("n", slow_but([6], [6, 9]))
def test_cost_and_derivatives_are_those_of_the_reference(n):
    problem = problem_of(line(n))
    parameters = candidates(problem.model, 3, seed=6)
    assert serves(problem)
    test = CpuScorer(problem).linearize(parameters)
    truth = make_scorer(problem, "reference").linearize(parameters)
    assert max(errors(test, truth, parameters)) < 1e-9
    assert not by_moments(problem).normals(np.ascontiguousarray(parameters.T))[2].any()


@pytest.mark.parametrize("name", ["herg_markov", "na_markov"])
def test_shipped_schemes_over_their_full_ranges(name):
    """Those too fast for any table are left to propagators."""
    problem = held(name)
    error, doubted = compared(problem, candidates(problem.model, 100, seed=3))
    assert error < 1e-9
    assert doubted < 0.9


def test_many_states():
    """The reference itself errs by 2e-9 here."""
    problem = problem_of(line(16))
    error, doubted = compared(problem, candidates(problem.model, 5, seed=6))
    assert error < 1e-9
    assert doubted < 0.5


@pytest.mark.parametrize("samples", [1, 2, 59, 700])
def test_runs_of_any_length(samples):
    """Also of one sample, and of more than are kept whole."""
    problem = problem_of(line(7), stairs([samples, samples + 3]))
    error, doubted = compared(problem, candidates(problem.model, 5, seed=samples))
    assert error < 1e-9
    assert doubted < 1


@settings(max_examples=15)
@given(st.lists(st.floats(-4, 2), min_size=8, max_size=8), st.floats(-4, 0))
def test_any_rates_by_moments_and_by_propagators(decades, slope):
    """Of a line of five states, over six decades."""
    values = [2.0, *(x for decade in decades for x in (10**decade, 0.03 * 10**slope))]
    error, _ = compared(ANY_RATES, np.array(values)[:, None])
    assert error < 1e-9


@pytest.mark.parametrize("seed", slow_but([1], range(12)))
def test_any_scheme_by_moments_and_by_propagators(seed):
    """Rings with chords, some of them one way, where occupancies may oscillate."""
    problem = problem_of(random_scheme(3 + seed % 7, seed))
    error, doubted = compared(problem, np.geomspace(1e-3, 0.1, 7)[None])
    assert error < 1e-9
    assert doubted < 1


ANY_RATES = problem_of(line(5))
NASTY = {
    "a state that keeps all": line(6, **{"S6 -> S5": "1e-12*a6_5*exp(-z6_5*v)"}),
    "never open": line(6, **{"S3 -> S4": "1e-60*a3_4*exp(z3_4*v)"}),
    "a cycle": line(6, **{"S6 -> S1": "0.3*a1_2"}),
    "far too fast": line(6, 1e9),
    "far too slow": line(6, 1e-9),
}


@pytest.mark.parametrize("name", NASTY)
def test_nasty_schemes(name):
    problem = problem_of(NASTY[name])
    parameters = candidates(problem.model, 6, seed=2)
    error, doubted = compared(problem, parameters)
    assert error < 1e-9
    assert (doubted == 1) == (name in ("far too fast", "never open"))
    found = CpuScorer(problem).linearize(parameters)  # those in doubt go by propagators
    truth = linearized(problem, by_propagators(problem).normals(parameters))
    assert max(errors(found, truth, parameters)) < 1e-9


def test_no_result_depends_on_its_company():
    """Fast, slow and impossible candidates in one call and alone, to the bit."""
    problem = problem_of(line(6))
    parameters = candidates(problem.model, 7, seed=5)
    parameters[1, 1:3] *= 1e5, -1.0
    parameters[2, 3] = np.nan
    scorer = CpuScorer(problem)
    together = scorer.linearize(parameters)
    assert {NOT_FINITE, NEGATIVE_RATE, OK} == set(together.status.tolist())
    for k in range(7):
        fresh = CpuScorer(problem).linearize(parameters[:, k : k + 1])
        for one, all_ in zip(vars(fresh).values(), vars(together).values(), strict=True):
            assert np.array_equal(one[..., 0], all_[..., k])


def test_fixed_parameters_have_no_column():
    model = line(6)
    fixed = {"a1_2", "z1_2", "a4_5", "g"}
    changed = tuple(
        replace(p, fixed=True, value=p.upper) if p.name in fixed else p for p in model.parameters
    )
    problem = problem_of(replace(model, parameters=changed))
    error, doubted = compared(problem, candidates(problem.model, 3, seed=1))
    assert error < 1e-9
    assert doubted == 0


def test_what_does_not_fit_in_memory_goes_by_propagators(monkeypatch):
    monkeypatch.setattr(cpu_moments, "_MOST_NUMBERS", -1)
    problem = problem_of(line(6))
    parameters = candidates(problem.model, 2, seed=1)
    expected = Linearization.empty(*parameters.shape)
    by_propagators(problem).linearize(parameters, 0, 2, *vars(expected).values())
    assert np.array_equal(CpuScorer(problem).linearize(parameters).hessian, expected.hessian)


def test_what_moments_do_not_serve():
    """Few states, ramps, products of gates, and currents that are not ohmic."""
    ramp = PROTOCOLS["ramp"]
    assert not serves(problem_of(model_named("model_c")))
    assert not serves(problem_of(line(6), ramp))
    assert not serves(problem_of(model_named("na_hh")))
    assert not serves(problem_of(model_named("k_hh_gate")))


# --- on a GPU ------------------------------------------------------------------------------------


def variant_of(problem: Problem, *more, always: bool = True) -> Variant:
    return Variant(problem, {}, *more, moments=serves_on_a_gpu(problem, always))


def on_host(arrays) -> Linearization:
    return Linearization(*(a.get() for a in arrays))


def compared_on_a_gpu(problem: Problem, parameters: np.ndarray) -> tuple[float, float]:
    """What `compared` returns."""
    there = gpu.cupy().asarray(parameters)
    found = on_host(variant_of(problem).tangents.linearize(there))
    truth = linearized(problem, by_propagators(problem).normals(parameters))
    resolved = found.status != UNRESOLVED
    assert np.array_equal(found.status[resolved], truth.status[resolved])
    pair = [Linearization(*(a[..., resolved] for a in vars(x).values())) for x in (found, truth)]
    error = max(errors(*pair, parameters[:, resolved])) if resolved.any() else 0.0
    return error, float(1 - resolved.mean())


#: One sweep; the start is the steady state at -80 mV.
STEPS = ((-30.0, 20.0), (-90.0, 7.3), (-30.0, 100.0), (20.0, 3.0))


def exact(problem: Problem, n: int, theta: np.ndarray) -> Linearization:
    """Linearization of a `line` under STEPS by complex steps through matrix exponentials."""
    (experiment,) = problem.experiments
    times = experiment.protocol.times_ms

    def currents(p: np.ndarray) -> np.ndarray:
        def generator(v: float) -> np.ndarray:
            a = np.zeros((n, n), complex)
            for i in range(n - 1):
                up, up_v, down, down_v = p[1 + 4 * i : 5 + 4 * i]
                a[i + 1, i], a[i, i + 1] = up * np.exp(up_v * v), down * np.exp(-down_v * v)
            return a - np.diag(a.sum(axis=0))

        start = generator(-80.0)
        start[0] = 1.0
        x, out, begin = np.linalg.solve(start, np.eye(n)[0]), [], 0.0
        for v, length in STEPS:
            a = generator(v)
            for t in times[(times > begin - 1e-9) & (times < begin + length - 1e-9)]:
                now = expm(a * (t - begin)) @ x
                out.append(p[0] * (v + 90.0) * (now[-1] + 0.3 * now[-2]))
            x, begin = expm(a * length) @ x, begin + length
        return np.array(out)

    size = 1e-30
    columns = [currents(theta + size * 1j * np.eye(len(theta))[k]) for k in range(len(theta))]
    weight = experiment.weight * experiment.recording.weight[0]
    residuals = columns[0].real - np.nan_to_num(experiment.recording.current_pA[0])
    slopes = np.imag(columns) / size
    total = weight.sum()
    return Linearization(
        np.array([weight @ residuals**2 / total]),
        np.zeros(1, np.int8),
        (2 * slopes @ (weight * residuals) / total)[:, None],
        (2 * (slopes * weight) @ slopes.T / total)[..., None],
    )


@pytest.mark.parametrize("n", slow_but([6], [6, 11, 16]))
def test_derivatives_on_a_gpu_are_exact(n, device):
    """Of few states, of many that go by flows along edges, of several jobs and of one."""
    segments = [{"step": v, "for": length} for v, length in STEPS]
    protocol = from_yaml(holding="-80 mV", sampling="0.5 ms", segments=segments)
    experiment = Experiment(protocol, recording_of(protocol, 3, "masked"), 1.3)
    problem = Problem(line(n), (experiment,))
    parameters = candidates(problem.model, 2, seed=6)
    scorer = CudaScorer(problem)
    found = scorer.linearize(parameters)
    assert isinstance(scorer._variants.first.tangents, CudaMomentTangents)
    for k in range(2):
        one = Linearization(*(a[..., k : k + 1] for a in vars(found).values()))
        assert (
            max(errors(one, exact(problem, n, parameters[:, k]), parameters[:, k : k + 1])) < 1e-10
        )


def test_runs_of_any_length_on_a_gpu(device):
    """One of the candidates never opens, so that rounding spoils its derivatives."""
    problem = problem_of(line(6), stairs([1, 2, 59, 60, 61, 700]))
    parameters = candidates(problem.model, 3, seed=1)
    parameters[9, 2] = 1e-60
    error, doubted = compared_on_a_gpu(problem, parameters)
    assert error < 1e-9
    assert doubted == pytest.approx(1 / 3)


def test_any_rates_on_a_gpu(device):
    """Over seven decades: also where a state that is hardly occupied decides small derivatives."""
    problem = problem_of(line(3, 100.0), stairs([70, 3]))
    random = np.random.default_rng(1)
    values = np.full((9, 60), 2.0)
    values[1::2] = 10.0 ** random.uniform(-5, 2, (4, 60))
    values[2::2] = 0.03 * 10.0 ** random.uniform(-4, 0, (4, 60))
    error, doubted = compared_on_a_gpu(problem, values)
    assert error < 3e-10
    assert doubted < 0.2


@pytest.mark.parametrize("name", slow_but([], NASTY))
def test_nasty_schemes_on_a_gpu(name, device):
    problem = problem_of(NASTY[name])
    parameters = candidates(problem.model, 3, seed=2)
    error, doubted = compared_on_a_gpu(problem, parameters)
    assert error < 1e-9
    assert (doubted == 1) == (name in ("far too fast", "never open"))
    found = CudaScorer(problem, path="moments").linearize(parameters)  # those in doubt are stepped
    truth = linearized(problem, by_propagators(problem).normals(parameters))
    assert max(errors(found, truth, parameters)) < 1e-8


@pytest.mark.parametrize("name", slow_but([], ["herg_markov", "na_markov", "leak"]))
def test_other_schemes_on_a_gpu(name, device):
    """Over their full ranges: of several transitions a rate, and beside a leak."""
    problem = held(name)
    error, doubted = compared_on_a_gpu(problem, candidates(problem.model, 20, seed=3))
    assert error < 1e-9
    assert doubted < 0.9


def test_no_result_on_a_gpu_depends_on_its_company(device):
    """Fast, slow and impossible candidates in one call and alone, to the bit; in jobs nearly. The
    fast ones are left to propagators.
    """
    problem = problem_of(line(3), stairs([70, 3]))
    parameters = candidates(problem.model, 7, seed=5)
    parameters[1, 1:3] *= 1e5, -1.0
    parameters[2, 3] = np.nan
    asarray, tangents = gpu.cupy().asarray, variant_of(problem, None, 1).tangents
    together = on_host(tangents.linearize(asarray(parameters)))
    expected = OK, UNRESOLVED, NEGATIVE_RATE, NOT_FINITE, OK, OK, OK
    assert tuple(together.status) == expected
    for k in range(7):
        alone = on_host(tangents.linearize(asarray(np.ascontiguousarray(parameters[:, k : k + 1]))))
        for one, all_ in zip(vars(alone).values(), vars(together).values(), strict=True):
            assert np.array_equal(one[..., 0], all_[..., k])
    in_jobs = on_host(variant_of(problem, None, 5).tangents.linearize(asarray(parameters)))
    good = together.status == OK
    pair = [Linearization(*(a[..., good] for a in vars(x).values())) for x in (in_jobs, together)]
    assert max(errors(*pair, parameters[:, good])) < 1e-12
    whole = CudaScorer(problem, path="moments").linearize(parameters)
    truth = linearized(problem, by_propagators(problem).normals(parameters))
    assert max(errors(whole, truth, parameters)) < 1e-9


def test_wells_on_a_gpu_have_their_own_recordings(device):
    problem = problem_of(line(3), stairs([70, 3]))

    def targets_of(rows) -> Targets:
        data, constant = problem.scored.data_pA, problem.scored.constant
        targets, constants = rows.targets([(data, constant), (1.1 * data, 2.0)])
        return Targets(targets, constants, np.array([3.0, 5.0]))

    variant = variant_of(problem, targets_of, 1)
    there = gpu.cupy().asarray(candidates(problem.model, 3, seed=5))
    well = gpu.cupy().asarray(np.array([1, 0, 1], np.int32))
    ways = variant.tangents, variant.for_all().tangents
    pair = [on_host(tangents.linearize(there, well)) for tangents in ways]
    assert max(errors(*pair, there.get())) < 1e-11


def test_which_problems_a_gpu_linearizes_by_moments(device):
    problem = problem_of(line(6))
    assert serves_on_a_gpu(problem)
    stepped = CudaScorer(problem, path="stepping")._variants.first
    assert not isinstance(stepped.tangents, CudaMomentTangents)
    assert stepped.serves_all
    assert not serves_on_a_gpu(problem_of(model_named("model_c")))  # of few states
    assert not serves_on_a_gpu(held("na_markov"))  # many of its candidates are too fast
    assert serves_on_a_gpu(held("na_markov"), always=True)
    assert not serves_on_a_gpu(problem_of(line(6), PROTOCOLS["ramp"]), always=True)
    assert not serves_on_a_gpu(problem_of(model_named("na_hh")), always=True)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90"])
def test_the_text_compiles_for_a_device(architecture):
    compile_with_nvrtc(CudaMomentTangentSource(line(12)).specialized(16), architecture)
