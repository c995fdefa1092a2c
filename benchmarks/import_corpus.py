"""A whole corpus of .mod files, imported as they are: how many translate and agree, and why not.

    python benchmarks/import_corpus.py FOLDER [--share 1/30] [--seconds 900]

The corpus is the Ion Channel Genealogy (Podlaski et al. 2017, eLife 6:e22152): the repositories
icgenealogy/icg-channels-K and -Na, 3,734 files under GPL-3, which are not ours to pass on. Clone
them into FOLDER. Files that are the same are one; `--share K/N` takes those whose SHA-256 leaves
K - 1 when divided by N, so that nobody chooses. What was measured is kept in FOLDER, line by line,
and a second call goes on where the first one ended.

Each file is translated; where the message says that it begins away from its steady state, with
`--start steady`, as it advises. It is then compiled by nrnivmodl and run beside the translation
under nineteen steps and under a ramp of short steps (2 mV each 2 ms), with the file's values and
with others at another temperature. The bar is 1e-5 of the largest current.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from imports import UNIT, simulated
from report import RESULTS, Row, as_script, finish

from channelfit.problem.protocol import Protocol
from channelfit.problem.waves import Constant, Segment
from channelfit.reading.errors import InputError
from channelfit.scoring.neuron.importing import prove, read_mechanism, step_families

#: Largest error over the largest current.
BAR = 1e-5
#: How a refusal is counted: the first of these words that its message has.
REASONS = {
    "--start steady": "starts away from its steady state",
    "VERBATIM": "C code (VERBATIM)",
    "INCLUDE": "needs another file (INCLUDE)",
    "more than 64 states": "more than 64 states",
    "POINTER": "a variable of another mechanism (POINTER)",
    "FUNCTION_TABLE": "a table from outside the file",
    "a loop whose end": "a loop without a known end",
    "concentrations move": "concentrations that move",
    "NET_RECEIVE": "events of a network",
    "not the exact one of a gate": "a gate that is advanced by an inexact step of its own",
    "is no sum of products": "a current that is no sum of products of its states",
    "a concentration, is written": "concentrations that move",
}


def ramp() -> Protocol:
    """From -120 to 60 mV and back, by steps of 2 mV that last 2 ms."""
    up = np.arange(-120.0, 61.0, 2.0)
    levels = [*up.tolist(), *up[::-1].tolist()]
    sweep = tuple(Segment(2.0 * k, 2.0 * k + 2.0, Constant(v)) for k, v in enumerate(levels))
    return Protocol("ramp of steps from -120 mV", -120.0, 0.5, (sweep,))


def distinct(folder: Path, share: int, shares: int) -> list[tuple[str, Path]]:
    """The files of one share by SHA-256, in its order."""
    files: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.mod")):
        if path.is_file():  # folders are called so, too
            files.setdefault(hashlib.sha256(path.read_bytes()).hexdigest(), path)
    return sorted((h, p) for h, p in files.items() if int(h, 16) % shares == share - 1)


def reason(error: InputError) -> str:
    """The reason of a refusal, without names and numbers of the file."""
    for word, meaning in REASONS.items():
        if word in error.message:
            return meaning
    return re.sub(r"[-+]?\d[\d.e+-]*", "N", error.message)[:100]


def measured(path: Path, protocols: list[Protocol] | None) -> dict[str, Any]:
    """What became of one file: its outcome, and the error or the reason.

    Arguments:
        protocols: None to translate alone.
    """
    steady = False
    try:
        mechanism = read_mechanism(path, path.name)
    except InputError as first:
        steady = "--start steady" in first.message
        try:
            if not steady:
                raise
            mechanism = read_mechanism(path, path.name, settled=True)
        except InputError as error:
            return {"outcome": "refused", "reason": reason(error), "message": str(error.message)}
    if protocols is None:
        return {"outcome": "translated", "steady": steady}
    try:
        proof = prove(mechanism, simulated, protocols)
    except InputError as error:
        return {"outcome": "not proven", "reason": error.message[:300], "steady": steady}
    outcome = "agrees" if proof.error <= BAR else "differs"
    notes = list(proof.notes)
    return {"outcome": outcome, "error": proof.error, "notes": notes, "steady": steady}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the cloned repositories lie")
    parser.add_argument("--share", default="1/1", help="K/N: the K-th of N shares")
    parser.add_argument("--seconds", type=float, default=np.inf, help="begin no file after these")
    parser.add_argument("--translate", action="store_true", help="without NEURON")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    share, shares = (int(part) for part in options.share.split("/"))
    protocols = None if options.translate else [step_families()[0], ramp()]
    name = "import_corpus_translated" if options.translate else "import_corpus"
    kept = options.folder / f"{name}.jsonl"
    lines = kept.read_text("utf-8").splitlines() if kept.exists() else []
    known = {row["sha256"]: row for row in map(json.loads, lines)}
    files, begun = distinct(options.folder, share, shares), time.monotonic()
    for digest, path in files:
        if digest in known or time.monotonic() - begun > options.seconds:
            continue
        row = {"sha256": digest, "file": path.name, **measured(path, protocols)}
        known[digest] = row
        value = f"{row['error']:.1e}" if "error" in row else ""
        print(f"{row['outcome']:12s}{value:9s}{path.name}", flush=True)
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    finish(
        name,
        "The Ion Channel Genealogy, imported",
        rows(files, known, options.share),
        folder=options.out,
    )


def rows(files: list[tuple[str, Path]], known: dict[str, Any], share: str) -> list[Row]:
    """The rows of the results: counts, and refusals by reason."""
    done = [known[digest] for digest, _ in files if digest in known]
    n, count = len(done), Counter(row["outcome"] for row in done)
    translated = n - count["refused"]
    steady = sum(bool(row.get("steady")) for row in done)
    found = [
        Row("files", n, f"of {len(files)} distinct ones in share {share}"),
        Row(
            "translated",
            translated,
            "files",
            n,
            translated / max(n, 1),
            f"{steady} of them with --start steady",
        ),
    ]
    if not count["translated"]:  # beside NEURON
        found += [
            Row("agree", count["agrees"], f"files within {BAR:g} of the largest current", n),
            Row("differ", count["differs"], "files", n),
            Row("translated, not proven", count["not proven"], "files", n),
        ]
    errors = [row["error"] for row in done if "error" in row]
    if errors:
        found.append(Row("median error", float(np.median(errors)), UNIT))
    reasons = Counter(row["reason"] for row in done if row["outcome"] == "refused")
    found += [Row(f"refused: {why}", k, "files", n) for why, k in reasons.most_common()]
    found += [
        Row(
            f"{row['file']}: {row['outcome']}",
            row.get("error"),
            UNIT,
            BAR,
            note="; ".join(row.get("notes", [])) or row.get("reason", ""),
        )
        for row in done
        if row["outcome"] in ("differs", "not proven")
    ]
    return found


if __name__ == "__main__":
    as_script(main)
