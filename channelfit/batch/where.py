"""`--where`: a small language that chooses rows of a table by its columns.

Comparisons (``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=``) of columns with numbers, text, quantities
or other columns; ``in`` with a list in brackets, or for a piece of text; ``and``, ``or``, ``not``
and brackets. A number may have a unit, which is converted to the column's: ``seal > 0.5 GOhm``. A
column whose name is no plain word stands in backticks. No comparison holds for an empty cell.
Columns of numbers may be added, subtracted, multiplied and divided (``g_error/g < 0.05``), and
``abs`` takes away a sign; what has no finite value, as after a division by 0, is an empty cell.
Wells are named as after ``--only``: 'a1' is A01.

The text is parsed by Python's own parser, and its tree is evaluated here: other syntax is refused,
and none of the text is ever run.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from channelfit.batch.recordings import same_well
from channelfit.batch.table import ALSO, WellTable
from channelfit.reading.errors import InputError, did_you_mean, shown
from channelfit.reading.units import unit_factor

_LONGEST, _DEEPEST = 5000, 100
_COMPARED: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
}
#: By what arithmetic means: its sign, and what it does.
_ARITHMETIC: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
}
#: Words behind a number that are no unit.
_WORDS = {"and", "or", "not", "in", "is", "if", "else", "for"}
#: A text in quotes, a name in backticks, or a number with something that may be its unit.
_PIECES = re.compile(
    r"""(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    r"|`(?P<name>[^`]*)`"
    r"|(?<![\w.])(?P<number>(?:\d++\.?+\d*+|\.\d++)(?:[eE][+-]?\d++)?+)"
    r"\s*(?P<unit>(?:(?:(?<=\s)1)?/)?[^\W\d_]\w*(?:\^?\d)?(?:/[^\W\d_]\w*)*)"
)


def chosen(text: str, table: WellTable, what: str = "--where") -> np.ndarray:
    """Return the rows of a table that an expression selects, as a mask (n_wells,).

    Arguments:
        what: where the expression stands, for messages.

    Raises InputError: no expression of this language, a column that the table does not have, or a
    comparison of what cannot be compared.
    """
    if len(text) > _LONGEST:
        raise InputError(f"longer than {_LONGEST} characters", None, what)
    names: list[str] = []
    try:
        tree = ast.parse(_prepared(text, names, table.columns).strip(), mode="eval")
        return _Evaluator(text, table, names).mask(tree.body)
    except InputError as error:
        raise error.at(None, what) from None
    except SyntaxError as error:
        place = "" if error.offset is None else f", near character {error.offset}"
        hint = "; write == to compare" if re.search(r"[^=!<>]=[^=]", text) else ""
        raise InputError(
            f"{shown(text)} is not a condition{place}{hint}; write for example "
            "\"quality == 'ok' and rms < 20\"",
            None,
            what,
        ) from None
    except (ValueError, RecursionError, MemoryError):  # a NUL, or nested too deeply
        raise InputError(f"{shown(text)} is not a condition", None, what) from None


def computed(text: str, table: WellTable, what: str) -> list[str]:
    """Return the values of a column or of arithmetic as text, empty where not known.

    Arguments as those of `chosen`.
    """
    names: list[str] = []
    plain = f"`{text}`" if text in table.columns else text
    try:
        tree = ast.parse(_prepared(plain, names, table.columns).strip(), mode="eval")
        side = _Evaluator(text, table, names)._value(tree.body)
    except InputError as error:
        raise error.at(None, what) from None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"{shown(text)} is no column, and no arithmetic", None, what) from None
    if not isinstance(side, _Side):
        raise InputError(f"{shown(text)} is no column, and no arithmetic of any", None, what)
    if side.values.dtype == object:
        return [str(value) for value in side.values]
    unit = f" {side.unit}" if side.unit else ""
    return [f"{value:.3g}{unit}" if value == value else "" for value in side.values.tolist()]


def _prepared(text: str, names: list[str], columns: Collection[str]) -> str:
    """Return the text for Python's parser: names in backticks are numbered, quantities are text.

    Arguments:
        names: where names in backticks are put.
        columns: names that are no units: `1/g` divides by the column g.
    """

    def piece(found: re.Match[str]) -> str:
        if found["text"] is not None:
            return found[0]
        if found["name"] is not None:
            names.append(found["name"])
            return f" column_{len(names) - 1}__ "
        if found["unit"] in _WORDS or found["unit"].lstrip("1").removeprefix("/") in columns:
            return found[0]
        unit = f"1{found['unit']}" if found["unit"].startswith("/") else found["unit"]
        return f"({found['number']}, {unit!r}, ...)"  # no list ends with three dots

    return _PIECES.sub(piece, text)


class _Quantity(tuple[float, str]):
    """A number and its unit."""

    def __str__(self) -> str:
        return f"{self[0]:g} {self[1]}"


@dataclass(frozen=True, eq=False)
class _Side:
    """One side of a comparison that depends on the rows: a column, or arithmetic of columns.

    Attributes:
        name: of the column, or the text of the arithmetic.
        values: a value for each row, numbers or texts.
        unit: of the numbers; None where arithmetic gives none that has a name.
    """

    name: str
    values: np.ndarray
    unit: str | None


class _Evaluator:
    """The meaning of a parsed condition, for one table."""

    def __init__(self, text: str, table: WellTable, quoted: list[str]) -> None:
        self.text, self.table, self.quoted = text, table, quoted

    def mask(self, node: ast.AST, depth: int = 0) -> np.ndarray:
        """Return the rows for which a condition holds."""
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
        """Return two sides as arrays or plain values that can be compared, in the same unit."""
        a, b = self._value(left), self._value(right)
        if not (isinstance(a, _Side) or isinstance(b, _Side)):
            raise InputError(f"{shown(self.text)} compares two values, of which none is a column")
        if not isinstance(b, _Side):
            self._check_order(a, sign)
            return a.values, self._in_unit_of(a, b)
        if not isinstance(a, _Side):
            self._check_order(b, sign)
            return self._in_unit_of(b, a), b.values
        if (a.values.dtype == object) != (b.values.dtype == object):
            raise InputError(f"{a.name} and {b.name} are a number and a text")
        self._check_order(a, sign)
        if a.values.dtype != object and a.unit != b.unit:
            raise InputError(f"{a.name} is in {_in_words(a.unit)}, {b.name} in {_in_words(b.unit)}")
        return a.values, b.values

    def _check_order(self, side: _Side, sign: str) -> None:
        if side.values.dtype == object and sign not in ("==", "!="):
            raise InputError(f"{side.name} is text, which has no order; use ==, != or in")

    def _in_unit_of(self, side: _Side, value: Any) -> Any:
        """Return a value in the unit of a side with which it is compared; text only for text."""
        name = side.name
        if side.values.dtype == object:
            if not isinstance(value, str):
                raise InputError(f"{name} is text; write {value} in quotes: '{value}'")
            return self._named(value) if name == "well" else value
        if isinstance(value, str):
            found = re.fullmatch(r"\s*([+-]?[\d.]+(?:[eE][+-]?\d+)?)\s*(\S.*?)\s*", value)
            if not found:
                raise InputError(f"{name} is a number, and {shown(value)} is text")
            value = _Quantity((_number(found[1]), found[2]))
        if isinstance(value, _Quantity):
            return value[0] * self._factor(name, side.unit, value[1])
        return value

    def _named(self, well: str) -> str:
        """Return the name of a well as the table has it."""
        return same_well(well, set(self.table["well"].tolist())) or well

    def _factor(self, name: str, unit: str | None, other_unit: str) -> float:
        """Return the factor from a unit to that of a side."""
        if unit is None:
            raise InputError(f"{name} has no unit of one name; leave {shown(other_unit)} out")
        if other_unit == unit:
            return 1.0
        try:
            (own, base), (other, same) = unit_factor(unit), unit_factor(other_unit)
        except InputError:
            base, same, own, other = "", unit, 1.0, 1.0
        if base != same or not unit:
            raise InputError(
                f"{name} is in {unit}, which {shown(other_unit)} is not"
                if unit
                else f"{name} has no unit; leave {shown(other_unit)} out"
            )
        return other / own

    def _inside(self, left: ast.expr, right: ast.expr) -> tuple[np.ndarray, np.ndarray]:
        """Return where a column is one of a list or holds a text, and where that is known."""
        name, within = self._name(left), self._name(right)
        every = np.ones(len(self.table), dtype=bool)
        if within and not name:
            side, piece = self._column(within), self._value(left)
            if side.values.dtype != object or not isinstance(piece, str):
                raise InputError(
                    f"a piece of text may be in a column of text, and {within} is none"
                    if side.values.dtype != object
                    else f"a text was expected before in, not {shown(self._shown(left))}"
                )
            return np.array([piece in value for value in side.values], dtype=bool), every
        if not name or not isinstance(right, ast.List | ast.Tuple | ast.Set):
            raise InputError(
                f"a list was expected after in, such as well in ['A01', 'B02'], not "
                f"{shown(self._shown(right))}"
            )
        side = self._column(name)
        listed = [self._in_unit_of(side, self._plain(each)) for each in right.elts]
        found = ~every
        for each in listed:
            found |= np.asarray(side.values == each, dtype=bool)
        return found, _known(side.values) & every

    def _name(self, node: ast.expr) -> str | None:
        """Return the name of a column; None for anything else."""
        if not isinstance(node, ast.Name):
            return None
        place = re.fullmatch(r"column_(\d+)__", node.id)
        if place and int(place[1]) < len(self.quoted):
            return self.quoted[int(place[1])]
        return node.id

    def _value(self, node: ast.expr, depth: int = 0) -> Any:
        """Return a side that depends on the rows, a number, a text or a quantity."""
        if depth > _DEEPEST:
            raise InputError(f"{shown(self.text)} is nested more than {_DEEPEST} deep")
        if (name := self._name(node)) is not None:
            return self._column(name)
        if isinstance(node, ast.BinOp):
            return self._computed(node, depth)
        if isinstance(node, ast.Call):
            return self._absolute(node, depth)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            sign = -1 if isinstance(node.op, ast.USub) else 1
            inner = self._value(node.operand, depth + 1)
            if isinstance(inner, _Quantity):
                return _Quantity((sign * inner[0], inner[1]))
            if isinstance(inner, float):
                return sign * inner
            if isinstance(inner, _Side):
                return replace(self._numeric(inner), values=sign * inner.values)
        return self._plain(node)

    def _plain(self, node: ast.expr) -> Any:
        """Return a number, a text or a quantity, as it stands there."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._plain(node.operand)
            if isinstance(inner, _Quantity):
                return _Quantity((-inner[0], inner[1]))
            if isinstance(inner, float):
                return -inner
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return node.value
            if isinstance(node.value, int | float) and not isinstance(node.value, bool):
                return _number(node.value)
        if isinstance(node, ast.Tuple) and len(node.elts) == 3:
            number, unit, dots = (getattr(each, "value", None) for each in node.elts)
            if dots is ... and isinstance(unit, str) and isinstance(number, int | float):
                return _Quantity((_number(number), unit))
        raise self._no_operand(node)

    def _no_operand(self, node: ast.AST) -> InputError:
        """Return the error for a part of the condition that has no value."""
        return InputError(f"{shown(self._shown(node))} is no column, number or text in quotes")

    def _numeric(self, value: Any) -> Any:
        """Check and return a value with which arithmetic is possible."""
        if isinstance(value, str):
            raise InputError(f"{shown(value)} is text, with which nothing can be computed")
        if isinstance(value, _Side) and value.values.dtype == object:
            raise InputError(f"{value.name} is text, with which nothing can be computed")
        return value

    def _absolute(self, node: ast.Call, depth: int) -> Any:
        """Return the absolute value that `abs(x)` asks for; any other call is refused."""
        name = getattr(node.func, "id", None)
        if name != "abs" or len(node.args) != 1 or node.keywords:
            raise self._no_operand(node)
        value = self._numeric(self._value(node.args[0], depth + 1))
        if isinstance(value, _Side):
            return replace(value, name=self._shown(node), values=np.abs(value.values))
        if isinstance(value, _Quantity):
            number, unit = value
            return _Quantity((abs(number), unit))
        return abs(value)

    def _computed(self, node: ast.BinOp, depth: int) -> Any:
        """Return the result of arithmetic: NaN where that is not finite."""
        if type(node.op) not in _ARITHMETIC:
            raise InputError(
                f"{shown(self._shown(node))}: +, -, * and / are the arithmetic that there is"
            )
        sign, apply = _ARITHMETIC[type(node.op)]
        a, b = (self._numeric(self._value(each, depth + 1)) for each in (node.left, node.right))
        name = self._shown(node)
        if sign in "+-":
            a, b, unit = self._same_unit(a, b, name)
        else:
            unit = _unit_of_product(_unit_of(a), _unit_of(b), sign)
        plain = [
            x.values if isinstance(x, _Side) else x[0] if isinstance(x, _Quantity) else x
            for x in (a, b)
        ]
        with np.errstate(all="ignore"):
            values = np.asarray(apply(*map(np.float64, plain)), dtype=float)
        values = np.where(np.isfinite(values), values, np.nan)
        if isinstance(a, _Side) or isinstance(b, _Side):
            return _Side(name, values, unit)
        return _Quantity((float(values), unit)) if unit else float(values)

    def _same_unit(self, a: Any, b: Any, name: str) -> tuple[Any, Any, str | None]:
        """Return two values that are added, in the unit of a column among them."""
        for one, other, swap in ((a, b, False), (b, a, True)):
            if isinstance(one, _Side) and not isinstance(other, _Side):
                plain = self._in_unit_of(one, other)
                return (plain, one, one.unit) if swap else (one, plain, one.unit)
        units = [_unit_of(a), _unit_of(b)]
        if units[0] != units[1]:
            listed = " and ".join(map(_in_words, units))
            raise InputError(f"{name} adds what is in {listed}")
        return a, b, units[0]

    def _column(self, name: str) -> _Side:
        columns = self.table.columns
        found = columns.get(name)
        if found is None and ALSO.get(name) in columns:
            return self._column(ALSO[name])
        if found is None:
            hint = did_you_mean(name, columns)
            listed = ", ".join(columns)
            raise InputError(f"there is no column {shown(name)}{hint} There are: {listed}")
        return _Side(name, found, self.table.about[name].unit)

    def _shown(self, node: ast.AST) -> str:
        """Return the text of a part of the condition, for messages."""
        text = ast.unparse(node)
        for k, name in enumerate(self.quoted):
            text = text.replace(f"column_{k}__", f"`{name}`")
        return re.sub(r"\(([^(),]+), '([^']*)', \.\.\.\)", r"\1 \2", text)


def _unit_of(value: Any) -> str | None:
    """Return the unit of a side, a quantity or a number; None where it has none of one name."""
    if isinstance(value, _Side):
        return value.unit
    return value[1] if isinstance(value, _Quantity) else ""


def _unit_of_product(a: str | None, b: str | None, sign: str) -> str | None:
    """Return the unit of a product or a ratio; None where it has none of one name."""
    if b == "":
        return a
    if sign == "/":
        return "" if a == b and a is not None else None
    return b if a == "" else None


def _in_words(unit: str | None) -> str:
    """Return a unit in words."""
    return "a unit without a name" if unit is None else unit or "no unit"


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (OverflowError, ValueError):
        raise InputError(f"{shown(value)} is no number that can be compared") from None


def _known(values: Any) -> Any:
    """Return where values can be compared: everywhere in text, and where a number is no NaN."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return ~np.isnan(values)
    return np.True_
