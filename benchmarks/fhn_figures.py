"""The figures 1-4 and 7-12 of the paper behind `channelfit fhn`, done again, and its anomalies.

    python benchmarks/fhn_figures.py

Pictures go to benchmarks/results/fhn_figure_*.png, figures to fhn_figures.json beside them; figures
5, 6, 13 and 14 compare processor and GPU and are drawn by fhn_wall_times.py, which needs one. The
paper reports three surprises of its Crank-Nicolson scheme: a spatial error of order one, a Thomas
solver that becomes unstable before cyclic reduction does and whose Newton iterations converge
linearly where those of cyclic reduction converge quadratically. Its scheme is therefore written
down here as printed: end rows v[0] = v[1] with the entries (1, 1) in Newton's matrix, w by
leapfrog. Beside it: the same with the derivative of that row, which is (1, -1), and ours, whose
ends are mirrored.

The spatial error follows from the end row, the linear convergence from the sign in its derivative.
The difference between the two solvers is NOT reproduced: given the same matrix they agree to
rounding, become unstable at the same step and take the same iterations. So it does not lie in the
algorithms; had the author's two solvers closed their systems with different end rows, one with
(1, 1) and the other with (1, -1), figure 12 would look as printed, but the limits of figure 11
(0.9 and 1.05) would still not be these.

The caption of figure 3 has its two numbers the wrong way around: dx = 0.000045 with dt = 0.0098 is
ten million times beyond the stability limit, dx = 0.0098 with dt = 0.000045 just below it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from fhn_neuron import fitzhugh_nagumo_cable
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from report import RESULTS, Row, as_script, finish
from scipy.interpolate import CubicSpline

from channelfit.fitzhugh_nagumo import (
    Adaptive,
    Cable,
    CrankNicolson,
    Equation,
    Explicit,
    Run,
    arrival_times,
    simulate,
    wave_speed,
)
from channelfit.fitzhugh_nagumo import crank_nicolson as cn
from channelfit.fitzhugh_nagumo import equation as eq
from channelfit.fitzhugh_nagumo.pictures import RECOVERY, VOLTAGE, space_time_figure
from channelfit.fitzhugh_nagumo.row_by_row import MOST_ITERATIONS, iterate
from channelfit.fitzhugh_nagumo.tridiagonal import cyclic_reduction, thomas
from channelfit.results.report.plots import STYLE, save

PAPER = Equation(a=0.01, gamma=2.0, epsilon=0.01)
SOLVERS: dict[str, Callable[..., np.ndarray]] = {
    "Thomas": thomas,
    "cyclic reduction": cyclic_reduction,
}
PRINTED, RIGHT = 1.0, -1.0  # the second entry of the end rows


def drawing(columns: int, rows: int = 1, height: float = 2.4, **more: Any) -> tuple[Figure, Any]:
    figure = Figure(figsize=(3.2 * columns + 0.4, height * rows + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **more)


def keep(figure: Figure, name: str) -> None:
    save(figure, RESULTS / f"fhn_figure_{name}.png")


def order(steps: Any, errors: Any) -> float:
    """The slope of log error against log step, by least squares."""
    return float(np.polyfit(np.log(np.asarray(steps)), np.log(np.asarray(errors)), 1)[0])


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x**2)))


# --- the scheme as printed


class AsPrinted:
    """Crank-Nicolson of the paper; row: PRINTED or RIGHT."""

    def __init__(self, v: np.ndarray, dx: float, dt: float, solver: str, row: float) -> None:
        self.v, self.w, self.before = v.copy(), np.zeros_like(v), np.zeros_like(v)
        self.dx, self.dt, self.solve, self.row = dx, dt, SOLVERS[solver], row
        self.first = True
        self.moved: list[float] = []

    def forces(self, v: np.ndarray) -> np.ndarray:
        second = (v[2:] - 2 * v[1:-1] + v[:-2]) / self.dx**2
        x = v[1:-1]
        return second + x * (1 - x) * (x - 0.01)

    def step(self, most: int = 60, tolerance: float = 1e-13) -> bool:
        """Return whether Newton's method converged."""
        v, w, dt = self.v, self.w, self.dt
        rate = 0.01 * (v - 2 * w)
        new_w = w + dt * rate if self.first else self.before + 2 * dt * rate
        right = v[1:-1] / dt + 0.5 * self.forces(v) - 0.5 * (w + new_w)[1:-1]
        alpha = -0.5 / self.dx**2
        lower, upper = np.full_like(v, alpha), np.full_like(v, alpha)
        upper[0] = lower[-1] = self.row
        u, self.moved = v.copy(), []
        for _ in range(most):
            residual = np.empty_like(v)
            residual[1:-1] = u[1:-1] / dt - 0.5 * self.forces(u) - right
            residual[0], residual[-1] = u[0] - u[1], u[-1] - u[-2]
            slope = -3 * u**2 + 2 * 1.01 * u - 0.01
            diagonal = 1 / dt + 1 / self.dx**2 - 0.5 * slope
            diagonal[0] = diagonal[-1] = 1.0
            change = self.solve(lower, diagonal, upper, residual)
            u = u - change
            self.moved.append(float(np.abs(change).max()))
            if not np.isfinite(self.moved[-1]) or self.moved[-1] > 1e6:
                return False
            if self.moved[-1] < tolerance:
                break
        else:
            return False
        self.v, self.before, self.w, self.first = u, w, new_w, False
        return True

    def run(self, n_steps: int) -> np.ndarray | None:
        for _ in range(n_steps):
            if not self.step() or np.abs(self.v).max() > 10:
                return None
        return self.v


# --- pictures of solutions


def figure_1_and_2() -> list[Row]:
    with mpl.rc_context(STYLE):
        cable = Cable(right=1.0)
        times = np.array([50.0, 150.0, 306.19])
        run = simulate(CrankNicolson(PAPER, cable), 0, 0, times, dt=0.1)
        figure, axes = drawing(3, sharey=True)
        frames(axes[0], run)
        keep(figure, "1")
        every = simulate(CrankNicolson(PAPER, cable), 0, 0, np.linspace(0, 306.19, 307), dt=0.1)
        keep(space_time_figure(every), "1_space_time")
        cable = Cable()
        times = np.array([0.0, 37.85, 60.0, 100.0, 150.0, 242.98])
        run = simulate(CrankNicolson(PAPER, cable), eq.gaussian(cable.x, 100), 0, times, dt=0.1)
        figure, axes = drawing(3, 2, 1.9, sharex=True, sharey=True)
        frames(axes.flat, run)
        keep(figure, "2")
    return [Row("figure 2: largest |v| at t = 242.98", float(np.abs(run.v[-1]).max()), "")]


def frames(axes: Any, run: Any) -> None:
    for k, axis in enumerate(axes):
        axis.plot(run.x, run.v[k, 0], color=VOLTAGE, lw=1.4)
        axis.plot(run.x, run.w[k, 0], color=RECOVERY, lw=1.1)
        axis.set_title(f"t = {run.times[k]:g}", loc="left", fontsize=9)
        axis.set_ylim(-0.45, 1.15)
        axis.set_xlabel("x" if k >= len(axes) - 3 else "")


def figure_7() -> list[Row]:
    """Oscillations: a step beyond the stability of the plateau, not of the diffusion."""
    equation = Equation(epsilon=0.0)
    cable = Cable()
    limit = eq.largest_explicit_step(equation, cable.dx)
    v, times, dt = eq.gaussian(cable.x, 100), [60.11, 90.12, 120.11], 0.121
    rows = [
        Row("figure 7: largest stable step, by diffusion alone 0.125", limit, ""),
    ]
    with mpl.rc_context(STYLE):
        figure, axes = drawing(3, 2, 1.9, sharex=True, sharey=True)
        schemes = {
            f"uniform, dt = {dt}": (Explicit(equation, cable), dt),
            f"adaptive (indicators), dt = {dt}": (Adaptive(equation, cable, "indicators"), dt),
            "uniform, dt = 0.117": (Explicit(equation, cable), 0.117),
        }
        for name, (scheme, step) in schemes.items():
            state, w, before = v[None], np.zeros((1, 401)), 0.0
            for k, t in enumerate(times):
                state, w = scheme.advance(state, w, step, round((t - before) / step))
                before = t
                row = list(schemes).index(name)
                if row < 2:
                    axes[row, k].plot(cable.x, state[0], color=VOLTAGE, lw=1)
                    axes[row, k].set_title(f"t = {t:g}, {name}", loc="left", fontsize=7)
            ripple = state[0, 180:220] - (state[0, 179:219] + state[0, 181:221]) / 2
            rows.append(
                Row(f"figure 7: ripple at t = 120.11, {name}", float(np.abs(ripple).max()), "")
            )
        keep(figure, "7")
    return rows


def figure_8() -> list[Row]:
    times = np.array([15.06, 30.13, 45.05, 60.12, 75.05, 90.11])
    cable, rows = Cable(), []
    v = eq.gaussian(cable.x, 100)
    with mpl.rc_context(STYLE):
        figure, axes = drawing(3, 2, 1.9, sharex=True, sharey=True)
        uniform = simulate(Explicit(PAPER, cable), v, 0, times, dt=0.1)
        scheme = Adaptive(PAPER, cable, "indicators")
        state, w, before = v[None], np.zeros((1, 401)), 0.0
        for k, (t, axis) in enumerate(zip(times.tolist(), axes.flat, strict=True)):
            n = max(1, int(np.ceil((t - before) / 0.1)))
            state, w = scheme.advance(state, w, (t - before) / n, n)
            before, nodes = t, scheme.nodes()
            axis.plot(cable.x, uniform.v[k, 0], color=RECOVERY, lw=1)
            axis.plot(cable.x[nodes], state[0, nodes], ".", color="#009e73", ms=3)
            axis.set_title(f"t = {t:g}, {len(nodes)} nodes of 401", loc="left", fontsize=8)
            error = rms(state[0] - uniform.v[k, 0])
            note = f"RMS apart {error:.1e}"
            rows.append(Row(f"figure 8: nodes at t = {t:g}", len(nodes), "", note=note))
        keep(figure, "8")
    return rows


# --- errors


def lines(axis: Any, steps: Any, errors: dict[str, list[float]], label: str) -> None:
    for k, (name, values) in enumerate(errors.items()):
        style = {"marker": "os^vD*"[k % 6], "ms": 4, "lw": 1.2, "color": f"C{k}"}
        axis.loglog(steps, values, label=f"{name}: {order(steps, values):.2f}", **style)
    axis.set_xticks(list(steps), [f"{step:.3g}" for step in steps])
    axis.set_xticks([], minor=True)
    axis.set_xlabel(label)
    axis.legend(fontsize=7, title="slope", title_fontsize=7)


def figure_3_and_4() -> list[Row]:
    """Explicit: order two in space, one in time."""
    dx, dt, n_fine, t = 0.0098, 0.000045, 5120, 0.91  # of figure 3, its caption turned around
    length = dx * n_fine
    start = lambda x: eq.gaussian(x, 10)  # noqa: E731

    def at(n: int, dt: float) -> np.ndarray:
        cable = Cable(n + 1, length / n)
        return simulate(Explicit(PAPER, cable), start(cable.x), 0, [t], dt=dt).v[0, 0]

    fine = at(n_fine, dt)
    sizes = [80, 160, 320, 640]
    space = {"explicit": [rms(at(n, dt) - fine[:: n_fine // n]) for n in sizes]}
    cable, times = Cable(), np.array([5.0, 20.0, 60.0])
    v = eq.gaussian(cable.x, 100)
    exact = simulate(Explicit(PAPER, cable), v, 0, times, dt=0.00023).v
    steps = [0.1, 0.05, 0.025, 0.0125, 0.00625]
    runs = [simulate(Explicit(PAPER, cable), v, 0, times, dt=h).v for h in steps]
    in_time = {f"t = {t:g}": [rms(r[k] - exact[k]) for r in runs] for k, t in enumerate(times)}
    with mpl.rc_context(STYLE):
        figure, axes = drawing(2, height=2.8)
        lines(axes[0, 0], length / np.array(sizes), space, "dx")
        axes[0, 0].set_ylabel("RMS error")
        lines(axes[0, 1], steps, in_time, "dt")
        keep(figure, "3_and_4")
    rows = [
        Row(
            "figure 3: explicit, order in space",
            order(1 / np.array(sizes), space["explicit"]),
            "",
            note=f"dx from {length / sizes[0]:.2g} against {dx:g}, dt = {dt:g}",
        ),
        Row("figure 3: dt over its limit dx^2/2, caption turned around", 2 * dt / dx**2, ""),
        Row("figure 3: dt over its limit dx^2/2, caption as printed", 2 * dx / dt**2, ""),
    ]
    rows += [
        Row(f"figure 4: explicit, order in time, {k}", order(steps, e), "")
        for k, e in in_time.items()
    ]
    return rows


def figure_9() -> list[Row]:
    """The spatial order of the printed ends, where they are felt and where they are not."""
    t, dt, sizes, dense = 0.51, 0.51 / 128, [32, 64, 128, 256], 2048
    rows, drawn = [], []
    for place, length in (("impulse far from the ends", 60.0), ("impulse fills the cable", 10.0)):

        def ours(n: int, length: float = length) -> np.ndarray:
            cable = Cable(n + 1, length / n)
            v = eq.gaussian(cable.x, length / 2)
            return simulate(CrankNicolson(PAPER, cable), v, 0, [t], dt=dt).v[0, 0]

        def printed(n: int, solver: str, row: float, length: float = length) -> np.ndarray:
            x = length / n * np.arange(n + 1)
            v = eq.gaussian(x, length / 2)
            done = AsPrinted(v, length / n, dt, solver, row).run(round(t / dt))
            return np.full(n + 1, np.nan) if done is None else done

        scale = 4 if length > 30 else 1
        grid = [n * scale for n in sizes]
        errors: dict[str, list[float]] = {}
        fine = ours(dense * scale)
        errors["ours"] = [rms(ours(n) - fine[:: dense * scale // n]) for n in grid]
        for solver in SOLVERS:
            for name, row in (("v[0] = v[1]", RIGHT), ("as printed", PRINTED)):
                errors[f"{name}, {solver}"] = [
                    rms(printed(n, solver, row) - fine[:: dense * scale // n]) for n in grid
                ]
        steps = length / np.array(grid)
        drawn.append((place, steps, errors))
        rows += [
            Row(f"figure 9: order in space, {place}: {k}", order(steps, e), "")
            for k, e in errors.items()
        ]
    with mpl.rc_context(STYLE):
        figure, axes = drawing(2, height=3.2)
        for axis, (place, steps, errors) in zip(axes[0], drawn, strict=True):
            lines(axis, steps, errors, "dx")
            axis.set_title(place, loc="left", fontsize=9)
        axes[0, 0].set_ylabel("RMS error")
        keep(figure, "9")
    return rows


def figure_10() -> list[Row]:
    cable, times = Cable(401, 0.52), np.array([5.0, 20.0, 60.0])
    v = eq.gaussian(cable.x, 104)
    exact = simulate(CrankNicolson(PAPER, cable), v, 0, times, dt=0.0025).v
    steps = [0.4, 0.2, 0.1, 0.05]
    rows, panels = [], []
    for solver in ("lanes", "thomas", "cyclic_reduction"):
        runs = [simulate(CrankNicolson(PAPER, cable, solver), v, 0, times, dt=h).v for h in steps]
        errors = {f"t = {t:g}": [rms(r[k] - exact[k]) for r in runs] for k, t in enumerate(times)}
        panels.append((solver, errors))
        rows += [
            Row(f"figure 10: order in time, {solver}, {k}", order(steps, e), "")
            for k, e in errors.items()
        ]
    with mpl.rc_context(STYLE):
        figure, axes = drawing(3, height=2.8, sharey=True)
        for axis, (solver, errors) in zip(axes[0], panels, strict=True):
            lines(axis, steps, errors, "dt")
            axis.set_title(solver, loc="left", fontsize=9)
        axes[0, 0].set_ylabel("RMS error")
        keep(figure, "10")
    return rows


def figure_11() -> list[Row]:
    """The largest dt/dx^2 with which a run survives; the waves leave through both ends."""
    ratios = np.array([0.3, 0.45, 0.47, 0.49, 0.52, 0.7, 0.9, 1.0, 1.1, 1.5, 2.0, 4.0, 8.0, 16.0])
    cable, end = Cable(201, 0.5), 120.0
    v = eq.gaussian(cable.x, 50)
    rows, survived = [], {}

    def ours(solver: str) -> Callable[[float], bool]:
        def alive(dt: float) -> bool:
            scheme = CrankNicolson(PAPER, cable, solver)  # type: ignore[arg-type]
            out = scheme.advance(v[None], np.zeros((1, 201)), dt, round(end / dt))[0]
            return bool(np.abs(out).max() < 1.5)

        return alive

    def explicit(dt: float) -> bool:
        out = Explicit(PAPER, cable).advance(v[None], np.zeros((1, 201)), dt, round(20 / dt))[0]
        with np.errstate(invalid="ignore"):
            rough = out[0, 1:-1] - (out[0, 2:] + out[0, :-2]) / 2
        return bool(np.abs(rough).max() < 0.1)  # false where it alternates from node to node

    def printed(solver: str, row: float) -> Callable[[float], bool]:
        return lambda dt: AsPrinted(v, 0.5, dt, solver, row).run(round(end / dt)) is not None

    cases: dict[str, Callable[[float], bool]] = {"explicit": explicit}
    for solver in SOLVERS:
        cases[f"ours, {solver}"] = ours(solver.replace(" ", "_").lower())
        cases[f"row (1, -1), {solver}"] = printed(solver, RIGHT)
        cases[f"as printed, {solver}"] = printed(solver, PRINTED)
    for name, alive in cases.items():
        survived[name] = [alive(float(r) * 0.25) for r in ratios]
        good = ratios[: survived[name].index(False)] if False in survived[name] else ratios
        largest = float(good[-1]) if len(good) else 0.0
        rows.append(
            Row(
                f"figure 11: largest stable dt/dx^2 tried, {name}",
                largest,
                "",
                note="the largest tried" if largest == ratios[-1] else "",
            )
        )
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 2.8), layout="constrained")
        FigureCanvasAgg(figure)
        axis = figure.subplots()
        for k, (name, alive_at) in enumerate(survived.items()):
            colors = [VOLTAGE if a else RECOVERY for a in alive_at]
            axis.scatter(ratios, [k] * len(ratios), c=colors, s=14)
            axis.text(19, k, name, va="center", fontsize=7)
        axis.set_xscale("log")
        axis.set_xlim(0.25, 90)
        axis.set_xticks([0.5, 1, 2, 4, 8, 16], ["0.5", "1", "2", "4", "8", "16"])
        axis.set_xticks([], minor=True)
        axis.set_xlabel("dt / dx$^2$ (blue: stable)")
        axis.set_yticks([])
        keep(figure, "11")
    return rows


def thomas_and_cyclic_reduction(
    ratios: Sequence[float] = (0.5, 0.9, 1.0, 1.05, 1.5),
) -> list[Row]:
    """Compare the two solvers, all else the same, over the steps of figure 11."""
    v, rows = eq.gaussian(0.5 * np.arange(201), 50), []
    for name, row in (("as printed", PRINTED), ("row (1, -1)", RIGHT)):
        apart, scales = 0.0, [0]
        for ratio in ratios:
            schemes = [AsPrinted(v, 0.5, 0.25 * ratio, solver, row) for solver in SOLVERS]
            for _ in range(round(120 / (0.25 * ratio))):  # the waves leave through both ends
                for scheme in schemes:
                    if not scheme.step():
                        raise RuntimeError(f"{name}: unstable at dt/dx^2 = {ratio:g}")
                apart = max(apart, float(np.abs(schemes[0].v - schemes[1].v).max()))
                scales.append(abs(len(schemes[0].moved) - len(schemes[1].moved)))
        note = f"iterations of a step: at most {max(scales)} apart"
        title = f"figures 11 and 12: Thomas and cyclic reduction, {name}: largest difference of v"
        rows.append(Row(title, apart, "", note=note))
    return rows


def newton_iterates(scheme: CrankNicolson, v: np.ndarray, q: np.ndarray) -> list[np.ndarray]:
    """The iterates of Newton's method in one step from v (n_nodes,) and w = 0.

    Arguments:
        scheme: says the ends, the solver and the tolerance at which the iteration ends.
        q: the coefficients of the step, each sixteen times.
    """
    n, reduction, iterates = len(v), scheme.solver == "cyclic_reduction", [v]
    system, room, left = np.empty((6, n)), np.empty(8 * n), np.inf
    while left > scheme.tolerance:
        if len(iterates) > MOST_ITERATIONS:
            raise RuntimeError(f"no convergence in {MOST_ITERATIONS} iterations")
        known = v, 0 * v, iterates[-1], np.empty(0), q, scheme.kinds, reduction
        iterates.append(np.empty(n))
        left = iterate(*known, system, room, iterates[-1])
    return iterates


def figure_12() -> list[Row]:
    """Newton's corrections when a wave is at the end of the cable."""
    rows, drawn = [], {}
    dx, dt = 0.5, 0.2
    x = dx * np.arange(201)
    for place, center in (("wave at an end", 2.0), ("ends at rest", 50.0)):
        for solver in SOLVERS:
            for name, row in (("as printed", PRINTED), ("row (1, -1)", RIGHT)):
                scheme = AsPrinted(eq.gaussian(x, center), dx, dt, solver, row)
                scheme.step(tolerance=1e-16, most=40)
                drawn[f"{place}: {name}, {solver}"] = scheme.moved
            own = CrankNicolson(PAPER, Cable(201, dx), solver.replace(" ", "_").lower(), 1e-24)  # type: ignore[arg-type]
            q = np.repeat(cn.StepCoefficients.of(PAPER, 1, dx, dt).rows()[:, 0], cn.LANES)
            v = eq.gaussian(x, center)
            iterates = newton_iterates(own, v, q)
            moved = [float(np.abs(b - a).max()) for a, b in itertools.pairwise(iterates)]
            drawn[f"{place}: ours, {solver}"] = moved
    for name, moved in drawn.items():
        count = next((k + 1 for k, m in enumerate(moved) if m < 1e-14), len(moved))
        usable = [m for m in moved if m > 1e-12]
        factors = [b / a for a, b in itertools.pairwise(usable)]
        note = "factors " + ", ".join(f"{f:.1e}" for f in factors[:6])
        rows.append(Row(f"figure 12: iterations to 1e-14, {name}", count, "", note=note))
    with mpl.rc_context(STYLE):
        figure, axes = drawing(2, height=3.0, sharey=True)
        for axis, place in zip(axes[0], ("wave at an end", "ends at rest"), strict=True):
            for k, (name, moved) in enumerate(drawn.items()):
                if name.startswith(place):
                    shown = np.maximum(moved, 1e-18)
                    axis.semilogy(
                        range(1, len(moved) + 1),
                        shown,
                        marker="os^vD*"[k % 6],
                        ms=4,
                        lw=1,
                        label=name.split(": ")[1],
                    )
            axis.set_title(place, loc="left", fontsize=9)
            axis.set_xlabel("iteration")
            axis.legend(fontsize=6)
        axes[0, 0].set_ylabel("largest correction")
        keep(figure, "12")
    return rows


# --- the exact front, and NEURON


def front() -> list[Row]:
    """Speed and shape of the front that is known, on finer and finer grids."""
    rows, equation = [], Equation(a=0.01, epsilon=0.0)
    speed = eq.front_speed(0.01)
    for dx in (0.2, 0.1, 0.05, 0.025):
        cable = Cable(round(60 / dx) + 1, dx)
        v = eq.front(cable.x, 15)
        run = simulate(CrankNicolson(equation, cable), v, 0, np.arange(0, 20.1, 0.5), dt=dx / 2)
        inner = (cable.x > 8) & (cable.x < 50)
        apart = np.abs(run.v[-1, 0] - eq.front(cable.x, 15 + 20 * speed))[inner].max()
        found = wave_speed(run, 18, 27)
        note = f"speed {found:.7f}, exact {speed:.7f}: {abs(found / speed - 1):.1e} apart"
        rows.append(Row(f"front, dx = {dx:g}: largest error of v at t = 20", apart, "", note=note))
    return rows


def neuron() -> list[Row]:
    """The same cable in NEURON, by CVODE; both grids refined."""
    length, times, values = 60.0, np.arange(0, 70.5, 0.5), (0.05, 2.0, 0.01, 1.3)
    rows = []
    for n in (120, 240, 480, 960):
        x = (np.arange(n) + 0.5) * length / n
        v, _ = fitzhugh_nagumo_cable(eq.gaussian(x, 20), 0 * x, times, length, values)
        cable = Cable(2 * n + 1, length / n / 2)
        scheme = CrankNicolson(Equation(*values), cable)
        run = simulate(scheme, eq.gaussian(cable.x, 20), 0, times, dt=2.4 / n)
        ours = CubicSpline(run.x, run.v[:, 0], axis=1)(x)
        at = int(np.abs(x - 50).argmin())
        arrived = [arrival_times(Run(x, times, a[:, None], a[:, None]))[at] for a in (ours, v)]
        note = f"arrival at x = 50: {arrived[0]:.3f}, {arrived[1]:.3f}: "
        note += f"{100 * abs(arrived[0] / arrived[1] - 1):.4f} %"
        apart = float(np.abs(ours - v).max() / np.ptp(v))
        title = f"NEURON, {n} segments, ours {2 * n + 1} nodes: difference of v over its height"
        rows.append(Row(title, apart, "", note=note))
    return rows


def main() -> None:
    RESULTS.mkdir(exist_ok=True)
    rows = []
    for part in (
        figure_1_and_2,
        figure_3_and_4,
        figure_7,
        figure_8,
        figure_9,
        figure_10,
        figure_11,
        thomas_and_cyclic_reduction,
        figure_12,
        front,
        neuron,
    ):
        rows += part()
    finish("fhn_figures", "FitzHugh-Nagumo: the paper's figures again", rows)


if __name__ == "__main__":
    as_script(main)
