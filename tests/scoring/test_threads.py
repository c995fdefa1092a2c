"""Threads that share work, and BLAS kept to one: nothing is lost, done twice, or waited for."""

import _thread
import os
import subprocess
import sys
import threading
import time

import pytest
import yaml
from threadpoolctl import threadpool_info, threadpool_limits

import channelfit as cf
from channelfit.front.kinds import load_plan, make_scorer
from channelfit.reading import memory
from channelfit.scoring.machine.threads import Team, side_by_side, single_threaded_blas
from support.places import MODELS

of_blas = pytest.mark.skipif(
    not any(pool["user_api"] == "blas" for pool in threadpool_info()),
    reason="this NumPy has a BLAS of which threadpoolctl knows nothing",
)


@of_blas
def test_scores_of_long_recordings_do_not_depend_on_the_threads_of_blas(tmp_path):
    """Sums over 90,000 samples are added in parts, one a thread, where BLAS has several."""
    protocol = cf.Protocol.steps([0, 20], duration=900, holding=-80, sampling=0.01)
    protocol.save(tmp_path / "long.yaml")
    file = tmp_path / "fit.yaml"
    model = MODELS / "guide" / "my_channel.yaml"
    fit = {"protocols": ["long.yaml"], "surrogate": {"noise": 10, "seed": 1}}
    file.write_text(yaml.safe_dump({"model": str(model), "fit": fit}))

    def score(n_threads):
        with threadpool_limits(n_threads, "blas"):
            plan = load_plan(file, backend="cpu")
            values = plan.problem.values()[:, None] * [[1.0, 1.1, 0.9]]
            return make_scorer(plan, "cpu").score(values).cost.tolist()

    assert score(1) == score(4)


LAYOUT = """
import hashlib
import numpy as np
from channelfit.scoring.layout.exponential_tables import transform_table
from channelfit.scoring.layout.held_compression import compression
from channelfit.scoring.layout.orthogonal import spanned
from channelfit.scoring.layout.ramp_collocation import between, points, tails

data = np.sin(np.arange(803.0))
found = [transform_table(data), points(), tails(), spanned(between(np.linspace(0, 1, 40)), 1e-15)]
for oscillating in (False, True):
    kept = compression(803, oscillating)
    found += [kept.matrix, *map(np.asarray, kept.project(data))]
digest = hashlib.sha256(b"".join(array.tobytes() for array in found)).hexdigest()
"""


@of_blas
def test_what_a_cost_is_made_of_depends_on_no_kind_of_blas():
    """Nor on its number of threads: the way of a search would, in its last digits."""
    here: dict[str, str] = {}
    with threadpool_limits(2, "blas"):
        exec(LAYOUT, here)
    for kind in ("Nehalem", "Haswell"):
        there = subprocess.run(
            [sys.executable, "-c", LAYOUT + "print(digest)"],
            env=os.environ | {"OPENBLAS_CORETYPE": kind, "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.split() == [here["digest"]]


PARTS = [(k, k + 1) for k in range(200)]


def done_by(team: Team) -> list[int]:
    """The parts that were done, in order."""
    done: list[int] = []
    team.share(lambda first, last: done.extend(range(first, last)), PARTS)
    return sorted(done)


@pytest.mark.parametrize("n_helpers", [0, 1, 7, 300])
def test_each_part_of_a_work_is_done_once(n_helpers):
    team = Team(n_helpers)
    assert all(done_by(team) == list(range(200)) for _ in range(50))


def test_work_is_shared():
    """The first part here ends only after another thread has begun one."""
    here, begun = threading.get_ident(), threading.Event()

    def wait_here(first: int, last: int) -> None:
        if threading.get_ident() != here:
            begun.set()
        assert begun.wait(60)

    team = Team(2)
    for _ in range(3):
        begun.clear()
        team.share(wait_here, PARTS)


def refused(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def dead(*_: object) -> int:
    """A thread that was started in too little memory, and has never come to life."""
    return 0


def test_threads_leave_room_for_libraries_that_are_loaded_later(monkeypatch):
    left = iter([2_000_000_000, 1_000_000_000, 740_000_000, 0])
    monkeypatch.setattr(memory, "_address_space", lambda: 10**10)
    monkeypatch.setattr(memory, "_left_of", lambda limit: [next(left)])
    started = []
    monkeypatch.setattr(_thread, "start_new_thread", lambda *given: started.append(given))
    assert done_by(Team(9)) == list(range(200))
    assert len(started) == 2


@pytest.mark.parametrize("start", [refused, dead])
def test_without_room_for_threads_the_work_is_done_here(start, monkeypatch):
    monkeypatch.setattr(_thread, "start_new_thread", start)
    monkeypatch.setattr(threading, "_start_new_thread", refused)
    done: list[int] = []
    for _ in range(3):
        side_by_side(lambda first, last: done.extend(range(first, last)), 320, 8, 23)
    assert sorted(done) == sorted(3 * list(range(40)))


@pytest.mark.parametrize("in_helper", [True, False])
def test_an_error_in_a_thread_is_raised_and_nothing_new_begins(in_helper):
    here, others = threading.get_ident(), threading.Event()
    n_begun = []

    def fail(first: int, last: int) -> None:
        n_begun.append(first)
        if (threading.get_ident() != here) == in_helper:
            others.set()
            raise ValueError("no number")
        assert others.wait(60)
        time.sleep(0.05)

    with pytest.raises(ValueError, match="no number"):
        Team(3).share(fail, PARTS)
    assert len(n_begun) < len(PARTS)


@pytest.mark.parametrize("while_calling", [True, False])
def test_after_an_interrupt_nothing_that_has_begun_goes_on(while_calling, monkeypatch):
    """The arrays that it works on are gone then."""
    here, begun, still = threading.get_ident(), threading.Event(), []

    def struck(*_: object) -> None:
        assert begun.wait(60)
        raise KeyboardInterrupt

    def work(first: int, last: int) -> None:
        if threading.get_ident() == here:
            struck()
        still.append(first)
        begun.set()
        time.sleep(0.2)
        still.pop()

    def start(*given: object) -> int:
        monkeypatch.setattr(_thread, "start_new_thread", struck)
        return usual(*given)

    usual = _thread.start_new_thread
    if while_calling:
        monkeypatch.setattr(_thread, "start_new_thread", start)
    with pytest.raises(KeyboardInterrupt):
        Team(2).share(work, PARTS)
    assert not still


def test_threads_without_work_do_not_keep_a_program_from_its_end():
    code = (
        "from channelfit.scoring.machine.threads import Team\n"
        "Team(5).share(lambda first, last: None, [(k, k + 1) for k in range(50)])\n"
        "print('done')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@of_blas
def test_blas_is_kept_to_one_thread_until_the_last_of_several_blocks_has_ended():
    def threads_of_blas():
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    with threadpool_limits(2, "blas"):
        before, first, second = threads_of_blas(), single_threaded_blas(), single_threaded_blas()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert threads_of_blas() == {1}
        second.__exit__(None, None, None)
        assert threads_of_blas() == before
