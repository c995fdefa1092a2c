"""Folders of results: the names of their files, how they are made, when they are on the disk."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from channelfit.reading.errors import InputError
from channelfit.reading.files import writing

#: The names of files in the folder of a fit.
FIT, HISTORY, SUMMARY = "fit.yaml", "history.csv", "summary.json"
#: The errors of `fsync` on file systems that do not have it.
_CANNOT_TELL = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EROFS)


def fit_file(path: Path) -> Path:
    """Return the fit file in a run folder; another path stays as it is.

    Raises InputError: the folder is that of a run of many fits.
    """
    if not path.is_dir():
        return path
    file = path / FIT
    if not file.exists() and (inner := sorted(path.glob("*/*.yaml"))):
        raise InputError(f"holds no {FIT}; {inner[0]} may be meant, or another one beside it", path)
    return file


def file_beside(file: Path, name: str) -> Path | None:
    """Return a file of a run folder beside its fit file; None where there is none.

    Arguments:
        file: the fit file, or one that lies in no run folder.
        name: of the other file, such as `SUMMARY`.
    """
    other = file.parent / name
    return other if file.name == FIT and other.exists() else None


def fault_of(write: Callable[..., object], *arguments: Any) -> InputError | None:
    """Call a function that writes a file; return why it could not, None where it could.

    It serves files that are written again later, so that a disk that is full for a while ends no
    run.
    """
    try:
        write(*arguments)
    except InputError as fault:
        return fault
    return None


def make_folder(folder: Path, follows: bool = True) -> bool:
    """Make a folder unless it is there; return whether it was made.

    Arguments:
        follows: whether it may be a link to a folder, such as one that the user has named.

    Raises InputError: it cannot be made or written to.
    """
    if not follows and folder.is_symlink():
        raise InputError("is a link, which is not followed; remove it", folder)
    try:
        before = folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"cannot be written to: {error.strerror or error}", folder) from None
    return not before


def sync_folder(folder: Path) -> None:
    """Wait until the files of a folder are on the disk, so that a power failure leaves them whole.

    Until then nothing may be removed from which they could be made again. There is no wait for a
    file system that cannot tell when it has written, nor for a file without write permission.

    Raises InputError: the disk has failed, or has no room for the files.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_file() and not path.is_symlink():
            with writing(path), suppress(PermissionError), open(path, "r+b") as file:
                try:
                    os.fsync(file.fileno())
                except OSError as error:
                    if error.errno not in _CANNOT_TELL:
                        raise
