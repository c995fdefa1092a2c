"""Foreign binary formats are read by a process of its own, which may die without harm."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from channelfit.reading import second_process
from channelfit.reading.errors import InputError
from channelfit.reading.second_process import read_in_process
from channelfit.reading.tables import read_columns

pytestmark = pytest.mark.integration

HERE = f"{__name__}:"


def arrays(path: Path) -> dict[str, np.ndarray | str]:
    print("what a library prints is no part of the answer")
    whole = np.arange(6, dtype=np.int16).reshape(2, 3)
    return {
        "a b": whole.T,
        "none": np.zeros((0, 4)),
        "bad": "no numbers",
        "who": np.array([os.getpid()]),
    }


def loaded(path: Path) -> dict[str, np.ndarray | str]:
    return {"wave": np.array([float("wave" in sys.modules)])}


def broken(path: Path) -> dict[str, np.ndarray | str]:
    os.kill(os.getpid(), signal.SIGTERM if sys.platform == "win32" else signal.SIGSEGV)
    return {}


def endless(path: Path) -> dict[str, np.ndarray | str]:
    time.sleep(600)
    return {}


def refused(path: Path) -> dict[str, np.ndarray | str]:
    raise InputError("has no sweeps", path, "header")


def greedy(path: Path) -> dict[str, np.ndarray | str]:
    return {"zeros": np.ones(1 << 50)}


@pytest.fixture(autouse=True)
def _ended():
    yield
    second_process.end()


def test_arrays_and_refusals_come_back_by_name(tmp_path):
    found = read_in_process(HERE + "arrays", tmp_path / "x", "a file")
    assert found["a b"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert found["a b"].dtype == float
    assert found["none"].shape == (0, 4)
    assert found["bad"] == "no numbers"
    assert found["who"].tolist() != [os.getpid()]


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        ("refused", "one.dat: header: has no sweeps"),
        ("broken", "one.dat: not a DAT file that can be used: the process that read it ended with"),
        ("endless", "one.dat: not a DAT file .* the process that read it took more than 0.5 s"),
        ("greedy", "one.dat: there is not enough memory to read it"),
        ("no_such", "one.dat: it cannot be used: AttributeError: .*no_such"),
    ],
)
def test_a_process_that_fails_is_one_message(tmp_path, reader, said):
    with pytest.raises(InputError, match=said):
        read_in_process(
            HERE + reader, tmp_path / "one.dat", "a DAT file", 0.5 + 9.5 * (reader != "endless")
        )
    assert "a b" in read_in_process(HERE + "arrays", tmp_path / "x", "a file")


def test_without_a_second_process_this_one_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    assert read_in_process(HERE + "arrays", tmp_path / "x", "a file")["who"].tolist() == [
        os.getpid()
    ]


def test_every_byte_of_a_matlab_file_may_be_any_other(tmp_path):
    """SciPy is brought down by some of them, such as a type of number that there is not."""
    file = tmp_path / "cell.mat"
    savemat(file, {"t": np.arange(3.0), "i": np.arange(3.0)})
    whole = file.read_bytes()
    for place in range(128, len(whole), 8):
        for byte in (0xFF, 0x0E, 0x13):
            file.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
            try:
                read_columns(file)
            except InputError as error:
                assert error.file == str(file)


def test_a_library_is_loaded_before_the_file_comes(tmp_path):
    """By the process that then reads the file, also where there is no such library."""
    second_process.load("wave")
    second_process.load("no_such_library")
    ready = second_process._child[1]
    found = read_in_process(HERE + "loaded", tmp_path / "x", "a file")
    assert found["wave"].tolist() == [1.0]
    assert second_process._child[1] is ready
