"""CUDA C++ text compiled and run without a GPU, for the tests of generated kernels.

What the kernels may use, and what it means here, stands in ``cuda_host.hpp``.

Stricter than a device: an array must have the type of the kernel's pointer and is surrounded by
bytes that a kernel must not change (and that read as NaN), a scalar must have the type of its
parameter, and a barrier that not every thread of a block reaches is an error.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from channelfit.scoring.machine.cache import cache_folder
from channelfit.scoring.machine.gpu import numbered_lines

#: Without contraction every level of optimization gives the same bits; arrays are small here, and
#: what compiles soonest is done soonest. Only arithmetic on structures (derivatives in dual
#: numbers) takes ten times as long when it is not optimized at all.
FLAGS = ("-std=c++17", "-ffp-contract=off")
NVRTC_PACKAGE = "nvidia-cuda-nvrtc-cu12"

_HEADER = Path(__file__).with_name("cuda_host.hpp")
_CACHE = cache_folder() / "cuda_host"  # one, also for tests that give the program another cache
# A kernel's global variables are its own: NEURON, once loaded, has a `weight` for all to see, and
# ELF prefers the first of a name (macOS does not).
_OWN_SYMBOLS = ("-Wl,-Bsymbolic",) if sys.platform.startswith("linux") else ()
_ALWAYS = ("-fPIC", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-w")
_WAITS = re.compile(r"__sync(threads|warp)|__shfl_|__(ballot|any|all)_sync|__activemask")
_OPERATOR = re.compile(r"\boperator\b")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_CUDA_INCLUDE = re.compile(r'#\s*include\s*[<"](math_constants|cuda_runtime)\.h[>"]')
_BOUNDS = r"(?:__launch_bounds__\s*\(([^()]*)\)\s*)?"
_KERNEL = re.compile(rf"__global__\s+(?:(?:static|inline)\s+)*{_BOUNDS}void\s+{_BOUNDS}(\w+)\s*\(")
_DYNAMIC_SHARED = re.compile(
    r"extern\s+__shared__\s+(?:__align__\s*\(\s*\d+\s*\)\s*)?([\w\s:]+?)\s+(\w+)\s*\[\s*\]\s*;"
)
_MOST_THREADS, _MOST_SHARED_BYTES = 1024, 227 << 10
_TRIES = 3  # of a compiler that crashes
_GUARD = 1024  # bytes before and after an array, so 128-byte alignment survives


class CompileError(Exception):
    """The compiler's message and the numbered source."""


class KernelError(Exception):
    """A launch that a device would refuse, or a kernel that it would not survive."""


@functools.lru_cache(maxsize=256)
def host_program(text: str) -> HostProgram:
    """The kernels of CUDA C++ text as functions of this machine.

    Compiled once: kept in the cache folder under the hash of everything that decides. Skips the
    test where there is no C++ compiler.
    """
    compiler = next((path for name in ("g++", "clang++") if (path := shutil.which(name))), None)
    if compiler is None or os.name == "nt":
        pytest.skip("needs g++ or clang++ (Debian: apt install g++; macOS: xcode-select --install)")
    kernels = {
        name: next((bound for bound in (before, after) if bound), "")
        for before, after, name in _KERNEL.findall(_COMMENT.sub(" ", text))
    }
    if not kernels:
        raise CompileError("the text has no __global__ function")
    source = _host_source(text, kernels)
    flags = (*FLAGS, "-Og" if _OPERATOR.search(text) else "-O0")
    header = _precompiled_header(compiler, flags)
    library = header.parent / f"{_hash(source)}.so"
    if not library.exists():
        _compile(compiler, source, flags, library, text)
    waits = _WAITS.search(_COMMENT.sub(" ", text)) is not None
    return HostProgram(ctypes.CDLL(str(library)), kernels, waits)


class HostProgram:
    """Compiled kernels; `kernels` are their names."""

    def __init__(self, library: ctypes.CDLL, kernels: dict[str, str], waits: bool) -> None:
        self._library, self._bounds, self._waits = library, kernels, waits
        self.kernels = tuple(kernels)

    def launch(
        self,
        name: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any],
        shared_bytes: int = 0,
    ) -> None:
        """Run a kernel to its end; arrays are changed in place, None is a null pointer.

        Each block finds its dynamic shared memory full of NaN. Raises: TypeError, ValueError for
        arguments that do not fit the signature; KernelError for what a device would not survive.
        """
        if name not in self._bounds:
            raise KernelError(f'no kernel "{name}"; there are: {", ".join(self.kernels)}')
        shape = self._checked_shape(name, grid, block, shared_bytes)
        types = self._signature(name)
        if len(args) != len(types):
            raise TypeError(f"{name} takes {len(types)} arguments, not {len(args)}")
        arrays = [arg for arg in args if isinstance(arg, np.ndarray)]
        guards = {} if _overlap(arrays) else {id(array): _Guarded(array) for array in arrays}
        values = [
            _argument(arg, kind, f"{name}, argument {i}", guards)
            for i, (arg, kind) in enumerate(zip(args, types, strict=True))
        ]
        pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        function = self._library[f"cuda_host_launch_{name}"]
        function.restype = ctypes.c_char_p
        message = function(shape, ctypes.c_size_t(shared_bytes), int(self._waits), pointers)
        if message:
            raise KernelError(f"{name}: {message.decode()}")
        for i, (arg, kind) in enumerate(zip(args, types, strict=True)):
            if id(arg) in guards:
                guards[id(arg)].give_back(arg, "c" in kind, f"{name}, argument {i}")

    def variable(self, name: str, dtype: Any, shape: int | tuple[int, ...]) -> np.ndarray:
        """A global __device__ or __constant__ variable, not const, as an array that shares it."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = (ctypes.c_byte * size).in_dll(self._library, name)
        return np.frombuffer(memory, dtype=dtype).reshape(shape)

    def _signature(self, name: str) -> list[str]:
        function = self._library[f"cuda_host_signature_{name}"]
        function.restype = ctypes.c_char_p
        return function().decode().split()

    def _checked_shape(self, name: str, grid: Any, block: Any, shared_bytes: int) -> Any:
        sizes = []
        for what in (grid, block):
            whole = (what,) if isinstance(what, (int, np.integer)) else tuple(what)
            sizes += [int(n) for n in whole] + [1] * (3 - len(whole))
        threads = int(np.prod(sizes[3:]))
        if len(sizes) != 6 or min(sizes) < 1 or sizes[0] >= 2**31 or max(sizes[1:3]) > 65535:
            raise KernelError(f"{name}: no device runs a grid {grid} of blocks {block}")
        bound = self._bounds[name].split(",")[0].strip()
        most = int(bound) if bound.isdigit() else _MOST_THREADS
        if threads > most or sizes[5] > 64:
            raise KernelError(f"{name}: blocks of {threads} threads; at most {most} may run")
        if shared_bytes > _MOST_SHARED_BYTES:
            raise KernelError(f"{name}: {shared_bytes} bytes of shared memory are too many")
        return (ctypes.c_uint * 6)(*sizes)


class _Guarded:
    """A copy of an array between bytes that read as NaN and must stay."""

    def __init__(self, array: np.ndarray) -> None:
        if not array.flags.c_contiguous:
            raise ValueError("arrays must be C-contiguous")
        self.room = np.full(array.nbytes + 2 * _GUARD + 128, 0xFF, dtype=np.uint8)
        start = _GUARD + (-self.room.ctypes.data) % 128
        self.inside = slice(start, start + array.nbytes)
        self.room[self.inside] = array.reshape(-1).view(np.uint8)
        self.address = self.room.ctypes.data + start

    def give_back(self, array: np.ndarray, constant: bool, what: str) -> None:
        before, after = self.room[: self.inside.start], self.room[self.inside.stop :]
        if (before != 0xFF).any() or (after != 0xFF).any():
            raise KernelError(f"{what}: the kernel wrote outside this array")
        if not constant:
            array.reshape(-1).view(np.uint8)[:] = self.room[self.inside]


def _overlap(arrays: list[np.ndarray]) -> bool:
    """Return whether different arrays share memory."""
    own = list({id(array): array for array in arrays}.values())
    return any(np.may_share_memory(a, b) for i, a in enumerate(own) for b in own[:i])


def _argument(arg: Any, kind: str, what: str, guards: dict[int, _Guarded]) -> np.ndarray:
    """Return the array, or a number as an array of one item, of a kernel's parameter."""
    if "*" in kind:
        return np.array([_address(arg, kind, what, guards)], dtype=np.uintp)
    if isinstance(arg, np.ndarray):
        raise TypeError(f"{what}: an array, where the kernel takes a scalar {kind}")
    if kind[0] == "V":
        value = np.array([arg])
        if value.nbytes != int(kind[1:]):
            raise TypeError(f"{what}: {value.nbytes} bytes, where the kernel takes {kind[1:]}")
        return value
    dtype = np.dtype("?" if kind == "b1" else kind)
    if isinstance(arg, np.generic) and arg.dtype != dtype:
        raise TypeError(f"{what}: {arg.dtype}, where the kernel takes {dtype}")
    if isinstance(arg, float) and not isinstance(arg, np.generic) and kind != "f8":
        raise TypeError(f"{what}: CuPy passes a Python float as float64, not as {dtype}")
    if isinstance(arg, int) and not isinstance(arg, bool) and dtype.kind not in "iu":
        raise TypeError(f"{what}: CuPy passes a Python int as an integer, not as {dtype}")
    if isinstance(arg, bool) and kind != "b1":
        raise TypeError(f"{what}: CuPy passes a Python bool as one byte, not as {dtype}")
    return np.array([arg], dtype=dtype)


def _address(arg: Any, kind: str, what: str, guards: dict[int, _Guarded]) -> int:
    if arg is None or (isinstance(arg, np.uintp) and arg == 0):
        return 0
    if not isinstance(arg, np.ndarray):
        raise TypeError(f"{what}: {type(arg).__name__}, where the kernel takes a pointer")
    if not arg.flags.c_contiguous:
        raise ValueError(f"{what}: the array is not C-contiguous")
    constant, pointee = kind.split("*")
    if not constant and not arg.flags.writeable:
        raise ValueError(f"{what}: the kernel may write to this read-only array")
    expected = np.dtype("?" if pointee == "b1" else pointee) if pointee[0] != "V" else None
    if expected is not None and arg.dtype != expected:
        raise TypeError(f"{what}: an array of {arg.dtype}, where the kernel takes {expected}*")
    return guards[id(arg)].address if id(arg) in guards else arg.ctypes.data


def _host_source(text: str, kernels: dict[str, str]) -> str:
    """The text as C++ and, behind it, what calls its kernels."""
    own = _CUDA_INCLUDE.sub("", text)
    own = _DYNAMIC_SHARED.sub(
        lambda match: f"{match[1]}* {match[2]} = ({match[1]}*)cuda_host::dynamic_shared;", own
    )
    calls = "".join(
        f"""
extern "C" const char* cuda_host_signature_{name}() {{ return cuda_host::signature(&{name}); }}
extern "C" const char* cuda_host_launch_{name}(
    const unsigned* shape, size_t shared_bytes, int waits, void** arguments) {{
    return cuda_host::launch(&{name}, shape, shared_bytes, waits != 0, arguments);
}}
"""
        for name in kernels
    )
    return f'#include "{_HEADER.name}"\n#line 1 "kernel.cu"\n{own}\n#line 1 "calls.cpp"\n{calls}'


def _compile(compiler: str, source: str, flags: tuple[str, ...], library: Path, text: str) -> None:
    """Into the folder of the header that it includes."""
    command = [compiler, *flags, *_ALWAYS, "-shared", *_OWN_SYMBOLS, f"-I{library.parent}"]
    _run([*command, "-x", "c++", "-"], library, source, text)


@functools.cache
def _precompiled_header(compiler: str, flags: tuple[str, ...]) -> Path:
    """The header in a folder of the cache, beside what g++ has made of it, which spares a third."""
    text = _HEADER.read_text()
    key = "\n".join((text, *flags, *_ALWAYS, *_OWN_SYMBOLS, compiler, _version(compiler)))
    folder = _CACHE / _hash(key)
    header, compiled = folder / _HEADER.name, folder / f"{_HEADER.name}.gch"
    if not compiled.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{_HEADER.name}.{_mine()}.partial"
        partial.write_text(text)
        partial.replace(header)
        command = [compiler, *flags, *_ALWAYS, "-x", "c++-header", str(header)]
        _run(command, compiled, "", text)
    return header


def _run(command: list[str], result: Path, source: str, text: str) -> None:
    """Run the compiler; its result appears whole or not at all, whoever else makes the same."""
    # it is asked again: g++ maps a compiled header at an address that is not always free, and
    # then says that it has an internal error
    partial = result.with_name(f"{result.name}.{_mine()}.partial")
    for _ in range(_TRIES):
        run = subprocess.run(
            [*command, "-o", str(partial)], input=source, capture_output=True, text=True
        )
        if not run.returncode or "internal compiler error" not in run.stderr:
            break
    if run.returncode:
        raise CompileError(f"{run.stderr}\n{numbered_lines(text, run.stderr)}")
    partial.replace(result)


def _mine() -> str:
    """Return a name of this thread, as others may compile the same text at once."""
    return f"{os.getpid()}.{threading.get_ident()}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@functools.cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout


class DeviceArray(np.ndarray):
    """Plays a CuPy array: not one of the host, to which `get` copies it."""

    __module__ = "cupy"

    def get(self, out: np.ndarray | None = None, blocking: bool = True) -> np.ndarray:
        assert blocking or out is not None
        if out is None:
            return np.array(self)
        out[...] = self
        return out

    def set(self, array: np.ndarray, stream: Any = None) -> None:
        assert array.shape == self.shape
        assert array.dtype == self.dtype
        self[...] = array


class HostCupy(types.ModuleType):
    """Plays CuPy, an H200 with it: NumPy's functions, and kernels run by the host shim."""

    __version__ = "14.2.0"
    ndarray = DeviceArray

    def __init__(self) -> None:
        super().__init__("cupy")
        properties = {
            "name": b"NVIDIA H200",
            "major": 9,
            "minor": 0,
            "multiProcessorCount": 132,
            "sharedMemPerBlock": 49152,
            "sharedMemPerBlockOptin": 232448,
            "regsPerBlock": 65536,
            "sharedMemPerMultiprocessor": 233472,
            "regsPerMultiprocessor": 65536,
            "maxThreadsPerMultiProcessor": 2048,
        }
        runtime = types.SimpleNamespace(
            getDeviceCount=lambda: 1,
            getDevice=lambda: 0,
            getDeviceProperties=lambda _: properties,
            memGetInfo=lambda: (140 * 10**9, 150 * 10**9),
            deviceGetAttribute=lambda *_: 0,
            cudaDevAttrKernelExecTimeout=17,
            driverGetVersion=lambda: 12090,
            runtimeGetVersion=lambda: 12090,
        )
        self.cuda = types.SimpleNamespace(
            runtime=runtime,
            driver=types.SimpleNamespace(
                occupancyMaxActiveBlocksPerMultiprocessor=lambda _, threads, __: 1024 // threads,
                funcGetAttribute=lambda attribute, _: {0: 1024}.get(attribute, 0),
                funcSetAttribute=lambda *_: None,
            ),
            nvrtc=_Nvrtc(),
            function=types.SimpleNamespace(Module=_Module),
            UnownedMemory=lambda pointer, size, owner: pointer,
            MemoryPointer=lambda memory, offset: memory,
            alloc_pinned_memory=bytearray,
            Event=_Event,
            Stream=_Stream,
            get_elapsed_time=lambda start, end: 1e3 * (end.time - start.time),
            get_current_stream=lambda: types.SimpleNamespace(synchronize=lambda: None),
        )

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if not callable(found) or isinstance(found, type):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            return result.view(DeviceArray) if isinstance(result, np.ndarray) else result

        return call


class _Event:
    done = True

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self.time = 0.0

    def record(self) -> None:
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        pass


class _Stream:
    """Plays a stream, in which everything is done at once."""

    def __init__(self, non_blocking: bool = False) -> None:
        self.non_blocking = non_blocking

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _Nvrtc:
    """Plays CuPy's NVRTC; the machine code that it makes of a text is the text."""

    NVRTCError = CompileError

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.log = ""

    def getVersion(self) -> tuple[int, int]:
        return 0, 0

    def getSupportedArchs(self) -> tuple[int, ...]:
        return 75, 80, 86, 89, 90, 100, 120

    def createProgram(
        self, text: str, name: str, headers: tuple[str, ...], names: tuple[str, ...]
    ) -> int:
        self.texts.append(text)
        return len(self.texts) - 1

    def compileProgram(self, program: int, options: tuple[str, ...]) -> None:
        assert isinstance(options, tuple)
        try:
            host_program(self.texts[program])
        except CompileError as error:
            self.log = str(error)
            raise

    def getCUBIN(self, program: int) -> bytes:
        return self.texts[program].encode()

    def getProgramLog(self, program: int) -> str:
        return self.log

    def destroyProgram(self, program: int) -> None:
        pass


class _Module:
    def load(self, code: bytes) -> None:
        self.program = host_program(code.decode())

    def get_function(self, name: str) -> _Function:
        return _Function(self.program, name)

    def get_global_var(self, name: str) -> _Place:
        return _Place(self.program, name)


class _Place:
    """Plays a CuPy pointer to a global variable."""

    def __init__(self, program: HostProgram, name: str) -> None:
        self.program, self.name = program, name

    def copy_from_device_async(self, source: memoryview, size: int) -> None:
        assert source.nbytes == size
        self.program.variable(self.name, np.uint8, size)[...] = np.frombuffer(source, np.uint8)


class _Function:
    ptr = 1

    def __init__(self, program: HostProgram, name: str) -> None:
        self.program, self.name = program, name

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: tuple[Any, ...],
        shared_mem: int = 0,
    ) -> None:
        for i, arg in enumerate(args):
            if arg is None or (isinstance(arg, np.ndarray) and not isinstance(arg, DeviceArray)):
                raise TypeError(f"{self.name}, argument {i}: CuPy takes no {type(arg).__name__}")
        self.program.launch(self.name, grid, block, args, shared_mem)


def compile_with_nvrtc(
    text: str, architecture: str = "sm_90", options: Sequence[str] = ("-std=c++17",)
) -> str:
    """The compiler's log of a text, compiled as CuPy would have it; needs no GPU, but NVRTC."""
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    encoded = text.encode()
    _done(
        nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), encoded, b"kernel.cu", 0, None, None)
    )
    try:
        given = [f"--gpu-architecture={architecture}".encode(), *(o.encode() for o in options)]
        code = nvrtc.nvrtcCompileProgram(
            program, len(given), (ctypes.c_char_p * len(given))(*given)
        )
        size = ctypes.c_size_t()
        _done(nvrtc, nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        _done(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
        message = log.value.decode()
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if code:
        raise CompileError(f"{message}\n{numbered_lines(text, message)}")
    return message


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    try:
        files = importlib.metadata.files(NVRTC_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    own = re.compile(r"(libnvrtc\.so\.\d+|nvrtc64_\d+_0\.dll)$")
    place = next((str(file.locate()) for file in files if own.search(file.name)), None)
    place = place or ctypes.util.find_library("nvrtc")
    if place is None:
        pytest.skip(f"needs NVRTC: pip install {NVRTC_PACKAGE}")
    nvrtc = ctypes.CDLL(place)
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return nvrtc


def _done(nvrtc: ctypes.CDLL, code: int) -> None:
    if code:
        raise CompileError(nvrtc.nvrtcGetErrorString(code).decode())
