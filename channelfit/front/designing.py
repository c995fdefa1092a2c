"""Protocols that determine the parameters of a model, for Python users and the command line."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from channelfit.designs.criteria import KINDS as CRITERIA
from channelfit.designs.plan import (
    FAILED,
    DesignPlan,
    DesignTasks,
    Findings,
    ParameterPlan,
    Subject,
    vectors_about,
)
from channelfit.designs.separation import SeparationPlan
from channelfit.designs.waveform import KINDS, Limits
from channelfit.front import kinds
from channelfit.front.ensembles import ensemble_of
from channelfit.front.progress import WorkProgress, compilations_shown, screen_for
from channelfit.front.result import Fit, load
from channelfit.front.simulation import values_with
from channelfit.front.table import table_of
from channelfit.front.verbs.models import DesignOptions
from channelfit.model.channel import ChannelModel
from channelfit.model.model import Model
from channelfit.problem.arguments import quantities
from channelfit.problem.clamp import Clamp, read_clamp
from channelfit.problem.protocol import Protocol
from channelfit.problem.rate_bounds import Bounded, read_rate_bounds, tied_bounds
from channelfit.reading.csv_tables import csv_table
from channelfit.reading.documents import Section
from channelfit.reading.errors import Caution, InputError, shown
from channelfit.reading.files import write_text
from channelfit.reading.formats.syncropatch import eph_text
from channelfit.reading.keys import KEYS
from channelfit.results.files import fit_file, make_folder
from channelfit.results.report.terminal import SearchScreen
from channelfit.results.run_state import json_text
from channelfit.results.uncertainty.assessment import assess
from channelfit.results.uncertainty.noise_spectrum import NoiseSpectrum
from channelfit.tasks.executor import Executor, task_results
from channelfit.tasks.result_store import ResultStore
from channelfit.tasks.worker import software

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scheme: TypeAlias = Model | Fit | str | os.PathLike[str]
#: A scheme as read: its model, the raw fit section, and the file for messages.
ReadScheme: TypeAlias = tuple[ChannelModel, Mapping[str, Any], str | os.PathLike[str]]
_MOST_SAMPLES, _MOST_SEGMENTS, _GREATEST_SPREAD = 10_000_000, 200, 10.0


class Design:
    """A designed protocol, and what it is expected to show, beside other protocols.

    Attributes:
        protocol: the protocol, with whole mV and whole samples.
        criteria: of all starts, the best first.
        results: by the name of each protocol, the designed one first, by row and by column, what is
            expected. A row is a parameter, and its only column the standard error in percent of the
            value, the geometric mean over the ensemble. Where schemes are to be separated, a row
            is a pair of them, and its columns are what the best fit of the second one leaves of the
            current of the first, pA, and how much larger its BIC is, the least of the ensemble.
        remarks: what stays open, and how others compare, a sentence each.

    Example:
        >>> import channelfit as cf
        >>> found = cf.design(
        ...     "models/model_b.yaml", length="200 ms", segments="4 step", noise="5 pA",
        ...     starts=1, iterations=5, progress=False,
        ... )
        >>> found.protocol.n_sweeps
        1
        >>> len(found.results["design"])
        9
    """

    def __init__(
        self, plan: DesignPlan, x: np.ndarray, criteria: Sequence[float], others: Sequence[Protocol]
    ) -> None:
        self._plan, self._x = plan, plan.waveform.rounded(x)
        self.criteria = tuple(criteria)
        self.protocol = plan.protocol(x, "design")
        self._found: dict[str, Findings] = {}
        self._lengths: dict[str, float] = {}
        for protocol in (self.protocol, *others):
            title = protocol.name
            while title in self._found:
                title += "'"
            self._found[title] = plan.judged(protocol)
            samples = np.isfinite(protocol.voltage()).sum()  # of all sweeps
            self._lengths[title] = float(samples * protocol.sampling_ms)
        self.remarks = self._remarks()

    @property
    def results(self) -> dict[str, dict[str, dict[str, float]]]:
        """See the class."""
        return {
            title: {name: dict(row) for name, row in found.rows.items()}
            for title, found in self._found.items()
        }

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The entries of `table`, by row and by column."""
        own = self._found["design"]
        table = {name: dict(own.facts.get(name, {})) for name in own.rows}
        for title, found in self._found.items():
            for name, row in found.rows.items():
                table[name] |= {f"{title} {column}": number for column, number in row.items()}
        return table

    @property
    def table(self) -> Any:
        """The results as rows with the columns of each protocol; of parameters also the values.

        A DataFrame where pandas is installed, else a `Table`.
        """
        return table_of(self.rows, list(next(iter(self.rows.values()))))

    def _remarks(self) -> list[str]:
        own, *others = self._found
        lines = list(self._found[own].remarks)
        for title in others:
            # both aims come nearer with the root of the time for which a protocol is repeated
            longer = (self._lengths[title] / self._lengths[own]) ** 0.5
            ratio = self._found[title].size / self._found[own].size
            ratio = ratio * longer if self._plan.small else ratio / longer
            lines.append(
                f"{title}, {self._lengths[title] / 1e3:g} s: at equal recording time "
                f"{self._plan.words} {ratio:.3g} times as large."
            )
        return lines

    def plot(self) -> Figure:
        """Draw the command, currents, and which segment tells how much of what.

        Sweeps are drawn one after the other.
        """
        from channelfit.designs.picture import design_figure  # loads Matplotlib
        from channelfit.front.pictures import shown_in_notebooks

        found, pieces = self._found["design"], self._plan.waveform.pieces(self._x)
        traces, each = self._plan.drawn(self.protocol, pieces, found)
        names = list(found.rows)[: each.shape[1]]  # without predictions
        figure = design_figure(self.protocol, traces, pieces, each, names, self._plan.title)
        return shown_in_notebooks(figure)

    @property
    def summary(self) -> dict[str, Any]:
        """All numbers as plain data, as in ``design.json``."""
        known = {"for": self._plan.title, "criteria": list(self.criteria), "results": self.results}
        return {**known, "lengths_ms": self._lengths, "remarks": self.remarks}

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write the protocol, the stimulus as a table, ``design.json`` and a picture.

        Of steps and ramps an ``.eph`` file for a SyncroPatch is written as well, one for each sweep
        where there are several.

        Returns: the files. Raises: InputError where the folder cannot be written.
        """
        from channelfit.results.report.plots import save  # loads Matplotlib

        folder, protocol = Path(folder), self.protocol
        make_folder(folder)
        names = [""] if protocol.n_sweeps == 1 else [f"_{k + 1}" for k in range(protocol.n_sweeps)]
        columns = [(f"voltage{n}_mV", v) for n, v in zip(names, protocol.voltage(), strict=True)]
        texts = {
            "protocol.yaml": protocol.to_yaml(),
            "stimulus.csv": csv_table([("time_ms", protocol.times_ms), *columns], digits=9),
            "design.json": json_text(self.summary),
        }
        if "sines" not in self._plan.kinds:
            for name, sweep in zip(names, protocol.sweeps, strict=True):
                ends = [(s, s.voltage(np.array([s.start_ms, s.end_ms]))) for s in sweep]
                rows = [(float(a), float(b), round(s.end_ms - s.start_ms, 9)) for s, (a, b) in ends]
                texts[f"protocol{name}.eph"] = eph_text(
                    f"design{name}", protocol.holding_mV, protocol.sampling_ms, rows
                )
        for name, text in texts.items():
            write_text(folder / name, text)
        save(self.plot(), folder / "design.png")
        return [folder / name for name in (*texts, "design.png")]

    def __repr__(self) -> str:
        return f"<Design for {self._plan.title}: {self.protocol!r}>"


def design(
    model: Scheme,
    *,
    separate: Sequence[Scheme] | Scheme = (),
    length: float | str = "15 s",
    segments: str = "20 step",
    noise: float | str | Fit | os.PathLike[str] = "10 pA",
    limits: Mapping[str, Any] | None = None,
    criterion: str = "log",
    parameters: Sequence[str] | str = (),
    predict: Sequence[Protocol | str | os.PathLike[str]] | Protocol | str = (),
    ensemble: Mapping[str, Any] | None = None,
    compare: Sequence[Protocol | str | os.PathLike[str]] | Protocol | str = (),
    starts: int = 8,
    iterations: int = 100,
    seed: int = 0,
    values: Mapping[str, float] | None = None,
    progress: bool | None = None,
) -> Design:
    """Design a protocol that determines the parameters of a model.

    Expected standard errors are those of least squares. From random starts
    a quasi-Newton method descends by exact derivatives of the criterion by all voltages and
    durations. The best protocol is rounded to whole mV and samples, and judged again by the
    derivatives by which fits descend. With `separate` it separates schemes instead: the least
    distance between the current of one of them and the best fit of another becomes large.

    The starts descend under an ideal clamp. Where a fit has a clamp, the best of them is chosen
    through it, changed further while that is a gain, and judged.

    Arguments:
        model: a `Model`, a `Fit` (whose fitted values are taken), or a model or fit file.
        separate: other schemes, likewise, from which the protocol is to separate the model. Their
            fits keep the bounds on rates of their files.
        length: ms, of each sweep.
        segments: how many of which kind, one after the other, such as ``"10 step, 2 ramp, sines"``.
        noise: pA, the standard deviation of a sample, independent of others; or a `Fit` or the
            folder of a run: its residuals are taken as noise, with their correlation.
        limits: of amplifier and cell, those that differ from the defaults: ``holding`` before each
            sweep (``"-80 mV"``, or a range to choose from, ``"-100 mV .. -60 mV"``), ``lowest``
            (``"-120 mV"``) and ``highest`` (``"60 mV"``) command, ``slew``, mV/ms, which makes
            ramps of jumps (none), ``shortest`` segment (``"20 ms"``), ``sampling``
            (``"0.5 ms"``), ``mask``, ms after a jump whose samples do not count (0), and
            ``sweeps``, their number (1).
        criterion: ``log``, the mean logarithm of the standard errors, ``D``, ``A``, ``E``, or
            ``V``, the mean variance of the currents that are predicted.
        parameters: names of those that count, with ``log`` and ``A``; all without it.
        predict: protocols under which currents are predicted; their errors are listed.
        ensemble: of parameter vectors about the values, over which the criterion is averaged:
            ``members`` (1), ``spread``, the standard deviation of the logarithm of each parameter
            (0.2), and ``worst``, whether the worst member counts, and not the mean (False); or
            ``vectors``, where they are from: fits, tables with a column for each parameter, the
            families of an ``uncertainty.json``, or "prior": priors, or where there is none ranges.
        compare: protocols whose expected errors are listed beside those of the design.
        starts: random starts.
        iterations: of each start, at most.
        seed: of starts and ensemble.
        values: of parameters by name, in base units, in place of the model's.
        progress: whether to show the work; None shows it in notebooks and on terminals.

    Returns: a `Design`.

    Raises:
        InputError: a parameter without a value, an unknown name, limits that leave no room.

    Example:
        >>> import channelfit as cf
        >>> found = cf.design(
        ...     "models/model_b.yaml", length=100, segments="3 step", limits={"slew": 50},
        ...     starts=1, iterations=3, progress=False,
        ... )
        >>> len(found.table)
        9
    """
    names = [parameters] if isinstance(parameters, str) else list(parameters)
    others = [separate] if isinstance(separate, str | os.PathLike | Model | Fit) else separate
    plan, cautions = design_plan(
        [_read(one) for one in (model, *others)],
        values,
        **grouped("limits", limits),
        **grouped("ensemble", ensemble),
        length=length,
        segments=segments,
        noise=noise,
        criterion=criterion,
        parameters=names,
        predict=loaded(predict),
        iterations=iterations,
        seed=seed,
    )
    with screen_for(plan.title, progress) as screen, compilations_shown(screen):
        screen.warn(cautions)
        return designed(plan, starts, loaded(compare), screen)


def grouped(argument: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the options that Python takes in one argument, with their defaults.

    Raises: InputError for a key that none of them has.
    """
    own = [(f.name, f.metadata["option"]) for f in fields(DesignOptions)]
    members = {name: one.parameter for name, one in own if one.python == argument}
    found = {
        name: False if p.is_flag else () if p.multiple else p.default for name, p in members.items()
    }
    strange = next((key for key in given or {} if key not in found), None)
    if strange is not None:
        raise InputError(f"{shown(strange)} is none of {', '.join(found)}", key=argument)
    return {**found, **(given or {})}


def design_plan(
    schemes: Sequence[ReadScheme], values: Mapping[str, float] | None = None, **given: Any
) -> tuple[DesignPlan, list[Caution]]:
    """Return the plan of a design, checked, and what looks wrong.

    Arguments:
        schemes: the one in question, and those from which to separate it.
        values: in place of those of the first.
        given: all other arguments of `design`, those of its groups by their own names.
    """

    def number(name: str, dimension: str) -> float:
        return quantities(given[name], name, dimension)[0]

    def whole(name: str) -> int:
        if type(given[name]) is not int or given[name] < 1:
            raise InputError(f"1 or more was expected, not {shown(given[name])}", key=name)
        return int(given[name])

    for model, *_ in schemes:
        model.refuse_ligands("a design commands the voltage alone")
    limits = Limits(
        **{name: number(name, "voltage") for name in ("lowest", "highest")},
        **{name: number(name, "time") for name in ("length", "shortest", "mask", "sampling")},
        holding=_holding(given["holding"]),
        slew=math.inf if given["slew"] == "" else number("slew", "slew"),
        sweeps=whole("sweeps"),
    )
    spread = number("spread", "none")
    if not 0 <= spread <= _GREATEST_SPREAD:
        raise InputError(f"{spread:g} is not within 0 and {_GREATEST_SPREAD:g}", key="spread")
    if type(given["worst"]) is not bool:
        raise InputError(f"true or false was expected, not {shown(given['worst'])}", key="worst")
    if type(given["seed"]) is not int or given["seed"] < 0:
        raise InputError(f"0 or more was expected, not {shown(given['seed'])}", key="seed")
    subjects, names = list[Subject](), set[str]()
    cautions = _of_numbers(given, limits)
    for k, (channel, fit, file) in enumerate(schemes):
        model = channel.with_values(values_with(channel, values if k == 0 else None))
        title = model.name + "'" * sum(name.rstrip("'") == model.name for name in names)
        names.add(title)
        clamp, bounds, found = _of_fit(model, fit, file, limits)
        cautions += [*channel.cautions, *found]
        if k == 0 and given["vectors"]:
            members = ensemble_of(model, given["vectors"], whole("members"), given["seed"])
        else:
            members = vectors_about(model, whole("members"), spread, given["seed"])
        subjects.append(Subject(replace(model, name=title), members, clamp, bounds))
    noise, spectrum, found = _noise(given["noise"], limits)
    cautions += found
    common: dict[str, Any] = {
        "subjects": tuple(subjects),
        "kinds": segments_of(given["segments"]),
        "limits": limits,
        "noise": noise,
        "spectrum": spectrum,
        "seed": given["seed"],
        "iterations": whole("iterations"),
    }
    own = {
        "criterion": given["criterion"],
        "counting": tuple(given["parameters"]),
        "worst": given["worst"],
        "predict": tuple(given["predict"]),
    }
    _check(subjects[0], common, own)
    if len(subjects) == 1:
        return ParameterPlan(**common, **own), cautions
    aims = own["counting"], own["worst"], own["predict"], given["vectors"]
    if own["criterion"] != "log" or any(aims):
        raise InputError(
            "of schemes that are to be separated the least distance counts; criterion, "
            "parameters, predict, vectors and worst are for the parameters of one",
            key="separate",
        )
    return SeparationPlan(**common), cautions


def _of_numbers(given: Mapping[str, Any], limits: Limits) -> list[Caution]:
    """Return what looks wrong about options that others make useless, or that are rounded."""
    found, usual = [], grouped("ensemble")
    alone = given["members"] == 1 and not given["vectors"]
    for name in ("spread", "worst"):
        if given[name] != usual[name] and (alone or (name == "spread" and given["vectors"])):
            then = "it is of several `members`, and there is one"
            if given["vectors"]:
                then = "members are those of `vectors`"
            found.append(Caution(name, f"{given[name]} has no effect", then))
    n = limits.length / limits.sampling if limits.sampling > 0 else 0.0
    if abs(n - round(n)) > 1e-6 * n:
        value = f"{limits.length:g} ms is no whole number of samples of {limits.sampling:g} ms"
        found.append(Caution("length", value, f"{int(n) * limits.sampling:g} ms are designed"))
    return found


def _read(scheme: Scheme) -> ReadScheme:
    if isinstance(scheme, Fit):
        return scheme.model.channel, scheme._plan.section, scheme.name
    if isinstance(scheme, Model):
        return scheme.channel, {}, scheme.channel.name
    return read_scheme(Path(scheme))


def read_scheme(path: Path, overrides: Sequence[str] = ()) -> ReadScheme:
    """Return the scheme of a model file, a fit file or a run folder."""
    channel, document = kinds.channel_document(fit_file(path), overrides)
    return channel, document.get("fit") or {}, path


def _of_fit(
    model: ChannelModel, fit: Mapping[str, Any], file: str | os.PathLike[str], limits: Limits
) -> tuple[Clamp | None, tuple[Bounded, ...], list[Caution]]:
    """Return the clamp and the bounds on rates in a fit section, and what looks wrong."""
    section = Section(fit, file, "fit")
    section.expect(KEYS["fit"])
    rows = enumerate(section.items("experiments"), 1)
    places = [Section(row, file, section.path(f"experiments[{k}]")) for k, row in rows]
    for place in places:
        place.expect(KEYS["experiment"])
    own = [place if "clamp" in place else section for place in places or [section]]
    found = [read_clamp(p.section("clamp"), model) if "clamp" in p else None for p in own]
    cautions = []
    if len(set(found)) > 1:
        value = "the clamp of the first experiment is taken"
        why = "the experiments have different clamps, and a design has one"
        cautions.append(Caution(f"{file}: fit.experiments", value, why))
    ends = [limits.lowest, limits.highest]
    commands = Protocol.steps(ends, 1.0, holding=limits.holding[0], sampling=1.0)
    return found[0], read_rate_bounds(section, model, [commands]) + tied_bounds(model), cautions


def _noise(given: Any, limits: Limits) -> tuple[float, NoiseSpectrum | None, list[Caution]]:
    """Return the standard deviation of a sample, pA, its spectrum, and what looks wrong.

    The spectrum is None where samples are independent.
    """
    if not isinstance(given, Fit):
        if not isinstance(given, os.PathLike):
            try:
                return quantities(given, "noise", "current")[0], None, []
            except InputError as error:
                if not os.path.exists(str(given)):
                    words = f"{error.message}, or the folder of a finished fit"
                    raise InputError(words, key="noise") from None
        given = load(given)
    plan, sampling = given._plan, limits.sampling
    kinds.with_currents(plan, "so it has no residuals of currents")
    experiments = [e for e in plan.problem.experiments if e.weight > 0]

    def refuse(wrong: object, message: str, key: str = "noise") -> None:
        if wrong:
            raise InputError(f"{given.name}: {message}", key=key)

    observed = any(e.recording is None or e.observations for e in experiments)
    refuse(observed, "published numbers have no series of residuals")
    refuse(plan.problem.noise is not None, "the noise of channels changes with the current")
    others = [e.protocol.sampling_ms for e in experiments]
    others = [dt for dt in others if not math.isclose(dt, sampling)]
    words = f"the residuals have a sample each {', '.join(f'{dt:g}' for dt in others[:1])} ms"
    refuse(others, f"{words}, and the design each {sampling:g} ms; the two must agree", "sampling")
    found = assess(plan, given._scorer, given._result.values, traces=given.traces).estimate
    refuse(found.assumed, "the recording has no noise")
    cautions = []
    longest = max(e.protocol.times_ms.size * e.protocol.n_sweeps for e in experiments) * sampling
    if found.spectrum is not None and longest < limits.length:
        value = f"{longest:g} ms of residuals for {limits.length:g} ms"
        why = "slower noise than they hold is taken to be as strong as their slowest"
        cautions.append(Caution(f"noise: {given.name}", value, why))
    return found.sigma_pA, found.spectrum, cautions


def loaded(
    protocols: Sequence[Protocol | str | os.PathLike[str]] | Protocol | str | os.PathLike[str],
) -> list[Protocol]:
    """Return one or several protocols, read where they are files."""
    if isinstance(protocols, Protocol | str | os.PathLike):
        protocols = [protocols]
    return [p if isinstance(p, Protocol) else Protocol.load(p) for p in protocols]


def _holding(given: Any) -> tuple[float, float]:
    """Return the range of the holding potential, mV, from a voltage or from two."""
    parts = given.split("..") if isinstance(given, str) else given
    found = quantities(parts, "holding", "voltage")
    if len(found) > 2 or found[0] > found[-1]:
        raise InputError(
            f"a voltage, or a range such as -100 mV .. -60 mV, was expected, not {shown(given)}",
            key="holding",
        )
    return found[0], found[-1]


def _check(subject: Subject, common: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise InputError for a criterion or limits that cannot be."""

    def refuse(wrong: object, key: str, message: str) -> None:
        if wrong:
            raise InputError(message, key=key)

    names, counting, criterion = [p.name for p in subject.free], own["counting"], own["criterion"]
    strange = [name for name in counting if name not in names]
    refuse(not names, "parameters", "all parameters are fixed; there is nothing to determine")
    refuse(strange, "parameters", f"no free parameter {shown(strange)}; there is {shown(names)}")
    alone = counting and criterion not in ("log", "A")
    refuse(alone, "parameters", "only the criteria log and A can leave parameters out")
    words = f"one of {', '.join(CRITERIA)} was expected, not {shown(criterion)}"
    refuse(criterion not in CRITERIA, "criterion", words)
    no_aim = criterion == "V" and not own["predict"]
    refuse(no_aim, "criterion", "V needs the protocols of `predict`")
    refuse(common["noise"] <= 0, "noise", f"{common['noise']:g} pA is not above 0")

    limits, segments = common["limits"], common["kinds"]
    lowest, highest, (low, high) = limits.lowest, limits.highest, limits.holding
    shortest, sampling = f"{limits.shortest:g} ms", f"{limits.sampling:g} ms"
    words = f"is {lowest:g} mV, which is not below highest, {highest:g} mV"
    refuse(lowest >= highest, "lowest", words)
    words = f"{low:g} to {high:g} mV is not within lowest and highest"
    refuse(low < lowest or high > highest, "holding", words)
    refuse(limits.sampling <= 0, "sampling", f"{sampling} is not above 0")
    refuse(limits.slew <= 0, "slew", f"{limits.slew:g} mV/ms is not above 0")
    words = "one protocol file cannot hold sweeps with different sines"
    refuse(limits.sweeps > 1 and "sines" in segments, "sweeps", words)
    n = len(segments) * limits.sweeps
    refuse(n > _MOST_SEGMENTS, "segments", f"{n} segments are more than {_MOST_SEGMENTS}")
    words = f"{limits.mask:g} ms is not below the shortest segment, {shortest}"
    refuse(not 0 <= limits.mask < limits.shortest, "mask", words)
    words = f"{shortest} is less than a sampling interval"
    refuse(limits.shortest < limits.sampling, "shortest", words)
    samples = limits.length * limits.sweeps / limits.sampling
    words = f"{sampling} makes more than {_MOST_SAMPLES:,} samples"
    refuse(samples > _MOST_SAMPLES, "sampling", words)
    least = sum(limits.least(kind) + limits.jump for kind in segments) * limits.sampling
    words = f"{limits.length:g} ms has no room for {len(segments)} segments of {shortest}"
    jumps = f" and jumps of {limits.jump * limits.sampling:g} ms" if limits.jump else ""
    refuse(limits.length <= least, "length", words + jumps)


def segments_of(text: str) -> tuple[str, ...]:
    """Return kinds of segments from a text such as ``10 step, 2 ramp, sines``."""
    if not isinstance(text, str):
        words = f"a text such as '10 step, 2 ramp' was expected, not {shown(text)}"
        raise InputError(words, key="segments")
    found: list[str] = []
    for part in text.split(","):
        words = part.split()
        count, kind = ("1", *words) if len(words) == 1 else words if len(words) == 2 else ("", "")
        if kind not in KINDS or not count.isdecimal() or not 1 <= int(count) <= _MOST_SEGMENTS:
            raise InputError(
                f"{shown(part.strip())} is no number and kind of segments, such as 10 step; kinds "
                f"are {', '.join(KINDS)}",
                key="segments",
            )
        found += [kind] * int(count)
    return tuple(found)


def designed(
    plan: DesignPlan,
    starts: int,
    others: Sequence[Protocol],
    screen: SearchScreen,
    executor: Executor | None = None,
    store: ResultStore | None = None,
) -> Design:
    """Return the design of a plan, the best of all starts."""
    if starts < 1:
        raise InputError(f"at least 1 was expected, not {starts}", key="starts")
    tasks = DesignTasks(plan, dict(software(False)))
    work = WorkProgress(screen, starts, "starts")
    results = task_results(
        tasks,
        [("start", k) for k in range(starts)],
        executor,
        store,
        lambda key, found: work.done(f"start {key[1]}"),
    )
    found = sorted((result for _, result in results), key=lambda result: float(result["criterion"]))
    criteria = [float(result["criterion"]) for result in found]
    if criteria[0] >= FAILED:
        raise InputError("no start led to a protocol under which the model's current is finite")
    clamped = any(subject.clamp is not None for subject in plan.subjects)
    screen.begin(f"{'refining and ' * clamped}judging the best protocol")
    return Design(plan, plan.refined(found[0]["vector"]), criteria, others)
