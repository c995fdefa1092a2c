"""The search: a space, optimizers that ask and tell, and the one loop that runs them."""

from channelfit.optimizers.choose import make_optimizer
from channelfit.optimizers.genetic import Genetic, GeneticState
from channelfit.optimizers.objective import Generation, Local, Objective
from channelfit.optimizers.run import (
    FitResult,
    Progress,
    StopRules,
    make_stop_rules,
    optimize,
)
from channelfit.optimizers.space import SearchSpace, array_module

__all__ = [
    "FitResult",
    "Generation",
    "Genetic",
    "GeneticState",
    "Local",
    "Objective",
    "Progress",
    "SearchSpace",
    "StopRules",
    "array_module",
    "make_optimizer",
    "make_stop_rules",
    "optimize",
]
