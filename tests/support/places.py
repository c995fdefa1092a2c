"""The places of the project's files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
MODELS = ROOT / "models"
PROTOCOLS = ROOT / "protocols"
BENCHMARKS = ROOT / "benchmarks"
#: NMODL and Myokit files that no export wrote.
MECHANISMS = TESTS / "mod"
#: Recordings that are not shipped.
DATA = Path(os.environ.get("CHANNELFIT_DATA", "nowhere"))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="CHANNELFIT_DATA names no folder")
