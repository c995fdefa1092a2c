"""What to fit: a model, its experiments, and how to search; from YAML, and back into it.

The `fit` section stands in the model file, or in a file of its own beside `model: path`.
"""

from __future__ import annotations

import copy
import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.functions.function import is_function
from channelfit.model.channel import ChannelModel
from channelfit.model.printed_form import is_printed_form
from channelfit.problem.experiment import Experiment, Problem, mean_square, n_scored, rounding_floor
from channelfit.problem.extreme_rates import CEILINGS, examples, extremes, voltages_of
from channelfit.problem.plausibility import (
    Seen,
    fit_cautions,
    protocol_cautions,
    recording_cautions,
)
from channelfit.problem.protocol import Protocol, load_protocol
from channelfit.problem.rate_bounds import Bounded, read_rate_bounds, tied_bounds
from channelfit.problem.recording import Recording, load_recording, masks
from channelfit.problem.waves import Constant, Ramp, Segment, Sines
from channelfit.reading.cautions import Caution, each_once
from channelfit.reading.documents import Section, dump_yaml, parse_yaml
from channelfit.reading.errors import InputError
from channelfit.reading.keys import KEYS
from channelfit.reading.units import shown
from channelfit.scoring.scorer import Scorer, make_scorer
from channelfit.search.choose import DIRECTED, make_optimizer
from channelfit.search.joined_files import (
    build_fitted_model,
    inherited_keys,
    joined_documents,
    moved,
    read_titles,
)
from channelfit.search.loop import StopRules, make_stop_rules
from channelfit.search.objective import Objective
from channelfit.search.projection import Linear
from channelfit.search.space import SearchSpace, middle

DEFAULT_OPTIMIZER, FOR_A_POPULATION = "hybrid", "genetic"
#: Where a saved fit has told what its values are, what the model was described as follows.
_BEFORE = " Of the model before this fit: "
#: Of the unit cube: how far beside values on a bound the search may begin, and tries of each.
_HAIRS, _TRIES = (1e-14, 1e-12, 1e-10, 1e-8), 20
#: What stands above a saved fit.
_SAVED = """\
# Saved by channelfit: each value below is the best that a search found. `start: values` in the fit
# section makes the next `channelfit optimize` of this file begin there; with start: none, or
# --set fit.start=none, it begins anywhere.
"""

_EXAMPLE = """
fit:
  protocols: [../protocols/activation.yaml]        # data simulated from the parameters' values
  surrogate: {noise: 10 pA, seed: 1}
  optimizer: {name: genetic, population: 1120, generations: 300}
or, to fit a recording, in place of protocols and surrogate:
  experiments:
    - protocol: ../protocols/activation.yaml
      recording:
        file: cell.csv
        time: {column: time, unit: ms}
        current: {columns: all, unit: pA}"""

#: Candidates among which reasons for failures are looked for.
_EXAMPLES = 256


@dataclass(frozen=True)
class Fit:
    """A problem and the search that is wanted for it.

    settings, stop: as the user wrote them, without `name`; `stop_rules` and `make_optimizer` turn
    them into objects. seed: of the search.
    document: the raw model document, overrides applied, without `fit`; section: the raw `fit`.
    file: where the `fit` section stands and its relative paths start; model_file: the model's.
    surrogate: whether the data were simulated, with Gaussian noise of standard deviation noise_pA.
    constraints: what candidates must keep to besides the parameters' ranges. solved: names of
    parameters that follow from the others, at most one. prior_noise_pA: of a sample, by which
    priors are weighed against the data. name: of the fit, in titles, the run folder and the
    summary: the fit file's own, else the model's. description, source: the fit file's.
    inherited: keys of the model's fit section that hold beside those of a fit file. cautions: what
    looks wrong in model and data. start: whether the search begins at the parameters' values, as
    one does that goes on from a saved fit.
    """

    problem: Problem
    optimizer: str
    settings: dict[str, Any]
    stop: dict[str, Any]
    document: dict[str, Any]
    file: Path
    surrogate: bool = False
    noise_pA: float = 0.0
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
    cautions: tuple[Caution, ...] = ()
    start: bool = False

    @property
    def space(self) -> SearchSpace:
        """The space that is searched."""
        return SearchSpace(self.problem.model.parameters, self.solved)

    def objective(self, scorer: Scorer | None) -> Objective:
        """What the search minimizes, scored by a scorer of this problem."""
        return Objective(
            self.space,
            scorer,
            self.constraints,
            self._linear(),
            self._prior_weight(),
            floor=0.0 if scorer is None else self._floor(scorer),
        )

    def _floor(self, scorer: Scorer) -> float:
        """The cost up to which all is rounding."""
        return rounding_floor(self.problem, scorer.dtype)

    def strange_rates(self, values: np.ndarray, dtype: str = "float64") -> list[str]:
        """What `extremes` finds at parameters (n_parameters,), base units, in sentences."""
        found = extremes(self.problem.model, values, self._voltages(), CEILINGS[dtype])
        return [str(extreme) for extreme in found]

    def failing_examples(self) -> list[str]:
        """Why candidates fail, each with the values of one: looked for among a few hundred."""
        if not isinstance(self.problem, Problem):
            return []  # a function has no rates
        draw = np.random.Generator(np.random.Philox(self.seed))
        unit = draw.random((self.space.n_free, _EXAMPLES))
        return examples(self.problem.model, self.space.to_physical(unit), self._voltages())

    def _voltages(self) -> np.ndarray:
        return voltages_of(e.protocol for e in self.problem.experiments)

    def _linear(self) -> Linear | None:
        """The solved parameter, as `optimizers.projection` wants it."""
        model = self.problem.model
        for place, p in enumerate(model.parameters):
            if p.name not in self.solved:
                continue
            at_zero = None
            if model.linear_parameters()[p.name]:
                none = self._prior_weight() * p.prior.deviation(0.0) ** 2 if p.prior else 0.0
                at_zero = mean_square(self.problem) + none
            largest = max(abs(p.lower), abs(p.upper))
            return Linear(place, p.lower, p.upper, abs(middle(p)) or largest, at_zero)
        return None

    def _prior_weight(self) -> float:
        """pA^2 that a squared standard deviation from a prior's center costs.

        n cost/(2 noise^2) + deviation^2/2 is the negative logarithm of the posterior; times
        2 noise^2/n it is in the cost's own unit.
        """
        if not any(p.prior for p in self.problem.model.parameters):
            return 0.0
        return self.prior_noise_pA**2 / n_scored(self.problem)

    @property
    def stop_rules(self) -> StopRules:
        """When the search ends."""
        return make_stop_rules(self.stop, self.settings, self.optimizer in DIRECTED)

    def make_optimizer(self, xp: Any = np, initial: Any = None) -> Any:
        """The optimizer, ready to ask; arguments as in `optimizers.make_optimizer`.

        Without initial points it begins with the parameters' values, where that is wanted; and
        where there are constraints, the rest of its first population, if it has one, is drawn from
        what they allow.
        """
        make = partial(
            make_optimizer, self.optimizer, self.settings, self.space.n_free, self.seed, xp
        )
        if initial is not None:
            return make(initial)
        begin = self.starting_point()
        optimizer = make(begin)
        population = optimizer.settings.get("population")
        if self.constraints and population:
            random = np.random.Generator(np.random.Philox(self.seed))
            try:
                first = self.objective(None).sample(int(population), random)
            except InputError as error:
                raise error.at(self.file, "fit") from None
            if begin is not None:
                first[:, :1] = begin
            optimizer = make(first)
        return optimizer

    def starting_point(self) -> np.ndarray | None:
        """Where the search begins, (n_free, 1) in the unit cube; None where it begins anywhere.

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


def default_optimizer(settings: Mapping[str, Any]) -> str:
    """The search where none is named; settings of a population are the genetic algorithm's."""
    of_a_population = {"population", "crossover_rate", "mutation_rate"} & set(settings)
    return FOR_A_POPULATION if of_a_population else DEFAULT_OPTIMIZER


def load_fit(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), backend: str = "auto"
) -> Fit:
    """The fit in a model file with a `fit` section, or in a fit file that names its model.

    Arguments:
        path: the file.
        overrides: ``dotted.key=value`` each, the value in YAML, e.g.
            ``fit.optimizer.population=1000`` or ``parameters.gmax.value=3``; they are applied to
            the model document, or under ``fit.`` to the fit section, before anything is checked.
            A list's entries count from 1: ``fit.experiments[1].weight=2``.
        backend: what simulates surrogate data.

    Raises:
        InputError: anything that cannot be used, with file, key and what would be right.
    """
    file = Path(path)
    document, model_file = read_fit_document(file, overrides)
    if is_function(document):
        from channelfit.functions.fit_file import load_function_fit  # which is a kind of Fit

        return load_function_fit(document, file, model_file)
    model = build_fitted_model(document, file, model_file)
    raw = document.pop("fit", None)
    if raw is None:
        raise InputError(
            "no `fit` section says what to fit to; add one here, or in a file of its own beside "
            f"`model: {file.name}`:{_EXAMPLE}",
            file,
        )
    section = Section(raw, file, "fit")
    section.expect(KEYS["fit"])
    names = ("protocols", "experiments")
    if sum(name in section for name in names) != 1:
        raise section.error(
            "either protocols (simulated data) or experiments (recordings) was expected"
        )
    surrogate = "protocols" in section
    experiments = _protocols(section) if surrogate else _experiments(section)
    noise, data_seed = _surrogate(section) if surrogate else (0.0, 0)
    settings, stop = _mapping(section, "optimizer"), _mapping(section, "stop")
    optimizer = settings.pop("name", default_optimizer(settings))
    seed = section.integer("seed", 0)
    fitted = [e.protocol for e in experiments if e.weight > 0]
    constraints = read_rate_bounds(section, model, fitted)
    constraints += tied_bounds(model)
    solved = _solved(section, model, constraints)
    prior_noise = _prior_noise(section, model)
    start = starts_from_values(section, surrogate)
    fit = Fit(
        Problem(model, tuple(experiments)),
        optimizer,
        settings,
        stop,
        document,
        file,
        surrogate,
        noise,
        seed,
        copy.deepcopy(dict(raw)),
        model_file,
        constraints,
        solved,
        prior_noise,
        **read_titles(section, model.name),
        inherited=inherited_keys(file, model_file, raw),
        start=start,
    )
    _check_search(fit)
    fit.starting_point()
    fit = replace(fit, cautions=_cautions(fit, section))
    if not surrogate:
        return fit
    try:
        model.values()
    except InputError as error:
        raise error.at(model_file) from None
    scorer = make_scorer(fit.problem, backend)
    return replace(fit, problem=simulate_surrogate(fit.problem, scorer, noise, data_seed))


def simulate_surrogate(
    problem: Problem, scorer: Scorer, noise_pA: float = 0.0, seed: int = 0
) -> Problem:
    """The problem with data simulated from the parameters' values.

    Arguments:
        scorer: simulates; of this problem's model and protocols.
        noise_pA: standard deviation of the Gaussian noise that is added to every sample.
        seed: of the noise; the same seed gives the same noise on every machine and backend.

    Raises: InputError when a parameter has no value, or the values give no finite current.
    """
    values = problem.model.values()
    currents = [c[:, :, 0] for c in scorer.simulate(values[:, None])]
    random = np.random.Generator(np.random.Philox(seed))
    experiments = []
    for k, (experiment, current) in enumerate(zip(problem.experiments, currents, strict=True), 1):
        weight = masks([], experiment.protocol)
        if not np.all(np.isfinite(current[weight > 0])):
            raise InputError(
                f"under {experiment.protocol.name} the parameters' values give no finite current, "
                "so no surrogate data; change the values",
                key="parameters",
            )
        data = current + noise_pA * random.standard_normal(current.shape)
        source = f"simulated from the parameters' values, noise {noise_pA:g} pA, seed {seed}"
        recording = Recording(experiment.protocol.times_ms, data, weight, source=f"{source} ({k})")
        experiments.append(replace(experiment, recording=recording))
    return replace(problem, experiments=tuple(experiments))


# --- reading -------------------------------------------------------------------------------------


def read_fit_document(file: Path, overrides: Sequence[str] = ()) -> tuple[dict[str, Any], Path]:
    """A model or fit file as plain data, ``dotted.key=value`` overrides applied.

    Returns:
        The model document, with the fit section under `fit`, and the file of the model.

    Raises:
        InputError: the file or an override cannot be used.
    """
    document, model_file = joined_documents(file)
    for text in overrides:
        _override(document, text, file)
    return document, model_file


def _protocols(section: Section) -> list[Experiment]:
    names = section.items("protocols")
    if not names:
        raise section.error("at least one protocol is needed", "protocols")
    return [
        Experiment(_protocol(section, name, f"protocols[{i}]")) for i, name in enumerate(names, 1)
    ]


def _protocol(section: Section, name: object, key: str) -> Protocol:
    if not isinstance(name, str):
        raise section.error(f"the path of a protocol file was expected, not {shown(name)}", key)
    return load_protocol(section.resolve(name, key))


def _experiments(section: Section) -> list[Experiment]:
    if "surrogate" in section:
        raise section.error("surrogate belongs to protocols, not to experiments", "surrogate")
    rows = section.items("experiments")
    if not rows:
        raise section.error("at least one experiment is needed", "experiments")
    experiments = [
        _experiment(Section(row, section.file, section.path(f"experiments[{i}]")))
        for i, row in enumerate(rows, 1)
    ]
    if not any(e.weight > 0 for e in experiments):
        raise section.error("every experiment has weight 0, so nothing would count", "experiments")
    return experiments


def _experiment(row: Section) -> Experiment:
    row.expect(KEYS["experiment"])
    protocol = _protocol(row, row.take("protocol"), "protocol")
    delay = row.quantity("delay", "time", 0.0)
    shortest = min(sweep[-1].end_ms for sweep in protocol.sweeps)
    if not 0 <= delay < shortest:
        raise row.error(f"a time from 0 to {shortest:g} ms was expected, not {delay:g}", "delay")
    protocol = _delayed(protocol, delay)
    recording = load_recording(row.section("recording"), protocol)
    weight = row.number("weight", 1.0)
    if weight < 0:
        raise row.error(f"a weight of 0 or more was expected, not {weight:g}", "weight")
    entries = row.take("mask", None)
    entries = [entries] if isinstance(entries, Mapping) else row.items("mask", None)
    sections = [Section(e, row.file, row.path(f"mask[{i}]")) for i, e in enumerate(entries, 1)]
    left = recording.weight * masks(sections, protocol)
    every = row.integer("every", 1, least=1)
    if every > protocol.n_times_max:
        raise row.error(f"{protocol.name} has only {protocol.n_times_max} samples", "every")
    place = f"{row.file}: {row.path('recording')}"
    seen = Seen(place, protocol, recording.current_pA, left)
    cautions = recording_cautions(seen, weight > 0)
    recording = replace(recording, weight=left, cautions=cautions)
    experiment = _thinned(Experiment(protocol, recording, weight), every)
    assert experiment.recording is not None
    if not experiment.recording.weight.any():
        raise row.error("no sample is left to fit to", "mask" if entries else "recording")
    return experiment


def _cautions(fit: Fit, section: Section) -> tuple[Caution, ...]:
    """What looks wrong in the model, its protocols and the recordings, in this order."""
    experiments = fit.problem.experiments
    block = "protocols" if fit.surrogate else "experiments"
    places = [
        f"{fit.file}: {section.path(f'{block}[{k}]')}" for k in range(1, len(experiments) + 1)
    ]
    found = list(fit.problem.model.cautions)
    for place, experiment in zip(places, experiments, strict=True):
        found += protocol_cautions(experiment.protocol, place)
        found += experiment.recording.cautions if experiment.recording else ()
    if not fit.surrogate:
        found += fit_cautions(fit.problem, [f"{p}.recording" for p in places], fit.space.n_free)
    return each_once(found)


def _delayed(protocol: Protocol, delay_ms: float) -> Protocol:
    """The command as the recording shows it: later, as amplifier and filter made it.

    Every sweep begins with the delay at the holding potential and ends when it did.
    """
    if delay_ms == 0:
        return protocol
    sweeps = []
    for sweep in protocol.sweeps:
        end = sweep[-1].end_ms
        segments = [Segment(0.0, delay_ms, Constant(protocol.holding_mV))]
        for segment in sweep:
            start, wave = segment.start_ms + delay_ms, segment.wave
            if start >= end:
                break
            if isinstance(wave, Sines):
                wave = replace(wave, origin_ms=wave.origin_ms + delay_ms)
            if isinstance(wave, Ramp) and segment.end_ms + delay_ms > end:
                reached = segment.voltage(np.array([end - delay_ms]))[0]
                wave = Ramp(wave.v_start_mV, float(reached))
            segments.append(Segment(start, min(segment.end_ms + delay_ms, end), wave))
        sweeps.append(tuple(segments))
    return replace(protocol, sweeps=tuple(sweeps))


def _thinned(experiment: Experiment, every: int) -> Experiment:
    """Every n-th sample of protocol and recording, the first one kept."""
    protocol, recording = experiment.protocol, experiment.recording
    if every == 1 or recording is None:
        return experiment
    thin = slice(None, None, every)
    recording = replace(
        recording,
        time_ms=recording.time_ms[thin],
        current_pA=recording.current_pA[:, thin],
        weight=recording.weight[:, thin],
    )
    protocol = replace(protocol, sampling_ms=protocol.sampling_ms * every)
    return replace(experiment, protocol=protocol, recording=recording)


def _surrogate(section: Section) -> tuple[float, int]:
    """Noise, pA, and its seed."""
    inner = section.section("surrogate", {})
    inner.expect(KEYS["surrogate"])
    noise, seed = inner.quantity("noise", "current", 0.0), inner.integer("seed", 0)
    inner.finish()
    if noise < 0:
        raise inner.error(f"a standard deviation of 0 or more was expected, not {noise:g}", "noise")
    return noise, seed


def _solved(
    section: Section, model: ChannelModel, constraints: Sequence[Bounded]
) -> tuple[str, ...]:
    """``solve: auto``, ``none``, or the name of a parameter in which the current is linear.

    None unless asked: least squares moves all parameters at once and needs no help with one that
    is linear; optimizers that ask for costs alone have one parameter less to find.
    """
    names = [str(name) for name in section.items("solve", ["none"])]
    linear, kept = model.linear_parameters(), {}
    for p in model.parameters:
        if p.prior and p.prior.kind == "lognormal":
            kept[p.name] = "its prior is not a parabola in it"
    for place in {place for c in constraints for place in c.places}:
        kept[model.parameters[place].name] = "a bound depends on it"
    if names == ["none"]:
        return ()
    if names == ["auto"]:
        proportional = [n for n, by_itself in linear.items() if by_itself and n not in kept]
        return tuple(proportional[:1])
    if len(names) != 1:
        raise section.error(
            "one parameter was expected, auto or none: the current is linear in the conductance "
            f"or in the reversal potential, not in both together; not {shown(names)}",
            "solve",
        )
    if names[0] not in linear:
        known = ", ".join(linear) or "none of this model's"
        raise section.error(
            f"the current is not a straight line in {shown(names[0])}; it is in: {known}", "solve"
        )
    if names[0] in kept:
        raise section.error(f"{names[0]} cannot be solved: {kept[names[0]]}", "solve")
    return (names[0],)


def starts_from_values(section: Section, surrogate: bool = False) -> bool:
    """``start: values`` or ``none``, the default: whether the search begins at the values."""
    word = section.take("start", "none")
    if word not in ("values", "none"):
        raise section.error(
            f"values (begin at the parameters' values) or none was expected, not {shown(word)}",
            "start",
        )
    if word == "values" and surrogate:
        raise section.error(
            "data simulated from the parameters' values cannot be fitted from there: the search "
            "would begin at its end; leave start out",
            "start",
        )
    return bool(word == "values")


def _prior_noise(section: Section, model: ChannelModel) -> float:
    """Standard deviation of a sample, pA: needed where a parameter has a prior."""
    noise: float | None = section.quantity("noise", "current", None)
    named = [p.name for p in model.parameters if p.prior]
    if noise is None:
        if named:
            raise section.error(
                f"{named[0]} has a prior, and only the noise of a sample tells how much that "
                "weighs against the data; add for example noise: 5 pA"
            )
        return 0.0
    if noise <= 0:
        raise section.error(f"a standard deviation above 0 was expected, not {noise:g}", "noise")
    if not named:
        raise section.error(
            "weighs priors against the data, and no parameter has a prior; leave it out", "noise"
        )
    return noise


def _mapping(section: Section, key: str) -> dict[str, Any]:
    return {} if section.take(key, None) is None else dict(section.rows(key))


def _check_search(fit: Fit) -> None:
    """Whatever the search would refuse, now, with file and key."""
    if not isinstance(fit.optimizer, str):
        raise InputError(
            f"a name was expected, not {shown(fit.optimizer)}", fit.file, "fit.optimizer.name"
        )
    try:
        n_free = fit.space.n_free
    except InputError as error:
        raise error.at(fit.model_file) from None
    try:
        make_optimizer(fit.optimizer, fit.settings, n_free, fit.seed)
        make_stop_rules(fit.stop, fit.settings)
    except InputError as error:
        raise error.at(fit.file, "fit") from None


# --- overrides -----------------------------------------------------------------------------------

#: Mappings that an override may begin where the file has none.
_MAY_BEGIN = {("fit",), ("fit", "optimizer"), ("fit", "stop"), ("fit", "surrogate")}


def _override(document: dict[str, Any], text: str, file: Path) -> None:
    """Apply one ``dotted.key=value`` to a document, in place."""
    key, equals, value = text.partition("=")
    key = key.strip()
    parts = re.findall(r"[^.\[\]]+|\[\d+\]", key)
    joined = "".join(p if p.startswith("[") or not k else f".{p}" for k, p in enumerate(parts))
    if not equals or not parts or joined != key or "\n" in text or "\r" in text:
        raise InputError(
            f"{shown(text)} is not of the form key=value; write for example "
            "fit.optimizer.population=1000"
        )
    place: Any = document
    for k, part in enumerate(parts[:-1]):
        place = _within(place, tuple(parts[:k]), part, key, file)
    _put(place, tuple(parts[:-1]), parts[-1], _value(value, key), key, file)


def _value(text: str, key: str) -> Any:
    """A scalar, a list or a mapping in YAML."""
    try:
        return parse_yaml(f"value: {text}")["value"]
    except InputError as error:
        raise InputError(f"{shown(text.strip())}: {error.message}", key=key) from None


def _within(place: Any, path: tuple[str, ...], part: str, key: str, file: Path) -> Any:
    """The mapping or list that `part` names within the one at `path`."""
    if part.startswith("["):
        return _slot(place, path, part, key, file)[0]
    _check_mapping(place, path, key, file)
    if place.get(part) is None:
        if (*path, part) not in _MAY_BEGIN:
            raise _no_such(place, path, part, key, file)
        place[part] = {}
    return place[part]


def _put(place: Any, path: tuple[str, ...], part: str, value: Any, key: str, file: Path) -> None:
    if part.startswith("["):
        entries = _slot(place, path, part, key, file)[1]
        entries[int(part[1:-1]) - 1] = value
        return
    _check_mapping(place, path, key, file)
    # a key that the readers would never ask for is refused here where it has no place at all
    if not path and part not in place and part != "fit":
        raise _no_such(place, path, part, key, file)
    place[part] = value


def _slot(
    place: Any, path: tuple[str, ...], part: str, key: str, file: Path
) -> tuple[Any, list[Any]]:
    """Entry [n], counted from 1, of the list at `path`, and the list."""
    if not isinstance(place, list):
        raise InputError(f"{_joined(path)} is not a list", file, key)
    n = int(part[1:-1])
    if not 1 <= n <= len(place):
        raise InputError(f"{_joined(path)} has entries 1 to {len(place)}, not {n}", file, key)
    return place[n - 1], place


def _check_mapping(place: Any, path: tuple[str, ...], key: str, file: Path) -> None:
    if not isinstance(place, dict):
        raise InputError(f"{_joined(path)} is {shown(place)}, it has no keys", file, key)


def _no_such(
    place: Mapping[str, Any], path: tuple[str, ...], part: str, key: str, file: Path
) -> InputError:
    known = [str(k) for k in place] + ([] if path or "fit" in place else ["fit"])
    close = difflib.get_close_matches(part, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else "."
    where = f" in {_joined(path)}" if path else ""
    return InputError(f'no "{part[:40]}"{where}{hint} There is: {", ".join(known)}', file, key)


def _joined(path: tuple[str, ...]) -> str:
    return ".".join(path).replace(".[", "[") or "the file"


# --- writing -------------------------------------------------------------------------------------


def save_fit(fit: Fit, values: np.ndarray, folder: str | os.PathLike[str]) -> Path:
    """Write ``fit.yaml``, and for a surrogate fit its data, into a folder; returns its path.

    `load_fit` of that file gives the same problem with the fitted values (n_parameters,).
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_data(fit, folder)
    path = folder / "fit.yaml"
    path.write_text(saved_text(fit_document(fit, values, folder)), encoding="utf-8")
    return path


def save_data(fit: Fit, folder: Path) -> None:
    """Write the data of a surrogate fit into a folder, a table an experiment."""
    for k, experiment in enumerate(fit.problem.experiments if fit.surrogate else ()):
        _write_table(folder / _data_name(fit, k), experiment)


def saved_text(document: Mapping[str, Any]) -> str:
    """The YAML of a saved fit, with what it is above."""
    return _SAVED + dump_yaml(document)


def fit_document(fit: Fit, values: np.ndarray, folder: str | os.PathLike[str]) -> dict[str, Any]:
    """A complete model file with fitted values and the fit section, to be saved in a folder.

    Paths are rewritten to start from there; ``${NAME}`` placeholders stay. Surrogate data came
    from the values before the fit, so the document refers to them as recordings, which `save_fit`
    writes, and does not simulate new ones.

    Arguments:
        values: (n_parameters,), base units.
    """
    document = copy.deepcopy(fit.document)
    if is_printed_form(document):
        for row, value in zip(document["model"]["params"], values, strict=True):
            row["val"] = float(value)
    else:
        _put_values(document, fit.problem.model, values)
        _retell(document, fit)
    section = copy.deepcopy(fit.section)
    if fit.surrogate:
        section = _with_data(fit, section)
    rows = section["experiments"]
    section["experiments"] = rows = rows if isinstance(rows, list) else [rows]
    for row in rows:
        row["protocol"] = moved(row["protocol"], fit.file, folder)
        if not fit.surrogate:
            row["recording"]["file"] = moved(row["recording"]["file"], fit.file, folder)
    document["fit"] = section | {"start": "values"}
    return document


def _put_values(document: dict[str, Any], model: ChannelModel, values: np.ndarray) -> None:
    """Values, ranges and units of the raw document, in base units."""
    for parameter, value in zip(model.parameters, values, strict=True):
        row = document["parameters"][parameter.name]
        if "range" in row:
            row["range"] = [parameter.lower, parameter.upper]
        row["value"] = float(value)
        if parameter.unit:
            row["unit"] = parameter.unit
        if parameter.prior:
            row["prior"] = {parameter.prior.kind: [parameter.prior.center, parameter.prior.spread]}
    current = document["current"]
    if current.keys() & {"area", "capacitance"} and model.conductance.is_Number:
        current["conductance"] = f"{float(model.conductance)!r} nS"
    for size in ("area", "capacitance"):  # by which everything has been multiplied now
        current.pop(size, None)
    for tie in model.ties:
        row = document["parameters"][tie.name]
        if tie.lower is not None:
            row["range"] = [tie.lower, tie.upper]
        if tie.unit:
            row["unit"] = tie.unit


def _retell(document: dict[str, Any], fit: Fit) -> None:
    """A description and a source that are true of the fitted values, in a raw document."""
    experiments = fit.problem.experiments
    sources = [
        "simulated" if fit.surrogate or e.recording is None else e.recording.source
        for e in experiments
    ]
    data = ", ".join(
        f"{e.protocol.name} ({source})"
        for e, source in zip(experiments, sources, strict=True)
        if e.weight > 0
    )
    told = {"description": f"Values fitted to {data}.", "source": "The values are those of a fit."}
    for key, text in told.items():
        first, mark, before = str(document.get(key) or "").strip().partition(_BEFORE)
        before = before if mark else first
        document[key] = text + (_BEFORE + before if before else "")


def _with_data(fit: Fit, section: dict[str, Any]) -> dict[str, Any]:
    """The fit section with the surrogate data as recordings in place of `protocols`."""
    protocols = section.pop("protocols")
    section.pop("surrogate", None)
    rows = []
    for k, name in enumerate(protocols if isinstance(protocols, list) else [protocols]):
        recording = fit.problem.experiments[k].recording
        entry = {
            "file": _data_name(fit, k),
            "time": {"column": "time_ms", "unit": "ms"},
            "current": {"columns": "all", "unit": "pA"},
            "source": recording.source if recording else "",
        }
        rows.append({"protocol": name, "recording": entry})
    return {"experiments": rows, **section}


def _data_name(fit: Fit, k: int) -> str:
    return "data.csv" if len(fit.problem.experiments) == 1 else f"data_{k + 1}.csv"


def _write_table(path: Path, experiment: Experiment) -> None:
    """time_ms and a column of pA for each sweep; empty cells after a shorter sweep's end."""
    recording = experiment.recording
    assert recording is not None
    names = ["time_ms", *(f"sweep_{k + 1}_pA" for k in range(len(recording.current_pA)))]
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(",".join(names) + "\n")
        for t, row in zip(recording.time_ms.tolist(), recording.current_pA.T.tolist(), strict=True):
            # repr gives back every bit, so the cost of a saved fit is that of the run
            cells = ["" if x != x else repr(x) for x in row]
            file.write(",".join([repr(round(t, 9)), *cells]) + "\n")
