"""MATLAB files, which SciPy reads, and h5py those of version 7.3.

SciPy can be brought down by a damaged file, so `variables` runs in the second process
(`reading.second_process`).
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from channelfit.reading import memory
from channelfit.reading.errors import InputError
from channelfit.reading.formats.contents import Contents
from channelfit.reading.formats.hdf5 import as_text, member, numbers, opened, unusable
from channelfit.reading.formats.matrices import NamedArray, contents_of
from channelfit.reading.second_process import read_in_process

#: The memory for a number: as it is stored, unpacked, in float64, and sent to the other process.
_BYTES_A_NUMBER = 32
#: Numbers that any file may have, and for each of its bytes beyond them: a recording with noise has
#: at most one.
_FREE_NUMBERS, _MOST_A_BYTE = 5_000_000, 10
_NUMBERS = {"double", "single"} | {f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)}
_COMPLEX = "complex numbers cannot be used; save real(..) of them"
_SPARSE = "a sparse matrix cannot be used; save full(..) of it"


def read(path: Path, layout: str | None = None, signal: str | None = None) -> Contents:
    """Return the vectors and matrices of a MATLAB file, version 5 to 7.3.

    Arguments:
        layout: "sweeps x samples" or "samples x sweeps"; found out without it.
        signal: the name of the array that is the recording; the largest without it.

    Raises InputError: damaged, without numbers, or matrices whose axis of time is not clear.
    """
    found = read_in_process(f"{__name__}:variables", path, "a MATLAB file")
    arrays = [
        NamedArray(n, "", value) for n, value in found.items() if isinstance(value, np.ndarray)
    ]
    refused = [f"{name}: {why}" for name, why in found.items() if isinstance(why, str)]
    return contents_of(path, "MATLAB", arrays, layout, refused, signal)


def variables(path: Path) -> dict[str, np.ndarray | str]:
    """Return vectors and matrices of real numbers by name; a text says why one cannot be used.

    Other variables (objects, structures, cells, texts) are not even unpacked.

    Raises InputError: a file that SciPy or, of version 7.3, h5py cannot read, or more numbers than
    fit into memory.
    """
    import scipy.io  # in the second process

    try:
        listed = scipy.io.whosmat(path)
        sizes = {name: math.prod(shape) for name, shape, kind in listed if kind in _NUMBERS}
        _check_packing(sum(sizes.values()), path)
        memory.check(sum(sizes.values()), _BYTES_A_NUMBER, "numbers", path)
        raw = scipy.io.loadmat(path, variable_names=list(sizes)) if sizes else {}
    except (InputError, MemoryError):
        raise
    except NotImplementedError:  # version 7.3 is HDF5
        return _variables_of_hdf5(path)
    except Exception as error:  # loadmat raises many kinds on a damaged file
        raise InputError(f"not a readable MATLAB file: {error}"[:200], path) from None
    found: dict[str, np.ndarray | str] = {}
    for name, _, kind in listed:
        value = raw.get(name)
        if kind == "sparse":
            found[name] = _SPARSE
        elif isinstance(value, np.ndarray) and np.iscomplexobj(value):
            found[name] = _COMPLEX
        elif isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.number):
            found[name] = np.asarray(value, dtype=float)
    return found


def _check_packing(numbers: int, path: Path) -> None:
    """Refuse variables that are packed as no recording with noise can be."""
    n_bytes = path.stat().st_size
    if numbers > _FREE_NUMBERS and numbers > _MOST_A_BYTE * n_bytes:
        raise InputError(
            f"{numbers:,} numbers in {memory.size(n_bytes)}: no recording packs so well; save the "
            "was recorded alone, or with '-v6', which does not pack",
            path,
        )


def _variables_of_hdf5(path: Path) -> dict[str, np.ndarray | str]:
    """Return the variables of a file of version 7.3, whose matrices HDF5 has with axes reversed."""
    found: dict[str, np.ndarray | str] = {}
    with opened(path, "a MATLAB 7.3 file") as file:
        total = 0
        for name in file:
            dataset = member(file, name)
            if dataset is None:
                continue
            if "MATLAB_sparse" in dataset.attrs:
                found[name] = _SPARSE
            kind = as_text(dataset.attrs.get("MATLAB_class", ""))
            if kind not in _NUMBERS or not hasattr(dataset, "dtype"):
                continue
            if dataset.dtype.names == ("real", "imag"):
                found[name] = _COMPLEX
            elif why := unusable(dataset):
                found[name] = f"the variable {why}"
            elif "MATLAB_empty" not in dataset.attrs:
                total += dataset.size
                found[name] = numbers(dataset, total).T
    return found
