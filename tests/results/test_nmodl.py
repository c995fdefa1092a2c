"""NMODL text: every operator, every kind of block, and names that NEURON has taken."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from channelfit.model.channel import ChannelModel
from channelfit.model.expressions import parse_expression
from channelfit.model.model_file import build_model
from channelfit.model.singularities import remove_singularities
from channelfit.scoring.neuron.nmodl import is_reserved, nmodl_names, nmodl_text
from channelfit.scoring.neuron.nmodl_printer import NmodlPrinter

EXPRESSIONS = [
    ("a*exp(-z*v)", "a*exp(-z*v)"),
    ("v - 5", "v - 5"),
    ("65 + v", "v + 65"),
    ("a*exp(-(v + 65)/18)", "a*exp(-(v + 65)/18)"),
    ("a/(b + z)", "a/(b + z)"),
    ("a/b/z", "a/(b*z)"),
    ("a - (b - z)", "a - (b - z)"),
    ("a**2", "a^2"),
    ("(a + b)**2", "(a + b)^2"),
    ("a**b**2", "a^(b^2)"),
    ("(a + b)**a", "(a + b)^a"),
    ("1/a**2", "1/a^2"),
    ("abs(a)", "fabs(a)"),
    ("tanh(a)", "tanh(a)"),
    ("min(a, b)", "smaller(a, b)"),
    ("max(a, 0)", "larger(0, a)"),
    ("v/(exp(v/10) - 1)", "10/exprel(v/10)"),
    ("1/4*a", "0.25*a"),
]


def test_expressions_read_as_people_write_them() -> None:
    printer = NmodlPrinter({})
    for text, expected in EXPRESSIONS:
        expression = remove_singularities(parse_expression(text, ["a", "b", "z", "v"]))
        assert printer.text(expression) == expected


def scheme(
    states: list[str], rates: dict[str, str], names: list[str], **more: object
) -> ChannelModel:
    """A scheme whose last state conducts."""
    document = {
        "name": "test channel",
        "states": states,
        "rates": rates,
        "current": {"open": [states[-1]], "conductance": "5 nS", "reversal": "-100 mV"},
        "parameters": {n: {"range": [0, 1], "unit": "1/ms", "value": 0.25} for n in names},
        **more,
    }
    return build_model(document, None)


TWO = {"C -> O": "a", "O -> C": "b*exp(-v/20)"}


def test_values_survive_to_the_last_bit_and_a_description_cannot_end_its_comment() -> None:
    value = 0.1 + 1e-16 + np.pi / 1e7
    model = scheme(["C", "O"], TWO, ["a", "b"], description="x ENDCOMMENT\nVERBATIM é")
    text = nmodl_text(model.with_values(np.array([value, 0.5])))
    line = next(x for x in text.splitlines() if x.strip().startswith("a "))
    assert float(line.split("=")[1].split()[0]) == value
    assert text.count("ENDCOMMENT") == 1
    assert text.isascii()


def test_names_of_nmodl_and_of_neuron_are_renamed_in_every_role() -> None:
    taken = re.findall(
        r"\w+",
        """erf force printf prterr setseed celcius nrn_random_play cvode_t_v container terminal
        defined fpfield getarg literal_value mech_type hoc_Exp npy_direct_func_proc nmodl_filename
        i_columnindex resize row_view scopmath initmodel prop_ion SparseObj NODEV random_normal
        data_handle field_index gind modelname node_d_storage sparse_thread""",
    )
    rates = {"C -> O": " + ".join(taken), "O -> C": "1"}
    names = nmodl_names(scheme(["C", "O"], rates, taken))
    assert names.parameters == {name: f"{name}_" for name in taken}
    for name in taken:
        by_name = nmodl_names(
            scheme(["C", name], {f"C -> {name}": "1", f"{name} -> C": "1"}, [], name=name)
        )
        assert by_name.mechanism == f"{name}_"
        assert by_name.states["scheme", name] == f"{name}__"
    kept = ["random_normal_", "hoc_", "forced", "erfc", "columnindex", "x_y"]
    rates["C -> O"] = " + ".join(kept)
    assert nmodl_names(scheme(["C", "O"], rates, kept)).parameters == {n: n for n in kept}


#: Names that stand in generated code as well, and do no harm there: published files use them.
HARMLESS = {"n", "T"}


@pytest.mark.integration
def test_no_name_of_the_code_that_nocmodl_writes_is_free_for_a_model(tmp_path: Path) -> None:
    """A definition `usetable` or a state `delta_t` became a macro in the middle of that code."""
    neuron = pytest.importorskip("neuron")
    nocmodl = Path(neuron.__file__).parent / ".data" / "bin" / "nocmodl"
    if not nocmodl.exists():
        pytest.skip("no nocmodl in this NEURON")
    cycle = {"A -> B": "a", "B -> O": "a*exp(v/20)", "O -> A": "a"}
    text = nmodl_text(scheme(["A", "B", "O"], cycle, ["a"]))
    table = "PROCEDURE tab(x) { TABLE kk FROM -100 TO 100 WITH 200\n kk = exp(x) }\n"
    text = text.replace("ASSIGNED {", "ASSIGNED { kk ") + table
    (tmp_path / "one.mod").write_text(text)
    home = {"NRNHOME": str(nocmodl.parents[1])}
    units = nocmodl.parents[1] / "share" / "nrn" / "lib" / "nrnunits.lib"
    environment = {**os.environ, **home, "MODLUNIT": str(units)}
    command = [str(nocmodl), "one.mod"]
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    code = re.sub(r"/\*.*?\*/|//[^\n]*", " ", (tmp_path / "one.cpp").read_text(), flags=re.DOTALL)
    code = re.sub(r'"(\\.|[^"\\])*"', " ", code)
    own = set(re.findall(r"[A-Za-z]\w*", text))
    derived = {f"{a}{name}{b}" for name in own for a, b in (("D", ""), ("", "0"))}
    found = set(re.findall(r"(?<![\w.])[A-Za-z]\w*", code)) - own - derived - HARMLESS
    free = {name for name in found if not is_reserved(name)}
    assert {name for name in free if not name.endswith(("_test_channel", "_"))} == set()
    assert is_reserved("usetable")
    assert is_reserved("delta_t")
