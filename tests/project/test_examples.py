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
OF_PROTOCOL = (
    "in_steps",
    "command",
    "n_sweeps",
    "n_times",
    "n_times_max",
    "resting_mV",
    "sample_ranges",
)
PLAIN = {f"Protocol.{name}" for name in (*OF_PROTOCOL, "step_times_ms", "times_ms")}
PLAIN.add("Model.name")


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


def test_what_is_public_is_explained_and_has_an_example() -> None:
    public = {name: getattr(channelfit, name) for name in channelfit.__all__}
    public.pop("__version__")
    for name, found in (public | dict(documented())).items():
        text = inspect.getdoc(found) or ""
        first = text.split("\n")[0].rstrip()
        assert first.endswith((".", ":")), f"{name} begins with one whole sentence"
        assert name in PLAIN or ">>> " in text, name
