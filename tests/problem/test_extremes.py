"""Strange rates and gates are told by name, voltage and value, by every command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from channelfit.front.commands.validate import FASTEST, _drawn
from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model
from channelfit.problem.extreme_rates import extremes, fastest_rates, voltages_of
from channelfit.problem.protocol import build_protocol
from support.json_output import ran, refused

pytestmark = pytest.mark.usefixtures("undrawn")

STEPS = {
    "holding": "-80 mV",
    "sampling": "0.5 ms",
    "segments": [{"hold": 2}, {"step": {"values": [-100, 0, 40]}, "for": 10}],
}


CURRENT = {"conductance": "g", "reversal": "-80 mV"}
PARAMETERS = {"a": {"range": [-1, 1], "value": 0.1}, "g": {"range": [0, 10], "value": 3}}


def scheme(forward: str, backward: str = "0.5", **current: object) -> dict[str, object]:
    rates = {"states": ["C", "O"], "rates": {"C -> O": forward, "O -> C": backward}}
    return rates | {"current": {"open": ["O"]} | CURRENT | current, "parameters": PARAMETERS}


def gates(**keys: object) -> dict[str, object]:
    return {"gates": {"m": keys}, "current": CURRENT, "parameters": PARAMETERS}


def told(document: dict[str, object]) -> list[str]:
    model: ChannelModel = build_model(document, None)
    found = extremes(model, model.values(), voltages_of([build_protocol(STEPS, None)]))
    return [str(extreme) for extreme in found]


def test_what_is_strange_is_told():
    for document, text in (
        (scheme("a + 0.01*v"), "rate C -> O is -0.9 /ms at -100 mV (and at 1 other voltage): a"),
        (scheme("sqrt(a + 0.01*v)"), "rate C -> O is not a number at -100 mV (and at 1 other volt"),
        (scheme("a*exp(v*10)"), "rate C -> O is 5.22147e+172 /ms at 40 mV: taken for 1e+100 /ms"),
        (scheme("a + 1", "1e-110"), "rate O -> C is 1e-110 /ms: taken for 1e-100 /ms"),
        (gates(inf="a + 0.01*v", tau="1"), "inf of gate m is -0.9 at -100 mV (and at 1 other volt"),
        (gates(inf="0.99 + a", tau="1"), "inf of gate m is 1.09: taken as written, since a gate"),
        (gates(inf="0.5", tau="a + 0.01*v"), "write `tau: 0` for a gate without one"),
        (scheme("a + 1", conductance="g/(a - 0.1)"), "the conductance is inf nS: no current"),
    ):
        assert any(text in one for one in told(document))


def test_nothing_is_said_of_an_ordinary_model_or_a_fast_one() -> None:
    assert told(scheme("3.8e8*exp(0.22*v)*(a + 1)")) == []
    assert told(gates(inf="0.5*(a + 1)/2", tau=0)) == []


def test_random_sets_are_drawn_in_to_what_neuron_can_follow() -> None:
    """But not the file's own values, and none whose rates are ordinary."""
    v = voltages_of([build_protocol(STEPS, None)])
    model = build_model(scheme("10*exp(a*v)"), None)  # at -100 mV up to 10 e^100
    own = model.values()
    assert fastest_rates(model, own[:, None], v) == pytest.approx(10 * np.exp(0.1 * 40))
    drawn, drawn_in = _drawn(model, 40, 0, v)
    assert drawn_in
    assert np.array_equal(drawn[:, 0], own)
    assert (fastest_rates(model, drawn, v) <= FASTEST).all()
    assert len(np.unique(drawn[0])) == 40
    fast = model.with_values(np.array([-1.0, 3.0]))
    drawn, _ = _drawn(fast, 4, 0, v)
    assert np.array_equal(drawn[:, 0], [-1.0, 3.0])
    assert not _drawn(build_model(scheme("1 + a"), None), 40, 0, v)[1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.yaml").write_text(json.dumps(STEPS))
    return tmp_path


def written(folder: Path, document: dict[str, object]) -> str:
    document = {**document, "fit": {"protocols": ["steps.yaml"], "surrogate": {"noise": "1 pA"}}}
    (folder / "model.yaml").write_text(json.dumps(document))
    return "model.yaml"


def test_simulate_refuses_and_writes_nothing(folder: Path) -> None:
    model = written(folder, scheme("a + 0.01*v"))
    done = refused("simulate", model, "steps.yaml", "--backend", "reference")
    assert "rate C -> O is -0.9 /ms at -100 mV" in done.output
    assert sorted(p.name for p in folder.iterdir()) == ["model.yaml", "steps.yaml"]


def test_a_search_says_why_candidates_failed(folder: Path) -> None:
    model = written(folder, scheme("a + 0.0005*v"))
    done = ran("optimize", model, "--out", "run")
    assert "negative rate" in done.output
    assert "such as rate C -> O is -" in done.output
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["failing_examples"][0].startswith("rate C -> O is -")
    assert summary["strange_rates"] == []
