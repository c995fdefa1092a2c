"""The folder of a reader: the shipped files, and those that the pages name as the reader's own."""

from __future__ import annotations

import shutil
from pathlib import Path

from yaml import safe_dump

import channelfit as cf
from channelfit.problem.inspection import FileOptions, inspect_file
from channelfit.reading.shipped import copy_examples
from support.places import ROOT
from support.rig_files import PROTOCOL, write_nwb

RECORDED = ROOT / "models" / "recordings" / "abf" / "171116sh_0013.abf"


def laboratory(folder: Path) -> None:
    """Fills a folder with the shipped files, those of the guide beside them, and files of rigs."""
    copy_examples(folder)
    shutil.copytree(folder / "models" / "guide", folder, dirs_exist_ok=True)
    (folder / "plate").mkdir()
    shutil.copy(folder / "a1.csv", folder / "plate" / "herg-A01.csv")
    (folder / "steps.yaml").write_text(safe_dump(PROTOCOL))
    shutil.copy(RECORDED, folder)
    protocol = inspect_file(RECORDED, FileOptions()).protocol
    assert protocol is not None
    protocol.save(folder / f"{RECORDED.stem}-protocol.yaml")
    shutil.copy(folder / "models" / "na_hh.yaml", folder)
    cf.Protocol.steps([-20, 20], duration=2, holding=-100, sampling=0.05).save(
        folder / "na_steps.yaml"
    )
    write_nwb(folder / "cell_5.nwb")
    (folder / "synaptic.csv").write_text("time_ms,i_nA\n0,0\n5,0.1\n20,0\n")  # of cell.md
    for name, rows, least in (("activation", 10, -40), ("tau", 8, -20)):  # of observations.md
        lines = [f"{least + 10 * k},{0.1 * k + 2},{0.1 * k + 2},0.1" for k in range(rows)]
        (folder / f"{name}.csv").write_text("\n".join(["v,open,tau,sem", *lines]))
