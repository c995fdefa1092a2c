"""The frame, styles, scripts and policy that all pages share.

A page that is one file needs nothing else: styles, scripts, figures and samples are in it, and its
policy (`Content-Security-Policy`) forbids it to load anything else, and to run scripts other than
its own two. Texts of a user's files are escaped by the templates.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader

from channelfit.reading.errors import printable

#: By this line a page of this program is recognized.
GENERATOR = '<meta name="generator" content="channelfit '
#: The frame, the macros, the style and the script that pages share.
TEMPLATES = Path(__file__).parent / "templates"
STYLE, SCRIPT = TEMPLATES / "page.css", TEMPLATES / "page_common.js"


def page_text(
    template: Path,
    context: Mapping[str, Any],
    styles: Sequence[Path] = (),
    scripts: Sequence[Path] = (),
    content: Mapping[str, Any] | None = None,
) -> str:
    """Return the text of a page that is one file.

    Arguments:
        template: extends `page_frame.html`.
        context: the values in the template, among them `version` (of this program) and `title`.
        styles, scripts: files that come into the page in this order, after the style that all pages
            share; a page without scripts may run none.
        content: plain data that the scripts find in the element `page-data`.
    """
    script = "".join(_text(file) for file in scripts)
    library = _library() if script else ""
    policy = [
        "default-src 'none'",
        *([f"script-src {_hash(library)} {_hash(script)}"] if script else []),
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    own = {
        "policy": "; ".join(policy),
        "style": "".join(_text(file) for file in (STYLE, *styles)),
        "script": script,
        "library": library,
        "content": content,
    }
    return rendered(template, {**context, **own})


def load_parts(template: Path) -> None:
    """Load what a page of a template is put together from, and keep it for that page."""
    _environment(template.parent).get_template(template.name)
    _library()


def rendered(template: Path, context: Mapping[str, Any]) -> str:
    """Return the text of a template, in which the texts of the context are escaped."""
    return _environment(template.parent).get_template(template.name).render(context)


@cache
def _environment(folder: Path) -> Environment:
    made = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable_value,
    )
    made.filters["short"] = short
    made.policies["json.dumps_kwargs"] = {}  # unsorted: Bokeh's documents refer to earlier entries
    return made


@cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def library_file() -> Path:
    """Return the file of BokehJS without widgets and tables, minified."""
    import bokeh  # loaded only where a page has figures

    return Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"


@cache
def _library() -> str:
    """Return BokehJS with the ends of lines that a parser of HTML keeps, for its hash."""
    return (
        library_file()
        .read_text(encoding="utf-8")
        .replace("\r\n", "\n")
        .replace("</script", "<\\/script")
    )


def _hash(script: str) -> str:
    """Return the name by which the policy of a page allows a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _printable_value(value: Any) -> Any:
    """Return a value for a template, its control characters written as codes.

    Among these are marks that reverse the direction of the text behind them.
    """
    return printable(value) if type(value) is str else value  # Markup is the page's own


def short(value: object, digits: int = 4) -> str:
    """Return a number with a few digits; a dash where there is none."""
    if not isinstance(value, int | float | np.floating) or not math.isfinite(value):
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}".replace("-", "−")
