"""A solution of the cable that was cut off goes on to the same bits, whatever solves it."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

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
    checkpoint,
    simulate,
)
from channelfit.fitzhugh_nagumo import equation as eq
from channelfit.fitzhugh_nagumo.checkpoint import Checkpoints
from channelfit.fitzhugh_nagumo.cuda.adaptive import AdaptiveCuda
from channelfit.fitzhugh_nagumo.cuda.crank_nicolson import CrankNicolsonCuda
from channelfit.fitzhugh_nagumo.cuda.explicit import ExplicitCuda, RungeKuttaCuda
from channelfit.front.main import main
from channelfit.reading.errors import InputError
from channelfit.results.runs import INTERRUPTED, KILLED, find_run
from channelfit.tasks.result_store import Arrays, Key, ResultStore

pytestmark = pytest.mark.integration


CABLE = Cable(121, 0.5, stimulus=(Pulse(0.4, x_from=0, x_to=4, start=3.3, end=5.1),))
SWEEP = Equation(a=np.array([0.05, 0.15]), epsilon=np.array([0.01, 0.005]))
TIMES = [0.0, 2.0, 2.5, 9.0, 12.0]
#: Schemes with the step or the tolerance that a run is given.
ON_CPU: dict[str, tuple[Callable[[], Any], dict[str, float]]] = {
    "explicit": (lambda: Explicit(SWEEP, CABLE), {}),
    "noise": (lambda: Explicit(SWEEP, CABLE, 0.05, seed=7), {}),
    "runge-kutta": (lambda: RungeKutta(SWEEP, CABLE), {}),
    "adaptive": (lambda: Adaptive(SWEEP, CABLE), {}),
    "indicators": (lambda: Adaptive(SWEEP, CABLE, "indicators"), {}),
    "chebyshev": (lambda: Chebyshev(SWEEP, CABLE), {"tolerance": 1e-5}),
    "crank-nicolson": (lambda: CrankNicolson(SWEEP, CABLE), {"tolerance": 1e-5}),
    "crank-nicolson, equal steps": (lambda: CrankNicolson(SWEEP, CABLE), {"dt": 0.07}),
}
ON_GPU: dict[str, tuple[Callable[[str], Any], dict[str, float]]] = {
    "explicit": (lambda dtype: ExplicitCuda(SWEEP, CABLE, dtype), {}),
    "runge-kutta": (lambda dtype: RungeKuttaCuda(SWEEP, CABLE, dtype), {}),
    "adaptive": (lambda dtype: AdaptiveCuda(SWEEP, CABLE, dtype=dtype), {}),
    "crank-nicolson": (lambda dtype: CrankNicolsonCuda(SWEEP, CABLE, dtype), {"tolerance": 1e-3}),
    "crank-nicolson, equal steps": (
        lambda dtype: CrankNicolsonCuda(SWEEP, CABLE, dtype),
        {"dt": 0.07},
    ),
}


class Cut(Exception):
    """What ends a run at a moment of the test's choice."""


class Cutting(ResultStore):
    """A file after so many records of which a process ends."""

    def __init__(self, path: Path, after: int) -> None:
        super().__init__(path)
        self.after = after

    def put(self, key: Key, arrays: Arrays) -> None:
        """See `ResultStore.put`."""
        super().put(key, arrays)
        self.after -= 1
        if not self.after:
            self.close(keep=True)
            raise Cut


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A record of each frame, and of each step between two frames."""
    monkeypatch.setattr(checkpoint, "_EVERY", 0.0)
    monkeypatch.setattr(checkpoint, "_PACE", 1 << 60)
    monkeypatch.setattr(Explicit, "steps_at_once", 7)
    return


def same(one: Run, other: Run) -> None:
    np.testing.assert_array_equal(one.v, other.v)
    np.testing.assert_array_equal(one.w, other.w)
    assert one.facts == other.facts


def goes_on(make: Callable[[], Any], file: Path, **steps: float) -> int:
    """How many records a run leaves that was cut off after each tenth of them, and went on."""
    v = eq.gaussian(CABLE.x, 20)
    whole = simulate(make(), v, 0, TIMES, **steps)
    kept = ResultStore(file)
    same(simulate(make(), v, 0, TIMES, **steps, checkpoints=Checkpoints(kept)), whole)
    n_records = len(kept.keys)
    kept.close(keep=False)
    for after in sorted({1, 2, 3, *range(4, n_records, max(1, n_records // 10))}):
        with pytest.raises(Cut):
            simulate(make(), v, 0, TIMES, **steps, checkpoints=Checkpoints(Cutting(file, after)))
        kept = ResultStore(file)
        assert len(kept.keys) == after
        again = simulate(make(), v, 0, TIMES, **steps, checkpoints=Checkpoints(kept))
        kept.close(keep=False)
        same(again, whole)
    return n_records


@pytest.mark.parametrize("name", ON_CPU)
def test_every_scheme_goes_on(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the midst of a long way from one frame to the next, where the scheme can."""
    make, steps = ON_CPU[name]
    # a kernel's call then ends after few steps, as it does where nodes or steps are many
    monkeypatch.setattr(import_module(CrankNicolson.__module__), "_NODES_A_CALL", 1000)

    def made() -> Any:
        scheme = make()
        if isinstance(scheme, Adaptive):
            scheme.steps_at_once = scheme.every
        return scheme

    n_records = goes_on(made, tmp_path / "kept", **steps)
    assert n_records > len(TIMES) + (0 if name == "crank-nicolson, equal steps" else 1)


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float64") for name in ON_GPU), ("adaptive", "float32")]
)
def test_a_device_goes_on(name: str, dtype: str, device: Any, tmp_path: Path) -> None:
    make, steps = ON_GPU[name]
    assert goes_on(lambda: make(dtype), tmp_path / "kept", **steps) >= len(TIMES)


# --- the command ---------------------------------------------------------------------------------

RUN = ("--end", 60, "--frames", 31, "--nodes", 201, "--initial", "gaussian:20")
PROGRAM = """
import time
from channelfit.front import interrupts; interrupts.begin()
from channelfit.fitzhugh_nagumo import checkpoint
checkpoint._EVERY, checkpoint._PACE = 0.0, 1 << 60
add = checkpoint.SolutionRecords.add
def slow(self, k, moment):
    add(self, k, moment); time.sleep(0.05)
checkpoint.SolutionRecords.add = slow
from channelfit.__main__ import program; program()
"""


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["fhn", *map(str, words)])


def results(folder: Path) -> dict[str, Any]:
    """All that a run writes and repeats to the bit."""
    found: dict[str, Any] = {}
    if (folder / "results.npz").exists():
        with np.load(folder / "results.npz") as arrays:
            found |= {name: arrays[name].tobytes() for name in arrays}
    if (folder / "results.h5").exists():
        h5py = pytest.importorskip("h5py")
        with h5py.File(folder / "results.h5") as arrays:
            found |= {name: arrays[name][:].tobytes() for name in arrays}
    summary = json.loads((folder / "summary.json").read_text())
    summary.pop("seconds")
    arrival = (folder / "arrival.csv").read_text()
    return {**found, "summary": summary, "arrival": arrival}


posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")


def begun(words: tuple[object, ...], **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "fhn", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


@posix
@pytest.mark.parametrize(("number", "suffix"), [(signal.SIGKILL, "npz"), (signal.SIGTERM, "h5")])
def test_a_signal_costs_nothing(number: signal.Signals, suffix: str, tmp_path: Path) -> None:
    """The folder is there from the first second, and says that it is unfinished."""
    words = (*RUN, "--format", suffix)
    assert run(*words, "--out", tmp_path / "whole").exit_code == 0
    folder = tmp_path / "cut"
    process = begun((*words, "--out", folder))
    while process.poll() is None and len(list(folder.glob("*.bin"))) == 0:
        time.sleep(0.02)
    kept = folder / "pieces.bin"
    while process.poll() is None and kept.stat().st_size < 30_000:
        time.sleep(0.02)
    assert json.loads((folder / "state.json").read_text())["state"] == "running"
    process.send_signal(number)
    _, told = process.communicate()
    assert process.returncode == (-9 if number == signal.SIGKILL else 143)
    assert find_run(folder).state == (KILLED if number == signal.SIGKILL else INTERRUPTED)
    assert not list(folder.glob("results*"))
    if number != signal.SIGKILL:
        assert f"channelfit fhn --resume {folder} goes on with this run" in told
    assert run(*words, "--out", folder).exit_code == 2
    again = run("--resume", folder)
    assert again.exit_code == 0, again.output
    assert results(folder) == results(tmp_path / "whole")
    names = {path.name for path in (tmp_path / "whole").iterdir()}
    assert {path.name for path in folder.iterdir()} == names
    assert "nothing to go on with" in run("--resume", folder).stderr


@posix
def test_what_differs_and_a_full_disk_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state from a file that has changed, another processor; no file longer than a limit."""
    x = np.arange(0, 100.5, 0.5)
    start = tmp_path / "start.npz"
    np.savez(start, x=x, v=eq.gaussian(x, 20), w=0 * x)
    words = (*RUN[:-1], start)
    assert run(*words, "--out", tmp_path / "whole").exit_code == 0

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    folder = tmp_path / "cut"
    process = begun((*words, "--out", folder), preexec_fn=limited)
    _, told = process.communicate()
    assert process.returncode == 2
    assert told.count("Error: ") == 1
    assert "cannot be written: File too large" in told
    assert {path.name for path in folder.iterdir()} == {"pieces.bin", "resume.json", "state.json"}

    def refused(words: str, *more: object) -> None:
        result = run("--resume", folder, *more)
        assert result.exit_code == 2
        assert words in result.stderr
        assert not (folder / "results.npz").exists()

    refused("--dt", "--dt", 0.1)
    np.savez(start, x=x, v=eq.gaussian(x, 20) + 1e-12, w=0 * x)
    refused("state at t = 0 was")
    np.savez(start, x=x, v=eq.gaussian(x, 20), w=0 * x)
    with monkeypatch.context() as patched:
        patched.setattr("channelfit.results.identity.processor", lambda: "another one")
        refused("processor was")
    assert run("--resume", folder).exit_code == 0
    assert results(folder) == results(tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "array", "change"),
    [
        ("adaptive", "memory_scheme_places", lambda a: a + 10_000),
        ("adaptive", "memory_scheme_lengths", lambda a: a * 1000),
        ("crank-nicolson", "memory_control_past", lambda a: a[..., :3]),
        ("crank-nicolson", "memory_done", None),
        ("explicit", "v", lambda a: a[:, :-1]),
        ("explicit", "w", lambda a: a.astype(int)),
        ("explicit", "memory_steps", lambda a: a[:0]),
    ],
)
def test_a_forged_state_is_refused(name: str, array: str, change: Any, tmp_path: Path) -> None:
    """Kernels write to the places that a state names."""
    make, steps = ON_CPU[name]
    v = eq.gaussian(CABLE.x, 20)
    cutting = Cutting(tmp_path / "kept", 3)
    with pytest.raises(Cut):
        simulate(make(), v, 0, TIMES, **steps, checkpoints=Checkpoints(cutting))
    whole, forged = ResultStore(tmp_path / "kept"), ResultStore(tmp_path / "forged")
    for key in whole.keys:
        found = whole.get(key)
        if array in found:
            found = {**found, array: change(found[array])} if change else dict(found)
            if not change:
                del found[array]
        forged.put(key, found)
    with pytest.raises(InputError, match=r"forged: .*is damaged, or was changed"):
        simulate(make(), v, 0, TIMES, **steps, checkpoints=Checkpoints(forged))
    whole.close(True)
    forged.close(True)
