"""Commands of tests, and the lines that `--json` prints, the summary in the last."""

import functools
import json
import signal
from typing import Any

from click.testing import CliRunner, Result

from channelfit.front.main import main


def run(*words: object) -> Result:
    """Call `channelfit` with these words."""
    return CliRunner().invoke(main, [str(word) for word in words])


def ran(*words: object) -> Result:
    """Call `channelfit` with words that it takes."""
    found = run(*words)
    assert found.exit_code == 0, found.output
    return found


def refused(*words: object) -> Result:
    """Call `channelfit` with words that it refuses."""
    found = run(*words)
    assert found.exit_code == 2, found.output
    return found


def hears_ctrl_c() -> None:
    """In a child process: the children of a job in the background ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


fhn = functools.partial(run, "fhn")


def lines(stdout: str) -> list[dict[str, Any]]:
    """Return all lines, each of them an object."""
    found = [json.loads(line) for line in stdout.splitlines()]
    assert found[0]["event"] == "begin"
    assert [line["event"] for line in found].count("end") == 1
    return found


def summary(stdout: str) -> dict[str, Any]:
    """Return the results in the last line."""
    last = lines(stdout)[-1]
    assert last["event"] == "end"
    found = last["summary"]
    assert isinstance(found, dict)
    return found
