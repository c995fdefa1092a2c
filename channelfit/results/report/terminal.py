"""Progress and tables of the command line.

Progress goes to standard error and results go to standard output, so that each can be piped
without the other.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from channelfit.reading.errors import Caution, printable
from channelfit.search.loop import Progress, StopRules

#: Seconds between two plain lines.
_LINE_EVERY = 5.0
_BARS = "▁▂▃▄▅▆▇█"
_SPARK = 16
#: Failures that are reported one by one.
_FAILURES = 20
#: Reasons of failures that a summary lists.
REASONS = 8


def duration(seconds: float) -> str:
    """Format a time in seconds as 0:07, 12:30 or 2:05:00."""
    whole = max(0, math.ceil(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def short_number(value: float) -> str:
    """Format a number with four digits, and without an exponent where it is short enough.

    Infinity, the cost before any candidate had one, reads "none yet".
    """
    if not math.isfinite(value):
        return "none yet" if value > 0 else str(value)
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"


class PlainConsole(Console):
    """A console on which no text, such as a description from a file, can control the terminal.

    Control sequences of Rich itself, for colors and a changing picture, are written as they are.
    """

    def on_broken_pipe(self) -> None:
        """Raise the error of a closed pipe, where Rich would end the program."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments that are written, their texts made printable."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


@dataclass(frozen=True)
class Counted:
    """The progress of work that can be counted, such as tasks.

    Attributes:
        done, total: how many of `unit`, such as "data sets", are done, and of how many.
        seconds: since the work began.
        seconds_left: an estimate from the pace of this process; None while there is none.
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
        """Return whether all of the work is done."""
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
    """The progress of a search: a changing picture on a terminal, else lines now and then.

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
        """Return whether the changing picture is on the terminal now."""
        return self._live is not None

    def pause(self) -> None:
        """Take the changing picture off the terminal."""
        if self._live:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """Print a line that stays, unless the screen is quiet."""
        if not self.quiet:
            self.console.print(text, soft_wrap=True, markup=False)

    def warn(self, cautions: Iterable[Caution]) -> None:
        """Print cautions about model and data, one line each.

        They are printed even on a quiet screen.
        """
        for caution in cautions:
            SearchScreen.warn_of(self, str(caution))

    def warn_of(self, text: str) -> None:
        """Print a caution that is a sentence, in the same way."""
        line = Text.assemble(("Warning: ", "bold yellow"), text)
        self.console.print(line, soft_wrap=True)

    def begin(self, stage: str) -> None:
        """Show the stage that begins, at times when no search is under way."""
        self.stage, self._began, self.last = stage, time.perf_counter(), None
        self.counted = None

    def count(self, counted: Counted) -> None:
        """Show the progress of work that can be counted."""
        self.counted, now = counted, time.monotonic()
        if self._counted_at is None:  # work of a few seconds shows no count
            self._counted_at = now
        due = now - max(self._said_at, self._counted_at) >= _LINE_EVERY
        last = counted.ended and (self._failures or self._said_at >= self._counted_at)
        if self._live is None and (due or last):
            self.say(str(counted))
            self._said_at = now

    def fail(self, name: str, reason: str, count: int = 1) -> None:
        """Report a task that has no result, as it happens; the first ones by name.

        Arguments:
            name: of the task, such as that of a well.
            count: how many of its parts failed, such as data sets.
        """
        self._failures += 1
        if self._failures <= _FAILURES:
            many = f"{count:,} of " if count > 1 else ""
            self.say(f"failed: {many}{name}: {reason}")
        elif self._failures == _FAILURES + 1:
            self.say("failed: more, which are counted and stand in the results")

    def update(self, progress: Progress) -> None:
        """Show the progress of a search after each generation."""
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
            f"{short_number(progress.candidates_per_second)} candidates/s",
            f"{duration(left)} left" if left is not None else f"{duration(progress.seconds)}",
        ]
        return ", ".join(parts)

    def _costs_in_words(self, cost: float) -> list[str]:
        if not self.of_currents:
            return [f"best cost {short_number(cost)}"]
        return [f"best cost {short_number(cost)} pA^2", f"RMS {short_number(math.sqrt(cost))} pA"]

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
        if p.seconds_left is not None:  # else the end is not known
            done = p.seconds / (p.seconds + p.seconds_left)
            width = min(40, self.console.width // 2)
            cells.insert(0, ProgressBar(total=1.0, completed=done, width=width))
        bar.add_row(*cells)
        speed = short_number(p.candidates_per_second)
        remaining = "" if left is None else f", {duration(left)} left"
        rows = [
            ("best", f"{', '.join(self._costs_in_words(p.best_cost))}  {self._spark()}"),
            ("speed", f"{speed} candidates/s, {p.evaluations:,} scored"),
            ("time", f"{duration(passed)}{remaining}  (Ctrl-C stops and keeps the best)"),
        ]
        lines = [Text.assemble((f"{name:<7}", "dim"), words, no_wrap=True) for name, words in rows]
        return Group(bar, *lines)

    def _counted_picture(self, counted: Counted) -> RenderableType:
        """Build the picture of work that can be counted."""
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


# --- results -----------------------------------------------------------------------------------


def show(*parts: RenderableType) -> None:
    """Print results: a table with an empty line behind it, a text on a line that is not folded."""
    console = PlainConsole(highlight=False)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str), markup=False)
        if not isinstance(part, str):
            console.print()


def reason_lines(counts: Sequence[tuple[str, int]]) -> list[str]:
    """Return the most frequent reasons of failures as lines, and how many more there are."""
    lines = [f"  {count:,}: {reason}" for reason, count in counts[:REASONS]]
    more = len(counts) - REASONS
    return lines + ([f"  and {more} more reasons, in the table"] if more > 0 else [])


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
        # the first column names the rows, so it is the last to be folded
        out.add_column(Text(header), justify="left" if k in left else "right", no_wrap=k == 0)
    for row in rows:
        out.add_row(*(Text(cell) for cell in row))
    return out
