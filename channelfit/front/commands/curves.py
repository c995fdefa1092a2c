"""`channelfit curves`: one formula, fitted to many data sets."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from channelfit.curves.batch import Settings, fit_pieces
from channelfit.curves.curve import Curve, load_curve
from channelfit.curves.data_files import read_data
from channelfit.curves.fitting import DataSets
from channelfit.curves.pictures import fits_figure
from channelfit.curves.table import FitTable
from channelfit.front.commands.inputs import writing
from channelfit.front.interrupts import all_is_done
from channelfit.front.progress import compilations_shown
from channelfit.reading.cautions import Caution
from channelfit.reading.errors import InputError
from channelfit.reading.texts import printable
from channelfit.reading.units import parse_quantity, shown
from channelfit.results.report import plots, terminal
from channelfit.results.run_folder import file_name

#: Reasons that the summary tells, at most.
_REASONS = 8
#: Data sets that are looked at before the work.
_LOOKED_AT = 1000


def curves(
    curve: str,
    data: Path,
    out: Path | None,
    backend: str,
    dtype: str,
    likelihood: str | None,
    fixed: tuple[str, ...],
    inputs: tuple[str, ...],
    method: str,
    particles: int,
    iterations: int,
    seed: int,
    covariance: bool,
    quiet: bool,
) -> None:
    """Fits a curve to all data sets of a file; writes the table and the picture of fits."""
    formula = load_curve(curve)
    formula = replace(formula, likelihood=likelihood or formula.likelihood)
    formula = formula.with_fixed({name: _number(name, v) for name, v in _pairs(fixed, "--fix")})
    files = {name: Path(file) for name, file in _pairs(inputs, "--input")}
    groups = read_data(data, formula, files)
    settings = Settings(backend, dtype, method, covariance, seed, particles, iterations)
    chosen = settings.chosen_backend()
    prefix = out or Path(".")
    if prefix.is_dir():
        prefix /= file_name(f"{data.stem}-{formula.name}")
    n_sets = sum(len(group.values) for group in groups)
    began = time.perf_counter()
    covariances: list[np.ndarray] = []
    with terminal.SearchScreen(formula.name, quiet) as screen, compilations_shown(screen):
        screen.warn(_cautions(formula, groups, data))
        screen.begin(f"fitting {n_sets:,} data sets on {chosen}")
        with writing(prefix):
            prefix.parent.mkdir(parents=True, exist_ok=True)
            place = prefix.with_name(prefix.name + ".csv")
            with FitTable(place, formula, method == "swarm", len(groups) > 1) as table:
                for piece in fit_pieces(
                    formula,
                    groups,
                    settings,
                    lambda count: screen.begin(f"{count:,} of {n_sets:,} data sets fitted"),
                ):
                    table.add(piece)
                    if piece.fits.covariances is not None:
                        covariances.append(piece.fits.covariances)
            seconds = time.perf_counter() - began
            written = [place]
            if covariance:
                written.append(prefix.with_name(prefix.name + "-covariance.npy"))
                order = np.concatenate(
                    [np.arange(len(g.values)) if g.places is None else g.places for g in groups]
                )
                whole = np.empty((n_sets, *covariances[0].shape[1:]))
                whole[order] = np.concatenate(covariances)
                np.save(written[-1], whole)
            title = f"{formula.name}, {n_sets:,} data sets of {data.name}"
            figure = fits_figure(table, title)
            if figure is not None:
                written.append(prefix.with_name(prefix.name + ".png"))
                plots.save(figure, written[-1])
    all_is_done()
    if not quiet:
        _tell(formula, table, n_sets, seconds, chosen)
    for file in written[:1] if quiet else written:
        click.echo(printable(str(file)))


def _pairs(texts: Sequence[str], option: str) -> list[tuple[str, str]]:
    """NAME=VALUE, split. Raises: InputError for a text without = and a name given twice."""
    found: list[tuple[str, str]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise InputError(f"{option} wants NAME=VALUE, not {shown(text)}")
        if name.strip() in dict(found):
            raise InputError(f"{option} gives {shown(name.strip())} twice")
        found.append((name.strip(), value.strip()))
    return found


def _cautions(curve: Curve, groups: Sequence[DataSets], data: Path) -> Iterator[Caution]:
    """What looks wrong: Poisson's likelihood of numbers that are no counts."""
    first = np.asarray(groups[0].values[:_LOOKED_AT], float)
    if curve.likelihood == "poisson" and np.any(first[np.isfinite(first)] % 1 != 0):
        yield Caution(
            str(data),
            "not all values are whole numbers",
            "Poisson's likelihood is one of counts; in other units all errors are wrong",
        )


def _number(name: str, value: str) -> float:
    """The value of --fix. Raises: InputError for a text that is no number."""
    try:
        return float(parse_quantity(value, "none"))
    except InputError as error:
        raise error.at(None, f"--fix {name}") from None


def _tell(curve: Curve, table: FitTable, n_sets: int, seconds: float, backend: str) -> None:
    """The summary on the screen: how many are good, why others are not, and where values lie."""
    console = terminal.PlainConsole(highlight=False)
    words = ". ".join(filter(None, (curve.description, curve.source)))
    console.print(f"{curve.name}{f': {words}' if words else ''}", markup=False, soft_wrap=True)
    told = ", ".join(f"{table.counts[q]:,} {q}" for q in ("ok", "check", "failed"))
    rate = f"{n_sets / seconds:,.0f} a second" if seconds > 0.5 else f"{seconds:.2f} s"
    console.print(f"{n_sets:,} data sets on {backend}: {told} ({rate})", markup=False)
    for reason, count in table.reasons.most_common(_REASONS):
        console.print(f"  {count:,}: {reason}", markup=False, soft_wrap=True)
    if len(table.reasons) > _REASONS:
        console.print(f"  and {len(table.reasons) - _REASONS} more reasons, in the table")
    if not len(table.values):
        return
    quantiles = np.quantile(table.values, (0.5, 0.05, 0.95), axis=0).T
    errors = np.median(table.errors, axis=0)
    rows = [
        [p.name, *(f"{x:.6g}" for x in row), f"{error:.3g}", p.unit]
        for p, row, error in zip(curve.free, quantiles.tolist(), errors.tolist(), strict=True)
    ]
    heads = ["parameter", "median", "5 %", "95 %", "median ±", "unit"]
    console.print(terminal.table(heads, rows, left=(0, 5)))
