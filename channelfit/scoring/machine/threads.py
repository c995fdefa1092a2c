"""BLAS kept to one thread while small matrices are worked on.

Its own threads mostly wait for each other there, and where other work keeps the cores busy for as
long as that takes; and what they round depends on how many there are.
"""

from __future__ import annotations

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
