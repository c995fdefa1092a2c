"""`channelfit fhn` as a user meets it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from PIL import Image

from channelfit.fitzhugh_nagumo import Cable, CrankNicolson, Equation, simulate
from channelfit.fitzhugh_nagumo import equation as eq
from support import json_told
from support.cable_command import run


def test_a_run_writes_what_it_promises(tmp_path: Path):
    out = tmp_path / "run"
    result = run("--end", 20, "--frames", 5, "--dt", 0.1, "--out", out, "--animation")
    assert result.exit_code == 0, result.output
    names = {"results.npz", "frames.png", "space_time.png", "arrival.csv", "summary.json"}
    assert {p.name for p in out.iterdir()} == names | {"animation.gif"}
    with np.load(out / "results.npz") as results:
        assert results["v"].shape == (5, 401)
        cable = Cable()
        ours = simulate(
            CrankNicolson(Equation(), cable), eq.gaussian(cable.x, 100), 0, [5, 10, 15, 20], dt=0.1
        )
        np.testing.assert_allclose(results["v"][-1], ours.v[-1, 0], 0, 1e-13)
        np.testing.assert_array_equal(results["times"], [0, 5, 10, 15, 20])
    for name in ("frames.png", "space_time.png"):
        assert imread(out / name)[..., :3].std() > 0.05
    with Image.open(out / "animation.gif") as picture:
        assert picture.n_frames == 5
    rows = (out / "arrival.csv").read_text().splitlines()
    assert rows[0] == "x,arrival"
    assert len(rows) == 402


def test_json_is_all_there_is_on_standard_output(tmp_path: Path):
    result = run("--end", 100, "--frames", 101, "--json", "--out", tmp_path / "a")
    summary = json_told.summary(result.stdout)
    (cable,) = summary["cables"]
    assert 0.6 < cable["speed"] < 0.65
    assert summary["steps"] > 100
    assert json.loads((tmp_path / "a" / "summary.json").read_text()) == summary


def test_a_sweep_solves_every_combination(tmp_path: Path):
    result = run(
        "--a",
        "0.05:0.25:3",
        "--epsilon",
        "0.005,0.01",
        "--end",
        60,
        "--frames",
        61,
        "--dt",
        0.2,
        "--json",
        "--out",
        tmp_path / "a",
    )
    cables = json_told.summary(result.stdout)["cables"]
    pairs = [(c["a"], c["epsilon"]) for c in cables]
    grid = [(a, epsilon) for a in (0.05, 0.15, 0.25) for epsilon in (0.005, 0.01)]
    np.testing.assert_allclose(pairs, grid)
    assert cables[0]["speed"] > cables[2]["speed"]
    with np.load(tmp_path / "a" / "results.npz") as results:
        assert results["v"].shape == (61, 6, 401)


def test_the_held_end_sends_waves_to_the_left(tmp_path: Path):
    result = run("--initial", "rest", "--right", 1, "--end", 100, "--json", "--out", tmp_path / "a")
    (cable,) = json_told.summary(result.stdout)["cables"]
    assert cable["v_max"] > 0.9
    assert 0.3 < cable["reached"] < 0.5


def test_stimuli_and_schemes(tmp_path: Path):
    arguments = ("--initial", "rest", "--stimulus", "0.5,x=0:5,t=2:5", "--end", 30, "--frames", 31)
    speeds = []
    for scheme in ("explicit", "crank-nicolson", "adaptive", "chebyshev"):
        result = run(*arguments, "--scheme", scheme, "--json", "--out", tmp_path / scheme)
        speeds.append(json_told.summary(result.stdout)["cables"][0]["reached"])
    assert speeds[0] == pytest.approx(speeds[1], abs=0.01)
    assert speeds[0] == pytest.approx(speeds[2], abs=0.01)
    assert speeds[0] == pytest.approx(speeds[3], abs=0.01)
    assert speeds[0] > 0.05


def test_a_run_continues_from_its_results(tmp_path: Path):
    run("--end", 10, "--frames", 2, "--dt", 0.1, "--out", tmp_path / "a")
    state = tmp_path / "a" / "results.npz"
    run("--end", 10, "--frames", 2, "--dt", 0.1, "--initial", state, "--out", tmp_path / "b")
    run("--end", 20, "--frames", 2, "--dt", 0.1, "--out", tmp_path / "c")
    with np.load(tmp_path / "b" / "results.npz") as b, np.load(tmp_path / "c" / "results.npz") as c:
        np.testing.assert_allclose(b["v"][-1], c["v"][-1], 0, 1e-10)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scheme", "explicit", "--dt", 0.2], ["dt", "0.117"]),
        (["--left", "foo"], ["--left", "foo"]),
        (["--left", "periodic"], ["both ends"]),
        (["--initial", "bump"], ["bump"]),
        (["--initial", "gaussian:x"], ["--initial"]),
        (["--stimulus", "1,y=2:3"], ["--stimulus"]),
        (["--stimulus", "1,x=3:2"], ["--stimulus", "stretch"]),
        (["--a", "1:2"], ["--a", "1:2"]),
        (["--a", "0:1:1000", "--epsilon", "0:1:1001"], ["1001000"]),
        (["--a", "nan"], ["a: "]),
        (["--end", -1], ["--end"]),
        (["--dtype", "float32"], ["--dtype", "cuda"]),
        (["--noise", 1], ["--noise"]),
        (["--scheme", "explicit", "--noise", 1, "--backend", "cuda"], ["--backend"]),
        (["--scheme", "chebyshev", "--backend", "cuda"], ["--scheme", "processor"]),
        (["--scheme", "explicit", "--tolerance", 1e-3], ["explicit", "no step control"]),
        (["--dt", 0.1, "--tolerance", 1e-3], ["not both"]),
        (["--out", Path(__file__).parent], ["not empty"]),
    ],
)
def test_mistakes_cost_one_line_and_exit_code_2(arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from channelfit.front.main import main\n"
        "heavy = {'numpy', 'numba', 'scipy', 'matplotlib', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
