"""The common part of the schemes on a GPU: the device, programs, and the state on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from channelfit.fitzhugh_nagumo.equation import Array, Cable, Equation
from channelfit.fitzhugh_nagumo.memory import check_device
from channelfit.fitzhugh_nagumo.scheme import Scheme
from channelfit.reading.errors import InputError
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.arrays import to_host

#: Starts a kernel: (name, blocks, threads, arguments, bytes of shared memory).
Launch = Callable[[str, int, int, Sequence[Any], int], None]

_HEAD = """\
typedef long long Index;

// Where node g of an endless continuation of the cable is kept.
__device__ __forceinline__ Index place(Index g, Index n, int kind) {
    while (g < 0 || g >= n)
        if (kind == 2) g += g < 0 ? n : -n;
        else g = g < 0 ? -g : 2 * (n - 1) - g;
    return g;
}

__device__ __forceinline__ REAL reciprocal(REAL x) {
#ifdef __CUDACC__
    REAL y;
#if DOUBLE
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
#else
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
#endif
    REAL e = fma(-x, y, (REAL)1);  // 1/x = y (1 + e + e^2 + ..), e below 2^-20
    return fma(y, fma(e, e, e), y);
#else
    return (REAL)1 / x;
#endif
}
"""


def program_head(dtype: str, constants: Mapping[str, int]) -> str:
    """Return the head of a program: its constants, the type of its numbers, common functions."""
    real = {"float64": "double", "float32": "float"}[dtype]
    lines = [f"#define REAL {real}", f"#define DOUBLE {int(dtype == 'float64')}"]
    return "\n".join([*lines, *(f"#define {k} {v}" for k, v in constants.items())]) + "\n" + _HEAD


class CableDevice(Protocol):
    """A device that keeps arrays in its memory and runs programs on them."""

    def array(self, values: Any, dtype: str) -> Any: ...

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any: ...

    def host(self, array: Any) -> np.ndarray: ...

    def program(self, text: str) -> Launch: ...

    def free_bytes(self) -> int: ...


class CupyDevice:
    """The GPU that CuPy uses.

    Raises:
        InputError: CuPy or a GPU is missing; the message says what to install.
    """

    def __init__(self) -> None:
        self._cupy = gpu.cupy()

    def array(self, values: Any, dtype: str) -> Any:
        """Return a contiguous copy of the values on the device."""
        with gpu.gpu_errors():
            return self._cupy.array(values, dtype=dtype, order="C")

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return a new array on the device; its values are not set."""
        with gpu.gpu_errors():
            return self._cupy.empty(shape, dtype=dtype)

    def host(self, array: Any) -> np.ndarray:
        """Return a copy of the array on the host, once the device has finished its work."""
        return to_host(array)

    def free_bytes(self) -> int:
        """Return the bytes of the device's memory that are free."""
        return gpu.device().memory_free

    def program(self, text: str) -> Launch:
        """Compile CUDA text; the returned function starts a kernel of it by its name."""
        module = gpu.compile_cuda(text, name="fitzhugh_nagumo.cu")
        kernels: dict[str, Any] = {}

        def launch(
            name: str, blocks: int, threads: int, arguments: Sequence[Any], shared: int
        ) -> None:
            with gpu.gpu_errors():
                if name not in kernels:
                    kernels[name] = module.kernel(name)
                    if shared > 48 << 10:
                        kernels[name].allow_dynamic_shared(shared)
                kernels[name]((blocks,), (threads,), tuple(arguments), shared_mem=shared)

        return launch


class DeviceScheme(Scheme):
    """A scheme on a GPU, with its state on the device, and its programs by their text."""

    on_device = True
    #: How many arrays of one number a node a run needs on the device: of the scheme's own precision
    #: with fixed steps and with controlled steps, and of int32.
    arrays: tuple[int, int, int]

    def __init__(
        self, equation: Equation, cable: Cable, dtype: str, device: CableDevice | None
    ) -> None:
        if dtype not in ("float64", "float32"):
            raise InputError(f'"{dtype}" is neither float64 nor float32', key="dtype")
        self.equation, self.cable, self.dtype = equation, cable, dtype
        self.device: CableDevice = device or CupyDevice()
        self._kinds = tuple(np.int32(kind) for kind in cable.end_kinds)
        self._programs: dict[str, Launch] = {}
        self._last: tuple[tuple[int, float], Any] | None = None
        self._nothing = self.device.array(np.zeros(1), dtype)
        self._real = np.dtype(dtype).type

    def check_memory(self, n_cables: int, controlled: bool) -> None:
        """Refuse cables that the memory of the GPU cannot hold; see `Scheme.check_memory`."""
        reals, integers = self.arrays[int(controlled)], self.arrays[2]
        bytes_a_node = reals * np.dtype(self.dtype).itemsize + 4 * integers
        check_device(bytes_a_node, self.device.free_bytes(), n_cables, self.cable.n_nodes)

    def put(self, values: Array) -> Any:
        """Return a copy of the state, (n_cables, n_nodes), on the device."""
        return self.device.array(values, self.dtype)

    def take(self, values: Any) -> Array:
        """Return a copy of the state on the host, as float64."""
        return np.asarray(self.device.host(values), dtype=float)

    def _program(self, text: str) -> Launch:
        if text not in self._programs:
            self._programs[text] = self.device.program(text)
        return self._programs[text]

    def _drive(self, drive: Array | None) -> Any:
        return self._nothing if drive is None else self.device.array(drive, self.dtype)

    def _cached(self, n_cables: int, dt: float, make: Callable[[], Any]) -> Any:
        """Return the result of `make`, which is called when one of the other arguments changes."""
        if self._last is None or self._last[0] != (n_cables, dt):
            self._last = (n_cables, dt), make()
        return self._last[1]

    def _in_passes(
        self, v: Any, w: Any, n_steps: int, most: int, one_pass: Callable[..., None]
    ) -> tuple[Any, Any]:
        """Make steps in passes of at most `most`, and return the new v and w.

        Arguments:
            one_pass: called with v, w, the arrays that take their new values, and the number of
                steps of the pass.
        """
        spare = [tuple(self.device.empty(v.shape, self.dtype) for _ in range(2)) for _ in range(2)]
        while n_steps > 0:
            count = min(most, n_steps)
            v_new, w_new = spare.pop(0)
            one_pass(v, w, v_new, w_new, count)
            if not spare:
                spare.append((v, w))
            v, w, n_steps = v_new, w_new, n_steps - count
        return v, w
