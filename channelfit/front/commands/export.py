"""`channelfit export`: a fitted channel written for other programs and for a paper."""

from __future__ import annotations

from pathlib import Path

import click

from channelfit.front.commands.inputs import warn
from channelfit.front.verbs.fits import ExportOptions
from channelfit.problem.clamp import left_out
from channelfit.reading.errors import InputError, printable
from channelfit.reading.files import save_text
from channelfit.results.export.kinds import KINDS, exported, kind_of
from channelfit.results.export.nmodl import ExportSettings
from channelfit.results.export.subject import read_subject
from channelfit.results.run_folder import file_name


def export(options: ExportOptions) -> None:
    """Write one file, and print its path."""
    kind, out, suffix = options.kind, options.out, options.suffix
    if kind is None:
        if out is None:
            raise InputError(f"say to what to export, with --to {'|'.join(KINDS)}")
        kind = kind_of(out)
    subject = read_subject(options.fit, options.overrides, options.cell)
    warn(subject.channel.cautions)
    warn(left_out(subject.document | {"fit": subject.fit}, options.fit))
    settings = ExportSettings(options.ions, suffix, options.capacitance, options.point_process)
    text = exported(subject, kind, settings)
    place = out or Path(file_name(suffix or subject.channel.name) + KINDS[kind][0])
    if place.exists():
        raise InputError("this file exists already; give --out another name", place)
    click.echo(printable(str(save_text(place, text))))
