"""The output of `channelfit fhn`: the summary, warnings, files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from channelfit import __version__
from channelfit.fitzhugh_nagumo import accuracy
from channelfit.fitzhugh_nagumo.accuracy import Start
from channelfit.fitzhugh_nagumo.equation import Array, Cable, Equation
from channelfit.fitzhugh_nagumo.simulation import Run, arrival_times
from channelfit.reading.csv_tables import csv_table
from channelfit.reading.errors import InputError
from channelfit.reading.files import write_text
from channelfit.results.report.terminal import PlainConsole
from channelfit.results.run_state import json_text
from channelfit.scoring.machine.computer import machine
from channelfit.scoring.machine.threads import usable_cores


def summary_of(
    run: Run, equation: Equation, cable: Cable, threshold: float, seconds: float
) -> dict[str, Any]:
    """Return the content of summary.json, apart from errors and settings.

    Arguments:
        threshold: a wave has arrived when v reaches it. seconds: that the solution took.
    """
    n_cables = run.v.shape[1]
    cables = []
    for k, (a, gamma, epsilon, diffusion) in enumerate(equation.table(n_cables).tolist()):
        arrived = arrival_times(run, threshold, k)
        reached = np.isfinite(arrived)
        cables.append(
            {
                "a": a,
                "gamma": gamma,
                "epsilon": epsilon,
                "diffusion": diffusion,
                "reached": float(reached.mean()),
                "last_arrival": float(np.nanmax(arrived)) if reached.any() else None,
                "speed": _speed(run.x, arrived),
                "v_max": float(run.v[:, k].max()),
                "v_min": float(run.v[:, k].min()),
            }
        )
    return {
        "channelfit": __version__,
        "machine": machine(),
        **run.facts,
        "nodes": cable.n_nodes,
        "dx": cable.dx,
        "left": cable.left,
        "right": cable.right,
        "end": float(run.times[-1]),
        "seconds": seconds,
        "threshold": threshold,
        "cables": cables,
    }


def trust(
    run: Run, again: Callable[[], Run] | None, equation: Equation, cable: Cable, start: Start
) -> dict[str, Any]:
    """Estimate how far v may err, and look for doubtful points of the run.

    Arguments:
        again: solves the same without noise, and its run is judged in place of a run with noise;
            None for a run without noise.

    Returns: the entries error_estimate and warnings of the summary.
    """
    warnings, estimate, reason = [], None, "a comparison would take too long"
    try:
        run = run if again is None else again()
        estimate = accuracy.estimate_error(run, equation, cable, start, usable_cores())
        if estimate is not None:
            warnings += accuracy.too_large(estimate, run, cable)
    except InputError as error:  # the run itself is done, and its results are good
        reason = str(error)
    if estimate is None:
        warnings.append(f"it is not known how far v errs: {reason}")
    warnings += accuracy.pinned(equation, cable) + accuracy.cut_stimuli(cable)
    facts = None if estimate is None else {**estimate.facts(), "without_noise": again is not None}
    return {"error_estimate": facts, "warnings": warnings}


def _speed(x: Array, arrived: Array) -> float | None:
    """Return the speed of the wave, or None where it passes too few nodes.

    It is measured along the last half of the way that the wave makes to the right; where it makes
    none, along its way to the left.

    Arguments:
        x, arrived: (n_nodes,) places of the nodes and when the wave arrives there, NaN for never.
    """
    for places, times in ((x, arrived), (-x[::-1], arrived[::-1])):
        if not np.isfinite(times).any():
            continue
        start = int(np.flatnonzero(times == np.nanmin(times))[-1])
        ends = np.flatnonzero(
            ~(np.diff(times[start:]) > 0)
        )  # not reached, or reached from the other side
        length = int(ends[0]) + 1 if len(ends) else len(times) - start
        way = slice(start + length // 2, start + length - max(2, length // 20))
        if way.stop - way.start > 3:
            return float(1 / np.polyfit(places[way], times[way], 1)[0])
    return None


def write(
    run: Run, folder: Path, suffix: str, animation: bool, threshold: float, summary: dict[str, Any]
) -> None:
    """Write the results' folder: frames, arrival times, summary and pictures.

    Arguments:
        suffix: of the file of frames, npz or h5. animation: whether to write animation.gif.
        threshold: a wave has arrived when v reaches it.
    """
    # Matplotlib is loaded when there is something to draw
    from channelfit.fitzhugh_nagumo import pictures

    run.save(folder / f"results.{suffix}")
    arrived = [arrival_times(run, threshold, k) for k in range(run.v.shape[1])]
    names = (
        ["arrival"] if len(arrived) == 1 else [f"arrival_{k}" for k in range(1, len(arrived) + 1)]
    )
    columns = [("x", run.x), *zip(names, arrived, strict=True)]
    write_text(folder / "arrival.csv", csv_table(columns, digits=9))
    write_text(folder / "summary.json", json_text(summary))
    pictures.save(pictures.frames_figure(run), folder / "frames.png")
    pictures.save(pictures.space_time_figure(run, threshold), folder / "space_time.png")
    if animation:
        pictures.animate(run, folder / "animation.gif")


def _print_error(console: Any, summary: dict[str, Any]) -> None:
    """Print the error of v, its reference, and the part of the run that was compared."""
    error = summary["error_estimate"]
    if error is None:
        return
    parts = ["against the same cable solved to 1e-8 on this grid and on a finer one"]
    if error["without_noise"]:
        parts.append("without the noise")
    if error["until"] < summary["end"]:
        parts.append(f"until t = {error['until']:g}")
    if len(error["cables"]) < len(summary["cables"]):
        parts.append(f"{len(error['cables'])} of {len(summary['cables'])} cables")
    low, high = error["places"]
    if high - low < (summary["nodes"] - 2) * summary["dx"]:
        parts.append(f"x = {low:g} to {high:g}")
    console.print(
        f"v errs by at most about {error['total']:.2g} ({error['steps']:.1g} by its steps, "
        f"{error['grid']:.1g} by its grid), at x = {error['x']:g}, t = {error['t']:g}: "
        + ", ".join(parts),
        soft_wrap=True,
    )


def print_summary(summary: dict[str, Any], folder: Path) -> None:
    """Print the summary of a run, in words and as a table of its first 20 cables."""
    console = PlainConsole(highlight=False)
    console.print(
        f"{summary['scheme']}, {summary['steps']:,} steps to t = {summary['end']:g} in "
        f"{summary['seconds']:.2g} s"
    )
    _print_error(console, summary)
    if "choice" in summary:
        _print_choice(console, summary)
    table = Table(box=None, padding=(0, 2, 0, 0))
    columns: Sequence[str] = ("a", "gamma", "epsilon", "diffusion", "reached", "speed", "v_max")
    for name in columns:
        table.add_column(name, justify="right")
    for row in summary["cables"][:20]:
        table.add_row(*("-" if row[name] is None else f"{row[name]:.5g}" for name in columns))
    console.print(table)
    if len(summary["cables"]) > 20:
        console.print(f"and {len(summary['cables']) - 20} more in summary.json")
    console.print(str(folder), soft_wrap=True, markup=False)


def _print_choice(console: Any, summary: dict[str, Any]) -> None:
    """Print the estimated cost of each scheme, and the error of the chosen one."""
    ways = "; ".join(
        f"{way['scheme']} {1e3 * way['estimated_seconds']:.2g} ms, {way['steps']:,} steps"
        for way in summary["choice"]
    )
    console.print(f"for an error of {summary['error_asked']:g} estimated: {ways}", soft_wrap=True)
    console.print(
        f"error from time {summary['error_in_time']:.1e}, seen beside a run with longer steps; "
        f"what dx = {summary['dx']:g} adds is not in it",
        soft_wrap=True,
    )
