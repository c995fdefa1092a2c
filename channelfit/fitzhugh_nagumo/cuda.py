"""The schemes on the GPU: how much a pass does, and the launches; the kernels' text is generated.

State stays on the device between frames. The schemes ask for `device`, an object that compiles
text and holds arrays; by default it is CuPy's, and the tests give one that runs on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from channelfit.fitzhugh_nagumo.adaptive import GROWTH, RADIUS, RATE, SLOPE, Adaptive, Monitor
from channelfit.fitzhugh_nagumo.crank_nicolson import NEGLIGIBLE, Coefficients, end_kinds, reach
from channelfit.fitzhugh_nagumo.cuda_source import adaptive_text, crank_nicolson_text, explicit_text
from channelfit.fitzhugh_nagumo.equation import (
    Array,
    Cable,
    Equation,
    NotConverged,
    largest_explicit_step,
    largest_implicit_step,
)
from channelfit.fitzhugh_nagumo.runge_kutta import EULER_STABLE, REACH, STABLE
from channelfit.reading.errors import InputError
from channelfit.scoring.machine.arrays import to_host

#: kernel(name, blocks, threads, arguments, bytes of shared memory)
Launch = Callable[[str, int, int, Sequence[Any], int], None]

#: Nodes a thread, threads and blocks of the tiles for ends that are felt from afar, and the parts
#: of a tile, of the usual and of these, that must not be overlap.
_WIDE = (16, 512, 1)
_FEWEST_USEFUL, _FEWEST_USEFUL_WIDE = 0.6, 0.25
#: Newton's iterations that are queued where nothing waits for the host, and threads that join.
_ITERATIONS, _JOINERS = 8, 512
#: What a value of the order of one may lose by an overlap.
_NEGLIGIBLE = {"float64": NEGLIGIBLE, "float32": 1e-9}
#: Newton's error that is let pass.
TOLERANCE = {"float64": 1e-12, "float32": 1e-6}


class Device(Protocol):
    """Arrays and programs of a device."""

    def array(self, values: Any, dtype: str) -> Any: ...

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any: ...

    def host(self, array: Any) -> np.ndarray: ...

    def program(self, text: str) -> Launch: ...

    def free_bytes(self) -> int: ...


class CupyDevice:
    """The current GPU.

    Raises:
        InputError: no CuPy or no GPU, with what to install.
    """

    def __init__(self) -> None:
        from channelfit.scoring.machine import gpu

        self._gpu, self._cupy = gpu, gpu.cupy()

    def array(self, values: Any, dtype: str) -> Any:
        """A copy on the device, contiguous."""
        with self._gpu.gpu_errors():
            return self._cupy.array(values, dtype=dtype, order="C")

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """An array of whatever was there."""
        with self._gpu.gpu_errors():
            return self._cupy.empty(shape, dtype=dtype)

    def host(self, array: Any) -> np.ndarray:
        """A copy on the host; waits for the device."""
        return to_host(array)

    def free_bytes(self) -> int:
        """Of memory that nobody has taken yet."""
        return self._gpu.device().memory_free

    def program(self, text: str) -> Launch:
        """Compiled text."""
        module = self._gpu.compile_cuda(text, name="fitzhugh_nagumo.cu")
        kernels: dict[str, Any] = {}

        def launch(
            name: str, blocks: int, threads: int, arguments: Sequence[Any], shared: int
        ) -> None:
            with self._gpu.gpu_errors():
                if name not in kernels:
                    kernels[name] = module.kernel(name)
                    if shared > 48 << 10:
                        kernels[name].allow_dynamic_shared(shared)
                kernels[name]((blocks,), (threads,), tuple(arguments), shared_mem=shared)

        return launch


class _OnDevice:
    """What the schemes share: programs by their constants, and state on the device."""

    #: Arrays of one number a node with fixed steps, with controlled ones, and int32 beside them.
    arrays: tuple[int, int, int]

    def __init__(self, equation: Equation, cable: Cable, dtype: str, device: Device | None) -> None:
        if dtype not in TOLERANCE:
            raise InputError(f'"{dtype}" is neither float64 nor float32', key="dtype")
        self.equation, self.cable, self.dtype = equation, cable, dtype
        self.device: Device = device or CupyDevice()
        self.left_kind, self.right_kind = (int(k) for k in end_kinds(cable))
        self._programs: dict[str, Launch] = {}
        self._last: tuple[tuple[int, float], Any] | None = None
        self._nothing = self.device.array(np.zeros(1), dtype)
        self._real = np.dtype(dtype).type

    def bytes_a_node(self, controlled: bool) -> int:
        """Of the device's memory that a run takes, beside a stimulus and a few rows."""
        return self.arrays[int(controlled)] * np.dtype(self.dtype).itemsize + 4 * self.arrays[2]

    def put(self, values: Array) -> Any:
        """(n_cables, n_nodes) on the device."""
        return self.device.array(values, self.dtype)

    def take(self, values: Any) -> Array:
        """The same back as float64."""
        return np.asarray(self.device.host(values), dtype=float)

    def _program(self, text: str) -> Launch:
        if text not in self._programs:
            self._programs[text] = self.device.program(text)
        return self._programs[text]

    def _drive(self, drive: Array | None) -> Any:
        return self._nothing if drive is None else self.device.array(drive, self.dtype)

    def _kept(self, n_cables: int, dt: float, make: Callable[[], Any]) -> Any:
        """What depends on the number of cables and the step alone, made when either changes."""
        if self._last is None or self._last[0] != (n_cables, dt):
            self._last = (n_cables, dt), make()
        return self._last[1]


class ExplicitCuda(_OnDevice):
    """Forward Euler on the GPU, many steps a pass over memory; see `cuda_source`.

    Arguments:
        dtype: "float64" or "float32".
        nodes: a thread keeps in tiles. warps: of a block. steps: of a pass in tiles, at most
            the overlap, which is rounded up to a multiple of `nodes`.
        device: what runs it; CuPy's without it.
    """

    name = "explicit"
    arrays = (7, 7, 0)
    #: Nodes that a step looks at on either side.
    reach = 1
    #: Nodes for which a thread has registers.
    most_nodes: ClassVar = {"float64": 24, "float32": 32}

    def __init__(
        self,
        equation: Equation,
        cable: Cable,
        dtype: str = "float64",
        nodes: int = 16,
        warps: int = 4,
        steps: int = 32,
        device: Device | None = None,
    ) -> None:
        super().__init__(equation, cable, dtype, device)
        self.nodes, self.warps, self.steps = nodes, warps, steps
        if 2 * self.halo >= 32 * nodes:
            raise ValueError(f"{steps} steps a pass leave nothing of a tile of {32 * nodes} nodes")

    @property
    def halo(self) -> int:
        """Nodes by which tiles overlap on either side."""
        return -(-self.reach * self.steps // self.nodes) * self.nodes

    def largest_step(self, v: Any) -> float:
        """See `Explicit.largest_step`."""
        held = [end for end in (self.cable.left, self.cable.right) if not isinstance(end, str)]
        low, high = float(v.min()), float(v.max())
        return largest_explicit_step(
            self.equation, self.cable.dx, min([low, *held]), max([high, *held])
        )

    def rows(self, n_cables: int, dt: float) -> Array:
        """(n_cables, 6) coefficients of a step as the kernels take them."""
        a, gamma, epsilon, diffusion = self.equation.table(n_cables).T
        r = diffusion * dt / self.cable.dx**2
        step = np.full(n_cables, dt)
        return np.stack(
            [1 - 2 * r - dt * a, dt * (1 + a), step, r, 1 - dt * epsilon * gamma, dt * epsilon],
            axis=1,
        )

    def _text(self, nodes: int, drive: Array | None, whole: int = 0) -> str:
        return explicit_text(self.dtype, nodes, self.warps, drive is not None, whole, self.name)

    def advance(
        self, v: Any, w: Any, dt: float, n_steps: int, drive: Array | None = None
    ) -> tuple[Any, Any]:
        """n_steps steps of dt under one stimulus, of v and w (n_cables, n_nodes) on the device."""
        n_cables, n = v.shape
        rows = self._kept(
            n_cables, dt, lambda: self.device.array(self.rows(n_cables, dt), self.dtype)
        )
        push = self._drive(drive)
        fitting = -(-n // 32)
        kinds = (np.int32(self.left_kind), np.int32(self.right_kind))
        if fitting <= self.most_nodes[self.dtype]:
            text = self._text(max(fitting, 2), drive, n)
            v_new, w_new = (self.device.empty((n_cables, n), self.dtype) for _ in range(2))
            self._program(text)(
                "explicit_cables",
                -(-n_cables // self.warps),
                32 * self.warps,
                (v, w, push, v_new, w_new, rows, np.int32(n_cables), np.int32(n_steps), *kinds),
                0,
            )
            return v_new, w_new
        launch = self._program(self._text(self.nodes, drive))
        tiles = -(-n // (32 * self.nodes - 2 * self.halo))
        spare = [
            tuple(self.device.empty((n_cables, n), self.dtype) for _ in range(2)) for _ in "ab"
        ]
        while n_steps > 0:
            count = min(self.steps, n_steps)
            v_new, w_new = spare.pop(0)
            launch(
                "explicit_tiles",
                -(-tiles * n_cables // self.warps),
                32 * self.warps,
                (
                    v,
                    w,
                    push,
                    v_new,
                    w_new,
                    rows,
                    np.int64(n),
                    np.int32(tiles),
                    np.int32(n_cables),
                    np.int32(self.halo),
                    np.int32(count),
                    *kinds,
                ),
                0,
            )
            if not spare:
                spare.append((v, w))
            v, w, n_steps = v_new, w_new, n_steps - count
        return v, w


class RungeKuttaCuda(ExplicitCuda):
    """Runge-Kutta of order four on the GPU, many steps a pass over memory; see `cuda_source`.

    Arguments: as `ExplicitCuda`; steps of a pass times four are at most the overlap.
    """

    name = "Runge-Kutta"
    reach = REACH
    most_nodes: ClassVar = {"float64": 14, "float32": 32}

    def __init__(
        self,
        equation: Equation,
        cable: Cable,
        dtype: str = "float64",
        nodes: int = 8,
        warps: int = 4,
        steps: int = 8,
        device: Device | None = None,
    ) -> None:
        super().__init__(equation, cable, dtype, nodes, warps, steps, device)

    def largest_step(self, v: Any) -> float:
        """See `RungeKutta.largest_step`."""
        return super().largest_step(v) * STABLE / EULER_STABLE

    def rows(self, n_cables: int, dt: float) -> Array:
        """(n_cables, 6) coefficients of a rate as the kernels take them."""
        return np.asarray(super().rows(n_cables, dt) - np.array([1, 0, 0, 0, 1, 0]), float)


@dataclass(frozen=True)
class _Tiles:
    """Nodes a thread, threads, blocks; steps of a pass; overlap; whether one holds a cable."""

    shape: tuple[int, int, int]
    steps: int
    halo: int
    whole: bool

    def words(self) -> str:
        """What they are."""
        size = self.shape[0] * self.shape[1]
        if self.whole:
            return f"one tile of {size} nodes"
        return f"tiles of {size} nodes that overlap by {self.halo}, {self.steps} steps a pass"


class CrankNicolsonCuda(_OnDevice):
    """Crank-Nicolson on the GPU; see `cuda_source`.

    Arguments:
        dtype: "float64" or "float32", which errs by up to 1e-6 dt/dx^2.
        nodes: a thread keeps, 2 .. 16. threads: of a block, a power of two. blocks: that a
            multiprocessor must have room for. steps: of a pass, at most.
        solver: "tiles"; "parts", one system over memory; or "auto", tiles where the reach of a
            tile's ends allows them, wider ones if it must be.
        tolerance: of Newton's error in v.
        device: what runs it; CuPy's without it.
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
        """The kernels' flags: one that is not used, whether Newton failed, iterations to do."""
        return self.device.array([0, 0, 1] + [0] * _ITERATIONS, "int32")

    def largest_step(self, v: Any) -> float:
        """See `largest_implicit_step`."""
        return largest_implicit_step(self.equation)

    def failed(self) -> bool:
        """Whether Newton's method failed anywhere since this was asked last."""
        if not self.device.host(self._status)[1]:
            return False
        self._status = self._no_flags()
        return True

    def take(self, values: Any) -> Array:
        """The state as float64.

        Raises:
            NotConverged: Newton's method did not converge since the last call.
        """
        if self.failed():
            raise NotConverged("Newton's method did not converge; take a shorter step", key="dt")
        return super().take(values)

    def advance(
        self, v: Any, w: Any, dt: float, n_steps: int, drive: Array | None = None
    ) -> tuple[Any, Any]:
        """n_steps steps of dt under one stimulus, of v and w (n_cables, n_nodes) on the device."""
        n_cables, n = v.shape

        def coefficients() -> tuple[Any, float]:
            made = Coefficients.of(self.equation, n_cables, self.cable.dx, dt)
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
        """Tiles for cables of n nodes, or None where the system is solved over memory."""
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
            raise InputError(f"ends are felt over more than a tile of {size} nodes", key="dt")
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
        """One system over memory; all launches are queued, none waits for the host."""
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
        place = (
            np.int64(n),
            np.int32(n_parts),
            np.int32(self.left_kind),
            np.int32(self.right_kind),
        )
        for _ in range(n_steps):
            for k in range(_ITERATIONS):
                iteration = np.int32(k)
                launch(
                    "parts_reduce",
                    all_parts,
                    self.threads,
                    (v, w, push, u, ends, parts, rows, flags, *place, iteration),
                    shared,
                )
                launch(
                    "parts_join",
                    n_cables,
                    _JOINERS,
                    (parts, work, opened, flags, np.int32(n_cables), np.int32(n_parts), iteration),
                    0,
                )
                launch(
                    "parts_substitute",
                    all_parts,
                    self.threads,
                    (
                        v,
                        w,
                        push,
                        u,
                        ends,
                        opened,
                        rows,
                        flags,
                        *place,
                        iteration,
                        self._real(self.tolerance),
                    ),
                    shared,
                )
            launch(
                "parts_finish",
                -(-n * n_cables // 256),
                256,
                (v, w, u, rows, flags, np.int64(n), np.int32(n_cables), np.int32(_ITERATIONS)),
                0,
            )
        return v, w


class AdaptiveCuda(_OnDevice):
    """The adaptive scheme on the GPU, a block a cable: for many cables.

    Arguments: as `Adaptive`; dtype: "float64" or "float32". threads: of a block, a power of two.
    """

    name = "adaptive"
    arrays = (11, 11, 4)

    def __init__(
        self,
        equation: Equation,
        cable: Cable,
        monitor: Monitor = "curvature",
        coarsest: int = 8,
        tolerance: float = 1e-4,
        every: int | None = None,
        dtype: str = "float64",
        threads: int = 128,
        device: Device | None = None,
    ) -> None:
        super().__init__(equation, cable, dtype, device)
        self._settings = Adaptive(equation, cable, monitor, coarsest, tolerance, every)
        self.threads = threads
        self._grids: Any = None
        self._nodes_steps = self._steps = 0

    def restart(self) -> None:
        """All nodes are in use again."""
        self._grids = None
        self._nodes_steps = self._steps = 0

    def largest_step(self, v: Any) -> float:
        """See `Adaptive.largest_step`."""
        return self._settings.largest_step(v)

    def facts(self) -> dict[str, float]:
        """Nodes in use, averaged over the steps and the cables."""
        return {"mean_nodes": self._nodes_steps / max(self._steps, 1)}

    def advance(
        self, v: Any, w: Any, dt: float, n_steps: int, drive: Array | None = None
    ) -> tuple[Any, Any]:
        """n_steps steps of dt under one stimulus, of v and w (n_cables, n_nodes) on the device."""
        n_cables, n = v.shape
        device, s = self.device, self._settings
        if self._grids is None:
            places = np.broadcast_to(np.arange(n), (n_cables, 4, n))
            self._grids = device.array(places, "int32"), device.array(np.full(n_cables, n), "int32")
        table = self.equation.table(n_cables)
        rows = np.hstack([table, np.tile([self.cable.dx, dt], (n_cables, 1))])
        v, w = device.array(v, self.dtype), device.array(w, self.dtype)
        done = device.array(np.zeros(n_cables), "int64")
        launch = self._program(adaptive_text(self.dtype, self.threads, drive is not None))
        real = self._real
        launch(
            "adaptive_steps",
            n_cables,
            self.threads,
            (
                v,
                w,
                self._drive(drive),
                device.array(rows, self.dtype),
                device.empty((n_cables, 6, n), self.dtype),
                *self._grids,
                done,
                np.int32(n),
                np.int32(n_steps),
                np.int32(self.left_kind),
                np.int32(self.right_kind),
                np.int32(s.monitor == "curvature"),
                np.int32(s.coarsest),
                real(s.tolerance),
                np.int32(s.every),
                real(SLOPE),
                real(RATE),
                np.int32(RADIUS),
                real(GROWTH),
            ),
            0,
        )
        self._nodes_steps += int(device.host(done).sum())
        self._steps += n_steps * n_cables
        return v, w


def cyclic_levels(decay: float, n: int, negligible: float = NEGLIGIBLE) -> int:
    """Levels of cyclic reduction after which n unknowns no longer feel each other.

    The coupling of neighbors, at most decay, is squared by each level.
    """
    exact = max(1, math.ceil(math.log2(n)))
    if decay >= 1:
        return exact
    enough = math.log(negligible) / math.log(max(decay, 1e-300))
    return min(exact, max(0, math.ceil(math.log2(enough))) if enough > 1 else 0)
