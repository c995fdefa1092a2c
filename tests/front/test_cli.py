"""The command line as a user meets it: what it prints, writes and returns."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from matplotlib.image import imread

from channelfit.front.main import main
from channelfit.reading.errors import InputError
from support import json_told
from support.places import ROOT

MODEL_A = ROOT / "models" / "model_a.yaml"
MODEL_B = ROOT / "models" / "model_b.yaml"
RAMP = ROOT / "protocols" / "ramp.yaml"
RECOVERY = ROOT / "protocols" / "recovery.yaml"
FILES = {
    "fit.yaml",
    "history.csv",
    "traces.png",
    "state.json",
    "summary.json",
    "source.py",
    "report.html",
}
TABLES = {"data_1.csv", "data_2.csv", "traces_1.csv", "traces_2.csv"}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def fit_small(out: Path, *more: object, model: Path = MODEL_A, backend: str = "cpu") -> Result:
    return run(
        "optimize",
        model,
        "--backend",
        backend,
        "--population",
        48,
        "--generations",
        4,
        "--seed",
        3,
        "--out",
        out,
        *more,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A small run that several tests look at."""
    out = tmp_path_factory.mktemp("runs") / "first"
    return out, fit_small(out)


def assert_refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr


# --- optimize --------------------------------------------------------------------------------


def test_run_folder_holds_everything(finished):
    out, result = finished
    assert result.exit_code == 0, result.output
    assert {p.name for p in out.iterdir()} == FILES | TABLES
    assert str(out) in result.stdout
    assert "generation 4 of 4" in result.stderr
    assert "true value" in result.stdout
    assert "of the variance" in result.stdout
    assert "peaks      off by" in result.stdout


def test_summary_agrees_with_history_and_problem(finished):
    out, _ = finished
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    with (out / "history.csv").open(encoding="utf-8") as file:
        history = list(csv.DictReader(file))
    assert [int(row["generation"]) for row in history] == [1, 2, 3, 4]
    assert summary["evaluations"] == 4 * 48 == int(history[-1]["evaluations"])
    assert float(history[-1]["best_cost"]) == pytest.approx(summary["cost"], rel=1e-9)
    assert summary["rms_pA"] == pytest.approx(summary["cost"] ** 0.5)
    assert summary["rms_relative_to_peak"] == pytest.approx(summary["rms_pA"] / summary["peak_pA"])
    assert summary["variance_explained"] < 1
    assert summary["peak_error_pA"] == pytest.approx(
        summary["peak_error_relative"] * summary["peak_pA"]
    )
    assert len(summary["experiments"]) == 2
    for one in summary["experiments"]:
        assert {"rms_pA", "variance_explained", "peak_error_pA"} <= set(one)
    assert summary["parameters"]["gmax"]["true_value"] == 5
    assert summary["parameters"]["gmax"]["unit"] == "nS"
    assert summary["seed"] == 3
    assert summary["backend"] == "cpu"
    assert summary["settings"]["population"] == 48
    assert {"python", "numpy", "llvmlite", "channelfit"} <= set(summary["versions"])
    assert "generation" in summary["stop_reason"]
    assert "createQmat" in (out / "source.py").read_text(encoding="utf-8")


def test_figure_is_a_picture(finished):
    picture = imread(finished[0] / "traces.png")
    assert min(picture.shape[:2]) > 400
    assert picture[..., :3].std() > 0.05


def test_saved_fit_scores_the_same_and_can_be_fitted_again(finished, tmp_path):
    from channelfit.front.kinds import load_plan
    from channelfit.scoring.scorer import make_scorer

    out, _ = finished
    again = load_plan(out / "fit.yaml")
    values = again.problem.model.values()
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert values.tolist() == [p["value"] for p in summary["parameters"].values()]
    cost = make_scorer(again.problem).score(values[:, None]).cost[0]
    assert cost == pytest.approx(summary["cost"], rel=1e-9)
    result = fit_small(tmp_path / "second", model=out / "fit.yaml")
    assert result.exit_code == 0, result.output
    assert "true value" not in result.stdout


def test_same_seed_same_answer_and_json_stands_alone(finished, tmp_path):
    result = fit_small(tmp_path / "x", "--json")
    assert result.exit_code == 0
    printed = json_told.summary(result.stdout)
    assert printed == json.loads((tmp_path / "x" / "summary.json").read_text(encoding="utf-8"))
    first = json.loads((finished[0] / "summary.json").read_text(encoding="utf-8"))
    assert printed["parameters"] == first["parameters"]


def test_quiet_prints_the_folder_only(tmp_path):
    result = fit_small(tmp_path / "x", "--quiet")
    assert result.stdout == f"{tmp_path / 'x'}\n"
    assert result.stderr == ""


def test_default_folder_bears_the_name_of_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("optimize", MODEL_A, "--population", 8, "--generations", 1, "--quiet")
    assert re.fullmatch(r"runs[/\\]model_a-\d{8}-\d{6}", result.stdout.strip())
    assert (tmp_path / result.stdout.strip() / "fit.yaml").is_file()


def test_float32_is_scored_again_in_float64(tmp_path):
    result = fit_small(tmp_path / "x", "--dtype", "float32")
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "x" / "summary.json").read_text(encoding="utf-8"))
    assert 0 < summary["largest_deviation_from_float64_pA"] < 1e-3 * summary["peak_pA"]
    assert "float32 was off by at most" in result.stdout


@pytest.mark.integration
def test_reference_backend_agrees_with_cpu(finished, tmp_path):
    result = fit_small(tmp_path / "x", "--json", backend="reference")
    assert result.exit_code == 0, result.output
    first = json.loads((finished[0] / "summary.json").read_text(encoding="utf-8"))
    assert json_told.summary(result.stdout)["cost"] == pytest.approx(first["cost"], rel=1e-7)
    assert not (tmp_path / "x" / "source.py").exists()


def test_generations_option_wins_over_either_place_in_the_file(tmp_path):
    result = fit_small(tmp_path / "x", "--set", "fit.stop.generations=9")
    # written out by the user, 9 contradicts the option
    assert_refused(result, "generations")
    file = tmp_path / "fit.yaml"
    protocol = (ROOT / "protocols" / "activation.yaml").as_posix()
    file.write_text(
        f"model: {MODEL_A.as_posix()}\n"
        f"fit: {{protocols: [{protocol}], stop: {{generations: 9}}}}\n",
        encoding="utf-8",
    )
    result = run(
        "optimize", file, "--generations", 2, "--population", 8, "--json", "--out", tmp_path / "y"
    )
    assert json_told.summary(result.stdout)["generations"] == 2


@pytest.mark.parametrize("name", ["swarm", "ring", "groups", "differential"])
def test_another_optimizer_starts_from_its_own_settings(name, tmp_path):
    """Those in the file are the genetic algorithm's; what the user adds still counts."""
    result = run(
        "optimize",
        MODEL_A,
        "--optimizer",
        name,
        "--generations",
        3,
        "--json",
        "--set",
        "fit.optimizer.population=24",
        "--out",
        tmp_path / "x",
    )
    summary = json_told.summary(result.stdout)
    assert summary["optimizer"] == name
    assert summary["evaluations"] == 72
    assert "crossover_rate" not in summary["settings"]


def test_the_files_own_optimizer_keeps_the_files_settings(tmp_path):
    result = run(
        "optimize",
        MODEL_A,
        "--optimizer",
        "genetic",
        "--generations",
        2,
        "--json",
        "--population",
        20,
        "--set",
        "fit.optimizer.mutation_rate=0.3",
        "--out",
        tmp_path / "x",
    )
    assert json_told.summary(result.stdout)["settings"]["mutation_rate"] == 0.3


def test_help_names_every_optimizer():
    from channelfit.search.choose import OPTIMIZERS

    text = run("optimize", "--help").output
    assert all(name in text for name in OPTIMIZERS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["optimize", "nowhere.yaml"], ["nowhere.yaml", "no such file"]),
        (["optimize", RAMP], ["states"]),
        (["optimize", MODEL_A, "--set", "parameters.gmx.value=3"], ["gmx", "did you mean gmax"]),
        (["optimize", MODEL_A, "--set", "fit.optimizer.populatoin=3"], ["populatoin"]),
        (["optimize", MODEL_A, "--set", "nonsense"], ["key=value"]),
        (["optimize", MODEL_A, "--optimizer", "swarmm"], ["swarmm", "genetic"]),
        (["optimize", MODEL_A, "--population", "0"], ["--population"]),
        (["optimize", MODEL_A, "--backend", "gpu"], ["--backend"]),
        (["optimize", MODEL_A, "--backend", "reference", "--dtype", "float32"], ["float64"]),
        (["simulate", MODEL_A, "nowhere.yaml"], ["nowhere.yaml"]),
        (["simulate", MODEL_A, MODEL_A], ["holding"]),
        (["show", "nowhere.yaml"], ["nowhere.yaml"]),
        (["show", MODEL_A, "--set", "states=[C]"], ["unknown state"]),
        (["validate", MODEL_A, "--protocol", "nowhere.yaml"], ["nowhere.yaml"]),
        (["frobnicate"], ["frobnicate"]),
    ],
)
def test_bad_input_is_one_message(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_refused(run(*arguments), *words)
    assert list(tmp_path.iterdir()) == []


def test_cuda_missing_says_what_to_do(tmp_path):
    from channelfit.front.commands.doctor import backends

    if backends()["cuda"].usable:
        pytest.skip("there is a GPU here")
    assert_refused(fit_small(tmp_path / "x", backend="cuda"), "cuda", "--backend cpu")


def test_existing_results_are_not_overwritten(finished):
    out, _ = finished
    before = {p: p.read_bytes() for p in out.iterdir()}
    assert_refused(fit_small(out), str(out), "not empty")
    assert {p: p.read_bytes() for p in out.iterdir()} == before


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert_refused(fit_small(tmp_path / "file"), "file")
    assert_refused(fit_small(tmp_path / "file" / "below"), "below")


def test_failure_in_the_middle_leaves_what_there_is(tmp_path, monkeypatch):
    from channelfit.front.kinds import load_plan
    from channelfit.scoring.cpu import CpuScorer

    score, calls = CpuScorer.score, []

    def failing(self, parameters):
        calls.append(1)
        if len(calls) == 4:  # after the first candidate and two generations
            raise ZeroDivisionError("a defect")
        return score(self, parameters)

    monkeypatch.setattr(CpuScorer, "score", failing)
    result = fit_small(tmp_path / "x")
    assert result.exit_code == 1
    assert isinstance(result.exception, ZeroDivisionError)
    assert {"fit.yaml", "history.csv", "source.py"} <= {p.name for p in (tmp_path / "x").iterdir()}
    history = (tmp_path / "x" / "history.csv").read_text(encoding="utf-8").splitlines()
    assert len(history) == 3
    # the best of all generations, not of those up to the last save
    fit = load_plan(tmp_path / "x" / "fit.yaml")
    best = CpuScorer(fit.problem).preview(fit.problem.model.values()[:, None]).cost[0]
    assert best == pytest.approx(float(history[-1].split(",")[3]), rel=1e-6)


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to a single child there")
def test_interrupt_saves_the_best_so_far(tmp_path):
    out = tmp_path / "x"
    command = [
        sys.executable,
        "-m",
        "channelfit",
        "optimize",
        str(MODEL_A),
        "--out",
        str(out),
        "--population",
        "48",
        "--generations",
        "10000000",
    ]

    def listen() -> None:  # a shell's background jobs ignore it, and their children after them
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listen,
    ) as child:
        watchdog = threading.Timer(300, child.kill)
        watchdog.start()
        assert child.stderr is not None
        seen = next((line for line in child.stderr if line.startswith("generation")), "")
        child.send_signal(signal.SIGINT)
        stdout, stderr = child.communicate()
        watchdog.cancel()
    assert "generation 1 of" in seen
    assert child.returncode == 130
    assert "Traceback" not in stderr
    assert "interrupted" in stdout
    assert {p.name for p in out.iterdir()} >= FILES
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["stop_reason"] == "interrupted"


# --- simulate, show, validate, doctor ----------------------------------------------------------


def test_simulate_writes_traces_and_leaves_short_sweeps_empty(tmp_path):
    from channelfit.model.model_file import load_model
    from channelfit.problem.experiment import Experiment, Problem
    from channelfit.problem.protocol import load_protocol
    from channelfit.scoring.scorer import make_scorer

    result = run(
        "simulate",
        MODEL_A,
        RECOVERY,
        "--out",
        tmp_path / "deep" / "x",
        "--set",
        "parameters.gmax.value=2.5",
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.split() == [str(tmp_path / "deep" / f"x.{e}") for e in ("csv", "png")]
    text = (tmp_path / "deep" / "x.csv").read_text(encoding="utf-8")
    header = text.splitlines()[0].split(",")
    assert header[:3] == ["time_ms", "sweep_1_current_pA", "sweep_1_voltage_mV"]
    table = np.genfromtxt(io.StringIO(text), delimiter=",", skip_header=1)
    model, protocol = load_model(MODEL_A), load_protocol(RECOVERY)
    scorer = make_scorer(Problem(model, (Experiment(protocol),)))
    expected = scorer.simulate(model.values()[:, None])[0][:, :, 0] / 2  # 5 nS in the file
    np.testing.assert_allclose(table[:, 0], protocol.times_ms)
    np.testing.assert_allclose(table[:, 1::2].T, expected, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(table[:, 2::2].T, protocol.command(), rtol=1e-7)
    assert np.isnan(table[-1, 1])


def test_simulate_takes_a_fitted_model(finished, tmp_path):
    result = run("simulate", finished[0] / "fit.yaml", RAMP, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert {p.name for p in tmp_path.iterdir()} == {"model_a-ramp.csv", "model_a-ramp.png"}


@pytest.mark.parametrize("model", sorted((ROOT / "models").glob("*.yaml")), ids=lambda p: p.stem)
def test_show_describes_and_draws_every_model(model, tmp_path):
    from channelfit.model.model_file import load_model

    out = tmp_path / "scheme.png"
    result = run("show", model, "--out", out)
    assert result.exit_code == 0, result.output
    channel = load_model(model)
    for name in channel.parameter_names:
        assert re.search(rf"^{name} ", result.stdout, re.MULTILINE)
    for chain in channel.chains:
        for t in chain.transitions:
            assert f"{t.source} -> {t.target}" in result.stdout
    assert max(map(len, result.stdout.replace(str(out), "").splitlines())) <= 80
    assert imread(out)[..., :3].std() > 0.05


def test_show_prints_the_scheme_and_the_generator():
    lines = run("show", MODEL_B).stdout.splitlines()
    assert "  C1 <-> C2 <-> O" in lines
    assert "  open: O" in lines
    assert "  I = gmax O (v + 100)" in lines
    column = next(line for line in lines if line.startswith("to O ")).split()
    assert column == ["to", "O", ".", "a23*exp(z23*v)", "-a32*exp(-z32*v)"]


@pytest.mark.parametrize(
    ("kind", "word"),
    [("cpu", "def createQmat("), ("cuda", "void createQmat("), ("nmodl", "SUFFIX")],
)
def test_show_prints_source_and_nothing_else(kind, word):
    result = run("show", MODEL_B, "--source", kind)
    assert result.exit_code == 0
    assert word in result.stdout
    assert result.stderr == ""


def test_text_of_rates_can_be_read_back():
    from channelfit.model.evaluation import evaluate
    from channelfit.model.expressions import parse_expression
    from channelfit.model.model_file import load_model
    from channelfit.results.report.description import rate_text

    model = load_model(ROOT / "models" / "na_hh.yaml")
    values = dict(zip(model.parameter_names, model.values(), strict=True)) | {"v": -61.3}
    for chain in model.chains:
        for t in chain.transitions:
            again = parse_expression(rate_text(t).replace("^", "**"), [*values])
            assert evaluate(again, values) == pytest.approx(evaluate(t.rate, values), rel=1e-6)


def test_text_of_every_function_can_be_read_back():
    from channelfit.model.evaluation import evaluate
    from channelfit.model.expressions import parse_expression
    from channelfit.results.report.description import text

    written = "max(a, 0.1)*abs(v) + (a if v < -30 else 2*a if v < 0 else min(a, 1))*tanh(v/7)"
    expression = parse_expression(written, ["a", "v"])
    again = parse_expression(text(expression).replace("^", "**"), ["a", "v"])
    values = {"a": 0.3, "v": np.array([-60.0, -10.0, 20.0])}
    np.testing.assert_allclose(evaluate(again, values), evaluate(expression, values), rtol=1e-12)


@pytest.mark.integration
def test_validate_without_neuron_says_how_to_get_it(tmp_path):
    (tmp_path / "neuron.py").write_text("raise ImportError('not here')", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "channelfit", "validate", str(MODEL_A)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert 'pip install "channelfit[neuron]"' in done.stderr or sys.platform == "win32"


def test_validate_compares_with_neuron(tmp_path):
    from channelfit.front.commands import doctor

    for need in (doctor.neuron(), doctor.nrnivmodl(), doctor.compiler()):
        if not need.usable:
            pytest.skip(f"needs NEURON and a compiler: {need.state}")
    result = run("validate", MODEL_A, "--candidates", 2, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert re.search(r"^activation +\d\.\de-\d\d +1e-05 +ok ", result.stdout, re.MULTILINE)
    assert (tmp_path / "model_a-validation.png").is_file()


def test_validate_takes_steps_where_a_file_names_no_protocol():
    from channelfit.front.commands.validation import _protocols

    (found,) = _protocols({"name": "published"}, Path("a.yaml"), ())
    assert found.name == "steps of 100 ms"
    assert (found.command().min(), found.command().max()) == (-120, 60)


def test_validate_fails_beyond_the_tolerance(monkeypatch):
    from channelfit.front.commands import doctor, validation

    for need in (doctor.neuron(), doctor.nrnivmodl(), doctor.compiler()):
        if not need.usable:
            pytest.skip(f"needs NEURON and a compiler: {need.state}")
    monkeypatch.setattr(validation, "STEP_TOLERANCE", 1e-30)
    result = run("validate", MODEL_A, "--candidates", 1)
    assert result.exit_code == 1
    assert "BEYOND" in result.stdout


def test_validate_keeps_mechanisms_where_the_cache_is(monkeypatch, tmp_path):
    from channelfit.scoring.neuron import mechanisms

    seen = []

    def told(h: object, library: bytes, folder: Path) -> None:
        seen.extend(folder.iterdir())
        raise InputError("is where it would be", folder)

    pytest.importorskip("neuron")
    monkeypatch.setenv("CHANNELFIT_CACHE", str(tmp_path / "here"))
    monkeypatch.setattr(mechanisms, "_compiled", lambda text, name: b"a library")
    monkeypatch.setattr(mechanisms, "_load", told)
    monkeypatch.setattr(mechanisms, "_loaded", set())
    result = run("validate", "models/k_hh.yaml", "--protocol", "protocols/activation.yaml")
    assert result.exit_code == 2
    assert str(tmp_path / "here" / "neuron") in result.stderr
    assert any(file.name.startswith("channelfit_") for file in seen)


def test_doctor_bears_that_a_file_of_the_cache_goes_meanwhile(monkeypatch, tmp_path):
    from channelfit.front.commands import doctor

    monkeypatch.setenv("CHANNELFIT_CACHE", str(tmp_path))
    (tmp_path / "kernel.py").write_bytes(b"x" * 2_000_000)
    gone = tmp_path / "1.partial"
    there = Path.is_file
    monkeypatch.setattr(Path, "rglob", lambda folder, _: [tmp_path / "kernel.py", gone])
    monkeypatch.setattr(Path, "is_file", lambda file: file == gone or there(file))
    assert "2.0 MB" in doctor.cache().state


@pytest.mark.integration
@pytest.mark.parametrize(
    "command",
    [
        ["doctor"],
        ["fhn", "--nodes", "11", "--end", "1", "--out"],
        ["fhn", "--nodes", "11", "--end", "1", "--quiet", "--out"],
        ["show", "models/model_b.yaml", "--out"],
        ["simulate", "models/model_b.yaml", "protocols/activation.yaml", "--out"],
    ],
)
def test_a_path_steers_no_terminal(monkeypatch, tmp_path, command):
    hostile = "[red]a\x1b[31m\u202eb"
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("CHANNELFIT_CACHE", str(tmp_path / hostile))
    last = tmp_path / hostile / ("picture.png" if command[0] == "show" else "out")
    arguments = [*command, str(last)] if command[-1] == "--out" else command
    result = CliRunner().invoke(main, arguments, color=True)
    assert result.exit_code == 0, result.output
    assert r"[red]a\x1b[31m\u202eb" in result.stdout
    assert "\x1b[31m" not in result.stdout
    assert "\u202e" not in result.stdout


def test_doctor_names_what_is_missing_and_how_to_get_it(monkeypatch):
    from channelfit.front.commands import doctor

    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor.platform, "system", lambda: "Linux")
    result = run("doctor")
    assert result.exit_code == 0, result.output
    for word in ("Python", "llvmlite", "reference", "cpu", "cuda", "cache"):
        assert word in result.stdout
    assert 'pip install "channelfit[neuron]"' in result.stdout


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from channelfit.front.main import main; "
        "main(['--help'], standalone_mode=False); "
        "heavy = {'numpy', 'sympy', 'numba', 'scipy', 'matplotlib', 'rich'} & set(sys.modules); "
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "optimize" in done.stdout


@pytest.mark.parametrize("command", ["optimize", "simulate", "show", "validate", "doctor"])
def test_every_command_has_help_with_an_example(command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"channelfit {command}" in result.stdout.split("Example")[1]


# --- figures -----------------------------------------------------------------------------------


def test_decimation_keeps_extremes_order_and_gaps():
    from channelfit.results.report.plots import decimated

    t = np.arange(80_000) * 0.1
    y = np.random.default_rng(0).standard_normal(t.size)
    y[[123, 45_678]] = 50, -60
    y[30_000:30_500] = np.nan
    x, z = decimated(t, y)
    assert x.size < 6000
    assert np.all(np.diff(x) > 0)
    assert np.nanmax(z) == 50
    assert np.nanmin(z) == -60
    within = (x >= 3000) & (x < 3050)
    assert np.isnan(z[within]).any()
    assert not np.isfinite(z[within]).any()


def test_titles_of_any_characters_are_drawn(tmp_path):
    from channelfit.problem.protocol import load_protocol
    from channelfit.results.report.plots import save, traces_figure
    from channelfit.results.report.traces import Traces

    protocol = load_protocol(RAMP)
    current = np.zeros((1, protocol.n_times_max))
    odd = r"a $x^ \frac{ _ % # &"
    save(traces_figure([Traces(protocol, current, title=odd)], odd, odd), tmp_path / "x.png")
    assert (tmp_path / "x.png").is_file()


def test_layouts_chain_ring_star_and_rows():
    from channelfit.model.channel import Chain, Transition
    from channelfit.results.report.scheme import layout

    def chain(states: str, links: str) -> Chain:
        steps = []
        for link in links.split():
            steps += [Transition(link[0], link[1], 1), Transition(link[1], link[0], 1)]
        return Chain("scheme", tuple(states), tuple(steps), (0.0,) * len(states))

    star = layout(chain("ABCDE", "AB AC AD AE"))
    assert star["A"] == (0, 0)
    assert star["B"] == (0, -1)
    assert layout(chain("ABC", "AB BC")) == {"A": (0, 0), "B": (1, 0), "C": (2, 0)}
    ring = np.array(list(layout(chain("ABCD", "AB BC CD DA")).values()))
    np.testing.assert_allclose(np.hypot(*ring.T), np.hypot(*ring[0]))
    rows = layout(chain("ABCDE", "AB BC DE BD CE"))
    assert rows["D"] == (1, 1)
    assert rows["E"] == (2, 1)


# --- places that take nothing more ---------------------------------------------------------------


def channelfit(*arguments, **settings):
    """A call in a process of its own, with real streams."""
    code = "from channelfit.front.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        check=False,
        **settings,
    )


@pytest.mark.integration
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
@pytest.mark.parametrize(
    "call", [["--help"], ["show", MODEL_B], ["show", MODEL_B, "--source", "cpu"]]
)
def test_standard_output_on_a_full_device(call: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = channelfit(*call, stdout=full)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: standard output, or a file of results: cannot be ")
    assert done.stderr.count("\n") == 1


@pytest.mark.integration
def test_a_terminal_without_the_characters_of_a_file(tmp_path: Path) -> None:
    text = MODEL_B.read_text(encoding="utf-8")
    (tmp_path / "m.yaml").write_text(text.replace("Potassium", "漢字 µ"), encoding="utf-8")
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    model = str(tmp_path / "m.yaml")
    done = channelfit("show", model, "--set", "fit={}", stdout=subprocess.PIPE, env=ascii_only)
    assert done.returncode == 0, done.stderr
    assert r"\u6f22\u5b57 \xb5" in done.stdout


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (["show", MODEL_B, "--out", "/"], "/: a folder, not a file; give for example --out"),
        (["show", MODEL_B, "--out", "."], "a folder, not a file"),
        (["show", MODEL_B, "--out", "x" * 300], "File name too long"),
        (["optimize", MODEL_B, "--out", "x" * 300], "File name too long"),
        (["simulate", MODEL_B, RAMP, "--out", "x" * 300], "File name too long"),
        (["show", MODEL_B, "--set", f"parameters.gmax.value={'1' * 5000}"], "too many digits"),
        (["show", "~nosuchuser/x"], "no such file"),
        (["show", MODEL_B, "--set", "fit.protocols=[~nosuchuser/x]"], "no known user's home"),
    ],
)
def test_names_and_numbers_that_cannot_be_used(call: list[str], said: str) -> None:
    done = run(*call)
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert done.output.count("Error: ") == 1


def of(error: Exception, cause: Exception) -> Exception:
    """An error that was raised from another one."""
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError("Unable to allocate 8 EiB"), "Unable to allocate 8 EiB"),
        (MemoryError(), "nothing is left"),
        (
            ImportError("Read this:\nlibblas.so: failed to map segment from shared object\nBye."),
            "libblas.so: failed to map segment from shared object",
        ),
        (ImportError("libblas.so: mmap: Cannot allocate memory"), "libblas.so: mmap: "),
        (RuntimeError("can't start new thread"), "can't start new thread"),
        (of(ImportError("SciPy is broken"), MemoryError("no room")), "no room"),
    ],
)
def test_memory_that_does_not_suffice(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def load(*given: object) -> None:
        raise error

    monkeypatch.setattr("channelfit.front.commands.show.load_channel", load)
    done = run("show", MODEL_B)
    assert done.exit_code == 2
    assert done.output.startswith(f"Error: more memory is needed than there is: {said}")
    assert done.output.count("\n") == 1


def test_a_backend_that_is_asked_for_is_all_that_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Loading CuPy takes seconds, and much memory."""

    def looked() -> None:
        raise AssertionError("CuPy is looked for")

    monkeypatch.setattr("channelfit.scoring.machine.gpu.cupy", looked)
    call = ["optimize", MODEL_B, "--backend", "cpu", "--population", "48", "--generations", "2"]
    done = run(*call, "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert "backend cpu, float64 (as asked)" in done.output


def test_show_prints_numbers_that_only_sympy_can_hold(tmp_path: Path) -> None:
    """exp(1e9) becomes a number of SymPy's that float64 has no room for."""
    text = (ROOT / "models" / "k_hh_gate.yaml").read_text(encoding="utf-8")
    changed = re.sub(r"beta: .*", "beta: exprel(1e9 - (1 if v < 0 else 2))}", text, count=1)
    (tmp_path / "m.yaml").write_text(changed, encoding="utf-8")
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "m.yaml")])
    assert shown.exception is None or isinstance(shown.exception, SystemExit)


@pytest.mark.parametrize("twice", [["--model", "a", "--model", "b"], ["--out", "x", "--out=y"]])
def test_an_option_with_one_value_is_not_given_twice(twice: list[str]) -> None:
    """The first would be ignored without a word."""
    done = CliRunner().invoke(main, ["init", "cell.abf", *twice])
    assert done.exit_code == 2
    assert f"{twice[0]} takes one value, and is given 2 times" in " ".join(done.output.split())
    again = CliRunner().invoke(main, ["init", "nowhere.abf", "--clamp", "--clamp"])
    assert "takes one value" not in again.output
