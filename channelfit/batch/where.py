"""`--where`: a small language that chooses rows of a table by its columns.

Comparisons (``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=``) of columns with numbers, text, quantities
or other columns; ``in`` with a list in brackets, or for a piece of text; ``and``, ``or``, ``not``
and brackets. A number may have a unit, which is converted to the column's: ``seal > 0.5 GOhm``. A
column whose name is no plain word stands in backticks. No comparison holds for an empty cell.

The text is parsed by Python's own parser and then walked: what is not named here is refused, and
nothing of it is ever run.
"""

from __future__ import annotations

import ast
import difflib
import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from channelfit.batch.table import WellTable
from channelfit.reading.errors import InputError
from channelfit.reading.units import shown, unit_factor

_LONGEST, _DEEPEST = 5000, 100
_COMPARED: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
}
#: What behind a number is no unit.
_WORDS = {"and", "or", "not", "in", "is", "if", "else", "for"}
#: A text in quotes, a name in backticks, or a number with something that may be its unit.
_PIECES = re.compile(
    r"""(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    r"|`(?P<name>[^`]*)`"
    r"|(?<![\w.])(?P<number>(?:\d++\.?+\d*+|\.\d++)(?:[eE][+-]?\d++)?+)"
    r"\s*(?P<unit>(?:(?:(?<=\s)1)?/)?[^\W\d_]\w*(?:\^?\d)?(?:/[^\W\d_]\w*)*)"
)


def chosen(text: str, table: WellTable, what: str = "--where") -> np.ndarray:
    """The rows of a table that an expression chooses, as a mask (n_wells,).

    Arguments:
        what: where the expression stands, for messages.

    Raises:
        InputError: no expression of this language, a column that the table does not have, or a
            comparison of what cannot be compared.
    """
    if len(text) > _LONGEST:
        raise InputError(f"longer than {_LONGEST} characters", None, what)
    names: list[str] = []
    try:
        tree = ast.parse(_prepared(text, names).strip(), mode="eval")
        return _Walk(text, table, names).mask(tree.body)
    except InputError as error:
        raise error.at(None, what) from None
    except SyntaxError as error:
        told = "" if error.offset is None else f", near character {error.offset}"
        hint = "; write == to compare" if re.search(r"[^=!<>]=[^=]", text) else ""
        raise InputError(
            f"{shown(text)} is not a condition{told}{hint}; write for example "
            "\"quality == 'ok' and rms < 20\"",
            None,
            what,
        ) from None
    except (ValueError, RecursionError, MemoryError):  # a NUL, or nested too deeply
        raise InputError(f"{shown(text)} is not a condition", None, what) from None


def _prepared(text: str, names: list[str]) -> str:
    """The text as Python can parse it: names in backticks are numbered, quantities are text.

    Arguments:
        names: where names in backticks are put.
    """

    def piece(found: re.Match[str]) -> str:
        if found["text"] is not None:
            return found[0]
        if found["name"] is not None:
            names.append(found["name"])
            return f" column_{len(names) - 1}__ "
        if found["unit"] in _WORDS:
            return found[0]
        unit = f"1{found['unit']}" if found["unit"].startswith("/") else found["unit"]
        return f"({found['number']}, {unit!r}, ...)"  # no list ends with three dots

    return _PIECES.sub(piece, text)


class _Quantity(tuple[float, str]):
    """A number and its unit."""

    def __str__(self) -> str:
        return f"{self[0]:g} {self[1]}"


class _Walk:
    """The meaning of a parsed condition, for one table."""

    def __init__(self, text: str, table: WellTable, quoted: list[str]) -> None:
        self.text, self.table, self.quoted = text, table, quoted

    def mask(self, node: ast.AST, depth: int = 0) -> np.ndarray:
        """The rows for which a condition holds."""
        if depth > _DEEPEST:
            raise InputError(f"{shown(self.text)} is nested more than {_DEEPEST} deep")
        if isinstance(node, ast.BoolOp):
            parts = [self.mask(each, depth + 1) for each in node.values]
            combine = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            return np.asarray(combine.reduce(parts))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ~self.mask(node.operand, depth + 1)
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            parts = [
                self._compared(a, op, b)
                for a, op, b in zip(sides, node.ops, sides[1:], strict=False)
            ]
            return np.asarray(np.logical_and.reduce(parts))
        raise InputError(
            f"{shown(self._shown(node))} is no comparison; write for example quality == 'ok'"
        )

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> np.ndarray:
        if isinstance(op, ast.In | ast.NotIn):
            found, known = self._inside(left, right)
            return ~found & known if isinstance(op, ast.NotIn) else found
        if type(op) not in _COMPARED:
            raise InputError(
                f"{shown(self._shown(left))} and {shown(self._shown(right))} can be "
                "compared with ==, !=, <, <=, >, >= and in"
            )
        sign, compare = _COMPARED[type(op)]
        a, b = self._pair(left, right, sign)
        known = _known(a) & _known(b)
        with np.errstate(invalid="ignore"):
            found = np.asarray(compare(a, b), dtype=bool)
        return np.broadcast_to(found & known, (len(self.table),)).copy()

    def _pair(self, left: ast.expr, right: ast.expr, sign: str) -> tuple[Any, Any]:
        """Two sides as arrays or plain values that can be compared, in the same unit."""
        a, b = self._value(left), self._value(right)
        names = [self._name(left), self._name(right)]
        if not any(names):
            raise InputError(f"{shown(self.text)} compares two values, of which none is a column")
        for one, other, name in ((a, b, names[0]), (b, a, names[1])):
            if name and not isinstance(other, np.ndarray):
                self._check_order(name, one, sign)
                plain = self._in_unit_of(name, one, other)
                return (a, plain) if one is a else (plain, b)
        if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
            raise InputError(f"{shown(self.text)} is no comparison of columns")
        if (a.dtype == object) != (b.dtype == object):
            raise InputError(f"{names[0]} and {names[1]} are a number and a text")
        self._check_order(str(names[0]), a, sign)
        units = [self.table.about[str(name)].unit for name in names]
        if a.dtype != object and units[0] != units[1]:
            raise InputError(
                f"{names[0]} is in {units[0] or 'no unit'}, {names[1]} in {units[1] or 'no unit'}"
            )
        return a, b

    def _check_order(self, name: str, values: np.ndarray, sign: str) -> None:
        if values.dtype == object and sign not in ("==", "!="):
            raise InputError(f"{name} is text, which has no order; use ==, != or in")

    def _in_unit_of(self, name: str, values: Any, given: Any) -> Any:
        """What a column is compared with, in the column's unit; text only for text."""
        if values.dtype == object:
            if not isinstance(given, str):
                raise InputError(f"{name} is text; write {given} in quotes: '{given}'")
            return given
        unit = self.table.about[name].unit
        if isinstance(given, str):
            found = re.fullmatch(r"\s*([+-]?[\d.]+(?:[eE][+-]?\d+)?)\s*(\S.*?)\s*", given)
            if not found:
                raise InputError(f"{name} is a number, and {shown(given)} is text")
            given = _Quantity((_number(found[1]), found[2]))
        if isinstance(given, _Quantity):
            return given[0] * self._factor(name, unit, given[1])
        return given

    def _factor(self, name: str, unit: str, told: str) -> float:
        """The factor from a unit to that of a column."""
        if told == unit:
            return 1.0
        try:
            (own, base), (other, same) = unit_factor(unit), unit_factor(told)
        except InputError:
            base, same, own, other = "", unit, 1.0, 1.0
        if base != same or not unit:
            raise InputError(
                f"{name} is in {unit}, which {shown(told)} is not"
                if unit
                else f"{name} has no unit; leave {shown(told)} out"
            )
        return other / own

    def _inside(self, left: ast.expr, right: ast.expr) -> tuple[np.ndarray, np.ndarray]:
        """Where a column is one of a list, or a text within a column; where that is known."""
        name, within = self._name(left), self._name(right)
        every = np.ones(len(self.table), dtype=bool)
        if within and not name:
            values, piece = self._value(right), self._value(left)
            if values.dtype != object or not isinstance(piece, str):
                raise InputError(
                    f"a piece of text may be in a column of text, and {within} is none"
                    if values.dtype != object
                    else f"a text was expected before in, not {shown(self._shown(left))}"
                )
            return np.array([piece in value for value in values], dtype=bool), every
        if not name or not isinstance(right, ast.List | ast.Tuple | ast.Set):
            raise InputError(
                f"a list was expected after in, such as well in ['A01', 'B02'], not "
                f"{shown(self._shown(right))}"
            )
        values = self._value(left)
        wanted = [self._in_unit_of(name, values, self._value(each)) for each in right.elts]
        found = ~every
        for each in wanted:
            found |= np.asarray(values == each, dtype=bool)
        return found, _known(values) & every

    def _name(self, node: ast.expr) -> str | None:
        """The name of a column; None for anything else."""
        if not isinstance(node, ast.Name):
            return None
        place = re.fullmatch(r"column_(\d+)__", node.id)
        if place and int(place[1]) < len(self.quoted):
            return self.quoted[int(place[1])]
        return node.id

    def _value(self, node: ast.expr) -> Any:
        """A column, a number, a text or a quantity."""
        if (name := self._name(node)) is not None:
            return self._column(name)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            sign = -1 if isinstance(node.op, ast.USub) else 1
            inner = self._value(node.operand)
            if isinstance(inner, _Quantity):
                return _Quantity((sign * inner[0], inner[1]))
            if isinstance(inner, float):
                return sign * inner
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return node.value
            if isinstance(node.value, int | float) and not isinstance(node.value, bool):
                return _number(node.value)
        if isinstance(node, ast.Tuple) and len(node.elts) == 3:
            number, unit, dots = (getattr(each, "value", None) for each in node.elts)
            if dots is ... and isinstance(unit, str) and isinstance(number, int | float):
                return _Quantity((_number(number), unit))
        raise InputError(f"{shown(self._shown(node))} is no column, number or text in quotes")

    def _column(self, name: str) -> np.ndarray:
        found = self.table.columns.get(name)
        if found is None:
            close = difflib.get_close_matches(name, self.table.columns, n=1)
            hint = f"; did you mean {close[0]}?" if close else "."
            listed = ", ".join(self.table.columns)
            raise InputError(f"there is no column {shown(name)}{hint} There are: {listed}")
        return found

    def _shown(self, node: ast.AST) -> str:
        """The text of a part of the condition, for messages."""
        text = ast.unparse(node)
        for k, name in enumerate(self.quoted):
            text = text.replace(f"column_{k}__", f"`{name}`")
        return re.sub(r"\(([^(),]+), '([^']*)', \.\.\.\)", r"\1 \2", text)


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (OverflowError, ValueError):
        raise InputError(f"{shown(value)} is no number that can be compared") from None


def _known(values: Any) -> Any:
    """Where there is something to compare: everywhere in text, and where a number is no NaN."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return ~np.isnan(values)
    return np.True_
