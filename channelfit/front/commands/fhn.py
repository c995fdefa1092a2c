"""`channelfit fhn`: the FitzHugh-Nagumo equation on a cable, solved and written down."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from channelfit.fitzhugh_nagumo import choice, inputs, outputs, settings
from channelfit.fitzhugh_nagumo.checkpoint import Checkpoints
from channelfit.fitzhugh_nagumo.equation import NAMED_STATES
from channelfit.fitzhugh_nagumo.memory import check_host
from channelfit.fitzhugh_nagumo.scheme import Scheme
from channelfit.fitzhugh_nagumo.simulation import OnProgress, simulate
from channelfit.front.interrupts import all_is_done, held
from channelfit.front.json_lines import JsonLines
from channelfit.front.unfinished import Unfinished
from channelfit.pieces.kept import Kept
from channelfit.pieces.on_worker import software
from channelfit.reading.errors import InputError
from channelfit.reading.texts import printable
from channelfit.results import run_folder
from channelfit.results.report.terminal import Counted, SearchScreen
from channelfit.results.run_state import plain
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.computer import processor

#: What `--scheme auto` chooses from.
_AUTO = ("runge-kutta", "chebyshev", "crank-nicolson")
#: Options that say where results go and what is printed, not what is solved.
_ELSEWHERE = ("resume", "out", "quiet")


def fhn(as_json: bool, **given: Any) -> None:
    """Solves the equation, writes what came out, and prints it."""
    with JsonLines("fhn", as_json) as lines:
        try:
            _solve(lines, {k: v for k, v in given.items() if k not in _ELSEWHERE}, **given)
        except MemoryError as error:  # memory may be limited in ways that no check can see
            raise InputError(
                f"there is not enough of it ({str(error) or 'the system gives no more'}); give "
                "fewer --nodes, --frames or cables at once",
                key="memory",
            ) from None


def _solve(
    lines: JsonLines,
    options: dict[str, Any],
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
    resume: Path | None,
    out: Path | None,
    suffix: str,
    animation: bool,
    quiet: bool,
) -> None:
    if resume is None and out is not None:
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
    options["backend"] = "cuda" if solvers[0].on_device else "cpu"
    own = settings.of(click.get_current_context().command, options)
    if initial.partition(":")[0] not in NAMED_STATES:
        options["initial"] = str(Path(initial).absolute())
    state = {"x": cable.x, "v": np.asarray(v, float), "w": np.asarray(w, float)}
    with lines.screen("fhn", quiet) as screen:
        folder = resume or out or run_folder.default_folder("fhn")
        with Unfinished(folder, "fhn", resume is not None, screen.say) as unfinished:
            unfinished.tell(name="fhn", stage="solving")
            kept = unfinished.open(_identity(options, state, solvers), plain(options), Kept)
            checkpoints = Checkpoints(kept)
            screen.begin("starting (the first run compiles)")
            on_progress = _shown_on(screen, unfinished)
            more = (on_progress, checkpoints)
            began = time.perf_counter()
            try:
                if scheme == "auto":
                    run = choice.solve(
                        solvers, v, w, times, 1e-4 if error is None else error, *more
                    )
                else:
                    run = simulate(solvers[0], v, w, times, dt, tolerance, *more)
            except KeyboardInterrupt:
                with held():
                    checkpoints.write()
                raise
            except InputError:  # it would come again
                unfinished.finish()
                raise
            seconds = time.perf_counter() - began
            summary = outputs.summary_of(run, equation, cable, threshold, seconds)
            again = None
            if noise:  # such a run has no exact solution, so the same run without it is judged
                (exact,) = inputs.schemes(("explicit",), backend, dtype, equation, cable, 0.0, seed)
                again = partial(simulate, exact, v, w, run.times, dt, tolerance)
            screen.begin("estimating the error")
            summary |= outputs.trust(run, again, equation, cable, start)
            for warning in summary["warnings"]:
                screen.warn_of(warning)
            summary["settings"] = own
            if initial.partition(":")[0] not in NAMED_STATES:
                summary["initial_state"] = {name: each.tolist() for name, each in state.items()}
            screen.begin("writing")
            outputs.write(run, folder, suffix, animation, threshold, summary)
            all_is_done()
            unfinished.finish()
    lines.result(folder, sorted(folder.iterdir()), summary)
    if lines.wanted:
        return
    if quiet:
        click.echo(printable(str(folder)))
    else:
        outputs.print_summary(summary, folder)


def _identity(
    given: Mapping[str, Any], state: Mapping[str, np.ndarray], solvers: Sequence[Scheme]
) -> dict[str, Any]:
    """All that the frames depend on, by name."""
    on_gpu = solvers[0].on_device
    pictured = ("threshold", "suffix", "animation")
    found = {f"--{name}": plain(value) for name, value in given.items() if name not in pictured}
    hashed = hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in state.values()))
    found |= {"state at t = 0": hashed.hexdigest()[:16], **software(on_gpu)}
    found["processor"] = processor()
    if on_gpu:
        found["GPU"] = gpu.device().name
    return found


def _shown_on(screen: SearchScreen, unfinished: Unfinished) -> OnProgress:
    """Shows how far a solution is; `--scheme auto` makes several, one after the other."""
    began, last = time.perf_counter(), 0.0

    def on_progress(t: float, end: float) -> None:
        nonlocal began, last
        if t < last or last == 0:  # what went before was the compiler, or another solution
            began = time.perf_counter()
            screen.begin("solving")
        last = t
        seconds = time.perf_counter() - began
        left = seconds * (end - t) / t if t else None
        counted = Counted(t, end, "units of time", seconds, left)
        screen.count(counted)
        unfinished.progress(counted, screen)

    return on_progress
