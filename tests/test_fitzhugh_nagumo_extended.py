"""The adaptive grid, and boxes of two and three dimensions."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from test_fitzhugh_nagumo_cuda import device  # noqa: F401

from channelfit.errors import InputError
from channelfit.fitzhugh_nagumo import Cable, Equation, Explicit, Pulse, simulate
from channelfit.fitzhugh_nagumo import equation as eq
from channelfit.fitzhugh_nagumo.adaptive import Adaptive, _place, _step, _weights
from channelfit.fitzhugh_nagumo.boxes import Box, Splitting
from channelfit.fitzhugh_nagumo.cuda import AdaptiveCuda
from channelfit.fitzhugh_nagumo.simulation import order

# --- adaptive


@pytest.mark.parametrize("ends", [("no_flux", "no_flux"), (0.3, "no_flux"), ("no_flux", 1.0)])
def test_a_tolerance_of_nothing_is_the_uniform_grid(ends):
    cable = Cable(301, 0.5, *ends, stimulus=(Pulse(0.2, 5, 20, 1, 3),))
    v = eq.gaussian(cable.x, 60)
    ours = simulate(Adaptive(Equation(), cable, tolerance=1e-300), v, 0, [4, 10], dt=0.1)
    uniform = simulate(Explicit(Equation(), cable), v, 0, [4, 10], dt=0.1)
    np.testing.assert_allclose(ours.v, uniform.v, 0, 1e-13)
    assert ours.facts["mean_nodes"] == 301


def test_second_derivatives_of_parabolas_are_exact_at_any_spacing():
    at = np.array([0, 1, 3, 7, 8, 16, 18])
    x = 0.5 * at
    v, out, rows = 0.1 + 0.02 * x**2, np.zeros(9), np.zeros((4, 7))
    w, left, right, push = rows
    _weights(at, 7, left, right, np.empty(0), push)
    wide = np.pad(v, 1)
    _step(wide, w, out, left, right, push, 7, np.array([0.1, 2, 0.01, 1.5, 0.5, 1e-3]))
    rate = (out[1:-1] - v) / 1e-3 - v * (1 - v) * (v - 0.1)
    np.testing.assert_allclose(rate[1:-1], 1.5 * 0.04, 1e-9)


def test_grids_obey_what_is_wanted():
    rng = np.random.default_rng(4)
    for size in (9, 100, 401):
        wanted = rng.choice([1.0, 1.5, 2.0, 5.0, 8.0], size)
        at = np.empty(size, np.int64)
        n = _place(wanted, size, 8, at)
        gaps = np.diff(at[:n])
        assert at[0] == 0
        assert at[n - 1] == size - 1
        assert set(gaps) <= {1, 2, 4, 8}
        for i, gap in enumerate(gaps):
            assert gap == 1 or wanted[at[i] : at[i + 1] + 1].min() >= gap


def test_curvature_needs_fewer_nodes_for_the_same_wave():
    """The error that the grid adds is far below the uniform grid's own."""
    cable = Cable(801, 0.25)
    v = eq.gaussian(cable.x, 100)
    dense = Cable(3201, 0.0625)
    fine = simulate(Explicit(Equation(), dense), eq.gaussian(dense.x, 100), 0, [60], dt=0.0018)
    fine = fine.v[0, 0][::4]
    uniform = simulate(Explicit(Equation(), cable), v, 0, [60], dt=0.025).v[0, 0]
    run = simulate(Adaptive(Equation(), cable), v, 0, [60], dt=0.025)
    assert run.facts["mean_nodes"] < 801 / 2
    assert np.abs(run.v[0, 0] - uniform).max() < 0.1 * np.abs(uniform - fine).max()
    published = simulate(Adaptive(Equation(), cable, "indicators"), v, 0, [60], dt=0.025)
    assert published.facts["mean_nodes"] < 801 / 2
    assert np.abs(published.v[0, 0] - uniform).max() < 0.2


@pytest.mark.parametrize("monitor", ["curvature", "indicators"])
@pytest.mark.parametrize("ends", [("no_flux", "no_flux"), (0.3, "no_flux"), ("no_flux", 1.0)])
def test_adaptive_on_the_device(device, monitor, ends):  # noqa: F811
    """The same grids, the same values, for cables that differ."""
    equation = Equation(a=np.array([0.01, 0.1, 0.2]), epsilon=np.array([0.01, 0.02, 0.005]))
    cable = Cable(301, 0.5, *ends, stimulus=(Pulse(0.3, 5, 20, 0.5, 3),))
    v = eq.gaussian(cable.x, 60)
    runs = [
        simulate(scheme, v, 0, [4, 15], dt=0.1)
        for scheme in (
            AdaptiveCuda(equation, cable, monitor, threads=64, device=device),
            Adaptive(equation, cable, monitor),
        )
    ]
    assert runs[0].facts["mean_nodes"] == runs[1].facts["mean_nodes"]
    np.testing.assert_allclose(runs[0].v, runs[1].v, 0, 1e-12)
    np.testing.assert_allclose(runs[0].w, runs[1].w, 0, 1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda c, d: Adaptive(Equation(), c),
        lambda c, d: AdaptiveCuda(Equation(), c, device=d),
        lambda c, d: Explicit(Equation(), c, noise=0.01),
    ],
)
def test_a_scheme_remembers_nothing_of_an_earlier_run(make, device):  # noqa: F811
    cable = Cable(201, 0.5)
    scheme = make(cable, device)
    runs = []
    for center in (20, 70, 20):
        runs.append(simulate(scheme, eq.gaussian(cable.x, center), 0, [5], dt=0.1).v)
    np.testing.assert_array_equal(runs[0], runs[2])
    assert np.abs(runs[0] - runs[1]).max() > 0.1


@pytest.mark.parametrize(
    "make",
    [
        lambda: Adaptive(Equation(), Cable(left="periodic", right="periodic")),
        lambda: Adaptive(Equation(), Cable(), "gradient"),
        lambda: Adaptive(Equation(), Cable(), coarsest=6),
        lambda: Adaptive(Equation(), Cable(), tolerance=0),
        lambda: Box((3,)),
        lambda: Box((5, 5), dx=(0.5,)),
        lambda: Box((5, 5), ends="held"),
        lambda: Splitting(Equation(a=np.zeros(2)), Box((5, 5))),
        lambda: Splitting(Equation(), Box((5, 5))).advance(
            np.zeros((5, 5)), np.zeros((5, 4)), 0.1, 1
        ),
        lambda: Splitting(Equation(), Box((5, 5))).advance(
            np.zeros((5, 5)), np.zeros((5, 5)), 9, 1
        ),
    ],
)
def test_mistakes_are_refused(make):
    with pytest.raises(InputError):
        make()


# --- boxes


def truth(equation, box, v, w, t):
    """By an eighth-order method, from second differences written down with np.roll."""

    def f(_, y):
        v, w = y.reshape(2, *box.shape)
        dv = v * (1 - v) * (v - equation.a) - w
        for axis, (d, kind) in enumerate(zip(box.spacings, box.kinds, strict=True)):
            mode = "wrap" if kind == "periodic" else "reflect"
            width = [(1, 1) if k == axis else (0, 0) for k in range(v.ndim)]
            dv += equation.diffusion * np.diff(np.pad(v, width, mode), 2, axis) / d**2
        return np.concatenate([dv.ravel(), (equation.epsilon * (v - equation.gamma * w)).ravel()])

    y0 = np.concatenate([v.ravel(), w.ravel()])
    return (
        solve_ivp(f, (0, t), y0, "DOP853", rtol=1e-11, atol=1e-12).y[:, -1].reshape(2, *box.shape)
    )


BOXES = [
    Box((23, 70), (0.5, 0.4)),
    Box((17, 14), 0.6, ("periodic", "no_flux")),
    Box((9, 12, 10), (0.5, 0.6, 0.7), ("no_flux", "periodic", "periodic")),
]


def state(box):
    r = sum((x - 0.3 * x.max()) ** 2 for x in box.axes())
    return np.exp(-r / 4), 0.05 * np.exp(-r / 9)


@pytest.mark.parametrize("box", BOXES)
def test_boxes_are_of_order_two_in_time(box):
    equation = Equation(0.1, 1.5, 0.05, 0.9)
    v, w = state(box)
    exact = truth(equation, box, v, w, 2.0)
    steps = [0.2, 0.1, 0.05, 0.025]
    errors = []
    for dt in steps:
        ours = Splitting(equation, box, n_threads=2).advance(v, w, dt, round(2 / dt))
        errors.append(max(np.abs(a - b).max() for a, b in zip(ours, exact, strict=True)))
    assert abs(order(steps, errors) - 2) < 0.2
    assert errors[-1] < 1e-4


@pytest.mark.parametrize("box", BOXES)
def test_boxes_on_the_device(box, device):  # noqa: F811
    v, w = state(box)
    ours = Splitting(Equation(), box, device=device).advance(v, w, 0.1, 5)
    ours = tuple(device.host(a) for a in ours)
    processor = Splitting(Equation(), box).advance(v, w, 0.1, 5)
    for a, b in zip(ours, processor, strict=True):
        np.testing.assert_allclose(a, b, 0, 1e-14)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_plane_front_moves_as_in_one_dimension(axis):
    shape, dx = [3, 3, 3], [0.5, 0.5, 0.5]
    shape[axis], dx[axis] = 801, 0.05
    box = Box(tuple(shape), tuple(dx))
    x = box.axes()[axis]
    v = np.broadcast_to(eq.front(x, 15), box.shape)
    ours, _ = Splitting(Equation(epsilon=0.0), box).advance(v, 0 * v, 0.02, 500)
    exact = np.broadcast_to(eq.front(x, 15 + eq.front_speed(0.01) * 10), box.shape)
    inside = np.broadcast_to((x > 5) & (x < 35), box.shape)
    np.testing.assert_allclose(ours[inside], exact[inside], 0, 2e-4)
