"""Measures how often intervals of fits with channel noise hold the truth, and the scheme of Münch.

    python benchmarks/channel_noise.py [--parts coverage munch] [--cells 200] [--munch FOLDER]

* coverage: cells of 100 to 10,000 channels (evenly in the logarithm) are simulated one by one, with
  the noise of amplifier and open channels, of two schemes: two states, of which the voltage opens
  one; and two closed states, an open one and an inactivated one; of three and of six sweeps. Each
  cell is fitted from its true values twice: by the likelihood of channel noise, and by least
  squares, with the conductance in place of number and current of channels. For each: the share of
  the 95 % intervals that hold the truth; of least squares those for independent residuals, and
  those from their spectrum.
* munch: ten concentrations of the scheme C1-C2-C3-O, simulated by Münch et al. (2022, eLife
  11:e62714) with 8,000 channels of 1 pA in each of five patches. FOLDER holds `current8000.npy` and
  `ligand_conc.txt` of github.com/JanMuench/Tutorial_Patch-clamp_data, which are not kept here. The
  samples are those that the tutorial takes: 51 after each jump with one before it; then one of
  eight of all. That repository has no samples of its posterior; its priors allow 7,200 to 8,800
  channels and 0.9 to 1.1 pA.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from report import Row, as_script, finish

import channelfit as cf
from channelfit.front.kinds import load_plan
from channelfit.problem.experiment import n_scored
from channelfit.problem.recording import Recording
from channelfit.reading.documents import dump_yaml
from channelfit.results.uncertainty.estimate import Estimate, estimate
from channelfit.results.uncertainty.noise_spectrum import spectrum_at
from channelfit.scoring.scorer import make_scorer
from channelfit.scoring.stochastic import simulate_channels
from channelfit.search.least_squares import refine
from channelfit.search.plan import FitPlan

SEED, CHANNELS, FEW = 30, (100.0, 10_000.0), 500
OF_ALL = {
    "N": (10, 200_000, "", 1000.0),
    "gamma": (0.5, 500, "pS", 20.0),
    "sigma": (0.05, 100, "pA", 1.0),
    "flicker": (0.005, 10, "pA", 0.2),
}
#: By name: states, rates, kinetic parameters with ranges and true values, and open state.
SCHEMES = {
    "two states": (
        {"C -> O": "a*exp(za*v)", "O -> C": "b*exp(-zb*v)"},
        {
            "a": (0.001, 10, "1/ms", 0.05),
            "za": (0.001, 0.2, "1/mV", 0.03),
            "b": (0.001, 10, "1/ms", 0.1),
            "zb": (0.001, 0.2, "1/mV", 0.02),
        },
    ),
    "four states": (
        {
            "C1 -> C2": "2*a*exp(za*v)",
            "C2 -> C1": "b*exp(-zb*v)",
            "C2 -> O": "a*exp(za*v)",
            "O -> C2": "2*b*exp(-zb*v)",
            "O -> I": "c",
            "I -> O": "d",
        },
        {
            "a": (0.001, 10, "1/ms", 0.1),
            "za": (0.001, 0.2, "1/mV", 0.03),
            "b": (0.001, 10, "1/ms", 0.1),
            "zb": (0.001, 0.2, "1/mV", 0.02),
            "c": (0.001, 10, "1/ms", 0.05),
            "d": (0.0001, 1, "1/ms", 0.01),
        },
    ),
}
#: The voltages of the sweeps of a cell, of 150 ms each.
VOLTAGES = ((-40, -10, 20), (-60, -40, -20, 0, 20, 40))


def steps_to(voltages: tuple[int, ...]) -> dict[str, object]:
    """A protocol with a sweep for each voltage."""
    step = {"step": {"values": list(voltages)}, "for": 100}
    segments = [{"hold": 5}, step, {"step": -60, "for": 45}]
    return {"name": "steps", "holding": -90, "sampling": 0.5, "segments": segments}


def planned(folder: Path, name: str, noise: bool, voltages: tuple[int, ...]) -> FitPlan:
    """The fit of a scheme, with its noise or with a conductance alone."""
    rates, kinetic = SCHEMES[name]
    rows = kinetic | (OF_ALL if noise else {"g": (0.05, 5000, "nS", 20.0)})
    states = dict.fromkeys(word for link in rates for word in link.split(" -> "))
    model = {
        "name": name,
        "states": list(states),
        "rates": rates,
        "current": {
            "open": ["O"],
            "conductance": "N*gamma" if noise else "g",
            "reversal": "-80 mV",
        },
        "parameters": {
            key: {"range": [low, high], "unit": unit, "scale": "log", "value": value}
            for key, (low, high, unit, value) in rows.items()
        },
        "fit": {"protocols": ["steps.yaml"], "surrogate": {"seed": 1}},
    }
    if noise:
        model["fit"]["noise"] = {"channels": "N", "instrument": "sigma", "open": "flicker"}
    (folder / "steps.yaml").write_text(dump_yaml(steps_to(voltages)))
    file = folder / "model.yaml"
    file.write_text(dump_yaml(model))
    return load_plan(file)


def with_currents(plan: FitPlan, currents: np.ndarray) -> FitPlan:
    """The plan with other data."""
    (e,) = plan.problem.experiments
    recording = Recording(e.protocol.times_ms, currents, np.ones_like(currents))
    problem = replace(plan.problem, experiments=(replace(e, recording=recording),))
    return replace(plan, problem=problem)


def held(found: Estimate, truth: np.ndarray) -> np.ndarray:
    """Whether each interval holds the truth; NaN for one that does not exist."""
    lower, upper = found.interval()
    free = list(found.objective.space.free)
    inside = (lower <= truth[free]) & (truth[free] <= upper)
    return np.where(np.isnan(lower), np.nan, inside)


def fitted(plan: FitPlan, truth: np.ndarray) -> tuple[list[np.ndarray], float]:
    """Fit from the truth; whether intervals hold it, of independent residuals and, without noise
    of channels, by their spectrum; and the seconds of a core."""
    begun = time.process_time()
    scorer = make_scorer(plan.problem, "cpu")
    objective = plan.objective(scorer)
    objective.previews = True
    unit = refine(objective, objective.space.to_unit(truth[:, None])).unit
    n = n_scored(plan.problem)
    found = [held(estimate(objective, unit[:, 0], n), truth)]
    seconds = time.process_time() - begun
    if plan.problem.noise is None:
        traces = [c[:, :, 0] for c in scorer.simulate(objective.physical(unit))]
        spectrum = spectrum_at(
            plan.problem, traces, unit[:, 0], lambda p: scorer.simulate(objective.physical(p))
        )
        found.append(held(estimate(objective, unit[:, 0], n, spectrum), truth))
    return found, seconds


def of_coverage(n_cells: int) -> list[Row]:
    """The rows of simulated cells."""
    rows = []
    for number, (name, voltages) in enumerate(product(SCHEMES, VOLTAGES)):
        with tempfile.TemporaryDirectory() as folder:
            noisy = planned(Path(folder), name, True, voltages)
            plain = planned(Path(folder), name, False, voltages)
        names = [p.name for p in noisy.problem.parameters]
        title = f"{name}, {n_scored(noisy.problem):,} samples"
        found: dict[str, list[np.ndarray]] = {"noise": [], "independent": [], "spectrum": []}
        seconds, numbers = [], []
        for cell in range(n_cells):
            draw = np.random.default_rng([SEED, number, cell])
            truth = noisy.problem.values()
            n = round(np.exp(draw.uniform(*np.log(CHANNELS))))
            truth[names.index("N")] = n
            numbers.append(n)
            (e,) = noisy.problem.experiments
            sigma, flicker = truth[names.index("sigma")], truth[names.index("flicker")]
            model = noisy.problem.model
            y = simulate_channels(model, e.protocol, truth, n, draw, sigma, flicker)[..., 0]
            (one,), used = fitted(with_currents(noisy, y), truth)
            found["noise"].append(one)
            seconds.append(used)
            own = plain.problem.values()
            own[:-1] = truth[: len(own) - 1]
            own[-1] = n * truth[names.index("gamma")]
            (independent, spectrum), _ = fitted(with_currents(plain, y), own)
            found["independent"].append(independent)
            found["spectrum"].append(spectrum)
        kinds = {
            "noise": "channel noise",
            "independent": "least squares, independent residuals",
            "spectrum": "least squares, spectrum of the residuals",
        }
        for kind, label in kinds.items():
            all_cells = np.array(found[kind])
            each = np.nanmean(all_cells, axis=0)
            own_names = names if kind == "noise" else [*names[: each.size - 1], "g"]
            worst = int(each.argmin())
            note = f"fewest: {own_names[worst]} {100 * each[worst]:.1f} %"
            lost = int(np.isnan(all_cells).any(axis=1).sum())
            note += f"; {lost} cells with a parameter at a bound" if lost else ""
            share = 100 * float(np.nanmean(all_cells))
            rows.append(Row(f"{title}: {label}: intervals that hold", share, "%", note=note))
            if kind == "noise":
                few = np.array(numbers) < FEW
                for which, cells in ((f"fewer than {FEW}", few), (f"{FEW} and more", ~few)):
                    share = 100 * float(np.nanmean(all_cells[cells]))
                    note = f"{int(cells.sum())} cells"
                    of = f"{title}: {label}: those of {which} channels"
                    rows.append(Row(of, share, "%", note=note))
                for key in ("N", "gamma"):
                    share = 100 * float(each[names.index(key)])
                    rows.append(Row(f"{title}: {label}: those of {key}", share, "%"))
        note = f"{len(names)} parameters, from the true values"
        rows.append(
            Row(f"{title}: a fit", 1e3 * float(np.median(seconds)), "ms of a core", note=note)
        )
    return rows


MUNCH = {
    "name": "CCCO",
    "states": ["C1", "C2", "C3", "O"],
    "rates": {
        "C1 -> C2": "k12*v",
        "C2 -> C1": "k21",
        "C2 -> C3": "k23*v",
        "C3 -> C2": "k32",
        "C3 -> O": "k34",
        "O -> C3": "k43",
    },
    # the command is the concentration; the current of a channel does not depend on it
    "current": {
        "open": ["O"],
        "conductance": "N*i",
        "reversal": "-1 mV",
        "rectification": "1/(v + 1)",
    },
    "parameters": {
        **{
            f"k{link}": {"range": [0.001, 10], "unit": unit, "scale": "log"}
            for link, unit in (
                ("12", "1/(ms mV)"),
                ("21", "1/ms"),
                ("23", "1/(ms mV)"),
                ("32", "1/ms"),
                ("34", "1/ms"),
                ("43", "1/ms"),
            )
        },
        "N": {"range": [100, 100_000], "scale": "log", "per": "cell"},
        "i": {"range": [0.05, 20], "unit": "nS", "scale": "log"},
        "sigma": {"range": [0.1, 10], "unit": "pA", "scale": "log"},
        "flicker": {"range": [0.01, 2], "unit": "pA", "scale": "log"},
    },
    "fit": {"noise": {"channels": "N", "instrument": "sigma", "open": "flicker"}},
}
#: Of each concentration the first sample after the jump up that the tutorial takes, and the length
#: of what it takes after the jump down, in samples of 0.1 ms.
FIRST = (2700, 2600, 2580, 2540, 2520, 2516, 2510, 2510, 2504, 2503)
LENGTH = (2000, 2000, 3000, 3000, 3000, 3000, 3000, 4000, 4000, 5000)


def of_munch(folder: Path) -> list[Row]:
    """The rows of the ten concentrations."""
    currents = np.load(folder / "current8000.npy", allow_pickle=False)
    concentrations = np.loadtxt(folder / "ligand_conc.txt")[1:, 1]
    rows = []
    for name in ("samples of the tutorial", "one sample of eight"):
        experiments = []
        for k, (current, c) in enumerate(
            zip(currents, concentrations[: len(currents)], strict=True)
        ):
            jumps = [{"hold": 250}, {"step": float(c), "for": 1000}, {"hold": 1000}]
            protocol = cf.Protocol.from_segments(jumps, holding=0, sampling=0.1, name=f"{c:g}")
            weights = np.zeros(len(current))
            if name == "one sample of eight":
                weights[::8] = 1.0
            else:
                weights[[2410, 12099]] = 1.0
                weights[FIRST[k] : FIRST[k] + 400 : 8] = 1.0
                weights[12510 : 12510 + LENGTH[k] : LENGTH[k] // 50] = 1.0
            experiments.append(
                cf.Experiment(protocol, current, weights=weights, cell=f"p{k // 2 + 1}")
            )
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "ccco.yaml"
            file.write_text(dump_yaml(MUNCH))
            begun, used = time.perf_counter(), time.process_time()
            fit = cf.fit(
                file,
                experiments,
                noise=MUNCH["fit"]["noise"],
                optimizer={"starts": 8, "patience": 1},
                seed=1,
                progress=False,
            )
            took, used = time.perf_counter() - begun, time.process_time() - used
        n = sum(int(e.weights.sum()) for e in experiments)
        starts = fit.summary["agreement"]
        agreed = f"{starts['arrived']} of {starts['independent_starts']} starts agree"
        rows.append(Row(f"{name}: seconds", took, "s", note=f"{n} samples, {agreed}"))
        rows.append(Row(f"{name}: seconds of all cores", used, "s"))
        for key, row in fit.summary["parameters"].items():
            low, high = row["interval"]
            note = f"95 % interval {low:.4g} to {high:.4g}"
            rows.append(Row(f"{name}: {key}", row["value"], row["unit"], note=note))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=["coverage", "munch"])
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--munch", type=Path, default=None, help="the folder with Münch's data")
    parser.add_argument("--out", type=Path, default=None, help="a folder other than results/")
    options = parser.parse_args()
    title = "Fits with channel noise"
    if "coverage" in options.parts:
        finish("channel_noise", title, of_coverage(options.cells), folder=options.out)
    if "munch" in options.parts and options.munch is not None:
        finish("channel_noise_munch", title, of_munch(options.munch), folder=options.out)


if __name__ == "__main__":
    as_script(main)
