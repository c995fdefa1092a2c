"""The output of the amplifier in a step of a clamped channel: a cubic, filtered by its filter."""

from __future__ import annotations

from collections.abc import Callable

from channelfit.scoring.kernels.clamp_rows import OBSERVED
from channelfit.scoring.kernels.clamp_stages import ClampStages
from channelfit.scoring.layout.clamp_grid import LENGTH, RISE
from channelfit.scoring.layout.low_pass import PER_MODE


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
            for row in range(len(OBSERVED)):
                t.put(self.a("before", row), self.a("observed", row))
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

    def _polynomial(self, array: str) -> None:
        """Write the current in the step as a cubic of the part of it that has passed.

        Where the command has just jumped, and the current may have, it is a constant that carries
        the charge.
        """
        t, at = self.t, self.a if array == "a" else self.d
        name, h = ("polynomial", "polynomials")[array == "d"], self.s(LENGTH)
        i0, j0, q0, w0 = (at("before", row) for row in range(4))
        i1, j1, q1, w1 = (at("observed", row) for row in range(4))
        with t.function(name, "The current in a step, a cubic."):
            t.let("h", h)
            t.let("grown", f"{i1} - {i0}")
            t.let("charged", f"({q1} - {q0})/h")
            t.put(at("poly", 0), f"{i0} + {w0}")
            t.put(at("poly", 1), f"h*{j0} + 2.0*(3.0*charged - 2.0*{w0} - {w1})")
            t.put(
                at("poly", 2),
                f"3.0*grown - h*(2.0*{j0} + {j1}) + 3.0*({w0} + {w1} - 2.0*charged)",
            )
            t.put(at("poly", 3), f"h*({j0} + {j1}) - 2.0*grown")
        with t.function(f"{name}Flat", "The current in the step after a jump, a constant."):
            self._constant(at, f"{i1} + ({q1} - {q0})/{h}")

    def _constant(self, at: Callable[[str, int], str], value: str) -> None:
        """Store a constant in place of the cubic."""
        for row, text in enumerate((value, "0.0", "0.0", "0.0")):
            self.t.put(at("poly", row), text)

    def _hold(self) -> None:
        """Write hold: the last current lasts until the next sweep has begun."""
        kinds = (("hold", self.a), ("holdBy", self.d))
        for name, at in kinds if self.free else kinds[:1]:
            with self.t.function(name, "The last current, as a constant."):
                self._constant(at, " + ".join(at("poly", row) for row in range(4)))

    def _at_rest(self) -> None:
        """Write settle: the recorded values where nothing moves, with their derivatives."""
        kinds = (("settle", self.a), ("settleBy", self.d))
        for name, at in kinds if self.free else kinds[:1]:
            with self.t.function(name, "The end of a long rest, at which nothing moves."):
                for n in range(self.n_y):
                    self.t.put(at("rate", n), "0.0")
                self.t.put(at("observed", 1), "0.0")
                self.t.put(at("observed", 3), "0.0")
                self._constant(at, at("observed", 0))
                for m in range(self.n_modes):
                    real, imaginary = (f"m[{2 * m}]", f"m[{2 * m + 1}]")
                    size = f"({real}*{real} + {imaginary}*{imaginary})"
                    self.t.put(at("z", 2 * m), f"-{at('observed', 0)}*{real}/{size}")
                    self.t.put(at("z", 2 * m + 1), f"{at('observed', 0)}*{imaginary}/{size}")

    def _filter(self, array: str) -> None:
        """Write lowPass: the modes of the filter through a step, and the cubic of its output.

        `m` has the poles of all modes and then their residues, `s` beyond its columns the tables of
        `low_pass.step_tables`.
        """
        t, at = self.t, self.a if array == "a" else self.d
        name = ("lowPass", "lowPasses")[array == "d"]

        def output(u: str, now: Callable[[int], str]) -> tuple[str, str]:
            value, rate = [], []
            for k in range(self.n_modes):
                p, r = (f"m[{2 * (k + offset)}]" for offset in (0, self.n_modes))
                pi, ri = (f"m[{2 * (k + offset) + 1}]" for offset in (0, self.n_modes))
                x, y = now(2 * k), now(2 * k + 1)
                value.append(f"{r}*{x} - {ri}*{y}")
                rate.append(f"{r}*({p}*{x} - {pi}*{y} + {u}) - {ri}*({p}*{y} + {pi}*{x})")
            return " + ".join(value), " + ".join(rate)

        with t.function(name, "The filtered current in a step, a cubic."):
            t.let("h", self.s(LENGTH))
            for row in range(4):
                t.let(f"u{row}", at("poly", row))
            value, rate = output("u0", lambda n: at("z", n))
            t.let("o0", value)
            t.let("r0", f"h*({rate})")
            for k in range(self.n_modes):
                w = [self.s(RISE + 1 + k * PER_MODE + j) for j in range(PER_MODE)]
                x, y = at("z", 2 * k), at("z", 2 * k + 1)
                real = " + ".join(f"u{j}*{w[2 + 2 * j]}" for j in range(4))
                imaginary = " + ".join(f"u{j}*{w[3 + 2 * j]}" for j in range(4))
                t.let(f"x{k}", f"{w[0]}*{x} - {w[1]}*{y} + {real}")
                t.let(f"y{k}", f"{w[0]}*{y} + {w[1]}*{x} + {imaginary}")
            t.let("u", "u0 + u1 + u2 + u3")
            value, rate = output("u", lambda n: f"{'xy'[n % 2]}{n // 2}")
            t.let("o1", value)
            t.let("r1", f"h*({rate})")
            for k in range(self.n_modes):
                t.put(at("z", 2 * k), f"x{k}")
                t.put(at("z", 2 * k + 1), f"y{k}")
            t.put(at("poly", 0), "o0")
            t.put(at("poly", 1), "r0")
            t.put(at("poly", 2), "3.0*(o1 - o0) - 2.0*r0 - r1")
            t.put(at("poly", 3), "r0 + r1 - 2.0*(o1 - o0)")
