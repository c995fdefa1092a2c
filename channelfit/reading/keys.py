"""All keys that a file may hold, by the section in which they stand.

A reader says which of these sections it reads (`documents.Section.expect`) and can then ask for no
other key, so that what stands here is what is accepted. Whoever adds a key shows in
`tests/test_keys.py` what it changes. The settings of optimizers are in `search.choose.SETTINGS`,
and the rules to stop are the fields of `search.loop.StopRules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEYS: dict[str, tuple[str, ...]] = {
    # a model file
    "model": (
        "name",
        "description",
        "source",
        "temperature",
        "parameters",
        "definitions",
        "states",
        "rates",
        "gates",
        "current",
        "fit",
    ),
    "parameter": ("range", "unit", "value", "scale", "fixed", "prior", "tie"),
    "prior": ("normal", "lognormal"),
    "gate": ("power", "alpha", "beta", "inf", "tau"),
    "current": ("open", "conductance", "reversal", "area", "capacitance"),
    # the form that the 2012 paper printed
    "printed file": ("model", "fit"),
    "printed model": ("nStates", "nParams", "params", "rates", "nOpenStates", "openStates", "eRev"),
    "printed parameter": ("name", "min", "max", "val"),
    # a fit file, and the fit section in it or in a model file
    "fit file": (
        "model",
        "name",
        "description",
        "source",
        "temperature",
        "current",
        "parameters",
        "fit",
    ),
    "fit": (
        "name",
        "description",
        "source",
        "protocols",
        "experiments",
        "surrogate",
        "clamp",
        "optimizer",
        "stop",
        "seed",
        "rates_within",
        "solve",
        "noise",
        "start",
    ),
    "surrogate": ("noise", "seed"),
    "experiment": ("protocol", "recording", "weight", "mask", "every", "delay", "clamp"),
    "clamp": (
        "series_resistance",
        "membrane_capacitance",
        "pipette_capacitance",
        "compensation",
        "cancellation",
        "leak",
        "offset",
        "delay",
        "lowpass",
    ),
    "clamp compensation": ("fraction", "prediction", "lag"),
    "clamp leak": ("conductance", "reversal"),
    "clamp lowpass": ("poles", "cutoff"),
    "mask": ("after_steps", "before_steps", "from", "to", "weight", "sweeps"),
    "rates_within": ("range", "of", "voltages", "rates"),
    "recording": (
        "file",
        "header",
        "time",
        "sampling",
        "current",
        "sweeps",
        "baseline",
        "missing",
        "capacitance",
        "series_resistance",
        "source",
    ),
    "recording time": ("column", "unit", "start"),
    "recording current": ("column", "columns", "unit", "area", "capacitance"),
    "baseline": ("from", "to"),
    # a protocol file
    "protocol": (
        "name",
        "description",
        "source",
        "holding",
        "sampling",
        "between_sweeps",
        "segments",
    ),
    "between_sweeps": ("carry_over", "rest"),
    "segment": ("hold", "step", "ramp", "sines", "recorded", "for"),
    "family": ("values", "from", "to", "by"),
    "sines": ("offset", "origin", "terms"),
    "sine": ("amplitude", "frequency", "omega", "phase"),
    "recorded": ("file", "header", "column", "columns", "unit", "time", "sampling"),
    "recorded time": ("column", "unit"),
    # a function file
    "function": (
        "name",
        "description",
        "source",
        "sizes",
        "parameters",
        "definitions",
        "cost",
        "outputs",
        "data",
        "fit",
    ),
    "function parameter": ("size", "range", "scale", "value", "fixed", "unit"),
    "function data": ("file", "inputs", "targets", "scale"),
    "function fit": ("name", "description", "source", "optimizer", "stop", "seed", "start"),
}


def is_function(document: Mapping[str, Any]) -> bool:
    """Whether a document describes a function rather than a channel."""
    return any(key in document for key in ("cost", "outputs")) and "states" not in document
