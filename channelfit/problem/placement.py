"""The places of recorded samples in the sweeps of a protocol: whole sweeps, or a part of each.

The samples before and after a part have no current and no weight, so that a search simulates them
and compares nothing there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from channelfit.problem.protocol import Protocol
from channelfit.problem.waves import TIME_TOLERANCE
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError, shown


def laid_out(
    section: Section,
    current: np.ndarray,
    sweeps: list[int],
    headed: bool,
    protocol: Protocol,
    path: Path,
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return recorded sweeps, or parts of them, laid out as the protocol's.

    Arguments:
        section: may have ``starts``, the times at which the parts begin.
        current: (n_recorded, n_rows) pA.
        sweeps: of the protocol, counted from 0, that were recorded.
        headed: whether the first row of the file is all numbers, and may be a heading.

    Returns:
        (n_sweeps, n_times) pA, NaN where nothing was recorded; whether something was; and the first
        sample of each recorded sweep.

    Raises InputError: more or fewer samples than the protocol has, or starts that cannot be.
    """
    firsts = _read_starts(section, sweeps, protocol)
    if "starts" in section:
        _check_parts(section, current, sweeps, firsts, protocol)
    else:
        _check_count(current.shape[1], sweeps, headed, protocol, path)
    shape = (protocol.n_sweeps, protocol.n_times_max)
    out, recorded = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
    for k, first, trace in zip(sweeps, firsts, current, strict=True):
        end = min(protocol.n_times(k), first + len(trace))
        out[k, first:end] = trace[: end - first]
        recorded[k, first:end] = True
    return out, recorded, firsts


def _read_starts(section: Section, sweeps: list[int], protocol: Protocol) -> list[int]:
    """Return the first sample of each recorded sweep, counted from 0.

    Arguments:
        section: its key ``starts`` is one time for all sweeps, or a list with one for each; without
            the key recordings begin with their sweeps.
        sweeps: of the protocol, counted from 0, that were recorded.

    Raises InputError: another number of times than sweeps, or a time between two samples.
    """
    starts = section.items("starts")
    if len(starts) not in (1, len(sweeps)):
        raise section.error(
            f"{len(starts)} times, but {len(sweeps)} sweeps were recorded; one for all, or one for "
            "each, was expected",
            "starts",
        )
    firsts = [_sample(section, value, protocol.sampling_ms) for value in starts]
    return firsts * len(sweeps) if len(starts) == 1 else firsts


def common_start_ms(section: Section) -> float:
    """Return the time of the sweep at which all parts begin; 0 where they differ."""
    starts = section.items("starts")
    return section.measured("starts", starts[0]) if len(starts) == 1 else 0.0


def _sample(section: Section, value: object, sampling_ms: float) -> int:
    start = section.measured("starts", value)
    sample = round(start / sampling_ms)
    if sample < 0 or abs(start / sampling_ms - sample) > max(TIME_TOLERANCE, 1e-9 * sample):
        raise section.error(
            f"{shown(value)} is no time of a sample; these are every {sampling_ms:g} ms from 0",
            "starts",
        )
    return sample


def _check_parts(
    section: Section,
    current: np.ndarray,
    sweeps: list[int],
    firsts: list[int],
    protocol: Protocol,
) -> None:
    """Raise InputError for a part that lasts longer than its sweep.

    Arguments:
        current: (n_recorded, n_rows) pA.
        sweeps, firsts: of each row its sweep, and the sample at which it begins, from 0.
    """
    for k, first, trace in zip(sweeps, firsts, current, strict=True):
        known = np.flatnonzero(np.isfinite(trace))
        last = first + (int(known[-1]) + 1 if known.size else 0)
        n = protocol.n_times(k)
        if last > n:
            h = protocol.sampling_ms
            raise section.error(
                f"the part that begins at {first * h:g} ms ends at {last * h:g} ms, but "
                f"sweep {k + 1} of {protocol.name} ends at {n * h:g} ms",
                "starts",
            )


def _check_count(
    n_rows: int, sweeps: list[int], headed: bool, protocol: Protocol, path: Path
) -> None:
    """Raise InputError for whole sweeps of another number of samples than the protocol's.

    Arguments:
        headed: whether the first row is all numbers, and may be a heading.
    """
    expected = max(protocol.n_times(k) for k in sweeps)
    counts = (protocol.n_times_max, expected)
    if n_rows in counts:
        return
    ratio = n_rows / expected
    thousandfold = {1e3: "more", 1e-3: "fewer"}
    apart = next((word for k, word in thousandfold.items() if abs(ratio / k - 1) < 0.02), None)
    hints = ""
    if headed and n_rows - 1 in counts:
        hints += (
            "the first row is all numbers: if it names the columns, write `header: true`; else "
        )
    if apart:
        hints += f"a thousand times {apart}: are times in s read as ms, or the other way round? "
    if n_rows < expected:
        hints += "if these are a part of each sweep, say when it begins, as in `starts: 5 s`; else "
    raise InputError(
        f"{n_rows} samples, but {protocol.name} has {expected} "
        f"({expected * protocol.sampling_ms:g} ms every {protocol.sampling_ms:g} ms); {hints}"
        "correct the protocol's durations, or cut the recording to them",
        path,
    )
