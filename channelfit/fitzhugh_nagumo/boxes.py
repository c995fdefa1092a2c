"""The equation in two and three dimensions: split into reaction and diffusion along each axis.

    half a step of reaction, a step of diffusion, half a step of reaction        (Strang 1968)

Diffusion takes Crank-Nicolson along one axis after the other. On a box the second differences of
different axes commute, so the product of these steps is as exact as their sum: order two in time,
unconditionally stable, and nothing but tridiagonal systems with constant coefficients, whose
factors are computed once. Reaction is a pair of ordinary equations at every node (midpoint rule);
two neighboring half steps are one.

Ends without flux or periodic; a value held at a face would not commute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from channelfit.errors import InputError
from channelfit.fitzhugh_nagumo.cuda_source import boxes_text
from channelfit.fitzhugh_nagumo.equation import Array, Equation, check_step
from channelfit.fitzhugh_nagumo.tridiagonal import kernel

_LINES = 64  # side by side; the kernel has it as a literal


@dataclass(frozen=True)
class Box:
    """A grid of two or three dimensions.

    shape: nodes along each axis. dx: spacing, one for all or one each. ends: "no_flux" or
    "periodic", one for all or one each.
    """

    shape: tuple[int, ...]
    dx: float | tuple[float, ...] = 0.5
    ends: str | tuple[str, ...] = "no_flux"

    def __post_init__(self) -> None:
        if len(self.shape) not in (2, 3) or min(self.shape) < 3:
            raise InputError(f"{self.shape}: two or three axes of at least 3 nodes", key="shape")
        if len(self.spacings) != len(self.shape) or not all(d > 0 for d in self.spacings):
            raise InputError(f"{self.dx}: one positive spacing for each axis", key="dx")
        if len(self.kinds) != len(self.shape) or set(self.kinds) - {"no_flux", "periodic"}:
            raise InputError(f"{self.ends}: no_flux or periodic for each axis", key="ends")

    @property
    def spacings(self) -> tuple[float, ...]:
        """Of each axis."""
        return self.dx if isinstance(self.dx, tuple) else (float(self.dx),) * len(self.shape)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Ends of each axis."""
        return self.ends if isinstance(self.ends, tuple) else (self.ends,) * len(self.shape)

    def axes(self) -> list[Array]:
        """Places of the nodes along each axis, shaped to broadcast against one another."""
        places = [d * np.arange(n) for n, d in zip(self.shape, self.spacings, strict=True)]
        return list(np.meshgrid(*places, indexing="ij", sparse=True))


@dataclass(frozen=True)
class Factors:
    """Crank-Nicolson's matrix along an axis, eliminated: (n,) each; `around` closes a ring."""

    r: float
    inverse: Array
    upper: Array
    around: Array
    closing: float

    @classmethod
    def of(cls, n: int, r: float, periodic: bool) -> Factors:
        """1 + 2r on the diagonal, -r beside it, -2r beside an end without flux."""
        diagonal, low, high = np.full(n, 1 + 2 * r), np.full(n, r), np.full(n, r)
        low[0] = high[-1] = 0.0
        if periodic:  # Sherman and Morrison
            diagonal[0] += 1 + 2 * r
            diagonal[-1] += r * r / (1 + 2 * r)
        else:
            high[0] = low[-1] = 2 * r
        inverse, upper = np.empty(n), np.empty(n)
        before = 0.0
        for i in range(n):
            inverse[i] = 1 / (diagonal[i] - low[i] * before)
            before = upper[i] = high[i] * inverse[i]
        around, closing = np.empty(0), 0.0
        if periodic:
            column = np.zeros(n)
            column[0], column[-1] = -(1 + 2 * r), -r
            for i in range(n):
                column[i] = (column[i] + (r * column[i - 1] if i else 0.0)) * inverse[i]
            for i in range(n - 2, -1, -1):
                column[i] += upper[i] * column[i + 1]
            ratio = r / (1 + 2 * r)
            around = column
            closing = 1 / (1 + column[0] + ratio * column[-1])
        return cls(r, inverse, upper, around, closing)


@kernel
def _diffuse(first: int, last: int, values: Array, n: int, inner: int, r: float, inverse: Array,
             upper: Array, around: Array, closing: float) -> None:  # fmt: skip
    """Blocks first .. last-1 of 64 lines of n nodes, `inner` apart, of flat values."""
    lines = len(values) // n
    ring = len(around) > 0
    old, new = np.zeros(n * 64), np.zeros((n + 1) * 64)
    factor = np.zeros(64)
    for block in range(first, last):
        count = min(64, lines - block * 64)
        for l in range(count):  # noqa: E741
            line = block * 64 + l
            start = line // inner * inner * n + line % inner
            for i in range(n):
                old[i * 64 + l] = values[start + i * inner]
        for i in range(n):
            low = 0.0 if i == 0 and not ring else (2 * r if i == n - 1 and not ring else r)
            high = 2 * r if i == 0 and not ring else (0.0 if i == n - 1 and not ring else r)
            before = i - 1 if i > 0 else (n - 1 if ring else 1)
            after = i + 1 if i < n - 1 else (0 if ring else n - 2)
            left, right = old[before * 64 : before * 64 + 64], old[after * 64 : after * 64 + 64]
            here = old[i * 64 : i * 64 + 64]
            row = new[i * 64 : i * 64 + 128]  # row i is kept at i + 1
            scale, keep = inverse[i], 1 - low - high
            below = 0.0 if i == 0 else low
            for l in range(64):  # noqa: E741
                known = keep * here[l] + low * left[l] + high * right[l]
                row[64 + l] = (known + below * row[l]) * scale
        for j in range(1, n):
            i = n - 1 - j
            pair, c = new[(i + 1) * 64 : (i + 3) * 64], upper[i]
            for l in range(64):  # noqa: E741
                pair[l] += c * pair[64 + l]
        if ring:
            ratio = r / (1 + 2 * r)
            for l in range(64):  # noqa: E741
                factor[l] = (new[64 + l] + ratio * new[n * 64 + l]) * closing
            for i in range(n):
                row, c = new[(i + 1) * 64 : (i + 2) * 64], around[i]
                for l in range(64):  # noqa: E741
                    row[l] -= c * factor[l]
        for l in range(count):  # noqa: E741
            line = block * 64 + l
            start = line // inner * inner * n + line % inner
            for i in range(n):
                values[start + i * inner] = new[(i + 1) * 64 + l]
        for l in range(64):  # noqa: E741
            new[l] = 0.0


@kernel
def _react(v: Array, w: Array, a: float, gamma: float, epsilon: float, dt: float) -> None:
    """Midpoint rule for v_t = v (1 - v) (v - a) - w, w_t = epsilon (v - gamma w), flat arrays."""
    half = dt / 2
    for i in range(len(v)):
        x, y = v[i], w[i]
        x1 = x + half * (x * (1 - x) * (x - a) - y)
        y1 = y + half * epsilon * (x - gamma * y)
        v[i] = x + dt * (x1 * (1 - x1) * (x1 - a) - y1)
        w[i] = y + dt * epsilon * (x1 - gamma * y1)


class Splitting:
    """Reaction and diffusion in turn, on a box.

    Arguments:
        n_threads: that share lines and nodes on the processor.
        device: a `cuda.Device` to compute on; the processor without it.
    """

    name = "splitting"

    def __init__(
        self, equation: Equation, box: Box, n_threads: int = 1, device: Any = None
    ) -> None:
        if equation.n_cables != 1:
            raise InputError("a box takes one set of parameters")
        self.equation, self.box, self.n_threads, self.device = equation, box, n_threads, device
        self._values = [float(x) for x in equation.table(1)[0]]
        self._launch = device.program(boxes_text("float64")) if device else None

    def largest_step(self) -> float:
        """Diffusion has no limit; the midpoint rule's is 2 over the steepest reaction, 1 - a."""
        return 2 / max(1 - self._values[0], self._values[0], 1.0)

    def advance(self, v: Array, w: Array, dt: float, n_steps: int) -> tuple[Array, Array]:
        """n_steps steps of dt.

        Arguments:
            v, w: of the box's shape.

        Returns: the new v and w.

        Raises:
            InputError: a step that is too large, a state of another shape.
        """
        check_step(dt, self.largest_step(), self.name)
        for name, state in (("v", v), ("w", w)):
            if state.shape != self.box.shape:
                raise InputError(f"{state.shape}, where the box is {self.box.shape}", key=name)
        diffusion = self._values[3]
        factors = [
            Factors.of(n, diffusion * dt / (2 * d * d), kind == "periodic")
            for n, d, kind in zip(self.box.shape, self.box.spacings, self.box.kinds, strict=True)
        ]
        run = self._on_processor if self.device is None else self._on_device
        return run(v, w, dt, n_steps, factors)

    def _on_processor(
        self, v: Array, w: Array, dt: float, n_steps: int, factors: Sequence[Factors]
    ) -> tuple[Array, Array]:
        v, w = np.array(v, dtype=float, order="C"), np.array(w, dtype=float, order="C")
        flat = v.reshape(-1), w.reshape(-1)
        parts = np.linspace(0, v.size, 4 * self.n_threads + 1).astype(int)
        with ThreadPoolExecutor(self.n_threads) as pool:

            def part(i: int, j: int, length: float) -> None:
                a, gamma, epsilon, _ = self._values
                _react(flat[0][i:j], flat[1][i:j], a, gamma, epsilon, length)

            def react(length: float) -> None:
                edges = parts.tolist()
                list(pool.map(part, edges, edges[1:], [length] * (len(edges) - 1)))

            react(dt / 2)
            for step in range(n_steps):
                for axis, f in enumerate(factors):
                    n, inner = v.shape[axis], math.prod(v.shape[axis + 1 :])
                    blocks = -(-v.size // n // _LINES)
                    edges = np.linspace(0, blocks, min(blocks, 4 * self.n_threads) + 1).astype(int)

                    def diffuse(
                        i: int, j: int, n: int = n, inner: int = inner, f: Factors = f
                    ) -> None:
                        _diffuse(
                            i, j, flat[0], n, inner, f.r, f.inverse, f.upper, f.around, f.closing
                        )

                    list(pool.map(diffuse, edges[:-1].tolist(), edges[1:].tolist()))
                react(dt if step + 1 < n_steps else dt / 2)
        return v, w

    def _on_device(
        self, v: Any, w: Any, dt: float, n_steps: int, factors: Sequence[Factors]
    ) -> tuple[Any, Any]:
        """The last axis is solved on transposed values: neighboring threads read neighbors."""
        device, shape = self.device, self.box.shape
        v, w = device.array(v, "float64"), device.array(w, "float64")
        tables = [
            [
                device.array(a if a.size else np.zeros(1), "float64")
                for a in (f.inverse, f.upper, f.around)
            ]
            for f in factors
        ]
        scratch = device.empty((v.size,), "float64")
        a, gamma, epsilon, _ = (np.float64(x) for x in self._values)
        blocks = -(-v.size // 256)

        def react(length: float) -> None:
            self._launch(
                "react",
                blocks,
                256,
                (v, w, a, gamma, epsilon, np.float64(length), np.int64(v.size)),
                0,
            )  # type: ignore[misc]

        react(dt / 2)
        for step in range(n_steps):
            for axis, (f, table) in enumerate(zip(factors, tables, strict=True)):
                n, inner = shape[axis], math.prod(shape[axis + 1 :])
                turned = axis == len(shape) - 1
                if turned:
                    v, inner = device.array(v.reshape(-1, n).T, "float64"), v.size // n
                self._launch(  # type: ignore[misc]
                    "diffuse", -(-v.size // n // 128), 128,
                    (v, scratch, *table, np.float64(f.r), np.float64(f.closing),
                     np.int64(v.size // n), np.int32(n), np.int64(inner),
                     np.int32(f.around.size > 0)), 0,
                )  # fmt: skip
                if turned:
                    v = device.array(v.reshape(n, -1).T, "float64").reshape(shape)
            react(dt if step + 1 < n_steps else dt / 2)
        return v, w
