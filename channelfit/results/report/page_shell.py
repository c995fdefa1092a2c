"""What every page has in common that is one file: its frame, styles, scripts and policy.

Such a page needs nothing else: styles, scripts, figures and samples are in it, and its policy
(`Content-Security-Policy`) forbids it to ask anybody for anything, and scripts other than its own
two. Texts of a user's files are escaped by the templates.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import bokeh
import numpy as np
from jinja2 import Environment, FileSystemLoader

from channelfit.reading.files import whole
from channelfit.reading.texts import printable

#: By this line a page of this program is told from other files.
GENERATOR = '<meta name="generator" content="channelfit '
#: The frame, the macros, the styles and the scripts that pages share.
TEMPLATES = Path(__file__).parent / "templates"


def page_text(
    template: str,
    context: Mapping[str, Any],
    figures: Mapping[str, Any],
    styles: Sequence[Path],
    scripts: Sequence[Path],
) -> str:
    """The text of a page.

    Arguments:
        template: the name of a file beside the last of the scripts.
        context: what the template needs; `version` (of this program) and `title` among it.
        figures: plain data that the scripts find in the element `figures`.
        styles, scripts: files that come into the page in this order.
    """
    script, library = "".join(_text(file) for file in scripts), _library()
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(library)} {_hash(script)}",
            "style-src 'unsafe-inline'",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    return (
        _environment(scripts[-1].parent)
        .get_template(template)
        .render(
            **context,
            policy=policy,
            style="".join(_text(file) for file in styles),
            script=script,
            library=library,
            figures=figures,
        )
    )


def save_page(text: str, file: Path) -> None:
    """Write a page to a file, which is never seen half written."""
    with whole(file) as page:
        page.write(text.encode())


@cache
def _environment(folder: Path) -> Environment:
    made = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_steerless,
    )
    made.filters["short"] = short
    made.policies["json.dumps_kwargs"] = {}  # Bokeh's documents refer to what stood before
    return made


@cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@cache
def _library() -> str:
    """BokehJS without widgets and tables, minified; a parser of HTML would change other ends of
    lines, and then the text would not be the one that the policy allows.
    """
    file = Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"
    return file.read_text(encoding="utf-8").replace("\r\n", "\n").replace("</script", "<\\/script")


def _hash(script: str) -> str:
    """What the policy of a page calls a script that it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _steerless(value: Any) -> Any:
    """What a template puts into a page: a text whose characters steer no screen.

    Those that would, such as marks that turn the text behind them around, are shown by their codes.
    """
    return printable(value) if type(value) is str else value  # Markup is the page's own


def short(value: object, digits: int = 4) -> str:
    """A number with a few digits; a dash where there is none."""
    if not isinstance(value, int | float | np.floating) or not math.isfinite(value):
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}".replace("-", "−")
