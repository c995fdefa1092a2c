"""Looks for schemes that fit the data of Teed and Silva, and compares their misfit with theirs.

    python benchmarks/teed_silva.py FOLDER [--channels sodium potassium] [--states 2 4] [--keep 4]
        [--cycles N] [--out DIR]

FOLDER is a copy of the repository silvalab/MMOptimizer (MIT; Teed & Silva 2016, MethodsX 3:577).
Its folder demos has summary curves and traces of a sodium and of a potassium channel, 93 and 141
numbers: peaks, times of rise and fall, inactivation, recovery, and open probabilities over time.
Every number is an observation of a sweep, with the weight that the published program gives it.
`cf.discover` then fits all schemes of so many states.

The misfit is theirs, without the penalties for states and transitions: the sum over the curves of
weight times mean square. It is computed here once more, after their rules (samples of their step,
the matrix exponential of SciPy, times between samples on a straight line), from the rates of the
exported Python module. The published side is the sodium model of seven states in the script
matlab/plotModel.m of their commit 0ac1bde7, with 39 parameters, taken as it
stands: their program is not run, and may come to less. No potassium model is published.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from report import Row, as_script, finish
from scipy.linalg import expm

import channelfit as cf

FOLDERS = {"sodium": "Na+", "potassium": "K+"}
#: Samples per step of theirs; and what one number of a curve of weight 1 has for a standard error
#: times the root of how many there are, so that the cost is about 1 for a good fit.
_FINER, _ERROR = 2, 0.01
_KEY = re.compile(r'^\s*(\w+)\s*:\s*"?([^"\n]*)"?\s*$')
_REVERSAL = 100.0
MODEL: dict[str, Any] = {
    "states": ["C", "O"],
    "rates": {"C -> O": "k", "O -> C": "k"},
    "current": {"open": ["O"], "conductance": "1 nS", "reversal": f"{_REVERSAL:g} mV"},
    "parameters": {"k": {"range": [0.01, 1], "unit": "1/ms", "value": 0.1}},
}
#: The published sodium model: transitions, energies of its states and barriers for 1, V/100 mV and
#: tanh((V + 20 mV)/50 mV); the first state is open.
EDGES = ((2, 3), (0, 2), (1, 0), (3, 1), (2, 4), (3, 5), (5, 6))
STATES = (
    (-0.1108, -0.9327, 1.0234), (5.0274, 5.3867, -3.7586), (-3.0856, -6.6859, 0.9247),
    (-0.0935, 0.0499, -0.1692), (-5.6538, -4.6885, -6.6175), (1.4184, 0.3089, 4.9205),
    (0.3847, -0.6370, -1.1798),
)  # fmt: skip
BARRIERS = (
    (-3.3356, -3.3862, 2.7316), (1.0967, -0.0264, -1.7839), (-2.2824, 4.1722, 0.1143),
    (-3.2755, -1.7381, -1.8883), (-1.5453, -7.2068, 2.3778), (-1.8720, 2.1327, -0.7924),
    (-1.0977, -1.8195, 1.0538),
)  # fmt: skip

Steps = list[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """Numbers of one figure, and how they were taken.

    Attributes:
        steps: of each sweep: pairs of voltage (mV) and duration (ms); the last one is measured.
        values: of each sweep; of a trace, of each time x, and there is a single sweep.
        measure: "peak", "min", "tau" or "trace"; between: the fractions of "tau".
        sampling: the step of the published program, ms.
        open_at_rest: the open probability at rest is above the first fraction of any peak, so that
            the time is that from the beginning.
    """

    name: str
    holding: float
    steps: tuple[Steps, ...]
    x: np.ndarray
    values: np.ndarray
    measure: str
    between: tuple[float, ...]
    sampling: float
    weight: float
    normalized: bool
    open_at_rest: bool

    def experiment(self, folder: Path) -> dict[str, Any]:
        """Write the table, and return the experiment of a fit file."""
        error = _ERROR * math.sqrt(len(self.values) / self.weight)
        pairs = zip(self.x.tolist(), self.values.tolist(), strict=True)
        rows = [f"{x!r},{value!r},{error!r}" for x, value in pairs]
        (folder / f"{self.name}.csv").write_text("\n".join(["x,value,error", *rows, ""]))
        observed: dict[str, Any] = {"name": self.name, "file": f"{self.name}.csv"}
        observed |= {"x": "x", "value": "value", "error": "error"}
        if self.normalized:
            observed["normalize"] = "maximum"
        sweeps, sampling = self.steps, self.sampling / _FINER
        window: dict[str, Any] = {"segment": len(sweeps[0])}
        if self.measure == "trace":  # a sweep for each time
            volts, sampling = sweeps[0][-1][0], 1e-3
            sweeps = tuple([(volts, max(float(t), sampling))] for t in self.x)
            observed |= {"measure": "last", "reversal": _REVERSAL}
            window["from"] = -sampling
        elif self.measure == "tau":
            first, last = self.between
            measure = "rise" if first < last else "fall"
            fractions = last if self.open_at_rest else [first, last]
            observed |= {"measure": measure, "fractions": fractions, "unit": "ms"}
        else:
            measure = {"peak": "peak", "min": "trough"}[self.measure]
            observed |= {"measure": measure, "reversal": _REVERSAL}
        protocol = {
            "name": self.name, "holding": self.holding, "sampling": sampling,
            "segments": [
                {"step": _family(v for v, _ in part), "for": _family(t for _, t in part)}
                for part in zip(*sweeps, strict=True)
            ],
        }  # fmt: skip
        (folder / f"{self.name}.yaml").write_text(json.dumps(protocol))
        return {"protocol": f"{self.name}.yaml", "observe": {**observed, "window": window}}

    def misfit(self, generator: Callable[[float], np.ndarray], opened: np.ndarray) -> float:
        """Return weight times mean square of what the published program would compute."""
        found: list[float] = []
        for steps in self.steps:
            x = _at_rest(generator(self.holding))
            for v, duration in steps[:-1]:
                x = expm(generator(v) * duration) @ x
            v, duration = steps[-1]
            n = math.ceil(duration / self.sampling - 1e-9)
            step, samples = expm(generator(v) * self.sampling), [x]
            for _ in range(n - 1):
                samples.append(step @ samples[-1])
            trace = np.array(samples) @ opened
            if self.measure == "trace":
                found += trace[: len(self.values)].tolist()
            elif self.measure == "tau":
                found.append(_time(trace, *self.between) * self.sampling)
            else:
                found.append(float(trace.max() if self.measure == "peak" else trace.min()))
        values = np.array(found)
        if self.normalized:
            values = values / values.max()
        return self.weight * float(np.mean((values - self.values) ** 2))


def _family(values: Any) -> Any:
    """Return one number, or a family of them."""
    found = [float(value) for value in values]
    return found[0] if len(set(found)) == 1 else {"values": found}


def _at_rest(generator: np.ndarray) -> np.ndarray:
    """Return the steady state of a generator with columns that add up to 0."""
    n = len(generator)
    x, *_ = np.linalg.lstsq(np.vstack([generator, np.ones(n)]), np.eye(n + 1)[-1], rcond=None)
    return np.asarray(x)


def _time(trace: np.ndarray, first: float, last: float) -> float:
    """Return the samples between two fractions of the peak, before it or behind it."""
    x, top = trace / trace.max(), int(trace.argmax())
    rising = first < last
    part, sign = (x[: top + 1], 1) if rising else (x[top:], -1)
    ends = [0.0, float(top)] if rising else [0.0, float(len(part))]  # where one is not crossed
    for k, level in enumerate((first, last)):
        past = np.flatnonzero((sign * part[1:] > sign * level) & (sign * part[:-1] <= sign * level))
        if len(past):
            at = int(past[0])
            ends[k] = at + float((level - part[at]) / (part[at + 1] - part[at]))
        elif k and not rising:  # farther by what is lacking
            ends[k] += 10 * float(x[-1] - level)
    return ends[1] - ends[0]


def curves(folder: Path) -> list[Curve]:
    """Read the curves of a channel, those that its list names."""
    return [_curve(folder / name) for name in (folder / "protocols.lst").read_text().split()]


def _curve(file: Path) -> Curve:
    """Read one curve."""
    facts: dict[str, str] = {}
    steps: list[dict[str, Any]] = []
    for line in file.read_text().splitlines():
        if line.split() and line.split()[0] == "step":
            steps.append({"extra_args": []})
        if found := _KEY.match(line):
            key, text = found.groups()
            if not steps:
                facts[key] = text
            elif key == "extra_args":
                steps[-1][key].append(float(text))
            else:
                steps[-1][key] = text
    table = np.array([line.split() for line in _lines(file.parent / facts["source"])], float)
    x, values = table.T
    trace = steps[-1]["stype"] == "TRACE"
    sweeps = [
        [(float(step.get("vm", one)), float(step.get("dt", one))) for step in steps]
        for one in (x[:1] if trace else x).tolist()
    ]
    return Curve(
        file.stem,
        float(facts["v0"]),
        tuple(sweeps),
        x,
        values,
        steps[-1]["stype"].lower(),
        tuple(steps[-1]["extra_args"]),
        float(steps[-1]["stepsize"]),
        float(facts.get("weight", 1)),
        facts["normalize"] == "true",
        file.parent.name == FOLDERS["potassium"],
    )


def _lines(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if line.strip()]


def published(v: float) -> np.ndarray:
    """Return the generator of the published sodium model."""
    features = np.array([1.0, v / 100, math.tanh((v + 20) / 50)])
    energy, barrier = np.array(STATES) @ features, np.array(BARRIERS) @ features
    q = np.zeros((len(STATES),) * 2)
    for (a, b), height in zip(EDGES, barrier, strict=True):
        for source, target in ((a, b), (b, a)):
            rate = math.exp((height + energy[target] - energy[source]) / 2)
            q[target, source] += rate
            q[source, source] -= rate
    return q


def exported(model: Path, folder: Path) -> tuple[Callable[[float], np.ndarray], np.ndarray]:
    """Return the generator of a model file by its Python module, and which states are open."""
    file = folder / "exported.py"
    cf.export(model, file, overwrite=True)
    spec = importlib.util.spec_from_file_location("exported", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    ((name, (states, sizes, _)),) = module.CHAINS.items()

    def generator(v: float) -> np.ndarray:
        q = np.zeros((len(states),) * 2)
        for (source, target), rate in module.rates(v)[name].items():
            i, j = states.index(source), states.index(target)
            q[j, i] += rate
            q[i, i] -= rate
        return q

    return generator, np.array(sizes, float)


def misfit(
    found: Sequence[Curve], generator: Callable[[float], np.ndarray], opened: np.ndarray
) -> dict[str, float]:
    """Return the misfit of every curve by name."""
    return {curve.name: curve.misfit(generator, opened) for curve in found}


def searched(
    channel: str, found: Sequence[Curve], schemes: Mapping[str, Any], folder: Path
) -> list[dict[str, Any]]:
    """Fit all schemes, and return a row for each that was fitted fully."""
    fit = {"experiments": [curve.experiment(folder) for curve in found], "discover": schemes}
    file = folder / "fit.yaml"
    file.write_text(json.dumps({"name": channel, **MODEL, "fit": fit}))
    result = cf.discover(file, folder=folder / "run", seed=1)
    rows = []
    for row in result.summary["table"]:
        model = folder / "run" / "schemes" / f"{row['scheme']}.yaml"
        if not model.exists():  # it was not among the best in the end
            continue
        each = misfit(found, *exported(model, folder))
        rows.append({**row, "misfit": sum(each.values()), "curves": each})
    return sorted(rows, key=lambda row: row["misfit"])


def rows_of(channel: str, rows: Sequence[Mapping[str, Any]], against: float | None) -> list[Row]:
    """Return a row of the report for each scheme."""
    found = []
    for row in rows:
        agreed = f"{row['starts_agreed']} of {row['starts']} starts agreed"
        found.append(
            Row(
                f"{channel}: {row['scheme']} ({row['graph']})",
                row["misfit"],
                "weighted mean square",
                against,
                None if against is None else row["misfit"] / against,
                f"{row['parameters']} parameters; {agreed}",
            )
        )
    return found


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--channels", nargs="+", choices=FOLDERS, default=[*FOLDERS])
    parser.add_argument("--states", type=int, nargs=2, default=(2, 4))
    parser.add_argument("--cycles", type=int)
    parser.add_argument("--keep", type=int, default=4)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    schemes = {"states": list(given.states), "keep": given.keep}
    if given.cycles is not None:
        schemes["cycles"] = given.cycles
    rows: list[Row] = []
    series: dict[str, Any] = {}
    for channel in given.channels:
        found = curves(given.folder / "demos" / FOLDERS[channel])
        against = None
        if channel == "sodium":
            each = misfit(found, published, np.eye(len(STATES))[0])
            against, series["published sodium"] = sum(each.values()), each
            rows.append(
                Row("sodium: published", against, "weighted mean square", note="39 parameters")
            )
        with tempfile.TemporaryDirectory() as folder:
            fitted = searched(channel, found, schemes, Path(folder))
        series[channel] = fitted
        rows += rows_of(channel, fitted, against)
        last = channel == given.channels[-1]
        finish("teed_silva", "The data of Teed and Silva", rows, "CPU", given.out, series, last)


if __name__ == "__main__":
    as_script(main)
