"""The report of a fit in a browser: complete in itself, usable by all, and harmless."""

from __future__ import annotations

import base64
import copy
import html
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.ndimage import maximum_filter1d, minimum_filter1d

import channelfit as cf
from channelfit.problem.protocol import load_protocol
from channelfit.results.fit_folder import picture_of
from channelfit.results.report.page import report_page
from channelfit.results.report.page_content import reported_fit
from channelfit.results.report.page_facts import facts_of
from channelfit.results.report.page_figures import packed_samples
from channelfit.results.report.report_writer import write_report
from channelfit.results.report.trace_view import TraceView
from channelfit.results.report.traces import TracePicture, Traces
from channelfit.results.run_state import json_text
from support.browser import NARROW, WIDE
from support.hostile import HOSTILE
from support.little import LITTLE
from support.places import ROOT

pytestmark = pytest.mark.integration


def run(fit: cf.Fit, label: str = "one"):
    """What a report tells of a fit."""
    facts = facts_of(fit._plan, fit._result, json_text(fit.summary))
    return reported_fit(label, picture_of(fit._plan, fit._winner, fit._result.evaluations), facts)


def little_fit(noise: float = 2.0, **names: str) -> cf.Fit:
    """A channel of two states, fitted to noisy currents of a family of steps."""
    model = cf.Model.from_yaml(yaml.safe_dump({**LITTLE, **names}))
    steps = cf.Protocol.steps(
        [-60, -30, 0, 30, 60, 90], 60, before=5, after=20, holding=-80, sampling=0.5
    )
    current = cf.simulate(model, steps).current
    draw = np.random.default_rng(3)
    data = current[0] if isinstance(current, list) else current
    noisy = cf.Experiment(steps, data + noise * draw.standard_normal(data.shape))
    return cf.fit(model, noisy, seed=1, progress=False)


@pytest.fixture(scope="module")
def fit() -> cf.Fit:
    return little_fit()


@pytest.fixture(scope="module")
def report(fit: cf.Fit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    facts = facts_of(fit._plan, fit._result, json_text(fit.summary))
    write_report(picture_of(fit._plan, fit._winner, 1), facts, file)
    return file


def lines(tab, name: str) -> list:
    """What the script has given Bokeh to draw: a list of currents for each sweep."""
    found = tab.evaluate(
        "name => Bokeh.documents[0].get_model_by_name(name).data.ys.map((y) => Array.from(y))", name
    )
    return [[np.nan if y is None else y for y in row] for row in found]


@pytest.mark.parametrize(("width", "dark"), [(NARROW, False), (WIDE, True)])
def test_a_report_serves_everybody(page, report, width, dark):
    tab = page.drawn(report, width=width, dark=dark)
    page.check()
    canvas = tab.locator(".plot").first
    assert canvas.bounding_box()["height"] > 60
    color = "Bokeh.documents[0].roots()[0].left[0].axis_label_text_color"
    before = tab.evaluate(color)
    page.look(dark=not dark)  # which colors follow while the page is open
    tab.wait_for_timeout(200)
    assert tab.evaluate(color) != before


def test_it_may_ask_nobody_for_anything(page, report):
    """Its policy forbids it: a picture from elsewhere, a script, a call, and `eval`."""
    tab = page.drawn(report)
    tab.evaluate(
        """() => {
            const image = document.createElement("img");
            image.alt = ""; image.src = "http://127.0.0.1:9/x.png";
            document.querySelector("main").append(image);
            const script = document.createElement("script");
            script.textContent = "document.title = 'harmed'";
            document.body.append(script);
        }"""
    )
    refused = tab.evaluate("fetch('http://127.0.0.1:9/').then(() => 'asked', () => 'refused')")
    assert refused == "refused"
    assert tab.title() != "harmed"
    errors = " ".join(page.errors)
    for part in ("img-src", "script-src", "connect-src"):
        assert part in errors.replace("default-src", "connect-src")
    head = html.unescape(report.read_text(encoding="utf-8").partition("<script")[0])
    assert "default-src 'none'" in head
    assert "unsafe-eval" not in head
    assert not re.search(r'(src|href)="(https?:)?//', head)


def test_sweeps_and_times_are_chosen_with_the_keyboard(page, report, fit):
    tab = page.drawn(report)
    assert len(lines(tab, "e0-data")) == 6
    assert np.allclose(np.array(lines(tab, "e0-residual0")), fit.residuals[0], atol=2e-4)
    tab.get_by_role("combobox", name="Sweep").focus()
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowDown")
    (shown,) = lines(tab, "e0-data")
    assert np.allclose(shown, fit._plan.problem.experiments[0].recording.current_pA[1], rtol=1e-6)
    tab.get_by_role("spinbutton", name="From").fill("10")
    tab.get_by_role("spinbutton", name="From").press("Enter")
    tab.get_by_role("spinbutton", name="to").fill("20")
    tab.get_by_role("spinbutton", name="to").press("Enter")
    tab.wait_for_timeout(300)
    (shown,) = lines(tab, "e0-fit0")
    part = fit.traces[0][1][19:41]  # one sample more on either side
    assert np.allclose(shown, part, rtol=1e-5, atol=1e-4)
    tab.get_by_role("button", name="Whole sweep").focus()
    tab.keyboard.press("Enter")
    tab.wait_for_timeout(300)
    assert len(lines(tab, "e0-fit0")[0]) == fit.traces[0].shape[1]
    plot = tab.locator("#e0-current-plot")  # dragging enlarges
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    tab.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 50)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 80, steps=5)
    tab.mouse.up()
    tab.wait_for_timeout(300)
    start, end = (float(tab.locator(f"#e0-{name}").input_value()) for name in ("from", "to"))
    assert 0 < end - start < 60
    page.drawn(report)
    reached = page.tabbed()
    assert {"select e0-sweep", "input e0-from", "input e0-to", "button e0-whole"} <= set(reached)
    assert "div " not in reached  # nothing that says nothing


@pytest.mark.parametrize(("start", "end"), [(0.0, 8.0), (2.9, 3.4)])
def test_the_command_is_drawn_as_it_was_given(page, fit, tmp_path, start, end):
    """Of a protocol with steps and with many thousand samples of sines, near or far."""
    command = load_protocol(ROOT / "protocols" / "herg_sine_wave.yaml")
    current = np.sin(command.times_ms / 300)[None, :]
    altered = replace(run(fit), panels=(Traces(command, current, current + 0.1),))
    file = tmp_path / "report.html"
    file.write_text(report_page([altered]), encoding="utf-8")
    tab = page.drawn(file)
    tab.evaluate("([a, b]) => experiments[0].range.setv({start: a, end: b})", [start, end])
    tab.wait_for_timeout(400)
    source = "Bokeh.documents[0].get_model_by_name('e0-command').data"
    xs, ys = (np.array(tab.evaluate(f"Array.from({source}.{which}[0])")) for which in ("xs", "ys"))
    t = command.times_ms / 1000
    seen = (t >= start) & (t <= end)
    true = command.command()[0]
    drawn = np.interp(t[seen], xs, ys)
    # where there are more samples than pixels, each stretch is drawn as its least and its largest
    stretch = 2 * int(np.ceil(seen.sum() / 900)) + 3
    assert stretch < 0.003 * len(t) / (1 if end - start > 2 else 8)
    low, high = minimum_filter1d(true[seen], stretch), maximum_filter1d(true[seen], stretch)
    assert (drawn >= low - 1e-3).all()
    assert (drawn <= high + 1e-3).all()
    assert drawn.max() == pytest.approx(true[seen].max(), abs=1e-3)


def test_a_long_recording_is_drawn_by_its_extremes_and_says_so(fit):
    panel = run(fit).panels[0]
    whole, thin = (packed_samples(TraceView(panel), most) for most in (10**6, 300))
    assert not whole["thinned"]
    assert thin["thinned"]
    kept = np.frombuffer(base64.b64decode(thin["sweeps"][5]["data"]), "<f4")
    assert len(kept) < 0.7 * panel.data.shape[1]
    ends = np.float32([panel.data[5].min(), panel.data[5].max()])
    assert np.array_equal([kept.min(), kept.max()], ends)


@pytest.mark.parametrize("name", ["".join(HOSTILE[:3]), "".join(HOSTILE[3:])])
def test_hostile_names_are_nothing_but_names(page, fit, tmp_path, name):
    told = run(fit, name)
    summary = copy.deepcopy(dict(fit.summary))
    summary.update(name=name, model=name, description=name, command=name, stop_reason=name)
    summary["warnings"] = [{"place": name, "value": name, "advice": name}]
    summary["experiments"][0].update(protocol=name, recording=name, protocol_source=name)
    summary["files"] = [{"what": name, "file": name, "sha256": name}]
    summary["parameters"][name] = dict(summary["parameters"]["g"], unit=name, note=name)
    facts = replace(
        facts_of(fit._plan, fit._result, "{}"), summary_json=json.dumps(summary), scheme=None
    )
    scheme = replace(told.scheme, name=name, source=name)
    panels = (replace(told.panels[0], title=name, subtitle=(name,)),)
    evil = replace(reported_fit(name, TracePicture(panels), facts), scheme=scheme)
    file = tmp_path / "report.html"
    file.write_text(report_page([evil], [[name]]), encoding="utf-8")
    page.drawn(file)
    page.check_unharmed()
    assert "\u202e" not in file.read_text(encoding="utf-8")


def test_several_runs_share_what_they_have_in_common(page, tmp_path, fit):
    other = little_fit(noise=2.0)
    different = little_fit(noise=4.0)
    file = tmp_path / "several.html"
    file.write_text(
        report_page([run(fit, "a"), run(other, "b"), run(different, "c")]), encoding="utf-8"
    )
    tab = page.drawn(file)
    assert page.errors == []
    assert page.violations() == []
    assert [len(lines(tab, f"e0-fit{k}")) for k in (0, 1)] == [6, 6]
    assert lines(tab, "e1-fit0")
    assert tab.locator("article").count() == 2
    heads = tab.locator("[aria-label='Parameters of all fits'] thead th").all_inner_texts()
    assert heads == ["Parameter", "a", "b", "c", "Unit"]
    page.look(width=NARROW)
    assert page.overflow() == 0
