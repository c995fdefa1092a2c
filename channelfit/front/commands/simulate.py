"""`channelfit simulate`: the current of a model under a protocol."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from channelfit.front.options import (
    backend_option,
    dtype_option,
    model_argument,
    model_with_values,
    path_option,
    set_option,
    writing,
)

if TYPE_CHECKING:
    from channelfit.results.report.artist import Artist


@click.command(short_help="Currents of a model under a protocol.")
@model_argument
@click.argument("protocol", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="PREFIX",
    help="Path of the two files, without .csv and .png. [default: MODEL-PROTOCOL here]",
)
@backend_option
@dtype_option("Precision of the currents.")
@path_option
@set_option
def simulate(
    model: Path,
    protocol: Path,
    out: Path | None,
    backend: str,
    dtype: str,
    path: str,
    overrides: tuple[str, ...],
) -> None:
    """Current of MODEL under PROTOCOL, at the values in the model file.

    Writes PREFIX.csv (time in ms, then current in pA and voltage in mV of every sweep) and
    PREFIX.png, replacing what is there. Cells after the end of a shorter sweep are empty.

    \b
    Examples
      channelfit simulate models/model_b.yaml protocols/activation.yaml
      channelfit simulate runs/cell7/fit.yaml protocols/staircase.yaml --out predictions/cell7
      channelfit simulate models/k_hh.yaml protocols/ramp.yaml --set parameters.gmax.value=3
    """
    from channelfit.results.report.artist import hired

    with hired() as artist:  # who gets ready while everything else is imported
        files = _simulate(model, protocol, out, backend, dtype, path, overrides, artist)
    for file in files:
        click.echo(str(file))


def _simulate(
    model: Path,
    protocol: Path,
    out: Path | None,
    backend: str,
    dtype: str,
    path: str,
    overrides: tuple[str, ...],
    artist: Artist,
) -> list[Path]:
    """Writes table and picture; returns where they are."""
    from channelfit.front.progress import compilations_shown
    from channelfit.front.simulation import simulated
    from channelfit.problem.protocol import load_protocol
    from channelfit.results.report import terminal
    from channelfit.results.run_folder import file_name

    channel, values, name = model_with_values(model, overrides)
    command = load_protocol(protocol)
    prefix = out or Path(".")
    if prefix.is_dir():
        prefix /= file_name(f"{name}-{command.name}")
    with terminal.SearchScreen(name) as screen, compilations_shown(screen):
        found = simulated(
            channel, values, command, backend, dtype, path, screen, name, model, str(protocol)
        )
    for remark in found.remarks:
        click.echo(f"note: {remark}", err=True)
    files = [prefix.with_name(prefix.name + suffix) for suffix in (".csv", ".png")]
    with writing(prefix):
        prefix.parent.mkdir(parents=True, exist_ok=True)
        artist.begin(found.page, files[1])
        found.to_csv(files[0])
        artist.finish()
    return files
