"""Protocols that determine the parameters of a model, found by their expected standard errors."""
