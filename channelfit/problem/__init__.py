"""Protocols, recordings and experiments, laid out for scoring."""
