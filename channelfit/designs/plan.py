"""The plan of a design, and its starts as tasks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.optimize import Bounds, minimize

from channelfit.designs.correlation import summed_twice, sums_of_samples
from channelfit.designs.criteria import Criterion, worst_of
from channelfit.designs.information import Informed, Pieces, Source
from channelfit.designs.waveform import Limits, Waveform
from channelfit.model.channel import ChannelModel, Parameter
from channelfit.problem.clamp import Clamp
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.rate_bounds import Bounded
from channelfit.problem.recording import Recording
from channelfit.problem.statuses import OK
from channelfit.reading.errors import InputError
from channelfit.results.identity import hash_of
from channelfit.results.uncertainty.noise_spectrum import NoiseSpectrum
from channelfit.scoring.machine.threads import single_threaded_blas
from channelfit.scoring.scorer import make_scorer
from channelfit.search.space import SearchSpace
from channelfit.tasks.result_store import Arrays, Key, expect

Array = np.ndarray

#: The criterion of a vector for which it is not finite.
FAILED = 1e10
#: A parameter stays open if its expected standard error exceeds this part of its value, or this
#: part of what its range alone leaves.
_OPEN = 0.5
#: The step of the logarithm of a parameter by which derivatives of currents are computed.
_STEP = 1e-4
#: By which parts of their bounds numbers are moved to find a better protocol through a clamp.
_MOVES = 1 / 16, 1 / 32, 1 / 64


@dataclass(frozen=True)
class Findings:
    """The standard errors to expect of a protocol.

    Attributes:
        rows: by the name of a parameter, or of two schemes, numbers by heading.
        facts: likewise what is known without the protocol.
        size: one number for all rows, by which protocols are compared.
        remarks: what it leaves open, a sentence each.
        fits: of two schemes, the `Rival` of each row.
    """

    rows: Mapping[str, Mapping[str, float]]
    facts: Mapping[str, Mapping[str, Any]]
    size: float
    remarks: Sequence[str]
    fits: Sequence[Any] = ()


@dataclass(frozen=True, eq=False)
class Subject:
    """A scheme in question.

    Attributes:
        model: with fixed parameters that are known.
        members: (n_parameters, n_members) values, the model's own first, base units.
        clamp: through which its current is recorded; None for an ideal one.
        bounds: on its rates, which its fits keep.
    """

    model: ChannelModel
    members: Array
    clamp: Clamp | None = None
    bounds: tuple[Bounded, ...] = ()

    @cached_property
    def places(self) -> list[int]:
        """The rows of the free parameters among all."""
        return [k for k, p in enumerate(self.model.parameters) if not p.fixed]

    @property
    def free(self) -> list[Parameter]:
        """The free parameters."""
        return [self.model.parameters[k] for k in self.places]

    def source(self, members: Array, sign: float = 1.0) -> Source:
        """Return its current with free parameters in question."""
        return Source(self.model, members, [p.name for p in self.free], sign)

    def simulated(self, protocol: Protocol, members: Array) -> Array:
        """Return the currents of parameter vectors, (n_sweeps, n_times, n_members), pA."""
        experiment = Experiment(protocol, clamp=self.clamp)
        scorer = make_scorer(Problem(self.model, (experiment,)), "auto")
        return np.asarray(scorer.simulate(members)[0])


@dataclass(frozen=True, eq=False, kw_only=True)
class DesignPlan(ABC):
    """What a protocol is for, and what is allowed.

    Attributes:
        small, words: whether `size` is to be small, and what it is in a sentence.
        subjects: the schemes.
        kinds: of the segments; limits: of voltages and times.
        noise: pA, the standard deviation of a sample.
        spectrum: of the noise; None where its samples are independent.
        seed: of the starts.
        iterations: of each start, at most.
    """

    small: ClassVar[bool]
    words: ClassVar[str]
    subjects: tuple[Subject, ...]
    kinds: tuple[str, ...]
    limits: Limits
    noise: float
    spectrum: NoiseSpectrum | None = None
    seed: int = 0
    iterations: int = 100

    @abstractmethod
    def judged(self, protocol: Protocol) -> Findings:
        """Return the standard errors to expect of a protocol."""

    @abstractmethod
    def drawn(
        self, protocol: Protocol, pieces: Pieces, found: Findings
    ) -> tuple[dict[str, Array], Array]:
        """Return currents, and the information of each piece on each row, under an ideal clamp.

        Returns: by title (n_sweeps, n_times, n) pA, the first column in front; (n_pieces, n_rows).
        """

    @abstractmethod
    def search(self, x: Array) -> tuple[Array, float]:
        """Return a better vector of the waveform than one, and its criterion, which is small."""

    def refined(self, x: Array) -> Array:
        """Return a vector near one of the best start, which may be better through a clamp."""
        return x

    @property
    def title(self) -> str:
        """The names of the schemes."""
        return " or ".join(subject.model.name for subject in self.subjects)

    @property
    def contents(self) -> Mapping[str, Any]:
        """Plain data on which results depend."""
        noise = self.spectrum
        return {
            "subjects": [
                [hash_of(repr((s.model, s.clamp, s.bounds))), s.members.tolist()]
                for s in self.subjects
            ],
            "kinds": list(self.kinds),
            "limits": {key: str(value) for key, value in asdict(self.limits).items()},
            "noise": self.noise,
            "seed": self.seed,
            "iterations": self.iterations,
            **({"spectrum": hash_of(noise.place, noise.ratio)} if noise is not None else {}),
        }

    @cached_property
    def waveform(self) -> Waveform:
        """The segments and their numbers."""
        return Waveform(self.kinds, self.limits)

    def criterion_at(self, x: Array, informed: Informed, judge: Criterion) -> tuple[float, Array]:
        """Return a criterion of a vector, NaN where it is lost in rounding, and its gradient."""
        with np.errstate(all="ignore"):
            value, slopes = informed.with_gradient(self.waveform.pieces(x), judge)
        return value, self.waveform.gradient(x, slopes)

    def descend(
        self, x: Array, parts: Sequence[tuple[Informed, Criterion]], iterations: int
    ) -> tuple[Array, float]:
        """Return the vector to which a quasi-Newton method leads, and its criterion.

        Arguments:
            parts: criteria of which the worst counts.
        """

        def value(y: Array) -> tuple[float, Array]:
            found = [self.criterion_at(y, *part) for part in parts]
            total, shares = worst_of(np.array([one for one, _ in found]))
            if not np.isfinite(total):
                return FAILED, np.zeros_like(y)
            return total, shares @ np.array([gradient for _, gradient in found])

        bounds = Bounds(*self.waveform.bounds.T)
        options: Any = {"maxiter": iterations}
        end = minimize(value, x, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return np.asarray(end.x), float(end.fun)

    def protocol(self, x: Array, name: str) -> Protocol:
        """Return the protocol of a vector, with whole mV and whole samples."""
        return self.waveform.protocol(x, name, f"designed for {self.title}")

    def experiment(
        self,
        subject: Subject,
        protocol: Protocol,
        current: Array | float = 0.0,
        masked: bool = True,
    ) -> Experiment:
        """Return a protocol with its recording (n_sweeps, n_times), less masked samples."""
        weight = np.isfinite(protocol.voltage()).astype(float)
        times = protocol.times_ms
        for sweep, row in enumerate(weight):
            for begin, end in self.limits.masked_ms(protocol, sweep) if masked else ():
                row[(times >= begin) & (times < end)] = 0.0
        recording = Recording(times, np.where(weight > 0, current, np.nan), weight)
        return Experiment(protocol, recording, clamp=subject.clamp)

    def variance(self, protocol: Protocol) -> float:
        """Return the variance of a sample, pA^2; at another interval its density is the same."""
        return self.noise**2 * self.limits.sampling / protocol.sampling_ms

    @cached_property
    def correlation(self) -> CubicSpline | None:
        """`summed_twice` of the noise; None where its samples are independent."""
        if self.spectrum is None:
            return None
        n = round(self.limits.length / self.limits.sampling)
        return summed_twice(self.spectrum.autocorrelation(n), self.limits.sampling)

    def autocorrelation(self, protocol: Protocol) -> Array | None:
        """Return that of the noise by the lag in samples (n_times,), None where it is white.

        Raises: InputError for another sampling interval, at which it is not known.
        """
        dt = self.limits.sampling
        if self.spectrum is None:
            return None
        if not math.isclose(protocol.sampling_ms, dt):
            raise InputError(
                f"{protocol.name} has a sample each {protocol.sampling_ms:g} ms, and what is known "
                f"of the noise is its correlation each {dt:g} ms",
                key="noise",
            )
        return self.spectrum.autocorrelation(len(protocol.times_ms))


@dataclass(frozen=True, eq=False, kw_only=True)
class ParameterPlan(DesignPlan):
    """A protocol that determines the parameters of one scheme.

    Attributes:
        criterion: one of `criteria.KINDS`; counting: names of the parameters that count, all where
            empty; worst: whether the worst member of the ensemble counts.
        predict: protocols under which currents are predicted.
    """

    small = True
    words = "the geometric mean of its errors is"
    criterion: str = "log"
    counting: tuple[str, ...] = ()
    worst: bool = False
    predict: tuple[Protocol, ...] = ()

    @property
    def contents(self) -> Mapping[str, Any]:
        """See `DesignPlan`."""
        predict = [hash_of(repr((p.sweeps, p.sampling_ms, p.holding_mV))) for p in self.predict]
        kind = [self.criterion, *self.counting, self.worst]
        return {**super().contents, "criterion": kind, "predict": predict}

    @property
    def subject(self) -> Subject:
        """The scheme."""
        return self.subjects[0]

    @cached_property
    def scales(self) -> Array:
        """(n_free, n_members), by which standard errors are divided: values, or ranges at 0."""
        return scales_of(self.subject, self.subject.members)

    @cached_property
    def judge(self) -> Criterion:
        """The criterion."""
        names = [p.name for p in self.subject.free]
        places = [names.index(name) for name in self.counting or names]
        prior = prior_of(self.subject, self.scales)
        predicted = None
        if self.criterion == "V":
            predicted = np.mean([self.predicted(p) for p in self.predict], axis=0)
        return Criterion(self.criterion, prior, np.array(places), self.worst, predicted)

    def predicted(self, protocol: Protocol) -> Array:
        """Return mean products of a current's derivatives, (n_members, n_free, n_free) pA^2."""
        n = np.isfinite(protocol.voltage()).sum()
        return np.asarray(self.information(protocol, masked=False) * self.variance(protocol) / n)

    @cached_property
    def informed(self) -> Informed:
        """The information of pieces, under an ideal clamp."""
        parts = [self.subject.source(self.subject.members)], self.scales
        return Informed(*parts, self.noise, self.limits.sampling, correlation=self.correlation)

    def search(self, x: Array) -> tuple[Array, float]:
        """See `DesignPlan`; through a clamp, the criterion is that of the protocol."""
        x, found = self.descend(x, [(self.informed, self.judge)], self.iterations)
        if self.subject.clamp is not None and found < FAILED:
            found = self.measured(x)
        return x, found

    def measured(self, x: Array) -> float:
        """Return the criterion of the protocol of a vector, sample by sample and by its clamp."""
        try:
            protocol = self.protocol(x, "trial")
            found = self.judge(self.information(protocol), self.spread(protocol))[0]
        except InputError:  # no finite current
            return FAILED
        return found if np.isfinite(found) else FAILED

    def refined(self, x: Array) -> Array:
        """See `DesignPlan`: move one number after the other while it is gained by that."""
        if self.subject.clamp is None:
            return x
        x = self.waveform.rounded(x)
        best, left = self.measured(x), self.iterations
        low, high = self.waveform.bounds.T
        for move in _MOVES:
            for k in range(self.waveform.n_levels):
                for sign in (1, -1):
                    trial = np.array(x)
                    trial[k] = np.clip(x[k] + sign * move * (high[k] - low[k]), low[k], high[k])
                    trial = self.waveform.rounded(trial)
                    if left <= 0 or np.array_equal(trial, x):
                        continue
                    left, found = left - 1, self.measured(trial)
                    if found < best:
                        x, best = trial, found
                        break
        return x

    def judged(self, protocol: Protocol) -> Findings:
        """See `DesignPlan`; the geometric mean over the ensemble.

        The value of a prediction is the root mean square of the current.
        """
        subject, members = self.subject, self.subject.members
        covariance = self.judge.covariance(self.information(protocol), self.spread(protocol))
        variances = list(np.diagonal(covariance, axis1=1, axis2=2).T)
        values = members[subject.places, 0]
        known = [(p.name, float(v), p.unit) for p, v in zip(subject.free, values, strict=True)]
        n = len(known)
        for one in self.predict:
            size = np.nanmean(subject.simulated(one, members) ** 2, axis=(0, 1))
            moved = np.einsum("mij,mij->m", covariance, self.predicted(one))
            variances.append(moved / size)
            known.append((f"current under {one.name}", float(size[0] ** 0.5), "pA"))
        errors = [float(100 * np.exp(0.5 * np.log(variance).mean())) for variance in variances]
        names = [name for name, *_ in known]
        left = [name for name, e in zip(names[:n], errors, strict=False) if e > 100 * _OPEN]
        alone = 100 * np.exp(-0.5 * np.log(prior_of(subject, self.scales)).mean(axis=1))
        ranges = [
            name
            for name, e, most in zip(names[:n], errors, alone, strict=False)
            if e > _OPEN * most and name not in left
        ]
        remarks = []
        if left:
            size_text = f"above {100 * _OPEN:g} % of the value"
            remarks.append(
                f"Not determined by it: {', '.join(left)} (expected standard error {size_text})."
            )
        if ranges:
            remarks.append(
                f"Known from the range rather than by it: {', '.join(ranges)} (expected standard "
                f"error above {100 * _OPEN:g} % of what the range alone leaves)."
            )
        if not remarks:
            remarks.append(f"It is expected to determine all {n} parameters.")
        return Findings(
            {name: {"error, %": e} for name, e in zip(names, errors, strict=True)},
            {name: {"value": value, "unit": unit} for name, value, unit in known},
            float(np.exp(np.mean(np.log(errors[n:] if self.criterion == "V" else errors[:n])))),
            remarks,
        )

    def drawn(
        self, protocol: Protocol, pieces: Pieces, found: Findings
    ) -> tuple[dict[str, Array], Array]:
        """See `DesignPlan`: currents of the ensemble, and the mean over it."""
        currents = self.subject.simulated(protocol, self.subject.members)
        return {"current (pA)": currents}, self.informed.shares(pieces).mean(axis=2)

    def information(self, protocol: Protocol, backend: str = "auto", masked: bool = True) -> Array:
        """Return the information of a protocol, sample by sample, (n_members, n_free, n_free).

        It comes from the derivatives by which fits descend, and shares nothing with that of the
        design but the model.
        """
        subject = self.subject
        experiment = self.experiment(subject, protocol, masked=masked)
        scorer = make_scorer(Problem(subject.model, (experiment,)), backend)
        found = scorer.linearize(subject.members)
        if (found.status != OK).any():
            raise InputError(f"under {protocol.name} the model has no finite current at its values")
        some = np.moveaxis(found.hessian[np.ix_(subject.places, subject.places)], -1, 0)
        scaled = some * self.scales.T[:, :, None] * self.scales.T[:, None, :]
        assert experiment.recording is not None
        n = experiment.recording.weight.sum()
        information: Array = scaled * n / (2 * self.variance(protocol))
        return information

    def spread(self, protocol: Protocol) -> Array | None:
        """Return the covariance of the gradient, likewise; None where it is the information.

        Derivatives of the currents are differences of simulations.

        Raises: InputError for another sampling interval, at which the noise is not known.
        """
        lags, subject, found = self.autocorrelation(protocol), self.subject, list[Array]()
        if lags is None:
            return None
        recording = self.experiment(subject, protocol).recording
        assert recording is not None
        for member, scale in zip(subject.members.T, self.scales.T, strict=True):
            steps = np.zeros((len(member), len(scale)))
            steps[subject.places, range(len(scale))] = _STEP * scale
            ends = [subject.simulated(protocol, member[:, None] + s) for s in (steps, -steps)]
            slopes = np.where(recording.weight[..., None] > 0, ends[0] - ends[1], 0.0) / (2 * _STEP)
            found.append(sums_of_samples(lags, slopes) / self.noise**2)
        return np.array(found)


@dataclass(frozen=True, eq=False)
class DesignTasks:
    """Local searches from random starts; the task ("start", k) is that of start k.

    Attributes:
        plan: what is designed.
        versions: of the program and of what it computes with.
    """

    plan: DesignPlan
    versions: Mapping[str, Any]

    @property
    def identity(self) -> Mapping[str, Any]:
        """See `TaskSet`."""
        return {**self.versions, **self.plan.contents}

    @single_threaded_blas()  # the last digits would depend on its threads
    def compute(self, key: Key) -> Arrays:
        """Return the vector that a start ends in, and its criterion."""
        random = np.random.default_rng([self.plan.seed, int(key[1])])
        vector, criterion = self.plan.search(self.plan.waveform.random(random))
        return {"vector": vector, "criterion": np.array(criterion)}

    def check_stored(self, key: Key, found: Arrays) -> None:
        """See `CheckedTaskSet`."""
        n = len(self.plan.waveform.bounds)
        expect(found, {"vector": ("f", (n,)), "criterion": ("f", ())})


def scales_of(subject: Subject, members: Array) -> Array:
    """Return by what errors of free parameters (n_free, n) are divided: values, or ranges at 0."""
    values = members[subject.places]
    ranges = np.array([p.upper - p.lower for p in subject.free])[:, None]
    return np.where(values != 0, np.abs(values), ranges)


def prior_of(subject: Subject, scales: Array) -> Array:
    """Return precisions (n_free, n) of scaled parameters that are anywhere in their ranges."""
    found = np.empty(scales.shape)
    for row, p, scale in zip(found, subject.free, scales, strict=True):
        width = np.log(p.upper / p.lower) if p.scale == "log" else (p.upper - p.lower) / scale
        row[:] = 12.0 / np.asarray(width) ** 2
    return found


def vectors_about(model: ChannelModel, n: int, spread: float, seed: int) -> Array:
    """Return parameter vectors (n_parameters, n): the model's values, and others about them.

    Arguments:
        spread: the standard deviation of the logarithm of a free parameter; all stay in their
            ranges.
    """
    random = np.random.default_rng(seed)
    found = np.repeat(model.values()[:, None], n, axis=1)
    for row, p in zip(found, model.parameters, strict=True):
        if not p.fixed:
            row[1:] = np.clip(
                row[1:] * np.exp(spread * random.standard_normal(n - 1)), p.lower, p.upper
            )
    return found


def vectors_of_prior(model: ChannelModel, n: int, seed: int) -> Array:
    """Return n parameter vectors (n_parameters, n) from priors, or where there is none from ranges.

    They are drawn evenly in a range, on its scale.
    """
    random, space = np.random.default_rng(seed), SearchSpace(model.parameters)
    found: Array = space.to_physical(random.random((space.n_free, n)))
    for row, p in zip(found, model.parameters, strict=True):
        if p.prior is not None and not p.fixed:
            row[:] = np.clip(p.prior.at(random.standard_normal(n)), p.lower, p.upper)
    return found
