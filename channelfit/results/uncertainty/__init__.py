"""How sure a fit is: standard errors, profiles, families of solutions, posteriors."""
