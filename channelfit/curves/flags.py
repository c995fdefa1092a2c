"""The bits of the flags of a fit: failures, doubts and properties of the data."""

from __future__ import annotations

#: A parameter ended at a bound.
AT_BOUND = 1
#: The data do not determine all parameters.
UNDETERMINED = 2
#: The descent did not come to rest.
NOT_CONVERGED = 4
#: Fewer points than free parameters.
TOO_FEW = 8
#: All points are equal.
CONSTANT = 16
#: The curve, or its derivative, is not finite wherever the descent could begin.
NOT_FINITE = 32
#: Counts below zero.
NEGATIVE = 64
#: Some points are not numbers, and were left out.
MISSING = 128
#: Parameters are not in the order that the curve asks for.
DISORDERED = 256
#: The search ended farther from the minimum than noise moves it, which only a swarm does.
UNSETTLED = 512
#: Any of those without a result.
FAILED = NOT_CONVERGED | TOO_FEW | CONSTANT | NOT_FINITE | NEGATIVE
