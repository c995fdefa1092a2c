"""Scores from Chebyshev moments: their tables against exponentials, costs against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.special import ive

from channelfit.scoring.layout.held_compression import compression
from channelfit.scoring.layout.moment_tables import (
    GREATEST_DEGREE,
    TRUNCATION,
    moment_table,
    rung_of,
    speed_of,
    weights,
)


@pytest.mark.parametrize("x", [0.0, 1e-300, 1e-6, 0.1, 1.0, 30.0, 400.0, 5e3, 3e4])
def test_weights_are_bessel_functions(x):
    found = weights(np.array([0.0, x / 7, x]))
    k = np.arange(found.shape[1])
    exact = ive(k, np.array([0.0, x / 7, x])[:, None] / 2) * np.where(k, 2, 1)
    assert np.abs(found - exact).max() < 5e-16
    assert np.abs(found.sum(axis=1) - 1).max() < 1.1 * TRUNCATION


def test_rungs_lie_above_what_is_asked_for():
    for rho in (1e-9, 0.99, 1.0, 1.01, 3e7):
        assert speed_of(rung_of(rho) - 1) < rho <= speed_of(rung_of(rho)) * (1 + 1e-12)


def random_generator(n: int, rng: np.random.Generator) -> np.ndarray:
    """A generator of a chain of states, of rates within three decades, as fast as 1/ms."""
    a = np.diag(10 ** rng.uniform(-3, 0, n - 1), 1) + np.diag(10 ** rng.uniform(-3, 0, n - 1), -1)
    a /= 2 * a.sum(axis=0).max()
    return a - np.diag(a.sum(axis=0))


@pytest.mark.parametrize("n", [1, 2, 50, 400, 3000])
@pytest.mark.parametrize("decay", [1e-3, 7.0, 300.0, 3000.0])
def test_tables_hold_traces_residuals_and_ends(n, decay):
    """Of random chains of seven states, in all samples, against matrix exponentials."""
    rng = np.random.default_rng([n, int(decay)])
    a, p0, open_ = random_generator(7, rng), rng.dirichlet(np.ones(7)), rng.uniform(size=7)
    span, rung = decay, rung_of(1.0)
    table, run = moment_table(n, span, rung), compression(n)
    x = np.eye(7) + 2 * a / speed_of(rung)
    chebyshev = [p0, x @ p0]
    while len(chebyshev) < max(table.rows.shape[1], len(table.end)):
        chebyshev.append(2 * x @ chebyshev[-1] - chebyshev[-2])
    moments = np.array([open_ @ p for p in chebyshev[: table.rows.shape[1]]])
    step = expm(a * span / n)
    states = [p0]
    for _ in range(n):
        states.append(step @ states[-1])
    trace = np.array([open_ @ p for p in states[:-1]])
    basis = np.eye(n) if run.is_whole else run.basis
    assert np.abs(basis @ table.directions.T @ table.rows @ moments - trace).max() < 2e-10
    assert np.abs(table.end @ chebyshev[: len(table.end)] - states[-1]).max() < 1e-11
    data = rng.normal(size=n)
    inside, outside = run.project(data)
    along, beside = table.project(inside)
    squares = ((table.rows @ moments - along) ** 2).sum() + beside + outside
    assert squares == pytest.approx(((trace - data) ** 2).sum(), rel=1e-10)
    for row, length in zip(table.rows, table.lengths, strict=True):
        assert not row[length:].any()


def test_stiff_runs_have_no_table():
    assert moment_table(10, 1.0, rung_of(1e300)) is None
    longest = max(len(moment_table(0, 1.0, rung).end) for rung in range(26))
    assert 300 < longest <= GREATEST_DEGREE
