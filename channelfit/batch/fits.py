"""The fits of many wells, a row each.

`fit_wells` searches all wells together (`search`), then judges each as a single fit is judged
(`results.uncertainty`): standard errors and intervals from the Gauss-Newton Hessian and from the
spectrum of the residuals; bounds, parameters that the data do not determine, descents that
disagree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from channelfit.batch.costs import SharedProtocolCosts, WellCosts
from channelfit.batch.families import CommonMask, shared_protocol_wells
from channelfit.batch.make_scorers import own_masks_scorer, well_scorers
from channelfit.batch.search import (
    OnProgress,
    SearchProgress,
    SearchSettings,
    Solutions,
    ignore_progress,
    search,
)
from channelfit.batch.silence import SILENT, WithoutChannels, is_silent
from channelfit.problem.experiment import Problem, total_weight
from channelfit.reading.errors import InputError
from channelfit.results.uncertainty.assessment import FEW, NOISE_FREE, UNFINISHED
from channelfit.results.uncertainty.estimate import (
    ASSUMED_NOISE,
    Estimate,
    estimate,
    peak_pA,
    undetermined,
)
from channelfit.results.uncertainty.noise_spectrum import (
    Bands,
    NoiseSpectrum,
    are_correlated,
    around,
    bands_of,
    counting,
    slopes,
    spectrum_of,
    weighted,
)
from channelfit.scoring.machine.threads import side_by_side, single_threaded_blas, usable_cores
from channelfit.scoring.scorer import make_scorer
from channelfit.search.objective import Local
from channelfit.search.plan import FitPlan

#: Numbers in the traces that are held at once; a GPU simulates hundreds of wells as fast as one.
_HELD = 1 << 25
#: Samples of a block of residuals in which noise is measured. Filtered noise hardly moves within a
#: short block; a sweep needs several blocks, and half of the samples that count must lie in some.
_BLOCKS, _BLOCKS_OF_A_SWEEP = (64, 32, 16, 8), 8
#: Noise is slow where it widens one error by this factor more than another.
_WIDE = 1.45
#: Wells with masks of their own share a scan if the samples that count in all of them are at least
#: this share of the samples of each.
_IN_COMMON = 0.3
#: The settings by default.
USUAL = SearchSettings()


@dataclass(frozen=True, eq=False)
class WellFits:
    """The fits of n_wells wells. Values are in base units; NaN stands where there is none.

    Attributes:
        names, units: of the n_names free parameters, including those that a search could solve, in
            the order of the fit's parameters.
        values, errors, lower, upper: (n_wells, n_names), with standard errors and both ends of
            the 95 % intervals. A parameter at a bound has neither.
        unit: (n_wells, n_names), the optimum in the unit cube of the plan's space with nothing
            solved: ``replace(plan, solved=()).space``.
        information: (n_wells, n_names, n_names), how fast minus the logarithm of the likelihood
            grows about it: its second derivative by the coordinates of `unit`, the inverse of
            their covariance where no parameter is at a bound.
        at_bound: (n_wells, n_names) int8, -1 or 1 for a parameter that the data push against its
            lower or upper bound, else 0.
        cost, rms, noise: (n_wells,) pA^2, pA and pA: the weighted mean square of fit minus data,
            its root, and the standard deviation of the noise of a sample.
        starts, agreed: (n_wells,) int64, how many starts were refined to their end, and how many
            of them reached the lowest cost.
        quality: (n_wells,) text: "ok", "check" or "failed".
        reason: (n_wells,) text: why it is not ok; several reasons are separated by ";".
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    values: np.ndarray
    errors: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    unit: np.ndarray
    information: np.ndarray
    at_bound: np.ndarray
    cost: np.ndarray
    rms: np.ndarray
    noise: np.ndarray
    starts: np.ndarray
    agreed: np.ndarray
    quality: np.ndarray
    reason: np.ndarray

    def __len__(self) -> int:
        return len(self.cost)

    def take(self, wells: np.ndarray) -> WellFits:
        """Return some of the wells, by index or mask."""
        rows = {f.name: getattr(self, f.name)[wells] for f in fields(self)[2:]}
        return WellFits(self.names, self.units, **rows)

    def put(self, wells: np.ndarray, others: WellFits) -> WellFits:
        """Return the fits with those of some wells, by index, replaced."""
        rows = {f.name: getattr(self, f.name).copy() for f in fields(self)[2:]}
        for name, values in rows.items():
            values[wells] = getattr(others, name)
        return WellFits(self.names, self.units, **rows)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return everything as numerical arrays; texts as UTF-8 bytes, one line a text."""
        return {
            name: _as_bytes(value) if name in _TEXTS else value
            for name, value in vars(self).items()
        }

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> WellFits:
        """Make the fits again from the arrays of `arrays`."""
        found: dict[str, Any] = {
            f.name: _as_texts(arrays[f.name]) if f.name in _TEXTS else np.array(arrays[f.name])
            for f in fields(cls)
        }
        for name in ("names", "units"):
            found[name] = tuple(found[name].tolist())
        return cls(**found)


#: The attributes that hold text.
_TEXTS = ("names", "units", "quality", "reason")


def _as_bytes(texts: tuple[str, ...] | np.ndarray) -> np.ndarray:
    """Return texts, none of which has a line break, as bytes."""
    return np.frombuffer("".join(f"{text}\n" for text in texts).encode(), np.uint8)


def _as_texts(found: np.ndarray) -> np.ndarray:
    """Return the texts of bytes as an array of Python's strings."""
    return np.array(bytes(found).decode().split("\n")[:-1], dtype=object)


def joined(parts: list[WellFits]) -> WellFits:
    """Join the fits of several sets of wells of the same model, one after the other."""
    first = parts[0]
    rows = {
        f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(first)[2:]
    }
    return WellFits(first.names, first.units, **rows)


# --- from recordings to fits ----------------------------------------------------------------------


def fit_wells(
    plan: FitPlan,
    problems: Sequence[Problem],
    settings: SearchSettings = USUAL,
    on_progress: OnProgress = ignore_progress,
) -> WellFits:
    """Fit every recording on its own with the same model, all together.

    A fit depends on the plan, the settings and the data of its well; on other wells only through
    the solutions that wells exchange (`search`), which `SearchSettings.exchange` turns off. A
    recording that cannot be fitted fails alone and takes no part in the search.

    Arguments:
        plan: the parameters with their ranges, scales, priors, bounds on rates, and starting
            point; its own recordings are not used.
        problems: one for each well, with the plan's model, the protocols and the recording. They
            are read one at a time, several times over, so a sequence may load them on demand.
        settings: of the search.
        on_progress: is called now and then with the progress.

    Returns: the fits, in the order of the problems.

    Raises: InputError where there is no recording, for wells whose parameters differ, and for a
    backend that cannot be used.
    """
    if not len(problems):
        raise InputError("there is no recording to fit")
    n_free = replace(plan, solved=()).space.n_free
    reasons = [_unusable(problems[k], n_free) for k in range(len(problems))]
    usable = np.flatnonzero([not reason for reason in reasons])
    fits = blank(plan, reasons)
    if not len(usable):
        return fits
    done = 0
    for own in shared_protocol_wells(Subset(problems, usable)):
        rows = usable[own]
        report = _shifted(on_progress, done, len(problems))
        for places, wells, families_ in _groups(plan, Subset(problems, rows), settings):
            found = search(wells, settings, report)
            for some, family in families_:
                which = rows[places[some]]
                part = Subset(problems, which)
                _fill(fits, which, family, found.take(some), part, settings, report)
        done += len(own)
    return fits


def _groups(
    plan: FitPlan, problems: Sequence[Problem], settings: SearchSettings
) -> Iterator[tuple[np.ndarray, WellCosts, list[tuple[np.ndarray, WellCosts]]]]:
    """Divide shared-protocol wells into groups that are searched together.

    Yields: the numbers of the wells, their costs, and the families among them, each with the
    places of its wells among these numbers.
    """
    parts = [(own, WellCosts(plan, one)) for own, one in well_scorers(problems, settings.backend)]
    if len(parts) > 1:
        masked = CommonMask(problems)
        if masked.share >= _IN_COMMON:
            ((own, common),) = well_scorers(masked, settings.backend)
            joint = own_masks_scorer(problems, settings.backend)
            yield own, SharedProtocolCosts(plan, common, parts, joint), parts
            return
    for own, wells in parts:
        yield own, wells, [(np.arange(len(own)), wells)]


class Subset(Sequence[Problem]):
    """Some of the problems, by number, each read on demand."""

    def __init__(self, problems: Sequence[Problem], which: np.ndarray) -> None:
        self.problems, self.which = problems, which

    def __len__(self) -> int:
        return len(self.which)

    def __getitem__(self, place: Any) -> Any:
        return self.problems[int(self.which[place])]


def _shifted(on_progress: OnProgress, done: int, wells: int) -> OnProgress:
    """Report the progress of a family as progress among all wells."""
    return lambda p: on_progress(SearchProgress(p.stage, done + p.done, wells))


def _unusable(problem: Problem, n_free: int) -> str:
    """Return why a recording cannot be fitted; empty where it can."""
    recordings = [e.recording for e in problem.fitted if e.recording]
    parts = [_counting(one.current_pA, one.weight > 0) for one in recordings]
    data = parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0)])
    if not len(data):
        return "no sample of the recording counts"
    low, high = float(data.min()), float(data.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        bad = int((~np.isfinite(data)).sum())
        return f"{bad} of {len(data)} samples that count are not finite"
    if len(data) <= n_free:
        return f"{len(data)} samples cannot determine {n_free} parameters"
    if low == high:
        return f"every sample of the recording is {low:g} pA"
    return ""


def _counting(current_pA: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the samples that count (n,), not copied where all do."""
    return np.ravel(current_pA) if counts.all() else current_pA[counts]


def blank(plan: FitPlan, reasons: Sequence[str]) -> WellFits:
    """Return fits of wells of which nothing is known yet; those with a reason have failed."""
    space = replace(plan, solved=()).space
    parameters = [space.parameters[place] for place in space.free]
    n, n_names = len(reasons), len(parameters)
    rows = {name: np.full((n, n_names), np.nan) for name in _BY_PARAMETER}
    numbers = {name: np.full(n, np.nan) for name in ("cost", "rms", "noise")}
    return WellFits(
        tuple(p.name for p in parameters),
        tuple(p.unit for p in parameters),
        **rows,
        information=np.zeros((n, n_names, n_names)),
        at_bound=np.zeros((n, n_names), np.int8),
        **numbers,
        starts=np.zeros(n, np.int64),
        agreed=np.zeros(n, np.int64),
        quality=np.array(["failed" if reason else "" for reason in reasons], dtype=object),
        reason=np.array(reasons, dtype=object),
    )


_BY_PARAMETER = ("values", "errors", "lower", "upper", "unit")


def _fill(
    fits: WellFits,
    rows: np.ndarray,
    wells: WellCosts,
    found: Solutions,
    problems: Sequence[Problem],
    settings: SearchSettings,
    on_progress: OnProgress,
) -> None:
    """Judge the solutions of a family, and write them into the rows of its wells."""
    fits.starts[rows], fits.agreed[rows] = found.starts, found.agreed
    fits.quality[rows], fits.reason[rows] = "failed", "no start could be scored"
    good = np.flatnonzero(np.isfinite(found.cost))
    if not len(good):
        return
    free = list(wells.space.free)
    unit = np.ascontiguousarray(found.unit[:, good])
    physical = wells.space.to_physical(unit)
    solved = found.take(good)
    local = Local(solved.cost, np.zeros(len(good), np.int8), solved.gradient, solved.hessian)
    judge = _Judge(wells, problems, settings)

    def write(first: int, place: int, one: _Judged) -> None:
        k = first + place
        row, sure = rows[good[k]], one.estimate
        fits.unit[row], fits.values[row] = unit[:, k], physical[free, k]
        fits.cost[row], fits.rms[row], fits.noise[row] = one.cost, one.cost**0.5, one.noise
        silent = one.is_silent
        if sure is not None:
            fits.errors[row] = sure.physical_errors[free]
            fits.lower[row], fits.upper[row] = sure.interval()
            fits.at_bound[row] = sure.pushed
            if not silent:  # else there is no information on a channel, nor on a population
                fits.information[row] = sure.information
        agreed, starts = int(found.agreed[good[k]]), int(found.starts[good[k]])
        unseen = [SILENT[one.has_leak], *one.misfit()]
        reasons = unseen if silent else one.reasons(agreed, starts)
        fits.quality[row], fits.reason[row] = "check" if reasons else "ok", "; ".join(reasons)

    for first in range(0, len(good), judge.at_once):
        some = slice(first, first + judge.at_once)
        near = Local(*(array[..., some] for array in vars(local).values()))
        judge.all(good[some], unit[:, some], physical[:, some], near, partial(write, first))
        on_progress(SearchProgress("judging", min(first + judge.at_once, len(good)), len(rows)))


@dataclass(frozen=True, eq=False)
class _Judged:
    """The judgment of a fit of one well.

    Attributes:
        cost: pA^2, without priors.
        noise: pA, of a sample of average weight: the scatter of residuals about a straight line
            over short stretches, in the median stretch, since a misfit is large in some stretches
            and not in others.
        estimate: errors and intervals; None where `SearchSettings.intervals` is off.
        least: pA, the least noise that a recording can have; one with less was simulated.
        limit: the multiple of the noise beyond which a misfit is large; 0 for none.
        without: pA^2, the cost without channels.
        has_leak: whether that is the cost of a leak alone.
    """

    cost: float
    noise: float
    estimate: Estimate | None
    least: float
    limit: float
    without: float
    has_leak: bool

    def reasons(self, agreed: int, starts: int) -> list[str]:
        """Return why the fit should be checked; empty where no reason is known.

        Arguments:
            agreed, starts: descents that reached the lowest cost, and all descents.
        """
        found: list[str] = []
        if self.estimate is not None:
            sides = zip(self.estimate.names, self.estimate.pushed, strict=True)
            found += [f"{name} is at its {_SIDES[int(side)]} bound" for name, side in sides if side]
            found += [one.text.replace(";", ",") for one in undetermined(self.estimate)]
            if self.estimate.distance > UNFINISHED:
                found.append(
                    f"the fit ended {self.estimate.distance:.2g} standard errors from the minimum"
                )
            found += self.slow_noise()
        if agreed < 2 <= starts:
            found.append(f"none of {starts - 1} other descents came to the same cost")
        return found + self.misfit()

    def slow_noise(self) -> list[str]:
        """Return a sentence where errors rest on noise so slow that few periods are recorded."""
        sure = self.estimate
        inside = np.ones(1) if sure is None else sure.widened[sure.pushed == 0]
        if sure is None or not inside.size or sure.degrees_of_freedom >= FEW:
            return []
        if inside.max() < _WIDE * inside.min():  # a filter widens all of them alike
            return []
        name = sure.names[int(sure.freedoms.argmin())]
        return [
            f"strongly correlated noise: the error of {name} rests on noise so slow that the "
            f"recording shows it {sure.degrees_of_freedom:.2g} times"
        ]

    def misfit(self) -> list[str]:
        """Return a sentence where the residuals are much larger than the noise."""
        rms = math.sqrt(self.cost)
        if not self.limit or rms <= self.limit * max(self.noise, self.least):
            return []
        return [f"the misfit is large: {rms:.3g} pA, with noise of {self.noise:.3g} pA"]

    @property
    def is_silent(self) -> bool:
        """True if the well shows no channel."""
        sure = self.estimate
        return sure is not None and is_silent(sure, self.cost, self.noise, self.without)


@dataclass(frozen=True, eq=False)
class _Residuals:
    """The residuals of a well, and quantities of them on which the judgment of its fit rests.

    Attributes:
        traces: per experiment (n_sweeps, n_times) pA, the fit.
        residuals: see `noise_spectrum.weighted`.
        noise, without: see `_Judged`. peak: pA, of the recording.
        bands: of the residuals; None where their correlation is not needed.
    """

    problem: Problem
    traces: list[np.ndarray]
    residuals: list[np.ndarray]
    noise: float
    without: float
    peak: float
    bands: Bands | None


class _Judge:
    """The judge of fits, by the rules of `assess` for a single one: noise, correlation, errors.

    Attributes:
        at_once: the number of wells that are best simulated in the same call.
    """

    def __init__(
        self, wells: WellCosts, problems: Sequence[Problem], settings: SearchSettings
    ) -> None:
        self.wells, self.problems = wells, problems
        self.intervals, self.limit = settings.intervals, settings.misfit
        self.scorer = make_scorer(wells.scorer.problem, wells.scorer.backend)
        problem = wells.scorer.problem
        blank = [
            np.zeros((e.protocol.n_sweeps, e.protocol.n_times_max)) for e in problem.experiments
        ]
        self.at_once = max(1, _HELD // max(1, sum(trace.size for trace in blank)))
        self.n_samples = wells.n_samples
        self.blocks = _whole_blocks([row for one in counting(problem) for row in one])
        self.mean_weight = float(wells.scorer.total_weight[0]) / self.n_samples
        self.without = WithoutChannels(problem)

    def all(
        self,
        well: np.ndarray,
        unit: np.ndarray,
        physical: np.ndarray,
        local: Local,
        write: Callable[[int, _Judged], None],
    ) -> None:
        """Judge wells (n,) at points (n_free, n) with parameters (n_parameters, n).

        Arguments:
            local: cost and derivatives at the points.
            write: is called with the place of each well among the n, and its judgment.

        Threads share the work on whole traces. The work on few numbers is done in this thread
        alone, since Python's threads would take turns there, which costs far more than the work.
        """
        traces = self.scorer.simulate(np.ascontiguousarray(physical))
        cost = local.cost - self.wells.penalty(physical)
        found: list[_Residuals | None] = [None] * len(well)

        def compute(first: int, last: int) -> None:
            # the samples of a well side by side
            own = [np.ascontiguousarray(np.moveaxis(t[:, :, first:last], -1, 0)) for t in traces]
            for k in range(first, last):
                of_well = [trace[k - first] for trace in own]
                problem = self.problems[int(well[k])]
                found[k] = self._residuals(problem, float(local.cost[k]), of_well)

        with single_threaded_blas():
            side_by_side(compute, len(well), 1, usable_cores())
            wells = [one for one in found if one]
            places = [k for k, one in enumerate(wells) if one.bands and are_correlated(one.bands)]
            spectra = self._spectra(places, unit, wells)
            for k, one in enumerate(wells):
                here = Local(*(array[..., k : k + 1] for array in vars(local).values()))
                write(k, self._one(unit[:, k], float(cost[k]), here, one, spectra.get(k)))

    def _residuals(self, problem: Problem, cost: float, traces: list[np.ndarray]) -> _Residuals:
        """Compute the residuals of a well."""
        residuals, peak = weighted(problem, traces), peak_pA(problem)
        noise = self._noise([row for one in residuals for row in one], cost)
        is_noisy = self.intervals and not cost < (NOISE_FREE * peak) ** 2
        bands = bands_of(residuals, counting(problem)) if is_noisy else None
        without = self.without.cost(problem)
        return _Residuals(problem, traces, residuals, noise, without, peak, bands)

    def _spectra(
        self, places: list[int], unit: np.ndarray, residuals: Sequence[_Residuals]
    ) -> dict[int, NoiseSpectrum | None]:
        """Return the spectra of wells whose residuals are correlated, by their places."""
        n, found = len(unit), dict[int, NoiseSpectrum | None]()
        step = max(1, self.at_once // n)
        for first in range(0, len(places), step):
            some = places[first : first + step]
            points = np.hstack([around(unit[:, k]) for k in some])
            moved = self.scorer.simulate(np.ascontiguousarray(self.wells.space.to_physical(points)))

            def of_some(
                begin: int,
                end: int,
                some: list[int] = some,
                moved: Sequence[np.ndarray] = moved,
            ) -> None:
                for j in range(begin, end):
                    known, at = residuals[some[j]], unit[:, some[j]]
                    own = [trace[:, :, j * n : (j + 1) * n] for trace in moved]
                    derivatives = slopes(known.problem, known.traces, own, at)
                    counts, weight = counting(known.problem), total_weight(known.problem)
                    found[some[j]] = spectrum_of(known.residuals, counts, derivatives, weight)

            side_by_side(of_some, len(some), 1, usable_cores())
        return found

    def _one(
        self,
        unit: np.ndarray,
        cost: float,
        local: Local,
        known: _Residuals,
        spectrum: NoiseSpectrum | None,
    ) -> _Judged:
        least, sure = NOISE_FREE * known.peak, None
        if self.intervals:
            # the rules of `assess`: data without noise are judged as if they had some
            assumed = ASSUMED_NOISE * known.peak if local.cost[0] < least**2 else None
            sure = estimate(self.wells, unit, self.n_samples, spectrum, assumed, local)
        alone = known.without, self.without.has_leak
        return _Judged(cost, known.noise, sure, least, self.limit, *alone)

    def _noise(self, rows: list[np.ndarray], cost: float) -> float:
        """Return the scatter of residuals about a line in the median block, pA; see `_Judged`."""
        size = self.blocks[0].shape[1]
        parts = np.concatenate([row[own] for row, own in zip(rows, self.blocks, strict=True)])
        if not len(parts):
            return math.sqrt(cost)
        line = np.linspace(-1, 1, size)
        parts -= parts.mean(axis=1, keepdims=True)
        parts -= np.outer(parts @ line / (line @ line), line)
        free = size - 2
        # the median of chi square with so many degrees of freedom (Wilson and Hilferty 1931)
        middle = free * (1 - 2 / (9 * free)) ** 3
        return math.sqrt(float(np.median((parts**2).sum(axis=1))) / middle / self.mean_weight)


_SIDES = {-1: "lower", 1: "upper"}


def _whole_blocks(masks: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return for each sweep the samples (n_blocks, size) of blocks in which all samples count."""
    counting = sum(int(np.count_nonzero(mask)) for mask in masks)
    longest = max(map(len, masks)) // _BLOCKS_OF_A_SWEEP
    for size in (size for size in _BLOCKS if size <= max(longest, _BLOCKS[-1])):
        found = []
        for mask in masks:
            places = np.arange(len(mask) // size * size).reshape(-1, size)
            found.append(places[(mask[places] > 0).all(axis=1)])
        if 2 * size * sum(map(len, found)) >= counting:
            break
    return found
