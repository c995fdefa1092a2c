"""Channels in a cell: one compartment under current clamp, many parameter sets at once."""
