"""One step of a clamped channel as straight-line text, in the language of the CPU or of CUDA.

A candidate has rows of numbers in an array `a`, and for each free parameter the derivatives of some
of them in an array `d`; `s` is the row of `clamp_grid.Grid.steps`. Every function here is a list of
assignments to these rows, for one candidate in terms of a `Target`: on the CPU a loop over vector
lanes surrounds it, in CUDA a thread has the rows to itself. The functions of a parameter are written
once and called for each. `layout.clamp_scheme` has the method and its formulas.

Derivatives are those of the discrete step: each stage is differentiated as it stands, with the
derivatives of the matrix and of the masses, and solved with the factors of the stage itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import sympy

from channelfit.model.channel import RATE_CEILING, RATE_FLOOR, ChannelModel
from channelfit.model.terms import V
from channelfit.problem.clamp import Clamp
from channelfit.problem.statuses import NEGATIVE_RATE, NOT_FINITE
from channelfit.scoring.kernels.channel_rows import ChannelRows
from channelfit.scoring.kernels.derivatives import Definitions, derivatives
from channelfit.scoring.kernels.integration import GREATEST_GAIN
from channelfit.scoring.kernels.printer import Dialect, ScalarPrinter, assignments
from channelfit.scoring.layout.clamp_grid import COMMAND, LENGTH, RISE
from channelfit.scoring.layout.clamp_scheme import GAMMA, NODE_OF_STAGE, A, C, D
from channelfit.scoring.layout.low_pass import PER_MODE

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
#: Values of the scratch row `told`, and rows of the factors of a step.
_TOLD = ("current", "charging", "lag", "tracking")
_FACTORS = ("per_step", "potential", "pipette", "per_determinant", "per_tracking", "steepness")
#: Rows of what is observed at the end of a step: the current without charging, the charge, and
#: their derivatives by time.
OBSERVED = ("current", "current_rate", "charge", "charge_rate")


class Target(Protocol):
    """The language that a text is written in, one candidate at a time."""

    dialect: Dialect

    def let(self, name: str, expression: str) -> None:
        """Names a value."""
        ...

    def put(self, place: str, expression: str) -> None:
        """Stores a value in a row."""
        ...

    def row(self, array: str, row: int) -> str:
        """An element of a candidate's rows."""
        ...

    def choose(self, condition: str, yes: str, no: str) -> str:
        """A value that depends on a condition."""
        ...

    def function(self, name: str, doc: str) -> _Block:
        """Opens a function of a, d and s."""
        ...


class _Block(Protocol):
    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...


def circuit_of(clamp: Clamp) -> list[sympy.Expr]:
    """The constants of the circuit, CIRCUIT, as expressions of the parameters."""
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
class _Rows:
    """Blocks of rows of an array, one after the other."""

    first: dict[str, int] = field(default_factory=dict)
    size: int = 0

    def add(self, name: str, rows: int) -> None:
        self.first[name] = self.size
        self.size += rows


class ClampStep(ChannelRows):
    """The functions of one model and one clamp.

    Arguments:
        target: what the text is written in.
        free: rows of the parameters by which derivatives are wanted; empty for values alone.
        n_modes: of the low-pass filter; 0 where there is none.

    Attributes:
        n_y: occupancies, and the potentials of membrane, pipette and estimate.
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
        self.at_v, self.at_p, self.at_e = self.n_x, self.n_x + 1, self.n_x + 2
        self.mass = {self.at_v: "charging", self.at_p: "lag", self.at_e: "tracking"}
        self.terms = [(model.conductance * (V - model.reversal), tuple(range(len(model.chains))))]
        self.n_u = self.n_rates + len(self.terms)
        self._lay_out()
        self._prepare()

    # --- rows ------------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        self.rows, self.dots = _Rows(), _Rows()
        state = (
            ("y", self.n_y),
            ("rate", self.n_y),
            ("seen", len(OBSERVED)),
            ("z", 2 * self.n_modes),
            ("poly", 4),
            ("u", self.n_u),
            ("slope", self.n_u),
            ("bend", self.n_u),
        )
        for name, size in state:
            self.rows.add(name, size)
            if name not in ("u", "slope", "bend"):
                self.dots.add(name, size)
        for name in ("by", "slope_by"):
            self.dots.add(name, self.n_u)
        self.n_state, self.n_dots_state = self.rows.size, self.dots.size
        fill = [self._elimination(k)[1] for k in range(len(self.model.chains))]
        self.first_lu = [sum(map(len, fill[:k])) for k in range(len(fill))]
        self._fill = fill
        for name, size in (
            ("c", len(CIRCUIT)),
            ("k", 6 * self.n_y),
            ("ys", self.n_y),
            ("before", len(OBSERVED)),
        ):
            self.rows.add(name, size)
            self.dots.add(name, size)
        n_chains = len(self.model.chains)
        for name, size in (
            ("theta", len(self.model.parameters)),
            ("stage_slope", self.n_u),
            ("lu", max(1, sum(map(len, fill)))),
            ("weight", self.n_x + n_chains),
            ("follow", self.n_x),
            ("by_open", n_chains),
            ("factors", len(_FACTORS)),
            ("told", len(_TOLD)),
            ("error", 1),
            ("status", 1),
        ):
            self.rows.add(name, size)
        for name, size in (
            ("moved", self.n_u),
            ("bent", self.n_u),
            ("by_open", n_chains),
            ("steepness", 1),
        ):
            self.dots.add(name, size)

    def a(self, block: str, row: int | str = 0) -> str:
        """An element of `a`; a row of the circuit, of factors and so on may be named."""
        return self.t.row("a", self.rows.first[block] + self._number(block, row))

    def d(self, block: str, row: int | str = 0) -> str:
        """An element of the part of `d` that belongs to the parameter at hand."""
        return self.t.row("d", self.dots.first[block] + self._number(block, row))

    @staticmethod
    def _number(block: str, row: int | str) -> int:
        names = {"c": CIRCUIT, "told": _TOLD, "factors": _FACTORS, "seen": OBSERVED}
        names["before"] = OBSERVED
        return row if isinstance(row, int) else names[block].index(row)

    @staticmethod
    def s(column: int) -> str:
        """A number of the step, the same for all candidates."""
        return f"s[{column}]"

    # --- expressions -----------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Derivatives of rates and drives: by the voltage, twice, and by parameters."""
        model = self.model
        drives = [drive for drive, _ in self.terms]
        values = [t.rate for t in self.transitions] + drives
        names = [model.parameters[k].name for k in self.free]
        self._values = values
        self._grown1, first = derivatives(model.definitions, values, [V.name])
        self._slopes = [row.get(0, sympy.Integer(0)) for row in first]
        if not names:
            return
        self._grown_by, by = derivatives(self._grown1, values, names)
        self._by = by
        self._grown2, second = derivatives(self._grown1, self._slopes, [V.name, *names])
        self._bends = [row.get(0, sympy.Integer(0)) for row in second]
        self._slopes_by = [{k - 1: e for k, e in row.items() if k} for row in second]

    def _printer(self, definitions: Definitions, v: str) -> ScalarPrinter:
        names = {p.name: self.a("theta", k) for k, p in enumerate(self.model.parameters)}
        for k, (name, _) in enumerate(definitions):
            names[name] = f"t_{k}" if "/" in name else f"d_{name}"
        return ScalarPrinter(self.t.dialect, names | {V.name: v})

    def write(self) -> None:
        """Write all functions."""
        self._circuit()
        self._voltage("start", "y", "slope", starts=True)
        self._voltage("within", "ys", "stage_slope", starts=False)
        self._factor()
        for i in range(6):
            if i:
                self._reach(i)
            self._stage(i)
        self._finish()
        self._observe()
        self._polynomial("a")
        self._at_rest()
        self._hold()
        if self.n_modes:
            self._filter("a")
        if self.free:
            self._tangent_start()
            for i in range(6):
                self._tangent_stage(i)
            self._tangent_finish()
            self._polynomial("d")
            if self.n_modes:
                self._filter("d")

    def _circuit(self) -> None:
        """Writes circuit: its constants and their derivatives, from the parameters."""
        t, expressions = self.t, circuit_of(self.clamp)
        names = [self.model.parameters[k].name for k in self.free]
        _, slopes = derivatives((), expressions, names)
        printer = self._printer((), "0.0")
        with t.function("circuit", "The constants of the circuit."):
            for row, expression in enumerate(expressions):
                t.put(self.a("c", row), printer.text(expression))
            for place in range(len(names)):
                for row, known in enumerate(slopes):
                    slope = printer.text(known[place]) if place in known else "0.0"
                    t.put(self._full("c", row, place), slope)
            tests = [f"{self.a('c', name)} >= 0.0" for name in CIRCUIT if name in _NOT_NEGATIVE]
            tests += [f"{self.a('c', 'fraction')} <= 1.0"]
            tests += [f"abs({self.a('c', name)}) < {GREATEST_GAIN!r}" for name in CIRCUIT]
            t.put(self.a("status"), self._all_of(tests, self.a("status"), str(float(NOT_FINITE))))

    def _full(self, block: str, row: int, place: int) -> str:
        """An element of `d` as a whole, of the place-th parameter."""
        return self.t.row("d", place * self.dots.size + self.dots.first[block] + row)

    def _all_of(self, tests: Sequence[str], yes: str, no: str) -> str:
        both = f" {self.t.dialect.words[0]} "
        text = both.join(f"({test})" for test in tests)
        return self.t.choose(text.replace("abs(", self._absolute()), yes, no)

    def _absolute(self) -> str:
        return self.t.dialect.functions["Abs"] + "("

    def _voltage(self, name: str, block: str, slope: str, starts: bool) -> None:
        """Writes the rates and drives at the membrane potential, with the derivatives wanted."""
        t, derived = self.t, bool(self.free)
        wanted = [*self._values]
        with_slopes = starts or derived
        wanted += self._slopes if with_slopes else []
        definitions: Definitions = self._grown1
        if derived:
            wanted += [e for row in self._by for e in row.values()]
            definitions = self._grown_by
        if derived and starts:
            wanted += [*self._bends, *(e for row in self._slopes_by for e in row.values())]
            known = {key for key, _ in definitions}
            definitions = (*definitions, *(d for d in self._grown2 if d[0] not in known))
        steps, results = assignments(definitions, wanted)
        left = iter(results)
        with t.function(name, f"Rates and drives at the membrane potential of {block}."):
            t.let("v", self.a(block, self.at_v))
            printer = self._printer(definitions, "v")
            for step, expression in steps:
                t.let(printer.names.get(step, step), printer.text(expression))
            t.let("flag", self.a("status"))
            flag = "flag"
            for row in range(self.n_u):
                flag = self._bounded(row, printer.text(next(left)), flag)
            for k, chain in enumerate(self.model.chains):
                if chain.linear:
                    up, down = (self.a("u", self.first_rate[k] + i) for i in (0, 1))
                    t.let(f"linear{k}", t.choose(f"{up} + {down} <= 0.0", _NEGATIVE, flag))
                    flag = f"linear{k}"
            t.put(self.a("status"), t.choose("flag == 0.0", flag, "flag"))
            if with_slopes:
                for row in range(self.n_u):
                    t.put(self.a(slope, row), self._inside(row, printer.text(next(left))))
            if not derived:
                return
            for row in range(self.n_u):
                for place in self._by[row]:
                    text = self._inside(row, printer.text(next(left)))
                    t.put(self._full("by", row, place), text)
            if starts:
                for row in range(self.n_u):
                    t.put(self.a("bend", row), self._inside(row, printer.text(next(left))))
                for row in range(self.n_u):
                    for place in self._slopes_by[row]:
                        text = self._inside(row, printer.text(next(left)))
                        t.put(self._full("slope_by", row, place), text)

    def _bounded(self, row: int, text: str, flag: str) -> str:
        """Stores a rate within its bounds, or a drive; returns the name of the status after it."""
        t = self.t
        t.let(f"r{row}", text)
        if row >= self.n_rates:
            t.let(
                f"flag{row}",
                t.choose(f"{self._absolute()}r{row}) < {GREATEST_GAIN!r}", flag, _UNDEFINED),
            )
            t.put(self.a("u", row), f"r{row}")
            t.let(f"times{row}", "1.0")
            return f"flag{row}"
        transition = self.transitions[row]
        least = -RATE_CEILING if transition.signed else RATE_FLOOR
        t.let(f"q{row}", t.choose(f"r{row} > {least!r}", f"r{row}", repr(least)))
        t.let(f"b{row}", t.choose(f"q{row} < {RATE_CEILING!r}", f"q{row}", repr(RATE_CEILING)))
        t.put(self.a("u", row), f"{float(transition.multiplicity)!r}*b{row}")
        t.let(
            f"times{row}",
            t.choose(f"b{row} == r{row}", repr(float(transition.multiplicity)), "0.0"),
        )
        if not transition.signed:
            t.let(f"sign{row}", t.choose(f"r{row} < 0.0", _NEGATIVE, flag))
            flag = f"sign{row}"
        t.let(f"flag{row}", t.choose(f"r{row} == r{row}", flag, _UNDEFINED))
        return f"flag{row}"

    def _inside(self, row: int, text: str) -> str:
        """A derivative of a rate, 0 where the rate is at a bound."""
        return f"({text})*times{row}" if row < self.n_rates else text

    # --- occupancies -----------------------------------------------------------------------------

    def _levels(self, k: int) -> list[float]:
        """What each state but the first adds to the open probability of chain k."""
        c = self.model.chains[k].conductances
        return [level - c[0] for level in c[1:]]

    def _projected(self, k: int, of: Callable[[int], str]) -> str:
        """The change of the open probability of chain k with its occupancies."""
        first = self.first_x[k]
        parts = [f"{c!r}*{of(first + i)}" for i, c in enumerate(self._levels(k)) if c]
        return f"({' + '.join(parts)})" if parts else "0.0"

    def _source(self, k: int, state: int, of: Callable[[int], str], whole: str) -> str:
        """The occupancy of a state, that of the first being what is left of the whole."""
        first = self.first_x[k]
        if state:
            return of(first + state - 1)
        rest = " - ".join(of(first + i) for i in range(len(self.model.chains[k].states) - 1))
        return f"({whole} - {rest})"

    def _flow(self, prefix: str, flux: Callable[[int, int, int], str]) -> dict[int, str]:
        """Text of the sum of the fluxes into each occupancy; flux(chain, source, rate)."""
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

    def _opens(self, prefix: str, of: Callable[[int], str]) -> None:
        """Names the open probability of each chain."""
        for k, chain in enumerate(self.model.chains):
            self.t.let(f"{prefix}{k}", f"{chain.conductances[0]!r} + {self._projected(k, of)}")

    def _current(self, opens: str, drive: Callable[[int], str]) -> _Current:
        return _Current(self, opens, drive)

    def _elimination(self, k: int) -> tuple[list[int], list[tuple[int, int]]]:
        """The order in which the states but the first are eliminated, and what is then not 0.

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

    def _factor(self) -> None:
        """Writes factor: the matrix of the step, eliminated, from the rates at its beginning."""
        t = self.t

        def x(i: int) -> str:
            return self.a("y", i)

        with t.function("factor", "The matrix of a step, from the rates at its beginning."):
            t.let("g", f"1.0/({self.s(LENGTH)}*{GAMMA!r})")
            for k in range(len(self.model.chains)):
                self._factor_chain(k)
            moving = self._flow(
                "f", lambda k, i, r: f"{self.a('slope', r)}*{self._source(k, i, x, '1.0')}"
            )
            solved = self._solved_chains("z", moving)
            for i in range(self.n_x):
                t.put(self.a("follow", i), solved(i))
            self._opens("o", x)
            current = self._current("o", lambda j: self.a("u", self.n_rates + j))
            parts = []
            for k in range(len(self.model.chains)):
                t.put(self.a("by_open", k), current.by_open(k))
                parts.append(f"{self.a('by_open', k)}*{self._projected(k, solved)}")
            steep = current.by_drive(lambda j: self.a("slope", self.n_rates + j))
            t.put(self.a("factors", "steepness"), steep)
            t.put(self.a("factors", "per_step"), "g")
            c = self._c
            t.let(
                "potential",
                f"{c('charging')}*g + 1.0 + {c('resistance')}*({self.a('factors', 'steepness')} + "
                f"{c('leak')} + {' + '.join(parts) or '0.0'})",
            )
            t.let("pipette", f"{c('lag')}*g + 1.0 - {c('fraction')}")
            t.put(self.a("factors", "potential"), "potential")
            t.put(self.a("factors", "pipette"), "pipette")
            determinant = f"potential*pipette + {c('fraction')}"
            t.put(self.a("factors", "per_determinant"), f"1.0/({determinant})")
            t.put(self.a("factors", "per_tracking"), f"1.0/({c('tracking')}*g + 1.0)")

    def _c(self, name: str) -> str:
        return self.a("c", name)

    def _factor_chain(self, k: int) -> None:
        t = self.t
        order, pattern = self._elimination(k)
        leaving: dict[tuple[int, int], list[str]] = {place: [] for place in pattern}
        first_to: dict[int, list[str]] = {i: [] for i in order}
        for source, target, rate in self.entries(k):
            q = self.a("u", rate)
            if source:
                leaving[source, source].append(f"+ {q}")
                if target:
                    leaving[target, source].append(f"- {q}")
            else:
                first_to[target].append(q)
        for (i, j), parts in leaving.items():
            own = "g" if i == j else "0.0"
            t.put(self._lu(k, i, j), f"{own} {' '.join(parts)}")
        for place, pick in enumerate(order):
            later, pivot = order[place + 1 :], self._lu(k, pick, pick)
            t.put(pivot, f"1.0/{pivot}")  # columns dominate: no pivot vanishes
            for i in (i for i in later if (i, pick) in pattern):
                t.put(self._lu(k, i, pick), f"{self._lu(k, i, pick)}*{pivot}")
                for j in (j for j in later if (pick, j) in pattern):
                    product = f"{self._lu(k, i, pick)}*{self._lu(k, pick, j)}"
                    t.put(self._lu(k, i, j), f"{self._lu(k, i, j)} - {product}")
        texts = {i: " + ".join(parts) or "0.0" for i, parts in first_to.items()}
        solved = self._substituted(k, f"w{k}_", texts)
        first = self.first_x[k] + k
        total = "1.0"
        for i in range(1, len(self.model.chains[k].states)):
            t.put(self.a("weight", first + i - 1), solved[i])
            total += f" + {solved[i]}"
        last = first + len(self.model.chains[k].states) - 1
        t.put(self.a("weight", last), f"1.0/({total})")

    def _substituted(self, k: int, prefix: str, right: dict[int, str]) -> dict[int, str]:
        """Names the solution of the eliminated equations of chain k, by state."""
        t = self.t
        order, pattern = self._elimination(k)
        names = {i: f"{prefix}{i}" for i in order}
        for place, i in enumerate(order):
            before = [j for j in order[:place] if (i, j) in pattern]
            minus = "".join(f" - {self._lu(k, i, j)}*{names[j]}f" for j in before)
            t.let(f"{names[i]}f", f"({right[i]}){minus}")
        for place in range(len(order) - 1, -1, -1):
            i = order[place]
            later = [j for j in order[place + 1 :] if (i, j) in pattern]
            minus = "".join(f" - {self._lu(k, i, j)}*{names[j]}" for j in later)
            t.let(names[i], f"({names[i]}f{minus})*{self._lu(k, i, i)}")
        return names

    def _solved_chains(self, prefix: str, right: dict[int, str]) -> Callable[[int], str]:
        """Names the increments of all occupancies at a fixed potential; returns their names."""
        t, names = self.t, {}
        for k, chain in enumerate(self.model.chains):
            n, first = len(chain.states), self.first_x[k]
            texts = {i: right[first + i - 1] for i in range(1, n)}
            solved = self._substituted(k, f"{prefix}{k}_", texts)
            if n == 1:
                continue
            weights = first + k
            total = " + ".join(solved[i] for i in range(1, n))
            t.let(f"{prefix}{k}", f"({total})*{self.a('weight', weights + n - 1)}")
            for i in range(1, n):
                name = f"{prefix}x{first + i - 1}"
                t.let(name, f"{solved[i]} - {self.a('weight', weights + i - 1)}*{prefix}{k}")
                names[first + i - 1] = name
        return names.__getitem__

    def _solve(self, into: Callable[[int], str], right: dict[int, str]) -> None:
        """Stores the increments of a stage, from its right sides by row of y."""
        t, f = self.t, lambda name: self.a("factors", name)
        solved = self._solved_chains("e", {i: right[i] for i in range(self.n_x)})
        parts = [
            f"{self.a('by_open', k)}*{self._projected(k, solved)}"
            for k in range(len(self.model.chains))
        ]
        pull = " + ".join(parts) or "0.0"
        t.let("ke", f"({right[self.at_e]})*{f('per_tracking')}")
        t.let("rv", f"({right[self.at_v]}) - {self._c('resistance')}*({pull})")
        t.let("rp", f"({right[self.at_p]}) - {self._c('boost')}*ke")
        per = f("per_determinant")
        t.let("kv", f"({f('pipette')}*rv + rp)*{per}")
        t.put(into(self.at_p), f"({f('potential')}*rp - {self._c('fraction')}*rv)*{per}")
        t.put(into(self.at_v), "kv")
        t.put(into(self.at_e), "ke")
        for i in range(self.n_x):
            t.put(into(i), f"{solved(i)} + {self.a('follow', i)}*kv")

    # --- stages ----------------------------------------------------------------------------------

    def _sum(self, factors: Sequence[float], of: Callable[[int], str]) -> str:
        parts = [f"{c!r}*{of(j)}" for j, c in enumerate(factors) if c]
        return f"({' + '.join(parts)})" if parts else "0.0"

    def _reach(self, i: int) -> None:
        """Writes reach: where stage i looks."""
        with self.t.function(f"reach{i}", f"The state at which stage {i} looks."):
            for n in range(self.n_y):
                so_far = self._sum(A[i], lambda j, n=n: self.a("k", j * self.n_y + n))
                self.t.put(self.a("ys", n), f"{self.a('y', n)} + {so_far}")

    def _stage(self, i: int) -> None:
        """Writes stage: its increments, from the state at which it looks and the rates there."""
        t, c = self.t, self._c
        block = "ys" if i else "y"

        def y(n: int) -> str:
            return self.a(block, n)

        def so_far(n: int) -> str:
            return self._sum(C[i], lambda j: self.a("k", j * self.n_y + n))

        with t.function(f"stage{i}", f"The increments of stage {i}."):
            t.let("per", f"1.0/{self.s(LENGTH)}")
            flow = self._flow(
                "f", lambda k, j, r: f"{self.a('u', r)}*{self._source(k, j, y, '1.0')}"
            )
            self._opens("o", y)
            current = self._current("o", lambda j: self.a("u", self.n_rates + j))
            right = {n: f"{flow[n]} + {so_far(n)}*per" for n in range(self.n_x)}
            v, p, e = y(self.at_v), y(self.at_p), y(self.at_e)
            t.let("flows", f"{current.text()} + {c('leak')}*{v} - {c('leak_current')}")
            t.let("across", f"{p} + {c('offset')} - {v}")
            t.let("lead", f"{self.s(COMMAND + NODE_OF_STAGE[i])} - {e}")
            for name, n in (("charging", self.at_v), ("lag", self.at_p), ("tracking", self.at_e)):
                t.put(self.a("told", name), f"{so_far(n)}*per")
            t.put(self.a("told", "current"), "flows")

            def pushed(name: str) -> str:
                return f"{c(name)}*{self.a('told', name)}"

            rise = f" + {D[i]!r}*{self.s(RISE)}" if D[i] else ""
            rises = f" + {D[i]!r}*{self.s(RISE)}*(1.0 + {c('boost')})" if D[i] else ""
            right[self.at_v] = f"across - {c('resistance')}*flows + {pushed('charging')}"
            right[self.at_p] = (
                f"{self.s(COMMAND + NODE_OF_STAGE[i])} - {p} + {c('fraction')}*across + "
                f"{c('boost')}*lead + {pushed('lag')}{rises}"
            )
            right[self.at_e] = f"lead + {pushed('tracking')}{rise}"
            self._solve(lambda n: self.a("k", i * self.n_y + n), right)

    def _advance(self, at: Callable[[str, int], str]) -> None:
        """Stores the state at the end of the step, and its derivative by time."""
        t = self.t
        t.let("per", f"1.0/{self.s(LENGTH)}")
        for n in range(self.n_y):
            last = at("k", 5 * self.n_y + n)
            before = self._sum(C[5], lambda j, n=n: at("k", j * self.n_y + n))
            t.put(at("y", n), f"{at('ys', n)} + {last}")
            t.put(at("rate", n), f"({1 / GAMMA!r}*{last} - {before})*per")

    def _finish(self) -> None:
        """Writes finish, the end of the step, and measure, the largest error of a step so far."""
        t = self.t
        with t.function("finish", "The state at the end of a step."):
            self._advance(self.a)
        with t.function("measure", "The largest error of a step so far."):
            t.let("error0", self.a("error"))
            for n in range(self.n_x + 1):
                last = self.a("k", 5 * self.n_y + n)
                share = f"{_PER_MV!r}*" if n == self.at_v else ""
                t.let(f"size{n}", f"{share}{self._absolute()}{last})")
                # what is no number is the larger one
                larger = t.choose(f"size{n} <= error{n}", f"error{n}", f"size{n}")
                t.let(f"error{n + 1}", larger)
            t.put(self.a("error"), f"error{self.n_x + 1}")

    def _charge(self, at: Callable[[str, int], str], block: str) -> str:
        """The charge on membrane and pipette, less what is cancelled, or its derivative."""
        c = self._c
        return (
            f"{c('membrane')}*{at(block, self.at_v)} + {c('pipette')}*{at(block, self.at_p)} - "
            f"{c('cancelled')}*{at(block, self.at_e)}"
        )

    def _observe(self) -> None:
        """Writes observe: the current and the charge at the end of a step, and their slopes."""
        t, c = self.t, self._c
        with t.function("observe", "What is seen of the state at the end of a step."):
            for row in range(len(OBSERVED)):
                t.put(self.a("before", row), self.a("seen", row))
            self._opens("o", lambda n: self.a("y", n))
            current = self._current("o", lambda j: self.a("u", self.n_rates + j))
            leak = f"{c('leak')}*{self.a('y', self.at_v)} - {c('leak_current')}"
            t.put(self.a("seen", "current"), f"{current.text()} + {leak}")
            steep = current.by_drive(lambda j: self.a("slope", self.n_rates + j))
            parts = [f"({steep} + {c('leak')})*{self.a('rate', self.at_v)}"]
            for k in range(len(self.model.chains)):
                change = self._projected(k, lambda n: self.a("rate", n))
                parts.append(f"{current.by_open(k)}*{change}")
            t.put(self.a("seen", "current_rate"), " + ".join(parts))
            t.put(self.a("seen", "charge"), self._charge(self.a, "y"))
            t.put(self.a("seen", "charge_rate"), self._charge(self.a, "rate"))

    def _polynomial(self, array: str) -> None:
        """Writes the current in the step as a cubic of the part of it that has passed.

        Where the command has just jumped, and the current may have, it is a constant that carries
        the charge.
        """
        t, at = self.t, self.a if array == "a" else self.d
        name, h = ("polynomial", "polynomials")[array == "d"], self.s(LENGTH)
        i0, j0, q0, w0 = (at("before", row) for row in range(4))
        i1, j1, q1, w1 = (at("seen", row) for row in range(4))
        with t.function(name, "The current in a step, a cubic."):
            t.let("h", h)
            t.let("grown", f"{i1} - {i0}")
            t.let("charged", f"({q1} - {q0})/h")
            t.put(at("poly", 0), f"{i0} + {w0}")
            t.put(at("poly", 1), f"h*{j0} + 2.0*(3.0*charged - 2.0*{w0} - {w1})")
            t.put(
                at("poly", 2),
                f"3.0*grown - h*(2.0*{j0} + {j1}) + 3.0*({w0} + {w1} - 2.0*charged)",
            )
            t.put(at("poly", 3), f"h*({j0} + {j1}) - 2.0*grown")
        with t.function(f"{name}Flat", "The current in the step after a jump, a constant."):
            t.put(at("poly", 0), f"{i1} + ({q1} - {q0})/{h}")
            for row in (1, 2, 3):
                t.put(at("poly", row), "0.0")

    def _hold(self) -> None:
        """Writes hold: what was seen last is seen until the next sweep has begun."""
        kinds = (("hold", self.a), ("holdBy", self.d))
        for name, at in kinds if self.free else kinds[:1]:
            with self.t.function(name, "The last current, as a constant."):
                parts = " + ".join(at("poly", row) for row in range(4))
                self.t.put(at("poly", 0), parts)
                for row in (1, 2, 3):
                    self.t.put(at("poly", row), "0.0")

    def _at_rest(self) -> None:
        """Writes settle: what is seen where nothing moves, values and derivatives alike."""
        kinds = (("settle", self.a), ("settleBy", self.d))
        for name, at in kinds if self.free else kinds[:1]:
            with self.t.function(name, "The end of a long rest, at which nothing moves."):
                for n in range(self.n_y):
                    self.t.put(at("rate", n), "0.0")
                self.t.put(at("seen", 1), "0.0")
                self.t.put(at("seen", 3), "0.0")
                self.t.put(at("poly", 0), at("seen", 0))
                for row in (1, 2, 3):
                    self.t.put(at("poly", row), "0.0")
                for m in range(self.n_modes):
                    real, imaginary = (f"m[{2 * m}]", f"m[{2 * m + 1}]")
                    size = f"({real}*{real} + {imaginary}*{imaginary})"
                    self.t.put(at("z", 2 * m), f"-{at('seen', 0)}*{real}/{size}")
                    self.t.put(at("z", 2 * m + 1), f"{at('seen', 0)}*{imaginary}/{size}")

    def _filter(self, array: str) -> None:
        """Writes lowPass: the modes of the filter through a step, and the cubic of its output.

        `m` has the poles of all modes and then their residues, `s` beyond its columns the tables of
        `low_pass.step_tables`.
        """
        t, at = self.t, self.a if array == "a" else self.d
        name = ("lowPass", "lowPasses")[array == "d"]

        def output(u: str, now: Callable[[int], str]) -> tuple[str, str]:
            value, rate = [], []
            for k in range(self.n_modes):
                p, r = (f"m[{2 * (k + offset)}]" for offset in (0, self.n_modes))
                pi, ri = (f"m[{2 * (k + offset) + 1}]" for offset in (0, self.n_modes))
                x, y = now(2 * k), now(2 * k + 1)
                value.append(f"{r}*{x} - {ri}*{y}")
                rate.append(f"{r}*({p}*{x} - {pi}*{y} + {u}) - {ri}*({p}*{y} + {pi}*{x})")
            return " + ".join(value), " + ".join(rate)

        with t.function(name, "The filtered current in a step, a cubic."):
            t.let("h", self.s(LENGTH))
            for row in range(4):
                t.let(f"u{row}", at("poly", row))
            value, rate = output("u0", lambda n: at("z", n))
            t.let("o0", value)
            t.let("r0", f"h*({rate})")
            for k in range(self.n_modes):
                w = [self.s(RISE + 1 + k * PER_MODE + j) for j in range(PER_MODE)]
                x, y = at("z", 2 * k), at("z", 2 * k + 1)
                real = " + ".join(f"u{j}*{w[2 + 2 * j]}" for j in range(4))
                imaginary = " + ".join(f"u{j}*{w[3 + 2 * j]}" for j in range(4))
                t.let(f"x{k}", f"{w[0]}*{x} - {w[1]}*{y} + {real}")
                t.let(f"y{k}", f"{w[0]}*{y} + {w[1]}*{x} + {imaginary}")
            t.let("u", "u0 + u1 + u2 + u3")
            value, rate = output("u", lambda n: f"{'xy'[n % 2]}{n // 2}")
            t.let("o1", value)
            t.let("r1", f"h*({rate})")
            for k in range(self.n_modes):
                t.put(at("z", 2 * k), f"x{k}")
                t.put(at("z", 2 * k + 1), f"y{k}")
            t.put(at("poly", 0), "o0")
            t.put(at("poly", 1), "r0")
            t.put(at("poly", 2), "3.0*(o1 - o0) - 2.0*r0 - r1")
            t.put(at("poly", 3), "r0 + r1 - 2.0*(o1 - o0)")

    # --- derivatives -----------------------------------------------------------------------------

    def _tangent_start(self) -> None:
        """Writes begins: the derivatives of the step's matrix, for one parameter."""
        t = self.t
        with t.function("begins", "Derivatives of the matrix of a step."):
            v = self.d("y", self.at_v)
            for row in range(self.n_u):
                moved = f"{self.a('slope', row)}*{v} + {self.d('by', row)}"
                bent = f"{self.a('bend', row)}*{v} + {self.d('slope_by', row)}"
                t.put(self.d("moved", row), moved)
                t.put(self.d("bent", row), bent)
            self._opens("o", lambda n: self.a("y", n))
            current = self._current("o", lambda j: self.a("u", self.n_rates + j))
            dots = [
                self._projected(k, lambda n: self.d("y", n)) for k in range(len(self.model.chains))
            ]
            moved_drive = [self.d("moved", self.n_rates + j) for j in range(len(self.terms))]
            for k in range(len(self.model.chains)):
                t.put(self.d("by_open", k), current.by_open_dot(k, dots, moved_drive))
            slopes = [self.a("slope", self.n_rates + j) for j in range(len(self.terms))]
            bent = [self.d("bent", self.n_rates + j) for j in range(len(self.terms))]
            t.put(self.d("steepness"), current.by_drive_dot(slopes, bent, dots))

    def _tangent_stage(self, i: int) -> None:
        """Writes stageBy: the derivatives of the increments of stage i."""
        t, c = self.t, self._c
        block = "ys" if i else "y"
        slope = "stage_slope" if i else "slope"

        def y(n: int) -> str:
            return self.a(block, n)

        def dy(n: int) -> str:
            return self.d(block, n)

        def k(n: int) -> str:
            return self.a("k", i * self.n_y + n)

        def start(n: int) -> str:
            return self.a("y", n)

        def dstart(n: int) -> str:
            return self.d("y", n)

        def so_far(n: int) -> str:
            return self._sum(C[i], lambda j: self.d("k", j * self.n_y + n))

        def dc(name: str) -> str:
            return self.d("c", name)

        with t.function(f"stageBy{i}", f"Derivatives of the increments of stage {i}."):
            for n in range(self.n_y) if i else ():
                reached = self._sum(A[i], lambda j, n=n: self.d("k", j * self.n_y + n))
                t.put(self.d("ys", n), f"{self.d('y', n)} + {reached}")
            t.let("per", f"1.0/{self.s(LENGTH)}")
            t.let("g", self.a("factors", "per_step"))
            kv, kp, ke = (k(n) for n in (self.at_v, self.at_p, self.at_e))
            for row in range(self.n_u):
                moved = f"{self.a(slope, row)}*{dy(self.at_v)} + {self.d('by', row)}"
                t.let(f"m{row}", moved if i else self.d("moved", row))

            def flux(chain: int, state: int, r: int) -> str:
                x, dx = self._source(chain, state, y, "1.0"), self._source(chain, state, dy, "0.0")
                x0 = self._source(chain, state, start, "1.0")
                dx0 = self._source(chain, state, dstart, "0.0")
                kx = self._source(chain, state, k, "0.0")
                return (
                    f"m{r}*{x} + {self.a('u', r)}*{dx} + {self.d('moved', r)}*{kx} + "
                    f"{kv}*({self.d('bent', r)}*{x0} + {self.a('slope', r)}*{dx0})"
                )

            flow = self._flow("f", flux)
            right = {n: f"{flow[n]} + {so_far(n)}*per" for n in range(self.n_x)}
            self._opens("o", y)
            current = self._current("o", lambda j: self.a("u", self.n_rates + j))
            chains = range(len(self.model.chains))
            parts = [f"{current.by_open(n)}*{self._projected(n, dy)}" for n in chains]
            parts.append(current.by_drive(lambda j: f"m{self.n_rates + j}"))
            v, dv = y(self.at_v), dy(self.at_v)
            parts += [f"{dc('leak')}*{v}", f"{c('leak')}*{dv}"]
            t.let("flows", " + ".join(parts) + f" - {dc('leak_current')}")
            pulls = [f"{self.a('by_open', n)}*{self._projected(n, k)}" for n in chains]
            t.let(
                "pull", " + ".join([f"({self.a('factors', 'steepness')} + {c('leak')})*{kv}", *pulls])
            )
            changes = [f"{self.d('by_open', n)}*{self._projected(n, k)}" for n in chains]
            t.let(
                "change", " + ".join([f"({self.d('steepness')} + {dc('leak')})*{kv}", *changes])
            )
            t.let("across", f"{y(self.at_p)} + {c('offset')} - {v}")
            t.let("acrossBy", f"{dy(self.at_p)} + {dc('offset')} - {dv}")
            command = self.s(COMMAND + NODE_OF_STAGE[i])
            t.let("lead", f"{command} - {y(self.at_e)}")
            t.let("leadBy", f"0.0 - {dy(self.at_e)}")

            def pushed(name: str, n: int) -> str:
                told = f"{self.a('told', name)} - g*{k(n)}"
                return f"{c(name)}*{so_far(n)}*per + {dc(name)}*({told})"

            right[self.at_v] = (
                f"acrossBy - {dc('resistance')}*({self.a('told', 'current')} + pull) - "
                f"{c('resistance')}*(flows + change) + {pushed('charging', self.at_v)}"
            )
            rises = f" + {D[i]!r}*{self.s(RISE)}*{dc('boost')}" if D[i] else ""
            right[self.at_p] = (
                f"{dc('fraction')}*(across + {kp} - {kv}) + {c('fraction')}*acrossBy + "
                f"{dc('boost')}*(lead - {ke}) + {c('boost')}*leadBy - {dy(self.at_p)} + "
                f"{pushed('lag', self.at_p)}{rises}"
            )
            right[self.at_e] = f"leadBy + {pushed('tracking', self.at_e)}"
            self._solve(lambda n: self.d("k", i * self.n_y + n), right)

    def _tangent_finish(self) -> None:
        """Writes finishBy, the end of the step, and observeBy, what is seen of it."""
        t, c = self.t, self._c
        with t.function("finishBy", "Derivatives of the state at the end of a step."):
            self._advance(self.d)
        with t.function("observeBy", "Derivatives of what is seen at the end of a step."):
            for row in range(len(OBSERVED)):
                t.put(self.d("before", row), self.d("seen", row))
            chains, terms = range(len(self.model.chains)), range(len(self.terms))
            v = self.d("y", self.at_v)
            self._opens("o", lambda n: self.a("y", n))
            current = self._current("o", lambda j: self.a("u", self.n_rates + j))
            dots = [self._projected(k, lambda n: self.d("y", n)) for k in chains]

            def by(first: str, second: str, j: int) -> str:
                row = self.n_rates + j
                return f"({self.a(first, row)}*{v} + {self.d(second, row)})"

            moved = [by("slope", "by", j) for j in terms]
            bent = [by("bend", "slope_by", j) for j in terms]
            slopes = [self.a("slope", self.n_rates + j) for j in terms]
            parts = [f"{current.by_open(k)}*{dots[k]}" for k in chains]
            parts.append(current.by_drive(moved.__getitem__))
            parts += [f"{self.d('c', 'leak')}*{self.a('y', self.at_v)}", f"{c('leak')}*{v}"]
            t.put(self.d("seen", 0), " + ".join(parts) + f" - {self.d('c', 'leak_current')}")
            rate, drate = self.a("rate", self.at_v), self.d("rate", self.at_v)
            steep = current.by_drive(slopes.__getitem__)
            parts = [
                f"({current.by_drive_dot(slopes, bent, dots)} + {self.d('c', 'leak')})*{rate}",
                f"({steep} + {c('leak')})*{drate}",
            ]
            for k in chains:
                change = self._projected(k, lambda n: self.a("rate", n))
                dchange = self._projected(k, lambda n: self.d("rate", n))
                parts.append(f"({current.by_open_dot(k, dots, moved)})*{change}")
                parts.append(f"{current.by_open(k)}*{dchange}")
            t.put(self.d("seen", 1), " + ".join(parts))
            for row, block in ((2, "y"), (3, "rate")):
                changed = (
                    f"{self.d('c', 'membrane')}*{self.a(block, self.at_v)} + "
                    f"{self.d('c', 'pipette')}*{self.a(block, self.at_p)} - "
                    f"{self.d('c', 'cancelled')}*{self.a(block, self.at_e)}"
                )
                t.put(self.d("seen", row), f"{self._charge(self.d, block)} + {changed}")


class _Current:
    """The current as a sum of terms, drive times the open probabilities of some chains, in text.

    Arguments:
        opens: the prefix of the names of the open probabilities.
        drive: text of the drive of a term.
    """

    def __init__(self, step: ClampStep, opens: str, drive: Callable[[int], str]) -> None:
        self.step, self.opens, self.drive = step, opens, drive

    def text(self) -> str:
        """The current, pA."""
        return self.by_drive(self.drive)

    def by_drive(self, of: Callable[[int], str]) -> str:
        """The current with each drive in place of which stands another text."""
        parts = [f"{of(j)}*{self._product(chains)}" for j, (_, chains) in enumerate(self.step.terms)]
        return f"({' + '.join(parts)})"

    def by_open(self, k: int) -> str:
        """The derivative by the open probability of chain k."""
        return self._by_open(k, self.drive)

    def by_open_dot(self, k: int, dots: Sequence[str], moved: Sequence[str]) -> str:
        """The change of `by_open` where open probabilities change by dots and drives by moved."""
        parts = [self._by_open(k, moved.__getitem__)]
        for j, (_, chains) in enumerate(self.step.terms):
            if k in chains:
                for m in chains:
                    second = self._product(chains, k, m)
                    parts.append(f"{self.drive(j)}*{second}*{dots[m]}")
        return f"({' + '.join(parts)})"

    def by_drive_dot(self, slopes: Sequence[str], bent: Sequence[str], dots: Sequence[str]) -> str:
        """The change of `by_drive(slopes)` where slopes change by bent, open probabilities by dots."""
        parts = [self.by_drive(bent.__getitem__)]
        for k in range(len(self.step.model.chains)):
            parts.append(f"{self._by_open(k, slopes.__getitem__)}*{dots[k]}")
        return f"({' + '.join(parts)})"

    def _by_open(self, k: int, drive: Callable[[int], str]) -> str:
        parts = [
            f"{drive(j)}*{self._product(chains, k)}"
            for j, (_, chains) in enumerate(self.step.terms)
            if k in chains
        ]
        return f"({' + '.join(parts) or '0.0'})"

    def _product(self, chains: Sequence[int], *by: int) -> str:
        """The product of open probabilities to their powers, differentiated by some of them."""
        factors = []
        for k in chains:
            power, times = self.step.model.chains[k].power, 1
            for _ in range(sum(one == k for one in by)):
                times, power = times * power, power - 1
            if times != 1:
                factors.append(f"{float(times)!r}")
            factors += [f"{self.opens}{k}"] * max(0, power)
        return f"({'*'.join(factors) or '1.0'})"


_NOT_NEGATIVE = ("resistance", "charging", "fraction", "lag", "tracking", "leak", "delay")
_NEGATIVE, _UNDEFINED = str(float(NEGATIVE_RATE)), str(float(NOT_FINITE))
#: What an error of 1 mV of the membrane potential counts beside one of an occupancy.
_PER_MV = 0.01
