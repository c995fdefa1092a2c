"""The start of a Dask cluster: processes of this computer or jobs, certificates, GPUs."""

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

from channelfit.reading.errors import InputError, shown
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.threads import usable_cores
from channelfit.tasks.cluster_file import ClusterPlan

INSTALL = 'pip install "channelfit[cluster]"'

#: Cores of each process on this computer, if there is no GPU.
_CORES = 4
#: Seconds that a process on this computer may take to start, and how often all are started again
#: if one ended during its start.
_STARTING, _STARTS = 300.0, 3


def distributed_package() -> Any:
    """Return the package `distributed` of Dask, which is optional and loads slowly.

    Raises: InputError if it, or a package that it needs, is not installed.
    """
    try:
        return importlib.import_module("distributed")
    except ModuleNotFoundError as error:
        raise InputError(f"--cluster needs {error.name}: {INSTALL}") from None


def shown_plan(plan: ClusterPlan) -> str:
    """Return the name of a cluster for messages."""
    if plan.scheduler is not None:
        return f"the scheduler {plan.scheduler}"
    return plan.job_class or "a cluster on this computer"


def security_of(plan: ClusterPlan) -> Any:
    """Return the certificates of a cluster: the user's files, or keys that are made for this run.

    Anybody who can connect to a process of Dask can run any program there, so no process is
    started here without keys. Keys that are made for a run stay in memory, except for copies that
    only the user can read: while they are loaded, and for jobs in the folder of the command until
    the cluster ends.

    Raises: InputError if no keys can be made, or a scheduler needs certificates and none are given.
    """
    distributed = distributed_package()
    if plan.ca is not None:
        ends = {
            f"tls_{role}_{part}": str(file)
            for role in ("client", "scheduler", "worker")
            for part, file in (("cert", plan.certificate), ("key", plan.key))
        }
        return distributed.Security(tls_ca_file=str(plan.ca), require_encryption=True, **ends)
    security = distributed.Security()  # from the configuration of Dask
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
    """Return the GPUs of this computer as CUDA_VISIBLE_DEVICES names them."""
    if not gpu.is_available():
        return []
    count = int(gpu.cupy().cuda.runtime.getDeviceCount())
    named = [n.strip() for n in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if n.strip()]
    return named[:count] or [str(number) for number in range(count)]


def local_cluster(plan: ClusterPlan, security: Any) -> dict[str, Any]:
    """Return the arguments of a Dask cluster on this computer: a GPU or some cores a process."""
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
    """Start a cluster of processes on this computer, and wait until they run."""
    for left in reversed(range(_STARTS)):
        jobs = distributed_package().SpecCluster(
            **local_cluster(plan, security), security=security, asynchronous=True
        )
        try:
            return await jobs
        except Exception:  # of any kind: a process ended during its start
            await jobs.close()
            if not left:
                raise
    raise AssertionError("the last start has returned or raised")


def jobqueue_package(plan: ClusterPlan) -> Any:
    """Return the package `dask_jobqueue`, which is optional; the main thread must load it first.

    On import it replaces the handlers of Ctrl-C and SIGTERM, so that a command would end without
    writing its files; the earlier handlers are restored here.

    Raises: InputError if it is not installed.
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
    """Start a cluster of jobs by dask-jobqueue. Raises: InputError if keys have no safe place."""
    folder = os.getcwd()
    if plan.ca is None and shlex.quote(folder) != folder:
        raise InputError(
            "jobs find their keys in the folder of the command; its name stands in their script "
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
    """Kill workers that were started here after `before` was noted and still run, even stopped."""
    for process in set(multiprocessing.active_children()) - before:
        if process.name.startswith("Dask"):
            process.kill()
            process.join()
