"""The harness of tests in a browser sees what it is to see."""

from __future__ import annotations

import pytest

from support.browser import NARROW

pytestmark = pytest.mark.integration


BAD = """<!DOCTYPE html><html><head><title>bad</title></head><body>
<main><img src="http://127.0.0.1:9/x.png"><button id="a">a</button>
<button id="b">b</button><div style="width:900px">wide</div></main>
<script>console.error("told"); nothing.here;</script></body></html>"""


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
