"""Texts in pictures: names made safe to draw, shortened to the room there is, ticks kept apart.

Names are drawn with `parse_math=False`, so that a dollar sign in them is a dollar sign.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a search names curves, and does not draw
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.text import Text

#: Points between two texts that stand beside each other.
_APART = 4.0


def one_line(text: str) -> str:
    """Return a text without line breaks and other characters that cannot be drawn."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def brief(text: str, most: int = 24) -> str:
    """Shorten a name to at most so many characters.

    Both of its ends are kept, since names mostly differ there.
    """
    text = one_line(text)
    if len(text) <= most:
        return text
    tail = (most - 1) // 3
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


def briefs(names: Sequence[str], most: int = 24) -> list[str]:
    """Shorten several names as `brief` does, unless the short ones would be the same."""
    short = [brief(name, most) for name in names]
    return short if len(set(short)) == len(set(names)) else [one_line(name) for name in names]


def width(text: Text) -> float:
    """Return the width of a drawn text in pixels."""
    return float(text.get_window_extent().width)


def shorten(text: Text, room: float) -> None:
    """Cut the end of a drawn text off until it takes at most `room` pixels."""
    whole = text.get_text()
    if not whole or width(text) <= room:
        return
    low, high = 0, len(whole)
    while low < high:
        middle = (low + high + 1) // 2
        text.set_text(f"{whole[:middle].rstrip()}…")
        low, high = (middle, high) if width(text) <= room else (low, middle - 1)
    text.set_text(f"{whole[:low].rstrip()}…" if low else "")


def finish_layout(figure: Figure) -> None:
    """Lay a finished figure out, shorten titles that have no room, and keep the labels of ticks
    apart.

    The layout is computed here once, and stays the same when the figure is saved.
    """
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")
    for cell in _cells(figure):
        axes = [axis for axis in cell.axes if axis.get_visible()]
        right = cell.bbox.x1 - _APART
        heading = cell._suptitle
        if heading is not None and cell is not figure:
            left = min(axis.bbox.x0 for axis in axes)
            heading.set_x((left - cell.bbox.x0) / cell.bbox.width)
        titles = [title for axis in axes for title in (axis.title, axis._left_title)]
        for title in (*titles, *([] if heading is None else [heading])):
            shorten(title, right - title.get_window_extent().x0)
        for axis in axes:
            _keep_apart(axis.xaxis)
            _keep_apart(axis.yaxis)


def _cells(figure: Any) -> Iterator[Any]:
    """Yield the figure if it holds axes itself, else each figure within it."""
    if not figure.subfigs:
        yield figure
    for inner in figure.subfigs:
        yield from _cells(inner)


def _keep_apart(axis: Axis) -> None:
    """Remove ticks until labels no longer touch; every second stays, or every third, and so on."""
    axis.get_tightbbox()  # which places the labels
    ticks = axis.get_major_ticks()
    low, high = sorted(axis.get_view_interval())
    slack = 1e-9 * (high - low)
    visible = [
        (float(place), tick.label1 if tick.label1.get_visible() else tick.label2)
        for place, tick in zip(axis.get_majorticklocs(), ticks, strict=False)
        if low - slack <= place <= high + slack
    ]
    visible = [
        (place, label) for place, label in visible if label.get_visible() and label.get_text()
    ]
    if not _touching([label for _, label in visible]):
        return
    for every in range(2, len(visible) + 1):
        kept = visible[::every]
        if not _touching([label for _, label in kept]):
            break
    labels = [(place, label.get_text(), label.get_parse_math()) for place, label in kept]
    parse = all(math for *_, math in labels)
    axis.set_ticks([p for p, *_ in labels], [t for _, t, _ in labels], parse_math=parse)


def _touching(labels: Sequence[Text]) -> bool:
    """Return whether any two neighboring labels touch each other."""
    boxes = [label.get_window_extent() for label in labels]
    return any(
        a.x0 - _APART < b.x1 and b.x0 - _APART < a.x1 and a.y0 < b.y1 and b.y0 < a.y1
        for a, b in pairwise(boxes)
    )
