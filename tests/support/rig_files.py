"""Small files of the formats of a rig, written for the tests: by the libraries of those formats,
and Igor's and HEKA's, which no installed library writes, by their published layouts."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

#: (n_sweeps, n_samples): pA, and mV; every number is another.
N_SWEEPS, N_SAMPLES, SAMPLING_MS = 3, 40, 0.1
CURRENT = np.arange(N_SWEEPS * N_SAMPLES).reshape(N_SWEEPS, N_SAMPLES) - 50.5
COMMAND = np.full((N_SWEEPS, N_SAMPLES), -80.0)
COMMAND[:, 10:30] = np.array([-40.0, 0.0, 40.0])[:, None]

#: What commanded that.
PROTOCOL = {
    "name": "steps",
    "holding": -80,
    "sampling": SAMPLING_MS,
    "segments": [{"hold": 1}, {"step": {"values": [-40, 0, 40]}, "for": 2}, {"hold": 1}],
}


def write_nwb(path: Path, tables: bool = False, timestamps: bool = False) -> Path:
    """Three sweeps as PyNWB writes them: currents in nA of which 1 V is offset, commands in V."""
    from pynwb import NWBHDF5IO, NWBFile
    from pynwb.icephys import VoltageClampSeries, VoltageClampStimulusSeries

    file = NWBFile("a cell", "cell 1", datetime(2026, 1, 1, tzinfo=UTC))
    electrode = file.create_icephys_electrode(
        name="pipette", description="glass", device=file.create_device(name="amp"), seal="1.2 GOhm"
    )
    for k in reversed(range(N_SWEEPS)):  # as they may stand: not in their order
        clock = {"rate": 1e3 / SAMPLING_MS, "starting_time": 5.0 * k}
        if timestamps:
            clock = {"timestamps": 5.0 * k + np.arange(N_SAMPLES) * SAMPLING_MS / 1e3}
        shared = {"electrode": electrode, "gain": 1.0, "sweep_number": np.uint64(k)} | clock
        response = VoltageClampSeries(
            name=f"answer_{k + 9}",
            data=(CURRENT[k] - 2.0) / 0.25,
            conversion=0.25e-12,
            offset=2e-12,
            capacitance_fast=4e-12,
            whole_cell_capacitance_comp=20e-12,
            whole_cell_series_resistance_comp=8e6 + 1e6 * k,
            resistance_comp_correction=70.0,
            **shared,
        )
        stimulus = VoltageClampStimulusSeries(name=f"step_{k + 9}", data=COMMAND[k] / 1e3, **shared)
        if tables:
            file.add_intracellular_recording(
                electrode=electrode, response=response, stimulus=stimulus
            )
        else:
            file.add_acquisition(response)
            file.add_stimulus(stimulus)
    with NWBHDF5IO(str(path), "w") as io:
        io.write(file)
    return path


def write_ibw(path: Path, version: int = 5, order: str = "<") -> Path:
    """Sweeps of the current in nA as an Igor wave, or the first of them alone."""
    values = (CURRENT.T if version == 5 else CURRENT[0]) / 1e3
    data = np.asfortranarray(values, dtype=order + "f8").tobytes(order="F")
    if version == 5:
        head = struct.pack(order + "hhi", 5, 0, 320 + len(data)) + bytes(56)
        wave = bytearray(320)
        struct.pack_into(order + "i", wave, 12, values.size)
        struct.pack_into(order + "h", wave, 16, 4)
        wave[28:32] = b"Im_1"
        struct.pack_into(order + "4i", wave, 68, *values.shape, *[0] * (4 - values.ndim))
        struct.pack_into(order + "d", wave, 84, SAMPLING_MS / 1e3)
        wave[148:150], wave[152:153] = b"nA", b"s"
    else:
        head = struct.pack(order + "hiiih", 2, 126 + len(data), 0, 0, 0)
        wave = bytearray(110)
        struct.pack_into(order + "h", wave, 0, 4)
        wave[6:10] = b"Im_1"
        wave[34:36], wave[38:40] = b"nA", b"ms"
        struct.pack_into(order + "i", wave, 42, values.size)
        struct.pack_into(order + "d", wave, 48, SAMPLING_MS)
    path.write_bytes(head + bytes(wave) + data + bytes(16))
    return path


def write_wcp(path: Path, full_scales: tuple[float, ...] = (2.0, 2.0, 2.0)) -> Path:
    """The currents (rounded) and commands as WinWCP stores them: blocks of 512 bytes."""
    n, top = 256, 32767
    head = {
        "VER": "9",
        "RTIME": "01/01/2026 12:00:00",
        "ADCMAX": top,
        "NC": 2,
        "NR": N_SWEEPS,
        "NBH": 1024,
        "NBA": 2,
        "NBD": n * 2 * 2 // 512,
        "DT": SAMPLING_MS / 1e3,
        "YO0": 0, "YU0": "nA", "YN0": "Im", "YG0": "0,5",
        "YO1": 1, "YU1": "mV", "YN1": "Vm", "YG1": "0.01",
    }  # fmt: skip
    text = "".join(f"{key}={value}\r\n" for key, value in head.items()).encode()
    parts = [text.ljust(1024, b" ")]
    for k, scale in enumerate(full_scales):
        record = struct.pack("<8s4s3f8f", b"ACCEPTED", b"TEST", 1.0, 5.0 * k, 1e-4, *[scale] * 8)
        parts.append(record.ljust(1024, b"\0"))
        stored = np.zeros((n, 2), "<i2")
        gains = scale / top / np.array([0.5, 0.01])
        stored[:N_SAMPLES] = np.round(np.stack([CURRENT[k] / 1e3, COMMAND[k]], 1) / gains)
        parts.append(stored.tobytes())
    path.write_bytes(b"".join(parts))
    return path


def write_eph(path: Path) -> Path:
    """A protocol of a SyncroPatch, as DataControl writes it, that ran with the commands above."""
    rows = [
        ("Set ", "T", -80.0, 1.0, 0.0),
        ("Set ", "F", -40.0, 2.0, 40.0),
        ("Ramp", "F", -80.0, 1.0, 0.0),
    ]
    lines = [
        "Nanion SyncroPatch Ephys Protocol  Steps",
        "Vers. 1.3",
        "",
        "V Membrane [mV]  -80",
        f"# of Sweeps  {N_SWEEPS}",
        f"Sample Period [us]  {1000 * SAMPLING_MS:g}",
        f"# of Samples  {N_SAMPLES}",
        "",
        "Type\tVmemb T/F\tVoltage [mV]\tDuration [ms]\tVincrease [mV]\tRecordData T/F\tGroup\tRep",
        *(f"{k}\t{m}\t{v:6.1f}\t{t:6.1f}\t{i:6.1f}\tT\t    -1\t    -1" for k, m, v, t, i in rows),
        "",
        "Online Analysis Settings Vers. 1.2",
    ]
    path.write_bytes("\r\n".join(lines).encode("latin-1"))
    return path


def write_german(path: Path) -> Path:
    """The currents as German Excel saves them: mark of UTF-8, semicolons, decimal commas."""
    rows = [["Zeit (ms)", *(f"Strom {k + 1} (pA)" for k in range(N_SWEEPS))]]
    rows += [
        [f"{k * SAMPLING_MS:.4g}".replace(".", ","), *(str(v).replace(".", ",") for v in row)]
        for k, row in enumerate(CURRENT.T)
    ]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(";".join(row) for row in rows).encode())
    return path


def write_english(path: Path) -> Path:
    """The same as English Excel saves them."""
    rows = [["time (ms)", *(f"I{k + 1} (pA)" for k in range(N_SWEEPS))]]
    rows += [[f"{k * SAMPLING_MS:.4g}", *map(str, row)] for k, row in enumerate(CURRENT.T)]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(",".join(row) for row in rows).encode())
    return path


def write_mat(path: Path) -> Path:
    """Currents (samples x sweeps) among other things that MATLAB keeps."""
    from scipy.io import savemat

    other = {"meta": {"cell": 1}, "note": "hello", "list": np.array(["a", 1.0], dtype=object)}
    times = np.arange(N_SAMPLES) * SAMPLING_MS / 1e3
    savemat(path, {"I_pA": CURRENT.T, "V_mV": COMMAND.T, "t": times, **other})
    return path


def write_mat73(path: Path) -> Path:
    """The same as MATLAB 7.3 keeps it: HDF5 behind a block of text, axes reversed."""
    from h5py import File

    with File(path, "w", userblock_size=512) as file:
        for name, values in (("I_pA", CURRENT), ("V_mV", COMMAND)):
            file[name] = values
            file[name].attrs["MATLAB_class"] = np.bytes_("double")
        file["t"] = np.arange(N_SAMPLES)[None] * SAMPLING_MS / 1e3
        file["t"].attrs["MATLAB_class"] = np.bytes_("double")
        file["note"] = np.frombuffer(b"hello", "u1").astype("u2")
        file["note"].attrs["MATLAB_class"] = np.bytes_("char")
        file["object"] = np.zeros(6, "u4")
        file["object"].attrs["MATLAB_class"] = np.bytes_("Cell_Of_Mine")
        file["#refs#/a"] = np.ones(3)
    stored = path.read_bytes()
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + stored[128:])
    return path


def write_h5(path: Path) -> Path:
    """Datasets by path with their units, as a program of a laboratory may write them."""
    from h5py import File

    with File(path, "w") as file:
        file["cell/I"] = CURRENT.T / 1e3
        file["cell/I"].attrs["unit"] = "nA"
        file["cell/V"] = COMMAND.T
        file["cell/V"].attrs["units"] = "mV"
        file["cell/time"] = np.arange(N_SAMPLES) * SAMPLING_MS / 1e3
        file["cell/time"].attrs["unit"] = "s"
        file["cell/note"] = "a text"
    return path


def write_abf(path: Path) -> Path:
    """ABF 1 by pyABF's own writer: sweeps of pA and nothing else."""
    from pyabf.abfWriter import writeABF1

    writeABF1(CURRENT, str(path), 1e3 / SAMPLING_MS, units="pA")
    path.write_bytes(path.read_bytes() + bytes(8192))  # it writes less than pyABF reads
    return path


def write_heka(
    path: Path,
    order: str = "<",
    several: bool = False,
    stimulus: dict[tuple[int, int], tuple[str, float]] | None = None,
    channel: dict[int, tuple[str, float]] | None = None,
    trace: dict[int, tuple[str, float]] | None = None,
    data: tuple[np.ndarray, np.ndarray, float] = (CURRENT, COMMAND, SAMPLING_MS),
) -> Path:
    """A bundle of PatchMaster by its published description, in either byte order.

    Three sweeps of a current (16 bits) and a command, from a stimulus relative to a holding
    potential of -80 mV. The other arguments replace numbers (their kind and value, by offset) in
    the stimulus' segments (by number and offset), in its channel, and in the traces; `data` are
    currents (pA), commands (mV) and the sampling (ms). A second series has twice the currents.
    """
    samples, n_series = bytearray(), 2 if several else 1
    current, command, sampling_ms = data
    kind, scale = (0, 0.5e-12) if current is CURRENT else (3, 1.0)

    def record(size: int, *fields: tuple[int, str, Any]) -> bytes:
        out = bytearray(size)
        for place, code, value in fields:
            text = value.encode() if isinstance(value, str) else value
            struct.pack_into(order + code, out, place, text)
        return bytes(out)

    def tree(sizes: Sequence[int], root: tuple[bytes, list[Any]]) -> bytes:
        out = bytearray(b"eerT" if order == "<" else b"Tree")
        out += struct.pack(f"{order}i{len(sizes)}i", len(sizes), *sizes)

        def add(node: tuple[bytes, list[Any]]) -> None:
            out.extend(node[0] + struct.pack(f"{order}i", len(node[1])))
            for child in node[1]:
                add(child)

        add(root)
        return bytes(out)

    def replaced(given: dict[int, tuple[str, float]] | None) -> list[tuple[int, str, float]]:
        return [(place, code, value) for place, (code, value) in (given or {}).items()]

    def one_trace(label: str, unit: str, values: np.ndarray, kind: int, scale: float) -> Any:
        place, stored = 256 + len(samples), values.astype(order + ("i2", "i4", "f4", "f8")[kind])
        samples.extend(stored.tobytes())
        fields = [(4, "32s", label), (40, "i", place), (44, "i", len(values)), (68, "B", 3)]
        fields += [(64, "H", order == "<"), (70, "B", kind), (72, "d", scale), (96, "8s", unit)]
        fields += [(104, "d", 1e-3 * sampling_ms), (120, "8s", "s"), (144, "d", 2900.0)]
        fields += [(176, "d", 12.5e-12), (184, "d", 1e-7), (168, "d", 2e9), *replaced(trace)]
        return record(512, *fields), []

    def one_sweep(k: int, series: int) -> Any:
        raw = current[k] * 1e-12 / scale * (1 + series)
        rows = [one_trace("Imon-1", "A", np.rint(raw) if kind == 0 else raw, kind, scale)]
        rows += [one_trace("Vmon", "V", 1e-3 * command[k] / (1 + series), 3, 1.0)]
        return record(288, (40, "i", 1), (48, "d", 1e9 + 5.0 * k)), rows

    groups = []
    amplifier = [(472 + 40, "d", 0.7), (472 + 240, "B", 1), (472 + 88, "d", 1e-7)]
    for series in range(n_series):
        sweeps = [one_sweep(k, series) for k in range(len(current))]
        fields = [(4, "32s", f"IV {series}"), (120, "i", N_SWEEPS), (124, "i", 472), *amplifier]
        groups.append((record(1408, *fields, (136, "d", 1e9)), sweeps))
    root = record(640, (520, "d", 1e9)), [(record(144, (4, "32s", "cell 1")), groups)]
    pulsed = tree((640, 144, 1408, 288, 512), root)
    segments = []
    for k, (seconds, source, volts, step) in enumerate(
        [(1e-3, 1, 0.0, 0.0), (2e-3, 0, 0.04, 0.04), (1e-3, 1, 0.0, 0.0)]
    ):
        fields = [(5, "B", 1), (8, "d", volts), (16, "i", source), (20, "d", 1.0), (28, "d", step)]
        fields += [(36, "d", seconds), (48, "d", 1.0)]
        own = {place: new for (n, place), new in (stimulus or {}).items() if n == k}
        segments.append((record(80, *fields, *replaced(own)), []))
    output = record(
        400, (25, "B", 1), (40, "8s", "V"), (48, "d", -0.08), (76, "H", 3), *replaced(channel)
    )
    protocol = record(248, (112, "d", 1e-3 * sampling_ms), (144, "i", N_SWEEPS))
    commanded = tree((584, 248, 400, 80), (record(584), [(protocol, [(output, segments)])]))

    head = bytearray(256)
    struct.pack_into("8s32s", head, 0, b"DAT2", b"v2x90.2, 22-Nov-2016")
    struct.pack_into(f"{order}di?", head, 40, 1e9, 3, order == "<")
    place = 256
    parts = {".dat": bytes(samples), ".pul": pulsed, ".pgf": commanded}
    for k, (ending, part) in enumerate(parts.items()):
        struct.pack_into(f"{order}ii8s", head, 64 + 16 * k, place, len(part), ending.encode())
        place += len(part)
    path.write_bytes(bytes(head) + b"".join(parts.values()))
    return path


#: A file of each kind by a name for it.
WRITERS: dict[str, Callable[[Path], Path]] = {
    "a.nwb": write_nwb,
    "b.nwb": lambda path: write_nwb(path, tables=True),
    "c.nwb": lambda path: write_nwb(path, timestamps=True),
    "a.ibw": write_ibw,
    "b.ibw": lambda path: write_ibw(path, order=">"),
    "c.ibw": lambda path: write_ibw(path, version=2),
    "a.wcp": write_wcp,
    "b.wcp": lambda path: write_wcp(path, (2.0, 4.0, 8.0)),
    "a.abf": write_abf,
    "a.dat": write_heka,
    "b.dat": lambda path: write_heka(path, order=">"),
    "a.mat": write_mat,
    "b.mat": write_mat73,
    "a.h5": write_h5,
    "german.csv": write_german,
    "english.csv": write_english,
    "steps.eph": write_eph,
}


def written(folder: Path, name: str) -> Path:
    """The file of `WRITERS` in a folder; the test is skipped where its library is not installed."""
    for suffix, package in ((".nwb", "pynwb"), (".wcp", "neo"), (".abf", "pyabf")):
        if name.endswith(suffix):
            pytest.importorskip(package)
    return WRITERS[name](folder / name)
