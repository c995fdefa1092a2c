"""Signals of laboratories' files as recordings and commands: chosen, checked, laid out."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rig_files import COMMAND, CURRENT, N_SAMPLES, N_SWEEPS, PROTOCOL, written

from channelfit.front.kinds import load_plan
from channelfit.problem.protocol import build_protocol
from channelfit.problem.recording import load_recording
from channelfit.reading.documents import Section, dump_yaml
from channelfit.reading.errors import InputError

h5py = pytest.importorskip("h5py")
scipy_io = pytest.importorskip("scipy.io")
DATA = os.environ.get("CHANNELFIT_DATA")
real = pytest.mark.skipif(DATA is None, reason="CHANNELFIT_DATA names no folder of recordings")


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
        ({"current": {"signal": 2}}, "no signal 2; there are 1: Im_1"),
        ({"current": {"signal": 1, "unit": "pA"}}, 'current.unit: "pA", but the file says that'),
        ({"current": {"signal": 1, "unit": "mV"}}, 'unit "mV" is a voltage'),
        ({"current": {"signal": 1, "sweeps": [4]}}, "4 is not the number of a sweep of the file"),
        ({"current": {"signal": 1, "column": "x"}}, '"column" has no meaning beside'),
        ({"current": {"column": "Im_1", "unit": "nA"}}, ".ibw files have signals, no columns"),
        ({"time": {"column": "t", "unit": "s"}}, "the times of a signal are the file's"),
        ({"sampling": "0.2 ms"}, "sampling: 0.2 ms, but a.ibw is sampled every 0.1 ms"),
        ({"layout": "sweeps x samples"}, "has no meaning for .ibw files"),
    ],
)
def test_what_contradicts_the_file_is_refused(
    tmp_path: Path, keys: dict[str, Any], said: str
) -> None:
    written(tmp_path, "a.ibw")
    with pytest.raises(InputError) as caught:
        recorded(tmp_path, "a.ibw", **keys)
    assert said in str(caught.value)


def test_what_the_file_does_not_say_is_asked_for(tmp_path: Path) -> None:
    scipy_io.savemat(tmp_path / "m.mat", {"x": CURRENT / 1e3})
    for keys, said in (
        ({}, 'the file does not say in which unit "x" is'),
        ({"current": {"signal": "x", "unit": "nA"}}, "m.mat does not say how it was sampled"),
    ):
        with pytest.raises(InputError, match=said):
            recorded(tmp_path, "m.mat", **keys)
    known = {"current": {"signal": "x", "unit": "nA"}, "sampling": "0.1 ms"}
    np.testing.assert_allclose(recorded(tmp_path, "m.mat", **known), CURRENT)


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


def test_a_current_beyond_all_measure_is_refused(tmp_path: Path) -> None:
    scipy_io.savemat(tmp_path / "m.mat", {"x": CURRENT * 1e200})
    keys = {"current": {"signal": "x", "unit": "nA"}, "sampling": "0.1 ms"}
    with pytest.raises(InputError, match="pA is more than 1e\\+15 pA; is the unit right"):
        recorded(tmp_path, "m.mat", **keys)


def test_a_voltage_is_no_current(tmp_path: Path) -> None:
    written(tmp_path, "a.h5")
    with pytest.raises(InputError, match="is a voltage, in mV; a current is needed"):
        recorded(tmp_path, "a.h5", current={"signal": "cell/V"})


def test_a_matrix_of_matlab_is_turned_to_the_protocol(tmp_path: Path) -> None:
    for stored in (CURRENT, CURRENT.T):
        scipy_io.savemat(tmp_path / "m.mat", {"x": stored})
        keys = {"current": {"column": "x", "unit": "pA"}, "sampling": "0.1 ms"}
        np.testing.assert_array_equal(recorded(tmp_path, "m.mat", **keys), CURRENT)


def test_several_sweeps_of_recorded_command(tmp_path: Path) -> None:
    written(tmp_path, "a.nwb")
    segment = {"recorded": {"file": "a.nwb", "signal": "command"}, "for": 4}
    document = PROTOCOL | {"segments": [segment]}
    protocol = build_protocol(document, tmp_path / "p.yaml")
    np.testing.assert_allclose(protocol.command(), COMMAND)
    some = PROTOCOL | {"segments": [{"recorded": segment["recorded"] | {"sweeps": [2]}, "for": 4}]}
    np.testing.assert_allclose(build_protocol(some, tmp_path / "p.yaml").command(), COMMAND[1:2])
    # steps in it are found, so that `after_steps` masks them
    np.testing.assert_allclose(protocol.step_times_ms(0), [1.0, 3.0])


def test_masks_and_weights_work_for_signals(tmp_path: Path) -> None:
    """Of a file with several sweeps of recorded command; its steps are at 1 and 3 ms."""
    written(tmp_path, "a.nwb")
    segment = {"recorded": {"file": "a.nwb", "signal": "command"}, "for": 4}
    (tmp_path / "p.yaml").write_text(dump_yaml(PROTOCOL | {"segments": [segment]}))
    experiment = {
        "protocol": "p.yaml",
        "recording": {"file": "a.nwb", "current": {"signal": "current"}},
        "mask": [{"after_steps": "0.5 ms"}, {"from": 3.8, "weight": 0.25, "sweeps": [2]}],
    }
    model = Path(__file__).parent.parent / "models" / "k_hh.yaml"
    fit = {"model": str(model), "fit": {"experiments": [experiment]}}
    (tmp_path / "fit.yaml").write_text(dump_yaml(fit))
    (found,) = load_plan(tmp_path / "fit.yaml").problem.experiments
    assert found.recording is not None
    expected = np.ones((N_SWEEPS, N_SAMPLES))
    expected[:, 10:15] = expected[:, 30:35] = 0.0
    expected[1, 38:] = 0.25
    np.testing.assert_array_equal(found.recording.weight, expected)
    np.testing.assert_allclose(found.recording.current_pA, CURRENT)


@real
def test_an_abf_and_its_recorded_command_make_an_experiment(tmp_path: Path) -> None:
    shutil.copy(Path(str(DATA)) / "abf/user-list-durations.abf", tmp_path / "cell.abf")
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


def test_the_signal_that_is_named_counts(tmp_path: Path) -> None:
    scipy_io.savemat(tmp_path / "m.mat", {"long": np.arange(500.0), "short": CURRENT[0]})
    keys = {"sampling": "0.1 ms", "sweeps": [1]}
    found = recorded(tmp_path, "m.mat", current={"signal": "short", "unit": "pA"}, **keys)
    np.testing.assert_array_equal(found[0], CURRENT[0])
