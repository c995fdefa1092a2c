"""The current of a model under a protocol, for Python users and for the command line."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from channelfit.front import kinds
from channelfit.front.progress import compilations_shown, screen_for
from channelfit.front.result import Fit
from channelfit.model.channel import ChannelModel, Parameter
from channelfit.model.model import Model
from channelfit.problem.clamp import left_out
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.extreme_rates import CEILINGS, extremes, voltages_of
from channelfit.problem.plausibility import protocol_cautions
from channelfit.problem.protocol import Protocol
from channelfit.reading.csv_tables import csv_table
from channelfit.reading.errors import Caution, InputError, shown
from channelfit.reading.files import write_text
from channelfit.results.report.terminal import SearchScreen
from channelfit.results.report.traces import TracePicture, Traces
from channelfit.scoring.machine import gpu
from channelfit.scoring.reference import ReferenceScorer
from channelfit.scoring.scorer import make_scorer
from channelfit.scoring.stochastic import simulate_channels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: The number of channels that are drawn, the seed, and the noise of amplifier and open channel, pA.
Draws: TypeAlias = tuple[int, int, float, float]


def draws_of(
    channels: int | None, seed: int | None, noise: float | None, open_noise: float | None
) -> Draws | None:
    """Return how channels are drawn; None for the mean current.

    Raises InputError: what has no meaning for the mean current, or noise below 0.
    """
    given = {"noise": noise, "open_noise": open_noise}
    for name, value in ({"seed": seed} | given).items():
        if channels is None and value is not None:
            raise InputError("the mean current has none; give `channels` as well", key=name)
    for name, pA in given.items():
        if pA is not None and not 0 <= pA < math.inf:
            raise InputError(f"a number of pA, 0 or more, was expected, not {shown(pA)}", key=name)
    return None if channels is None else (channels, seed or 0, noise or 0.0, open_noise or 0.0)


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated current.

    Attributes:
        model: the name of the model.
        protocol: what it was simulated under.
        current: (n_sweeps, n_times) pA; NaN after the end of a shorter sweep.
        remarks: rates that no channel has, each in a sentence with its voltage and value.
        values: (n_parameters,) the values of the model's parameters, base units.

    Example:
        >>> import channelfit as cf
        >>> found = cf.simulate("models/model_b.yaml", "protocols/ramp.yaml")
        >>> found.current.shape == found.voltage.shape == (1, len(found.time))
        True
        >>> found.open_probability.shape == found.states["O"].shape == found.current.shape
        True
        >>> found.to_csv("ramp.csv").name
        'ramp.csv'
    """

    model: str
    protocol: Protocol
    current: np.ndarray
    remarks: tuple[str, ...] = ()
    _channel: ChannelModel | None = None
    values: np.ndarray | None = None

    @property
    def time(self) -> np.ndarray:
        """Times of the samples, (n_times,) ms, the same for each sweep."""
        return self.protocol.times_ms

    @property
    def voltage(self) -> np.ndarray:
        """Command voltage, (n_sweeps, n_times) mV; NaN after the end of a shorter sweep."""
        return self.protocol.command()

    @cached_property
    def states(self) -> dict[str, np.ndarray]:
        """Occupancies by state, and open probabilities of gates, (n_sweeps, n_times) each.

        They are computed when they are first needed, by the reference backend. NaN after the
        end of a shorter sweep.
        """
        found: dict[str, np.ndarray] = {}
        for chain, occupied in zip(self._model.chains, self._occupied, strict=True):
            if chain.is_gate:
                found[chain.name] = occupied[:, :, 1]
            else:
                found |= {s: occupied[:, :, k] for k, s in enumerate(chain.states)}
        return found

    @cached_property
    def open_probabilities(self) -> dict[str, np.ndarray]:
        """The open probability at each sample by current, (n_sweeps, n_times) each."""
        found: dict[str, np.ndarray] = {}
        for term in self._model.terms:
            for k in term.chains:
                chain = self._model.chains[k]
                is_open = (self._occupied[k] @ np.array(chain.conductances)) ** chain.power
                found[term.name] = found.get(term.name, 1.0) * is_open
        return found

    @property
    def open_probability(self) -> np.ndarray:
        """The open probability at each sample, (n_sweeps, n_times).

        Raises: InputError where the model has several currents; see `open_probabilities`.
        """
        found = self.open_probabilities
        if len(found) != 1:
            raise InputError(
                f"the model has the currents {', '.join(found) or '(none)'}; take one of "
                "`open_probabilities`",
                key="open_probability",
            )
        return next(iter(found.values()))

    @property
    def _model(self) -> ChannelModel:
        if self._channel is None:
            raise InputError("this simulation was made without its model", key="states")
        return self._channel

    @cached_property
    def _occupied(self) -> list[np.ndarray]:
        """The occupancies of each chain, (n_sweeps, n_times, n_states)."""
        problem = Problem(self._model, (Experiment(self.protocol),))
        assert self.values is not None
        (found,) = ReferenceScorer(problem).occupancies(self.values)
        edges = np.cumsum([len(chain.states) for chain in self._model.chains])[:-1]
        return np.split(found, edges, axis=2)

    @property
    def _page(self) -> TracePicture:
        """The command voltage and the current, for a picture."""
        return TracePicture(
            (Traces(self.protocol, self.current, title=self.protocol.name),), self.model
        )

    def plot(self) -> Figure:
        """Return command voltage and current; a figure of Matplotlib, which a notebook shows."""
        from channelfit.front.pictures import traces_picture  # loads Matplotlib

        return traces_picture(self._page)

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write time (ms), and current (pA) and voltage (mV) of every sweep, a row a sample.

        A file that is there is replaced. Raises InputError where it cannot be written.
        """
        columns = [("time_ms", self.time)]
        for k, pair in enumerate(zip(self.current, self.voltage, strict=True), 1):
            names = f"sweep_{k}_current_pA", f"sweep_{k}_voltage_mV"
            columns += zip(names, pair, strict=True)
        write_text(Path(path), csv_table(columns, digits=9))
        return Path(path)

    def __repr__(self) -> str:
        sweeps, times = self.current.shape
        return f"<Simulation of {self.model}: {sweeps} sweeps of {times} samples>"


def simulate(
    model: Model | Fit | str | os.PathLike[str],
    protocol: Protocol | str | os.PathLike[str],
    *,
    values: Mapping[str, float] | None = None,
    cell: str | None = None,
    backend: str = "auto",
    dtype: str = "float64",
    path: str = "auto",
    channels: int | None = None,
    seed: int | None = None,
    noise: float | None = None,
    open_noise: float | None = None,
    progress: bool | None = None,
) -> Simulation:
    """Return the current of a model under a protocol.

    Arguments:
        model: a `Model`, a `Fit` (whose fitted values are taken), or a model or fit file.
        protocol: a `Protocol`, or a protocol file.
        values: of parameters by name, in base units (ms, mV, nS, pA), in place of the model's.
        cell: the name of a cell, whose own values are taken where parameters are per cell.
        backend: what computes: auto, reference, cpu or cuda.
        dtype: ``float64`` or ``float32``.
        path: how it is computed, such as ``stepping``; auto chooses.
        channels: draw so many channels, which open and close one by one and together have the
            model's conductance; None for the mean current. `states` stay means.
        seed: of the draws, 0 where none is given.
        noise: pA, the standard deviation that the amplifier adds to each sample of these.
        open_noise: pA, that which each open channel adds to each sample.
        progress: whether to show that something is compiled; None shows it in notebooks and on
            terminals.

    Returns: a `Simulation` with `time`, `current`, `voltage`, `states` and `open_probability`.

    Raises:
        InputError: a parameter without a value, one that the model does not have, a value that is
            no number or outside of its range, or values at which a rate is not finite.

    Example:
        >>> import channelfit as cf
        >>> steps = cf.Protocol.load("protocols/activation.yaml")
        >>> found = cf.simulate("models/model_b.yaml", steps, values={"gmax": 3.0})
        >>> found.current.shape == (steps.n_sweeps, len(found.time))
        True
        >>> single = cf.simulate("models/model_b.yaml", steps, channels=1, seed=3)
        >>> len(set(single.current[-1, -100:])) <= 2  # closed or open
        True
    """
    draws = draws_of(channels, seed, noise, open_noise)
    own = model.model if isinstance(model, Fit) else model
    apart: tuple[Caution, ...] = ()
    if isinstance(model, Fit) and any(e.clamp for e in model._plan.problem.experiments):
        apart = left_out(model._plan.document | {"fit": model._plan.section}, model.name)
    if isinstance(own, Model):
        channel = own.channel
    else:
        channel, document = kinds.channel_document(own)
        apart = left_out(document, os.fspath(own))
    channel = of_cell(channel, cell)
    command = protocol if isinstance(protocol, Protocol) else Protocol.load(protocol)
    with screen_for(channel.name, progress) as screen, compilations_shown(screen):
        screen.warn((*channel.cautions, *apart))
        found = simulated(
            channel,
            values_with(channel, values),
            command,
            backend,
            dtype,
            path,
            screen,
            draws=draws,
        )
        return found


def of_cell(channel: ChannelModel, cell: str | None) -> ChannelModel:
    """Return the model as one cell has it; the model itself without a name.

    Raises: InputError for a cell of which the model says nothing.
    """
    if cell is None:
        return channel
    known = dict.fromkeys(name for p in channel.parameters for name, _ in p.cells)
    if cell not in known:
        named = ", ".join(known) or "none, since no parameter has a value for each cell"
        raise InputError(f'the model knows no cell "{cell}". Known: {named}', key="cell")
    return channel.of_cell(cell)


def values_with(channel: ChannelModel, changed: Mapping[str, float] | None) -> np.ndarray:
    """Return all values, (n_parameters,): the model's own, but for those that are changed."""
    changed = dict(changed or {})
    names = [p.name for p in channel.parameters]
    strange = next((name for name in changed if name not in names), None)
    if strange is not None:
        raise InputError(f"the model has no such parameter; it has {', '.join(names)}", key=strange)
    found = []
    for p in channel.parameters:
        value = changed.get(p.name, p.value)
        if value is None:
            known = ", ".join(name for name, _ in p.cells)
            choose = f", or the name of a cell: {known}" if known else ""
            raise InputError(
                f"this parameter has no value; give it one: `value` in the model file, by --set "
                f"parameters.{p.name}.value=NUMBER, or in `values` from Python{choose}",
                key=p.name,
            )
        found.append(_checked(p, value) if p.name in changed else float(value))
    return np.array(found)


def _checked(p: Parameter, value: object) -> float:
    """Return a value for a parameter, as a number in its base unit and within its range."""
    unit = f" in {p.unit}" if p.unit else ""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        raise InputError(
            f"a number{unit} was expected, without a unit beside it, not {shown(value)}", key=p.name
        )
    number = float(value)
    if not math.isfinite(number):
        raise InputError(f"{number:g} is not a number that can be simulated", key=p.name)
    if p.lower < p.upper and not p.lower <= number <= p.upper:
        raise InputError(
            f"{number:g} lies outside the range of this parameter, {p.lower:g} to {p.upper:g}"
            f"{unit}; change the value here or the range in the model",
            key=p.name,
        )
    return number


def simulated(
    channel: ChannelModel,
    values: np.ndarray,
    protocol: Protocol,
    backend: str,
    dtype: str,
    path: str,
    screen: SearchScreen,
    file: str | os.PathLike[str] | None = None,
    place: str = "protocol",
    draws: Draws | None = None,
) -> Simulation:
    """Simulate at values (n_parameters,), and show on a screen before it what looks wrong.

    Arguments:
        file, place: where model and protocol stand, for messages.
        draws: how many channels are drawn; None for the mean current.

    Raises: InputError for values at which the model has no finite current.
    """
    try:
        protocol.commanded(channel.ligands)
    except InputError as error:
        raise error.at(place) from None
    Problem(channel, (Experiment(protocol, None),)).check_memory(1, place)
    screen.warn(protocol_cautions(protocol, place))
    on_gpu = backend == "cuda" or (backend == "auto" and gpu.is_available())
    ceilings = CEILINGS[dtype if on_gpu else "float64"]
    strange = extremes(channel, values, voltages_of([protocol], channel.ligands), ceilings)
    if strange and strange[0].fails:
        raise InputError("; ".join(str(e) for e in strange if e.fails), file)
    screen.begin("simulating")
    if draws is None:
        scorer = make_scorer(Problem(channel, (Experiment(protocol),)), backend, dtype, path)
        current = scorer.simulate(values[:, None])[0][:, :, 0]
    else:
        n, seed, noise, open_noise = draws
        random = np.random.Generator(np.random.Philox(seed))
        given = n, random, noise, open_noise
        current = simulate_channels(channel, protocol, values, *given)[:, :, 0]
    remarks = tuple(str(e) for e in strange)
    return Simulation(channel.name, protocol, current, remarks, channel, values)
