"""The page of `channelfit discover`: which schemes follow the data, and where they differ."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from channelfit.discovery.results import Found
from channelfit.results.comparison import NEAR_BIC, comparison_figures
from channelfit.results.report.page import scheme_svg
from channelfit.results.report.page_facts import scheme_of
from channelfit.results.report.page_shell import page_text, short
from channelfit.results.report.plots import COLORS, MUTED, new_figure, styled, write

_TEMPLATE = Path(__file__).parent / "templates" / "discover.html"
#: Schemes that are drawn, that stand in one picture of currents, and rows of the table.
DRAWN, _TOGETHER, _ROWS = 6, 4, 500


def discovery_page(found: Found, summary: Mapping[str, Any]) -> str:
    """Return the page of a discovery as the text of an HTML file.

    Arguments:
        summary: as `Found.summary` gives it.
    """
    compared = found.compared[:DRAWN]
    rows = {row["scheme"]: row for row in found.rows}
    drawn = [
        {
            "name": one.label,
            "graph": one.fit.description,
            "svg": scheme_svg(scheme_of(one.fit.problem.model), f"scheme{k}"),
            "bic": f"{rows[one.label]['bic_difference']:,.1f}",
            "values": [
                (p.name, short(float(value)), p.unit)
                for p, value in zip(one.fit.problem.parameters, one.values, strict=True)
            ],
            "open": summary["undetermined"][one.label],
        }
        for k, one in enumerate(compared)
    ]
    context = {
        "title": summary.get("name", "schemes"),
        "version": summary["versions"]["channelfit"],
        "summary": summary,
        "drawn": drawn,
        "head": [name.replace("_", " ") for name in found.columns],
        "rows": [[_cell(row[name]) for name in found.columns] for row in found.rows[:_ROWS]],
        "near": f"{NEAR_BIC:g}",
        "front": _png(front_figure(found)),
        "currents": [_png(figure) for figure in currents_figures(found)],
        "follows": [
            [row["fitted"], row["to"], *(short(row[k], 3) for k in ("rms", "relative", "ratio"))]
            for row in summary["follows"]
        ],
        "differences": [
            [
                *(row[k] for k in ("schemes", "experiment")),
                *(short(row[k], 3) for k in ("rms", "largest")),
                *(row[k] for k in ("unit", "sweep")),
                *(_cell(row[k]) for k in ("time_ms", "command_mV")),
            ]
            for row in summary["differences"]
        ],
    }
    return page_text(_TEMPLATE, context)


def front_figure(found: Found) -> Figure:
    """Draw the misfit of each scheme against its parameters, and the least of each number."""
    good, rms = [row for row in found.rows if not row["failure"]], found.rms
    with styled():
        figure = new_figure(6.4, 3.8)
        axes = figure.add_subplot()
        for stage, color, size in (("scanned", MUTED, 14), ("fitted", COLORS[0], 26)):
            points = [(r["parameters"], r[rms]) for r in good if r["stage"] == stage]
            if points:
                counts, misfits = zip(*points, strict=True)
                axes.scatter(counts, misfits, s=size, c=color, label=stage, alpha=0.8)
        least: list[tuple[int, float]] = []
        for n, misfit in sorted((row["parameters"], row[rms]) for row in good):
            if not least or misfit < least[-1][1]:
                least.append((n, misfit))
        axes.step(*zip(*least, strict=True), where="post", color=COLORS[1], linewidth=1.2)
        names = {(r["parameters"], r[rms]): r["scheme"] for r in reversed(good)}
        for point in least:
            axes.annotate(names[point], point, xytext=(4, 4), textcoords="offset points", size=7)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(LogFormatter())  # 100 and 60 rather than powers of ten
        axes.yaxis.set_minor_formatter(LogFormatter())
        axes.set_xlabel("free parameters")
        axes.set_ylabel(f"RMS of the residuals, {found.unit}")
        axes.legend()
    return figure


def currents_figures(found: Found) -> list[Figure]:
    """Draw the data with the schemes near the best one, or the next: recordings, observations."""
    shown = found.near if len(found.near) > 1 else found.best[:2]
    near = [found.compared[found.best.index(k)] for k in shown[:_TOGETHER]]
    return comparison_figures(near, ", ".join(one.label for one in near))


def _png(figure: Figure) -> str:
    """Return a figure as the address of an image in a page."""
    out = io.BytesIO()
    write(figure, out)
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode('ascii')}"


def _cell(value: Any) -> Any:
    return "" if value is None else short(value, 5) if isinstance(value, float) else value
