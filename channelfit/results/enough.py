"""A check that enough of many fits are good; otherwise a command ends with exit code 3."""

from __future__ import annotations

from collections.abc import Mapping

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
