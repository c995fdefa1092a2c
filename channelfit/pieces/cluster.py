"""Pieces of work on many processes and machines, by Dask.

Dask finds workers, carries work to them and results back, and does the work of a worker that has
gone once more. What is added here is what science asks for besides: a worker is given a work only
if it has the same software; a piece that is out much longer than others is given to a second
worker, and the first answer counts; and a scheduler that was started anew gets what is not done.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import multiprocessing
import pickle
import pkgutil
import platform
import signal
import statistics
import sys
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from multiprocessing import resource_tracker
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from channelfit.pieces import on_worker
from channelfit.pieces.cluster_file import ClusterPlan, read_cluster
from channelfit.pieces.cluster_start import (
    distributed_package,
    jobqueue_package,
    kill_workers_but,
    queue_cluster,
    security_of,
    shown_plan,
    started_here,
)
from channelfit.pieces.kept import Arrays, Key
from channelfit.pieces.work import Doer, Here, Telling, Work, shown_key
from channelfit.reading.errors import InputError
from channelfit.scoring.machine.computer import processor

#: Pieces that a worker has at a time: one that it does, and one that waits beside it.
_AHEAD = 2
#: Results that may wait for whoever wants them, until no more pieces are given out.
_MOST_WAITING = 256
#: How many workers may do the same piece.
_MOST_AT_ONCE = 3
#: How often a piece may be lost with its worker, and for other reasons than that; what a scheduler
#: has lost does not count.
_MOST_ENDS, _MOST_LOSSES = 12, 3
#: Seconds between two looks at which workers are there, and at how many jobs there should be.
_LOOK, _COUNT_JOBS = 0.5, 30.0
#: Seconds after which it is told that no worker is there, and that no worker will do.
_TELL_NOBODY, _GIVE_UP_REFUSED = 10.0, 5.0
#: Seconds that a scheduler may take to answer, once it was reached.
_ANSWERING = 5.0
#: Seconds that the end of a cluster may take; then its processes on this computer are killed.
_CLOSING = 20.0

#: Of Dask, while a cluster is open.
_CONFIGURATION = {
    "logging.distributed": "critical",
    "distributed.admin.large-graph-warning-threshold": "1 GB",  # a work may hold much data
}

_T = TypeVar("_T")
_News = str | tuple[Key, Arrays] | None


def open_cluster(
    text: str | None, say: Callable[[str], object] = lambda text: None
) -> AbstractContextManager[Doer]:
    """Who does pieces for as long as a block runs: a cluster, or this process.

    Arguments:
        text: as for `--cluster`; None for this process.
        say: tells the user what happens.

    Raises: InputError for a text or a file that means nothing, a scheduler that does not answer,
    and libraries that are missing.
    """
    return nullcontext(Here()) if text is None else Cluster(read_cluster(text), say)


class Cluster:
    """Workers of Dask, which do pieces while a `with` block runs.

    Arguments:
        plan: where they are.
        say: tells the user what happens.
        patience: how many seconds a piece may be out before a second worker gets it, at least; it
            is four times as long as others take where that is more.

    Attributes:
        client: Dask's. jobs: Dask's cluster, where this process has started one.
        taken: by address and name, what works the workers have, whose pieces they get at once. A
            worker that stands there has channelfit.
    """

    def __init__(
        self,
        plan: ClusterPlan,
        say: Callable[[str], object] = lambda text: None,
        patience: float = 10.0,
    ) -> None:
        self.plan, self.patience = plan, patience
        self.client: Any = None
        self.jobs: Any = None
        self.taken: dict[str, dict[str, on_worker.Worker]] = {}
        self._say, self._ends = say, ExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="cluster", daemon=True)

    def _serve(self) -> None:
        # Processes that are started here inherit that Ctrl-C is not for them, but for the command.
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(_note)
        self._loop.run_forever()

    def _call(self, work: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """What a coroutine returns, done in the thread of the cluster."""
        doing = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return doing.result(timeout)
        except BaseException:
            doing.cancel()
            raise

    def __enter__(self) -> Cluster:
        if self.plan.job_class is not None:
            jobqueue_package(self.plan)
        dask = distributed_package().client.dask
        for name in ("distributed", "distributed.client"):  # each has a level of its own
            logger = logging.getLogger(name)
            self._ends.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)  # what matters is said here in plain words
        self._ends.enter_context(dask.config.set(_CONFIGURATION))
        if sys.platform != "win32":  # it would let Ctrl-C through to what is started after it
            resource_tracker.ensure_running()
        before = set(multiprocessing.active_children())
        self._ends.callback(kill_workers_but, before)
        self._thread.start()
        try:
            self._call(self._open())
        except BaseException:
            self.__exit__()
            raise
        self._say(f"dashboard {self.client.dashboard_link}")
        return self

    async def _open(self) -> None:
        distributed, plan = distributed_package(), self.plan
        security = security_of(plan)
        try:
            if plan.local is not None:
                self.jobs = await started_here(plan, security)
            elif plan.job_class is not None:
                self.jobs = await queue_cluster(plan, security)
            self.client = distributed.Client(
                plan.scheduler or self.jobs,
                security=security,
                timeout=plan.wait,
                asynchronous=True,
                set_as_default=False,
            )
            await self._connected()
        except InputError:
            raise
        except Exception as error:  # of any library, by the kind of cluster
            raise InputError(f"{shown_plan(plan)} cannot be used: {_words(error)}") from error

    async def _connected(self) -> None:
        """Waits for the scheduler, but not for a program that is none: it may never answer, or
        with what reads as the announcement of a huge message.
        """
        try:
            await asyncio.wait_for(self.client, self.plan.wait + _ANSWERING)
        except (TimeoutError, MemoryError):
            why = "what is there does not answer as a scheduler of Dask does"
            raise InputError(f"{shown_plan(self.plan)} cannot be used: {why}") from None

    def __exit__(self, *_: object) -> None:
        try:
            self._call(self._close(), _CLOSING)
        except (TimeoutError, CancelledError):
            self._say("the cluster did not end in order; its processes on this computer are killed")
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSING)
            self._ends.close()

    async def _close(self) -> None:
        for one in (self.client, self.jobs):
            if one is not None:
                try:
                    await one.close()
                except Exception as error:  # the other one is closed, and no other error hidden
                    self._say(f"the cluster did not end in order: {_words(error)}")

    def __call__(self, work: Work, keys: Sequence[Key]) -> Iterator[tuple[Key, Arrays]]:
        """Yields each piece with its result once, as they get done.

        Raises: InputError of a piece, or where no worker can do the work, the scheduler is gone for
        too long, or a piece ends every worker that does it.
        """
        if not keys:
            return
        news: SimpleQueue[_News] = SimpleQueue()
        errand = _Errand(self, work, keys, news)
        doing: Future[None] = asyncio.run_coroutine_threadsafe(errand.run(), self._loop)
        doing.add_done_callback(lambda _: news.put(None))
        try:
            while (told := news.get()) is not None:
                if isinstance(told, str):
                    self._say(told)
                else:
                    yield told
            doing.result()
        finally:
            doing.cancel()


@dataclass(eq=False)
class _Attempt:
    """A piece that was given to a worker. began: when, by `time.monotonic`."""

    key: Key
    worker: str
    began: float
    future: Any


class _Errand:
    """The pieces of one work on their way.

    Arguments:
        news: takes what is to be said, and results.
    """

    def __init__(
        self, cluster: Cluster, work: Work, keys: Sequence[Key], news: SimpleQueue[_News]
    ) -> None:
        self._cluster, self._client = cluster, cluster.client
        self._news, self._tell = news, news.put
        self._work = _pickled(work)
        self._told = cast(Telling, work).told if hasattr(work, "told") else None
        # Dask takes what has the same name for the same: an errand's own is in all names that it
        # gives, or the same work once more could get what is left of the first time
        self._errand = uuid.uuid4().hex[:16]
        self._on_gpu = "GPU" in work.identity
        self._expected = dict(on_worker.software(self._on_gpu))
        self._expected |= {k: str(v) for k, v in work.identity.items() if k in self._expected}
        # a worker that another command with other software uses may have the same work already
        name = hashlib.sha256(self._work + repr(sorted(self._expected.items())).encode())
        self._name = name.hexdigest()[:16]
        self._left, self._undone = deque(keys), set(keys)
        self._out: dict[asyncio.Task[Any], _Attempt] = {}
        self._offers: dict[asyncio.Task[Any], str] = {}
        self._workers = {
            address: works[self._name]
            for address, works in cluster.taken.items()
            if self._name in works
        }
        self._refused: dict[str, str] = {}
        self._late: set[str] = set()  # these have let a piece wait for too long
        self._seconds: deque[float] = deque(maxlen=200)
        self._losses: Counter[tuple[Key, int]] = Counter()
        self._said: set[str] = set()
        self._looked = self._counted = self._n_jobs = 0.0
        self._nobody_since = time.monotonic()
        self._submitted = 0

    async def run(self) -> None:
        """Gets all pieces done."""
        for address in self._cluster.taken.keys() - self._workers.keys():
            self._offer(address)
        try:
            while self._undone:
                await self._find_scheduler()
                self._send()
                self._send_again()
                await self._look_around()
                await self._listen()
            self._scale(at_end=True)
        finally:
            if tasks := [*self._out, *self._offers]:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks, timeout=1)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._tell(text)

    # the scheduler and the workers

    async def _find_scheduler(self) -> None:
        """Waits while the scheduler is gone; Dask's client connects again by itself."""
        if self._client.status == "running":
            return
        wait = self._cluster.plan.wait
        self._tell(f"the scheduler is gone; it is waited for, up to {wait:g} s")
        until = time.monotonic() + wait + _ANSWERING
        while self._client.status == "connecting" and time.monotonic() < until:
            await asyncio.sleep(0.1)
        if self._client.status != "running":
            raise InputError(
                f"the scheduler is gone and was not back within {wait:g} s; "
                f"{len(self._undone)} pieces are not done"
            )
        self._workers.clear()
        self._cluster.taken.clear()
        self._refused.clear()
        self._late.clear()
        self._looked, self._nobody_since = 0.0, time.monotonic()
        self._tell(f"the scheduler is back; {len(self._undone)} pieces are not done yet")

    async def _look_around(self) -> None:
        """Sees which workers have come and gone, and offers the work to those that have come."""
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return
        self._looked = now
        self._scale()
        try:
            there = set(await asyncio.wait_for(self._client.nthreads(), 10))
        except (OSError, TimeoutError):
            return  # the next look tells whether the scheduler is gone
        for known in (self._workers, self._refused, self._cluster.taken):
            for address in known.keys() - there:
                del known[address]
        self._late &= there
        offered = set(self._offers.values())
        for address in there - offered - self._workers.keys() - self._refused.keys():
            self._offer(address)
        for task, address in self._offers.items():
            if address not in there:
                task.cancel()
        for task, attempt in list(self._out.items()):
            if attempt.worker not in there and not task.done():
                del self._out[task]
                task.cancel()
                self._lose(attempt.key, f"the end of worker {attempt.worker}", _MOST_ENDS)
        self._judge(there, now)

    def _offer(self, address: str) -> None:
        self._offers[asyncio.create_task(self._offered(address))] = address

    async def _offered(self, address: str) -> Any:
        """What a worker answers to the offer of the work.

        A worker of Dask ends where it is sent a function that it does not have, so one that is not
        known is asked before whether it has ours.
        """
        if address not in self._cluster.taken:
            asked = self._submit([address], pkgutil.get_data, "channelfit.pieces", "on_worker.py")
            found = await _answer(asked)
            if isinstance(found, ImportError | FileNotFoundError):
                why = f"it has no channelfit that does pieces of work ({_words(found)})"
                return on_worker.Refused(address, address.rpartition(":")[0], why)
            if isinstance(found, BaseException):
                return found
        work = self._name, self._work, self._expected, self._on_gpu
        return await _answer(self._submit([address], on_worker.take, *work))

    def _judge(self, there: set[str], now: float) -> None:
        """Tells that nobody is there, and ends the work if all who are there do not suit."""
        if self._workers:
            self._nobody_since = now
        waited = now - self._nobody_since
        if there and there <= self._refused.keys() and waited > _GIVE_UP_REFUSED:
            why = "; ".join(sorted(set(self._refused.values())))
            raise InputError(f"no worker can do this work: {why}")
        if waited > _TELL_NOBODY:
            who = "no worker has answered" if there else "no worker is there"
            self._say_once(f"{who} yet; the work waits for one")

    def _scale(self, at_end: bool = False) -> None:
        """Asks a batch system for as many jobs as there is work for, within the user's bounds, and
        this computer for processes that Dask has given up.
        """
        plan, jobs, now = self._cluster.plan, self._cluster.jobs, time.monotonic()
        if plan.local is not None and len(jobs.workers) < len(jobs.worker_spec):
            jobs.scale(len(jobs.worker_spec))  # what is there in name only is started
        if plan.job_class is None or (now - self._counted < _COUNT_JOBS and not at_end):
            return
        self._counted = now
        wanted = plan.least if at_end else min(plan.most, max(plan.least, len(self._undone)))
        self._n_jobs = wanted if at_end else max(wanted, self._n_jobs)
        jobs.scale(jobs=int(self._n_jobs))

    def _hear_of_offer(self, address: str, answer: Any) -> None:
        """Notes whether a worker has taken the work, and tells what is odd about it."""
        if isinstance(answer, on_worker.Worker):
            self._workers[address] = answer
            works = self._cluster.taken.setdefault(address, {})
            works.pop(self._name, None)
            works[self._name] = answer
            for name in list(works)[: -on_worker.MOST_WORKS]:
                del works[name]
            if answer.processor != processor():
                self._say_once(
                    f"{answer.host} has the processor {answer.processor}, and "
                    f"{platform.node()} {processor()}: the last digits of results may differ"
                )
            twins = [
                w for w in self._workers.values() if (w.host, w.gpu) == (answer.host, answer.gpu)
            ]
            if answer.gpu and len(twins) > 1:
                self._say_once(
                    f"{len(twins)} workers on {answer.host} share the GPU {answer.gpu}; give each "
                    "its own by CUDA_VISIBLE_DEVICES"
                )
        elif isinstance(answer, on_worker.Refused):
            self._refuse(address, f"{address} on {answer.host}", answer.why)
        elif self._client.status == "running" and not _is_loss(answer):
            self._refuse(
                address, address, _words(answer)
            )  # it may have another channelfit, or none

    def _refuse(self, address: str, worker: str, why: str) -> None:
        self._forget(address)
        self._refused[address] = f"worker {worker}: {why}"
        self._say_once(f"worker {worker} is not used: {why}")

    def _forget(self, address: str) -> None:
        """A worker does not have the work, or no longer."""
        self._workers.pop(address, None)
        self._cluster.taken.get(address, {}).pop(self._name, None)

    # pieces

    def _submit(self, workers: list[str], function: Callable[..., Any], *arguments: Any) -> Any:
        self._submitted += 1
        return self._client.submit(
            function,
            *arguments,
            key=f"{function.__name__}-{self._name}-{self._errand}-{self._submitted}",
            workers=workers,
            pure=False,
        )

    def _give(self, key: Key, worker: str) -> None:
        told = None if self._told is None else _pickled(self._told(key))
        future = self._submit([worker], on_worker.do, self._name, list(key), told)
        attempt = _Attempt(key, worker, time.monotonic(), future)
        self._out[asyncio.create_task(_answer(future))] = attempt

    def _least_busy(self, but: set[str]) -> str | None:
        """The worker with the fewest pieces, of those that may have another one."""
        load = Counter(attempt.worker for attempt in self._out.values())
        free = [w for w in self._workers if w not in but and load[w] < _AHEAD]
        return min(free, key=lambda w: load[w], default=None)

    def _send(self) -> None:
        """Gives pieces to workers that have fewer than they may have."""
        if self._news.qsize() > _MOST_WAITING:  # whoever wants the results is busy
            return
        late = self._late if self._late < self._workers.keys() else set()
        while self._left and (worker := self._least_busy(late)) is not None:
            self._give(self._left.popleft(), worker)

    def _send_again(self) -> None:
        """Gives pieces that are out for too long to a second worker, too."""
        if not self._seconds:
            return
        limit = max(self._cluster.patience, 4 * statistics.median(self._seconds))
        now, has = time.monotonic(), dict[Key, list[_Attempt]]()
        for attempt in self._out.values():
            has.setdefault(attempt.key, []).append(attempt)
        for key, attempts in has.items():
            if key not in self._undone or now - max(a.began for a in attempts) < limit:
                continue
            tried = {attempt.worker for attempt in attempts}
            self._late |= tried & self._workers.keys()
            worker = self._least_busy(tried | self._late)
            if worker is not None and len(attempts) < _MOST_AT_ONCE:
                self._tell(
                    f"piece {shown_key(key)} is out for {now - attempts[0].began:.0f} s; "
                    "another worker does it, too"
                )
                self._give(key, worker)

    async def _listen(self) -> None:
        """Waits until there is an answer, but not long, and takes all that there are."""
        waiting: list[asyncio.Task[Any]] = [*self._out, *self._offers]
        if not waiting:
            await asyncio.sleep(_LOOK / 2)
            return
        done, _ = await asyncio.wait(waiting, timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            answer = CancelledError() if task.cancelled() else task.result()
            if task in self._offers:
                self._hear_of_offer(self._offers.pop(task), answer)
            else:
                self._hear(self._out.pop(task), answer)

    def _hear(self, attempt: _Attempt, answer: Any) -> None:
        """Takes the answer to a piece: a result, an error, or that it was lost."""
        key = attempt.key
        if not isinstance(answer, on_worker.Answer):
            self._lose(key, _words(answer), _MOST_LOSSES)
        elif answer.unknown:
            if answer.address not in self._offers.values():  # it is new, or has had many others
                self._forget(answer.address)
                self._looked = 0.0
            self._again(key)
        elif answer.error is not None:
            answer.error.add_note(f"on worker {answer.address}:\n{answer.place}")
            raise answer.error
        else:
            assert answer.arrays is not None
            self._late.discard(answer.address)
            self._seconds.append(answer.seconds)
            if key in self._undone:
                self._undone.remove(key)
                self._tell((key, {name: _own(a) for name, a in answer.arrays.items()}))
                self._recall(key)

    def _recall(self, key: Key) -> None:
        """Takes back what others have of a piece that is done; whoever is late is heard later."""
        for task, attempt in list(self._out.items()):
            if attempt.key == key and attempt.worker not in self._late:
                del self._out[task]
                task.cancel()

    def _lose(self, key: Key, why: str, most: int) -> None:
        """Puts a piece that was lost back. most: how often this may happen."""
        if key not in self._undone:
            return
        if self._client.status == "running":
            self._losses[key, most] += 1
        if self._losses[key, most] >= most:
            raise InputError(
                f"piece {shown_key(key)} was lost {most} times, the last time by {why}; a piece "
                "that ends each worker that does it may need more memory"
            )
        self._again(key)

    def _again(self, key: Key) -> None:
        """Puts a piece in front of those that are left, unless somebody still has it."""
        if key in self._undone and all(a.key != key for a in self._out.values()):
            self._left.appendleft(key)


async def _answer(future: Any) -> Any:
    """What a worker has answered, or the error by which its answer was lost.

    Whoever no longer waits for an answer must not stop Dask from fetching it: Dask fetches in one
    go what several wait for, and all of them would lose their answers, and those after them.
    """
    try:
        return await asyncio.shield(future)
    except (asyncio.CancelledError, CancelledError) as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return error  # Dask gives a future up whose scheduler has gone
    except Exception as error:
        return error
    finally:
        future.release()


def _pickled(what: Any) -> bytes:
    return pickle.dumps(what, protocol=pickle.HIGHEST_PROTOCOL)


def _note(loop: asyncio.AbstractEventLoop, told: dict[str, Any]) -> None:
    """Keeps off the screen what is left over within Dask when somebody has gone."""
    logging.getLogger("distributed").error(
        "%s", told.get("message"), exc_info=told.get("exception")
    )


def _is_loss(error: BaseException) -> bool:
    """Whether an answer did not come because somebody has gone."""
    return isinstance(error, OSError | TimeoutError | asyncio.CancelledError | CancelledError)


def _own(array: Any) -> Any:
    """The array, or a copy of it where it lies in a message."""
    return array if array.flags.writeable else array.copy()


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())[:500]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
