"""`channelfit validate`: a model's currents compared with NEURON's."""

from __future__ import annotations

import sys
from pathlib import Path

from channelfit.front.commands.inputs import load_channel
from channelfit.front.commands.validation import compare_with_neuron


def validate(
    model: Path,
    candidates: int,
    protocols: tuple[Path, ...],
    backend: str,
    seed: int,
    out: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Compare a model with NEURON; ends with exit code 1 beyond the tolerance."""
    channel, document = load_channel(model, overrides)
    if not compare_with_neuron(channel, document, model, candidates, protocols, backend, seed, out):
        sys.exit(1)
