"""Functions to be minimized, from a YAML file: test functions, small networks.

    sizes: {n: 30}
    parameters:
      x: {size: n, range: [-5.12, 5.12]}
    cost: sum(x[i]**2 - 10*cos(2*pi*x[i]) + 10, i, 1, n)

or, in place of `cost`, outputs that are compared with a table of data, row by row:

    definitions:
      h[m, 1, hidden]: 1/(1 + exp(-sum(w[j, m]*x[j], j, 1, 6)))
    outputs:
      y[t, 1, 2]: sum(u[m, t]*h[m], m, 1, hidden)
    data: {file: antenna.csv, inputs: {x: [..six columns..]}, targets: {y: [..two..]}}

The cost is then the mean over rows and outputs of ``((output - target)/scale)**2``.
"""

from __future__ import annotations

import copy
import itertools
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import sympy

from channelfit.functions.indexed_expressions import (
    IndexedScope,
    check_indexed_name,
    in_words,
    parse_indexed,
)
from channelfit.model.channel import Parameter
from channelfit.model.evaluation import evaluate
from channelfit.model.expressions import ExpressionError
from channelfit.model.parameters import LARGEST
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError, shown
from channelfit.reading.keys import KEYS
from channelfit.reading.keys.functions import MAX_SIZE
from channelfit.reading.tables import column, read_columns

#: Numbers in one array of the NumPy evaluation: bounds the memory.
_BATCH = 4_000_000


@dataclass(frozen=True)
class Array:
    """Parameters of one name: a shape, () for a single one, and the row of the first."""

    name: str
    shape: tuple[int, ...]
    first: int

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Definition:
    """A value for every combination of its indices, which run from 1 to the sizes in `shape`."""

    name: str
    indices: tuple[str, ...]
    shape: tuple[int, ...]
    value: sympy.Expr

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Data:
    """A table that outputs are compared with.

    Attributes:
        inputs: by name (n_columns, n_rows), of shape (n_rows,) where an input has no index.
        targets: by the outputs' names, (n_columns, n_rows).
        scales: by the outputs' names, (n_columns,); residuals are divided by them.
    """

    inputs: Mapping[str, np.ndarray]
    targets: Mapping[str, np.ndarray]
    scales: Mapping[str, np.ndarray]

    @property
    def n_rows(self) -> int:
        """Return the number of rows of the table."""
        return int(next(iter(self.targets.values())).shape[1])


@dataclass(frozen=True, eq=False)
class FunctionModel:
    """A function to be minimized: an expression of parameters, or outputs with data to fit.

    Attributes:
        definitions: in an order in which each uses only those before it.
        cost: None where there are outputs.
    """

    name: str
    parameters: tuple[Parameter, ...]
    arrays: tuple[Array, ...]
    definitions: tuple[Definition, ...] = ()
    cost: sympy.Expr | None = None
    outputs: tuple[Definition, ...] = ()
    description: str = ""
    source: str = ""

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Return `x[1]`, `x[2]` .. in their order."""
        return tuple(p.name for p in self.parameters)

    def values(self) -> np.ndarray:
        """Return the parameters' values, (n_parameters,). Raises InputError where one has none."""
        missing = next((p.name for p in self.parameters if p.value is None), None)
        if missing is not None:
            raise InputError(f"no value is given for {missing}", key="parameters")
        return np.array([p.value for p in self.parameters], dtype=float)


@dataclass(frozen=True, eq=False)
class FunctionProblem:
    """A function and the data that its outputs are compared with, None for a plain cost."""

    model: FunctionModel
    data: Data | None = None

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Return the parameters of the fit, which are those of the function."""
        return self.model.parameters

    def values(self) -> np.ndarray:
        """Return their values (n_parameters,); see `FunctionModel.values`."""
        return self.model.values()

    def with_values(self, values: np.ndarray) -> FunctionProblem:
        """Return the same problem with values (n_parameters,) as the function's own."""
        pairs = zip(self.parameters, values.tolist(), strict=True)
        parameters = tuple(replace(p, value=value) for p, value in pairs)
        return replace(self, model=replace(self.model, parameters=parameters))

    def cost(self, parameters: np.ndarray) -> np.ndarray:
        """Return the cost as it is defined: expression trees evaluated by NumPy in float64.

        Arguments:
            parameters: (n_parameters, n_candidates).

        Returns: (n_candidates,), not finite where the function is not.
        """
        if self.model.cost is not None:
            scope = self._scope(parameters)
            value = evaluate(self.model.cost, scope)
            return np.array(np.broadcast_to(value, parameters.shape[1:]))
        assert self.data is not None
        total, count = np.zeros(parameters.shape[1]), 0
        with np.errstate(all="ignore"):
            for output, values in self.outputs(parameters).items():
                targets, scales = self.data.targets[output], self.data.scales[output]
                residuals = (values - targets[:, :, None]) / scales[:, None, None]
                total += (residuals**2).sum(axis=(0, 1))
                count += targets.size
        return total / count

    def outputs(self, parameters: np.ndarray) -> dict[str, np.ndarray]:
        """Return outputs by name, each (n_columns, n_rows, n_candidates).

        Arguments:
            parameters: (n_parameters, n_candidates).
        """
        assert self.data is not None
        n_rows, n = self.data.n_rows, parameters.shape[1]
        widest = max((d.size for d in (*self.model.definitions, *self.model.outputs)), default=1)
        step = max(1, _BATCH // (widest * n_rows))
        parts: dict[str, list[np.ndarray]] = {d.name: [] for d in self.model.outputs}
        for a in range(0, max(n, 1), step):
            piece = parameters[:, a : a + step]
            scope = self._scope(piece)
            for output in self.model.outputs:
                found = _elements(output, scope, (n_rows, piece.shape[1]))
                parts[output.name].append(found.reshape(-1, n_rows, piece.shape[1]))
        return {name: np.concatenate(found, axis=-1) for name, found in parts.items()}

    def _scope(self, parameters: np.ndarray) -> dict[str, Any]:
        """Return values of parameters, inputs and definitions; the last axis is the candidates'."""
        n_rows = () if self.data is None else (self.data.n_rows,)
        scope: dict[str, Any] = {}
        for array in self.model.arrays:
            rows = parameters[array.first : array.first + array.size]
            one = (1,) if self.data is not None else ()
            scope[array.name] = rows.reshape(*array.shape, *one, rows.shape[1])
        if self.data is not None:
            scope |= {name: values[..., None] for name, values in self.data.inputs.items()}
        for definition in self.model.definitions:
            scope[definition.name] = _elements(definition, scope, (*n_rows, parameters.shape[1]))
        return scope

    @cached_property
    def columns(self) -> np.ndarray:
        """Return all input and target columns, inputs first, (n_columns, n_rows)."""
        if self.data is None:
            return np.zeros((0, 0))
        tables = (*self.data.inputs.values(), *self.data.targets.values())
        return np.concatenate([np.atleast_2d(t) for t in tables])

    @cached_property
    def place(self) -> dict[str, int]:
        """Return the row in `columns` where each input and target begins."""
        found: dict[str, int] = {}
        at = 0
        if self.data is not None:
            for kind, tables in (("in", self.data.inputs), ("out", self.data.targets)):
                for name, table in tables.items():
                    found[f"{kind} {name}"] = at
                    at += len(np.atleast_2d(table))
        return found


def _elements(
    definition: Definition, scope: Mapping[str, Any], tail: tuple[int, ...]
) -> np.ndarray:
    """Return values (*shape, *tail) of a definition."""
    out = np.empty((*definition.shape, *tail))
    for place in itertools.product(*map(range, definition.shape)):
        around = {name: k + 1 for name, k in zip(definition.indices, place, strict=True)}
        out[place] = evaluate(definition.value, {**scope, **around})
    return out


# --- reading -------------------------------------------------------------------------------------


def build_function(
    document: Mapping[str, Any], file: str | os.PathLike[str] | None
) -> FunctionProblem:
    """Return a function from plain data; `file` names its origin in errors and starts its paths.

    Raises: InputError with file, key and what would be right.
    """
    root = Section(document, file)
    root.expect(KEYS["function"])
    reading = _Reading(root)
    if ("cost" in root) == ("outputs" in root):
        raise root.error("either cost, or outputs and data, was expected")
    reading.read_parameters()
    data = reading.read_inputs() if "outputs" in root else None
    if data is None and "data" in root:
        raise root.error("data belong to outputs, not to cost", "data")
    definitions = reading.definitions("definitions")
    name = root.text("name", Path(file).stem if file else "function")
    model = FunctionModel(
        name,
        tuple(reading.parameters),
        tuple(reading.arrays),
        definitions,
        description=root.text("description"),
        source=root.text("source"),
    )
    if data is None:
        cost = reading.expression(root.take("cost"), {}, "cost")
        return FunctionProblem(replace(model, cost=cost))
    outputs = reading.definitions("outputs")
    data = reading.read_targets(outputs, data)
    return FunctionProblem(replace(model, outputs=outputs), data)


class _Reading:
    """The parts of one document that have been read so far."""

    def __init__(self, root: Section) -> None:
        self.root = root
        self.sizes: dict[str, int] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.parameters: list[Parameter] = []
        self.arrays: list[Array] = []
        for name, size in root.rows("sizes", {}):
            self.claim(name, f"sizes.{name}")
            self.sizes[name] = self.checked_size(size, f"sizes.{name}")

    def claim(self, name: str, key: str) -> None:
        """Claim a new name. Raises InputError when it is taken or cannot be one."""
        try:
            check_indexed_name(name)
        except ExpressionError as error:
            raise error.at(self.root.file, key) from None
        if name in self.sizes or name in self.shapes:
            raise self.root.error(f"{shown(name)} already has a meaning here", key)

    def checked_size(self, value: object, key: str) -> int:
        if isinstance(value, str) and value in self.sizes:
            return self.sizes[value]
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
            known = f", or one of {', '.join(self.sizes)}" if self.sizes else ""
            raise self.root.error(
                f"a whole number from 1 to {MAX_SIZE}{known} was expected, not {shown(value)}", key
            )
        return value

    def expression(self, text: Any, around: Mapping[str, int], key: str) -> sympy.Expr:
        try:
            return parse_indexed(text, IndexedScope(self.shapes, self.sizes), around)
        except InputError as error:
            raise error.at(self.root.file, key) from None

    # parameters

    def read_parameters(self) -> None:
        for name, row in self.root.rows("parameters", {}):
            key = f"parameters.{name}"
            self.claim(name, key)
            section = Section(row, self.root.file, key)
            section.expect(KEYS["function parameter"])
            sizes = section.items("size")
            shape = tuple(self.checked_size(size, f"{key}.size") for size in sizes)
            if len(self.parameters) + math.prod(shape) > MAX_SIZE:
                words = " x ".join(map(str, shape)) or "one more"
                raise self.root.error(
                    f"{words} make more than {MAX_SIZE} parameters of the function", f"{key}.size"
                )
            self.shapes[name] = shape
            self.arrays.append(Array(name, shape, len(self.parameters)))
            self.parameters += _parameters(section, name, shape)
        if not self.parameters:
            raise self.root.error("at least one parameter is needed", "parameters")

    # definitions and outputs

    def definitions(self, kind: str) -> tuple[Definition, ...]:
        """Read the definitions of the file, or its outputs; each may use those above it."""
        found: list[Definition] = []
        for head, text in self.root.rows(kind, {}):
            key = f"{kind}.{head}"
            name, ranges = self.head(head, key)
            if kind == "definitions" or name not in self.shapes:
                self.claim(name, key)
            value = self.expression(text, ranges, key)
            shape = tuple(ranges.values())
            if kind == "definitions":
                self.shapes[name] = shape
            elif any(name == d.name for d in found):
                raise self.root.error(f"output {name} is given twice", key)
            found.append(Definition(name, tuple(ranges), shape, value))
        if kind == "outputs" and not found:
            raise self.root.error("at least one output is needed", kind)
        return tuple(found)

    def head(self, text: str, key: str) -> tuple[str, dict[str, int]]:
        """Return a name and the size of each index, as h and {m: 10} for ``h[m, 1, 10]``."""
        match = re.fullmatch(r"\s*(\w+)\s*(?:\[([^\[\]]*)\])?\s*", text)
        words = [w.strip() for w in match[2].split(",")] if match and match[2] is not None else []
        if match is None or len(words) % 3:
            raise self.root.error("a name such as h or h[m, 1, n] was expected", key)
        ranges: dict[str, int] = {}
        for index, first, last in zip(words[::3], words[1::3], words[2::3], strict=True):
            self.claim(index, key)
            if first != "1" or index in ranges:
                raise self.root.error("indices differ and begin at 1, as in h[m, 1, n]", key)
            size: object = int(last) if re.fullmatch(r"[0-9]{1,9}", last) else last
            ranges[index] = self.checked_size(size, key)
        if math.prod(ranges.values()) > MAX_SIZE:
            raise self.root.error(f"more than {MAX_SIZE} elements", key)
        return match[1], ranges

    # data

    def read_inputs(self) -> Data:
        """Read the columns of the inputs; their names are known from here on."""
        self.section = section = self.root.section("data", ...)
        section.expect(KEYS["function data"])
        self.file = section.existing(section.text("file"), "file")
        self.table = read_columns(self.file)
        inputs = {}
        for name, listed in section.rows("inputs", {}):
            self.claim(name, section.path(f"inputs.{name}"))
            values = self.columns(listed, section.path(f"inputs.{name}"))
            inputs[name] = values if isinstance(listed, list) else values[0]
            self.shapes[name] = (len(values),) if isinstance(listed, list) else ()
        return Data(inputs, {}, {})

    def read_targets(self, outputs: tuple[Definition, ...], data: Data) -> Data:
        """Read the columns (n_columns, n_rows) that the outputs are compared with."""
        section = self.section
        by_range = section.choice("scale") == "range"
        listed = dict(section.rows("targets"))
        targets, scales = {}, {}
        for output in outputs:
            key = section.path(f"targets.{output.name}")
            if output.name not in listed:
                raise section.error(f"output {output.name} has no columns of targets", "targets")
            values = self.columns(listed.pop(output.name), key)
            if len(values) != output.size:
                raise self.root.error(
                    f"{output.size} columns were expected, as many as {output.name} has elements, "
                    f"not {len(values)}",
                    key,
                )
            spread = np.ptp(values, axis=1)
            if by_range and not spread.all():
                raise self.root.error("scale: range needs targets that are not constant", key)
            targets[output.name] = values
            scales[output.name] = spread if by_range else np.ones(len(values))
        if listed:
            name = next(iter(listed))
            raise section.error(f"there is no output {shown(name)}", f"targets.{name}")
        return replace(data, targets=targets, scales=scales)

    def columns(self, names: object, key: str) -> np.ndarray:
        """Return (n_columns, n_rows) of finite numbers."""
        listed = names if isinstance(names, list) else [names]
        if not listed:
            raise self.root.error("at least one column is needed", key)
        try:
            found = np.array([column(self.table, str(name), self.file) for name in listed])
        except InputError as error:
            raise InputError(f"{error.message} ({self.file})", self.root.file, key) from None
        if not np.isfinite(found).all():
            raise self.root.error("a cell is empty or not finite", key)
        return found


def _parameters(section: Section, name: str, shape: tuple[int, ...]) -> list[Parameter]:
    """Return a parameter for every element, in the order of the last index first."""
    scale = section.choice("scale")
    fixed, unit = section.flag("fixed"), section.text("unit")
    values = _values(section, shape)
    if fixed and "range" not in section:
        spans = [(value or 0.0, value or 0.0) for value in values]
    else:
        spans = [_range(section, scale)] * len(values)
    places = list(itertools.product(*(range(1, size + 1) for size in shape)))
    names = [f"{name}[{', '.join(map(str, place))}]" if shape else name for place in places]
    return [
        Parameter(element, unit, *span, scale, value, fixed)
        for element, span, value in zip(names, spans, values, strict=True)
    ]


def _range(section: Section, scale: str) -> tuple[float, float]:
    ends = section.items("range", ...)
    try:
        lower, upper = (section.measured("range", end) for end in ends)
    except ValueError:
        lower = upper = math.nan
    if not (math.isfinite(lower) and math.isfinite(upper) and lower <= upper):
        raise section.error(f"two finite numbers [lower, upper] were expected, not {ends}", "range")
    if max(-lower, upper) > LARGEST:
        raise section.error(f"both ends must be within {LARGEST:g} of 0, not {ends}", "range")
    if scale == "log" and lower <= 0:
        raise section.error(f"scale: log needs a range that starts above 0, not {lower:g}", "range")
    return lower, upper


def _values(section: Section, shape: tuple[int, ...]) -> list[float | None]:
    """Return one number for all, or nested lists of the shape."""
    raw = section.take("value")
    size = math.prod(shape)
    if raw is None:
        return [None] * size
    try:
        values = np.array(raw, dtype=np.float64) if _all_numbers(raw) else np.array(math.nan)
        values = np.broadcast_to(values, shape) if values.ndim == 0 else values
    except (OverflowError, ValueError):
        values = np.array(math.nan)
    if values.shape != shape or not np.isfinite(values).all():
        expected = " x ".join(map(str, shape)) or "one"
        raise section.error(f"a number, or {expected} finite numbers, were expected", "value")
    return [float(value) for value in values.ravel()]


def _all_numbers(raw: object) -> bool:
    """Return whether nested lists hold nothing but numbers, neither text nor truth values."""
    if isinstance(raw, list):
        return all(map(_all_numbers, raw))
    return isinstance(raw, (int, float)) and not isinstance(raw, bool)


# --- writing -------------------------------------------------------------------------------------


def fitted_document(
    document: Mapping[str, Any], model: FunctionModel, values: np.ndarray
) -> dict[str, Any]:
    """Return the document with the fitted values (n_parameters,) of every array."""
    out = copy.deepcopy(dict(document))
    for array in model.arrays:
        own = np.asarray(values[array.first : array.first + array.size], dtype=np.float64)
        out["parameters"][array.name]["value"] = own.reshape(array.shape).tolist()
    return out


def describe(problem: FunctionProblem) -> str:
    """Describe a function file: parameters, definitions, cost or outputs."""
    model = problem.model
    lines = [model.name, *filter(None, (model.description, model.source)), ""]
    for array in model.arrays:
        first = model.parameters[array.first]
        shape = " x ".join(map(str, array.shape))
        span = f"{first.lower:g} .. {first.upper:g} {first.unit}".rstrip()
        own = model.parameters[array.first : array.first + array.size]
        values = {p.value for p in own if p.value is not None}
        value = f", value {min(values):g}" if values else ""
        value += f" .. {max(values):g}" if len(values) > 1 else ""
        lines.append(f"{array.name}{f' ({shape})' if shape else ''}: {span}{value}")
    lines += [f"{len(model.parameters)} parameters", ""]
    for definition in (*model.definitions, *model.outputs):
        ranges = zip(definition.indices, definition.shape, strict=True)
        head = ", ".join(f"{index} = 1 .. {size}" for index, size in ranges)
        lines.append(
            f"{definition.name}{f' [{head}]' if head else ''} = {in_words(definition.value)}"
        )
    if problem.data is None:
        lines.append(f"cost = {in_words(model.cost)}")
    else:
        lines.append(f"cost = mean square of (output - target)/scale, {problem.data.n_rows} rows")
    return "\n".join(lines) + "\n"
