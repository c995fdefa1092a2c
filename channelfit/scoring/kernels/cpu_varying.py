"""Steps at voltages that vary, in float64 and of order four, with candidates in lanes.

The command voltage of a step is in `at`, at the NODES of `problem.run_tree`.
"""

from __future__ import annotations

from typing import Protocol

from channelfit.model.channel import RATE_FLOOR
from channelfit.problem.run_tree import END, GAUSS, MIDDLE, QUARTERS
from channelfit.scoring.kernels.cpu_channel import LaneChannel
from channelfit.scoring.kernels.integration import LESS, MORE, STIFF, TAYLOR, TAYLOR_NORM
from channelfit.scoring.kernels.lanes import LOOPED_STATES


def steps_for(text: LaneChannel) -> Steps:
    """Return the steps of a model: chains of two states relax, and wider ones take Magnus steps."""
    if text.model.relaxes:
        return RelaxationSteps(text)
    wider = MagnusSteps(text)
    if len(text.model.chains) == 1:
        return wider
    return MixedSteps(text, RelaxationSteps(text), wider)


class Steps(Protocol):
    """The text of a run at a varying voltage.

    Attributes:
        n_rates: rows of rates that a step keeps.
    """

    n_rates: int

    def write(self) -> None:
        """Write the functions that a step calls."""

    def begin(self) -> None:
        """Write the beginning of a run."""

    def step(self) -> None:
        """Write one step, from the nodes in `at`."""


class MixedSteps:
    """Chains of two states beside wider ones; they do not depend on each other.

    Arguments:
        text: receives the steps.
        relaxing, wider: the steps of both kinds of chain.
    """

    def __init__(self, text: LaneChannel, relaxing: Steps, wider: Steps) -> None:
        self.text, self.relaxing, self.wider = text, relaxing, wider
        self.n_rates = relaxing.n_rates + wider.n_rates

    def write(self) -> None:
        """Write the functions that a step calls."""
        self.relaxing.write()
        self.wider.write()

    def begin(self) -> None:
        """Write the beginning of a run, with rates of their own for both kinds."""
        self.relaxing.begin()
        self.text.w(f"wider = q[{self.relaxing.n_rates * self.text.lanes}:]")
        self.wider.begin()

    def step(self) -> None:
        """Write one step of both kinds."""
        self.relaxing.step()
        self.wider.step()


class RelaxationSteps:
    """Chains of two states: x' = lambda (X - x), X the limit and lambda the speed at each voltage.

    With u the integral of lambda from a time to the end of the step, x is exp(-L) x plus the
    integral of exp(-u) X over u from 0 to L. X is taken as the parabola in u through start, middle
    and end, L and u by Simpson's parabola: order four where the chain is slow, and no lag where it
    is fast, since X at the end enters exactly.

    Arguments:
        text: receives the steps.
    """

    def __init__(self, text: LaneChannel) -> None:
        self.text = text
        self.n_rates = 3 * text.n_rates
        self.gates = [k for k, chain in enumerate(text.model.chains) if len(chain.states) == 2]

    def begin(self) -> None:
        """Write the beginning of a run, at which instant gates are at their limits."""
        t, w, size = self.text, self.text.w, self.text.n_rates * self.text.lanes
        names = ("start", "middle", "end")
        w(*(f"{name} = q[{k * size}:{(k + 1) * size}]" for k, name in enumerate(names)))
        with w.block("if n > 0:"):
            w("createQmat(nodes[0], theta, end, status)", "createLimits(end)")
            for (_, limit), k in zip(self._pairs(), self.gates, strict=True):
                if t.model.chains[k].instant:
                    with t.over_lanes():
                        w(f"{t.at('y', t.first_x[k])} = {t.at('end', limit)}")

    def write(self) -> None:
        """Write the functions that a step calls."""
        t, w = self.text, self.text.w
        with t.function("createLimits(q)", "Rates (up, down) of each chain into (speed, limit)."):
            with t.over_lanes():
                for up, down in self._pairs():
                    w(f"speed = {t.at('q', up)} + {t.at('q', down)}")
                    w(
                        f"{t.at('q', down)} = {t.at('q', up)}/speed",
                        f"{t.at('q', up)} = speed",
                    )
        with t.function(
            "relax(start, middle, end, h, y)",
            "One step of h ms from (speed, limit) at three times.",
        ):
            with t.over_lanes():
                pairs = zip(self._pairs(), self.gates, strict=True)
                for (speed, limit), k in pairs:
                    x = t.at("y", t.first_x[k])
                    self._relax(x, speed, limit, t.model.chains[k].linear)

    def _pairs(self) -> list[tuple[int, int]]:
        """Return rows of q of (opening, closing) for every chain of two states."""
        return [self.text.opening_and_closing(k) for k in self.gates]

    def _relax(self, x: str, speed: int, limit: int, linear: bool) -> None:
        t, w = self.text, self.text.w
        s0, s1, s2 = (t.at(name, speed) for name in ("start", "middle", "end"))
        x0, x1, x2 = (t.at(name, limit) for name in ("start", "middle", "end"))
        w(f"whole, half = relaxations({s0}, {s1}, {s2}, h)", "half = within(whole, half)")
        w("left = exp(-whole)", "j0, j1, j2 = moments(whole, left)")
        w("rest = whole - half", "inverse = 1.0/(half*whole*rest)")
        w(f"slope = ({x1} - {x2})*(inverse*whole*rest)")
        w(f"bend = (({x0} - {x2})*(inverse*half*rest) - slope)*(inverse*half*whole)")
        w(f"new = {x}*left + {x2}*j0 + slope*j1 + bend*(j2 - half*j1)")
        w(f"{x} = new" if linear else f"{x} = min(max(new, 0.0), 1.0)")

    def step(self) -> None:
        """Write one step, from the nodes in `at`."""
        w = self.text.w
        w("start, end = end, start", f"createQmat(at[{MIDDLE}], theta, middle, status)")
        w("createLimits(middle)", f"createQmat(at[{END}], theta, end, status)", "createLimits(end)")
        w("relax(start, middle, end, h, y)")


class MagnusSteps:
    """Schemes of three states or more: commutator-free Magnus, two exponentials a step.

    Arguments:
        text: receives the steps; it must have the propagators.
    """

    def __init__(self, text: LaneChannel) -> None:
        self.text = text
        self.schemes = [k for k, chain in enumerate(text.model.chains) if len(chain.states) > 2]
        self.alone = len(text.model.chains) == 1
        self.n_rates = (3 if self.alone else 2) * text.n_rates

    @property
    def _rates(self) -> str:
        """The array of rates that a step may overwrite."""
        return "q" if self.alone else "wider"

    def begin(self) -> None:
        """Write the beginning of a run: room for the state in quarters of a step."""
        self.text.w(f"y2 = z[{3 * self.text.widest * self.text.lanes}:]")

    def step(self) -> None:
        """Write one step, from the nodes in `at`; where a state empties within it, in quarters.

        Order four is lost where a rate is fast against the step; quarters bring the error back
        under 1e-4 of the largest current, at four times the price.
        """
        t = self.text
        w, state = t.w, t.n_x * t.lanes
        with w.block(f"for i in range({state}):"):
            w("y2[i] = y[i]")
        tail = "m, z, norm, status"
        w(f"largest = magnus(at[{GAUSS}], at[{GAUSS + 1}], h, theta, {self._rates}, y, {tail})")
        with w.block(f"if largest > {STIFF!r}:"):
            with t.over_lanes():
                w(f"{t.at('norm', 4)} = {t.at('norm', 3)}")
            with w.block("for i in range(4):"):
                at = f"at[{QUARTERS} + 2*i], at[{QUARTERS + 1} + 2*i]"
                w(f"magnus({at}, 0.25*h, theta, {self._rates}, y2, {tail})")
            with t.over_lanes():
                w(f"stiff = {t.at('norm', 4)} > {STIFF!r}")
                for i in range(t.n_x):
                    w(f"{t.at('y', i)} = {t.at('y2', i)} if stiff else {t.at('y', i)}")

    def write(self) -> None:
        """Write the functions of a step."""
        t = self.text
        for k in self.schemes:
            self._exponential(k)
        w, size = t.w, t.n_rates * t.lanes
        with t.function(
            "magnus(v1, v2, h, theta, q, y, m, z, norm, status)",
            "A step of h ms from the voltages at its Gauss points; the largest exit rate times h.",
        ):
            w(f"more, less = {MORE!r}*h, {LESS!r}*h")
            w(f"early, late = q[:{size}], q[{size}:]")
            w("createQmat(v1, theta, early, status)", "createQmat(v2, theta, late, status)")
            with w.block(f"for i in range({size}):"):
                # Where a rate changes more than 14-fold within a step a combination could turn
                # negative; cut at the floor it stays a rate.
                w("first, second = early[i], late[i]")
                w(f"early[i] = max(more*first + less*second, {RATE_FLOOR!r})")
                w(f"late[i] = max(less*first + more*second, {RATE_FLOOR!r})")
            with t.over_lanes():
                w(f"{t.at('norm', 3)} = 0.0")
            for half in ("early", "late"):
                for k in self.schemes:
                    w(f"exponential{self._suffix(k)}({half}, y, m, z, norm)")
                    with t.over_lanes():
                        w(f"{t.at('norm', 3)} += {t.at('norm', 2)}")
            w("largest = 0.0")
            with t.over_lanes():
                w(f"largest = max(largest, {t.at('norm', 3)})")
            w("return largest")

    def _suffix(self, k: int) -> str:
        return "" if self.alone else str(k)

    def _exponential(self, k: int) -> None:
        """Write exp(A) p: Taylor on the vector where the norm allows, else the full propagator.

        Each lane takes the one that its own norm asks for, whatever its neighbors need.
        """
        t, w = self.text, self.text.w
        n, first = len(t.model.chains[k].states), t.first_x[k]
        with t.function(
            f"exponential{self._suffix(k)}(q, y, m, z, norm)",
            "y <- exp(A) y, A from rates times h.",
        ):
            w(f"largest = stiffness{k}(q, 1.0, norm)")
            with w.block(f"if largest > {TAYLOR_NORM!r}:"):
                w(f"createPropagator{k}(q, 1.0, m, norm)")
                with t.over_lanes():
                    self._whole_state(n, first)
                    if n >= LOOPED_STATES:
                        w(*(f"{t.at('z', i)} = x{i}" for i in range(n)))
                    for i in range(1, n if n < LOOPED_STATES else 0):
                        terms = " + ".join(f"{t.element(0, i, j, n)}*x{j}" for j in range(n))
                        w(f"{t.at('z', 2 * n + i)} = {terms}")
                if n >= LOOPED_STATES:
                    w(f"moved = z[{2 * n * t.lanes}:]")
                    t.multiply("m", "z", "moved", (n, n, 1), "float64")
            with t.over_lanes():
                self._whole_state(n, first)
                w(*(f"{t.at('z', i)} = x{i}" for i in range(n)))
                w(*(f"{t.at('z', n + i)} = x{i}" for i in range(n)))
            with w.block(f"for degree in range(1, {len(TAYLOR)}):"):
                w("share = 1.0/degree")
                with t.over_lanes():
                    w(*(f"x{i} = share*{t.at('z', i)}" for i in range(n)))
                    w(*(f"dx{i} = 0.0" for i in range(n)))
                    for source, target, rate in t.entries(k):
                        w(f"flux = {t.at('q', rate)}*x{source}")
                        w(f"dx{source} -= flux", f"dx{target} += flux")
                    w(*(f"{t.at('z', i)} = dx{i}" for i in range(n)))
                    w(*(f"{t.at('z', n + i)} += dx{i}" for i in range(n)))
            with t.over_lanes():
                w(f"stiff = {t.at('norm', 2)} > {TAYLOR_NORM!r}")
                for i in range(1, n):
                    choice = f"{t.at('z', 2 * n + i)} if stiff else {t.at('z', n + i)}"
                    w(f"{t.at('y', first + i - 1)} = {choice}")

    def _whole_state(self, n: int, first: int) -> None:
        t = self.text
        t.w(*(f"x{i} = {t.at('y', first + i - 1)}" for i in range(1, n)))
        t.w(f"x0 = 1.0 - ({' + '.join(f'x{i}' for i in range(1, n))})")
