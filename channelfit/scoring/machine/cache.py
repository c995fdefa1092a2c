"""The folder for compiled code and for measurements of this machine."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import platformdirs

from channelfit.reading.files import read_plain, whole

_MAGIC = b"channelfit cache 1\n"
#: Bytes of the largest file that is read.
_MOST = 1 << 30


def cache_folder() -> Path:
    """Return CHANNELFIT_CACHE, or the platform's cache folder; all of it may be deleted at any
    time.
    """
    return Path(os.environ.get("CHANNELFIT_CACHE") or platformdirs.user_cache_dir("channelfit"))


def kept(kind: str, key: str, root: Path | None = None) -> bytes | None:
    """Return the bytes that `keep` stored under a key; None where there are none that can be
    trusted.

    A file counts if it and its folder belong to this user, no other user may write to them, and it
    still has the hash that is written in it.

    Arguments:
        kind, key, root: as in `keep`.
    """
    folder = private_folder(kind, root)
    found = None if folder is None else read_plain(folder / key, _MOST, _own)
    if found is None:
        return None
    body = found[len(_MAGIC) + 32 :]
    return body if found == _sealed(key, body) else None


def keep(kind: str, key: str, body: bytes, root: Path | None = None) -> bool:
    """Store bytes, wholly or not at all; where that cannot be done a warning says so, once.

    Arguments:
        kind: the name of a folder within the cache folder.
        key: letters and digits: a hash of all that the bytes were made of.
        body: the bytes.
        root: another folder than the cache folder.

    Returns: whether they are stored.
    """
    folder = private_folder(kind, root)
    if folder is None:
        return False
    place = folder / key
    try:
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        elif not place.is_file():  # a pipe, say; the folder is this user's alone
            place.unlink(missing_ok=True)
        with whole(place, mode=0o600) as file:
            file.write(_sealed(key, body))
    except OSError as error:
        _without(folder.parent, error.strerror or str(error))
        return False
    return True


def remembered(kind: str, made_of: Sequence[str], make: Callable[[], bytes]) -> bytes:
    """Return bytes as they were made before of the same texts, or make and store them.

    Arguments:
        kind: as in `keep`.
        made_of: all that the bytes depend on: versions, and the program that makes them, included.
    """
    key = hashlib.sha256("\0".join(map(repr, made_of)).encode()).hexdigest()
    found = kept(kind, key)
    if found is None:
        found = make()
        keep(kind, key, found)
    return found


def remembered_arrays(
    made_of: Sequence[str], make: Callable[[], Sequence[np.ndarray]]
) -> list[np.ndarray]:
    """Return arrays as they were made before of the same texts, or make and store them."""

    def made() -> bytes:
        out = io.BytesIO()
        np.savez(out, *make(), allow_pickle=False)
        return out.getvalue()

    found = remembered("tables", [*made_of, np.__version__], made)
    with np.load(io.BytesIO(found), allow_pickle=False) as archive:
        return [archive[name] for name in archive.files]


@cache
def program(*files: str) -> str:
    """Return a hash of Python files, by which what an older program has made is not used."""
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()


def _sealed(key: str, body: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(key.encode() + b"\n" + body).digest() + body


def _own(status: os.stat_result) -> bool:
    """Return whether a file or folder is this user's, and no other may write to it."""
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
        _without(folder.parent, error.strerror or str(error))
        return None
    if not _own(status):
        _without(folder.parent, "it belongs to another user")
        return None
    return folder


def private_folder(kind: str, root: Path | None = None) -> Path | None:
    """Return a folder within the cache folder, or within another one, that is this user's alone.

    It is made where there is none. None where it cannot be made, or belongs to another user, of
    which a warning tells.
    """
    return _made((root or cache_folder()) / kind)


@cache
def _without(folder: Path, why: str) -> None:
    """Warn that models will have to be compiled again."""
    warnings.warn(
        f"the cache folder {folder} cannot be used ({why}): models are compiled anew each time; "
        "CHANNELFIT_CACHE names another folder",
        RuntimeWarning,
        stacklevel=2,
    )
