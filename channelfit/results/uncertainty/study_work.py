"""Profiles and chains of a posterior as pieces that any process can compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from channelfit.pieces.kept import Arrays, Kept, Key, expect
from channelfit.pieces.records import DAMAGED
from channelfit.pieces.work import Doer, pieces_done
from channelfit.reading.errors import InputError
from channelfit.results.uncertainty.curvature import Estimate
from channelfit.results.uncertainty.posterior import (
    Chains,
    Posterior,
    posterior_of,
    sample_chains,
)
from channelfit.results.uncertainty.profiles import Profile, Profiler, profile
from channelfit.search.plan_work import PlanWork


@dataclass(frozen=True, eq=False)
class StudyWork(PlanWork):
    """What is asked about an estimate.

    The pieces are ("profile", round, place), the profile of a free parameter, and ("chains", k),
    ensemble k of the posterior.

    Attributes:
        found: the estimate, without its objective, which every process makes for itself.
        steps, walkers, seed: of the posterior; each ensemble adds its number to the seed.
    """

    found: Any = None
    steps: int = 0
    walkers: int | None = None
    seed: int = 0

    def do(self, key: Key) -> Arrays:
        """The arrays of a `Profile` or of `Chains`."""
        found = replace(self.found, objective=self.objective)
        if key[0] == "chains":
            made = sample_chains(found, self.steps, self.walkers, self.seed + int(key[1]))
            return {"chain": made.chain, "acceptance": np.array(made.acceptance)}
        one = profile(found, int(key[2]))
        return {name: np.asarray(getattr(one, name)) for name in _OF_PROFILE}

    def check_kept(self, key: Key, found: Arrays) -> None:
        """See `pieces.work.Checking`."""
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


#: What of a profile is not known before.
_OF_PROFILE = tuple(f.name for f in fields(Profile) if f.name not in ("name", "place"))


def profiles_by(
    doer: Doer, work: PlanWork, kept: Kept | None, on_done: Callable[[str], object]
) -> Profiler:
    """Lets somebody else compute profiles.

    Arguments:
        work: the fit.
        kept: where those are kept that are done.
        on_done: called with the name of each parameter whose profile is done.
    """
    rounds = 0

    def each(found: Estimate, places: Sequence[int]) -> Iterator[Profile]:
        nonlocal rounds
        rounds += 1
        study = _study(work, found)
        keys: list[Key] = [("profile", rounds, place) for place in places]

        def told(key: Key, _: Arrays) -> None:
            on_done(found.names[int(key[2])])

        for key, arrays in pieces_done(study, keys, doer, kept, told):
            place = int(key[2])
            values: dict[str, Any] = {k: v if v.ndim else v.item() for k, v in arrays.items()}
            yield Profile(name=found.names[place], place=place, **values)

    return each


def posterior_by(
    doer: Doer,
    work: PlanWork,
    kept: Kept | None,
    found: Estimate,
    steps: int,
    walkers: int | None,
    seed: int,
    ensembles: int,
) -> Posterior:
    """Lets somebody else move the ensembles of a posterior; see `posterior.sample_posterior`."""
    study = _study(work, found, steps=steps, walkers=walkers, seed=seed)
    keys: list[Key] = [("chains", k) for k in range(ensembles)]
    chains = [
        Chains(arrays["chain"], float(arrays["acceptance"]))
        for _, arrays in pieces_done(study, keys, doer, kept)
    ]
    return posterior_of(found, chains)


def _study(work: PlanWork, found: Estimate, **more: Any) -> StudyWork:
    """The work about an estimate; its objective, which holds a scorer, does not travel."""
    plain: Any = replace(found, objective=None)  # type: ignore[arg-type]
    plan, backend, dtype, path = work.plan, work.backend, work.dtype, work.path
    return StudyWork(plan, backend, dtype, path, work.identity, found=plain, **more)
