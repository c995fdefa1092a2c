"""`channelfit inspect` and `channelfit init`: from a file of the rig to a fit that runs."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import channelfit as cf
from channelfit.front.kinds import load_plan
from channelfit.front.starter import current_kind, starter_clamp
from channelfit.problem.inspection import FileOptions, inspect_file
from channelfit.problem.measures import leak, transient_ms
from channelfit.reading.formats import read
from support import json_output
from support.json_output import ran, refused, run
from support.places import DATA, ROOT, needs_data
from support.recorded_files import OPENS, STEPS, model, recorded
from support.rig_files import write_eph

CLOSES = {"power": 1, "alpha": "0.002*exp(-0.05*v)", "beta": "0.2*exp(0.03*v)"}
DOWN = {"power": 1, "alpha": "0.0005*exp(-0.04*v)", "beta": "0.2*exp(0.05*v)"}


#: How the recording of `here` is begun with.
INIT = ["init", "cell.csv", "--command", "steps.yaml"]


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recording, `cell.csv`, and its protocol, `steps.yaml`."""
    folder = tmp_path_factory.mktemp("cell")
    recorded(folder, {"m": OPENS})
    return folder


@pytest.fixture
def here(cell: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user is in such a folder."""
    shutil.copytree(cell, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- what is measured ----------------------------------------------------------------------------


def test_leak_and_transients_are_those_that_were_put_in(cell: Path) -> None:
    found = inspect_file(cell / "cell.csv", FileOptions(command=cell / "steps.yaml"))
    assert found.noise_pA == pytest.approx(3, rel=0.1)
    assert found.leak is not None
    assert found.leak.conductance_nS == pytest.approx(0.5, rel=0.1)
    assert found.leak.reversal_mV == pytest.approx(-20, abs=10)
    assert 0.5 <= found.transient_ms <= 1.5  # exp(-t/0.2 ms) is 3 % after 0.7 ms
    assert found.peak is not None
    assert found.peak.sweep == 7
    assert not found.unit_is_guessed


def test_no_transients_and_no_leak_are_told_as_such() -> None:
    current = np.random.default_rng(1).normal(size=STEPS.command().shape)
    assert transient_ms(current, STEPS, 1.0) == 0
    found = leak(current, STEPS, 0.0)
    assert found is not None
    assert found.conductance_nS < 0.03
    positive = cf.Protocol.steps([0, 20, 40], 20, before=5, holding=-20, sampling=0.1)
    assert leak(np.zeros(positive.command().shape), positive, 0.0) is None


def test_a_ramp_gives_the_leak() -> None:
    protocol = cf.Protocol.from_segments(
        [{"hold": 5}, {"ramp": [-120, -70], "for": 50}, {"step": 40, "for": 20}],
        holding=-80,
        sampling=0.1,
    )
    found = leak(2.0 * (protocol.command() + 7), protocol, 0.0)
    assert found is not None
    assert found.conductance_nS == pytest.approx(2)
    assert found.reversal_mV == pytest.approx(-7)
    assert found.seal_MOhm == pytest.approx(500)
    assert "ramp -120 to" in found.source


def test_run_down_and_what_looks_wrong(tmp_path: Path) -> None:
    rows = [{"hold": {"values": [10] * 5}}, {"step": 20, "for": 30}]
    same = cf.Protocol.from_segments(rows, holding=-80, sampling=0.1, name="same")
    file = recorded(tmp_path, {"m": OPENS}, protocol=same, capacitance=0.0)
    table = np.genfromtxt(file, delimiter=",", names=True)
    columns = [table[name] for name in table.dtype.names]
    for k in range(1, 6):
        columns[k] = columns[k] * (1 - 0.1 * (k - 1))
    names = ["time (ms)", *(f"I{k}" for k in range(1, 6))]
    text = np.column_stack(columns)
    np.savetxt(file, text, delimiter=",", header=",".join(names), comments="", fmt="%.8g")
    found = inspect_file(file, FileOptions(command=tmp_path / "steps.yaml"))
    assert found.run_down == pytest.approx(-0.4, abs=0.02)
    told = " | ".join(map(str, found.cautions))
    assert "the peak changes by -40 % from the first sweep to the last" in told
    assert "no unit of the current is stated; nA was taken" in told
    command = ["--command", tmp_path / "steps.yaml", "--out", tmp_path / "o.png"]
    shown = run("inspect", file, *command)
    assert "verdict" in shown.output
    assert "to look at before a fit" in shown.output
    assert "nothing looks wrong" not in shown.output


def test_a_unit_that_was_told_is_not_guessed(here: Path) -> None:
    Path("bare.csv").write_text(Path("cell.csv").read_text().replace(" (nA)", ""))
    told = inspect_file(here / "bare.csv", FileOptions(command=here / "steps.yaml", unit="nA"))
    guessed = inspect_file(here / "bare.csv", FileOptions(command=here / "steps.yaml"))
    assert (told.unit_is_guessed, guessed.unit, guessed.unit_is_guessed) == (False, "nA", True)
    assert np.allclose(guessed.current_pA, told.current_pA)


# --- inspect -------------------------------------------------------------------------------------


def test_inspect_prints_writes_and_draws(here: Path) -> None:
    command = ["inspect", "cell.csv", "--command", "steps.yaml"]
    Path("other").mkdir()
    shutil.copy("cell.csv", "other/cell.csv")
    ran("inspect", "cell.csv", "other/cell.csv")
    two = ["cell-2-inspect.png", "cell-inspect.png"]
    assert sorted(p.name for p in here.glob("*.png")) == two  # of one name a picture each
    done = ran(*command, "--protocol", "found.yaml", "--csv", "found.csv")
    for text in (
        "8 of 1400 samples every 0.1 ms (140 ms)",
        "holding -80 mV, from the file steps.yaml",
        "step -100 mV to 40 mV by 20 mV, 60 ms",
        "from steps between -100 and -80 mV",
    ):
        assert text in done.output
    assert (here / "cell-inspect.png").stat().st_size > 20_000
    assert cf.Protocol.load("found.yaml").sweeps == STEPS.sweeps
    table = np.genfromtxt("found.csv", delimiter=",", skip_header=1)
    given = np.genfromtxt("cell.csv", delimiter=",", skip_header=1)
    assert np.allclose(table[:, 1:], 1000 * given[:, 1:], rtol=1e-6)
    done = refused(*command, "--protocol", "found.yaml")
    assert "found.yaml: this file exists already" in done.output


def test_a_command_is_taken_as_the_recording_is_sampled(here: Path) -> None:
    text = Path("steps.yaml").read_text()
    Path("coarse.yaml").write_text(text.replace("sampling: 0.1 ms", "sampling: 1 ms"))
    found = inspect_file(here / "cell.csv", FileOptions(command=here / "coarse.yaml"))
    assert found.protocol is not None
    assert (found.protocol.sweeps, found.protocol.sampling_ms) == (STEPS.sweeps, 0.1)
    assert found.peak is not None
    table = np.genfromtxt("cell.csv", delimiter=",", skip_header=1)
    np.savetxt("bare.csv", table[:, 1:], delimiter=",", header="I (nA)" + ",I (nA)" * 7)
    bare = inspect_file(here / "bare.csv", FileOptions(command=here / "steps.yaml"))
    assert (bare.sampling_ms, bare.peak is None) == (0.1, False)


def test_a_command_that_is_none_is_told(here: Path) -> None:
    random = np.random.default_rng(4).normal(size=(400, 2))
    table = np.column_stack([np.arange(400) / 10, random * [5, 30]])
    np.savetxt("noise.csv", table, delimiter=",", header="t (ms),I (pA),V (mV)", comments="")
    told = " ".join(run("inspect", "noise.csv").output.split())
    assert "mV from its protocol, at " in told
    assert "name the protocol with --command" in told


def test_inspect_shows_a_protocol_with_its_junction_potential(here: Path) -> None:
    file = write_eph(here / "p.eph")
    assert run("inspect", file, "--protocol", "p.yaml").exit_code == 0
    text = Path("p.yaml").read_text()
    Path("p.yaml").write_text(text + "junction_potential: 4.5 mV\n")
    done = ran("inspect", "p.yaml")
    assert "the command less 4.5 mV of junction potential" in " ".join(done.output.split())
    held = cf.Protocol.load(file).holding_mV
    assert f"holding {held - 4.5:g} mV" in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["init", "cell.csv"], "no protocol is known of it"),
        ([*INIT, "--model", "k_h"], "There are: herg_beattie"),
        (["init", "steps.yaml"], "no current is known of it"),
        (["cell.csv", "steps.yaml", "--csv", "x.csv"], "write what is in one FILE"),
        (["cell.csv", "--sampling", "1ms"], "sampling: 1 ms, but the file is sampled every 0.1 ms"),
        (["cell.csv", "--unit", "mV"], 'unit "mV" is a voltage'),
        (["cell.csv", "--signal", "9"], 'no signal "9"; there are 1: '),
        (["two.csv", "--signal", "V"], '"V" is in mV, and a current in pA, nA or the like'),
        (["fit.yaml", "--unit", "nA"], "a fit says itself how its recordings are read"),
        (["model.yaml"], "a model without a `fit` section"),
        (["cell.csv", "--command", "cell.csv"], "cell.csv: no protocol in it"),
        (["cell.csv", "--command", "other.yaml"], "8 sweeps of 1400 samples, but other has 2"),
    ],
)
def test_what_inspect_and_init_refuse(words: list[str], message: str, here: Path) -> None:
    Path("model.yaml").write_text(model({"m": OPENS}, -90).to_yaml())
    cf.Protocol.steps([0, 20], 5, holding=-80, sampling=0.1, name="other").save("other.yaml")
    Path("fit.yaml").write_text("model: model.yaml\nfit: {}\n")
    Path("two.csv").write_text("t (ms),I (pA),V (mV)\n0,1,-80\n1,2,-80\n2,3,-80\n")
    before = sorted(here.iterdir())
    words = words if words[0] == "init" else ["inspect", *words]
    assert message in refused(*words).output
    assert sorted(here.iterdir()) == before


# --- init ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gates", "reversal", "inactivating", "opens_down", "inward"),
    [
        ({"m": OPENS}, -90, False, False, False),
        ({"m": OPENS, "h": CLOSES}, -90, True, False, False),
        ({"m": OPENS, "h": CLOSES}, 50, True, False, True),
        ({"m": OPENS}, 60, False, False, True),
        ({"m": DOWN}, -20, False, True, True),
    ],
)
def test_what_kind_of_current_it_is(
    gates: dict[str, Any], reversal: float, inactivating: bool, opens_down: bool, inward: bool,
    tmp_path: Path,
) -> None:  # fmt: skip
    step = {"from": -120 if opens_down else -100, "to": 40, "by": 20}
    rows = [{"hold": 20}, {"step": step, "for": 60}, {"hold": 20}]
    holding = -40 if opens_down else -80
    protocol = cf.Protocol.from_segments(rows, holding=holding, sampling=0.1)
    file = recorded(tmp_path, gates, reversal, 0.05, protocol)
    kind = current_kind(inspect_file(file, FileOptions(command=tmp_path / "steps.yaml")))
    assert (kind.inactivating, kind.opens_down, kind.inward) == (inactivating, opens_down, inward)
    low, high = kind.reversal_mV
    assert low <= reversal <= high
    assert kind.reason


def test_a_starter_fit_runs_at_once_and_finds_the_channel(here: Path) -> None:
    ran(*INIT)
    text = Path("cell-fit.yaml").read_text()
    assert "# The model was chosen because the largest current" in text
    assert "baseline: {from: 0 ms, to: 20 ms}" in text
    assert re.search(r"after_steps: (0\.\d|1|1\.5) ms", text)
    (experiment,) = load_plan("cell-fit.yaml").problem.experiments
    assert experiment.recording is not None
    shown = ran("inspect", "cell-fit.yaml")  # what it scores
    assert f"{int((experiment.recording.weight > 0).sum()):,} of 11,200 samples" in shown.output
    assert (here / "cell-fit-inspect.png").stat().st_size > 20_000
    fitted = ran("optimize", "cell-fit.yaml", "--json", "--quiet")
    summary = json_output.summary(fitted.stdout)
    assert summary["variance_explained"] > 0.999
    assert summary["parameters"]["gl"]["value"] == pytest.approx(0.5, rel=0.05)
    assert summary["parameters"]["g"]["value"] == pytest.approx(20, rel=0.05)


def test_nothing_is_replaced_and_what_is_there_is_used(here: Path) -> None:
    assert run(*INIT).exit_code == 0
    before = {file: file.read_bytes() for file in here.iterdir()}
    assert "cell-model.yaml: this file exists already and is not replaced" in refused(*INIT).output
    assert {file: file.read_bytes() for file in here.iterdir()} == before
    other = ran(*INIT, "--model", "k_hh_gate", "--out", "other.yaml")
    assert other.stdout.split() == ["other.yaml"]
    assert "gmax: {range: [" in Path("other.yaml").read_text()
    Path("cell-protocol.yaml").write_text("mine")
    refused(*INIT, "--model", "k_hh_gate", "--out", "third.yaml")
    assert Path("cell-protocol.yaml").read_text() == "mine"


def test_a_starter_of_a_shipped_model_frees_its_fixed_reversal(here: Path) -> None:
    """k_hh_gate has -100 mV, the recording -90 mV; with the model's own every value is biased."""
    assert run(*INIT, "--model", "k_hh_gate").exit_code == 0
    text = Path("cell-fit.yaml").read_text()
    assert "current: {reversal: erev}    # the model's own is -100 mV; leave this" in text
    assert "  erev: {range: [-110, -60], unit: mV}" in text
    assert "# temperature: 6.3 degC    # the model's; that of the recordings belongs here" in text
    model = load_plan("cell-fit.yaml").problem.model
    assert str(model.reversal) == "erev"
    kept = "\n".join(line for line in text.splitlines() if "erev" not in line)
    Path("kept.yaml").write_text(kept)
    assert float(load_plan("kept.yaml").problem.model.reversal) == -100
    strange = text.replace("parameters:", "parameters:\n  nowhere: {range: [0, 1]}")
    Path("strange.yaml").write_text(strange)
    with pytest.raises(cf.InputError, match="the model has no such parameter"):
        load_plan("strange.yaml")


def test_several_recordings_are_experiments_of_one_fit(here: Path) -> None:
    shutil.copy("cell.csv", "twin.csv")
    ran("init", "cell.csv", "twin.csv", "--command", "steps.yaml", "--out", "both.yaml")
    rows = yaml.safe_load(Path("both.yaml").read_text())["fit"]["experiments"]
    assert [row["recording"]["file"] for row in rows] == ["cell.csv", "twin.csv"]
    assert len({row["protocol"] for row in rows}) == 1
    assert len(load_plan("both.yaml").problem.experiments) == 2


def test_init_asks_for_a_unit_that_nothing_says(here: Path) -> None:
    """Currents in pA with little noise look like nA; both readings are in the message."""
    from scipy.io import savemat  # loads SciPy

    (here / "steps.yaml").write_text(
        "holding: -80 mV\nsampling: 0.1 ms\nsegments: [{hold: 2}, {step: 0, for: 8}, {hold: 2}]\n"
    )
    current = np.full((120, 1), -3.0)
    current[20:100, 0] = 1930.0 * (1 - np.exp(-np.arange(80) / 10))
    current[:, 0] += 0.1 * np.random.default_rng(1).standard_normal(120)
    savemat(here / "cell.mat", {"T": current})
    words = ["init", "cell.mat", "--command", "steps.yaml", "--sampling", "0.1ms"]
    before = sorted(here.iterdir())
    done = refused(*words)
    told = " ".join(done.output.split())
    assert "cell.mat: the file does not say the unit of these currents" in told
    assert re.search(r"in pA they reach 19[23]\d pA .* in nA they reach 1,9[23]", told), told
    assert "--unit nA" in told
    assert sorted(here.iterdir()) == before
    assert run(*words, "--unit", "pA").exit_code == 0


def test_names_of_a_hostile_file_stay_in_their_comments_and_keys(here: Path) -> None:
    single = cf.Protocol.steps(20, 40, before=20, after=40, holding=-80, sampling=0.1)
    file = recorded(here, {"m": OPENS}, protocol=single)
    name = 'cell: {x}, "y" # z.csv'
    file.rename(here / name)
    text = (here / name).read_text().replace("I1 (nA)", '"\x1b[31mI1: {# (nA)"', 1)
    (here / name).write_text(text)
    shown = run("inspect", name, "--command", "steps.yaml", "--out", "x.png")
    assert "\x1b" not in shown.output
    assert "\x1b" not in ran("init", name, "--command", "steps.yaml", "--out", "fit.yaml").output
    assert "\x1b" not in Path("fit.yaml").read_text()
    (row,) = yaml.safe_load(Path("fit.yaml").read_text())["fit"]["experiments"]
    assert row["recording"]["file"] == name


# --- real recordings -----------------------------------------------------------------------------


LISTED = [
    file
    for folder in ("abf", "formats", "herg_37C", "herg_sine_wave", "herg_syncropatch", "nav_iv")
    for file in sorted((DATA / folder).glob("*"))
    if file.suffix in (".abf", ".wcp", ".mat", ".gz", ".eph") or "steps" in file.name
]


@pytest.mark.integration
@needs_data
@pytest.mark.parametrize("file", LISTED, ids=lambda file: file.name)
def test_every_real_file_is_inspected(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = ran("inspect", file)
    assert len(list(tmp_path.glob("*.png"))) == 1
    contents = read(file)
    if contents.signals:
        assert f"{contents.n_sweeps} of {contents.n_samples} samples" in done.output


@needs_data
def test_a_real_staircase_with_its_protocol(here: Path) -> None:
    file = DATA / "herg_syncropatch" / "herg25oc1-staircaseramp-A13-before.csv.gz"
    found = inspect_file(file)
    assert found.protocol is not None
    assert found.protocol.sweeps == cf.Protocol.load(file.parent / "staircase-ramp.eph").sweeps
    assert found.leak is not None
    assert 0.9 < found.leak.conductance_nS < 1.4
    kind = current_kind(found)
    assert (kind.inactivating, kind.opens_down) == (True, False)


@needs_data
def test_the_peak_of_a_real_sodium_current_is_the_one_in_the_file() -> None:
    """Read again by NumPy alone: the smoothed peak is less, and both are said."""
    file = DATA / "nav_iv/220314_001_ch1_NaIV_25C_80CP.csv.gz"
    told = FileOptions(unit="nA", sampling_ms=0.04, command=file.parent / "ina-steps-2.txt")
    found = inspect_file(file, told)
    table = 1e3 * np.genfromtxt(file, delimiter=",", skip_header=1)
    table -= table[:250].mean(axis=0)
    assert found.protocol is not None
    assert found.protocol.sweeps == cf.Protocol.load(ROOT / "protocols" / "na_iv.yaml").sweeps
    assert found.peak is not None
    assert found.peak.current_pA == pytest.approx(-15_314, rel=0.01)
    assert (found.peak.voltage_mV, inspect_file(file, replace(told, unit=None)).unit) == (-20, "nA")
    assert found.peak.raw_pA == pytest.approx(table[250:750].min(), abs=1e-6)
    assert abs(found.peak.current_pA) < abs(found.peak.raw_pA)
    # 220314_001_ch1_NaIV_25C_80CP_meta.csv beside it, of which the compensation is not said
    assert found.of_the_clamp("series_resistance_MOhm") == 4.5148
    assert found.of_the_clamp("membrane_capacitance_pF") == 10.08
    assert np.ptp(found.contents.clamp["seal_resistance_MOhm"]) > 100
    clamp = starter_clamp(found, None)
    assert clamp is not None
    assert not clamp.active
    assert "does not say how much of the series resistance is compensated" in clamp.reason
    other = inspect_file(file.with_name(file.name.replace("80CP", "0CP")), told)
    assert any("each MOhm that is not compensated loses" in str(c) for c in other.cautions)


@pytest.mark.integration
@needs_data
def test_what_a_blocker_takes_away_is_the_start_of_a_fit(here: Path) -> None:
    """A real staircase before and after E-4031; the difference read again by NumPy alone."""
    folder = DATA / "herg_syncropatch"
    before, after = (
        folder / f"herg25oc1-staircaseramp-A13-{when}.csv.gz" for when in ("before", "after")
    )
    how = ["--command", folder / "staircase-ramp.eph", "--sampling", "0.2ms", "--unit", "pA"]
    both = ran("init", before, after, *how, "--out", "both.yaml")
    told = " ".join(both.stderr.split())
    assert f'--subtract "{after.name}"' in told
    assert "% of that of" in told
    done = ran("init", before, "--subtract", after, *how, "--out", "one/fit.yaml")
    assert "--subtract" not in done.stderr
    (experiment,) = load_plan(Path("one/fit.yaml")).problem.experiments
    assert experiment.recording is not None
    left = np.genfromtxt(before, skip_header=1) - np.genfromtxt(after, skip_header=1)
    shown = experiment.recording.current_pA[0]
    rest = left[: round(250 / 0.2)].mean()
    np.testing.assert_allclose(shown, left[: len(shown)] - rest, atol=1e-6)
    refused("init", before, "--subtract", DATA / "herg_37C/staircase1-WT-cell-1.csv.gz", *how)
