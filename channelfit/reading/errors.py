"""The one exception that means: what the user wrote cannot be used, and here is what would be."""

from __future__ import annotations

from os import PathLike


class InputError(ValueError):
    """A mistake in a user's file or option.

    Arguments:
        message: what is wrong, with the offending value and what would be accepted.
        file: the file it stands in, where known.
        key: the key, line or column inside that file, e.g. ``rates.C1 -> C2``.

    ``str()`` reads ``file: key: message``. The command line prints it and exits with 2.
    """

    def __init__(
        self, message: str, file: str | PathLike[str] | None = None, key: str | None = None
    ) -> None:
        self.message = message
        self.file = None if file is None else str(file)
        self.key = key
        super().__init__(": ".join(part for part in (self.file, key, message) if part))

    def at(self, file: str | PathLike[str] | None = None, key: str | None = None) -> InputError:
        """The same mistake, told with the place where it was found.

        Keys nest: an inner error of key ``k12`` under ``rates`` becomes ``rates.k12``.
        """
        keys = ".".join(part for part in (key, self.key) if part)
        return type(self)(self.message, self.file or file, keys or None)
