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
from channelfit.front.unfinished import UnfinishedRun
from channelfit.reading.errors import InputError
from channelfit.reading.texts import printable
from channelfit.results.identity import hardware
from channelfit.results.report.terminal import Counted, SearchScreen
from channelfit.results.run_folder import check_folder
from channelfit.results.run_state import plain
from channelfit.tasks.result_store import ResultStore
from channelfit.tasks.worker import software

#: Options that say where results go and what is printed, not what is solved.
_ELSEWHERE = ("resume", "out", "quiet")


@dataclass(frozen=True)
class _Options:
    """What the options of the command say, by the names of their parameters (`verbs.fhn`)."""

    scheme: str
    backend: str
    dtype: str
    a: str
    gamma: str
    epsilon: str
    diffusion: str
    nodes: int
    dx: float
    left: str
    right: str
    initial: str
    stimuli: tuple[str, ...]
    end: float
    frames: int
    dt: float | None
    tolerance: float | None
    error: float | None
    noise: float
    seed: int
    threshold: float
    resume: Path | None
    out: Path | None
    suffix: str
    animation: bool
    quiet: bool

    @property
    def state_is_a_file(self) -> bool:
        """Whether the state at t = 0 is read from a file."""
        return self.initial.partition(":")[0] not in NAMED_STATES

    def schemes(self, names: Sequence[str], of: _Task, noise: float) -> list[Scheme]:
        """Schemes of these names for an equation on a cable."""
        return inputs.schemes(
            names, self.backend, self.dtype, of.equation, of.cable, noise, self.seed
        )


@dataclass(frozen=True, eq=False)
class _Task:
    """What is to be solved.

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


def fhn(as_json: bool, **given: Any) -> None:
    """Solves the equation, writes what came out, and prints it."""
    with JsonLines("fhn", as_json) as lines:
        try:
            _solve(lines, _Options(**given), {k: given[k] for k in given if k not in _ELSEWHERE})
        except MemoryError as error:  # memory may be limited in ways that no check can see
            raise InputError(
                f"there is not enough of it ({str(error) or 'the system gives no more'}); give "
                "fewer --nodes, --frames or cables at once",
                key="memory",
            ) from None


def _solve(lines: JsonLines, given: _Options, options: dict[str, Any]) -> None:
    """The work of the command; options: by name, those that say what is solved."""
    task = _task(given)
    solvers = _solvers(given, task)
    options["backend"] = "cuda" if solvers[0].on_device else "cpu"
    own = settings.of(click.get_current_context().command, options)
    if given.state_is_a_file:
        options["initial"] = str(Path(given.initial).absolute())
    with lines.screen("fhn", given.quiet) as screen:
        with UnfinishedRun("fhn", screen.say) as unfinished:
            unfinished.open(given.out, given.resume)
            folder = unfinished.claim_default("fhn").path
            lines.folder(folder)
            unfinished.report(name="fhn", stage="solving")
            unfinished.checkpoint.begin(_identity(options, task, solvers), plain(options), "fhn")
            kept = unfinished.checkpoint.open_results()
            screen.begin("starting (the first run compiles)")
            began = time.perf_counter()
            run = _run(given, task, solvers, _shown_on(screen, unfinished), unfinished, kept)
            seconds = time.perf_counter() - began
            summary = outputs.summary_of(run, task.equation, task.cable, given.threshold, seconds)
            screen.begin("estimating the error")
            again = _without_noise(given, task, run)
            summary |= outputs.trust(run, again, task.equation, task.cable, task.start)
            for warning in summary["warnings"]:
                screen.warn_of(warning)
            summary["settings"] = own
            if given.state_is_a_file:
                summary["initial_state"] = {name: a.tolist() for name, a in task.state.items()}
            screen.begin("writing")
            outputs.write(run, folder, given.suffix, given.animation, given.threshold, summary)
            all_is_done()
            unfinished.discard()
    lines.result(folder, sorted(folder.iterdir()), summary)
    if lines.wanted:
        return
    if given.quiet:
        click.echo(printable(str(folder)))
    else:
        outputs.print_summary(summary, folder)


def _task(given: _Options) -> _Task:
    """What is to be solved. Raises InputError, before anything takes long, where that is wrong."""
    if given.resume is None and given.out is not None:
        check_folder(given.out)
    if not 0 < given.end < math.inf:
        raise InputError(f"the last time must be positive and finite, not {given.end}", key="--end")
    if not math.isfinite(given.threshold):
        raise InputError(f"a finite number was expected, not {given.threshold}", key="--threshold")
    names = ("a", "gamma", "epsilon", "diffusion")
    equation = inputs.sweep({name: getattr(given, name) for name in names})
    pulses = tuple(inputs.pulse(text) for text in given.stimuli)
    cable = inputs.cable_of(given.nodes, given.dx, given.left, given.right, pulses)
    check_host(given.frames, equation.n_cables, given.nodes)
    cable.check_stimuli(given.end)
    start = partial(inputs.state, given.initial, equation)
    v, w = start(cable.x)
    state = {"x": cable.x, "v": np.asarray(v, float), "w": np.asarray(w, float)}
    return _Task(equation, cable, start, state, np.linspace(0, given.end, given.frames))


def _solvers(given: _Options, task: _Task) -> list[Scheme]:
    """The scheme that is named, or those that `--scheme auto` chooses from."""
    auto = given.scheme == "auto"
    if auto and (given.dt is not None or given.tolerance is not None):
        raise InputError("auto chooses the step; give --error instead", key="--dt, --tolerance")
    if not auto and given.error is not None:
        raise InputError("is for --scheme auto; the others take --dt or --tolerance", key="--error")
    return given.schemes(inputs.AUTO if auto else (given.scheme,), task, given.noise)


def _run(
    given: _Options,
    task: _Task,
    solvers: Sequence[Scheme],
    on_progress: OnProgress,
    unfinished: UnfinishedRun,
    kept: ResultStore,
) -> Run:
    """Solves the equation, from where `kept` says that an earlier run has come to."""
    checkpoints = Checkpoints(kept)
    v, w = task.state["v"], task.state["w"]
    more = (on_progress, checkpoints)
    try:
        if given.scheme == "auto":
            error = inputs.AUTO_ERROR if given.error is None else given.error
            return choice.solve(solvers, v, w, task.times, error, *more)
        return simulate(solvers[0], v, w, task.times, given.dt, given.tolerance, *more)
    except KeyboardInterrupt:
        with held():
            checkpoints.write()
        raise
    except InputError as error:
        if error.file is None:  # of the solution: it would come again
            unfinished.discard()
        raise


def _without_noise(given: _Options, task: _Task, run: Run) -> Callable[[], Run] | None:
    """Solves the same without noise, since a run with noise has no exact solution to judge it by.

    None where the run has no noise.
    """
    if not given.noise:
        return None
    (exact,) = given.schemes(("explicit",), task, 0.0)
    v, w = task.state["v"], task.state["w"]
    return partial(simulate, exact, v, w, run.times, given.dt, given.tolerance)


def _identity(given: Mapping[str, Any], task: _Task, solvers: Sequence[Scheme]) -> dict[str, Any]:
    """All that the frames depend on, by name."""
    on_gpu = solvers[0].on_device
    pictured = ("threshold", "suffix", "animation")
    found = {f"--{name}": plain(value) for name, value in given.items() if name not in pictured}
    hashed = hashlib.sha256(
        b"".join(np.ascontiguousarray(a).tobytes() for a in task.state.values())
    )
    found |= {"state at t = 0": hashed.hexdigest()[:16]}
    return {**found, **software(on_gpu), **hardware(on_gpu)}


def _shown_on(screen: SearchScreen, unfinished: UnfinishedRun) -> OnProgress:
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
