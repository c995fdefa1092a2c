"""Where in a sweep something happens, on traces whose events are known."""

from __future__ import annotations

import numpy as np
import pytest

from channelfit.results.report.trace_view import eventful_stretches

T = np.arange(0, 40, 0.04)
STEP = [np.array([10.0, 30.0])]


def transient(start: float, duration: float = 0.3) -> np.ndarray:
    """A current that comes and goes within a few durations after its start; peak near -1000 pA."""
    u = np.maximum(T - start, 0) / duration
    return -1000 * 2.6 * u**2 * np.exp(-1.4 * u)


@pytest.mark.parametrize("noise", [0.0, 5.0, 50.0])
def test_two_of_forty_ms_are_found(noise):
    current = transient(10) + np.random.default_rng(1).normal(0, noise, T.shape)
    found = eventful_stretches(T, [current[None]], STEP)
    assert len(found) == 1
    start, end = found[0]
    assert start < T[np.argmin(transient(10))] < end
    assert 9 < start < 10.5
    assert 11 < end < 14


def test_two_places_are_found_and_three_are_too_many():
    two = transient(5) + transient(30)
    (a, b), (c, d) = eventful_stretches(T, [two[None]], [np.array([])])
    assert a < 5.4 < b < c < 30.4 < d
    assert eventful_stretches(T, [(two + transient(17))[None]], [np.array([])]) == []


def test_a_jump_with_the_command_is_no_event():
    """All the movement there is, in one sample: nothing of it shows when it is spread."""
    jump = np.where((T >= 10) & (T < 30), 500.0, 0.0)
    assert eventful_stretches(T, [jump[None]], STEP) == []
    assert eventful_stretches(T, [jump[None]], [np.array([])]) == []
    slow = jump * (1 - np.exp(-np.maximum(T - 10, 0) / 15))
    assert eventful_stretches(T, [slow[None]], STEP) == []


def test_what_is_looked_at_is_the_time_that_is_shown():
    """2 of 40 ms are a small part; of the 5 ms that a mask leaves they are not."""
    left = np.where((T >= 9) & (T < 14), transient(10), np.nan)
    assert eventful_stretches(T, [left[None]], STEP) == []
