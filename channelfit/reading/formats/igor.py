"""Igor binary waves (.ibw) by igor2: one sweep, or a matrix of samples x sweeps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.reading.formats.contents import (
    Contents,
    missing,
    packed,
    read_contents,
    signal,
)
from channelfit.reading.units import unit_factor


def read(path: Path) -> Contents:
    """What a wave holds; its first dimension is time.

    Raises:
        InputError: no wave, one of texts or complex numbers or three dimensions, damaged or
            truncated; or igor2 is not installed.
    """
    return read_contents(f"{__name__}:packed_contents", path, "an Igor binary wave")


def packed_contents(path: Path) -> dict[str, np.ndarray | str]:
    """The same for the process that reads foreign formats."""
    try:
        from igor2 import binarywave  # optional
    except ImportError:
        raise missing("igor2", "an Igor binary wave") from None
    try:
        found = binarywave.load(str(path))
        version, wave = int(found["version"]), found["wave"]
        header, values = wave["wave_header"], np.asarray(wave["wData"])
    except MemoryError:
        raise
    except Exception as error:  # igor2 raises many kinds on a damaged file
        raise InputError(
            f"not a readable Igor binary wave: {error or type(error).__name__}"[:200]
            + " (of an experiment, .pxp, save the wave itself: Data > Save Waves > Save Igor "
            "Binary)",
            path,
        ) from None
    if values.dtype.kind not in "fiu":
        raise InputError(
            "a wave of text or of complex numbers; one of real numbers is needed", path
        )
    if values.ndim not in (1, 2) or values.size == 0:
        told = " x ".join(map(str, values.shape)) or "no"
        raise InputError(f"{told} numbers; samples, or samples x sweeps, were expected", path)
    name = bytes(header["bname"]).decode("latin-1").strip("\0 ")
    axis, step = _time_axis(wave)
    unit = _text(wave.get("data_units", b"")) or _text(header["dataUnits"])
    sampling, notes = math.nan, tuple[str, ...]()
    try:
        sampling = step * unit_factor(axis, "time")[0]
    except InputError:
        said = f'is in "{axis}", which is no time' if axis else "has no unit"
        notes = (f"The first axis of the wave {said}, so that its sampling is not known.",)
    if not 0 < sampling < math.inf:
        sampling = math.nan
    current = signal(name, unit, np.atleast_2d(values.astype(float).T))
    return packed(Contents(path, f"Igor {version}", sampling, (current,), notes=notes))


def _time_axis(wave: dict[str, Any]) -> tuple[str, float]:
    """Unit and step of the first axis."""
    header = wave["wave_header"]
    if "xUnits" in header:  # versions 2 and before, which have one axis
        return _text(header["xUnits"]), float(header["hsA"])
    long = wave["dimension_units"][: int(wave["bin_header"]["dimEUnitsSize"][0])]
    return _text(long) or _text(header["dimUnits"][0]), float(header["sfA"][0])


def _text(stored: Any) -> str:
    """Characters as igor2 gives them: bytes, or an array of single ones."""
    joined = stored if isinstance(stored, bytes) else b"".join(np.atleast_1d(stored).tolist())
    return joined.split(b"\0", 1)[0].decode("latin-1").strip()
