"""The pages for users: README.md and docs/*.md. Their links lead somewhere, their files work."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import channelfit
from channelfit.front.kinds import load_plan
from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol, build_protocol
from channelfit.reading.keys import KEYS
from channelfit.scoring.scorer import make_scorer

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "models" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, marker: str = "") -> list[str]:
    """The YAML blocks of a page, or those below a line with that marker."""
    lead = rf"<!-- {marker} -->\n" if marker else ""
    return re.findall(rf"{lead}```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_of_the_repository(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_the_pages_name_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"(?:models|protocols|benchmarks|tests)/[\w/]+\.(?:py|yaml)", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150


def test_models_and_protocols_of_the_page_are_accepted() -> None:
    page = ROOT / "docs" / "models.md"
    models = [build_model(yaml.safe_load(text), None) for text in blocks(page, "model")]
    assert [model.name for model in models] == [
        "three_states",
        "sodium",
        "rectified_calcium",
        "outward_currents",
    ]
    (protocol,) = (build_protocol(yaml.safe_load(text), None) for text in blocks(page, "protocol"))
    assert protocol.n_sweeps == 13


def test_every_key_of_a_file_is_explained() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    sections = set(KEYS) - {"printed file", "printed model", "printed parameter"}
    keys = {key for name in sections if "function" not in name for key in KEYS[name]}
    assert sorted(key for key in keys if not re.search(rf"\b{key}\b", text)) == []


def test_the_fit_with_a_clamp_is_accepted_and_scored(tmp_path: Path) -> None:
    (fit,) = blocks(ROOT / "docs" / "clamp.md")
    (tmp_path / "na_hh.yaml").write_bytes((ROOT / "models" / "na_hh.yaml").read_bytes())
    Protocol.steps([-20, 20], duration=2, holding=-100, sampling=0.05).save(
        tmp_path / "na_steps.yaml"
    )
    (tmp_path / "fit.yaml").write_text(fit)
    plan = load_plan(tmp_path / "fit.yaml", (), "cpu")
    values = plan.problem.model.values()[:, None]
    score = make_scorer(plan.problem, "cpu").score(values)
    assert score.cost[0] == pytest.approx(25, rel=0.5)


def test_the_first_own_fit_of_the_readme_runs(tmp_path: Path) -> None:
    """The two files of README.md, with the protocol and the recording that they name."""
    model, fit = blocks(ROOT / "README.md")
    (tmp_path / "my_channel.yaml").write_text(model)
    (tmp_path / "my_cell.yaml").write_text(fit)
    protocol = {
        "holding": "-100 mV",
        "sampling": "0.2 ms",
        "segments": [
            {"hold": "5 ms"},
            {"step": {"from": "-40 mV", "to": "40 mV", "by": "20 mV"}, "for": "40 ms"},
            {"step": "-60 mV", "for": "20 ms"},
        ],
    }
    (tmp_path / "my_steps.yaml").write_text(yaml.safe_dump(protocol))
    values = {"a": 0.05, "z": 0.04, "gmax": 5.0}
    document = yaml.safe_load(model)
    for name, row in document["parameters"].items():
        row["value"] = values.get(name, values.get(name[0]))
    truth = build_model(document, None)
    command = build_protocol(protocol, None)
    problem = Problem(truth, (Experiment(command, None),))
    (current,) = make_scorer(problem, "reference").simulate(truth.values()[:, None])
    table = np.column_stack([command.times_ms / 1000, current[:, :, 0].T / 1000])
    names = ",".join(["t", *(f"sweep {k + 1}" for k in range(5))])
    np.savetxt(tmp_path / "cell_3.csv", table, delimiter=",", header=names, comments="")
    command_line = [sys.executable, "-m", "channelfit", "optimize", "my_cell.yaml", "--json"]
    done = subprocess.run(command_line, cwd=tmp_path, capture_output=True, text=True, check=True)
    summary = json.loads(done.stdout)
    assert summary["rms_relative_to_peak"] < 1e-6
    assert summary["parameters"]["gmax"]["value"] == pytest.approx(5, rel=1e-4)


def test_the_fit_of_several_cells_runs(tmp_path: Path) -> None:
    """The block of docs/fitting.md, with a model whose rates have a Q10."""
    (text,) = blocks(ROOT / "docs" / "fitting.md", "cells")
    (tmp_path / "three_cells.yaml").write_text(text)
    document = {
        "temperature": 22,
        "definitions": {"q": "q10**((celsius - 22)/10)"},
        "states": ["C", "O"],
        "rates": {"C -> O": "q*a*exp(z*v)", "O -> C": "q*b"},
        "current": {"open": ["O"], "conductance": "gmax", "reversal": "-90 mV"},
        "parameters": {
            "a": {"range": [0.01, 1], "unit": "1/ms", "scale": "log"},
            "z": {"range": [0.01, 0.1], "unit": "1/mV"},
            "b": {"range": [0.01, 1], "unit": "1/ms", "scale": "log"},
            "q10": {"range": [1, 5]},
            "gmax": {"range": [0.1, 10], "unit": "nS"},
        },
    }
    true = {"a": 0.2, "z": 0.03, "b": 0.1, "q10": 2.5}
    (tmp_path / "my_channel.yaml").write_text(yaml.safe_dump(document))
    steps = build_protocol(
        {
            "holding": "-80 mV",
            "sampling": "0.2 ms",
            "segments": [
                {"step": {"from": "-40 mV", "to": "40 mV", "by": "20 mV"}, "for": "20 ms"}
            ],
        },
        None,
    )
    steps.save(tmp_path / "my_steps.yaml")
    for name, gmax, celsius in (("a1", 4.2, 22), ("b4", 8.0, 22), ("b4_warm", 8.0, 34)):
        model = build_model(document | {"temperature": celsius}, None)
        scorer = make_scorer(Problem(model, (Experiment(steps),)), "cpu")
        values = np.array([*true.values(), gmax])
        rows = scorer.simulate(values[:, None])[0][:, :, 0].T.tolist()
        lines = [",".join(f"x{k}" for k in range(5)), *(",".join(map(repr, row)) for row in rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    fit = channelfit.fit(tmp_path / "three_cells.yaml", seed=1, progress=False)
    expected = true | {"gmax[A1]": 4.2, "gmax[B4]": 8.0}
    assert fit.values == pytest.approx(expected, rel=1e-4)
