"""A channel written for other programs and for a paper: NMODL, Myokit, Python, LaTeX, JSON."""
