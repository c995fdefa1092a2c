"""The low-pass filter of an amplifier as modes that step exactly over a polynomial current.

A Bessel filter is a sum of modes z' = p z + u, one for every pole p, and its output is the sum of
their z times the residues. Over a step in which the current u is a polynomial of the time, u0 + u1
x + u2 x^2 + .. with x from 0 to 1, a mode goes from z to exp(p h) z + sum_k u_k moment_k: tables of
the steps alone, the same for every candidate and, since the filter is linear, for every derivative.
"""

from __future__ import annotations

import math

import numpy as np

from channelfit.problem.clamp import LowPass

#: Coefficients of the current in a step, a polynomial of degree five.
N_POLY = 6
#: Numbers that a mode has for every step: exp(p h) and the moments, each real and imaginary.
PER_MODE = 2 + 2 * N_POLY
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
#: |p h| beyond which a recursion gives the moments; below it would lose digits.
_FAST = 12.0


def modes(low_pass: LowPass) -> tuple[np.ndarray, np.ndarray]:
    """Return poles and residues of a filter, those with a negative imaginary part left out.

    Returns:
        poles (n,), 1/ms, and residues (n,) complex, those of a pair doubled, so that the output is
        the real part of their sum; at rest it is the input.
    """
    poles = bessel_poles(low_pass.poles) * 2 * math.pi * low_pass.cutoff_kHz
    others = poles[:, None] - poles[None, :]
    np.fill_diagonal(others, 1.0)
    residues = np.prod(-poles) / np.prod(others, axis=1)
    kept = poles.imag > -1e-9 * abs(poles)
    paired = np.where(poles.imag > 1e-9 * abs(poles), 2.0, 1.0)
    return poles[kept], (residues * paired)[kept]


def bessel_poles(n: int) -> np.ndarray:
    """Return the poles (n,) of a Bessel filter with -3 dB at the angular frequency 1."""
    factorial = math.factorial
    coefficients = [
        factorial(2 * n - k) / (2.0 ** (n - k) * factorial(k) * factorial(n - k))
        for k in range(n, -1, -1)
    ]
    low, high = 0.0, 10.0 * n
    for _ in range(200):
        middle = 0.5 * (low + high)
        gain = coefficients[-1] / abs(np.polyval(coefficients, 1j * middle))
        low, high = (middle, high) if gain > math.sqrt(0.5) else (low, middle)
    return np.roots(coefficients).astype(complex) / low


def step_tables(poles: np.ndarray, steps_ms: np.ndarray) -> np.ndarray:
    """Return (n_steps, n_poles, PER_MODE) float64: each mode's factors for each step."""
    ph = poles[None, :] * steps_ms[:, None]
    decay = np.exp(ph)
    moments = np.empty((N_POLY, *ph.shape), complex)
    x = 0.5 + 0.5 * _NODES
    for k in range(N_POLY):
        inner = np.exp(ph[..., None] * (1 - x)) * x**k
        moments[k] = (inner * (0.5 * _WEIGHTS)).sum(axis=-1)
    fast = abs(ph) > _FAST
    before = np.where(fast, (decay - 1) / np.where(fast, ph, 1.0), moments[0])
    for k in range(N_POLY):
        if k:
            before = np.where(fast, (k * before - 1) / np.where(fast, ph, 1.0), moments[k])
        moments[k] = before
    moments *= steps_ms[:, None]
    parts = [decay, *moments]
    return np.ascontiguousarray(
        np.stack([part for z in parts for part in (z.real, z.imag)], axis=-1)
    )
