"""The saved fits of a batch, read as strictly as a user's file."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from channelfit.batch.fits import WellFits
from channelfit.reading.errors import InputError
from channelfit.tasks.records import DAMAGED
from channelfit.tasks.result_store import expect

_QUALITIES = {"ok", "check", "failed"}
#: How far the root of a saved cost may be from the saved root.
_ROUNDING = 1e-6


def checked_fits(
    arrays: Mapping[str, np.ndarray], n: int, names: tuple[str, ...] | None = None
) -> WellFits:
    """Return the fits in the arrays of `WellFits.arrays`, checked.

    Arguments:
        n: of how many wells. names: of the parameters; None where they are not known.

    Raises:
        InputError: they are not whole, of other wells or parameters, or disagree with themselves.
    """
    found = dict(arrays)
    expect(found, dict.fromkeys(("names", "units", "quality", "reason"), ("u", (None,))))
    numbers = ("values", "errors", "lower", "upper", "unit")
    p = None if names is None else len(names)
    expect(found, {"values": ("f", (n, p))})
    p = found["values"].shape[1]
    expect(found, dict.fromkeys(numbers, ("f", (n, p))))
    expect(found, {"information": ("f", (n, p, p)), "at_bound": ("i", (n, p))})
    expect(found, dict.fromkeys(("cost", "rms", "noise"), ("f", (n,))))
    expect(found, dict.fromkeys(("starts", "agreed"), ("i", (n,))))
    try:
        made = WellFits.of(found)
    except (KeyError, ValueError):  # no text
        raise InputError(DAMAGED, None, "names") from None
    if len(made.names) != p or len(made.units) != p or made.names != (names or made.names):
        raise InputError(DAMAGED, None, "names")
    if len(made.quality) != n or len(made.reason) != n or not set(made.quality) <= _QUALITIES:
        raise InputError(DAMAGED, None, "quality")
    with np.errstate(invalid="ignore"):
        same = np.isclose(made.rms**2, made.cost, rtol=_ROUNDING, atol=0.0, equal_nan=True)
    if not same.all():
        raise InputError(DAMAGED, None, "cost")
    return made
