"""The genetic algorithm on a device: its kernels, run on the host and on a real GPU, against the
NumPy version, bit for bit, and the loop that does not wait for them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channelfit.model.channel import Parameter
from channelfit.problem.statuses import N_STATUSES
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.arrays import to_host
from channelfit.scoring.scorer import Score
from channelfit.search.choose import make_optimizer
from channelfit.search.genetic import Genetic
from channelfit.search.genetic_cuda import (
    MEDIAN_SAMPLE,
    DeviceGenetic,
    generation_text,
)
from channelfit.search.loop import StopRules, optimize
from channelfit.search.objective import Generation, Objective
from channelfit.search.space import SearchSpace
from support.bowls import SPACE, Bowl
from support.cuda_host import compile_with_nvrtc, host_program
from support.landscapes import NumpyInDisguise
from support.truths import in_turns, slow_but


class OnHost:
    """Stands in for a compiled module: the same text, run by the host shim."""

    def __init__(self, text: str) -> None:
        self.program = host_program(text)

    def kernel(self, name: str):
        def launch(grid, block, args, shared_mem=0):
            assert not any(arg is None for arg in args)  # CuPy would crash
            self.program.launch(name, grid, block, args, shared_mem)

        return launch


def on_host(*arguments, **more) -> DeviceGenetic:
    return DeviceGenetic(*arguments, xp=np, compile_cuda=OnHost, **more)


def space_of(n_free: int, seed: int = 0) -> SearchSpace:
    """Linear, logarithmic and fixed parameters in turns."""
    draw = np.random.default_rng(seed)
    parameters = []
    for k in range(n_free):
        low = draw.uniform(-5, 5)
        if k % 3 == 1:
            parameters.append(Parameter(f"p{k}", "", 10.0**low, 10.0 ** (low + 3), scale="log"))
        else:
            parameters.append(Parameter(f"p{k}", "", low, low + draw.uniform(0, 9)))
        if k % 4 == 2:
            parameters.append(Parameter(f"f{k}", "", 0.0, 1.0, value=0.5 + k, fixed=True))
    return SearchSpace(tuple(parameters))


def costs(population: int, generation: int, kind: str, seed: int = 3) -> np.ndarray:
    """Costs (population,) with ties, and with failures of every sort where `kind` says so."""
    draw = np.random.default_rng((seed, generation, population))
    cost = np.round(draw.normal(size=population), 1) - generation
    if kind == "some fail":
        for bad in (np.nan, np.inf, -np.inf):
            cost[draw.random(population) < 0.2] = bad
    if kind == "all fail" or (kind == "all fail at first" and generation < 2):
        cost[:] = [np.nan, np.inf, -np.inf][generation % 3]
    return cost


def assert_same_run(host: Genetic, device: DeviceGenetic, kind: str, generations: int = 4) -> None:
    space = space_of(host.n_parameters)
    for generation in range(generations):
        expected = host.ask()
        physical = device.breed(space)
        found = device.ask()
        np.testing.assert_array_equal(to_host(found), expected)
        assert_same_physical(space, to_host(physical), expected)
        cost = costs(host.population_size, generation, kind)
        status = np.arange(cost.size).astype(np.int8) % 6 - 1
        host.tell(expected, cost)
        xp = device.xp
        record = device.learn(Score(xp.asarray(cost), xp.asarray(status)))
        assert_right_summary(device.generation_of(record, cost.size), host, cost, status, space)
        assert device.best_cost == host.best_cost
        if host.best is None:
            assert device.best is None
        else:
            np.testing.assert_array_equal(to_host(device.best), host.best)


def assert_same_physical(space: SearchSpace, physical: np.ndarray, unit: np.ndarray) -> None:
    expected = space.to_physical(unit)
    assert physical.shape == expected.shape
    for row, parameter in enumerate(space.parameters):
        if parameter.scale == "log":  # the exponentials of two libraries differ in the last digits
            np.testing.assert_allclose(physical[row], expected[row], rtol=2e-15)
            at_bound = np.isin(expected[row], (parameter.lower, parameter.upper))
            np.testing.assert_array_equal(physical[row][at_bound], expected[row][at_bound])
        else:
            np.testing.assert_array_equal(physical[row], expected[row])
        if not parameter.fixed:
            assert (physical[row] >= parameter.lower).all()
            assert (physical[row] <= parameter.upper).all()


def assert_right_summary(
    found: Generation,
    host: Genetic,
    cost: np.ndarray,
    status: np.ndarray,
    space: SearchSpace,
) -> None:
    finite = np.isfinite(cost)
    assert found.best == host.best_cost
    codes = np.clip(status[~finite].astype(int), 1, N_STATUSES - 1)
    np.testing.assert_array_equal(found.failures, np.bincount(codes, minlength=N_STATUSES))
    n = min(cost.size, MEDIAN_SAMPLE)
    sample = cost[np.arange(n) * cost.size // n]
    sample = sample[np.isfinite(sample)]
    expected = np.median(sample) if sample.size else np.nan
    np.testing.assert_array_equal(found.median, expected)  # NaN equals NaN here
    if host.best is not None:
        physical = space.to_physical(host.best[:, None])[:, 0]
        np.testing.assert_allclose(found.values, physical, rtol=2e-15)


SIZES = [1, 2, 3, 4, 15, 16, 17, 255, 256, 257, 258, 511, 512, 513, 1023, 1025, 3000]
KINDS = ["none fails", "some fail", "all fail", "all fail at first"]


@pytest.mark.parametrize(
    ("population", "kind", "n_parameters"), in_turns(len(SIZES), SIZES, KINDS, [9, 1, 16, 17, 33])
)
def test_a_run_has_the_same_bits_as_on_the_host(population, kind, n_parameters):
    initial = np.asfortranarray(np.random.default_rng(1).random((n_parameters, population // 3)))
    given = (n_parameters, population, 2**63 + population, 0.6, 0.05)
    points = initial if population % 2 else None
    assert_same_run(Genetic(*given, initial=points), on_host(*given, initial=points), kind)


@settings(max_examples=25)
@given(
    population=st.integers(1, 700),
    seed=st.integers(0, 2**64 - 1),
    crossover_rate=st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0, 2.0**-32])),
    mutation_rate=st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0, 1 / 256, 2.0**-40])),
    kind=st.sampled_from(KINDS),
)
def test_any_seed_and_rates(population, seed, crossover_rate, mutation_rate, kind):
    host = Genetic(3, population, seed, crossover_rate, mutation_rate)
    device = on_host(3, population, seed, crossover_rate, mutation_rate)
    assert_same_run(host, device, kind, generations=3)


def test_many_blocks_reduce_to_one_elite():
    """More candidates than one pass of all blocks takes, the lowest cost twice."""
    n = 3 * 264 * 256 + 5
    device = on_host(1, 2, 1)
    candidates = np.arange(n)[None, :] / n
    cost = np.full(n, 7.0)
    cost[[200_000, 200_001, n - 1]] = -3.0
    cost[:1000] = np.nan
    device.tell(candidates, cost)
    assert device.best_cost == -3.0
    assert device.best.tolist() == [200_000 / n]
    device.tell(candidates[:, ::-1], cost)  # an equal cost does not replace the elite
    assert device.best.tolist() == [200_000 / n]


@pytest.mark.parametrize(
    ("architecture", "n_free"),
    slow_but(
        [("sm_90", 9)], [(a, n) for a in ("sm_75", "sm_90", "sm_120") for n in (1, 9, 16, 40)]
    ),
)
def test_the_device_compiler_spills_nothing(n_free, architecture):
    log = compile_with_nvrtc(generation_text(n_free), architecture, ("--ptxas-options=-v",))
    assert log.count("0 bytes spill stores, 0 bytes spill loads") == 2


# The loop that does not wait


class Edged(Bowl):
    """A bowl that ends at a = 9."""

    def rescore(self, parameters) -> Score:
        score, bad = super().rescore(parameters), parameters[0] > 9
        score.cost[bad] = np.inf
        return Score(score.cost, 2 * bad.astype(np.int8))


@pytest.fixture(params=["at once", "late", "by chance"])
def readbacks(request, monkeypatch):
    """When records arrive: at once, only when waited for, or by chance."""
    chance = np.random.default_rng(5)
    answers = {
        "at once": lambda: True,
        "late": lambda: False,
        "by chance": lambda: bool(chance.random() < 0.3),
    }
    arrived = property(lambda _: answers[request.param]())
    monkeypatch.setattr(gpu.Readback, "arrived", arrived)
    monkeypatch.setattr("channelfit.search.optimizer._SECONDS_AHEAD", 10.0)
    return request.param


def same_results(stop: StopRules, population: int = 60, seed: int = 1, make=on_host, xp=np):
    host_told, device_told = [], []
    host = optimize(Genetic(2, population, seed), Objective(SPACE, Edged()), stop, host_told.append)
    device = optimize(
        make(2, population, seed), Objective(SPACE, Edged(xp)), stop, device_told.append
    )
    for name in ("stop_reason", "generations", "evaluations", "cost", "failures", "settings"):
        assert getattr(device, name) == getattr(host, name), name
    assert device.values.tobytes() == host.values.tobytes()
    for column in ("generation", "evaluations", "best_cost", "median_cost", "failed"):
        np.testing.assert_array_equal(device.history[column], host.history[column])
    for a, b in zip(device_told, host_told, strict=True):
        assert (a.generation, a.best_cost, a.evaluations) == (
            b.generation,
            b.best_cost,
            b.evaluations,
        )
        assert a.parameters.tobytes() == b.parameters.tobytes()
    return device


@pytest.mark.parametrize(
    ("readbacks", "stop", "reason"),
    [
        ("late", StopRules(generations=1), "1 generation done"),
        ("by chance", StopRules(generations=12), "12 generations done"),
        ("at once", StopRules(evaluations=250), "300 candidates scored of 250 allowed"),
        ("late", StopRules(evaluations=250), "300 candidates scored of 250 allowed"),
        ("by chance", StopRules(cost=0.05, generations=500), "reached the target 0.05"),
        ("late", StopRules(stagnation=2, tolerance=0.5), "no relative gain above 0.5 in 2"),
    ],
    indirect=["readbacks"],
)
def test_a_search_ends_where_it_ends_on_the_host(readbacks, stop, reason):
    assert reason in same_results(stop).stop_reason


def test_an_interrupt_keeps_what_has_arrived(readbacks):
    result = optimize(
        on_host(2, 60, 1), Objective(SPACE, Edged(interrupt=12)), StopRules(generations=90)
    )
    assert result.stop_reason == "interrupted"
    assert 1 <= result.generations <= 11
    whole = optimize(
        on_host(2, 60, 1), Objective(SPACE, Edged()), StopRules(generations=result.generations)
    )
    assert result.values.tobytes() == whole.values.tobytes()
    assert result.history["best_cost"].tobytes() == whole.history["best_cost"].tobytes()
    if readbacks == "at once":
        assert result.generations == 11
    with pytest.raises(KeyboardInterrupt):
        optimize(on_host(2, 60, 1), Objective(SPACE, Edged(interrupt=1)), StopRules(generations=90))


def test_the_result_has_the_cost_of_the_exact_score():
    class Twice(Edged):
        def rescore(self, parameters):
            score = super().rescore(parameters)
            return Score(score.cost + 100.0, score.status) if parameters.shape[1] == 1 else score

    for optimizer in (Genetic(2, 60, 1), on_host(2, 60, 1)):
        result = optimize(optimizer, Objective(SPACE, Twice()), StopRules(generations=5))
        assert result.cost == 100.0 + (
            (result.parameters["a"] - 2) ** 2 + (result.parameters["k"] - 1) ** 2
        )
        assert result.history["best_cost"][-1] < 100


def test_the_optimizer_of_a_device_is_made_by_its_array_module(monkeypatch):
    monkeypatch.setattr(DeviceGenetic.__init__, "__defaults__", (None, 0.01, None, None, OnHost))
    monkeypatch.setattr(gpu, "device", lambda: SimpleNamespace(memory_free=10**9))
    settings = {"population": 60, "crossover_rate": 0.3}
    optimizer = make_optimizer("genetic", settings, 2, 1, xp=NumpyInDisguise())
    assert isinstance(optimizer, DeviceGenetic)
    assert optimizer.settings == {"population": 60, "crossover_rate": 0.3, "mutation_rate": 0.01}


# On a real device


@pytest.mark.gpu
@pytest.mark.parametrize("population", [*SIZES, 100_003])
@pytest.mark.parametrize("kind", KINDS)
def test_a_real_device_breeds_the_same_bits(population, kind):
    if not gpu.is_available():
        pytest.skip("needs an NVIDIA GPU and CuPy")
    for n_parameters in (1, 9, 17):
        host = Genetic(n_parameters, population, 11, 0.6, 0.05)
        device = DeviceGenetic(n_parameters, population, 11, 0.6, 0.05)
        assert_same_run(host, device, kind)


@pytest.mark.gpu
def test_a_search_on_a_real_device_is_the_one_on_the_host():
    if not gpu.is_available():
        pytest.skip("needs an NVIDIA GPU and CuPy")
    for stop in (StopRules(generations=50), StopRules(cost=0.01), StopRules(stagnation=6)):
        same_results(stop, 250, 3, DeviceGenetic, gpu.cupy())
