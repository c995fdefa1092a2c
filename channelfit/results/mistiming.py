"""A test for recordings that are later than their fit assumes.

Delays are tried, and their costs compared. A delay alone changes the cost little, since the fitted
parameters have compensated for it as well as they can. So the parameters are moved with it, by
damped Gauss-Newton steps with finite differences of the currents. A current with a delay of some
samples is the current shifted by that number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from channelfit.problem.experiment import Experiment
from channelfit.reading.errors import Caution

if TYPE_CHECKING:
    from channelfit.scoring.scorer import ChannelScorer
    from channelfit.search.objective import Objective
    from channelfit.search.plan import FitPlan

#: The longest delay that is tried, ms, and the delays, samples.
_LATEST_MS = 1.0
_SAMPLES = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25)
#: The cost with a delay, as a share of that without, below which a caution is due.
_MARKED = 0.8
#: An eigenvalue of a Hessian below this share of the largest one is none.
_FLAT = 1e-12
#: How long after a jump of the voltage residuals show a delay, ms or samples, and the least share
#: of the cost that they must have.
_AFTER_MS, _AFTER, _SHARE = 2.0, 20, 0.1
#: In the unit cube: the step of differences, and the longest step of a parameter.
_DIFFERENCE, _LONGEST = 1e-4, 0.2
_FRACTIONS = (1.0, 0.5, 0.2)
_STEPS = 2
#: The most numbers in the differences of currents: a larger trial would take too long.
_MOST = 50_000_000


def mistimed(
    fit: FitPlan, scorer: ChannelScorer, values: np.ndarray, traces: Sequence[np.ndarray]
) -> tuple[Caution, ...]:
    """Return a caution where a delay of the recordings would lower the cost of a fit markedly.

    Arguments:
        scorer: in float64.
        values: (n_parameters,) of the fit, base units.
        traces: per experiment (n_sweeps, n_times) pA, the currents of these values.
    """
    samples = _samples(fit.problem.experiments)
    if (
        fit.surrogate
        or fit.problem.noise is not None
        or not samples
        or any(e.clamp is not None and not e.clamp.delay.is_zero for e in fit.problem.experiments)
    ):
        return ()
    objective = replace(fit, solved=(), cost=None).objective(scorer)
    size = objective.space.n_free * sum(trace.size for trace in traces)
    if not objective.space.n_free or size > _MOST or _after_jumps(samples, traces) < _SHARE:
        return ()
    unit = objective.space.to_unit(np.asarray(values, dtype=float)[:, None])[:, 0]
    trial = _Trial(objective, scorer, samples)
    step = min(one.sampling_ms for one in samples)
    delays = [step * n for n in _SAMPLES if step * n <= _LATEST_MS + 1e-9]
    if not delays or not trial.is_promising(unit, delays):
        return ()
    without, _ = trial.lowest(unit, [0.0])
    with_it, delay = trial.lowest(unit, delays)
    if not with_it < _MARKED * without:
        return ()
    return (_caution(fit, delay, without, with_it),)


def _caution(fit: FitPlan, delay: float, without: float, with_it: float) -> Caution:
    return Caution(
        f"{fit.file}: fit.delay",
        f"the recording seems to be about {delay:.2g} ms later than the fit takes it for: with "
        f"such a delay, and all parameters moved with it, the RMS falls from {without**0.5:.3g} "
        f"to {with_it**0.5:.3g} pA in {_STEPS} steps",
        "give `delay:` beside `recording`, longer by so much, or as a parameter with a range",
    )


@dataclass(frozen=True, eq=False)
class _TrialSamples:
    """The samples of an experiment with a weight that are later than the longest delay.

    Attributes:
        place: of the experiment in the problem.
        sampling_ms: the sampling interval.
        sweep, sample: (n_samples,) indices of each.
        data, weight: (n_samples,) pA, and 1.
        after: (n_samples,) whether it follows a jump of the voltage.
    """

    place: int
    sampling_ms: float
    sweep: np.ndarray
    sample: np.ndarray
    data: np.ndarray
    weight: np.ndarray
    after: np.ndarray


def _samples(experiments: Sequence[Experiment]) -> list[_TrialSamples]:
    """Return the samples of each experiment that has a recording, a weight and a jump."""
    found = []
    for place, e in enumerate(experiments):
        if e.recording is None or e.weight == 0 or e.observations:
            continue
        h = e.protocol.sampling_ms
        use = (e.recording.weight > 0) & np.isfinite(e.recording.current_pA)
        use[:, : round(_LATEST_MS / h) + 1] = False
        sweep, sample = np.nonzero(use)
        near = np.zeros(use.shape, bool)
        for k in range(e.protocol.n_sweeps):
            for jump in e.protocol.step_times_ms(k):
                first = round(jump / h)
                near[k, first : first + max(round(_AFTER_MS / h), _AFTER)] = True
        if not near.any() or not len(sweep):
            continue
        data, weight = e.recording.current_pA[use], e.weight * e.recording.weight[use]
        found.append(_TrialSamples(place, h, sweep, sample, data, weight, near[use]))
    return found


def _after_jumps(samples: Sequence[_TrialSamples], traces: Sequence[np.ndarray]) -> float:
    """Return the share of the cost that samples after jumps have."""
    near = whole = 0.0
    for one in samples:
        squares = one.weight * (traces[one.place][one.sweep, one.sample] - one.data) ** 2
        near, whole = near + float(squares[one.after].sum()), whole + float(squares.sum())
    return near / whole if whole > 0 else 0.0


class _Trial:
    """Gauss-Newton steps of the parameters of a fit at some delays."""

    def __init__(
        self, objective: Objective, scorer: ChannelScorer, samples: Sequence[_TrialSamples]
    ) -> None:
        self.objective, self.scorer, self.samples = objective, scorer, samples
        self.weight = sum(float(one.weight.sum()) for one in samples)

    def is_promising(self, unit: np.ndarray, delays: Sequence[float]) -> bool:
        """Return whether the parabola of the cost falls enough with a delay.

        Bounds only raise a minimum. So where no minimum without them is low enough beside the cost
        of this point, none is, and SciPy, which loads slowly, is not needed.
        """
        parabolas = self._parabolas(unit, [0.0, *delays])
        if min(_unbounded(*parabola) for parabola in parabolas[1:]) >= _MARKED * parabolas[0][2]:
            return False
        costs = [cost for _, cost in self._models(unit, parabolas)]
        return min(costs[1:]) < _MARKED * costs[0]

    def lowest(self, unit: np.ndarray, delays: Sequence[float]) -> tuple[float, float]:
        """Return the lowest cost, pA^2, after some steps from a point, and its delay, ms."""
        best, cost = 0.0, np.inf
        for _ in range(_STEPS):
            models = self._models(unit, self._parabolas(unit, delays))
            at = int(np.argmin([cost for _, cost in models]))
            best, step = delays[at], models[at][0]
            trials = np.column_stack([unit + f * step for f in (*_FRACTIONS, 0.0)])
            costs = self._costs(trials, best)
            unit, cost = trials[:, int(np.argmin(costs))], float(costs.min())
            delays = [best]
        return cost, best

    @staticmethod
    def _later(currents: np.ndarray, one: _TrialSamples, delay: float) -> np.ndarray:
        """Return the currents (n_samples, n_candidates) pA at the samples, later by a delay, ms."""
        return np.asarray(currents[one.sweep, one.sample - round(delay / one.sampling_ms)])

    def _costs(self, units: np.ndarray, delay: float) -> np.ndarray:
        simulated = self.scorer.simulate(self.objective.physical(units))
        total = np.zeros(units.shape[1])
        for one in self.samples:
            currents = self._later(simulated[one.place], one, delay)
            total += one.weight @ (currents - one.data[:, None]) ** 2
        return np.where(np.isfinite(total), total / self.weight, np.inf)

    def _parabolas(
        self, unit: np.ndarray, delays: Sequence[float]
    ) -> list[tuple[np.ndarray, np.ndarray, float]]:
        """Return the Gauss-Newton Hessian and the gradient, both halved, and the cost, by delay.

        All three are times the sum of the weights.
        """
        n = len(unit)
        difference = np.where(unit > 0.5, -_DIFFERENCE, _DIFFERENCE)
        points = np.column_stack([unit, unit[:, None] + np.diag(difference)])
        simulated = self.scorer.simulate(self.objective.physical(points))
        found = []
        for delay in delays:
            hessian, slope, cost = np.zeros((n, n)), np.zeros(n), 0.0
            for one in self.samples:
                currents = self._later(simulated[one.place], one, delay)
                slopes = (currents[:, 1:] - currents[:, :1]) / difference
                slopes = np.where(np.isfinite(slopes), slopes, 0.0)
                apart = currents[:, 0] - one.data
                hessian += slopes.T @ (one.weight[:, None] * slopes)
                slope += slopes.T @ (one.weight * apart)
                cost += float(one.weight @ apart**2)
            found.append((hessian, slope, cost))
        return found

    def _models(
        self, unit: np.ndarray, parabolas: Sequence[tuple[np.ndarray, np.ndarray, float]]
    ) -> list[tuple[np.ndarray, float]]:
        """Return the step to the minimum of each parabola, and the cost there."""
        found = []
        for hessian, slope, cost in parabolas:
            step = _bounded(hessian, slope, unit)
            predicted = cost + 2 * float(slope @ step) + float(step @ hessian @ step)
            found.append((step, predicted / self.weight))
        return found


def _unbounded(hessian: np.ndarray, slope: np.ndarray, cost: float) -> float:
    """Return the minimum of a parabola anywhere; -inf where it has none that is known."""
    if not (np.isfinite(hessian).all() and np.isfinite(slope).all() and np.isfinite(cost)):
        return -np.inf
    sizes, axes = np.linalg.eigh(hessian)
    kept = sizes > _FLAT * max(float(sizes[-1]), 1e-300)
    return cost - float(((axes[:, kept].T @ slope) ** 2 / sizes[kept]).sum())


def _bounded(hessian: np.ndarray, slope: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Return the step to the minimum of a parabola within the unit cube, not longer than allowed.

    Arguments:
        hessian: (n_free, n_free) the Gauss-Newton Hessian, halved.
        slope: (n_free,) the gradient, halved.
        unit: (n_free,) the point in the unit cube.
    """
    from scipy.optimize import lsq_linear  # loads slowly

    if not (np.isfinite(hessian).all() and np.isfinite(slope).all()):
        return np.zeros_like(unit)
    sizes, axes = np.linalg.eigh(hessian)
    kept = sizes > _FLAT * max(float(sizes[-1]), 1e-300)
    roots = np.sqrt(sizes[kept])
    low = np.minimum(np.maximum(-unit, -_LONGEST), -1e-12)
    high = np.maximum(np.minimum(1 - unit, _LONGEST), 1e-12)
    matrix, right = roots[:, None] * axes[:, kept].T, -(axes[:, kept].T @ slope) / roots
    if not len(roots):
        return np.zeros_like(unit)
    found = np.asarray(lsq_linear(matrix, right, bounds=(low, high)).x)
    return np.asarray(np.clip(unit + found, 0, 1) - unit)
