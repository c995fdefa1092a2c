"""`channelfit fhn` called in this process."""

from __future__ import annotations

from click.testing import CliRunner, Result

from channelfit.front.main import main


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["fhn", *(str(a) for a in arguments)])
