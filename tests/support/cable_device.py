"""The device for the kernels of the cable: played by the host, or real."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from channelfit.fitzhugh_nagumo.cuda.device import CupyDevice
from channelfit.reading.errors import InputError
from support.cuda_host import HostCupy

BOUND = {"float64": 3e-14, "float32": 2e-5}


@pytest.fixture(scope="module", params=["host", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request):
    """CuPy's, or what plays it here: the kernels compiled for the processor."""
    if request.param == "gpu":
        try:
            yield CupyDevice()
        except InputError as error:
            pytest.skip(str(error))
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", HostCupy())
        yield CupyDevice()


def state(cable, n_cables=1):
    x, length = cable.x, cable.dx * cable.n_nodes
    shift = np.linspace(0, 1, n_cables)[:, None]
    v = np.exp(-((x - length / 4 - shift) ** 2) / 10) + 0.4 * np.exp(
        -((x - 0.97 * length) ** 2) / 6
    )
    w = 0.1 * np.exp(-((x - length / 5) ** 2) / 20) + 0 * shift
    if not isinstance(cable.left, str):
        v[:, 0] = cable.left
    if not isinstance(cable.right, str):
        v[:, -1] = cable.right
    return v, w


def assert_same(scheme, reference, dt, n_steps, n_cables=1, driven=False, bound=None):
    cable = scheme.cable
    v, w = state(cable, n_cables)
    drive = next(cable.spans(0, dt, 1))[1] if driven else None
    ours = [
        scheme.take(a) for a in scheme.advance(scheme.put(v), scheme.put(w), dt, n_steps, drive)
    ]
    theirs = reference.advance(v, w, dt, n_steps, drive)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, 0, bound or BOUND[scheme.dtype])
