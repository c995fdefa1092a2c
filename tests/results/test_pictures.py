"""Pictures as a reader sees them: no text lies on another or is cut off, nothing that matters is
hidden, and what happens in a short time is enlarged. Measured with the renderer."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace

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
from channelfit.results.report import page, scheme
from channelfit.results.report import uncertainty_figures as pictures
from channelfit.results.report.page_facts import scheme_of
from channelfit.results.report.plots import save, traces_figure
from channelfit.results.report.scheme import scheme_figure
from channelfit.results.report.traces import Traces, fitted
from channelfit.results.uncertainty.estimate import estimate
from channelfit.results.uncertainty.profiles import profiles
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


@pytest.mark.parametrize(("model", "protocol"), slow_but(SIMULATED[:1], SIMULATED))
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


def axis_of(figure: Figure, what: str) -> Axes:
    return next(axis for axis in every_axis(figure) if axis.get_ylabel().startswith(what))


def lines_of(axis: Axes, y: np.ndarray) -> list:
    return [line for line in axis.lines if np.array_equal(line.get_ydata(), y, equal_nan=True)]


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


def enlarged(figure: Figure) -> list[Axes]:
    return [axis for axis in every_axis(figure) if axis.get_xlabel().endswith("enlarged")]


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


EVERY = sorted((ROOT / "models").glob("*.yaml"))
#: One of them is tried first.
SCHEMES = [f for f in EVERY if f.stem in ("model_a",)], EVERY


@pytest.mark.parametrize("file", slow_but(*SCHEMES), ids=lambda f: f.stem)
def test_schemes_are_readable(file):
    assert_readable(scheme_figure(scheme_of(load_model(file))))


def test_a_scheme_is_drawn_once_and_again_when_it_changes(tmp_path, monkeypatch):
    """What is kept is what would be drawn."""
    monkeypatch.setenv("CHANNELFIT_CACHE", str(tmp_path))
    drawn: list[str] = []

    def counted(one):
        drawn.append(one.name)
        return scheme_figure(one)

    monkeypatch.setattr(scheme, "scheme_figure", counted)
    svg = page.scheme_svg.__wrapped__
    first = scheme_of(load_model(ROOT / "models" / "model_a.yaml"))
    step = first.chains[0].transitions[0]
    steps = (replace(step, math_text="k_7"), *first.chains[0].transitions[1:])
    other = replace(first, chains=(replace(first.chains[0], transitions=steps),))
    texts = [svg(one, 0) for one in (first, other, first, other)]
    assert len(drawn) == 2
    assert texts[:2] == texts[2:] == [page._drawn(one, 0) for one in (first, other)]
    assert texts[0] != texts[1]
    assert svg(first, 1) != texts[0]
