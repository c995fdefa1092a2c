"""CMA-ES: what this package adds to pycma."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from channelfit.search.cma_es import CmaEs, _ranked
from support.landscapes import rastrigin, rosenbrock, run, sphere

cma = pytest.importorskip("cma")


def test_it_is_pycma_until_the_first_descent_ends():
    """The same strategy driven by hand, with the same draws, to the last bit."""
    random = np.random.Generator(np.random.Philox(key=5))
    options = {
        "bounds": [0.0, 1.0],
        "popsize": 12,
        "seed": np.nan,
        "verbose": -9,
        "randn": lambda *shape: random.standard_normal(shape),
    }
    by_hand, search = cma.CMAEvolutionStrategy([0.5] * 3, 0.3, options), CmaEs(3, 12, 5)
    for _ in range(20):
        points = by_hand.ask()
        candidates = search.ask()
        np.testing.assert_array_equal(candidates, np.array(points).T)
        by_hand.tell(points, rosenbrock(candidates).tolist())
        search.tell(candidates, rosenbrock(candidates))
    assert search.descents == 1
    assert search.best_cost == by_hand.best.f


def test_restarts_pass_over_other_minima_with_larger_and_smaller_populations():
    search = CmaEs(4, 8, seed=3)
    sizes = set()
    for _ in range(900):
        candidates = search.ask()
        sizes.add(candidates.shape[1])
        search.tell(candidates, rastrigin(candidates))
    assert search.descents > 3
    assert {8, 16} < sizes
    np.testing.assert_allclose(search.best, 0.4, atol=1e-4)


@example([1.0, 100.0, math.nan])
@given(st.lists(st.floats(allow_nan=True), min_size=1, max_size=20))
def test_what_failed_ranks_last_and_all_is_finite(costs):
    cost = np.array(costs)
    finite = np.isfinite(cost) & (np.abs(cost) < 1e300)
    if not finite.any():
        return
    ranked = _ranked(cost, finite)
    assert np.isfinite(ranked).all()
    np.testing.assert_array_equal(ranked[finite], cost[finite])
    if not finite.all():
        assert ranked[~finite].min() > ranked[finite].max() or ranked[finite].max() > 1e15


def test_it_leaves_no_files_and_reads_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cma_signals.in").write_text("{'maxiter': 1}")
    search = CmaEs(2, 8, 1)
    run(search, sphere, 20)
    assert search.descents == 1
    assert [path.name for path in tmp_path.iterdir()] == ["cma_signals.in"]
