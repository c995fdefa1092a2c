"""The current at held voltages from Chebyshev moments: tables that belong to the recording.

With the generator A of a voltage, its eigenvalues in [-rho, 0] and X = I + 2 A / rho,

    exp(A t) p0 = sum_k a_k(rho t) T_k(X) p0,    a_k(x) = (2 - [k = 0]) exp(-x/2) I_k(x/2)

(Tal-Ezer and Kosloff 1984), so the open probability is sum_k a_k(rho t) mu_k with moments
mu_k = c T_k(X) p0 that know nothing of time: one recurrence with a sparse matrix, however many
samples. Because a_k falls like exp(-k^2 / (rho t)), some 6 sqrt(rho t) moments are enough.

The residuals of a run are needed along a few orthonormal directions alone: those of its compression
(`held_compression`), of which exponentials no faster than rho need some 20 to 30. The directions
are turned so that each meets the moments up to some number only: half of a table is zeros.

rho is rounded up to a rung of a ladder, four to an octave, so that candidates share tables. What is
left out of a trace is below 1e-11 of an open channel, root mean square over its samples, times the
largest moment.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from channelfit.model.channel import ChannelModel
from channelfit.model.evaluation import evaluate
from channelfit.problem.experiment import Problem
from channelfit.problem.run_tree import DATA, HELD, KIND, N_SAMPLES, TABLE, RunTree
from channelfit.scoring.layout.held_compression import Compression, compression
from channelfit.scoring.layout.orthogonal import directions
from channelfit.scoring.layout.visit_order import schedule
from channelfit.scoring.machine.arrays import product

#: Sums of a_k, or of elements of a table's row (root mean square over samples), that are left out.
TRUNCATION = 1e-13
#: The same of derivatives.
SLOPE_TRUNCATION = 1e-2 * TRUNCATION
#: Of an exponential along no direction, root mean square over samples.
_NEGLIGIBLE = 1e-12
#: A rung is the bits of a float32 without so many of the last: a power of two times 1, 1.25 ..
RUNG_BITS = 21
#: Exponentials to an octave, and imaginary over real parts of their rates where they may oscillate.
_TO_AN_OCTAVE = 4
_SLOPES = (0.0, 0.35, 0.7, 1.0)
#: Moments that begin a direction together.
_BLOCK = 4
#: rho times the longest time of a problem on its lowest rung: slower candidates share it.
_LEAST_DECAY = 0.25
#: rho times the time of a run at most, for which GREATEST_DEGREE moments are enough: beyond, the
#: steps of a propagator are cheaper.
GREATEST_DECAY, GREATEST_DEGREE = 8192.0, 512


def rung_of(rho: float) -> int:
    """Return the lowest rung on which rho is as given at least, 1/ms."""
    single = np.float32(min(rho, 1e38))
    bits = int(single.view(np.int32)) + (float(single) < rho)
    return -(-bits >> RUNG_BITS)


def speed_of(rung: int) -> float:
    """Return rho on a rung, 1/ms."""
    return float(np.int32(rung << RUNG_BITS).view(np.float32))


def weights(x: np.ndarray, truncation: float = TRUNCATION) -> np.ndarray:
    """Return a_k(x), (n, degree), until the sum of all further ones is at most `truncation`.

    Ratios of neighboring Bessel functions follow from the last to the first without a subtraction,
    and all a_k together make 1.

    Arguments:
        x: (n,) rho times time, none negative.
    """
    half = 0.5 * x
    n = 40 + int(9.0 * math.sqrt(half.max()))  # exp(-n^2 / (2 half)) is below exp(-40)
    begin = n + n // 2
    ratio = half / (begin + np.sqrt(begin**2 + half**2))
    parts: np.ndarray = np.ones((n, len(half)))
    for k in range(begin - 1, 0, -1):
        ratio = half / (2.0 * k + half * ratio)
        if k < n:
            parts[k] = ratio
    parts = np.cumprod(parts, axis=0)
    parts[1:] *= 2.0
    parts /= parts.sum(axis=0)
    return np.ascontiguousarray(parts[_further(parts).max(axis=1) > truncation].T)


def _further(parts: np.ndarray) -> np.ndarray:
    """Return the sum of each element and all that follow it along the first axis."""
    return np.cumsum(parts[::-1], axis=0)[::-1]


@dataclass(frozen=True, eq=False)
class MomentTable:
    """The tables of n samples at a held voltage on one rung.

    Attributes:
        rows: (n_directions, degree): times the moments, the current along each direction; 0 from
            the direction's length on.
        lengths: (n_directions,) descending, the moments that count along each direction.
        end: (end_degree,), a_k after all samples, where the next run begins.
        directions: (n_directions, rank), orthonormal in the space of the run's compression.
    """

    rows: np.ndarray
    lengths: np.ndarray
    end: np.ndarray
    directions: np.ndarray

    def project(self, inside: np.ndarray) -> tuple[np.ndarray, float]:
        """Return a recording along the directions (n_directions,), and the squares beside them.

        The sum of squares of the residuals is |rows @ moments - along|^2 + these squares + those
        outside the compression.

        Arguments:
            inside: (rank,), see `Compression.project`.
        """
        along = product(self.directions, inside[:, None])[:, 0]
        left = inside - product(along[None], self.directions)[0]
        return along, float((left**2).sum())


@lru_cache(maxsize=4096)
def moment_table(
    n: int, span: float, rung: int, oscillating: bool = False, slopes: bool = False
) -> MomentTable | None:
    """Return the tables of n samples; None beyond GREATEST_DECAY.

    Arguments:
        n: equally spaced samples from the start on; 0 for the end alone.
        span: ms, all of them.
        oscillating: for schemes that may have complex modes (not reversible ones).
        slopes: for derivatives as well, of which the moments grow like the square of k.
    """
    decay, left_out = speed_of(rung) * span, SLOPE_TRUNCATION if slopes else TRUNCATION
    if decay > GREATEST_DECAY:
        return None
    end = weights(np.array([decay]), left_out)[0]
    if n == 0:
        return MomentTable(np.zeros((0, 0)), np.zeros(0, np.int64), end, np.zeros((0, 0)))
    run, least = compression(n, oscillating), left_out * math.sqrt(n)
    decay /= n
    traces = [exponentials(run, decay, oscillating)]
    traces += [exponentials(run, decay, oscillating, run.points / n)] if slopes else []
    space = directions(traces, _NEGLIGIBLE * math.sqrt(n))
    rows = product(space, product(run.matrix, weights(decay * run.points, left_out)))
    edges = [*range(0, rows.shape[1], _BLOCK), rows.shape[1]]
    late_first = [rows[:, a:b] for a, b in itertools.pairwise(edges)][::-1]
    turned = directions(late_first, 0.1 * least)
    rows = product(turned, rows)
    further = _further(np.abs(rows).T)
    lengths = np.maximum.accumulate((further > least).sum(axis=0)[::-1])[::-1]
    rows[np.arange(rows.shape[1]) >= lengths[:, None]] = 0.0
    return MomentTable(rows, lengths, end, product(turned, space))


def exponentials(
    run: Compression, fastest: float, oscillating: bool, times: np.ndarray | float = 1.0
) -> np.ndarray:
    """Return (rank, n_functions): exponentials in the space of a run, of rates up to `fastest`.

    Arguments:
        times: (n_points,) what they are multiplied with.
    """
    octaves = max(1.0, math.log2(1e3 * fastest * run.n))
    steps = np.linspace(0.0, 1.0, int(_TO_AN_OCTAVE * octaves))
    rates = fastest * np.append(0.0, 2.0 ** (-octaves * steps**2))  # denser toward the fastest
    z = np.outer(rates, 1 + 1j * np.array(_SLOPES if oscillating else _SLOPES[:1])).ravel()
    values = np.exp(-run.points[:, None] * z) * np.reshape(times, (-1, 1))
    parts = [values.real, values.imag] if oscillating else [values.real]
    return product(run.matrix, np.concatenate(parts, axis=1))


@dataclass(frozen=True, eq=False)
class MomentRun:
    """A run at a held voltage.

    Attributes:
        number: of the run in its tree.
        n: samples, 0 where none is scored.
        span: ms, all of them.
        source, target: state slots; the target is -1 where no run needs the end.
        weight: of each sample.
        inside: (rank,) the recording as its compression projects it, pA.
    """

    number: int
    n: int
    span: float
    source: int
    target: int
    weight: float
    inside: np.ndarray


@dataclass(frozen=True, eq=False)
class MomentWalk:
    """The runs that a score needs, in the order of `visit_order.schedule`.

    Attributes:
        jobs: (n_jobs + 1,) int32, the first visit of each job.
        visits: (n_visits + 1,) int32, the first run of each visit.
        visit_v: (n_visits,) mV; start_v: (n_starts,) mV, of the first state slots; with ligands
            each with their concentrations, as in `RunTree.levels`.
        runs: of all visits.
        outside: the weighted squares of the recordings outside their compressions, pA^2.
        n_slots: state slots.
        lowest: the lowest rung of the ladder.
    """

    jobs: np.ndarray
    visits: np.ndarray
    visit_v: np.ndarray
    start_v: np.ndarray
    runs: tuple[MomentRun, ...]
    outside: float
    n_slots: int
    lowest: int


def moment_walk(tree: RunTree, n_jobs: int = 1, oscillating: bool = False) -> MomentWalk:
    """Return the walk through a tree of runs, if all that a score needs are at held voltages.

    Arguments:
        n_jobs: see `visit_order.schedule`.
        oscillating: see `moment_table`.

    Raises: ValueError where voltage varies.
    """
    order = schedule(tree, n_jobs, single_samples_anywhere=True)
    if (tree.runs[order.run, KIND] != HELD).any():
        raise ValueError("voltage varies; only stepping can score that")
    runs, outside = [], 0.0
    rows = zip(order.run, order.source, order.target, order.weight.tolist(), strict=True)
    for run, source, target, weight in rows:
        n, first = int(tree.runs[run, N_SAMPLES]), tree.runs[run, DATA]
        span = n * float(tree.table_dt[tree.runs[run, TABLE]])
        inside = np.empty(0)
        if weight > 0:
            inside, beside = compression(n, oscillating).project(tree.data_pA[first : first + n])
            outside += weight * beside
        scored = n if weight > 0 else 0
        slots = int(source), int(target)
        runs.append(MomentRun(int(run), scored, span, *slots, weight, inside))
    longest = max((run.span for run in runs), default=1.0)
    return MomentWalk(
        order.jobs.astype(np.int32),
        order.visits.astype(np.int32),
        tree.levels[order.voltage],
        tree.levels[tree.start_voltage],
        tuple(runs),
        outside,
        order.n_slots,
        rung_of(_LEAST_DECAY / longest),
    )


def typical_speeds(model: ChannelModel, levels: np.ndarray, n: int = 512) -> np.ndarray:
    """Return a bound of the fastest mode, twice the fastest exit from a state, 1/ms.

    Arguments:
        levels: of `RunTree`, (n_levels,) mV, or with ligands (n_levels, 1 + n_ligands) mV and mM.
        n: candidates, drawn from the ranges of all parameters, the same every time.

    Returns: (n_levels, n); inf where a rate is not finite.
    """
    random, scope = np.random.default_rng(0), {}
    for p in model.parameters:
        u = random.random(n)
        if p.fixed:
            scope[p.name] = np.full(n, p.value)
        elif p.scale == "log":
            scope[p.name] = p.lower * (p.upper / p.lower) ** u
        else:
            scope[p.name] = p.lower + (p.upper - p.lower) * u
    found = []
    with np.errstate(all="ignore"):
        for level in levels.reshape(len(levels), -1):
            commanded = zip(model.commanded, level, strict=True)
            here: dict[str, np.ndarray] = {**scope, **{k: np.full(n, x) for k, x in commanded}}
            for name, expression in model.definitions:
                here[name] = np.broadcast_to(evaluate(expression, here), (n,))
            fastest = np.zeros(n)
            for chain in model.chains:
                exits: dict[str, np.ndarray] = {}
                for t in chain.transitions:
                    rate = t.multiplicity * np.abs(evaluate(t.rate, here))
                    exits[t.source] = exits.get(t.source, np.zeros(n)) + rate
                fastest = np.maximum(fastest, np.max([fastest, *exits.values()], axis=0))
            found.append(np.where(np.isfinite(fastest), 2.0 * fastest, np.inf))
    return np.array(found)


@dataclass(frozen=True, eq=False)
class Ladder:
    """The rungs that the candidates of a problem need, estimated from a sample of them.

    Attributes:
        lowest: the lowest rung; slower candidates share it.
        highest: by (samples, ms) the highest rung of a kind of runs.
        walk: of all runs, as one job.
        served: the share of the sample that no run is too long for.
        degree: moments of a run, the mean over all runs and the part of the sample that is served.
        costliest: the level (see `RunTree.levels`) whose runs take most moments.
    """

    lowest: int
    highest: dict[tuple[int, float], int]
    walk: MomentWalk
    served: float
    degree: float
    costliest: Any


def ladder(problem: Problem, oscillating: bool) -> Ladder:
    """Return the rungs for a problem; those above the sample's fastest by two octaves are left out.

    Arguments:
        oscillating: see `moment_table`.
    """
    walk = moment_walk(problem.scored, 1, oscillating)
    speeds = typical_speeds(problem.model, walk.visit_v)
    lowest, highest = rung_of(GREATEST_DECAY), dict[tuple[int, float], int]()
    served = np.ones(speeds.shape[1], dtype=bool)
    decays, moments = [], []
    for speed, first, last in zip(speeds, walk.visits[:-1], walk.visits[1:], strict=True):
        runs = walk.runs[first:last]
        most = GREATEST_DECAY / max(run.span for run in runs)
        served &= speed < most
        some = speed[speed < most]
        slow, fast = (some.min(), 4.0 * some.max()) if len(some) else (most, most)
        lowest = min(lowest, rung_of(max(slow, _LEAST_DECAY / max(run.span for run in runs))))
        for run in runs:
            top = rung_of(GREATEST_DECAY / run.span) - 1
            lowest = min(lowest, top)  # also where every candidate is too fast
            known = highest.get((run.n, run.span), 0)
            highest[run.n, run.span] = max(known, min(top, rung_of(fast)))
            decays.append(np.minimum(speed, most) * run.span)
        moments.append(np.sqrt(np.array(decays[first:last])).sum())
    highest = {kind: max(top, lowest) for kind, top in highest.items()}
    degree = float(np.mean(6.0 * np.sqrt(np.array(decays)[:, served]))) if served.any() else np.inf
    costliest = walk.visit_v[np.argmax(moments)]
    return Ladder(lowest, highest, walk, float(served.mean()), degree, costliest)
