"""All ion currents of published Myokit models, imported: how many translate, how many are proven.

    python benchmarks/imports_myokit.py FOLDER

FOLDER holds the models of https://github.com/myokit/models (its folders c and g), which are not
ours to pass on:

    git clone https://github.com/myokit/models FOLDER
    git -C FOLDER checkout 00816d9

An ion current is what the derivative of the membrane potential adds up: sums of currents are taken
apart, stimuli are left out; exchangers and pumps, which have no gates, count as well. Each is
translated alone; then it is compared over whole traces, under two families of nineteen steps and
ramps, with a truth that evaluates the file by Myokit. The bar is 1e-6 of the largest current.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from report import Row, finish, missing

from channelfit.model.channel import ChannelModel
from channelfit.model.imports.myokit_currents import ion_currents
from channelfit.model.imports.myokit_model import read_myokit
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.reading.errors import InputError
from channelfit.scoring.neuron.importing import TOLERANCE
from channelfit.scoring.neuron.importing_myokit import prove_myokit, translated
from channelfit.scoring.scorer import make_scorer

UNIT = "of largest current"


def simulated(model: ChannelModel, protocol: Protocol) -> np.ndarray:
    """The current of a model's values (n_sweeps, n_times_max), pA."""
    scorer = make_scorer(Problem(model, (Experiment(protocol),)), "cpu")
    return np.asarray(scorer.simulate(model.values()[:, None])[0][:, :, 0])


def measured(path: Path, plain: Mapping[str, Any], current: str, tried: bool) -> tuple[str, Row]:
    """The outcome in one word, and the row of one current, proven if it is to be tried."""
    name = f"{path.stem}: {current}"
    try:
        model = translated(dict(plain), path, path.name, current)
    except InputError as error:
        text = f"{error.key}: {error.message}" if error.key else error.message
        return "refused", missing(name, UNIT, f"not translated: {text}")
    made = model.imported.model
    text = f"{len(made.chains)} chains, {len(made.parameters)} parameters"
    notes = [note for note in model.found.notes if "below 0" in note or "held" in note]
    if not tried:
        return "translated", missing(name, UNIT, "; ".join([text, "not tried", *notes]))
    try:
        proof = prove_myokit(model, simulated)
    except InputError as error:
        text = "; ".join([f"translated ({text}), not proven: {error.message}", *notes])
        return "unproven", missing(name, UNIT, text)
    text = "; ".join(part for part in (text, *proof.notes, *notes))
    row = Row(name, proof.error, UNIT, TOLERANCE, proof.error / TOLERANCE, text)
    return "agrees" if proof.error <= TOLERANCE else "differs", row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the models lie")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--only", default="", help="models whose name has this in it")
    parser.add_argument("--every", type=int, default=1, help="prove every Nth current")
    parser.add_argument("--processes", type=int, default=1, help="at the same time")
    options = parser.parse_args()
    jobs, files = [], []
    for path in sorted(options.folder.rglob("*.mmt")):
        if options.only not in path.stem:
            continue
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        try:
            plain = read_myokit(path)
        except InputError as error:
            files.append(missing(path.name, "", f"{error.message}; SHA-256 {digest}"))
            continue
        currents = ion_currents(plain)
        files.append(Row(path.name, len(currents), "currents", note=f"SHA-256 {digest}"))
        jobs += [(path, plain, current) for current in currents]
    every = [(*job, k % options.every == 0) for k, job in enumerate(jobs)]
    outcomes, rows = [], []
    with ProcessPoolExecutor(options.processes) as pool:
        for outcome, row in pool.map(measured, *zip(*every, strict=True)):
            outcomes.append(outcome)
            rows.append(row)
            value = "" if row.value is None else f"{row.value:.1e}"
            print(f"{outcome:11s}{value:9s}{row.name}  {row.note}", flush=True)
    n = len(outcomes)
    head = [
        Row("models", len(files), "files, of which some are of no cell"),
        Row("ion currents", n, "of these models"),
        *(
            Row(text, outcomes.count(key), "currents", n, outcomes.count(key) / n)
            for key, text in (
                ("agrees", f"agree within {TOLERANCE:g}"),
                ("differs", "differ"),
                ("unproven", "translated, not proven"),
                ("translated", "translated, not tried, since only each Nth was"),
                ("refused", "refused"),
            )
        ),
    ]
    title = "Ion currents of published Myokit models, imported"
    finish("imports_myokit", title, head + files + rows, folder=options.out)


if __name__ == "__main__":
    main()
