"""The citation of channelfit in reports, exports and CITATION.cff (the tests compare them)."""

from __future__ import annotations

from channelfit import __version__

#: The name of the program where it is cited, and its purpose.
TITLE = "channelfit: kinetic models of ion channels, fitted to voltage-clamp recordings"
_NAME, _, _PURPOSE = TITLE.partition(": ")


def named(version: str = __version__) -> str:
    """Return the program with its version, for the header of a file that it has written."""
    return f"{_NAME} {version}: {_PURPOSE}"


def cited(version: str, year: str) -> str:
    """Return the program as it stands in a list of references.

    Arguments:
        year: in which it was used; empty where that is not known.
    """
    return f"{_NAME}, version {version} ({year or 'n.d.'}): {_PURPOSE}. Computer software."
