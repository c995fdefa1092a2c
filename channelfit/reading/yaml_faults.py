"""The place and probable cause of a mistake in a YAML text.

A parser notices a missing colon, comma or quotation mark only where the text no longer makes sense,
which is often a line, or a whole file, further on.
"""

from __future__ import annotations

import re

import yaml

from channelfit.reading.errors import shown

_KEY = re.compile(r"\s*(- )?[^\s#].*?:(\s|$)|\s*- ")
_CLOSED = {"{": "}", "[": "]"}


def find_fault(error: yaml.MarkedYAMLError, text: str) -> tuple[int | None, str]:
    """Return the line, counted from 1, that is to be corrected, and the mistake in words."""
    lines = text.splitlines()
    problem = " ".join(str(error.problem or error.context or "").split())
    if error.problem_mark is None:
        return None, problem
    at, column = error.problem_mark.line, error.problem_mark.column
    at = min(at, max(len(lines) - 1, 0))
    line = lines[at] if lines else ""
    begun = at if error.context_mark is None else error.context_mark.line
    if "\t" in line[: len(line) - len(line.lstrip())] or r"'\t'" in problem:
        return at + 1, "a tab stands here; YAML is indented and spaced by blanks"
    if "could not find expected ':'" in problem:
        return begun + 1, _without_colon(lines[begun])
    if "mapping values are not allowed" in problem:
        return _second_colon(lines, at)
    if "quoted scalar" in str(error.context):
        return begun + 1, "a quotation mark is opened here and never closed"
    if "flow" in str(error.context) and error.context_mark is not None and begun < at:
        return _inside_brackets(lines, begun, error.context_mark.column, at, column, problem)
    if problem.startswith("expected <block end>"):
        return at + 1, "this line does not line up with those that it belongs to"
    return at + 1, problem


def _without_colon(line: str) -> str:
    if re.match(r"\s*[^\s:]+:\S", line):
        return f"{shown(line.strip())} lacks a blank behind its colon"
    return f"{shown(line.strip())} is not `key: value`"


def _before(lines: list[str], at: int) -> int | None:
    """Return the last line above that is neither empty nor a comment."""
    return next((k for k in range(at - 1, -1, -1) if not re.match(r"\s*(#|$)", lines[k])), None)


def _second_colon(lines: list[str], at: int) -> tuple[int, str]:
    """Return line and mistake where a colon is in a value, or after a line without one."""
    above = _before(lines, at)
    if above is not None and not _KEY.match(lines[above]):
        return above + 1, _without_colon(lines[above])
    if len(re.findall(r":(?=\s|$)", lines[at].split(" #")[0])) > 1:
        return at + 1, "a text with a colon in it must stand in quotation marks"
    return at + 1, "indented as if it belonged to the line above, which has a value already"


def _inside_brackets(
    lines: list[str], begun: int, first: int, at: int, column: int, problem: str
) -> tuple[int, str]:
    """Return line and mistake inside brackets: one is never closed, or a comma is missing."""
    bracket = lines[begun][first : first + 1]
    if not _is_closed("\n".join([lines[begun][first:], *lines[begun + 1 :]])):
        closing = _CLOSED.get(bracket, "bracket")
        return begun + 1, f"{bracket} is opened here and never closed by {closing}"
    above = _before(lines, at)
    if problem.endswith("':'") and ":" not in lines[at][:column] and above is not None:
        return above + 1, "a comma is missing at the end of this line"
    return at + 1, problem


def _is_closed(text: str) -> bool:
    """Return whether the first bracket of a text is closed, outside quotes and comments."""
    depth = 0
    for part in re.finditer(r"\"[^\"]*\"|'[^']*'|\s#[^\n]*|[\[\]{}]", text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(part[0], 0)
        if depth == 0 and part[0] in "]}":
            return True
    return False
