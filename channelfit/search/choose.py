"""Optimizers by name, made from the settings that a user wrote under `optimizer:`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np

from channelfit.reading import memory
from channelfit.reading.errors import InputError
from channelfit.reading.keys import SETTINGS
from channelfit.scoring.machine import gpu
from channelfit.search.cma_es import CmaEs
from channelfit.search.differential import Differential
from channelfit.search.genetic import Genetic
from channelfit.search.genetic_cuda import DeviceGenetic
from channelfit.search.hybrid import Hybrid
from channelfit.search.islands import Islands
from channelfit.search.population import bytes_a_candidate
from channelfit.search.settings import unknown, whole
from channelfit.search.swarm import (
    GroupTopology,
    RingTopology,
    Swarm,
    SwarmCoefficients,
    Topology,
    WholeTopology,
)

_OF_ISLANDS = ("islands", "migrate_every", "migrants")
#: Settings that are numbers of candidates which are held in memory at once.
_SIZES = ("population", "scan", "starts")


def default_optimizer(settings: Mapping[str, Any]) -> str:
    """Return the optimizer of a channel's fit where the settings name none.

    Settings of a population are the genetic algorithm's.
    """
    of_a_population = {"population", "crossover_rate", "mutation_rate"} & set(settings)
    return "genetic" if of_a_population else "hybrid"


def make_optimizer(
    name: str,
    settings: Mapping[str, Any],
    n_parameters: int,
    seed: int,
    xp: Any = np,
    initial: Any = None,
    makers: Mapping[str, Callable[..., Any]] | None = None,
) -> Any:
    """Make an optimizer by its name and the settings that a user wrote under `optimizer:`.

    Arguments:
        name: a key of OPTIMIZERS.
        settings: by name; those that are missing take their defaults. `generations` may be among
            them: it is a stop rule (`make_stop_rules`), which is checked but not used here.
        n_parameters: free parameters.
        seed: 0 .. 2**64-1.
        xp: numpy, or cupy for an optimizer that lives on the GPU.
        initial: (n_parameters, n_points) starting points in the unit cube.
        makers: the functions that make them, by name; None for OPTIMIZERS.

    Raises: InputError for an unknown name or setting, with the known ones, or a bad value.
    """
    key = "optimizer"
    if name not in OPTIMIZERS:
        raise InputError(unknown("optimizer", name, OPTIMIZERS), key=f"{key}.name")
    if "generations" in settings:
        whole(settings["generations"], f"{key}.generations", least=1)
    own = {name: value for name, value in settings.items() if name not in ("name", "generations")}
    for setting in own:
        if setting not in SETTINGS[name]:
            message = unknown("setting", setting, SETTINGS[name])
            raise InputError(message, key=f"{key}.{setting}")
        if setting in _SIZES and isinstance(own[setting], int):
            each = bytes_a_candidate(n_parameters)
            free = None if xp is np else gpu.device().memory_free
            each *= own.get("islands", 1) if isinstance(own.get("islands"), int) else 1
            memory.check(own[setting], each, "candidates", key=f"{key}.{setting}", gpu_free=free)
    make = (makers or OPTIMIZERS)[name]
    if "islands" not in SETTINGS[name]:
        return make(own, n_parameters, seed, xp, initial)
    n_islands, migrate_every, migrants = (
        whole(own.pop(k, SETTINGS[name][k].default), f"{key}.{k}", least=1) for k in _OF_ISLANDS
    )
    if n_islands == 1:
        return make(own, n_parameters, seed, xp, initial)
    population = _population(own, name, least=1)
    if migrants >= population:
        raise InputError(
            f"must be below the population of {population}: {migrants}", key=f"{key}.migrants"
        )

    def island(seed: int, points: Any) -> Any:
        return make({**own, "_resident": False}, n_parameters, seed, xp, points)

    return Islands(island, seed, n_islands, migrate_every, migrants, initial, population)


def _make(
    kind: type[Any],
    name: str,
    settings: Mapping[str, Any],
    n_parameters: int,
    seed: int,
    xp: Any,
    initial: Any,
) -> Any:
    """Make a search by populations of which every setting is an argument."""
    population = _population(settings, name, kind.least_population)
    own = {key: value for key, value in settings.items() if key not in ("population", "_resident")}
    return kind(n_parameters, population, seed, xp=xp, initial=initial, **own)


def _make_genetic(
    settings: Mapping[str, Any], n_parameters: int, seed: int, xp: Any, initial: Any
) -> Genetic:
    resident = xp is not np and settings.get("_resident", True)
    kind = DeviceGenetic if resident else Genetic
    made: Genetic = _make(kind, "genetic", settings, n_parameters, seed, xp, initial)
    return made


def _make_hybrid(
    settings: Mapping[str, Any], n_parameters: int, seed: int, xp: Any, initial: Any
) -> Hybrid:
    for name in settings:
        whole(settings[name], f"optimizer.{name}", least=1)
    made = Hybrid(n_parameters, seed, **settings, initial=initial)
    if made.scan and made.scan < made.starts:
        raise InputError(
            f"must not be below the {made.starts} starts that are chosen among these points: "
            f"{made.scan}",
            key="optimizer.scan",
        )
    return made


def _refuse_asynchronous_ring(*arguments: Any) -> Any:
    raise InputError(
        "asynchronous_ring flies functions on a GPU; for a channel, ring has the same topology",
        key="optimizer.name",
    )


def _make_swarm(
    topology: type[Topology],
    settings: Mapping[str, Any],
    n_parameters: int,
    seed: int,
    xp: Any,
    initial: Any,
) -> Swarm:
    def of(kind: Any) -> Any:
        """Make an object of those settings that are its attributes."""
        names = [field.name for field in fields(kind) if field.name in settings]
        return kind(**{name: settings[name] for name in names})

    return Swarm(
        n_parameters,
        _population(settings, topology.name, least=1),
        seed,
        of(topology),
        of(SwarmCoefficients),
        settings.get("batch"),
        xp,
        initial=initial,
    )


def _population(settings: Mapping[str, Any], optimizer: str, least: int) -> int:
    population = settings.get("population", SETTINGS[optimizer]["population"].default)
    return whole(population, "optimizer.population", least)


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "genetic": _make_genetic,
    "hybrid": _make_hybrid,
    **{
        topology.name: partial(_make_swarm, topology)
        for topology in (WholeTopology, RingTopology, GroupTopology)
    },
    "differential": partial(_make, Differential, "differential"),
    "cma": partial(_make, CmaEs, "cma"),
    "asynchronous_ring": _refuse_asynchronous_ring,
}

#: Optimizers that end by themselves.
DIRECTED = ("hybrid",)
