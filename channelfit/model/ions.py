"""The ions of NEURON: their charges, and the variables that a cell sets."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

#: Charges of the ions that NEURON's models name.
VALENCES = {"na": 1, "k": 1, "ca": 2, "cl": -1, "mg": 2, "li": 1, "cs": 1, "ba": 2, "h": 1}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{1,30}")


class IonVariable(NamedTuple):
    """A property of an ion that the cell around a channel decides.

    Attributes:
        ion: such as "ca".
        kind: its reversal potential, or its concentration in the cell or in the bath.
    """

    ion: str
    kind: Literal["reversal", "inside", "outside"]


def variables(ion: str) -> tuple[str, str, str, str]:
    """Return NEURON's names of an ion's current, reversal potential, and concentrations."""
    return f"i{ion}", f"e{ion}", f"{ion}i", f"{ion}o"


def ion_variable(name: str) -> IonVariable | None:
    """Return the meaning of a name such as "cai" or "ek" to NEURON; None for other names."""
    if not _NAME.fullmatch(name):
        return None
    concentration = name[-1] in "io"
    if name[0] == "e" and not (concentration and name[:-1] in VALENCES):
        return IonVariable(name[1:], "reversal")
    if concentration:
        return IonVariable(name[:-1], "inside" if name[-1] == "i" else "outside")
    return None
