"""Folders of results: made, and known to be on the disk."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from channelfit.reading.errors import InputError
from channelfit.reading.files import writing

#: What `fsync` answers on file systems that do not have it.
_CANNOT_TELL = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EROFS)


def make_folder(folder: Path, follows: bool = True) -> bool:
    """Makes the folder unless it is there; whether it did.

    Arguments:
        follows: whether it may be a link to a folder, as one that the user has named.

    Raises:
        InputError: it cannot be made or written to.
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
