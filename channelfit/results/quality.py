"""Measures of how well a fit follows a recording, which a long baseline cannot flatter.

The root mean square over all samples, as a share of the peak, is small for any fit when most
samples are baseline. So three figures stand together:

RMS                 ``sqrt(sum w (I - d)^2 / sum w)`` of fit I and recording d, pA
variance explained  ``1 - sum w (I - d)^2 / sum w (d - m)^2``, m the weighted mean of the recording
                    (of its own experiment, where there are several): 1 for a perfect fit, 0 for one
                    no better than a straight line through the mean, below 0 for a worse one
error of the peaks  how far the largest current of a sweep is off, root mean square over the sweeps

Only samples of a weight above 0 count in any of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from channelfit.reading.units import STANDARD_ERRORS

#: The figures of a fit in ``summary.json``, attributes of `Quality`.
FIGURES = (
    *("rms_pA", "rms_relative_to_peak", "peak_pA", "variance_explained", "peak_error_pA"),
    "peak_error_relative",
)
#: What stands behind the name of a number in a table or in JSON, by its unit.
SUFFIXES = {"pA": "pA", STANDARD_ERRORS: "in_errors"}
#: Data that vary by less than this share of their peak, which is rounding, are constant.
_CONSTANT = 1e-12


@dataclass(frozen=True)
class Quality:
    """The sums from which the figures of one experiment, or of several, are computed.

    Attributes:
        weight: of all samples that count.
        squares: weighted squares of fit - data, pA^2.
        spread: weighted squares of the data about their mean, pA^2; 0 for constant data.
        peak_pA: the largest size of the data.
        peaks: the weight of the sweeps in which any sample counts.
        peak_squares: weighted squares of the errors of the peaks of these sweeps, pA^2.
    """

    weight: float = 0.0
    squares: float = 0.0
    spread: float = 0.0
    peak_pA: float = 0.0
    peaks: float = 0.0
    peak_squares: float = 0.0

    @property
    def mean_square(self) -> float:
        """Weighted mean square of fit - data, pA^2, the cost; NaN where nothing counts."""
        return self.squares / self.weight if self.weight > 0 else math.nan

    @property
    def rms_pA(self) -> float:
        """Root mean square of fit - data, pA; NaN where nothing counts."""
        return math.sqrt(self.mean_square)

    @property
    def rms_relative_to_peak(self) -> float | None:
        """Root mean square of fit - data as a share of the data's peak; None where that is 0."""
        return self.rms_pA / self.peak_pA if self.peak_pA > 0 else None

    @property
    def variance_explained(self) -> float | None:
        """The share of the data's variance that the fit accounts for.

        It is 1 at most, and negative for a fit worse than the mean of the data. None for constant
        data, which have no variance.
        """
        return 1 - self.squares / self.spread if self.spread > 0 else None

    @property
    def peak_error_pA(self) -> float:
        """Root mean square, over the sweeps, of the errors of the peaks; NaN where nothing counts.

        The peak of a sweep is its largest current in size, and that of the fit the largest in the
        same direction, at whatever time. The largest of many noisy samples is larger than the
        current itself: where a sweep holds nothing but noise, its "peak" is about three of its
        standard deviations.
        """
        return math.sqrt(self.peak_squares / self.peaks) if self.peaks > 0 else math.nan

    @property
    def peak_error_relative(self) -> float | None:
        """`peak_error_pA` as a share of the data's largest peak; None where that is 0."""
        return self.peak_error_pA / self.peak_pA if self.peak_pA > 0 else None

    def as_plain(self) -> dict[str, Any]:
        """Return the figures by the names that they have in ``summary.json``."""
        return {name: getattr(self, name) for name in FIGURES}


def quality(result: np.ndarray, data: np.ndarray, weight: np.ndarray | None = None) -> Quality:
    """Measure how well a fit follows the recording of one experiment.

    Arguments:
        result, data: (n_sweeps, n_times) pA. Where the data are NaN, nothing counts; where the fit
            is and the data count, every figure that rests on the sample is NaN.
        weight: the same shape; None for 1 everywhere.
    """
    weight = np.ones_like(data) if weight is None else weight
    use = (weight > 0) & np.isfinite(data)
    if not use.any():
        return Quality()
    w, d = weight[use], data[use]
    peak = float(np.abs(d).max())
    about = d - np.average(d, weights=w)
    varies = float(np.abs(about).max()) > _CONSTANT * peak
    errors = [
        _peak_error(row[counts], measured[counts])
        for row, measured, counts in zip(result, data, use, strict=True)
        if counts.any()
    ]
    return Quality(
        weight=float(w.sum()),
        squares=float(np.sum(w * (result[use] - d) ** 2)),
        spread=float(np.sum(w * about**2)) if varies else 0.0,
        peak_pA=peak,
        peaks=float(len(errors)),
        peak_squares=float(np.sum(np.square(errors))),
    )


def _peak_error(result: np.ndarray, data: np.ndarray) -> float:
    """Return the fit's peak minus the data's, in the direction of the data's; of one sweep (n,)."""
    largest = float(data[np.argmax(np.abs(data))])
    if largest == 0:
        return float(np.abs(result).max())
    return float((math.copysign(1, largest) * result).max()) - abs(largest)


def pooled(parts: Iterable[tuple[Quality, float]]) -> Quality:
    """Join several experiments into one.

    Arguments:
        parts: each experiment with its weight; those of weight 0 do not count.
    """
    counted = [(part, weight) for part, weight in parts if weight > 0]

    def total(name: str) -> float:
        return float(sum(weight * getattr(part, name) for part, weight in counted))

    return Quality(
        weight=total("weight"),
        squares=total("squares"),
        spread=total("spread"),
        peak_pA=max((part.peak_pA for part, _ in counted), default=0.0),
        peaks=total("peaks"),
        peak_squares=total("peak_squares"),
    )


def explained(share: float) -> str:
    """Format a share of the variance in percent, with as many nines as it takes to see how much is
    left.

    For example 97.4 %, or 99.9986 %.
    """
    left = 1 - share
    if 0 < left < 1e-8:
        return "over 99.999999 %"
    digits = min(max(1 - math.floor(math.log10(100 * left)), 0), 7) if 0 < left < 1 else 0
    return f"{100 * share:.{digits}f} %" if share > -10 else f"{100 * share:.2g} %"


#: The exit code of a command that has written its results, of which too few are good.
TOO_FEW = 3


def too_few(counts: Mapping[str, int], least: int | None, what: str) -> str:
    """Return the reason why too few of many fits are good; an empty text where enough are.

    Arguments:
        counts: how many fits are ok, check and failed.
        least: how many have to be ok; None where it suffices that one has not failed.
        what: their name in the sentence, such as "wells".
    """
    total, good = sum(counts.values()), counts.get("ok", 0)
    if least is not None and good < least:
        return f"{good:,} of {total:,} {what} are ok, fewer than --min-ok {least:,}"
    if least is None and total and counts.get("failed", 0) == total:
        return f"all {total:,} {what} failed"
    return ""
