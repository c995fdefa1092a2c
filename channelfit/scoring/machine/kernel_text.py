"""Texts of kernels: their functions, the meanings of names in them, and types of numbers.

The language itself is described in `lowering`.
"""

from __future__ import annotations

import ast
import importlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

#: Functions of `kernel_math` that are an instruction or two each.
PRIMITIVES = ("bits_of", "from_bits", "upper_product", "lower_product")
LLVM = {"f64": "double", "f32": "float", "i64": "i64", "i32": "i32", "i8": "i8", "b1": "i1"}
FLOATS = ("f64", "f32")
DTYPES = {
    "float64": "f64",
    "float32": "f32",
    "int64": "i64",
    "int32": "i32",
    "int8": "i8",
    "bool_": "b1",
    "float": "f64",
    "int": "i64",
    "bool": "b1",
}


#: CPython 3.11 fails where two threads parse at once: "AST constructor recursion depth mismatch".
_one_at_a_time = Lock()


class LoweringError(Exception):
    """A text that is not of the kernels' language: the mistake, its place, and the line itself."""


@dataclass(frozen=True)
class Type:
    """A number (ndim 0), an array in rows, or a kernel (element "kernel").

    Attributes:
        element: f64, f32, i64, i32, i8 or b1: the number, or that of the array's elements.
        ndim: dimensions.
        prototype: of a kernel, the types of its arguments.
    """

    element: str
    ndim: int = 0
    prototype: tuple[Type, ...] = ()

    def __str__(self) -> str:
        if self.prototype:
            return f"kernel({', '.join(map(str, self.prototype))})"
        return self.element + (f"[{', '.join(':' * self.ndim)}]" if self.ndim else "")


F64, F32, I64, B1 = Type("f64"), Type("f32"), Type("i64"), Type("b1")


class Source:
    """One text of kernels: its functions, and the meanings of the names in it.

    Arguments:
        text: of a module.
        name: for messages.
        module: the module itself, where the text is one that Python has imported.
    """

    def __init__(self, text: str, name: str, module: ModuleType | None = None) -> None:
        self.text, self.name, self.module = text, name, module
        self.lines = text.splitlines()
        self.functions: dict[str, ast.FunctionDef] = {}
        self.imported: dict[str, tuple[str, str]] = {}
        self.constants: dict[str, Any] = {}
        self.elements: dict[str, str] = {}  # of the constants that are arrays
        with _one_at_a_time:
            parsed = ast.parse(text)
        for node in parsed.body:
            if isinstance(node, ast.FunctionDef):
                self.functions[node.name] = node
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = (node.module, alias.name)
            elif isinstance(node, ast.Assign) and module is None:
                self._constant(node)

    def _constant(self, node: ast.Assign) -> None:
        """Read a number, or a list of numbers in `np.array(..)`, from literals alone."""
        value: Any = node.value
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "np.array":
            value = value.args[0]
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.constants[target.id] = ast.literal_eval(value)
                if isinstance(node.value, ast.Call):
                    self.elements[target.id] = DTYPES[ast.unparse(node.value.args[1])[3:]]

    def error(self, function: ast.FunctionDef, at: ast.AST, what: str) -> LoweringError:
        """Return the error that names a place in a function of this text."""
        number = getattr(at, "lineno", function.lineno)
        line = self.lines[number - 1].strip()
        return LoweringError(f"{self.name}, {function.name}, line {number}: {what}: {line}")

    def find(self, name: str) -> tuple[str, Any]:
        """Find the meaning of a name.

        Returns: ("function", (source, node)), ("constant", value), ("math", name) or ("", None).
        """
        if name in PRIMITIVES:
            return "math", name
        if name in self.functions:
            return "function", (self, self.functions[name])
        known = self.constants.get(name, getattr(self.module, name, None))
        if isinstance(known, int | float | tuple | list):
            return "constant", known
        if name in self.imported:
            module, original = self.imported[name]
            if module == "math":
                return "math", original
            if module.startswith("channelfit."):
                return source_of(module).find(original)
        return "", None


@cache
def source_of(module: str) -> Source:
    """Return the text of a module, which is imported for that."""
    loaded = importlib.import_module(module)
    return Source(Path(str(loaded.__file__)).read_text(encoding="utf-8"), module, loaded)
