"""The FitzHugh-Nagumo cable as NEURON solves it: the other side of figures and of tests."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from channelfit.scoring.neuron.mechanisms import compile_mechanism, neuron_hoc

Array: TypeAlias = npt.NDArray[np.float64]

MECHANISM = """\
TITLE FitzHugh-Nagumo membrane, dimensionless: 1 mV, 1 ms and 1 um stand for the units of v, t and x
NEURON {
    SUFFIX fitzhugh_nagumo
    NONSPECIFIC_CURRENT i
    RANGE a, gamma, epsilon, drive
    THREADSAFE
}
UNITS { (mV) = (millivolt) (mA) = (milliamp) }
PARAMETER { a = 0.01  gamma = 2  epsilon = 0.01  drive = 0 }
ASSIGNED { v (mV) i (mA/cm2) }
STATE { w }
INITIAL { w = 0 }
BREAKPOINT {
    SOLVE recovery METHOD cnexp
    i = -0.001*(v*(1 - v)*(v - a) - w + drive)
}
DERIVATIVE recovery { w' = epsilon*(v - gamma*w) }
"""


def fitzhugh_nagumo_cable(
    v: npt.ArrayLike,
    w: npt.ArrayLike,
    times: npt.ArrayLike,
    length: float,
    parameters: tuple[float, float, float, float],
    drive: npt.ArrayLike = 0.0,
    held_left: float | None = None,
    tolerance: float = 1e-9,
) -> tuple[Array, Array]:
    """The FitzHugh-Nagumo equation as NEURON solves it: a section of equal segments, by CVODE.

    A membrane of 1 uF/cm2 on a section 1 um thick diffuses with D = 2.5e6 ohm cm / Ra (in um2/ms).

    Arguments:
        v, w: (n_segments,) at t = 0, at the middles of the segments.
        times: (n_times,) increasing, from 0.
        length: of the cable, whose ends are sealed.
        parameters: a, gamma, epsilon, diffusion.
        drive: (n_segments,) constant stimulus.
        held_left: v of an ideal clamp at the left end, if any.

    Returns: v and w, (n_times, n_segments).

    Raises:
        NeuronUnavailable: no NEURON or no compiler.
    """
    h = neuron_hoc()
    mechanism = compile_mechanism(MECHANISM)
    v, w = np.asarray(v, dtype=float), np.asarray(w, dtype=float)
    moments = np.asarray(times, dtype=float)
    n = len(v)
    section, solver = h.Section(name="fitzhugh_nagumo"), h.CVode()
    section.L, section.nseg, section.diam, section.cm = length, n, 1.0, 1.0
    section.Ra = 2.5e6 / parameters[3]
    section.insert(mechanism)
    segments = list(section)
    for segment, push in zip(segments, np.broadcast_to(drive, n).tolist(), strict=True):
        membrane = getattr(segment, mechanism)
        membrane.a, membrane.gamma, membrane.epsilon = parameters[:3]
        membrane.drive = push
    if held_left is not None:
        clamp = h.SEClamp(section(0))
        clamp.rs, clamp.dur1, clamp.amp1 = 1e-6, 1e9, held_left
    solver.active(True)
    solver.atol(tolerance)
    solver.rtol(0)
    out = np.empty((2, len(moments), n))
    try:
        h.finitialize(0)
        for segment, potential, recovery in zip(segments, v.tolist(), w.tolist(), strict=True):
            segment.v = potential
            getattr(segment, mechanism).w = recovery
        solver.re_init()
        for k, moment in enumerate(moments.tolist()):
            if moment > h.t:
                solver.solve(moment)
            out[0, k] = [segment.v for segment in segments]
            out[1, k] = [getattr(segment, mechanism).w for segment in segments]
    finally:
        solver.active(False)
        h.delete_section(sec=section)
    return out[0], out[1]
