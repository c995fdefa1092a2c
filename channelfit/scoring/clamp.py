"""Scores, traces and derivatives of a clamped channel on the CPU; see `kernels.clamp_step`."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from channelfit.model.channel import Parameter
from channelfit.problem.clamp import Clamp
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.run_tree import by_sweep
from channelfit.problem.statuses import NOT_FINITE, OK, OUT_OF_CLAMP
from channelfit.scoring.cpu import shared_kernel
from channelfit.scoring.kernels.clamp_cpu import UNLOADED, ClampCpuSource
from channelfit.scoring.layout.clamp_grid import (
    COMMAND,
    LENGTH,
    LEVELS,
    PER_STEP,
    RISE,
    WIDTH,
    ClampGrid,
    grid,
)
from channelfit.scoring.layout.clamp_samples import SampleRows, sample_rows
from channelfit.scoring.layout.low_pass import N_POLY, PER_MODE, modes, step_tables
from channelfit.scoring.machine.machine_code import generated
from channelfit.scoring.machine.threads import usable_cores
from channelfit.scoring.scorer import ChannelScorer, Linearization, Score

#: Of meshes whose samples are read one by one.
NO_ROWS = SampleRows(
    np.empty((0, N_POLY + 1)), np.empty(0, np.int64), np.empty((0, 2), np.int64), 0.0
)
#: The error on the finest mesh beyond which a candidate fails: nothing holds its membrane.
_HOPELESS = 5e-3
#: ms: steps of a rest. The first are with no current through the series resistance.
_RESTS = np.concatenate([np.full(UNLOADED, 1e9), 1e-3 * 4.0 ** np.arange(21)])


def common_clamp(problem: Problem) -> Clamp:
    """Return the clamp of all experiments of a problem.

    Raises ValueError where they differ: such a problem has several groups, each with a scorer.
    """
    clamps = {e.clamp for e in problem.experiments}
    if len(clamps) != 1 or None in clamps:
        raise ValueError("a scorer serves experiments of one clamp")
    return problem.experiments[0].clamp or Clamp()


@dataclass(frozen=True, eq=False)
class Laid:
    """A mesh with its samples, tables of the filter beside its steps, and the steps of a rest."""

    grid: ClampGrid
    samples: SampleRows
    steps: np.ndarray
    rests: np.ndarray
    modes: np.ndarray


def laid(experiments: list[Experiment], clamp: Clamp, level: int, scored: bool) -> Laid:
    """Return the mesh of some experiments, of samples that count or of all, as kernels read it."""
    pairs = [
        (e.recording.current_pA, e.weight * e.recording.weight)
        if scored and e.recording is not None
        else (None, None)
        for e in experiments
    ]
    made = grid(
        [e.protocol for e in experiments], [p[0] for p in pairs], [p[1] for p in pairs], level
    )
    constants, tables = np.zeros(1), np.empty((len(made.steps), 0))
    width = WIDTH
    if clamp.low_pass is not None:
        poles, residues = modes(clamp.low_pass)
        constants = np.concatenate([poles, residues]).view(float)
        tables = step_tables(poles, made.steps[:, LENGTH]).reshape(len(made.steps), -1)
        width += len(poles) * PER_MODE
    rests = np.zeros((len(made.holding), len(_RESTS), width))
    rests[..., LENGTH], rests[..., PER_STEP] = _RESTS, 1 / _RESTS
    rests[..., COMMAND:RISE] = made.holding[:, None, None]
    fixed = scored and not clamp.delay.free_symbols
    samples = sample_rows(made, float(clamp.delay)) if fixed else NO_ROWS
    steps = np.ascontiguousarray(np.hstack([made.steps, tables]))
    return Laid(made, samples, steps, rests, constants)


class Raw(NamedTuple):
    """The results of a kernel: sums of squares, their derivatives, and traces; see `_launched`."""

    cost: np.ndarray
    status: np.ndarray
    error: np.ndarray
    trace: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray


class ClampScorer(ChannelScorer):
    """Scores and simulates a problem with a clamp, in float64."""

    backend, path, paths = "cpu", "stepping", ("stepping",)
    #: The class that writes the text of the kernel.
    source_kind: Any = ClampCpuSource

    def __init__(self, problem: Problem, dtype: str = "float64", path: str = "auto") -> None:
        self.problem, self.dtype = problem, dtype
        self.clamp = common_clamp(problem)
        self.free = [k for k, p in enumerate(problem.model.parameters) if not p.fixed]
        low_pass = self.clamp.low_pass
        self.n_modes = 0 if low_pass is None else len(modes(low_pass)[0])
        self.source = self.source_kind(problem.model, self.clamp, (), self.n_modes)
        self.source_text = self.source.text
        self.source_hash = hashlib.sha256(self.source_text.encode()).hexdigest()[:16]
        self.n_threads = usable_cores()
        self._meshes: dict[tuple[int, bool], Laid] = {}
        self._first_levels: dict[bool, int] = {}

    @cached_property
    def _differentiated(self) -> Any:
        return self.source_kind(self.problem.model, self.clamp, self.free, self.n_modes)

    @property
    def has_data(self) -> bool:
        """True where a recording has a sample that counts."""
        recordings = [e.recording for e in self.problem.fitted if e.recording is not None]
        return any(recording.weight.any() for recording in recordings)

    def grid(self, level: int, scored: bool) -> Laid:
        """Return the mesh of a level, of the samples that count or of all."""
        key = (level, scored)
        if key not in self._meshes:
            experiments = self.problem.fitted if scored else list(self.problem.experiments)
            self._meshes[key] = laid(experiments, self.clamp, level, scored)
        return self._meshes[key]

    def simulate(self, parameters: np.ndarray) -> list[np.ndarray]:
        parameters = self._checked(parameters)
        trace = np.full((self.grid(0, False).grid.times.size, parameters.shape[1]), np.nan)
        found = self._refined(False, parameters, trace=trace)
        trace[:, found.status != OK] = np.nan
        return [by_sweep(trace, places) for places in self.grid(0, False).grid.outputs]

    def score(self, parameters: np.ndarray) -> Score:
        found = self._refined(False, self._scorable(parameters))
        return Score(found.cost, found.status)

    def linearize(self, parameters: np.ndarray) -> Linearization:
        """Return cost, gradient and Hessian: the derivatives of the discrete steps."""
        return self._refined(bool(self.free), self._scorable(parameters))

    def _first_level(self, scored: bool) -> int:
        """Return the mesh on which candidates begin: that on which the model's own values end.

        A parameter without a value has the middle of its range.
        """
        if scored not in self._first_levels:
            values = np.array([_typical(p) for p in self.problem.model.parameters])[:, None]
            errors = (self._run(False, values, k, not scored)[1][0] for k in range(len(LEVELS) - 1))
            within = [e < level.tolerance for e, level in zip(errors, LEVELS, strict=False)]
            self._first_levels[scored] = within.index(True) if True in within else 0
        return self._first_levels[scored]

    def _refined(
        self, derived: bool, parameters: np.ndarray, trace: np.ndarray | None = None
    ) -> Linearization:
        """Compute candidates on the coarsest mesh, and on finer ones while errors are large."""
        n_parameters, n = parameters.shape
        out = Linearization.empty(n_parameters, n)
        left = np.arange(n)
        for level in range(self._first_level(trace is None), len(LEVELS)):
            some = np.ascontiguousarray(parameters[:, left])
            part, error, predicted = self._run(derived, some, level, trace is not None)
            last = level + 1 == len(LEVELS)
            if last:
                lost = (part.status == OK) & ~(error < _HOPELESS)
                part.status[lost] = np.where(np.isfinite(error[lost]), OUT_OF_CLAMP, NOT_FINITE)
            done = np.full(len(left), True) if last else error < LEVELS[level].tolerance
            self._keep(out, left[done], part, done)
            if trace is not None:
                trace[:, left[done]] = predicted[:, done]
            left = left[~done]
            if not len(left):
                break
        return out

    @staticmethod
    def _keep(out: Linearization, places: np.ndarray, part: Linearization, which: Any) -> None:
        good = part.status[which] == OK
        out.cost[places] = np.where(good, part.cost[which], np.inf)
        out.status[places] = part.status[which]
        if part.gradient.size:
            out.gradient[:, places] = np.where(good, part.gradient[:, which], 0.0)
            out.hessian[:, :, places] = np.where(good, part.hessian[:, :, which], 0.0)

    def _run(
        self, derived: bool, parameters: np.ndarray, level: int, tracing: bool
    ) -> tuple[Linearization, np.ndarray, np.ndarray]:
        """Return scores, with derivatives if `derived`, the errors (n_candidates,), and traces."""
        n_parameters, n = parameters.shape
        raw = self._launched(derived, parameters, level, tracing)
        total = 1.0 if tracing else self.grid(level, True).grid.weight.sum()
        constant = self.grid(level, not tracing).samples.constant
        cost, status = (raw.cost + constant) / total, raw.status
        status[(status == OK) & ~np.isfinite(cost) & (raw.error < LEVELS[level].tolerance)] = (
            NOT_FINITE
        )
        if not derived:
            empty = np.empty((0, 0))
            return Linearization(cost, status, empty, empty), raw.error, raw.trace
        gradient = np.zeros((n_parameters, n))
        hessian = np.zeros((n_parameters, n_parameters, n))
        free, n_free = np.array(self.free), len(self.free)
        lower = np.tri(n_free, dtype=bool)[..., None]
        bend = np.where(lower, raw.hessian, raw.hessian.transpose(1, 0, 2))
        gradient[free] = 2.0 / total * raw.gradient
        hessian[free[:, None], free] = 2.0 / total * bend
        return Linearization(cost, status, gradient, hessian), raw.error, raw.trace

    def _launched(self, derived: bool, parameters: np.ndarray, level: int, tracing: bool) -> Raw:
        """Run the kernel on the mesh of a level."""
        source = self._differentiated if derived else self.source
        mesh, n = self.grid(level, not tracing), parameters.shape[1]
        n_free = len(source.step.free)
        out = Raw(
            np.zeros(n),
            np.zeros(n, np.int8),
            np.zeros(n),
            np.empty((mesh.grid.times.size, n) if tracing else (0, n)),
            np.zeros((n_free, n)),
            np.zeros((n_free, n_free, n)),
        )
        arguments: list[Any] = [
            mesh.grid.holding,
            mesh.grid.sweeps,
            mesh.steps,
            mesh.grid.kinds,
            mesh.rests,
        ]
        arguments += [mesh.modes, mesh.grid.times, mesh.grid.data, mesh.grid.weight]
        arguments += mesh.samples[:3]
        arguments += [*out[:4], tracing, *out[4:]]
        run = generated(source.text, "runSweeps")
        shared_kernel(run, parameters, arguments, source.lanes, self.n_threads)
        return out


def _typical(p: Parameter) -> float:
    """Return the value of a parameter, or the middle of its range on its own scale."""
    if p.value is not None:
        return p.value
    return math.sqrt(p.lower * p.upper) if p.scale == "log" else 0.5 * (p.lower + p.upper)
