"""The modes of a model's open probability, and the rows of their values in kernels."""

from __future__ import annotations

from channelfit.model.channel import ChannelModel
from channelfit.scoring.kernels.channel_rows import ChannelRows
from channelfit.scoring.kernels.scalars import Scalars

#: Up to so many states a mode's amplitude is one of Lagrange's products; see `spectral`.
MOST_PRODUCTS = 6

#: The power of each mode of a model in a product of exponentials.
Index = tuple[int, ...]


class SpectralLayout(ChannelRows):
    """The modes of a model, and the rows of their values in a kernel's arrays.

    Attributes:
        n_modes: modes of all chains. A chain of n states has n - 1, which begin where its
            occupancies begin in x.
        layout: per chain, names of blocks of rows of the array s, and their first rows.
        terms: indices I of the open probability; the constant one first.
        decaying: the same without the constant one.
        sums: indices of its square without the constant one, each after those it is made of.
        n_kept: rows of the array s, the results of one visit.
        strainable: chains with speeds that may come so close that their amplitudes cancel.
    """

    def __init__(self, model: ChannelModel) -> None:
        super().__init__(model)
        self.n_kept, self.n_modes = 0, self.n_x
        self.layout = [self._kept(len(chain.states)) for chain in model.chains]
        self.terms = self._indices(1)
        self.decaying = [index for index in self.terms if any(index)]
        square = {plus(a, b) for a in self.terms for b in self.terms}
        self.sums = sorted(square - {(0,) * self.n_modes}, key=lambda index: (sum(index), index))
        self.strainable = [k for k, chain in enumerate(model.chains) if len(chain.states) == 3]

    def _kept(self, n: int) -> dict[str, int]:
        """Reserve rows of s for a chain of n states: names of blocks, and their first rows."""
        if n == 1:
            sizes = {}
        elif n == 2:
            sizes = {"speed": 1, "limit": 1}
        elif n == 3:
            sizes = {"speed": 2, "limit": 2, "slow": 4}
        elif n <= MOST_PRODUCTS:
            sizes = {
                "speed": n - 1,
                "limit": n - 1,
                "row": (n - 1) ** 2,
                "per_gap": (n - 1) * (n - 2) // 2,
            }
        else:
            sizes = {
                "speed": n - 1,
                "limit": n,
                "root": n,
                "inverse": n,
                "open": n - 1,
                "mode": n * (n - 1),
            }
        rows = {}
        for name, size in sizes.items():
            rows[name] = self.n_kept
            self.n_kept += size
        return rows

    def _indices(self, times: int) -> list[Index]:
        """Return all I of the open probability to a power, the constant one first."""
        found = {(0,) * self.n_modes}
        for k, chain in enumerate(self.model.chains):
            own = {(0,) * self.n_modes} | {self.unit(m) for m in self.modes(k)}
            for _ in range(chain.power * times):
                found = {plus(a, b) for a in found for b in own}
        return sorted(found, key=lambda index: (sum(index), index))

    def modes(self, k: int) -> range:
        """Return the modes of chain k."""
        return range(self.first_x[k], self.first_x[k] + len(self.model.chains[k].states) - 1)

    def speed(self, c: Scalars, mode: int) -> str:
        """Return the place of a mode's speed, 1/ms."""
        for k, chain in enumerate(self.model.chains):
            if mode in self.modes(k) and len(chain.states) > 1:
                return c.at("s", self.layout[k]["speed"] + mode - self.first_x[k])
        raise IndexError(mode)

    def unit(self, mode: int) -> Index:
        """Return the index that counts one mode once."""
        return tuple(int(m == mode) for m in range(self.n_modes))

    def rate_rows(self, k: int) -> dict[tuple[int, int], int]:
        """Return the row of q of every transition (source, target) of chain k."""
        return {(source, target): row for source, target, row in self.entries(k)}


def plus(a: Index, b: Index) -> Index:
    """Return the index of the product of two terms."""
    return tuple(i + j for i, j in zip(a, b, strict=True))
