"""A model of Myokit, or a CellML model through Myokit, as equations of one of its currents.

Myokit reads the file in a process of its own (`answer`), which sends the variables and their
expressions as plain data; the equations that result know nothing of Myokit.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NoReturn

from channelfit.model.imports.equations import Equations, ImportedParameter
from channelfit.model.imports.myokit_currents import (
    ion_currents,
    mentioned,
    through_definitions,
)
from channelfit.model.imports.nodes import Node, choice, make, name, number
from channelfit.model.imports.still import keep_still, leave_out_empty, without_voltage
from channelfit.reading.errors import InputError
from channelfit.reading.second_process import read_in_process

SECONDS = 60.0
#: The kind of a parameter that is a state in the file.
HELD = "held"
_LABEL = "membrane_potential"
#: Names of concentrations that NEURON's cells have as well.
_ION = re.compile(r"(?i)(na|k|ca|cl)_?([io])")
_VOLTAGES = ("V", "v", "Vm", "E", "vm")
_OPERATORS = {
    "Plus": "+",
    "Minus": "-",
    "Multiply": "*",
    "Divide": "/",
    "Power": "**",
    "Equal": "==",
    "NotEqual": "!=",
    "More": ">",
    "Less": "<",
    "MoreEqual": ">=",
    "LessEqual": "<=",
    "And": "and",
    "Or": "or",
}
_FUNCTIONS = {"Exp": "exp", "Sqrt": "sqrt", "Abs": "abs", "Log": "log"}
#: Functions that a model file does not have: of numbers, as in acos(-1), they are numbers.
_OF_NUMBERS: dict[str, Callable[[float], float]] = {
    "Sin": math.sin,
    "Cos": math.cos,
    "Tan": math.tan,
    "ASin": math.asin,
    "ACos": math.acos,
    "ATan": math.atan,
    "Floor": math.floor,
    "Ceil": math.ceil,
}
#: The factors from units of voltage and of time in a file to mV and ms.
_MILLIVOLTS = {"[mV]": 1.0, "[V]": 1e3, "": 1.0, "[1]": 1.0}
_MILLISECONDS = {"[ms]": 1.0, "[s]": 1e3, "": 1.0, "[1]": 1.0}
_DENSITIES = ("[A/F]", "[uA/cm^2]", "[uA/uF]", "[mA/cm^2]")
_PICOAMPS = {"[pA]": 1.0, "[nA]": 1e3, "[uA]": 1e6, "[A]": 1e12}


def read_myokit(path: Path) -> dict[str, Any]:
    """Return the variables of a model, and which are its voltage, its time and its states.

    Raises InputError: Myokit is not installed, or cannot read the file.
    """
    found = read_in_process(f"{__name__}:answer", path, "a model that Myokit reads", SECONDS)
    plain: dict[str, Any] = json.loads(str(found["model"]))
    return plain


def equations(plain: dict[str, Any], current: str | None, hold: Collection[str] = ()) -> Equations:
    """Return the equations of one current.

    States that do not gate it, such as concentrations, are held at their initial values.

    Arguments:
        plain: what `read_myokit` has found.
        current: the name of its variable; needed where the model has several.
        hold: names of further states that are to be held.

    Raises InputError: it is not there, or an expression cannot be translated.
    """
    reader = _MyokitReader(plain, current, hold)
    found = reader.equations()
    while still := without_voltage(found):
        own = {short: key for key, short in reader.names.items()}
        reader = _MyokitReader(plain, current, (*reader.held, *(own[state] for state in still)))
        found = reader.equations()
    initial = {reader.names[k]: row["initial"] for k, row in reader.variables.items()}
    leave_out_empty(found, {k: value for k, value in initial.items() if value is not None})
    keep_still(found)
    return found


class _MyokitReader:
    def __init__(self, plain: dict[str, Any], current: str | None, hold: Collection[str]) -> None:
        self.plain = plain
        self.variables: dict[str, dict[str, Any]] = plain["variables"]
        self.found = Equations(title=str(plain["name"]))
        self.found.advice = "; --hold keeps states that it names at their initial values"
        self.names = self._names()
        self.done: set[str] = set()
        voltage = self.variables[plain["voltage"]]
        self.per_voltage = self._factor(voltage["unit"], _MILLIVOLTS, "voltage")
        time = self.variables.get(plain["time"] or "", {"unit": ""})
        self.per_time = self._factor(time["unit"], _MILLISECONDS, "time")
        self.chosen = self._chosen(current)
        self.held = {self._state(text) for text in hold}
        self.currents = {*ion_currents(plain), self.chosen}

    def _state(self, text: str) -> str:
        """Return the full name of a state."""
        states = [key for key, row in self.variables.items() if row["state"]]
        known = [key for key in states if text in (key, key.rpartition(".")[2])]
        if len(known) != 1:
            why = f"; {', '.join(known)} are" if known else ""
            raise InputError(f"there is no one state {text}{why}", None, "--hold")
        return known[0]

    def _is_held(self, key: str) -> bool:
        """Return whether a state is no gate: a concentration, or one that currents change."""
        row = self.variables[key]
        if key in self.held or row["concentration"]:
            return True
        used = through_definitions(self.variables, row["rhs"])
        return not used.isdisjoint(self.currents)

    def _is_constant(self, key: str) -> bool:
        """Return whether a variable is held: a state that is no gate, or its concentration."""
        row = self.variables[key]
        if row["state"]:
            return self._is_held(key)
        return row["concentration"] and row["value"] is not None and bool(self._behind(key))

    def _behind(self, key: str) -> set[str] | None:
        """Return the states behind a variable; None if it follows the voltage or an input."""
        states: set[str] = set()
        stack = [key]
        while stack:
            used = through_definitions(self.variables, self.variables[stack.pop()]["rhs"])
            if not used.isdisjoint((self.plain["voltage"], self.plain["time"])):
                return None
            if any(self.variables[one]["binding"] for one in used):
                return None
            new = {one for one in used if self.variables[one]["state"]} - states
            states |= new
            stack += [one for one in new if not self._is_held(one)]
        return states

    def _hold(self, key: str) -> None:
        """Make a variable a parameter that has its initial value."""
        row = self.variables[key]
        value = row["initial"] if row["state"] else row["value"]
        self._give(key, value, HELD)

    def _give(self, key: str, value: float, kind: str = "") -> None:
        """Make a variable a parameter; concentrations that a cell decides are its inputs."""
        unit = self.variables[key]["unit"].strip("[]")
        ion = _ION.fullmatch(key.rpartition(".")[2])
        own = "".join(ion.groups()).lower() if ion and unit == "mM" else ""
        known = {given.input for given in self.found.parameters.values()}
        own = "" if own in known else own
        self.found.parameters[self.names[key]] = ImportedParameter(
            value, unit, 0, kind, key, input=own
        )

    def _factor(self, unit: str, known: dict[str, float], name: str) -> float:
        if unit not in known:
            raise InputError(f"the {name} is in {unit}; known are {', '.join(filter(None, known))}")
        return known[unit]

    def _names(self) -> dict[str, str]:
        """Return a short name for each variable: its own where no other one has it."""
        short = [key.rpartition(".")[2] for key in self.variables]
        return {
            key: last if short.count(last) == 1 and last != "v" else key.replace(".", "_")
            for key, last in zip(self.variables, short, strict=True)
        }

    def equations(self) -> Equations:
        chosen, found = self.chosen, self.found
        self._need(chosen)
        found.currents = {self.names[chosen]: name(self.names[chosen])}
        # a current that is a parameter or a state would be none
        if self.names[chosen] not in found.definitions:
            raise InputError(f"{chosen} is not computed from other variables", None, chosen)
        unit = self.variables[chosen]["unit"]
        found.per_pA = _PICOAMPS.get(unit, 1.0)
        if unit not in _PICOAMPS:
            found.notes.append(f"the current is in {unit or 'no unit'}; 1 of it is 1 pA here")
        found.steady = set(found.states)
        found.notes.append("sweeps begin at the steady state, not at the file's initial values")
        held = [given.own for given in found.parameters.values() if given.kind == HELD]
        if held:
            found.notes.append(f"held at the file's initial values: {', '.join(held)}")
        return found

    def _chosen(self, current: str | None) -> str:
        if current is not None:
            if current not in self.variables:
                close = [key for key in self.variables if key.rpartition(".")[2] == current]
                if len(close) == 1:
                    return close[0]
                raise InputError(f"there is no variable {current}", None, "--current")
            return current
        known = ion_currents(self.plain) or [
            key
            for key, row in self.variables.items()
            if row["rhs"] is not None
            and not row["state"]
            and (row["unit"] in _PICOAMPS or row["unit"] in _DENSITIES)
            and key.rpartition(".")[0] != self.plain["voltage"].rpartition(".")[0]
        ]
        if len(known) == 1:
            return known[0]
        choices = f"they are {', '.join(known[:30])}" if known else "none has the unit of a current"
        raise InputError(f"which variable is the current? Say it by --current; {choices}")

    def _need(self, variable: str) -> None:
        """Take a variable and all on which it depends into the equations."""
        stack = [(variable, False)]
        while stack:
            key, ready = stack.pop()
            if ready:
                self._take(key)
                continue
            if key in self.done:
                continue
            self.done.add(key)
            stack.append((key, True))
            row = self.variables[key]
            known = key in (self.plain["voltage"], self.plain["time"]) or self._is_constant(key)
            stack += [(other, False) for other in sorted(mentioned(None if known else row["rhs"]))]

    def _take(self, key: str) -> None:
        row, short, found = self.variables[key], self.names[key], self.found
        if key in (self.plain["voltage"], self.plain["time"]):
            return
        if row["binding"]:
            self._refuse(f"depends on {row['binding']}, which comes from outside the model", key)
        if self._is_constant(key):
            self._hold(key)
            return
        try:
            node = self._node(row["rhs"])
        except InputError as error:
            if row["value"] is not None and self._behind(key) is not None:
                self._hold(key)
                return
            raise InputError(error.message, None, key) from None
        if row["state"]:
            found.states[short] = 0
            rate = make("/", node, number(self.per_time)) if self.per_time != 1 else node
            found.rhs[short] = rate
        elif node.is_number:
            self._give(key, node.value)
        elif short == "celsius":
            self._refuse("celsius is computed; it is a number here", key)
        else:
            found.definitions[short] = node

    def _node(self, tree: Any) -> Node:
        kind, *rest = tree
        if kind == "Number":
            return number(float(rest[0]))
        if kind == "Name":
            key = rest[0]
            if key == self.plain["voltage"]:
                v = name("v")
                return v if self.per_voltage == 1 else make("/", v, number(self.per_voltage))
            if key == self.plain["time"]:
                raise InputError("depends on the time")
            return name(self.names[key])
        if kind == "PrefixPlus":
            return self._node(rest[0])
        if kind == "PrefixMinus":
            return make("neg", self._node(rest[0]))
        if kind == "Not":
            return make("not", self._node(rest[0]))
        if kind == "Derivative":
            raise InputError(f"depends on the derivative of {rest[0][1]}")
        args = [self._node(arg) for arg in rest]
        if kind in _OF_NUMBERS and args[0].is_number:
            return number(float(_OF_NUMBERS[kind](args[0].value)))
        if kind in _OPERATORS:
            return make(_OPERATORS[kind], *args)
        if kind in _FUNCTIONS and len(args) == 1:
            return make(_FUNCTIONS[kind], *args)
        if kind == "Log":
            return make("/", make("log", args[0]), make("log", args[1]))
        if kind == "Log10":
            return make("/", make("log", args[0]), number(math.log(10)))
        if kind == "If":
            return choice(*args)
        if kind == "Piecewise":
            result = args[-1]
            for k in range(len(args) - 3, -1, -2):
                result = choice(args[k], args[k + 1], result)
            return result
        raise InputError(f"{kind} cannot be translated")

    def _refuse(self, message: str, key: str) -> NoReturn:
        raise InputError(message, None, key)


# --- in the other process ------------------------------------------------------------------------


def answer(path: Path) -> dict[str, str]:
    """Return the model of a file as JSON; called in the other process."""
    model = load(path)
    voltage = voltage_of(model)
    time = model.time()
    values = model.initial_values(as_floats=True)
    initial = {row.qname(): value for row, value in zip(model.states(), values, strict=True)}
    variables = {}
    for variable in model.variables(deep=True):
        rhs = variable.rhs()
        variables[variable.qname()] = {
            "unit": "" if variable.unit() is None else str(variable.unit()),
            "state": variable.is_state(),
            "initial": initial.get(variable.qname()),
            "value": _value(variable),
            "concentration": _is_concentration(variable),
            "binding": variable.binding() if variable is not time else None,
            "rhs": None if rhs is None else _plain(rhs),
        }
    plain = {
        "name": model.name() or path.stem,
        "voltage": voltage.qname(),
        "time": None if time is None else time.qname(),
        "variables": variables,
    }
    return {"model": json.dumps(plain)}


def load(path: Path) -> Any:
    """Return Myokit's model of a .mmt or .cellml file. Raises InputError where there is none."""
    try:
        import myokit  # optional
        import myokit.formats
    except ImportError as error:
        raise InputError(
            f'Myokit cannot be imported ({error}); pip install "channelfit[myokit]"', path
        ) from None
    try:
        if path.suffix.lower() == ".cellml":
            return myokit.formats.importer("cellml").model(str(path))
        model = myokit.load_model(str(path))
    except (myokit.MyokitError, ValueError) as error:
        raise InputError(f"Myokit cannot read it: {' '.join(str(error).split())[:300]}") from None
    except RecursionError:
        raise InputError("expressions are nested too deeply") from None
    if model is None:
        raise InputError("there is no [[model]] in it")
    return model


def voltage_of(model: Any) -> Any:
    """Return the variable that is the membrane potential: labeled so, or named so."""
    labeled = model.label(_LABEL)
    if labeled is not None:
        return labeled
    named = [
        variable
        for variable in model.variables()
        if variable.name() in _VOLTAGES
        and (variable.is_state() or variable.binding() or variable.parent().name() == "membrane")
    ]
    if len(named) != 1:
        raise InputError(
            f"which variable is the voltage? Label it `{_LABEL}`; {len(named)} are named like one"
        )
    return named[0]


def _value(variable: Any) -> float | None:
    """Return the value of a variable where all states have their initial values."""
    import myokit  # optional, and loaded by now

    if variable.is_state() or variable.rhs() is None:
        return None
    try:
        value = float(variable.eval())
    except (myokit.MyokitError, ArithmeticError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _is_concentration(variable: Any) -> bool:
    import myokit  # optional, and loaded by now

    unit = variable.unit()
    return unit is not None and bool(myokit.Unit.can_convert(unit, myokit.parse_unit("mol/L")))


def _plain(expression: Any) -> list[Any]:
    """Return an expression as nested lists: its kind, then its operands."""
    kind = type(expression).__name__
    if kind == "Number":
        return ["Number", float(expression.eval())]
    if kind == "Name":
        return ["Name", expression.var().qname()]
    return [kind, *(_plain(operand) for operand in expression)]
