"""Pictures as a reader sees them: no text lies on another or is cut off, nothing that matters is
hidden, and what happens in a short time is enlarged. Measured with the renderer."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from channelfit.model.channel import Parameter
from channelfit.model.model_file import load_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import build_protocol, load_protocol
from channelfit.reading.documents import dump_yaml
from channelfit.results.report import uncertainty as pictures
from channelfit.results.report.plots import save, traces_figure
from channelfit.results.report.scheme import scheme_figure
from channelfit.results.report.scheme_words import scheme_of
from channelfit.results.report.traces import Traces, fitted
from channelfit.results.uncertainty.curvature import estimate
from channelfit.results.uncertainty.families import Family
from channelfit.results.uncertainty.profiles import Profile, profiles
from channelfit.scoring.reference import ReferenceScorer
from support.places import ROOT
from support.truths import slow_but
from support.uncertain import curve_objective, loaded

HOSTILE = "cell $7_{3$\n\\frac{ 10 %\t#&_^ " + "a very long name " * 12
#: Pixels by which the boxes of two texts may meet: letters do not fill theirs.
SLACK = 1.0


def every_axis(figure: Figure) -> list[Axes]:
    axes = [axis for axis in figure.findobj(Axes) if axis.get_visible()]
    return list(dict.fromkeys(axes))


def texts(figure: Figure) -> list[Text]:
    """What is drawn as text: findobj also has tick labels outside of the view, which are not."""
    figure.draw_without_rendering()
    found = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    ticks = [a for axis in every_axis(figure) for a in (axis.xaxis, axis.yaxis)]
    labels, shown = set(), set()
    for axis in ticks:
        low, high = sorted(axis.get_view_interval())
        slack = 1e-9 * (high - low)
        # minor ones have no labels here
        for place, tick in zip(axis.get_majorticklocs(), axis.get_major_ticks(), strict=False):
            labels |= {tick.label1, tick.label2}
            if low - slack <= place <= high + slack and axis.axes.get_visible():
                shown |= {tick.label1, tick.label2}
    hidden = {t for a in figure.findobj(Axes) if not a.get_visible() for t in a.findobj(Text)}
    return [t for t in found if t not in hidden and (t not in labels or t in shown)]


def assert_readable(figure: Figure) -> None:
    whole = figure.bbox
    boxes = [(t.get_text(), t.get_window_extent()) for t in texts(figure)]
    assert boxes
    for text, box in boxes:
        assert box.x0 >= -SLACK, f"{text!r} is cut off on the left"
        assert box.x1 <= whole.width + SLACK, f"{text!r} is cut off on the right"
        assert box.y0 >= -SLACK, f"{text!r} is cut off below"
        assert box.y1 <= whole.height + SLACK, f"{text!r} is cut off above"
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        upright = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert not (across > SLACK and upright > SLACK), f"{one!r} lies on {other!r}"


def simulated(model: str, protocol: str) -> Traces:
    channel = load_model(ROOT / "models" / f"{model}.yaml")
    command = load_protocol(ROOT / "protocols" / f"{protocol}.yaml")
    scorer = ReferenceScorer(Problem(channel, (Experiment(command),)))
    current = scorer.simulate(channel.values()[:, None])[0][:, :, 0]
    return Traces(command, current, title=command.name)


def steps(n_sweeps: int = 3, duration: str = "10 ms", sampling: str = "0.1 ms", name="steps"):
    values = [f"{v:.6g} mV" for v in np.linspace(-80, 60, n_sweeps)]
    segments = [{"step": {"values": values}, "for": duration}]
    return build_protocol(
        {"name": name, "holding": "-80 mV", "sampling": sampling, "segments": segments}, None
    )


def with_data(noise: float = 0.0, off: float = 0.0, n_sweeps: int = 3, name="steps") -> Traces:
    """Exponentials as data, and a fit that is off by a share."""
    protocol = steps(n_sweeps, name=name)
    t = protocol.times_ms
    size = np.linspace(100, 1000, n_sweeps)[:, None]
    true = size * (1 - np.exp(-t / 3))
    data = true + np.random.default_rng(0).normal(0, noise, true.shape)
    return Traces(protocol, true * (1 + off), data, np.ones_like(data), name)


#: What happens all over a sweep, and what happens in a short part of it.
SIMULATED = [("na_hh", "recovery"), ("na_nav15", "na_iv")]


@pytest.mark.parametrize(("model", "protocol"), SIMULATED)
def test_names_and_labels_of_a_simulation_are_apart(model, protocol):
    figure = traces_figure([simulated(model, protocol)], model)
    assert_readable(figure)
    assert bool(enlarged(figure)) == (protocol == "na_iv")


def test_names_and_labels_of_a_fit_are_apart(tmp_path):
    fit = loaded(tmp_path, noise=20.0)
    experiment = fit.problem.experiments[0]
    current = ReferenceScorer(fit.problem).simulate(fit.problem.model.values()[:, None])[0]
    panels = [fitted(experiment, current[:, :, 0])] * 3
    beside = "RMS 20 pA after 4,648 candidates"
    figure = traces_figure(panels, "a" * 80, beside)
    assert_readable(figure)
    assert beside in [t.get_text() for t in texts(figure)]


def test_hostile_and_long_names_are_drawn_as_they_are(tmp_path):
    panels = [with_data(off=0.1, name=HOSTILE)] * 2
    names = (HOSTILE, "_" + HOSTILE, "fit − data")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = traces_figure(panels, HOSTILE, HOSTILE, names)
        assert_readable(figure)
        save(figure, tmp_path / "x.png")
        # letters that the font lacks are no noise
        save(traces_figure([with_data(name="細胞七")], "細胞"), tmp_path / "y.png")
    written = [t.get_text() for t in texts(figure)]
    assert sum(t.startswith(r"cell $7_{3$ \frac{ 10 % #&_^") for t in written) >= 3
    assert sum("…" in t for t in written) >= 3


@pytest.mark.parametrize("n_sweeps", [1, 60])
def test_any_number_of_sweeps_has_a_readable_key(n_sweeps):
    figure = traces_figure([with_data(n_sweeps=n_sweeps)], "many")
    assert_readable(figure)
    keys = [axis for axis in every_axis(figure) if axis.get_ylabel() == "step (mV)"]
    assert len(keys) == (n_sweeps > 1)
    if keys:
        labels = [float(t.get_text().replace("−", "-")) for t in keys[0].get_yticklabels()]
        assert labels == sorted(labels)
        assert 2 <= len(labels) <= 8


@pytest.mark.parametrize(("current", "duration"), [(0.0, "0.1 ms"), (-1e-9, "10 ms")])
def test_one_sample_and_flat_traces_are_drawn(current, duration, tmp_path):
    protocol = steps(1, duration)
    flat = np.full((1, protocol.n_times_max), current)
    figure = traces_figure([Traces(protocol, flat, flat, np.ones_like(flat), "flat")], "flat")
    assert_readable(figure)
    save(figure, tmp_path / "x.png")
    dark = np.all(imread(tmp_path / "x.png")[..., :3] < 0.25, axis=-1)
    axis = axis_of(figure, "current")
    inside = axis.get_window_extent()
    rows = slice(int(figure.bbox.height - inside.y1), int(figure.bbox.height - inside.y0))
    assert dark[rows, int(inside.x0) + 3 : int(inside.x1)].any()


def test_every_sweep_of_a_key_has_the_color_of_its_line():
    figure = traces_figure([simulated("model_b", "deactivation")], "model_b")
    panel = axis_of(figure, "current")
    key = next(axis for axis in every_axis(figure) if axis.get_ylabel() == "step (mV)")
    strip = np.asarray(key.images[0].get_array())[:, 0]
    lines = [line.get_color() for line in panel.lines]
    # the file has the steps from the highest down or up; the key always from the lowest up
    command = load_protocol(ROOT / "protocols" / "deactivation.yaml").command()[:, -1]
    np.testing.assert_allclose(strip, np.array(lines)[np.argsort(command)])


def axis_of(figure: Figure, what: str) -> Axes:
    return next(axis for axis in every_axis(figure) if axis.get_ylabel().startswith(what))


def lines_of(axis: Axes, y: np.ndarray) -> list:
    return [line for line in axis.lines if np.array_equal(line.get_ydata(), y, equal_nan=True)]


def test_the_data_are_above_what_they_are_compared_with():
    rivals = 2
    traces = with_data(off=0.01)
    traces = Traces(
        traces.protocol,
        traces.result,
        traces.data,
        traces.weight,
        "steps",
        rivals=tuple(traces.result * (1.02 + k / 50) for k in range(rivals)),
    )
    names = ("data", *(f"fit {k}" for k in range(rivals + 1)), "fit − data")
    axis = axis_of(traces_figure([traces], "x", names=names), "current")
    for k, row in enumerate(traces.data):
        (data,) = lines_of(axis, row)
        for result in traces.results:
            (fit,) = lines_of(axis, result[k])
            assert data.get_zorder() > fit.get_zorder()
            assert data.get_linewidth() < fit.get_linewidth() / 2


def test_no_scheme_hides_another_in_a_comparison():
    """One lies in the gaps of the other, and what they leave is shown without the noise."""
    plain = with_data(noise=60.0)
    traces = Traces(
        plain.protocol,
        plain.result,
        plain.data,
        plain.weight,
        "steps",
        rivals=(plain.result * 1.001,),
    )
    figure = traces_figure([traces], "x", names=("data", "a", "b", "fit − data"))
    axis = axis_of(figure, "current")
    first, second = (lines_of(axis, result[0])[0] for result in traces.results)
    assert (first.get_linestyle(), second.get_linestyle()) == ("-", "--")
    below = axis_of(figure, "fit − data")
    assert "mean" in below.get_ylabel()
    shown = max(float(np.nanstd(line.get_ydata())) for line in below.get_lines()[1:])
    assert shown < 0.7 * float(np.nanstd(plain.result - plain.data))


@pytest.mark.parametrize(
    ("count", "wide", "above", "said"),
    [
        (1, 0.0, 0.0, "the best fit"),
        (3, 0.2, 4.2, "3 fits, χ²"),
        (3, 0.001, 0.0, "3 fits in one place, the best among them"),
    ],
)
def test_families_are_named_by_what_parts_them_from_the_best(count, wide, above, said):
    family = Family(np.linspace(0, wide, count) * np.ones((4, 1)), np.full(count, above), 0, 0)
    assert pictures._family_label(family).startswith(said)
    assert ("χ² 4.2 above the best" in pictures._family_label(family)) == (above > 0)


@pytest.mark.parametrize("several", [False, True])
def test_lines_are_followed_only_where_there_are_several_families(several):
    parameters = tuple(Parameter(name, "1/ms", 0.1, 10.0, "log") for name in "abc")
    space = SimpleNamespace(parameters=parameters, free=range(3))
    found = SimpleNamespace(names=tuple("abc"), objective=SimpleNamespace(space=space))
    units = np.random.default_rng(0).uniform(size=(2, 3, 5))
    families = [Family(unit, np.zeros(5), 0, 0) for unit in units][: 1 + several]
    (axis,) = pictures.families_figure(found, families, "x").axes
    drawn = [line for line in axis.get_lines() if len(line.get_ydata()) == 3]
    assert len(drawn) == 6 * len(families)
    assert all((line.get_linestyle() == "-") == several for line in drawn)


def test_data_that_are_a_band_of_noise_are_beneath_the_line():
    traces = with_data(noise=60.0)
    axis = axis_of(traces_figure([traces], "x"), "current")
    (data,), (fit,) = lines_of(axis, traces.data[0]), lines_of(axis, traces.result[0])
    assert data.get_zorder() < fit.get_zorder()
    assert fit.get_linewidth() < 2
    few = with_data(off=1e-4)
    scaled = Traces(few.protocol, 100 * few.result, 100 * few.data, few.weight, "x")
    figure = traces_figure([scaled], "x")  # residuals have a unit of their own
    assert axis_of(figure, "current").get_ylabel() == "current (nA)"
    assert axis_of(figure, "fit − data").get_ylabel() == "fit − data (pA)"


def test_two_that_agree_are_both_seen_and_so_is_what_lies_between_them(tmp_path):
    """As `validate` draws NEURON and us, 8,600 samples, apart by a billionth."""
    ramp = simulated("model_b", "ramp")
    other = ramp.result * (1 + 1e-9 * np.sin(ramp.protocol.times_ms / 50))
    names = ("NEURON", "channelfit", "difference")
    figure = traces_figure([Traces(ramp.protocol, ramp.result, other)], "x", names=names)
    save(figure, tmp_path / "x.png")
    picture = imread(tmp_path / "x.png")[..., :3]
    inside = axis_of(figure, "current").get_window_extent()
    rows = slice(int(figure.bbox.height - inside.y1), int(figure.bbox.height - inside.y0))
    part = picture[rows, int(inside.x0) + 4 : int(inside.x1)]
    dark = np.all(part < 0.3, axis=-1)
    blue = (part[..., 2] > 0.5) & (part[..., 0] < 0.4)
    # in most columns of the picture, both
    assert dark.any(axis=0).mean() > 0.9
    assert blue.any(axis=0).mean() > 0.9
    below = axis_of(figure, "difference")
    assert below.get_ylabel() == "difference (10⁻⁹ pA)"
    low, high = below.get_ylim()
    assert 100 < high - low < 5000
    assert not below.yaxis.get_offset_text().get_text()


def enlarged(figure: Figure) -> list[Axes]:
    return [axis for axis in every_axis(figure) if axis.get_xlabel().endswith("enlarged")]


def test_what_happens_in_2_of_40_ms_is_enlarged():
    traces = simulated("na_nav15", "na_iv")
    (axis,) = enlarged(traces_figure([traces], "na_nav15"))
    start, end = axis.get_xlim()
    assert 9 < start < 10.3
    assert 11 < end < 16
    peaks = traces.protocol.times_ms[np.abs(traces.result).argmax(axis=1)]
    large = np.abs(traces.result).max(axis=1) > 0.2 * np.abs(traces.result).max()
    assert np.all((peaks[large] > start) & (peaks[large] < end))


def test_the_enlarged_part_has_all_of_its_samples():
    """A long trace is thinned for the whole picture, but not where it is enlarged."""
    protocol = steps(1, "8000 ms")
    t = protocol.times_ms
    u = np.maximum(t - 4000, 0) / 20
    current = (1000 * u * np.exp(1 - u))[None]
    axis = enlarged(traces_figure([Traces(protocol, current)], "x"))[0]
    start, end = (1e3 * x for x in axis.get_xlim())
    assert end - start < 800
    drawn = axis.lines[0].get_xdata()
    assert len(drawn) >= np.count_nonzero((t >= start) & (t <= end))


def sharp_estimate(names: list[str], values=None, error: float = 1e-3):
    """Lines through exact-looking data: values known to five or six digits, as ticks show them."""
    n = len(names)
    design = np.random.default_rng(0).normal(0, 1, (60, n))
    values = np.linspace(0.0352, 18.88, n) if values is None else np.array(values)
    data = design @ values + error * np.random.default_rng(1).standard_normal(60)
    best = np.linalg.lstsq(design, data)[0]
    parameters = [Parameter(name, "1/ms", -50, 50) for name in names]
    objective = curve_objective(lambda p: design @ p, data, parameters)
    return estimate(objective, objective.space.to_unit(best[:, None])[:, 0], 60)


SHORT = ["am", "vam", "kam", "bm", "kbm", "ah", "kah", "bh"]
LONG = [f"a_rather_long_name_of_a_parameter_{k}" for k in range(8)]


@pytest.mark.parametrize("names", slow_but([LONG], [SHORT, LONG]), ids=["short", "long"])
def test_profiles_and_intervals_are_readable(names):
    found = sharp_estimate(names)
    figure = pictures.profiles_figure(found, profiles(found)[1], "profiles")
    assert_readable(figure)
    for axis in every_axis(figure):
        assert len(axis.get_xticks()) >= 2
    assert_readable(pictures.intervals_figure(found, HOSTILE))


@pytest.mark.parametrize(("least", "decades"), [(1e-5, 0.6), (0.000123, 2.4), (3.0, 6.0)])
def test_ticks_of_logarithmic_profiles_do_not_collide(least, decades):
    value = least * 10 ** (decades / 2)
    parameters = [Parameter("k", "1/ms", least / 1e3, least * 1e9, scale="log")]
    u = np.random.default_rng(1).standard_normal(30)
    objective = curve_objective(lambda p: np.log(p) + 0 * u[:, None], np.log(value) + u, parameters)
    found = estimate(objective, objective.space.to_unit(np.array([[value]]))[:, 0], 30)
    values = least * np.logspace(0, decades, 21)
    rise = np.linspace(-1.3, 1.3, 21) ** 2 * 4
    unit = objective.space.to_unit(values[None])
    one = Profile("k", 0, values, rise, unit, 4.0, values[3], values[-4], False, False)
    figure = pictures.profiles_figure(found, [one] * 4, "profiles")
    assert_readable(figure)
    assert all(len(axis.get_xticks()) >= 2 for axis in every_axis(figure))


def test_intervals_are_written_with_the_digits_they_need():
    assert pictures.interval_text(1001.74, 999.8, 1003.7) == "1001.7 (999.8 to 1003.7)"
    assert pictures.interval_text(0.10399, 0.10389, 0.1041) == "0.10399 (0.10389 to 0.10410)"
    assert pictures.interval_text(5e7, 1e7, 9e7) == "50000000 (10000000 to 90000000)"
    assert pictures.interval_text(2e-9, 1.5e-9, 2.5e-9) == "2.00e-09 (1.50e-09 to 2.50e-09)"
    assert "bound" in pictures.interval_text(1.0, np.nan, np.nan)
    for text in (pictures.interval_text(1.0, 1.0, 1.0), pictures.interval_text(0.0, 0.0, 0.0)):
        assert "nan" not in text


EVERY = sorted((ROOT / "models").glob("*.yaml"))
#: One of them is tried first.
SCHEMES = [f for f in EVERY if f.stem in ("model_a",)], EVERY


def scheme_file(folder: Path, **changes) -> Path:
    document = {
        "name": "A name that is much longer than the drawing beneath it, of 2026 (v. 2)",
        "gates": {
            "h__slow_": {
                "power": 2,
                "alpha": "a*exp(z*v) + b*exp(-z*v) + a",
                "beta": "a/(1 + exp(v*z))",
            }
        },
        "current": {"conductance": "g", "reversal": "-90 mV"},
        "parameters": {
            "a": {"range": [0.01, 2], "unit": "1/ms", "value": 0.1},
            "b": {"range": [0.01, 2], "unit": "1/ms", "value": 0.1},
            "z": {"range": [0.01, 2], "unit": "1/mV", "value": 0.1},
            "g": {"range": [50, 5000], "unit": "nS", "value": 1000},
        },
    }
    path = folder / "scheme.yaml"
    path.write_text(dump_yaml({k: v for k, v in (document | changes).items() if v}))
    return path


def test_long_names_of_states_are_large_enough_to_read(tmp_path):
    assert_readable(scheme_figure(scheme_of(load_model(scheme_file(tmp_path)))))  # of gates
    states = ["Closed_far_away", "Closed_near_by", "Inactivated_slow"]
    rates = {f"{a} -> {b}": "a*exp(z*v)" for a, b in itertools.pairwise(states)}
    rates |= {f"{b} -> {a}": "b" for a, b in itertools.pairwise(states)}
    current = {"open": states[2:], "conductance": "g", "reversal": "-90 mV"}
    file = scheme_file(tmp_path, gates=None, states=states, rates=rates, current=current)
    figure = scheme_figure(scheme_of(load_model(file)))
    assert_readable(figure)
    names = [t for t in texts(figure) if t.get_text() in states]
    assert len(names) == 3
    assert min(t.get_fontsize() for t in names) >= 6.9
    circles = figure.axes[0].patches
    for text in names:
        box = text.get_window_extent()
        assert any(
            c.get_window_extent().x0 < box.x0 and box.x1 < c.get_window_extent().x1 for c in circles
        )


@pytest.mark.parametrize("file", slow_but(*SCHEMES), ids=lambda f: f.stem)
def test_schemes_are_readable(file):
    assert_readable(scheme_figure(scheme_of(load_model(file))))
