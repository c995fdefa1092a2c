"""The examples in the docstrings of what is public: they run, and give what they say."""

from __future__ import annotations

import doctest
import inspect
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import channelfit
from support.places import ROOT

pytestmark = pytest.mark.integration


#: Public names of which every public method and property has an example of its own.
WITH_EXAMPLES = ("Model", "Protocol", "Recording")
#: Attributes whose one sentence says all.
PLAIN = {
    "Model.name",
    "Protocol.command",
    "Protocol.n_sweeps",
    "Protocol.n_times",
    "Protocol.n_times_max",
    "Protocol.resting_mV",
    "Protocol.sample_ranges",
    "Protocol.step_times_ms",
    "Protocol.times_ms",
}


def examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in channelfit.__all__:
        found = getattr(channelfit, name)
        if inspect.isclass(found) or inspect.isfunction(found):
            yield from (test for test in finder.find(found, name) if test.examples)


def documented() -> Iterator[tuple[str, object]]:
    for name in WITH_EXAMPLES:
        found = getattr(channelfit, name)
        yield name, found
        fields = getattr(found, "__dataclass_fields__", {})
        for inner, value in vars(found).items():
            if not inner.startswith("_") and inner not in fields:
                yield f"{name}.{inner}", getattr(value, "__func__", value)


@pytest.mark.parametrize("example", list(examples()), ids=lambda example: example.name)
def test_an_example_gives_what_it_says(
    example: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that holds the shipped models and protocols, as a user's might."""
    for folder in ("models", "protocols"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    # pyABF, which other tests load, changes how NumPy prints arrays
    with np.printoptions(precision=8, suppress=False, threshold=1000):
        outcome = runner.run(example, out=said.append)
    assert outcome.failed == 0, "".join(said)


@pytest.mark.parametrize("name", sorted(set(channelfit.__all__) - {"__version__"}))
def test_every_public_name_has_an_example(name: str) -> None:
    text = inspect.getdoc(getattr(channelfit, name)) or ""
    assert text.split("\n")[0].rstrip().endswith((".", ":"))
    assert ">>> " in text


@pytest.mark.parametrize("name", [name for name, _ in documented()])
def test_what_is_public_is_explained(name: str) -> None:
    found = dict(documented())[name]
    text = inspect.getdoc(found) or ""
    assert text.split("\n")[0].rstrip().endswith((".", ":")), "it begins with one whole sentence"
    if name not in PLAIN:
        assert ">>> " in text
