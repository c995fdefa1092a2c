"""Functions from YAML files: what they mean, what is refused, and generated code against it."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import scipy.optimize
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from channelfit.front.kinds import load_plan, make_scorer
from channelfit.front.main import main
from channelfit.functions import scorers as function_backends
from channelfit.functions.function import build_function
from channelfit.functions.indexed_expressions import IndexedScope, parse_indexed
from channelfit.functions.scorers import FunctionCpu, FunctionCuda, FunctionReference
from channelfit.functions.source import FunctionSource
from channelfit.model.evaluation import evaluate
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.reading.documents import read_yaml
from channelfit.reading.errors import InputError
from support import cuda_host
from support.places import MODELS
from support.truths import slow_but

MODELS = MODELS / "functions"
ROW = np.arange(1.0, 6.0)


def shipped(name, n=None):
    document = read_yaml(MODELS / f"{name}.yaml")
    if n is not None:
        document["sizes"] = {"n": n}
    return build_function(document, MODELS / f"{name}.yaml")


def drawn(problem, n=21, seed=0):
    lower, upper = (
        np.array([getattr(p, end) for p in problem.model.parameters])[:, None]
        for end in ("lower", "upper")
    )
    return lower + (upper - lower) * np.random.default_rng(seed).random((len(lower), n))


def by_hand(name, x):
    """Textbook formulas over columns (n, n_candidates), in NumPy alone."""
    n = len(x)
    i = np.arange(1, n + 1)[:, None]
    if name == "sphere":
        return (x**2).sum(axis=0)
    if name == "elliptic":
        return (10 ** (6 * (i - 1) / max(n - 1, 1)) * x**2).sum(axis=0)
    if name == "rastrigin":
        return 10 * n + (x**2 - 10 * np.cos(2 * np.pi * x)).sum(axis=0)
    if name == "rosenbrock":
        return np.array([scipy.optimize.rosen(column) for column in x.T])
    return 1 + (x**2).sum(axis=0) / 4000 - np.prod(np.cos(x / np.sqrt(i)), axis=0)


FUNCTIONS = ("sphere", "elliptic", "rastrigin", "rosenbrock", "griewank")


@pytest.fixture(autouse=True)
def played(monkeypatch):
    """A GPU that the host plays."""
    monkeypatch.setitem(sys.modules, "cupy", cuda_host.HostCupy())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_shipped_functions_are_what_they_are_called(name):
    for n in (1, 2, 33, 128):
        problem = shipped(name, n)
        x = drawn(problem)
        if name == "rosenbrock" and n == 1:
            assert (problem.cost(x) == 0).all()  # a sum of no terms
        else:
            np.testing.assert_allclose(problem.cost(x), by_hand(name, x), rtol=1e-12)
        least = np.full((n, 1), 1.0 if name == "rosenbrock" else 0.0)
        assert abs(problem.cost(least)[0]) < 1e-12


def test_the_network_is_a_network():
    problem = shipped("network")
    p = drawn(problem, 3) / 3
    table = np.loadtxt(MODELS / "antenna.csv", delimiter=",", skiprows=1)
    inputs, targets = table[:, :6], table[:, 6:]
    for k in range(3):
        w, u = p[:180, k].reshape(6, 30), p[180:, k].reshape(30, 2)
        outputs = 1 / (1 + np.exp(-inputs @ w)) @ u
        error = np.mean(((outputs - targets) / np.ptp(targets, axis=0)) ** 2)
        np.testing.assert_allclose(problem.cost(p[:, k : k + 1])[0], error, rtol=1e-12)


@pytest.mark.optimized
@pytest.mark.parametrize(
    ("name", "dtype"),
    slow_but(
        [("griewank", "float64"), ("network", "float64"), ("rosenbrock", "float32")],
        [(name, dtype) for name in (*FUNCTIONS, "network") for dtype in ("float64", "float32")],
    ),
)
def test_generated_code_gives_the_reference_cost(name, dtype, monkeypatch):
    problem = shipped(name)
    x = drawn(problem)
    truth = FunctionReference(problem).score(x)
    assert (truth.status == OK).all()
    close = 1e-12 if dtype == "float64" else 3e-6
    cpu, cuda = FunctionCpu(problem, dtype), FunctionCuda(problem, dtype)
    for few in (0, 100):  # a thread a candidate, a warp a candidate
        monkeypatch.setattr(function_backends, "_FEW", few)
        np.testing.assert_allclose(cuda.score(x).cost, truth.cost, rtol=close)
    np.testing.assert_allclose(cuda.rescore(x).cost, truth.cost, rtol=1e-12)
    for n in (0, 1, 8, 21):
        found = cpu.score(x[:, :n]).cost
        np.testing.assert_allclose(found, truth.cost[:n], rtol=close)
        np.testing.assert_allclose(cuda.score(x[:, :n]).cost, truth.cost[:n], rtol=close)


def test_what_is_not_finite_costs_inf_and_says_so():
    document = {"parameters": {"x": {"size": 2, "range": [-1, 1]}}, "cost": "log(x[1]) + 1/x[2]"}
    problem = build_function(document, None)
    x = np.array([[0.5, -0.5, 0.0, 0.5], [0.5, 0.5, 0.5, 0.0]])
    for kind in (FunctionReference, FunctionCpu, FunctionCuda):
        score = kind(problem).score(x)
        np.testing.assert_array_equal(score.status, [OK, *[NOT_FINITE] * 3])
        assert np.isinf(score.cost[1:]).all()
        np.testing.assert_allclose(score.cost[0], np.log(0.5) + 2)


MIXED = {
    "sizes": {"n": 4, "m": 3},
    "parameters": {
        "a": {"range": [0.1, 2], "scale": "log"},
        "x": {"size": "n", "range": [-2, 2]},
        "w": {"size": ["n", "m"], "range": [-1, 1]},
    },
    "definitions": {
        "half": "a/2",
        "h[j, 1, m]": "tanh(sum(w[i, j]*x[n - i + 1], i, 1, n)) + half",
        "g[i, 1, n, j, 1, m]": "min(x[i], h[j])*exprel(w[i, j])",
    },
    "cost": "sum(sum(g[i, j]**2/j if x[i] > 0 else -abs(g[i, j]), j, 1, m)*i**(-0.5), i, 1, n) "
    "+ prod(1 + h[j]**2, j, 1, m) + sum(sum(x[j], j, 1, i)**3, i, 2, n) + sin(pi*a)",
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_everything_the_language_has(dtype):
    problem = build_function(MIXED, None)
    parameters = drawn(problem, 13)
    truth = []
    for p in parameters.T:
        a, x, w = p[0], p[1:5], p[5:].reshape(4, 3)
        h = np.tanh(w.T @ x[::-1]) + a / 2
        g = np.minimum(x[:, None], h) * np.expm1(w) / w
        inner = np.where(x[:, None] > 0, g**2 / np.arange(1, 4), -np.abs(g)).sum(axis=1)
        rest = np.prod(1 + h**2) + (np.cumsum(x)[1:] ** 3).sum() + np.sin(np.pi * a)
        truth.append((inner / np.sqrt(np.arange(1, 5))).sum() + rest)
    np.testing.assert_allclose(problem.cost(parameters), truth, rtol=1e-12)
    for kind in (FunctionCpu, FunctionCuda):
        found = kind(problem, dtype).score(parameters).cost
        close = {"rtol": 1e-11} if dtype == "float64" else {"rtol": 1e-4, "atol": 1e-5}
        np.testing.assert_allclose(found, truth, **close)


@pytest.mark.parametrize(("name", "dtype"), [("elliptic", "float32"), ("network", "float64")])
def test_the_text_compiles_for_a_device(name, dtype):
    cuda_host.compile_with_nvrtc(FunctionSource(shipped(name), dtype, "cuda").text)


SCOPE = IndexedScope({"x": (5,), "a": ()}, {"n": 5})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x", "write x[i]"),
        ("sum(x[i + 1], i, 1, n)", "index 6 lies outside"),
        ("x[i]", "unknown size or index"),
        ("x[1, 2]", "takes 1 index"),
        ("sum(x[i], x, 1, n)", "already has a meaning"),
        ("sum(x[i*i], i, 1, 2)", "index times an index"),
        ("sum(sum(1, i, 1, 9999), j, 1, 9999)", "terms in all"),
        ("x[99999999999]", "cannot be an index"),
        ("v + 1", 'unknown name "v"'),
        ("[1, 2][0]", "only a name has elements"),
        ("__import__('os')", "unexpected character"),
    ],
)
def test_mistakes_in_expressions_are_told(text, told):
    with pytest.raises(InputError) as caught:
        parse_indexed(text, SCOPE, {})
    assert told in str(caught.value)


@given(st.text("xain[]()+-*,1259. sumprodcos", max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_is_an_expression_or_a_mistake(text):
    try:
        expression = parse_indexed(text, SCOPE, {})
    except InputError:
        return
    evaluate(expression, {"x": ROW, "a": 2.0})


def changed(key, value):
    document = json.loads(json.dumps(MIXED))
    place = document
    *path, last = key.split(".")
    for part in path:
        place = place[part]
    place[last] = value
    return document


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("sizes.n", 10**9, "sizes.n"),
        ("parameters.n", {"range": [0, 1]}, "already has a meaning"),
        ("parameters.x", {"size": 4, "range": [1, 0]}, "parameters.x.range"),
        ("parameters.x", {"size": 4, "range": [0, 1], "scale": "log"}, "above 0"),
        ("parameters.x", {"size": 4, "range": [0, 1], "value": [1, 2]}, "4 finite numbers"),
        ("definitions.k[i, 2, n]", "1", "begin at 1"),
        ("definitions.k", "later", 'unknown name "later"'),
        ("data", {"file": "a.csv"}, "data belong to outputs"),
        ("outputs", {"y": "1"}, "either cost, or outputs"),
    ],
)
def test_mistakes_in_files_are_told(key, value, told):
    with pytest.raises(InputError) as caught:
        build_function(changed(key, value), "f.yaml")
    assert told in str(caught.value)
    assert "f.yaml" in str(caught.value)


@pytest.mark.parametrize("fit", ["", [], 0, False, {"optimizer": {"name": "hybrid"}}])
def test_what_no_fit_of_a_function_can_be_is_refused(fit, tmp_path):
    """No section without keys, and no optimizer that wants derivatives."""
    document = yaml.safe_load((MODELS / "sphere.yaml").read_text()) | {"fit": fit}
    (tmp_path / "sphere.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(InputError, match="derivatives" if fit else "fit"):
        load_plan(tmp_path / "sphere.yaml")


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.mark.integration
@pytest.mark.parametrize(("name", "sizes"), [("sphere", "n"), ("network", "hidden")])
def test_optimize_writes_a_folder_that_can_be_fitted_again(name, sizes, tmp_path):
    options = ["--backend", "cpu", "--generations", 4, "--population", 30]
    options += ["--set", f"sizes.{sizes}=3", "--set", "fit.optimizer.name=genetic"]

    def optimized(file, out, *more):
        result = run("optimize", file, "--out", tmp_path / out, *options, *more)
        assert result.exit_code == 0, result.output
        return json.loads((tmp_path / out / "summary.json").read_text())

    summary = optimized(MODELS / f"{name}.yaml", "a")
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert names == {
        *("fit.yaml", "history.csv", "state.json", "summary.json"),
        *("convergence.png", "report.html", "source.py"),
    }
    fit = load_plan(tmp_path / "a" / "fit.yaml")
    values = [p.value for p in fit.problem.model.parameters]
    again = make_scorer(fit, "reference").score(np.array(values)[:, None]).cost[0]
    assert again == summary["cost"]
    assert (summary["rms_error"] is None) == (name == "sphere")
    # it goes on from the saved values; from anywhere it is the same search again
    saved = tmp_path / "a" / "fit.yaml"
    assert optimized(saved, "b")["cost"] <= summary["cost"]
    assert optimized(saved, "c", "--set", "fit.start=none")["cost"] == summary["cost"]


def test_asynchronous_ring_by_its_name_on_a_played_gpu(tmp_path):
    search = "{name: asynchronous_ring, population: 8, iterations: 20}"
    given = [MODELS / "sphere.yaml", "--set", f"fit.optimizer={search}"]
    options = ["--set", "sizes.n=3", "--generations", 4, "--out", tmp_path / "a"]
    result = run("optimize", *given, *options, "--backend", "cuda")
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["cost"] < 1e-2
    assert summary["evaluations"] == 4 * 8 * 20
    assert (tmp_path / "a" / "source.cu").exists()
    result = run("optimize", *given, "--out", tmp_path / "b", "--backend", "cpu")
    assert result.exit_code == 2
    assert "--backend cuda" in result.output


def test_show_and_what_functions_do_not_have(tmp_path):
    shown = run("show", MODELS / "griewank.yaml")
    assert shown.exit_code == 0
    assert "prod(cos(x[i]/sqrt(i)), i, 1, 30)" in shown.output
    assert "costOfLanes" in run("show", MODELS / "sphere.yaml", "--source", "cpu").output
    assert "costOf" in run("show", MODELS / "sphere.yaml", "--source", "cuda").output
    for command in (
        ["validate", MODELS / "sphere.yaml"],
        ["show", MODELS / "sphere.yaml", "--source", "nmodl"],
    ):
        assert run(*command).exit_code == 2
