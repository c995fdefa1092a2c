"""How sure a fit is: standard errors, profiles, families of solutions, posteriors, comparisons."""

from channelfit.uncertainty.assessment import Assessment, assess
from channelfit.uncertainty.curvature import (
    Combination,
    Estimate,
    correlation_time,
    count_samples,
    estimate,
    peak_pA,
    undetermined,
)

__all__ = [
    "Assessment",
    "Combination",
    "Estimate",
    "assess",
    "correlation_time",
    "count_samples",
    "estimate",
    "peak_pA",
    "undetermined",
]
