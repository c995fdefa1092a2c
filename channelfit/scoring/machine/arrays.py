"""Arrays that may lie on the host (NumPy) or on a GPU (CuPy), handled without importing CuPy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from channelfit.scoring.machine.gpu import gpu_errors


def array_module(array: Any) -> Any:
    """Return the module for an array: cupy for a CuPy array, else numpy."""
    name = type(array).__module__.partition(".")[0]
    return sys.modules["cupy"] if name == "cupy" else np


def to_host(array: Any) -> np.ndarray:
    """Return a NumPy copy of an array, wherever it lies; changing the copy leaves it as it was.

    A copy from a GPU waits until the GPU has computed the array. Anything that `numpy.array`
    takes is accepted, too.

    Raises: InputError, in plain words, for errors that CUDA reports meanwhile.
    """
    with gpu_errors():
        copy: np.ndarray = array.get() if hasattr(array, "get") else np.array(array)
        return copy


def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Multiply (.., m) by (m, k), summed in the same order on every computer.

    `left @ right` is done by a library that sums in an order that depends on the kind of processor,
    on its number of cores and on the environment. A score must not.
    """
    found: np.ndarray = np.einsum("...m,mk->...k", left, right)
    return found
