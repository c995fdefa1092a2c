"""`channelfit curves`: files of data, curve files, the table, and messages."""

from __future__ import annotations

import copy
import csv
import gzip
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import channelfit as cf
from channelfit.curves.batch import CurveSettings
from channelfit.curves.curve import build_curve, load_curve
from channelfit.curves.curve_tasks import fit_curve
from channelfit.curves.data_files import read_data
from channelfit.curves.fitting import DataSets
from channelfit.front.main import main
from channelfit.reading.csv_tables import bare
from channelfit.reading.documents import dump_yaml, parse_yaml
from channelfit.reading.errors import InputError
from channelfit.reading.keys import KEYS
from support.curve_sets import activation
from support.places import ROOT

GOOD: dict[str, Any] = {
    "inputs": "x",
    "parameters": {"a": {}, "k": {"range": ["1/x_span", 5], "scale": "log"}},
    "curve": "a*exp(-k*x)",
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["curves", *map(str, arguments)])


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_wide(path: Path, table: np.ndarray) -> Path:
    names = ["v", *(f"cell {k}" for k in range(1, table.shape[1]))]
    lines = [",".join(names)]
    lines += [",".join("" if np.isnan(x) else repr(x) for x in row) for row in table.tolist()]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take most of the time of small fits: few tests have them drawn."""
    if request.node.name not in ("test_a_wide_table", "test_a_key_of_a_curve_acts[curve-inputs]"):
        monkeypatch.setattr("channelfit.front.commands.curves.fits_figure", lambda *_: None)


# --- end to end ----------------------------------------------------------------------------------


def test_too_few_good_fits_end_with_3(tmp_path: Path) -> None:
    table = activation(2)
    table[:, 2] = 0.5
    data = write_wide(tmp_path / "some.csv", table)
    few = run("boltzmann", data, "--out", tmp_path / "few", "--backend", "cpu", "--min-ok", 2)
    assert few.exit_code == 3, few.output
    assert "Error: 1 of 2 data sets are ok, fewer than --min-ok 2" in few.stderr
    assert len(rows_of(tmp_path / "few.csv")) == 2  # the results are there
    assert run("boltzmann", data, "--out", tmp_path / "one", "--backend", "cpu").exit_code == 0
    table[:, 1] = 0.5
    data = write_wide(tmp_path / "flat.csv", table)
    none = run("boltzmann", data, "--out", tmp_path / "none", "--backend", "cpu", "--json")
    assert none.exit_code == 3
    assert json.loads(none.stdout.splitlines()[-1])["reason"] == "all 2 data sets failed"


def test_a_wide_table(tmp_path: Path) -> None:
    table = activation()
    table[3, 2] = np.nan
    table[:, 5] = 0.5
    data = write_wide(tmp_path / "activation.csv", table)
    done = run(
        "boltzmann", data, "--out", tmp_path / "fits" / "act", "--covariance", "--backend", "cpu"
    )
    assert done.exit_code == 0, done.output
    assert "5 data sets on cpu: 3 ok, 1 check, 1 failed" in done.output
    rows = rows_of(tmp_path / "fits" / "act.csv")
    assert [row["set"] for row in rows] == [f"cell {k}" for k in range(1, 6)]
    assert [row["quality"] for row in rows] == ["ok", "check", "ok", "ok", "failed"]
    assert rows[1]["reason"] == "1 of 15 points are not numbers and were left out"
    assert rows[4]["half"] == ""
    assert rows[4]["reason"] == "all points are equal"
    for row in rows[:4]:
        assert abs(float(row["half"]) + 32) < 5 * float(row["half_error"])
        assert float(row["half_error"]) < 1.5
    assert (tmp_path / "fits" / "act.png").stat().st_size > 10_000
    covariance = np.load(tmp_path / "fits" / "act-covariance.npy")
    assert covariance.shape == (5, 4, 4)
    assert np.sqrt(covariance[0, 0, 0]) == pytest.approx(float(rows[0]["half_error"]), rel=1e-6)
    assert not list((tmp_path / "fits").glob(".*"))


def test_a_long_table_of_sets_with_their_own_inputs(tmp_path: Path) -> None:
    table = activation(3)
    cells = table.tolist()
    lines = ["set;v;g"]
    own = {"b, 2": range(15), "a": range(0, 15, 2), '=c"x': range(15)}
    for k in range(15):  # rows of different sets in turn, as instruments write them
        for j, (label, kept) in enumerate(own.items(), 1):
            if k in kept:
                quoted = '"' + label.replace('"', '""') + '"'
                lines.append(f"{quoted};{cells[k][0]!r};{cells[k][j]!r}")
    data = tmp_path / "long.csv"
    data.write_text("\n".join(lines))
    done = run("boltzmann", data, "--out", tmp_path / "long-fits", "--backend", "cpu")
    assert done.exit_code == 0, done.output
    rows = rows_of(tmp_path / "long-fits.csv")
    assert [bare(row["set"]) for row in rows] == list(own)
    assert [row["points"] for row in rows] == ["15", "8", "15"]
    wide = write_wide(tmp_path / "wide.csv", table[:, [0, 1, 3]])
    run("boltzmann", wide, "--out", tmp_path / "wide-fits", "--backend", "cpu")
    same = rows_of(tmp_path / "wide-fits.csv")
    assert [row["half"] for row in same] == [rows[0]["half"], rows[2]["half"]]


def test_a_curve_of_two_inputs_in_a_list_of_points(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    x, y = random.uniform(0, 10, (2, 60))
    z = (
        1
        + 5 * np.exp(-(((x - 4) / 1.5) ** 2 + ((y - 6) / 2.5) ** 2) / 2)
        + random.normal(0, 0.01, 60)
    )
    rows = "\n".join(
        f"{a!r},{b!r},{c!r}" for a, b, c in zip(x.tolist(), y.tolist(), z.tolist(), strict=True)
    )
    (tmp_path / "points.csv").write_text("x,y,z\n" + rows)
    done = run("gaussian_2d", tmp_path / "points.csv", "--out", tmp_path / "p", "--backend", "cpu")
    assert done.exit_code == 0, done.output
    row = rows_of(tmp_path / "p.csv")[0]
    assert float(row["center_x"]) == pytest.approx(4, abs=0.05)
    assert float(row["width_y"]) == pytest.approx(2.5, abs=0.05)


BASE: dict[str, Any] = {
    "inputs": "x",
    "parameters": {
        "a": {},
        "b": {},
        "k": {"range": [0.5, 5], "scale": "log"},
        "m": {"range": [0.1, 3]},
    },
    "definitions": {"late": "exp(-m*x)"},
    "curve": "a*exp(-k*x) + b*late",
}
#: By section and key: where it stands, and two values of it that come to something different.
ACTING: dict[tuple[str, str], tuple[tuple[str, ...], Any, Any]] = {
    ("curve", "name"): (("name",), "one", "two"),
    ("curve", "description"): (("description",), "one", "two"),
    ("curve", "source"): (("source",), "one", "two"),
    ("curve", "inputs"): (("inputs",), "x", "q"),
    ("curve", "parameters"): (
        ("parameters",),
        BASE["parameters"],
        BASE["parameters"] | {"m": {"range": [0.1, 0.15]}},
    ),
    ("curve", "curve"): (("curve",), BASE["curve"], "a*exp(-k*x) + b*late/2"),
    ("curve", "definitions"): (("definitions",), BASE["definitions"], {"late": "exp(-2*m*x)"}),
    ("curve", "likelihood"): (("likelihood",), "gaussian", "poisson"),
    ("curve", "loss"): (("loss",), "linear", "soft_l1"),
    ("curve", "f_scale"): (("f_scale",), 2.0, 9.0),
    ("curve", "starts"): (("starts",), 1, 4),
    ("curve", "ordered"): (("ordered",), ["k", "m"], ["m", "k"]),
    ("curve parameter", "range"): (("parameters", "k", "range"), [0.5, 5], [0.5, 0.6]),
    ("curve parameter", "unit"): (("parameters", "k", "unit"), "mV", "1/ms"),
    ("curve parameter", "scale"): (("parameters", "k", "scale"), "log", "linear"),
    ("curve parameter", "scan"): (("parameters", "k", "scan"), 2, 9),
    ("curve parameter", "value"): (
        ("parameters", "k"),
        {"fixed": True, "value": 1.0},
        {"fixed": True, "value": 1.1},
    ),
    ("curve parameter", "fixed"): (
        ("parameters", "k"),
        {"range": [0.5, 5]},
        {"range": [0.5, 5], "fixed": True, "value": 1.0},
    ),
}


@pytest.mark.parametrize(("section", "key"), sorted(ACTING))
def test_a_key_of_a_curve_acts(tmp_path: Path, section: str, key: str) -> None:
    sections = ("curve", "curve parameter")
    assert set(ACTING) == {(section, key) for section in sections for key in KEYS[section]}
    path, *values = ACTING[section, key]
    x = np.linspace(0, 3, 25)
    random = np.random.default_rng(6)
    z = random.poisson(60 * np.exp(-2.5 * x) + 40 * np.exp(-0.4 * x) + 3, (3, 25))
    data = tmp_path / "d.csv"
    np.savetxt(data, np.column_stack([x, z.T]), delimiter=",", header="x,r,s,t", comments="")
    seen = []
    for k, value in enumerate(values):
        document = copy.deepcopy(BASE)
        place = document
        for word in path[:-1]:
            place = place[word]
        place[path[-1]] = value
        if value == "soft_l1":
            document["f_scale"] = 2.0
        if key == "f_scale":
            document["loss"] = "soft_l1"
        if value == "q":
            document["curve"] = document["curve"].replace("x)", "q)")
            document["definitions"] = {"late": "exp(-m*q)"}
        (tmp_path / "c.yaml").write_text(dump_yaml(document))
        done = run(tmp_path / "c.yaml", data, "--out", tmp_path / f"o{k}", "--backend", "cpu")
        assert done.exit_code == 0, done.output
        told = "\n".join(line for line in done.output.splitlines() if str(tmp_path) not in line)
        told = re.sub(r"\([^)]*(s|second)\)", "", told)
        drawn = (tmp_path / f"o{k}.png").read_bytes() if key == "inputs" else b""
        seen.append((told, (tmp_path / f"o{k}.csv").read_text(), drawn))
    assert seen[0] != seen[1]


def test_names_of_data_sets_act_in_no_spreadsheet(tmp_path: Path) -> None:
    names = ["=cmd|' /C calc'!A0", "@SUM(1)", "\x1b[31mred", "-80"]
    table = activation(4)
    with open(tmp_path / "act.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["v", *names], *table.tolist()])
    found = run("boltzmann", tmp_path / "act.csv", "--out", tmp_path)
    assert found.exit_code == 0, found.output
    (written,) = tmp_path.glob("act-*.csv")
    sets = [row["set"] for row in rows_of(written)]
    assert sets == ["'=cmd|' /C calc'!A0", "'@SUM(1)", "\\x1b[31mred", "-80"]


# --- messages ------------------------------------------------------------------------------------


def with_definitions(**definitions: Any) -> dict[str, Any]:
    """Changes that make the curve a*d with these definitions."""
    return {"definitions": definitions, "curve": "a*d"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"curve": "a*exp(-k*v)"}, "curve: .*v"),
        ({"curve": "__import__('os')"}, "curve"),
        ({"inputs": ["x", "x"]}, '"x" is given twice'),
        ({"parameters": {"a": {}, "k": {}}}, "parameters.k.range: k does not enter linearly"),
        (
            {"parameters": {"a": {}, "k": {"range": [1, "x_spam"]}}},
            "parameters.k.range: unknown name",
        ),
        ({"parameters": {"a": {"value": 1}, "k": {"range": [1, 2]}}}, "belong together"),
        ({"loss": "soft_l1", "likelihood": "poisson"}, "loss: a loss belongs to least squares"),
        ({"f_scale": 1}, "f_scale: it is the scale of a loss; add loss soft_l1"),
        ({"ordered": ["a", "k"]}, "ordered: only parameters"),
        (
            {"parameters": GOOD["parameters"] | {"a": {"range": [1, 2], "scale": "log"}}},
            "parameters.a.scale: a enters linearly",
        ),
        (
            {
                "parameters": GOOD["parameters"] | {"k": {"fixed": True, "value": 0}},
                "curve": "a*x/k",
            },
            "curve: the curve decay is no finite number with k = 0",
        ),
        (with_definitions(d="exp(-k*y)"), r'definitions.d: unknown name "y" at column 8'),
        (with_definitions(d="__import__('os')"), "definitions.d: unexpected character"),
        (with_definitions(d=math.inf), "definitions.d: .*not a finite number"),
        (with_definitions(d="exp(-k*x)", k="2"), 'definitions.k: "k" already has a meaning'),
        (with_definitions(d="e", e="exp(-k*x)*d"), "definitions: definitions go round in a circle"),
        (with_definitions(d="exp(-k*x)/e", e=0), "definitions.d: division by zero, with its"),
        (
            with_definitions(
                d="+".join(["d0"] * 9 + ["x"]),
                **{f"d{n}": "+".join([f"d{n + 1}"] * 9) for n in range(40)},
                d40="exp(-k*x)",
            ),
            r"definitions.d\d+: too long, with its definitions written out, .*at most 500",
        ),
        (
            with_definitions(
                d="exp(-d0)", **{f"d{n}": f"tanh(tanh(d{n + 1}))" for n in range(70)}, d70="k*x"
            ),
            r"definitions.d\d+: more than 100 operations deep, with its definitions written out",
        ),
        (
            with_definitions(
                d="a if d0 < x else k*x",
                **{f"d{n}": f"x if d{n + 1} < 1 else k" for n in range(9)},
                d9="x",
            ),
            "more than 4 conditionals in a condition, with its definitions written out",
        ),
    ],
)
def test_curve_files_that_cannot_be_used(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_curve({**GOOD, **changes}, "decay.yaml")


def test_inputs_that_do_not_suit_a_curve_are_named() -> None:
    """A logarithm at 0; concentrations as logarithms; parameters that are never in their order."""
    x = np.linspace(0, 3, 7)
    away = {**GOOD, "curve": "a*log(x) + exp(-k*x)"}
    rivals = {
        **GOOD,
        "parameters": GOOD["parameters"] | {"m": {"range": [6, 9]}},
        "curve": "a*exp(-k*x) + exp(-m*x)",
        "ordered": ["m", "k"],
    }
    for curve, at, message in (
        (away, x, "is not finite anywhere in the ranges of its parameters, at x = 0"),
        ("hill", x - 9, "half.range: it uses the smallest input above zero, but none is"),
        (rivals, x, "ordered: nowhere in the scan for a start are parameters in this order"),
    ):
        with pytest.raises(InputError, match=message):
            cf.fit_curves(curve, np.exp(-x)[None], at, backend="cpu")


def test_the_curves_of_the_page_are_accepted_and_fitted() -> None:
    page = (ROOT / "docs" / "curves.md").read_text(encoding="utf-8")
    curve = build_curve(parse_yaml(page.split("```yaml")[1].split("```")[0]), None)
    t = np.linspace(0, 100, 30)
    z = curve.values({"t": t}, np.array([0.2, 15.0]))
    found = fit_curve(
        curve, DataSets((("t",),), {"t": t}, z[None], (30,)), CurveSettings(backend="cpu")
    )
    np.testing.assert_allclose(found.values[0], [0.2, 15.0], rtol=1e-6)
    defined = build_curve(parse_yaml(page.split("```yaml")[2].split("```")[0]), None)
    v = np.linspace(-80, 40, 25)
    z = defined.values({"v": v}, np.array([3.0, -20.0, 8.0, 0.3]))
    data = DataSets((("v",),), {"v": v}, z[None], (25,))
    found = fit_curve(defined, data, CurveSettings(backend="cpu"))
    np.testing.assert_allclose(found.values[0], [3.0, -20.0, 8.0, 0.3], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "v,c\n1,2\nnan,3\n", "column v: value 2 of an input is nan"),
        ("a.csv", "set,v,g\na,1,x\n", "line 2: column g: a number was expected"),
        ("a.csv", "set,v,g\na,1,2\n#1,1,2\n", 'line 3: "#1" may be the name of a set'),
        ("a.csv.gz", "set,v,g\n1,1,2\n1,2,2\n", "a long table, which has a column `set`"),
        ("a.npy", "no array", "not an array of NumPy"),
        ("a.xyz", "1,2\n", "not a format that can be read"),
    ],
)
def test_data_that_cannot_be_used(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if ".gz" in name else text.encode())
    done = run("boltzmann", tmp_path / name, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert message in done.output
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 4)), "wants (n_sets, n_y, n_x)"),
        (np.asfortranarray(np.zeros((2, 4, 4))), "save it with order C"),
        (np.array([{}]), "not an array of NumPy"),
    ],
)
def test_arrays_that_cannot_be_used(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    done = run("gaussian_2d", tmp_path / "a.npy", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_sets_that_cannot_be_fitted_cost_no_others(tmp_path: Path) -> None:
    """One set of one point, or of one voltage, in a long table."""
    rows = [f"good,{v!r},{z!r}" for v, z in activation(1).tolist()]
    rows += ["short,-20.0,0.5", *(f"still,5.0,{0.1 * k}" for k in range(6))]
    (tmp_path / "long.csv").write_text("\n".join(["set,v,g", *rows, "# the end"]))
    done = run(
        "boltzmann", tmp_path / "long.csv", "--out", tmp_path / "o", "--backend", "cpu",
        "--covariance",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    told = {row["set"]: (row["quality"], row["reason"]) for row in rows_of(tmp_path / "o.csv")}
    assert told["good"] == ("ok", "")
    assert told["short"] == ("failed", "1 points for 4 parameters")
    assert told["still"][0] == "failed"
    assert "half.range: its range from 5 to 5 is empty" in told["still"][1]
    covariance = np.load(tmp_path / "o-covariance.npy")
    assert np.isfinite(covariance).all((1, 2)).tolist() == [True, False, False]


@pytest.mark.parametrize("shared", [False, True])
def test_standard_errors_come_from_columns_and_arrays(tmp_path: Path, shared: bool) -> None:
    """All ways to give the same ones come to the same table, which is that of Python."""
    table = activation(2)
    v, z = table[:, 0], table[:, 1:].T.copy()
    sem = np.exp(np.random.default_rng(4).normal(-3, 0.7, z.shape))
    sem[1] = sem[0] if shared else sem[1]
    z[0, 4] = np.nan
    sem[:, 4] = sem[0, 4], np.where(shared, sem[0, 4], 0.02)
    columns = {"v": v, "a": z[0], "b": z[1]}
    columns |= {"sem": sem[0]} if shared else {"b_sem": sem[1], "a_sem": sem[0]}
    rows = np.column_stack(list(columns.values())).tolist()
    lines = [",".join(columns), *(",".join(map(repr, row)) for row in rows)]
    (tmp_path / "wide.csv").write_text("\n".join(lines).replace("nan", ""))
    lines = [
        ",".join([s, *map(str, (sem[k, i], v[i], z[k, i]))])
        for k, s in enumerate("ab")
        for i in range(15)
    ]
    (tmp_path / "long.csv").write_text("\n".join(["set,sem,v,g", *lines]))
    np.save(tmp_path / "z.npy", z)
    np.save(tmp_path / "v.npy", v)
    np.save(tmp_path / "sem.npy", sem[0] if shared else sem)
    array = ("--sigma", tmp_path / "sem.npy", "--input", f"v={tmp_path / 'v.npy'}")
    ways = (("wide.csv", "--sigma", "sem"), ("long.csv", "--sigma", "sem"), ("z.npy", *array))
    for data, *given in ways:
        loss = ("--loss", "soft_l1") if shared else ()
        out = ("--out", tmp_path / data, "--backend", "cpu")
        done = run("boltzmann", tmp_path / data, *given, *loss, *out)
        assert done.exit_code == 0, done.output
    read = [
        [line.split(",", 1)[1] for line in (tmp_path / f"{w[0]}.csv").read_text().splitlines()]
        for w in ways
    ]
    assert read[0] == read[1] == read[2]
    fits = cf.fit_curves(
        "boltzmann", z, v, sigma=sem, loss="soft_l1" if shared else None, backend="cpu"
    )
    rows = rows_of(tmp_path / "wide.csv.csv")
    assert [float(row["half"]) for row in rows] == pytest.approx(fits["half"], rel=1e-9)
    assert [float(row["cost"]) for row in rows] == pytest.approx(fits.cost, rel=1e-9)
    assert rows[0]["reason"] == "1 of 15 points are not numbers and were left out"
    given = ("--out", tmp_path / "p", "--intervals", "profile", "--backend", "cpu")
    done = run("boltzmann", tmp_path / "wide.csv", "--sigma", "sem", *given)
    profiled = rows_of(tmp_path / "p.csv")
    assert [row["intervals"] for row in profiled] == ["profile", "t"]
    if not shared:
        assert profiled[0]["slope_upper"] != rows[0]["slope_upper"]
        assert profiled[1]["slope_upper"] == rows[1]["slope_upper"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("wide.csv", "v,a,sem\n1,2,0.1\n2,3,0\n", "line 3: column sem: a standard .* not 0"),
        ("wide.csv", "v,a,b,a_sem\n1,2,3,0.1\n", 'such as "a_sem"; there is no "b_sem"'),
        ("long.csv", "set,v,g,sem\na,1,2,1\na,2,,\na,2,1,\n", "line 4: column sem: .* not nan"),
        ("a.npy", np.full((3, 4), np.inf), "sem.npy: data set 1, point 1: .* not inf"),
    ],
)
def test_unusable_standard_errors(tmp_path: Path, name: str, text: Any, message: str) -> None:
    sigma: Any = "sem"
    if name == "a.npy":
        np.save(tmp_path / name, np.ones((3, 4)))
        np.save(sigma := tmp_path / "sem.npy", text)
    else:
        (tmp_path / name).write_text(text)
    done = run("boltzmann", tmp_path / name, "--sigma", sigma, "--out", tmp_path / "o")
    assert done.exit_code == 2
    assert re.search(message, " ".join(done.output.split())), done.output


def test_names_and_options_that_cannot_be_used(tmp_path: Path) -> None:
    data = write_wide(tmp_path / "activation.csv", activation(1))
    for arguments, message in (
        (("bolzmann", data), '"bolzmann" is neither a file nor a built-in curve'),
        (("boltzmann", data, "--fix", "low"), "--fix wants NAME=VALUE"),
        (("boltzmann", data, "--fix", "lo=1"), 'no parameter "lo"'),
        (("boltzmann", data, "--fix", "low=x"), "--fix low"),
        (("boltzmann", data, "--fix", "slope=0"), "no finite number with slope = 0"),
        (("boltzmann", data, "--input", "v=v.npy"), "leave --input out"),
        (("boltzmann", data, "--input", "x=v.npy"), 'no input "x"'),
        (("boltzmann", data, "--dtype", "float32", "--backend", "cpu"), "leave --dtype out"),
        (("boltzmann", data, "--loss", "soft_l1"), "f_scale: from which residual on does a point"),
        (("boltzmann", data, "--f-scale", 1), "f_scale: it is the scale of a loss"),
        (
            ("boltzmann", data, "--loss", "soft_l1", "--f-scale", 1, "--method", "swarm"),
            "swarms take neither sigma nor a loss",
        ),
        (("boltzmann", data, "--sigma", "sem"), 'there is no "cell 1_sem"'),
        (("boltzmann", tmp_path / "none.csv"), "no such file"),
    ):
        done = run(*arguments, "--out", tmp_path / "out")
        assert done.exit_code == 2, done.output
        assert message in " ".join(done.output.split())
        assert not list(tmp_path.glob("out*"))


def test_results_never_replace_what_they_are_computed_from(tmp_path: Path) -> None:
    data = write_wide(tmp_path / "activation.csv", activation(1))
    before = data.read_bytes()
    (tmp_path / "link.csv").symlink_to(data)
    np.save(tmp_path / "a-covariance.npy", activation(1)[:, 1:].T.copy())
    for given, prefix in (
        (data, "activation"),
        (data, "link"),
        (tmp_path / "a-covariance.npy", "a"),
    ):
        done = run("boltzmann", given, "--out", tmp_path / prefix, "--backend", "cpu")
        assert done.exit_code == 2
        assert "would replace this file; choose another --out" in " ".join(done.output.split())
    assert data.read_bytes() == before
    assert not list(tmp_path.glob("*unfinished"))


def test_an_old_table_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_wide(tmp_path / "activation.csv", activation(1))
    (tmp_path / "o.csv").write_text("old")

    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("channelfit.curves.table.FitTable.add", broken)
    done = run("boltzmann", data, "--out", tmp_path / "o", "--backend", "cpu")
    assert done.exit_code == 2
    assert "No space left on device" in done.output
    assert (tmp_path / "o.csv").read_text() == "old"
    assert not list(tmp_path.glob(".o*"))


@pytest.mark.parametrize("kind", ["wide", "long"])
def test_a_cell_without_a_number_costs_a_point_and_not_the_file(kind: str, tmp_path: Path) -> None:
    t = np.arange(30.0)
    data = np.exp(-t / [[8.0], [12.0]]) + 0.01 * np.random.default_rng(0).normal(size=(2, 30))
    cells = [[f"{x:.6f}" for x in row] for row in data]
    cells[1][4] = "n/a"
    if kind == "wide":
        lines = ["t,one,two", *(f"{t[k]:g},{cells[0][k]},{cells[1][k]}" for k in range(30))]
    else:
        sets = enumerate(("one", "two"))
        lines = ["set,t,y", *(f"{s},{t[k]:g},{cells[j][k]}" for j, s in sets for k in range(30))]
    (tmp_path / "data.csv").write_text("\n".join(lines) + "\n")
    (found,) = read_data(tmp_path / "data.csv", load_curve("exponential"))
    assert np.argwhere(np.isnan(found.values)).tolist() == [[1, 4]]
    (tmp_path / "data.csv").write_text("\n".join(lines).replace("n/a", "12x") + "\n")
    with pytest.raises(InputError, match="12x"):
        read_data(tmp_path / "data.csv", load_curve("exponential"))
