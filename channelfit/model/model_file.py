"""A model file, or the same keys as plain data, read into a `ChannelModel`."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import sympy

from channelfit.model.chains import Balance, check_balance, read_gates, read_scheme
from channelfit.model.channel import Chain, ChannelModel, Parameter, Tie
from channelfit.model.dimensions import Unit, check_units, uses_of
from channelfit.model.parameters import is_tie, read_parameter, read_tie
from channelfit.model.printed_form import modern_form, read_model_document
from channelfit.model.scope import Scope, checked_name
from channelfit.model.terms import V, moving, parts_of
from channelfit.reading.cautions import Caution
from channelfit.reading.documents import Section, check_membrane, read_membrane
from channelfit.reading.errors import InputError
from channelfit.reading.keys import KEYS
from channelfit.reading.units import Membrane, parse_quantity, shown

#: Symbols that a conductance or a reversal potential may grow to when definitions are put into it,
#: and how many operations deep.
_LONGEST, _DEEPEST = 1000, 150
#: A number and a unit such as mS/cm2, which no expression looks like.
_WITH_UNIT = re.compile(
    r"\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*(?![eE][-+]?\d)[^\W\d_][^*+()]*"
)


def load_model(path: str | os.PathLike[str]) -> ChannelModel:
    """The model in a YAML file, or in a file of the compact form of Ben-Shalom et al. 2012.

    Raises:
        InputError: anything that cannot be used, with file, key and what would be right.
    """
    return build_model(read_model_document(path), path)


def build_model(
    document: Mapping[str, Any],
    file: str | os.PathLike[str] | None,
    used_elsewhere: Collection[str] = (),
) -> ChannelModel:
    """A model from plain data by the keys of a model file.

    Arguments:
        document: the data; it is not changed.
        file: where they come from, for messages; None where there is no file.
        used_elsewhere: parameters that act although no rate and no current depends on them.

    Raises:
        InputError: anything that cannot be used, with file, key and what would be right.
    """
    root = Section(modern_form(document, file), file)
    root.expect(KEYS["model"])
    celsius = root.quantity("temperature", "temperature", None)
    current = root.section("current")
    current.expect(KEYS["current"])
    membrane = read_membrane(current)
    rows = list(root.rows("parameters", {}))
    parameters = tuple(read_parameter(root, membrane, *row) for row in rows if not is_tie(row[1]))
    scope = Scope(root, (p.name for p in parameters), celsius)
    ties = tuple(read_tie(root, scope, membrane, *row) for row in rows if is_tie(row[1]))
    for defined, text in root.rows("definitions", {}):
        scope.define(defined, text, f"definitions.{defined}")
    chains, balance = _read_chains(root, scope, current)
    definitions = scope.finish()
    conductance = _constant(current, scope, definitions, "conductance", "conductance", membrane)
    reversal = _constant(current, scope, definitions, "reversal", "voltage", membrane)
    check_membrane(current, membrane, "the conductance and the units of the parameters are")
    _check_ties(root, ties, definitions)
    model = ChannelModel(
        name=_model_name(root, file),
        description=root.text("description", ""),
        source=root.text("source", ""),
        parameters=parameters,
        definitions=definitions,
        chains=chains,
        conductance=_in_parameters(current, "conductance", conductance, definitions),
        reversal=_in_parameters(current, "reversal", reversal, definitions),
        temperature_C=celsius,
        ties=ties,
    )
    _check_use(root, model, used_elsewhere)
    if balance:
        check_balance(model, balance)
    return replace(model, cautions=_unit_cautions(root, model, scope))


def _model_name(root: Section, file: str | os.PathLike[str] | None) -> str:
    """The model's name; without one, that of its file."""
    stem = re.sub(r"[^\w .,+()-]", "_", Path(file).stem).lstrip("_ .,+()-")[:80] if file else ""
    return checked_name(root, root.text("name", stem or "model"), "a model's name")


def _read_chains(
    root: Section, scope: Scope, current: Section
) -> tuple[tuple[Chain, ...], Balance | None]:
    """The chains of gates or of a scheme, and what is to be checked where rates balance."""
    if "gates" not in root:
        chain, balance = read_scheme(root, scope, current)
        return (chain,), balance
    if "states" in root or "rates" in root:
        raise root.error("give either gates, or states and rates, not both")
    return read_gates(root, scope, current), None


# --- the current ---------------------------------------------------------------------------------


def _constant(
    current: Section,
    scope: Scope,
    definitions: tuple[tuple[str, sympy.Expr], ...],
    key: str,
    dimension: str,
    membrane: Membrane,
) -> sympy.Expr:
    """A quantity (``-100 mV``), or an expression of parameters and of definitions without v."""
    raw = current.take(key)
    try:
        return sympy.Float(parse_quantity(raw, dimension, membrane), 17)
    except InputError as error:
        if not isinstance(raw, str) or _WITH_UNIT.fullmatch(raw):
            raise error.at(current.file, current.path(key)) from None
    # What depends on the voltage is refused later, by name, and so not offered here.
    return scope.parse(current, key, raw, unmentioned=moving(definitions) | {V.name})


def _in_parameters(
    current: Section,
    key: str,
    expression: sympy.Expr,
    definitions: tuple[tuple[str, sympy.Expr], ...],
) -> sympy.Expr:
    """A conductance or reversal potential in terms of parameters alone, without definitions.

    Raises:
        InputError: it depends on the voltage, or grows too long.
    """
    known = dict(definitions)
    size: dict[str, int] = {}
    depth: dict[str, int] = {}
    for name, by in definitions:
        depth[name] = _depth(by, depth)
        size[name] = sum(
            size.get(node.name, 1) if node.is_Symbol else 1 for node in sympy.preorder_traversal(by)
        )
    longest = any(size.get(s.name, 0) > _LONGEST for s in expression.free_symbols)
    if longest or _depth(expression, depth) > _DEEPEST:
        raise current.error("the definitions behind it grow too long when put together", key)
    through = sorted(
        s.name for s in expression.free_symbols if s.name in moving(definitions) - {V.name}
    )
    while used := [s for s in expression.free_symbols if s.name in known]:
        expression = expression.xreplace({s: known[s.name] for s in used})
    if V in expression.free_symbols:
        by = f" through {', '.join(through)}" if through else ""
        text = shown(current.take(key))
        raise current.error(f"{text} depends on v{by}; the {key} does not change with it", key)
    return expression


def _depth(expression: sympy.Expr, of_names: Mapping[str, int]) -> int:
    """How many operations deep an expression is, where names are as deep as is told."""
    found: dict[sympy.Basic, int] = {}
    for part in parts_of(expression):
        inner = max((found[argument] for argument in part.args), default=0)
        found[part] = of_names.get(part.name, 1) if isinstance(part, sympy.Symbol) else inner + 1
    return found[expression]


# --- the whole -----------------------------------------------------------------------------------


def _check_ties(
    root: Section, ties: tuple[Tie, ...], definitions: tuple[tuple[str, sympy.Expr], ...]
) -> None:
    """Raises InputError for a tied parameter that would change with the voltage."""
    changing = moving(definitions)
    for tie in ties:
        if tie.name in changing:
            raise root.error(
                "depends on v; a parameter does not change with the voltage",
                f"parameters.{tie.name}.tie",
            )


def _check_use(root: Section, model: ChannelModel, elsewhere: Collection[str]) -> None:
    """Raises InputError for a free parameter on which nothing depends."""
    used = model.used_names() | set(elsewhere)
    for p in model.parameters:
        if p.name not in used and not p.fixed:
            raise root.error(
                "this parameter changes nothing: no rate, conductance or reversal uses it; "
                "remove it or write `fixed: true`",
                f"parameters.{p.name}",
            )


def _unit_cautions(root: Section, model: ChannelModel, scope: Scope) -> tuple[Caution, ...]:
    """Units that look wrong. Raises InputError where they contradict each other."""
    rows = dict(root.rows("parameters", {}))
    stated: list[Parameter | Tie] = [*model.parameters, *model.ties]
    written = {p.name: str(rows[p.name].get("unit", "")).strip() for p in stated}
    units = {p.name: Unit(written[p.name], p.unit or "1") for p in stated if written[p.name]}
    units |= {"celsius": Unit("degC", "degC")} if model.temperature_C is not None else {}
    names = {name: scope.texts[name][0] for name, _ in model.definitions if name in scope.texts}

    def place(key: str) -> str:
        return f"{root.file}: {key}" if root.file else key

    return check_units(uses_of(scope.read, names, units), units, root.error, place)
