"""Files and folders of results, written whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from channelfit.reading.errors import InputError

#: What `fsync` answers on file systems that do not have it.
_CANNOT_TELL = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EROFS)


def make_folder(folder: Path) -> bool:
    """Makes the folder unless it is there; whether it did. Raises InputError when it cannot."""
    try:
        before = folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"cannot be written to: {error.strerror or error}", folder) from None
    return not before


def write_text(path: Path, text: str) -> None:
    """The whole text or nothing; a file that was there before stays until then.

    Raises:
        InputError: no permission, no space.
    """
    partial = path.with_name(f".{path.name}.partial")
    with writing(path):
        try:
            partial.write_text(text, encoding="utf-8", newline="\n")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def settle(folder: Path) -> None:
    """Waits until the files of a folder are on the disk, so that a power failure leaves them whole.

    Before that nothing may go from which they could be made again. A file system that cannot tell
    when it has written is not waited for, nor is a file that may not be written to.

    Raises:
        InputError: the disk has failed, or has no room for what was taken in before.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_file() and not path.is_symlink():
            with writing(path), suppress(PermissionError), open(path, "r+b") as file:
                try:
                    os.fsync(file.fileno())
                except OSError as error:
                    if error.errno not in _CANNOT_TELL:
                        raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A full disk, or a place without permission, becomes an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", path) from None
