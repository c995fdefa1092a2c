"""Every deliberate fault of `mutations.py` still finds its place, and the tests that it names."""

from __future__ import annotations

from mutations import FAULTS, stale_faults


def test_every_fault_still_applies():
    assert len(FAULTS) >= 100
    assert not stale_faults()
