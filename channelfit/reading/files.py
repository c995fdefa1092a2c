"""Files written whole or not at all, under unpredictable names, and through no link.

The folder of a file may have been prepared by another user. So a file that is not whole yet has a
random name that was free, and a symbolic link that has the file's own name is replaced.
Files that are added to (journals, logs, locks) are opened by `opened`, which refuses links.
Files that a pattern or a folder stands for are looked for within bounds.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from channelfit.reading.errors import InputError, NotWritten

#: The names of files that are not whole; those that a kill left may be removed.
PARTIAL = re.compile(r"\..*\.partial")
#: The message about a file that is not replaced.
EXISTS = "this file exists already; choose another name (in Python, overwrite=True replaces it)"
#: Windows changes ends of lines without the first, and has neither of the others.
_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


@contextmanager
def whole(
    path: Path, folder: Path | None = None, mode: int = 0o666, replaces: bool = True
) -> Iterator[IO[bytes]]:
    """Open a file for writing that gets its name when the block has ended without an error.

    A file that was there before stays until then.

    Arguments:
        path: of the file.
        folder: where it is until it is whole, in the same file system; None for beside it.
        mode: its permissions, as far as the user's umask lets them.
        replaces: whether another file of this name is replaced.

    Raises:
        FileExistsError: there is something else than a file; or anything that is not replaced.
        OSError: no permission, no space.
    """
    flags = os.O_CREAT | os.O_EXCL | _FLAGS
    if not replaces:  # the name is taken at once
        os.close(os.open(path, flags | os.O_WRONLY, mode))
    elif not _is_replaceable(path):
        raise FileExistsError(errno.EEXIST, "there is something that is no file", str(path))
    partial = (folder or path.parent) / f".{path.name[:40]}.{secrets.token_hex(8)}.partial"
    placed = False
    try:
        with os.fdopen(os.open(partial, flags | os.O_RDWR, mode), "w+b") as file:
            yield file
        partial.replace(path)
        placed = True
    finally:  # also when a full disk lets it not even be closed
        partial.unlink(missing_ok=True)
        if not placed and not replaces:
            path.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write all of the content or nothing; a file that was there before stays until then.

    Raises InputError: no permission, no space.
    """
    with writing(path), whole(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, whole or not at all, as `write_bytes` does."""
    write_bytes(path, text.encode())


def save_text(path: str | os.PathLike[str], text: str, overwrite: bool = False) -> Path:
    """Write a file in UTF-8 under a name that the user chose, and return its path.

    Raises InputError: the file exists and `overwrite` is false, or it cannot be written.
    """
    try:
        with whole(Path(path), replaces=overwrite) as file:
            file.write(text.encode())
    except FileExistsError as error:
        raise InputError(
            f"cannot be written: {error.strerror}" if overwrite else EXISTS, path
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot be written: {reason}", path) from None
    return Path(path)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of the system, such as a full disk, into an InputError."""
    try:
        yield
    except OSError as error:
        raise NotWritten(f"cannot be written: {error.strerror or error}", path) from None


def opened(path: Path, more: int = 0) -> int:
    """Open a file to read it and to change it in place; it is made where there is none.

    Arguments:
        more: flags for `os.open` besides, such as `os.O_APPEND`.

    Returns: a descriptor.

    Raises:
        InputError: it is a link, has another name as well, or is no file: what is written would
            go elsewhere.
        OSError: no permission, no space.
    """
    # Windows opens what a link leads to
    if not path.is_symlink():
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS | more, 0o666)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EMLINK):
                raise
        else:
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
                return descriptor
            os.close(descriptor)
    raise InputError(
        "is not written to, since it is a link or no ordinary file: what is written would go "
        "elsewhere; remove it, or choose another folder",
        path,
    )


def discard_partial(folder: Path) -> None:
    """Remove files that a kill left half-written, in a folder that no process uses."""
    for path in folder.iterdir():
        if PARTIAL.fullmatch(path.name) and (path.is_symlink() or path.is_file()):
            path.unlink(missing_ok=True)


def _is_replaceable(path: Path) -> bool:
    """Return whether there is nothing, a file or a link, and no device such as /dev/null."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return True
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def read_plain(
    file: Path, most: int, trusted: Callable[[os.stat_result], bool] = lambda status: True
) -> bytes | None:
    """Return the content of a plain file; None where it is missing, too large, or anything else.

    No link is followed, and a pipe is not waited for.

    Arguments:
        most: bytes of the largest file that is read.
        trusted: whether a file with this owner and mode is read.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | _FLAGS)
    except (OSError, ValueError):
        return None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size > most or not trusted(found):
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as stream:
        try:
            return stream.read(most)
        except OSError:
            return None


#: Files and folders that may be searched; half a second on a quick disk.
_MOST = 100_000


def matching(pattern: Path) -> list[Path]:
    """Return the files that fit a pattern, sorted; ``**`` stands for any folders.

    Raises InputError: too many files and folders would have to be searched.
    """
    parts = pattern.parts
    first = next((k for k, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    deep = None if "**" in parts else len(parts) - first
    _count(Path(*parts[:first]), deep, pattern)
    return sorted(map(Path, glob.glob(str(pattern), recursive=True)))


def files_below(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder, sorted. Raises InputError where they are too many."""
    _count(folder, None, folder)
    yield from sorted(path for path in folder.rglob("*") if path.is_file())


def _count(base: Path, deep: int | None, pattern: Path) -> None:
    """Refuse a pattern that would search more than `_MOST` files and folders; links are followed.

    Arguments:
        deep: through how many levels of folders; None for all.
    """
    waiting, seen = [(base, 1)], 0
    while waiting:
        folder, level = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    seen += 1
                    if seen > _MOST:
                        raise InputError(
                            f"more than {_MOST:,} files and folders would be searched; name a "
                            "folder nearer to the files",
                            pattern,
                        )
                    inside = (deep is None or level < deep) and entry.name[0] != "."
                    if inside and entry.is_dir():
                        waiting.append((Path(entry.path), level + 1))
        except OSError:  # no permission, or gone: nothing is found in it
            continue
