"""`channelfit validate`: its options and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from channelfit.front.options import (
    backend_option,
    command,
    file_path,
    integer,
    option,
    path_argument,
    set_option,
)


@dataclass(frozen=True, kw_only=True)
class ValidateOptions:
    """Compare the currents of MODEL with those that NEURON computes.

    NEURON gets the channel as NMODL and integrates it with CVODE to 1e-12. For every protocol the
    largest difference in any trace is given as a part of that trace's largest current. The
    tolerance is 1e-5 where the voltage is held in steps and 1e-4 where it varies; beyond it the
    exit code is 1. Needs NEURON and a C++ compiler; `channelfit doctor` tells.

    \b
    Examples
      channelfit validate models/model_b.yaml
      channelfit validate models/na_hh.yaml --candidates 50 --protocol protocols/na_iv.yaml
      channelfit validate models/herg_beattie.yaml --out validation
      channelfit validate models/published/kv34_khaliq.yaml
    """

    model: Path = path_argument("model")
    candidates: int = integer(
        "--candidates",
        "Parameter sets to compare: the file's values and others drawn from the ranges.",
        default=10,
    )
    protocols: tuple[Path, ...] = option(
        "--protocol",
        "protocols",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="FILE",
        help="Protocol to compare under, several allowed. [default: the fit's, else steps of 100 "
        "ms from -80 mV to -120 .. 60 mV]",
    )
    backend: str = backend_option("What is compared with NEURON.")
    seed: int = integer("--seed", "Seed of the parameter sets.", least=0, default=0)
    out: Path | None = file_path(
        "--out", "DIR", "Folder for a figure of the worst case of each protocol."
    )
    overrides: tuple[str, ...] = set_option()


validate = command(ValidateOptions, "validate", "Compare a model's currents with NEURON's.")
