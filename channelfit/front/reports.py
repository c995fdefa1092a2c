"""Reports of fits that are there already: the page of one or of several, and figures for print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from channelfit.batch.table import CSV, WellTable
from channelfit.reading.errors import InputError
from channelfit.reading.files import write_text, writing
from channelfit.reading.texts import names_in
from channelfit.results.comparison import distinct_labels, file_names
from channelfit.results.files import FIT, fit_file, make_folder
from channelfit.results.fit_folder import REPORT, picture_of
from channelfit.results.run_state import json_text

if TYPE_CHECKING:
    from channelfit.front.result import Fit
    from channelfit.results.report.page_content import ReportedFit

#: The page of several runs, and the folder of figures for print.
SEVERAL, FIGURES = "reports.html", "figures"
KINDS = ("pdf", "svg", "png")


def save_report(
    fits: Sequence[Fit], runs: Sequence[Path], out: Path | None, kinds: Sequence[str]
) -> list[Path]:
    """Write the report of one fit, or of several side by side.

    Arguments:
        fits: one or more, with where each is from.
        runs: a run folder, or a fit file, for each fit.
        out: the page; None for `report.html` in the folder of a single run, and `reports.html` in
            the current folder for several.
        kinds: of the files of figures for print: "pdf", "svg", "png".

    Returns: the files that were written: the page, tables of the traces beside it, figures.

    Raises InputError: an unknown kind of file; a page that cannot be written, or would replace a
    file that is no report.
    """
    # Bokeh and Matplotlib load slowly
    from channelfit.results.report.observed_curves import save_curves
    from channelfit.results.report.page import report_page
    from channelfit.results.report.print_figures import save_figures
    from channelfit.results.report.traces import save_tables

    _check_kinds(kinds)
    file = out or (_folder(runs[0]) / REPORT if len(fits) == 1 else Path(SEVERAL))
    if file.suffix.lower() not in (".html", ".htm"):
        raise InputError("a page was expected: a name that ends in .html", file)
    _refuse_others(file)
    make_folder(file.parent)
    names = [fit_file(run) for run in runs]
    labels = distinct_labels(file_names(names))
    reported = [_run(fit, label) for fit, label in zip(fits, labels, strict=True)]
    try:
        tables = []
        if len(fits) == 1:
            tables = save_tables(reported[0].panels, file.parent)
            tables += save_curves(reported[0].curves, file.parent)
        names_of_tables = [[table.name for table in tables]] if tables else ()
        write_text(file, report_page(reported, names_of_tables))
        files = [file, *tables]
        if kinds:
            make_folder(file.parent / FIGURES, follows=False)
            files += save_figures(reported, file.parent / FIGURES, kinds)
    except OSError as error:
        place = error.filename or file
        raise InputError(f"cannot be written: {error.strerror or error}", place) from None
    return files


def figure_kinds(text: str) -> tuple[str, ...]:
    """Return the kinds of figures that a text such as "pdf, svg" names. Raises InputError."""
    kinds = tuple(kind.lower() for kind in names_in(text))
    _check_kinds(kinds)
    return kinds


def is_batch(run: Path) -> bool:
    """Return whether a folder is that of a batch, with its table of wells."""
    return (run / CSV).is_file()


def save_plate_report(run: Path, out: Path | None, kinds: Sequence[str]) -> list[Path]:
    """Write the figures for print of a batch, whose page lies in its folder already.

    Returns: the files that were written.

    Raises InputError: no figures or another page are requested, or the folder is damaged.
    """
    from channelfit.batch.page_figures import save_plate_figures  # loads Matplotlib

    if out is not None:
        raise InputError("the page of a batch is its plate.html; leave this out", None, "--out")
    if not kinds:
        text = "the page of a batch is plate.html in its folder; --figures makes figures for print"
        raise InputError(text, run)
    _check_kinds(kinds)
    table = WellTable.read(run)
    parameters = [name for name in table.columns if f"{name}_error" in table.columns]
    make_folder(run / FIGURES, follows=False)
    with writing(run / FIGURES):
        return save_plate_figures(table, {"parameters": parameters}, run / FIGURES, kinds)


def _check_kinds(kinds: Sequence[str]) -> None:
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(f'unknown kind of figure "{kind}"; known: {", ".join(KINDS)}')


def _folder(run: Path) -> Path:
    """Return the folder of a run; the current one for a file that lies in none."""
    if run.is_dir():
        return run
    return run.parent if run.name == FIT else Path()


def _refuse_others(file: Path) -> None:
    """Raise InputError if a report would replace a file that is no report."""
    from channelfit.results.report.page_shell import GENERATOR

    try:
        with file.open("rb") as opened:
            if GENERATOR.encode() in opened.read(4096):
                return
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file) from None
    raise InputError("this file is no report of channelfit, and is not replaced", file)


def _run(fit: Fit, label: str) -> ReportedFit:
    from channelfit.results.report.page_content import reported_fit
    from channelfit.results.report.page_facts import facts_of

    plan, result = fit._plan, fit._result
    page = picture_of(plan, fit._winner, result.evaluations) if plan.has_currents else None
    return reported_fit(label, page, facts_of(plan, result, json_text(fit.summary)))
