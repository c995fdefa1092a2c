"""The variables of a MATLAB file, as SciPy reads them.

SciPy can be brought down by a damaged file, so this runs in a process of its own
(`channelfit.reading.apart`).
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse

from channelfit.reading import memory
from channelfit.reading.errors import InputError

#: The memory for a number: as it is stored, unpacked, in float64, and sent to the other process.
_BYTES_A_NUMBER = 32


def variables(path: Path) -> dict[str, np.ndarray | str]:
    """Vectors and matrices of real numbers by name; a text says why a variable cannot be used.

    Raises:
        InputError: a file that SciPy cannot read, or more numbers than fit into memory.
    """
    try:
        n_numbers = sum(math.prod(shape) for _, shape, _ in scipy.io.whosmat(path))
        memory.check(n_numbers, _BYTES_A_NUMBER, "numbers", path)
        raw = scipy.io.loadmat(path)
    except (InputError, MemoryError):
        raise
    except NotImplementedError:
        raise InputError(
            "a MATLAB 7.3 file (HDF5) cannot be read; save it with `save(..., '-v7')`", path
        ) from None
    except Exception as error:  # loadmat raises many kinds on a damaged file
        raise InputError(f"not a readable MATLAB file: {error}"[:200], path) from None
    found: dict[str, np.ndarray | str] = {}
    for name, value in raw.items():
        if np.iscomplexobj(value):
            found[name] = "complex numbers cannot be used; save real(..) of them"
        elif scipy.sparse.issparse(value):
            found[name] = "a sparse matrix cannot be used; save full(..) of it"
        elif isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.number):
            found[name] = np.asarray(value, dtype=float)
    return found
