"""Schemes on the same data: criteria against closed forms, what is refused, and the commands."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from matplotlib.image import imread
from scipy.stats import norm

from channelfit.front.kinds import load_plan
from channelfit.front.main import main
from channelfit.reading.documents import dump_yaml
from channelfit.reading.errors import InputError
from channelfit.results import comparison
from channelfit.results.comparison import ComparedFit, file_names, weights
from support import json_output
from support.little import save_fit
from support.uncertain import MODEL, STEPS, loaded

NAMES = ("a", "z", "b", "g")
SHUT = {
    "states": ["C", "O", "I"],
    "rates": MODEL["rates"] | {"O -> I": "k", "I -> O": "r"},
    "parameters": MODEL["parameters"]
    | {
        "k": {"range": [1e-6, 10], "unit": "1/ms", "scale": "log", "value": 1e-3},
        "r": {"range": [1e-3, 10], "unit": "1/ms", "scale": "log", "value": 0.1},
    },
}


def score_fits(
    files: Sequence[Path], backend: str = "auto", as_is: bool = False
) -> list[ComparedFit]:
    plans = (load_plan(file, backend=backend) for file in files)
    return comparison.score_fits(plans, file_names(files), backend, as_is)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[Path, Path]:
    """The scheme that made the data, and one with a state too many; a second protocol held out."""
    folder = tmp_path_factory.mktemp("two")
    for name in ("true", "more"):
        (folder / name).mkdir()
    fit = loaded(folder, noise=30.0)
    data = folder / "true"
    save_fit(fit, fit.problem.model.values(), data)
    (folder / "late.yaml").write_text(STEPS.replace("name: steps", "name: late"))
    recording = {
        "file": "../true/data.csv",
        "time": {"column": "time_ms", "unit": "ms"},
        "current": {"columns": "all", "unit": "pA"},
    }
    experiments = [
        {"protocol": "../steps.yaml", "recording": recording},
        {"protocol": "../late.yaml", "recording": recording, "weight": 0},
    ]
    for name, change in (("true", {}), ("more", SHUT)):
        document = MODEL | change | {"fit": {"experiments": experiments}}
        (folder / name / "fit.yaml").write_text(dump_yaml(document))
    return data / "fit.yaml", folder / "more" / "fit.yaml"


@pytest.fixture(scope="module")
def compared(two):
    return score_fits(two, "cpu")


def test_the_criteria_are_those_of_a_gaussian_likelihood(compared):
    for one in compared:
        experiment = one.fit.problem.experiments[0]
        n = experiment.recording.current_pA.size
        squares = np.sum((one.winner.traces[0] - experiment.recording.current_pA) ** 2)
        # at the most likely variance, squares/n
        log_likelihood = -n / 2 * (math.log(2 * math.pi * squares / n) + 1)
        k = len(one.fit.space.free) + 1
        constant = n * (math.log(2 * math.pi) + 1)
        assert one.aic + constant == pytest.approx(2 * k - 2 * log_likelihood, rel=1e-9)
        assert one.bic + constant == pytest.approx(k * math.log(n) - 2 * log_likelihood, rel=1e-9)
        assert list(one.fitted) == ["steps"]  # what was held out is the same data, predicted
        rms, unit = one.predicted["late"]
        assert (rms, unit) == (pytest.approx(one.fitted["steps"][0]), "pA")
    true, more = compared  # a state too many fits as well and loses
    assert [c.label for c in compared] == ["true", "more"]
    assert (true.n_parameters, more.n_parameters) == (4, 6)
    assert more.cost <= true.cost * (1 + 1e-6)
    assert true.bic < more.bic
    assert true.cost == pytest.approx(900, rel=0.2)


def test_weights_are_shares_of_likelihood():
    assert weights([10.0, 10.0]) == [0.5, 0.5]
    assert weights([0.0, 2 * math.log(4)]) == pytest.approx([0.8, 0.2])
    assert weights([-math.inf, 5.0]) == [1.0, 0.0]
    assert sum(weights([3.0, 4000.0, 3.5])) == pytest.approx(1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": "30.0"}, "experiment 1 has another recording"),
        ({"weight": 2}, "experiment 1 has another weight or mask"),
    ],
)
def test_other_data_are_refused(two, tmp_path, change, words):
    text = two[1].read_text().replace("../", f"{two[0].parents[1].as_posix()}/")
    if "data" in change:
        rows = two[0].with_name("data.csv").read_text().splitlines()
        rows[3] = re.sub(r",[^,]*$", ",30.0", rows[3])
        (tmp_path / "data.csv").write_text("\n".join(rows))
        text = text.replace(f"{two[0].parent.as_posix()}/data.csv", "data.csv")
    if "weight" in change:
        text = text.replace("    recording:", "    weight: 2\n    recording:", 1)
    other = tmp_path / "other.yaml"
    other.write_text(text)
    with pytest.raises(InputError) as caught:
        score_fits([two[0], other], "reference")
    assert words in str(caught.value)
    assert "other.yaml" in str(caught.value)
    with pytest.raises(InputError, match="two or more"):
        score_fits(two[:1])


def test_compare_prints_and_draws(two, tmp_path):
    result = run("compare", *two, "--out", tmp_path / "out", "--backend", "cpu")
    assert result.exit_code == 0, result.output
    shown = "true,more,best,held out: late,AIC,BIC,a ,1/ms,variance explained,peaks off by"
    for word in shown.split(","):
        assert word in result.stdout
    rows = json.loads((tmp_path / "out" / "comparison.json").read_text())["fits"]
    assert [row["label"] for row in rows] == ["true", "more"]
    assert sum(row["aic_weight"] for row in rows) == pytest.approx(1)
    assert min(row["bic_difference"] for row in rows) == 0
    for row in rows:
        fitted, held_out = row["experiments"]
        assert row["variance_explained"] == pytest.approx(fitted["variance_explained"])
        assert 0.5 < fitted["variance_explained"] < 1
        # the same recording under the same steps: predicted as well as it is fitted
        assert held_out["peak_error_pA"] == pytest.approx(fitted["peak_error_pA"])
    assert imread(tmp_path / "out" / "comparison.png").std() > 0.01
    result = run("compare", *two, "--out", tmp_path, "--json", "--as-is", "--backend", "cpu")
    printed = json.loads(result.stdout)
    assert printed == json.loads((tmp_path / "comparison.json").read_text())
    for one in score_fits(two, "cpu", as_is=True):
        np.testing.assert_array_equal(one.values, one.fit.problem.model.values())


def test_uncertainty_writes_everything(two, tmp_path):
    pytest.importorskip("emcee")
    wanted = ("--profiles", "a,g", "--families", 8, "--posterior", 60)
    result = run("uncertainty", two[0], *wanted, "--out", tmp_path, "--backend", "cpu")
    assert result.exit_code == 0, result.output
    names = {p.name for p in tmp_path.iterdir()}
    pictures = {"uncertainty.png", "profiles.png", "families.png", "posterior.png"}
    assert names == pictures | {"uncertainty.json", "profiles.csv", "posterior.csv", "refined.yaml"}
    for name in pictures:
        assert imread(tmp_path / name).std() > 0.01
    found = json.loads((tmp_path / "uncertainty.json").read_text())
    assert set(found["profiles"]) == {"a", "g"}
    for name in NAMES:
        low, high = found["parameters"][name]["interval"]
        assert low < found["parameters"][name]["value"] < high
        assert low < MODEL["parameters"][name]["value"] < high
    assert found["cost"] < found["cost_before_refining"]
    assert "too short" in result.stdout
    assert "±" in result.stdout
    again = ("uncertainty", tmp_path / "refined.yaml", "--out", tmp_path / "again")
    refined = run(*again, "--json", "--backend", "cpu")
    assert json_output.summary(refined.stdout)["cost"] == pytest.approx(found["cost"], rel=1e-6)


def test_a_preferred_scheme_that_predicts_worse_is_named(compared):
    """The data that were held out speak against the scheme that has all weight."""
    true, more = compared
    assert not any("speaks against" in text for text in comparison.remarks(compared))
    rows: list[dict[str, tuple[float, str]]] = [{"late": (x, "pA")} for x in (64.0, 41.0)]
    off = [replace(c, predicted=one) for c, one in zip((true, more), rows, strict=True)]
    (sentence,) = [text for text in comparison.remarks(off) if "speaks against" in text]
    assert re.fullmatch(
        r"late, which was held out, speaks against true, which has \d+ % of the weight by BIC: it "
        r"predicts it with 64 pA, more with 41 pA \(root mean square\)",
        sentence,
    )
    slow = [replace(c, correlation_time=1690.0) for c in compared]
    ms = 1690 * true.fit.problem.experiments[0].protocol.sampling_ms
    assert f"up to 1,690 samples ({ms:.3g} ms)" in comparison.remarks(slow)[0]


# --- observations ---------------------------------------------------------------------------------

PEAK = {"file": "g.csv", "x": "v", "value": "i", "error": "sem", "window": {"segment": 2}}
MEAN = PEAK | {"measure": "mean"}


def of_experiments(
    two: Sequence[Path], folder: Path, *experiments: dict[str, object], **fit: object
) -> list[Path]:
    """Both schemes, with their values, as fits to other experiments."""
    (folder / "g.csv").write_text("v,i,sem\n-40,300,60\n0,700,40\n40,1100,30\n")
    (folder / "steps.yaml").write_text(STEPS)
    files = []
    for name, change in (("true", {}), ("more", SHUT)):
        document = MODEL | change | {"fit": {"experiments": list(experiments), **fit}}
        files.append(folder / f"{name}.yaml")
        files[-1].write_text(dump_yaml(document))
    return files


@pytest.mark.parametrize("beside", ["alone", "recording", "held out", "only held out"])
def test_the_criteria_of_observations_know_their_errors(two, tmp_path, beside):
    """Against SciPy's Gaussian likelihood of the numbers as they stand in the table."""
    seen: dict[str, object] = {"protocol": "steps.yaml", "observe": [PEAK, MEAN]}
    recorded = {
        "protocol": "steps.yaml",
        "recording": {
            "file": str(two[0].with_name("data.csv")),
            "time": {"column": "time_ms", "unit": "ms"},
            "current": {"columns": "all", "unit": "pA"},
        },
    }
    given: dict[str, object] = {}
    if beside in ("recording", "only held out"):
        given = {"noise": "25 pA"}
    if beside == "held out":
        recorded["weight"] = 0
    if beside == "only held out":
        seen["weight"] = 0
    rows = [seen] if beside == "alone" else [recorded, seen]
    compared = score_fits(of_experiments(two, tmp_path, *rows, **given), "cpu", as_is=True)
    expected = []
    for one in compared:
        likelihood, n = 0.0, 0
        for e, trace in zip(one.fit.problem.experiments, one.winner.traces, strict=True):
            if e.weight == 0:
                continue
            for o, row in zip(e.observations, trace, strict=False):
                likelihood += norm.logpdf(o.value, row / o.scale, o.error).sum()
                n += 3
            if not e.observations:
                likelihood += norm.logpdf(e.recording.current_pA, trace, 25.0).sum()
                n += trace.size
        k = one.n_parameters
        expected.append((2 * k - 2 * likelihood, math.log(n) * k - 2 * likelihood))
        assert one.n_samples == n
    true, more = compared
    if beside != "only held out":  # else the variance follows from the residuals
        apart = np.diff(expected, axis=0)[0]
        assert (more.aic - true.aic, more.bic - true.bic) == pytest.approx(apart, rel=1e-6)
    units = {"recording": "pA", "only held out": "pA"}.get(beside, "standard errors")
    (plain, _) = comparison.as_plain(compared)
    assert ("rms_pA" in plain, "rms_in_errors" in plain) == (units == "pA", units != "pA")
    by_hand = [
        (row / o.scale - o.value) / o.error
        for o, row in zip(
            true.fit.problem.experiments[-1].observations, true.winner.traces[-1], strict=True
        )
    ]
    where = "predicted_rms_in_errors" if beside == "only held out" else "fitted_rms_in_errors"
    (rms,) = plain[where].values()
    assert rms == pytest.approx(np.sqrt(np.mean(np.square(by_hand))), rel=1e-9)
    said = " ".join(comparison.remarks(compared))
    assert ("standard errors for known" in said) == (beside != "only held out")
    assert ("noise of a sample for 25 pA" in said) == (beside == "recording")
    assert ("even the best fit misses the data by" in said) == (beside in ("alone", "held out"))
    figures = comparison.comparison_figures(compared, "both")
    assert len(figures) == (1 if beside == "alone" else 2)
    assert [text.get_text() for text in figures[-1].legends[0].get_texts()] == ["true", "more"]


def test_traces_and_observations_do_not_compare(two, tmp_path):
    seen = {"protocol": "steps.yaml", "observe": [PEAK, MEAN]}
    (tmp_path / "a").mkdir()
    first = of_experiments(two, tmp_path / "a", seen)[0]
    for k, (observe, words) in enumerate(
        (
            (None, r"another kind of data \(a recording\)"),
            ([PEAK], "another number of observations"),
            ([PEAK, PEAK], r'another observation "g" \(it is taken from the current in another'),
            ([PEAK, MEAN | {"error": 50}], "another recording"),
        )
    ):
        (tmp_path / str(k)).mkdir()
        row = {"protocol": "steps.yaml", "observe": observe}
        if observe is None:
            recording = {
                "file": str(two[0].with_name("data.csv")),
                "time": {"column": "time_ms", "unit": "ms"},
                "current": {"columns": "all", "unit": "pA"},
            }
            row = {"protocol": "steps.yaml", "recording": recording}
        other = of_experiments(two, tmp_path / str(k), row)[0]
        with pytest.raises(InputError, match=words):
            score_fits([first, other], "cpu", as_is=True)
