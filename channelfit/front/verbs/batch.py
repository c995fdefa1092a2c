"""`channelfit batch`: its options and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from channelfit.front.options import (
    argument,
    backend_option,
    beside_resume,
    cluster_option,
    command,
    file_path,
    integer,
    json_option,
    min_ok_option,
    option,
    path_argument,
    quiet_option,
    results_option,
    resume_option,
    set_option,
)
from channelfit.front.resumed import end_if_finished

#: What may stand beside `--together`.
_TOGETHER = (
    *("together", "where", "only", "population", "shared", "groups", "out", "seed", "backend"),
    *("quiet", "as_json", "min_ok"),
)


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """Fit the model of FIT to each of RECORDINGS on its own, all together on the device.

    FIT is a fit file. Its recording is a template: each recording takes the place of its file, and
    columns, units, conditioning, masks, clamp and protocol stay. The wells share these, the model,
    the ranges and the priors; every well has its own values of all parameters.

    \b
    RECORDINGS are
      files, folders or patterns   a well each, called A01 .. P24 where the file's name says so
      a table with a column file   CSV, TSV or XLSX, a row for each well; also well, name, row,
                                   column, signal, weight, mask and any metadata
      a file of many wells         a table whose columns are headed by wells, or an array (.npy) of
                                   shape (n_wells, n_samples) or (n_wells, n_sweeps, n_samples)

    A recording that cannot be used is that well's failure, with the reason in the table. Where all
    wells fail, or fewer than --min-ok are ok, results are written and the exit code is 3.

    \b
    The results' folder
      wells.csv           a row for each well: parameters, standard errors, 95 % intervals, cost,
                          seal, leak, quality (ok, check, failed) and the reason
      wells.parquet       the same, with units (needs pyarrow)
      wells-columns.json  unit and meaning of each column
      plate.html          the plate as a map, wells and distributions, outliers first
      summary.json        counts, medians, versions, hashes, seed
      fit.yaml            the template; recordings.json the recordings; traces.npz thinned traces

    \b
    Examples
      channelfit batch fit.yaml plate/*.csv
      channelfit batch fit.yaml plate.xlsx --where "compound == 'control' and seal > 500 MOhm"
      channelfit batch --rerun runs/plate --where "quality != 'ok'" --starts 32
      channelfit batch --show runs/plate --where "quality == 'ok' and gmax > 2 nS"
      channelfit batch --together runs/plate --where "quality == 'ok'" --population kinetics
      channelfit batch --resume runs/plate
    """

    fit: Path | None = path_argument("fit", required=False)
    recordings: tuple[str, ...] = argument("recordings", nargs=-1)
    out: Path | None = results_option()
    where: str = option(
        "--where",
        metavar="CONDITION",
        default="",
        help="Choose wells by the columns of the table of recordings; with --rerun and --show by "
        "those of the results, such as \"quality == 'ok' and seal > 500 MOhm\".",
    )
    only: str = option(
        "--only", metavar="WELLS", default="", help="Choose wells by their names, such as A01,B03."
    )
    rerun: Path | None = file_path(
        "--rerun",
        "RUN",
        "Fit the chosen wells of an earlier run again. A new folder gets the whole table with "
        "their rows replaced; RUN stays as it is. FIT, if given, is used in place of its template.",
    )
    together: Path | None = file_path(
        "--together",
        "RUN",
        "With --population, --shared or --groups: look at the chosen wells of an earlier run "
        "together, and fit none of them.",
    )
    resume: Path | None = resume_option("RUN", "table that it would have had.")
    show: Path | None = file_path(
        "--show",
        "RUN",
        "Print the table of a finished run, or the rows that are chosen, and fit nothing.",
        python=None,
        kept=False,
    )
    starts: int | None = integer(
        "--starts", "Descents for each well, from the best points of the scan. [default: as suits]"
    )
    seed: int | None = integer("--seed", "Seed of the search. [default: the file's, or 0]", least=0)
    backend: str = backend_option()
    chunk: int | None = integer(
        "--chunk",
        "Wells that are fitted together, and at most lost by a kill. [default: 32; 384 on a GPU]",
    )
    population: str = option(
        "--population",
        metavar="NAMES",
        default="",
        help="Look at the wells as cells of a population, from which these parameters are drawn "
        "(`kinetics`: all on which the rates depend): its mean and spread, with intervals.",
    )
    shared: str = option(
        "--shared",
        metavar="NAMES",
        default="",
        help="The same with parameters that all cells have in common.",
    )
    groups: str = option(
        "--groups",
        metavar="K",
        default="",
        help="Sort the wells into K groups by k-means; auto finds how many.",
    )
    min_ok: int | None = min_ok_option()
    cluster: str | None = cluster_option()
    overrides: tuple[str, ...] = set_option()
    quiet: bool = quiet_option("the results' folder")
    as_json: bool = json_option()


def _before(context: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    """Return what was typed, if it goes together."""
    modes = [
        f"--{name}" for name in ("rerun", "together", "resume", "show") if given[name] is not None
    ]
    if len(modes) > 1:
        raise click.UsageError(f"{' and '.join(modes)} exclude each other.", context)
    if not modes and given["fit"] is None:
        raise click.MissingParameter(ctx=context, param=batch.params[0])
    _refuse_empty(context, ("where", "only", "population", "shared", "groups"))
    if given["resume"] is not None:
        _refuse_beside(context, "--resume", beside_resume(BatchOptions))
        end_if_finished(context, given["resume"], given["as_json"])
    if given["show"] is not None:
        _refuse_beside(context, "--show", ("show", "where", "only", "as_json"))
    if given["together"] is not None:
        _refuse_beside(context, "--together", _TOGETHER)
        if not (given["population"] or given["shared"] or given["groups"]):
            raise click.UsageError("--together needs --population, --shared or --groups.", context)
    if given["rerun"] is not None and given["recordings"]:
        raise click.UsageError("--rerun takes the recordings of the earlier run.", context)
    return given


def _refuse_empty(context: click.Context, options: tuple[str, ...]) -> None:
    """Refuse options that say nothing, as one of an unset variable: all wells would be meant."""
    for parameter in batch.params:
        name = parameter.name or ""
        typed = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if name in options and typed and not context.params[name].strip(" ,"):
            hint = parameter.get_error_hint(context)
            raise click.UsageError(f"{hint} is empty; leave it out if that is meant.", context)


def _refuse_beside(context: click.Context, option: str, allowed: tuple[str, ...]) -> None:
    """Refuse what has no meaning beside an option."""
    for parameter in batch.params:
        name = parameter.name or ""
        typed = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if typed and name not in allowed:
            raise click.UsageError(
                f"{parameter.get_error_hint(context)} cannot stand beside {option}.", context
            )


batch = command(BatchOptions, "batch", before=_before)
