"""The model in the comment of an exported .mod, compared with the file's declarations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from channelfit.model.imports.nmodl_declarations import Declarations
from channelfit.model.nmodl_comment import Metadata, Row, read_metadata
from channelfit.reading.errors import InputError

#: Two numbers that differ by less are one, written twice.
_SAME = 1e-9
#: S/cm2 for each nS on 1 um2, or cm/s for each um3/ms.
_DENSITY = 0.1


def recall(declared: Declarations, comments: Sequence[tuple[int, Sequence[str]]]) -> None:
    """Update declarations by the comment about the model that the file was exported from.

    Where the comment contradicts the file, the file is right, and a note says so. A comment that
    cannot be read is ignored as a whole, with a note.

    Arguments:
        declared: is changed in place.
        comments: each with the number of its first line.
    """
    if not comments:
        return
    first, lines = comments[0]
    try:
        if len(comments) > 1:
            raise InputError("there are two of them", None, f"line {comments[1][0]}")
        found = read_metadata(lines, first)
    except InputError as error:
        declared.notes.append(
            f"{error.key}: the comment with channelfit's metadata is ignored: {error.message}"
        )
        return
    _take(declared, found)


def _take(declared: Declarations, found: Metadata) -> None:
    if not declared.point:
        declared.area_um2 = found.area_um2
    if found.temperature_C is not None:
        _temperature(declared, found.temperature_C)
    for own, row in found.rows.items():
        if _is_parameter(declared, own):
            _row(declared, own, row)
    for own, stated in found.numbers.items():
        if _is_parameter(declared, own):
            value = declared.parameters.pop(own).value
            _compare(declared, own, value, stated)
            declared.constants[own] = value
    for own, stated in found.cell.items():
        _cell(declared, own, stated)


def _is_parameter(declared: Declarations, own: str) -> bool:
    """Return whether the file has a PARAMETER of its own of this name."""
    given = declared.parameters.get(own)
    if given is not None and not given.kind:
        return True
    declared.notes.append(f"the file's comment speaks of {own[:40]}, which is no PARAMETER of it")
    return False


def _temperature(declared: Declarations, stated: float) -> None:
    if declared.celsius_given:
        _compare(declared, "celsius", declared.celsius, stated)
        return
    declared.celsius, declared.celsius_given = stated, True
    declared.temperature_C = stated


def _row(declared: Declarations, own: str, row: Row) -> None:
    given, factor = declared.parameters[own], 1.0
    if row.density:
        if declared.area_um2 is None:
            declared.notes.append(f"the file's comment gives no membrane for the density {own}")
            return
        factor = _DENSITY / declared.area_um2
    value = given.value / factor
    if _compare(declared, own, value, row.value):
        value = row.value
    if row.bounds is not None and not row.bounds[0] <= value <= row.bounds[1]:
        declared.notes.append(
            f"{own} is {value:.6g} by the file, outside the range of its comment, which is ignored"
        )
        row = replace(row, bounds=None)
    declared.parameters[own] = replace(
        given, value=value, unit=row.unit, factor=factor, row=replace(row, value=value)
    )


def _cell(declared: Declarations, own: str, stated: float) -> None:
    given = declared.parameters.get(own)
    if given is None or not given.kind:
        declared.notes.append(f"the file's comment speaks of {own[:40]}, which it reads of no ion")
    elif given.unheard is not None and given.unheard != stated:
        declared.notes.append(
            f"{own} is {given.unheard:g} in the file and {stated:g} in its comment; "
            "neither is taken"
        )
    elif given.kind == "concentration" and stated < 0:
        declared.notes.append(
            f"{own} is {stated:g} in the file's comment, which is no concentration"
        )
    else:
        if stated != given.value:
            declared.notes.append(
                f"{own} is {stated:.6g}, as the file's comment says of the exported model; "
                f"a cell that does not set it has {given.value:.6g}"
            )
        declared.parameters[own] = replace(given, value=stated, unheard=None, stated=True)


def _compare(declared: Declarations, own: str, value: float, stated: float) -> bool:
    """Return whether file and comment agree; a note where they do not."""
    if abs(value - stated) <= _SAME * max(abs(value), abs(stated)):
        return True
    declared.notes.append(
        f"{own} is {value:.6g} by the file, and {stated:.6g} by its comment; the file's is taken"
    )
    return False
