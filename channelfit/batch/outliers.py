"""Wells that do not belong to the population from which the others are drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from channelfit.batch.mixed import Level, Mixed

#: Beyond so many typical distances from the median a well is looked at as an outlier; at most this
#: share of the wells; and how often none should be flagged where there is none.
_SUSPECT, _MOST_SUSPECT, _RARE = 4.0, 0.25, 0.01
_NAMED = 5


def outliers_of(
    level: Level, names: Sequence[str], wells: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """Find the wells that are improbable in a population of the others.

    Suspects are far from the median; all of them are left out together, so that they cannot hide
    each other, and each is judged by the population of the rest.

    Arguments:
        names: of the drawn parameters.
        wells: labels of the wells that count.

    Returns: the reason by well, and a note about all of them, if there are any.
    """
    from scipy import special  # loads slowly; most commands do without it

    mixed = level.mixed
    nd, n = mixed.n_drawn, len(mixed.evidence)
    if not nd or n < 5:
        return {}, []
    best, variance = (array[:, :nd] for array in mixed.evidence.best)
    known = variance > 0
    values = np.where(known, best, np.nan)
    if (known.sum(axis=0) < 5).any():
        return {}, []
    middle = np.nanmedian(values, axis=0)
    typical = 1.4826 * np.nanmedian(np.abs(values - middle), axis=0)
    away = np.abs(values - middle) / np.sqrt(typical**2 + np.where(known, variance, 1.0))
    away = np.where(known, away, 0.0).max(axis=1)
    suspects = np.argsort(-away)[: int(_MOST_SUSPECT * n)]
    suspects = suspects[away[suspects] > _SUSPECT]
    if not len(suspects):
        return {}, []
    rest = np.delete(np.arange(n), suspects)
    others = Level.of(
        Mixed(mixed.evidence.take(rest), nd, mixed.correlated, mixed.ridge, mixed.center)
    )
    reach = np.sqrt(np.diag(others.covariance) + np.diag(others.mean_covariance)[:nd] + variance)
    distance = np.where(known, np.abs(values - others.mean[:nd]) / reach, 0.0)
    limit = special.stdtrit(max(len(rest) - 1, 1), 1 - _RARE / (2 * n * nd))
    found = {}
    for i in sorted(suspects):
        j = int(distance[i].argmax())
        if distance[i, j] > limit:
            found[wells[i]] = f"{names[j]} is {distance[i, j]:.1f} spreads from the others"
    if not found:
        return {}, []
    text = "; ".join(f"{well} ({why})" for well, why in list(found.items())[:_NAMED])
    whole = np.where(level.spread > 0, level.spread, 1.0)
    shares = np.where(level.spread > 0, others.spread / whole, 1.0)
    sizes = ", ".join(
        f"{name} {share:.2g} times as large" for name, share in zip(names, shares, strict=True)
    )
    note = (
        f"{len(found)} outliers widen the population: {text}; without the suspects the spreads "
        f"would be: {sizes}"
    )
    return found, [note]
