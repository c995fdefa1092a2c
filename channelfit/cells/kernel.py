"""A cell as text of a kernel: parameter sets in vector lanes, step after step of one length.

With currents g (v - e) of open channels, C v' = a v + b between two steps, where a and b follow the
occupancies. The voltage takes the exponential Adams method of order four for such equations (Rush-
Larsen of order four: Coudiere, Douanla-Lontsi and Pierre 2020), in which the stimulus counts with
its mean over the step. The occupancies then take the backward differentiation formula of order four
at the new voltage, which is linear in them: gates by a division, schemes by an elimination of which
no element is subtracted from another. Both keep their order and need the rates once in a step. At
time 0 the cell is let go after it was held for ever.

A current that rectifies has the straight line at the present voltage for a and b.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import sympy

from channelfit.cells.membrane import CAPACITANCE, Membrane
from channelfit.model.channel import ChannelModel
from channelfit.model.terms import V, symbol
from channelfit.scoring.kernels.cpu_channel import LaneChannel
from channelfit.scoring.kernels.derivatives import derivative
from channelfit.scoring.kernels.printer import PYTHON, ScalarPrinter, assignments

#: Steps back of which voltage and occupancies are remembered.
BACK = 4


class CellSource(LaneChannel):
    """The generated kernel of one membrane.

    Arguments:
        lanes: parameter sets in a block; 0 for as many as a processor computes best.

    Attributes:
        text: the source; its function is runCells.
        lanes: parameter sets in a block.
    """

    #: Of the differentiation formula: its diagonal, and the past that it weighs, latest first.
    diagonal = "25.0/12.0"
    past = "4.0*{} - 3.0*{} + 4.0/3.0*{} - 0.25*{}"
    #: What the steps of the occupancies are given of the formula.
    weights = "h"

    def __init__(self, membrane: Membrane, lanes: int = 0) -> None:
        super().__init__(with_voltage_inlined(membrane.model), "float64")
        self.lanes = lanes or self.lanes
        self.membrane = membrane
        self.n_currents = len(membrane.channels)
        self.text = self._module()

    def names(self) -> dict[str, str]:
        return super().names() | {"v": "u"}

    def load_parameters(self, expressions: Iterable[sympy.Expr]) -> None:
        """Name this lane's voltage and values of the parameters that occur."""
        self.w("u = v[l]")
        super().load_parameters(expressions)

    def _module(self) -> str:
        self.header("a cell", "exp, exprel, exprel_slope, inline, tanh")
        self.write_rates()
        for k in range(len(self.model.chains)):
            self.write_steady_state(k)
        self._write_flow()
        for k in range(len(self.model.chains)):
            self._write_step(k)
        self._write_run()
        return self.w.text

    def _opened(self, k: int) -> str:
        """Return the text of a chain's open probability."""
        chain, first = self.model.chains[k], self.first_x[k]
        c0, rest = chain.conductances[0], chain.conductances[1:]
        parts = [
            (f"{c - c0!r}*" if c - c0 != 1.0 else "") + self.at("x", first + i)
            for i, c in enumerate(rest)
            if c != c0
        ]
        return " + ".join(([f"{c0!r}"] if c0 else []) + parts) or "0.0"

    def _write_flow(self) -> None:
        """Write flow: a and b of C v' = a v + b, divided by C, and the currents of channels."""
        w, printer, model = self.w, ScalarPrinter(PYTHON, self.names()), self.model
        drives = [term.drive for term in model.terms]
        slopes = [term.size if term.ohmic else derivative(term.drive, V) for term in model.terms]
        steps, both = assignments(model.definitions, drives + slopes)
        n = len(drives)
        with self.function(
            "flow(v, theta, x, a, b, currents)",
            "The line a v + b, mV/ms, on which the voltage changes; currents of channels, pA.",
        ):
            with self.over_lanes():
                self.load_parameters([e for _, e in steps] + both)
                w(*(printer.assignment(name, e) for name, e in steps))
                for k, chain in enumerate(model.chains):
                    w(f"y{k} = {self._opened(k)}", f"o{k} = {'*'.join([f'y{k}'] * chain.power)}")
                for row, term in enumerate(model.terms):
                    opened = "".join(f"*o{k}" for k in term.chains)
                    w(f"# {term.name}", f"i{row} = ({printer.text(both[row])}){opened}")
                    w(f"g{row} = ({printer.text(both[n + row])}){opened}")
                total = " + ".join(f"g{row}" for row in range(n))
                current = " + ".join(f"i{row}" for row in range(n))
                capacitance = self.at("theta", self.membrane.row(CAPACITANCE))
                w(f"per = 1.0/{capacitance}", f"slope = {total}", f"current = {current}")
                w("a[l] = -slope*per", "b[l] = (slope*u - current)*per")
                for k, rows in enumerate(self.membrane.channels.values()):
                    w(f"{self.at('currents', k)} = {' + '.join(f'i{row}' for row in rows)}")

    def _write_step(self, k: int) -> None:
        """Write step: the occupancies of a chain, a step on, at the rates of the new voltage."""
        w, first, n = self.w, self.first_x[k], len(self.model.chains[k].states)
        with self.function(
            f"step{k}(q, x, x1, x2, x3, {self.weights})",
            "Backward differentiation of order four: x becomes the next occupancies.",
        ):
            with self.over_lanes():
                for i in range(first, first + n - 1):
                    now, *before = (self.at(f"x{j or ''}", i) for j in range(BACK))
                    w(f"r{i - first + 1} = {self.past.format(now, *before)}")
                    w(f"{before[2]} = {before[1]}", f"{before[1]} = {before[0]}")
                    w(f"{before[0]} = {now}")
                if n == 2:
                    up, down = self.up_and_down(k)
                    w(f"up = h*{up}", f"down = h*{down}")
                    w(f"{self.at('x', first)} = (r1 + up)/({self.diagonal} + (up + down))")
                elif n > 2:
                    self._solve(k, n)

    def _solve(self, k: int, n: int) -> None:
        """Write the solution of (d - h A) p = r, with the formula's diagonal d, by elimination."""
        w = self.w
        rest = "".join(f" - r{i}" for i in range(1, n))
        w(f"r0 = {self.diagonal}{rest}")
        rates: dict[tuple[int, int], str] = {}
        for i, j, row in self.entries(k):
            w(f"f{i}_{j} = h*{self.at('q', row)}")
            rates[i, j] = f"f{i}_{j}"
        # a state's outflow to states that are left, and its leak to the past, make its diagonal
        w(*(f"leak{i} = {self.diagonal}" for i in range(n)))
        for last in range(n - 1, 0, -1):
            into = [j for j in range(last) if (last, j) in rates]
            out_of = [i for i in range(last) if (i, last) in rates]
            outflow = " + ".join([f"leak{last}", *(rates[last, j] for j in into)])
            w(f"d{last} = 1.0/({outflow})")
            for j in into:
                w(f"share{last}_{j} = {rates[last, j]}*d{last}", f"r{j} += share{last}_{j}*r{last}")
            for i in out_of:
                w(f"leak{i} += {rates[i, last]}*leak{last}*d{last}")
                for j in into:
                    if i != j:
                        through = f"{rates[i, last]}*share{last}_{j}"
                        if (i, j) in rates:
                            w(f"f{i}_{j} += {through}")
                        else:
                            w(f"f{i}_{j} = {through}")
                            rates[i, j] = f"f{i}_{j}"
        w("p0 = r0/leak0")
        for last in range(1, n):
            inflow = [f"{rates[i, last]}*p{i}" for i in range(last) if (i, last) in rates]
            w(f"p{last} = (r{last} + {' + '.join(inflow)})*d{last}")
            w(f"{self.at('x', self.first_x[k] + last - 1)} = p{last}")

    def _write_run(self) -> None:
        """Write runCells: all sweeps of blocks first .. last - 1."""
        w, L = self.w, self.lanes
        self._write_advance()
        with self.function(
            "runCells(parameters, first, last, stimulus, settled, h, every, start, trace,"
            " status_out)",
            "Voltages, mV, and currents of channels, pA, of every sample.",
        ):
            w("n_candidates = parameters.shape[1]")
            rows = {"theta": len(self.model.parameters), "q": self.n_rates, "m": self.n_square}
            rows |= {f"x{j or ''}": self.n_x for j in range(BACK)}
            rows |= {f"{name}{j or ''}": 1 for name in "ab" for j in range(BACK)}
            rows |= {"status": 1, "v": 1, "currents": self.n_currents, "z": 4 * self.widest}
            w(*(f"{name} = np.empty({max(1, n) * L})" for name, n in rows.items()))
            with self._sweeps():
                self._record("0", "settled == 0")
                with w.block("for n in range(stimulus.shape[1]):"):
                    self._advance()
                    self._record(
                        "(n + 1 - settled)//every",
                        "n + 1 >= settled and (n + 1 - settled) % every == 0",
                    )

    @contextmanager
    def _sweeps(self) -> Iterator[None]:
        """Write the loop over all sweeps of all blocks, around what follows the start of one."""
        w, L = self.w, self.lanes
        with w.block("for block in range(first, last):"):
            with w.block(f"for l in range({L}):"):
                w(f"candidate = min(block*{L} + l, n_candidates - 1)")
                for row in range(len(self.model.parameters)):
                    w(f"{self.at('theta', row)} = parameters[{row}, candidate]")
                w("status[l] = 0.0")
            with w.block("for sweep in range(stimulus.shape[0]):"):
                self._begin()
                yield
            with w.block(f"for l in range(min({L}, n_candidates - block*{L})):"):
                w(f"status_out[block*{L} + l] = int(status[l])")

    def _begin(self) -> None:
        """Write the start of a sweep: at rest at the first voltage, where the past is the same."""
        w = self.w
        with self.over_lanes():
            w("v[l] = start")
        w("createQmat(v, theta, q, status)")
        for k in range(len(self.model.chains)):
            w(f"initStateProbs{k}(q, x[{self.first_x[k] * self.lanes}:], m, z)")
        w("flow(v, theta, x, a, b, currents)")
        for j in range(1, BACK):
            with w.block(f"for k in range({self.n_x * self.lanes}):"):
                w(f"x{j}[k] = x[k]")
            with self.over_lanes():
                w(f"a{j}[l] = a[l]", f"b{j}[l] = b[l]")

    def _write_advance(self) -> None:
        """Write advance: the voltage a step on, and a and b of the steps before it."""
        w = self.w
        lines = ", ".join(f"{x}{j or ''}" for x in "ab" for j in range(BACK))
        head = f"advance(v, theta, {lines}, pushed, h)"
        w("", "", "@inline")
        with self.function(head, "The voltage, mV, a step on; a and b become those of the past."):
            with self.over_lanes():
                w(f"push = pushed/{self.at('theta', self.membrane.row(CAPACITANCE))}")
                for x in "ab":
                    w(f"s{x} = (55.0*{x}[l] - 59.0*{x}1[l] + 37.0*{x}2[l] - 9.0*{x}3[l])/24.0")
                past = "3.0*(b1[l] + push) - (b2[l] + push)"
                turn = f"a[l]*({past}) - (3.0*a1[l] - a2[l])*(b[l] + push)"
                w(f"sb = sb + push + h/12.0*({turn})")
                w("v[l] = v[l] + h*exprel(h*sa)*(sa*v[l] + sb)")
                for x in "ab":
                    w(f"{x}3[l] = {x}2[l]", f"{x}2[l] = {x}1[l]", f"{x}1[l] = {x}[l]")

    def _advance(self) -> None:
        """Write one step: the voltage first, then the occupancies at it."""
        lines = ", ".join(f"{x}{j or ''}" for x in "ab" for j in range(BACK))
        self.w(f"advance(v, theta, {lines}, stimulus[sweep, n], h)")
        self.w("createQmat(v, theta, q, status)")
        self.w(*(f"step{k}(q, x, x1, x2, x3, h)" for k in range(len(self.model.chains))))
        self.w("flow(v, theta, x, a, b, currents)")

    def _record(self, sample: str, condition: str) -> None:
        """Write a sample of the voltage and, where there is room for them, of the currents."""
        w, L = self.w, self.lanes
        with w.block(f"if {condition}:"):
            w(f"sample = {sample}")
            with w.block(f"for l in range(min({L}, n_candidates - block*{L})):"):
                w(f"trace[0, sweep, sample, block*{L} + l] = v[l]")
            with w.block("for k in range(trace.shape[0] - 1):"):
                with w.block(f"for l in range(min({L}, n_candidates - block*{L})):"):
                    current = self.at("currents", "k")
                    w(f"trace[k + 1, sweep, sample, block*{L} + l] = {current}")


def with_voltage_inlined(model: ChannelModel) -> ChannelModel:
    """Return the model with definitions of the voltage written out where drives use them.

    The slope of a current that rectifies is taken by the voltage, which may stand in a definition.
    """
    inlined: dict[sympy.Symbol, sympy.Expr] = {}
    for name, expression in model.definitions:
        expression = expression.xreplace(inlined)
        if expression.has(V):
            inlined[symbol(name)] = expression
    if not inlined:
        return model
    terms = tuple(
        t
        if t.rectification is None
        else replace(t, rectification=t.rectification.xreplace(inlined))
        for t in model.terms
    )
    return replace(model, terms=terms)
