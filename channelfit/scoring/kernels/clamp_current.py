"""The current of a clamped channel as text: a sum of terms, and its derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from channelfit.model.channel import ChannelModel


class Current:
    """The current as a sum of terms, drive times the open probabilities of some chains, in text.

    Arguments:
        drive: text of the drive of a term; the open probability of chain k is named o{k}.
    """

    def __init__(self, model: ChannelModel, drive: Callable[[int], str]) -> None:
        self.model, self.drive = model, drive
        self.chains = [term.chains for term in model.terms]

    def text(self) -> str:
        """Return the current, pA."""
        return self.by_drive(self.drive)

    def by_drive(self, of: Callable[[int], str]) -> str:
        """Return the current with each drive replaced by another text."""
        parts = [f"{of(j)}*{self._product(chains)}" for j, chains in enumerate(self.chains)]
        return f"({' + '.join(parts)})"

    def by_open(self, k: int) -> str:
        """Return the derivative by the open probability of chain k."""
        return self._by_open(k, self.drive)

    def by_open_dot(self, k: int, dots: Sequence[str], moved: Sequence[str]) -> str:
        """Return the change of `by_open` as open probabilities
        change by dots and drives by moved.
        """
        parts = [self._by_open(k, moved.__getitem__)]
        for j, chains in enumerate(self.chains):
            if k in chains:
                for m in chains:
                    second = self._product(chains, k, m)
                    parts.append(f"{self.drive(j)}*{second}*{dots[m]}")
        return f"({' + '.join(parts)})"

    def by_drive_dot(self, slopes: Sequence[str], bent: Sequence[str], dots: Sequence[str]) -> str:
        """Return the change of `by_drive(slopes)` as slopes change by bent and opens by dots."""
        parts = [self.by_drive(bent.__getitem__)]
        for k in range(len(self.model.chains)):
            parts.append(f"{self._by_open(k, slopes.__getitem__)}*{dots[k]}")
        return f"({' + '.join(parts)})"

    def _by_open(self, k: int, drive: Callable[[int], str]) -> str:
        parts = [
            f"{drive(j)}*{self._product(chains, k)}"
            for j, chains in enumerate(self.chains)
            if k in chains
        ]
        return f"({' + '.join(parts) or '0.0'})"

    def _product(self, chains: Sequence[int], *by: int) -> str:
        """Return the product of powers of open probabilities, differentiated by some of them."""
        factors = []
        for k in chains:
            power, times = self.model.chains[k].power, 1
            for _ in range(sum(one == k for one in by)):
                times, power = times * power, power - 1
            if times != 1:
                factors.append(f"{float(times)!r}")
            factors += [f"o{k}"] * max(0, power)
        return f"({'*'.join(factors) or '1.0'})"
