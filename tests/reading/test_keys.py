"""Every key that a file may hold changes something that can be seen, or is refused.

The keys are those that the readers themselves accept (`reading.keys`): one that is added without a
proof here fails the first test. A proof is two documents that differ in that key alone and are read
to different effect. What counts as an effect is what is computed with: commands, samples and
weights, costs of candidates drawn from the searched space, currents, where a search ends. Only of
names and descriptions it is what `show` prints and the summary of a run tells.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from channelfit.front.kinds import load_plan, make_scorer
from channelfit.functions import swarm_cuda
from channelfit.functions.fit_file import FunctionPlan
from channelfit.problem.protocol import load_protocol
from channelfit.problem.recording import load_recording
from channelfit.reading.documents import Section, dump_yaml
from channelfit.reading.keys import KEYS, SETTINGS, STOP
from channelfit.reading.keys.shapes import Choice, Flag, Integer, Quantity, UnitText
from channelfit.search.choose import make_optimizer
from channelfit.search.loop import StopRules, make_stop_rules, optimize
from channelfit.search.objective import Objective
from support.decays import Residuals, decays, space
from support.key_proofs import BASES, PROOFS, changed, prepare

#: Whole sections inside these keys, each setting of which is proven further down.
SEARCH = {(section, key) for section in ("fit", "function fit") for key in ("optimizer", "stop")}
#: Proven in test_discovery, test_cell_file, test_curves_command, test_cluster and test_night.
ELSEWHERE = (
    "discover",
    "cell",
    "cable",
    "membrane",
    "cell channel",
    "stimulus",
    "pulse",
    "recorded current",
    "curve",
    "curve parameter",
    "cluster",
    "cluster job",
    "cluster adaptive",
    "cluster tls",
    "night",
    "job",
    "job result",
)
ACCEPTED = {
    (section, key) for section, keys in KEYS.items() for key in keys if section not in ELSEWHERE
}


def test_every_key_has_a_proof_and_every_proof_a_key() -> None:
    assert set(PROOFS) | SEARCH == ACCEPTED
    settings = {(name, setting) for name, own in SETTINGS.items() for setting in own}
    proven = {(name, setting) for name, (own, _) in SEARCHES.items() for setting in own}
    assert settings == proven | {(name, "generations") for name in SETTINGS}
    assert {rule.name for rule in fields(StopRules)} == set(STOP) == set(STOPS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("proofs"))


#: Shapes that a reader takes from the table by asking for them (`Section.shape`).
ASKED_FOR = (Quantity, Integer, Flag, Choice, UnitText)
#: Sections of which some keys are read where they are passed on to.
PASSED_ON = {"condition subtract": "recording", "fit file": "model"}


@pytest.fixture(scope="module")
def asked() -> Iterator[set[tuple[str, str, str]]]:
    """What the readers ask the table for from now on: section, key, and the shape's name."""
    asked = set()
    ask = Section.shape

    def shape(self: Section, key: str, *kinds: Any) -> Any:
        found = ask(self, key, *kinds)
        asked.add((getattr(self._keys, "name", ""), key, type(found).__name__))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Section, "shape", shape)
        yield asked


@pytest.mark.parametrize("section", sorted({section for section, _ in PROOFS}))
def test_keys_act_or_are_refused(folder, section, asked):
    proofs = {key: proof for (place, key), proof in PROOFS.items() if place == section}
    for key, proof in proofs.items():
        one, two = proof.seen(folder)
        shape = KEYS[section][key].shape
        if isinstance(shape, ASKED_FOR) and not KEYS[section][key].elsewhere:
            places = [s for s in (section, PASSED_ON.get(section, section)) if key in KEYS[s]]
            assert any((place, key, type(shape).__name__) in asked for place in places), key
            assert {KEYS[place][key].shape for place in places} == {shape}, key
        if (section, key) in {("recording", "capacitance"), ("recording", "series_resistance")}:
            assert proof.refused in one, key
        else:
            assert not one.startswith("refused"), (key, one)
        assert two.startswith("refused") == bool(proof.refused), (key, two[:300])
        assert proof.refused in two, key
        assert one != two or proof.refused, key


def test_a_reader_cannot_ask_for_a_key_that_is_not_accepted(tmp_path, monkeypatch):
    """So that `KEYS` holds all of them: the recording's reader without one of its keys."""
    prepare(tmp_path)
    fewer = {key: told for key, told in KEYS["recording"].items() if key != "missing"}
    monkeypatch.setitem(KEYS, "recording", fewer)
    section = Section(
        BASES["fit"]["fit"]["experiments"][0]["recording"], tmp_path / "fit.yaml", "recording"
    )
    with pytest.raises(LookupError, match="recording.missing is read, but not announced"):
        load_recording(section, load_protocol(tmp_path / "steps.yaml"))


class Launches:
    """In place of the ring on a GPU: what it was asked to do."""

    iteration = 0

    def __init__(self, scorer: Any, population: int, seed: int) -> None:
        self.asked = [population]
        self.costs, self.bests = np.ones((1, population)), np.zeros((1, population, 4))

    def fly(self, iterations: int) -> None:
        self.asked.append(iterations)
        self.costs = np.full_like(self.costs, 1.0 / sum(self.asked))


def searched(name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """Every generation of a search with these settings."""
    objective = Objective(space(4, -3.0, 3.0), Residuals(decays))
    if name == "asynchronous_ring":
        monkeypatch.setattr(swarm_cuda, "AsynchronousRing", Launches)
        monkeypatch.setattr(swarm_cuda, "FunctionCuda", object)
    optimizer = make_optimizer(name, settings, 4, 3, makers=FunctionPlan.optimizers)
    limit = 400 if name == "hybrid" else 20
    result = optimize(optimizer, objective, StopRules(generations=limit))
    rows = result.history[["evaluations", "best_cost", "median_cost"]]
    return f"{result.values.tobytes().hex()} {rows.tolist()}"


#: By optimizer: two values of every setting, and what else is set with them.
FLIGHT = {
    "inertia": (0.7, 0.5),
    "cognitive": (1.5, 1.0),
    "social": (1.5, 1.0),
    "speed_limit": (0.5, 0.01),
    "population": (8, 9),
}
ISLANDS = {"islands": (1, 3), "migrate_every": (2, 7), "migrants": (1, 4)}
SEARCHES: dict[str, tuple[dict[str, tuple[object, object]], dict[str, Any]]] = {
    "genetic": (
        {"population": (8, 9), "crossover_rate": (0, 1), "mutation_rate": (0.01, 0.5)} | ISLANDS,
        {"population": 8, "islands": 2},
    ),
    "hybrid": (
        {"scan": (40, 80), "starts": (4, 8), "agree": (1, 12), "patience": (1, 3)},
        {"scan": 40, "starts": 4},
    ),
    "swarm": (FLIGHT | ISLANDS, {"population": 8, "islands": 2}),
    "ring": (
        FLIGHT | ISLANDS | {"neighbors": (1, 2), "batch": (2, 4)},
        {"population": 8, "islands": 2},
    ),
    "groups": (
        FLIGHT | ISLANDS | {"group": (2, 4), "exchange": (1, 5)},
        {"population": 8, "group": 4, "islands": 2},
    ),
    "differential": ({"population": (8, 9), "elite": (0.1, 0.9)}, {"population": 8}),
    "cma": ({"population": (8, 9), "step": (0.1, 0.3)}, {"population": 8}),
    "asynchronous_ring": ({"population": (8, 9), "iterations": (5, 6)}, {}),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_settings_and_generations_of_an_optimizer_act(name, monkeypatch):
    own, beside = SEARCHES[name]
    ended = cache(lambda text: searched(name, json.loads(text), monkeypatch))
    for setting, values in own.items():
        one, two = (ended(json.dumps(beside | {setting: value})) for value in values)
        assert one != two, setting
    assert make_stop_rules({}, beside | {"generations": 3}).generations == 3


def stopped(name: str, rules: dict[str, Any]) -> tuple[int, str]:
    """After how many generations a search ends, and why."""
    objective = Objective(space(4, -3.0, 3.0), Residuals(decays))
    settings = {"scan": 40, "starts": 4} if name == "hybrid" else {"population": 8}
    result = optimize(make_optimizer(name, settings, 4, 3), objective, StopRules(**rules))
    return result.generations, result.stop_reason


#: Rules of which each alone ends a search, whatever optimizer it is.
STOPS: dict[str, tuple[dict[str, Any], str]] = {
    "generations": ({"generations": 2}, "2 generations"),
    "cost": ({"cost": 1e6}, "reached the target 1e+06"),
    "seconds": ({"seconds": 1e-9}, "s allowed"),
    "evaluations": ({"evaluations": 9}, "candidates scored of 9 allowed"),
    "stagnation": ({"stagnation": 1, "tolerance": 1e-6}, "no relative gain"),
    "tolerance": ({"stagnation": 1, "tolerance": 10.0}, "no relative gain above 10"),
}


@pytest.mark.parametrize("name", ["genetic", "hybrid"])
def test_rules_to_stop_act(name: str) -> None:
    for rule, (rules, why) in STOPS.items():
        generations, reason = stopped(name, rules)
        assert why in reason
        without = {"generations": 30} | rules
        del without[rule]
        assert stopped(name, without or {"generations": 30}) != (generations, reason), rule


def test_the_search_of_a_file_is_the_one_that_runs(tmp_path: Path) -> None:
    prepare(tmp_path)
    search = {"optimizer": {"name": "genetic", "population": 7}, "stop": {"generations": 3}}
    for name in ("model", "function"):
        file = tmp_path / f"{name}.yaml"
        file.write_text(dump_yaml(changed(BASES[name], "fit", BASES[name]["fit"] | search)))
        loaded = load_plan(file, (), "reference")
        scorer = make_scorer(loaded, "reference")
        result = optimize(loaded.make_optimizer(), loaded.objective(scorer), loaded.stop_rules)
        assert (result.optimizer, result.evaluations, result.generations) == ("genetic", 21, 3)
