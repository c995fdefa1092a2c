"""`channelfit show`: scheme, rates, generator matrix and parameters of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from channelfit.front.options import dtype_option, load_channel, model_argument, set_option, writing
from channelfit.reading.errors import InputError

if TYPE_CHECKING:
    from channelfit.model.channel import ChannelModel


def _show_function(file: Path, source: str | None, dtype: str, overrides: Sequence[str]) -> bool:
    """Shows a function, if it is one."""
    from channelfit.functions.function import build_function
    from channelfit.functions.pictures import describe
    from channelfit.functions.source import FunctionSource
    from channelfit.reading.keys import is_function
    from channelfit.search.fit_file import read_fit_document

    document, function_file = read_fit_document(file, overrides)
    if not is_function(document):
        return False
    problem = build_function(document, function_file)
    if source == "nmodl":
        raise InputError("a function is no mechanism for NEURON; --source cpu or cuda", file)
    if source is None:
        click.echo(describe(problem), nl=False)
    else:
        target = "cuda" if source == "cuda" else "cpu"
        click.echo(FunctionSource(problem, dtype, target).text, nl=False)
    return True


@click.command(short_help="Scheme, rates, generator matrix and parameters.")
@model_argument
@click.option(
    "--source",
    type=click.Choice(["cpu", "cuda", "nmodl"]),
    help="Print the generated code instead: of the cpu backend, of the cuda "
    "backend, or a mechanism for NEURON.",
)
@dtype_option("Precision of the generated code.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="Draw the scheme into this file as well.",
)
@set_option
def show(
    model: Path, source: str | None, dtype: str, out: Path | None, overrides: tuple[str, ...]
) -> None:
    """What MODEL says: its scheme, rates, generator matrix and parameters.

    \b
    Examples
      channelfit show models/model_b.yaml
      channelfit show models/na_markov.yaml --out na_markov.png
      channelfit show models/model_b.yaml --source cuda --dtype float32 > model_b.cu
      channelfit show models/na_hh.yaml --source nmodl > na_hh.mod
    """
    if _show_function(model, source, dtype, overrides):
        return
    channel, document = load_channel(model, overrides)
    if source == "cpu":
        from channelfit.scoring.kernels.cpu_source import CpuSource

        click.echo(CpuSource(channel, dtype).text, nl=False)
    elif source == "cuda":
        from channelfit.scoring.kernels.cuda_source import CudaSource

        click.echo(CudaSource(channel, dtype).text, nl=False)
    elif source == "nmodl":
        from channelfit.scoring.neuron.nmodl import nmodl_text

        click.echo(nmodl_text(channel), nl=False)
    else:
        from channelfit.results.report.description import describe

        describe(channel)
        _describe_extremes(channel, document, model)
    if out is not None:
        from channelfit.results.report.plots import save
        from channelfit.results.report.scheme import scheme_figure

        out = out if out.suffix.lower() == ".png" else out.with_name(out.name + ".png")
        with writing(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            save(scheme_figure(channel), out)
        click.echo(str(out), err=source is not None)


def _describe_extremes(channel: ChannelModel, document: Mapping[str, Any], file: Path) -> None:
    """Strange rates at the voltages of the fit section's protocols, or at ordinary ones."""
    from channelfit.front.validation import protocols_of
    from channelfit.problem.extreme_rates import extremes, voltages_of

    if all(p.value is not None for p in channel.parameters):
        voltages = voltages_of(protocols_of(document, file))
        for extreme in extremes(channel, channel.values(), voltages):
            click.echo(f"note: {extreme}", err=True)
