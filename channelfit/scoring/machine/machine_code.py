"""Kernels as machine code: compiled by LLVM when first called, kept in the user's cache folder.

A `Kernel` is called like the Python function that its text is. For each combination of types of its
arguments it is lowered (`lowering`), compiled for this processor, and remembered: in this process,
and as an object file in the cache folder, under a hash of all that it was made of.

Calls go through `ctypes` with one pointer, to the arguments as words of eight bytes, so that they
look the same on every platform. Other Python threads run meanwhile.
"""

from __future__ import annotations

import ast
import ctypes
import hashlib
import json
import platform
import re
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from channelfit.scoring.machine import (
    kernel_text,
    lowering,
    lowering_body,
    lowering_calls,
    lowering_expressions,
)
from channelfit.scoring.machine.announcements import announced
from channelfit.scoring.machine.cache import keep, kept, program
from channelfit.scoring.machine.kernel_text import B1, F64, I64, Source, Type, source_of
from channelfit.scoring.machine.lowering import KernelProgram, Lowered

_ELEMENTS = {
    np.dtype(np.float64): "f64",
    np.dtype(np.float32): "f32",
    np.dtype(np.int64): "i64",
    np.dtype(np.int32): "i32",
    np.dtype(np.int8): "i8",
    np.dtype(np.bool_): "b1",
}
#: The functions of the C library that kernels or LLVM itself may call.
_C_LIBRARY = (
    "malloc",
    "free",
    "memcpy",
    "memset",
    "memmove",
    "log",
    "pow",
    "sin",
    "cos",
    "sincos",
    "__sincos_stret",
    "floor",
    "ceil",
    "bzero",
    "__bzero",
)
_IMPORT = re.compile(
    r"^from (channelfit\.(?:scoring\.(?:machine|kernels)|fitzhugh_nagumo|curves)\.\w+) import",
    re.MULTILINE,
)
_lock = threading.RLock()
#: LLVM's highest level of optimization, and that of texts generated from now on, which tests lower.
MOST_OPTIMIZED = 3
generated_level = MOST_OPTIMIZED


class Kernel:
    """A function of arrays and numbers that runs as machine code.

    Arguments:
        source, name: its text; see `lowering` for its language.
        contract: see `lowering.KernelProgram`.
        checked: whether indices are checked; an IndexError then names the line of a stray one.
        packed: whether LLVM looks for statements of one iteration that vector instructions can do
            together (SLP). Long texts over lanes have none, and may compile twice as fast without.
        level: of LLVM's optimization, 0 to `MOST_OPTIMIZED`; 0 compiles seven times as fast, runs
            more slowly, and joins no product to a sum.

    Arrays have to be in rows (C order) and of one of six types of numbers; they are not copied.
    Raises TypeError for anything else, MemoryError where there is no room for scratch.
    """

    #: Loops of generated texts are over lanes, of which there are as many as are good; unrolled
    #: they would compile a third longer and run no faster.
    unrolled, plainly = False, False

    def __init__(
        self,
        source: Source,
        name: str,
        contract: bool = True,
        checked: bool = False,
        packed: bool = True,
        level: int = MOST_OPTIMIZED,
    ) -> None:
        self.source, self.name, self.level = source, name, level
        self.contract, self.checked, self.packed = contract, checked, packed
        self._made: dict[tuple[Any, ...], _Compiled] = {}

    def __repr__(self) -> str:
        return f"<kernel {self.name} of {self.source.name}>"

    def __call__(self, *arguments: Any) -> Any:
        """Run the kernel; returns None, a number, or a tuple of numbers."""
        made, words = self.bound(*arguments)
        return made.run(words)

    def bound(self, *arguments: Any) -> tuple[_Compiled, list[Any]]:
        """Return the machine code for these arguments, and the arguments as words; see
        `_Compiled.run`.

        The arrays have to live as long as the words are used.
        """
        kinds: list[Any] = []
        words: list[Any] = []
        for a in arguments:
            kind = type(a)
            if kind is np.ndarray:
                if not a.flags.c_contiguous:
                    raise TypeError(f"{self!r}: argument {len(kinds)} is not in rows (C order)")
                kinds.append((a.dtype, a.ndim))
                words.append(_address(a))
                words += a.shape
            elif kind is Callback:
                kinds.append((Callback, a.prototype))  # any kernel that is called in the same way
                words.append(a.kernel.made_for(a.prototype).own)
            else:
                kinds.append(kind)
                words.append(a)
        key = tuple(kinds)
        made = self._made.get(key)
        if made is None:
            with _lock:
                made = self._made[key] = self.made_for(self._types(kinds))
        return made, words

    def made_for(self, types: tuple[Type, ...]) -> _Compiled:
        """Return the machine code for arguments of these types, compiled if need be."""
        with _lock:
            if types not in self._made:
                self._made[types] = _Compiled(self, types)
            return self._made[types]

    def _types(self, kinds: Sequence[Any]) -> tuple[Type, ...]:
        """Return the types of arguments; a whole number is a float where its annotation says so."""
        types = [self._type(kind) for kind in kinds]
        node = self.source.functions.get(self.name)
        for k, argument in enumerate(node.args.args[: len(types)] if node else ()):
            annotation = argument.annotation
            if (
                types[k] in (I64, B1)
                and isinstance(annotation, ast.Name)
                and annotation.id == "float"
            ):
                types[k] = F64
        return tuple(types)

    def _type(self, kind: Any) -> Type:
        if isinstance(kind, tuple) and kind[0] is Callback:
            return Type("kernel", 0, kind[1])
        if isinstance(kind, tuple) and kind[0] in _ELEMENTS and kind[1]:
            return Type(_ELEMENTS[kind[0]], kind[1])
        if isinstance(kind, type) and issubclass(kind, bool | np.bool_):
            return B1
        if isinstance(kind, type) and issubclass(kind, int | np.integer):
            return I64
        if isinstance(kind, type) and issubclass(kind, float | np.floating):
            return F64
        raise TypeError(f"{self!r} takes arrays in rows and numbers, not {kind}")


def _slow_address(array: np.ndarray) -> int:
    """Return the address of an array's first element, by NumPy's array interface."""
    return int(array.__array_interface__["data"][0])


def _read_address(array: np.ndarray) -> int:
    """Return the same address, read from the first field of NumPy's own structure."""
    return int(_word_at(id(array) + _HEAD).value)


_word_at, _HEAD = ctypes.c_size_t.from_address, object.__basicsize__
_trial = np.zeros(3)[1:]
#: A kernel of a few microseconds has dozens of arrays, and NumPy's interface takes one for each.
_address = _slow_address
if platform.python_implementation() == "CPython" and _read_address(_trial) == _slow_address(_trial):
    _address = _read_address


@dataclass(frozen=True, eq=False)
class Callback:
    """A kernel that is handed to another, which calls it with arguments of these types."""

    kernel: Kernel
    prototype: tuple[Type, ...]


class _Compiled:
    """The machine code of a kernel for one set of types.

    Attributes:
        own: the address at which other kernels call it.
    """

    def __init__(self, kernel: Kernel, types: tuple[Type, ...]) -> None:
        self.kernel = kernel
        entry, self.own, results = _loaded(kernel, types)
        self._entry = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(entry)
        letters = [("q" if t.ndim or t != F64 else "d") + "q" * t.ndim for t in types]
        self._arguments = struct.Struct("<" + "".join(letters))
        self._results = struct.Struct("<" + "".join("d" if r == "f64" else "q" for r in results))
        self._size = self._arguments.size + self._results.size

    def run(self, words: Sequence[Any]) -> Any:
        """Run with arguments as words: numbers as they are, arrays as address and shape."""
        room = bytearray(self._size)
        self._arguments.pack_into(room, 0, *words)
        failed = self._entry(ctypes.addressof(ctypes.c_char.from_buffer(room)))
        if failed:
            self._fail(failed)
        found = self._results.unpack_from(room, self._arguments.size)
        return None if not found else found[0] if len(found) == 1 else found

    def _fail(self, code: int) -> None:
        if code == 1:
            raise MemoryError(f"there is no memory for the scratch of {self.kernel!r}")
        raise IndexError(f"a stray index in line {code - 1} of a text that {self.kernel!r} uses")


def generated(
    text: str, name: str, contract: bool = True, checked: bool = False, packed: bool = True
) -> Kernel:
    """Return a kernel of a generated text; see `Kernel` for the arguments."""
    return _kernel(text, name, contract, checked, packed, generated_level)


@cache
def _kernel(
    text: str, name: str, contract: bool, checked: bool, packed: bool, level: int
) -> Kernel:
    return Kernel(_generated(text), name, contract, checked, packed, level)


@cache
def _generated(text: str) -> Source:
    return Source(text, "generated text")


def kernel(function: Callable[..., Any]) -> Kernel:
    """Decorate a function that runs as machine code; its module is a text of kernels."""
    return _Own(function.__module__, function.__name__, function)


def plain_kernel(function: Callable[..., Any]) -> Kernel:
    """Decorate a kernel that has a lot of text, as `kernel` does.

    They are compiled as they stand: no loop is unrolled, no function written out where it is
    called. That compiles two to three times as fast.
    """
    made = _Own(function.__module__, function.__name__, function)
    made.plainly, made.unrolled = True, False
    return made


class _Own(Kernel):
    """A kernel of a Python module; the text is read when the kernel is first called."""

    def __init__(self, module: str, name: str, function: Callable[..., Any]) -> None:
        self.module, self.name, self.python = module, name, function
        self.contract, self.checked, self.packed, self.unrolled = True, False, True, True
        self.level = MOST_OPTIMIZED
        self._made = {}
        self.__doc__ = function.__doc__

    def __repr__(self) -> str:
        return f"<kernel {self.name} of {self.module}>"

    @property
    def source(self) -> Source:  # type: ignore[override]
        """Return the text of the kernel's module."""
        return source_of(self.module)


# --- from text to addresses -----------------------------------------------------------------------


def _loaded(kernel: Kernel, types: tuple[Type, ...]) -> tuple[int, int, list[str]]:
    """Return addresses of the entry and of the kernel itself, and the types of its results."""
    key = _key(kernel, types)
    found = kept("objects", key)
    if found is None:
        own = isinstance(kernel, _Own)
        what = (
            "a kernel that all models share, once"
            if own
            else "the kernel for this model, first time"
        )
        with announced(f"compiling {what} ({kernel.name})"):
            found = _compiled(kernel, types)
        keep("objects", key, found)
    length = int.from_bytes(found[:4], "little")
    facts = json.loads(found[4 : 4 + length])
    library = llvm.JITLibraryBuilder().add_object_img(found[4 + length :])
    for name in ("entry", facts["symbol"]):
        library.export_symbol(name)
    for name, address in _initialized().items():
        library.import_symbol(name, address)
    linked = library.link(_linker(), f"{kernel.name} {len(_libraries)}")
    _libraries.append(linked)
    return linked["entry"], linked[facts["symbol"]], facts["results"]


#: Machine code lives as long as its library.
_libraries: list[Any] = []


def _compiled(kernel: Kernel, types: tuple[Type, ...]) -> bytes:
    """Return an object file, preceded by the facts needed to use it."""
    machine = _machine(kernel.level)
    module, lowered = _optimized(kernel, types, machine)
    results = ["f64" if t.element == "f32" else t.element for t in lowered.result]
    facts = json.dumps({"symbol": lowered.symbol, "results": results}).encode()
    return len(facts).to_bytes(4, "little") + facts + bytes(machine.emit_object(module))


def _optimized(kernel: Kernel, types: tuple[Type, ...], machine: Any) -> tuple[Any, Lowered]:
    """Return LLVM's module for a processor, and the lowered text it was made of."""
    lowered = KernelProgram(
        kernel.source, kernel.name, types, kernel.contract, kernel.checked, kernel.plainly
    ).lowered()
    head = f'target triple = "{machine.triple}"\ntarget datalayout = "{machine.target_data}"\n'
    module = llvm.parse_assembly(head + lowered.text)
    options = llvm.create_pipeline_tuning_options(speed_level=kernel.level)
    options.loop_vectorization, options.slp_vectorization = bool(kernel.level), kernel.packed
    options.loop_unrolling, options.loop_interleaving = kernel.unrolled, not kernel.plainly
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return module, lowered


def _key(kernel: Kernel, types: tuple[Type, ...]) -> str:
    """Return a hash of everything that the machine code is made of."""
    parts = [
        _digest(kernel.source),
        kernel.name,
        *map(str, types),
        str(kernel.contract),
        str(kernel.checked),
        str(kernel.plainly),
        str(kernel.unrolled),
        str(kernel.level),
        str(kernel.packed),
        *_processor(),
        llvmlite.__version__,
        str(llvm.llvm_version_info),
        _compiler(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _digest(source: Source) -> str:
    """Return a hash of a text, its module's constants, and the texts of functions that it uses."""
    parts = [source.text]
    if source.module is not None:
        numbers = sorted(
            (name, value)
            for name, value in vars(source.module).items()
            if isinstance(value, int | float | tuple)
        )
        parts.append(repr(numbers))
    for module in sorted(set(_IMPORT.findall(source.text))):
        parts.append(_digest_of(module))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def _digest_of(module: str) -> str:
    return _digest(source_of(module))


def _compiler() -> str:
    """Return a hash of the Python files that make machine code."""
    makers = (kernel_text, lowering, lowering_body, lowering_calls, lowering_expressions)
    return program(__file__, *(str(maker.__file__) for maker in makers))


@cache
def _processor() -> tuple[str, str, str]:
    """Return the target of compilation: the platform, the processor, and its instructions."""
    _initialized()
    instructions = llvm.get_host_cpu_features()
    features = instructions.flatten()
    # LLVM keeps to 256 bits for the sake of programs that use vectors now and then, and of the
    # first processors with 512, which slow down for them (those without VBMI2).
    if instructions.get("avx512vbmi2"):
        features += ",-prefer-256-bit"
    return llvm.get_process_triple(), llvm.get_host_cpu_name(), features


@cache
def _initialized() -> dict[str, int]:
    """Make LLVM ready; return the addresses of functions of the C library."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    library, addresses = _c_library(), {}
    for name in _C_LIBRARY:
        found = next((getattr(one, name) for one in library if hasattr(one, name)), None)
        if found is not None:
            addresses[name] = ctypes.cast(found, ctypes.c_void_p).value or 0
    return addresses


def _c_library() -> list[Any]:
    """Return the C library as this process has it; on Windows, the libraries that hold it."""
    if sys.platform == "win32":
        return [ctypes.CDLL("ucrtbase"), ctypes.CDLL("msvcrt")]
    libraries = [ctypes.CDLL(None)]
    if not hasattr(libraries[0], "log"):
        libraries.append(ctypes.CDLL("libm.so.6"))
    return libraries


def _machine(level: int = MOST_OPTIMIZED) -> Any:
    """Return LLVM's compiler for this processor."""
    triple, cpu, features = _processor()
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(
        cpu=cpu, features=features, opt=level, reloc="pic", codemodel="small"
    )


@cache
def _linker() -> Any:
    """Return the loader of machine code: each object as a whole, into one piece of memory.

    Instructions reach their constants over at most 2 GB. LLVM's older MCJIT asks for memory
    section by section, and in a process with little room left in between it stops the whole
    program there.
    """
    return llvm.create_lljit_compiler(_machine(), use_jit_link=True)
