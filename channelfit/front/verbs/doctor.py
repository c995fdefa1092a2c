"""`channelfit doctor`: its options and help."""

from __future__ import annotations

import click


@click.command(short_help="What is installed and what each backend can do.")
def doctor() -> None:
    """What is installed here, what each backend can do, and how to get what is missing.

    \b
    Example
      channelfit doctor
    """

    from channelfit.front.commands.doctor import report

    report()
