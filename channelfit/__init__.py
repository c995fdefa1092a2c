"""channelfit: kinetic models of ion channels, fitted to voltage-clamp recordings."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from channelfit.model.channel import ChannelModel as ChannelModel
    from channelfit.model.model import Model as Model
    from channelfit.model.model_file import load_model as load_model
    from channelfit.problem.experiment import Experiment as Experiment
    from channelfit.problem.experiment import Problem as Problem
    from channelfit.problem.protocol import Protocol as Protocol
    from channelfit.problem.protocol import load_protocol as load_protocol
    from channelfit.problem.recording import Recording as Recording
    from channelfit.reading.errors import InputError as InputError
    from channelfit.scoring.scorer import Score as Score
    from channelfit.scoring.scorer import make_scorer as make_scorer
    from channelfit.search.fit_file import load_fit as load_fit
    from channelfit.search.loop import FitResult as FitResult
    from channelfit.search.loop import optimize as optimize

__version__ = "0.1.0"

#: Public names and where they live. Loaded when first used, so that `channelfit --help` is quick.
_PUBLIC = {
    "ChannelModel": "model.channel",
    "Experiment": "problem.experiment",
    "FitResult": "search.loop",
    "InputError": "reading.errors",
    "Model": "model.model",
    "Problem": "problem.experiment",
    "Protocol": "problem.protocol",
    "Recording": "problem.recording",
    "Score": "scoring.scorer",
    "load_fit": "search.fit_file",
    "load_model": "model.model_file",
    "load_protocol": "problem.protocol",
    "make_scorer": "scoring.scorer",
    "optimize": "search.loop",
}
__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'channelfit' has no attribute {name!r}")
    return getattr(importlib.import_module(f"channelfit.{_PUBLIC[name]}"), name)
