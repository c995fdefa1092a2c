"""The host shim itself: what a device does, and what a device would not survive."""

from __future__ import annotations

import numpy as np
import pytest

from support.cuda_host import KernelError, host_program


def kernel(body: str, parameters: str = "int* x"):
    return host_program(f'extern "C" __global__ void f({parameters}) {{\n{body}\n}}')


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("if (threadIdx.x < 7) __ballot_sync(0xffu, 1);", "7 threads .* never"),
        ("if (threadIdx.x < 5) __syncthreads();\nelse __syncthreads();", "different barriers"),
        (
            "if (threadIdx.x < 5) __syncthreads();\nelse\n__ballot_sync(0xffe1u, 1);",
            "11 threads .* never .* line 2",
        ),
        ("x[0] = __shfl_sync(0xffffu, 1, 20);", "reads lane 20"),
        ("x[0] = __shfl_sync(0xffffffffu, 1, 0);", "do not exist"),
        ("__syncthreads(); x[16] = 1;", "wrote outside"),
        ("x[-1] = 1;", "wrote outside"),
        ("__syncthreads(); if (threadIdx.x == 3) __trap();", r"__trap\(\).*thread \(3, 0, 0\)"),
    ],
)
def test_what_a_device_would_not_survive_is_an_error(body, message):
    program = kernel(body)
    for _ in range(2):  # and leaves nothing behind
        with pytest.raises(KernelError, match=message):
            program.launch("f", 2, 16, [np.zeros(16, np.int32)])


def test_what_a_device_survives_is_none():
    x = np.zeros(16, np.int32)
    body = "if (threadIdx.x > 9) return;\nx[threadIdx.x] = __syncthreads_count(1);"
    kernel(body).launch("f", 1, 16, [x])  # threads that have returned are not waited for
    assert x.tolist() == [10] * 10 + [0] * 6
    x = np.zeros(2)  # outside an array, and in new shared memory, there is nothing to read
    body = "extern __shared__ double s[];\nx[0] = x[2]; x[1] = s[0];"
    kernel(body, "double* x").launch("f", 1, 1, [x], shared_bytes=8)
    assert np.isnan(x).all()
    x = np.arange(8, dtype=np.int32)  # arrays that share memory are seen as one
    kernel("x[1] = 7; *y += x[1];", "int* x, int* y").launch("f", 1, 1, [x, x[1:]])
    assert x.tolist() == [0, 14, 2, 3, 4, 5, 6, 7]
