"""A model and its experiments: what a scorer scores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from channelfit.model import ChannelModel
from channelfit.packing import Packed, pack
from channelfit.protocol import Protocol
from channelfit.recording import Recording


@dataclass(frozen=True)
class Experiment:
    """A protocol, what was recorded under it (None: simulate only), and its share of the cost."""

    protocol: Protocol
    recording: Recording | None = None
    weight: float = 1.0


@dataclass(frozen=True)
class Problem:
    """The cost of a candidate is ``sum w (I - d)^2 / sum w`` over all samples, pA^2."""

    model: ChannelModel
    experiments: tuple[Experiment, ...]

    @cached_property
    def scored(self) -> Packed:
        """Everything with a weight, packed for scoring."""
        with_data = [e for e in self.experiments if e.recording is not None]
        return pack(
            [e.protocol for e in with_data],
            [e.recording.current_pA for e in with_data if e.recording],
            [e.weight * e.recording.weight for e in with_data if e.recording],
        )

    @cached_property
    def simulated(self) -> Packed:
        """Every sample of every protocol, packed for simulation."""
        none = [None] * len(self.experiments)
        return pack([e.protocol for e in self.experiments], none, none)
