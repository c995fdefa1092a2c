"""A small reader of NeuroML channels: it evaluates their rates and solves them under steps.

It knows NeuroML's definitions of gates and rates and shares nothing with what writes the files.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
from scipy.linalg import expm, null_space

from channelfit.problem.protocol import Protocol

_NS = "{http://www.neuroml.org/schema/neuroml2}"
_UNITS = {"mV": 1.0, "ms": 1.0, "per_ms": 1.0, "nS": 1.0, "K": 1.0, "": 1.0}
_FUNCTIONS = {name: getattr(np, name) for name in ("exp", "sqrt", "tanh", "abs")} | {"ln": np.log}
_WORDS = {"lt": "<", "gt": ">", "leq": "<=", "geq": ">=", "eq": "==", "neq": "!="}
_WORDS |= {"and": " and ", "or": " or "}
_FORMS = {
    "Exp": np.exp,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "ExpLinear": lambda x: x / -np.expm1(-x) if x else 1.0,
}


class Channels:
    """The channels of a NeuroML file.

    Arguments:
        reversals: mV, by the channel's id; those of the file's cell by default.
    """

    def __init__(self, text: str, celsius: float | None, reversals: dict[str, float] | None = None):
        self.root = ElementTree.fromstring(text)
        self.kelvin = None if celsius is None else celsius + 273.15
        self.types = {t.get("name"): t for t in self.root.iter(f"{_NS}ComponentType")}
        rows = self.root.iter(f"{_NS}channelDensity")
        self.reversals = reversals or {
            str(r.get("ionChannel")): _quantity(r.get("erev")) for r in rows
        }

    def current(self, protocol: Protocol) -> np.ndarray:
        """The sum of all currents, pA, (n_sweeps, n_times)."""
        channels = [c for c in self.root if c.tag in (f"{_NS}ionChannelHH", f"{_NS}ionChannelKS")]
        total = np.zeros((protocol.n_sweeps, protocol.n_times_max))
        for k, sweep in enumerate(protocol.sweeps):
            times = np.arange(protocol.n_times_max) * protocol.sampling_ms
            for channel in channels:
                size = _quantity(channel.get("conductance"))
                reversal = self.reversals[str(channel.get("id"))]
                fractions = np.ones(len(times))
                for gate in channel:
                    fractions *= self._opened(gate, protocol.holding_mV, sweep, times)
                v = np.select(
                    [(times >= s.start_ms - 1e-9) & (times < s.end_ms - 1e-9) for s in sweep],
                    [s.wave.v_mV for s in sweep],
                    np.nan,
                )
                total[k] += size * fractions * (v - reversal)
        return total

    def _opened(self, gate: Any, holding: float, sweep: Any, times: np.ndarray) -> np.ndarray:
        kind = gate.get("type") or "gateKS"
        out = np.full(len(times), np.nan)
        x = None if kind == "gateHHInstantaneous" else self._settled(gate, holding)
        for s in sweep:
            inside = (times >= s.start_ms - 1e-9) & (times < s.end_ms - 1e-9)
            v = s.wave.v_mV
            if x is None:
                out[inside] = self._part(gate, "steadyState", v)
                continue
            generator, source, opens = self._equations(gate, v)
            whole = np.block([[generator, source[:, None]], [np.zeros((1, len(x) + 1))]])
            state = np.append(x, 1.0)
            step = expm(whole * (times[1] - times[0]))
            moved = expm(whole * (times[inside][0] - s.start_ms)) @ state
            for k in np.flatnonzero(inside):
                out[k] = opens @ moved[:-1]
                moved = step @ moved
            x = (expm(whole * (s.end_ms - s.start_ms)) @ state)[:-1]
        return out ** int(gate.get("instances"))

    def _settled(self, gate: Any, v: float) -> np.ndarray:
        generator, source, _ = self._equations(gate, v)
        if len(source) == 1:
            return -source / generator[0]
        found = null_space(generator)[:, 0]
        return np.asarray(found / found.sum())

    def _equations(self, gate: Any, v: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """dx/dt = generator x + source, and which x are open."""
        kind = gate.get("type") or "gateKS"
        if kind == "gateHHrates":
            a, b = (self._part(gate, f"{way}Rate", v) for way in ("forward", "reverse"))
            return np.array([[-a - b]]), np.array([a]), np.ones(1)
        if kind == "gateHHtauInf":
            inf, tau = (self._part(gate, part, v) for part in ("steadyState", "timeCourse"))
            return np.array([[-1 / tau]]), np.array([inf / tau]), np.ones(1)
        assert kind == "gateKS", kind
        states = [e for e in gate if e.tag in (f"{_NS}closedState", f"{_NS}openState")]
        place = {e.get("id"): k for k, e in enumerate(states)}
        generator = np.zeros((len(states), len(states)))
        for way in gate:
            if not way.tag.endswith("Transition"):
                continue
            a, b = place[way.get("from")], place[way.get("to")]
            if way.tag == f"{_NS}tauInfTransition":
                inf, tau = (self._part(way, part, v) for part in ("steadyState", "timeCourse"))
                forward, back = inf / tau, (1 - inf) / tau
            else:
                rate = self._part(way, "rate", v)
                reverse = way.tag == f"{_NS}reverseTransition"
                forward, back = (0.0, rate) if reverse else (rate, 0.0)
            for source, target, rate in ((a, b, forward), (b, a, back)):
                generator[target, source] += rate
                generator[source, source] -= rate
        opens = np.array([float(e.tag == f"{_NS}openState") for e in states])
        return generator, np.zeros(len(states)), opens

    def _part(self, parent: Any, tag: str, v: float) -> float:
        element = parent.find(f"{_NS}{tag}")
        kind = element.get("type")
        if kind == "fixedTimeCourse":
            return _quantity(element.get("tau"))
        form = re.fullmatch("HH(.+)(Rate|Variable)", kind)
        if form:
            rate, middle, scale = (_quantity(element.get(n)) for n in ("rate", "midpoint", "scale"))
            return float(rate * _FORMS[form[1]]((v - middle) / scale))
        return self._of_type(self.types[kind], v)

    def _of_type(self, component: Any, v: float) -> float:
        scope: dict[str, Any] = {"v": v}
        for constant in component.iter(f"{_NS}Constant"):
            scope[constant.get("name")] = _quantity(constant.get("value"))
        if component.find(f"{_NS}Requirement") is not None:
            scope["temperature"] = self.kelvin
        dynamics = component.find(f"{_NS}Dynamics")
        pending, exposed = list(dynamics), ""
        while pending:  # LEMS orders variables by what they need
            variable = pending.pop(0)
            try:
                value = _value(variable, scope)
            except NameError:
                pending.append(variable)
                continue
            scope[variable.get("name")] = value
            exposed = variable.get("name") if variable.get("exposure") else exposed
        return float(scope[exposed])


def _value(variable: Any, scope: dict[str, Any]) -> float:
    cases = list(variable) or [variable]
    for case in cases:
        if case.get("condition") is None or _evaluated(case.get("condition"), scope):
            return _evaluated(case.get("value"), scope)
    raise AssertionError("no case holds")


def _evaluated(text: str, scope: dict[str, Any]) -> Any:
    python = re.sub(r"\.(\w+)\.", lambda m: _WORDS[m[1]], text).replace("^", "**")
    return eval(python, {"__builtins__": {}}, {**_FUNCTIONS, **scope})


def _quantity(text: Any) -> float:
    found = re.fullmatch(r"(-?[0-9.]+(?:[eE]-?[0-9]+)?)(\w*)", str(text))
    assert found is not None, text
    return float(found[1]) * (_UNITS[found[2]])
