"""What all tests share: how they are spread over processes, and what is computed once for all."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import platformdirs
import pytest
from hypothesis import settings

from support import browser
from support.places import BENCHMARKS

# What benchmarks compute is tested, too; their modules hide none of anybody else's.
sys.path.append(str(BENCHMARKS))

#: Beyond these a further process spends its time on imports.
_MOST_WORKERS = 8

# What is compiled for the tests stays out of the user's own cache: NEURON's mechanisms are compiled
# without optimization here, which takes two thirds of the time.
os.environ.setdefault("CHANNELFIT_CACHE", platformdirs.user_cache_dir("channelfit-tests"))
os.environ.setdefault(
    "HYPOTHESIS_STORAGE_DIRECTORY", os.path.join(os.environ["CHANNELFIT_CACHE"], "hypothesis")
)
if sys.platform.startswith("linux"):
    os.environ.setdefault("MAKEFLAGS", r"CXXFLAGS=-O0\ -std=c++17")

# How long an example takes depends on who else is computing; and tests leave nothing behind.
settings.register_profile("channelfit", deadline=None, database=None)
settings.load_profile("channelfit")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Processes of `pytest -n auto`: one a logical core, where xdist would count whole ones."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, _MOST_WORKERS))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """With -n each process takes tests in their order, so that those of a file share fixtures."""
    if config.getoption("numprocesses", None) and config.getoption("dist") == "no":
        config.option.dist = "worksteal"


def pytest_collection_finish() -> None:
    """Spare the search for garbage the modules and tests that live to the end."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Compile the kernels that quick tests generate without optimization, in a seventh of the time.

    Slow and integration tests, and those marked `optimized`, take what users have.
    """
    from channelfit.scoring.machine import machine_code  # loads NumPy

    full = any(map(item.get_closest_marker, ("slow", "integration", "optimized")))
    machine_code.generated_level = machine_code.MOST_OPTIMIZED if full else 0


def pytest_configure(config: pytest.Config) -> None:
    """One folder for the truths of a session (`truths.py`); workers inherit its name."""
    if "CHANNELFIT_TEST_TRUTHS" in os.environ:
        return
    folder = tempfile.TemporaryDirectory(prefix="channelfit_truths_")
    os.environ["CHANNELFIT_TEST_TRUTHS"] = folder.name

    def forget() -> None:
        del os.environ["CHANNELFIT_TEST_TRUTHS"]
        folder.cleanup()

    config.add_cleanup(forget)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser for the tests of a file; they are skipped where there is none."""
    with browser.chromium() as found:
        yield found


@pytest.fixture
def page(chromium: Any) -> Iterator[browser.Page]:
    """A tab of its own for a test; see `browser`."""
    tab = browser.Page(chromium)
    yield tab
    tab.close()


@pytest.fixture(params=["played", pytest.param("real", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A GPU: played by the host, or real."""
    from channelfit.scoring.machine import gpu  # loads NumPy
    from support.cuda_host import HostCupy

    if request.param == "played":
        monkeypatch.setitem(sys.modules, "cupy", HostCupy())
    elif not gpu.is_available():
        pytest.skip("needs an NVIDIA GPU and CuPy")
    return str(request.param)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pictures and no reports, which take most of the time of a short command."""
    from channelfit.fitzhugh_nagumo import pictures  # loads Matplotlib
    from channelfit.results.report import report_writer

    for name in ("frames_figure", "space_time_figure", "save"):
        monkeypatch.setattr(pictures, name, lambda *given: None)
    for name in ("draw", "write_report"):
        monkeypatch.setattr(report_writer, name, lambda *given: None)
