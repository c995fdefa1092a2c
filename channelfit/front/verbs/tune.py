"""`channelfit tune`: its options and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from channelfit.front.options import (
    command,
    dtype_option,
    file_path,
    integer,
    path_argument,
    path_option,
    set_option,
)


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Measure how fast MODEL is scored on this GPU with every number of threads a block.

    The fastest is remembered in the cache folder, for this model and this GPU, and every later
    `optimize` uses it. Prints a table, and draws time and occupancy against threads a block. The
    cpu backend has nothing to tune.

    \b
    Examples
      channelfit tune models/model_b.yaml --population 1000000
      channelfit tune models/herg_markov.yaml --dtype float32 --out launches.png
    """

    model: Path = path_argument("model")
    population: int | None = integer(
        "--population",
        "Candidates to score each time. [default: the file's]",
        key="fit.optimizer.population",
    )
    dtype: str = dtype_option("Precision of the search to be tuned.")
    path: str = path_option()
    out: Path | None = file_path(
        "--out", "FILE.png", "Where to draw time and occupancy. [default: MODEL-launches.png here]"
    )
    overrides: tuple[str, ...] = set_option()


tune = command(TuneOptions, "tune", "Find the fastest threads a block on this GPU.")
