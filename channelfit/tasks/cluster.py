"""An executor on many processes and machines, by Dask.

Dask finds workers, and transfers tasks to them and results back. Three things are added here. A
worker gets tasks only if it has the same software as this process, since its results could differ
otherwise. A task that runs much longer than others is started on a second worker as well, and the
first result counts. And when a scheduler is restarted, it gets the tasks that are unfinished.
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

from channelfit.reading.errors import InputError
from channelfit.scoring.machine.computer import processor
from channelfit.tasks.cluster_file import ClusterPlan, read_cluster
from channelfit.tasks.cluster_start import (
    distributed_package,
    jobqueue_package,
    kill_workers_but,
    queue_cluster,
    security_of,
    shown_plan,
    started_here,
)
from channelfit.tasks.executor import (
    Executor,
    SerialExecutor,
    TaskSet,
    TaskSetWithArguments,
    key_text,
)
from channelfit.tasks.result_store import Arrays, Key
from channelfit.tasks.worker import (
    MOST_TASK_SETS,
    Answer,
    Refused,
    Worker,
    accept,
    compute,
    software,
)

#: Tasks that a worker has at a time: one that it computes, and one that waits there.
_TASKS_AT_A_TIME = 2
#: Results that may wait to be used, until no more tasks are started.
_MOST_WAITING = 256
#: How many workers may compute the same task.
_MOST_COPIES = 3
#: How often a task may be lost because its worker ended, and for other reasons. A loss with the
#: scheduler does not count.
_MOST_ENDS, _MOST_LOSSES = 12, 3
#: Seconds between two looks at which workers are there, and at how many jobs there should be.
_LOOK, _SCALE_EVERY = 0.5, 30.0
#: Seconds after which a message says that no worker is there, and after which the run fails if all
#: workers have been refused.
_REPORT_NOBODY, _GIVE_UP_REFUSED = 10.0, 5.0
#: Seconds that a scheduler may take to answer after the connection was made.
_ANSWERING = 5.0
#: Seconds that the end of a cluster may take; then its processes on this computer are killed.
_CLOSING = 20.0

#: The configuration of Dask while a cluster is open.
_CONFIGURATION = {
    "logging.distributed": "critical",
    "distributed.admin.large-graph-warning-threshold": "1 GB",  # a task set may hold much data
}

_T = TypeVar("_T")
_Message = str | tuple[Key, Arrays] | None


def open_cluster(
    text: str | None, say: Callable[[str], object] = lambda text: None
) -> AbstractContextManager[Executor]:
    """Return a context that opens an executor: a cluster, or this process.

    Arguments:
        text: the value of `--cluster`; None for this process.
        say: called with messages for the user.

    Raises: InputError for a text or a file that cannot be understood, a scheduler that does not
    answer, and missing libraries.
    """
    return nullcontext(SerialExecutor()) if text is None else Cluster(read_cluster(text), say)


class Cluster:
    """An executor on workers of Dask, which can be used while a `with` block runs.

    Arguments:
        plan: where the workers are.
        say: called with messages for the user.
        patience: the least number of seconds that a task may run before a second worker gets it;
            the limit is four times the median run time if that is longer.

    Attributes:
        client: the client of Dask. jobs: the cluster of Dask, if this process has started one.
        accepted: the task sets that the workers have, by address and name: tasks of these can be
            started at once. A worker in this dict has channelfit installed.
        reported: what was said once and holds for all task sets.
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
        self.accepted: dict[str, dict[str, Worker]] = {}
        self.reported: set[str] = set()
        self._say, self._ends = say, ExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="cluster", daemon=True)

    def _serve(self) -> None:
        # Processes that are started here inherit the mask: Ctrl-C ends the command, not them.
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(_log)
        self._loop.run_forever()

    def _call(self, coroutine: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Run a coroutine in the thread of the cluster, and return its result."""
        running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return running.result(timeout)
        except BaseException:
            running.cancel()
            raise

    def __enter__(self) -> Cluster:
        if self.plan.job_class is not None:
            jobqueue_package(self.plan)
        dask = distributed_package().client.dask
        for name in ("distributed", "distributed.client"):  # each has a level of its own
            logger = logging.getLogger(name)
            self._ends.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)  # this class itself reports to the user
        self._ends.enter_context(dask.config.set(_CONFIGURATION))
        if sys.platform != "win32":  # else its start would undo the mask against Ctrl-C
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
        """Wait for the scheduler, for a limited time.

        A program that is no scheduler may never answer, or send bytes that Dask reads as the length
        of a huge message.
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
                # go on with the other one, and do not hide an earlier error
                except Exception as error:
                    self._say(f"the cluster did not end in order: {_words(error)}")

    def __call__(self, tasks: TaskSet, keys: Sequence[Key]) -> Iterator[tuple[Key, Arrays]]:
        """Yield the key and the result of each task once, as they get ready.

        Raises: InputError of a task, or if no worker can compute the tasks, the scheduler is gone
        for too long, or a task ends every worker that computes it.
        """
        if not keys:
            return
        messages: SimpleQueue[_Message] = SimpleQueue()
        distribution = _Distribution(self, tasks, keys, messages)
        running: Future[None] = asyncio.run_coroutine_threadsafe(distribution.run(), self._loop)
        running.add_done_callback(lambda _: messages.put(None))
        try:
            while (message := messages.get()) is not None:
                if isinstance(message, str):
                    self._say(message)
                else:
                    yield message
            running.result()
        finally:
            running.cancel()


@dataclass(eq=False)
class _Attempt:
    """A task that was started on a worker. began: when, by `time.monotonic`."""

    key: Key
    worker: str
    began: float


class _Distribution:
    """The tasks of one task set, while they are distributed over the workers.

    Arguments:
        messages: takes results, and texts for the user.
    """

    def __init__(
        self,
        cluster: Cluster,
        tasks: TaskSet,
        keys: Sequence[Key],
        messages: SimpleQueue[_Message],
    ) -> None:
        self._cluster, self._client = cluster, cluster.client
        self._messages, self._report = messages, messages.put
        self._tasks = _pickled(tasks)
        self._arguments_of = None
        if hasattr(tasks, "arguments"):
            self._arguments_of = cast(TaskSetWithArguments, tasks).arguments
        # For Dask, things of the same name are the same. So this distribution's own number is part
        # of every name: else the same task set, computed again, could get earlier results.
        self._id = uuid.uuid4().hex[:16]
        self._on_gpu = "GPU" in tasks.identity
        self._expected = dict(software(self._on_gpu))
        self._expected |= {k: str(v) for k, v in tasks.identity.items() if k in self._expected}
        # with the software, since a command with other software may have sent the same task set
        name = hashlib.sha256(self._tasks + repr(sorted(self._expected.items())).encode())
        self._name = name.hexdigest()[:16]
        self._queued, self._unfinished = deque(keys), set(keys)
        self._running: dict[asyncio.Task[Any], _Attempt] = {}
        self._offers: dict[asyncio.Task[Any], str] = {}
        self._workers = {
            address: accepted[self._name]
            for address, accepted in cluster.accepted.items()
            if self._name in accepted
        }
        self._refused: dict[str, str] = {}
        self._slow: set[str] = set()  # workers with a task that has run for too long
        self._seconds: deque[float] = deque(maxlen=200)
        self._losses: Counter[tuple[Key, int]] = Counter()
        self._reported: set[str] = set()
        self._looked = self._scaled = self._n_jobs = 0.0
        self._nobody_since = time.monotonic()
        self._n_submitted = 0

    async def run(self) -> None:
        """Get all tasks computed."""
        for address in self._cluster.accepted.keys() - self._workers.keys():
            self._offer(address)
        try:
            while self._unfinished:
                await self._find_scheduler()
                self._start_queued()
                self._start_late_ones_again()
                await self._update_workers()
                await self._wait_for_answers()
            self._scale(at_end=True)
        finally:
            if tasks := [*self._running, *self._offers]:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks, timeout=1)

    def _report_once(self, text: str, reported: set[str] | None = None) -> None:
        """Report a text that is not among those `reported` before, by default on these tasks."""
        reported = self._reported if reported is None else reported
        if text not in reported:
            reported.add(text)
            self._report(text)

    # the scheduler and the workers

    async def _find_scheduler(self) -> None:
        """Wait while the scheduler is gone; the client of Dask connects again by itself."""
        if self._client.status == "running":
            return
        wait = self._cluster.plan.wait
        self._report(f"the scheduler is gone; it is waited for, up to {wait:g} s")
        until = time.monotonic() + wait + _ANSWERING
        while self._client.status == "connecting" and time.monotonic() < until:
            await asyncio.sleep(0.1)
        if self._client.status != "running":
            raise InputError(
                f"the scheduler is gone and was not back within {wait:g} s; "
                f"{len(self._unfinished)} tasks are unfinished"
            )
        self._workers.clear()
        self._cluster.accepted.clear()
        self._refused.clear()
        self._slow.clear()
        self._looked, self._nobody_since = 0.0, time.monotonic()
        self._report(f"the scheduler is back; {len(self._unfinished)} tasks are unfinished")

    async def _update_workers(self) -> None:
        """Note which workers have come and gone, and offer the task set to those that have come."""
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return
        self._looked = now
        self._scale()
        try:
            there = set(await asyncio.wait_for(self._client.nthreads(), 10))
        except (OSError, TimeoutError):
            return  # the next call finds out whether the scheduler is gone
        for known in (self._workers, self._refused, self._cluster.accepted):
            for address in known.keys() - there:
                del known[address]
        self._slow &= there
        offered = set(self._offers.values())
        for address in there - offered - self._workers.keys() - self._refused.keys():
            self._offer(address)
        for task, address in self._offers.items():
            if address not in there:
                task.cancel()
        for task, attempt in list(self._running.items()):
            if attempt.worker not in there and not task.done():
                del self._running[task]
                task.cancel()
                self._note_loss(attempt.key, f"the end of worker {attempt.worker}", _MOST_ENDS)
        self._check_workers(there, now)

    def _offer(self, address: str) -> None:
        self._offers[asyncio.create_task(self._offered(address))] = address

    async def _offered(self, address: str) -> Any:
        """Offer the task set to a worker, and return its answer.

        A worker of Dask ends when it is sent a function that it does not have. So a new worker is
        first asked for a file of this package.
        """
        if address not in self._cluster.accepted:
            file = self._submit([address], pkgutil.get_data, "channelfit.tasks", "worker.py")
            found = await _answer(file)
            if isinstance(found, ImportError | FileNotFoundError):
                why = f"it has no channelfit that computes tasks ({_words(found)})"
                return Refused(address, address.rpartition(":")[0], why)
            if isinstance(found, BaseException):
                return found
        offer = self._name, self._tasks, self._expected, self._on_gpu
        return await _answer(self._submit([address], accept, *offer))

    def _check_workers(self, there: set[str], now: float) -> None:
        """Report that no worker is there; raise InputError if all that are there were refused."""
        if self._workers:
            self._nobody_since = now
        waited = now - self._nobody_since
        if there and there <= self._refused.keys() and waited > _GIVE_UP_REFUSED:
            why = "; ".join(sorted(set(self._refused.values())))
            raise InputError(f"no worker can be used: {why}")
        if waited > _REPORT_NOBODY:
            fact = "no worker has answered" if there else "no worker is there"
            self._report_once(f"{fact} yet; the tasks wait for one")

    def _scale(self, at_end: bool = False) -> None:
        """Ask a batch system for as many jobs as there are tasks, within the user's bounds.

        On this computer, start the processes again that Dask has given up.
        """
        plan, jobs, now = self._cluster.plan, self._cluster.jobs, time.monotonic()
        if plan.local is not None and len(jobs.workers) < len(jobs.worker_spec):
            jobs.scale(len(jobs.worker_spec))  # starts those that are missing
        if plan.job_class is None or (now - self._scaled < _SCALE_EVERY and not at_end):
            return
        self._scaled = now
        count = plan.least if at_end else min(plan.most, max(plan.least, len(self._unfinished)))
        self._n_jobs = count if at_end else max(count, self._n_jobs)
        jobs.scale(jobs=int(self._n_jobs))

    def _take_offer_answer(self, address: str, answer: Any) -> None:
        """Note whether a worker has accepted the task set; warn of its processor or its GPU."""
        if isinstance(answer, Worker):
            self._workers[address] = answer
            accepted = self._cluster.accepted.setdefault(address, {})
            accepted.pop(self._name, None)
            accepted[self._name] = answer
            for name in list(accepted)[:-MOST_TASK_SETS]:
                del accepted[name]
            if answer.processor != processor():
                self._report_once(
                    f"{answer.host} has the processor {answer.processor}, and "
                    f"{platform.node()} {processor()}: the last digits of results may differ",
                    self._cluster.reported,
                )
            twins = [
                w for w in self._workers.values() if (w.host, w.gpu) == (answer.host, answer.gpu)
            ]
            if answer.gpu and len(twins) > 1:
                self._report_once(
                    f"workers on {answer.host} share the GPU {answer.gpu}; give each its own by "
                    "CUDA_VISIBLE_DEVICES",
                    self._cluster.reported,
                )
        elif isinstance(answer, Refused):
            self._refuse(address, f"{address} on {answer.host}", answer.why)
        elif self._client.status == "running" and not _is_loss(answer):
            # it may have another channelfit, or none
            self._refuse(address, address, _words(answer))

    def _refuse(self, address: str, worker: str, why: str) -> None:
        self._forget(address)
        self._refused[address] = f"worker {worker}: {why}"
        self._report_once(f"worker {worker} is not used: {why}")

    def _forget(self, address: str) -> None:
        """Note that a worker does not have the task set, or no longer has it."""
        self._workers.pop(address, None)
        self._cluster.accepted.get(address, {}).pop(self._name, None)

    # the tasks

    def _submit(self, workers: list[str], function: Callable[..., Any], *arguments: Any) -> Any:
        self._n_submitted += 1
        return self._client.submit(
            function,
            *arguments,
            key=f"{function.__name__}-{self._name}-{self._id}-{self._n_submitted}",
            workers=workers,
            pure=False,
        )

    def _start(self, key: Key, worker: str) -> None:
        arguments = None if self._arguments_of is None else _pickled(self._arguments_of(key))
        future = self._submit([worker], compute, self._name, list(key), arguments)
        attempt = _Attempt(key, worker, time.monotonic())
        self._running[asyncio.create_task(_answer(future))] = attempt

    def _least_busy(self, excluded: set[str]) -> str | None:
        """Return the worker with the fewest tasks, of those that may have another one."""
        load = Counter(attempt.worker for attempt in self._running.values())
        free = [w for w in self._workers if w not in excluded and load[w] < _TASKS_AT_A_TIME]
        return min(free, key=lambda w: load[w], default=None)

    def _start_queued(self) -> None:
        """Start tasks on workers that have fewer than they may have."""
        if self._messages.qsize() > _MOST_WAITING:  # the results so far are not used yet
            return
        late = self._slow if self._slow < self._workers.keys() else set()
        while self._queued and (worker := self._least_busy(late)) is not None:
            self._start(self._queued.popleft(), worker)

    def _start_late_ones_again(self) -> None:
        """Start tasks that have run for too long on another worker as well."""
        if not self._seconds:
            return
        limit = max(self._cluster.patience, 4 * statistics.median(self._seconds))
        now, has = time.monotonic(), dict[Key, list[_Attempt]]()
        for attempt in self._running.values():
            has.setdefault(attempt.key, []).append(attempt)
        for key, attempts in has.items():
            if key not in self._unfinished or now - max(a.began for a in attempts) < limit:
                continue
            tried = {attempt.worker for attempt in attempts}
            self._slow |= tried & self._workers.keys()
            worker = self._least_busy(tried | self._slow)
            if worker is not None and len(attempts) < _MOST_COPIES:
                self._report(
                    f"task {key_text(key)} has run for {now - attempts[0].began:.0f} s; "
                    "another worker computes it, too"
                )
                self._start(key, worker)

    async def _wait_for_answers(self) -> None:
        """Wait for an answer, for a short time, and process all that there are."""
        waiting: list[asyncio.Task[Any]] = [*self._running, *self._offers]
        if not waiting:
            await asyncio.sleep(_LOOK / 2)
            return
        done, _ = await asyncio.wait(waiting, timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            answer = CancelledError() if task.cancelled() else task.result()
            if task in self._offers:
                self._take_offer_answer(self._offers.pop(task), answer)
            else:
                self._take_answer(self._running.pop(task), answer)

    def _take_answer(self, attempt: _Attempt, answer: Any) -> None:
        """Process the answer to a task: a result, an error, or that it was lost."""
        key = attempt.key
        if not isinstance(answer, Answer):
            self._note_loss(key, _words(answer), _MOST_LOSSES)
        elif answer.unknown:
            # it was restarted, or has had many others since
            if answer.address not in self._offers.values():
                self._forget(answer.address)
                self._looked = 0.0
            self._requeue(key)
        elif answer.error is not None:
            answer.error.add_note(f"on worker {answer.address}:\n{answer.place}")
            raise answer.error
        else:
            assert answer.arrays is not None
            self._slow.discard(answer.address)
            self._seconds.append(answer.seconds)
            if key in self._unfinished:
                self._unfinished.remove(key)
                self._report((key, {name: _writable(a) for name, a in answer.arrays.items()}))
                self._cancel_others(key)

    def _cancel_others(self, key: Key) -> None:
        """Cancel other attempts at a task that is done.

        Attempts on slow workers go on: their answer shows that the worker is no longer slow.
        """
        for task, attempt in list(self._running.items()):
            if attempt.key == key and attempt.worker not in self._slow:
                del self._running[task]
                task.cancel()

    def _note_loss(self, key: Key, why: str, most: int) -> None:
        """Queue a lost task again; `most` is how often it may be lost for such a reason."""
        if key not in self._unfinished:
            return
        if self._client.status == "running":
            self._losses[key, most] += 1
        if self._losses[key, most] >= most:
            raise InputError(
                f"task {key_text(key)} was lost {most} times, the last time by {why}; a task "
                "that ends each worker that computes it may need more memory"
            )
        self._requeue(key)

    def _requeue(self, key: Key) -> None:
        """Put a task first in the queue, unless a worker still has it."""
        if key in self._unfinished and all(a.key != key for a in self._running.values()):
            self._queued.appendleft(key)


async def _answer(future: Any) -> Any:
    """Return the answer of a worker, or the error by which it was lost.

    The wait is shielded: Dask fetches several answers at once, and a wait that is cancelled would
    cancel this for all of them.
    """
    try:
        return await asyncio.shield(future)
    except (asyncio.CancelledError, CancelledError) as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return error  # Dask cancels futures if their scheduler has gone
    except Exception as error:
        return error
    finally:
        future.release()


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _log(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Send errors of Dask's own tasks, as after a lost connection, to its log, not the screen."""
    logging.getLogger("distributed").error(
        "%s", context.get("message"), exc_info=context.get("exception")
    )


def _is_loss(error: BaseException) -> bool:
    """Return whether an answer did not come because the worker or the scheduler has gone."""
    return isinstance(error, OSError | TimeoutError | asyncio.CancelledError | CancelledError)


def _writable(array: Any) -> Any:
    """Return the array, or a copy if it is a read-only part of a message."""
    return array if array.flags.writeable else array.copy()


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())[:500]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
