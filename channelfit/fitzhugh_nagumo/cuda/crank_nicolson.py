"""Crank-Nicolson on a GPU: how a cable is cut into tiles, and the launches.

`crank_nicolson_source` has the text of the kernels and says how they work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from channelfit.fitzhugh_nagumo.crank_nicolson import NEGLIGIBLE, StepCoefficients, reach
from channelfit.fitzhugh_nagumo.cuda.crank_nicolson_source import crank_nicolson_text
from channelfit.fitzhugh_nagumo.cuda.device import Device, Launch, OnDevice
from channelfit.fitzhugh_nagumo.equation import (
    Array,
    Cable,
    Equation,
    NotConverged,
    largest_implicit_step,
)
from channelfit.reading.errors import InputError

#: Nodes a thread, threads and blocks of the wide tiles, for cables whose ends have an influence
#: over many nodes; and the shares of a usual and of a wide tile that must not be overlap.
_WIDE = (16, 512, 1)
_FEWEST_USEFUL, _FEWEST_USEFUL_WIDE = 0.6, 0.25
#: How many iterations of Newton's method are queued where nothing waits for the host, and how many
#: threads solve the system that joins the parts.
_ITERATIONS, _JOINERS = 8, 512
#: The error that an overlap may cause in values of the order of one.
_NEGLIGIBLE = {"float64": NEGLIGIBLE, "float32": 1e-9}
#: The error of v that Newton's method may leave.
TOLERANCE = {"float64": 1e-12, "float32": 1e-6}


@dataclass(frozen=True)
class _Tiles:
    """How a cable is cut into tiles.

    shape: nodes a thread, threads of a block, blocks that a multiprocessor must have room for.
    steps: of a pass. halo: the overlap in nodes. whole: whether one tile holds the whole cable.
    """

    shape: tuple[int, int, int]
    steps: int
    halo: int
    whole: bool

    def words(self) -> str:
        """Return the tiles in words, for benchmarks and tests."""
        size = self.shape[0] * self.shape[1]
        if self.whole:
            return f"one tile of {size} nodes"
        return f"tiles of {size} nodes that overlap by {self.halo}, {self.steps} steps a pass"


class CrankNicolsonCuda(OnDevice):
    """Crank-Nicolson on a GPU.

    Arguments:
        dtype: "float64", or "float32", which errs by up to 1e-6 dt/dx^2.
        nodes: how many nodes a thread keeps, from 2 to 16. threads: how many threads a block has, a
            power of two. blocks: how many blocks a multiprocessor must have room for.
        steps: how many steps a pass makes at most.
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
        nodes: int = 16,
        threads: int = 128,
        blocks: int = 2,
        steps: int = 4,
        solver: str = "auto",
        tolerance: float | None = None,
        device: Device | None = None,
    ) -> None:
        super().__init__(equation, cable, dtype, device)
        if solver not in ("auto", "tiles", "parts"):
            raise InputError(f'"{solver}" is neither auto, tiles nor parts', key="solver")
        self.nodes, self.threads, self.blocks, self.steps = nodes, threads, blocks, steps
        self.solver = solver
        self.tolerance = TOLERANCE[dtype] if tolerance is None else tolerance
        self.way = ""  # how the last steps were solved, in words
        self._status = self._no_flags()

    def _no_flags(self) -> Any:
        """Return the flags of the kernels: an unused one, whether Newton's method failed,
        and whether each iteration has to be done.
        """
        return self.device.array([0, 0, 1] + [0] * _ITERATIONS, "int32")

    def largest_step(self, v: Any) -> float:
        """Return the longest step that is allowed; see `largest_implicit_step`."""
        return largest_implicit_step(self.equation)

    def failed(self) -> bool:
        """Return whether Newton's method has failed anywhere since this was last asked."""
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

        rows, decay = self._kept(n_cables, dt, coefficients)
        push = self._drive(drive)
        tiles = self._tiles(n, decay, n_steps)
        nodes, threads, blocks = (self.nodes, self.threads, self.blocks)
        if tiles is not None:
            nodes, threads, blocks = tiles.shape
        text = crank_nicolson_text(self.dtype, nodes, threads, blocks, drive is not None)
        launch = self._program(text)
        self.way = "one system over memory, in parts" if tiles is None else tiles.words()
        if tiles is None:
            return self._in_parts(launch, v, w, n_steps, rows, push)
        return self._in_tiles(launch, v, w, n_steps, rows, push, decay, tiles)

    def _tiles(self, n: int, decay: float, n_steps: int) -> _Tiles | None:
        """Return how to cut cables of n nodes into tiles;
        None where the system is solved over memory.
        """
        if self.solver == "parts":
            return None
        given = self.nodes, self.threads, self.blocks
        shapes = [(given, _FEWEST_USEFUL), (_WIDE, _FEWEST_USEFUL_WIDE)]
        for shape, fewest in shapes if self.solver == "auto" else shapes[:1]:
            size = shape[0] * shape[1]
            if n <= size and not self.cable.periodic:
                return _Tiles(shape, n_steps, 0, True)
            for steps in range(min(self.steps, n_steps), 0, -1):
                felt = reach(decay, steps, _NEGLIGIBLE[self.dtype])
                halo = -(-int(min(felt, size)) // shape[0]) * shape[0]
                if size - 2 * halo >= fewest * size:
                    return _Tiles(shape, steps, halo, False)
        if self.solver == "tiles":
            size = self.nodes * self.threads
            raise InputError(
                f"the ends of a tile have an influence on more than its {size} nodes", key="dt"
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
        decay: float,
        tiles: _Tiles,
    ) -> tuple[Any, Any]:
        n_cables, n = v.shape
        nodes, threads, _ = tiles.shape
        n_tiles = 1 if tiles.whole else -(-n // (nodes * threads - 2 * tiles.halo))
        levels = cyclic_levels(decay**nodes, threads, _NEGLIGIBLE[self.dtype])
        reals = 2 * threads * (nodes + 1) + 6 * threads
        shared = reals * np.dtype(self.dtype).itemsize
        spare = [
            tuple(self.device.empty((n_cables, n), self.dtype) for _ in range(2)) for _ in "ab"
        ]
        while n_steps > 0:
            count = min(tiles.steps, n_steps)
            v_new, w_new = spare.pop(0)
            launch(
                "crank_nicolson_tiles",
                n_tiles * n_cables,
                threads,
                (
                    v,
                    w,
                    push,
                    v_new,
                    w_new,
                    rows,
                    self._status[1:],
                    np.int64(n),
                    np.int32(n_tiles),
                    np.int32(tiles.halo),
                    np.int32(count),
                    np.int32(levels),
                    np.int32(self.left_kind),
                    np.int32(self.right_kind),
                    np.int32(tiles.whole),
                    self._real(self.tolerance),
                ),
                shared,
            )
            if not spare:
                spare.append((v, w))
            v, w, n_steps = v_new, w_new, n_steps - count
        return v, w

    def _in_parts(
        self, launch: Launch, v: Any, w: Any, n_steps: int, rows: Any, push: Any
    ) -> tuple[Any, Any]:
        """Solve one system over memory; all launches are queued and none waits for the host."""
        n_cables, n = v.shape
        n_parts = -(-n // (self.nodes * self.threads))
        v, w, u = (self.device.array(a, self.dtype) for a in (v, w, v))
        all_parts, flags = n_cables * n_parts, self._status
        ends, parts, work, opened = (
            self.device.empty(shape, self.dtype)
            for shape in (
                (3, all_parts * self.threads),
                (7, all_parts),
                (8, all_parts),
                (all_parts,),
            )
        )
        reals = 3 * self.threads * (self.nodes + 1) + 10 * self.threads
        shared = reals * np.dtype(self.dtype).itemsize
        kinds = np.int32(self.left_kind), np.int32(self.right_kind)
        place = (np.int64(n), np.int32(n_parts), *kinds)
        counts = np.int32(n_cables), np.int32(n_parts)
        state = (v, w, push, u)

        def newton(k: int) -> None:
            iteration = np.int32(k)
            reduced = (*state, ends, parts, rows, flags, *place, iteration)
            launch("parts_reduce", all_parts, self.threads, reduced, shared)
            joined = (parts, work, opened, flags, *counts, iteration)
            launch("parts_join", n_cables, _JOINERS, joined, 0)
            tolerance = self._real(self.tolerance)
            solved = (*state, ends, opened, rows, flags, *place, iteration, tolerance)
            launch("parts_substitute", all_parts, self.threads, solved, shared)

        finished = (v, w, u, rows, flags, np.int64(n), counts[0], np.int32(_ITERATIONS))
        for _ in range(n_steps):
            for k in range(_ITERATIONS):
                newton(k)
            launch("parts_finish", -(-n * n_cables // 256), 256, finished, 0)
        return v, w


def cyclic_levels(decay: float, n: int, negligible: float = NEGLIGIBLE) -> int:
    """Return the levels of cyclic reduction after which n
    unknowns no longer influence each other.

    The coupling of neighbors is at most `decay`, and each level squares it.
    """
    exact = max(1, math.ceil(math.log2(n)))
    if decay >= 1:
        return exact
    enough = math.log(negligible) / math.log(max(decay, 1e-300))
    return min(exact, max(0, math.ceil(math.log2(enough))) if enough > 1 else 0)
