"""Launches that make inner products of residuals and derivatives of currents on the GPU.

All groups of rows share a launch: a table says which blocks take which rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from channelfit.scoring.cuda_tangent_walk import RowGroup, Rows, as_bytes
from channelfit.scoring.kernels.cuda_algebra import (
    ALGEBRA_ROWS,
    ALGEBRA_THREADS,
    CONCLUDE_TANGENTS,
    MULTIPLY_TANGENTS,
    PROJECT_TANGENTS,
    PROJECTED_ROWS,
    WEIGH_TANGENTS,
    product_threads,
)
from channelfit.scoring.machine import gpu

#: The structures Projection and Part of the generated text.
PROJECTION = np.dtype(
    [(name, "i4") for name in ("matrix", "height", "depth", "n_runs", "from", "to", "begin")]
)
PART = np.dtype(
    [(name, "i4") for name in ("projected", "before", "n_rows", "begin", "end", "target")]
)


@dataclass(frozen=True, eq=False)
class Targets:
    """The recordings that candidates are compared with, on the GPU or on the host.

    Attributes:
        targets: (n_wells, n_compressed), pA times the root of a weight, subtracted in the
            compressed space of `Rows`.
        constant: (n_wells,) pA^2, of each sum of squares what no channel can change.
        total_weight: (n_wells,), of all samples.
        factors: for wells with masks of their own, by group of `Rows`, upper triangles (n_wells,
            n_runs, rank, rank) that compressed rows are multiplied with. Else empty.
    """

    targets: Any
    constant: Any
    total_weight: Any
    factors: tuple[Any, ...] = ()


class Algebra:
    """Compression of currents and inner products of their columns.

    Arguments:
        rows: the samples that are computed.
        width: columns of a row: a current and its derivatives.
        kernels: returns those of `kernels.cuda_algebra`, by name.
        multiply: the kernel of inner products, and the threads of its blocks by columns.
    """

    def __init__(
        self,
        rows: Rows,
        width: int,
        kernels: Callable[[], dict[str, gpu.CudaKernel]],
        multiply: tuple[str, Callable[[int], int]] = (MULTIPLY_TANGENTS, product_threads),
    ) -> None:
        self.rows, self.width, self._kernels, self._multiplier = rows, width, kernels, multiply
        #: groups, the rows before theirs, and those before theirs among the projected ones
        self._places: list[tuple[RowGroup, int, int]] = []
        before = projected = 0
        for group in rows.groups:
            self._places.append((group, before, projected))
            before += group.n_rows
            projected += group.n_compressed if group.matrix is not None else 0
        self._n_projected = projected

    def projected(self, currents: Any, n: int) -> Any:
        """Return the compressed rows, a flat array, of all groups that have a matrix.

        No number depends on how many candidates there are.

        Arguments:
            currents: those of n candidates, as `Tangents.trace` returns them.
        """
        width = self.width
        found = gpu.cupy().empty(self._n_projected * n * width)
        runs = [len(group.runs) for group, _, _ in self._places if group.matrix is not None]
        if runs:
            self._project(*self._projections, n, width, max(runs) * width, currents, found)
        return found

    def groups_of(self, currents: Any, projected: Any, n: int) -> Iterator[Any]:
        """Yield the compressed rows (n, n_compressed, width) of each group."""
        for group, before, to in self._places:
            whole, first = (currents, before) if group.matrix is None else (projected, to)
            begin, end = (k * n * self.width for k in (first, first + group.n_compressed))
            yield whole[begin:end].reshape(n, group.n_compressed, self.width)

    def products(self, currents: Any, n: int, targets: Targets, well: Any) -> Any:
        """Return inner products of residuals and derivatives, in parts to be added up.

        The targets are subtracted from the rows in place.

        Arguments:
            currents: as in `projected`.
            well: (n,) int32, the number of the well that each candidate is compared with, or null.

        Returns:
            (n_parts, n, entries), where the entries (i, j <= i) follow row after row.
        """
        projected = self.projected(currents, n)
        if targets.factors:
            groups = self.groups_of(currents, projected, n)
            for rows, factors in zip(groups, targets.factors, strict=True):
                if factors is not None and rows.size:
                    self._weigh(rows, factors, well, n)
        found = self._room(self._parts[1], n, self.width)
        self._multiply(currents, projected, self._parts, self.width, found, targets, well)
        return found

    def products_by_cublas(self, currents: Any, n: int, targets: Targets) -> Any:
        """Return the same for the only well, by a library that is faster for many candidates.

        It chooses the order of its sums by their number.
        """
        xp, width, first = gpu.cupy(), self.width, 0
        found = self._room(self._parts[1], n, width)
        for (group, before, _), (matrix, parts) in zip(self._places, self._alone, strict=True):
            rows = currents[before * n * width : (before + group.n_rows) * n * width]
            if matrix is not None:
                rows = xp.matmul(matrix, rows.reshape(n, matrix.shape[1], -1))
            own = found[first : first + parts[1]]
            self._multiply(rows, rows, parts, width, own, targets)
            first += parts[1]
        return found

    def conclude(
        self,
        partial: Any,
        statuses: Any,
        free: Any,
        n_parameters: int,
        targets: Targets,
        well: Any,
        results: Sequence[Any],
    ) -> None:
        """Fill in cost, status, gradient and Hessian of candidates from their inner products.

        Arguments:
            partial: as `products` returns them; they are added up in place.
            statuses: (n_statuses, n).
            free: (n_free,) int32, the parameters of the columns.
            results: gradient and Hessian are null, or zeros so far.
        """
        self._kernels()[CONCLUDE_TANGENTS](
            (partial.shape[1],),
            (ALGEBRA_THREADS,),
            (
                *(partial, np.int32(len(partial)), np.int32(self.width)),
                *(statuses, np.int32(len(statuses)), free, np.int32(n_parameters)),
                *(targets.constant, targets.total_weight, well),
                *results,
            ),
        )

    def squares(self, columns: Any) -> Any:
        """Return inner products (n, entries) of columns (n, n_rows, width) with each other.

        The entries (i, j <= i) follow row after row.
        """
        n, n_rows, width = columns.shape
        parts = _table([(0, 0, n_rows, *some, 0) for some in _cut(n_rows, ALGEBRA_ROWS)], PART)
        found = self._room(parts[1], n, width)
        self._multiply(columns, columns, parts, width, found)
        total, *others = found
        for part in others:
            total = total + part
        return total

    def times(self, matrix: Any, other: Any) -> Any:
        """Return the product (height, n_columns) of two matrices, each row as if it were alone.

        Arguments:
            matrix: (height, depth), and other: (depth, n_columns), contiguous.
        """
        (height, depth), n_columns = matrix.shape, other.shape[1]
        product = gpu.cupy().empty((height, n_columns))
        parts = [(0, height, depth, 1, 0, 0, a) for a, _ in _cut(height, PROJECTED_ROWS)]
        table = _table(parts, PROJECTION)
        self._project(matrix, table, 1, n_columns, n_columns, other, product)
        return product

    @cached_property
    def _projections(self) -> tuple[Any, tuple[Any, int]]:
        """The matrices of all groups, one after the other, and the table of their products."""
        matrices, records, begin = list[np.ndarray](), list[tuple[int, ...]](), 0
        for group, before, to in self._places:
            if group.matrix is not None:
                height, depth = group.matrix.shape
                own = begin, height, depth, len(group.runs), before, to
                records += [(*own, a) for a, _ in _cut(height, PROJECTED_ROWS)]
                matrices.append(group.matrix.ravel())
                begin += height * depth
        return gpu.cupy().asarray(np.concatenate(matrices)), _table(records, PROJECTION)

    @cached_property
    def _parts(self) -> tuple[Any, int]:
        """The table of all rows, of each group in parts."""
        return _table([record for records in self._records() for record in records], PART)

    @cached_property
    def _alone(self) -> list[tuple[Any, tuple[Any, int]]]:
        """The matrix of each group, and the table of its rows in an array of their own."""
        asarray = gpu.cupy().asarray
        return [
            (
                None if group.matrix is None else asarray(np.ascontiguousarray(group.matrix)),
                _table([(0, 0, *record[2:]) for record in records], PART),
            )
            for (group, _, _), records in zip(self._places, self._records(), strict=True)
        ]

    def _records(self) -> Iterator[list[tuple[int, ...]]]:
        """Yield the records of PART of each group."""
        target = 0
        for group, before, to in self._places:
            height, projected = group.n_compressed, group.matrix is not None
            own = int(projected), to if projected else before, height
            yield [(*own, a, b, target) for a, b in _cut(height, ALGEBRA_ROWS)]
            target += height

    @staticmethod
    def _room(n_parts: int, n: int, width: int) -> Any:
        """Return an array for inner products (n_parts, n, entries)."""
        return gpu.cupy().empty((n_parts, n, width * (width + 1) // 2))

    def _project(
        self,
        matrices: Any,
        table: tuple[Any, int],
        n: int,
        width: int,
        n_columns: int,
        rows: Any,
        products: Any,
    ) -> None:
        """Fill in products of matrices with rows of n candidates.

        Arguments:
            table: of records of PROJECTION, of which the widest has n_columns.
        """
        records, n_records = table
        self._kernels()[PROJECT_TANGENTS](
            (n, n_records, -(-n_columns // ALGEBRA_THREADS)),
            (ALGEBRA_THREADS,),
            (matrices, records, np.int32(width), rows, products),
        )

    def _weigh(self, rows: Any, factors: Any, well: Any, n: int) -> None:
        """Multiply compressed rows of a group by the factors of each candidate's well."""
        _, n_runs, rank, _ = factors.shape
        self._kernels()[WEIGH_TANGENTS](
            (n, -(-n_runs * self.width // ALGEBRA_THREADS)),
            (ALGEBRA_THREADS,),
            (factors, np.int32(rank), np.int32(n_runs), np.int32(self.width), well, rows),
        )

    def _multiply(
        self,
        currents: Any,
        projected: Any,
        table: tuple[Any, int],
        width: int,
        products: Any,
        targets: Targets | None = None,
        well: Any = gpu.NULL,
    ) -> None:
        """Fill in inner products (n_parts, n, entries) of the columns of rows.

        Arguments:
            table: of records of PART.
        """
        records, n_parts = table
        subtracted = gpu.NULL if targets is None else targets.targets
        compared = subtracted, np.int32(self.rows.n_compressed), well
        if n_parts:
            kernel, threads = self._multiplier
            self._kernels()[kernel](
                (products.shape[1], n_parts),
                (threads(width),),
                (currents, projected, records, np.int32(width), *compared, products),
            )


def _cut(n: int, most: int) -> list[tuple[int, int]]:
    """Return ranges of at most so many rows, one after the other."""
    return [(a, min(a + most, n)) for a in range(0, n, most)]


def _table(records: Sequence[tuple[int, ...]], kind: np.dtype) -> tuple[Any, int]:
    """Return records as bytes on the GPU, and their number."""
    return gpu.cupy().asarray(as_bytes(np.array(records, dtype=kind))), len(records)
