"""The folder in which compiled code and what was learned about this machine are kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import threading
import warnings
from functools import cache
from pathlib import Path

import platformdirs

_MAGIC = b"channelfit cache 1\n"


def cache_folder() -> Path:
    """Return CHANNELFIT_CACHE, or the platform's cache folder; all of it may be deleted at any
    time.
    """
    return Path(os.environ.get("CHANNELFIT_CACHE") or platformdirs.user_cache_dir("channelfit"))


def kept(kind: str, key: str) -> bytes | None:
    """Return the bytes that `keep` stored under a key; None where there are none that can be
    trusted.

    A file counts where it and its folder belong to this user and nobody else may write to them, and
    where it still has the hash that is written in it.

    Arguments:
        kind, key: as in `keep`.
    """
    folder = _private_folder(kind)
    if folder is None:
        return None
    try:
        status = (folder / key).lstat()
        if not stat.S_ISREG(status.st_mode) or not _own(status):  # reading a pipe would never end
            return None
        with open(folder / key, "rb") as file:
            found = file.read()
    except OSError:
        return None
    body = found[len(_MAGIC) + 32 :]
    return body if found == _sealed(key, body) else None


def keep(kind: str, key: str, body: bytes) -> None:
    """Store bytes, wholly or not at all; where that cannot be done a warning says so, once.

    Arguments:
        kind: the name of a folder within the cache folder.
        key: letters and digits: a hash of all that the bytes were made of.
        body: the bytes.
    """
    folder = _private_folder(kind)
    if folder is None:
        return
    partial = folder / f"{key}.{os.getpid()}-{threading.get_ident()}.partial"
    try:
        try:
            partial.write_bytes(_sealed(key, body))
            partial.chmod(0o600)
            if (folder / key).is_dir() and not (folder / key).is_symlink():
                shutil.rmtree(folder / key)
            partial.replace(folder / key)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        _without(folder, str(error))


def _sealed(key: str, body: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(key.encode() + b"\n" + body).digest() + body


def _own(status: os.stat_result) -> bool:
    """Whether a file or folder is this user's, and nobody else's to write."""
    if sys.platform == "win32":  # a user's folders are private there from the start
        return True
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@cache
def _made(folder: Path) -> Path | None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if sys.platform != "win32" and status.st_uid == os.getuid():
            folder.chmod(0o700)
            status = folder.stat()
    except OSError as error:
        _without(folder, str(error))
        return None
    if not _own(status):
        _without(folder, "it belongs to another user")
        return None
    return folder


def _private_folder(kind: str) -> Path | None:
    return _made(cache_folder() / kind)


@cache
def _without(folder: Path, why: str) -> None:
    """Warn that what is compiled now will have to be compiled again."""
    warnings.warn(
        f"the cache folder {folder} cannot be used ({why}): models are compiled anew each time; "
        "CHANNELFIT_CACHE names another folder",
        RuntimeWarning,
        stacklevel=2,
    )
