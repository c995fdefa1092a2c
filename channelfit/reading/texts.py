"""The text of a user's file: its encoding, and models of other programs in it."""

from __future__ import annotations

import codecs
import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from channelfit.reading.errors import InputError, shown
from channelfit.reading.shipped import hint_at_examples

#: Byte order marks and the encodings of text that begins with them, the longest first.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_NMODL = re.compile(r"^\s*NEURON\s*\{", re.MULTILINE)
_MYOKIT = re.compile(r"^\s*\[\[(model|protocol|script)\]\]", re.MULTILINE)
_XML = re.compile(r"\s*<(\?xml|sbml|\w+:)")


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in a text such as ``A01, B03``."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def pairs_in(texts: Sequence[str], option: str) -> list[tuple[str, str]]:
    """Split NAME=VALUE. Raises: InputError for a text without = and a name given twice."""
    found: list[tuple[str, str]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise InputError(f"{option} wants NAME=VALUE, not {shown(text)}")
        if name.strip() in dict(found):
            raise InputError(f"{option} gives {shown(name.strip())} twice")
        found.append((name.strip(), value.strip()))
    return found


def in_columns(
    rows: Sequence[Sequence[str]], justify: Callable[[str, int], str] = str.rjust
) -> list[str]:
    """Return rows of cells as lines, in columns that are two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(justify, row, widths)) for row in rows]


def file_size(file: str | os.PathLike[str]) -> int:
    """Return the size in bytes of a file that can be read.

    Raises InputError: there is no such file, or the name is that of a folder, a device or a pipe,
    which might have no end.
    """
    try:
        found = os.stat(file)
    except FileNotFoundError:
        raise InputError(f"no such file{hint_at_examples(file)}", file) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file) from None
    except ValueError:  # it holds a NUL or half of a surrogate pair
        raise InputError("no file can have this name", file) from None
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a device or a pipe"
        raise InputError(f"{kind}, not a file", file)
    return found.st_size


def decoded(data: bytes, file: str | os.PathLike[str]) -> str:
    """Return the text of a file in UTF-8, or in UTF-16 with a byte order mark; without the mark.

    Raises InputError: another encoding, with the line of the first byte that does not fit.
    """
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")
    message = "cannot be read: not text in UTF-8 or UTF-16"
    remedy = "save it as UTF-8 (an editor's `save with encoding`)"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{data[error.start]:02x}"
        raise InputError(f"{message} ({found}); {remedy}", file, f"line {line}") from None
    if "\0" in text:
        raise InputError(f"{message} that begins with its mark (it holds NULs); {remedy}", file)
    return text


def refuse_foreign(text: str, file: str | os.PathLike[str] | None) -> None:
    """Raise InputError for the model of another program; it says of which one."""
    suffix = Path(file).suffix.lower() if file else ""
    if suffix == ".mod" or _NMODL.search(text):
        raise InputError(
            "this is NMODL, a mechanism for NEURON, and models are read from YAML; "
            "`channelfit import FILE.mod` translates it",
            file,
        )
    if suffix == ".mmt" or _MYOKIT.search(text):
        raise InputError(
            "this is a model of Myokit (mmt), and models are read from YAML; `channelfit import "
            "FILE.mmt` translates one of its currents",
            file,
        )
    if _XML.match(text):
        raise InputError(
            "this is XML (CellML, SBML or the like), and models are read from YAML; `channelfit "
            "import FILE.cellml` translates a current of a CellML model; of others write down the "
            "states, rates and parameters as in models/k_hh.yaml",
            file,
        )


def stem_of(path: Path) -> str:
    """Return the name of a file without its suffix, and without that of its compression."""
    name = path.name[:-3] if path.name.lower().endswith((".gz", ".xz")) else path.name
    stem = Path(name).stem
    return "" if stem.startswith(".") else stem
