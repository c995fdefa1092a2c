"""The sentences of a plate's page: what looked wrong, why, methods with their numbers, citation.

They are plain text; whoever puts them into a page escapes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from channelfit import __version__
from channelfit.batch.page_data import PlateTable
from channelfit.batch.table import kinds_of_reasons
from channelfit.results.report.fit_words import bare, listed, of_the_program, sentence

#: The qualities of wells, in the order in which they are counted.
QUALITIES = ("ok", "check", "failed")
#: Above this share of wells that failed or are to be checked, it is the plate that looks wrong.
_MANY = 0.2
#: Residuals that are larger than the noise by more than this factor hold more than noise.
_MISFIT = 1.2


def reasons_of(plate: PlateTable) -> list[dict[str, Any]]:
    """Return why wells are not ok, most frequent first: text, how many of each quality, which
    wells.

    Reasons that differ in their numbers alone are counted together, with … for the number.
    """
    found: dict[str, list[int]] = {}
    for k, text in enumerate(plate.reason):
        for part in kinds_of_reasons(text):
            found.setdefault(part, []).append(k)
    rows = [
        {
            "text": text,
            "count": len(wells),
            "failed": sum(plate.quality[k] == "failed" for k in wells),
            "wells": wells,
        }
        for text, wells in found.items()
    ]
    return sorted(rows, key=lambda row: -row["count"])


def quality_counts(plate: PlateTable) -> list[tuple[str, int]]:
    """Return how many wells have each quality; the three usual ones first, also where there are
    none.
    """
    counts = Counter(plate.quality)
    names = [*QUALITIES, *sorted(name for name in counts if name and name not in QUALITIES)]
    return [(name, counts[name]) for name in names]


def cautions(plate: PlateTable, facts: Mapping[str, Any]) -> list[str]:
    """Return everything that a reader should know before he trusts a plate, a sentence each."""
    found = []
    for row in facts.get("warnings") or ():
        if isinstance(row, Mapping):
            row = "; ".join(str(row[key]) for key in ("place", "value", "advice") if row.get(key))
        found.append(str(row))
    counts, n = dict(quality_counts(plate)), plate.n_wells
    for name, what in (("failed", "have no fit"), ("check", "are to be checked")):
        if n and counts[name] > _MANY * n:
            share = f"{counts[name]:,} of {n:,} wells"
            found.append(f"{share} {what}: look at the model and the protocol first")
    known = plate.misfit[np.isfinite(plate.misfit)]
    if known.size and float(np.median(known)) > _MISFIT:
        found.append(
            f"In the median well the residuals are {np.median(known):.3g} times the noise: the "
            "model does not follow the usual well"
        )
    starts, agreed = plate.number("starts"), plate.number("agreed")
    fitted = np.isfinite(plate.values()).any(axis=1)
    alone = int(np.count_nonzero(fitted & (agreed <= 1) & (starts > 1)))
    if alone:
        found.append(
            f"In {alone:,} wells no two starts agree on the best cost: a better fit may exist"
        )
    for row in facts.get("left_out") or ():
        found.append(f"{row.get('recording', 'A recording')} was left out: {row.get('reason', '')}")
    for key in ("population", "groups"):
        found += [str(text) for text in (facts.get(key) or {}).get("remarks") or ()]
    return [sentence(bare(text)) for text in found]


def methods(plate: PlateTable, facts: Mapping[str, Any]) -> str:
    """Return a paragraph for the methods of a paper, with the numbers of this plate in it."""
    parts = [
        _what_was_fitted(plate, facts),
        _search(facts),
        _outcome(plate),
        _intervals(plate),
        _method_of(facts.get("population") or {}),
        _method_of(facts.get("groups") or {}),
    ]
    return " ".join(part for part in parts if part)


def _what_was_fitted(plate: PlateTable, facts: Mapping[str, Any]) -> str:
    n = len(plate.parameters)
    model = f"model {facts['model']}" if facts.get("model") else "model"
    source = f", after {bare(str(facts['model_source']))}," if facts.get("model_source") else ""
    protocol = f" under the protocol {facts['protocol']}" if facts.get("protocol") else ""
    return (
        f"The {n} parameter{'s' * (n != 1)} of the {model}{source} were fitted to each of "
        f"{plate.n_wells:,} voltage-clamp recordings{protocol} on its own, with the weighted mean "
        "square of the difference between the simulated and the recorded current as the cost, by "
        f"channelfit {version_of(facts)}{_arithmetic(facts)}."
    )


def version_of(facts: Mapping[str, Any]) -> str:
    """Return the version of this program that has fitted."""
    return str((facts.get("versions") or {}).get("channelfit") or __version__)


def _arithmetic(facts: Mapping[str, Any]) -> str:
    names = [str(facts[key]) for key in ("backend", "dtype") if facts.get(key)]
    return f" ({names[0]} backend{''.join(f', {text}' for text in names[1:])})" if names else ""


def _search(facts: Mapping[str, Any]) -> str:
    parts = []
    if facts.get("search"):
        parts.append(f"the space was searched with {bare(str(facts['search']))}")
    if facts.get("starts"):
        parts.append(f"each well had {facts['starts']} starts")
    if facts.get("seed") is not None:
        parts.append(f"the seed was {facts['seed']}")
    if isinstance(facts.get("seconds"), int | float):
        parts.append(f"all wells together took {facts['seconds']:.3g} s")
    if not parts:
        return ""
    text = sentence(listed(parts))
    return text[0].upper() + text[1:]


def _outcome(plate: PlateTable) -> str:
    counts = dict(quality_counts(plate))
    text = (
        f"Of these recordings {counts['ok']:,} were fitted without remarks, {counts['check']:,} "
        f"with some, and {counts['failed']:,} not at all"
    )
    known = plate.misfit[np.isfinite(plate.misfit)]
    if known.size:
        low, middle, high = np.quantile(known, [0.05, 0.5, 0.95])
        text += (
            f"; the root mean square of the residuals was {middle:.3g} times the noise in the "
            f"median well ({low:.3g} to {high:.3g} in 90 % of the wells)"
        )
    return f"{text}."


def _intervals(plate: PlateTable) -> str:
    if not any(np.isfinite(plate.number(f"{name}_lower")).any() for name in plate.parameters):
        return ""
    return (
        "Standard errors and 95 % intervals of each well follow from the Gauss-Newton Hessian of "
        "its cost at the fit."
    )


def _method_of(row: Mapping[str, Any]) -> str:
    """Return the sentence in which a population or groups say how they were found."""
    return sentence(bare(str(row["method"]))) if row.get("method") else ""


def citation(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the works to cite, each after what it is cited for."""
    found = [of_the_program(version_of(facts), str(facts.get("finished") or ""))]
    if facts.get("model_source"):
        found.append(("the model", f"{bare(str(facts['model_source']))}."))
    if facts.get("protocol_source"):
        name = facts.get("protocol") or ""
        found.append((f"the protocol {name}".strip(), f"{bare(str(facts['protocol_source']))}."))
    return found


def provenance(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how a batch can be repeated: names and what stands for each."""
    seconds = facts.get("seconds")
    rows = [
        ("Command", facts.get("command")),
        ("File", facts.get("file")),
        ("Finished", facts.get("finished")),
        ("Took", f"{seconds:.4g} s" if isinstance(seconds, int | float) else ""),
        ("Seed", facts.get("seed")),
        ("Search", facts.get("search")),
        ("Starts of each well", facts.get("starts")),
        ("Backend", ", ".join(str(facts[key]) for key in ("backend", "dtype") if facts.get(key))),
        ("Versions", _pairs(facts.get("versions") or {"channelfit": __version__})),
        ("Machine", _pairs(facts.get("machine") or {})),
    ]
    return [(name, str(text)) for name, text in rows if text not in (None, "")]


def _pairs(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {text}" for name, text in row.items())
