"""Signals of laboratories' files as recordings and commands: chosen, checked, laid out."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from channelfit.front.kinds import load_plan
from channelfit.problem.inspection import FileOptions, inspect_file
from channelfit.problem.protocol import Protocol, build_protocol
from channelfit.problem.recording import load_recording
from channelfit.problem.sweep_labels import contradiction
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError
from support.places import DATA, ROOT, needs_data
from support.rig_files import CURRENT, N_SAMPLES, PROTOCOL, written

h5py = pytest.importorskip("h5py")


def recorded(folder: Path, name: str, **keys: Any) -> np.ndarray:
    document = {"file": name, "current": {"signal": 1}} | keys
    protocol = build_protocol(PROTOCOL, None)
    recording = load_recording(Section(document, folder / "fit.yaml", "recording"), protocol)
    assert (recording.weight == np.isfinite(recording.current_pA)).all()
    return recording.current_pA


@pytest.mark.parametrize(
    "name", ["a.nwb", "a.ibw", "a.abf", "a.mat", "b.mat", "a.h5", "german.csv"]
)
def test_a_signal_is_fitted_to(tmp_path: Path, name: str) -> None:
    written(tmp_path, name)
    np.testing.assert_allclose(recorded(tmp_path, name), CURRENT, atol=0.01)


def test_sweeps_of_a_file_are_chosen(tmp_path: Path) -> None:
    written(tmp_path, "a.ibw")
    some = recorded(tmp_path, "a.ibw", current={"signal": "Im_1", "sweeps": [3, 1]}, sweeps=[1, 2])
    np.testing.assert_allclose(some, [CURRENT[2], CURRENT[0], [np.nan] * N_SAMPLES])


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"current": {"signal": "I"}}, 'no signal "I"; there are 1: Im_1'),
        ({"current": {"signal": 1, "unit": "pA"}}, 'current.unit: "pA", but the file says that'),
        ({"current": {"signal": 1, "sweeps": [4]}}, "4 is not the number of a sweep of the file"),
        ({"current": {"column": "Im_1", "unit": "nA"}}, ".ibw files have signals, no columns"),
        ({"time": {"column": "t", "unit": "s"}}, "the times of a signal are the file's"),
    ],
)
def test_what_contradicts_the_file_is_refused(tmp_path, keys, said):
    written(tmp_path, "a.ibw")
    with pytest.raises(InputError, match=re.escape(said)):
        recorded(tmp_path, "a.ibw", **keys)


def test_a_unit_that_is_no_current_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = CURRENT
        file["x"].attrs["unit"] = "pF"
        file["y"] = CURRENT
        file["y"].attrs["unit"] = "pA/pF"
    keys: dict[str, Any] = {"sampling": "0.1 ms", "current": {"signal": "x"}}
    with pytest.raises(InputError, match='the file says that "x" is in pF: unit "pF" is a capac'):
        recorded(tmp_path, "a.h5", **keys)
    keys["current"] = {"signal": "y"}
    with pytest.raises(InputError, match="needs a capacitance"):
        recorded(tmp_path, "a.h5", **keys)
    keys["current"] = {"signal": "y", "capacitance": "20 pF"}
    np.testing.assert_allclose(recorded(tmp_path, "a.h5", **keys), 20 * CURRENT)


@needs_data
def test_an_abf_and_its_recorded_command_make_an_experiment(tmp_path: Path) -> None:
    shutil.copy(DATA / "abf/user-list-durations.abf", tmp_path / "cell.abf")
    command = {"recorded": {"file": "cell.abf", "signal": "AO #0"}}
    document = {"name": "p", "holding": -35, "sampling": 0.5, "segments": [command]}
    # the last sample ends the command and is none of its own
    document["segments"] = [command | {"for": 51612 * 0.5}]
    protocol = build_protocol(document, tmp_path / "p.yaml")
    assert (protocol.n_sweeps, protocol.n_times_max) == (3, 51612)
    section = Section({"file": "cell.abf", "current": {"signal": "IN 0"}}, tmp_path / "fit.yaml")
    recording = load_recording(section, protocol)
    assert recording.current_pA.shape == (3, 51612)
    assert len(protocol.step_times_ms(0)) >= 3


UPWARD = [-80.0 + 5 * k for k in range(24)]


def test_voltages_that_head_columns_are_compared_with_the_protocol():
    for labels, levels, said in (
        (UPWARD, UPWARD, ""),
        (UPWARD[::-1], UPWARD, "24, 23, 22"),
        (UPWARD, [v - 10 for v in UPWARD], "headed -80 mV, .* gives this sweep -90 mV .24 of 24"),
        ([f"{v / 1e3} V" for v in UPWARD], UPWARD, ""),
        ([f"{v:g} mV" for v in UPWARD[::-1]], UPWARD, "24, 23, 22"),
        ([f"sweep {k}" for k in range(24)], UPWARD, ""),
    ):
        family = Protocol.steps(levels, duration=20, holding=-100, sampling=0.5)
        found = contradiction([str(x) for x in labels], range(len(levels)), family)
        assert bool(found) == bool(said)
        assert found is None or re.search(said, " ".join(found))


@pytest.mark.parametrize("kind", ["columns: all, unit: nA", "signal: columns, unit: nA"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_real_family_with_columns_in_another_order(tmp_path, kind, turned):
    """The shipped recording of sodium currents, its columns from 35 to -80 mV."""
    shipped = ROOT / "models/recordings/nav_iv/220314_001_ch1_NaIV_25C_80CP.csv.gz"
    table = np.genfromtxt(shipped, delimiter=",")[:, :: -1 if turned else 1]
    rows = "\n".join(",".join(f"{x:.6g}" for x in row) for row in table)
    (tmp_path / "iv.csv").write_text(rows)
    (tmp_path / "fit.yaml").write_text(
        f"model: {ROOT}/models/na_nav15.yaml\nfit:\n  experiments:\n"
        f"    - protocol: {ROOT}/protocols/na_iv.yaml\n      mask: [{{after_steps: 0.3 ms}}]\n"
        f"      recording: {{file: iv.csv, sampling: 0.04 ms, current: {{{kind}}}"
        + (", header: true}\n" if "columns:" in kind else "}\n")
    )
    told = [str(c) for c in load_plan(tmp_path / "fit.yaml").cautions]
    assert len(told) == turned, told
    if turned:
        assert "fit.experiments[1].recording: the column of sweep 1 is headed 35 mV" in told[0]
        assert "gives this sweep -80 mV (24 of 24 sweeps differ)" in told[0]
    found = inspect_file(
        tmp_path / "iv.csv",
        FileOptions(unit="nA", sampling_ms=0.04, command=ROOT / "protocols/na_iv.yaml"),
    )
    assert any("is headed" in str(c) for c in found.cautions) == turned
