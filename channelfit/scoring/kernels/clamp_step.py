"""One step of a clamped channel as text, with the derivatives by all parameters.

Derivatives are those of the discrete step: each stage is differentiated as it stands, with the
derivatives of the matrix and of the masses, and solved with the factors of the stage itself.
"""

from __future__ import annotations

from channelfit.scoring.kernels.clamp_output import ClampOutput
from channelfit.scoring.kernels.clamp_stages import CORRECT
from channelfit.scoring.layout.clamp_grid import COMMAND, LENGTH, RISE
from channelfit.scoring.layout.clamp_scheme import NODE_OF_STAGE, A, D

#: The functions of a leap in order, each with the one of its derivatives.
LEAP_CALLS = [("start", ""), ("factor", "begins"), ("stage0", "stageBy0"), ("leap", "leapBy")]


class ClampStep(ClampOutput):
    """All functions of one model and one clamp; see `clamp_rows.ClampRows` for the arguments."""

    def write(self) -> None:
        """Write all functions."""
        self._circuit()
        self._voltage("start", "y", "slope", starts=True)
        self._voltage("within", "ys", "stage_slope", starts=False)
        self._voltage("drives", "y", "slope", starts=True, first=self.n_rates)
        self._factor()
        for i in range(6):
            if i:
                self._reach(i)
            self._stage(i)
        self._stage(CORRECT)
        self._predict()
        self._leap()
        self._finish()
        self._observe()
        self._polynomial("a")
        self._at_rest()
        self._hold()
        if self.n_modes:
            self._filter("a")
        if self.free:
            self._tangent_start()
            for i in (CORRECT, *range(6)):
                self._tangent_stage(i)
            self._tangent_finish()
            self._polynomial("d")
            if self.n_modes:
                self._filter("d")

    def calls(self) -> list[tuple[str, str]]:
        """Return the functions of a step in order, each with the one of its derivatives."""
        stages = [("stage0", "stageBy0")]
        for i in range(1, 6):
            stages += [(f"reach{i}", ""), ("within", ""), (f"stage{i}", f"stageBy{i}")]
        end = [("finish", "finishBy"), ("drives", ""), ("observe", "observeBy")]
        return [("start", ""), ("factor", "begins"), *stages, *end]

    def multistep_calls(self) -> list[tuple[str, str]]:
        """Return the functions of a step of the multistep method, likewise."""
        return [
            ("predict", "predictBy"),
            ("start", ""),
            ("factor", "begins"),
            ("correct", "correctBy"),
            ("arrive", "arriveBy"),
            ("drives", ""),
            ("observe", "observeBy"),
        ]

    def _tangent_start(self) -> None:
        """Write begins: the derivatives of the step's matrix, for one parameter."""
        t = self.t
        with t.function("begins", "Derivatives of the matrix of a step."):
            v = self.d("y", self.at_v)
            for row in range(self.n_u):
                moved = f"{self.a('slope', row)}*{v} + {self.d('by', row)}"
                bent = f"{self.a('bend', row)}*{v} + {self.d('slope_by', row)}"
                t.put(self.d("moved", row), moved)
                t.put(self.d("bent", row), bent)
            current = self._current(lambda n: self.a("y", n))
            dots = [
                self._projected(k, lambda n: self.d("y", n)) for k in range(len(self.model.chains))
            ]
            moved_drive = [self.d("moved", self.n_rates + j) for j in range(len(self.model.terms))]
            for k in range(len(self.model.chains)):
                t.put(self.d("by_open", k), current.by_open_dot(k, dots, moved_drive))
            slopes = [self.a("slope", self.n_rates + j) for j in range(len(self.model.terms))]
            bends = [self.d("bent", self.n_rates + j) for j in range(len(self.model.terms))]
            t.put(self.d("steepness"), current.by_drive_dot(slopes, bends, dots))

    def _tangent_stage(self, i: int) -> None:
        """Write stageBy: the derivatives of the increments of stage i."""
        t, c = self.t, self._c
        block = "ys" if i > 0 else "y"
        slope = "stage_slope" if i > 0 else "slope"
        push = self._pushes(i, self.d)

        def y(n: int) -> str:
            return self.a(block, n)

        def dy(n: int) -> str:
            return self.d(block, n)

        def k(n: int) -> str:
            return self.a("k", max(i, 0) * self.n_y + n)

        def start(n: int) -> str:
            return self.a("y", n)

        def dstart(n: int) -> str:
            return self.d("y", n)

        def dc(name: str) -> str:
            return self.d("c", name)

        name = "correctBy" if i == CORRECT else f"stageBy{i}"
        with t.function(name, f"Derivatives of the increments of {name}."):
            for n in range(self.n_y) if i > 0 else ():
                reached = self._sum(A[i], self.d, n)
                t.put(self.d("ys", n), f"{self.d('y', n)} + {reached}")
            t.let("per", f"1.0/{self.s(LENGTH)}")
            t.let("g", self.a("factors", "per_step"))
            kv, kp, ke = (k(n) for n in (self.at_v, self.at_p, self.at_e))
            for row in range(self.n_u):
                moved = f"{self.a(slope, row)}*{dy(self.at_v)} + {self.d('by', row)}"
                t.let(f"m{row}", moved if i > 0 else self.d("moved", row))

            def flux(chain: int, state: int, r: int) -> str:
                x, dx = self._source(chain, state, y, "1.0"), self._source(chain, state, dy, "0.0")
                x0 = self._source(chain, state, start, "1.0")
                dx0 = self._source(chain, state, dstart, "0.0")
                kx = self._source(chain, state, k, "0.0")
                return (
                    f"m{r}*{x} + {self.a('u', r)}*{dx} + {self.d('moved', r)}*{kx} + "
                    f"{kv}*({self.d('bent', r)}*{x0} + {self.a('slope', r)}*{dx0})"
                )

            flow = self._flow("f", flux)
            right = {n: f"{flow[n]} + {push(n)}" for n in range(self.n_x)}
            current = self._current(y)
            chains = range(len(self.model.chains))
            parts = [f"{current.by_open(n)}*{self._projected(n, dy)}" for n in chains]
            parts.append(current.by_drive(lambda j: f"m{self.n_rates + j}"))
            v, dv = y(self.at_v), dy(self.at_v)
            parts += [f"{dc('leak')}*{v}", f"{c('leak')}*{dv}"]
            t.let("flows", " + ".join(parts) + f" - {dc('leak_current')}")
            pulls = [f"{self.a('by_open', n)}*{self._projected(n, k)}" for n in chains]
            t.let(
                "pull",
                " + ".join([f"({self.a('factors', 'steepness')} + {c('leak')})*{kv}", *pulls]),
            )
            changes = [f"{self.d('by_open', n)}*{self._projected(n, k)}" for n in chains]
            t.let("change", " + ".join([f"({self.d('steepness')} + {dc('leak')})*{kv}", *changes]))
            t.let("across", f"{y(self.at_p)} + {c('offset')} - {v}")
            t.let("acrossBy", f"{dy(self.at_p)} + {dc('offset')} - {dv}")
            command = self.s(COMMAND + NODE_OF_STAGE[max(i, 0)])
            t.let("lead", f"{command} - {y(self.at_e)}")
            t.let("leadBy", f"0.0 - {dy(self.at_e)}")

            def pushed(name: str, n: int) -> str:
                changed = f"{self.a('stage', name)} - g*{k(n)}"
                return f"{c(name)}*{push(n)} + {dc(name)}*({changed})"

            right[self.at_v] = (
                f"acrossBy - {dc('resistance')}*({self.a('stage', 'current')} + pull) - "
                f"{c('resistance')}*(flows + change) + {pushed('charging', self.at_v)}"
            )
            moving = 0.0 if i == CORRECT else D[i]
            rises = f" + {moving!r}*{self.s(RISE)}*{dc('boost')}" if moving else ""
            right[self.at_p] = (
                f"{dc('fraction')}*(across + {kp} - {kv}) + {c('fraction')}*acrossBy + "
                f"{dc('boost')}*(lead - {ke}) + {c('boost')}*leadBy - {dy(self.at_p)} + "
                f"{pushed('lag', self.at_p)}{rises}"
            )
            right[self.at_e] = f"leadBy + {pushed('tracking', self.at_e)}"
            self._solve(lambda n: self.d("k", max(i, 0) * self.n_y + n), right)

    def _tangent_finish(self) -> None:
        """Write finishBy, the end of the step, and observeBy, its recorded values."""
        t, c = self.t, self._c
        with t.function("finishBy", "Derivatives of the state at the end of a step."):
            self._advance(self.d)
        with t.function("observeBy", "Derivatives of current and charge at the end of a step."):
            self._remember(self.d)
            chains, terms = range(len(self.model.chains)), range(len(self.model.terms))
            v = self.d("y", self.at_v)
            current = self._current(lambda n: self.a("y", n))
            dots = [self._projected(k, lambda n: self.d("y", n)) for k in chains]

            def by(first: str, second: str, j: int) -> str:
                row = self.n_rates + j
                return f"({self.a(first, row)}*{v} + {self.d(second, row)})"

            moved = [by("slope", "by", j) for j in terms]
            bent = [by("bend", "slope_by", j) for j in terms]
            slopes = [self.a("slope", self.n_rates + j) for j in terms]
            parts = [f"{current.by_open(k)}*{dots[k]}" for k in chains]
            parts.append(current.by_drive(moved.__getitem__))
            parts += [f"{self.d('c', 'leak')}*{self.a('y', self.at_v)}", f"{c('leak')}*{v}"]
            t.put(self.d("observed", 0), " + ".join(parts) + f" - {self.d('c', 'leak_current')}")
            rate, drate = self.a("rate", self.at_v), self.d("rate", self.at_v)
            steep = current.by_drive(slopes.__getitem__)
            parts = [
                f"({current.by_drive_dot(slopes, bent, dots)} + {self.d('c', 'leak')})*{rate}",
                f"({steep} + {c('leak')})*{drate}",
            ]
            for k in chains:
                change = self._projected(k, lambda n: self.a("rate", n))
                dchange = self._projected(k, lambda n: self.d("rate", n))
                parts.append(f"({current.by_open_dot(k, dots, moved)})*{change}")
                parts.append(f"{current.by_open(k)}*{dchange}")
            t.put(self.d("observed", 1), " + ".join(parts))
            for row, block in ((2, "y"), (3, "rate")):
                changed = (
                    f"{self.d('c', 'membrane')}*{self.a(block, self.at_v)} + "
                    f"{self.d('c', 'pipette')}*{self.a(block, self.at_p)} - "
                    f"{self.d('c', 'cancelled')}*{self.a(block, self.at_e)}"
                )
                t.put(self.d("observed", row), f"{self._charge(self.d, block)} + {changed}")


class MembraneStep(ClampStep):
    """The same steps, with the membrane potential as output instead of the current.

    It has no charge, and no derivatives by parameters.
    """

    def _observe(self) -> None:
        """Write observe: the membrane's potential at the end of a step, and its slope."""
        t = self.t
        with t.function("observe", "The membrane's potential at the end of a step."):
            self._remember(self.a)
            t.put(self.a("observed", "current"), self.a("y", self.at_v))
            t.put(self.a("observed", "current_rate"), self.a("rate", self.at_v))
            t.put(self.a("observed", "charge"), "0.0")
            t.put(self.a("observed", "charge_rate"), "0.0")
