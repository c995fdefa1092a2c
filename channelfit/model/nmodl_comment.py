"""The comment of an exported .mod, from which an import restores the model, one fact on each line.

A .mod has no place for ranges, the size of the cell, the temperature at which rates hold, or a
reversal potential on which the cell decides. An export writes them as a COMMENT of its own:

    channelfit metadata, version 1
    density gbar: gmax = 8 nS, range 0.1 to 50 log
    parameter a: a = 0.2 1/ms, range 0.01 to 1
    parameter q10: q10 = 3, fixed
    number e: -90
    cell ek: -100
    membrane: 2000 um2
    temperature: 22 degC

What is read is a stranger's text: each line is one of these forms, its length and its numbers have
limits, and nothing of it is computed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from channelfit.reading.errors import InputError

#: The first line of the comment.
HEADER = "channelfit metadata, version 1"
_HEADER = re.compile(r"channelfit metadata, version [0-9]{1,4}")
#: Lines, and characters of one.
_MOST, _LONGEST = 500, 200
_NUMBER = r"[-+]?[0-9]{1,20}(?:\.[0-9]{1,25})?(?:e[-+]?[0-9]{1,3})?"
_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
#: Base units that a parameter may have.
_BASE_UNITS = """
ms, mV, pA, nS, 1/ms, 1/mV, 1/(ms mV), pF, MOhm, um2, um3/ms, mM, 1/mM/ms, degC
"""
_UNITS = frozenset(_BASE_UNITS.strip().split(", "))
_ROW = re.compile(
    rf"(parameter|density) ({_NAME}): ({_NAME}) = ({_NUMBER})( [A-Za-z0-9/() ]{{1,10}})?, "
    rf"(?:fixed|range ({_NUMBER}) to ({_NUMBER})( log)?(, fixed)?)"
)
_VALUE = re.compile(rf"(number|cell) ({_NAME}): ({_NUMBER})")
_WHOLE = re.compile(rf"(?:membrane: ({_NUMBER}) um2|temperature: ({_NUMBER}) degC)")


@dataclass(frozen=True)
class Row:
    """A parameter as the model has it.

    Attributes:
        name: in the model.
        value: in its base unit; of a density that of the whole cell.
        unit: its base unit; empty for a pure number.
        bounds: of its range; None where there is none.
        log: whether the range is searched by factors.
        fixed: whether it keeps its value.
        density: whether the file has it per area of the membrane.
    """

    name: str
    value: float
    unit: str = ""
    bounds: tuple[float, float] | None = None
    log: bool = False
    fixed: bool = False
    density: bool = False


@dataclass
class Metadata:
    """The comment's contents; rows, numbers and the cell's values by the names of the file.

    Attributes:
        rows: the parameters.
        numbers: PARAMETERs that are numbers in the model.
        cell: what the file reads of ions, mV or mM.
        area_um2, temperature_C: None where it does not say.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    cell: dict[str, float] = field(default_factory=dict)
    area_um2: float | None = None
    temperature_C: float | None = None


def is_metadata(line: str) -> bool:
    """Return whether a comment that begins with this line is one of these."""
    return _HEADER.fullmatch(line.strip()) is not None


def metadata_lines(metadata: Metadata) -> list[str]:
    """Return the lines of the comment, without facts that have no such form, as long names."""
    lines = []
    for own, row in metadata.rows.items():
        unit = f" {row.unit}" if row.unit else ""
        span = "fixed"
        if row.bounds is not None:
            low, high = map(_text, row.bounds)
            span = f"range {low} to {high}{' log' if row.log else ''}"
            span += ", fixed" if row.fixed else ""
        kind = "density" if row.density else "parameter"
        lines.append(f"{kind} {own}: {row.name} = {_text(row.value)}{unit}, {span}")
    for kind, values in (("number", metadata.numbers), ("cell", metadata.cell)):
        lines += [f"{kind} {own}: {_text(value)}" for own, value in values.items()]
    if metadata.area_um2 is not None:
        lines.append(f"membrane: {_text(metadata.area_um2)} um2")
    if metadata.temperature_C is not None:
        lines.append(f"temperature: {_text(metadata.temperature_C)} degC")
    return [HEADER, *filter(_is_readable, lines)]


def _text(value: float) -> str:
    """Return the shortest text that is read as the same number."""
    return repr(float(value)).removesuffix(".0")


def _is_readable(line: str) -> bool:
    try:
        _read(line, Metadata())
    except InputError:
        return False
    return True


def read_metadata(lines: Sequence[str], first: int) -> Metadata:
    """Return the contents of a comment.

    Arguments:
        lines: of the comment, from its header on.
        first: the number of the header's line in the file.

    Raises InputError: a line of another form, a second one of the same, or another version.
    """
    found = Metadata()
    for k, line in enumerate(lines):
        try:
            if k == 0 and line.strip() != HEADER:
                raise InputError(f"another version than this program's; it reads {HEADER[-9:]}")
            if k > _MOST:
                raise InputError(f"more than {_MOST} lines")
            if k > 0 and line.strip():
                _read(line.strip(), found)
        except InputError as error:
            raise InputError(error.message, None, f"line {first + k}") from None
    return found


def _read(line: str, found: Metadata) -> None:
    """Put one line in its place."""
    short = f"{line[:60]!a}{'..' if len(line) > 60 else ''}"
    if len(line) > _LONGEST or "ENDCOMMENT" in line.upper():
        raise InputError(f"{short} is no line of it")
    if row := _ROW.fullmatch(line):
        _add(found, row[2])
        found.rows[row[2]] = _row(row, short)
    elif value := _VALUE.fullmatch(line):
        _add(found, value[2])
        kind = found.numbers if value[1] == "number" else found.cell
        kind[value[2]] = _finite(value[3], short)
    elif whole := _WHOLE.fullmatch(line):
        _read_whole(found, whole, short)
    else:
        raise InputError(f"{short} is no line of it")


def _read_whole(found: Metadata, whole: re.Match[str], short: str) -> None:
    again = found.area_um2 if whole[1] else found.temperature_C
    if again is not None:
        raise InputError(f"{short} stands there twice")
    number = _finite(whole[1] or whole[2], short)
    if whole[1]:
        if not 1e-6 <= number <= 1e12:
            raise InputError(f"{short}: no cell has such a membrane")
        found.area_um2 = number
    else:
        if not -273.15 < number < 1000:
            raise InputError(f"{short}: no cell has such a temperature")
        found.temperature_C = number


def _add(found: Metadata, own: str) -> None:
    if own in found.rows or own in found.numbers or own in found.cell:
        raise InputError(f"{own[:40]} stands there twice")


def _row(row: re.Match[str], short: str) -> Row:
    unit = (row[5] or "").strip()
    if unit and unit not in _UNITS:
        raise InputError(f"{short}: {unit} is no base unit")
    bounds = None
    if row[6] is not None:
        low, high = _finite(row[6], short), _finite(row[7], short)
        if not low < high or (row[8] and low <= 0):
            raise InputError(f"{short}: that is no range")
        bounds = low, high
    value = _finite(row[4], short)
    fixed = bounds is None or bool(row[9])
    return Row(row[3], value, unit, bounds, bool(row[8]), fixed, row[1] == "density")


def _finite(text: str, short: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise InputError(f"{short} has a number that is too large")
    return number
