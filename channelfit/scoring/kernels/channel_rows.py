"""The rows of a model's rates and occupancies in the arrays of generated kernels."""

from __future__ import annotations

from collections.abc import Iterable

from channelfit.model.channel import ChannelModel


class ChannelRows:
    """Rows of q, the rates of all transitions, and of x, the occupancies of all chains.

    Attributes:
        transitions: of all chains, one after the other: the rows of q.
        first_rate, first_x: per chain, its first row of q and of x. Of n
            occupancies the last n - 1 are kept; the first is one minus the rest.
    """

    def __init__(self, model: ChannelModel) -> None:
        self.model = model
        self.transitions = [t for chain in model.chains for t in chain.transitions]
        self.n_rates = len(self.transitions)
        self.first_rate = offsets(len(c.transitions) for c in model.chains)
        self.first_x = offsets(len(c.states) - 1 for c in model.chains)
        self.n_x = sum(len(c.states) - 1 for c in model.chains)

    def entries(self, k: int, first: int | None = None) -> list[tuple[int, int, int]]:
        """Return (source, target, row of q) of every transition of chain k.

        Arguments:
            first: the row of the chain's first transition, if not its own.
        """
        chain, begin = self.model.chains[k], self.first_rate[k] if first is None else first
        index = {s: i for i, s in enumerate(chain.states)}
        return [
            (index[t.source], index[t.target], begin + r) for r, t in enumerate(chain.transitions)
        ]

    def opening_and_closing(self, k: int) -> tuple[int, int]:
        """Return, for a chain of two states, the rows of q that leave the first and the second."""
        rows = {source: row for source, _, row in self.entries(k)}
        return rows[0], rows[1]


def offsets(sizes: Iterable[int]) -> list[int]:
    """Return the beginning of each of some blocks of these sizes."""
    out, total = [], 0
    for size in sizes:
        out.append(total)
        total += size
    return out
