"""A model file, or the same keys as plain data, read into a `ChannelModel`."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import sympy

from channelfit.model.chains import check_balance
from channelfit.model.channel import CELSIUS, ChannelModel, Parameter, Tie
from channelfit.model.currents import TermReader, read_gated_currents
from channelfit.model.dimensions import StatedUnit, check_units, uses_of
from channelfit.model.parameters import is_tie, read_parameter, read_tie
from channelfit.model.printed_form import modern_form, read_model_document
from channelfit.model.scope import Scope, checked_name
from channelfit.model.terms import moving
from channelfit.reading.documents import Section, read_membrane
from channelfit.reading.errors import Caution
from channelfit.reading.keys import KEYS


def load_model(path: str | os.PathLike[str]) -> ChannelModel:
    """Return the model in a file: YAML, or the compact form of Ben-Shalom et al. 2012.

    Raises InputError: anything that cannot be used, with file, key and what would be right.
    """
    return build_model(read_model_document(path), path)


def build_model(
    document: Mapping[str, Any],
    file: str | os.PathLike[str] | None,
    celsius_of_one: float | None = None,
    used_elsewhere: Collection[str] = (),
) -> ChannelModel:
    """Return a model from plain data by the keys of a model file.

    Arguments:
        document: the data; it is not changed.
        file: where they come from, for messages; None where there is no file.
        celsius_of_one: where experiments have temperatures of their own, that of one of them, degC.
            Then ``celsius`` is the last of the parameters, and fixed, if an expression depends on
            it; otherwise it is a number.
        used_elsewhere: parameters that act although no rate and no current depends on them.

    Raises InputError: anything that cannot be used, with file, key and what would be right.
    """
    root = Section(modern_form(document, file), file)
    root.expect(KEYS["model"])
    celsius = root.quantity("temperature")
    current = root.section("current", {} if "currents" in root else ...)
    current.expect(KEYS["current"])
    membrane = read_membrane(current)
    rows = list(root.rows("parameters", {}))
    parameters = tuple(read_parameter(root, membrane, *row) for row in rows if not is_tie(row[1]))
    if celsius_of_one is not None:
        own = celsius_of_one if celsius is None else celsius
        parameters += (Parameter(CELSIUS, "degC", own, own, value=own, fixed=True),)
    number = celsius if celsius_of_one is None else None
    ligands = [str(name) for name in root.items("ligands", [])]
    scope = Scope(root, (p.name for p in parameters), number, ligands)
    ties = tuple(read_tie(root, scope, membrane, *row) for row in rows if is_tie(row[1]))
    for defined, text in root.rows("definitions", {}):
        scope.define(defined, text, f"definitions.{defined}")
    gated = read_gated_currents(root, scope, current)
    definitions = scope.finish()
    known = celsius_of_one if celsius is None else celsius
    terms = TermReader(root, scope, definitions, membrane, known).terms(gated)
    _check_ties(root, ties, definitions, scope)
    model = ChannelModel(
        name=_model_name(root, file),
        description=root.text("description"),
        source=root.text("source"),
        parameters=parameters,
        definitions=definitions,
        chains=tuple(chain for one in gated for chain in one.every_chain),
        terms=terms,
        temperature_C=celsius,
        ties=ties,
        ligands=scope.ligands,
    )
    if not model.follows_temperature:
        kept = tuple(p for p in model.parameters if p.name != CELSIUS)
        model = replace(model, parameters=kept)
    _check_use(root, model, used_elsewhere)
    for one in gated:
        if one.balance:
            check_balance(model, one.balance)
    return replace(model, cautions=_unit_cautions(root, model, scope))


def _model_name(root: Section, file: str | os.PathLike[str] | None) -> str:
    """Return the model's name; without one, that of its file."""
    stem = re.sub(r"[^\w .,+()-]", "_", Path(file).stem).lstrip("_ .,+()-")[:80] if file else ""
    return checked_name(root, root.text("name", stem or "model"), "a model's name")


# --- checks of the whole model ------------------------------------------------------------------


def _check_ties(
    root: Section,
    ties: tuple[Tie, ...],
    definitions: tuple[tuple[str, sympy.Expr], ...],
    scope: Scope,
) -> None:
    """Raise InputError for a tied parameter that would change with the command."""
    for tie in ties:
        behind = [name for name in scope.commanded if tie.name in moving(definitions, (name,))]
        if behind:
            raise root.error(
                f"depends on {behind[0]}; a parameter does not change with what is commanded",
                f"parameters.{tie.name}.tie",
            )


def _check_use(root: Section, model: ChannelModel, elsewhere: Collection[str]) -> None:
    """Raise InputError for a free parameter, or a ligand, on which nothing depends."""
    used = model.used_names() | set(elsewhere)
    for name in model.ligands:
        if name not in used:
            raise root.error(f"no rate depends on {name}; remove it", "ligands")
    for p in model.parameters:
        if p.name not in used and not p.fixed:
            raise root.error(
                "this parameter changes nothing: no rate, conductance or reversal uses it; "
                "remove it or write `fixed: true`",
                f"parameters.{p.name}",
            )


def _unit_cautions(root: Section, model: ChannelModel, scope: Scope) -> tuple[Caution, ...]:
    """Return units that look wrong. Raises InputError where they contradict each other."""
    rows = dict(root.rows("parameters", {}))
    stated: list[Parameter | Tie] = [p for p in model.parameters if p.name in rows]
    stated += model.ties
    written = {p.name: str(rows[p.name].get("unit", "")).strip() for p in stated}
    units = {p.name: StatedUnit(written[p.name], p.unit or "1") for p in stated if written[p.name]}
    if model.temperature_C is not None or CELSIUS in model.parameter_names:
        units[CELSIUS] = StatedUnit("degC", "degC")
    units |= {name: StatedUnit("mM", "mM") for name in model.ligands}
    names = {name: scope.texts[name][0] for name, _ in model.definitions if name in scope.texts}

    def place(key: str) -> str:
        return f"{root.file}: {key}" if root.file else key

    return check_units(uses_of(scope.read, names, units), units, root.error, place)
