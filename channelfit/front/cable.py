"""`fhn`: the FitzHugh-Nagumo equation on a cable, for Python users."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from channelfit.fitzhugh_nagumo import choice, inputs
from channelfit.fitzhugh_nagumo.equation import Cable, End, Equation, Pulse
from channelfit.fitzhugh_nagumo.simulation import Run, simulate
from channelfit.reading.errors import InputError


def fhn(
    initial: str | npt.ArrayLike | Callable[[np.ndarray], npt.ArrayLike] = "gaussian:100",
    times: npt.ArrayLike | None = None,
    *,
    a: float | Sequence[float] = 0.01,
    gamma: float | Sequence[float] = 2.0,
    epsilon: float | Sequence[float] = 0.01,
    diffusion: float | Sequence[float] = 1.0,
    nodes: int = 401,
    dx: float = 0.5,
    left: End = "no_flux",
    right: End = "no_flux",
    stimuli: Sequence[str | Pulse] = (),
    scheme: str = "crank-nicolson",
    dt: float | None = None,
    tolerance: float | None = None,
    error: float | None = None,
    noise: float = 0.0,
    seed: int = 0,
    backend: str = "auto",
    dtype: str = "float64",
) -> Run:
    """Solve v_t = D v_xx + v (1 - v) (v - a) - w + I, w_t = epsilon (v - gamma w) on a cable.

    The arguments are the options of ``channelfit fhn``, with the same defaults.

    Arguments:
        initial: v at t = 0: a state by name such as ``rest`` or ``gaussian:100``, a file, numbers
            (n_nodes,) or (n_cables, n_nodes), or a function of the places of the nodes.
        times: (n_frames,) of the frames; 251 from 0 to 250 by default.
        a, gamma, epsilon, diffusion: a number each, or one for every cable.
        nodes, dx: how many nodes the cable has, and how far apart they are.
        left, right: ``no_flux``, ``periodic``, or the value at which v is held.
        stimuli: a text such as ``0.5,x=0:5,t=10:12,every=100`` each, or a `Pulse`.
        scheme: ``crank-nicolson``, ``chebyshev``, ``runge-kutta``, ``explicit``, ``adaptive`` or
            ``auto``.
        dt, tolerance: the longest step, or the local error that a controlled step may make.
        error: with ``auto``, the largest error from time at any frame; 1e-4 by default.
        noise, seed: of space-time white noise, with the explicit scheme.
        backend, dtype: auto, cpu or cuda; ``float64`` or ``float32``.

    Returns: a `channelfit.fitzhugh_nagumo.Run` with `x`, `times`, `v`, `w` (n_frames, n_cables,
    n_nodes) and `facts`; its `save` writes them.

    Raises:
        InputError: what cannot be solved, with the argument and what would be right.

    Example:
        >>> import channelfit as cf
        >>> run = cf.fhn("rest", [0, 20], right=1.0, nodes=101)
        >>> run.v.shape, bool(run.v[-1, 0, -2] > 0.9)
        ((2, 1, 101), True)
    """
    numbers = (a, gamma, epsilon, diffusion)
    equation = Equation(
        *(x if isinstance(x, int | float) else np.asarray(x, float) for x in numbers)
    )
    pulses = tuple(inputs.pulse(p) if isinstance(p, str) else p for p in stimuli)
    cable = Cable(nodes, dx, left, right, pulses)
    if isinstance(initial, str):
        v, w = inputs.state(initial, equation, cable.x)
    else:
        v, w = initial(cable.x) if callable(initial) else initial, 0.0
    moments = np.linspace(0.0, 250.0, 251) if times is None else times
    names = inputs.AUTO if scheme == "auto" else (scheme,)
    if scheme not in (*inputs.NAMES, "auto"):
        raise InputError(f"{scheme} is none of {', '.join(inputs.NAMES)}, auto", key="scheme")
    made = inputs.schemes(names, backend, dtype, equation, cable, noise, seed)
    if scheme != "auto":
        if error is not None:
            raise InputError("is for scheme auto; the others take dt or tolerance", key="error")
        return simulate(made[0], v, w, moments, dt, tolerance)
    if dt is not None or tolerance is not None:
        raise InputError("auto chooses the step; give an error instead", key="dt, tolerance")
    return choice.solve(made, v, w, moments, inputs.AUTO_ERROR if error is None else error)
