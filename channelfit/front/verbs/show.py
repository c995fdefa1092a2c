"""`channelfit show`: its options and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from channelfit.front.options import (
    choice,
    command,
    dtype_option,
    file_path,
    path_argument,
    set_option,
)


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Print what MODEL says: its scheme, rates, generator matrix and parameters.

    \b
    Examples
      channelfit show models/model_b.yaml
      channelfit show models/na_markov.yaml --out na_markov.png
      channelfit show models/model_b.yaml --source cuda --dtype float32 > model_b.cu
      channelfit show models/na_hh.yaml --source nmodl > na_hh.mod
    """

    model: Path = path_argument("model")
    source: str | None = choice(
        "--source",
        ["cpu", "cuda", "nmodl"],
        "Print the generated code instead: of the cpu backend, of the cuda "
        "backend, or a mechanism for NEURON.",
    )
    dtype: str = dtype_option("Precision of the generated code.")
    out: Path | None = file_path("--out", "FILE.png", "Draw the scheme into this file as well.")
    overrides: tuple[str, ...] = set_option()


show = command(ShowOptions, "show", "Scheme, rates, generator matrix and parameters.")
