"""Machine code that is kept: used only where it can be trusted, and never needed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from channelfit.scoring.layout import held_compression, orthogonal
from channelfit.scoring.machine import cache, machine_code
from channelfit.scoring.machine.announcements import listening
from channelfit.scoring.machine.kernel_text import Source
from channelfit.scoring.machine.machine_code import Kernel

TEXT = "def f(a):\n    for k in range(a.size):\n        a[k] = a[k] + 1.5\n"
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="owners and modes are POSIX's")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache folder."""
    monkeypatch.setenv("CHANNELFIT_CACHE", str(tmp_path / "cache"))
    cache._made.cache_clear()
    cache._without.cache_clear()
    yield tmp_path / "cache"
    cache._made.cache_clear()
    cache._without.cache_clear()


class Compilations:
    """Counts what is announced."""

    def __init__(self) -> None:
        self.compiled: list[str] = []

    def begins(self, what: str) -> None:
        self.compiled.append(what)

    def ends(self) -> None:
        """Nothing is done then."""


def compilations(text: str = TEXT) -> int:
    """Count the compilations of a new process that runs a text, rightly."""
    heard, a = Compilations(), np.arange(3.0)
    with listening(heard):
        Kernel(Source(text, "a text"), "f")(a)
    assert a.tolist() == [1.5, 2.5, 3.5]
    return len(heard.compiled)


def test_what_is_compiled_once_is_loaded_then(folder, monkeypatch):
    """Another text, processor or compiler is another file."""
    assert [compilations(), compilations(), compilations()] == [1, 0, 0]
    (file,) = (folder / "objects").iterdir()
    assert b"pickle" not in file.read_bytes()
    assert compilations(TEXT + "\n# another text\n") == 1
    triple, cpu, features = machine_code._processor()
    monkeypatch.setattr(machine_code, "_processor", lambda: (triple, cpu, features + ",+mmx"))
    assert compilations() == 1
    monkeypatch.setattr(machine_code, "_compiler", lambda: "another version")
    assert compilations() == 1
    assert len(list((folder / "objects").iterdir())) == 4


DAMAGES = {
    "empty": lambda body: b"",
    "cut short": lambda body: body[: len(body) // 2],
    "one bit turned": lambda body: body[:-100] + bytes([body[-100] ^ 1]) + body[-99:],
    "longer": lambda body: body + b"more",
    "of another key": lambda body: cache._sealed("another", body[len(cache._MAGIC) + 32 :]),
    "text": lambda body: b"not machine code at all\n" * 20,
    "of an older version": lambda body: b"channelfit cache 0\n" + body[len(cache._MAGIC) :],
}


def test_a_damaged_file_is_made_again(folder):
    assert compilations() == 1
    (file,) = (folder / "objects").iterdir()
    whole = file.read_bytes()
    for kind, damage in DAMAGES.items():
        file.write_bytes(damage(whole))
        assert [compilations(), compilations()] == [1, 0], kind
        assert file.read_bytes() == whole


def test_tables_are_made_once_and_again_where_they_are_damaged(folder, monkeypatch):
    """They are the same to the bit; another program makes its own."""
    made: list[int] = []

    def counted(*arguments):
        made.append(1)
        return orthogonal.spanned(*arguments)

    def makings() -> int:
        before = len(made)
        found = held_compression.compression.__wrapped__(100)
        assert np.array_equal(found.matrix, first.matrix)
        assert np.array_equal(found.basis, first.basis)
        return len(made) - before

    monkeypatch.setattr(held_compression, "spanned", counted)
    first = held_compression.compression.__wrapped__(100)
    assert [len(made), makings()] == [1, 0]
    (file,) = (folder / "tables").iterdir()
    whole = file.read_bytes()
    for kind, damage in DAMAGES.items():
        file.write_bytes(damage(whole))
        assert [makings(), makings()] == [1, 0], kind
        assert file.read_bytes() == whole
    monkeypatch.setattr(held_compression, "program", lambda *files: "another program")
    assert [makings(), makings()] == [1, 0]
    assert held_compression.compression.__wrapped__(101).n == 101
    assert len(list((folder / "tables").iterdir())) == 3


@POSIX
def test_a_link_in_the_place_of_a_file_is_replaced(folder, tmp_path):
    assert compilations() == 1
    (file,) = (folder / "objects").iterdir()
    whole = file.read_bytes()
    (tmp_path / "a folder").mkdir()
    for name in ("a folder/of the user", "a file"):
        (tmp_path / name).write_text("stays")
    for place in (tmp_path / "a folder", tmp_path / "a file", tmp_path / "nowhere", file):
        file.unlink()
        file.symlink_to(place)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [compilations(), compilations()] == [1, 0]
        assert not file.is_symlink()
        assert file.read_bytes() == whole
        for name in ("a folder/of the user", "a file"):
            assert (tmp_path / name).read_text() == "stays"


@POSIX
def test_folder_and_files_are_the_users_alone(folder):
    before = os.umask(0)
    try:
        compilations()
    finally:
        os.umask(before)
    (file,) = (folder / "objects").iterdir()
    assert stat.S_IMODE((folder / "objects").stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o666)  # a file that others may write
    assert compilations() == 1


@POSIX
def test_a_folder_of_another_user_is_not_used(folder, monkeypatch):
    (folder / "objects").mkdir(parents=True)
    monkeypatch.setattr(cache.os, "getuid", lambda: os.stat(folder).st_uid + 1)
    with pytest.warns(RuntimeWarning, match="belongs to another user.*CHANNELFIT_CACHE"):
        assert compilations() == 1
    assert not list((folder / "objects").iterdir())


def test_without_a_cache_everything_runs_and_one_warning_says_so(folder):
    folder.write_text("a file where the folder should be")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [compilations(), compilations()] == [1, 1]
    (warning,) = caught
    assert str(folder) in str(warning.message)
    assert folder.read_text() == "a file where the folder should be"


def test_nothing_half_written_stays(folder, monkeypatch):
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        assert compilations() == 1
    assert not list((folder / "objects").iterdir())


def test_processes_that_compile_the_same_at_once_do_not_disturb_each_other(folder):
    program = (
        "import numpy as np\n"
        "from channelfit.scoring.machine.kernel_text import Source\n"
        "from channelfit.scoring.machine.machine_code import Kernel\n"
        f"a = np.zeros(3); Kernel(Source({TEXT!r}, 'a text'), 'f')(a); assert a[2] == 1.5\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) for _ in range(4)
    ]
    for process in running:
        assert process.wait(timeout=300) == 0, process.stderr.read()
    assert len(list((folder / "objects").iterdir())) == 1
