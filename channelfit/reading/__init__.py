"""Users' input, read and checked: text, YAML, tables, recording files and units.

Unusable input raises `errors.InputError`, which names the correction.
"""
