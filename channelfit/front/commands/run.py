"""`channelfit run`: the jobs of a night, checked, done and told of."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import click

from channelfit.front.interrupts import all_is_done, held
from channelfit.front.night.calls import Call
from channelfit.front.night.checks import Checks
from channelfit.front.night.jobs import Night, read_night
from channelfit.front.night.queue import Queue
from channelfit.front.night.record import Record, file_of, record_of
from channelfit.front.night.screen import NightScreen
from channelfit.front.night.summary import print_summary, summary_of, write_summary
from channelfit.front.progress import compilations_shown
from channelfit.reading.errors import InputError
from channelfit.reading.texts import printable
from channelfit.results.report.terminal import SearchScreen
from channelfit.results.run_folder import default_folder, json_text
from channelfit.results.run_state import FINISHED, INTERRUPTED


def run(
    night: Path | None,
    resume: Path | None,
    out: Path | None,
    check: bool,
    quiet: bool,
    as_json: bool,
    commands: Mapping[str, click.Command],
) -> bool:
    """Does the jobs of a file, and prints what came out; whether all have finished.

    Arguments:
        commands: the declarations of all commands of channelfit, by name.
    """
    file = night if resume is None else file_of(resume)
    assert file is not None  # the verb asks for one of both
    jobs = read_night(file)
    calls = {name: Call(jobs, job, commands[job.command]) for name, job in jobs.jobs.items()}
    if check:
        _checked(jobs, calls, quiet)
        click.echo(f"All {len(calls)} jobs can be done.")
        return True
    given = resume or out
    with held():
        folder = given or default_folder(jobs.name)
    with record_of(folder, made=given is None) as record:
        queue = _begun(jobs, calls, record, quiet)
        with queue.screen as screen:
            screen.say(f"{jobs.name}: {len(calls)} jobs into {folder}")
            try:
                queue.run()
            except BaseException:
                with held():
                    record.content["state"] = INTERRUPTED
                    write_summary(record, summary_of(record))
                    record.tell()
                raise
        with held():
            record.content["state"] = FINISHED
            summary = summary_of(record)
            write_summary(record, summary)
            record.tell()
    all_is_done()
    if as_json:
        click.echo(json_text(summary), nl=False)
    elif quiet:
        click.echo(printable(str(folder)))
    else:
        print_summary(summary, folder)
    return set(summary["counts"]) == {FINISHED}


def _begun(jobs: Night, calls: Mapping[str, Call], record: Record, quiet: bool) -> Queue:
    """A night in its folder, of which every job has been looked at.

    Raises:
        InputError: something cannot be done, or has changed since an earlier call; the folder is
            then as it was.
    """
    before = record.content.get("state", INTERRUPTED)
    record.begin(jobs)
    try:
        files = _checked(jobs, calls, quiet)
        queue = Queue(jobs, calls, files, record, NightScreen(jobs.name, record.folder, quiet))
        queue.check_unchanged()
    except BaseException:
        with held():
            if record.earlier:
                record.content["state"] = before
                record.tell()
            else:
                record.drop()
        raise
    queue.forget()
    return queue


def _checked(jobs: Night, calls: Mapping[str, Call], quiet: bool) -> dict[str, list[Path]]:
    """The files that each job reads, after a look at all of them.

    Raises:
        InputError: jobs that cannot be done, each with why.
    """
    told: list[InputError] = []
    bad = set[str]()
    with (
        tempfile.TemporaryDirectory(prefix="channelfit-night-") as place,
        SearchScreen(jobs.name, quiet) as screen,
        compilations_shown(screen),
    ):
        checks = Checks(calls, Path(place).resolve(), screen)
        for name in jobs.sorter().static_order():
            screen.begin(f"looking at {name}")
            if bad.intersection(jobs.jobs[name].after):
                bad.add(name)  # what it would use was not made
                continue
            try:
                checks.check(name)
            except InputError as error:
                bad.add(name)
                told.append(_of_job(jobs, name, error, place))
    if not told:
        return checks.files
    rest = len(bad) - len(told)
    more = f"; {rest} more wait for {'it' if len(told) == 1 else 'them'}" if rest else ""
    counted = f"{len(told)} of {len(jobs.jobs)} jobs cannot be done{more}. Nothing was begun"
    raise InputError("\n  ".join([counted, *map(str, told)]), jobs.file)


def _of_job(jobs: Night, name: str, error: InputError, stand_ins: str) -> InputError:
    """A mistake with the job in which it is, and without the folder of stand-ins."""
    job = jobs.jobs[name]
    if error.file == str(jobs.file) and (error.key or "").startswith(job.key):
        return InputError(error.message, None, error.key)
    text = str(error).replace(f"{Path(stand_ins).resolve()}/", "")
    return InputError(text, None, job.key)
