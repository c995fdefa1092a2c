"""Models of Myokit imported: proven by Myokit's own expressions, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from channelfit.front.importing import _simulated
from channelfit.model.imports.trial import jumps
from channelfit.model.model_file import load_model
from channelfit.reading.errors import InputError
from channelfit.scoring.neuron.importing_myokit import MyokitModel, prove_myokit, read_myokit_model
from support.json_output import ran
from support.places import MECHANISMS

pytest.importorskip("myokit")
MMT = MECHANISMS / "import_channel.mmt"
SCHEME = """[[model]]
name: scheme
membrane.V = -80
ik.c = 1
ik.o = 0
[membrane]
time = 0 [ms] bind time
    in [ms]
dot(V) = 0 [mV/ms]
    in [mV]
[ik]
use membrane.V
k1 = 0.1 [1/ms] * exp(V / 25 [mV])
k2 = 0.2 [1/ms] * exp(-V / 30 [mV])
i = 1 - c - o
dot(c) = k2 * o - k1 * c
dot(o) = k1 * c - k2 * o - k1 / 9 * o + 0.02 [1/ms] * i
lambda = 3.5 [nS]
    in [nS]
IK = lambda * (o + 0.5 * i) * (V + 80 [mV])
    in [pA]
"""


def of_text(text: str, tmp_path: Path, current: str | None = None) -> MyokitModel:
    path = tmp_path / "given.mmt"
    path.write_text(text, encoding="utf-8")
    return read_myokit_model(path, "given", current)


def assert_proven(model: MyokitModel) -> None:
    """Steps agree but for rounding; ramps as well as our own steps through a ramp are exact."""
    proof = prove_myokit(model, _simulated)
    *steps, ramps = [error for _, error in proof.runs]
    assert max(steps) < 1e-11
    assert ramps < 1e-7


def test_gates_agree_with_what_myokit_computes() -> None:
    model = read_myokit_model(MMT, MMT.name, None, ("p1", "ikr.p2"))
    assert_proven(model)
    free = {p.name: p for p in model.imported.model.parameters if not p.fixed}
    assert set(free) == {"g", "p1", "p2"}
    assert {c.name: c.power for c in model.imported.model.chains} == {"open": 1, "rec": 2}


def test_a_scheme_of_derivatives_with_a_state_that_is_the_rest(tmp_path: Path) -> None:
    model = of_text(SCHEME, tmp_path)
    (chain,) = model.imported.model.chains
    assert chain.states == ("c", "o", "i")
    assert chain.conductances == (0, 1, 0.5)
    assert_proven(model)


def test_the_ramp_is_cut_on_both_sides_of_a_window_of_the_voltage(tmp_path: Path) -> None:
    """As a file may fill it around the 0/0 of a rate; a step across it is not exact."""
    rate = "k1 = if(abs(V + 47.13 [mV]) > 0.5 [mV], 0.1 [1/ms] * exp(V / 25 [mV]), 0.02 [1/ms])"
    model = of_text(SCHEME.replace("k1 = 0.1 [1/ms] * exp(V / 25 [mV])", rate), tmp_path)
    assert jumps(model.found) == [-47.63, -46.63]
    assert_proven(model)


def test_a_wrong_translation_does_not_pass(tmp_path: Path) -> None:
    other = tmp_path / "other.mmt"
    text = MMT.read_text(encoding="utf-8")
    other.write_text(text.replace("p1 = 0.0003", "p1 = 0.000301"), encoding="utf-8")
    ours, theirs = (read_myokit_model(path, "x", None) for path in (MMT, other))
    assert prove_myokit(type(ours)(other, *list(vars(ours).values())[1:]), _simulated).error > 1e-5
    assert_proven(theirs)


def test_the_command_writes_a_model_and_runs_no_script(tmp_path: Path) -> None:
    never = tmp_path / "never"
    file, out = tmp_path / "a.mmt", tmp_path / "a.yaml"
    script = f'[[script]]\nopen({str(never)!r}, "w")\n'
    file.write_text(MMT.read_text(encoding="utf-8").split("[[script]]")[0] + script)
    assert "agrees with the original" in ran("import", file, "--out", out).output
    assert load_model(out).name == "import_channel"
    assert not never.exists()


@pytest.mark.parametrize(
    ("old", "new", "current", "message"),
    [
        ("IK = lambda", "IK = sin(V) * lambda", None, "Sin cannot be translated"),
        ("k2 * o - k1 * c", "k2 * o * o - k1 * c", None, "not linear"),
        ("0.02 [1/ms] * i", "0.02 [1/ms] * i * sin(membrane.time)", None, "cannot be transl|time"),
        ("    in [pA]", "", None, "which variable is the current"),
        ("0.1 [1/ms]", "(" * 3000 + "0.1 [1/ms]" + ")" * 3000, None, "nested too deeply"),
        ("    in [mV]", "    in [K]", None, "the voltage is in"),
    ],
)
def test_what_cannot_be_translated_is_refused(old, new, current, message, tmp_path):
    with pytest.raises(InputError, match=message):
        of_text(SCHEME.replace(old, new) if old else SCHEME, tmp_path, current)
