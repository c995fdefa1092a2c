"""Kernel text that scores a block of candidates from the modes of its runs.

The formulas are those of `spectral`, candidates lie side by side in lanes as in `cpu_source`.
A block's lanes write to one array, `a`, at literal rows: LLVM then knows which statements
overlap, and turns even hundreds of statements into vector instructions. Only the tables of the
recording are read lane by lane; gathers are slower than that.

A candidate that cannot be trusted is marked (`doubt`), and the caller scores it by stepping.
"""

from __future__ import annotations

from channelfit.model.channel import ChannelModel
from channelfit.scoring.kernels.cpu_channel import LaneChannel
from channelfit.scoring.kernels.scalars import LaneScalars, Scalars
from channelfit.scoring.kernels.spectral import GREATEST_CANCELLATION, ModalSpectrum
from channelfit.scoring.kernels.spectral_layout import MOST_PRODUCTS
from channelfit.scoring.kernels.spectral_runs import SpectralRuns, name_transform
from channelfit.scoring.kernels.writers import Writer
from channelfit.scoring.layout.exponential_tables import DEGREE

#: Arrays of `exponential_tables.SpectralWalk` in the order in which `runSweep` takes them.
WALK_ARGUMENTS = ("visits", "visit_v", "visit_dt", "places", "values", "start_v")


class CallingSpectrum(ModalSpectrum):
    """The formulas of `ModalSpectrum`, with Lagrange's factors as calls of functions.

    Lowering takes its time statement by statement; LLVM sees the factors where they are called.
    """

    def apply_factor(self, c: Scalars, k: int, name: str, new: str, e: int, f: int) -> None:
        self._call(c, f"applied{k}", k, name, new, e, f)

    def advance_factor(self, c: Scalars, k: int, name: str, new: str, e: int, f: int) -> None:
        self._call(c, f"advanced{k}", k, name, new, e, f)

    def _call(self, c: Scalars, function: str, k: int, name: str, new: str, e: int, f: int) -> None:
        n = len(self.model.chains[k].states)
        arguments = [
            "a",
            "l",
            c.at("s", self.layout[k]["speed"] + f),
            self._per_difference(c, k, e, f),
        ]
        arguments += [f"{name}_{i}" for i in range(n)]
        c.let(", ".join(f"{new}_{i}" for i in range(n)), f"{function}({', '.join(arguments)})")

    def factors(self, c: LaneScalars, k: int) -> None:
        """Write the functions that the factors call."""
        names = [f"old_{i}" for i in range(len(self.model.chains[k].states))]
        for function, write in (
            ("applied", super().apply_factor),
            ("advanced", super().advance_factor),
        ):
            c.w("", "", "@inline")
            with c.w.block(f"def {function}{k}(a, l, speed, scale, {', '.join(names)}):"):
                write(_Factor(c, self.layout[k]["speed"]), k, "old", "new", 1, 0)
                c.w(f"return {', '.join(names).replace('old', 'new')}")


class _Factor(LaneScalars):
    """The inside of a factor's function, which has speed and scale as arguments."""

    def __init__(self, c: LaneScalars, speed: int) -> None:
        super().__init__(c.w, c.lanes, c.sizes)
        self.speed = speed

    def at(self, array: str, row: int) -> str:
        if array == "s":
            return "speed" if row == self.speed else "scale"
        return super().at(array, row)


class CpuSpectralSource(LaneChannel):
    """The generated kernel that scores one model from its modes.

    Attributes:
        text: the source; `runSweep` scores a range of blocks.
        lanes: candidates in a block.
    """

    def __init__(self, model: ChannelModel) -> None:
        self.spectrum = CallingSpectrum(model)
        self.runs = SpectralRuns(self.spectrum)
        self.decaying, self.strainable = self.spectrum.decaying, self.spectrum.strainable
        super().__init__(model, "float64")
        self.text = self._module()

    # --- pieces of text

    def _module(self) -> str:
        n_sums, n_decaying = len(self.spectrum.sums), len(self.decaying)
        self.c = LaneScalars(
            self.w,
            self.lanes,
            {
                "cost": 1,
                "cancelled": 1,
                "doubt": 1,
                "gain": self.n_gains,
                "strained": len(self.strainable),
                "x": self.n_x,
                "y": self.n_x,
                "q": self.n_rates,
                "s": self.spectrum.n_kept,
                "u": self.spectrum.n_modes,
                "per": n_sums,
                "g": n_sums,
                "offset": n_decaying,
                "there": n_decaying,
            },
        )
        self.header(
            "scores without samples",
            "cellOf, decay, exp, exprel, inline, offsetInCell, reciprocal, rootReciprocal, tanh",
        )
        self.write_rates()
        self.write_gains()
        for n in sorted({len(c.states) for c in self.model.chains if len(c.states) > 3}):
            self._rotation(n)
        for k, chain in enumerate(self.model.chains):
            self.write_steady_state(k)
            if len(chain.states) > 3:
                self._decompose(k)
            if 3 < len(chain.states) <= MOST_PRODUCTS:
                self.spectrum.factors(self.c, k)
        self._create_spectrum()
        self._create_units()
        self._create_denominators()
        self._create_sums()
        self._read_tables()
        self._score_run()
        self._end_run()
        self._sweep()
        return self.w.text

    # --- one visit: rates -> modes

    def _create_spectrum(self) -> None:
        w, c = self.w, self.c
        with self.function(
            "createSpectrum(a, dt, m, turned)",
            "Speeds, limits and modes of every chain; dt ms is the shortest interval.",
        ):
            for k, chain in enumerate(self.model.chains):
                if len(chain.states) == 2:
                    with self.over_lanes():
                        self.spectrum.two_states(c, k)
                elif len(chain.states) == 3:
                    with self._doubting():
                        self.spectrum.three_states(c, k)
                elif len(chain.states) > 3:
                    w(f"decompose{k}(a, m, turned)")
                    if len(chain.states) <= MOST_PRODUCTS:
                        with self._doubting():
                            self.spectrum.products(c, k)

    def _doubting(self) -> _Doubting:
        """Return the innermost loop, where `doubt` is known and may change."""
        return _Doubting(self.over_lanes(), self.c)

    def _decompose(self, k: int) -> None:
        """Write the speeds of chain k, n >= 4, by elimination and one-sided Jacobi rotations."""
        w, c, n = self.w, self.c, len(self.model.chains[k].states)
        column = (n + 1) * self.lanes

        def element(e: int, i: int) -> str:
            return self._column(n, e, i)

        with self.function(
            f"decompose{k}(a, m, turned)",
            f"Modes of {n} states in detailed balance; m holds columns, each with its norm.",
        ):
            with self.over_lanes():
                self.spectrum.eliminate(c, k, element)
                self.spectrum.keep_limit(c, k)
            with w.block("for sweep in range(12):"):
                with self.over_lanes():
                    w("turned[l] = 0.0")
                with self.over_lanes():
                    for e in range(n - 1):
                        w(f"{self._column(n, e, n)} = {self._square_sum(n, e)}")
                with (
                    w.block(f"for i in range({n - 2}):"),
                    w.block(f"for j in range(i + 1, {n - 1}):"),
                ):
                    w(
                        f"rotate{n}(m[i*{column}:(i + 1)*{column}], m[j*{column}:(j + 1)*{column}],"
                        " turned)"
                    )
                # Lanes that are done turn by nothing, so that none depends on its neighbors.
                w("largest = 0.0")
                with self.over_lanes():
                    w("largest = max(largest, turned[l])")
                with w.block("if largest == 0.0:"):
                    w("break")
            with self._doubting():
                self.spectrum.keep_modes(c, k, element)

    def _column(self, n: int, e: int, i: int) -> str:
        """Return element i of column e; element n is its norm."""
        return self.at("m", e * (n + 1) + i)

    def _square_sum(self, n: int, e: int) -> str:
        elements = (self._column(n, e, i) for i in range(n))
        return " + ".join(f"{element}*{element}" for element in elements)

    def _rotation(self, n: int) -> None:
        """Write rotate{n}: it turns two columns p and o, each with its square norm at the end."""
        w = self.w
        with self.function(f"rotate{n}(p, o, turned)", "Turns two columns until orthogonal."):
            with self.over_lanes():
                w(*(f"p{i} = {self.at('p', i)}" for i in range(n + 1)))
                w(*(f"o{i} = {self.at('o', i)}" for i in range(n + 1)))
                w(f"shared = {' + '.join(f'p{i}*o{i}' for i in range(n))}")
                w(f"big = shared*shared > 1e-29*p{n}*o{n}")
                w("turned[l] = 1.0 if big else turned[l]")
                self.spectrum.rotation(self.c, f"p{n}", f"o{n}", "shared")
                # Orthogonal columns do not turn, so no lane depends on its neighbors.
                w("cosine = cosine if big else 1.0", "sine = sine if big else 0.0")
                w("moved = moved if big else 0.0")
                for i in range(n):
                    w(f"{self.at('p', i)} = cosine*p{i} - sine*o{i}")
                    w(f"{self.at('o', i)} = sine*p{i} + cosine*o{i}")
                w(f"{self.at('p', n)} = p{n} - moved")
                w(f"{self.at('o', n)} = o{n} + moved")

    def _create_denominators(self) -> None:
        with self.function(
            "createDenominators(a, dt)",
            "1/(1 - exp(-L dt)) for every L of the square, twice where two terms make it.",
        ):
            with self.over_lanes():
                self.runs.denominators(self.c, "dt")

    def _create_units(self) -> None:
        c = self.c
        with self.function("createUnits(a, span)", "The decay of each mode in span ms."):
            with self.over_lanes():
                for mode in range(self.spectrum.n_modes):
                    c.put(c.at("u", mode), f"decay({self.spectrum.speed(c, mode)}*span)")

    def _units(self) -> dict[int, str]:
        return {mode: self.c.at("u", mode) for mode in range(self.spectrum.n_modes)}

    # --- one run without samples

    def _create_sums(self) -> None:
        w, c = self.w, self.c
        with self.function(
            "createSums(a, cells, span, last)",
            "Geometric sums of the square, and the cells of the transform's table.",
        ):
            with self.over_lanes():
                self.runs.geometric_sums(c, "f", self._units())
                for i, index in enumerate(self.decaying):
                    c.let(f"y{i}", self.runs.place_in_table(c, index, "span"))
                    c.put(c.at("offset", i), f"offsetInCell(y{i})")
            with self.over_lanes():
                for i, index in enumerate(self.decaying):
                    c.let(f"y{i}", self.runs.place_in_table(c, index, "span"))
                    w(f"{self.at('cells', i)} = {DEGREE + 1}*cellOf(y{i}, last)")

    def _read_tables(self) -> None:
        w, first = self.w, self.c.first
        with self.function(
            "readTables(a, cells, table)", "D(L) for every L of the open probability."
        ):
            with w.block(f"for k in range({len(self.decaying) * self.lanes}):"):
                w("c = cells[k]", f"d = a[{first['offset'] * self.lanes} + k]")
                name_transform(self.c, [f"table[c + {i}]" for i in range(DEGREE + 1)])
                w(f"a[{first['there'] * self.lanes} + k] = there")

    def _score_run(self) -> None:
        c = self.c
        with self.function(
            "scoreRun(a, v, n, weight, sum_d)",
            "Adds n samples to the cost, less the squares of the data.",
        ):
            with self._doubting():
                for k in range(len(self.model.chains)):
                    self.runs.amplitudes(c, k)
                c.let("gain", self._gain())
                if self.runs.leaks:
                    c.let("leak", self._leak())
                self.runs.add_cost(c, [c.at("there", i) for i in range(len(self.decaying))])
                self.runs.add_cancelled(c)

    def _gain(self) -> str:
        """Return the drive at v of the one current that opens, see `choose_path`."""
        if not self.ohmic:
            return self.c.at("gain", self.runs.opening)
        return f"{self.c.at('gain', 0)}*(v - {self.c.at('gain', 1)})"

    def _leak(self) -> str:
        return " + ".join(self.c.at("gain", row) for row in self.runs.leaks)

    def _end_run(self) -> None:
        with self.function("endRun(a)", "The state at the end of a run, into the rows y."):
            with self._doubting():
                for k in range(len(self.model.chains)):
                    self.runs.amplitudes(self.c, k)
                for k in range(len(self.model.chains)):
                    self.runs.end(self.c, k, self._units())

    # --- everything for a range of blocks

    def _sweep(self) -> None:
        w, L = self.w, self.lanes
        with self.function(
            f"runSweep(parameters, first, last, {', '.join(WALK_ARGUMENTS)}, n_slots, tables,"
            " squares, cost_out, status_out, doubt_out)",
            "Sum of weighted squares less `squares`, pA^2; status; whether stepping must score it.",
        ):
            self._allocate_rows()
            with w.block("for block in range(first, last):"):
                self._load_rows()
                with w.block("for visit in range(visits.size - 1):"):
                    self._visit()
                with w.block(f"for l in range(min({L}, n_candidates - block*{L})):"):
                    self._store_row()

    def _allocate_rows(self) -> None:
        w, L, c = self.w, self.lanes, self.c
        widest = self.widest
        w("n_candidates = parameters.shape[1]")
        w(f"theta = np.empty({max(1, len(self.model.parameters)) * L})", f"status = np.empty({L})")
        w(f"a = np.zeros({c.n_rows * L})", f"q = {c.view('q')}", f"gain = {c.view('gain')}")
        w(f"slots = np.zeros(n_slots*{self.n_x * L})", f"m64 = np.empty({self.n_square * L})")
        w(f"z64 = np.empty({4 * widest * L})", f"m = np.empty({(widest + 1) * widest * L})")
        w(f"turned = np.empty({L})")
        w(f"cells = np.zeros({max(1, len(self.decaying)) * L}, np.int64)")

    def _load_rows(self) -> None:
        w, L, c = self.w, self.lanes, self.c
        self.load_candidates(*(f"{c.at(n, 0)} = 0.0" for n in ("cost", "cancelled", "doubt")))
        with w.block("for start in range(len(start_v)):"):
            w("createQmat(start_v[start], theta, q, status)")
            w(f"state = {self.part('slots', 'start', self.n_x * L)}")
            for k in range(len(self.model.chains)):
                w(f"initStateProbs{k}(q, state[{self.first_x[k] * L}:], m64, z64)")

    def _visit(self) -> None:
        w = self.w
        self.visit_level("visit_v[visit]")
        self.create_drives()
        w("createSpectrum(a, visit_dt[visit, 1], m, turned)")
        w("createDenominators(a, visit_dt[visit, 0])")
        w("known, known_last = -1.0, -1")
        with w.block("for run in range(visits[visit], visits[visit + 1]):"):
            self._run()

    def _run(self) -> None:
        w, c, state = self.w, self.c, self.n_x * self.lanes
        w("n, span, weight = values[run, 0], values[run, 1], values[run, 2]")
        w("target, row = places[run, 1], places[run, 2]")
        w(f"source = {self.part('slots', 'places[run, 0]', state)}")
        with w.block(f"for k in range({state}):"):
            w(f"a[{c.first['x'] * self.lanes} + k] = source[k]")
        with w.block("if span != known:"):
            w("createUnits(a, span)", "known, known_last = span, -1")
        with w.block("if weight > 0.0:"):
            with w.block("if places[run, 3] != known_last:"):
                w("known_last = places[run, 3]", "createSums(a, cells, span, known_last)")
            w(f"readTables(a, cells, tables[row*{DEGREE + 1}:])")
            w("scoreRun(a, v, n, weight, values[run, 3])")
        with w.block("if target >= 0:"):
            w("endRun(a)", f"end = {self.part('slots', 'target', state)}")
            with w.block(f"for k in range({state}):"):
                w(f"end[k] = a[{c.first['y'] * self.lanes} + k]")

    def _store_row(self) -> None:
        w, c = self.w, self.c
        w(f"candidate = block*{self.lanes} + l", f"cost = {c.at('cost', 0)}")
        w("cost_out[candidate] = cost", "status_out[candidate] = np.int8(status[l])")
        lost = f"{c.at('cancelled', 0)} > {GREATEST_CANCELLATION!r}*(cost + squares)"
        w(f"doubt_out[candidate] = {c.at('doubt', 0)} > 0.0 or {lost}")


class _Doubting:
    """A loop over lanes that loads `doubt` at its beginning and stores it at its end."""

    def __init__(self, loop: Writer, c: LaneScalars) -> None:
        self.loop, self.c = loop, c

    def __enter__(self) -> None:
        self.loop.__enter__()
        self.loop(f"doubt = {self.c.at('doubt', 0)}")

    def __exit__(self, *_: object) -> None:
        self.loop(f"{self.c.at('doubt', 0)} = doubt")
        self.loop.__exit__()
