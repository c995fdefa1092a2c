"""Fixtures of all tests of batches."""

from support.plate_folder import currents, plate

__all__ = ["currents", "plate"]
