"""`channelfit simulate`: its options and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from channelfit.front.options import (
    backend_option,
    command,
    dtype_option,
    file_path,
    option,
    path_argument,
    path_option,
    set_option,
)


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """Simulate the current of MODEL under PROTOCOL, at the values in the model file.

    Writes PREFIX.csv (time in ms, then current in pA and voltage in mV of every sweep) and
    PREFIX.png, replacing what is there. Cells after the end of a shorter sweep are empty.

    \b
    Examples
      channelfit simulate models/model_b.yaml protocols/activation.yaml
      channelfit simulate runs/cell7/fit.yaml protocols/staircase.yaml --out predictions/cell7
      channelfit simulate models/k_hh.yaml protocols/ramp.yaml --set parameters.gmax.value=3
    """

    model: Path = path_argument("model")
    protocol: Path = path_argument("protocol")
    out: Path | None = file_path(
        "--out",
        "PREFIX",
        "Path of the two files, without .csv and .png. [default: MODEL-PROTOCOL here]",
        python=None,
    )
    backend: str = backend_option()
    dtype: str = dtype_option("Precision of the currents.")
    path: str = path_option()
    overrides: tuple[str, ...] = set_option()
    cell: str | None = option("--cell", metavar="NAME", help="The cell whose own values are taken.")


simulate = command(SimulateOptions, "simulate", "Currents of a model under a protocol.", draws=True)
