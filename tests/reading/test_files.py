"""Files that are written: whole or not at all, and never through a link that somebody prepared."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import channelfit as cf
from channelfit.batch.table import WellTable, texts
from channelfit.fitzhugh_nagumo import pictures
from channelfit.fitzhugh_nagumo.simulation import Run
from channelfit.reading import files
from channelfit.reading.errors import InputError
from channelfit.results.report import plots, print_figures
from channelfit.results.run_folder import RunFolder
from channelfit.results.run_state import host
from channelfit.tasks.records import Records
from support.places import ROOT

MODEL = ROOT / "models/model_a.yaml"
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="few may make links on Windows")
CABLE = Run(np.arange(5.0), np.arange(3.0), np.ones((3, 1, 5)), np.zeros((3, 1, 5)), {"steps": 3})


def table(folder: Path) -> None:
    WellTable({"well": texts(["A1"]), "g": np.array([1.5])}).write(folder)


#: By the name of a file, what writes it into a folder.
WRITERS: dict[str, Callable[[Path], object]] = {
    "a.txt": lambda folder: files.write_text(folder / "a.txt", "text"),
    "model.yaml": lambda folder: cf.Model.load(MODEL).save(folder / "model.yaml", True),
    "x.png": lambda folder: plots.save(Figure(), folder / "x.png"),
    "x.svg": lambda folder: print_figures.save_named([("x", Figure())], folder, ["svg"]),
    "x.pdf": lambda folder: print_figures.save_named([("x", Figure())], folder, ["pdf"]),
    "results.npz": lambda folder: CABLE.save(folder / "results.npz"),
    "results.h5": lambda folder: CABLE.save(folder / "results.h5"),
    "animation.gif": lambda folder: pictures.animate(CABLE, folder / "animation.gif"),
    "wells.csv": table,
}


@POSIX
@pytest.mark.parametrize("name", WRITERS)
def test_no_writer_follows_a_link_that_somebody_has_prepared(tmp_path, name):
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    victim.write_text("stays")
    folder.mkdir()
    stem, _, suffix = name.rpartition(".")
    for link in (name, f".{name}.partial", f".{name}.partial.png", f".{stem}.partial.{suffix}"):
        (folder / link).symlink_to(victim)
    WRITERS[name](folder)
    assert victim.read_text() == "stays"
    assert (folder / name).is_file()
    assert not (folder / name).is_symlink()
    assert os.stat(folder / name).st_size > 1


#: What may open files to write them by other means, and why.
_OTHERWISE = {
    "reading/files.py": "the one that does",
    "front/batches.py": "an example in a docstring",
    "results/files.py": "opens what is written already, to wait for the disk",
    "scoring/neuron/mechanisms.py": "a temporary folder of its own",
    "scoring/neuron/importing.py": "a temporary folder of its own",
}


#: A call that opens a file to write to it, as far as its text says.
_WRITES = re.compile(
    r'[\w)]\.write_(?:text|bytes)\(|\bos\.open\((?!os\.devnull)|\bopen\((?:[^()\n]|\([^()\n]*\))*"[rbt]*[wax+]'
)


def test_all_files_are_written_by_one_function():
    """So there is one place at which what is half written can go astray."""
    root = ROOT / "channelfit"
    found = {
        file.relative_to(root).as_posix()
        for file in root.rglob("*.py")
        if _WRITES.search(file.read_text(encoding="utf-8"))
    }
    assert found == set(_OTHERWISE)


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    file = tmp_path / "a"
    file.write_text("before")

    def half(place: Path, replaces: bool) -> None:
        with files.whole(place, replaces=replaces) as opened:
            opened.write(b"half")
            opened.flush()
            (other,) = (p for p in tmp_path.iterdir() if files.PARTIAL.fullmatch(p.name))
            assert other.read_text() == "half"
            assert file.read_text() == "before"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half(file, True)
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert file.read_text() == "before"
    with pytest.raises(FileExistsError), files.whole(file, replaces=False):
        pass
    with pytest.raises(ZeroDivisionError):
        half(tmp_path / "b", False)
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


@POSIX
@pytest.mark.parametrize("kind", ["link", "link to nothing", "second name", "pipe", "folder"])
def test_what_is_written_in_place_must_be_a_file_of_its_own(tmp_path, kind):
    victim, file = tmp_path / "victim", tmp_path / "journal.bin"
    victim.write_bytes(b"")
    if kind == "second name":
        file.hardlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to(victim if kind == "link" else tmp_path / "new")
    with pytest.raises(InputError, match=r"journal\.bin"):
        Records(file, b"begins\n", "journal")
    assert victim.read_bytes() == b""
    assert not (tmp_path / "new").exists()


def test_what_a_kill_has_left_of_files_goes_when_a_run_goes_on(tmp_path):
    dead = {"pid": 2**22 + 1, "started": "never", "host": host()}
    (tmp_path / "state.json").write_text(json.dumps({"state": "running", "process": dead}))
    (tmp_path / "resume.json").write_text("{}")
    killed = (
        "import os, sys, pathlib\n"
        "from channelfit.reading.files import whole\n"
        "with whole(pathlib.Path(sys.argv[1])) as file:\n    os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", killed, tmp_path / "history.csv"], check=False)
    assert len(list(tmp_path.glob(".history.csv.*.partial"))) == 1
    (tmp_path / ".mine").write_text("of the user")
    RunFolder().resume(tmp_path).release()
    assert not list(tmp_path.glob("*.partial"))
    assert (tmp_path / ".mine").is_file()
