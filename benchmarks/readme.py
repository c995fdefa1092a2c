"""Compares the figures in README.md and docs/*.md with the committed results of the benchmarks.

    python benchmarks/readme.py
    python benchmarks/readme.py --not-clean   # prints the results that are of no known commit

From the results files this script makes the statements that they allow, such as a row of a table or
half a sentence, and prints each with the benchmark that measures it. A statement that no page holds
word for word (line breaks apart) is marked MISSING. A test requires that none is missing, so a new
measurement needs new pages.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Any

import report

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parent.parent
#: (name of the benchmark, words that a page must hold)
Statement = tuple[str, str]


def results(name: str) -> dict[str, dict[str, Any]]:
    """The rows of a results file by their names; of rows with the same name, the first."""
    rows = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return {row["name"]: row for row in reversed(rows)}


def value(rows: dict[str, dict[str, Any]], name: str) -> float:
    """The measured number in the row of that name."""
    return float(rows[name]["value"])


def digits(x: float, n: int = 2) -> str:
    """The number with n significant digits and without an exponent: 0.010, 1.0, 15."""
    rounded = float(f"{x:.{n}g}")
    return f"{rounded:#.{n}g}".rstrip(".") if rounded < min(10**n, 1000) else f"{rounded:,.0f}"


def at_most(x: float) -> str:
    """The number rounded up to one digit: 6e-10."""
    up = Decimal(x).quantize(Decimal(1).scaleb(Decimal(x).adjusted()), ROUND_CEILING)
    return re.sub(r"e-0?", "e-", f"{up:.0e}")


def slowest(row: dict[str, Any]) -> float:
    """Seconds of the slowest seed, which the note of a row with the median names."""
    found = re.search(r"slowest that did (\S+) s", row["note"])
    assert found is not None
    return float(found[1])


def searches() -> Iterator[Statement]:
    """Yield how often and how soon searches of surrogate data reach the lowest cost."""
    on = {name: results(name) for name in ("surrogates", "surrogates_cuda")}
    models = [name.split(":")[0] for name in on["surrogates"] if name.endswith("arrived")]
    for model in models:
        n = on["surrogates"][f"{model}: arrived"]["note"].split()[0]
        cells = []
        for rows in on.values():
            assert value(rows, f"{model}: arrived") == 100
            row = rows[f"{model}: time to arrive, median"]
            cells.append(f"{digits(row['value'])} s, {digits(slowest(row))} s")
        yield "surrogates", f"| `{model}` | {n} | {' | '.join(cells)} |"
    whole = {
        name: sorted(value(rows, f"{m}: whole search, median") for m in models)
        for name, rows in on.items()
    }
    free = [seconds for seconds in whole["surrogates"] if seconds < 12]
    yield "surrogates", f"{free[0]:.2f} to {free[-1]:.1f} s in all (medians)"
    gpu = whole["surrogates_cuda"]
    yield "surrogates_cuda", f"{gpu[0]:.2f} to {gpu[-1]:.1f} s on the GPU"
    hard = results("hard_schemes")
    names = sorted(
        (name.split(":")[0] for name in hard if name.endswith("arrived")),
        key=lambda name: value(hard, f"{name}: time to arrive, median"),
    )
    medians = [hard[f"{name}: time to arrive, median"] for name in names]
    label = ", ".join(
        f"`{name}` in {digits(row['value'])} s" for name, row in zip(names, medians, strict=True)
    )
    last = [digits(slowest(row)) for row in medians]
    assert all(value(hard, f"{name}: arrived") == 100 for name in names)
    yield "hard_schemes", f"{label} (medians; slowest seeds {last[0]}, {last[1]} and {last[2]} s)"


def recordings() -> Iterator[Statement]:
    """Real recordings, ionBench, and the optimizers that ask for costs alone."""
    cells = [f"herg_sine_wave_{cell}: search, median" for cell in (16713110, 16715049)]
    cpu, gpu = results("real_data"), results("real_data_cuda")
    first, second = (value(cpu, name) for name in cells)
    yield "real_data", f"took {first:.1f} s on the two cores for cell 16713110"
    yield "real_data", f"and {second:.1f} s for cell 16715049"
    first, second = (value(gpu, name) for name in cells)
    yield "real_data_cuda", f"on the H200 it took {first:.2f} and {second:.2f} s (medians)"
    left = value(cpu, "herg_sine_wave_16713110: fit, RMS, worst seed")
    yield "real_data", f"Of the first cell {left:.1f} pA (root mean square) remain"
    unseen = cpu["ap_16713110: predicted, RMS"]
    yield (
        "real_data",
        f"predicted to {unseen['value']:.1f} pA, and by the published values to "
        f"{unseen['against']:.1f} pA",
    )
    peer = results("ionbench")
    ours = [
        f"{value(peer, f'{name}, ours: time to the threshold, median'):.2g}"
        for name in ("staircase_hh", "loewe_ikr")
    ]
    yield (
        "ionbench",
        f"`staircase.HH`, in {ours[0]} s (median), and of `loewe2016.IKr`, in {ours[1]} s",
    )
    best = [
        peer[f"{name}: best of theirs / ours, median"] for name in ("staircase_hh", "loewe_ikr")
    ]
    yield (
        "ionbench",
        f"takes {best[0]['value']:.1f} and {best[1]['value']:.1f} s, "
        f"{best[0]['ratio']:.0f} and {best[1]['ratio']:.0f} times as long",
    )
    rows = results("optimizers")
    came = {
        name: sum(
            int(re.search(r"(\d+) of 5 arrive", row["note"])[1])  # type: ignore[index]
            for key, row in rows.items()
            if key.endswith(f", {name}")
        )
        for name in ("differential", "cma")
    }
    others = [row["value"] for key, row in rows.items() if not key.endswith(tuple(came))]
    yield "optimizers", f"values' cost in {came['differential']} of 15 runs"
    yield "optimizers", f"`cma` in {came['cma']}, the swarms and the genetic algorithm in none"
    yield "optimizers", f"{min(others):.1g} to {max(others):.1g} % of the data's peak"


def on_a_gpu() -> Iterator[Statement]:
    """Scores and generations on one GPU."""
    headline, fine = results("gpu_scoring_headline"), results("gpu_scoring_samples")
    names = {
        "closed form, float64": "closed form, float64",
        "stepping, float32": "stepping, float32",
        "stepping, float64": "stepping, float64",
    }
    lean = "model B, 25 x 500: 2012 design, in registers" in headline
    if lean:
        names["the GPU design of 2012 (Euler, float32), written lean"] = "2012 design"
        names["the same text, but in registers"] = "2012 design, in registers"
    for label, name in names.items():
        pair = (
            value(headline, f"model B, 25 x 500: {name}"),
            value(fine, f"model B, 25 x 5,000: {name}"),
        )
        cells = (digits(x, 4 if x >= 1e9 else 3) for x in pair)
        yield "gpu_scoring --parts headline samples", f"| {label} | {' | '.join(cells)} |"
    cpu = results("gpu_scoring_cpu")
    for label, name, n in (("cpu backend", "cpu, float64", 3), ("NEURON", "NEURON", 3)):
        x = value(cpu, f"model B, 25 x 500: {name}, 16 cores")
        yield "gpu_scoring --parts cpu", f"| {label}, 16 cores | {digits(x, n)} | |"
    row = results("generation")["1,048,576: a generation"]
    yield (
        "generation",
        f"takes {row['value'] / 1e3:.2f} ms on the H200, {row['ratio']:.2f} times its scores alone",
    )
    wave = results("gpu_scoring_herg")
    name = "hERG sine wave, 80,000 samples, random, 131,072 candidates: stepping, float32"
    yield (
        "gpu_scoring --parts herg",
        f"{value(wave, name) / 1e6:.1f} million random candidates are scored a second",
    )
    waits = results("waiting_gpu")
    new, known = (
        sorted(row["value"] for name, row in waits.items() if name.endswith(kind))
        for kind in (": new", ": known")
    )
    yield (
        "waiting_gpu",
        f"takes {new[0]:.1f} to {new[-1]:.1f} s, process and compilation included, "
        f"and a known one's {known[0]:.1f} to {known[-1]:.1f} s",
    )
    exact = results("gpu_scoring_accuracy")
    least = min(row["value"] for key, row in exact.items() if key.endswith("cuda, float64"))
    label = f"within 1e-9 of the reference's for at least {int(10 * least) / 10} %"
    yield "gpu_scoring --parts accuracy", label
    assert value(results("winners"), "wrong winners") == 0
    yield "winners", "In a hundred searches it chose no wrong winner"
    if lean:
        yield from _chains()
        yield from _published()
        yield from _derivatives()


def _chains() -> Iterator[Statement]:
    """Yield the speed of our fastest way over that of the 2012 design, for 2 to 16 states."""
    rows = results("states")
    for n in (*range(2, 11), 12, 14, 16):
        ratios = [
            rows[f"{n} states x {samples} samples: fastest of ours over {design}"]["ratio"]
            for design in ("2012 design", "2012 design, in registers")
            for samples in (500, 5000)
        ]
        cells = (digits(ratio, 3 if ratio >= 100 else 2) for ratio in ratios)
        yield "states", f"| {n} | {' | '.join(cells)} |"


def _published() -> Iterator[Statement]:
    """Yield millions of candidates a second on a GPU, of published schemes over full ranges."""
    rows = results("states_models")
    for name in dict.fromkeys(key.split(" x ")[0] for key in rows):
        speeds = (
            rows[f"{name} x {samples} samples: {way}, float64"]["value"]
            for samples in (500, 5000)
            for way in ("stepping", "closed form", "moments")
        )
        cells = (digits(x / 1e6, 2) if x else "-" for x in speeds)
        yield "states --models", f"| `{name}` | {' | '.join(cells)} |"


def _derivatives() -> Iterator[Statement]:
    """Yield how many times as fast linearizations are by moments on a GPU."""
    rows = results("derivatives_cuda")
    of = "linearizations, moments"
    pair = [rows[f"{n} states x 500 samples: {of}"] for n in (8, 12)]
    speeds, ratios = ([row[key] for row in pair] for key in ("value", "ratio"))
    yield (
        "derivatives --backend cuda",
        f"{digits(speeds[0])} and {digits(speeds[1])} a second, {ratios[0]:.0f} and "
        f"{ratios[1]:.0f} times as many as by propagators",
    )


def _chains_on_a_core() -> Iterator[Statement]:
    """Yield candidates a second of one core by path, for 4 to 16 states."""
    rows = results("states_cpu")
    ways = [("stepping", 500), ("stepping", 5000), ("closed-form", 500), ("moments", 500)]
    ways += [("stepping, stiff", 500), ("moments, stiff", 500)]
    for n in (4, 6, 8, 10, 12, 16):
        speeds = (
            value(rows, f"{n} states x {samples} samples: cpu, {way}") for way, samples in ways
        )
        yield "states", f"| {n} | {' | '.join(digits(x, 2) for x in speeds)} |"


def _published_on_a_core() -> Iterator[Statement]:
    """Yield candidates a second of one core, of published schemes over their full ranges."""
    rows = results("states_models_cpu")
    for name in dict.fromkeys(key.split(" x ")[0] for key in rows):
        speeds = (
            value(rows, f"{name} x {samples} samples: cpu, {way}")
            for samples in (500, 5000)
            for way in ("stepping", "moments")
        )
        yield "states --models", f"| `{name}` | {' | '.join(digits(x, 2) for x in speeds)} |"


def on_a_processor() -> Iterator[Statement]:
    """Scores, errors and waits on two cores."""
    rows = results("scoring")
    yield "scoring", f"1 core | {digits(value(rows, 'NEURON, 1 core'))} | |"
    for name in ("cpu, float64, 1 core", "cpu, float64, 2 cores", "cpu, float32, 2 cores"):
        row = rows[name]
        x = row["value"]
        label = digits(x, 4 if x >= 1e6 else 3)
        yield "scoring", f"| {name} | {label} | {digits(row['ratio'], 3)} |"
    yield from _chains_on_a_core()
    yield from _published_on_a_core()
    speed = value(rows, "cpu, float64, 1 core")
    yield "scoring", f"{digits(speed, 1)} sets a second and core"
    gate = value(rows, "states: k_hh_gate (2)") / value(rows, "states: k_hh (5)")
    yield "scoring", f"n⁴ scores {gate:.1f} times as fast"
    fit = results("fit_model_b")
    later, first = "whole command, later, median", "whole command, first (compiles)"
    yield "fit_model_b", f"end within {at_most(value(fit, 'RMS, worst'))} % RMS"
    yield "fit_model_b", f"ends in {value(fit, later):.1f} s each (median)"
    yield "fit_model_b", f"the first, which compiles, in {value(fit, first):.0f} s"
    yield "fit_model_b", f"the first fit compiles it: {value(fit, first):.0f} s"
    worst = {
        kind: max(row["value"] for name, row in results("accuracy").items() if kind in name)
        for kind in ("cpu float64", "NEURON, steps", "NEURON, varying")
    }
    yield "accuracy", f"within {at_most(worst['cpu float64'])} of the reference"
    yield (
        "accuracy",
        f"NEURON within {at_most(worst['NEURON, steps'])} on steps and "
        f"{at_most(worst['NEURON, varying'])} on ramps",
    )
    found = {
        name.split(":")[0]: re.search(r"(\d+) beyond, carry (\S+) of", row["note"])
        for name, row in results("accuracy").items()
        if "float32" in name and row["value"] > row["against"]
    }
    beyond = {name: (int(m[1]), float(m[2])) for name, m in found.items() if m}
    label = " and ".join(
        f"{n} {'candidates of ' * (k == 0) or 'of '}`{name}`"
        for k, (name, (n, _)) in enumerate(sorted(beyond.items()))
    )
    yield "accuracy", f"except for {label} that hardly open"
    yield "accuracy", f"at most {at_most(max(share for _, share in beyond.values()))} of what"
    waits = results("waiting")
    new, known = (
        sorted(row["value"] for name, row in waits.items() if name.endswith(kind))
        for kind in (": new", ": known")
    )
    yield (
        "waiting",
        f"takes {new[0]:.1f} to {new[-1]:.1f} s (it is compiled), a known one's "
        f"{known[0]:.1f} to {known[-1]:.1f} s",
    )
    wave = results("sine_wave")
    yield "sine_wave", f"about {digits(value(wave, 'herg_beattie: random'), 1)} candidates a second"
    scheme = [digits(value(wave, f"herg_markov: {kind}")) for kind in ("random", "own values")]
    yield "sine_wave", f"{scheme[0]} (stiff) to {scheme[1]} of the five-state scheme"


#: (name in docs/cable.md, name in the results of fhn.py)
_PEERS = (
    ("CVODE (BDF; scikit-sundae)", "CVODE BDF, banded"),
    ("CVODE (Adams)", "CVODE Adams, banded"),
    ("SciPy: VODE", "SciPy VODE, banded"),
    ("SciPy: LSODA", "SciPy solve_ivp LSODA, banded"),
    ("py-pde: Runge-Kutta, Numba", "py-pde Runge-Kutta, Numba"),
    ("a plain Runge-Kutta loop for Numba, `fastmath`", "plain Runge-Kutta for Numba"),
    ("**Runge-Kutta**", "ours, Runge-Kutta"),
    ("**Chebyshev**", "ours, Chebyshev"),
    ("**Crank-Nicolson**", "ours, Crank-Nicolson"),
    ("**forward Euler**", "ours, forward Euler"),
    ("**by default: Crank-Nicolson, controlled steps**", "ours, by default"),
)
#: Rows that results may be too old for.
_SINCE = ("plain Runge-Kutta for Numba", "ours, by default")
_CABLES = (
    "N = 401, t = 100, error 0.001",
    "N = 401, t = 100, error 1e-05",
    "N = 100,000, t = 5, error 1e-05",
)


def on_a_cable() -> Iterator[Statement]:
    """Times at equal error of the FitzHugh-Nagumo solvers on two cores."""
    rows = results("fhn")
    for label, name in _PEERS:
        if name in _SINCE and f"{name}: {_CABLES[0]}" not in rows:
            continue  # the results are older than this row
        times = [value(rows, f"{name}: {cable}") for cable in _CABLES]
        cells = (digits(t, 3 if t >= 100 else 2) for t in times)
        yield "fhn", f"| {label} | {' | '.join(cells)} |"
    ours = [rows[f"ours, Runge-Kutta: {cable}"] for cable in _CABLES]
    first, second, third = (digits(row["ratio"]) for row in ours)
    yield "fhn", f"{first}, {second} and {third} times as fast as the fastest of them"
    plain = [re.search(r"(\S+) times the plain loop", row["note"]) for row in ours]
    if all(plain):
        first, second, third = (found[1] for found in plain if found)
        yield "fhn", f"{first}, {second} and {third} times as fast as the plain loop"


#: (name in docs/cable.md, name in the results of fhn_gpu.py with the precision left open)
_LONG, _SHORT = "N = 16,777,216", "N = 1,048,576"
_CABLES_OF_A_GPU = (
    ("explicit, 2²⁴ nodes", f"explicit {{}}, {_LONG}"),
    ("explicit, 2²⁰ nodes", f"explicit {{}}, {_SHORT}"),
    ("Runge-Kutta, 2²⁴ nodes", f"Runge-Kutta {{}}, {_LONG}, against forward Euler"),
    ("Runge-Kutta, 2²⁰ nodes", f"Runge-Kutta {{}}, {_SHORT}, against forward Euler"),
    ("explicit, 10,000 cables of 401 nodes", "explicit {}, 10,000 cables of 401 nodes"),
    ("Runge-Kutta, 10,000 cables of 401 nodes", "Runge-Kutta {}, 10,000 cables of 401 nodes"),
    (
        "adaptive, the same cables (nodes of the uniform grid)",
        "adaptive {}, 10,000 cables of 401 nodes",
    ),
    ("Crank-Nicolson, 10,000 cables of 401 nodes", "Crank-Nicolson {}, 10,000 cables of 401 nodes"),
    (
        "a whole Crank-Nicolson step, 2²⁴ nodes",
        f"Crank-Nicolson step {{}}, {_LONG}, against one cuSPARSE solve",
    ),
    (
        "a whole Crank-Nicolson step, 2²⁰ nodes",
        f"Crank-Nicolson step {{}}, {_SHORT}, against one cuSPARSE solve",
    ),
    (
        "a Crank-Nicolson step, 2²⁴ nodes, dt/dx² = 10",
        f"Crank-Nicolson step {{}}, {_LONG}, dt/dx^2 = 10, auto",
    ),
    ("the same, dt/dx² = 100", f"Crank-Nicolson step {{}}, {_LONG}, dt/dx^2 = 100, auto"),
    ("the same, dt/dx² = 1,000", f"Crank-Nicolson step {{}}, {_LONG}, dt/dx^2 = 1000, auto"),
    (
        "the same, dt/dx² = 100,000, where one system goes over memory",
        f"Crank-Nicolson step {{}}, {_LONG}, dt/dx^2 = 100000, auto",
    ),
)


def on_a_cable_of_a_gpu() -> Iterator[Statement]:
    """Node-steps a second of the FitzHugh-Nagumo solvers on one GPU."""
    rows = results("fhn_gpu")

    def line(label: str, numbers: list[float]) -> Statement:
        cells = (digits(x, 4 if x >= 1000 else 3) for x in numbers)
        return "fhn_gpu", f"| {label} | {' | '.join(cells)} |"

    precisions = ("float64", "float32")
    for label, name in _CABLES_OF_A_GPU:
        yield line(label, [value(rows, name.format(one)) for one in precisions])
    for label, name in (
        ("explicit, 2²⁴ nodes, one step a pass", f"explicit {{}}, {_LONG}"),
        (
            "one tridiagonal solve by cuSPARSE, 2²⁴ nodes",
            f"Crank-Nicolson step {{}}, {_LONG}, against one cuSPARSE solve",
        ),
        (
            "one tridiagonal solve by cuSPARSE, 2²⁰ nodes",
            f"Crank-Nicolson step {{}}, {_SHORT}, against one cuSPARSE solve",
        ),
    ):
        yield line(label, [float(rows[name.format(one)]["against"]) for one in precisions])


def cells_of_a_gpu() -> Iterator[Statement]:
    """Cells with fitted channels on a GPU, beside the processor and NEURON."""
    rows = results("cell_cuda")
    for name, length in (("squid", "500 ms"), ("axon", "8 ms")):
        cpu, neuron = (rows[f"{name}: seconds beside {other}"] for other in ("the CPU", "NEURON"))
        apart = at_most(value(rows, f"{name}: largest difference from the CPU"))
        ours = f"{digits(cpu['value'])} s"
        others = f"{digits(cpu['against'])} s | {digits(neuron['against'], 4)} s"
        yield "cell --backend cuda", f"{length} | {ours} | {others} | {apart} |"


def fits_of_drugs() -> Iterator[Statement]:
    """Published fits of drugs that bind, repeated."""
    rows = results("drug_binding")
    seconds, n = value(rows, "wall time"), value(rows, "problems")
    yield (
        "drug_binding",
        f"{n:.0f} of the 952 problems, drawn by a seed, take {seconds:.0f} s on two",
    )
    most = value(rows, "highest ratio of costs")
    yield (
        "drug_binding",
        f"Of no problem is the cost more than {math.ceil(most * 1e5) / 1e5:g} times",
    )


def statements() -> list[Statement]:
    """All statements that the committed results make."""
    return [
        *searches(),
        *recordings(),
        *on_a_gpu(),
        *on_a_processor(),
        *on_a_cable(),
        *on_a_cable_of_a_gpu(),
        *on_a_faulty_plate(),
        *schemes_of_real_cells(),
        *cells_of_a_gpu(),
        *fits_of_drugs(),
    ]


def schemes_of_real_cells() -> Iterator[Statement]:
    """Schemes of each size on recordings of real cells: how many they tell apart."""
    name = "discover_real_cuda"
    for one in json.loads((RESULTS / f"{name}.json").read_text())["series"]["by_states"]:
        held_out = "-" if one["held_out_pA"] is None else f"{one['held_out_pA']:.1f}"
        agreed = "-" if one["starts"] is None else f"{one['starts_agreed']} of {one['starts']}"
        counts = ("states", "schemes", "failed", "near_of_size", "near_of_all")
        counts += ("near_of_independent", "equivalent", "worse_than_a_part")
        cells = [
            *(one[key] for key in counts),
            f"{one['scheme']}, {one['graph']}",
            one["parameters"],
            f"{one['rms_pA']:.1f}",
            f"{one['cost']:.1f}",
            agreed,
            held_out,
        ]
        yield name, f"| {one['cell'].replace('_', ' ')} | {' | '.join(map(str, cells))} |"
    seconds = value(results("discover_whole_cuda"), "all 480 schemes of 2 to 6 states")
    two_cores = value(results("discover_whole"), "all 480 schemes of 2 to 6 states") / 60
    yield "discover_whole_cuda", f"On one H200 the same 480 take {seconds:.0f} s"
    yield "discover_whole_cuda", f"480 took {seconds:.0f} s on an H200 and {two_cores:.0f} minutes"
    rows = results("discover_speed_cuda")
    scan = value(rows, "scan of a scheme of 7 states")
    hours = value(rows, "scans of all 4,258 schemes of 7 states with a cycle, by one process")
    yield "discover_speed_cuda", f"A scheme of seven states with a cycle takes {scan:.2f} s there"
    yield "discover_speed_cuda", f"the scans of all 4,258 take {hours:.1f} hours, extrapolated"


def on_a_faulty_plate() -> Iterator[Statement]:
    """Wells with planted faults: how many are ok by their misfit, and by their residuals."""
    name, rows = "plate_faults", results("plate_faults")
    passed = [value(rows, f"faulty wells called ok, {when}") for when in ("before", "after")]
    alarms = value(rows, "good wells not ok, after")
    series = value(rows, "series resistance of 8 MOhm: error of the conductance")
    yield name, f"Of the faulty ones {passed[0]:.0f} are `ok` by the size of their misfit"
    yield name, f"and {passed[1]:.0f} by [the checks of their residuals]"
    yield name, f"of the good ones {alarms:.0f} are to be checked"
    yield name, f"moves the conductance by {digits(series, 3)} %"


def not_clean() -> str:
    """The table of committed results that are of no known commit, as docs/benchmarks.md has it."""
    lines = ["| results | of | measured |", "|---|---|---|"]
    for file in sorted(RESULTS.glob("*.json")):
        record = json.loads(file.read_text())
        commit = str(record.get("commit", "unknown"))
        if not report.is_clean(commit):
            label = f"`{commit}`" if commit != "unknown" else "unknown"
            lines.append(f"| `{file.name}` | {label} | {record['date'][:10]} |")
    return "\n".join(lines)


def pages() -> str:
    """The text of README.md and of every page in docs/, one after another."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def absent(text: str) -> list[Statement]:
    """The statements that a text does not hold, whatever its line breaks."""
    plain = " ".join(text.split())
    return [(name, label) for name, label in statements() if label not in plain]


def main() -> None:
    if sys.argv[1:] == ["--not-clean"]:
        print(not_clean())
        return
    gone = absent(pages())
    for one in statements():
        print(f"{'MISSING ' if one in gone else ''}benchmarks/{one[0]}: {one[1]}")
    if gone:
        sys.exit(f"README.md and docs/*.md lack {len(gone)} statements")


if __name__ == "__main__":
    main()
