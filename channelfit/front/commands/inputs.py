"""Plans, models and scorers from the files and options that several commands take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from channelfit.front.commands.doctor import backends
from channelfit.front.fitting import prepared
from channelfit.front.kinds import channel_document, load_plan
from channelfit.front.options import overrides_of
from channelfit.front.simulation import of_cell
from channelfit.model.channel import ChannelModel
from channelfit.problem.clamp import left_out
from channelfit.reading.errors import Caution, InputError, printable
from channelfit.reading.files import writing
from channelfit.results.report.terminal import SearchScreen
from channelfit.scoring.scorer import Scorer
from channelfit.search.overrides import Changes
from channelfit.search.plan import FitPlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def changes_of(options: Any) -> Changes:
    """Return the changes of a fit file that the options of a verb make.

    Arguments:
        options: of a verb with an option `--set`, such as `OptimizeOptions`.
    """
    return Changes(options.overrides, overrides_of(options))


def _backend_line(scorer: Scorer, requested: str) -> str:
    """Return the backend in words, and why it was chosen."""
    why = "as requested"
    if requested == "auto":  # otherwise CuPy, which loads slowly, need not be looked for
        missing = [f"{name} {row.state}" for name, row in backends().items() if not row.usable]
        why = "; ".join(["auto: the fastest here", *missing])
    return f"backend {scorer.backend}, {scorer.dtype} ({why})"


def prepare(
    file: Path, changes: Changes, backend: str, dtype: str, path: str, screen: SearchScreen
) -> tuple[FitPlan, Scorer]:
    """Return the plan of a file and its scorer, and say on the screen which they are."""
    screen.begin(f"reading {file.name} and its data")
    fit = load_plan(file, changes, backend)
    scorer = prepared(fit, backend, dtype, path, screen)
    screen.say(screen.title)
    if fit.inherited:
        screen.say(f"from the fit section of {fit.model_file.name}: {', '.join(fit.inherited)}")
    screen.say(_backend_line(scorer, backend))
    return fit, scorer


def model_with_values(
    file: Path, overrides: Sequence[str], cell: str | None = None
) -> tuple[ChannelModel, np.ndarray, str]:
    """Return the model, its values or a cell's, and the name in the fit file, else its own."""
    channel, document = load_channel(file, overrides)
    warn(left_out(document, file))
    name = str((document.get("fit") or {}).get("name", channel.name))
    try:
        channel = of_cell(channel, cell)
        return channel, channel.values(), name
    except InputError as error:
        raise error.at(file) from None


def load_channel(file: Path, overrides: Sequence[str]) -> tuple[ChannelModel, dict[str, Any]]:
    """Return the model of a file, and the whole document; warn of what looks wrong."""
    channel, document = channel_document(file, overrides)
    warn(channel.cautions)
    return channel, document


def warn(cautions: Iterable[Caution]) -> None:
    """Print on standard error what looks wrong, before the work."""
    SearchScreen("").warn(cautions)


def save_picture(figure: Figure, out: Path, err: bool = False) -> None:
    """Save a figure, and print its path; `err` prints it on standard error."""
    from channelfit.results.report.plots import save  # loads Matplotlib

    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        save(figure, out)
    click.echo(printable(str(out)), err=err)


def picture_file(out: Path) -> Path:
    """Return the file of a picture, ending in .png. Raises InputError for the name of a folder."""
    if out.name in ("", ".."):
        raise InputError("a folder, not a file; give for example --out picture.png", out)
    return out if out.suffix.lower() == ".png" else out.with_name(out.name + ".png")
