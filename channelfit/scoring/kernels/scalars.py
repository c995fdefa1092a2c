"""One candidate's arithmetic as text, in the two languages that kernels are written in.

A formula of the mathematics (`spectral`, `spectral_runs`) is written once, in terms of `Scalars`;
`LaneScalars` spells it in the Python of the CPU's kernels, where candidates lie side by side in
vector lanes, and `ThreadScalars` in CUDA C++, where each candidate is a thread. Sums, products and
quotients look alike in both and are plain text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from channelfit.scoring.kernels.printer import CUDA, PYTHON, Dialect
from channelfit.scoring.kernels.writers import CudaWriter, Writer


class Assignments(Protocol):
    """Names, values and choices of one candidate in a target language."""

    dialect: Dialect

    def let(self, name: str, expression: str) -> None:
        """Name a value that does not change afterwards."""

    def put(self, place: str, expression: str) -> None:
        """Store a value in a variable, or in an element of an array."""

    def choose(self, condition: str, yes: str, no: str) -> str:
        """Return a value that depends on a condition."""


class Scalars(Assignments, Protocol):
    """A target language, one candidate at a time."""

    def variable(self, name: str, expression: str) -> None:
        """Name a value that `put` may change afterwards."""

    def at(self, array: str, row: int) -> str:
        """Return an element of one of this candidate's arrays."""

    def both(self, one: str, other: str) -> str:
        """Return the condition that two conditions hold."""

    def fused(self, one: str, other: str, addend: str) -> str:
        """Return one*other + addend, rounded once; each is a name, an element or in parentheses."""

    def least(self, one: str, other: str) -> str:
        """Return the smaller of two values."""

    def most(self, one: str, other: str) -> str:
        """Return the larger of two values."""

    def size(self, value: str) -> str:
        """Return a value without its sign."""

    def root(self, value: str, normal: bool) -> str:
        """Return the square root of a value; `normal` says that it is neither 0 nor denormal."""


class LaneAssignments:
    """Assignments in Python, within a loop over lanes.

    Arguments:
        w: receives the text.
    """

    dialect = PYTHON

    def __init__(self, w: Writer) -> None:
        self.w = w

    def let(self, name: str, expression: str) -> None:
        self.w(f"{name} = {expression}")

    variable = put = let

    def choose(self, condition: str, yes: str, no: str) -> str:
        return self.dialect.choose(condition, yes, no)


class ThreadAssignments:
    """Assignments in CUDA C++, of one thread.

    Arguments:
        w: receives the text.
    """

    dialect = CUDA

    def __init__(self, w: CudaWriter) -> None:
        self.w = w

    def let(self, name: str, expression: str) -> None:
        self.w(f"const double {name} = {expression};")

    def variable(self, name: str, expression: str) -> None:
        self.w(f"double {name} = {expression};")

    def put(self, place: str, expression: str) -> None:
        self.w(f"{place} = {expression};")

    def choose(self, condition: str, yes: str, no: str) -> str:
        return self.dialect.choose(condition, yes, no)


class LaneScalars(LaneAssignments):
    """The values of one lane: Python names, or rows of the array `a`.

    Arguments:
        w: receives the text.
        lanes: candidates in a block.
        sizes: names of blocks of rows, and the rows of each.

    Attributes:
        first: the first row of each block.
        n_rows: rows in all.
    """

    def __init__(self, w: Writer, lanes: int, sizes: dict[str, int]) -> None:
        super().__init__(w)
        self.lanes, self.sizes = lanes, sizes
        self.first: dict[str, int] = {}
        self.n_rows = 0
        for name, size in sizes.items():
            self.first[name] = self.n_rows
            self.n_rows += size

    def at(self, array: str, row: int) -> str:
        return f"a[{(self.first[array] + row) * self.lanes} + l]"

    def both(self, one: str, other: str) -> str:
        return f"(({one}) & ({other}))"  # `and` would be a branch

    def fused(self, one: str, other: str, addend: str) -> str:
        return f"{one}*{other} + {addend}"  # kernels are compiled with contraction

    def least(self, one: str, other: str) -> str:
        return f"min({one}, {other})"

    def most(self, one: str, other: str) -> str:
        return f"max({one}, {other})"

    def size(self, value: str) -> str:
        return f"abs({value})"

    def root(self, value: str, normal: bool) -> str:
        return f"sqrt({value})"

    def view(self, name: str) -> str:
        """Return a block of rows as an array of its own."""
        first, size = self.first[name] * self.lanes, self.sizes[name] * self.lanes
        return f"a[{first}:{first + size}]"


class ThreadScalars(ThreadAssignments):
    """The values of one CUDA thread: constants of the type double, or elements of local arrays.

    Arguments:
        w: receives the text.
        sums: running sums, each a variable of its own.
        strainable: chains of which the rows of `strained` are variables: strained2 of chain 2.
    """

    def __init__(self, w: CudaWriter, sums: tuple[str, ...], strainable: Sequence[int]) -> None:
        super().__init__(w)
        self.sums, self.strainable = sums, strainable

    def at(self, array: str, row: int) -> str:
        if array == "strained":
            return f"strained{self.strainable[row]}"
        return array if array in self.sums else f"{array}[{row}]"

    def both(self, one: str, other: str) -> str:
        return f"({one} && {other})"

    def fused(self, one: str, other: str, addend: str) -> str:
        return f"fma({one}, {other}, {addend})"

    def least(self, one: str, other: str) -> str:
        return f"fmin({one}, {other})"

    def most(self, one: str, other: str) -> str:
        return f"fmax({one}, {other})"

    def size(self, value: str) -> str:
        return f"fabs({value})"

    def root(self, value: str, normal: bool) -> str:
        return f"rootOf({value})" if normal else f"sqrt({value})"
