"""Counts the wells of a plate with planted faults that a batch calls ok.

    python benchmarks/plate_faults.py [--seed 1 --wells 16 --good 96 --out DIR]

The plate is simulated without channelfit: a two-gate hERG current with a leak under the staircase
of 15.4 s at 0.5 ms, integrated by SciPy (DOP853, LSODA). Every well has kinetics of its own (each
rate's size is off by a factor of exp(0.1 x), x normal), a conductance of 15 to 60 nS, a seal of 0.3
to 3 GOhm and white noise of 5 to 15 pA. The fit has the model of the simulation, and a leak.

faults       an uncompensated series resistance of 8 MOhm; a conductance that runs down evenly by 15
             or 40 % over the sweep; the five states of Wang et al. 1997, fitted by two gates; seals
             of 22 to 50 MOhm; a leak that grows by 1 to 3 nS over the sweep.
good wells   white noise, and noise behind a filter of one pole at 300 Hz; both are to be ok.
before       without the checks of `channelfit.batch.limits`: what the size of the misfit, the
             parameters and the recording alone say.
error        of the conductance, the median size over the wells of a kind, against the truth. Wang's
             scheme has another conductance of its own; there it compares them all the same.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from report import RESULTS, Row, as_script, finish
from scipy.integrate import solve_ivp
from scipy.signal import lfilter

import channelfit as cf
from channelfit.batch.table import WellTable

ROOT = Path(__file__).parent.parent
SAMPLING_MS = 0.5
REVERSAL_MV, LEAK_REVERSAL_MV = -88.4, 0.0
#: p1 to p8 of the two gates: sizes (1/ms) and slopes (1/mV), of cell 5 of Beattie et al. 2018.
RATES = (2.26e-4, 0.0699, 3.45e-5, 0.05462, 0.0873, 8.91e-3, 5.15e-3, 0.03158)
#: Of the filtered noise, Hz.
CORNER_HZ = 300.0
#: How reasons begin that come from the checks of residuals, noise, seals, clamps and peaks.
_NEW = (
    *("residuals follow", "the slow misfit", "the seal of", "the peak changes"),
    *("the largest current loses", "strongly correlated noise"),
)
#: The kinds of good wells; all others are faulty.
GOOD = ("good", "good, filtered noise")


@dataclass(frozen=True)
class Kind:
    """The fault of the wells of a kind.

    Attributes:
        series_MOhm: the series resistance that is not compensated.
        rundown: the share of the conductance that is lost at the end, evenly over the sweep.
        scheme: "gates" or "wang".
        seal_MOhm: between which the seal lies.
        growth_nS: between which the leak has grown at the end.
        filtered: whether the noise has passed a filter.
    """

    series_MOhm: float = 0.0
    rundown: float = 0.0
    scheme: str = "gates"
    seal_MOhm: tuple[float, float] = (300.0, 3000.0)
    growth_nS: tuple[float, float] = (0.0, 0.0)
    filtered: bool = False


KINDS = {
    "good": Kind(),
    "good, filtered noise": Kind(filtered=True),
    "series resistance of 8 MOhm": Kind(series_MOhm=8.0),
    "rundown of 15 %": Kind(rundown=0.15),
    "rundown of 40 %": Kind(rundown=0.40),
    "another scheme": Kind(scheme="wang"),
    "seal of 22 to 50 MOhm": Kind(seal_MOhm=(22.0, 50.0)),
    "leak that grows": Kind(growth_nS=(1.0, 3.0)),
}


@dataclass(frozen=True)
class Segment:
    """A stretch of the command: from one voltage, mV, to another, within a time, ms."""

    first_mV: float
    last_mV: float
    length_ms: float

    def at(self, t: Any) -> Any:
        """The command at a time from its start, mV."""
        return self.first_mV + (self.last_mV - self.first_mV) * t / self.length_ms


def staircase() -> list[Segment]:
    """The segments of `protocols/staircase.yaml`, read without channelfit."""
    document = yaml.safe_load((ROOT / "protocols" / "staircase.yaml").read_text())

    def number(text: str) -> float:
        found = re.match(r"-?[\d.]+", text)
        assert found is not None
        return float(found[0])

    held, found = number(document["holding"]), []
    for row in document["segments"]:
        first, last, time = held, held, row.get("hold") or row["for"]
        if "step" in row:
            first = last = number(row["step"])
        if "ramp" in row:
            first, last = map(number, row["ramp"])
        found.append(Segment(first, last, number(time)))
    return found


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a kind, (n,) each: conductance and leak, nS, noise, pA, and rates (8, n)."""

    kind: Kind
    conductance: np.ndarray
    leak: np.ndarray
    growth: np.ndarray
    noise: np.ndarray
    rates: np.ndarray = field(repr=False)


def drawn(kind: Kind, n: int, random: np.random.Generator) -> Cells:
    """Cells of a kind."""
    rates = np.array(RATES)[:, None] * np.ones(n)
    rates[::2] *= np.exp(0.1 * random.standard_normal((4, n)))
    low, high = np.log(kind.seal_MOhm)
    return Cells(
        kind,
        15 * 4 ** random.random(n),
        1e3 / np.exp(low + (high - low) * random.random(n)),
        random.uniform(*kind.growth_nS, n),
        random.uniform(5, 15, n),
        rates,
    )


def currents(cells: Cells, segments: list[Segment], sampling_ms: float = SAMPLING_MS) -> np.ndarray:
    """The currents of cells without noise, (n, n_samples) pA."""
    if cells.kind.scheme == "wang":
        opened, command = wang(cells, segments, sampling_ms)
    else:
        opened, command = gates(cells, segments, sampling_ms)
    along = np.linspace(0, 1, len(command))
    conductance = cells.conductance[:, None] * (1 - cells.kind.rundown * along) * opened
    leak = cells.leak[:, None] + cells.growth[:, None] * along
    volts = membrane(command, conductance, leak, cells.kind.series_MOhm)
    return conductance * (volts - REVERSAL_MV) + leak * (volts - LEAK_REVERSAL_MV)


def membrane(command: Any, conductance: Any, leak: Any, series_MOhm: float) -> Any:
    """The potential, mV, behind a series resistance; conductances in nS."""
    lost = 1e-3 * series_MOhm
    driven = lost * (conductance * REVERSAL_MV + leak * LEAK_REVERSAL_MV)
    return (command + driven) / (1 + lost * (conductance + leak))


def gates(
    cells: Cells, segments: list[Segment], sampling_ms: float
) -> tuple[np.ndarray, np.ndarray]:
    """The open share (n, n_samples) of two gates in all cells, and the command (n_samples,)."""
    p, n = cells.rates, cells.rates.shape[1]

    def steady(volts: Any) -> tuple[Any, Any, Any, Any]:
        rise, fall = p[0] * np.exp(p[1] * volts), p[2] * np.exp(-p[3] * volts)
        shut, recover = p[4] * np.exp(p[5] * volts), p[6] * np.exp(-p[7] * volts)
        return rise, rise + fall, recover, recover + shut

    def slope(t: float, y: np.ndarray, segment: Segment) -> np.ndarray:
        a, r = y[:n], y[n:]
        volts = membrane(
            segment.at(t), cells.conductance * a * r, cells.leak, cells.kind.series_MOhm
        )
        rise, of_a, recover, of_r = steady(volts)
        return np.concatenate([rise - of_a * a, recover - of_r * r])

    rise, of_a, recover, of_r = steady(segments[0].first_mV)
    y = np.concatenate([rise / of_a, recover / of_r])
    states, command = _integrated(slope, y, segments, sampling_ms, "DOP853")
    return states[:n] * states[n:], command


def wang(
    cells: Cells, segments: list[Segment], sampling_ms: float
) -> tuple[np.ndarray, np.ndarray]:
    """The same of C1, C2, C3, O and I (Wang et al. 1997), their rates scattered as `rates` are."""
    scatter = (cells.rates / np.array(RATES)[:, None])[::2]
    opened = []
    for factor in scatter.T:

        def generator(volts: float, factor: np.ndarray = factor) -> np.ndarray:
            forward = [
                0.022348 * np.exp(0.01176 * volts) * factor[0],
                0.023761 * factor[0],
                0.013733 * np.exp(0.038198 * volts) * factor[0],
                0.090821 * np.exp(0.023391 * volts) * factor[2],
            ]
            back = [
                0.047002 * np.exp(-0.0631 * volts) * factor[1],
                0.036778 * factor[1],
                0.0000689 * np.exp(-0.04178 * volts) * factor[1],
                0.006497 * np.exp(-0.03268 * volts) * factor[3],
            ]
            rates = np.diag(forward, -1) + np.diag(back, 1)
            return rates - np.diag(rates.sum(axis=0))

        def slope(t: float, y: np.ndarray, segment: Segment, make: Any = generator) -> np.ndarray:
            return np.asarray(make(segment.at(t)) @ y)

        first = generator(segments[0].first_mV)
        y = np.linalg.lstsq(np.vstack([first, np.ones(5)]), [0, 0, 0, 0, 0, 1.0], rcond=None)[0]
        states, command = _integrated(slope, y, segments, sampling_ms, "LSODA")
        opened.append(states[3])
    return np.array(opened), command


def _integrated(
    slope: Any, y: np.ndarray, segments: list[Segment], sampling_ms: float, method: str
) -> tuple[np.ndarray, np.ndarray]:
    """The states (n_states, n_samples) and the command; a sample at a step has the new voltage."""
    states, command = [], []
    for segment in segments:
        n = round(segment.length_ms / sampling_ms)
        times = np.arange(n + 1) * sampling_ms
        found = solve_ivp(
            slope, (0, times[-1]), y, method, times, args=(segment,), rtol=1e-7, atol=1e-9
        )
        assert found.success, found.message
        y = found.y[:, -1]
        states.append(found.y[:, :-1])
        command.append(segment.at(times[:-1]))
    return np.concatenate(states, axis=1), np.concatenate(command)


def recorded(cells: Cells, clean: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Currents with the noise of each cell."""
    noise = random.standard_normal(clean.shape)
    if cells.kind.filtered:
        left = np.exp(-2 * np.pi * CORNER_HZ * SAMPLING_MS / 1e3)
        noise = np.sqrt(1 - left**2) * lfilter([1], [1, -left], noise, axis=1)
    return clean + cells.noise[:, None] * noise


def fit_file(folder: Path) -> Path:
    """A fit file for these wells: the two gates with a leak."""
    document = yaml.safe_load((ROOT / "models" / "herg_beattie.yaml").read_text())
    document["parameters"]["g"] = {"range": [1, 500], "unit": "nS", "value": 30}
    document["parameters"] |= {
        "g_leak": {"range": [0, 100], "unit": "nS", "value": 1.0},
        "e_leak": {"range": [-60, 60], "unit": "mV", "value": 0.0},
    }
    document["leak"] = {"conductance": "g_leak", "reversal": "e_leak"}
    document["fit"] = {
        "experiments": [
            {
                "protocol": str(ROOT / "protocols" / "staircase.yaml"),
                "recording": {
                    "file": "plate.npy",
                    "sampling": f"{SAMPLING_MS} ms",
                    "current": {"columns": "all", "unit": "pA"},
                },
            }
        ],
        "rates_within": {"range": ["1.67e-5 /ms", "1000 /ms"], "of": "largest"},
    }
    file = folder / "plate_fit.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return file


def simulated(n_good: int, n_faulty: int, seed: int) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The kind (n,) and conductance (n,) of each well, and its recording (n, n_samples)."""
    random, segments = np.random.default_rng(seed), staircase()
    names, truth, data = [], [], []
    for name, kind in KINDS.items():
        cells = drawn(kind, n_good if name == "good" else n_faulty, random)
        data.append(recorded(cells, currents(cells, segments), random))
        names += [name] * len(cells.conductance)
        truth.append(cells.conductance)
    return names, np.concatenate(truth), np.concatenate(data)


def fitted(folder: Path, data: np.ndarray) -> WellTable:
    """The table of the wells, as `channelfit batch` makes it."""
    np.save(folder / "plate.npy", data)
    found = cf.fit_batch(fit_file(folder), folder / "plate.npy", folder=folder / "run")
    return WellTable.read(found.folder)


def is_new(reason: str) -> bool:
    """Return whether all reasons of a well are those that came with the checks of its residuals."""
    parts = [part.strip() for part in reason.split(";")]
    return all(part.startswith(_NEW) for part in parts)


def rows_of(names: Sequence[str], truth: np.ndarray, table: WellTable) -> list[Row]:
    """Return for each kind the wells that are ok, before and after, and errors of conductances."""
    kinds, rows = np.array(names), []
    ok = np.array([quality == "ok" for quality in table["quality"]])
    before = ok | np.array([is_new(str(reason)) for reason in table["reason"]])
    inside = (table["g_lower"] <= truth) & (truth <= table["g_upper"])
    error = 100 * np.abs(table["g"] / truth - 1)
    for name in KINDS:
        own = kinds == name
        n = int(own.sum())
        note = f"of {n}; {int(before[own].sum())} before"
        note += f"; {int(inside[own].sum())} intervals of the conductance hold the truth"
        rows.append(Row(f"{name}: ok before", float(before[own].sum()), "wells", note=f"of {n}"))
        rows.append(Row(f"{name}: ok", float(ok[own].sum()), "wells", note=note))
        median = float(np.median(error[own]))
        rows.append(Row(f"{name}: error of the conductance", median, "%", note="median"))
    faulty = ~np.isin(kinds, GOOD)
    for words, which in (("before", before), ("after", ok)):
        passed, alarms = which[faulty].sum(), (~which[~faulty]).sum()
        of_faulty, of_good = f"of {int(faulty.sum())}", f"of {int((~faulty).sum())}"
        rows.append(Row(f"faulty wells called ok, {words}", float(passed), "wells", note=of_faulty))
        rows.append(Row(f"good wells not ok, {words}", float(alarms), "wells", note=of_good))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wells", type=int, default=16, help="of each kind but the first")
    parser.add_argument("--good", type=int, default=96, help="good wells with white noise")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    names, truth, data = simulated(options.good, options.wells, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        table = fitted(Path(folder), data)
    title = f"{len(names)} simulated wells with planted faults"
    finish("plate_faults", title, rows_of(names, truth, table), "cpu", options.out)


if __name__ == "__main__":
    as_script(main)
