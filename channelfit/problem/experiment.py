"""A model and its experiments: the problem that a scorer scores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np

from channelfit.model.channel import CELSIUS, ChannelModel, Parameter, Tie, values_of
from channelfit.problem.channel_noise import ChannelNoise
from channelfit.problem.clamp import Clamp
from channelfit.problem.observation import Observation, window_weights
from channelfit.problem.protocol import Protocol
from channelfit.problem.recording import Recording
from channelfit.problem.run_tree import RunTree, run_tree
from channelfit.reading import memory
from channelfit.reading.errors import InputError
from channelfit.reading.units import STANDARD_ERRORS

#: The share of the data's root mean square that is left at the exact minimum of data without noise.
#: It is 3e-13 to 7e-12 in the shipped models; most of it comes from compression when linearizing.
_ROUNDING = {"float64": 3e-11, "float32": 1e-5}
#: The memory of a sample, bytes, while it is laid out, simulated, scored, drawn and written as
#: text; and that for each further candidate: the current, and two copies while it is reordered.
_BYTES_A_SAMPLE, _BYTES_A_CURRENT = 200, 24


@dataclass(frozen=True)
class Experiment:
    """A protocol with its recording, and the cell, clamp and temperature of the experiment.

    Attributes:
        protocol: the command.
        recording: the currents; None where they are only to be simulated.
        weight: the factor by which its samples count in the cost; 0 holds them out of the fit.
        cell: the name of the cell that was recorded from; empty where nothing says.
        temperature_C: degC; None for the model's own.
        clamp: the circuit of the amplifier; None for an ideal clamp.
        observations: what was observed in the currents, in place of these. The recording then has
            a row for each of them and a column for each sweep; see `observation.as_recording`.
    """

    protocol: Protocol
    recording: Recording | None = None
    weight: float = 1.0
    cell: str = ""
    temperature_C: float | None = None
    clamp: Clamp | None = None
    observations: tuple[Observation, ...] = ()

    @property
    def title(self) -> str:
        """The protocol's name, with the cell and the temperature where they are given."""
        return ", ".join(filter(None, (self.protocol.name, self.cell, self.temperature)))

    @property
    def temperature(self) -> str:
        """Its temperature in words; empty where it has none of its own."""
        return degrees(self.temperature_C)

    @property
    def unit(self) -> str:
        """The unit of its residuals: pA, or standard errors of what was observed."""
        return STANDARD_ERRORS if self.observations else "pA"

    @property
    def noise_pA(self) -> float:
        """What a standard error of its observations counts as in a cost; 1 for a recording."""
        return self.observations[0].noise_pA if self.observations else 1.0


@dataclass(frozen=True)
class Problem:
    """A model and its experiments.

    The cost of a candidate is ``sum w (I - d)^2 / sum w`` over all samples, pA^2, with the weights
    w, the simulated current I and the data d.

    Experiments may differ in more than the command: in the cell, which may have parameters of its
    own, in the temperature, and in the clamp. Those that agree in all of these are a group, and
    `groups` says which of the parameters serve each.

    With `noise` the cost is another: see `scoring.channel_noise`.
    """

    model: ChannelModel
    experiments: tuple[Experiment, ...]
    noise: ChannelNoise | None = None

    def __post_init__(self) -> None:
        """Raises: InputError for a protocol that does not command the ligands of the model."""
        for k, experiment in enumerate(self.experiments, 1):
            try:
                experiment.protocol.commanded(self.model.ligands)
            except InputError as error:
                raise error.at(None, f"experiments[{k}]") from None

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters of the fit, the rows of every array of parameters of this problem.

        They are those of the model, in its order. In place of one that is per cell there is one for
        each cell, called ``gmax[cell 1]``, or gmax alone where no cell is named.

        Raises: InputError where only some experiments name their cell, or nothing is given for one.
        """
        return tuple(p for by_cell in self._by_cell.values() for p in by_cell.values())

    @cached_property
    def cells(self) -> tuple[str, ...]:
        """The names of the cells in the order of the experiments; ("",) where none is named."""
        return tuple(dict.fromkeys(e.cell for e in self.experiments)) or ("",)

    def of_model(self, name: str) -> dict[str, Parameter]:
        """Return, by cell, the parameters of the fit that a parameter of the model stands for.

        One that all cells share stands under the cell "".
        """
        return self._by_cell[name]

    @cached_property
    def _by_cell(self) -> dict[str, dict[str, Parameter]]:
        """`of_model` by the model's names, without the temperature."""
        found = {}
        for p in self.model.parameters:
            if not p.per_cell:
                found[p.name] = {"": p}
                continue
            if "" in self.cells and len(self.cells) > 1:
                raise InputError(
                    f"{p.name} is per cell, and only some experiments say their cell (there are: "
                    f"{', '.join(filter(None, self.cells))})",
                    key="experiments",
                )
            own = {cell: p.of_cell(cell) for cell in self.cells}
            found[p.name] = {c: replace(one, name=labelled(p.name, c)) for c, one in own.items()}
        if self.has_temperatures:
            del found[CELSIUS]
        return found

    @property
    def has_temperatures(self) -> bool:
        """True if the temperature of each experiment is a parameter of the model."""
        return CELSIUS in self.model.parameter_names

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The experiments, those together that one model serves with the same parameters."""
        has_cells = any(p.per_cell for p in self.model.parameters)
        settings: dict[tuple[str, float | None, Clamp | None, bool], list[int]] = {}
        for k, e in enumerate(self.experiments):
            setting = e.cell if has_cells else "", self._celsius(k), e.clamp, bool(e.observations)
            settings.setdefault(setting, []).append(k)
        if len(settings) <= 1 and not has_cells and not self.has_temperatures:
            everything = tuple(range(len(self.experiments)))
            return (Group(self, everything, tuple(range(len(self.parameters)))),)
        row_of = {p.name: row for row, p in enumerate(self.parameters)}
        groups = []
        for (cell, celsius, _, _), places in settings.items():
            rows: list[int | None] = []
            for p in self.model.parameters:
                by_cell = self._by_cell.get(p.name, {})
                own = by_cell.get(cell, by_cell.get(""))
                rows.append(None if own is None else row_of[own.name])
            some = (replace(self.experiments[k], cell="", temperature_C=None) for k in places)
            alike = Problem(self._shared_model, tuple(some), self.noise)
            groups.append(Group(alike, tuple(places), tuple(rows), cell, celsius))
        return tuple(groups)

    def _celsius(self, k: int) -> float | None:
        """Return the temperature of an experiment where it is a parameter of the model, else None.

        Raises: InputError where no temperature is stated, or where the model cannot take it.
        """
        own, key = self.experiments[k].temperature_C, f"experiments[{k + 1}].temperature"
        if not self.has_temperatures:
            differs = own not in (None, self.model.temperature_C)
            if differs and self.model.follows_temperature:
                raise InputError("the model was built for one temperature alone", key=key)
            return None
        celsius = self.model.temperature_C if own is None else own
        if celsius is None:
            raise InputError("neither this experiment nor the model says its temperature", key=key)
        return celsius

    @cached_property
    def _shared_model(self) -> ChannelModel:
        """The model of every group, in which a parameter is fixed only if it is so for every cell.

        It is one object, so that all groups share its generated code.
        """
        parameters = []
        for p in self.model.parameters:
            fixed = all(one.fixed for one in self._by_cell.get(p.name, {"": p}).values())
            parameters.append(replace(p, fixed=fixed, per_cell=False, cells=(), covers=True))
        return replace(self.model, parameters=tuple(parameters))

    def linear_parameters(self) -> dict[str, bool]:
        """Return `ChannelModel.linear_parameters` of the parameters that are free for any cell.

        With a clamp there are none: the current changes the potential at which it flows. With
        `noise` there are none either: the cost is no parabola in the current; nor with
        observations, many of which are ratios.
        """
        if self.noise is not None or any(e.clamp or e.observations for e in self.experiments):
            return {}
        return self._shared_model.linear_parameters()

    def values(self) -> np.ndarray:
        """Return the values of the parameters (n_parameters,), base units.

        Raises: InputError where parameters have no value; it names all of these.
        """
        return values_of(self.parameters)

    def with_values(self, values: np.ndarray) -> Problem:
        """Return the same problem with values (n_parameters,), base units, as the model's own."""
        by_name = dict(zip((p.name for p in self.parameters), values.tolist(), strict=True))
        parameters = []
        for p in self.model.parameters:
            own = {
                cell: replace(one, name=p.name, value=by_name[one.name])
                for cell, one in self._by_cell.get(p.name, {}).items()
            }
            if "" in own:
                p = replace(p, value=own.pop("").value)
            parameters.append(replace(p, cells=tuple(own.items())) if own else p)
        return replace(self, model=replace(self.model, parameters=tuple(parameters)))

    @cached_property
    def _tied(self) -> dict[str, tuple[Tie, str, Group]]:
        """By name the ties of the fit, each with the model's name for it and a group with it."""
        found: dict[str, tuple[Tie, str, Group]] = {}
        for tie in self.model.ties:
            behind = self.model.names_behind(tie.name)
            for group in self.groups:
                name = labelled(tie.name, self.label(group, behind))
                found.setdefault(name, (replace(tie, name=name), tie.name, group))
        return found

    @property
    def ties(self) -> tuple[Tie, ...]:
        """The tied parameters of the fit.

        Of one that follows from a parameter per cell, or from a temperature that experiments have
        of their own, there is one for each of these, such as ``g_total[cell 1]``.
        """
        return tuple(tie for tie, _, _ in self._tied.values())

    def tied_values(self, values: np.ndarray) -> dict[str, float]:
        """Return the values of `ties` by name, base units, at parameters (n_parameters,)."""
        found = {}
        for name, (_, models, group) in self._tied.items():
            own = group.parameters(np.asarray(values)[:, None])[:, 0]
            found[name] = self.model.tied_values(own)[models]
        return found

    def label(self, group: Group, names: set[str]) -> str:
        """Return the cell and the temperature of a group, as far as these names depend on them."""
        per_cell = any(p.per_cell and p.name in names for p in self.model.parameters)
        parts = [group.cell] if per_cell and group.cell else []
        parts += [degrees(group.temperature_C)] if CELSIUS in names else []
        return ", ".join(filter(None, parts))

    @property
    def has_recordings(self) -> bool:
        """True unless all that a score looks at are observations."""
        return not self.fitted or any(not e.observations for e in self.fitted)

    @property
    def unit(self) -> str:
        """The unit of the root of the cost: pA, or standard errors where only observations count.

        Beside recordings a standard error counts as the noise of a sample, so that it is pA, too.
        """
        return "pA" if self.has_recordings else STANDARD_ERRORS

    @property
    def known_noise_pA(self) -> float | None:
        """The standard deviation of a residual that a fit with observations gives beforehand.

        It is 1 where only observations count. None where only recordings do, as it follows from
        the residuals of these.
        """
        return next((e.noise_pA for e in self.fitted if e.observations), None)

    @property
    def fitted(self) -> list[Experiment]:
        """The experiments that a score looks at: those with data and a weight above 0."""
        return [e for e in self.experiments if e.recording is not None and e.weight > 0]

    def check_memory(self, n_candidates: int = 1, file: str | PathLike[str] | None = None) -> None:
        """Refuse candidates whose currents, all held at once, this machine has no memory for.

        Raises: InputError with the memory that is needed and that is free.
        """
        n_samples = sum(e.protocol.n_sweeps * e.protocol.n_times_max for e in self.experiments)
        each = _BYTES_A_SAMPLE + _BYTES_A_CURRENT * (n_candidates - 1)
        of = f"samples of {n_candidates:,} candidates" if n_candidates > 1 else "samples"
        memory.check(n_samples, each, of, file)

    @cached_property
    def scored(self) -> RunTree:
        """All samples with a weight above 0, laid out for scoring."""
        with_data = self.fitted
        return run_tree(
            [e.protocol for e in with_data],
            [e.recording.current_pA for e in with_data if e.recording],
            [e.weight * e.recording.weight for e in with_data if e.recording],
            ligands=self.model.ligands,
        )

    @cached_property
    def simulated(self) -> RunTree:
        """All samples of all protocols, laid out for simulation."""
        none = [None] * len(self.experiments)
        return run_tree(
            [e.protocol for e in self.experiments], none, none, ligands=self.model.ligands
        )


@dataclass(frozen=True)
class WindowProblem(Problem):
    """The problem of the currents from which observations are taken, in their windows alone.

    The data are zeros, and what lies between windows is not sampled.
    """

    @classmethod
    def of(cls, problem: Problem) -> WindowProblem:
        """Return that of the observations of a problem of one group."""
        experiments = []
        for e in problem.experiments:
            weight = window_weights(e.observations, e.protocol)
            recording = Recording(e.protocol.times_ms, np.zeros(weight.shape), weight)
            experiments.append(Experiment(e.protocol, recording))
        return cls(problem.model, tuple(experiments))

    @cached_property
    def scored(self) -> RunTree:
        """The samples in windows."""
        recordings = [e.recording for e in self.experiments if e.recording]
        return run_tree(
            [e.protocol for e in self.experiments],
            [r.current_pA for r in recordings],
            [r.weight for r in recordings],
            windows=True,
            ligands=self.model.ligands,
        )

    @property
    def simulated(self) -> RunTree:  # type: ignore[override]
        """The same."""
        return self.scored


@dataclass(frozen=True, eq=False)
class Group:
    """Experiments of a problem that one model serves with the same parameters.

    Attributes:
        problem: these experiments alone, with the model that serves them.
        places: where these stand among all experiments.
        rows: for each parameter of the model its row among those of the fit; None for celsius.
        cell: its name; empty where no parameter is per cell, or no cell is named.
        temperature_C: degC; None where the model has the same temperature for all experiments.
    """

    problem: Problem
    places: tuple[int, ...]
    rows: tuple[int | None, ...]
    cell: str = ""
    temperature_C: float | None = None

    @property
    def name(self) -> str:
        """The difference from other groups, such as "cell 1, 34 degC", or ""."""
        return ", ".join(filter(None, (self.cell, degrees(self.temperature_C))))

    @property
    def clamp(self) -> Clamp | None:
        """The clamp of all of its experiments; None for an ideal one."""
        return next((e.clamp for e in self.problem.experiments), None)

    @property
    def is_observed(self) -> bool:
        """True if its data are observations; see `observation`."""
        return any(e.observations for e in self.problem.experiments)

    @property
    def sets_temperature(self) -> bool:
        """True if the temperature is a parameter of the model, which the group sets."""
        return None in self.rows

    def parameters(self, whole: Any) -> Any:
        """Return the parameters of the model, (n_model_parameters, n_candidates) float64.

        Arguments:
            whole: (n_parameters, n_candidates), those of the fit, an array of NumPy or CuPy.
        """
        own = whole[[0 if row is None else row for row in self.rows]]
        if self.sets_temperature:
            own[self.rows.index(None)] = self.temperature_C
        return own

    def own_model(self, whole: Problem) -> ChannelModel:
        """Return the model with this group's ranges, values and temperature.

        Arguments:
            whole: the problem of which this is a group.
        """
        parameters = []
        for p, row in zip(self.problem.model.parameters, self.rows, strict=True):
            if row is not None:
                parameters.append(replace(whole.parameters[row], name=p.name))
            elif (celsius := self.temperature_C) is not None:
                parameters.append(replace(p, lower=celsius, upper=celsius, value=celsius))
        return replace(self.problem.model, parameters=tuple(parameters))


def degrees(celsius: float | None) -> str:
    """Return a temperature in words, empty where there is none."""
    return "" if celsius is None else f"{celsius:g} degC"


def labelled(name: str, label: str) -> str:
    """Return the name of a parameter for one cell, such as ``gmax[cell 1]``."""
    return f"{name}[{label}]" if label else name


def total_weight(problem: Problem) -> float:
    """Return the sum of the weights of all samples that count."""
    return float(sum(weight.sum() for weight, _ in _weighted(problem)))


def mean_square(problem: Problem) -> float:
    """Return the cost of no current at all, pA^2: the weighted mean square of the data."""
    return square_sum(problem) / total_weight(problem)


def square_sum(problem: Problem) -> float:
    """Return the weighted sum of the squares of the data, pA^2."""
    return float(sum((weight * data**2).sum() for weight, data in _weighted(problem)))


def rounding_floor(problem: Problem, dtype: str) -> float:
    """Return the cost, pA^2, below which differences between candidates are rounding.

    Arguments:
        dtype: the scorer's precision, "float64" or "float32".
    """
    return _ROUNDING[dtype] ** 2 * mean_square(problem) if total_weight(problem) > 0 else 0.0


def n_scored(problem: Problem) -> int:
    """Return how many samples have a weight above 0."""
    return sum(weight.size for weight, _ in _weighted(problem))


def _weighted(problem: Problem) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the weights and the data of the samples that count, for each experiment."""
    pairs = []
    for experiment in problem.experiments:
        if experiment.recording is not None:
            weight = experiment.weight * experiment.recording.weight
            counts = weight > 0
            pairs.append((weight[counts], experiment.recording.current_pA[counts]))
    return pairs
