"""channelfit as a stranger installs it: a wheel built from the sdist, in a new environment.

The new environment sees the packages of the one that runs the tests, so that nothing is fetched
from a network; channelfit itself comes from the wheel.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.places import ROOT

#: What `python -m build` reads; tests and benchmarks are not needed for a wheel.
_SOURCES = ("channelfit", "models", "protocols")
#: Told by the checkout of the tests, and unknown to a stranger.
_TELLING = ("PYTHONPATH", "PYTHONHOME", "CHANNELFIT_DATA", "VIRTUAL_ENV", "COLUMNS")


@dataclass(frozen=True)
class Environment:
    """A virtual environment and the variables of a shell in which it is active."""

    folder: Path
    variables: Mapping[str, str]

    @property
    def scripts(self) -> Path:
        """The folder of its programs."""
        return self.folder / ("Scripts" if os.name == "nt" else "bin")

    def run(self, command: Sequence[str | Path], cwd: Path) -> subprocess.CompletedProcess[str]:
        """Runs one of its programs in a folder; fails with what the program printed."""
        program = shutil.which(str(command[0]), path=str(self.scripts)) or str(command[0])
        done = subprocess.run(
            [program, *map(str, command[1:])],
            cwd=cwd,
            env=dict(self.variables),
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done


def build(folder: Path) -> tuple[Path, Path]:
    """Builds sdist and wheel, the wheel from the sdist, without a network; returns both files."""
    source = folder / "source"
    source.mkdir(parents=True)
    unwanted = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in _SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=unwanted)
    for file in ROOT.iterdir():
        if file.is_file() and not file.name.startswith("."):
            shutil.copy(file, source)
    out = folder / "dist"
    command = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check"]
    done = subprocess.run([*command, "-o", out, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def shell_variables(folder: Path, cache: Path) -> dict[str, str]:
    """The variables of a shell in which the environment in `folder` is active."""
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    inherited = {k: v for k, v in os.environ.items() if k not in _TELLING}
    return inherited | {
        "PATH": os.pathsep.join(
            map(str, (scripts, Path(sys.executable).parent, os.environ["PATH"]))
        ),
        "MPLBACKEND": "agg",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONUTF8": "1",
        "CHANNELFIT_CACHE": str(cache),
    }


def share_packages(folder: Path) -> None:
    """Lets an environment import what the one that runs the tests has, after its own packages."""
    # a path in a .pth file is searched last, and the .pth files that lie there are not read: an
    # editable channelfit stays unknown
    (packages,) = folder.glob("**/site-packages")
    places = [place for place in sys.path if Path(place).name in ("site-packages", "dist-packages")]
    (packages / "of_the_tests.pth").write_text("\n".join(places) + "\n")


def environment(folder: Path, wheel: Path, cache: Path) -> Environment:
    """A new environment into which a wheel was installed and nothing else."""
    venv.create(folder, with_pip=True)
    share_packages(folder)
    made = Environment(folder, shell_variables(folder, cache))
    made.run(["python", "-m", "pip", "install", "--no-deps", wheel], folder)
    return made
