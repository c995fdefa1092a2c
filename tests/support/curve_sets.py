"""Sets of data for curves, their points and twins."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from channelfit.curves.batch import CurveSettings
from channelfit.curves.builtin import BUILT_IN
from channelfit.curves.curve import Curve, build_curve, load_curve
from channelfit.curves.curve_tasks import fit_curve
from channelfit.curves.fitting import DataSets, Fits

#: Inputs and true parameters of the built-in curves of one input.
ONE_INPUT: dict[str, tuple[np.ndarray, list[float]]] = {
    "boltzmann": (np.arange(-100.0, 41.0, 10.0), [-32.0, 7.0, 0.05, 0.9]),
    "exponential": (np.linspace(0, 50, 40), [0.2, 1.5, 8.0]),
    "double_exponential": (np.linspace(0, 100, 200), [0.1, 1.0, 3.0, 0.7, 40.0]),
    "hill": (np.array([0, 0.1, 0.3, 1, 3, 10, 30, 100.0]), [0.05, 0.95, 2.5, 1.4]),
    "gaussian": (np.linspace(-5, 5, 31), [0.3, 2.0, 0.8, 1.1]),
}


def points(curve: Curve, x: np.ndarray, values: np.ndarray) -> DataSets:
    """Data sets of a curve of one input."""
    return DataSets((curve.inputs,), {curve.inputs[0]: x}, values, values.shape[1:])


def noisy(name: str, n: int, noise: float = 0.02, seed: int = 1) -> tuple[Curve, DataSets]:
    curve = load_curve(name)
    x, truth = ONE_INPUT[name]
    z = curve.values({curve.inputs[0]: x}, np.array(truth))
    random = np.random.default_rng(seed)
    return curve, points(curve, x, z + random.normal(0, noise, (n, len(x))))


def images(n: int, seed: int = 0) -> tuple[np.ndarray, DataSets]:
    """True parameters (n, 6) and images of 11 x 11 counts."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:11, :11]
    ranges = ((5, 20), (50, 300), (1, 2.2), (1, 2.2), (3.5, 6.5), (3.5, 6.5))
    t = np.stack([random.uniform(*ends, n) for ends in ranges])
    half = ((x[..., None] - t[4]) / t[2]) ** 2 + ((y[..., None] - t[5]) / t[3]) ** 2
    f = np.moveaxis(t[0] + t[1] * np.exp(-half / 2), -1, 0)
    axis = np.arange(11.0)
    counts = random.poisson(f).reshape(n, -1).astype(np.uint16)
    return t.T, DataSets((("x",), ("y",)), {"x": axis, "y": axis}, counts, (11, 11))


def on_cpu(curve: Curve, data: DataSets, **settings: Any) -> Fits:
    return fit_curve(curve, data, CurveSettings(backend="cpu", **settings))


#: By the name of a built-in curve: definitions, and the curve in terms of them.
DEFINED: dict[str, tuple[dict[str, Any], str]] = {
    "boltzmann": ({"open": "1/(1 + exp(u))", "u": "(half - v)/slope"}, "low + (high - low)*open"),
    "hill": (
        {"part": "0 if x <= 0 else 1/(1 + exp(-up))", "up": "hill*(log(x) - log(half))"},
        "bottom + (top - bottom)*part",
    ),
    "gaussian": (
        {"two": 2, "off": "(x - center)/width", "bell": "exp(-off**two/two)"},
        "offset + amplitude*bell",
    ),
    "gaussian_2d": (
        {
            "bell": "exp(-(dx**2 + dy**2)*half)",
            "dx": "(x - center_x)/width_x",
            "dy": "(y - center_y)/width_y",
            "half": 0.5,
        },
        "offset + amplitude*bell",
    ),
}


def twins(name: str) -> tuple[Curve, Curve]:
    """A curve with definitions, and the same with each in brackets in the place of its name."""
    definitions, text = DEFINED[name]
    document = BUILT_IN[name] | {"name": name, "curve": text, "definitions": definitions}
    plain = text
    for _ in definitions:
        for word, by in definitions.items():
            plain = re.sub(rf"\b{word}\b", f"({by})", plain)
    without = {k: v for k, v in document.items() if k != "definitions"} | {"curve": plain}
    return build_curve(document, None), build_curve(without, None)


def activation(n: int = 5, seed: int = 1) -> np.ndarray:
    """(15, 1 + n): voltages, and activation curves with noise."""
    v, truth = ONE_INPUT["boltzmann"]
    clean = load_curve("boltzmann").values({"v": v}, np.array(truth))
    return np.column_stack([v, *(clean + np.random.default_rng(seed).normal(0, 0.02, (n, len(v))))])
