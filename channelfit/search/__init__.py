"""The search: its space, optimizers that ask and tell, the one loop, and the fit section."""
