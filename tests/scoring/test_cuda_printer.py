"""Functions of the kernels' language printed as CUDA: run by the shim of the host, and refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from channelfit.scoring.machine.cuda_printer import CUDA_HEAD, Card, cuda_function, cuda_tables
from channelfit.scoring.machine.kernel_text import LoweringError, Source
from support.cuda_host import host_program

LANES = 3
TEXT = '''
STEPS = np.array([0.5, 0.25], np.float64)

def bent(x: float, n: int) -> float:
    """Return something with a bend."""
    if n % 2 == 1 and not x > 2.0:
        return x if x < 1.0 else 1.0
    elif x == 0.0:
        return -float("inf")
    return abs(x) ** 0.5

def smooth(z, most, p, out):
    """Write something of everything.

    This is not printed.
    """
    n = p.shape[0]
    sums = np.zeros((2, 3))
    kept = np.empty((n, 3))
    count = np.zeros(3, np.int64)
    for j in range(n):
        for l in range(3):
            kept[j, l] = p[j, l] / STEPS[j // 2]
    for i in range(4):
        at = 3 - i
        for l in range(3):
            seen = z[i, 1]
            # a comment of the text
            if not abs(seen) < float("inf"):
                continue
            count[l] += 1
            sums[0, l] += bent(seen * kept[0, l], i)
            sums[1, l] -= (seen - kept[1, l]) * (1 if at > most else at)
    for back in range(n - 1, -1, -1):
        for l in range(3):
            if back == 1:
                share = 1 / (1 + count[l])
            else:
                share = min(max(float(back), 0.5), 1.5)
            out[back, l] = share * (sums[back, l] - (kept[0, l] - kept[1, l]))
'''
CARD = Card(
    "double",
    {"z": "double[][2]", "most": "int", "p": "double[]", "out": "double[]*3"},
    {"p.shape[0]": "2"},
    lane="l",
)
KERNEL = """
extern "C" __global__ void smoothAll(
    const double* z, int most, const double* p, double* out)
{
    const int l = threadIdx.x;
    const double own[2] = {p[l], p[3 + l]};
    smooth(z, most, own, out + l);
}
"""


def printed(text: str, name: str, card: Card) -> str:
    return cuda_function(Source(text, "text"), name, card)


def test_a_thread_does_what_a_lane_does() -> None:
    source = Source(TEXT, "text")
    parts = [cuda_function(source, "bent", Card("double")), cuda_function(source, "smooth", CARD)]
    program = host_program("\n".join([CUDA_HEAD, cuda_tables(source, "double"), *parts, KERNEL]))
    scope: dict[str, Any] = {"np": np}
    exec(TEXT, scope)
    random = np.random.default_rng(4)
    for most in (0, 2):
        z = random.normal(0, 3, (4, 2))
        z[2, 1], z[0, 1] = math.nan, 0.0
        p = random.normal(0, 1, (2, LANES))
        truth, found = np.empty((2, LANES)), np.empty((2, LANES))
        scope["smooth"](z, most, p, truth)
        program.launch("smoothAll", 1, LANES, [z, np.int32(most), p, found])
        np.testing.assert_array_equal(found, truth)
        assert np.isfinite(found[1]).all()


def test_the_text_can_be_read() -> None:
    text = printed(TEXT, "smooth", CARD)
    assert "// Write something of everything.\n__device__" in text
    assert "not printed" not in text
    assert "    // a comment of the text\n" in text
    assert "const double* z, int most, const double* p, double* out)" in text
    assert "const double seen = z[i*2 + 1];" in text
    assert "out[(size_t)back*3] = share*(sums[back] - (kept[0] - kept[1]));" in text
    assert text.count("#pragma unroll") == 3
    rolled = Card(CARD.number, CARD.arguments, CARD.spelled, rolled="*", lane="l")
    assert "#pragma" not in printed(TEXT, "smooth", rolled)
    single = printed(TEXT, "bent", Card("float"))
    assert "float bent(\n    float x, int n)" in single
    assert "return x < float(1.0) ? x : float(1.0);" in single
    assert "return -float(INFINITE);" in single


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("while x > 0.0:\n        x -= 1.0", "While has no text"),
        ("y = x\n    x, y = y, x", "depend on each other"),
        ("y = unknown(x) + z", "z is not known here"),
        (
            "for l in range(3):\n        if x > 0.0:\n            continue\n    x = 1.0",
            "may continue",
        ),
        ("y = x if 0.0 < x < 1.0 else x", "only two values"),
        ("y = np.empty((2, 3))\n    x = y[0:1]", "Slice has no text"),
        ("y = np.empty((2, 3))\n    x = y[0, 1, 2]", "1 indices beside the lane"),
        ("for i in x:\n        pass", "range"),
        ("if x > 0.0:\n        return 1\n    return x", "the same kind"),
        ("return x, x", "one number"),
        ("x = 'a'", "str has no text"),
        ("x = x.size", "Attribute has no text"),
    ],
)
def test_what_has_no_text_is_refused(lines: str, reason: str) -> None:
    with pytest.raises(LoweringError, match=f"line [0-9]+: .*{reason}"):
        printed(f"def f(x: float):\n    {lines}\n", "f", Card(lane="l"))


def test_an_argument_needs_a_type() -> None:
    with pytest.raises(LoweringError, match="the argument x needs a type"):
        printed("def f(x):\n    pass\n", "f", Card())
