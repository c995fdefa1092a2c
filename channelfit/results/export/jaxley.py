"""A channel as Python source for Jaxley: a `Channel` whose parameters have gradients.

Rates and currents are those of the Python module, in functions of jax.numpy. A gate takes each
step by its exponential and a scheme by that of its matrix, exact while the voltage stands still.
"""

from __future__ import annotations

import re

import sympy
from sympy.functions.elementary.piecewise import ExprCondPair

from channelfit.results.export.nmodl import ExportSettings
from channelfit.results.export.python import Module, PythonPrinter
from channelfit.results.export.subject import Subject
from channelfit.scoring.neuron.nmodl_printer import number


def jaxley(subject: Subject, settings: ExportSettings) -> str:
    """Return the channel as the text of a Python module with a class for Jaxley.

    Raises InputError: nothing says how large the cell was, and Jaxley wants mA/cm2.
    """
    return _Module(subject, settings).text()


class _JaxPrinter(PythonPrinter):
    """Prints SymPy expressions of arrays."""

    AND, OR, NOT = "&", "|", "~"

    def _print_Min(self, node: sympy.Min) -> str:
        return self._pairs("minimum", node)

    def _print_Max(self, node: sympy.Max) -> str:
        return self._pairs("maximum", node)

    def _pairs(self, function: str, node: sympy.Expr) -> str:
        text, *others = (str(self._print(part)) for part in node.args)
        for other in others:
            text = f"{function}({text}, {other})"
        return text

    def _print_Piecewise(self, node: sympy.Piecewise) -> str:
        text = "nan"
        for branch in reversed([b for b in node.args if isinstance(b, ExprCondPair)]):
            value = str(self._print(branch.expr))
            last = branch.cond == sympy.true
            text = value if last else f"where({self._print(branch.cond)}, {value}, {text})"
        return text


class _Module(Module):
    """Writes the module."""

    printer_class = _JaxPrinter
    common = Module.common.replace("max(x)", "reduce(maximum, x)")
    library = "jax.numpy"
    of_library = (
        *("einsum", "exp", "expm1", "log", "maximum", "minimum", "nan", "shape", "sqrt", "stack"),
        *("tanh", "where", "zeros"),
    )

    reserved = Module.reserved | {*of_library, "reduce", "expm", "Channel", "_settled", "advanced"}

    def __init__(self, subject: Subject, settings: ExportSettings) -> None:
        super().__init__(subject)
        name = re.sub(r"\W", "_", settings.suffix or self.channel.name, flags=re.ASCII)
        name = self._claim(name if re.match("[A-Za-z]", name) else f"channel_{name}")
        area = "area"
        while area in self.channel.parameter_names:
            area += "_"
        size = number(subject.membrane(settings.capacitance_pF).area_um2)
        self.doc, self.rest = (
            text.replace("NAME", name).replace("AREA", area).replace("SIZE", size)
            for text in (_DOC, _REST)
        )


_DOC = '''\
"""An ion channel for Jaxley: `cell.insert(NAME())`. Call it in double precision, by
`jax.config.update("jax_enable_x64", True)`, where rates span many decades.

Each of PARAMETERS is a parameter of the channel, in ms, mV, nS and pA of the whole cell, whose
membrane has the parameter `AREA` (um2): its current in mA/cm2 is that of the whole cell over it.
"""

from functools import reduce

from jax.scipy.linalg import expm
from jaxley.channels import Channel'''

_REST = '''\
def exprel(x):
    """(exp(x) - 1)/x, which is 1 at 0."""
    near = abs(x) < 1e-3
    away = where(near, 1.0, x)
    return where(near, 1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5))), expm1(away) / away)


def advanced(x, found, states, dt, v):
    """The occupancies of a chain a time dt (ms) later."""
    if not isinstance(found, dict):
        return [1 - found, found]
    if len(states) == 1:
        return x
    if len(states) == 2:
        a, b = found[states[0], states[1]], found[states[1], states[0]]
        limit = a / (a + b)
        opened = limit + (x[1] - limit) * exp(-(a + b) * dt)
        return [1 - opened, opened]
    matrix = zeros((*shape(v), len(states), len(states)))
    for (source, target), rate in found.items():
        i, j = states.index(source), states.index(target)
        matrix = matrix.at[..., j, i].add(rate).at[..., i, i].add(-rate)
    moved = einsum("...ji,i...->j...", expm(matrix * dt, max_squarings=60), stack(x))
    return list(moved)


class NAME(Channel):
    """The channel; its states are the open probability of gates and the occupancies of schemes."""

    def __init__(self, name=None):
        self.current_is_in_mA_per_cm2 = True
        super().__init__(name)
        own = {**PARAMETERS, "AREA": SIZE}
        self.channel_params = {f"{self._name}_{key}": value for key, value in own.items()}
        self.channel_states = {
            f"{self._name}_{key}": 1 / len(states)
            for chain, (states, _, _) in CHAINS.items()
            for key in self._keys(chain, states)
        }
        self.current_name = "i_NAME"

    def update_states(self, states, dt, v, params):
        """The states a time dt (ms) later, at a voltage that stands still."""
        found, x = rates(v, self._parameters(params)), self._occupancies(states)
        moved = {n: advanced(x[n], found[n], CHAINS[n][0], dt, v) for n in CHAINS}
        return self._named(moved)

    def compute_current(self, states, v, params):
        """The current in mA/cm2."""
        p, x = self._parameters(params), self._occupancies(states)
        for name, found in rates(v, p).items():
            if not isinstance(found, dict):
                x[name] = [1 - found, found]
        total = sum(currents(v, open_probability(x), p).values())
        return 0.1 * total / params[f"{self._name}_AREA"]

    def init_state(self, states, v, params, delta_t):
        """The steady state at a voltage."""
        found = rates(v, self._parameters(params))
        return self._named({n: _settled(found[n], CHAINS[n][0]) for n in CHAINS})

    def _parameters(self, params):
        return {key: params[f"{self._name}_{key}"] for key in PARAMETERS}

    @staticmethod
    def _keys(chain, states):
        """The names of a chain's states: a gate's own, of a scheme those of its states."""
        gate = states == ("closed", "open")
        return [chain] if gate else [f"{chain}_{state}" for state in states]

    def _occupancies(self, states):
        found = {}
        for chain, (names, _, _) in CHAINS.items():
            x = [states[f"{self._name}_{key}"] for key in self._keys(chain, names)]
            found[chain] = [1 - x[0], x[0]] if len(x) < len(names) else x
        return found

    def _named(self, occupancies):
        found = {}
        for chain, (names, _, _) in CHAINS.items():
            keys = self._keys(chain, names)
            for key, x in zip(keys, occupancies[chain][-len(keys) :]):
                found[f"{self._name}_{key}"] = x
        return found
'''
