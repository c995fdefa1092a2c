"""The pages of `channelfit watch` in a browser: complete, quiet, usable by anyone, and live."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from channelfit.batch.page import plate_page
from support.browser import NARROW, WIDE
from support.places import MODELS
from support.plates import plate
from support.watched import GONE, made_batch, made_run, serving

pytestmark = pytest.mark.integration

MODEL = MODELS / "model_b.yaml"
HOSTILE = '<img src=x onerror="alert(1)"><script>alert(2)</script>\u202e$$\\frac{1}{2}$$'
LOOKS = [(WIDE, True), (NARROW, False)]
#: How many pixels of a canvas have been drawn on.
_DRAWN = """id => {
    const seek = (root) => [...root.querySelectorAll("*")].flatMap((one) => [
        ...(one.tagName === "CANVAS" ? [one] : []),
        ...(one.shadowRoot ? seek(one.shadowRoot) : []),
    ]);
    return Math.max(0, ...seek(document.getElementById(id)).map((canvas) => {
        if (!canvas.width || !canvas.height) return 0;
        const copy = Object.assign(document.createElement("canvas"),
            {width: canvas.width, height: canvas.height});
        const own = copy.getContext("2d", {willReadFrequently: true});
        own.drawImage(canvas, 0, 0);
        const all = own.getImageData(0, 0, canvas.width, canvas.height).data;
        let n = 0;
        for (let k = 3; k < all.length; k += 4) n += all[k] > 0;
        return n;
    }));
}"""


def until(holds: Callable[[], object], tab, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            sizes = tab.evaluate("""() => [...document.querySelectorAll("canvas, .plot")].map(
                (one) => [one.tagName, one.id, one.clientWidth, one.clientHeight])""")
            pytest.fail(f"it has not happened; {sizes} in\n{tab.locator('body').inner_text()}")
        tab.wait_for_timeout(50)


def drawn(tab, name: str) -> int:
    return tab.evaluate(_DRAWN, name)


def has_text(tab, selector: str, text: str, seconds: float = 300.0) -> None:
    until(lambda: text in tab.locator(selector).inner_text(), tab, seconds)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """The folder of a small finished fit."""
    folder = tmp_path_factory.mktemp("fitted") / "cell 7"
    small = ["--backend", "cpu", "--population", "20", "--generations", "30", "--quiet"]
    words = ["optimize", MODEL, *small, "--out", folder]
    subprocess.run([sys.executable, "-m", "channelfit", *words], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def queue(tmp_path_factory, fitted):
    """A folder with a run of each state."""
    place = tmp_path_factory.mktemp("runs")
    shutil.copytree(fitted, place / "cell 7")
    (place / "cell 7" / "report.html").write_text(
        "<!doctype html><title>r</title><p id=a></p><script>a.textContent = 'a report'</script>"
    )
    made_run(place / "one that runs", best_cost=4.0)
    made_run(place / "one that was killed", process=GONE, best_cost=9.0)
    made_run(place / "one that failed", state="failed", reason="no space is left")
    made_run(place / "one stopped", state="interrupted", reason="interrupted")
    (place / "one unclear").mkdir()
    (place / "one unclear" / ".running").touch()
    return place


# --- a queue --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_the_queue_is_whole_and_for_everyone(width, dark, page, queue):
    with serving(queue) as server:
        tab = page.open(server.address, width, dark)
        tab.locator("#runs tbody tr").nth(5).wait_for()
        page.check()
        states = ("failed", "finished", "interrupted", "killed", "running", "unknown")
        news = tab.locator("#news").inner_text().split(", ")
        assert sorted(news) == [f"1 {state}" for state in states]
        assert tab.locator("#runs tbody tr").count() == 6
        assert tab.locator("#runs .state.killed").count() == 1
        assert "process is gone" in tab.locator("#runs").inner_text()


def test_the_queue_is_used_by_keyboard(page, queue):
    with serving(queue) as server:
        tab = page.open(server.address)
        tab.locator("#runs tbody tr").nth(5).wait_for()
        reached = page.tabbed()
        assert reached[0] == "input filter"
        buttons = [one[7:] for one in reached if one.startswith("button")]
        assert buttons == ["Run", "State", "Best cost", "Generation", "Time", "Started"]
        assert sum(one.startswith("a ") for one in reached) == 7  # one of them with a report
        tab.locator("th[data-order=cost] button").focus()
        tab.keyboard.press("Enter")
        assert tab.locator("th[data-order=cost]").get_attribute("aria-sort") == "ascending"
        assert tab.locator("#runs tbody bdi").first.inner_text() == "one that runs"
        tab.keyboard.press("Enter")
        assert tab.locator("th[data-order=cost]").get_attribute("aria-sort") == "descending"
        assert "one unclear" in tab.locator("#runs tbody th").last.inner_text()  # without a cost
        tab.locator("#filter").focus()
        tab.keyboard.type("KILLED")
        assert tab.locator("#runs tbody tr:visible").count() == 1
        assert tab.locator("#shown").inner_text() == "1 of 6 shown"
        tab.locator("#runs a:visible").first.focus()
        tab.keyboard.press("Enter")
        has_text(tab, "h1", "one that was killed")
        tab.locator("#back").focus()
        tab.keyboard.press("Enter")
        tab.locator("#runs tbody tr").nth(5).wait_for()
        assert page.errors == []


def test_a_report_opens_from_the_queue_and_cannot_reach_the_server(page, queue):
    with serving(queue) as server:
        tab = page.open(server.address)
        tab.get_by_role("link", name="cell 7", exact=True).click()
        tab.get_by_role("link", name="Open the report of this run").click()
        has_text(tab, "body", "a report")
        tab.goto(server.address)
        tab.get_by_role("link", name="report of cell 7").click()
        has_text(tab, "body", "a report")
        assert page.errors == []
        reached = tab.evaluate("fetch(location.href).then(() => 'reached', () => 'refused')")
        assert reached == "refused"


# --- a run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_a_run_is_whole_and_for_everyone(width, dark, page, fitted):
    with serving(fitted) as server:
        tab = page.open(server.address, width, dark)
        has_text(tab, "#state", "finished")
        until(lambda: drawn(tab, "cost") > 1000 and drawn(tab, "traces") > 1000, tab)
        page.check()
        assert tab.locator("#parameters tbody tr").count() == 9
        assert "30 generations done" in tab.locator("#why").inner_text()
        assert "channelfit optimize" in tab.locator("#origin").inner_text()
        assert tab.locator("#cost").get_attribute("aria-label").startswith("Best cost ")
        color = "() => Bokeh.documents[0].roots()[0].below[0].axis_label_text_color"
        before = tab.evaluate(color)
        page.look(width, not dark)
        until(lambda: tab.evaluate(color) != before, tab)  # it reaches the figures, too


def test_a_run_is_used_by_keyboard(page, fitted):
    span = "() => { const x = Bokeh.documents[1].roots()[0].x_range; return [x.start, x.end]; }"
    with serving(fitted) as server:
        tab = page.open(server.address)
        until(lambda: drawn(tab, "cost") > 1000 and drawn(tab, "traces") > 1000, tab)
        reached = page.tabbed()
        wanted = ["a report", "select experiment", "input from", "input to", "button whole"]
        assert reached[:5] == wanted
        # which of the two figures was made first is open
        titles = "() => Bokeh.documents.map((one) => one.roots()[0].below[0].axis_label.text)"
        place = tab.evaluate(titles).index("time (ms)")
        span = span.replace("[1]", f"[{place}]")
        whole = tab.evaluate(span)
        tab.locator("#from").focus()
        tab.keyboard.type("5")
        tab.keyboard.press("Tab")
        tab.keyboard.type("12.5")
        tab.keyboard.press("Enter")
        assert tab.evaluate(span) == [5, 12.5]
        tab.locator("#whole").focus()
        tab.keyboard.press("Enter")
        until(lambda: tab.evaluate(span) == whole, tab)
        assert tab.locator("#from").input_value() == ""
        n = "() => Bokeh.documents[K].roots()[0].renderers[0].data_source.data.x.length"
        n = n.replace("K", str(place))
        first = tab.evaluate(n)
        tab.locator("#experiment").focus()
        tab.keyboard.press("ArrowDown")
        until(lambda: tab.evaluate(n) != first, tab)
        assert page.errors == []


def test_a_figure_that_could_not_be_drawn_is_drawn_at_the_next_try(page, fitted):
    broken = []

    def break_first(route):
        if broken:
            route.continue_()
        else:
            broken.append(route.request.url)
            route.fulfill(json={})

    page.tab.route("**/figure/cost/*", break_first)
    with serving(fitted) as server:
        tab = page.open(server.address)
        has_text(tab, "#trouble", "A part of this page could not be shown")
        until(lambda: drawn(tab, "cost") > 1000, tab)
        until(lambda: not tab.locator("#trouble").is_visible(), tab)
    assert broken
    assert page.errors != []


def test_hostile_names_are_inert(page, tmp_path):
    dialogs = []
    page.tab.on("dialog", lambda one: dialogs.append(one.message) or one.dismiss())
    parameters = {HOSTILE: {"value": 1.0, "unit": HOSTILE, "lower": 0, "upper": 2, "note": HOSTILE}}
    news = dict.fromkeys(("name", "stage", "version", "optimizer", "cost_unit"), HOSTILE)
    name = HOSTILE.replace("/", ":")
    command = ["channelfit", "optimize", HOSTILE]
    made_run(tmp_path / name, **news, warnings=[HOSTILE], parameters=parameters, command=command)
    with serving(tmp_path) as server:
        tab = page.open(server.address)
        tab.locator("#runs tbody tr").wait_for()
        shown = tab.locator("#runs tbody bdi").first.inner_text()
        assert shown == name.replace("\u202e", "\\u202e")
        tab.locator("#runs tbody tr a").first.click()
        until(lambda: drawn(tab, "cost") > 1000, tab)
        assert tab.locator("#warnings li").inner_text() == HOSTILE.replace("\u202e", "\\u202e")
        assert tab.locator("img, main script, script:not([src])").count() == 0
        assert "\u202e" not in tab.locator("body").inner_text()
        page.check()
    assert dialogs == []


def test_the_end_of_a_run_of_its_folder_and_of_the_server_is_told(page, tmp_path):
    """Also to those who do not see."""
    folder = made_run(tmp_path / "run")
    with serving(folder) as server:
        tab = page.open(server.address)
        has_text(tab, "#state", "running")
        assert tab.locator("#done").is_visible()
        told = json.loads((folder / "state.json").read_text())
        told |= {"state": "finished", "reason": "300 generations done"}
        (folder / "state.json").write_text(json.dumps(told))
        has_text(tab, "#news", "The run is now finished.")
        assert not tab.locator("#done").is_visible()
        shutil.rmtree(folder)
        has_text(tab, "#trouble", "this folder is no longer there")
        assert page.errors == []
    has_text(tab, "#trouble", "The server does not answer")


# --- a fit that goes on ---------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="strikes in the way of POSIX")
def test_generations_arrive_while_a_fit_goes_on_and_its_kill_is_told(page, tmp_path):
    """From before the first generation, by a fit of its own, in a queue and on its page."""
    place = tmp_path / "runs"
    place.mkdir()
    with serving(place) as server:
        tab = page.open(server.address)
        has_text(tab, "#news", "No run is here yet")
        endless = ["--population", "16", "--generations", "1000000", "--quiet", "--backend", "cpu"]
        fit = subprocess.Popen(
            [sys.executable, "-m", "channelfit", "optimize", MODEL, *endless],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            has_text(tab, "#news", "1 running")
            tab.locator("#runs tbody a").first.click()
            has_text(tab, "#facts", "Generation")
            seen = set()

            def arrives() -> bool:
                text = tab.locator("#facts").inner_text()
                seen.add(text.partition("Generation\n")[2].partition(" of 1000000")[0])
                return len(seen) >= 4

            until(arrives, tab)
            assert "left" in tab.locator("#facts").inner_text()
            until(lambda: drawn(tab, "cost") > 1000, tab)
            until(lambda: drawn(tab, "traces") > 1000, tab)
            assert tab.locator("#parameters tbody tr").count() == 9
            page.check()
            fit.send_signal(signal.SIGKILL)
            fit.wait()
            has_text(tab, "#state", "killed")
            assert "did not say that it ended" in tab.locator("#why").inner_text()
            assert tab.locator("#news").inner_text() == "The run is now killed."
            assert page.errors == []
        finally:
            fit.kill()
            fit.wait()


# --- a batch --------------------------------------------------------------------------------------


def test_a_batch_is_watched_and_its_page_opens(page, tmp_path):
    place = made_batch(tmp_path / "runs" / "plate")
    with serving(tmp_path / "runs") as server:
        tab = page.open(server.address)
        row = tab.locator("#runs tbody tr")
        row.wait_for()
        assert "120 of 384 wells" in row.inner_text()
        tab.locator("#runs tbody a").first.click()
        tab.get_by_text("Without a fit").wait_for()
        page.check()
        assert not tab.locator("#traces-part").is_visible()
        assert not tab.locator("#cost-part").is_visible()
        assert tab.locator("#done").get_attribute("value") == str(120 / 384)
        state = json.loads((place / "state.json").read_text())
        state |= {"state": "finished", "reason": "all wells are done", "wells_done": 384}
        (place / "plate.html").write_text(plate_page(*plate(96, 60)), encoding="utf-8")
        (place / "state.json").write_text(json.dumps(state))
        tab.locator("#report").click()
        tab.wait_for_selector("html[data-ready]", timeout=300_000)
        assert tab.locator(".cell[data-well]").count() == 96
        tab.locator(".cell[data-well]").nth(5).click()
        assert tab.locator("#well-name").inner_text() == "A06"
        assert page.errors == []
