"""The settings of optimizers and the rules to stop."""

from __future__ import annotations

from channelfit.reading.keys.shapes import Choice, Integer, Key, Keys, Number, Rules

_GENERATIONS = Key(
    Integer(1),
    "How many generations are scored at most; the first, random one counts. It may stand under "
    "`stop` instead.",
    100,
    otherwise="300; hybrid has no limit",
)
_FLIGHT = {
    "inertia": Key(Number(0, 1), "The share of a velocity that stays.", 0.7, 0.729844),
    "cognitive": Key(Number(0, 10), "The pull of a particle's own best place.", 1.5, 1.49618),
    "social": Key(Number(0, 10), "The pull of its leader's best place.", 1.5, 1.49618),
    "speed_limit": Key(
        Number(0, 1), "The longest move, as a share of a parameter's range, above 0.", 0.5, 1.0
    ),
}
_ISLANDS = {
    "islands": Key(Integer(1), "How many populations there are, each of its own.", 4, 1),
    "migrate_every": Key(
        Integer(1), "After how many generations the best go to the next island of a ring.", 20, 10
    ),
    "migrants": Key(
        Integer(1), "How many go; fewer than the population. They replace the worst there.", 4, 2
    ),
}


def _population(default: int, least: int = 1) -> Key:
    return Key(Integer(least), "The candidates of a generation.", 500, default)


#: The settings of each optimizer; `generations` is a rule to stop.
SETTINGS: dict[str, Keys] = {
    keys.name: keys
    for keys in (
        Keys(
            "genetic",
            "tournaments, crossover, mutation, one elite (Ben-Shalom et al. 2012)",
            population=_population(1120),
            generations=_GENERATIONS,
            crossover_rate=Key(
                Number(0, 1),
                "The probability that a pair of parents is crossed.",
                0.8,
                otherwise="0.1, and 0.8 for large populations",
            ),
            mutation_rate=Key(
                Number(0, 1),
                "The probability that a value is drawn anew from its whole range.",
                0.02,
                0.01,
            ),
            **_ISLANDS,
        ),
        Keys(
            "hybrid",
            "wide scans, then least squares from many starts",
            scan=Key(
                Integer(1),
                "The points that are scored in a round.",
                4096,
                otherwise="what suits the time that a score takes",
            ),
            starts=Key(
                Integer(1),
                "How many of these points are refined.",
                32,
                otherwise="16, or twice the number of parameters where that is more",
            ),
            agree=Key(
                Integer(1), "How many independent starts must arrive at the lowest cost.", 4, 3
            ),
            patience=Key(
                Integer(1), "After how many rounds without a gain the search ends anyway.", 6, 4
            ),
            generations=_GENERATIONS,
        ),
        Keys(
            "swarm",
            "particles drawn to their own best place and the swarm's (Kneusel 2014)",
            population=_population(256),
            generations=_GENERATIONS,
            **_FLIGHT,
            **_ISLANDS,
        ),
        Keys(
            "ring",
            "a swarm in which each particle follows its neighbors only (Mussi et al. 2011)",
            population=_population(256),
            generations=_GENERATIONS,
            neighbors=Key(Integer(1), "How many neighbors there are on either side.", 2, 1),
            batch=Key(
                Integer(1),
                "How many particles move at a time, up to the population.",
                32,
                otherwise="all",
            ),
            **_FLIGHT,
            **_ISLANDS,
        ),
        Keys(
            "groups",
            "a swarm led by groups, and seldom by the best of all (Li and Liu 2017)",
            population=_population(256),
            generations=_GENERATIONS,
            group=Key(Integer(1), "The particles of a group.", 8, 16),
            exchange=Key(Integer(1), "In each so many-th turn the best of all leads.", 5, 10),
            **_FLIGHT,
            **_ISLANDS,
        ),
        Keys(
            "differential",
            "differential evolution that adapts its settings (Tanabe and Fukunaga 2013)",
            population=_population(64, 4),
            generations=_GENERATIONS,
            elite=Key(
                Number(0, 1),
                "The share of the population that counts as the best, above 0.",
                0.2,
                0.1,
            ),
        ),
        Keys(
            "cma",
            'CMA-ES with restarts, by pycma: `pip install "channelfit[cma]"`',
            population=_population(32, 4),
            generations=_GENERATIONS,
            step=Key(
                Number(0, 1),
                "The standard deviation of the first descent, as a share of every range, above 0 "
                "and up to a third.",
                0.2,
                0.3,
            ),
        ),
        Keys(
            "asynchronous_ring",
            "the ring in one GPU kernel without barriers, for functions only",
            population=_population(64),
            iterations=Key(Integer(1), "The moves of every particle in a launch.", 200, 100),
            generations=_GENERATIONS,
        ),
    )
}
OPTIMIZER = Keys(
    "optimizer",
    "The method of the search and its settings.",
    name=Key(
        Choice(tuple(SETTINGS)),
        "Which method searches.",
        "genetic",
        otherwise="hybrid; genetic where a population is given, and for functions",
    ),
)
STOP = Keys(
    "stop",
    "Rules that end the search. The first that holds at the end of a generation counts.",
    Rules(),
    True,
    generations=_GENERATIONS,
    cost=Key(Number(), "The target: the search ends when the best cost has come down to it.", 25.0),
    seconds=Key(Number(0), "How many seconds the search may take, above 0.", 60.0),
    evaluations=Key(
        Integer(1), "How many candidates may be scored; a generation is never cut short.", 1_000_000
    ),
    stagnation=Key(
        Integer(1),
        "How many generations in a row may pass without a relative gain above the tolerance.",
        20,
    ),
    tolerance=Key(Number(0), "The relative gain in the best cost that counts.", 1e-4, 1e-6),
)
