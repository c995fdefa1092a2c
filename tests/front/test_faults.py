"""A share of `faults.py`: signals, damaged caches and full disks end in order, and cost nothing."""

import sys
from collections.abc import Iterator

import pytest

if sys.platform == "win32":
    pytest.skip("faults.py strikes in the way of POSIX", allow_module_level=True)

from faults import AS_WANTED, IMPOSSIBLE, TOO_EARLY, measured
from faults import run_case as run
from support.faults_fits import Known

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
