"""Fixtures of several tests of scorers: a GPU, and NEURON."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from channelfit.scoring.machine import gpu
from channelfit.scoring.neuron import mechanisms
from channelfit.scoring.neuron.mechanisms import NeuronUnavailable, compile_mechanism
from channelfit.scoring.neuron.oracle import CLAMP
from support.cuda_host import HostCupy

PLAYED, REAL = "played", pytest.param("real", marks=pytest.mark.gpu)


def use(kind: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backend of this kind; CuPy is played by the host, or there must be a GPU."""
    if kind == PLAYED:
        monkeypatch.setitem(sys.modules, "cupy", HostCupy())
    elif kind == "real" and not gpu.is_available():
        pytest.skip("needs an NVIDIA GPU and CuPy")
    return kind if kind in ("cpu", "reference") else "cuda"


@pytest.fixture(params=[PLAYED, REAL])
def device(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """A GPU: played by the host, or real."""
    use(request.param, monkeypatch)
    return str(request.param)


@pytest.fixture(params=["cpu", PLAYED, REAL])
def backend(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a backend with generated code; a GPU is played by the host, or real."""
    return use(request.param, monkeypatch)


@pytest.fixture(scope="module")
def neuron() -> Any:
    """NEURON with a working compiler; tests that ask for it skip without, and say why."""
    try:
        compile_mechanism(CLAMP)
    except NeuronUnavailable as error:
        pytest.skip(str(error))
    return mechanisms.neuron_hoc()
