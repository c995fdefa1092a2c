"""The plan of a fit, read from the `fit` section of a model file or of a fit file."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from channelfit.model.channel import ChannelModel
from channelfit.model.scope import check_cell
from channelfit.problem.beside_model import fit_cautions
from channelfit.problem.channel_noise import fault_of, read_channel_noise, with_unitary
from channelfit.problem.clamp import Clamp, read_clamp, read_delay
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.observation import Observation, as_recording, read_observation
from channelfit.problem.plausibility import CheckedRecording, protocol_cautions, recording_cautions
from channelfit.problem.protocol import Protocol, load_protocol, with_ligands
from channelfit.problem.rate_bounds import Bounded, in_fit, read_rate_bounds, tied_bounds
from channelfit.problem.recording import Recording, empty_masks, load_recording, masks
from channelfit.problem.waves import Constant, Ramp, Segment, Sines
from channelfit.reading.documents import Section
from channelfit.reading.errors import Caution, InputError, each_once, shown
from channelfit.reading.keys import KEYS
from channelfit.reading.tables import Columns, read_columns
from channelfit.reading.units import is_expression, parse_quantity
from channelfit.search.choose import default_optimizer
from channelfit.search.joined_files import FitFile, read_titles
from channelfit.search.plan import FitPlan, checked

#: Loads the protocol of a file.
Load: TypeAlias = Callable[[Path], Protocol]

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


def read_plan(fit_file: FitFile, read: Callable[..., Columns] = read_columns) -> FitPlan:
    """Read the plan to fit a channel.

    Data that are to be simulated are not there yet: `plan.with_data` simulates them.

    Arguments:
        fit_file: its document is not changed.
        read: returns the columns of a recorded table, as `tables.read_columns` does.

    Raises InputError: anything that cannot be used, with file, key and the expected form.
    """
    raw, file = fit_file.document.get("fit"), fit_file.file
    model = fit_file.build_model(first_temperature(raw))
    if raw is None:
        raise InputError(
            "no `fit` section says what to fit to; add one here, or in a file of its own beside "
            f"`model: {file.name}`:{_EXAMPLE}",
            file,
        )
    section = Section(raw, file, "fit")
    section.expect(KEYS["fit"])
    if raw.get("require"):
        raise section.error(
            "judges the wells of `channelfit batch`, and nothing in a fit of one recording; leave "
            "it out (--set fit.require=null)",
            "require",
        )
    if raw.get("discover") is not None:
        raise section.error(
            "says which schemes `channelfit discover` compares, and nothing in a fit of one "
            "scheme; leave it out (--set fit.discover=null)",
            "discover",
        )
    names = ("protocols", "experiments")
    if sum(name in section for name in names) != 1:
        raise section.error(
            "either protocols (simulated data) or experiments (recordings) was expected"
        )
    surrogate = "protocols" in section
    experiments = _protocols(section) if surrogate else _experiments(section, model, read)
    experiments = _weighed(section, _clamped(section, model, experiments))
    noise, data_seed = _surrogate(section) if surrogate else (0.0, 0)
    try:
        problem = Problem(model, tuple(experiments))
    except InputError as error:
        raise error.at(file, section.key) from None
    plan = plan_search(
        problem,
        section,
        document=fit_file.model_document,
        file=file,
        model_file=fit_file.model_file,
        section=copy.deepcopy(dict(raw)),
        surrogate=surrogate,
        noise_pA=noise,
        data_seed=data_seed,
        inherited=fit_file.inherited,
        temperature_stated=fit_file.temperature_stated,
    )
    if noise > 0 and plan.problem.noise is not None:
        raise section.error(
            "the noise of the amplifier stands in `noise` already; leave this out",
            "surrogate.noise",
        )
    if surrogate:
        try:
            model.values()
        except InputError as error:
            raise error.at(fit_file.model_file) from None
    block = "protocols" if surrogate else "experiments"
    places = [f"{file}: {section.path(f'{block}[{k}]')}" for k in range(1, len(experiments) + 1)]
    return replace(plan, cautions=cautions_of(plan, places))


def plan_search(problem: Problem, keys: Section, **known: Any) -> FitPlan:
    """Make the plan for a problem from the keys of a fit section that say how to search.

    Arguments:
        keys: of the fit section; optimizer, stop, seed, seeds, rates_within, solve, noise, start
            and the titles are read here.
        known: other fields of the plan.

    Raises: InputError for a key that cannot be used.
    """
    problem = _with_noise(problem, keys)
    model = problem.model
    settings, stop = _mapping(keys, "optimizer"), _mapping(keys, "stop")
    optimizer = settings.pop("name", default_optimizer(settings))
    fitted = [e.protocol for e in problem.experiments if e.weight > 0]
    check_cells(problem, keys)
    bounds = read_rate_bounds(keys, model, fitted) + tied_bounds(model)
    constraints = in_fit(bounds, problem)
    plan = FitPlan(
        problem,
        optimizer,
        settings,
        stop,
        seed=keys.integer("seed"),
        seeds=keys.integer("seeds"),
        constraints=constraints,
        solved=_solved(keys, problem, constraints),
        prior_noise_pA=_prior_noise(keys, model, any(e.observations for e in problem.experiments)),
        start=starts_from_values(keys, known.get("surrogate", False)),
        **read_titles(keys, model.name),
        **known,
    )
    return checked(plan)


# --- reading -------------------------------------------------------------------------------------


def read_experiments(
    section: Section, model: ChannelModel, read: Callable[..., Columns], load: Load = load_protocol
) -> list[Experiment]:
    """Read the experiments of a fit section, each with its recording and its clamp.

    Arguments:
        model: as the fit file changes it.
        read: returns the columns of a recorded table, as `tables.read_columns` does.
        load: returns the protocol of a file, as `load_protocol` does.

    Raises InputError: anything that cannot be used, with file, key and the expected form.
    """
    section.expect(KEYS["fit"])
    return _weighed(section, _clamped(section, model, _experiments(section, model, read, load)))


def _weighed(section: Section, experiments: list[Experiment]) -> list[Experiment]:
    """Return the experiments, observations with the noise of a sample that each error counts as.

    Raises InputError: there are recordings beside observations, and no noise to weigh them by.
    """
    if not any(e.observations for e in experiments):
        return experiments
    if isinstance(section.take("noise"), Mapping):
        raise section.error("what is observed says nothing of the noise of channels", "noise")
    noise = section.quantity("noise")
    if noise is None and any(e.weight > 0 and not e.observations for e in experiments):
        raise section.error(
            "some experiments are recordings and some have observations, and only the noise of a "
            "sample tells how much both weigh; add for example noise: 5 pA"
        )
    if noise is not None and not any(e.weight > 0 and not e.observations for e in experiments):
        raise section.error(
            "weighs observations against recordings, and no recording counts here; leave it out, "
            "as standard errors weigh observations",
            "noise",
        )
    if any(e.clamp for e in experiments if e.observations):
        raise section.error("what is observed is that of an ideal clamp; leave it out", "clamp")
    found = []
    for e in experiments:
        if e.observations:
            noisy = [replace(o, noise_pA=noise or 1.0) for o in e.observations]
            seen = as_recording(noisy)
            cautions = e.recording.cautions if e.recording else ()
            e = replace(e, observations=tuple(noisy), recording=replace(seen, cautions=cautions))
        found.append(e)
    return found


def _protocols(section: Section) -> list[Experiment]:
    names = section.items("protocols")
    if not names:
        raise section.error("at least one protocol is needed", "protocols")
    return [
        Experiment(_protocol(section, name, f"protocols[{i}]")) for i, name in enumerate(names, 1)
    ]


def _protocol(section: Section, name: object, key: str, load: Load = load_protocol) -> Protocol:
    if not isinstance(name, str):
        raise section.error(f"the path of a protocol file was expected, not {shown(name)}", key)
    return load(section.existing(name, key))


def _clamped(
    section: Section, model: ChannelModel, experiments: Sequence[Experiment]
) -> list[Experiment]:
    """Return the experiments, those without a clamp of their own with the one of the whole fit.

    Raises InputError: a clamp that cannot be used.
    """
    if "clamp" in section:
        common = read_clamp(section.section("clamp"), model)
        experiments = [replace(e, clamp=e.clamp or common) for e in experiments]
    return list(experiments)


def _experiments(
    section: Section, model: ChannelModel, read: Callable[..., Columns], load: Load = load_protocol
) -> list[Experiment]:
    if "surrogate" in section:
        raise section.error("surrogate belongs to protocols, not to experiments", "surrogate")
    rows = section.items("experiments")
    if not rows:
        raise section.error("at least one experiment is needed", "experiments")
    experiments = [
        _experiment(
            Section(row, section.file, section.path(f"experiments[{i}]")), model, read, load
        )
        for i, row in enumerate(rows, 1)
    ]
    if not any(e.weight > 0 for e in experiments):
        raise section.error("every experiment has weight 0, so nothing would count", "experiments")
    return experiments


def first_temperature(raw: object) -> float | None:
    """Return the first temperature of an experiment in a raw fit section, degC; None without any.

    One that cannot be read is skipped here, and refused where the experiment is read.
    """
    rows = raw.get("experiments") if isinstance(raw, Mapping) else None
    for row in rows if isinstance(rows, list) else [rows]:
        if isinstance(row, Mapping) and row.get("temperature") is not None:
            with suppress(InputError):
                return parse_quantity(row["temperature"], "temperature")
    return None


def _experiment(
    row: Section, model: ChannelModel, read: Callable[..., Columns], load: Load
) -> Experiment:
    row.expect(KEYS["experiment"])
    cell = row.text("cell")
    if "cell" in row:
        check_cell(row, cell, "cell")
    celsius = row.quantity("temperature")
    protocol = _protocol(row, row.take("protocol"), "protocol", load)
    if ("recording" in row) == ("observe" in row):
        raise row.error("either recording or observe was expected: what was recorded, or observed")
    if "observe" in row:
        return _observed(row, Experiment(protocol, None, _weight(row), cell, celsius), read)
    clamp = read_clamp(row.section("clamp"), model) if "clamp" in row else None
    protocol = with_ligands(row, protocol)
    protocol, clamp = _late(row, model, protocol, clamp)
    recording = load_recording(row.section("recording"), protocol, read)
    weight = _weight(row)
    windows = _mask_sections(row)
    left = recording.weight * masks(windows, protocol)
    clamp = _filtering(row, clamp, recording)
    every = _every(row, protocol, recording)
    place = f"{row.file}: {row.path('recording')}"
    seen = CheckedRecording(place, protocol, recording.current_pA, left)
    raw = None if recording.raw_pA is None else replace(seen, current_pA=recording.raw_pA)
    cautions = recording.cautions + recording_cautions(seen, weight > 0, raw)
    cautions += tuple(empty_masks(windows, protocol))
    recording = replace(recording, weight=left, cautions=cautions)
    whole = Experiment(protocol, recording, weight, cell, celsius, clamp)
    experiment = _thinned(whole, every)
    assert experiment.recording is not None
    if not experiment.recording.weight.any():
        raise row.error("no sample is left to fit to", "mask" if row.take("mask") else "recording")
    return experiment


def _weight(row: Section) -> float:
    weight: float = row.number("weight")
    if weight < 0:
        raise row.error(f"a weight of 0 or more was expected, not {weight:g}", "weight")
    return weight


def _observed(row: Section, experiment: Experiment, read: Callable[..., Columns]) -> Experiment:
    """Return an experiment with what was observed in it."""
    observations, cautions = list[Observation](), list[Caution]()
    given = row.take("observe")
    several = isinstance(given, list)
    for i, entry in enumerate(given if several else [given], 1):
        key = row.path(f"observe[{i}]" if several else "observe")
        found, doubts = read_observation(Section(entry, row.file, key), experiment.protocol, read)
        observations.append(found)
        cautions += doubts
    row.finish()
    if not any(o.counts.any() for o in observations):
        raise row.error("no number with a standard error above 0 is left to fit to", "observe")
    recording = replace(as_recording(observations), cautions=tuple(cautions))
    return replace(experiment, recording=recording, observations=tuple(observations))


def _late(
    row: Section, model: ChannelModel, protocol: Protocol, clamp: Clamp | None
) -> tuple[Protocol, Clamp | None]:
    """Return the protocol later by the delay, or the clamp with a delay that is a parameter."""
    delay = 0.0
    if _names_a_parameter(row.take("delay")):
        if clamp is not None and not clamp.delay.is_zero:
            raise row.error("the clamp has a delay, too; give it once", "delay")
        clamp = replace(clamp or Clamp(), delay=read_delay(row, model))
    else:
        delay = row.quantity("delay")
    shortest = min(sweep[-1].end_ms for sweep in protocol.sweeps)
    if not 0 <= delay < shortest:
        raise row.error(f"a time from 0 to {shortest:g} ms was expected, not {delay:g}", "delay")
    return _delayed(protocol, delay), clamp


def _mask_sections(row: Section) -> list[Section]:
    entries = row.take("mask")
    entries = [entries] if isinstance(entries, Mapping) else row.items("mask")
    return [Section(e, row.file, row.path(f"mask[{i}]")) for i, e in enumerate(entries, 1)]


def _filtering(row: Section, clamp: Clamp | None, recording: Recording) -> Clamp | None:
    """Return the clamp with the low-pass filter by which the recording is conditioned, if any."""
    if recording.low_pass is None:
        return clamp
    if clamp is not None and clamp.low_pass is not None:
        raise row.error(
            "the clamp has a low-pass filter and the recording is conditioned by another; "
            "only one can be modelled",
            "clamp.lowpass",
        )
    return replace(clamp or Clamp(), low_pass=recording.low_pass)


def _every(row: Section, protocol: Protocol, recording: Recording) -> int:
    """Read `every`: one of so many samples is fitted."""
    if "every" in row and recording.every > 1:
        raise row.error("the low-pass filter of the recording says this too; give it once", "every")
    every: int = row.integer("every", recording.every)
    if every > protocol.n_times_max:
        raise row.error(f"{protocol.name} has only {protocol.n_times_max} samples", "every")
    return every


def _names_a_parameter(delay: object) -> bool:
    """Return whether a delay is an expression, as ``late`` or ``2*late`` is, and no quantity."""
    try:
        parse_quantity(delay, "time")
    except InputError:
        return is_expression(delay)
    return False


def cautions_of(plan: FitPlan, places: Sequence[str]) -> tuple[Caution, ...]:
    """Return warnings on the model, its protocols and the recordings, in this order.

    Arguments:
        places: the names of the experiments in warnings.
    """
    found = list(plan.problem.model.cautions)
    for place, experiment in zip(places, plan.problem.experiments, strict=True):
        found += protocol_cautions(experiment.protocol, place)
        recording = experiment.recording
        if recording is not None and plan.in_memory and not experiment.observations:
            seen = CheckedRecording(
                place, experiment.protocol, recording.current_pA, recording.weight
            )
            found += recording_cautions(seen, experiment.weight > 0)
        found += recording.cautions if recording is not None else ()
    model, cells = plan.problem.model, plan.problem.cells
    if len(cells) > 1 and not any(p.per_cell for p in model.parameters):
        found.append(
            Caution(
                f"{plan.file}: fit.experiments",
                f"the cells {', '.join(filter(None, cells))} share all parameters",
                "write `per: cell` beside each parameter of which every cell has its own",
            )
        )
    found += _temperature_cautions(plan)
    if not plan.surrogate:
        named = [place if plan.in_memory else f"{place}.recording" for place in places]
        found += fit_cautions(plan.problem, named, plan.space.n_free)
    return each_once(found)


def _temperature_cautions(plan: FitPlan) -> list[Caution]:
    """Return a warning where one set of rates is fitted to recordings of several temperatures."""
    model = plan.problem.model
    given = (e.temperature_C for e in plan.problem.experiments if e.weight > 0)
    every = (model.temperature_C if own is None else own for own in given)
    found = {celsius for celsius in every if celsius is not None}
    if len(found) < 2 or model.follows_temperature:
        return []
    return [
        Caution(
            f"{plan.file}: fit.experiments",
            f"recordings of {' and '.join(f'{t:g}' for t in sorted(found))} degC share the same "
            "rates, because no expression of the model uses celsius",
            "fit each temperature by itself, or let the rates depend on celsius",
        )
    ]


def _delayed(protocol: Protocol, delay_ms: float) -> Protocol:
    """Return the command later by a delay, as amplifier and filter make it.

    Every sweep begins with the delay at the potential before it, and ends when it did.
    """
    if delay_ms == 0:
        return protocol
    if protocol.ligands:
        raise InputError(
            "a delay of the recording does not serve concentrations; leave it out", key="delay"
        )
    sweeps = []
    for k, sweep in enumerate(protocol.sweeps):
        end = sweep[-1].end_ms
        segments = [Segment(0.0, delay_ms, Constant(protocol.voltage_before(k)))]
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
    """Keep every n-th sample of protocol and recording, beginning with the first."""
    protocol, recording = experiment.protocol, experiment.recording
    if every == 1 or recording is None:
        return experiment
    thin = slice(None, None, every)
    recording = replace(
        recording,
        time_ms=recording.time_ms[thin],
        current_pA=recording.current_pA[:, thin],
        weight=recording.weight[:, thin],
        raw_pA=None if recording.raw_pA is None else recording.raw_pA[:, thin],
    )
    protocol = replace(protocol, sampling_ms=protocol.sampling_ms * every)
    return replace(experiment, protocol=protocol, recording=recording)


def _with_noise(problem: Problem, section: Section) -> Problem:
    """Return the problem with the noise of its channels, where the fit section describes it.

    Raises InputError: experiments whose fluctuations are not those of channels; a free parameter on
    which nothing depends, which a model that is read alone would have refused.
    """
    model = problem.model
    noise = read_channel_noise(section, model)
    used = model.used_names().union(*(e.clamp.used_names() for e in problem.experiments if e.clamp))
    used |= noise.used_names() if noise else set()
    for p in model.parameters:
        if p.name not in used and not p.fixed:
            raise section.error(
                f"the parameter {p.name} changes nothing: no rate, current, clamp or noise uses "
                "it; remove it or write `fixed: true`"
            )
    if noise is None:
        return problem
    for e in problem.experiments:
        if fault := fault_of(e):
            raise section.error(f"{e.title}: {fault}", "noise")
    return replace(problem, model=with_unitary(model, noise), noise=noise)


def _surrogate(section: Section) -> tuple[float, int]:
    """Read the standard deviation of the noise, pA, and its seed."""
    inner = section.section("surrogate", {})
    inner.expect(KEYS["surrogate"])
    noise, seed = inner.quantity("noise"), inner.integer("seed")
    inner.finish()
    if noise < 0:
        raise inner.error(f"a standard deviation of 0 or more was expected, not {noise:g}", "noise")
    return noise, seed


def _solved(section: Section, problem: Problem, constraints: Sequence[Bounded]) -> tuple[str, ...]:
    """Read ``solve``: ``auto``, ``none``, or a parameter in which the current is linear.

    Of a parameter per cell, that of each cell is solved.

    The default is ``none``: least squares moves all parameters at once and needs no help with one
    that is linear; optimizers that use costs alone have one parameter less to find.
    """
    names = [str(name) for name in section.items("solve")]
    if names != ["none"] and problem.noise is not None:
        raise section.error(
            "the likelihood of channel noise is a parabola in no parameter; leave solve out",
            "solve",
        )
    if names != ["none"] and any(e.clamp for e in problem.experiments):
        raise section.error(
            "with a clamp no parameter can be solved: what flows changes the potential at which "
            "it flows, so that the current is a straight line in nothing; leave solve out",
            "solve",
        )
    linear, kept = problem.linear_parameters(), {}
    bounded = {problem.parameters[place].name for c in constraints for place in c.places}
    for name in linear:
        for p in problem.of_model(name).values():
            if p.prior and p.prior.kind == "lognormal":
                kept[name] = "its prior is not a parabola in it"
            if p.name in bounded:
                kept[name] = "a bound depends on it"
    if names == ["none"]:
        return ()
    if names == ["auto"]:
        proportional = [n for n, by_itself in linear.items() if by_itself and n not in kept]
        names = proportional[:1]
        if not names:
            return ()
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
    return tuple(p.name for p in problem.of_model(names[0]).values() if not p.fixed)


def starts_from_values(section: Section, surrogate: bool = False) -> bool:
    """Read ``start``, ``values`` or ``none``: whether the search begins at the values."""
    word = section.choice("start")
    if word == "values" and surrogate:
        raise section.error(
            "data simulated from the parameters' values cannot be fitted from there: the search "
            "would begin at its end; leave start out",
            "start",
        )
    return bool(word == "values")


def _prior_noise(section: Section, model: ChannelModel, observed: bool) -> float:
    """Read the standard deviation of a sample, pA; it is needed where a parameter has a prior.

    Arguments:
        observed: whether there are observations, in units of their standard errors.
    """
    if isinstance(section.take("noise"), Mapping):
        return 0.0  # `_with_noise` reads it
    noise: float | None = section.quantity("noise")
    named = [p.name for p in model.parameters if p.prior]
    if observed:
        noise = 1.0 if noise is None else noise
    if noise is None:
        if named:
            raise section.error(
                f"{named[0]} has a prior, and only the noise of a sample tells how much that "
                "weighs against the data; add for example noise: 5 pA"
            )
        return 0.0
    if noise <= 0:
        raise section.error(f"a standard deviation above 0 was expected, not {noise:g}", "noise")
    if not named and not observed:
        raise section.error(
            "weighs recordings against priors and observations, and there are none; leave it out",
            "noise",
        )
    return noise


def check_cells(problem: Problem, section: Section) -> None:
    """Refuse parameters of a cell that no experiment has.

    Raises: InputError, with file and key.
    """
    for p in problem.model.parameters:
        for cell, _ in p.cells:
            if problem.cells != ("",) and cell not in problem.cells:
                raise InputError(
                    f'there is no experiment of a cell "{cell}". Known: {", ".join(problem.cells)}',
                    section.file,
                    f"parameters.{p.name}",
                )
    try:
        len(problem.groups)
    except InputError as error:
        in_model = (error.key or "").startswith("parameters")
        raise error.at(section.file, None if in_model else section.path(None)) from None


def _mapping(section: Section, key: str) -> dict[str, Any]:
    return {} if section.take(key, None) is None else dict(section.rows(key))
