"""The harness of tests in a browser sees what it is to see."""

from __future__ import annotations

import pytest

from support.browser import NARROW

pytestmark = pytest.mark.integration


BAD = """<!DOCTYPE html><html><head><title>bad</title></head><body>
<main><img src="http://127.0.0.1:9/x.png"><button id="a">a</button>
<button id="b">b</button><div style="width:900px">wide</div></main>
<script>console.error("told"); nothing.here;</script></body></html>"""
GOOD = """<!DOCTYPE html><html lang="en"><head><title>good</title></head><body>
<main><h1>good</h1><img alt="" src="data:image/gif;base64,R0lGODlhAQABAAAAACw="></main>
</body></html>"""


def test_what_is_wrong_with_a_page_is_seen(page, tmp_path):
    file = tmp_path / "bad.html"
    file.write_text(BAD, encoding="utf-8")
    page.open(file, width=NARROW)
    assert any("told" in error for error in page.errors)
    assert any(error.startswith("exception") for error in page.errors)
    assert page.requests_elsewhere() == ["http://127.0.0.1:9/x.png"]
    found = {one.split()[0] for one in page.violations()}
    assert {"html-has-lang", "image-alt"} <= found
    assert page.overflow() > 400
    assert page.tabbed() == ["button a", "button b"]


def test_nothing_is_seen_in_a_page_without_faults(page, tmp_path):
    file = tmp_path / "good.html"
    file.write_text(GOOD, encoding="utf-8")
    page.open(file, dark=True)
    assert page.errors == []
    assert page.requests_elsewhere() == []
    assert page.violations() == []
    assert page.overflow() == 0
    assert page.tab.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
