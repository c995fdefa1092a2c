"""Fits of curves on GPUs: transfers run while kernels do, through buffers that stay in place.

Data sets go to a GPU in chunks. While one chunk is computed the next one is on its way there and
the results of the one before are on their way back; each of a few lanes has a stream and pinned
buffers of its own. Several GPUs take chunks in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from typing import Any

import numpy as np

from channelfit.curves.cuda_source import RAW, cuda_text
from channelfit.curves.cuda_text import FIT, ROWS
from channelfit.curves.fitting import MOST_STEPS, CurveProblem, DataSets, Fits, Flight, index_ranges
from channelfit.curves.swarm_text import swarm_text
from channelfit.curves.weights import is_weighted, rescaled, weights_of
from channelfit.reading.errors import InputError
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.threads import Team, usable_cores

#: Data sets and bytes of a chunk, at most, and chunks that are under way at once.
_CHUNK, _CHUNK_BYTES, _UNDER_WAY = 65_536, 64 << 20, 3
_BLOCK = 128
#: Bytes of a data set that a block of threads can keep.
_SHARED = 32_768
#: Data sets for each of several GPUs, at least.
_FEW = 64
#: Bytes that a thread copies into a pinned buffer at once.
_COPIED = 4 << 20


class CudaFits:
    """Fits of one problem on the current GPU.

    Arguments:
        problem: curve and data.
        dtype: "float64" or "float32".
        covariances: whether to compute these.
        flight: of a swarm for each data set; None for least squares.

    Raises: InputError when there is no GPU that can be used, and what to do.
    """

    def __init__(
        self,
        problem: CurveProblem,
        dtype: str,
        covariances: bool = False,
        flight: Flight | None = None,
    ) -> None:
        self.xp, self.flight = gpu.cupy(), flight
        self.problem, self.dtype, self.covariances = problem, np.dtype(dtype), covariances
        raw = problem.data.values.dtype
        self.raw = raw if raw.name in RAW and raw.isnative else np.dtype(np.float64)
        self.weighted = is_weighted(problem.curve, problem.data)
        n_points = problem.data.values.shape[1]
        most = _CHUNK_BYTES // (n_points * max(self.raw.itemsize, self.dtype.itemsize))
        self.chunk = max(_BLOCK, min(_CHUNK, most) // _BLOCK * _BLOCK)
        self._lanes: list[_Lane] = []
        if flight is not None and n_points * self.dtype.itemsize > _SHARED:
            raise InputError(
                f"data sets of {n_points:,} points are too large for swarms on a GPU; use "
                "--backend cpu, or --method least-squares"
            )
        if len(problem.data.axes) > 2 or n_points > 1 << 20:
            raise InputError(
                f"data sets of {n_points:,} points are too large for a GPU; use --backend cpu"
            )

    def fit(self, first: int, last: int) -> Fits:
        """Fit the data sets from `first` to before `last`."""
        n_sets = last - first
        out = [np.empty(shape, kind) for shape, kind in self.shapes(n_sets)]
        with gpu.gpu_errors():
            lanes = self._ready(n_sets)
            for k, (a, b) in enumerate(index_ranges(n_sets, lanes[0].size)):
                lane = lanes[k % len(lanes)]
                lane.finish()
                lane.begin(self.problem.data, out, first, a, b)
            for lane in lanes:
                lane.finish()
        return rescaled(self.problem, first, Fits.of_arrays(out))

    def shapes(self, n_sets: int) -> list[tuple[tuple[int, ...], Any]]:
        """Return shapes and types of the arrays of `Fits.of_arrays` for so many data sets."""
        n, real = len(self.problem.lower), self.dtype
        squares = (n_sets, n, n) if self.covariances else (n_sets, 0, 0)
        return [
            ((n_sets, n), real), ((n_sets, n), real), (squares, real), ((n_sets, 4), real),
            ((n_sets,), np.int32), ((n_sets, 0 if self.flight is None else n), real),
        ]  # fmt: skip

    def _ready(self, n_sets: int) -> list[_Lane]:
        """Return lanes for so many data sets; their buffers are kept, since pinning memory takes
        long.
        """
        size = min(self.chunk, -(-n_sets // _BLOCK) * _BLOCK)
        if not self._lanes or self._lanes[0].size < size:
            self._lanes = []
        while len(self._lanes) < min(_UNDER_WAY, -(-n_sets // size)):
            self._lanes.append(_Lane(self, size))
        return self._lanes

    def launch(self, lane: _Lane, first: int, n_sets: int) -> None:
        """Launch the kernels of a chunk that begins with a data set, on the present stream."""
        spread, spread_weights, fit = self._kernels
        n_points, scan, tables = self.problem.data.values.shape[1], self.problem.scan, self._tables
        blocks = -(-n_points // 32), -(-n_sets // 32)
        spread(blocks, (32, 8), (lane.raw, np.int32(n_sets), lane.z))
        if self.weighted:
            spread_weights(blocks, (32, 8), (lane.raw_w, np.int32(n_sets), lane.w))
        if self.flight is not None:
            arguments: tuple[Any, ...] = (
                lane.z, np.int32(n_sets), np.uint64(first), tables["inputs"], tables["bounds"],
                tables["below"], np.int32(self.flight.iterations), np.uint64(self.flight.seed),
                *lane.on_device,
            )  # fmt: skip
            fit((n_sets,), (self.flight.particles,), arguments, n_points * self.dtype.itemsize)
            return
        every = int(scan.points[1] - scan.points[0]) if len(scan.points) > 1 else 1
        arguments = (
            lane.z, lane.w, np.int32(n_sets), tables["inputs"], np.int32(every),
            np.int32(len(scan.points)), tables["rows"], tables["norms"], tables["ones"],
            tables["back"], tables["starts"], tables["places"], np.int32(len(scan.starts)),
            tables["bounds"], tables["below"], np.int32(MOST_STEPS),
            np.float64(self.problem.tolerance(self.dtype.name)),
            *lane.on_device[:-1],
        )  # fmt: skip
        fit((-(-n_sets // _BLOCK),), (_BLOCK,), arguments)

    @cached_property
    def _tables(self) -> dict[str, Any]:
        """Return the arrays that all data sets share, on the device; none of them is empty."""
        problem, scan, real = self.problem, self.problem.scan, self.dtype
        bounds = np.concatenate([problem.lower, problem.upper, problem.width])
        host: dict[str, np.ndarray] = {
            "inputs": problem.data.flat.astype(np.float64),
            "rows": scan.side_by_side(ROWS),
            "norms": scan.norms.astype(np.float32),
            "ones": scan.ones.astype(real),
            "back": scan.back.astype(np.float32),
            "starts": scan.starts.astype(real),
            "places": scan.places.astype(np.int32),
            "bounds": bounds.astype(np.float64),
            "below": problem.below.astype(np.int32),
        }
        return {
            name: self.xp.asarray(a if a.size else np.zeros(1, a.dtype)) for name, a in host.items()
        }

    @cached_property
    def _kernels(self) -> tuple[Any, Any, Any]:
        problem = self.problem
        lengths = tuple(problem.data.lengths.tolist())
        text = cuda_text(
            problem.curve,
            problem.data.axes,
            lengths,
            self.dtype.name,
            self.raw.name,
            problem.scan.offset,
            problem.scan.centered,
            FIT if self.flight is None else swarm_text(self.flight.particles),
            self.weighted,
        )
        module = gpu.compile_cuda(text, (), f"{problem.curve.name}.cu")
        name = "fitSets" if self.flight is None else "flySwarms"
        weights = module.kernel("spreadWeights") if self.weighted else None
        return module.kernel("spread"), weights, module.kernel(name)


class _Lane:
    """A stream with its buffers: pinned ones on the host, and those on the device."""

    def __init__(self, fits: CudaFits, chunk: int) -> None:
        self.owner, self.size, cp = fits, chunk, fits.xp
        n_points = fits.problem.data.values.shape[1]
        self.stream = cp.cuda.Stream(non_blocking=True)
        self.host_raw = _pinned(cp, (chunk, n_points), fits.raw)
        self.raw = cp.empty((chunk, n_points), fits.raw)
        self.z = cp.empty((n_points, chunk), fits.dtype)
        self.w: Any = gpu.NULL
        if fits.weighted:
            self.host_w = _pinned(cp, (chunk, n_points), fits.dtype)
            self.raw_w = cp.empty((chunk, n_points), fits.dtype)
            self.w = cp.empty((n_points, chunk), fits.dtype)
        shapes = fits.shapes(chunk)
        self.host = [_pinned(cp, shape, dtype) for shape, dtype in shapes]
        self.device = [cp.empty(shape, dtype) for shape, dtype in shapes]
        self.on_device = tuple(a if a.size else gpu.NULL for a in self.device)
        self.where: tuple[list[np.ndarray], int, int] | None = None

    def begin(
        self, data: DataSets, out: list[np.ndarray], before: int, first: int, last: int
    ) -> None:
        """Begin to send data sets, to fit them and to fetch the results; do not wait.

        before: data sets before those of `out`, whose rows `first` to before `last` these are.
        """
        n, places = last - first, (before + first, before + last)
        _copied(data.values[slice(*places)], self.host_raw[:n])
        if self.owner.weighted:
            _copied(weights_of(self.owner.problem.curve, data, *places), self.host_w[:n])
        with self.stream:
            self.raw[:n].set(self.host_raw[:n], stream=self.stream)
            if self.owner.weighted:
                self.raw_w[:n].set(self.host_w[:n], stream=self.stream)
            self.owner.launch(self, before + first, n)
            for device, host in zip(self.device, self.host, strict=True):
                if device.size:
                    device[:n].get(out=host[:n], blocking=False)
        self.where = out, first, last

    def finish(self) -> None:
        """Wait for the results of the chunk that was begun, and put them into their places."""
        if self.where is None:
            return
        self.stream.synchronize()
        out, first, last = self.where
        for host, array in zip(self.host, out, strict=True):
            array[first:last] = host[: last - first]
        self.where = None


def _pinned(cp: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array of the host from which and into which a GPU copies by itself."""
    count = int(np.prod(shape))
    memory = cp.cuda.alloc_pinned_memory(max(1, count * np.dtype(dtype).itemsize))
    return np.frombuffer(memory, dtype, count).reshape(shape)


def _copied(source: np.ndarray, target: np.ndarray) -> None:
    """Copy with all cores, since one alone is slower than the bus."""
    rows = max(1, _COPIED // max(1, target[:1].nbytes))

    def some(a: int, b: int) -> None:
        np.copyto(target[a:b], source[a:b], casting="unsafe")

    _team().share(some, list(index_ranges(len(target), rows)))


@cache
def _team() -> Team:
    return Team(min(usable_cores(), 8) - 1)


class Gpus:
    """Fits of one problem on all GPUs of this machine, each of which takes its share of a piece.

    Arguments:
        make: makes the fits of one GPU, the current one.
    """

    def __init__(self, make: Callable[[], CudaFits]) -> None:
        self.xp, self._make = gpu.cupy(), make
        with gpu.gpu_errors():
            self._n = int(self.xp.cuda.runtime.getDeviceCount())
        self._one: dict[int, CudaFits] = {}

    def fit(self, first: int, last: int) -> Fits:
        """Fit the data sets from `first` to before `last`."""
        n_sets = last - first
        if self._n == 1 or n_sets < _FEW * self._n:
            return self._own(0).fit(first, last)
        ends = np.linspace(first, last, self._n + 1).astype(int).tolist()
        with ThreadPoolExecutor(self._n) as threads:
            parts = list(threads.map(self._on_device, range(self._n), ends[:-1], ends[1:]))
        return Fits.joined(parts)

    def _on_device(self, k: int, first: int, last: int) -> Fits:
        with self.xp.cuda.Device(k):
            return self._own(k).fit(first, last)

    def _own(self, k: int) -> CudaFits:
        if k not in self._one:
            self._one[k] = self._make()
        return self._one[k]
