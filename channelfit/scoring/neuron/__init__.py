"""NEURON as the oracle: channels as NMODL, simulated by NEURON and compared with our currents."""
