"""The origin of an exported channel and its values, in sentences and as plain data."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError
from channelfit.results.citation import named
from channelfit.results.identity import files_in, sha256_of

#: How channelfit itself is cited.
CITATION = named()


@dataclass(frozen=True)
class DataFile:
    """A file to which a channel was fitted.

    Attributes:
        name: its path as the fit file gives it.
        sha256: of its contents; None where it was not there when the channel was exported.
    """

    name: str
    sha256: str | None


@dataclass(frozen=True)
class Provenance:
    """The origin of a model and of its values.

    Attributes:
        file: that the channel was read from; None for a model made in Python.
        description, source: what the model's file says.
        fitted: whether the values are those of a search that has left a summary.
        data: the recordings; protocols: under which they were made, as the fit file names them.
        simulated: whether the data were simulated from a model.
        facts: of the search by name: rms_pA, rms_relative_to_peak, seed, optimizer, version,
            finished, stop_reason.
    """

    file: Path | None
    description: str
    source: str
    fitted: bool = False
    data: tuple[DataFile, ...] = ()
    protocols: tuple[str, ...] = ()
    simulated: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)

    def sentences(self) -> list[str]:
        """Return the lines of a header in plain text: source, fit, data, and how to cite."""
        lines = [f"Source: {self.source}" if self.source else ""]
        if self.fitted:
            lines += [self._of_the_fit(), *self._of_the_data()]
        else:
            lines.append("The values are those of the model's file; no fit stands beside it.")
        return [one_line(text) for text in (*lines, f"Written by {CITATION}.") if text]

    def _of_the_fit(self) -> str:
        facts = self.facts
        words = [f"Values fitted by channelfit {facts.get('version', '(version unknown)')}"]
        if facts.get("finished"):
            words.append(f"on {str(facts['finished'])[:10]}")
        head = " ".join(words)
        details = [f"{facts['optimizer']}" if facts.get("optimizer") else ""]
        details.append(f"seed {facts['seed']}" if facts.get("seed") is not None else "")
        if isinstance(facts.get("rms_pA"), float):
            share = facts.get("rms_relative_to_peak")
            peak = f", {100 * share:.3g} % of the peak" if isinstance(share, float) else ""
            details.append(f"root mean square error {facts['rms_pA']:.4g} pA{peak}")
        return f"{head}: {'; '.join(d for d in details if d)}."

    def _of_the_data(self) -> list[str]:
        kind = "Data (simulated)" if self.simulated else "Data"
        rows = []
        for file in self.data:
            known = f"SHA-256 {file.sha256}" if file.sha256 else "not there when this was written"
            rows.append(f"{kind}: {file.name}, {known}.")
        if self.protocols:
            rows.append(f"Protocols: {', '.join(self.protocols)}.")
        return rows

    def as_plain(self) -> dict[str, Any]:
        """Return the same as plain data."""
        return {
            "source": self.source,
            "description": self.description,
            "fitted": self.fitted,
            "fit": dict(self.facts) if self.fitted else None,
            "data_simulated": self.simulated,
            "data": [{"file": d.name, "sha256": d.sha256} for d in self.data],
            "protocols": list(self.protocols),
            "written_by": CITATION,
        }


def provenance_of(
    document: Mapping[str, Any],
    file: Path | None,
    summary: Mapping[str, Any],
    fitted: bool,
) -> Provenance:
    """Collect where a model and its values come from.

    Arguments:
        document: the model as plain data, with its fit section under `fit`.
        file: from which the paths in it start.
        summary: of the run.
        fitted: whether the summary is of these values.
    """
    description, source = (
        str(document.get(key) or "").strip() for key in ("description", "source")
    )
    if not fitted:
        return Provenance(file, description, source)
    names = dict.fromkeys(files_in(as_mapping(document.get("fit")).get("experiments")))
    facts = {key: summary.get(key) for key in _FACTS}
    facts["version"] = as_mapping(summary.get("versions")).get("channelfit")
    return Provenance(
        file,
        description,
        source,
        fitted=True,
        data=tuple(DataFile(name, _hash(name, file)) for name in names),
        protocols=tuple(dict.fromkeys(_protocols(summary))),
        simulated=summary.get("surrogate") is not None,
        facts={key: value for key, value in facts.items() if value is not None},
    )


_FACTS = ("rms_pA", "rms_relative_to_peak", "cost", "seed", "optimizer", "finished", "stop_reason")


def _protocols(summary: Mapping[str, Any]) -> Iterator[str]:
    rows = summary.get("experiments")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, Mapping) and row.get("protocol"):
            yield str(row["protocol"])


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping of plain data; an empty one in place of anything else."""
    return value if isinstance(value, Mapping) else {}


def _hash(name: str, file: Path | None) -> str | None:
    """Return the SHA-256 of a file that a fit names; None where it is not there."""
    try:
        return sha256_of(Section({}, file).resolve(name, "file"))
    except (InputError, OSError):  # the header says that it was not there
        return None


def one_line(text: str) -> str:
    """Return a text as one line, without characters that steer or turn the text around them."""
    kept = "".join(" " if c.isspace() else c for c in text)
    shown = "".join("?" if unicodedata.category(c)[0] == "C" else c for c in kept)
    return re.sub(" +", " ", shown).strip()
