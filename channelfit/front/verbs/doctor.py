"""`channelfit doctor`: its options and help."""

from __future__ import annotations

import click


@click.command(short_help="What is installed and what each backend can do.")
def doctor() -> None:
    """Print which packages and backends can be used here, and how to get those that are missing.

    \b
    Example
      channelfit doctor
    """

    from channelfit.front.commands.doctor import report

    report()
