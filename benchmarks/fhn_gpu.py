"""FitzHugh-Nagumo on one GPU: node-steps a second against the chip's limits and cuSPARSE.

    python benchmarks/fhn_gpu.py            everything, a few minutes
    python benchmarks/fhn_gpu.py --quick    two variants each, no growth with N
    python benchmarks/fhn_gpu.py --parts explicit cables
    python benchmarks/fhn_gpu.py --parts coupling    strong coupling, in a file of its own

Every kernel's result is first compared with the processor's. `against` is, for the explicit scheme,
the same kernel with one step a pass; for Crank-Nicolson, cuSPARSE's solver of one tridiagonal
system a step (Newton needs two), measured here too.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import glob
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from report import Row, as_script, compared, finish

from channelfit.fitzhugh_nagumo import Cable, CrankNicolson, Equation, Explicit, RungeKutta
from channelfit.fitzhugh_nagumo.cuda.adaptive import AdaptiveCuda
from channelfit.fitzhugh_nagumo.cuda.crank_nicolson import BlockShape, CrankNicolsonCuda
from channelfit.fitzhugh_nagumo.cuda.explicit import ExplicitCuda, RungeKuttaCuda
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.arrays import to_host

DX, DT = 0.5, 0.1
BIG, OTHERS = 2**24, (2**20, 2**27)
GROWTH = (1000, 10**4, 10**5, 10**6, 10**7, 2**27)
PARTS = ("explicit", "runge_kutta", "crank_nicolson", "coupling", "cables", "growth")
COUPLED = (OTHERS[0], BIG)
COUPLINGS = (  # dt/dx^2
    (10.0, "auto"),
    (100.0, "auto"),
    (1000.0, "auto"),
    (1000.0, "parts"),
    (1e5, "auto"),
)
WIDE = [(16, 512, 1, 1), (16, 384, 1, 1), (12, 512, 1, 1), (16, 512, 1, 4)]  # as CRANK_NICOLSON
CABLES, CABLE_NODES = 10_000, 401
CHECKED, CHECKED_STEPS = 20_011, 200
FLOPS_A_STEP = 12  # one addition, one product, five fused multiply-adds
EXPLICIT = [  # nodes a thread, warps, steps a pass
    (16, 4, 32),
    (16, 4, 16),
    (16, 4, 48),
    (12, 4, 24),
    (8, 4, 16),
    (8, 4, 32),
    (24, 2, 48),
    (16, 2, 32),
    (16, 8, 32),
    (20, 4, 40),
]
RUNGE_KUTTA = [  # as EXPLICIT
    (8, 4, 8),
    (8, 4, 6),
    (8, 4, 4),
    (8, 2, 8),
    (8, 8, 8),
    (12, 4, 9),
    (12, 4, 12),
    (10, 4, 10),
    (14, 4, 14),
    (16, 4, 16),
]
RUNGE_KUTTA_FLOPS = 76  # see `channelfit/fitzhugh_nagumo/cuda/explicit.py`
CRANK_NICOLSON = [  # nodes a thread, threads, blocks a multiprocessor, steps a pass
    (8, 256, 2, 4),
    (8, 256, 2, 1),
    (8, 256, 2, 8),
    (8, 128, 4, 4),
    (8, 128, 3, 4),
    (4, 256, 4, 4),
    (4, 512, 2, 4),
    (6, 256, 2, 4),
    (10, 128, 3, 4),
    (16, 128, 2, 4),
    (8, 512, 1, 4),
]


def state(cp: Any, n: int, dtype: str, n_cables: int = 1) -> tuple[Any, Any]:
    """An impulse every 200 nodes, already on its way."""
    x = cp.arange(n * n_cables, dtype=cp.float64).reshape(n_cables, n) % 200
    v = cp.exp(-((x - 100) ** 2) / 40).astype(dtype)
    return v, (0.1 * cp.exp(-((x - 80) ** 2) / 80)).astype(dtype)


def rate(scheme: Any, v: Any, w: Any, n_steps: int, repeats: int = 5) -> float:
    """10^9 node-steps a second."""
    seconds = gpu.timed(lambda: scheme.advance(v, w, DT, n_steps), repeats)
    return float(v.size) * n_steps / seconds / 1e9


def copy_rate(cp: Any) -> float:
    """TB/s of a copy within the device's memory, read and written bytes counted."""
    source = cp.zeros(8 * BIG)
    target = cp.empty_like(source)
    return 2 * source.nbytes / gpu.timed(lambda: cp.copyto(target, source), 9) / 1e12


def checks(cp: Any) -> list[Row]:
    rows = []
    cable = Cable(CHECKED, DX)
    v, w = (to_host(a) for a in state(cp, CHECKED, "float64"))
    for make, reference in (
        (ExplicitCuda, Explicit),
        (RungeKuttaCuda, RungeKutta),
        (CrankNicolsonCuda, CrankNicolson),
    ):
        exact = reference(Equation(), cable).advance(v, w, DT, CHECKED_STEPS)[0]
        for dtype in ("float64", "float32"):
            scheme = make(Equation(), cable, dtype)
            ours = scheme.take(scheme.advance(scheme.put(v), scheme.put(w), DT, CHECKED_STEPS)[0])
            name = f"{scheme.name} {dtype}: largest difference from the processor"
            note = f"{CHECKED_STEPS} steps"
            rows.append(Row(name, float(np.abs(ours - exact).max()), "", note=note))
    return rows


def best(variants: list[Any], measure: Callable[..., float]) -> tuple[Any, float, str]:
    """The fastest variant; what others reached, in words."""
    reached = []
    for variant in variants:
        try:
            reached.append((measure(*variant), variant))
        except gpu.InputError as error:  # too many registers for so many threads
            print(f"  {variant}: {str(error).splitlines()[0][:90]}")
            continue
        print(f"  {variant}: {reached[-1][0]:.1f}")
    value, variant = max(reached)
    return variant, value, f"best of {len(reached)} variants"


def explicit(cp: Any, dtype: str, variants: list[Any], copy: float) -> tuple[list[Row], Any]:
    v, w = state(cp, BIG, dtype)
    cable = Cable(BIG, DX)

    def measure(nodes: int, warps: int, steps: int) -> float:
        scheme = ExplicitCuda(Equation(), cable, dtype, nodes, warps, steps)
        return rate(scheme, v, w, 4 * steps)

    print(f"explicit {dtype}: (nodes a thread, warps, steps a pass): G node-steps/s")
    variant, value, note = best(variants, measure)
    single = rate(ExplicitCuda(Equation(), cable, dtype, 8, 4, 1), v, w, 16)
    nodes, warps, steps = variant
    scheme = ExplicitCuda(Equation(), cable, dtype, *variant)
    useful = 1 - 2 * scheme.halo / (32 * nodes)
    size = np.dtype(dtype).itemsize
    moved = (2 / useful + 2) * size / steps
    computed = FLOPS_A_STEP / useful
    notes = (
        f"{nodes} nodes a thread, {warps} warps, {steps} steps a pass; {note}; "
        f"{moved:.2f} bytes and {computed:.1f} flop a node-step: "
        f"{value * moved / 1e3:.2f} of {copy:.2f} TB/s, {value * computed / 1e3:.1f} TFLOP/s"
    )
    rows = [compared(f"explicit {dtype}, N = {BIG:,}", value, "G node-steps/s", single, notes)]
    for n in OTHERS:
        v, w = state(cp, n, dtype)
        cable_n = Cable(n, DX)
        one = rate(ExplicitCuda(Equation(), cable_n, dtype, 8, 4, 1), v, w, 8)
        many = rate(ExplicitCuda(Equation(), cable_n, dtype, *variant), v, w, 2 * steps)
        rows.append(compared(f"explicit {dtype}, N = {n:,}", many, "G node-steps/s", one))
    return rows, variant


def runge_kutta(cp: Any, dtype: str, variants: list[Any], copy: float) -> tuple[list[Row], Any]:
    """As `explicit`; beside it forward Euler as it is shipped, of order one."""
    v, w = state(cp, BIG, dtype)

    def measure(nodes: int, warps: int, steps: int) -> float:
        scheme = RungeKuttaCuda(Equation(), Cable(BIG, DX), dtype, nodes, warps, steps)
        return rate(scheme, v, w, 4 * steps)

    print(f"Runge-Kutta {dtype}: (nodes a thread, warps, steps a pass): G node-steps/s")
    variant, value, note = best(variants, measure)
    nodes, warps, steps = variant
    useful = 1 - 2 * RungeKuttaCuda(Equation(), Cable(), dtype, *variant).halo / (32 * nodes)
    moved = (2 / useful + 2) * np.dtype(dtype).itemsize / steps
    computed = RUNGE_KUTTA_FLOPS / useful
    notes = (
        f"{nodes} nodes a thread, {warps} warps, {steps} steps a pass; {note}; "
        f"{moved:.2f} bytes and {computed:.1f} flop a node-step: "
        f"{value * moved / 1e3:.2f} of {copy:.2f} TB/s, {value * computed / 1e3:.1f} TFLOP/s"
    )
    rows = []
    for n in (BIG, *OTHERS):
        v, w = state(cp, n, dtype)
        euler = rate(ExplicitCuda(Equation(), Cable(n, DX), dtype), v, w, 64)
        ours = rate(RungeKuttaCuda(Equation(), Cable(n, DX), dtype, *variant), v, w, 4 * steps)
        name = f"Runge-Kutta {dtype}, N = {n:,}, against forward Euler"
        rows.append(compared(name, ours, "G node-steps/s", euler, notes if n == BIG else ""))
    return rows, variant


def cusparse_library() -> Any:
    """The library of CUDA 12, wherever it was installed."""
    places = ["libcusparse.so.12", "libcusparse.so"]
    places += [f"{p}/nvidia/cusparse/lib/libcusparse.so.12" for p in sys.path]
    places += glob.glob("/usr/local/cuda*/lib64/libcusparse.so*")
    for place in places:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(place)
    raise SystemExit("libcusparse.so.12 is not found: pip install nvidia-cusparse-cu12")


def cusparse(cp: Any, n: int, dtype: str) -> float:
    """10^9 unknowns a second of gtsv2_nopivot."""
    library = cusparse_library()
    letter = {"float64": "D", "float32": "S"}[dtype]
    handle, size = ctypes.c_void_p(), ctypes.c_size_t()
    if library.cusparseCreate(ctypes.byref(handle)):
        raise RuntimeError("cuSPARSE gives no handle")
    off, main, right = (cp.full(n, x, dtype) for x in (-0.2, 1.4, 1.0))
    low, high = off.copy(), off.copy()
    low[0] = high[-1] = 0
    pointers = [ctypes.c_void_p(a.data.ptr) for a in (low, main, high, right)]
    arguments = [handle, ctypes.c_int(n), ctypes.c_int(1), *pointers, ctypes.c_int(n)]
    ask = getattr(library, f"cusparse{letter}gtsv2_nopivot_bufferSizeExt")
    solve = getattr(library, f"cusparse{letter}gtsv2_nopivot")
    if ask(*arguments, ctypes.byref(size)):
        raise RuntimeError("cuSPARSE does not say how large a buffer it wants")
    buffer = cp.empty(size.value, cp.uint8)
    place = ctypes.c_void_p(buffer.data.ptr)

    def run() -> None:
        if solve(*arguments, place):
            raise RuntimeError("cuSPARSE fails")

    seconds = gpu.timed(run, 5)
    library.cusparseDestroy(handle)
    return n / seconds / 1e9


def crank_nicolson(cp: Any, dtype: str, variants: list[Any], copy: float) -> tuple[list[Row], Any]:
    v, w = state(cp, BIG, dtype)
    cable = Cable(BIG, DX)

    def measure(nodes: int, threads: int, blocks: int, steps: int) -> float:
        scheme = CrankNicolsonCuda(
            Equation(), cable, dtype, BlockShape(nodes, threads, blocks), steps
        )
        result = rate(scheme, v, w, 8)
        scheme.take(v[:, :1])  # refuses if Newton did not converge anywhere
        return result

    print(f"Crank-Nicolson {dtype}: (nodes a thread, threads, blocks, steps a pass): G nodes/s")
    variant, value, note = best(variants, measure)
    size = np.dtype(dtype).itemsize
    rows = []
    for n in (BIG, *OTHERS):
        v, w = state(cp, n, dtype)
        scheme = CrankNicolsonCuda(
            Equation(), Cable(n, DX), dtype, BlockShape(*variant[:3]), variant[3]
        )
        ours = value if n == BIG else rate(scheme, v, w, 8)
        text = (
            f"nodes, threads, blocks, steps a pass {variant}; {note}; at most "
            f"{value * 4 * size / variant[3] / 1e3:.2f} of {copy:.2f} TB/s"
        )
        peer = cusparse(cp, n, dtype)
        name = f"Crank-Nicolson step {dtype}, N = {n:,}, against one cuSPARSE solve"
        rows.append(compared(name, ours, "G nodes/s", peer, text if n == BIG else ""))
    return rows, variant


def coupling(cp: Any, dtype: str, quick: bool) -> list[Row]:
    """Steps so long, or spacings so short, that ends are felt from afar."""
    rows = [] if quick or dtype == "float32" else wide(cp, dtype)
    for n in COUPLED:
        peer = cusparse(cp, n, dtype)
        for ratio, solver in COUPLINGS:
            cable = Cable(n, float(np.sqrt(DT / ratio)))
            v, w = state(cp, n, dtype)
            scheme = CrankNicolsonCuda(Equation(), cable, dtype, solver=solver)
            value = rate(scheme, v, w, 4)
            scheme.take(v[:, :1])  # refuses if Newton did not converge anywhere
            name = f"Crank-Nicolson step {dtype}, N = {n:,}, dt/dx^2 = {ratio:g}, {solver}"
            rows.append(compared(name, value, "G nodes/s", peer, f"solved by {scheme.way}"))
    return rows


def wide(cp: Any, dtype: str) -> list[Row]:
    """Which tiles suit a coupling of 1000 best."""
    v, w = state(cp, BIG, dtype)
    cable = Cable(BIG, float(np.sqrt(DT / 1000)))

    def measure(nodes: int, threads: int, blocks: int, steps: int) -> float:
        scheme = CrankNicolsonCuda(
            Equation(), cable, dtype, BlockShape(nodes, threads, blocks), steps
        )
        return rate(scheme, v, w, 4, 3)

    print(f"dt/dx^2 = 1000, {dtype}: (nodes a thread, threads, blocks, steps a pass): G nodes/s")
    variant, value, note = best(WIDE, measure)
    name = f"Crank-Nicolson step {dtype}, N = {BIG:,}, dt/dx^2 = 1000, wide tiles"
    return [Row(name, value, "G nodes/s", note=f"{variant}; {note}")]


def many_cables(cp: Any, dtype: str, quick: bool) -> list[Row]:
    n_cables, n = CABLES, CABLE_NODES
    equation = Equation(a=np.linspace(0.01, 0.2, n_cables))
    cable, rows = Cable(n, DX), []
    v, w = state(cp, n, dtype, n_cables)
    value = max(
        rate(ExplicitCuda(equation, cable, dtype, warps=k), v, w, 500)
        for k in ((4,) if quick else (2, 4, 8))
    )
    rows.append(Row(f"explicit {dtype}, {n_cables:,} cables of {n} nodes", value, "G node-steps/s"))
    value = max(
        rate(RungeKuttaCuda(equation, cable, dtype, warps=k), v, w, 200)
        for k in ((4,) if quick else (1, 2, 4))
    )
    name = f"Runge-Kutta {dtype}, {n_cables:,} cables of {n} nodes"
    rows.append(Row(name, value, "G node-steps/s"))
    adaptive = AdaptiveCuda(equation, cable, dtype=dtype)
    value = rate(adaptive, v, w, 500, 3)
    note = f"uniform nodes counted; {adaptive.facts()['mean_nodes']:.0f} of {n} in use"
    rows.append(
        Row(
            f"adaptive {dtype}, {n_cables:,} cables of {n} nodes",
            value,
            "G node-steps/s",
            note=note,
        )
    )
    shapes = [(4, 128, 4, 1), (4, 128, 5, 1), (8, 64, 6, 1), (14, 32, 8, 1), (2, 256, 3, 1)]
    value = max(
        rate(CrankNicolsonCuda(equation, cable, dtype, BlockShape(*s[:3]), s[3]), v, w, 20)
        for s in shapes[: 1 if quick else None]
    )
    rows.append(
        Row(f"Crank-Nicolson {dtype}, {n_cables:,} cables of {n} nodes", value, "G nodes/s")
    )
    return rows


def growth(cp: Any, explicit_variant: Any, implicit_variant: Any) -> list[Row]:
    rows = []
    for n in GROWTH:
        v, w = state(cp, n, "float64")
        cable = Cable(n, DX)
        steps = 256 if n < 10**6 else 64
        one = rate(ExplicitCuda(Equation(), cable, "float64", *explicit_variant), v, w, steps)
        shape, a_pass = BlockShape(*implicit_variant[:3]), implicit_variant[3]
        two = rate(CrankNicolsonCuda(Equation(), cable, "float64", shape, a_pass), v, w, 16)
        rows.append(Row(f"explicit float64, N = {n:,}", one, "G node-steps/s"))
        rows.append(Row(f"Crank-Nicolson float64, N = {n:,}", two, "G nodes/s"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--folder", type=Path, help="for fhn_gpu.json, if not results/")
    given = parser.parse_args()
    cp, device = gpu.cupy(), gpu.device()
    if {"crank_nicolson", "coupling"} & set(given.parts):
        cusparse(cp, 1000, "float64")  # at once, if it is missing
    copy = copy_rate(cp)
    rows = [Row("copy within memory", copy, "TB/s"), *checks(cp)]
    chosen: dict[str, Any] = {
        "explicit": EXPLICIT[0],
        "runge_kutta": RUNGE_KUTTA[0],
        "crank_nicolson": CRANK_NICOLSON[0],
    }
    for dtype in ("float64", "float32"):
        for part, measure, variants in (
            ("explicit", explicit, EXPLICIT),
            ("runge_kutta", runge_kutta, RUNGE_KUTTA),
            ("crank_nicolson", crank_nicolson, CRANK_NICOLSON),
        ):
            if part in given.parts:
                more, best_one = measure(cp, dtype, variants[:2] if given.quick else variants, copy)
                rows += more
                if dtype == "float64":
                    chosen[part] = best_one
        if "coupling" in given.parts:
            rows += coupling(cp, dtype, given.quick)
        if "cables" in given.parts:
            rows += many_cables(cp, dtype, given.quick)
    if "growth" in given.parts and not given.quick:
        rows += growth(cp, chosen["explicit"], chosen["crank_nicolson"])
    name = "fhn_gpu_coupling" if given.parts == ["coupling"] else "fhn_gpu"
    finish(name, "FitzHugh-Nagumo on the GPU", rows, device.name, given.folder)


if __name__ == "__main__":
    as_script(main)
