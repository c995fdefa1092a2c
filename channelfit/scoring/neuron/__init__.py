"""NEURON, the oracle: NMODL texts and the simulations that other backends are compared with."""
