"""``channelfit fhn``: the FitzHugh-Nagumo equation on a cable, from the command line."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from channelfit.fitzhugh_nagumo import settings
from channelfit.reading.errors import InputError
from channelfit.reading.texts import printable

#: What `--scheme auto` chooses from.
_AUTO = ("runge-kutta", "chebyshev", "crank-nicolson")


def _value(
    name: str, default: str, help_text: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        f"--{name}",
        default=default,
        show_default=True,
        metavar="VALUE[,VALUE..]",
        help=help_text + " FROM:TO:COUNT spaces values evenly.",
    )


def _explaining_lack_of_memory(command: Callable[..., None]) -> Callable[..., None]:
    """Turns a MemoryError into a message; memory may be limited in ways that no check can see."""

    @wraps(command)
    def told(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except MemoryError as error:
            raise InputError(
                f"there is not enough of it ({str(error) or 'the system gives no more'}); give "
                "fewer --nodes, --frames or cables at once",
                key="memory",
            ) from None

    return told


@click.command(short_help="Solve the FitzHugh-Nagumo equation on a cable.")
@click.argument(
    "summary",
    required=False,
    type=click.Path(path_type=Path),
    callback=settings.use,
    is_eager=True,
    expose_value=False,
    metavar="[SUMMARY.JSON]",
)
@click.option(
    "--scheme",
    type=click.Choice(
        ["crank-nicolson", "chebyshev", "runge-kutta", "explicit", "adaptive", "auto"]
    ),
    default="crank-nicolson",
    show_default=True,
    help="The method of solution; auto takes the cheapest of the first three that meets --error.",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="What computes; auto takes a GPU, if there is one, for 100,000 nodes or more.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float64", "float32"]),
    default="float64",
    show_default=True,
    help="Precision on a GPU; the processor always computes in float64.",
)
@_value("a", "0.01", "Threshold of excitation.")
@_value("gamma", "2", "Decay of recovery.")
@_value("epsilon", "0.01", "Speed of recovery.")
@_value("diffusion", "1", "Diffusion of v.")
@click.option(
    "--nodes",
    type=click.IntRange(3),
    default=401,
    show_default=True,
    metavar="N",
    help="Number of nodes of the cable.",
)
@click.option(
    "--dx",
    type=float,
    default=0.5,
    show_default=True,
    metavar="LENGTH",
    help="Distance between two nodes.",
)
@click.option(
    "--left",
    default="no_flux",
    show_default=True,
    metavar="END",
    help="What holds at the left end: no_flux, periodic, or the value at which v is held.",
)
@click.option(
    "--right",
    default="no_flux",
    show_default=True,
    metavar="END",
    help="What holds at the right end, as with --left.",
)
@click.option(
    "--initial",
    default="gaussian:100",
    show_default=True,
    metavar="STATE",
    help="State at t = 0: rest; gaussian:CENTER[:WIDTH[:HEIGHT]]; step:AT[:HEIGHT]; front:CENTER; "
    "or a file with x, v and perhaps w (.npz or summary.json of a run, or .csv).",
)
@click.option(
    "--stimulus",
    "stimuli",
    multiple=True,
    metavar="AMPLITUDE[,x=FROM:TO][,t=FROM:TO][,every=T]",
    help="Stimulus, which adds to v_t where and while it is on, e.g. 0.5,x=0:5,t=10:12,every=100. "
    "May be given several times.",
)
@click.option(
    "--end",
    type=float,
    default=250.0,
    show_default=True,
    metavar="T",
    help="Time at which the run ends.",
)
@click.option(
    "--frames",
    type=click.IntRange(2),
    default=251,
    show_default=True,
    metavar="N",
    help="Number of frames that are kept, evenly from t = 0 to the end.",
)
@click.option(
    "--dt",
    type=float,
    metavar="STEP",
    help="Longest step in time. [default: controlled steps, or 0.9 of the largest stable step]",
)
@click.option(
    "--tolerance",
    type=float,
    metavar="ERROR",
    help="Local error that a controlled step of Crank-Nicolson or Chebyshev may make. [default: "
    "1e-6 without --dt]",
)
@click.option(
    "--error",
    type=float,
    metavar="ERROR",
    help="With --scheme auto: the largest error of v and w from time at any frame; what --dx adds "
    "comes on top. [default: 1e-4]",
)
@click.option(
    "--noise",
    type=click.FloatRange(0),
    default=0.0,
    metavar="SIGMA",
    help="Strength of space-time white noise that is added to v; with --scheme explicit on the "
    "processor only.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    metavar="N",
    help="Seed of the noise.",
)
@click.option(
    "--threshold",
    type=float,
    default=0.5,
    show_default=True,
    metavar="V",
    help="Value of v at which a wave counts as arrived.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the results; must be new or empty. [default: runs/fhn-DATE-TIME]",
)
@click.option(
    "--format",
    "suffix",
    type=click.Choice(["npz", "h5"]),
    default="npz",
    show_default=True,
    help="Format of the file of results; h5 needs h5py.",
)
@click.option("--animation", is_flag=True, help="Write animation.gif as well.")
@click.option("--quiet", is_flag=True, help="Print the results' folder and nothing else.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print summary.json on standard output and nothing else there.",
)
@_explaining_lack_of_memory
def fhn(
    scheme: str,
    backend: str,
    dtype: str,
    a: str,
    gamma: str,
    epsilon: str,
    diffusion: str,
    nodes: int,
    dx: float,
    left: str,
    right: str,
    initial: str,
    stimuli: tuple[str, ...],
    end: float,
    frames: int,
    dt: float | None,
    tolerance: float | None,
    error: float | None,
    noise: float,
    seed: int,
    threshold: float,
    out: Path | None,
    suffix: str,
    animation: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Solve v_t = D v_xx + v (1 - v) (v - a) - w + I, w_t = epsilon (v - gamma w) on a cable.

    Several values of a parameter make a sweep: one cable for each combination, solved together.
    With the summary.json of a run, that run is repeated; options that are given besides replace
    those of the run.

    \b
    The results' folder
      results.npz     x, times, v and w of every frame
      frames.png      v and w at six times
      space_time.png  v over place and time, with the line of first arrival
      arrival.csv     when v first reaches the threshold at every node
      summary.json    speed, steps, how far v may err, and the settings that repeat the run
      animation.gif   with --animation

    \b
    Examples
      channelfit fhn
      channelfit fhn --initial rest --right 1 --end 306.19 --animation
      channelfit fhn --scheme auto --error 1e-6
      channelfit fhn --scheme explicit --dt 0.1 --stimulus 0.5,x=0:5,t=0:3 --initial rest
      channelfit fhn --a 0.01:0.2:20 --epsilon 0.005,0.01 --json --quiet
      channelfit fhn runs/fhn-20260131-120000/summary.json --dx 0.125 --nodes 1601
    """
    # imported here, so that --help need not wait for NumPy, Matplotlib and rich
    import numpy as np

    from channelfit.fitzhugh_nagumo import choice, inputs, outputs
    from channelfit.fitzhugh_nagumo.equation import NAMED_STATES
    from channelfit.fitzhugh_nagumo.memory import check_host
    from channelfit.fitzhugh_nagumo.simulation import simulate
    from channelfit.results import run_folder
    from channelfit.results.files import make_folder

    if out is not None:
        run_folder.check_folder(out)
    if not end > 0 or end == float("inf"):
        raise InputError(f"the last time must be positive and finite, not {end}", key="--end")
    if not math.isfinite(threshold):
        raise InputError(f"a finite number was expected, not {threshold}", key="--threshold")
    equation = inputs.sweep({"a": a, "gamma": gamma, "epsilon": epsilon, "diffusion": diffusion})
    pulses = tuple(inputs.pulse(text) for text in stimuli)
    cable = inputs.cable_of(nodes, dx, left, right, pulses)
    check_host(frames, equation.n_cables, nodes)
    cable.check_stimuli(end)
    start = partial(inputs.state, initial, equation)
    v, w = start(cable.x)
    times = np.linspace(0, end, frames)
    names = _AUTO if scheme == "auto" else (scheme,)
    if scheme == "auto" and (dt is not None or tolerance is not None):
        raise InputError("auto chooses the step; give --error instead", key="--dt, --tolerance")
    if scheme != "auto" and error is not None:
        raise InputError("is for --scheme auto; the others take --dt or --tolerance", key="--error")
    solvers = inputs.schemes(names, backend, dtype, equation, cable, noise, seed)
    began = time.perf_counter()
    with outputs.progress(quiet) as on_progress:
        if scheme == "auto":
            run = choice.solve(solvers, v, w, times, 1e-4 if error is None else error, on_progress)
        else:
            run = simulate(solvers[0], v, w, times, dt, tolerance, on_progress)
    seconds = time.perf_counter() - began
    summary = outputs.summary_of(run, equation, cable, threshold, seconds)
    again = None
    if noise:  # a run with noise has no exact solution, so the same run without it is judged
        (exact,) = inputs.schemes(("explicit",), backend, dtype, equation, cable, 0.0, seed)
        again = partial(simulate, exact, v, w, run.times, dt, tolerance)
    summary |= outputs.trust(run, again, equation, cable, start)
    summary["settings"] = {
        **settings.of(click.get_current_context()),
        "backend": "cuda" if solvers[0].on_device else "cpu",
    }
    if initial.partition(":")[0] not in NAMED_STATES:
        summary["initial_state"] = {"x": cable.x.tolist(), "v": v.tolist(), "w": w.tolist()}
    folder = out or run_folder.default_folder("fhn")
    make_folder(folder)
    outputs.write(run, folder, suffix, animation, threshold, summary)
    if as_json:
        click.echo(run_folder.json_text(summary), nl=False)
    elif quiet:
        click.echo(printable(str(folder)))
    else:
        outputs.print_summary(summary, folder)
