"""Profiles and chains of a posterior as tasks, which any process can compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.results.uncertainty.estimate import Estimate
from channelfit.results.uncertainty.posterior import (
    Chains,
    Posterior,
    posterior_of,
    sample_chains,
)
from channelfit.results.uncertainty.profiles import Profile, Profiler, profile
from channelfit.search.fit_tasks import FitTasks
from channelfit.tasks.executor import Executor, task_results
from channelfit.tasks.records import DAMAGED
from channelfit.tasks.result_store import Arrays, Key, ResultStore, expect


@dataclass(frozen=True, eq=False, kw_only=True)
class UncertaintyTasks(FitTasks):
    """Profiles and chains about an estimate.

    The tasks are ("profile", round, place), the profile of a free parameter, and ("chains", k),
    ensemble k of the posterior.

    Attributes:
        found: the estimate. Its objective is not sent: every process makes its own.
        steps, walkers, seed: of the posterior; the number of an ensemble is added to the seed.
        on_step: called with the number of each step that is done in this process.
    """

    found: Estimate
    steps: int = 0
    walkers: int | None = None
    seed: int = 0
    on_step: Callable[[int], object] | None = None

    def __getstate__(self) -> dict[str, Any]:
        bare = replace(self.found, objective=None)  # type: ignore[arg-type]
        return {**super().__getstate__(), "found": bare, "on_step": None}

    def compute(self, key: Key) -> Arrays:
        """Return the arrays of a `Profile` or of `Chains`."""
        found = replace(self.found, objective=self.objective)
        if key[0] == "chains":
            seed = self.seed + int(key[1])
            chains = sample_chains(found, self.steps, self.walkers, seed, self.on_step)
            return {"chain": chains.chain, "acceptance": np.array(chains.acceptance)}
        one = profile(found, int(key[2]))
        return {name: np.asarray(getattr(one, name)) for name in _OF_PROFILE}

    def check_stored(self, key: Key, found: Arrays) -> None:
        """See `CheckedTaskSet`."""
        n = len(self.found.names)
        if key[0] == "chains":
            expect(found, {"chain": ("f", (self.steps, None, n)), "acceptance": ("f", ())})
            return
        shapes: dict[str, tuple[str, tuple[int | None, ...]]]
        shapes = dict.fromkeys(("threshold", "lower", "upper"), ("f", ()))
        shapes |= dict.fromkeys(("open_below", "open_above"), ("b", ()))
        points = found["values"].size if "values" in found else 0
        shapes |= dict.fromkeys(("values", "chi_square"), ("f", (points,)))
        if set(found) != set(_OF_PROFILE):
            raise InputError(DAMAGED)
        expect(found, {**shapes, "unit": ("f", (n, points))})


#: The attributes of a profile that its key does not tell.
_OF_PROFILE = tuple(f.name for f in fields(Profile) if f.name not in ("name", "place"))


def profiler(
    fit: FitTasks,
    executor: Executor | None = None,
    store: ResultStore | None = None,
    begin: Callable[[int], Callable[[str], object]] = lambda n: lambda name: None,
) -> Profiler:
    """Return a function that computes profiles as tasks.

    Arguments:
        executor: computes them; None for this process.
        store: where the results are stored.
        begin: called with the number of profiles at the beginning of each round; returns a function
            that is called with the name of each parameter when its profile is done.
    """
    rounds = 0

    def compute(found: Estimate, places: Sequence[int]) -> Iterator[Profile]:
        nonlocal rounds
        rounds += 1
        tasks, done = UncertaintyTasks.of(fit, found=found), begin(len(places))
        keys: list[Key] = [("profile", rounds, place) for place in places]

        def on_done(key: Key, _: Arrays) -> None:
            done(found.names[int(key[2])])

        for key, arrays in task_results(tasks, keys, executor, store, on_done):
            place = int(key[2])
            values: dict[str, Any] = {k: v if v.ndim else v.item() for k, v in arrays.items()}
            yield Profile(name=found.names[place], place=place, **values)

    return compute


def sample_posterior(
    tasks: UncertaintyTasks,
    ensembles: int = 1,
    executor: Executor | None = None,
    store: ResultStore | None = None,
) -> Posterior:
    """Sample the posterior about an estimate.

    Arguments:
        ensembles: the number of independent ensembles of walkers, each with its own seed; they show
            whether they agree.
        executor: computes them; None for this process.
        store: where the results are stored.

    Raises: InputError if emcee is missing, or there are too few walkers.
    """
    keys: list[Key] = [("chains", k) for k in range(ensembles)]
    chains = [
        Chains(arrays["chain"], float(arrays["acceptance"]))
        for _, arrays in task_results(tasks, keys, executor, store)
    ]
    return posterior_of(tasks.found, chains)
