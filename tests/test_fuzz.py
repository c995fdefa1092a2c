"""A share of `fuzz.py`: mutants of shipped files, expressions and names end in words."""

import sys

import pytest

if sys.platform == "win32":
    pytest.skip("fuzz.py bounds time and memory in the way of POSIX", allow_module_level=True)

from fuzz import COUNTS, run_case


@pytest.mark.parametrize("kind", [*COUNTS])
def test_mutants_are_read_or_refused(kind: str) -> None:
    """With a seed of their own, so that these cases are not only those of a whole run."""
    found = {case: run_case(kind, 14, case).verdict for case in range(25)}
    assert {case: word for case, word in found.items() if word not in ("ok", "refused")} == {}


def test_the_cases_are_what_they_should_be() -> None:
    """Some are read and some refused, or nothing would be tried."""
    assert {run_case("models", 14, case).verdict for case in range(25)} == {"ok", "refused"}
