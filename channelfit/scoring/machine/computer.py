"""The versions of the libraries and the machine that computed a result."""

from __future__ import annotations

import platform
from importlib import import_module
from typing import Any

from channelfit import __version__
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.threads import usable_cores


def versions(on_gpu: bool = False) -> dict[str, str]:
    """Return the versions of Python, channelfit and the libraries that compute."""
    found = {"channelfit": __version__, "python": platform.python_version()}
    for name in ("numpy", "scipy", "sympy", "llvmlite"):  # most are loaded; SciPy's parts are not
        found[name] = str(import_module(name).__version__)
    return found | (_gpu_versions() if on_gpu else {})


def _gpu_versions() -> dict[str, str]:
    found = gpu.device()
    return {
        "cupy": str(gpu.cupy().__version__),
        "cuda": ".".join(map(str, found.runtime_version)),
        "driver": ".".join(map(str, found.driver_version)),
    }


def machine() -> dict[str, Any]:
    """Return the system, processor and number of cores of this machine, by name."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": processor(),
        "cores": usable_cores(),
    }


def processor() -> str:
    """Return the processor as LLVM calls it, for which the kernels are compiled."""
    import llvmlite.binding as llvm

    return str(llvm.get_host_cpu_name())
