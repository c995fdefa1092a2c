"""CUDA of a conductance and a reversal potential, rewritten for currents with drives.

The kernels of `cuda_walk` and `cuda_tangents` are written for a current of one ohmic term: its
conductance g and its reversal potential e hold at every voltage. Any other current has a drive for
each of its terms, which is made for every voltage by `createDrives` (`cuda_common`).
"""

from __future__ import annotations

import re

_REPLACEMENTS = (
    # values of a thread
    (r" *real gain, reversal;\n", ""),
    (r" *createGains\(p, g, e, (tally\.)?status\);\n", ""),
    (r" *gain = real\(g\);\n *reversal = real\(e\);\n", ""),
    (r"\], g, e;", "];"),
    # arguments
    (r"const (real |Dual &)g,\s*const (real |Dual &)e, ", ""),
    (r"const Dual &, const Dual &,\s*", ""),
    (r"\bp, g, e, ", "p, "),
    (r"stride, gain, reversal, ", "stride, "),
    (r"currentOf\(x, nodes\[0\], g, e\)", "currentOf(x, nodes[0], p, status)"),
    (
        r"currentOf\(x, level\(m, nodes\), g, e\)",
        "currentOf(x, level(m, nodes), p, tally.status)",
    ),
    # a visit to a held voltage
    (r"const Dual &scale", "const Dual *drive"),
    (r"scale\*openOf\(x\)", "totalOf(x, drive)"),
    (
        r"( *)createTable\(q, visit\.dt, gain\*\(real\(visit\.v\) - reversal\),",
        r"\1double drive[N_TERMS];\n\1createDrives(visit.v, p, drive, tally.status);\n"
        r"\1createTable(q, visit.dt, drive,",
    ),
    (
        r"( *)walkHeld\(visit, steps, q, g\*\(visit\.v - e\), ",
        r"\1Dual drive[N_TERMS];\n\1createDrives(visit.v, p, drive, status);\n"
        r"\1walkHeld(visit, steps, q, drive, ",
    ),
)


def with_drives(text: str) -> str:
    """Return a text for a current of one ohmic term, as it is for any other."""
    for ohmic, general in _REPLACEMENTS:
        text = re.sub(ohmic, general, text)
    code = re.sub("//.*", "", text)
    assert not re.search(r"createGains|openOf|\b(g|e|gain|reversal)\b", code)
    return text
