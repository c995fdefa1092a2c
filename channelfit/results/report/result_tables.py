"""Results as tables and lines for a terminal: of a fit, of a study and of a comparison of fits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from channelfit.results.report.fit_words import (
    agreement_words,
    channel_words,
    error_text,
    quality_texts,
    searched_seeds,
)
from channelfit.results.report.observed_curves import curve_lines
from channelfit.results.report.terminal import short_number, table


def result_table(parameters: Mapping[str, Mapping[str, Any]]) -> Table:
    """Build the table of fitted parameters.

    It has standard errors where they are known, and true values where the data were simulated.

    Arguments:
        parameters: by name, as in ``summary.json``.
    """
    with_true = any("true_value" in row for row in parameters.values())
    with_errors = any("standard_error" in row for row in parameters.values())
    headers = [
        "parameter",
        "value",
        *(["±"] if with_errors else []),
        *(["true value"] if with_true else []),
        "unit",
        "range",
        "",
    ]
    rows = []
    for name, row in parameters.items():
        error = [error_text(row)] if with_errors else []
        true = [f"{row['true_value']:.6g}"] if with_true else []
        lower = row["lower"]
        span = "" if lower is None else f"{lower:.4g} .. {row['upper']:.4g}"
        rows.append(
            [name, f"{row['value']:.6g}", *error, *true, row["unit"], span, row.get("note", "")]
        )
    unit = 2 + with_true + with_errors
    return table(headers, rows, left=(0, unit, unit + 1, unit + 2))


def result_lines(summary: Mapping[str, Any]) -> list[str]:
    """Describe in a few lines the quality of a fit, its uncertainty, and the search."""
    return [*_costs(summary), *uncertainty_lines(summary.get("uncertainty")), *_search(summary)]


def uncertainty_lines(uncertainty: Mapping[str, Any] | None) -> list[str]:
    """Describe which parameters the data do not determine, and remarks on the standard errors."""
    if not uncertainty:
        return []
    lines = [f"open       {row['text']}" for row in uncertainty["undetermined"]]
    return lines + [f"errors     {remark}" for remark in uncertainty["remarks"]]


def _costs(summary: Mapping[str, Any]) -> list[str]:
    if "experiments" not in summary:  # a function
        error = summary["rms_error"]
        root = [] if error is None else [f"RMS        {error:.4g}, root of the cost"]
        return [*root, f"cost       {summary['cost']:.6g}"]
    curves = curve_lines(summary["experiments"])
    if "rms_pA" not in summary:
        mean = "the mean square of fit less observed, in standard errors"
        return [f"cost       {summary['cost']:.6g}, {mean}", *curves]
    share = summary["rms_relative_to_peak"]
    of_peak = (
        f", {100 * share:.3g} % of the data's peak of {summary['peak_pA']:.4g} pA" if share else ""
    )
    lines = [
        f"RMS        {summary['rms_pA']:.4g} pA{of_peak}",
        *(f"{name:<10} {text}" for name, text in quality_texts(summary).items()),
        f"cost       {summary['cost']:.6g} pA^2{' of recordings and observations' * bool(curves)}",
    ]
    if words := channel_words(summary):
        lines.append(f"channels   {words}")
    lines += curves
    recorded = [one for one in summary["experiments"] if "observations" not in one]
    if len(summary["experiments"]) > 1:
        for k, one in enumerate(recorded):
            rest = "".join(f"; {name} {text}" for name, text in quality_texts(one, True).items())
            head = "each" if k == 0 else ""
            parts = (one["protocol"], one.get("cell"), one.get("temperature"))
            title = ", ".join(filter(None, parts))
            lines.append(f"{head:<10} {title} {one['rms_pA']:.4g} pA{rest}")
    if summary["dtype"] != "float64":
        apart = summary["largest_deviation_from_float64_pA"]
        lines.append(
            "float64    the best candidate was scored again with it; "
            f"{summary['dtype']} was off by at most {apart:.2g} pA"
        )
    return lines


def _search(summary: Mapping[str, Any]) -> list[str]:
    agreement = agreement_words(summary)
    lines = [
        f"stopped    {summary['stop_reason']}",
        *([f"starts     {agreement}"] if agreement else []),
        f"search     {summary['evaluations']:,} candidates in {summary['seconds']:.3g} s "
        f"({short_number(summary['candidates_per_second'])} a second), {searched_seeds(summary)}",
    ]
    failed = summary["failed_candidates"]
    if failed:
        lines.append(
            f"failed     {', '.join(f'{n:,} candidates {what}' for what, n in failed.items())}"
        )
    lines += [f"           such as {example}" for example in summary.get("failing_examples", ())]
    lines += [f"note       {note}" for note in summary.get("strange_rates", ())]
    return lines


def profile_table(summary: Mapping[str, Any]) -> Table:
    """Build a table of intervals from the curvature, from profiles and from the posterior.

    An end in parentheses is that of the parameter's range: the interval may reach further.

    Arguments:
        summary: as ``uncertainty.json`` holds it.
    """
    profiles = summary.get("profiles", {})
    posterior = summary.get("posterior", {}).get("parameters", {})
    headers = [
        "95 % interval",
        "curvature",
        *(["profile"] if profiles else []),
        *(["posterior"] if posterior else []),
    ]
    rows = []
    for name, row in summary["parameters"].items():
        if row.get("note") == "fixed":
            continue
        cells = [name, _interval(row.get("interval"))]
        if profiles:
            own = profiles.get(name, {})
            cells.append(
                _interval(own.get("interval"), own.get("open_below"), own.get("open_above"))
            )
        if posterior:
            cells.append(_interval(posterior.get(name, {}).get("interval")))
        rows.append(cells)
    out = table(headers, rows, left=(0, 1, 2, 3))
    if any("(" in cell for row in rows for cell in row[2:3]):
        out.caption, out.caption_justify = "(an end of the range in parentheses)", "left"
    return out


def _interval(
    ends: Sequence[float | None] | None, open_below: bool = False, open_above: bool = False
) -> str:
    """Format the two ends of an interval; an end that the range cut off is in parentheses."""
    if ends is None or None in ends:
        return ""
    lower, upper = (f"{end:.4g}" for end in ends)
    lower = f"({lower})" if open_below else lower
    return f"{lower} .. {f'({upper})' if open_above else upper}"


def family_lines(families: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say how many families of equally good fits there are, and how many fits each has.

    Arguments:
        families: as ``uncertainty.json`` holds them.
    """
    if len(families) == 1:
        n = families[0]["fits"]
        what = (
            "no other fit as good as this one was found"
            if n == 1
            else f"{n} equally good fits, between any two of which there is a way of good fits"
        )
        return [f"families   one: {what}"]
    each = ", ".join(
        f"{f['fits']} fit{'s' * (f['fits'] > 1)} (chi square {f['least_chi_square']:.2g})"
        for f in families
    )
    return [f"families   {len(families)}, with no way of good fits from one to another: {each}"]


def comparison_table(fits: Sequence[Mapping[str, Any]]) -> Table:
    """Build the table of schemes that were fitted to the same data, in the order given.

    Arguments:
        fits: as `comparison.as_plain` gives them.
    """
    of_currents = "rms_pA" in fits[0]  # all are fits to the same data
    head, key = ("RMS (pA)", "rms_pA") if of_currents else ("RMS (errors)", "rms_in_errors")
    kinds = [
        ("predicted_rms_pA", "held out: {} (pA)"),
        ("predicted_rms_in_errors", "held out: {} (errors)"),
    ]
    if of_currents:  # observations beside recordings
        kinds.insert(0, ("fitted_rms_in_errors", "{} (errors)"))
    apart = [
        (kind, name, words.format(name))
        for kind, words in kinds
        for name in sorted({name for fit in fits for name in fit[kind]})
    ]
    headers = [
        "fit",
        "free",
        head,
        *(words for *_, words in apart),
        "AIC",
        "weight",
        "BIC",
        "weight",
    ]
    rows = []
    for fit in fits:
        each = [f"{fit[kind].get(name, math.nan):.4g}" for kind, name, _ in apart]
        rows.append(
            [
                fit["label"],
                str(fit["free_parameters"]),
                f"{fit[key]:.4g}",
                *each,
                _difference(fit["aic_difference"]),
                f"{100 * fit['aic_weight']:.3g} %",
                _difference(fit["bic_difference"]),
                f"{100 * fit['bic_weight']:.3g} %",
            ]
        )
    return table(headers, rows)


def comparison_quality(fits: Sequence[Mapping[str, Any]]) -> Table:
    """Build a table of the variance that each scheme explains and of the errors of its peaks."""
    texts = [quality_texts(fit, short=True) for fit in fits]
    rows = [
        [fit["label"], own.get("explained", ""), own.get("peaks", "")]
        for fit, own in zip(fits, texts, strict=True)
    ]
    return table(["fit", "variance explained", "peaks off by"], rows)


def _difference(value: float | None) -> str:
    if value is None:
        return "infinite"
    return "best" if value == 0 else f"+{value:.4g}"


def comparison_parameters(fits: Sequence[Mapping[str, Any]]) -> Table:
    """Build a table of the parameters of all schemes; those of one name share a row."""
    names = list(dict.fromkeys(name for fit in fits for name in fit["parameters"]))
    rows = []
    for name in names:
        own = [fit["parameters"].get(name) for fit in fits]
        unit = next(row["unit"] for row in own if row)
        rows.append([name, *(f"{row['value']:.5g}" if row else "" for row in own), unit])
    return table(
        ["parameter", *(fit["label"] for fit in fits), "unit"], rows, left=(0, len(fits) + 1)
    )
