"""A share of `faults.py`: signals, damaged caches and full disks end in order, and cost nothing."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("faults.py strikes in the way of POSIX", allow_module_level=True)

import faults
from faults import AS_WANTED, FAULTS, IMPOSSIBLE, TOO_EARLY, measured
from faults import run_case as run
from support import faults_fits
from support.faults_fits import Finding, Known, Place

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    """What a fit finds without a fault."""
    return measured(tmp_path_factory.mktemp("known"))


#: Signals strike at a moment that is drawn; whichever it is, all must be as wanted.
SHARE = [("kill-cold", 0), ("term-warm", 1), ("interrupt-warm", 1), ("at-once", 1)]
SHARE += [("full-disk", 0), ("no-home", 4), ("no-home", 8), ("little-memory", 0)]
SHARE += [("damaged-cache", 1), ("damaged-cache", 2), ("resumed-batch", 1)]
SHARE.append(("small-disk-resumed-batch", 3))


@pytest.mark.parametrize(("name", "case"), SHARE)
def test_a_fault_ends_as_wanted(name: str, case: int, known: Known) -> None:
    """With a seed of its own, so that these cases are not only those of a whole run."""
    assert run(name, 14, case, known) in (AS_WANTED, TOO_EARLY, IMPOSSIBLE)


def test_what_is_not_as_wanted_is_found(known: Known, tmp_path, monkeypatch) -> None:
    """A fault that changes a result, and one that leaves half a file, are findings."""

    def other(case: int, draw: object, here: Place, known: Known) -> None:
        if here.fit().found != (known.truth[0] + 1, *known.truth[1:]):
            raise Finding("another result")

    monkeypatch.setitem(FAULTS, "other", (other, 1))
    assert run("other", 0, 0, known) == "another result"


def test_a_fit_that_hangs_tells_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Python's own words: the stack of each thread."""
    monkeypatch.setattr(faults_fits, "HANGS", 5)
    program = "import time\ndef stands_still():\n    time.sleep(600)\nstands_still()\n"
    begun = Place(tmp_path).begin(["-c", program])
    with pytest.raises(Finding, match=re.compile("no end after 5 s.*in stands_still", re.DOTALL)):
        faults_fits.ended(begun, tmp_path)
    assert begun.poll() is not None


def test_the_tables_of_several_calls_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row is there as soon as its kind is done; a later call replaces the rows of its kinds."""

    def spoiled(case: int, *_: object) -> None:
        if case == 1:
            raise Finding("spoiled")

    def stopped(*_: object) -> None:
        raise subprocess.SubprocessError

    def rows(name: str = "faults") -> dict[str, tuple[float, float]]:
        table = json.loads((tmp_path / f"{name}.json").read_text())["rows"]
        return {row["name"]: (row["value"], row["against"]) for row in table}

    def called(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["faults.py", *words, "--out", str(tmp_path)])
        return faults.main_program()

    monkeypatch.setattr(faults, "measured", lambda folder: Known(folder, (), {}))
    fine = lambda *_: None
    for name, does in (("full-disk", spoiled), ("read-only", fine), ("no-home", stopped)):
        monkeypatch.setitem(FAULTS, name, (does, 4))
    monkeypatch.setitem(FAULTS, "resumed-batch", (fine, 2))
    assert called("read-only", "--count", "3") == 0
    assert called("full-disk") == 1
    assert rows() == {"full-disk": (3, 4), "read-only": (3, 3)}
    assert called("resumed-batch") == 0
    assert rows("faults_resumed") == {"resumed-batch": (2, 2)}
    with pytest.raises(subprocess.SubprocessError):
        called("read-only", "no-home")
    assert rows() == {"full-disk": (3, 4), "read-only": (4, 4)}
    assert "full-disk:0:1  spoiled" in capsys.readouterr().out
