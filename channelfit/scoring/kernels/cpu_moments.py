"""Kernel text that scores a block of candidates by the moments of its runs.

See `layout.moment_tables` and `layout.resolvent_tables` for the mathematics, and `lanes` for
candidates side by side. All candidates of a block share the rung of rho at a voltage, that of the
fastest, so that tables are read once for all; above the last rung they take moments of resolvents,
of which the tables serve all rates. A candidate is marked (`doubt`), and the caller scores it by
stepping, if its moments grow so large that their sum loses digits: starts that are rare at the next
voltage, and cycles that oscillate.
"""

from __future__ import annotations

from channelfit.model.channel import ChannelModel
from channelfit.scoring.kernels.cpu_channel import LaneChannel
from channelfit.scoring.kernels.detailed_balance import keeps_detailed_balance
from channelfit.scoring.kernels.lanes import loops_of
from channelfit.scoring.kernels.resolvents import Elimination
from channelfit.scoring.kernels.scalars import LaneScalars
from channelfit.scoring.layout.moment_tables import GREATEST_DEGREE

#: Attributes of `cpu_moments.CpuMomentTables` in the order in which `runMoments` takes them.
MOMENT_ARGUMENTS = (
    "visits",
    "visit_v",
    "visit_top",
    "start_v",
    "ladder",
    "places",
    "values",
    "n_slots",
    "table_of",
    "shapes",
    "groups",
    "tables",
    "target_of",
    "targets",
)
#: Directions of a table that are computed together, and the moments that are added at once.
TOGETHER, AT_ONCE = 4, 8
#: Of the largest moment: the error that rounding and tables leave in an open probability.
MOMENT_ERROR = 5e-14
#: That of resolvents, as a multiple, of the largest open probability among them: each occupancy
#: keeps its own digits in an elimination without subtractions.
RESOLVENT_ERRORS = 40.0
#: A cost in which this error may make up a larger part is doubted.
GREATEST_ERROR = 2.5e-10
#: Up to so many states occupancies stay in registers over several moments.
_FEW_STATES = 12


class CpuMomentSource(LaneChannel):
    """The generated kernel that scores a model of one chain by moments.

    Attributes:
        text: the source; `runMoments` scores a range of blocks.
        lanes: candidates in a block.
        resolves: whether candidates too stiff for Chebyshev's moments have those of resolvents.
    """

    def __init__(self, model: ChannelModel) -> None:
        super().__init__(model, "float64")
        self.n = len(model.chains[0].states)
        self.few = self.n <= _FEW_STATES
        self.elimination = Elimination(self.n, self.entries(0))
        self.resolves = self.elimination.pays
        sizes = {"cost": 1, "lost": 1, "doubt": 1, "drive": 1, "leak": 1, "fastest": 1}
        sizes |= {"gain": self.n_gains, "q": self.n_rates, "f": self.n_rates, "growth": 1}
        sizes |= dict.fromkeys(("d", "u", "b", "e"), self.n) | {"x": self.n, "z": TOGETHER}
        sizes |= self.elimination.sizes if self.resolves else {}
        self.c = LaneScalars(self.w, self.lanes, sizes)
        self.text = self._module()

    def _module(self) -> str:
        self.header("scores from moments", "exp, exprel, tanh")
        self.write_rates()
        self.write_gains()
        self.write_steady_state(0)
        self._bound()
        self._scale()
        self._begin()
        for ends in (False, True):
            self._moments(ends)
        if self.resolves:
            self._resolvents()
        self._finish()
        self._project()
        self._compare()
        self._sweep()
        return self.w.text

    # --- the generator at one voltage

    def _bound(self) -> None:
        """Write createBound: rho, or a smaller bound where the generator is similar to symmetric.

        Both follow from Gershgorin's circles.
        """
        w, c, entries = self.w, self.c, self.entries(0)
        row_of = {(source, target): row for source, target, row in entries}
        symmetric = keeps_detailed_balance(self.model, self.model.chains[0])
        with self.function(
            "createBound(a, v, top, status)", "The fastest speed of any mode; drive and leak."
        ):
            for some in loops_of([1] * self.n):
                with self.over_lanes():
                    w(f"most = {c.at('fastest', 0)}" if some.start else "most = 0.0")
                    for i in range(self.n)[some]:
                        rows = [row for source, _, row in entries if source == i]
                        w(f"out = {' + '.join(c.at('q', row) for row in rows) or '0.0'}")
                        circle = "2.0*out"
                        if symmetric:
                            back = [row_of[j, i] for source, j, _ in entries if source == i]
                            roots = (
                                f"sqrt({c.at('q', one)}*{c.at('q', other)})"
                                for one, other in zip(rows, back, strict=True)
                            )
                            w(f"circle = out + {' + '.join(roots)}")
                            circle = "circle"
                        w(f"most = max(most, {circle})")
                    w(f"{c.at('fastest', 0)} = most")
            with self.over_lanes():
                self.w(f"most = {c.at('fastest', 0)}")
                if self.resolves:
                    w("most = most if most <= top else 1e300")
                    w(f"{c.at('fastest', 0)} = most if status[l] == 0.0 else 0.0")
                else:
                    w(f"slow = most <= top and status[l] == 0.0 and {c.at('doubt', 0)} == 0.0")
                    w(f"{c.at('doubt', 0)} = {c.at('doubt', 0)} if slow else 1.0")
                    w(f"{c.at('fastest', 0)} = most if slow else 0.0")
                self._drive()

    def _drive(self) -> None:
        w, c = self.w, self.c
        if self.ohmic:
            w(f"{c.at('drive', 0)} = {c.at('gain', 0)}*(v - {c.at('gain', 1)})")
            return
        for name, opens in (("drive", True), ("leak", False)):
            rows = (
                c.at("gain", k) for k, t in enumerate(self.model.terms) if bool(t.chains) == opens
            )
            w(f"{c.at(name, 0)} = {' + '.join(rows) or '0.0'}")

    def _scale(self) -> None:
        """Write createStep: 2X = 2 I + 4 A/rho, by transitions and its diagonal."""
        w, c = self.w, self.c
        with self.function("createStep(a, scale)", "Twice X = I + 2 A/rho; scale = 4/rho."):
            for some in loops_of([1] * self.n_rates):
                with self.over_lanes():
                    for row in range(self.n_rates)[some]:
                        w(f"{c.at('f', row)} = scale*{c.at('q', row)}")
            for some in loops_of([1] * self.n):
                with self.over_lanes():
                    for i in range(self.n)[some]:
                        out = [c.at("f", row) for source, _, row in self.entries(0) if source == i]
                        w(f"{c.at('d', i)} = 2.0 - ({' + '.join(out) or '0.0'})")

    def _twice(self, i: int, of: str) -> str:
        """Return element i of 2X times some occupancies."""
        u = self._name if of.startswith("named ") else self.c.at
        of = of.removeprefix("named ")
        terms = [f"{self.c.at('d', i)}*{u(of, i)}"]
        terms += [
            f"{self.c.at('f', row)}*{u(of, source)}"
            for source, target, row in self.entries(0)
            if target == i
        ]
        return " + ".join(terms)

    @staticmethod
    def _name(array: str, row: int) -> str:
        return f"{array}{row}"

    # --- the moments of one run

    def _begin(self) -> None:
        """Write begin: T_0 p0 in u, T_1 p0 in b (which is also T_-1 p0), and 0 in e."""
        w, c, n = self.w, self.c, self.n
        with self.function("begin(a, source)", "The first two vectors of the recurrence."):
            for some in loops_of([1] * n):
                with self.over_lanes():
                    for i in range(n)[some]:
                        if i:
                            w(f"{c.at('u', i)} = {self.at('source', i - 1)}")
                        w(f"{c.at('e', i)} = 0.0")
            with self.over_lanes():
                rest = " + ".join(self.at("source", i) for i in range(n - 1))
                w(f"{c.at('u', 0)} = 1.0 - ({rest})" if rest else f"{c.at('u', 0)} = 1.0")
                w(f"{c.at('growth', 0)} = 0.0")
            for some in loops_of([1] * n):
                with self.over_lanes():
                    for i in range(n)[some]:
                        w(f"{c.at('b', i)} = 0.5*({self._twice(i, 'u')})")

    def _moments(self, ends: bool) -> None:
        """Write moments, or momentsToEnd, which adds up the state at the end in e as well."""
        w, c, n = self.w, self.c, self.n
        head = "momentsToEnd(a, m, n, end)" if ends else "moments(a, m, n)"
        with self.function(head, "The current of each moment, n of them, a multiple of four."):
            with w.block("for k in range(0, n, 4):"):
                w(f"row = m[k*{self.lanes}:(k + 4)*{self.lanes}]")
                if ends:
                    w("weight = end[k:k + 4]")
                if self.few:
                    self._four_in_registers(ends)
                else:
                    self._four_in_memory(ends)
                with w.block("if k & 4 or k + 4 == n:"), self.over_lanes():
                    w(f"most = {c.at('growth', 0)}")
                    w(*(f"most = max(most, abs({c.at('u', i)}))" for i in range(n)))
                    w(f"{c.at('growth', 0)} = most")

    def _current(self, of: list[str]) -> str:
        """Return the current of a moment; that of a leak is 1 in every one, as occupancies are."""
        return self._of_open(f"({self._open(of)})")

    def _open(self, of: list[str]) -> str:
        """Return the open probability of occupancies."""
        opened = [
            o if g == 1.0 else f"{float(g)!r}*{o}"
            for o, g in zip(of, self.model.chains[0].conductances, strict=True)
            if g
        ]
        return " + ".join(opened) or "0.0"

    def _of_open(self, probability: str) -> str:
        leak = "" if self.ohmic else f" + {self.c.at('leak', 0)}"
        return f"{self.c.at('drive', 0)}*{probability}{leak}"

    def _four_in_registers(self, ends: bool) -> None:
        w, c, n = self.w, self.c, self.n
        with self.over_lanes():
            for array in "ube" if ends else "ub":
                w(*(f"{array}{i} = {c.at(array, i)}" for i in range(n)))
            for k in range(4):
                now, other = "ub" if k % 2 == 0 else "bu"
                w(f"{self.at('row', k)} = {self._current([f'{now}{i}' for i in range(n)])}")
                if ends:
                    w(*(f"e{i} += weight[{k}]*{now}{i}" for i in range(n)))
                w(
                    *(
                        f"{other}{i} = {self._twice(i, f'named {now}')} - {other}{i}"
                        for i in range(n)
                    )
                )
            for array in "ube" if ends else "ub":
                w(*(f"{c.at(array, i)} = {array}{i}" for i in range(n)))

    def _four_in_memory(self, ends: bool) -> None:
        w, c, n = self.w, self.c, self.n
        for k in range(4):
            now, other = "ub" if k % 2 == 0 else "bu"
            with self.over_lanes():
                w(f"{self.at('row', k)} = {self._current([c.at(now, i) for i in range(n)])}")
            for some in loops_of([2] * n):
                with self.over_lanes():
                    for i in range(n)[some]:
                        if ends:
                            w(f"{c.at('e', i)} += weight[{k}]*{c.at(now, i)}")
                        w(f"{c.at(other, i)} = {self._twice(i, now)} - {c.at(other, i)}")

    def _resolvents(self) -> None:
        """Write the moments of resolvents: those of Chebyshev with other polynomials."""
        w, c, n, at_once = self.w, self.c, self.n, 4 if self.few else 1
        with self.function("createResolvent(a, speed)", "(speed - A)^-1, eliminated."):
            with self.over_lanes():
                self.elimination.factor(c, "speed")
        with self.function("beginResolvents(a, m)", "The moment of the state, and R times it."):
            with self.over_lanes():
                w(f"m[l] = {self._current([c.at('u', i) for i in range(n)])}")
                found = self.elimination.solve(c, [c.at("u", i) for i in range(n)])
                w(*(f"{c.at('b', i)} = {found[i]}" for i in range(n)))
        for ends in (False, True):
            head = "resolventsToEnd(a, m, n, end)" if ends else "resolvents(a, m, n)"
            with self.function(head, "The moments of powers of C = 2 R - I."):
                with w.block(f"for k in range(0, n, {at_once}):"):
                    w(f"row = m[k*{self.lanes}:(k + {at_once})*{self.lanes}]")
                    with self.over_lanes():
                        w("widest = 0.0")
                        for array in "be" if ends else "b":
                            w(*(f"{array}{i} = {c.at(array, i)}" for i in range(n)))
                        for j in range(at_once):
                            self._resolved(j, ends)
                        w(f"most = max({c.at('growth', 0)}, {RESOLVENT_ERRORS!r}*widest)")
                        w(*(f"most = max(most, abs(b{i}))" for i in range(n)))
                        w(f"{c.at('growth', 0)} = most")
                        for array in "be" if ends else "b":
                            w(*(f"{c.at(array, i)} = {array}{i}" for i in range(n)))

    def _resolved(self, j: int, ends: bool) -> None:
        w, names = self.w, [f"b{i}" for i in range(self.n)]
        w(f"opened = {self._open(names)}", "widest = max(widest, abs(opened))")
        w(f"{self.at('row', j)} = {self._of_open('opened')}")
        if ends:
            w(*(f"e{i} += end[k + {j}]*b{i}" for i in range(self.n)))
        found = self.elimination.solve(self.c, names)
        w(*(f"b{i} = 2.0*{x} - b{i}" for i, x in enumerate(found)))

    def _finish(self) -> None:
        """Write finish: the state at the end, and the growth of all moments on the way to it."""
        w, c, n = self.w, self.c, self.n
        with self.function("finish(a, target)", "The state at the end of a run."):
            for some in loops_of([1] * (n - 1)):
                with self.over_lanes():
                    for i in range(n - 1)[some]:
                        w(f"{self.at('target', i)} = {c.at('e', i + 1)}")
            with self.over_lanes():
                w(f"{self.at('target', n - 1)} = {c.at('growth', 0)}")

    # --- residuals

    def _project(self) -> None:
        w, c = self.w, self.c
        with self.function(
            "project(a, m, n, table)", f"The current along {TOGETHER} directions, into z."
        ):
            with self.over_lanes():
                w(*(f"{c.at('z', r)} = 0.0" for r in range(TOGETHER)))
            with w.block(f"for k in range(0, n, {AT_ONCE}):"):
                w(f"row = m[k*{self.lanes}:(k + {AT_ONCE})*{self.lanes}]")
                w(f"part = table[k*{TOGETHER}:(k + {AT_ONCE})*{TOGETHER}]")
                with self.over_lanes():
                    w(*(f"m{j} = {self.at('row', j)}" for j in range(AT_ONCE)))
                    for r in range(TOGETHER):
                        terms = (f"part[{r * AT_ONCE + j}]*m{j}" for j in range(AT_ONCE))
                        w(f"{c.at('z', r)} += {' + '.join(terms)}")

    def _compare(self) -> None:
        w, c = self.w, self.c
        with self.function("compare(a, weight, target)", "Adds some directions to the cost."):
            with self.over_lanes():
                w(*(f"r{r} = {c.at('z', r)} - target[{r}]" for r in range(TOGETHER)))
                squares = " + ".join(f"r{r}*r{r}" for r in range(TOGETHER))
                w(f"{c.at('cost', 0)} += weight*({squares})")
        with self.function("addErrors(a, source, weight)", "What the growth may have lost."):
            with self.over_lanes():
                growth = f"{c.at('growth', 0)} + {self.at('source', self.n - 1)}"
                w(f"growth = {growth}", f"{c.at('growth', 0)} = growth")
                w(f"lost = {c.at('drive', 0)}*growth", f"{c.at('lost', 0)} += weight*(lost*lost)")

    # --- everything for a range of blocks

    def _sweep(self) -> None:
        w, L = self.w, self.lanes
        with self.function(
            f"runMoments(parameters, first, last, {', '.join(MOMENT_ARGUMENTS)}, squares,"
            " missing, cost_out, status_out, doubt_out)",
            "Sum of weighted squares less `squares`, pA^2; status; whether stepping must score it.",
        ):
            w("n_candidates = parameters.shape[1]")
            w(f"theta = np.empty({max(1, len(self.model.parameters)) * L})")
            w(f"status = np.empty({L})", f"a = np.zeros({self.c.n_rows * L})")
            w(f"q = {self.c.view('q')}", f"gain = {self.c.view('gain')}")
            w(
                f"slots = np.zeros(n_slots*{self.n * L})",
                f"m = np.zeros({(GREATEST_DEGREE + 8) * L})",
            )
            w(f"m64 = np.empty({self.n_square * L})", f"z64 = np.empty({4 * self.widest * L})")
            with w.block("for block in range(first, last):"):
                self._load()
                with w.block("for visit in range(visits.size - 1):"):
                    self._visit()
                with w.block(f"for l in range(min({L}, n_candidates - block*{L})):"):
                    self._store()

    def _load(self) -> None:
        w = self.w
        self.load_candidates(*(f"{self.c.at(n, 0)} = 0.0" for n in ("cost", "lost", "doubt")))
        with w.block("for start in range(len(start_v)):"):
            w("createQmat(start_v[start], theta, q, status)")
            w(f"state = {self.part('slots', 'start', self.n * self.lanes)}")
            if self.n > 1:
                w("initStateProbs0(q, state, m64, z64)")
            with self.over_lanes():
                w(f"{self.at('state', self.n - 1)} = 1.0")

    def _visit(self) -> None:
        w = self.w
        self.visit_level("visit_v[visit]")
        self.create_drives()
        w("createBound(a, v, visit_top[visit], status)", "fastest = 0.0")
        with self.over_lanes():
            w(f"fastest = max(fastest, {self.c.at('fastest', 0)})")
        w("rung = 0")
        with w.block("while ladder[rung] < fastest:"):
            w("rung += 1")
        w("createStep(a, 4.0/ladder[rung])")
        with w.block("for run in range(visits[visit], visits[visit + 1]):"):
            w("kind = places[run, 2]", "table = table_of[kind, rung]")
            with w.block("if table < 0:"):
                w("missing[kind, rung] = 1")
                with self.over_lanes():
                    w(f"{self.c.at('doubt', 0)} = 1.0")
            with w.block("else:"):
                self._run()

    def _run(self) -> None:
        w, state = self.w, self.n * self.lanes
        w("weight, target = values[run, 0], places[run, 1]")
        w(f"source = {self.part('slots', 'places[run, 0]', state)}", "begin(a, source)")
        w("n = shapes[table, 0]")
        if self.resolves:
            with w.block("if shapes[table, 6] > 0:"):
                self._run_resolvents()
            w("else:")
            w.depth += 1
        with w.block("if target >= 0:"):
            w("n = max(n, shapes[table, 1])", "momentsToEnd(a, m, n, tables[shapes[table, 4]:])")
        with w.block("else:"):
            w("moments(a, m, n)")
        w.depth -= self.resolves
        w("addErrors(a, source, weight*values[run, 1])")
        with w.block("if target >= 0:"):
            w(f"finish(a, {self.part('slots', 'target', state)})")
        with w.block("if weight > 0.0:"):
            with w.block(f"for k in range({4 * self.lanes}):"):
                w(f"m[n*{self.lanes} + k] = 0.0")
            w("at = target_of[run, rung]", "rest = weight*targets[at]")
            with self.over_lanes():
                w(f"{self.c.at('cost', 0)} += rest")
            with w.block("for group in range(shapes[table, 2], shapes[table, 3]):"):
                w("project(a, m, groups[group, 0], tables[groups[group, 1]:])")
                w(f"compare(a, weight, targets[at + 1 + (group - shapes[table, 2])*{TOGETHER}:])")

    def _run_resolvents(self) -> None:
        w, L = self.w, self.lanes
        w("powers = shapes[table, 7]", "n = powers*shapes[table, 6] + 4")
        with w.block(f"for k in range({3 * L}):"):
            w(f"m[(n - 3)*{L} + k] = 0.0")
        with w.block("for pole in range(shapes[table, 6]):"):
            w("createResolvent(a, tables[shapes[table, 5] + pole])")
            w(f"beginResolvents(a, m[(n - 4)*{L}:])")
            w("first = pole*powers")
            with w.block("if target >= 0:"):
                w(f"resolventsToEnd(a, m[first*{L}:], powers, tables[shapes[table, 4] + first:])")
            with w.block("else:"):
                w(f"resolvents(a, m[first*{L}:], powers)")

    def _store(self) -> None:
        w, c = self.w, self.c
        w(f"candidate = block*{self.lanes} + l", f"cost = {c.at('cost', 0)}")
        w("cost_out[candidate] = cost", "status_out[candidate] = np.int8(status[l])")
        lost = f"{MOMENT_ERROR**2!r}*{c.at('lost', 0)}"
        w(f"lost = {lost} > {GREATEST_ERROR**2!r}*(cost + squares)")
        w(f"doubt_out[candidate] = {c.at('doubt', 0)} > 0.0 or lost")
