"""The FitzHugh-Nagumo schemes against the exact front, dense solves, SciPy and each other."""

from pathlib import Path

import numpy as np
import pytest

from channelfit.fitzhugh_nagumo import (
    Adaptive,
    Cable,
    Chebyshev,
    CrankNicolson,
    Equation,
    Explicit,
    Pulse,
    Run,
    RungeKutta,
    arrival_times,
    simulate,
    wave_speed,
)
from channelfit.fitzhugh_nagumo import equation as eq
from channelfit.fitzhugh_nagumo.noise import add_noise
from channelfit.fitzhugh_nagumo.tridiagonal import cyclic_reduction, thomas
from channelfit.reading.errors import InputError
from support.cable_truth import ENDS, order, pulsed, rates, some_state, truth
from support.truths import in_turns

SOLVERS = ["lanes", "thomas", "cyclic_reduction"]


# --- tridiagonal systems


@pytest.mark.parametrize("solve", [thomas, cyclic_reduction])
def test_solvers_agree_with_a_dense_solve_at_every_size(solve):
    rng = np.random.default_rng(1)
    for n in [*range(1, 40), 63, 64, 65, 127, 128, 129, 511, 512, 513]:
        lower, upper = rng.uniform(-1, 1, (2, n))
        diagonal = (np.abs(lower) + np.abs(upper) + rng.uniform(0.01, 1, n)) * rng.choice(
            [-1, 1], n
        )
        right = rng.normal(size=n) * 10.0 ** rng.uniform(-3, 3)
        dense = np.diag(diagonal) + np.diag(lower[1:], -1) + np.diag(upper[:-1], 1)
        x = np.linalg.solve(dense, right)
        np.testing.assert_allclose(solve(lower, diagonal, upper, right), x, 0, 1e-12 * abs(x).max())


# --- one step and many, against equations written down independently


@pytest.mark.parametrize(("ends", "n_nodes"), in_turns(8, ENDS, [3, 4, 401, 8193, 20003]))
def test_explicit_is_forward_euler(ends, n_nodes):
    equation = Equation(a=0.13, gamma=1.7, epsilon=0.05, diffusion=0.8)
    cable = Cable(n_nodes, 0.5, *ends, stimulus=(Pulse(0.3, 0.4, 20),))
    v, w = some_state(cable)
    drive = next(cable.spans(0, 0.1, 1))[1]
    ours = Explicit(equation, cable, n_threads=2).advance(v[None], w[None], 0.1, 90, drive)
    for _ in range(90):
        dv, dw = rates(equation, cable, v, w, drive)
        v, w = v + 0.1 * dv, w + 0.1 * dw
    np.testing.assert_allclose(ours[0][0], v, 0, 1e-14)
    np.testing.assert_allclose(ours[1][0], w, 0, 1e-14)


def by_the_book(equation, cable, v, w, dt, n_steps, drive=0.0):
    """The scheme once more, from its tableau and the independent rates of the other tests."""
    for _ in range(n_steps):
        ks, state = [], (v, w)
        for ahead in (0.5, 0.5, 1.0, 0.0):
            ks.append(rates(equation, cable, *state, drive))
            state = tuple(x + ahead * dt * k for x, k in zip((v, w), ks[-1], strict=True))
        sums = [(k1 + 2 * k2 + 2 * k3 + k4) / 6 for k1, k2, k3, k4 in zip(*ks, strict=True)]
        v, w = v + dt * sums[0], w + dt * sums[1]
    return v, w


@pytest.mark.parametrize(("ends", "n_nodes"), in_turns(10, ENDS, [3, 5, 401, 8193, 20003]))
def test_steps_are_those_of_the_tableau(ends, n_nodes):
    """Whole cables and tiles, with and without a stimulus; 37 steps are two passes."""
    equation = Equation(a=0.13, gamma=1.7, epsilon=0.05, diffusion=0.8)
    cable = Cable(n_nodes, 0.5, *ends, stimulus=(Pulse(0.3, 0.4, 20),))
    v, w = some_state(cable)
    profile = next(cable.spans(0, 0.1, 1))[1]
    for drive in (None, profile):
        exact = by_the_book(equation, cable, v, w, 0.15, 37, 0.0 if drive is None else drive)
        for n_threads in (1, 2):
            scheme = RungeKutta(equation, cable, n_threads=n_threads)
            ours = scheme.advance(v[None], w[None], 0.15, 37, drive)
            for a, b in zip(ours, exact, strict=True):
                np.testing.assert_allclose(a[0], b, 0, 2e-14)


@pytest.mark.parametrize(
    ("ends", "solver", "size"),
    in_turns(15, ENDS, SOLVERS, [(3, 0.1), (64, 0.5), (79, 4.0), (401, 0.1), (9001, 1.0)]),
)
def test_crank_nicolson_fulfills_its_equations(ends, solver, size):
    """The trapezoidal rule holds for v and w together, to Newton's tolerance."""
    n_nodes, dt = size
    equation = Equation(a=0.13, gamma=1.7, epsilon=0.05, diffusion=0.8)
    cable = Cable(n_nodes, 0.5, *ends, stimulus=(Pulse(0.3, 0.4, 20),))
    v, w = some_state(cable)
    drive = next(cable.spans(0, dt, 1))[1]
    scheme = CrankNicolson(equation, cable, solver, tolerance=1e-14, n_threads=2)
    v1, w1 = (a[0] for a in scheme.advance(v[None], w[None], dt, 1, drive))
    old, new = rates(equation, cable, v, w, drive), rates(equation, cable, v1, w1, drive)
    np.testing.assert_allclose(v1, v + dt / 2 * (old[0] + new[0]), 0, 2e-13 * (1 + dt))
    np.testing.assert_allclose(w1, w + dt / 2 * (old[1] + new[1]), 0, 1e-14)


@pytest.mark.parametrize(
    ("ends", "n_nodes", "dt"), in_turns(20, ENDS, [64, 79, 8192, 65, 20003], [0.05, 0.8, 4.0])
)
def test_lanes_and_tiles_change_nothing(ends, n_nodes, dt):
    equation = Equation()
    cable = Cable(n_nodes, 0.5, *ends)
    v, w = (a[None] for a in some_state(cable))
    lanes = CrankNicolson(equation, cable, tolerance=1e-15, n_threads=2).advance(v, w, dt, 11)
    thomas = CrankNicolson(equation, cable, "thomas", tolerance=1e-15).advance(v, w, dt, 11)
    for a, b in zip(lanes, thomas, strict=True):
        np.testing.assert_allclose(a, b, 0, 2e-13)


def test_a_spacing_without_decay_is_solved_exactly():
    """dt/dx^2 = 40,000: every node feels every other, and nothing may be cut off."""
    cable = Cable(20003, 0.01)
    v, w = np.exp(-((cable.x - 80) ** 2) / 10)[None], np.zeros((1, 20003))
    lanes = CrankNicolson(Equation(), cable, tolerance=1e-15).advance(v, w, 4.0, 3)
    other = CrankNicolson(Equation(), cable, "thomas", tolerance=1e-15).advance(v, w, 4.0, 3)
    np.testing.assert_allclose(lanes[0], other[0], 0, 1e-11)


# --- what every scheme keeps: its order, the exact front, its limits, runs side by side

SCHEMES = {
    "explicit": Explicit,
    "Runge-Kutta": RungeKutta,
    "Chebyshev": Chebyshev,
    "lanes": CrankNicolson,
    "thomas": lambda e, c: CrankNicolson(e, c, "thomas"),
    "cyclic reduction": lambda e, c: CrankNicolson(e, c, "cyclic_reduction"),
}


@pytest.mark.parametrize(
    ("name", "dx", "steps", "expected"),
    [
        ("explicit", 0.5, [0.1, 0.05, 0.025], 1),
        ("lanes", 0.5, [0.8, 0.4, 0.2, 0.1], 2),
        ("thomas", 0.5, [0.8, 0.4, 0.2, 0.1], 2),
        ("cyclic reduction", 0.5, [0.8, 0.4, 0.2, 0.1], 2),
        ("Chebyshev", 0.5, [0.05, 0.025, 0.0125], 3),  # the same stages in all of them
        ("Runge-Kutta", 2.0, [0.4, 0.2, 0.1, 0.05], 4),
    ],
)
def test_order_in_time(name, dx, steps, expected):
    for ends in ENDS if name == "Runge-Kutta" else ENDS[:1]:
        cable = Cable(101, dx, *ends)
        v, w = some_state(cable)
        exact, errors = np.concatenate(truth(Equation(), cable, v, w, 8.0)), []
        for h in steps:
            run = simulate(SCHEMES[name](Equation(), cable), v, w, [8.0], dt=h)
            errors.append(np.abs(np.concatenate([run.v[0, 0], run.w[0, 0]]) - exact).max())
        assert order(steps, errors) == pytest.approx(expected, abs=0.2)


@pytest.fixture(scope="module")
def pulse():
    return pulsed()


@pytest.mark.parametrize(
    ("name", "expected", "bound"), [("lanes", 2, 2e-4), ("Runge-Kutta", 4, 1e-6)]
)
def test_edges_of_a_stimulus_between_steps_keep_the_order(pulse, name, expected, bound):
    (cable, exact), steps, errors = pulse, [0.16, 0.08, 0.04], []
    for h in steps:
        run = simulate(SCHEMES[name](Equation(), cable), 0, 0, [6.1, 30], dt=h)
        errors.append(np.abs(run.v[-1, 0] - exact).max())
    assert order(steps, errors) == pytest.approx(expected, abs=0.3)
    assert errors[-1] < bound


@pytest.mark.parametrize(
    ("name", "rate", "bound", "ratio"), [("lanes", 2 / 3, 2e-4, 4), ("Chebyshev", 1, 1e-5, 4)]
)
def test_controlled_steps_meet_their_tolerance(pulse, name, rate, bound, ratio):
    """And are long where little happens."""
    (cable, exact), tolerances, errors = pulse, [1e-4, 1e-5, 1e-6], []
    for tolerance in tolerances:
        run = simulate(SCHEMES[name](Equation(), cable), 0, 0, [3, 30], tolerance=tolerance)
        errors.append(np.abs(run.v[-1, 0] - exact).max())
    assert errors[2] < bound
    assert order(tolerances, errors) == pytest.approx(rate, abs=0.25)
    assert run.facts["longest_step"] > ratio * run.facts["shortest_step"]


@pytest.mark.parametrize(("name", "dx"), [("explicit", 0.05), ("lanes", 0.02), ("Chebyshev", 0.02)])
@pytest.mark.parametrize(("a", "diffusion"), [(0.01, 1.0), (0.25, 0.5)])
def test_front_keeps_its_shape_and_speed(name, dx, a, diffusion):
    cable, equation = Cable(round(50 / dx) + 1, dx), Equation(a=a, epsilon=0.0, diffusion=diffusion)
    control = {"explicit": {"dt": 2e-4}, "lanes": {"dt": 0.01}, "Chebyshev": {"tolerance": 1e-6}}
    v, times = eq.front(cable.x, 18, diffusion), np.arange(0, 10.1, 0.5)
    run = simulate(SCHEMES[name](equation, cable), v, 0, times, **control[name])
    speed = eq.front_speed(a, diffusion)
    assert wave_speed(run, 20, 21) == pytest.approx(speed, rel=1e-4)
    exact = eq.front(cable.x, 18 + speed * 10, diffusion)
    inner = (cable.x > 8) & (cable.x < 42)  # beyond, the ends' mirror images are felt
    np.testing.assert_allclose(run.v[-1, 0][inner], exact[inner], 0, 1e-4)
    if name == "Chebyshev":
        assert run.facts["steps"] < 500
        assert run.facts["mean_stages"] > 20


@pytest.mark.parametrize("name", ["explicit", "Runge-Kutta"])
@pytest.mark.parametrize("dimensionless", [0.3, 0.5, 2.0])
def test_the_largest_step_is_the_edge_of_stability(name, dimensionless):
    """A little below, a perturbed plateau comes back; a little above, it alternates and grows."""
    cable, equation = Cable(64, dimensionless), Equation(epsilon=0.0)
    scheme = SCHEMES[name](equation, cable)
    if name == "explicit":
        limit = eq.largest_explicit_step(equation, cable.dx)
    else:
        limit = scheme.largest_step(np.ones((1, 64)))
    v = 1 + 1e-6 * (-1.0) ** np.arange(64)
    for factor, grows in ((0.995, False), (1.005, True)):
        ours = scheme.advance(v[None], np.zeros((1, 64)), factor * limit, 400)
        assert (np.abs(ours[0] - 1).max() > 1e-6) == grows
    with pytest.raises(InputError, match="largest allowed"):
        simulate(scheme, 0, 0, [1], dt=1.01 * limit)


@pytest.mark.parametrize("name", ["lanes", "Chebyshev"])
def test_long_steps_stay_bounded(name):
    """dt/dx^2 = 400 from a step function, where the paper's became unstable at 1."""
    cable = Cable(401, 0.05)
    v = eq.step(cable.x, 10)
    run = simulate(SCHEMES[name](Equation(), cable), v, 0, [20, 40], dt=1.0)
    assert np.abs(run.v).max() < 1.5


@pytest.mark.parametrize("name", ["explicit", "Runge-Kutta", "Chebyshev", "lanes"])
def test_many_cables_are_many_runs(name):
    rng, n = np.random.default_rng(3), 37 if name == "lanes" else 9
    values = {"a": rng.uniform(0, 0.3, n), "epsilon": rng.uniform(1e-3, 0.5, n)}
    control = {"tolerance": 1e-5} if name == "Chebyshev" else {"dt": 0.1}
    cable = Cable(101, 0.5, "no_flux", 0.2, (Pulse(0.2, 5, 9, 0, 3),))
    v = np.tile(some_state(cable)[0], (n, 1))
    make = CrankNicolson if name == "lanes" else SCHEMES[name]
    together = simulate(make(Equation(**values), cable, n_threads=2), v, 0, [5], **control)
    for k in range(0, n, 6 if n > 9 else 1):
        one = Equation(**{key: float(row[k]) for key, row in values.items()})
        alone = simulate(make(one, cable), v[k], 0, [5], **control)
        bound = 1e-11 if name == "lanes" else 0
        np.testing.assert_allclose(together.v[0, k], alone.v[0, 0], 0, bound)
        np.testing.assert_allclose(together.w[0, k], alone.w[0, 0], 0, bound)


# --- steps that are too long


def test_a_blown_up_solution_is_said_to_be():
    cable = Cable(101, 0.5, stimulus=(Pulse(1e6),))
    with pytest.raises(InputError, match="no longer finite"):
        simulate(Explicit(Equation(), cable), 0, 0, [50], dt=0.1)


# --- noise


def test_noise_has_the_variance_of_its_discrete_equation():
    """Around rest with w = 0 every cosine mode is a scalar recursion whose variance is known."""
    cable, sigma, dt, n = Cable(64, 0.5, "periodic", "periodic"), 1e-4, 0.05, 400
    equation = Equation(a=0.5, epsilon=0.0)
    scheme = Explicit(equation, cable, noise=sigma, seed=7)
    v, w = np.zeros((n, 64)), np.zeros((n, 64))
    v, w = scheme.advance(v, w, dt, 600)
    waves = 2 * np.pi * np.arange(64) / 64
    factor = 1 - dt * (0.5 + (2 - 2 * np.cos(waves)) / 0.25)
    expected = np.mean(sigma**2 * dt / 0.5 * (1 - factor**1200) / (1 - factor**2))
    assert np.var(v) == pytest.approx(expected, rel=0.05)
    again = Explicit(equation, cable, noise=sigma, seed=7, n_threads=2)
    np.testing.assert_array_equal(again.advance(np.zeros((n, 64)), w * 0, dt, 600)[0], v)
    other = Explicit(equation, cable, noise=sigma, seed=8).advance(np.zeros((n, 64)), w * 0, dt, 9)
    assert np.abs(np.corrcoef(other[0].ravel(), v.ravel())[0, 1]) < 0.05


@pytest.mark.parametrize("kinds", [(0, 1), (1, 0), (0, 0)])
def test_noise_is_greater_at_the_ends_of_half_a_length(kinds: tuple[int, int]):
    inside, here = np.zeros(9), np.zeros(9)
    add_noise(inside, 0, 9, np.array([2, 2]), 1.0, 5, 2, 3)
    add_noise(here, 0, 9, np.array(kinds), 1.0, 5, 2, 3)
    found = here / inside
    assert found == pytest.approx([2 ** (0.5 - kinds[0] / 2), *[1] * 7, 2 ** (0.5 - kinds[1] / 2)])


def test_noise_does_not_depend_on_tiles():
    ring = np.array([2, 2])
    whole = np.zeros(1000)
    add_noise(whole, 0, 1000, ring, 1.0, 5, 2, 3)
    piece = np.zeros(100)
    add_noise(piece, 951, 1000, ring, 1.0, 5, 2, 3)
    np.testing.assert_array_equal(piece, np.concatenate([whole[951:], whole[:51]]))
    assert abs(whole.mean()) < 0.1
    assert whole.std() == pytest.approx(1, rel=0.07)


# --- states, stimuli, mistakes


@pytest.mark.parametrize(
    "content", ["", "x,v\n1,2\n1,3\n", "x,w\n1,2\n", "x,v\n0,nan\n1,2\n", "x,v\na,b\n"]
)
def test_a_state_that_is_none_is_refused(tmp_path: Path, content):
    (tmp_path / "state.csv").write_text(content)
    with pytest.raises(InputError, match=r"state\.csv"):
        eq.from_file(tmp_path / "state.csv", np.arange(3.0))
    (tmp_path / "state.npz").write_bytes(b"PK no zip at all")
    with pytest.raises(InputError, match=r"state\.npz"):
        eq.from_file(tmp_path / "state.npz", np.arange(3.0))


def test_arrival_times_and_speed_of_a_known_wave():
    x, times = np.linspace(0, 10, 101), np.linspace(0, 20, 81)
    v = np.clip(times[:, None] - 2 * x[None] / 3, 0, 1)
    run = Run(x, times, v[:, None], 0 * v[:, None])
    np.testing.assert_allclose(arrival_times(run), 2 * x / 3 + 0.5, 0, 1e-12)
    assert wave_speed(run, 2, 8) == pytest.approx(1.5)
    assert np.isnan(arrival_times(run, 2.0)).all()
    assert np.isnan(wave_speed(run, 2, 8, 2.0))


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Equation(epsilon=-1), "epsilon"),
        (lambda: Equation(a=np.zeros(3), gamma=np.zeros(4)), "lengths"),
        (lambda: Cable(left="periodic"), "both ends"),
        (lambda: Adaptive(Equation(), Cable(left="periodic", right="periodic")), "rings"),
        (lambda: Adaptive(Equation(), Cable(), tolerance=0), "tolerance"),
        (lambda: Pulse(1, 3, 2), "cable"),
        (lambda: Pulse(1, start=0, end=5, period=2), "period"),
        (lambda: simulate(Explicit(Equation(), Cable()), np.nan, 0, [1]), "finite"),
        (lambda: simulate(Explicit(Equation(), Cable()), 0, 0, [2, 1]), "increase"),
    ],
)
def test_mistakes_are_named(make, word):
    with pytest.raises(InputError, match=word):
        make()
