"""A fit in words: cautions, a paragraph of methods, citations, and numbers as text.

All are plain text; pages escape them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from channelfit.results.citation import cited
from channelfit.results.quality import explained
from channelfit.results.report.page_content import ReportedFit
from channelfit.results.report.traces import Traces
from channelfit.search.agreement import in_words

#: The searches, as a sentence goes on after "searched with".
_SEARCHES = {
    "hybrid": "a scan of random candidates, the best of which were refined by least squares",
    "genetic": "a genetic algorithm",
    "swarm": "a particle swarm",
    "ring": "a particle swarm on a ring",
    "groups": "a particle swarm in groups",
    "differential": "differential evolution",
    "cma": "CMA-ES",
}
_LARGE_CORRELATION = 0.95


def cautions(summary: Mapping[str, Any]) -> list[str]:
    """Return the cautions that a reader of a fit should know, a sentence each."""
    found = [
        f"{row['place']}: {row['value']}; {row['advice']}" for row in summary.get("warnings", ())
    ]
    found += list(summary.get("strange_rates", ()))
    agreement = summary.get("agreement")
    if agreement and not agreement["agree"] and not agreement["perfect"]:
        found.append(f"Independent starts: {agreement_words(summary)}")
    if summary.get("stop_reason") == "interrupted":
        found.append("The search was interrupted: these are the best values until then.")
    uncertainty = summary.get("uncertainty") or {}
    remarks = uncertainty.get("remarks", ())
    as_it_should = ("the residuals look indep", "the standard errors are those of the likelihood")
    found += [remark for remark in remarks if not remark.startswith(as_it_should)]
    failed = summary.get("failed_candidates") or {}
    if failed:
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in failed.items())
        examples = "; ".join(summary.get("failing_examples", ()))
        found.append(f"Candidates failed: {reasons}{f' (such as {examples})' if examples else ''}")
    for one in summary.get("experiments", ()):
        share = one.get("variance_explained")
        if share is not None and share < 0:
            found.append(
                f"{one['protocol']}: the fit follows the recording worse than its mean would"
            )
    for name, row in summary.get("parameters", {}).items():
        if str(row.get("note", "")).startswith("at ") and not any(name in text for text in remarks):
            found.append(f"{name} is {row['note']}")
    return [sentence(text) for text in found]


def agreement_words(summary: Mapping[str, Any]) -> str:
    """Return whether independent starts of the search agree; empty where it had none."""
    found = summary.get("agreement")
    return in_words(found, "pA" if "rms_pA" in summary else None) if found else ""


def channel_words(summary: Mapping[str, Any]) -> str:
    """Return what the fluctuations say of single channels; empty where none were fitted."""
    found = summary.get("channel_noise")
    if not found:
        return ""
    each = []
    for row in found["unitary"]:
        error = "" if row["standard_error"] is None else f" ± {row['standard_error']:.2g}"
        name = f" ({row['name']})" if row.get("name") else ""
        each.append(f"{row['current_pA']:.3g}{error} pA at {row['voltage_mV']:g} mV{name}")
    share = found["predictable"] / found["of_channels"] if found["of_channels"] > 0 else 0.0
    return (
        f"the current of one open channel is {'; '.join(each)}; channels make "
        f"{100 * found['of_channels']:.3g} % of the variance of a sample, of which the samples "
        f"before it tell {100 * share:.3g} %"
    )


def undetermined(summary: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each combination of parameters that the data do not determine."""
    rows = (summary.get("uncertainty") or {}).get("undetermined", ())
    return [sentence(row["text"]) for row in rows]


def large_correlations(summary: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    """Return pairs of parameters that the data determine better in combination than each alone."""
    correlations = (summary.get("uncertainty") or {}).get("correlations")
    if not correlations:
        return []
    names, matrix = correlations["parameters"], correlations["matrix"]
    pairs = [
        (names[i], names[j], float(matrix[i][j]))
        for i in range(len(names))
        for j in range(i)
        if matrix[i][j] is not None and abs(matrix[i][j]) > _LARGE_CORRELATION
    ]
    return sorted(pairs, key=lambda pair: -abs(pair[2]))


def methods(run: ReportedFit) -> str:
    """Return a paragraph for the methods of a paper, with the numbers of this fit in it."""
    summary = run.summary
    parts = [_subject(run), *_data(run), _cost(run), _search(summary), _quality(summary)]
    return " ".join(part for part in parts if part)


def _subject(run: ReportedFit) -> str:
    summary = run.summary
    free = [row for row in summary["parameters"].values() if row.get("note") not in _NOT_FREE]
    n = len(free)
    subject = f"The {n} free parameter{'s' * (n != 1)} of the "
    if run.scheme is None:
        return f"{subject}function {summary['model']} were fitted."
    states = sum(len(chain.states) for chain in run.scheme.chains if not chain.is_gate)
    gates = [chain.name for chain in run.scheme.chains if chain.is_gate]
    parts = [f"{states} states"] if states else []
    parts += [f"the gate{'s' * (len(gates) > 1)} {listed(gates)}"] if gates else []
    model = f"model {summary['model']} ({listed(parts)})"
    source = f", after {bare(run.scheme.source)}," if run.scheme.source else ""
    simulated = summary.get("surrogate") is not None
    to = "currents simulated from known values" if simulated else "voltage-clamp recordings"
    return f"{subject}{model}{source} were fitted to {to}."


#: Notes of parameters that no search has found.
_NOT_FREE = ("fixed", "tied")


def _data(run: ReportedFit) -> list[str]:
    parts = []
    for curve in run.curves:
        text = f"{curve.title}: {np.count_nonzero(np.isfinite(curve.apart))} observed numbers"
        parts.append(text + ", held out of the fit" * curve.held_out)
    for row, panel in zip(run.recorded, run.panels, strict=True):
        n, h = panel.protocol.n_sweeps, panel.protocol.sampling_ms
        text = f"{panel.title}: {n} sweep{'s' * (n != 1)} sampled every {h:g} ms"
        if row.get("recording"):
            text += f" ({bare(row['recording'])})"
        counted, known = _counted(panel)
        if counted < known:
            text += f", of which {counted:,} of {known:,} samples counted"
        if row.get("weight") == 0:
            text += ", held out of the fit"
        conditioning = row.get("conditioning")
        parts.append(text + (f"; {'; '.join(conditioning)}" if conditioning else ""))
    return [f"The data were {'; '.join(parts)}."] if parts else []


def _counted(panel: Traces) -> tuple[int, int]:
    """Return how many samples count, and how many there are."""
    known = sum(panel.protocol.n_times(k) for k in range(panel.protocol.n_sweeps))
    if panel.weight is None:
        return known, known
    return int(np.count_nonzero(panel.weight > 0)), known


def _cost(run: ReportedFit) -> str:
    summary = run.summary
    if "experiments" not in summary:
        return ""
    version = summary["versions"]["channelfit"]
    subject = "the simulated and the recorded current"
    if run.curves:
        both = " and of " + subject if run.panels else ""
        subject = "predicted and observed numbers, in standard errors," + both
    what = (
        "The likelihood of a current that single channels carry (a Kalman filter over the states "
        "of the scheme, after Münch et al. 2022, eLife 11:e62714) was maximized"
        if summary.get("channel_noise")
        else f"The weighted mean square of the difference between {subject} was minimized"
    )
    return (
        f"{what} with channelfit {version}, each parameter within the range given in the "
        f"table ({summary['backend']} backend, {summary['dtype']})."
    )


def _search(summary: Mapping[str, Any]) -> str:
    search = _SEARCHES.get(summary["optimizer"], f"the method {summary['optimizer']}")
    settings = ", ".join(f"{key} {value}" for key, value in summary["settings"].items())
    in_brackets = f" ({settings})" if settings else ""
    text = (
        f"The space was searched with {search}{in_brackets}, beginning with seed "
        f"{summary['seed']}; {summary['evaluations']:,} candidates were scored in "
        f"{summary['seconds']:.3g} s, and the search ended because "
        f"{_ended(summary['stop_reason'])}."
    )
    words = agreement_words(summary)
    return f"{text} {sentence(words)}" if words else text


def _ended(reason: str) -> str:
    return "it was interrupted" if reason == "interrupted" else f"of this rule: {reason}"


def _quality(summary: Mapping[str, Any]) -> str:
    if "rms_pA" not in summary or summary["rms_pA"] is None:
        return ""
    words = channel_words(summary)
    text = sentence(words) + " " if words else ""
    text += f"The root mean square of the residuals was {summary['rms_pA']:.3g} pA"
    share, peak = summary["rms_relative_to_peak"], summary["peak_pA"]
    if share:
        text += f", {100 * share:.2g} % of the largest current of {peak:.4g} pA"
    part = summary["variance_explained"]
    if part is not None and math.isfinite(part):
        text += f"; the fit explains {explained(part)} of the variance"
    return f"{text}.{_errors(summary)}"


def _errors(summary: Mapping[str, Any]) -> str:
    uncertainty = summary.get("uncertainty") or {}
    if "noise_pA" not in uncertainty:
        return ""
    level = f"{100 * uncertainty['level']:g} %"
    noise, time = uncertainty["noise_pA"], uncertainty["correlation_time_samples"]
    if summary.get("channel_noise"):
        from_what = "by the information in the samples"
    elif uncertainty["noise_assumed"]:
        from_what = (
            f"for an assumed noise of {noise:.3g} pA in every sample, since the data have none"
        )
    else:
        from_what = f"for noise of {noise:.3g} pA in every sample, as found in the residuals"
        if "times_as_wide" not in uncertainty and time > 1:  # a run of an earlier version
            from_what += f", and widened for residuals that are correlated over {time:,.0f} samples"
        elif uncertainty.get("correlation_of_neighbors"):
            from_what += ", and from the spectrum of the residuals, which are correlated"
    return (
        f" Standard errors and {level} intervals follow from the curvature of the cost at the fit "
        f"{from_what}."
    )


def citation(run: ReportedFit) -> list[tuple[str, str]]:
    """Return the works to cite, each after its subject, such as "the model"."""
    version = run.summary["versions"]["channelfit"]
    found = [of_the_program(version, str(run.summary.get("finished", "")))]
    if run.scheme is not None and run.scheme.source:
        found.append(("the model", bare(run.scheme.source) + "."))
    for row in run.summary.get("experiments", ()):
        if row.get("protocol_source"):
            found.append((f"the protocol {row['protocol']}", bare(row["protocol_source"]) + "."))
    if run.summary.get("source"):
        found.append(("the data", bare(run.summary["source"]) + "."))
    return list(dict.fromkeys(found))


def of_the_program(version: str, finished: str) -> tuple[str, str]:
    """Return how this program is cited, after a fit that was finished at a moment (ISO 8601, or
    empty).
    """
    return "the program", cited(version, finished[:4])


def sentence(text: str) -> str:
    """Return a text as a sentence; a name at its beginning stays as it is."""
    text = text.strip()
    if text.startswith("the "):
        text = f"T{text[1:]}"
    return text if text.endswith((".", "!", "?")) else f"{text}."


def bare(text: str) -> str:
    """Return a text in one line, without the full stop at its end."""
    return " ".join(text.split()).rstrip(".")


def listed(names: Sequence[str]) -> str:
    """Return names in a sentence: a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


# --- numbers as text ------------------------------------------------------------------------------


def error_text(row: Mapping[str, Any]) -> str:
    """Format a standard error: of the value itself, or relative for a parameter with a log scale.

    A large relative error is given as a factor. "open" stands for an interval that is the whole
    range.

    Arguments:
        row: of one parameter, as in ``summary.json``.
    """
    error, interval = row.get("standard_error"), row.get("interval")
    if error is None or interval is None:
        return ""
    bounds = row["lower"], row["upper"]
    if None not in bounds and interval[0] <= bounds[0] and interval[1] >= bounds[1]:
        return "open"
    relative = row.get("relative_error")
    if relative is None:
        return f"{error:.2g}"
    return f"{100 * relative:.2g} %" if relative < 0.3 else f"factor {math.exp(relative):.2g}"


def quality_texts(figures: Mapping[str, Any], short: bool = False) -> dict[str, str]:
    """Describe how good a fit is beyond its RMS.

    Arguments:
        figures: as `Quality.as_plain` gives them; those that are not numbers are left out.
        short: leave out the words that a table's header says.

    Returns: by the label that stands in front of each figure.
    """
    texts = {}
    share, error = figures["variance_explained"], figures["peak_error_pA"]
    if share is not None and math.isfinite(share):
        worse = ", less than none: the mean of the data would be a better fit" if share < 0 else ""
        texts["explained"] = f"{explained(share)}{'' if short else ' of the variance' + worse}"
    if error is not None and math.isfinite(error):
        of = figures["peak_error_relative"]
        of_peak = f", {100 * of:.3g} % of the largest peak" if of is not None and not short else ""
        off = "" if short else "off by "
        texts["peaks"] = f"{off}{error:.4g} pA{of_peak}"
    return texts


def searched_seeds(summary: Mapping[str, Any]) -> str:
    """Return the seed of a search, or those of all searches, in words: "seeds 0 to 7"."""
    first, n = summary["seed"], summary["settings"].get("seeds", 1)
    return f"seed {first}" if n == 1 else f"seeds {first} to {(first + n - 1) % 2**64}"


def interval_text(value: float, lower: float, upper: float) -> str:
    """Format a value and its interval with as many digits as the interval's width deserves."""
    if not (math.isfinite(lower) and math.isfinite(upper)):
        return f"{value:.4g} (at its bound)"
    half = (upper - lower) / 2
    decimals = max(1 - math.floor(math.log10(half)), 0) if half > 0 else 4

    def written(x: float) -> str:
        before = math.floor(math.log10(abs(x))) + 1 if x != 0 else 1
        digits = min(max(before + decimals, 3), 12)
        text = f"{x:#.{digits}g}" if decimals else f"{x:.{digits}g}"
        return text.removesuffix(".")

    return f"{written(value)} ({written(lower)} to {written(upper)})"
