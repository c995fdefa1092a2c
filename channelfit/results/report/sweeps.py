"""The number that differs between the sweeps of a protocol, and the colors that stand for it."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from channelfit.problem.protocol import Protocol
from channelfit.problem.waves import Constant

Color = tuple[float, float, float]
SINGLE = "#0072b2"  # of Okabe and Ito's palette, which suits any color vision
_MOST_LABELS = 8


@dataclass(frozen=True, eq=False)
class SweepKey:
    """The number that differs between the sweeps of a protocol.

    Attributes:
        values: (n_sweeps,), a number for each sweep.
        label: the name of the numbers, with their unit.
    """

    values: np.ndarray
    label: str


def key_of(protocol: Protocol) -> SweepKey:
    """Find the number that differs between the sweeps of a protocol.

    It is the voltage of the step that differs most between sweeps, or else its duration, or else
    the number of the sweep.
    """
    n = protocol.n_sweeps
    lengths = {len(sweep) for sweep in protocol.sweeps}
    if len(lengths) == 1:
        columns = list(zip(*protocol.sweeps, strict=True))
        voltages = [
            np.array([s.wave.v_mV for s in column if isinstance(s.wave, Constant)])
            for column in columns
        ]
        durations = [np.array([s.end_ms - s.start_ms for s in column]) for column in columns]
        for families, label in ((voltages, "step (mV)"), (durations, "duration (ms)")):
            whole = [values.round(6) for values in families if len(values) == n]
            most = max(whole, key=lambda values: len(np.unique(values)), default=np.zeros(1))
            if len(np.unique(most)) > 1:
                return SweepKey(most, label)
    return SweepKey(np.arange(1.0, n + 1), "sweep")


def colors(key: SweepKey) -> list[Color]:
    """Return a color for every sweep, from dark for the lowest value to light for the highest.

    They lie along one color map, short of its yellow, which is hardly seen on white.
    """
    rank = np.empty(len(key.values), dtype=int)
    rank[np.argsort(key.values, kind="stable")] = np.arange(len(key.values))
    shades = ramp(len(key.values))
    return [shades[k] for k in rank]


def ramp(n: int) -> list[Color]:
    """Return n colors from dark to light; the usual blue where there is only one."""
    if n == 1:
        return [to_rgb(SINGLE)]
    return [tuple(c[:3]) for c in mpl.colormaps["viridis"](np.linspace(0.0, 0.86, n))]


def draw_key(axis: Axes, key: SweepKey, width: float = 0.03) -> Axes:
    """Draw a strip of the colors beside an axis, the highest value on top, labeled with some
    values.

    Arguments:
        width: of the strip, as a share of the axis.
    """
    strip = axis.inset_axes((1 + 0.7 * width, 0.0, width, 1.0))
    n = len(key.values)
    strip.imshow(
        np.array(ramp(n))[:, None, :],
        aspect="auto",
        origin="lower",
        extent=(0, 1, 0, n),
        interpolation="nearest",
    )
    labeled = np.arange(0, n, -(-n // _MOST_LABELS))
    labels = [f"{value:g}".replace("-", "−") for value in np.sort(key.values)[labeled]]
    strip.set_xticks([])
    strip.set_yticks(labeled + 0.5, labels)
    strip.yaxis.tick_right()
    strip.yaxis.set_label_position("right")
    strip.set_ylabel(key.label, fontsize=8)
    strip.tick_params(axis="y", length=0, labelsize=7.5, pad=2)
    strip.spines[:].set_visible(False)
    return strip
