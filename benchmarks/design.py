"""Designs protocols of hERG: for two gates, for five states, and to separate two schemes.

    python benchmarks/design.py FOLDER [--parts gates states schemes] [--jobs 16]

FOLDER holds the repository CardiacModelling/protocol-design-hERG (BSD-3): its optimized steps
(`optimise-*/out/opt-prt-*.txt`), the space-filling designs that were recorded, and, where they are
there, its time series (`protocol-time-series/*.csv`). Of the eighteen, six exist as time series
alone (longap, manualppx, rtovmaxdiff, rvotmaxdiff, sis and sisi: no file of parameters or steps
makes them), so that they are compared only where their files are whole; staircaseramp is the
shipped staircase. A file that repeats one of the others is compared once. For all, and for a design
of 15 s, the mean logarithm of the expected standard errors of nine parameters is computed at equal
recording time and noise (20 pA each 0.5 ms). `--confirm` fits so many simulated recordings of the
design from the true values, and compares the scatter of the fitted parameters with the expected
errors.

The five states are those of models/herg_markov.yaml with 15 parameters, and a design of 20 s at
10 pA. A parameter is determined where its expected error is below 10 % of its value. One recording
under the design is simulated and fitted from anywhere in the ranges, and `undetermined` of the fit
counts what it does not determine.

Each part writes a file of its own: design.json, design_states.json and design_schemes.json.

The two schemes are those five states, and the same with the step that does not sense the voltage
first instead of second, which is the true one. Of `--simulations` recordings at 25 pA under the
staircase and under a design of equal length both are fitted. They are separated where BIC is lower
by more than 6 for the true one, and are not where it is lower by less than 2.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from report import RESULTS, Row, as_script, compared, finish

import channelfit as cf
from channelfit.designs.plan import DesignPlan, ParameterPlan
from channelfit.designs.separation import SeparationPlan, best_fits
from channelfit.front.designing import design_plan, designed, grouped
from channelfit.front.progress import screen_for
from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model, load_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.recording import Recording
from channelfit.reading.documents import read_yaml
from channelfit.results.comparison import criteria
from channelfit.scoring.machine.threads import keep_to, usable_cores
from channelfit.scoring.scorer import make_scorer
from channelfit.tasks.executor import TaskSet
from channelfit.tasks.result_store import Arrays, Key

MODELS = Path(__file__).parents[1] / "models"
STAIRCASE = MODELS.parent / "protocols" / "staircase.yaml"
PARTS = "gates", "states", "schemes"
SAMPLING, RECORDED_SPACE_FILLING = 0.5, (10, 19, 26)
#: Time series of steps that other files hold, with more digits, and of the shipped staircase.
REPEATED = {f"spacefill{k}" for k in RECORDED_SPACE_FILLING} | {
    f"{model}{kind}" for model in ("hh", "wang") for kind in ("3step", "brute3gstep", "sobol3step")
}
REPEATED |= {"staircaseramp"}
#: Steps of Gauss and Newton from the true values; the noise is small.
NEWTON = 4
#: Standard error, as a part of the value, below which a parameter counts as determined.
DETERMINED = 0.1
#: Points drawn, and refined, for each fit beside those of the currents without noise.
DRAWN = (64, 2)


def published(folder: Path) -> list[cf.Protocol]:
    """The protocols of the repository that are there."""
    found = []
    for file in sorted(folder.glob("optimise-*/out/opt-prt-*.txt")):
        rows = [line.split() for line in file.read_text().splitlines() if not line.startswith("#")]
        whole = [(float(v), round(float(t) / SAMPLING) * SAMPLING) for v, t in rows]
        steps = [{"step": v, "for": t} for v, t in whole if t > 0]
        name = f"{file.parents[1].name.removeprefix('optimise-')} {file.stem[8:]}"
        found.append(cf.Protocol.from_segments(steps, holding=-80, sampling=SAMPLING, name=name))
    designs = folder / "rank-spacefill-protocols" / "converted_space_filling_designs"
    for k in RECORDED_SPACE_FILLING:
        file = designs / f"SpaceFillingProtocol{k}.eph"
        if file.is_file():
            found.append(replace(cf.Protocol.load(file), name=f"space filling {k}"))
    for file in sorted((folder / "protocol-time-series").glob("*.csv")):
        if file.stem.removeprefix("protocol-") in REPEATED:
            continue
        seconds, volts = np.loadtxt(file, delimiter=",", skiprows=1).T
        found.append(
            cf.Protocol.from_command(
                1e3 * seconds, volts, holding=-80, sampling=SAMPLING, name=file.stem
            )
        )
    return [*found, cf.Protocol.load(STAIRCASE)]


def errors_under(plan: ParameterPlan, protocol: cf.Protocol) -> np.ndarray:
    """Expected standard errors, as parts of the values, (n_free, n_members)."""
    covariance = plan.judge.covariance(plan.information(protocol, "cpu"))
    return np.sqrt(np.diagonal(covariance, axis1=1, axis2=2)).T


def mean_log(plan: ParameterPlan, protocol: cf.Protocol) -> float:
    """Mean logarithm of the expected standard errors, at the length of the plan."""
    errors = errors_under(plan, protocol)
    length = np.isfinite(protocol.voltage()).sum() * protocol.sampling_ms
    return float(np.log(errors).mean() + 0.5 * np.log(length / plan.limits.length))


def scatter(plan: ParameterPlan, protocol: cf.Protocol, n: int) -> np.ndarray:
    """Standard deviations of parameters fitted to n simulated recordings, parts of the values."""
    subject, places = plan.subject, plan.subject.places
    truth = subject.members[:, 0]
    quiet = make_scorer(Problem(subject.model, (Experiment(protocol),)), "cpu")
    current = quiet.simulate(truth[:, None])[0][:, :, 0]
    random, fitted = np.random.default_rng(0), []
    for _ in range(n):
        noisy = current + plan.noise * random.standard_normal(current.shape)
        recording = Recording(protocol.times_ms, noisy, np.ones(current.shape))
        scorer = make_scorer(Problem(subject.model, (Experiment(protocol, recording),)), "cpu")
        values = truth.copy()
        for _ in range(NEWTON):
            here = scorer.linearize(values[:, None])
            slope = here.gradient[places, 0] * values[places]
            curve = here.hessian[np.ix_(places, places)][..., 0]
            curve = curve * np.multiply.outer(values[places], values[places])
            values[places] *= np.exp(-np.linalg.solve(curve, slope))
        fitted.append(np.log(values[places] / truth[places]))
    return np.std(fitted, axis=0, ddof=1)


class Pool:
    """Tasks side by side in processes of this machine; see `channelfit.tasks.executor`."""

    def __init__(self, jobs: int) -> None:
        share = max(1, usable_cores() // jobs)
        context = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(jobs, context, initializer=keep_to, initargs=(share,))

    def __call__(self, tasks: TaskSet, keys: Sequence[Key]) -> Iterator[tuple[Key, Arrays]]:
        """Yield the key and the result of each task."""
        return zip(keys, self.pool.map(tasks.compute, keys), strict=True)


def plan_for(*models: ChannelModel, **changed: object) -> DesignPlan:
    """A plan for one model, or to separate several, with the settings that all parts share."""
    common = {
        **grouped("limits"),
        **grouped("ensemble"),
        "segments": "20 step",
        "noise": "20 pA",
        "criterion": "log",
        "parameters": [],
        "predict": [],
        "iterations": 150,
        "seed": 0,
    }
    schemes = [(model, {}, model.name) for model in models]
    return design_plan(schemes, **{**common, **changed})[0]


def for_two_gates(folder: Path, starts: int, confirm: int, pool: Pool) -> Iterator[Row]:
    """Rows of the published protocols, and of the scatter of fits."""
    plan = plan_for(load_model(MODELS / "herg_beattie.yaml"), length="15 s")
    found = designed(plan, starts, [], screen_for("two gates", True), pool)
    own = mean_log(plan, found.protocol)
    for protocol in published(folder):
        theirs = mean_log(plan, protocol)
        note = f"geometric mean of the errors {100 * np.exp(theirs):.3g} %"
        name = f"mean log error of the design, against {protocol.name}"
        yield Row(name, own, "ln", theirs, np.exp(own - theirs), note)
    if confirm:
        expected = errors_under(plan, found.protocol)[:, 0]
        seen = scatter(plan, found.protocol, confirm)
        for p, one, other in zip(plan.subject.free, seen, expected, strict=True):
            note = f"{confirm} simulated recordings; against the expected error"
            yield compared(f"scatter of {p.name}", one, "of its value", other, note)


def for_five_states(starts: int, pool: Pool) -> Iterator[Row]:
    """Rows of the expected errors of 15 parameters, and of what a fit says."""
    model = load_model(MODELS / "herg_markov.yaml")
    plan = plan_for(model, length="20 s", segments="24 step", noise="10 pA", iterations=300)
    found = designed(plan, starts, [], screen_for("five states", True), pool)
    staircase = cf.Protocol.load(STAIRCASE)
    longer = (staircase.times_ms.size * staircase.sampling_ms / plan.limits.length) ** 0.5
    theirs = errors_under(plan, staircase)[:, 0] * longer
    own = errors_under(plan, found.protocol)[:, 0]
    for p, one, other in zip(plan.subject.free, own, theirs, strict=True):
        note = "20 s, against the staircase at equal recording time"
        yield compared(f"expected error of {p.name}", one, "of its value", other, note)
    counts = [int((errors > DETERMINED).sum()) for errors in (own, theirs)]
    note = f"expected error above {100 * DETERMINED:g} %; against the staircase"
    yield Row("five states: parameters not determined, of 15", counts[0], "", counts[1], note=note)
    fits = [fitted(plan, protocol) for protocol in (found.protocol, staircase)]
    note = "by the uncertainty of a fit of one simulated recording; against the staircase, 15.4 s"
    left = [len(fit.undetermined) for fit in fits]
    yield Row("five states: combinations not determined", left[0], "", left[1], note=note)
    values = [np.array(list(fit.values.values())) for fit in fits]
    off = [float(np.abs(np.log(one / model.values())).max()) for one in values]
    note = "largest |ln(fitted/true)| of 15 parameters; against the staircase, 15.4 s"
    yield compared("five states: largest deviation of a fit", off[0], "ln", off[1], note)


def fitted(plan: ParameterPlan, protocol: cf.Protocol) -> cf.Fit:
    """A fit of a simulated recording from anywhere in the ranges."""
    current = plan.subject.simulated(protocol, plan.subject.members)[0, :, 0]
    noisy = current + plan.noise * np.random.default_rng(1).standard_normal(current.shape)
    experiment = cf.Experiment(protocol, noisy)
    return cf.fit(cf.Model.load(MODELS / "herg_markov.yaml"), experiment, seed=0, progress=False)


def for_two_schemes(starts: int, simulations: int, pool: Pool) -> Iterator[Row]:
    """Rows of recordings by which two schemes are separated, under staircase and design."""
    staircase = cf.Protocol.load(STAIRCASE)
    length = staircase.times_ms.size * staircase.sampling_ms
    models = [other_order(), load_model(MODELS / "herg_markov.yaml")]
    plan = plan_for(*models, length=length, noise="25 pA", iterations=100)
    found = designed(plan, starts, [], screen_for("two schemes", True), pool)
    for protocol in (found.protocol, staircase):
        expected = plan.judged(protocol)
        note = "what the best fit leaves of a current without noise"
        for name, row in expected.rows.items():
            yield Row(f"{protocol.name}: {name}", row["rms, pA"], "pA", note=note)
        wrong = expected.fits[0].known
        true = plan.subjects[0].members
        tasks = [(plan, protocol, k, wrong, true) for k in range(simulations)]
        apart = np.array(list(pool.pool.map(delta_bic, tasks)))
        of = f"of {simulations} simulated recordings"
        yield Row(f"{protocol.name}: separated, delta BIC above 6", int((apart > 6).sum()), of)
        yield Row(f"{protocol.name}: not separated, delta BIC below 2", int((apart < 2).sum()), of)
        yield Row(f"{protocol.name}: median delta BIC", float(np.median(apart)), "")


def other_order() -> ChannelModel:
    """The five states with the first two steps of activation exchanged."""
    document = read_yaml(MODELS / "herg_markov.yaml")
    rates = document["rates"]
    for one, other in (("C1 -> C2", "C2 -> C3"), ("C2 -> C1", "C3 -> C2")):
        rates[one], rates[other] = rates[other], rates[one]
    return build_model({**document, "name": "other order"}, None)


def delta_bic(task: tuple[SeparationPlan, cf.Protocol, int, np.ndarray, np.ndarray]) -> float:
    """BIC of the wrong scheme less that of the true one, of one simulated recording."""
    plan, protocol, number, wrong, true = task
    current = plan.subjects[0].simulated(protocol, true)[:, :, 0]
    random = np.random.default_rng([7, number])
    noisy = current + plan.noise * random.standard_normal(current.shape)
    bics = []
    for subject, known in zip(plan.subjects, (true, wrong), strict=True):
        experiment = plan.experiment(subject, protocol, noisy)
        cost = best_fits(subject, [experiment], known, number, *DRAWN)[1][0]
        bics.append(criteria(cost, len(subject.free), current.size)[1])
    return bics[1] - bics[0]


def main() -> None:
    """Design, compare, confirm and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--starts", type=int, default=8)
    parser.add_argument("--confirm", type=int, default=200)
    parser.add_argument("--simulations", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=usable_cores())
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    pool = Pool(options.jobs)
    parts = {
        "gates": lambda: for_two_gates(options.folder, options.starts, options.confirm, pool),
        "states": lambda: for_five_states(options.starts, pool),
        "schemes": lambda: for_two_schemes(options.starts, options.simulations, pool),
    }
    for part in options.parts:
        name = "design" if part == "gates" else f"design_{part}"
        finish(name, f"Designed protocols: {part}", list(parts[part]()), folder=options.out)


if __name__ == "__main__":
    as_script(main)
