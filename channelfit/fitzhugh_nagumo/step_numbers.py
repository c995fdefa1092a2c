"""The numbers of Crank-Nicolson's rows that depend on the step, for numbers and for arrays alike.

`crank_nicolson.Coefficients` says what they are; kernels with controlled steps compute them, too.
"""

from __future__ import annotations

from typing import Any

#: |f''| = |2(1 + a) - 6v| for -0.5 <= v <= 1.5 and 0 <= a <= 1.
BEND = 7.0


def numbers_of_step(gamma: Any, epsilon: Any, diffusion: Any, dx: float, dt: float) -> Any:
    """Return the numbers r, h, kw and kv of a step of dt."""
    g = epsilon * dt / 2
    r = diffusion * dt / (2 * dx * dx)
    return r, dt / 2, (1 - gamma * g) / (1 + gamma * g), g / (1 + gamma * g)


def numbers_of_rows(a: Any, r: Any, half: Any, kw: Any, kv: Any) -> Any:
    """Return the numbers of rows that were divided by r, so that -1 stands beside the diagonal.

    1 + a; h; the constant of the diagonal; that of v on the known side; the factor of w there; kw;
    kv; the factor of the stimulus.
    """
    r = r + 1e-300
    h, slow = half / r, half * (kv + a)
    above, below = (1 + 2 * r + slow) / r, (1 - 2 * r - slow) / r
    return 1 + a, h, above, below, -h * (1 + kw), kw, kv, 2 * h


def dominance_of(a: Any, half: Any, kv: Any) -> Any:
    """By how much each diagonal entry at least exceeds the others of its row."""
    slope = (1 + a) ** 2 / 3 - a
    return 1 + half * (kv - slope)


def bend_of(half: Any, dominance: Any) -> Any:
    """Return the factor between a squared correction and the error that it leaves."""
    return half * BEND / 2 / dominance
