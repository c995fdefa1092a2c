"""Recordings of held voltages, projected on the traces that a channel can have there.

The current of any scheme at a held voltage is a sum of exponentials exp(-lambda t), and so are its
derivatives but for factors of t. Over N equally spaced samples all such traces lie, within 1e-11 of
their size, in a space of some 30 to 90 dimensions (the logarithm of N counts, not N). With Q an
orthonormal basis of it, S a few samples that tell its members apart, and ``M = pinv(Q[S])``,

    sum (y - d)^2  =  |M y[S] - Q^T d|^2 + |d - Q Q^T d|^2

for every trace y of the space and any recording d. The last term does not depend on y. M and S
depend on N only. The gaps between the samples of S are powers of two, so that one propagator and
its squares lead from each to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from channelfit.scoring.layout import orthogonal
from channelfit.scoring.layout.orthogonal import orthonormal, solved, spanned
from channelfit.scoring.machine import arrays
from channelfit.scoring.machine.arrays import product
from channelfit.scoring.machine.cache import program, remembered_arrays

#: Runs up to this many samples are kept whole: their spaces are as large as they are.
WHOLE = 60
#: Samples to an octave: in spaces of real exponentials, and of oscillating ones.
_PER_OCTAVE = {False: 8, True: 12}
#: The extent of the rates in the complex plane, as imaginary over real part. Some is also of use
#: where all rates are real: derivatives, t exp(-lambda t), are better met.
_CONE = {False: (0.0, 0.3), True: (0.0, 0.35, 0.7, 1.0)}
_RATES_AN_OCTAVE = 6
_LEAST = 1e-12
#: Polynomials to a block of samples (2^j <= k < 2^(j + 1)): exponentials are met to 1e-14.
_DEGREES = 24


@dataclass(frozen=True, eq=False)
class Compression:
    """The relation of n samples at a held voltage to a few of them.

    points: (n_points,) int64, ascending, from 0; gaps are powers of two.
    matrix: (rank, n_points), M; the identity where all samples are kept.
    """

    n: int
    points: np.ndarray
    matrix: np.ndarray
    _blocks: tuple[tuple[int, int, np.ndarray], ...]  # begin, end, rows of Q over that block

    @property
    def is_whole(self) -> bool:
        """True where every sample is kept."""
        return len(self.points) == self.n

    def project(self, data: np.ndarray) -> tuple[np.ndarray, float]:
        """Return a recording (n,) projected on the space, (rank,), and the squares left outside."""
        z, rest = self.project_all(data)
        return z, float(rest)

    @property
    def basis(self) -> np.ndarray:
        """(n, rank), Q; of a run that is not kept whole."""
        return np.concatenate([rows for _, _, rows in self._blocks])

    def project_all(self, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the same of recordings (..., n): (..., rank), and squares (...)."""
        if self.is_whole:
            return np.array(data, dtype=float), np.zeros(data.shape[:-1])
        z, rest = np.zeros((*data.shape[:-1], len(self.matrix))), np.zeros(data.shape[:-1])
        for begin, end, basis in self._blocks:
            z += product(data[..., begin:end], basis)
        for begin, end, basis in self._blocks:
            rest += np.sum((data[..., begin:end] - product(z, basis.T)) ** 2, axis=-1)
        return z, rest


@lru_cache(maxsize=256)
def compression(n: int, oscillating: bool = False) -> Compression:
    """Return the compression of n samples at a held voltage.

    Arguments:
        oscillating: for schemes with complex modes (not reversible ones).
    """
    if n <= WHOLE:
        return Compression(n, np.arange(n), np.eye(n), ())
    points = _graded(n, _PER_OCTAVE[oscillating])
    blocks = [(b, min(2 * b, n)) if b else (0, min(2, n)) for b in _octaves(n)]
    polynomials = [_orthonormal(end - begin) for begin, end in blocks]
    edges = np.cumsum([0, *(basis.shape[1] for basis in polynomials)])

    def rows_of(u: np.ndarray) -> list[np.ndarray]:
        return [
            product(basis, u[a:b])
            for basis, (a, b) in zip(polynomials, pairwise(edges), strict=True)
        ]

    def made() -> tuple[np.ndarray, np.ndarray]:
        u = _space(n, oscillating, blocks, polynomials)[:, : len(points)]
        some = [
            part[points[(points >= begin) & (points < end)] - begin]
            for part, (begin, end) in zip(rows_of(u), blocks, strict=True)
        ]
        q = np.concatenate(some)
        return u, solved(q, np.eye(len(q)))

    u, matrix = remembered_arrays(["compression", str(n), str(oscillating), maker()], made)
    rows = tuple((begin, end, part) for (begin, end), part in zip(blocks, rows_of(u), strict=True))
    return Compression(n, points, matrix, rows)


def maker() -> str:
    """Return a hash of the program that makes compressions."""
    return program(__file__, str(orthogonal.__file__), str(arrays.__file__))


def _space(
    n: int,
    oscillating: bool,
    blocks: Sequence[tuple[int, int]],
    polynomials: Sequence[np.ndarray],
) -> np.ndarray:
    """Return an orthonormal basis of all exponentials, as coefficients of the polynomials.

    A few samples of a block determine the coefficients there.
    """
    rates = np.append(0.0, np.geomspace(1e-3 / n, 50.0, int(_RATES_AN_OCTAVE * np.log2(5e4 * n))))
    coefficients = []
    for (begin, end), basis in zip(blocks, polynomials, strict=True):
        some = _spread(end - begin)
        values = _exponentials(begin + some, rates, _CONE[oscillating])
        coefficients.append(solved(basis[some], values))
    return spanned(np.concatenate(coefficients), _LEAST)


def _octaves(n: int) -> list[int]:
    """Return the beginnings of the blocks of n samples: 0, 2, 4, 8 .. below n."""
    return [0, *(2**j for j in range(1, 64) if 2**j < n)]


def _graded(n: int, per_octave: int) -> np.ndarray:
    """Return indices from 0 to n - 1, gaps growing with the index."""
    points = [0]
    while points[-1] < n - 1:
        gap = 1
        while gap * 2 * per_octave <= points[-1] + 1:
            gap *= 2
        while points[-1] + gap > n - 1:
            gap //= 2
        points.append(points[-1] + gap)
    return np.array(points)


@lru_cache(maxsize=64)
def _orthonormal(n: int) -> np.ndarray:
    """Return (n, n_degrees): polynomials orthonormal over n equally spaced points."""
    degrees = min(n, _DEGREES)
    if n <= _DEGREES:
        return np.eye(n)
    x = (2 * np.arange(n) - (n - 1)) / n
    basis = np.polynomial.chebyshev.chebvander(x, degrees - 1)
    return orthonormal(basis)[0]


def _spread(n: int) -> np.ndarray:
    """Return indices of a block that hold its polynomials apart, denser toward both ends."""
    if n <= 4 * _DEGREES:
        return np.arange(n)
    angles = np.linspace(0, np.pi, 3 * _DEGREES)
    return np.unique(np.round((n - 1) * (1 - np.cos(angles)) / 2).astype(np.int64))


def _exponentials(t: np.ndarray, rates: np.ndarray, cone: tuple[float, ...]) -> np.ndarray:
    """Return (n_times, n_functions): exp(-rate t), damped oscillations by both parts."""
    out = []
    for slope in cone:
        z = np.exp(-np.outer(t, rates * (1 + 1j * slope)))
        out += [z.real] if slope == 0 else [z.real, z.imag]
    return np.concatenate(out, axis=1)
