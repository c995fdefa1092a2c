"""The traces of a run as tables: time, and of every sweep command, recording and fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from channelfit.reading.csv_tables import csv_table
from channelfit.reading.files import whole
from channelfit.results.report.traces import Traces


def table_names(n_experiments: int) -> list[str]:
    """Return the names of the files: a number for each experiment, where there are several."""
    if n_experiments == 1:
        return ["traces.csv"]
    return [f"traces_{k + 1}.csv" for k in range(n_experiments)]


def save_tables(panels: Sequence[Traces], folder: Path) -> list[Path]:
    """Write a table of each experiment into a folder; none of them is ever seen half written."""
    files = []
    for name, panel in zip(table_names(len(panels)), panels, strict=True):
        file = folder / name
        with whole(file) as table:
            table.write(table_text(panel).encode())
        files.append(file)
    return files


def table_text(traces: Traces) -> str:
    """Return one experiment as CSV: a row a sample, nine digits, empty cells where nothing is
    known.

    Columns: time (ms), and for each sweep its command (mV), the membrane's potential (mV) where it
    is another, data (pA) and weight where there is a recording, and fit (pA).
    """
    protocol = traces.protocol
    command = protocol.command()
    columns = [("time (ms)", protocol.times_ms.round(9))]
    for k in range(protocol.n_sweeps):
        columns.append((f"sweep {k + 1} command (mV)", command[k]))
        over = np.isnan(command[k])  # the sweep has ended
        if traces.membrane is not None:
            potential = np.where(over, np.nan, traces.membrane[k])
            columns.append((f"sweep {k + 1} membrane (mV)", potential))
        if traces.data is not None:
            weight = np.ones_like(traces.result) if traces.weight is None else traces.weight
            columns.append((f"sweep {k + 1} data (pA)", traces.data[k]))
            columns.append((f"sweep {k + 1} weight", np.where(over, np.nan, weight[k])))
        columns.append((f"sweep {k + 1} fit (pA)", np.where(over, np.nan, traces.result[k])))
    return csv_table(columns, digits=9)
