"""What the cable's benchmarks compare: the same equations by everyone."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest

from channelfit.fitzhugh_nagumo import Cable, Equation
from support.cable_truth import truth


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
