"""The plan of a design, and its starts as tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import minimize

from channelfit.designs.criteria import Criterion
from channelfit.designs.information import Informed
from channelfit.designs.waveform import Limits, Waveform
from channelfit.model.channel import ChannelModel, Parameter
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.recording import Recording
from channelfit.problem.statuses import OK
from channelfit.reading.errors import InputError
from channelfit.results.identity import hash_of
from channelfit.scoring.scorer import make_scorer
from channelfit.tasks.result_store import Arrays, Key, expect

Array = np.ndarray

#: The criterion of a vector for which it is not finite.
FAILED = 1e10


@dataclass(frozen=True, eq=False)
class DesignPlan:
    """What a protocol is to determine, and what is allowed.

    Attributes:
        model: with fixed parameters that are known.
        members: (n_parameters, n_members) values, the model's own first, base units.
        kinds: of the segments; limits: of voltages and times.
        noise: pA, the standard deviation of a sample.
        criterion: one of `criteria.KINDS`; counting: names of the parameters that count, all where
            empty; worst: whether the worst member of the ensemble counts.
        seed: of the starts.
        iterations: of each start, at most.
    """

    model: ChannelModel
    members: Array
    kinds: tuple[str, ...]
    limits: Limits
    noise: float
    criterion: str = "log"
    counting: tuple[str, ...] = ()
    worst: bool = False
    seed: int = 0
    iterations: int = 100

    @property
    def free(self) -> list[Parameter]:
        """The parameters in question."""
        return [p for p in self.model.parameters if not p.fixed]

    @cached_property
    def places(self) -> list[int]:
        """The rows of the free parameters among all."""
        return [k for k, p in enumerate(self.model.parameters) if not p.fixed]

    @cached_property
    def scales(self) -> Array:
        """(n_free, n_members), by which standard errors are divided: values, or ranges at 0."""
        values = np.abs(self.members[self.places])
        ranges = np.array([p.upper - p.lower for p in self.free])[:, None]
        return np.where(values > 0, values, ranges)

    @cached_property
    def prior(self) -> Array:
        """(n_free, n_members) precisions of the scaled parameters, as uniform in their ranges."""
        found = np.empty(self.scales.shape)
        for row, p, scale in zip(found, self.free, self.scales, strict=True):
            width = np.log(p.upper / p.lower) if p.scale == "log" else (p.upper - p.lower) / scale
            row[:] = 12.0 / np.asarray(width) ** 2
        return found

    @cached_property
    def judge(self) -> Criterion:
        """The criterion."""
        names = [p.name for p in self.free]
        places = [names.index(name) for name in self.counting or names]
        return Criterion(self.criterion, self.prior, np.array(places), self.worst)

    @cached_property
    def waveform(self) -> Waveform:
        """The segments and their numbers."""
        return Waveform(self.kinds, self.limits)

    @cached_property
    def informed(self) -> Informed:
        """The information of pieces."""
        names = [p.name for p in self.free]
        return Informed(
            self.model, names, self.members, self.scales, self.noise, self.limits.sampling
        )

    def value(self, x: Array) -> tuple[float, Array]:
        """Return the criterion of a vector of the waveform, and its gradient."""
        pieces = self.waveform.pieces(x)
        value, by_volts, by_lengths = self.informed.with_gradient(pieces, self.judge)
        return value, self.waveform.gradient(x, by_volts, by_lengths)

    def protocol(self, x: Array, name: str) -> Protocol:
        """Return the protocol of a vector, with whole mV and whole samples."""
        return Protocol.from_segments(
            self.waveform.rounded(x),
            holding=self.limits.holding,
            sampling=self.limits.sampling,
            name=name,
            description=f"designed for the parameters of {self.model.name}",
        )

    def information(self, protocol: Protocol, backend: str = "auto") -> Array:
        """Return the information of a protocol, sample by sample, (n_members, n_free, n_free).

        The noise of a protocol that is sampled at another interval has the same density. The
        information comes from the derivatives by which fits descend, and shares nothing with that
        of the design but the model.
        """
        voltage = protocol.voltage()
        weight = np.isfinite(voltage).astype(float)
        times = protocol.times_ms
        for sweep, row in enumerate(weight):
            for begin in protocol.step_times_ms(sweep) if self.limits.mask else ():
                row[(times >= begin) & (times < begin + self.limits.mask)] = 0.0
        recording = Recording(times, np.where(weight > 0, 0.0, np.nan), weight)
        problem = Problem(self.model, (Experiment(protocol, recording),))
        found = make_scorer(problem, backend).linearize(self.members)
        if (found.status != OK).any():
            raise InputError(f"under {protocol.name} the model has no finite current at its values")
        some = np.moveaxis(found.hessian[np.ix_(self.places, self.places)], -1, 0)
        scaled = some * self.scales.T[:, :, None] * self.scales.T[:, None, :]
        per_sample = self.noise**2 * self.limits.sampling / protocol.sampling_ms
        information: Array = scaled * weight.sum() / (2 * per_sample)
        return information

    def errors(self, protocol: Protocol, backend: str = "auto") -> Array:
        """Return expected standard errors, as parts of the values, (n_free, n_members)."""
        return self.judge.errors(self.information(protocol, backend))


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
        plan = self.plan
        return {
            **self.versions,
            "model": hash_of(repr(plan.model)),
            "members": plan.members.tolist(),
            "kinds": list(plan.kinds),
            "limits": asdict(plan.limits),
            "noise": plan.noise,
            "criterion": [plan.criterion, *plan.counting, plan.worst],
            "seed": plan.seed,
            "iterations": plan.iterations,
        }

    def compute(self, key: Key) -> Arrays:
        """Return the vector that a start ends in, and its criterion."""
        plan, random = self.plan, np.random.default_rng([self.plan.seed, int(key[1])])

        def value(x: Array) -> tuple[float, Array]:
            found, gradient = plan.value(x)
            return (found, gradient) if np.isfinite(found) else (FAILED, np.zeros_like(x))

        found = minimize(
            value,
            plan.waveform.random(random),
            jac=True,
            method="L-BFGS-B",
            bounds=[(low, high) for low, high in plan.waveform.bounds],
            options={"maxiter": plan.iterations},
        )
        return {"vector": np.asarray(found.x), "criterion": np.array(float(found.fun))}

    def check_stored(self, key: Key, found: Arrays) -> None:
        """See `CheckedTaskSet`."""
        n = self.plan.waveform.n_numbers
        expect(found, {"vector": ("f", (n,)), "criterion": ("f", ())})


def ensemble(model: ChannelModel, values: Array, n: int, spread: float, seed: int) -> Array:
    """Return parameter vectors (n_parameters, n): the values, and others about them.

    Arguments:
        values: (n_parameters,) base units.
        n: vectors; the first is `values`.
        spread: the standard deviation of the logarithm of a free parameter; all stay in their
            ranges.
    """
    random = np.random.default_rng(seed)
    found = np.repeat(values[:, None], n, axis=1)
    for row, p in zip(found, model.parameters, strict=True):
        if not p.fixed:
            row[1:] = np.clip(
                row[1:] * np.exp(spread * random.standard_normal(n - 1)), p.lower, p.upper
            )
    return found


def open_parameters(errors: Array, names: Sequence[str], limit: float = 1.0) -> list[str]:
    """Return the names of parameters whose standard error exceeds a part of their value."""
    return [name for name, row in zip(names, errors, strict=True) if row.mean() > limit]
