"""The time a search spends on reporting progress, and how fast `channelfit watch` shows many runs.

    python benchmarks/watching.py            # writes benchmarks/results/watching.json

The search is that of a shipped model with small and large generations; one more has gone on for
100,000 generations, so that its history is long. Processor time is measured, not time on the clock,
since other programs may run meanwhile; searches with and without `state.json` take turns.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from report import Row, as_script, compared, finish, missing

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

import channelfit as cf  # noqa: E402
from channelfit.front.kinds import load_plan  # noqa: E402
from channelfit.results import run_folder  # noqa: E402
from channelfit.results.fit_folder import FitFolder  # noqa: E402
from channelfit.results.run_folder import RunFolder  # noqa: E402
from channelfit.search.loop import Progress  # noqa: E402
from support import watched  # noqa: E402
from support.browser import binary  # noqa: E402

MODEL = ROOT / "models" / "model_b.yaml"
N_RUNS, TURNS = 500, 7


def search(folder: Path, population: int, n: int) -> float:
    """Processor time of the generations of a search, from the end of the first to the last, s."""
    record, moments = FitFolder.record, []

    def timed(self, progress):
        fault = record(self, progress)
        moments.append(time.process_time())
        return fault

    FitFolder.record = timed
    try:
        optimizer = {"name": "genetic", "population": population}
        stop = {"generations": n}
        cf.fit(MODEL, optimizer=optimizer, stop=stop, folder=folder, seed=1, progress=False)
    finally:
        FitFolder.record = record
    return moments[-1] - moments[0]


@contextmanager
def telling(seconds: float, spent: list[float]) -> Iterator[None]:
    """Within the block numbers are written so often, and how long each writing takes is noted."""
    before = run_folder.REPORT_EVERY, RunFolder.report, FitFolder._save_rows

    def timed(function):
        def call(self, **news):
            began = time.thread_time()
            fault = function(self, **news)
            spent.append(time.thread_time() - began)
            return fault

        return call

    run_folder.REPORT_EVERY = seconds
    RunFolder.report = timed(before[1])
    FitFolder._save_rows = timed(before[2])
    try:
        yield
    finally:
        run_folder.REPORT_EVERY, RunFolder.report, FitFolder._save_rows = before


def spent_by_a_search(temporary: Path, population: int, n: int) -> list[Row]:
    """The share of a search that goes into its numbers, and its time with and without them."""
    used: dict[bool, list[float]] = {True: [], False: []}
    shares = []
    for turn in range(TURNS + 1):
        for told in (True, False) if turn % 2 else (False, True):
            spent: list[float] = []
            with telling(1.0 if told else 1e9, spent):
                seconds = search(temporary / f"{population}-{turn}-{told}", population, n)
            if turn:  # the first loads and compiles
                used[told].append(seconds)
                if told:
                    shares.append(sum(spent) / seconds)
    what = f"model_b, {n:,} generations of {population} candidates"
    note = f"median of {TURNS} searches each way, which take turns"
    against = "against a search that tells nothing; " + note
    return [
        Row(f"{what}: share spent on it", 100 * median(shares), "%", note=note),
        compared(f"{what}: time", median(used[True]), "s", median(used[False]), against),
    ]


def spent_after_long(temporary: Path) -> Row:
    """One writing of the numbers of a search whose history is long."""
    plan = load_plan(MODEL)
    run = RunFolder().claim(temporary / "long")
    folder = FitFolder(run, plan)
    spent: list[float] = []
    with telling(0.0, spent):
        for k in range(1, 100_011):
            if k == 100_001:
                spent.clear()
            run_folder.REPORT_EVERY = 0.0 if k >= 100_000 else 1e9
            folder.record(Progress(k, 1.0 / k, 50 * k, k / 1000, None, None, median_cost=2.0 / k))
    run.release()
    note = "mean of 10; such writings are at least a hundred times as long apart"
    return Row("writing after 100,000 generations", 1e3 * sum(spent) / 10, "ms", note=note)


def many_runs(temporary: Path) -> list[Row]:
    """Measure how long the page of many runs takes to load."""
    place = temporary / "runs"
    for k in range(N_RUNS):
        watched.made_run(place / f"cell {k}", 300, state="finished", best_cost=float(k))
    rows = []
    with watched.serving(place) as server:
        times = []
        for _ in range(6):
            began = time.perf_counter()
            answer = watched.asked(server, "/~/queue")
            times.append(1e3 * (time.perf_counter() - began))
            assert len(json.loads(answer.body)["rows"]) == N_RUNS
        rows.append(Row(f"{N_RUNS} runs: first answer", times[0], "ms"))
        rows.append(Row(f"{N_RUNS} runs: later answers", median(times[1:]), "ms"))
        rows.append(in_chromium(server))
    return rows


def in_chromium(server: watched.Server) -> Row:
    """From the call of the page until its last row stands."""
    name = f"{N_RUNS} runs: page in headless Chromium until its last row"
    try:
        from playwright.sync_api import sync_playwright  # an optional package
    except ImportError:
        return missing(name, "ms", "playwright is not installed")
    if not binary():
        return missing(name, "ms", "Chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary(), chromium_sandbox=False)
        times = []
        for _ in range(5):
            tab = browser.new_page()
            began = time.perf_counter()
            tab.goto(server.address)
            tab.locator("#runs tbody tr").nth(N_RUNS - 1).wait_for()
            times.append(1e3 * (time.perf_counter() - began))
            tab.close()
        browser.close()
    return Row(name, median(times), "ms", note="median of 5")


def main_program() -> None:
    """Measures everything."""
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder)
        rows = spent_by_a_search(temporary, 50, 6000)
        rows += spent_by_a_search(temporary, 1000, 1500)
        rows.append(spent_after_long(temporary))
        rows += many_runs(temporary)
    finish("watching", "A fit that is watched, and a page of many runs", rows, "cpu")


if __name__ == "__main__":
    as_script(main_program)
