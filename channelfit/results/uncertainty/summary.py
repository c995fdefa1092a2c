"""The uncertainty of a fit as plain data for ``uncertainty.json``, and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from channelfit.problem.experiment import Problem
from channelfit.reading.csv_tables import csv_table
from channelfit.results.run_state import parameter_row
from channelfit.results.uncertainty.assessment import Assessment, as_plain, parameter_rows
from channelfit.results.uncertainty.estimate import Estimate
from channelfit.results.uncertainty.families import FitFamily, representatives
from channelfit.results.uncertainty.posterior import Posterior
from channelfit.results.uncertainty.profiles import Profile
from channelfit.search.plan import FitPlan


def profile_table(found: Estimate, found_profiles: Sequence[Profile]) -> str:
    """Return profiles as CSV: a row a point, with the held parameter, chi square, all parameters.

    Chi square is above that of the fit; parameters are in base units.
    """
    space = found.objective.space
    held = [one.name for one in found_profiles for _ in one.chi_square]
    chi_square = np.concatenate([one.chi_square for one in found_profiles])
    values = np.hstack([found.objective.physical(one.unit) for one in found_profiles])
    names = [p.name for p in space.parameters]
    columns = [("held", held), ("chi_square", chi_square), *zip(names, values, strict=True)]
    return csv_table(columns, digits=9)


def table_text(names: Sequence[str], rows: np.ndarray) -> str:
    """Return a table as CSV: the names of its columns, and rows (n_rows, n_columns) of numbers."""
    return csv_table(zip(names, rows.T, strict=True), digits=9)


def summary_of(
    fit: FitPlan,
    judged: Assessment,
    found_profiles: Sequence[Profile],
    found_families: Sequence[FitFamily],
    posterior: Posterior | None,
) -> dict[str, Any]:
    """Return all numbers of a study as plain data, parameters by name and in base units.

    Profiles, families and the posterior are included if they were requested.
    """
    found = judged.estimate
    out: dict[str, Any] = {
        "model": fit.problem.model.name,
        "file": str(fit.file),
        "cost": found.cost,
        "cost_unit": "pA^2" if fit.problem.has_recordings else "",
        "cost_before_refining": judged.refined_from,
        "parameters": _parameters(found, fit.problem),
        "uncertainty": as_plain(judged, fit.problem.unit),
    }
    if found_profiles:
        out["profiles"] = {
            one.name: {
                "interval": [one.lower, one.upper],
                "open_below": one.open_below,
                "open_above": one.open_above,
                "values": one.values.tolist(),
                "chi_square": one.chi_square.tolist(),
            }
            for one in found_profiles
        }
    if found_families:
        out["families"] = [_family(found, family) for family in found_families]
    if posterior is not None:
        out["posterior"] = _posterior(posterior)
    return out


def _parameters(found: Estimate, problem: Problem) -> dict[str, dict[str, Any]]:
    """Return value, unit, range and error of each parameter, tied ones included."""
    values = found.objective.physical(found.unit[:, None])[:, 0]
    sure = parameter_rows(found, problem)
    rows = {}
    for parameter, value in zip(found.objective.space.parameters, values, strict=True):
        note = {"note": "fixed"} if parameter.fixed else {}
        rows[parameter.name] = parameter_row(parameter, value) | note | sure.get(parameter.name, {})
    tied = problem.tied_values(values)
    for tie in problem.ties:
        rows[tie.name] = parameter_row(tie, tied[tie.name]) | {"note": "tied"} | sure[tie.name]
    for name, side in zip(found.names, found.pushed, strict=True):
        if side:
            rows[name]["note"] = f"at {'upper' if side > 0 else 'lower'} bound"
    return rows


def _family(found: Estimate, family: FitFamily) -> dict[str, Any]:
    names = [p.name for p in found.objective.space.parameters]
    physical = found.objective.physical(family.unit)
    return {
        "fits": family.unit.shape[1],
        "least_chi_square": float(family.chi_square[family.best]),
        "best": dict(zip(names, physical[:, family.best].tolist(), strict=True)),
        "medoid": dict(zip(names, physical[:, family.medoid].tolist(), strict=True)),
        "least": dict(zip(names, physical.min(axis=1).tolist(), strict=True)),
        "largest": dict(zip(names, physical.max(axis=1).tolist(), strict=True)),
        "representatives": [
            {"fits": n_fits, "values": dict(zip(names, physical[:, k].tolist(), strict=True))}
            for k, n_fits in representatives(family)
        ],
    }


def _posterior(posterior: Posterior) -> dict[str, Any]:
    lower, upper = posterior.interval()
    return {
        "walkers": posterior.n_walkers,
        "steps": posterior.n_steps,
        "burn_in": posterior.burn_in,
        "acceptance": posterior.acceptance,
        "warnings": list(posterior.warnings),
        "parameters": {
            name: {
                "median": float(posterior.median[k]),
                "interval": [float(lower[k]), float(upper[k])],
                "autocorrelation_steps": float(posterior.autocorrelation[k]),
                "r_hat": float(posterior.r_hat[k]),
            }
            for k, name in enumerate(posterior.names)
        },
    }
