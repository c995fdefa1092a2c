"""The exception for input that cannot be used."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from os import PathLike


class InputError(ValueError):
    """A mistake in a user's file, argument or option.

    ``str()`` gives ``file: key: message``. The command line prints it and exits with 2.

    Arguments:
        message: what is wrong, with the value and what would be accepted.
        file: the file that it stands in, where there is one.
        key: the key, line or column in that file, such as ``rates.C1 -> C2``, or the argument.

    Example:
        >>> import channelfit as cf
        >>> try:
        ...     cf.Protocol.steps("20 ms", 10, holding=-80, sampling=0.1)
        ... except cf.InputError as error:
        ...     print(error)
        levels: unit "ms" is a time; expected one of mV, V, uV
    """

    def __init__(
        self, message: str, file: str | PathLike[str] | None = None, key: str | None = None
    ) -> None:
        self.message = message
        self.file = None if file is None else str(file)
        self.key = key
        super().__init__(": ".join(part for part in (self.file, key, message) if part))

    def at(self, file: str | PathLike[str] | None = None, key: str | None = None) -> InputError:
        """Return the same mistake, with the place where it was found, where it has none yet.

        Keys nest: a mistake at ``k12`` that was found under ``rates`` is at ``rates.k12``.
        """
        keys = ".".join(part for part in (key, self.key) if part)
        return type(self)(self.message, self.file or file, keys or None)


class NotWritten(InputError):
    """A file cannot be written for want of space or permission; the same may succeed later."""


def did_you_mean(name: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> str:
    """Return "; did you mean X?" with the known names nearest to an unknown one; else a full stop.

    Arguments:
        most: of how many names at most.
        cutoff: the least similarity, 0 to 1.
    """
    close = difflib.get_close_matches(name, list(known), most, cutoff)
    return f"; did you mean {', '.join(close)}?" if close else "."
