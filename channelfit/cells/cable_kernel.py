"""A cable as text of a kernel: the membrane in segments, parameter sets in vector lanes.

Each segment has C v' = a v + b and the axial currents from its neighbors; the ends are sealed. The
voltage takes the backward differentiation formula of the occupancies, of order four, in which a and
b are extrapolated to the new time by a polynomial through the last four. It is then linear in all
voltages: a tridiagonal system a step, solved by an elimination of which no element is subtracted
from another. (Semi-implicit backward differentiation: Ascher, Ruuth and Wetton 1995.) Steps may
differ in length; `steps` has the weights of every one of them.
"""

from __future__ import annotations

from channelfit.cells.kernel import BACK, CellSource
from channelfit.cells.membrane import CAPACITANCE


class CableSource(CellSource):
    """The generated kernel of a cable with one kind of membrane; its function is runCable."""

    diagonal = "c0"
    past = "c1*{} + c2*{} + c3*{} + c4*{}"
    weights = "h, c0, c1, c2, c3, c4"

    def _write_run(self) -> None:
        """Write runCable: all sweeps of blocks first .. last - 1."""
        w, L = self.w, self.lanes
        self._write_cable()
        with self.function(
            "runCable(parameters, first, last, stimulus, steps, samples, axial, places, start,"
            " trace, status_out)",
            "Voltages, mV, at some segments: rows of `axial` are 1/ms to left and right, and input",
        ):
            w("n_candidates = parameters.shape[1]", "n = axial.shape[0]")
            rows = {"theta": len(self.model.parameters), "q": self.n_rates, "m": self.n_square}
            rows |= {"status": 1, "currents": self.n_currents, "z": 4 * self.widest}
            w(*(f"{name} = np.empty({max(1, size) * L})" for name, size in rows.items()))
            back = range(BACK)
            w(*(f"x{j or ''} = np.empty(n*{max(1, self.n_x) * L})" for j in back))
            # one segment more, which is nothing, stands beside either end
            names = [*(f"{x}{j or ''}" for x in "vab" for j in back), "rest", "share", "right"]
            w(*(f"{name} = np.zeros((n + 1)*{L})" for name in names))
            with self._sweeps(), w.block("for k in range(steps.shape[0] + 1):"):
                with w.block("if k > 0:"):
                    self._advance()
                self._record("samples[k]", "samples[k] >= 0")

    def _segment(self, *names: str) -> str:
        """Return the texts of the views of segment s."""
        sizes = {"x": max(1, self.n_x) * self.lanes}
        size = [sizes.get(name[0], self.lanes) for name in names]
        return ", ".join(f"{x}[s*{k}:(s + 1)*{k}]" for x, k in zip(names, size, strict=True))

    def _begin(self) -> None:
        """Write the start of a sweep: all segments at rest at the first voltage."""
        w = self.w
        with w.block("for s in range(n):"):
            with self.over_lanes():
                w(f"{self.at('v', 's')} = start")
            w(f"createQmat({self._segment('v')}, theta, q, status)")
            w(f"now = {self._segment('x')}")
            for k in range(len(self.model.chains)):
                w(f"initStateProbs{k}(q, now[{self.first_x[k] * self.lanes}:], m, z)")
            w(f"flow({self._segment('v')}, theta, {self._segment('x', 'a', 'b')}, currents)")
        # the first steps give what is older no weight, but it has to be finite
        for x in ("v", "a", "b", "x"):
            with w.block(f"for k in range({x}.size):"):
                w(*(f"{x}{j}[k] = {x}[k]" for j in range(1, BACK)))

    def _write_cable(self) -> None:
        """Write cable: the voltages of all segments, a step on."""
        w, L, at = self.w, self.lanes, self.at
        names = ", ".join(f"{x}{j or ''}" for x in "vab" for j in range(BACK))
        scratch = "rest, share, right"
        head = f"cable(theta, {names}, {scratch}, axial, pushed, {self.weights}, e1, e2, e3, e4)"
        with self.function(head, "The new voltages, of a tridiagonal system, into v."):
            w("n = axial.shape[0]")
            with w.block("for s in range(n):"):
                w("left = h*axial[s, 0]", "next = h*axial[s, 1]", "push = h*axial[s, 2]*pushed")
                with self.over_lanes():
                    for x in "ab":
                        old = [at(f"{x}{j or ''}", "s") for j in range(BACK)]
                        terms = (f"e{j + 1}*{text}" for j, text in enumerate(old))
                        w(f"s{x} = {' + '.join(terms)}")
                        w(*(f"{old[j]} = {old[j - 1]}" for j in range(BACK - 1, 0, -1)))
                    old = [at(f"v{j or ''}", "s") for j in range(BACK)]
                    capacitance = at("theta", self.membrane.row(CAPACITANCE))
                    w(f"past = {self.past.format(*old)} + h*sb + push/{capacitance}")
                    w(*(f"{old[j]} = {old[j - 1]}" for j in range(BACK - 1, 0, -1)))
                    before = {x: f"{x}[s*{L} + l]" for x in ("rest", "share", "right")}
                    w(f"own = c0 - h*sa + left*{before['rest']}*{before['share']}")
                    w("per = 1.0/(own + next)")
                    w(f"past += left*{before['right']}*{before['share']}")
                    values = {"rest": "own", "share": "per", "right": "past"}
                    w(*(f"{at(x, 's + 1')} = {value}" for x, value in values.items()))
            with w.block("for back in range(n):"):
                w("s = n - 1 - back", "next = h*axial[s, 1]")
                with self.over_lanes():
                    inflow = f"{at('right', 's + 1')} + next*{at('v', 's + 1')}"
                    w(f"{at('v', 's')} = ({inflow})*{at('share', 's + 1')}")

    def _advance(self) -> None:
        """Write one step: all voltages first, then the occupancies at them."""
        w = self.w
        names = ("h", *(f"c{j}" for j in range(5)), *(f"e{j}" for j in range(1, 5)))
        w(*(f"{name} = steps[k - 1, {j}]" for j, name in enumerate(names)))
        old = ", ".join(f"{x}{j or ''}" for x in "vab" for j in range(BACK))
        w(
            f"cable(theta, {old}, rest, share, right, axial, stimulus[sweep, k - 1],"
            f" {', '.join(names)})"
        )
        with w.block("for s in range(n):"):
            w(f"createQmat({self._segment('v')}, theta, q, status)")
            past = self._segment("x", "x1", "x2", "x3")
            for k in range(len(self.model.chains)):
                w(f"step{k}(q, {past}, {self.weights})")
            w(f"flow({self._segment('v')}, theta, {self._segment('x', 'a', 'b')}, currents)")

    def _record(self, sample: str, condition: str) -> None:
        """Write a sample of the voltage at every place."""
        w, L = self.w, self.lanes
        with w.block(f"if {condition}:"), w.block("for place in range(places.size):"):
            w("row = sweep*places.size + place", "s = places[place]")
            with w.block(f"for l in range(min({L}, n_candidates - block*{L})):"):
                w(f"trace[0, row, {sample}, block*{L} + l] = {self.at('v', 's')}")
