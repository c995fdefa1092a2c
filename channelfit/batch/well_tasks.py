"""Tasks of a batch: some wells each, which are read, fitted together and measured."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.batch.checks import RESIDUAL_MEASURES, ResidualFaults
from channelfit.batch.fits import WellFits, fit_wells
from channelfit.batch.limits import doubts
from channelfit.batch.recordings import WellRecording
from channelfit.batch.saved import checked_fits
from channelfit.batch.search import OnProgress, SearchSettings, ignore_progress
from channelfit.batch.stretches import check_residuals, is_clamped
from channelfit.batch.template import MEASURES, Template, carried_nS, measures
from channelfit.problem.beside_model import fit_cautions
from channelfit.problem.experiment import Problem
from channelfit.problem.plausibility import protocol_cautions
from channelfit.problem.protocol import load_protocol
from channelfit.reading.errors import Caution, InputError, each_once
from channelfit.results.identity import identity, sha256_of
from channelfit.results.report.trace_view import extreme_places
from channelfit.scoring.machine.threads import single_threaded_blas, usable_cores
from channelfit.scoring.scorer import ChannelScorer, make_scorer
from channelfit.search.fit_file import Load
from channelfit.search.plan import FitPlan
from channelfit.tasks.records import DAMAGED
from channelfit.tasks.result_store import Arrays, Key, decoded_json, expect

#: The measures of a recording and of its residuals: unit and meaning of each column.
ALL_MEASURES = {**MEASURES, **RESIDUAL_MEASURES}
#: Points of a trace in pictures: the least and the largest of each stretch.
_POINTS = 600

#: Wells of a task, by backend: on a GPU a plate. Each task scans the parameter space anew, which
#: takes as long as the fits of a dozen wells, or of some hundred where none reaches its noise.
_SIZE, _SIZES = 128, {"cuda": 384}
#: Threads that read wells. They save time while the disk is waited for. Since Python runs in one
#: thread at a time, more of them would wait for each other.
_READERS = 4


@dataclass(frozen=True)
class WellResults:
    """The results of the wells of a task.

    Attributes:
        fits: of the wells that could be read and fitted; None if there are none.
        places: (n_fitted,) of these wells among those of the task.
        failures: by place, the reason why a well could not be fitted.
        cautions: by place, warnings about its recording.
        measured: (n_wells, n_measures), in the order of `ALL_MEASURES`.
        time_ms, data, predicted, apart: traces of the fitted wells for pictures: times (n_points,),
            recording, fit, and fit minus recording (n_fitted, n_points).
    """

    fits: WellFits | None
    places: np.ndarray
    failures: dict[int, str]
    cautions: dict[int, list[str]]
    measured: np.ndarray
    time_ms: np.ndarray
    data: np.ndarray
    predicted: np.ndarray
    apart: np.ndarray

    def arrays(self) -> Arrays:
        """Return the results as arrays, which can be stored."""
        texts = {
            "failures": {str(k): text for k, text in self.failures.items()},
            "cautions": {str(k): own for k, own in self.cautions.items()},
        }
        own = {f"fits_{k}": v for k, v in (self.fits.arrays() if self.fits else {}).items()}
        return {
            "texts": np.frombuffer(json.dumps(texts).encode(), np.uint8),
            **{name: getattr(self, name) for name in _ARRAYS},
            **own,
        }

    @classmethod
    def of(cls, arrays: Arrays) -> WellResults:
        """Return the results that `arrays` has turned into arrays."""
        texts = decoded_json(arrays, "texts")
        own = {k.removeprefix("fits_"): v for k, v in arrays.items() if k.startswith("fits_")}
        return cls(
            fits=WellFits.of(own) if own else None,
            failures={int(k): text for k, text in texts["failures"].items()},
            cautions={int(k): own for k, own in texts["cautions"].items()},
            **{name: arrays[name] for name in _ARRAYS},
        )


#: The attributes of `WellResults` that are arrays.
_ARRAYS = ("places", "measured", "time_ms", "data", "predicted", "apart")


def _check_texts(texts: Any, n: int) -> None:
    """Raise InputError for stored texts that are not those of some of n wells."""
    kinds = {"failures": str, "cautions": list}
    good = isinstance(texts, dict) and all(isinstance(texts.get(name), dict) for name in kinds)
    for name, kind in kinds.items() if good else ():
        for place, text in texts[name].items():
            all_of_it = text if isinstance(text, list) else [text]
            good = good and isinstance(text, kind)
            good = good and all(isinstance(one, str) for one in all_of_it)
            good = good and place in map(str, range(n))
    if not good:
        raise InputError(DAMAGED, None, "texts")


@dataclass(frozen=True, eq=False)
class _Read:
    """A well that was read: its problem, or the reason why it could not be read.

    Attributes:
        measured: in the order of `MEASURES`.
        cautions: warnings about its recording, also in comparison with the model.
    """

    problem: Problem | None
    measured: list[float]
    cautions: list[str] = field(default_factory=list)
    failure: str = ""


@dataclass(frozen=True, eq=False)
class WellTasks:
    """The wells of a batch as tasks of some wells each: the key is ("wells", first, last).

    Attributes:
        template: the fit file.
        recordings: all wells.
        first: the place of a well whose recording can be read, from which the model is built.
        settings: of the search.
        requested_size: how many wells a task should have; None for a number that suits the backend.
        on_progress: called during the search of a task in this process.
    """

    template: Template
    recordings: tuple[WellRecording, ...]
    first: int
    settings: SearchSettings
    requested_size: int | None = None
    on_progress: OnProgress = ignore_progress

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only this process can have."""
        kept = ("recordings", "first", "settings", "requested_size")
        return {
            **{name: getattr(self, name) for name in kept},
            "template": self.template.absolute(),
            "identity": dict(self.identity),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, on_progress=ignore_progress)

    @cached_property
    def size(self) -> int:
        """The number of wells in a task."""
        return self.requested_size or _SIZES.get(self.scorer.backend, _SIZE)

    @property
    def keys(self) -> list[Key]:
        """The keys of all tasks."""
        n = len(self.recordings)
        return [("wells", k, min(k + self.size, n)) for k in range(0, n, self.size)]

    @cached_property
    def plan(self) -> FitPlan:
        """The plan of the first well that can be read; all wells have its model."""
        return self.template.plan(self.recordings[self.first])

    @cached_property
    def warnings(self) -> tuple[Caution, ...]:
        """Warnings about the fit file, the model and its protocols, each once."""
        found = [*self.template.unused, *self.plan.problem.model.cautions]
        for experiment in self.plan.problem.experiments:
            found += protocol_cautions(experiment.protocol, experiment.protocol.name)
        return each_once(found)

    @cached_property
    def scorer(self) -> ChannelScorer:
        """The scorer that simulates the fits, under the protocol of the template."""
        return make_scorer(self.plan.problem, self.settings.backend)

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """Everything that the results depend on, by the names that messages show."""
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
        """Raise InputError for a stored result that was damaged."""
        n = int(key[2]) - int(key[1])
        _check_texts(decoded_json(found, "texts"), n)
        expect(found, {"places": ("i", (None,)), "measured": ("f", (n, len(ALL_MEASURES)))})
        places, parameters = found["places"], self.plan.problem.parameters
        expect(found, {"time_ms": ("f", (None,))})
        shape = (len(places), len(found["time_ms"]))
        expect(found, dict.fromkeys(("data", "predicted", "apart"), ("f", shape)))
        if np.any(np.diff(places) < 1) or not all(0 <= place < n for place in places.tolist()):
            raise InputError(DAMAGED, None, "places")
        if fitted := {k.removeprefix("fits_"): v for k, v in found.items() if "fits_" in k}:
            names = tuple(p.name for p in parameters if not p.fixed)
            checked_fits(fitted, len(places), names)
        elif len(places):
            raise InputError(DAMAGED, None, "places")

    def _hash(self, recorded: WellRecording) -> str:
        """Return a hash of the description of a well and of its files."""
        description = {**recorded.plain(), "file": "", "shown": "", "folder": ""}
        found = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
        try:
            for file in self.template.files_of(recorded):
                found.update(_hash_of_file(file, file.stat().st_mtime_ns).encode())
        except (InputError, OSError) as error:
            found.update(str(error).encode())
        return found.hexdigest()[:16]

    @single_threaded_blas()
    def compute(self, key: Key) -> Arrays:
        """Read and fit the wells of a task; a well that fails leaves its reason in the results."""
        _, begin, end = key
        wells = self.recordings[int(begin) : int(end)]
        load = cache(load_protocol)  # reading it anew takes longer than reading a recording
        with ThreadPoolExecutor(min(usable_cores(), _READERS)) as threads:
            read = partial(self._read, load=load)
            # the first well alone, since what all share is read with it, and cached
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
                    known["clamp_lost"] = math.nan  # since the fit includes the clamp
                if own in currents:
                    known = self._without_channels(problems[own], fits, own, currents[own], known)
                if why := doubts(residuals[own], known, self.template.replaced):
                    cautions[place] = [*cautions.get(place, []), *why]
        at = np.array(places, dtype=np.int64)
        return WellResults(fits, at, failures, cautions, measured, *traces).arrays()

    def _read(self, recorded: WellRecording, load: Load) -> _Read:
        try:
            problem = self.template.problem(self.plan, recorded, load)
            measured = list(measures(problem, recorded).values())
        except InputError as error:
            nothing_known = [math.nan] * len(MEASURES)
            return _Read(None, nothing_known, failure=_reason(error, recorded, self.template))
        places = [f"{self.template.file}: {e.protocol.name}" for e in problem.experiments]
        seen = [c for e in problem.experiments if e.recording for c in e.recording.cautions]
        seen += fit_cautions(problem, places, self.plan.space.n_free)
        return _Read(problem, measured, [_caution_text(caution) for caution in each_once(seen)])

    def _alike(self, problems: Sequence[Problem]) -> list[tuple[list[int], ChannelScorer]]:
        """Return groups of wells of equal protocols and clamps, each with a scorer for them."""
        found: list[tuple[Any, list[int]]] = []
        for k, problem in enumerate(problems):
            own = [(e.clamp, e.protocol) for e in problem.experiments]
            rows = next((rows for other, rows in found if other == own), None)
            if rows is None:
                found.append((own, rows := []))
            rows.append(k)
        usual = [(e.clamp, e.protocol) for e in self.plan.problem.experiments]
        return [
            (
                rows,
                self.scorer
                if own == usual
                else make_scorer(problems[rows[0]], self.settings.backend),
            )
            for own, rows in found
        ]

    def _values(self, fits: WellFits, wells: Sequence[int]) -> np.ndarray:
        """Return all parameters (n_parameters, n) of the fits of some wells, also fixed ones."""
        own = {name: fits.values[wells, k] for k, name in enumerate(fits.names)}
        rows = [own.get(p.name, np.full(len(wells), p.value)) for p in self.plan.problem.parameters]
        return np.array(rows, dtype=float)

    def _currents(self, problems: Sequence[Problem], fits: WellFits) -> dict[int, np.ndarray]:
        """Return by well the current of its fit (n_sweeps, n_times) in the first experiment, pA."""
        there = np.isfinite(fits.values).all(axis=1)
        found: dict[int, np.ndarray] = {}
        for rows, scorer in self._alike(problems):
            fitted = [k for k in rows if there[k]]
            if fitted:
                traces = scorer.simulate(self._values(fits, fitted))[0]
                found |= {k: traces[:, :, place] for place, k in enumerate(fitted)}
        return found

    def _residuals(self, problems: Sequence[Problem], fits: WellFits) -> list[ResidualFaults]:
        """Check the residuals of each well."""
        found = [ResidualFaults()] * len(problems)
        for rows, scorer in self._alike(problems):
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
        """Return the measures, with the seal resistance corrected for channels that were open.

        A seal that the instrument measured needs no correction: no channel was open then.
        """
        leak = measured["leak"]
        if not measured["seal"] * leak > 0 or not math.isclose(measured["seal"] * leak, 1e3):
            return measured
        left = leak - carried_nS(problem, current_pA, self._values(fits, [well]))
        return {**measured, "seal": 1e3 / left if left > 0 else math.nan}

    def _traces(
        self, problems: Sequence[Problem], currents: Mapping[int, np.ndarray]
    ) -> tuple[np.ndarray, ...]:
        """Return traces of wells for pictures: times, data, fits, and fits minus data.

        Each is thinned by its own extremes, so the last is not the difference of the two before.
        """
        first = problems[0].experiments[0]
        protocol = first.protocol
        lengths = [protocol.n_times(k) for k in range(protocol.n_sweeps)]
        inside = np.arange(protocol.n_times_max) < np.array(lengths)[:, None]
        time = protocol.times_ms + protocol.sampling_ms * np.cumsum([0, *lengths[:-1]])[:, None]
        data, predicted, apart = [], [], []
        for k, problem in enumerate(problems):
            recording = problem.experiments[0].recording
            assert recording is not None
            seen = np.where(recording.weight > 0, recording.current_pA, np.nan)[inside]
            data.append(_thinned(seen))
            own_fit = currents[k][inside] if k in currents else seen * np.nan
            predicted.append(_thinned(own_fit))
            apart.append(_thinned(own_fit - seen))
        rows = (np.array(one, "f4") for one in (data, predicted, apart))
        return _thinned_times(time[inside]), *rows


class Problems(Sequence[Problem]):
    """The problems of wells, each read when it is used."""

    def __init__(self, tasks: WellTasks, recordings: Sequence[WellRecording]) -> None:
        self.tasks, self.recordings = tasks, recordings
        self._load = cache(load_protocol)

    def __len__(self) -> int:
        return len(self.recordings)

    def __getitem__(self, place: Any) -> Any:
        return self.tasks.template.problem(self.tasks.plan, self.recordings[place], self._load)


def _caution_text(caution: Caution) -> str:
    """Return a caution as one reason of a well; reasons are separated by semicolons."""
    return f"{caution.value}: {caution.advice}".replace("; ", ", ")


def _reason(error: InputError, recorded: WellRecording, template: Template) -> str:
    """Return an error as one reason of a well, without the name of the well's own file.

    The text is the same wherever the well is read.
    """
    file = "" if error.file in (recorded.file, recorded.shown) else error.file or ""
    for own in (template.file, template.model_file):
        file = own.name if file == str(own) else file
    parts = (file, error.key, error.message)
    return ": ".join(part for part in parts if part).replace("; ", ", ")


def _stretches(n: int) -> np.ndarray:
    """Return where the stretches of n samples begin, and where the last one ends."""
    count = min(n, _POINTS // 2)
    return np.linspace(0, n, count + 1).astype(int)


def _thinned(values: np.ndarray) -> np.ndarray:
    """Return the least and the largest value of each stretch (n_points,), in order of time."""
    if len(values) <= _POINTS:
        return values
    edges = _stretches(len(values))
    # stretches differ by a sample at most: a shorter one has its last sample twice
    length = int(np.diff(edges).max())
    parts = values[np.minimum(edges[:-1, None] + np.arange(length), edges[1:, None] - 1)]
    found = np.take_along_axis(parts, extreme_places(parts), axis=1)
    found[~np.isfinite(parts).any(axis=1)] = np.nan
    return found.ravel()


def _thinned_times(time_ms: np.ndarray) -> np.ndarray:
    """Return times for the values of `_thinned`: one and three quarters into each stretch."""
    if len(time_ms) <= _POINTS:
        return time_ms
    edges = _stretches(len(time_ms))
    starts, lengths = time_ms[edges[:-1]], np.diff(np.append(time_ms[edges[:-1]], time_ms[-1]))
    return np.stack([starts + lengths / 4, starts + 3 * lengths / 4], axis=1).ravel()


@cache
def _hash_of_file(file: Path, changed: int) -> str:
    """Return the SHA-256 of a file; that of a file with many wells is computed once."""
    return sha256_of(file)
