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
from channelfit.scoring.machine.kernel_math import lower_product, upper_product
from channelfit.scoring.machine.machine_code import kernel

_LOW = 0xFFFFFFFF
_EVEN, _ODD = 0xD2511F53, 0xCD9E8D57
_KEY_EVEN, _KEY_ODD = 0x9E3779B9, 0xBB67AE85


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
            x0, x1, x2, x3 = known, cable, step & _LOW, step >> 32
            k0, k1 = seed, 0x46484E
            for _ in range(10):
                x0, x1, x2, x3 = (
                    upper_product(x2, _ODD) ^ x1 ^ k0,
                    lower_product(x2, _ODD),
                    upper_product(x0, _EVEN) ^ x3 ^ k1,
                    lower_product(x0, _EVEN),
                )
                k0, k1 = (k0 + _KEY_EVEN) & _LOW, (k1 + _KEY_ODD) & _LOW
            radius = sqrt(-2 * log((x0 + 0.5) / 4294967296.0))
            angle = 2 * pi * (x1 + 0.5) / 4294967296.0
            one, other = radius * cos(angle), radius * sin(angle)
        half = (node == 0 and kinds[0] == 0) or (node == n_nodes - 1 and kinds[1] == 0)
        here = amplitude * sqrt(2.0) if half else amplitude
        v[i] += here * (one if node % 2 == 0 else other)
