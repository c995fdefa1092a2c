"""Commands called in this process; what `--json` has told: the lines, the summary in the last."""

import functools
import json
from typing import Any

from click.testing import CliRunner, Result

from channelfit.front.main import main


def run(*words: object) -> Result:
    """Calls `channelfit` with these words."""
    return CliRunner().invoke(main, [str(word) for word in words])


fhn = functools.partial(run, "fhn")


def told(stdout: str) -> list[dict[str, Any]]:
    """All lines, each of them an object."""
    lines = [json.loads(line) for line in stdout.splitlines()]
    assert lines[0]["event"] == "begin"
    assert [line["event"] for line in lines].count("end") == 1
    return lines


def summary(stdout: str) -> dict[str, Any]:
    """The results in the last line."""
    last = told(stdout)[-1]
    assert last["event"] == "end"
    found = last["summary"]
    assert isinstance(found, dict)
    return found
