"""`channelfit init`: a commented starter fit for recordings, which runs at once."""

from __future__ import annotations

import glob
import math
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import sympy

from channelfit.front.commands.inputs import warn
from channelfit.front.commands.inspect import clamp_words, file_options
from channelfit.front.kinds import load_plan
from channelfit.front.starter import (
    CurrentKind,
    StarterClamp,
    conductance_range,
    current_kind,
    model_document,
    rest_ms,
    shipped_models,
    starter_clamp,
)
from channelfit.front.verbs.recordings import InitOptions
from channelfit.model.channel import ChannelModel, Parameter
from channelfit.model.model_file import load_model
from channelfit.problem.inspection import FileOptions, Inspection, inspect_file, less
from channelfit.problem.protocol import Protocol, load_protocol
from channelfit.reading.documents import dump_yaml
from channelfit.reading.errors import Caution, InputError, each_once, printable, shown
from channelfit.reading.files import save_text, writing
from channelfit.reading.texts import stem_of
from channelfit.reading.units import unit_factor
from channelfit.results.report.terminal import short_number

#: The share of another recording's largest current below which a blocker may have acted.
_BLOCKED = 0.6


def init(options: InitOptions) -> None:
    """Write a starter fit, its protocols and, without a model of the user's own, a model."""
    how, recordings, subtract = file_options(options), options.recordings, options.subtract
    found = [inspect_file(file, how) for file in recordings]
    for each in found:
        _check_unit(each)
    found = found if subtract is None else [less(one, inspect_file(subtract, how)) for one in found]
    kinds = [current_kind(each) for each in found]
    clamps = [starter_clamp(each, options.clamp) for each in found]
    main = max(range(len(found)), key=lambda k: kinds[k].conductance_nS)
    name = _safe_name(recordings[main])
    file = options.out or Path(f"{name}-fit.yaml")
    if file.suffix.lower() not in (".yaml", ".yml"):
        raise InputError("a YAML file is written; give for example --out my_cell.yaml", file)
    folder = file.parent
    protocols = _protocol_files(found, folder)
    model_file = None if options.model is None else _model_file(options.model)
    commands = {
        place: each.protocol
        for place, each in zip(protocols, found, strict=True)
        if each.protocol is not None
        and not (place.exists() and _same_command(load_protocol(place), each.protocol))
    }
    texts = {}
    if model_file is None:
        texts[folder / f"{name}-model.yaml"] = _model_text(kinds[main], name)
    head = _head(file, found, kinds[main], name, model_file)
    texts[file] = "\n".join([*head, *_fit_lines(found, protocols, clamps, how, folder), ""])
    places = [*commands, *texts]
    _refuse_existing(places)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        for place, protocol in commands.items():
            protocol.save(place)
        for place, text in texts.items():
            save_text(place, text)
        plan = load_plan(file)  # which proves that the fit can be run
    except BaseException:
        for place in places:
            for written in (place, *_tables_of(place)):
                written.unlink(missing_ok=True)
        raise
    for place in places:
        click.echo(str(place))
    for each, amplifier in zip(found, clamps, strict=True):
        if amplifier is not None:
            click.echo(f"{each.file.name}: {_clamp_message(amplifier)}", err=True)
    seen = [c for each in found for c in each.cautions]
    warn(each_once([*seen, *_blocked(found), *plan.cautions]))


def _blocked(found: Sequence[Inspection]) -> Iterator[Caution]:
    """Yield cautions about recordings of one protocol of which one has hardly any current left."""
    for before in found:
        for after in found:
            if before.protocol is None or after.protocol is None or after.peak is None:
                continue
            if before.peak is None or not _same_command(before.protocol, after.protocol):
                continue
            share = abs(after.peak.current_pA) / max(abs(before.peak.current_pA), 1e-300)
            if share < _BLOCKED:
                yield Caution(
                    after.file.name,
                    f"its largest current is {100 * share:.0f} % of that of {before.file.name}, "
                    "under the same protocol, and both are fitted as the same channel",
                    f"is it after a blocker? Then: channelfit init {shown(before.file.name)} "
                    f"--subtract {shown(after.file.name)}",
                )


def _check_unit(found: Inspection) -> None:
    """Raise InputError where nothing says the unit of the current: a guess is no ground for a fit.

    The message has what would tell the two usual units apart.
    """
    if not found.unit_is_guessed:
        return
    in_pA = unit_factor(found.unit, "current")[0]
    noise, size = found.noise_pA / in_pA, float(np.nanmax(np.abs(found.current_pA))) / in_pA
    sizes = [
        f"{unit} they reach {short_number(size * factor)} pA with a noise of "
        f"{short_number(noise * factor)} pA"
        for unit, factor in (("pA", 1.0), ("nA", 1e3))
    ]
    raise InputError(
        f"the file does not say the unit of these currents: in {sizes[0]}, in {sizes[1]}; give the "
        "one in which they were stored, for example --unit nA",
        found.file,
    )


def _safe_name(recording: Path) -> str:
    """Return the name of a recording's file without suffix, in characters that are safe."""
    return re.sub(r"[^\w .,+()-]", "_", stem_of(recording))[:60] or "recording"


def _refuse_existing(places: Sequence[Path]) -> None:
    """Raise InputError for a file that is there already, before anything is written."""
    for place in places:
        if place.exists() or any(_tables_of(place)):
            raise InputError(
                "this file exists already and is not replaced; give another name with --out, or "
                "move it away",
                place,
            )


def _tables_of(place: Path) -> Iterator[Path]:
    """Yield the tables of recorded commands that stand beside a protocol file."""
    return place.parent.glob(f"{glob.escape(place.stem)}_command*.csv")


def _protocol_files(found: Sequence[Inspection], folder: Path) -> list[Path]:
    """Return where the protocol of each recording is written; equal ones are written once."""
    files = list[Path]()
    for k, each in enumerate(found):
        assert each.protocol is not None
        known = [(i, other.protocol) for i, other in enumerate(found[:k])]
        same = [i for i, p in known if p is not None and _same_command(p, each.protocol)]
        name = f"{_safe_name(each.file)}-protocol.yaml"
        files.append(files[same[0]] if same else folder / name)
    return files


def _same_command(a: Protocol, b: Protocol) -> bool:
    """Return whether two protocols are the same command, whatever they are called."""
    return a == replace(b, name=a.name, description=a.description, source=a.source)


# --- the model -----------------------------------------------------------------------------------


def _model_file(name: str) -> Path:
    """Return the model file that a user names: a path, or the name of an installed one."""
    path, shipped = Path(name), shipped_models()
    if path.suffix.lower() in (".yaml", ".yml"):
        return path
    if name not in shipped:
        listed = ", ".join(shipped) or "none is installed; give the path of a model file"
        raise InputError(f"no shipped model {shown(name)}. There are: {listed}", None, "--model")
    return shipped[name]


def _model_text(kind: CurrentKind, name: str) -> str:
    document = model_document(kind, f"{name} channel")
    parameters = document.pop("parameters")
    leak = list[str]()
    if "leak" in document:
        leak = [
            "The leak is a line through zero at the holding potential, as the baseline makes it."
        ]
        leak = leak if kind.leak_reversal_mV is not None else ["The leak is a line."]
    gates = "two gates: m opens the channel, h inactivates it" if kind.inactivating else "one gate"
    return "\n".join(
        [
            f"# A first model for {_comment(name)}: {gates}.",
            "# Rates are exponentials of the voltage v (mV), in 1/ms. docs/models.md tells what",
            "# else a model may say: other expressions, schemes of states, several currents.",
            *(f"# {line}" for line in leak),
            dump_yaml(document).rstrip("\n"),
            "parameters:",
            *(f"  {parameter}: {_parameter(row)}" for parameter, row in parameters.items()),
            "fit:",
            "  rates_within: {range: [1e-6 /ms, 1000 /ms], of: largest}",
            "",
        ]
    )


def _parameter(row: dict[str, Any]) -> str:
    low, high = row["range"]
    scale = ", scale: log" if row.get("scale") == "log" else ""
    return f"{{range: [{low:g}, {high:g}], unit: {row['unit']}{scale}}}"


def _head(
    file: Path, found: Sequence[Inspection], kind: CurrentKind, name: str, model_file: Path | None
) -> Iterator[str]:
    """Yield the lines before the fit section: what to do with the file, its model and ranges."""
    listed = ", ".join(_comment(each.file.name) for each in found)
    yield f"# A starter fit for {listed}, to be changed as you like."
    yield f"#   channelfit inspect {file.name}     shows the data as the fit will see them"
    yield f"#   channelfit optimize {file.name}    fits them"
    if model_file is None:
        text = f"The model was chosen because {_comment(kind.reason)}."
        yield from (f"# {line}" for line in textwrap.wrap(text, 96))
        yield "# `channelfit init .. --model NAME` takes another: a file, or a shipped model."
        yield _entry("model", f"{name}-model.yaml")
    else:
        shipped = model_file in shipped_models().values()
        place = model_file.as_posix() if shipped else _relative(model_file, file.parent)
        yield _entry("model", place)
    yield _entry("name", name)
    if model_file is not None:
        channel = load_model(model_file)
        if channel.temperature_C is not None:
            yield (
                f"# temperature: {channel.temperature_C:g} degC    # the model's; that of the "
                "recordings belongs here, without the first #"
            )
        yield from _ranges(channel, kind)
        if kind.leak_nS and kind.leak_reversal_mV is not None:
            leak = f"{{conductance: {kind.leak_nS:.3g} nS, reversal: {kind.leak_reversal_mV:g} mV}}"
            yield f"# leak: {leak}    # without the first #, this leak is part of the current"
    yield "fit:"
    yield "  experiments:"


def _ranges(model: ChannelModel, kind: CurrentKind) -> Iterator[str]:
    """Yield ranges of conductance and reversal potential that suit the recording."""
    if model.ohmic is None:
        return
    rows, reversal = list[str](), model.reversal
    for p in model.parameters:
        if _is_parameter(p, model.conductance) and not p.fixed:
            low, high = conductance_range(kind)
            if p.upper < 2 * kind.conductance_nS or p.lower > kind.conductance_nS:
                rows.append(f"# the largest current needs {kind.conductance_nS:.3g} nS, all open")
                rows.append(f"{p.name}: {{range: [{low:g}, {high:g}], unit: nS}}")
    low, high = kind.reversal_mV
    about = f"{{range: [{low:g}, {high:g}], unit: mV}}"
    if reversal.is_Number:
        name = _free_name("erev", model)
        yield (
            f"current: {{reversal: {name}}}    # the model's own is {float(reversal):g} mV; leave "
            f"this and {name} out to keep it"
        )
        rows.append(f"{name}: {about}    # about where the current changes its sign")
    for p in model.parameters:
        if _is_parameter(p, reversal) and (p.fixed or not p.lower <= (low + high) / 2 <= p.upper):
            own = (
                f"fixed at {p.value:g}" if p.fixed else f"searched from {p.lower:g} to {p.upper:g}"
            )
            rows.append(f"# about where the current changes its sign; the model has it {own} mV")
            rows.append(f"{p.name}: {about[:-1]}{', fixed: false' if p.fixed else ''}}}")
    if rows:
        yield "parameters:"
        yield from (f"  {row}" for row in rows)


def _is_parameter(p: Parameter, expression: sympy.Expr) -> bool:
    """Return whether an expression is this parameter and nothing else."""
    return bool(expression.is_Symbol) and str(expression) == p.name


def _free_name(name: str, model: ChannelModel) -> str:
    """Return the name, with underscores behind it until nothing in the model is called so."""
    taken = {*model.parameter_names, *(n for n, _ in model.definitions)}
    taken |= {state for chain in model.chains for state in chain.states}
    while name in taken:
        name += "_"
    return name


# --- the experiments -----------------------------------------------------------------------------


def _fit_lines(
    found: Sequence[Inspection],
    protocols: Sequence[Path],
    clamps: Sequence[StarterClamp | None],
    how: FileOptions,
    folder: Path,
) -> Iterator[str]:
    for each, protocol, clamp in zip(found, protocols, clamps, strict=True):
        yield f"    - {_entry('protocol', protocol.name)}    # from {_comment(each.protocol_from)}"
        yield "      recording:"
        yield f"        {_entry('file', _relative(each.file, folder))}"
        yield from (f"        {line}" for line in _recording_lines(each, how, folder))
        yield from (f"      {line}" for line in _mask_lines(each))
        if each.contents.clamp:
            yield f"      # the file says: {', '.join(clamp_words(each.contents))}"
        if clamp is not None:
            yield from (f"      {line}" for line in _clamp_lines(each, clamp))


def _recording_lines(found: Inspection, how: FileOptions, folder: Path) -> Iterator[str]:
    """Yield how a fit reads a recording, and its baseline."""
    current, contents = found.current, found.contents
    assert current is not None
    row: dict[str, Any] = {"signal": current.name}
    why = f"in {current.unit}, as the file says"
    if not current.unit:
        row["unit"] = found.unit
        why = "as --unit says"
    in_one_line = " ".join(dump_yaml({"current": row}).split("\n")).rstrip()
    yield f"{in_one_line}    # {_comment(why)}"
    if not math.isfinite(contents.sampling_ms):
        yield f"sampling: {found.sampling_ms:.9g} ms"
    for key, value in how.choices.items():
        if value is not None:
            yield _entry(key, value)
    if not np.isfinite(found.current_pA).all():
        yield "missing: mask    # samples without a current are left out"
    yield from _baseline_lines(found)
    if found.subtracted is not None:
        yield "condition:"
        yield f"  - subtract: {{{_entry('file', _relative(found.subtracted, folder))}}}"


def _baseline_lines(found: Inspection) -> Iterator[str]:
    """Yield the baseline, where every sweep begins with a rest at the holding potential."""
    assert found.protocol is not None
    rest, held = rest_ms(found), float(np.nanmedian(found.held_pA))
    if rest:
        yield f"# {held:.3g} pA flow at rest; leave this out if channels are open there"
        yield f"baseline: {{from: 0 ms, to: {rest:.9g} ms}}"


def _mask_lines(found: Inspection) -> Iterator[str]:
    """Yield the mask of capacitive transients, and a word on the leak."""
    if found.transient_ms > 0:
        yield f"mask: [{{after_steps: {found.transient_ms:g} ms}}]    # capacitive transients"
    else:
        yield "# no capacitive transients were seen; else: mask: [{after_steps: 1 ms}]"
    if found.leak is not None and found.leak.conductance_nS > 0:
        yield (
            f"# a leak of up to {found.leak.conductance_nS:.3g} nS is in these currents, from "
            f"{_comment(found.leak.source)}"
        )


def _clamp_lines(found: Inspection, clamp: StarterClamp) -> Iterator[str]:
    """Yield the clamp as a section, or as comments that become one without their first #."""
    section = list(clamp.lines(found))
    if clamp.active:
        text = (
            f"The clamp is part of this fit: {clamp.reason} It makes scoring some seventy times "
            "slower; `channelfit init --no-clamp` takes the clamp for ideal. To fit the "
            "resistance, give `parameters` a row `rs: {range: [1, 20], unit: MOhm}` and say "
            "`series_resistance: rs` (docs/clamp.md)."
        )
    else:
        text = f"The clamp is taken for ideal: {clamp.reason}"
        if section:
            text += (
                " A clamp makes scoring some seventy times slower. These lines without their first "
                "# make it part of the fit (docs/clamp.md):"
            )
    yield from (f"# {line}" for line in textwrap.wrap(text, 90))
    yield from (line if clamp.active else f"# {line}" for line in section)


def _clamp_message(clamp: StarterClamp) -> str:
    """Return the message on the screen about a recording's clamp."""
    if clamp.active:
        return (
            f"the clamp is part of the fit: {clamp.reason} This makes scoring some seventy times "
            "slower; --no-clamp leaves it out."
        )
    text = f"the clamp is taken for ideal: {clamp.reason}"
    return text + ("" if clamp.resistance_MOhm is None else " --clamp makes it part of the fit.")


def _comment(text: str) -> str:
    """Return a text that stays within a comment: one line, and nothing that steers a terminal."""
    return printable(" ".join(text.split()))


def _entry(key: str, value: str) -> str:
    """Return a key and a text as one line of YAML."""
    listed = " ".join(dump_yaml({key: [value]}).split("\n")).rstrip()  # "key: [value]"
    return f"{key}: {listed[len(key) + 3 : -1]}"


def _relative(file: Path, folder: Path) -> str:
    """Return the path of a file from a folder; the whole path on another drive."""
    try:
        return Path(os.path.relpath(file, folder)).as_posix()
    except ValueError:
        return file.resolve().as_posix()
