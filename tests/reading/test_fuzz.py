"""A share of `fuzz.py`: mutants of shipped files, expressions and names end in words."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if sys.platform == "win32":
    pytest.skip("fuzz.py bounds time and memory in the way of POSIX", allow_module_level=True)

from fuzz import COUNTS, ROLES, SOURCES, run_case, verdict, written


@pytest.mark.parametrize("kind", [*COUNTS])
def test_mutants_are_read_or_refused(kind: str) -> None:
    """With a seed of their own, so that these cases are not only those of a whole run."""
    found = {case: run_case(kind, 14, case).verdict for case in range(9)}
    assert {case: word for case, word in found.items() if word not in ("ok", "refused")} == {}


def test_the_cases_are_what_they_should_be() -> None:
    """Some are read and some refused, or nothing would be tried."""
    assert {run_case("models", 14, case).verdict for case in range(16)} == {"ok", "refused"}


@settings(max_examples=15)
@given(st.sampled_from([*ROLES]), st.text(max_size=60), st.sampled_from(SOURCES))
def test_any_text_in_any_role(tmp_path_factory, role, text, source):
    folder: Path = tmp_path_factory.mktemp("any")
    file = written(folder, {role: json.dumps(text)[1:-1]})
    assert verdict(["show", file, *source]) in ("ok", "refused")
