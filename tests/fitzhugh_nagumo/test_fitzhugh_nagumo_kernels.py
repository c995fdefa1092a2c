"""The cable's kernels as our own machine code and as plain Python: the same bits."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from channelfit.fitzhugh_nagumo import (
    Adaptive,
    Cable,
    Chebyshev,
    CrankNicolson,
    Equation,
    Explicit,
    RungeKutta,
)
from channelfit.fitzhugh_nagumo.noise import add_noise
from channelfit.scoring.machine.machine_code import Kernel, generated
from support.kernel_ways import plain, text_of

HELD: dict[str, Any] = {"left": 0.3, "right": "no_flux"}
RING: dict[str, Any] = {"left": "periodic", "right": "periodic"}
NAME = "channelfit.fitzhugh_nagumo."


@dataclass
class Case:
    """A scheme, and how large a cable, how long a step and how many of them it is tried with.

    Arguments:
        short: constants of the module that make a short cable go the way of a long one.
    """

    module: str
    make: Callable[[Cable], Any]
    nodes: int
    dt: float
    n_steps: int
    ends: dict[str, Any]
    n_cables: int = 1
    short: dict[str, int] = field(default_factory=dict)

    def run(self, monkeypatch: pytest.MonkeyPatch, kernels: dict[str, Any]) -> list[Any]:
        """The state after the steps, by these kernels instead of the module's own."""
        module = import_module(NAME + self.module)
        for name, value in (self.short | kernels).items():
            monkeypatch.setattr(module, name, value)
        scheme = self.make(Cable(self.nodes, 0.5, **self.ends))
        if "_TILE" in self.short and isinstance(scheme, Explicit):
            scheme._tile = self.short["_TILE"]
        x = np.arange(self.nodes)
        v = np.exp(-(((x - 0.3 * self.nodes) / 12) ** 2)) + 0.1 * np.sin(x / 7)
        v = np.array([v * (1 - 0.01 * k) for k in range(self.n_cables)])
        w = np.array([0.05 * np.cos(x / 11 + k) for k in range(self.n_cables)])
        drive = np.where(x < self.nodes / 8, 0.07, 0.0)
        found = list(scheme.advance(v, w, self.dt, self.n_steps, drive))
        assert all(np.isfinite(one).all() for one in found)
        assert np.abs(found[0] - v).max() > 1e-3
        return found


def _steps(kind: Any, *arguments: Any, **more: Any) -> Callable[[Cable], Any]:
    return lambda cable: kind(Equation(), cable, *arguments, **more)


_NOISY = _steps(Explicit, noise=0.05, seed=7)
_SEVERAL = Equation(a=np.linspace(0.01, 0.1, 18))
_CN, _LONG = "crank_nicolson", "_LONGEST_WHOLE"
CASES = {
    "explicit": Case("explicit", _steps(Explicit), 90, 0.05, 8, HELD),
    "explicit in tiles": Case("explicit", _NOISY, 90, 0.05, 8, RING, short={"_TILE": 16}),
    "Runge-Kutta": Case("runge_kutta", _steps(RungeKutta), 90, 0.05, 5, HELD),
    "Runge-Kutta of a ring": Case("runge_kutta", _steps(RungeKutta), 90, 0.05, 5, RING),
    "Chebyshev": Case("chebyshev", _steps(Chebyshev), 90, 0.3, 3, HELD, 2),
    "Chebyshev in tiles": Case("chebyshev", _steps(Chebyshev), 500, 0.3, 1, RING, 1, {_LONG: 100}),
    "lanes": Case(_CN, _steps(CrankNicolson), 130, 0.2, 3, HELD),
    "tiles": Case(_CN, _steps(CrankNicolson), 400, 0.05, 2, RING, short={"_TILE": 128}),
    "cables": Case(_CN, lambda c: CrankNicolson(_SEVERAL, c), 40, 0.2, 2, HELD, 18),
    "Thomas": Case(_CN, _steps(CrankNicolson, "thomas"), 75, 0.2, 3, HELD),
    "cyclic reduction": Case(_CN, _steps(CrankNicolson, "cyclic_reduction"), 75, 0.2, 3, RING),
    "indicators": Case("adaptive", _steps(Adaptive, "indicators"), 120, 0.02, 4, HELD),
    "curvature": Case("adaptive", _steps(Adaptive, "curvature", every=3), 120, 0.02, 7, HELD),
}


def _kernels(module: ModuleType) -> dict[str, Kernel]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Kernel)}


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_as_plain_python(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no product and sum become one instruction there is one result, to the last bit."""
    case = CASES[name]
    module = NAME + case.module
    kernels = _kernels(import_module(module))
    assert kernels
    lowered = {k: Kernel(one.source, one.name, contract=False) for k, one in kernels.items()}
    texts = plain(text_of(module))
    ours = case.run(monkeypatch, lowered)
    theirs = case.run(monkeypatch, {k: getattr(texts, k) for k in kernels})
    np.testing.assert_array_equal(ours, theirs)


def test_noise_far_along_a_long_run() -> None:
    """Counters beyond 32 bits, and a product of two numbers of 32 bits beyond 63."""
    ours, theirs = np.zeros(7), np.zeros(7)
    arguments = (2**33 - 3, 2**33, np.array([0, 0]), 0.5, 2**32 - 1, 2**32 - 2, 2**40 + 2**32 - 1)
    add_noise(ours, *arguments)
    plain(text_of(NAME + "noise")).add_noise(theirs, *arguments)
    assert ours.all()
    np.testing.assert_allclose(ours, theirs, rtol=1e-14)


@pytest.mark.parametrize("asked", ["len(x)", "x.size > 0", "x.shape[0] > 0"])
def test_no_element_is_read_of_an_array_that_has_none(asked: str) -> None:
    text = f"def pick(x, i):\n    return x[i] if {asked} else 0.5\n"
    pick = generated(text, "pick", checked=True)
    assert pick(np.empty(0), 3) == 0.5
    assert pick(np.arange(4.0), 3) == 3.0
    text = f"def pick(x, i):\n    return {asked} and x[i] > 2.0\n"
    pick = generated(text, "pick", checked=True)
    assert not pick(np.empty(0), 3)
    assert pick(np.arange(4.0), 3)
