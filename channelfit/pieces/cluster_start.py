"""What a cluster of Dask is started with: processes of this computer, jobs, certificates, GPUs."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import shlex
import signal
import ssl
import threading
from typing import Any

from channelfit.pieces.cluster_file import ClusterPlan
from channelfit.reading.errors import InputError
from channelfit.reading.units import shown
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.threads import usable_cores

INSTALL = 'pip install "channelfit[cluster]"'

#: Processes of this computer have so many cores each, where there is no GPU.
_CORES = 4
#: Seconds that a process of this computer may take to start, and how often all are started anew
#: where one has ended before.
_STARTING, _STARTS = 300.0, 3


def distributed_package() -> Any:
    """Dask's package of clusters, which is optional and loads slowly.

    Raises: InputError where it, or what it needs, is not installed.
    """
    try:
        return importlib.import_module("distributed")
    except ModuleNotFoundError as error:
        raise InputError(f"--cluster needs {error.name}: {INSTALL}") from None


def shown_plan(plan: ClusterPlan) -> str:
    """What a plan is of, for messages."""
    if plan.scheduler is not None:
        return f"the scheduler {plan.scheduler}"
    return plan.job_class or "a cluster on this computer"


def security_of(plan: ClusterPlan) -> Any:
    """Who trusts whom: by the user's files, or by keys that are made for this run.

    Whoever reaches a process of Dask may run any program there, so what is started here is never
    without keys. Those that are made for a run stay in memory, but for copies that only the user
    may read: for as long as they are loaded, and for jobs in the folder of the command until the
    cluster ends.

    Raises: InputError where no keys can be made, or a scheduler asks for some and there are none.
    """
    distributed = distributed_package()
    if plan.ca is not None:
        ends = {
            f"tls_{who}_{what}": str(file)
            for who in ("client", "scheduler", "worker")
            for what, file in (("cert", plan.certificate), ("key", plan.key))
        }
        return distributed.Security(tls_ca_file=str(plan.ca), require_encryption=True, **ends)
    security = distributed.Security()  # as Dask's own configuration says
    if plan.local is not None or (plan.job_class is not None and not security.tls_ca_file):
        try:
            return distributed.Security.temporary(tls_min_version=ssl.TLSVersion.TLSv1_3)
        except ImportError:
            raise InputError(
                "--cluster needs cryptography, without which other users of this computer or of "
                f"its network could run programs in its processes: {INSTALL}"
            ) from None
    if (plan.scheduler or "").startswith("tls:") and not security.tls_ca_file:
        raise InputError(
            f"{shown_plan(plan)} is reached with certificates: give --cluster a FILE.yaml with "
            "scheduler and tls, or set distributed.comm.tls in Dask's configuration"
        )
    return security


def gpus() -> list[str]:
    """The GPUs of this computer as CUDA_VISIBLE_DEVICES names them."""
    if not gpu.is_available():
        return []
    count = int(gpu.cupy().cuda.runtime.getDeviceCount())
    named = [n.strip() for n in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if n.strip()]
    return named[:count] or [str(number) for number in range(count)]


def local_cluster(plan: ClusterPlan, security: Any) -> dict[str, Any]:
    """Processes of this computer, for Dask: each with its GPU, or its share of the cores."""
    distributed = distributed_package()
    cards, cores = gpus(), usable_cores()
    count = plan.local or len(cards) or min(cores, max(2, cores // _CORES))
    both = {
        "host": "127.0.0.1",
        "protocol": "tls://",
        "security": security,
    }
    options = {
        **both,
        "nthreads": max(1, cores // count),
        "memory_limit": 0,
        "death_timeout": _STARTING,
        "dashboard": False,
        "silence_logs": logging.CRITICAL,
    }
    workers = {}
    for number in range(count):
        own = {"CUDA_VISIBLE_DEVICES": cards[number % len(cards)]} if cards else {}
        workers[number] = {"cls": distributed.Nanny, "options": {**options, "env": own}}
    scheduler = {
        **both,
        "port": 0,
        "dashboard": True,
        "dashboard_address": "127.0.0.1:0",
        "worker_ttl": plan.worker_ttl,
    }
    return {
        "workers": workers,
        "scheduler": {"cls": distributed.Scheduler, "options": scheduler},
        "name": "channelfit",
    }


async def started_here(plan: ClusterPlan, security: Any) -> Any:
    """Processes of this computer, which have started."""
    for left in reversed(range(_STARTS)):
        jobs = distributed_package().SpecCluster(
            **local_cluster(plan, security), security=security, asynchronous=True
        )
        try:
            return await jobs
        except Exception:  # of whatever has ended a process before it was there
            await jobs.close()
            if not left:
                raise
    raise AssertionError("the last start has returned or raised")


def jobqueue_package(plan: ClusterPlan) -> Any:
    """Dask's package of batch systems, which is optional; loaded first in the main thread.

    When it is loaded it lets Ctrl-C end the process at once, without the files that a command
    writes then; what Ctrl-C and SIGTERM did before is put back.

    Raises: InputError where it is not installed.
    """
    handlers = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        return importlib.import_module("dask_jobqueue")
    except ModuleNotFoundError as error:
        raise InputError(
            f"class {plan.job_class} needs {error.name}: pip install dask-jobqueue"
        ) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            for one, handler in handlers.items():
                signal.signal(one, handler)


async def queue_cluster(plan: ClusterPlan, security: Any) -> Any:
    """A cluster of jobs, by dask-jobqueue. Raises InputError where it cannot be had."""
    folder = os.getcwd()
    if plan.ca is None and shlex.quote(folder) != folder:
        raise InputError(
            "jobs find their keys in the folder of the command, whose name stands in their script "
            "and may hold letters, digits and _ - . / alone; call the command in another folder, "
            f"or give the file of the cluster tls: {shown(folder)}"
        )
    jobs = getattr(jobqueue_package(plan), str(plan.job_class))
    return await jobs(
        **plan.job,
        security=security,
        protocol="tls://",
        shared_temp_directory=folder,
        scheduler_options={"worker_ttl": plan.worker_ttl, "dashboard_address": ":0"},
        asynchronous=True,
        silence_logs="critical",
    )


def kill_workers_but(before: set[Any]) -> None:
    """Kills workers that were started here since and have not ended, such as a stopped one."""
    for process in set(multiprocessing.active_children()) - before:
        if process.name.startswith("Dask"):
            process.kill()
            process.join()
