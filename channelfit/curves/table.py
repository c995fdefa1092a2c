"""The table of fits as CSV, and a summary of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np

from channelfit.curves.batch import FittedSets
from channelfit.curves.curve import Curve
from channelfit.curves.data_files import labels_of
from channelfit.curves.doubts import reasons_of
from channelfit.curves.fitting import CurveProblem, DataSets
from channelfit.curves.profiles import chosen_intervals
from channelfit.reading.csv_tables import cell, csv_rows

#: Values of a piece that are kept for the summary, at most.
_KEPT = 4096


@dataclass(frozen=True, eq=False)
class DrawnSets:
    """Data sets for pictures: the place of the first, and their parameters (n_sets, n_free)."""

    problem: CurveProblem
    first: int
    values: np.ndarray


class FitTable:
    """Writes a row for every data set, and remembers what a summary tells.

    Arguments:
        file: takes the table, UTF-8. grouped: whether rows come out of order and are sorted by
            `finish`. profiles: whether data sets to be checked have profile intervals.

    Attributes:
        counts: data sets by quality. reasons: data sets by reason.
        drawn: all data sets, for pictures.
    """

    def __init__(
        self, file: IO[bytes], curve: Curve, swarm: bool, grouped: bool, profiles: bool = False
    ) -> None:
        self.profiles = profiles
        self._file, self.curve, self.grouped = file, curve, grouped
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.drawn: list[DrawnSets] = []
        self._costs: list[np.ndarray] = []
        self._values: list[np.ndarray] = []
        self._errors: list[np.ndarray] = []
        self._waiting: list[tuple[int, bytes]] = []
        names = [p.name for p in curve.free]
        more = [f"{name}_spread" for name in names] if swarm else []
        errors = [f"{name}_error" for name in names]
        both = [x for pair in zip(names, errors, strict=True) for x in pair]
        more += [f"{name}_{end}" for name in names for end in ("lower", "upper")]
        self.columns = ["set", *both, *more, "cost", "points", "steps", "quality", "reason"]
        self.columns += ["intervals"] if profiles else []
        self._file.write(csv_rows([self.columns]).encode())

    def finish(self) -> None:
        """Write what has waited for the end."""
        self._file.writelines(text for _, text in sorted(self._waiting))

    def add(self, piece: FittedSets) -> list[tuple[str, str]]:
        """Add the rows of a piece. Returns: its data sets that failed, by name with their
        reasons.
        """
        fits, problem = piece.fits, piece.problem
        reasons = reasons_of(problem, fits, piece.first)
        n = fits.values.shape[1]
        both = np.stack([fits.values, fits.errors], axis=2).reshape(-1, 2 * n)
        ends, kinds = chosen_intervals(problem, fits, reasons, self.profiles, piece.first)
        ends = ends.reshape(-1, 2 * n)
        spread = [fits.spread] if fits.spread is not None else []
        parts = [both, *spread, ends, fits.cost[:, None]]
        numbers = np.concatenate(parts, axis=1)
        row = ",".join(["%.10g"] * numbers.shape[1])
        labels = labels_of(problem.data, piece.first, piece.last)
        lines = []
        counted, steps = fits.counted.astype(int).tolist(), fits.steps.astype(int).tolist()
        for k, (values, (quality, reason)) in enumerate(
            zip(numbers.tolist(), reasons, strict=True)
        ):
            text = (row % tuple(values)).replace("nan", "")
            line = f"{cell(labels[k])},{text},{counted[k]},{steps[k]},{quality},{cell(reason)}"
            line += f",{kinds[k]}\n" if self.profiles else "\n"
            lines.append(line.encode())
        if self.grouped:
            assert problem.data.places is not None
            places = problem.data.places[piece.first : piece.last].tolist()
            self._waiting += zip(places, lines, strict=True)
        else:
            self._file.writelines(lines)
        self._remember(piece, reasons)
        return [(labels[k], why) for k, (quality, why) in enumerate(reasons) if quality == "failed"]

    def _remember(self, piece: FittedSets, reasons: list[tuple[str, str]]) -> None:
        quality = np.array([q for q, _ in reasons])
        self.counts.update(Counter(quality.tolist()))
        for _, reason in reasons:
            if reason:
                self.reasons.update(reason.split("; "))
        cost = np.where(quality == "failed", np.nan, piece.problem.misfit(piece.fits))
        self._costs.append(cost)
        self.drawn.append(
            DrawnSets(piece.problem, piece.first, piece.fits.values.astype(np.float32))
        )
        good = np.flatnonzero(quality == "ok")
        good = good[:: max(1, -(-len(good) // _KEPT))]
        self._values.append(piece.fits.values[good])
        self._errors.append(piece.fits.errors[good])

    @property
    def values(self) -> np.ndarray:
        """Return (n, n_free) parameters of data sets whose quality is ok, of some where there are
        many.
        """
        return np.concatenate(self._values)

    @property
    def errors(self) -> np.ndarray:
        """Return (n, n_free) standard errors of the same."""
        return np.concatenate(self._errors)

    def ranked(self, count: int) -> dict[str, list[tuple[DrawnSets, int]]]:
        """Return the worst, the middle and the best fits by their misfit: a piece, and the place
        in it.
        """
        cost = np.concatenate(self._costs)
        starts = np.cumsum([0, *map(len, self._costs)])
        order = np.argsort(-cost, kind="stable")[: int(np.isfinite(cost).sum())]
        half = max(0, (len(order) - count) // 2)
        chosen = {"worst": order, "median": order[half:], "best": order[::-1]}
        found = {}
        for name, places in chosen.items():
            pairs = []
            for at in places[:count].tolist():
                k = int(np.searchsorted(starts, at, "right")) - 1
                pairs.append((self.drawn[k], at - int(starts[k])))
            found[name] = pairs
        return found


class CovarianceFile:
    """Writes the covariances of all data sets, (n_sets, n_free, n_free), as they come.

    Arguments:
        file: takes them, in the form of a .npy file.
        groups: the data sets; of several groups, which come out of order, all wait for `finish`.
    """

    def __init__(self, file: IO[bytes], groups: Sequence[DataSets]) -> None:
        self._file, self.groups = file, groups
        self._waiting: list[np.ndarray] = []

    def finish(self) -> None:
        """Write what has waited for the end."""
        if len(self.groups) > 1:
            places = [group.places for group in self.groups]
            order = np.concatenate([place for place in places if place is not None])
            found = np.concatenate(self._waiting).astype(np.float64)
            every = np.empty_like(found)
            every[order] = found
            np.save(self._file, every)

    def add(self, covariances: np.ndarray) -> None:
        """Add the covariances (n_sets, n_free, n_free) of a piece."""
        if len(self.groups) > 1:
            self._waiting.append(covariances)
            return
        found = covariances.astype(np.float64)
        if not self._file.tell():
            shape = (len(self.groups[0].values), *found.shape[1:])
            head = {"descr": "<f8", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(self._file, head)
        self._file.write(np.ascontiguousarray(found, "<f8").tobytes())
