"""Wells that are wrong without a large misfit: what their residuals say, and what is required."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.integrate import solve_ivp

import channelfit as cf
from channelfit.batch.checks import FaultSize, ResidualFaults, Stretches, find_faults
from channelfit.batch.limits import LIMITS, SURE, doubts
from channelfit.batch.run import BatchRequest, ready
from channelfit.batch.table import WellTable
from channelfit.batch.template import Template, carried_nS
from channelfit.reading.errors import InputError
from support.plate_folder import FIT, MODEL
from support.three_states import LITTLE, THREE_STATES, planned

H, LENGTH, STEPS = 0.2, 120.0, (-40.0, -20.0, 0.0, 20.0, 40.0)
A, Z, B, G, REVERSAL = 0.2, 0.03, 0.1, 25.0, -85.0
KINDS = ("good", "good", "rundown", "series", "other")


def opened(volts: float, start: float, t: np.ndarray, series: float, rate: float) -> np.ndarray:
    """The open share and, behind a series resistance, the potential; by SciPy alone."""

    def potential(o: Any) -> Any:
        lost = 1e-3 * series * G * o
        return (volts + lost * REVERSAL) / (1 + lost)

    def slope(_: float, y: np.ndarray) -> list[float]:
        v = potential(y[0])
        slow = 1 / (1 + np.exp((v - rate) / 5)) if rate else 1.0
        return [(A * np.exp(Z * v) * (1 - y[0]) - B * y[0]) * slow]

    found = solve_ivp(slope, (0, t[-1] + H), [start], "LSODA", t, rtol=1e-8, atol=1e-10)
    return np.array([found.y[0], potential(found.y[0])])


def recorded(kind: str, random: np.random.Generator) -> np.ndarray:
    """The currents of a well, (5, 600) pA: two states in good wells, with a fault in others."""
    series, rate = (8.0 if kind == "series" else 0.0), (20.0 if kind == "other" else 0.0)
    sweeps = []
    for k, level in enumerate(STEPS):
        a = A * np.exp(Z * -80)
        state, rows = a / (a + B), []
        for volts, length in ((-80.0, 20.0), (level, 80.0), (-80.0, 20.0)):
            t = np.arange(round(length / H) + 1) * H
            found = opened(volts, state, t, series, rate)
            state = found[0, -1]
            rows.append(found[:, :-1])
        share, potential = np.concatenate(rows, axis=1)
        along = (k + np.linspace(0, 1, len(share))) / len(STEPS)
        left = 1 - 0.12 * along if kind == "rundown" else 1.0
        sweeps.append(G * share * left * (potential - REVERSAL))
    clean = np.array(sweeps)
    return clean + random.normal(0, 30 if kind == "rundown" else 10, clean.shape)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, random = tmp_path_factory.mktemp("faults"), np.random.default_rng(3)
    np.save(place / "wells.npy", np.array([recorded(kind, random) for kind in KINDS]))
    segments = [{"hold": 20}, {"step": {"values": list(STEPS)}, "for": 80}, {"hold": 20}]
    protocol = {"name": "steps", "holding": -80, "sampling": H, "segments": segments}
    (place / "steps.yaml").write_text(yaml.safe_dump(protocol))
    (given,) = FIT["fit"]["experiments"]
    recording = {"protocol": "steps.yaml", "recording": given["recording"] | {"file": "any.npy"}}
    model = MODEL | {"fit": {"experiments": [recording]}}
    (place / "kv.yaml").write_text(yaml.safe_dump(model, sort_keys=False))
    return place


@pytest.fixture(scope="module")
def table(folder: Path) -> WellTable:
    cf.fit_batch(folder / "kv.yaml", folder / "wells.npy", folder=folder / "run", progress=False)
    return WellTable.read(folder / "run")


def test_wells_that_are_wrong_without_a_large_misfit_are_to_be_checked(table: WellTable) -> None:
    assert (table["rms"][:4] < 2 * table["noise"][:4]).all()  # no size of a misfit shows it
    assert [str(q) for q in table["quality"]] == ["ok", "ok", "check", "check", "check"]
    assert "a rundown of 1" in table["reason"][2]
    assert table["residual_rundown"][2] == pytest.approx(0.12, abs=0.02)
    assert "a series resistance of" in table["reason"][3]
    assert 4 < table["residual_series_resistance"][3] < 20  # of 8, gates left out
    assert "the slow misfit is" in table["reason"][4]


def stretches(random: np.random.Generator, n: int = 400, noise: float = 1.0) -> Stretches:
    """Stretches of a recording that steps between two voltages, two parameters fitted."""
    time = np.linspace(0, 1, n)
    volts = np.where(np.arange(n) // 40 % 2, 20.0, -80.0)
    channel = 100 * np.maximum(volts, 0) / 20
    slopes = np.stack([channel, np.gradient(channel)], axis=1)
    residual = noise * random.standard_normal(n)
    return Stretches(
        residual=residual,
        fit=channel,
        volts=volts,
        time=time,
        channel=channel,
        slope=channel / 100,
        root=np.ones(n),
        block=np.zeros(n, int),
        slopes=slopes,
    )


def test_noise_is_no_fault_however_many_wells_there_are() -> None:
    found = [find_faults(stretches(np.random.default_rng(k))) for k in range(300)]
    assert not [why for one in found for why in doubts(one, {}, ())]
    sure = [abs(one.rundown.value) / one.rundown.error for one in found]
    assert np.mean(np.square(sure)) == pytest.approx(1, abs=0.35)  # errors are as they say
    made = stretches(np.random.default_rng(1))  # and what parameters can do is none
    made.residual[:] += 30 * made.slopes[:, 0] - 5 * made.slopes[:, 1]
    assert not doubts(find_faults(made), {}, ())
    few = find_faults(stretches(np.random.default_rng(1), 60))
    assert np.isnan([few.slow, few.rundown.value]).all()
    assert doubts(few, {"seal": np.nan, "run_down": np.nan}, ()) == []


def test_every_limit_has_its_sentence_and_can_be_replaced() -> None:
    sure = dict.fromkeys(("rundown", "series_MOhm", "leak_nS", "holding_pA"), FaultSize())
    sizes = {"peak_pA": 500.0, "largest_pA": 500.0, "range_mV": 100.0}
    cases: dict[str, tuple[ResidualFaults, dict[str, float]]] = {
        "seal": (ResidualFaults(), {"seal": 40.0}),
        "run_down": (ResidualFaults(), {"run_down": -0.3}),
        "clamp_lost": (ResidualFaults(), {"clamp_lost": 9.0, "clamp_resistance": 8.0}),
        "slow_misfit": (ResidualFaults(slow=3.0, slow_sure=9.0), {}),
    }
    faults = {
        "residual_rundown": ("rundown", 0.1),
        "residual_series_resistance": ("series_MOhm", 9.0),
        "residual_leak": ("leak_nS", 1.0),
        "residual_holding": ("holding_pA", -80.0),
    }
    for name, (field, value) in faults.items():
        beyond = FaultSize(value, abs(value) / (SURE + 1))
        cases[name] = (ResidualFaults(**{**sure, field: beyond}, **sizes), {})
    assert set(cases) | {"rms/noise"} == set(LIMITS)
    for name, (one, measured) in cases.items():
        (text,) = doubts(one, measured, ())
        assert len(text) < 150
        assert ";" not in text
        assert doubts(one, measured, (name,)) == []


def test_a_leak_that_open_channels_carry_is_no_poor_seal(tmp_path: Path) -> None:
    steps = "name: s\nholding: -80 mV\nsampling: 0.5 ms\nsegments:\n  - {hold: 20 ms}\n"
    steps += "  - {step: -120 mV, for: 40 ms}\n  - {hold: 20 ms}\n"
    for document, own in ((LITTLE, 0.0), (THREE_STATES, 0.5)):
        problem = planned(tmp_path, document, steps).problem
        current = 20.0 * (problem.experiments[0].protocol.command() + 85)
        carried = carried_nS(problem, current, problem.values()[:, None])
        assert carried == pytest.approx(20.0 - own)  # the model's own leak is no channel's


def required(folder: Path, entries: Any) -> Path:
    document = yaml.safe_load((folder / "kv.yaml").read_text())
    document["fit"]["require"] = entries
    file = folder / "required.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file


def test_what_is_required_decides_beside_the_limits(folder: Path) -> None:
    own = {"g_error/g": "< 0.00001", "seal": "> 500 MOhm", "rms / noise": "< 3", "b": "> 1e-6 /ms"}
    file = required(folder, own | {"residual_rundown": "< 0.9", "abs(rundown)": "< 0.9"})
    assert {"rms/noise", "residual_rundown"} <= Template.read(file).replaced
    assert Template.read(required(folder, {"rundown": "> -0.3"})).replaced == {"run_down"}
    required(folder, own | {"residual_rundown": "< 0.9"})
    found = cf.fit_batch(file, folder / "wells.npy", only=["wells 1", "wells 3"], progress=False)
    reasons = [str(row["reason"]) for row in found._wells.rows()]
    for reason in reasons:
        assert "seal is not known, where > 500 MOhm is required" in reason
        assert "where < 0.00001 is required" in reason
        assert "rms/noise" not in reason
        assert "b is" not in reason
        assert "rundown of" not in reason  # whose limit is replaced
    assert set(found._wells["quality"]) == {"check"}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"seall": "> 500"}, 'fit.require.seall: there is no column "seall"; did you mean seal?'),
        ({"seal": 500}, 'fit.require.seal: a comparison such as "> 500 MOhm" or "< 0.05" was'),
        ({"seal": "> 5 mV"}, 'fit.require.seal: seal is in MOhm, which "mV" is not'),
        ({"g_error/": "< 1"}, "is no column, and no arithmetic"),
        ({"().__class__": "< 1"}, "fit.require.().__class__:"),
        (["seal > 3"], "fit.require: a mapping"),
    ],
)
def test_what_cannot_be_required_is_told_before_the_work(folder, entries, message):
    file = required(folder, entries)
    with pytest.raises(InputError) as caught:
        ready(BatchRequest(file, (str(folder / "wells.npy"),)))
    assert message in str(caught.value)
    assert "required.yaml" in str(caught.value)
