"""Controlled steps of Crank-Nicolson: the kernels that choose them, beside the same in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from channelfit.fitzhugh_nagumo import Cable, CrankNicolson, Equation, Pulse, simulate
from channelfit.fitzhugh_nagumo.equation import gaussian

PULSES = (Pulse(0.3, x_from=1, x_to=4, start=1.5, end=2.25),)
CASES = {
    "one cable": (Cable(83, 0.5), 1),
    "a held end and a stimulus": (Cable(90, 0.5, "no_flux", 0.2, PULSES), 1),
    "a ring": (Cable(80, 0.5, "periodic", "periodic"), 1),
    "cables side by side": (Cable(40, 0.5, "no_flux", 0.2, PULSES), 16),
    "sixteen of a ring": (Cable(66, 0.5, "periodic", "periodic"), 3),
}
TIMES = [0.7, 3.0, 12.0]


def scheme_of(cable: Cable, n_cables: int, n_threads: int = 1) -> CrankNicolson:
    a = 0.05 if n_cables == 1 else np.linspace(0.01, 0.1, n_cables)
    return CrankNicolson(Equation(a=a), cable, n_threads=n_threads)


@pytest.mark.parametrize("name", CASES)
def test_kernels_choose_the_steps_that_python_chooses(name: str, monkeypatch: Any) -> None:
    """With 3 cables cut into pieces each has steps of its own, so they are solved one by one."""
    cable, n_cables = CASES[name]
    v = gaussian(cable.x, 12)
    ours = simulate(scheme_of(cable, n_cables), v, 0, TIMES, tolerance=1e-5)
    a = np.broadcast_to(scheme_of(cable, n_cables).equation.a, n_cables)
    alone = [a] if n_cables in (1, 16) else a.reshape(n_cables, 1)
    monkeypatch.setattr(CrankNicolson, "n_controls", lambda *_: 0)
    theirs = [
        simulate(CrankNicolson(Equation(a=k), cable), v, 0, TIMES, tolerance=1e-5) for k in alone
    ]
    np.testing.assert_allclose(ours.v, np.concatenate([r.v for r in theirs], axis=1), atol=1e-10)
    np.testing.assert_allclose(ours.w, np.concatenate([r.w for r in theirs], axis=1), atol=1e-10)
    for fact in ("steps", "steps_refused"):
        assert ours.facts[fact] == max(r.facts[fact] for r in theirs)
    assert ours.facts["longest_step"] == pytest.approx(
        max(r.facts["longest_step"] for r in theirs), rel=1e-6
    )


def test_the_first_steps_see_errors_of_both_signs(monkeypatch: Any) -> None:
    """Below rest the greatest error is on the other side than above it."""
    cable = Cable(83, 0.5)
    run = lambda: (
        simulate(
            scheme_of(cable, 1), -gaussian(cable.x, 12), 0, [0.002, 0.01], tolerance=1e-8
        ).facts
    )
    ours = run()
    monkeypatch.setattr(CrankNicolson, "n_controls", lambda *_: 0)
    theirs = run()
    for fact in ("steps", "steps_refused"):
        assert ours[fact] == theirs[fact] > 0
    assert ours["shortest_step"] == pytest.approx(theirs["shortest_step"], rel=1e-4)
