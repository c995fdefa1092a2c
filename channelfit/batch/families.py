"""Families of wells, which one simulation serves: they differ in their data and in nothing else.

A simulated current depends on the model and the protocols, and its cost also on the mask (which
samples count, and how much). Wells that agree in all of these are a family. Shared-protocol wells
may differ in their masks as well: each has the cost of its own mask, and points are tried on all.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from channelfit.problem.experiment import Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.recording import Recording
from channelfit.reading.errors import InputError


@dataclass(frozen=True, eq=False)
class Family:
    """Wells with the same model, protocols, weights, temperature and clamp.

    Attributes:
        problems: those of all wells, also of other families; read one at a time, so that a
            sequence may load each of them then.
        wells: (n_wells,) int64, which of the problems belong to this family.
        problem: that of its first well.
    """

    problems: Sequence[Problem]
    wells: np.ndarray
    problem: Problem

    @property
    def is_simulated_once(self) -> bool:
        """True if one simulation of a candidate serves every well.

        It does where one group of experiments is scored, under an ideal clamp.
        """
        (first, *others) = self.problem.groups
        return not others and first.clamp is None and not first.sets_temperature

    @property
    def total_weight(self) -> float:
        """The sum of the weights of all samples of one well."""
        return self._places.total_weight

    def data(self) -> Iterator[tuple[np.ndarray, float]]:
        """Yield the recording of each well, in the order of the samples of `problem.scored`.

        Yields: the data (n_data,) pA, and the squares that merging of samples under the same
        command took out of them, pA^2: `RunTree.data_pA` and `RunTree.constant` of the well.
        """
        for well in self.wells.tolist():
            yield self._places.merged(self.problems[well])

    @cached_property
    def _places(self) -> _Places:
        return _Places(self.problem)


class ScoredSamples:
    """The samples of a problem's recordings that count, all experiments in a row of n.

    Attributes:
        weights: (n,), above 0.
    """

    def __init__(self, problem: Problem) -> None:
        weights = [e.weight * e.recording.weight for e in problem.fitted if e.recording]
        self.counts = [weight > 0 for weight in weights]
        self.weights = self.row(weights)

    def row(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Return these samples of values (n_sweeps, n_times, ..) of each fitted experiment."""
        kept = [one[own] for one, own in zip(values, self.counts, strict=True)]
        return np.concatenate(kept) if kept else np.empty(0)

    def data(self, problem: Problem) -> np.ndarray:
        """Return the current (n,), pA, of a problem with the same mask."""
        return self.row([e.recording.current_pA for e in problem.fitted if e.recording])


class _Places:
    """The places of the samples of recordings among the data of a tree of runs."""

    def __init__(self, problem: Problem) -> None:
        tree, counted = problem.scored, ScoredSamples(problem)
        counts, self.weights = counted.counts, counted.weights
        self.places = counted.row(tree.outputs).astype(np.int64)
        # the samples that count, among all of a well
        self.kept = np.flatnonzero(np.concatenate([*map(np.ravel, counts), np.empty(0, bool)]))
        self.n_data, self.total_weight = len(tree.sample_mV), tree.total_weight
        self.sums = np.bincount(self.places, self.weights, self.n_data)
        self.is_merged = len(np.unique(self.places)) < len(self.places)
        n_samples = sum(some.size for some in counts)
        self.is_whole = self.n_data == n_samples and all(
            np.array_equal(some, np.arange(n_samples)) for some in (self.places, self.kept)
        )

    def merged(self, problem: Problem) -> tuple[np.ndarray, float]:
        """Return the data (n_data,) of a problem, pA, and the squares lost by merging, pA^2.

        Where every sample counts and lies in its place, the data may be the recording itself.
        """
        currents = [np.ravel(e.recording.current_pA) for e in problem.fitted if e.recording]
        d = currents[0] if len(currents) == 1 else np.concatenate([*currents, np.empty(0)])
        if self.is_whole:
            return d, 0.0
        d, data = d[self.kept], np.zeros(self.n_data)
        if not self.is_merged:
            data[self.places] = d
            return data, 0.0
        sums = np.bincount(self.places, self.weights * d, self.n_data)
        np.divide(sums, self.sums, out=data, where=self.sums > 0)
        return data, float(np.sum(self.weights * (d - data[self.places]) ** 2))


def families(problems: Sequence[Problem]) -> list[Family]:
    """Sort wells into families, in the order of their first wells.

    Raises: InputError for a well whose parameters differ from those of the first one.
    """
    found: dict[tuple[Any, ...], tuple[list[int], Problem]] = {}
    protocols: list[Protocol] = []
    masks: defaultdict[int, _Mask] = defaultdict(_Mask)
    first: Problem | None = None
    for well in range(len(problems)):
        problem = problems[well]
        first = first or problem
        _check_parameters(problem, first, well)
        own = [masks[k].digest(e.recording) for k, e in enumerate(problem.experiments)]
        key = (*_key_of(problem, protocols), *own)
        found.setdefault(key, ([], problem))[0].append(well)
    return [Family(problems, np.array(own, np.int64), one) for own, one in found.values()]


def shared_protocol_wells(problems: Sequence[Problem]) -> list[np.ndarray]:
    """Return sets of wells that differ in their data and masks alone, as the wells' numbers."""
    found: dict[tuple[Any, ...], list[int]] = {}
    protocols: list[Protocol] = []
    for well in range(len(problems)):
        key = tuple(_key_of(problems[well], protocols))
        found.setdefault(key, []).append(well)
    return [np.array(own, np.int64) for own in found.values()]


class CommonMask(Sequence[Problem]):
    """Shared-protocol wells with the mask in common: the samples that count in every one of them.

    Attributes:
        share: the share of the counted samples of a well that are left, in the well with the least.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = problems
        self.weights: list[np.ndarray | None] = []
        counts = []
        for k in range(len(problems)):
            own = [
                None if e.recording is None else e.recording.weight for e in problems[k].experiments
            ]
            counts.append(sum(int(np.count_nonzero(w)) for w in own if w is not None))
            pairs = zip(self.weights or own, own, strict=True)
            self.weights = [
                None if one is None or w is None else np.minimum(one, w) for one, w in pairs
            ]
        left = sum(int(np.count_nonzero(w)) for w in self.weights if w is not None)
        self.share = left / max(1, *counts)

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, well: Any) -> Any:
        problem = self.problems[well]
        experiments = [
            e if e.recording is None else replace(e, recording=replace(e.recording, weight=w))
            for e, w in zip(problem.experiments, self.weights, strict=True)
        ]
        return replace(problem, experiments=tuple(experiments))


def _key_of(problem: Problem, protocols: list[Protocol]) -> Iterator[Any]:
    """Yield for each experiment all that decides a current and its weight, except the mask."""
    cells = {cell: k for k, cell in enumerate(problem.cells)}
    for e in problem.experiments:
        number = next(
            (k for k, p in enumerate(protocols) if p is e.protocol or p == e.protocol), -1
        )
        if number < 0:
            number = len(protocols)
            protocols.append(e.protocol)
        yield number, e.weight, e.temperature_C, e.clamp, cells.get(e.cell)


class _Mask:
    """Digests of the weights of one experiment, well by well.

    Most wells have the mask of the one before, and comparing is much faster than digesting.
    """

    def __init__(self) -> None:
        self._before, self._digest = np.empty(0), b""

    def digest(self, recording: Recording | None) -> bytes:
        """Return the same bytes for equal weights alone; no bytes without a recording."""
        if recording is None:
            return b""
        if not self._digest or not np.array_equal(recording.weight, self._before):
            self._before = np.ascontiguousarray(recording.weight, dtype=float)
            self._digest = hashlib.blake2b(self._before.tobytes()).digest()
        return self._digest


def _check_parameters(problem: Problem, first: Problem, well: int) -> None:
    """Refuse a well with other parameters than the first has: all are searched in one space."""
    if problem.model is first.model and problem.cells == first.cells:
        return
    mine, others = (
        [replace(p, name=p.name.partition("[")[0]) for p in one.parameters]
        for one in (problem, first)
    )
    if mine != others:
        raise InputError(
            f"recording {well + 1} has other parameters, or other ranges of them, than the first; "
            "all that are fitted together have the same model",
            key="parameters",
        )
