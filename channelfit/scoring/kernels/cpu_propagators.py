"""Propagators of held voltages, P = expm(A h), as text of kernels with candidates in lanes."""

from __future__ import annotations

from channelfit.scoring.kernels.cpu_channel import LaneChannel
from channelfit.scoring.kernels.fast_rates import GREATEST_NORM
from channelfit.scoring.kernels.integration import TAYLOR_NORM
from channelfit.scoring.kernels.lanes import LOOPED_STATES, UNROLLED_STATES


class Propagators:
    """The functions `createPropagator0` and so on, one for each chain.

    Arguments:
        text: receives the functions.
    """

    def __init__(self, text: LaneChannel) -> None:
        self.text = text

    def write_products(self) -> None:
        """Write functions of matrices too large to be written out wherever they are multiplied."""
        for n in sorted({len(c.states) for c in self.text.model.chains}):
            if n > UNROLLED_STATES:
                self.text.product_function(n)
                self.text.close_columns_function(n)
            if n >= LOOPED_STATES:
                self._vector_functions(n)

    def _vector_functions(self, n: int) -> None:
        """Write products with one row and one column, of too many states to be written out."""
        t, w, size = self.text, self.text.w, n * self.text.lanes
        with t.function(f"observe{n}(c, p)", "c <- c P."):
            w(f"out = np.empty({size}, np.{t.real})")
            t.multiply("c", "p", "out", (1, n, n), t.real)
            with w.block(f"for k in range({size}):"):
                w("c[k] = out[k]")
        with t.function(f"advance{n}(y, step)", "y <- y + F y + b, of the columns (b, F)."):
            w(f"whole, out = np.empty({size}, np.{t.real}), np.empty({size}, np.{t.real})")
            with t.over_lanes():
                w("whole[l] = 1.0")
            with w.block(f"for k in range({size - t.lanes}):"):
                w(f"whole[{t.lanes} + k] = y[k]")
            t.multiply("step", "whole", "out", (n - 1, n, 1), t.real)
            with w.block(f"for k in range({size - t.lanes}):"):
                w("y[k] += out[k]")

    def write(self, k: int) -> None:
        """Write the propagator of chain k, and all that it calls."""
        if len(self.text.model.chains[k].states) == 2:
            self._two_state_propagator(k)
        else:
            self._stiffness(k)
            self._slow_down(k)
            self._propagator(k)

    def _two_state_propagator(self, k: int) -> None:
        """Write P of a relaxation, exact whatever the rates; (1 - inf)/tau may be negative."""
        t, w = self.text, self.text.w
        with t.function(
            f"createPropagator{k}(q, h, m, norm)",
            "P[i, j] = probability of j -> i in h ms, into the first square of m.",
        ):
            with t.over_lanes():
                up, down = t.up_and_down(k)
                w(f"speed = {up} + {down}", "gone = decay(speed*h)/speed")
                w(f"opened, closed = {t.real}({up}*gone), {t.real}({down}*gone)")
                one = t.number(1.0)
                w(f"{t.element(0, 0, 0, 2)} = {one} - opened")
                w(f"{t.element(0, 1, 0, 2)} = opened", f"{t.element(0, 0, 1, 2)} = closed")
                w(f"{t.element(0, 1, 1, 2)} = {one} - closed")

    def _propagator(self, k: int) -> None:
        """Write P = expm(A h) by scaling, Taylor and squaring; off-diagonals never lose a digit."""
        t = self.text
        w, n = t.w, len(t.model.chains[k].states)
        with t.function(
            f"createPropagator{k}(q, h, m, norm)",
            "P[i, j] = probability of j -> i in h ms, into the first square of m.",
        ):
            self._scale(k)
            t.zero_square("m", 1, n)
            if n < LOOPED_STATES:
                self._generator_written_out(k, n)
            else:
                self._generator_in_loops(k, n)
            with w.block("if beyond:"):
                w(f"slowDown{k}(q, h, m, norm)")
            t.taylor(n)
            t.close_columns(0, n)
            # Products of non-negative matrices add no cancellation, and the diagonal closes each
            # column, so slow rates keep their digits through any number of squarings
            # (after Xue and Ye 2013 on exponentials of essentially non-negative matrices).
            w(f"more = m[{6 * t.n_square * t.lanes}:]")
            with w.block("for level in range(n_levels):"):
                t.square_where_wanted(n)

    def _generator_written_out(self, k: int, n: int) -> None:
        """Write the scaled generator, into square 1 of zeros."""
        t, w = self.text, self.text.w
        with t.over_lanes():
            w("scale = h*norm[l]")
            leaving: list[list[str]] = [[] for _ in range(n)]
            for r, (source, _, rate) in enumerate(t.entries(k)):
                w(f"r{r} = {t.at('q', rate)}*scale")
                leaving[source].append(f"r{r}")
            for r, (source, target, _) in enumerate(t.entries(k)):
                w(f"{t.element(1, target, source, n)} = r{r}")
            for j in range(n):
                w(f"{t.element(1, j, j, n)} = -({' + '.join(leaving[j]) or '0.0'})")

    def _generator_in_loops(self, k: int, n: int) -> None:
        """Write the scaled generator of many states, into square 1 of zeros."""
        t, w = self.text, self.text.w
        w(f"leaving = np.zeros({n * t.lanes})")
        with t.over_edges(k) as rate:
            w(f"r = {rate}*(h*norm[l])", f"{t.at('leaving', 'source')} += r")
            w(f"{t.element(1, 'target', 'source', n)} = r")
        with w.block(f"for j in range({n}):"), t.over_lanes():
            w(f"{t.element(1, 'j', 'j', n)} = -{t.at('leaving', 'j')}")

    def _stiffness(self, k: int) -> None:
        """Write the largest exit rate times h: a bound of the norm of A h, halved.

        It ends at GREATEST_NORM, where `slowDown` sees to it that nothing is faster.
        """
        t = self.text
        w, n = t.w, len(t.model.chains[k].states)
        leaving: list[list[str]] = [[] for _ in range(n)]
        for source, _, rate in t.entries(k):
            leaving[source].append(t.at("q", rate))
        with t.function(
            f"stiffness{k}(q, h, norm)", "Largest exit rate times h of each lane, and of all."
        ):
            w("largest = 0.0")
            with t.over_lanes():
                w("fastest = 0.0")
                w(*(f"fastest = max(fastest, {' + '.join(rates)})" for rates in leaving if rates))
                w(f"{t.at('norm', 2)} = min(h*fastest, {GREATEST_NORM[t.real]!r})")
            with t.over_lanes():
                w(f"largest = max(largest, {t.at('norm', 2)})")
            w("return largest")

    def _slow_down(self, k: int) -> None:
        """Write Yosida's approximation, for lanes in which only the ratios of rates matter."""
        t = self.text
        w, n, greatest = t.w, len(t.model.chains[k].states), GREATEST_NORM[t.real]
        with t.function(
            f"slowDown{k}(q, h, m, norm)",
            "Scaled generators of lanes at GREATEST_NORM (`fast_rates`).",
        ):
            w(f"b, r = np.zeros({n * n * t.lanes}), np.empty({n * n * t.lanes})")
            if n < LOOPED_STATES:
                with t.over_lanes():
                    w(f"scale = h*{1.0 / greatest!r}")
                    for source, target, row in t.entries(k):
                        w(f"{t.at('b', target * n + source)} += {t.at('q', row)}*scale")
            else:
                with t.over_edges(k) as rate:
                    w(f"{t.at('b', f'target*{n} + source')} += {rate}*(h*{1.0 / greatest!r})")
            w(f"resolvent(b, r, {n}, {t.lanes})")
            with w.block(f"for j in range({n}):"), t.over_lanes():
                w(f"if {t.at('norm', 2)} < {greatest!r}:", "    continue")
                w(f"scale = {greatest!r}*norm[l]", "leaving = 0.0")
                with w.block(f"for i in range({n}):"), w.block("if i != j:"):
                    w(f"rate = scale*{t.at('r', f'i*{n} + j')}", "leaving += rate")
                    w(f"{t.element(1, 'i', 'j', n)} = rate")
                w(f"{t.element(1, 'j', 'j', n)} = -leaving")

    def _scale(self, k: int) -> None:
        """Write, per lane, the power of two that scales A h down, and the number of squarings."""
        t, w = self.text, self.text.w
        w(f"largest = stiffness{k}(q, h, norm)", "n_levels = 0", "n_common = 64.0")
        w(f"beyond = largest >= {GREATEST_NORM[t.real]!r}")
        with t.over_lanes():
            w("norm[l] = 1.0", f"{t.at('norm', 1)} = 0.0")
        with w.block(f"while largest > {TAYLOR_NORM!r}:"):
            w("largest *= 0.5", "n_levels += 1")
            with t.over_lanes():
                w(f"big = {t.at('norm', 2)}*norm[l] > {TAYLOR_NORM!r}")
                w("norm[l] = 0.5*norm[l] if big else norm[l]")
                levels = t.at("norm", 1)
                w(f"{levels} = {levels} + 1.0 if big else {levels}")
        with t.over_lanes():
            w(f"n_common = min(n_common, {t.at('norm', 1)})")
