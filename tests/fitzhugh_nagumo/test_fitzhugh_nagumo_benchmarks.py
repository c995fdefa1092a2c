"""What the cable's benchmarks compare: the same equations by everyone, and the paper's solvers."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest

from channelfit.fitzhugh_nagumo import Cable, Equation
from support.cable_truth import rates as independent
from support.cable_truth import truth


def test_the_peers_rates_are_the_cables() -> None:
    fhn = importlib.import_module("fhn")
    y = np.random.default_rng(1).uniform(-0.2, 1.1, 42)
    dv, dw = independent(Equation(), Cable(21, fhn.DX), y[::2], y[1::2], 0.0)
    ours = fhn.rates(y, 1, np.empty(42))
    np.testing.assert_allclose(ours[::2], dv, 0, 1e-13)
    np.testing.assert_allclose(ours[1::2], dw, 0, 1e-15)


@pytest.mark.integration
@pytest.mark.parametrize("peer", ["CVODE", "VODE", "LSODA"])
def test_the_peers_converge_to_the_truth(peer: str) -> None:
    fhn = importlib.import_module("fhn")
    cable = Cable(61, fhn.DX)
    v = np.exp(-((cable.x - 20) ** 2) / 10)
    exact = truth(Equation(), cable, v, 0 * v, 5.0)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fhn, "impulse", lambda x: np.exp(-((x - 20) ** 2) / 10))
        if peer == "CVODE":
            pytest.importorskip("sksundae")
            if "neuron" in sys.modules:
                pytest.skip("NEURON brings a CVODE of its own, and one process cannot have two")
            found = fhn.by_cvode("BDF", 61, 5.0)(1e-9)
        else:
            found = (
                fhn.by_vode(61, 5.0)(1e-9) if peer == "VODE" else fhn.by_scipy(peer, 61, 5.0)(1e-9)
            )
    np.testing.assert_allclose(found, exact, 0, 1e-6)
