"""Pieces of a batch: some wells are read, fitted together and measured, wherever that is done."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, overload

import numpy as np

from channelfit.batch.checks import RESIDUAL_MEASURES, Checked
from channelfit.batch.fits import WellFits, fit_wells
from channelfit.batch.limits import doubts
from channelfit.batch.recordings import Recorded
from channelfit.batch.saved import checked_fits
from channelfit.batch.search import OnProgress, Settings, nothing
from channelfit.batch.stretches import check_residuals, is_clamped
from channelfit.batch.template import MEASURES, Template, carried_nS, measures
from channelfit.problem.beside_model import fit_cautions
from channelfit.problem.experiment import Problem
from channelfit.problem.plausibility import protocol_cautions
from channelfit.problem.protocol import load_protocol
from channelfit.reading.cautions import Caution, each_once
from channelfit.reading.errors import InputError
from channelfit.results.file_hashes import sha256_of
from channelfit.results.resuming import identity
from channelfit.scoring.machine.threads import single_threaded_blas, usable_cores
from channelfit.scoring.scorer import ChannelScorer, make_scorer
from channelfit.search.fit_file import Load
from channelfit.search.plan import FitPlan
from channelfit.tasks.records import DAMAGED
from channelfit.tasks.result_store import Arrays, Key, decoded_json, expect

#: All that is measured in a recording and in its residuals: unit and meaning of each column.
ALL_MEASURES = {**MEASURES, **RESIDUAL_MEASURES}
#: Points of a trace that are kept for pictures: the least and the largest of each stretch.
_POINTS = 600

#: Wells of one task: by default, and on a GPU a plate. Each task scans the parameter space once,
#: which takes as long as the fits of some fifteen wells.
_SIZE, _SIZES = 32, {"cuda": 384}
#: Threads that read wells. Most of it is Python, of which one thread at a time does something: they
#: gain where disks are waited for; many of them wait for each other.
_READERS = 4


@dataclass(frozen=True)
class WellResults:
    """What came out of some wells, in their order.

    Attributes:
        fits: of the wells that could be read and fitted, which stand at `places`; None without any.
        failures: by place, why a well could not be fitted.
        cautions: by place, what looks wrong in its recording.
        measured: (n_wells, n_measures), in the order of `ALL_MEASURES`.
        time_ms, data, shown, left: of the fitted wells (n_points,) and three times (n_fitted,
            n_points), for pictures: the recording, the fit, and the fit less the recording.
    """

    fits: WellFits | None
    places: np.ndarray
    failures: dict[int, str]
    cautions: dict[int, list[str]]
    measured: np.ndarray
    time_ms: np.ndarray
    data: np.ndarray
    shown: np.ndarray
    left: np.ndarray

    def arrays(self) -> Arrays:
        """The same as arrays."""
        told = {
            "failures": {str(k): text for k, text in self.failures.items()},
            "cautions": {str(k): texts for k, texts in self.cautions.items()},
        }
        own = {f"fits_{k}": v for k, v in (self.fits.arrays() if self.fits else {}).items()}
        return {
            "told": np.frombuffer(json.dumps(told).encode(), np.uint8),
            "places": self.places,
            "measured": self.measured,
            "time_ms": self.time_ms,
            "data": self.data,
            "shown": self.shown,
            "left": self.left,
            **own,
        }

    @classmethod
    def of(cls, arrays: Arrays) -> WellResults:
        """The reverse of `arrays`."""
        told = decoded_json(arrays, "told")
        own = {k.removeprefix("fits_"): v for k, v in arrays.items() if k.startswith("fits_")}
        return cls(
            WellFits.of(own) if own else None,
            arrays["places"],
            {int(k): text for k, text in told["failures"].items()},
            {int(k): texts for k, texts in told["cautions"].items()},
            arrays["measured"],
            arrays["time_ms"],
            arrays["data"],
            arrays["shown"],
            arrays["left"],
        )


def _check_told(told: Any, n: int) -> None:
    """Refuses texts that are not those of some of n wells."""
    kinds = {"failures": str, "cautions": list}
    good = isinstance(told, dict) and all(isinstance(told.get(name), dict) for name in kinds)
    for name, kind in kinds.items() if good else ():
        for place, text in told[name].items():
            texts = text if isinstance(text, list) else [text]
            good = good and isinstance(text, kind) and all(isinstance(one, str) for one in texts)
            good = good and place in map(str, range(n))
    if not good:
        raise InputError(DAMAGED, None, "told")


@dataclass(frozen=True, eq=False)
class _Read:
    """What could be read of a well: its problem, or the reason why there is none.

    Attributes:
        measured: in the order of `MEASURES`.
        cautions: what looks wrong in its recording, by itself and beside the model.
    """

    problem: Problem | None
    measured: list[float]
    cautions: list[str] = field(default_factory=list)
    failure: str = ""


@dataclass(frozen=True, eq=False)
class WellTasks:
    """The wells of a batch, as work that is done in pieces.

    Attributes:
        template: the fit file.
        recordings: all wells.
        first: the place of a well whose recording can be read, from which the model is built.
        settings: of the search.
        wanted: how many wells a piece is to have; None for what suits the backend.
        on_progress: told of the search while a piece is done in this process.
    """

    template: Template
    recordings: tuple[Recorded, ...]
    first: int
    settings: Settings
    wanted: int | None = None
    on_progress: OnProgress = nothing

    def __getstate__(self) -> dict[str, Any]:
        """Without what only this process can have."""
        kept = ("recordings", "first", "settings", "wanted")
        return {
            **{name: getattr(self, name) for name in kept},
            "template": self.template.absolute(),
            "identity": dict(self.identity),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, on_progress=nothing)

    @cached_property
    def size(self) -> int:
        """How many wells a piece has."""
        return self.wanted or _SIZES.get(self.scorer.backend, _SIZE)

    @property
    def keys(self) -> list[Key]:
        """The pieces."""
        n = len(self.recordings)
        return [("wells", k, min(k + self.size, n)) for k in range(0, n, self.size)]

    @cached_property
    def plan(self) -> FitPlan:
        """The plan of the first well that can be read, whose model serves all."""
        return self.template.plan(self.recordings[self.first])

    @cached_property
    def warnings(self) -> tuple[Caution, ...]:
        """Return what looks wrong in the fit file, the model and its protocols, each once."""
        found = [*self.template.unused, *self.plan.problem.model.cautions]
        for experiment in self.plan.problem.experiments:
            found += protocol_cautions(experiment.protocol, experiment.protocol.name)
        return each_once(found)

    @cached_property
    def scorer(self) -> ChannelScorer:
        """Simulates the fits, under the protocol of the template."""
        return make_scorer(self.plan.problem, self.settings.backend)

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """All that the results depend on, by name: what of it differs is told by its name."""
        found = identity(self.plan, self.scorer)
        for key in [key for key in found if key.startswith("recording of experiment")]:
            del found[key]
        found |= {f"setting {name}": value for name, value in vars(self.settings).items()}
        found |= {"wells in a piece": self.size, "number of wells": len(self.recordings)}
        for each in self.recordings:
            found[f"well {each.well}"] = self._hash(each)
        text = json.dumps(found, default=str)
        plain: dict[str, Any] = json.loads(text)
        return plain

    def check_stored(self, key: Key, found: Arrays) -> None:
        """See `tasks.executor.CheckedTaskSet`."""
        n = int(key[2]) - int(key[1])
        _check_told(decoded_json(found, "told"), n)
        expect(found, {"places": ("i", (None,)), "measured": ("f", (n, len(ALL_MEASURES)))})
        places, parameters = found["places"], self.plan.problem.parameters
        expect(found, {"time_ms": ("f", (None,))})
        shape = (len(places), len(found["time_ms"]))
        expect(found, dict.fromkeys(("data", "shown", "left"), ("f", shape)))
        if np.any(np.diff(places) < 1) or not all(0 <= place < n for place in places.tolist()):
            raise InputError(DAMAGED, None, "places")
        if fitted := {k.removeprefix("fits_"): v for k, v in found.items() if "fits_" in k}:
            names = tuple(p.name for p in parameters if not p.fixed)
            checked_fits(fitted, len(places), names)
        elif len(places):
            raise InputError(DAMAGED, None, "places")

    def _hash(self, recorded: Recorded) -> str:
        """Of what is told of a well, and of its files."""
        told = {**recorded.plain(), "file": "", "shown": "", "folder": ""}
        found = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
        try:
            for file in self.template.files_of(recorded):
                found.update(_hash_of_file(file, file.stat().st_mtime_ns).encode())
        except (InputError, OSError) as error:
            found.update(str(error).encode())
        return found.hexdigest()[:16]

    @single_threaded_blas()
    def compute(self, key: Key) -> Arrays:
        """Reads and fits the wells of a piece; what is wrong with one is told in its place."""
        _, begin, end = key
        wells = self.recordings[int(begin) : int(end)]
        load = cache(load_protocol)  # reading it anew takes longer than reading a recording
        with ThreadPoolExecutor(min(usable_cores(), _READERS)) as threads:
            read = partial(self._read, load=load)
            # what wells share is read, and remembered, with the first of them
            found = [*map(read, wells[:1]), *threads.map(read, wells[1:])]
        places = [k for k, one in enumerate(found) if one.problem is not None]
        problems = [one.problem for one in found if one.problem is not None]
        failures = {k: one.failure for k, one in enumerate(found) if one.problem is None}
        cautions = {k: one.cautions for k, one in enumerate(found) if one.cautions}
        measured = np.full((len(wells), len(ALL_MEASURES)), np.nan)
        measured[:, : len(MEASURES)] = [one.measured for one in found]
        fits = None
        traces = np.empty(0), *[np.empty((0, 0), "f4")] * 3
        if problems:
            fits = fit_wells(self.plan, problems, self.settings, self.on_progress)
            currents = self._currents(problems, fits)
            traces = self._traces(problems, currents)
            residuals = self._residuals(problems, fits)
            for own, place in enumerate(places):
                measured[place, len(MEASURES) :] = residuals[own].columns()
                known = dict(zip(MEASURES, found[place].measured, strict=True))
                if is_clamped(problems[own]):
                    known["clamp_lost"] = math.nan  # which the fit makes up for
                if own in currents:
                    known = self._without_channels(problems[own], fits, own, currents[own], known)
                if why := doubts(residuals[own], known, self.template.replaced):
                    cautions[place] = [*cautions.get(place, []), *why]
        at = np.array(places, dtype=np.int64)
        return WellResults(fits, at, failures, cautions, measured, *traces).arrays()

    def _read(self, recorded: Recorded, load: Load) -> _Read:
        try:
            problem = self.template.problem(self.plan, recorded, load)
            measured = list(measures(problem, recorded).values())
        except InputError as error:
            nothing_known = [math.nan] * len(MEASURES)
            return _Read(None, nothing_known, failure=_reason(error, recorded, self.template))
        places = [f"{self.template.file}: {e.protocol.name}" for e in problem.experiments]
        seen = [c for e in problem.experiments if e.recording for c in e.recording.cautions]
        seen += fit_cautions(problem, places, self.plan.space.n_free)
        return _Read(problem, measured, [_told(caution) for caution in each_once(seen)])

    def _served(self, problems: Sequence[Problem]) -> list[tuple[list[int], ChannelScorer]]:
        """The wells by their clamps, which may be each well's own, with what simulates them."""
        clamps: dict[Any, list[int]] = {}
        for k, problem in enumerate(problems):
            clamps.setdefault(tuple(e.clamp for e in problem.experiments), []).append(k)
        usual = tuple(e.clamp for e in self.plan.problem.experiments)
        return [
            (
                rows,
                self.scorer
                if clamp == usual
                else make_scorer(problems[rows[0]], self.settings.backend),
            )
            for clamp, rows in clamps.items()
        ]

    def _values(self, fits: WellFits, wells: Sequence[int]) -> np.ndarray:
        """The parameters (n_parameters, n) of the fits of some wells, fixed ones among them."""
        own = {name: fits.values[wells, k] for k, name in enumerate(fits.names)}
        rows = [own.get(p.name, np.full(len(wells), p.value)) for p in self.plan.problem.parameters]
        return np.array(rows, dtype=float)

    def _currents(self, problems: Sequence[Problem], fits: WellFits) -> dict[int, np.ndarray]:
        """By well the current of its fit (n_sweeps, n_times) in the first experiment, pA."""
        there = np.isfinite(fits.values).all(axis=1)
        found: dict[int, np.ndarray] = {}
        for rows, scorer in self._served(problems):
            fitted = [k for k in rows if there[k]]
            if fitted:
                traces = scorer.simulate(self._values(fits, fitted))[0]
                found |= {k: traces[:, :, place] for place, k in enumerate(fitted)}
        return found

    def _residuals(self, problems: Sequence[Problem], fits: WellFits) -> list[Checked]:
        """What the residuals of each well say."""
        found = [Checked()] * len(problems)
        for rows, scorer in self._served(problems):
            own = [problems[k] for k in rows]
            for k, one in zip(
                rows, check_residuals(self.plan, scorer, own, fits.unit[rows]), strict=True
            ):
                found[k] = one
        return found

    def _without_channels(
        self,
        problem: Problem,
        fits: WellFits,
        well: int,
        current_pA: np.ndarray,
        measured: dict[str, float],
    ) -> dict[str, float]:
        """What was measured, the seal without what channels of the fit carry where it was measured.

        The instrument has measured its seals before channels could open.
        """
        leak = measured["leak"]
        if not measured["seal"] * leak > 0 or not math.isclose(measured["seal"] * leak, 1e3):
            return measured
        left = leak - carried_nS(problem, current_pA, self._values(fits, [well]))
        return {**measured, "seal": 1e3 / left if left > 0 else math.nan}

    def _traces(
        self, problems: Sequence[Problem], currents: Mapping[int, np.ndarray]
    ) -> tuple[np.ndarray, ...]:
        """What pictures show of wells under the protocol of the first: times, data, fits, and what
        the fits leave of the data.

        Each is thinned by its own extremes, so the third is not the difference of the others.
        """
        first = problems[0].experiments[0]
        protocol = first.protocol
        lengths = [protocol.n_times(k) for k in range(protocol.n_sweeps)]
        inside = np.arange(protocol.n_times_max) < np.array(lengths)[:, None]
        time = protocol.times_ms + protocol.sampling_ms * np.cumsum([0, *lengths[:-1]])[:, None]
        data, shown, left = [], [], []
        for k, problem in enumerate(problems):
            recording = problem.experiments[0].recording
            assert recording is not None
            seen = np.where(recording.weight > 0, recording.current_pA, np.nan)[inside]
            data.append(_thinned(seen))
            own_fit = currents[k][inside] if k in currents else seen * np.nan
            shown.append(_thinned(own_fit))
            left.append(_thinned(own_fit - seen))
        rows = (np.array(one, "f4") for one in (data, shown, left))
        return _thinned_times(time[inside]), *rows


class Problems(Sequence[Problem]):
    """The problems of wells, each read when it is asked for."""

    def __init__(self, work: WellTasks, recordings: Sequence[Recorded]) -> None:
        self.work, self.recordings = work, recordings
        self._load = cache(load_protocol)

    def __len__(self) -> int:
        return len(self.recordings)

    @overload
    def __getitem__(self, place: int) -> Problem: ...
    @overload
    def __getitem__(self, place: slice) -> Problems: ...
    def __getitem__(self, place: int | slice) -> Problem | Problems:
        if isinstance(place, slice):
            return Problems(self.work, self.recordings[place])
        return self.work.template.problem(self.work.plan, self.recordings[place], self._load)


def _told(caution: Caution) -> str:
    """A caution as one reason of a well."""
    return f"{caution.value}: {caution.advice}".replace("; ", ", ")


def _reason(error: InputError, recorded: Recorded, template: Template) -> str:
    """An error as one reason of a well, which need not name the well's own file.

    It is the same wherever the well is read.
    """
    file = "" if error.file in (recorded.file, recorded.shown) else error.file or ""
    for own in (template.file, template.model_file):
        file = own.name if file == str(own) else file
    parts = (file, error.key, error.message)
    return ": ".join(part for part in parts if part).replace("; ", ", ")


def _stretches(n: int) -> np.ndarray:
    """Where the stretches of n samples begin, and where the last one ends."""
    count = min(n, _POINTS // 2)
    return np.linspace(0, n, count + 1).astype(int)


def _thinned(values: np.ndarray) -> np.ndarray:
    """The least and the largest of each stretch (n_points,), in the order in which they come."""
    if len(values) <= _POINTS:
        return values
    edges = _stretches(len(values))
    # stretches differ by a sample at most: a shorter one has its last sample twice
    length = int(np.diff(edges).max())
    parts = values[np.minimum(edges[:-1, None] + np.arange(length), edges[1:, None] - 1)]
    known = np.isfinite(parts)
    low = np.where(known, parts, np.inf).argmin(axis=1)
    high = np.where(known, parts, -np.inf).argmax(axis=1)
    places = np.sort(np.stack([low, high], axis=1), axis=1)
    found = np.take_along_axis(parts, places, axis=1)
    found[~known.any(axis=1)] = np.nan
    return found.ravel()


def _thinned_times(time_ms: np.ndarray) -> np.ndarray:
    """The times at which the values of `_thinned` are shown: a quarter into each half stretch."""
    if len(time_ms) <= _POINTS:
        return time_ms
    edges = _stretches(len(time_ms))
    starts, lengths = time_ms[edges[:-1]], np.diff(np.append(time_ms[edges[:-1]], time_ms[-1]))
    return np.stack([starts + lengths / 4, starts + 3 * lengths / 4], axis=1).ravel()


_hashes: dict[tuple[str, int], str] = {}


def _hash_of_file(file: Path, changed: int) -> str:
    """The SHA-256 of a file; of one that holds many wells it is computed once."""
    place = str(file), changed
    if place not in _hashes:
        _hashes[place] = sha256_of(file)
    return _hashes[place]
