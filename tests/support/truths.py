"""Truths that several tests compare with, computed by whichever process needs them first.

The reference takes seconds for all protocols of a model, and tests of one model run in several
processes: what one has computed, the others read.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def slow_but(quick: Collection[Any], every: Iterable[Any]) -> list[Any]:
    """Parameters of a test, slow but for a few that find the same kinds of faults."""
    return [
        one
        if one in quick
        else pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.slow)
        for one in every
    ]


def in_turns(n: int, *axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """So many combinations, with every value of each axis in its turn."""
    return [tuple(axis[i % len(axis)] for axis in axes) for i in range(n)]


def shared(compute: Callable[..., list[np.ndarray]]) -> Callable[..., list[np.ndarray]]:
    """A function of plain arguments that gives arrays, called once in a session."""

    @functools.cache
    def known(*arguments: str) -> list[np.ndarray]:
        name = "-".join([compute.__module__, compute.__name__, *arguments])
        path = Path(os.environ["CHANNELFIT_TEST_TRUTHS"]) / f"{name}.npz"
        if not path.exists():
            partial = path.with_suffix(f".{os.getpid()}.partial")
            with partial.open("wb") as file:
                np.savez(file, *compute(*arguments))
            partial.replace(path)
        with np.load(path) as found:
            arrays = [found[key] for key in found.files]
        for array in arrays:
            array.flags.writeable = False  # nobody may spoil what others compare with
        return arrays

    return known
