"""The file of a night: jobs, their arguments, and which of them wait for others.

Nothing in the file is run as text of a shell or of Python. The name of a job must be a plain name,
since it is also that of a folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from channelfit.reading.documents import Section, read_yaml
from channelfit.reading.errors import InputError, did_you_mean, shown
from channelfit.reading.keys import KEYS
from channelfit.reading.keys.nights import ARGUMENT_NAME, COMMANDS, JOB_NAME

#: Names of devices on Windows, which no folder can have there.
_DEVICES = {
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{port}{k}" for port in ("com", "lpt") for k in range(10)),
}
#: The largest number of jobs; each is read and checked as its command would, which takes 20 ms.
_MOST_JOBS = 1000


@dataclass(frozen=True)
class Result:
    """The result of another job: its fit or its folder, or a file in that folder.

    Attributes:
        job: the name of the job.
        file: the path within its folder; empty for the main result of the job.
    """

    job: str
    file: str = ""


Value = Result | str | bool


@dataclass(frozen=True)
class Job:
    """A command of channelfit with its arguments.

    Attributes:
        name: of the job and of its folder.
        command: such as "optimize".
        arguments: the values by name, as they stand in the file.
        after: the jobs that must have finished before, with those whose results it uses.
        key: of the job in the file.
    """

    name: str
    command: str
    arguments: Mapping[str, tuple[Value, ...]]
    after: tuple[str, ...]
    key: str

    def results(self) -> list[Result]:
        """Return the results of other jobs that this one uses, in their order."""
        values = (value for row in self.arguments.values() for value in row)
        return [value for value in values if isinstance(value, Result)]


@dataclass(frozen=True)
class Night:
    """Jobs that wait for each other.

    Attributes:
        file: in which they stand.
        name, description: of the night.
        side_by_side: how many may run at the same time.
        jobs: by name, in the order of the file.
    """

    file: Path
    name: str
    description: str
    side_by_side: int
    jobs: Mapping[str, Job]

    @property
    def folder(self) -> Path:
        """The folder of the file, from which paths start."""
        return self.file.absolute().parent

    def sorter(self) -> TopologicalSorter[str]:
        """Return the jobs in an order in which each comes after those that it waits for."""
        return TopologicalSorter({name: job.after for name, job in self.jobs.items()})

    def error(self, job: Job, message: str, argument: str = "") -> InputError:
        """Return the error of a job, or of one of its arguments."""
        where = f"{job.key}.{job.command}.{argument}" if argument else job.key
        return InputError(message, self.file, where)


def read_night(file: Path) -> Night:
    """Read the jobs of a file.

    Raises InputError: anything that cannot be used, with file, key and what would be right: a job
    without a command or with several, the name of a job that there is not, jobs that wait for each
    other, or two jobs whose folders would be one.
    """
    section = Section(read_yaml(file), file)
    section.expect(KEYS["night"])
    name = section.text("name", file.stem)
    description = section.text("description")
    side_by_side = section.integer("side_by_side")
    rows = dict(section.rows("jobs"))
    if not rows:
        raise section.error("at least one job was expected", "jobs")
    if len(rows) > _MOST_JOBS:
        most = f"{len(rows):,} jobs; a night has at most {_MOST_JOBS:,}"
        raise section.error(f"{most}. Many recordings of one kind are one batch", "jobs")
    section.finish()
    _check_names(section, list(rows))
    jobs = {job: _job(Section(row, file, f"jobs.{job}"), job) for job, row in rows.items()}
    night = Night(file, name, description, side_by_side, jobs)
    for job in jobs.values():
        for other in job.after:
            _check_known(night, job, other)
    try:
        night.sorter().prepare()
    except CycleError as error:
        circle = " waits for ".join(reversed(error.args[1]))
        raise section.error(f"these jobs wait for each other: {circle}", "jobs") from None
    return night


def _check_names(section: Section, names: list[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if not re.fullmatch(JOB_NAME, name):
            raise section.error(
                f"{shown(name)} cannot be the name of a job: letters, digits, _ and - were "
                "expected, at most 60, with a letter or digit at the beginning",
                "jobs",
            )
        if name.lower() in _DEVICES:
            raise section.error(f"{name} is the name of a device on Windows", "jobs")
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise section.error(
                f"{other} and {name} would write into the same folder where capitals make no "
                "difference; call one of them otherwise",
                "jobs",
            )


def _check_known(night: Night, job: Job, other: str) -> None:
    if other in night.jobs:
        return
    hint = did_you_mean(other, night.jobs)
    raise night.error(job, f"there is no job {shown(other)}{hint} Known: {', '.join(night.jobs)}")


def _job(section: Section, name: str) -> Job:
    section.expect(KEYS["job"])
    waits = section.take("after", [])
    after = [
        _name(section, one, "after") for one in (waits if isinstance(waits, list) else [waits])
    ]
    commands = [command for command in section.given() if command in COMMANDS]
    if len(commands) != 1:
        found = f"not {' and '.join(commands)}" if commands else "and there is none"
        raise section.error(
            f"a job is one command of channelfit, {found}. Known: {', '.join(COMMANDS)}"
        )
    command = commands[0]
    arguments: dict[str, tuple[Value, ...]] = {}
    for argument, value in section.rows(command):
        if not re.fullmatch(ARGUMENT_NAME, argument):
            raise section.error(f"{shown(argument)} is no name of an argument", command)
        key = f"{section.key}.{command}.{argument}"
        values = value if isinstance(value, list) else [value]
        if not values:
            raise InputError("at least one value was expected", section.file, key)
        arguments[argument] = tuple(_value(one, section, key) for one in values)
    section.finish()
    results = Job(name, command, arguments, (), section.key).results()
    after += [result.job for result in results]
    return Job(name, command, arguments, tuple(dict.fromkeys(after)), section.key)


def _name(section: Section, value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise section.error(f"the name of a job was expected, not {shown(value)}", key)
    return value


def _value(value: Any, section: Section, key: str) -> Value:
    if isinstance(value, Mapping):
        inner = Section(value, section.file, key)
        inner.expect(KEYS["job result"])
        file = inner.text("file", "")
        job = _name(inner, inner.take("run"), "run")
        if file and not _stays_inside(file):
            message = f"the name of a file in the folder of the job was expected, not {shown(file)}"
            raise inner.error(message, "file")
        return Result(job, file)
    if isinstance(value, bool):
        return value
    if not isinstance(value, str | int | float):
        message = f"a text, a number, true, false or {{run: JOB}} was expected, not {shown(value)}"
        raise InputError(message, section.file, key)
    if "\0" in str(value):
        raise InputError("a NUL character cannot be passed on", section.file, key)
    return str(value)


def _stays_inside(file: str) -> bool:
    """Return whether a path leads from a folder to something in it, on any system."""
    for kind in (PurePosixPath, PureWindowsPath):
        path = kind(file)
        if path.anchor or ".." in path.parts or not path.parts:
            return False
    return True
