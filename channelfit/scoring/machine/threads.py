"""How many cores may be used, and BLAS kept to one thread while small matrices are worked on.

With small matrices, the threads of BLAS mostly wait for each other, and longer still where other
work keeps the cores busy. Their number also changes how results are rounded.
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
    """For this whole process, within the block."""
    with _pools().limit(limits=1, user_api="blas"):
        yield


@cache
def _pools() -> ThreadpoolController:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def usable_cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
