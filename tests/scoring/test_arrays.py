"""Arrays of the host and of a GPU, for which a class that hides an array stands in."""

import numpy as np
import pytest

from channelfit.reading.errors import InputError
from channelfit.scoring.machine.arrays import array_module, to_host


class OnGpu:
    """What is asked of an array of CuPy's: `get`, which copies or fails."""

    def __init__(self, values: np.ndarray, error: Exception | None = None) -> None:
        self.values, self.error = values, error

    def get(self) -> np.ndarray:
        if self.error is not None:
            raise self.error
        return self.values.copy()


def test_what_comes_to_the_host_is_a_copy():
    values = np.arange(6.0).reshape(2, 3)
    assert array_module(values) is array_module([1.0]) is np
    for there in (values, OnGpu(values), values.tolist()):
        copy = to_host(there)
        np.testing.assert_array_equal(copy, values)
        copy[0, 0] = 9.0
        assert values[0, 0] == 0.0


def test_an_error_of_the_gpu_is_told_in_plain_words():
    failed = type("CUDARuntimeError", (RuntimeError,), {"__module__": "cupy_backends.cuda"})
    array = OnGpu(np.zeros(1), failed("cudaErrorIllegalAddress: an illegal access"))
    with pytest.raises(InputError, match="please report it"):
        to_host(array)
