"""NMODL imported: each construct beside NEURON, our own export back again, and what is refused."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from channelfit.front.importing import _simulated
from channelfit.front.main import main
from channelfit.model.model_file import build_model, load_model
from channelfit.reading.documents import parse_yaml
from channelfit.reading.errors import InputError
from channelfit.scoring.neuron.importing import (
    EXACT,
    STEPS,
    TOLERANCE,
    Proof,
    prove,
    read_mechanism,
)
from channelfit.scoring.neuron.mechanisms import NeuronUnavailable
from support.json_output import ran, refused
from support.mod_files import MOD, few, of_text

FIXTURES = sorted(MOD.glob("import_*.mod"))
CLOSE = 1e-8


# --- beside NEURON
@pytest.mark.integration
@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
@pytest.mark.usefixtures("compiler")
def test_each_construct_gives_the_current_that_neuron_computes(path: Path) -> None:
    assert proof_of(path.stem).error < CLOSE


@cache
def proof_of(name: str) -> Proof:
    """The proof of a file of the tests, made once."""
    return prove(read_mechanism(MOD / f"{name}.mod", name), _simulated, few())


@pytest.mark.usefixtures("compiler")
def test_a_guard_that_misses_its_singularity_is_told_and_left_out() -> None:
    """As in published sodium channels: `fabs(v/th)` guards 0 mV, and a TABLE hides it."""
    found = proof_of("import_trap")
    (note,) = found.notes
    assert note.startswith("at 0 mV, and there alone, the file's current differs by 7")
    assert found.truth == EXACT
    assert found.table < 1e-3  # of a process of its own: the last run was 3 degrees warmer
    made = read_mechanism(MOD / "import_trap.mod", "trap").imported
    assert "line 37: an `if` gives 1.6 at 0 mV alone, and 6.7" in made.text
    assert " if " not in made.text.split("definitions:")[1].split("parameters:")[0]


@pytest.mark.usefixtures("compiler")
def test_an_exact_truth_decides_where_neurons_integrator_is_the_weak_side() -> None:
    found = proof_of("import_stiff")
    assert found.truth == EXACT
    assert "which decides" in found.notes[0]


@pytest.mark.integration
@pytest.mark.usefixtures("compiler")
def test_what_neuron_does_not_take_from_a_file_is_told(tmp_path: Path) -> None:
    """A PARAMETER ek is the cell's: NEURON runs at -77 mV, or at what ki and ko give."""
    said = {**SAID, "parameter": "ek = -90 (mV)"}
    plain = CHANNEL.format(**said).replace("v (mV) ek (mV)", "v (mV)")
    mechanism = of_text(plain, tmp_path)
    text = mechanism.imported.text
    assert "NEURON does not take -90 from the file's PARAMETER block" in text
    assert "value: -77, input: ek" in text
    proof = prove(mechanism, _simulated, few())
    assert proof.error < CLOSE
    assert proof.notes == ()
    given = mechanism.imported.names["ek"]
    believed = replace(mechanism.imported, text=text.replace("-77, input", "-90, input"))
    believed = replace(believed, model=build_model(parse_yaml(believed.text), None))
    assert given.unheard == -90
    wrong = prove(replace(mechanism, imported=believed), _simulated, few())
    assert wrong.error > 0.05
    assert wrong.notes == ("in a cell that does not set it ek is -77, here -90",)


STEPPED = """NEURON { SUFFIX stepped USEION k READ ek WRITE ik RANGE g }
PARAMETER { g = 0.1 (S/cm2) power = 2 }
ASSIGNED { v (mV) ek (mV) ik (mA/cm2) dt (ms) ninf nexp }
STATE { n }
VERBATIM
#include <stdlib.h> /* a header alone does nothing, nor does a text */
static const char rcsid[]="$Id: stepped.mod,v 1.1 $";
ENDVERBATIM
INITIAL {
    n = 0.3
    VERBATIM
    return 0;
    ENDVERBATIM
}
BREAKPOINT { SOLVE states
    ik = g*n^power*(v - ek) }
PROCEDURE states() {
    rates(v)
    n = n + nexp*(ninf - n)
    VERBATIM
    return 0;
    ENDVERBATIM
}
PROCEDURE rates(x) { LOCAL a, b, ntau
    TABLE ninf, nexp DEPEND dt FROM -100 TO 100 WITH 200
    a = 0.01*(x + 40)/(1 - exp(-(x + 40)/10))
    b = 0.125*exp(-(x + 50)/80)
    ntau = 1/(a + b)
    ninf = a*ntau
    nexp = 1 - exp(-dt/ntau)
}
"""


@pytest.mark.integration
@pytest.mark.usefixtures("compiler")
def test_exact_steps_idle_c_and_powers_that_are_parameters_are_read(tmp_path: Path) -> None:
    """As many published potassium channels are written; at -40 mV this one is 0/0."""
    with pytest.raises(InputError, match=r"INITIAL starts n up to .* --start steady"):
        of_text(STEPPED, tmp_path)
    mechanism = of_text(STEPPED, tmp_path, settled=True)
    text = mechanism.imported.text
    assert "the power power of a gate is the number 2" in text
    assert "begin at the steady state, as requested" in text
    proof = prove(mechanism, _simulated, few())
    assert proof.error < CLOSE
    assert proof.truth == STEPS
    assert "gives no number at -40 mV (0/0)" in proof.notes[0]


CODE = ["return 1;", 'return 0; system("true");', "#include <evil.h>", '#include "stdlib.h"', "x;"]
INEXACT = ["nexp*(ninf - n) + 0.01", "dt*(ninf - n)/3", "nexp*n*(ninf - n)"]


@pytest.mark.parametrize("new", [*CODE, *INEXACT])
def test_c_that_does_something_and_a_step_that_is_not_exact_are_refused(new, tmp_path):
    old, told = "return 0;", "VERBATIM: C code"
    if new in INEXACT:
        old, told = "nexp*(ninf - n)", "not the exact one of a gate"
    with pytest.raises(InputError, match=told):
        of_text(STEPPED.replace(old, new), tmp_path, settled=True)


def test_a_reversal_potential_beside_concentrations_is_that_of_nernst(tmp_path: Path) -> None:
    said = {**SAID, "neuron": "USEION k READ ko"}
    made = of_text(CHANNEL.format(**said), tmp_path).imported
    ek = dict(zip(made.model.parameter_names, made.model.values(), strict=True))["ek"]
    # what NEURON 9.0.2 shows in a cell whose mechanism reads ek and ko, at 6.3 degC
    assert ek == pytest.approx(-74.1716725122837, rel=1e-9)


@pytest.mark.integration
@pytest.mark.usefixtures("compiler")
def test_a_wrong_translation_does_not_pass(tmp_path: Path) -> None:
    mechanism = read_mechanism(MOD / "import_gates.mod", "gates")
    other = of_text(mechanism.text.replace("shift = 3", "shift = 3.001"), tmp_path)
    wrong = replace(mechanism, text=other.text.replace("w = u - shift", "w = u - shift + 0.001"))
    assert prove(wrong, _simulated, few()).error > 10 * TOLERANCE


# --- what the model file says
def test_gates_functions_and_temperature_stay_live() -> None:
    made = read_mechanism(MOD / "import_gates.mod", "gates", ("shift", "q10")).imported
    assert made.model.temperature_C == 16
    free = {p.name: p for p in made.model.parameters if not p.fixed}
    assert set(free) == {"gnabar", "shift", "q10"}
    assert free["gnabar"].scale == free["q10"].scale == "log"
    assert (free["shift"].lower, free["shift"].upper) == (-27, 33)
    assert all(p.lower < p.value < p.upper for p in free.values())
    assert " if " not in made.text.split("definitions:")[1]  # the guard is gone
    assert made.largest == ("gnabar",)
    assert "celsius" in made.text
    assert {chain.name: chain.power for chain in made.model.chains} == {"m": 3, "h": 1}


# --- what is refused
CHANNEL = """NEURON {{ SUFFIX x  USEION k READ ek WRITE ik  RANGE g {neuron} }}
PARAMETER {{ g = 0.1 (S/cm2) {parameter} }}
ASSIGNED {{ v (mV) ek (mV) ik (mA/cm2) w }}
STATE {{ n }}
INITIAL {{ {initial} }}
BREAKPOINT {{
    SOLVE s METHOD cnexp
    {breakpoint}
}}
DERIVATIVE s {{
    {derivative}
}}
{more}
"""
SAID = {
    "neuron": "",
    "parameter": "",
    "initial": "n = 1/(1 + exp(-v/9))",
    "breakpoint": "ik = g*n*(v - ek)",
    "derivative": "n' = (1/(1 + exp(-v/9)) - n)/3",
    "more": "",
}
REFUSED = {
    "c code": ({"more": 'VERBATIM\nsystem("true");\nENDVERBATIM'}, r"line 13: VERBATIM: C code"),
    "another file": ({"more": 'INCLUDE "/etc/passwd"'}, r"line 13: INCLUDE: another file"),
    "a pointer": ({"neuron": "POINTER p"}, r"line 1: POINTER"),
    "events": ({"more": "NET_RECEIVE (w) { n = 0 }"}, r"line 13: NET_RECEIVE"),
    "a loop without end": ({"more": "PROCEDURE f() { while (1) { w = 1 } }"}, r"line 13: while"),
    "calcium that moves": ({"neuron": "USEION ca WRITE cai"}, r"cai, a concentration, is written"),
    "a current of others": ({"neuron": "USEION ca READ ica"}, r"ica is read, a current of other"),
    "no steady start": ({"initial": "n = 0.2"}, r"line 11: INITIAL starts n up to 0.8 from its st"),
    "a start from nothing": (
        {"initial": "n = w"},
        r"line 11: INITIAL starts n from w, to which it gives no value; --start steady lets n",
    ),
    "what is not linear": ({"derivative": "n' = 0.1 - n*n"}, r"n' is not linear in n"),
    "what is not declared": ({"derivative": "n' = (other - n)/3"}, r"line 11: other is not decla"),
    "a current that is no product": (
        {"breakpoint": "ik = g*n/(1 + n)*(v - ek)"},
        r"ik is no sum of products of its states",
    ),
    "an endless recursion": (
        {"derivative": "n' = (f(v) - n)/3", "more": "FUNCTION f(x) { f = f(x - 1) }"},
        r"calls itself",
    ),
    "a loop that takes forever": (
        {"derivative": "FROM i = 0 TO 999999999 { w = i }\n n' = (w - n)/3"},
        r"more than \d+ statements",
    ),
    "an empty loop that takes forever": (
        {"derivative": "FROM i = 0 TO 1000000000 { }\n n' = (w - n)/3"},
        r"line 11: more than \d+ statements",
    ),
    "a table that fills the memory": (
        {"more": "PROCEDURE f(v) { TABLE w FROM -9 TO 9 WITH 2000000000\n w = v }"},
        r"line 13: a TABLE WITH 2000000000; one has at most 100,000 rows",
    ),
    "an array that fills the memory": (
        {"parameter": "q[2000000000]"},
        r"line 2: an array of 2000000000; one has 1 to 64 elements",
    ),
    "text in quotes": ({"more": 'PROCEDURE f() { printf("%s") }'}, r"line 13: a text in quotes"),
    "too long": ({"more": "n" * 300_000}, r"given.mod: 300\d\d\d bytes; a mechanism has at most"),
    "an unfinished comment": ({"more": "COMMENT\nVERBATIM"}, r"line 13: a COMMENT that has no END"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_translated_is_refused_by_name_and_line(case: str, tmp_path: Path) -> None:
    said, message = REFUSED[case]
    with pytest.raises(InputError, match=message) as caught:
        of_text(CHANNEL.format(**{**SAID, **said}), tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "given.mod"))


def test_a_state_may_have_a_tolerance_which_is_no_length(tmp_path: Path) -> None:
    text = CHANNEL.format(**SAID).replace("STATE { n }", "STATE { n <1e-4> z[2] }")
    plain = of_text(CHANNEL.format(**SAID), tmp_path).imported.text
    assert of_text(text, tmp_path).imported.text == plain


@pytest.mark.parametrize(
    "nested",
    ["(" * 5000 + "v" + ")" * 5000, "-" * 20000 + "v", "!" * 400 + "v", "^v" * 3000, "+v" * 3000],
)
def test_deep_nesting_is_refused_before_the_parser_takes_minutes(nested, tmp_path, monkeypatch):
    monkeypatch.setattr("channelfit.scoring.neuron.importing.parse_nmodl", pytest.fail)
    said = {**SAID, "derivative": f"n' = (v{nested} - n)/3"}
    with pytest.raises(InputError, match="line 11: nested too deeply"):
        of_text(CHANNEL.format(**said), tmp_path)


@pytest.mark.parametrize(
    "title",
    [
        "<script>alert(1)</script>",
        "' : }\nNEURON {",
        "$(touch /tmp/x) `id` \\ # {a: b}",
        "\x1b[31m \xe9\xff",
        "a'b\"c: d",
    ],
)
def test_hostile_titles_come_out_inert(title: str, tmp_path: Path) -> None:
    text = "TITLE " + title.replace("\n", " ") + "\n" + CHANNEL.format(**SAID)
    made = of_text(text, tmp_path).imported
    (tmp_path / "out.yaml").write_text(made.text, encoding="utf-8")
    model = load_model(tmp_path / "out.yaml")
    assert model.parameter_names == ("ek", "g")
    assert made.text.isascii()
    assert "\x1b" not in made.text


# --- the command
@pytest.mark.integration
@pytest.mark.usefixtures("compiler")
def test_the_command_proves_and_writes_a_model_that_other_commands_take(tmp_path: Path) -> None:
    file, out = MOD / "import_coupled.mod", tmp_path / "coupled.yaml"
    assert "agrees with the original" in ran("import", file, "--out", out).output
    text = out.read_text(encoding="utf-8")
    assert hashlib.sha256(file.read_bytes()).hexdigest() in text
    assert "Compared with the original" in text
    ran("show", out)
    assert "is there already" in refused("import", file, "--out", out).output


@pytest.mark.integration
@pytest.mark.usefixtures("compiler")
def test_a_failed_proof_writes_nothing_unless_asked(tmp_path, monkeypatch):
    work = "channelfit.front.importing"
    monkeypatch.setattr(f"{work}._simulated", lambda m, p: 1.001 * _simulated(m, p))
    out = tmp_path / "kept.yaml"
    command = ["import", str(MOD / "import_kept.mod"), "--out", str(out)]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 1
    assert "DIFFERS" in done.output
    assert not out.exists()
    ran(*command, "--unproven")
    assert out.exists()


def test_without_a_compiler_it_warns_that_nothing_is_proven(tmp_path, monkeypatch):
    def absent() -> str:
        raise NeuronUnavailable("nrnivmodl is not here")

    monkeypatch.setattr("channelfit.scoring.neuron.mechanisms.find_nrnivmodl", absent)
    out = tmp_path / "kept.yaml"
    done = ran("import", MOD / "import_kept.mod", "--out", out)
    assert "not proven: nrnivmodl is not here" in done.output
    assert "Not proven" in out.read_text(encoding="utf-8")


def test_c_code_is_refused_before_anything_is_compiled(tmp_path, monkeypatch):
    def never(*given: object) -> None:
        raise AssertionError("the parser or the compiler was asked")

    monkeypatch.setattr("channelfit.scoring.neuron.importing.parse_nmodl", never)
    monkeypatch.setattr("channelfit.front.importing.prove", never)
    for text in ("VERBATIM\nx();\nENDVERBATIM", 'INCLUDE "x.inc"'):
        path = tmp_path / "bad.mod"
        path.write_text(CHANNEL.format(**{**SAID, "more": text}), encoding="utf-8")
        assert "line 13" in refused("import", path, "--unproven").output
