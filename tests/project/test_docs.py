"""The pages for users: README.md and docs/*.md. What stands in them is there, and runs."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import channelfit
from channelfit.front.main import main
from channelfit.reading.keys import KEYS
from channelfit.reading.schema import SECTIONS
from channelfit.reading.shipped import copy_examples
from support.browser import NARROW, WIDE, Page
from support.installed import Environment, build, environment, share_packages, shell_variables
from support.laboratory import laboratory
from support.pages import (
    DOCS,
    LANGUAGES,
    PRINTS,
    Reader,
    blocks_of,
    commands_of,
    compare_printed,
    read_page,
    typed,
)
from support.places import ROOT

integration = pytest.mark.integration
PAGES = [ROOT / "README.md", ROOT / "models" / "README.md", *sorted(DOCS.glob("*.md"))]
GUIDE = ROOT / "models" / "guide"
README_BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGES[0].read_text("utf-8"), re.DOTALL)
TRUTH = {"a": 0.2, "z": 0.03, "b": 0.1, "gmax": 8.0}
#: Pages with something to type or to run; the first guide begins with an installation of its own.
RUN = [
    page
    for page in PAGES
    if page.name != "first-fit.md"
    and any(
        b.language == "bash" or (b.language == "python" and not b.name) for b in blocks_of(page)
    )
]
NEED_NEURON = ("abf-to-neuron.md", "export.md", "import.md")
needs_bash = pytest.mark.skipif(os.name == "nt" or not shutil.which("bash"), reason="needs bash")


each = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def test_links_lead_to_files_of_the_repository() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
        assert [link for link in links if not (page.parent / link).exists()] == [], page
        named = re.findall(r"(?:models|protocols|benchmarks|tests)/[\w/]+\.(?:py|yaml)", text)
        assert [name for name in named if not (ROOT / name).exists()] == [], page
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) < 150, "README.md stays short"


def test_files_that_contributing_names_are_there_and_its_glossary_is_short() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./]+/(?:[\w.]+\.(?:py|yaml|md))?)`", text))
    assert len(named) > 20
    missing = [n for n in named if not ((ROOT / n).exists() or (ROOT / "channelfit" / n).exists())]
    assert [name for name in sorted(missing) if "NAME" not in name] == []
    glossary = text[text.index("| word | meaning |") : text.index("## To add")].splitlines()
    words = [word for row in glossary[2:] if row for word in row.split("|")[1].split(",")]
    assert 30 < len(words) <= 50


def test_every_key_of_a_file_is_explained() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    sections = set(KEYS) - {"printed file", "printed model", "printed parameter"}
    keys = {key for name in sections if "function" not in name for key in KEYS[name]}
    assert sorted(key for key in keys if not re.search(rf"\b{key}\b", text)) == []


@integration
def test_the_files_of_the_readme_are_those_of_the_guide_and_give_its_values() -> None:
    """The synthetic recording was made at the values that the shipped model has."""
    for name, text in zip(("my_channel.yaml", "my_cell.yaml"), README_BLOCKS, strict=True):
        shown, shipped = yaml.safe_load(text), yaml.safe_load((GUIDE / name).read_text("utf-8"))
        for row in shipped.get("parameters", {}).values():
            row.pop("value")
        assert shown == shipped
    fit = channelfit.fit(GUIDE / "my_cell.yaml", seed=0, progress=False)
    assert fit.rms == pytest.approx(2, rel=0.1)
    for name, value in fit.values.items():
        assert abs(value - TRUTH[name]) < 4 * fit.errors[name]


@integration
def test_the_fit_of_several_cells_gives_the_values_of_their_recordings(tmp_path: Path) -> None:
    """The block of docs/fitting.md, on the synthetic recordings of the guide."""
    (text,) = (block.text for block in blocks_of(DOCS / "fitting.md") if block.marker == "cells")
    shutil.copytree(GUIDE, tmp_path, dirs_exist_ok=True)
    (tmp_path / "three_cells.yaml").write_text(text)
    fit = channelfit.fit(tmp_path / "three_cells.yaml", seed=1, progress=False)
    expected = {"a": 0.2, "z": 0.03, "b": 0.1, "q10": 2.5, "gmax[A1]": 4.2, "gmax[B4]": 8.0}
    assert fit.values == pytest.approx(expected, rel=0.01)


# --- every block of every page -------------------------------------------------------------------


def test_every_block_says_what_becomes_of_it() -> None:
    """What is indented by four would be a block without a language, and would not be run."""
    for page in PAGES:
        assert [str(b) for b in blocks_of(page) if b.language not in LANGUAGES] == []
        for block in blocks_of(page):
            assert block.marker != PRINTS or block.language == "text", block
        fenced = re.sub(r"^( *)```.*?^\1```", "", page.read_text("utf-8"), flags=re.M | re.S)
        assert page.parent != DOCS or not re.findall(r"\n\n    (?! *[-*\d]).*", fenced), page


@integration
@each
def test_files_and_options_of_a_page_are_accepted(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = ("yaml", "json", "console")
    if any(block.language in kinds or block.name for block in blocks_of(page)):
        laboratory(tmp_path)
        monkeypatch.chdir(tmp_path)
        read_page(page, tmp_path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("build"))[1]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("installed")
    return environment(folder / "venv", wheel, folder / "cache")


@needs_bash
@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_followed_in_an_empty_folder(
    page: Path, installed: Environment, tmp_path: Path
) -> None:
    """All that it types and runs, by the installed program, with what the page says alone."""
    if page.name in NEED_NEURON:
        pytest.importorskip("neuron")
    if page.parent == ROOT:  # README.md lies in a copy of the repository
        copy_examples(tmp_path)
    Reader(tmp_path, dict(installed.variables)).follow(page)


# --- guides, as a reader types them --------------------------------------------------------------


@needs_bash
@pytest.mark.slow
def test_from_pip_install_to_a_report_by_the_first_guide_alone(wheel: Path, tmp_path: Path) -> None:
    """Every command as printed, in an empty folder that holds the wheel, without a network."""
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


def test_six_commands_lead_from_an_unknown_abf_to_neuron() -> None:
    found = [b for b in blocks_of(DOCS / "abf-to-neuron.md") if b.language == "bash"]
    assert {block.marker for block in found} == {"typed", "six-commands"}
    assert len(commands_of(b for b in found if b.marker == "six-commands")) == 6


# --- messages ------------------------------------------------------------------------------------


def spoken() -> list[str]:
    """Every text that the package holds; a NUL stands for what is filled in."""
    found = []
    for file in (ROOT / "channelfit").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [(part, isinstance(part, ast.Constant)) for part in node.values]
                found.append("".join(str(part.value) if kind else "\0" for part, kind in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def quoted() -> list[str]:
    """The messages that the page quotes: its headings that are code."""
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    return list(re.findall(r"^### `(.*)`", text, re.M))


@integration
def test_every_message_that_is_explained_is_one_of_the_program() -> None:
    texts, messages = spoken(), quoted()
    assert len(messages) > 25
    for message in messages:
        pattern = ".*".join(re.escape(part.strip()) for part in message.split(".."))
        assert any(re.search(pattern, text, re.DOTALL) for text in texts), message


# --- the site ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.slow
def test_the_site_opens_from_a_folder_and_its_search_finds(site: Path, page: Page) -> None:
    """Without a server: in Chromium, light and dark, narrow and wide, for every page."""
    here = site.resolve().as_uri()
    alike = set(site.glob("keys-*.html")) - {site / "keys-optimizer.html"}
    for file in sorted(set(site.glob("*.html")) - alike - {site / "404.html"}):
        for width, dark in ((NARROW, True), (WIDE, False)):
            page.open(file, width, dark)
            assert page.overflow() == 0, file.name
            assert page.errors == [], file.name
            assert [url for url in page.requests if not url.startswith((here, "data:"))] == []
    page.open(site / "keys.html", NARROW)
    assert page.tab.evaluate("document.body.scrollHeight") < 12_000
    page.open(site / "index.html")
    page.tab.keyboard.press("/")
    page.tab.keyboard.type("microscopic reversibility")
    page.tab.locator(".md-search-result__item").first.wait_for()
    assert "The mathematics" in page.tab.locator(".md-search-result__list").inner_text()
    assert page.errors == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["default", "slate"])
def test_links_and_code_of_the_site_can_be_read(site: Path, page: Page, scheme: str) -> None:
    """By their contrast in both palettes, and links not by their color alone."""
    for name in ("index.html", "api.html", "keys-optimizer.html"):
        page.open(site / name)
        page.tab.add_style_tag(content="* {transition: none !important}")
        page.tab.evaluate("to => document.body.setAttribute('data-md-color-scheme', to)", scheme)
        seen = [what for what in page.violations() if re.match("color|link-in", what)]
        assert seen == [], name


@pytest.mark.slow
def test_pages_that_are_made_say_what_the_program_says(site: Path) -> None:
    commands = (site / "commands.html").read_text(encoding="utf-8")
    assert [name for name in main.commands if f'id="{name}"' not in commands] == []
    pages = {page.stem: page.read_text(encoding="utf-8") for page in site.glob("keys-*.html")}
    assert len(pages) == len(SECTIONS)
    assert all(f'href="{name}.html"' in (site / "keys.html").read_text("utf-8") for name in pages)
    assert "junction_potential" in pages["keys-a-protocol-file"]
    api = (site / "api.html").read_text(encoding="utf-8")
    public = set(channelfit.__all__) - {"__version__"}
    assert [name for name in sorted(public) if f'id="channelfit.{name}"' not in api] == []
    mathematics = (site / "mathematics.html").read_text(encoding="utf-8")
    assert mathematics.count("<math") > 20
    assert "arithmatex" not in mathematics


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    listed = re.findall(r"^ +- (?:Home: )?([\w-]+\.md)$", text, re.M)
    there = {page.name for page in DOCS.glob("*.md")} | {"published-channels.md"}
    assert sorted(listed) == sorted(there)
