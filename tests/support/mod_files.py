"""NMODL files to import, and the programs that an import needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from channelfit.problem.protocol import Protocol
from channelfit.scoring.neuron.importing import Mechanism, read_mechanism, step_families
from channelfit.scoring.neuron.mechanisms import NeuronUnavailable, compile_mechanism, neuron_parser
from support.places import MECHANISMS

MOD = MECHANISMS


@pytest.fixture(scope="module", autouse=True)
def parser() -> None:
    """Skips where NEURON's parser is not installed."""
    try:
        neuron_parser()
    except NeuronUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def compiler() -> None:
    """Skips where mechanisms cannot be compiled."""
    try:
        compile_mechanism((MOD / "k_hh.mod").read_text(encoding="utf-8"))
    except NeuronUnavailable as error:
        pytest.skip(str(error))


def few() -> tuple[Protocol, ...]:
    """Some of the steps of a proof, -40 and 0 mV among them."""
    protocol = step_families()[0]
    return (replace(protocol, sweeps=protocol.sweeps[::4]),)


def of_text(
    text: str, tmp_path: Path, fit: tuple[str, ...] = (), settled: bool = False
) -> Mechanism:
    path = tmp_path / "given.mod"
    path.write_text(text, encoding="latin-1")
    return read_mechanism(path, "given", fit, settled)
