"""Particle swarms: candidates that fly through the unit cube, drawn to the best places so far.

    v <- inertia v + cognitive r1 (own best - x) + social r2 (leader's best - x),   x <- x + v

with r1, r2 drawn anew for every particle, parameter and move. The leader of a particle follows from
the topology: the best of the whole swarm, of its neighbors on a ring, or of its group.

Sources: J. Kennedy, R. Eberhart, "Particle swarm optimization", ICNN (1995), and, in the order of
the topologies: R. T. Kneusel, "Curve-fitting on graphics processors using particle swarm
optimization", Int J Comput Intell Syst 7 (2014) 213-224; L. Mussi, Y. S. G. Nashed, S. Cagnoni,
"GPU-based asynchronous particle swarm optimization", GECCO (2011) 1555-1562; J. Li, Q. Liu,
"Neural network training acceleration with PSO algorithm on a GPU using OpenCL", HEART (2017).
Weights and first velocities are those of Standard PSO 2006, for all three.

Written once over the array module of the swarm: NumPy on the host, CuPy on a device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.search import philox
from channelfit.search.population import PopulationSearch
from channelfit.search.settings import share, whole

# Clerc and Kennedy's constriction, as Standard PSO 2006 and Mussi et al. write it.
INERTIA, ATTRACTION = 0.729844, 1.49618
MOST_ATTRACTION = 10.0  # a swarm flies apart from about 4 on

# The purpose of a draw: the last word of its counter. The genetic algorithm has 0 to 4.
FLIGHT = 5


class Topology(ABC):
    """A rule that decides which particle leads which; its attributes are settings of the user's."""

    name: ClassVar[str]

    @abstractmethod
    def leaders(self, cost: Any, iteration: int, xp: Any) -> Any:
        """Return the particle (n_particles,) to which each is drawn.

        Arguments:
            cost: (n_particles,) of their own bests, inf if there is none yet; of equal ones the
                particle itself, else the first, leads.
            iteration: the number of moves of the swarm so far.
            xp: the array module of cost.
        """


@dataclass(frozen=True)
class WholeTopology(Topology):
    """The best particle of all leads all."""

    name = "swarm"

    def leaders(self, cost: Any, iteration: int, xp: Any) -> Any:
        """See `Topology.leaders`."""
        return xp.zeros(cost.shape[0], dtype=np.int64) + cost.argmin()


@dataclass(frozen=True)
class RingTopology(Topology):
    """A particle is led by the best among itself and its nearest on either side.

    Arguments:
        neighbors: their number on either side, 1 or more.
    """

    neighbors: int = 1
    name = "ring"

    def __post_init__(self) -> None:
        whole(self.neighbors, "optimizer.neighbors", least=1)

    def leaders(self, cost: Any, iteration: int, xp: Any) -> Any:
        """See `Topology.leaders`."""
        n_particles = cost.shape[0]
        particles = xp.arange(n_particles)
        leader, lowest = particles, cost
        for distance in range(1, min(self.neighbors, n_particles // 2) + 1):
            for shift in (distance, -distance):
                other = xp.roll(cost, shift)
                better = other < lowest
                leader = xp.where(better, xp.roll(particles, shift), leader)
                lowest = xp.where(better, other, lowest)
        return leader


@dataclass(frozen=True)
class GroupTopology(Topology):
    """A particle is led by the best of its group, and now and then by the best of all.

    Arguments:
        group: particles in a group, which follow each other by number; the last may have fewer.
        exchange: the best of all leads in every so many-th iteration, 1 or more.
    """

    group: int = 16
    exchange: int = 10
    name = "groups"

    def __post_init__(self) -> None:
        whole(self.group, "optimizer.group", least=1)
        whole(self.exchange, "optimizer.exchange", least=1)

    def leaders(self, cost: Any, iteration: int, xp: Any) -> Any:
        """See `Topology.leaders`."""
        if iteration % self.exchange == 0:
            return WholeTopology().leaders(cost, iteration, xp)
        n_particles = cost.shape[0]
        n_groups = -(-n_particles // self.group)
        filled = xp.full(n_groups * self.group, np.inf)
        filled[:n_particles] = cost
        firsts = xp.arange(n_groups) * self.group
        best = filled.reshape(n_groups, self.group).argmin(axis=1) + firsts
        return xp.repeat(best, self.group)[:n_particles]


@dataclass(frozen=True)
class SwarmCoefficients:
    """The numbers by which velocities change.

    Attributes:
        inertia: the share of a velocity that stays, 0 .. 1.
        cognitive, social: the pull of a particle's own best and of its leader's, 0 .. 10.
        speed_limit: the longest move along a parameter, as a share of its range, above 0 and up to
            1.

    Raises: InputError for a number out of its range.
    """

    inertia: float = INERTIA
    cognitive: float = ATTRACTION
    social: float = ATTRACTION
    speed_limit: float = 1.0

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            most = MOST_ATTRACTION if name in ("cognitive", "social") else 1.0
            value = share(value, f"optimizer.{name}", most, zero=name != "speed_limit")
            object.__setattr__(self, name, value)


class Swarm(PopulationSearch):
    """A particle swarm by ask and tell.

    The faces of the cube are mirrors: a particle that would leave is thrown back, and its velocity
    along that parameter is reversed. A cost that is not finite never becomes a best. A particle
    is drawn afresh if its leader has no best; one without a best of its own follows its leader
    alone.

    Arguments, besides those of `PopulationSearch`:
        population: the number of particles, of which the first start at `initial`.
        topology: decides which particle leads which; None for `WholeTopology`.
        coefficients: None for those of Standard PSO 2006.
        batch: particles that move at a time, None for all. With fewer, every n-th particle moves
            in a turn and knows the bests of the turns before: with half of the population the even
            and the odd move in turn, with 1 one after the other.

    Raises: InputError for a setting out of its range.
    """

    _state = ("_position", "_velocity", "_own", "_own_cost")

    def __init__(
        self,
        n_parameters: int,
        population: int,
        seed: int,
        topology: Topology | None = None,
        coefficients: SwarmCoefficients | None = None,
        batch: int | None = None,
        xp: Any = np,
        initial: Any = None,
    ) -> None:
        batch = population if batch is None else batch
        super().__init__(n_parameters, population, seed, xp, initial)
        if whole(batch, "optimizer.batch", least=1) > population:
            raise InputError(
                f"must not be above the population of {population}: {batch}", key="optimizer.batch"
            )
        self.topology = WholeTopology() if topology is None else topology
        self.coefficients = coefficients or SwarmCoefficients()
        self.batch = batch
        self._n_turns = -(-population // batch)
        self._position = xp.zeros((n_parameters, population))
        self._velocity = xp.zeros_like(self._position)
        self._own = xp.zeros_like(self._position)
        self._own_cost = xp.full(population, np.inf)
        self._proposed: Any = None

    @property
    def name(self) -> str:
        """The name by which users choose this swarm, that of its topology."""
        return self.topology.name

    @property
    def settings(self) -> dict[str, float]:
        """The settings in force, by the names that a user writes."""
        return {
            "population": self.population_size,
            **vars(self.topology),
            **({} if self._n_turns == 1 else {"batch": self.batch}),
            **vars(self.coefficients),
        }

    @property
    def iteration(self) -> int:
        """The number of times that every particle has moved; the first move places it."""
        return self.generation // self._n_turns

    @property
    def _known(self) -> tuple[Any, Any]:
        return self._own, self._own_cost

    def ask(self) -> Any:
        """See `Optimizer.ask`."""
        if self._proposed is None:
            self._proposed = self._fly()
        return self._proposed[0].copy()

    def tell(self, candidates: Any, cost: Any) -> None:
        """See `Optimizer.tell`; of equal costs the older best stays."""
        xp = self.xp
        self._proposed = self._proposed or self._fly()
        candidates, cost = self._checked(candidates, cost, self._proposed[0].shape)
        moved = self._moving()
        self._position[:, moved], self._velocity[:, moved] = candidates, self._proposed[1]
        better = cost < self._own_cost[moved]
        self._own[:, moved] = xp.where(better, candidates, self._own[:, moved])
        self._own_cost[moved] = xp.where(better, cost, self._own_cost[moved])
        self.generation += 1
        self._proposed = None

    def receive(self, points: np.ndarray, cost: np.ndarray) -> None:
        """See `PopulationSearch.receive`; the worst are particles that have found least."""
        places = self._best_places(self._own_cost, len(cost), worst=True)
        self._position[:, places] = self.xp.asarray(points)
        super().receive(points, cost)
        self._proposed = None

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """See `PopulationSearch.restore`."""
        super().restore(state)
        self._proposed = None

    def _moving(self) -> slice:
        """Return the particles that move in this turn."""
        return slice(self.generation % self._n_turns, None, self._n_turns)

    def _fly(self) -> tuple[Any, Any]:
        """Return places and velocities, (n_parameters, n_moving) each, after this turn's moves."""
        xp, moving, by = self.xp, self._moving(), self.coefficients
        leader = self.topology.leaders(self._own_cost, self.iteration, xp)[moving]
        proven = xp.isfinite(self._own_cost[moving])
        led = xp.isfinite(self._own_cost[leader])
        if self.iteration == 0:
            led = xp.zeros_like(led)
        position = xp.empty((self.n_parameters, leader.shape[0]))
        velocity = xp.empty_like(position)
        # on the host a row at a time stays nearer to the cache; a device needs few launches
        step = 1 if xp is np else self.n_parameters
        for start in range(0, self.n_parameters, step):
            rows = slice(start, min(start + step, self.n_parameters))
            one, two = self._draw(rows)
            here = self._position[rows, moving]
            own = xp.where(proven, self._own[rows, moving], here)
            pull = by.cognitive * one * (own - here)
            pull += by.social * two * (xp.take(self._own[rows], leader, axis=1) - here)
            fast = self._limited(by.inertia * self._velocity[rows, moving] + pull)
            there, fast = self._reflected(here + fast, fast)
            start_at = self._placed(rows, one)
            position[rows] = xp.where(led, there, start_at)
            velocity[rows] = xp.where(led, fast, self._limited((two - start_at) / 2))
        return position, velocity

    def _draw(self, rows: slice) -> tuple[Any, Any]:
        """Draw two uniform numbers for each of some parameters and each moving particle."""
        xp = self.xp
        n_rows = rows.stop - rows.start
        particles = self._count(self.population_size)[self._moving()]
        parameters = xp.repeat(xp.arange(rows.start, rows.stop), particles.shape[0])
        words = self._words(xp.tile(particles, n_rows), parameters.astype(np.uint64), FLIGHT)
        first, second = words[:, :2], words[:, 2:]
        draws = (philox.uniform(pair[:, 0], pair[:, 1]) for pair in (first, second))
        one, two = (draw.reshape(n_rows, -1) for draw in draws)
        return one, two

    def _placed(self, rows: slice, drawn: Any) -> Any:
        """Place particles (n_rows, n_moving) that have no leader to follow."""
        if self._initial is None or self.iteration > 0:
            return drawn
        everywhere = self.xp.zeros((drawn.shape[0], self.population_size))
        everywhere[:, self._moving()] = drawn
        everywhere[:, : self._initial.shape[1]] = self.xp.asarray(self._initial[rows])
        return everywhere[:, self._moving()]

    def _limited(self, velocity: Any) -> Any:
        fastest = self.coefficients.speed_limit
        return self.xp.clip(velocity, -fastest, fastest)

    def _reflected(self, position: Any, velocity: Any) -> tuple[Any, Any]:
        """Reflect positions up to one range beyond a face at it, and reverse their velocities."""
        # particles that stop at the face instead tend to stay there
        xp = self.xp
        below, above = position < 0.0, position > 1.0
        inside = xp.where(below, -position, xp.where(above, 2.0 - position, position))
        return inside, xp.where(below | above, -velocity, velocity)
