"""The text of a .mod file: without its comments, and refused where compiling it could do harm.

NMODL may hold C (`VERBATIM`) and other files (`INCLUDE`). What is parsed here, and what the proof
compiles, is the text that remains when comments are blanked; a text in which either word remains,
or a character that NMODL has no use for, goes no further.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from channelfit.model.nmodl_comment import is_metadata
from channelfit.reading.errors import InputError

#: Characters of a file.
LONGEST = 300_000
_COMMENT = re.compile(r"[:?][^\n]*")
_BLOCK = re.compile(r"\bCOMMENT\b")
_END = re.compile(r"\bENDCOMMENT\b[^\n]*")
_TITLE = re.compile(r"[ \t]*TITLE\b([^\n]*)")
#: A word and why a file that has it is refused.
_REFUSED = {
    "VERBATIM": "C code, which cannot be translated and is never compiled",
    "ENDVERBATIM": "C code, which cannot be translated and is never compiled",
    "INCLUDE": "another file, which is not read",
    "POINTER": "a variable of another mechanism",
    "BBCOREPOINTER": "a variable of another mechanism",
    "EXTERNAL": "a variable of another mechanism",
    "NET_RECEIVE": "events of a network; this is no channel that the voltage gates",
    "RANDOM": "random numbers; a channel is simulated as its mean",
    "FUNCTION_TABLE": "a table that is filled from outside the file",
    "ARTIFICIAL_CELL": "no channel",
    "ELECTRODE_CURRENT": "the current of an electrode, not of a membrane",
    "CONSTRUCTOR": "a block that runs when a mechanism is placed",
    "DESTRUCTOR": "a block that runs when a mechanism is removed",
    "BEFORE": "a block that runs beside the equations",
    "AFTER": "a block that runs beside the equations",
    "LONGITUDINAL_DIFFUSION": "diffusion along the cell",
    "COMPARTMENT": "a volume whose concentrations move",
    "NONLINEAR": "equations that are not linear",
    "DISCRETE": "a block that counts steps of time",
    "PARTIAL": "partial differential equations",
    "WATCH": "events that depend on a threshold",
    "WHILE": "a loop whose end cannot be known",
    "while": "a loop whose end cannot be known",
}
#: Brackets that may be open, and operators in one expression.
_DEEPEST, _LONGEST_CHAIN = 100, 300
_NESTS = re.compile(r"[<>=!]=|<->|&&|\|\||[-+*/^!<>=~(){}]")
_WORD = re.compile(r"[A-Za-z_]\w*")
_STRANGE = re.compile(r"[^A-Za-z0-9_\s{}()\[\]<>=!&|+\-*/^~.,;'%\"]")
_VERBATIM = re.compile(r"\bVERBATIM\b(.*?)\bENDVERBATIM\b", re.DOTALL)
_C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_C_HEADER = re.compile(r"#include\s*<(?:stdlib|stdio|math|string|assert|limits)\.h>")
#: A text with a name; what looks like a comment in it has been blanked.
_C_LABEL = re.compile(r"static\s+(?:const\s+)?char\s+\w+\[\s*\]\s*=\s*\"[^\"\\\n]*(?:\"\s*;|$)")
_C_RETURN = re.compile(r"return\s*(?:0|0\.0?|\(0\))?\s*;")
_BLOCK_WORDS = re.compile(r"[{}]|\b[A-Z]{5,}\b")
_STRING = re.compile(r'"[^"\n]*"')


@dataclass(frozen=True)
class NmodlText:
    """A .mod file as it is parsed and compiled.

    Attributes:
        text: its lines, comments blanked, none taken out: line numbers are those of the file.
        title: what stands behind TITLE.
        metadata: comments of an export about its model, each with the number of its
            first line.
    """

    text: str
    title: str
    metadata: tuple[tuple[int, tuple[str, ...]], ...] = ()


def read_nmodl(data: bytes) -> NmodlText:
    """Return a .mod file without its comments.

    Raises:
        InputError: it is too long, or holds a word or a character that is refused, with the line.
    """
    if len(data) > LONGEST:
        raise InputError(f"{len(data)} bytes; a mechanism has at most {LONGEST}")
    text = (
        data.decode("latin-1")
        .replace("\r\n", "\n")
        .replace("\r", "\n")
        .removeprefix("\xef\xbb\xbf")
    )
    lines, title, inside = [], "", 0
    whole = text.split("\n")
    metadata = list[tuple[int, tuple[str, ...]]]()
    for k, line in enumerate(whole):
        if inside:
            end = _END.search(line)
            if end and is_metadata(whole[inside]):
                metadata.append((inside + 1, tuple(whole[inside:k])))
            inside = 0 if end else inside
            lines.append("")
            continue
        found = _TITLE.match(line)
        if found and not title:
            title = " ".join(found[1].split())
        line = "" if found else _COMMENT.sub("", line)
        begun = _BLOCK.search(line)
        if begun:
            if line[: begun.start()].strip():
                raise _at("COMMENT behind other text; it stands at the start of a line", k)
            inside = 0 if _END.search(line) else k + 1
            line = ""
        lines.append(line.rstrip())
    if inside:
        raise _at("a COMMENT that has no ENDCOMMENT", inside - 1)
    lines = _without_idle_c("\n".join(lines)).split("\n")
    for k, line in enumerate(lines):
        _check(line, k)
    _check_depth("\n".join(lines))
    return NmodlText("\n".join(lines) + "\n", title, tuple(metadata))


def _without_idle_c(text: str) -> str:
    """Return the text without C code that does nothing, which is blanked and so never compiled.

    That is C of nothing but comments, headers of the standard library and a text that has a name,
    and `return 0;` at the end of a PROCEDURE or of INITIAL.
    """

    def replacing(found: re.Match[str]) -> str:
        code = _C_COMMENT.sub(" ", found[1]).strip()
        code = _C_HEADER.sub(" ", code).strip()
        if text.count("{", 0, found.start()) == text.count("}", 0, found.start()):
            code = _C_LABEL.sub(" ", code).strip()
        ends = _C_RETURN.fullmatch(code) is not None and _ends_procedure(text, found)
        return "\n" * found[0].count("\n") if ends or not code else found[0]

    return _VERBATIM.sub(replacing, text)


def _ends_procedure(text: str, found: re.Match[str]) -> bool:
    """Return whether what was found is the last statement of a PROCEDURE, or of INITIAL."""
    depth, block = 0, ""
    for word in _BLOCK_WORDS.findall(text[: found.start()]):
        if word in "{}":
            depth += 1 if word == "{" else -1
        elif depth == 0:
            block = word
    last = text[found.end() :].lstrip().startswith("}")
    return block in ("PROCEDURE", "INITIAL") and depth == 1 and last


def _check(line: str, k: int) -> None:
    for word in _WORD.findall(line):
        if word in _REFUSED:
            raise _at(f"{word}: {_REFUSED[word]}", k)
    # the two words that reach outside the file are refused however they are spelled
    for word in ("VERBATIM", "INCLUDE"):
        if word in line.upper():
            raise _at(f"{word}: {_REFUSED[word]}", k)
    strange = _STRANGE.search(line)
    if strange:
        raise _at(f"a character that NMODL has no use for, {strange[0]!a}", k)
    if '"' in line:
        raise _at(f"a text in quotes, {_STRING.search(line) and 'as printf has'}", k)


def _check_depth(text: str) -> None:
    """Refuse text that NEURON's parser would take minutes for, or not survive.

    It works for each level of a nesting on all levels below, and a chain of operators nests, too.
    """
    depth = operators = 0
    for found in _NESTS.finditer(text):
        mark = found[0]
        depth += (mark in "({") - (mark in ")}")
        operators = 0 if mark in "{}=~" else operators + (mark not in "()")
        if depth > _DEEPEST or operators > _LONGEST_CHAIN:
            raise _at(
                "nested too deeply, or too many operators", text.count("\n", 0, found.start())
            )


def _at(message: str, k: int) -> InputError:
    return InputError(message, key=f"line {k + 1}")
