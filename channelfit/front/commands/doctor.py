"""`channelfit doctor`: installed packages, usable backends, and remedies."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from channelfit import __version__
from channelfit.reading.errors import InputError
from channelfit.results.report.terminal import PlainConsole
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.cache import cache_folder
from channelfit.scoring.machine.computer import machine
from channelfit.scoring.machine.threads import usable_cores
from channelfit.scoring.neuron.mechanisms import NeuronUnavailable, find_nrnivmodl
from channelfit.scoring.scorer import BACKENDS

_LIBRARIES = ("numpy", "scipy", "sympy", "llvmlite", "matplotlib", "click", "rich")
_COMPILERS = ("c++", "g++", "clang++")


@dataclass(frozen=True)
class State:
    """The state of a package or device: whether it is usable, and how to get it."""

    usable: bool
    state: str
    remedy: str = ""


def version(name: str) -> str | None:
    """Return the version of an installed distribution; None if there is none."""
    from importlib import metadata  # loads slowly, and fits import this file

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def cupy() -> State:
    """Return the state of CuPy and of the device that it can reach."""
    try:
        return State(True, str(gpu.cupy().__version__))
    except InputError as error:
        what, _, remedy = str(error).partition(": pip install")
        return State(False, what, f"pip install{remedy}".partition(";")[0] if remedy else "")


def graphics() -> dict[str, State]:
    """Return the state of the GPU and its driver, row by row; one row where there is none."""
    found = cupy()
    if not found.usable:
        return {"GPU": found}
    try:
        device = gpu.device()
    except InputError as error:
        return {"CuPy": found, "GPU": State(False, str(error))}
    major, minor = device.compute_capability
    driver, runtime = (
        ".".join(map(str, v)) for v in (device.driver_version, device.runtime_version)
    )
    rows = {
        "CuPy": State(True, f"{found.state}, CUDA {runtime}"),
        "driver": State(True, f"for CUDA up to {driver}"),
        "GPU": State(
            True,
            f"{device.name}, architecture sm_{major}{minor}, "
            f"{device.n_multiprocessors} multiprocessors",
        ),
        "memory": State(
            True,
            f"{device.memory_free / 1e9:.1f} of {device.memory_total / 1e9:.1f} GB free; "
            f"{device.shared_per_block // 1024} KB shared by a block, "
            f"{device.registers_per_block} registers",
        ),
    }
    if device.draws_the_screen:
        rows["display"] = State(
            True, "this GPU draws the screen too; the system stops kernels that run for seconds"
        )
    return rows


def neuron() -> State:
    """Return the state of NEURON, which is found but not imported."""
    found = version("neuron") or version("neuron-nightly")
    if importlib.util.find_spec("neuron") is not None:
        return State(True, found or "installed")
    if platform.system() == "Windows":
        return State(
            False,
            "is not installed",
            "the installer from https://github.com/neuronsimulator/nrn/releases",
        )
    return State(False, "is not installed", 'pip install "channelfit[neuron]"')


def nrnivmodl() -> State:
    """Return the state of NEURON's compiler of mechanisms."""
    try:
        return State(True, find_nrnivmodl())
    except NeuronUnavailable as error:
        return State(False, str(error))


def compiler() -> State:
    """Return the state of the C++ compiler, which mechanisms need."""
    found = next((path for name in _COMPILERS if (path := shutil.which(name))), None)
    if found:
        return State(True, found)
    remedy = {"Darwin": "xcode-select --install", "Linux": "apt install g++ make"}
    return State(False, "is not found", remedy.get(platform.system(), ""))


def backends() -> dict[str, State]:
    """Return the state of every backend, fastest first."""
    if "cuda" not in BACKENDS:
        cuda = State(False, "is not part of this version")
    else:
        found = cupy()
        state = f"CuPy {found.state}" if found.usable else f"cannot run: {found.state}"
        cuda = State(found.usable, state, found.remedy)
    return {
        "cuda": cuda,
        "cpu": State(True, f"compiled by LLVM on {usable_cores()} cores; float64 and float32"),
        "reference": State(True, "NumPy, for checks and small runs; float64"),
    }


def cache() -> State:
    """Return the state of the folder of compiled kernels."""
    folder = cache_folder()
    if not folder.exists():
        return State(True, f"{folder} (not made yet)")
    size = sum(_bytes(p) for p in folder.rglob("*") if p.is_file()) / 1e6
    if not os.access(folder, os.W_OK):
        remedy = "set CHANNELFIT_CACHE to a folder that can"
        return State(False, f"{folder} cannot be written to", remedy)
    return State(True, f"{folder} ({size:.1f} MB; may be deleted at any time)")


def _bytes(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # another run has just put its kernel into place
        return 0


def report() -> None:
    """Print what is installed, what each backend can do, and how to get what is missing."""

    host = machine()
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    groups: dict[str, dict[str, State]] = {
        "This machine": {
            "channelfit": State(True, __version__),
            "Python": State(True, f"{platform.python_version()} ({sys.executable})"),
            "system": State(True, f"{host['system']}, {host['architecture']}"),
            "processor": State(True, f"{host['processor']}, {usable_cores()} cores; {_vectors()}"),
            "libraries": State(True, libraries),
            "cache": cache(),
        },
        "Backends of `optimize` and `simulate`": backends(),
        "GPU": graphics(),
        "For `validate`": {
            "NEURON": neuron(),
            "nrnivmodl": nrnivmodl(),
            "C++ compiler": compiler(),
        },
    }
    console = PlainConsole(highlight=False)
    for title, rows in groups.items():
        console.print(Text(title, style="bold"))
        for name, row in rows.items():
            mark = Text(
                "  ok    " if row.usable else "  --    ", "green" if row.usable else "yellow"
            )
            console.print(mark + Text(f"{name:<14}{row.state}", "default"), soft_wrap=True)
            if row.remedy:
                console.print(Text(f"{'':22}get it: {row.remedy}"), soft_wrap=True)
        console.print()


def _vectors() -> str:
    """Return the widest vector instructions that kernels are compiled for."""
    import llvmlite.binding as llvm

    have = llvm.get_host_cpu_features()
    for feature, words in (
        ("avx512f", "AVX-512, 8 doubles at once"),
        ("avx2", "AVX2, 4 doubles at once"),
        ("sve", "SVE"),
        ("neon", "NEON, 2 doubles at once"),
        ("sse2", "SSE2, 2 doubles at once"),
    ):
        if have.get(feature):
            return words
    return "vector instructions unknown"
