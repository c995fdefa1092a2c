"""What users give, read and checked: text, YAML, tables and units.

Whatever cannot be used ends in `errors.InputError`, which says what to correct.
"""
