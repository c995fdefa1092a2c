"""The choice of the cheapest scheme and step for a given error (`--scheme auto`).

This is the error from time: the difference of v and w, at the frames, from the exact solution of
the same equations on the same grid. It does not contain the error that the spacing adds.

Every scheme is tried coarsely, twice: with a tolerance and an eighth of it, or with the longest
step that is stable and two thirds of it. The difference of the two runs and the scheme's order give
the error of the finer, the number of steps for the given error, and the time that they take.
Where a scheme is more expensive than another even with its longest stable step, it needs no trial,
such as Runge-Kutta on a fine grid. The cheapest is then refined until its error, found in the same
way, is below the given one.
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
class StepCost:
    """The dependence of a scheme's error on its steps, and the time that steps take.

    Attributes:
        key: the argument of `simulate` that sets the steps, "dt" or "tolerance".
        order: the order of the error in the step.
        power: the order of the error in the argument `key`.
        apart: the factor by which this argument is divided from one run to the next.
        node: nanoseconds for each node of a step (with Chebyshev, for each rate of a node).
        step: nanoseconds for a step in addition.
    """

    key: str
    order: int
    power: float
    apart: float
    node: float
    step: float


#: The costs of each class of schemes, as measured on one core of an AMD EPYC and on an NVIDIA H200
#: (of Runge-Kutta there, as computed from its operations). Only the ratios matter.
COSTS = {
    "RungeKutta": StepCost("dt", 4, 4, 1.5, 1.5, 50),
    "Chebyshev": StepCost("tolerance", 3, 1, 8, 1.0, 1e3),
    "CrankNicolson": StepCost("tolerance", 2, 2 / 3, 8, 8.0, 1e3),
    "RungeKuttaCuda": StepCost("dt", 4, 4, 1.5, 0.004, 1e3),
    "CrankNicolsonCuda": StepCost("tolerance", 2, 2 / 3, 8, 0.01, 3e5),
}


@dataclass(frozen=True)
class Trial:
    """Two runs of a scheme, a coarse and a finer one, and the error that follows from them.

    Attributes:
        level: the step or tolerance of the finer run.
        run: the finer run.
        left: its error without that from rounding, estimated from the order.
        rounding: the error from rounding in one step.
        fewest: the number of steps of the coarser run.
    """

    scheme: Scheme
    cost: StepCost
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
        """Return the number of steps for an error below this one, with a margin."""
        steps = self.made * (self.left / (_AIM * error)) ** (1 / self.cost.order)
        return float(max(steps, self.fewest))

    def record(self, error: float) -> dict[str, Any]:
        """Return the steps and the estimated seconds that the error takes."""
        made, steps = self.made, self.needed(error)
        rates = 1.0
        if "mean_stages" in self.run.facts:  # a step twice as long takes root two as many
            rates = 3 * max(2.0, self.run.facts["mean_stages"] * math.sqrt(made / steps)) - 1
        return _record(self.scheme, self.cost, steps, rates)


def _record(scheme: Scheme, cost: StepCost, steps: float, rates: float = 1.0) -> dict[str, Any]:
    nodes = scheme.cable.n_nodes * scheme.equation.n_cables
    seconds = steps * (cost.step + rates * cost.node * nodes) * 1e-9
    return {"scheme": scheme.name, "steps": math.ceil(steps), "estimated_seconds": seconds}


@dataclass(frozen=True, eq=False)
class _Trials:
    """Runs from one state to the same times, with the error that one of them has to meet."""

    state: tuple[npt.ArrayLike, npt.ArrayLike]
    times: npt.NDArray[np.float64]
    error: float
    on_progress: OnProgress | None
    checkpoints: Checkpoints | None

    def run(self, scheme: Scheme, level: float) -> Run:
        """Solve with a step or a tolerance of that level."""
        try:
            more: dict[str, Any] = {COSTS[type(scheme).__name__].key: level}
            more |= {"on_progress": self.on_progress, "checkpoints": self.checkpoints}
            return simulate(scheme, *self.state, self.times, **more)
        except InputError as failure:
            raise InputError(
                f"the {scheme.name} scheme does not meet {self.error:g}: {failure}",
                key="error",
            ) from None

    def finer(self, scheme: Scheme, coarse: Run, coarse_level: float, level: float) -> Trial:
        """Make a run at a level, and compare it with a coarser one."""
        cost = COSTS[type(scheme).__name__]
        fine = self.run(scheme, level)
        # Frames may lie so close that both steps fit between them equally often.
        while cost.key == "dt" and fine.facts["steps"] < 1.25 * coarse.facts["steps"]:
            level /= cost.apart
            fine = self.run(scheme, level)
        ratio = coarse_level / level
        if cost.key == "dt":
            ratio = fine.facts["steps"] / coarse.facts["steps"]
        apart = max(
            float(np.max(np.abs(a - b))) for a, b in ((fine.v, coarse.v), (fine.w, coarse.w))
        )
        left = _MARGIN * apart / (ratio**cost.power - 1)
        rounding = _ROUNDING * float(np.finfo(scheme.dtype).eps)
        return Trial(scheme, cost, level, fine, left, rounding, int(coarse.facts["steps"]))

    def trial(self, scheme: Scheme, level: float) -> Trial:
        """Make two runs, at that level and at a finer one, and compare them."""
        coarse = self.run(scheme, level)
        return self.finer(scheme, coarse, level, level / COSTS[type(scheme).__name__].apart)

    def refined(self, trial: Trial) -> Trial:
        """Make finer and finer runs until the error is met.

        Raises:
            InputError: the error cannot be met.
        """
        cost, error = trial.cost, self.error
        for _ in range(_MOST_RUNS):
            if trial.error <= error:
                return trial
            steps = trial.needed(error)
            if trial.rounding * steps > _AIM * error:
                raise InputError(
                    f"{error:g} cannot be met: it takes the {trial.scheme.name} scheme "
                    f"{steps:.2g} steps, and rounding alone may come to "
                    f"{trial.rounding * steps:.2g}",
                    key="error",
                )
            shorter = (_AIM * error / trial.left) ** (1 / cost.power) if trial.left else 1.0
            level = trial.level * min(shorter, 1 / cost.apart)
            trial = self.finer(trial.scheme, trial.run, trial.level, level)
        raise InputError(
            f"{error:g} is not met: with a {cost.key} of {trial.level:.2g} the "
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
        schemes: the schemes to choose from, of the classes in `COSTS`; at least one of them must
            control its steps.
        v, w, times: as `simulate` takes them.
        error: the largest error of v and w that is allowed at any frame, from time alone.
        checkpoints: the records of all solutions, from which the run can go on.

    Returns: the frames. Their facts have `error_asked`; `error_in_time`, an estimate that is below
        it; and `choice`, the steps and seconds that each scheme takes, the cheapest first.

    Raises:
        InputError: the error is not positive, or is not met however short the steps.
    """
    if not (math.isfinite(error) and error > 0):
        raise InputError(f"the error must be positive and finite, not {error:g}", key="error")
    moments = np.atleast_1d(np.asarray(times, dtype=float))
    runs = _Trials((v, w), moments, error, on_progress, checkpoints)
    if not moments[-1] > 0:
        return simulate(schemes[-1], v, w, times, checkpoints=checkpoints)
    equal = [scheme for scheme in schemes if COSTS[type(scheme).__name__].key == "dt"]
    trials = [runs.trial(scheme, _CRUDE) for scheme in schemes if scheme not in equal]
    records = [trial.record(error) for trial in trials]
    states = trials[0].run.v.reshape(-1, trials[0].run.v.shape[-1])
    for scheme in equal:
        longest = _SAFETY * scheme.largest_step(states)
        fewest = _record(scheme, COSTS[type(scheme).__name__], moments[-1] / longest)
        if fewest["estimated_seconds"] < min(r["estimated_seconds"] for r in records):
            trials.append(runs.trial(scheme, longest))
            fewest = trials[-1].record(error)
        records.append(fewest)
    records.sort(key=lambda record: record["estimated_seconds"])
    best = next(trial for trial in trials if trial.scheme.name == records[0]["scheme"])
    found = runs.refined(best)
    facts = {
        **found.run.facts,
        "error_asked": error,
        "error_in_time": found.error,
        "choice": records,
    }
    return replace(found.run, facts=facts)
