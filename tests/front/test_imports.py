"""What is loaded, and when: nobody waits for a library that a command does not use."""

import json
import os
import subprocess
import sys

import pytest

from channelfit.front.main import main
from support.places import MODELS, ROOT

#: Libraries that take longer to load than an answer may.
HEAVY = {"numpy", "scipy", "sympy", "matplotlib", "numba", "llvmlite", "rich", "yaml", "mpmath"}
HEAVY |= {"bokeh", "tornado", "asyncio"}


def loaded(code: str, *arguments: object) -> set[str]:
    """Names of all modules that a Python of its own has loaded at the end of some code."""
    text = f"{code}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_package_and_the_help_of_every_command_load_nothing():
    """In one process, one after another, so that what any of them loads is seen."""
    assert not loaded("import channelfit") & (HEAVY | {"click"})
    code = """
import sys
from channelfit.front.main import main
for name in ("", *main.commands):
    assert main([*name.split(), "--help"], standalone_mode=False) in (0, None)
"""
    assert not loaded(code) & HEAVY
    for name in ("", *main.commands):  # it is there, or that would look at nothing
        with pytest.raises(SystemExit) as ended:
            main([*name.split(), "--help"], prog_name="channelfit")
        assert ended.value.code == 0


@pytest.mark.integration
def test_a_score_loads_what_it_uses():
    reads = "import channelfit.search.fit_file"
    assert not loaded(reads) & {"scipy", "matplotlib", "rich", "click"}
    code = """
import sys
from channelfit.front.kinds import load_plan
from channelfit.scoring.scorer import make_scorer
fit = load_plan(sys.argv[1])
make_scorer(fit.problem, "cpu").score(fit.problem.model.values()[:, None])
"""
    parts = ("special", "ndimage", "optimize", "stats", "interpolate", "integrate", "signal")
    unused = {"matplotlib", "rich", "click", "sklearn", "h5py", *(f"scipy.{p}" for p in parts)}
    for model in ("model_b", "herg_markov"):
        assert not loaded(code, MODELS / f"{model}.yaml") & unused


@pytest.mark.integration
def test_what_draws_loads_nothing_that_computes():
    """It gets ready while another process computes, and should be the first to be."""
    found = loaded("import channelfit.results.report.plots")
    assert "matplotlib.figure" in found
    assert not found & {"scipy", "sympy", "numba", "rich", "click"}
