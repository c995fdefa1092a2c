"""Published .mod files imported as they are: how many translate, and how many agree with NEURON.

    python benchmarks/imports.py FOLDER

The files, in imports_files.json, were chosen before any of them was tried, by a rule that cannot
favor easy ones: of each of 15 public repositories the three channels (a SUFFIX with STATE,
BREAKPOINT and a current) whose files have the smallest SHA-256. They are not ours to pass on. Fetch
them into FOLDER, each repository as a clone at the commit that the list names:

    git clone https://github.com/OWNER/NAME FOLDER/OWNER+NAME
    git -C FOLDER/OWNER+NAME checkout COMMIT

Files are then found by their SHA-256, wherever in FOLDER they lie. Each is translated, compiled by
nrnivmodl and run beside the translation under two families of nineteen steps, with the file's
values and with others, at two temperatures. The bar is 1e-6 of the largest current.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from report import Row, as_script, finish, missing

from channelfit.model.channel import ChannelModel
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.reading.errors import InputError
from channelfit.scoring.neuron.importing import TOLERANCE, prove, read_mechanism
from channelfit.scoring.scorer import make_scorer

FILES = Path(__file__).parent / "imports_files.json"
UNIT = "of largest current"


def simulated(model: ChannelModel, protocol: Protocol) -> np.ndarray:
    """The current of a model's values (n_sweeps, n_times_max), pA."""
    scorer = make_scorer(Problem(model, (Experiment(protocol),)), "cpu")
    return np.asarray(scorer.simulate(model.values()[:, None])[0][:, :, 0])


def by_hash(folder: Path) -> dict[str, Path]:
    """The .mod files in a folder by SHA-256."""
    return {
        hashlib.sha256(path.read_bytes()).hexdigest(): path
        for path in sorted(folder.rglob("*.mod"))
    }


def measured(file: Mapping[str, str], path: Path | None) -> tuple[str, Row]:
    """The outcome in one word, and the row of one file."""
    name = f"{file['repository']}: {file['path']}"
    where = f"commit {file['commit']}, SHA-256 {file['sha256']}"
    if path is None:
        return "absent", missing(name, UNIT, f"not in the folder; {where}")
    try:
        mechanism = read_mechanism(path, file["path"])
    except InputError as error:
        text = f"{error.key}: {error.message}" if error.key else error.message
        return "refused", missing(name, UNIT, f"not translated: {text}; {where}")
    made = mechanism.imported
    text = f"{len(made.model.chains)} chains, {len(made.model.parameters)} parameters"
    notes = [note for note in mechanism.found.notes if "below 0" in note]
    try:
        proof = prove(mechanism, simulated)
    except InputError as error:
        text = "; ".join([f"translated ({text}), not proven: {error.message}", *notes, where])
        return "unproven", missing(name, UNIT, text)
    if proof.table is not None:
        text += f"; with the file's own TABLE {proof.table:.1e}"
    text = "; ".join(part for part in (text, *proof.notes, *notes, where) if part)
    row = Row(name, proof.error, UNIT, TOLERANCE, proof.error / TOLERANCE, text)
    return "agrees" if proof.error <= TOLERANCE else "differs", row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the fetched files lie")
    parser.add_argument("--out", type=Path, help="folder of the results")
    options = parser.parse_args()
    files = json.loads(FILES.read_text(encoding="utf-8"))
    there = by_hash(options.folder)
    outcomes, rows = [], []
    for file in files:
        outcome, row = measured(file, there.get(file["sha256"]))
        outcomes.append(outcome)
        rows.append(row)
        value = "" if row.value is None else f"{row.value:.1e}"
        print(f"{outcome:9s}{value:9s}{row.name}", flush=True)
    repositories = len({file["repository"] for file in files})
    n = len(files)
    translated = sum(outcome in ("agrees", "differs", "unproven") for outcome in outcomes)
    head = [
        Row("files", n, f"of {repositories} repositories"),
        Row("translated", translated, "files", n, translated / n),
        Row("agree", outcomes.count("agrees"), f"files within {TOLERANCE:g}", n),
        Row("differ", outcomes.count("differs"), "files", n),
        Row("translated, not proven", outcomes.count("unproven"), "files", n),
        Row("refused", outcomes.count("refused"), "files, by name and line", n),
    ]
    finish("imports", "Published .mod files, imported as they are", head + rows, folder=options.out)


if __name__ == "__main__":
    as_script(main)
