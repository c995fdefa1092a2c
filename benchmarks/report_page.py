"""How large the report of a long recording is, how soon it is drawn, and whom it asks: nobody.

The hERG sine wave of 80,000 samples, every one of them fitted, in a headless Chromium (the
system's, or the one that CHANNELFIT_CHROMIUM names) by playwright; and what writing the report adds
to a short fit. Run it from the repository's root:

    python benchmarks/report_page.py [--runs 5]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import Row, compared, finish

import channelfit as cf

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
import browser  # noqa: E402

SINE_WAVE = ROOT / "models" / "fits" / "herg_sine_wave_16713110.yaml"
LIMIT_S, LIMIT_MB = 2.0, 5.0
#: The command, without a report where the first argument says so: neither made nor loaded for.
_COMMAND = """
import sys
from channelfit.results.report import artist
if sys.argv.pop(1) == "without":
    artist.Artist.report = lambda *_: None
    artist._SERVE = artist._SERVE.replace("serve; serve()", "serve; serve(False)")
from channelfit.front.main import main
main()
"""


def long_fit(folder: Path) -> Path:
    """A fit of every one of the 80,000 samples; how good it is does not matter here."""
    out = folder / "herg"
    command = [sys.executable, "-m", "channelfit", "optimize", str(SINE_WAVE), "--out", str(out)]
    settings = ["--set", "fit.experiments[1].every=1", "--set", "fit.stop.seconds=20"]
    subprocess.run([*command, "--quiet", "--seed", "1", *settings], check=True, cwd=ROOT)
    return out


def load(page: browser.Page, file: Path) -> tuple[float, float]:
    """Seconds until the page has loaded, and until all of its figures are drawn."""
    start = time.perf_counter()
    tab = page.open(file)
    loaded = time.perf_counter() - start
    tab.wait_for_selector("html[data-ready]", timeout=60_000)
    return loaded, time.perf_counter() - start


def added(runs: int, folder: Path) -> tuple[float, float]:
    """Seconds of `optimize models/model_b.yaml` with the report and without, the least of some."""
    found: dict[str, list[float]] = {"with": [], "without": []}
    for k in range(runs + 1):
        for how, times in found.items():
            out = folder / f"{how}{k}"
            model = str(ROOT / "models" / "model_b.yaml")
            command = ["optimize", model, "--out", str(out), "--quiet", "--seed", "1"]
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", _COMMAND, how, *command], check=True, cwd=ROOT)
            if k:  # the first of each compiles
                times.append(time.perf_counter() - start)
    return min(found["with"]), min(found["without"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = long_fit(folder)
        file = run / "report.html"
        samples = sum(trace.size for trace in cf.load(run).traces)
        size = file.stat().st_size / 1e6
        with browser.chromium() as chromium:
            times, asked, errors = [], 0, 0
            for width, dark in ((browser.WIDE, False), (browser.NARROW, True)) * runs:
                page = browser.Page(chromium)
                page.look(width, dark)
                times.append(load(page, file))
                asked += len(page.requests_elsewhere())
                errors += len(page.errors)
                page.close()
        with_report, without = added(runs, folder)
    loaded, drawn = (statistics.median(one) for one in zip(*times, strict=True))
    slowest = max(one[1] for one in times)
    finish(
        "report_page",
        "The report of the hERG sine wave, all of its samples",
        [
            Row("samples", samples, ""),
            Row("size of report.html", size, "MB", note=f"limit {LIMIT_MB:g}"),
            Row("until loaded", loaded, "s", note=f"median of {len(times)}; limit {LIMIT_S:g}"),
            Row("until all figures are drawn", drawn, "s", note=f"at most {slowest:.2f}"),
            Row("requests that leave the page", asked, ""),
            Row("errors and warnings on the console", errors, ""),
            compared(
                "optimize models/model_b.yaml", with_report, "s", without, "against no report"
            ),
        ],
    )
    if size > LIMIT_MB or loaded > LIMIT_S or asked or errors:
        sys.exit("the report is larger, slower or less quiet than it may be")


if __name__ == "__main__":
    main()
