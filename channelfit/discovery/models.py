"""A model for each scheme: its rates, their parameters, and what a fitted parent says."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from channelfit.discovery.schemes import Edge, Scheme
from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model
from channelfit.problem.clamp import words_of_clamps
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.waves import Constant, Ramp, Segment
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError
from channelfit.reading.keys import KEYS
from channelfit.reading.keys.discover import RATE
from channelfit.search.fit_file import first_temperature, plan_search
from channelfit.search.plan import FitPlan
from channelfit.search.space import SearchSpace, share_of_range

#: Keys of the model that those of a scheme replace.
_REPLACED = ("name", "description", "source", "states", "rates", "gates")
_WORD = re.compile(r"[A-Za-z_]\w*")
#: Keys of the fit section that say how one scheme is searched.
_OF_ONE = ("start", "discover", "optimizer", "stop", "seeds", "name", "description", "source")
#: Models that are kept, each with its file.
_MODELS = 1000
_Made: TypeAlias = tuple[dict[str, Any], ChannelModel]
#: The height of a stair that stands for a part of a ramp, mV.
_STAIR_MV = 5.0
#: Rates, 1/ms, between which a scan draws each rate at the ends of the command.
_SLOWEST, _FASTEST = 1e-5, 1e2
#: Rates, 1/ms, at which a child leaves a state that its parent does not have, each with the share
#: of the time that is spent there; and rates of a transition that its parent does not have. The
#: first of each leave the currents as they are.
_LEAVING = ((0.1, 1e-6), (0.01, 0.05), (0.1, 0.05), (1.0, 0.05), (10.0, 0.05))
_NEW = tuple((size, 0.0) for size in (1e-7, 1e-5, 1e-3, 1e-1))


@dataclass(frozen=True, eq=False)
class SchemeModels:
    """Makes the plan of a fit for every scheme from the plan of one.

    Attributes:
        plan: of the fit file, with its data.
        rate, parameters: of one transition, as the section `discover` has them.
        reversible: whether cycles keep microscopic reversibility.
        chooses: whether rates may be found not to depend on the voltage.
    """

    plan: FitPlan
    rate: str
    parameters: Mapping[str, dict[str, Any]]
    reversible: bool
    chooses: bool = False

    @classmethod
    def read(cls, plan: FitPlan, section: Section) -> SchemeModels:
        """Read how rates are written from the section `discover`.

        Raises InputError: a key that cannot be used, or a model that is no scheme of one current.
        """
        section.expect(KEYS["discover"])
        if plan.document.get("currents") is not None or "model" in plan.document:
            raise InputError(
                "has several currents, or the printed form; a model with `current` is needed",
                plan.model_file,
            )
        levels = (plan.document.get("current") or {}).get("open")
        if isinstance(levels, Mapping) and set(levels.values()) != {1}:
            raise InputError(
                "open states of schemes have the whole conductance; a list of them is needed",
                plan.model_file,
                "current.open",
            )
        plan.problem.model.refuse_gating(
            "schemes are compared by what flows through them, and charges name transitions of one"
        )
        rows = dict(section.rows("parameters"))
        for name, row in rows.items():
            Section(row, section.file, section.path(f"parameters.{name}")).expect(KEYS["parameter"])
        rate = section.take("rate")
        unused = [name for name in rows if name not in _WORD.findall(str(rate))]
        if unused:
            raise section.error("is not in the rate", f"parameters.{unused[0]}")
        chooses = section.choice("voltage") == "choose"
        if chooses and rate != RATE:
            raise section.error(f"only rates {RATE} can be chosen from", "voltage")
        if chooses and not {"a", "z"} <= rows.keys():
            raise section.error("a and z must be among `parameters`, of each transition", "voltage")
        return cls(plan, str(rate), rows, section.flag("reversible"), chooses)

    # --- the document -----------------------------------------------------------------------------

    def document(self, scheme: Scheme, still: Collection[str] = ()) -> dict[str, Any]:
        """Return the model file of a scheme, as plain data without values of rates.

        Arguments:
            still: names of parameters z that are 0: their rates do not depend on the voltage.
        """
        names = scheme.states
        kept = self._kept
        rates, rows = {}, dict(kept["parameters"])
        balanced, steps = self.balanced(scheme), _steps(scheme)
        for i, j in (way for edge in scheme.edges for way in (edge, edge[::-1])):
            way = f"{names[i]} -> {names[j]}"
            if (i, j) in balanced:
                rates[way] = "balance"
                continue
            suffix, times = steps.get((i, j), (f"{names[i]}_{names[j]}", 1))
            text = self._of_transition(suffix)
            rates[way] = text if times == 1 else f"{times}*({text})"
            for name, row in self.parameters.items():
                own = self._own(name, suffix)
                if own in kept["parameters"]:
                    raise InputError("is a name that discover gives", None, f"parameters.{own}")
                rows[own] = row | ({"value": 0.0, "fixed": True} if own in still else {})
        opened = [names[k] for k in range(scheme.n_open)]
        return {
            **kept,
            "name": f"scheme {scheme.name}",
            "description": scheme.text,
            "states": [names[k] for k in scheme.order],
            "rates": rates,
            "current": {**(kept.get("current") or {}), "open": opened},
            "parameters": rows,
        }

    def _of_transition(self, suffix: str) -> str:
        """Return the rate of one transition."""
        return _WORD.sub(lambda found: self._own(found[0], suffix), self.rate)

    def _own(self, name: str, suffix: str) -> str:
        """Return the name of one transition's own parameter; all other names as they are."""
        return f"{name}_{suffix}" if name in self.parameters else name

    @cached_property
    def _kept(self) -> dict[str, Any]:
        """All of the model that has nothing to do with its states and rates."""
        document = self.plan.document
        kept = {k: v for k, v in document.items() if k not in _REPLACED}
        # a parameter of each transition hides one of the model that has its name
        words = set(_words([self.rate])) - set(self.parameters)
        words |= set(_words([kept.get("current"), kept.get("leak")]))
        words |= words_of_clamps(self.plan.section)
        rows = {
            key: {str(name): row for name, row in (document.get(key) or {}).items()}
            for key in ("definitions", "parameters")
        }
        while True:
            known = [row for own in rows.values() for name, row in own.items() if name in words]
            more = words | set(_words(known))
            if more == words:
                break
            words = more
        found = {k: {n: row for n, row in own.items() if n in words} for k, own in rows.items()}
        kept.pop("definitions", None)
        return {**kept, **{key: own for key, own in found.items() if own or key == "parameters"}}

    @property
    def kept_parameters(self) -> Mapping[str, Any]:
        """The parameters of the model that every scheme has, as rows of a model file."""
        found: Mapping[str, Any] = self._kept["parameters"]
        return found

    def balanced(self, scheme: Scheme) -> set[Edge]:
        """Return the transitions whose rates follow: one of each edge outside a spanning tree."""
        if not self.reversible:
            return set()
        tree = tree_of(scheme)
        return {(j, i) for i, j in scheme.edges if tree[i] != j and tree[j] != i}

    def plan_of(self, scheme: Scheme, still: Collection[str] = (), rough: bool = False) -> FitPlan:
        """Return the plan to fit a scheme to the data; `still` as of `document`.

        Arguments:
            rough: whether ramps are stairs, and a conductance is solved where it can be: many
                points are scored quickly so, and the best of them are near the best of all.

        Raises InputError where it cannot be.
        """
        return self.plan_for(*self._last_models(scheme, tuple(still)), rough)

    @cached_property
    def _last_models(self) -> Callable[[Scheme, tuple[str, ...]], _Made]:
        """Returns the file of a scheme and its model, which several plans share."""

        @lru_cache(_MODELS)
        def made(scheme: Scheme, still: tuple[str, ...]) -> _Made:
            document = self.document(scheme, still)
            return document, self.model_of(document)

        return made

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "_last_models"}

    def model_of(self, document: dict[str, Any]) -> ChannelModel:
        """Return the model of a model file of this run."""
        section, file = self._section, self.plan.file
        return build_model(document, file, first_temperature(section), words_of_clamps(section))

    @cached_property
    def _section(self) -> dict[str, Any]:
        """What of the fit section holds for every scheme."""
        return {k: v for k, v in self.plan.section.items() if k not in _OF_ONE}

    def plan_for(
        self, document: dict[str, Any], model: ChannelModel, rough: bool = False
    ) -> FitPlan:
        """Return the plan to fit a model, with its file, to the data; `rough` as of `plan_of`."""
        plan, section = self.plan, dict(self._section)
        experiments = self._stairs if rough else plan.problem.experiments
        if rough and plan.problem.linear_parameters():
            section["solve"] = "auto"
        keys = Section({**section, "name": document["name"]}, plan.file, "fit")
        keys.expect(KEYS["fit"])
        found = plan_search(
            Problem(model, experiments),
            keys,
            document=document,
            file=plan.file,
            section=section,
            model_file=plan.model_file,
            surrogate=plan.surrogate,
            noise_pA=plan.noise_pA,
            data_seed=plan.data_seed,
            in_memory=plan.in_memory,
            temperature_stated=plan.temperature_stated,
        )
        return replace(found, start=False, description=document["description"])

    @cached_property
    def _stairs(self) -> tuple[Experiment, ...]:
        """The experiments with ramps as stairs: held voltages need a score no samples."""
        found = []
        for e in self.plan.problem.experiments:
            if not e.clamp:  # a step charges the membrane
                h = e.protocol.sampling_ms
                sweeps = tuple(_stairs(sweep, h) for sweep in e.protocol.sweeps)
                e = replace(e, protocol=replace(e.protocol, sweeps=sweeps))
            found.append(e)
        return tuple(found)

    # --- points of a search -----------------------------------------------------------------------

    @property
    def exponential(self) -> bool:
        """True if every rate is `a*exp(z*v)`, with an a and a z of its own."""
        return self.rate == RATE and {"a", "z"} <= self.parameters.keys()

    def scan(self, plan: FitPlan, unit: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Return points (n_free, n) of a scan: rates are drawn at both ends of the command.

        Drawn evenly from their ranges, most would be too fast or too slow to be seen.

        Arguments:
            unit: (n_free, n) points that are drawn evenly; of rates of another form they stay.
        """
        space, (low, high) = plan.space, ends_of(plan)
        if not self.exponential or low == high:
            return unit
        row_of = {space.parameters[place].name: row for row, place in enumerate(space.free)}
        unit = unit.copy()
        for name, row in row_of.items():
            slope = row_of.get("z" + name[1:]) if name[:2] == "a_" else None
            if slope is None:
                continue
            first, second = random.uniform(
                math.log(_SLOWEST), math.log(_FASTEST), (2, unit.shape[1])
            )
            z = (second - first) / (high - low)
            for place, values in ((slope, z), (row, np.exp(np.clip(first - z * low, -600, 600)))):
                own = space.parameters[space.free[place]]
                unit[place] = share_of_range(np.clip(values, own.lower, own.upper), own, np)
        return unit

    def groups(self, space: SearchSpace) -> np.ndarray:
        """Return (n_free,) the number of a group for each free parameter: those of a transition."""
        names = [space.parameters[k].name for k in space.free]
        parts = [(name, *name.split("_", 1)) for name in names]
        shared = [p[2] if len(p) > 2 and p[1] in self.parameters else p[0] for p in parts]
        return np.unique(shared, return_inverse=True)[1]

    def inherited(
        self, child: Scheme, parents: Iterable[tuple[Scheme, tuple[int, ...], Mapping[str, float]]]
    ) -> list[dict[str, float]]:
        """Return values of a child near the currents of its parents.

        A state or a transition that the parent does not have begins with little traffic; one that
        the child does not have is left out.

        Arguments:
            parents: each with the state of the child that each of its states is, -1 for none, and
                its values.
        """
        found = []
        for parent, states, values in parents:
            logs = self._rates(parent, values)
            places = {(states[i], states[j]): own for (i, j), own in logs.items()}
            ways = {way for edge in child.edges for way in (edge, edge[::-1])}
            known = {way: own for way, own in places.items() if way in ways}
            # of a parameter per cell there is one for each, such as g[A1]
            mine = self.kept_parameters
            others = {k: v for k, v in values.items() if k.partition("[")[0] in mine}
            new = _LEAVING if parent.n < child.n else _NEW
            for new_rates in new if len(known) < len(ways) else new[:1]:
                rates: Mapping[Edge, Mapping[str, float]] = known
                if self.exponential:
                    rates = self._in_ranges(child, self._with_new(child, known, *new_rates))
                own = dict(others)
                for way, suffix in self._suffixes(child).items():
                    own |= {f"{name}_{suffix}": x for name, x in rates.get(way, {}).items()}
                found.append(own)
        return found

    def _with_new(
        self, child: Scheme, known: Mapping[Edge, Mapping[str, float]], size: float, share: float
    ) -> dict[Edge, Mapping[str, float]]:
        """Return the rates of all transitions of a child, new ones up to a size, 1/ms; a share of
        the time is spent in a new state.

        One that closes a cycle keeps microscopic reversibility, so that it changes no equilibrium.
        """
        rates, ends = dict(known), np.array(ends_of(self.plan))
        for i, j in child.edges:
            if (i, j) in rates:
                continue
            path = _path(rates, i, j)
            if not path:  # one of both states is new
                inward = (i, j) if any(i in way for way in rates) else (j, i)
                rates[inward] = {"a": size * share, "z": 0.0}
                rates[inward[::-1]] = {"a": size, "z": 0.0}
                continue
            ratio = sum(math.log(rates[p]["a"] / rates[p[::-1]]["a"]) for p in pairwise(path))
            slope = sum(rates[p]["z"] - rates[p[::-1]]["z"] for p in pairwise(path))
            most = float(np.abs(ratio + slope * ends).max()) / 2
            for way, sign in (((i, j), 0.5), ((j, i), -0.5)):
                a = size * math.exp(max(sign * ratio - most, -600.0))
                rates[way] = {"a": a, "z": sign * slope}
        return rates

    def _in_ranges(
        self, child: Scheme, rates: Mapping[Edge, Mapping[str, float]]
    ) -> dict[Edge, Mapping[str, float]]:
        """Return rates a*exp(z*v) of a child of which the ranges hold each a, where that can be.

        One that follows from others in the parent has no range there, and may be free in the child.
        Both directions of a transition are scaled alike, which changes no equilibrium.
        """
        own, found = {p.name: p for p in self.plan_of(child).problem.parameters}, dict(rates)
        names = self._suffixes(child)
        for edge in child.edges:
            ways = edge, edge[::-1]
            free = [(own[f"a_{names[way]}"], rates[way]["a"]) for way in ways if way in names]
            free = [(p, a) for p, a in free if a > 0 and not p.fixed]
            low = max((p.lower / a for p, a in free), default=0.0)
            high = min((p.upper / a for p, a in free), default=math.inf)
            scale = max(low, min(1.0, high))
            found |= {way: {**rates[way], "a": scale * rates[way]["a"]} for way in ways}
        return found

    def _suffixes(self, scheme: Scheme) -> dict[Edge, str]:
        """Return the ending of the names of parameters for each transition that has its own."""
        names, balanced, steps = scheme.states, self.balanced(scheme), _steps(scheme)
        ways = [way for edge in scheme.edges for way in (edge, edge[::-1]) if way not in balanced]
        return {w: steps.get(w, (f"{names[w[0]]}_{names[w[1]]}", 1))[0] for w in ways}

    def _rates(self, scheme: Scheme, values: Mapping[str, float]) -> dict[Edge, dict[str, float]]:
        """Return the parameters of every transition; those that follow only of exponentials."""
        found = {
            way: {name: values[f"{name}_{suffix}"] for name in self.parameters}
            for way, suffix in self._suffixes(scheme).items()
        }
        if self.exponential:
            suffixes, products = self.products(scheme)
            own = {suffix: found[way] for way, suffix in self._suffixes(scheme).items()}
            logs = np.log([own[suffix]["a"] for suffix in suffixes])
            slopes = np.array([own[suffix]["z"] for suffix in suffixes])
            for way in self.balanced(scheme):
                constant, power = products[way]
                log = min(max(constant + float(power @ logs), -600.0), 600.0)
                found[way] = {"a": math.exp(log), "z": float(power @ slopes)}
        return found

    def products(
        self, scheme: Scheme
    ) -> tuple[tuple[str, ...], dict[Edge, tuple[float, np.ndarray]]]:
        """Return rates a*exp(z*v) of all transitions as products of powers of parameters.

        Returns: the endings of the names of parameters, a_k and z_k; and by transition a constant
            and powers (n_endings,): log a is ``constant + power @ log a_k``, z ``power @ z_k``.
        """
        own = self._suffixes(scheme)
        suffixes = tuple(dict.fromkeys(own.values()))
        unit = dict(zip(suffixes, np.eye(len(suffixes)), strict=True))
        found = {w: (math.log(_multiplicity(scheme, w)), unit[own[w]]) for w in own}
        along = {way for k, up in tree_of(scheme).items() if k != up for way in ((k, up), (up, k))}
        for i, j in self.balanced(scheme):
            constant, power = found[j, i]
            for way in pairwise(_path(along, i, j)):
                (there, powers_there), (back, powers_back) = found[way], found[way[::-1]]
                constant, power = constant + there - back, power + powers_there - powers_back
            found[i, j] = constant, power
        return suffixes, found


def unit_of(plan: FitPlan, values: Mapping[str, float]) -> np.ndarray:
    """Return the point (n_free,) of the unit cube nearest to values; the middle where none is."""
    space = plan.space
    found = np.full(space.n_free, 0.5)
    for row, place in enumerate(space.free):
        own = space.parameters[place]
        if own.name in values:
            inside = np.clip(values[own.name], own.lower, own.upper)
            found[row] = share_of_range(np.array([inside]), own, np)[0]
    return found


def _stairs(sweep: Iterable[Segment], h: float) -> tuple[Segment, ...]:
    """Return a sweep, sampled every h ms, in which held voltages stand for ramps."""
    found = []
    for one in sweep:
        if not isinstance(one.wave, Ramp):
            found.append(one)
            continue
        first, change = one.wave.v_start_mV, one.wave.v_end_mV - one.wave.v_start_mV
        n = max(1, min(round(abs(change) / _STAIR_MV), int((one.end_ms - one.start_ms) / h)))
        inner = np.linspace(one.start_ms, one.end_ms, n + 1)[1:-1]
        times = [one.start_ms, *(np.round(inner / h) * h).tolist(), one.end_ms]
        found += [
            Segment(begin, end, Constant(first + change * (k + 0.5) / n))
            for k, (begin, end) in enumerate(pairwise(times))
        ]
    return tuple(found)


def _words(values: Collection[Any]) -> list[str]:
    return _WORD.findall(" ".join(str(value) for value in values))


def ends_of(plan: FitPlan) -> tuple[float, float]:
    """Return the lowest and the highest command of all experiments that count, mV."""
    commands = [e.protocol.command() for e in plan.problem.fitted]
    low = min(float(np.nanmin(c)) for c in commands)
    return low, max(float(np.nanmax(c)) for c in commands)


def _steps(scheme: Scheme) -> dict[Edge, tuple[str, int]]:
    """Return the ending of names and the multiplicity of the transitions of equal subunits."""
    n = len(scheme.arm) - 1
    found: dict[Edge, tuple[str, int]] = {}
    for k, (i, j) in enumerate(pairwise(scheme.arm)):
        found |= {(i, j): ("on", n - k), (j, i): ("off", k + 1)}
    return found


def _multiplicity(scheme: Scheme, way: Edge) -> int:
    return _steps(scheme).get(way, ("", 1))[1]


def tree_of(scheme: Scheme) -> dict[int, int]:
    """Return for each state the one before it on a way from the first; the arm is in the tree."""
    along = {frozenset(pair) for pair in pairwise(scheme.arm)}
    parents, pending = {0: 0}, [0]
    while len(parents) < scheme.n:
        # those of the arm first, so that none of its rates has to follow
        pairs = [
            (frozenset((i, int(j))) not in along, pending.index(i), i, int(j))
            for i in pending
            for j in np.flatnonzero(scheme.joined[i])
            if j not in parents
        ]
        _, _, i, j = min(pairs)
        parents[j] = i
        pending.append(j)
    return parents


def _path(ways: Collection[Edge], start: int, end: int) -> list[int]:
    """Return the states on a shortest way along transitions; empty where there is none."""
    pending = [[start]]
    seen = {start}
    while pending:
        path = pending.pop(0)
        if path[-1] == end:
            return path
        nexts = sorted({j for i, j in ways if i == path[-1]} - seen)
        seen.update(nexts)
        pending += [[*path, j] for j in nexts]
    return []
