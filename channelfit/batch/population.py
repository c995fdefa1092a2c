"""A plate as a population of cells: its mean, its spread, and the shrunken estimate of each cell.

Every well was fitted on its own. Here a model with two levels describes all wells: *drawn*
parameters differ from cell to cell and are normally distributed, *shared* ones are the same in all
cells, and the others (conductance, leak, offsets) are each cell's own, with no assumption about
them. The normal distribution is that of the value, or of the logarithm where the scale of the
parameter is "log". Ranges do not cut this distribution off.

By default each well enters by its optimum and the information matrix there (`mixed`), as in a
meta-analysis. That is right where the cost of a well is a parabola as far as the population
reaches. With `relinearize` every well is linearized again at its shrunken estimate, until nothing
moves (Lindstrom and Bates 1990, Biometrics 46:673); then a parabola is needed there alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from channelfit.batch.fits import WellFits
from channelfit.batch.mixed import TWO_SIDED, Array, Level
from channelfit.batch.outliers import outliers_of
from channelfit.batch.plate import Coordinate, Plate, physical
from channelfit.batch.relinearized import (
    OnRound,
    Relinearize,
    conditional,
    ignore_round,
    relinearized,
)
from channelfit.model.channel import Parameter
from channelfit.problem.experiment import Problem
from channelfit.reading.errors import InputError, printable
from channelfit.reading.texts import in_columns
from channelfit.results.run_state import plain

#: A well is shrunken too far for a parabola where it moves by more than so many standard errors.
_FAR = 3.0
_NAMED = 5
#: Why a well does not count, for one well and for several.
_NO_FIT = "has no fit", "have no fit"
_NO_CURRENT = "shows no current", "show no current"
_NO_EVIDENCE = "says nothing of its parameters", "say nothing of their parameters"
#: The words in the reason of a well that the model does not describe.
_MISFIT = "the misfit is large"


@dataclass(frozen=True, eq=False)
class Population:
    """The distribution of the parameters of a plate's wells.

    Arrays run over `names`, those of spreads over the drawn ones, which come first. A spread is the
    standard deviation of the parameter in its base unit, or of its natural logarithm where
    `logarithmic`; then the mean is that of the logarithm as well, so that `mean` is the median.

    Attributes:
        names, units, logarithmic: of the drawn, then of the shared parameters.
        n_drawn: the number of drawn ones.
        mean, lower, upper: base units, with 95 % intervals; NaN where nothing is known.
        spread, spread_lower, spread_upper: (n_drawn,), with 95 % intervals; a lower end of 0 means
            that the cells may be all alike, an upper end of inf that nothing is known.
        covariance, correlation: (n_drawn, n_drawn), of values or logarithms. Correlations are NaN
            where there are too few wells for them, or no spread.
        correlation_lower, correlation_upper: their 95 % intervals.
        wells: the labels of all wells.
        used: (n_wells,) bool, whether a well counts.
        cell_names: of the columns of `cells`: drawn, shared, and the cells' own parameters.
        cells: (n_wells, n_cell_names) base units, each cell's best values given the population; NaN
            for a well that is left out.
        cells_lower, cells_upper: (n_wells, n_drawn), 95 % intervals of the drawn ones.
        outliers: the wells that do not belong to this population, each with the reason.
        method: "quadratic" or "relinearized".
        iterations: of the latter.
        notes: warnings for the reader, in sentences.
        doubtful: wells for which an optimum and the information there do not suffice, because their
            shrunken estimates are far from it, or a parameter is at a bound; empty after
            relinearization.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    logarithmic: np.ndarray
    n_drawn: int
    mean: Array
    lower: Array
    upper: Array
    spread: Array
    spread_lower: Array
    spread_upper: Array
    covariance: Array
    correlation: Array
    correlation_lower: Array
    correlation_upper: Array
    wells: tuple[str, ...]
    used: np.ndarray
    cell_names: tuple[str, ...]
    cells: Array
    cells_lower: Array
    cells_upper: Array
    outliers: Mapping[str, str]
    method: str
    iterations: int
    notes: tuple[str, ...]
    doubtful: tuple[str, ...]

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each parameter: name, kind, scale, unit, mean and spread, intervals."""
        rows = []
        for k, name in enumerate(self.names):
            drawn = k < self.n_drawn
            row = {
                "name": name,
                "kind": "drawn" if drawn else "shared",
                "scale": "log" if self.logarithmic[k] else "linear",
                "unit": self.units[k],
                "mean": float(self.mean[k]),
                "mean_lower": float(self.lower[k]),
                "mean_upper": float(self.upper[k]),
            }
            for key in ("spread", "spread_lower", "spread_upper"):
                row[key] = float(getattr(self, key)[k]) if drawn else 0.0
            rows.append(row)
        return rows

    def columns(self) -> dict[str, Array]:
        """Return columns (n_wells,) for the table of wells: `NAME_shrunken` with its interval."""
        found = {}
        for k, name in enumerate(self.names[: self.n_drawn]):
            found[f"{name}_shrunken"] = self.cells[:, k]
            found[f"{name}_shrunken_lower"] = self.cells_lower[:, k]
            found[f"{name}_shrunken_upper"] = self.cells_upper[:, k]
        return found

    def summary(self) -> dict[str, Any]:
        """Return the population as plain data for `summary.json` and the page; null for NaN."""
        drawn = self.names[: self.n_drawn]
        return {
            "rows": [plain(row) for row in self.table()],
            "method": self.sentence(),
            "remarks": list(self.notes),
            "approximation": self.method,
            "iterations": self.iterations,
            "wells": len(self.wells),
            "used": int(self.used.sum()),
            "left_out": [w for w, used in zip(self.wells, self.used, strict=True) if not used],
            "drawn": list(drawn),
            "covariance": plain(self.covariance.tolist()),
            "correlation": plain(self.correlation.tolist()),
            "correlation_lower": plain(self.correlation_lower.tolist()),
            "correlation_upper": plain(self.correlation_upper.tolist()),
            "outliers": dict(self.outliers),
        }

    def sentence(self) -> str:
        """Return a description of the method, for the methods of a paper."""
        n, drawn, shared = (
            int(self.used.sum()),
            self.names[: self.n_drawn],
            self.names[self.n_drawn :],
        )
        parts = []
        if drawn:
            parts.append(f"{', '.join(drawn)} as normally distributed between cells")
        if shared:
            parts.append(f"{', '.join(shared)} as the same in all cells")
        way = (
            "the optimum and the information matrix of every well's own fit"
            if self.method == "quadratic"
            else "every well linearized at its estimate given the population, until nothing moved"
        )
        return (
            f"A two-level model of {n} wells took {' and '.join(parts)}, in the scale of the "
            f"search, and was fitted by restricted maximum likelihood from {way}"
        )

    def text(self) -> str:
        """Return the population for a terminal: a line for each parameter, then the notes."""
        lines = [("", "mean", "95 % interval", "", "spread", "95 % interval")]
        for row in self.table():
            factor = row["scale"] == "log"
            spreads = [row[key] for key in ("spread", "spread_lower", "spread_upper")]
            if factor:
                spreads = [math.exp(min(s, 700.0)) if s < math.inf else s for s in spreads]
            sign = "×÷ " if factor else "± "
            size, low, high = (f"{s:.4g}" for s in spreads)
            cells = (sign + size, f"{low} .. {high}") if row["kind"] == "drawn" else ("", "shared")
            between = f"{row['mean_lower']:.5g} .. {row['mean_upper']:.5g}"
            lines.append((row["name"], f"{row['mean']:.5g}", between, row["unit"], *cells))
        head = f"population of {int(self.used.sum())} wells ({self.method})"
        text = "\n".join([head, *map(str.rstrip, in_columns(lines, str.ljust)), *self.notes])
        return "\n".join(printable(line) for line in text.split("\n"))


def population(
    fits: WellFits,
    drawn: Sequence[str],
    shared: Sequence[str] = (),
    relinearize: Relinearize | None = None,
    *,
    parameters: Sequence[Parameter],
    wells: Sequence[str] = (),
    always: bool = True,
    on_round: OnRound = ignore_round,
) -> Population:
    """Fit the population from which the cells of a plate are drawn.

    Arguments:
        fits: of all wells.
        drawn: names of parameters that differ from cell to cell and are normally distributed.
        shared: names of parameters that all cells have in common.
        relinearize: linearizes every well that counts (see `usable`) anew, at points in the
            coordinates of `WellFits.unit`; without it the optimum and information of `fits` serve.
        parameters: of the problem, with the ranges and scales in which the wells were searched.
        wells: labels; numbers from 1 without them.
        always: whether to relinearize in any case, or only where an optimum and the information
            there do not suffice: see `Population.doubtful`.
        on_round: is called with every linearization of all wells, see `relinearized`.

    Raises: InputError for a name that is no free parameter or is given twice, for no name, and when
    no well can be used.
    """
    plate = _plate(fits, list(drawn), list(shared), parameters, tuple(wells))
    if relinearize is not None and always:
        return _described(plate, *relinearized(plate, relinearize, on_round))
    # the optimum gives no information on the cost beyond a bound
    closed = plate.at_bound[:, :, None] | plate.at_bound[:, None, :]
    information = np.where(closed, 0.0, plate.information)
    weighted = np.einsum("wij,wj->wi", information, plate.unit)
    level = Level.of(plate.mixed(weighted, information))
    before = len(plate.notes)
    _check_reach(plate, level)
    _check_bounds(plate)
    doubts = plate.notes[before:]
    if relinearize is not None and plate.doubtful:
        try:
            found = relinearized(plate, relinearize, on_round)
        except InputError as error:
            plate.notes.append(f"the wells could not be linearized anew: {error}")
        else:
            plate.notes = [note for note in plate.notes if note not in doubts]
            plate.doubtful = []
            return _described(plate, *found)
    return _described(plate, level, plate.unit, weighted, information, 0)


def kinetic_names(problem: Problem) -> tuple[str, ...]:
    """Return the free parameters on which the rates of the channels depend.

    Conductances, leaks, offsets and reversal potentials are not among them: they scale the current
    and do not change its time course.
    """
    model = problem.model
    rates = [t.rate for chain in model.chains for t in chain.transitions]
    direct = {symbol.name for rate in rates for symbol in rate.free_symbols}
    names = set().union(*(model.names_behind(name) for name in direct))
    return tuple(p.name for p in problem.parameters if p.name in names and not p.fixed)


def usable(fits: WellFits) -> np.ndarray:
    """Return the wells (n_wells,) that count: their fits did not fail and have an information."""
    finite = np.isfinite(fits.unit).all(axis=1) & np.isfinite(fits.information).all(axis=(1, 2))
    finite &= (fits.information != 0).any(axis=(1, 2))
    found: np.ndarray = finite & (np.asarray(fits.quality, dtype=object) != "failed")
    return found


def left_out(fits: WellFits, wells: Sequence[str]) -> str:
    """Return a sentence on the wells that do not count, and why; empty where all count."""
    by_reason: dict[tuple[str, str], list[str]] = {_NO_FIT: [], _NO_CURRENT: [], _NO_EVIDENCE: []}
    out = np.flatnonzero(~usable(fits)).tolist()
    for k in out:
        has_fit = fits.quality[k] != "failed" and np.isfinite(fits.unit[k]).all()
        silent = _NO_CURRENT if "no current" in str(fits.reason[k]) else _NO_EVIDENCE
        by_reason[silent if has_fit else _NO_FIT].append(wells[k])
    parts = [
        f"{len(those)} {one if len(those) == 1 else several} ({_listed(those)})"
        for (one, several), those in by_reason.items()
        if those
    ]
    return f"{len(out)} of {len(wells)} wells are left out: {', '.join(parts)}" if out else ""


def _plate(
    fits: WellFits,
    drawn: list[str],
    shared: list[str],
    parameters: Sequence[Parameter],
    wells: tuple[str, ...],
) -> Plate:
    """Select and check the wells that count. Raises: as `population`."""
    by_name = {p.name: p for p in parameters}
    known = list(fits.names)
    columns = [Coordinate.of(by_name[name]) for name in known]
    both = drawn + shared
    if not both:
        raise InputError("a population needs the name of at least one parameter")
    for name in both:
        if name not in known:
            raise InputError(f'"{name}" is no parameter that was fitted; {", ".join(known)} were')
        if both.count(name) > 1:
            raise InputError(f'"{name}" is named twice; a parameter is drawn or shared, once')
    wells = wells or tuple(str(k + 1) for k in range(len(fits.unit)))
    used = usable(fits)
    if not used.any():
        raise InputError(f"there is no population: {left_out(fits, wells)}")
    places = [known.index(name) for name in both]
    information, at_bound = fits.information[used], np.asarray(fits.at_bound)[used] != 0
    plate = Plate(columns, places, len(drawn), used, wells, fits.unit[used], information, at_bound)
    priors = [name for name in both if by_name[name].prior]
    if priors:
        plate.notes.append(
            f"the prior of {', '.join(priors)} counted in the fit of every well, and so counts "
            f"{int(used.sum())} times in the population; leave it out of the fit"
        )
    if missing := left_out(fits, wells):
        plate.notes.append(missing)
    _note_misfits(plate, fits)
    _note_too_few(plate)
    return plate


def _note_misfits(plate: Plate, fits: WellFits) -> None:
    """Note wells that count although the model does not describe them."""
    poor = [k for k in np.flatnonzero(plate.used).tolist() if _MISFIT in str(fits.reason[k])]
    if poor:
        plate.notes.append(
            f"{len(poor)} of the {int(plate.used.sum())} wells that count have a large misfit "
            f"({_listed([plate.wells[k] for k in poor])}): what the model lacks moves their "
            "values, which can widen the spread; fit the others alone to see how much"
        )


def _note_too_few(plate: Plate) -> None:
    """Note the quantities that so few wells cannot determine."""
    n = len(plate.unit)
    if plate.n_drawn and n < 2:
        plate.notes.append("one well says nothing of how wells differ: no spread, no intervals")
    elif plate.n_drawn > 1 and not plate.can_correlate:
        plate.notes.append(
            f"{n} wells are too few for the correlations of {plate.n_drawn} parameters, which are "
            "taken as independent of each other"
        )


def _check_bounds(plate: Plate) -> None:
    """Note parameters that are at a bound in some wells."""
    for k in plate.places:
        labels = plate.labels(plate.at_bound[:, k])
        if labels:
            plate.doubtful += [well for well in labels if well not in plate.doubtful]
            plate.notes.append(
                f"{plate.columns[k].name} is at a bound of its range in {len(labels)} wells, which "
                "say nothing of it here; mean and spread are biased by what they would have said: "
                "widen the range"
            )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


# --- where a parabola may not do -----------------------------------------------------------------


def _check_reach(plate: Plate, level: Level) -> None:
    """Note wells that are shrunken so far that a parabola about their optimum is doubtful."""
    evidence = level.mixed.evidence
    values, _ = level.shrunken()
    moved = np.hstack([values, np.repeat(level.mean[None, plate.n_drawn :], len(values), axis=0)])
    rest = evidence.seen - np.einsum("wri,wi->wr", evidence.root, moved)
    far = np.flatnonzero((rest**2).sum(axis=1) > _FAR**2 + 3 * evidence.root.shape[2])
    if len(far):
        labels = plate.labels(far)
        plate.doubtful += labels
        plate.notes.append(
            f"{len(far)} wells are far from what the population says of them, where their cost may "
            f"be no parabola any more: {_listed(labels)}; linearize the wells anew"
        )


# --- results -------------------------------------------------------------------------------------


def _described(
    plate: Plate,
    level: Level,
    unit: Array,
    weighted: Array,
    information: Array,
    iterations: int,
) -> Population:
    """Return the population in physical units.

    Arguments:
        unit, weighted, information: of the wells, at the points where they were linearized.
        iterations: of `relinearized`; 0 without it.
    """
    nd, named = plate.n_drawn, [plate.columns[k] for k in plate.places]
    lower, upper = level.mean_interval()
    spread, (least, most) = level.spread, level.spread_interval()
    if nd and len(level.mixed.evidence) < 2:
        lower[:nd] = upper[:nd] = np.nan
        spread, least = np.full(nd, np.nan), np.zeros(nd)
    _note_undetermined(plate, level, least)
    width = np.array([c.width for c in named])[:nd]
    low, high = level.correlation_interval()
    cells_lower, cells_upper = _ends_of_cells(plate, level)
    outliers, note = outliers_of(level, [c.name for c in plate.drawn], plate.labels())
    order = plate.places + [k for k in range(len(plate.columns)) if k not in plate.places]
    ordered = [plate.columns[k] for k in order]
    best = conditional(plate, level, weighted, information, unit)[:, order]
    return Population(
        names=tuple(c.name for c in named),
        units=tuple(c.unit for c in named),
        logarithmic=np.array([c.logarithmic for c in named]),
        n_drawn=nd,
        mean=physical(level.mean, named),
        lower=physical(lower, named),
        upper=physical(upper, named),
        spread=spread * width,
        spread_lower=least * width,
        spread_upper=most * width,
        covariance=level.covariance * np.outer(width, width),
        correlation=level.correlation,
        correlation_lower=low,
        correlation_upper=high,
        wells=plate.wells,
        used=plate.used,
        cell_names=tuple(c.name for c in ordered),
        cells=plate.of_all_wells(physical(best, ordered)),
        cells_lower=cells_lower,
        cells_upper=cells_upper,
        outliers=outliers,
        method="relinearized" if iterations else "quadratic",
        iterations=iterations,
        notes=tuple(plate.notes + note),
        doubtful=tuple(plate.doubtful),
    )


def _note_undetermined(plate: Plate, level: Level, least: Array) -> None:
    """Note parameters that all wells together do not determine, or that may not differ.

    Arguments:
        least: (n_drawn,), where the intervals of the spreads begin.
    """
    open_ = plate.undetermined(level.mixed) if level.mixed.ridge.any() else []
    if open_:
        plate.notes.append(
            f"the wells together do not determine {_listed(open_)}; their means are held near the "
            "middle of their ranges"
        )
    alike = [c.name for c, end in zip(plate.drawn, least, strict=True) if not end > 0]
    if alike and len(level.mixed.evidence) > 1:
        plate.notes.append(f"the wells may be all alike in {', '.join(alike)}")


def _ends_of_cells(plate: Plate, level: Level) -> tuple[Array, Array]:
    """Return both ends (n_wells, n_drawn) of the wells' 95 % intervals given the population."""
    values, covariance = level.shrunken()
    reach = TWO_SIDED * np.sqrt(np.einsum("wii->wi", covariance))
    low, high = (physical(end, plate.drawn) for end in (values - reach, values + reach))
    return plate.of_all_wells(low), plate.of_all_wells(high)
