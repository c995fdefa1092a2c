"""The circuit between command, membrane and recorded current, read from ``clamp:``.

The command V_c reaches the membrane through the pipette's series resistance R. The membrane
potential V, the potential P at the amplifier's side of that resistance and the amplifier's own
estimate E of the membrane potential follow

    R C V' = P + offset - V - R (I + leak)
    lag P' = V_c + fraction (P + offset - V - cancellation R C E') + prediction R C E' - P
    (1 - prediction) R C E' = V_c - E

where I is the current of the channel (Lei et al. 2020, Phil Trans R Soc A 378:20190348, whose
circuit this is, with one lag). The recorded current is I + leak + C V', and P' times the
capacitance of the pipette, less the part that the amplifier cancels, ``cancellation`` C E' and its
share of the pipette's; then the low-pass filter, and all of it later by the delay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import sympy

from channelfit.model.channel import ChannelModel
from channelfit.model.evaluation import evaluate
from channelfit.model.scope import Scope
from channelfit.model.terms import V
from channelfit.reading.documents import Section
from channelfit.reading.errors import Caution, InputError, shown
from channelfit.reading.keys import KEYS
from channelfit.reading.keys.shapes import ConstantQuantity
from channelfit.reading.units import base_unit, is_expression, parse_quantity

_ZERO = sympy.Integer(0)
#: Quantities that are not below 0, and the largest value of those that are parts of a whole.
_LARGEST: Mapping[str, float | None] = {
    "series_resistance": None,
    "membrane_capacitance": None,
    "pipette_capacitance": None,
    "fraction": 1.0,
    "prediction": 0.99,
    "lag": None,
    "leak_conductance": None,
    "delay": None,
    "cancellation": 1.0,
}


@dataclass(frozen=True)
class LowPass:
    """A Bessel filter of some poles, whose gain at `cutoff_kHz` is 3 dB below that at rest."""

    poles: int
    cutoff_kHz: float


@dataclass(frozen=True)
class Clamp:
    """The circuit between the command and the recorded current.

    Every quantity is an expression of the model's parameters alone, in base units. A clamp whose
    quantities are all 0 is ideal.

    Attributes:
        series_resistance: MOhm.
        membrane_capacitance, pipette_capacitance: pF.
        fraction: of the series resistance that the amplifier compensates, 0 to 1.
        prediction: the part of the charging of the membrane that it supplies in advance, 0 to 0.99.
        lag: ms, the time constant with which the potential of the pipette follows.
        cancellation: the part of the capacitive currents that it subtracts, 0 to 1.
        leak_conductance, leak_reversal: nS and mV, of a leak beside the channel.
        offset: mV, that the membrane sees beyond the command.
        delay: ms, by which the recording is late.
        low_pass: the filter of the recorded current; None for none.
    """

    series_resistance: sympy.Expr = _ZERO
    membrane_capacitance: sympy.Expr = _ZERO
    pipette_capacitance: sympy.Expr = _ZERO
    fraction: sympy.Expr = _ZERO
    prediction: sympy.Expr = _ZERO
    lag: sympy.Expr = _ZERO
    cancellation: sympy.Expr = _ZERO
    leak_conductance: sympy.Expr = _ZERO
    leak_reversal: sympy.Expr = _ZERO
    offset: sympy.Expr = _ZERO
    delay: sympy.Expr = _ZERO
    low_pass: LowPass | None = None

    def quantities(self) -> dict[str, sympy.Expr]:
        """Return the expression of each quantity by its name, the filter left out."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "low_pass"}

    @property
    def holds_command(self) -> bool:
        """True if the membrane is at the command at once, whatever else the amplifier does."""
        return bool(self.series_resistance.is_zero and self.offset.is_zero)

    def used_names(self) -> set[str]:
        """Return the parameters on which a quantity depends."""
        return {s.name for e in self.quantities().values() for s in e.free_symbols}


def words_of_clamps(document: object) -> set[str]:
    """Return the words in all ``clamp:`` sections, in ``delay:`` and in a mapping ``noise:``, of a
    raw fit section.
    """
    found: set[str] = set()

    def collect(value: object, inside: bool) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                noise = key == "noise" and isinstance(inner, Mapping)
                collect(inner, inside or noise or key in ("clamp", "delay"))
        elif isinstance(value, list):
            for inner in value:
                collect(inner, inside)
        elif inside and isinstance(value, str):
            found.update("".join(c if c.isalnum() or c == "_" else " " for c in value).split())

    collect(document, False)
    return found


def left_out(document: Mapping[str, object], file: object) -> tuple[Caution, ...]:
    """Return cautions that the clamp, or the channel noise, of a fit is left out; none without.

    Arguments:
        document: the model, with its raw fit section under `fit`.
        file: where they stand.
    """
    fit = document.get("fit")
    rows = fit.get("experiments") if isinstance(fit, Mapping) else None
    places = [fit, *(rows if isinstance(rows, list) else [rows])]
    found = []
    if any(isinstance(place, Mapping) and place.get("clamp") for place in places):
        value = "the clamp of this fit is left out here"
        found.append(Caution(f"{file}: fit", value, "these are the currents under an ideal clamp"))
    if isinstance(fit, Mapping) and isinstance(fit.get("noise"), Mapping):
        value = "the channel noise of this fit is left out here"
        found.append(Caution(f"{file}: fit", value, "nothing of it is added to the currents"))
    return tuple(found)


def read_clamp(section: Section, model: ChannelModel) -> Clamp:
    """Return the clamp that a ``clamp:`` mapping describes.

    Arguments:
        section: the mapping, with the keys ``KEYS["clamp"]``.
        model: the channel; its parameters may stand in the expressions.

    Raises InputError: a quantity that is no number with a unit and no expression of the parameters,
    a number or a range that is not possible, or a circuit that is not.
    """
    section.expect(KEYS["clamp"])
    reader = QuantityReader(model, _LARGEST)
    found = {
        key: reader.quantity(section, key, key)
        for key, row in KEYS["clamp"].items()
        if isinstance(row.shape, ConstantQuantity)
    }
    if isinstance(section.take("compensation"), Mapping):
        inner = section.section("compensation")
        inner.expect(KEYS["clamp compensation"])
        for key in KEYS["clamp compensation"]:
            found[key] = reader.quantity(inner, key, key)
    else:
        found["fraction"] = reader.quantity(section, "compensation", "fraction")
    leak = section.section("leak")
    leak.expect(KEYS["clamp leak"])
    for key in KEYS["clamp leak"]:
        found[f"leak_{key}"] = reader.quantity(leak, key, f"leak_{key}")
    if "leak" in section and "conductance" not in leak:
        raise leak.error('"conductance" is missing')
    low_pass = _read_low_pass(section)
    _check_circuit(section, found)
    return Clamp(**found, low_pass=low_pass)


def read_delay(section: Section, model: ChannelModel) -> sympy.Expr:
    """Return the ``delay:`` of an experiment, an expression of the parameters."""
    return QuantityReader(model, _LARGEST).quantity(section, "delay", "delay")


class QuantityReader:
    """Reads quantities that are numbers with units, or expressions of a model's parameters.

    Arguments:
        model: the channel.
        largest: by name, the quantities that are not below 0, each with its largest value or None.
    """

    def __init__(self, model: ChannelModel, largest: Mapping[str, float | None]) -> None:
        self.model, self.known, self.largest = model, dict(model.definitions), largest

    def quantity(self, section: Section, key: str, name: str) -> sympy.Expr:
        """Return the expression under a key, in the base unit; 0 where the key is not given."""
        raw, dimension = section.take(key, 0), section.shape(key, ConstantQuantity).dimension
        try:
            number = parse_quantity(raw, dimension)
        except InputError as error:
            if not is_expression(raw):
                raise error.at(section.file, section.path(key)) from None
            expression = self._expression(section, key, raw)
            self._check(section, key, name, expression, dimension)
            return expression
        self._check_number(section, key, name, number, "")
        return sympy.Float(number, 17)

    def _expression(self, section: Section, key: str, text: str) -> sympy.Expr:
        scope = Scope(section, self.model.parameter_names, None)
        scope.names += [name for name, _ in self.model.definitions]
        expression = scope.parse(section, key, text, unmentioned={V.name})
        while used := [s for s in expression.free_symbols if s.name in self.known]:
            expression = expression.xreplace({s: self.known[s.name] for s in used})
        if V in expression.free_symbols:
            raise section.error(
                f"{shown(text)} depends on v, and the properties of amplifier and noise do not", key
            )
        return expression

    def _check(
        self, section: Section, key: str, name: str, expression: sympy.Expr, dimension: str
    ) -> None:
        """Raise InputError for a parameter of another unit, or a range of impossible values."""
        if not expression.is_Symbol:
            return
        parameter = next(p for p in self.model.parameters if p.name == expression.name)
        unit = base_unit(dimension)
        if parameter.unit and parameter.unit != unit:
            raise section.error(
                f"{parameter.name} is in {parameter.unit}, but this is a {dimension}; give "
                f"the parameter a unit such as {unit}",
                key,
            )
        ends = [parameter.value] if parameter.fixed else [parameter.lower, parameter.upper]
        for end in ends:
            self._check_number(
                section, key, name, float(end or 0.0), f"the range of {parameter.name}"
            )

    def _check_number(self, section: Section, key: str, name: str, number: float, of: str) -> None:
        if name not in self.largest:
            return
        most = self.largest[name]
        if number < 0 or (most is not None and number > most):
            expected = "0 or more" if most is None else f"0 to {most:g}"
            reaches = f"; {of} reaches {number:g}" if of else f", not {number:g}"
            raise section.error(f"{expected} was expected{reaches}", key)


def _read_low_pass(section: Section) -> LowPass | None:
    if section.take("lowpass") is None:
        return None
    inner = section.section("lowpass")
    inner.expect(KEYS["clamp lowpass"])
    return read_low_pass(inner)


def read_low_pass(inner: Section) -> LowPass:
    """Return the filter of a mapping with ``poles`` and ``cutoff``. Raises InputError."""
    poles, cutoff = inner.integer("poles"), inner.quantity("cutoff")
    if cutoff <= 0:
        raise inner.error(f"a frequency above 0 was expected, not {cutoff:g} kHz", "cutoff")
    return LowPass(poles, cutoff)


def _check_circuit(section: Section, found: Mapping[str, sympy.Expr]) -> None:
    """Raise InputError for keys that would change nothing, or a current without a bound."""

    def absent(name: str) -> bool:
        return bool(found.get(name, _ZERO).is_zero)

    resistance, capacitance = absent("series_resistance"), absent("membrane_capacitance")
    without = [k for k in ("fraction", "prediction") if not absent(k)] if resistance else []
    if without:
        raise section.error(
            f"the {without[0]} of a compensation changes nothing without a series_resistance",
            "compensation",
        )
    if not absent("prediction") and capacitance:
        raise section.error(
            "the prediction changes nothing without a membrane_capacitance", "compensation"
        )
    if not absent("pipette_capacitance") and absent("lag"):
        raise section.error(
            "the pipette would be charged by an infinite current, since its potential follows the "
            "command at once; add compensation: {lag: 10 us}, or the amplifier's own lag",
            "pipette_capacitance",
        )
    if not capacitance and resistance and absent("lag"):
        raise section.error(
            "the membrane would be charged by an infinite current; add a series_resistance",
            "membrane_capacitance",
        )
    if not absent("cancellation") and capacitance and absent("pipette_capacitance"):
        raise section.error("there is no capacitance to cancel", "cancellation")


def quantities_at(clamp: Clamp, model: ChannelModel, values: object) -> dict[str, float]:
    """Return the quantities of a clamp at values (n_parameters,) of the parameters."""
    scope = dict(zip(model.parameter_names, values, strict=True))  # type: ignore[call-overload]
    return {name: float(evaluate(e, scope)) for name, e in clamp.quantities().items()}
