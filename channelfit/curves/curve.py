"""A curve z(x, y, ..; p): what its file says, or the name of a built-in one.

    name: boltzmann
    inputs: v
    parameters:
      half:  {range: [v_min, v_max]}
      slope: {range: [v_span/100, v_span], scale: log}
      low:   {}
      high:  {}
    definitions: {open: 1/(1 + exp((half - v)/slope))}
    curve: low + (high - low)*open

Ranges may use, of every input x, its smallest and largest value ``x_min`` and ``x_max``, their
distance ``x_span``, the smallest gap between two values ``x_step`` and the smallest value above
zero ``x_positive``. A parameter that enters linearly needs no range: its best value follows from
the others.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import sympy

from channelfit.curves.builtin import BUILT_IN
from channelfit.curves.formula import read_formula
from channelfit.model.evaluation import evaluate
from channelfit.model.expressions import ExpressionError, check_name, parse_expression
from channelfit.model.terms import V, symbol
from channelfit.reading.documents import Section, read_yaml
from channelfit.reading.errors import InputError, shown
from channelfit.reading.keys import KEYS
from channelfit.reading.keys.curves import LIKELIHOODS, LOSSES, MAX_INPUTS, MAX_PARAMETERS
from channelfit.scoring.kernels.derivatives import derivative

#: Inputs of a curve, and parameters: the products of derivatives are written out in a kernel.
#: Points of the scan along every nonlinear parameter, by how many of these there are.
_POINTS = {1: 48, 2: 16, 3: 8, 4: 4, 5: 3}
#: Points of the whole scan, at most.
MAX_SCAN = 20_000
_STATISTICS = ("min", "max", "span", "step", "positive")


@dataclass(frozen=True)
class CurveParameter:
    """A parameter of a curve.

    Attributes:
        lower, upper: ends of its range, expressions of statistics of the inputs; infinite where
            none is given.
        scale: "linear" or "log": how the scan for a start is spread over the range.
        value: of a fixed parameter, its value.
        scan: points of the scan; None for as many as are usual.
    """

    name: str
    unit: str = ""
    lower: sympy.Expr = -sympy.oo
    upper: sympy.Expr = sympy.oo
    scale: str = "linear"
    value: float | None = None
    fixed: bool = False
    scan: int | None = None


@dataclass(frozen=True, eq=False)
class Curve:
    """A closed formula of inputs and parameters.

    Attributes:
        inputs: their names; of a grid the first runs along the last axis of the array.
        formula: of inputs and all parameters.
        likelihood: "gaussian", which is least squares, or "poisson" for counts.
        loss: "linear", or "soft_l1", under which points far off pull little.
        f_scale: residual, in standard errors where points have them, beyond which that loss grows
            like the residual; None for 1 of these.
        starts: minima of the scan that are refined; the best of them is kept.
        ordered: names of parameters, each of which stays below the next one.
    """

    name: str
    inputs: tuple[str, ...]
    parameters: tuple[CurveParameter, ...]
    formula: sympy.Expr
    likelihood: str = "gaussian"
    starts: int = 1
    ordered: tuple[str, ...] = ()
    description: str = ""
    source: str = ""
    loss: str = "linear"
    f_scale: float | None = None

    @cached_property
    def free(self) -> tuple[CurveParameter, ...]:
        """Return the parameters that are fitted."""
        return tuple(p for p in self.parameters if not p.fixed)

    @cached_property
    def reduced(self) -> sympy.Expr:
        """Return the formula, the fixed parameters replaced by their values."""
        values = {symbol(p.name): sympy.Float(p.value) for p in self.parameters if p.fixed}
        return self.formula.xreplace(values)

    @cached_property
    def slopes(self) -> tuple[sympy.Expr, ...]:
        """Return the derivative with respect to every free parameter."""
        return tuple(derivative(self.reduced, symbol(p.name)) for p in self.free)

    @cached_property
    def linear(self) -> tuple[int, ...]:
        """Return free parameters, by index, in which the curve is linear, all of them together."""
        chosen: list[int] = []
        for k, parameter in enumerate(self.free):
            others = [symbol(self.free[j].name) for j in chosen]
            own = symbol(parameter.name)
            if self.slopes[k].has(own, *others) or any(self.slopes[j].has(own) for j in chosen):
                continue
            chosen.append(k)
        return tuple(chosen)

    def values(self, coordinates: Mapping[str, np.ndarray], free: np.ndarray) -> np.ndarray:
        """Return the curve in float64: coordinates by input, free parameters (n_free, ..),
        broadcast.
        """
        scope: dict[str, Any] = dict(coordinates)
        scope |= {p.name: row for p, row in zip(self.free, free, strict=True)}
        return evaluate(self.reduced, scope)

    def bounds(self, coordinates: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper bounds (n_free,) of the free parameters.

        coordinates: by input, (n_points,).

        Raises: InputError for a range that is empty or not finite at these inputs.
        """
        known = statistics(coordinates)
        ends = np.array([[_end(e, known) for e in (p.lower, p.upper)] for p in self.free])
        self._keep_order(ends)
        for parameter, (lower, upper) in zip(self.free, ends.reshape(-1, 2).tolist(), strict=True):
            if (math.isnan(lower) or math.isnan(upper)) and math.isnan(sum(known.values())):
                raise InputError(
                    "it uses the smallest input above zero, but none is above zero "
                    f"({_listed(known)})",
                    key=f"parameters.{parameter.name}.range",
                )
            if not lower < upper:
                raise InputError(
                    f"its range from {lower:g} to {upper:g} is empty for these inputs "
                    f"({_listed(known)})",
                    key=f"parameters.{parameter.name}.range",
                )
            if parameter.scale == "log" and lower <= 0:
                raise InputError(
                    f"a log scale needs a lower end above 0, not {lower:g} ({_listed(known)})",
                    key=f"parameters.{parameter.name}.range",
                )
        return ends[:, 0].copy(), ends[:, 1].copy()

    def _keep_order(self, ends: np.ndarray) -> None:
        """Narrow ranges (n_free, 2) to the side of a fixed parameter on which they have to be."""
        place = {p.name: k for k, p in enumerate(self.free)}
        held = {p.name: p.value for p in self.parameters if p.fixed}
        for one, other in itertools.pairwise(self.ordered):
            if one in place and other in held:
                ends[place[one], 1] = min(ends[place[one], 1], held[other])
            if one in held and other in place:
                ends[place[other], 0] = max(ends[place[other], 0], held[one])

    def scan_points(self, nonlinear: Sequence[int]) -> list[int]:
        """Return points of the scan along each nonlinear parameter."""
        usual = _POINTS.get(len(nonlinear), 2)
        return [self.free[k].scan or usual for k in nonlinear]

    @property
    def refined(self) -> int:
        """Return minima of the scan that are refined: several for a loss, as outliers mislead a
        scan.
        """
        return max(self.starts, 3) if self.loss != "linear" else self.starts

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Return free parameters, by index, that are linear and the size of a term with an ordered
        one.
        """
        names = [symbol(name) for name in self.ordered]
        return tuple(k for k in self.linear if self.slopes[k].has(*names)) if names else ()

    @cached_property
    def simpler(self) -> Curve | None:
        """Return the curve without the term of its last ordered parameter; None where none is.

        A sum of two exponentials becomes one of them.
        """
        last = self.ordered[-1] if self.ordered else ""
        own = [k for k in self.sizes if self.slopes[k].has(symbol(last))]
        if not own or last not in [p.name for p in self.free]:
            return None
        gone = {self.free[k].name: 0.0 for k in own} | {last: 1.0}
        fixed = tuple(
            replace(p, fixed=True, value=gone[p.name]) if p.name in gone else p
            for p in self.parameters
        )
        left = replace(self, parameters=fixed, ordered=self.ordered[:-1])
        return left if left.free else None

    def fitted_by(
        self, likelihood: str | None = None, loss: str | None = None, f_scale: float | None = None
    ) -> Curve:
        """Return the curve with other settings of its fit; None leaves its own.

        Without its loss it needs no scale of it.

        Raises: InputError for what is not known, or does not go together.
        """
        curve = replace(
            self,
            likelihood=likelihood or self.likelihood,
            loss=loss or self.loss,
            f_scale=self.f_scale if f_scale is None and loss != "linear" else f_scale,
        )
        for key, given, known in (
            ("likelihood", curve.likelihood, LIKELIHOODS),
            ("loss", curve.loss, LOSSES),
        ):
            if given not in known:
                raise InputError(f"{shown(given)} is not one of {', '.join(known)}", key=key)
        if curve.loss != "linear" and curve.likelihood != "gaussian":
            raise InputError(
                f"a loss belongs to least squares; leave it out, or likelihood {curve.likelihood}",
                key="loss",
            )
        if curve.f_scale is not None and curve.loss == "linear":
            raise InputError("it is the scale of a loss; add loss soft_l1", key="f_scale")
        scale = curve.f_scale
        if scale is not None and not (_is_number(scale) and 0 < scale < math.inf):
            raise InputError(
                f"a finite number above 0 was expected, not {shown(scale)}", key="f_scale"
            )
        return curve

    def with_fixed(self, values: Mapping[str, float]) -> Curve:
        """Return the same curve with some parameters fixed. Raises: InputError for a name it has
        not.
        """
        names = [p.name for p in self.parameters]
        for name in values:
            if name not in names:
                raise InputError(
                    f"the curve {self.name} has no parameter {shown(name)}, only {', '.join(names)}"
                )
        fixed = tuple(
            replace(p, fixed=True, value=_held(p.name, values[p.name])) if p.name in values else p
            for p in self.parameters
        )
        return checked(replace(self, parameters=fixed))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _held(name: str, value: Any) -> float:
    """Return the value of a parameter that is held. Raises: InputError for what is no finite
    number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{name} can be held at a finite number, not at {shown(value)}")
    return number


def statistics(coordinates: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the statistics of the inputs that ranges may use, such as ``x_min``, by name."""
    found: dict[str, float] = {}
    for name, values in coordinates.items():
        distinct = np.unique(values)
        positive = distinct[distinct > 0]
        low, high = float(distinct[0]), float(distinct[-1])
        numbers = (
            low,
            high,
            high - low,
            float(np.diff(distinct).min()) if distinct.size > 1 else 0.0,
            float(positive[0]) if positive.size else math.nan,
        )
        found |= {f"{name}_{word}": x for word, x in zip(_STATISTICS, numbers, strict=True)}
    return found


def _end(expression: sympy.Expr, known: Mapping[str, float]) -> float:
    if expression in (sympy.oo, -sympy.oo):
        return math.inf if expression == sympy.oo else -math.inf
    return float(evaluate(expression, known))


def _listed(known: Mapping[str, float]) -> str:
    return ", ".join(f"{name} = {value:g}" for name, value in known.items())


# --- reading -------------------------------------------------------------------------------------


def load_curve(name: str) -> Curve:
    """Return the curve in a file, or the built-in curve of this name.

    Raises: InputError for a file that cannot be used, and for a name that is neither.
    """
    if name in BUILT_IN:
        return build_curve({"name": name, **BUILT_IN[name]}, None)
    path = Path(name)
    if not path.suffix and not path.exists():
        raise InputError(
            f"{shown(name)} is neither a file nor a built-in curve; built in are "
            f"{', '.join(BUILT_IN)}"
        )
    return build_curve(read_yaml(path), path)


def build_curve(document: Mapping[str, Any], file: str | os.PathLike[str] | None) -> Curve:
    """Return a curve from plain data; `file` names its origin in errors.

    Raises: InputError with file, key and what would be right.
    """
    root = Section(document, file)
    root.expect(KEYS["curve"])
    inputs = tuple(_claimed(root, root.items("inputs"), "inputs"))
    if not 1 <= len(inputs) <= MAX_INPUTS:
        raise root.error(f"1 to {MAX_INPUTS} inputs are accepted, not {len(inputs)}", "inputs")
    words = [f"{name}_{word}" for name in inputs for word in _STATISTICS]
    rows = dict(root.rows("parameters"))
    if not 1 <= len(rows) <= MAX_PARAMETERS:
        raise root.error(
            f"1 to {MAX_PARAMETERS} parameters are accepted, not {len(rows)}", "parameters"
        )
    for name in _claimed(root, list(rows), "parameters"):
        if name in (*inputs, *words):
            raise root.error(f"{shown(name)} already has a meaning here", f"parameters.{name}")
    parameters = tuple(_parameter(root, name, row, words) for name, row in rows.items())
    ordered = tuple(str(name) for name in root.items("ordered", []))
    for name in ordered:
        if name not in rows:
            raise root.error(f"{shown(name)} is not a parameter", "ordered")
    if len(ordered) == 1 or len(set(ordered)) < len(ordered):
        raise root.error(
            f"two or more different parameters were expected, not {shown(list(ordered))}", "ordered"
        )
    curve = Curve(
        root.text("name", Path(file).stem if file else "curve"),
        inputs,
        parameters,
        read_formula(root, (*inputs, *rows), words),
        root.choice("likelihood"),
        root.integer("starts"),
        ordered,
        root.text("description"),
        root.text("source"),
        root.choice("loss"),
        root.number("f_scale"),
    )
    root.finish()
    try:
        checked(curve.fitted_by())
    except InputError as error:
        raise error.at(file) from None
    for parameter in (curve.free[k] for k in curve.linear):
        for key, given in (
            ("scan", parameter.scan is not None),
            ("scale", parameter.scale == "log"),
        ):
            if given:
                raise root.error(
                    f"{parameter.name} enters linearly, so that it is not scanned for a start; "
                    f"leave `{key}` out",
                    f"parameters.{parameter.name}.{key}",
                )
    return curve


def _claimed(root: Section, names: list[Any], key: str) -> list[str]:
    """Return names that an expression may use and that differ; an input may be called v."""
    for name in names:
        try:
            if name != V.name or key != "inputs":
                check_name(str(name))
        except ExpressionError as error:
            raise error.at(root.file, root.path(key)) from None
        if names.count(name) > 1:
            raise root.error(f"{shown(name)} is given twice", key)
    return [str(name) for name in names]


def _parameter(root: Section, name: str, row: object, words: Sequence[str]) -> CurveParameter:
    section = Section({} if row is None else row, root.file, root.path(f"parameters.{name}"))
    section.expect(KEYS["curve parameter"])
    lower, upper = -sympy.oo, sympy.oo
    if "range" in section:
        span = section.items("range")
        if len(span) != 2:
            raise section.error(f"a range is [lower, upper], not {shown(span)}", "range")
        lower, upper = (_range_end(section, value, words) for value in span)
    value, fixed = section.number("value"), section.flag("fixed")
    if fixed != (value is not None):
        raise section.error("`value` and `fixed: true` belong together; a curve needs no guess")
    scale = section.choice("scale")
    scan = section.integer("scan")
    unit = section.text("unit")
    section.finish()
    return CurveParameter(name, unit, lower, upper, scale, value, fixed, scan)


def _range_end(section: Section, value: object, words: Sequence[str]) -> sympy.Expr:
    if isinstance(value, float) and math.isinf(value):
        return sympy.oo if value > 0 else -sympy.oo
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise section.error(f"a number or an expression was expected, not {shown(value)}", "range")
    try:
        found = parse_expression(value, words, (V.name,))
    except InputError as error:
        raise error.at(section.file, section.path("range")) from None
    if found.has(V):
        raise section.error(f"a range may use {', '.join(words)}, but not v", "range")
    return found


def checked(curve: Curve) -> Curve:
    """Return the curve itself. Raises: InputError where a start could not be looked for."""
    if not curve.free:
        raise InputError("every parameter is fixed: nothing is left to fit", key="parameters")
    if curve.reduced.has(sympy.zoo, sympy.nan, sympy.oo, -sympy.oo, sympy.I):
        fixed = ", ".join(f"{p.name} = {p.value:g}" for p in curve.parameters if p.fixed)
        raise InputError(f"the curve {curve.name} is no finite number with {fixed}", key="curve")
    nonlinear = [k for k in range(len(curve.free)) if k not in curve.linear]
    for parameter in (curve.free[k] for k in nonlinear):
        if sympy.oo in (parameter.upper, -parameter.lower):
            raise InputError(
                f"{parameter.name} does not enter linearly, so it needs a range from one finite "
                "number to another, in which a start is looked for",
                key=f"parameters.{parameter.name}.range",
            )
    count = math.prod(curve.scan_points(nonlinear))
    if count > MAX_SCAN:
        raise InputError(
            f"the scan for a start would have {count:,} points, more than {MAX_SCAN:,}; give "
            "parameters fewer points (scan: 3)",
            key="parameters",
        )
    free = [p.name for p in curve.free]
    for one, other in itertools.pairwise(curve.ordered):
        if {one, other} <= set(free) and not {one, other}.isdisjoint(free[k] for k in curve.linear):
            raise InputError(
                "only parameters that do not enter linearly can be ordered", key="ordered"
            )
    return curve
