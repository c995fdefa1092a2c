"""Uncertainty of a fit: standard errors, profiles, families of solutions, posteriors."""
