"""Text from files, checked at the door.

Encodings, YAML read key by key, tables, units, and the one exception for what a user has to mend.
"""
