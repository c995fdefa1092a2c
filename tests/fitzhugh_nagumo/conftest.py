"""Fixtures of all tests of the cable."""

from support.cable_device import device

__all__ = ["device"]
