"""The matrix of a step of a clamped channel, and its six stages."""

from __future__ import annotations

from collections.abc import Callable

from channelfit.scoring.kernels.clamp_rates import ClampRates
from channelfit.scoring.layout.clamp_grid import (
    AHEAD,
    COMMAND,
    LENGTH,
    PER_STEP,
    PUSH,
    RISE,
    SHARE,
)
from channelfit.scoring.layout.clamp_scheme import GAMMA, NODE_OF_STAGE, ORDER, A, C, D

#: The stage of the multistep method.
CORRECT = -1


class ClampStages(ClampRates):
    """The functions factor, reach, stage, finish and measure."""

    def _factor(self) -> None:
        """Write factor: the matrix of the step, eliminated, from the rates at its beginning."""
        t = self.t

        def x(i: int) -> str:
            return self.a("y", i)

        with t.function("factor", "The matrix of a step, from the rates at its beginning."):
            t.let("g", self.s(PER_STEP))
            for k in range(len(self.model.chains)):
                self._factor_chain(k)
            moving = self._flow(
                "f", lambda k, i, r: f"{self.a('slope', r)}*{self._source(k, i, x, '1.0')}"
            )
            solved = self._solved_chains("z", moving)
            for i in range(self.n_x):
                t.put(self.a("follow", i), solved(i))
            current = self._current(x)
            parts = []
            for k in range(len(self.model.chains)):
                t.put(self.a("by_open", k), current.by_open(k))
                parts.append(f"{self.a('by_open', k)}*{self._projected(k, solved)}")
            steep = current.by_drive(lambda j: self.a("slope", self.n_rates + j))
            t.put(self.a("factors", "steepness"), steep)
            t.put(self.a("factors", "per_step"), "g")
            c = self._c
            t.let(
                "potential",
                f"{c('charging')}*g + 1.0 + {c('resistance')}*({self.a('factors', 'steepness')} + "
                f"{c('leak')} + {' + '.join(parts) or '0.0'})",
            )
            t.let("pipette", f"{c('lag')}*g + 1.0 - {c('fraction')}")
            t.put(self.a("factors", "potential"), "potential")
            t.put(self.a("factors", "pipette"), "pipette")
            determinant = f"potential*pipette + {c('fraction')}"
            t.let("determinant", determinant)
            t.let("tracking", f"{c('tracking')}*g + 1.0")
            t.let("both", "1.0/(determinant*tracking)")
            t.put(self.a("factors", "per_determinant"), "both*tracking")
            t.put(self.a("factors", "per_tracking"), "both*determinant")

    def _factor_chain(self, k: int) -> None:
        t = self.t
        if len(self.model.chains[k].states) == 2:
            rates = "".join(f" + {self.a('u', rate)}" for *_, rate in self.entries(k))
            t.put(self._lu(k, 1, 1), f"1.0/(g{rates})")
            return
        order, pattern = self._elimination(k)
        leaving: dict[tuple[int, int], list[str]] = {place: [] for place in pattern}
        first_to: dict[int, list[str]] = {i: [] for i in order}
        for source, target, rate in self.entries(k):
            q = self.a("u", rate)
            if source:
                leaving[source, source].append(f"+ {q}")
                if target:
                    leaving[target, source].append(f"- {q}")
            else:
                first_to[target].append(q)
        for (i, j), parts in leaving.items():
            own = "g" if i == j else "0.0"
            t.put(self._lu(k, i, j), f"{own} {' '.join(parts)}")
        for place, pick in enumerate(order):
            later, pivot = order[place + 1 :], self._lu(k, pick, pick)
            t.put(pivot, f"1.0/{pivot}")  # columns dominate: no pivot vanishes
            for i in (i for i in later if (i, pick) in pattern):
                t.put(self._lu(k, i, pick), f"{self._lu(k, i, pick)}*{pivot}")
                for j in (j for j in later if (pick, j) in pattern):
                    product = f"{self._lu(k, i, pick)}*{self._lu(k, pick, j)}"
                    t.put(self._lu(k, i, j), f"{self._lu(k, i, j)} - {product}")
        texts = {i: " + ".join(parts) or "0.0" for i, parts in first_to.items()}
        solved = self._substituted(k, f"w{k}_", texts)
        first = self.first_x[k] + k
        total = "1.0"
        for i in range(1, len(self.model.chains[k].states)):
            t.put(self.a("weight", first + i - 1), solved[i])
            total += f" + {solved[i]}"
        last = first + len(self.model.chains[k].states) - 1
        t.put(self.a("weight", last), f"1.0/({total})")

    def _substituted(self, k: int, prefix: str, right: dict[int, str]) -> dict[int, str]:
        """Name the solution of the eliminated equations of chain k, by state."""
        t = self.t
        order, pattern = self._elimination(k)
        names = {i: f"{prefix}{i}" for i in order}
        for place, i in enumerate(order):
            before = [j for j in order[:place] if (i, j) in pattern]
            minus = "".join(f" - {self._lu(k, i, j)}*{names[j]}f" for j in before)
            t.let(f"{names[i]}f", f"({right[i]}){minus}")
        for place in range(len(order) - 1, -1, -1):
            i = order[place]
            later = [j for j in order[place + 1 :] if (i, j) in pattern]
            minus = "".join(f" - {self._lu(k, i, j)}*{names[j]}" for j in later)
            t.let(names[i], f"({names[i]}f{minus})*{self._lu(k, i, i)}")
        return names

    def _solved_chains(self, prefix: str, right: dict[int, str]) -> Callable[[int], str]:
        """Name the increments of all occupancies at a fixed potential; return their names."""
        t, names = self.t, {}
        for k, chain in enumerate(self.model.chains):
            n, first = len(chain.states), self.first_x[k]
            if n == 2:
                t.let(f"{prefix}x{first}", f"({right[first]})*{self._lu(k, 1, 1)}")
                names[first] = f"{prefix}x{first}"
                continue
            texts = {i: right[first + i - 1] for i in range(1, n)}
            solved = self._substituted(k, f"{prefix}{k}_", texts)
            if n == 1:
                continue
            weights = first + k
            total = " + ".join(solved[i] for i in range(1, n))
            t.let(f"{prefix}{k}", f"({total})*{self.a('weight', weights + n - 1)}")
            for i in range(1, n):
                name = f"{prefix}x{first + i - 1}"
                t.let(name, f"{solved[i]} - {self.a('weight', weights + i - 1)}*{prefix}{k}")
                names[first + i - 1] = name
        return names.__getitem__

    def _solve(self, into: Callable[[int], str], right: dict[int, str]) -> None:
        """Store the increments of a stage, from its right sides by row of y."""
        t = self.t

        def f(name: str) -> str:
            return self.a("factors", name)

        solved = self._solved_chains("e", {i: right[i] for i in range(self.n_x)})
        parts = [
            f"{self.a('by_open', k)}*{self._projected(k, solved)}"
            for k in range(len(self.model.chains))
        ]
        pull = " + ".join(parts) or "0.0"
        t.let("ke", f"({right[self.at_e]})*{f('per_tracking')}")
        t.let("rv", f"({right[self.at_v]}) - {self._c('resistance')}*({pull})")
        t.let("rp", f"({right[self.at_p]}) - {self._c('boost')}*ke")
        per = f("per_determinant")
        t.let("kv", f"({f('pipette')}*rv + rp)*{per}")
        t.put(into(self.at_p), f"({f('potential')}*rp - {self._c('fraction')}*rv)*{per}")
        t.put(into(self.at_v), "kv")
        t.put(into(self.at_e), "ke")
        for i in range(self.n_x):
            t.put(into(i), f"{solved(i)} + {self.a('follow', i)}*kv")

    def _reach(self, i: int) -> None:
        """Write reach: the state at which stage i evaluates the equations."""
        with self.t.function(f"reach{i}", f"The state at which stage {i} evaluates the equations."):
            for n in range(self.n_y):
                so_far = self._sum(A[i], self.a, n)
                self.t.put(self.a("ys", n), f"{self.a('y', n)} + {so_far}")

    def _pushes(self, i: int, at: Callable[[str, int], str]) -> Callable[[int], str]:
        """Return the text of what a stage, or the multistep method, adds to a derivative."""
        if i == CORRECT:
            return lambda n: at("push", n)
        return lambda n: f"{self._sum(C[i], at, n)}*per" if i else "0.0"

    def _stage(self, i: int) -> None:
        """Write stage: its increments, from the state that `reach` stored and the rates there.

        CORRECT is the only stage of the multistep method, from the state that `predict` stored.
        """
        t, c = self.t, self._c
        block = "ys" if i > 0 else "y"
        push = self._pushes(i, self.a)

        def y(n: int) -> str:
            return self.a(block, n)

        name = "correct" if i == CORRECT else f"stage{i}"
        with t.function(name, f"The increments of {name}."):
            t.let("per", f"1.0/{self.s(LENGTH)}")
            flow = self._flow(
                "f", lambda k, j, r: f"{self.a('u', r)}*{self._source(k, j, y, '1.0')}"
            )
            current = self._current(y)
            right = {n: f"{flow[n]} + {push(n)}" for n in range(self.n_x)}
            v, p, e = y(self.at_v), y(self.at_p), y(self.at_e)
            t.let("flows", f"{current.text()} + {c('leak')}*{v} - {c('leak_current')}")
            t.let("across", f"{p} + {c('offset')} - {v}")
            command = self.s(COMMAND + NODE_OF_STAGE[max(i, 0)])
            t.let("lead", f"{command} - {e}")
            for name, n in (("charging", self.at_v), ("lag", self.at_p), ("tracking", self.at_e)):
                t.put(self.a("stage", name), push(n))
            t.put(self.a("stage", "current"), "flows")

            def pushed(name: str) -> str:
                return f"{c(name)}*{self.a('stage', name)}"

            moving = 0.0 if i == CORRECT else D[i]
            rise = f" + {moving!r}*{self.s(RISE)}" if moving else ""
            rises = f" + {moving!r}*{self.s(RISE)}*(1.0 + {c('boost')})" if moving else ""
            right[self.at_v] = f"across - {c('resistance')}*flows + {pushed('charging')}"
            right[self.at_p] = (
                f"{command} - {p} + {c('fraction')}*across + "
                f"{c('boost')}*lead + {pushed('lag')}{rises}"
            )
            right[self.at_e] = f"lead + {pushed('tracking')}{rise}"
            self._solve(lambda n: self.a("k", max(i, 0) * self.n_y + n), right)

    def _advance(self, at: Callable[[str, int], str]) -> None:
        """Store the state at the end of the step, and its derivative by time."""
        t = self.t
        t.let("per", f"1.0/{self.s(LENGTH)}")
        for n in range(self.n_y):
            self._shift(at, n)
            last = at("k", 5 * self.n_y + n)
            before = self._sum(C[5], at, n)
            t.put(at("y", n), f"{at('ys', n)} + {last}")
            t.put(at("rate", n), f"({1 / GAMMA!r}*{last} - {before})*per")

    def _shift(self, at: Callable[[str, int], str], n: int) -> None:
        """Store row n of the state as the newest of the past ones."""
        for j in range(ORDER - 1, 0, -1):
            self.t.put(at("past", j * self.n_y + n), at("past", (j - 1) * self.n_y + n))
        self.t.put(at("past", n), at("y", n))

    def _predict(self) -> None:
        """Write predict, the state ahead by extrapolation, and arrive, that after correction."""
        t = self.t
        kinds = (("", self.a), ("By", self.d))[: 1 + bool(self.free)]
        for end, at in kinds:
            with t.function(f"predict{end}", "The state ahead, by extrapolation."):
                for n in range(self.n_y):  # row by row: all at once they would fill the registers
                    for j in range(ORDER):
                        t.let(f"d{n}_{j}", f"{at('past', j * self.n_y + n)} - {at('y', n)}")
                    self._shift(at, n)
                    ahead, push = (
                        " + ".join(f"{self.s(column + j)}*d{n}_{j}" for j in range(ORDER))
                        for column in (AHEAD, PUSH)
                    )
                    t.put(at("y", n), f"{at('y', n)} + ({ahead})")
                    t.put(at("push", n), push)
        for end, at in kinds:
            with t.function(f"arrive{end}", "The state at the end of a step, corrected."):
                for n in range(self.n_y):
                    t.put(at("y", n), f"{at('y', n)} + {at('k', n)}")
                    t.put(at("rate", n), f"{self.s(PER_STEP)}*{at('k', n)} - {at('push', n)}")

    def _leap(self) -> None:
        """Write leap: the potentials that follow a jump of the command at once,
        and nothing else.

        The first stage alone, a linearly implicit Euler step of no length to speak of: potentials
        with a mass of 0 go to their values in the circuit, those that must be charged stay, and so
        do the occupancies. Rates are then those behind the jump. The six stages would look at them
        up to twice as far away as the jump goes, and at slopes from before it.
        """
        for name, at in (("leap", self.a), ("leapBy", self.d))[: 1 + bool(self.free)]:
            with self.t.function(name, "The potentials that follow a jump at once."):
                for n in range(self.n_x, self.n_y):
                    self.t.put(at("y", n), f"{at('y', n)} + {at('k', n)}")

    def _finish(self) -> None:
        """Write finish, the end of the step, and measure, the largest error of a step so far."""
        with self.t.function("finish", "The state at the end of a step."):
            self._advance(self.a)
        self._measure("measure", 5, "")
        self._measure("weigh", 0, f"{self.s(SHARE)}*")

    def _measure(self, name: str, stage: int, factor: str) -> None:
        t = self.t
        with t.function(name, "The largest error of a step so far."):
            t.let("error0", self.a("error"))
            long, full = f"{_PER_MV_AND_MS!r}*{self.s(LENGTH)}", repr(_PER_MV)
            t.let("share", t.choose(f"{long} < {full}", long, full))
            for n in range(self.n_x + 1):
                last = self.a("k", stage * self.n_y + n)
                share = "share*" if n == self.at_v else ""
                t.let(f"size{n}", f"{share}{factor}{self._absolute()}{last})")
                # NaN is the larger one
                larger = t.choose(f"size{n} <= error{n}", f"error{n}", f"size{n}")
                t.let(f"error{n + 1}", larger)
            t.put(self.a("error"), f"error{self.n_x + 1}")


#: The weight of an error of 1 mV of the membrane potential beside one of an occupancy, and that in
#: a step of 1 ms where it is less: behind a jump of the command the potential may move within less
#: than a step, and then the duration of the error counts.
_PER_MV, _PER_MV_AND_MS = 0.01, 100.0
