"""A saved fit is where the next search begins, whatever the optimizer; a rehearsal never does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from channelfit.front.kinds import load_plan
from channelfit.reading.documents import dump_yaml
from channelfit.reading.errors import InputError
from channelfit.scoring.scorer import make_scorer
from channelfit.search.loop import optimize
from support.little import LITTLE, THREE_STEPS, save_fit


def rehearsal(folder: Path, **fit: object) -> Path:
    (folder / "steps.yaml").write_text(THREE_STEPS)
    section = {"protocols": ["steps.yaml"], "surrogate": {"noise": 5, "seed": 1}} | fit
    path = folder / "little.yaml"
    path.write_text(dump_yaml(LITTLE | {"fit": section}))
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The file of a fit at values that a search may have found."""
    values = np.array([0.102, 0.0198, 0.049, 9.9])
    return save_fit(load_plan(rehearsal(tmp_path), (), "reference"), values, tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        *(("hybrid", True), ("genetic", True), ("swarm", False), ("ring", True)),
        *(("groups", False), ("differential", True), ("cma", False)),
    ],
)
def test_the_first_generation_of_every_optimizer_holds_the_saved_values(saved, name, bounds):
    if name == "cma":
        pytest.importorskip("cma")
    changes = [f"fit.optimizer={{name: {name}}}", "fit.stop={generations: 1}"]
    changes += ["fit.rates_within=[1.0e-4 /ms, 20 /ms]"] if bounds else []
    fit = load_plan(saved, changes)
    scorer = make_scorer(fit.problem, "cpu")
    known = scorer.score(fit.problem.model.values()[:, None]).cost[0]
    result = optimize(fit.make_optimizer(), fit.objective(scorer), fit.stop_rules)
    assert result.history["best_cost"][0] <= known * (1 + 1e-6)
    anew = load_plan(saved, [*changes, "fit.start=none"])
    result = optimize(anew.make_optimizer(), anew.objective(scorer), anew.stop_rules)
    assert result.history["best_cost"][0] > known * 1.01


def test_hybrid_refines_the_saved_values_first_and_does_not_count_them_as_independent(saved):
    fit = load_plan(saved, ["fit.optimizer={name: hybrid}"])
    optimizer = fit.make_optimizer()
    np.testing.assert_allclose(
        fit.space.to_physical(optimizer.initial)[:, 0], fit.problem.model.values(), rtol=1e-12
    )
    objective = fit.objective(make_scorer(fit.problem, "cpu"))
    stages = [generation.stage for generation in optimizer.search(objective)]
    assert stages[0] == "known values"
    alone = load_plan(saved, ["fit.optimizer={name: hybrid, patience: 1}", "fit.start=none"])
    fresh = alone.make_optimizer()
    list(fresh.search(alone.objective(make_scorer(alone.problem, "cpu"))))
    first_round = optimizer.starts
    assert fresh.agreement.starts % first_round == optimizer.agreement.starts % first_round


@pytest.mark.parametrize("name", ["hybrid", "genetic"])
def test_a_rehearsal_does_not_see_the_values_that_made_its_data(tmp_path, name):
    """The values are changed after the data were made: the search must not notice."""
    fit = load_plan(rehearsal(tmp_path, optimizer={"name": name}, stop={"generations": 4}))
    assert fit.starting_point() is None
    scorer = make_scorer(fit.problem, "cpu")
    one = optimize(fit.make_optimizer(), fit.objective(scorer), fit.stop_rules)
    moved = load_plan(tmp_path / "little.yaml", ["parameters.a.value=0.9", "parameters.g.value=77"])
    two = optimize(moved.make_optimizer(), fit.objective(scorer), moved.stop_rules)
    assert one.values.tobytes() == two.values.tobytes()
    with pytest.raises(InputError, match="begin at its end"):
        load_plan(tmp_path / "little.yaml", ["fit.start=values"])


def test_values_that_cannot_be_a_start_are_refused(saved):
    with pytest.raises(InputError, match=r"cannot begin.*begin anywhere with start: none"):
        load_plan(saved, ["fit.rates_within=[1.0e-4 /ms, 0.2 /ms]"])
    load_plan(saved, ["fit.rates_within=[1.0e-4 /ms, 0.2 /ms]", "fit.start=none"])
    with pytest.raises(InputError, match="is not one of none, values"):
        load_plan(saved, ["fit.start=there"])


def test_a_start_on_the_bound_of_a_rate_is_taken(saved):
    fit = load_plan(saved)
    top = float(0.049 * np.exp(0.0198 * 80))  # O -> C at -80 mV, the fastest rate of all
    bound = load_plan(saved, [f"fit.rates_within=[1.0e-4 /ms, {top!r} /ms]"])
    begin = bound.starting_point()
    assert all(c.allowed(bound.space.to_physical(begin)).all() for c in bound.constraints)
    np.testing.assert_allclose(begin, fit.starting_point(), atol=1e-7)


def test_hybrid_with_a_single_start_goes_on_after_its_first_round(tmp_path: Path) -> None:
    changes = ["fit.optimizer={name: hybrid, scan: 4, starts: 1, agree: 9, patience: 3}"]
    fit = load_plan(rehearsal(tmp_path), changes)
    scorer = make_scorer(fit.problem, "cpu")
    result = optimize(fit.make_optimizer(), fit.objective(scorer), fit.stop_rules)
    assert "without a gain" in result.stop_reason
