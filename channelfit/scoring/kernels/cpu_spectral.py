"""Kernel text that scores a block of candidates from the modes of its runs.

The formulas are those of `spectral`, candidates lie side by side in lanes as in `cpu_source`.
All that a block's lanes write stands in one array, `a`, at literal rows: LLVM then knows what
overlaps, and turns even hundreds of statements into vector instructions. Only the tables of the
recording are read lane by lane; gathers are slower than that.

A candidate that cannot be trusted is marked (`doubt`), and the caller scores it by stepping.
"""

from __future__ import annotations

from channelfit.model.channel import ChannelModel
from channelfit.scoring.kernels.cpu_source import CpuSource
from channelfit.scoring.kernels.lanes import Writer
from channelfit.scoring.kernels.spectral import (
    GREATEST_CANCELLATION,
    GREATEST_RATE,
    LEAST_RATE,
    MOST_PRODUCTS,
    Scalars,
    Spectrum,
)
from channelfit.scoring.layout.exponential_tables import DEGREE

#: Arrays of `transform.SpectralWalk` in the order in which `runSweep` takes them.
WALK_ARGUMENTS = ("visits", "visit_v", "visit_dt", "places", "values", "start_v")

_CACHE_FRIENDLY = 4  # modes up to which sixteen samples are taken at once, eight beyond


class Lanes:
    """One lane's values, see `spectral.Scalars`: names, or rows of the array `a`.

    Arguments:
        sizes: names of blocks of rows and how many rows each has.
    """

    def __init__(self, w: Writer, lanes: int, sizes: dict[str, int]) -> None:
        self.w, self.lanes, self.sizes = w, lanes, sizes
        self.first: dict[str, int] = {}
        self.n_rows = 0
        for name, size in sizes.items():
            self.first[name] = self.n_rows
            self.n_rows += size

    def let(self, name: str, expression: str) -> None:
        self.w(f"{name} = {expression}")

    def put(self, place: str, expression: str) -> None:
        self.w(f"{place} = {expression}")

    def at(self, array: str, row: int) -> str:
        return f"a[{(self.first[array] + row) * self.lanes} + l]"

    def choose(self, condition: str, yes: str, no: str) -> str:
        return f"({yes} if {condition} else {no})"

    def both(self, one: str, other: str) -> str:
        return f"(({one}) & ({other}))"  # `and` would be a branch

    def view(self, name: str) -> str:
        """A block of rows as an array of its own."""
        first, size = self.first[name] * self.lanes, self.sizes[name] * self.lanes
        return f"a[{first}:{first + size}]"


class CallingSpectrum(Spectrum):
    """The same formulas, with Lagrange's factors as calls of one function each.

    Lowering takes its time statement by statement; LLVM sees the factors where they are called.
    """

    def _apply(self, c: Scalars, k: int, name: str, new: str, e: int, f: int) -> None:
        self._call(c, f"applied{k}", k, name, new, e, f)

    def _advance(self, c: Scalars, k: int, name: str, new: str, e: int, f: int) -> None:
        self._call(c, f"advanced{k}", k, name, new, e, f)

    def _call(self, c: Scalars, function: str, k: int, name: str, new: str, e: int, f: int) -> None:
        n = len(self.model.chains[k].states)
        arguments = ["a", "l", c.at("s", self.layout[k]["speed"] + f), self._scaled(c, k, e, f)]
        arguments += [f"{name}_{i}" for i in range(n)]
        c.let(", ".join(f"{new}_{i}" for i in range(n)), f"{function}({', '.join(arguments)})")

    def factors(self, c: Lanes, k: int) -> None:
        """Bodies of those functions."""
        names = [f"old_{i}" for i in range(len(self.model.chains[k].states))]
        for function, write in (("applied", super()._apply), ("advanced", super()._advance)):
            c.w("", "", "@inline")
            with c.w.block(f"def {function}{k}(a, l, speed, scale, {', '.join(names)}):"):
                write(_Factor(c, self.layout[k]["speed"]), k, "old", "new", 1, 0)
                c.w(f"return {', '.join(names).replace('old', 'new')}")


class _Factor(Lanes):
    """The scalars of one factor: its speed and scale are arguments."""

    def __init__(self, c: Lanes, speed: int) -> None:
        super().__init__(c.w, c.lanes, c.sizes)
        self.speed = speed

    def at(self, array: str, row: int) -> str:
        if array == "s":
            return "speed" if row == self.speed else "scale"
        return super().at(array, row)


class CpuSpectralSource(CpuSource):
    """The generated module of one model.

    Arguments:
        dtype: float64, or float32 for what is computed at every sample.
        sampled: visit every sample (the modal path) instead of summing without samples.

    Attributes:
        text: the source; `runSweep` scores a range of blocks.
        lanes: candidates in a block.
    """

    def __init__(self, model: ChannelModel, dtype: str = "float64", sampled: bool = False) -> None:
        self.sampled, self.spectrum = sampled, CallingSpectrum(model)
        self.decaying = [index for index in self.spectrum.terms if any(index)]
        #: Chains whose speeds may come close: their amplitudes then cancel.
        self.strainable = [k for k, c in enumerate(model.chains) if len(c.states) == 3]
        self.stride = 16 if self.spectrum.n_modes <= _CACHE_FRIENDLY else 8
        super().__init__(model, dtype if sampled else "float64")

    # --- pieces of text

    def _module(self) -> str:
        n_sums = 0 if self.sampled else len(self.spectrum.sums)
        n_decaying = 0 if self.sampled else len(self.decaying)
        self.c = Lanes(
            self.w,
            self.lanes,
            {
                "cost": 1,
                "cancelled": 1,
                "doubt": 1,
                "gain": 2,
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
        what = "scores from modes" if self.sampled else "scores without samples"
        self._header(
            what,
            "cellOf, decay, exp, exprel, inline, offsetInCell, reciprocal, rootReciprocal, tanh",
        )
        self._rates()
        self._gains()
        for n in sorted({len(c.states) for c in self.model.chains if len(c.states) > 3}):
            self._rotation(n)
        for k, chain in enumerate(self.model.chains):
            self._steady_state(k, chain)
            if len(chain.states) > 3:
                self._decompose(k)
            if 3 < len(chain.states) <= MOST_PRODUCTS:
                self.spectrum.factors(self.c, k)
        self._create_spectrum()
        self._create_units()
        if self.sampled:
            self._create_powers()
            self._sample_run()
        else:
            self._create_denominators()
            self._create_sums()
            self._read_tables()
            self._score_run()
        self._end_run()
        self._sweep()
        return "\n".join(self.w.lines) + "\n"

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
                    with self.over_lanes():
                        self.spectrum.three_states(c, k)
                        w(f"{c.at('strained', self.strainable.index(k))} = strained{k}")
                elif len(chain.states) > 3:
                    w(f"decompose{k}(a, m, turned)")
                    if len(chain.states) <= MOST_PRODUCTS:
                        with self._doubting():
                            self.spectrum.products(c, k)

    def _doubting(self) -> _Doubting:
        """The innermost loop, where `doubt` is known and may change."""
        return _Doubting(self.over_lanes(), self.c)

    def _decompose(self, k: int) -> None:
        """Speeds of chain k, n >= 4, by elimination and one-sided Jacobi rotations."""
        w, c, rows = self.w, self.c, self.spectrum.layout[k]
        n = len(self.model.chains[k].states)
        column = (n + 1) * self.lanes
        with self.function(
            f"decompose{k}(a, m, turned)",
            f"Modes of {n} states in detailed balance; m holds columns, each with its norm.",
        ):
            with self.over_lanes():
                self._factor(k, n)
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
                for e in range(n - 1):
                    w(f"speed{e} = max({self._square_sum(n, e)}, 1e-200)")
                if n <= MOST_PRODUCTS:
                    self._sort(n - 1)
                else:
                    self._keep_modes(k, n)
                for e in range(n - 1):
                    w(f"{c.at('s', rows['speed'] + e)} = speed{e}")
                if len(self.spectrum.entries(k)) > 2 * (n - 1):
                    self._clipped(k)

    def _column(self, n: int, e: int, i: int) -> str:
        """Element i of column e; element n is its norm."""
        return self.at("m", e * (n + 1) + i)

    def _square_sum(self, n: int, e: int) -> str:
        elements = (self._column(n, e, i) for i in range(n))
        return " + ".join(f"{element}*{element}" for element in elements)

    def _factor(self, k: int, n: int) -> None:
        """-S = M M^T by eliminating states from the last; what is zero for sure is not written."""
        w, c, layout = self.w, self.c, self.spectrum.layout[k]
        rate = {pair: c.at("q", row) for pair, row in self.spectrum.entries(k).items()}
        factor: dict[tuple[int, int], str] = {}
        for last in range(n - 1, 0, -1):
            before = [i for i in range(last) if (last, i) in rate]
            out = " + ".join([*(rate[last, i] for i in before), "1e-200"])
            w(f"out{last} = {out}", f"per_root{last} = rootReciprocal(out{last})")
            w(f"per_out{last} = per_root{last}*per_root{last}")
            factor[last, last - 1] = f"out{last}*per_root{last}"
            for i in before:
                factor[i, last - 1] = f"-sqrt({rate[i, last]}*{rate[last, i]})*per_root{last}"
                w(f"in{i}_{last} = {rate[i, last]}*per_out{last}")
            for i in before:
                for j in before:
                    if i != j:
                        flow = f"in{i}_{last}*{rate[last, j]}"
                        sum_ = f"{rate[i, j]} + {flow}" if (i, j) in rate else flow
                        w(f"r{i}_{j}_{last} = {sum_}")
            for i in before:
                for j in before:
                    if i != j:
                        rate[i, j] = f"r{i}_{j}_{last}"
                rate[i, last] = f"in{i}_{last}"
        for e in range(n - 1):
            for i in range(n):
                w(f"{self._column(n, e, i)} = {factor.get((i, e), '0.0')}")
        w("y0 = 1.0")
        for last in range(1, n):
            parts = [f"y{i}*{rate[i, last]}" for i in range(last) if (i, last) in rate]
            w(f"y{last} = {' + '.join(parts)}")
            w(f"share = reciprocal(1.0 + y{last})")
            w(*(f"y{i} = y{i}*share" for i in range(last + 1)))
        if n <= MOST_PRODUCTS:
            w(*(f"{c.at('s', layout['limit'] + i - 1)} = y{i}" for i in range(1, n)))
            return
        for i in range(n):
            w(f"root{i} = sqrt(y{i})", f"{c.at('s', layout['limit'] + i)} = y{i}")
            w(f"{c.at('s', layout['root'] + i)} = root{i}")
            w(f"{c.at('s', layout['inverse'] + i)} = 1.0/root{i}")

    def _rotation(self, n: int) -> None:
        """One rotation of two columns p and o, each with its norm behind."""
        w = self.w
        with self.function(f"rotate{n}(p, o, turned)", "Turns two columns until orthogonal."):
            with self.over_lanes():
                w(*(f"p{i} = {self.at('p', i)}" for i in range(n + 1)))
                w(*(f"o{i} = {self.at('o', i)}" for i in range(n + 1)))
                w(f"shared = {' + '.join(f'p{i}*o{i}' for i in range(n))}")
                w(f"big = shared*shared > 1e-29*p{n}*o{n}")
                w(f"apart = o{n} - p{n}", "twice = 2.0*shared")
                w("root = sqrt(apart*apart + twice*twice)")
                w("tangent = twice/(apart + (root if apart >= 0.0 else -root))")
                w("tangent = tangent if big else 0.0", "turned[l] = 1.0 if big else turned[l]")
                w("cosine = rootReciprocal(tangent*tangent + 1.0)", "sine = tangent*cosine")
                for i in range(n):
                    w(f"{self.at('p', i)} = cosine*p{i} - sine*o{i}")
                    w(f"{self.at('o', i)} = sine*p{i} + cosine*o{i}")
                w(f"{self.at('p', n)} = p{n} - tangent*shared")
                w(f"{self.at('o', n)} = o{n} + tangent*shared")

    def _sort(self, n: int) -> None:
        """Speeds in descending order, by exchanging neighbors."""
        for end in range(n - 1, 0, -1):
            for e in range(end):
                self.w(f"least = min(speed{e}, speed{e + 1})")
                self.w(f"speed{e} = max(speed{e}, speed{e + 1})", f"speed{e + 1} = least")

    def _keep_modes(self, k: int, n: int) -> None:
        """The columns themselves, and the open occupancy that each carries."""
        c, rows = self.c, self.spectrum.layout[k]
        conductances = self.model.chains[k].conductances
        for e in range(n - 1):
            parts = [
                f"{float(g)!r}*{c.at('s', rows['root'] + i)}*{self._column(n, e, i)}"
                for i, g in enumerate(conductances)
                if g
            ]
            c.put(c.at("s", rows["open"] + e), f"({' + '.join(parts) or '0.0'})/speed{e}")
            for i in range(n):
                c.put(c.at("s", rows["mode"] + (n - 1) * i + e), self._column(n, e, i))

    def _clipped(self, k: int) -> None:
        """A rate cut at its bounds no longer balances a cycle."""
        for t, row in zip(
            self.model.chains[k].transitions, self.spectrum.entries(k).values(), strict=True
        ):
            least, most = LEAST_RATE * t.multiplicity, GREATEST_RATE * t.multiplicity
            rate = self.c.at("q", row)
            inside = self.c.both(f"{rate} > {least!r}", f"{rate} < {most!r}")
            self.w(f"doubt = doubt if {inside} else 1.0")

    def _create_denominators(self) -> None:
        c = self.c
        with self.function(
            "createDenominators(a, dt)",
            "1/(1 - exp(-L dt)) for every L of the square, twice where two terms make it.",
        ):
            with self.over_lanes():
                units = {}
                for mode in range(self.spectrum.n_modes):
                    units[mode] = f"e_m{mode}"
                    c.let(units[mode], f"decay({self.spectrum.speed(c, mode)}*dt)")
                names = self.spectrum.forgotten(c, "e", units)
                doubled = self.spectrum.square(dict.fromkeys(self.spectrum.terms, ""))
                for i, index in enumerate(self.spectrum.sums):
                    twice = "2.0*" if doubled[index][1] else ""
                    c.put(c.at("per", i), f"{twice}reciprocal({names[index]})")

    def _create_units(self) -> None:
        c = self.c
        with self.function("createUnits(a, span)", "What each mode forgets in span ms."):
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
            "Geometric sums of the square, and where the transform's table is to be read.",
        ):
            with self.over_lanes():
                names = self.spectrum.forgotten(c, "f", self._units())
                for i, index in enumerate(self.spectrum.sums):
                    c.put(c.at("g", i), f"{names[index]}*{c.at('per', i)}")
                for i, index in enumerate(self.decaying):
                    w(f"y{i} = 1.0 + ({self.spectrum.total_speed(c, index)})*span")
                    c.put(c.at("offset", i), f"offsetInCell(y{i})")
            with self.over_lanes():
                for i, index in enumerate(self.decaying):
                    w(f"y{i} = 1.0 + ({self.spectrum.total_speed(c, index)})*span")
                    w(f"{self.at('cells', i)} = {DEGREE + 1}*cellOf(y{i}, last)")

    def _read_tables(self) -> None:
        w, first = self.w, self.c.first
        with self.function(
            "readTables(a, cells, table)", "D(L) for every L of the open probability."
        ):
            with w.block(f"for k in range({len(self.decaying) * self.lanes}):"):
                w("c = cells[k]", f"d = a[{first['offset'] * self.lanes} + k]", "s = d*d")
                for parity, name in ((0, "even"), (1, "odd")):
                    last = DEGREE - (DEGREE - parity) % 2
                    w(f"{name} = table[c + {last}]")
                    w(*(f"{name} = {name}*s + table[c + {i}]" for i in range(last - 2, -1, -2)))
                w(f"a[{first['there'] * self.lanes} + k] = odd*d + even")

    def _score_run(self) -> None:
        w, c, spectrum = self.w, self.c, self.spectrum
        with self.function(
            "scoreRun(a, v, n, weight, sum_d)",
            "Adds n samples to the cost, less the squares of the data.",
        ):
            with self._doubting():
                for k in range(len(self.model.chains)):
                    spectrum.amplitudes(c, k)
                terms = spectrum.open_probability(c)
                squares, constant = spectrum.square(terms), (0,) * spectrum.n_modes
                w(f"squares = n*({squares[constant][0]})", f"products = sum_d*{terms[constant]}")
                for i, index in enumerate(spectrum.sums):
                    w(f"squares += ({squares[index][0]})*{c.at('g', i)}")
                for i, index in enumerate(self.decaying):
                    w(f"products += {terms[index]}*{c.at('there', i)}")
                w(f"gain = {self._gain()}")
                w(f"{c.at('cost', 0)} += weight*gain*(gain*squares - 2.0*products)")
                self._strain()

    def _gain(self) -> str:
        return f"{self.c.at('gain', 0)}*(v - {self.c.at('gain', 1)})"

    def _strain(self) -> None:
        """Adds up how much cancels between the modes of chains whose speeds nearly agree."""
        for row, k in enumerate(self.strainable):
            lost = f"weight*gain*gain*n*w{k}_2*w{k}_2"
            self.w(f"{self.c.at('cancelled', 0)} += {self.c.at('strained', row)}*({lost})")

    def _end_run(self) -> None:
        with self.function("endRun(a)", "The state at the end of a run, into the rows y."):
            with self._doubting():
                for k in range(len(self.model.chains)):
                    self.spectrum.amplitudes(self.c, k)
                for k in range(len(self.model.chains)):
                    self.spectrum.end(self.c, k, self._units())

    # --- one run sample by sample

    def _create_powers(self) -> None:
        """What is left of every mode after 0 .. stride samples: rows of n_x."""
        w, n = self.w, self.spectrum.n_modes
        with self.function("createPowers(a, dt, kept)", "What is left of modes after samples."):
            with self.over_lanes():
                for mode in range(n):
                    w(f"one = 1.0 - decay({self.spectrum.speed(self.c, mode)}*dt)", "power = 1.0")
                    for j in range(self.stride + 1):
                        w(f"{self.at('kept', j * n + mode)} = {self.real}(power)", "power *= one")

    def _sample_run(self) -> None:
        """The state of a run, z: its modes, then each chain's base, then the current when open."""
        w, c, n, chains = self.w, self.c, self.spectrum.n_modes, len(self.model.chains)
        with self.function(
            "sampleRun(a, z, kept, data, v, n, weight)", "Adds n samples to the cost."
        ):
            with self._doubting():
                for k in range(chains):
                    self.spectrum.amplitudes(c, k)
                    for j, mode in enumerate(self.spectrum.modes(k)):
                        w(f"{self.at('z', mode)} = {self.real}(w{k}_{j + 1})")
                    w(f"{self.at('z', n + k)} = {self.real}(w{k}_0)")
                w(f"gain = {self._gain()}", f"{self.at('z', n + chains)} = {self.real}(gain)")
                self._strain()
            w(f"strides = n // {self.stride}")
            with w.block("for k in range(strides):"):
                w(f"part = data[k*{self.stride}:(k + 1)*{self.stride}]")
                with self.over_lanes():
                    self._load_modes()
                    w(f"even = {self.real}(0.0)", f"odd = {self.real}(0.0)")
                    for j in range(self.stride):
                        self._residual("kept", j, f"part[{j}]")
                        w(f"{'odd' if j % 2 else 'even'} += r*r")
                    w(f"{c.at('cost', 0)} += weight*(even + odd)")
                    for m in range(n):
                        w(f"{self.at('z', m)} = z{m}*{self.at('kept', self.stride * n + m)}")
            with w.block(f"for j in range(n - strides*{self.stride}):"):
                row = n * self.lanes
                w(f"row = kept[j*{row}:(j + 1)*{row}]", f"datum = data[strides*{self.stride} + j]")
                with self.over_lanes():
                    self._load_modes()
                    self._residual("row", 0, "datum")
                    w(f"{c.at('cost', 0)} += weight*(r*r)")

    def _load_modes(self) -> None:
        rows = range(self.spectrum.n_modes + len(self.model.chains) + 1)
        self.w(*(f"z{row} = {self.at('z', row)}" for row in rows))

    def _residual(self, kept: str, j: int, datum: str) -> None:
        """One sample: the chains' open occupancies, their product, and what the datum leaves."""
        n, factors = self.spectrum.n_modes, []
        for k, chain in enumerate(self.model.chains):
            modes = [f"z{m}*{self.at(kept, j * n + m)}" for m in self.spectrum.modes(k)]
            factors.append((" + ".join([f"z{n + k}", *modes]), chain.power))
        self.w(f"r = z{n + len(self.model.chains)}*({self._powers(factors)}) - {datum}")

    # --- everything for a range of blocks

    def _sweep(self) -> None:
        w, L = self.w, self.lanes
        with self.function(
            f"runSweep(parameters, first, last, {', '.join(WALK_ARGUMENTS)}, n_slots, tables,"
            " squares, cost_out, status_out, doubt_out)",
            "Sum of weighted squares less `squares`, pA^2; status; whether it is to be stepped.",
            public=True,
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
        widest, modes = max(len(k.states) for k in self.model.chains), self.spectrum.n_modes
        w("n_candidates = parameters.shape[1]")
        w(f"theta = np.empty({max(1, len(self.model.parameters)) * L})", f"status = np.empty({L})")
        w(f"a = np.zeros({c.n_rows * L})", f"q = {c.view('q')}", f"gain = {c.view('gain')}")
        w(f"slots = np.zeros(n_slots*{self.n_x * L})", f"m64 = np.empty({self.n_square * L})")
        w(f"z64 = np.empty({4 * widest * L})", f"m = np.empty({(widest + 1) * widest * L})")
        w(f"turned = np.empty({L})")
        if self.sampled:
            w(f"kept = np.empty({(self.stride + 1) * modes * L}, np.{self.real})")
            w(f"z = np.empty({(modes + len(self.model.chains) + 1) * L}, np.{self.real})")
        else:
            w(f"cells = np.zeros({max(1, len(self.decaying)) * L}, np.int64)")

    def _load_rows(self) -> None:
        w, L, c = self.w, self.lanes, self.c
        with w.block(f"for l in range({L}):"):
            w(f"candidate = min(block*{L} + l, n_candidates - 1)")
            for row in range(len(self.model.parameters)):
                w(f"{self.at('theta', row)} = parameters[{row}, candidate]")
            w("status[l] = 0.0", *(f"{c.at(n, 0)} = 0.0" for n in ("cost", "cancelled", "doubt")))
        w("createGains(theta, gain, status)")
        with w.block("for start in range(start_v.size):"):
            w("createQmat(start_v[start], theta, q, status)")
            w(f"state = {self._part('slots', 'start', self.n_x * L)}")
            for k in range(len(self.model.chains)):
                w(f"initStateProbs{k}(q, state[{self.first_x[k] * L}:], m64, z64)")

    def _visit(self) -> None:
        w = self.w
        w("v = visit_v[visit]", "createQmat(v, theta, q, status)")
        w("createSpectrum(a, visit_dt[visit, 1], m, turned)")
        if self.sampled:
            w("createPowers(a, visit_dt[visit, 0], kept)")
        else:
            w("createDenominators(a, visit_dt[visit, 0])")
        w("known, known_last = -1.0, -1")
        with w.block("for run in range(visits[visit], visits[visit + 1]):"):
            self._run()

    def _run(self) -> None:
        w, c, state = self.w, self.c, self.n_x * self.lanes
        w("n, span, weight = values[run, 0], values[run, 1], values[run, 2]")
        w("target, row = places[run, 1], places[run, 2]")
        w(f"source = {self._part('slots', 'places[run, 0]', state)}")
        with w.block(f"for k in range({state}):"):
            w(f"a[{c.first['x'] * self.lanes} + k] = source[k]")
        with w.block("if span != known:"):
            w("createUnits(a, span)", "known, known_last = span, -1")
        with w.block("if weight > 0.0:"):
            if self.sampled:
                w("sampleRun(a, z, kept, tables[row:], v, int(n), weight)")
            else:
                with w.block("if places[run, 3] != known_last:"):
                    w("known_last = places[run, 3]", "createSums(a, cells, span, known_last)")
                w(f"readTables(a, cells, tables[row*{DEGREE + 1}:])")
                w("scoreRun(a, v, n, weight, values[run, 3])")
        with w.block("if target >= 0:"):
            w("endRun(a)", f"end = {self._part('slots', 'target', state)}")
            with w.block(f"for k in range({state}):"):
                w(f"end[k] = a[{c.first['y'] * self.lanes} + k]")

    def _store_row(self) -> None:
        w, c = self.w, self.c
        w(f"candidate = block*{self.lanes} + l", f"cost = {c.at('cost', 0)}")
        w("cost_out[candidate] = cost", "status_out[candidate] = np.int8(status[l])")
        lost = f"{c.at('cancelled', 0)} > {GREATEST_CANCELLATION!r}*(cost + squares)"
        w(f"doubt_out[candidate] = {c.at('doubt', 0)} > 0.0 or {lost}")


class _Doubting:
    """Loads `doubt` where a loop over lanes begins, and keeps it where the loop ends."""

    def __init__(self, loop: Writer, c: Lanes) -> None:
        self.loop, self.c = loop, c

    def __enter__(self) -> None:
        self.loop.__enter__()
        self.loop(f"doubt = {self.c.at('doubt', 0)}")

    def __exit__(self, *_: object) -> None:
        self.loop(f"{self.c.at('doubt', 0)} = doubt")
        self.loop.__exit__()
