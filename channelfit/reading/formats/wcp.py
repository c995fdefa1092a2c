"""WinWCP by Neo: records of several channels, each with the gain that its own header says."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.reading.formats.contents import (
    Contents,
    Signal,
    distinct,
    missing,
    packed,
    read_contents,
    signal,
)

_SECTOR, _HEADER, _ANALYSIS = 512, 1024, 1024
#: The head of a record: status, type, group, time (s), sampling (s), full scale of each channel.
_RECORD = struct.Struct("<8s4s3f8f")


def read(path: Path) -> Contents:
    """Return the contents of a WinWCP file.

    Raises InputError: damaged, truncated, without records, or without Neo.
    """
    return read_contents(f"{__name__}:packed_contents", path, "a WinWCP file")


def packed_contents(path: Path) -> dict[str, np.ndarray | str]:
    """Return the contents of a WinWCP file, packed for another process (`second_process`)."""
    try:
        from neo.rawio.winwcprawio import WinWcpRawIO  # optional
    except ImportError:
        raise missing("neo", "a WinWCP file") from None
    try:
        starts, scales, rejected = _records(path)
        reader = WinWcpRawIO(str(path))
        reader.parse_header()
        channels = reader.header["signal_channels"]
        rate = float(channels["sampling_rate"][0])
        if not 0 < rate < np.inf:
            raise InputError(f"a sampling rate of {rate:g} Hz", path)
        sampling = 1e3 * float(str(np.float32(1 / rate)))  # stored so: 0.001 is not quite 0.001
        names = distinct([str(channel["name"]).strip() for channel in channels])
        signals = list[Signal | None]([None] * len(names))
        for index, stream in enumerate(reader.header["signal_streams"]):
            members = np.flatnonzero(channels["stream_id"] == stream["id"])
            sweeps = range(len(starts))
            raw = [reader.get_analogsignal_chunk(0, k, stream_index=index) for k in sweeps]
            for place, k in enumerate(members):
                # Neo takes the full scale of the last record for all
                gains = float(channels["gain"][k]) * scales[:, k] / scales[-1, k]
                values = np.array([row[:, place] for row in raw]) * gains[:, None]
                signals[k] = signal(names[k], str(channels["units"][k]).strip(), values)
        found = tuple(each for each in signals if each is not None)
        notes = [f"Marked as rejected: {', '.join(map(str, rejected))}."] if rejected else []
        return packed(Contents(path, "WinWCP", sampling, found, starts, notes=tuple(notes)))
    except (InputError, MemoryError):
        raise
    except Exception as error:  # Neo raises many kinds on a damaged file
        raise InputError(f"not a readable WinWCP file: {error}"[:200], path) from None


def _records(path: Path) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return the time of each record, ms, the full scale of its channels, and the rejected ones.

    Raises InputError: sizes that the file does not have, or that Neo does not expect.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = dict(
            line.split("=", 1)
            for line in file.read(_HEADER).decode("latin-1").split("\r\n")
            if "=" in line
        )
        if "NR" not in head or "NBD" not in head:
            raise InputError("not a WinWCP file: it does not begin as one", path)
        n_records, blocks = int(head["NR"]), int(head["NBD"])
        length = _ANALYSIS + blocks * _SECTOR
        if int(head.get("NBH", _HEADER)) not in (2, _HEADER) or int(head.get("NBA", 2)) != 2:
            raise InputError("a WinWCP file with headers of another size than 1024 bytes", path)
        if n_records < 1:
            raise InputError("holds no records", path)
        if blocks < 1 or _HEADER + n_records * length > size:
            raise InputError(
                f"the header announces {n_records:,} records of {length:,} bytes, but the file has "
                f"{size:,}; it is cut off",
                path,
            )
        rows = []
        for k in range(n_records):
            file.seek(_HEADER + k * length)
            rows.append(_RECORD.unpack(file.read(_RECORD.size)))
    starts = np.array([row[3] for row in rows], dtype=float) * 1e3
    scales = np.array([row[5:] for row in rows], dtype=float)
    return starts - starts[0], scales, [k + 1 for k, row in enumerate(rows) if row[0][:1] == b"R"]
