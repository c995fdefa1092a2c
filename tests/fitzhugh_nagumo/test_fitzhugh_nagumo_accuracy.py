"""What a run tells of its own error, and what it warns of, against truths of their own."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from channelfit.fitzhugh_nagumo import (
    Adaptive,
    Cable,
    Chebyshev,
    CrankNicolson,
    Equation,
    Explicit,
    Pulse,
    accuracy,
    memory,
    simulate,
)
from channelfit.fitzhugh_nagumo import equation as eq
from channelfit.reading import memory as free_memory
from channelfit.reading.errors import InputError
from support import json_output
from support.cable_truth import truth
from support.json_output import fhn as run

pytestmark = pytest.mark.usefixtures("undrawn")

TIMES = np.linspace(0, 40, 21)


def start(x):
    return eq.gaussian(x, 20), 0.0


# --- the estimate


@pytest.fixture(scope="module")
def truths():
    """v of every frame, by SciPy on the grid of the runs and in the limit of fine grids."""
    found = {}
    for factor in (1, 2, 4):
        cable = Cable(100 * factor + 1, 0.5 / factor)
        v, w = start(cable.x)[0], np.zeros(cable.n_nodes)
        frames = [v[::factor]]
        for span in np.diff(TIMES):
            v, w = truth(Equation(), cable, v, w, span)
            frames.append(v[::factor])
        found[factor] = np.array(frames)
    return found[1], found[4] + (found[4] - found[2]) / 3


@pytest.mark.parametrize(
    ("make", "control"),
    [
        (Explicit, {}),
        (Adaptive, {}),
        (CrankNicolson, {}),
        (CrankNicolson, {"dt": 2.0}),
        (Chebyshev, {"tolerance": 1e-3}),
    ],
)
def test_the_estimate_is_the_error(truths, make, control):
    cable = Cable(101, 0.5)
    solved = simulate(make(Equation(), cable), *start(cable.x), TIMES, **control)
    here, limit = truths
    found = accuracy.estimate_error(solved, Equation(), cable, start)
    assert found.total == pytest.approx(np.abs(solved.v[:, 0] - limit).max(), rel=0.05)
    assert found.steps == pytest.approx(np.abs(solved.v[:, 0] - here).max(), rel=0.02, abs=2e-7)
    assert found.grid == pytest.approx(np.abs(limit - here).max(), rel=0.1)
    node, frame = np.flatnonzero(solved.x == found.x), np.flatnonzero(solved.times == found.t)
    apart = np.abs(solved.v[frame, 0, node] - limit[frame, node])
    assert apart == pytest.approx(found.total, rel=0.05)
    assert (found.until, found.cables, found.places) == (40.0, (0,), (0.0, 50.0))


def test_a_part_of_a_large_run_is_compared(monkeypatch):
    """What is told of a stretch of a long cable is what the whole cable tells of that stretch."""
    pulse = Pulse(0.5, 290, 302, 0, 3)
    for ends in (("no_flux", "no_flux"), ("periodic", "periodic")):
        cable = Cable(1601, 0.25, *ends, stimulus=(pulse,))
        solved = simulate(CrankNicolson(Equation(), cable), 0, 0, [2, 8], dt=0.5)
        found = []
        for most in (20_000, 600):
            monkeypatch.setattr(accuracy, "_NODES", most)
            found.append(accuracy.estimate_error(solved, Equation(), cable, lambda x: (0 * x, 0.0)))
        assert found[1].total == pytest.approx(found[0].total, rel=1e-6)
        assert found[1].places[1] - found[1].places[0] < 120
        assert found[1].x == found[0].x
    cable = Cable(101)
    many = Equation(a=np.linspace(0, 0.3, 40))
    solved = simulate(Explicit(many, cable), *start(cable.x), TIMES)
    monkeypatch.setattr(accuracy, "_SECONDS", 0.02)
    found = accuracy.estimate_error(solved, many, cable, start)
    assert len(found.cables) == 8
    assert found.until < 40
    monkeypatch.setattr(accuracy, "_SECONDS", 1e-6)
    assert accuracy.estimate_error(solved, many, cable, start) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scheme", "explicit"], ["steps of 0.1 make", "--dt 0.0", "--scheme chebyshev"]),
        (["--dx", 1, "--nodes", 201], ["grid of dx = 1 makes", "--dx 0.25 --nodes 801"]),
    ],
)
def test_what_errs_much_is_warned_of_with_what_would_do(tmp_path, arguments, words):
    result = run(*arguments, "--end", 200, "--quiet", "--out", tmp_path / "a")
    assert result.exit_code == 0
    for word in ["Warning: v may err by", *words]:
        assert word in result.stderr
    assert len(result.stdout.splitlines()) == 1
    (warning,) = json.loads((tmp_path / "a" / "summary.json").read_text())["warnings"]
    assert warning in result.stderr


# --- what is doubtful


@pytest.mark.parametrize(("a", "diffusion"), [(0.2, 1.0), (0.35, 0.5)])
def test_a_pinned_wave_is_told_with_the_spacing_that_moves_it(tmp_path, a, diffusion):
    """That spacing against SciPy's own integration of a front on nodes far apart."""
    arguments = ("--a", a, "--diffusion", diffusion, "--dx", 12, "--nodes", 41, "--end", 20)
    result = run(
        *arguments, "--frames", 3, "--initial", "step:240", "--json", "--out", tmp_path / "a"
    )
    (told,) = [
        w for w in json_output.summary(result.stdout)["warnings"] if "propagation failure" in w
    ]
    assert told in result.stderr
    assert f"dx = 12 is too coarse for a = {a:g}, diffusion = {diffusion:g}" in told
    critical = float(re.search(r"moves below dx = ([\d.]+)", told)[1])

    def rate(v, dx):
        beyond = np.concatenate([[v[1]], v, [v[-2]]])
        return diffusion * np.diff(beyond, 2) / dx**2 + v * (1 - v) * (v - a)

    for dx, moves in ((0.97 * critical, True), (1.03 * critical, False)):
        v = np.where(np.arange(31) <= 15, 1.0, 0.0)
        for t in (1e3, 1e4):
            end = solve_ivp(
                lambda _, v, dx=dx: rate(v, dx), (0, t), v, "LSODA", rtol=1e-9, atol=1e-12
            ).y[:, -1]
            if end[18] > 0.5:
                break
        assert (end[18] > 0.5) == moves
    assert accuracy.pinned(Equation(a=a, diffusion=diffusion), Cable(41, 0.9 * critical)) == []
    assert accuracy.pinned(Equation(a=np.array([0.7, -0.1])), Cable(41, 12)) == []


def test_a_stimulus_that_acts_in_part_is_told(tmp_path: Path):
    stimuli = ("--stimulus", "0.1,x=-3:5,t=1:2", "--stimulus", "0.2,x=50:60,t=-1:2")
    result = run(*stimuli, "--initial", "rest", "--end", 3, "--json", "--out", tmp_path / "a")
    warnings = json_output.summary(result.stdout)["warnings"]
    assert any("x = -3:5 reaches past" in w and "only 0:5 acts" in w for w in warnings)
    assert any("begins at t = -1" in w for w in warnings)


# --- memory


def test_a_containers_limit_counts_without_its_cache(tmp_path: Path):
    """Pages of files give way when memory is asked for."""
    names = free_memory._CGROUPS[0]
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 300\ninactive_file 550\n")
    assert free_memory._left_in(tmp_path, *names) == [650]
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory._left_in(tmp_path, *names) == []
    assert free_memory._left_in(tmp_path, *free_memory._CGROUPS[1]) == []


def test_frames_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 1_000_000)
    with pytest.raises(
        InputError, match=r"memory: 50 frames of a cable of 2,000 nodes need 1\.9 MB"
    ):
        simulate(Explicit(Equation(), Cable(2000)), 0, 0, np.arange(50))
    simulate(Explicit(Equation(), Cable(200)), 0, 0, np.arange(50))
    monkeypatch.setattr(memory, "available", lambda: None)  # a system that does not tell
    simulate(Explicit(Equation(), Cable(2000)), 0, 0, np.arange(50) / 100)
