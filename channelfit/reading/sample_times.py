"""Times of samples in a table: the column that looks like them, and advice about faulty ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

#: By this share of the usual interval times may stray from even.
_SLACK = 0.1
#: Fewer values than these are not taken for times.
_FEWEST = 10


def look_like_times(values: np.ndarray) -> bool:
    """Return whether values (n,) rise evenly, as times do and currents do not."""
    if values.ndim != 1 or len(values) < _FEWEST or not np.isfinite(values).all():
        return False
    usual = (values[-1] - values[0]) / (len(values) - 1)
    even = values[0] + usual * np.arange(len(values))
    return bool(usual > 0 and np.abs(values - even).max() <= _SLACK * usual)


def hint_at_times(table: Mapping[str, np.ndarray], name: str) -> str:
    """Return a hint at another column that looks like times; empty where there is none."""
    others = [other for other, values in table.items() if other != name and look_like_times(values)]
    return f'; column "{others[0]}" rises evenly: is that the time?' if others else ""


def advice_on_times(times_ms: np.ndarray, k: int) -> str:
    """Return advice on times (n,) ms whose interval from sample k to the next is not right."""
    steps = np.diff(times_ms)
    sampling = (times_ms[-1] - times_ms[0]) / len(steps)
    moving = steps[steps > 0]
    if steps[k] > 0:
        usual = float(np.median(steps))
        missing = round(float(steps[k] / usual)) - 1
        lost = f"{missing} sample{'s are' if missing > 1 else ' is'} missing there: "
        return (lost if missing > 0 else "") + (
            "add rows with empty cells and write `missing: mask`, or say sampling instead of time "
            "if only the stamps are wrong"
        )
    if steps[k] < 0:
        return "the clock goes back: give each sweep a column, or put the rows in order"
    coarse = moving.size and moving.min() > 1.5 * sampling and np.mean(steps == 0) > 0.01
    if coarse:
        return (
            "the stamps have too few digits: leave the column out and write "
            f"sampling: {sampling:.6g} ms"
        )
    return "one time stands twice: delete the repeated row, or give each sweep a column"
