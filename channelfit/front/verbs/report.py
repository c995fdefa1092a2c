"""`channelfit report`: its options and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from channelfit.front.options import backend_option, command, file_path, option, path_argument


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Make the report of RUN again: one page, complete in itself, that tells all of a fit.

    RUN is a folder that `optimize` wrote, or its fit.yaml. Of several, one page shows them side by
    side: recordings that they share are drawn once, with the fit of each.

    The page holds the scheme, fit and data with a choice of sweeps and of times, residuals, I-V,
    activation and time constants where the protocol is a family of steps, the parameters with
    their intervals, what is not determined, what looked wrong, how to repeat it, a paragraph of
    methods and what to cite. The traces are written as CSV beside it.

    RUN may also be the folder of a batch, whose page plate.html is there already: --figures draws
    the plate and the distributions of its parameters for print.

    \b
    Examples
      channelfit report runs/model_b-20260102-030405
      channelfit report runs/cell7 --figures pdf,svg
      channelfit report runs/three_states runs/four_states --out both.html
      channelfit report runs/plate7 --figures pdf
    """

    runs: tuple[Path, ...] = path_argument("runs", nargs=-1, required=True, metavar="RUN...")
    out: Path | None = file_path(
        "--out",
        "FILE.html",
        "The page. [default: report.html in the run's folder; reports.html here for several runs]",
    )
    figures: str = option(
        "--figures",
        metavar="KINDS",
        default="",
        help="Write the figures for print as well, into the folder figures/ beside the page: pdf, "
        "svg or png, or several of them with commas between.",
    )
    backend: str = backend_option()


report = command(
    ReportOptions, "report", "A page that tells all of a fit, and its figures for print."
)
