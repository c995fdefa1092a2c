"""Faults planted in recordings are told, each by its own caution; what is right stays silent."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from channelfit.front.kinds import load_plan
from channelfit.model.model_file import load_model
from channelfit.problem.beside_model import fit_cautions
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.jumps import other_order
from channelfit.problem.plausibility import protocol_cautions
from channelfit.problem.protocol import Protocol, build_protocol, load_protocol
from channelfit.problem.recording import Recording, masks
from channelfit.reading.documents import Section, dump_yaml
from channelfit.scoring.scorer import make_scorer
from support.exports import simulated
from support.places import DATA, ROOT, needs_data
from support.truths import slow_but

#: Model and protocol of each recording that is simulated here.
CELLS = {
    "model_a": "activation",
    "k_hh_gate": "deactivation",
    "na_hh": "na_iv",
    "herg_beattie": "staircase",
}
NOISE = 5.0


@pytest.fixture(scope="module")
def currents() -> dict[str, np.ndarray]:
    """Noisy currents (n_sweeps, n_times) pA of every cell, by the model's name."""
    found = {}
    for name in CELLS:
        current = noiseless(name)
        found[name] = current + NOISE * np.random.default_rng(3).standard_normal(current.shape)
    return found


def noiseless(name: str) -> np.ndarray:
    model = load_model(ROOT / "models" / f"{name}.yaml")
    return simulated(model, model.values(), _protocol(CELLS[name]))


def _protocol(name: str) -> Protocol:
    return load_protocol(ROOT / "protocols" / f"{name}.yaml")


def cautions(
    folder: Path,
    name: str,
    current: np.ndarray,
    protocol: str = "",
    digits: int = 9,
    beside: dict[str, Any] | None = None,
    **row: Any,
) -> str:
    """What is said of a fit of a shipped model to these currents, one caution a line."""
    protocol = protocol or str(ROOT / "protocols" / f"{CELLS[name]}.yaml")
    h = load_protocol(protocol).sampling_ms
    _table(folder / "cell.csv", current, digits)
    recording = {"file": "cell.csv", "sampling": h, "current": {"columns": "all", "unit": "pA"}}
    recording |= row.pop("recording", {})
    fit = {"experiments": [{"protocol": protocol, "recording": recording, **row}]}
    path = folder / "fit.yaml"
    document = {"model": str(ROOT / f"models/{name}.yaml"), "fit": fit} | (beside or {})
    path.write_text(dump_yaml(document))
    return "\n".join(map(str, load_plan(path).cautions))


@pytest.mark.parametrize("name", slow_but(["k_hh_gate", "na_hh"], CELLS))
@pytest.mark.parametrize("mask", [[], [{"after_steps": "1 ms"}]])
def test_what_is_right_is_silent(tmp_path: Path, currents: Any, name: str, mask: Any) -> None:
    assert cautions(tmp_path, name, currents[name], mask=mask) == ""


@pytest.mark.parametrize("name", slow_but(["k_hh_gate"], CELLS))
def test_without_noise_and_with_few_digits_it_is_silent(tmp_path: Path, name: str) -> None:
    """Plateaus of equal values are not clipped, nor are five digits too low a gain."""
    assert cautions(tmp_path, name, noiseless(name), digits=5) == ""


@pytest.mark.parametrize(
    ("name", "protocol"),
    slow_but(
        [("na_hh", "recovery")],
        [("herg_beattie", "staircase"), ("na_hh", "recovery"), ("k_hh_gate", "ramp")],
    ),
)
def test_currents_of_other_cells_are_silent(tmp_path: Path, name: str, protocol: str) -> None:
    """Parameters within a factor of two of the published, any conductance of the range."""
    model, random = load_model(ROOT / "models" / f"{name}.yaml"), np.random.default_rng(11)
    lower, upper = (np.array([getattr(p, k) for p in model.parameters]) for k in ("lower", "upper"))
    columns = model.values()[:, None] * 2 ** random.uniform(-1, 1, (len(lower), 6))
    place = next(str(s) for s in model.conductance.free_symbols)
    row = model.parameter_names.index(place)
    columns[row] = random.uniform(lower[row] + 0.05 * upper[row], upper[row], 6)
    columns = np.clip(columns, np.minimum(lower, upper)[:, None], upper[:, None])
    file = str(ROOT / "protocols" / f"{protocol}.yaml")
    problem = Problem(model, (Experiment(load_protocol(file)),))
    currents = make_scorer(problem, "cpu").simulate(columns)[0]
    noise = random.choice([0.0, 2.0, 10.0], 6) * random.standard_normal(currents.shape)
    for k in range(6):
        current = (currents + noise)[:, :, k]
        assert cautions(tmp_path, name, current, file) == "", columns[:, k]


PLANTED: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str]] = {
    "pA read as nA": (lambda i: i * 1e3, r"needs [\d.e+]+ nS .*in pA, and read as nA"),
    "nA read as pA": (lambda i: i / 1e3, r"needs [\d.e+-]+ nS .*in nA, and read as pA"),
    "sign": (lambda i: -i, r"\d+ % of the current .* against the driving force.*sign inverted"),
    "of another protocol": (
        lambda i: np.roll(i, i.shape[1] // 7, axis=1),
        r"jumps by .* pA at .* where the command has not",
    ),
    "constant": (
        lambda i: np.where(np.arange(len(i))[:, None] == 0, 7.0, i),
        r"every sample of sweep 1 is 7 pA",
    ),
    "few levels": (
        lambda i: np.round(i / (np.ptp(i) / 12)) * np.ptp(i) / 12,
        r"samples take only \d+ values, [\d.]+ pA apart",
    ),
    "clipped": (
        lambda i: np.clip(i, 0.6 * i.min(), 0.6 * i.max()),
        r"stays at exactly -?[\d.e+]+ pA for \d+ samples from [\d.]+ ms",
    ),
    "clock": (
        lambda i: np.tile(np.arange(i.shape[1]) * 0.1, (len(i), 1)),
        r"current of sweep 1 rises evenly from 0 to",
    ),
}


@pytest.mark.parametrize("name", slow_but(["model_a", "na_hh"], CELLS))
@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_told_with_place_and_value(tmp_path, currents, name, fault):
    change, said = PLANTED[fault]
    told = cautions(tmp_path, name, change(currents[name]))
    assert re.search(rf"fit\.yaml: fit\.experiments\[1\]\.recording: .*{said}", told), told


_LEAK = {"conductance": "gl", "reversal": "el"}
_LEAK_ROWS = {"gl": {"range": [0, 5], "unit": "nS"}, "el": {"range": [-120, 30], "unit": "mV"}}
#: What stands beside the model, and beside the recording, of a cell that leaks.
LEAKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "of the model": ({"leak": _LEAK, "parameters": _LEAK_ROWS}, {}),
    "of the clamp": ({"parameters": _LEAK_ROWS}, {"clamp": {"leak": _LEAK}}),
    "as init writes it": (
        {"leak": _LEAK | {"reversal": "-80 mV"}, "parameters": {"gl": _LEAK_ROWS["gl"]}},
        {"clamp": {"series_resistance": "5 MOhm", "membrane_capacitance": "20 pF"}},
    ),
}


@pytest.mark.parametrize("name", slow_but(["model_a", "na_hh"], CELLS))
@pytest.mark.parametrize("leak", LEAKS)
def test_sign_and_unit_are_judged_beside_a_leak_and_a_clamp(tmp_path, currents, name, leak):
    beside, row = LEAKS[leak]
    reversal = -80.0 if leak == "as init writes it" else 0.0
    current = currents[name] + 0.5 * (_protocol(CELLS[name]).command() - reversal)
    assert cautions(tmp_path, name, current, beside=beside, **row) == ""
    problem = load_plan(tmp_path / "fit.yaml").problem
    for fault in ("sign", "pA read as nA", "nA read as pA"):
        change, said = PLANTED[fault]
        told = "\n".join(map(str, fit_cautions(_with_currents(problem, change), ["cell.csv"], 5)))
        assert re.search(said, told), (fault, told)


def _with_currents(problem: Problem, change: Callable[[np.ndarray], np.ndarray]) -> Problem:
    """The problem of one experiment with its currents changed."""
    (experiment,) = problem.experiments
    recording = experiment.recording
    changed = replace(recording, current_pA=change(recording.current_pA))
    return replace(problem, experiments=(replace(experiment, recording=changed),))


def test_sign_and_size_of_a_current_that_no_single_conductance_says(tmp_path: Path) -> None:
    """A calcium current after Goldman, Hodgkin and Katz with a leak: two terms, none ohmic."""
    model = tmp_path / "ca.yaml"
    model.write_text(
        "name: ca\ntemperature: 22 degC\n"
        "gates: {m: {power: 2, alpha: 0.5*exp(0.05*v), beta: 0.2*exp(-0.05*v)}}\n"
        "current:\n  permeability: p\n  ion: {valence: 2, inside: 1e-4 mM, outside: 2 mM}\n"
        "leak: {conductance: gl, reversal: 0 mV}\n"
        "parameters:\n  p: {range: [0.1, 5], unit: um3/ms, value: 0.2}\n"
        "  gl: {range: [0, 2], unit: nS, value: 0.3}\n"
    )
    channel, protocol = load_model(model), _protocol("na_iv")
    recording = Recording.from_arrays(protocol, simulated(channel, channel.values(), protocol))
    problem = Problem(channel, (Experiment(protocol, recording),))
    told = [
        "\n".join(map(str, fit_cautions(_with_currents(problem, change), ["cell.csv"], 2)))
        for change in (lambda i: i, lambda i: -i, lambda i: 1e3 * i)
    ]
    assert told[0] == ""
    assert "against the driving force" in told[1]
    assert re.search(r"is [\d.e+]+ times the largest current of all channels there, .*nA", told[2])


def _table(file: Path, sweeps: np.ndarray, digits: int = 9) -> None:
    rows = [",".join(f"{x:.{digits}g}" for x in row) for row in sweeps.T]
    file.write_text("\n".join([",".join(f"s{k}" for k in range(len(sweeps))), *rows]))


def test_what_is_subtracted_hides_no_peak_that_was_cut_off_and_has_a_scale(tmp_path, currents):
    """It varies, so that no two samples of what is left are equal."""
    whole = currents["model_a"]
    cut = np.clip(whole, None, 0.6 * whole.max())
    blocked = np.random.default_rng(5).normal(0, 2, cut.shape)
    _table(tmp_path / "after.csv", blocked)
    steps = {"recording": {"condition": [{"subtract": {"file": "after.csv"}}]}}
    assert cautions(tmp_path, "model_a", whole, **steps) == ""
    assert "stays at exactly" in cautions(tmp_path, "model_a", cut, **steps)
    mask = {"mask": [{"from": "5 ms", "to": "46 ms"}]}
    assert "stays at exactly" not in cautions(tmp_path, "model_a", cut, **steps, **mask)
    _table(tmp_path / "after.csv", 25 * blocked)
    scale = {"file": "after.csv", "scale": "fit", "over": {"from": "0 ms", "to": "5 ms"}}
    steps = {"recording": {"condition": [{"subtract": scale}]}}
    told = cautions(tmp_path, "model_a", whole - 0.4 * blocked, **steps)
    assert re.search(r"condition\[1\].subtract: the scale .*with the other sign", told)
    assert cautions(tmp_path, "model_a", whole + 25 * blocked, **steps) == ""


_NOISE = [{"to": "10 ms"}, {"from": "10 ms", "sweeps": list(range(5, 25))}]


@pytest.mark.parametrize(
    ("name", "row", "said"),
    [
        ("model_a", {"mask": [{"from": "5 ms"}]}, "first step, at the holding potential of -100"),
        ("model_a", {"mask": [{"to": "45.7 ms"}, {"from": "46 ms"}]}, "only 39 of 6500 samples"),
        ("model_a", {"mask": [{"to": "7.7 ms"}, {"from": "8 ms"}]}, "for 5 free parameters"),
        ("model_a", {"mask": [{"from": "90 ms", "to": "120 ms"}]}, "leaves out no sample"),
        ("model_a", {"mask": [{"from": "4 ms", "to": "9 ms"}]}, ""),
        ("na_hh", {"mask": _NOISE}, "samples that count stray by"),
        ("na_hh", {"mask": _NOISE[:1]}, ""),
        ("model_a", {"recording": {"baseline": {"from": 15, "to": 20}}}, "the baseline is taken"),
        ("model_a", {"recording": {"baseline": {"from": 0, "to": 4}}}, ""),
    ],
)
def test_masks_and_baselines_that_leave_the_wrong_samples(tmp_path, currents, name, row, said):
    told = cautions(tmp_path, name, currents[name], **row)
    assert said in told
    assert bool(said) == bool(told), told


@pytest.mark.parametrize("name", CELLS)
def test_the_command_in_place_of_the_current_is_told(tmp_path: Path, name: str) -> None:
    command = _protocol(CELLS[name]).command()
    assert "follows the command, from" in cautions(tmp_path, name, command)


_LATE = {"late": {"range": [0, 0.3], "unit": "ms"}}


_SLOW = {"series_resistance": "10 MOhm", "membrane_capacitance": "20 pF", "cancellation": 1}


@pytest.mark.parametrize(
    ("clamp", "mask", "told"),
    [
        ({"series_resistance": "4 MOhm", "membrane_capacitance": "10 pF"}, [], True),
        ({"compensation": {"lag": "1 us"}}, [], True),
        ({"lowpass": {"cutoff": "10 kHz"}}, [], False),
        ({"compensation": {"lag": "0.2 ms"}}, [], False),
        (_SLOW, [], False),
        ({"compensation": {"lag": "1 us"}}, [{"after_steps": "0.5 ms"}], False),
    ],
)
def test_a_delay_fitted_to_what_no_sample_resolves(tmp_path, currents, clamp, mask, told):
    row = {"clamp": clamp | {"delay": "late"}, "mask": mask, "beside": {"parameters": _LATE}}
    said = cautions(tmp_path, "model_a", currents["model_a"], **row)
    assert ("fit.experiments[1]: a delay is fitted" in said) == told, said
    assert told or said == ""


# --- protocols -----------------------------------------------------------------------------------
def built(sampling: float, *segments: dict[str, Any], **keys: Any) -> Protocol:
    rows = {"holding": -80, "sampling": sampling, "segments": list(segments)}
    return build_protocol(rows | keys, None)


def told_of(protocol: Protocol) -> list[str]:
    return [str(caution) for caution in protocol_cautions(protocol, "p.yaml")]


def test_times_and_voltages_of_another_unit() -> None:
    step = {"step": 0, "for": 40}
    for right in (built(0.1, step), built(0.1, step, junction_potential=12)):
        assert told_of(right) == []
    assert told_of(built(1e-4, {"step": 0, "for": 0.04})) == [
        "p.yaml: the longest sweep lasts 0.04 ms; are its times in s?"
    ]
    for wrong, told in (
        (built(100, {"step": 0, "for": 40000}), "every 100 ms for 40 s; are its times in ms"),
        (built(0.1, step, junction_potential=-60), "a junction potential of -60 mV"),
        (built(0.1, step | {"step": 0.02}, holding=-0.08), "stays within 0.08 mV; is it in V?"),
    ):
        assert told in told_of(wrong)[0]


@pytest.mark.parametrize("path", sorted((ROOT / "protocols").glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_protocols_are_plausible(path: Path) -> None:
    if "${CHANNELFIT_DATA}" in path.read_text() and not DATA.is_dir():
        pytest.skip("needs CHANNELFIT_DATA")
    assert told_of(load_protocol(path)) == []


def recorded(folder: Path, t: np.ndarray, v: np.ndarray, **keys: Any) -> Protocol:
    rows = [f"{a:.9g},{b:.9g}" for a, b in zip(t, v, strict=True)]
    (folder / "v.csv").write_text("\n".join(["t,v", *rows]))
    row = {"file": str(folder / "v.csv"), "column": "v", "time": {"column": "t"}} | keys
    return built(0.1, {"recorded": row})


# --- steps that masks must see -------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_steps_inside_a_recorded_command_are_steps(tmp_path, width, noise):
    """Of 1 to 3 samples, with the noise of the amplifier; a ramp and an upstroke are none."""
    t = np.arange(6000) * 0.1
    knots = [0, 100, 300, 400, 420, 421, 520, 600]
    levels = [-80, -80, -80, 20, 20, 20, -80, -80]
    v = np.interp(t, knots, levels)  # a slow ramp
    for at, step in ((50.0, 40.0), (70.0, -40.0), (550.0, 10.0)):
        v += step * np.clip((t - at) / (0.1 * width) + 1 / width, 0, 1)
    v[2000:2020] += np.linspace(0, 60, 20)  # an upstroke of 2 ms and the way back
    v[2020:2060] += np.linspace(60, 0, 40)
    v += noise * np.random.default_rng(0).standard_normal(len(t))
    steps = recorded(tmp_path, t, v).step_times_ms(0)
    np.testing.assert_allclose(steps, [50, 70, 550], atol=1e-6)
    weight = masks([Section({"after_steps": "1 ms"}, None, "mask")], recorded(tmp_path, t, v))
    assert weight[0, 496:514].tolist() == [1] * 4 + [0] * 10 + [1] * 4


# --- a staircase in another order ----------------------------------------------------------------
def _reordered(protocol: Protocol, seed: int) -> Protocol:
    """A staircase of one sweep with the voltages of its stairs, of 500 ms each, shuffled."""
    (sweep,) = protocol.sweeps
    stairs = [k for k, s in enumerate(sweep) if s.is_constant and 3400 <= s.start_ms < 12900]
    waves = [sweep[k].wave for k in np.random.default_rng(seed).permutation(stairs)]
    made = list(sweep)
    for k, wave in zip(stairs, waves, strict=True):
        made[k] = replace(sweep[k], wave=wave)
    return replace(protocol, sweeps=(tuple(made),))


@pytest.mark.parametrize(
    ("spike", "fast_ms"),
    [(0.0, 1.0), (60.0, 0.3), (-120.0, 0.6)],
    ids=["none", "spikes", "inverse"],
)
def test_a_staircase_in_another_order_is_told(tmp_path, currents, spike, fast_ms):
    """pA per mV; without spikes nothing tells, and nothing is said of the order that is right."""
    right = _protocol("staircase")
    charging = np.zeros((1, right.n_times_max))
    command = right.command()[0]
    for time in right.step_times_ms(0):
        k = round(time / right.sampling_ms)
        after = np.arange(charging.size - k) * right.sampling_ms
        charging[0, k:] += spike * (command[k] - command[k - 1]) * np.exp(-after / fast_ms)
    current = currents["herg_beattie"] + charging
    mask = [{"after_steps": "5 ms"}]
    assert cautions(tmp_path, "herg_beattie", current, mask=mask) == ""
    wrong = _reordered(right, 1).save(tmp_path / "wrong.yaml")
    told = cautions(tmp_path, "herg_beattie", current, str(wrong), mask=mask)
    assert ("voltages in another order" in told) == (spike != 0), told
    if spike:
        steps, at, like, jump = re.search(
            r"at (\d+) of 31 .* at ([\d.]+) ms as if by (\S+) mV, .* jumps by (\S+) mV", told
        ).groups()
        assert int(steps) < 25
        k = round(float(at) / right.sampling_ms)
        true = command[k] - command[k - 1]
        assert abs(float(like) - true) <= 20 < abs(float(jump) - true)


@needs_data
@pytest.mark.parametrize("seed", range(4))
def test_a_real_staircase_in_another_order_is_told(seed: int) -> None:
    """By the spikes in what a blocker takes away."""
    (experiment,) = load_plan(ROOT / "models/fits/herg_syncropatch_a13.yaml").problem.experiments
    recording = experiment.recording
    assert other_order(experiment.protocol, recording.current_pA) is None
    found = other_order(_reordered(experiment.protocol, seed), recording.current_pA)
    assert found.still_astray <= 1 < 6 < found.astray


# --- real recordings -----------------------------------------------------------------------------
FITS = sorted((ROOT / "models/fits").glob("*.yaml"))


@needs_data
@pytest.mark.parametrize("path", FITS, ids=lambda p: p.stem)
def test_shipped_fits_are_plausible(path: Path) -> None:
    assert load_plan(path).cautions == ()


@needs_data
@pytest.mark.parametrize("swapped", [False, True])
def test_before_and_after_a_blocker_that_changed_places(tmp_path: Path, swapped: bool) -> None:
    """The shipped fit of the blocked current, with and without the two files in each other's place,
    beside a leak as `init` writes it."""
    text = (ROOT / "models/fits/herg_syncropatch_a13.yaml").read_text()
    text = text.replace("../herg_beattie.yaml", str(ROOT / "models/herg_beattie.yaml"))
    if swapped:
        text = text.replace("-before.", "-between.").replace("-after.", "-before.")
        text = text.replace("-between.", "-after.")
    text += "leak: {conductance: gl, reversal: -80 mV}\n"
    text += "parameters: {gl: {range: [0, 3], unit: nS}, g: {range: [5, 300]}}\n"
    (tmp_path / "fit.yaml").write_text(text)
    told = "\n".join(map(str, load_plan(tmp_path / "fit.yaml").cautions))
    assert ("flows against the driving force" in told) == swapped, told
    assert swapped or told == ""
