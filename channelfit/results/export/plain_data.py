"""A channel with all that is known of it as JSON, readable without this program."""

from __future__ import annotations

import json
from typing import Any

import sympy

from channelfit.model.channel import Chain
from channelfit.model.evaluation import evaluate
from channelfit.results.export.nmodl import ExportSettings
from channelfit.results.export.python import PythonPrinter
from channelfit.results.export.subject import Known, Subject
from channelfit.results.run_state import json_text

#: What the file says it is, and of which edition.
FORMAT, EDITION = "channelfit channel", 1


def plain_data(subject: Subject, settings: ExportSettings) -> str:
    """Return the channel as the text of a JSON file."""
    data = json.loads(json_text(as_plain(subject, settings.suffix)))
    return json.dumps(data, indent=2) + "\n"  # in ASCII, so that no character steers what shows it


def as_plain(subject: Subject, name: str | None = None) -> dict[str, Any]:
    """Return the channel as plain data.

    Expressions are text in the language of model files: Python's operators, with exp, log, sqrt,
    abs, tanh, min, max, and exprel(x) = (exp(x) - 1)/x; units are ms, mV, nS, pA, mM.
    """
    channel = subject.channel
    return {
        "format": FORMAT,
        "edition": EDITION,
        "name": name or channel.name,
        "units": {"time": "ms", "voltage": "mV", "conductance": "nS", "current": "pA"},
        "temperature_C": subject.temperature_C,
        "temperature_of_the_recordings": subject.temperature_stated,
        "rates_follow_temperature": subject.warm,
        "cell": subject.cell,
        "holding_mV": subject.holding_mV,
        "parameters": {
            p.name: _parameter(p, subject.known.get(p.name, Known()))
            for p in subject.own_parameters
        },
        "tied_parameters": {
            tie.name: {"value": value, "unit": tie.unit}
            for tie in channel.ties
            for value in [channel.tied_values(channel.values())[tie.name]]
        },
        "definitions": {name: _text(e) for name, e in channel.definitions},
        "chains": [_chain(chain) for chain in channel.chains],
        "currents": [_current(subject, k) for k in range(len(channel.terms))],
        "membrane": [
            {"area_um2": m.area_um2, "known_from": m.known_from} for m in subject.membranes
        ],
        "provenance": subject.provenance.as_plain(),
        "model_file": subject.document,
    }


def _text(expression: sympy.Expr) -> str:
    """Return an expression in the language of model files."""
    return PythonPrinter({}).text(expression)


def _parameter(p: Any, known: Known) -> dict[str, Any]:
    return {
        "value": p.value,
        "unit": p.unit,
        "fixed": p.fixed,
        "interval_95": None if known.interval is None else list(known.interval),
        "standard_error": known.standard_error,
        "range": [p.lower, p.upper],
        "scale": p.scale,
        "note": known.note,
    }


def _chain(chain: Chain) -> dict[str, Any]:
    index = {state: k for k, state in enumerate(chain.states)}
    generator: list[list[list[str]]] = [[[] for _ in chain.states] for _ in chain.states]
    for t in chain.transitions:
        rate = _text(t.multiplicity * t.rate)
        generator[index[t.target]][index[t.source]].append(rate)
        generator[index[t.source]][index[t.source]].append(f"-({rate})")
    return {
        "name": chain.name,
        "kind": "gate" if chain.is_gate else "scheme",
        "states": list(chain.states),
        "conductances": list(chain.conductances),
        "power": chain.power,
        "follows_voltage_at_once": chain.instant,
        "inf": None if chain.limit is None else _text(chain.limit),
        "tau_ms": None if chain.tau is None else _text(chain.tau),
        "rates": [
            {"from": t.source, "to": t.target, "rate_per_ms": _text(t.multiplicity * t.rate)}
            for t in chain.transitions
        ],
        # row: to, column: from, and every column sums to 0; dp/dt = generator p
        "generator": [[" + ".join(sums) or "0" for sums in row] for row in generator],
    }


def _current(subject: Subject, k: int) -> dict[str, Any]:
    term, values = subject.channel.terms[k], subject.values
    found: dict[str, Any] = {
        "name": term.name,
        "chains": [subject.channel.chains[j].name for j in term.chains],
        "rectification": None if term.rectification is None else _text(term.rectification),
    }
    if term.ion is None:
        parts = {"conductance_nS": term.conductance, "reversal_mV": term.reversal}
    else:
        parts = {
            "permeability_um3_per_ms": term.permeability,
            "inside_mM": term.ion.inside,
            "outside_mM": term.ion.outside,
        }
        if term.ion.thermal is not None:
            parts["thermal_mV"] = term.ion.thermal
        found["valence"] = term.ion.valence
    for name, expression in parts.items():
        found[name] = {
            "expression": _text(expression),
            "value": float(evaluate(expression, values)),
        }
    return found
