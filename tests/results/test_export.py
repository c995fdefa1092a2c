"""Exported channels as text: what stands in them, what is refused, hostile names."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

import channelfit as cf
from channelfit.front.main import main
from channelfit.model.evaluation import evaluate
from channelfit.model.expressions import parse_expression
from channelfit.model.model_file import build_model
from channelfit.problem.protocol import Protocol
from channelfit.reading.documents import dump_yaml, read_json
from channelfit.reading.errors import InputError
from channelfit.results.export.kinds import KINDS, exported
from channelfit.results.export.nmodl import ExportSettings
from channelfit.results.export.subject import Subject, read_subject, subject_of
from support.exports import MODELS, WHOLE_CELL, exports, of, simulated, steps, subject
from support.places import ROOT
from support.term_models import DOCUMENTS, document
from support.truths import slow_but

QUICK = ["na_hh", "herg_markov", "hcn2_golgi", "cav31_anwar"]
HOSTILE = (
    'x </script><script>alert(1)</script> "\'""" $(touch owned) `id` ENDCOMMENT VERBATIM '
    "\\end{document}\\input{/etc/passwd} %n \u202e\u2066 \x1b[31m #{} ${HOME} \n}\n"
    "import os\n[[script]]"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder: a short fit to a recording in a CSV file, with a summary and intervals."""
    folder = tmp_path_factory.mktemp("export")
    protocol = cf.Protocol.load(ROOT / "protocols" / "activation.yaml")
    shutil.copy(ROOT / "protocols" / "activation.yaml", folder / "steps.yaml")
    truth = cf.simulate(ROOT / "models" / "model_a.yaml", protocol)
    noise = np.random.default_rng(1).normal(0, 3, truth.current.shape)
    table = np.column_stack([truth.time, (truth.current + noise).T])
    np.savetxt(folder / "cell.csv", table, delimiter=",", header="t," + ",".join("abcdefghijklm"))
    text = (folder / "cell.csv").read_text().removeprefix("# ")
    (folder / "cell.csv").write_text(text)
    model = cf.Model.load(ROOT / "models" / "model_a.yaml").document
    model["fit"] = {
        "experiments": [
            {
                "protocol": "steps.yaml",
                "recording": {
                    "file": "cell.csv",
                    "time": {"column": "t", "unit": "ms"},
                    "current": {"columns": "all", "unit": "pA"},
                },
            }
        ],
        "start": "values",
        "stop": {"generations": 5},
        "seed": 7,
    }
    (folder / "fit_me.yaml").write_text(dump_yaml(model))
    cf.fit(folder / "fit_me.yaml", progress=False).save(folder / "run")
    return folder / "run"


def test_the_density_is_the_fitted_conductance_over_the_area() -> None:
    text = exported(subject("na_hh"), "nmodl", WHOLE_CELL)  # 50 nS in 20 pF: 50e-9 S on 2e-5 cm2
    assert re.search(r"gbar = 0\.0025 +\(S/cm2\)", text)
    assert "NONSPECIFIC_CURRENT i\n" in text
    assert re.search(r"\n    e    = 50 +\(mV\)", text)
    assert "gmax" not in text.split("ENDCOMMENT")[2].replace("from gmax", "")


def test_the_size_of_the_cell_is_known_from_model_recording_or_clamp() -> None:
    rate = {"range": [0, 1], "unit": "1/ms", "value": 0.5}
    cm = {"range": [1, 50], "unit": "pF", "value": 10, "fixed": True}
    channel: dict[str, Any] = {
        "name": "c",
        "states": ["C", "O"],
        "rates": {"C -> O": "a", "O -> C": "a"},
        "parameters": {"a": rate, "cm": cm},
    }
    current = {"open": ["O"], "conductance": "50 nS", "reversal": "0 mV"}
    recording = {"recording": {"current": {"capacitance": "20 pF"}}}
    for more, fit in (
        ({"capacitance": "20 pF", "conductance": "2.5 mS/uF"}, {}),
        ({"area": "2000 um2", "conductance": "2.5 mS/cm2"}, {}),
        ({}, {"clamp": {"membrane_capacitance": "20 pF"}}),
        ({}, {"clamp": {"membrane_capacitance": "2*cm"}}),
        ({}, {"experiments": [recording]}),
    ):
        data = channel | {"current": current | more} | ({"fit": fit} if fit else {})
        found = re.search(r"gbar = (\S+)", exported(of(data), "nmodl", ExportSettings()))
        assert found is not None
        assert float(found[1]) == pytest.approx(0.0025, rel=1e-12)


def test_a_cell_of_unknown_or_contradictory_size_is_refused() -> None:
    with pytest.raises(InputError, match="--capacitance 20.*--point-process"):
        exported(subject("na_hh"), "nmodl", ExportSettings())
    data = document("rectified gates")
    data["current"] |= {"capacitance": "20 pF", "conductance": "1 mS/uF"}
    del data["parameters"]["g"]
    data["fit"] = {"clamp": {"membrane_capacitance": "30 pF"}}
    with pytest.raises(InputError, match="the size of the cell is not one: .*20 pF.*30 pF"):
        exported(of(data), "nmodl", ExportSettings())
    text = exported(of(data), "nmodl", ExportSettings(capacitance_pF=25.0))
    # 1 mS/uF is 20 nS in the model's 20 pF, and 20 nS on 2500 um2 are 0.0008 S/cm2
    assert re.search(r"gbar += 0\.0008 ", text)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="above 0 pF"):
            exported(subject("na_hh"), "nmodl", ExportSettings(capacitance_pF=wrong))


def test_an_ion_decides_on_the_reversal_and_the_header_tells_the_models_own() -> None:
    text = exported(subject("na_hh"), "nmodl", replace(WHOLE_CELL, ions=("na",), suffix="na1"))
    assert "    SUFFIX na1\n    USEION na READ ena WRITE ina\n" in text
    assert "    g = gbar*m^3*h\n    ina = g*(v - ena)\n" in text
    assert "NONSPECIFIC_CURRENT" not in text
    assert "model's own reversal potential was 50 mV" in " ".join(text.split())
    own = exported(subject("na_squid"), "nmodl", replace(WHOLE_CELL, ions=("na",)))
    assert "ena  =" not in own[own.index("PARAMETER") : own.index("ASSIGNED")]
    free = exported(subject("na_squid"), "nmodl", WHOLE_CELL)
    assert re.search(r"\n    ena  = 50 +\(mV\)", free)
    assert "(v - ena)" in free


def test_a_permeability_takes_the_ions_concentrations() -> None:
    text = exported(of(document("calcium")), "nmodl", replace(WHOLE_CELL, ions=("ca",)))
    assert "USEION ca READ cai, cao WRITE ica" in text
    assert "ica = p*ghk(v, cai, cao, 2, " in text
    assert "0.0005 mM inside and 2 mM outside" in " ".join(text.split())
    unspecific = exported(of(document("calcium")), "nmodl", WHOLE_CELL)
    assert "ghk(v, ci, 2, 2, " in unspecific
    assert re.search(r"pbar = 1e-05 +\(cm/s\)", unspecific)  # 0.2 um3/ms on 2000 um2
    v, ci, co, z, rtf = -17.0, 0.0005, 2.0, 2, 25.4  # the lines of ghk are Python, too
    names = {"v": v, "ci": ci, "co": co, "z": z, "rtf": rtf, "exprel": lambda x: np.expm1(x) / x}
    exec(textwrap.dedent(text.split("LOCAL u\n")[1].split("\n}")[0]), names)
    ratio = np.exp(-z * v / rtf)
    flux = z * v / rtf * (ci - co * ratio) / (1 - ratio)
    assert names["ghk"] == pytest.approx(0.001 * z * 96485.33212 * flux, rel=1e-12)
    several = exported(of(document("sum of all")), "nmodl", replace(WHOLE_CELL, ions=("k=k",)))
    assert "USEION k READ ek WRITE ik" in several
    assert "NONSPECIFIC_CURRENT" in several
    assert "i_leak = g_leak*(v - el)" in several


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("na_hh", {"ions": ("Na+",)}, "is no name of an ion"),
        ("na_hh", {"ions": ("na", "k")}, "two ions"),
        ("na_hh", {"suffix": "hh"}, "mechanism of its own that is called hh"),
        ("na_hh", {"suffix": "x{}\nVERBATIM"}, "cannot name a mechanism"),
        ("cav31_anwar", {"ions": ("ca",)}, "depend on cai, cao"),
        ("calcium", {"ions": ("k",)}, "charge of 1, that of the model 2"),
        ("sum of all", {"ions": ("k",)}, "several currents .* say which"),
    ],
)
def test_settings_that_cannot_be_are_refused(name, given, message):
    found = of(document(name)) if name in DOCUMENTS else subject(name)
    with pytest.raises(InputError, match=message):
        exported(found, "nmodl", replace(WHOLE_CELL, **given))


def test_a_scheme_with_cycles_starts_by_state_reduction() -> None:
    """CoreNEURON takes no LINEAR block beside a KINETIC one: both would define its solver."""
    text = exported(subject("nav16_raman_bean"), "nmodl", WHOLE_CELL)
    assert "LINEAR" not in text
    assert "STEADYSTATE" not in text
    initial = text[text.index("INITIAL {") :].split("}")[0]
    assert ": the rest by state reduction" in initial


def test_arbor_may_have_what_neuron_assigns() -> None:
    """Its compiler refuses v, and what is of an ion, as ASSIGNED, and celsius in a PROCEDURE."""
    for name, ion in (("hcn2_golgi", "k"), ("na_squid", "na")):
        text = exported(subject(name), "nmodl", replace(WHOLE_CELL, ions=(ion,)))
        assigned = text[text.index("ASSIGNED {") :].split("}")[0].split()
        assert not {"v", f"e{ion}", f"i{ion}", "celsius"} & set(assigned)
        assert "PROCEDURE rates(v (mV), celsius (degC)) {" in text
        assert "rates(v, celsius)" in text


def test_a_fit_tells_data_hash_protocol_error_seed_version_and_intervals(run: Path) -> None:
    import hashlib

    summary = json.loads((run / "summary.json").read_text())
    told = " ".join(exported(read_subject(run), "nmodl", WHOLE_CELL).split())
    digest = hashlib.sha256((run.parent / "cell.csv").read_bytes()).hexdigest()
    for part in (
        digest,
        "cell.csv",
        "activation",
        f"{summary['rms_pA']:.4g} pA",
        "seed 7",
        cf.__version__,
        summary["finished"][:10],
        "Ben-Shalom et al. 2012",
    ):
        assert part in told
    low, high = summary["parameters"]["a12"]["interval"]
    assert f"95 % {low:.5g} to {high:.5g}" in told
    low, high = (5e-5 * x for x in summary["parameters"]["gmax"]["interval"])
    assert f"from gmax, 95 % {low:.5g} to {high:.5g}" in told
    found = read_subject(run / "fit.yaml")  # and every other language tells them
    low, high = summary["parameters"]["a12"]["interval"]
    assert f"95 % interval {low:.5g} to" in exported(found, "myokit", ExportSettings())
    assert f"95 % {low:.5g} to" in exported(found, "python", ExportSettings())
    assert f"{low:.4g}" in exported(found, "latex", ExportSettings())
    data = json.loads(exported(found, "json", ExportSettings()))
    assert data["parameters"]["a12"]["interval_95"] == [low, high]
    assert data["provenance"]["data"][0]["sha256"]


def test_a_fit_changed_by_hand_has_no_intervals(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    file = tmp_path / "run" / "fit.yaml"
    text = re.sub(r"(gmax:(?s:.*?)value: )[\d.e+-]+", r"\g<1>4.0", file.read_text(), count=1)
    assert text != file.read_text()
    file.write_text(text)
    found = read_subject(tmp_path / "run")
    assert all(known.interval is None for known in found.known.values())
    assert "no fit stands beside it" in " ".join(exported(found, "nmodl", WHOLE_CELL).split())


def test_a_fit_exports_itself_by_the_ending_of_the_file(run: Path, tmp_path: Path) -> None:
    fit = cf.load(run)
    for kind, (ending, _) in KINDS.items():
        settings: dict[str, Any] = {"capacitance": 20.0} if kind in ("nmodl", "jaxley") else {}
        settings |= {"ion": "k"} if kind == "nmodl" else {}
        place = fit.export(tmp_path / f"a{ending}", **settings)
        ions = ("k",) if "ion" in settings else ()
        given = ExportSettings(ions, None, settings.get("capacitance"))
        wanted = exported(read_subject(run), kind, given)
        assert _without_paths(place.read_text()) == _without_paths(wanted)
    with pytest.raises(InputError, match="exists already"):
        fit.export(tmp_path / "a.mmt")
    fit.export(tmp_path / "a.mmt", overwrite=True)
    with pytest.raises(InputError, match=r"\.mod \(nmodl\)"):
        fit.export(tmp_path / "a.txt")


def _without_paths(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"\S*(cell\.csv|steps\.yaml)", r"\1", text))


def test_a_parameter_per_cell_asks_for_the_cell() -> None:
    file = ROOT / "models" / "fits" / "nav_iv_two_clamps.yaml"
    with pytest.raises(InputError, match="--cell NAME. Known: 0CP, 80CP"):
        read_subject(file)
    with pytest.raises(InputError, match='no cell "x"'):
        read_subject(file, cell="x")
    assert read_subject(file, cell="0CP").values["dv"] == -11.6
    assert "those of the cell 0CP" in exported(
        read_subject(file, cell="0CP"), "nmodl", ExportSettings()
    )
    assert read_subject(file, cell="80CP").values["dv"] == 0
    # what only the clamp uses is no part of the channel, and tells how large the cell is
    assert "rs" not in read_subject(file, cell="0CP").values
    assert read_subject(file, cell="0CP").membrane().area_um2 == pytest.approx(1780)


def module_of(found: Subject) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(exported(found, "python", ExportSettings()), names)
    return names


def by_module(names: dict[str, Any], protocol: Protocol) -> np.ndarray:
    rows = []
    for sweep in protocol.sweeps:
        pairs = [(s.wave.v_mV, s.end_ms - s.start_ms) for s in sweep]  # type: ignore[union-attr]
        rows.append(names["simulate"](pairs, protocol.sampling_ms, protocol.holding_mV)[1])
    return np.array(rows)


@pytest.mark.parametrize("name", slow_but(QUICK, MODELS))
def test_the_python_module_computes_the_same(name: str) -> None:
    protocol = steps()
    own = exports.ours(MODELS[name], protocol)
    assert exports.apart(by_module(module_of(subject(name)), protocol), own) < 1e-9


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_python_module_computes_currents_of_any_terms(name: str) -> None:
    data = document(name)
    model = build_model(data, None)
    protocol = steps()
    own = simulated(model, model.values(), protocol)
    assert exports.apart(by_module(module_of(of(data)), protocol), own) < 1e-9


def test_the_python_module_takes_other_values_and_needs_math_alone() -> None:
    text = exported(subject("cav31_anwar"), "python", ExportSettings())
    tree = ast.parse(text)
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert [node.module for node in imports if isinstance(node, ast.ImportFrom)] == ["math"]
    assert len(imports) == 1
    names = module_of(subject("cav31_anwar"))
    warm = {**names["PARAMETERS"], "celsius": 24.0}
    data = cf.Model.load(MODELS["cav31_anwar"]).document | {"temperature": "24 degC"}
    model = build_model(data, None)
    pairs = [(-30.0, 20.0)]
    found = np.array([names["simulate"](pairs, 0.5, -90.0, warm)[1]])
    protocol = cf.Protocol.steps(levels=[-30], duration=20, holding=-90, sampling=0.5)
    own = simulated(model, model.values(), protocol)
    assert exports.apart(found, own[:, : found.shape[1]]) < 1e-9


@pytest.mark.parametrize("name", slow_but(QUICK, MODELS))
def test_the_json_holds_everything_and_says_it_in_the_language_of_models(name, tmp_path):
    found = subject(name)
    place = tmp_path / "a.json"
    place.write_text(exported(found, "json", ExportSettings()))
    data = read_json(place)
    assert data["model_file"] == {
        k: v for k, v in cf.Model.load(MODELS[name]).document.items() if k != "fit"
    } | {k: data["model_file"][k] for k in ("description", "source")}
    values = {n: row["value"] for n, row in data["parameters"].items()}
    values |= {"v": -20.0, "celsius": data["temperature_C"] or 0.0}
    scope = [*values, *data["definitions"]]
    for known, text in data["definitions"].items():
        values[known] = evaluate(parse_expression(text, scope), values)
    wanted: dict[str, Any] = {**found.values, "v": -20.0}
    for known, expression in found.channel.definitions:
        wanted[known] = evaluate(expression, wanted)
    for chain, row in zip(found.channel.chains, data["chains"], strict=True):
        index = {state: k for k, state in enumerate(row["states"])}
        for t in chain.transitions:
            text = row["generator"][index[t.target]][index[t.source]]
            rate = evaluate(parse_expression(text, scope), values)
            assert rate == pytest.approx(
                t.multiplicity * float(evaluate(t.rate, wanted)), rel=1e-12
            )


def test_myokit_has_every_function_of_a_model() -> None:
    myokit = pytest.importorskip("myokit")
    rate = "0.3 + tanh(v/17) + exprel(v/9) + abs(v)/40 + sqrt(v*v)/50 + log(2 + v*v/900)"
    rate += " + min(v, 10)/70 + max(v/60, 0) + (0.1 if v < 0 else 0.2)"
    gate = {"alpha": rate, "beta": "exp(-v/80)"}
    current = {"conductance": "10 nS", "reversal": "-80 mV"}
    text = exported(
        of({"name": "all", "gates": {"m": gate}, "current": current}), "myokit", ExportSettings()
    )
    model = myokit.parse_model(text[: text.index("[[protocol]]")])
    for v_mV in (-31.0, -5e-4, 12.0, 45.0):
        model.get("membrane.pace").set_rhs(v_mV)
        expected = float(evaluate(parse_expression(rate, ()), {"v": v_mV}))
        assert model.evaluate_derivatives([0.0]) == pytest.approx([expected], rel=1e-9)


def test_exprel_is_explained_beside_the_formulas_that_use_it() -> None:
    text = exported(subject("cav31_anwar"), "latex", ExportSettings())
    assert r"\operatorname{exprel}(x) &= \frac{e^{x} - 1}{x}" in text
    assert "exprel" not in exported(subject("herg_markov"), "latex", ExportSettings())


@pytest.mark.integration
@pytest.mark.parametrize("name", QUICK)
def test_latex_compiles(name: str, tmp_path: Path) -> None:
    _compile(exported(subject(name), "latex", ExportSettings()), tmp_path)


def _compile(text: str, folder: Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex here")
    (folder / "a.tex").write_text(text)
    command = ["pdflatex", "-no-shell-escape", "-interaction=batchmode", "-halt-on-error", "a.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (folder / "a.log").read_text()[-2000:]


def hostile() -> Subject:
    """A channel in whose every free text is what would break out of each language."""
    data = {
        "name": "gone",
        "description": HOSTILE,
        "source": HOSTILE,
        "states": ["C", "O", "VERBATIM"],
        "rates": {"C -> O": "exec*if_", "O -> C": "END"}
        | dict.fromkeys(("O -> VERBATIM", "VERBATIM -> O"), "dot"),
        "current": {"open": ["O"], "conductance": "simulate", "reversal": "membrane"},
        "parameters": {
            "exec": {"range": [0, 1], "unit": "1/ms", "value": 0.25},
            "if_": {"range": [0, 1], "value": 0.25},
            "END": {"range": [0, 1], "unit": "1/ms", "value": 0.25},
            "dot": {"range": [0, 1], "unit": "1/ms", "value": 0.25},
            "simulate": {"range": [0, 9], "unit": "nS", "value": 5},
            "membrane": {"range": [-90, 0], "unit": "mV", "value": -50},
        },
        "fit": {"experiments": [{"protocol": HOSTILE, "recording": {"file": HOSTILE}}]},
    }
    rows = data["parameters"]
    assert isinstance(rows, dict)
    summary = {
        "parameters": {
            n: {"value": r["value"], "note": HOSTILE, "interval": [HOSTILE, 1]}
            for n, r in rows.items()
        },
        "seed": HOSTILE,
        "optimizer": HOSTILE,
        "finished": HOSTILE,
        "versions": {"channelfit": HOSTILE},
        "experiments": [{"protocol": HOSTILE}],
        "rms_pA": HOSTILE,
    }
    return subject_of(data, Path("x.yaml"), None, summary)


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_texts_are_inert(kind: str, tmp_path: Path) -> None:
    found = hostile()
    assert found.provenance.fitted
    settings = WHOLE_CELL if kind in ("nmodl", "jaxley") else ExportSettings()
    text = exported(found, kind, settings)
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b]", text)
    if kind == "nmodl":
        _, own, code = text.split("ENDCOMMENT")  # at the ends of the header and the metadata
        assert "alert" not in own
        assert text.isascii()
        assert not re.search(r"(?<!_)\bVERBATIM\b", code)
        assert "alert" not in code
    elif kind == "myokit":
        myokit = pytest.importorskip("myokit")
        model = myokit.parse_model(text[: text.index("[[protocol]]")])
        assert [c.name() for c in model.components()] == ["membrane", "gone"]
        assert text.count("\n[[script]]") == 0
    elif kind in ("python", "jaxley"):
        tree = ast.parse(text)
        assert not any(isinstance(n, ast.Import) for n in ast.walk(tree))
        code = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        assert "alert" not in code
        if kind == "jaxley":
            return
        assert len(module_of(found)["simulate"]([(0.0, 1.0)], 0.5)[1]) == 2
    elif kind == "neuroml":
        root = ElementTree.fromstring(text)  # whose texts are inert between its elements
        tags = {e.tag.rpartition("}")[2] for e in root}
        assert tags <= {"notes", "ionChannelKS", "ComponentType"}
        values = [v for e in root.iter() for k, v in e.attrib.items() if k != "description"]
        assert not any("alert" in value for value in values)
    elif kind == "latex":
        assert text.count(r"\end{document}") == 1
        assert r"\input" not in text
        _compile(text, tmp_path)
    else:
        assert text.isascii()
        assert json.loads(text)["provenance"]["source"].startswith("x </script>")


@pytest.mark.integration
def test_hostile_texts_compile_in_neuron() -> None:
    from channelfit.scoring.neuron.mechanisms import NeuronUnavailable, compile_mechanism

    try:
        compile_mechanism(exported(hostile(), "nmodl", WHOLE_CELL))
    except NeuronUnavailable as error:
        pytest.skip(str(error))


def test_the_command_writes_a_file_and_replaces_none(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    model = str(MODELS["na_hh"])
    call = ["export", model, "--to", "nmodl", "--ion", "na", "--capacitance", "20"]
    call += ["--suffix", "na1"]
    done = CliRunner().invoke(main, call)
    assert done.exit_code == 0, done.output
    assert done.output.strip() == "na1.mod"
    assert "SUFFIX na1" in (tmp_path / "na1.mod").read_text()
    again = CliRunner().invoke(main, call)
    assert again.exit_code == 2
    assert "exists already; give --out" in again.output
    by_ending = CliRunner().invoke(main, ["export", model, "--out", "a.mmt"])
    assert by_ending.exit_code == 0
    assert (tmp_path / "a.mmt").read_text().startswith("[[model]]")
    with pytest.raises(InputError, match="a function is no channel"):
        read_subject(ROOT / "models" / "functions" / "sphere.yaml")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "say to what to export"),
        (["--to", "latex", "--ion", "na"], "are NMODL's"),
        (["--to", "latex", "--capacitance", "20"], "is of densities"),
        (["--to", "neuroml", "--point-process"], "is NMODL's"),
        (["--to", "nmodl"], "nothing says how large the cell was"),
    ],
)
def test_the_command_refuses(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["export", str(MODELS["na_hh"]), *options])
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert not list(tmp_path.iterdir())
