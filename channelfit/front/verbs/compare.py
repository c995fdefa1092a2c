"""`channelfit compare`: its options and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from channelfit.front.options import backend_option, command, file_path, option, path_argument


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Compare FITS of different schemes to the same data, such as fit.yaml of several run folders.

    Cost, parameters, and the information criteria of Akaike and Schwarz: differences to the best,
    and how likely each scheme is the best of them. Experiments with weight 0 were held out of the
    fits, and are predicted here.

    \b
    Examples
      channelfit compare runs/three_states/fit.yaml runs/four_states/fit.yaml
      channelfit compare runs/*/fit.yaml --out which_scheme
    """

    fits: tuple[Path, ...] = path_argument("fits", nargs=-1, required=True)
    out: Path = file_path(
        "--out",
        "DIR",
        "Folder for comparison.json and comparison.png.",
        default=Path("comparison"),
        python=None,
        kept=False,
    )
    as_is: bool = option(
        "--as-is",
        is_flag=True,
        help="Take the values as they are; else least squares refines them.",
    )
    backend: str = backend_option()
    as_json: bool = option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print the content of comparison.json and nothing else.",
        python=None,
        kept=False,
    )


compare = command(
    CompareOptions, "compare", "Candidate schemes fitted to the same data.", work="studies:compare"
)
