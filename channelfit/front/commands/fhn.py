"""`channelfit fhn`: the FitzHugh-Nagumo equation on a cable, solved and written down."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from channelfit.fitzhugh_nagumo import choice, inputs, outputs, settings
from channelfit.fitzhugh_nagumo.checkpoint import Checkpoints
from channelfit.fitzhugh_nagumo.equation import NAMED_STATES, Cable, Equation
from channelfit.fitzhugh_nagumo.memory import check_host
from channelfit.fitzhugh_nagumo.scheme import Scheme
from channelfit.fitzhugh_nagumo.simulation import OnProgress, Run, simulate
from channelfit.front.interrupts import all_is_done, held
from channelfit.front.json_lines import JsonLines
from channelfit.front.options import kept_options
from channelfit.front.unfinished import UnfinishedRun
from channelfit.front.verbs.fhn import FhnOptions
from channelfit.reading.errors import InputError, printable
from channelfit.results.identity import hardware
from channelfit.results.report.terminal import Counted, SearchScreen
from channelfit.results.run_folder import check_folder
from channelfit.results.run_state import plain
from channelfit.tasks.result_store import ResultStore
from channelfit.tasks.worker import software


@dataclass(frozen=True, eq=False)
class _Problem:
    """The equation, its cable and its initial state.

    Attributes:
        start: v and w at t = 0 at places (n,), each (n,), (n_cables, n) or a number.
        state: x (n_nodes,), and what `start` gives there as v and w.
        times: (n_frames,) of the frames.
    """

    equation: Equation
    cable: Cable
    start: Callable[[np.ndarray], tuple[Any, Any]]
    state: dict[str, np.ndarray]
    times: np.ndarray


def fhn(options: FhnOptions) -> None:
    """Solve the equation, write the results, and print them."""
    with JsonLines("fhn", options.as_json) as lines:
        try:
            _solve(lines, options)
        except MemoryError as error:  # memory may be limited in ways that no check can see
            raise InputError(
                f"there is not enough of it ({str(error) or 'the system gives no more'}); give "
                "fewer --nodes, --frames or cables at once",
                key="memory",
            ) from None


def _solve(lines: JsonLines, options: FhnOptions) -> None:
    """Solve the equation, judge the error, write the run folder and print the results."""
    problem = problem_of(options)
    solvers = _solvers(options, problem)
    solved = kept_options(options) | {"backend": "cuda" if solvers[0].on_device else "cpu"}
    own = settings.of(click.get_current_context().command, solved)
    from_file = options.initial.partition(":")[0] not in NAMED_STATES
    if from_file:
        solved["initial"] = str(Path(options.initial).absolute())
    with lines.screen("fhn", options.quiet) as screen:
        with UnfinishedRun("fhn", screen.say) as unfinished:
            unfinished.open(options.out, options.resume)
            folder = unfinished.claim_default("fhn").path
            lines.folder(folder)
            unfinished.report(name="fhn", stage="solving")
            unfinished.checkpoint.begin(_identity(solved, problem, solvers), plain(solved), "fhn")
            kept = unfinished.checkpoint.open_results()
            screen.begin("starting (the first run compiles)")
            began = time.perf_counter()
            run = _run(options, problem, solvers, _shown_on(screen, unfinished), unfinished, kept)
            seconds = time.perf_counter() - began
            equation, cable = problem.equation, problem.cable
            summary = outputs.summary_of(run, equation, cable, options.threshold, seconds)
            screen.begin("estimating the error")
            again = _without_noise(options, problem, run)
            summary |= outputs.trust(run, again, equation, cable, problem.start)
            for warning in summary["warnings"]:
                screen.warn_of(warning)
            summary["settings"] = own
            if from_file:
                summary["initial_state"] = {name: a.tolist() for name, a in problem.state.items()}
            screen.begin("writing")
            outputs.write(
                run, folder, options.suffix, options.animation, options.threshold, summary
            )
            all_is_done()
            unfinished.discard()
    lines.result(folder, sorted(folder.iterdir()), summary)
    if lines.enabled:
        return
    if options.quiet:
        click.echo(printable(str(folder)))
    else:
        outputs.print_summary(summary, folder)


def problem_of(options: FhnOptions) -> _Problem:
    """Return the problem. Raises InputError, before anything takes long, if it is wrong."""
    if options.resume is None and options.out is not None:
        check_folder(options.out)
    if not 0 < options.end < math.inf:
        raise InputError(
            f"the last time must be positive and finite, not {options.end}", key="--end"
        )
    if not math.isfinite(options.threshold):
        raise InputError(
            f"a finite number was expected, not {options.threshold}", key="--threshold"
        )
    names = ("a", "gamma", "epsilon", "diffusion")
    equation = inputs.sweep({name: getattr(options, name) for name in names})
    pulses = tuple(inputs.pulse(text) for text in options.stimuli)
    cable = inputs.cable_of(options.nodes, options.dx, options.left, options.right, pulses)
    check_host(options.frames, equation.n_cables, options.nodes)
    cable.check_stimuli(options.end)
    start = partial(inputs.state, options.initial, equation)
    v, w = start(cable.x)
    state = {"x": cable.x, "v": np.asarray(v, float), "w": np.asarray(w, float)}
    return _Problem(equation, cable, start, state, np.linspace(0, options.end, options.frames))


def _solvers(options: FhnOptions, problem: _Problem) -> list[Scheme]:
    """Return the scheme that is named, or those that `--scheme auto` chooses from."""
    auto = options.scheme == "auto"
    if auto and (options.dt is not None or options.tolerance is not None):
        raise InputError("auto chooses the step; give --error instead", key="--dt, --tolerance")
    if not auto and options.error is not None:
        raise InputError("is for --scheme auto; the others take --dt or --tolerance", key="--error")
    return _schemes(options, inputs.AUTO if auto else (options.scheme,), problem, options.noise)


def _schemes(
    options: FhnOptions, names: Sequence[str], problem: _Problem, noise: float
) -> list[Scheme]:
    """Return schemes of these names for an equation on a cable."""
    return inputs.schemes(
        names, options.backend, options.dtype, problem.equation, problem.cable, noise, options.seed
    )


def _run(
    options: FhnOptions,
    problem: _Problem,
    solvers: Sequence[Scheme],
    on_progress: OnProgress,
    unfinished: UnfinishedRun,
    kept: ResultStore,
) -> Run:
    """Solve the equation, from the last checkpoint in `kept` on."""
    checkpoints = Checkpoints(kept)
    v, w = problem.state["v"], problem.state["w"]
    more = (on_progress, checkpoints)
    try:
        if options.scheme == "auto":
            error = inputs.AUTO_ERROR if options.error is None else options.error
            return choice.solve(solvers, v, w, problem.times, error, *more)
        return simulate(solvers[0], v, w, problem.times, options.dt, options.tolerance, *more)
    except KeyboardInterrupt:
        with held():
            checkpoints.write()
        raise
    except InputError as error:
        if error.file is None:  # of the solution: it would come again
            unfinished.discard()
        raise


def _without_noise(options: FhnOptions, problem: _Problem, run: Run) -> Callable[[], Run] | None:
    """Solve the same without noise, since a run with noise has no exact solution to judge it by.

    None where the run has no noise.
    """
    if not options.noise:
        return None
    (exact,) = _schemes(options, ("explicit",), problem, 0.0)
    v, w = problem.state["v"], problem.state["w"]
    return partial(simulate, exact, v, w, run.times, options.dt, options.tolerance)


def _identity(
    given: Mapping[str, Any], problem: _Problem, solvers: Sequence[Scheme]
) -> dict[str, Any]:
    """Return all that the frames depend on, by name."""
    on_gpu = solvers[0].on_device
    pictured = ("threshold", "suffix", "animation")
    found = {f"--{name}": plain(value) for name, value in given.items() if name not in pictured}
    hashed = hashlib.sha256(
        b"".join(np.ascontiguousarray(a).tobytes() for a in problem.state.values())
    )
    found |= {"state at t = 0": hashed.hexdigest()[:16]}
    return {**found, **software(on_gpu), **hardware(on_gpu)}


def _shown_on(screen: SearchScreen, unfinished: UnfinishedRun) -> OnProgress:
    """Show how far a solution is; `--scheme auto` makes several, one after the other."""
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
