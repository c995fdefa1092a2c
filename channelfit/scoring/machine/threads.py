"""How many cores may be used, and the linear algebra library (BLAS) kept to one of them.

On small matrices its threads mostly wait for each other, longest where other programs keep the
cores busy; and the rounding of its results depends on how many threads there are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Keep BLAS to one thread, for the whole process, as long as the block runs."""
    with _pools().limit(limits=1, user_api="blas"):
        yield


@cache
def _pools() -> ThreadpoolController:
    """The pools of threads of all libraries that are loaded when this is first called."""
    from threadpoolctl import ThreadpoolController  # looks through all libraries, only when asked

    return ThreadpoolController()


def usable_cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
