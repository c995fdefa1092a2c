"""`channelfit fhn RUN/summary.json`: a run repeated from what it left, and what is no summary."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from channelfit.front.main import main
from channelfit.scoring.machine import gpu
from support import json_told
from support.cuda_host import HostCupy

SHORT = ("--nodes", 61, "--end", 4, "--frames", 5)
GAUSSIAN = ("--initial", "gaussian:15")


def fhn(*arguments: object) -> Result:
    """Run a short cable, which begins with a Gaussian where nothing else is said."""
    begins = () if "--initial" in arguments or arguments[:4] != SHORT[:4] else GAUSSIAN
    return CliRunner().invoke(main, ["fhn", *(str(a) for a in (*arguments, *begins))])


def results(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "results.npz") as archive:
        return dict(archive)


def assert_repeats(folder: Path, again: Path, *more: object) -> dict:
    result = fhn(folder / "summary.json", *more, "--out", again)
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


@pytest.mark.parametrize(
    "arguments",
    [
        ("--scheme", "explicit", "--noise", 0.1, "--seed", 77),
        ("--dt", 0.3, "--stimulus", "0.5,x=0:5.3,t=1:2,every=1.7", "--stimulus", "0.1,x=9:12"),
        ("--scheme", "adaptive", "--right", 0.7, "--dx", 0.37, "--initial", "step:7.3:0.9"),
        ("--scheme", "chebyshev", "--left", "periodic", "--right", "periodic", "--gamma", 1.7),
        ("--a", "0.01:0.2:3", "--epsilon", "0.005,0.01", "--tolerance", 1e-5, "--threshold", 0.4),
    ],
)
def test_a_run_repeats_bit_for_bit_from_its_summary(tmp_path: Path, arguments):
    first = fhn(*SHORT, *arguments, "--out", tmp_path / "a")
    assert first.exit_code == 0, first.output
    summary = assert_repeats(tmp_path / "a", tmp_path / "b")
    for name, value in zip(arguments[::2], arguments[1::2], strict=True):
        kept = summary["settings"][name.lstrip("-")]
        assert value in kept if isinstance(kept, list) else kept == type(kept)(value)
    changed = results(tmp_path / "a")["v"][-1]
    plain = fhn(*SHORT, "--out", tmp_path / "c")
    assert plain.exit_code == 0
    assert not np.array_equal(changed, results(tmp_path / "c")["v"][-1])


def test_a_state_from_a_file_is_kept(tmp_path: Path):
    """On the nodes it was used on; the file itself may be gone."""
    state = tmp_path / "state.csv"
    x = np.linspace(-1, 33, 60)
    rows = [
        f"{p!r},{v!r},{w!r}"
        for p, v, w in zip(
            x.tolist(),
            np.exp(-((x - 15) ** 2) / 9).tolist(),
            (0.1 * np.sin(x)).tolist(),
            strict=True,
        )
    ]
    state.write_text("x,v,w\n" + "\n".join(rows) + "\n")
    assert fhn(*SHORT, "--initial", state, "--out", tmp_path / "a").exit_code == 0
    state.unlink()
    result = fhn(tmp_path / "a" / "summary.json", "--out", tmp_path / "b")
    assert result.exit_code == 0, result.output
    again = fhn(tmp_path / "b" / "summary.json", "--out", tmp_path / "c")
    assert again.exit_code == 0, again.output
    for name in ("v", "w"):
        for folder in ("b", "c"):
            np.testing.assert_array_equal(
                results(tmp_path / "a")[name], results(tmp_path / folder)[name]
            )
    finer = fhn(
        tmp_path / "a" / "summary.json", "--dx", 0.25, "--nodes", 121, "--out", tmp_path / "d"
    )
    assert finer.exit_code == 0
    a, d = (results(tmp_path / name)["v"] for name in "ad")
    np.testing.assert_allclose(d[0, ::2], a[0], 0, 1e-12)


@pytest.mark.parametrize("scheme", ["explicit", "crank-nicolson", "adaptive"])
def test_a_run_on_a_gpu_repeats(monkeypatch, tmp_path: Path, scheme):
    monkeypatch.setitem(sys.modules, "cupy", HostCupy())
    monkeypatch.setattr(gpu, "_working", None)
    arguments = ("--scheme", scheme, "--backend", "cuda", "--dtype", "float32")
    assert fhn(*SHORT, *arguments, "--out", tmp_path / "a").exit_code == 0
    summary = assert_repeats(tmp_path / "a", tmp_path / "b")
    assert summary["settings"]["backend"] == "cuda"
    assert summary["settings"]["dtype"] == "float32"


def test_options_given_besides_prevail(tmp_path: Path):
    stimulus = ("--stimulus", "0.5,x=0:5,t=1:2")
    assert fhn(*SHORT, *stimulus, "--dt", 0.1, "--out", tmp_path / "a").exit_code == 0
    changed = ("--end", 2, "--stimulus", "0.3,t=0:1", "--scheme", "explicit", "--dt", 0.05)
    result = fhn(tmp_path / "a" / "summary.json", *changed, "--json", "--out", tmp_path / "b")
    summary = json_told.summary(result.stdout)
    settings = summary["settings"]
    assert (settings["end"], settings["stimulus"], settings["dt"]) == (2, ["0.3,t=0:1"], 0.05)
    assert (settings["nodes"], settings["initial"], summary["scheme"]) == (
        61,
        "gaussian:15",
        "explicit",
    )


def test_another_version_is_told(tmp_path: Path):
    assert fhn(*SHORT, "--out", tmp_path / "a").exit_code == 0
    file = tmp_path / "a" / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"channelfit": "0.0.7"}))
    result = fhn(file, "--out", tmp_path / "b")
    assert result.exit_code == 0
    assert "Warning" in result.stderr
    assert "written by channelfit 0.0.7" in result.stderr


def with_settings(**changed: object) -> str:
    return json.dumps({"settings": {"nodes": 61, "end": 4.0, **changed}})


STATE = {"x": [0.0, 1.0, 2.0], "v": [0.0, 1.0, 0.0]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["not valid JSON", "line 1"]),
        ('{\n"settings": {"nodes": 61,\n', ["not valid JSON", "line"]),
        ("[1, 2]", ["an object"]),
        ("{}", ["settings"]),
        ('{"settings": 3}', ["settings"]),
        ("[" * 100_000, ["nested"]),
        ('{"settings": {"nodes": ' + "9" * 5000 + "}}", ["not valid JSON"]),
        ('{"settings": {"end": NaN}}', ["NaN"]),
        ('{"settings": {"end": 1e999}}', ["--end", "inf"]),
        (with_settings(nodes="many"), ["settings.nodes", '"many"']),
        (with_settings(nodes=61.5), ["settings.nodes", "whole number", "61.5"]),
        (with_settings(nodes=2), ["settings.nodes", "2"]),
        (with_settings(nodes=10**400), ["nodes"]),
        (with_settings(nodes=True), ["settings.nodes", "true"]),
        (with_settings(nodes=None), ["settings.nodes", "null"]),
        (with_settings(dx={"a": 1}), ["settings.dx"]),
        (with_settings(a=0.01), ["settings.a", "text", "0.01"]),
        (with_settings(a="__import__('os')"), ["--a", "__import__"]),
        (with_settings(scheme="magic"), ["settings.scheme", "magic"]),
        (with_settings(stimulus="0.5"), ["settings.stimulus", "list"]),
        (with_settings(stimulus=[0.5]), ["settings.stimulus", "text"]),
        (with_settings(stimulus=["1,x=2"]), ["--stimulus"]),
        (with_settings(animation="yes"), ["settings.animation", "true or false"]),
        (with_settings(seed=-1), ["settings.seed", "-1"]),
        (with_settings(dt=float("inf")), ["Infinity"]),
        ('{"settings": {"dt": 1e999}}', ["dt", "inf"]),
        (with_settings(sead=1), ["settings.sead", "Known", "seed"]),
        (with_settings(out="/tmp/elsewhere"), ["settings.out"]),
        (with_settings(initial="/etc/passwd"), ["settings.initial", "initial_state"]),
        (json.dumps({"settings": {}, "initial_state": 7}), ["state"]),
        (json.dumps({"settings": {}, "initial_state": {"x": [0, 1]}}), ["column v"]),
        (json.dumps({"settings": {}, "initial_state": {**STATE, "x": [0, 2, 1]}}), ["increase"]),
        (json.dumps({"settings": {}, "initial_state": {**STATE, "v": [0, "b", 1]}}), ["table"]),
        (json.dumps({"settings": {}, "initial_state": {**STATE, "v": [0, {}, 1]}}), ["table"]),
    ],
)
def test_a_summary_that_is_none_costs_one_message(tmp_path: Path, text, words):
    file = tmp_path / "summary.json"
    file.write_text(text)
    result = fhn(file, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert not (tmp_path / "out").exists()
    for word in words:
        assert word in result.stderr
    settled = [w for w in words if w.startswith("--") or w in ("dt", "nodes")]
    assert settled or "summary.json" in result.stderr


def test_a_summary_that_cannot_be_read(tmp_path: Path):
    for file in (tmp_path / "none.json", tmp_path):
        result = fhn(file)
        assert result.exit_code == 2
        assert file.name in result.stderr
    (tmp_path / "binary.json").write_bytes(bytes(range(256)))
    result = fhn(tmp_path / "binary.json")
    assert result.exit_code == 2
    assert "binary.json" in result.stderr
