"""The FitzHugh-Nagumo equation on a cable: explicit schemes, an implicit one, and a moving grid.

from channelfit.fitzhugh_nagumo import Cable, CrankNicolson, Equation, simulate
from channelfit.fitzhugh_nagumo.equation import gaussian

cable = Cable(n_nodes=401, dx=0.5)
run = simulate(CrankNicolson(Equation(), cable), gaussian(cable.x, 100), times=[0, 50, 100])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from channelfit.fitzhugh_nagumo.accuracy import ErrorEstimate as ErrorEstimate
    from channelfit.fitzhugh_nagumo.accuracy import estimate_error as estimate_error
    from channelfit.fitzhugh_nagumo.adaptive import Adaptive as Adaptive
    from channelfit.fitzhugh_nagumo.chebyshev import Chebyshev as Chebyshev
    from channelfit.fitzhugh_nagumo.crank_nicolson import CrankNicolson as CrankNicolson
    from channelfit.fitzhugh_nagumo.equation import Cable as Cable
    from channelfit.fitzhugh_nagumo.equation import Equation as Equation
    from channelfit.fitzhugh_nagumo.equation import Pulse as Pulse
    from channelfit.fitzhugh_nagumo.explicit import Explicit as Explicit
    from channelfit.fitzhugh_nagumo.runge_kutta import RungeKutta as RungeKutta
    from channelfit.fitzhugh_nagumo.simulation import Run as Run
    from channelfit.fitzhugh_nagumo.simulation import arrival_times as arrival_times
    from channelfit.fitzhugh_nagumo.simulation import simulate as simulate
    from channelfit.fitzhugh_nagumo.simulation import wave_speed as wave_speed

#: Public names and the modules they stand in, which are loaded when a name is first used.
_PUBLIC = {
    "Adaptive": "adaptive",
    "Cable": "equation",
    "Chebyshev": "chebyshev",
    "CrankNicolson": "crank_nicolson",
    "Equation": "equation",
    "ErrorEstimate": "accuracy",
    "Explicit": "explicit",
    "Pulse": "equation",
    "Run": "simulation",
    "RungeKutta": "runge_kutta",
    "arrival_times": "simulation",
    "estimate_error": "accuracy",
    "simulate": "simulation",
    "wave_speed": "simulation",
}
__all__ = [*_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
