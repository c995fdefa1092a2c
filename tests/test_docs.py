"""The pages for users: README.md and docs/*.md. What stands in them is there, and runs."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import json_told
import matplotlib.pyplot as plt
import numpy as np
import pytest
import yaml
from browser import NARROW, WIDE, Page
from installed import build, share_packages, shell_variables
from laboratory import RECORDED, laboratory, recorded
from pages import (
    DOCS,
    LANGUAGES,
    PRINTS,
    Block,
    blocks_of,
    commands_of,
    compare_printed,
    run_page,
    typed,
)

import channelfit
from channelfit.front.kinds import load_plan
from channelfit.front.main import main
from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol, build_protocol
from channelfit.reading.keys import KEYS
from channelfit.scoring.scorer import make_scorer

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "models" / "README.md", *sorted(DOCS.glob("*.md"))]
#: Pages that have tests of their own below, because they are typed in a new environment or folder.
GUIDES = ("first-fit.md", "abf-to-neuron.md")
#: Pages whose commands take longer than a few seconds.
LONG = (
    "plates.md",
    "recordings.md",
    "uncertainty.md",
    "machines.md",
    "cable.md",
    "optimizers.md",
    "python.md",
    "export.md",
    "import.md",
    "report.md",
)
RUN = [page for page in PAGES if page.name not in GUIDES]
#: Pages that begin with a fit of the reader's, which is in `runs/cell_3`.
ABOUT_FITS = ("export.md", "report.md", "watch.md")
needs_bash = pytest.mark.skipif(os.name == "nt" or not shutil.which("bash"), reason="needs bash")


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
    summary = json_told.summary(done.stdout)
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


# --- every block of every page -------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_says_what_becomes_of_it(page: Path) -> None:
    assert [str(b) for b in blocks_of(page) if b.language not in LANGUAGES] == []
    for block in blocks_of(page):
        assert block.marker != PRINTS or block.language == "text", block


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_no_block_hides_by_being_indented(page: Path) -> None:
    """What is indented by four would be a block without a language, and would not be run."""
    fenced = re.sub(r"^( *)```.*?^\1```", "", page.read_text("utf-8"), flags=re.M | re.S)
    assert re.findall(r"\n\n    (?! *[-*\d]).*", fenced) == []


@needs_bash
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            marks=[pytest.mark.slow] if page.name in LONG else [],
        )
        for page in RUN
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_block_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From top to bottom, in a folder with the files that the pages name."""
    if not blocks_of(page):
        return
    laboratory(tmp_path)
    monkeypatch.chdir(tmp_path)
    time, current = recorded(tmp_path / "my_steps.yaml", gmax=8.0)
    if page.name in ABOUT_FITS:
        channelfit.fit("models/na_hh.yaml", progress=False).save("runs/cell_3")
    run_page(page, tmp_path, time=time, current=current)
    plt.close("all")


def test_what_is_printed_is_compared() -> None:
    block = Block(DOCS / "x.md", 1, "text", PRINTS, "RMS ... pA\nresults runs/a\n")
    compare_printed(block, "a\nRMS   3 pA\nb\nresults  runs/a\n")
    for printed in ("RMS 3 nA\nresults runs/a", "results runs/a\nRMS 3 pA"):
        with pytest.raises(AssertionError, match="is not printed"):
            compare_printed(block, printed)


# --- guides, as a reader types them --------------------------------------------------------------


@needs_bash
@pytest.mark.slow
def test_from_pip_install_to_a_report_by_the_first_guide_alone(tmp_path: Path) -> None:
    """Every command as printed, in an empty folder that holds the wheel, without a network."""
    _, wheel = build(tmp_path / "build")
    folder = tmp_path / "reader"
    folder.mkdir()
    shutil.copy(wheel, folder)
    shell = shell_variables(folder / ".venv", tmp_path / "cache")
    install, *others = blocks_of(DOCS / "first-fit.md")
    first, *rest = install.text.splitlines()
    assert first == "python -m venv .venv"
    own = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    typed(first, folder, {**shell, "PATH": own}, str(install))
    share_packages(folder / ".venv")  # in place of a network, from which pip would fetch them
    typed("\n".join(rest), folder, shell, str(install))
    printed = ""
    for block in others:
        if block.language == "bash":
            printed = typed(block.text, folder, shell, str(block))
        else:
            compare_printed(block, printed)
    assert "<html" in (folder / "runs" / "herg" / "report.html").read_text("utf-8")[:2000].lower()


@needs_bash
@pytest.mark.slow
def test_from_an_unknown_abf_to_neuron_in_six_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("neuron")
    page = DOCS / "abf-to-neuron.md"
    commands = commands_of(b for b in blocks_of(page) if b.marker == "six-commands")
    assert commands == commands_of(blocks_of(page))
    assert len(commands) <= 6
    shutil.copy(RECORDED, tmp_path)
    monkeypatch.chdir(tmp_path)
    run_page(page, tmp_path)
    assert (tmp_path / "cell.mod").is_file()


# --- messages ------------------------------------------------------------------------------------


def spoken() -> list[str]:
    """Every text that the package holds; a NUL stands for what is filled in."""
    found = []
    for file in (ROOT / "channelfit").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [str(getattr(part, "value", "")) for part in node.values]
                kinds = [isinstance(part, ast.Constant) for part in node.values]
                found.append(
                    "".join(p if kind else "\0" for p, kind in zip(parts, kinds, strict=True))
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def quoted() -> list[str]:
    """The messages that the page quotes: its headings that are code."""
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    return list(re.findall(r"^### `(.*)`", text, re.M))


def test_every_message_that_is_explained_is_one_of_the_program() -> None:
    texts = spoken()
    assert len(quoted()) > 25
    unsaid = []
    for message in quoted():
        pattern = ".*".join(re.escape(part.strip()) for part in message.split(".."))
        if not any(re.search(pattern, text, re.DOTALL) for text in texts):
            unsaid.append(message)
    assert unsaid == []


# --- the site ------------------------------------------------------------------------------------


class Requests(HTMLParser):
    """What a browser fetches for a page by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video"):
            self.found.append(given.get("src") or "")
        elif tag == "link" and given.get("rel") != "canonical":
            self.found.append(given.get("href") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_site_needs_no_network(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) >= len(list(DOCS.glob("*.md")))
    for page in pages:
        requests = Requests()
        requests.feed(page.read_text(encoding="utf-8"))
        assert [url for url in requests.found if re.match(r"(https?:)?//", url)] == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?(https?:)?//", sheet.read_text("utf-8")), sheet


def test_the_site_opens_from_a_folder_and_its_search_finds(site: Path, page: Page) -> None:
    """Without a server: in Chromium, light and dark, narrow and wide, for every page."""
    here = site.resolve().as_uri()
    for file in sorted(set(site.glob("*.html")) - {site / "404.html"}):  # which a server shows
        for width, dark in ((NARROW, True), (WIDE, False)):
            page.open(file, width, dark)
            assert page.overflow() == 0, file.name
            assert page.errors == [], file.name
            assert [url for url in page.requests if not url.startswith((here, "data:"))] == []
    page.open(site / "index.html")
    page.tab.keyboard.press("/")
    page.tab.keyboard.type("microscopic reversibility")
    page.tab.locator(".md-search-result__item").first.wait_for()
    assert "The mathematics" in page.tab.locator(".md-search-result__list").inner_text()
    assert page.errors == []


def test_pages_that_are_made_say_what_the_program_says(site: Path) -> None:
    commands = (site / "commands.html").read_text(encoding="utf-8")
    assert [name for name in main.commands if f'id="{name}"' not in commands] == []
    keys = (site / "keys.html").read_text(encoding="utf-8")
    assert "rates_within" in keys
    assert "junction_potential" in keys
    api = (site / "api.html").read_text(encoding="utf-8")
    public = set(channelfit.__all__) - {"__version__"}
    assert [name for name in sorted(public) if f'id="channelfit.{name}"' not in api] == []
    mathematics = (site / "mathematics.html").read_text(encoding="utf-8")
    assert mathematics.count("<math") > 20
    assert "arithmatex" not in mathematics


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(
        r"^ +- (?:Home: )?([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M
    )
    there = {page.name for page in DOCS.glob("*.md")} | {"published-channels.md"}
    assert sorted(listed) == sorted(there)
