"""What was found: a row for each scheme, those that the data cannot tell apart, and their files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.discovery.search import Discovery
from channelfit.reading.csv_tables import csv_rows
from channelfit.reading.errors import InputError
from channelfit.reading.files import write_text
from channelfit.results.comparison import NEAR_BIC, ComparedFit, remarks, scored_fit
from channelfit.results.files import SUMMARY, make_folder
from channelfit.results.identity import file_hashes
from channelfit.results.quality import SUFFIXES
from channelfit.results.run_state import json_text
from channelfit.results.run_summary import titles
from channelfit.scoring.machine.computer import machine, versions
from channelfit.search.saved_fit import fit_document, save_data, saved_text

#: The files of a run: the table, and the folder of model files.
TABLE, MODELS = "schemes.csv", "schemes"
#: A scheme has the currents of another one if it follows them to this share of their root mean
#: square, which is far below what any recording shows.
EQUIVALENT = 1e-4
#: Likelihood ratios, 2 ln L, below which one recording of these cannot tell two schemes apart.
_SEEN = 4.0
#: The share of its range from which a parameter is at an end of it.
_END = 1e-6


@dataclass(frozen=True)
class Follows:
    """How well one scheme follows the currents, or numbers, that another predicts without noise.

    Attributes:
        fitted, to: the names of both.
        rms: what is left, and relative: the same as a share of those currents.
        ratio: 2 ln L by which such data would on average speak for the other one, at the noise
            of these.
    """

    fitted: str
    to: str
    rms: float
    relative: float
    ratio: float


@dataclass(frozen=True, eq=False)
class Found:
    """The result of a discovery.

    Attributes:
        discovery: all fits.
        best: the places of the schemes that were fitted fully, the best by BIC first.
        compared: the same schemes with their traces.
        follows: by pair of the schemes near the best one.
    """

    discovery: Discovery
    best: tuple[int, ...]
    compared: tuple[ComparedFit, ...]
    follows: tuple[Follows, ...]

    @property
    def unit(self) -> str:
        """The unit of the residuals: pA, or standard errors of what was observed."""
        return self.discovery.tasks.models.plan.problem.unit

    @property
    def rms(self) -> str:
        """The name of the root of the cost in the table."""
        return f"rms_{SUFFIXES[self.unit]}"

    @cached_property
    def held_out(self) -> dict[str, str]:
        """The units of what was held out, by the name of their column in the table."""
        problem = self.discovery.tasks.models.plan.problem
        units = {e.unit for e in problem.experiments if e.recording is not None and e.weight == 0}
        return {f"held_out_{SUFFIXES[unit]}": unit for unit in sorted(units) or [self.unit]}

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of the table, in its order."""
        return (
            *("scheme", "graph", "states", "open", "transitions", "parameters", "stage", "cost"),
            *(self.rms, "aic_difference", "bic_difference", *self.held_out, "starts_agreed"),
            *("starts", "not_determined", "without_voltage", "failure"),
        )

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each scheme, by the columns of the table: ranked ones, then failures."""
        discovery, ranked = self.discovery, self.discovery.ranked()
        shown = dict(zip(self.best, self.compared, strict=True))
        known = {k: discovery.criteria(k) for k in discovery.fits}
        least = [min(known[k][column] for k in ranked) for column in (0, 1)]
        rows = []
        for k in [*ranked, *(k for k in sorted(discovery.fits) if k not in ranked)]:
            fit, one = discovery.fits[k], shown.get(k)
            agreement, scheme = fit.agreement or {}, fit.scheme
            good = not fit.failure
            aic, bic = (value - low for value, low in zip(known[k], least, strict=True))
            rows.append(
                {
                    "scheme": scheme.name,
                    "graph": scheme.text,
                    "states": scheme.n,
                    "open": scheme.n_open,
                    "transitions": 2 * len(scheme.edges),
                    "parameters": fit.n_parameters if good else None,
                    "stage": fit.stage,
                    "cost": fit.best if good else None,
                    self.rms: math.sqrt(fit.best) if good else None,
                    "aic_difference": aic if good else None,
                    "bic_difference": bic if good else None,
                    **{name: _held_out(one, unit) for name, unit in self.held_out.items()},
                    "starts_agreed": agreement.get("arrived"),
                    "starts": agreement.get("independent_starts"),
                    "not_determined": None if fit.undetermined is None else len(fit.undetermined),
                    "without_voltage": len(fit.still),
                    "failure": fit.failure or None,
                }
            )
        return rows

    @property
    def near(self) -> list[int]:
        """The places of the schemes that the data do not tell from the best one by BIC."""
        return near_best(self.discovery, self.best)

    @cached_property
    def as_independent(self) -> tuple[float, list[str]]:
        """How many independent samples the correlated ones of the data amount to.

        Returns: that number, and the schemes that are within NEAR_BIC of the best by BIC with it,
            the best first; those that were only scanned are among them.
        """
        discovery, time = self.discovery, 1.0
        if self.best and discovery.tasks.models.plan.problem.known_noise_pA is None:
            time = max(time, min(self.compared, key=lambda c: c.cost).correlation_time)
        n = discovery.n_samples / time
        bic = {k: discovery.criteria(k, n)[1] for k in discovery.ranked()}
        order = sorted(bic, key=bic.__getitem__)
        near = [k for k in order if bic[k] - bic[order[0]] <= NEAR_BIC]
        return n, [discovery.fits[k].scheme.name for k in near]

    def equivalent(self) -> list[tuple[str, str]]:
        """Return the pairs of schemes of which each has the currents of the other."""
        exact = {(f.fitted, f.to) for f in self.follows if f.relative < EQUIVALENT}
        names = [self.discovery.tasks.schemes[k].name for k in self.near]
        return [(a, b) for a, b in combinations(names, 2) if {(a, b), (b, a)} <= exact]

    def conclusions(self) -> list[str]:
        """Return what was found, in sentences."""
        schemes, near = self.discovery.tasks.schemes, self.near
        if not self.best:
            return ["No scheme could be fitted."]
        first, fits = schemes[self.best[0]], self.discovery.fits
        text = f"Of {len(fits):,} schemes {first.name} ({first.text}) is the best by BIC"
        others = [f"{schemes[k].name} ({schemes[k].text})" for k in near[1:]]
        scanned = [k for k in self.discovery.ranked() if k not in self.best]
        if n := len(near_best(self.discovery, [self.best[0], *scanned])) - 1:
            others.append(f"{n:,} more that were not fitted fully")
        found = [
            f"{text}; within {NEAR_BIC:g} of it: {', '.join(others)}."
            if others
            else f"{text}, by more than {NEAR_BIC:g}."
        ]
        if failed := sum(bool(fit.failure) for fit in fits.values()):
            found.append(f"{failed:,} could not be fitted; the table says why.")
        what = "currents" if self.unit == "pA" else "observed numbers"
        for a, b in self.equivalent():
            found.append(f"{a} and {b} have the same {what} under these protocols.")
        same = {frozenset(pair) for pair in self.equivalent()}
        for one in self.follows:
            if frozenset((one.fitted, one.to)) in same:
                continue
            if one.relative < EQUIVALENT:
                found.append(
                    f"{one.fitted} can have the {what} of {one.to}; no fit showed the reverse."
                )
            elif one.ratio < _SEEN:
                found.append(
                    f"{one.fitted} comes so near the {what} of {one.to} that one such data set "
                    f"cannot tell them apart (2 ln L = {one.ratio:.2g} on average)."
                )
        doubtful = [
            schemes[k].name
            for k in near
            if not (self.discovery.fits[k].agreement or {}).get("agree")
        ]
        if doubtful:
            found.append(f"Starts do not agree for {', '.join(doubtful)}: more `starts` may help.")
        found += self._ended()
        found += [f"{text[0].upper()}{text[1:]}." for text in remarks(self.compared)]
        samples, names = self.as_independent
        if samples < self.discovery.n_samples and names != [schemes[k].name for k in near]:
            all_samples = f"{self.discovery.n_samples:,}"
            found.append(
                f"With {samples:,.0f} independent samples in place of {all_samples}, "
                f"BIC would be lowest for {names[0]} and within {NEAR_BIC:g} of that for "
                f"{len(names) - 1:,} more of the schemes, fitted or scanned."
            )
        return found

    def _ended(self) -> list[str]:
        """Return which parameters of the schemes near the best one are at an end of their range."""
        found = []
        for k in self.near:
            one = self.compared[self.best.index(k)]
            space = one.fit.space
            unit = space.to_unit(one.values[:, None])[:, 0]
            at_end = np.minimum(unit, 1 - unit) < _END
            names = [space.parameters[space.free[row]].name for row in np.flatnonzero(at_end)]
            if names:
                found.append(
                    f"{one.label}: {', '.join(names)} at an end of its range, beyond which the "
                    "misfit may be less."
                )
        return found

    def differences(self) -> list[dict[str, Any]]:
        """Return for pairs near the best, by experiment, where their currents differ most.

        Observations have a row each, without time and command, as one number stands for a sweep.
        """
        near = [self.compared[self.best.index(k)] for k in self.near]
        rows = []
        for a, b in combinations(near, 2):
            experiments = a.fit.problem.experiments
            for e, one, other in zip(experiments, a.winner.traces, b.winner.traces, strict=True):
                apart = np.abs(one - other) / e.noise_pA
                names = [f"{e.title}: {o.name}" for o in e.observations] or [e.title]
                parts = apart[:, :, None] if e.observations else [apart]
                for name, part in zip(names, parts, strict=True):
                    if not np.isfinite(part).any():
                        continue
                    sweep, sample = np.unravel_index(int(np.nanargmax(part)), part.shape)
                    at: dict[str, float | None] = {"time_ms": None, "command_mV": None}
                    if not e.observations:
                        command = float(e.protocol.command()[sweep, sample])
                        at = {"time_ms": float(e.protocol.times_ms[sample]), "command_mV": command}
                    rows.append(
                        {
                            "schemes": f"{a.label}, {b.label}",
                            "experiment": name,
                            "rms": float(np.sqrt(np.nanmean(part**2))),
                            "largest": float(part[sweep, sample]),
                            "unit": e.unit,
                            "sweep": int(sweep) + 1,
                            **at,
                        }
                    )
        return rows

    # --- files ------------------------------------------------------------------------------------

    def summary(self, seconds: float, command: Sequence[str] = ()) -> dict[str, Any]:
        """Return all numbers as plain data, with what is needed to repeat the run."""
        tasks = self.discovery.tasks
        schemes, plan = tasks.schemes, tasks.models.plan
        return {
            **titles(plan),
            "file": str(plan.file),
            "schemes": len(schemes),
            "samples": self.discovery.n_samples,
            "unit": self.unit,
            "best": schemes[self.best[0]].name if self.best else None,
            "near": [schemes[k].name for k in self.near],
            "independent_samples": self.as_independent[0],
            "near_of_independent": self.as_independent[1],
            "equivalent": [list(pair) for pair in self.equivalent()],
            "conclusions": self.conclusions(),
            "follows": [vars(one) for one in self.follows],
            "differences": self.differences(),
            "undetermined": {
                schemes[k].name: list(self.discovery.fits[k].undetermined or ()) for k in self.best
            },
            "table": self.rows,
            "settings": vars(tasks.effort),
            "seed": tasks.seed,
            "backend": tasks.backend,
            "seconds": seconds,
            "files": file_hashes(plan),
            "versions": versions(tasks.backend == "cuda"),
            "machine": machine(),
            "command": list(command),
            "finished": datetime.now().astimezone().isoformat(timespec="seconds"),
        }

    def write(self, folder: Path, summary: Mapping[str, Any]) -> None:
        """Write the table, a model file of each scheme that was fitted fully, and the summary.

        Raises InputError: a file cannot be written.
        """
        cells = [[row[name] for name in self.columns] for row in self.rows]
        texts = [["" if cell is None else cell for cell in row] for row in cells]
        write_text(folder / TABLE, csv_rows([self.columns, *texts]))
        models = folder / MODELS
        make_folder(models, follows=False)
        save_data(self.discovery.tasks.models.plan, models)
        for one in self.compared:
            text = saved_text(fit_document(one.fit, one.values, models))
            write_text(models / f"{one.label}.yaml", text)
        write_text(folder / SUMMARY, json_text(summary))


def _held_out(one: ComparedFit | None, unit: str) -> float | None:
    """Return the root mean square of the held-out residuals; None where there are none."""
    if one is None:
        return None
    experiments = one.fit.problem.experiments
    parts = [
        (part.mean_square / e.noise_pA**2, float((e.recording.weight > 0).sum()))
        for e, part in zip(experiments, one.winner.parts, strict=True)
        if part is not None and e.recording is not None and e.weight == 0 and e.unit == unit
    ]
    if not parts:
        return None
    return math.sqrt(sum(m * n for m, n in parts) / sum(n for _, n in parts))


def near_best(discovery: Discovery, best: Sequence[int]) -> list[int]:
    """Return those of some schemes whose BIC is near that of the best one, which comes first."""
    return [k for k in best if discovery.bic(k) - discovery.bic(best[0]) <= NEAR_BIC]


def found_by(discovery: Discovery, best: Sequence[int]) -> Found:
    """Return the result of a discovery whose best schemes were fitted fully.

    Raises InputError: no scheme could be fitted; the message says why of the first.
    """
    tasks = discovery.tasks
    if not best:
        place = next(iter(discovery.faults or discovery.fits))
        fit = discovery.fits[place]
        raise InputError(
            f"none of {len(tasks.schemes):,} schemes could be fitted; {fit.scheme.name}: "
            f"{discovery.faults.get(place, fit.failure)}",
            tasks.models.plan.file,
        )
    names = [tasks.schemes[k].name for k in best]
    plans = [discovery.plan(k).with_values(np.asarray(discovery.fits[k].values)) for k in best]
    compared = [
        scored_fit(plan, name, tasks.backend_of_one, as_is=True)
        for plan, name in zip(plans, names, strict=True)
    ]
    known = tasks.models.plan.problem.known_noise_pA
    noise = discovery.fits[best[0]].cost.min() if known is None else known**2
    follows = []
    for (k, j), rms in discovery.compare(near_best(discovery, best)).items():
        currents = compared[best.index(j)]
        size = math.sqrt(_mean_square(currents))
        ratio = discovery.n_samples * rms**2 / noise if noise > 0 else math.inf
        relative = rms / size if size else math.inf
        follows.append(
            Follows(tasks.schemes[k].name, tasks.schemes[j].name, rms, relative, float(ratio))
        )
    return Found(discovery, tuple(best), tuple(compared), tuple(follows))


def _mean_square(one: ComparedFit) -> float:
    """Return the mean square of the currents of a scheme where samples count.

    It is in pA^2; of observations in squared standard errors.
    """
    parts = [
        trace[e.recording.weight > 0]
        for e, trace in zip(one.fit.problem.experiments, one.winner.traces, strict=True)
        if e.recording is not None and e.weight > 0
    ]
    return float(np.mean(np.concatenate(parts) ** 2))
