"""FitzHugh-Nagumo on the processor against py-pde and SciPy, at equal error.

    pip install -e ".[bench]" && python benchmarks/fhn.py

Every method solves the same equations on the same grid from the same impulse. Each takes finer and
finer steps or tolerances until its largest error of v at the end is below the target; the best time
of five such runs counts, after one to compile. Truth is SciPy's DOP853 to 1e-11, and for the long
cable, where that would take hours, our Crank-Nicolson with steps so short that halving them changes
nothing beyond a hundredth of the target (SciPy's solvers converge to it as well).

* py-pde: its Euler solver, compiled by Numba beforehand, with the step that our explicit scheme
  needs: it is the same scheme (on cells instead of nodes, so against the truth on cells).
* solve_ivp: LSODA and BDF with a banded Jacobian, v and w interleaved.
* banded: Crank-Nicolson with Newton in NumPy around scipy.linalg.solve_banded, one iteration a step
  (from the straight line through the last two states; a second would not change the error).
* ours: forward Euler and Crank-Nicolson by steps that are all equal, where Newton stops at a
  thousandth of the target; Chebyshev by steps that it chooses to a tolerance.

The grid is the same for all, so that the error is the one in time, and a finer difference in space
would change nothing here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from report import Row, compared, finish
from scipy.integrate import solve_ivp
from scipy.linalg import solve_banded
from scipy.sparse import diags

from channelfit.doctor import cores
from channelfit.fitzhugh_nagumo import (
    Adaptive,
    Cable,
    Chebyshev,
    CrankNicolson,
    Equation,
    Explicit,
    simulate,
)

A, GAMMA, EPSILON, DX = 0.01, 2.0, 0.01, 0.5
#: Newton's tolerance in parts of the error that is aimed at.
NEWTON, NEWTON_STEPS = 1e-3, 1
Solve = Callable[[float], np.ndarray]


def impulse(x: np.ndarray) -> np.ndarray:
    """Gaussians every 200 units of length."""
    return np.exp(-((x % 200 - 100) ** 2) / 10)


def rates(y: np.ndarray, mirror: int) -> np.ndarray:
    """Of v and w interleaved; the node beyond an end mirrors node `mirror`."""
    v, w = y[::2], y[1::2]
    wide = np.concatenate([v[mirror : mirror + 1], v, v[len(v) - 1 - mirror : len(v) - mirror]])
    out = np.empty_like(y)
    out[::2] = (wide[2:] - 2 * v + wide[:-2]) / DX**2 + v * (1 - v) * (v - A) - w
    out[1::2] = EPSILON * (v - GAMMA * w)
    return out


def jacobian_pattern(n: int) -> Any:
    return diags([1.0, 1.0, 1.0, 1.0, 1.0], [-2, -1, 0, 1, 2], shape=(2 * n, 2 * n), dtype=float)


def by_scipy(method: str, n: int, end: float, mirror: int = 1, x: Any = None) -> Solve:
    x = DX * np.arange(n) if x is None else x

    def solve(tolerance: float) -> np.ndarray:
        y = np.zeros(2 * n)
        y[::2] = impulse(x)
        more: dict[str, Any] = {"lband": 2, "uband": 2} if method == "LSODA" else {}
        if method == "BDF":
            more = {"jac_sparsity": jacobian_pattern(n)}
        done = solve_ivp(
            lambda t, y: rates(y, mirror), (0, end), y, method, t_eval=[end],
            rtol=tolerance, atol=tolerance, **more,
        )  # fmt: skip
        return np.asarray(done.y[::2, -1])

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


def by_py_pde(n: int, end: float, dt: float) -> Solve:
    """Its stepper, compiled for one step beforehand."""
    import pde

    grid = pde.CartesianGrid([[0, n * DX]], n)
    start = impulse(DX * (np.arange(n) + 0.5))
    problem = pde.PDE(
        {
            "v": f"laplace(v) + v * (1 - v) * (v - {A}) - w",
            "w": f"{EPSILON} * (v - {GAMMA} * w)",
        },
        bc={"derivative": 0},
    )
    fields = [pde.ScalarField(grid, start), pde.ScalarField(grid, 0.0)]
    first = pde.FieldCollection(fields, labels=["v", "w"])
    advance = pde.EulerSolver(problem, backend="numba").make_stepper(first, dt=dt)

    def solve(_: float) -> np.ndarray:
        state = first.copy()
        advance(state, 0.0, end)
        return np.asarray(state[0].data)

    return solve


def ours(scheme: type, n: int, end: float, **more: Any) -> Solve:
    cable = Cable(n, DX)
    solver = scheme(Equation(A, GAMMA, EPSILON), cable, n_threads=cores(), **more)
    v = impulse(cable.x)
    key = "tolerance" if scheme is Chebyshev else "dt"
    return lambda level: simulate(solver, v, 0, [end], **{key: level}).v[0, 0]


def reached(
    solve: Solve, truth: np.ndarray, target: float, levels: list[float]
) -> tuple[float, float, float]:
    """Seconds, error and level of the first level that meets the target."""
    solve(levels[0])  # compiles
    for level in levels:
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            v = solve(level)
            seconds.append(time.perf_counter() - began)
            error = float(np.abs(v - truth).max())
            if not error <= target or sum(seconds) > 5:
                break
        if error <= target:
            return min(seconds), error, level
    raise RuntimeError(f"no level of {levels} meets {target:g}: {error:g}")


def compare(n: int, end: float, target: float) -> list[Row]:
    halves = [0.1 / 2**k for k in range(14)]
    tens = [10.0 ** (-k / 2) for k in range(4, 24)]
    fine = by_scipy("DOP853", n, end)(1e-11) if n < 1000 else ours(CrankNicolson, n, end)(0.0025)
    others = {
        "SciPy solve_ivp LSODA, banded": (by_scipy("LSODA", n, end), fine, tens),
        "Crank-Nicolson with SciPy solve_banded": (
            by_banded(n, end),
            fine,
            [4 * h for h in halves],
        ),
    }
    if n < 1000:
        others["SciPy solve_ivp BDF, banded"] = (by_scipy("BDF", n, end), fine, tens)
    rows, fastest = [], np.inf
    label = f"N = {n:,}, t = {end:g}, error {target:g}"
    explicit = reached(ours(Explicit, n, end), fine, target, halves)
    if n < 1000 and target >= 1e-3:
        cells = by_scipy("DOP853", n, end, 0, DX * (np.arange(n) + 0.5))(1e-11)
        level = explicit[2]
        others["py-pde explicit"] = (by_py_pde(n, end, level), cells, [level])
    for name, (solve, truth, levels) in others.items():
        seconds, error, level = reached(solve, truth, target, levels)
        fastest = min(fastest, seconds)
        rows.append(
            Row(f"{name}: {label}", seconds * 1e3, "ms", note=f"{error:.1e} at {level:.2g}")
        )
    newton = ours(CrankNicolson, n, end, tolerance=target * NEWTON)
    implicit = reached(newton, fine, target, [4 * h for h in halves])
    stabilized = reached(ours(Chebyshev, n, end), fine, target, [10 * h for h in tens])
    for name, found in (
        ("forward Euler", explicit), ("Chebyshev", stabilized), ("Crank-Nicolson", implicit)
    ):  # fmt: skip
        seconds, error, level = found
        what = "tolerance" if name == "Chebyshev" else "dt"
        note = f"{error:.1e} at {what} {level:.2g}; against the best above"
        row = compared(f"ours, {name}: {label}", seconds * 1e3, "ms", fastest * 1e3, note)
        rows.append(Row(row.name, row.value, row.unit, row.against, fastest / seconds, row.note))
    return rows


def same_scheme(n: int, steps: int) -> list[Row]:
    """The same forward Euler with the same step, hence the same error, in both."""
    dt = 0.1
    theirs, mine = by_py_pde(n, steps * dt, dt), ours(Explicit, n, steps * dt)
    rows = []
    seconds = []
    for solve in (theirs, mine):
        solve(dt)
        began = time.perf_counter()
        solve(dt)
        seconds.append(time.perf_counter() - began)
    rates = [n * steps / s / 1e6 for s in seconds]
    rows.append(
        compared(f"explicit, N = {n:,}, {steps} steps, against py-pde", rates[1],
                 "M node-steps/s", rates[0], f"{cores()} threads")
    )  # fmt: skip
    return rows


def limits() -> list[Row]:
    """What a core does when nothing leaves its cache, and what memory adds.

    What limits: the explicit step its loads and stores in the first cache (six vectors for eight
    nodes), Chebyshev's stages the same (sixteen, and a step has six or more of them);
    Crank-Nicolson the divisions, each of which waits for the one in the row before, and four passes
    over its rows an iteration and step.
    """
    rows = []
    for scheme in (Explicit, Chebyshev, CrankNicolson):
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
    main()
