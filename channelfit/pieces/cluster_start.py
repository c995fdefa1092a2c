"""What a cluster of Dask is started with: processes of this computer, jobs, certificates, GPUs."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import signal
import threading
from typing import Any

from channelfit.pieces.cluster_file import ClusterPlan
from channelfit.reading.errors import InputError
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
    """Who trusts whom: by the user's files; on this computer by a certificate for this once."""
    distributed = distributed_package()
    if plan.ca is not None:
        ends = {
            f"tls_{who}_{what}": str(file)
            for who in ("client", "scheduler", "worker")
            for what, file in (("cert", plan.certificate), ("key", plan.key))
        }
        return distributed.Security(tls_ca_file=str(plan.ca), require_encryption=True, **ends)
    if plan.local is not None:
        try:
            return distributed.Security.temporary()
        except (
            ImportError
        ):  # without `cryptography`; the network of this computer has no encryption
            return distributed.Security()
    security = distributed.Security()  # as Dask's own configuration says
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
        "protocol": "tls://" if security.require_encryption else "tcp://",
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
    told = {"security": security, "protocol": "tls://"} if plan.ca is not None else {}
    jobs = getattr(jobqueue_package(plan), str(plan.job_class))
    return await jobs(
        **plan.job,
        **told,
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
