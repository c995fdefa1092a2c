"""`channelfit run`: the jobs of a night, checked, run and reported."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from channelfit.front.interrupts import all_is_done, held
from channelfit.front.json_lines import JsonLines
from channelfit.front.night.calls import Call
from channelfit.front.night.checks import Checks
from channelfit.front.night.jobs import Night, read_night
from channelfit.front.night.queue import Queue
from channelfit.front.night.record import (
    PAGE,
    SUMMARY,
    NightRecord,
    file_of,
    print_summary,
    record_of,
    summary_of,
    write_summary,
)
from channelfit.front.night.screen import NightScreen
from channelfit.front.progress import compilations_shown
from channelfit.front.verbs.runs import RunOptions
from channelfit.reading.errors import InputError, printable, shown
from channelfit.results.report.terminal import SearchScreen
from channelfit.results.run_folder import default_folder
from channelfit.results.run_state import FINISHED, INTERRUPTED
from channelfit.tasks.cluster_file import is_local

#: The exit code of a night of which not all jobs have finished.
SOME_FAILED = 3


def run(options: RunOptions) -> int:
    """Run the jobs of a file, print the results, and return the exit code."""
    with JsonLines("run", options.as_json) as lines:
        found = _done(lines, options)
        if found is None:  # nothing was to be begun
            return 0
        folder, summary = found
        files = [folder / name for name in (PAGE, SUMMARY)]
        bad = len(summary["jobs"]) - summary["counts"].get(FINISHED, 0)
        reason = f"{bad} of {len(summary['jobs'])} jobs failed or were skipped"
        lines.result(folder, files, summary, failed=(SOME_FAILED, reason) if bad else None)
        if options.quiet and not options.as_json:
            click.echo(printable(str(folder)))
        elif not options.as_json:
            print_summary(summary, folder)
    return SOME_FAILED if bad else 0


def _done(lines: JsonLines, options: RunOptions) -> tuple[Path, dict[str, Any]] | None:
    """Return the folder of a night and its summary; None after `--check`."""
    resume, quiet = options.resume, options.quiet
    file = options.night if resume is None else file_of(resume)
    assert file is not None  # the verb asks for one of both
    jobs = read_night(file)
    program = click.get_current_context().find_root().command
    commands = program.commands if isinstance(program, click.Group) else {}
    calls = {name: Call(jobs, job, commands[job.command]) for name, job in jobs.jobs.items()}
    if options.check:
        _checked(jobs, calls, lines.screen(jobs.name, quiet))
        lines.result()
        if not lines.enabled:
            click.echo(f"All {len(calls)} jobs can be done.")
        return None
    if resume is not None:
        refuse_clusters(jobs, options.cluster)
    place = resume or options.out
    with held():
        folder = place or default_folder(jobs.name)
    with record_of(folder, made=place is None) as record:
        queue = _begun(jobs, calls, record, lines, quiet)
        with queue.screen as screen:
            screen.say(f"{jobs.name}: {len(calls)} jobs into {folder}")
            try:
                queue.run()
            except BaseException:
                with held():
                    _end(record, INTERRUPTED)
                raise
        with held():
            summary = _end(record, FINISHED)
    all_is_done()
    return folder, summary


def refuse_clusters(jobs: Night, known: Sequence[str]) -> None:
    """Raise InputError for a job of a resumed night whose cluster was not named again.

    A folder says where the file of its night is, and the owner of a scheduler, or of a file of a
    cluster, can run any program here. So a folder alone lets no job connect to a cluster.
    """
    for job in jobs.jobs.values():
        for where in job.arguments.get("cluster", ()):
            if not is_local(str(where)) and where not in known:
                raise jobs.error(
                    job,
                    "a cluster can run any program as whoever uses it; if this is yours, say so: "
                    f"--cluster {shown(str(where))}",
                    "cluster",
                )


def _end(record: NightRecord, state: str) -> dict[str, Any]:
    """Write how a night has ended, and return its summary."""
    record.content["state"] = state
    summary = summary_of(record)
    write_summary(record, summary)
    record.write()
    return summary


def _begun(
    jobs: Night, calls: Mapping[str, Call], record: NightRecord, lines: JsonLines, quiet: bool
) -> Queue:
    """Return the queue of a night in its folder, after a check of every job.

    Raises InputError: something cannot be done, or has changed since an earlier call; the folder is
    then as it was.
    """
    before = record.content.get("state", INTERRUPTED)
    record.begin(jobs)
    try:
        files = _checked(jobs, calls, lines.screen(jobs.name, quiet))
        screen = NightScreen(lines, jobs.name, record.folder, quiet)
        queue = Queue(jobs, calls, files, record, screen)
        queue.check_unchanged()
    except BaseException:
        with held():
            if record.earlier:
                record.content["state"] = before
                record.write()
            else:
                record.remove()
        raise
    queue.forget()
    return queue


def _checked(jobs: Night, calls: Mapping[str, Call], screen: SearchScreen) -> dict[str, list[Path]]:
    """Check every job, and return the files that each of them reads.

    Raises InputError: jobs that cannot be done, each with why.
    """
    errors: list[InputError] = []
    bad = set[str]()
    with (
        tempfile.TemporaryDirectory(prefix="channelfit-night-") as place,
        screen,
        compilations_shown(screen),
    ):
        checks = Checks(calls, Path(place).resolve(), screen)
        for name in jobs.sorter().static_order():
            screen.begin(f"checking {name}")
            if bad.intersection(jobs.jobs[name].after):
                bad.add(name)  # what it would use was not made
                continue
            try:
                checks.check(name)
            except InputError as error:
                bad.add(name)
                errors.append(_of_job(jobs, name, error, place))
    if not errors:
        return checks.files
    rest = len(bad) - len(errors)
    more = f"; {rest} more wait for {'it' if len(errors) == 1 else 'them'}" if rest else ""
    counted = f"{len(errors)} of {len(jobs.jobs)} jobs cannot be done{more}. Nothing was begun"
    raise InputError("\n  ".join([counted, *map(str, errors)]), jobs.file)


def _of_job(jobs: Night, name: str, error: InputError, stand_ins: str) -> InputError:
    """Return an error with the key of its job, and without the folder of stand-ins."""
    job = jobs.jobs[name]
    if error.file == str(jobs.file) and (error.key or "").startswith(job.key):
        return InputError(error.message, None, error.key)
    text = str(error).replace(f"{Path(stand_ins).resolve()}/", "")
    return InputError(text, None, job.key)
