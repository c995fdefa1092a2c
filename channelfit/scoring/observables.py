"""Numbers that experimenters take from currents, and their derivatives by these currents.

Between samples a current is the polynomial of fourth degree through five of them. A peak is the
extremum of that polynomial: its derivatives by the samples are the weights of the interpolation
there (the envelope theorem), and those of its time follow from the implicit function theorem, as do
those of the time at which a fraction of it is reached and of the exponentials that fit best.

Arrays are those of NumPy or CuPy: currents y (.., n_sweeps, n_samples), of which those of a shorter
window end earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from channelfit.problem.observation import LEAST_SAMPLES, Measure
from channelfit.scoring.kernels.exponential_kernels import (
    CLOSE,
    HOPELESS,
    IMPROVED,
    RIDGE,
    TINY,
    fitExponentials,
)
from channelfit.scoring.kernels.peak_kernels import (
    HALVINGS,
    NEWTON,
    found_crossings,
    found_extrema,
)
from channelfit.scoring.machine.arrays import array_module, to_host

#: The five places of a polynomial, and from these to its coefficients.
_PLACES = np.arange(LEAST_SAMPLES) - LEAST_SAMPLES // 2
_COEFFICIENTS = np.linalg.inv(np.vander(_PLACES.astype(float), increasing=True))
#: Time constants that are tried first: so many, from a share of an interval to a multiple of the
#: window.
_TRIED, _SHORTEST, _LONGEST = {1: 24, 2: 14}, 0.5, 5.0
#: Exponentials are fitted to no more samples of a window, evenly spaced.
_FITTED = 64


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of a window in all sweeps.

    Attributes:
        y: (.., n_sweeps, n_samples) the current, or what else is observed.
        n: (n_sweeps,) samples of each.
        first_ms: (n_sweeps,) the time of the first of them from the beginning of the window.
        length_ms: (n_sweeps,) of the window.
        step_ms: (n_sweeps,) from one sample to the next.
    """

    y: Any
    n: Any
    first_ms: Any
    length_ms: Any
    step_ms: Any

    @property
    def inside(self) -> Any:
        """(n_sweeps, n_samples) bool: True for samples of the window."""
        return array_module(self.y).arange(self.y.shape[-1]) < self.n[:, None]

    def take(self, sweeps: slice) -> Samples:
        """Return those of some sweeps."""
        rows = (self.n, self.first_ms, self.length_ms, self.step_ms)
        return Samples(self.y[..., sweeps, :], *(row[sweeps] for row in rows))


@dataclass(frozen=True, eq=False)
class Spot:
    """Derivatives of a number by a few neighboring samples; those by all others are 0.

    Attributes:
        first: (.., n_sweeps) the first of these samples.
        weights: (.., n_sweeps, 5)
    """

    first: Any
    weights: Any


#: Returns the derivatives of a number: by spots, or by all samples (.., n_sweeps, n_samples).
Slope = Callable[[], Any]
#: Measures that rest on a peak or a trough.
PEAKS = ("peak", "trough", "time to peak", "rise", "fall")


def measured(measure: Measure, samples: Samples) -> tuple[Any, Slope]:
    """Return a number of each sweep (.., n_sweeps), and what returns its derivatives by samples.

    Raises: KeyError for a measure that rests on a peak; see `at_extremum`.
    """
    xp, kind = array_module(samples.y), measure.kind
    with np.errstate(all="ignore"):  # of candidates that fail
        if kind in ("tau", "amplitude"):
            return _exponential(measure, samples)
        weights = {
            "mean": lambda: xp.where(samples.inside, 1.0 / samples.n[:, None], 0.0),
            "last": lambda: (xp.arange(samples.y.shape[-1]) == samples.n[:, None] - 1).astype(
                float
            ),
        }[kind]()
        shape = samples.y.shape
        return (samples.y * weights).sum(axis=-1), lambda: xp.broadcast_to(weights, shape)


def at_extremum(measure: Measure, found: Extremum) -> tuple[Any, Slope]:
    """Return a number of each sweep (.., n_sweeps), and what returns the spots of its derivatives.

    Times are in ms. Where the current does not come to a fraction of its peak within the window,
    the time is beyond the window's end by as much of its length as is lacking.
    """
    kind = measure.kind
    with np.errstate(all="ignore"):  # of candidates that fail
        if kind in ("peak", "trough"):
            return found.value, lambda: [Spot(found.local.first, found.weights)]
        of_peak = found.time, lambda: [Spot(found.local.first, found.weights_of_time)]
        if kind == "time to peak":
            return of_peak
        times = [found.crossing(f, before=kind == "rise") for f in measure.fractions]
        if len(times) == 1 and kind == "rise":
            return times[0]
        (begin, by_begin), (end, by_end) = times if len(times) == 2 else (of_peak, times[0])

        def slope() -> list[Spot]:
            return [*by_end(), *(Spot(one.first, -one.weights) for one in by_begin())]

        return end - begin, slope


def _derived(coefficients: Any, derivative: int) -> Any:
    """Return the coefficients, along the first axis, of a derivative of a polynomial."""
    for _ in range(derivative):
        degrees = np.arange(1, len(coefficients)).reshape(-1, *[1] * (coefficients.ndim - 1))
        coefficients = array_module(coefficients).asarray(degrees) * coefficients[1:]
    return coefficients


def _horner(coefficients: Any, u: Any) -> Any:
    """Return polynomials at u, of coefficients along the first axis."""
    total = coefficients[-1]
    for one in coefficients[-2::-1]:
        total = total * u + one
    return total


def _weights(u: Any, derivative: int = 0) -> Any:
    """Return the weights (.., 5) of five samples in their polynomial at u, or of a derivative."""
    xp = array_module(u)
    return _horner(_derived(xp.asarray(_COEFFICIENTS), derivative), u[..., None])


@dataclass(frozen=True, eq=False)
class _Local:
    """Five samples about a place of each current.

    Attributes:
        first: (.., n_sweeps) the index of the first of them.
        coefficients: (5, .., n_sweeps) of the polynomial, about the third sample.
    """

    first: Any
    coefficients: Any

    @classmethod
    def about(cls, samples: Samples, k: Any) -> _Local:
        """Return those about samples k (.., n_sweeps), as far as the window has them."""
        xp, most = array_module(samples.y), samples.n - LEAST_SAMPLES
        first = xp.clip(k - LEAST_SAMPLES // 2, 0, most)
        y, n = samples.y.reshape(-1), samples.y.shape[-1]
        rows = n * xp.arange(first.size).reshape(first.shape) + first
        y = y[rows[..., None] + xp.arange(LEAST_SAMPLES)]
        return cls(first, xp.moveaxis(y @ xp.asarray(_COEFFICIENTS.T), -1, 0))

    def at(self, u: Any, derivative: int = 0) -> Any:
        """Return the polynomial, or a derivative by samples, at u."""
        return _horner(_derived(self.coefficients, derivative), u)

    def root(self, low: Any, high: Any, level: Any, derivative: int) -> Any:
        """Return where sign * (polynomial - level) falls through 0 between two places.

        It is above at `low`; a few halvings, then Newton's steps that stay between the ends.
        """
        xp = array_module(low)
        polynomial = _derived(self.coefficients, derivative)
        slope = _derived(polynomial, 1)
        above = xp.sign(_horner(polynomial, low) - level)
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            same = (_horner(polynomial, middle) - level) * above > 0
            low, high = xp.where(same, middle, low), xp.where(same, high, middle)
        u = 0.5 * (low + high)
        least, most = xp.minimum(low, high), xp.maximum(low, high)
        for _ in range(NEWTON):
            step = (_horner(polynomial, u) - level) / _horner(slope, u)
            u = xp.clip(xp.where(xp.isfinite(step), u - step, u), least, most)
        return u


@dataclass(frozen=True, eq=False)
class Extremum:
    """The value of largest size of each current, or of smallest size, with its time.

    Attributes:
        samples: with 0 behind the end of a shorter window.
        k: (.., n_sweeps) the sample of that size.
        local: the samples about it.
        u: (.., n_sweeps) the place of the extremum among these; at_edge: whether that is an end of
            the window.
        value: (.., n_sweeps)
    """

    samples: Samples
    k: Any
    local: _Local
    u: Any
    at_edge: Any
    value: Any

    @classmethod
    def of(cls, samples: Samples, smallest: bool = False) -> Extremum:
        """Find it in each window."""
        y, xp = samples.y, array_module(samples.y)
        if smallest:
            k = xp.argmax(xp.where(samples.inside, -xp.abs(y), -xp.inf), axis=-1)
        else:  # without an array of sizes, which takes longer than to look twice
            ends = [f(y, axis=-1) for f in (xp.argmax, xp.argmin)]
            high, low = (xp.take_along_axis(y, one[..., None], axis=-1)[..., 0] for one in ends)
            k = xp.where(xp.abs(high) >= xp.abs(low), *ends)
        if xp is not np:
            return cls.by_arrays(samples, k, smallest)
        first, polynomials, u, at_edge, value = found_extrema(
            y, samples.n, k, smallest, _COEFFICIENTS
        )
        return cls(samples, k, _Local(first, np.moveaxis(polynomials, -1, 0)), u, at_edge, value)

    @classmethod
    def by_arrays(cls, samples: Samples, k: Any, smallest: bool) -> Extremum:
        """Find it about samples k (.., n_sweeps) by arithmetic of arrays."""
        y, xp = samples.y, array_module(samples.y)
        at_k = xp.take_along_axis(y, k[..., None], axis=-1)[..., 0]
        up = xp.sign(at_k) * (-1.0 if smallest else 1.0)
        local = _Local.about(samples, k)
        middle = (k - local.first - LEAST_SAMPLES // 2).astype(float)
        slope = up * local.at(middle, 1)
        ahead = slope > 0
        at_edge = xp.where(ahead, k == samples.n - 1, k == 0) | (slope == 0)
        u = local.root(middle, middle + xp.where(ahead, 1.0, -1.0), 0.0, 1)
        u = xp.where(at_edge, middle, u)
        return cls(samples, k, local, u, at_edge, local.at(u))

    def take(self, sweeps: slice) -> Extremum:
        """Return those of some sweeps."""
        local = _Local(self.local.first[..., sweeps], self.local.coefficients[..., sweeps])
        k, u, at_edge, value = (
            one[..., sweeps] for one in (self.k, self.u, self.at_edge, self.value)
        )
        return Extremum(self.samples.take(sweeps), k, local, u, at_edge, value)

    @property
    def time(self) -> Any:
        """(.., n_sweeps) in ms from the beginning of the window."""
        return self.time_of(self.local.first, self.u)

    @cached_property
    def weights(self) -> Any:
        """The derivatives of the value by the samples about it."""
        return _weights(self.u)

    @cached_property
    def weights_of_time(self) -> Any:
        """The derivatives of the time by the samples about it."""
        bend = self.local.at(self.u, 2)[..., None]
        moves = -self.samples.step_ms[:, None] * _weights(self.u, 1) / bend
        return array_module(bend).where(self.at_edge[..., None], 0.0, moves)

    def time_of(self, first: Any, u: Any) -> Any:
        """Return a time, ms from the beginning of the window."""
        places = first + LEAST_SAMPLES // 2 + u
        return self.samples.first_ms + self.samples.step_ms * places

    def crossing(self, fraction: float, before: bool) -> tuple[Any, Slope]:
        """Return the time at which a fraction of the peak is reached, and as `at_extremum`.

        Arguments:
            before: whether the last time before the peak is meant, or the first one after it.
        """
        samples, xp = self.samples, array_module(self.samples.y)
        y = samples.y
        if xp is np:
            given = y, samples.n, self.k, self.value, fraction, before, _COEFFICIENTS
            crosses, first, polynomials, u = found_crossings(*given)
            local = _Local(first, np.moveaxis(polynomials, -1, 0))
        else:
            crosses, local, u = self.crossing_by_arrays(fraction, before)
        edge = xp.zeros_like(self.k) if before else xp.broadcast_to(samples.n - 1, self.k.shape)
        time = self.time_of(local.first, u)
        # beyond the end: by what is lacking, so that a search is led there
        at_edge = xp.take_along_axis(y, edge[..., None], axis=-1)[..., 0]
        share = at_edge / self.value
        length, sign = samples.length_ms, -1.0 if before else 1.0
        beyond = (0.0 if before else length) + sign * length * (share - fraction)

        def slope() -> list[Spot]:
            inside, outside = samples.step_ms / local.at(u, 1), sign * length / self.value
            of_peak = xp.where(crosses, inside * fraction, -outside * share)
            at_edge = xp.clip(edge - LEAST_SAMPLES // 2, 0, samples.n - LEAST_SAMPLES)
            one = (xp.arange(LEAST_SAMPLES) == (edge - at_edge)[..., None]).astype(float)
            there = xp.where(
                crosses[..., None], -inside[..., None] * _weights(u), outside[..., None] * one
            )
            return [
                Spot(self.local.first, of_peak[..., None] * self.weights),
                Spot(xp.where(crosses, local.first, at_edge), there),
            ]

        return xp.where(crosses, time, beyond), slope

    def crossing_by_arrays(self, fraction: float, before: bool) -> tuple[Any, _Local, Any]:
        """Find such a place by arithmetic of arrays.

        Returns: whether there is one (.., n_sweeps), the samples about it, the place among these.
        """
        samples, xp = self.samples, array_module(self.samples.y)
        y, k = samples.y, self.k[..., None]
        up, level = xp.sign(self.value), fraction * xp.abs(self.value)
        low = up[..., None] * y < level[..., None]
        places = xp.arange(y.shape[-1])
        if before:  # the last low sample before the peak, or the first one after it
            low &= places < k
            at = nearest = len(places) - 1 - xp.argmax(low[..., ::-1], axis=-1)
        else:
            low &= places > k
            nearest = xp.argmax(low, axis=-1)
            at = nearest - 1
        crosses = xp.take_along_axis(low, nearest[..., None], axis=-1)[..., 0]
        crosses &= nearest < samples.n
        crosses &= up * xp.take_along_axis(y, k, axis=-1)[..., 0] >= level
        at = xp.where(crosses, at, 0)
        local = _Local.about(samples, at)
        begin = (at - local.first - LEAST_SAMPLES // 2).astype(float)
        return crosses, local, local.root(begin, begin + 1.0, fraction * self.value, 0)


# --- exponentials --------------------------------------------------------------------------------


def _exponential(measure: Measure, samples: Samples) -> tuple[Any, Callable[[], Any]]:
    """Return the time constant or the amplitude of an exponential, and as `measured`."""
    y, xp, which = samples.y, array_module(samples.y), measure.component - 1
    value, fits, of_tau = xp.zeros(y.shape[:-1]), [], measure.kind == "tau"
    for n in np.unique(to_host(samples.n)).tolist():
        sweeps, every = xp.flatnonzero(samples.n == n), -(-n // _FITTED)
        some = y[..., sweeps, :n:every]
        fit = _ExponentialFit(some.reshape(-1, some.shape[-1]), measure.exponentials)
        found = fit.tau(which) if of_tau else fit.amplitude(which)
        scale = every * samples.step_ms[sweeps] if of_tau else xp.ones(len(sweeps))
        value[..., sweeps] = scale * found.reshape(some.shape[:-1])
        fits.append((fit, sweeps, n, every, scale))

    def slope() -> Any:
        by_samples = xp.zeros(y.shape)
        for fit, sweeps, n, every, scale in fits:
            by = fit.slope_of_tau(which) if of_tau else fit.slope_of_amplitude(which)
            by = by.reshape(*y.shape[:-2], len(sweeps), by.shape[-1])
            by_samples[..., sweeps, :n:every] = scale[:, None] * by
        return by_samples

    return value, slope


@cache
def _tries(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return logarithms of time constants (n_tries, k), in samples, and the spaces of their fits.

    The spaces are orthonormal, (n_tries, 1 + k, n).
    """
    logs = np.linspace(np.log(_SHORTEST), np.log(_LONGEST * n), _TRIED[k])
    pairs = [(a, b) for a in logs for b in logs if a < b] if k == 2 else logs[:, None]
    tried = np.array(pairs).reshape(-1, k)
    t = np.arange(n)[:, None]
    bases = [np.linalg.qr(np.hstack([np.ones((n, 1)), np.exp(-t / np.exp(q))]))[0] for q in tried]
    return tried, np.ascontiguousarray(np.swapaxes(bases, 1, 2))


def _solve(matrix: Any, right: Any) -> Any:
    """Solve systems (n, k, k) for (n, k, m); not finite where one is singular."""
    xp, k = array_module(matrix), matrix.shape[1]
    if k <= 2:
        with np.errstate(all="ignore"):  # singular ones
            if k == 1:
                return right / matrix
            (a, b), (c, d) = (matrix[:, row].T[..., None] for row in range(2))
            first, second = right[:, 0], right[:, 1]
            rows = (d * first - b * second, a * second - c * first)
            return xp.stack(rows, axis=1) / (a * d - b * c)[:, None]
    usable = xp.isfinite(matrix).all(axis=(1, 2))
    matrix = xp.where(usable[:, None, None], matrix, 0.0)
    usable &= xp.abs(xp.linalg.det(matrix)) > 0
    matrix = xp.where(usable[:, None, None], matrix, xp.eye(matrix.shape[1]))
    return xp.where(usable[:, None, None], xp.linalg.solve(matrix, right), np.nan)


class _ExponentialFit:
    """Least squares of a constant and k exponentials to currents (n_currents, n).

    The constant and the amplitudes follow from the time constants (variable projection), which are
    improved by damped Gauss-Newton steps of their logarithms.
    """

    def __init__(self, y: Any, k: int) -> None:
        xp = self.xp = array_module(y)
        self.k, self.n = k, y.shape[1]
        self.size = xp.maximum(xp.abs(y).max(axis=1), TINY)
        self.y = y / self.size[:, None]
        self.y = xp.where(xp.isfinite(self.y).all(axis=1)[:, None], self.y, 0.0)
        self.t = xp.arange(self.n, dtype=float)
        if xp is np:
            self.q, (tried, bases) = np.empty((len(y), k)), _tries(self.n, k)
            fitExponentials(np.ascontiguousarray(self.y), tried, bases, *self._ends, self.q)
        else:
            self.q = self.by_arrays()
        # from the fastest to the slowest
        order = xp.argsort(self.q, axis=1)
        self.q = xp.take_along_axis(self.q, order, axis=1)
        self.linear, self.residual = self._solved(self.q, self.y)

    def _exponentials(self, q: Any) -> Any:
        """Return (n_currents, n, k)."""
        return self.xp.exp(-self.t[:, None] / self.xp.exp(q)[:, None, :])

    def _solved(self, q: Any, y: Any) -> tuple[Any, Any]:
        """Return constant and amplitudes (n_currents, 1 + k), and residuals (n_currents, n)."""
        xp, e = self.xp, self._exponentials(q)
        design = xp.concatenate([xp.ones((*e.shape[:2], 1)), e], axis=2)
        turned = xp.swapaxes(design, 1, 2)
        normal = turned @ design + RIDGE * self.n * xp.eye(1 + self.k)
        linear = _solve(normal, turned @ y[:, :, None])
        return linear[:, :, 0], (design @ linear)[:, :, 0] - y

    def _derivatives(self, q: Any, linear: Any, residual: Any, whole: bool = True) -> Any:
        """Return derivatives (n_currents, n, 1 + 2k) by all unknowns, and their normal matrix.

        With `whole` that is half of the second derivative of the sum of squares, else its part
        without second derivatives of the model.
        """
        xp, k, e = self.xp, self.k, self._exponentials(q)
        part = self.t[:, None] / xp.exp(q)[:, None, :]  # t/tau
        once = e * part
        by_q = linear[:, None, 1:] * once
        jacobian = xp.concatenate([xp.ones((*e.shape[:2], 1)), e, by_q], axis=2)
        hessian = xp.swapaxes(jacobian, 1, 2) @ jacobian
        if whole:
            mixed = (residual[:, :, None] * once).sum(axis=1)
            twice = (residual[:, :, None] * by_q * (part - 1)).sum(axis=1)
            for i in range(k):
                hessian[:, 1 + i, 1 + k + i] += mixed[:, i]
                hessian[:, 1 + k + i, 1 + i] += mixed[:, i]
                hessian[:, 1 + k + i, 1 + k + i] += twice[:, i]
        return jacobian, hessian

    def by_arrays(self) -> Any:
        """Return the logarithms of the time constants by arithmetic of arrays."""
        xp, (tried, bases) = self.xp, _tries(self.n, self.k)
        parts = xp.stack([((self.y @ b.T) ** 2).sum(axis=1) for b in map(xp.asarray, bases)])
        self.q = xp.asarray(tried)[parts.argmax(axis=0)]
        y, q, left = self.y, self.q.copy(), xp.arange(len(self.q))
        linear, residual = self._solved(q, y)
        damping = xp.full(len(q), 1e-3)
        for _ in range(IMPROVED):
            step = self._step(q, linear, residual, damping, whole=False)
            trial = xp.clip(q + step, *self._ends)
            of_trial, apart = self._solved(trial, y)
            gains = (apart**2).sum(axis=1) < (residual**2).sum(axis=1)
            q = xp.where(gains[:, None], trial, q)
            linear = xp.where(gains[:, None], of_trial, linear)
            residual = xp.where(gains[:, None], apart, residual)
            damping = xp.where(gains, damping / 10, damping * 4)
            on = xp.flatnonzero((xp.abs(step).max(axis=1) > CLOSE) & (damping < HOPELESS))
            if len(on) < len(left):
                self.q[left] = q
                y, q, left, damping = y[on], q[on], left[on], damping[on]
                linear, residual = linear[on], residual[on]
            if not len(left):
                break
        self.q[left] = q
        for _ in range(NEWTON):  # as sums of squares do not tell the last digits apart
            linear, residual = self._solved(self.q, self.y)
            step = self._step(self.q, linear, residual, xp.zeros(len(self.q)), whole=True)
            close = xp.abs(step).max(axis=1) < 1e-2
            self.q = xp.where(close[:, None], xp.clip(self.q + step, *self._ends), self.q)
        return self.q

    @property
    def _ends(self) -> tuple[float, float]:
        """The least and the largest logarithm of a time constant."""
        return float(np.log(_SHORTEST / 10)), float(np.log(10 * _LONGEST * self.n))

    def _step(self, q: Any, linear: Any, residual: Any, damping: Any, whole: bool) -> Any:
        """Return steps (n_currents, k) of the logarithms, damped by a share of the diagonal."""
        xp, k = self.xp, self.k
        jacobian, h = self._derivatives(q, linear, residual, whole)
        slope = (jacobian[:, :, 1 + k :] * residual[:, :, None]).sum(axis=1)
        inner = h[:, : 1 + k, : 1 + k] + RIDGE * self.n * xp.eye(1 + k)
        cross = h[:, : 1 + k, 1 + k :]
        bend = h[:, 1 + k :, 1 + k :] - xp.swapaxes(cross, 1, 2) @ _solve(inner, cross)
        diagonal = xp.abs(xp.diagonal(bend, axis1=1, axis2=2)) + TINY
        damped = bend + (damping[:, None] * diagonal)[:, :, None] * xp.eye(k)
        step = -_solve(damped, slope[:, :, None])[:, :, 0]
        return xp.clip(xp.where(xp.isfinite(step), step, 0.0), -1.0, 1.0)

    def _by_samples(self, place: int) -> Any:
        """Return derivatives (n_currents, n) of one unknown, scaled as the currents are.

        They are 0 where currents determine none, or a time constant is at the end of its range.
        """
        xp = self.xp
        jacobian, hessian = self._derivatives(self.q, self.linear, self.residual)
        one = xp.zeros((len(self.q), hessian.shape[1], 1))
        one[:, place] = 1.0
        scale = xp.abs(xp.diagonal(hessian, axis1=1, axis2=2)) ** 0.5 + TINY
        even = hessian / (scale[:, :, None] * scale[:, None, :])
        solved = _solve(even, one / scale[:, :, None]) / scale[:, :, None]
        low, high = self._ends
        inside = ((self.q > low) & (self.q < high)).all(axis=1) & xp.isfinite(solved).all(
            axis=(1, 2)
        )
        return xp.where(inside[:, None], (jacobian @ solved)[:, :, 0], 0.0)

    def tau(self, which: int) -> Any:
        """Return a time constant, in samples."""
        return self.xp.exp(self.q[:, which])

    def slope_of_tau(self, which: int) -> Any:
        """Return its derivatives by the currents."""
        by = self._by_samples(1 + self.k + which)
        return (self.tau(which) / self.size)[:, None] * by

    def amplitude(self, which: int) -> Any:
        """Return an amplitude at the first sample."""
        return self.size * self.linear[:, 1 + which]

    def slope_of_amplitude(self, which: int) -> Any:
        """Return its derivatives by the currents."""
        return self._by_samples(1 + which)
