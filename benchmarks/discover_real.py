"""Counts the schemes that recordings of real hERG cells tell apart, by `channelfit.discover`.

    CHANNELFIT_DATA=folder python benchmarks/discover_real.py [--states 2 6] [--keep 10] [--every 5]
        [--sine-wave 2 3] [--cells staircase sine_wave] [--backend cuda] [--cluster local]
        [--out DIR]

Two cells: the staircase of well A13 of a plate, and the sine wave of cell 16713110, of which a
second protocol, action potentials, is held out (weight 0), so that each scheme that was fitted
fully predicts a recording that it has not seen. The fit files are those of models/fits; of their
model `discover` keeps the current alone, with a conductance between 5 and 5,000 nS, as the
published range, 61 to 612 nS, is that of another cell and scheme. --every scores each so many-th
sample (the sampling is 0.2 and 0.1 ms), in place of what the files say.

For every number of states: how many schemes there are, how many could not be fitted, how many are
within 6 of the best by BIC, of that number, of all, and of all if samples that say the same count
once, how many pairs are equivalent, and of the best scheme its misfit, its error on what was held
out, and how many starts agreed. Equivalence is tested among the schemes that are within 6 of the
best of all, as `discover` does. A scheme can have every current of those that it contains, as far
as the ranges of its rates allow; those that fit worse than such a scheme (their cost by 0.1 % or
more) are counted, too.

--sine-wave gives that cell other numbers of states than --states, as its scores take longer.
Results are written after every cell. Seconds are those of the clock. Results of a GPU, which the
processes of --cluster share, have a file of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from report import Row, as_script, finish

import channelfit as cf
from channelfit.discovery.schemes import Scheme, Space
from channelfit.reading.documents import read_yaml
from channelfit.results.comparison import NEAR_BIC
from channelfit.scoring.machine import gpu

ROOT = Path(__file__).parents[1]
FITS = ROOT / "models" / "fits"
CONDUCTANCE, WORSE = [5, 5000], 1.001
CONCLUDED = ("samples", "independent_samples", "near_of_independent", "conclusions", "follows")
AP = {
    "protocol": "../../protocols/herg_ap.yaml",
    "recording": {
        "file": "${CHANNELFIT_DATA}/herg_sine_wave/ap_16713110.mat",
        "current": {"column": "T", "unit": "nA"},
        "sampling": "0.1 ms",
    },
    "mask": [{"after_steps": "5 ms"}],
    "weight": 0,
}
#: Each cell with its fit file and what is held out.
CELLS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "staircase": ("herg_syncropatch_a13", []),
    "sine_wave": ("herg_sine_wave_16713110", [AP]),
}


def fit_file(cell: str, every: int, folder: Path) -> Path:
    """Write the fit file of a cell, with what is held out and so many samples left out."""
    name, held_out = CELLS[cell]
    document = read_yaml(FITS / f"{name}.yaml")
    model = read_yaml(FITS / document["model"])
    model["parameters"]["g"]["range"] = CONDUCTANCE
    experiments = [{**one, "every": every} for one in document["fit"]["experiments"]]
    fit = {**document["fit"], "name": cell, "experiments": [*experiments, *held_out]}
    current = {**model["current"], **document.get("current", {})}
    # as text, so that every path beside the shipped file is found from elsewhere, too
    text = json.dumps({**model, "current": current, "fit": fit})
    text = text.replace('"../../', f'"{ROOT}/').replace('"../', f'"{ROOT / "models"}/')
    file = folder / f"{cell}.yaml"
    file.write_text(text)
    return file


def parts_of(scheme: Scheme) -> set[str]:
    """Return the names of the schemes that one becomes without a state or a transition."""
    smaller = [scheme.without_state(k) for k in range(scheme.n)]
    smaller += [scheme.without_edge(edge) for edge in scheme.edges]
    return {one[0].name for one in smaller if one is not None}


def too_high(table: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the names of the schemes that fit worse than one that they contain."""
    cost = {row["scheme"]: row["cost"] for row in table if not row["failure"]}
    sizes = [row["states"] for row in table]
    return {
        scheme.name
        for scheme in Space((min(sizes), max(sizes))).schemes
        if scheme.name in cost
        and any(cost[scheme.name] > WORSE * cost[part] for part in parts_of(scheme) & cost.keys())
    }


def by_states(cell: str, summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each number of states."""
    table = sorted(summary["table"], key=lambda row: row["states"])
    size = {row["scheme"]: row["states"] for row in table}
    pairs = [max(size[a], size[b]) for a, b in summary["equivalent"]]
    alike, worse, found = summary["near_of_independent"], too_high(table), []
    for states, group in groupby(table, key=lambda row: row["states"]):
        rows = list(group)
        good = sorted((r for r in rows if not r["failure"]), key=lambda r: r["bic_difference"])
        above = [r["bic_difference"] for r in good]
        best = good[0] if good else {}
        kept = ("scheme", "graph", "parameters", "rms_pA", "cost", "bic_difference", "stage")
        kept += ("held_out_pA", "starts_agreed", "starts", "not_determined")
        found.append(
            {
                "cell": cell,
                "states": states,
                "schemes": len(rows),
                "failed": len(rows) - len(good),
                "fitted": sum(r["stage"] == "fitted" for r in good),
                "near_of_size": sum(x - above[0] <= NEAR_BIC for x in above),
                "near_of_all": sum(x <= NEAR_BIC for x in above),
                "near_of_independent": sum(r["scheme"] in alike for r in rows),
                "equivalent": pairs.count(states),
                "worse_than_a_part": sum(r["scheme"] in worse for r in rows),
                **{key: best.get(key) for key in kept},
            }
        )
    return found


def rows_of(series: Sequence[Mapping[str, Any]], seconds: Mapping[str, float]) -> list[Row]:
    """The numbers of all cells so far."""
    rows = []
    for cell, group in groupby(series, key=lambda one: one["cell"]):
        sizes = list(group)
        n = sum(one["schemes"] for one in sizes)
        near = sum(one["near_of_all"] for one in sizes)
        rows.append(Row(f"{cell}: schemes", n, "schemes"))
        rows.append(Row(f"{cell}: within {NEAR_BIC:g} of the best by BIC", near, "schemes"))
        rows.append(Row(f"{cell}: time", seconds[cell], "s"))
        for one in sizes:
            title, held_out = f"{cell}: {one['states']} states", one["held_out_pA"]
            note = (
                f"{one['schemes']} schemes, {one['failed']} failed; within {NEAR_BIC:g} of the "
                f"best of this size {one['near_of_size']}, of all {one['near_of_all']}; "
                f"{one['equivalent']} pairs equivalent; {one['worse_than_a_part']} fit worse than "
                f"a scheme that they contain; best {one['scheme']} ({one['graph']})"
            )
            rows.append(Row(f"{title}, best, RMS", one["rms_pA"], "pA", note=note))
            if held_out is not None:
                rows.append(Row(f"{title}, best, held out", held_out, "pA"))
    return rows


def main() -> None:
    """Fit all schemes to the cells that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--states", type=int, nargs=2, default=(2, 6))
    parser.add_argument("--sine-wave", type=int, nargs=2)
    parser.add_argument("--keep", type=int, default=10)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--cells", nargs="+", choices=list(CELLS), default=list(CELLS))
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--cluster")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if not os.environ.get("CHANNELFIT_DATA"):
        sys.exit("set CHANNELFIT_DATA to the folder that holds herg_syncropatch/")
    table: list[dict[str, Any]] = []
    seconds: dict[str, float] = {}
    conclusions: dict[str, Any] = {}
    for cell in given.cells:
        with tempfile.TemporaryDirectory() as temporary:
            file, began = fit_file(cell, given.every, Path(temporary)), time.perf_counter()
            found = cf.discover(
                file,
                states=(cell == "sine_wave" and given.sine_wave) or given.states,
                schemes={"keep": given.keep},
                backend=given.backend,
                cluster=given.cluster,
                progress=True,
            )
        seconds[cell] = time.perf_counter() - began
        table += by_states(cell, found.summary)
        conclusions[cell] = {
            **{key: found.summary[key] for key in CONCLUDED},
            "fitted": [row for row in found.summary["table"] if row["stage"] == "fitted"],
        }
        print("\n".join(found.conclusions), flush=True)
        rows, last = rows_of(table, seconds), cell == given.cells[-1]
        series: dict[str, object] = {
            "by_states": table,
            "cells": conclusions,
            "every": given.every,
            "keep": given.keep,
            "cluster": given.cluster,
        }
        title = "Schemes that real recordings tell apart"
        name, device = "discover_real", "CPU"
        if given.backend == "cuda":
            name, device = "discover_real_cuda", gpu.device().name
        finish(name, title, rows, device, given.out, series, last)


if __name__ == "__main__":
    as_script(main)
