"""The choice of a scorer for each family of wells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from channelfit.batch.families import Family, families
from channelfit.batch.well_scorer import WellScorer
from channelfit.batch.well_scorer_cpu import CpuWellScorer, OneByOne, Unscored
from channelfit.problem.experiment import Problem
from channelfit.scoring.scorer import chosen_backend


def well_scorers(
    problems: Sequence[Problem], backend: str = "auto"
) -> list[tuple[np.ndarray, WellScorer]]:
    """Make a scorer for every family of wells.

    Arguments:
        problems: of the wells, in their order: the same model and as many experiments each.
        backend: auto, cpu, cuda, or reference, as for `make_scorer`.

    Returns: for each family the indices of its wells among the problems, and their scorer.

    Raises: InputError for a backend that cannot be used here, or wells with different parameters.
    """
    chosen = chosen_backend(backend, "float64")
    return [(family.wells, _scorer_of(family, chosen)) for family in families(problems)]


def own_masks_scorer(problems: Sequence[Problem], backend: str = "auto") -> WellScorer | None:
    """Make a scorer that linearizes wells with masks of their own in the same calls.

    It offers no cross-products.

    Arguments:
        problems: of wells that differ in their data and masks alone.

    Returns: None where every family of them is best served by a scorer of its own.
    """
    if chosen_backend(backend, "float64") != "cuda":
        return None
    if not all(one.is_simulated_once and one.total_weight > 0 for one in families(problems)):
        return None
    from channelfit.batch.masks_cuda import CudaOwnMasks  # which loads slowly

    return CudaOwnMasks(problems)


def _scorer_of(family: Family, backend: str) -> WellScorer:
    if family.total_weight <= 0:
        return Unscored(family)
    if backend == "cpu" and family.is_simulated_once:
        return CpuWellScorer(family)
    if backend == "cuda" and family.is_simulated_once:
        from channelfit.batch.well_scorer_cuda import CudaWellScorer  # which loads slowly

        return CudaWellScorer(family)
    return OneByOne(family, backend)
