"""Currents out of a whole cell in Myokit: what gates them moves, and all else is held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("myokit")

from channelfit.front.importing import _simulated
from channelfit.model.imports.myokit_model import read_myokit
from channelfit.reading.errors import InputError
from channelfit.scoring.neuron.importing_myokit import MyokitModel, prove_myokit, translated

# Each current stands for a class of those in published models of whole cells.
CELL = """[[model]]
name: cell
membrane.V = -80
ions.K_i = 140
ions.Ca_t = 2e-4
camk.trapped = 0.1
ik.x = 0
ical.d = 0
ical.fca = 0.5
ical.n = 0.2
ical.j = 1
ikr.c = 1
ikr.o = 0
ikr.ob = 0
ikr.cb = 0
[engine]
time = 0 [ms] bind time
    in [ms]
pace = 0 bind pace
[membrane]
dot(V) = -(i_ion + i_stim) / C
    in [mV]
    label membrane_potential
C = 1 [uF/cm^2]
    in [uF/cm^2]
i_ion = ik.IK + i_ca + pump.INaK + ik.IK1 + ical.ICaN + ical.ICaX + ikr.IKr
    in [A/F]
i_ca = ical.ICaL + pump.IpCa
    in [A/F]
i_stim = engine.pace * -80 [A/F]
    in [A/F]
[ions]
dot(K_i) = -1e-5 [mM/ms] * (ik.IK + ik.IK1 - 2 * pump.INaK + membrane.i_stim)
    in [mM]
K_o = 5.4 [mM]
    in [mM]
dot(Ca_t) = -1e-6 [mM/ms] * membrane.i_ca - 0.01 [1/ms] * (Ca_i - 1e-4 [mM])
    in [mM]
Ca_i = Ca_t * cos(acos(Ca_t / (Ca_t + 1 [mM]))) + 1e-4 [mM]
    in [mM]
E_K = 26.7 [mV] * log(K_o / K_i)
    in [mV]
[camk]
bound = 0.05 * (1 - trapped) / (1 + 0.0015 [mM] / ions.Ca_i)
dot(trapped) = 0.05 * bound * (bound + trapped) - 0.00068 * trapped
active = 1 / (1 + 0.15 / (bound + trapped))
[ik]
use membrane.V
mode = 1
g = if(mode == 1, 0.098, 0.062)
dot(x) = (1 / (1 + exp(-(V + 5) / 14)) - x) / (1 + 20 / (1 + exp((V - 20) / 9)))
IK = g * x^2 * (1 - 0.3 * camk.active) * (V - ions.E_K)
    in [A/F]
IK1 = 0.35 * (V + 85) / (1 + exp(0.07 * (V + 80)))
    in [A/F]
[ical]
use membrane.V
dot(d) = (1 / (1 + exp(-(V + 5) / 7.5)) - d) / 2
inf = 1 / (1 + (ions.Ca_i / 3.25e-4)^8)
dot(fca) = if(inf > fca and V > -60, 0, (inf - fca) / 2)
FRT = 0.0374 [1/mV]
frt = V * FRT
ev = exp(2 * frt)
ICaL = 0.1 * d * fca * 4 * V * (ions.Ca_i * ev - 0.341 * 2) / (ev - 1)
    in [A/F]
dot(n) = 0.1 * (1 - n) * ions.Ca_i / 1e-3 - j * n
dot(j) = (1 / (1 + exp((V + 20) / 4)) - j) / 75
ICaN = d * n * (V - 60)
    in [A/F]
ICaX = if(V * d > 3, d * V, 0)
    in [A/F]
[ikr]
use membrane.V
drug = 0
a = 0.1 * exp(V / 25)
b = 0.2 * exp(-V / 30)
bound = 0.3 * drug * o - drug * ob
dot(c) = b * o - a * c
dot(o) = a * c - b * o - bound
dot(ob) = bound + 0.01 * cb - 0.02 * ob
dot(cb) = 0.02 * ob - 0.01 * cb
IKr = 0.1 * o * (V - ions.E_K)
    in [A/F]
[pump]
INaK = 1.3 * 1 / (1 + 0.1245 * exp(-0.1 * membrane.V / 26.7)) * ions.K_o / (ions.K_o + 1)
    in [A/F]
IpCa = 0.1 * ions.Ca_i / (0.0005 + ions.Ca_i)
    in [A/F]
"""


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    path = tmp_path_factory.mktemp("cell") / "cell.mmt"
    path.write_text(CELL, encoding="utf-8")
    return path, read_myokit(path)


def of(cell: tuple[Path, dict[str, Any]], current: str, *hold: str) -> MyokitModel:
    path, plain = cell
    return translated(plain, path, "given", current, hold=hold)


def test_concentrations_and_what_they_change_are_held(cell: tuple[Path, dict[str, Any]]) -> None:
    model = of(cell, "ik.IK")
    given = {p.name: p for p in model.imported.model.parameters}
    assert given["K_i"].value == 140
    assert given["K_i"].fixed
    assert given["K_i"].input == "ki"
    assert given["trapped"].value == 0.1
    assert model.states == ("ik.x",)
    proof = prove_myokit(model, _simulated)
    assert [error < 1e-11 for _, error in proof.runs] == [True, True, False]
    assert proof.error < 1e-7


def test_a_gate_that_never_leaves_its_limit_and_a_limit_at_0_mv(cell):
    model = of(cell, "ical.ICaL")
    assert model.still == ("ical.fca",)
    assert [c.name for c in model.imported.model.chains] == ["d"]
    assert {p.name for p in model.imported.model.parameters} >= {"Ca_i"}
    proof = prove_myokit(model, _simulated)
    assert proof.error < 1e-7
    assert proof.notes == ("the file itself is 0/0 at 0 mV, where its limit was taken",)


def test_states_that_nothing_fills_are_left_out(cell: tuple[Path, dict[str, Any]]) -> None:
    # bound and free channels never mix without the drug: a steady state says nothing of their sum
    model = of(cell, "ikr.IKr")
    assert model.states == ("ikr.c", "ikr.o")
    assert "lead" in model.imported.text
    assert prove_myokit(model, _simulated).error < 1e-7


def test_what_gates_the_current_is_held_only_if_asked(cell: tuple[Path, dict[str, Any]]) -> None:
    with pytest.raises(InputError, match="n' is not linear in j, n; --hold"):
        of(cell, "ical.ICaN")
    model = of(cell, "ical.ICaN", "ical.n")
    assert "held at the file's initial values: ical.n" in model.imported.text
    assert prove_myokit(model, _simulated).error < 1e-7
    with pytest.raises(InputError, match="there is no one state other"):
        of(cell, "ical.ICaN", "other")
    with pytest.raises(InputError, match="no sum of products"):
        of(cell, "ical.ICaX")


def test_a_proof_finds_a_held_value_that_is_another(cell, tmp_path):
    other = tmp_path / "other.mmt"
    other.write_text(CELL.replace("ions.K_i = 140", "ions.K_i = 139.9"), encoding="utf-8")
    model = of(cell, "ik.IK")
    moved = MyokitModel(other, *list(vars(model).values())[1:])
    assert prove_myokit(moved, _simulated).error > 1e-5
