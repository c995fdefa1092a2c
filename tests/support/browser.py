"""A headless Chromium for tests of pages: what it complains of, asks for, and shows.

The fixture `page` stands in `conftest.py`. Tests that use it are skipped, with the reason, where
playwright or a Chromium is missing; CHANNELFIT_CHROMIUM names another binary.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

NARROW, WIDE = 380, 1400
_BINARIES = ("chromium", "chromium-browser", "google-chrome")
#: An element of the page that has the focus, also within a shadow tree.
_FOCUSED = """() => {
    let at = document.activeElement;
    while (at && at.shadowRoot && at.shadowRoot.activeElement) at = at.shadowRoot.activeElement;
    return at ? `${at.tagName.toLowerCase()} ${at.id || at.textContent.trim().slice(0, 40)}` : "";
}"""


def binary() -> str:
    """The path of a Chromium; empty where there is none."""
    named = os.environ.get("CHANNELFIT_CHROMIUM")
    if named:
        return shutil.which(named) or ""
    return next((found for name in _BINARIES if (found := shutil.which(name))), "")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of playwright for as long as the block lasts; the test is skipped without one."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="pages are tested with playwright, which is not installed"
    )
    path = binary()
    if not path:
        pytest.skip("pages are tested in Chromium, which is not installed (CHANNELFIT_CHROMIUM)")
    # Chromium refuses to run as root within its sandbox
    sandbox = not hasattr(os, "geteuid") or os.geteuid() != 0
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, chromium_sandbox=sandbox)
        try:
            yield browser
        finally:
            browser.close()


class Page:
    """A tab, and what went on in it since it was opened.

    Attributes:
        tab: playwright's own page.
        errors: errors and warnings on the console, and exceptions that nobody caught.
        requests: addresses that were asked for, whether or not something was there.
    """

    def __init__(self, browser: Any) -> None:
        self._context = browser.new_context(viewport={"width": WIDE, "height": 900})
        self.tab = self._context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.tab.on("console", self._heard)
        self.tab.on("pageerror", lambda error: self.errors.append(f"exception: {error}"))
        self.tab.on("request", lambda request: self.requests.append(request.url))

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.type}: {message.text}")

    def open(
        self, target: Path | str, width: int = WIDE, dark: bool = False, until: str = "load"
    ) -> Any:
        """Opens a file or an address in a window of a width, and returns playwright's page."""
        self.errors.clear()
        self.requests.clear()
        self.look(width, dark)
        address = target.resolve().as_uri() if isinstance(target, Path) else target
        self.tab.goto(address, wait_until=until)
        return self.tab

    def drawn(self, target: Path | str, width: int = WIDE, dark: bool = False) -> Any:
        """Opens a page, and returns it once all of its figures are drawn."""
        tab = self.open(target, width, dark)
        tab.wait_for_selector("html[data-ready]", timeout=120_000)
        return tab

    def check(self) -> None:
        """Fails where the page complains, asks elsewhere, bars anybody, or scrolls sideways."""
        assert self.errors == []
        assert self.requests_elsewhere() == []
        assert self.violations() == []
        assert self.overflow() == 0

    def check_unharmed(self) -> None:
        """Fails where a text of `support.hostile` has done anything on a page of one file."""
        self.check()
        assert self.tab.title() != "harmed"
        assert self.tab.title().endswith("channelfit")
        assert self.tab.evaluate("document.querySelectorAll('script').length") == 3
        assert self.tab.locator("main img").count() == 0
        assert self.tab.locator("[onmouseover], [onerror]").count() == 0
        assert "49" not in self.tab.locator("h1").inner_text()
        assert not Path("harmed").exists()

    def look(self, width: int = WIDE, dark: bool = False) -> None:
        """Sets the width of the window, and whether the user prefers dark pages."""
        self.tab.set_viewport_size({"width": width, "height": 900})
        self.tab.emulate_media(color_scheme="dark" if dark else "light")

    def requests_elsewhere(self) -> list[str]:
        """Return the requests beyond the file, or the server, that was opened."""
        here = urlsplit(self.tab.url)

        def own(url: str) -> bool:
            there = urlsplit(url)
            if there.scheme in ("data", "blob"):
                return True
            if here.scheme == "file":
                return there.scheme == "file" and there.path == here.path
            return there.netloc == here.netloc and there.scheme in (here.scheme, "ws", "wss")

        return [url for url in self.requests if not own(url)]

    def violations(self) -> list[str]:
        """Return the barriers that axe-core finds on the page."""
        axe = pytest.importorskip(
            "axe_playwright_python.sync_playwright",
            reason="accessibility is tested with axe-playwright-python, which is not installed",
        )
        found = axe.Axe().run(self.tab).response["violations"]
        return [
            f"{one['id']} ({one['impact']}): {one['help']}: {node['html'][:160]}"
            for one in found
            for node in one["nodes"]
        ]

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window, so that it scrolls sideways."""
        wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return int(self.tab.evaluate(wider))

    def tabbed(self, most: int = 200) -> list[str]:
        """The elements that the Tab key reaches, in order, until it comes around."""
        reached: list[str] = []
        for _ in range(most):
            self.tab.keyboard.press("Tab")
            at = str(self.tab.evaluate(_FOCUSED))
            if at.startswith(("body", "html")) or not at or at in reached[:1]:
                break
            reached.append(at)
        return reached

    def close(self) -> None:
        """Closes the tab and forgets all about it."""
        self._context.close()
