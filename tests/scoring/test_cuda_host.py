"""The host shim itself: what a device does, and what a device would not survive."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channelfit.scoring.machine import gpu
from support.cuda_host import CompileError, KernelError, compile_with_nvrtc, host_program

SUM = """
extern "C" __global__ void __launch_bounds__(256) sum(
    const double* __restrict__ x, int n, double* __restrict__ out)
{
    extern __shared__ double part[];
    double own = 0.0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        own += x[i];
    part[threadIdx.x] = own;
    __syncthreads();
    #pragma unroll
    for (int half = 128; half > 0; half >>= 1) {
        if (threadIdx.x < half && threadIdx.x + half < blockDim.x)
            part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(out, part[0]);
}
"""


@settings(max_examples=10, deadline=None)
@given(n=st.integers(0, 3000), grid=st.integers(1, 5), block=st.integers(1, 256))
def test_a_reduction_in_shared_memory(n, grid, block):
    x = np.arange(n, dtype=float) ** 2
    out = np.zeros(1)
    host_program(SUM).launch("sum", grid, block, [x, n, out], shared_bytes=8 * block)
    assert out[0] == x.sum()


WARP = """
extern "C" __global__ void warp(const int* x, int* down, int* up, double* flip, float* from,
                                unsigned* votes, int* some) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int total = x[i];
    for (int step = 16; step > 0; step >>= 1) total += __shfl_down_sync(0xffffffffu, total, step);
    down[i] = total;
    up[i] = __shfl_up_sync(0xffffffffu, x[i], 3);
    flip[i] = __shfl_xor_sync(0xffffffffu, (double)x[i], 5);
    from[i] = __shfl_sync(0xffffffffu, (float)x[i], 2, 8);
    votes[i] = __ballot_sync(0xffffffffu, x[i] & 1);
    some[i] = 2 * __any_sync(0xffffffffu, x[i] > 90) + __all_sync(0xffffffffu, x[i] > 90);
    __syncwarp();
    if (__activemask() != 0xffffffffu) some[i] = -1;
    if ((threadIdx.x & 31) >= 8) return;
    if (__ballot_sync(0xffu, 1) != 0xffu || __activemask() != 0xffu) some[i] = -1;
}
"""


def test_shuffles_and_votes():
    x = np.random.default_rng(1).integers(0, 100, 3 * 64).astype(np.int32)
    down, up, some = (np.zeros_like(x) for _ in range(3))
    flip, source = np.zeros(x.size), np.zeros(x.size, dtype=np.float32)
    votes = np.zeros(x.size, dtype=np.uint32)
    x[:32] = 95
    host_program(WARP).launch("warp", 3, 64, [x, down, up, flip, source, votes, some])
    warps = x.reshape(-1, 32)
    lane = np.arange(32)
    np.testing.assert_array_equal(down.reshape(-1, 32)[:, 0], warps.sum(1))
    np.testing.assert_array_equal(up.reshape(-1, 32), warps[:, np.where(lane < 3, lane, lane - 3)])
    np.testing.assert_array_equal(flip.reshape(-1, 32), warps[:, lane ^ 5])
    np.testing.assert_array_equal(source.reshape(-1, 32), warps[:, lane // 8 * 8 + 2])
    bits = ((warps & 1).astype(np.uint64) << lane.astype(np.uint64)).sum(1)
    np.testing.assert_array_equal(votes.reshape(-1, 32), np.tile(bits[:, None], 32))
    expected = 2 * (warps > 90).any(1) + (warps > 90).all(1)
    np.testing.assert_array_equal(some.reshape(-1, 32), np.tile(expected[:, None], 32))


ATOMICS = """
__device__ int counter;
__constant__ double weight[2];
extern "C" __global__ void atomics(int* least, unsigned* most, unsigned long long* all,
                                   float* total, unsigned* bits, double* weighed) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicMin(least, 50 - i);
    atomicMax(most, (unsigned)i);
    atomicAdd(all, 1ull << 33);
    atomicAdd(total, 0.5f);
    atomicOr(bits, 1u << (i & 31));
    atomicExch(&counter, i);
    weighed[i] = weight[0] * i + weight[1];
}
"""


def test_atomics_and_global_variables():
    program = host_program(ATOMICS)
    program.variable("weight", np.float64, 2)[:] = [2.0, 0.25]
    least, most = np.zeros(1, np.int32), np.zeros(1, np.uint32)
    whole, total = np.zeros(1, np.uint64), np.zeros(1, np.float32)
    bits, weighed = np.zeros(1, np.uint32), np.zeros(150)
    program.launch("atomics", 3, 50, [least, most, whole, total, bits, weighed])
    assert (least[0], most[0], whole[0], total[0]) == (-99, 149, 150 << 33, 75)
    assert bits[0] == 0xFFFFFFFF
    assert program.variable("counter", np.int32, 1)[0] == 149
    np.testing.assert_array_equal(weighed, 2.0 * np.arange(150) + 0.25)


PLACES = """
struct Two { int a; double b; };
typedef float real;
extern "C" __global__ void places(int* out) {
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = 1000 * block + thread;
}
extern "C" __global__ void scalars(
    int a, unsigned b, long long c, unsigned long long d, float e, const double f, bool g,
    signed char h, size_t i, real j, double* __restrict__ out, const void* nothing, Two two)
{
    double x[] = {(double)a, (double)b, (double)c, (double)d, e, f, (double)g, (double)h,
                  (double)i, j, nothing ? 1.0 : 0.0, two.a + two.b};
    for (int k = 0; k < 12; k++) out[k] = x[k];
}
"""


def test_grids_and_blocks_of_three_dimensions():
    out = np.full(2 * 3 * 4 * 5 * 2 * 3, -1, dtype=np.int32)
    host_program(PLACES).launch("places", (2, 3, 4), (5, 2, 3), [out])
    np.testing.assert_array_equal(
        out.reshape(24, 30), 1000 * np.arange(24)[:, None] + np.arange(30)
    )


def test_scalars_of_all_types():
    two = np.array((7, 0.125), dtype=np.dtype([("a", "i4"), ("b", "f8")], align=True))[()]
    args = [-3, np.uint32(2**32 - 1), -(2**40), np.uint64(2**52), np.float32(0.1), 0.1, True]
    args += [np.int8(-9), 2**33, np.float32(1.5)]
    out = np.zeros(12)
    host_program(PLACES).launch("scalars", 1, 1, [*args, out, gpu.NULL, two])
    assert out.tolist() == [*(float(x) for x in args), 0, 7.125]


NUMBERS = """
extern "C" __global__ void numbers(double* d, unsigned* u) {
    d[0] = __hiloint2double(__double2hiint(-2.5), __double2loint(-2.5));
    d[1] = __longlong_as_double(__double_as_longlong(1e-300));
    d[2] = fma(1.0 + 0x1p-30, 1.0 - 0x1p-30, -1.0);
    d[3] = rsqrt(0.25) + rsqrtf(0.25f) + __drcp_rn(4.0) + __frcp_rn(2.0f) + __fdividef(1.0f, 8.0f);
    d[4] = min(2, 3) + max(2.5, 1.0) + min(1u, 7u) + max(-1ll, -2ll) + fmin(1.0, CUDART_NAN);
    d[5] = CUDART_INF;
    d[6] = exp2f(3.0f) + __expf(0.0f) + __int_as_float(__float_as_int(0.5f));
    double2 a = make_double2(1.0, 2.0);
    float4 b = make_float4(1.0f, 2.0f, 3.0f, 4.0f);
    ulonglong2 c = make_ulonglong2(1ull << 60, 2);
    d[7] = a.x + a.y + b.w + (double)(c.x >> 58) + c.y + make_int2(3, 4).y;
    d[7] += make_int4(1, 1, 1, 9).w;
    d[8] = (1.0 + 0x1p-30) * (1.0 - 0x1p-30) - 1.0;
    u[0] = __umulhi(0xffffffffu, 0xffffffffu);
    u[1] = __popc(0xf0f0u);
    u[2] = __ffs(8) * 100 + __ffs(0);
    u[3] = __clz(1) * 100 + __clz(0);
    u[4] = __CUDA_ARCH__ >= 600;
}
"""


def test_arithmetic():
    d, u = np.zeros(9), np.zeros(5, dtype=np.uint32)
    host_program(NUMBERS).launch("numbers", 1, 1, [d, u])
    assert d.tolist() == [-2.5, 1e-300, -(2.0**-60), 4.875, 5.5, math.inf, 9.5, 26.0, 0.0]
    assert u.tolist() == [0xFFFFFFFE, 8, 400, 3132, 1]


def test_a_device_compiler_takes_what_the_host_takes():
    for text in (SUM, WARP, ATOMICS, PLACES):
        assert "error" not in compile_with_nvrtc(text)
    assert "registers" in compile_with_nvrtc(SUM, options=("--ptxas-options=-v",))


@pytest.mark.parametrize("compiled", [host_program, compile_with_nvrtc])
def test_what_does_not_compile_is_shown_with_its_lines(compiled):
    text = 'extern "C" __global__ void f(int* x) {\n    x[0] = unheard_of;\n}\n'
    with pytest.raises(CompileError) as caught:
        compiled(text)
    assert "unheard_of" in str(caught.value)
    assert "    2      x[0] = unheard_of;" in str(caught.value)
    assert "kernel.cu" in str(caught.value)


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


@pytest.mark.parametrize(
    ("parameters", "args", "message"),
    [
        ("double* x", [np.zeros(3, np.float32)], "float32, where the kernel takes float64"),
        ("double* x", [np.zeros((4, 4))[:, 1]], "C-contiguous"),
        ("double* x", [], "takes 1 arguments, not 0"),
        ("double* x", [1.0], "a pointer"),
        ("double* x", [np.uintp(1)], "a pointer"),
        ("double x", [np.zeros(3)], "a scalar"),
        ("float x", [0.5], "passes a Python float as float64"),
        ("double x", [2], "passes a Python int as an integer"),
        ("int x", [np.int64(2)], "int64, where the kernel takes int32"),
        ("int x", [2.0], "float"),
        ("double* x", [np.broadcast_to(np.zeros(1), 1)], "read-only"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(parameters, args, message):
    with pytest.raises((TypeError, ValueError), match=message):
        kernel("", parameters).launch("f", 1, 1, args)
    with pytest.raises(OverflowError):
        kernel("", "int x").launch("f", 1, 1, [2**31])


@pytest.mark.parametrize(
    ("grid", "block", "shared_bytes"),
    [(0, 1, 0), (1, 0, 0), (1, 1025, 0), (1, (1, 1, 65), 0), ((1, 65536), 1, 0), (1, 1, 300_000)],
)
def test_launches_that_a_device_refuses(grid, block, shared_bytes):
    with pytest.raises(KernelError):
        kernel("").launch("f", grid, block, [np.zeros(1, np.int32)], shared_bytes)
    with pytest.raises(KernelError, match="at most 256"):
        host_program(SUM).launch("sum", 1, 257, [np.zeros(1), 1, np.zeros(1)], 4000)
