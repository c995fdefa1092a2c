"""The CUDA backend: one candidate a thread, all of a population in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from channelfit.codegen.cuda_source import CudaSource
from channelfit.packing import DATA as FIRST_SAMPLE
from channelfit.packing import HELD, KIND, N_SAMPLES, N_SUB, NODES, SAMPLED, TABLE, Packed
from channelfit.schedule import Schedule

#: struct Visit and struct Run of the generated text.
VISIT = np.dtype([("v", "f8"), ("dt", "f8"), ("first", "i4"), ("last", "i4"),
                  ("longest", "i4"), ("kind", "i4")])  # fmt: skip
RUN = np.dtype([("weight", "f8"), ("dt", "f8"), ("n", "i4"), ("data", "i4"), ("source", "i4"),
                ("target", "i4"), ("n_sub", "i4"), ("nodes", "i4"), ("sampled", "i4"),
                ("unused", "i4")])  # fmt: skip


@dataclass(frozen=True)
class Walk:
    """A schedule as the arrays that the kernel `runSweep` reads.

    starts: (n_starts,) mV; jobs: (n_jobs + 1,) int32; visits, runs: bytes of VISIT and RUN;
    data: (n,) pA and nodes: (n,) mV in the stepping precision.
    n_slots: what `CudaSource.specialized` needs, rounded up so that few texts are compiled.
    """

    starts: np.ndarray
    jobs: np.ndarray
    visits: np.ndarray
    runs: np.ndarray
    data: np.ndarray
    nodes: np.ndarray
    n_slots: int
    varying: bool

    @property
    def n_jobs(self) -> int:
        return len(self.jobs) - 1

    @property
    def arrays(self) -> Sequence[np.ndarray]:
        """In the order of the kernel's parameters."""
        return self.starts, self.jobs, self.visits, self.runs, self.data, self.nodes


def walk(source: CudaSource, packed: Packed, schedule: Schedule, traced: bool = False) -> Walk:
    """Lay out a schedule for a source.

    Every run's data begin where sixteen bytes may be loaded and are filled up with zeros to whole
    strides. Traced, runs point to their place in the output instead.
    """
    voltages = np.append(packed.voltages, 0.0)  # index -1: varying
    visits = np.zeros(len(schedule.voltage), dtype=VISIT)
    visits["v"], visits["dt"] = voltages[schedule.voltage], schedule.dt
    visits["first"], visits["last"] = schedule.visits[:-1], schedule.visits[1:]
    rows = packed.runs[schedule.run]
    visits["longest"] = [
        rows[a:b, N_SAMPLES].max() for a, b in zip(visits["first"], visits["last"], strict=True)
    ]
    visits["kind"] = schedule.voltage < 0
    runs = np.zeros(len(rows), dtype=RUN)
    runs["weight"] = rows[:, SAMPLED] if traced else schedule.weight
    runs["sampled"] = runs["weight"] > 0
    runs["dt"], runs["n_sub"] = packed.run_dt[schedule.run], rows[:, N_SUB]
    runs["n"], runs["data"] = rows[:, N_SAMPLES], rows[:, FIRST_SAMPLE]
    runs["source"], runs["target"] = schedule.source, schedule.target
    data = np.empty(0, source.dtype)
    if not traced:
        runs["data"], data = _aligned(runs, packed.data_pA, source)
    runs["nodes"], nodes = _voltages(rows, packed.nodes_mV, source)
    return Walk(
        packed.voltages[packed.start_voltage], schedule.jobs.astype(np.int32),
        visits.view(np.uint8), runs.view(np.uint8), data, nodes,
        -(-schedule.n_slots // 4) * 4, bool(visits["kind"].any()),
    )  # fmt: skip


def _aligned(
    runs: np.ndarray, data_pA: np.ndarray, source: CudaSource
) -> tuple[np.ndarray, np.ndarray]:
    """Where each run's data begin, and the data with every run on a whole stride."""
    scored = runs["sampled"] > 0
    room = np.where(scored, -(-runs["n"] // source.stride) * source.stride, 0)
    begins = np.concatenate(([0], np.cumsum(room)[:-1])) if len(runs) else room
    data = np.zeros(int(room.sum()) + source.stride, source.dtype)
    for run, begin in zip(runs[scored], begins[scored], strict=True):
        n, first = run["n"], run["data"]
        data[begin : begin + n] = data_pA[first : first + n]
    return begins, data


def _voltages(
    rows: np.ndarray, nodes_mV: np.ndarray, source: CudaSource
) -> tuple[np.ndarray, np.ndarray]:
    """Where the voltages of each varying run begin, and those that the source's steps want."""
    begins, parts, total = np.zeros(len(rows), dtype=np.int64), [np.zeros(0)], 0
    for k, row in enumerate(rows):
        if row[KIND] == HELD:
            continue
        n_steps = row[N_SAMPLES] * row[N_SUB]
        all_nodes = nodes_mV[row[TABLE] : row[TABLE] + n_steps * len(NODES)]
        part = source.voltages(all_nodes.reshape(n_steps, len(NODES)))
        begins[k] = total
        parts.append(part)
        total += len(part)
    return begins, np.concatenate(parts).astype(source.dtype)
