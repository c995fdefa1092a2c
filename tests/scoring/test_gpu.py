"""The device, and what its absence and its errors are turned into. A fake CuPy stands in for the
real one where only the translation is looked at; what needs a GPU is marked so."""

from __future__ import annotations

import importlib
import os
import sys

import numpy as np
import pytest

from channelfit.reading.errors import InputError
from channelfit.scoring.machine import gpu
from support.cuda_host import HostCupy


def cuda_error(message: str, module: str = "cupy_backends.cuda.api.runtime") -> Exception:
    return type("CUDARuntimeError", (RuntimeError,), {"__module__": module})(message)


def raising(error: Exception):
    def call(*_):
        raise error

    return call


class FakeNvrtc:
    """Compiles a text to its length and options, and counts how often."""

    NVRTCError = type("NVRTCError", (RuntimeError,), {"__module__": "cupy_backends.cuda"})

    def __init__(self):
        self.compiled, self.version, self.log = [], (12, 9), ""

    def getVersion(self):
        return self.version

    def getSupportedArchs(self):
        return 75, 80, 90, 100

    def createProgram(self, text, name, headers, names):
        return text

    def compileProgram(self, text, options):
        if self.log:
            raise self.NVRTCError("NVRTC_ERROR_COMPILATION (6)")
        self.compiled.append((text, options))

    def getCUBIN(self, text):
        return f"machine code of {text}".encode()

    def getPTX(self, text):
        return f"intermediate code of {text}".encode()

    def getProgramLog(self, text):
        return self.log

    def destroyProgram(self, text):
        pass


class FakeModule:
    def load(self, code):
        self.code = code


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """A CuPy that answers what an H200 did; tests spoil parts of it."""
    monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)
    monkeypatch.setenv("CHANNELFIT_CACHE", str(tmp_path))
    module = HostCupy()
    module.cuda.nvrtc, module.cuda.function.Module = FakeNvrtc(), FakeModule
    module.cuda.runtime.memGetInfo = lambda: (10**9, 150 * 10**9)
    module.cuda.runtime.runtimeGetVersion = lambda: 13000
    module.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor = lambda *_: 5
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def message_of(function, *arguments) -> str:
    with pytest.raises(InputError) as caught:
        function(*arguments)
    assert not gpu.is_available() or function is not gpu.cupy
    return str(caught.value)


# What is missing


def test_a_cupy_that_is_missing_or_broken_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    for system in ("Linux", "Darwin"):
        monkeypatch.setattr("platform.system", lambda system=system: system)
        message = message_of(gpu.cupy)
        if system == "Darwin":
            assert "macOS has no CUDA" in message
            assert "pip" not in message
        else:
            assert "CuPy is not installed" in message
            assert 'pip install "channelfit[cuda]"' in message
            assert "cupy-cuda12x" in message
    for error in (
        ImportError("\n====\nlibnvrtc.so.12: cannot open"),
        OSError("libnvrtc.so.12: no"),
    ):
        monkeypatch.setattr(importlib, "import_module", raising(error))
        assert "cannot be imported: libnvrtc.so.12" in message_of(gpu.cupy)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (raising(cuda_error("cudaErrorNoDevice: no CUDA-capable device")), "no NVIDIA GPU"),
        (raising(cuda_error("cudaErrorInsufficientDriver: CUDA driver")), "older than the CUDA"),
        (raising(RuntimeError("CuPy failed to load libcuda.so.1")), "driver is not installed"),
        (raising(cuda_error("cudaErrorUnknown: unknown")), "cannot use a GPU: cudaErrorUnknown"),
        (lambda: 0, "no NVIDIA GPU"),
    ],
)
def test_without_a_usable_device_the_message_says_what_is_missing(fake, answer, words):
    fake.cuda.runtime.getDeviceCount = answer
    message = message_of(gpu.cupy)
    assert words in message
    assert "--backend cpu" in message


def test_machine_code_is_kept_in_our_cache_folder_unless_the_user_says_otherwise(
    fake, monkeypatch, tmp_path
):
    gpu.cupy()
    assert os.environ["CUPY_CACHE_DIR"] == str(tmp_path / "cuda")
    monkeypatch.setenv("CUPY_CACHE_DIR", "elsewhere")
    gpu.cupy()
    assert os.environ["CUPY_CACHE_DIR"] == "elsewhere"


# Errors in plain words


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("CUDA_ERROR_OUT_OF_MEMORY: out of memory", "smaller --population"),
        (
            "Out of memory allocating 75,497,472 bytes (allocated so far: 0 bytes).",
            "75 MB requested",
        ),
        ("CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available", "too old or too new"),
        ("CUDA_ERROR_LAUNCH_TIMEOUT: the launch timed out", "watchdog of the display"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access", "a defect of channelfit"),
        ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources", "fewer threads a block"),
    ],
)
def test_errors_of_the_device_say_what_to_do(fake, message, words):
    for module in ("cupy_backends.cuda.api.driver", "cupy.cuda.memory"):
        error = cuda_error(message, module)
        with pytest.raises(InputError, match=words) as caught, gpu.gpu_errors():
            raise error
        assert caught.value.__cause__ is error
        assert "\n" not in str(caught.value)
        assert "{" not in str(caught.value)


def test_a_compiler_error_shows_the_lines_that_it_names(fake, tmp_path):
    text = "\n".join(f"line {i};" for i in range(1, 101))
    fake.cuda.nvrtc.log = "/tmp/xyz/0a1b.cubin.cu(50): error: undefined\n\n1 error detected"
    for compiled in (gpu.compile_cuda, lambda *given: gpu.compile_ahead(*given).module()):
        with pytest.raises(gpu.CudaCompileError) as caught:
            compiled(text, ("--use_fast_math",), "model_b.cu")
        message = str(caught.value)
        for line in ("model_b.cu(50): error: undefined", "   47  line 47;", "   53  line 53;"):
            assert line in message
        for hidden in ("line 54;", "/tmp", "Traceback"):
            assert hidden not in message
        assert not list(tmp_path.glob("cuda/*"))


# Machine code that is kept


def test_machine_code_is_compiled_once_for_all_processes(fake, tmp_path):
    def compiled(text="a", options=("--prec-div=false",)):
        code = gpu.compile_cuda(text, options).raw.code
        return code, len(fake.cuda.nvrtc.compiled)

    assert [compiled(), compiled()] == [(b"machine code of a", 1)] * 2
    flags = ("-std=c++17", "-ftz=true", "--prec-div=false", "-arch=sm_90")
    assert fake.cuda.nvrtc.compiled == [("a", flags)]
    if os.name != "nt":
        assert (tmp_path / "cuda").stat().st_mode & 0o777 == 0o700
    (file,) = (tmp_path / "cuda").iterdir()
    whole = file.read_bytes()
    for n, damaged in enumerate((whole[:-1], whole[:-1] + b"b", b"", b"machine code of a"), 2):
        file.write_bytes(damaged)
        assert compiled() == (b"machine code of a", n)
        assert file.read_bytes() == whole
    assert compiled("b") == (b"machine code of b", 6)
    assert compiled(options=("-G",)) == (b"machine code of a", 7)
    fake.cuda.nvrtc.version = 13, 0
    assert compiled() == (b"machine code of a", 8)
    fake.cuda.runtime.getDeviceProperties(0)["major"] = 8
    assert compiled() == (b"machine code of a", 9)
    fake.cuda.runtime.getDeviceProperties(0)["major"] = 12  # newer than the compiler
    assert compiled() == (b"intermediate code of a", 10)  # which the driver translates
    assert fake.cuda.nvrtc.compiled[-1][1][-1] == "-arch=compute_100"


def test_a_gpu_older_than_the_compiler_is_refused(fake):
    fake.cuda.runtime.getDeviceProperties(0).update(major=6, minor=1)
    with pytest.raises(InputError, match=r"sm_75 and newer.*sm_61.*--backend cpu"):
        gpu.compile_cuda("a")


# On a real device

SCALE = """
extern "C" __global__ void scale(double* x, double factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}
"""


@pytest.fixture
def cp():
    if not gpu.is_available():
        pytest.skip("needs an NVIDIA GPU and CuPy")
    return gpu.cupy()


@pytest.mark.gpu
def test_text_is_compiled_run_and_timed_on_a_device(cp):
    kernel = gpu.compile_cuda(SCALE).kernel("scale")
    x = cp.arange(1000.0)
    kernel((4,), (256,), (x, np.float64(2), np.int32(1000)))
    np.testing.assert_array_equal(x.get(), 2 * np.arange(1000.0))
    full = gpu.occupancy(kernel, 256)
    assert full.blocks >= 1
    assert 0 < full.fraction <= 1
    assert gpu.timed(lambda: kernel((4,), (256,), (x, np.float64(1), np.int32(1000)))) > 0
    found = gpu.device()
    assert 0 < found.memory_free <= found.memory_total
    assert found.compute_capability >= (5, 0)
    with pytest.raises(KeyError):
        gpu.compile_cuda(SCALE).kernel("scales")


@pytest.mark.gpu
def test_kept_machine_code_runs_on_a_device(cp, tmp_path, monkeypatch):
    monkeypatch.setenv("CHANNELFIT_CACHE", str(tmp_path))
    assert not gpu.compile_ahead(SCALE).done
    ahead = gpu.compile_ahead(SCALE.replace("scale", "stretch"))
    gpu.compile_cuda(SCALE)
    assert gpu.compile_ahead(SCALE).done
    kernel = ahead.module().kernel("stretch")
    x = cp.arange(10.0)
    kernel((1,), (256,), (x, np.float64(3), np.int32(10)))
    np.testing.assert_array_equal(x.get(), 3 * np.arange(10.0))
    assert kernel.max_threads_per_block == 1024


@pytest.mark.gpu
def test_errors_of_a_real_device_are_in_plain_words(cp):
    with pytest.raises(gpu.CudaCompileError, match=r"scale\.cu\(4\).*unheard") as caught:
        gpu.compile_cuda(SCALE.replace("factor;", "unheard;"), name="scale.cu")
    assert "    4      if (i < n) x[i] *= unheard;" in str(caught.value)
    with pytest.raises(InputError, match="requested"), gpu.gpu_errors():
        cp.empty(10**15, dtype=np.float64)
