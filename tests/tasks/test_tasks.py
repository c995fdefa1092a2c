"""Task sets: which results are stored, and what a resumed run computes again."""

from __future__ import annotations

import errno
import os
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from channelfit.reading.errors import InputError
from channelfit.scoring.scorer import Score, Scorer
from channelfit.search.journal import Journal, Journaled
from channelfit.tasks.cluster import _Attempt, _Distribution
from channelfit.tasks.executor import SerialExecutor, ThreadedExecutor, task_results
from channelfit.tasks.result_store import ResultStore, expect

KEYS = [("sets", k) for k in range(7)]


class Squares:
    """The square of a number, and how often each was asked for."""

    def __init__(self) -> None:
        self.identity = {"version": 1}
        self.done: list[tuple] = []

    def compute(self, key):
        self.done.append(key)
        return {"square": np.array([key[1] ** 2]), "text": np.frombuffer(b"\xc3\xa4", np.uint8)}


def values(found):
    return [(key, int(arrays["square"][0]), bytes(arrays["text"])) for key, arrays in found]


def test_results_come_in_the_order_of_their_keys_with_every_executor():
    def backwards(work, keys):
        for key in reversed(keys):
            yield key, work.compute(key)

    done = []
    found = values(
        task_results(Squares(), KEYS, backwards, on_done=lambda key, _: done.append(key))
    )
    assert found == values(task_results(Squares(), KEYS, SerialExecutor()))
    assert done == KEYS[::-1]


def test_a_task_is_computed_while_the_result_before_is_used():
    work = Squares()
    coming = SerialExecutor(ahead=True)(work, KEYS)
    first, _ = next(coming)
    assert first == KEYS[0]
    deadline = time.monotonic() + 60
    while len(work.done) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert work.done == KEYS[:2]
    assert [first, *(key for key, _ in coming)] == KEYS


def test_threads_compute_several_tasks_at_a_time():
    """Each waits here until two have begun; and nothing is interrupted that has ended."""
    together, interrupted = threading.Barrier(2), []

    class Together(Squares):
        def compute(self, key):
            together.wait(60)
            return super().compute(key)

    threads = ThreadedExecutor(2, lambda: interrupted.append(True))
    assert values(task_results(Together(), KEYS[:6], threads)) == values(
        task_results(Squares(), KEYS[:6])
    )
    assert list(threads(Squares(), [])) == interrupted == []


def test_threads_are_interrupted_where_their_results_are_no_longer_needed():
    over = threading.Event()

    class Waits(Squares):
        def compute(self, key):
            if key == KEYS[0]:
                return super().compute(key)
            assert over.wait(60)
            raise RuntimeError("interrupted")

    work = Waits()
    coming = ThreadedExecutor(2, over.set)(work, KEYS)
    assert next(coming)[0] == KEYS[0]
    coming.close()
    assert over.is_set()
    assert work.done == KEYS[:1]


def test_an_interrupt_while_a_result_is_used_ends_the_tasks():
    """Also where the traceback is kept, as notebooks do."""
    ended = []

    def executor(work, keys):
        try:
            yield from SerialExecutor()(work, keys)
        finally:
            ended.append(True)

    def interrupted(key, found):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as kept:
        list(task_results(Squares(), KEYS, executor, on_done=interrupted))
    assert ended == [True]
    assert kept.value.__traceback__ is not None


def test_an_executor_that_loses_a_task_is_an_error():
    def forgets(work, keys):
        yield from SerialExecutor()(work, [key for key in keys if key[1] != 3])

    with pytest.raises(InputError, match="task sets 3 was not computed"):
        list(task_results(Squares(), KEYS, forgets))


def test_stored_results_are_not_computed_again(tmp_path):
    whole = values(task_results(Squares(), KEYS))
    first = ResultStore(tmp_path / "pieces.bin")
    coming = task_results(Squares(), KEYS, store=first)
    for _ in range(3):
        next(coming)
    first.close(keep=True)
    work, again = Squares(), ResultStore(tmp_path / "pieces.bin")
    assert again.keys == set(KEYS[:3])
    assert values(task_results(work, KEYS, store=again)) == whole
    assert work.done == KEYS[3:]
    again.close(keep=False)
    assert not (tmp_path / "pieces.bin").exists()


@pytest.mark.parametrize("lost", [1, 9, 40])
def test_a_torn_end_costs_the_last_result(tmp_path, lost):
    file = tmp_path / "pieces.bin"
    kept = ResultStore(file)
    list(task_results(Squares(), KEYS, store=kept))
    kept.close(keep=True)
    os.truncate(file, file.stat().st_size - lost)
    again = ResultStore(file)
    assert again.keys == set(KEYS[:-1])
    again.put(KEYS[-1], {"square": np.array([36])})
    again.close(keep=True)
    assert ResultStore(file).keys == set(KEYS)


def test_a_changed_byte_costs_what_follows_and_is_never_believed(tmp_path):
    file = tmp_path / "pieces.bin"
    kept = ResultStore(file)
    list(task_results(Squares(), KEYS, store=kept))
    kept.close(keep=True)
    good = file.read_bytes()
    for place in range(20, len(good), 11):
        file.write_bytes(good[:place] + bytes([good[place] ^ 0x20]) + good[place + 1 :])
        again = ResultStore(file)
        for key in again.keys:
            assert int(again.get(key)["square"][0]) == key[1] ** 2
        assert len(again.keys) < len(KEYS)
        again.close(keep=True)


def test_a_file_that_another_process_has_just_made_is_not_emptied(tmp_path, monkeypatch):
    file = tmp_path / "pieces.bin"
    kept = ResultStore(file)
    kept.put(KEYS[0], {"square": np.array([0])})
    whole = file.read_bytes()
    monkeypatch.setattr(Path, "exists", lambda self: False)  # a moment ago it was not there
    with pytest.raises(InputError, match="another process is using it"):
        ResultStore(file)
    assert file.read_bytes() == whole
    kept.close(keep=True)


def test_another_file_is_refused_and_left_as_it_was(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("something that somebody wrote\n")
    with pytest.raises(InputError, match="no file of results of this version"):
        ResultStore(file)
    assert file.read_text() == "something that somebody wrote\n"


def test_a_full_disk_is_noted_and_the_computation_goes_on(tmp_path, monkeypatch):
    file = tmp_path / "pieces.bin"
    kept, real = ResultStore(file), os.fsync
    full = {"now": False}

    def fsync(descriptor):
        if full["now"]:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    found = []
    for key, arrays in task_results(Squares(), KEYS, store=kept):
        found.append((key, arrays))
        full["now"] = 2 <= len(found) < 5
        if len(found) == 4:
            assert "No space left on device" in str(kept.fault)
    assert values(found) == values(task_results(Squares(), KEYS))
    assert kept.fault is None
    kept.close(keep=True)
    assert ResultStore(file).keys == set(KEYS[:2] + KEYS[5:])


NUMBERS = st.sampled_from(["<f8", "<f4", "<i8", "<i4", "|i1", "|u1", "|b1"])


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        st.text("abcdefg_", min_size=1),
        NUMBERS.flatmap(
            lambda d: arrays_of.arrays(d, arrays_of.array_shapes(max_dims=4, min_side=0))
        ),
        max_size=4,
    ),
    st.lists(st.one_of(st.text(), st.integers(-(2**40), 2**40)), min_size=1, max_size=3),
)
def test_what_is_kept_comes_back_to_the_bit(tmp_path_factory, arrays, key):
    file = tmp_path_factory.mktemp("kept") / "pieces.bin"
    kept = ResultStore(file)
    kept.put(tuple(key), arrays)
    kept.close(keep=True)
    again = ResultStore(file)
    found = again.get(tuple(key))
    again.close(keep=False)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


# --- records with right checksums that nobody has written ----------------------------------------


def forged(file: Path, change: Callable[[bytes], bytes]) -> None:
    """Every record of a file changed, with the checksum that goes with it."""
    data = file.read_bytes()
    place = data.index(b"\n") + 1
    parts = [data[:place]]
    while place < len(data):
        length, _ = struct.unpack_from("<II", data, place)
        payload = change(data[place + 8 : place + 8 + length])
        parts += [struct.pack("<II", len(payload), zlib.crc32(payload)), payload]
        place += 8 + length
    file.write_bytes(b"".join(parts))


def test_a_record_that_is_cut_with_its_checksum_is_refused(tmp_path: Path) -> None:
    """Wherever it is cut or lengthened, and whatever it says of types and shapes."""
    file, arrays = tmp_path / "pieces.bin", {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(3)}
    kept = ResultStore(file)
    kept.put(("x", 1), arrays)
    kept.close(True)
    whole = file.read_bytes()
    n = len(whole) - whole.index(b"\n") - 9
    heading = n - 2 * 17 - 48 - 24
    changes: list[Callable[[bytes], bytes]] = [
        *(partial(lambda p, k: p[:k], k=k) for k in range(1, n, 9)),
        lambda p: p + b"\0",
        *(
            partial(lambda p, k: p[:heading] + bytes([k]) + p[heading + 1 :], k=k)
            for k in (0x2F, 0xF0, 0x50, 0x21)
        ),
        lambda p: p[: heading + 1] + b"\xff" * 16 + p[heading + 17 :],
    ]
    for change in changes:
        file.write_bytes(whole)
        forged(file, change)
        with pytest.raises(InputError, match=r"pieces.bin: .*(damaged|no file of results)"):
            ResultStore(file).get(("x", 1))


class Sums(Scorer):
    """A scorer whose cost is the sum of the parameters."""

    def score(self, parameters: np.ndarray) -> Score:
        return Score(parameters.sum(axis=0), np.zeros(parameters.shape[1], np.int8))


def test_a_journal_whose_answers_are_cut_with_their_checksums_is_refused(tmp_path: Path) -> None:
    parameters = np.ones((2, 3))
    scorer = Sums()
    file = tmp_path / "journal.bin"
    journal = Journal(file)
    Journaled(scorer, journal).score(parameters)
    journal.close(True)
    whole, head = file.read_bytes(), 14
    one = head + 17 + 24  # the head and the costs of an answer

    def with_costs(payload: bytes, costs: list[float]) -> bytes:
        return payload[: head + 17] + np.array(costs).tobytes() + payload[one:]

    changes: list[Callable[[bytes], bytes]] = [
        *(partial(lambda p, k: p[:k], k=k) for k in (head, head + 5, one, one + 3, one + 18)),
        lambda p: p[: head - 1] + b"\1" + p[head:one],  # one array alone
        lambda p: p[: head - 1] + b"\xff" + p[head:],
        partial(with_costs, costs=[1.0, np.nan, 2.0]),
    ]
    for change in changes:
        file.write_bytes(whole)
        forged(file, change)
        journal = Journal(file)
        with pytest.raises(InputError, match=r"journal.bin: .*damaged"):
            Journaled(scorer, journal).score(parameters)
        journal.close(True)
    file.write_bytes(whole)
    assert Journaled(scorer, Journal(file)).score(parameters).cost.tolist() == [2.0] * 3


@pytest.mark.parametrize(
    "array", [np.zeros((3, 2)), np.zeros((4, 3)), np.zeros(4), np.zeros((4, 2), int), None]
)
def test_a_stored_result_of_another_shape_or_kind_is_refused(array: np.ndarray | None) -> None:
    shapes = {"x": ("f", (4, 2)), "y": ("iu", (None,))}
    good = {"x": np.zeros((4, 2)), "y": np.zeros(7, int)}
    expect(good, shapes)
    with pytest.raises(InputError, match="x"):
        expect({"y": good["y"]} if array is None else {**good, "x": array}, shapes)


@pytest.mark.parametrize(
    ("out_s", "usual_s", "again"), [(5.0, 0.01, []), (40.0, 0.01, ["b"]), (40.0, 20.0, [])]
)
def test_a_task_starts_once_more_when_patience_and_usual_times_have_passed(
    out_s: float, usual_s: float, again: list[str]
) -> None:
    some, started = _Distribution.__new__(_Distribution), []
    some._cluster, some._seconds = SimpleNamespace(patience=30.0), deque([usual_s] * 5)
    some._unfinished, some._slow, some._workers = {KEYS[0]}, set(), {"a": None, "b": None}
    some._running = {None: _Attempt(KEYS[0], "a", time.monotonic() - out_s)}
    some._report, some._start = lambda text: None, lambda key, worker: started.append(worker)
    some._start_late_ones_again()
    assert started == again
