"""Texts of kernels under Numba and as plain Python: two ways that share nothing with ours.

`with_numba` and `plain` turn the text of a module of kernels, generated or written by hand, into a
namespace of functions; what it imports of other kernel modules is turned in the same way.
"""

from __future__ import annotations

import ast
import re
import struct
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import channelfit

_PACKAGE = Path(channelfit.__file__).parent
_KERNELS = re.compile(
    r"^from (channelfit\.(?:scoring\.(?:machine|kernels)|fitzhugh_nagumo)\.\w+)"
    r" import (\([^)]*\)|[^\n]*)",
    re.MULTILINE,
)


def plain(text: str) -> SimpleNamespace:
    """As Python runs it: no rounding is left out, indices are checked from above."""
    return SimpleNamespace(**_namespace(text, lambda function: function, _PRIMITIVES))


def with_numba(text: str) -> SimpleNamespace:
    """Compiled by Numba, with its own type inference and lowering."""
    from numba import njit

    compiled = njit(error_model="numpy", nogil=True, fastmath={"contract"})
    return SimpleNamespace(**_namespace(text, compiled, _numba_primitives()))


def text_of(module: str) -> str:
    """The text of a kernel module of the package."""
    return (_PACKAGE.parent / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8")


def _namespace(text: str, compiled: Any, primitives: dict[str, Any]) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "a_text_of_kernels"}
    own = {
        module
        for module, _ in _KERNELS.findall(text)
        if re.search(r"^def |^@kernel", text_of(module), re.MULTILINE)
        and not module.endswith(("machine_code", "kernel_text", "fitzhugh_nagumo.equation"))
    }
    for module, names in _KERNELS.findall(text):
        if module not in own:
            continue
        theirs = _namespace(text_of(module), compiled, primitives)
        wanted = re.findall(r"\w+", re.sub("#.*", "", names))
        space |= {n: theirs[n] for n in wanted if n in theirs}
    body = _KERNELS.sub(lambda m: "" if m[1] in own else m[0], text)
    body = body.replace(
        "from channelfit.scoring.machine.machine_code import", "from builtins import id as"
    )
    body = re.sub(r"^@(kernel|plain_kernel|inline|apart)\b.*$", "", body, flags=re.MULTILINE)
    tree = ast.parse(body)
    tree.body = [node for node in tree.body if not isinstance(node, ast.ClassDef)]
    exec(compile(tree, "a text of kernels", "exec"), space)
    if "def bits_of" in text:
        space |= primitives
    for name in re.findall(r"^def (\w+)", body, re.MULTILINE):
        if name not in primitives:
            space[name] = compiled(space[name])
    return space


_PRIMITIVES = {
    "bits_of": lambda x: struct.unpack("<q", struct.pack("<d", x))[0],
    "from_bits": lambda word: struct.unpack("<d", struct.pack("<Q", word & (2**64 - 1)))[0],
    "upper_product": lambda a, b: int(a) * int(b) >> 32,
    "lower_product": lambda a, b: int(a) * int(b) & 0xFFFFFFFF,
}


@cache
def _numba_primitives() -> dict[str, Any]:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    word, double = ir.IntType(64), ir.DoubleType()

    @intrinsic
    def bits_of(typingctx: Any, x: Any) -> Any:
        return types.int64(types.float64), lambda c, b, s, args: b.bitcast(args[0], word)

    @intrinsic
    def from_bits(typingctx: Any, x: Any) -> Any:
        return types.float64(types.int64), lambda c, b, s, args: b.bitcast(args[0], double)

    @intrinsic
    def upper_product(typingctx: Any, x: Any, y: Any) -> Any:
        def build(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return b.lshr(b.mul(*args), word(32))

        return types.int64(types.int64, types.int64), build

    @intrinsic
    def lower_product(typingctx: Any, x: Any, y: Any) -> Any:
        def build(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return b.and_(b.mul(*args), word(0xFFFFFFFF))

        return types.int64(types.int64, types.int64), build

    return {
        "bits_of": bits_of,
        "from_bits": from_bits,
        "upper_product": upper_product,
        "lower_product": lower_product,
    }
