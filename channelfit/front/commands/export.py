"""`channelfit export`: a fitted channel written for other programs and for a paper."""

from __future__ import annotations

from pathlib import Path

import click

from channelfit.front.commands.inputs import warn
from channelfit.problem.clamp import left_out
from channelfit.reading.errors import InputError
from channelfit.reading.files import save_text
from channelfit.reading.texts import printable
from channelfit.results.export.kinds import KINDS, exported, kind_of
from channelfit.results.export.nmodl import Settings
from channelfit.results.export.subject import read_subject
from channelfit.results.run_folder import file_name


def export(
    fit: Path,
    kind: str | None,
    ions: tuple[str, ...],
    suffix: str | None,
    capacitance: float | None,
    point_process: bool,
    cell: str | None,
    out: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Writes one file, and says which."""
    if kind is None:
        if out is None:
            raise InputError(f"say to what to export, with --to {'|'.join(KINDS)}")
        kind = kind_of(out)
    subject = read_subject(fit, overrides, cell)
    warn(subject.channel.cautions)
    warn(left_out(subject.document | {"fit": subject.fit}, fit))
    text = exported(subject, kind, Settings(ions, suffix, capacitance, point_process))
    place = out or Path(file_name(suffix or subject.channel.name) + KINDS[kind][0])
    if place.exists():
        raise InputError("this file exists already; give --out another name", place)
    click.echo(printable(str(save_text(place, text))))
