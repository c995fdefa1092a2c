"""The places of the project's files."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
MODELS = ROOT / "models"
PROTOCOLS = ROOT / "protocols"
BENCHMARKS = ROOT / "benchmarks"
#: NMODL and Myokit files that no export wrote.
MECHANISMS = TESTS / "mod"
