"""What `channelfit uncertainty` and `channelfit compare` do, from their options to the files."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.results import comparison
from channelfit.results.comparison_pictures import comparison_figure
from channelfit.results.report import plots
from channelfit.results.report import uncertainty as pictures
from channelfit.results.run_folder import json_text, make_folder, titles, write_text
from channelfit.results.uncertainty.assessment import (
    Assessment,
    as_plain,
    assess,
    can_assess,
    judge,
    parameter_rows,
)
from channelfit.results.uncertainty.curvature import Estimate
from channelfit.results.uncertainty.families import INSTALL, Family, families, good_fits
from channelfit.results.uncertainty.posterior import Posterior, sample_posterior
from channelfit.results.uncertainty.profiles import Profile, profiles
from channelfit.scoring.scorer import Scorer
from channelfit.search.fit_file import Fit, fit_document, saved_text

#: A cost this much lower than before refining is worth a file of its own.
_REFINED = 1 - 1e-4


@dataclass(frozen=True)
class Wanted:
    """What is asked for besides the standard errors.

    profiles: names of parameters, "all" among them for every one; none for none. families: starts
    of the search for other fits, 0 for none; steps: of the posterior, 0 for none.
    """

    profiles: tuple[str, ...] = ()
    families: int = 0
    steps: int = 0
    walkers: int | None = None
    seed: int = 0


def study(
    fit: Fit,
    scorer: Scorer,
    folder: Path,
    wanted: Wanted,
    begin: Callable[[str], object] = lambda stage: None,
) -> tuple[dict[str, Any], list[Path]]:
    """Judge a fit, write what was found into a folder.

    Arguments:
        begin: told what is being done now.

    Returns: what stands in ``uncertainty.json``, and the files.

    Raises: InputError when the backend has no derivatives, a name is unknown, something is missing.
    """
    if not can_assess(scorer):
        raise InputError(
            f"backend {scorer.backend} has no derivatives for this; --backend cpu has them"
        )
    _check_installed(wanted)
    values = fit.problem.model.values()
    begin("refining the fit")
    judged = assess(fit, scorer, values, finish=True)
    places = _places(judged.estimate, wanted.profiles)
    found_profiles: list[Profile] = []
    if places:
        found, found_profiles = profiles(
            judged.estimate, places, on_profile=lambda name: begin(f"profile of {name}")
        )
        if found is not judged.estimate:
            judged = judge(found, judged.refined_from)
    found = judged.estimate
    found_families: list[Family] = []
    if wanted.families:
        begin(f"refining {wanted.families} other starts")
        found_families = families(found, *good_fits(found, wanted.families, wanted.seed))
    posterior = None
    if wanted.steps:
        posterior = sample_posterior(
            found,
            wanted.steps,
            wanted.walkers,
            wanted.seed,
            lambda k: begin(f"step {k} of {wanted.steps}") if k % 50 == 0 else None,
        )
    begin("drawing")
    make_folder(folder)
    name = fit.name
    files = _draw(folder, name, found, found_profiles, found_families, posterior)
    if not fit.surrogate and judged.refined_from and found.cost < judged.refined_from * _REFINED:
        files.append(folder / "refined.yaml")
        values = found.objective.physical(found.unit[:, None])[:, 0]
        write_text(files[-1], saved_text(fit_document(fit, values, folder)))
    summary = _summary(fit, judged, found_profiles, found_families, posterior)
    write_text(folder / "uncertainty.json", json_text(summary))
    return summary, [folder / "uncertainty.json", *files]


def _check_installed(wanted: Wanted) -> None:
    """Before anything takes long."""
    needed = [
        ("sklearn", "scikit-learn", wanted.families),
        ("emcee", "emcee", wanted.steps),
        ("corner", "corner", wanted.steps),
    ]
    for module, package, asked in needed:
        if asked and importlib.util.find_spec(module) is None:
            raise InputError(f"this needs {package}; {INSTALL} installs it")


def _places(found: Estimate, names: Sequence[str]) -> list[int]:
    if "all" in names:
        return list(range(len(found.names)))
    for name in names:
        if name not in found.names:
            known = ", ".join(found.names)
            raise InputError(f'no free parameter "{name}" to profile. There is: {known}, or all')
    return [found.names.index(name) for name in names]


def _draw(
    folder: Path,
    name: str,
    found: Estimate,
    found_profiles: Sequence[Profile],
    found_families: Sequence[Family],
    posterior: Posterior | None,
) -> list[Path]:
    files = [folder / "uncertainty.png"]
    plots.save(pictures.intervals_figure(found, name), files[0])
    if found_profiles:
        files += [folder / "profiles.png", folder / "profiles.csv"]
        plots.save(pictures.profiles_figure(found, found_profiles, f"{name}: profiles"), files[-2])
        write_text(files[-1], _profile_table(found, found_profiles))
    if found_families:
        files.append(folder / "families.png")
        title = f"{name}: equally good fits"
        plots.save(pictures.families_figure(found, found_families, title), files[-1])
    if posterior is not None:
        files += [folder / "posterior.png", folder / "posterior.csv"]
        plots.save(pictures.posterior_figure(found, posterior, f"{name}: posterior"), files[-2])
        write_text(files[-1], _table(posterior.names, posterior.samples.T))
    return files


def _profile_table(found: Estimate, found_profiles: Sequence[Profile]) -> str:
    """A row a point: the parameter that was held, chi square, and all parameters."""
    space = found.objective.space
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["held", "chi_square", *(p.name for p in space.parameters)])
    for one in found_profiles:
        columns = found.objective.physical(one.unit).T
        for chi_square, row in zip(one.chi_square, columns, strict=True):
            writer.writerow([one.name, f"{chi_square:.9g}", *(f"{x:.9g}" for x in row)])
    return text.getvalue()


def _table(names: Sequence[str], rows: np.ndarray) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([f"{x:.9g}" for x in row] for row in rows)
    return text.getvalue()


def _summary(
    fit: Fit,
    judged: Assessment,
    found_profiles: Sequence[Profile],
    found_families: Sequence[Family],
    posterior: Posterior | None,
) -> dict[str, Any]:
    found = judged.estimate
    values = found.objective.physical(found.unit[:, None])[:, 0]
    rows = {}
    model = fit.problem.model
    sure = parameter_rows(found, model)
    for parameter, value in zip(found.objective.space.parameters, values, strict=True):
        rows[parameter.name] = {
            "value": float(value),
            "unit": parameter.unit,
            "lower": parameter.lower,
            "upper": parameter.upper,
            **({"note": "fixed"} if parameter.fixed else {}),
            **sure.get(parameter.name, {}),
        }
    tied = model.tied_values(values)
    for tie in model.ties:
        rows[tie.name] = {
            "value": tied[tie.name],
            "unit": tie.unit,
            "lower": tie.lower,
            "upper": tie.upper,
            "note": "tied",
            **sure[tie.name],
        }
    for place, side in enumerate(found.pushed):
        if side:
            rows[found.names[place]]["note"] = f"at {'upper' if side > 0 else 'lower'} bound"
    out: dict[str, Any] = {
        **titles(fit),
        "model": fit.problem.model.name,
        "file": str(fit.file),
        "cost": found.cost,
        "cost_before_refining": judged.refined_from,
        "parameters": rows,
        "uncertainty": as_plain(judged),
    }
    if found_profiles:
        out["profiles"] = {
            p.name: {
                "interval": [p.lower, p.upper],
                "open_below": p.open_below,
                "open_above": p.open_above,
                "values": p.values.tolist(),
                "chi_square": p.chi_square.tolist(),
            }
            for p in found_profiles
        }
    if found_families:
        out["families"] = [_family(found, family) for family in found_families]
    if posterior is not None:
        out["posterior"] = _posterior(posterior)
    return out


def _family(found: Estimate, family: Family) -> dict[str, Any]:
    names = [p.name for p in found.objective.space.parameters]
    physical = found.objective.physical(family.unit)
    return {
        "fits": family.unit.shape[1],
        "least_chi_square": float(family.chi_square[family.best]),
        "best": dict(zip(names, physical[:, family.best].tolist(), strict=True)),
        "medoid": dict(zip(names, physical[:, family.medoid].tolist(), strict=True)),
        "least": dict(zip(names, physical.min(axis=1).tolist(), strict=True)),
        "largest": dict(zip(names, physical.max(axis=1).tolist(), strict=True)),
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


# --- compare -----------------------------------------------------------------------------------


def compare(
    files: Sequence[Path],
    folder: Path,
    backend: str,
    as_is: bool,
    begin: Callable[[str], object] = lambda stage: None,
) -> tuple[dict[str, Any], list[Path]]:
    """Compare fits of several schemes to the same data, write what was found into a folder.

    Returns: what stands in ``comparison.json``, and the files.

    Raises: InputError for files that cannot be used or compared, and what is missing.
    """
    contenders = comparison.contend(files, backend, as_is, lambda label: begin(f"fit {label}"))
    begin("drawing")
    summary = {
        "fits": comparison.as_plain(contenders),
        "remarks": comparison.remarks(contenders),
        "warnings": list(dict.fromkeys(str(w) for c in contenders for w in c.fit.cautions)),
    }
    make_folder(folder)
    written = [folder / "comparison.json", folder / "comparison.png"]
    write_text(written[0], json_text(summary))
    title = ", ".join(c.label for c in contenders)
    title = title if len(title) < 70 else f"{len(contenders)} fits"
    plots.save(comparison_figure(contenders, title), written[1])
    plain: dict[str, Any] = json.loads(json_text(summary))
    return plain, written
