"""The parts of the benchmarks that decide what their figures mean."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chains import chain_model, paper_protocols

from channelfit.front.designing import designed
from channelfit.front.progress import screen_for
from channelfit.model.model_file import load_model
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.scoring.path_costs import COSTS
from channelfit.scoring.scorer import Score, make_scorer
from scoring import candidates, problem
from support.places import ROOT

pytestmark = pytest.mark.integration


design: Any = importlib.import_module("design")
path_costs: Any = importlib.import_module("path_costs")
gpu_scoring: Any = importlib.import_module("gpu_scoring")
readme: Any = importlib.import_module("readme")
report: Any = importlib.import_module("report")
states: Any = importlib.import_module("states")
ways: Any = importlib.import_module("ways")


def test_chains_add_four_parameters_a_state_and_can_be_seen() -> None:
    for n in (2, 5, 9):
        model = chain_model(n)
        assert len(model.parameters) == 4 * (n - 1) + 1
        assert len({p.upper for p in model.parameters}) > n - 1  # varied
        assert all(p.lower <= p.value <= p.upper for p in model.parameters)
        bare = problem(model, paper_protocols(20))
        currents = [e.recording.current_pA for e in bare.experiments if e.recording]
        assert max(float(c.max()) for c in currents) > 100  # pA
        score = make_scorer(bare, "reference").score(candidates(model, 3))
        assert (score.status == OK).all()
    assert chain_model(4) == chain_model(4) != chain_model(4, seed=1)
    with pytest.raises(ValueError, match="two states"):
        chain_model(1)
    for samples in (20, 5000):
        protocols = paper_protocols(samples)
        assert sum(p.n_sweeps for p in protocols) == 25
        assert {p.n_times(k) for p in protocols for k in range(p.n_sweeps)} == {samples}


def test_errors_are_told_by_candidate() -> None:
    truth = Score(np.array([1.0, 2.0, np.inf, 4.0]), np.array([OK, OK, NOT_FINITE, OK]))
    found = Score(np.array([1.1, 2.0, np.inf, np.inf]), np.array([OK, OK, NOT_FINITE, NOT_FINITE]))
    assert states.error_note(found, truth) == (
        "cost off by 1e-01 at most, median 5e-02; 1 of 3 cost inf"
    )
    row = gpu_scoring._exact_row("title", found, truth, 1e-9, None, np.empty((1, 4)))
    assert row.value == 50.0  # one near, one failing rightly


def test_auto_chooses_by_the_committed_measurements() -> None:
    assert path_costs.table() == COSTS


def test_designs_are_the_same_whatever_the_number_of_jobs() -> None:
    """Of parameters and of two schemes, with more starts than jobs."""
    model = load_model(ROOT / "models" / "model_b.yaml")
    limits = {"length": "60 ms", "segments": "3 step", "shortest": "5 ms", "sampling": "0.1 ms"}
    pools = [None, design.Pool(2)]
    for models in ((model,), (model, load_model(ROOT / "models" / "model_a.yaml"))):
        plan = design.plan_for(*models, **limits, iterations=8)
        found = [designed(plan, 3, [], screen_for("", False), pool) for pool in pools]
        assert len(set(found[0].criteria)) == 3
        assert found[0].criteria == found[1].criteria
        assert found[0].protocol == found[1].protocol
    rival = plan.judged(found[0].protocol).fits[0].known
    tasks = [(plan, found[0].protocol, k, rival, plan.subjects[0].members) for k in range(3)]
    apart = list(pools[1].pool.map(design.delta_bic, tasks))
    assert apart == [design.delta_bic(task) for task in tasks]


def test_operations_of_the_2012_design() -> None:
    paper = problem(chain_model(3), paper_protocols())
    operations, moved, _ = gpu_scoring.counts(ways.DESIGN_2012, paper)
    # a sample: 7 multiply-adds for a step, 1 for current and difference, 1 for the score
    assert operations == 12_500 * (2 * 7 + 2 + 2)
    assert moved == 25 * (4 * 9 + 8)  # read and added to at each launch, one a sweep
    # a sample: 7 entries of Q and 3 occupancies read, 3 written
    assert gpu_scoring.shared_bytes_2012(paper) == 12_500 * 4 * (7 + 3 + 3)


def test_the_pages_say_what_the_results_say() -> None:
    text = readme.pages()
    assert readme.absent(text) == []
    assert {name for name, _ in readme.statements()} >= {"surrogates", "scoring", "fhn", "fhn_gpu"}
    assert len(readme.statements()) > 80
    assert any("| the same text, but in registers |" in told for _, told in readme.statements())
    first = readme.statements()[0]
    assert first in readme.absent(" ".join(text.split()).replace(first[1], ""))


def test_the_page_lists_the_results_that_are_of_no_known_commit() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    listed = page.partition("<!-- not clean -->\n")[2].strip()
    assert listed == readme.not_clean(), "python benchmarks/readme.py --not-clean prints it"


_SCRIPT = """
from report import Row, as_script, finish
as_script(lambda: finish("trial", "", [Row("a", 1.0, "s")], shown=False))
"""


def _measured(folder: Path, *options: str) -> str:
    """The commit that a script in a folder records, or what it says when it refuses."""
    place = folder / "benchmarks" / "results" / "trial.json"
    place.unlink(missing_ok=True)
    script = folder / "benchmarks" / "trial.py"
    done = subprocess.run(
        [sys.executable, str(script), *options],
        capture_output=True,
        text=True,
        check=False,
        env=_without_git(),
    )
    if not place.exists():
        assert done.returncode == 1, done.stderr
        return done.stderr
    return str(json.loads(place.read_text())["commit"])


@pytest.mark.skipif(shutil.which("git") is None, reason="needs Git")
def test_results_are_of_a_commit_or_are_not_written(tmp_path: Path) -> None:
    """In a repository of its own, and then in a copy without Git."""
    code = tmp_path / "benchmarks"
    code.mkdir()
    shutil.copy(ROOT / "benchmarks" / "report.py", code)
    (code / "trial.py").write_text(_SCRIPT)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True, env=_without_git())
    clean = _measured(tmp_path)
    assert report.is_clean(clean)
    (code / "results" / "other.json").write_text("{}")  # what another benchmark wrote
    assert _measured(tmp_path) == clean
    (code / "trial.py").write_text(_SCRIPT + "\n")
    assert "the code is that of no commit" in _measured(tmp_path)
    assert _measured(tmp_path, "--dirty") == f"{clean}-dirty"
    assert "only where there is no Git" in _measured(tmp_path, "--commit", clean)
    shutil.rmtree(tmp_path / ".git")
    assert "(unknown)" in _measured(tmp_path)
    assert _measured(tmp_path, "--commit", clean) == clean
    for commit, fine in (("1a2b3c4", True), ("1a2b3c4-dirty", False), ("unknown", False)):
        assert report.is_clean(commit) is fine


def _without_git() -> dict[str, str]:
    """The environment without what a hook of Git may have set."""
    return {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
