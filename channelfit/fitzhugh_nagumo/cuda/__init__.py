"""The schemes of the FitzHugh-Nagumo equation on an NVIDIA GPU.

State stays on the device between frames. The schemes take a `device`, an object that compiles text
and holds arrays; by default it is CuPy's, and the tests give one that runs kernels on the host.
"""

from channelfit.fitzhugh_nagumo.cuda.adaptive import AdaptiveCuda
from channelfit.fitzhugh_nagumo.cuda.crank_nicolson import CrankNicolsonCuda
from channelfit.fitzhugh_nagumo.cuda.device import CupyDevice
from channelfit.fitzhugh_nagumo.cuda.explicit import ExplicitCuda, RungeKuttaCuda

__all__ = ["AdaptiveCuda", "CrankNicolsonCuda", "CupyDevice", "ExplicitCuda", "RungeKuttaCuda"]
