"""HEKA's .dat: there is no maintained reader, so the error says how to export the recording."""

from __future__ import annotations

from pathlib import Path

from channelfit.reading.errors import InputError
from channelfit.reading.formats.contents import Contents


def read(path: Path) -> Contents:
    """Raise InputError for every file; it says how PatchMaster exports a readable file."""
    with open(path, "rb") as file:
        begins = file.read(8)
    if begins[:3] not in (b"DAT", b"DIA") and begins[:4] not in (b"2TAD", b"TADD"):
        raise InputError(
            "a .dat file of an unknown program (it does not begin as one of HEKA's); export its "
            "traces as text (.csv), ABF, MATLAB or NWB",
            path,
        )
    raise InputError(
        "HEKA's own format cannot be read; export the series in PatchMaster (Replay > Export, as "
        "MatLab), or convert the file to NWB, and open that",
        path,
    )
