"""Fits published curves and synthetic ones: how close, how sure, how fast.

    python benchmarks/summary_curves.py [--sets 300] [--out FOLDER]

Published: the sodium current of human atrium at 17 degC (Sakakibara et al. 1992, Circ Res 71:535,
Figs. 2, 5B, 7 and 8A) by three gates, and the ultrarapid potassium current there (Wang, Fermini &
Nattel 1993, Circ Res 73:1061, Fig. 8E and F) by two states; both as digitized in the repository
charleshouston/ion-channel-ABC. A standard error that the figure does not show is the size of its
symbols, 0.01, and 0.02 in the recovery. For each curve the RMS of fit less observed is given, in
standard errors.

Synthetic: curves of three shipped schemes with noise of 3 % of each number; the cost that a search
ends with against that of the true values.

Coverage: how many of the 95 % intervals of all parameters hold the true value, in many noisy sets
of the same curves. Speed: a search with 48 numbers and 16 parameters, by the clock, and by the
processor on all cores; on a machine that does nothing else the first is what counts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from report import Row, as_script, compared, finish

from channelfit.front.kinds import load_plan
from channelfit.problem.experiment import n_scored
from channelfit.problem.observation import as_recording
from channelfit.reading.documents import dump_yaml
from channelfit.results.report.observed_curves import curves_of
from channelfit.results.uncertainty.estimate import estimate
from channelfit.scoring.scorer import make_scorer
from channelfit.search.least_squares import refine
from channelfit.search.loop import FitResult, optimize
from channelfit.search.plan import FitPlan

ROOT = Path(__file__).parent.parent
_NOISE, _LEAST = 0.03, 0.2


def steps(holding: float, sampling: float, *rows: tuple[Any, Any]) -> dict[str, Any]:
    """Return a protocol of steps: (voltage, duration) each, lists for a family."""
    segments = []
    for volts, lasts in rows:
        v, t = ({"values": x} if isinstance(x, list) else x for x in (volts, lasts))
        segments.append({"step": v, "for": t})
    return {"holding": holding, "sampling": sampling, "segments": segments}


def gate_of(half: str, slope: str, tau: str, sign: str = "") -> dict[str, str]:
    """Return a gate with a steady state that opens, or closes with the sign -, with voltage."""
    return {"inf": f"1/(1 + exp({sign}({half} - v)/{slope}))", "tau": tau}


def rows_of(**ranges: tuple[float, float, float]) -> dict[str, Any]:
    """Return parameters by name: lower and upper end, and value."""
    found = {}
    for name, (lower, upper, value) in ranges.items():
        scale = {"scale": "log"} if lower > 0 and upper / lower > 20 else {}
        found[name] = {"range": [lower, upper], "value": value, **scale}
    return found


# --- published -----------------------------------------------------------------------------------

SODIUM = {
    "name": "three gates",
    "definitions": {"u": "(v - vt)/(2*kt)"},
    "gates": {
        "m": {"power": 3, **gate_of("vm", "km", "2*tm/(exp(u) + exp(-u))")},
        "h": gate_of("vh", "kh", "1/(ah*exp(-v/sh) + bh*exp(v/sb))", "-"),
        "s": gate_of("vs", "ks", "ts", "-"),
    },
    "current": {"conductance": "g", "reversal": "5 mV"},
    "parameters": rows_of(
        vm=(-70, -10, -45), km=(3, 20, 9), tm=(0.01, 5, 0.5), vt=(-90, 0, -50), kt=(5, 60, 20),
        vh=(-130, -60, -93), kh=(3, 15, 6), ah=(1e-7, 0.1, 1e-4), sh=(8, 60, 15),
        bh=(0.01, 20, 1), sb=(8, 100, 30), vs=(-130, -50, -90), ks=(3, 40, 10), ts=(30, 3000, 200),
        g=(1, 300, 50),
    ),
}  # fmt: skip
POTASSIUM = {
    "name": "two states",
    "states": ["C", "O"],
    "rates": {"C -> O": "a*exp(v/sa)", "O -> C": "b*exp(-v/sb)"},
    "current": {"open": ["O"], "conductance": "10 nS", "reversal": "-75 mV"},
    "parameters": rows_of(
        a=(1e-3, 1, 0.1), sa=(5, 100, 20), b=(1e-3, 1, 0.1), sb=(5, 100, 20)
    ),
}  # fmt: skip
_RECOVERY = (2, 8.8, 13.2, 18.7, 22, 26.9, 33, 49.5, 98.9, 197.8, 396.2, 1002)
NAV: list[tuple[str, dict[str, Any], dict[str, Any], Sequence[Any]]] = [
    (
        "activation",
        steps(-140, 0.05, ([*range(-100, 30, 10)], 20)),
        {"measure": "peak", "reversal": 5, "window": {"segment": 1}, "normalize": "maximum"},
        (
            [*range(-100, 30, 10)],
            [0.0023, 0.0020, 0.0052, 0.0189, 0.0367, 0.1725, 0.4433, 0.7065, 0.8784, 0.9642,
             0.9895, 1.0044, 1.0046],
            [0.01] * 5 + [0.0195, 0.0251, 0.0202] + [0.01] * 5,
        ),
    ),
    (
        "inactivation",
        steps(-140, 0.05, ([*range(-140, -30, 10)], 1000), (-20, 20)),
        {"measure": "peak", "window": {"segment": 2}, "normalize": 1},
        (
            [*range(-140, -30, 10)],
            [1.0024, 1.0023, 0.9866, 0.9044, 0.6694, 0.3130, 0.0859, 0.0260, 0.0229, 0.0174,
             0.0059],
            [0.01] * 5 + [0.0197, 0.0317, 0.0286, 0.0115] + [0.01] * 2,
        ),
    ),
    (
        "fast inactivation",
        steps(-140, 0.1, ([-50, -40, -30, -20], 100)),
        {"measure": "tau", "exponentials": 2, "unit": "ms", "window": {"segment": 1, "from": 3}},
        ([-50, -40, -30, -20], [9.31, 5.56, 3.68, 2.62], [0.63, 0.32, 0.23, 0.14]),
    ),
    (
        "recovery",
        steps(-140, 0.05, (-20, 1000), (-140, list(_RECOVERY)), (-20, 20)),
        {
            "measure": "peak", "window": {"segment": 3},
            "relative_to": {"measure": "peak", "window": {"segment": 1, "to": 20}},
        },
        (
            _RECOVERY,
            [0.2766, 0.5500, 0.6675, 0.7554, 0.8026, 0.8321, 0.8537, 0.8961, 0.9504, 0.9760,
             0.9976, 1.0088],
            [0.02] * 12,
        ),
    ),
]  # fmt: skip
_KV = steps(-50, 0.2, (50, 1000), (-50, 20), ([*range(-40, 60, 10)], 100), (-10, 100))
KV: list[tuple[str, dict[str, Any], dict[str, Any], Sequence[Any]]] = [
    (
        "activation",
        _KV,
        {"measure": "mean", "window": {"segment": 4, "to": 1}, "normalize": "maximum"},
        (
            [*range(-40, 60, 10)],
            [0.0069, 0.0437, 0.1620, 0.3148, 0.6430, 0.8625, 0.9733, 0.9928, 1.0074, 1.0072],
            [0.0272, 0.0272, 0.0222, 0.0222, 0.0247, 0.0420, 0.0296, 0.0296, 0.0296, 0.0296],
        ),
    ),
    (
        "time constant",
        _KV,
        {"measure": "tau", "unit": "ms", "window": {"segment": 3}, "sweeps": [*range(3, 11)]},
        (
            [*range(-20, 60, 10)],
            [24.731, 17.292, 11.904, 7.241, 4.992, 2.925, 2.306, 1.748],
            [10.624, 2.777, 2.294, 1.026, 0.784, 0.906, 1.026, 0.846],
        ),
    ),
]

# --- synthetic -----------------------------------------------------------------------------------

_LEVELS = [-55, -50, -45, -40, -35, -30, -20, -10, 0, 10, 20, 30]
_PAUSES = [1, 2, 3, 5, 8, 12, 20, 35, 60, 100, 200, 400]
_PULSE = {"measure": "peak", "window": {"segment": 1}}
FAST: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("current", steps(-120, 0.05, (_LEVELS, 8)), _PULSE),
    (
        "half decay",
        steps(-120, 0.05, (_LEVELS, 8)),
        {"measure": "fall", "fractions": 0.5, "unit": "ms", "window": {"segment": 1}},
    ),
    (
        "inactivation",
        steps(-120, 0.05, ([*range(-130, -10, 10)], 200), (0, 3)),
        {"measure": "peak", "window": {"segment": 2}, "normalize": "maximum"},
    ),
    (
        "recovery",
        steps(-100, 0.05, (0, 20), (-100, _PAUSES), (0, 3)),
        {
            "measure": "peak",
            "window": {"segment": 3},
            "relative_to": {"measure": "peak", "window": {"segment": 1, "to": 3}},
        },
    ),
]
_TAILS = [-140, -130, -120, -85, -75, -70, -65, -60, -55, -50, -45, -40]
SLOW: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "activation",
        steps(-80, 0.2, ([*range(-50, 70, 10)], 40)),
        {**_PULSE, "reversal": -95, "normalize": "maximum"},
    ),
    ("current", steps(-80, 0.2, ([*range(-50, 70, 10)], 40)), {**_PULSE, "measure": "last"}),
    (
        "rise",
        steps(-80, 0.2, ([*range(-50, 70, 10)], 40)),
        {"measure": "rise", "fractions": [0.1, 0.9], "unit": "ms", "window": {"segment": 1}},
    ),
    (
        "deactivation",
        steps(-80, 0.05, (40, 30), (_TAILS, 20)),
        {"measure": "tau", "unit": "ms", "window": {"segment": 2}},
    ),
]
SYNTHETIC = {"k_hh": SLOW, "na_hh": FAST, "na_markov": FAST}


def varied(protocol: dict[str, Any]) -> list[float]:
    """Return what a protocol of `steps` varies from sweep to sweep."""
    entries = [x for row in protocol["segments"] for x in (row["step"], row["for"])]
    return list(next(x["values"] for x in entries if isinstance(x, dict)))


def plan_of(folder: Path, model: Any, curves: Sequence[tuple[Any, ...]], **fit: Any) -> FitPlan:
    """Return the plan of a fit to curves, whose files are written into a folder.

    Arguments:
        model: the document, or the path of a file.
        curves: name, protocol, how it was observed, and x, values and errors; placeholders without.
    """
    if not isinstance(model, Path):
        (folder / "model.yaml").write_text(dump_yaml(model))
        model = folder / "model.yaml"
    experiments = []
    for k, (name, protocol, how, *table) in enumerate(curves):
        x = varied(protocol)
        x, y, error = table[0] if table else (x, [1.0] * len(x), [1.0] * len(x))
        lines = [f"{a!r},{b!r},{c!r}" for a, b, c in zip(x, y, error, strict=True)]
        (folder / f"{k}.csv").write_text("\n".join(["x,y,error", *lines]))
        (folder / f"{k}.yaml").write_text(dump_yaml(protocol))
        row = {"name": name, "file": f"{k}.csv", "x": "x", "value": "y", "error": "error"}
        experiments.append({"protocol": f"{k}.yaml", "observe": row | how})
    document = {"model": str(model), "fit": {"experiments": experiments, **fit}}
    (folder / "fit.yaml").write_text(dump_yaml(document))
    return load_plan(folder / "fit.yaml", (), "cpu")


def with_noise(plan: FitPlan, seed: int) -> FitPlan:
    """Return the plan with numbers that the parameters' values give, and noise."""
    problem, draw = plan.problem, np.random.default_rng(seed)
    predicted = make_scorer(problem, "cpu").simulate(problem.values()[:, None])
    experiments = []
    for e, numbers in zip(problem.experiments, predicted, strict=True):
        observations = []
        for o, row in zip(e.observations, numbers[:, :, 0], strict=True):
            exact = row / o.scale
            error = _NOISE * np.maximum(np.abs(exact), _LEAST * np.abs(exact).max())
            value = exact + error * draw.standard_normal(len(exact))
            observations.append(replace(o, value=value, error=error))
        recording = as_recording(observations)
        experiments.append(replace(e, recording=recording, observations=tuple(observations)))
    return replace(plan, problem=replace(problem, experiments=tuple(experiments)))


def searched(plan: FitPlan) -> tuple[FitResult, float, float]:
    """Return the result of a search, and its seconds by the clock and by the processor."""
    objective = plan.objective(make_scorer(plan.problem, "cpu"))
    middle = np.full((objective.n_free, 1), 0.5)
    objective.score(middle)  # compiles
    objective.linearize(middle)
    began, busy = time.perf_counter(), time.process_time()
    result = optimize(plan.make_optimizer(), objective, plan.stop_rules)
    return result, time.perf_counter() - began, time.process_time() - busy


def published(folder: Path) -> tuple[list[Row], dict[str, object]]:
    """Fit both published figures."""
    rows, series = list[Row](), dict[str, object]()
    for name, model, curves in (("Nav", SODIUM, NAV), ("Kv", POTASSIUM, KV)):
        plan = plan_of(folder, model, curves)
        result, seconds, busy = searched(plan)
        predicted = make_scorer(plan.problem, "cpu").simulate(result.values[:, None])
        drawn = [
            curve
            for e, numbers in zip(plan.problem.experiments, predicted, strict=True)
            for curve in curves_of(e, numbers[:, :, 0])
        ]
        for curve, (title, *_) in zip(drawn, curves, strict=True):
            label = f"{name}, {title}: RMS of {len(curve.x)} numbers"
            rows.append(Row(label, curve.rms, "standard errors"))
        note = f"{len(plan.space.free)} parameters, {busy:.3g} s of the processor"
        rows.append(Row(f"{name}: search", seconds, "s", note=note))
        series[name] = [curve.as_plain() for curve in drawn]
    return rows, series


def synthetic(folder: Path) -> list[Row]:
    """Fit curves of shipped schemes."""
    rows = []
    for name, curves in SYNTHETIC.items():
        stop = {"stop": {"seconds": 120}}
        plan = with_noise(plan_of(folder, ROOT / "models" / f"{name}.yaml", curves, **stop), 1)
        scorer = make_scorer(plan.problem, "cpu")
        true = float(scorer.score(plan.problem.values()[:, None]).cost[0])
        result, seconds, busy = searched(plan)
        note = f"{len(plan.space.free)} parameters, {seconds:.3g} s, {busy:.3g} s of the processor"
        label = f"{name}: cost of 48 numbers, against that of the true values"
        rows.append(compared(label, result.cost, "squared standard errors", true, note))
    return rows


def coverage(folder: Path, sets: int) -> Row:
    """Count the intervals that hold the true values, in noisy sets of one scheme's curves."""
    plan = plan_of(folder, ROOT / "models" / "k_hh.yaml", SLOW)
    true = plan.problem.values()
    inside, total = 0, 0
    for seed in range(sets):
        noisy = with_noise(plan, 1000 + seed)
        objective = noisy.objective(make_scorer(noisy.problem, "cpu"))
        starts = refine(objective, objective.space.to_unit(true[:, None]))
        found = estimate(objective, starts.unit[:, 0], n_scored(noisy.problem))
        lower, upper = found.interval()
        own = true[list(objective.space.free)]
        inside += int(((lower <= own) & (own <= upper)).sum())
        total += len(own)
    note = f"{sets} sets, {total // sets} parameters of k_hh, 48 numbers"
    return Row("95 % intervals that hold the true value", 100 * inside / total, "%", note=note)


def speed(folder: Path) -> list[Row]:
    """Time a search with 48 numbers and 16 parameters."""
    model = SODIUM | {
        "current": {"conductance": "g", "reversal": "e"},
        "parameters": {**SODIUM["parameters"], **rows_of(e=(35, 65, 50))},  # type: ignore[dict-item]
    }
    rows = []
    few = {"optimizer": {"name": "hybrid", "starts": 12, "patience": 1}}
    ways: list[dict[str, Any]] = [{}, few]
    for seed, settings in product((1, 2, 3), ways):
        plan = with_noise(plan_of(folder, model, FAST, **settings), seed)
        true = float(make_scorer(plan.problem, "cpu").score(plan.problem.values()[:, None]).cost[0])
        result, seconds, busy = searched(plan)
        note = f"{busy:.3g} s of the processor; {result.stop_reason}; cost {result.cost:.3g}, "
        note += f"of the true values {true:.3g}"
        label = f"search {seed}, 48 numbers, {len(plan.space.free)} parameters"
        label += ", 12 starts, patience 1" if settings else ""
        rows.append(Row(label, seconds, "s", note=note))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=300)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows, series = published(folder)
        rows += speed(folder)
        rows.append(coverage(folder, options.sets))
        rows += synthetic(folder)
    finish(
        "summary_curves", "Published and synthetic curves", rows, folder=options.out, series=series
    )


if __name__ == "__main__":
    as_script(main)
