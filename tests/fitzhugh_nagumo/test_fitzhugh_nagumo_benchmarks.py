"""What the cable's benchmarks compare: the same equations by everyone, and the paper's solvers."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest

from channelfit.fitzhugh_nagumo import Cable, Equation, RungeKutta
from support.cable_truth import rates as independent
from support.cable_truth import truth


def test_the_peers_rates_are_the_cables() -> None:
    fhn = importlib.import_module("fhn")
    y = np.random.default_rng(1).uniform(-0.2, 1.1, 42)
    dv, dw = independent(Equation(), Cable(21, fhn.DX), y[::2], y[1::2], 0.0)
    ours = fhn.rates(y, 1, np.empty(42))
    np.testing.assert_allclose(ours[::2], dv, 0, 1e-13)
    np.testing.assert_allclose(ours[1::2], dw, 0, 1e-15)


@pytest.mark.parametrize("mirror", [0, 1])
def test_the_peers_jacobian_is_the_derivative_of_their_rates(mirror: int) -> None:
    fhn = importlib.import_module("fhn")
    y, h = np.random.default_rng(2).uniform(-0.2, 1.1, 20), 1e-5
    band, dense = fhn.jacobian(y, mirror), np.zeros((20, 20))
    for j in range(20):
        for i in range(max(0, j - 2), min(20, j + 3)):
            dense[i, j] = band[2 + i - j, j]
    steps = h * np.eye(20)
    columns = [
        (fhn.rates(y + s, mirror, np.empty(20)) - fhn.rates(y - s, mirror, np.empty(20))) / (2 * h)
        for s in steps
    ]
    np.testing.assert_allclose(dense, np.array(columns).T, 0, 1e-8)


@pytest.mark.slow
def test_the_plain_lines_make_our_steps() -> None:
    fhn = importlib.import_module("fhn")
    cable = Cable(201, fhn.DX)
    v = fhn.impulse(cable.x)
    ours = RungeKutta(Equation(), cable).advance(v[None], np.zeros((1, 201)), 0.15, 40)[0][0]
    np.testing.assert_allclose(fhn.plain(v.copy(), 40, 0.15, 1), ours, 0, 1e-13)


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


@pytest.mark.slow
def test_thomas_and_cyclic_reduction_do_not_differ_on_the_printed_scheme() -> None:
    """The paper's difference between them is not reproduced: what it saw lies elsewhere."""
    figures = importlib.import_module("fhn_figures")
    for row in figures.thomas_and_cyclic_reduction((1.05,)):
        assert row.value < 1e-12
        assert "at most 0" in row.note or "at most 1" in row.note
