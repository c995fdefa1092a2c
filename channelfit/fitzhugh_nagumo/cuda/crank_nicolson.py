"""Crank-Nicolson on a GPU: the tiles of a cable, and the launches of the kernels.

`crank_nicolson_source` has the text of the kernels and describes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from channelfit.fitzhugh_nagumo.crank_nicolson import NEGLIGIBLE, StepCoefficients, reach
from channelfit.fitzhugh_nagumo.cuda.crank_nicolson_source import crank_nicolson_text
from channelfit.fitzhugh_nagumo.cuda.device import CableDevice, DeviceScheme, Launch
from channelfit.fitzhugh_nagumo.equation import (
    Array,
    Cable,
    Equation,
    NotConverged,
    largest_implicit_step,
)
from channelfit.reading.errors import InputError


class BlockShape(NamedTuple):
    """The nodes of a thread (2 to 16), the threads of a block (a power of two), and the number of
    blocks that must fit on a multiprocessor.
    """

    nodes: int = 16
    threads: int = 128
    blocks: int = 2

    @property
    def size(self) -> int:
        """Return the number of nodes of a block."""
        return self.nodes * self.threads


#: The shapes of usual tiles, and of wide ones for cables on which the influence of an end extends
#: over many nodes; and the shares of a usual and of a wide tile that must not be overlap.
_USUAL, _WIDE = BlockShape(), BlockShape(16, 512, 1)
_FEWEST_USEFUL, _FEWEST_USEFUL_WIDE = 0.6, 0.25
#: The number of Newton's iterations that are queued where nothing waits for the host, and of the
#: threads that solve the system that joins the parts.
_ITERATIONS, _JOINERS = 8, 512
#: The error that an overlap may cause in values of the order of one.
_NEGLIGIBLE = {"float64": NEGLIGIBLE, "float32": 1e-9}
#: The error of v that Newton's method may leave.
TOLERANCE = {"float64": 1e-12, "float32": 1e-6}


@dataclass(frozen=True)
class _Tiles:
    """The tiles of a cable.

    Attributes:
        steps: the number of steps of a pass.
        halo: the overlap in nodes.
        whole: whether one tile holds the whole cable.
    """

    shape: BlockShape
    steps: int
    halo: int
    whole: bool

    def words(self) -> str:
        """Return the tiles in words, for benchmarks and tests."""
        if self.whole:
            return f"one tile of {self.shape.size} nodes"
        tiles = f"tiles of {self.shape.size} nodes that overlap by {self.halo}"
        return f"{tiles}, {self.steps} steps a pass"


class CrankNicolsonCuda(DeviceScheme):
    """Crank-Nicolson on a GPU.

    Arguments:
        dtype: "float64", or "float32", which errs by up to 1e-6 dt/dx^2.
        shape: of the usual tiles.
        steps: the most steps of a pass.
        solver: "tiles"; "parts", which solves one system over memory; or "auto", which takes tiles,
            usual or wide, where the influence of their ends does not reach too far.
        tolerance: the error of v that Newton's method may leave.
        device: the device that runs it, by default CuPy's.
    """

    name = "Crank-Nicolson"
    arrays = (7, 20, 0)

    def __init__(
        self,
        equation: Equation,
        cable: Cable,
        dtype: str = "float64",
        shape: BlockShape = _USUAL,
        steps: int = 4,
        solver: str = "auto",
        tolerance: float | None = None,
        device: CableDevice | None = None,
    ) -> None:
        super().__init__(equation, cable, dtype, device)
        if solver not in ("auto", "tiles", "parts"):
            raise InputError(f'"{solver}" is neither auto, tiles nor parts', key="solver")
        self.shape, self.steps, self.solver = shape, steps, solver
        self.tolerance = TOLERANCE[dtype] if tolerance is None else tolerance
        self.way = ""  # in words, how the last steps were solved
        self._status = self._no_flags()

    def _no_flags(self) -> Any:
        """Return the flags of the kernels.

        These are an unused one, whether Newton's method failed, and whether each iteration has to
        be done.
        """
        return self.device.array([0, 0, 1] + [0] * _ITERATIONS, "int32")

    def largest_step(self, v: Any) -> float:
        """Return the longest step that is allowed; see `largest_implicit_step`."""
        return largest_implicit_step(self.equation)

    def failed(self) -> bool:
        """Return whether Newton's method has failed anywhere since the last call."""
        if not self.device.host(self._status)[1]:
            return False
        self._status = self._no_flags()
        return True

    def take(self, values: Any) -> Array:
        """Return a copy of the state on the host, as float64.

        Raises:
            NotConverged: Newton's method has failed since the last call.
        """
        if self.failed():
            raise NotConverged("Newton's method did not converge; take a shorter step", key="dt")
        return super().take(values)

    def advance(
        self, v: Any, w: Any, dt: float, n_steps: int, drive: Array | None = None
    ) -> tuple[Any, Any]:
        """Make n_steps steps of length dt under one stimulus; see `Scheme.advance`."""
        n_cables, n = v.shape

        def coefficients() -> tuple[Any, float]:
            made = StepCoefficients.of(self.equation, n_cables, self.cable.dx, dt)
            return self.device.array(made.rows().T, self.dtype), made.decay()

        rows, decay = self._cached(n_cables, dt, coefficients)
        push = self._drive(drive)
        tiles = self._tiles(n, decay, n_steps)
        shape = self.shape if tiles is None else tiles.shape
        launch = self._program(crank_nicolson_text(self.dtype, *shape, drive is not None))
        self.way = "one system over memory, in parts" if tiles is None else tiles.words()
        if tiles is None:
            return self._in_parts(launch, v, w, n_steps, rows, push)
        levels = cyclic_levels(decay**shape.nodes, shape.threads, _NEGLIGIBLE[self.dtype])
        return self._in_tiles(launch, v, w, n_steps, rows, push, tiles, levels)

    def _tiles(self, n: int, decay: float, n_steps: int) -> _Tiles | None:
        """Return the tiles of cables of n nodes; None where the system is solved over memory."""
        if self.solver == "parts":
            return None
        shapes = [(self.shape, _FEWEST_USEFUL), (_WIDE, _FEWEST_USEFUL_WIDE)]
        for shape, fewest in shapes if self.solver == "auto" else shapes[:1]:
            if n <= shape.size and not self.cable.periodic:
                return _Tiles(shape, n_steps, 0, True)
            for steps in range(min(self.steps, n_steps), 0, -1):
                distance = reach(decay, steps, _NEGLIGIBLE[self.dtype])
                halo = -(-int(min(distance, shape.size)) // shape.nodes) * shape.nodes
                if shape.size - 2 * halo >= fewest * shape.size:
                    return _Tiles(shape, steps, halo, False)
        if self.solver == "tiles":
            raise InputError(
                f"the ends of a tile have an influence on more than its {self.shape.size} nodes",
                key="dt",
            )
        return None

    def _in_tiles(
        self,
        launch: Launch,
        v: Any,
        w: Any,
        n_steps: int,
        rows: Any,
        push: Any,
        tiles: _Tiles,
        levels: int,
    ) -> tuple[Any, Any]:
        """Make a few steps for each pass over memory, with a tile of a cable in each block."""
        n_cables, n = v.shape
        nodes, threads, _ = tiles.shape
        n_tiles = 1 if tiles.whole else -(-n // (tiles.shape.size - 2 * tiles.halo))
        reals = 2 * threads * (nodes + 1) + 6 * threads
        shared = reals * np.dtype(self.dtype).itemsize
        sizes = np.int64(n), np.int32(n_tiles), np.int32(tiles.halo)
        last = *self._kinds, np.int32(tiles.whole), self._real(self.tolerance)

        def one_pass(v: Any, w: Any, v_new: Any, w_new: Any, count: int) -> None:
            state = v, w, push, v_new, w_new, rows, self._status[1:]
            arguments = (*state, *sizes, np.int32(count), np.int32(levels), *last)
            launch("crank_nicolson_tiles", n_tiles * n_cables, threads, arguments, shared)

        return self._in_passes(v, w, n_steps, tiles.steps, one_pass)

    def _in_parts(
        self, launch: Launch, v: Any, w: Any, n_steps: int, rows: Any, push: Any
    ) -> tuple[Any, Any]:
        """Solve one system over memory; all launches are queued and none waits for the host."""
        n_cables, n = v.shape
        nodes, threads, _ = self.shape
        n_parts = -(-n // self.shape.size)
        v, w, u = (self.device.array(a, self.dtype) for a in (v, w, v))
        all_parts, flags = n_cables * n_parts, self._status
        shapes = (3, all_parts * threads), (7, all_parts), (8, all_parts), (all_parts,)
        ends, parts, work, opened = (self.device.empty(shape, self.dtype) for shape in shapes)
        reals = 3 * threads * (nodes + 1) + 10 * threads
        shared = reals * np.dtype(self.dtype).itemsize
        place = (np.int64(n), np.int32(n_parts), *self._kinds)
        counts = np.int32(n_cables), np.int32(n_parts)
        state = (v, w, push, u)

        def newton(k: int) -> None:
            iteration = np.int32(k)
            reduced = (*state, ends, parts, rows, flags, *place, iteration)
            launch("parts_reduce", all_parts, threads, reduced, shared)
            joined = (parts, work, opened, flags, *counts, iteration)
            launch("parts_join", n_cables, _JOINERS, joined, 0)
            tolerance = self._real(self.tolerance)
            solved = (*state, ends, opened, rows, flags, *place, iteration, tolerance)
            launch("parts_substitute", all_parts, threads, solved, shared)

        finished = (v, w, u, rows, flags, np.int64(n), counts[0], np.int32(_ITERATIONS))
        for _ in range(n_steps):
            for k in range(_ITERATIONS):
                newton(k)
            launch("parts_finish", -(-n * n_cables // 256), 256, finished, 0)
        return v, w


def cyclic_levels(decay: float, n: int, negligible: float = NEGLIGIBLE) -> int:
    """Return after how many levels of cyclic reduction n unknowns are independent.

    The coupling of neighbors is at most `decay`, and each level squares it.
    """
    exact = max(1, math.ceil(math.log2(n)))
    if decay >= 1:
        return exact
    enough = math.log(negligible) / math.log(max(decay, 1e-300))
    return min(exact, max(0, math.ceil(math.log2(enough))) if enough > 1 else 0)
