"""`channelfit inspect`: the content of recordings, and the data of a fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table
from rich.text import Text

from channelfit.front.commands.inputs import picture_file, save_picture, warn
from channelfit.front.kinds import load_plan, with_currents
from channelfit.front.verbs.recordings import InspectOptions, RecordingOptions
from channelfit.problem.experiment import Experiment
from channelfit.problem.inspection import FileOptions, Inspection, inspect_file
from channelfit.problem.measures import noise_pA
from channelfit.problem.protocol import Protocol
from channelfit.problem.segments import segment_rows
from channelfit.reading.csv_tables import csv_table
from channelfit.reading.documents import read_yaml
from channelfit.reading.errors import InputError
from channelfit.reading.files import save_text
from channelfit.reading.formats import Contents
from channelfit.reading.texts import stem_of
from channelfit.reading.units import parse_quantity
from channelfit.results.report.terminal import PlainConsole, short_number

#: Rows of a protocol, and members of a family, that are printed.
_MOST_ROWS, _MOST_VALUES = 16, 6


def file_options(options: RecordingOptions) -> FileOptions:
    """Return how a recording is read, by the options of the command line."""
    step = None if options.sampling is None else parse_quantity(options.sampling, "time")
    if step is not None and step <= 0:
        raise InputError(f"a time above 0 was expected, not {step:g} ms", None, "--sampling")
    return FileOptions(
        options.signal,
        options.unit,
        step,
        options.command,
        options.layout,
        options.decimal,
        options.series,
    )


def inspect(options: InspectOptions) -> None:
    """Print and draw what is in files from the rig, or the data of a fit."""
    files, protocol, csv = options.files, options.protocol, options.csv
    if len(files) > 1 and (protocol or csv or options.out):
        raise InputError("--protocol, --csv and --out write what is in one FILE; give one")
    how = file_options(options)
    for file, place in zip(files, _pictures(files, options.out), strict=True):
        if file.suffix.lower() in (".yaml", ".yml") and _is_fit(file):
            if protocol or csv:
                raise InputError("--protocol and --csv are for recordings, not for a fit", file)
            if how != FileOptions():
                raise InputError("a fit says itself how its recordings are read", file)
            _inspect_fit(file, place)
        else:
            _inspect_recording(inspect_file(file, how), protocol, csv, place)


def _is_fit(file: Path) -> bool:
    """Return whether a YAML file is a fit. Raises InputError for a model without a fit section."""
    document = read_yaml(file)
    if "segments" in document:
        return False
    if "fit" not in document and ("states" in document or "gates" in document):
        raise InputError(
            "a model without a `fit` section, which has no data to look at; `channelfit show` "
            "prints a model",
            file,
        )
    return True


def _pictures(files: tuple[Path, ...], out: Path | None) -> list[Path]:
    """Return the path of each file's picture, all distinct: as requested, or in this folder."""
    if out is not None:
        return [picture_file(out)]
    names = list[str]()
    for file in files:
        name, number = stem_of(file) or "recording", 1
        while (unique := name + (f"-{number}" if number > 1 else "")) in names:
            number += 1
        names.append(unique)
    return [Path(f"{name}-inspect.png") for name in names]


def _print(title: str, rows: Iterator[tuple[str, str]]) -> None:
    """Print a title, and below it labels and texts in two columns."""
    console = PlainConsole(highlight=False)
    console.print(Text(title, style="bold"), soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for label, text in rows:
        table.add_row(Text(f"  {label}"), Text(text))
    console.print(table)


# --- a recording ---------------------------------------------------------------------------------


def _inspect_recording(
    found: Inspection, protocol: Path | None, csv: Path | None, out: Path
) -> None:
    from channelfit.results.report.inspection_figures import inspection_figure  # loads Matplotlib

    _print(f"{found.file.name}: {found.contents.format}", _rows(found))
    warn(found.cautions)
    if protocol is not None:
        if found.protocol is None:
            raise InputError("no protocol was found, so that none is written", found.file)
        click.echo(str(found.protocol.save(protocol)))
    if csv is not None:
        click.echo(str(save_text(csv, csv_text(found))))
    save_picture(inspection_figure(found), out)


def _rows(found: Inspection) -> Iterator[tuple[str, str]]:
    """Yield the known facts about a recording: a label and a text each."""
    contents, h = found.contents, found.sampling_ms
    if contents.signals:
        n = contents.n_samples
        every = f" every {h:g} ms ({n * h:g} ms)" if math.isfinite(h) else ""
        yield "sweeps", f"{contents.n_sweeps} of {n} samples{every}{_intervals(found)}"
    for signal in contents.signals:
        unit = signal.unit or "unit not stated"
        role = "; taken for the current" if signal is found.current else ""
        yield "signal", f"{signal.name}: {signal.kind}, {unit}{role}"
    if found.protocol is not None:
        yield from protocol_lines(found.protocol, found.protocol_from)
    if found.command is not None:
        lost, (sweep, time) = found.command.residual_mV, found.command.residual_at
        edges = found.command.edge_samples
        text = f"within {lost:.2g} mV of the protocol (sweep {sweep + 1}, {time:g} ms)"
        text += f", noise {found.command.noise_mV:.2g} mV"
        yield "command", text + (f", edges over {edges} samples" if edges else "")
    yield from _measures(found)
    if contents.clamp:
        yield "file says", ", ".join(clamp_words(contents))
    for note in contents.notes:
        yield "note", note
    if found.current is not None:
        n = len(found.cautions)
        doubts = f"{n} thing{'s' * (n > 1)} to look at before a fit, each with its reason below"
        yield "verdict", doubts if n else "nothing looks wrong"


def clamp_words(contents: Contents) -> Iterator[str]:
    """Yield facts about cell and amplifier in a file, such as "membrane capacitance 11 pF"."""
    for key, value in contents.clamp.items():
        words = key.split("_")
        unit = words.pop() if words[-1] in ("pF", "MOhm", "C", "mV", "kHz") else ""
        values = np.atleast_1d(np.asarray(value, dtype=float))
        low, high = float(values.min()), float(values.max())
        span = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
        yield f"{' '.join(words)} {span} {unit}".rstrip()


def _intervals(found: Inspection) -> str:
    """Return how long after one sweep the next one began, in words; empty where it is not known."""
    start = found.contents.start_ms
    if start is None or len(start) < 2:
        return ""
    return f", one each {float(np.median(np.diff(start))) / 1e3:.4g} s"


def _measures(found: Inspection) -> Iterator[tuple[str, str]]:
    """Yield noise, leak, transients and peak."""
    if found.current is None:
        return
    held = found.held_pA[np.isfinite(found.held_pA)]
    rest = "" if not held.size else f", {np.median(held):.3g} pA at rest"
    yield "current", f"noise {found.noise_pA:.3g} pA{rest}"
    if found.protocol is None:
        return
    if found.leak is not None:
        g, seal = found.leak.conductance_nS, found.leak.seal_MOhm
        size = f"{g:.3g} nS at most ({short_number(seal)} MOhm)" if g > 0 else "none is seen"
        yield "leak", f"{size}, from {found.leak.source}"
    lasts = found.transient_ms
    yield "transients", f"over within {lasts:g} ms of a step" if lasts else "none are seen"
    if found.peak is not None:
        sweep = f" of sweep {found.peak.sweep + 1}" if len(found.peak.by_sweep_pA) > 1 else ""
        yield (
            "peak",
            f"{short_number(found.peak.raw_pA)} pA at {found.peak.time_ms:.6g} ms{sweep}, "
            f"{found.peak.voltage_mV:.4g} mV ({short_number(found.peak.current_pA)} pA as the "
            "median of 5 samples)",
        )
    if found.run_down is not None:
        yield "run-down", f"{100 * found.run_down:+.1f} % of the peak over equal sweeps"


def protocol_lines(protocol: Protocol, source: str = "") -> Iterator[tuple[str, str]]:
    """Yield a protocol in words: a label and a text for each of its segments."""
    origin = f", from {source}" if source else ""
    rest = f", then {protocol.rest_ms:g} ms of rest" if protocol.rest_ms else ""
    carried = f"; each sweep begins where the last one ended{rest}" if protocol.carry_over else ""
    yield "protocol", f"holding {protocol.holding_mV:g} mV{carried}{origin}"
    if protocol.junction_potential_mV:
        yield (
            "",
            f"voltages of the membrane: the command less {protocol.junction_potential_mV:g} mV of "
            "junction potential",
        )
    rows = segment_rows(protocol.sweeps, protocol.holding_mV, lambda found: {"n": len(found)})
    shown = rows if len(rows) <= _MOST_ROWS else rows[: _MOST_ROWS - 1]
    for row in shown:
        yield "", _row_in_words(row)
    if len(rows) > len(shown):
        yield "", f".. and {len(rows) - len(shown)} segments more"


def _row_in_words(row: Mapping[str, Any]) -> str:
    """Return one segment of a protocol, or a family of them."""
    if "hold" in row:
        return f"hold, {_value(row['hold'])}"
    lasts = _value(row["for"])
    if "step" in row:
        return f"step {_value(row['step'])}, {lasts}"
    if "ramp" in row:
        start, end = map(_value, row["ramp"])
        return f"ramp {start} to {end}, {lasts}"
    if "sines" in row:
        terms = row["sines"]["terms"]
        waves = ", ".join(f"{term['amplitude']} at {term['omega']}" for term in terms)
        return f"sines about {row['sines']['offset']}: {waves}, {lasts}"
    return f"sample by sample, {lasts}"


def _value(value: Any) -> str:
    """Return a quantity, or the members of a family."""
    if not isinstance(value, Mapping):
        return str(value)
    if "from" in value:
        return f"{value['from']} to {value['to']} by {value['by']}"
    values = value["values"]
    if len(set(values)) == 1:
        return f"{values[0]} ({len(values)} sweeps)"
    more = ", .." if len(values) > _MOST_VALUES else ""
    return ", ".join(values[:_MOST_VALUES]) + more


def csv_text(found: Inspection) -> str:
    """Return time (ms) and the current of every sweep (pA) as CSV, empty without a recording.

    Raises InputError: there is no current, or its sampling is not known.
    """
    if found.current is None or not math.isfinite(found.sampling_ms):
        what = "current" if found.current is None else "sampling"
        raise InputError(f"no {what} is known, so that no table is written", found.file)
    time_ms = [round(k * found.sampling_ms, 9) for k in range(found.current_pA.shape[1])]
    current = np.where(np.isfinite(found.current_pA), found.current_pA, np.nan)
    sweeps = [(f"sweep{k}", row) for k, row in enumerate(current, 1)]
    return csv_table([("time", np.array(time_ms)), *sweeps], digits=9, exact=("time",))


# --- a fit ---------------------------------------------------------------------------------------


def _inspect_fit(file: Path, out: Path) -> None:
    """Print and draw the data of a fit as they were recorded, and as they are scored."""
    from channelfit.results.report.inspection_figures import (  # loads Matplotlib
        Prepared,
        prepared_figure,
    )

    plan = with_currents(load_plan(file))
    if plan.surrogate:
        raise InputError(
            "its data are simulated from the parameters' values; there is no recording to look at",
            file,
        )
    panels = []
    for k, experiment in enumerate(plan.problem.experiments, 1):
        recording = experiment.recording
        assert recording is not None
        title = f"experiment {k}: {recording.source}, {experiment.protocol.name}"
        _print(title, _experiment_rows(experiment))
        if experiment.observations:
            continue
        panels.append(Prepared(title, experiment.protocol, recording.raw_pA, recording))
    warn(plan.cautions)
    if panels:
        save_picture(prepared_figure(panels, plan.name), out)


def _experiment_rows(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yield the facts about one experiment of a fit: a label and a text each."""
    protocol, recording = experiment.protocol, experiment.recording
    assert recording is not None
    if experiment.observations:
        yield from protocol_lines(protocol)
        for one in experiment.observations:
            known = one.value[np.isfinite(one.value)]
            text = f"{one.label} by {one.x_label}, {known.min():.4g} to {known.max():.4g}"
            yield one.name, f"{text}; {one.counts.sum()} numbers count"
        return
    known = np.isfinite(protocol.command())
    counts = (recording.weight > 0) & known
    yield from protocol_lines(protocol)
    share = 100 * counts.sum() / known.sum()
    held = " (weight 0: held out of the fit)" if experiment.weight == 0 else ""
    for note in recording.conditioning:
        yield "conditioned", note
    yield "scored", f"{counts.sum():,} of {known.sum():,} samples ({share:.3g} %){held}"
    values = recording.current_pA[counts]
    yield (
        "current",
        f"{short_number(float(values.min()))} to {short_number(float(values.max()))} pA, noise "
        f"{noise_pA(recording.current_pA):.3g} pA",
    )
