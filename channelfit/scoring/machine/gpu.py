"""The only file that imports CuPy: the GPU, its compiler, and its errors in plain words."""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from channelfit.reading.errors import DeviceError, InputError
from channelfit.scoring.machine.announcements import announced
from channelfit.scoring.machine.cache import keep, kept, private_folder

INSTALL = 'pip install "channelfit[cuda]"'

#: A null pointer among a kernel's arguments. With None, CuPy would pass no argument and crash.
NULL = np.uintp(0)

_CPU = "--backend cpu needs no GPU"
#: The folder within the cache folder for compiled kernels, CuPy's own among them.
_MACHINE_CODE = "cuda"
#: Names of errors in CUDA's runtime and driver, and for each its meaning here and its remedy.
_MEANINGS = (
    (
        r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|Out of memory allocating",
        "the GPU's memory does not suffice ({memory}); use a smaller --population or a smaller "
        "chunk, or end other programs on this GPU",
    ),
    (
        r"cudaErrorNoDevice|CUDA_ERROR_NO_DEVICE",
        f"there is no NVIDIA GPU in this machine, or it is hidden (CUDA_VISIBLE_DEVICES); {_CPU}",
    ),
    (
        r"libcuda|nvcuda\.dll|CUDA_ERROR_NOT_INITIALIZED",
        "the NVIDIA driver is not installed or not loaded; install it from "
        f"https://www.nvidia.com/drivers and check it with nvidia-smi; {_CPU}",
    ),
    (
        r"cudaErrorInsufficientDriver|UnsupportedPtxVersion|UNSUPPORTED_PTX_VERSION"
        r"|SYSTEM_DRIVER_MISMATCH",
        "the NVIDIA driver is missing or older than the CUDA that CuPy was built for; update it "
        f"from https://www.nvidia.com/drivers and check it with nvidia-smi; {_CPU}",
    ),
    (
        r"cudaErrorNoKernelImageForDevice|CUDA_ERROR_NO_BINARY_FOR_GPU|cudaErrorInvalidPtx"
        r"|CUDA_ERROR_INVALID_PTX",
        "this GPU is too old or too new for the installed CuPy, which holds no code for its "
        f"architecture; install the newest CuPy and driver: {INSTALL}; {_CPU}",
    ),
    (
        r"cudaErrorLaunchTimeout|CUDA_ERROR_LAUNCH_TIMEOUT",
        "a kernel ran longer than the watchdog of the display allows (this GPU draws the screen "
        "too); use a smaller --chunk, a smaller --population, or a GPU without a display",
    ),
    (
        r"LaunchOutOfResources|CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        "a kernel asks for more registers or shared memory than this GPU has at that many "
        "threads a block; use fewer threads a block (`channelfit tune MODEL` finds how many)",
    ),
    (
        r"IllegalAddress|ILLEGAL_ADDRESS|MisalignedAddress|MISALIGNED_ADDRESS|LaunchFailure"
        r"|LAUNCH_FAILED|IllegalInstruction|ILLEGAL_INSTRUCTION",
        "a kernel read or wrote where it must not, and the GPU stopped it: a defect of "
        f"channelfit; please report it with the model file; meanwhile {_CPU}",
    ),
)


class CudaCompileError(InputError):
    """An error of the installed compiler in generated CUDA, with the lines that it names."""


@dataclass(frozen=True)
class GpuProperties:
    """The properties of the current GPU.

    Memory is in bytes; shared memory and registers (of 32 bits) are given per block and per
    multiprocessor. Versions are CUDA's, such as (12, 4).
    """

    name: str
    compute_capability: tuple[int, int]
    n_multiprocessors: int
    memory_free: int
    memory_total: int
    shared_per_block: int
    shared_per_multiprocessor: int
    registers_per_block: int
    registers_per_multiprocessor: int
    threads_per_multiprocessor: int
    driver_version: tuple[int, int]
    runtime_version: tuple[int, int]
    draws_the_screen: bool


@dataclass(frozen=True)
class Occupancy:
    """The part of a multiprocessor that blocks of a kernel take.

    Attributes:
        blocks: how many blocks it runs at once.
        fraction: the share, 0 .. 1, of its threads that they take.
    """

    blocks: int
    fraction: float


class CudaKernel:
    """A kernel on the current GPU, called as `kernel(blocks, threads, arguments, shared_mem=0)`.

    blocks and threads are tuples of one to three numbers; arguments are CuPy arrays and NumPy
    scalars of exactly the types that the kernel declares; shared_mem is bytes of dynamic shared
    memory.
    """

    # CUfunction_attribute of the driver
    _MOST_THREADS, _MOST_DYNAMIC, _CARVEOUT = 0, 8, 9

    def __init__(self, function: Any) -> None:
        self.kernel = function

    def __call__(
        self,
        blocks: tuple[int, ...],
        threads: tuple[int, ...],
        arguments: tuple[Any, ...],
        shared_mem: int = 0,
    ) -> None:
        self.kernel(blocks, threads, arguments, shared_mem)

    @property
    def max_threads_per_block(self) -> int:
        """Return the most threads per block that the registers of the kernel allow."""
        attribute = cupy().cuda.driver.funcGetAttribute(self._MOST_THREADS, self.kernel.ptr)
        return int(attribute)

    def allow_dynamic_shared(self, n_bytes: int) -> None:
        """Allow launches to ask for so much shared memory; otherwise 48 KB is the most."""
        self._set(self._MOST_DYNAMIC, n_bytes)

    def prefer_shared(self, percent: int) -> None:
        """Set how much of the first-level cache should be shared memory, in percent."""
        self._set(self._CARVEOUT, percent)

    def _set(self, attribute: int, value: int) -> None:
        with gpu_errors():
            cupy().cuda.driver.funcSetAttribute(self.kernel.ptr, attribute, value)


@dataclass(frozen=True, eq=False)
class CudaModule:
    """Compiled CUDA text, loaded on the current GPU."""

    name: str
    text: str
    raw: Any

    def kernel(self, name: str) -> CudaKernel:
        """Return a kernel by its name. Raises: KeyError when the text has none of that name."""
        with self._named(f'kernel "{name}"'):
            return CudaKernel(self.raw.get_function(name))

    def variable(self, name: str) -> Any:
        """Return CuPy's pointer to a global variable. Raises: KeyError when there is none."""
        with self._named(f'variable "{name}"'):
            memory = cupy().cuda.UnownedMemory(self.raw.get_global_var(name), 0, self.raw)
            return cupy().cuda.MemoryPointer(memory, 0)

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if "NOT_FOUND" in str(error):
                raise KeyError(f"{self.name} has no {what}") from None
            raise


@dataclass(frozen=True, eq=False)
class Compilation:
    """CUDA text that is being compiled by another thread; see `compile_ahead`."""

    name: str
    text: str
    code: Future[bytes]

    @property
    def done(self) -> bool:
        """True once `module` returns without waiting."""
        return self.code.done()

    def module(self) -> CudaModule:
        """Wait for the compiler and load the kernels. Raises: as `compile_cuda` does."""
        with gpu_errors():
            return _loaded(self.name, self.text, self.code.result())


#: The compilations of other threads, by the key in the cache folder.
_under_way: dict[str, Future[bytes]] = {}
#: CuPy, once it has worked.
_working: Any = None


def cupy() -> Any:
    """Return CuPy, after making sure that it can use a GPU.

    Raises: InputError, naming the missing part (CuPy, the driver or a GPU) and how to get it.
    """
    global _working
    if _working is not None and sys.modules.get("cupy") is _working:
        return _working  # called at every launch
    try:
        # before the first import: CuPy reads it then
        if "CUPY_CACHE_DIR" not in os.environ:
            folder = private_folder(_MACHINE_CODE)
            alone = "CUPY_CACHE_IN_MEMORY" if folder is None else "CUPY_CACHE_DIR"
            os.environ[alone] = "1" if folder is None else str(folder)
        module = importlib.import_module("cupy")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "cupy":
            raise _broken(error) from None
        raise InputError(_without_cupy()) from None
    except Exception as error:  # libraries of another CUDA: any error, by version of CuPy
        raise _broken(error) from None
    with gpu_errors():
        try:
            count = module.cuda.runtime.getDeviceCount()
        except Exception as error:
            if _meaning(str(error)) is None:
                raise InputError(f"CuPy cannot use a GPU: {_first_line(error)}; {_CPU}") from None
            raise
    if not count:
        raise InputError(f"there is no NVIDIA GPU in this machine; {_CPU}")
    _working = module
    return module


def is_available() -> bool:
    """Return whether CuPy and a GPU can be used here."""
    try:
        cupy()
    except InputError:
        return False
    return True


def device() -> GpuProperties:
    """Describe the current GPU. Raises: InputError without one."""
    cp = cupy()
    with gpu_errors():
        runtime = cp.cuda.runtime
        place = runtime.getDevice()
        found = runtime.getDeviceProperties(place)
        free, total = runtime.memGetInfo()
        timeout = runtime.deviceGetAttribute(runtime.cudaDevAttrKernelExecTimeout, place)
        name = found["name"]
        return GpuProperties(
            name=name.decode() if isinstance(name, bytes) else str(name),
            compute_capability=(int(found["major"]), int(found["minor"])),
            n_multiprocessors=int(found["multiProcessorCount"]),
            memory_free=int(free),
            memory_total=int(total),
            shared_per_block=int(found.get("sharedMemPerBlockOptin", found["sharedMemPerBlock"])),
            shared_per_multiprocessor=int(found["sharedMemPerMultiprocessor"]),
            registers_per_block=int(found["regsPerBlock"]),
            registers_per_multiprocessor=int(found["regsPerMultiprocessor"]),
            threads_per_multiprocessor=int(found["maxThreadsPerMultiProcessor"]),
            driver_version=_version(runtime.driverGetVersion()),
            runtime_version=_version(runtime.runtimeGetVersion()),
            draws_the_screen=bool(timeout),
        )


def compile_cuda(text: str, options: Sequence[str] = (), name: str = "kernel.cu") -> CudaModule:
    """Compile CUDA C++ with NVRTC for the current GPU, or load its earlier machine code.

    Machine code is kept in the cache folder (see `cache.keep`), under the hash of text, options,
    architecture and version of the compiler. ``-ftz=true`` is always among the options: float32
    numbers below 1.2e-38 become 0.

    Arguments:
        text: with kernels declared `extern "C" __global__`.
        options: of NVRTC, beside ``-std=c++17 -ftz=true`` and the architecture.
        name: of the text, for messages.

    Raises: CudaCompileError with the compiler's message and the lines it names; InputError without
    a GPU, or with one that NVRTC no longer compiles for.
    """
    with gpu_errors():
        return _loaded(name, text, _machine_code(text, *_options_and_key(text, options), name))


def compile_ahead(text: str, options: Sequence[str] = (), name: str = "kernel.cu") -> Compilation:
    """Begin to compile as `compile_cuda` does, in another thread: NVRTC does not hold Python up.

    Code that lies in the cache folder is there at once, and a text that is being compiled already
    is not compiled twice.
    """
    with gpu_errors():
        every_option, key = _options_and_key(text, options)
        found, mine = kept(_MACHINE_CODE, key), Future[bytes]()
        code = mine if found is not None else _under_way.setdefault(key, mine)
        if code is not mine:
            return Compilation(name, text, code)

    def compiled() -> None:
        try:
            code.set_result(_machine_code(text, every_option, key, name))
        except Exception as error:  # raised by `module`
            code.set_exception(error)
        finally:
            _under_way.pop(key, None)

    if found is not None:
        code.set_result(found)
    else:  # a process that ends meanwhile waits for it: a compiler must not be torn down
        threading.Thread(target=compiled, name=f"NVRTC {name}").start()
    return Compilation(name, text, code)


def _loaded(name: str, text: str, code: bytes) -> CudaModule:
    module = cupy().cuda.function.Module()
    module.load(code)
    return CudaModule(name, text, module)


def _options_and_key(text: str, options: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return all options of a text, and the hash under which its machine code is kept."""
    every = ("-std=c++17", "-ftz=true", *options, f"-arch={_architecture()}")
    version = ".".join(map(str, cupy().cuda.nvrtc.getVersion()))
    words = "\0".join((f"NVRTC {version}", *every, text))
    return every, hashlib.sha256(words.encode()).hexdigest()


def _architecture() -> str:
    """Return the GPU's architecture.

    Where NVRTC is too old to know it, that is the newest one that NVRTC knows, as the driver can
    translate its code.
    """
    cp = cupy()
    found = cp.cuda.runtime.getDeviceProperties(cp.cuda.runtime.getDevice())
    own = 10 * int(found["major"]) + int(found["minor"])
    known = [int(number) for number in cp.cuda.nvrtc.getSupportedArchs()]
    if own in known:
        return f"sm_{own}"
    older = [number for number in known if number < own]
    if not older:
        raise InputError(
            f"NVRTC {'.'.join(map(str, cp.cuda.nvrtc.getVersion()))} compiles for sm_{min(known)} "
            f"and newer, but this GPU is an sm_{own}; install a CuPy for an older CUDA; {_CPU}"
        )
    return f"compute_{max(older)}"


def _machine_code(text: str, options: tuple[str, ...], key: str, name: str) -> bytes:
    """Return machine code from the cache folder, or compile it and keep it there."""
    code = kept(_MACHINE_CODE, key)
    if code is None:
        with announced(f"compiling {name} for this GPU, first time"):
            code = _compiled(text, options, name)
        keep(_MACHINE_CODE, key, code)
    return code


def _compiled(text: str, options: tuple[str, ...], name: str) -> bytes:
    """Compile a text with NVRTC: machine code, or intermediate code (PTX) for an architecture it
    does not know.
    """
    nvrtc = cupy().cuda.nvrtc
    program = nvrtc.createProgram(text, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, options)
        translated = options[-1].startswith("-arch=compute")
        code = nvrtc.getPTX(program) if translated else nvrtc.getCUBIN(program)
        return bytes(code) if isinstance(code, (bytes, bytearray)) else code.encode()
    except nvrtc.NVRTCError:
        log = nvrtc.getProgramLog(program).strip().strip("\0")
        message = re.sub(r"\S*?\w+\.cu(?=[(:]\d)", lambda _: name, log)
        raise CudaCompileError(
            "the generated CUDA does not compile here; please report it with the model "
            f"file; meanwhile {_CPU}\n{message}\n{numbered_lines(text, log)}"
        ) from None
    finally:
        nvrtc.destroyProgram(program)


def numbered_lines(text: str, message: str) -> str:
    """Return the numbered lines of a text around those that a compiler's message names."""
    named = [int(line) for line in re.findall(r"\.cu[(:](\d+)", message)][:5]
    near = {line + k for line in named for k in range(-3, 4)}
    lines = enumerate(text.splitlines(), 1)
    return "\n".join(f"{i:5d}  {line}" for i, line in lines if i in near)


@contextmanager
def gpu_errors() -> Iterator[None]:
    """Turn errors of CUDA and CuPy within the block into a DeviceError with a remedy.

    An error without a known meaning passes unchanged: it is a defect.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        meaning = _meaning(str(error)) if _from_cuda(error) else None
        if meaning is None:
            raise
        raise DeviceError(meaning.format(memory=_memory(error))) from error


def occupancy(kernel: Any, threads_per_block: int, shared_bytes: int = 0) -> Occupancy:
    """Return how full a multiprocessor is with blocks of a kernel.

    Arguments:
        kernel: of `CudaModule.kernel`.
        threads_per_block: of the launch.
        shared_bytes: dynamic shared memory of a block.
    """
    cp = cupy()
    with gpu_errors():
        blocks = cp.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
            kernel.kernel.ptr, threads_per_block, shared_bytes
        )
        warps = -(-threads_per_block // 32)
        return Occupancy(blocks, 32 * warps * blocks / device().threads_per_multiprocessor)


def timed(function: Callable[[], object], repeats: int = 7) -> float:
    """Return the median duration of a call on the GPU in seconds, by CUDA's events.

    Arguments:
        function: is called once to warm up, and then `repeats` times.
    """
    cp = cupy()
    with gpu_errors():
        function()
        seconds = []
        for _ in range(repeats):
            start, end = cp.cuda.Event(), cp.cuda.Event()
            start.record()
            function()
            end.record()
            end.synchronize()
            seconds.append(cp.cuda.get_elapsed_time(start, end) / 1e3)
    seconds.sort()
    return float(seconds[len(seconds) // 2])


class Readback:
    """A copy of a small array that is on its way from the GPU to the host."""

    def __init__(self, array: Any) -> None:
        self._event: Any = None
        if not hasattr(array, "get"):  # a host's array, from an optimizer tested without a GPU
            self._host = np.array(array)
            return
        cp = cupy()
        with gpu_errors():
            self._memory = cp.cuda.alloc_pinned_memory(array.nbytes)
            count = array.size
            self._host = np.frombuffer(self._memory, array.dtype, count).reshape(array.shape)
            array.get(out=self._host, blocking=False)
            # waiting for it must not keep a core busy
            self._event = cp.cuda.Event(block=True, disable_timing=True)
            self._event.record()

    @property
    def arrived(self) -> bool:
        """True once `read` returns without waiting."""
        with gpu_errors():
            return self._event is None or bool(self._event.done)

    def read(self) -> np.ndarray:
        """Wait for the GPU and return the array as it was when the copy began."""
        if self._event is not None:
            with gpu_errors():
                self._event.synchronize()
        return self._host.copy()


def _meaning(message: str) -> str | None:
    return next((words for cause, words in _MEANINGS if re.search(cause, message)), None)


def _from_cuda(error: BaseException) -> bool:
    """Return whether an error is one of CuPy's own, or of its search for the driver's library."""
    own = (type(error).__module__ or "").partition(".")[0]
    return own in ("cupy", "cupy_backends") or "CuPy failed to load" in str(error)


def _memory(error: BaseException) -> str:
    """Say how much memory was requested and how much is free, as far as it is known."""
    parts = []
    requested = re.search(r"allocating ([\d,]+) bytes", str(error))
    if requested:
        parts.append(f"{_megabytes(int(requested[1].replace(',', '')))} requested")
    try:
        free, total = importlib.import_module("cupy").cuda.runtime.memGetInfo()
        parts.append(f"{_megabytes(free)} of {_megabytes(total)} free")
    except Exception:  # after some errors the device answers nothing any more
        parts.append("the free memory is not known")
    return ", ".join(parts)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size:,} bytes"


def _without_cupy() -> str:
    if platform.system() == "Darwin":
        return f"macOS has no CUDA; {_CPU}"
    return f"CuPy is not installed: {INSTALL} (it installs cupy-cuda12x); {_CPU}"


def _broken(error: BaseException) -> InputError:
    return InputError(
        f"CuPy is installed but cannot be imported: {_first_line(error)}; install the one for "
        f"your CUDA again: {INSTALL} (it installs cupy-cuda12x); {_CPU}"
    )


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip(" =")]
    return lines[0].strip()[:200] if lines else type(error).__name__


def _version(number: int) -> tuple[int, int]:
    return number // 1000, number % 1000 // 10
