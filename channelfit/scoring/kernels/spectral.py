"""The score of a held run without its samples: formulas shared by every target language.

At a held voltage the open probability is a sum of decaying exponentials, y(t) = sum_I w_I
exp(-L_I t), where I counts how often each mode of each chain enters (a gate to the third power has
one mode, entering 0 to 3 times). With G(L) = sum_k exp(-L k h) and D(L) = sum_k d_k exp(-L k h)

    sum_k (s y_k - d_k)^2 = s^2 sum_IJ w_I w_J G(L_I + L_J) - 2 s sum_I w_I D(L_I) + sum_k d_k^2.

G is a geometric sum and D is tabulated (`transform`). What differs between CUDA and the CPU is how
a value is named and how one is chosen (`Scalars`).

Where the modes come from, for a chain of

* two states: a formula, exact whatever the rates;
* three states, any topology: speeds from the trace and the sum over spanning trees (nothing but
  positive terms), amplitudes from the first derivative;
* more states under detailed balance (every tree, and cycles that keep it): the generator is similar
  to the symmetric -M M^T, and M comes out of the Grassmann-Taksar-Heyman elimination, again without
  a subtraction. One-sided Jacobi rotations of its columns give the speeds to high relative accuracy
  (Demmel and Veselic 1992). What a mode contributes follows
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
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from channelfit.model.channel import RATE_CEILING, RATE_FLOOR, Chain, ChannelModel
from channelfit.model.evaluation import evaluate

#: Live modes whose amplitudes cancel to less than one part in this are doubted: their squares
#: cancel twice as far.
GREATEST_LOSS = 1e3
#: Rates at the bounds of `model`, but for rounding.
LEAST_RATE, GREATEST_RATE = RATE_FLOOR * (1 + 1e-6), RATE_CEILING * (1 - 1e-6)
#: A slow factor of Lagrange's products magnifies what rounding has left of the fastest mode by the
#: ratio of speeds; one more fast factor takes it down by rounding again. Beyond this ratio the two
#: together leave more than one part in 1e9 of a cost.
GREATEST_SPREAD = 1e22
#: Speed times sampling interval from which a mode is gone within one sample: exp(-40) = 4e-18.
GONE = 40.0
#: Gaps between modes that are gone are widened to this part of the larger speed.
LEAST_GAP = 0.1
#: How far the modes of many states may miss the occupancies that they start from.
GREATEST_MISS = 3e-10
#: Live gaps of three states are widened to this part of the sum of speeds, which changes a trace by
#: the square of it.
LEAST_LIVE_GAP = 1e-6
#: Amplitudes that cancel may make up so many times the cost before it is doubted.
GREATEST_CANCELLATION = 1e5
#: A cost below this part of the data's own sum of squares has lost too many digits.
LEAST_COST = 1e-6
#: Up to so many states Lagrange's products are used.
MOST_PRODUCTS = 6

_TRIALS = 20

Index = tuple[int, ...]


class Scalars(Protocol):
    """A target language, one candidate at a time."""

    def let(self, name: str, expression: str) -> None:
        """Names a value."""
        ...

    def put(self, place: str, expression: str) -> None:
        """Stores a value in an element that `at` named."""
        ...

    def at(self, array: str, row: int) -> str:
        """An element of one of this candidate's arrays."""
        ...

    def choose(self, condition: str, yes: str, no: str) -> str:
        """A value that depends on a condition."""
        ...

    def both(self, one: str, other: str) -> str:
        """The condition that two conditions hold."""
        ...


def why_not(model: ChannelModel) -> str | None:
    """Why a model has no modes to sum over, None if it has."""
    for chain in model.chains:
        if len(chain.states) > 3 and not keeps_detailed_balance(model, chain):
            return (
                f"the {len(chain.states)} states {', '.join(chain.states)} do not keep detailed "
                "balance around every cycle, so their occupancies may oscillate"
            )
    return None


def keeps_detailed_balance(model: ChannelModel, chain: Chain) -> bool:
    """Whether the rates around every cycle multiply to the same both ways, whatever the values.

    Kolmogorov's criterion, tried at random values and voltages: an identity of expressions holds
    at all of them, and anything else fails at nearly every one.
    """
    index = {s: i for i, s in enumerate(chain.states)}
    edges = {(index[t.source], index[t.target]) for t in chain.transitions}
    if any((j, i) not in edges for i, j in edges):
        return False
    if len(edges) == 2 * (len(chain.states) - 1):
        return True
    logs = _log_rates(model, chain)
    height = {0: np.zeros(_TRIALS)}
    waiting = [0]
    # Where a rate is 0 the difference is no number, and balance is not claimed.
    with np.errstate(invalid="ignore"):
        while waiting:
            i = waiting.pop()
            for j in (j for a, j in edges if a == i and j not in height):
                height[j] = height[i] + logs[i, j] - logs[j, i]
                waiting.append(j)
        worst = [np.abs(height[j] - height[i] - logs[i, j] + logs[j, i]) for i, j in edges]
    return bool(np.max(worst) < 1e-9)


def _log_rates(model: ChannelModel, chain: Chain) -> dict[tuple[int, int], np.ndarray]:
    """(source, target) -> (_TRIALS,) logarithm of the rate, where every one is positive."""
    random = np.random.default_rng(0)
    index = {s: i for i, s in enumerate(chain.states)}
    scope: dict[str, np.ndarray] = {"v": random.uniform(-60.0, 20.0, _TRIALS)}
    for p in model.parameters:
        middle = p.value if p.value is not None else 0.5 * (p.lower + p.upper)
        scope[p.name] = middle * random.uniform(0.9, 1.1, _TRIALS)
    for name, expression in model.definitions:
        scope[name] = evaluate(expression, scope)
    with np.errstate(all="ignore"):
        return {
            (index[t.source], index[t.target]): np.log(t.multiplicity * evaluate(t.rate, scope))
            for t in chain.transitions
        }


class Spectrum:
    """Which modes a model has, where their values are kept, and the formulas between them.

    Attributes:
        n_modes: of all chains; a chain of n states has n - 1.
        terms: indices I of the open probability; the constant one first.
        sums: indices of its square without the constant one, each after those it is made of.
        n_kept: rows of the array s of one visit, which `layout` names per chain.
    """

    def __init__(self, model: ChannelModel) -> None:
        self.model = model
        self.first_rate, self.first_x, self.first_mode = [], [], []
        self.layout: list[dict[str, int]] = []
        rate = x = self.n_kept = 0
        for chain in model.chains:
            n = len(chain.states)
            self.first_rate.append(rate)
            self.first_x.append(x)
            self.first_mode.append(x)
            rate, x = rate + len(chain.transitions), x + n - 1
            self.layout.append(self._kept(n))
        self.n_modes = x
        self.terms = self._indices(1)
        square = {_plus(a, b) for a in self.terms for b in self.terms}
        self.sums = sorted(square - {(0,) * x}, key=lambda index: (sum(index), index))

    def _kept(self, n: int) -> dict[str, int]:
        """Rows of s for a chain: names of blocks and where they begin."""
        if n == 1:
            sizes = {}
        elif n == 2:
            sizes = {"speed": 1, "limit": 1}
        elif n == 3:
            sizes = {"speed": 2, "limit": 2, "slow": 4}
        elif n <= MOST_PRODUCTS:
            sizes = {
                "speed": n - 1,
                "limit": n - 1,
                "row": (n - 1) ** 2,
                "per_gap": (n - 1) * (n - 2) // 2,
            }
        else:
            sizes = {
                "speed": n - 1,
                "limit": n,
                "root": n,
                "inverse": n,
                "open": n - 1,
                "mode": n * (n - 1),
            }
        rows = {}
        for name, size in sizes.items():
            rows[name] = self.n_kept
            self.n_kept += size
        return rows

    def _indices(self, times: int) -> list[Index]:
        """All I of the open probability to a power, the constant one first."""
        found = {(0,) * self.n_modes}
        for k, chain in enumerate(self.model.chains):
            own = {(0,) * self.n_modes} | {self.unit(m) for m in self.modes(k)}
            for _ in range(chain.power * times):
                found = {_plus(a, b) for a in found for b in own}
        return sorted(found, key=lambda index: (sum(index), index))

    def modes(self, k: int) -> range:
        """The modes of chain k."""
        return range(self.first_mode[k], self.first_mode[k] + len(self.model.chains[k].states) - 1)

    def speed(self, c: Scalars, mode: int) -> str:
        """Speed of a mode, 1/ms."""
        for k, chain in enumerate(self.model.chains):
            if mode in self.modes(k) and len(chain.states) > 1:
                return c.at("s", self.layout[k]["speed"] + mode - self.first_mode[k])
        raise IndexError(mode)

    def unit(self, mode: int) -> Index:
        """The index that counts one mode once."""
        return tuple(int(m == mode) for m in range(self.n_modes))

    def entries(self, k: int) -> dict[tuple[int, int], int]:
        """(source, target) -> row of q, of chain k."""
        chain = self.model.chains[k]
        index = {s: i for i, s in enumerate(chain.states)}
        return {
            (index[t.source], index[t.target]): self.first_rate[k] + r
            for r, t in enumerate(chain.transitions)
        }

    # --- one visit: rates q -> s

    def two_states(self, c: Scalars, k: int) -> None:
        """Speed and limit of a gate."""
        rows, rates = self.layout[k], self.entries(k)
        up, down = c.at("q", rates[0, 1]), c.at("q", rates[1, 0])
        c.let(f"speed{k}", f"{up} + {down}")
        c.put(c.at("s", rows["speed"]), f"speed{k}")
        c.put(c.at("s", rows["limit"]), f"{up}*reciprocal(speed{k})")

    def three_states(self, c: Scalars, k: int) -> None:
        """Both speeds, the limit, and what projects on the slow mode; doubt where they are close.

        With S the sum of all rates and P the sum over rooted spanning trees (whose terms are also
        the steady state) the speeds are the roots of l^2 - S l + P. (A + fast) / (fast - slow)
        takes a state apart from its limit to its slow part.
        """
        rows, rates = self.layout[k], self.entries(k)
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
        c.put(f"strained{k}", c.choose(close, "1.0", "0.0"))
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

    def products(self, c: Scalars, k: int) -> None:
        """Rows and gaps of a chain of four to six states whose speeds and limit stand in s.

        Row e holds what mode e contributes to the open occupancy for each state's distance from
        its limit.
        """
        n, rows = len(self.model.chains[k].states), self.layout[k]
        speeds = [c.at("s", rows["speed"] + e) for e in range(n - 1)]
        self._gaps(c, k, speeds)
        base = [float(g) for g in self.model.chains[k].conductances]
        rest = _dot(
            [g - base[0] for g in base[1:]],
            [c.at("s", rows["limit"] + i) for i in range(n - 1)],
            base[0],
        )
        c.let(f"rest{k}", rest)
        for i in range(n):
            c.let(f"start{k}_{i}", f"{base[i]!r} - rest{k}")
        for e in range(n - 1):
            name = f"start{k}"
            for number, f in enumerate(_factors(e, n - 1)):
                self._apply(c, k, name, f"row{k}_{e}_{number}", e, f)
                name = f"row{k}_{e}_{number}"
            for i in range(n - 1):
                c.let(f"mode{k}_{e}_{i}", f"{name}_{i + 1} - {name}_0")
        self._complete(c, k, speeds[0], base)

    def _gaps(self, c: Scalars, k: int, speeds: list[str]) -> None:
        """1/(l_e - l_f) for e before f, and doubt where live modes lose too many digits.

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

    def _scaled(self, c: Scalars, k: int, e: int, f: int) -> str:
        """1/(l_f - l_e) as kept."""
        n = len(self.model.chains[k].states)
        pairs = list(itertools.combinations(range(n - 1), 2))
        kept = c.at("s", self.layout[k]["per_gap"] + pairs.index((min(e, f), max(e, f))))
        return kept if f < e else f"-{kept}"

    def _apply(self, c: Scalars, k: int, name: str, new: str, e: int, f: int) -> None:
        """new = name (A + l_f)/(l_f - l_e), a row g: (g A)_i sums rate i -> j times g_j - g_i."""
        n = len(self.model.chains[k].states)
        speed = c.at("s", self.layout[k]["speed"] + f)
        for i in range(n):
            moves = [
                f"{c.at('q', row)}*({name}_{j} - {name}_{i})"
                for (source, j), row in self.entries(k).items()
                if source == i
            ]
            total = " + ".join([f"{speed}*{name}_{i}", *moves])
            c.let(f"{new}_{i}", f"({total})*({self._scaled(c, k, e, f)})")

    def _advance(self, c: Scalars, k: int, name: str, new: str, e: int, f: int) -> None:
        """new = (A + l_f)/(l_f - l_e) name, a column of changes that sum to nothing."""
        n = len(self.model.chains[k].states)
        speed = c.at("s", self.layout[k]["speed"] + f)
        for i in range(n):
            gains = [
                f"{c.at('q', row)}*{name}_{a}" for (a, b), row in self.entries(k).items() if b == i
            ]
            losses = [c.at("q", row) for (a, _), row in self.entries(k).items() if a == i]
            kept = f"({speed} - ({' + '.join(losses)}))*{name}_{i}"
            c.let(f"{new}_{i}", f"({' + '.join([kept, *gains])})*({self._scaled(c, k, e, f)})")

    def _complete(self, c: Scalars, k: int, fastest: str, base: list[float]) -> None:
        """Stores the rows; a mode that is gone at once takes what the others miss at the start."""
        n, rows = len(base), self.layout[k]
        c.let(f"spare{k}", c.choose(f"{fastest}*dt > {GONE!r}", "1.0", "0.0"))
        for i in range(n - 1):
            total = " + ".join(f"mode{k}_{e}_{i}" for e in range(n - 1))
            c.let(f"missed{k}_{i}", f"spare{k}*({base[i + 1] - base[0]!r} - ({total}))")
            for e in range(n - 1):
                extra = f" + missed{k}_{i}" if e == 0 else ""
                c.put(c.at("s", rows["row"] + e * (n - 1) + i), f"mode{k}_{e}_{i}{extra}")

    # --- one run: state x -> amplitudes of the chains' modes

    def amplitudes(self, c: Scalars, k: int) -> None:
        """w{k}_0 and w{k}_j, j = 1..n-1: the chain's open occupancy as a sum of its modes.

        Also names what `end` needs. Element i of x is the occupancy of state i + 1 of the chain.
        """
        chain, n = self.model.chains[k], len(self.model.chains[k].states)
        if n == 1:
            c.let(f"w{k}_0", repr(float(chain.conductances[0])))
        elif n <= 3:
            self._few_amplitudes(c, k, chain)
        elif n <= MOST_PRODUCTS:
            self._row_amplitudes(c, k, chain)
        else:
            self._many_amplitudes(c, k, chain)

    def _few_amplitudes(self, c: Scalars, k: int, chain: Chain) -> None:
        rows, n, first = self.layout[k], len(chain.states), self.first_x[k]
        for i in range(n - 1):
            away = f"{c.at('x', first + i)} - {c.at('s', rows['limit'] + i)}"
            c.let(f"away{k}_{i}", "0.0" if chain.instant else away)
        base = float(chain.conductances[0])
        weights = [float(g) - base for g in chain.conductances[1:]]
        limits = [c.at("s", rows["limit"] + i) for i in range(n - 1)]
        c.let(f"w{k}_0", _dot(weights, limits, base))
        if n == 2:
            c.let(f"w{k}_1", _dot(weights, [f"away{k}_0"]))
            return
        for i in range(2):
            slow = [c.at("s", rows["slow"] + 2 * i + j) for j in range(2)]
            c.let(f"slow{k}_{i}", f"{slow[0]}*away{k}_0 + {slow[1]}*away{k}_1")
        c.let(f"w{k}_2", _dot(weights, [f"slow{k}_0", f"slow{k}_1"]))
        c.let(f"w{k}_1", f"{_dot(weights, [f'away{k}_0', f'away{k}_1'])} - w{k}_2")

    def _row_amplitudes(self, c: Scalars, k: int, chain: Chain) -> None:
        rows, n, first = self.layout[k], len(chain.states), self.first_x[k]
        limits = [c.at("s", rows["limit"] + i) for i in range(n - 1)]
        for i in range(n - 1):
            c.let(f"away{k}_{i}", f"{c.at('x', first + i)} - {limits[i]}")
        base = float(chain.conductances[0])
        weights = [float(g) - base for g in chain.conductances[1:]]
        c.let(f"w{k}_0", _dot(weights, limits, base))
        for e in range(n - 1):
            row = [f"{c.at('s', rows['row'] + e * (n - 1) + i)}*away{k}_{i}" for i in range(n - 1)]
            c.let(f"w{k}_{e + 1}", " + ".join(row))

    def _many_amplitudes(self, c: Scalars, k: int, chain: Chain) -> None:
        rows, n, first = self.layout[k], len(chain.states), self.first_x[k]
        for i in range(1, n):
            c.let(f"x{k}_{i}", c.at("x", first + i - 1))
        c.let(f"x{k}_0", f"1.0 - ({' + '.join(f'x{k}_{i}' for i in range(1, n))})")
        for i in range(n):
            c.let(f"scaled{k}_{i}", f"x{k}_{i}*{c.at('s', rows['inverse'] + i)}")
        for e in range(n - 1):
            parts = [f"{c.at('s', rows['mode'] + i * (n - 1) + e)}*scaled{k}_{i}" for i in range(n)]
            c.let(f"part{k}_{e}", " + ".join(parts))
            c.let(f"w{k}_{e + 1}", f"part{k}_{e}*{c.at('s', rows['open'] + e)}")
        limits = [c.at("s", rows["limit"] + i) for i in range(n)]
        c.let(f"w{k}_0", _dot(chain.conductances, limits))
        start = _dot(chain.conductances, [f"x{k}_{i}" for i in range(n)])
        total = " + ".join(f"w{k}_{e}" for e in range(n))
        c.let(f"miss{k}", f"{total} - ({start})")
        good = f"miss{k}*miss{k} < {GREATEST_MISS**2!r}"
        c.put("doubt", c.choose(good, "doubt", "1.0"))

    def end(self, c: Scalars, k: int, gone: Mapping[int, str]) -> None:
        """The state at the end of a run into y; gone[mode] is 1 - exp(-speed duration)."""
        n, rows, first = len(self.model.chains[k].states), self.layout[k], self.first_x[k]
        modes = [gone[m] for m in self.modes(k)]
        new: list[str] = []
        if n == 2:
            new = [f"{c.at('s', rows['limit'])} + away{k}_0*(1.0 - {modes[0]})"]
        elif n == 3:
            new = [
                f"{c.at('s', rows['limit'] + i)} + (away{k}_{i} - slow{k}_{i})*(1.0 - {modes[0]})"
                f" + slow{k}_{i}*(1.0 - {modes[1]})"
                for i in range(2)
            ]
        elif 3 < n <= MOST_PRODUCTS:
            new = self._project(c, k, modes)
        elif n > MOST_PRODUCTS:
            self._check_modes(c, k)
            for e in range(n - 1):
                c.let(f"last{k}_{e}", f"first{k}_{e}*(1.0 - {modes[e]})")
            for i in range(1, n):
                row = [c.at("s", rows["mode"] + i * (n - 1) + e) for e in range(n - 1)]
                moved = " + ".join(f"{row[e]}*last{k}_{e}" for e in range(n - 1))
                limit = c.at("s", rows["limit"] + i)
                new.append(f"{limit} + {c.at('s', rows['root'] + i)}*({moved})")
        for i, expression in enumerate(new):
            c.let(f"new{k}_{i}", expression)
        for i in range(len(new)):
            c.put(c.at("y", first + i), f"new{k}_{i}")

    def _project(self, c: Scalars, k: int, modes: list[str]) -> list[str]:
        """The state at the end: every mode's part of the distance from the limit, decayed."""
        n, rows = len(modes) + 1, self.layout[k]
        for i in range(1, n):
            c.let(f"part{k}_{i}", f"away{k}_{i - 1}")
        c.let(f"part{k}_0", f"-({' + '.join(f'away{k}_{i}' for i in range(n - 1))})")
        total = [c.at("s", rows["limit"] + i) for i in range(n - 1)]
        for e, gone in enumerate(modes):
            name = f"part{k}"
            for number, f in enumerate(_factors(e, n - 1)):
                self._advance(c, k, name, f"part{k}_{e}_{number}", e, f)
                name = f"part{k}_{e}_{number}"
            c.let(f"left{k}_{e}", f"1.0 - {gone}")
            total = [f"{t} + left{k}_{e}*{name}_{i + 1}" for i, t in enumerate(total)]
        return total

    def _check_modes(self, c: Scalars, k: int) -> None:
        """Doubt where the modes do not add up to the occupancies that they start from."""
        n, rows = len(self.model.chains[k].states), self.layout[k]
        for e in range(n - 1):
            c.let(f"first{k}_{e}", f"part{k}_{e}/{c.at('s', rows['speed'] + e)}")
        for i in range(1, n):
            row = [c.at("s", rows["mode"] + i * (n - 1) + e) for e in range(n - 1)]
            moved = " + ".join(f"{row[e]}*first{k}_{e}" for e in range(n - 1))
            root, limit = c.at("s", rows["root"] + i), c.at("s", rows["limit"] + i)
            c.let(f"miss{k}_{i}", f"{limit} + {root}*({moved}) - x{k}_{i}")
            good = f"miss{k}_{i}*miss{k}_{i} < {GREATEST_MISS**2!r}"
            c.put("doubt", c.choose(good, "doubt", "1.0"))

    # --- the open probability and its square

    def open_probability(self, c: Scalars) -> dict[Index, str]:
        """Coefficient of every term of the product of the chains' powers, by name."""
        product: dict[Index, str] = {}
        for k, chain in enumerate(self.model.chains):
            own = {(0,) * self.n_modes: f"w{k}_0"}
            own |= {self.unit(m): f"w{k}_{j + 1}" for j, m in enumerate(self.modes(k))}
            for times in range(chain.power):
                if not product:
                    product = dict(own)
                else:
                    product = self._product(c, product, own, f"w{k}p{times}")
        return product

    @staticmethod
    def _product(
        c: Scalars, left: Mapping[Index, str], right: Mapping[Index, str], prefix: str
    ) -> dict[Index, str]:
        parts: dict[Index, list[str]] = {}
        for (a, one), (b, two) in itertools.product(left.items(), right.items()):
            parts.setdefault(_plus(a, b), []).append(f"{one}*{two}")
        names = {}
        for number, (index, products) in enumerate(parts.items()):
            names[index] = f"{prefix}_{number}"
            c.let(names[index], " + ".join(products))
        return names

    def square(self, open_terms: Mapping[Index, str]) -> dict[Index, tuple[str, bool]]:
        """Coefficient of every term of the square, and whether it is to be taken twice."""
        once: dict[Index, list[str]] = {}
        twice: dict[Index, list[str]] = {}
        items = list(open_terms.items())
        for i, (a, one) in enumerate(items):
            once.setdefault(_plus(a, a), []).append(f"{one}*{one}")
            for b, two in items[i + 1 :]:
                twice.setdefault(_plus(a, b), []).append(f"{one}*{two}")
        found = {}
        for index in {**once, **twice}:
            cross = " + ".join(twice.get(index, []))
            own = " + ".join(once.get(index, []))
            if own and cross:
                found[index] = (f"{own} + 2.0*({cross})", False)
            else:
                found[index] = (own or cross, not own)
        return found

    def forgotten(self, c: Scalars, name: str, modes: Mapping[int, str]) -> dict[Index, str]:
        """1 - exp(-L t) for every index of the square, from those of the single modes."""
        names = {self.unit(m): text for m, text in modes.items()}
        for number, index in enumerate(self.sums):
            if index in names:
                continue
            unit = next(self.unit(m) for m in range(self.n_modes) if index[m])
            one, rest = names[unit], names[tuple(i - u for i, u in zip(index, unit, strict=True))]
            names[index] = f"{name}_{number}"
            c.let(names[index], f"{one} + {rest} - {one}*{rest}")
        return {index: names[index] for index in self.sums}

    def total_speed(self, c: Scalars, index: Index) -> str:
        """L_I."""
        parts = [
            self.speed(c, m) if times == 1 else f"{float(times)!r}*{self.speed(c, m)}"
            for m, times in enumerate(index)
            if times
        ]
        return " + ".join(parts)


def _factors(e: int, n_modes: int) -> list[int]:
    """The modes f whose factors (A + l_f)/(l_f - l_e) leave mode e alone, in order; speeds descend.

    A slow factor magnifies what rounding left of fast modes by the ratio of speeds. So each is
    followed by the factors of all faster modes again: they take the rest away and do nothing to e.
    """
    order: list[int] = []
    for f in range(n_modes):
        if f != e:
            order.append(f)
            order.extend(range(min(e, f) - 1, -1, -1))
    return order


def _plus(a: Index, b: Index) -> Index:
    return tuple(i + j for i, j in zip(a, b, strict=True))


def _dot(weights: tuple[float, ...] | list[float], names: list[str], base: float = 0.0) -> str:
    """base + sum weight * name, without the zeros and the ones."""
    parts = [repr(base)] if base else []
    for weight, name in zip(weights, names, strict=True):
        if weight == 1.0:
            parts.append(name)
        elif weight:
            parts.append(f"{float(weight)!r}*{name}")
    return f"({' + '.join(parts)})" if parts else "0.0"
