"""Recordings of a part of each sweep: where in the sweep their samples lie.

The samples before and after the part have no current and no weight, so that a search simulates
them and compares nothing there.
"""

from __future__ import annotations

import numpy as np

from channelfit.problem.protocol import Protocol
from channelfit.problem.waves import TIME_TOLERANCE
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError
from channelfit.reading.units import parse_quantity, shown


def read_starts(section: Section, sweeps: list[int], protocol: Protocol) -> list[int]:
    """The first sample, counted from 0, of each recorded sweep; 0 without the key ``starts``.

    Arguments:
        section: has ``starts``, one time of the sweep for all, or a list with one for each.
        sweeps: of the protocol, counted from 0, that were recorded.

    Raises:
        InputError: another number of times than sweeps, or a time between two samples.
    """
    given = section.items("starts", 0.0)
    if len(given) not in (1, len(sweeps)):
        raise section.error(
            f"{len(given)} times, but {len(sweeps)} sweeps were recorded; one for all, or one for "
            "each, was expected",
            "starts",
        )
    firsts = [_sample(section, value, protocol.sampling_ms) for value in given]
    return firsts * len(sweeps) if len(given) == 1 else firsts


def common_start_ms(section: Section) -> float:
    """The time of the sweep at which all of its recorded parts begin; 0 where they differ."""
    given = section.items("starts", 0.0)
    return _time(section, given[0]) if len(given) == 1 else 0.0


def _time(section: Section, value: object) -> float:
    try:
        return parse_quantity(value, "time")
    except InputError as error:
        raise error.at(section.file, section.path("starts")) from None


def _sample(section: Section, value: object, sampling_ms: float) -> int:
    start = _time(section, value)
    sample = round(start / sampling_ms)
    if sample < 0 or abs(start / sampling_ms - sample) > max(TIME_TOLERANCE, 1e-9 * sample):
        raise section.error(
            f"{shown(value)} is no time of a sample; these are every {sampling_ms:g} ms from 0",
            "starts",
        )
    return sample


def placed(
    section: Section,
    current: np.ndarray,
    sweeps: list[int],
    firsts: list[int],
    protocol: Protocol,
) -> tuple[np.ndarray, np.ndarray]:
    """Recorded parts, laid out as the protocol's sweeps.

    Arguments:
        current: (n_recorded, n_rows) pA.
        sweeps, firsts: which sweep each row is of, and at which sample it begins, from 0.

    Returns:
        (n_sweeps, n_times) pA, NaN where nothing was recorded, and whether something was.

    Raises:
        InputError: a part that lasts longer than its sweep.
    """
    shape = (protocol.n_sweeps, protocol.n_times_max)
    out, recorded = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
    for k, first, trace in zip(sweeps, firsts, current, strict=True):
        known = np.flatnonzero(np.isfinite(trace))
        last = first + (int(known[-1]) + 1 if known.size else 0)
        n = protocol.n_times(k)
        if last > n:
            h = protocol.sampling_ms
            raise section.error(
                f"what begins at {first * h:g} ms ends at {last * h:g} ms, but sweep {k + 1} of "
                f"{protocol.name} ends at {n * h:g} ms",
                "starts",
            )
        end = min(n, first + len(trace))
        out[k, first:end] = trace[: end - first]
        recorded[k, first:end] = True
    return out, recorded
