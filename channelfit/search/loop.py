"""The one loop of every search: take a generation, keep the best, stop when a rule says so.

It sees costs and candidates, never a model, and serves every optimizer and every backend.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from channelfit.problem.statuses import FAILURES, N_STATUSES
from channelfit.reading.errors import InputError
from channelfit.reading.keys import STOP
from channelfit.search.objective import Generation, Objective
from channelfit.search.optimizer import Search
from channelfit.search.settings import number, unknown, whole
from channelfit.search.space import SearchSpace

DEFAULT_GENERATIONS = 300

HISTORY_COLUMNS = np.dtype(
    [
        ("generation", np.int64),
        ("evaluations", np.int64),
        ("seconds", np.float64),
        ("best_cost", np.float64),
        ("median_cost", np.float64),
        ("failed", np.float64),
    ]
)


@dataclass(frozen=True)
class StopRules:
    """Rules for the end of a search; the first that holds at the end of a generation ends it.

    None switches a rule off.

    Arguments:
        generations: the number that have been scored; the first, random one counts.
        cost: the target to which the best cost has come down.
        seconds: the time that has passed.
        evaluations: the candidates that have been scored; a generation is never cut short.
        stagnation: the generations in a row that have passed without a gain in the best cost of
            more than `tolerance` times that cost.
        tolerance: the relative gain that counts.

    Raises: InputError for values that could never, or always, hold.
    """

    generations: int | None = None
    cost: float | None = None
    seconds: float | None = None
    evaluations: int | None = None
    stagnation: int | None = None
    tolerance: float = STOP["tolerance"].default

    def __post_init__(self) -> None:
        for name in ("generations", "evaluations", "stagnation"):
            if (value := getattr(self, name)) is not None:
                whole(value, f"stop.{name}", least=1)
        if self.cost is not None:
            number(self.cost, "stop.cost")
        if self.seconds is not None and number(self.seconds, "stop.seconds") <= 0:
            raise InputError(f"must be above 0, not {self.seconds:g}", key="stop.seconds")
        if number(self.tolerance, "stop.tolerance") < 0:
            raise InputError(f"must not be negative, not {self.tolerance:g}", key="stop.tolerance")

    @property
    def any(self) -> bool:
        """True if any rule is given by which a search ends."""
        return any(
            getattr(self, rule.name) is not None
            for rule in fields(self)
            if rule.name != "tolerance"
        )


@dataclass(frozen=True, eq=False)
class Progress:
    """The state of a search after a generation.

    Attributes:
        generation: the number of generations that have been scored.
        best_cost: the lowest cost so far, inf while there is none.
        evaluations: the number of candidates that have been scored.
        seconds: time since the search began.
        seconds_left: the least time that the rules on generations, evaluations and seconds leave at
            this pace; None when none of them is on.
        parameters: (n_parameters,) the best so far in base units, None while no cost was finite.
        stage: of a search that has several, such as scanning; else empty.
        median_cost: as in a row of the history, and failed: the share of this generation's
            candidates without a cost.
    """

    generation: int
    best_cost: float
    evaluations: int
    seconds: float
    seconds_left: float | None
    parameters: np.ndarray | None
    stage: str = ""
    median_cost: float = math.nan
    failed: float = 0.0

    @property
    def candidates_per_second(self) -> float:
        """The average pace of the search."""
        return self.evaluations / max(self.seconds, 1e-9)


@dataclass(frozen=True, eq=False)
class FitResult:
    """The result of a search, and how it was found.

    Attributes:
        names, values: of all parameters of the model, fixed ones too; values in base units.
        notes: for each parameter "", "fixed", "at lower bound" or "at upper bound".
        cost: of the best candidate, by the scorer's `rescore`.
        generations: the number that were scored.
        evaluations: the number of candidates that were scored, not of calls.
        seconds: duration of the search.
        history: one row for each generation with the fields of `HISTORY_COLUMNS`. best_cost there
            is the best so far; median_cost is that of the generation's finite costs, or of an
            evenly spaced sample of them on a GPU; failed is the share of its candidates without
            one.
        stop_reason: the rule that ended the search, in words.
        seed, optimizer, settings: how it was searched.
        failures: the number of candidates that failed, by the reason in words.
        backend, dtype, source_hash: of the scorer.
        agreement: of independent starts, as `Agreement.as_plain` gives it; None for a search
            without.
    """

    names: tuple[str, ...]
    values: np.ndarray
    notes: tuple[str, ...]
    cost: float
    generations: int
    evaluations: int
    seconds: float
    history: np.ndarray = field(repr=False)
    stop_reason: str
    seed: int
    optimizer: str
    settings: Mapping[str, float]
    failures: Mapping[str, int]
    backend: str = ""
    dtype: str = ""
    source_hash: str = ""
    agreement: Mapping[str, Any] | None = None

    @property
    def parameters(self) -> dict[str, float]:
        """The best values by the names of the parameters, base units."""
        return {name: float(value) for name, value in zip(self.names, self.values, strict=True)}


@dataclass
class _Tally:
    """The generations that the loop has seen so far, and the best candidate among them.

    Attributes:
        clock: returns the time in seconds. started: its time when the search began.
        exact: a best cost, and the cost of the same candidate by the scorer's `rescore`.
        milestone, milestone_generation: the last best cost that counted as a gain, and its
            generation.
    """

    clock: Callable[[], float]
    started: float
    generations: int = 0
    evaluations: int = 0
    seconds: float = 0.0
    cost: float = math.inf
    values: np.ndarray | None = None
    exact: tuple[float, float] | None = None
    milestone: float = math.inf
    milestone_generation: int = 0
    failures: np.ndarray = field(default_factory=lambda: np.zeros(N_STATUSES, np.int64))
    history: list[tuple[float, ...]] = field(default_factory=list)


def optimize(
    optimizer: Search,
    objective: Objective,
    stop: StopRules,
    on_generation: Callable[[Progress], object] | None = None,
    clock: Callable[[], float] | None = None,
) -> FitResult:
    """Search for the parameters of lowest cost.

    Ctrl-C ends the search with the best so far. A second one after that, or one before the first
    generation is scored, is an ordinary KeyboardInterrupt.

    Arguments:
        optimizer: proposes candidates.
        objective: scores them.
        stop: when to stop.
        on_generation: called after every generation.
        clock: returns the time in seconds; in a resumed search it includes the time of the earlier
            run. None for the time of the process.

    Raises: InputError when no stop rule is on and the optimizer has no end of its own, and when no
    candidate had a finite cost.
    """
    if not (stop.any or optimizer.ends_by_itself):
        raise InputError("at least one rule must say when to stop", key="stop")
    clock = clock or time.perf_counter
    tally = _Tally(clock, started=clock())
    reason: str | None = None
    try:
        for generation in optimizer.search(
            objective, stop.cost, _most_generations(stop, optimizer)
        ):
            _record(tally, generation, stop.tolerance)
            reason = _target_reached(stop, tally, objective) or _reason_to_stop(stop, tally)
            if on_generation is not None:
                on_generation(_progress(tally, generation, stop))
            if reason is not None:
                break
    except KeyboardInterrupt:
        if not tally.generations:
            raise
        reason = reason or "interrupted"
    if reason is None:
        reason = optimizer.ended or "nothing more to score"
        if stop.cost is not None:
            reason += f"; the target of {stop.cost:g} was not reached"
    return _result(tally, optimizer, objective, reason)


def _most_generations(stop: StopRules, optimizer: Search) -> float:
    """Return the most generations that there can be, as far as the rules tell in advance."""
    most = math.inf if stop.generations is None else stop.generations
    if stop.evaluations is not None:
        population = int(optimizer.settings.get("population", 1))
        most = min(most, -(-stop.evaluations // population))
    return most


def _record(tally: _Tally, generation: Generation, tolerance: float) -> None:
    """Add a scored generation to the tally.

    The tally changes in the last lines only, so that an interrupt finds a whole generation in it,
    or nothing of it.
    """
    best, values = tally.cost, tally.values
    if generation.best < best:
        best, values = generation.best, generation.values
    failures = tally.failures + generation.failures
    seconds = tally.clock() - tally.started
    n_candidates = generation.n_candidates
    generations, evaluations = tally.generations + 1, tally.evaluations + n_candidates
    row = (generations, evaluations, seconds, best, generation.median, generation.failed)
    if best < math.inf and not best >= tally.milestone - tolerance * abs(tally.milestone):
        tally.milestone, tally.milestone_generation = best, generations
    tally.cost, tally.values, tally.failures = best, values, failures
    tally.generations, tally.evaluations, tally.seconds = generations, evaluations, seconds
    tally.history.append(row)


def _target_reached(stop: StopRules, tally: _Tally, objective: Objective) -> str | None:
    """Say in words that the best cost is down to the target; None if it is not.

    The scorer's `rescore` must be as well, since that is the cost which the user sees.
    """
    if stop.cost is None or tally.values is None or tally.cost > stop.cost:
        return None
    if tally.exact is None or tally.exact[0] != tally.cost:
        tally.exact = tally.cost, objective.rescore(tally.values)
    cost = tally.exact[1]
    return f"cost {cost:.6g} reached the target {stop.cost:g}" if cost <= stop.cost else None


def _reason_to_stop(stop: StopRules, tally: _Tally) -> str | None:
    """Say in words which rule holds first; None to go on."""
    idle = tally.generations - tally.milestone_generation
    if stop.generations is not None and tally.generations >= stop.generations:
        return f"{_plural(tally.generations, 'generation')} done"
    if stop.evaluations is not None and tally.evaluations >= stop.evaluations:
        return f"{_plural(tally.evaluations, 'candidate')} scored of {stop.evaluations} allowed"
    if stop.seconds is not None and tally.seconds >= stop.seconds:
        return f"{tally.seconds:.3g} s passed of {stop.seconds:g} s allowed"
    if stop.stagnation is not None and idle >= stop.stagnation:
        return f"no relative gain above {stop.tolerance:g} in {_plural(idle, 'generation')}"
    return None


def _progress(tally: _Tally, generation: Generation, stop: StopRules) -> Progress:
    left = []
    if stop.seconds is not None:
        left.append(stop.seconds - tally.seconds)
    for limit, done in (
        (stop.generations, tally.generations),
        (stop.evaluations, tally.evaluations),
    ):
        if limit is not None and done:
            left.append((limit - done) * tally.seconds / done)
    return Progress(
        generation=tally.generations,
        best_cost=tally.cost,
        evaluations=tally.evaluations,
        seconds=tally.seconds,
        seconds_left=max(min(left), 0.0) if left else None,
        parameters=None if tally.values is None else tally.values.copy(),
        stage=generation.stage,
        median_cost=generation.median,
        failed=generation.failed,
    )


def _result(tally: _Tally, optimizer: Search, objective: Objective, reason: str) -> FitResult:
    space, scorer = objective.space, objective.scorer
    failures = {reason: int(tally.failures[code]) for code, reason in FAILURES.items()}
    if tally.values is None:
        counts = ", ".join(f"{n} {reason}" for reason, n in failures.items() if n)
        raise InputError(
            f"no candidate could be scored; of {_plural(tally.evaluations, 'candidate')}, {counts}"
        )
    return FitResult(
        names=tuple(parameter.name for parameter in space.parameters),
        values=tally.values,
        notes=_notes(space, tally.values),
        cost=objective.rescore(tally.values),
        generations=tally.generations,
        evaluations=tally.evaluations,
        seconds=tally.clock() - tally.started,
        history=np.array(tally.history, dtype=HISTORY_COLUMNS),
        stop_reason=reason,
        seed=optimizer.seed,
        optimizer=optimizer.name,
        settings=dict(optimizer.settings),
        failures={reason: n for reason, n in failures.items() if n},
        backend=scorer.backend,
        dtype=scorer.dtype,
        source_hash=scorer.source_hash,
        agreement=None if optimizer.agreement is None else optimizer.agreement.as_plain(),
    )


def _notes(space: SearchSpace, values: np.ndarray) -> tuple[str, ...]:
    notes = []
    for parameter, value in zip(space.parameters, values, strict=True):
        if parameter.fixed:
            notes.append("fixed")
        elif value == parameter.lower:
            notes.append("at lower bound")
        else:
            notes.append("at upper bound" if value == parameter.upper else "")
    return tuple(notes)


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def make_stop_rules(
    stop: Mapping[str, Any] | None = None,
    optimizer_settings: Mapping[str, Any] | None = None,
    by_itself: bool = False,
) -> StopRules:
    """Build stop rules from the settings under `stop:` and `optimizer: generations:`.

    Generations default to 300, whatever other rules there are, so that every search ends.

    Arguments:
        by_itself: whether the search ends by itself; it has no such default.

    Raises: InputError for unknown rules, bad values, and two different numbers of generations.
    """
    stop, optimizer_settings = dict(stop or {}), optimizer_settings or {}
    known = tuple(rule.name for rule in fields(StopRules))
    for name in stop:
        if name not in known:
            raise InputError(unknown("stop rule", name, known), key=f"stop.{name}")
    rules = StopRules(**{name: value for name, value in stop.items() if value is not None})
    generations = optimizer_settings.get("generations")
    if generations is not None:
        whole(generations, "optimizer.generations", least=1)
    if None not in (generations, rules.generations) and generations != rules.generations:
        raise InputError(
            f"{rules.generations}, but optimizer.generations says {generations}",
            key="stop.generations",
        )
    default = None if by_itself else DEFAULT_GENERATIONS
    return replace(rules, generations=rules.generations or generations or default)
