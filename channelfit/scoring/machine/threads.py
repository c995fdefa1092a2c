"""The linear algebra library (BLAS) kept to one thread while small matrices are worked on.

On small matrices its threads mostly wait for each other, longest where other programs keep the
cores busy; and the rounding of its results depends on how many threads there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Keep BLAS to one thread, for the whole process, as long as the block runs."""
    with _pools().limit(limits=1, user_api="blas"):
        yield


@cache
def _pools() -> ThreadpoolController:
    """The pools of threads of all libraries that are loaded when this is first called."""
    return ThreadpoolController()
