"""Finds the cheapest scheme and step for an error that is asked for (`--scheme auto`).

This is the error from time: the difference of v and w, at the frames, from the exact solution of
the same equations on the same grid. It does not contain the error that the spacing adds.

Every scheme is tried coarsely, twice: with a tolerance and an eighth of it, or with the longest
step that is stable and two thirds of it. From what the two runs differ by and the scheme's order
follow the error of the finer, the steps that the error asked for needs, and by what a step costs
the time they take. A scheme whose longest stable step alone makes it dearer than another needs no
trial: so it is with Runge-Kutta where the spacing is fine. The cheapest is then refined until its
error, found in the same way, is below what was asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from channelfit.fitzhugh_nagumo.checkpoint import Checkpoints
from channelfit.fitzhugh_nagumo.scheme import Scheme
from channelfit.fitzhugh_nagumo.simulation import OnProgress, Run, simulate
from channelfit.reading.errors import InputError

#: The tolerance of the first trial, and the share of the largest stable step that is taken.
_CRUDE, _SAFETY = 1e-3, 0.9
#: The share of the error that a finer run aims at, and the most finer runs that are made.
_AIM, _MOST_RUNS = 0.5, 8
#: A factor on estimated errors, because controlled steps do not quite follow their scheme's order.
_MARGIN = 1.5
#: The error from rounding in a step, as a share of the distance between numbers about one.
_ROUNDING = 0.25


@dataclass(frozen=True)
class Work:
    """How the error of a scheme depends on its steps, and what steps cost.

    key: what sets the steps, "dt" or "tolerance". order: the order of the error in the step.
    power: the order of the error in the quantity that `key` names. apart: the factor by which this
    quantity is divided from one run to the next. node: nanoseconds for each node of a step (with
    Chebyshev, for each rate of a node). step: nanoseconds for a step besides.
    """

    key: str
    order: int
    power: float
    apart: float
    node: float
    step: float


#: The work of each class of schemes, as measured on one core of an AMD EPYC and on an NVIDIA H200
#: (of Runge-Kutta there, as computed from its operations). Only the ratios matter.
WORK = {
    "RungeKutta": Work("dt", 4, 4, 1.5, 1.5, 50),
    "Chebyshev": Work("tolerance", 3, 1, 8, 1.0, 1e3),
    "CrankNicolson": Work("tolerance", 2, 2 / 3, 8, 8.0, 1e3),
    "RungeKuttaCuda": Work("dt", 4, 4, 1.5, 0.004, 1e3),
    "CrankNicolsonCuda": Work("tolerance", 2, 2 / 3, 8, 0.01, 3e5),
}


@dataclass(frozen=True)
class Trial:
    """Two runs of a scheme, a coarse and a finer one, and what they say of its error.

    level: the step or tolerance of the finer run. run: the finer run. left: its error without that
    from rounding, estimated from the order. rounding: the error from rounding in one step.
    fewest: the number of steps of the coarser run.
    """

    scheme: Scheme
    work: Work
    level: float
    run: Run
    left: float
    rounding: float
    fewest: int

    @property
    def made(self) -> int:
        """The number of steps of the finer run."""
        return int(self.run.facts["steps"])

    @property
    def error(self) -> float:
        """The error of the finer run, rounding included."""
        return self.left + self.rounding * self.made

    def needed(self, error: float) -> float:
        """Return how many steps it takes to come below the error, with a margin."""
        steps = self.made * (self.left / (_AIM * error)) ** (1 / self.work.order)
        return float(max(steps, self.fewest))

    def record(self, error: float) -> dict[str, Any]:
        """Return the steps and the estimated seconds that it takes to meet the error."""
        made, steps = self.made, self.needed(error)
        rates = 1.0
        if "mean_stages" in self.run.facts:  # a step twice as long takes root two as many
            rates = 3 * max(2.0, self.run.facts["mean_stages"] * math.sqrt(made / steps)) - 1
        return _record(self.scheme, self.work, steps, rates)


def _record(scheme: Scheme, work: Work, steps: float, rates: float = 1.0) -> dict[str, Any]:
    nodes = scheme.cable.n_nodes * scheme.equation.n_cables
    seconds = steps * (work.step + rates * work.node * nodes) * 1e-9
    return {"scheme": scheme.name, "steps": math.ceil(steps), "estimated_seconds": seconds}


class _Task:
    """A state, the times of the frames, and the error that is asked for."""

    def __init__(
        self,
        v: npt.ArrayLike,
        w: npt.ArrayLike,
        times: npt.ArrayLike,
        error: float,
        on_progress: OnProgress | None,
        checkpoints: Checkpoints | None,
    ) -> None:
        self.state, self.error, self.on_progress = (v, w), error, on_progress
        self.checkpoints = checkpoints
        self.times = np.atleast_1d(np.asarray(times, dtype=float))

    def run(self, scheme: Scheme, level: float) -> Run:
        """Solve with a step or a tolerance of that level."""
        given: dict[str, Any] = {WORK[type(scheme).__name__].key: level}
        try:
            more = {"on_progress": self.on_progress, "checkpoints": self.checkpoints, **given}
            return simulate(scheme, *self.state, self.times, **more)
        except InputError as failure:
            raise InputError(
                f"the {scheme.name} scheme does not meet {self.error:g}: {failure}",
                key="error",
            ) from None

    def finer(self, scheme: Scheme, coarse: Run, coarse_level: float, level: float) -> Trial:
        """Make a run at a level, and compares it with a coarser one."""
        work = WORK[type(scheme).__name__]
        fine = self.run(scheme, level)
        # Frames may lie so close that both steps fit between them equally often.
        while work.key == "dt" and fine.facts["steps"] < 1.25 * coarse.facts["steps"]:
            level /= work.apart
            fine = self.run(scheme, level)
        ratio = coarse_level / level
        if work.key == "dt":
            ratio = fine.facts["steps"] / coarse.facts["steps"]
        apart = max(
            float(np.max(np.abs(a - b))) for a, b in ((fine.v, coarse.v), (fine.w, coarse.w))
        )
        left = _MARGIN * apart / (ratio**work.power - 1)
        rounding = _ROUNDING * float(np.finfo(scheme.dtype).eps)
        return Trial(scheme, work, level, fine, left, rounding, int(coarse.facts["steps"]))

    def trial(self, scheme: Scheme, level: float) -> Trial:
        """Make two runs, at that level and at a finer one, and compares them."""
        coarse = self.run(scheme, level)
        return self.finer(scheme, coarse, level, level / WORK[type(scheme).__name__].apart)

    def refined(self, trial: Trial) -> Trial:
        """Make finer and finer runs until the error is met.

        Raises:
            InputError: the error cannot be met.
        """
        work, error = trial.work, self.error
        for _ in range(_MOST_RUNS):
            if trial.error <= error:
                return trial
            steps = trial.needed(error)
            if trial.rounding * steps > _AIM * error:
                raise InputError(
                    f"{error:g} cannot be met: it takes the {trial.scheme.name} scheme "
                    f"{steps:.2g} steps, whose rounding alone may come to "
                    f"{trial.rounding * steps:.2g}",
                    key="error",
                )
            shorter = (_AIM * error / trial.left) ** (1 / work.power) if trial.left else 1.0
            level = trial.level * min(shorter, 1 / work.apart)
            trial = self.finer(trial.scheme, trial.run, trial.level, level)
        raise InputError(
            f"{error:g} is not met: with a {work.key} of {trial.level:.2g} the "
            f"{trial.scheme.name} scheme still leaves {trial.error:.2g}",
            key="error",
        )


def solve(
    schemes: Sequence[Scheme],
    v: npt.ArrayLike,
    w: npt.ArrayLike,
    times: npt.ArrayLike,
    error: float,
    on_progress: OnProgress | None = None,
    checkpoints: Checkpoints | None = None,
) -> Run:
    """Solve the equation to an error in time, by the scheme that is the cheapest for it.

    Arguments:
        schemes: the schemes to choose from, of the classes in `WORK`; at least one of them must
            control its steps.
        v, w, times: as `simulate` takes them.
        error: the largest error of v and w that is allowed at any frame, from time alone.
        checkpoints: what all solutions keep, so that the run can go on.

    Returns: the frames. Their facts have `error_asked`; `error_in_time`, an estimate that is below
        it; and `choice`, the steps and seconds that each scheme takes, the cheapest first.

    Raises:
        InputError: the error is not positive, or is not met however short the steps.
    """
    if not (math.isfinite(error) and error > 0):
        raise InputError(f"the error must be positive and finite, not {error:g}", key="error")
    task = _Task(v, w, times, error, on_progress, checkpoints)
    if not task.times[-1] > 0:
        return simulate(schemes[-1], v, w, times, checkpoints=checkpoints)
    equal = [scheme for scheme in schemes if WORK[type(scheme).__name__].key == "dt"]
    trials = [task.trial(scheme, _CRUDE) for scheme in schemes if scheme not in equal]
    records = [trial.record(error) for trial in trials]
    states = trials[0].run.v.reshape(-1, trials[0].run.v.shape[-1])
    for scheme in equal:
        longest = _SAFETY * scheme.largest_step(states)
        fewest = _record(scheme, WORK[type(scheme).__name__], task.times[-1] / longest)
        if fewest["estimated_seconds"] < min(r["estimated_seconds"] for r in records):
            trials.append(task.trial(scheme, longest))
            fewest = trials[-1].record(error)
        records.append(fewest)
    records.sort(key=lambda record: record["estimated_seconds"])
    best = next(trial for trial in trials if trial.scheme.name == records[0]["scheme"])
    found = task.refined(best)
    facts = {
        **found.run.facts,
        "error_asked": error,
        "error_in_time": found.error,
        "choice": records,
    }
    return replace(found.run, facts=facts)
