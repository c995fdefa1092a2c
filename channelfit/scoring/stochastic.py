"""Currents of a number of channels, each of which is in one state at a time, drawn at random.

Between two samples the channels in each state go to where a multinomial draw takes them, with the
probabilities of the propagator of that interval: exact at held voltages, and as exact as the
reference backend's propagators where the voltage moves.
"""

from __future__ import annotations

import numpy as np

from channelfit.model.channel import ChannelModel
from channelfit.problem.channel_noise import one_scheme
from channelfit.problem.experiment import Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.statuses import OK
from channelfit.reading.errors import InputError
from channelfit.scoring.reference import Level, Population, Simulation

#: The most channels that are drawn: beyond it float64 does not tell one from none.
MOST_CHANNELS = 10**15


def simulate_channels(
    model: ChannelModel,
    protocol: Protocol,
    values: np.ndarray,
    n_channels: int,
    random: np.random.Generator,
    instrument_pA: float = 0.0,
    open_pA: float = 0.0,
    n_cells: int = 1,
) -> np.ndarray:
    """Return currents of channels in some cells: (n_sweeps, n_times, n_cells) pA.

    NaN after the end of a shorter sweep. The current of a fully open channel is that of the model
    over the number of channels.

    Arguments:
        values: (n_parameters,), base units.
        n_channels: of each cell.
        instrument_pA: the standard deviation that the amplifier adds to each sample.
        open_pA: that which each open channel adds to each sample; of a state that conducts less,
            less in proportion.

    Raises InputError: the values give no finite rates; channels that cannot be counted.
    """
    if not 1 <= n_channels <= MOST_CHANNELS:
        raise InputError(f"1 to {MOST_CHANNELS:.0e} channels can be simulated, not {n_channels:g}")
    channels = _Channels(model, np.tile(values[:, None], n_cells), n_channels, random, open_pA)
    found = Simulation(channels, protocol, 1).currents()
    if (channels.status() != OK).any():
        raise InputError("these values give no finite rates, so no current can be simulated")
    found += instrument_pA * random.standard_normal(found.shape)
    return found


class _Channels(Population):
    """Cells with channels: occupancies are whole numbers of channels over their number."""

    def __init__(
        self,
        model: ChannelModel,
        parameters: np.ndarray,
        n_channels: int,
        random: np.random.Generator,
        open_pA: float,
    ) -> None:
        scheme, self._term = one_scheme(model)
        super().__init__(scheme, parameters)
        self._n, self._random, self._open = n_channels, random, open_pA
        self._loud = np.array(scheme.chains[0].conductances) ** 2

    def steady_state(self, level: Level) -> list[np.ndarray]:
        (x,) = super().steady_state(level)
        return [self._random.multinomial(self._n, x) / self._n]

    def applied(self, p: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Send the channels in each state where a draw takes them."""
        counts = np.rint(x * self._n).astype(np.int64)
        return np.asarray(
            self._random.multinomial(counts, np.swapaxes(p, -1, -2)).sum(axis=1) / self._n
        )

    def current(self, state: list[np.ndarray], v_mV: float) -> np.ndarray:
        """Return the current (n_cells,) pA, with the noise of channels that are open."""
        loud = self._open * np.sqrt(self._n * (state[0] @ self._loud))
        mean = super().current(state, v_mV)
        return np.asarray(mean + loud * self._random.standard_normal(self.n))


def simulate_noisy(
    problem: Problem, values: np.ndarray, random: np.random.Generator
) -> list[np.ndarray]:
    """Return currents (n_sweeps, n_times) pA of each experiment, with the problem's `noise`.

    Arguments:
        values: (n_parameters,), base units; the number of channels is rounded.
    """
    found: dict[int, np.ndarray] = {}
    for group in problem.groups:
        own, model = group.parameters(values[:, None])[:, 0], group.problem.model
        assert group.problem.noise is not None
        at = group.problem.noise.at(model, own)
        for place, e in zip(group.places, group.problem.experiments, strict=True):
            n, noise = round(at["channels"]), (at["instrument"], at["open"])
            found[place] = simulate_channels(model, e.protocol, own, n, random, *noise)[..., 0]
    return [found[k] for k in range(len(found))]
