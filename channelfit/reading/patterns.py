"""Files that a pattern or a folder stands for, looked for within bounds."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from channelfit.reading.errors import InputError

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
