"""Ensembles of parameter vectors: from fits, tables, families of equally good fits, and priors."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.batch.sheets import SUFFIXES, read_sheet
from channelfit.designs.plan import vectors_of_prior
from channelfit.front import kinds
from channelfit.front.result import Fit
from channelfit.front.simulation import values_with
from channelfit.model.channel import ChannelModel
from channelfit.reading.documents import read_json
from channelfit.reading.errors import InputError, shown
from channelfit.reading.saved import NUMBER, Each, Listed, check_shape
from channelfit.results.files import fit_file

#: Vectors that count if nothing else is said, the model's own among them.
_VECTORS = 16
#: What is read of an `uncertainty.json`.
_FAMILIES = {"families!": Listed({"representatives!": Listed({"values!": Each(NUMBER)})})}


def ensemble_of(
    model: ChannelModel, sources: Sequence[Any] | Any, most: int, seed: int
) -> np.ndarray:
    """Return parameter vectors (n_parameters, n): the model's values, and those of an ensemble.

    A parameter that a source does not have keeps the model's value.

    Arguments:
        sources: fits, tables, families or the word "prior", as of ``ensemble`` of `design`; one or
            several.
        most: how many count, the model's among them, evenly over all; 1 for `_VECTORS`.
        seed: of those that are drawn.

    Raises InputError: a source without a parameter of the model, or a value beyond its range.
    """
    if isinstance(sources, str | os.PathLike | Fit):
        sources = [sources]
    own, found, most = model.values(), list[np.ndarray](), _VECTORS if most == 1 else most
    for source in sources:
        if str(source) == "prior":
            found += list(vectors_of_prior(model, most - 1, seed).T)
        else:
            found += [_vector(model, row, source, place) for place, row in _rows(source, model)]
    count = min(len(found), most - 1)
    chosen = np.linspace(0, len(found) - 1, count).round().astype(int)
    return np.array([own, *(found[k] for k in chosen)]).T


def _vector(model: ChannelModel, row: Mapping[str, float], source: Any, place: str) -> np.ndarray:
    """Return the vector (n_parameters,) of a row of a source."""
    found = model.values()
    if not row.keys() & set(model.parameter_names):
        words = f"has no parameter of {model.name}, such as {model.parameter_names[0]}"
        raise InputError(words, str(source))
    for k, p in enumerate(model.parameters):
        if p.name in row:
            found[k] = row[p.name]
            if not (math.isfinite(found[k]) and (p.fixed or p.lower <= found[k] <= p.upper)):
                words = f"{found[k]:g} is not within its range, {p.lower:g} to {p.upper:g}"
                raise InputError(words, str(source), f"{place}{p.name}")
    return found


def _rows(source: Any, model: ChannelModel) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Yield values by name of a source, each with its place in it; wells that failed not."""
    if isinstance(source, Fit):
        yield "", source.values
        return
    path = Path(source)
    if path.suffix.lower() == ".json":
        document = read_json(path)
        check_shape(document, _FAMILIES, path)
        for k, family in enumerate(document["families"], 1):
            yield from ((f"family {k}: ", one["values"]) for one in family["representatives"])
    elif path.suffix.lower() in SUFFIXES:
        head, rows = read_sheet(path)
        places = [k for k, name in enumerate(head) if name in model.parameter_names]
        for line, row in rows:
            if all(row[k] for k in places):
                yield f"line {line}: ", {head[k]: _number(row[k], path, line) for k in places}
    else:
        channel, _ = kinds.channel_document(fit_file(path), ())
        yield "", dict(zip(channel.parameter_names, values_with(channel, None), strict=True))


def _number(text: str, path: Path, line: int) -> float:
    try:
        return float(text)
    except ValueError:
        words = f"a number was expected, not {shown(text)}"
        raise InputError(words, path, f"line {line}") from None
