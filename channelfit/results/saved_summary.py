"""`summary.json` of a run folder, checked before it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from channelfit.reading.documents import read_json
from channelfit.reading.saved import FLAG, NUMBER, PLAIN, TEXT, WHOLE, Each, Listed, check_shape
from channelfit.results.files import SUMMARY, file_beside
from channelfit.results.quality import FIGURES

_QUALITY = dict.fromkeys(FIGURES, NUMBER)
_PARAMETER = {
    **dict.fromkeys(("value!", "lower?", "upper?", "true_value", "standard_error"), NUMBER),
    "relative_error": NUMBER,
    "interval": Listed(NUMBER, 2),
    **dict.fromkeys(("unit!", "note"), TEXT),
}
_UNCERTAINTY = {
    **dict.fromkeys(("level", "noise_pA", "correlation_time_samples"), NUMBER),
    "standard_errors_from_minimum": NUMBER,
    "samples": WHOLE,
    "noise_assumed": FLAG,
    "undetermined!": Listed({"parameters": Listed(TEXT), "open_directions": WHOLE, "text!": TEXT}),
    "remarks!": Listed(TEXT),
    "correlations": {"parameters!": Listed(TEXT), "matrix!": Listed(Listed(NUMBER))},
}
_AGREEMENT = {
    **dict.fromkeys(("independent_starts!", "arrived!", "wanted!"), WHOLE),
    **dict.fromkeys(("agree!", "perfect"), FLAG),
    "lowest_costs!": Listed(NUMBER),
}
_EXPERIMENT = {
    **_QUALITY,
    "weight": NUMBER,
    "conditioning": Listed(TEXT),
    **dict.fromkeys(("protocol", "protocol_description", "protocol_source", "recording"), TEXT),
    **dict.fromkeys(("cell", "temperature"), PLAIN),
}
#: The shape of a summary, by key, as far as it is used.
_SUMMARY = {
    **_QUALITY,
    **dict.fromkeys(("cost!", "seconds!", "search_cost", "candidates_per_second"), NUMBER),
    **dict.fromkeys(("generations!", "evaluations!", "seed!"), WHOLE),
    **dict.fromkeys(("file!", "stop_reason!", "optimizer!", "backend!", "dtype!"), TEXT),
    **dict.fromkeys(("name", "description", "source", "model", "source_hash", "finished"), TEXT),
    "parameters!": Each(_PARAMETER),
    "uncertainty": _UNCERTAINTY,
    "agreement": _AGREEMENT,
    "experiments": Listed(_EXPERIMENT),
    "surrogate": {"noise_pA": NUMBER},
    "membrane": Each(PLAIN),
    "warnings": Listed(dict.fromkeys(("place", "value", "advice"), TEXT)),
    **dict.fromkeys(("failing_examples", "strange_rates"), Listed(TEXT)),
    "failed_candidates": Each(WHOLE),
    "largest_deviation_from_float64_pA": NUMBER,
    "versions!": Each(TEXT),
    "machine!": Each(PLAIN),
    "files": Listed(Each(TEXT)),
    "settings!": Each(PLAIN),
    "stop": Each(PLAIN),
}


def summary_beside(file: Path, whole: bool = True) -> dict[str, Any]:
    """Return the summary beside a fit file, as `read_summary` does; empty where there is none."""
    place = file_beside(file, SUMMARY)
    return {} if place is None else read_summary(place, whole)


def read_summary(file: Path, whole: bool = True) -> dict[str, Any]:
    """Return the summary of a run; an empty one where the file is that of no fit.

    Arguments:
        whole: whether all keys that a report needs must be there, or any of them may be missing.

    Raises:
        InputError: it cannot be read, or holds values of another kind.
    """
    found = read_json(file)
    if "parameters" not in found:
        return {}
    needed = _SUMMARY if whole else {key.rstrip("!?"): of for key, of in _SUMMARY.items()}
    if whole and found.get("rms_pA") is not None:  # of currents, and not of a function
        needed = {**needed, **{f"{key}?": of for key, of in _QUALITY.items()}}
    check_shape(found, needed, file)
    return found
