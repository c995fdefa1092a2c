"""The scheme of a model drawn as a graph: states are circles, rates stand on curved arrows."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import MathTextParser
from matplotlib.patches import Circle, FancyArrowPatch
from matplotlib.textpath import TextPath

from channelfit.results.report.page_content import ModelScheme, SchemeChain, SchemeStep
from channelfit.results.report.picture_texts import briefs, shorten
from channelfit.results.report.plots import DPI, INK, MUTED, SINGLE, new_figure, styled

if TYPE_CHECKING:
    from channelfit.model.channel import Chain

#: Inches; one data unit of the drawing is one inch. A circle grows with the names in it.
RADIUS, _LARGEST = 0.3, 0.9
_GAP = 0.42  # between a circle and the widest label beside it
_ROW = 1.3
_BEND = 0.16
_LONGEST_LABEL, _LONGEST_ASLANT = 1.35, 0.7
_MARGIN = 0.4
_LINE = 0.27
_TITLE = 0.45
_SIZE = 10.0
#: Points of a name in a circle, and how many times its size a letter is wide.
_SMALLEST, _NAME, _LETTER = 7.0, 10.5, 0.62
_OPEN_EDGE, _SHUT = "#004f7c", "#ffffff"


@dataclass(frozen=True)
class _Arrow:
    """One transition, placed: its label stands beside the middle of the bend."""

    source: tuple[float, float]
    target: tuple[float, float]
    label: str
    bend: float


def rows_of_states(chain: Chain | SchemeChain) -> list[list[str]]:
    """Arrange the states in rows, in the order in which the author listed them.

    A new row begins where two states that follow each other are not linked in the scheme.
    """
    linked = _links(chain)
    rows = [[chain.states[0]]]
    for before, state in itertools.pairwise(chain.states):
        if frozenset((before, state)) in linked:
            rows[-1].append(state)
        else:
            rows.append([state])
    return rows


def layout(chain: Chain | SchemeChain) -> dict[str, tuple[float, float]]:
    """Place the states, as (column, row); rows are counted downward.

    A chain becomes a line and a ring becomes a circle. Rows lie below each other, shifted so that
    linked states stand above each other. Where most states share no row, they lie around a circle.
    """
    linked = _links(chain)
    if _is_round(chain):
        n = len(chain.states)
        hub = next((s for s in chain.states if sum(s in link for link in linked) == n - 1), None)
        return _circle(chain.states, None if n < 5 else hub)
    rows = rows_of_states(chain)
    places = {state: (float(k), 0.0) for k, state in enumerate(rows[0])}
    for number, row in enumerate(rows[1:], 1):
        shift = _best_shift(row, places, linked)
        places |= {state: (float(k + shift), float(number)) for k, state in enumerate(row)}
    return places


def _links(chain: Chain | SchemeChain) -> set[frozenset[str]]:
    return {frozenset((t.source, t.target)) for t in chain.transitions}


def _is_round(chain: Chain | SchemeChain) -> bool:
    """Return whether the states form a ring, or most of them stand in no row."""
    rows = rows_of_states(chain)
    closed = frozenset((chain.states[0], chain.states[-1])) in _links(chain)
    return (len(rows) == 1 and len(chain.states) > 2 and closed) or (
        sum(len(row) == 1 for row in rows) > 1
    )


def _circle(states: Sequence[str], hub: str | None) -> dict[str, tuple[float, float]]:
    """Place states around a circle, clockwise from the top; a hub, linked to all, in the middle."""
    around = [state for state in states if state != hub]
    radius = max(1.0, len(around) / 5.5)
    angles = 2 * math.pi * np.arange(len(around)) / len(around)
    places = {
        state: (float(radius * math.sin(a)), float(-radius * math.cos(a)))
        for state, a in zip(around, angles, strict=True)
    }
    return places if hub is None else {**places, hub: (0.0, 0.0)}


def _best_shift(
    row: Sequence[str], places: Mapping[str, tuple[float, float]], linked: set[frozenset[str]]
) -> int:
    """Find the shift, in columns, that makes the links to the rows above most upright."""
    reach = len(row) + len(places)

    def slant(shift: int) -> float:
        return sum(
            (k + shift - x) ** 2
            for k, state in enumerate(row)
            for other, (x, _) in places.items()
            if frozenset((state, other)) in linked
        )

    return min(range(-reach, reach + 1), key=lambda s: (slant(s), abs(s)))


def scheme_figure(scheme: ModelScheme) -> Figure:
    """Draw a model's scheme, or that of each of its gates; open states are filled.

    A rate too long to stand on its arrow has a short name there and is written out below.
    """
    with styled({"mathtext.fontset": "dejavuserif", "font.size": _SIZE}):
        notes: list[str] = []
        drawings = [_Drawing(scheme, chain, notes) for chain in scheme.chains]
        notes += [_readable(f"${definition}$") for definition in scheme.definitions]
        width = max([d.width for d in drawings] + [_width(n) for n in notes]) + 2 * _MARGIN
        width = max(width, 3.2)
        heights = [max(_height(note) + 0.12, _LINE) for note in notes]
        below = sum(heights) + (0.1 if notes else 0)
        height = _TITLE + sum(d.height for d in drawings) + below + 0.15
        figure = new_figure(width, height, layout=None)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        name: dict[str, Any] = {"fontweight": "bold", "fontsize": 11, "color": INK, "va": "center"}
        heading = axes.text(0.25, 0.27, scheme.name, parse_math=False, **name)
        shorten(heading, (width - 0.3) * DPI)
        top = _TITLE
        for drawing in drawings:
            drawing.draw(axes, (width - drawing.width) / 2, top)
            top += drawing.height
        top += 0.1
        for note, tall in zip(notes, heights, strict=True):
            low, high = _extents(note)
            axes.text(0.25, top + tall / 2 + (low + high) / 2, note, color=INK, va="baseline")
            top += tall
    return figure


class _Drawing:
    """One chain of states, laid out in inches."""

    def __init__(self, scheme: ModelScheme, chain: SchemeChain, notes: list[str]) -> None:
        self.chain = chain
        inside = [s.removeprefix(f"{chain.name}_") for s in chain.states]
        self.gate = chain.is_gate
        self.titled = self.gate or len(scheme.chains) > 1
        self.names = briefs(inside if self.titled else chain.states, 20)
        longest = max(map(len, self.names)) * _LETTER * _SMALLEST / 72
        self.radius = min(max(RADIUS, longest / 2 + 0.06), _LARGEST)
        self._short: dict[str, str] = {}
        self._longest = _LONGEST_ASLANT if _is_round(chain) else _LONGEST_LABEL
        self.labels = {t: self._label(t, notes) for t in chain.transitions}
        columns = layout(chain)
        widest = max((_width(text) for text in self.labels.values()), default=0.0)
        dx = max(1.35, 2 * self.radius + widest + _GAP)
        straight = all(y == 0 for _, y in columns.values())
        dy = (_ROW if straight else max(_ROW, 1.45)) + 2 * (self.radius - RADIUS)
        self.places = {s: (x * dx, y * dy) for s, (x, y) in columns.items()}
        self.arrows = [self._arrow(t) for t in chain.transitions]
        xs = [x for x, _ in self.places.values()] + [
            _label_place(a)[0] + side * _width(a.label) / 2 for a in self.arrows for side in (-1, 1)
        ]
        ys = [y for _, y in self.places.values()] + [_label_place(a)[1] for a in self.arrows]
        self.left, self.top = min(xs) - self.radius, min(ys) - self.radius - 0.12
        kind = "gate" if self.gate else "scheme of"
        self.caption = f"{kind} {chain.name}" + (
            f", power {chain.power}" if chain.power > 1 else ""
        )
        self.caption = "scheme" if chain.name == "scheme" and not self.gate else self.caption
        self.width = max(xs) + self.radius - self.left
        self.height = max(ys) + self.radius + 0.12 - self.top + (0.2 if self.titled else 0)

    def _label(self, t: SchemeStep, notes: list[str]) -> str:
        """Return the rate as it stands on the arrow; a long one goes to the notes under a short
        name.
        """
        many = f"{t.multiplicity}\\," if t.multiplicity > 1 else ""
        text = _readable(f"${many}{t.math_text}$")
        if _width(text) <= self._longest and text.startswith("$") and "frac" not in text:
            return text
        if t.math_text not in self._short:
            self._short[t.math_text] = self._name(t)
            notes.append(_readable(f"${self._short[t.math_text]} = {t.math_text}$"))
        return f"${many}{self._short[t.math_text]}$"

    def _name(self, t: SchemeStep) -> str:
        states = self.chain.states
        if self.gate:
            greek = "alpha" if t.target == states[-1] else "beta"
            name = self.chain.name.replace("_", r"\_")
            return rf"\{greek}_{{\mathrm{{{name}}}}}"
        i, j = (states.index(s) + 1 for s in (t.source, t.target))
        return f"k_{{{i}{j}}}" if len(states) < 10 else f"k_{{{i},{j}}}"

    def _arrow(self, t: SchemeStep) -> _Arrow:
        a, b = self.places[t.source], self.places[t.target]
        both = any((u.source, u.target) == (t.target, t.source) for u in self.chain.transitions)
        bend = _BEND if both else 0.0
        inside = [
            s
            for s, p in self.places.items()
            if s not in (t.source, t.target) and _near(p, a, b, self.radius)
        ]
        if inside:  # the way is blocked by another state: around it
            bend = 0.42
        return _Arrow(a, b, self.labels[t], bend)

    def draw(self, axes: Axes, left: float, top: float) -> None:
        """Draw the chain with its upper left corner at a place, in inches."""
        dx, dy = left - self.left, top - self.top
        if self.titled:
            axes.text(0.25, top + 0.1, self.caption, fontsize=9, color=MUTED, va="center")
            dy += 0.2
        for arrow in self.arrows:
            self._draw_arrow(axes, arrow, dx, dy)
        states = zip(self.chain.states, self.names, self.chain.conducting, strict=True)
        for state, name, conducting in states:
            x, y = self.places[state]
            face, edge = (SINGLE, _OPEN_EDGE) if conducting else (_SHUT, INK)
            axes.add_patch(
                Circle((x + dx, y + dy), self.radius, facecolor=face, edgecolor=edge, linewidth=1.2)
            )
            size = min(_NAME, (2 * self.radius - 0.1) * 72 / (_LETTER * max(len(name), 2)))
            color = "white" if conducting else INK
            axes.text(
                x + dx,
                y + dy,
                name,
                ha="center",
                va="center_baseline",
                color=color,
                fontsize=size,
                fontweight="bold" if conducting else "normal",
            )

    def _draw_arrow(self, axes: Axes, arrow: _Arrow, dx: float, dy: float) -> None:
        (ax, ay), (bx, by) = arrow.source, arrow.target
        shrink = (self.radius + 0.045) * 72
        axes.add_patch(
            FancyArrowPatch(
                (ax + dx, ay + dy),
                (bx + dx, by + dy),
                connectionstyle=f"arc3,rad={-arrow.bend}",
                arrowstyle="-|>,head_length=5,head_width=2.2",
                shrinkA=shrink,
                shrinkB=shrink,
                color=MUTED,
                linewidth=1.1,
                mutation_scale=1,
            )
        )
        x, y = _label_place(arrow)
        axes.text(
            x + dx,
            y + dy,
            arrow.label,
            ha="center",
            va="center",
            color=INK,
            fontsize=_SIZE,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
            zorder=3,
        )


def _near(
    p: tuple[float, float], a: tuple[float, float], b: tuple[float, float], radius: float
) -> bool:
    """Return whether p lies on the straight line from a to b, or nearer to it than a circle's
    radius.
    """
    ax, ay, bx, by = *a, *b
    length = math.hypot(bx - ax, by - ay)
    along = ((p[0] - ax) * (bx - ax) + (p[1] - ay) * (by - ay)) / length
    across = abs((p[0] - ax) * (by - ay) - (p[1] - ay) * (bx - ax)) / length
    return 0 < along < length and across < radius


def _label_place(arrow: _Arrow) -> tuple[float, float]:
    """Place a label outside the middle of the bend.

    It is further out where the arrow runs upright, so that the label's width has room.
    """
    (ax, ay), (bx, by) = arrow.source, arrow.target
    dx, dy = bx - ax, by - ay
    length = math.hypot(dx, dy)
    nx, ny = dy / length, -dx / length  # left of the way, y pointing down
    out = abs(nx) * (_width(arrow.label) / 2 + 0.05) + abs(ny) * 0.15
    away = arrow.bend * length / 2 + out
    return (ax + bx) / 2 + nx * away, (ay + by) / 2 + ny * away


# --- text --------------------------------------------------------------------------------------


_parser = MathTextParser("path")


def _readable(text: str) -> str:
    """Return math text if Matplotlib can set it, or the same as plain text."""
    try:
        _parser.parse(text)
    except (ValueError, RuntimeError):
        return text.strip("$").replace("$", r"\$").replace("\\", "")
    return text


@functools.cache
def _box(text: str) -> tuple[float, float, float]:
    path = TextPath((0, 0), text, size=_SIZE, prop=FontProperties())
    box = path.get_extents()
    return float(box.x1) / 72, float(box.y0) / 72, float(box.y1) / 72


def _width(text: str) -> float:
    return _box(text)[0] if text else 0.0


def _extents(text: str) -> tuple[float, float]:
    """Return the lowest and the highest ink about the baseline, inches."""
    return _box(text)[1:]


def _height(text: str) -> float:
    low, high = _extents(text)
    return high - low
