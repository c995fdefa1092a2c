"""The difference of channelfit's currents and NEURON's, and random candidates to compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from channelfit.model.channel import ChannelModel
from channelfit.model.evaluation import evaluate
from channelfit.problem.protocol import Protocol
from channelfit.scoring.neuron.oracle import Array, IntegrationFailed, NeuronOracle

#: A current smaller than this share of what the open channel would carry is compared with that.
SMALLEST_CURRENT = 1e-6


@dataclass(frozen=True, eq=False)
class OracleComparison:
    """The difference of channelfit's currents and those of NEURON under one protocol.

    relative_error: the largest difference of the worst candidate, divided by `scale_pA`.
    scale_pA: the largest current of that candidate, or a millionth of what its open channel would
        carry, if that is more.
    candidate, sweep, time_ms: where the largest difference is.
    parameters: (n_parameters,) the values of that candidate.
    neuron_pA, channelfit_pA: (n_sweeps, n_times_max) the currents of that candidate.
    gave_up: the candidates that NEURON could not integrate, which were not compared.
    """

    protocol: str
    relative_error: float
    scale_pA: float
    candidate: int
    sweep: int
    time_ms: float
    parameters: Array
    neuron_pA: Array
    channelfit_pA: Array
    gave_up: tuple[int, ...] = ()


#: Takes parameters (n_parameters, n_candidates); gives, for each protocol, currents of shape
#: (n_sweeps, n_times_max, n_candidates), pA.
Simulate: TypeAlias = Callable[[Array], Sequence[Array]]


def compare(
    oracle: NeuronOracle,
    protocols: Sequence[Protocol],
    simulate: Simulate,
    parameters: npt.ArrayLike,
) -> list[OracleComparison]:
    """Compare the currents of candidates, and return the worst candidate of each protocol.

    Arguments:
        oracle: the channel in NEURON.
        protocols: the protocols, in the order in which `simulate` returns currents.
        simulate: the method of that name of a scorer.
        parameters: (n_parameters,) or (n_parameters, n_candidates).

    Raises:
        IntegrationFailed: NEURON could integrate none of the candidates.
    """
    candidates = np.asarray(parameters, dtype=float)
    candidates = candidates.reshape(len(oracle.model.parameters), -1)
    traces = simulate(candidates)
    worst = []
    for protocol, ours in zip(protocols, traces, strict=True):
        rows, gave_up = [], []
        for k in range(candidates.shape[1]):
            try:
                rows.append(_compared(oracle, protocol, k, candidates[:, k], ours[:, :, k]))
            except IntegrationFailed as error:
                gave_up.append(k)
                failed = error
        if not rows:
            raise failed
        row = max(rows, key=lambda row: row.relative_error)
        worst.append(replace(row, gave_up=tuple(gave_up)))
    return worst


def _compared(
    oracle: NeuronOracle, protocol: Protocol, candidate: int, parameters: Array, ours: Array
) -> OracleComparison:
    """Compare the currents of one candidate, ours (n_sweeps, n_times_max) pA, with NEURON's."""
    theirs = oracle.simulate(protocol, parameters)
    scale = max(float(np.nanmax(np.abs(theirs))), _smallest(oracle.model, protocol, parameters))
    apart = np.abs(ours - theirs)
    # Where only one is NaN they differ infinitely; both are NaN after the end of a sweep.
    apart = np.where(np.isnan(ours) & np.isnan(theirs), 0.0, np.nan_to_num(apart, nan=np.inf))
    sweep, time = np.unravel_index(int(np.argmax(apart)), apart.shape)
    return OracleComparison(
        protocol.name,
        float(apart[sweep, time] / scale),
        scale,
        candidate,
        int(sweep),
        float(protocol.times_ms[time]),
        parameters,
        theirs,
        ours,
    )


def _smallest(model: ChannelModel, protocol: Protocol, parameters: Array) -> float:
    """Return the smallest current, pA, that a difference is divided by."""
    values = dict(zip(model.parameter_names, parameters, strict=True))
    values["v"] = np.unique(protocol.command()[np.isfinite(protocol.command())])
    values |= dict.fromkeys(model.ligands, 0.0)  # on which no drive depends
    for name, expression in model.definitions:
        values[name] = evaluate(expression, values)
    largest = [float(np.abs(evaluate(term.drive, values)).max()) for term in model.terms]
    return max(SMALLEST_CURRENT * max(largest), 1e-9)


def random_candidates(model: ChannelModel, n_candidates: int, seed: int) -> Array:
    """Draw candidates (n_parameters, n_candidates) evenly from the ranges, on their scales."""
    draw = np.random.default_rng(seed).random((len(model.parameters), n_candidates))
    rows = []
    for p, u in zip(model.parameters, draw, strict=True):
        if p.fixed:
            rows.append(np.full(n_candidates, p.value))
        elif p.scale == "log":
            rows.append(p.lower * (p.upper / p.lower) ** u)
        else:
            rows.append(p.lower + (p.upper - p.lower) * u)
    return np.array(rows)
