"""True solutions of the FitzHugh-Nagumo equations, and orders of convergence."""

from __future__ import annotations

import numpy as np
from scipy.integrate import solve_ivp

from channelfit.fitzhugh_nagumo import Cable, Equation, Pulse

ENDS = [("no_flux", "no_flux"), (0.3, "no_flux"), ("no_flux", 1.0), ("periodic", "periodic")]


def rates(equation, cable, v, w, drive):
    """The semidiscrete equation, written down once more and independently of the kernels."""
    left, right = np.roll(v, 1), np.roll(v, -1)
    if not cable.periodic:
        left[0], right[-1] = v[1], v[-2]
    dv = equation.diffusion * (left - 2 * v + right) / cable.dx**2
    dv += v * (1 - v) * (v - equation.a) - w + drive
    if not isinstance(cable.left, str):
        dv[0] = 0
    if not isinstance(cable.right, str):
        dv[-1] = 0
    return dv, equation.epsilon * (v - equation.gamma * w)


def truth(equation, cable, v, w, t, drive=0.0):
    """v and w at t by an eighth-order method to 1e-12."""
    n = len(v)

    def f(_, y):
        return np.concatenate(rates(equation, cable, y[:n], y[n:], drive))

    y = solve_ivp(f, (0, t), np.concatenate([v, w]), "DOP853", rtol=1e-12, atol=1e-13).y[:, -1]
    return y[:n], y[n:]


def order(steps, errors):
    """The slope of log error against log step, by least squares."""
    return float(np.polyfit(np.log(np.asarray(steps)), np.log(np.asarray(errors)), 1)[0])


def some_state(cable):
    x, length = cable.x - cable.x_start, cable.dx * cable.n_nodes
    v = np.exp(-((x - length / 4) ** 2) / 10) + 0.4 * np.exp(-((x - 0.97 * length) ** 2) / 6)
    w = 0.1 * np.exp(-((x - length / 5) ** 2) / 20)
    if not isinstance(cable.left, str):
        v[0] = cable.left
    if not isinstance(cable.right, str):
        v[-1] = cable.right
    return v, w


def pulsed():
    """A cable on which a pulse begins and ends between frames, and v there at t = 30."""
    cable = Cable(201, 0.5, stimulus=(Pulse(0.5, 40, 50, 5, 8),))
    v, w = np.zeros(201), np.zeros(201)
    profile = next(Cable(201, 0.5, stimulus=(Pulse(0.5, 40, 50),)).spans(0, 1, 1))[1]
    for length, drive in ((5, 0.0), (3, profile), (22, 0.0)):
        v, w = truth(Equation(), cable, v, w, length, drive)
    return cable, v
