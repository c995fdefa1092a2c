"""Any schedule of any protocols: every run once, from the state that it starts from."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.recording import Recording
from channelfit.problem.run_tree import (
    DATA,
    HELD,
    KIND,
    N_SAMPLES,
    N_SUB,
    NODES,
    SOURCE,
    TABLE,
    TARGET,
    RunTree,
)
from channelfit.problem.waves import Constant, Ramp, Segment
from channelfit.scoring.layout.visit_order import Schedule, schedule
from support.schemes import model_named, recording_of

VOLTAGES = [-120.0, -80.0, -40.0, 20.0]
#: Exact in binary, so that sums of them are, and no boundary falls near a sample by rounding.
DURATIONS = [0.25, 0.5, 1.0, 1.375, 3.0, 5.5]


@st.composite
def sweeps(draw: st.DrawFn) -> tuple[Segment, ...]:
    segments, t, previous = [], 0.0, -80.0
    for _ in range(draw(st.integers(1, 4))):
        end = t + draw(st.sampled_from(DURATIONS))
        v = draw(st.sampled_from(VOLTAGES))
        moving = draw(st.sampled_from([False, False, True])) and v != previous
        segments.append(Segment(t, end, Ramp(previous, v) if moving else Constant(v)))
        t, previous = end, v
    return tuple(segments)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Up to two families, in which sweeps often begin alike, with whole windows masked."""
    experiments = []
    for k in range(draw(st.integers(1, 2))):
        common = draw(sweeps())
        family = [draw(sweeps()) for _ in range(draw(st.integers(1, 4)))]
        end = common[-1].end_ms
        joined = tuple(
            (*common, *(Segment(end + s.start_ms, end + s.end_ms, s.wave) for s in sweep))
            for sweep in family
        )
        carry, holding = draw(st.booleans()), draw(st.sampled_from(VOLTAGES))
        protocol = Protocol("p", holding, 0.25, joined, carry_over=carry, rest_ms=2.0 * carry)
        recording = recording_of(protocol, k)
        weight = recording.weight.copy()
        for sweep in range(protocol.n_sweeps):
            first = draw(st.integers(0, protocol.n_times(sweep)))
            weight[sweep, first : first + draw(st.integers(0, 20))] = 0.0
        experiments.append(
            Experiment(protocol, Recording(recording.time_ms, recording.current_pA, weight))
        )
    problem = Problem(model_named("model_a"), tuple(experiments))
    assume(problem.scored.total_weight > 0)  # or there is nothing to walk through
    return problem


class Channel:
    """A candidate that remembers: x moves toward a limit that depends on voltage, at two speeds."""

    def __init__(self, packed: RunTree) -> None:
        self.packed = packed

    def rest(self, v: float) -> float:
        return 0.5 + v / 400

    def run(self, k: int, x: float) -> tuple[float, float]:
        """The state after a run and the sum of squares of its samples."""
        packed, row, squares = self.packed, self.packed.runs[k], 0.0
        held = row[KIND] == HELD
        for i in range(row[N_SAMPLES]):
            if packed.run_weight[k] > 0:
                squares += (100 * x - packed.data_pA[row[DATA] + i]) ** 2
            if held:
                v, dt = packed.run_voltage[k], packed.table_dt[row[TABLE]]
                x += (self.rest(v) - x) * -np.expm1(-0.3 * dt)
                continue
            for sub in range(row[N_SUB]):
                v = packed.nodes[row[TABLE] + (i * row[N_SUB] + sub) * len(NODES) + 1]
                x += (self.rest(v) - x) * -np.expm1(-0.2 * packed.run_dt[k])
        return x, squares

    def starts(self) -> list[float]:
        return [self.rest(self.packed.voltages[v]) for v in self.packed.start_voltage]

    def in_packed_order(self) -> tuple[float, list[float]]:
        """The sum of squares, and the state at the beginning of every run."""
        slots = self.starts() + [np.nan] * self.packed.n_slots
        total, begins = 0.0, []
        for k, row in enumerate(self.packed.runs):
            begins.append(slots[row[SOURCE]])
            slots[row[TARGET]], squares = self.run(k, begins[-1])
            total += self.packed.run_weight[k] * squares
        return total, begins

    def scheduled(self, order: Schedule, begins: list[float]) -> float:
        """The sum of squares in another order; every run must begin as it does in the first."""
        total = 0.0
        for first, last in pairwise(order.jobs):
            slots = self.starts() + [np.nan] * (order.n_slots - len(self.starts()))
            for walked in range(order.visits[first], order.visits[last]):
                k = order.run[walked]
                x = slots[order.source[walked]]
                assert x == pytest.approx(begins[k], rel=1e-12)
                end, squares = self.run(k, x)
                total += order.weight[walked] * squares
                if order.target[walked] >= 0:
                    slots[order.target[walked]] = end
        return total


@settings(max_examples=120, deadline=None)
@given(problems(), st.sampled_from([1, 2, 3, 7, 100]), st.booleans())
def test_any_order_gives_the_same_sum_and_is_well_formed(
    problem: Problem, n_jobs: int, anywhere: bool
) -> None:
    packed = problem.scored
    order = schedule(packed, n_jobs, anywhere)
    channel = Channel(packed)
    total, begins = channel.in_packed_order()
    assert channel.scheduled(order, begins) == pytest.approx(total, rel=1e-11, abs=1e-9)
    assert order.n_jobs <= max(1, n_jobs)
    assert n_jobs > 1 or len(set(order.run.tolist())) == len(order.run)  # no run twice
    scored = order.run[order.weight > 0]
    assert sorted(scored) == np.flatnonzero(packed.run_weight > 0).tolist()
    assert np.array_equal(order.weight[order.weight > 0], packed.run_weight[scored])
    assert order.source.min(initial=0) >= 0
    assert max(order.source.max(initial=0), order.target.max(initial=0)) < order.n_slots
    assert (order.target[order.target >= 0] >= len(packed.start_voltage)).all()
    for visit, (a, b) in enumerate(pairwise(order.visits)):
        assert a < b
        rows = packed.runs[order.run[a:b]]
        if order.voltage[visit] < 0:
            assert b == a + 1
            assert rows[0, KIND] != HELD
            continue
        assert (rows[:, KIND] == HELD).all()
        assert (packed.table_voltage[rows[:, TABLE]] == order.voltage[visit]).all()
        other = packed.table_dt[rows[:, TABLE]] != order.dt[visit]
        assert anywhere or not other.any()
        alone = (rows[:, N_SAMPLES] == 1) | (packed.run_weight[order.run[a:b]] == 0)
        assert alone[other].all()
    packed = problem.simulated
    rows = packed.runs[np.unique(schedule(packed, n_jobs, traced=True).run)]
    assert rows[rows[:, -1] != 0, N_SAMPLES].sum() == len(packed.sample_mV)  # every sample
