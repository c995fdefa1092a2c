"""The command line of a job, made from the declaration of its command.

The declaration says which arguments the command has, and of what kind. Every option is written
with its value in one word, and all arguments follow a `--`, so that no value can be taken for an
option.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click

from channelfit.front.night.jobs import Job, Night, Result, Value
from channelfit.reading.documents import Section
from channelfit.reading.errors import did_you_mean, shown
from channelfit.reading.files import matching
from channelfit.results.export.kinds import KINDS

#: Options that the night sets itself, or that would change what it reads or where.
_OWN = {
    "out": "a job writes into the folder that has its name, in the folder of the night",
    "resume": "a night that is resumed resumes its jobs",
    "json": "what a job prints stands in its log",
    "quiet": "what a job prints stands in its log",
    "show": "a job is to make something new",
}
#: The page that the command `report` writes into the folder of the job.
_REPORT = "report.html"
#: Arguments without which a command can only resume.
_NEEDED = {"optimize": ("model",), "discover": ("model",), "curves": ("curve", "data")}
#: Commands whose results begin with a prefix: the folder of the job, which is made before.
_PREFIXED = ("simulate", "curves", "cell")


class Call:
    """A job with the declaration of its command.

    Arguments:
        night: to which the job belongs.
        job: the command with its arguments.
        command: the declaration.

    Raises InputError: an argument that the command does not have, or not in this way.
    """

    def __init__(self, night: Night, job: Job, command: click.Command) -> None:
        self.night, self.job, self.command = night, job, command
        known = _all_parameters(command).items()
        self._known = {name: p for name, p in known if name not in _OWN}
        for name in job.arguments:
            self._check(self._parameter(name), name, job.arguments[name])
        for name, parameter in self._known.items():
            needed = parameter.required or name in _NEEDED.get(job.command, ())
            if needed and name not in job.arguments:
                raise night.error(job, f'"{name}" is missing')
        if job.command == "export" and "to" not in job.arguments:
            raise night.error(job, f'"to" is missing, one of {", ".join(KINDS)}')

    def _parameter(self, name: str) -> click.Parameter:
        if name in _OWN:
            raise self.night.error(self.job, f"cannot be given: {_OWN[name]}", name)
        if name in self._known:
            return self._known[name]
        hint = did_you_mean(name, self._known)
        known = ", ".join(self._known)
        message = f'{self.job.command} has no argument "{name}"{hint} Known: {known}'
        raise self.night.error(self.job, message)

    def _check(self, parameter: click.Parameter, name: str, values: tuple[Value, ...]) -> None:
        """Raise InputError where an argument does not take as many values, or this kind."""
        several = parameter.nargs != 1 or parameter.multiple
        if len(values) > 1 and not several:
            raise self.night.error(self.job, f"takes one value, not {len(values)}", name)
        for value in values:
            if isinstance(value, bool) and not _may_be_bare(parameter):
                raise self.night.error(self.job, f"wants a value, not {str(value).lower()}", name)
            if _is_flag(parameter) and not isinstance(value, bool):
                what = "the result of a job" if isinstance(value, Result) else shown(value)
                message = f"true or false was expected, not {what}"
                raise self.night.error(self.job, message, name)

    def words(self, out: Path, place: Callable[[Result], Path]) -> list[str]:
        """Return the command and its arguments, as `channelfit` takes them.

        Arguments:
            out: the folder of the results.
            place: returns the path of the result of another job.
        """
        writes = "out" in _all_parameters(self.command)
        options, arguments = [f"--out={self.output(out)}"] if writes else [], []
        for name, parameter, value in self._values():
            if isinstance(value, bool):
                options += [_long(parameter)] if value else []
                continue
            if isinstance(value, Result):
                texts = [str(place(value))]
            elif isinstance(parameter.type, click.Path):
                texts = [str(path) for path in self._paths(name, parameter, value)]
            else:
                texts = [value]
            if isinstance(parameter, click.Argument):
                arguments += texts
            else:
                options += [f"{_long(parameter)}={text}" for text in texts]
        return [self.job.command, *options, "--", *arguments]

    def _values(self) -> Iterator[tuple[str, click.Parameter, Value]]:
        """Yield each value with its argument, in the order in which the command declares them."""
        for name, parameter in self._known.items():
            for value in self.job.arguments.get(name, ()):
                yield name, parameter, value

    def _paths(self, name: str, parameter: click.Parameter, value: str) -> list[Path]:
        """Return the path of a text, or all paths that fit it where several may be."""
        key = f"{self.job.key}.{self.job.command}"
        path = Section({}, self.night.file.absolute(), key).resolve(value, name)
        if parameter.nargs == 1 or not glob.has_magic(value) or path.exists():
            return [path]
        found = matching(path)
        if not found:
            raise self.night.error(self.job, f"nothing fits the pattern {shown(value)}", name)
        return found

    def paths(self) -> list[tuple[str, Path]]:
        """Return the files and folders among the values, but results of other jobs, by argument."""
        return [
            (name, path)
            for name, parameter, value in self._values()
            if isinstance(value, str) and isinstance(parameter.type, click.Path)
            for path in self._paths(name, parameter, value)
        ]

    def texts(self) -> list[str]:
        """Return the values that are neither paths nor results; a path may stand in them."""
        return [
            value
            for _, parameter, value in self._values()
            if isinstance(value, str) and not isinstance(parameter.type, click.Path)
        ]

    def output(self, out: Path) -> Path:
        """Return the value of `--out` for results in a folder."""
        if self.job.command == "report":
            return out / _REPORT
        if self.job.command == "export":
            (kind,) = self.job.arguments["to"]
            ending = KINDS[str(kind)][0] if str(kind) in KINDS else ""
            return out / f"{self.job.name}{ending}"
        return out

    @property
    def wants_its_folder(self) -> bool:
        """True if the folder of the results must be there before the job begins."""
        return self.job.command in (*_PREFIXED, "export", "report")

    @property
    def resumes(self) -> str:
        """The kind of `--resume`: a "flag", with the folder of the "run", or "" for none."""
        parameter = _all_parameters(self.command).get("resume")
        if parameter is None:
            return ""
        return "flag" if _is_flag(parameter) else "run"

    def parsed(self, words: list[str]) -> Mapping[str, object]:
        """Return the arguments by name after the checks of the command line.

        Raises InputError: a value that the command does not take.
        """
        try:
            context = self.command.make_context(self.job.command, words[1:])
        except click.UsageError as error:
            raise self.night.error(self.job, error.format_message()) from None
        return context.params


def _all_parameters(command: click.Command) -> dict[str, click.Parameter]:
    """Return arguments and options by their names in a file of jobs."""
    found = {}
    for parameter in command.params:
        name = parameter.name or ""
        if isinstance(parameter, click.Option):
            name = _long(parameter).lstrip("-")
        found[name] = parameter
    return found


def _long(parameter: click.Parameter) -> str:
    return max(parameter.opts, key=len)


def _is_flag(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and bool(parameter.is_flag)


def _may_be_bare(parameter: click.Parameter) -> bool:
    """Return whether an option may stand without a value."""
    return isinstance(parameter, click.Option) and (
        _is_flag(parameter) or parameter._flag_needs_value
    )
