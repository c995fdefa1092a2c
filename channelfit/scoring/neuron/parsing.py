"""NEURON's parser of NMODL, which runs in a process of its own.

A text that is nested deeply enough ends the parser with its process, so it is asked by
`reading.second_process`, with limits of time and memory.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from channelfit.reading.errors import InputError
from channelfit.reading.second_process import read_in_process
from channelfit.scoring.neuron.mechanisms import neuron_parser

_SECONDS = 60.0
_PLACE = re.compile(r"\[Location : (\d+)")


def parse_nmodl(text: str) -> str:
    """Return the syntax tree of a .mod file as JSON.

    Arguments:
        text: the file without its comments (`model.imports.nmodl_text`), so that it includes none.

    Raises:
        NeuronUnavailable: NEURON's parser is not installed.
        InputError: it is not NMODL, with the line, or the parser did not survive it.
    """
    neuron_parser()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mechanism.mod"
        path.write_text(text, encoding="latin-1")
        try:
            found = read_in_process(f"{__name__}:answer", path, "a .mod file", _SECONDS)
        except InputError as error:
            raise InputError(error.message, None, error.key) from None
    return str(found["tree"])


def answer(path: Path) -> dict[str, str]:
    """Return the parser's answer; called in the other process."""
    driver = neuron_parser()
    text = path.read_text(encoding="latin-1")
    try:
        tree = driver.NmodlDriver().parse_string(text)
        return {"tree": driver.to_json(tree, True)}
    except RuntimeError as error:
        place = _PLACE.search(str(error))
        what = str(error).split("[Location")[0].replace("NMODL Parser Error :", "").strip()
        raise InputError(
            f"NEURON's parser cannot read it: {what}", None, f"line {place[1]}" if place else None
        ) from None
