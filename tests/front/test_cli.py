"""The command line as a user meets it: what it prints, writes and returns."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from matplotlib.image import imread

import channelfit as cf
from channelfit.front.commands import doctor, validate
from channelfit.front.kinds import load_plan
from channelfit.front.main import main
from channelfit.model.evaluation import evaluate
from channelfit.model.expressions import parse_expression
from channelfit.model.model_file import load_model
from channelfit.problem.protocol import load_protocol
from channelfit.results.report.description import rate_text
from channelfit.results.report.expression_text import text
from channelfit.results.report.plots import decimated, save, traces_figure
from channelfit.results.report.traces import Traces
from channelfit.scoring.cpu import CpuScorer
from channelfit.scoring.scorer import make_scorer
from support import json_output
from support.json_output import ran, refused, run
from support.places import MODELS, PROTOCOLS, ROOT

MODEL_A = MODELS / "model_a.yaml"
MODEL_B = MODELS / "model_b.yaml"
RAMP = PROTOCOLS / "ramp.yaml"
FILES = {"fit.yaml", "history.csv", "traces.png", "state.json", "summary.json"}
FILES |= {"source.py", "report.html"}
TABLES = {"data_1.csv", "data_2.csv", "traces_1.csv", "traces_2.csv"}


def fit_small(out: Path, *more: object, backend: str = "cpu") -> Result:
    small = ["--population", "48", "--generations", "4", "--seed", "3", "--out"]
    return run("optimize", MODEL_A, "--backend", backend, *small, out, *more)


def summary_in(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A small run that several tests look at."""
    out = tmp_path_factory.mktemp("runs") / "first"
    return out, fit_small(out)


def assert_refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert result.stderr.count("Error: ") == 1
    for word in words:
        assert word in result.stderr


# --- optimize --------------------------------------------------------------------------------


def test_run_folder_holds_everything(finished):
    out, result = finished
    assert result.exit_code == 0, result.output
    assert {p.name for p in out.iterdir()} == FILES | TABLES
    assert "generation 4 of 4" in result.stderr
    for word in (str(out), "true value", "of the variance", "peaks      off by"):
        assert word in result.stdout
    assert imread(out / "traces.png")[..., :3].std() > 0.05
    assert "createQmat" in (out / "source.py").read_text(encoding="utf-8")


def test_summary_agrees_with_history_and_problem(finished):
    out, _ = finished
    summary = summary_in(out)
    with (out / "history.csv").open(encoding="utf-8") as file:
        history = list(csv.DictReader(file))
    assert [int(row["generation"]) for row in history] == [1, 2, 3, 4]
    assert summary["evaluations"] == 4 * 48 == int(history[-1]["evaluations"])
    assert float(history[-1]["best_cost"]) == pytest.approx(summary["cost"], rel=1e-9)
    assert summary["rms_pA"] == pytest.approx(summary["cost"] ** 0.5)
    assert summary["rms_relative_to_peak"] == pytest.approx(summary["rms_pA"] / summary["peak_pA"])
    assert len(summary["experiments"]) == 2
    gmax = summary["parameters"]["gmax"]
    assert (gmax["true_value"], gmax["unit"]) == (5, "nS")
    assert (summary["seed"], summary["backend"]) == (3, "cpu")
    assert summary["settings"]["population"] == 48
    assert {"python", "numpy", "llvmlite", "channelfit"} <= set(summary["versions"])
    assert "generation" in summary["stop_reason"]


def test_a_saved_fit_scores_the_same_and_is_a_model_to_simulate(finished, tmp_path):
    out, _ = finished
    again = load_plan(out / "fit.yaml")
    values = again.problem.model.values()
    summary = summary_in(out)
    assert values.tolist() == [p["value"] for p in summary["parameters"].values()]
    cost = make_scorer(again.problem).score(values[:, None]).cost[0]
    assert cost == pytest.approx(summary["cost"], rel=1e-9)
    ran("simulate", out / "fit.yaml", RAMP, "--out", tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"model_a-ramp.csv", "model_a-ramp.png"}


@pytest.mark.usefixtures("undrawn")
def test_same_seed_same_answer_and_json_stands_alone(finished, tmp_path):
    result = fit_small(tmp_path / "x", "--json")
    assert result.exit_code == 0
    printed = json_output.summary(result.stdout)
    assert printed == summary_in(tmp_path / "x")
    assert printed["parameters"] == summary_in(finished[0])["parameters"]


@pytest.mark.usefixtures("undrawn")
def test_the_default_folder_bears_the_name_of_the_model_and_is_all_that_quiet_prints(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    result = run("optimize", MODEL_A, *["--population", "8", "--generations", "1", "--quiet"])
    assert re.fullmatch(r"runs[/\\]model_a-\d{8}-\d{6}\n", result.stdout)
    assert result.stderr == ""
    assert (tmp_path / result.stdout.strip() / "fit.yaml").is_file()


@pytest.mark.usefixtures("undrawn")
def test_float32_is_scored_again_in_float64(tmp_path, monkeypatch):
    """And the backend that is asked for is all that is looked for: loading CuPy takes seconds."""

    def looked() -> None:
        raise AssertionError("CuPy is looked for")

    monkeypatch.setattr("channelfit.scoring.machine.gpu.cupy", looked)
    result = fit_small(tmp_path / "x", "--dtype", "float32")
    assert result.exit_code == 0, result.output
    summary = summary_in(tmp_path / "x")
    assert 0 < summary["largest_deviation_from_float64_pA"] < 1e-3 * summary["peak_pA"]
    assert "float32 was off by at most" in result.stdout
    assert "backend cpu, float32 (as requested)" in result.output


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", ["swarm", "genetic"])
def test_options_win_over_the_file_whose_settings_are_those_of_its_own_optimizer(name, tmp_path):
    """Another optimizer starts from its own; what the user adds counts for both."""
    file = tmp_path / "fit.yaml"
    own = "{name: genetic, population: 30, crossover_rate: 0.7}"
    protocol = (PROTOCOLS / "activation.yaml").as_posix()
    file.write_text(
        f"model: {MODEL_A.as_posix()}\n"
        f"fit: {{protocols: [{protocol}], optimizer: {own}, stop: {{generations: 9}}}}\n",
        encoding="utf-8",
    )
    more = ["--set", "fit.optimizer.population=24", "--json", "--out", tmp_path / "y"]
    result = run("optimize", file, "--optimizer", name, "--generations", 2, *more)
    summary = json_output.summary(result.stdout)
    assert summary["optimizer"] == name
    assert (summary["generations"], summary["evaluations"]) == (2, 48)
    assert summary["settings"].get("crossover_rate") == (0.7 if name == "genetic" else None)
    # written out by the user, 9 contradicts the option
    assert_refused(fit_small(tmp_path / "z", "--set", "fit.stop.generations=9"), "generations")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["optimize", "nowhere.yaml"], ["nowhere.yaml", "no such file"]),
        (["optimize", RAMP], ["states"]),
        (["optimize", MODEL_A, "--set", "parameters.gmx.value=3"], ["gmx", "did you mean gmax"]),
        (["optimize", MODEL_A, "--set", "nonsense"], ["key=value"]),
        (["optimize", MODEL_A, "--optimizer", "swarmm"], ["swarmm", "genetic"]),
        (["optimize", MODEL_A, "--backend", "reference", "--dtype", "float32"], ["float64"]),
        (["simulate", MODEL_A, MODEL_A], ["holding"]),
        (["show", "~nosuchuser/x"], ["no such file"]),
        (["show", MODEL_B, "--set", "fit.protocols=[~nosuchuser/x]"], ["no known user's home"]),
        (["show", MODEL_B, "--set", f"parameters.gmax.value={'1' * 5000}"], ["too many digits"]),
        (["show", MODEL_B, "--out", "/"], ["/: a folder, not a file; give for example --out"]),
        (["show", MODEL_B, "--out", "x" * 300], ["File name too long"]),
        (["init", "cell.abf", "--out", "x", "--out=y"], ["--out takes one value, and is given 2"]),
    ],
)
def test_bad_input_is_one_message(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    if arguments[:2] == ["show", MODEL_B]:
        assert (result.exit_code, result.stderr.count("Error: ")) == (2, 1)
        assert words[0] in result.stderr  # what it shows stands on standard output already
    else:
        assert_refused(result, *words)
    assert list(tmp_path.iterdir()) == []
    if arguments[0] == "init":  # what is on or off may be given twice
        assert "takes one value" not in run("init", "nowhere.abf", "--clamp", "--clamp").output


def test_cuda_missing_says_what_to_do(tmp_path):
    if doctor.backends()["cuda"].usable:
        pytest.skip("there is a GPU here")
    assert_refused(fit_small(tmp_path / "x", backend="cuda"), "cuda", "--backend cpu")


def test_existing_results_are_not_overwritten(finished, tmp_path):
    out, _ = finished
    before = {p: p.read_bytes() for p in out.iterdir()}
    assert_refused(fit_small(out), str(out), "not empty")
    assert {p: p.read_bytes() for p in out.iterdir()} == before
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert_refused(fit_small(tmp_path / "file"), "file")
    assert_refused(fit_small(tmp_path / "file" / "below"), "below")


@pytest.mark.usefixtures("undrawn")
def test_failure_in_the_middle_leaves_what_there_is(tmp_path, monkeypatch):
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


# --- simulate, show, validate, doctor ----------------------------------------------------------


def test_simulate_writes_traces_and_leaves_short_sweeps_empty(tmp_path):
    recovery, out = PROTOCOLS / "recovery.yaml", tmp_path / "deep" / "x"
    result = ran("simulate", MODEL_A, recovery, "--out", out, "--set", "parameters.gmax.value=2.5")
    assert result.stdout.split("\n")[:2] == [f"{out}.{e}" for e in ("csv", "png")]
    text = out.with_suffix(".csv").read_text(encoding="utf-8")
    header = text.splitlines()[0].split(",")
    assert header[:3] == ["time_ms", "sweep_1_current_pA", "sweep_1_voltage_mV"]
    table = np.genfromtxt(io.StringIO(text), delimiter=",", skip_header=1)
    expected = cf.simulate(MODEL_A, recovery, values={"gmax": 2.5})
    assert expected.to_csv(tmp_path / "here.csv").read_text(encoding="utf-8") == text
    protocol = load_protocol(recovery)
    np.testing.assert_allclose(table[:, 0], protocol.times_ms)
    np.testing.assert_allclose(table[:, 1::2].T, expected.current, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(table[:, 2::2].T, protocol.command(), rtol=1e-7)
    assert np.isnan(table[-1, 1])


@pytest.mark.parametrize("name", ["na_hh", "model_b"])
def test_show_describes_and_draws_a_model(name, tmp_path):
    model, out = MODELS / f"{name}.yaml", tmp_path / "scheme.png"
    result = ran("show", model, "--out", out)
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
    assert {"  C1 <-> C2 <-> O", "  open: O", "  I = gmax O (v + 100)"} <= set(lines)
    column = next(line for line in lines if line.startswith("to O ")).split()
    assert column == ["to", "O", ".", "a23*exp(z23*v)", "-a32*exp(-z32*v)"]


def test_text_of_rates_and_of_every_function_can_be_read_back():
    model = load_model(MODELS / "na_hh.yaml")
    values = dict(zip(model.parameter_names, model.values(), strict=True)) | {"v": -61.3}
    for chain in model.chains:
        for t in chain.transitions:
            again = parse_expression(rate_text(t).replace("^", "**"), [*values])
            assert evaluate(again, values) == pytest.approx(evaluate(t.rate, values), rel=1e-6)
    written = "max(a, 0.1)*abs(v) + (a if v < -30 else 2*a if v < 0 else min(a, 1))*tanh(v/7)"
    expression = parse_expression(written, ["a", "v"])
    again = parse_expression(text(expression).replace("^", "**"), ["a", "v"])
    values = {"a": 0.3, "v": np.array([-60.0, -10.0, 20.0])}
    np.testing.assert_allclose(evaluate(again, values), evaluate(expression, values), rtol=1e-12)


@pytest.mark.integration
def test_validate_compares_with_neuron(tmp_path, monkeypatch):
    for need in (doctor.neuron(), doctor.nrnivmodl(), doctor.compiler()):
        if not need.usable:
            pytest.skip(f"needs NEURON and a compiler: {need.state}")
    result = ran("validate", MODEL_A, "--candidates", 2, "--out", tmp_path)
    assert re.search(r"^activation +\d\.\de-\d\d +1e-05 +ok ", result.stdout, re.MULTILINE)
    assert (tmp_path / "model_a-validation.png").is_file()
    monkeypatch.setattr(validate, "STEP_TOLERANCE", 1e-30)
    result = run("validate", MODEL_A, "--candidates", 1)
    assert result.exit_code == 1
    assert "BEYOND" in result.stdout


def test_validate_takes_the_concentrations_of_an_experiment(tmp_path):
    (tmp_path / "steps.yaml").write_text((PROTOCOLS / "gaba_puff.yaml").read_text())
    rows = [{"protocol": "steps.yaml"}, {"protocol": "steps.yaml", "ligands": {"gaba": "3 mM"}}]
    found = validate.protocols_of({"fit": {"experiments": rows}}, tmp_path / "fit.yaml")
    assert [float(p.concentration("gaba")[0, 0]) for p in found] == [0.0, 3.0]
    model = (MODELS / "published/gabaa5.yaml").read_text(encoding="utf-8")
    (tmp_path / "gaba.yaml").write_text(model.partition("\nfit:")[0], encoding="utf-8")
    result = run("validate", tmp_path / "gaba.yaml")
    assert result.exit_code == 2
    assert "the usual steps command the voltage alone" in result.output


@pytest.mark.integration
def test_validate_without_neuron_says_how_to_get_it(tmp_path):
    (tmp_path / "neuron.py").write_text("raise ImportError('not here')", encoding="utf-8")
    done = channelfit("validate", str(MODEL_A), env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert 'pip install "channelfit[neuron]"' in done.stderr or sys.platform == "win32"


@pytest.mark.integration
@pytest.mark.parametrize(
    "command",
    [
        ["doctor"],
        ["fhn", "--nodes", "11", "--end", "1", "--out"],
        ["fhn", "--nodes", "11", "--end", "1", "--quiet", "--out"],
        ["show", str(MODEL_B), "--out"],
        ["simulate", str(MODEL_B), str(PROTOCOLS / "activation.yaml"), "--out"],
    ],
)
def test_a_path_steers_no_terminal(monkeypatch, tmp_path, command):
    hostile = "[red]a\x1b[31m\u202eb"
    monkeypatch.setenv("CHANNELFIT_CACHE", str(tmp_path / hostile))
    last = tmp_path / hostile / ("picture.png" if command[0] == "show" else "out")
    arguments = [*command, str(last)] if command[-1] == "--out" else command
    result = CliRunner().invoke(main, arguments, color=True)
    assert result.exit_code == 0, result.output
    assert r"[red]a\x1b[31m\u202eb" in result.stdout
    assert "\x1b[31m" not in result.stdout
    assert "\u202e" not in result.stdout


def test_doctor_names_what_is_missing_and_how_to_get_it(monkeypatch):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor.platform, "system", lambda: "Linux")
    result = ran("doctor")
    for word in ("Python", "llvmlite", "reference", "cpu", "cuda", "cache"):
        assert word in result.stdout
    assert 'pip install "channelfit[neuron]"' in result.stdout


# --- figures -----------------------------------------------------------------------------------


def test_decimation_keeps_extremes_order_and_gaps():
    t = np.arange(80_000) * 0.1
    y = np.random.default_rng(0).standard_normal(t.size)
    y[[123, 45_678]] = 50, -60
    y[30_000:30_500] = np.nan
    x, z = decimated(t, y)
    assert x.size < 6000
    assert np.all(np.diff(x) > 0)
    assert (np.nanmax(z), np.nanmin(z)) == (50, -60)
    within = (x >= 3000) & (x < 3050)
    assert np.isnan(z[within]).any()
    assert not np.isfinite(z[within]).any()


def test_titles_of_any_characters_are_drawn(tmp_path):
    protocol = load_protocol(RAMP)
    odd = r"a $x^ \frac{ _ % # &"
    traces = Traces(protocol, np.zeros((1, protocol.n_times_max)), title=odd)
    save(traces_figure([traces], odd, odd), tmp_path / "x.png")
    assert (tmp_path / "x.png").is_file()


# --- places that take nothing more ---------------------------------------------------------------


def channelfit(*arguments, **settings):
    """A call in a process of its own, with real streams."""
    code = "from channelfit.front.main import main; main()"
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | settings
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], text=True, encoding="utf-8", cwd=ROOT, **streams
    )


@pytest.mark.integration
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
@pytest.mark.parametrize("call", [["--help"], ["show", MODEL_B]])
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
    done = channelfit("show", str(tmp_path / "m.yaml"), "--set", "fit={}", env=ascii_only)
    assert done.returncode == 0, done.stderr
    assert r"\u6f22\u5b57 \xb5" in done.stdout


def of(error: Exception, cause: Exception) -> Exception:
    """An error that was raised from another one."""
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError("Unable to allocate 8 EiB"), "Unable to allocate 8 EiB"),
        (ImportError("libblas.so: mmap: Cannot allocate memory"), "libblas.so: mmap: "),
        (RuntimeError("can't start new thread"), "can't start new thread"),
        (of(ImportError("SciPy is broken"), MemoryError("no room")), "no room"),
    ],
)
def test_memory_that_does_not_suffice(monkeypatch, error: Exception, said: str) -> None:
    def load(*given: object) -> None:
        raise error

    monkeypatch.setattr("channelfit.front.commands.show.load_channel", load)
    done = refused("show", MODEL_B)
    assert done.output.startswith(f"Error: more memory is needed than there is: {said}")
    assert done.output.count("\n") == 1
