"""Writing source that works on many candidates side by side, and small matrices in that style.

A *lane* is one candidate of a block. Every array ends in the lane index, every innermost loop runs
over it with a constant count, and offsets are literal, so that LLVM turns each statement into
vector instructions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from channelfit.scoring.kernels.integration import TAYLOR
from channelfit.scoring.kernels.writers import Writer

UNROLLED_STATES = 4  # matrices up to this size are written out, larger ones are loops over rows
#: From so many states on a row is a loop, too: written out, it would compile for most of a minute.
LOOPED_STATES = 15
_ROWS, _TERMS = 4, 8  # of a product in loops: rows of it, and terms of their sums, taken at once
#: Rows that one loop over lanes stores at most: LLVM compares each of them with each other.
_MOST_ROWS = 128


def loops_of(sizes: Sequence[int]) -> list[slice]:
    """Return slices of some items, each of so many rows, that share a loop over lanes."""
    first, begun, rows = 0, [], 0
    for k, size in enumerate(sizes):
        if rows and rows + size > _MOST_ROWS:
            begun.append(slice(first, k))
            first, rows = k, 0
        rows += size
    return [*begun, slice(first, len(sizes))]


class LaneWriter:
    """Text for one block of lanes; matrices live in `m`, an array of n_square-row squares.

    Arguments:
        lanes: candidates in a block.
        real: "float64" or "float32", the precision of matrices and stepping.
        n_square: rows of lanes that a square takes, that of the largest matrix.
    """

    def __init__(self, lanes: int, real: str, n_square: int) -> None:
        self.lanes, self.real, self.n_square = lanes, real, n_square
        self.w = Writer()

    def at(self, name: str, row: int | str) -> str:
        """Return this lane's element in a row of a flat array; a row given as text is computed."""
        if isinstance(row, int):
            if self.lanes == 1:
                return f"{name}[{row}]"
            return f"{name}[{row * self.lanes} + l]" if row else f"{name}[l]"
        return f"{name}[({row})*{self.lanes} + l]"

    def number(self, value: float) -> str:
        """Return a literal of the stepping precision, which does not widen the other operand."""
        return repr(value) if self.real == "float64" else f"float32({value!r})"

    def over_lanes(self) -> Writer:
        """Open the loop over lanes, the innermost."""
        return self.w.block(f"for l in range({self.lanes}):")

    def function(self, head: str, doc: str) -> Writer:
        """Open a function."""
        self.w("", "")
        self.w(f"def {head}:")
        self.w(f'    """{doc}"""')
        return self.w

    def zero_square(self, name: str, square: int, n: int) -> None:
        """Set an n x n square of zeros."""
        start = square * self.n_square * self.lanes
        with self.w.block(f"for k in range({n * n * self.lanes}):"):
            self.w(f"{name}[{start} + k] = 0.0")

    def element(self, square: int, i: int | str, j: int | str, n: int) -> str:
        """Return element (i, j) of an n x n matrix in a square of `m`."""
        if isinstance(i, int) and isinstance(j, int):
            return self.at("m", square * self.n_square + i * n + j)
        return self.at("m", f"{square * self.n_square} + {i}*{n} + {j}")

    def product(self, left: int, right: int, out: int, n: int) -> None:
        """Write out = left @ right: squares of the scratch array m."""
        w = self.w
        if n <= UNROLLED_STATES:
            with self.over_lanes():
                pairs = [(i, j) for i in range(n) for j in range(n)]
                w(*(f"a{i}_{j} = {self.element(left, i, j, n)}" for i, j in pairs))
                if left != right:
                    w(*(f"b{i}_{j} = {self.element(right, i, j, n)}" for i, j in pairs))
                b = "a" if left == right else "b"
                for i in range(n):
                    for j in range(n):
                        terms = " + ".join(f"a{i}_{s}*{b}{s}_{j}" for s in range(n))
                        w(f"{self.element(out, i, j, n)} = {terms}")
            return
        views = ", ".join(self._view(sq) for sq in (left, right, out))
        w(f"product{n}({views})")

    def _view(self, square: int) -> str:
        start = square * self.n_square * self.lanes
        return f"m[{start}:{start + self.n_square * self.lanes}]"

    def product_function(self, n: int) -> None:
        """Write a function, of loops, that multiplies two n x n matrices in every lane."""
        w = self.w
        with self.function(f"product{n}(a, b, out)", "out = a b."):
            if n >= LOOPED_STATES:
                self.multiply("a", "b", "out", (n, n, n), self.real)
                return
            row = n * self.lanes
            with w.block(f"for i in range({n}):"):
                w(f"left = a[i*{row}:(i + 1)*{row}]", f"result = out[i*{row}:(i + 1)*{row}]")
                with self.over_lanes():
                    w(*(f"a{s} = {self.at('left', s)}" for s in range(n)))
                    for j in range(n):
                        terms = (f"a{s}*{self.at('b', s * n + j)}" for s in range(n))
                        w(f"{self.at('result', j)} = {' + '.join(terms)}")

    def multiply(
        self, left: str, right: str, out: str, sizes: tuple[int, int, int], real: str
    ) -> None:
        """Write out = left right of flat arrays, in loops alone;
        `out` may be a row of the others.

        Some rows and some terms are taken at once, so that loaded numbers are used more than once.

        Arguments:
            sizes: rows of `left`, terms of each sum, columns of `right`.
            real: the type of the sums.
        """
        w, (n_rows, n_terms, n_columns) = self.w, sizes
        length = n_columns * self.lanes
        w(f"sums = np.empty({min(_ROWS, n_rows) * length}, np.{real})")
        for rows in self._in_parts("i", n_rows, _ROWS):
            with w.block(f"for k in range({rows * length}):"):
                w("sums[k] = 0.0")
            for terms in self._in_parts("s", n_terms, _TERMS):
                with w.block(f"for j in range({n_columns}):"), self.over_lanes():
                    at = [self.at(right, f"(s + {t})*{n_columns} + j") for t in range(terms)]
                    w(*(f"b{t} = {element}" for t, element in enumerate(at)))
                    for r in range(rows):
                        at = [self.at(left, f"(i + {r})*{n_terms} + s + {t}") for t in range(terms)]
                        total = " + ".join(f"{element}*b{t}" for t, element in enumerate(at))
                        w(f"{self.at('sums', f'{r * n_columns} + j')} += {total}")
            with w.block(f"for k in range({rows * length}):"):
                w(f"{out}[i*{length} + k] = sums[k]")

    def _in_parts(self, name: str, n: int, size: int) -> Iterator[int]:
        """Open a loop over 0 .. n - 1, `size` at a time; the remainder follows."""
        rest = n % size
        if n > rest:
            with self.w.block(f"for {name} in range(0, {n - rest}, {size}):"):
                yield size
        if rest:
            self.w(f"{name} = {n - rest}")
            yield rest

    def combine(
        self, out: int, terms: Sequence[tuple[float, int]], identity: float, n: int
    ) -> None:
        """Write out = identity * I + sum factor * square."""
        size = self.n_square * self.lanes
        with self.w.block(f"for k in range({n * n * self.lanes}):"):
            parts = [f"{self.number(factor)}*m[{sq * size} + k]" for factor, sq in terms]
            self.w(f"m[{out * size} + k] = {' + '.join(parts)}")
        with self.over_lanes():
            self.w(*(f"{self.element(out, i, i, n)} += {self.number(identity)}" for i in range(n)))

    def close_columns(self, square: int, n: int) -> None:
        """Write the diagonal as one less the rest of its column, so that nothing is negative."""
        if n > UNROLLED_STATES:
            self.w(f"closeColumns{n}({self._view(square)})")
        else:
            self._close("m", square * self.n_square, n)

    def close_columns_function(self, n: int) -> None:
        """Write a function that closes the columns of one square."""
        with self.function(f"closeColumns{n}(a)", "Diagonal: one minus the rest of the column."):
            if n >= LOOPED_STATES:
                self._close_in_loops(n)
            else:
                self._close("a", 0, n)

    def _close_in_loops(self, n: int) -> None:
        """Close columns row by row, as they lie in memory; sums keep the order of `_close`."""
        w, zero, one = self.w, self.number(0.0), self.number(1.0)
        w(f"sums = np.zeros({n * self.lanes}, np.{self.real})")
        with w.block(f"for i in range({n}):"):
            for some in ("range(i)", f"range(i + 1, {n})"):
                with w.block(f"for j in {some}:"), self.over_lanes():
                    w(f"{self.at('sums', 'j')} += {self.at('a', f'i*{n} + j')}")
        with w.block(f"for j in range({n}):"), self.over_lanes():
            w(f"{self.at('a', f'j*{n} + j')} = max({zero}, {one} - {self.at('sums', 'j')})")

    def _close(self, name: str, first: int, n: int) -> None:
        zero, one = self.number(0.0), self.number(1.0)
        with self.over_lanes():
            for j in range(n):
                others = [self.at(name, first + i * n + j) for i in range(n) if i != j]
                rest = f"{one} - ({' + '.join(others) or zero})"
                # two states relax, past 1 where the limit is above 1
                self.w(f"d{j} = {rest}" if n == 2 else f"d{j} = max({zero}, {rest})")
            self.w(*(f"{self.at(name, first + j * n + j)} = d{j}" for j in range(n)))

    def square(self, n: int) -> None:
        """Write P <- P P, with closed columns."""
        self.product(0, 0, 1, n)
        self.close_columns(1, n)
        self._copy(1, 0, n)

    def _copy(self, source: int, target: int, n: int) -> None:
        start, end = (square * self.n_square * self.lanes for square in (source, target))
        with self.w.block(f"for k in range({n * n * self.lanes}):"):
            self.w(f"m[{end} + k] = m[{start} + k]")

    def square_where_wanted(self, n: int) -> None:
        """Write P <- P P for the lanes that still have squarings to do, with closed columns."""
        w, level = self.w, self.at("norm", 1)
        one, zero = self.number(1.0), self.number(0.0)
        # Blended by a factor of 0 or 1: a choice per element would keep LLVM from vectorizing.
        with self.over_lanes():
            w(f"more[l] = {one} if level < {level} else {zero}")
        if n > UNROLLED_STATES:
            self.product(0, 0, 1, n)
            self.close_columns(1, n)
            with w.block("if level < n_common:"):
                self._copy(1, 0, n)
            with w.block("else:"), w.block(f"for k in range({n * n}):"), self.over_lanes():
                first, second = self.at("m", "k"), self.at("m", f"{self.n_square} + k")
                w(f"{first} = more[l]*{second} + ({one} - more[l])*{first}")
            return
        with self.over_lanes():
            w(f"keep = {one} - more[l]")
            w(*(f"a{i}_{j} = {self.element(0, i, j, n)}" for i in range(n) for j in range(n)))
            for j in range(n):
                others = [i for i in range(n) if i != j]
                for i in others:
                    w(f"b{i}_{j} = " + " + ".join(f"a{i}_{s}*a{s}_{j}" for s in range(n)))
                total = " + ".join(f"b{i}_{j}" for i in others) or self.number(0.0)
                w(f"b{j}_{j} = max({self.number(0.0)}, {self.number(1.0)} - ({total}))")
            for i in range(n):
                for j in range(n):
                    w(f"{self.element(0, i, j, n)} = more[l]*b{i}_{j} + keep*a{i}_{j}")

    def taylor(self, n: int) -> None:
        """Write exp of square 1 into square 0,
        of degree 12 in five products (Paterson, Stockmeyer).
        """
        c = TAYLOR
        self.product(1, 1, 2, n)
        self.product(2, 1, 3, n)
        self.product(2, 2, 4, n)
        self.combine(5, [(c[12], 4), (c[11], 3), (c[10], 2), (c[9], 1)], c[8], n)
        self.product(5, 4, 0, n)
        self.combine(5, [(1.0, 0), (c[7], 3), (c[6], 2), (c[5], 1)], c[4], n)
        self.product(5, 4, 0, n)
        self.combine(0, [(1.0, 0), (c[3], 3), (c[2], 2), (1.0, 1)], 1.0, n)
