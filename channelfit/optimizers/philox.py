"""Counter-based random numbers: Philox4x32-10, the same words on any array module.

A draw is a pure function of a key (the seed) and a counter (which generation, candidate and
parameter, and for what), so there is no generator state to save, and neither the number of
threads nor the order of evaluation can change a run.

Source: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy
as 1, 2, 3", SC11 (2011), section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_WORD = np.dtype("<u4")

# On the host a piece with its scratch arrays has to stay inside the second-level cache: 10
# rounds pass over it. A device wants one launch over everything instead.
_HOST_PIECE = 8192


def split_seed(seed: int) -> tuple[int, int]:
    """The two 32-bit words of the key for a seed of up to 64 bits."""
    return seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF


def philox(counter: Sequence[Any], key: tuple[int, int], xp: Any = np) -> Any:
    """Four random words for every counter.

    Arguments:
        counter: four words of 32 bits, each an int or an array (n_counters,) of unsigned
            integers of the array module `xp`; at least one is an array.
        key: two words of 32 bits.
        xp: numpy or cupy.

    Returns: (n_counters, 4) little-endian uint32.
    """
    n_counters = max(word.shape[0] for word in counter if hasattr(word, "shape"))
    out = xp.empty((n_counters, 4), dtype=_WORD)
    piece = _HOST_PIECE if xp is np else max(n_counters, 1)
    scratch = [xp.empty(min(piece, n_counters), dtype=np.uint64) for _ in range(6)]
    for start in range(0, n_counters, piece):
        stop = min(start + piece, n_counters)
        words = [array[: stop - start] for array in scratch]
        for word, value in zip(words[:4], counter, strict=True):
            word[...] = value[start:stop] if hasattr(value, "shape") else np.uint64(value)
        _encrypt(words, key, xp)
        for column in range(4):
            out[start:stop, column] = words[column]
    return out


def _encrypt(words: list[Any], key: tuple[int, int], xp: Any) -> None:
    """Ten rounds in place on `words`: four counter words and two scratch arrays, all uint64."""
    for round_number in range(_ROUNDS):
        k0, k1 = (
            np.uint64((k + round_number * step) & 0xFFFFFFFF)
            for k, step in zip(key, _KEY_STEPS, strict=True)
        )
        x0, x1, x2, x3, high0, high1 = words
        xp.multiply(x0, _MULTIPLIERS[0], out=x0)
        xp.multiply(x2, _MULTIPLIERS[1], out=x2)
        xp.right_shift(x0, _HALF, out=high0)
        xp.right_shift(x2, _HALF, out=high1)
        xp.bitwise_and(x0, _LOW, out=x0)
        xp.bitwise_and(x2, _LOW, out=x2)
        xp.bitwise_xor(x1, k0, out=x1)
        xp.bitwise_xor(x3, k1, out=x3)
        xp.bitwise_xor(high1, x1, out=high1)
        xp.bitwise_xor(high0, x3, out=high0)
        # the arrays change places, the numbers stay where they are
        words[:] = [high1, x2, high0, x0, x1, x3]


def as_bytes(words: Any) -> Any:
    """(n, 4) words of `philox` as (n, 16) bytes, lowest byte of the first word first."""
    return words.view(np.uint8)


def below(words: Any, n: int) -> Any:
    """Uniform integers 0 .. n-1 from 32-bit words, int64.

    Multiply and shift: no division and no rejection. The probabilities of two integers differ
    by less than n/2**32 of themselves (3e-4 for a million).
    """
    return ((words.astype(np.uint64) * np.uint64(n)) >> _HALF).astype(np.int64)


def uniform(high: Any, low: Any) -> Any:
    """Uniform float64 in [0, 1) with 53 random bits from two 32-bit words."""
    bits = (high.astype(np.uint64) >> np.uint64(5)) << np.uint64(26)
    return (bits | (low.astype(np.uint64) >> np.uint64(6))).astype(np.float64) * 2.0**-53
