"""Solving with s - A for a positive number s: a scheme's states eliminated one after the other.

In `layout.resolvent_tables` R = s (s - A)^-1 gives occupancies after an exponentially distributed
time of mean 1/s: every state is left at the rates of its transitions, and at the rate s for good.
Transitions into an eliminated state go on to its targets at once, or end there, so that nothing is
subtracted and every occupancy keeps its digits however far apart the rates lie (as in Grassmann,
Taksar and Heyman 1985). Which rates there are, at first and on the way, is known when the text is
written: a tree of n states takes 4 n operations for a product with C = 2 R - I.
"""

from __future__ import annotations

from collections.abc import Sequence

from channelfit.scoring.kernels.scalars import Scalars

#: Rows that an elimination stores at most: those of a chain of 42 states.
_MOST_ROWS = 128


class Elimination:
    """The order in which the states of a scheme are eliminated, and the text that does so.

    Arguments:
        n: states.
        entries: (source, target, row of the rate) of every transition.

    Attributes:
        order: states, each time one with the fewest neighbors left, so that little fills up.
        onward: (state, target) of every transition that there is when the state is eliminated:
            rows of `onward`, the share of those in the state that go on there.
        inward: (source, state) of the same: rows of `inward`, the rate over all that leave.
    """

    def __init__(self, n: int, entries: Sequence[tuple[int, int, int]]) -> None:
        self.n, self.entries = n, entries
        edges = {(source, target) for source, target, _ in entries}
        self.order: list[int] = []
        self.onward: list[tuple[int, int]] = []
        self.inward: list[tuple[int, int]] = []
        left, depth = set(range(n)), [0] * n
        while left:
            near = {i: {j for j in left if {(i, j), (j, i)} & edges} for i in left}
            state = min(left, key=lambda i: (len(near[i]), depth[i], i))
            left.remove(state)
            self.order.append(state)
            to = sorted(j for j in left if (state, j) in edges)
            into = sorted(i for i in left if (i, state) in edges)
            self.onward += [(state, j) for j in to]
            self.inward += [(i, state) for i in into]
            edges |= {(i, j) for i in into for j in to if i != j}
            for i in near[state]:
                depth[i] = max(depth[i], depth[state] + 1)

    @property
    def n_rows(self) -> int:
        """The numbers that `factor` stores."""
        return sum(self.sizes.values())

    @property
    def pays(self) -> bool:
        """Whether so few transitions appear on the way that this is faster than propagators."""
        return self.n_rows <= _MOST_ROWS

    @property
    def sizes(self) -> dict[str, int]:
        """The rows of a lane or a thread that `factor` fills."""
        return {"hold": self.n, "onward": len(self.onward), "inward": len(self.inward)}

    def factor(self, c: Scalars, speed: str) -> None:
        """Write the elimination, from rows of q, rates over some unit, and s over the same."""
        rates: dict[tuple[int, int], str] = {}
        for source, target, row in self.entries:
            known = rates.get((source, target))
            rates[source, target] = f"{known} + {c.at('q', row)}" if known else c.at("q", row)
        for (i, j), text in rates.items():
            c.variable(f"q{i}_{j}", text)
        for i in range(self.n):
            c.variable(f"ends{i}", speed)
        for state in self.order:
            to = [j for i, j in self.onward if i == state]
            into = [i for i, j in self.inward if j == state]
            leaves = " + ".join([f"ends{state}", *(f"q{state}_{j}" for j in to)])
            c.let(f"time{state}", f"1.0/({leaves})")
            c.put(c.at("hold", state), f"{speed}*time{state}")
            for j in to:
                c.let(f"onward{state}_{j}", f"q{state}_{j}*time{state}")
                c.put(c.at("onward", self.onward.index((state, j))), f"onward{state}_{j}")
            for i in into:
                c.let(f"inward{i}_{state}", f"q{i}_{state}*time{state}")
                c.put(c.at("inward", self.inward.index((i, state))), f"inward{i}_{state}")
                c.put(f"ends{i}", c.fused(f"inward{i}_{state}", f"ends{state}", f"ends{i}"))
                for j in to:
                    more = f"onward{state}_{j}"
                    if i == j:
                        continue
                    if (i, j) in rates:
                        c.put(f"q{i}_{j}", c.fused(f"q{i}_{state}", more, f"q{i}_{j}"))
                    else:
                        rates[i, j] = ""
                        c.variable(f"q{i}_{j}", f"q{i}_{state}*{more}")

    def solve(self, c: Scalars, given: Sequence[str]) -> list[str]:
        """Write R times some occupancies; return the names of its elements."""
        names = list(given)
        for k, (state, target) in enumerate(self.onward):
            name = f"y{target}_{state}"
            c.let(name, c.fused(c.at("onward", k), names[state], names[target]))
            names[target] = name
        found = [""] * self.n
        for state in reversed(self.order):
            text = f"{c.at('hold', state)}*{names[state]}"
            for k, (source, target) in enumerate(self.inward):
                if target == state:
                    text = c.fused(c.at("inward", k), found[source], text)
            c.let(f"x{state}", text)
            found[state] = f"x{state}"
        return found
