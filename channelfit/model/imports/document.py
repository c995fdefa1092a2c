"""The model file that is written from the equations of an imported model."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from channelfit.model.channel import FARADAY, ChannelModel
from channelfit.model.evaluation import evaluate
from channelfit.model.imports.equations import Equations, ImportedParameter
from channelfit.model.imports.flowing import FAR, CurrentProduct, flows
from channelfit.model.imports.gating import Gating, gating
from channelfit.model.imports.goldman import Goldman
from channelfit.model.imports.nodes import (
    Node,
    factors,
    joined,
    name,
    number,
    number_text,
    parts,
    replaced,
    written,
)
from channelfit.model.imports.start import check_start
from channelfit.model.model_file import build_model
from channelfit.model.scope import RESERVED
from channelfit.model.terms import V
from channelfit.reading.documents import parse_yaml
from channelfit.reading.errors import InputError

#: um2: the membrane that a density is written for. No ratio of currents depends on it.
AREA = 1000.0
#: S/cm2, uS: a largest conductance that the file leaves at 0.
_CONDUCTANCE = 1e-3
#: The name of the factor of a current that has numbers without names in its file.
_SCALE = "scale"
#: Units of a file that a model file knows under another name.
_UNITS = {
    "mV": "mV",
    "millivolt": "mV",
    "ms": "ms",
    "/ms": "1/ms",
    "1/ms": "1/ms",
    "ms-1": "1/ms",
    "/mV": "1/mV",
    "1/mV": "1/mV",
    "mM": "mM",
}
_SIZES = {
    "S/cm2": ("S/cm2", 1.0),
    "mho/cm2": ("S/cm2", 1.0),
    "siemens/cm2": ("S/cm2", 1.0),
    "siemens/cm/cm": ("S/cm2", 1.0),
    "S/cm/cm": ("S/cm2", 1.0),
    "mS/cm2": ("mS/cm2", 1e-3),
    "pS/um2": ("pS/um2", 1e-4),
    "picosiemens/um2": ("pS/um2", 1e-4),
    "nS": ("nS", 1e-3),
    "uS": ("uS", 1.0),
    "microsiemens": ("uS", 1.0),
    "umho": ("uS", 1.0),
    "pS": ("pS", 1e-6),
    "cm/s": ("cm/s", 1.0),
    "cm/sec": ("cm/s", 1.0),
}
_MAXIMAL = re.compile(r"(?i)^(g|p)\w*(bar|max)|^(gbar|gmax|pbar|pmax|perm)|^g\w*$")
#: Definitions that are used once and are not longer than this are put in where they are used.
_SHORT, _LONGEST, _DEEPEST = 24, 60, 30


@dataclass
class Imported:
    """A model file made of a foreign one.

    Attributes:
        text: of the model file.
        model: what it says.
        names: the foreign program's names of parameters, by those in the model file.
        largest: the parameters that are taken for largest conductances.
        area: um2, where the file has a density; else None.
        notes: what the reader of the model file should know.
    """

    text: str
    model: ChannelModel
    names: dict[str, ImportedParameter] = field(default_factory=dict)
    largest: tuple[str, ...] = ()
    area: float | None = None
    notes: tuple[str, ...] = ()


def imported(found: Equations, title: str, source: str, fit: Collection[str] = ()) -> Imported:
    """Return the model file of some equations.

    Arguments:
        found: the equations of the foreign model.
        title: the model's name.
        source: a sentence that says which file it was.
        fit: parameters that are to be searched, by their names in the foreign file.

    Raises InputError: what no model file can say, or a parameter that is not there.
    """
    opening = gating(found)
    check_start(found, opening)
    products = flows(found, opening)
    writer = _DocumentWriter(found, opening, products, title, source, frozenset(fit))
    try:
        return writer.document(units=True)
    except InputError as error:
        first = error
    try:
        return writer.document(units=False)
    except InputError:
        raise first from None


class _DocumentWriter:
    def __init__(
        self,
        found: Equations,
        opening: Gating,
        products: list[CurrentProduct],
        title: str,
        source: str,
        fit: frozenset[str],
    ) -> None:
        self.found, self.opening, self.products = found, opening, products
        self.title, self.source, self.fit = title, source, fit
        self.area = AREA if found.area_um2 is None else found.area_um2
        self.definitions = self._tidy()
        self.largest = {id(one): self._largest(one) for one in products}
        self._check_fit()
        self.words = self._words()

    # names that are used

    def _roots(self) -> Iterator[Node]:
        """Yield every expression that the model file will hold beside definitions."""
        for one in self.products:
            yield one.conductance
            if one.goldman is None:
                yield one.reversal
            else:
                yield from one.goldman.constants()
            if one.rectification is not None:
                yield one.rectification
            for gate, _ in one.gates.values():
                yield from gate.keys.values()
            if one.scheme is not None:
                yield from one.scheme.rates.values()

    def _change(self, by: dict[str, Node]) -> None:
        """Put expressions in place of names everywhere."""
        for one in self.products:
            one.conductance = replaced(one.conductance, by)
            one.reversal = replaced(one.reversal, by)
            if one.goldman is not None:
                one.goldman = one.goldman.replaced(by)
            if one.rectification is not None:
                one.rectification = replaced(one.rectification, by)
            for gate, _ in one.gates.values():
                gate.keys.update({key: replaced(node, by) for key, node in gate.keys.items()})
            if one.scheme is not None:
                for way, rate in one.scheme.rates.items():
                    one.scheme.rates[way] = replaced(rate, by)

    def _tidy(self) -> dict[str, Node]:
        """Return the needed definitions, short ones that are used once put in their place."""
        found = self.found
        needed = {key: found.definitions[key] for key in found.used(list(self._roots()))}
        counts = dict.fromkeys(needed, 0)
        hosts: dict[str, int] = {}
        for root in [*needed.values(), *self._roots()]:
            for part in parts(root):
                if part.op == "name" and part.args[0] in counts:
                    counts[part.args[0]] += 1
                    hosts[part.args[0]] = root.size
        by: dict[str, Node] = {}
        kept: dict[str, Node] = {}
        for key, node in needed.items():
            node = replaced(node, by)
            plain = node.is_number or (node.op == "neg" and node.args[0].is_number)
            once = counts[key] == 1 and node.size <= _SHORT and hosts[key] + node.size <= _LONGEST
            if plain or (once and not self._in_condition(key, needed)):
                by[key] = node
            else:
                kept[key] = node
        self._change(by)
        return kept

    def _in_condition(self, key: str, needed: dict[str, Node]) -> bool:
        """Return whether a name stands in a condition, where no long expression belongs."""
        for root in [*needed.values(), *self._roots()]:
            if key in root.names:
                for part in parts(root):
                    if part.op == "if" and key in part.args[0].names:
                        return needed[key].size > 8
        return False

    def _parameters(self) -> dict[str, ImportedParameter]:
        used: set[str] = set()
        for node in (*self.definitions.values(), *self._roots()):
            used |= node.names
        return {key: given for key, given in self.found.parameters.items() if key in used}

    def _largest(self, one: CurrentProduct) -> str | None:
        """Return the parameter that is the largest conductance of a current, or None."""
        above = [
            node.args[0]
            for node, under in factors(one.conductance)
            if not under and node.op == "name"
        ]
        known = [key for key in above if key in self.found.parameters]
        by_unit = [key for key in known if _plain(self.found.parameters[key].unit) in _SIZES]
        by_name = [key for key in known if _MAXIMAL.match(key.rpartition(".")[2])]
        return next(iter((*by_unit, *by_name)), known[0] if len(known) == 1 else None)

    def _check_fit(self) -> None:
        used = self._parameters()
        own = {given.own or key: key for key, given in used.items()}
        for key in sorted(self.fit):
            if key not in own and key not in used:
                raise InputError(
                    f"there is no parameter {key} on which the current depends; there are "
                    f"{', '.join(sorted(own))}",
                    None,
                    "--fit",
                )

    # names

    def _words(self) -> dict[str, str]:
        """Return a name that a model file may use, for each foreign one."""
        result = {"v": "v", "celsius": "celsius"}
        taken = {"v", "celsius", "leak"}
        if not self._parameters():
            result[_SCALE] = _SCALE
            taken.add(_SCALE)
        foreign = [*self._parameters()]
        for one in self.products:
            foreign += [*one.gates, *(one.scheme.states if one.scheme else ())]
        for key in dict.fromkeys([*foreign, *self.definitions]):
            base = self.found.bases.get(key, key)
            given = self.found.parameters.get(key)
            base = given.row.name if given is not None and given.row is not None else base
            base = re.sub(r"\W", "_", base, flags=re.ASCII).strip("_")[:36] or "x"
            base = base if base[0].isalpha() else f"x{base}"
            base = f"{base}_" if base in RESERVED else base
            word, n = base, 1
            while word in taken:
                n += 1
                word = f"{base}_{n}"
            taken.add(word)
            result[key] = word
        return result

    def _text(self, node: Node) -> str:
        by = {key: name(self.words[key]) for key in node.names if self.words[key] != key}
        return written(replaced(node, by))

    # the document

    def document(self, units: bool) -> Imported:
        """Return the model file, with the units of parameters where it knows them."""
        lines = list(self._head())
        warm = any(one.goldman and one.goldman.thermal is None for one in self.products)
        roots = (*self.definitions.values(), *self._roots())
        if warm or any("celsius" in node.names for node in roots):
            celsius = self.found.celsius
            lines.append(f"temperature: {number_text(20.0 if celsius is None else celsius)} degC")
        elif self.found.temperature_C is not None:
            lines.append(f"temperature: {number_text(self.found.temperature_C)} degC")
        body = list(self._body(units))
        definitions = {self.words[key]: self._text(node) for key, node in self.definitions.items()}
        if definitions:
            lines.append("definitions:")
            lines += [f"  {key}: {text}" for key, text in definitions.items()]
        lines += body
        lines.append("parameters:")
        rows = list(self._rows(units))
        # a channel of numbers alone gets a factor that can be fitted
        lines += rows or [f"  {_SCALE}: {{range: [0.01, 100], scale: log, value: 1}}"]
        text = "\n".join(lines) + "\n"
        model = build_model(parse_yaml(text), None)
        exported = any(given.row is not None for given in self.found.parameters.values())
        if units and model.cautions and not exported:  # of an export they are those of its model
            raise InputError(str(model.cautions[0]))
        _check_zeros(model, self.found.zeros)
        names = {self.words[key]: given for key, given in self._parameters().items()}
        largest = tuple(
            dict.fromkeys(self.words[key] for key in self.largest.values() if key is not None)
        )
        area = self.area if self.found.density else None
        return Imported(text, model, names, largest, area, tuple(dict.fromkeys(self.found.notes)))

    def _head(self) -> Iterator[str]:
        yield f"# {_comment(self.source)}"
        for note in dict.fromkeys(self.found.notes):
            yield f"# {_comment(note)}"
        yield f"name: {_quoted(_name(self.title))}"
        if self.found.title:
            yield f"description: {_quoted(_comment(self.found.title))}"
        yield f"source: {_quoted(_comment(self.source))}"

    def _body(self, units: bool) -> Iterator[str]:
        opened = [one for one in self.products if not one.always_open]
        leaks = [one for one in self.products if one.always_open]
        leak = None
        if leaks and (opened or len(leaks) > 1) and leaks[0].rectification is None:
            leak = leaks.pop(0)
        rest = opened + leaks
        if len(rest) == 1:
            yield from self._opening(rest[0], "")
            yield "current:"
            yield from self._flow(rest[0], units, "  ")
            if self.found.density:
                yield self._area()
        else:
            if self.found.density:
                yield "current:"
                yield self._area()
            yield "currents:"
            for key, one in self._named(rest):
                yield f"  {key}:"
                yield from self._opening(one, "    ")
                yield from self._flow(one, units, "    ")
        if leak is not None:
            yield "leak:"
            yield from self._flow(leak, units, "  ")

    def _area(self) -> str:
        chosen = self.found.area_um2 is None
        return f"  area: {number_text(self.area)} um2  # of the membrane; " + (
            "chosen here, since the file has a density" if chosen else "as the file's comment says"
        )

    def _named(self, rest: list[CurrentProduct]) -> Iterator[tuple[str, CurrentProduct]]:
        seen: dict[str, int] = {}
        for one in rest:
            base = re.sub(r"\W", "_", one.name, flags=re.ASCII).strip("_")[:30] or "i"
            base = f"{base}_" if base in RESERVED or base == "leak" else base
            seen[base] = seen.get(base, 0) + 1
            yield (base if seen[base] == 1 else f"{base}_{seen[base]}"), one

    def _opening(self, one: CurrentProduct, indent: str) -> Iterator[str]:
        if one.scheme is not None:
            states = [self.words[s] for s in one.scheme.states]
            yield f"{indent}states: [{', '.join(states)}]"
            yield f"{indent}rates:"
            for (a, b), rate in one.scheme.rates.items():
                yield f"{indent}  {self.words[a]} -> {self.words[b]}: {self._text(rate)}"
        if one.gates or one.scheme is None:
            yield f"{indent}gates:"
        for key, (gate, power) in one.gates.items():
            yield f"{indent}  {self.words[key]}:"
            if power != 1:
                yield f"{indent}    power: {power}"
            for label, node in gate.keys.items():
                yield f"{indent}    {label}: {self._text(node)}"
        if one.always_open:
            yield f"{indent}  always: {{inf: 1, tau: 0}}"

    def _flow(self, one: CurrentProduct, units: bool, indent: str) -> Iterator[str]:
        if one.scheme is not None:
            if all(w == 1 for w in one.weights.values()):
                yield f"{indent}open: [{', '.join(self.words[s] for s in one.weights)}]"
            else:
                rows = ", ".join(
                    f"{self.words[s]}: {number_text(w)}" for s, w in one.weights.items()
                )
                yield f"{indent}open: {{{rows}}}"
        if one.goldman is not None:
            yield from self._goldman(one, one.goldman, units, indent)
            return
        yield f"{indent}conductance: {self._constant(self._conductance(one, units))}"
        yield f"{indent}reversal: {self._constant(one.reversal)}" + (
            "  # far away: the rectification holds all that the current has of the voltage"
            if one.reversal == number(FAR)
            else ""
        )
        if one.rectification is not None:
            yield f"{indent}rectification: {self._text(one.rectification)}"

    def _constant(self, node: Node) -> str:
        """Return the text of a constant, in brackets where it looks like a number and a unit."""
        text = self._text(node)
        return f"({text})" if node.op == "if" else text

    def _goldman(
        self, one: CurrentProduct, field: Goldman, units: bool, indent: str
    ) -> Iterator[str]:
        size = self._conductance(one, units, 1e-3 * field.valence * FARADAY)
        yield f"{indent}permeability: {self._constant(size)}"
        yield f"{indent}ion:"
        yield f"{indent}  valence: {field.valence}"
        yield f"{indent}  inside: {self._constant(field.inside)}"
        yield f"{indent}  outside: {self._constant(field.outside)}"
        if field.thermal is not None:
            yield f"{indent}  thermal: {self._constant(field.thermal)}  # the file's RT/F, mV"
        if one.rectification is not None:
            yield f"{indent}rectification: {self._text(one.rectification)}"

    def _conductance(self, one: CurrentProduct, units: bool, per: float = 1.0) -> Node:
        """Return the conductance, nS: the file's own, times the factor of its unit.

        Of a constant-field current the permeability, um3/ms, where `per` is z F.
        """
        scale = self.found.per_pA * (self.area if self.found.density else 1.0) / per
        key = self.largest[id(one)]
        unit = self._unit(key, units) if key is not None else None
        if key is not None and unit is not None and unit in _BASE:
            scale /= _BASE[unit] * (self.area if unit in _PER_AREA else 1.0)
        rows = factors(one.conductance)
        still = [row for row in rows if not row[0].is_number]
        for node, under in rows:
            if node.is_number:
                scale = scale / node.value if under else scale * node.value
        if not self._parameters():
            still = [(name(_SCALE), False), *still]
        return joined([(number(_whole(scale)), False), *still])

    def _unit(self, key: str, units: bool) -> str | None:
        """Return the unit of a parameter in the model file; None where it has none."""
        if not units:
            return None
        given = self.found.parameters[key]
        if given.row is not None:
            return given.row.unit or None
        plain = _plain(given.unit)
        if key in self.largest.values():
            known = _SIZES.get(plain)
            if known is None or (known[0] in _PER_AREA) != self.found.density:
                return None
            return known[0]
        return _UNITS.get(plain)

    def _rows(self, units: bool) -> Iterator[str]:
        positive = self._below_a_line()
        for key, given in self._parameters().items():
            unit = self._unit(key, units)
            value = given.value
            largest = key in self.largest.values()
            if largest and value == 0:
                value = _CONDUCTANCE
            row = []
            requested = key in self.fit or given.own in self.fit
            span = self._span(given, value, unit or given.unit, largest, requested, key in positive)
            if span is not None:
                low, high, scale = span
                row.append(f"range: [{number_text(low)}, {number_text(high)}]")
                row += ["scale: log"] if scale == "log" else []
            if unit is not None:
                row.append(f"unit: {unit}")
            row.append(f"value: {number_text(value)}")
            own = given.own if given.kind in ("reversal", "concentration") else given.input
            if own:
                row.append(f"input: {own}")
            if span is None or (given.row is not None and given.row.fixed and not requested):
                row.append("fixed: true")
            remarks = []
            if given.own and given.own != self.words[key]:
                remarks.append(f"{given.own} in the file")
            if given.unit and unit is None:
                remarks.append(f"({_plain(given.unit)})")
            if given.unheard is not None and given.unheard != given.value:
                remarks.append(f"{given.unheard:g} in the file, which NEURON does not take")
            if largest and given.value == 0:
                remarks.append("0 in the file")
            remark = f"  # {_comment('; '.join(remarks))}" if remarks else ""
            yield f"  {self.words[key]}: {{{', '.join(row)}}}{remark}"

    def _span(
        self,
        given: ImportedParameter,
        value: float,
        unit: str,
        largest: bool,
        requested: bool,
        positive: bool,
    ) -> tuple[float, float, str] | None:
        """Return where a parameter is searched; None for one that keeps its value.

        It is searched where `--fit` names it; without `--fit` as in the model that the file was
        exported from; and else where it is a largest conductance.
        """
        row = given.row
        if row is not None and row.bounds is not None and (requested or largest or not self.fit):
            return (*row.bounds, "log" if row.log else "linear")
        held = row is not None and row.fixed and not self.fit
        if requested or (largest and not held):
            return _range(value, unit, largest, positive)
        return None

    def _below_a_line(self) -> set[str]:
        """Return parameters that something is divided by, which must not change their sign."""
        found: set[str] = set()
        for node in (*self.definitions.values(), *self._roots()):
            for part in parts(node):
                if part.op == "/" and part.args[1].op == "name":
                    found.add(part.args[1].args[0])
        return found


#: nS of one of these units, or nS of one of them on 1 um2; of a permeability um3/ms.
_BASE = {"S/cm2": 10.0, "mS/cm2": 1e-2, "pS/um2": 1e-3, "nS": 1.0, "uS": 1e3, "pS": 1e-3}
_BASE |= {"cm/s": 10.0}
_PER_AREA = {"S/cm2", "mS/cm2", "pS/um2", "cm/s"}


def _whole(value: float) -> float:
    """Return a factor without the last digits that are rounding alone."""
    near = float(f"{value:.12g}")
    return near if abs(near - value) <= 1e-13 * abs(value) else value


def _check_zeros(model: ChannelModel, zeros: list[float]) -> None:
    """Raise InputError where a rate of the model is no number although its file guards it."""
    values: dict[str, Any] = dict(zip(model.parameter_names, model.values(), strict=True))
    for v in zeros:
        known = {**values, V.name: v}
        for key, expression in model.definitions:
            known[key] = evaluate(expression, known)
        for chain in model.chains:
            for step in chain.transitions:
                if not np.isfinite(evaluate(step.rate, known)):
                    raise InputError(
                        f"the rate from {step.source} to {step.target} is 0/0 at {v:g} mV, where "
                        "the file has an `if` of its own"
                    )


def _range(value: float, unit: str, largest: bool, positive: bool) -> tuple[float, float, str]:
    """Return where a parameter is searched: by a factor where it is positive, by an addend else."""
    if largest:
        return _neat(value / 100), _neat(value * 100), "log"
    if unit == "mV" and not positive:
        return value - 30.0, value + 30.0, "linear"
    if value > 0:
        by = 3.0 if unit in ("mV", "1/mV", "") else 10.0
        return _neat(value / by), _neat(value * by), "log"
    if value < 0:
        return _neat(3 * value), _neat(value / 3), "linear"
    return -1.0, 1.0, "linear"


def _neat(value: float) -> float:
    return float(f"{value:.4g}")


def _plain(unit: str) -> str:
    return re.sub(r"\s", "", unit)


def _comment(text: str) -> str:
    """Return a text from a foreign file that cannot leave the line of its comment."""
    ascii_text = "".join(c if c.isascii() and c.isprintable() else " " for c in text)
    return " ".join(ascii_text.split())[:300]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_ .,+()-]", "_", text).lstrip("_ .,+()-")[:80] or "imported"
