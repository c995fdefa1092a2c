"""`channelfit show`: scheme, rates, generator matrix and parameters of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from channelfit.front import kinds
from channelfit.front.commands.inputs import load_channel, picture_file, save_picture
from channelfit.front.commands.validate import protocols_of
from channelfit.front.verbs.models import ShowOptions
from channelfit.functions.function import FunctionProblem
from channelfit.functions.function import describe as describe_function
from channelfit.functions.source import FunctionSource
from channelfit.model.channel import ChannelModel
from channelfit.problem.extreme_rates import extremes, voltages_of
from channelfit.problem.protocol import Protocol
from channelfit.reading.errors import InputError, printable
from channelfit.results.report.description import describe
from channelfit.results.report.page_facts import scheme_of
from channelfit.results.report.scheme import scheme_figure
from channelfit.scoring.kernels.cpu_source import CpuSource
from channelfit.scoring.kernels.cuda_source import CudaSource
from channelfit.scoring.neuron.nmodl import nmodl_text


def _show_function(problem: FunctionProblem, source: str | None, dtype: str, file: Path) -> None:
    """Print a description of a function to fit, or its generated code.

    Arguments:
        source: cpu or cuda, the code to print; None for a description.
        file: the function's file, for messages.
    """
    if source == "nmodl":
        raise InputError("a function is no mechanism for NEURON; --source cpu or cuda", file)
    if source is None:
        click.echo(printable(describe_function(problem)), nl=False)
    else:
        target = "cuda" if source == "cuda" else "cpu"
        click.echo(FunctionSource(problem, dtype, target).text, nl=False)


def show(options: ShowOptions) -> None:
    """Print a description of a model, or the code that is generated for it."""
    model, source, dtype = options.model, options.source, options.dtype
    # the name of a folder is refused before anything is printed
    out = None if options.out is None else picture_file(options.out)
    function = kinds.function_of(model, options.overrides)
    if function is not None:
        _show_function(function, source, dtype, model)
        return
    channel, document = load_channel(model, options.overrides)
    if source == "cpu":
        click.echo(CpuSource(channel, dtype).text, nl=False)
    elif source == "cuda":
        click.echo(CudaSource(channel, dtype).text, nl=False)
    elif source == "nmodl":
        click.echo(nmodl_text(channel), nl=False)
    else:
        describe(channel)
        protocols = protocols_of(document, model)
        _describe_junctions(protocols)
        _describe_extremes(channel, protocols)
    if out is not None:  # where generated code goes to standard output, nothing else may
        save_picture(scheme_figure(scheme_of(channel)), out, err=source is not None)


def _describe_junctions(protocols: Sequence[Protocol]) -> None:
    """Print the junction potentials that were subtracted from the commands of the protocols."""
    for protocol in protocols:
        if protocol.junction_potential_mV:
            text = (
                f"protocol {protocol.name}: voltages of the membrane are the command less "
                f"{protocol.junction_potential_mV:g} mV of junction potential"
            )
            click.echo(printable(text))


def _describe_extremes(channel: ChannelModel, protocols: Sequence[Protocol]) -> None:
    """Print notes on rates that are too large or too small to be plausible.

    They are looked for at the voltages of the protocols, or from -120 to 60 mV without any.
    A model with a parameter that has no value has no rates yet.
    """
    if all(p.value is not None for p in channel.parameters):
        voltages_mV = voltages_of(list(protocols), channel.ligands)
        for extreme in extremes(channel, channel.values(), voltages_mV):
            click.echo(printable(f"note: {extreme}"), err=True)
