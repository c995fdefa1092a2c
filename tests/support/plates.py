"""Plates for the tests of their page: tables and traces of wells as a batch leaves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from channelfit.batch.page_data import row_name
from channelfit.batch.table import Column, WellTable, texts

#: By parameter its unit and its value in the middle of a plate.
PARAMETERS = {
    "a1": ("1/ms", 2.4e-4),
    "z1": ("1/mV", 0.07),
    "b1": ("1/ms", 3.5e-5),
    "z2": ("1/mV", 0.054),
    "a3": ("1/ms", 0.087),
    "b3": ("1/ms", 5.2e-3),
    "g": ("nS", 22.0),
    "leak": ("nS", 0.6),
}


@dataclass
class Fits:
    """What populations and groups read of the fits of a plate."""

    names: tuple[str, ...]
    unit: np.ndarray
    information: np.ndarray
    at_bound: np.ndarray
    quality: np.ndarray
    reason: np.ndarray


def fits_of(names: tuple[str, ...], unit: np.ndarray, information: np.ndarray) -> Fits:
    """Fits without remarks of wells, from unit values (n, k) and information (n, k, k)."""
    quality, reason = (np.array([text] * len(unit), dtype=object) for text in ("ok", ""))
    at_bound = np.zeros(unit.shape, np.int8)
    return Fits(names, unit.copy(), information.copy(), at_bound, quality, reason)


def labels(n: int) -> list[str]:
    """Labels of wells: of a plate, and beyond 1536 of files."""
    rows, columns = next(
        (size for size in ((8, 12), (16, 24), (32, 48)) if size[0] * size[1] >= n), (0, 0)
    )
    if not rows:
        return [f"cell {k + 1:05d}" for k in range(n)]
    return [f"{row_name(k // columns)}{k % columns + 1:02d}" for k in range(n)]


def plate(n: int = 384, points: int = 600, seed: int = 1) -> tuple[WellTable, dict[str, Any], dict]:
    """A table of n wells, their traces, and facts. Every 40th well failed, some stand apart."""
    draw = np.random.default_rng(seed)
    names, n_names = list(PARAMETERS), len(PARAMETERS)
    typical = np.log([value for _, value in PARAMETERS.values()])
    mixing = np.eye(n_names)
    mixing[1, 0], mixing[3, 2] = -0.7, -0.6
    values = np.exp(typical + 0.18 * draw.standard_normal((n, n_names)) @ mixing.T)
    failed = np.arange(n) % 40 == 17
    odd = np.arange(n) % 53 == 5
    values[odd, 0] *= 6
    error = values * draw.uniform(0.02, 0.08, (n, n_names))
    noise = draw.lognormal(np.log(12.0), 0.3, n)
    check = (np.arange(n) % 29 == 3) & ~failed
    rms = noise * np.where(check, 1.9, draw.uniform(0.98, 1.06, n))
    compound = texts([("control", "dofetilide", "verapamil")[k // 8 % 3] for k in range(n)])
    quality = np.where(failed, "failed", np.where(check, "check", "ok"))
    reason = [
        "the seal of 0.04 GOhm is below 0.1 GOhm"
        if failed[k]
        else f"the residuals are {rms[k] / noise[k]:.3g} times the noise; a1 is at its upper bound"
        if check[k]
        else ""
        for k in range(n)
    ]
    columns: dict[str, np.ndarray] = {
        "well": texts(labels(n)),
        "file": texts([f"plate7/{name}.csv" for name in labels(n)]),
        "compound": compound,
        "dose": 10.0 ** (np.arange(n) % 4 - 2.0),
    }
    about = {"dose": Column("uM", "concentration of the compound")}
    for k, name in enumerate(names):
        column = np.where(failed, np.nan, values[:, k])
        columns[name] = column
        columns[f"{name}_error"] = np.where(failed, np.nan, error[:, k])
        columns[f"{name}_lower"] = column - 1.96 * error[:, k]
        columns[f"{name}_upper"] = column + 1.96 * error[:, k]
        about[name] = Column(PARAMETERS[name][0], f"fitted value of {name}")
    columns |= {
        "cost": np.where(failed, np.nan, rms**2),
        "rms": np.where(failed, np.nan, rms),
        "noise": noise,
        "starts": np.full(n, 8.0),
        "agreed": np.where(failed, 0.0, draw.integers(3, 9, n)),
        "seal": np.where(failed, 0.04, draw.lognormal(0.3, 0.5, n)),
        "quality": texts(quality),
        "reason": texts(reason),
    }
    about |= {
        "cost": Column("pA^2", "weighted mean square of the residuals"),
        "rms": Column("pA", "root mean square of the residuals"),
        "noise": Column("pA", "noise of the recording"),
        "seal": Column("GOhm", "resistance of the seal"),
    }
    return WellTable(columns, about), _traces(values, noise, failed, points, draw), facts(n)


def _traces(
    values: np.ndarray, noise: np.ndarray, failed: np.ndarray, points: int, draw: Any
) -> dict[str, Any]:
    """Steps up and down, each followed by a relaxation."""
    time = np.linspace(0, 15_000, points)
    levels = np.array([0, 0.5, 0.1, 0.8, 0.3, 1.0, 0.2, 0.6, 0.05, 0])
    step = np.minimum((time / 1500).astype(int), 9)
    since = time - 1500 * step
    before = levels[np.maximum(step - 1, 0)]
    fits = []
    for row in values:
        rate = 0.004 * row[5] / 5.2e-3
        open_now = levels[step] + (before - levels[step]) * np.exp(-rate * since)
        fits.append(row[6] * open_now * (90 - 30 * (step % 3)))
    fit = np.array(fits)
    data = fit + noise[:, None] * draw.standard_normal(fit.shape)
    data[3::29] += 4 * noise[3::29, None] * np.sin(time / 900) * np.exp(-since / 700)
    data[failed] = 40 * draw.standard_normal((int(failed.sum()), points)).cumsum(axis=1) / 10
    fit[failed] = np.nan
    return {"time_ms": time, "data": data.astype(np.float32), "fit": fit.astype(np.float32)}


def facts(n: int) -> dict[str, Any]:
    """What a batch tells beside its table."""
    return {
        "title": "hERG, plate 7",
        "description": "Staircase protocol, five compounds, 384 wells.",
        "model": "herg_wang",
        "model_source": "Wang et al. 1997, J Physiol 502:45",
        "protocol": "herg_staircase",
        "protocol_source": "Lei et al. 2019, Biophys J 117:2438",
        "parameters": list(PARAMETERS),
        "metadata": ["compound", "dose"],
        "search": "eight starts of least squares from a scan of 4,096 candidates",
        "starts": 8,
        "seed": 1,
        "backend": "cpu",
        "dtype": "float64",
        "seconds": 212.4,
        "finished": "2026-11-22T18:00:00+00:00",
        "command": "channelfit batch herg.yaml plate7 --out runs/plate7",
        "file": "herg.yaml",
        "files": [{"what": "model", "file": "herg.yaml", "sha256": "ab" * 32}],
        "versions": {"channelfit": "0.9", "numpy": "2.1"},
        "machine": {"processor": "x86-64", "cores": "2"},
        "warnings": [],
        "left_out": [{"recording": "plate7/Q01.csv", "reason": "the file is empty"}],
        "population": {
            "method": "A two-level model of the wells took all but z1 as normally distributed",
            "rows": [
                {
                    "name": name,
                    "kind": "shared" if name == "z1" else "drawn",
                    "scale": "log",
                    "unit": unit,
                    "mean": value,
                    "mean_lower": 0.97 * value,
                    "mean_upper": 1.03 * value,
                    "spread": 0.0 if name == "z1" else 0.18,
                    "spread_lower": 0.0 if name == "z1" else 0.16,
                    "spread_upper": 0.0 if name == "z1" else 0.2,
                }
                for name, (unit, value) in PARAMETERS.items()
            ],
            "remarks": ["one well hardly counts."],
        },
        "groups": {
            "method": "The wells were sorted into 2 groups by k-means",
            "of": ["a1", "b1"],
            "units": {"a1": "1/ms", "b1": "1/ms"},
            "rows": [
                {"group": "1", "wells": n - 8, "center": {"a1": 2.4e-4, "b1": 3.5e-5}},
                {"group": "2", "wells": 8, "center": {"a1": 1.4e-3, "b1": None}},
            ],
            "remarks": [],
        },
    }
