"""Files from the rig: what was written is read back, real files agree with other readers, and what
is damaged, hostile or contradicted ends in one message."""

from __future__ import annotations

import gzip
import json
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from channelfit.reading.errors import InputError
from channelfit.reading.formats import Contents, Epoch, read
from channelfit.reading.formats.contents import agree
from support.places import DATA, ROOT, needs_data
from support.rig_files import (
    COMMAND,
    CURRENT,
    N_SAMPLES,
    N_SWEEPS,
    SAMPLING_MS,
    WRITERS,
    write_eph,
    write_heka,
    write_ibw,
    write_nwb,
    write_wcp,
    written,
)

h5py = pytest.importorskip("h5py")
scipy_io = pytest.importorskip("scipy.io")


def one(contents: Contents, kind: str) -> np.ndarray:
    (signal,) = (signal for signal in contents.signals if signal.kind == kind)
    return signal.values


# --- what was written is read ---------------------------------------------------------------------
@pytest.mark.parametrize("name", [n for n in WRITERS if not n.endswith(".eph")])
def test_what_was_written_is_read(tmp_path: Path, name: str) -> None:
    contents = read(written(tmp_path, name))
    current = one(contents, "current")[:, :N_SAMPLES]
    rounded = {"a.wcp": 0.07, "b.wcp": 0.25, "a.abf": 0.01}
    np.testing.assert_allclose(
        current, CURRENT[: len(current)], rtol=0, atol=rounded.get(name, 1e-9)
    )
    assert contents.n_sweeps == (1 if name == "c.ibw" else N_SWEEPS)
    assert contents.sampling_ms == pytest.approx(SAMPLING_MS, rel=1e-12)
    if any(signal.kind == "voltage" for signal in contents.signals):
        near = 0.01 if name.endswith(".wcp") else 1e-9
        np.testing.assert_allclose(one(contents, "voltage")[:, :N_SAMPLES], COMMAND, atol=near)
    else:
        assert name.endswith((".ibw", ".abf", ".csv"))


@pytest.mark.parametrize("name", ["a.ibw", "b.ibw", "c.ibw"])
def test_igor2_reads_the_same_numbers(name: str, tmp_path: Path) -> None:
    binarywave = pytest.importorskip("igor2.binarywave")
    path = written(tmp_path, name)
    (found,) = read(path).signals
    theirs = np.atleast_2d(binarywave.load(str(path))["wave"]["wData"].T)
    np.testing.assert_array_equal(found.values, theirs * 1e3)


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_heka_bundle_tells_stimulus_amplifier_and_starts(tmp_path: Path, order: str) -> None:
    found = read(write_heka(tmp_path / "a.dat", order))
    assert found.holding_mV == -80
    for v, sweep in zip((-40, 0, 40), found.epochs, strict=True):
        rest = Epoch("step", -80, -80, 1)
        assert sweep == (rest, Epoch("step", v, v, 2), rest)
    assert found.clamp == pytest.approx(
        {
            "membrane_capacitance_pF": 12.5,
            "series_resistance_MOhm": 10,
            "seal_resistance_MOhm": 2000,
            "lowpass_kHz": 2.9,
            "compensation": 0.7,
        }
    )
    assert found.start_ms is not None
    assert found.start_ms.tolist() == [0, 5000, 10000]


def test_a_series_of_a_heka_bundle_is_chosen_by_number_or_label(tmp_path: Path) -> None:
    path = write_heka(tmp_path / "a.dat", several=True)
    with pytest.raises(
        InputError, match=r'holds 2 series; choose one.*"1/1".*1/2 \(cell 1/IV 1, 3'
    ):
        read(path)
    for name in ("1/2", "cell 1/IV 1", "1/IV 1"):
        np.testing.assert_allclose(one(read(path, series=name), "current"), 2 * CURRENT, rtol=1e-12)
    with pytest.raises(InputError, match='"3/1" names none of its 2 series'):
        read(path, series="3/1")
    with pytest.raises(InputError, match="has no meaning for .csv files"):
        read(written(tmp_path, "english.csv"), series="1/1")


def test_myokit_reads_the_same_of_a_heka_bundle(tmp_path: Path) -> None:
    heka = pytest.importorskip("myokit.formats.heka")
    path = write_heka(tmp_path / "a.dat")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its reader is new
        with heka.PatchMasterFile(str(path)) as file:
            series = next(iter(file))[0]
            theirs = np.array([[trace.values() for trace in sweep] for sweep in series])
            assert series[0][0].c_slow() == pytest.approx(12.5)
            assert series.amplifier_state().r_series_fraction() == 0.7
    ours = read(path)
    for k, signal in enumerate(ours.signals):
        np.testing.assert_allclose(signal.values, theirs[:, k] * signal.factor, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"stimulus": {(1, 44): ("i", 2)}}, "takes durations from parameters"),
        ({"stimulus": {(1, 16): ("i", 2)}}, "takes voltages from parameters"),
        ({"stimulus": {(1, 20): ("d", 2.0)}}, "by a factor, or in a mixed order"),
        ({"stimulus": {(1, 6): ("B", 4)}}, "by a factor, or in a mixed order"),
        ({"stimulus": {(0, 5): ("B", 0)}}, "has parts that are not stored"),
        ({"stimulus": {(1, 8): ("d", 9.0)}}, "is damaged"),
        ({"stimulus": {(1, 36): ("d", 9e-3)}}, "not as long as the samples"),
        ({"channel": {76: ("H", 7)}}, "comes from a file of its own"),
        ({"channel": {40: ("8s", b"A")}}, "has no output in V"),
        ({"channel": {76: ("H", 1)}}, "recorded command differs from the stimulus"),
        ({"channel": {48: ("d", -0.07)}}, "recorded command differs from the stimulus"),
    ],
)
def test_a_stimulus_of_heka_that_did_not_run_is_not_believed(
    tmp_path: Path, given: Any, said: str
) -> None:
    found = read(write_heka(tmp_path / "a.dat", **given))
    assert said in " ".join(found.notes)
    assert found.epochs == ()


def test_a_ramp_and_sweeps_from_the_last_of_heka(tmp_path: Path) -> None:
    given = {(1, 6): ("B", 1), (2, 4): ("B", 1), (2, 16): ("i", 0), (2, 8): ("d", 0.01)}
    path = write_heka(tmp_path / "a.dat", stimulus=given, trace={96: ("8s", b"A")})
    found = read(path)  # without a recorded voltage, which would contradict it
    assert [sweep[1].end_mV for sweep in found.epochs] == [40, 0, -40]
    last = found.epochs[0][2]
    assert (last.kind, last.start_mV, last.end_mV) == ("ramp", 40, -70)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: b"DAT1" + data[4:], "save it as a bundle"),
        (lambda data: b"RIFF" + data[4:], "of an unknown program"),
        (lambda data: data[:100], "within the header"),
        (lambda data: data[:-50], "it is cut off"),
        (lambda data: data.replace(b"eerT", b"eert"), "a tree of records ends before its end"),
        (lambda data: data.replace(b".pgf", b".pgg"), "without its part .pgf"),
    ],
)
def test_damaged_heka_bundles_are_refused(tmp_path: Path, damage: Any, said: str) -> None:
    path = write_heka(tmp_path / "a.dat")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=said):
        read(path)


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        ({292: ("i", 80), 296: ("i", 160)}, "its traces are interleaved"),
        ({44: ("i", 2**30)}, "a trace of 1,073,741,824 samples"),
        ({40: ("i", -1)}, "from byte -1"),
        ({70: ("B", 9)}, "samples of an unknown kind"),
        ({104: ("d", 0.0)}, "sampled every 0 ms"),
        ({120: ("8s", b"V")}, "not along time"),
        ({68: ("B", 4)}, "recorded under current clamp"),
        ({136: ("d", 1e-12)}, "with an offset of its own"),
        ({70: ("B", 2), 44: ("i", 20)}, "in floating point that have a scale"),
    ],
)
def test_traces_of_heka_that_cannot_be_used(tmp_path: Path, trace: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(write_heka(tmp_path / "a.dat", trace=trace))


def test_numbers_of_an_igor_wave_without_a_sign_have_none(tmp_path: Path) -> None:
    path = write_ibw(tmp_path / "a.ibw")
    stored = bytearray(path.read_bytes())
    struct.pack_into("<h", stored, 64 + 16, 0x10 | 0x40)  # of two bytes, unsigned
    struct.pack_into("<2H", stored, 384, 40000, 3)
    path.write_bytes(stored)
    (found,) = read(path).signals
    assert found.values[0, :2].tolist() == [4e7, 3e3]  # nA in pA


def test_nwb_tells_what_the_amplifier_did(tmp_path: Path) -> None:
    contents = read(written(tmp_path, "b.nwb"))
    assert contents.labels == ("answer_9", "answer_10", "answer_11")
    np.testing.assert_allclose(contents.start_ms, [0.0, 5000.0, 10000.0])
    clamp = dict(contents.clamp)
    np.testing.assert_allclose(clamp.pop("series_resistance_MOhm"), [8.0, 9.0, 10.0])
    assert clamp == pytest.approx(
        {"pipette_capacitance_pF": 4.0, "membrane_capacitance_pF": 20.0, "compensation": 0.7}
        | {"seal_resistance_MOhm": 1200.0}
    )


def test_commands_of_nwb_follow_the_table_of_recordings(tmp_path: Path) -> None:
    """Else sweep numbers join a response and its stimulus; here only the table can."""
    path = written(tmp_path, "b.nwb")
    with h5py.File(path, "a") as file:
        for group in ("acquisition", "stimulus/presentation"):
            for series in file[group].values():
                series.attrs.modify("sweep_number", np.uint64(0))
    np.testing.assert_allclose(one(read(path), "voltage"), COMMAND)


def test_the_protocol_of_a_syncropatch_lies_beside_its_table(tmp_path: Path) -> None:
    path = tmp_path / "plate-A13-before.csv"
    rows = [",".join(map(str, row)) for row in CURRENT.T]
    path.write_text("\n".join(["one,two,three", *rows]) + "\n")
    assert np.isnan(read(path).sampling_ms)
    write_eph(tmp_path / "steps.eph")
    contents = read(path)
    assert contents.sampling_ms == SAMPLING_MS
    assert contents.holding_mV == -80.0
    assert [(e.kind, e.start_mV, e.end_mV, e.duration_ms) for e in contents.epochs[0]] == [
        ("step", -80.0, -80.0, 1.0),
        ("step", -40.0, -40.0, 2.0),
        ("ramp", -40.0, -80.0, 1.0),
    ]
    assert "steps.eph" in contents.notes[-1]
    text = (tmp_path / "steps.eph").read_text().replace("   2.0\t", "   3.0\t")
    (tmp_path / "long.eph").write_text(text)
    with pytest.raises(InputError, match="40 samples, but the protocol long.eph has 50"):
        read(path, protocol=tmp_path / "long.eph")


def test_the_json_of_a_syncropatch_tells_protocol_and_measures(tmp_path: Path) -> None:
    plate = [[None] * 16 for _ in range(24)]
    plate[12][0] = 1.5e9  # well A13
    times = [k * SAMPLING_MS / 1e3 for k in range(N_SAMPLES)]
    keys = ("SegmentStart_ms", "Duration ms", "VoltageStart", "VoltageEnd")
    segments = [dict(zip(keys, row, strict=True)) for row in ((0, 1, -80, -80), (1, 3, -80, 40))]
    document = {
        "TraceHeader": {"TimeScaling": {"TR_Time": times, "SweepTime": [[10.0, 20.0, 30.0]]}},
        "ExperimentConditions": {"VoltageProtocol": segments},
        "QCData": {"RSeal": [plate] * N_SWEEPS},
    }
    (tmp_path / "plate.json").write_text(json.dumps(document))
    path = tmp_path / "plate-A13.csv"
    path.write_text(
        "sweep 1,sweep 2,sweep 3\n" + "\n".join(",".join(map(str, row)) for row in CURRENT.T)
    )
    contents = read(path)
    assert contents.sampling_ms == pytest.approx(SAMPLING_MS)
    assert [e.kind for e in contents.epochs[2]] == ["step", "ramp"]
    np.testing.assert_allclose(contents.clamp["seal_resistance_MOhm"], [1500.0] * 3)
    np.testing.assert_allclose(contents.start_ms, [1e4, 2e4, 3e4])


# --- tables as they are ---------------------------------------------------------------------------
def columns(path: Path, text: str, **choices: Any) -> np.ndarray:
    path.write_text(text)
    return np.vstack([s.values for s in read(path, **choices).signals])


def test_decimal_commas(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    np.testing.assert_array_equal(columns(path, "1,5;2,25\n-3,5;4\n"), [[1.5, -3.5], [2.25, 4]])
    np.testing.assert_array_equal(columns(path, "x\ty\n0,125\t1e-3\n"), [[0.125], [1e-3]])
    with pytest.raises(InputError, match=r'line 1: "1,234" may have a decimal comma or one betw'):
        columns(path, "1,234;5\n6,789;1\n")
    np.testing.assert_array_equal(columns(path, "1,234;5\n6,7;1\n"), [[1.234, 6.7], [5, 1]])
    np.testing.assert_array_equal(columns(path, "1,234;5\n", decimal="comma"), [[1.234], [5]])
    np.testing.assert_array_equal(columns(path, "1,5\n2,5\n", decimal="comma"), [[1.5, 2.5]])
    with pytest.raises(InputError, match=r'line 2: "1.234,5".*thousands'):
        columns(path, "1,5;2\n1.234,5;2\n")
    with pytest.raises(InputError, match="decimal"):
        columns(path, "1,5;2\n", decimal="point")


def test_a_family_is_headed_by_its_voltages(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("-80.0,-75.0,-70.0\n0.1,0.2,0.3\n0.4,0.5,0.6\n")
    contents = read(path)
    assert contents.labels == ("-80.0", "-75.0", "-70.0")
    np.testing.assert_array_equal(contents.signals[0].values, [[0.1, 0.4], [0.2, 0.5], [0.3, 0.6]])


def test_traces_of_patchmaster_are_sweeps(tmp_path: Path) -> None:
    """Each is a variable of times, s, and values; here of two signals."""
    times = np.arange(N_SAMPLES) * SAMPLING_MS / 1e3
    traces = {}
    for k in range(N_SWEEPS):
        traces[f"Trace_1_4_{k + 1}_1"] = np.column_stack([times, CURRENT[k] * 1e-12])
        traces[f"Trace_1_4_{k + 1}_2"] = np.column_stack([times, COMMAND[k] * 1e-3])
    scipy_io.savemat(tmp_path / "m.mat", dict(reversed(traces.items())))
    contents = read(tmp_path / "m.mat")
    assert contents.sampling_ms == SAMPLING_MS
    named = {s.name: s.values for s in contents.signals}
    assert set(named) == {"Trace_1_4_*_1", "Trace_1_4_*_2"}
    np.testing.assert_allclose(named["Trace_1_4_*_1"] * 1e12, CURRENT)


def test_matrices_are_turned_as_found_or_told(tmp_path: Path) -> None:
    path = tmp_path / "m.mat"
    for stored in (CURRENT, CURRENT.T):
        scipy_io.savemat(path, {"I": stored})
        np.testing.assert_array_equal(read(path).signals[0].values, CURRENT)
    square = np.arange(9.0).reshape(3, 3)
    scipy_io.savemat(path, {"I": square})
    with pytest.raises(InputError, match="3 x 3 may be turned either way"):
        read(path)
    told = {"sweeps x samples": square, "samples x sweeps": square.T}
    for layout, expected in told.items():
        np.testing.assert_array_equal(read(path, layout=layout).signals[0].values, expected)
    with pytest.raises(InputError, match=r'layout: "rows" is not one of sweeps x samples'):
        read(path, layout="rows")


# --- real files -----------------------------------------------------------------------------------

#: File: format, sweeps, samples, ms, signals with units, epochs of the last sweep.
REAL: dict[str, tuple[str, int, int, float, str, str]] = {
    "abf/171116sh_0013.abf": ("ABF 2", 13, 20000, 0.05, "IN 0 pA", "s-55 r-50 s-50"),
    "abf/user-list-durations.abf": ("ABF 2", 3, 51612, 0.5, "IN 0 pA, AO #0 mV", ""),
    "formats/abf-v2.abf": ("ABF 2", 37, 516, 0.05, "IN 0 pA", "s-120 s80 s-120"),
    "formats/model_vc_ramp.abf": ("ABF 2", 50, 2400, 0.05, "IN 0 pA", "s-70 r-80 r-70 s-70"),
    "formats/invalidDate-abf1.abf": ("ABF 1", 50, 2400, 0.05, "1 pA", ""),
    "formats/18702001-cosTrain.abf": (
        "ABF 2", 3, 20000, 0.05, "IN 0 pA, IN 1 A", "s-70 s-80 s-70 r-80 r-70 s-70",
    ),
    "formats/wcp-file.wcp": ("WinWCP", 11, 256, 1.0, "Im pA, Vm mV", ""),
    "herg_sine_wave/sine_wave_16713110.mat": ("MATLAB", 1, 80000, np.nan, "T ", ""),
    "herg_syncropatch/herg25oc1-staircaseramp-A13-before.csv.gz": (
        "SyncroPatch (text, gzip, eph)", 1, 77000, 0.2, "current ", "... s-70 r-110 s-120 s-80",
    ),
    "nav_iv/220314_001_ch1_NaIV_25C_80CP.csv.gz": (
        "text, gzip", 24, 1000, np.nan, "columns ", "",
    ),
    "nav_iv/ina-steps-2.txt": ("step list", 1, 0, np.nan, "", "... s-100 s-100 s35 s-100"),
}  # fmt: skip


@needs_data
@pytest.mark.parametrize("name", REAL)
def test_real_files_open(name: str) -> None:
    kind, n_sweeps, n_samples, sampling, signals, epochs = REAL[name]
    contents = read(DATA / name)
    assert (contents.format, contents.n_sweeps, contents.n_samples) == (kind, n_sweeps, n_samples)
    assert contents.sampling_ms == pytest.approx(sampling, nan_ok=True)
    assert ", ".join(f"{s.name} {s.unit}" for s in contents.signals) == signals
    found = [f"{e.kind[0]}{e.end_mV:g}" for e in (contents.epochs or ((),))[-1]]
    if epochs.startswith("..."):
        found = ["...", *found[1 - len(epochs.split()) :]]
    assert " ".join(found) == epochs
    for sweep in contents.epochs if contents.signals else ():
        total = sum(epoch.duration_ms for epoch in sweep)
        assert total == pytest.approx(n_samples * contents.sampling_ms)


@needs_data
@pytest.mark.parametrize(
    "name", [n for n in REAL if n.endswith((".abf", ".wcp")) and "invalid" not in n]
)
def test_neo_reads_the_same_numbers(name: str) -> None:
    """pyABF's numbers against Neo's own reader of ABF; of WinWCP, where Neo reads, the gains."""
    rawio = pytest.importorskip("neo.rawio")
    path = DATA / name
    contents = read(path)
    reader = (rawio.AxonRawIO if path.suffix == ".abf" else rawio.WinWcpRawIO)(str(path))
    reader.parse_header()
    streams = range(reader.signal_streams_count())
    for sweep in {0, contents.n_sweeps - 1}:
        rows = [
            reader.rescale_signal_raw_to_float(
                reader.get_analogsignal_chunk(0, sweep, stream_index=k), "float64", stream_index=k
            )
            for k in streams
        ]
        expected = np.concatenate(rows, axis=1).T
        for signal, row in zip(contents.signals, expected, strict=True):
            stored = signal.values[sweep] / signal.factor
            np.testing.assert_allclose(stored, row, rtol=1e-6, atol=1e-6 * np.abs(row).max())


# --- what cannot be used --------------------------------------------------------------------------
@pytest.mark.parametrize("name", [n for n in WRITERS if n[0] in "abges"])
def test_damaged_files_end_in_one_message(tmp_path: Path, name: str) -> None:
    """Cut anywhere, empty, or with bytes changed: it is read, or one message names the file."""
    whole = written(tmp_path, name).read_bytes()
    random = np.random.default_rng(sum(map(ord, name)))
    mutants = [whole[:n] for n in (0, 1, 3, 130, len(whole) // 3, len(whole) // 2)]
    for _ in range(8):
        bytes_ = bytearray(whole)
        for place in random.integers(0, min(len(whole), 3000), 4):
            bytes_[place] = random.integers(256)
        mutants.append(bytes(bytes_))
    path = tmp_path / f"fuzzed{Path(name).suffix}"
    refused = 0
    for mutant in mutants:
        path.write_bytes(mutant)
        try:
            read(path)
        except InputError as error:
            refused += 1
            assert str(path) in str(error)
            assert "\n" not in str(error)
    assert refused >= 3


def hostile_link(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["I"] = CURRENT
        file["more"] = h5py.ExternalLink("/etc/passwd", "/x")


def hostile_storage(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("I", (8,), "u1", external=[("/etc/hostname", 0, 8)])


def hostile_size(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("I", (10**6, 10**6), "f8", chunks=(1000, 1000), compression="gzip")


def hostile_nwb(path: Path) -> None:
    write_nwb(path)
    with h5py.File(path, "a") as file:
        file["acquisition/else"] = h5py.ExternalLink("other.nwb", "/acquisition/x")


def hostile_ibw(path: Path) -> None:
    stored = bytearray(write_ibw(path).read_bytes())
    stored[64 + 68 : 64 + 76] = np.array([2**31 - 1, 2**31 - 1], "<i4").tobytes()
    path.write_bytes(stored)


def hostile_wcp(path: Path) -> None:
    path.write_bytes(write_wcp(path).read_bytes().replace(b"NR=3", b"NR=999999999", 1))


def hostile_gz(path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(101):
            file.write(b"0\n" * 5_000_000)


@pytest.mark.parametrize(
    ("name", "write", "said"),
    [
        ("r.h5", hostile_link, "link to another file"),
        ("r.h5", hostile_storage, "is stored in another file"),
        ("r.h5", hostile_size, "more than 50,000,000 numbers"),
        ("r.nwb", hostile_nwb, "link to another file"),
        ("r.ibw", hostile_ibw, "the header announces"),
        ("r.wcp", hostile_wcp, "the header announces 999,999,999 records"),
        ("r.csv.gz", hostile_gz, "holds more than"),
    ],
)
def test_hostile_files(tmp_path: Path, name: str, write: Callable[[Path], None], said: str) -> None:
    if name.endswith((".nwb", ".wcp")):
        pytest.importorskip("pynwb" if name.endswith("nwb") else "neo")
    path = tmp_path / name
    write(path)
    with pytest.raises(InputError, match=said):
        read(path)


def test_an_amplifier_tells_its_filter_and_100_khz_is_none() -> None:
    """As pyABF alone shows the headers."""
    pyabf = pytest.importorskip("pyabf")
    shipped = ROOT / "models/recordings/abf/171116sh_0013.abf"
    section = pyabf.ABF(str(shipped), loadData=False)._adcSection
    assert section.nTelegraphEnable[0] == 1
    assert read(shipped).clamp["lowpass_kHz"] == section.fTelegraphFilter[0] / 1e3 == 2.0


@pytest.mark.parametrize(("off_mV", "same"), [(-20.0, False), (1.0, True), (20.0, False)])
def test_a_recorded_command_beside_the_nominal_one_is_another(off_mV: float, same: bool) -> None:
    epochs = [(Epoch("step", -80.0, -80.0, 1.0), Epoch("ramp", 0.0, 40.0, 1.0))]
    command = np.concatenate([np.full(10, -80.0), np.linspace(0.0, 40.0, 10)])
    assert agree(epochs, command[None] + off_mV, 0.1) is same


def test_a_recording_under_current_clamp_is_no_recorded_command(tmp_path: Path) -> None:
    """The shipped file with the units of its input and its output exchanged."""
    pytest.importorskip("pyabf")
    shipped = ROOT / "models/recordings/abf/171116sh_0013.abf"
    whole = shipped.read_bytes()
    assert b"\x00pA\x00" in whole
    assert b"\x00mV\x00" in whole
    turned = whole.replace(b"\x00pA\x00", b"\x00??\x00").replace(b"\x00mV\x00", b"\x00pA\x00")
    (tmp_path / "cc.abf").write_bytes(turned.replace(b"\x00??\x00", b"\x00mV\x00"))
    with pytest.raises(InputError, match="recorded under current clamp .the command is in pA"):
        read(tmp_path / "cc.abf")


def test_choices_that_mean_nothing_and_formats_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    for name, choice, said in (
        ("a.ibw", {"decimal": "comma"}, r'decimal: "comma" has no meaning for .ibw files'),
        ("a.mat", {"header": True}, r"header: True has no meaning for .mat files"),
        (
            "a.mat",
            {"layout": "sweeps x samples"},
            "I_pA: its sweeps do not have 40 samples, as its",
        ),
    ):
        with pytest.raises(InputError, match=said):
            read(written(tmp_path, name), **choice)
    for begin, said in ((b"DAT2", "a bundle without its part .pgf"), (b"PNG", "unknown program")):
        (tmp_path / "cell.dat").write_bytes(begin + bytes(2000))
        with pytest.raises(InputError, match=said):
            read(tmp_path / "cell.dat")
