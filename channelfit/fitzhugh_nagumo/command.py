"""``channelfit fhn``: the FitzHugh-Nagumo equation on a cable, from the command line."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from channelfit.fitzhugh_nagumo import settings
from channelfit.reading.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from channelfit.fitzhugh_nagumo.accuracy import Start
    from channelfit.fitzhugh_nagumo.equation import Cable, Equation, Pulse
    from channelfit.fitzhugh_nagumo.simulation import OnProgress, Run, Scheme

#: From here on a GPU is worth its start.
_ENOUGH_NODES = 100_000
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


def _told_when_memory_ends(command: Callable[..., None]) -> Callable[..., None]:
    """What the checks before the work could not know, e.g. a limit that a shell has set."""

    @wraps(command)
    def told(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except MemoryError as error:
            raise InputError(
                f"there is too little of it ({str(error) or 'no more is given'}); give fewer "
                "--nodes, --frames or cables at once",
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
    help="How it is solved; auto takes the cheapest of the first three, and its step, for --error.",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where: auto takes a GPU, if there is one, for 100,000 nodes or more.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float64", "float32"]),
    default="float64",
    show_default=True,
    help="Precision on a GPU; the processor computes in float64.",
)
@_value("a", "0.01", "Threshold of excitation.")
@_value("gamma", "2", "Decay of recovery.")
@_value("epsilon", "0.01", "Speed of recovery.")
@_value("diffusion", "1", "Diffusion of v.")
@click.option("--nodes", type=click.IntRange(3), default=401, show_default=True, metavar="N")
@click.option("--dx", type=float, default=0.5, show_default=True, metavar="LENGTH")
@click.option(
    "--left",
    default="no_flux",
    show_default=True,
    metavar="END",
    help="no_flux, periodic, or the value at which v is held.",
)
@click.option("--right", default="no_flux", show_default=True, metavar="END", help="As --left.")
@click.option(
    "--initial",
    default="gaussian:100",
    show_default=True,
    metavar="STATE",
    help="rest; gaussian:CENTER[:WIDTH[:HEIGHT]]; step:AT[:HEIGHT]; front:CENTER; or a file with "
    "x, v and perhaps w (.npz or summary.json of a run, .csv).",
)
@click.option(
    "--stimulus",
    "stimuli",
    multiple=True,
    metavar="AMPLITUDE[,x=FROM:TO][,t=FROM:TO][,every=T]",
    help="Adds to v_t where and while it is on, e.g. 0.5,x=0:5,t=10:12,every=100. Several allowed.",
)
@click.option("--end", type=float, default=250.0, show_default=True, metavar="T", help="Last time.")
@click.option(
    "--frames",
    type=click.IntRange(2),
    default=251,
    show_default=True,
    metavar="N",
    help="Frames kept, evenly from t = 0 to the end.",
)
@click.option(
    "--dt",
    type=float,
    metavar="STEP",
    help="Longest step. [default: controlled, or 0.9 of the largest stable step]",
)
@click.option(
    "--tolerance",
    type=float,
    metavar="ERROR",
    help="Local error that a step of Crank-Nicolson or Chebyshev may make. [default: 1e-6 without "
    "--dt]",
)
@click.option(
    "--error",
    type=float,
    metavar="ERROR",
    help="With --scheme auto: the largest error of v and w from time, at any frame; what --dx adds "
    "is not in it. [default: 1e-4]",
)
@click.option(
    "--noise",
    type=click.FloatRange(0),
    default=0.0,
    metavar="SIGMA",
    help="Space-time white noise added to v (Ito; explicit scheme on the processor).",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, metavar="N", help="Of the noise."
)
@click.option(
    "--threshold",
    type=float,
    default=0.5,
    show_default=True,
    metavar="V",
    help="A wave has arrived when v reaches it.",
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
    help="Of the file of results; h5 needs h5py.",
)
@click.option("--animation", is_flag=True, help="Write animation.gif as well.")
@click.option("--quiet", is_flag=True, help="Print the results' folder and nothing else.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print summary.json on standard output and nothing else there.",
)
@_told_when_memory_ends
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
    With the summary.json of a run that run is repeated, with other values of the options that are
    given besides.

    \b
    The results' folder
      results.npz     x, times, v and w of every frame
      frames.png      v and w at six times
      space_time.png  v over place and time, with the line of first arrival
      arrival.csv     when v first reaches the threshold at every node
      summary.json    speed, steps, how far v may err, and all that repeats the run
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
    import numpy as np

    from channelfit.fitzhugh_nagumo import choice
    from channelfit.fitzhugh_nagumo.equation import NAMED_STATES
    from channelfit.fitzhugh_nagumo.memory import check_host
    from channelfit.fitzhugh_nagumo.simulation import simulate
    from channelfit.results import run_folder as runs

    if out is not None:
        runs.check_folder(out)
    if not end > 0 or end == float("inf"):
        raise InputError(f"{end} is no time to end; it must be positive", key="--end")
    if not math.isfinite(threshold):
        raise InputError(f"{threshold} cannot be reached", key="--threshold")
    equation = _sweep({"a": a, "gamma": gamma, "epsilon": epsilon, "diffusion": diffusion})
    pulses = tuple(_pulse(text) for text in stimuli)
    cable = _cable(nodes, dx, left, right, pulses)
    check_host(frames, equation.n_cables, nodes)
    cable.check_stimuli(end)
    start = partial(_state, initial, equation)
    v, w = start(cable.x)
    times = np.linspace(0, end, frames)
    names = _AUTO if scheme == "auto" else (scheme,)
    if scheme == "auto" and (dt is not None or tolerance is not None):
        raise InputError("auto chooses the step; give --error instead", key="--dt, --tolerance")
    if scheme != "auto" and error is not None:
        raise InputError("is for --scheme auto; the others take --dt or --tolerance", key="--error")
    solvers = _schemes(names, backend, dtype, equation, cable, noise, seed)
    began = time.perf_counter()
    with _progress(quiet) as on_progress:
        if scheme == "auto":
            run = choice.solve(solvers, v, w, times, 1e-4 if error is None else error, on_progress)
        else:
            run = simulate(solvers[0], v, w, times, dt, tolerance, on_progress)
    seconds = time.perf_counter() - began
    summary = _summary(run, equation, cable, threshold, seconds)
    again = None
    if noise:  # of which nothing is known but its law: the same run without it is judged
        (exact,) = _schemes(("explicit",), backend, dtype, equation, cable, 0.0, seed)
        again = partial(simulate, exact, v, w, run.times, dt, tolerance)
    summary |= _trust(run, again, equation, cable, start)
    summary["settings"] = {
        **settings.of(click.get_current_context()),
        "backend": "cuda" if hasattr(solvers[0], "device") else "cpu",
    }
    if initial.partition(":")[0] not in NAMED_STATES:
        summary["initial_state"] = {"x": cable.x.tolist(), "v": v.tolist(), "w": w.tolist()}
    folder = out or runs.default_folder("fhn")
    runs.make_folder(folder)
    _write(run, folder, suffix, animation, threshold, summary)
    if as_json:
        click.echo(runs.json_text(summary), nl=False)
    elif quiet:
        click.echo(str(folder))
    else:
        _print(summary, folder)


# --- from text


def _numbers(text: str, key: str, at_most: int = 10_000) -> np.ndarray:
    import numpy as np

    values: list[float] = []
    for part in text.split(","):
        pieces = part.split(":")
        try:
            if len(pieces) == 3 and 1 <= int(pieces[2]) <= at_most:
                values += np.linspace(float(pieces[0]), float(pieces[1]), int(pieces[2])).tolist()
            elif len(pieces) == 1:
                values.append(float(part))
            else:
                raise ValueError
        except ValueError:
            raise InputError(
                f'"{part}" is neither a number nor FROM:TO:COUNT (at most {at_most})', key=key
            ) from None
    return np.array(values)


def _sweep(texts: dict[str, str], at_most: int = 1_000_000) -> Equation:
    """One cable for each combination of values."""
    import numpy as np

    from channelfit.fitzhugh_nagumo.equation import Equation

    rows = [_numbers(text, f"--{name}") for name, text in texts.items()]
    n_cables = int(np.prod([len(row) for row in rows]))
    if n_cables > at_most:
        raise InputError(f"{n_cables} combinations; at most {at_most} cables are solved together")
    grid = [axis.ravel() for axis in np.meshgrid(*rows, indexing="ij")]
    if n_cables == 1:
        return Equation(*(float(values[0]) for values in grid))
    return Equation(*grid)


def _cable(nodes: int, dx: float, left: str, right: str, pulses: tuple[Pulse, ...]) -> Cable:
    from channelfit.fitzhugh_nagumo.equation import Cable

    ends: list[Any] = []
    for name, text in (("--left", left), ("--right", right)):
        if text in ("no_flux", "periodic"):
            ends.append(text)
            continue
        try:
            ends.append(float(text))
        except ValueError:
            raise InputError(
                f'"{text}" is neither no_flux, periodic nor a number', key=name
            ) from None
    return Cable(nodes, dx, ends[0], ends[1], pulses)


def _pulse(text: str) -> Pulse:
    from channelfit.fitzhugh_nagumo.equation import Pulse

    amplitude, *rest = text.split(",")
    values: dict[str, float] = {}
    names = {"x": ("x_from", "x_to"), "t": ("start", "end"), "every": ("period",)}
    try:
        for part in rest:
            name, _, given = part.partition("=")
            keys, numbers = names[name.strip()], [float(n) for n in given.split(":")]
            values |= dict(zip(keys, numbers, strict=True))
        return Pulse(float(amplitude), **values)
    except (KeyError, ValueError) as error:
        if isinstance(error, InputError):
            raise error.at(key="--stimulus") from None
        raise InputError(
            f'"{text}" is not AMPLITUDE[,x=FROM:TO][,t=FROM:TO][,every=T]', key="--stimulus"
        ) from None


def _state(text: str, equation: Equation, x: np.ndarray) -> tuple[Any, Any]:
    import numpy as np

    from channelfit.fitzhugh_nagumo import equation as eq

    name, *given = text.split(":")
    if name not in eq.NAMED_STATES:
        return eq.from_file(Path(text), x)
    try:
        numbers = [float(n) for n in given]
        least, most = eq.NAMED_STATES[name]
        if not least <= len(numbers) <= most:
            raise ValueError
    except ValueError:
        raise InputError(
            f'"{text}" is not rest, gaussian:CENTER[:WIDTH[:HEIGHT]], step:AT[:HEIGHT] or '
            "front:CENTER",
            key="--initial",
        ) from None
    if name == "front":
        numbers.append(float(np.max(equation.diffusion)))
    return getattr(eq, name)(x, *numbers), 0.0


def _schemes(
    names: Sequence[str],
    backend: str,
    dtype: str,
    equation: Equation,
    cable: Cable,
    noise: float,
    seed: int,
) -> list[Scheme]:
    if noise and tuple(names) != ("explicit",):
        raise InputError("noise is offered by the explicit scheme only", key="--noise")
    if backend == "cuda" and noise:
        raise InputError("noise runs on the processor only", key="--backend")
    if backend == "auto" and (noise or names == ("chebyshev",)):
        backend = "cpu"
    if backend == "auto":
        backend = "cuda" if _worth_a_gpu(equation, cable) else "cpu"
    if "chebyshev" in names and (backend == "cuda" or dtype != "float64"):
        if len(names) == 1:
            raise InputError(
                "the Chebyshev scheme runs on the processor only, in float64", key="--scheme"
            )
        names = [name for name in names if name != "chebyshev"]
    if dtype != "float64" and backend == "cpu":
        raise InputError("float32 is for a GPU: add --backend cuda", key="--dtype")
    if backend == "cuda":
        return [_on_a_gpu(name, dtype, equation, cable) for name in names]
    return [_on_the_processor(name, equation, cable, noise, seed) for name in names]


def _on_a_gpu(name: str, dtype: str, equation: Equation, cable: Cable) -> Scheme:
    from channelfit.fitzhugh_nagumo import cuda

    if name == "adaptive":
        return cuda.AdaptiveCuda(equation, cable, dtype=dtype)
    if name == "crank-nicolson":
        return cuda.CrankNicolsonCuda(equation, cable, dtype)
    make = cuda.ExplicitCuda if name == "explicit" else cuda.RungeKuttaCuda
    return make(equation, cable, dtype)


def _on_the_processor(
    name: str, equation: Equation, cable: Cable, noise: float, seed: int
) -> Scheme:
    from channelfit import fitzhugh_nagumo as schemes
    from channelfit.front.commands.doctor import cores

    if name == "adaptive":
        return schemes.Adaptive(equation, cable)
    if name == "explicit":
        return schemes.Explicit(equation, cable, noise, seed, cores())
    makes: dict[str, Callable[..., Scheme]] = {
        "runge-kutta": schemes.RungeKutta,
        "chebyshev": schemes.Chebyshev,
        "crank-nicolson": schemes.CrankNicolson,
    }
    return makes[name](equation, cable, n_threads=cores())


def _worth_a_gpu(equation: Equation, cable: Cable) -> bool:
    from channelfit.scoring.machine import gpu

    return equation.n_cables * cable.n_nodes >= _ENOUGH_NODES and gpu.is_available()


# --- to screen and files


@contextmanager
def _progress(quiet: bool) -> Iterator[OnProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("t = {task.completed:.5g}"),
    )
    hidden = quiet or not console.is_terminal
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=hidden)
    with bar:
        task = bar.add_task("starting (the first run compiles)", total=None)
        yield lambda t, end: bar.update(task, completed=t, total=end, description="solving")


def _summary(
    run: Run, equation: Equation, cable: Cable, threshold: float, seconds: float
) -> dict[str, Any]:
    import numpy as np

    from channelfit import __version__
    from channelfit.fitzhugh_nagumo.simulation import arrival_times
    from channelfit.results.run_folder import machine

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


def _trust(
    run: Run, again: Callable[[], Run] | None, equation: Equation, cable: Cable, start: Start
) -> dict[str, Any]:
    """How far v may err, and what is doubtful; warnings go to the screen as well.

    Of a run with noise another one without it, `again`, is judged.
    """
    from channelfit.fitzhugh_nagumo import accuracy
    from channelfit.front.commands.doctor import cores

    warnings, estimate, told = [], None, "a comparison would take too long"
    try:
        run = run if again is None else again()
        estimate = accuracy.estimate_error(run, equation, cable, start, cores())
        if estimate is not None:
            warnings += accuracy.too_large(estimate, run, cable)
    except InputError as error:  # the run itself is done, and its results are good
        told = str(error)
    if estimate is None:
        warnings.append(f"how far v errs is not known: {told}")
    warnings += accuracy.pinned(equation, cable) + accuracy.cut_stimuli(cable)
    for warning in warnings:
        click.secho("Warning: ", fg="yellow", bold=True, nl=False, err=True)
        click.echo(warning, err=True)
    facts = None if estimate is None else {**estimate.facts(), "without_noise": again is not None}
    return {"error_estimate": facts, "warnings": warnings}


def _speed(x: np.ndarray, arrived: np.ndarray) -> float | None:
    """Along the last half of the way that the wave makes to the right, or else to the left."""
    import numpy as np

    for places, times in ((x, arrived), (-x[::-1], arrived[::-1])):
        if not np.isfinite(times).any():
            continue
        start = int(np.flatnonzero(times == np.nanmin(times))[-1])
        ends = np.flatnonzero(~(np.diff(times[start:]) > 0))  # not reached, or met from behind
        length = int(ends[0]) + 1 if len(ends) else len(times) - start
        way = slice(start + length // 2, start + length - max(2, length // 20))
        if way.stop - way.start > 3:
            return float(1 / np.polyfit(places[way], times[way], 1)[0])
    return None


def _write(
    run: Run, folder: Path, suffix: str, animation: bool, threshold: float, summary: dict[str, Any]
) -> None:
    from channelfit.fitzhugh_nagumo import pictures
    from channelfit.fitzhugh_nagumo.simulation import arrival_times
    from channelfit.results import run_folder as runs

    run.save(folder / f"results.{suffix}")
    arrived = [arrival_times(run, threshold, k) for k in range(run.v.shape[1])]
    names = (
        ["arrival"] if len(arrived) == 1 else [f"arrival_{k}" for k in range(1, len(arrived) + 1)]
    )
    rows = [",".join(["x", *names])]
    for place, *times in zip(run.x.tolist(), *(t.tolist() for t in arrived), strict=True):
        rows.append(",".join([f"{place:.9g}", *("" if t != t else f"{t:.9g}" for t in times)]))
    runs.write_text(folder / "arrival.csv", "\n".join(rows) + "\n")
    runs.write_text(folder / "summary.json", runs.json_text(summary))
    pictures.save(pictures.frames_figure(run), folder / "frames.png")
    pictures.save(pictures.space_time_figure(run, 0, threshold), folder / "space_time.png")
    if animation:
        pictures.animate(run, folder / "animation.gif")


def _print_error(console: Any, summary: dict[str, Any]) -> None:
    """How far v errs, against what that was measured, and over how much of the run."""
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


def _print(summary: dict[str, Any], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
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
    console.print(str(folder), soft_wrap=True)


def _print_choice(console: Any, summary: dict[str, Any]) -> None:
    """Why this scheme was taken, and the error that it leaves."""
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
