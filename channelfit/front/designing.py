"""Protocols that determine the parameters of a model, for Python users and the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from channelfit.designs.criteria import KINDS as CRITERIA
from channelfit.designs.plan import (
    FAILED,
    DesignPlan,
    DesignTasks,
    ParameterPlan,
    Row,
    ensemble,
)
from channelfit.designs.separation import SeparationPlan
from channelfit.designs.waveform import KINDS, Limits
from channelfit.front import kinds
from channelfit.front.progress import WorkProgress, compilations_shown, screen_for
from channelfit.front.result import Fit
from channelfit.front.simulation import values_with
from channelfit.front.table import table_of
from channelfit.model.channel import ChannelModel
from channelfit.model.model import Model
from channelfit.problem.arguments import quantities
from channelfit.problem.clamp import left_out
from channelfit.problem.protocol import Protocol
from channelfit.reading.csv_tables import csv_table
from channelfit.reading.errors import Caution, InputError, shown
from channelfit.reading.files import write_text
from channelfit.reading.formats.syncropatch import eph_text
from channelfit.results.files import make_folder
from channelfit.results.report.terminal import SearchScreen
from channelfit.results.run_state import json_text
from channelfit.tasks.executor import Executor, task_results
from channelfit.tasks.result_store import ResultStore
from channelfit.tasks.worker import software

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scheme: TypeAlias = Model | Fit | str | os.PathLike[str]
_MOST_SAMPLES, _GREATEST_SPREAD = 10_000_000, 10.0


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
        self._rows: dict[str, list[Row]] = {}
        self._lengths: dict[str, float] = {}
        for protocol in (self.protocol, *others):
            title = protocol.name
            while title in self._rows:
                title += "'"
            self._rows[title] = plan.judged(protocol)
            samples = np.isfinite(protocol.voltage()).sum()
            self._lengths[title] = float(samples * protocol.sampling_ms)
        self.remarks = self._remarks()

    @property
    def results(self) -> dict[str, dict[str, dict[str, float]]]:
        """See the class."""
        return {
            title: {row.name: dict(row.columns) for row in rows}
            for title, rows in self._rows.items()
        }

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The entries of `table`, by row and by column."""
        table: dict[str, dict[str, Any]] = {}
        for title, rows in self._rows.items():
            for row in rows:
                own = {f"{title} {column}": number for column, number in row.columns.items()}
                table[row.name] = table.get(row.name, dict(row.facts)) | own
        return table

    @property
    def table(self) -> Any:
        """The results as rows with the columns of each protocol; of parameters also the values.

        A DataFrame where pandas is installed, else a `Table`.
        """
        return table_of(self.rows, list(next(iter(self.rows.values()))))

    def _remarks(self) -> list[str]:
        own, *others = self._rows
        lines = self._plan.remarks(self._rows[own])
        size = self._plan.size(self._rows[own])
        for title in others:
            # both aims come nearer with the root of the time for which a protocol is repeated
            longer = (self._lengths[title] / self._lengths[own]) ** 0.5
            ratio = self._plan.size(self._rows[title]) / size
            ratio = ratio * longer if self._plan.small else ratio / longer
            lines.append(
                f"{title}, {self._lengths[title] / 1e3:g} s: at equal recording time "
                f"{self._plan.words} {ratio:.3g} times as large."
            )
        return lines

    def plot(self) -> Figure:
        """Draw the command, currents, and which segment tells how much of what."""
        from channelfit.designs.picture import design_figure  # loads Matplotlib
        from channelfit.front.pictures import shown_in_notebooks

        plan, rows = self._plan, self._rows["design"]
        pieces = plan.waveform.pieces(self._x)
        ends = np.concatenate([[0.0], np.cumsum(plan.waveform.durations(self._x))])
        segment = np.searchsorted(ends[1:], np.cumsum(pieces.lengths) - 0.5 * pieces.lengths)
        each = plan.shares(pieces, rows)
        names = [row.name for row in rows[: each.shape[1]]]  # without predictions
        shares = np.zeros((len(plan.kinds), len(names)))
        np.add.at(shares, segment, each)
        shares /= np.maximum(shares.sum(axis=0), 1e-300)
        traces = plan.traces(self.protocol, rows)
        figure = design_figure(self.protocol, traces, ends, shares, names, plan.title)
        return shown_in_notebooks(figure)

    @property
    def summary(self) -> dict[str, Any]:
        """All numbers as plain data, as in ``design.json``."""
        return {
            "for": self._plan.title,
            "criteria": list(self.criteria),
            "results": self.results,
            "lengths_ms": self._lengths,
            "remarks": self.remarks,
        }

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write the protocol, the stimulus as a table, ``design.json`` and a picture.

        Of steps and ramps an ``.eph`` file for a SyncroPatch is written as well.

        Returns: the files. Raises: InputError where the folder cannot be written.
        """
        from channelfit.results.report.plots import save  # loads Matplotlib

        folder = Path(folder)
        make_folder(folder)
        times, volts = self.protocol.times_ms, self.protocol.voltage()[0]
        texts = {
            "protocol.yaml": self.protocol.to_yaml(),
            "stimulus.csv": csv_table([("time_ms", times), ("voltage_mV", volts)], digits=9),
            "design.json": json_text(self.summary),
        }
        if "sines" not in self._plan.kinds:
            rows = self._plan.waveform.epochs(self._x)
            limits = self._plan.limits
            texts["protocol.eph"] = eph_text("design", limits.holding, limits.sampling, rows)
        for name, text in texts.items():
            write_text(folder / name, text)
        save(self.plot(), folder / "design.png")
        return [folder / name for name in (*texts, "design.png")]

    def __repr__(self) -> str:
        return f"<Design for {self._plan.title}: {self.protocol!r}>"


def design(
    model: Scheme,
    *,
    separate: Sequence[Scheme] = (),
    length: float | str = "15 s",
    segments: str = "20 step",
    noise: float | str = "10 pA",
    holding: float | str = "-80 mV",
    lowest: float | str = "-120 mV",
    highest: float | str = "60 mV",
    shortest: float | str = "20 ms",
    sampling: float | str = "0.5 ms",
    mask: float | str = 0.0,
    criterion: str = "log",
    parameters: Sequence[str] | str = (),
    predict: Sequence[Protocol | str | os.PathLike[str]] = (),
    members: int = 1,
    spread: float = 0.2,
    worst: bool = False,
    compare: Sequence[Protocol | str | os.PathLike[str]] = (),
    starts: int = 8,
    iterations: int = 100,
    seed: int = 0,
    values: Mapping[str, float] | None = None,
    progress: bool | None = None,
) -> Design:
    """Design a protocol of one sweep that determines the parameters of a model.

    Expected standard errors follow from the Fisher information of white noise. From random starts
    a quasi-Newton method descends by exact derivatives of the criterion by all voltages and
    durations. The best protocol is rounded to whole mV and samples, and judged again by the
    derivatives by which fits descend. With `separate` it separates schemes instead: the least
    distance between the current of one of them and the best fit of another becomes large.

    Arguments:
        model: a `Model`, a `Fit` (whose fitted values are taken), or a model or fit file.
        separate: other schemes, likewise, from which the protocol is to separate the model.
        length: ms, of the protocol.
        segments: how many of which kind, one after the other, such as ``"10 step, 2 ramp, sines"``.
        noise: pA, the standard deviation of a sample.
        holding: mV, before the protocol.
        lowest, highest: mV, the limits of the command voltage.
        shortest: ms, the least duration of a segment.
        sampling: ms between samples.
        mask: ms after each jump of the voltage whose samples do not count.
        criterion: ``log``, the mean logarithm of the standard errors, ``D``, ``A``, ``E``, or
            ``V``, the mean variance of the currents that are predicted.
        parameters: names of those that count, with ``log`` and ``A``; all without it.
        predict: protocols under which currents are predicted; their errors are listed.
        members: vectors of an ensemble about the values over which the criterion is averaged.
        spread: of that ensemble, the standard deviation of the logarithm of each parameter.
        worst: whether the worst member counts, and not the mean.
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
        ...     "models/model_b.yaml", length=100, segments="3 step", starts=1, iterations=3,
        ...     progress=False,
        ... )
        >>> len(found.table)
        9
    """
    channel, cautions = _channel(model)
    others = [_channel(one) for one in separate]
    names = [parameters] if isinstance(parameters, str) else list(parameters)
    plan = design_plan(
        channel,
        separate=[other for other, _ in others],
        values=values,
        length=length,
        segments=segments,
        noise=noise,
        holding=holding,
        lowest=lowest,
        highest=highest,
        shortest=shortest,
        sampling=sampling,
        mask=mask,
        criterion=criterion,
        parameters=names,
        predict=_loaded(predict),
        members=members,
        spread=spread,
        worst=worst,
        iterations=iterations,
        seed=seed,
    )
    with screen_for(plan.title, progress) as screen, compilations_shown(screen):
        for found in (cautions, *(more for _, more in others)):
            screen.warn(found)
        return designed(plan, starts, _loaded(compare), screen)


def design_plan(channel: ChannelModel, **given: Any) -> DesignPlan:
    """Return the plan of a design from the arguments of `design`, checked."""

    def number(name: str, dimension: str) -> float:
        return quantities(given[name], name, dimension)[0]

    model = channel.with_values(values_with(channel, given["values"]))
    limits = Limits(
        lower=number("lowest", "voltage"),
        upper=number("highest", "voltage"),
        holding=number("holding", "voltage"),
        length=number("length", "time"),
        shortest=number("shortest", "time"),
        mask=number("mask", "time"),
        sampling=number("sampling", "time"),
    )
    names = [p.name for p in model.parameters if not p.fixed]
    if not names:
        raise InputError(
            "all parameters are fixed; there is nothing to determine", key="parameters"
        )
    strange = next((name for name in given["parameters"] if name not in names), None)
    if strange is not None:
        raise InputError(
            f"no free parameter {shown(strange)}; there is {', '.join(names)}", key="parameters"
        )
    if given["criterion"] not in CRITERIA:
        raise InputError(
            f"one of {', '.join(CRITERIA)} was expected, not {shown(given['criterion'])}",
            key="criterion",
        )
    if given["parameters"] and given["criterion"] not in ("log", "A"):
        raise InputError("only the criteria log and A can leave parameters out", key="parameters")
    if given["criterion"] == "V" and not given["predict"]:
        raise InputError("V needs the protocols of `predict`", key="criterion")
    if not (given["members"] >= 1 and 0 <= given["spread"] <= _GREATEST_SPREAD):
        raise InputError(
            f"1 or more members of a spread of 0 to {_GREATEST_SPREAD:g} were expected, not "
            f"{given['members']} of {given['spread']}",
            key="spread",
        )

    def members(scheme: ChannelModel) -> np.ndarray:
        return ensemble(scheme, scheme.values(), given["members"], given["spread"], given["seed"])

    common: dict[str, Any] = {
        "kinds": segments_of(given["segments"]),
        "limits": limits,
        "noise": number("noise", "current"),
        "seed": given["seed"],
        "iterations": given["iterations"],
    }
    plan: DesignPlan
    if given["separate"]:
        others = (given["parameters"], given["predict"], given["worst"])
        if given["criterion"] != "log" or any(others):
            raise InputError(
                "of schemes that are to be told apart the least distance counts; criterion, "
                "parameters, predict and worst are for the parameters of one",
                key="separate",
            )
        models = _named((model, *given["separate"]))
        plan = SeparationPlan(models=models, truths=tuple(map(members, models)), **common)
    else:
        plan = ParameterPlan(
            model=model,
            members=members(model),
            criterion=given["criterion"],
            counting=tuple(given["parameters"]),
            worst=given["worst"],
            predict=tuple(given["predict"]),
            **common,
        )
    _check(plan)
    return plan


def _channel(scheme: Scheme) -> tuple[ChannelModel, tuple[Caution, ...]]:
    """Return the model of a scheme, and what looks wrong or is left out."""
    own = scheme.model if isinstance(scheme, Fit) else scheme
    if isinstance(own, Model):
        apart = (
            left_out({"fit": scheme._plan.section}, scheme.name) if isinstance(scheme, Fit) else ()
        )
        return own.channel, (*own.channel.cautions, *apart)
    channel, document = kinds.channel_document(own)
    return channel, (*channel.cautions, *left_out(document, os.fspath(own)))


def _loaded(protocols: Sequence[Protocol | str | os.PathLike[str]]) -> list[Protocol]:
    return [p if isinstance(p, Protocol) else Protocol.load(p) for p in protocols]


def _named(models: Sequence[ChannelModel]) -> tuple[ChannelModel, ...]:
    """Return schemes of which no two have the same name."""
    found: dict[str, ChannelModel] = {}
    for model in models:
        name = model.name
        while name in found:
            name += "'"
        found[name] = replace(model, name=name)
    return tuple(found.values())


def _check(plan: DesignPlan) -> None:
    """Raise InputError for limits that leave no room."""
    limits = plan.limits
    if not limits.lower < limits.upper:
        raise InputError(
            f"is {limits.lower:g} mV, which is not below highest, {limits.upper:g} mV", key="lowest"
        )
    if not limits.sampling > 0:
        raise InputError(f"{limits.sampling:g} ms is not above 0", key="sampling")
    if not plan.noise > 0:
        raise InputError(f"{plan.noise:g} pA is not above 0", key="noise")
    if not 0 <= limits.mask < limits.shortest:
        raise InputError(
            f"{limits.mask:g} ms is not below the shortest segment, {limits.shortest:g} ms",
            key="mask",
        )
    if limits.shortest < limits.sampling:
        raise InputError(f"{limits.shortest:g} ms is less than a sampling interval", key="shortest")
    if limits.length / limits.sampling > _MOST_SAMPLES:
        raise InputError(
            f"{limits.sampling:g} ms makes more than {_MOST_SAMPLES:,} samples",
            key="sampling",
        )
    least = len(plan.kinds) * limits.shortest
    if not limits.length > least:
        raise InputError(
            f"{limits.length:g} ms has no room for {len(plan.kinds)} segments of "
            f"{limits.shortest:g} ms",
            key="length",
        )


def segments_of(text: str) -> tuple[str, ...]:
    """Return kinds of segments from a text such as ``10 step, 2 ramp, sines``."""
    found: list[str] = []
    for part in text.split(","):
        words = part.split()
        count, kind = (words[0], words[1]) if len(words) == 2 else ("1", words[0] if words else "")
        if (
            len(words) > 2
            or kind not in KINDS
            or not count.isdecimal()
            or not 1 <= int(count) <= 200
        ):
            raise InputError(
                f"{shown(part.strip())} is no number and kind of segments, such as 10 step; kinds "
                f"are {', '.join(KINDS)}",
                key="segments",
            )
        found += [kind] * int(count)
    if len(found) > 200:
        raise InputError(f"{len(found)} segments are more than 200", key="segments")
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
    found = [result for _, result in results]
    order = np.argsort([float(result["criterion"]) for result in found], kind="stable")
    criteria = [float(found[k]["criterion"]) for k in order]
    if criteria[0] >= FAILED:
        raise InputError("no start led to a protocol under which the model's current is finite")
    screen.begin("judging the best protocol")
    return Design(plan, found[order[0]]["vector"], criteria, others)
