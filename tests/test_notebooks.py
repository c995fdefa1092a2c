"""The notebooks run from top to bottom; their own assertions hold."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda p: p.stem)
def test_notebook_runs(path: Path) -> None:
    pytest.importorskip("neuron", reason='needs NEURON: pip install "channelfit[neuron]"')
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.skip("NEURON's mechanisms need a C++ compiler")
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    )
    client.execute()
    assert all(cell.get("execution_count") for cell in notebook.cells if cell.cell_type == "code")
