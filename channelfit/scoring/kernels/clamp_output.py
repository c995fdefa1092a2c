"""The output of the amplifier in a step of a clamped channel: a polynomial of time, filtered."""

from __future__ import annotations

from collections.abc import Callable

from channelfit.scoring.kernels.clamp_rows import OBSERVED
from channelfit.scoring.kernels.clamp_stages import ClampStages
from channelfit.scoring.layout.clamp_grid import LENGTH, PAST, PER_PAST, WIDTH
from channelfit.scoring.layout.low_pass import N_POLY, PER_MODE


class ClampOutput(ClampStages):
    """The functions observe, polynomial, hold, settle and lowPass."""

    def _charge(self, at: Callable[[str, int], str], block: str) -> str:
        """Return the charge on membrane and pipette, less what is cancelled, or its derivative."""
        c = self._c
        return (
            f"{c('membrane')}*{at(block, self.at_v)} + {c('pipette')}*{at(block, self.at_p)} - "
            f"{c('cancelled')}*{at(block, self.at_e)}"
        )

    def _observe(self) -> None:
        """Write observe: the current and the charge at the end of a step, and their slopes."""
        t, c = self.t, self._c
        with t.function("observe", "Current and charge at the end of a step."):
            self._remember(self.a)
            current = self._current(lambda n: self.a("y", n))
            leak = f"{c('leak')}*{self.a('y', self.at_v)} - {c('leak_current')}"
            t.put(self.a("observed", "current"), f"{current.text()} + {leak}")
            steep = current.by_drive(lambda j: self.a("slope", self.n_rates + j))
            parts = [f"({steep} + {c('leak')})*{self.a('rate', self.at_v)}"]
            for k in range(len(self.model.chains)):
                change = self._projected(k, lambda n: self.a("rate", n))
                parts.append(f"{current.by_open(k)}*{change}")
            t.put(self.a("observed", "current_rate"), " + ".join(parts))
            t.put(self.a("observed", "charge"), self._charge(self.a, "y"))
            t.put(self.a("observed", "charge_rate"), self._charge(self.a, "rate"))

    def _remember(self, at: Callable[[str, int], str]) -> None:
        """Store the observed values before those of this step are."""
        for later, block in (("before", "earlier"), ("observed", "before")):
            for row in range(len(OBSERVED)):
                self.t.put(at(block, row), at(later, row))

    def _polynomial(self, array: str) -> None:
        """Write the current in a step as a polynomial of the part of it that has passed.

        It is that of degree five through values and slopes at both ends and at the beginning of the
        step before; the charging current is the derivative of such a polynomial of the charge.
        Where the command has just jumped, and the current may have, it is a straight line that ends
        in value and carries the charge.
        """
        t, at = self.t, self.a if array == "a" else self.d
        name, h = ("polynomial", "polynomials")[array == "d"], self.s(LENGTH)
        with t.function(name, "The current in a step, a polynomial of degree five."):
            t.let("h", h)
            t.let("per", "1.0/h")
            t.let("r", self.s(PAST))
            t.let("steep", f"2.0*r*(1.0 + r)*(1.0 + 2.0*r)*{self.s(PER_PAST)}")
            i, q = (self._through(n, row, at) for n, row in (("i", 0), ("q", 2)))
            t.put(at("poly", 0), f"{i[0]} + {q[1]}*per")
            for k in range(1, N_POLY):
                charging = f" + {k + 1}.0*{q[k + 1]}*per" if k + 1 < N_POLY else ""
                t.put(at("poly", k), f"{i[k]}{charging}")
        i1, j1, q1, w1 = (at("observed", row) for row in range(4))
        with t.function(f"{name}Behind", "The current in the step after a jump, a straight line."):
            t.let("rise", f"{h}*{j1}")
            t.let("more", f"2.0*(({q1} - {at('before', 2)})/{h} - {w1})")
            self._line(at, f"{i1} + {w1} - rise + more", "rise - more")

    def _through(self, name: str, row: int, at: Callable[[str, int], str]) -> list[str]:
        """Name the coefficients of the polynomial through an observed value and its slope."""
        t = self.t
        (x0, y0), (x1, y1), (x2, y2) = (
            (at(block, row), at(block, row + 1)) for block in ("before", "observed", "earlier")
        )
        c = [f"{name}{k}" for k in range(N_POLY)]
        t.let(f"{name}grown", f"{x1} - {x0}")
        t.let(f"{name}cubic", f"h*({y0} + {y1}) - 2.0*{name}grown")
        t.let(f"{name}square", f"3.0*{name}grown - h*(2.0*{y0} + {y1})")
        t.let(c[0], x0)
        t.let(c[1], f"h*{y0}")
        square, cubic = f"{name}square", f"{name}cubic"
        off = f"{x2} - {c[0]} + r*({c[1]} - r*({square} - r*{cubic}))"
        t.let(f"{name}off", f"({off})*{self.s(PER_PAST)}")
        slope = f"h*{y2} - {c[1]} + r*(2.0*{square} - 3.0*r*{cubic})"
        t.let(c[5], f"({slope})*{self.s(PER_PAST)} + steep*{name}off")
        t.let(f"{name}bend", f"{name}off + r*{c[5]}")
        t.let(c[4], f"{name}bend - 2.0*{c[5]}")
        t.let(c[3], f"{cubic} + {c[5]} - 2.0*{name}bend")
        t.let(c[2], f"{square} + {name}bend")
        return c

    def _line(self, at: Callable[[str, int], str], value: str, slope: str = "0.0") -> None:
        """Store a straight line, or a constant, in place of the polynomial."""
        for row, text in enumerate((value, slope, *["0.0"] * (N_POLY - 2))):
            self.t.put(at("poly", row), text)

    def _hold(self) -> None:
        """Write hold: the last current lasts until the next sweep has begun."""
        kinds = (("hold", self.a), ("holdBy", self.d))
        for name, at in kinds if self.free else kinds[:1]:
            with self.t.function(name, "The last current, as a constant."):
                value = " + ".join(at("poly", row) for row in range(N_POLY))
                self._line(at, value)

    def _at_rest(self) -> None:
        """Write settle: the recorded values where nothing moves, with their derivatives."""
        kinds = (("settle", self.a), ("settleBy", self.d))
        for name, at in kinds if self.free else kinds[:1]:
            with self.t.function(name, "The end of a long rest, at which nothing moves."):
                for n in range(self.n_y):
                    self.t.put(at("rate", n), "0.0")
                self.t.put(at("observed", 1), "0.0")
                self.t.put(at("observed", 3), "0.0")
                self._line(at, at("observed", 0))
                for m in range(self.n_modes):
                    real, imaginary = (f"m[{2 * m}]", f"m[{2 * m + 1}]")
                    size = f"({real}*{real} + {imaginary}*{imaginary})"
                    self.t.put(at("z", 2 * m), f"-{at('observed', 0)}*{real}/{size}")
                    self.t.put(at("z", 2 * m + 1), f"{at('observed', 0)}*{imaginary}/{size}")

    def _filter(self, array: str) -> None:
        """Write lowPass: the modes of the filter through a step, and the polynomial of its output.

        `m` has the poles of all modes and then their residues, `s` beyond its columns the tables of
        `low_pass.step_tables`.
        """
        t, at = self.t, self.a if array == "a" else self.d
        name = ("lowPass", "lowPasses")[array == "d"]

        def output(end: int, now: Callable[[int], str]) -> None:
            """Name the output at an end of the step, and its first two derivatives."""
            value, rate, bend = [], [], []
            for k in range(self.n_modes):
                p, r = (f"m[{2 * (k + offset)}]" for offset in (0, self.n_modes))
                pi, ri = (f"m[{2 * (k + offset) + 1}]" for offset in (0, self.n_modes))
                x, y = now(2 * k), now(2 * k + 1)
                a, b = f"a{end}_{k}", f"b{end}_{k}"
                t.let(a, f"h*({p}*{x} - {pi}*{y} + v{end})")
                t.let(b, f"h*({p}*{y} + {pi}*{x})")
                value.append(f"{r}*{x} - {ri}*{y}")
                rate.append(f"{r}*{a} - {ri}*{b}")
                bend.append(f"{r}*({p}*{a} - {pi}*{b} + s{end}) - {ri}*({p}*{b} + {pi}*{a})")
            t.let(f"o{end}", " + ".join(value))
            t.let(f"r{end}", " + ".join(rate))
            t.let(f"c{end}", f"h*({' + '.join(bend)})")

        with t.function(name, "The filtered current in a step, a polynomial of degree five."):
            t.let("h", self.s(LENGTH))
            for row in range(N_POLY):
                t.let(f"u{row}", at("poly", row))
            t.let("v0", "u0")
            t.let("s0", "u1")
            t.let("v1", " + ".join(f"u{row}" for row in range(N_POLY)))
            t.let("s1", " + ".join(f"{row}.0*u{row}" for row in range(1, N_POLY)))
            output(0, lambda n: at("z", n))
            for k in range(self.n_modes):
                w = [self.s(WIDTH + k * PER_MODE + j) for j in range(PER_MODE)]
                x, y = at("z", 2 * k), at("z", 2 * k + 1)
                real = " + ".join(f"u{j}*{w[2 + 2 * j]}" for j in range(N_POLY))
                imaginary = " + ".join(f"u{j}*{w[3 + 2 * j]}" for j in range(N_POLY))
                t.let(f"x{k}", f"{w[0]}*{x} - {w[1]}*{y} + {real}")
                t.let(f"y{k}", f"{w[0]}*{y} + {w[1]}*{x} + {imaginary}")
            output(1, lambda n: f"{'xy'[n % 2]}{n // 2}")
            for k in range(self.n_modes):
                t.put(at("z", 2 * k), f"x{k}")
                t.put(at("z", 2 * k + 1), f"y{k}")
            t.let("grown", "o1 - o0 - r0 - 0.5*c0")
            t.let("turned", "r1 - r0 - c0")
            t.let("bent", "c1 - c0")
            whole = ["o0", "r0", "0.5*c0", "10.0*grown - 4.0*turned + 0.5*bent"]
            whole += ["7.0*turned - 15.0*grown - bent", "6.0*grown - 3.0*turned + 0.5*bent"]
            for row, text in enumerate(whole):
                t.put(at("poly", row), text)
