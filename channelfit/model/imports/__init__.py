"""Models of other programs, NMODL and Myokit, translated into a model file."""
