"""`channelfit completion`: the script by which a shell completes commands, options and files."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM = "channelfit"


@click.command(short_help="Print the script that lets a shell complete commands.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that lets SHELL complete the commands, options and files of channelfit.

    \b
    To switch it on for good, add one line to the file that the shell reads at its start
      bash   ~/.bashrc   eval "$(channelfit completion bash)"
      zsh    ~/.zshrc    eval "$(channelfit completion zsh)"
      fish   ~/.config/fish/config.fish   channelfit completion fish | source
    """
    kind = get_completion_class(shell)
    assert kind is not None
    # the variable is the one that click looks for when the program is called
    script = kind(ctx.find_root().command, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source()
    click.echo(script)
