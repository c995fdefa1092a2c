"""The models, protocols and recordings that come with the program.

In a checkout they are the folders `models` and `protocols` beside the package; a wheel carries
copies of both inside the package (`setup.py` puts them there).
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from channelfit.reading.errors import InputError
from channelfit.reading.files import whole

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = ("models", "protocols")
#: Files that stand in many folders, so that their names do not say which one is meant.
_COMMON = ("README.md", "LICENSE")


def shipped_folder() -> Path | None:
    """Return the folder with the shipped `models` and `protocols`; None without them."""
    for folder in (_PACKAGE / "examples", _PACKAGE.parent):
        if (folder / "models" / "model_b.yaml").is_file():
            return folder
    return None


def shipped_files() -> list[PurePosixPath]:
    """Return the paths of all shipped files, relative to `shipped_folder`, sorted."""
    folder = shipped_folder()
    if folder is None:
        return []
    return sorted(
        PurePosixPath(file.relative_to(folder).as_posix())
        for name in _FOLDERS
        for file in (folder / name).rglob("*")
        if file.is_file() and not any(p.startswith(".") for p in file.relative_to(folder).parts)
    )


def hint_at_examples(file: object) -> str:
    """Return a hint for "no such file" where a shipped file has this name; else ""."""
    name = Path(str(file)).name
    for found in shipped_files() if name not in _COMMON else ():
        if found.name == name:
            return f'; {found} comes with channelfit, and "channelfit examples ." copies it here'
    return ""


def copy_examples(folder: Path) -> tuple[list[Path], list[Path]]:
    """Copy all shipped files into a folder, byte for byte, and replace nothing.

    Arguments:
        folder: is made if it is not there.

    Returns: the files that were written, and those that were there already with the same content.

    Raises InputError: one of the files is there with another content (then nothing is written), or
    the folder cannot be written to, or the shipped files were not installed.
    """
    source = shipped_folder()
    if source is None:
        raise InputError(
            "the shipped models were not installed with this copy of channelfit; install it from "
            "its wheel, or run it in a checkout of its repository"
        )
    try:
        return _copied(source, folder)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", folder) from None


def _copied(source: Path, folder: Path) -> tuple[list[Path], list[Path]]:
    contents = {folder / file: (source / file).read_bytes() for file in shipped_files()}
    kept = [place for place in contents if place.exists() or place.is_symlink()]
    for place in kept:
        if not place.is_file() or place.read_bytes() != contents[place]:
            raise InputError(
                "this file exists already, differs from the one that comes with channelfit, and is "
                "not replaced; nothing was written. Name another folder, or move the file away",
                place,
            )
    written = [place for place in contents if place not in kept]
    for place in written:
        place.parent.mkdir(parents=True, exist_ok=True)
        with whole(place, replaces=False) as file:  # half of one would be refused the next time
            file.write(contents[place])
    return written, kept
