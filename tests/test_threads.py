"""Small matrices are worked on by one thread of BLAS: sooner, and with one result."""

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from channelfit.scoring.layout import held_compression as compression
from channelfit.scoring.machine.threads import single_threaded_blas

pytestmark = pytest.mark.skipif(
    not any(pool["user_api"] == "blas" for pool in threadpool_info()),
    reason="this NumPy has a BLAS of which threadpoolctl knows nothing",
)


def threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_blas_has_one_thread_within_and_as_many_as_before_after():
    with threadpool_limits(2, "blas"):
        before = threads()
        with single_threaded_blas():
            assert set(threads()) == {1}
        assert threads() == before


@pytest.mark.parametrize("oscillating", [False, True])
def test_a_compression_is_made_by_one_thread(oscillating, monkeypatch):
    seen, svd = [], np.linalg.svd

    def watched(*arguments, **options):
        seen.extend(threads())
        return svd(*arguments, **options)

    monkeypatch.setattr(np.linalg, "svd", watched)
    with threadpool_limits(2, "blas"):
        compression.compression.cache_clear()
        compression.compression(803, oscillating)
    assert seen
    assert set(seen) == {1}
