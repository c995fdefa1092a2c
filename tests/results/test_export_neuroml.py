"""NeuroML files: their currents by a reader of their own, NeuroML's schema, what is refused."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from channelfit.model.model_file import build_model
from channelfit.reading.errors import InputError
from channelfit.results.export.kinds import exported
from channelfit.results.export.nmodl import ExportSettings
from channelfit.results.export.subject import Subject, read_subject
from support.exports import MODELS, WHOLE_CELL, exports, of, simulated, steps, subject
from support.lems import Channels
from support.places import ROOT
from support.term_models import DOCUMENTS, document
from support.truths import slow_but

#: Open states of two conductances.
REFUSED = {"hcn2_golgi": "open states of several conductances .1, 2 in scheme"}
CLAMP = Path(__file__).parent.parent / "support" / "clamp.lems.xml"


def written(found: Subject, settings: ExportSettings = WHOLE_CELL) -> str:
    return exported(found, "neuroml", settings)


def by_reader(found: Subject, text: str) -> np.ndarray:
    return Channels(text, found.temperature_C).current(steps())


@pytest.mark.parametrize("name", slow_but(["na_hh"], sorted(set(MODELS) - set(REFUSED))))
def test_the_file_carries_the_models_current(name: str) -> None:
    found = subject(name)
    text = written(found)
    own = exports.ours(MODELS[name], steps())
    assert exports.apart(by_reader(found, text), own) < 1e-9


@pytest.mark.parametrize("name", slow_but(["scheme times gate"], sorted(DOCUMENTS)))
def test_currents_of_any_terms_or_a_refusal_by_name(name: str) -> None:
    data = document(name)
    model = build_model(data, None)
    bent = any(t.rectification is not None for t in model.terms)
    if any(t.ion is not None for t in model.terms):
        with pytest.raises(InputError, match="NeuroML cannot express a current after Goldman"):
            written(of(data))
    elif bent and not model.relaxes:
        with pytest.raises(InputError, match="is rectified|of several conductances"):
            written(of(data))
    else:
        own = simulated(model, model.values(), steps())
        assert exports.apart(by_reader(of(data), written(of(data))), own) < 1e-9


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_said_is_refused_by_name(name: str) -> None:
    with pytest.raises(InputError, match=REFUSED[name]):
        written(subject(name))


def test_rates_that_follow_a_ligand_are_refused() -> None:
    receptor = read_subject(ROOT / "models" / "published" / "ampa5.yaml")
    with pytest.raises(InputError, match="rates that follow a ligand of the cell .glutamate"):
        written(receptor)


def test_rates_are_written_in_neuromls_own_forms_where_they_have_them() -> None:
    text = written(subject("na_hh"), ExportSettings(("na",), "nav", 20.0))
    assert 'type="HHExpLinearRate" rate="1per_ms" midpoint="-40mV" scale="10mV"' in text
    assert 'type="HHExpRate" rate="4per_ms" midpoint="-65mV" scale="-18mV"' in text
    assert 'type="HHSigmoidRate" rate="1per_ms" midpoint="-35mV" scale="10mV"' in text
    assert "ComponentType" not in text
    assert '<ionChannelHH id="nav" species="na" conductance="50nS">' in text
    assert 'condDensity="0.0025S_per_cm2" erev="50mV" ion="na"' in text
    # of a cell of unknown size there are the channels alone
    assert "<cell" not in written(subject("na_hh"), ExportSettings())


def test_bounds_and_temperatures_are_kept() -> None:
    data = {
        "name": "bounded",
        "temperature": "32 degC",
        "gates": {
            "n": {"alpha": "max(a*exp(v/20), 0.1)", "beta": "0.2 if v > -20 and v < 10 else b"}
        },
        "parameters": {
            "a": {"range": [0.1, 1], "value": 0.3, "unit": "1/ms"},
            "b": {"range": [0.01, 1], "value": 0.05, "unit": "1/ms"},
            "g": {"range": [1, 9], "value": 3, "unit": "nS"},
        },
        "current": {"conductance": "g*1.5**((celsius - 22)/10)", "reversal": "-80 mV"},
    }
    model = build_model(data, None)
    text = written(of(data))
    assert "HHExpRate" not in text
    own = simulated(model, model.values(), steps())
    assert exports.apart(by_reader(of(data), text), own) < 1e-9
    warmer = Channels(text, 42.0).current(steps())
    assert exports.apart(warmer, 1.5 * own) < 1e-9


@pytest.mark.integration
def test_the_schema_of_neuroml_accepts_all_files() -> None:
    neuroml = pytest.importorskip("neuroml", reason="libneuroml, which has the schema")
    etree = pytest.importorskip("lxml.etree")
    file = Path(neuroml.__file__).parent / "nml" / "NeuroML_v2.3.1.xsd"
    schema = etree.XMLSchema(etree.parse(str(file)))
    for name in set(MODELS) - set(REFUSED):
        text = written(subject(name))
        schema.assertValid(etree.fromstring(text.encode()))


@pytest.mark.integration
@pytest.mark.parametrize("name", ["na_hh", "model_b", "cav31_anwar"])
def test_jneuroml_runs_the_file(name: str, tmp_path: Path) -> None:
    """The simulator of NeuroML itself, whose error is that of its step of 1 us."""
    pyneuroml = pytest.importorskip("pyneuroml", reason="pyneuroml, which has jNeuroML")
    if shutil.which("java") is None:
        pytest.skip("needs java")
    jar = next(Path(pyneuroml.__file__).parent.glob("lib/jNeuroML*.jar"))
    found = subject(name)
    (tmp_path / "channel.nml").write_text(written(found))
    kelvin = f'type="networkWithTemperature" temperature="{found.temperature_C or 0:g}degC"'
    reversals = Channels(written(found), None).reversals
    populations = "".join(
        f'<channelPopulation id="{n}_" ionChannel="{n}" number="1" erev="{e}mV" ion="x"/>'
        for n, e in reversals.items()
    )
    text = CLAMP.read_text().replace("<!--populations-->", populations)
    (tmp_path / "clamp.xml").write_text(text.replace('type="network"', kelvin))
    call = ["java", "-Xmx400M", "-jar", str(jar), "clamp.xml", "-nogui"]
    subprocess.run(call, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    table = np.loadtxt(tmp_path / "current.dat")
    module: dict[str, Any] = {}
    exec(exported(found, "python", ExportSettings()), module)
    times, own = module["simulate"]([(-100.0, 2.0), (0.0, 5.0)], 0.1, -100.0)
    apart = -1e12 * np.interp(times, 1e3 * table[:, 0], table[:, 1]) - own
    apart = apart[np.abs(np.array(times) - 2) > 0.05]
    assert np.abs(apart).max() < 0.02 * np.abs(own).max()
