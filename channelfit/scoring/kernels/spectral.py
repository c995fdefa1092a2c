"""The score of a held run without its samples: formulas for the CPU and for CUDA.

At a held voltage the open probability is a sum of decaying exponentials, y(t) = sum_I w_I
exp(-L_I t), where I counts how often each mode of each chain enters (a gate to the third power has
one mode, entering 0 to 3 times). With G(L) = sum_k exp(-L k h) and D(L) = sum_k d_k exp(-L k h)

    sum_k (s y_k - d_k)^2 = s^2 sum_IJ w_I w_J G(L_I + L_J) - 2 s sum_I w_I D(L_I) + sum_k d_k^2.

G is a geometric sum and D is tabulated (`layout.exponential_tables`). This module leads from the
rates at a voltage to modes, `spectral_runs` from modes to costs. Both serve the CPU and CUDA, which
differ in how they spell a value (`scalars`), and in the code around these formulas: loops over
lanes or threads, and memory.

The modes of a chain of

* two states: a formula, exact whatever the rates;
* three states, any topology: speeds from the trace and the sum over spanning trees (nothing but
  positive terms), amplitudes from the first derivative; those that oscillate are doubted;
* more states under detailed balance (every tree, and cycles that keep it): the generator is similar
  to the symmetric -M M^T, and M comes out of the Grassmann-Taksar-Heyman elimination, again without
  a subtraction. One-sided Jacobi rotations of its columns give the speeds to high relative accuracy
  (Demmel and Veselic 1992). Its amplitude follows
  - up to six states from Lagrange's product of (A + l_f)/(l_f - l_e) over the other modes f, which
    no grading of the rates disturbs, but speeds that nearly agree do;
  - beyond, where speeds do come close, from the columns themselves, which mind only occupancies
    that are far from those at rest.

Modes that are gone within one sample matter to the first sample alone, where the open probability
is known anyway: there close speeds do no harm. Where a candidate's modes cannot be trusted it gets
`doubt`, and the caller scores it by stepping.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from channelfit.model.channel import RATE_CEILING, RATE_FLOOR
from channelfit.scoring.kernels.scalars import Scalars
from channelfit.scoring.kernels.spectral_layout import MOST_PRODUCTS, SpectralLayout

#: Live modes are doubted if their amplitudes cancel to less than one part in this: squares cancel
#: twice as far.
GREATEST_LOSS = 1e3
#: Rates at the bounds of `model`, but for rounding.
LEAST_RATE, GREATEST_RATE = RATE_FLOOR * (1 + 1e-6), RATE_CEILING * (1 - 1e-6)
#: A slow factor of Lagrange's products magnifies the rounding error of the fastest mode by the
#: ratio of speeds; one more fast factor takes it down by rounding again. Beyond this ratio the two
#: together leave more than one part in 1e9 of a cost.
GREATEST_SPREAD = 1e22
#: Speed times sampling interval from which a mode is gone within one sample: exp(-40) = 4e-18.
GONE = 40.0
#: Gaps between modes that are gone are widened to this part of the larger speed.
LEAST_GAP = 0.1
#: The greatest distance of the modes of many states from the occupancies at their start.
GREATEST_MISS = 3e-10
#: Live gaps of three states are widened to this part of the sum of speeds, which changes a trace by
#: the square of it.
LEAST_LIVE_GAP = 1e-6
#: Amplitudes that cancel may make up so many times the cost before it is doubted.
GREATEST_CANCELLATION = 1e5
#: A cost below this part of the data's own sum of squares has lost too many digits.
LEAST_COST = 1e-6

#: Of a matrix of n rows and n - 1 columns: the place of the element of a column in a row.
Column = Callable[[int, int], str]


class ModalSpectrum(SpectralLayout):
    """The formulas that lead from the rates at one voltage, q, to modes, s."""

    def two_states(self, c: Scalars, k: int) -> None:
        """Store speed and limit of a gate."""
        rows, rates = self.layout[k], self.rate_rows(k)
        up, down = c.at("q", rates[0, 1]), c.at("q", rates[1, 0])
        c.let(f"speed{k}", f"{up} + {down}")
        c.put(c.at("s", rows["speed"]), f"speed{k}")
        c.put(c.at("s", rows["limit"]), f"{up}*reciprocal(speed{k})")

    def three_states(self, c: Scalars, k: int) -> None:
        """Store both speeds, the limit, and the slow mode's projection;
        doubt where they are not real, or so close that amplitudes cancel.

        With S the sum of all rates and P the sum over rooted spanning trees (which is also
        the steady state) the speeds are the roots of l^2 - S l + P. (A + fast) / (fast - slow)
        takes a state apart from its limit to its slow part.
        """
        rows, rates = self.layout[k], self.rate_rows(k)
        q = {pair: c.at("q", row) for pair, row in rates.items()}
        trees = [
            [((a, root), (b, root)), ((a, b), (b, root)), ((b, a), (a, root))]
            for root, a, b in ((0, 1, 2), (1, 0, 2), (2, 0, 1))
        ]
        for root, group in enumerate(trees):
            products = [f"{q[one]}*{q[two]}" for one, two in group if one in q and two in q]
            c.let(f"tree{k}_{root}", " + ".join(products))
        c.let(f"trees{k}", f"tree{k}_0 + tree{k}_1 + tree{k}_2")
        c.let(f"sum{k}", " + ".join(q.values()))
        c.let(f"square{k}", f"sum{k}*sum{k}")
        c.let(f"apart{k}", f"square{k} - 4.0*trees{k}")
        # the slow speed is at least trees/sum
        c.let(f"gone{k}", c.choose(f"trees{k}*dt > {GONE!r}*sum{k}", "1.0", "0.0"))
        part = c.choose(f"gone{k} > 0.0", repr(LEAST_GAP**2), repr(LEAST_LIVE_GAP**2))
        c.let(f"least{k}", f"{part}*square{k}")
        close = c.both(f"apart{k} < {GREATEST_LOSS**-2!r}*square{k}", f"gone{k} == 0.0")
        c.put(c.at("strained", self.strainable.index(k)), c.choose(close, "1.0", "0.0"))
        around = ((0, 1), (1, 2), (2, 0))
        if rates.keys() >= set(around) or rates.keys() >= {way[::-1] for way in around}:
            swings = c.both(f"apart{k} < -least{k}", f"gone{k} == 0.0")
            c.put("doubt", c.choose(swings, "1.0", "doubt"))
        c.let(f"wide{k}", c.choose(f"apart{k} > least{k}", f"apart{k}", f"least{k}"))
        c.let(f"per_gap{k}", f"rootReciprocal(wide{k})")
        c.let(f"fast{k}", f"0.5*(sum{k} + wide{k}*per_gap{k})")
        c.let(f"low{k}", f"trees{k}*reciprocal(fast{k})")
        c.put(c.at("s", rows["speed"]), f"fast{k}")
        c.put(c.at("s", rows["speed"] + 1), f"low{k}")
        c.let(f"share{k}", f"reciprocal(trees{k})")
        for i in (1, 2):
            c.put(c.at("s", rows["limit"] + i - 1), f"tree{k}_{i}*share{k}")
        for i, other in ((1, 2), (2, 1)):
            leaving = [q[i, j] for j in range(3) if (i, j) in q]
            if (0, i) in q:
                leaving.append(q[0, i])
            own = f"(fast{k} - ({' + '.join(leaving)}))*per_gap{k}"
            c.put(c.at("s", rows["slow"] + 2 * (i - 1) + i - 1), own)
            gained = [q[other, i]] if (other, i) in q else []
            taken = [f" - {q[0, i]}"] if (0, i) in q else []
            cross = f"({''.join(gained or ['0.0'])}{''.join(taken)})*per_gap{k}"
            c.put(c.at("s", rows["slow"] + 2 * (i - 1) + other - 1), cross)

    # --- four states and more: elimination, and one-sided Jacobi rotations of columns

    def eliminate(self, c: Scalars, k: int, column: Column) -> None:
        """Store columns of M, -S = M M^T, and name the steady state, by eliminating states.

        The last state goes first. Elements that the topology leaves zero are not computed.
        """
        n = len(self.model.chains[k].states)
        rate = {pair: c.at("q", row) for pair, row in self.rate_rows(k).items()}
        own = set(rate)  # later ones may be so small that a product underflows
        factor: dict[tuple[int, int], str] = {}
        for last in range(n - 1, 0, -1):
            before = [i for i in range(last) if (last, i) in rate]
            c.let(f"out{last}", " + ".join([*(rate[last, i] for i in before), "1e-200"]))
            c.let(f"per_root{last}", f"rootReciprocal(out{last})")
            c.let(f"per_out{last}", f"per_root{last}*per_root{last}")
            factor[last, last - 1] = f"out{last}*per_root{last}"
            for i in before:
                product = f"{rate[i, last]}*{rate[last, i]}"
                mean = c.root(product, {(i, last), (last, i)} <= own)
                factor[i, last - 1] = f"-{mean}*per_root{last}"
                c.let(f"in{i}_{last}", f"{rate[i, last]}*per_out{last}")
            around = [(i, j) for i in before for j in before if i != j]
            for i, j in around:
                flow = f"in{i}_{last}*{rate[last, j]}"
                c.let(f"r{i}_{j}_{last}", f"{rate[i, j]} + {flow}" if (i, j) in rate else flow)
            rate |= {(i, j): f"r{i}_{j}_{last}" for i, j in around}
            rate |= {(i, last): f"in{i}_{last}" for i in before}
        for e in range(n - 1):
            for i in range(n):
                c.put(column(e, i), factor.get((i, e), "0.0"))
        c.let("y0_0", "1.0")
        for last in range(1, n):
            parts = [f"y{i}_{last - 1}*{rate[i, last]}" for i in range(last) if (i, last) in rate]
            c.let(f"y{last}_{last - 1}", " + ".join(parts))
            c.let(f"share{last}", f"reciprocal(1.0 + y{last}_{last - 1})")
            for i in range(last + 1):
                c.let(f"y{i}_{last}", f"y{i}_{last - 1}*share{last}")

    def keep_limit(self, c: Scalars, k: int) -> None:
        """Store the steady state that `eliminate` has named."""
        n, rows = len(self.model.chains[k].states), self.layout[k]
        limit = [f"y{i}_{n - 1}" for i in range(n)]
        if n <= MOST_PRODUCTS:
            for i in range(1, n):
                c.put(c.at("s", rows["limit"] + i - 1), limit[i])
            return
        for i in range(n):
            bounded = c.choose(f"{limit[i]} < 1e-290", "1e-290", limit[i])
            c.let(f"per_root_y{i}", f"rootReciprocal({bounded})")
            c.put(c.at("s", rows["limit"] + i), limit[i])
            c.put(c.at("s", rows["inverse"] + i), f"per_root_y{i}")
            c.put(c.at("s", rows["root"] + i), f"{limit[i]}*per_root_y{i}")

    def rotation(self, c: Scalars, first: str, second: str, shared: str) -> None:
        """Name `cosine` and `sine` that make two columns orthogonal;
        `moved` goes between their norms.

        Arguments:
            first, second: squares of the columns' lengths.
            shared: their inner product.
        """
        c.let("change", f"{second} - {first}")
        c.let("twice", f"2.0*{shared}")
        c.let("apart", f"{c.size('change')} + 1e-145")  # or equal norms would turn by 0/0
        # With t the angle: cos 2t = apart*per and sin 2t = twice*per.
        c.let("per", f"rootReciprocal({c.fused('apart', 'apart', 'twice*twice')})")
        c.let("square", c.fused("(0.5*per)", "apart", "0.5"))
        c.let("inverse", "rootReciprocal(square)")
        c.let("cosine", "square*inverse")
        c.let("sine", f"{shared}*{c.choose('change < 0.0', '-per', 'per')}*inverse")
        c.let("moved", f"{shared}*sine*inverse")

    def keep_modes(self, c: Scalars, k: int, column: Column) -> None:
        """Store the speeds of chain k, and of many states the modes, of orthogonal columns.

        Doubts rates that were cut at their bounds: these no longer balance a cycle.
        """
        n, rows = len(self.model.chains[k].states), self.layout[k]
        speeds = [f"speed{e}" for e in range(n - 1)]
        for e, speed in enumerate(speeds):
            squares = " + ".join(f"{column(e, i)}*{column(e, i)}" for i in range(n))
            c.let(speed, c.most(squares, "1e-200"))
        if n <= MOST_PRODUCTS:
            speeds = _descending(c, speeds)
        else:
            self._keep_columns(c, k, column)
        for e, speed in enumerate(speeds):
            c.put(c.at("s", rows["speed"] + e), speed)
        if len(self.rate_rows(k)) > 2 * (n - 1):
            transitions = self.model.chains[k].transitions
            for t, row in zip(transitions, self.rate_rows(k).values(), strict=True):
                least, most = LEAST_RATE * t.multiplicity, GREATEST_RATE * t.multiplicity
                rate = c.at("q", row)
                inside = c.both(f"{rate} > {least!r}", f"{rate} < {most!r}")
                c.put("doubt", c.choose(inside, "doubt", "1.0"))

    def _keep_columns(self, c: Scalars, k: int, column: Column) -> None:
        """Store the columns themselves, and the open probability that each carries."""
        chain, rows = self.model.chains[k], self.layout[k]
        n = len(chain.states)
        for e in range(n - 1):
            parts = [
                f"{float(g)!r}*{c.at('s', rows['root'] + i)}*{column(e, i)}"
                for i, g in enumerate(chain.conductances)
                if g
            ]
            carried = f"({' + '.join(parts) or '0.0'})*reciprocal(speed{e})"
            c.put(c.at("s", rows["open"] + e), carried)
            for i in range(n):
                c.put(c.at("s", rows["mode"] + (n - 1) * i + e), column(e, i))

    def products(self, c: Scalars, k: int) -> None:
        """Store rows and gaps of a chain of four to six states, from the speeds and limit in s.

        Row e holds the part of mode e in the open probability for each state's distance from
        its limit.
        """
        n, rows = len(self.model.chains[k].states), self.layout[k]
        speeds = [c.at("s", rows["speed"] + e) for e in range(n - 1)]
        self._gaps(c, k, speeds)
        base = [float(g) for g in self.model.chains[k].conductances]
        rest = weighted(
            [g - base[0] for g in base[1:]],
            [c.at("s", rows["limit"] + i) for i in range(n - 1)],
            base[0],
        )
        c.let(f"rest{k}", rest)
        for i in range(n):
            c.let(f"start{k}_{i}", f"{base[i]!r} - rest{k}")
        for e in range(n - 1):
            name = f"start{k}"
            for number, f in enumerate(order_of_factors(e, n - 1)):
                self.apply_factor(c, k, name, f"row{k}_{e}_{number}", e, f)
                name = f"row{k}_{e}_{number}"
            for i in range(n - 1):
                c.let(f"mode{k}_{e}_{i}", f"{name}_{i + 1} - {name}_0")
        self._complete(c, k, speeds[0], base)

    def _gaps(self, c: Scalars, k: int, speeds: list[str]) -> None:
        """Store 1/(l_e - l_f) for e before f; doubt where live modes lose too many digits.

        Speeds descend.
        """
        n, rows = len(speeds) + 1, self.layout[k]
        losses: dict[int, list[str]] = {e: [] for e in range(n - 1)}
        for number, (e, f) in enumerate(itertools.combinations(range(n - 1), 2)):
            part = c.choose(
                f"{speeds[f]}*dt > {GONE!r}", repr(LEAST_GAP), repr(1e-3 / GREATEST_LOSS)
            )
            c.let(f"least{k}_{e}_{f}", f"{part}*{speeds[e]}")
            c.let(f"apart{k}_{e}_{f}", f"{speeds[e]} - {speeds[f]}")
            wide = f"apart{k}_{e}_{f} > least{k}_{e}_{f}"
            c.let(f"gap{k}_{e}_{f}", c.choose(wide, f"apart{k}_{e}_{f}", f"least{k}_{e}_{f}"))
            c.let(f"per_gap{k}_{e}_{f}", f"reciprocal(gap{k}_{e}_{f})")
            c.put(c.at("s", rows["per_gap"] + number), f"per_gap{k}_{e}_{f}")
            c.let(f"loss{k}_{e}_{f}", f"{speeds[e]}*per_gap{k}_{e}_{f}")
            losses[e].append(f"loss{k}_{e}_{f}")
            losses[f].append(f"loss{k}_{e}_{f}")
        for e, parts in losses.items():
            c.let(f"loss{k}_{e}", "*".join(parts))
            lost = c.both(f"loss{k}_{e} > {GREATEST_LOSS!r}", f"{speeds[e]}*dt < {GONE!r}")
            c.put("doubt", c.choose(lost, "1.0", "doubt"))
        wide = f"{speeds[0]} > {GREATEST_SPREAD!r}*{speeds[-2]}"
        c.put("doubt", c.choose(wide, "1.0", "doubt"))

    def _per_difference(self, c: Scalars, k: int, e: int, f: int) -> str:
        """Return the place of 1/(l_f - l_e), with its sign."""
        n = len(self.model.chains[k].states)
        pairs = list(itertools.combinations(range(n - 1), 2))
        kept = c.at("s", self.layout[k]["per_gap"] + pairs.index((min(e, f), max(e, f))))
        return kept if f < e else f"-{kept}"

    def apply_factor(self, c: Scalars, k: int, name: str, new: str, e: int, f: int) -> None:
        """Name new = name (A + l_f)/(l_f - l_e),
        a row g: (g A)_i sums rate i -> j times g_j - g_i.
        """
        n = len(self.model.chains[k].states)
        speed = c.at("s", self.layout[k]["speed"] + f)
        for i in range(n):
            flows = [
                f"{c.at('q', row)}*({name}_{j} - {name}_{i})"
                for (source, j), row in self.rate_rows(k).items()
                if source == i
            ]
            total = " + ".join([f"{speed}*{name}_{i}", *flows])
            c.let(f"{new}_{i}", f"({total})*({self._per_difference(c, k, e, f)})")

    def advance_factor(self, c: Scalars, k: int, name: str, new: str, e: int, f: int) -> None:
        """Name new = (A + l_f)/(l_f - l_e) name, a column of changes that sum to 0."""
        n = len(self.model.chains[k].states)
        speed = c.at("s", self.layout[k]["speed"] + f)
        for i in range(n):
            gains = [
                f"{c.at('q', row)}*{name}_{a}"
                for (a, b), row in self.rate_rows(k).items()
                if b == i
            ]
            losses = [c.at("q", row) for (a, _), row in self.rate_rows(k).items() if a == i]
            kept = f"({speed} - ({' + '.join(losses)}))*{name}_{i}"
            c.let(
                f"{new}_{i}", f"({' + '.join([kept, *gains])})*({self._per_difference(c, k, e, f)})"
            )

    def _complete(self, c: Scalars, k: int, fastest: str, base: list[float]) -> None:
        """Store the rows; a mode that is gone at once takes what the others miss at the start."""
        n, rows = len(base), self.layout[k]
        c.let(f"spare{k}", c.choose(f"{fastest}*dt > {GONE!r}", "1.0", "0.0"))
        for i in range(n - 1):
            total = " + ".join(f"mode{k}_{e}_{i}" for e in range(n - 1))
            c.let(f"missed{k}_{i}", f"spare{k}*({base[i + 1] - base[0]!r} - ({total}))")
            for e in range(n - 1):
                extra = f" + missed{k}_{i}" if e == 0 else ""
                c.put(c.at("s", rows["row"] + e * (n - 1) + i), f"mode{k}_{e}_{i}{extra}")


def _descending(c: Scalars, names: list[str]) -> list[str]:
    """Name the values in descending order, by exchanging neighbors."""
    names = list(names)
    for end in range(len(names) - 1, 0, -1):
        for e in range(end):
            one, other = names[e], names[e + 1]
            names[e], names[e + 1] = f"more{end}_{e}", f"less{end}_{e}"
            c.let(names[e], c.most(one, other))
            c.let(names[e + 1], c.least(one, other))
    return names


def order_of_factors(e: int, n_modes: int) -> list[int]:
    """Return, in order, the modes f of which the factors (A +
    l_f)/(l_f - l_e) leave mode e alone.

    A slow factor magnifies rounding errors of fast modes by the ratio of speeds. So each is
    followed by the factors of all faster modes again: they take the rest away and do nothing to e.
    """
    order: list[int] = []
    for f in range(n_modes):
        if f != e:
            order.append(f)
            order.extend(range(min(e, f) - 1, -1, -1))
    return order


def weighted(weights: Sequence[float], names: Sequence[str], base: float = 0.0) -> str:
    """Return text of base + sum weight * name, without factors of one and terms of zero."""
    parts = [repr(base)] if base else []
    for weight, name in zip(weights, names, strict=True):
        if weight == 1.0:
            parts.append(name)
        elif weight:
            parts.append(f"{float(weight)!r}*{name}")
    return f"({' + '.join(parts)})" if parts else "0.0"
