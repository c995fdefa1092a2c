"""The languages that a channel can be exported to, and the endings of their files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from channelfit.reading.errors import InputError
from channelfit.results.export.jaxley import jaxley
from channelfit.results.export.latex import latex
from channelfit.results.export.myokit import myokit
from channelfit.results.export.neuroml import neuroml
from channelfit.results.export.nmodl import ExportSettings, nmodl
from channelfit.results.export.plain_data import plain_data
from channelfit.results.export.python import python
from channelfit.results.export.subject import Subject

#: By the name of a language, the ending of its files and what writes the text.
KINDS: dict[str, tuple[str, Callable[[Subject, ExportSettings], str]]] = {
    "nmodl": (".mod", nmodl),
    "neuroml": (".nml", neuroml),
    "myokit": (".mmt", myokit),
    "jaxley": ("_jaxley.py", jaxley),
    "python": (".py", python),
    "latex": (".tex", latex),
    "json": (".json", plain_data),
}


def exported(subject: Subject, kind: str, settings: ExportSettings) -> str:
    """Return the text of a channel in a language.

    Arguments:
        kind: one of `KINDS`.
        settings: of which Python, Myokit, LaTeX and JSON take the name alone.

    Raises: InputError for what the language cannot say, and settings that it does not have.
    """
    if settings.ions and kind not in ("nmodl", "neuroml"):
        raise InputError(f"ions are NMODL's and NeuroML's; {kind} has the current alone")
    if settings.capacitance_pF is not None and kind not in ("nmodl", "neuroml", "jaxley"):
        raise InputError(f"--capacitance is of densities; {kind} has the whole cell's current, pA")
    if settings.point_process and kind != "nmodl":
        raise InputError(f"--point-process is NMODL's, and says nothing to {kind}")
    return KINDS[kind][1](subject, settings)


def kind_of(path: Path) -> str:
    """Return the language of a file by its ending. Raises InputError for one that none has."""
    for kind, (ending, _) in KINDS.items():
        if path.name.lower().endswith(ending):
            return kind
    known = ", ".join(f"{ending} ({kind})" for kind, (ending, _) in KINDS.items())
    raise InputError(f"the ending of the file says to what to export. Known: {known}", path)
