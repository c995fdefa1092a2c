"""`channelfit fhn` as a user meets it: its results, repeated from its summary, and its mistakes."""

import json
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from matplotlib.image import imread
from PIL import Image

from channelfit.fitzhugh_nagumo import Cable, CrankNicolson, Equation, simulate
from channelfit.fitzhugh_nagumo import equation as eq
from channelfit.scoring.machine import gpu
from support import json_output
from support.cuda_host import HostCupy
from support.json_output import fhn as run

SHORT = ("--nodes", 61, "--end", 4, "--frames", 5, "--initial", "gaussian:15")


def results(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "results.npz") as archive:
        return dict(archive)


def cables(out: Path, *arguments: object) -> list[dict]:
    """What the summary of a run tells of its cables."""
    result = run(*arguments, "--json", "--out", out)
    assert result.exit_code == 0, result.output
    summary = json_output.summary(result.stdout)
    assert json.loads((out / "summary.json").read_text()) == summary
    return summary["cables"]


def test_a_run_writes_what_it_promises(tmp_path: Path):
    out = tmp_path / "run"
    result = run("--end", 20, "--frames", 5, "--dt", 0.1, "--out", out, "--animation")
    assert result.exit_code == 0, result.output
    names = {"results.npz", "frames.png", "space_time.png", "arrival.csv", "summary.json"}
    assert {p.name for p in out.iterdir()} == names | {"animation.gif"}
    found, cable = results(out), Cable()
    ours = simulate(
        CrankNicolson(Equation(), cable), eq.gaussian(cable.x, 100), 0, [5, 10, 15, 20], dt=0.1
    )
    assert found["v"].shape == (5, 401)
    np.testing.assert_allclose(found["v"][-1], ours.v[-1, 0], 0, 1e-13)
    np.testing.assert_array_equal(found["times"], [0, 5, 10, 15, 20])
    for name in ("frames.png", "space_time.png"):
        assert imread(out / name)[..., :3].std() > 0.05
    with Image.open(out / "animation.gif") as picture:
        assert picture.n_frames == 5
    rows = (out / "arrival.csv").read_text().splitlines()
    assert rows[0] == "x,arrival"
    assert len(rows) == 402


@pytest.mark.usefixtures("undrawn")
def test_a_sweep_solves_every_combination(tmp_path: Path):
    sweep = ("--a", "0.05:0.25:3", "--epsilon", "0.005,0.01", "--end", 60, "--frames", 61)
    found = cables(tmp_path / "a", *sweep, "--dt", 0.2)
    grid = [(a, epsilon) for a in (0.05, 0.15, 0.25) for epsilon in (0.005, 0.01)]
    np.testing.assert_allclose([(c["a"], c["epsilon"]) for c in found], grid)
    assert found[0]["speed"] > found[2]["speed"]
    assert results(tmp_path / "a")["v"].shape == (61, 6, 401)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("suffix", ["npz", "h5"])
def test_a_run_continues_from_its_results(tmp_path: Path, suffix: str):
    half, state = ("--end", 10, "--frames", 2, "--dt", 0.1), tmp_path / "a" / f"results.{suffix}"
    run(*half, "--out", tmp_path / "a", "--format", suffix)
    run(*half, "--initial", state, "--out", tmp_path / "b")
    run("--end", 20, "--frames", 2, "--dt", 0.1, "--out", tmp_path / "c")
    b, c = (results(tmp_path / name)["v"][-1] for name in "bc")
    np.testing.assert_allclose(b, c, 0, 1e-10)


def test_states_that_cannot_be_read_are_refused(tmp_path: Path):
    """A sweep has several states; an HDF5 file may hold what is not a number, or be none."""
    sweep, text, none = (tmp_path / name for name in ("sweep.h5", "text.h5", "none.h5"))
    none.write_bytes(b"x,v\n0,1\n1,0\n")
    with h5py.File(sweep, "w") as file:
        file["x"], file["v"] = np.arange(3.0), np.zeros((2, 2, 3))
    with h5py.File(text, "w") as file:
        file["x"], file["v"] = np.arange(3.0), "abc"
    for state, words in ((sweep, "two dimensions"), (text, "no real numbers"), (none, "HDF5")):
        result = run(*SHORT[:6], "--initial", state, "--out", tmp_path / "out")
        assert result.exit_code == 2, result.output
        assert words in result.stderr
        assert state.name in result.stderr
        assert len(result.stderr.splitlines()) == 1


# --- repeated from its summary


def assert_repeats(folder: Path, again: Path) -> dict:
    """`again`: where the run of this folder is repeated."""
    result = run(folder / "summary.json", "--out", again)
    assert result.exit_code == 0, result.output
    one, other = results(folder), results(again)
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
    summaries = [json.loads((f / "summary.json").read_text()) for f in (folder, again)]
    for summary in summaries:
        del summary["seconds"]
    assert summaries[0] == summaries[1]
    return summaries[0]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "arguments",
    [
        ("--scheme", "explicit", "--noise", 0.1, "--seed", 77),
        ("--dt", 0.3, "--stimulus", "0.5,x=0:5.3,t=1:2,every=1.7", "--stimulus", "0.1,x=9:12"),
        ("--scheme", "adaptive", "--right", 0.7, "--dx", 0.37, "--threshold", 0.4),
        ("--scheme", "chebyshev", "--left", "periodic", "--right", "periodic", "--gamma", 1.7),
        ("--a", "0.01:0.2:3", "--epsilon", "0.005,0.01", "--tolerance", 1e-5),
        ("--backend", "cuda", "--dtype", "float32", "--scheme", "explicit"),
    ],
)
def test_a_run_repeats_bit_for_bit_from_its_summary(monkeypatch, tmp_path: Path, arguments):
    monkeypatch.setitem(sys.modules, "cupy", HostCupy())
    monkeypatch.setattr(gpu, "_working", None)
    first = run(*SHORT, *arguments, "--out", tmp_path / "a")
    assert first.exit_code == 0, first.output
    summary = assert_repeats(tmp_path / "a", tmp_path / "b")
    for name, value in zip(arguments[::2], arguments[1::2], strict=True):
        kept = summary["settings"][name.lstrip("-")]
        assert value in kept if isinstance(kept, list) else kept == type(kept)(value)


@pytest.mark.usefixtures("undrawn")
def test_a_state_from_a_file_is_kept(tmp_path: Path):
    """On the nodes it was used on; the file itself may be gone."""
    state, x = tmp_path / "state.csv", np.linspace(-1, 33, 60)
    table = np.array([x, np.exp(-((x - 15) ** 2) / 9), 0.1 * np.sin(x)]).T
    rows = [",".join(map(repr, row)) for row in table.tolist()]
    state.write_text("\n".join(["x,v,w", *rows, ""]))
    assert run(*SHORT[:6], "--initial", state, "--out", tmp_path / "a").exit_code == 0
    state.unlink()
    for before, after in ("ab", "bc"):
        again = run(tmp_path / before / "summary.json", "--out", tmp_path / after)
        assert again.exit_code == 0, again.output
        one, other = results(tmp_path / before), results(tmp_path / after)
        np.testing.assert_array_equal([one["v"], one["w"]], [other["v"], other["w"]])
    finer = ("--dx", 0.25, "--nodes", 121, "--out", tmp_path / "d")
    assert run(tmp_path / "a" / "summary.json", *finer).exit_code == 0
    a, d = (results(tmp_path / name)["v"] for name in "ad")
    np.testing.assert_allclose(d[0, ::2], a[0], 0, 1e-12)


@pytest.mark.usefixtures("undrawn")
def test_options_given_besides_prevail_and_another_version_is_told(tmp_path: Path):
    stimulus, file = ("--stimulus", "0.5,x=0:5,t=1:2"), tmp_path / "a" / "summary.json"
    assert run(*SHORT, *stimulus, "--dt", 0.1, "--out", tmp_path / "a").exit_code == 0
    file.write_text(json.dumps(json.loads(file.read_text()) | {"channelfit": "0.0.7"}))
    changed = {"end": 2, "stimulus": ["0.3,t=0:1"], "scheme": "explicit", "dt": 0.05}
    words = [w for k, v in changed.items() for w in (f"--{k}", v[0] if k == "stimulus" else v)]
    result = run(file, *words, "--json", "--out", tmp_path / "b")
    assert "written by channelfit 0.0.7" in result.stderr
    kept = json_output.summary(result.stdout)["settings"]
    assert changed.items() <= kept.items()
    assert (kept["nodes"], kept["initial"]) == (61, "gaussian:15")


# --- mistakes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scheme", "explicit", "--dt", 0.2], ["dt", "0.117"]),
        (["--left", "periodic"], ["both ends"]),
        (["--initial", "bump"], ["bump"]),
        (["--stimulus", "1,x=3:2"], ["--stimulus", "stretch"]),
        (["--stimulus", "1,x=205:210"], ["stimulus", "205:210", "off the cable", "0 to 200"]),
        (["--end", 20, "--stimulus", "1,t=30:40"], ["30:40", "never comes", "0 to 20"]),
        (["--nodes", 10**13], ["memory", "10,000,000,000,000 nodes", "TB", "--nodes"]),
        (["--a", "0:1:1000", "--epsilon", "0:1:1001"], ["1001000"]),
        (["--a", "nan"], ["a: "]),
        (["--dtype", "float32"], ["--dtype", "cuda"]),
        (["--scheme", "chebyshev", "--backend", "cuda"], ["--scheme", "processor"]),
        (["--dt", 0.1, "--tolerance", 1e-3], ["not both"]),
        (["--scheme", "auto", "--dt", 0.1], ["--dt", "--error"]),
        (["--scheme", "explicit", "--error", 1e-3], ["--error", "--scheme auto"]),
        (["--scheme", "auto", "--noise", 1], ["--noise"]),
        (["--out", Path(__file__).parent], ["not empty"]),
    ],
)
def test_mistakes_cost_one_line_and_exit_code_2(monkeypatch, tmp_path, arguments, words):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    for word in words:
        assert word in result.stderr


def with_settings(**changed: object) -> str:
    return json.dumps({"settings": {"nodes": 61, "end": 4.0, **changed}})


def with_state(**changed: object) -> str:
    state = {"x": [0.0, 1.0, 2.0], "v": [0.0, 1.0, 0.0]} | changed
    return json.dumps({"settings": {}, "initial_state": state})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (bytes(range(256)), ["summary.json"]),
        ('{\n"settings": {"nodes": 61,\n', ["not valid JSON", "line"]),
        ("[" * 100_000, ["nested"]),
        ('{"settings": {"nodes": ' + "9" * 5000 + "}}", ["not valid JSON"]),
        ('{"settings": {"end": NaN}}', ["NaN"]),
        ('{"settings": {"end": 1e999}}', ["--end", "inf"]),
        (with_settings(nodes=61.5), ["settings.nodes", "whole number", "61.5"]),
        (with_settings(nodes=10**400), ["nodes"]),
        (with_settings(a=0.01), ["settings.a", "text", "0.01"]),
        (with_settings(a="__import__('os')"), ["--a", "__import__"]),
        (with_settings(stimulus=[0.5]), ["settings.stimulus", "text"]),
        (with_settings(sead=1), ["settings.sead", "Known", "seed"]),
        (with_settings(out="/tmp/elsewhere"), ["settings.out"]),
        (with_settings(initial="/etc/passwd"), ["settings.initial", "initial_state"]),
        (json.dumps({"settings": {}, "initial_state": {"x": [0, 1]}}), ["column v"]),
        (with_state(x=[0, 2, 1]), ["increase"]),
        (with_state(v=[0, {}, 1]), ["table"]),
    ],
)
def test_a_summary_that_is_none_costs_one_message(tmp_path: Path, text, words):
    file = tmp_path / "summary.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    result = run(file, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert not (tmp_path / "out").exists()
    for word in words:
        assert word in result.stderr
    settled = [w for w in words if w.startswith("--") or w in ("dt", "nodes")]
    assert settled or "summary.json" in result.stderr
    missing = run(tmp_path / "none.json")
    assert missing.exit_code == 2
    assert "none.json" in missing.stderr
