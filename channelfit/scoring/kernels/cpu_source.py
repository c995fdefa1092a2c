"""A channel as text of kernels that scores a block of candidates side by side.

Candidates lie in vector lanes: every array ends in the lane index, every innermost loop runs over
it with a constant count, and all offsets are literal, so that LLVM turns each statement into
vector instructions. One block is LANES candidates; nothing a lane computes depends on another.

Of n occupancies only the last n - 1 are kept (the first is one minus the rest). A held voltage
needs one propagator P = expm(A h) per candidate; from it come, as a *table*,

* steps of 1, 2, 4, 8 and 16 samples, x <- x + F x + b, and
* rows c P^j, j = 0..15, so that a sample costs n - 1 multiply-adds instead of n^2.
"""

from __future__ import annotations

from channelfit.model.channel import GREATEST_OCCUPANCY, Chain, ChannelModel
from channelfit.problem.run_tree import (
    DATA,
    HELD,
    KIND,
    N_SAMPLES,
    N_SUB,
    NODES,
    SAMPLED,
    SOURCE,
    TABLE,
    TARGET,
)
from channelfit.scoring.kernels.channel_rows import offsets
from channelfit.scoring.kernels.cpu_channel import LOST, LaneChannel
from channelfit.scoring.kernels.cpu_propagators import Propagators
from channelfit.scoring.kernels.cpu_varying import steps_for
from channelfit.scoring.kernels.lanes import LOOPED_STATES, UNROLLED_STATES

STRIDE = 16  # samples advanced at once
POWERS = (1, 2, 4, 8, 16)

#: Arrays of `run_tree.RunTree` in the order in which the generated functions take them.
RUN_ARGUMENTS = (
    "voltages",
    "start_voltage",
    "table_voltage",
    "table_dt",
    "runs",
    "run_voltage",
    "run_dt",
    "run_weight",
    "nodes",
    "v_samples",
    "n_slots",
)


class CpuSource(LaneChannel):
    """The generated kernel that steps one model from sample to sample, in one precision.

    Arguments:
        varying: whether it also takes voltages that vary, which takes longer to compile.

    Attributes:
        text: the source.
        lanes: candidates in a block.
    """

    def __init__(self, model: ChannelModel, dtype: str = "float64", varying: bool = True) -> None:
        super().__init__(model, dtype)
        self.varying = varying
        sizes = [len(c.states) for c in model.chains]
        self.first_step = offsets(len(POWERS) * (n - 1) * n for n in sizes)
        self.first_row = offsets(sizes)
        self._rows_start = sum(len(POWERS) * (n - 1) * n for n in sizes) * self.lanes
        self._row_length = sum(sizes) * self.lanes
        self.table_size = self._rows_start + STRIDE * self._row_length
        self.text = self._module()

    # --- pieces of text

    def _module(self) -> str:
        shared = "bounded, moments, relaxations, within"
        self.header(f"{self.real} stepping", "decay, exp, exprel, tanh", shared)
        self.w("from channelfit.scoring.kernels.fast_rates import resolvent")
        self.write_rates()
        self.write_gains()
        propagators = Propagators(self)
        propagators.write_products()
        for k, chain in enumerate(self.model.chains):
            self.write_steady_state(k)
            propagators.write(k)
            self._table(k, chain)
        self._advance_function()
        self._held()
        if self.varying:
            self._varying()
        self._sweeps()
        return self.w.text

    def _table(self, k: int, chain: Chain) -> None:
        """Write createTable: steps of 1 to 16 samples and the rows c P^j, from the propagator."""
        w, n = self.w, len(chain.states)
        step = (n - 1) * n
        with self.function(
            f"createTable{k}(m, t)", "Steps and observation rows of one propagator (square 0)."
        ):
            with self.over_lanes():
                w(
                    *(
                        f"{self.element(2, 0, i, n)} = {c!r}"
                        for i, c in enumerate(chain.conductances)
                    )
                )
            with w.block(f"for j in range({STRIDE}):"):
                w(
                    f"row = t[{self._rows_start} + j*{self._row_length}:"
                    f"{self._rows_start} + (j + 1)*{self._row_length}]"
                )
                if n >= LOOPED_STATES:
                    self._row_in_loops(k, n)
                else:
                    self._row_written_out(k, n)
            size = step * self.lanes
            with w.block(f"for p in range({len(POWERS)}):"):
                first = self.first_step[k] * self.lanes
                w(f"step = t[{first} + p*{size}:{first} + (p + 1)*{size}]")
                self._step(n)
                with w.block(f"if p < {len(POWERS) - 1}:"):
                    self.square(n)

    def _row_written_out(self, k: int, n: int) -> None:
        """Write one row of createTable, c without its first element, and then c <- c P."""
        w = self.w
        with self.over_lanes():
            w(*(f"c{i} = {self.element(2, 0, i, n)}" for i in range(n)))
            w(f"{self.at('row', self.first_row[k])} = c0")
            w(*(f"{self.at('row', self.first_row[k] + i)} = c{i} - c0" for i in range(1, n)))
            for i in range(n):
                terms = " + ".join(f"c{s}*{self.element(0, s, i, n)}" for s in range(n))
                w(f"{self.element(2, 0, i, n)} = {terms}")

    def _row_in_loops(self, k: int, n: int) -> None:
        """Write one row of createTable for many states."""
        w, first = self.w, self.first_row[k]
        base = self.element(2, 0, 0, n)
        with self.over_lanes():
            w(f"{self.at('row', first)} = {base}")
        with w.block(f"for i in range(1, {n}):"), self.over_lanes():
            w(f"{self.at('row', f'{first} + i')} = {self.element(2, 0, 'i', n)} - {base}")
        w(f"observe{n}({self._view(2)}, {self._view(0)})")

    def _step(self, n: int) -> None:
        """Write F and b of x <- x + F x + b: b_i = P_i0 and F_ij = P_ij - P_i0 - (i == j)."""
        w = self.w
        if n > UNROLLED_STATES:
            with w.block(f"for i in range(1, {n}):"):
                with self.over_lanes():
                    w(f"{self.at('step', f'(i - 1)*{n}')} = {self.element(0, 'i', '0', n)}")
                with w.block(f"for j in range(1, {n}):"):
                    with w.block("if i != j:"), self.over_lanes():
                        own, first = self.element(0, "i", "j", n), self.element(0, "i", "0", n)
                        w(f"{self.at('step', f'(i - 1)*{n} + j')} = {own} - {first}")
                    with w.block("else:"):  # P_ii - 1 without cancellation
                        diagonal = self.at("step", f"(i - 1)*{n} + i")
                        with self.over_lanes():
                            w(f"{diagonal} = -{self.element(0, 'i', '0', n)}")
                        with w.block(f"for s in range({n}):"), w.block("if s != i:"):
                            with self.over_lanes():
                                w(f"{diagonal} -= {self.element(0, 's', 'i', n)}")
            return
        with self.over_lanes():
            for i in range(1, n):
                w(f"b = {self.element(0, i, 0, n)}", f"{self.at('step', (i - 1) * n)} = b")
                for j in range(1, n):
                    value = self.element(0, i, j, n)
                    if i == j:  # P_ii - 1 without cancellation
                        value = (
                            f"-({' + '.join(self.element(0, s, i, n) for s in range(n) if s != i)})"
                        )
                    w(f"{self.at('step', (i - 1) * n + j)} = {value} - b")

    # --- stepping

    def _advance_function(self) -> None:
        """Write advance: y <- y + F y + b for every chain, by 2**p samples."""
        w = self.w
        with self.function("advance(y, t, p)", "The state 2**p samples later."):
            for k, chain in enumerate(self.model.chains):
                size = len(chain.states) * (len(chain.states) - 1) * self.lanes
                begin = f"{self.first_step[k] * self.lanes} + p*{size}"
                w(f"step{k} = t[{begin}:{begin} + {size}]")
            written_out = []
            for k, chain in enumerate(self.model.chains):
                n, first = len(chain.states), self.first_x[k] * self.lanes
                if n < LOOPED_STATES:
                    written_out.append((k, chain))
                else:
                    w(f"advance{n}(y[{first}:{first + (n - 1) * self.lanes}], step{k})")
            with self.over_lanes():
                self._load_x()
                for k, chain in written_out:
                    n, first = len(chain.states), self.first_x[k]
                    for i in range(n - 1):
                        terms = [self.at(f"step{k}", i * n)]
                        terms += [
                            f"{self.at(f'step{k}', i * n + 1 + j)}*x{first + j}"
                            for j in range(n - 1)
                        ]
                        w(f"{self.at('y', first + i)} = x{first + i} + ({' + '.join(terms)})")

    def _load_x(self) -> None:
        self.w(*(f"x{i} = {self.at('y', i)}" for i in range(self.n_x)))

    def _open_of_rows(self, name: str, j: int) -> list[tuple[str, int]]:
        """Return each chain's open probability at sample j, from rows in `name`, and its power."""
        start = self._rows_start // self.lanes if name == "t" else 0
        start += j * self._row_length // self.lanes
        factors = []
        for k, chain in enumerate(self.model.chains):
            n = len(chain.states)
            at = [self.at(name, start + self.first_row[k] + i) for i in range(n)]
            terms = [at[0], *(f"{at[i]}*x{self.first_x[k] + i - 1}" for i in range(1, n))]
            factors.append((" + ".join(terms), chain.power))
        return factors

    def _open_of_state(self) -> list[tuple[str, int]]:
        """Return each chain's open probability in the state x, and its power."""
        factors = []
        for k, chain in enumerate(self.model.chains):
            c = chain.conductances
            terms = [repr(c[0])] + [
                f"{c[i] - c[0]!r}*x{self.first_x[k] + i - 1}"
                for i in range(1, len(c))
                if c[i] != c[0]
            ]
            factors.append((" + ".join(terms), chain.power))
        return factors

    def _check(self) -> None:
        """Mark lanes in which an occupancy is not in [0, 1], be it NaN."""
        tolerance = 1e-6 if self.real == "float64" else 1e-3
        with self.over_lanes():
            self._load_x()
            tests = []
            for k, chain in enumerate(self.model.chains):
                xs = [f"x{self.first_x[k] + i}" for i in range(len(chain.states) - 1)]
                if chain.linear:
                    tests.append(f"abs({xs[0]}) < {GREATEST_OCCUPANCY!r}")
                    continue
                tests += [f"{x} >= {-tolerance!r}" for x in xs]
                if xs:
                    tests.append(f"{' + '.join(xs)} <= {1 + tolerance!r}")
            if tests:
                self.w(f"kept = {' and '.join(tests)}")
                self.w(f"status[l] = status[l] if (kept or status[l] != 0.0) else {LOST}")

    def _copy_state(self, inward: bool) -> None:
        w = self.w
        with w.block(f"for k in range({self.n_x * self.lanes}):"):
            w("y[k] = source[k]" if inward else "target[k] = y[k]")

    @property
    def _gains(self) -> str:
        """The arguments from which a run at a held voltage computes its current."""
        return "gain" if self.ohmic else "theta, gain"

    def _held(self) -> None:
        """Write runHeld: scores go in strides, the remaining samples and all traces one by one."""
        w = self.w
        with self.function(
            f"runHeld(source, target, y, t, v, {self._gains}, n, sampled, data, weight, cost,"
            " trace, tracing, status)",
            "n samples at a held voltage: adds to the cost, or fills the trace.",
        ):
            self.create_drives()
            self._copy_state(inward=True)
            for k, chain in enumerate(self.model.chains):
                if chain.instant:  # nothing is left of its start: b is the limit
                    with self.over_lanes():
                        limit = self.at("t", self.first_step[k])
                        w(f"{self.at('y', self.first_x[k])} = {limit}")
            w(f"strides = 0 if tracing else n // {STRIDE}")
            with w.block("for k in range(strides):"):
                with w.block("if sampled:"):
                    w(f"part = data[k*{STRIDE}:(k + 1)*{STRIDE}]")
                    self._stride()
                w(f"advance(y, t, {POWERS.index(STRIDE)})")
            w(f"done = strides*{STRIDE}")
            with w.block("while done < n:"):
                w(f"some = min({STRIDE}, n - done)")
                with w.block("if sampled:"), w.block("for j in range(some):"):
                    w(
                        f"row = t[{self._rows_start} + j*{self._row_length}:"
                        f"{self._rows_start} + (j + 1)*{self._row_length}]"
                    )
                    self._one_sample("done + j", self.real, "row")
                with w.block(f"for p in range({len(POWERS)}):"), w.block("if some >> p & 1:"):
                    w("advance(y, t, p)")
                w("done += some")
            self._check()
            self._copy_state(inward=False)

    def _stride(self) -> None:
        """Score STRIDE samples, several at a time: sums stay in registers."""
        w = self.w
        together = STRIDE if self.n_x <= 4 else 4
        rows, part = "t", "part"
        if together < STRIDE:
            w.block(f"for group in range({STRIDE // together}):")
            w.__enter__()
            size = together * self._row_length
            w(
                f"rows = t[{self._rows_start} + group*{size}:"
                f"{self._rows_start} + (group + 1)*{size}]",
                f"few = part[group*{together}:(group + 1)*{together}]",
            )
            rows, part = "rows", "few"
        with self.over_lanes():
            self._load_x()
            self.load_drives(self.real)
            w(f"even = {self.real}(0.0)", f"odd = {self.real}(0.0)")
            for j in range(together):
                w(f"r = {self.current(self._open_of_rows(rows, j))} - {part}[{j}]")
                w(f"{'odd' if j % 2 else 'even'} += r*r")
            w("cost[l] += weight*(even + odd)")
        if together < STRIDE:
            w.__exit__()

    def _one_sample(self, place: str, real: str, rows: str | None) -> None:
        """Score or record sample `place`, from observation rows or from the state itself."""
        w = self.w

        def current() -> str:
            self._load_x()
            self.load_drives(real)
            return self.current(self._open_of_rows(rows, 0) if rows else self._open_of_state())

        with w.block("if tracing:"):
            w(f"values = trace[({place})*{self.lanes}:({place} + 1)*{self.lanes}]")
            with self.over_lanes():
                w(f"values[l] = {current()}")
        with w.block("else:"):
            w(f"datum = data[{place}]")
            with self.over_lanes():
                w(f"r = {current()} - datum", "cost[l] += weight*(r*r)")

    def _varying(self) -> None:
        """Write runVarying: one run at varying voltage, in float64 and of order four."""
        w = self.w
        steps = steps_for(self)
        steps.write()
        with self.function(
            "runVarying(source, target, y, theta, q, m, z, norm, nodes, h, n_sub, v_samples, gain,"
            " n, sampled, data, weight, cost, trace, tracing, status)",
            "n samples while the voltage moves, n_sub steps of h ms for each.",
        ):
            self._copy_state(inward=True)
            steps.begin()
            with w.block("for k in range(n):"):
                with w.block("if sampled:"):
                    w("v = v_samples[k]")
                    self.create_drives()
                    self._one_sample("k", "float64", None)
                with w.block("for sub in range(n_sub):"):
                    w(f"at = nodes[(k*n_sub + sub)*{len(NODES)}:]")
                    steps.step()
            self._check()
            self._copy_state(inward=False)

    # --- everything for a range of blocks

    def _sweeps(self) -> None:
        """Write runSweeps: every run of every sweep for blocks first .. last - 1."""
        w = self.w
        arrays = ", ".join(RUN_ARGUMENTS)
        with self.function(
            f"runSweeps(parameters, first, last, {arrays}, data, cost_out, trace_out, tracing,"
            " status_out)",
            "Sum of weighted squares, pA^2; or, tracing, the currents (n_data, n_candidates).",
        ):
            self._allocate()
            with w.block("for block in range(first, last):"):
                self.load_candidates("cost[l] = 0.0")
                self._tables()
                with w.block("for r in range(runs.shape[0]):"):
                    self._dispatch()
                self._store()

    def _allocate(self) -> None:
        w, L = self.w, self.lanes
        w("n_candidates = parameters.shape[1]")
        w(f"theta = np.empty({max(1, len(self.model.parameters)) * L})")
        w(
            f"status = np.empty({L})",
            f"cost = np.empty({L})",
            f"gain = np.empty({self.n_gains * L})",
        )
        w(f"q = np.empty(len(voltages)*{self.n_rates * L})")
        w(f"x = np.empty(n_slots*{self.n_x * L})", f"y = np.empty({self.n_x * L}, np.{self.real})")
        if self.varying:
            w(f"q2 = np.empty({steps_for(self).n_rates * L})", f"y64 = np.empty({self.n_x * L})")
        w(f"m = np.empty({(6 * self.n_square + 1) * L}, np.{self.real})")
        rows = 4 * self.widest + (0 if self.model.relaxes else max(0, self.n_x - self.widest))
        w(f"m64 = np.empty({self.n_square * L})", f"z = np.empty({rows * L})")
        w(f"norm = np.empty({5 * L})")
        w(f"t = np.empty(table_dt.size*{self.table_size}, np.{self.real})")
        w(f"trace = np.empty(v_samples.size*{L} if tracing else 0)")

    def _tables(self) -> None:
        w, L = self.w, self.lanes
        rates = self.n_rates * L
        with w.block("for i in range(len(voltages)):"):
            w(f"createQmat(voltages[i], theta, {self.part('q', 'i', rates)}, status)")
        with w.block("for i in range(start_voltage.size):"):
            w(f"rates = {self.part('q', 'start_voltage[i]', rates)}")
            w(f"state = {self.part('x', 'i', self.n_x * L)}")
            for k in range(len(self.model.chains)):
                w(f"initStateProbs{k}(rates, state[{self.first_x[k] * L}:], m64, z)")
        with w.block("for i in range(table_dt.size):"):
            w(f"rates = {self.part('q', 'table_voltage[i]', rates)}")
            w(f"table = {self.part('t', 'i', self.table_size)}")
            for k in range(len(self.model.chains)):
                w(f"createPropagator{k}(rates, table_dt[i], m, norm)")
                w(f"createTable{k}(m, table)")

    def _dispatch(self) -> None:
        w, state = self.w, self.n_x * self.lanes
        w(f"d = runs[r, {DATA}]")
        w(f"sampled = runs[r, {SAMPLED}] != 0 if tracing else run_weight[r] > 0.0")
        w(f"source = {self.part('x', f'runs[r, {SOURCE}]', state)}")
        w(f"target = {self.part('x', f'runs[r, {TARGET}]', state)}")
        tail = f"data[d:], run_weight[r], cost, trace[d*{self.lanes}:], tracing, status"
        table = self.part("t", f"runs[r, {TABLE}]", self.table_size)
        held = (
            f"runHeld(source, target, y, {table}, run_voltage[r], {self._gains},"
            f" runs[r, {N_SAMPLES}], sampled, {tail})"
        )
        if not self.varying:
            w(held)
            return
        with w.block(f"if runs[r, {KIND}] == {HELD}:"):
            w(held)
        with w.block("else:"):
            w(
                f"runVarying(source, target, y64, theta, q2, m, z, norm, nodes[runs[r, {TABLE}]:],"
                f" run_dt[r], runs[r, {N_SUB}], v_samples[d:], gain, runs[r, {N_SAMPLES}], sampled,"
                f" {tail})"
            )

    def _store(self) -> None:
        w, L = self.w, self.lanes
        with w.block(f"for l in range(min({L}, n_candidates - block*{L})):"):
            w(f"candidate = block*{L} + l", "status_out[candidate] = np.int8(status[l])")
            w("cost_out[candidate] = cost[l]")
            with w.block("if tracing:"), w.block("for k in range(v_samples.size):"):
                w(f"trace_out[k, candidate] = trace[k*{L} + l]")
