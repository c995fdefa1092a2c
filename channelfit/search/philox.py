"""Counter-based random numbers: Philox4x32-10, the same words on any array module.

A draw is a pure function of a key (the seed) and a counter (generation, candidate, parameter and
purpose), so there is no generator state to save, and neither the number of
threads nor the order of evaluation can change a run.

Source: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy
as 1, 2, 3", SC11 (2011), section 3.3.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_WORD = np.dtype("<u4")

# On the host a part with its temporaries has to stay inside the second-level cache: 10 rounds
# pass over it. A device wants one launch over everything instead.
_HOST_PART = 8192

#: The same words, and `uniform` of two of them, in kernels.
CUDA_TEXT = """\
typedef unsigned int u32;
typedef unsigned long long u64;

// Philox4x32-10, Salmon et al. 2011.
__device__ __forceinline__ uint4 philox(u32 x0, u32 x1, u32 x2, u32 x3, u64 seed)
{
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
    #pragma unroll
    for (int i = 0; i < 10; i++) {
        const u32 high0 = __umulhi(0xD2511F53u, x0), low0 = 0xD2511F53u * x0;
        const u32 high2 = __umulhi(0xCD9E8D57u, x2), low2 = 0xCD9E8D57u * x2;
        x0 = high2 ^ x1 ^ k0;
        x1 = low2;
        x2 = high0 ^ x3 ^ k1;
        x3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(x0, x1, x2, x3);
}

__device__ __forceinline__ double uniform(u32 high, u32 low)
{
    return (double)(((u64)(high >> 5) << 26) | (low >> 6)) * (1.0 / 9007199254740992.0);
}
"""


def split_seed(seed: int) -> tuple[int, int]:
    """Split a seed of up to 64 bits into the two 32-bit words of a key."""
    return seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF


def philox(counter: Sequence[Any], key: tuple[int, int], xp: Any = np) -> Any:
    """Compute four random words for every counter.

    Arguments:
        counter: four words of 32 bits; the first an array (n_counters,) uint64 of the array module
            `xp`, the others such arrays or ints.
        key: two words of 32 bits.
        xp: numpy or cupy.

    Returns: (n_counters, 4) little-endian uint32.
    """
    n_counters = counter[0].shape[0]
    out = xp.empty((n_counters, 4), dtype=_WORD)
    encrypt = _encrypt if xp is np else _fused(xp)
    step = _HOST_PART if xp is np else max(n_counters, 1)
    keys = [np.uint64(word) for word in key]
    for start in range(0, n_counters, step):
        part = slice(start, start + step)
        words = [np.uint64(word) if isinstance(word, int) else word[part] for word in counter]
        for column, word in enumerate(encrypt(*words, *keys)):
            out[part, column] = word
    return out


def _encrypt(x0: Any, x1: Any, x2: Any, x3: Any, k0: Any, k1: Any) -> tuple[Any, Any, Any, Any]:
    """Apply ten rounds to counter words x with key words k, all 32-bit values in uint64."""
    for _ in range(_ROUNDS):
        even, odd = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]
        x0, x1 = (odd >> _HALF) ^ (x1 ^ k0), odd & _LOW
        x2, x3 = (even >> _HALF) ^ (x3 ^ k1), even & _LOW
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return x0, x1, x2, x3


@functools.cache
def _fused(xp: Any) -> Any:
    """Return `_encrypt` as one GPU kernel: a launch for each of its operations would cost more."""
    return xp.fuse(_encrypt)


def as_bytes(words: Any) -> Any:
    """View words (n, 4) of `philox` as bytes (n, 16), the lowest byte of the first word first."""
    return words.view(np.uint8)


def below(words: Any, n: int) -> Any:
    """Turn 32-bit words into uniform integers 0 .. n-1, int64.

    By multiplication and a shift, without division or rejection. The probabilities of two integers
    differ by less than n/2**32 of themselves (3e-4 for a million).
    """
    return ((words.astype(np.uint64) * np.uint64(n)) >> _HALF).astype(np.int64)


def uniform(high: Any, low: Any) -> Any:
    """Turn pairs of 32-bit words into uniform float64 numbers in [0, 1) of 53 random bits."""
    bits = (high.astype(np.uint64) >> np.uint64(5)) << np.uint64(26)
    return (bits | (low.astype(np.uint64) >> np.uint64(6))).astype(np.float64) * 2.0**-53
