"""The command line: its verbs, options and help, and the exit codes.

What a verb does stands in `commands`, a file each, which is imported when the verb is called: so
``--help`` answers at once, and nobody waits for a library that the command does not use. (The file
is long because each option of each verb is explained where it is declared.)
"""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from channelfit import __version__
from channelfit.fitzhugh_nagumo.command import fhn
from channelfit.front import interrupts
from channelfit.reading import memory
from channelfit.reading.errors import InputError
from channelfit.reading.texts import printable

BAD_INPUT = 2


class _Commands(click.Group):
    """The verbs: a mistake in the user's input becomes one message and exit code 2."""

    def main(self, *args: Any, **settings: Any) -> Any:
        """Runs a verb; a place that takes nothing more is told like a bad input."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # what ASCII lacks is shown by code
        try:
            try:
                return super().main(*args, **settings)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()
        except OSError as error:
            if error.errno != errno.EPIPE:  # `| head` has seen enough, and nothing is wrong
                place = error.filename or "standard output, or a file of results"
                told = f"{place}: cannot be read or written: {error.strerror or error}"
                click.echo(f"Error: {printable(told)}", err=True)
            sys.exit(BAD_INPUT)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with interrupts.acted_upon():
                memory.check_address_space()
                return super().invoke(ctx)
        except InputError as error:
            click.secho("Error: ", fg="red", bold=True, nl=False, err=True)
            click.echo(printable(str(error)), err=True)
            ctx.exit(BAD_INPUT)
        except KeyboardInterrupt:
            self._interrupted(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, OSError):
            raise
        except Exception as error:
            if told := memory.ran_out(error):
                told = f"more memory is needed than there is: {told}"
                click.echo(f"Error: {printable(told)}", err=True)
                ctx.exit(BAD_INPUT)
            if not interrupts.have_come():
                raise
            self._interrupted(ctx)  # it came out of a library as an error of its own

    def _interrupted(self, ctx: click.Context) -> None:
        interrupts.all_is_done()
        click.echo("Interrupted.", err=True)
        ctx.exit(interrupts.exit_code())


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
)
@click.version_option(__version__, prog_name="channelfit")
def main() -> None:
    """Fit kinetic models of ion channels to voltage-clamp recordings.

    A model is one YAML file: states, rates as plain expressions, parameters with ranges, and a
    `fit` section that says which recordings (or simulated data) to fit it to.

    \b
    Begin with
      channelfit inspect cell_3.abf                what a recording holds
      channelfit init cell_3.abf                   write a first fit for it
      channelfit show models/model_b.yaml          what a model file says
      channelfit optimize models/model_b.yaml      fit it
      channelfit doctor                            what this machine can do

    \b
    Exit codes
      0    done
      1    a defect of channelfit (a traceback follows; please report it), or
           `validate` found an error above its tolerance
      2    the input cannot be used, or memory or disk do not suffice; one
           message says what and where
      130  interrupted; `optimize` has saved the best so far
      143  ended by SIGTERM, in the same way
    """


set_option = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Change one entry of the file for this call, e.g. parameters.gmax.value=3 or "
    "fit.optimizer.mutation_rate=0.02. May be given several times.",
)
model_argument = click.argument("model", type=click.Path(path_type=Path))
backend_option = click.option(
    "--backend",
    type=click.Choice(["auto", "reference", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="What computes the currents.",
)
path_option = click.option(
    "--path",
    type=click.Choice(["auto", "stepping", "modal", "closed-form"]),
    default="auto",
    show_default=True,
    help="How: sample by sample; in a scheme's modes; or without samples, from sums over the "
    "recording. A backend may have one only.",
)


def dtype_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option of a precision, with what it is the precision of."""
    return click.option(
        "--dtype",
        type=click.Choice(["float64", "float32"]),
        default="float64",
        show_default=True,
        help=what,
    )


# --- optimize --------------------------------------------------------------------------------


@main.command(short_help="Fit the parameters of a model to its data.")
@model_argument
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the results; must be new or empty. [default: runs/NAME-DATE-TIME]",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    metavar="N",
    help="Seed of the search: the same seed gives the same result. [default: the file's, or 0]",
)
@backend_option
@dtype_option("Precision of the search; the result is scored in float64 either way.")
@path_option
@click.option(
    "--chunk",
    type=click.IntRange(1),
    metavar="N",
    help="Candidates in one launch on a GPU, where it must be fewer than the population.",
)
@click.option(
    "--population",
    type=click.IntRange(1),
    metavar="N",
    help="Candidates a generation. [default: the file's]",
)
@click.option(
    "--generations",
    type=click.IntRange(1),
    metavar="N",
    help="Stop after so many generations. [default: the file's]",
)
@click.option(
    "--optimizer",
    metavar="NAME",
    help="Search method: hybrid, genetic, swarm, ring, groups, differential, cma, or "
    "asynchronous_ring for functions on a GPU. If it is not the method in the file, the "
    "settings in the file are not used. [default: the file's]",
)
@set_option
@click.option("--quiet", is_flag=True, help="Print the results' folder and nothing else.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the content of summary.json on standard output and nothing else there.",
)
def optimize(**given: Any) -> None:
    """Fit the parameters of MODEL to its data.

    MODEL is a model file with a `fit` section, or a fit file that names its model. Progress is
    shown on standard error; Ctrl-C ends the search and keeps the best so far (exit code 130).

    \b
    The results' folder
      fit.yaml      the model with the fitted values; can be simulated, and fitted again
      traces.png    data, fit, residual and command voltage
      history.csv   best and median cost of every generation
      summary.json  numbers, parameters, seed, versions, machine, why it stopped
      source.py     the code that was generated for this model (source.cu with a GPU)

    \b
    Examples
      channelfit optimize models/model_b.yaml
      channelfit optimize models/model_b.yaml --population 1120 --generations 50 --seed 3
      channelfit optimize my_cell.yaml --out runs/cell7 --set fit.stop.seconds=60
      channelfit optimize models/k_hh.yaml --json --quiet > summary.json
    """
    from channelfit.results.report.artist import hired

    with hired() as artist:  # who gets ready while all else is imported
        from channelfit.front.commands import optimize as work

        interrupted = work.optimize(**given, artist=artist)
    if interrupted:
        sys.exit(interrupts.exit_code())


# --- simulate --------------------------------------------------------------------------------


@main.command(short_help="Currents of a model under a protocol.")
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
@click.option("--cell", metavar="NAME", help="The cell whose own values are taken.")
def simulate(**given: Any) -> None:
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

    with hired() as artist:  # who gets ready while all else is imported
        from channelfit.front.commands import simulate as work

        work.simulate(**given, artist=artist)


# --- uncertainty -----------------------------------------------------------------------------


@main.command(short_help="How sure a fit is, and what the data leave open.")
@click.argument("fit", type=click.Path(path_type=Path))
@click.option(
    "--profiles",
    metavar="NAMES",
    default="",
    help="Profile likelihoods of these parameters, separated by commas, or all.",
)
@click.option(
    "--families",
    type=click.IntRange(1),
    metavar="N",
    is_flag=False,
    flag_value=64,
    help="Look for other fits as good as this one, from N starts. [64 without a number]",
)
@click.option(
    "--posterior",
    type=click.IntRange(4),
    metavar="STEPS",
    is_flag=False,
    flag_value=2000,
    help="Sample the posterior, so many steps of every walker. [2000 without a number]",
)
@click.option(
    "--walkers",
    type=click.IntRange(4),
    metavar="N",
    help="Walkers of the posterior. [default: four a parameter, 32 or more]",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Seed of starts and walkers.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the results. [default: the run folder FIT stands in, else uncertainty/ here]",
)
@backend_option
@set_option
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the content of uncertainty.json and nothing else.",
)
def uncertainty(**given: Any) -> None:
    """How sure the fitted values in FIT are, such as fit.yaml of a run folder.

    They are refined by least squares first. Standard errors and intervals come from the curvature
    of the cost and the noise in the residuals; what the data do not determine is told in words.
    Profiles follow the cost where it is no parabola; families are equally good fits that nothing
    connects; the posterior is a sample of all parameters that the data allow.

    \b
    Writes
      uncertainty.json, uncertainty.png            always
      refined.yaml                                 where refining made the fit better
      profiles.csv, profiles.png                   with --profiles
      families.png                                 with --families
      posterior.csv, posterior.png                 with --posterior

    \b
    Examples
      channelfit uncertainty runs/cell7/fit.yaml
      channelfit uncertainty runs/cell7/fit.yaml --profiles all --families
      channelfit uncertainty runs/cell7/fit.yaml --profiles a12,gmax --posterior 5000
    """
    from channelfit.front.commands import studies as work

    work.uncertainty(**given)


# --- compare ---------------------------------------------------------------------------------


@main.command(short_help="Candidate schemes fitted to the same data.")
@click.argument("fits", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    default=Path("comparison"),
    show_default=True,
    help="Folder for comparison.json and comparison.png.",
)
@click.option(
    "--as-is", is_flag=True, help="Take the values as they are; else least squares refines them."
)
@backend_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print the content of comparison.json and nothing else."
)
def compare(**given: Any) -> None:
    """Compare FITS of different schemes to the same data, such as fit.yaml of several run folders.

    Cost, parameters, and the information criteria of Akaike and Schwarz: differences to the best,
    and how likely each scheme is the best of them. Experiments with weight 0 were held out of the
    fits, and are predicted here.

    \b
    Examples
      channelfit compare runs/three_states/fit.yaml runs/four_states/fit.yaml
      channelfit compare runs/*/fit.yaml --out which_scheme
    """
    from channelfit.front.commands import studies as work

    work.compare(**given)


# --- inspect, init -----------------------------------------------------------------------------


def told_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options by which a user tells of a recording what its file does not say."""
    options = (
        click.option(
            "--command",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="What was commanded, where the recording does not say it: a protocol (YAML), "
            ".eph, a list of steps, or a record of the command.",
        ),
        click.option("--signal", metavar="NAME", help="The current, by its name or number."),
        click.option("--unit", metavar="UNIT", help="Unit of the current, such as nA."),
        click.option("--sampling", metavar="TIME", help="Sampling interval, such as 0.1ms."),
        click.option("--layout", metavar="WORDS", help="How a matrix lies: see the guide."),
        click.option(
            "--decimal", type=click.Choice(["comma", "point"]), help="Of the numbers in a table."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@main.command(short_help="What is in a recording, or what a fit sees of it.")
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--protocol",
    type=click.Path(path_type=Path),
    metavar="OUT.yaml",
    help="Write the protocol that was found.",
)
@click.option(
    "--csv",
    type=click.Path(path_type=Path),
    metavar="OUT.csv",
    help="Write the current: time in ms, then pA of every sweep.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="Where to draw it. [default: NAME-inspect.png here]",
)
@told_options
def inspect(**given: Any) -> None:
    """What is in FILES from the rig: sweeps, units, protocol, noise, leak, what looks wrong.

    A file is a recording (ABF, NWB, Igor, WinWCP, MATLAB, HDF5, CSV, SyncroPatch), a protocol, or
    a fit file, of which the data are shown as they were recorded and as the fit will see them.
    Everything that is found is printed and drawn; no file but the picture is replaced.

    \b
    Examples
      channelfit inspect cell_3.abf
      channelfit inspect cell_3.abf --protocol steps.yaml --csv cell_3.csv
      channelfit inspect well.csv --command staircase.eph --unit pA
      channelfit inspect my_cell.yaml
    """
    from channelfit.front.commands import inspect as work

    work.inspect(**given)


@main.command(short_help="Write a starter fit for recordings.")
@click.argument("recordings", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--model",
    metavar="NAME",
    help="A model file, or the name of a shipped model. [default: one chosen by the data]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FIT.yaml",
    help="The file to write. [default: NAME-fit.yaml here]",
)
@told_options
def init(**given: Any) -> None:
    """Write a commented starter fit for RECORDINGS, which can be run at once.

    Protocol, signals, units, masks of capacitive transients, baseline and ranges are filled in from
    what `channelfit inspect` finds. Without --model a model with one or two gates is chosen by
    whether the current is inward and inactivates, and the file says why. No file is replaced.

    \b
    Writes
      NAME-fit.yaml         the fit
      NAME-protocol.yaml    what was commanded
      NAME-model.yaml       the model, unless --model names one

    \b
    Examples
      channelfit init cell_3.abf
      channelfit init cell_3.abf cell_3_tails.abf --model herg_beattie --out cell_3.yaml
    """
    from channelfit.front.commands import init as work

    work.init(**given)


# --- show ------------------------------------------------------------------------------------


@main.command(short_help="Scheme, rates, generator matrix and parameters.")
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
def show(**given: Any) -> None:
    """What MODEL says: its scheme, rates, generator matrix and parameters.

    \b
    Examples
      channelfit show models/model_b.yaml
      channelfit show models/na_markov.yaml --out na_markov.png
      channelfit show models/model_b.yaml --source cuda --dtype float32 > model_b.cu
      channelfit show models/na_hh.yaml --source nmodl > na_hh.mod
    """
    from channelfit.front.commands import show as work

    work.show(**given)


# --- validate --------------------------------------------------------------------------------


@main.command(short_help="Compare a model's currents with NEURON's.")
@model_argument
@click.option(
    "--candidates",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    metavar="N",
    help="Parameter sets to compare: the file's values and others drawn from the ranges.",
)
@click.option(
    "--protocol",
    "protocols",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Protocol to compare under, several allowed. [default: the fit's]",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "reference", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="What is compared with NEURON.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Seed of the parameter sets.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for a figure of the worst case of each protocol.",
)
@set_option
def validate(**given: Any) -> None:
    """Compare the currents of MODEL with those that NEURON computes.

    NEURON gets the channel as NMODL and integrates it with CVODE to 1e-12. For every protocol the
    largest difference in any trace is given as a part of that trace's largest current. The
    tolerance is 1e-5 where the voltage is held in steps and 1e-4 where it varies; beyond it the
    exit code is 1. Needs NEURON and a C++ compiler; `channelfit doctor` tells.

    \b
    Examples
      channelfit validate models/model_b.yaml
      channelfit validate models/na_hh.yaml --candidates 50 --protocol protocols/na_iv.yaml
      channelfit validate models/herg_beattie.yaml --out validation
    """
    from channelfit.front.commands import validate as work

    work.validate(**given)


# --- tune ------------------------------------------------------------------------------------


@main.command(short_help="Find the fastest threads a block on this GPU.")
@model_argument
@click.option(
    "--population",
    type=click.IntRange(1),
    metavar="N",
    help="Candidates to score each time. [default: the file's]",
)
@dtype_option("Precision of the search to be tuned.")
@path_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="Where to draw time and occupancy. [default: MODEL-launches.png here]",
)
@set_option
def tune(**given: Any) -> None:
    """Measure how fast MODEL is scored on this GPU with every number of threads a block.

    The fastest is remembered in the cache folder, for this model and this GPU, and every later
    `optimize` uses it. Prints a table, and draws time and occupancy against threads a block. The
    cpu backend has nothing to tune.

    \b
    Examples
      channelfit tune models/model_b.yaml --population 1000000
      channelfit tune models/herg_markov.yaml --dtype float32 --out launches.png
    """
    from channelfit.front.commands import tune as work

    work.tune(**given)


# --- doctor, fhn ------------------------------------------------------------------------------


@main.command(short_help="What is installed and what each backend can do.")
def doctor() -> None:
    """What is installed here, what each backend can do, and how to get what is missing.

    \b
    Example
      channelfit doctor
    """

    from channelfit.front.commands.doctor import report

    report()


main.add_command(fhn)
