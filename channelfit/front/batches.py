"""`fit_batch`: one model, fitted to many recordings, each on its own."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.batch import run as batches
from channelfit.batch.results import SUMMARY
from channelfit.batch.run import BatchListener, BatchProgress, BatchRequest
from channelfit.batch.search import SearchProgress, SearchSettings
from channelfit.batch.table import WellTable
from channelfit.batch.where import chosen
from channelfit.front.interrupts import all_is_done, held
from channelfit.front.json_lines import JsonLines
from channelfit.front.progress import compilations_shown, screen_for
from channelfit.front.table import table_of
from channelfit.reading.documents import read_json
from channelfit.reading.errors import Caution, InputError
from channelfit.reading.memory import nothing_collected
from channelfit.reading.texts import names_in
from channelfit.results.report import terminal
from channelfit.results.report.terminal import Counted
from channelfit.results.run_folder import RunFolder

#: Seconds from one line about the rounds of a population to the next.
_SAY_EVERY = 10.0


class Batch:
    """The fits of many recordings with one model, a row for each well.

    Attributes:
        folder: where the results are; None where they were not kept.
        summary: how many wells are good, why others are not, medians, and what repeats the batch.

    Example:
        >>> import json
        >>> import channelfit as cf
        >>> import numpy as np
        >>> from pathlib import Path
        >>> for well, gmax in (("A01", 3.0), ("A02", 6.0)):  # in place of recordings
        ...     steps, values = "protocols/activation.yaml", {"gmax": gmax}
        ...     np.save(well, cf.simulate("models/model_b.yaml", steps, values=values).current)
        >>> recording = {"file": "any.npy", "sampling": "0.1 ms",
        ...              "current": {"columns": "all", "unit": "pA"}}
        >>> fit = {"model": "models/model_b.yaml",
        ...        "parameters": {name: {"fixed": True} for name in ("z12", "z21", "z23")},
        ...        "fit": {"experiments": [{"protocol": steps, "recording": recording}]}}
        >>> _ = Path("fit.yaml").write_text(json.dumps(fit))
        >>> _ = cf.fit_batch("fit.yaml", "A*.npy", folder="plate", progress=False)
        >>> found = cf.Batch.load("plate")
        >>> len(found)
        2
        >>> list(found.where("gmax > 5").table["gmax"].round(3))
        [6.0]
    """

    def __init__(
        self,
        wells: WellTable,
        summary: dict[str, Any] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._wells, self.summary, self.folder = wells, summary or {}, folder

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Batch:
        """Return the results in a run folder. Raises InputError where there are none."""
        place = Path(folder)
        return cls(WellTable.read(place), read_json(place / SUMMARY), place)

    def __len__(self) -> int:
        return len(self._wells)

    @property
    def table(self) -> Any:
        """A row for each well: a DataFrame of pandas where it is installed, else a plain table."""
        rows = {str(row["well"]): row for row in self._wells.rows()}
        return table_of(rows, [name for name in self._wells.columns if name != "well"])

    @property
    def units(self) -> dict[str, str]:
        """Units by column, where there is one."""
        return {name: about.unit for name, about in self._wells.about.items() if about.unit}

    def where(self, condition: str) -> Batch:
        """Return the wells that a condition chooses, such as ``"quality == 'ok' and rms < 20 pA"``.

        Raises: InputError for what is no condition, and for a column that there is not.
        """
        mask = chosen(condition, self._wells, "where")
        return Batch(self._wells.select(mask), self.summary, self.folder)

    def __repr__(self) -> str:
        quality = self._wells.columns.get("quality", np.empty(0, object)).tolist()
        counts = [f"{quality.count(q)} {q}" for q in ("ok", "check", "failed") if q in quality]
        listed = f": {', '.join(counts)}" if counts else ""
        return f"<Batch of {len(self)} wells{listed}>"


def fit_batch(
    fit: str | os.PathLike[str] | None = None,
    recordings: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    *,
    where: str = "",
    only: str | Sequence[str] = (),
    rerun: str | os.PathLike[str] | None = None,
    together: str | os.PathLike[str] | None = None,
    population: str | Sequence[str] = (),
    shared: str | Sequence[str] = (),
    groups: int | str | None = None,
    starts: int | None = None,
    seed: int | None = None,
    backend: str = "auto",
    chunk: int | None = None,
    cluster: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> Batch:
    """Fit one model to many recordings, each on its own, all together on the device.

    Arguments:
        fit: a fit file. Its recording is a template: each recording takes the place of its file,
            and all else stays.
        recordings: files, patterns, folders, or one table of recordings with a column ``file``.
        where: a condition that chooses wells by the table of recordings; with `rerun` by results.
        only: names of wells, where not all are to be fitted: a list, or text such as "A01, B03".
        rerun: the folder of an earlier batch of which the chosen wells are fitted again; the
            result is its whole table with their rows replaced.
        together: the folder of an earlier batch whose chosen wells are looked at as a population,
            or in groups; none is fitted.
        population, shared: names of parameters that are drawn from a population, and that all
            wells have in common; `kinetics` among the former stands for all on which rates depend.
        groups: into how many groups wells are sorted, or ``"auto"``.
        starts: descents for each well in a round; as suits without it.
        seed: of the search; the same seed gives the same table. The template's, or 0.
        backend: what scores the candidates: auto, reference, cpu or cuda.
        chunk: wells that are fitted together, and at most lost by a kill; 32, or 384 on a GPU.
        cluster: what does the work, as after ``--cluster``; this process without it.
        folder: where to write the run as it goes on, as ``channelfit batch`` does; new or empty.
            Without one nothing is kept.
        resume: whether to go on with the batch in that folder, which was interrupted or killed, to
            the table that it would have had. All other arguments must be those of that batch.
        progress: whether to show the work; None shows it in notebooks and on terminals.

    Returns: a `Batch`: its `table` has parameters, standard errors, intervals, cost, quality and
        reasons of every well. A recording that cannot be used is that well's failure.

    Warns:
        InputWarning: what can be used but looks wrong.

    Raises:
        InputError: the fit file cannot be used, no recording can be, or no well is chosen.

    Example:
        >>> import channelfit as cf
        >>> import numpy as np
        >>> from pathlib import Path
        >>> for well, gmax in (("A01", 3.0), ("A02", 6.0)):  # in place of recordings
        ...     steps, values = "protocols/activation.yaml", {"gmax": gmax}
        ...     np.save(well, cf.simulate("models/model_b.yaml", steps, values=values).current)
        >>> _ = Path("fit.yaml").write_text('''
        ... model: models/model_b.yaml
        ... parameters: {z12: {fixed: true}, z21: {fixed: true}, z23: {fixed: true}}
        ... fit:
        ...   experiments:
        ...     - protocol: protocols/activation.yaml
        ...       recording: {file: any.npy, sampling: 0.1 ms, current: {columns: all, unit: pA}}
        ... ''')
        >>> found = cf.fit_batch("fit.yaml", "A*.npy", progress=False)
        >>> [round(value, 3) for value in found.table["gmax"]]
        [3.0, 6.0]
    """
    files = [recordings] if isinstance(recordings, str | os.PathLike) else list(recordings)
    place = None if folder is None else Path(folder)
    if resume and place is None:
        raise InputError("resume needs the folder of the batch that is to go on", "fit_batch()")
    request = BatchRequest(
        None if fit is None else Path(fit),
        tuple(str(Path(each)) for each in files),
        where=where,
        only=names_of(only),
        rerun=None if rerun is None else Path(rerun),
        together=None if together is None else Path(together),
        listed=place if resume else None,
        population=names_of(population),
        shared=names_of(shared),
        groups="" if groups is None else str(groups),
        settings=SearchSettings(starts=starts or 0, backend=backend),
        seed=seed,
        size=chunk,
    )
    if together is not None and not (request.population or request.shared or request.groups):
        raise InputError("together needs population, shared or groups", "fit_batch()")
    name = os.fspath(fit or rerun or together or "fit_batch()")
    with ExitStack() as ends:
        screen = ends.enter_context(screen_for(Path(name).name, progress))
        ends.enter_context(compilations_shown(screen))
        ends.enter_context(nothing_collected())
        listener = BatchScreen(screen)
        made = batches.ready(request, listener)
        temporary = None
        if place is None:
            temporary = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        run = ends.enter_context(RunFolder(held))
        (run.resume if resume else run.claim)(place or temporary or Path())
        from channelfit.tasks.cluster import open_cluster  # loads what few calls need

        executor = ends.enter_context(open_cluster(cluster, screen.say))
        table, summary = batches.run(made, run, listener, executor)
        return Batch(table, summary, place)


def names_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return names that are given as a list, or as text such as ``A01, B03``."""
    if isinstance(given, str):
        return names_in(given)
    return tuple(name.strip() for name in given if name.strip())


def parameters_of(table: WellTable) -> list[str]:
    """Return the parameters of a table, which are the columns with a standard error."""
    return [name for name in table.columns if f"{name}_error" in table.columns]


class BatchScreen(BatchListener):
    """Shows a batch on a screen, and writes it as lines of JSON if there are `lines`."""

    def __init__(self, screen: terminal.SearchScreen, lines: JsonLines | None = None) -> None:
        self.screen, self.lines = screen, lines
        self._said_at = time.monotonic()

    def begin(self, stage: str) -> None:
        """Show what is being done now."""
        self.screen.begin(stage)

    def warn(self, cautions: Iterable[Caution]) -> None:
        """Print what looks wrong."""
        self.screen.warn(cautions)

    def failed(self, well: str, reason: str) -> None:
        """Print that a well has failed, and why; of many failures the first."""
        self.screen.fail(well, reason)

    def done(self, well: str, kept: bool, result: Mapping[str, float]) -> None:
        """Write a line of JSON about a well that is done."""
        if self.lines is not None:
            self.lines.done(well, kept, result)

    def progress(self, batch: BatchProgress) -> None:
        """Show how many wells are done, and print it now and then."""
        left = batch.seconds_left if math.isfinite(batch.seconds_left) else None
        self.screen.count(
            Counted(batch.done, batch.total, "wells", batch.seconds, left, batch.failed, batch.kept)
        )

    def together(self, number: int, moved: float) -> None:
        """Show how far a population is from its end; on no terminal a line now and then."""
        text = f"population: round {number}, wells move by up to {moved:.2g} standard errors"
        self.screen.stage = text
        if not self.screen.live and time.monotonic() - self._said_at > _SAY_EVERY:
            self._said_at = time.monotonic()
            self.screen.say(text)

    def searching(self, progress: SearchProgress) -> None:
        """Show how far the first wells are."""
        if self.screen.counted is None or not self.screen.counted.done:
            self.screen.counted = None
            self.screen.stage = f"{progress.stage} {progress.done} of {progress.wells} wells"

    def finishing(self) -> None:
        """Ignore signals from now on, while the results are written."""
        all_is_done()
