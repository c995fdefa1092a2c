"""channelfit: kinetic models of ion channels, fitted to voltage-clamp recordings."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from channelfit.backends import Score as Score
    from channelfit.backends import make_scorer as make_scorer
    from channelfit.errors import InputError as InputError
    from channelfit.fit import load_fit as load_fit
    from channelfit.model import ChannelModel as ChannelModel
    from channelfit.model import load_model as load_model
    from channelfit.optimizers import FitResult as FitResult
    from channelfit.optimizers import optimize as optimize
    from channelfit.problem import Experiment as Experiment
    from channelfit.problem import Problem as Problem
    from channelfit.protocol import load_protocol as load_protocol
    from channelfit.recording import Recording as Recording

__version__ = "0.1.0"

#: Public names and where they live. Loaded when first used, so that `channelfit --help` is quick.
_PUBLIC = {
    "ChannelModel": "model",
    "Experiment": "problem",
    "FitResult": "optimizers",
    "InputError": "errors",
    "Problem": "problem",
    "Recording": "recording",
    "Score": "backends",
    "load_fit": "fit",
    "load_model": "model",
    "load_protocol": "protocol",
    "make_scorer": "backends",
    "optimize": "optimizers",
}
__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'channelfit' has no attribute {name!r}")
    return getattr(importlib.import_module(f"channelfit.{_PUBLIC[name]}"), name)
