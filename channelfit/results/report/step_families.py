"""The measures of a family of steps, of a recording and of a model alike.

In a family one segment differs between the sweeps: its voltage, or how long it lasts. Measured are

I-V             the largest current of the step, as the mean of 1, 3 or 5 samples by the noise, and
                the mean of its last tenth
conductance     the largest current over the driving force, as a share of the greatest
step after it   the largest current of a following segment at one voltage, as a share of the
                greatest: a tail, a test pulse, or the share that has recovered during the step
half rise       the time from the step's start to half of its largest current
rise, decay     time constants of single exponentials, fitted to the current from half of the
                largest on, where it stays there, or from the largest on, where it declines

The same samples are used of the recording and of the model: those that count in the fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from channelfit.problem.measures import noise_pA
from channelfit.problem.protocol import Protocol
from channelfit.problem.waves import Constant
from channelfit.results.report.traces import Traces

#: Samples of which a peak is the mean, so that noise does not make it: so many while the noise is
#: below this share of the largest current. A mean of more cuts the peak of a fast current off.
_SMOOTH = ((1, 0.003), (3, 0.01), (5, math.inf))
#: The share of a step at its end that counts as its end.
_END = 0.1
#: Why no conductance is measured where nothing is known of the model.
_UNKNOWN = "no reversal potential is known to divide by"
#: mV from the reversal potential within which a current says nothing about a conductance.
_NEAR_REVERSAL = 8.0
#: A change of the current is fitted where it is larger than this share of the largest current of
#: the family and than so many standard deviations of the noise.
_LEAST_CHANGE, _ABOVE_NOISE = 0.05, 4.0
#: Samples of an exponential, at least; the share of their variance that it must account for; and
#: how many times as long as the samples its time constant may be.
_FEWEST, _EXPLAINED, _LONGEST = 8, 0.9, 2.0
#: The measures of the course of a current, each with the name of its file.
_COURSES = (
    ("time to half of the largest current", "half_rise"),
    ("time constant of the rise", "rise"),
    ("time constant of the decay", "decay"),
)
#: How many slopes beyond its half a Boltzmann curve is on its plateau: at 92 %.
_PLATEAU = 2.5
#: Points of a Boltzmann curve, at least.
_FEWEST_POINTS = 5
#: Steps in which one is found, at most.
_MOST_STEPS = 200


@dataclass(frozen=True, eq=False)
class StepCurve:
    """One quantity against the number that differs between the sweeps.

    Attributes:
        name: of the quantity, in words.
        unit: of its values; empty for a share.
        file: a short name for a file of its figure.
        x: (n_sweeps,) in the family's unit, increasing.
        data: (n_sweeps,), NaN where it cannot be measured; None without a recording.
        results: the same of the fit, and of each rival.
        data_fit, result_fits: the Boltzmann curve or the exponential through each, in words; empty
            where there is none.
    """

    name: str
    unit: str
    file: str
    x: np.ndarray
    data: np.ndarray | None
    results: tuple[np.ndarray, ...]
    data_fit: str = ""
    result_fits: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether neither the data nor any fit gave a finite value."""
        rows = (*self.results, *([] if self.data is None else [self.data]))
        return not any(np.isfinite(row).any() for row in rows)


@dataclass(frozen=True, eq=False)
class StepFamily:
    """A family of steps, measured.

    Attributes:
        x_name, x_unit: of the number that differs between the sweeps: voltage (mV), duration (ms).
        curves: the measures that the samples allow.
        left_out: those that they do not, and why, a sentence each.
    """

    x_name: str
    x_unit: str
    curves: tuple[StepCurve, ...]
    left_out: tuple[str, ...]


def measured(traces: Traces, reversal_mV: float | str = _UNKNOWN) -> StepFamily | str:
    """Measure a family of steps.

    Arguments:
        traces: recording and fit of one experiment.
        reversal_mV: of the model's current; or why there is none by which the current, over its
            distance from the command, would be a conductance.

    Returns: the family, or why the experiment is none.
    """
    found = _varied(traces.protocol)
    if isinstance(found, str):
        return found
    order = np.argsort(found.values, kind="stable")
    steps = _Steps(traces, order)
    if found.unit == "ms":
        return _recovery(steps, found.values[order], found.place)
    return _voltage_family(steps, found.values[order], found.place, reversal_mV)


# --- which protocols are families ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Varied:
    """The number that differs between the sweeps.

    Attributes:
        place: of the segment in each sweep.
        values: (n_sweeps,) in the unit, mV or ms.
    """

    place: int
    values: np.ndarray
    unit: str


def _varied(protocol: Protocol) -> _Varied | str:
    """Find the segment that differs between the sweeps, and how; or say why there is none."""
    if protocol.n_sweeps < 3:
        n = protocol.n_sweeps
        return f"it is no family of steps: it has {n} sweep{'s' * (n > 1)}"
    if len({len(sweep) for sweep in protocol.sweeps}) > 1:
        return "it is no family of steps: its sweeps have different numbers of segments"
    voltages, lasting = [], []
    for place, column in enumerate(zip(*protocol.sweeps, strict=True)):
        if len({segment.wave for segment in column}) > 1:
            if not all(isinstance(segment.wave, Constant) for segment in column):
                return "it is no family of steps: what differs between its sweeps is no step"
            voltages.append(place)
        if len({round(segment.end_ms - segment.start_ms, 6) for segment in column}) > 1:
            lasting.append(place)
    if len(voltages) == 1 and not lasting:
        waves = [sweep[voltages[0]].wave for sweep in protocol.sweeps]
        values = np.array([wave.v_mV for wave in waves if isinstance(wave, Constant)])
        return _distinct(_Varied(voltages[0], values, "mV"))
    end = len(protocol.sweeps[0]) - 1
    if len(lasting) == 2 and lasting[1] == end and _waits(protocol, end):
        lasting = lasting[:1]  # a rest that makes all sweeps equally long
    if len(lasting) == 1 and not voltages:
        segments = [sweep[lasting[0]] for sweep in protocol.sweeps]
        if all(isinstance(one.wave, Constant) for one in segments):
            values = np.array([one.end_ms - one.start_ms for one in segments])
            return _distinct(_Varied(lasting[0], values, "ms"))
    if not voltages and not lasting:
        return "it is no family of steps: all its sweeps are alike"
    return "it is no family of steps: more than one segment differs between its sweeps"


def _waits(protocol: Protocol, place: int) -> bool:
    """Return whether a segment is at the holding potential in all sweeps."""
    waves = {sweep[place].wave for sweep in protocol.sweeps}
    return waves == {Constant(protocol.holding_mV)}


def _distinct(varied: _Varied) -> _Varied | str:
    if len(np.unique(varied.values.round(6))) < len(varied.values):
        return "it is no family of steps: some of its sweeps are alike"
    return varied


# --- measures ------------------------------------------------------------------------------------


class _Steps:
    """The samples of a family that count, of the recording and of each result.

    Arguments:
        order: of the sweeps, in which the number that differs increases.
    """

    def __init__(self, traces: Traces, order: np.ndarray) -> None:
        protocol = traces.protocol
        self.traces, self.order = traces, order
        self.t = protocol.times_ms
        self.ranges = [protocol.sample_ranges(k) for k in range(protocol.n_sweeps)]
        self.starts = [[s.start_ms for s in sweep] for sweep in protocol.sweeps]
        self.counted = traces.counts
        rows = [traces.result] if traces.data is None else [traces.data]
        self.noise = noise_pA(rows[0]) if traces.data is not None else 0.0
        largest = float(np.max(np.abs(rows[0]), where=self.counted, initial=0.0))
        self.smooth = next(n for n, share in _SMOOTH if self.noise <= share * largest)

    @property
    def smoothing(self) -> str:
        """The number of samples of which a largest current is the mean, in words; empty for one."""
        return f", mean of {self.smooth} samples" if self.smooth > 1 else ""

    def of(self, sweep: int, segment: int, current: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return times from the segment's start, ms, and currents, pA, of samples that count."""
        a, b = self.ranges[sweep][segment]
        use = self.counted[sweep, a:b]
        since = self.t[a:b][use] - self.starts[sweep][segment]
        return since, current[sweep, a:b][use]

    def curve(
        self,
        name: str,
        unit: str,
        file: str,
        x: np.ndarray,
        measure: Callable[[np.ndarray], np.ndarray],
        words: Callable[[np.ndarray, np.ndarray], str] | None = None,
    ) -> StepCurve:
        """Return a curve of a measure, (n_sweeps, n_times) pA -> (n_sweeps,) in the protocol's
        order.
        """
        traces = self.traces
        data = None if traces.data is None else measure(traces.data)[self.order]
        results = tuple(measure(result)[self.order] for result in traces.results)
        if words is None:
            return StepCurve(name, unit, file, x, data, results)
        data_fit = "" if data is None else words(x, data)
        result_fits = tuple(words(x, r) for r in results)
        return StepCurve(name, unit, file, x, data, results, data_fit, result_fits)

    def peaks(self, segment: int, current: np.ndarray) -> np.ndarray:
        """Return the largest current, in size, of a segment of every sweep: (n_sweeps,) pA."""
        return self._each(segment, current, self._peak)

    def above_noise(self, segment: int, current: np.ndarray) -> np.ndarray:
        """Return `peaks`; NaN everywhere where no sweep of the recording has more than noise."""
        measured = current if self.traces.data is None else self.traces.data
        largest = np.nanmax(np.abs(self.peaks(segment, measured)), initial=0.0)
        if largest <= _ABOVE_NOISE * self.noise:
            return np.full(len(current), math.nan)
        return self.peaks(segment, current)

    def ends(self, segment: int, current: np.ndarray) -> np.ndarray:
        """Return the mean of the last tenth of a segment of every sweep: (n_sweeps,) pA."""
        return self._each(segment, current, _end)

    def _peak(self, y: np.ndarray) -> float:
        smooth = _smoothed(y, self.smooth)
        return float(smooth[np.argmax(np.abs(smooth))])

    def _each(
        self, segment: int, current: np.ndarray, measure: Callable[[np.ndarray], float]
    ) -> np.ndarray:
        """Return a measure of a segment of every sweep, NaN where no sample counts."""
        rows = (self.of(k, segment, current)[1] for k in range(len(current)))
        return np.array([measure(y) if y.size else math.nan for y in rows])


def _smoothed(y: np.ndarray, n: int) -> np.ndarray:
    """Return the running mean of n samples, (n_samples,); of fewer at both ends."""
    if n == 1 or y.size < 2 * n:
        return y
    kernel = np.ones(n)
    count = np.convolve(np.ones_like(y), kernel, "same")
    return np.asarray(np.convolve(y, kernel, "same") / count)


def _end(y: np.ndarray) -> float:
    return float(y[-max(1, round(_END * y.size)) :].mean())


def _voltage_family(
    steps: _Steps, x: np.ndarray, place: int, reversal_mV: float | str
) -> StepFamily:
    curves = [
        steps.curve(
            f"largest current{steps.smoothing}", "pA", "iv", x, partial(steps.peaks, place)
        ),
        steps.curve("current at the end", "pA", "iv", x, partial(steps.ends, place)),
    ]
    left_out = []
    after = _same_after(steps.traces.protocol, place)
    if after is not None:
        curves.append(_shares_after(steps, x, after, _boltzmann_words))
    if isinstance(reversal_mV, str):
        left_out.append(f"conductance: {reversal_mV}")
    else:
        volts = np.empty(len(x))
        volts[steps.order] = x

        def conductance(current: np.ndarray) -> np.ndarray:
            drive = volts - reversal_mV
            drive[np.abs(drive) < _NEAR_REVERSAL] = math.nan
            return _share(steps.above_noise(place, current) / drive)

        curves.append(
            steps.curve(
                f"conductance at the largest current{steps.smoothing}",
                "",
                "conductance",
                x,
                conductance,
                _boltzmann_words,
            )
        )
    for row, (name, file) in enumerate(_COURSES):
        curves.append(steps.curve(name, "ms", file, x, partial(_times, steps, place, row)))
    return _family("voltage of the step", "mV", curves, left_out)


def _recovery(steps: _Steps, x: np.ndarray, place: int) -> StepFamily:
    after = _same_after(steps.traces.protocol, place)
    if after is None:
        return _family("duration of the step", "ms", [], ["no step of one kind follows"])
    return _family(
        "duration of the step", "ms", [_shares_after(steps, x, after, _recovery_words)], []
    )


def _family(
    name: str, unit: str, curves: Sequence[StepCurve], left_out: Sequence[str]
) -> StepFamily:
    empty = [
        f"{curve.name}: it could be measured in no sweep" for curve in curves if curve.is_empty
    ]
    return StepFamily(name, unit, tuple(c for c in curves if not c.is_empty), (*left_out, *empty))


def _same_after(protocol: Protocol, place: int) -> int | None:
    """Return the segment after one, if it holds the same voltage for as long in all sweeps."""
    after = place + 1
    if after >= len(protocol.sweeps[0]):
        return None
    segments = [sweep[after] for sweep in protocol.sweeps]
    alike = len({(one.wave, round(one.end_ms - one.start_ms, 6)) for one in segments}) == 1
    return after if alike and isinstance(segments[0].wave, Constant) else None


def _shares_after(
    steps: _Steps, x: np.ndarray, after: int, words: Callable[[np.ndarray, np.ndarray], str]
) -> StepCurve:
    wave = steps.traces.protocol.sweeps[0][after].wave
    assert isinstance(wave, Constant)
    name = f"largest current of the step after it, to {wave.v_mV:g} mV{steps.smoothing}"
    file = "availability" if words is _boltzmann_words else "recovery"
    return steps.curve(name, "", file, x, lambda c: _share(steps.above_noise(after, c)), words)


def _share(values: np.ndarray) -> np.ndarray:
    """Return values over the one that is largest in size; NaN where all are 0 or none is known."""
    size = np.abs(values)
    if not np.isfinite(size).any() or not np.nanmax(size) > 0:
        return np.full_like(values, math.nan)
    return np.asarray(values / values[np.nanargmax(size)])


# --- courses of time -----------------------------------------------------------------------------


def _times(steps: _Steps, place: int, row: int, current: np.ndarray) -> np.ndarray:
    """Return the half rise, or the time constant of rise or decay, of every sweep: (n_sweeps,) ms.

    Arguments:
        row: 0, 1 or 2, which of these.
    """
    found = np.full((3, len(current)), math.nan)
    scale = np.abs(steps.peaks(place, current))
    if not np.isfinite(scale).any():
        return np.asarray(found[row])
    least = max(_LEAST_CHANGE * float(np.nanmax(scale)), _ABOVE_NOISE * steps.noise)
    for k in range(len(current)):
        t, y = steps.of(k, place, current)
        if y.size < 2 * _FEWEST:
            continue
        smooth, end = _smoothed(y, steps.smooth), _end(y)
        at = int(np.argmax(np.abs(smooth)))
        peak, first = float(smooth[at]), float(smooth[0])
        declines = abs(peak - end) > least and (peak - end) * peak > 0
        rises = abs(peak - first) > least and (peak - first) * peak > 0
        if rises:
            half = (first + peak) / 2
            beyond = int(np.argmax((smooth - half) * math.copysign(1.0, peak) >= 0))
            found[0, k] = t[beyond]
            if not declines:
                found[1, k] = time_constant(t[beyond:], y[beyond:])
        if declines:
            found[2, k] = time_constant(t[at:], y[at:])
    return np.asarray(found[row])


def time_constant(t: np.ndarray, y: np.ndarray) -> float:
    """Return the time constant of the exponential that follows a current best, ms.

    Of all time constants that of the least squares is chosen; offset and amplitude follow from it
    by linear regression.

    Arguments:
        t: (n,) ms, increasing. y: (n,) pA.

    Returns: NaN where there are too few samples, or no exponential follows them.
    """
    if y.size < _FEWEST:
        return math.nan
    since, spread = t - t[0], float(np.sum((y - y.mean()) ** 2))
    lasts, step = float(since[-1]), float(since[1])
    if not spread > 0 or not step > 0:
        return math.nan

    low, high = math.log(step / 2), math.log(4 * _LONGEST * lasts)
    for _ in range(5):  # each search is nine times as fine as the one before
        grid = np.linspace(low, high, 19)
        best = int(np.argmin(spread - _followed_by_exponentials(since, y, grid)))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, 18)]
    log_tau = (low + high) / 2
    left = spread - _followed_by_exponentials(since, y, np.array([log_tau]))[0]
    explained = 1 - float(left) / spread
    tau = math.exp(log_tau)
    return tau if explained > _EXPLAINED and step <= tau <= _LONGEST * lasts else math.nan


def _followed_by_exponentials(t: np.ndarray, y: np.ndarray, log_tau: np.ndarray) -> np.ndarray:
    """Return the sum of squares of a current that exponentials account for.

    Arguments:
        t: (n,) ms. y: (n,) pA.
        log_tau: (n_exponentials,) logarithms of their time constants, ms.

    Returns: (n_exponentials,) pA^2, for the best offset and amplitude of each.
    """
    shape = np.exp(-t / np.exp(log_tau)[:, None])
    shape -= shape.mean(axis=1, keepdims=True)
    power = np.maximum((shape**2).sum(axis=1), 1e-300)
    return np.asarray((shape @ (y - y.mean())) ** 2 / power)


# --- in words ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Boltzmann:
    """The curve ``bottom + (top - bottom) / (1 + exp((half - v) / slope))``; mV.

    The slope is negative where the curve falls with the voltage.
    """

    half_mV: float
    slope_mV: float
    bottom: float
    top: float


def boltzmann(v: np.ndarray, y: np.ndarray) -> Boltzmann | None:
    """Return the Boltzmann curve that follows shares best; None where none does.

    Arguments:
        v: (n,) mV, increasing. y: (n,) shares; NaN is left out.

    Returns: None for fewer than five points, where a straight line or a constant would do as well,
        where the half-activation lies outside of the voltages, and where these do not reach the
        plateau, without which there is no share of the greatest.
    """
    use = np.isfinite(y)
    v, y = v[use], y[use]
    if v.size < _FEWEST_POINTS or np.ptp(y) < 0.3:
        return None
    rising = np.corrcoef(v, y)[0, 1] > 0
    sign = 1.0 if rising else -1.0
    slopes = sorted((sign * 0.5, sign * 60.0))
    lower = np.array([v[0], slopes[0], -1.5, -1.5])
    upper = np.array([v[-1], slopes[1], 1.5, 1.5])
    found, squares = _followed(v, y, lower, upper)
    left = squares / float(np.sum((y - y.mean()) ** 2))
    half, slope, bottom, top = found.tolist()
    plateau = v[-1] if slope > 0 else v[0]  # where the share is to be that of the greatest
    inside = v[0] < half < v[-1] and 0.51 < abs(slope) < 59 and (plateau - half) / slope > _PLATEAU
    return Boltzmann(half, slope, bottom, top) if left < 0.05 and inside and top > bottom else None


def _followed(
    v: np.ndarray, y: np.ndarray, lower: np.ndarray, upper: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return the Boltzmann curve of least squares within bounds.

    It begins at the best of some halves and slopes, with bottom and top by linear regression, and
    goes on by steps of Levenberg and Marquardt.

    SciPy has the like, but takes longer to load than all reports of a day take to compute.

    Arguments:
        v: (n,) mV. y: (n,) shares.
        lower, upper: (4,) of half, slope, bottom and top.

    Returns: the four parameters, and the sum of squares that is left.
    """

    def curve(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how far it is from the points (n,), and its derivatives (n, 4)."""
        power = np.clip((p[0] - v) / p[1], -300, 300)
        share = 1 / (1 + np.exp(power))
        steep = (p[2] - p[3]) * share * (1 - share) / p[1]
        rows = (steep, -steep * power, 1 - share, share)
        return p[2] + (p[3] - p[2]) * share - y, np.column_stack(rows)

    p = np.clip(_first_guess(v, y, lower, upper), lower, upper)
    apart, slopes = curve(p)
    squares, damping = float(apart @ apart), 1e-3
    for _ in range(_MOST_STEPS):
        gradient, hessian = slopes.T @ apart, slopes.T @ slopes
        free = ~(((p <= lower) & (gradient > 0)) | ((p >= upper) & (gradient < 0)))
        damped = hessian + damping * np.diag(np.diag(hessian) + 1e-30)
        step = np.zeros(4)
        step[free] = np.linalg.lstsq(damped[np.ix_(free, free)], -gradient[free], rcond=None)[0]
        tried = np.clip(p + step, lower, upper)
        there, slopes_there = curve(tried)
        gain = squares - float(there @ there)
        if gain <= 0:
            damping *= 10
            if damping > 1e12:
                break
            continue
        p, apart, slopes, damping = tried, there, slopes_there, damping / 10
        squares -= gain
        if gain <= 1e-14 * squares:
            break
    return p, float(apart @ apart)


def _first_guess(v: np.ndarray, y: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Return the best of a grid of halves and slopes, with its bottom and top, (4,)."""
    halves = np.linspace(lower[0], upper[0], 33)[:, None, None]
    slopes = np.geomspace(lower[1], upper[1], 13)[None, :, None]
    share = 1 / (1 + np.exp(np.clip((halves - v) / slopes, -300, 300)))
    mean = share.mean(axis=2, keepdims=True)
    power = np.maximum(((share - mean) ** 2).sum(axis=2), 1e-12)
    height = ((share - mean) @ (y - y.mean())) / power
    bottom = np.clip(y.mean() - height * mean[..., 0], lower[2], upper[2])
    top = np.clip(bottom + height, lower[3], upper[3])
    apart = bottom[..., None] + (top - bottom)[..., None] * share - y
    at = np.unravel_index(np.argmin((apart**2).sum(axis=2)), power.shape)
    return np.array([halves[at[0], 0, 0], slopes[0, at[1], 0], bottom[at], top[at]])


def _boltzmann_words(v: np.ndarray, y: np.ndarray) -> str:
    found = boltzmann(v, y)
    if found is None:
        return ""
    return f"half at {found.half_mV:.1f} mV, slope {found.slope_mV:.1f} mV"


def _recovery_words(t: np.ndarray, y: np.ndarray) -> str:
    use = np.isfinite(y)
    if use.sum() < _FEWEST_POINTS:
        return ""
    tau = _uneven_time_constant(t[use], y[use])
    return f"time constant {tau:.3g} ms" if math.isfinite(tau) else ""


def _uneven_time_constant(t: np.ndarray, y: np.ndarray) -> float:
    """Return a time constant as `time_constant` does, of a few points at any times."""
    about = y - y.mean()
    spread = float(about @ about)
    if not spread > 0:
        return math.nan
    grid = np.linspace(math.log(np.diff(t).min() / 4), math.log(2 * t[-1]), 4001)
    explained = _followed_by_exponentials(t, y, grid) / spread
    best = int(np.argmax(explained))
    inside = 0 < best < len(grid) - 1 and explained[best] > _EXPLAINED
    return float(math.exp(grid[best])) if inside else math.nan
