"""Users' input, read and checked: text, YAML, tables, recording files and units.

Whatever cannot be used ends in `errors.InputError`, which says what to correct.
"""
