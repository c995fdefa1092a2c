"""The search: a space, optimizers that ask and tell, and the one loop that runs them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from channelfit.optimizers.choose import make_optimizer as make_optimizer
    from channelfit.optimizers.genetic import Genetic as Genetic
    from channelfit.optimizers.genetic import GeneticState as GeneticState
    from channelfit.optimizers.objective import Generation as Generation
    from channelfit.optimizers.objective import Local as Local
    from channelfit.optimizers.objective import Objective as Objective
    from channelfit.optimizers.run import FitResult as FitResult
    from channelfit.optimizers.run import Progress as Progress
    from channelfit.optimizers.run import StopRules as StopRules
    from channelfit.optimizers.run import make_stop_rules as make_stop_rules
    from channelfit.optimizers.run import optimize as optimize
    from channelfit.optimizers.space import SearchSpace as SearchSpace
    from channelfit.optimizers.space import array_module as array_module

#: Public names and where they live; loaded when first used.
_PUBLIC = {
    "FitResult": "run",
    "Generation": "objective",
    "Genetic": "genetic",
    "GeneticState": "genetic",
    "Local": "objective",
    "Objective": "objective",
    "Progress": "run",
    "SearchSpace": "space",
    "StopRules": "run",
    "array_module": "space",
    "make_optimizer": "choose",
    "make_stop_rules": "run",
    "optimize": "run",
}
__all__ = [*_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
