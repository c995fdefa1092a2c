"""The figures of README.md, as the committed results have them.

    python benchmarks/readme.py

Prints every statement that a benchmark's last results make, with the command that measures it, and
marks those that README.md does not have word for word. The tests ask for all of them: who measures
again states again. What concerns the FitzHugh-Nagumo equation is not among them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parent.parent / "README.md"
#: (results without .json, what README.md says of them)
Statement = tuple[str, str]


def results(name: str) -> dict[str, dict[str, Any]]:
    """Rows of a results file by name; of equal names the first."""
    rows = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return {row["name"]: row for row in reversed(rows)}


def value(rows: dict[str, dict[str, Any]], name: str) -> float:
    """The figure of a row."""
    return float(rows[name]["value"])


def digits(x: float, n: int = 2) -> str:
    """With n significant digits and no exponent: 0.010, 1.0, 15."""
    rounded = float(f"{x:.{n}g}")
    return f"{rounded:#.{n}g}".rstrip(".") if rounded < 10**n else f"{rounded:,.0f}"


def at_most(x: float) -> str:
    """Rounded up to one digit: 6e-10."""
    up = Decimal(x).quantize(Decimal(1).scaleb(Decimal(x).adjusted()), ROUND_CEILING)
    return re.sub(r"e-0?", "e-", f"{up:.0e}")


def slowest(row: dict[str, Any]) -> float:
    """The slowest seed, of a row that has the median."""
    found = re.search(r"slowest that did (\S+) s", row["note"])
    assert found is not None
    return float(found[1])


def searches() -> Iterator[Statement]:
    """How often and how soon the searches arrive."""
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
    told = ", ".join(
        f"`{name}` in {digits(row['value'])} s" for name, row in zip(names, medians, strict=True)
    )
    last = [digits(slowest(row)) for row in medians]
    assert all(value(hard, f"{name}: arrived") == 100 for name in names)
    yield "hard_schemes", f"{told} (medians; slowest seeds {last[0]}, {last[1]} and {last[2]} s)"


def recordings() -> Iterator[Statement]:
    """Real recordings, ionBench, and the optimizers that ask for costs alone."""
    cells = [f"herg_sine_wave_{cell}: search, median" for cell in (16713110, 16715049)]
    cpu, gpu = results("real_data"), results("real_data_cuda")
    first, second = (value(cpu, name) for name in cells)
    yield "real_data", f"in {first:.1f} s on the two cores, of cell 16715049 in {second:.1f} s"
    first, second = (value(gpu, name) for name in cells)
    yield "real_data_cuda", f"the H200 in {first:.2f} and {second:.2f} s"
    left = value(cpu, "herg_sine_wave_16713110: fit, RMS, worst seed")
    yield "real_data", f"{left:.1f} pA (root mean square) remain"
    yield "real_data", f"--seed 0`. {left:.1f} pA remain."
    unseen = cpu["ap_16713110: predicted, RMS"]
    yield (
        "real_data",
        f"predicted to {unseen['value']:.1f} pA, by the published values to "
        f"{unseen['against']:.1f}",
    )
    peer = results("ionbench")
    ours = [
        f"{value(peer, f'{name}, ours: time to the threshold, median'):.2g}"
        for name in ("staircase_hh", "loewe_ikr")
    ]
    yield "ionbench", f"in {ours[0]} s (median), `loewe2016.IKr` by all ten, in {ours[1]} s"
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
    yield "optimizers", f"cost in {came['differential']} of 15 runs"
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
    for told, name in names.items():
        pair = (
            value(headline, f"model B, 25 x 500: {name}"),
            value(fine, f"model B, 25 x 5,000: {name}"),
        )
        cells = (digits(x, 4 if x >= 1e9 else 3) for x in pair)
        yield "gpu_scoring --parts headline samples", f"| {told} | {' | '.join(cells)} |"
    cpu = results("gpu_scoring_cpu")
    for told, name, n in (("cpu backend", "cpu, float64", 3), ("NEURON", "NEURON", 3)):
        x = value(cpu, f"model B, 25 x 500: {name}, 16 cores")
        yield "gpu_scoring --parts cpu", f"| {told}, 16 cores | {digits(x, n)} | |"
    row = results("generation")["1,048,576: a generation"]
    yield (
        "generation",
        f"takes {row['value'] / 1e3:.2f} ms there, {row['ratio']:.2f} times its scores",
    )
    wave = results("gpu_scoring_herg")
    name = "hERG sine wave, 80,000 samples, random, 131,072 candidates: stepping, float32"
    yield "gpu_scoring --parts herg", f"{value(wave, name) / 1e6:.1f} million random candidates"
    waits = results("waiting_gpu")
    new, known = (
        sorted(row["value"] for name, row in waits.items() if name.endswith(kind))
        for kind in (": new", ": known")
    )
    yield (
        "waiting_gpu",
        f"takes {new[0]:.1f} to {new[-1]:.1f} s there, process and compilation "
        f"included, a known one's {known[0]:.1f} to {known[-1]:.1f} s",
    )
    exact = results("gpu_scoring_accuracy")
    least = min(row["value"] for key, row in exact.items() if key.endswith("cuda, float64"))
    told = f"within 1e-9 of the reference's for at least {int(10 * least) / 10} %"
    yield "gpu_scoring --parts accuracy", told
    assert value(results("winners"), "wrong winners") == 0
    yield "winners", "In a hundred searches it chose no wrong winner"
    if lean:
        yield from _chains()


def _chains() -> Iterator[Statement]:
    """Ratios of our fastest way, for 2 to 9 states."""
    rows = results("states")

    def ratios(samples: int, name: str) -> str:
        what = "x {samples} samples: fastest of ours over {name}"
        some = [
            rows[f"{n} states {what.format(samples=samples, name=name)}"]["ratio"]
            for n in range(2, 10)
        ]
        *first, last = (digits(x, 3 if x >= 100 else 2) for x in some)
        return f"{', '.join(first)} and {last}"

    design, unbound = "2012 design", "2012 design, in registers"
    yield (
        "states",
        f"Chains of 2 to 9 states: the fastest way is {ratios(500, design)} times the "
        f"design of 2012 at 500 samples a sweep, {ratios(5000, design)} times at 5,000; "
        f"{ratios(500, unbound)} and {ratios(5000, unbound)} times the same text in registers "
        "(`benchmarks/states.py`, which has every way).",
    )


def on_a_processor() -> Iterator[Statement]:
    """Scores, errors and waits on two cores."""
    rows = results("scoring")
    yield "scoring", f"1 core | {digits(value(rows, 'NEURON, 1 core'))} | |"
    for name in ("cpu, float64, 1 core", "cpu, float64, 2 cores", "cpu, float32, 2 cores"):
        row = rows[name]
        x = row["value"]
        told = digits(x, 4 if x >= 1e6 else 3)
        yield "scoring", f"| {name} | {told} | {digits(row['ratio'], 3)} |"
    speed = value(rows, "cpu, float64, 1 core")
    yield "scoring", f"{digits(speed, 1)} sets a second and core"
    gate = value(rows, "states: k_hh_gate (2)") / value(rows, "states: k_hh (5)")
    yield "scoring", f"n⁴ scores {gate:.1f} times as fast"
    fit = results("fit_model_b")
    later, first = "whole command, later, median", "whole command, first (compiles)"
    yield "fit_model_b", f"end within {at_most(value(fit, 'RMS, worst'))} % RMS"
    yield "fit_model_b", f"in {value(fit, later):.1f} s each (median)"
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
    told = " and ".join(
        f"{n} {'candidates of ' * (k == 0) or 'of '}`{name}`"
        for k, (name, (n, _)) in enumerate(sorted(beyond.items()))
    )
    yield "accuracy", f"except for {told} that hardly open"
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


def statements() -> list[Statement]:
    """All of them."""
    return [*searches(), *recordings(), *on_a_gpu(), *on_a_processor()]


def absent(text: str) -> list[Statement]:
    """The statements that a text does not have, whatever its line breaks."""
    plain = " ".join(text.split())
    return [(name, told) for name, told in statements() if told not in plain]


def main() -> None:
    gone = absent(README.read_text(encoding="utf-8"))
    for one in statements():
        print(f"{'MISSING ' if one in gone else ''}benchmarks/{one[0]}: {one[1]}")
    if gone:
        sys.exit(f"README.md lacks {len(gone)} statements")


if __name__ == "__main__":
    main()
