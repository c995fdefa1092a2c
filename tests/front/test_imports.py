"""What is loaded, and when: nobody waits for a library that a command does not use."""

import json
import os
import subprocess
import sys

import pytest

from channelfit.front.main import main
from support.places import ROOT

#: Libraries that take longer to load than an answer may.
HEAVY = {"numpy", "scipy", "sympy", "matplotlib", "numba", "llvmlite", "rich", "yaml", "mpmath"}
HEAVY |= {"bokeh", "tornado", "asyncio"}
COMMANDS = [[], *([name] for name in main.commands)]


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


def test_the_package_loads_nothing():
    assert not loaded("import channelfit") & (HEAVY | {"click"})


@pytest.mark.integration
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command) or "channelfit")
def test_help_loads_nothing(command):
    code = (
        "import sys; from channelfit.front.main import main; "
        "main(sys.argv[1:], standalone_mode=False)"
    )
    assert not loaded(code, *command, "--help") & HEAVY


def test_help_is_there():
    """Of every command, or the test above would look at nothing."""
    for command in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main([*command, "--help"], prog_name="channelfit")
        assert ended.value.code == 0


@pytest.mark.integration
def test_a_fit_is_read_without_libraries_of_pictures_and_of_numerics():
    assert not loaded("import channelfit.search.fit_file") & {
        "scipy",
        "matplotlib",
        "rich",
        "click",
    }


@pytest.mark.integration
@pytest.mark.parametrize("model", ["model_b", "herg_markov"])
def test_a_score_loads_what_it_uses(model):
    code = """
import sys
from channelfit.front.kinds import load_plan
from channelfit.scoring.scorer import make_scorer
fit = load_plan(sys.argv[1])
make_scorer(fit.problem, "cpu").score(fit.problem.model.values()[:, None])
"""
    parts = ("special", "ndimage", "optimize", "stats", "interpolate", "integrate", "signal")
    unused = {"matplotlib", "rich", "click", "sklearn", "h5py", *(f"scipy.{p}" for p in parts)}
    assert not loaded(code, ROOT / "models" / f"{model}.yaml") & unused


@pytest.mark.integration
def test_what_draws_loads_nothing_that_computes():
    """It gets ready while another process computes, and should be the first to be."""
    found = loaded("import channelfit.results.report.plots")
    assert "matplotlib.figure" in found
    assert not found & {"scipy", "sympy", "numba", "rich", "click"}
