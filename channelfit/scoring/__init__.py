"""From a problem and parameter sets to currents and costs: the reference, the CPU and CUDA."""
