"""The formula of a curve while its file is read: definitions are written out where they are used.

What comes out is the same expression, term by term, as if each definition had stood in brackets in
the place of its name; so are the kernels, the derivatives and the results to the last bit.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import NoReturn

import sympy

from channelfit.model.expressions import (
    MAX_DEPTH,
    MAX_NODES,
    ExpressionError,
    Reader,
    check_name,
    definition_order,
    parse_expression,
)
from channelfit.model.terms import V
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError, shown


def read_formula(root: Section, names: Sequence[str], taken: Sequence[str]) -> sympy.Expr:
    """Return the formula of inputs and parameters, with the definitions of the file in it.

    Arguments:
        names: of all inputs and parameters, each of which it must use.
        taken: other names that no definition may have.

    Raises:
        InputError: an expression that cannot be used, or a name or definition without a use.
    """
    texts = {"curve": root.take("curve")}
    for name, text in root.rows("definitions", {}):
        _check_definition(root, name, text, (*names, *taken))
        texts[f"definitions.{name}"] = text
    defined = {key.removeprefix("definitions."): key for key in texts if key != "curve"}
    apart = {key: _parsed(root, key, text, (*names, *defined)) for key, text in texts.items()}
    try:
        order = definition_order({name: apart[key] for name, key in defined.items()})
    except InputError as error:
        raise error.at(root.file, root.path("definitions")) from None
    _check_uses(root, apart, order)
    trees: dict[str, ast.expr] = {}
    for name in order:
        trees[name], _ = _written_out(root, defined[name], texts[defined[name]], names, trees)
    _, formula = _written_out(root, "curve", texts["curve"], names, trees)
    used = {s.name for s in formula.free_symbols}
    unused = [name for name in names if name not in used]
    if unused:
        raise root.error(f"{unused[0]} is not used in the curve; remove it, or use it", "curve")
    return formula


def _check_definition(root: Section, name: str, text: object, taken: Sequence[str]) -> None:
    key = f"definitions.{name}"
    try:
        check_name(name)
    except ExpressionError as error:
        raise error.at(root.file, root.path("definitions")) from None
    if name in taken:
        raise root.error(f"{shown(name)} already has a meaning here", key)
    if not isinstance(text, (str, int, float)) or isinstance(text, bool):
        raise root.error(f"an expression was expected, not {shown(text)}", key)


def _parsed(root: Section, key: str, text: str | float, names: Sequence[str]) -> sympy.Expr:
    """Return an expression as it stands, definitions being names in it."""
    unmentioned = () if V.name in names else (V.name,)
    try:
        found = parse_expression(text, names, unmentioned)
    except InputError as error:
        raise error.at(root.file, root.path(key)) from None
    if V in found.free_symbols and V.name not in names:
        raise root.error("v is not among the inputs", key)
    return found


def _check_uses(root: Section, apart: Mapping[str, sympy.Expr], order: Sequence[str]) -> None:
    """Raise InputError for a definition on which the curve does not depend."""
    needed = {s.name for s in apart["curve"].free_symbols}
    for name in reversed(order):
        key = f"definitions.{name}"
        if name not in needed:
            raise root.error("is not used in the curve; remove it, or use it", key)
        needed |= {s.name for s in apart[key].free_symbols}


class _WrittenOut(Reader):
    """Reads a text in which names of definitions stand for their syntax trees.

    Arguments:
        trees: by name, without names of definitions in them.

    Attributes:
        tree: that of the whole text, likewise.
    """

    def __init__(self, text: str, names: Sequence[str], trees: Mapping[str, ast.expr]) -> None:
        super().__init__(text, (*names, *trees))
        own = super().parse()
        sizes = {name: _size(tree) for name, tree in trees.items()}
        names_in = (node.id for node in ast.walk(own) if isinstance(node, ast.Name))
        if _size(own) + sum(sizes.get(name, 1) - 1 for name in names_in) > MAX_NODES:
            self.refuse("too long", None)
        self.tree: ast.expr = _InPlace(trees).visit(own)
        self.check_size(self.tree)

    def parse(self) -> ast.expr:
        """Return the syntax tree, definitions written out."""
        return self.tree

    def refuse(self, problem: str, place: ast.AST | int | None, advice: str = "") -> NoReturn:
        """Raise an ExpressionError, which names no column: that may be one of a definition.

        Each text has been read on its own before, so it is what they make together.
        """
        limits = (
            f"at most {MAX_NODES} names, numbers and operations, {MAX_DEPTH} deep, are accepted"
        )
        super().refuse(f"{problem}, with its definitions written out,", None, advice or limits)


class _InPlace(ast.NodeTransformer):
    """Puts the trees of definitions in the places of their names."""

    def __init__(self, trees: Mapping[str, ast.expr]) -> None:
        self.trees = trees

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return a name, or what it stands for."""
        return self.trees.get(node.id, node)


def _size(tree: ast.expr) -> int:
    return sum(isinstance(node, ast.expr) for node in ast.walk(tree))


def _written_out(
    root: Section, key: str, text: str | float, names: Sequence[str], trees: Mapping[str, ast.expr]
) -> tuple[ast.expr, sympy.Expr]:
    """Return the syntax tree and the expression of a text, definitions written out in both."""
    try:
        reader = _WrittenOut(text if isinstance(text, str) else repr(text), names, trees)
        return reader.tree, reader.read()
    except InputError as error:
        raise error.at(root.file, root.path(key)) from None
