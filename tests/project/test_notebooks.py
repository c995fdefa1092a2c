"""The notebooks run from top to bottom; their own assertions hold."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.places import ROOT

pytestmark = pytest.mark.integration


NOTEBOOKS = ROOT / "notebooks"
FILES = sorted(NOTEBOOKS.glob("*.ipynb"))
#: Bytes of a notebook with its pictures.
MOST = 200_000


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def code(path: Path) -> str:
    return "\n".join("".join(c["source"]) for c in cells(path) if c["cell_type"] == "code")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    if "neuron" in code(path):
        pytest.importorskip("neuron", reason='needs NEURON: pip install "channelfit[neuron]"')
        if shutil.which("c++") is None and shutil.which("g++") is None:
            pytest.skip("NEURON's mechanisms need a C++ compiler")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("CHANNELFIT_DATA", raising=False)  # what is shipped has to suffice
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    )
    client.execute()
    assert all(cell.get("execution_count") for cell in notebook.cells if cell.cell_type == "code")


def test_a_notebook_concludes_what_it_asserts_is_small_and_knows_no_folder_of_its_author() -> None:
    for path in FILES:
        assert re.search(r"^ *assert ", code(path), re.MULTILINE), path
        last = cells(path)[-1]
        assert last["cell_type"] == "markdown"
        assert "".join(last["source"]).startswith("**Conclusion.**"), path
        text = path.read_text(encoding="utf-8")
        assert len(text) < MOST, path
        assert not re.search(r"/(home|Users|work|tmp|root|private)/|[A-Z]:\\\\", text), path
        outputs = [o for c in cells(path) for o in c.get("outputs", ())]
        strange = [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
        assert not strange, path
        assert any("image/png" in o.get("data", {}) for o in outputs), path


def test_the_index_lists_every_notebook_and_links_lead_somewhere() -> None:
    index = (NOTEBOOKS / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((\w+\.ipynb)\)", index) == [path.name for path in FILES]
    for path in FILES:
        words = "".join("".join(c["source"]) for c in cells(path) if c["cell_type"] == "markdown")
        for link in re.findall(r"\]\(([^)#]+)", words):
            assert link.startswith("http") or (NOTEBOOKS / link).is_file(), f"{path.name}: {link}"
