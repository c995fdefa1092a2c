"""The page of a batch: every well is found and described, choices are linked, texts do no harm."""

from __future__ import annotations

import base64
import copy
import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from channelfit.batch.page import plate_page
from channelfit.batch.page_data import (
    MOST_SAMPLES,
    columns_of,
    grids_of,
    place_of,
    plate_of,
    traces_of,
)
from channelfit.batch.page_figures import plate_figures, save_plate_figures
from channelfit.batch.page_order import spreads, stand_apart
from channelfit.batch.page_words import reasons_of
from channelfit.batch.table import WellTable, texts
from channelfit.front.main import main
from channelfit.results.report import print_figures
from support.browser import WIDE
from support.hostile import HOSTILE
from support.plates import PARAMETERS, labels, plate

PHONE = 390


@pytest.fixture(scope="module")
def wells():
    return plate(384)


@pytest.fixture(scope="module")
def html(wells, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("plate") / "plate.html"
    file.write_text(plate_page(*wells), encoding="utf-8")
    return file


def until(tab, condition: str, argument=None) -> None:
    """Waits for a condition of JavaScript; the page's policy lets playwright wait for none."""
    for _ in range(3000):
        if tab.evaluate(condition, argument):
            return
        tab.wait_for_timeout(50)
    raise AssertionError(condition)


def saved(tmp_path: Path, table, traces, facts) -> Path:
    file = tmp_path / "plate.html"
    file.write_text(plate_page(table, traces, facts), encoding="utf-8")
    return file


def page_data(text: str) -> dict:
    """Return the data in a page, as its script reads them."""
    return json.loads(re.search(r'id="page-data">(.*?)</script>', text, re.DOTALL)[1])["plate"]


def numbers(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind)


def cell(tab, label: str):
    """The cell of a well in the map."""
    number = tab.evaluate("label => plate.labels.indexOf(label)", label)
    return tab.locator(f'.cell[data-well="{number}"]')


def chosen(tab) -> list[str]:
    """The selected wells, as each part of the page shows them; they must agree."""
    by_map = tab.evaluate(
        "[...document.querySelectorAll('.cell[aria-selected=true]')]"
        ".map((one) => plate.labels[one.dataset.well]).sort()"
    )
    rings = tab.evaluate("model.get_model_by_name('pairs-rings').data.x.length")
    fitted = tab.evaluate(
        "[...state.chosen].filter((k) => plate.parameters.some("
        "(name) => Number.isFinite(numberOf(name, k)))).length"
    )
    assert rings == fitted
    by_state = tab.evaluate("[...state.chosen].map((k) => plate.labels[k]).sort()")
    assert by_map == by_state
    return by_map


@pytest.mark.integration
@pytest.mark.parametrize(("width", "dark"), [(PHONE, True), (WIDE, False)])
def test_a_plate_serves_everybody(page, html, width, dark):
    tab = page.drawn(html, width=width, dark=dark)
    page.check()
    assert tab.locator(".cell[data-well]").count() == 384
    tab.get_by_label("Color by").select_option("g")
    tab.get_by_label("Divide by").select_option("compound")
    cell(tab, "B05").click()
    page.check()


@pytest.mark.integration
def test_it_is_used_by_keyboard(page, html):
    tab = page.drawn(html)
    reached = page.tabbed()
    assert sum(one.startswith("div ") and "Well" not in one for one in reached) >= 1  # the map
    assert {"select color", "input find", "select across", "select columns", "button next"} <= set(
        reached
    )
    tab.locator('.grid [tabindex="0"]').focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp"):
        tab.keyboard.press(key)
    name = tab.evaluate("document.activeElement.getAttribute('aria-label')")
    assert name.startswith("A04, check, the residuals are")
    assert tab.locator("#readout-title").inner_text() == "Well A04"
    tab.keyboard.press("Enter")
    assert chosen(tab) == ["A04"]
    tab.keyboard.press("End")
    tab.keyboard.press(" ")
    assert chosen(tab) == ["A04", "A24"]
    tab.keyboard.press("Control+End")
    assert tab.evaluate("document.activeElement.getAttribute('aria-label')").startswith("P24")
    tab.keyboard.press("Escape")
    assert chosen(tab) == []
    tab.locator("#wells button.name").nth(3).focus()
    tab.keyboard.press("Enter")
    assert len(chosen(tab)) == 1
    tab.locator("#multiples button").nth(2).focus()
    tab.keyboard.press("Enter")
    assert tab.locator("#well-name").inner_text() == chosen(tab)[0]


@pytest.mark.integration
def test_failed_and_check_are_told_apart_without_color(page, html):
    tab = page.drawn(html)
    shape = "one => getComputedStyle(one).backgroundImage"
    shapes = {
        quality: tab.locator(f".cell.{quality}[data-well]").first.evaluate(shape)
        for quality in ("check", "failed")
    }
    assert tab.locator(".cell[data-well]:not(.check):not(.failed)").first.evaluate(shape) == "none"
    assert "gradient" in shapes["check"]
    assert "gradient" in shapes["failed"]
    assert shapes["check"] != shapes["failed"]
    tab.get_by_label("Color by").select_option("a1")
    assert tab.locator(".cell.failed[data-well]").first.evaluate(shape) == shapes["failed"]


@pytest.mark.integration
def test_what_is_chosen_in_one_part_is_chosen_in_all(page, html, wells):
    tab = page.drawn(html)
    table = wells[0]
    cell(tab, "C07").click()
    assert chosen(tab) == ["C07"]
    assert tab.locator("#well-name").inner_text() == "C07"
    row = tab.locator("#wells tr[data-chosen]")
    assert row.locator("th").inner_text() == "C07"  # the table turned to its rows
    assert row.locator("button").get_attribute("aria-pressed") == "true"
    cell(tab, "C09").click(modifiers=["Shift"])
    assert chosen(tab) == ["C07", "C09"]
    tab.locator("#wells tbody tr").nth(4).locator("td").nth(3).click()
    (one,) = chosen(tab)
    assert one == tab.locator("#wells tbody tr").nth(4).locator("th").inner_text()
    # a click on a point of the scatter, found by its values
    tab.locator("#across").select_option("g")
    tab.locator("#up").select_option("a3")
    at = list(table.columns["well"])
    wanted = max(
        (k for k in range(384) if table.columns["quality"][k] == "ok"),
        key=lambda k: table.columns["g"][k],
    )
    _click_point(tab, "pairs-0-plot", "pairs-points", wanted)
    assert chosen(tab) == [at[wanted]]
    assert cell(tab, at[wanted]).get_attribute("aria-selected") == "true"
    assert tab.locator("#well-name").inner_text() == at[wanted]
    tab.get_by_role("button", name="Clear").click()
    assert chosen(tab) == []
    _click_point(tab, "pairs-0-plot", "pairs-points", wanted)  # the same one again
    assert chosen(tab) == [at[wanted]]
    assert page.errors == []


def _click_point(tab, place: str, source: str, well: int) -> None:
    plot = tab.locator(f"#{place}")
    plot.scroll_into_view_if_needed()
    tab.wait_for_timeout(300)
    x, y = tab.evaluate(
        """([place, source, well]) => {
            const view = Bokeh.index[plotOf(place)] || Bokeh.index.get_by_id(plotOf(place));
            const {data} = model.get_model_by_name(source);
            const p = data.well.indexOf(well);
            return [view.frame.x_scale.compute(data.x[p]), view.frame.y_scale.compute(data.y[p])];
        }""",
        [place, source, well],
    )
    box = plot.bounding_box()
    tab.mouse.click(box["x"] + x, box["y"] + y)
    until(tab, "well => state.chosen.has(well)", well)


@pytest.mark.integration
def test_a_box_in_the_scatter_and_a_reason_select_their_wells(page, html, wells):
    tab = page.drawn(html)
    plot = tab.locator("#pairs figure .plot:not([hidden]), figure.pairs .plot:not([hidden])").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    tab.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.2 * box["height"])
    tab.mouse.down()
    tab.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.8 * box["height"], steps=6)
    tab.mouse.up()
    until(tab, "state.chosen.size > 0")
    some = chosen(tab)
    assert 20 < len(some) < 374
    tab.get_by_label("only selected").check()
    assert f"{len(some)} of 384 wells shown" in tab.locator("#count").inner_text()
    assert tab.locator("#wells tbody tr").count() == min(50, len(some))
    table = tab.get_by_role("region", name="Why wells failed or are to be checked")
    rows = table.locator("tbody tr").all_inner_texts()
    assert any(re.match(r"the residuals are … times the noise\t13\t0", row) for row in rows)
    assert any("GOhm" in row and re.search(r"\t10\t10", row) for row in rows)
    table.get_by_role("button", name=re.compile("seal")).click()
    failed = wells[0].columns["well"][wells[0].columns["quality"] == "failed"]
    assert chosen(tab) == sorted(failed)


@pytest.mark.integration
def test_the_table_is_sorted_and_filtered(page, html, wells):
    tab = page.drawn(html)
    columns = wells[0].columns
    tab.get_by_label("failed 10").uncheck()
    tab.get_by_label("check 13").uncheck()
    assert tab.locator("#count").inner_text() == "361 of 384 wells shown"
    head = tab.locator("#wells thead").get_by_role("button", name=re.compile("^g "))
    head.click()
    ok = columns["quality"] == "ok"
    ascending = list(columns["well"][ok][np.argsort(columns["g"][ok], kind="stable")])
    assert tab.locator("#wells tbody th").all_inner_texts() == ascending[:50]
    assert tab.locator("#wells th[aria-sort]").get_attribute("aria-sort") == "ascending"
    head.click()
    assert tab.locator("#wells tbody th").all_inner_texts() == ascending[::-1][:50]
    tab.get_by_role("button", name="Next rows").click()
    assert tab.locator("#wells tbody th").all_inner_texts() == ascending[::-1][50:100]
    tab.get_by_label("Find").fill("dofetilide")
    until(tab, "!find('count').textContent.startsWith('361')")
    n = int(np.count_nonzero(ok & (columns["compound"] == "dofetilide")))
    assert tab.locator("#count").inner_text() == f"{n} of 384 wells shown"
    assert tab.locator(".cell.aside").count() == 384 - n
    tab.get_by_label("Columns").select_option("all")
    assert tab.locator("#wells thead th").count() == len(columns) + 2  # misfit and distance
    assert page.errors == []


@pytest.mark.integration
def test_traces_and_numbers_in_the_page_are_those_of_the_wells(page, html, wells):
    tab = page.drawn(html)
    traces = wells[1]
    for label, k in (("D05", 76), ("P01", 360)):
        cell(tab, label).click()
        kept = tab.evaluate("traces.of(state.active)")
        data, fit = (np.array(kept[what]) for what in ("data", "fit"))
        span = np.ptp(traces["data"][k])
        assert np.abs(data - traces["data"][k]).max() < 2e-5 * span
        assert np.abs(fit - traces["fit"][k]).max() < 2e-5 * span
        apart = np.array(kept["residual"])
        true = traces["fit"][k].astype(float) - traces["data"][k]
        assert np.abs(apart - true).max() < 2e-5 * np.ptp(true)
        drawn = tab.evaluate("Array.from(model.get_model_by_name('well-fit').data.y)")
        assert np.allclose(drawn, fit)
    columns, k = wells[0].columns, 76
    cell(tab, "D05").click()
    row = tab.locator("#values tbody tr").nth(6)
    shown = [text.replace("−", "-") for text in row.locator("th, td").all_inner_texts()]
    assert (shown[0], shown[3]) == ("g", "nS")
    assert float(shown[1]) == pytest.approx(columns["g"][k], rel=1e-3)
    ends = [columns[f"g_{end}"][k] for end in ("lower", "upper")]
    assert [float(part) for part in shown[2].split(" to ")] == pytest.approx(ends, rel=1e-2)
    assert float(shown[4]) == pytest.approx(np.nanmedian(columns["g"]), rel=1e-3)


def test_a_perfect_fit_leaves_what_it_leaves(wells):
    """Samples of 16 bits must not make residuals of their own."""
    _, traces, _ = wells
    tiny = {**traces, "data": traces["fit"] + 1e-6 * np.sin(np.arange(600.0))}
    fitted = np.flatnonzero(np.isfinite(traces["fit"]).all(axis=1))
    tiny["fit"] = tiny["fit"].astype(float)
    kept = traces_of(tiny, 384, fitted)
    first = fitted[0]
    low, high = numbers(kept["residual_span"], "<f4")[:2] / kept["per_pA"]
    true = tiny["fit"][first] - tiny["data"][first]
    assert low == pytest.approx(true.min(), rel=1e-5)
    assert high == pytest.approx(true.max(), rel=1e-5)


@pytest.mark.integration
def test_distributions_and_the_map_show_the_wells_that_are_shown(page, html, wells):
    tab = page.drawn(html)
    columns = wells[0].columns

    def counted() -> float:
        bars = tab.evaluate("model.get_model_by_name('spread-6-bars').data")
        top, bottom = (np.array(bars[side]) for side in ("top", "bottom"))
        return float(np.sum(top - bottom))

    one = tab.evaluate("model.get_model_by_name('spread-6-points').data")
    fitted = np.isfinite(columns["g"])
    assert len(one["x"]) == np.count_nonzero(fitted)
    assert np.all(np.diff(one["x"]) >= 0)
    assert np.all(np.diff(one["y"]) < 0)
    middle = float(np.sort(columns["g"][fitted])[round(0.5 * (fitted.sum() - 1))])
    assert f"median {middle:.4g} nS" in tab.locator("#spread-6-words").inner_text()
    before = counted()
    tab.get_by_label("Divide by").select_option("compound")
    assert counted() == pytest.approx(before, rel=0.2)  # the same bars, in three parts
    keys = tab.locator("#divide-key li").all_inner_texts()
    assert [key.strip() for key in keys] == ["control", "dofetilide", "verapamil"]
    colors = tab.evaluate("new Set(model.get_model_by_name('pairs-points').data.color).size")
    assert colors == 3
    tab.get_by_label("check 13").uncheck()
    shown = tab.evaluate("model.get_model_by_name('spread-6-points').data.x.length")
    assert shown == np.count_nonzero(columns["quality"] == "ok")
    assert page.errors == []


def test_sizes_of_plates_and_wells_without_a_place():
    columns = {
        "well": texts(["A01", "A01", "A01", "cell 1", "x"]),
        "plate": texts(["one", "two", "two", "one", "two"]),
        "row": texts(["", "", "", "", "C"]),
        "column": texts(["", "", "", "", "07"]),
    }
    for n, size in ((5, (8, 12)), (384, (16, 24)), (1536, (32, 48))):
        (one,), _ = grids_of(plate_of(WellTable({"well": texts(labels(n))}), {}))
        assert (one.rows, one.columns, len(one.wells)) == (*size, n)
    (*plates, loose), shared = grids_of(plate_of(WellTable(columns), {}))
    assert [(one.name, one.wells) for one in plates] == [
        ("one", [(0, 0, 0)]),
        ("two", [(0, 0, 1), (2, 6, 4)]),
    ]
    assert loose.loose
    assert [k for *_, k in loose.wells] == [2, 3]
    assert shared == 1


@pytest.mark.integration
def test_ten_thousand_wells_still_work(page, tmp_path):
    table, traces, facts = plate(10_000, 300)
    file = saved(tmp_path, table, traces, facts)
    text = file.read_text(encoding="utf-8")
    assert file.stat().st_size < 15e6
    kept = page_data(text)["traces"]
    wells = numbers(kept["wells"], "<u4")
    points = len(numbers(kept["time"], "<f4"))
    assert len(wells) * points <= MOST_SAMPLES
    assert kept["without"] == 10_000 - len(wells) > 0
    assert f"The traces of the {kept['without']:,} wells that come last" in text
    assert f"Of {300:,} points of each well, extremes of short stretches" in text
    first = numbers(page_data(text)["order"], "<u4")[: len(wells)]
    assert np.array_equal(wells, first)
    tab = page.drawn(file)
    assert tab.locator(".cell[data-well]").count() == 10_000
    assert tab.locator("#wells tbody tr").count() == 50
    tab.get_by_label("Find").fill("cell 09999")
    until(tab, "find('count').textContent.startsWith('1 of')")
    assert tab.locator("#count").inner_text() == "1 of 10,000 wells shown"
    tab.locator("#multiples button").click()
    assert tab.locator("#well-name").inner_text() == "cell 09999"
    assert page.errors == []


def test_extremes_survive_when_points_are_left_out():
    draw = np.random.default_rng(0)
    data = draw.standard_normal((4000, 301))
    data[7, 299] = 50.0
    traces = {"time_ms": np.arange(301.0), "data": data, "fit": 0.5 * data}
    kept = traces_of(traces, 4000, np.arange(4000))
    spans = numbers(kept["data_span"], "<f4").reshape(-1, 2)
    rows = len(spans)
    assert rows < 4000
    assert np.allclose(spans[:, 1], data[:rows].max(axis=1), rtol=1e-6)
    assert np.allclose(spans[:, 0], data[:rows].min(axis=1), rtol=1e-6)
    assert kept["thinned"] == 301


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["none", "one", "unplaced", "bare", "failed"])
def test_plates_of_few_wells_without_places_or_traces(page, tmp_path, kind):
    n = {"none": 0, "one": 1, "unplaced": 60, "bare": 30, "failed": 20}[kind]
    table, traces, facts = plate(n, 40) if n else (WellTable({"well": texts([])}), {}, {})
    if kind == "unplaced":
        table.columns["well"] = texts([f"cell {k}" for k in range(60)])
    if kind == "bare":
        table, traces, facts = WellTable(table.columns), {}, {}
    if kind == "failed":
        for name in PARAMETERS:
            for suffix in ("", "_error", "_lower", "_upper"):
                table.columns[f"{name}{suffix}"][:] = np.nan
        table.columns["quality"][:] = "failed"
        traces["fit"][:] = np.nan
    tab = page.drawn(saved(tmp_path, table, traces, facts))
    assert tab.locator(".cell[data-well]").count() == n
    if kind == "failed":
        assert "20 of 20 wells have no fit" in tab.locator(".caution").inner_text()
    if kind == "unplaced":  # they lie in their order
        tab.locator('.grid [tabindex="0"]').focus()
        tab.keyboard.press("ArrowDown")
        assert tab.evaluate("document.activeElement.dataset.well") == "24"
    if kind == "bare":
        assert tab.get_by_text("no trace in this page").count() == 24
        assert tab.locator("#well-none").is_visible()
        assert (tab.locator("#spreads").count(), tab.locator("#population").count()) == (1, 0)
    assert page.errors == []
    assert page.violations() == []


def test_what_stands_apart():
    """A third of the plate that hides nothing; a well off the line of others; a worse fit."""
    draw = np.random.default_rng(2)
    values = np.exp(0.1 * draw.standard_normal((100, 4)))
    values[:30] *= 50
    assert set(stand_apart(values, np.ones(100)).order[:30]) == set(range(30))
    x = draw.standard_normal(200)
    values = np.exp(np.stack([x, x + 0.05 * draw.standard_normal(200)], axis=1))
    values[17] = np.exp([1.0, -1.0])  # each is usual, their combination is not
    apart = stand_apart(values, np.ones(200))
    assert apart.order[0] == 17
    assert apart.correlations[0, 1] > 0.95
    misfit = np.exp(0.02 * draw.standard_normal(50))
    misfit[3], misfit[4] = 3.0, 0.2
    apart = stand_apart(np.ones((50, 2)), misfit)
    assert apart.order[0] == 3
    assert apart.misfit[4] == 0
    assert apart.distance[3] > 20


@pytest.mark.parametrize("column", [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 1.0], []])
def test_spreads_of_degenerate_columns_are_finite(column):
    assert np.isfinite(spreads(np.array(column))).all()
    values = np.array(column)[:, None] * np.ones((1, 2))
    assert np.isfinite(stand_apart(values, np.full(len(column), np.nan)).distance).all()


def test_reasons_with_other_numbers_are_counted_together():
    reasons = ["misfit 2.31 at k12", "misfit 1.9e-3 at k12; seal −4 GOhm", "", "seal 12 GOhm"]
    columns = {
        "well": texts(list("abcd")),
        "reason": texts(reasons),
        "quality": texts(["check", "failed", "ok", "failed"]),
    }
    rows = reasons_of(plate_of(WellTable(columns), {}))
    assert [(row["text"], row["count"], row["failed"]) for row in rows] == [
        ("misfit … at k12", 2, 1),
        ("seal … GOhm", 2, 2),
    ]
    # and they are whole however many a well has
    reason = "; ".join(f"number {k * 'i'} is at its upper bound" for k in range(1, 41))
    made = plate_of(WellTable({"well": texts(["a", "b"]), "reason": texts([reason, reason])}), {})
    assert [row["count"] for row in reasons_of(made)] == [2] * 40
    (found,) = [row for row in columns_of(made, {}) if row["key"] == "reason"]
    assert reason in found["words"]


def test_the_map_comes_first_and_rarer_reasons_fold_out(wells):
    table, traces, facts = wells
    reason = texts([f"{chr(97 + k % 9)} is at its upper bound" for k in range(384)])
    html = plate_page(WellTable({**table.columns, "reason": reason}, table.about), traces, facts)
    assert html.index('id="map"') < html.index('id="wrong"') < html.index('id="well"')
    seen, folded = html.split("<details>")[0], html.split("<details>")[1].split("</details>")[0]
    assert (seen.count("data-reason="), folded.count("data-reason=")) == (6, 3)
    assert 'data-reason="6"' in folded
    assert "3 rarer reasons" in folded


EVIL = [*HOSTILE, "\x1b[31mred\x07", "__proto__", "constructor"]


@pytest.mark.integration
def test_hostile_texts_are_nothing_but_texts(page, tmp_path):
    table, traces, facts = plate(48, 20)
    facts = copy.deepcopy(facts)
    columns = dict(table.columns)
    for shift, key in enumerate(("well", "file", "compound", "quality", "reason")):
        column = columns[key].copy()
        column[::2] = [EVIL[(k + shift) % len(EVIL)] for k in range(24)]
        columns[key] = column
    for name in EVIL:
        columns[name] = texts([name] * 20 + [f"{name}2"] * 28)
        columns[f"{name} 3"] = np.arange(48.0)
    columns["plate"] = texts([EVIL[k % len(EVIL)] for k in range(48)])
    every = " ".join(EVIL)
    facts["metadata"] = ["compound", *EVIL, *(f"{name} 3" for name in EVIL)]
    for key in ("title", "description", "model", "model_source", "protocol", "search", "command"):
        facts[key] = every
    facts["protocol_source"] = facts["file"] = facts["backend"] = every
    facts["files"] = [{"what": name, "file": name, "sha256": name} for name in EVIL]
    facts["warnings"] = [*EVIL, {"place": every, "value": every, "advice": every}]
    facts["left_out"] = [{"recording": name, "reason": name} for name in EVIL]
    facts["versions"] = {"channelfit": "0.9", every: every}
    for key in ("population", "groups"):
        facts[key].update(method=every, remarks=EVIL)
    facts["population"]["rows"][0].update(name=every, unit=every, kind=every)
    facts["groups"].update(of=EVIL, units={name: name for name in EVIL})
    facts["groups"]["rows"][0].update(group=every, wells=every, center={EVIL[0]: 1.0})
    about = dict(table.about)
    about["g"] = type(about["g"])(every, every)
    file = saved(tmp_path, WellTable(columns, about), traces, facts)
    raw = file.read_text(encoding="utf-8")
    assert "\u202e" not in raw
    assert "\x1b" not in raw
    tab = page.drawn(file)
    for key in ("compound", EVIL[0], f"{EVIL[3]} 3", "__proto__"):
        tab.get_by_label("Color by").select_option(tab.evaluate("k => columns.get(k).key", key))
    for key in (EVIL[1], "constructor"):
        tab.get_by_label("Divide by").select_option(tab.evaluate("k => columns.get(k).key", key))
    tab.get_by_label("Columns").select_option("all")
    tab.locator(".cell[data-well]").nth(7).click()
    tab.locator(".cell[data-well]").nth(8).hover()
    page.check_unharmed()


def test_the_printed_map_has_the_wells_at_their_places():
    table, _, facts = plate(384, 8)
    quality, *_ = plate_figures(table, facts)
    (axis,) = quality.axes
    crosses, triangles = axis.get_lines()
    for line, name in ((crosses, "failed"), (triangles, "check")):
        found = {(int(y), int(x)) for x, y in zip(*line.get_data(), strict=True)}
        labels = table.columns["well"][table.columns["quality"] == name]
        assert found == {place_of(label) for label in labels}
    assert [text.get_text() for text in axis.get_yticklabels()] == list("ABCDEFGHIJKLMNOP")


def test_hostile_names_are_drawn_as_names(tmp_path):
    columns = {
        "well": texts(["$x", "\\frac{", "<b>"]),
        "plate": texts(["$\\frac{1}{0}$"] * 3),
        "$\\frac{1}{0}$": np.array([1.0, 2.0, 3.0]),
    }
    facts = {"parameters": ["$\\frac{1}{0}$"]}
    files = save_plate_figures(WellTable(columns), facts, tmp_path, ["svg"])
    assert "$\\frac{1}{0}$" in files[-1].read_text(encoding="utf-8")
    assert plate_figures(WellTable({"well": texts([])}), {}) == []


@pytest.mark.integration
def test_the_figures_of_a_batch_are_made_from_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(print_figures, "_DPI", 50)
    table, _, _ = plate(12, 8)
    run = tmp_path / "run"
    run.mkdir()
    table.write(run)
    before = sorted(file.name for file in run.iterdir())
    done = CliRunner().invoke(main, ["report", str(run), "--figures", "svg,png"])
    assert done.exit_code == 0, done.output
    names = ("distributions", "plate", "plate_parameters")
    made = sorted(f"{name}.{kind}" for name in names for kind in ("svg", "png"))
    assert sorted(file.name for file in (run / "figures").iterdir()) == made
    assert sorted(file.name for file in run.iterdir()) == sorted([*before, "figures"])
    for words, message in (
        ([str(run)], "--figures makes figures"),
        ([str(run), "--figures", "gif"], "unknown kind"),
        ([str(run), "--figures", "pdf", "--out", "x.html"], "leave this out"),
        ([str(run), str(tmp_path)], "give it alone"),
    ):
        refused = CliRunner().invoke(main, ["report", *words])
        assert refused.exit_code == 2
        assert message in " ".join(refused.output.split()), refused.output
