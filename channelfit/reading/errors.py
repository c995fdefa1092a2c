"""Messages to a user: mistakes in the input, cautions, and how values are shown in them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike

#: Characters that steer a terminal rather than show on it, or turn the text behind them around.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


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


class TemporaryError(InputError):
    """No mistake of the user: the machine refuses, and the same may succeed later."""


class NotWritten(TemporaryError):
    """A file cannot be written for want of space or permission."""


class DeviceError(TemporaryError):
    """A GPU fails or lacks memory; it may suffice for less at a time."""


def did_you_mean(name: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> str:
    """Return "; did you mean X?" with the known names nearest to an unknown one; else a full stop.

    Arguments:
        most: of how many names at most.
        cutoff: the least similarity, 0 to 1.
    """
    close = difflib.get_close_matches(name, list(known), most, cutoff)
    return f"; did you mean {', '.join(close)}?" if close else "."


@dataclass(frozen=True)
class Caution:
    """Input that can be used, but is probably a mistake.

    Attributes:
        place: the file and the key, or the part of the data.
        value: what was found there.
        advice: what would be right, or what to look at.
    """

    place: str
    value: str
    advice: str

    def __str__(self) -> str:
        return f"{self.place}: {self.value}; {self.advice}"


def each_once(cautions: Iterable[Caution]) -> tuple[Caution, ...]:
    """Return the cautions in their order, each only once."""
    return tuple(dict.fromkeys(cautions))


def shown(value: object) -> str:
    """Return a user's value for a message: text in quotes, and cut where it is long."""
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    text = "".join(c if c.isprintable() else " " for c in text[:100])
    return text if len(text) <= 60 else text[:57] + "..."


def printable(text: str) -> str:
    """Return a text for a terminal, with steering characters shown by their codes (``\\x1b``)."""
    return _STEERING.sub(lambda found: ascii(found[0])[1:-1], text)
