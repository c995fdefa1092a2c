"""Wells in groups of similar kinetics, by k-means.

A well is a point: its optimum in the coordinates in which it was searched, each parameter counted
in standard deviations over the plate. Where a well hardly determines a parameter, its value means
little; so it is drawn toward the mean of the plate as far as its error is large beside the scatter,
and a well whose parameters are uncertain counts less in the centers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from channelfit.batch.fits import WellFits
from channelfit.batch.mixed import pseudo_inverse
from channelfit.batch.plate import Coordinate, physical
from channelfit.batch.population import left_out, usable
from channelfit.model.channel import Parameter
from channelfit.reading.errors import InputError, printable
from channelfit.reading.texts import in_columns
from channelfit.results.run_state import plain
from channelfit.results.uncertainty.k_means import Clusters, k_means
from channelfit.results.uncertainty.mixtures import MixtureChoice, choose_groups

#: Errors cannot explain more of the scatter over the plate than all but this share.
_LEAST_SCATTER = 0.1
#: k-means divides otherwise than a mixture where more than one well in so many is elsewhere.
_MANY = 10
#: A scatter below this share of a range is none.
_ALL_EQUAL = 1e-9


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of wells, the largest first.

    Attributes:
        names, units: of the parameters by which they were sorted.
        wells: labels of all wells.
        numbers: (n_wells,) 1 to k; 0 for a well that is left out.
        centers: (k, n_names) base units: the mean in the scale of the search.
        scatter: (k, n_names) standard deviations within each group: of values, or of natural
            logarithms where `logarithmic`.
        logarithmic: (n_names,).
        explained: the share of the wells' summed squared distances that lies between groups.
        suggested: the number of groups that mixtures of normal populations choose.
        choice: what was compared for that; see `mixtures.MixtureChoice`.
        way, iterations: of the computation.
        notes: warnings for the reader, in sentences.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    wells: tuple[str, ...]
    numbers: np.ndarray
    centers: np.ndarray
    scatter: np.ndarray
    logarithmic: np.ndarray
    explained: float
    suggested: int
    choice: MixtureChoice
    way: str
    iterations: int
    notes: tuple[str, ...]

    @property
    def sizes(self) -> np.ndarray:
        """The number of wells in each group, (k,)."""
        found: np.ndarray = np.bincount(self.numbers, minlength=len(self.centers) + 1)[1:]
        return found

    def columns(self) -> dict[str, np.ndarray]:
        """Return the column `group` (n_wells,) of the table of wells: "1", "2", .. or empty."""
        texts = [str(k) if k else "" for k in self.numbers.tolist()]
        return {"group": np.array(texts, dtype=object)}

    def summary(self) -> dict[str, Any]:
        """Return the groups as plain data for `summary.json` and the page; null for NaN."""
        kinds = ["log" if log else "linear" for log in self.logarithmic]
        return {
            "rows": [
                {
                    "group": str(k + 1),
                    "wells": int(size),
                    "center": self._named(self.centers[k]),
                    "scatter": self._named(self.scatter[k]),
                }
                for k, size in enumerate(self.sizes)
            ],
            "of": list(self.names),
            "method": self.sentence(),
            "remarks": list(self.notes),
            "units": dict(zip(self.names, self.units, strict=True)),
            "scales": dict(zip(self.names, kinds, strict=True)),
            "left_out": int((self.numbers == 0).sum()),
            "explained": self.explained,
            "suggested": self.suggested,
            "compared": self.choice.sentence(),
            "bic": plain(self.choice.bic.tolist()),
            "bic_of_heavy_tails": plain(self.choice.heavy),
            "bic_of_skew": plain(self.choice.skewed),
            "centers_apart": self.choice.apart,
            "way": self.way,
        }

    def _named(self, values: np.ndarray) -> dict[str, float | None]:
        return dict(zip(self.names, plain(values.tolist()), strict=True))

    def sentence(self) -> str:
        """Return a description of the method, for the methods of a paper."""
        n, k = int((self.numbers > 0).sum()), len(self.centers)
        return (
            f"{n} wells were sorted into {k} group{'s' * (k > 1)} by k-means of "
            f"{', '.join(self.names)}, in standard deviations over the plate and drawn toward its "
            f"mean by their errors; {100 * self.explained:.0f} % of the squared distances lie "
            f"between the groups. {self._compared()}"
        )

    def _compared(self) -> str:
        text = self.choice.sentence()
        return text[0].upper() + text[1:]

    def text(self) -> str:
        """Return the groups for a terminal: a line for each group, then the notes."""
        head = ["group", "wells"]
        head += [
            f"{name} ({unit})" if unit else name
            for name, unit in zip(self.names, self.units, strict=True)
        ]
        rows = [head]
        for k, size in enumerate(self.sizes):
            rows.append([str(k + 1), str(size), *(f"{c:.4g}" for c in self.centers[k])])
        return "\n".join(printable(line) for line in [*in_columns(rows), *self.notes])


def groups(
    fits: WellFits,
    k: int | None = None,
    *,
    parameters: Sequence[Parameter],
    names: Sequence[str] = (),
    wells: Sequence[str] = (),
    seed: int = 0,
) -> Groups:
    """Sort the wells of a plate into groups.

    Arguments:
        fits: of all wells.
        k: the number of groups; None to choose it; see `mixtures`.
        parameters: of the problem, with the ranges and scales in which the wells were searched.
        names: of the parameters that count; all without them.
        wells: labels; numbers from 1 without them.
        seed: of all random numbers.

    Raises: InputError for a name that is no free parameter, for fewer wells than groups, and as
    `k_means` does.
    """
    names = tuple(names) or fits.names
    for name in names:
        if name not in fits.names:
            known = ", ".join(fits.names)
            raise InputError(f'"{name}" is no parameter that was fitted; {known} were')
    used = usable(fits)
    labels = tuple(wells) or tuple(str(w + 1) for w in range(len(used)))
    missing = left_out(fits, labels)
    if int(used.sum()) < (k or 1):
        why = f": {missing}" if missing else ""
        raise InputError(
            f"{k or 1} groups need as many wells, and {int(used.sum())} of {len(used)} count{why}"
        )
    by_name = {p.name: p for p in parameters}
    columns = [Coordinate.of(by_name[name]) for name in names]
    places = [fits.names.index(name) for name in names]
    unit = fits.unit[used][:, places]
    points, trust = _points(unit, fits.information[used], places)
    choice = choose_groups(points, seed)
    weights = trust.mean(axis=1)
    number = choice.k if k is None else k
    found = k_means(points, number, weights, seed=seed)
    one = k_means(points, 1, weights, way="sums", restarts=1).inertia
    centers, scatter = _described(unit, trust, found)
    numbers = np.zeros(len(used), np.int64)
    numbers[used] = found.labels + 1
    return Groups(
        tuple(names),
        tuple(c.unit for c in columns),
        labels,
        numbers,
        physical(centers, columns),
        scatter * np.array([c.width for c in columns]),
        np.array([c.logarithmic for c in columns]),
        1 - found.inertia / one if one > 0 else 0.0,
        choice.k,
        choice,
        found.way,
        found.iterations,
        tuple(_notes(choice, k, found, numbers, labels, missing)),
    )


def _points(
    unit: np.ndarray, information: np.ndarray, places: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the wells as points (n, n_names), and how far to trust each coordinate, 0 .. 1."""
    inverse = pseudo_inverse(information)[:, places][:, :, places]
    variance = np.einsum("wii->wi", inverse)
    known = variance > 0
    points, trust = np.zeros(unit.shape), np.full(unit.shape, 1e-6)
    for j in range(unit.shape[1]):
        mine = known[:, j]
        if mine.sum() < 2:
            continue
        total = float(np.var(unit[mine, j], ddof=1))
        error = float(np.median(variance[mine, j]))
        true = max(total - error, _LEAST_SCATTER * total)
        if true <= _ALL_EQUAL**2:
            continue
        share = np.where(mine, true / (true + np.where(mine, variance[:, j], 1.0)), 1e-6)
        middle = float(share @ unit[:, j] / share.sum())
        points[:, j] = share * (unit[:, j] - middle) / np.sqrt(true)
        trust[:, j] = share
    return points, trust


def _described(
    unit: np.ndarray, trust: np.ndarray, found: Clusters
) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations (k, n_names) of each group's wells, by their trust."""
    shape = len(found.centers), unit.shape[1]
    centers, scatter = np.full(shape, np.nan), np.full(shape, np.nan)
    for k in range(len(centers)):
        mine = found.labels == k
        share = trust[mine] / trust[mine].sum(axis=0)
        centers[k] = (share * unit[mine]).sum(axis=0)
        if mine.sum() > 1:
            scatter[k] = np.sqrt((share * (unit[mine] - centers[k]) ** 2).sum(axis=0))
    return centers, scatter


def _notes(
    choice: MixtureChoice,
    requested: int | None,
    found: Clusters,
    numbers: np.ndarray,
    labels: tuple[str, ...],
    missing: str,
) -> list[str]:
    """Return warnings for the reader; `missing` names the wells that are left out."""
    notes = [missing] if missing else []
    if choice.k == 1 and (requested is None or requested > 1):
        notes.append(choice.sentence())
    elif requested is not None and requested != choice.k:
        notes.append(f"{choice.sentence()}; {requested} were asked for")
    elif choice.labels is not None:
        notes += _divided_otherwise(choice.labels, found.labels)
    for k in np.flatnonzero(found.sizes == 1):
        (well,) = np.flatnonzero(numbers == k + 1)
        notes.append(f"group {k + 1} is one well alone, {labels[well]}: an outlier, not a group")
    return notes


def _divided_otherwise(labels: np.ndarray, found: np.ndarray) -> list[str]:
    """Return a sentence where k-means divides the wells otherwise than the mixture that chose k.

    Arguments:
        labels, found: (n,) of the mixture and of k-means.
    """
    counts = np.zeros((int(labels.max()) + 1, int(found.max()) + 1), int)
    np.add.at(counts, (labels, found), 1)
    other = len(labels) - int(counts.max(axis=0).sum())
    if other * _MANY < len(labels):
        return []
    return [
        f"{other} wells are in another group by k-means than by the mixture that chose the number: "
        "the groups overlap, or k-means divides a wide one"
    ]
