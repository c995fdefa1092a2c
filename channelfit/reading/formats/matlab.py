"""MATLAB files as a recording: which of their variables are signals."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from channelfit.reading.apart import read_apart
from channelfit.reading.formats.contents import Contents
from channelfit.reading.formats.matrices import NamedArray, contents_of


def read(path: Path, layout: str | None = None, signal: str | None = None) -> Contents:
    """Return the vectors and matrices of a MATLAB file, version 5 to 7.3.

    Arguments:
        layout: "sweeps x samples" or "samples x sweeps"; found out without it.
        signal: the name of the array that is the recording; the largest without it.

    Raises:
        InputError: damaged, without numbers, or matrices whose axis of time is not clear.
    """
    found = read_apart("channelfit.reading.matlab:variables", path, "a MATLAB file")
    arrays = [
        NamedArray(n, "", value) for n, value in found.items() if isinstance(value, np.ndarray)
    ]
    refused = [f"{name}: {why}" for name, why in found.items() if isinstance(why, str)]
    return contents_of(path, "MATLAB", arrays, layout, refused, signal)
