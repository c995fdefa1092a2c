"""`channelfit fhn`: its options and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from channelfit.fitzhugh_nagumo import settings
from channelfit.front.options import (
    beside_resume,
    choice,
    command,
    dtype_option,
    integer,
    json_option,
    option,
    quiet_option,
    results_option,
    resume_option,
)
from channelfit.front.resumed import arguments_again


def _values(name: str, default: str, help_text: str) -> Any:
    return option(
        f"--{name}",
        default=default,
        metavar="VALUE[,VALUE..]",
        help=help_text + " FROM:TO:COUNT spaces values evenly.",
    )


@dataclass(frozen=True, kw_only=True)
class FhnOptions:
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
      channelfit fhn --resume runs/fhn-20260131-120000
    """

    scheme: str = choice(
        "--scheme",
        ["crank-nicolson", "chebyshev", "runge-kutta", "explicit", "adaptive", "auto"],
        "The method of solution; auto takes the cheapest of the first three that meets --error.",
        default="crank-nicolson",
    )
    backend: str = choice(
        "--backend",
        ["auto", "cpu", "cuda"],
        "What computes; auto takes a GPU, if there is one, for 100,000 nodes or more.",
        default="auto",
    )
    dtype: str = dtype_option("Precision on a GPU; the processor always computes in float64.")
    a: str = _values("a", "0.01", "Threshold of excitation.")
    gamma: str = _values("gamma", "2", "Decay of recovery.")
    epsilon: str = _values("epsilon", "0.01", "Speed of recovery.")
    diffusion: str = _values("diffusion", "1", "Diffusion of v.")
    nodes: int = integer("--nodes", "Number of nodes of the cable.", least=3, default=401)
    dx: float = option(
        "--dx",
        type=float,
        default=0.5,
        metavar="LENGTH",
        help="Distance between two nodes.",
    )
    left: str = option(
        "--left",
        default="no_flux",
        metavar="END",
        help="What holds at the left end: no_flux, periodic, or the value at which v is held.",
    )
    right: str = option(
        "--right",
        default="no_flux",
        metavar="END",
        help="What holds at the right end, as with --left.",
    )
    initial: str = option(
        "--initial",
        default="gaussian:100",
        metavar="STATE",
        help="State at t = 0: rest; gaussian:CENTER[:WIDTH[:HEIGHT]]; step:AT[:HEIGHT]; "
        "front:CENTER; or a file with x, v and perhaps w (.npz, .h5 or summary.json of a run, or "
        ".csv).",
    )
    stimuli: tuple[str, ...] = option(
        "--stimulus",
        "stimuli",
        multiple=True,
        metavar="AMPLITUDE[,x=FROM:TO][,t=FROM:TO][,every=T]",
        help="Stimulus, which adds to v_t where and while it is on, e.g. "
        "0.5,x=0:5,t=10:12,every=100. May be given several times.",
    )
    end: float = option(
        "--end",
        type=float,
        default=250.0,
        metavar="T",
        help="Time at which the run ends.",
        python="times",
    )
    frames: int = integer(
        "--frames",
        "Number of frames that are kept, evenly from t = 0 to the end.",
        least=2,
        default=251,
        python="times",
    )
    dt: float | None = option(
        "--dt",
        type=float,
        metavar="STEP",
        help="Longest step in time. [default: controlled steps, or 0.9 of the largest stable step]",
    )
    tolerance: float | None = option(
        "--tolerance",
        type=float,
        metavar="ERROR",
        help="Local error that a controlled step of Crank-Nicolson or Chebyshev may make. "
        "[default: 1e-6 without --dt]",
    )
    error: float | None = option(
        "--error",
        type=float,
        metavar="ERROR",
        help="With --scheme auto: the largest error of v and w from time at any frame; what --dx "
        "adds comes on top. [default: 1e-4]",
    )
    noise: float = option(
        "--noise",
        type=click.FloatRange(0),
        default=0.0,
        metavar="SIGMA",
        help="Strength of space-time white noise that is added to v; with --scheme explicit on the "
        "processor only.",
    )
    seed: int = integer("--seed", "Seed of the noise.", least=0, most=2**32 - 1, default=0)
    threshold: float = option(
        "--threshold",
        type=float,
        default=0.5,
        metavar="V",
        help="Value of v at which a wave counts as arrived.",
        python=None,
    )
    resume: Path | None = resume_option(
        "RUN", "results that it would have had; all options are those of that run.", python=None
    )
    out: Path | None = results_option("fhn", python=None)
    suffix: str = option(
        "--format",
        "suffix",
        type=click.Choice(["npz", "h5"]),
        default="npz",
        help="Format of the file of results; h5 needs h5py.",
        python=None,
    )
    animation: bool = option(
        "--animation", is_flag=True, help="Write animation.gif as well.", python=None
    )
    quiet: bool = quiet_option("the results' folder", python=None)
    as_json: bool = json_option()


def _before(context: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    """Return what was typed, or the arguments of the run that goes on."""
    if given["resume"] is not None:
        given = arguments_again(context, given, given["resume"], beside_resume(FhnOptions))
    return given


fhn = command(FhnOptions, "fhn", before=_before)
fhn.params.insert(
    0,
    click.Argument(
        ["summary"],
        required=False,
        type=click.Path(path_type=Path),
        callback=settings.use,
        is_eager=True,
        expose_value=False,
        metavar="[SUMMARY.JSON]",
    ),
)
