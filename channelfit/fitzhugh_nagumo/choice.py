"""The cheapest scheme and step for an error that is asked for: `channelfit fhn --scheme auto`.

The error is that of time: what v and w differ by, at the frames, from the exact solution of the
same equations on the same grid. What the spacing adds is not in it.

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

from channelfit.fitzhugh_nagumo.scheme import Scheme
from channelfit.fitzhugh_nagumo.simulation import OnProgress, Run, simulate
from channelfit.reading.errors import InputError

#: Tolerance of the first trial; part of the largest stable step that is taken.
_CRUDE, _SAFETY = 1e-3, 0.9
#: Part of the error that a finer run aims at, and how many are made.
_AIM, _MOST_RUNS = 0.5, 8
#: For what steps that are controlled do not follow their scheme's order.
_MARGIN = 1.5
#: What rounding adds in a step, in parts of the spacing of numbers about one.
_ROUNDING = 0.25


@dataclass(frozen=True)
class Work:
    """How a scheme's error follows what sets its steps, and what they cost.

    key: "dt" or "tolerance". order: of the error in the step. power: of the error in what `key`
    sets. apart: by what that is divided between two runs. node, step: nanoseconds for a node and
    step (of Chebyshev for a rate of a node), and for a step however few its nodes.
    """

    key: str
    order: int
    power: float
    apart: float
    node: float
    step: float


#: By the class of the scheme, measured on one core of an AMD EPYC; for a GPU on an NVIDIA H200, of
#: Runge-Kutta from its operations. Only the ratios matter.
WORK = {
    "RungeKutta": Work("dt", 4, 4, 1.5, 1.5, 50),
    "Chebyshev": Work("tolerance", 3, 1, 8, 1.0, 1e3),
    "CrankNicolson": Work("tolerance", 2, 2 / 3, 8, 4.0, 1e5),
    "RungeKuttaCuda": Work("dt", 4, 4, 1.5, 0.004, 1e3),
    "CrankNicolsonCuda": Work("tolerance", 2, 2 / 3, 8, 0.01, 3e5),
}


@dataclass(frozen=True)
class Trial:
    """Two runs of a scheme: the finer, its step or tolerance and its error, the coarser's steps.

    left: from the order, the share of rounding left out; rounding: that of one step.
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
        """Steps of the finer run."""
        return int(self.run.facts["steps"])

    @property
    def error(self) -> float:
        """Of the finer run."""
        return self.left + self.rounding * self.made

    def needed(self, error: float) -> float:
        """Steps that leave a part of the error."""
        steps = self.made * (self.left / (_AIM * error)) ** (1 / self.work.order)
        return float(max(steps, self.fewest))

    def record(self, error: float) -> dict[str, Any]:
        """The steps and seconds that the error takes."""
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
    """What is solved, and to which error."""

    def __init__(
        self,
        v: npt.ArrayLike,
        w: npt.ArrayLike,
        times: npt.ArrayLike,
        error: float,
        on_progress: OnProgress | None,
    ) -> None:
        self.state, self.error, self.on_progress = (v, w), error, on_progress
        self.times = np.atleast_1d(np.asarray(times, dtype=float))

    def run(self, scheme: Scheme, level: float) -> Run:
        """With a step or a tolerance."""
        given: dict[str, Any] = {WORK[type(scheme).__name__].key: level}
        try:
            return simulate(scheme, *self.state, self.times, on_progress=self.on_progress, **given)
        except InputError as failure:
            raise InputError(
                f"{self.error:g} is not met by the {scheme.name} scheme: {failure}",
                key="error",
            ) from None

    def finer(self, scheme: Scheme, coarse: Run, coarse_level: float, level: float) -> Trial:
        """A run at level beside a coarser one."""
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
        """Two runs, at level and finer."""
        coarse = self.run(scheme, level)
        return self.finer(scheme, coarse, level, level / WORK[type(scheme).__name__].apart)

    def refined(self, trial: Trial) -> Trial:
        """Finer and finer, until the error is met."""
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
) -> Run:
    """Solves the equation to an error in time, by the scheme that is the cheapest for it.

    Arguments:
        schemes: to choose from, of the classes in `WORK`; at least one controls its steps.
        v, w, times: as `simulate` takes them.
        error: the largest that v and w may have at any frame, from time alone.

    Returns: the frames; its facts have `error_asked`, `error_in_time` (an estimate, below the
        former) and `choice`: the steps and seconds that each scheme takes, the cheapest first.

    Raises:
        InputError: the error is not positive, or is not met however short the steps.
    """
    if not (math.isfinite(error) and error > 0):
        raise InputError(f"{error:g} cannot be asked for; it must be positive", key="error")
    task = _Task(v, w, times, error, on_progress)
    if not task.times[-1] > 0:
        return simulate(schemes[-1], v, w, times)
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
