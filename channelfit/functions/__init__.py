"""Closed formulas, a sibling of channels: files, scorers and pictures of their own.

The same searches fit them. Only the front door knows both kinds.
"""
