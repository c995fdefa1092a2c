"""What the command line shows: the progress of a search, and tables of its results.

Progress goes to standard error and results go to standard output, so that each can be piped
without the other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from channelfit.reading.cautions import Caution
from channelfit.reading.texts import printable
from channelfit.results.report.quality import explained
from channelfit.scoring.machine.launch_tuning import Measured, fastest
from channelfit.search.agreement import in_words
from channelfit.search.loop import Progress, StopRules

#: Seconds between two plain lines.
_LINE_EVERY = 5.0
_BARS = "▁▂▃▄▅▆▇█"
_SPARK = 16
#: Failures that are told one by one.
_FAILURES = 20


def duration(seconds: float) -> str:
    """Format a time in seconds as 0:07, 12:30 or 2:05:00."""
    whole = max(0, math.ceil(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def number(value: float) -> str:
    """Format a number with four digits, and without an exponent where it is short enough.

    Infinity, the cost before any candidate had one, reads "none yet".
    """
    if not math.isfinite(value):
        return "none yet" if value > 0 else str(value)
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"


class PlainConsole(Console):
    """A console on which no text, such as a description from a file, can steer the terminal.

    What rich itself adds, colors and the moves of a changing picture, is no part of such text.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The pieces that are written, their texts made printable."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


@dataclass(frozen=True)
class Counted:
    """How far work in pieces is.

    Attributes:
        done, total: how many of `unit`, such as "data sets", are done and wanted.
        seconds: since the work began.
        seconds_left: at the pace of what this process has done; None while there is none.
        failed: how many of those that are done have no result.
        kept: how many an earlier process had done.
    """

    done: float
    total: float
    unit: str
    seconds: float
    seconds_left: float | None
    failed: int = 0
    kept: float = 0

    @property
    def ended(self) -> bool:
        """Whether all is done."""
        return self.done >= self.total

    def __str__(self) -> str:
        left = self.seconds_left
        parts = [
            f"{_count(self.done)} of {_count(self.total)} {self.unit} done",
            *([f"{self.failed:,} failed"] if self.failed else []),
            *([f"{_count(self.kept)} by an earlier run"] if self.kept else []),
            f"{duration(left)} left" if left and not self.ended else duration(self.seconds),
        ]
        return ", ".join(parts)


def _count(n: float) -> str:
    return f"{n:,}" if isinstance(n, int) else f"{n:.5g}"


class SearchScreen:
    """Shows the progress of a search: a changing picture on a terminal, else lines now and then.

    Arguments:
        title: the model, the optimizer and the seed in a few words.
        quiet: show no progress at all; warnings are shown nevertheless.
        console: where to write; None for standard error.
    """

    def __init__(self, title: str, quiet: bool = False, console: Console | None = None) -> None:
        self.title, self.quiet = title, quiet
        self.console = console or PlainConsole(stderr=True, highlight=False)
        self.stage = "reading the files"
        self.rules = StopRules()
        #: Whether a cost is a mean square of currents; else it is a plain number.
        self.of_currents = True
        self.last: Progress | None = None
        self.counted: Counted | None = None
        self._failures = 0
        self._counted_at: float | None = None
        self._costs: list[float] = []
        self._began = time.perf_counter()
        self._said_at = -math.inf
        self._live: Live | None = None

    def __enter__(self) -> SearchScreen:
        if self.console.is_terminal and not self.quiet:
            self._live = Live(
                console=self.console,
                get_renderable=self.picture,
                refresh_per_second=8,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.pause()

    @property
    def live(self) -> bool:
        """Whether the changing picture is on the terminal now."""
        return self._live is not None

    def pause(self) -> None:
        """Take the changing picture off the terminal."""
        if self._live:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """Print a line that stays, unless quiet was asked for."""
        if not self.quiet:
            self.console.print(text, soft_wrap=True, markup=False)

    def warn(self, cautions: Iterable[Caution]) -> None:
        """Print cautions about model and data, one line each.

        They are printed even where quiet was asked for.
        """
        for caution in cautions:
            SearchScreen.warn_of(self, str(caution))

    def warn_of(self, text: str) -> None:
        """Print a caution that is a sentence, in the same way."""
        told = Text.assemble(("Warning: ", "bold yellow"), text)
        self.console.print(told, soft_wrap=True)

    def begin(self, stage: str) -> None:
        """Show what is being done now, at times when no search is under way."""
        self.stage, self._began, self.last = stage, time.perf_counter(), None
        self.counted = None

    def count(self, counted: Counted) -> None:
        """Take in how far work in pieces is."""
        self.counted, now = counted, time.monotonic()
        if self._counted_at is None:  # what ends within seconds is not told of
            self._counted_at = now
        due = now - max(self._said_at, self._counted_at) >= _LINE_EVERY
        last = counted.ended and (self._failures or self._said_at >= self._counted_at)
        if self._live is None and (due or last):
            self.say(str(counted))
            self._said_at = now

    def fail(self, name: str, reason: str, count: int = 1) -> None:
        """Tell that a piece of the work has no result, as it happens; the first ones by name.

        Arguments:
            name: of the piece, such as that of a well. count: how many things in it failed.
        """
        self._failures += 1
        if self._failures <= _FAILURES:
            many = f"{count:,} of " if count > 1 else ""
            self.say(f"failed: {many}{name}: {reason}")
        elif self._failures == _FAILURES + 1:
            self.say("failed: more, which are counted and stand in the results")

    def update(self, progress: Progress) -> None:
        """Take in the progress of a search after each generation."""
        self.last, self.counted = progress, None
        self._costs.append(progress.best_cost)
        now = time.monotonic()
        if self._live is None and (now - self._said_at >= _LINE_EVERY or self._is_last(progress)):
            self.say(self.line(progress))
            self._said_at = now

    def _is_last(self, progress: Progress) -> bool:
        return progress.generation == self.rules.generations or progress.seconds_left == 0

    def line(self, progress: Progress) -> str:
        """Describe the state of the search in one line."""
        left = progress.seconds_left
        parts = [
            self._where(progress),
            *self._costs_in_words(progress.best_cost),
            f"{number(progress.candidates_per_second)} candidates/s",
            f"{duration(left)} left" if left is not None else f"{duration(progress.seconds)}",
        ]
        return ", ".join(parts)

    def _costs_in_words(self, cost: float) -> list[str]:
        if not self.of_currents:
            return [f"best cost {number(cost)}"]
        return [f"best cost {number(cost)} pA^2", f"RMS {number(math.sqrt(cost))} pA"]

    def _where(self, progress: Progress) -> str:
        of = f" of {self.rules.generations}" if self.rules.generations else ""
        stage = f"{progress.stage}, " if progress.stage else ""
        return f"{stage}generation {progress.generation}{of}"

    def picture(self) -> RenderableType:
        """Build the picture that changes on a terminal."""
        if self.counted is not None:
            return self._counted_picture(self.counted)
        if self.last is None:
            since = duration(time.perf_counter() - self._began)
            return Text(f"{self.stage} .. {since}", style="cyan", no_wrap=True)
        p = self.last
        passed = max(time.perf_counter() - self._began, p.seconds)
        left = None if p.seconds_left is None else p.seconds_left - (passed - p.seconds)
        bar = Table.grid(padding=(0, 1), expand=False)
        cells: list[RenderableType] = [self._where(p)]
        if p.seconds_left is not None:  # else nobody knows the end
            done = p.seconds / (p.seconds + p.seconds_left)
            width = min(40, self.console.width // 2)
            cells.insert(0, ProgressBar(total=1.0, completed=done, width=width))
        bar.add_row(*cells)
        speed = number(p.candidates_per_second)
        remaining = "" if left is None else f", {duration(left)} left"
        rows = [
            ("best", f"{', '.join(self._costs_in_words(p.best_cost))}  {self._spark()}"),
            ("speed", f"{speed} candidates/s, {p.evaluations:,} scored"),
            ("time", f"{duration(passed)}{remaining}  (Ctrl-C stops and keeps the best)"),
        ]
        lines = [Text.assemble((f"{name:<7}", "dim"), words, no_wrap=True) for name, words in rows]
        return Group(bar, *lines)

    def _counted_picture(self, counted: Counted) -> RenderableType:
        """Build the picture of work in pieces."""
        width = min(40, self.console.width // 2)
        bar = Table.grid(padding=(0, 1), expand=False)
        bar.add_row(
            ProgressBar(total=max(counted.total, 1e-300), completed=counted.done, width=width),
            Text(str(counted), no_wrap=True),
        )
        return Group(Text(self.stage, style="cyan", no_wrap=True), bar)

    def _spark(self) -> str:
        """Draw the course of the best cost, on a logarithmic scale, in one line of block
        characters.
        """
        costs = [c for c in self._costs if 0 < c < math.inf]
        if len(costs) < 2 or (self.console.encoding or "").lower() not in ("utf-8", "utf8"):
            return ""
        n = min(_SPARK, len(costs))
        logs = [math.log(costs[(k + 1) * len(costs) // n - 1]) for k in range(n)]
        low, high = min(logs), max(logs)
        step = (high - low) / (len(_BARS) - 1) or 1.0
        return "".join(_BARS[round((x - low) / step)] for x in logs)


# --- tables ------------------------------------------------------------------------------------


def table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,)
) -> Table:
    """Build a table of aligned columns with a rule under the headers.

    Arguments:
        headers: one for each column.
        rows: the cells of each row.
        left: columns, counted from 0, that are aligned to the left; all others are to the right.
    """
    out = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for k, header in enumerate(headers):
        # the first column is what a reader looks for, so it is the last to be folded
        out.add_column(Text(header), justify="left" if k in left else "right", no_wrap=k == 0)
    for row in rows:
        out.add_row(*(Text(cell) for cell in row))
    return out


def result_table(parameters: Mapping[str, Mapping[str, Any]]) -> Table:
    """Build the table of fitted parameters.

    It has standard errors where they are known, and the true values where the data were simulated.

    Arguments:
        parameters: by name, as in ``summary.json``.
    """
    known = any("true_value" in row for row in parameters.values())
    sure = any("standard_error" in row for row in parameters.values())
    headers = [
        "parameter",
        "value",
        *(["±"] if sure else []),
        *(["true value"] if known else []),
        "unit",
        "range",
        "",
    ]
    rows = []
    for name, row in parameters.items():
        error = [error_text(row)] if sure else []
        true = [f"{row['true_value']:.6g}"] if known else []
        lower = row["lower"]
        span = "" if lower is None else f"{lower:.4g} .. {row['upper']:.4g}"
        rows.append(
            [name, f"{row['value']:.6g}", *error, *true, row["unit"], span, row.get("note", "")]
        )
    unit = 2 + known + sure
    return table(headers, rows, left=(0, unit, unit + 1, unit + 2))


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


def result_lines(summary: Mapping[str, Any]) -> list[str]:
    """Describe in a few lines how good the fit is, how sure it is, and what the search did."""
    return [*_costs(summary), *sure_lines(summary.get("uncertainty")), *_search(summary)]


def sure_lines(uncertainty: Mapping[str, Any] | None) -> list[str]:
    """Describe what the data do not determine, and what the standard errors rest on."""
    if not uncertainty:
        return []
    lines = [f"open       {row['text']}" for row in uncertainty["undetermined"]]
    return lines + [f"errors     {remark}" for remark in uncertainty["remarks"]]


def _costs(summary: Mapping[str, Any]) -> list[str]:
    if "experiments" not in summary:  # a function
        error = summary["rms_error"]
        root = [] if error is None else [f"RMS        {error:.4g}, root of the cost"]
        return [*root, f"cost       {summary['cost']:.6g}"]
    share = summary["rms_relative_to_peak"]
    of_peak = (
        f", {100 * share:.3g} % of the data's peak of {summary['peak_pA']:.4g} pA" if share else ""
    )
    lines = [
        f"RMS        {summary['rms_pA']:.4g} pA{of_peak}",
        *(f"{name:<10} {text}" for name, text in quality_texts(summary).items()),
        f"cost       {summary['cost']:.6g} pA^2",
    ]
    if len(summary["experiments"]) > 1:
        for k, one in enumerate(summary["experiments"]):
            rest = "".join(f"; {name} {text}" for name, text in quality_texts(one, True).items())
            head = "each" if k == 0 else ""
            told = (one["protocol"], one.get("cell"), one.get("temperature"))
            title = ", ".join(filter(None, told))
            lines.append(f"{head:<10} {title} {one['rms_pA']:.4g} pA{rest}")
    if summary["dtype"] != "float64":
        apart = summary["largest_deviation_from_float64_pA"]
        lines.append(
            "float64    the best candidate was scored again with it; "
            f"{summary['dtype']} was off by at most {apart:.2g} pA"
        )
    return lines


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


def _search(summary: Mapping[str, Any]) -> list[str]:
    lines = [
        f"stopped    {summary['stop_reason']}",
        *_starts(summary),
        f"search     {summary['evaluations']:,} candidates in {summary['seconds']:.3g} s "
        f"({number(summary['candidates_per_second'])} a second), seed {summary['seed']}",
    ]
    failed = summary["failed_candidates"]
    if failed:
        lines.append(f"failed     {', '.join(f'{n:,} {what}' for what, n in failed.items())}")
    lines += [f"           such as {example}" for example in summary.get("failing_examples", ())]
    lines += [f"note       {note}" for note in summary.get("strange_rates", ())]
    return lines


def _starts(summary: Mapping[str, Any]) -> list[str]:
    """Say whether independent starts of the search agree; nothing where it had none."""
    found = summary.get("agreement")
    if not found:
        return []
    return [f"starts     {in_words(found, 'pA' if 'rms_pA' in summary else None)}"]


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
    predicted = sorted({name for fit in fits for name in fit["predicted_rms_pA"]})
    headers = [
        "fit",
        "free",
        "RMS (pA)",
        *(f"held out: {name}" for name in predicted),
        "AIC",
        "weight",
        "BIC",
        "weight",
    ]
    rows = []
    for fit in fits:
        held_out = [f"{fit['predicted_rms_pA'].get(name, math.nan):.4g}" for name in predicted]
        rows.append(
            [
                fit["label"],
                str(fit["free_parameters"]),
                f"{fit['rms_pA']:.4g}",
                *held_out,
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


def print_launches(rows: Sequence[Measured], n_candidates: int) -> None:
    """Print every launch that was measured; the fastest of each kernel is marked.

    Arguments:
        n_candidates: how many candidates each of them scored.
    """
    best = {row.kernel: fastest(rows, row.kernel) for row in rows}
    table = Table()
    for heading in ("kernel", "threads", "jobs", "time", "candidates/s", "occupancy", ""):
        table.add_column(heading, justify="left" if heading in ("kernel", "") else "right")
    for row in rows:
        runs = math.isfinite(row.seconds)
        table.add_row(
            row.kernel,
            str(row.launch.threads),
            "" if row.launch.jobs is None else str(row.launch.jobs),
            f"{1e3 * row.seconds:.4g} ms" if runs else "refused",
            f"{n_candidates / row.seconds:,.0f}" if runs else "",
            f"{100 * row.occupancy:.0f} %" if math.isfinite(row.occupancy) else "",
            "fastest" if row is best[row.kernel] else "",
        )
    PlainConsole(highlight=False).print(table)
