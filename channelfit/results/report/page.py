"""The report of a fit, or of several beside each other: one page that needs nothing else.

Texts of a user's files are escaped by the templates, and come into no script and no figure.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import to_hex

from channelfit.results.quality import quality
from channelfit.results.report import fit_words, picture_texts, plots, sweeps
from channelfit.results.report import scheme as scheme_drawing
from channelfit.results.report.curve_figures import (
    autocorrelation_figure,
    convergence_figure,
    costs_of,
    family_figures,
)
from channelfit.results.report.observed_curves import curve_table, side_by_side_curves
from channelfit.results.report.page_content import (
    ModelScheme,
    ReportedFit,
    SharedRecording,
    in_range,
    side_by_side,
)
from channelfit.results.report.page_figures import MOST_SAMPLES, Figures, draw_curves, draw_traces
from channelfit.results.report.page_shell import SCRIPT, TEMPLATES, load_parts, page_text, short
from channelfit.results.report.picture_texts import one_line
from channelfit.results.report.plots import styled
from channelfit.results.report.step_families import StepFamily, measured
from channelfit.results.report.traces import Traces
from channelfit.scoring.machine.cache import program, remembered

#: More parameters than this have no table of correlations.
_MOST_CORRELATED = 24


def report_page(runs: Sequence[ReportedFit], files: Sequence[Sequence[str]] = ()) -> str:
    """Return the report of one fit, or of several beside each other, as the text of an HTML file.

    Arguments:
        runs: one or more.
        files: for each run, names of the files beside the page that hold its traces.
    """
    figures = Figures()
    recordings = side_by_side(runs)
    budget = MOST_SAMPLES // max(1, len(recordings))
    files = files or [()] * len(runs)
    context = {
        "several": len(runs) > 1,
        "title": runs[0].title if len(runs) == 1 else f"{len(runs)} fits side by side",
        "fits": [_fit(k, run, own) for k, (run, own) in enumerate(zip(runs, files, strict=True))],
        "experiments": [
            _experiment(figures, runs, k, one, budget) for k, one in enumerate(recordings)
        ],
        "curves": _curves(figures, runs),
        "of_currents": any(run.panels or run.curves for run in runs),
        "together": _together(runs),
        "convergence": _convergence(figures, runs),
        "citation": list(dict.fromkeys(row for run in runs for row in fit_words.citation(run))),
        "version": runs[0].summary["versions"]["channelfit"],
    }
    return page_text(
        TEMPLATES / "report.html",
        context,
        scripts=[SCRIPT, TEMPLATES / "page.js"],
        content=figures.as_plain(),
    )


def prepare(sketch: Traces) -> None:
    """Do what takes longer for the first page than for later ones, before that is wanted.

    Arguments:
        sketch: any traces.
    """
    figures = Figures()
    draw_traces(figures, 0, SharedRecording(sketch, (0,), (0,), ""), MOST_SAMPLES)
    figures.as_plain()
    load_parts(TEMPLATES / "report.html")


# --- sections ------------------------------------------------------------------------------------


def _fit(number: int, run: ReportedFit, files: Sequence[str]) -> dict[str, Any]:
    """Return the texts and tables of one fit.

    Arguments:
        files: names of the files beside the page that hold its traces.
    """
    summary, scheme = run.summary, run.scheme
    return {
        "label": run.label,
        "summary": summary,
        "verdict": _verdict(run),
        "cautions": fit_words.cautions(summary),
        "scheme": None if scheme is None else scheme_svg(scheme, number),
        "rates": None if scheme is None else _rates(scheme),
        "parameters": _parameters(summary),
        "undetermined": fit_words.undetermined(summary),
        "correlations": _correlations(summary),
        "large_correlations": fit_words.large_correlations(summary),
        "agreement": fit_words.agreement_words(summary),
        "provenance": _provenance(summary),
        "files": files,
        "methods": fit_words.methods(run),
    }


def _verdict(run: ReportedFit) -> list[tuple[str, str]]:
    """Return the few numbers that a reader looks for first, each with its name."""
    summary = run.summary
    found: list[tuple[str, str]] = []
    if summary.get("rms_pA") is not None:
        share = summary["rms_relative_to_peak"]
        of_peak = f" ({100 * share:.2g} % of the peak)" if share else ""
        found.append(("RMS of the residuals", f"{short(summary['rms_pA'], 3)} pA{of_peak}"))
        words = fit_words.quality_texts(summary, short=True)
        if "explained" in words:
            found.append(("Variance explained", words["explained"]))
        if said := fit_words.channel_words(summary):
            found.append(
                (
                    "Single channels",
                    said.split(";")[0].removeprefix("the current of one open channel is "),
                )
            )
    else:
        found.append(("Cost", short(summary["cost"], 5)))
    free = [r for r in summary["parameters"].values() if r.get("note") not in ("fixed", "tied")]
    found.append(("Free parameters", str(len(free))))
    uncertainty = summary.get("uncertainty")
    if uncertainty:
        n = len(uncertainty["undetermined"])
        found.append(("Not determined", "nothing" if n == 0 else f"{n}, see below"))
    agreement = summary.get("agreement")
    if agreement:
        arrived, starts = agreement["arrived"], agreement["independent_starts"]
        found.append(("Starts that agree", f"{arrived} of {starts}"))
    return found


@lru_cache
def scheme_svg(scheme: ModelScheme, number: int) -> str:
    """Return the scheme as an SVG element for a page, in the colors of the page.

    It is kept in the cache folder: to set its formulas takes longer than the rest of a report.

    Arguments:
        number: of the picture, by which the ids in it differ from those of others on the page.
    """
    files = (__file__, *(str(module.__file__) for module in (scheme_drawing, plots, picture_texts)))
    made_of = [repr(scheme), str(number), matplotlib.__version__, program(*files)]
    return remembered("schemes", made_of, lambda: _drawn(scheme, number).encode()).decode()


def _drawn(scheme: ModelScheme, number: int) -> str:
    out = io.StringIO()
    with styled({"svg.fonttype": "path", "svg.hashsalt": f"scheme{number}"}):
        scheme_drawing.scheme_figure(scheme).savefig(
            out,
            format="svg",
            transparent=True,
            bbox_inches="tight",
            pad_inches=0.03,
            metadata={"Date": None, "Creator": None},
        )
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"\s*\n\s*", " ", text)
    for color, name in _SCHEME_COLORS.items():
        text = text.replace(color, f"var(--{name})")
    head, rest = text.split(">", 1)
    head = re.sub(r' (width|height)="([\d.]+)pt"', r' data-\1="\2"', head)
    width = float(re.findall(r'data-width="([\d.]+)"', head)[0])
    head = re.sub(r' data-(width|height)="[\d.]+"', "", head)
    style = f'style="width: {width * 96 / 72:.0f}px"'
    return f'{head} {style} aria-hidden="true" focusable="false">{rest}'


#: Colors of a drawn scheme, with their names in the page's style.
_SCHEME_COLORS = {
    "#222222": "ink",
    "#666666": "muted",
    "#ffffff": "paper",
    "#0072b2": "open",
    "#004f7c": "open-edge",
}


def _rates(scheme: ModelScheme) -> list[tuple[str, str, str]]:
    """Return every transition as text: from, to, and its rate."""
    return [
        (t.source, t.target, f"{t.multiplicity}*({t.rate})" if t.multiplicity > 1 else t.rate)
        for chain in scheme.chains
        for t in chain.transitions
    ]


def _experiment(
    figures: Figures, runs: Sequence[ReportedFit], number: int, shared: SharedRecording, budget: int
) -> dict[str, Any]:
    """Return all that a page shows of one recording."""
    traces = shared.traces
    places = draw_traces(figures, number, shared, budget)
    samples = figures.samples[-1]
    key = sweeps.key_of(traces.protocol)
    shades = sweeps.colors(key)
    samples["ramps"] = {
        "light": [to_hex(c) for c in shades],
        "dark": [to_hex((0.3 + 0.7 * r, 0.3 + 0.7 * g, 0.3 + 0.7 * b)) for r, g, b in shades],
    }
    family = measured(traces, shared.reversal_mV)
    first = runs[shared.runs[0]]
    owner = "" if len(shared.runs) == len(runs) else f" ({first.label})"
    row = first.recorded[shared.places[0]]
    labels = [runs[k].label for k in shared.runs]
    values = [f"{value:g}".replace("-", "−") for value in key.values]
    return {
        "number": number,
        "title": f"{one_line(traces.title) or traces.protocol.name}{owner}",
        "description": row.get("protocol_description", ""),
        "recording": row.get("recording", ""),
        "held_out": row.get("weight") == 0,
        "runs": shared.runs,
        "labels": labels,
        "places": places,
        "data": traces.data is not None,
        "membrane": traces.membrane is not None,
        "several": traces.protocol.n_sweeps > 1,
        **{name: samples[name] for name in ("step", "time", "span", "zooms", "thinned", "total")},
        "key": key.label,
        "values": values,
        "shades": list(zip(samples["ramps"]["light"], samples["ramps"]["dark"], strict=True)),
        "order": np.argsort(key.values, kind="stable").tolist(),
        "sweeps": _sweeps(traces, values, key.label, labels if len(runs) > 1 else ()),
        "residuals": _residuals(figures, number, shared),
        "family": _family(figures, number, shared, family),
    }


def _sweeps(
    traces: Traces, values: Sequence[str], key: str, labels: Sequence[str]
) -> dict[str, Any]:
    """Return the table of the numbers of each sweep under each fit: its head and its rows.

    Arguments:
        values: the number that differs between the sweeps, as texts.
        key: the name of this number, with its unit.
        labels: of the fits; empty for a single one, which needs no name.
    """
    has_data = traces.data is not None
    head = ["Sweep", key, *(["Fit"] if labels else [])]
    head += ["Samples", "Largest current, data (pA)"] * has_data
    head += ["Largest current, fit (pA)", *(["RMS of the residual (pA)"] * has_data)]
    rows = []
    for k, value in enumerate(values):
        for place, result in enumerate(traces.results):
            numbers = _sweep_numbers(traces, result, k)
            rows.append([str(k + 1), value, *labels[place : place + 1], *numbers])
    return {"head": head, "rows": rows}


def _sweep_numbers(traces: Traces, result: np.ndarray, k: int) -> list[str]:
    """Return samples, peaks of data and fit, and RMS of a sweep; its peak alone without data."""
    part = slice(k, k + 1)
    if traces.data is None:
        return [short(_peak(result[part]))]
    weight = None if traces.weight is None else traces.weight[part]
    data = traces.data[part]
    found = quality(result[part], data, weight)
    use = traces.counts[part]
    return [
        f"{np.count_nonzero(use):,}",
        short(_peak(np.where(use, data, np.nan))),
        short(_peak(np.where(use, result[part], np.nan))),
        short(found.rms_pA if found.weight else math.nan, 3),
    ]


def _peak(values: np.ndarray) -> float:
    """Return the largest current in size, with its sign; NaN where none is known."""
    known = values[np.isfinite(values)]
    return float(known[np.argmax(np.abs(known))]) if known.size else math.nan


def _residuals(figures: Figures, number: int, shared: SharedRecording) -> dict[str, Any]:
    """Return the autocorrelation of the residuals of an experiment, or why there is none."""
    described = autocorrelation_figure(shared)
    if isinstance(described, str):
        return {"left_out": described}
    figure, found = described
    place = draw_curves(figures, f"e{number}-autocorrelation", figure, height=210)
    rows = [
        [short(float(lag), 3), *(short(one.at(lag), 2) for one in found)]
        for lag in found[0].table_lags_ms
    ]
    return {"place": place, "band": max(one.band for one in found), "table": rows, "left_out": ""}


def _family(
    figures: Figures, number: int, shared: SharedRecording, family: StepFamily | str
) -> dict[str, Any]:
    """Return figures and tables of a family of steps, or why there are none."""
    if isinstance(family, str):
        return {"left_out": [family], "figures": [], "table": []}
    drawn = []
    for k, figure in enumerate(family_figures(family, shared.runs)):
        place = draw_curves(figures, f"e{number}-family{k}", figure)
        notes = [note.replace("-", "−") for note in figure.notes]
        drawn.append({"place": place, "caption": figure.title, "notes": notes})
    head = [f"{family.x_name} ({family.x_unit})"]
    columns: list[np.ndarray] = []
    for curve in family.curves:
        unit_text = f" ({curve.unit})" if curve.unit else ""
        if curve.data is not None:
            head.append(f"{curve.name}, data{unit_text}")
            columns.append(curve.data)
        for run, result in zip(shared.runs, curve.results, strict=True):
            which = f" {run + 1}" if len(shared.runs) > 1 else ""
            head.append(f"{curve.name}, fit{which}{unit_text}")
            columns.append(result)
    x = family.curves[0].x if family.curves else np.empty(0)
    table = [
        [short(float(x[k]), 5), *(short(float(c[k]), 4) for c in columns)] for k in range(len(x))
    ]
    return {"left_out": list(family.left_out), "figures": drawn, "head": head, "table": table}


def _curves(figures: Figures, runs: Sequence[ReportedFit]) -> list[dict[str, Any]]:
    """Return the figures and tables of what was observed."""
    found = []
    for k, (curve, numbers) in enumerate(side_by_side_curves(runs)):
        head, rows = curve_table(curve)
        rms = f"{curve.rms:.3g} standard errors" if math.isfinite(curve.rms) else ""
        found.append(
            {
                "place": draw_curves(figures, f"curve{k}", curve.figure(numbers)),
                "title": one_line(curve.title),
                "rms": rms,
                "held_out": curve.held_out,
                "head": head,
                "table": [[short(number, 5) for number in row] for row in rows],
            }
        )
    return found


def _parameters(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the table of parameters, as text, with where each lies in its range."""
    rows = []
    for name, row in summary["parameters"].items():
        interval, error = row.get("interval"), fit_words.error_text(row)
        value = row["value"]
        text = f"{value:.5g}"
        spread = ""
        if interval and None not in interval:
            value_text, _, inside = fit_words.interval_text(value, *interval).partition(" (")
            text, spread = value_text, inside.rstrip(")")
        rows.append(
            {
                "name": name,
                "value": text.replace("-", "−"),
                "error": error,
                "interval": spread.replace("-", "−"),
                "unit": "" if row["unit"] == "1" else row["unit"],
                "range": "" if row["lower"] is None else f"{row['lower']:.4g} – {row['upper']:.4g}",
                "note": row.get("note", ""),
                "true": f"{row['true_value']:.5g}" if "true_value" in row else "",
                "bar": in_range(name, row),
            }
        )
    return rows


def _together(runs: Sequence[ReportedFit]) -> list[dict[str, Any]]:
    """Return the parameters of several runs: those of one name share a row."""
    names = dict.fromkeys(name for run in runs for name in run.summary["parameters"])
    tables = [{row["name"]: row for row in _parameters(run.summary)} for run in runs]
    rows = []
    for name in names:
        own = [table.get(name) for table in tables]
        unit = next(row["unit"] for row in own if row)
        rows.append({"name": name, "unit": unit, "cells": own})
    return rows


def _correlations(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the table of correlations; None where there is none, or too large a one."""
    found = (summary.get("uncertainty") or {}).get("correlations")
    if not found or not 1 < len(found["parameters"]) <= _MOST_CORRELATED:
        return None
    return {
        "names": found["parameters"],
        "rows": [
            [None if value is None else round(float(value), 2) for value in row]
            for row in found["matrix"]
        ],
    }


def _convergence(figures: Figures, runs: Sequence[ReportedFit]) -> dict[str, Any]:
    """Return the figure and the tables of the lowest cost against the candidates so far."""
    costs, label = costs_of(runs)
    tables = list[list[tuple[str, ...]]]()
    for run, best in zip(runs, costs, strict=True):
        picks = np.unique(np.linspace(0, len(best) - 1, min(len(best), 10)).round().astype(int))
        rows = [(int(run.history[p, 0]), int(run.history[p, 1]), float(best[p])) for p in picks]
        tables.append([(short(n), short(scored), short(cost, 5)) for n, scored, cost in rows])
    figure = convergence_figure(runs)
    place = "" if figure is None else draw_curves(figures, "convergence-plot", figure, height=240)
    return {"place": place, "tables": tables, "of_currents": "RMS" in label}


def _provenance(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the facts with which a fit can be repeated, each with its name."""
    version = ", ".join(f"{name} {text}" for name, text in summary["versions"].items())
    place = summary["machine"]
    settings = ", ".join(f"{key} {value}" for key, value in summary["settings"].items())
    stop = ", ".join(f"{key} {value}" for key, value in (summary.get("stop") or {}).items())
    rows = [
        ("Command", summary.get("command") or "not recorded"),
        ("File", summary["file"]),
        ("Finished", summary.get("finished", "")),
        ("Seed", fit_words.searched_seeds(summary).partition(" ")[2]),
        ("Search", f"{summary['optimizer']}{f' ({settings})' if settings else ''}"),
        ("Rules to stop", stop or "the method's own"),
        ("Stopped since", summary["stop_reason"]),
        (
            "Scored",
            f"{summary['evaluations']:,} candidates in {summary['generations']:,} generations, "
            f"{summary['seconds']:.3g} s",
        ),
        ("Backend", f"{summary['backend']}, {summary['dtype']}"),
        ("Generated code", f"hash {summary.get('source_hash') or 'not recorded'}"),
        ("Versions", version),
        ("Machine", ", ".join(f"{key} {value}" for key, value in place.items())),
    ]
    return [(name, str(text)) for name, text in rows if text]
