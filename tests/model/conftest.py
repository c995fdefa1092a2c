"""Fixtures of all tests of models."""

from support.mod_files import compiler, parser

__all__ = ["compiler", "parser"]
