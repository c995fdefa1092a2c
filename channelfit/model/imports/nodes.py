"""Expressions of a foreign model: small trees that are built, taken apart and written out.

SymPy would reorder what it reads, and a model file should look like the file that it came from. So
a foreign expression stays a tree of its own until it is written as text, which is then read by the
parser of `model.expressions` like any other text of a user's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from channelfit.reading.errors import InputError

#: Parts of one expression, beyond which it is refused.
LARGEST = 4000
#: The precedence of an operation; that of an atom or a call is highest.
_BINDING = {
    "if": 0,
    "or": 1,
    "and": 2,
    "not": 3,
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), 4),
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
    "neg": 7,
    "**": 8,
}
_ATOM = 9
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
#: Functions of the expression language, as NumPy computes them.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "abs": np.abs,
    "tanh": np.tanh,
    "min": lambda *x: np.minimum.reduce(np.broadcast_arrays(*x)),
    "max": lambda *x: np.maximum.reduce(np.broadcast_arrays(*x)),
}
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "**": np.power,
    "neg": np.negative,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "if": np.where,
    **FUNCTIONS,
}


@dataclass(frozen=True)
class Node:
    """An expression.

    Attributes:
        op: "number", "name", an operator, "neg", "not", "and", "or", "if" or a function's name.
        args: the operands; of a number its value, of a name its text; of "if" the condition, what
            holds where it is true, and what holds else.
        size: how many parts it has.
        names: the names in it.
    """

    op: str
    args: tuple[Any, ...]
    size: int
    names: frozenset[str]

    def __hash__(self) -> int:
        return hash((self.op, self.size, self.names, self.args if self.size == 1 else None))

    @property
    def is_number(self) -> bool:
        """True for one number."""
        return self.op == "number"

    @property
    def is_atom(self) -> bool:
        """True for a number or a name."""
        return self.op in ("number", "name")

    @property
    def value(self) -> float:
        """The value of a number."""
        return float(self.args[0])


def number(value: float) -> Node:
    """Return a finite number. Raises InputError for one that is not."""
    if not math.isfinite(value):
        raise InputError("a number overflows or is divided by zero")
    return Node("number", (float(value),), 1, frozenset())


ZERO, ONE = number(0.0), number(1.0)


def name(text: str) -> Node:
    """Return a name."""
    return Node("name", (text,), 1, frozenset((text,)))


def make(op: str, *args: Node) -> Node:
    """Return an operation or a function of other expressions,
    computed at once where all are numbers.

    Raises InputError: it is not finite, or the expression becomes larger than `LARGEST`.
    """
    if all(arg.is_number for arg in args):
        with np.errstate(all="ignore"):
            return number(float(_OPERATIONS[op](*(arg.value for arg in args))))
    plain = _shortened(op, args)
    if plain is not None:
        return plain
    size = 1 + sum(arg.size for arg in args)
    if size > LARGEST:
        raise InputError(f"an expression has more than {LARGEST} parts")
    return Node(op, args, size, frozenset[str]().union(*(arg.names for arg in args)))


def _shortened(op: str, args: tuple[Node, ...]) -> Node | None:
    """Return an operation simplified by an operand of 0 or 1; None where there is none."""
    if op == "if":
        if args[0].is_number:
            return args[1] if args[0].value else args[2]
        return args[1] if args[1] == args[2] else None
    if op == "neg":
        return args[0].args[0] if args[0].op == "neg" else None
    if len(args) != 2:
        return None
    left, right = args
    if op == "/" and right == ZERO:
        raise InputError("something is divided by zero")
    if op == "*" and ZERO in args:
        return ZERO
    if op == "/" and left == ZERO:
        return ZERO
    if (op in ("+", "-") and right == ZERO) or (op in ("*", "/", "**") and right == ONE):
        return left
    if (op == "+" and left == ZERO) or (op == "*" and left == ONE):
        return right
    if op == "-" and left == ZERO:
        return make("neg", right)
    opposite = {"+": "-", "-": "+"}.get(op)
    if left.op == opposite and right.is_number and left.args[1] == right:
        first: Node = left.args[0]  # v = v + 10 is often taken back
        return first
    if op == "and":
        return _decided(left, right, ZERO)
    if op == "or":
        return _decided(left, right, ONE)
    return None


def _decided(left: Node, right: Node, deciding: Node) -> Node | None:
    """Return a condition of two of which one is known; `deciding` alone decides it."""
    for known, other in ((left, right), (right, left)):
        if known.is_number:
            return deciding if bool(known.value) == bool(deciding.value) else other
    return None


def add(left: Node, right: Node) -> Node:
    """Return the sum; a difference where the second is negative."""
    if right.op == "neg":
        return make("-", left, right.args[0])
    if right.is_number and right.value < 0:
        return make("-", left, number(-right.value))
    return make("+", left, right)


def times(left: Node, right: Node) -> Node:
    """Return the product, with signs taken out."""
    sign = 1
    if left.op == "neg":
        left, sign = left.args[0], -sign
    if right.op == "neg":
        right, sign = right.args[0], -sign
    found = make("*", left, right)
    return found if sign == 1 else make("neg", found)


def choice(condition: Node, chosen: Node, other: Node) -> Node:
    """Return one expression where a condition holds, else the other."""
    return make("if", condition, chosen, other)


def parts(node: Node) -> Iterator[Node]:
    """Yield an expression and all its parts."""
    stack = [node]
    while stack:
        part = stack.pop()
        yield part
        if not part.is_atom:
            stack.extend(part.args)


def replaced(node: Node, by: Mapping[str, Node]) -> Node:
    """Return an expression with other expressions in place of some names."""
    if not node.names & by.keys():
        return node
    if node.op == "name":
        return by[node.args[0]]
    return make(node.op, *(replaced(arg, by) for arg in node.args))


def computed(node: Node, values: Mapping[str, Any]) -> Any:
    """Return the value of an expression by NumPy: NaN or infinite where it is not defined.

    Raises:
        KeyError: a name has no value.
    """
    if node.op == "number":
        return node.value
    if node.op == "name":
        return values[node.args[0]]
    with np.errstate(all="ignore"):
        return _OPERATIONS[node.op](*(computed(arg, values) for arg in node.args))


# --- as text -------------------------------------------------------------------------------------


def written(node: Node) -> str:
    """Return the text of an expression in the language of model files."""
    return _text(node, 0)


def number_text(value: float) -> str:
    """Return the shortest text that reads as this number."""
    whole = value.is_integer() and abs(value) < 1e15
    return str(int(value)) if whole else repr(value)


def _text(node: Node, least: int) -> str:
    """Return the text, in brackets where it binds less tightly than it has to."""
    op, args = node.op, node.args
    if op == "name":
        return str(args[0])
    if op == "number":
        text = number_text(node.value)
        return f"({text})" if text.startswith("-") and least > 7 else text
    if op not in _BINDING:
        return f"{op}({', '.join(_text(arg, 0) for arg in args)})"
    binding = _BINDING[op]
    if op == "if":
        # in brackets always, because "a if c else b + 1" is easily misread
        chosen, other = _text(args[1], 1), _text(args[2], 1)
        text = f"{chosen} if {_text(args[0], 1)} else {other}"
        return f"({text})" if least > 0 else text
    if op == "neg":
        text = f"-{_text(args[0], 7)}"
    elif op == "not":
        text = f"not {_text(args[0], 3)}"
    elif op == "**":
        text = f"{_text(args[0], _ATOM)}**{_text(args[1], _ATOM)}"
    else:
        loose = op in ("+", "*", "and", "or")
        right = _text(args[1], binding if loose else binding + 1)
        left = _text(args[0], binding + (op in COMPARISONS))
        space = "" if op in ("*", "/") else " "
        text = f"{left}{space}{op}{space}{right}"
    return f"({text})" if binding < least else text


# --- taken apart ---------------------------------------------------------------------------------

#: Powers of names, sorted by name, and the coefficient of each product of them.
Monomial = tuple[tuple[str, int], ...]
Polynomial = dict[Monomial, Node]
#: Terms of a polynomial beyond which it is not multiplied out.
_MOST_TERMS = 400


class NotPolynomial(ValueError):
    """An expression is no polynomial in the given names."""


def polynomial(node: Node, of: frozenset[str]) -> Polynomial:
    """Return an expression multiplied out in some names; other factors stay together.

    Raises:
        NotPolynomial: it is no polynomial in these names, or one of too many terms.
    """
    if not node.names & of:
        return {} if node == ZERO else {(): node}
    if node.op == "name":
        return {((node.args[0], 1),): ONE}
    if node.op in ("+", "-"):
        left, right = (polynomial(arg, of) for arg in node.args)
        for key, term in right.items():
            term = make("neg", term) if node.op == "-" else term
            left[key] = add(left[key], term) if key in left else term
        return left
    if node.op == "neg":
        return {key: make("neg", term) for key, term in polynomial(node.args[0], of).items()}
    if node.op == "*":
        return _multiplied(polynomial(node.args[0], of), polynomial(node.args[1], of))
    if node.op == "/" and not node.args[1].names & of:
        return {
            key: make("/", term, node.args[1]) for key, term in polynomial(node.args[0], of).items()
        }
    if node.op == "**" and node.args[1].is_number:
        exponent = node.args[1].value
        if exponent.is_integer() and 0 < exponent <= 12:
            base = polynomial(node.args[0], of)
            result = base
            for _ in range(int(exponent) - 1):
                result = _multiplied(result, base)
            return result
    if node.op == "if" and not node.args[0].names & of:
        chosen, other = (polynomial(arg, of) for arg in node.args[1:])
        keys = dict.fromkeys((*chosen, *other))
        return {k: choice(node.args[0], chosen.get(k, ZERO), other.get(k, ZERO)) for k in keys}
    raise NotPolynomial(node.op)


def _multiplied(left: Polynomial, right: Polynomial) -> Polynomial:
    if len(left) * len(right) > _MOST_TERMS:
        raise NotPolynomial("*")
    result: Polynomial = {}
    for a, x in left.items():
        for b, y in right.items():
            powers = dict(a)
            for key, n in b:
                powers[key] = powers.get(key, 0) + n
            monomial = tuple(sorted(powers.items()))
            term = times(x, y)
            result[monomial] = add(result[monomial], term) if monomial in result else term
    return result


def factors(node: Node, over: bool = False) -> list[tuple[Node, bool]]:
    """Return the factors of a product or a quotient, each with whether it stands under the line."""
    if node.op == "*":
        return factors(node.args[0], over) + factors(node.args[1], over)
    if node.op == "/":
        return factors(node.args[0], over) + factors(node.args[1], not over)
    if node.op == "neg":
        return [(number(-1.0), over), *factors(node.args[0], over)]
    return [(node, over)]


def joined(rows: list[tuple[Node, bool]]) -> Node:
    """Return the product of factors with one denominator, numbers put together."""
    constant, above, below = 1.0, ONE, ONE
    for node, under in rows:
        if node.is_number:
            constant = constant / node.value if under else constant * node.value
        elif under:
            below = times(below, node)
        else:
            above = times(above, node)
    if constant < 0:
        above, constant = make("neg", above), -constant
    if constant != 1.0 and not math.isclose(constant, 1.0, rel_tol=1e-15):
        above = times(number(constant), above)
    return make("/", above, below)
