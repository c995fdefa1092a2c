"""How large the report of a long recording is, how soon it is drawn, and that it needs no network.

The hERG sine wave of 80,000 samples, every one of them fitted, in a headless Chromium (the
system's, or the one that CHANNELFIT_CHROMIUM names) by playwright; and what writing the report adds
to a short fit. Run it from the repository's root:

    python benchmarks/report_page.py [--runs 5]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import Row, as_script, compared, finish

import channelfit as cf

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from support import browser  # noqa: E402

SINE_WAVE = ROOT / "models" / "fits" / "herg_sine_wave_16713110.yaml"
LIMIT_S, LIMIT_MB = 2.0, 5.0
#: The command, without a report where the first argument says so: neither made nor loaded for.
_COMMAND = """
import sys
from channelfit.results.report import report_writer
if sys.argv.pop(1) == "without":
    report_writer.ReportWriter.report = lambda *_: None
    report_writer._SERVE = report_writer._SERVE.replace("serve; serve()", "serve; serve(False)")
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


def added(runs: int, folder: Path) -> dict[str, tuple[float, float]]:
    """Of `optimize models/model_b.yaml` with the report and without, the least of some runs.

    Returns: by "with" and "without", seconds of the clock, and seconds of all its processors.
    """
    found: dict[str, list[tuple[float, float]]] = {"with": [], "without": []}
    for k in range(runs + 1):
        for how, times in found.items():
            out = folder / f"{how}{k}"
            model = str(ROOT / "models" / "model_b.yaml")
            command = ["optimize", model, "--out", str(out), "--quiet", "--seed", "1"]
            start = time.perf_counter()
            child = subprocess.Popen([sys.executable, "-c", _COMMAND, how, *command], cwd=ROOT)
            _, _, used = os.wait4(child.pid, 0)
            if k:  # the first of each compiles
                times.append((time.perf_counter() - start, used.ru_utime + used.ru_stime))
    return {how: (min(t for t, _ in all_), min(c for _, c in all_)) for how, all_ in found.items()}


def writing(run: Path) -> float:
    """Seconds of a processor that a report takes once everything is loaded: the least of three."""
    fit = cf.load(run)
    times = []
    for _ in range(4):
        start = time.process_time()
        fit.report(run / "report.html")
        times.append(time.process_time() - start)
    return min(times[1:])


def _pair(found: dict[str, tuple[float, float]], which: int, unit: str) -> tuple[float, str, float]:
    return found["with"][which], unit, found["without"][which]


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
        times_of = added(runs, folder)
        alone = writing(folder / "with1")
    loaded, drawn = (statistics.median(one) for one in zip(*times, strict=True))
    slowest = max(one[1] for one in times)
    less = "against no report"
    busy = f"{os.getloadavg()[0]:.1f} processes wanted {os.cpu_count()} cores meanwhile"
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
            Row("writing a report of two experiments, all loaded", alone, "s of a processor"),
            compared("optimize model_b.yaml", *_pair(times_of, 1, "s of processors"), less),
            compared("optimize model_b.yaml", *_pair(times_of, 0, "s"), f"{less}; {busy}"),
        ],
    )
    if size > LIMIT_MB or loaded > LIMIT_S or asked or errors:
        sys.exit("the report is larger, slower or less quiet than it may be")


if __name__ == "__main__":
    as_script(main)
