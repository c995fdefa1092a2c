"""Which recordings a batch fits: files, patterns, folders, a table of them, files of many wells.

A well is called by the table's `name` or `well`, by the well of a plate that its file's name or its
column's heading tells (A01 to P24), or by the name of its file.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.batch.checks import RESIDUAL_MEASURES
from channelfit.batch.sheets import SUFFIXES, read_sheet
from channelfit.batch.table import Column, WellTable, texts, values_of
from channelfit.reading import formats, tables
from channelfit.reading.csv_tables import first_cells
from channelfit.reading.documents import read_json
from channelfit.reading.errors import InputError, did_you_mean, printable, shown
from channelfit.reading.files import matching
from channelfit.reading.texts import file_size

#: The well of a 384-well plate within a text.
_WELL = re.compile(r"(?<![A-Za-z0-9])([A-P])(\d{1,2})(?![A-Za-z0-9])")
_COLUMNS_OF_A_PLATE = 24
#: The sweep that a heading names; programs that sort texts put sweep 10 before sweep 2.
_SWEEP = re.compile(r"(?:sweep|trace)[\s_.-]*(\d{1,9})\s*$", re.IGNORECASE)
ARRAY = ".npy"
#: Columns of a table of recordings that are no metadata.
OWN = ("file", "well", "name", "row", "column", "signal", "weight", "mask")
#: Columns of the table of results that no metadata may be called.
RESERVED = (
    *("cost", "rms", "noise", "starts", "agreed", "seal", "leak", "run_down"),
    *("clamp_resistance", "clamp_capacitance", "clamp_lost"),
    *RESIDUAL_MEASURES,
    *("quality", "reason", "run"),
)
#: The suffixes of files in a folder that are no recordings.
_NO_RECORDINGS = (".eph", ".json")
_MOST = 1_000_000
#: The key of a recording's metadata in a run folder, and the keys of its texts.
_METADATA = "told"
_TEXTS = ("well", "file", "shown", "row", "signal", "masks", "folder")


@dataclass(frozen=True)
class WellRecording:
    """A well and the place of its recording.

    Attributes:
        well: its name, unique in a batch.
        file: absolute.
        shown: the file as the user named it.
        row, column: of the plate, such as "A" and 1; empty and 0 where it is none.
        signal: the name of the signal or well in a file with several; empty for the template's.
        columns: of a table of many wells, the columns of this one, a column for each sweep; empty
            where the template says which.
        weight: the factor of its samples; None for the template's.
        masks: stretches of time that are left out besides the template's, in words.
        metadata: the other cells in the user's table, by column.
        folder: from which paths in that table start.
    """

    well: str
    file: str
    shown: str
    row: str = ""
    column: int = 0
    signal: str = ""
    columns: tuple[str, ...] = ()
    weight: float | None = None
    masks: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""

    def plain(self) -> dict[str, Any]:
        """Return the recording as JSON holds it."""
        found = asdict(self)
        found[_METADATA] = found.pop("metadata")
        return found

    @classmethod
    def of(cls, plain: Mapping[str, Any], file: Path) -> WellRecording:
        """Return the recording of `plain`. Raises InputError for other data."""
        try:
            weight = plain["weight"]
            return cls(
                **{name: str(plain[name]) for name in _TEXTS},
                column=int(plain["column"]),
                columns=tuple(map(str, plain["columns"])),
                weight=None if weight is None else float(weight),
                metadata={str(k): str(v) for k, v in plain[_METADATA].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError("is not a list of recordings that a batch has written", file) from None


def read_list(file: Path) -> list[WellRecording]:
    """Read the recordings of an earlier run, from the list in its folder."""
    rows = read_json(file).get("recordings")
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise InputError("is not a list of recordings that a batch has written", file)
    return [WellRecording.of(row, file) for row in rows]


@dataclass(frozen=True)
class Expected:
    """The shape of the recordings that a template expects of a file.

    Attributes:
        n_sweeps: of its protocol.
        all_columns: whether all columns of a table are currents, but those of times.
        time: the name of the column of times; empty where there is none.
    """

    n_sweeps: int
    all_columns: bool = False
    time: str = ""


def find_recordings(
    named: Sequence[str | os.PathLike[str]], expected: Expected
) -> list[WellRecording]:
    """Find the recordings that a user names.

    Arguments:
        named: files, patterns, folders, or one table of recordings.
        expected: by the template, which decides whether a file holds many wells.

    Raises InputError: nothing there, a table that cannot be used, or two wells of the same name.
    """
    if not named:
        raise InputError("no recordings are named: give files, a folder, or a table of them")
    paths = [Path(each) for each in named]
    tables_ = [path for path in paths if _is_table_of_recordings(path)]
    if tables_ and len(paths) > 1:
        raise InputError("a table of recordings stands alone; name the others in it", tables_[0])
    if tables_:
        listed = list(_from_table(paths[0]))
    else:
        listed = [_from_file(path) for each in paths for path in _files(each)]
    found = [one for each in listed for one in _wells_in(each, expected)]
    if len(found) > _MOST:
        raise InputError(f"{len(found):,} recordings are more than {_MOST:,}")
    _check_distinct(found)
    return found


def chosen_by_name(
    recordings: Sequence[WellRecording], names: Iterable[str]
) -> list[WellRecording]:
    """Return the recordings of some wells, in the order of the recordings.

    Raises: InputError for a name that no well has.
    """
    keep = wells_named([each.well for each in recordings], names)
    return [each for each in recordings if each.well in keep]


def same_well(name: str, names: Collection[str]) -> str | None:
    """Find the name of a well among names, where `a1` is also A01; None for none."""
    place = _WELL.fullmatch(name.strip().upper())
    also = f"{place[1]}{int(place[2]):02}" if place else name.strip()
    return next((n for n in (name.strip(), also) if n in names), None)


def wells_named(known: Sequence[str], names: Iterable[str], what: str = "--only") -> set[str]:
    """Find the names of wells in any spelling; `a1` is A01.

    Raises: InputError for a name that no well has.
    """
    keep = set()
    for name in names:
        found = same_well(name, known)
        if found is None:
            near = did_you_mean(name, known, most=3)
            listed = ", ".join(known[:12]) + (" .." if len(known) > 12 else "")
            raise InputError(f"no well {shown(name.strip())}{near} There are: {listed}", None, what)
        keep.add(found)
    return keep


def metadata(recordings: Sequence[WellRecording]) -> WellTable:
    """Return the metadata of recordings as a table, by which `--where` may select."""
    columns: dict[str, np.ndarray] = {
        "well": texts(each.well for each in recordings),
        "file": texts(printable(each.shown) for each in recordings),
        "row": texts(each.row for each in recordings),
        "column": np.array([each.column or np.nan for each in recordings], dtype=float),
    }
    about = {
        "well": Column("", "The name of the well.", True),
        "file": Column("", "The file of its recording.", True),
        "row": Column("", "Its row on the plate.", True),
        "column": Column("", "Its column on the plate."),
    }
    for name in dict.fromkeys(name for each in recordings for name in each.metadata):
        columns[name] = values_of([each.metadata.get(name, "") for each in recordings])
        about[name] = Column("", "As the table of recordings says.", columns[name].dtype == object)
    return WellTable(columns, about)


# --- files ---------------------------------------------------------------------------------------


def _files(named: Path) -> Iterator[Path]:
    """Yield the files of a path, a pattern or a folder, in the order of their names."""
    if named.is_dir():
        found = [p for p in named.iterdir() if _may_be_recording(p)]
        if not found:
            raise InputError("no recordings in this folder", named)
    elif not named.exists() and glob.has_magic(str(named)):
        found = [path for path in matching(named) if path.is_file()]
        if not found:
            raise InputError("no file fits this pattern", named)
    else:
        file_size(named)
        found = [named]
    yield from sorted(found, key=_naturally)


def _may_be_recording(path: Path) -> bool:
    suffix = formats.suffix_of(path)
    known = suffix in formats.READERS or suffix in tables.READERS or suffix == ARRAY
    return known and suffix not in _NO_RECORDINGS and path.is_file() and path.name[0] != "."


def _naturally(path: Path) -> list[tuple[int, int, str]]:
    """Return a key that sorts numbers in names by their size."""
    parts = re.findall(r"\d+|\D+", str(path))
    return [(0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts]


def _from_file(path: Path) -> WellRecording:
    place = _place(path.name)
    row, column = place or ("", 0)
    well = f"{row}{column:02}" if place else _stem(path)
    return WellRecording(_name(well, path), _absolute(path), str(path), row, column)


def _absolute(path: Path) -> str:
    text = os.path.abspath(path)
    if "${" in text:
        raise InputError("a path with ${ would be taken for a variable; rename it", path)
    return text


def _stem(path: Path) -> str:
    suffix = formats.suffix_of(path)
    return path.name[: -len(suffix)] if suffix and len(path.name) > len(suffix) else path.name


def _place(text: str) -> tuple[str, int] | None:
    """Return row and column of the one well in a text; None where it names none or several."""
    found = {
        (match[1], int(match[2]))
        for match in _WELL.finditer(text.replace("_", " "))
        if 1 <= int(match[2]) <= _COLUMNS_OF_A_PLATE
    }
    return next(iter(found)) if len(found) == 1 else None


def _name(text: str, path: Path, key: str | None = None) -> str:
    """Return a well's name, printable. Raises InputError for one that is empty or endless."""
    name = printable(" ".join(text.split()))
    if not name or len(name) > 200:
        fault = "is empty" if not name else "has more than 200 characters"
        raise InputError(f"the name of a well {fault}", path, key)
    return name


def _check_distinct(recordings: Sequence[WellRecording]) -> None:
    seen: dict[str, WellRecording] = {}
    for each in recordings:
        other = seen.setdefault(each.well, each)
        if other is not each:
            places = [f"{one.shown} {one.signal or ''}".strip() for one in (other, each)]
            raise InputError(
                f"two recordings are of the well {each.well}: {places[0]} and {places[1]}; name "
                "fewer files, such as '*before*.csv', or give a table with a column `name`"
            )


# --- a table of recordings -----------------------------------------------------------------------


def _is_table_of_recordings(path: Path) -> bool:
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        return False
    return path.suffix.lower() == ".xlsx" or "file" in map(str.lower, first_cells(path))


def _from_table(path: Path) -> Iterator[WellRecording]:
    """Yield the recordings of a table; relative paths start where it stands."""
    head, rows = read_sheet(path)
    known = {name.lower(): name for name in head if name.lower() in OWN}
    for name in head:
        if name in known.values():
            continue
        if name in RESERVED:
            raise InputError(f"the column {name} of the results is called so; rename it", path)
        if name.lower() in known:
            raise InputError(f"two columns are called {known[name.lower()]} and {name}", path)
    for line, cells in rows:
        row = dict(zip(head, cells, strict=True))
        own = {key: row[name] for key, name in known.items()}
        others = {key: text for key, text in row.items() if key not in known.values()}
        yield _from_row(path, f"line {line}", own, others)


def _from_row(
    table: Path, place: str, own: Mapping[str, str], others: Mapping[str, str]
) -> WellRecording:
    if not own["file"]:
        raise InputError("no file is named", table, place)
    if "\0" in own["file"]:
        raise InputError("a file name cannot hold a NUL character", table, place)
    named = table.parent / Path(own["file"]).expanduser()
    found = _from_file(named)
    well = own.get("well", "")
    on_plate = _place_in_row(own, table, place)
    if on_plate is None and not well and found.row:
        on_plate = (found.row, found.column)
    row, column = on_plate or ("", 0)
    at = f"{row}{column:02}" if row.isalpha() else found.well
    label = own.get("name") or (at if not well or _place(well) else well)
    return replace(
        found,
        well=_name(label, table, place),
        shown=os.path.normpath(named),
        row=row,
        column=column,
        signal=own.get("signal", ""),
        weight=_weight(own["weight"], table, place) if own.get("weight") else None,
        masks=own.get("mask", ""),
        metadata=others,
        folder=os.path.abspath(table.parent),
    )


def _place_in_row(own: Mapping[str, str], table: Path, place: str) -> tuple[str, int] | None:
    """Return row and column of the plate for a row of a table, from its well or its own columns.

    Raises: InputError where it tells one of them only, or two places.
    """
    by_name = _place(own["well"]) if own.get("well") else None
    cells = [own.get("row", ""), own.get("column", "")]
    if not any(cells):
        return by_name
    if not all(cells):
        text = f"row {shown(cells[0])} and column {shown(cells[1])}"
        raise InputError(f"a place has a row and a column, not {text}", table, place)
    found = (printable(cells[0]).upper(), _whole(cells[1], table, place))
    if by_name is not None and by_name != found:
        text = f"row {found[0]}, column {found[1]}"
        raise InputError(f"the well {own['well']} is not in {text}", table, place)
    return found


def _whole(text: str, table: Path, place: str) -> int:
    if not re.fullmatch(r"\d{1,4}(\.0)?", text):
        raise InputError(f"a number of a column was expected, not {shown(text)}", table, place)
    return int(float(text))


def _weight(text: str, table: Path, place: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not 0 <= weight < float("inf"):
        raise InputError(f"a weight of 0 or more was expected, not {shown(text)}", table, place)
    return weight


# --- files of many wells -------------------------------------------------------------------------


def _wells_in(recorded: WellRecording, expected: Expected) -> list[WellRecording]:
    """Return the wells of a file: the one that is named, or all; itself where it holds one."""
    path = Path(recorded.file)
    suffix = formats.suffix_of(path)
    try:
        if suffix == ARRAY:
            groups = _wells_of_array(path, expected.n_sweeps)
        elif suffix in tables.READERS and suffix != ".mat":
            groups = _wells_of_columns(first_cells(path), expected)
        else:
            groups = {}
    except InputError:  # of one file of many: its error is reported when it is read
        return [recorded]
    if not groups:
        return [recorded]
    if recorded.signal:
        return [replace(recorded, columns=_named(recorded.signal, groups, path))]
    if len(groups) == 1 and suffix == ARRAY:
        return [replace(recorded, columns=next(iter(groups.values())))]
    found = []
    for label, columns in groups.items():
        row, column = _place(label) or ("", 0)
        well = f"{row}{column:02}" if row else _name(f"{_stem(path)} {label}", path)
        found.append(
            replace(recorded, well=well, row=row, column=column, signal=label, columns=columns)
        )
    return found


def _named(name: str, groups: Mapping[str, tuple[str, ...]], path: Path) -> tuple[str, ...]:
    place = _place(name)
    for label, columns in groups.items():
        if label == name or (place is not None and _place(label) == place):
            return columns
    listed = ", ".join(list(groups)[:12])
    raise InputError(f"no well or column {shown(name)}; there are {listed}", path)


def _wells_of_array(path: Path, n_sweeps: int) -> dict[str, tuple[str, ...]]:
    """Return by well the names that `array_columns` gives its sweeps."""
    shape = read_array(path).shape
    if len(shape) == 1:
        return {"1": ("1",)}
    if len(shape) == 2 and n_sweeps > 1:
        return {"1": tuple(str(k + 1) for k in range(shape[0]))}
    n_wells, own = shape[0], 1 if len(shape) == 2 else shape[1]
    width = len(str(n_wells))
    return {
        f"{w + 1:0{width}}": tuple(str(w * own + k + 1) for k in range(own)) for w in range(n_wells)
    }


def read_array(path: Path) -> np.ndarray:
    """Read an array of currents, mapped into memory.

    It is (n_samples,), (n_sweeps, n_samples) of one well, (n_wells, n_samples) where the protocol
    has one sweep, or (n_wells, n_sweeps, n_samples).

    Raises: InputError for a file that is no such array.
    """
    file_size(path)
    try:
        values: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise InputError(f"not an array of NumPy: {error}"[:300], path) from None
    if values.dtype.kind not in "fiu" or not 1 <= values.ndim <= 3 or 0 in values.shape:
        raise InputError(
            f"an array of numbers (n_wells, n_sweeps, n_samples) was expected, not one of "
            f"{values.dtype} and shape {values.shape}",
            path,
        )
    return values


def array_columns(path: Path) -> tables.Columns:
    """Return the sweeps of an array as the columns 1, 2, 3 .. of a table."""
    values = read_array(path)
    rows = np.asarray(values, dtype=float).reshape(-1, values.shape[-1])
    return tables.Columns({str(k): row for k, row in enumerate(rows, 1)})


def _wells_of_columns(heading: Sequence[str], expected: Expected) -> dict[str, tuple[str, ...]]:
    """Return the columns by well, where a table holds several wells.

    It does where its headings name several wells of a plate, or where there is one sweep and the
    template takes all of several columns.
    """
    found: dict[str, list[str]] = {}
    for name in heading:
        if place := _place(name.replace(".", " ")):
            found.setdefault(f"{place[0]}{place[1]:02}", []).append(name)
    if len(found) >= 2:
        return {label: _by_sweep(names) for label, names in found.items()}
    if all(map(_is_number, heading)):
        heading = [str(k) for k in range(1, len(heading) + 1)]
    currents = [name for name in heading if name != expected.time]
    if expected.n_sweeps > 1 or not expected.all_columns or len(currents) < 2:
        return {}
    return {name: (name,) for name in currents}


def _by_sweep(names: Sequence[str]) -> tuple[str, ...]:
    """Return columns of a well in the order of the sweeps that all of them name, else unchanged."""
    numbers = [match[1] for name in names if (match := _SWEEP.search(name))]
    if len(numbers) < len(names):
        return tuple(names)
    order = sorted(range(len(names)), key=lambda k: int(numbers[k]))
    return tuple(names[k] for k in order)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
