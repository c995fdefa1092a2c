"""The spectrum of the residuals of a fit, and its effect on standard errors.

Least squares assumes that residuals are independent of each other. If they are not, the covariance
of the estimates is

    H^-1 S H^-1,     S = J^T C J = sum over frequencies of f |U|^2

with H the Gauss-Newton Hessian, C the covariance of the noise, f its spectrum and U the Fourier
transform of the derivatives J of the currents. So the error of a parameter depends on the noise at
the frequencies at which the parameter changes the current: noise that is slow (1/f), filtered, or
of a single frequency widens the error of each parameter, or narrows it, by its own factor.

The spectrum is estimated in bands of half an octave, narrower ones at higher frequencies, by
Whittle's likelihood. A fit follows part of the noise, most of it at the lowest frequencies, so the
power of the residuals in a band is compared with its expectation after a fit, which follows from
the derivatives in that band. The logarithm of the spectrum is a smooth function of the logarithm of
the frequency; at the lowest frequencies, where there are few data, it is extrapolated as a power
law. The degrees of freedom of each parameter's variance follow from the error of the spectrum
(Satterthwaite 1946).

A line of a single frequency (hum) is not part of the smooth spectrum: its power is added at its
frequency.

Sweeps of an experiment are taken as recorded one after the other. A misfit is taken as noise: from
one recording the two cannot be distinguished.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from channelfit.problem.experiment import Problem

#: Bands per octave in the lowest octaves, the octave from which on there are more, and how many.
_AN_OCTAVE, _LOWEST, _NARROW = 2.0, 7.0, 6.0
#: Samples of the longest stretch that is transformed at once.
_LONGEST = 1 << 20
#: Standard deviations of the bend of the logarithm of a spectrum over a factor of e in frequency,
#: and of its slope at the lowest frequencies. Bands of more numbers than so many may bend more.
_BEND, _SLOPE, _MANY = 0.6, 1.0, 8.0
#: Residuals are correlated if a spectrum describes them better than a constant does: by more than
#: the mean gain for independent residuals and so many of its standard deviations.
_CORRELATED = 3.0
_ITERATIONS, _STILL, _LONGEST_STEP = 100, 1e-7, 3.0
#: The least power of a band, as a share of the mean; less is rounding.
_LEAST = 1e-6
#: The least power of a line as a multiple of the frequencies around it, how many of these are
#: compared, and the lowest frequency that can be a line.
_LINE, _AROUND, _FIRST_LINE = 40.0, 65, 8
#: The variance of the logarithm of the contribution of a line to a variance.
_LINE_SPREAD = 0.1
#: The step in unit coordinates by which derivatives of the currents are computed.
_STEP = 1e-5


@dataclass(frozen=True, eq=False)
class Bands:
    """The power of residuals in bands of frequencies.

    Attributes:
        place: (n_bands,) mean logarithm of the frequency, in cycles a sample.
        count: (n_bands,) the independent numbers in it, of samples that count.
        power: (n_bands,) the sum of their squares.
        gram: (n_bands, n, n) sums of products of the derivatives; n may be 0.
        lines: (n_lines,) the power of lines, per number; line_gram: (n_lines, n, n).
        line_place: (n_lines,) the logarithm of their frequency.
    """

    place: np.ndarray
    count: np.ndarray
    power: np.ndarray
    gram: np.ndarray
    lines: np.ndarray
    line_gram: np.ndarray
    line_place: np.ndarray


@dataclass(frozen=True, eq=False)
class NoiseSpectrum:
    """The spectrum of residuals, as a multiple of that of independent ones of the same size.

    Attributes:
        ratio: (n_bands,).
        spread: (n_bands, n_bands) covariance of its logarithm.
        gram: (n_bands, n_free, n_free) the contribution of each band to the Gauss-Newton Hessian of
            the cost; n_free is 0 if that could not be computed, and the highest band then counts
            for all.
        neighbors: correlation of residuals that are one sample apart.
        place: (n_bands,) logarithms of the frequencies, in cycles a sample; those of lines stand at
            the end.
        line_part: (n_lines,) the part of each line in the variance.
    """

    ratio: np.ndarray
    spread: np.ndarray
    gram: np.ndarray
    neighbors: float
    place: np.ndarray
    line_part: np.ndarray

    def autocorrelation(self, n: int) -> np.ndarray:
        """Return the autocorrelation at lags of 0 to n - 1 samples, (n,).

        The spectrum is a power law between bands, and a constant below the lowest one.
        """
        smooth = len(self.place) - len(self.line_part)
        place, lines = np.split(self.place, [smooth])
        size = 2 ** math.ceil(math.log2(max(2 * n, 4 * math.exp(-place[0]))))
        frequency = np.maximum(np.arange(size // 2 + 1), 0.5) / size
        logarithm = np.interp(np.log(frequency), place, np.log(self.ratio[:smooth]))
        found: np.ndarray = np.fft.irfft(np.exp(logarithm))[:n]
        for part, one in zip(self.line_part, np.exp(lines), strict=True):
            found += part * np.cos(2 * np.pi * one * np.arange(n))
        return found

    def factors(self, root: np.ndarray, inside: np.ndarray | None = None) -> np.ndarray:
        """Return the covariance (n, n) in coordinates in which it is 1 for independent residuals.

        Arguments:
            root: (n, n), the coordinates: root @ root.T is the inverse of the Hessian.
            inside: (n_free,) which parameters count; None for all.
        """
        least, most = float(self.ratio.min()), float(self.ratio.max())
        if not self.gram.shape[1]:
            return most * np.eye(len(root))
        gram = self.gram if inside is None else self.gram[:, inside][:, :, inside]
        excess = np.einsum("b,bij->ij", self.ratio - 1.0, gram)
        values, vectors = np.linalg.eigh(np.eye(len(root)) + root.T @ excess @ root)
        # beyond these limits it is rounding, in directions on which the data hardly depend
        found: np.ndarray = (vectors * np.clip(values, least, most)) @ vectors.T
        return found

    def freedom(self, direction: np.ndarray) -> float:
        """Return degrees of freedom of the variance of a combination of parameters.

        Arguments:
            direction: (n_free,) in unit coordinates, multiplied by the inverse of the Hessian.
        """
        parts = np.zeros(len(self.ratio))
        if self.gram.shape[1]:
            parts = self.ratio * np.einsum("i,bij,j->b", direction, self.gram, direction)
        total = parts.sum()
        share = parts / total if total > 0 else (self.ratio == self.ratio.max()).astype(float)
        return 2.0 / max(float(share @ self.spread @ share), 1e-12)


# --- residuals and their derivatives --------------------------------------------------------------


def weighted(problem: Problem, traces: Sequence[np.ndarray], data: bool = True) -> list[np.ndarray]:
    """Return currents of the experiments that count, in units of the noise.

    Arguments:
        traces: per experiment (n_sweeps, n_times, ..) pA.
        data: whether to subtract the recorded current, which gives residuals.

    Returns: per experiment the same shape, 0 for samples that do not count.
    """
    found = []
    for experiment, trace in zip(problem.experiments, traces, strict=True):
        if experiment.recording is None or experiment.weight == 0:
            continue
        apart = trace - experiment.recording.current_pA if data else trace
        root = np.sqrt(experiment.weight * experiment.recording.weight)
        root = root.reshape(*root.shape, *[1] * (trace.ndim - 2))
        found.append(np.where(root > 0, root * apart, 0.0))
    return found


def counting(problem: Problem) -> list[np.ndarray]:
    """Return which samples (n_sweeps, n_times) count, of each experiment that counts."""
    recordings = [e.recording for e in problem.experiments if e.recording and e.weight > 0]
    return [recording.weight > 0 for recording in recordings]


def around(unit: np.ndarray) -> np.ndarray:
    """Return points (n_free, n_free), each a small step from a point in one coordinate."""
    steps: np.ndarray = unit[:, None] + np.diag(np.where(unit > 0.5, -_STEP, _STEP))
    return steps


def slopes(
    problem: Problem, traces: Sequence[np.ndarray], moved: Sequence[np.ndarray], unit: np.ndarray
) -> list[np.ndarray] | None:
    """Return derivatives of the currents by unit coordinates, in units of the noise.

    Arguments:
        traces: per experiment (n_sweeps, n_times), the fit.
        moved: per experiment (n_sweeps, n_times, n_free), at the points `around` it.

    Returns: the shapes of `moved`; None if a current is not finite, as at extreme parameters.
    """
    step = np.where(unit > 0.5, -_STEP, _STEP)
    apart = [(m - t[:, :, None]) / step for t, m in zip(traces, moved, strict=True)]
    found = weighted(problem, apart, data=False)
    return found if all(np.isfinite(one).all() for one in found) else None


# --- bands ----------------------------------------------------------------------------------------


def bands_of(
    residuals: Sequence[np.ndarray],
    counts: Sequence[np.ndarray],
    derivatives: Sequence[np.ndarray] | None = None,
) -> Bands:
    """Compute the power of residuals in bands of frequencies.

    Arguments:
        residuals, counts, derivatives: see `weighted`, `counting` and `slopes`; None for no
            derivatives.
    """
    stretches = []
    for k, (one, mask) in enumerate(zip(residuals, counts, strict=True)):
        one, mask = one.ravel(), mask.ravel()
        moved = None if derivatives is None else derivatives[k].reshape(len(one), -1)
        edges = np.linspace(0, len(one), -(-len(one) // _LONGEST) + 1).astype(int).tolist()
        for a, b in pairwise(edges):
            stretches.append((one[a:b], mask[a:b], None if moved is None else moved[a:b]))
    longest = max(len(one) for one, _, _ in stretches)
    n = 0 if derivatives is None else derivatives[0].shape[2]
    n_bands = int(_band(np.array(0.5), longest)) + 1
    place, count, power = (np.zeros(n_bands) for _ in range(3))
    gram = np.zeros((n_bands, n, n))
    lines, line_place = list[float](), list[float]()
    line_gram: list[np.ndarray] = [np.zeros((0, n, n))]
    for one, mask, slope in stretches:
        share = float(mask.mean())
        if share == 0:
            continue
        band, weight, octave = _frequencies(len(one), longest)
        found = weight / len(one) * np.abs(np.fft.rfft(one)) ** 2
        alone = _lines(found / weight)
        if alone.any():
            lines += (found[alone] / weight[alone] / share).tolist()
            line_place += octave[alone].tolist()
            band, weight, octave, found = (x[~alone] for x in (band, weight, octave, found))
        count += share * np.bincount(band, weight, n_bands)
        place += share * np.bincount(band, weight * octave, n_bands)
        power += np.bincount(band, found, n_bands)
        if slope is not None:
            moved = np.sqrt(2.0 / len(one)) * np.fft.rfft(np.ascontiguousarray(slope.T))
            line_gram.append(_products(moved[:, alone].T[:, :, None]))
            moved = moved[:, ~alone] * np.sqrt(weight / 2.0)
            edges = np.flatnonzero(np.diff(band)) + 1
            for part, k in zip(np.split(moved, edges, axis=1), band[[0, *edges]], strict=True):
                gram[k] += _products(part)
    some = count > 0
    smooth = place[some] / count[some], count[some], power[some], gram[some]
    drawn = np.concatenate(line_gram) if n else np.zeros((len(lines), 0, 0))
    return Bands(*smooth, np.array(lines), drawn, np.array(line_place))


def _products(transformed: np.ndarray) -> np.ndarray:
    """Return sums (.., n, n) of products of transforms (.., n, n_frequencies)."""
    turned = np.swapaxes(transformed, -1, -2)
    found: np.ndarray = transformed.real @ turned.real + transformed.imag @ turned.imag
    return found


def _lines(power: np.ndarray) -> np.ndarray:
    """Return which frequencies (n,) are lines: far above the median of those around them.

    The spectrum is mirrored at its ends. For speed, medians are computed only at frequencies above
    a lower bound of the median: a window lies in three blocks, so half of its values are at least
    as large as the least of the three values above the lowest third of each block.
    """
    block = _AROUND // 2 + 1
    around = np.pad(power, _AROUND // 2, mode="reflect")
    n_blocks = -(-len(around) // block) + 2
    blocks = np.full(n_blocks * block, np.inf)
    blocks[: len(around)] = around
    low = np.partition(blocks.reshape(n_blocks, block), block // 3 - 1, axis=1)[:, block // 3 - 1]
    low = np.minimum(np.minimum(low[:-2], low[1:-1]), low[2:])
    least = np.repeat(low, block)[: len(power)] / math.log(2)
    places = np.flatnonzero(power > _LINE * least)
    places = places[places >= _FIRST_LINE]
    windows = np.lib.stride_tricks.sliding_window_view(around, _AROUND)[places]
    usual = np.partition(windows, _AROUND // 2, axis=1)[:, _AROUND // 2] / math.log(2)
    found = np.zeros(len(power), bool)
    found[places] = (power[places] > _LINE * usual) & (usual > 0)
    return found


@lru_cache(maxsize=8)  # all wells of a plate have the same
def _frequencies(n: int, longest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each frequency of n samples its band, its count of numbers and its logarithm.

    The mean of a series is placed at half of its lowest frequency.
    """
    steps = np.maximum(np.arange(n // 2 + 1), 0.5)
    numbers = np.full(len(steps), 2.0)
    numbers[0] = 1.0
    if n % 2 == 0:
        numbers[-1] = 1.0
    frequency = steps / n
    found = _band(frequency, longest), numbers, np.log(frequency)
    for one in found:
        one.flags.writeable = False
    return found


def _band(frequency: np.ndarray, longest: int) -> np.ndarray:
    """Return the number of the band of each frequency, in cycles a sample."""
    octave = np.log2(frequency * 2 * longest)
    low = _AN_OCTAVE * octave
    found: np.ndarray = np.round(np.maximum(low, low + (_NARROW - _AN_OCTAVE) * (octave - _LOWEST)))
    return found.astype(int)


def neighbors(residuals: Sequence[np.ndarray], counts: Sequence[np.ndarray]) -> float:
    """Return the correlation of residuals that are one sample apart; 0 if there are none."""
    products = sum(float((one[:, :-1] * one[:, 1:]).sum()) for one in residuals)
    pairs = sum(int(np.count_nonzero(mask[:, :-1] & mask[:, 1:])) for mask in counts)
    squares = sum(float((one**2).sum()) for one in residuals)
    n = sum(int(np.count_nonzero(mask)) for mask in counts)
    return products / pairs / (squares / n) if pairs and squares > 0 else 0.0


# --- the spectrum ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Likelihood:
    """Whittle's likelihood of the power in bands, after a fit.

    Attributes:
        own, mixed: (n,) and (n, n): the expected power is own * f + mixed @ f for a spectrum f.
        freedom: (n,) degrees of freedom of the power.
        bands, stiffness: (n, n) the penalty.
    """

    own: np.ndarray
    mixed: np.ndarray
    freedom: np.ndarray
    power: np.ndarray
    stiffness: np.ndarray

    @classmethod
    def of(cls, bands: Bands) -> _Likelihood:
        """Return the likelihood; derivatives show which part of the noise of a band is fitted."""
        total = bands.gram.sum(axis=0)
        scale = 1 / np.sqrt(np.maximum(np.diag(total), 1e-290))
        values, vectors = np.linalg.eigh(total * np.outer(scale, scale))
        keep = values > 1e-12
        white = (vectors[:, keep] / np.sqrt(values[keep])) * scale[:, None]
        part = np.einsum("ip,bij,jq->bpq", white, bands.gram, white)
        trace = np.einsum("bii->b", part)
        mixed = np.einsum("bij,kij->bk", part, part)
        left = np.maximum(bands.count - trace, 0.0)
        own = bands.count - 2 * trace
        spread = np.maximum(own + np.diag(mixed), 1e-9)
        freedom = np.where(left > 1e-6 * bands.count, left**2 / spread, 0.0)
        power = np.maximum(bands.power, _LEAST * bands.power.sum() / left.sum() * bands.count)
        return cls(own, mixed, freedom, power, _stiffness(bands.place, bands.count / _MANY))

    @property
    def left(self) -> np.ndarray:
        """The expected power of residuals with a spectrum of 1."""
        found: np.ndarray = self.own + self.mixed.sum(axis=1)
        return found

    @property
    def level(self) -> float:
        """The logarithm of a constant spectrum."""
        return math.log(float(self.power.sum() / self.left.sum()))

    def expected(self, logarithm: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the expected power (n,), and its relative derivatives (n, n)."""
        f = np.exp(logarithm)
        if not self.mixed.any():  # without derivatives bands are independent
            return np.maximum(self.own * f, 1e-300), np.eye(len(f))
        slope = np.diag(self.own * f) + self.mixed * f
        # masks enter as shares of samples, an approximation by which an expectation may be negative
        least = _LEAST * (np.diag(np.abs(self.own) * f) + self.mixed * f)
        slope = np.where((slope.sum(axis=1) < least.sum(axis=1))[:, None], least, slope)
        power = np.maximum(slope.sum(axis=1), 1e-300)
        return power, slope / power[:, None]

    def misfit(self, power: np.ndarray) -> float:
        """Return minus the logarithm of the likelihood."""
        used = self.freedom > 0
        ratio = self.power[used] / power[used]
        return 0.5 * float(self.freedom[used] @ (ratio + np.log(power[used])))

    def penalty(self, logarithm: np.ndarray) -> float:
        """Return the penalty for deviations from a power law."""
        return 0.5 * float(logarithm @ self.stiffness @ logarithm)

    def is_colored(self) -> bool:
        """Return whether a spectrum describes the power better than a constant one."""
        level = self.level
        logarithm, _, numbers = self.fitted(level)
        flat = self.expected(np.full(len(logarithm), level))[0]
        gain = 2 * (self.misfit(flat) - self.misfit(self.expected(logarithm)[0]))
        return gain > numbers - 1 + _CORRELATED * math.sqrt(2 * numbers)

    def fitted(self, begin: float) -> tuple[np.ndarray, np.ndarray, float]:
        """Return the logarithm of the spectrum (n,), its covariance, and its mean gain on noise.

        Arguments:
            begin: the logarithm of a constant spectrum, where bands with few numbers start.
        """
        raw = np.log(self.power / np.maximum(self.left, 0.5))
        here = np.where(self.freedom > 1, raw, begin)
        power, slope = self.expected(here)
        cost = self.misfit(power) + self.penalty(here)
        for _ in range(_ITERATIONS):
            pull = slope.T @ (0.5 * self.freedom * (1 - self.power / power))
            pull += self.stiffness @ here
            known = slope.T @ (0.5 * self.freedom[:, None] * slope)
            step = -np.linalg.solve(known + self.stiffness, pull)
            step *= min(1.0, _LONGEST_STEP / float(np.abs(step).max(initial=1e-300)))
            before = cost
            for _ in range(30):
                there = here + step
                power, slope = self.expected(there)
                cost = self.misfit(power) + self.penalty(there)
                if cost <= before:
                    break
                step /= 2
            else:
                power, slope = self.expected(here)
                break
            here = there
            if before - cost < _STILL * (1 + abs(cost)):
                break
        known = slope.T @ (0.5 * self.freedom[:, None] * slope)
        covariance = np.linalg.inv(known + self.stiffness)
        share = covariance @ known
        return here, covariance, float(2 * np.trace(share) - np.sum(share * share.T))


def _stiffness(place: np.ndarray, many: np.ndarray) -> np.ndarray:
    """Return the penalty (n, n) for bends, and for a slope at the lowest frequencies."""
    n, wide = len(place), np.diff(place)
    found = np.zeros((n, n))
    slope = np.array([-1.0, 1.0]) / (wide[0] * _SLOPE)
    found[:2, :2] = np.outer(slope, slope)
    one, other = wide[:-1], wide[1:]
    bends = np.stack([1 / one, -1 / one - 1 / other, 1 / other], axis=1)
    free = _BEND * np.maximum(1.0, many[1:-1])
    bends /= (free * np.sqrt((one + other) / 2))[:, None]
    places = np.arange(n - 2)[:, None] + np.arange(3)
    np.add.at(found, (places[:, :, None], places[:, None]), bends[:, :, None] * bends[:, None])
    return found


def spectrum_of(
    residuals: Sequence[np.ndarray],
    counts: Sequence[np.ndarray],
    derivatives: Sequence[np.ndarray] | None = None,
    weight: float = 1.0,
) -> NoiseSpectrum | None:
    """Estimate the spectrum of residuals; return None if they look independent of each other.

    Arguments:
        residuals, counts, derivatives: see `bands_of`.
        weight: the total weight of all samples, by which costs are divided.
    """
    bands = bands_of(residuals, counts, derivatives)
    likelihood = _colored(bands)
    if likelihood is None:
        return None
    logarithm, spread, _ = likelihood.fitted(likelihood.level)
    # the mean of a quantity with a normal logarithm
    smooth = np.exp(logarithm + np.diag(spread) / 2)
    both = np.concatenate([smooth, bands.lines])
    n, n_lines = len(smooth), len(bands.lines)
    of_all = np.diag(np.full(n + n_lines, _LINE_SPREAD))
    of_all[:n, :n] = spread
    gram = 2 * np.concatenate([bands.gram, bands.line_gram]) / weight
    numbers = likelihood.left.sum() + 2 * n_lines
    mean = (bands.power.sum() + 2 * bands.lines.sum()) / numbers
    place, parts = np.append(bands.place, bands.line_place), 2 * bands.lines / mean / numbers
    close = neighbors(residuals, counts)
    return NoiseSpectrum(both / mean, of_all, gram, close, place, parts)


def are_correlated(bands: Bands) -> bool:
    """Return whether residuals look correlated, so that `spectrum_of` them is not None."""
    return _colored(bands) is not None


def _colored(bands: Bands) -> _Likelihood | None:
    """Return the likelihood of the power in bands; None if a constant describes it as well."""
    if len(bands.place) < 3 or not bands.power.sum() > 0:
        return None
    likelihood = _Likelihood.of(bands)
    if len(bands.lines) or likelihood.is_colored():
        return likelihood
    stiff = replace(likelihood, stiffness=_stiffness(bands.place, np.zeros(len(bands.place))))
    return likelihood if stiff.is_colored() else None


def correlation_time(problem: Problem, traces: Sequence[np.ndarray]) -> float:
    """Return the most residuals that carry as much information as one independent one.

    It is the largest ratio of their spectrum to that of independent residuals; 1 if they look
    independent.

    Arguments:
        traces: per experiment (n_sweeps, n_times) pA, the fit.
    """
    if any(e.observations for e in problem.fitted):  # no series of samples
        return 1.0
    found = spectrum_of(weighted(problem, traces), counting(problem))
    if found is None:
        return 1.0
    variance = np.diag(found.spread)  # the highest of many estimates is biased upward
    return max(1.0, float((found.ratio * np.exp(-variance / 2 - np.sqrt(variance))).max()))


def spectrum_at(
    problem: Problem,
    traces: Sequence[np.ndarray],
    unit: np.ndarray,
    simulate: Callable[[np.ndarray], Sequence[np.ndarray]],
) -> NoiseSpectrum | None:
    """Estimate the spectrum of the residuals of a fit; return None if they look independent.

    Arguments:
        traces: per experiment (n_sweeps, n_times) pA, the fit.
        unit: (n_free,) its point in the unit cube.
        simulate: returns per experiment the currents (n_sweeps, n_times, n) pA of points (n_free,
            n); called if residuals are correlated.
    """
    from channelfit.problem.experiment import total_weight  # loads SymPy, which reports do without

    if any(e.observations for e in problem.fitted):  # no series of samples
        return None
    residuals, counts = weighted(problem, traces), counting(problem)
    if spectrum_of(residuals, counts) is None:
        return None
    derivatives = slopes(problem, traces, simulate(around(unit)), unit)
    return spectrum_of(residuals, counts, derivatives, total_weight(problem))
