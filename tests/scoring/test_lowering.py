"""The language of kernels: what a text means to us, to Python, and to Numba."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from channelfit.front.kinds import load_plan
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import build_protocol
from channelfit.scoring import cpu
from channelfit.scoring.cpu import CpuModes, CpuStepping
from channelfit.scoring.kernels.tangent_tables import GAINS
from channelfit.scoring.machine import machine_code
from channelfit.scoring.machine.kernel_text import LoweringError, Source
from channelfit.scoring.machine.machine_code import Callback, Kernel, generated
from channelfit.search.plan import FitPlan
from support.kernel_ways import plain
from support.places import MODELS
from support.schemes import recording_of
from support.truths import slow_but

pytestmark = pytest.mark.optimized

MODELS = sorted(MODELS.glob("*.yaml"))
HEAD = "import numpy as np\nfrom math import floor, log, sqrt\n\n\n"
FLOATS = st.floats(allow_nan=True, allow_infinity=True)


def kernel(text: str, name: str = "f", **options: bool) -> Kernel:
    return generated(HEAD + text, name, **options)


def same(a: Any, b: Any) -> bool:
    """Equal to the bit, NaN like NaN."""
    return bool(np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True))


# --- numbers --------------------------------------------------------------------------------------

OPERATIONS = """
def f(a, b, i, j):
    least, most = min(a, b), max(a, b)
    chosen = a if a < b else b
    both = (a < b and b == b) or not a >= b
    chain = 0.0 <= a < b
    quotient, rest = i // j, i % j
    bits = (i & j) | (i >> 3) ^ (j << 2)
    near, far = i // 8, i % 16
    return least, most, chosen, both, chain, quotient, rest, bits, near, far, abs(a), abs(i), -i
"""


@settings(deadline=None)
@given(FLOATS, FLOATS, st.integers(-(2**40), 2**40), st.integers(-(2**20), 2**20).filter(bool))
@example(math.nan, 1.0, -7, 2)
@example(1.0, math.nan, 7, -2)
@example(-0.0, 0.0, -8, 8)
def test_operations_are_pythons(a, b, i, j):
    ours = kernel(OPERATIONS)(a, b, i, j)
    theirs = plain(HEAD + OPERATIONS).f(a, b, i, j)
    assert [same(x, y) for x, y in zip(ours, theirs, strict=True)] == [True] * len(ours)


INLINED = """
from channelfit.scoring.machine.kernel_math import unrolled

TABLE = (0.5, -1.25, 3.0, 7.5)


@inline
def polynomial(x):
    p = TABLE[3]
    for k in unrolled(2, -1, -1):
        p = p*x + TABLE[k]
    return p


@inline
def first_above(x):
    found = 10
    for k in range(4):
        if TABLE[k] < x:
            continue
        found = k
        break
    return found


def f(x):
    total = 0.0
    for i in range(3):
        total += polynomial(x + i)
    return total, first_above(x)
"""


@pytest.mark.parametrize("x", [-2.0, 0.75, 5.0, 9.0, math.nan])
def test_loops_that_are_written_out_are_pythons(x):
    ours = kernel(INLINED, contract=False)(x)
    theirs = plain(HEAD + INLINED).f(x)
    assert [same(a, b) for a, b in zip(ours, theirs, strict=True)] == [True, True]


def test_numbers_are_those_of_ieee_and_of_their_types():
    divided = kernel("def f(a, b):\n    return a/b\n")
    assert (divided(1.0, 0.0), divided(-1.0, 0.0)) == (math.inf, -math.inf)
    assert math.isnan(divided(0.0, 0.0))
    loop = "    total = 0\n    for k in range(n):\n        total += 0.5*k\n    return total\n"
    # a whole number where the name holds a float later
    assert kernel(f"def f(n):\n{loop}")(4) == 3.0
    single = kernel("def f(x):\n    return x[0]*x[1], x[0] > x[1]\n")
    assert single(np.array([1.5, 0.1], np.float32)) == (float(np.float32(0.15)), True)
    text = """
def f(x, y, single, double):
    for k in range(x.size):
        single[k] = x[k]*x[k] + x[k]
        double[k] = x[k]*y[k] + 1.0
"""
    rng = np.random.default_rng(0)
    x, y = rng.random(33, np.float32), rng.random(33)
    single, double = np.empty(33, np.float32), np.empty(33)
    kernel(text, contract=False)(x, y, single, double)
    assert same(single, x * x + x)
    assert same(double, x * y + 1.0)
    text = "def f(a, b, c):\n    return a*b + c\n"
    a, exact = 1.0 + 2.0**-30, 2.0**-60  # a*a - (1 + 2^-29)
    assert kernel(text, contract=False)(a, a, -(1.0 + 2.0**-29)) == 0.0
    assert kernel(text)(a, a, -(1.0 + 2.0**-29)) in (exact, 0.0)  # no processor is obliged to


# --- loops, branches, arrays ----------------------------------------------------------------------

LOOPS = """
TABLE = ((1, 2), (3, 4), (5, 6))


def f(n, out):
    count, stop = 0, 100
    for i in range(n):
        if i % 3 == 0:
            continue
        if i > 10:
            break
        left, right = TABLE[i % 3]
        out[i] = left*10.0 + right
        count += 1
    for k in range(5, -1, -2):
        out[k] += 0.25
    while True:
        stop -= 7
        if stop < 0:
            break
    return count, stop, i
"""


@settings(deadline=None)
@given(st.integers(1, 40))
def test_loops_are_pythons(n):
    ours, theirs = np.zeros(50), np.zeros(50)
    assert kernel(LOOPS)(n, ours) == plain(HEAD + LOOPS).f(n, theirs)
    assert same(ours, theirs)


VIEWS = """
def fill(row, value):
    row[:] = value
    row[0] = -value


def f(a, out):
    n, m = a.shape
    scratch = np.zeros((n, m))
    whole = np.empty(n, np.int64)
    for i in range(n):
        fill(scratch[i], 1.0*i)
        whole[i] = i
    part = a[:, 1:m - 1]
    for i in range(n):
        row = part[i]
        for j in range(m - 2):
            out[i, j] = row[j] + scratch[whole[i], j] + len(row)
    first, second = scratch[0], scratch[n - 1]
    first, second = second, first
    out[0, m - 1] = first[1] + second[1]
    out[n - 1] = a[0]
    return a.size
"""


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(3, 9))
def test_views_are_numpys(n, m):
    a = np.random.default_rng(n * 10 + m).random((n, m))
    ours, theirs = np.zeros((n, m)), np.zeros((n, m))
    assert kernel(VIEWS)(a, ours) == plain(HEAD + VIEWS).f(a, theirs)
    assert same(ours, theirs)


def test_a_stray_index_is_found_where_indices_are_checked_unless_a_condition_guards_it():
    text = "def f(a, n):\n    for k in range(n):\n        a[k] = 1.0\n"
    made = kernel(text, checked=True)
    made(np.empty(5), 5)
    with pytest.raises(IndexError, match="line 7"):
        made(np.empty(5), 6)
    made(np.empty(5), 5)  # the next call is not blamed
    text = """
def f(a, i, out):
    out[0] = a[i] if i < a.size else -1.0
    out[1] = 1.0 if i < a.size and a[i] > 0.0 else 0.0
"""
    for index, wanted in ((2**40, [-1.0, 0.0]), (2, [1.0, 1.0])):
        out = np.empty(2)
        kernel(text, checked=True)(np.ones(3), index, out)
        assert out.tolist() == wanted


def test_scratch_is_freed_on_every_way_out_and_too_much_is_an_error():
    text = """
def f(n):
    one = np.empty(n)
    one[0] = 1.0
    if n > 5:
        return one[0]
    two = np.empty(n)
    two[0] = 2.0
    return two[0]
"""
    made = kernel(text)
    assert (made(6), made(5)) == (1.0, 2.0)
    text = "def f(n, i, j):\n    a = np.empty(n)\n    a[i] = 1.0\n    a[j] = 2.0\n    return a[i]\n"
    with pytest.raises(MemoryError, match="scratch"):
        kernel(text)(2**56, 1, 2)
    assert kernel(text)(3, 1, 2) == 1.0


def test_kernels_call_kernels_that_are_given_to_them():
    generating = "def createGains(theta, gain):\n    gain[0, 0] = 2.0*theta[0]\n"
    text = "def f(createGains, theta, gain):\n    createGains(theta, gain)\n    gain[0, 0] += 1.0\n"
    gain = np.zeros((2, 1))
    made = Callback(generated(generating, "createGains"), GAINS)
    kernel(text)(made, np.array([3.0]), gain)
    assert gain[0, 0] == 7.0
    other = generated("def createGains(theta, gain):\n    gain[0, 0] = theta[0]\n", "createGains")
    known = len(kernel(text)._made)
    kernel(text)(Callback(other, GAINS), np.array([3.0]), gain)
    assert gain[0, 0] == 4.0
    assert len(kernel(text)._made) == known  # one machine code for all that is called alike


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("    import os\n", "Import"),
        ("    x = unknown\n", "unknown is not known"),
        ("    x = open(a)\n", "open is not known"),
        ("    x = a[-1]\n", "negative"),
        ("    x = a[0, 0]\n", "2 indices"),
        ("    x = a[0.5]\n", "whole number"),
        ("    x = 1.0\n    x = a\n", "x is f64 elsewhere"),
        ("    for k in a:\n        pass\n", "range"),
        ("    for k in unrolled(a.size):\n        pass\n", "constant bounds"),
        ("    for k in range(3):\n        x = np.empty(3)\n", "outside loops"),
        ("    if a[0] > 0.0:\n        return 1.0\n", "ends with a return"),
        ("    x, y = 1.0\n", "1 values for 2"),
    ],
)
def test_what_is_not_of_the_language_is_refused_by_line(body, what):
    text = f"def f(a):\n{body}"
    with pytest.raises(LoweringError, match=what) as caught:
        kernel(text)(np.ones(3))
    assert "generated text, f, line" in str(caught.value)
    assert any(line.strip() in str(caught.value) for line in body.splitlines())


def test_arguments_and_constants_that_no_kernel_takes_are_refused():
    made = kernel("def f(a):\n    a[0] = 1.0\n")
    for argument in (np.ones((3, 3)).T, np.ones(4)[::2], np.ones(3, complex), [1.0], None, "a"):
        with pytest.raises(TypeError):
            made(argument)
    with pytest.raises(ValueError, match="malformed"):
        Source("X = open('file')\n", "a text")


# --- generated texts ------------------------------------------------------------------------------


class _Calls:
    """The blocks that the CPU backend runs, caught instead of shared among threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cpu, "shared_kernel", self._catch)

    def _catch(self, run: Kernel, parameters: np.ndarray, arguments: list[Any], *_: Any) -> None:
        self.run, self.arguments = run, (parameters, 0, 1, *arguments)
        run(*self.arguments)

    def results(self) -> list[np.ndarray]:
        return [a.copy() for a in self.arguments if isinstance(a, np.ndarray)]


def candidates(fit: FitPlan, n: int) -> np.ndarray:
    """Some around the model's values, which exercise the same ways through the text."""
    values = fit.problem.model.values()
    factors = np.exp(0.3 * np.random.default_rng(0).standard_normal((len(values), n)))
    return np.ascontiguousarray(values[:, None] * factors)


def ways(fit: FitPlan, dtype: str) -> dict[str, Any]:
    """Functions of parameters, each of which makes one call of generated code."""
    problem = fit.problem
    found: dict[str, Any] = {
        "stepping": lambda p: CpuStepping(problem, dtype).score(p, 1),
        "trace": lambda p: CpuStepping(problem, dtype).simulate(p, 1),
    }
    if cpu.choose_path(problem, dtype, "auto", "cpu") == "closed-form":
        found["closed form"] = lambda p: CpuModes(problem).score(p, 1)
    return found


#: A scheme under held voltages, gates where it moves.
QUICK = [(path, path.stem == "na_hh") for path in MODELS if path.stem in ("model_b", "na_hh")]


@pytest.mark.parametrize(
    ("path", "moves"),
    slow_but(QUICK, product(MODELS, (False, True))),
)
def test_plain_python_gives_the_same_bits(path, moves, monkeypatch):
    """Without contraction, of few samples; and no index strays."""
    model = load_plan(path).problem.model
    segments: list[Any] = [{"step": 20, "for": 9.5}, {"hold": 1}]
    segments += [{"ramp": [20, -30], "for": 1}] if moves else []
    protocol = build_protocol({"holding": -80, "sampling": 0.5, "segments": segments}, None)
    experiment = Experiment(protocol, recording_of(protocol, 0))
    fit = SimpleNamespace(problem=Problem(model, (experiment,)))
    calls = _Calls(monkeypatch)
    for way, run in ways(fit, "float64").items():
        run(candidates(fit, 3))
        source, name = calls.run.source.text, calls.run.name
        generated(source, name, contract=False)(*calls.arguments)
        ours = calls.results()
        with np.errstate(all="ignore"):
            getattr(plain(source), name)(*calls.arguments)
        for a, b in zip(ours, calls.results(), strict=True):
            assert same(a, b), way
        generated(source, name, checked=True)(*calls.arguments)


# --- memory that is in pieces ---------------------------------------------------------------------

IN_PIECES = """
import ctypes, mmap, sys
import numpy as np
from channelfit.scoring.machine.machine_code import generated

text, page, free_private = sys.stdin.read(), mmap.PAGESIZE, 0x4022
memory = ctypes.CDLL(None)
memory.mmap.restype = ctypes.c_void_p
memory.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
]
memory.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

def taken(size):
    return memory.mmap(None, size, 0, free_private, -1, 0)

x, out = np.linspace(0, 3, 300), np.zeros(300)
generated("def first(out: np.ndarray) -> None:\\n    out[0] = 1.0", "first")(out)
pages = [taken(page) for _ in range(8000)]
for address in pages[4000::2]:  # single pages are left free above, and beyond 6 GB all the rest
    memory.munmap(address, page)
wall = taken(6 << 30)
for size in (1024, 256, 64, 16, 8, 4, 3, 2):
    while taken(size * page) > wall:
        pass
generated(text, "run")(x, out)
assert np.allclose(out, np.exp(x) * np.arange(300), rtol=1e-14)
print("as it should be")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="lays out memory in the way of Linux")
def test_little_room_between_what_a_process_has_taken(tmp_path):
    """Instructions and constants lie near each other though the free pages do not."""
    cases = "".join(
        f"        if x[k] > {q}e9:\n            out[k] += exp(x[k] * {q}.5) / {q}.3\n"
        for q in range(5, 90)
    )
    numbers = ", ".join(f"{k}.0" for k in range(300))
    text = (
        "import numpy as np\nfrom channelfit.scoring.machine.kernel_math import exp\n"
        f"TABLE = np.array([{numbers}], np.float64)\n"
        "def run(x: np.ndarray, out: np.ndarray) -> None:\n    for k in range(len(out)):\n"
        f"        out[k] = exp(x[k]) * TABLE[k]\n{cases}"
    )
    command = [sys.executable, "-c", IN_PIECES]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "as it should be\n"


# --- other machines -------------------------------------------------------------------------------

PLATFORMS = [
    ("x86_64-pc-windows-msvc", "x86-64-v3"),
    ("x86_64-unknown-linux-gnu", "x86-64"),
    ("x86_64-apple-darwin", "x86-64-v2"),
    ("aarch64-unknown-linux-gnu", "generic"),
    ("arm64-apple-darwin", "apple-m1"),
]


@pytest.mark.parametrize(("triple", "cpu_name"), slow_but(PLATFORMS[:1], PLATFORMS))
def test_machine_code_of_other_platforms_needs_the_c_library_alone(triple, cpu_name, monkeypatch):
    """Made, not run: what it calls is in the list of what is looked up."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for path in (m for m in MODELS if m.stem in ("herg_markov", "na_hh")):
        fit = load_plan(path)
        with monkeypatch.context() as patch:
            calls = _Calls(patch)
            ways(fit, "float64")["stepping"](candidates(fit, 2))
            types = tuple(
                calls.run._type((a.dtype, a.ndim) if isinstance(a, np.ndarray) else type(a))
                for a in calls.arguments
            )
            patch.setattr(machine_code, "_processor", lambda: (triple, cpu_name, ""))
            machine = machine_code._machine()
            module, _ = machine_code._optimized(calls.run, types, machine)
        assembly = machine.emit_assembly(module)
        calling = r"\b(?:call|callq|bl|jmp|b)\s+_?([A-Za-z]\w*)(?:@PLT)?$"
        called = set(re.findall(calling, assembly, re.M))
        own = set(re.findall(r'^_?"?([\w.]+)"?:', assembly, re.M))
        assert called - own - {"b"} <= set(machine_code._C_LIBRARY), called
        assert "malloc" in called
