"""FitzHugh-Nagumo on the processor against CVODE, VODE, LSODA and py-pde, at equal error.

    pip install -e ".[bench]" && python benchmarks/fhn.py

Every method solves the same equations on the same grid from the same impulse. Each takes finer and
finer steps or tolerances until its largest error of v at the end is below the target; the best time
of five such runs counts, after one to compile. Truth is SciPy's DOP853 to 1e-11, and for the long
cable, where that would take hours, our Crank-Nicolson with steps so short that halving them changes
nothing beyond a hundredth of the target (the other solvers converge to it as well).

* CVODE (SUNDIALS through scikit-sundae), BDF and Adams, SciPy's VODE (BDF), LSODA and BDF, v and w
  interleaved. All of them call rates that Numba has compiled. VODE and LSODA get the banded
  Jacobian from compiled code; CVODE, whose Python interface needs a dense one, fills its band by
  five calls of the rates; BDF knows the pattern.
* py-pde: its Runge-Kutta in every column, and its Euler solver in the first, on its Numba backend,
  compiled beforehand, with steps that are all equal (on cells instead of nodes, so against the
  truth on cells; on the long cable that is the plain loop's with fine steps).
* banded: Crank-Nicolson with Newton in NumPy around scipy.linalg.solve_banded, one iteration a step
  (from the straight line through the last two states; a second would not change the error).
* plain: Runge-Kutta as one would write it for Numba with `fastmath`, an array for each quantity and
  the ends apart, on one core.
* ours: forward Euler, Runge-Kutta and Crank-Nicolson by steps that are all equal, where Newton
  stops at a thousandth of the target; Chebyshev by steps that it chooses to a tolerance; and
  Crank-Nicolson by such steps, which is what a user gets who names no scheme and no step.

`against` is the fastest of the solvers that others wrote, and the note says which; the plain loop
stands beside them and is compared with in the note. The grid is the same for all, so that the error
is the one in time, and a finer difference in space would change nothing here.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from report import Row, as_script, compared, finish
from scipy.integrate import ode, solve_ivp
from scipy.linalg import solve_banded
from scipy.sparse import diags

from channelfit.fitzhugh_nagumo import (
    Adaptive,
    Cable,
    Chebyshev,
    CrankNicolson,
    Equation,
    Explicit,
    RungeKutta,
    simulate,
)
from channelfit.scoring.machine.threads import usable_cores

A, GAMMA, EPSILON, DX = 0.01, 2.0, 0.01, 0.5
#: Newton's tolerance in parts of the error that is aimed at.
NEWTON, NEWTON_STEPS = 1e-3, 1
Solve = Callable[[float], np.ndarray]


def impulse(x: np.ndarray) -> np.ndarray:
    """Gaussians every 200 units of length."""
    return np.exp(-((x % 200 - 100) ** 2) / 10)


@njit(error_model="numpy", fastmath={"contract"}, cache=True)
def rates(y: np.ndarray, mirror: int, out: np.ndarray) -> np.ndarray:
    """Of v and w interleaved; the node beyond an end mirrors node `mirror`."""
    last = len(y) // 2 - 1
    for i in range(last + 1):
        v, w = y[2 * i], y[2 * i + 1]
        left = y[2 * (i - 1 if i > 0 else mirror)]
        right = y[2 * (i + 1 if i < last else last - mirror)]
        out[2 * i] = (left - 2 * v + right) / DX**2 + v * (1 - v) * (v - A) - w
        out[2 * i + 1] = EPSILON * (v - GAMMA * w)
    return out


@njit(error_model="numpy", fastmath={"contract"}, cache=True)
def jacobian(y: np.ndarray, mirror: int) -> np.ndarray:
    """(5, 2 n): of rate i with respect to j at [2 + i - j, j], as ODEPACK needs a band."""
    band, last = np.zeros((5, len(y))), len(y) // 2 - 1
    for i in range(last + 1):
        v = y[2 * i]
        band[2, 2 * i] = -2 / DX**2 - 3 * v * v + 2 * (1 + A) * v - A
        band[1, 2 * i + 1], band[3, 2 * i], band[2, 2 * i + 1] = -1.0, EPSILON, -EPSILON * GAMMA
        for j in (i - 1 if i > 0 else mirror, i + 1 if i < last else last - mirror):
            band[2 + 2 * i - 2 * j, 2 * j] += 1 / DX**2
    return band


@njit(error_model="numpy", fastmath=True, cache=True)
def slopes(v, w, mirror, k, m):  # type: ignore[no-untyped-def]
    n, r = len(v), 1 / DX**2
    for i in range(1, n - 1):
        k[i] = (v[i - 1] - 2 * v[i] + v[i + 1]) * r + v[i] * (1 - v[i]) * (v[i] - A) - w[i]
        m[i] = EPSILON * (v[i] - GAMMA * w[i])
    for i, left, right in ((0, mirror, 1), (n - 1, n - 2, n - 1 - mirror)):
        k[i] = (v[left] - 2 * v[i] + v[right]) * r + v[i] * (1 - v[i]) * (v[i] - A) - w[i]
        m[i] = EPSILON * (v[i] - GAMMA * w[i])


@njit(error_model="numpy", fastmath=True, cache=True)
def plain(v, n_steps, h, mirror):  # type: ignore[no-untyped-def]
    """Runge-Kutta as a user of Numba makes it: an array for each quantity, and fastmath."""
    w, a, b = np.zeros_like(v), np.empty_like(v), np.empty_like(v)
    k1, k2, k3, k4 = np.empty_like(v), np.empty_like(v), np.empty_like(v), np.empty_like(v)
    m1, m2, m3, m4 = np.empty_like(v), np.empty_like(v), np.empty_like(v), np.empty_like(v)
    for _ in range(n_steps):
        slopes(v, w, mirror, k1, m1)
        for i in range(len(v)):
            a[i], b[i] = v[i] + h / 2 * k1[i], w[i] + h / 2 * m1[i]
        slopes(a, b, mirror, k2, m2)
        for i in range(len(v)):
            a[i], b[i] = v[i] + h / 2 * k2[i], w[i] + h / 2 * m2[i]
        slopes(a, b, mirror, k3, m3)
        for i in range(len(v)):
            a[i], b[i] = v[i] + h * k3[i], w[i] + h * m3[i]
        slopes(a, b, mirror, k4, m4)
        for i in range(len(v)):
            v[i] += h / 6 * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i])
            w[i] += h / 6 * (m1[i] + 2 * m2[i] + 2 * m3[i] + m4[i])
    return v


def by_plain(n: int, end: float, mirror: int = 1) -> Solve:
    x = DX * (np.arange(n) + (0.5 if mirror == 0 else 0.0))
    return lambda dt: plain(impulse(x), math.ceil(end / dt), end / math.ceil(end / dt), mirror)


def start(n: int, mirror: int = 1) -> np.ndarray:
    y = np.zeros(2 * n)
    y[::2] = impulse(DX * (np.arange(n) + (0.5 if mirror == 0 else 0.0)))
    return y


def by_scipy(method: str, n: int, end: float, mirror: int = 1) -> Solve:
    more: dict[str, Any] = {}
    if method == "LSODA":
        more = {"lband": 2, "uband": 2, "jac": lambda t, y: jacobian(y, mirror)}
    if method == "BDF":
        pattern = diags([1.0] * 5, [-2, -1, 0, 1, 2], shape=(2 * n, 2 * n), dtype=float)
        more = {"jac_sparsity": pattern}

    def solve(tolerance: float) -> np.ndarray:
        done = solve_ivp(
            lambda t, y: rates(y, mirror, np.empty_like(y)),
            (0, end),
            start(n, mirror),
            method,
            t_eval=[end],
            rtol=tolerance,
            atol=tolerance,
            **more,
        )
        return np.asarray(done.y[::2, -1])

    return solve


def by_vode(n: int, end: float) -> Solve:
    def solve(tolerance: float) -> np.ndarray:
        solver = ode(lambda t, y: rates(y, 1, np.empty_like(y)), lambda t, y: jacobian(y, 1))
        solver.set_integrator(
            "vode",
            method="bdf",
            with_jacobian=True,
            lband=2,
            uband=2,
            rtol=tolerance,
            atol=tolerance,
            nsteps=10**6,
        )
        solver.set_initial_value(start(n), 0.0)
        return np.asarray(solver.integrate(end)[::2])

    return solve


def by_cvode(method: str, n: int, end: float) -> Solve:
    from sksundae.cvode import CVODE

    def solve(tolerance: float) -> np.ndarray:
        solver = CVODE(
            lambda t, y, out: rates(y, 1, out),
            method=method,
            linsolver="band",
            lband=2,
            uband=2,
            rtol=tolerance,
            atol=tolerance,
            max_num_steps=10**6,
        )
        return np.asarray(solver.solve([0.0, end], start(n)).y[-1, ::2])

    return solve


def by_banded(n: int, end: float) -> Solve:
    def solve(dt: float) -> np.ndarray:
        v, w = impulse(DX * np.arange(n)), np.zeros(n)
        guess, r, h = v, dt / (2 * DX**2), dt / 2
        g = EPSILON * h
        kw, kv = (1 - GAMMA * g) / (1 + GAMMA * g), g / (1 + GAMMA * g)
        bands = np.empty((3, n))
        bands[0], bands[2] = -r, -r
        bands[0, 1], bands[2, -2] = -2 * r, -2 * r
        for _ in range(round(end / dt)):
            wide = np.concatenate([v[1:2], v, v[-2:-1]])
            known = v + r * (wide[2:] - 2 * v + wide[:-2]) + h * v * (1 - v) * (v - A)
            known -= h * ((1 + kw) * w + kv * v)
            u = guess
            for _ in range(NEWTON_STEPS):
                bands[1] = 1 + 2 * r + h * (kv + u * (3 * u - 2 * (1 + A)) + A)
                right = known + h * u * u * (2 * u - 1 - A)
                u = solve_banded((1, 1), bands, right, overwrite_b=True, check_finite=False)
            w = kw * w + kv * (v + u)
            v, guess = u, 2 * u - v
        return v

    return solve


@functools.cache
def py_pde_stepper(n: int, dt: float, method: str) -> tuple[Any, Any]:
    """The state to start from, and py-pde's stepper, compiled for one step."""
    import pde

    grid = pde.CartesianGrid([[0, n * DX]], n)
    v = impulse(DX * (np.arange(n) + 0.5))
    problem = pde.PDE(
        {
            "v": f"laplace(v) + v * (1 - v) * (v - {A}) - w",
            "w": f"{EPSILON} * (v - {GAMMA} * w)",
        },
        bc={"derivative": 0},
    )
    fields = [pde.ScalarField(grid, v), pde.ScalarField(grid, 0.0)]
    first = pde.FieldCollection(fields, labels=["v", "w"])
    return first, getattr(pde, method)(problem, backend="numba").make_stepper(first, dt=dt)


def by_py_pde(n: int, end: float, method: str) -> Solve:
    """Return the solution with the given step."""

    def solve(dt: float) -> np.ndarray:
        first, advance = py_pde_stepper(n, end / math.ceil(end / dt - 1e-9), method)
        state = first.copy()
        advance(state, 0.0, end)
        return np.asarray(state[0].data)

    return solve


def ours(scheme: type, n: int, end: float, key: str = "dt", **more: Any) -> Solve:
    """key: what sets the steps, `dt` or `tolerance`."""
    cable = Cable(n, DX)
    solver = scheme(Equation(A, GAMMA, EPSILON), cable, n_threads=usable_cores(), **more)
    v = impulse(cable.x)
    return lambda level: simulate(solver, v, 0, [end], **{key: level}).v[0, 0]


def reached(
    solve: Solve, truth: np.ndarray, target: float, levels: list[float]
) -> tuple[float, float, float]:
    """Seconds, error and level of the first level that meets the target."""
    for level in levels:
        error = float(np.abs(solve(level) - truth).max())  # compiles as well
        if not error <= target:
            continue
        seconds: list[float] = []
        while len(seconds) < 5 and sum(seconds) < 5:
            began = time.perf_counter()
            solve(level)
            seconds.append(time.perf_counter() - began)
        return min(seconds), error, level
    raise RuntimeError(f"no level of {levels} meets {target:g}: {error:g}")


def compare(n: int, end: float, target: float) -> list[Row]:
    halves = [0.1 / 2**k for k in range(14)]
    tens = [10.0 ** (-k / 2) for k in range(4 if n < 1000 else 6, 24)]
    stable = [0.16 / 2 ** (k / 2) for k in range(20)]  # of Runge-Kutta
    short = n < 1000
    fine = by_scipy("DOP853", n, end)(1e-11) if short else ours(CrankNicolson, n, end)(0.0025)
    cells = by_scipy("DOP853", n, end, 0)(1e-11) if short else by_plain(n, end, 0)(0.01)
    peers = {
        "CVODE BDF, banded": (by_cvode("BDF", n, end), fine, tens),
        "CVODE Adams, banded": (by_cvode("Adams", n, end), fine, tens),
        "SciPy VODE, banded": (by_vode(n, end), fine, tens),
        "SciPy solve_ivp LSODA, banded": (by_scipy("LSODA", n, end), fine, tens),
        "Crank-Nicolson with SciPy solve_banded": (
            by_banded(n, end),
            fine,
            [4 * h for h in halves],
        ),
        "py-pde Runge-Kutta, Numba": (by_py_pde(n, end, "RungeKuttaSolver"), cells, stable),
    }
    if short:
        peers["SciPy solve_ivp BDF, banded"] = (by_scipy("BDF", n, end), fine, tens)
    label = f"N = {n:,}, t = {end:g}, error {target:g}"
    euler = reached(ours(Explicit, n, end), fine, target, halves)
    if short and target >= 1e-3:
        peers["py-pde explicit, Numba"] = (by_py_pde(n, end, "EulerSolver"), cells, [euler[2]])
    rows, found = [], {}
    for name, (solve, truth, levels) in peers.items():
        found[name] = reached(solve, truth, target, levels)
        rows.append(_row(f"{name}: {label}", found[name]))
    beside = reached(by_plain(n, end), fine, target, stable)
    rows.append(_row(f"plain Runge-Kutta for Numba: {label}", beside))
    best = min(found, key=lambda name: found[name][0])
    wide = [10 * h for h in tens]
    newton = ours(CrankNicolson, n, end, tolerance=target * NEWTON)
    for name, mine in (
        ("forward Euler", euler),
        ("Runge-Kutta", reached(ours(RungeKutta, n, end), fine, target, stable)),
        ("Chebyshev", reached(ours(Chebyshev, n, end, "tolerance"), fine, target, wide)),
        ("by default", reached(ours(CrankNicolson, n, end, "tolerance"), fine, target, wide)),
        ("Crank-Nicolson", reached(newton, fine, target, [4 * h for h in halves])),
    ):
        row, fastest = _row(f"ours, {name}: {label}", mine), found[best][0]
        note = f"{row.note}; {beside[0] / mine[0]:.2g} times the plain loop; against {best}"
        rows.append(Row(row.name, row.value, "ms", fastest * 1e3, fastest / mine[0], note))
    return rows


def _row(name: str, found: tuple[float, float, float]) -> Row:
    seconds, error, level = found
    return Row(name, seconds * 1e3, "ms", note=f"{error:.1e} at {level:.2g}")


def same_scheme(n: int, steps: int) -> list[Row]:
    """The same forward Euler with the same step, hence the same error, in both."""
    dt = 0.1
    theirs, mine = by_py_pde(n, steps * dt, "EulerSolver"), ours(Explicit, n, steps * dt)
    rows = []
    seconds = []
    for solve in (theirs, mine):
        solve(dt)
        began = time.perf_counter()
        solve(dt)
        seconds.append(time.perf_counter() - began)
    rates = [n * steps / s / 1e6 for s in seconds]
    rows.append(
        compared(
            f"explicit, N = {n:,}, {steps} steps, against py-pde",
            rates[1],
            "M node-steps/s",
            rates[0],
            f"{usable_cores()} threads",
        )
    )
    return rows


def limits() -> list[Row]:
    """Measure the speed of a core within its cache, and with memory.

    What limits: the explicit step its loads and stores in the first cache (six vectors for eight
    nodes), Chebyshev's stages the same (sixteen, and a step has six or more of them);
    Crank-Nicolson the divisions, each of which waits for the one in the row before, and four passes
    over its rows an iteration and step.
    """
    rows = []
    for scheme in (Explicit, RungeKutta, Chebyshev, CrankNicolson):
        for n, steps in ((401, 20_000), (4096, 4000), (2**20, 32)):
            cable = Cable(n, DX)
            solver = scheme(Equation(), cable)
            v = impulse(cable.x)[None]
            w = np.zeros_like(v)
            solver.advance(v, w, 0.1, 2)
            steps = steps // 8 if scheme is Chebyshev else steps
            began = time.perf_counter()
            solver.advance(v, w, 0.1, steps)
            rate = n * steps / (time.perf_counter() - began) / 1e6
            newton = getattr(solver, "iterations", 0)
            note = f"{newton / steps:.2f} Newton iterations a step" if newton else ""
            if scheme is Chebyshev:
                note = f"{3 * solver.facts()['mean_stages'] - 1:.0f} rates a step"
            rows.append(
                Row(f"one core, {solver.name}, N = {n:,}", rate, "M node-steps/s", note=note)
            )
    return rows


def adaptive(length: float, dx: float, end: float) -> list[Row]:
    """One impulse on a cable: error at the end, nodes and time of grids that follow it."""
    cable, dt = Cable(round(length / dx) + 1, dx), 0.4 * dx**2
    center = length / 2
    dense = Cable(round(length * 32) + 1, 1 / 32)
    start = lambda x: np.exp(-((x - center) ** 2) / 10)  # noqa: E731
    truth = simulate(CrankNicolson(Equation(), dense), start(dense.x), 0, [end], dt=0.02)
    exact = truth.v[0, 0, :: round(32 * dx)]
    rows = []
    for name, make in (
        ("uniform", lambda: Explicit(Equation(), cable)),
        ("indicators", lambda: Adaptive(Equation(), cable, "indicators")),
        ("curvature 1e-4", lambda: Adaptive(Equation(), cable)),
        ("curvature 1e-5", lambda: Adaptive(Equation(), cable, tolerance=1e-5)),
    ):
        simulate(make(), start(cable.x), 0, [1.0], dt=dt)
        began = time.perf_counter()
        run = simulate(make(), start(cable.x), 0, [end], dt=dt)
        seconds = time.perf_counter() - began
        error = float(np.sqrt(np.mean((run.v[0, 0] - exact) ** 2)))
        nodes = run.facts.get("mean_nodes", cable.n_nodes)
        note = f"{nodes:.0f} of {cable.n_nodes} nodes; RMS error {error:.2e}"
        title = f"explicit, {name}: cable of {length:g}, dx = {dx:g}, t = {end:g}"
        rows.append(Row(title, seconds * 1e3, "ms", note=note))
    return rows


def main() -> None:
    rows = limits()
    rows += adaptive(200, 0.25, 90.0) + adaptive(200, 0.125, 90.0) + adaptive(20_000, 0.25, 90.0)
    rows += same_scheme(401, 20_000) + same_scheme(100_000, 400)
    rows += compare(401, 100.0, 1e-3) + compare(401, 100.0, 1e-5) + compare(100_000, 5.0, 1e-5)
    finish("fhn", "FitzHugh-Nagumo on the processor", rows)


if __name__ == "__main__":
    as_script(main)
