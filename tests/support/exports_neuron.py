"""Exported mechanisms for NEURON."""

from __future__ import annotations

import importlib
from typing import Any

exports: Any = importlib.import_module("exports")


#: The bar of an export: the largest error over the largest current.
BAR = 1e-5
