"""Space-time white noise for the explicit scheme, from a counter-based generator.

    dv = (..) dt + sigma dB(x, t)

with the cylindrical Wiener process B: on a node of length dx a step of dt adds
sigma sqrt(dt/dx) times a standard normal number, independent of all others. A node at an end
without flux stands for half that length (`Cable.cells`), so that its noise has twice the variance.
The amplitude does not depend on the state, so Ito and Stratonovich mean the same. In one dimension
the limit dx -> 0 exists; in two and more it does not, and noise is therefore offered on cables
only.

The number of (seed, cable, step, node) is a pure function of these four, whatever the number of
threads and the size of a tile: Philox4x32-10 (Salmon et al., SC11, 2011) and the transformation of
Box and Muller (1958), two nodes from one counter.
"""

from __future__ import annotations

from math import cos, log, pi, sin, sqrt

from channelfit.fitzhugh_nagumo.equation import Array
from channelfit.scoring.machine.kernel_math import philox
from channelfit.scoring.machine.machine_code import kernel

_WORD = 0xFFFFFFFF
#: The second word of the key; the first is the seed.
_KEY = 0x46484E


@kernel
def add_noise(
    v: Array,
    first: int,
    n_nodes: int,
    kinds: Array,
    amplitude: float,
    seed: int,
    cable: int,
    step: int,
) -> None:
    """Add amplitude times the random numbers of the nodes first .. first+len(v)-1.

    Arguments:
        v: (n,) a piece of the cable, which may be a ring. n_nodes: of the whole cable.
        kinds: (2,) the ends of the cable: 0 for no flux, 1 for held, 2 for periodic.
        amplitude: of a node of whole length.
        seed: from 0 to 2^32-1. cable: from 0 to 2^32-1. step: from 0 to 2^63-1.
    """
    known = -1
    one = other = 0.0
    for i in range(len(v)):
        node = (first + i) % n_nodes
        if node // 2 != known:
            known = node // 2
            a, b, _, _ = philox(known, cable, step & _WORD, step >> 32, seed, _KEY)
            radius = sqrt(-2 * log((a + 0.5) / 4294967296.0))
            angle = 2 * pi * (b + 0.5) / 4294967296.0
            one, other = radius * cos(angle), radius * sin(angle)
        half = (node == 0 and kinds[0] == 0) or (node == n_nodes - 1 and kinds[1] == 0)
        here = amplitude * sqrt(2.0) if half else amplitude
        v[i] += here * (one if node % 2 == 0 else other)
