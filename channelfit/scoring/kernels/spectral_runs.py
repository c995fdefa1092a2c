"""From the modes at a voltage to costs: amplitudes of a run, its sums of squares, its end.

See `spectral` for the sum of squares in terms of modes, and for where the modes come from. The text
that these formulas become expects these names of a run: `n` samples of `weight`,
`sum_d` the sum of the data, `gain` = conductance times driving force, pA, or another drive; and
`leak`, pA, where the model has one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from channelfit.model.channel import Chain, ChannelModel
from channelfit.scoring.kernels.scalars import Scalars
from channelfit.scoring.kernels.spectral import (
    GREATEST_MISS,
    ModalSpectrum,
    order_of_factors,
    weighted,
)
from channelfit.scoring.kernels.spectral_layout import MOST_PRODUCTS, Index, plus


class SpectralRuns:
    """The formulas of the runs at one voltage.

    Arguments:
        spectrum: the formulas of the modes there.

    Attributes:
        opening: the term of the current that opens; leaks: those that always are.
    """

    def __init__(self, spectrum: ModalSpectrum) -> None:
        self.spectrum = spectrum
        self.model: ChannelModel = spectrum.model
        rows = list(enumerate(self.model.terms))
        self.opening = next((row for row, term in rows if term.chains), 0)
        self.leaks = [row for row, term in rows if not term.chains]

    def amplitudes(self, c: Scalars, k: int) -> None:
        """Name w{k}_0 and w{k}_j, j = 1..n-1: the modes of the open probability of chain k.

        Also names the values that `end` needs. Element i of x is the occupancy of state i + 1 of
        the chain.
        """
        chain, n = self.model.chains[k], len(self.model.chains[k].states)
        if n == 1:
            c.let(f"w{k}_0", repr(float(chain.conductances[0])))
        elif n <= MOST_PRODUCTS:
            self._few_amplitudes(c, k, chain)
        else:
            self._many_amplitudes(c, k, chain)

    def _few_amplitudes(self, c: Scalars, k: int, chain: Chain) -> None:
        rows, n, first = self.spectrum.layout[k], len(chain.states), self.spectrum.first_x[k]
        for i in range(n - 1):
            away = f"{c.at('x', first + i)} - {c.at('s', rows['limit'] + i)}"
            c.let(f"away{k}_{i}", "0.0" if chain.instant else away)
        base = float(chain.conductances[0])
        weights = [float(g) - base for g in chain.conductances[1:]]
        limits = [c.at("s", rows["limit"] + i) for i in range(n - 1)]
        c.let(f"w{k}_0", weighted(weights, limits, base))
        aways = [f"away{k}_{i}" for i in range(n - 1)]
        if n == 2:
            c.let(f"w{k}_1", weighted(weights, aways))
        elif n == 3:
            for i in range(2):
                slow = [c.at("s", rows["slow"] + 2 * i + j) for j in range(2)]
                c.let(f"slow{k}_{i}", f"{slow[0]}*{aways[0]} + {slow[1]}*{aways[1]}")
            c.let(f"w{k}_2", weighted(weights, [f"slow{k}_0", f"slow{k}_1"]))
            c.let(f"w{k}_1", f"{weighted(weights, aways)} - w{k}_2")
        else:
            for e in range(n - 1):
                row = (c.at("s", rows["row"] + e * (n - 1) + i) for i in range(n - 1))
                products = (f"{one}*{away}" for one, away in zip(row, aways, strict=True))
                c.let(f"w{k}_{e + 1}", " + ".join(products))

    def _many_amplitudes(self, c: Scalars, k: int, chain: Chain) -> None:
        rows, n, first = self.spectrum.layout[k], len(chain.states), self.spectrum.first_x[k]
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
        c.let(f"w{k}_0", weighted(chain.conductances, limits))
        start = weighted(chain.conductances, [f"x{k}_{i}" for i in range(n)])
        total = " + ".join(f"w{k}_{e}" for e in range(n))
        c.let(f"miss{k}", f"{total} - ({start})")
        good = f"miss{k}*miss{k} < {GREATEST_MISS**2!r}"
        c.put("doubt", c.choose(good, "doubt", "1.0"))

    def end(self, c: Scalars, k: int, gone: Mapping[int, str]) -> None:
        """Store the state at the end of a run in y; gone[mode] is 1 - exp(-speed duration)."""
        n, rows, first = (
            len(self.model.chains[k].states),
            self.spectrum.layout[k],
            self.spectrum.first_x[k],
        )
        modes = [gone[m] for m in self.spectrum.modes(k)]
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
        """Return the state at the end: each mode's part of the distance to the limit, decayed."""
        n, rows = len(modes) + 1, self.spectrum.layout[k]
        for i in range(1, n):
            c.let(f"part{k}_{i}", f"away{k}_{i - 1}")
        c.let(f"part{k}_0", f"-({' + '.join(f'away{k}_{i}' for i in range(n - 1))})")
        total = [c.at("s", rows["limit"] + i) for i in range(n - 1)]
        for e, gone in enumerate(modes):
            name = f"part{k}"
            for number, f in enumerate(order_of_factors(e, n - 1)):
                self.spectrum.advance_factor(c, k, name, f"part{k}_{e}_{number}", e, f)
                name = f"part{k}_{e}_{number}"
            c.let(f"left{k}_{e}", f"1.0 - {gone}")
            total = [f"{t} + left{k}_{e}*{name}_{i + 1}" for i, t in enumerate(total)]
        return total

    def _check_modes(self, c: Scalars, k: int) -> None:
        """Doubt where the modes do not add up to the occupancies that they start from."""
        n, rows = len(self.model.chains[k].states), self.spectrum.layout[k]
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
        """Return the coefficient, by name, of every term of the open probability."""
        product: dict[Index, str] = {}
        for k, chain in enumerate(self.model.chains):
            own = {(0,) * self.spectrum.n_modes: f"w{k}_0"}
            own |= {
                self.spectrum.unit(m): f"w{k}_{j + 1}" for j, m in enumerate(self.spectrum.modes(k))
            }
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
            parts.setdefault(plus(a, b), []).append(f"{one}*{two}")
        names = {}
        for number, (index, products) in enumerate(parts.items()):
            names[index] = f"{prefix}_{number}"
            c.let(names[index], " + ".join(products))
        return names

    def square(self, open_terms: Mapping[Index, str]) -> dict[Index, tuple[str, bool]]:
        """Return the coefficient of every term of the square, and whether it is taken twice."""
        once: dict[Index, list[str]] = {}
        twice: dict[Index, list[str]] = {}
        items = list(open_terms.items())
        for i, (a, one) in enumerate(items):
            once.setdefault(plus(a, a), []).append(f"{one}*{one}")
            for b, two in items[i + 1 :]:
                twice.setdefault(plus(a, b), []).append(f"{one}*{two}")
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
        """Name 1 - exp(-L t) for every index of the square, from those of the single modes."""
        names = {self.spectrum.unit(m): text for m, text in modes.items()}
        for number, index in enumerate(self.spectrum.sums):
            if index in names:
                continue
            unit = next(self.spectrum.unit(m) for m in range(self.spectrum.n_modes) if index[m])
            one, rest = names[unit], names[tuple(i - u for i, u in zip(index, unit, strict=True))]
            names[index] = f"{name}_{number}"
            c.let(names[index], f"{one} + {rest} - {one}*{rest}")
        return {index: names[index] for index in self.spectrum.sums}

    def total_speed(self, c: Scalars, index: Index) -> str:
        """Return text of L_I, the speed of the product of modes that an index counts."""
        parts = [
            self.spectrum.speed(c, m)
            if times == 1
            else f"{float(times)!r}*{self.spectrum.speed(c, m)}"
            for m, times in enumerate(index)
            if times
        ]
        return " + ".join(parts)

    # --- sums over the samples of a run

    def decays(self, c: Scalars, prefix: str, time: str) -> dict[int, str]:
        """Name 1 - exp(-l time) for every mode."""
        names = {mode: f"{prefix}_m{mode}" for mode in range(self.spectrum.n_modes)}
        for mode, name in names.items():
            c.let(name, f"decay({self.spectrum.speed(c, mode)}*{time})")
        return names

    def denominators(self, c: Scalars, dt: str) -> None:
        """Store 1/(1 - exp(-L dt)) in `per` for every L of the square; doubled for two terms.

        Two at a time: one reciprocal of their product and two products are cheaper.
        """
        names = self.forgotten(c, "e", self.decays(c, "e", dt))
        square = self.square(dict.fromkeys(self.spectrum.terms, ""))
        factors = [
            (names[index], "2.0*" if square[index][1] else "") for index in self.spectrum.sums
        ]
        for i in range(0, len(factors) - 1, 2):
            (one, doubled_one), (two, doubled_two) = factors[i : i + 2]
            c.let(f"inverse{i}", f"reciprocal({one}*{two})")
            c.put(c.at("per", i), f"{doubled_one}{two}*inverse{i}")
            c.put(c.at("per", i + 1), f"{doubled_two}{one}*inverse{i}")
        if len(factors) % 2:
            (name, doubled) = factors[-1]
            c.put(c.at("per", len(factors) - 1), f"{doubled}reciprocal({name})")

    def geometric_sums(self, c: Scalars, prefix: str, gone: Mapping[int, str]) -> None:
        """Store G(L) in `g` for every L of the square, from each mode's decay in the run."""
        names = self.forgotten(c, prefix, gone)
        for i, index in enumerate(self.spectrum.sums):
            c.put(c.at("g", i), f"{names[index]}*{c.at('per', i)}")

    def place_in_table(self, c: Scalars, index: Index, span: str) -> str:
        """Return 1 + L span, the argument of the table of D(L)."""
        return c.fused(f"({self.total_speed(c, index)})", span, "1.0")

    def add_cost(self, c: Scalars, transforms: Sequence[str]) -> None:
        """Add a run of n samples to the cost, less the squares of the data.

        Arguments:
            transforms: D(L) for every L of the open probability but the constant.
        """
        terms, constant = self.open_probability(c), (0,) * self.spectrum.n_modes
        if self.leaks:
            terms = self._current(c, terms)
        squares = self.square(terms)
        c.variable("squares", f"n*({squares[constant][0]})")
        c.variable("products", f"sum_d*{terms[constant]}")
        for i, index in enumerate(self.spectrum.sums):
            c.put("squares", c.fused(f"({squares[index][0]})", c.at("g", i), "squares"))
        for index, there in zip(self.spectrum.decaying, transforms, strict=True):
            c.put("products", c.fused(terms[index], there, "products"))
        cost = c.at("cost", 0)
        if self.leaks:
            c.put(cost, c.fused("weight", "(squares - 2.0*products)", cost))
        else:
            c.put(cost, c.fused("(weight*gain)", "(gain*squares - 2.0*products)", cost))

    @staticmethod
    def _current(c: Scalars, open_terms: Mapping[Index, str]) -> dict[Index, str]:
        """Return the coefficient of every term of the current; a leak adds to the constant one."""
        names = {}
        for number, (index, coefficient) in enumerate(open_terms.items()):
            names[index] = f"current_{number}"
            c.let(names[index], f"gain*{coefficient}{'' if any(index) else ' + leak'}")
        return names

    def add_cancelled(self, c: Scalars) -> None:
        """Add up the amplitudes that cancel between modes of nearly equal speeds."""
        for row, k in enumerate(self.spectrum.strainable):
            lost = f"weight*gain*gain*n*w{k}_2*w{k}_2"
            some = c.choose(f"{c.at('strained', row)} > 0.0", lost, "0.0")
            c.put(c.at("cancelled", 0), f"{c.at('cancelled', 0)} + {some}")


def name_transform(c: Scalars, coefficients: Sequence[str]) -> None:
    """Name `there`, D(L), the polynomial of d with coefficients from the constant up.

    Even and odd powers apart: two chains of multiplications of half the length.
    """
    c.let("s", "d*d")
    for name, first in (("even", 0), ("odd", 1)):
        *rest, last = coefficients[first::2]
        c.variable(name, last)
        for coefficient in reversed(rest):
            c.put(name, c.fused(name, "s", coefficient))
    c.let("there", c.fused("odd", "d", "even"))
