"""A share of `faults.py`: signals, damaged caches and full disks end in order, and cost nothing."""

import sys
from collections.abc import Iterator

import pytest

if sys.platform == "win32":
    pytest.skip("faults.py strikes in the way of POSIX", allow_module_level=True)

from faults import AS_WANTED, FAULTS, IMPOSSIBLE, TOO_EARLY, Finding, Known, Place, measured
from faults import run_case as run


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    """What a fit finds without a fault."""
    return measured(tmp_path_factory.mktemp("known"))


#: Signals strike at a moment that is drawn; whichever it is, all must be as wanted.
SHARE = [
    ("kill-cold", 0),
    ("term-warm", 1),
    ("interrupt-warm", 1),
    ("at-once", 1),
    ("full-disk", 0),
    ("no-home", 4),
    ("no-home", 8),
    ("little-memory", 0),
    ("damaged-cache", 1),
    ("damaged-cache", 2),
]


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
