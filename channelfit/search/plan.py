"""The plan of a fit: a problem, and how to search for its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from channelfit.problem.experiment import (
    Problem,
    n_scored,
    rounding_floor,
    square_sum,
    total_weight,
)
from channelfit.problem.extreme_rates import CEILINGS, examples, extremes, voltages_of
from channelfit.problem.rate_bounds import Bounded
from channelfit.problem.recording import Recording, masks
from channelfit.reading.errors import Caution, InputError, shown
from channelfit.scoring.scorer import ChannelScorer, Scorer
from channelfit.scoring.stochastic import simulate_noisy
from channelfit.search.choose import DIRECTED, OPTIMIZERS, make_optimizer
from channelfit.search.cost import Cost, CostScorer
from channelfit.search.loop import StopRules, make_stop_rules
from channelfit.search.objective import Objective
from channelfit.search.optimizer import Optimizer
from channelfit.search.projection import Linear
from channelfit.search.sampling import sample_allowed
from channelfit.search.space import SearchSpace, middle

#: Distances, in the unit cube, from values on a bound at which the search may begin, and the tries
#: of each.
_HAIRS, _TRIES = (1e-14, 1e-12, 1e-10, 1e-8), 20
#: Candidates among which reasons for failures are looked for.
_EXAMPLES = 256


@dataclass(frozen=True)
class FitPlan:
    """A problem, and how to search for its parameters.

    Attributes:
        problem: the model and its experiments.
        optimizer: the name of the search method.
        settings, stop: its settings without `name`, and the stop rules, as the user wrote them;
            `make_optimizer` and `stop_rules` turn them into objects.
        document: the raw model document, overrides applied, without its `fit` section.
        file: where the `fit` section stands, from which its relative paths start.
        surrogate: whether the data are simulated from the parameters' values.
        noise_pA, data_seed: standard deviation and seed of the Gaussian noise of such data.
        seed: of the search.
        seeds: the number of whole searches, with the seeds from `seed` on.
        section: the raw `fit` section.
        model_file: where the model stands.
        constraints: bounds that candidates must keep besides the parameters' ranges.
        solved: names of parameters that follow from the others, at most one.
        prior_noise_pA: standard deviation of a sample, which weighs priors against the data.
        name: of the fit, in titles, the run folder and the summary: the fit file's own, else the
            model's.
        description, source: the fit file's.
        inherited: keys of the model's fit section that hold beside those of a fit file.
        temperature_stated: whether the model's temperature was given for this fit, and not by a
            model file that may be of other recordings.
        cautions: warnings on model and data.
        start: whether the search begins at the parameters' values, as one does that goes on from a
            saved fit.
        in_memory: whether protocols and recordings were given as arrays, so that a saved fit has to
            write them.
        method: makes a search method of the user's own from the number of free parameters and the
            seed; None for the one that `optimizer` names.
        cost: of the user's own, which is minimized; None for the weighted mean square.
    """

    #: Whether there are currents to simulate, and not only a cost.
    has_currents: ClassVar[bool] = True
    #: The optimizers that this kind of fit may name, and the functions that make them.
    optimizers: ClassVar[Mapping[str, Any]] = OPTIMIZERS

    problem: Problem
    optimizer: str
    settings: dict[str, Any]
    stop: dict[str, Any]
    document: dict[str, Any]
    file: Path
    surrogate: bool = False
    noise_pA: float = 0.0
    data_seed: int = 0
    seed: int = 0
    section: dict[str, Any] = field(default_factory=dict)
    model_file: Path = Path()
    constraints: tuple[Bounded, ...] = ()
    solved: tuple[str, ...] = ()
    prior_noise_pA: float = 0.0
    name: str = ""
    description: str = ""
    source: str = ""
    inherited: tuple[str, ...] = ()
    temperature_stated: bool = False
    cautions: tuple[Caution, ...] = ()
    start: bool = False
    in_memory: bool = False
    seeds: int = 1
    method: Callable[[int, int], Optimizer] | None = None
    cost: Cost | None = None

    @property
    def space(self) -> SearchSpace:
        """The space that is searched."""
        return SearchSpace(self.problem.parameters, self.solved)

    def objective(self, scorer: Scorer) -> Objective:
        """Return the objective that the search minimizes, scored by a scorer of this problem."""
        if self.cost is not None:
            assert isinstance(scorer, ChannelScorer), "a cost of one's own is one of currents"
            own = CostScorer(scorer, self.cost, self.problem)
            return Objective(self.space, own, self.constraints)
        return Objective(
            self.space,
            scorer,
            self.constraints,
            self._linear(),
            self._prior_weight(),
            floor=self._floor(scorer),
        )

    def _floor(self, scorer: Scorer) -> float:
        """Return the cost up to which all is rounding."""
        return rounding_floor(self.problem, scorer.dtype)

    def strange_rates(self, values: np.ndarray, dtype: str = "float64") -> list[str]:
        """Describe the extreme rates at parameters (n_parameters,), base units, in sentences."""
        groups: dict[str, list[str]] = {}
        for group in self.problem.groups:
            own, voltages = group.parameters(values[:, None])[:, 0], _voltages(group.problem)
            for extreme in extremes(group.problem.model, own, voltages, CEILINGS[dtype]):
                groups.setdefault(str(extreme), []).append(group.name)
        everywhere = len(self.problem.groups)
        return [
            text if len(names) == everywhere else f"{text} ({'; '.join(names)})"
            for text, names in groups.items()
        ]

    def failing_examples(self) -> list[str]:
        """Describe why candidates fail, each reason with the values of one of a few hundred."""
        draw = np.random.Generator(np.random.Philox(self.seed))
        unit = draw.random((self.space.n_free, _EXAMPLES))
        candidates = self.space.to_physical(unit)
        for group in self.problem.groups:
            own, voltages = group.parameters(candidates), _voltages(group.problem)
            if found := examples(group.problem.model, own, voltages):
                return [f"{group.name}: {text}" if group.name else text for text in found]
        return []

    def _linear(self) -> tuple[Linear, ...]:
        """Return the solved parameters, one or one for each cell, for `search.projection`."""
        if not self.solved:
            return ()
        problem, found = self.problem, []
        row_of = {p.name: row for row, p in enumerate(problem.parameters)}
        for name, proportional in problem.linear_parameters().items():
            for cell, p in problem.of_model(name).items():
                if p.name not in self.solved:
                    continue
                at_zero = None
                if proportional:
                    seen = [g.problem for g in problem.groups if cell in ("", g.cell)]
                    at_zero = sum(map(square_sum, seen)) / total_weight(problem)
                    at_zero += self._prior_weight() * p.prior.deviation(0.0) ** 2 if p.prior else 0
                scale = abs(middle(p)) or max(abs(p.lower), abs(p.upper))
                alone = cell if len(problem.cells) > 1 else ""
                found.append(Linear(row_of[p.name], p.lower, p.upper, scale, at_zero, alone))
        return tuple(found)

    def _prior_weight(self) -> float:
        """Return the cost, pA^2, of a squared standard deviation from a prior's center.

        n cost/(2 noise^2) + deviation^2/2 is the negative logarithm of the posterior; times
        2 noise^2/n it is in the cost's own unit.
        """
        if not any(p.prior for p in self.problem.parameters):
            return 0.0
        return self.prior_noise_pA**2 / n_scored(self.problem)

    def with_values(self, values: np.ndarray) -> FitPlan:
        """Return the same plan with values (n_parameters,), base units, as the model's own."""
        return replace(self, problem=self.problem.with_values(values))

    @property
    def stop_rules(self) -> StopRules:
        """The rules that end the search."""
        return make_stop_rules(self.stop, self.settings, self.optimizer in DIRECTED)

    def make_optimizer(self, xp: Any = np, initial: Any = None) -> Any:
        """Make the optimizer; arguments as in `choose.make_optimizer`.

        Without initial points it begins with the parameters' values, where `start` says so; and
        where there are constraints, the rest of its first population, if it has one, is drawn
        among the candidates that they allow.
        """
        if self.method is not None:
            return self.method(self.space.n_free, self.seed)
        make = partial(
            make_optimizer,
            self.optimizer,
            self.settings,
            self.space.n_free,
            self.seed,
            xp,
            makers=self.optimizers,
        )
        if initial is not None:
            return make(initial)
        begin = self.starting_point()
        optimizer = make(begin)
        settings = optimizer.settings
        population = int(settings.get("population", 0)) * int(settings.get("islands", 1))
        if self.constraints and population:
            random = np.random.Generator(np.random.Philox(self.seed))
            try:
                first = sample_allowed(self.space, self.constraints, population, random)
            except InputError as error:
                raise error.at(self.file, "fit") from None
            if begin is not None:
                first[:, :1] = begin
            optimizer = make(first)
        return optimizer

    def starting_point(self) -> np.ndarray | None:
        """Return the starting point (n_free, 1) in the unit cube; None to begin anywhere.

        Raises: InputError for values that the ranges, or the bounds on rates, do not allow.
        """
        if not self.start:
            return None
        space = self.space
        try:
            for place in space.free:
                if space.parameters[place].value is None:
                    raise InputError(f"{space.parameters[place].name} has none")
            values = np.array([p.value for p in space.parameters], dtype=float)
            unit = np.asarray(space.to_unit(values[:, None]))
        except InputError as error:
            raise InputError(
                f"the search cannot begin at the parameters' values ({error.message}); change "
                f"them, or begin anywhere with start: none",
                self.file,
                error.key or "fit.start",
            ) from None
        # a value on the very bound of a rate may be beyond it by rounding, so: a hair beside it
        random = np.random.Generator(np.random.Philox(self.seed))
        for reach in (0.0, *np.repeat(_HAIRS, _TRIES)):
            hair = reach * random.uniform(-1, 1, unit.shape)
            beside: np.ndarray = np.clip(unit + hair, 0.0, 1.0)
            outside = [
                c.name for c in self.constraints if not c.allowed(space.to_physical(beside)).all()
            ]
            if not outside:
                return beside
        raise InputError(
            f"the search cannot begin at the parameters' values, which break the bounds of "
            f"{', '.join(outside)}; change them, or begin anywhere with start: none",
            self.file,
            "fit.start",
        )


def _voltages(problem: Problem) -> np.ndarray:
    """Return the voltages (n,) mV of all experiments of a problem."""
    return voltages_of((e.protocol for e in problem.experiments), problem.model.ligands)


def checked(plan: FitPlan) -> FitPlan:
    """Return the same plan. Raises InputError, with file and key, if the search would refuse it."""
    if not isinstance(plan.optimizer, str):
        raise InputError(
            f"a name was expected, not {shown(plan.optimizer)}", plan.file, "fit.optimizer.name"
        )
    try:
        n_free = plan.space.n_free
    except InputError as error:
        raise error.at(plan.model_file) from None
    try:
        make_optimizer(plan.optimizer, plan.settings, n_free, plan.seed, makers=plan.optimizers)
        make_stop_rules(plan.stop, plan.settings)
    except InputError as error:
        raise error.at(plan.file, "fit") from None
    plan.starting_point()
    return plan


def with_data(plan: FitPlan, scorer: ChannelScorer) -> FitPlan:
    """Return the same plan with its data: simulated where it asks for that, else as they are.

    Arguments:
        scorer: simulates; of this plan's problem.
    """
    if not plan.surrogate:
        return plan
    try:
        problem = simulate_surrogate(plan.problem, scorer, plan.noise_pA, plan.data_seed)
    except InputError as error:
        raise error.at(plan.model_file) from None
    return replace(plan, problem=problem)


def simulate_surrogate(
    problem: Problem, scorer: ChannelScorer, noise_pA: float = 0.0, seed: int = 0
) -> Problem:
    """Return the problem with data simulated from the parameters' values.

    With the noise of channels these are drawn one by one.

    Arguments:
        scorer: simulates; of this problem's model and protocols.
        noise_pA: standard deviation of the Gaussian noise that is added to every sample.
        seed: of the noise; the same seed gives the same noise on every machine and backend.

    Raises: InputError when a parameter has no value, or the values give no finite current.
    """
    values = problem.values()
    random = np.random.Generator(np.random.Philox(seed))
    if problem.noise is None:
        currents = [c[:, :, 0] for c in scorer.simulate(values[:, None])]
    else:
        currents = simulate_noisy(problem, values, random)
    experiments = []
    for k, (experiment, current) in enumerate(zip(problem.experiments, currents, strict=True), 1):
        weight = masks([], experiment.protocol)
        if not np.all(np.isfinite(current[weight > 0])):
            raise InputError(
                f"under {experiment.title} the parameters' values give no finite current, "
                "so no surrogate data; change the values",
                key="parameters",
            )
        data = current + noise_pA * random.standard_normal(current.shape)
        noise = f"noise {noise_pA:g} pA" if problem.noise is None else "channels one by one"
        source = f"simulated from the parameters' values, {noise}, seed {seed}"
        recording = Recording(experiment.protocol.times_ms, data, weight, source=f"{source} ({k})")
        experiments.append(replace(experiment, recording=recording))
    return replace(problem, experiments=tuple(experiments))
