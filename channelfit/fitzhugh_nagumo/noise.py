"""Space-time white noise for the explicit scheme, from a counter-based generator.

    dv = (..) dt + sigma dB(x, t)

with the cylindrical Wiener process B: on a node of length dx a step of dt adds
sigma sqrt(dt/dx) times a standard normal number, independent of all others. The amplitude does
not depend on the state, so Ito and Stratonovich mean the same. In one dimension the limit dx -> 0
exists; in two and more it does not, and noise is therefore offered on cables only.

The number of (seed, cable, step, node) is a pure function of these four, whatever the number of
threads and the size of a tile: Philox4x32-10 (Salmon et al., SC11, 2011) and the transformation of
Box and Muller (1958), two nodes from one counter.
"""

from __future__ import annotations

import math

import numpy as np

from channelfit.fitzhugh_nagumo.equation import Array
from channelfit.fitzhugh_nagumo.tridiagonal import kernel

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_EVEN, _ODD = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_EVEN, _KEY_ODD = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


@kernel
def add_noise(
    v: Array, first: int, n_nodes: int, amplitude: float, seed: int, cable: int, step: int
) -> None:
    """Adds amplitude times the numbers of nodes first .. first+len(v)-1 (of a ring if need be).

    Arguments:
        v: (n,) a piece of the cable. n_nodes: of the whole cable.
        seed: 0 .. 2^32-1. cable, step: 0 .. 2^32-1 and 0 .. 2^64-1.
    """
    known = -1
    one = other = 0.0
    for i in range(len(v)):
        node = (first + i) % n_nodes
        if node // 2 != known:
            known = node // 2
            x0, x1 = np.uint64(known), np.uint64(cable)
            x2, x3 = np.uint64(step) & _LOW, np.uint64(step) >> _HALF
            k0, k1 = np.uint64(seed), np.uint64(0x46484E)
            for _ in range(10):
                even, odd = x0 * _EVEN, x2 * _ODD
                x0, x1 = (odd >> _HALF) ^ (x1 ^ k0), odd & _LOW
                x2, x3 = (even >> _HALF) ^ (x3 ^ k1), even & _LOW
                k0, k1 = (k0 + _KEY_EVEN) & _LOW, (k1 + _KEY_ODD) & _LOW
            radius = math.sqrt(-2 * math.log((np.float64(x0) + 0.5) / 4294967296.0))
            angle = 2 * math.pi * (np.float64(x1) + 0.5) / 4294967296.0
            one, other = radius * math.cos(angle), radius * math.sin(angle)
        v[i] += amplitude * (one if node % 2 == 0 else other)
