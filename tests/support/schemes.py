"""Shipped and random schemes, their recordings, and true currents and costs of them."""

from __future__ import annotations

from functools import cache
from itertools import pairwise, permutations

import numpy as np

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model, load_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol, build_protocol
from channelfit.problem.recording import Recording
from channelfit.problem.waves import Constant, Samples, Segment
from channelfit.scoring.reference import ReferenceScorer
from support.little import LITTLE
from support.places import MODELS
from support.truths import shared

SHIPPED = sorted(path.stem for path in MODELS.glob("*.yaml"))


N_CANDIDATES = 21  # never a multiple of the lanes


#: Three states in a circle, both ways round; k3 below 0 makes a NaN, k4 below 0 a negative rate.
CYCLE = {
    "name": "cycle",
    "states": ["A", "B", "C"],
    "definitions": {"root": "sqrt(k3)"},
    "rates": {
        "A -> B": "k1*exp(z*v)",
        "B -> C": "k2",
        "C -> A": "root*root",
        "B -> A": "k4",
        "C -> B": "k5*exp(-z*v)",
        "A -> C": "k6",
    },
    "current": {"open": {"B": 0.5, "C": 1.0}, "conductance": "g", "reversal": "-80 mV"},
    "parameters": {
        name: {"range": [0, 10], "value": 1}
        for name in ("k1", "k2", "k3", "k4", "k5", "k6", "z", "g")
    },
}


LEAK = {
    "name": "leak",
    "states": ["O"],
    "current": {"open": ["O"], "conductance": "g", "reversal": "erev"},
    "parameters": {"g": {"range": [0, 10], "value": 2}, "erev": {"range": [-90, 90], "value": 10}},
}


@cache
def model_named(name: str) -> ChannelModel:
    own = {"cycle": CYCLE, "leak": LEAK}
    return build_model(own[name], None) if name in own else load_model(MODELS / f"{name}.yaml")


def chain_of(states: int) -> ChannelModel:
    """So many states in a row, the last of them open."""
    names = [f"s{k}" for k in range(states)]
    rates = {f"{a} -> {b}": "a*exp(z*v)" for a, b in pairwise(names)}
    rates |= {f"{b} -> {a}": "b*exp(-z*v)" for a, b in pairwise(names)}
    current = LITTLE["current"] | {"open": names[-1:]}
    return build_model(LITTLE | {"states": names, "rates": rates, "current": current}, None)


def random_scheme(n: int, seed: int) -> ChannelModel:
    """A ring both ways round, with chords, some of them one way."""
    rng = np.random.default_rng(seed)
    pairs = {(i, (i + d) % n) for i in range(n) for d in (1, n - 1)}
    pairs |= {(int(i), int(j)) for i, j in rng.integers(0, n, (n, 2)) if i != j}
    rates = {
        f"S{i} -> S{j}": f"{10 ** rng.uniform(-3, 1)!r}*k*exp({rng.uniform(-0.05, 0.05)!r}*v)"
        for i, j in sorted(pairs)
    }
    is_open = {"S1": 1.0, f"S{n - 1}": 0.4}
    document = {
        "states": [f"S{k}" for k in range(n)],
        "rates": rates,
        "current": {"open": is_open, "conductance": "2 nS", "reversal": "-100 mV"},
        "parameters": {"k": {"range": [0.1, 10], "scale": "log", "value": 1}},
    }
    return build_model(document, None)


def any_scheme(n: int, seed: int) -> ChannelModel:
    """A connected scheme with a parameter for each rate: some ways lead back, and some do not.

    Raises InputError: a state is never left or never reached.
    """
    rng = np.random.default_rng(seed)
    share = rng.choice([0.1, 0.5])
    tree = {(int(rng.integers(j)), j) for j in range(1, n)}
    back = {(j, i) for i, j in tree if rng.random() < 0.9}
    pairs = tree | back | {pair for pair in permutations(range(n), 2) if rng.random() < share}
    slopes = {pair: rng.uniform(-0.06, 0.06) for pair in sorted(pairs)}
    names = {(i, j): f"k{i}_{j}" for i, j in slopes}
    opened = rng.integers(n, size=2).tolist()
    document = {
        "states": [f"S{k}" for k in range(n)],
        "rates": {
            f"S{i} -> S{j}": f"{names[i, j]}*exp({slope!r}*v)" for (i, j), slope in slopes.items()
        },
        "current": {
            "open": {f"S{k}": part for k, part in zip(opened, (0.4, 1.0), strict=True)},
            "conductance": "2 nS",
            "reversal": "-100 mV",
        },
        "parameters": {
            name: {"range": [1e-5, 1e3], "unit": "1/ms", "scale": "log", "value": 0.1}
            for name in names.values()
        },
    }
    return build_model(document, None)


def from_yaml(**keys: object) -> Protocol:
    return build_protocol({"holding": "-80 mV", "sampling": "0.1 ms", **keys}, None)


def held_and_moving() -> Protocol:
    """A recorded command that stands still twice, once between samples, ending in a flat."""
    t = np.array([0.0, 0.35, 0.55, 1.0, 1.23, 2.0, 2.6, 3.0, 3.1, 3.2])
    v = np.array([-80.0, -80.0, -20.0, -20.0, -20.0, 30.0, 25.0, 25.0, -60.0, -60.0])
    recorded = Samples(t, v)
    return Protocol(
        "recorded",
        -80.0,
        0.1,
        (
            (
                Segment(0.0, 0.5, Constant(-80.0)),
                Segment(0.5, 4.2, recorded),
                Segment(4.2, 5.0, Constant(-80.0)),
            ),
            (Segment(0.0, 1.47, recorded), Segment(1.47, 2.0, Constant(10.0))),
        ),
    )


PROTOCOLS: dict[str, Protocol] = {
    "steps": from_yaml(
        segments=[
            {"hold": "1 ms"},
            {"step": {"from": -110, "to": 40, "by": 30}, "for": "7 ms"},
            {"hold": 2},
        ]
    ),
    "off the grid": from_yaml(
        segments=[
            {"hold": 0.97},
            {"step": {"values": [-40, 20]}, "for": 3.333},
            {"step": -60, "for": 2.0001},
            {"ramp": [-60, 20], "for": 1.234},
            {"hold": 0.77},
        ]
    ),
    "ramp": from_yaml(
        segments=[
            {"hold": 1},
            {"ramp": [-120, 60], "for": 40},
            {"ramp": [60, -100], "for": 3},
        ]
    ),
    "sines": from_yaml(
        sampling="0.25 ms",
        segments=[
            {"hold": 1},
            {
                "sines": {
                    "offset": -30,
                    "terms": [
                        {"amplitude": 54, "omega": 0.07},
                        {"amplitude": 26, "omega": "0.37 1/ms", "phase": 1},
                    ],
                },
                "for": 30,
            },
            {"hold": 1},
        ],
    ),
    "recorded": held_and_moving(),
    "one sample": from_yaml(sampling="1 ms", segments=[{"step": 0, "for": "0.6 ms"}]),
    "short segments": from_yaml(
        sampling="1 ms",
        segments=[
            {"hold": 1.2},
            {"step": 30, "for": 0.3},
            {"step": -50, "for": 0.2},
            {"ramp": [-50, 10], "for": 0.15},
            {"step": 10, "for": 4.4},
        ],
    ),
    "unequal sweeps": from_yaml(
        segments=[
            {"step": 20, "for": 1},
            {"hold": {"values": [0, 0.5, 3, 1.7]}},
            {"step": 20, "for": 1.55},
        ]
    ),
    "carry over": from_yaml(
        between_sweeps={"carry_over": True, "rest": "7 ms"},
        segments=[{"hold": 1}, {"step": {"values": [-20, 0, 50]}, "for": 2.55}],
    ),
    "no rest": from_yaml(
        between_sweeps="carry over", segments=[{"step": {"values": [-20, 50]}, "for": 3}]
    ),
}


def recording_of(protocol: Protocol, seed: int, weights: str = "plain") -> Recording:
    """Arbitrary currents; weights that are 1, change within segments, or mask whole windows."""
    rng = np.random.default_rng(seed)
    shape = (protocol.n_sweeps, protocol.n_times_max)
    current, weight = rng.normal(0, 100, shape), np.ones(shape)
    if weights == "changing":
        weight = rng.choice([0.0, 0.5, 2.0], shape)
        weight[:, ::7] = 1.0
    if weights == "masked":
        weight[:, : shape[1] // 3] = 0.0
        weight[:, shape[1] // 2 : shape[1] // 2 + 3] = 0.0
        current[weight == 0] = np.nan
    for k in range(shape[0]):
        current[k, protocol.n_times(k) :] = np.nan
        weight[k, protocol.n_times(k) :] = 0.0
    return Recording(protocol.times_ms, current, weight)


def simulated(name: str, *protocols: Protocol) -> Problem:
    return Problem(model_named(name), tuple(Experiment(p) for p in protocols))


def scored(name: str) -> Problem:
    """All protocols at once, with different weights and kinds of masks; one has no recording."""
    kinds = ("plain", "changing", "masked")
    return Problem(
        model_named(name),
        tuple(
            Experiment(
                p, None if key == "ramp" else recording_of(p, k, kinds[k % 3]), 1.0 + 0.5 * k
            )
            for k, (key, p) in enumerate(PROTOCOLS.items())
        ),
    )


def candidates(model: ChannelModel, n: int, seed: int = 0) -> np.ndarray:
    """Over the full ranges; the first has the model's own values."""
    rng = np.random.default_rng(seed)
    rows = []
    for p in model.parameters:
        share = rng.random(n)
        if p.fixed:
            rows.append(np.full(n, p.value))
        elif p.scale == "log":
            rows.append(p.lower * (p.upper / p.lower) ** share)
        else:
            rows.append(p.lower + (p.upper - p.lower) * share)
    out = np.array(rows)
    out[:, 0] = model.values()
    return out


def largest_error(test: np.ndarray, truth: np.ndarray, least: float = 1e-6) -> float:
    """The largest error of any sample over the largest current of its candidate.

    A channel that is practically never open has no digits to compare: a candidate counts as having
    at least the share `least` of the largest current of all.
    """
    assert np.array_equal(np.isnan(test), np.isnan(truth))
    top = np.nanmax(np.abs(truth), axis=(0, 1))
    return float(np.nanmax(np.abs(test - truth) / np.maximum(top, least * np.nanmax(top))))


@shared
def truth_of(name: str) -> list[np.ndarray]:
    """Of `scored` by the reference: cost, status, the cost from its currents and the weights, and
    the currents of every protocol, (n_sweeps, n_times_max, N_CANDIDATES)."""
    problem = scored(name)
    parameters = candidates(problem.model, N_CANDIDATES, seed=1)
    reference = ReferenceScorer(problem)
    score, currents = reference.score(parameters), reference.simulate(parameters)
    total = weight = 0.0
    for e, current in zip(problem.experiments, currents, strict=True):
        if e.recording is not None:
            w = e.weight * e.recording.weight
            r = current - e.recording.current_pA[..., None]
            total = total + np.nansum(w[..., None] * r**2, axis=(0, 1))
            weight += w.sum()
    return [score.cost, score.status, np.asarray(total / weight), *currents]


#: Protocols of held voltages alone.
HELD = {
    "steps": PROTOCOLS["steps"],
    "off the grid": from_yaml(
        segments=[
            {"hold": 0.97},
            {"step": {"values": [-40, 20]}, "for": 3.333},
            {"step": -60, "for": 2.0001},
            {"hold": 0.77},
        ]
    ),
    "long": from_yaml(
        sampling="0.5 ms",
        segments=[
            {"hold": 3},
            {"step": {"values": [-20, 30]}, "for": 400},
            {"step": -100, "for": 0.5},
            {"hold": 20},
        ],
    ),
}


def held(name: str) -> Problem:
    """Held voltages only: weights that differ and vanish, steps off the samples, single samples."""
    kinds = ("plain", "changing", "masked")
    rows = (
        (p, recording_of(p, k, kinds[k % 3]), 1.0 + 0.5 * k) for k, p in enumerate(HELD.values())
    )
    return Problem(model_named(name), tuple(Experiment(*row) for row in rows))
