"""Sodium currents through a series resistance: fitted with the clamp, and as if it were ideal.

    python benchmarks/clamp.py [--seeds 20] [--quick] [--out DIR]     recovery, figure, speed
    python benchmarks/clamp.py --speed-only [--backend cuda]     speed beside the ideal clamp
    python benchmarks/clamp.py --low-pass    the same with an ideal clamp and a Bessel filter

The data are those of the squid axon's sodium channel (models/na_hh.yaml) under steps, through 5,
10, 15 and 20 MOhm in turn, 70 % of it compensated and predicted, with the charging current of 20 pF
cancelled and noise of 5 pA. Both fits see the same samples, those later than 0.2 ms after a step,
and are refined from the true values, so that what they are off by is their bias and their scatter
and not the search's. The coupled fit finds the series resistance, too. A parameter is covered where
its true value lies within 1.96 standard errors. With --low-pass the amplifier filters with four
poles at 10, 5, 2 and 1 kHz, and nothing else is wrong.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import sympy
from report import RESULTS, Row, as_script, compared, finish
from scipy import stats

mpl.use("Agg")
import matplotlib.pyplot as plt

from channelfit.model.channel import ChannelModel, Parameter
from channelfit.model.model_file import load_model
from channelfit.model.terms import symbol
from channelfit.problem.clamp import Clamp, LowPass
from channelfit.problem.experiment import Experiment, Problem, n_scored
from channelfit.problem.protocol import build_protocol
from channelfit.problem.recording import Recording
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.threads import usable_cores
from channelfit.scoring.scorer import make_scorer
from channelfit.search.least_squares import refine
from channelfit.search.objective import Objective
from channelfit.search.plan import simulate_surrogate
from channelfit.search.space import SearchSpace

ROOT = Path(__file__).parent.parent
NOISE, MASKED_MS = 5.0, 0.2
SHOWN = ("gmax", "vam", "kam", "vbh", "bh")
PROTOCOL = {
    "holding": "-100 mV",
    "sampling": "0.025 ms",
    "segments": [
        {"hold": "0.5 ms"},
        {"step": {"from": "-60 mV", "to": "40 mV", "by": "10 mV"}, "for": "8 ms"},
        {"step": "-20 mV", "for": "4 ms"},
    ],
}


@dataclass(frozen=True)
class Fitted:
    """Estimates and standard errors of the channel's parameters, and how many were covered."""

    setting: float
    values: np.ndarray
    errors: np.ndarray
    covered: np.ndarray


@dataclass(frozen=True)
class Case:
    """The imperfections of the amplifier, in several degrees.

    Attributes:
        name: of the files that are written.
        settings: MOhm of series resistance, or kHz of the filter's cutoff.
        unit: theirs.
    """

    name: str
    settings: tuple[float, ...]
    unit: str


RESISTANCE = Case("clamp", (5.0, 10.0, 15.0, 20.0), "MΩ")
FILTER = Case("low_pass", (10.0, 5.0, 2.0, 1.0), "kHz")


def problems(case: Case, setting: float) -> tuple[Problem, Problem]:
    """The coupled problem, whose parameters end in a series resistance, and the naive one."""
    model = load_model(ROOT / "models" / "na_hh.yaml")
    protocol = build_protocol(PROTOCOL, None)
    whole, clamp = model, Clamp(low_pass=LowPass(4, setting))
    if case is RESISTANCE:
        rs = Parameter("rs", "MOhm", 0.5, 40.0, value=setting)
        whole = replace(model, parameters=(*model.parameters, rs))
        clamp = Clamp(
            series_resistance=symbol("rs"),
            membrane_capacitance=sympy.Float(20.0),
            fraction=sympy.Float(0.7),
            prediction=sympy.Float(0.7),
            cancellation=sympy.Integer(1),
        )
    coupled = Problem(whole, (Experiment(protocol, clamp=clamp),))
    return coupled, Problem(model, (Experiment(protocol),))


def with_noise(coupled: Problem, naive: Problem, seed: int) -> tuple[Problem, Problem]:
    """Both problems with the same data, masked behind the steps."""
    made = simulate_surrogate(coupled, make_scorer(coupled, "cpu"), NOISE, seed)
    experiment = made.experiments[0]
    recording, protocol = experiment.recording, experiment.protocol
    assert recording is not None
    weight = recording.weight.copy()
    for k in range(protocol.n_sweeps):
        for step in protocol.step_times_ms(k):
            late = protocol.times_ms - step
            weight[k, (late > -1e-9) & (late < MASKED_MS)] = 0.0
    masked: Recording = replace(recording, weight=weight)
    return tuple(  # type: ignore[return-value]
        replace(p, experiments=(replace(p.experiments[0], recording=masked),))
        for p in (coupled, naive)
    )


def fitted(problem: Problem, setting: float) -> Fitted:
    """The minimum beside the true values, with standard errors from the Hessian there."""
    scorer = make_scorer(problem, "cpu")
    model: ChannelModel = problem.model
    objective = Objective(SearchSpace(model.parameters), scorer)
    unit = refine(objective, np.asarray(objective.space.to_unit(model.values()[:, None]))).unit
    values = objective.physical(unit)[:, 0]
    local = scorer.linearize(values[:, None])
    n, p = n_scored(problem), len(values)
    variance = local.cost[0] * n / (n - p)
    errors = np.sqrt(np.diag(np.linalg.inv(local.hessian[..., 0])) * 2 * variance / n)
    covered = np.abs(values - model.values()) < 1.96 * errors
    return Fitted(setting, values, errors, covered)


def recovery(case: Case, n_seeds: int) -> tuple[list[Fitted], list[Fitted]]:
    """All fits, coupled and naive."""
    coupled, naive = [], []
    for seed in range(n_seeds):
        setting = case.settings[seed % len(case.settings)]
        pair = with_noise(*problems(case, setting), seed)
        coupled.append(fitted(pair[0], setting))
        naive.append(fitted(pair[1], setting))
        print(
            f"seed {seed}, {setting:g} {case.unit}: {coupled[-1].covered.mean():.0%} covered, "
            f"naive {naive[-1].covered.mean():.0%}",
            flush=True,
        )
    return coupled, naive


def of_channel(fit: Fitted) -> Fitted:
    """The same without a parameter of the clamp."""
    n = len(load_model(ROOT / "models" / "na_hh.yaml").parameters)
    return replace(fit, values=fit.values[:n], errors=fit.errors[:n], covered=fit.covered[:n])


def rows_of(coupled: list[Fitted], naive: list[Fitted]) -> list[Row]:
    """Return the coverage of the true values and the mean errors of the estimates."""
    rows = []
    model = problems(RESISTANCE, 5.0)[0].model
    for name, fits in (("coupled", coupled), ("naive", naive)):
        covered = np.array([f.covered for f in fits])
        least = stats.binom.ppf(0.005, covered.size, 0.95) / covered.size
        note = f"99 of 100 times at least {least:.1%} where the errors are right"
        rows.append(Row(f"{name}: parameters covered", 100 * covered.mean(), "%", note=note))
        truth = model.values()[:-1]  # of the channel alone
        off = [((f.values - truth) / f.errors) for f in map(of_channel, fits)]
        mean = np.mean(off, axis=0)
        worst = int(np.argmax(abs(mean)))
        label = model.parameter_names[worst]
        text = f"of {label}; {2.9 / len(fits) ** 0.5:.2f} is what chance alone reaches at times"
        rows.append(Row(f"{name}: largest mean error", float(mean[worst]), "SE", note=text))
    return rows


def draw(case: Case, coupled: list[Fitted], naive: list[Fitted], file: Path) -> None:
    """Draw the effect of the resistance on a current and on the parameters of both fits."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.9), layout="constrained")
    colors = plt.get_cmap("viridis")(np.linspace(0.1, 0.85, len(case.settings)))
    pair = problems(case, case.settings[0])
    ideal = make_scorer(pair[1], "cpu").simulate(pair[1].model.values()[:, None])[0][4, :, 0]
    protocol = pair[1].experiments[0].protocol
    times = protocol.times_ms - 0.5
    shown = (times > 0.12) & (times < 5)
    axes[0].plot(times[shown], ideal[shown] / 1e3, color="black", lw=2, label="ideal")
    for setting, color in zip(case.settings, colors, strict=True):
        problem = problems(case, setting)[0]
        current = make_scorer(problem, "cpu").simulate(problem.model.values()[:, None])[0][4, :, 0]
        axes[0].plot(
            times[shown], current[shown] / 1e3, color=color, label=f"{setting:g} {case.unit}"
        )
    axes[0].set(xlabel="time after the step to -20 mV (ms)", ylabel="current (nA)")
    axes[0].legend(frameon=False)
    names, truth = pair[1].model.parameter_names, pair[1].model.values()
    for axis, fits, title in (
        (axes[1], naive, "fitted as ideal"),
        (axes[2], coupled, "fitted with what the amplifier did"),
    ):
        for k, name in enumerate(SHOWN):
            place = names.index(name)
            for fit in fits:
                color = colors[case.settings.index(fit.setting)]
                shift = 0.12 * (case.settings.index(fit.setting) - 1.5)
                off = 100 * (fit.values[place] / truth[place] - 1)
                bar = 196 * fit.errors[place] / abs(truth[place])
                axis.errorbar(k + shift, off, bar, fmt="o", ms=3, lw=0.8, color=color)
        axis.axhline(0, color="black", lw=0.8)
        axis.set_xticks(range(len(SHOWN)), SHOWN)
        axis.set(title=title, ylabel="estimate less truth (% of the truth)")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=130)


def speeds(backend: str, n: int) -> list[Row]:
    """Candidates a second, scored and linearized, beside the ideal clamp in the same run."""
    rows = []
    pair = with_noise(*problems(RESISTANCE, 10.0), 0)
    scorers = [make_scorer(problem, backend) for problem in pair]
    spread = np.random.default_rng(0).standard_normal((len(pair[0].model.parameters), n))
    candidates = []
    for problem in pair:
        values = problem.model.values()[:, None]
        candidates.append(values * (1 + 0.02 * spread[: len(values)]))
    clock = time.process_time if backend == "cpu" else time.perf_counter
    for what in ("score", "linearize"):
        times: list[list[float]] = [[], []]
        for turn in range(8):
            for scorer, parameters, spent in zip(scorers, candidates, times, strict=True):
                began = clock()
                getattr(scorer, what)(parameters)
                if turn:  # the first compiles
                    spent.append(clock() - began)
        shared = usable_cores() if backend == "cpu" else 1
        rates = [shared * n / np.median(spent) for spent in times]
        note = f"{n} candidates, 11 sweeps of 12.5 ms; the other number: an ideal clamp"
        if backend == "cpu":
            note += "; by processor time, shared by the cores"
        rows.append(compared(f"{what} with the clamp, {backend}", rates[0], "1/s", rates[1], note))
    return rows


def main() -> None:
    """Measure, draw and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--low-pass", action="store_true")
    parser.add_argument("--speed-only", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    many = 64 if options.quick else 512 if options.backend == "cpu" else 65536
    case = FILTER if options.low_pass else RESISTANCE
    title = "A low-pass filter" if options.low_pass else "A clamp with series resistance"
    if not options.low_pass:
        device = gpu.device().name if options.backend == "cuda" else ""
        name = f"{case.name}_speed_{options.backend}"
        finish(name, f"{title}: speed", speeds(options.backend, many), device, options.out)
    if not options.speed_only:
        coupled, naive = recovery(case, 2 if options.quick else options.seeds)
        options.out.mkdir(parents=True, exist_ok=True)
        draw(case, coupled, naive, options.out / f"{case.name}.png")
        finish(case.name, title, rows_of(coupled, naive), folder=options.out)


if __name__ == "__main__":
    as_script(main)
