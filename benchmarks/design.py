"""Designs a protocol for two gates of hERG and compares it with those that were published for them.

    python benchmarks/design.py FOLDER [--starts 8] [--confirm 200]

FOLDER holds the repository CardiacModelling/protocol-design-hERG (BSD-3): its optimized steps
(`optimise-*/out/opt-prt-*.txt`), the space-filling designs that were recorded, and, where they are
there, its time series (`protocol-time-series/*.csv`). For all, and for a design of 15 s, the mean
logarithm of the expected standard errors of nine parameters is computed at equal recording time and
noise (20 pA each 0.5 ms). `--confirm` fits so many simulated recordings of the design from the true
values, and compares the scatter of the fitted parameters with the expected errors.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from report import RESULTS, Row, as_script, compared, finish

import channelfit as cf
from channelfit.designs.plan import ParameterPlan
from channelfit.front.designing import design_plan, designed
from channelfit.front.progress import screen_for
from channelfit.model.model_file import load_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.recording import Recording
from channelfit.scoring.scorer import make_scorer

MODEL = Path(__file__).parents[1] / "models" / "herg_beattie.yaml"
SAMPLING, RECORDED_SPACE_FILLING = 0.5, (10, 19, 26)
#: Steps of Gauss and Newton from the true values; the noise is small.
NEWTON = 4


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
        seconds, volts = np.loadtxt(file, delimiter=",", skiprows=1).T
        found.append(
            cf.Protocol.from_command(
                1e3 * seconds, volts, holding=-80, sampling=SAMPLING, name=file.stem
            )
        )
    staircase = MODEL.parents[1] / "protocols" / "staircase.yaml"
    return [*found, cf.Protocol.load(staircase)]


def mean_log(plan: ParameterPlan, protocol: cf.Protocol) -> float:
    """Mean logarithm of the expected standard errors, at the length of the plan."""
    errors = plan.errors(protocol, "cpu")
    length = np.isfinite(protocol.voltage()).sum() * protocol.sampling_ms
    return float(np.log(errors).mean() + 0.5 * np.log(length / plan.limits.length))


def scatter(plan: ParameterPlan, protocol: cf.Protocol, n: int) -> np.ndarray:
    """Standard deviations of parameters fitted to n simulated recordings, parts of the values."""
    truth = plan.members[:, 0]
    quiet = make_scorer(Problem(plan.model, (Experiment(protocol),)), "cpu")
    current = quiet.simulate(truth[:, None])[0][:, :, 0]
    random, fitted = np.random.default_rng(0), []
    for _ in range(n):
        noisy = current + plan.noise * random.standard_normal(current.shape)
        recording = Recording(protocol.times_ms, noisy, np.ones(current.shape))
        scorer = make_scorer(Problem(plan.model, (Experiment(protocol, recording),)), "cpu")
        values = truth.copy()
        for _ in range(NEWTON):
            here = scorer.linearize(values[:, None])
            slope = here.gradient[plan.places, 0] * values[plan.places]
            curve = here.hessian[np.ix_(plan.places, plan.places)][..., 0]
            curve = curve * np.multiply.outer(values[plan.places], values[plan.places])
            values[plan.places] *= np.exp(-np.linalg.solve(curve, slope))
        fitted.append(np.log(values[plan.places] / truth[plan.places]))
    return np.std(fitted, axis=0, ddof=1)


def main() -> None:
    """Design, compare, confirm and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--starts", type=int, default=8)
    parser.add_argument("--confirm", type=int, default=200)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    plan = design_plan(
        load_model(MODEL),
        values=None,
        separate=[],
        length="15 s",
        segments="20 step",
        noise="20 pA",
        holding="-80 mV",
        lowest="-120 mV",
        highest="60 mV",
        shortest="20 ms",
        sampling=f"{SAMPLING} ms",
        mask=0,
        criterion="log",
        parameters=[],
        members=1,
        spread=0.0,
        worst=False,
        iterations=150,
        seed=0,
    )
    found = designed(plan, options.starts, [], screen_for("design", True))
    own = mean_log(plan, found.protocol)
    rows = []
    for protocol in published(options.folder):
        theirs = mean_log(plan, protocol)
        note = f"geometric mean of the errors {100 * np.exp(theirs):.3g} %"
        name = f"mean log error of the design, against {protocol.name}"
        rows.append(Row(name, own, "ln", theirs, np.exp(own - theirs), note))
    if options.confirm:
        expected = plan.errors(found.protocol, "cpu")[:, 0]
        seen = scatter(plan, found.protocol, options.confirm)
        for p, one, other in zip(plan.free, seen, expected, strict=True):
            note = f"{options.confirm} simulated recordings; against the expected error"
            rows.append(compared(f"scatter of {p.name}", one, "of its value", other, note))
    finish("design", "A designed protocol for two gates of hERG", rows, folder=options.out)


if __name__ == "__main__":
    as_script(main)
