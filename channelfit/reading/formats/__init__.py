"""Recording files of laboratories, one module for each format; `read` opens any of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.reading.errors import InputError, shown
from channelfit.reading.formats import (
    abf,
    delimited,
    hdf5,
    heka,
    igor,
    matlab,
    nwb,
    syncropatch,
    wcp,
)
from channelfit.reading.formats.contents import Contents, Epoch, Signal
from channelfit.reading.texts import file_size

__all__ = ["READERS", "Contents", "Epoch", "Signal", "choices_of", "read", "suffix_of"]

#: The reader of a file, by its suffix; a format is added by a line here.
READERS: dict[str, Callable[..., Contents]] = {
    ".abf": abf.read,
    ".nwb": nwb.read,
    ".ibw": igor.read,
    ".wcp": wcp.read,
    ".dat": heka.read,
    ".mat": matlab.read,
    ".h5": hdf5.read,
    ".hdf5": hdf5.read,
    ".csv": delimited.read,
    ".csv.gz": delimited.read,
    ".tsv": delimited.read,
    ".tsv.gz": delimited.read,
    ".txt": delimited.read,
    ".txt.gz": delimited.read,
    ".eph": syncropatch.read,
    ".json": syncropatch.read,
}
#: Advice for formats that are not read.
_WAYS_ROUND = {
    ".xlsx": "a workbook of Excel; save the sheet as CSV",
    ".xls": "a workbook of Excel; save the sheet as CSV",
    ".pxp": "an experiment of Igor; save its waves (Data > Save Waves > Save Igor Binary)",
    ".pro": "a protocol of pCLAMP without samples; a recording (.abf) made with it holds it too",
    ".atf": "Axon text; save it as ABF, or delete the lines above its table and call it .txt",
}
_MAX_BYTES = 2_000_000_000
#: The largest value of a sample, in whatever unit.
_LARGEST = 1e100


def read(path: Path, **choices: Any) -> Contents:
    """Return the contents of a file: signals in pA and mV, nominal protocol, amplifier, notes.

    Arguments:
        path: a file whose suffix is in `READERS`.
        choices: what the reader of its format takes besides, such as `layout` of MATLAB and HDF5
            or `decimal` of text; None where nothing is chosen.

    Raises:
        InputError: missing, damaged, of another format, or a choice that this format does not take.
    """
    if file_size(path) > _MAX_BYTES:
        raise InputError(f"larger than {_MAX_BYTES:,} bytes", path)
    reader = READERS.get(suffix_of(path))
    if way_round := _WAYS_ROUND.get(suffix_of(path)):
        raise InputError(way_round, path)
    if reader is None:
        raise InputError(f"not a format that can be read; accepted: {', '.join(READERS)}", path)
    options = {key: value for key, value in choices.items() if value is not None}
    accepted = choices_of(path)
    for key, value in options.items():
        if key not in accepted:
            known = f"; accepted there: {', '.join(accepted)}" if accepted else ""
            raise InputError(
                f"{shown(value)} has no meaning for {suffix_of(path)} files{known}", path, key
            )
    try:
        return _of_a_size(reader(path, **options))
    except InputError as error:
        raise error.at(path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path) from None


def _of_a_size(contents: Contents) -> Contents:
    """Return the same contents. Raises InputError for numbers whose squares overflow."""
    for signal in contents.signals:
        for k, sweep in enumerate(signal.values, 1):
            largest = np.max(np.abs(sweep), where=np.isfinite(sweep), initial=0.0)
            if largest > _LARGEST:
                raise InputError(
                    f"a value of {largest:g} in sweep {k} is nothing that was measured; is the "
                    "file damaged, or of another byte order?",
                    contents.file,
                    signal.name,
                )
    return contents


def choices_of(path: Path) -> list[str]:
    """Return the names of the options that the reader of this file's format takes."""
    reader = READERS.get(suffix_of(path))
    return list(inspect.signature(reader).parameters)[1:] if reader else []


def suffix_of(path: Path) -> str:
    """Return the suffix that decides the format, such as ``.csv.gz``; in lower case."""
    both = "".join(suffix.lower() for suffix in path.suffixes[-2:])
    return both if both in READERS else path.suffix.lower()
