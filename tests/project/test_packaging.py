"""What is published: sdist and wheel, the shipped files in them, completion, version, citation."""

from __future__ import annotations

import configparser
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import channelfit
from channelfit.front.main import main
from channelfit.reading import shipped
from channelfit.reading.errors import InputError
from channelfit.results.citation import TITLE
from support import json_output
from support.installed import ROOT, Environment, build, environment

pytestmark = pytest.mark.integration


VERBS = sorted(main.commands)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def installed(published: tuple[Path, Path], tmp_path_factory: Any) -> Environment:
    folder = tmp_path_factory.mktemp("installed")
    return environment(folder / "venv", published[1], folder / "cache")


def hashes(folder: Path) -> dict[str, str]:
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for name in ("models", "protocols")
        for file in (folder / name).rglob("*")
        if file.is_file()
    }


def tracked() -> set[str]:
    """The files of `models` and `protocols` that belong to the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "models", "protocols"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not in a checkout of git")
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}


# --- sdist and wheel -----------------------------------------------------------------------------


def test_twine_and_check_wheel_contents_find_no_fault(published: tuple[Path, Path]) -> None:
    sdist, wheel = published
    for command in (["twine", "check", "--strict", sdist, wheel], ["check_wheel_contents", wheel]):
        done = subprocess.run(
            [sys.executable, "-m", *map(str, command)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_carries_every_shipped_file_and_nothing_else(
    published: tuple[Path, Path],
) -> None:
    with zipfile.ZipFile(published[1]) as archive:
        files = {name for name in archive.namelist() if not name.endswith("/")}
    packed = {n.removeprefix("channelfit/examples/") for n in files if "/examples/" in n}
    assert packed == {str(file) for file in shipped.shipped_files()} >= tracked()
    assert {n.split("/")[0] for n in files} == {
        "channelfit",
        f"channelfit-{channelfit.__version__}.dist-info",
    }
    plain = [file for file in (ROOT / "channelfit").rglob("*") if file.is_file()]
    wanted = {f.relative_to(ROOT).as_posix() for f in plain if f.suffix not in (".pyc", ".pyo")}
    assert wanted <= files, "modules, and what they read: pages, styles, scripts"
    with tarfile.open(published[0]) as archive:
        names = archive.getnames()
    inner = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in names}
    wanted = {"setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "CITATION.cff"}
    assert wanted | {str(file) for file in shipped.shipped_files()} <= inner, "in the sdist"


def test_the_installed_program_fits_a_shipped_model_in_an_empty_folder(
    installed: Environment, tmp_path: Path
) -> None:
    where = installed.run(
        ["python", "-c", "import channelfit; print(channelfit.__file__)"], tmp_path
    )
    assert Path(where.stdout.strip()).is_relative_to(installed.folder)
    copied = installed.run(["channelfit", "examples", "."], tmp_path)
    assert {Path(line).as_posix() for line in copied.stdout.splitlines()} == set(hashes(tmp_path))
    assert hashes(tmp_path) == {str(f): hashes(ROOT)[str(f)] for f in shipped.shipped_files()}
    command = ["channelfit", "optimize", "models/model_b.yaml", "--out", "run", "--json"]
    summary = json_output.summary(installed.run(command, tmp_path).stdout)
    assert summary["rms_relative_to_peak"] < 1e-6
    assert (tmp_path / "run" / "fit.yaml").is_file()
    recording = ROOT / "models" / "recordings" / "abf" / "171116sh_0013.abf"
    shutil.copy(recording, tmp_path / "cell.abf")
    installed.run(["channelfit", "init", "cell.abf", "--model", "k_hh_gate"], tmp_path)
    named = Path(yaml.safe_load((tmp_path / "cell-fit.yaml").read_text())["model"])
    assert named.is_file()
    assert named.is_relative_to(installed.folder)


# --- channelfit examples -------------------------------------------------------------------------


def test_examples_are_copied_once_and_never_replaced(tmp_path: Path) -> None:
    written, kept = shipped.copy_examples(tmp_path)
    assert (len(written), kept) == (len(shipped.shipped_files()), [])
    assert hashes(tmp_path) == {str(f): hashes(ROOT)[str(f)] for f in shipped.shipped_files()}
    (tmp_path / "models" / "model_a.yaml").unlink()
    written, kept = shipped.copy_examples(tmp_path)
    assert written == [tmp_path / "models" / "model_a.yaml"]
    assert len(kept) == len(shipped.shipped_files()) - 1
    mine = tmp_path / "models" / "model_b.yaml"
    mine.write_text("mine")
    (tmp_path / "models" / "model_a.yaml").unlink()
    done = CliRunner().invoke(main, ["examples", str(tmp_path)])
    assert done.exit_code == 2
    assert f"{mine}: this file exists already" in done.output
    assert mine.read_text() == "mine"
    assert not (tmp_path / "models" / "model_a.yaml").exists(), "nothing is written then"


def test_a_dangling_link_in_the_place_of_an_example_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    try:
        (tmp_path / "models" / "model_b.yaml").symlink_to(tmp_path / "elsewhere")
    except OSError:
        pytest.skip("this user may not make links here")
    (tmp_path / "here").write_text("")
    done = CliRunner().invoke(main, ["examples", str(tmp_path / "here")])
    assert done.exit_code == 2
    assert "here: cannot be written" in done.output
    with pytest.raises(InputError, match=r"model_b\.yaml: this file exists already"):
        shipped.copy_examples(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


# --- completion ----------------------------------------------------------------------------------


def completed(installed: Environment, words: list[str], folder: Path) -> list[str]:
    """What bash offers for the last word of a line, by the script that `completion` printed."""
    text = """
        eval "$(channelfit completion bash)"
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        complete -p channelfit > /dev/null
        _channelfit_completion channelfit
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    line = ["bash", "--norc", "-euc", text, "bash", *words]
    return installed.run(line, folder).stdout.split()


@pytest.mark.skipif(os.name == "nt" or not shutil.which("bash"), reason="needs bash")
def test_bash_completes_commands_and_options(installed: Environment, tmp_path: Path) -> None:
    for words, offered in (
        (["opt"], ["optimize"]),
        ([""], VERBS),
        (["optimize", "--pop"], ["--population"]),
        (["optimize", "--backend", ""], ["auto", "reference", "cpu", "cuda"]),
    ):
        assert completed(installed, ["channelfit", *words], tmp_path) == offered


# --- version and citation ------------------------------------------------------------------------


def test_the_version_stands_in_one_place(published: tuple[Path, Path]) -> None:
    metadata = configparser.ConfigParser(interpolation=None)
    metadata.read(ROOT / "setup.cfg", encoding="utf-8")
    assert metadata["metadata"]["version"] == "attr: channelfit.__version__"
    assert "version" not in (ROOT / "pyproject.toml").read_text().split("[tool.")[0]
    assert published[1].name == f"channelfit-{channelfit.__version__}-py3-none-any.whl"
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        named = re.findall(r"channelfit-[\w.]+-[\w-]+\.whl", page.read_text(encoding="utf-8"))
        assert set(named) <= {published[1].name}, page.name
    told = CliRunner().invoke(main, ["--version"]).output.replace("version", "")
    assert f" {channelfit.__version__}\n" in told


def test_the_citation_is_of_this_version_and_license() -> None:
    """`.ci/run` validates the file with cffconvert, in an environment of its own."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == channelfit.__version__
    assert cited["license"] == "BSD-3-Clause"
    assert {"cff-version", "message", "title", "authors", "type"} <= set(cited)
    assert cited["title"] == TITLE
