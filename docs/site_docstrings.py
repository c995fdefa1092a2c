"""Docstrings as MkDocs should read them: their sections in the words that its parser knows."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)Example:$", re.M)
_ON_ONE_LINE = re.compile(r"^( *)(Returns|Raises|Warns): (?=\S)", re.M)


class PlainSections(griffe.Extension):
    """An example becomes code, and a section on one line a paragraph with a bold beginning."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrites the docstring of one object, which is read afterwards."""
        if obj.docstring is not None:
            text = _EXAMPLE.sub(r"\1Examples:", obj.docstring.value)
            obj.docstring.value = _ON_ONE_LINE.sub(r"\1**\2:** ", text)
