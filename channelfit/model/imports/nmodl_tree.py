"""The syntax tree of a .mod file, from the output of NEURON's parser, with line numbers.

The parser writes its tree as JSON without saying where anything stood. Since the tree holds the
names and numbers of the file in their order, each is looked for in the text behind the one before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from channelfit.reading.errors import InputError

#: Kinds that only wrap another one.
_WRAPPERS = {"WrappedExpression", "ParenExpression", "VarName", "ExpressionStatement", "String"}
_TOKEN = re.compile(r"\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|[A-Za-z_]\w*")
#: The number of further names and numbers among which one is looked for.
_AHEAD = 60
_TOO_DEEP = "expressions or blocks are nested too deeply"


@dataclass
class Tree:
    """One piece of a .mod file.

    Attributes:
        kind: as NEURON's parser calls it, such as "IfStatement"; a name is "Name", a number
            "Double" or "Integer".
        children: its pieces.
        text: of a name, a number, an operator or a unit.
        line: where it begins.
    """

    kind: str
    children: list[Tree] = field(default_factory=list)
    text: str = ""
    line: int = 0

    def all(self, *kinds: str) -> list[Tree]:
        """Return the pieces of these kinds that stand directly in this one."""
        return [child for child in self.children if child.kind in kinds]

    def walk(self) -> Iterator[Tree]:
        """Yield this node and all nodes inside it, in the order of the file."""
        stack = [self]
        while stack:
            tree = stack.pop()
            yield tree
            stack.extend(reversed(tree.children))

    @property
    def name(self) -> str:
        """The first name inside this piece; empty where there is none."""
        return next((tree.text for tree in self.walk() if tree.kind == "Name"), "")


def read_tree(answer: str, text: str) -> Tree:
    """Return the tree of a file.

    Arguments:
        answer: of the parser, as JSON.
        text: what was parsed.

    Raises InputError: it is nested too deeply.
    """
    try:
        return _TreeReader(text).read(json.loads(answer))
    except RecursionError:
        raise InputError(_TOO_DEEP) from None


class _TreeReader:
    def __init__(self, text: str) -> None:
        self.tokens = [
            (found[0], k)
            for k, line in enumerate(text.split("\n"), 1)
            for found in _TOKEN.finditer(line)
        ]
        self.place = 0
        self.line = 1

    def read(self, answer: dict[str, Any]) -> Tree:
        (kind, pieces), *_ = answer.items()
        if kind == "name":
            return self._leaf("Text", str(pieces))
        if kind in ("Name", "Double", "Integer", "Float", "Boolean", "PrimeName"):
            found = self._leaf(kind, _text_of(pieces))
            return found
        if kind in ("Unit", "BinaryOperator", "UnaryOperator", "ReactionOperator"):
            return Tree(kind, [], _text_of(pieces), self.line)
        children = [self.read(piece) for piece in pieces]
        if kind in _WRAPPERS and len(children) == 1:
            return children[0]
        line = next((child.line for child in children if child.line), self.line)
        return Tree(kind, children, "", line)

    def _leaf(self, kind: str, text: str) -> Tree:
        for place in range(self.place, min(self.place + _AHEAD, len(self.tokens))):
            if self.tokens[place][0] == text:
                self.place, self.line = place + 1, self.tokens[place][1]
                break
        return Tree(kind, [], text, self.line)


def _text_of(pieces: Any) -> str:
    """Return the text at the end of the first branch of a piece."""
    while not isinstance(pieces, str):
        pieces = pieces[0] if isinstance(pieces, list) else next(iter(pieces.values()))
    return pieces
