"""`discover`: all schemes of a size, fitted to the same data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from channelfit.discovery import run as discoveries
from channelfit.discovery.results import Found
from channelfit.discovery.run import DiscoverListener
from channelfit.front import kinds
from channelfit.front.experiments import CALL, Experiment, listed
from channelfit.front.fitting import plan_of_arrays, workers
from channelfit.front.interrupts import all_is_done, held
from channelfit.front.json_lines import JsonLines
from channelfit.front.progress import WorkProgress, compilations_shown, screen_for
from channelfit.front.table import table_of
from channelfit.model.model import Model
from channelfit.reading.errors import Caution, InputError, shown
from channelfit.reading.memory import nothing_collected
from channelfit.results.report.terminal import SearchScreen
from channelfit.results.run_folder import RunFolder
from channelfit.search.joined_files import read_fit_file
from channelfit.search.overrides import Changes
from channelfit.search.plan import FitPlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Discovery:
    """All schemes of a size, fitted to the same data: what `channelfit.discover` returns.

    Attributes:
        summary: all numbers as plain data, as in ``summary.json``.
        folder: where the results are; None where they were not kept.

    Example:
        >>> import channelfit as cf
        >>> found = cf.discover("models/model_a.yaml", states="2..3", progress=False)
        >>> found.best
        '2-1-01'
    """

    def __init__(
        self, found: Found, summary: Mapping[str, Any], folder: Path | None = None
    ) -> None:
        self._found, self.summary, self.folder = found, dict(summary), folder

    @property
    def table(self) -> Any:
        """A row a scheme, the best by BIC first, as in ``schemes.csv``.

        A DataFrame where pandas is installed, else a `Table`.
        """
        rows = {row["scheme"]: row for row in self.summary["table"]}
        return table_of(rows, self._found.columns[1:])

    @property
    def best(self) -> str:
        """The name of the scheme with the least BIC."""
        return str(self.summary["best"])

    @property
    def near(self) -> list[str]:
        """The names of the schemes that BIC does not tell apart, the best one first."""
        return list(self.summary["near"])

    @property
    def equivalent(self) -> list[tuple[str, str]]:
        """The pairs of these that have the same currents under the protocols of the data."""
        return [(a, b) for a, b in self.summary["equivalent"]]

    @property
    def conclusions(self) -> list[str]:
        """What was found, in sentences."""
        return list(self.summary["conclusions"])

    def model(self, scheme: str = "") -> Model:
        """Return the model of a scheme that was fitted fully, with its values; the best without.

        Raises: InputError for another name.
        """
        for one in self._found.compared:
            if one.label == (scheme or self.best):
                from channelfit.search.saved_fit import fit_document

                return Model._from_document(fit_document(one.fit, one.values, Path()), None)
        names = ", ".join(one.label for one in self._found.compared)
        raise InputError(f"{scheme} was not fitted fully. Known: {names}")

    def plot(self) -> Figure:
        """Draw the misfit of all schemes against their parameters; a figure of Matplotlib."""
        from channelfit.discovery.page import front_figure  # loads Matplotlib
        from channelfit.front.pictures import shown_in_notebooks

        return shown_in_notebooks(front_figure(self._found))

    def plot_currents(self) -> Figure:
        """Draw the data with the schemes near the best one, or with the next.

        Where there are recordings it shows these, else what was observed; the page shows both.
        """
        from channelfit.discovery.page import currents_figures  # loads Matplotlib
        from channelfit.front.pictures import shown_in_notebooks

        return shown_in_notebooks(currents_figures(self._found)[0])

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write the page, the table and the model files into a new folder; return the files.

        Raises: InputError when the folder is not empty or cannot be written.
        """
        return discoveries.save(self._found, self.summary, Path(folder))

    def __repr__(self) -> str:
        return f"<Discovery of {self.summary['schemes']} schemes; the best by BIC is {self.best}>"


def discover(
    model: Model | str | os.PathLike[str],
    experiments: Experiment | Sequence[Experiment] | None = None,
    *,
    states: str | int | Sequence[int] | None = None,
    open: str | int | Sequence[int] | None = None,
    schemes: Mapping[str, Any] | None = None,
    seed: int | None = None,
    backend: str = "auto",
    cluster: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> Discovery:
    """Fit all schemes of a size to the same data, and rank them.

    Either a fit file, or a model with experiments. Of the model all is kept but states and rates.

    Arguments:
        model: a `Model`, or a model file; alone, a fit file or a model file with a `fit` section.
        experiments: an `Experiment`, or a list of them, as of `fit`.
        states: how many states the schemes have, such as 4 or "3..5"; the file's, or 2 to 4.
        open: how many of them are open; the file's, or 1.
        schemes: other keys of the section `discover` of a fit file, such as ``{"cycles": 1}``.
        seed: of the search; the same seed gives the same result. 0, or the file's.
        backend: what scores the candidates: auto (the processor), reference, cpu or cuda.
        cluster: where schemes are fitted, as after ``--cluster``; this process without it.
        folder: where to write the run as it goes on, as ``channelfit discover`` does; new or empty.
            Without one nothing is written, until `Discovery.save`.
        resume: whether to go on with the run in that folder, which was interrupted or killed, to
            the result that it would have had. All other arguments must be those of that run.
        progress: whether to show the work; None shows it in notebooks and on terminals.

    Returns: a `Discovery`: a table of all schemes, those that the data cannot tell apart, and the
        models of the best.

    Warns:
        InputWarning: what can be used but looks wrong.

    Raises:
        InputError: what cannot be used, with its place, value and what would be right.

    Example:
        >>> import channelfit as cf
        >>> model = cf.Model.load("models/model_a.yaml")
        >>> steps = cf.Protocol.load("protocols/activation.yaml")
        >>> recorded = cf.simulate(model, steps).current  # in place of a recording
        >>> cell = cf.Experiment(steps, recorded)
        >>> found = cf.discover(model, cell, states="2..3", schemes={"cycles": 0}, progress=False)
        >>> len(found.table)
        3
    """
    if schemes is not None and not isinstance(schemes, Mapping):
        words = f"keys of the section `discover` were expected, not {shown(schemes)}"
        raise InputError(words, key="schemes")
    own = {**(schemes or {}), **{k: v for k, v in (("states", states), ("open", open)) if v}}
    if resume and folder is None:
        raise InputError("resume needs the folder of the run that is to go on", CALL)
    with ExitStack() as ends:
        if experiments is not None:
            plan = plan_of_arrays(model, listed(experiments), {"seed": seed or 0})
        elif isinstance(model, Model):
            raise InputError("experiments are needed beside a Model", CALL)
        else:
            plan, section = read(Path(model), Changes(), backend)
            own = {**section, **own}
        screen = ends.enter_context(screen_for(plan.name, progress))
        ends.enter_context(compilations_shown(screen))
        ends.enter_context(nothing_collected())
        screen.warn(discoveries.cautions_of(plan))
        tasks = discoveries.ready(plan, own, seed, backend)
        place = None
        if folder is not None:
            place = ends.enter_context(RunFolder(held))
            (place.resume if resume else place.claim)(Path(folder))
        executor = ends.enter_context(workers(cluster, screen))
        found, summary = discoveries.run(tasks, place, DiscoverScreen(screen), executor)
    return Discovery(found, summary, None if folder is None else Path(folder))


def read(file: Path, changes: Changes, backend: str) -> tuple[FitPlan, dict[str, Any]]:
    """Return the plan of a fit file, with its data, and its section `discover`.

    Raises InputError: the file cannot be used, or describes a function.
    """
    fit_file = read_fit_file(file, changes)
    kinds.refuse_function(fit_file)
    fit = fit_file.document.get("fit")
    section = fit.pop("discover", None) if isinstance(fit, dict) else None
    return kinds.plan_of(fit_file, backend), {} if section is None else section


class DiscoverScreen(DiscoverListener):
    """Shows a run on a screen, and writes it as lines of JSON if there are `lines`."""

    def __init__(self, screen: SearchScreen, lines: JsonLines | None = None) -> None:
        self.screen, self.lines = screen, lines
        self._progress: WorkProgress | None = None

    def begin(self, stage: str, total: int = 0) -> None:
        """Show what is being done now."""
        self.screen.begin(stage)
        self._progress = WorkProgress(self.screen, total, "scans") if total else None

    def done(self, name: str, kept: bool, result: Mapping[str, Any], failure: str) -> None:
        """Count a fit."""
        if self._progress is not None:
            self._progress.done(name, kept=kept, reason=failure)
        if self.lines is not None and not failure:
            self.lines.done(name, kept, result)

    def warn(self, cautions: Sequence[Caution]) -> None:
        """Print what looks wrong."""
        self.screen.warn(cautions)

    def finishing(self) -> None:
        """Ignore signals from now on, while the results are written."""
        all_is_done()
