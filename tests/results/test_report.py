"""What a report says: families of steps, residuals, words, tables, figures for print."""

from __future__ import annotations

import base64
import csv
import functools
import hashlib
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sympy
import yaml
from click.testing import CliRunner
from scipy.optimize import least_squares

import channelfit as cf
from channelfit.front.main import main
from channelfit.problem.clamp import Clamp
from channelfit.problem.protocol import Protocol, load_protocol
from channelfit.reading.errors import InputError
from channelfit.results.fit_folder import picture_of
from channelfit.results.report import step_families
from channelfit.results.report.curve_figures import autocorrelation, family_figures, lagged_products
from channelfit.results.report.page_content import reported_fit
from channelfit.results.report.page_facts import facts_of
from channelfit.results.report.page_figures import packed_samples
from channelfit.results.report.plots import traces_figure
from channelfit.results.report.print_figures import save_figures
from channelfit.results.report.step_families import (
    StepFamily,
    boltzmann,
    measured,
    time_constant,
)
from channelfit.results.report.trace_view import TraceView
from channelfit.results.report.traces import Traces, table_names, table_text
from channelfit.results.run_state import json_text
from support.little import LITTLE
from support.places import ROOT
from support.truths import slow_but

LEVELS = np.arange(-80.0, 41.0, 10.0)
STEPS = Protocol.steps(LEVELS, 40, before=5, after=20, holding=-100, sampling=0.1)


def test_shares_are_of_the_largest_current_whatever_its_sign() -> None:
    shares = step_families._share(np.array([-2.0, -10.0, math.nan, 1.0]))
    np.testing.assert_array_equal(shares, [0.2, 1.0, math.nan, -0.1])


def values(family: StepFamily, name: str) -> np.ndarray:
    """The fit's values of the first curve of a family that is called so."""
    return next(c.results[0] for c in family.curves if c.name.startswith(name))


def relaxing(tau_ms: float, steady: np.ndarray) -> np.ndarray:
    """Currents that relax to a value of each sweep with one time constant, and back as fast."""
    t = STEPS.times_ms[None, :]
    on = steady[:, None] * (1 - np.exp(-(t - 5) / tau_ms))
    at_end = steady[:, None] * (1 - np.exp(-40 / tau_ms))
    off = at_end * np.exp(-(t - 45) / tau_ms)
    return np.where(t < 5, 0.0, np.where(t < 45, on, off))


def test_a_family_of_steps_gives_back_what_it_was_made_from():
    """I-V, conductance, half rise and time constant of currents that are known in closed form."""
    share = 1 / (1 + np.exp((-20 - LEVELS) / 7))
    steady = 10 * share * (LEVELS + 90)
    found = measured(Traces(STEPS, relaxing(4.0, steady)), reversal_mV=-90.0)
    assert isinstance(found, StepFamily)
    assert np.allclose(values(found, "largest current"), steady, rtol=2e-3, atol=0.2)
    # the mean of the last tenth, 4 ms, of what is 36 to 40 ms old
    late = 1 - np.exp(-np.arange(36, 40, 0.1) / 4).mean()
    assert np.allclose(values(found, "current at the end"), steady * late, rtol=1e-9)
    conductance = values(found, "conductance")
    assert np.allclose(conductance, share / share[-1], atol=3e-3)
    tau = values(found, "time constant of the rise")
    assert np.allclose(tau[np.isfinite(tau)], 4.0, rtol=1e-2)
    assert np.isfinite(tau[-5:]).all()
    half = values(found, "time to half")
    assert np.allclose(half[np.isfinite(half)], 4 * np.log(2), atol=0.15)
    (fitted,) = [c.result_fits[0] for c in found.curves if c.name.startswith("conductance")]
    assert re.search(r"half at -(19|20)\.\d mV, slope (6\.9|7\.\d) mV", fitted)
    tails = values(found, "largest current of the step after it")
    assert np.allclose(tails, steady / steady[-1], atol=0.01)


def test_data_and_fit_are_measured_in_the_same_samples():
    """A sample that does not count says nothing, of the recording or of the fit."""
    current = relaxing(4.0, np.linspace(1, 100, len(LEVELS)))
    artefact = current.copy()
    artefact[:, 60:70] = 1e4
    weight = np.ones_like(current)
    weight[:, 60:70] = 0
    found = measured(Traces(STEPS, artefact, current, weight), reversal_mV=-90.0)
    for curve in found.curves:
        assert np.allclose(curve.data, curve.results[0], equal_nan=True)
    assert np.nanmax(values(found, "largest current")) < 101


def test_noise_is_no_tail():
    """Where a step shows nothing but noise, its largest currents say nothing."""
    draw = np.random.default_rng(5)
    current = relaxing(4.0, np.linspace(1, 100, len(LEVELS)))
    current[:, STEPS.times_ms >= 45] = 0
    data = current + draw.standard_normal(current.shape)
    found = measured(Traces(STEPS, current, data), -90.0)
    assert not any(curve.file == "availability" for curve in found.curves)
    assert any("step after it" in text for text in found.left_out)
    assert values(found, "conductance").max() == 1


def test_what_is_no_family_says_why():
    for name in ("ramp", "herg_sine_wave"):
        command = load_protocol(ROOT / "protocols" / f"{name}.yaml")
        found = measured(Traces(command, np.zeros((command.n_sweeps, command.n_times_max))))
        assert "1 sweep" in found
    twice = Protocol.steps(
        [-40, 0, 40], 10, after=10, after_level=[-60, -50, -40], holding=-80, sampling=0.5
    )
    alike = Protocol.steps([0, 0, 0], 10, holding=-80, sampling=0.5)
    for protocol, why in ((twice, "more than one segment"), (alike, "alike")):
        found = measured(Traces(protocol, np.ones((3, protocol.n_times_max))))
        assert why in found
    # and a family without a conductance, where the membrane is not at the command
    assert Clamp(delay=sympy.Float(0.2)).holds_command
    assert not Clamp(series_resistance=sympy.Float(5.0)).holds_command
    assert not Clamp(offset=sympy.Symbol("shift")).holds_command
    steady = Traces(STEPS, relaxing(4.0, 10.0 * (LEVELS + 90)))
    found = measured(steady, "the membrane is not at the command")
    assert found.left_out[0] == "conductance: the membrane is not at the command"
    assert not [c for c in found.curves if c.name.startswith("conductance")]
    family = measured(steady, -90.0)
    files = [figure.file for figure in family_figures(family, (0,))]
    assert files[0] == "iv"
    assert len(set(files)) == len(files)


def test_recovery_is_a_family_of_durations():
    """The test pulse after pauses of several lengths grows with the time constant of recovery."""
    command = load_protocol(ROOT / "protocols" / "recovery.yaml")
    pauses = np.array([1, 2, 3, 5, 8, 12, 20, 35, 60, 100, 200.0])
    current = np.zeros((command.n_sweeps, command.n_times_max))
    for k, pause in enumerate(pauses):
        a, b = command.sample_ranges(k)[3]
        current[k, a:b] = -500 * (1 - np.exp(-pause / 15))
    found = measured(Traces(command, current))
    assert (found.x_name, found.x_unit) == ("duration of the step", "ms")
    (curve,) = found.curves
    assert np.allclose(curve.results[0], 1 - np.exp(-pauses / 15), atol=1e-4)
    assert float(re.search(r"([\d.]+) ms", curve.result_fits[0])[1]) == pytest.approx(15, rel=0.02)


@pytest.mark.parametrize("tau", [0.5, 3.0, 20.0])
def test_time_constants(tau):
    t = np.arange(0, 30, 0.05)
    draw = np.random.default_rng(1)
    course = 50 + 100 * np.exp(-t / tau)
    assert time_constant(t, course) == pytest.approx(tau, rel=0.01)
    noisy = course + 2 * draw.standard_normal(t.size)
    assert time_constant(t, noisy) == pytest.approx(tau, rel=0.06)
    assert np.isnan(time_constant(t, 2 * draw.standard_normal(t.size)))
    assert np.isnan(time_constant(t, np.ones_like(t)))
    assert np.isnan(time_constant(t, t))  # a straight line has none


def test_boltzmann_curves():
    v = np.arange(-80.0, 41.0, 10.0)
    falling = 0.1 + 0.9 / (1 + np.exp((v + 35) / 6))
    found = boltzmann(v, falling)
    assert (found.half_mV, found.slope_mV) == pytest.approx((-35, -6), rel=1e-4)
    assert boltzmann(v, v / 40) is None or abs(boltzmann(v, v / 40).slope_mV) < 59
    assert boltzmann(v, np.ones_like(v)) is None
    rising = 1 / (1 + np.exp((-20 - v) / 7))
    assert boltzmann(v, rising).half_mV == pytest.approx(-20, abs=0.1)
    assert boltzmann(v[:7], rising[:7] / rising[6]) is None  # up to -20 mV it has no plateau
    assert boltzmann(v[:4], falling[:4]) is None


def test_the_autocorrelation_of_noise_and_of_filtered_noise():
    draw = np.random.default_rng(2)
    white = draw.standard_normal((4, 4000))
    found = autocorrelation(white, None, 0.1)
    assert found.values[0] == pytest.approx(1)
    assert (np.abs(found.values[1:]) < 3 * found.band).all()
    kept = 0.9  # of each sample in the next
    filtered = np.zeros_like(white)
    for k in range(1, white.shape[1]):
        filtered[:, k] = kept * filtered[:, k - 1] + white[:, k]
    found = autocorrelation(filtered[:, 100:], None, 0.1)
    assert found.at(0.5) == pytest.approx(kept**5, abs=0.05)
    assert found.lags_ms[1] == pytest.approx(0.1)


def test_products_of_samples_apart_are_summed_over_rows_of_any_length():
    rows = [np.random.default_rng(4).normal(size=n) for n in (1, 7, 64, 211)]
    direct = np.zeros(211)
    for row in rows:
        direct[: len(row)] += np.correlate(row, row, "full")[len(row) - 1 :]
    np.testing.assert_allclose(lagged_products(rows), direct, atol=1e-12)


def test_samples_that_do_not_count_have_no_part_in_the_autocorrelation():
    draw = np.random.default_rng(4)
    apart = draw.standard_normal((2, 4000))
    weight = np.zeros_like(apart)
    weight[:, ::5] = 1  # every fifth counts; the others are alike
    apart[:, 1::5] = apart[:, 2::5] = 100
    found = autocorrelation(apart, weight, 1.0)
    assert set(np.diff(found.lags_ms)) == {5.0}
    assert (np.abs(found.values[1:]) < 3 * found.band).all()
    assert isinstance(autocorrelation(apart, np.zeros_like(apart), 1.0), str)
    assert isinstance(autocorrelation(0 * apart, weight, 1.0), str)


def test_tables_hold_every_sample_and_no_text_of_a_user():
    current = relaxing(4.0, np.linspace(1, 100, len(LEVELS)))
    data = current + 1
    data[3, 7] = np.nan
    weight = np.where(np.isfinite(data), 0.5, 0.0)
    text = table_text(Traces(STEPS, current, data, weight, title="=1+1"))
    rows = list(csv.reader(io.StringIO(text)))
    assert rows[0][:5] == [
        "time (ms)",
        "sweep 1 command (mV)",
        "sweep 1 data (pA)",
        "sweep 1 weight",
        "sweep 1 fit (pA)",
    ]
    assert len(rows) == 1 + STEPS.n_times_max
    table = np.array([[float(x) if x else np.nan for x in row] for row in rows[1:]])
    assert np.allclose(table[:, 0], STEPS.times_ms)
    for k in range(len(LEVELS)):
        shown = table[:, 1 + 4 * k : 5 + 4 * k].T
        expected = (STEPS.command()[k], data[k], weight[k], current[k])
        assert np.allclose(shown, expected, rtol=1e-8, equal_nan=True)
    assert "=1+1" not in text
    command = load_protocol(ROOT / "protocols" / "recovery.yaml")  # whose sweeps end one by one
    text = table_text(Traces(command, np.ones((command.n_sweeps, command.n_times_max))))
    last = text.splitlines()[-1].split(",")
    assert (last[1:3], last[-1]) == (["", ""], "1")
    assert not any("data" in head for head in text.splitlines()[0].split(","))
    assert table_names(1) == ["traces.csv"]
    assert table_names(2) == ["traces_1.csv", "traces_2.csv"]


def test_a_fit_in_python_reports_and_no_cell_of_its_table_is_a_formula(tmp_path):
    """Whatever a model, a protocol and a cell are called."""
    evil = "=1+1|'/c calc'!A1"
    model = cf.Model.from_yaml(yaml.safe_dump({**LITTLE, "description": evil, "source": evil}))
    steps = cf.Protocol.steps([-40, 0, 40], 20, holding=-80, sampling=1, name=evil)
    data = cf.simulate(model, steps).current
    fit = cf.fit(model, cf.Experiment(steps, data), seed=1, stop={"generations": 2}, progress=False)
    made = fit.report(tmp_path / "deep" / "page.html", figures=["png"])
    assert made == tmp_path / "deep" / "page.html"
    assert (tmp_path / "deep" / "figures" / "traces.png").exists()
    number = r"-?[\d.]+(e[+-]\d+)?|"
    for row in csv.reader((tmp_path / "deep" / "traces.csv").open(encoding="utf-8")):
        for cell in row:
            assert re.fullmatch(number, cell) or cell.startswith(("time (", "sweep "))
    with pytest.raises(InputError, match="html"):
        fit.report(tmp_path / "page.pdf")
    assert fit.summary["files"][0]["file"] == "an array"


def test_the_membrane_of_a_clamp_stands_beside_the_command():
    """In the table, in the page and in the picture."""
    current = relaxing(4.0, np.linspace(1, 100, len(LEVELS)))
    membrane = STEPS.command() - 7.5
    traces = Traces(STEPS, current, membrane=membrane)
    rows = list(csv.reader(io.StringIO(table_text(traces))))
    assert rows[0][1:4] == ["sweep 1 command (mV)", "sweep 1 membrane (mV)", "sweep 1 fit (pA)"]
    assert [float(row[2]) for row in rows[1:]] == pytest.approx(membrane[0])
    (packed,) = {one["membrane"] for one in packed_samples(TraceView(traces), 10**6)["sweeps"][:1]}
    shown = np.frombuffer(base64.b64decode(packed), "<f4")
    assert shown == pytest.approx(membrane[0])
    figure = traces_figure([traces], "x")
    drawn = [line.get_ydata() for line in figure.subfigs[0].axes[0].lines]
    assert any(np.array_equal(y, membrane[-1], equal_nan=True) for y in drawn)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["command", "membrane"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a shipped model."""
    out = tmp_path_factory.mktemp("runs") / "b"
    arguments = ["optimize", str(ROOT / "models" / "model_b.yaml"), "--out", str(out), "--quiet"]
    said = CliRunner().invoke(main, [*arguments, "--seed", "1"])
    assert said.exit_code == 0, said.output
    return out


def test_a_run_has_its_report_and_its_tables(folder):
    names = {file.name for file in folder.iterdir()}
    assert {"report.html", "traces_1.csv", "traces_2.csv", "traces.png"} <= names
    text = (folder / "report.html").read_text(encoding="utf-8")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["command"].startswith("channelfit")
    for row in summary["files"]:
        assert hashlib.sha256(Path(row["file"]).read_bytes()).hexdigest() == row["sha256"]
        assert row["sha256"] in text
    assert [row["what"] for row in summary["files"]] == ["model", "protocol", "protocol"]
    assert len(text.encode()) < 2e6


def test_a_report_is_made_again_and_replaces_nothing_else(folder, tmp_path):
    before = (folder / "report.html").read_text(encoding="utf-8")
    said = CliRunner().invoke(main, ["report", str(folder)])
    assert said.exit_code == 0, said.output
    assert str(folder / "report.html") in said.stdout
    after = (folder / "report.html").read_text(encoding="utf-8")

    def words(text: str) -> str:
        """What it says, beside the files of which it was made."""
        body = text.partition("<main")[2].partition("<script")[0]
        return re.sub(r"<bdi>[^<]*</bdi>|<svg.*?</svg>|half at[^<]*", "", body, flags=re.DOTALL)

    assert words(before) == words(after)
    mine = tmp_path / "mine.html"
    mine.write_text("<p>mine</p>", encoding="utf-8")
    for wrong, why in (
        (["--out", str(mine)], "no report"),
        (["--out", "x.txt"], ".html"),
        (["--figures", "gif"], "pdf, svg, png"),
    ):
        said = CliRunner().invoke(main, ["report", str(folder), *wrong])
        assert said.exit_code == 2
        assert why in said.stderr
    assert mine.read_text(encoding="utf-8") == "<p>mine</p>"


def test_names_are_no_formulas_in_figures(tmp_path):
    """Of Matplotlib, in whose texts a dollar sign begins one."""
    evil = r"$\frac{1}{0}$ $"
    run = little_run()
    rows = {evil: dict(run.summary["parameters"]["g"])}
    run = replace(
        run,
        label=evil,
        summary={**run.summary, "parameters": rows},
        scheme=replace(run.scheme, name=evil),
        panels=tuple(replace(panel, title=evil) for panel in run.panels),
    )
    files = save_figures([run, replace(run, label=evil + "2")], tmp_path, ["svg"])
    assert {file.name for file in files} >= {"parameters_1.svg", "traces.svg", "convergence.svg"}
    for name in ("parameters_1", "convergence"):
        assert "$\\frac{1}{0}$ $" in (tmp_path / f"{name}.svg").read_text(encoding="utf-8")


@functools.cache
def little_run():
    """What a report tells of a fit of two states to noisy currents."""
    model = cf.Model.from_yaml(yaml.safe_dump(LITTLE))
    steps = cf.Protocol.steps([-40, -20, 0, 20, 40], 30, before=5, holding=-80, sampling=0.5)
    current = cf.simulate(model, steps).current
    draw = np.random.default_rng(3)
    data = current + 2.0 * draw.standard_normal(current.shape)
    fit = cf.fit(model, cf.Experiment(steps, data), seed=1, progress=False)
    facts = facts_of(fit._plan, fit._result, json_text(fit.summary))
    return reported_fit("one", picture_of(fit._plan, fit._winner, 1), facts)


@pytest.mark.parametrize("seed", slow_but(range(0, 40, 4), range(40)))
def test_a_boltzmann_curve_is_the_one_that_scipy_finds(seed: int) -> None:
    """Curves with noise, whole ones and cut ones, some with a parameter at its bound."""
    random = np.random.default_rng(seed)
    v = np.arange(-100.0, 61.0, random.choice([10.0, 20.0]))[: int(random.integers(6, 17))]
    slope = random.choice([-1.0, 1.0]) * random.uniform(2, 25)
    half = random.uniform(v[0], v[-1] + 20)
    y = 1 / (1 + np.exp((half - v) / slope)) + random.normal(0, random.choice([1e-4, 0.03]), v.size)

    def curve(p: np.ndarray) -> np.ndarray:
        return p[2] + (p[3] - p[2]) / (1 + np.exp(np.clip((p[0] - v) / p[1], -300, 300)))

    sign = math.copysign(1.0, slope)
    ends = sorted((sign * 0.5, sign * 60.0))
    lower, upper = np.array([v[0], ends[0], -1.5, -1.5]), np.array([v[-1], ends[1], 1.5, 1.5])
    p, squares = step_families._followed(v, y, lower, upper)
    assert np.all((lower <= p) & (p <= upper))
    tight = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15, "max_nfev": 5000}
    starts = [[middle, 8.0 * sign, y.min(), y.max()] for middle in np.quantile(v, (0.1, 0.5, 0.9))]
    best = min(
        (
            least_squares(
                lambda p: curve(p) - y, np.clip(one, lower, upper), bounds=(lower, upper), **tight
            )
            for one in starts
        ),
        key=lambda found: float(found.cost),
    )
    # cut off curves leave valleys in which both creep
    assert squares <= 2 * best.cost * 1.01 + 1e-12
    if np.linalg.cond(best.jac) < 1e3:
        assert squares <= 2 * best.cost * (1 + 1e-6) + 1e-12
        assert p == pytest.approx(best.x, rel=1e-3, abs=1e-3)
    assert np.sum((curve(p) - y) ** 2) == pytest.approx(squares, abs=1e-12)


def _sodium(noise: float) -> np.ndarray:
    """Currents that rise and decay within a few samples, (n_sweeps, n_times) pA."""
    t = np.maximum(STEPS.times_ms[None, :] - 5, 0)
    course = np.exp(-t / 0.8) - np.exp(-t / 0.15)
    current = LEVELS[:, None] * 100 * course
    return current + noise * np.random.default_rng(2).standard_normal(current.shape)


@pytest.mark.parametrize(("noise", "said"), [(5.0, ""), (40.0, "3"), (200.0, "5")])
def test_a_peak_is_smoothed_by_the_noise_and_its_name_says_so(noise: float, said: str) -> None:
    data = _sodium(noise)
    found = measured(Traces(STEPS, _sodium(0.0), data), reversal_mV=90.0)
    assert isinstance(found, StepFamily)
    curve = next(c for c in found.curves if c.name.startswith("largest current"))
    assert curve.name == "largest current" + (f", mean of {said} samples" if said else "")
    if not said:
        some = LEVELS != 0
        raw = np.where(LEVELS < 0, data.min(axis=1), data.max(axis=1))
        np.testing.assert_allclose(curve.data[some], raw[some])
