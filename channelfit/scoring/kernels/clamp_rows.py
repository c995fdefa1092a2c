"""The rows of numbers of a candidate with a clamp, and the texts of channel and circuit in them.

A candidate has rows in an array `a`, and for each free parameter the derivatives of some of them in
an array `d`; `s` is the row of `clamp_grid.ClampGrid.steps`. The text of this file, `clamp_rates`,
`clamp_stages`, `clamp_output` and `clamp_step` is straight-line text in the language of a `Target`:
on the CPU a loop over vector lanes surrounds it, in CUDA a thread has the rows to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import sympy

from channelfit.model.channel import ChannelModel
from channelfit.model.terms import V
from channelfit.problem.clamp import Clamp
from channelfit.scoring.kernels.channel_rows import ChannelRows
from channelfit.scoring.kernels.derivatives import Definitions
from channelfit.scoring.kernels.printer import ScalarPrinter
from channelfit.scoring.kernels.scalars import Assignments
from channelfit.scoring.layout.clamp_scheme import ORDER
from channelfit.scoring.layout.low_pass import N_POLY

#: GOhm in a MOhm: mV/pA.
_MOHM = 1e-3
#: Rows of the circuit, in the order of `circuit_of`.
CIRCUIT = (
    "resistance",
    "charging",
    "fraction",
    "boost",
    "lag",
    "tracking",
    "leak",
    "leak_current",
    "offset",
    "membrane",
    "cancelled",
    "pipette",
    "delay",
)
#: Values that a stage keeps for its derivatives, and rows of the factors of a step.
STAGE = ("current", "charging", "lag", "tracking")
FACTORS = ("per_step", "potential", "pipette", "per_determinant", "per_tracking", "steepness")
#: Rows of the end of a step: the current without charging, the charge, and their derivatives by
#: time.
OBSERVED = ("current", "current_rate", "charge", "charge_rate")


class Target(Assignments, Protocol):
    """The language that a text is written in, one candidate at a time."""

    def row(self, array: str, row: int) -> str:
        """Return an element of a candidate's rows."""

    def function(self, name: str, doc: str) -> _Block:
        """Open a function of a, d and s."""


class _Block(Protocol):
    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...


def circuit_of(clamp: Clamp) -> list[sympy.Expr]:
    """Return the constants of the circuit, CIRCUIT, as expressions of the parameters."""
    resistance = _MOHM * clamp.series_resistance
    charging = resistance * clamp.membrane_capacitance
    return [
        resistance,
        charging,
        clamp.fraction,
        (clamp.prediction - clamp.fraction * clamp.cancellation) / (1 - clamp.prediction),
        clamp.lag,
        (1 - clamp.prediction) * charging,
        clamp.leak_conductance,
        clamp.leak_conductance * clamp.leak_reversal,
        clamp.offset,
        clamp.membrane_capacitance,
        clamp.cancellation * clamp.membrane_capacitance,
        (1 - clamp.cancellation) * clamp.pipette_capacitance,
        clamp.delay,
    ]


@dataclass
class _Blocks:
    """Blocks of rows of an array, one after the other."""

    first: dict[str, int] = field(default_factory=dict)
    size: int = 0

    def add(self, name: str, rows: int) -> None:
        self.first[name] = self.size
        self.size += rows


class ClampRows(ChannelRows):
    """The rows of one model and one clamp.

    Arguments:
        target: the language of the text.
        free: rows of the parameters by which derivatives are computed; empty for values alone.
        n_modes: of the low-pass filter; 0 where there is none.

    Attributes:
        n_y: occupancies, and the potentials of membrane, pipette and estimate.
        fixed_delay: true where no parameter is in the delay, and samples come in rows.
        rows, dots: the blocks of `a`, and of the part of `d` that a parameter has.
        n_state, n_dots_state: how many rows from the first on are the state that sweeps begin with.
    """

    def __init__(
        self,
        model: ChannelModel,
        clamp: Clamp,
        target: Target,
        free: Sequence[int] = (),
        n_modes: int = 0,
    ) -> None:
        super().__init__(model)
        self.clamp, self.t, self.free, self.n_modes = clamp, target, tuple(free), n_modes
        self.n_y = self.n_x + 3
        self.fixed_delay = not clamp.delay.free_symbols
        self.at_v, self.at_p, self.at_e = self.n_x, self.n_x + 1, self.n_x + 2
        self.n_u = self.n_rates + len(model.terms)
        self._inverses: list[sympy.Expr] = []
        self._lay_out()

    def _lay_out(self) -> None:
        self.rows, self.dots = _Blocks(), _Blocks()
        state = (
            ("y", self.n_y),
            ("rate", self.n_y),
            ("observed", len(OBSERVED)),
            ("z", 2 * self.n_modes),
            ("poly", N_POLY),
        )
        for name, size in state:
            self.rows.add(name, size)
            self.dots.add(name, size)
        self.n_state, self.n_dots_state = self.rows.size, self.dots.size
        fill = [self._elimination(k)[1] for k in range(len(self.model.chains))]
        self.first_lu = [sum(map(len, fill[:k])) for k in range(len(fill))]
        self._fill = fill
        for name, size in (
            ("c", len(CIRCUIT)),
            ("k", 6 * self.n_y),
            ("ys", self.n_y),
            ("past", ORDER * self.n_y),
            ("push", self.n_y),
            ("before", len(OBSERVED)),
            ("earlier", len(OBSERVED)),
        ):
            self.rows.add(name, size)
            self.dots.add(name, size)
        n_chains = len(self.model.chains)
        for name, size in (
            ("theta", len(self.model.parameters)),
            ("u", self.n_u),
            ("slope", self.n_u),
            ("bend", self.n_u),
            ("stage_slope", self.n_u),
            ("lu", max(1, sum(map(len, fill)))),
            ("weight", self.n_x + n_chains),
            ("follow", self.n_x),
            ("by_open", n_chains),
            ("factors", len(FACTORS)),
            ("stage", len(STAGE)),
            ("error", 1),
            ("status", 1),
        ):
            self.rows.add(name, size)
        for name, size in (
            ("by", self.n_u),
            ("slope_by", self.n_u),
            ("moved", self.n_u),
            ("bent", self.n_u),
            ("by_open", n_chains),
            ("steepness", 1),
        ):
            self.dots.add(name, size)

    def a(self, block: str, row: int | str = 0) -> str:
        """Return an element of `a`; a row of the circuit, of factors and so on may be named."""
        return self.t.row("a", self.rows.first[block] + self._number(block, row))

    def d(self, block: str, row: int | str = 0) -> str:
        """Return an element of the part of `d` that belongs to the parameter at hand."""
        return self.t.row("d", self.dots.first[block] + self._number(block, row))

    @staticmethod
    def _number(block: str, row: int | str) -> int:
        names = {"c": CIRCUIT, "stage": STAGE, "factors": FACTORS, "observed": OBSERVED}
        names["before"] = names["earlier"] = OBSERVED
        return row if isinstance(row, int) else names[block].index(row)

    @staticmethod
    def s(column: int) -> str:
        """Return a number of the step, the same for all candidates."""
        return f"s[{column}]"

    def _c(self, name: str) -> str:
        return self.a("c", name)

    def _printer(self, definitions: Definitions, v: str) -> ScalarPrinter:
        names = {p.name: self.a("theta", k) for k, p in enumerate(self.model.parameters)}
        for row in range(len(self._inverses)):
            names[f"inverse {row}"] = self.a("inverse", row)
        for k, (name, _) in enumerate(definitions):
            names[name] = f"t_{k}" if "/" in name else f"d_{name}"
        return ScalarPrinter(self.t.dialect, names | {V.name: v})

    def _full(self, block: str, row: int, place: int) -> str:
        """Return an element of `d` as a whole, of the place-th parameter."""
        return self.t.row("d", place * self.dots.size + self.dots.first[block] + row)

    def _absolute(self) -> str:
        return self.t.dialect.functions["Abs"] + "("

    @staticmethod
    def polynomial_at(x: str, of: Callable[[int], str]) -> str:
        """Return the value at x of a polynomial, from the constant up."""
        text = of(N_POLY - 1)
        for k in range(N_POLY - 2, -1, -1):
            text = f"{of(k)} + {x}*({text})"
        return text

    @staticmethod
    def slope_at(x: str, of: Callable[[int], str]) -> str:
        """Return the derivative by x of a polynomial, from the constant up."""
        text = f"{N_POLY - 1}.0*{of(N_POLY - 1)}"
        for k in range(N_POLY - 2, 0, -1):
            text = f"{k}.0*{of(k)} + {x}*({text})"
        return text

    def _levels(self, k: int) -> list[float]:
        """Return the conductances of the states but the first, relative to that of the first."""
        c = self.model.chains[k].conductances
        return [level - c[0] for level in c[1:]]

    def _projected(self, k: int, of: Callable[[int], str]) -> str:
        """Return the change of the open probability of chain k with its occupancies."""
        first = self.first_x[k]
        parts = [f"{c!r}*{of(first + i)}" for i, c in enumerate(self._levels(k)) if c]
        return f"({' + '.join(parts)})" if parts else "0.0"

    def _source(self, k: int, state: int, of: Callable[[int], str], whole: str) -> str:
        """Return the occupancy of a state, that of the first as the rest of the whole."""
        first = self.first_x[k]
        if state:
            return of(first + state - 1)
        rest = " - ".join(of(first + i) for i in range(len(self.model.chains[k].states) - 1))
        return f"({whole} - {rest})"

    def _flow(self, prefix: str, flux: Callable[[int, int, int], str]) -> dict[int, str]:
        """Return text of the sum of the fluxes into each occupancy; flux(chain, source, rate)."""
        into: dict[int, list[str]] = {i: [] for i in range(self.n_x)}
        for k in range(len(self.model.chains)):
            first = self.first_x[k]
            for source, target, rate in self.entries(k):
                self.t.let(f"{prefix}{rate}", flux(k, source, rate))
                if target:
                    into[first + target - 1].append(f"+ {prefix}{rate}")
                if source:
                    into[first + source - 1].append(f"- {prefix}{rate}")
        return {i: f"(0.0 {' '.join(parts)})" for i, parts in into.items()}

    def _elimination(self, k: int) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the order in which the states but the first are eliminated,
        and the nonzeros then.

        Each time one with the fewest neighbors, so that little fills up.
        """
        n = len(self.model.chains[k].states)
        pattern = {(i, i) for i in range(1, n)}
        for source, target, _ in self.entries(k):
            if source and target:
                pattern.add((target, source))
        left, order = set(range(1, n)), []
        while left:
            pick = min(
                left, key=lambda i: (sum((i, j) in pattern or (j, i) in pattern for j in left), i)
            )
            left.remove(pick)
            order.append(pick)
            rows = [i for i in left if (i, pick) in pattern]
            columns = [j for j in left if (pick, j) in pattern]
            pattern |= {(i, j) for i in rows for j in columns}
        return order, sorted(pattern)

    def _lu(self, k: int, i: int, j: int) -> str:
        return self.a("lu", self.first_lu[k] + self._fill[k].index((i, j)))

    def _sum(self, factors: Sequence[float], at: Callable[[str, int], str], n: int) -> str:
        """Return a sum of the increments so far, of row n of the state, with factors."""
        parts = [f"{c!r}*{at('k', j * self.n_y + n)}" for j, c in enumerate(factors) if c]
        return f"({' + '.join(parts)})" if parts else "0.0"
